/* SPDX-License-Identifier: Apache-2.0
 *
 * simulate_hdf5: the files of a DECTRIS-style acquisition: a master with metadata and external links, and
 * shards that hold the chunks.
 *
 * Chunks come compressed and go in by H5Dwrite_chunk, so no filter library is needed to write them.
 * One shard is open at a time. One thread; every function's failure fills *err and leaves half-written
 * files behind, which the caller reports. */
#ifndef STOW_SIMULATE_HDF5_H
#define STOW_SIMULATE_HDF5_H

#include "error.h"

#include <stddef.h>
#include <stdint.h>

struct shard;

struct layout {
    const char *folder, *name;
    size_t n_frames, det_y, det_x, elem_bytes, n_shards;
    const uint32_t *flagged; /* pixels of pixel_mask that are not 0 */
    size_t n_flagged;
};

/* First frame of a shard; of shard n_shards: n_frames. */
size_t layout_first(const struct layout *layout, size_t shard);

/* NAME_master.h5. */
int master_write(const struct layout *layout, struct stow_error *err);

/* NAME_data_00000N.h5, N from 1 for shard 0. */
int shard_open(struct shard **shard, const struct layout *layout, size_t index,
               struct stow_error *err);
/* Frame counts from the acquisition's start. */
int shard_put(struct shard *shard, size_t frame, const void *chunk, size_t bytes,
              struct stow_error *err);
/* Closes in any case; what could not be written is the error. NULL is allowed. */
int shard_close(struct shard *shard, struct stow_error *err);

#endif
