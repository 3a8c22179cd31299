/* SPDX-License-Identifier: Apache-2.0
 *
 * reader_index: the chunks of one dataset, by the first way that works:
 *   contiguous data    computed, a chunk for each frame
 *   compact data       found in the object header
 *   own walk           of the B-tree or array (reader_walk), a sample compared with HDF5's reading
 *   H5Dchunk_iter      where the HDF5 at run time has it (1.10.10 and later)
 *   H5Dget_chunk_info  slower with each chunk; refused past 20,000 chunks
 * A chunk that cannot be right is a fault of its frames and no failure. */
#ifndef STOW_READER_INDEX_H
#define STOW_READER_INDEX_H

#include "reader.h"
#include "reader_data.h"

/* Fill chunks[data->n_chunks] for the dataset in file number `file`. *n_written gets the chunks
 * that are there. path is for messages. STOW_SOURCE, STOW_UNSUPPORTED. */
int reader_index(struct reader *reader, size_t file, const char *path, hid_t dataset,
                 const struct reader_data *data, struct assembly_chunk *chunks, uint64_t *n_written,
                 struct stow_error *err);

#endif
