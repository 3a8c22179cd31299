/* SPDX-License-Identifier: Apache-2.0 */
#include "kept_open.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct kept_open {
    uv_work_t work;
    int fd;
    char *path;
    kept_open_fn done; /* NULL: cancelled */
    void *data;
    struct kept kept;
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

static int read_tables(struct kept_open *open)
{
    struct kept *kept = &open->kept;
    uint64_t bytes = kept->payload_at - KEPT_HEADER_BYTES;
    uint8_t *tables = malloc(bytes);
    if (!tables)
        return error_set(&open->err, STOW_NOMEM, "no memory for the tables of %s (%llu bytes)",
                         open->path, (unsigned long long)bytes);
    int rc = kept_pread(open->fd, open->path, tables, bytes, KEPT_HEADER_BYTES, &open->err);
    if (rc) {
        free(tables);
        return rc;
    }
    rc = kept_parse(kept, tables, &open->err);
    return rc ? error_prefix(&open->err, "%s", open->path) : 0;
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
        rc = read_tables(open);
    if (rc)
        kept_fini(&open->kept);
}

static void on_read(uv_work_t *work, int status)
{
    struct kept_open *open = work->data;
    (void)status; /* never cancelled in the queue */
    n_open--;
    if (open->done) {
        open->done(open->data, open->fd, &open->kept, &open->err);
    } else {
        close(open->fd);
    }
    kept_fini(&open->kept);
    free(open->path);
    free(open);
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
    *open = (struct kept_open){.fd = fd, .path = copy, .done = done, .data = data};
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
