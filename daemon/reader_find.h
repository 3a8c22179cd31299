/* SPDX-License-Identifier: Apache-2.0
 *
 * reader_find: which dataset of the master holds the frames. In this order: the path the user
 * gave; the links /entry/data/data_NNNNNN of a DECTRIS master, in the order of their numbers;
 * the signal that NeXus attributes name; /entry/data/data*; the only dataset of numbers with
 * three or more dimensions. Several of those are refused with a list. Masks and correction
 * tables are never taken for frames. */
#ifndef STOW_READER_FIND_H
#define STOW_READER_FIND_H

#include "reader.h"

#include <hdf5.h>

/* Where to look for a part of the acquisition: `path` from `group`, in file `file`. */
struct reader_part {
    size_t file;
    hid_t group;
    char *path;  /* the name in the group, or a path */
    char *shown; /* the whole path, for messages */
};

/* The parts in order: the shards of a master, or one dataset. Files that they name are asked for
 * ahead. *parts is freed by reader_find_free. STOW_SOURCE, STOW_UNKNOWN, and what reader_open
 * returns. */
int reader_find(struct reader *reader, struct reader_part **parts, size_t *n_parts,
                struct stow_error *err);
void reader_find_free(struct reader_part *parts, size_t n_parts);

/* The last rule: the path of the master's only dataset with three or more dimensions
 * (reader_search.c), to be freed. STOW_SOURCE: there is none, or several, which the error lists. */
int reader_search(struct reader *reader, char **path, struct stow_error *err);
bool reader_find_never(const char *path); /* the name of a mask or table */

#endif
