/* SPDX-License-Identifier: Apache-2.0
 *
 * consumer: who opens a stream in the tests, looks at every pixel, and remembers all it was told. */
#ifndef STOW_TEST_CONSUMER_H
#define STOW_TEST_CONSUMER_H

#include "rig.h"

#include "metrics.h"
#include "stream.h"

#define MIB (UINT64_C(1) << 20)
#define MAX_SEEN 4096

/* A view that shows frames as they are, by way of its scratch. */
static const struct view_ask seen_as_it_is;

/* A consumer, and all that it was told. */
struct consumer {
    struct rig *rig;
    struct stream *stream;
    unsigned n_opened, n_ended, n_batches;
    struct stow_error open_err, end_err;
    struct {
        uint32_t slot, n_frames;
        uint64_t generation, position;
        bool held;
    } batches[MAX_SEEN];
    uint64_t ids[MAX_SEEN];
    size_t n_ids;
    uint64_t generation; /* the last */
    size_t n_wrong;      /* pixels, statuses, sizes, generations that are not as they must be */
};

static inline void on_open(void *data, struct stream *stream, const struct stow_error *err)
{
    struct consumer *c = data;
    (void)stream;
    c->n_opened++;
    if (err)
        c->open_err = *err;
}

static inline void on_batch(void *data, struct stream *stream, const struct stream_batch *batch)
{
    struct consumer *c = data;
    const uint8_t *at = stream->memory.host + batch->slot * stream->slot_stride;
    bool any_bad = false;
    for (uint32_t i = 0; i < batch->n_frames; i++) {
        uint64_t id = batch->ids[i];
        int want = rig_form(id) != STOW_FORM_BAD ? 0 : id % 2 ? STOW_CORRUPT : STOW_UNWRITTEN;
        any_bad |= want != 0;
        c->n_wrong += (batch->status ? batch->status[i] : 0) != want;
        c->n_wrong += rig_wrong_pixels(at + i * RIG_FRAME_BYTES, id);
        if (c->n_ids < MAX_SEEN)
            c->ids[c->n_ids++] = id;
    }
    c->n_wrong += (batch->status != NULL) != any_bad;
    c->n_wrong +=
        batch->generation <= c->generation || batch->bytes != batch->n_frames * RIG_FRAME_BYTES;
    c->generation = batch->generation;
    if (c->n_batches < MAX_SEEN) {
        c->batches[c->n_batches].slot = batch->slot;
        c->batches[c->n_batches].n_frames = batch->n_frames;
        c->batches[c->n_batches].generation = batch->generation;
        c->batches[c->n_batches].position = batch->position;
        c->batches[c->n_batches++].held = true;
    }
}

static inline void on_end(void *data, struct stream *stream, const struct stow_error *err)
{
    struct consumer *c = data;
    (void)stream;
    c->n_ended++;
    if (err)
        c->end_err = *err;
}

static inline int consumer_open(struct consumer *c, struct rig *rig, struct resident *resident,
                                const struct stream_options *options, struct stow_error *err)
{
    *c = (struct consumer){.rig = rig};
    struct stream_options o = *options;
    struct stream_callbacks callbacks = {
        .data = c, .on_open = on_open, .on_batch = on_batch, .on_end = on_end};
    o.memory = MEMORY_HOST_FD;
    return stream_open(&c->stream, &rig->store, resident, "scan", &o, &callbacks, err);
}

/* The nonce as a consumer reads it: from the start of the mapping. */
static inline int consumer_attach(struct consumer *c)
{
    struct stow_error err;
    uint8_t nonce[STREAM_NONCE_BYTES];
    memcpy(nonce, c->stream->memory.host, sizeof(nonce));
    return stream_attach(c->stream, nonce, sizeof(nonce), &err);
}

/* Opened and attached. */
static inline void consumer_start(struct consumer *c, struct rig *rig, struct resident *resident,
                                  const struct stream_options *options)
{
    struct stow_error err = {.code = 0};
    CHECK_MSG(!consumer_open(c, rig, resident, options, &err), "%s", err.text);
    rig_turn(rig);
    CHECK(c->n_opened == 1 && !c->open_err.code && c->stream->state == STREAM_OFFERED);
    CHECK_INT(c->n_batches, 0);
    CHECK_INT(consumer_attach(c), 0);
}

static inline void release_all(struct consumer *c)
{
    for (unsigned i = 0; i < c->n_batches; i++) {
        if (c->batches[i].held) {
            c->batches[i].held = false;
            CHECK_INT(stream_release(c->stream, c->batches[i].slot, c->batches[i].generation), 0);
        }
    }
}

static inline void consumer_close(struct consumer *c)
{
    stream_close(c->stream);
    rig_turn(c->rig);
    stream_detach(c->stream);
    rig_turn(c->rig);
}

/* All of a stream: released as it comes, until its end. */
static inline void consume(struct consumer *c)
{
    for (int i = 0; i < 2000 && !c->n_ended; i++) {
        rig_turn(c->rig);
        release_all(c);
    }
    rig_turn(c->rig);
}

#endif
