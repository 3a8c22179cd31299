/* SPDX-License-Identifier: Apache-2.0
 *
 * reader_virtual: a virtual dataset: every mapping is followed by ourselves, since HDF5 answers with the fill value where a source
 * cannot be had, and would open files by itself. A source that is missing, cannot be read or is too short makes its frames
 * lost; what no mapping covers has the fill value.
 *
 * A source's name is looked for as HDF5 does, without environment and working directory: "." is the same file; a relative name is
 * beside the virtual dataset's real file; an absolute one that is not there is looked for beside it by its last part. */
#ifndef STOW_READER_VIRTUAL_H
#define STOW_READER_VIRTUAL_H

#include "reader.h"
#include "reader_table.h"

/* Its sources and boxes into the table, counted from its first frame. data is its description, whose dimensions are changed to what
 * sources without end make them. path is for messages. STOW_UNSUPPORTED, STOW_SOURCE; what is wrong with the first source where all
 * are lost. */
int reader_virtual(struct reader *reader, size_t file, const char *path, hid_t dataset,
                   struct reader_data *data, struct reader_table *table, struct stow_error *err);

#endif
