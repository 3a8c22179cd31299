/* SPDX-License-Identifier: Apache-2.0
 *
 * fill: how a stream's free slots become batches. A fill is what one turn puts under way: some slots, one
 * decode job for each of their good frames, one fence. With a view it is a step: some frames of one slot, decoded
 * beside the ring and shown from there; the last of them is the one that has the slot. Fills of a stream run on one lane, so batches come
 * in order; one that the lane has no room for waits in stream->refused, and nothing overtakes it.
 * For stream.c alone. */
#ifndef STOW_FILL_H
#define STOW_FILL_H

#include "stream.h"

/* On request: frames to bring as one batch. */
struct wish {
    struct wish *next;
    uint64_t *ids;
    size_t n_ids;
};

struct fill {
    struct device_request fence;
    struct stream *stream;
    uint32_t *slots; /* [n_slots] in order */
    size_t n_slots;
    unsigned n_filling;      /* as the stream counts it */
    struct decode_job *jobs; /* [n_jobs] */
    int32_t *status;         /* of the jobs */
    int32_t **target;        /* where each job's status goes */
    size_t n_jobs;
    bool decoding;           /* the lane has the jobs: status is its until the fence is done */
    bool shown;              /* and the view's work */
    uint32_t slot, first, n; /* of a step: which frames */
};

/* Fill what can be filled, and tell when all has come. Safe at any time. */
void stream_pump(struct stream *stream);

/* Tell the consumer, once, that no more will come; err NULL: because all has. */
void stream_end(struct stream *stream, const struct stow_error *err);

/* The lane has room again for stream->refused. */
void fill_retry(struct stream *stream);

/* Free; NULL is allowed. */
void fill_free(struct fill *fill);
void wish_free(struct wish *wish);

/* In stream.c: a decode has run out; if the stream is closing and it was the last, its ring can go. */
void stream_close_when_idle(struct stream *stream);

#endif
