/* SPDX-License-Identifier: Apache-2.0
 *
 * reader_raw: a dataset whose pixels lie in raw files beside it: one after the other, each from an offset and of a size. Chunks are
 * frames, or as many rows of a frame as no border between two files cuts. The files are looked for beside the dataset's
 * real file; no working directory has a say. */
#ifndef STOW_READER_RAW_H
#define STOW_READER_RAW_H

#include "reader.h"
#include "reader_data.h"

/* Set the chunks of the description, for reader_raw_index. STOW_UNSUPPORTED: a border cuts a row. */
int reader_raw_describe(struct reader *reader, size_t file, const char *path, hid_t dataset,
                        struct reader_data *data, struct stow_error *err);

/* Fill chunks[data->n_chunks]. Codes of files that cannot be had. */
int reader_raw_index(struct reader *reader, size_t file, const char *path, hid_t dataset,
                     const struct reader_data *data, struct assembly_chunk *chunks,
                     uint64_t *n_written, struct stow_error *err);

#endif
