/* SPDX-License-Identifier: Apache-2.0 */
#include "source_inside.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define SILENT_MS 60000
#define MAX_WARNINGS 64
#define MAX_MESSAGES 1024 /* in one turn; more than a socket of one whose child is gone holds */

unsigned n_sources;

unsigned source_count(void)
{
    return n_sources;
}

static void on_poll(uv_poll_t *poll, int status, int events);

/* ---- the end, good or bad -------------------------------------------------------------------- */

static void on_closed(uv_handle_t *handle)
{
    struct source *source = handle->data;
    if (--source->open_handles == 0) {
        free(source);
        n_sources--;
    }
}

static void kill_child(struct source *source)
{
    if (source->running)
        child_kill(&source->child);
}

/* Say the outcome once. The callback may close the source: nothing is touched after it. */
static void finish(struct source *source, int status, const struct stow_error *err)
{
    if (source->ended)
        return;
    source->ended = true;
    uv_timer_stop(&source->timer);
    uv_poll_stop(&source->poll);
    kill_child(source); /* it has nothing more to say, and may be a hostile file's by now */
    struct stow_error clean = {.code = status};
    if (status)
        reader_msg_clean(clean.text, sizeof(clean.text), err->text);
    source->callbacks.on_done(source->callbacks.data, status, status ? &clean : NULL);
}

/* The child broke the protocol: it is broken or taken over, most likely by the file. */
static void fail_protocol(struct source *source, const char *what)
{
    struct stow_error err;
    error_set(&err, STOW_SOURCE,
              "%s: the reader's answer is refused (%s); the file may be damaged or hostile",
              source->index.files[0].path, what);
    finish(source, STOW_SOURCE, &err);
}

/* ---- files ----------------------------------------------------------------------------------- */

int source_add_file(struct source *source)
{
    struct source_index *index = &source->index;
    if (index->n_files == source->room) {
        size_t room = source->room ? 2 * source->room : 8;
        struct source_file *files = realloc(index->files, room * sizeof(*files));
        if (!files)
            return STOW_NOMEM;
        index->files = files;
        struct slot *slots = realloc(source->slots, room * sizeof(*slots));
        if (!slots)
            return STOW_NOMEM;
        source->slots = slots;
        source->room = room;
    }
    index->files[index->n_files] = (struct source_file){.fd = -1};
    source->slots[index->n_files] = (struct slot){0};
    index->n_files++;
    return 0;
}

void source_identify(struct source_file *file, const struct stat *st)
{
    file->dev = st->st_dev;
    file->ino = st->st_ino;
    file->size = (uint64_t)st->st_size;
    file->mtime_ns = (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

/* Take fd as this file if it is a regular one. 0, an errno or READER_NOT_REGULAR, and fd is
 * closed. */
static int adopt(struct source_file *file, int fd)
{
    struct stat st;
    int status = fstat(fd, &st) < 0 ? errno : 0;
    if (!status && !S_ISREG(st.st_mode))
        status = S_ISDIR(st.st_mode) ? EISDIR : READER_NOT_REGULAR;
    if (status) {
        close(fd);
        return status;
    }
    file->fd = fd;
    source_identify(file, &st);
    return 0;
}

/* Send the answers that are there. A full socket buffer leaves the rest to the next writable
 * event. */
static void pump(struct source *source)
{
    struct source_index *index = &source->index;
    struct reader_msg *msg = &source->msg;
    for (size_t i = source->first_unsent; i < index->n_files; i++) {
        struct slot *slot = &source->slots[i];
        if (slot->given && !slot->sent) {
            *msg =
                (struct reader_msg){.type = READER_FILE, .file = (uint32_t)i, .code = slot->code};
            reader_msg_text(msg, index->files[i].path, NULL);
            int status = reader_msg_send(source->socket, msg, index->files[i].fd);
            if (status == EAGAIN || status == ENOBUFS) {
                uv_poll_start(&source->poll, UV_READABLE | UV_WRITABLE, on_poll);
                return;
            }
            /* When the child is gone its end is told by on_exit; nothing else may fail here. */
            if (status == ETOOMANYREFS || status == ENOMEM)
                child_kill(&source->child);
            slot->sent = true;
        }
        if (slot->sent && i == source->first_unsent)
            source->first_unsent++;
    }
    uv_poll_start(&source->poll, UV_READABLE, on_poll);
}

/* While files are asked for the child waits for the client, and its silence is no fault. */
static void rearm_timer(struct source *source)
{
    if (source->n_given < source->n_asked)
        uv_timer_stop(&source->timer);
    else
        uv_timer_again(&source->timer);
}

void source_give(struct source *source, uint32_t file, int fd, const char *path, int errno_value)
{
    struct source_index *index = &source->index;
    if (source->ended || file == 0 || file >= index->n_files || source->slots[file].given) {
        if (fd >= 0)
            close(fd);
        return;
    }
    struct slot *slot = &source->slots[file];
    slot->code = fd >= 0 ? adopt(&index->files[file], fd) : errno_value > 0 ? errno_value : ENOENT;
    index->files[file].errno_value = slot->code > 0 ? slot->code : 0;
    if (path && *path && strlen(path) < READER_PATH) {
        char *copy = strdup(path);
        if (copy) {
            free(index->files[file].path);
            index->files[file].path = copy;
        }
    }
    slot->given = true;
    source->n_given++;
    rearm_timer(source);
    pump(source);
}

/* ---- what the child says --------------------------------------------------------------------- */

static void take_need(struct source *source)
{
    const struct reader_msg *msg = &source->msg;
    struct source_index *index = &source->index;
    size_t bytes = strlen(msg->text);
    if (msg->file != index->n_files || msg->file > READER_MAX_FILES || bytes == 0 ||
        bytes >= READER_PATH || source->n_asked - source->n_given >= READER_WINDOW) {
        fail_protocol(source, "a file asked for out of turn, or too many files at once");
        return;
    }
    char *path = strdup(msg->text), *asked = strdup(msg->text);
    if (!path || !asked || source_add_file(source)) {
        free(path);
        free(asked);
        fail_protocol(source, "no memory for the list of files it asks for");
        return;
    }
    index->files[msg->file].path = path;
    source->slots[msg->file].asked = asked;
    source->n_asked++;
    rearm_timer(source);
    source->callbacks.on_need(source->callbacks.data, msg->file, path);
}

static void take_warning(struct source *source)
{
    struct source_index *index = &source->index;
    char text[sizeof(((struct stow_error *)0)->text)];
    if (index->n_warnings == MAX_WARNINGS)
        return;
    reader_msg_clean(text, sizeof(text), source->msg.text);
    char **warnings = realloc(index->warnings, (index->n_warnings + 1) * sizeof(*warnings));
    if (!warnings)
        return;
    index->warnings = warnings;
    char *copy = strdup(text);
    if (copy)
        warnings[index->n_warnings++] = copy;
}

static void take_failure(struct source *source)
{
    int code = source->msg.code;
    struct stow_error err;
    if (code >= 0 || code < STOW_INTERNAL) /* no code of ours */
        code = STOW_SOURCE;
    error_set(&err, code, "%s", source->msg.text);
    finish(source, code, &err);
}

/* ---- the index ------------------------------------------------------------------------------- */

/* Map the memfd if nobody can change it any more. */
static const char *map_index(struct source *source, int fd, uint64_t bytes)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
    struct stat st;
    if (fd < 0 || (fcntl(fd, F_GET_SEALS) & seals) != seals || fcntl(fd, F_GET_SEALS) < 0)
        return "an index without seals";
    if (fstat(fd, &st) < 0 || st.st_size < 0 || (uint64_t)st.st_size != bytes)
        return "an index of another size";
    struct source_bytes *table = malloc(sizeof(*table));
    void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (!table || map == MAP_FAILED) {
        free(table);
        if (map != MAP_FAILED)
            munmap(map, bytes);
        return "an index that cannot be mapped";
    }
    *table = (struct source_bytes){
        .at = map, .bytes = bytes, .memory = map, .memory_bytes = bytes, .refs = 1};
    source->bytes = table;
    return NULL;
}

/* The reader asked for this file and found nothing in it: it is none of the acquisition's. But it could be one day. */
static const char *spare_last_file(struct source *source)
{
    struct source_index *index = &source->index;
    if (index->n_files < 2)
        return "no file where one is not used";
    struct source_file *file = &index->files[--index->n_files];
    if (file->fd >= 0)
        close(file->fd);
    free(file->path);
    source->spare = *file;
    source->spare.path = source->slots[index->n_files].asked;
    source->slots[index->n_files].asked = NULL;
    return NULL;
}

static void take_index(struct source *source, int fd)
{
    struct source_parts parts;
    int rc = STOW_SOURCE;
    source->shape = source->msg.shape;
    const char *wrong = source_check_shape(&source->shape, &parts);
    if (!wrong && source->msg.flags & READER_SPARE_FILE)
        wrong = spare_last_file(source);
    if (!wrong)
        wrong = map_index(source, fd, parts.bytes);
    if (!wrong)
        wrong = source_use_table(source, &parts, &rc);
    if (wrong && rc == STOW_NOMEM) {
        struct stow_error err;
        error_set(&err, rc, "%s", wrong);
        finish(source, rc, &err);
    } else if (wrong) {
        fail_protocol(source, wrong);
    } else {
        finish(source, 0, NULL);
    }
}

/* ---- events ---------------------------------------------------------------------------------- */

static void take(struct source *source, int fd)
{
    switch (source->msg.type) {
    case READER_ALIVE: break;
    case READER_NEED: take_need(source); break;
    case READER_WARNING: take_warning(source); break;
    case READER_FAIL: take_failure(source); break;
    case READER_INDEX: take_index(source, fd); break;
    default: fail_protocol(source, "an unknown message");
    }
}

/* Read what is there, but let others have their turn. A callback may close the source, whose struct
 * lives until the loop's next turn. */
static void drain(struct source *source)
{
    for (int i = 0; i < MAX_MESSAGES && !source->ended; i++) {
        int fd;
        int status = reader_msg_receive(source->socket, &source->msg, &fd);
        if (status == EAGAIN)
            return;
        if (status == EBADMSG)
            fail_protocol(source, "half a message");
        else if (status) /* its end is told by on_exit_child; until then the timer watches */
            uv_poll_stop(&source->poll);
        if (status)
            return;
        source->n_heard++;
        rearm_timer(source);
        take(source, fd);
        if (fd >= 0)
            close(fd);
    }
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct source *source = poll->data;
    if (status < 0) {
        uv_poll_stop(poll);
        return;
    }
    if (events & UV_READABLE)
        drain(source);
    if (!source->ended && (events & UV_WRITABLE))
        pump(source);
}

static void on_silent(uv_timer_t *timer)
{
    struct source *source = timer->data;
    struct stow_error err;
    uint64_t heard = source->n_heard;
    drain(source); /* the loop itself may have been late */
    if (source->ended || source->n_heard != heard)
        return;
    error_set(&err, STOW_TIMEOUT,
              "%s: the reader has said nothing for %u s and was stopped; the file's disk may be "
              "stuck, or the file damaged",
              source->index.files[0].path, source->silent_ms / 1000);
    finish(source, STOW_TIMEOUT, &err);
}

static void on_child_closed(uv_handle_t *handle)
{
    struct child *child = handle->data;
    handle->data = child->data;
    on_closed(handle);
}

static void on_exit_child(struct child *child, int exit_status, int signal)
{
    struct source *source = child->data;
    struct stow_error err;
    source->running = false;
    child_close(child, on_child_closed);
    if (!source->ended)
        drain(source); /* what it said before it ended */
    if (source->ended)
        return;
    const char *path = source->index.files[0].path;
    if (signal == SIGXCPU || signal == SIGKILL)
        error_set(&err, STOW_SOURCE,
                  "the reader was ended by signal %d (%s) while reading %s; it ran out of time "
                  "or memory: is the file damaged?",
                  signal, strsignal(signal), path);
    else if (signal)
        error_set(&err, STOW_SOURCE,
                  "the reader ended with signal %d (%s) while reading %s (a damaged HDF5 file?); "
                  "copy it again or check it with h5dump",
                  signal, strsignal(signal), path);
    else
        error_set(&err, STOW_SOURCE,
                  "the reader ended with status %d and no answer while reading %s", exit_status,
                  path);
    finish(source, STOW_SOURCE, &err);
}

/* ---- open and close -------------------------------------------------------------------------- */

const struct source_index *source_index(const struct source *source)
{
    return &source->index;
}

void source_close(struct source *source)
{
    if (!source || source->closed)
        return;
    source->closed = true;
    source->ended = true;
    kill_child(source);          /* reaped by on_exit_child, which closes that handle */
    if (!source->open_handles) { /* it never had a child */
        source_free_index(source);
        free(source);
        n_sources--;
        return;
    }
    uv_close((uv_handle_t *)&source->poll, on_closed);
    uv_close((uv_handle_t *)&source->timer, on_closed);
    close(source->socket);
    source_free_index(source);
}

/* Hand these on, and none of HDF5's own settings: no plug-ins, no locks, no search prefixes. */
static void make_environment(char **env, size_t room)
{
    static const char *const kept[] = {"LD_LIBRARY_PATH=", "ASAN_OPTIONS=", "UBSAN_OPTIONS=",
                                       "TSAN_OPTIONS="};
    static char fixed[][40] = {"LC_ALL=C", "TZ=UTC",
                               "HDF5_PLUGIN_PRELOAD=::", "HDF5_USE_FILE_LOCKING=FALSE"};
    size_t n = 0;
    for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++)
        env[n++] = fixed[i];
    for (char **e = environ; e && *e && n + 1 < room; e++)
        for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++)
            if (strncmp(*e, kept[i], strlen(kept[i])) == 0 && n + 1 < room)
                env[n++] = *e;
    env[n] = NULL;
}

static int spawn(struct source *source, uv_loop_t *loop, const char *program, int child_end)
{
    char name[] = READER_NAME;
    char *args[] = {name, NULL}, *env[16];
    make_environment(env, sizeof(env) / sizeof(env[0]));
    _Static_assert(READER_FD == 3, "child_spawn puts the socket there");
    source->child.data = source;
    source->child.ended = on_exit_child;
    int status = child_spawn(&source->child, loop, program, args, env, child_end);
    source->running = status == 0;
    source->open_handles += source->running;
    return status;
}

/* Start the child and tell it what to read. On failure the caller closes the source. */
static int start(struct source *source, uv_loop_t *loop, const struct source_options *options,
                 const char *program, int child_end, struct stow_error *err)
{
    struct reader_msg *msg = &source->msg;
    *msg = (struct reader_msg){.type = READER_START,
                               .flags = options->allow_gaps ? READER_ALLOW_GAPS : 0};
    if (!reader_msg_text(msg, options->path, options->dataset ? options->dataset : ""))
        return error_set(err, STOW_INVALID, "the names of the file and its dataset are too long");
    int status = reader_msg_send(source->socket, msg, source->index.files[0].fd);
    if (status)
        return error_errno(err, status, "cannot write to the reader");
    status = spawn(source, loop, program, child_end);
    if (status)
        return error_set(err, STOW_INTERNAL, "cannot start %s: %s", program, strerror(status));
    uv_poll_start(&source->poll, UV_READABLE, on_poll);
    uv_timer_start(&source->timer, on_silent, source->silent_ms, source->silent_ms);
    return 0;
}

/* The master as file 0. 0 with the path copied and the descriptor adopted. */
static int add_master(struct source *source, int master_fd, const char *path,
                      struct stow_error *err)
{
    int status = source_add_file(source);
    char *copy = strdup(path);
    if (status || !copy) {
        free(copy);
        close(master_fd);
        return error_set(err, STOW_NOMEM, "out of memory for a load");
    }
    source->index.files[0].path = copy;
    source->slots[0] = (struct slot){.given = true, .sent = true};
    source->first_unsent = 1;
    status = adopt(&source->index.files[0], master_fd);
    if (status == READER_NOT_REGULAR)
        return error_set(err, STOW_SOURCE, "%s is not a regular file", path);
    return status ? error_errno(err, status, "%s", path) : 0;
}

int source_open(struct source **source_out, uv_loop_t *loop, int master_fd,
                const struct source_options *options, const struct source_callbacks *callbacks,
                struct stow_error *err)
{
    char found[512];
    const char *program = options->reader;
    int ends[2] = {-1, -1}, status = 0;
    struct source *source = calloc(1, sizeof(*source));
    if (!source) {
        close(master_fd);
        return error_set(err, STOW_NOMEM, "out of memory for a load");
    }
    source->callbacks = *callbacks;
    source->silent_ms = options->silent_ms ? options->silent_ms : SILENT_MS;
    status = add_master(source, master_fd, options->path, err);
    if (!status && !program) {
        status = source_find_reader(found, sizeof(found), err);
        program = found;
    }
    if (!status && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
        status = error_errno(err, errno, "cannot make a socket for the reader");
    if (!status &&
        (status = uv_poll_init(loop, &source->poll, ends[0])) != 0) { /* makes it non-blocking */
        close(ends[0]);
        close(ends[1]);
        status = error_set(err, STOW_INTERNAL, "cannot watch the reader: %s", uv_strerror(status));
    }
    if (status) {
        source_free_index(source);
        free(source);
        return status;
    }
    uv_timer_init(loop, &source->timer);
    source->poll.data = source->timer.data = source;
    source->open_handles = 2;
    n_sources++;
    source->socket = ends[0];
    status = start(source, loop, options, program, ends[1], err);
    close(ends[1]);
    if (status) {
        source_close(source);
        return status;
    }
    *source_out = source;
    return 0;
}
