/* SPDX-License-Identifier: Apache-2.0
 *
 * piece: the pixels that a box takes from one chunk, for some frames: between assembler.c, which finds the pieces, and
 * piece.c, which gets the chunk and copies. */
#ifndef STOW_PIECE_H
#define STOW_PIECE_H

#include "assembler.h"
#include "chunk_cache.h"
#include "filters.h"

/* What follows from a dataset's extent and its chunks'. A group is the chunks that hold the same frames. */
struct grid {
    const struct assembly_dataset *dataset;
    uint64_t n_down, n_across;   /* chunks in a frame */
    uint64_t height, width;      /* of a chunk */
    uint64_t n_frames;           /* of a whole chunk */
    uint64_t frame_bytes, bytes; /* of a frame's part in a chunk; of a chunk */
};

void grid_init(struct grid *grid, const struct assembly_dataset *dataset);

/* Which group a frame of the dataset is in, and which of its frames it is. */
void grid_find(const struct grid *grid, uint64_t frame, uint64_t *group, uint64_t *inner);

/* Frames of a group that are in the dataset: fewer at its edges. */
uint64_t grid_group_frames(const struct grid *grid, uint64_t group);

/* A frame of the read. */
struct pick {
    uint64_t group, inner;
    uint32_t frame;
};

/* A thread's own memory, from read to read. Decoded chunks that are larger come from the cache, which has a budget. */
#define BENCH_KEPT_BYTES ((size_t)64 << 20)

/* One thread's memory. */
struct bench {
    struct filter_scratch filters;
    uint8_t *packed, *plain;
    size_t packed_room, plain_room;
    struct pick *picks;
    bool *covered;
    size_t frames_room;
    size_t *boxes;
    size_t boxes_room;
    struct late *late; /* pieces whose chunk another thread was decoding */
    size_t n_late, late_room;
    struct bench *next;
};

/* `room` as large as `bytes`, its contents lost; false without memory. */
bool bench_grow(void **memory, size_t *room, size_t bytes);

struct piece {
    const struct source_index *index;
    const struct assembler_read *read;
    const struct grid *grid;
    const struct assembly_box *box;
    const struct pick *picks; /* [n] of one group */
    uint32_t n;
    uint64_t down, across; /* the chunk in its group */
    struct chunk_cache *cache;
    struct bench *bench;
};

/* n pixels, at least one. */
void fill_pixels(uint8_t *to, uint64_t n, uint32_t elem_bytes, uint64_t fill);

enum piece_result { PIECE_DONE, PIECE_LATER, PIECE_FAILED };

/* PIECE_LATER only with may_wait false; PIECE_FAILED: *err says why the load cannot go on. */
enum piece_result piece_put(const struct piece *piece, bool may_wait, struct stow_error *err);

#endif
