/* SPDX-License-Identifier: Apache-2.0
 *
 * loads: the loads under way, and who waits for them.
 *
 * Clients that load the same source (device, master's inode, size, mtime, dataset, form) share one load and one
 * resident. A source that is resident already is not believed to be unchanged by its master alone: the
 * client is asked for the files again, which also proves its right to them, and each must be the same.
 * A waiter is the asker's; when it leaves, by load_leave, and no other waits, the load is cancelled.
 * Names are bound as soon as the index is read, so that frames can be served while others are loading; a
 * load that fails takes its names back. Loop thread only. */
#ifndef STOW_LOADS_H
#define STOW_LOADS_H

#include "store.h"

struct load;

struct loads {
    uv_loop_t *loop;
    struct store *store;
    const char *reader;  /* path of framestow-reader */
    const char *indexes; /* folder of the index cache; NULL: there is none */
    struct load *first;
    uint64_t next_id;
    unsigned n_files, max_files; /* descriptors of sources: held, and how many there may be */
};

/* What somebody who loads wants, and how to tell them. Strings are the waiter's until load_leave or ended. */
struct waiter {
    struct waiter *next;
    struct load *load; /* NULL once it has ended */
    void *data;
    uid_t uid;
    gid_t gid;
    const char *name;
    enum stow_share share;
    bool replace;
    struct scan scan; /* none: as the file says */
    bool allow_gaps;  /* also: the scan may end anywhere */
    void (*need)(struct waiter *waiter, uint32_t file, const char *path);
    void (*progress)(struct waiter *waiter, const struct stow_progress *progress);
    /* Once: the name that was bound, or NULL and err. */
    void (*ended)(struct waiter *waiter, const struct name *name, const struct stow_error *err);
};

struct load_options {
    const char *path;    /* of the real master */
    const char *dataset; /* NULL: found */
    bool allow_gaps;
    struct keep keep;
};

/* Begin a load or join one. fd is the master, the load's from here on, also on failure. *shared tells that
 * others load or have it already. STOW_EXISTS, STOW_SOURCE (not a regular file), STOW_NOMEM, ... */
int load_begin(struct loads *loads, struct place *place, int fd, const struct load_options *options,
               struct waiter *waiter, bool *shared, struct stow_error *err);
uint64_t load_id(const struct load *load);

/* A file that need asked for; fd -1 with errno_value if it cannot be opened. fd is the load's. */
void load_give(struct load *load, uint32_t file, int fd, const char *path, int errno_value);

/* The waiter goes away; it is not called any more. */
void load_leave(struct waiter *waiter);

/* Cancel all: the daemon is to end. */
void loads_clear(struct loads *loads);

#endif
