/* SPDX-License-Identifier: Apache-2.0
 *
 * stream_fault_test: streams where a lane is full, memory runs out at every single allocation, or the device is
 * lost; and with threads that do the work. */
#include "alloc_fault.h"
#include "consumer.h"

#include "device_ops.h"

#include <unistd.h>

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
static void test_crowd(struct rig *rig, bool only_bad, const struct view_ask *view)
{
    static struct consumer crowd[N_CROWD];
    struct resident *resident = rig_resident(rig, 60, 60);
    struct stow_error err;
    if (only_bad)
        spoil(resident);
    for (int i = 0; i < N_CROWD; i++)
        CHECK_INT(consumer_open(&crowd[i], rig, resident,
                                &(struct stream_options){.batch = 5, .slots = 2, .view = view},
                                &err),
                  0);
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
static int life(struct rig *rig, struct resident *resident, const struct stream_options *options,
                bool by_wish)
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
        {{.order = STOW_ORDER_SCAN, .batch = 8, .slots = 2, .view = &seen_as_it_is}, false},
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
                CHECK_MSG(rig->place.used_bytes == used && metrics.leases == leases &&
                              !resident->n_streams && resident->refs == 1 && !resident->watches,
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
        CHECK_MSG(store_is_idle(&rig->store) && !rig->store.names && !rig->place.used_bytes,
                  "fault %u", k);
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
        CHECK_INT(consumer_open(all[i], &rig, resident,
                                &(struct stream_options){.batch = 8, .slots = 2}, &err),
                  0);
    rig_turn(&rig);
    for (int i = 0; i < 3; i++) {
        CHECK_INT(consumer_attach(all[i]), 0);
        CHECK_INT(all[i]->stream->n_filling, 2);
    }
    CHECK_INT(consumer_open(&opening, &rig, resident, &(struct stream_options){.batch = 8}, &err),
              0);
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
        struct stream_options o = {.batch = i == 1 ? 200 : 16,
                                   .slots = 4,
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
    test_crowd(&rig, false, NULL);
    test_crowd(&rig, true, NULL);
    test_crowd(&rig, false, &seen_as_it_is);
    test_crowd(&rig, true, &seen_as_it_is);
    test_alloc_faults(&rig);
    test_store_faults(&rig);
    rig_close(&rig);
    test_lost();
    test_threads();
    if (!alloc_fault_works)
        printf("a sanitizer is at work: allocations do not fail here\n");
    return test_end();
}
