/* SPDX-License-Identifier: Apache-2.0
 *
 * encoder: one segment of a load on its way from chunks to frames of the resident.
 *
 * Happy path: encoder_begin, spans are read into its scratch, encoder_span for each; then by itself: decode every
 * frame, add up pixels and frames, learn the segment's model on a thread of libuv's pool, encode, keep of each
 * frame what is smaller, and put it where it stays. Frames are servable then, and the encoder is free for the next
 * segment. Several encoders of one load work side by side; room is taken in the order of the segments.
 *
 * A segment whose decoded frames are too many for the scratch goes through it in batches: decoded once to be added
 * up, and once more to be encoded. What comes out is the same.
 *
 * A frame that cannot be decoded is bad, with the reason; the others go on. All else that fails ends the load:
 * `failed` is called, and nothing new is begun. Loop thread only; the pool touches nothing but what the segment
 * has for itself, and under a lock the resident's pixel sums. */
#ifndef STOW_ENCODER_H
#define STOW_ENCODER_H

#include "chain.h"
#include "encoding.h"

enum encoder_state {
    ENCODER_NEW, /* it has no scratch */
    ENCODER_IDLE,
    ENCODER_FILLING, /* spans are read into its scratch */
    ENCODER_WORKING,
    ENCODER_WAITING, /* for its turn, or for room */
};

struct placing;

struct encoder {
    struct encoding *all;
    struct scratch scratch;
    enum encoder_state state;
    bool busy; /* the lane, the pool or the service thread has something of it */
    bool has_flags;
    const struct plan_segment *segment;
    struct chain chain;
    uv_work_t work;
    void (*work_run)(struct encoder *encoder);
    void (*next)(struct encoder *encoder); /* when what makes it busy is done */
    enum encode_stage stage;
    uint64_t begun_ns;
    struct stow_error err; /* of the pool's work */

    struct span_read
        *reads; /* [segment->n_spans] n_reads have come; until their tables are taken */
    size_t n_reads;

    /* good frames, after the first n_good those not decoded yet */
    struct decode_job *jobs; /* [n_jobs]; dst where the pixels are in the batch */
    uint32_t *frame_of;      /* [n_jobs] from the segment's first */
    uint32_t *encoded;       /* [n_jobs] bytes of form counts; 0: another form */
    struct frame *made;      /* [n_jobs] as it will be */
    int32_t *status;         /* of a batch, or of the sample */
    struct decode_job *sample_jobs;
    uint32_t n_jobs, n_good, at, n_batch; /* at: where in these the batch begins */
    uint32_t n_sample;
    struct stow_error *reasons; /* why frames of the batch are bad */

    uint32_t n_streams, table_bytes; /* of the model; 0: there is none, or no use for it */
    uint8_t *packed;
    size_t packed_bytes;
    uint64_t table; /* where it stays */
    int64_t gain;
    struct placing *placing;
    uint32_t n_placing, n_placed;
    bool has_mark, any; /* any: a frame is smaller as counts */
    struct room_mark mark;
    uint64_t mark_source, mark_kept;
};

/* Arrays of a load's size. 0 or STOW_NOMEM; fini is safe either way. The scratch is asked for apart. */
int encoder_init(struct encoder *encoder, struct encoding *all, struct lane *lane);
void encoder_fini(struct encoder *encoder);

/* Take up a segment of the plan. */
void encoder_begin(struct encoder *encoder, const struct plan_segment *segment);
/* Clear what sums are added to: once a segment, before its last span is handed in. Any thread. */
void encoder_clear(struct encoder *encoder);
/* A span's chunks are in the scratch. The read is the encoder's from here on, and empty. */
void encoder_span(struct encoder *encoder, struct span_read *read);
/* Go on if it waited for its turn or for room. */
void encoder_pump(struct encoder *encoder);

#endif
