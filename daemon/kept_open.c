/* SPDX-License-Identifier: Apache-2.0
 *
 * On the pool: the header, and short tables with it > the parts of long tables side by side, since one thread takes as
 * long for those as all threads for a hundred times the payload > their check > done. */
#include "kept_open.h"

#include "large.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PART_BYTES (UINT64_C(1) << 20) /* of tables: what is no longer is read by one thread */
#define MAX_PARTS 8u

struct part {
    uv_work_t work;
    struct kept_open *open;
    uint64_t first, end; /* of the tables */
    struct stow_error err;
};

struct kept_open {
    uv_work_t work;
    uv_loop_t *loop;
    int fd;
    char *path;
    kept_open_fn done; /* NULL: cancelled */
    void *data;
    struct kept kept;
    uint8_t *tables; /* until they are parsed */
    struct part parts[MAX_PARTS];
    unsigned n_parts, n_running;
    struct stow_error err;
};

static unsigned n_open;

unsigned kept_open_count(void)
{
    return n_open;
}

int kept_pread(int fd, const char *path, uint8_t *to, uint64_t bytes, uint64_t at,
               struct stow_error *err)
{
    for (uint64_t have = 0; have < bytes;) {
        ssize_t got = pread(fd, to + have, bytes - have, (off_t)(at + have));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return error_errno(err, errno, "%s at byte %llu", path,
                               (unsigned long long)(at + have));
        if (got == 0)
            return error_set(err, STOW_SOURCE,
                             "%s ends at byte %llu, it was cut while it was read; copy it again",
                             path, (unsigned long long)(at + have));
        have += (uint64_t)got;
    }
    return 0;
}

static uint64_t table_bytes(const struct kept_open *open)
{
    return open->kept.payload_at - KEPT_HEADER_BYTES;
}

static void part_on_pool(uv_work_t *work)
{
    struct part *part = work->data;
    const struct kept_open *open = part->open;
    kept_pread(open->fd, open->path, open->tables + part->first, part->end - part->first,
               KEPT_HEADER_BYTES + part->first, &part->err);
}

static void parse_on_pool(uv_work_t *work)
{
    struct kept_open *open = work->data;
    uint8_t *tables = open->tables;
    open->tables = NULL;
    if (kept_parse(&open->kept, tables, &open->err)) {
        error_prefix(&open->err, "%s", open->path);
        kept_fini(&open->kept);
    }
}

/* The tables' parts; one of them is read at once. */
static int begin_tables(struct kept_open *open)
{
    uint64_t bytes = table_bytes(open), n = bytes / PART_BYTES;
    open->tables = large_alloc(bytes);
    if (!open->tables)
        return error_set(&open->err, STOW_NOMEM, "no memory for the tables of %s (%llu bytes)",
                         open->path, (unsigned long long)bytes);
    open->n_parts = n < 1 ? 1 : n < MAX_PARTS ? (unsigned)n : MAX_PARTS;
    for (unsigned i = 0; i < open->n_parts; i++)
        open->parts[i] = (struct part){.open = open,
                                       .first = bytes * i / open->n_parts,
                                       .end = bytes * (i + 1) / open->n_parts,
                                       .work = {.data = &open->parts[i]}};
    if (open->n_parts > 1)
        return 0;
    part_on_pool(&open->parts[0].work);
    open->err = open->parts[0].err;
    if (!open->err.code)
        parse_on_pool(&open->work);
    return 0;
}

/* A file that is too short for its magic is none of ours; that HDF5 cannot read it either is said there. */
static void read_on_pool(uv_work_t *work)
{
    struct kept_open *open = work->data;
    uint8_t header[KEPT_HEADER_BYTES] = {0};
    ssize_t got = pread(open->fd, header, sizeof(header), 0);
    struct stat st;
    if (got < 0 || !kept_is(header, (size_t)got))
        return;
    int rc;
    if (fstat(open->fd, &st))
        rc = error_errno(&open->err, errno, "%s", open->path);
    else if ((size_t)got < sizeof(header))
        rc = error_set(&open->err, STOW_SOURCE, "%s is cut: it ends in its header; copy it again",
                       open->path);
    else if (kept_head(&open->kept, header, (uint64_t)st.st_size, &open->err))
        rc = error_prefix(&open->err, "%s", open->path);
    else
        rc = begin_tables(open);
    if (rc)
        kept_fini(&open->kept);
}

static void finish(struct kept_open *open)
{
    n_open--;
    if (open->err.code)
        kept_fini(&open->kept);
    if (open->done) {
        open->done(open->data, open->fd, &open->kept, &open->err);
    } else {
        close(open->fd);
    }
    kept_fini(&open->kept);
    free(open->tables);
    free(open->path);
    free(open);
}

static void on_parsed(uv_work_t *work, int status)
{
    (void)status; /* never cancelled in the queue */
    finish(work->data);
}

static void on_part(uv_work_t *work, int status)
{
    struct part *part = work->data;
    struct kept_open *open = part->open;
    (void)status;
    if (part->err.code && !open->err.code)
        open->err = part->err;
    if (--open->n_running > 0)
        return;
    if (open->err.code || !open->done)
        finish(open);
    else
        uv_queue_work(open->loop, &open->work, parse_on_pool, on_parsed);
}

static void on_read(uv_work_t *work, int status)
{
    struct kept_open *open = work->data;
    (void)status;
    if (!open->tables || open->err.code || !open->done) {
        finish(open);
        return;
    }
    open->n_running = open->n_parts;
    for (unsigned i = 0; i < open->n_parts; i++)
        uv_queue_work(open->loop, &open->parts[i].work, part_on_pool, on_part);
}

int kept_open_start(struct kept_open **open_out, uv_loop_t *loop, int fd, const char *path,
                    kept_open_fn done, void *data)
{
    struct kept_open *open = malloc(sizeof(*open));
    char *copy = strdup(path);
    if (!open || !copy) {
        free(open);
        free(copy);
        close(fd);
        return STOW_NOMEM;
    }
    *open = (struct kept_open){.loop = loop, .fd = fd, .path = copy, .done = done, .data = data};
    open->work.data = open;
    n_open++;
    uv_queue_work(loop, &open->work, read_on_pool, on_read);
    *open_out = open;
    return 0;
}

void kept_open_cancel(struct kept_open *open)
{
    open->done = NULL;
}
