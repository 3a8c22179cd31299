/* SPDX-License-Identifier: Apache-2.0
 *
 * assembly: how frames are put together where a frame is not simply one chunk: chunks of several frames, of parts of one, filters
 * that the CPU has to undo, the other byte order, virtual datasets. Plain structs, which framestow-reader writes behind its
 * table of frames and framestowd checks before it believes them (source.c).
 *
 * A dataset is a grid of chunks, its last two dimensions are a frame, those before count frames in C order. Boxes say which
 * pixels of the acquisition come from which pixels of a dataset; where two overlap, the later one counts. What no box covers is
 * the index's fill value; what lies in a chunk that was never written, its dataset's.
 *
 * The table of frames (source.h) comes first: a frame with a fault there is not put together, and one of 0 bytes is the index's fill
 * value all over. There are no datasets without frames, and no boxes without pixels. */
#ifndef STOW_ASSEMBLY_H
#define STOW_ASSEMBLY_H

#include <stddef.h>
#include <stdint.h>

#define ASSEMBLY_RANK 5u
#define ASSEMBLY_FILTERS 8u
#define ASSEMBLY_VALUES 8u
#define ASSEMBLY_MAX_CHUNKS (UINT64_C(1) << 26)
#define ASSEMBLY_MAX_BOXES (1u << 22)
#define ASSEMBLY_MAX_PARTS (UINT64_C(1) << 26) /* frames of all boxes */

/* In the order in which they were applied when the chunk was written. */
struct assembly_filter {
    uint32_t
        id; /* as registered with the HDF Group: 1 gzip, 2 shuffle, 3 fletcher32, 32004 LZ4, ... */
    uint32_t n_values;
    uint32_t values[ASSEMBLY_VALUES];
};

enum assembly_flag {
    ASSEMBLY_BIG_ENDIAN = 1, /* pixels are turned around */
    ASSEMBLY_FOREIGN =
        2 /* a filter that only a plugin of the HDF5 library knows: the child decodes */
};

struct assembly_dataset {
    uint32_t rank, elem_bytes, flags, n_filters;
    uint64_t dims[ASSEMBLY_RANK], chunk[ASSEMBLY_RANK]; /* the first `rank` of each, none is 0 */
    uint64_t fill; /* native byte order, in its low elem_bytes bytes */
    uint64_t first_chunk,
        n_chunks; /* in chunks: the whole grid in C order, edge chunks are whole chunks */
    struct assembly_filter filters[ASSEMBLY_FILTERS];
    uint32_t file; /* where it lies; its chunks may lie in others (external raw files) */
    uint32_t path; /* offset of its path, NUL-terminated, in texts */
    uint64_t reserved;
};

struct assembly_chunk {
    uint64_t offset; /* in the file, from byte 0 */
    uint32_t bytes;  /* 0 without a fault: never written */
    uint32_t file;   /* index into files; SOURCE_NO_FILE as for frames */
    uint32_t mask;   /* bit i: filter i was skipped */
    uint32_t fault;  /* enum source_fault */
};

/* Pixels [n_frames][n_y][n_x]: to frames frame + i * frame_step at row y, column x of the acquisition, from the dataset's frames
 * from_frame + i * from_step at row from_y, column from_x. */
struct assembly_box {
    uint64_t frame, frame_step, n_frames;
    uint64_t from_frame, from_step;
    uint64_t y, x, from_y, from_x, n_y, n_x;
    uint32_t dataset, reserved;
};

struct assembly {
    const struct assembly_dataset *datasets; /* [n_datasets] */
    size_t n_datasets;
    const struct assembly_box *boxes; /* [n_boxes] */
    size_t n_boxes;
    const struct assembly_chunk *chunks; /* [n_chunks] */
    size_t n_chunks;
    const char *texts; /* [n_texts] ends in NUL */
    size_t n_texts;
};

#endif
