/* SPDX-License-Identifier: Apache-2.0
 *
 * stream_test: orders, slots and leases of streams over acquisitions made by hand; closing at every moment;
 * a full lane, a lost device, and memory that runs out at every single allocation. */
#include "alloc_fault.h"
#include "rig.h"

#include "device_ops.h"
#include "fill.h"
#include "metrics.h"
#include "order.h"

#include <unistd.h>

#define MIB (UINT64_C(1) << 20)
#define MAX_SEEN 4096

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

static void on_open(void *data, struct stream *stream, const struct stow_error *err)
{
    struct consumer *c = data;
    (void)stream;
    c->n_opened++;
    if (err)
        c->open_err = *err;
}

static void on_batch(void *data, struct stream *stream, const struct stream_batch *batch)
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
    c->n_wrong += batch->generation <= c->generation || batch->bytes != batch->n_frames * RIG_FRAME_BYTES;
    c->generation = batch->generation;
    if (c->n_batches < MAX_SEEN) {
        c->batches[c->n_batches].slot = batch->slot;
        c->batches[c->n_batches].n_frames = batch->n_frames;
        c->batches[c->n_batches].generation = batch->generation;
        c->batches[c->n_batches].position = batch->position;
        c->batches[c->n_batches++].held = true;
    }
}

static void on_end(void *data, struct stream *stream, const struct stow_error *err)
{
    struct consumer *c = data;
    (void)stream;
    c->n_ended++;
    if (err)
        c->end_err = *err;
}

static int consumer_open(struct consumer *c, struct rig *rig, struct resident *resident,
                         const struct stream_options *options, struct stow_error *err)
{
    *c = (struct consumer){.rig = rig};
    struct stream_options o = *options;
    struct stream_callbacks callbacks = {.data = c, .on_open = on_open, .on_batch = on_batch, .on_end = on_end};
    o.memory = MEMORY_HOST_FD;
    return stream_open(&c->stream, &rig->store, resident, "scan", &o, &callbacks, err);
}

/* The nonce as a consumer reads it: from the start of the mapping. */
static int consumer_attach(struct consumer *c)
{
    struct stow_error err;
    uint8_t nonce[STREAM_NONCE_BYTES];
    memcpy(nonce, c->stream->memory.host, sizeof(nonce));
    return stream_attach(c->stream, nonce, sizeof(nonce), &err);
}

/* Opened and attached. */
static void consumer_start(struct consumer *c, struct rig *rig, struct resident *resident,
                           const struct stream_options *options)
{
    struct stow_error err = {.code = 0};
    CHECK_MSG(!consumer_open(c, rig, resident, options, &err), "%s", err.text);
    rig_turn(rig);
    CHECK(c->n_opened == 1 && !c->open_err.code && c->stream->state == STREAM_OFFERED);
    CHECK_INT(c->n_batches, 0);
    CHECK_INT(consumer_attach(c), 0);
}

static void release_all(struct consumer *c)
{
    for (unsigned i = 0; i < c->n_batches; i++) {
        if (c->batches[i].held) {
            c->batches[i].held = false;
            CHECK_INT(stream_release(c->stream, c->batches[i].slot, c->batches[i].generation), 0);
        }
    }
}

static void consumer_close(struct consumer *c)
{
    stream_close(c->stream);
    rig_turn(c->rig);
    stream_detach(c->stream);
    rig_turn(c->rig);
}

/* All of a stream: released as it comes, until its end. */
static void consume(struct consumer *c)
{
    for (int i = 0; i < 2000 && !c->n_ended; i++) {
        rig_turn(c->rig);
        release_all(c);
    }
    rig_turn(c->rig);
}

/* ---- orders ---- */

static uint64_t expected_id(const struct stream_options *o, uint64_t n, uint64_t position)
{
    uint64_t world = o->world ? o->world : 1, at = o->rank + position * world;
    uint64_t count = o->count ? o->count : n - o->first;
    if (o->order == STOW_ORDER_LIST)
        return o->ids[at];
    return o->first + (o->order == STOW_ORDER_SHUFFLED ? order_permute(at, count, o->seed) : at);
}

static void check_stream(struct rig *rig, struct resident *resident, struct stream_options o)
{
    struct consumer c;
    uint64_t n = o.order == STOW_ORDER_LIST ? o.n_ids : o.count ? o.count : resident->n_frames - o.first;
    uint64_t share = order_share(n, o.rank, o.world ? o.world : 1), begin = o.start < share ? o.start : share;
    const uint64_t *ids = o.ids;
    if (ids) {
        o.ids = malloc((o.n_ids ? o.n_ids : 1) * sizeof(*ids));
        memcpy(o.ids, ids, o.n_ids * sizeof(*ids));
    }
    uint64_t used = rig->place.used_bytes;
    consumer_start(&c, rig, resident, &o);
    CHECK(rig->place.used_bytes > used);
    consume(&c);
    CHECK_INT(c.n_ended, 1);
    CHECK_INT(c.end_err.code, 0);
    CHECK_INT(c.n_ids, share - begin);
    CHECK_INT(c.n_wrong, 0);
    size_t misplaced = 0;
    for (size_t i = 0; i < c.n_ids; i++)
        misplaced += c.ids[i] != expected_id(&o, resident->n_frames, begin + i);
    CHECK_INT(misplaced, 0);
    uint64_t position = begin;
    for (unsigned i = 0; i < c.n_batches; i++) {
        misplaced += c.batches[i].position != position;
        position += c.batches[i].n_frames;
        misplaced += i + 1 < c.n_batches && c.batches[i].n_frames != c.stream->batch;
    }
    CHECK_INT(misplaced, 0);
    consumer_close(&c);
    CHECK_INT(rig->place.used_bytes, used);
    CHECK_INT(resident->n_streams, 0);
}

static void test_orders(struct rig *rig)
{
    struct resident *resident = rig_resident(rig, 333, 333);
    uint64_t ids[] = {5, 0, 0, 332, 7, 8, 9, 4, 331, 5};
    const struct stream_options cases[] = {
        {.order = STOW_ORDER_SCAN},
        {.order = STOW_ORDER_SCAN, .batch = 1, .slots = 1},
        {.order = STOW_ORDER_SCAN, .batch = 7, .slots = 3},
        {.order = STOW_ORDER_SCAN, .batch = 333, .slots = 2},
        {.order = STOW_ORDER_SCAN, .batch = 8192, .slots = 2},
        {.order = STOW_ORDER_SCAN, .first = 300, .batch = 10},
        {.order = STOW_ORDER_SCAN, .first = 17, .count = 31, .batch = 8, .slots = 4},
        {.order = STOW_ORDER_SCAN, .first = 333},
        {.order = STOW_ORDER_SCAN, .start = 330, .batch = 2},
        {.order = STOW_ORDER_SCAN, .start = 1000},
        {.order = STOW_ORDER_SCAN, .rank = 2, .world = 5, .batch = 4, .slots = 2},
        {.order = STOW_ORDER_SCAN, .rank = 400, .world = 500},
        {.order = STOW_ORDER_SCAN, .first = 3, .count = 100, .rank = 1, .world = 3, .start = 5, .batch = 5},
        {.order = STOW_ORDER_LIST, .ids = ids, .n_ids = 10, .batch = 3, .slots = 2},
        {.order = STOW_ORDER_LIST, .ids = ids, .n_ids = 10, .rank = 1, .world = 2, .start = 2},
        {.order = STOW_ORDER_LIST, .ids = ids, .n_ids = 0},
        {.order = STOW_ORDER_LIST, .ids = ids, .n_ids = 1},
        {.order = STOW_ORDER_SHUFFLED, .seed = 9, .batch = 16, .slots = 3},
        {.order = STOW_ORDER_SHUFFLED, .seed = 10, .first = 100, .count = 50, .batch = 16},
        {.order = STOW_ORDER_SHUFFLED, .seed = 9, .rank = 0, .world = 2, .start = 20, .batch = 16},
        {.order = STOW_ORDER_SHUFFLED, .seed = 9, .rank = 1, .world = 2, .batch = 1, .slots = 256},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int failed = test_failed;
        check_stream(rig, resident, cases[i]);
        CHECK_MSG(test_failed == failed, "case %zu", i);
    }
    resident_unref(resident);
    rig_turn(rig);
}

static void test_refusals(struct rig *rig)
{
    struct resident *resident = rig_resident(rig, 20, 20), *empty = rig_resident(rig, 0, 0);
    uint64_t ids[] = {0, 19, 20};
    struct stow_error err;
    struct consumer c;
    const struct {
        struct stream_options o;
        int code;
        const char *names;
    } cases[] = {
        {{.first = 21}, STOW_RANGE, "0 to 19"},
        {{.first = 10, .count = 11}, STOW_RANGE, "frame 20"},
        {{.count = UINT64_MAX}, STOW_RANGE, "0 to 19"},
        {{.first = 1, .count = UINT64_MAX}, STOW_RANGE, "0 to 19"},
        {{.first = UINT64_MAX, .count = UINT64_MAX}, STOW_RANGE, "0 to 19"},
        {{.order = STOW_ORDER_SHUFFLED, .count = 21}, STOW_RANGE, "frame 20"},
        {{.order = STOW_ORDER_LIST, .ids = ids, .n_ids = 3}, STOW_RANGE, "frame 20"},
        {{.order = STOW_ORDER_LIST, .ids = (uint64_t[]){0, UINT64_MAX, 1}, .n_ids = 3}, STOW_RANGE, "0 to 19"},
        {{.batch = STREAM_MAX_BATCH + 1}, STOW_INVALID, "8192"},
        {{.slots = STREAM_MAX_SLOTS + 1}, STOW_INVALID, "256"},
        {{.rank = 1}, STOW_INVALID, "rank 1"},
        {{.rank = 3, .world = 3}, STOW_INVALID, "rank 3 of 3"},
    };
    uint64_t used = rig->place.used_bytes;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        CHECK_INT(consumer_open(&c, rig, resident, &cases[i].o, &err), cases[i].code);
        CHECK_MSG(err.code == cases[i].code && strstr(err.text, cases[i].names), "case %zu: %s", i, err.text);
    }
    struct stream_options list = {.order = STOW_ORDER_LIST, .ids = ids, .n_ids = 1};
    CHECK_INT(consumer_open(&c, rig, empty, &list, &err), STOW_RANGE);
    CHECK_MSG(strstr(err.text, "no frames") != NULL, "%s", err.text);
    /* A ring that the budget has no room for, with the figures. */
    struct resident *large = rig_resident(rig, 20, 20);
    large->shape.n_elems = MIB;
    CHECK_INT(consumer_open(&c, rig, large, &(struct stream_options){.batch = 20, .slots = 2}, &err), STOW_NOROOM);
    CHECK_MSG(strstr(err.text, "83886080 bytes needed") && strstr(err.text, "--max-bytes"), "%s", err.text);
    CHECK(resident->n_streams == 0 && large->n_streams == 0 && resident->refs == 1 && !resident->watches);
    resident_unref(large);
    CHECK(rig->place.used_bytes == used);
    check_stream(rig, empty, (struct stream_options){.order = STOW_ORDER_SCAN});
    resident_unref(empty);
    resident_unref(resident);
    rig_turn(rig);
}

/* ---- slots ---- */

static void test_slots(struct rig *rig)
{
    struct resident *resident = rig_resident(rig, 100, 100);
    struct consumer c;
    uint64_t leases = metrics.leases;
    consumer_start(&c, rig, resident, &(struct stream_options){.batch = 4, .slots = 3});
    rig_turn(rig);
    CHECK_INT(c.n_batches, 3); /* every free slot, and no more */
    CHECK_INT(metrics.leases, leases + 3);
    CHECK_INT(c.stream->n_slots, 3);
    CHECK_INT(c.stream->slot_stride % 512, 0);
    CHECK(c.stream->slot_stride >= 4 * RIG_FRAME_BYTES);
    /* What is held stays as it is, whatever is done to the others. */
    uint8_t *held = c.stream->memory.host + c.batches[1].slot * c.stream->slot_stride;
    memset(held, 0x5a, 4 * RIG_FRAME_BYTES);
    for (int i = 0; i < 5; i++) {
        for (unsigned k = 0; k < c.n_batches; k++) {
            if (k != 1 && c.batches[k].held) {
                c.batches[k].held = false;
                CHECK_INT(stream_release(c.stream, c.batches[k].slot, c.batches[k].generation), 0);
            }
        }
        rig_turn(rig);
    }
    size_t changed = 0, reused = 0;
    for (size_t i = 0; i < 4 * RIG_FRAME_BYTES; i++)
        changed += held[i] != 0x5a;
    for (unsigned k = 2; k < c.n_batches; k++)
        reused += c.batches[k].slot == c.batches[1].slot;
    CHECK_INT(changed, 0);
    CHECK_INT(reused, 0);
    CHECK_INT(c.n_batches, 13);
    /* What is not held cannot be released. */
    unsigned last = c.n_batches - 1;
    uint32_t slot = c.batches[last].slot;
    uint64_t generation = c.batches[last].generation;
    CHECK_INT(stream_release(c.stream, 3, generation), STOW_STALE);
    CHECK_INT(stream_release(c.stream, UINT32_MAX, generation), STOW_STALE);
    CHECK_INT(stream_release(c.stream, slot, generation + 1), STOW_STALE);
    CHECK_INT(stream_release(c.stream, slot, generation - 1), STOW_STALE);
    CHECK_INT(stream_release(c.stream, slot, 0), STOW_STALE);
    CHECK_INT(stream_release(c.stream, c.batches[1].slot, generation), STOW_STALE);
    CHECK_INT(c.stream->n_held, 3);
    c.batches[last].held = false;
    CHECK_INT(stream_release(c.stream, slot, generation), 0);
    CHECK_INT(stream_release(c.stream, slot, generation), STOW_STALE); /* twice: it is being filled */
    rig_turn(rig);
    CHECK_INT(stream_release(c.stream, slot, generation), STOW_STALE); /* and now held anew */
    consume(&c);
    CHECK_INT(c.n_ids, 100);
    CHECK_INT(c.n_wrong, 0);
    CHECK_INT(metrics.leases, leases);
    consumer_close(&c);
    resident_unref(resident);
    rig_turn(rig);
}

static void test_attach(struct rig *rig)
{
    struct resident *resident = rig_resident(rig, 10, 10);
    struct consumer c;
    struct stow_error err;
    uint8_t nonce[STREAM_NONCE_BYTES];
    CHECK_INT(consumer_open(&c, rig, resident, &(struct stream_options){.batch = 2}, &err), 0);
    CHECK_INT(stream_attach(c.stream, c.stream->nonce, sizeof(nonce), &err), STOW_STATE); /* not yet offered */
    rig_turn(rig);
    memcpy(nonce, c.stream->memory.host, sizeof(nonce));
    CHECK(memcmp(nonce, (uint8_t[STREAM_NONCE_BYTES]){0}, sizeof(nonce)) != 0);
    CHECK_INT(stream_release(c.stream, 0, 0), STOW_STALE);
    CHECK_INT(stream_attach(c.stream, nonce, sizeof(nonce) - 1, &err), STOW_DEVICE);
    nonce[3] ^= 1;
    CHECK_INT(stream_attach(c.stream, nonce, sizeof(nonce), &err), STOW_DEVICE);
    rig_turn(rig);
    CHECK_INT(c.n_batches, 0);
    CHECK_INT(consumer_attach(&c), 0);
    CHECK_INT(stream_attach(c.stream, c.stream->nonce, sizeof(nonce), &err), STOW_STATE); /* twice */
    consume(&c);
    CHECK_INT(c.n_ids, 10);
    consumer_close(&c);
    resident_unref(resident);
    rig_turn(rig);
}

/* ---- on request ---- */

static int want(struct consumer *c, const uint64_t *ids, size_t n, struct stow_error *err)
{
    uint64_t *mine = malloc((n ? n : 1) * sizeof(*ids));
    memcpy(mine, ids, n * sizeof(*ids));
    int rc = stream_want(c->stream, mine, n, err);
    if (rc)
        free(mine);
    return rc;
}

static void test_request(struct rig *rig)
{
    struct resident *resident = rig_resident(rig, 50, 50);
    struct consumer c;
    struct stow_error err;
    consumer_start(&c, rig, resident, &(struct stream_options){.order = STOW_ORDER_REQUEST, .batch = 4, .slots = 2});
    rig_turn(rig);
    CHECK(c.n_batches == 0 && !c.n_ended && c.stream->batch == 4);
    CHECK_INT(want(&c, (uint64_t[]){49, 0, 49}, 3, &err), 0);
    CHECK_INT(want(&c, (uint64_t[]){1}, 1, &err), 0);
    CHECK_INT(want(&c, (uint64_t[]){2, 3, 4, 5}, 4, &err), 0);
    CHECK_INT(want(&c, (uint64_t[]){0}, 0, &err), STOW_INVALID);
    CHECK_INT(want(&c, (uint64_t[]){1, 2, 3, 4, 5}, 5, &err), STOW_INVALID);
    CHECK_INT(want(&c, (uint64_t[]){1, 50}, 2, &err), STOW_RANGE);
    CHECK_MSG(strstr(err.text, "frame 50") != NULL, "%s", err.text);
    rig_turn(rig);
    CHECK_INT(c.n_batches, 2);
    release_all(&c);
    rig_turn(rig);
    CHECK_INT(c.n_batches, 3);
    static const uint64_t expected[] = {49, 0, 49, 1, 2, 3, 4, 5};
    CHECK_INT(c.n_ids, 8);
    CHECK(memcmp(c.ids, expected, sizeof(expected)) == 0);
    CHECK(c.batches[1].position == 3 && c.batches[2].position == 4);
    CHECK(c.n_wrong == 0 && c.n_ended == 0);
    /* wishes that wait when it closes */
    for (uint64_t i = 0; i < 10; i++)
        CHECK_INT(want(&c, &i, 1, &err), 0);
    consumer_close(&c);
    CHECK_INT(c.n_ended, 0);
    /* not for the others */
    consumer_start(&c, rig, resident, &(struct stream_options){.batch = 4});
    CHECK_INT(want(&c, (uint64_t[]){1}, 1, &err), STOW_STATE);
    consumer_close(&c);
    /* nor without bound */
    consumer_start(&c, rig, resident, &(struct stream_options){.order = STOW_ORDER_REQUEST, .batch = 1, .slots = 1});
    int rc = 0, n = 0;
    for (; !rc && n < 100000; n++)
        rc = want(&c, (uint64_t[]){7}, 1, &err);
    CHECK_MSG(rc == STOW_LIMIT && n > 256, "%d after %d", rc, n);
    release_all(&c);
    rig_turn(rig);
    release_all(&c);
    rig_turn(rig);
    CHECK_INT(want(&c, (uint64_t[]){7}, 1, &err), 0);
    consumer_close(&c);
    resident_unref(resident);
    rig_turn(rig);
}

/* ---- while it is being loaded ---- */

static void test_pending(struct rig *rig)
{
    struct resident *resident = rig_resident(rig, 100, 30);
    struct consumer c, ahead;
    struct stow_error err;
    consumer_start(&c, rig, resident, &(struct stream_options){.batch = 8, .slots = 4});
    consumer_start(&ahead, rig, resident,
                   &(struct stream_options){.order = STOW_ORDER_REQUEST, .batch = 2, .slots = 2});
    CHECK_INT(want(&ahead, (uint64_t[]){1, 90}, 2, &err), 0);
    CHECK_INT(want(&ahead, (uint64_t[]){2}, 1, &err), 0);
    for (int i = 0; i < 3; i++) {
        rig_turn(rig);
        release_all(&c);
    }
    CHECK_INT(c.n_ids, 24); /* whole batches only */
    CHECK_INT(ahead.n_ids, 0);
    CHECK(!c.n_ended);
    rig_load_more(resident, 31);
    rig_turn(rig);
    CHECK_INT(c.n_ids, 24);
    rig_load_more(resident, 32);
    rig_turn(rig);
    CHECK_INT(c.n_ids, 32);
    rig_load_more(resident, 100);
    consume(&c);
    CHECK(c.n_ids == 100 && c.n_ended == 1 && !c.end_err.code && !c.n_wrong);
    rig_turn(rig);
    CHECK(ahead.n_ids == 3 && ahead.ids[1] == 90 && ahead.ids[2] == 2 && !ahead.n_wrong);
    consumer_close(&c);
    consumer_close(&ahead);
    resident_unref(resident);
    rig_turn(rig);
}

static void test_load_failure(struct rig *rig)
{
    struct resident *resident = rig_resident(rig, 100, 30);
    struct consumer c, late;
    consumer_start(&c, rig, resident, &(struct stream_options){.batch = 8, .slots = 2});
    rig_turn(rig);
    CHECK_INT(c.n_batches, 2);
    error_set(&resident->failure, STOW_SOURCE, "it changed");
    resident_changed(resident);
    resident_changed(resident);
    rig_turn(rig);
    CHECK_INT(c.n_ended, 1);
    CHECK(c.end_err.code == STOW_SOURCE && strcmp(c.end_err.text, "it changed") == 0);
    release_all(&c);
    rig_turn(rig);
    CHECK_INT(c.n_batches, 2);
    consumer_start(&late, rig, resident, &(struct stream_options){.batch = 8, .slots = 2});
    rig_turn(rig);
    CHECK(late.n_batches == 0 && late.n_ended == 1 && late.end_err.code == STOW_SOURCE);
    consumer_close(&c);
    consumer_close(&late);
    resident_unref(resident);
    rig_turn(rig);
}

/* ---- closing ---- */

/* Close after so many turns of the loop, detach before or after the ring is freed, or just vanish. */
static void test_close_any_time(struct rig *rig)
{
    struct resident *resident = rig_resident(rig, 200, 200);
    uint64_t used = rig->place.used_bytes, leases = metrics.leases, streams = metrics.streams;
    for (int turns = 0; turns < 8; turns++) {
        for (int how = 0; how < 4; how++) {
            struct consumer c;
            struct stow_error err;
            CHECK_INT(consumer_open(&c, rig, resident, &(struct stream_options){.batch = 8, .slots = 3}, &err), 0);
            for (int i = 0; i < turns; i++) {
                uv_run(&rig->loop, UV_RUN_NOWAIT);
                if (c.stream->state == STREAM_OFFERED)
                    CHECK_INT(consumer_attach(&c), 0);
            }
            unsigned n_batches = c.n_batches, n_opened = c.n_opened;
            uint64_t ring = c.stream->ring_bytes;
            CHECK_INT(rig->place.used_bytes, used + ring);
            switch (how) {
            case 0: /* close, freed, detach */
                stream_close(c.stream);
                stream_close(c.stream);
                CHECK_INT(stream_release(c.stream, 0, 1), 0); /* was under way */
                rig_turn(rig);
                CHECK_INT(c.stream->state, STREAM_CLOSED);
                CHECK_INT(rig->place.used_bytes, used + ring); /* until the consumer has unmapped */
                stream_detach(c.stream);
                break;
            case 1: /* close, detach, freed */
                stream_close(c.stream);
                stream_detach(c.stream);
                break;
            case 2:
                stream_abandon(c.stream);
                break;
            default: /* closed in order, and gone before it has unmapped */
                stream_close(c.stream);
                rig_turn(rig);
                CHECK_INT(rig->place.used_bytes, used + ring);
                stream_abandon(c.stream);
                break;
            }
            rig_turn(rig);
            CHECK_INT(rig->place.used_bytes, used);
            CHECK(c.n_batches == n_batches && c.n_opened == n_opened && !c.n_ended);
            CHECK(resident->n_streams == 0 && resident->refs == 1 && !resident->watches);
        }
    }
    CHECK(metrics.leases == leases && metrics.streams == streams);
    /* the resident goes with its last stream */
    struct consumer c;
    consumer_start(&c, rig, resident, &(struct stream_options){.batch = 8, .slots = 3});
    resident_unref(resident);
    consume(&c);
    CHECK(c.n_ids == 200 && !c.n_wrong);
    CHECK(rig->store.residents != NULL);
    consumer_close(&c);
    CHECK(rig->store.residents == NULL);
    CHECK_INT(rig->place.used_bytes, 0);
}

static void test_drain(struct rig *rig)
{
    struct resident *resident = rig_resident(rig, 100, 100);
    struct consumer c;
    consumer_start(&c, rig, resident, &(struct stream_options){.batch = 4, .slots = 2});
    rig_turn(rig);
    stream_drain(c.stream);
    release_all(&c);
    rig_turn(rig);
    CHECK(c.n_batches == 2 && !c.n_ended);
    consumer_close(&c);
    resident_unref(resident);
    rig_turn(rig);
}

/* All bad: their batches take a fence of the lane, and no decode. */
static void spoil(struct resident *resident)
{
    for (uint64_t id = 0; id < resident->n_frames; id++) {
        if (rig_form(id) != STOW_FORM_BAD)
            resident_fault(resident, id, 1, STOW_CORRUPT, "all are bad");
    }
}

/* ---- a lane that is full ---- */

#define N_CROWD 200 /* more than a lane holds fences */

/* So many streams on one lane that it refuses: all get all of theirs, none is ended or opened in vain. */
static void test_crowd(struct rig *rig, bool only_bad)
{
    static struct consumer crowd[N_CROWD];
    struct resident *resident = rig_resident(rig, 60, 60);
    struct stow_error err;
    if (only_bad)
        spoil(resident);
    for (int i = 0; i < N_CROWD; i++)
        CHECK_INT(consumer_open(&crowd[i], rig, resident, &(struct stream_options){.batch = 5, .slots = 2}, &err), 0);
    for (int turn = 0; turn < 20; turn++)
        rig_turn(rig);
    unsigned n_opened = 0, n_done = 0, n_wrong = 0;
    for (int i = 0; i < N_CROWD; i++)
        n_opened += crowd[i].n_opened == 1 && crowd[i].stream->state == STREAM_OFFERED;
    CHECK_INT(n_opened, N_CROWD);
    for (int i = 0; i < N_CROWD; i++) {
        if (crowd[i].stream->state == STREAM_OFFERED)
            CHECK_INT(consumer_attach(&crowd[i]), 0);
    }
    for (int i = 0; i < N_CROWD; i += 10) /* while its fill may be refused */
        stream_abandon(crowd[i].stream);
    for (int turn = 0; turn < 40; turn++) {
        rig_turn(rig);
        for (int i = 0; i < N_CROWD; i++) {
            if (i % 10)
                release_all(&crowd[i]);
        }
    }
    for (int i = 0; i < N_CROWD; i++) {
        if (i % 10 == 0)
            continue;
        n_done += crowd[i].n_ids == 60 && crowd[i].n_ended == 1 && !crowd[i].end_err.code;
        n_wrong += !only_bad && crowd[i].n_wrong;
        consumer_close(&crowd[i]);
    }
    CHECK_INT(n_done, N_CROWD / 10 * 9);
    CHECK_INT(n_wrong, 0);
    CHECK(!rig->place.retries);
    resident_unref(resident);
    rig_turn(rig);
    CHECK_INT(rig->place.used_bytes, 0);
}

/* ---- memory that runs out ---- */

/* A stream's whole life, with whatever it may be refused. Returns 0 when it went well. */
static int life(struct rig *rig, struct resident *resident, const struct stream_options *options, bool by_wish)
{
    static const uint64_t ids[] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3};
    struct consumer *c = &(struct consumer){.rig = rig};
    struct stow_error err = {.code = 0};
    struct stream_options o = *options;
    int rc;
    if (o.order == STOW_ORDER_LIST) {
        o.ids = malloc(sizeof(ids));
        if (!o.ids)
            return STOW_NOMEM;
        memcpy(o.ids, ids, sizeof(ids));
        o.n_ids = 10;
    }
    rc = consumer_open(c, rig, resident, &o, &err);
    if (rc) {
        CHECK_INT(rc, STOW_NOMEM);
        CHECK(err.code == rc && err.text[0]);
        free(o.ids);
        return rc;
    }
    rig_turn(rig);
    CHECK_INT(c->n_opened, 1);
    rc = c->open_err.code;
    if (!rc)
        rc = consumer_attach(c);
    for (uint64_t i = 0; !rc && by_wish && i < 3; i++) {
        uint64_t *wish = malloc(sizeof(*wish));
        rc = wish ? 0 : STOW_NOMEM;
        if (wish) {
            *wish = i;
            rc = stream_want(c->stream, wish, 1, &err);
            if (rc)
                free(wish);
        }
    }
    for (int i = 0; !rc && !c->n_ended && i < 100; i++) {
        rig_turn(rig);
        release_all(c);
        if (by_wish && c->n_ids == 3)
            break;
    }
    rc = rc ? rc : c->end_err.code;
    CHECK_MSG(!rc || rc == STOW_NOMEM, "it ended with %d", rc);
    CHECK_INT(c->n_wrong, 0);
    if (!rc)
        CHECK_INT(c->n_ids, by_wish ? 3 : o.order == STOW_ORDER_LIST ? 10 : 50);
    consumer_close(c);
    return rc;
}

static void test_alloc_faults(struct rig *rig)
{
    static const struct {
        struct stream_options o;
        bool by_wish;
    } cases[] = {
        {{.order = STOW_ORDER_SCAN, .batch = 8, .slots = 2}, false},
        {{.order = STOW_ORDER_LIST, .batch = 3, .slots = 2}, false},
        {{.order = STOW_ORDER_SHUFFLED, .batch = 50, .slots = 1}, false},
        {{.order = STOW_ORDER_REQUEST, .batch = 2, .slots = 1}, true},
    };
    struct resident *resident = rig_resident(rig, 50, 50);
    uint64_t used = rig->place.used_bytes, leases = metrics.leases;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (int sticks = 0; sticks < 2; sticks++) {
            unsigned k = 1;
            bool happened = alloc_fault_works;
            for (; happened; k++) {
                alloc_fault_arm(k, sticks);
                int rc = life(rig, resident, &cases[i].o, cases[i].by_wish);
                happened = alloc_fault_disarm();
                CHECK_MSG(happened || !rc, "case %zu: %d without a fault", i, rc);
                CHECK_MSG(!happened || rc || sticks == 0, "case %zu fault %u: it went well", i, k);
                CHECK_MSG(rig->place.used_bytes == used && metrics.leases == leases && !resident->n_streams &&
                              resident->refs == 1 && !resident->watches,
                          "case %zu fault %u leaves something", i, k);
                if (k > 1000)
                    break;
            }
            CHECK_MSG(!alloc_fault_works || (k > 5 && k < 1000), "case %zu: %u allocations", i, k);
        }
        CHECK_INT(life(rig, resident, &cases[i].o, cases[i].by_wish), 0);
    }
    resident_unref(resident);
    rig_turn(rig);
}

/* Store and its lists under the same. */
static void test_store_faults(struct rig *rig)
{
    bool happened = alloc_fault_works;
    for (unsigned k = 1; happened; k++) {
        bool done = false;
        struct piece *piece = NULL;
        struct shortage shortage;
        struct name *name = NULL;
        int rc = STOW_NOMEM;
        alloc_fault_arm(k, false);
        struct resident *resident = resident_new(&rig->store, &rig->place, 1000);
        if (resident) {
            rc = resident_add_piece(resident, MIB, rig_done, &done, &piece, &shortage);
            rig_turn(rig);
            CHECK(rc ? rc == STOW_NOMEM : done);
            resident->frames = calloc(4, sizeof(*resident->frames));
            resident->n_frames = resident->frames ? 4 : 0;
            if (resident->frames)
                resident_fault(resident, 1, 2, STOW_CORRUPT, "bad");
            resident_warn(resident, "a %s", "warning");
            name = store_bind(&rig->store, "n", 1000, 100, STOW_SHARE_ALL, resident);
            if (resident->frames) {
                CHECK_INT(resident->frames[2].form, STOW_FORM_BAD);
                CHECK(strlen(resident_fault_text(resident, 2)) > 2);
            }
            resident_unref(resident);
            if (name)
                store_unbind(&rig->store, name);
        }
        happened = alloc_fault_disarm();
        rig_turn(rig);
        CHECK_MSG(store_is_idle(&rig->store) && !rig->store.names && !rig->place.used_bytes, "fault %u", k);
        CHECK(happened || (name && !rc));
    }
}

/* ---- a device that is lost ---- */

static void test_lost(void)
{
    static struct rig rig;
    rig_open(&rig, 64 * MIB, 0);
    struct resident *resident = rig_resident(&rig, 100, 100);
    struct consumer c, closing, gone, opening;
    struct stow_error err;
    spoil(resident); /* a lost host would still decode */
    struct consumer *all[] = {&c, &closing, &gone};
    for (int i = 0; i < 3; i++)
        CHECK_INT(consumer_open(all[i], &rig, resident, &(struct stream_options){.batch = 8, .slots = 2}, &err), 0);
    rig_turn(&rig);
    for (int i = 0; i < 3; i++) {
        CHECK_INT(consumer_attach(all[i]), 0);
        CHECK_INT(all[i]->stream->n_filling, 2);
    }
    CHECK_INT(consumer_open(&opening, &rig, resident, &(struct stream_options){.batch = 8}, &err), 0);
    stream_close(closing.stream); /* while it is being filled: nobody may hear of it any more */
    stream_detach(closing.stream);
    closing.stream = NULL;
    stream_abandon(gone.stream);
    device_set_lost(rig.place.device, "a test says so");
    rig_turn(&rig);
    CHECK_INT(c.n_ended, 1);
    CHECK_INT(c.end_err.code, STOW_DEVICE);
    CHECK_MSG(strstr(c.end_err.text, "a test says so") != NULL, "%s", c.end_err.text);
    CHECK_INT(closing.n_ended, 0);
    CHECK_INT(gone.n_ended, 0);
    CHECK(opening.n_opened == 1 && opening.open_err.code == STOW_DEVICE);
    stream_abandon(c.stream);
    stream_abandon(opening.stream);
    resident_unref(resident);
    rig_turn(&rig);
    CHECK(store_is_idle(&rig.store));
    rig_close(&rig);
}

/* ---- real threads ---- */

static void test_threads(void)
{
    static struct rig rig;
    static struct consumer c[3];
    rig_open(&rig, 64 * MIB, 3);
    struct resident *resident = rig_resident(&rig, 2000, 2000);
    for (int i = 0; i < 3; i++) {
        struct stow_error err;
        struct stream_options o = {.batch = i == 1 ? 200 : 16, .slots = 4,
                                   .order = i == 2 ? STOW_ORDER_SHUFFLED : STOW_ORDER_SCAN};
        CHECK_INT(consumer_open(&c[i], &rig, resident, &o, &err), 0);
    }
    unsigned n_ended = 0;
    for (int turn = 0; turn < 200000 && n_ended < 3; turn++) {
        uv_run(&rig.loop, UV_RUN_NOWAIT);
        n_ended = 0;
        for (int i = 0; i < 3; i++) {
            if (c[i].stream->state == STREAM_OFFERED)
                CHECK_INT(consumer_attach(&c[i]), 0);
            release_all(&c[i]);
            n_ended += c[i].n_ended;
        }
        usleep(100);
    }
    for (int i = 0; i < 3; i++) {
        CHECK(c[i].n_ids == 2000 && !c[i].n_wrong && !c[i].end_err.code);
        stream_abandon(c[i].stream);
    }
    resident_unref(resident);
    for (int turn = 0; turn < 10000 && !store_is_idle(&rig.store); turn++) {
        uv_run(&rig.loop, UV_RUN_NOWAIT);
        usleep(100);
    }
    rig_close(&rig);
}

int main(void)
{
    static struct rig rig;
    rig_open(&rig, 64 * MIB, 0);
    test_orders(&rig);
    test_refusals(&rig);
    test_slots(&rig);
    test_attach(&rig);
    test_request(&rig);
    test_pending(&rig);
    test_load_failure(&rig);
    test_close_any_time(&rig);
    test_drain(&rig);
    test_crowd(&rig, false);
    test_crowd(&rig, true);
    test_alloc_faults(&rig);
    test_store_faults(&rig);
    rig_close(&rig);
    test_lost();
    test_threads();
    if (!alloc_fault_works)
        printf("a sanitizer is at work: allocations do not fail here\n");
    return test_end();
}
