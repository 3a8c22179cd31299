/* SPDX-License-Identifier: Apache-2.0
 *
 * framestow-reader: the child of one load, and the only program that calls HDF5. It is started
 * by framestowd (source.c) with a socket as descriptor 3, gives up its rights (confine.c), gets
 * the master's descriptor, asks for the files that the master names, and answers with the index
 * in a sealed memfd or with what is wrong. It ends by _exit: HDF5's state after a damaged file
 * is nobody's to tidy up. */
#define H5_USE_110_API 1
#include "reader.h"

#include "confine.h"
#include "reader_companion.h"
#include "reader_find.h"
#include "reader_join.h"
#include "reader_mask.h"
#include "reader_msg.h"
#include "reader_table.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define ALIVE_NS UINT64_C(500000000)

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* ---- to the parent --------------------------------------------------------------------------- */

/* Nothing is left to do when the parent does not listen. */
static void tell(struct reader *reader, struct reader_msg *msg, int fd)
{
    if (reader_msg_send(reader->socket, msg, fd) != 0)
        _exit(EXIT_FAILURE);
    reader->alive_ns = now_ns();
}

void reader_alive(struct reader *reader)
{
    if (now_ns() - reader->alive_ns < ALIVE_NS)
        return;
    struct reader_msg msg;
    memset(&msg, 0, offsetof(struct reader_msg, text));
    msg.type = READER_ALIVE;
    tell(reader, &msg, -1);
}

static void on_read(void *data)
{
    reader_alive(data);
}

static void say(struct reader *reader, enum reader_msg_type type, int code, const char *text)
{
    struct reader_msg msg;
    memset(&msg, 0, offsetof(struct reader_msg, text));
    msg.type = type;
    msg.code = code;
    reader_msg_text(&msg, text, NULL);
    tell(reader, &msg, -1);
}

void reader_warn(struct reader *reader, const char *format, ...)
{
    struct stow_error text;
    va_list args;
    va_start(args, format);
    error_vset(&text, 0, format, args);
    va_end(args);
    say(reader, READER_WARNING, 0, text.text);
}

/* flags: NULL: no pixel is flagged. spare: the last file is not used. */
static int send_index(struct reader *reader, const struct reader_shape *shape,
                      const struct reader_table *table, const uint8_t *flags, bool spare,
                      struct stow_error *err)
{
    struct reader_msg msg;
    int status = 0;
    int fd = memfd_create("framestow-index", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return error_errno(err, errno, "cannot make a memfd for the index");
    int wrong = reader_table_write(table, shape, flags, fd);
    if (wrong)
        status = error_errno(err, wrong, "cannot write the index");
    if (!status && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL))
        status = error_errno(err, errno, "cannot seal the index");
    if (!status) {
        memset(&msg, 0, offsetof(struct reader_msg, text));
        msg.type = READER_INDEX;
        msg.flags = spare ? READER_SPARE_FILE : 0;
        msg.shape = *shape;
        msg.shape.has_flags = flags != NULL;
        tell(reader, &msg, fd);
    }
    close(fd);
    return status;
}

/* ---- files ----------------------------------------------------------------------------------- */

static struct reader_file *add_file(struct reader *reader, const char *name)
{
    if (reader->n_files == reader->room) {
        size_t room = reader->room ? 2 * reader->room : 64;
        struct reader_file **files = realloc(reader->files, room * sizeof(struct reader_file *));
        if (!files)
            return NULL;
        reader->files = files;
        reader->room = room;
    }
    struct reader_file *file = calloc(1, sizeof(*file));
    char *copy = strdup(name);
    if (!file || !copy) {
        free(file);
        free(copy);
        return NULL;
    }
    *file = (struct reader_file){.name = copy,
                                 .hid = H5I_INVALID_HID,
                                 .io = {.fd = -1, .on_read = on_read, .data = reader}};
    reader_file_show(file, name);
    reader->files[reader->n_files++] = file;
    return file;
}

int reader_ask(struct reader *reader, const char *name, size_t *file, struct stow_error *err)
{
    for (size_t i = reader->n_files; i-- > 1;)
        if (strcmp(reader->files[i]->name, name) == 0) {
            *file = i;
            return 0;
        }
    if (!*name || strlen(name) >= READER_PATH)
        return error_set(err, STOW_INVALID, "%s: a link names a file of no or more than %d bytes",
                         reader->files[0]->shown, READER_PATH);
    if (reader->n_files > READER_MAX_FILES)
        return error_set(err, STOW_LIMIT, "%s names more than %u files", reader->files[0]->shown,
                         READER_MAX_FILES);
    *file = reader->n_files;
    return add_file(reader, name)
               ? 0
               : error_set(err, STOW_NOMEM, "out of memory for the list of files");
}

/* The bytes of a path up to its last slash. */
static size_t folder_bytes(const char *path)
{
    const char *slash = path ? strrchr(path, '/') : NULL;
    return slash ? (size_t)(slash - path) + 1 : 0;
}

int reader_ask_beside(struct reader *reader, size_t from, const char *name, size_t *file,
                      struct stow_error *err)
{
    const char *real = reader->files[from]->real, *master = reader->files[0]->real;
    size_t n = folder_bytes(real);
    char path[2 * READER_PATH];
    /* What lies beside the master is asked for by its short name, as the master would. */
    if (name[0] == '/' || n == 0 || (n == folder_bytes(master) && memcmp(real, master, n) == 0))
        return reader_ask(reader, name, file, err);
    snprintf(path, sizeof(path), "%.*s%s", (int)n, real, name);
    return reader_ask(reader, path, file, err);
}

/* Ask for files up to a window past this one. */
static void ask_ahead(struct reader *reader, size_t file)
{
    struct reader_msg msg;
    for (; reader->n_sent < reader->n_files && reader->n_sent < file + READER_WINDOW;
         reader->n_sent++) {
        memset(&msg, 0, offsetof(struct reader_msg, text));
        msg.type = READER_NEED;
        msg.file = (uint32_t)reader->n_sent;
        reader_msg_text(&msg, reader->files[reader->n_sent]->name, NULL);
        tell(reader, &msg, -1);
    }
}

static void take_answer(struct reader_file *file, const struct reader_msg *msg, int fd)
{
    struct stat st;
    file->answered = true;
    file->code = msg->code;
    file->io.fd = fd;
    if (fd < 0 && !file->code)
        file->code = EMFILE; /* it was sent and had no room here */
    else if (fd >= 0 && fstat(fd, &st) < 0)
        file->code = errno;
    else if (fd >= 0)
        file->io.size = (uint64_t)st.st_size;
    if (msg->text[0]) {
        reader_file_show(file, msg->text);
        file->real = strdup(msg->text);
    }
}

/* Read one answer. STOW_GONE: the parent is gone, or talks nonsense. */
static int read_answer(struct reader *reader)
{
    struct reader_msg msg;
    int fd;
    if (reader_msg_receive(reader->socket, &msg, &fd) != 0)
        return STOW_GONE;
    if (msg.type != READER_FILE || msg.file >= reader->n_sent ||
        reader->files[msg.file]->answered) {
        if (fd >= 0)
            close(fd);
        return STOW_GONE;
    }
    take_answer(reader->files[msg.file], &msg, fd);
    reader->alive_ns = now_ns();
    return 0;
}

static int check_answer(const struct reader_file *file, struct stow_error *err)
{
    if (file->code == READER_NOT_REGULAR)
        return error_set(err, STOW_SOURCE, "%s is not a regular file", file->shown);
    if (file->code == ENOENT || file->code == ENOTDIR)
        return error_set(err, STOW_MISSING, "%s is missing: no such file", file->shown);
    if (file->code)
        return error_errno(err, file->code, "%s cannot be opened%s", file->shown,
                           file->code == EMFILE
                               ? " (the daemon may hold no more files: raise its limit of open "
                                 "files, ulimit -n or LimitNOFILE)"
                               : "");
    return 0;
}

int reader_await(struct reader *reader, size_t number, struct stow_error *err)
{
    const struct reader_file *file = reader->files[number];
    /* Only files before this one are done with, so the window must begin at the first
     * unanswered. */
    for (size_t i = 1; i <= number && !file->answered; i++)
        while (!reader->files[i]->answered) {
            ask_ahead(reader, i);
            if (read_answer(reader) != 0)
                return error_set(err, STOW_GONE, "framestowd is gone");
        }
    return check_answer(file, err);
}

int reader_open(struct reader *reader, size_t number, struct stow_error *err)
{
    struct reader_file *file = reader->files[number];
    if (!file->tried) {
        int status = reader_await(reader, number, &file->why);
        if (status == STOW_GONE)
            return error_set(err, STOW_GONE, "framestowd is gone");
        file->tried = true;
        if (!status)
            status = reader_file_open(file, &file->why);
        if (!status)
            file->why.code = 0;
    }
    if (file->why.code && err)
        *err = file->why;
    return file->why.code;
}

/* ---- the work -------------------------------------------------------------------------------- */

static int receive_start(struct reader *reader)
{
    struct reader_msg msg;
    int fd;
    if (reader_msg_receive(reader->socket, &msg, &fd) != 0 || msg.type != READER_START)
        return STOW_GONE;
    reader->allow_gaps = (msg.flags & READER_ALLOW_GAPS) != 0;
    reader->dataset = strdup(reader_msg_more(&msg));
    struct reader_file *master = add_file(reader, msg.text);
    if (!reader->dataset || !master)
        return STOW_NOMEM;
    reader->n_sent = 1;
    take_answer(master, &msg, fd);
    return 0;
}

static int run(struct reader *reader, struct stow_error *err)
{
    struct reader_part *parts;
    size_t n_parts;
    struct reader_shape shape;
    struct reader_table table = {0};
    uint8_t *flags = NULL;
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    int status = reader_open(reader, 0, err);
    if (!status)
        status = reader_find(reader, &parts, &n_parts, err);
    if (!status)
        status = reader_join(reader, parts, n_parts, &shape, &table, err);
    if (!status)
        flags = reader_mask(reader, &shape);
    bool spare = !status && reader_companion(reader, &shape);
    return status ? status : send_index(reader, &shape, &table, flags, spare, err);
}

int main(void)
{
    struct reader reader = {.socket = READER_FD};
    struct stow_error err = {0};
    struct stat st;
    if (fstat(READER_FD, &st) < 0 || !S_ISSOCK(st.st_mode)) {
        fprintf(stderr, "framestow-reader is started by framestowd and does nothing by itself\n");
        return 2;
    }
    /* A terminal or a service manager signals the whole group; the parent decides about this
     * child. */
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    reader.alive_ns = now_ns();
    int confined = confine_process(READER_FD);
    if (receive_start(&reader) != 0)
        _exit(EXIT_FAILURE);
    int status = confined ? error_errno(&err, confined, "the reader cannot give up its rights")
                          : run(&reader, &err);
    if (status)
        say(&reader, READER_FAIL, err.code ? err.code : status, err.text);
    _exit(status ? EXIT_FAILURE : EXIT_SUCCESS);
}
