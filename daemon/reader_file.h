/* SPDX-License-Identifier: Apache-2.0
 *
 * reader_file: one HDF5 file, given as a descriptor. The superblock is looked at before HDF5 is
 * asked, so that an empty file, another format, a cut copy and a writer's flag are each told
 * apart, with numbers. */
#ifndef STOW_READER_FILE_H
#define STOW_READER_FILE_H

#include "error.h"
#include "reader_fd.h"

#include <hdf5.h>
#include <stdbool.h>
#include <stdint.h>

#define READER_SHOWN 200

struct reader_file {
    char *name;               /* in the link */
    char *real;               /* the real path as the parent tells it; NULL: it does not */
    char shown[READER_SHOWN]; /* the path, for messages; a long one from its end */
    bool answered;            /* the parent said what it is */
    int code;                 /* of the answer: 0, an errno, READER_NOT_REGULAR */
    bool tried;               /* to open it; then: */
    struct stow_error why;    /* code 0: it is open, or was */
    struct reader_fd io;      /* fd -1 when shut */
    hid_t hid;
    uint64_t base;         /* bytes before the superblock: HDF5's addresses count from there */
    unsigned offset_bytes; /* of an address in the file */
    unsigned length_bytes;
    bool swmr; /* opened beside its SWMR writer */
    size_t
        last_set; /* of the sets that were found by its name, 1 + the number of the last one; 0: none */
};

/* The path for messages. */
void reader_file_show(struct reader_file *file, const char *path);

/* Open file->io. STOW_SOURCE: empty, not HDF5, cut, or being written; STOW_IO. */
int reader_file_open(struct reader_file *file, struct stow_error *err);

/* Close it and its descriptor; every id in it is closed too. What was learned stays. */
void reader_file_shut(struct reader_file *file);

/* HDF5's own innermost reason of its last failure, in a static buffer. */
const char *reader_file_reason(void);

#endif
