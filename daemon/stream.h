/* SPDX-License-Identifier: Apache-2.0
 *
 * stream: one consumer's ordered wish for frames, and the ring that they are decoded into.
 *
 * stream_open charges the ring to the place's budget, has it made, and writes a nonce into it; on_open
 * tells when a consumer may map it. stream_attach with the nonce that the consumer read starts the
 * stream. From then on every free slot is filled ahead, all free ones of a turn by one launch; on_batch
 * tells of each in order, and the slot is the consumer's until stream_release. No free slot: the stream
 * pauses, and only this one. Frames that are not loaded yet are waited for.
 *
 * With a view (view_plan.h) frames are decoded beside the ring and shown from there, in steps of as many as there is
 * room for; a frame that does not fit the view's dtype has the status STOW_NOFIT.
 *
 * A held slot is never filled. stream_close ends it: what is being decoded runs out first, then the ring
 * is freed. The ring stays charged until the consumer says that it has unmapped it (stream_detach).
 * A stream knows no session: everything that happens comes by its callbacks. Loop thread only. */
#ifndef STOW_STREAM_H
#define STOW_STREAM_H

#include "viewing.h"

#define STREAM_MAX_BATCH 8192u
#define STREAM_MAX_SLOTS 256u
#define STREAM_NONCE_BYTES 16u
#define STREAM_MAX_WISHES 1024u /* that wait for a slot */

enum stream_state {
    STREAM_OPENING, /* the ring is being made */
    STREAM_OFFERED, /* the consumer has yet to prove that it maps the ring */
    STREAM_RUNNING,
    STREAM_CLOSING, /* decodes run out, then the ring is freed */
    STREAM_CLOSED,  /* charged until the consumer has unmapped */
};

struct stream_options {
    enum stow_order order;
    uint64_t first, count; /* scan, shuffled; count 0: to the end */
    uint64_t *ids;         /* list; on success the stream's, from malloc */
    size_t n_ids;
    uint64_t seed, start;
    uint32_t rank, world;  /* world 0: 1 */
    uint32_t batch, slots; /* 0: defaults */
    enum memory_kind memory;
    const struct view_ask *view; /* NULL: frames as they are. The caller's */
};

struct stream;

/* A filled slot. Valid during the callback. */
struct stream_batch {
    uint32_t slot, n_frames;
    uint64_t generation, position, bytes, ready_ns;
    const uint64_t *ids;
    const int32_t *status; /* NULL: all are good */
};

struct stream_callbacks {
    void *data;
    void (*on_open)(void *data, struct stream *stream,
                    const struct stow_error *err); /* err NULL: offered */
    void (*on_batch)(void *data, struct stream *stream, const struct stream_batch *batch);
    void (*on_end)(void *data, struct stream *stream,
                   const struct stow_error *err); /* err NULL: all came */
};

enum slot_state { SLOT_FREE, SLOT_FILLING, SLOT_HELD };

struct slot {
    enum slot_state state;
    uint32_t n_frames;
    uint64_t generation, position;
    uint64_t *ids;   /* [batch] */
    int32_t *status; /* [batch] */
    bool any_bad;
};

struct stream {
    uint64_t ring;
    struct store *store;
    struct place *place;
    struct resident *resident;
    struct stream_options options;
    struct stream_callbacks callbacks;
    enum stream_state state;
    struct lane *lane;
    uint32_t batch, n_slots;
    uint64_t frame_bytes, slot_stride, ring_bytes; /* frames as they lie in the ring */
    struct viewing *viewing;                       /* NULL: as they are */
    uint64_t charged;                              /* to the place: the ring, and a list of ids */
    uint64_t position,
        end; /* next of this rank, and how many there are; end UINT64_MAX on request */
    struct wish *wishes, **wishes_last; /* on request: what to bring, in order */
    unsigned n_wishes;
    struct slot *slots;
    uint64_t *slot_ids;
    int32_t *slot_status;
    struct fill *refused; /* gathered, but the lane was full */
    bool nonce_sent;
    uint64_t generation;
    unsigned n_filling, n_held;
    bool ended, detached, abandoned;
    struct device_memory memory;
    struct device_request request;
    uint8_t nonce[STREAM_NONCE_BYTES];
    struct watch watch;
    struct place_retry retry;
};

/* Begin to open. STOW_RANGE (an id past the end), STOW_INVALID, STOW_NOROOM (with the shortage in err),
 * STOW_UNSUPPORTED (a view that cannot be), STOW_NOMEM: nothing was begun and options->ids are the caller's. on_open comes later. */
int stream_open(struct stream **stream, struct store *store, struct resident *resident,
                const char *name, const struct stream_options *options,
                const struct stream_callbacks *callbacks, struct stow_error *err);

/* STOW_STATE, or STOW_DEVICE when the nonce is wrong; then the stream should be closed. */
int stream_attach(struct stream *stream, const uint8_t *nonce, size_t nonce_bytes,
                  struct stow_error *err);

/* On request: bring these as one batch. ids are the stream's from here on, on success. STOW_STATE,
 * STOW_INVALID, STOW_RANGE, STOW_NOMEM, STOW_LIMIT (too many wait already). */
int stream_want(struct stream *stream, uint64_t *ids, size_t n_ids, struct stow_error *err);

/* The slot may be filled again. STOW_STALE if the consumer does not hold it with that generation. */
int stream_release(struct stream *stream, uint32_t slot, uint64_t generation);

/* The daemon is to end: nothing more is filled; held slots stay the consumer's. */
void stream_drain(struct stream *stream);

/* No more batches. Freed once it is closed and detached, or abandoned. */
void stream_close(struct stream *stream);
void stream_detach(struct stream *stream);
/* The consumer is gone: close, and call back no more. */
void stream_abandon(struct stream *stream);

#endif
