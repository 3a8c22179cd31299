/* SPDX-License-Identifier: Apache-2.0
 *
 * filters: what HDF5 did to a chunk when it was written is undone: gzip, shuffle, fletcher32, LZ4 (32004), bitshuffle
 * alone, with LZ4 or with Zstandard (32008), Zstandard (32015), in any number and order, less those that the chunk's
 * mask says were skipped.
 *
 * Nothing that a chunk says is believed: every read stays in the chunk, every write in the room for what comes out, and
 * what comes out has the very size that the dataset says, or the chunk is STOW_CORRUPT with a sentence that names the
 * filter. A fletcher32 that does not match says "checksum". Formats: docs/formats.md.
 *
 * Any thread; a scratch is one thread's at a time. */
#ifndef STOW_FILTERS_H
#define STOW_FILTERS_H

#include "assembly.h"

#include "error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum filter_id {
    FILTER_GZIP = 1,
    FILTER_SHUFFLE = 2,
    FILTER_FLETCHER32 = 3,
    FILTER_LZ4 = 32004,
    FILTER_BITSHUFFLE = 32008,
    FILTER_ZSTD = 32015
};

#define FILTERS_ROOMS 3u

/* Working memory, kept from chunk to chunk. Zeroed is empty. */
struct filter_scratch {
    struct libdeflate_decompressor *inflate;
    struct ZSTD_DCtx_s *zstd;
    uint8_t *rooms[FILTERS_ROOMS];
    size_t room_bytes[FILTERS_ROOMS];
};

void filter_scratch_fini(struct filter_scratch *scratch);

struct filter_pipeline {
    const struct assembly_filter *filters; /* in the order in which they were applied */
    uint32_t n_filters;                    /* at most ASSEMBLY_FILTERS */
    uint32_t mask;                         /* bit i: filter i was skipped */
};

/* Whether a chunk of this pipeline is the pixels as they are. */
bool filters_none(const struct filter_pipeline *pipeline);

/* The chunk at src into dst, which is exactly dst_bytes and overlaps nothing. 0; STOW_CORRUPT; STOW_UNSUPPORTED for a
 * filter or mode that is not known here; STOW_NOMEM. After a failure dst means nothing. */
int filters_undo(uint8_t *dst, size_t dst_bytes, const uint8_t *src, size_t src_bytes,
                 const struct filter_pipeline *pipeline, struct filter_scratch *scratch,
                 struct stow_error *err);

/* HDF5's variant of Fletcher's checksum: big-endian words, sums folded but not to one form of zero. */
uint32_t filters_fletcher32(const uint8_t *bytes, size_t n);

#endif
