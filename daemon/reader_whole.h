/* SPDX-License-Identifier: Apache-2.0
 *
 * reader_whole: the frames of one dataset into the table: its chunks, and one box over all of it. */
#ifndef STOW_READER_WHOLE_H
#define STOW_READER_WHOLE_H

#include "reader.h"
#include "reader_table.h"

/* Boxes and lost ranges count from the dataset's first frame. data is its description. path is for messages. */
int reader_whole(struct reader *reader, size_t file, const char *path, hid_t dataset,
                 struct reader_data *data, struct reader_table *table, struct stow_error *err);

/* Only its chunks, as a set of its own; *set gets the number of it. */
int reader_whole_set(struct reader *reader, size_t file, const char *path, hid_t dataset,
                     struct reader_data *data, struct reader_table *table, size_t *set,
                     struct stow_error *err);

#endif
