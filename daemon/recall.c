/* SPDX-License-Identifier: Apache-2.0 */
#include "recall.h"

#define LOG_MODULE "index"
#include "log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SETTLED_NS INT64_C(2000000000)

static unsigned n_working;

unsigned recall_count(void)
{
    return n_working;
}

static void warn_once(const struct stow_error *err, const char *what)
{
    static bool warned; /* loop thread */
    if (!warned)
        LOG_WARN("indexes of sources are not %s: %s; loads go on without", what, err->text);
    warned = true;
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* Strings that live as long as the work does. */
struct key_memory {
    char build[96];
    char *path, *dataset;
};

/* A program that was changed may say something else. */
static void name_build(char *build, size_t room, const char *reader)
{
    struct stat st = {.st_size = 0};
    char found[512];
    struct stow_error err;
    if (!reader && source_find_reader(found, sizeof(found), &err) == 0)
        reader = found;
    if (reader)
        stat(reader, &st);
    snprintf(build, room, "%s %" PRIu64 " %" PRId64 ".%09ld", STOW_VERSION_TEXT,
             (uint64_t)st.st_size, (int64_t)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
}

static int make_key(struct index_key *key, struct key_memory *memory, const char *reader,
                    const struct source_options *options, const struct source_file *master)
{
    name_build(memory->build, sizeof(memory->build), reader);
    memory->path = strdup(options->path);
    memory->dataset = strdup(options->dataset ? options->dataset : "");
    *key = (struct index_key){.build = memory->build,
                              .path = memory->path,
                              .dataset = memory->dataset,
                              .allow_gaps = options->allow_gaps,
                              .dev = master->dev,
                              .ino = master->ino,
                              .size = master->size,
                              .mtime_ns = master->mtime_ns};
    return memory->path && memory->dataset ? 0 : STOW_NOMEM;
}

static void free_key(struct key_memory *memory)
{
    free(memory->path);
    free(memory->dataset);
}

/* ---- looking --------------------------------------------------------------------------------- */

struct recall {
    uv_work_t work;
    const char *folder;
    struct recall_callbacks callbacks;
    bool working, cancelled;
    struct key_memory memory;
    struct index_key key;
    struct index_entry entry;
    int status;
    struct stow_error err;
    struct source_file *files; /* [entry.n_files] as they are now */
    bool *given;
    size_t n_asked, n_given;
    int master_fd;
};

static void free_files(struct recall *recall)
{
    for (size_t i = 0; recall->files && i < recall->entry.n_files; i++) {
        if (recall->files[i].fd >= 0)
            close(recall->files[i].fd);
        free(recall->files[i].path);
    }
    free(recall->files);
    free(recall->given);
    recall->files = NULL;
    recall->given = NULL;
}

static void recall_free(struct recall *recall)
{
    free_files(recall);
    if (recall->master_fd >= 0)
        close(recall->master_fd);
    index_cache_free(&recall->entry);
    free_key(&recall->memory);
    free(recall);
}

static void finish(struct recall *recall, struct source *source)
{
    int fd = recall->master_fd;
    struct recall_callbacks callbacks = recall->callbacks;
    if (!source)
        recall->master_fd = -1;
    recall_free(recall);
    callbacks.on_done(callbacks.data, source, source ? -1 : fd);
}

static bool is_same(const struct index_file *was, const struct source_file *now)
{
    if (was->code)
        return now->fd < 0 && now->errno_value == was->code;
    return now->fd >= 0 && now->dev == was->dev && now->ino == was->ino && now->size == was->size &&
           now->mtime_ns == was->mtime_ns;
}

/* Those that the source has not taken. */
static void drop_spare(struct recall *recall)
{
    const struct index_entry *entry = &recall->entry;
    for (size_t i = entry->n_files - entry->n_spare; i < entry->n_files; i++) {
        if (recall->files[i].fd >= 0)
            close(recall->files[i].fd);
        free(recall->files[i].path);
    }
}

/* All files are here. */
static void decide(struct recall *recall)
{
    struct source *source = NULL;
    bool same = true;
    for (size_t i = 1; i < recall->entry.n_files; i++)
        same = same && is_same(&recall->entry.files[i], &recall->files[i]);
    if (same) {
        recall->files[0].fd = recall->master_fd;
        if (source_from_entry(&source, &recall->entry, recall->files) == 0) {
            drop_spare(recall);
            free(recall->files);
            recall->files = NULL;
            recall->master_fd = -1;
        } else {
            recall->files[0].fd = -1;
        }
    }
    finish(recall, source);
}

/* As many are asked for at once as the reader asks for. */
static void ask(struct recall *recall)
{
    while (recall->n_asked < recall->entry.n_files &&
           recall->n_asked - recall->n_given < READER_WINDOW) {
        size_t file = recall->n_asked++;
        recall->callbacks.on_need(recall->callbacks.data, (uint32_t)file,
                                  recall->entry.files[file].name);
    }
}

static int begin_files(struct recall *recall, const char *path)
{
    size_t n = recall->entry.n_files;
    recall->files = calloc(n, sizeof(*recall->files));
    recall->given = calloc(n, sizeof(*recall->given));
    if (!recall->files || !recall->given)
        return STOW_NOMEM;
    for (size_t i = 0; i < n; i++)
        recall->files[i].fd = -1;
    recall->files[0].path = strdup(path);
    recall->files[0].dev = recall->key.dev;
    recall->files[0].ino = recall->key.ino;
    recall->files[0].size = recall->key.size;
    recall->files[0].mtime_ns = recall->key.mtime_ns;
    recall->given[0] = true;
    recall->n_asked = recall->n_given = 1;
    return recall->files[0].path ? 0 : STOW_NOMEM;
}

static void look_run(uv_work_t *work)
{
    struct recall *recall = work->data;
    recall->status = index_cache_read(recall->folder, &recall->key, &recall->entry, &recall->err);
}

static void on_looked(uv_work_t *work, int status)
{
    struct recall *recall = work->data;
    (void)status; /* never cancelled in the queue */
    n_working--;
    recall->working = false;
    if (recall->cancelled) {
        recall_free(recall);
        return;
    }
    if (recall->status && recall->status != STOW_UNKNOWN)
        warn_once(&recall->err, "read");
    if (recall->status || begin_files(recall, recall->key.path))
        finish(recall, NULL);
    else if (recall->entry.n_files == 1)
        decide(recall);
    else
        ask(recall);
}

int recall_start(struct recall **recall_out, uv_loop_t *loop, const char *folder,
                 const char *reader, int master_fd, const struct source_options *options,
                 const struct recall_callbacks *callbacks)
{
    struct recall *recall = calloc(1, sizeof(*recall));
    struct stat st;
    if (!recall) {
        close(master_fd);
        return STOW_NOMEM;
    }
    recall->folder = folder;
    recall->callbacks = *callbacks;
    recall->master_fd = master_fd;
    struct source_file master = {.fd = master_fd};
    if (fstat(master_fd, &st) == 0)
        source_identify(&master, &st);
    if (make_key(&recall->key, &recall->memory, reader, options, &master)) {
        recall_free(recall);
        return STOW_NOMEM;
    }
    recall->work.data = recall;
    recall->working = true;
    n_working++;
    uv_queue_work(loop, &recall->work, look_run, on_looked);
    *recall_out = recall;
    return 0;
}

void recall_give(struct recall *recall, uint32_t file, int fd, const char *path, int errno_value)
{
    struct stat st;
    if (file >= recall->n_asked || !recall->given || recall->given[file]) {
        if (fd >= 0)
            close(fd);
        return;
    }
    struct source_file *to = &recall->files[file];
    const char *name = path && *path ? path : recall->entry.files[file].name;
    to->path = strdup(name);
    to->errno_value = errno_value > 0 ? errno_value : ENOENT;
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && to->path) {
        to->fd = fd;
        to->errno_value = 0;
        source_identify(to, &st);
    } else if (fd >= 0) {
        to->errno_value = -1; /* of no entry that could be used */
        close(fd);
    }
    recall->given[file] = true;
    if (++recall->n_given == recall->entry.n_files)
        decide(recall);
    else
        ask(recall);
}

void recall_cancel(struct recall *recall)
{
    recall->cancelled = true;
    if (!recall->working)
        recall_free(recall);
}

/* ---- keeping --------------------------------------------------------------------------------- */

struct keeping {
    uv_work_t work;
    const char *folder;
    struct key_memory memory;
    struct index_key key;
    struct index_entry entry; /* files and strings are its own, the bytes shared */
    struct source_bytes *bytes;
    int status;
    struct stow_error err;
};

static void keeping_free(struct keeping *keeping)
{
    for (size_t i = 0; keeping->entry.files && i < keeping->entry.n_files; i++)
        free((char *)keeping->entry.files[i].name);
    for (size_t i = 0; keeping->entry.warnings && i < keeping->entry.n_warnings; i++)
        free((char *)keeping->entry.warnings[i]);
    free(keeping->entry.files);
    free(keeping->entry.warnings);
    source_bytes_unref(keeping->bytes);
    free_key(&keeping->memory);
    free(keeping);
}

static void keep_run(uv_work_t *work)
{
    struct keeping *keeping = work->data;
    keeping->status =
        index_cache_write(keeping->folder, &keeping->key, &keeping->entry, &keeping->err);
}

static void on_kept(uv_work_t *work, int status)
{
    struct keeping *keeping = work->data;
    (void)status;
    n_working--;
    if (keeping->status)
        warn_once(&keeping->err, "kept");
    keeping_free(keeping);
}

static bool copy_file(struct index_file *to, const struct source_file *file, const char *name)
{
    *to = (struct index_file){.name = strdup(name),
                              .code = file->fd < 0 ? file->errno_value : 0,
                              .dev = file->dev,
                              .ino = file->ino,
                              .size = file->size,
                              .mtime_ns = file->mtime_ns};
    return to->name != NULL;
}

/* Strings are copied: the source may go first. False: no memory. */
static bool copy_entry(struct index_entry *to, const struct source *source)
{
    const struct source_index *index = source_index(source);
    const struct source_file *spare = source_spare(source);
    to->files = calloc(index->n_files + 1, sizeof(*to->files));
    to->warnings = calloc(index->n_warnings + 1, sizeof(*to->warnings));
    if (!to->files || !to->warnings)
        return false;
    to->n_spare = spare != NULL;
    to->n_files = index->n_files + to->n_spare;
    to->n_warnings = index->n_warnings;
    for (size_t i = 0; i < index->n_files; i++)
        if (!copy_file(&to->files[i], &index->files[i], i ? source_asked_name(source, i) : ""))
            return false;
    if (spare && !copy_file(&to->files[index->n_files], spare, spare->path))
        return false;
    for (size_t i = 0; i < index->n_warnings; i++) {
        to->warnings[i] = strdup(index->warnings[i]);
        if (!to->warnings[i])
            return false;
    }
    return true;
}

/* A file that was written a moment ago may be written again in the same tick of its file system's clock, and look as if it was not;
 * of some that is 2 s. One from the future says nothing. */
static bool is_settled(const struct source *source)
{
    const struct source_index *index = source_index(source);
    const struct source_file *spare = source_spare(source);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t now_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    for (size_t i = 0; i < index->n_files; i++)
        if (index->files[i].fd >= 0 && index->files[i].mtime_ns > now_ns - SETTLED_NS)
            return false;
    return !spare || spare->fd < 0 || spare->mtime_ns <= now_ns - SETTLED_NS;
}

void recall_keep(uv_loop_t *loop, const char *folder, const char *reader,
                 const struct source_options *options, const struct source *source)
{
    struct keeping *keeping = is_settled(source) ? calloc(1, sizeof(*keeping)) : NULL;
    if (!keeping)
        return;
    keeping->folder = folder;
    keeping->bytes = source_share_bytes(source, &keeping->entry.shape);
    keeping->entry.bytes = keeping->bytes->at;
    keeping->entry.n_bytes = keeping->bytes->bytes;
    if (!copy_entry(&keeping->entry, source) ||
        make_key(&keeping->key, &keeping->memory, reader, options,
                 &source_index(source)->files[0])) {
        keeping_free(keeping);
        return;
    }
    keeping->work.data = keeping;
    n_working++;
    uv_queue_work(loop, &keeping->work, keep_run, on_kept);
}
