/* SPDX-License-Identifier: Apache-2.0
 *
 * reader: what the parts of framestow-reader share: the files of one acquisition and the way to
 * ask the parent for them. A file is asked for by the name in a link, answered with a descriptor
 * or an errno, opened when its turn comes and shut once its chunks are known, so that a thousand
 * shards need a window of descriptors. One thread. */
#ifndef STOW_READER_H
#define STOW_READER_H

#include "error.h"
#include "reader_file.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct reader {
    int socket;
    bool allow_gaps;
    char *dataset;              /* "": to be found */
    struct reader_file **files; /* the master first */
    size_t n_files, room;
    size_t n_sent; /* asked of the parent; the rest waits for its window */
    uint64_t alive_ns;
};

/* The number of the file that a link names; the same name is the same file. Asked for when it is
 * opened, or ahead of that, as the window allows. STOW_NOMEM, STOW_LIMIT, STOW_INVALID. */
int reader_ask(struct reader *reader, const char *name, size_t *file, struct stow_error *err);

/* The same for a name that file `from` gives: relative to where that really is. */
int reader_ask_beside(struct reader *reader, size_t from, const char *name, size_t *file,
                      struct stow_error *err);

/* Wait for the answer: its descriptor and size are there. STOW_MISSING and other codes of a file that cannot be had;
 * STOW_GONE: the parent is gone, give up. */
int reader_await(struct reader *reader, size_t file, struct stow_error *err);

/* Wait for the answer and open it; a second call has the same outcome. STOW_MISSING and other
 * codes of a file that cannot be had; STOW_GONE: the parent is gone, give up. */
int reader_open(struct reader *reader, size_t file, struct stow_error *err);

/* Tell the parent that work goes on; cheap, may be called at every step. */
void reader_alive(struct reader *reader);

void reader_warn(struct reader *reader, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
