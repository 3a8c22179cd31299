/* SPDX-License-Identifier: Apache-2.0
 *
 * rig: a place on the host device without threads, its store, and acquisitions that are made by hand. Work
 * is done within the loop's turns, so that what happens is the same every time. */
#ifndef STOW_TEST_RIG_H
#define STOW_TEST_RIG_H

#include "store.h"

#include "bslz4.h"
#include "simulate_bslz4.h"
#include "test.h"

#define RIG_ELEMS 37u /* an odd number: a block, and a raw tail */
#define RIG_FRAME_BYTES (RIG_ELEMS * 2u)
#define RIG_FILL 0xabcdu
#define RIG_STORED_BYTES 256u /* room for a stored frame */
#define RIG_TABLE_AT 192u     /* where in it the block table lies */

struct rig {
    uv_loop_t loop;
    struct place place;
    struct store store;
};

static inline void rig_open(struct rig *rig, uint64_t max_bytes, unsigned threads)
{
    struct stow_error err;
    struct place_options options = {.device = "host", .max_bytes = max_bytes, .threads = threads};
    uv_loop_init(&rig->loop);
    rig->place = (struct place){.device = NULL};
    if (place_open(&rig->place, &rig->loop, &options, &err)) {
        fprintf(stderr, "%s\n", err.text);
        exit(EXIT_FAILURE);
    }
    store_init(&rig->store, &rig->place, 1);
}

/* All that can happen now. */
static inline void rig_turn(struct rig *rig)
{
    for (int i = 0; i < 12; i++)
        uv_run(&rig->loop, UV_RUN_NOWAIT);
}

/* Nothing may be left: no resident, no piece, nothing in the budget. */
static inline void rig_close(struct rig *rig)
{
    store_clear(&rig->store);
    for (int i = 0; i < 1000 && !store_is_idle(&rig->store); i++)
        rig_turn(rig);
    CHECK(store_is_idle(&rig->store));
    CHECK_INT(rig->place.used_bytes, 0);
    CHECK(!rig->place.retries);
    place_close(&rig->place);
    uv_run(&rig->loop, UV_RUN_DEFAULT);
    CHECK_INT(uv_loop_close(&rig->loop), 0);
}

static inline void rig_done(struct device_request *request)
{
    *(bool *)request->data = true;
}

/* A piece, waited for. NULL with the reason in *rc. */
static inline struct piece *rig_piece(struct rig *rig, struct resident *resident, uint64_t bytes,
                                      int *rc, struct shortage *shortage)
{
    struct piece *piece = NULL;
    bool done = false;
    *rc = resident_add_piece(resident, bytes, rig_done, &done, &piece, shortage);
    while (!*rc && !done) /* not so many turns: the request lies on this stack */
        uv_run(&rig->loop, UV_RUN_NOWAIT);
    if (!*rc)
        *rc = piece->request.status;
    return *rc ? NULL : piece;
}

static inline uint16_t rig_pixel(uint64_t id, size_t e)
{
    return (uint16_t)(id * 7919u + e * 31u + (id >> 3));
}

/* Which form frame `id` has in an acquisition of rig_resident. */
static inline enum stow_form rig_form(uint64_t id)
{
    static const enum stow_form forms[] = {STOW_FORM_RAW, STOW_FORM_BSLZ4, STOW_FORM_FILL,
                                           STOW_FORM_BSLZ4, STOW_FORM_BAD};
    return forms[id % 5];
}

static inline void rig_store_frame(struct resident *resident, uint8_t *host, uint64_t dev,
                                   uint64_t id)
{
    struct stow_error err;
    uint16_t pixels[RIG_ELEMS];
    size_t n_blocks;
    struct frame *frame = &resident->frames[id];
    for (size_t e = 0; e < RIG_ELEMS; e++)
        pixels[e] = rig_pixel(id, e);
    host += id * RIG_STORED_BYTES;
    dev += id * RIG_STORED_BYTES;
    *frame = (struct frame){.addr = dev, .form = (uint8_t)rig_form(id), .bytes = RIG_FRAME_BYTES};
    switch (frame->form) {
    case STOW_FORM_RAW: memcpy(host, pixels, sizeof(pixels)); break;
    case STOW_FORM_BSLZ4:
        frame->bytes = (uint32_t)chunk_encode(host, pixels, RIG_ELEMS, 2, 16);
        frame->blocks = dev + RIG_TABLE_AT;
        if (frame->bytes > RIG_TABLE_AT ||
            bslz4_index((uint32_t *)(void *)(host + RIG_TABLE_AT), 8, &n_blocks, host, frame->bytes,
                        &resident->shape, &err))
            exit(EXIT_FAILURE);
        break;
    case STOW_FORM_BAD:
        resident_fault(resident, id, 1, id % 2 ? STOW_CORRUPT : STOW_UNWRITTEN, "made bad");
        break;
    default: break;
    }
}

/* An acquisition of n frames with raw, bslz4, fill and bad ones; the first n_loaded of them are loaded, and
 * rig_load_more loads others. One reference, the caller's. */
static inline struct resident *rig_resident(struct rig *rig, uint64_t n, uint64_t n_loaded)
{
    int rc;
    struct shortage shortage;
    struct resident *resident = resident_new(&rig->store, &rig->place, 1000);
    if (!resident)
        exit(EXIT_FAILURE);
    strcpy(resident->dtype, "u2");
    resident->det_y = 1;
    resident->det_x = RIG_ELEMS;
    resident->shape = (struct frame_shape){.n_elems = RIG_ELEMS, .elem_bytes = 2, .fill = RIG_FILL};
    resident->n_frames = n;
    resident->frames = calloc(n ? n : 1, sizeof(*resident->frames));
    struct piece *piece = rig_piece(rig, resident, (n + 1) * RIG_STORED_BYTES, &rc, &shortage);
    if (!resident->frames || !piece)
        exit(EXIT_FAILURE);
    for (uint64_t id = 0; id < n; id++) {
        if (id < n_loaded)
            rig_store_frame(resident, piece->memory.host, piece->memory.dev, id);
        else
            resident->frames[id].form = FRAME_PENDING;
    }
    resident->n_loaded = n_loaded;
    resident->payload_bytes = n * RIG_STORED_BYTES;
    resident->state = n_loaded < n ? RESIDENT_LOADING : RESIDENT_DAMAGED;
    return resident;
}

static inline void rig_load_more(struct resident *resident, uint64_t n_loaded)
{
    const struct piece *piece = resident->pieces;
    for (; resident->n_loaded < n_loaded; resident->n_loaded++)
        rig_store_frame(resident, piece->memory.host, piece->memory.dev, resident->n_loaded);
    if (n_loaded == resident->n_frames)
        resident->state = RESIDENT_DAMAGED;
    resident_changed(resident);
}

/* How many pixels at `at` are not those of the frame; bad ones have none. */
static inline size_t rig_wrong_pixels(const uint8_t *at, uint64_t id)
{
    uint16_t got[RIG_ELEMS];
    size_t wrong = 0;
    memcpy(got, at, sizeof(got));
    for (size_t e = 0; e < RIG_ELEMS && rig_form(id) != STOW_FORM_BAD; e++)
        wrong += got[e] != (rig_form(id) == STOW_FORM_FILL ? RIG_FILL : rig_pixel(id, e));
    return wrong;
}

#endif
