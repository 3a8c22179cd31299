/* SPDX-License-Identifier: Apache-2.0 */
#include "loads_inside.h"

#include "answers.h"
#include "bind.h"
#include "metrics.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PROGRESS_NS UINT64_C(100000000)

static void on_progress(void *data, uint64_t frames, uint64_t bytes)
{
    struct load *load = data;
    uint64_t now = uv_hrtime(), total = load->total_bytes;
    if (now - load->told_ns < PROGRESS_NS)
        return;
    load->told_ns = now;
    double seconds = (double)(now - load->indexed_ns) * 1e-9;
    struct stow_progress progress = {.frames = frames,
                                     .total_frames = load->resident->n_frames,
                                     .bytes = bytes,
                                     .total_bytes = total,
                                     .seconds_left =
                                         bytes ? seconds * (double)(total - bytes) / (double)bytes
                                               : -1};
    for (struct waiter *waiter = load->waiters; waiter; waiter = waiter->next)
        waiter->progress(waiter, &progress);
}

static void on_loaded(void *data, int status, const struct stow_error *err)
{
    struct load *load = data;
    load->loader = NULL;
    load->kept = NULL;
    (void)status;
    if (!err->code) {
        resident_time(load->resident, "load", (double)(uv_hrtime() - load->indexed_ns) * 1e-6);
        resident_time(load->resident, "total", (double)(uv_hrtime() - load->begun_ns) * 1e-6);
        answers_start(load->loads->loop, load->resident);
    }
    load_end(load, err);
}

/* Waiters whose name or scan cannot be had are told now; the others' names are bound. */
static void bind_names(struct load *load)
{
    for (struct waiter *waiter = load->waiters, *next; waiter; waiter = next) {
        next = waiter->next;
        struct stow_error err = {.code = 0};
        if (bind_name(load->loads->store, waiter, load->resident, load->path, load->changed, &err))
            load_end_waiter(load, waiter, &err);
    }
}

static const struct loader_callbacks loader_callbacks = {.on_progress = on_progress,
                                                         .on_done = on_loaded};

static void note_indexed(struct load *load)
{
    load->indexed_ns = uv_hrtime();
    resident_time(load->resident, "index", (double)(load->indexed_ns - load->begun_ns) * 1e-6);
}

static void loading(struct load *load)
{
    load->state = LOAD_LOADING;
    bind_names(load);
    if (!load->waiters)
        load_cancel(load);
}

static void on_indexed(void *data, int status, const struct stow_error *err)
{
    struct load *load = data;
    if (status) {
        load_fail(load, err);
        return;
    }
    note_indexed(load);
    load->total_bytes = source_index(load->source)->chunk_bytes;
    struct loader_callbacks mine = loader_callbacks;
    mine.data = load;
    struct stow_error why = {.code = 0};
    struct loader_options options = {.keep = load->keep};
    if (loader_start(&load->loader, load->loads->loop, load->resident, load->source, &options,
                     &mine, &why)) {
        load_fail(load, &why);
        return;
    }
    loading(load);
}

/* Options that choose something which a .stow file has chosen already. */
static int check_kept(const struct load *load, struct stow_error *err)
{
    const char *option = load->dataset                  ? "--dataset"
                         : load->keep.form != KEEP_AUTO ? "--form"
                         : load->keep.streams > 1       ? "--streams"
                                                        : NULL;
    return option ? error_set(err, STOW_INVALID,
                              "%s is a .stow file, and frames stay as it has them: load it "
                              "without %s",
                              load->path, option)
                  : 0;
}

/* The master is a .stow file: it is all there is. */
static void begin_kept(struct load *load, struct kept *kept)
{
    note_indexed(load);
    load->total_bytes = kept->file_bytes - kept->payload_at;
    struct loader_callbacks mine = loader_callbacks;
    mine.data = load;
    struct stow_error why = {.code = 0};
    if (check_kept(load, &why) || kept_load_start(&load->kept, load->loads->loop, load->resident,
                                                  kept, load->master_fd, load->path, &mine, &why))
        load_fail(load, &why);
    else
        loading(load);
}

/* A file is asked for only while there is a descriptor left for it: the kernel would drop what does not fit,
 * and with it the client. */
static void on_need(void *data, uint32_t file, const char *path)
{
    struct load *load = data;
    int why = load->loads->n_files >= load->loads->max_files ? EMFILE
              : load_ask(load, file, path)                   ? ENOMEM
                                                             : 0;
    if (why) {
        load_give(load, file, -1, path, why);
        return;
    }
    load->n_files++;
    load->loads->n_files++;
}

/* A resident that is not yet anything but the wish to read this master. */
static struct resident *new_resident(struct load *load, const struct stat *st, uid_t uid)
{
    struct resident *resident = resident_new(load->loads->store, load->place, uid);
    if (!resident)
        return NULL;
    resident->origins = malloc(sizeof(*resident->origins));
    resident->dataset = load->dataset ? strdup(load->dataset) : NULL;
    char *path = strdup(load->path);
    if (!resident->origins || !path || (load->dataset && !resident->dataset)) {
        free(path);
        resident_unref(resident);
        return NULL;
    }
    resident->keep = load->keep;
    if (!resident->keep.streams)
        resident->keep.streams = 1;
    resident->origins[0] = load_origin_of(st);
    resident->origins[0].path = path;
    resident->n_origins = 1;
    return resident;
}

static struct source_options source_options(const struct load *load)
{
    return (struct source_options){.dataset = load->dataset,
                                   .path = load->path,
                                   .allow_gaps = load->allow_gaps,
                                   .reader = load->loads->reader};
}

static void on_read(void *data, int status, const struct stow_error *err)
{
    struct load *load = data;
    struct source_options options = source_options(load);
    if (!status && load->loads->indexes)
        recall_keep(load->loads->loop, load->loads->indexes, load->loads->reader, &options,
                    load->source);
    on_indexed(load, status, err);
}

/* Start the reader child. The descriptor is the source's from here on. */
static int begin_reader(struct load *load, int fd, struct stow_error *err)
{
    struct source_options options = source_options(load);
    struct source_callbacks callbacks = {.data = load, .on_need = on_need, .on_done = on_read};
    return source_open(&load->source, load->loads->loop, fd, &options, &callbacks, err);
}

static void on_recalled(void *data, struct source *source, int master_fd)
{
    struct load *load = data;
    struct stow_error err;
    load->recall = NULL;
    if (source) {
        load->source = source;
        on_indexed(load, 0, NULL);
        return;
    }
    load->loads->n_files -= load->n_files; /* the reader asks for them again */
    load->n_files = 0;
    if (begin_reader(load, master_fd, &err))
        load_fail(load, &err);
}

/* Whether the index is known, else from the reader. The descriptor is no longer the load's. */
static int begin_source(struct load *load, int fd, struct stow_error *err)
{
    struct source_options options = source_options(load);
    struct recall_callbacks callbacks = {.data = load, .on_need = on_need, .on_done = on_recalled};
    if (!load->loads->indexes)
        return begin_reader(load, fd, err);
    int rc = recall_start(&load->recall, load->loads->loop, load->loads->indexes,
                          load->loads->reader, fd, &options, &callbacks);
    return rc ? error_set(err, rc, "no memory to load an acquisition") : 0;
}

static void on_opened(void *data, int fd, struct kept *kept, const struct stow_error *err)
{
    struct load *load = data;
    struct stow_error why = *err;
    load->opening = NULL;
    if (!why.code && !kept->n_frames) {
        if (begin_source(load, fd, &why))
            load_fail(load, &why);
        return;
    }
    load->master_fd = fd;
    if (why.code)
        load_fail(load, &why);
    else
        begin_kept(load, kept);
}

int load_begin_index(struct load *load, uid_t uid, struct stow_error *err)
{
    struct stat st;
    if (fstat(load->master_fd, &st))
        return error_errno(err, errno, "%s", load->path);
    struct resident *resident = new_resident(load, &st, uid);
    if (!resident)
        return error_set(err, STOW_NOMEM, "no memory to load an acquisition");
    if (load->resident)
        resident_unref(load->resident);
    load->resident = resident;
    int fd = load->master_fd;
    load->master_fd = -1;
    load->state = LOAD_INDEXING;
    metrics.loads_total++;
    int rc = kept_open_start(&load->opening, load->loads->loop, fd, load->path, on_opened, load);
    return rc ? error_set(err, rc, "no memory to load an acquisition") : 0;
}
