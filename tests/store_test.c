/* SPDX-License-Identifier: Apache-2.0
 *
 * store_test: names and who sees them, references, room and who makes it. */
#include "rig.h"

#include "metrics.h"

#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

/* Not the uid that runs the test: that one may do more. */
static const uid_t ann = 1000001, bob = 1000002;
static const gid_t lab = 200, other = 201;

/* ---- names ---- */

static void test_names(struct rig *rig)
{
    struct store *store = &rig->store;
    struct resident *a = resident_new(store, &rig->place, ann),
                    *b = resident_new(store, &rig->place, bob);
    CHECK(a && b && a->id != b->id);
    struct name *of_ann = store_bind(store, "scan", ann, lab, STOW_SHARE_USER, a);
    struct name *of_bob = store_bind(store, "scan", bob, lab, STOW_SHARE_USER, b);
    CHECK_INT(a->refs, 2);
    CHECK(store_find_own(store, "scan", ann) == of_ann &&
          store_find_own(store, "scan", bob) == of_bob);
    CHECK(store_find(store, "scan", ann, lab) == of_ann &&
          store_find(store, "scan", bob, lab) == of_bob);
    CHECK(!store_find(store, "scan", 1000003, lab) && !store_find(store, "sca", ann, lab) &&
          !store_find(store, "scan2", ann, lab) && !store_find_own(store, "scan", 1000003));
    /* a second name for the same */
    struct name *second = store_bind(store, "again", ann, lab, STOW_SHARE_USER, a);
    CHECK_INT(a->refs, 3);
    CHECK(store_find(store, "again", ann, lab) == second && second->resident == a);
    store_unbind(store, of_ann);
    CHECK(!store_find(store, "scan", ann, lab) && store_find(store, "again", ann, lab) == second);
    CHECK(store_find(store, "scan", bob, lab) == of_bob);
    /* freed with its last name */
    resident_unref(a);
    CHECK_INT(a->refs, 1);
    uint64_t n = metrics.residents;
    store_unbind(store, second);
    CHECK_INT(metrics.residents, n - 1);
    CHECK(store->residents == b && !b->next);
    resident_unref(b);
    store_clear(store);
    CHECK(store_is_idle(store) && !store->names);
}

static void test_sorted(struct rig *rig)
{
    static const char *const texts[] = {"b", "a", "ab", "\xff", "b", "A", "c\n", "aa", "b"};
    struct resident *resident = resident_new(&rig->store, &rig->place, ann);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        CHECK(store_bind(&rig->store, texts[i], (uid_t)(2000 - i), lab, STOW_SHARE_ALL, resident));
    resident_unref(resident);
    size_t n = 0;
    for (const struct name *name = rig->store.names; name; name = name->next, n++) {
        int order = name->next ? strcmp(name->text, name->next->text) : -1;
        CHECK(order < 0 || (order == 0 && name->owner < name->next->owner));
    }
    CHECK_INT(n, sizeof(texts) / sizeof(texts[0]));
    store_clear(&rig->store);
    CHECK(store_is_idle(&rig->store));
}

static void test_visible(struct rig *rig)
{
    static const struct {
        enum stow_share share;
        uid_t uid;
        gid_t gid;
        bool seen;
    } cases[] = {
        {STOW_SHARE_USER, 1000001, 200, true},   {STOW_SHARE_USER, 1000001, 201, true},
        {STOW_SHARE_USER, 1000002, 200, false},  {STOW_SHARE_USER, 1000002, 201, false},
        {STOW_SHARE_GROUP, 1000001, 201, true},  {STOW_SHARE_GROUP, 1000002, 200, true},
        {STOW_SHARE_GROUP, 1000002, 201, false}, {STOW_SHARE_ALL, 1000002, 201, true},
        {STOW_SHARE_USER, 0, 0, true},           {STOW_SHARE_GROUP, 0, 0, true},
    };
    struct resident *resident = resident_new(&rig->store, &rig->place, ann);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct name *name = store_bind(&rig->store, "n", ann, lab, cases[i].share, resident);
        CHECK_MSG(name_visible(name, cases[i].uid, cases[i].gid) == cases[i].seen, "case %zu", i);
        CHECK_MSG((store_find(&rig->store, "n", cases[i].uid, cases[i].gid) == name) ==
                      cases[i].seen,
                  "case %zu", i);
        store_unbind(&rig->store, name);
    }
    CHECK(uid_is_admin(0) && uid_is_admin(geteuid()) && !uid_is_admin(ann));
    /* one's own goes before another's that is shared */
    struct name *shared = store_bind(&rig->store, "n", ann, lab, STOW_SHARE_ALL, resident);
    CHECK(store_find(&rig->store, "n", bob, other) == shared);
    struct name *own = store_bind(&rig->store, "n", bob, other, STOW_SHARE_USER, resident);
    CHECK(store_find(&rig->store, "n", bob, other) == own &&
          store_find(&rig->store, "n", ann, lab) == shared);
    resident_unref(resident);
    store_clear(&rig->store);
}

static void test_origins(struct rig *rig)
{
    const struct keep any = {.form = KEEP_AUTO};
    struct origin master = {.dev = 1, .ino = 2, .size = 3, .mtime_ns = 4};
    struct resident *resident = resident_new(&rig->store, &rig->place, ann);
    CHECK(!store_find_origin(&rig->store, &rig->place, &master, NULL, true,
                             any)); /* it has none yet */
    resident->origins = calloc(1, sizeof(*resident->origins));
    resident->n_origins = 1;
    resident->origins[0] = master;
    resident->origins[0].path = strdup("/a");
    CHECK(
        !store_find_origin(&rig->store, &rig->place, &master, NULL, true, any)); /* not whole yet */
    resident->state = RESIDENT_COMPLETE;
    CHECK(store_find_origin(&rig->store, &rig->place, &master, NULL, true, any) == resident);
    CHECK(!store_find_origin(&rig->store, &rig->place, &master, "/entry/data", true, any));
    CHECK(!store_find_origin(&rig->store, NULL, &master, NULL, true, any));
    resident->keep = (struct keep){.form = KEEP_BSLZ4, .streams = 1};
    static const struct {
        struct keep asked;
        bool same;
    } keeps[] = {{{KEEP_AUTO, 0}, true},    {{KEEP_AUTO, 1}, true},   {{KEEP_AUTO, 4}, false},
                 {{KEEP_BSLZ4, 0}, true},   {{KEEP_BSLZ4, 2}, false}, {{KEEP_COUNTS, 0}, false},
                 {{KEEP_COUNTS, 1}, false}, {{KEEP_RAW, 0}, false}};
    for (size_t i = 0; i < sizeof(keeps) / sizeof(keeps[0]); i++)
        CHECK_INT(store_find_origin(&rig->store, &rig->place, &master, NULL, true,
                                    keeps[i].asked) == resident,
                  keeps[i].same);
    for (int i = 0; i < 4; i++) {
        struct origin differs = {.dev = 1 + (i == 0),
                                 .ino = 2 + (i == 1),
                                 .size = 3 + (i == 2),
                                 .mtime_ns = 4 + (i == 3)};
        CHECK(!origin_same(&master, &differs));
        CHECK(!store_find_origin(&rig->store, &rig->place, &differs, NULL, true, any));
    }
    resident->dataset = strdup("/entry/data");
    CHECK(store_find_origin(&rig->store, &rig->place, &master, "/entry/data", true, any) ==
          resident);
    CHECK(!store_find_origin(&rig->store, &rig->place, &master, NULL, true, any));
    resident->failure.code = STOW_IO;
    CHECK(!store_find_origin(&rig->store, &rig->place, &master, "/entry/data", true, any));
    resident->failure.code = 0;
    resident->state = RESIDENT_EVICTED;
    CHECK(!store_find_origin(&rig->store, &rig->place, &master, "/entry/data", true, any));
    resident->state = RESIDENT_LOADING;
    resident_unref(resident);
}

/* ---- what is known of frames ---- */

static void test_faults(struct rig *rig)
{
    uint64_t forms[STOW_N_FORMS];
    struct resident *resident = rig_resident(rig, 100, 100);
    resident_forms(resident, forms);
    CHECK(forms[STOW_FORM_RAW] == 20 && forms[STOW_FORM_BSLZ4] == 40 &&
          forms[STOW_FORM_FILL] == 20 && forms[STOW_FORM_BAD] == 20 &&
          forms[STOW_FORM_COUNTS] == 0);
    for (uint64_t i = 0; i < 50; i++) {
        char text[32];
        snprintf(text, sizeof(text), "fault %d", (int)i);
        resident_fault(resident, 2 * i, 1, STOW_CORRUPT, text);
    }
    CHECK(strcmp(resident_fault_text(resident, 20), "fault 10") == 0);
    CHECK(strcmp(resident_fault_text(resident, 98), "fault 49") == 0);
    resident_fault(resident, 5, 3, STOW_UNWRITTEN, "three");
    CHECK(strcmp(resident_fault_text(resident, 5), "three") == 0);
    CHECK(strcmp(resident_fault_text(resident, 7), "three") == 0);
    CHECK_INT(resident->frames[98].code, -STOW_CORRUPT);
    resident->frames[1].form = STOW_FORM_BAD; /* no sentence: the code's */
    resident->frames[1].code = (uint8_t)-STOW_UNWRITTEN;
    CHECK(strcmp(resident_fault_text(resident, 1), stow_strerror(STOW_UNWRITTEN)) == 0);
    for (int i = 0; i < 20; i++) {
        resident_warn(resident, "warning %d", i);
        resident_time(resident, "stage", i);
    }
    CHECK_INT(resident->n_warnings, 20);
    CHECK(strcmp(resident->warnings[19], "warning 19") == 0);
    CHECK_INT(resident->n_timings, 8);
    CHECK_INT(resident_bytes(resident), 100 * (RIG_STORED_BYTES + sizeof(struct frame)));
    resident_unref(resident);
    rig_turn(rig);
    CHECK_INT(rig->place.used_bytes, 0);
}

/* ---- watches ---- */

struct seen {
    struct watch watch;
    struct resident *resident;
    unsigned n;
    bool leaves;
};

static void on_seen(struct watch *watch)
{
    struct seen *seen = (struct seen *)watch;
    seen->n++;
    if (seen->leaves)
        resident_unwatch(seen->resident, watch);
}

static void test_watches(struct rig *rig)
{
    struct resident *resident = resident_new(&rig->store, &rig->place, ann);
    struct seen seen[4];
    for (int i = 0; i < 4; i++) {
        seen[i] = (struct seen){.watch.changed = on_seen, .resident = resident, .leaves = i % 2};
        resident_watch(resident, &seen[i].watch);
    }
    resident_changed(resident);
    resident_changed(resident);
    CHECK(seen[0].n == 2 && seen[1].n == 1 && seen[2].n == 2 && seen[3].n == 1);
    resident_unwatch(resident, &seen[1].watch); /* twice is nothing */
    resident_unwatch(resident, &seen[0].watch);
    resident_unwatch(resident, &seen[2].watch);
    CHECK(!resident->watches);
    resident_unref(resident);
}

/* ---- room ---- */

/* A complete acquisition of these bytes. */
static struct resident *complete(struct rig *rig, uint64_t bytes, uint64_t used_ns)
{
    int rc;
    struct shortage shortage;
    struct resident *resident = resident_new(&rig->store, &rig->place, ann);
    CHECK(rig_piece(rig, resident, bytes, &rc, &shortage) != NULL);
    resident->state = RESIDENT_COMPLETE;
    resident->last_used_ns = used_ns;
    return resident;
}

static void test_eviction(struct rig *rig)
{
    struct shortage shortage;
    int rc;
    struct resident *r[4];
    static const uint64_t used[4] = {30, 10, 40, 20};
    for (int i = 0; i < 4; i++) {
        r[i] = complete(rig, 4 * MIB, used[i]);
        CHECK(
            store_bind(&rig->store, (char[]){(char)('a' + i), 0}, ann, lab, STOW_SHARE_USER, r[i]));
        resident_unref(r[i]);
    }
    CHECK_INT(rig->place.used_bytes, 16 * MIB);
    CHECK_INT(place_free_bytes(&rig->place), 0);
    uint64_t evicted = metrics.evictions_total, residents = metrics.residents;
    CHECK_INT(store_make_room(&rig->store, &rig->place, 0, &shortage), 0);
    CHECK_INT(metrics.evictions_total, evicted);
    /* the least recently used goes first, and its name stays */
    CHECK_INT(store_make_room(&rig->store, &rig->place, 1, &shortage), 0);
    CHECK(r[1]->state == RESIDENT_EVICTED && r[3]->state == RESIDENT_COMPLETE &&
          r[0]->state == RESIDENT_COMPLETE);
    CHECK_INT(metrics.evictions_total, evicted + 1);
    CHECK_INT(metrics.residents, residents - 1);
    CHECK_INT(rig->place.used_bytes, 12 * MIB);
    const struct name *name = store_find(&rig->store, "b", ann, lab);
    CHECK(name && name->resident == r[1] && !r[1]->pieces && resident_bytes(r[1]) == 0);
    /* streamed ones stay, though older */
    r[3]->n_streams = 1;
    CHECK_INT(store_make_room(&rig->store, &rig->place, 5 * MIB, &shortage), 0);
    CHECK(r[0]->state == RESIDENT_EVICTED && r[3]->state == RESIDENT_COMPLETE &&
          r[2]->state == RESIDENT_COMPLETE);
    /* refused: figures, and nobody is evicted in vain */
    CHECK_INT(store_make_room(&rig->store, &rig->place, 13 * MIB, &shortage), STOW_NOROOM);
    CHECK(shortage.needed == 13 * MIB && shortage.free == 8 * MIB && shortage.evictable == 4 * MIB);
    CHECK(r[2]->state == RESIDENT_COMPLETE);
    struct stow_error err;
    CHECK_INT(shortage_error(&shortage, &rig->place, &err), STOW_NOROOM);
    CHECK_MSG(strstr(err.text, "13631488 bytes needed, 8388608 free, 4194304 evictable") &&
                  strstr(err.text, "16777216") && strstr(err.text, "--max-bytes"),
              "%s", err.text);
    CHECK_INT(store_make_room(&rig->store, &rig->place, UINT64_MAX, &shortage), STOW_NOROOM);
    /* just enough */
    CHECK_INT(store_make_room(&rig->store, &rig->place, 12 * MIB, &shortage), 0);
    CHECK(r[2]->state == RESIDENT_EVICTED);
    r[3]->n_streams = 0;
    /* one that loads is not evicted */
    struct resident *loading = resident_new(&rig->store, &rig->place, bob);
    CHECK(rig_piece(rig, loading, 12 * MIB, &rc, &shortage) != NULL);
    CHECK_INT(store_make_room(&rig->store, &rig->place, 5 * MIB, &shortage), STOW_NOROOM);
    CHECK(shortage.free == 0 && shortage.evictable == 4 * MIB);
    CHECK_INT(store_make_room(&rig->store, &rig->place, 4 * MIB, &shortage), 0);
    CHECK(r[3]->state == RESIDENT_EVICTED && loading->state == RESIDENT_LOADING);
    CHECK(!rig_piece(rig, loading, 5 * MIB, &rc, &shortage));
    CHECK_INT(rc, STOW_NOROOM);
    CHECK_INT(shortage.needed, 6 * MIB); /* whole units */
    resident_unref(loading);
    store_clear(&rig->store);
    rig_turn(rig);
    CHECK(store_is_idle(&rig->store));
    CHECK_INT(rig->place.used_bytes, 0);
}

/* A piece evicts what must go by itself; unbinding gives all back. */
static void test_pieces(struct rig *rig)
{
    struct shortage shortage;
    int rc;
    struct resident *old = complete(rig, 10 * MIB, 1),
                    *grows = resident_new(&rig->store, &rig->place, ann);
    struct piece *first = rig_piece(rig, grows, 3 * MIB, &rc, &shortage);
    CHECK(first && first->memory.bytes >= 3 * MIB && first->memory.host);
    CHECK_INT(rig->place.used_bytes, 14 * MIB);
    CHECK(rig_piece(rig, grows, 4 * MIB, &rc, &shortage) != NULL);
    CHECK(old->state == RESIDENT_EVICTED);
    CHECK_INT(rig->place.used_bytes, 8 * MIB);
    memset(first->memory.host, 1, 3 * MIB); /* not moved, not freed */
    CHECK(!rig_piece(rig, grows, 9 * MIB, &rc, &shortage) && rc == STOW_NOROOM);
    CHECK(shortage.needed == 10 * MIB && shortage.free == 8 * MIB && shortage.evictable == 0);
    struct name *name = store_bind(&rig->store, "x", ann, lab, STOW_SHARE_USER, grows);
    resident_unref(grows);
    resident_unref(old);
    store_unbind(&rig->store, name);
    CHECK_INT(rig->place.used_bytes, 0); /* at once: the device frees in order */
    CHECK(!store_is_idle(&rig->store));
    rig_turn(rig);
    CHECK(store_is_idle(&rig->store));
}

static void test_names_of_states(void)
{
    static const char *const names[] = {"loading", "growing", "complete", "damaged", "evicted"};
    for (int i = 0; i <= RESIDENT_EVICTED; i++)
        CHECK(strcmp(residence_name((enum residence)i), names[i]) == 0);
}

int main(void)
{
    struct rig rig;
    rig_open(&rig, 16 * MIB, 0);
    test_names(&rig);
    test_sorted(&rig);
    test_visible(&rig);
    test_origins(&rig);
    test_faults(&rig);
    test_watches(&rig);
    test_eviction(&rig);
    test_pieces(&rig);
    test_names_of_states();
    CHECK_INT(metrics.residents, 0);
    rig_close(&rig);
    return test_end();
}
