/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include "metrics.h"

#define LOG_MODULE "store"
#include "log.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Device memory comes in units of this; a piece is charged in whole ones. */
#define UNIT_BYTES (UINT64_C(2) << 20)

void store_init(struct store *store, struct place *places, size_t n_places)
{
    *store = (struct store){.places = places, .n_places = n_places, .next_id = 1};
    ring_tables_init(&store->rings, UINT64_MAX);
}

void store_clear(struct store *store)
{
    while (store->names)
        store_unbind(store, store->names);
}

bool store_is_idle(const struct store *store)
{
    return !store->residents && !store->n_freeing;
}

/* ---- residents ---- */

struct resident *resident_new(struct store *store, struct place *place, uid_t owner)
{
    struct resident *resident = malloc(sizeof(*resident));
    if (!resident)
        return NULL;
    *resident = (struct resident){.next = store->residents,
                                  .store = store,
                                  .place = place,
                                  .id = store->next_id++,
                                  .refs = 1,
                                  .owner = owner,
                                  .last_used_ns = uv_hrtime()};
    store->residents = resident;
    metrics.residents++;
    return resident;
}

static void on_piece_freed(struct device_request *request)
{
    struct piece *piece = request->data;
    piece->store->n_freeing--;
    free(piece);
}

static void free_piece(struct piece *piece)
{
    place_uncharge(piece->place, piece->charged);
    piece->store->n_freeing++;
    piece->resident = NULL;
    piece->request = (struct device_request){.done = on_piece_freed, .data = piece};
    if (!piece->memory.bytes) { /* it never came to be */
        on_piece_freed(&piece->request);
        return;
    }
    device_free(piece->place->device, &piece->memory, &piece->request);
}

static void free_pieces(struct resident *resident)
{
    while (resident->pieces) {
        struct piece *piece = resident->pieces;
        resident->pieces = piece->next;
        free_piece(piece);
    }
}

static void free_segments(struct resident *resident)
{
    for (size_t i = 0; i < resident->n_segments; i++)
        free(resident->segments[i].packed);
    free(resident->segments);
    resident->segments = NULL;
    resident->n_segments = 0;
}

void table_reader_fini(struct table_reader *reader)
{
    free(reader->frames);
    free(reader->sums.pixels);
    free(reader->sums.stats);
    free(reader->sums.flags);
    *reader = (struct table_reader){.resident = NULL};
}

static void free_tables(struct resident *resident)
{
    struct table_reader tables = {.frames = resident->frames, .sums = resident->sums};
    if (resident->reader)
        *resident->reader = tables;
    else
        table_reader_fini(&tables);
    resident->reader = NULL;
    resident->frames = NULL;
    resident->sums = (struct kept_sums){.pixels = NULL};
}

static void close_answers(struct resident *resident)
{
    int *fds = &resident->answers[0][0];
    for (size_t i = 0; i < sizeof(resident->answers) / sizeof(fds[0]); i++) {
        if (fds[i])
            close(fds[i]);
        fds[i] = 0;
    }
}

static void drop_answers(struct resident *resident)
{
    close_answers(resident);
    place_uncharge(resident->place, resident->answers_charged);
    resident->answers_charged = 0;
}

/* Everything that only a resident in memory has. */
static void drop_contents(struct resident *resident)
{
    free_pieces(resident);
    free_segments(resident);
    free_tables(resident);
    drop_answers(resident);
    ring_tables_drop(&resident->store->rings, resident);
    place_uncharge(resident->place, resident->frames_charged);
    resident->frames_charged = 0;
    for (size_t i = 0; i < resident->n_faults; i++)
        free(resident->faults[i].text);
    free(resident->faults);
    resident->faults = NULL;
    resident->n_faults = resident->faults_room = 0;
    resident->payload_bytes = resident->table_bytes = 0;
}

static void resident_free(struct resident *resident)
{
    struct resident **at = &resident->store->residents;
    while (*at != resident)
        at = &(*at)->next;
    *at = resident->next;
    if (resident->state != RESIDENT_EVICTED)
        metrics.residents--;
    drop_contents(resident);
    for (size_t i = 0; i < resident->n_origins; i++)
        free(resident->origins[i].path);
    free(resident->origins);
    for (size_t i = 0; i < resident->n_warnings; i++)
        free(resident->warnings[i]);
    free(resident->warnings);
    remembered_free(resident->remembered);
    free(resident->dataset);
    free(resident);
}

void resident_ref(struct resident *resident)
{
    resident->refs++;
}

void resident_unref(struct resident *resident)
{
    assert(resident->refs > 0);
    if (--resident->refs == 0)
        resident_free(resident);
}

void resident_fault(struct resident *resident, uint64_t first, uint64_t count, int code,
                    const char *text)
{
    for (uint64_t id = first; id < first + count; id++) {
        resident->frames[id].form = STOW_FORM_BAD;
        resident->frames[id].code = (uint8_t)-code;
    }
    if (resident->n_faults == resident->faults_room) {
        size_t room = resident->faults_room ? 2 * resident->faults_room : 16;
        struct fault *faults = realloc(resident->faults, room * sizeof(*faults));
        if (!faults)
            return;
        resident->faults = faults;
        resident->faults_room = room;
    }
    char *copy = strdup(text);
    if (copy)
        resident->faults[resident->n_faults++] =
            (struct fault){.first = first, .count = count, .text = copy};
}

const char *resident_fault_text(const struct resident *resident, uint64_t id)
{
    for (size_t i = 0; i < resident->n_faults; i++) {
        if (id - resident->faults[i].first < resident->faults[i].count)
            return resident->faults[i].text;
    }
    return stow_strerror(-resident->frames[id].code);
}

void resident_warn(struct resident *resident, const char *format, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&text, format, args);
    va_end(args);
    char **warnings = realloc(resident->warnings, (resident->n_warnings + 1) * sizeof(*warnings));
    if (warnings)
        resident->warnings = warnings;
    if (n < 0 || !warnings) {
        if (n >= 0)
            free(text);
        return;
    }
    resident->warnings[resident->n_warnings++] = text;
}

void resident_time(struct resident *resident, const char *stage, double ms)
{
    if (resident->n_timings < sizeof(resident->timings) / sizeof(resident->timings[0]))
        resident->timings[resident->n_timings++] = (struct timing){.stage = stage, .ms = ms};
}

void resident_settle(struct resident *resident)
{
    resident_forms(resident, resident->forms);
    resident->settled = true;
}

void resident_forms(const struct resident *resident, uint64_t *forms)
{
    if (resident->settled) {
        memcpy(forms, resident->forms, sizeof(resident->forms));
        return;
    }
    memset(forms, 0, STOW_N_FORMS * sizeof(*forms));
    for (uint64_t i = 0; resident->frames && i < resident->n_frames; i++) {
        if (resident->frames[i].form < STOW_N_FORMS)
            forms[resident->frames[i].form]++;
    }
}

uint64_t resident_bytes(const struct resident *resident)
{
    uint64_t table = resident->frames ? resident->n_frames * sizeof(struct frame) : 0;
    return resident->payload_bytes + resident->table_bytes + table;
}

void resident_changed(struct resident *resident)
{
    resident_ref(resident);
    for (struct watch *watch = resident->watches, *next; watch; watch = next) {
        next = watch->next;
        watch->changed(watch);
    }
    resident_unref(resident);
}

void resident_watch(struct resident *resident, struct watch *watch)
{
    watch->next = resident->watches;
    resident->watches = watch;
}

void resident_unwatch(struct resident *resident, struct watch *watch)
{
    for (struct watch **at = &resident->watches; *at; at = &(*at)->next) {
        if (*at == watch) {
            *at = watch->next;
            return;
        }
    }
}

/* ---- pieces and room ---- */

uint64_t piece_charge(uint64_t bytes)
{
    return (bytes + UNIT_BYTES - 1) / UNIT_BYTES * UNIT_BYTES;
}

int resident_add_piece(struct resident *resident, uint64_t bytes,
                       void (*done)(struct device_request *), void *data, struct piece **piece_out,
                       struct shortage *shortage)
{
    uint64_t charge = piece_charge(bytes);
    int rc = store_make_room(resident->store, resident->place, charge, shortage);
    if (rc)
        return rc;
    struct piece *piece = malloc(sizeof(*piece));
    if (!piece)
        return STOW_NOMEM;
    *piece = (struct piece){.next = resident->pieces,
                            .resident = resident,
                            .store = resident->store,
                            .place = resident->place,
                            .charged = charge,
                            .request = {.done = done, .data = data}};
    resident->pieces = piece;
    place_charge(resident->place, charge);
    *piece_out = piece;
    device_alloc(resident->place->device, &piece->memory, MEMORY_RESIDENT, bytes, &piece->request);
    return 0;
}

static bool evictable(const struct resident *resident, const struct place *place)
{
    return resident->place == place && resident->n_streams == 0 &&
           (resident->state == RESIDENT_COMPLETE || resident->state == RESIDENT_DAMAGED);
}

static uint64_t charged_bytes(const struct resident *resident)
{
    uint64_t bytes = resident->frames_charged + resident->answers_charged;
    for (const struct piece *piece = resident->pieces; piece; piece = piece->next)
        bytes += piece->charged;
    return bytes;
}

static struct resident *least_recent(struct store *store, const struct place *place)
{
    struct resident *oldest = NULL;
    for (struct resident *r = store->residents; r; r = r->next) {
        if (evictable(r, place) && (!oldest || r->last_used_ns < oldest->last_used_ns))
            oldest = r;
    }
    return oldest;
}

static void evict(struct resident *resident)
{
    LOG_INFO("acquisition %llu is evicted to make room: %llu bytes, %s",
             (unsigned long long)resident->id, (unsigned long long)resident_bytes(resident),
             resident->n_origins ? resident->origins[0].path : "no file");
    drop_contents(resident);
    resident->state = RESIDENT_EVICTED;
    metrics.residents--;
    metrics.evictions_total++;
}

int store_make_room(struct store *store, struct place *place, uint64_t bytes,
                    struct shortage *shortage)
{
    const struct spare *spare = &store->spare;
    uint64_t could_go = spare->bytes ? spare->bytes(spare->data, place) : 0;
    uint64_t free_bytes = place_free_bytes(place);
    for (const struct resident *r = store->residents; r; r = r->next)
        could_go += evictable(r, place) ? charged_bytes(r)
                    : r->place == place ? r->answers_charged
                                        : 0;
    if (bytes > free_bytes && bytes - free_bytes > could_go) {
        *shortage = (struct shortage){.needed = bytes, .free = free_bytes, .evictable = could_go};
        return STOW_NOROOM;
    }
    if (bytes > free_bytes && spare->bytes)
        spare->give(spare->data, place);
    for (struct resident *r = store->residents; r && place_free_bytes(place) < bytes; r = r->next) {
        if (r->place == place && r->answers_charged)
            drop_answers(r);
    }
    while (place_free_bytes(place) < bytes)
        evict(least_recent(store, place));
    return 0;
}

int shortage_error(const struct shortage *shortage, const struct place *place,
                   struct stow_error *err)
{
    return error_set(
        err, STOW_NOROOM,
        "no room on %s: %llu bytes needed, %llu free, %llu evictable, of a budget of %llu; unload "
        "an acquisition or start framestowd with a larger --max-bytes",
        device_info(place->device)->name, (unsigned long long)shortage->needed,
        (unsigned long long)shortage->free, (unsigned long long)shortage->evictable,
        (unsigned long long)place->max_bytes);
}

/* ---- names ---- */

bool uid_is_admin(uid_t uid)
{
    return uid == 0 || uid == geteuid();
}

bool name_visible(const struct name *name, uid_t uid, gid_t gid)
{
    return name->owner == uid || uid_is_admin(uid) || name->share == STOW_SHARE_ALL ||
           (name->share == STOW_SHARE_GROUP && name->group == gid);
}

struct name *store_find_own(struct store *store, const char *text, uid_t uid)
{
    for (struct name *name = store->names; name; name = name->next) {
        if (name->owner == uid && strcmp(name->text, text) == 0)
            return name;
    }
    return NULL;
}

struct name *store_find(struct store *store, const char *text, uid_t uid, gid_t gid)
{
    struct name *own = store_find_own(store, text, uid);
    if (own)
        return own;
    for (struct name *name = store->names; name; name = name->next) {
        if (strcmp(name->text, text) == 0 && name_visible(name, uid, gid))
            return name;
    }
    return NULL;
}

static bool name_before(const struct name *a, const struct name *b)
{
    int order = strcmp(a->text, b->text);
    return order < 0 || (order == 0 && a->owner < b->owner);
}

struct name *store_bind(struct store *store, const char *text, uid_t uid, gid_t gid,
                        enum stow_share share, struct resident *resident)
{
    struct name *name = malloc(sizeof(*name));
    char *copy = strdup(text);
    if (!name || !copy) {
        free(name);
        free(copy);
        return NULL;
    }
    *name = (struct name){
        .text = copy, .owner = uid, .group = gid, .share = share, .resident = resident};
    resident_ref(resident);
    struct name **at = &store->names;
    while (*at && name_before(*at, name))
        at = &(*at)->next;
    name->next = *at;
    *at = name;
    return name;
}

void store_unbind(struct store *store, struct name *name)
{
    struct name **at = &store->names;
    while (*at != name)
        at = &(*at)->next;
    *at = name->next;
    resident_unref(name->resident);
    free(name->text);
    free(name);
}

bool origin_same(const struct origin *a, const struct origin *b)
{
    return a->dev == b->dev && a->ino == b->ino && a->size == b->size && a->mtime_ns == b->mtime_ns;
}

bool resident_is_whole(const struct resident *r)
{
    return r->state == RESIDENT_COMPLETE || r->state == RESIDENT_DAMAGED;
}

/* Who lets the loader choose is content with what somebody else chose. */
static bool is_kept_as(const struct keep *is, const struct keep *asked)
{
    return (asked->form == KEEP_AUTO || asked->form == is->form) &&
           (!asked->streams || asked->streams == is->streams);
}

bool resident_is_of(const struct resident *r, const struct place *place,
                    const struct origin *master, const char *dataset, bool allow_gaps,
                    struct keep keep)
{
    bool same_dataset = dataset ? r->dataset && strcmp(dataset, r->dataset) == 0 : !r->dataset;
    return same_dataset && !r->failure.code && r->place == place && r->n_origins &&
           (allow_gaps || !r->has_gaps) && is_kept_as(&r->keep, &keep) &&
           origin_same(&r->origins[0], master);
}

struct resident *store_find_origin(struct store *store, const struct place *place,
                                   const struct origin *master, const char *dataset,
                                   bool allow_gaps, struct keep keep)
{
    for (struct resident *r = store->residents; r; r = r->next) {
        if (resident_is_whole(r) && resident_is_of(r, place, master, dataset, allow_gaps, keep))
            return r;
    }
    return NULL;
}

struct scan name_scan(const struct name *name)
{
    const struct resident *resident = name->resident;
    if (name->scan.height)
        return name->scan;
    return (struct scan){.height = resident->scan_y, .width = resident->scan_x};
}

const char *residence_name(enum residence state)
{
    static const char *const names[] = {"loading", "growing", "complete", "damaged", "evicted"};
    return names[state];
}
