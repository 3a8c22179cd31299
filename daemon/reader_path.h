/* SPDX-License-Identifier: Apache-2.0
 *
 * reader_path: follow a path through groups and links, one component at a time. HDF5 is only
 * ever asked for hard links, so it opens no file by itself: soft links are replaced by their
 * text, external ones by a file that the parent gives. No environment variable and no working
 * directory has a say. */
#ifndef STOW_READER_PATH_H
#define STOW_READER_PATH_H

#include "reader.h"

#include <hdf5.h>

struct reader_place {
    size_t file;  /* in which the object lies */
    hid_t object; /* to be closed by H5Oclose, unless its file is shut */
};

/* From group `at` (borrowed) in file `file` along path; an absolute one starts at the root.
 *   lost  may be NULL; the file that could not be had when that is the failure, else SIZE_MAX
 * STOW_UNKNOWN: there is no such object, the error says which step; codes of reader_open. */
int reader_path_open(struct reader *reader, size_t file, hid_t at, const char *path,
                     struct reader_place *place, size_t *lost, struct stow_error *err);

/* The same, from the root of file. */
int reader_path_open_root(struct reader *reader, size_t file, const char *path,
                          struct reader_place *place, size_t *lost, struct stow_error *err);

/* The file's name in an external link of group, copied into name. False: it is no external link. */
bool reader_path_external(hid_t group, const char *link, char *name, size_t room);

#endif
