/* SPDX-License-Identifier: Apache-2.0 */
#include "loads_inside.h"

#include "bind.h"
#include "metrics.h"

#define LOG_MODULE "load"
#include "log.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

uint64_t load_id(const struct load *load)
{
    return load->id;
}

struct origin load_origin_of(const struct stat *st)
{
    return (struct origin){.dev = st->st_dev,
                           .ino = st->st_ino,
                           .size = (uint64_t)st->st_size,
                           .mtime_ns =
                               (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec};
}

/* A descriptor that its bytes can be read by. One opened by O_PATH or for writing alone can be had by those
 * who may not read the file, and so proves no right to it. */
static bool is_readable(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && !(flags & O_PATH) && (flags & O_ACCMODE) != O_WRONLY;
}

/* ---- life ---- */

static void drop_needs(struct load *load)
{
    while (load->needs) {
        struct need *need = load->needs;
        load->needs = need->next;
        free(need->path);
        free(need);
    }
}

static void load_free(struct load *load)
{
    struct load **at = &load->loads->first;
    while (*at != load)
        at = &(*at)->next;
    *at = load->next;
    load->loads->n_files -= load->n_files;
    drop_needs(load);
    if (load->opening)
        kept_open_cancel(load->opening);
    if (load->recall)
        recall_cancel(load->recall);
    if (load->source)
        source_close(load->source);
    if (load->master_fd >= 0)
        close(load->master_fd);
    if (load->resident)
        resident_unref(load->resident);
    free(load->path);
    free(load->dataset);
    free(load);
}

static struct load *load_new(struct loads *loads, struct place *place, int fd,
                             const struct load_options *options)
{
    struct load *load = calloc(1, sizeof(*load));
    char *path = strdup(options->path),
         *dataset = options->dataset ? strdup(options->dataset) : NULL;
    if (!load || !path || (options->dataset && !dataset)) {
        free(load);
        free(path);
        free(dataset);
        close(fd);
        return NULL;
    }
    *load = (struct load){.next = loads->first,
                          .loads = loads,
                          .id = ++loads->next_id,
                          .place = place,
                          .master_fd = fd,
                          .path = path,
                          .dataset = dataset,
                          .keep = options->keep,
                          .allow_gaps = options->allow_gaps,
                          .begun_ns = uv_hrtime()};
    loads->first = load;
    return load;
}

/* ---- telling the waiters ---- */

static void remove_waiter(struct waiter *waiter)
{
    struct waiter **at = &waiter->load->waiters;
    while (*at != waiter)
        at = &(*at)->next;
    *at = waiter->next;
    waiter->load = NULL;
}

void load_end_waiter(struct load *load, struct waiter *waiter, const struct stow_error *err)
{
    const struct name *name = NULL;
    if (!err->code)
        name = store_find_own(load->loads->store, waiter->name, waiter->uid);
    struct stow_error gone;
    if (!err->code && (!name || name->resident != load->resident)) {
        error_set(&gone, STOW_CANCELLED, "%s was unloaded while it was being loaded", waiter->name);
        err = &gone;
        name = NULL;
    }
    remove_waiter(waiter);
    waiter->ended(waiter, name, err);
}

static void take_names_back(struct load *load)
{
    for (struct name *name = load->loads->store->names, *next; name; name = next) {
        next = name->next;
        if (name->resident == load->resident)
            store_unbind(load->loads->store, name);
    }
}

/* The end of a load, good (code 0) or bad. */
void load_end(struct load *load, const struct stow_error *err)
{
    load->state = LOAD_OVER;
    if (err->code) {
        metrics.loads_failed_total++;
        if (load->resident && load->resident->failure.code)
            take_names_back(load);
        LOG_WARN("load %llu of %s failed: %s", (unsigned long long)load->id, load->path, err->text);
    } else {
        const struct resident *r = load->resident;
        LOG_INFO("load %llu of %s: %llu frames, %llu bytes resident, %s",
                 (unsigned long long)load->id, load->path, (unsigned long long)r->n_frames,
                 (unsigned long long)resident_bytes(r), residence_name(r->state));
    }
    while (load->waiters)
        load_end_waiter(load, load->waiters, err);
    load_free(load);
}

void load_fail(struct load *load, const struct stow_error *err)
{
    if (load->resident && load->state != LOAD_CHECKING)
        load->resident->failure = *err;
    load_end(load, err);
}

/* ---- files ---- */

int load_ask(struct load *load, uint32_t file, const char *path)
{
    struct need *need = malloc(sizeof(*need));
    char *copy = strdup(path);
    if (!need || !copy) {
        free(need);
        free(copy);
        return STOW_NOMEM;
    }
    *need = (struct need){.next = load->needs, .file = file, .path = copy};
    load->needs = need;
    if (load->waiters)
        load->waiters->need(load->waiters, file, path);
    return 0;
}

/* Whoever was asked has left: ask who is first now. */
static void ask_again(struct load *load)
{
    for (struct need *need = load->needs; need; need = need->next)
        load->waiters->need(load->waiters, need->file, need->path);
}

static void check_file(struct load *load, uint32_t file, int fd);

void load_give(struct load *load, uint32_t file, int fd, const char *path, int errno_value)
{
    struct need **at = &load->needs;
    while (*at && (*at)->file != file)
        at = &(*at)->next;
    bool asked = *at != NULL;
    if (asked) {
        struct need *need = *at;
        *at = need->next;
        free(need->path);
        free(need);
    }
    if (load->state == LOAD_INDEXING && load->recall) {
        recall_give(load->recall, file, fd, path, errno_value);
        return;
    }
    if (load->state == LOAD_INDEXING && load->source) {
        source_give(load->source, file, fd, path, errno_value);
        return;
    }
    if (load->state == LOAD_CHECKING && asked) /* what nobody asked for proves nothing */
        check_file(load, file, fd);
    if (fd >= 0)
        close(fd);
}

void load_cancel(struct load *load)
{
    struct stow_error err;
    error_set(&err, STOW_CANCELLED, "the load was cancelled");
    load->cancelling = true;
    if (load->state != LOAD_LOADING) {
        load_fail(load, &err);
        return;
    }
    load->resident->failure = err; /* from here on nobody joins it, */
    take_names_back(load);         /* and its names may mean the next load of the same source */
    if (load->kept)
        kept_load_cancel(load->kept);
    else
        loader_cancel(load->loader); /* on_loaded follows */
}

/* ---- is it still the same? ---- */

static void checked(struct load *load)
{
    struct waiter *waiter = load->waiters;
    struct stow_error err = {.code = 0};
    if (load->resident->state == RESIDENT_EVICTED) /* while the client opened its files */
        load->changed = true;
    if (!load->changed) {
        if (!bind_name(load->loads->store, waiter, load->resident, load->path, load->changed, &err))
            load->resident->last_used_ns = uv_hrtime();
        load->state = LOAD_OVER;
        load_end_waiter(load, waiter, &err);
        load_free(load);
        return;
    }
    /* A name for the old content is in the way. */
    int rc = bind_check(load->loads->store, waiter, NULL, true, &err);
    if (!rc)
        rc = load_begin_index(load, waiter->uid, &err);
    if (rc)
        load_fail(load, &err);
}

static void check_file(struct load *load, uint32_t file, int fd)
{
    struct stat st;
    struct origin *was = file < load->resident->n_origins ? &load->resident->origins[file] : NULL;
    struct origin now = {.dev = 0};
    bool there = fd >= 0 && is_readable(fd) && fstat(fd, &st) == 0;
    if (there)
        now = load_origin_of(&st);
    bool was_missing = was && !was->ino;
    if (was && (there ? !origin_same(&now, was) : !was_missing))
        load->changed = true;
    if (!load->needs)
        checked(load);
}

static void begin_check(struct load *load)
{
    int rc = 0;
    for (size_t i = 1; !rc && i < load->resident->n_origins; i++)
        rc = load_ask(load, (uint32_t)i, load->resident->origins[i].path);
    if (rc)
        load_fail(load, &(struct stow_error){.code = STOW_NOMEM,
                                             .text = "no memory to load an acquisition"});
    else if (!load->needs)
        checked(load);
}

/* ---- begin, leave ---- */

/* The load under way of this source that the waiter may join. Another user's is none, not for an admin either:
 * which files stand for the shards is that user's word, and cannot be compared before it is done. */
static struct load *find_loading(struct loads *loads, const struct place *place,
                                 const struct origin *master, const struct load_options *options,
                                 const struct waiter *waiter)
{
    for (struct load *load = loads->first; load; load = load->next) {
        bool running = load->state == LOAD_INDEXING || load->state == LOAD_LOADING;
        if (running && load->resident->owner == waiter->uid &&
            resident_is_of(load->resident, place, master, options->dataset, options->allow_gaps,
                           options->keep))
            return load;
    }
    return NULL;
}

/* The whole resident of this source: that which the waiter's name means already, else any. There are two where
 * two users loaded at once. */
static struct resident *find_whole(struct loads *loads, const struct place *place,
                                   const struct origin *master, const struct load_options *options,
                                   const struct waiter *waiter)
{
    const struct name *own = store_find_own(loads->store, waiter->name, waiter->uid);
    if (own && resident_is_whole(own->resident) &&
        resident_is_of(own->resident, place, master, options->dataset, options->allow_gaps,
                       options->keep))
        return own->resident;
    return store_find_origin(loads->store, place, master, options->dataset, options->allow_gaps,
                             options->keep);
}

static void add_waiter(struct load *load, struct waiter *waiter)
{
    struct waiter **last = &load->waiters;
    while (*last)
        last = &(*last)->next;
    waiter->next = NULL;
    waiter->load = load;
    *last = waiter;
}

/* Somebody loads it already. */
static int join(struct load *load, int fd, struct waiter *waiter, struct stow_error *err)
{
    close(fd);
    int rc = load->state == LOAD_LOADING
                 ? bind_name(load->loads->store, waiter, load->resident, load->path, false, err)
                 : 0;
    if (!rc)
        add_waiter(load, waiter);
    return rc;
}

/* A check asks for files and may even end at once: after the answer that names the load. */
struct first_turn {
    uv_timer_t timer;
    struct loads *loads;
    uint64_t load;
};

static void on_turn_closed(uv_handle_t *handle)
{
    free(handle->data);
}

static void on_first_turn(uv_timer_t *timer)
{
    struct first_turn *turn = timer->data;
    for (struct load *load = turn->loads->first; load; load = load->next) {
        if (load->id == turn->load) {
            begin_check(load);
            break;
        }
    }
    uv_close((uv_handle_t *)timer, on_turn_closed);
}

static int check_next_turn(struct load *load, struct stow_error *err)
{
    struct first_turn *turn = malloc(sizeof(*turn));
    if (!turn)
        return error_set(err, STOW_NOMEM, "no memory to load an acquisition");
    turn->loads = load->loads;
    turn->load = load->id;
    uv_timer_init(load->loads->loop, &turn->timer);
    turn->timer.data = turn;
    uv_timer_start(&turn->timer, on_first_turn, 0, 0);
    return 0;
}

int load_begin(struct loads *loads, struct place *place, int fd, const struct load_options *options,
               struct waiter *waiter, bool *shared, struct stow_error *err)
{
    struct stat st;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        close(fd);
        return error_set(err, STOW_SOURCE, "%s is not a regular file", options->path);
    }
    if (!is_readable(fd)) {
        close(fd);
        return error_set(err, STOW_DENIED, "%s: the descriptor is not open for reading",
                         options->path);
    }
    struct origin master = load_origin_of(&st);
    struct load *loading = find_loading(loads, place, &master, options, waiter);
    struct resident *same = loading ? NULL : find_whole(loads, place, &master, options, waiter);
    *shared = loading || same;
    if (loading)
        return join(loading, fd, waiter, err);
    struct load *load = load_new(loads, place, fd, options);
    if (!load)
        return error_set(err, STOW_NOMEM, "no memory to load an acquisition");
    add_waiter(load, waiter);
    int rc;
    if (same) {
        load->resident = same;
        resident_ref(same);
        load->state = LOAD_CHECKING;
        rc = check_next_turn(load, err);
    } else {
        rc = bind_check(loads->store, waiter, NULL, false, err);
        if (!rc)
            rc = load_begin_index(load, waiter->uid, err);
    }
    if (!rc)
        return 0;
    remove_waiter(waiter);
    load_free(load);
    return rc;
}

void load_leave(struct waiter *waiter)
{
    struct load *load = waiter->load;
    if (!load)
        return;
    bool was_first = load->waiters == waiter;
    remove_waiter(waiter);
    if (load->waiters && was_first)
        ask_again(load);
    if (!load->waiters && load->state != LOAD_OVER)
        load_cancel(load);
}

void loads_clear(struct loads *loads)
{
    struct stow_error err;
    error_set(&err, STOW_SHUTDOWN, "the daemon is shutting down");
    for (struct load *load = loads->first, *next; load; load = next) {
        next = load->next;
        while (load->waiters)
            load_end_waiter(load, load->waiters, &err);
        if (!load->cancelling)
            load_cancel(load);
    }
}
