/* SPDX-License-Identifier: Apache-2.0
 *
 * loads_inside: a load on its way. For loads.c (who waits, files, beginning and end) and load_index.c (from the master's descriptor to
 * the loader) alone. */
#ifndef STOW_LOADS_INSIDE_H
#define STOW_LOADS_INSIDE_H

#include "kept_load.h"
#include "kept_open.h"
#include "loader.h"
#include "loads.h"
#include "recall.h"
#include "source.h"

#include <sys/stat.h>

enum load_state {
    LOAD_CHECKING, /* the files of a resident: are they still the same? */
    LOAD_INDEXING, /* the reader child is at work */
    LOAD_LOADING,
    LOAD_OVER,
};

/* A file that was asked of a client and has not come. */
struct need {
    struct need *next;
    uint32_t file;
    char *path;
};

struct load {
    struct load *next;
    struct loads *loads;
    uint64_t id;
    enum load_state state;
    struct place *place;
    struct resident *resident; /* a reference */
    struct recall *recall;     /* whether the index is known */
    struct source *source;
    struct loader *loader;
    struct kept_open *opening; /* to see whether the master is a .stow file */
    struct kept_load *kept;    /* it is one */
    uint64_t total_bytes;      /* that are to be read */
    int master_fd;
    char *path, *dataset;
    struct keep keep;
    bool allow_gaps, changed,
        cancelling; /* changed: a file of the resident is not the same any more */
    struct waiter *waiters;
    struct need *needs;
    unsigned n_files; /* that hold a descriptor, or will when the client answers */
    uint64_t begun_ns, indexed_ns, told_ns;
};

struct origin load_origin_of(const struct stat *st);

/* Ask the first waiter's client for a file. 0 or STOW_NOMEM. */
int load_ask(struct load *load, uint32_t file, const char *path);
void load_end_waiter(struct load *load, struct waiter *waiter, const struct stow_error *err);

/* The end of a load, good (code 0) or bad; the load is gone. */
void load_end(struct load *load, const struct stow_error *err);
void load_fail(struct load *load, const struct stow_error *err);
/* Nobody wants it any more; it may be gone, or go once what is under way has run out. */
void load_cancel(struct load *load);

/* Begin with the master, whatever it is. */
int load_begin_index(struct load *load, uid_t uid, struct stow_error *err);

#endif
