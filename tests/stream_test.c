/* SPDX-License-Identifier: Apache-2.0
 *
 * stream_test: orders, slots and leases of streams over acquisitions made by hand, and closing at every moment. */
#include "consumer.h"

#include "order.h"

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
    uint64_t n = o.order == STOW_ORDER_LIST ? o.n_ids
                 : o.count                  ? o.count
                                            : resident->n_frames - o.first;
    uint64_t share = order_share(n, o.rank, o.world ? o.world : 1),
             begin = o.start < share ? o.start : share;
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
        {.order = STOW_ORDER_SCAN,
         .first = 3,
         .count = 100,
         .rank = 1,
         .world = 3,
         .start = 5,
         .batch = 5},
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

/* By way of a view: the same frames come, in steps of fewer than a slot has. */
static void test_views(struct rig *rig)
{
    struct resident *resident = rig_resident(rig, 2000, 2000);
    const uint64_t max_bytes = rig->place.max_bytes;
    uint64_t ids[] = {5, 0, 0, 1999, 7, 8, 9, 4, 331, 5};
    const struct stream_options cases[] = {
        {.order = STOW_ORDER_SCAN},
        {.order = STOW_ORDER_SCAN, .batch = 1500, .slots = 2},
        {.order = STOW_ORDER_SCAN, .batch = 1, .slots = 3, .count = 20},
        {.order = STOW_ORDER_SCAN, .batch = 700, .slots = 1, .rank = 1, .world = 2},
        {.order = STOW_ORDER_LIST, .ids = ids, .n_ids = 10, .batch = 3, .slots = 2},
        {.order = STOW_ORDER_SHUFFLED, .seed = 9, .batch = 1999, .slots = 3},
    };
    rig->place.max_bytes = 4 * MIB; /* room for steps of 512 frames */
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct stream_options o = cases[i];
        int failed = test_failed;
        o.view = &seen_as_it_is;
        check_stream(rig, resident, o);
        CHECK_MSG(test_failed == failed, "case %zu", i);
    }
    struct consumer c;
    consumer_start(&c, rig, resident,
                   &(struct stream_options){.batch = 1500, .slots = 2, .view = &seen_as_it_is});
    CHECK_INT(c.stream->viewing->step, 512);
    consumer_close(&c);
    rig->place.max_bytes = max_bytes;
    resident_unref(resident);
    rig_turn(rig);
}

/* Sizes follow what is shown, and frames that do not fit say so beside those that are bad. */
static void test_marks(struct rig *rig)
{
    static const struct view_ask summed = {.bin = RIG_ELEMS, .dtype = "u2"};
    struct resident *resident = rig_resident(rig, 20, 20);
    struct stow_error err = {.code = 0};
    struct consumer c;
    consumer_start(&c, rig, resident,
                   &(struct stream_options){.batch = 20, .slots = 1, .view = &summed});
    CHECK_INT(c.stream->frame_bytes, 2);
    rig_turn(rig);
    CHECK_INT(c.n_batches, 1);
    for (uint64_t id = 0; id < 20; id++) {
        uint64_t sum = 0;
        uint16_t shown;
        for (size_t e = 0; e < RIG_ELEMS; e++)
            sum += rig_form(id) == STOW_FORM_FILL ? RIG_FILL : rig_pixel(id, e);
        int32_t want = rig_form(id) == STOW_FORM_BAD ? id % 2 ? STOW_CORRUPT : STOW_UNWRITTEN
                       : sum > UINT16_MAX            ? STOW_NOFIT
                                                     : 0;
        memcpy(&shown, c.stream->memory.host + 2 * id, sizeof(shown));
        CHECK_INT(c.stream->slots[0].status[id], want);
        CHECK(want || shown == sum);
    }
    consumer_close(&c);
    const struct view_ask none = {.crop_h = 2, .crop_w = 1};
    CHECK_INT(consumer_open(&c, rig, resident, &(struct stream_options){.view = &none}, &err),
              STOW_INVALID);
    CHECK_MSG(strstr(err.text, "1x37") != NULL, "%s", err.text);
    CHECK(resident->n_streams == 0 && resident->refs == 1);
    resident_unref(resident);
    rig_turn(rig);
}

/* What pixels of each type take. */
static void test_plans(void)
{
    static const struct view_ask asks[] = {
        {.shift = true},
        {.pad_y = 3, .pad_x = 4},
        {.correction = VIEW_ZERO},
        {.crop_h = 1, .crop_w = 2},
        {.bin = 2},
        {.root = true},
        {.correction = VIEW_MEDIAN},
        {.dtype = "f4"},
    };
    static const struct {
        const char *dtype;
        uint32_t bytes;
        bool counted;
    } kinds[] = {{"u1", 1, true},  {"u2", 2, true}, {"u4", 4, true},  {"i1", 1, true},
                 {"i2", 2, true},  {"i4", 4, true}, {"u8", 8, false}, {"i8", 8, false},
                 {"f8", 8, false}, {"f4", 4, false}};
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        struct resident resident = {.det_y = 3,
                                    .det_x = 4,
                                    .shape = {.n_elems = 12, .elem_bytes = kinds[k].bytes}};
        strcpy(resident.dtype, kinds[k].dtype);
        for (size_t i = 0; i < sizeof(asks) / sizeof(asks[0]); i++) {
            struct view_plan plan;
            struct stow_error err = {.code = 0};
            bool same = strcmp(asks[i].dtype, kinds[k].dtype) == 0;
            int want = kinds[k].counted || i < 4 || same ? 0 : STOW_UNSUPPORTED;
            CHECK_INT(view_plan_make(&plan, &asks[i], &resident, &err), want);
            CHECK(want ? strstr(err.text, kinds[k].dtype) != NULL : plan.dtype[0] != 0);
            CHECK(want || kinds[k].counted || plan.view.out_bytes == kinds[k].bytes);
        }
    }
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
        {{.order = STOW_ORDER_LIST, .ids = (uint64_t[]){0, UINT64_MAX, 1}, .n_ids = 3},
         STOW_RANGE,
         "0 to 19"},
        {{.batch = STREAM_MAX_BATCH + 1}, STOW_INVALID, "8192"},
        {{.slots = STREAM_MAX_SLOTS + 1}, STOW_INVALID, "256"},
        {{.rank = 1}, STOW_INVALID, "rank 1"},
        {{.rank = 3, .world = 3}, STOW_INVALID, "rank 3 of 3"},
    };
    uint64_t used = rig->place.used_bytes;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        CHECK_INT(consumer_open(&c, rig, resident, &cases[i].o, &err), cases[i].code);
        CHECK_MSG(err.code == cases[i].code && strstr(err.text, cases[i].names), "case %zu: %s", i,
                  err.text);
    }
    struct stream_options list = {.order = STOW_ORDER_LIST, .ids = ids, .n_ids = 1};
    CHECK_INT(consumer_open(&c, rig, empty, &list, &err), STOW_RANGE);
    CHECK_MSG(strstr(err.text, "no frames") != NULL, "%s", err.text);
    /* A ring that the budget has no room for, with the figures. */
    struct resident *large = rig_resident(rig, 20, 20);
    large->shape.n_elems = MIB;
    CHECK_INT(consumer_open(&c, rig, large, &(struct stream_options){.batch = 20, .slots = 2},
                            &err),
              STOW_NOROOM);
    CHECK_MSG(strstr(err.text, "83886080 bytes needed") && strstr(err.text, "--max-bytes"), "%s",
              err.text);
    CHECK(resident->n_streams == 0 && large->n_streams == 0 && resident->refs == 1 &&
          !resident->watches);
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
    CHECK_INT(stream_release(c.stream, slot, generation),
              STOW_STALE); /* twice: it is being filled */
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
    CHECK_INT(stream_attach(c.stream, c.stream->nonce, sizeof(nonce), &err),
              STOW_STATE); /* not yet offered */
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
    CHECK_INT(stream_attach(c.stream, c.stream->nonce, sizeof(nonce), &err),
              STOW_STATE); /* twice */
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
    consumer_start(&c, rig, resident,
                   &(struct stream_options){.order = STOW_ORDER_REQUEST, .batch = 4, .slots = 2});
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
    consumer_start(&c, rig, resident,
                   &(struct stream_options){.order = STOW_ORDER_REQUEST, .batch = 1, .slots = 1});
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
static void test_close_any_time(struct rig *rig, const struct view_ask *view)
{
    struct resident *resident = rig_resident(rig, 200, 200);
    uint64_t used = rig->place.used_bytes, leases = metrics.leases, streams = metrics.streams;
    for (int turns = 0; turns < 10; turns++) {
        for (int how = 0; how < 4; how++) {
            struct consumer c;
            struct stow_error err;
            CHECK_INT(consumer_open(&c, rig, resident,
                                    &(struct stream_options){.batch = 8, .slots = 3, .view = view},
                                    &err),
                      0);
            for (int i = 0; i < turns; i++) {
                uv_run(&rig->loop, UV_RUN_NOWAIT);
                if (c.stream->state == STREAM_OFFERED)
                    CHECK_INT(consumer_attach(&c), 0);
            }
            unsigned n_batches = c.n_batches, n_opened = c.n_opened;
            uint64_t ring = c.stream->ring_bytes;
            CHECK_INT(rig->place.used_bytes, used + ring + (view ? c.stream->viewing->charged : 0));
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
            case 2: stream_abandon(c.stream); break;
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

int main(void)
{
    static struct rig rig;
    rig_open(&rig, 64 * MIB, 0);
    test_orders(&rig);
    test_views(&rig);
    test_marks(&rig);
    test_plans();
    test_refusals(&rig);
    test_slots(&rig);
    test_attach(&rig);
    test_request(&rig);
    test_pending(&rig);
    test_load_failure(&rig);
    test_close_any_time(&rig, NULL);
    test_close_any_time(&rig, &seen_as_it_is);
    test_drain(&rig);
    rig_close(&rig);
    return test_end();
}
