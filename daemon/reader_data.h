/* SPDX-License-Identifier: Apache-2.0
 *
 * reader_data: what a dataset is, in our terms: pixels of a plain integer or IEEE float type, 2 to 5 dimensions of which the
 * last two are a frame, a grid of chunks, the filters that they went through. What can never be served is refused here, in a
 * sentence that names it. */
#ifndef STOW_READER_DATA_H
#define STOW_READER_DATA_H

#include "assembly.h"
#include "error.h"
#include "reader_file.h"

#include <hdf5.h>
#include <stdbool.h>
#include <stdint.h>

#define READER_RANK ASSEMBLY_RANK

enum reader_storage {
    READER_CHUNKED,
    READER_CONTIGUOUS,
    READER_COMPACT,  /* in the object header */
    READER_EXTERNAL, /* in raw files that the dataset names */
    READER_VIRTUAL   /* in datasets that it names; it has no chunks */
};

struct reader_data {
    char dtype[8]; /* u1 .. f8, without the byte order */
    uint32_t elem_bytes;
    bool big_endian;
    unsigned rank;
    hsize_t dims[READER_RANK], max_dims[READER_RANK];
    uint64_t chunk[READER_RANK]; /* one frame where the file has no chunks */
    uint64_t grid[READER_RANK];  /* chunks along each dimension */
    uint64_t chunk_bytes, n_chunks;
    uint64_t det_y, det_x, n_frames, frame_bytes;
    uint64_t scan_y, scan_x; /* 0, 0: not four-dimensional */
    uint64_t fill;
    enum reader_storage storage;
    struct assembly_filter filters[ASSEMBLY_FILTERS];
    uint32_t n_filters;
    bool plain_edges; /* chunks that reach past the end went through no filter */
    bool bslz4;       /* by bitshuffle with LZ4 and no other filter */
    bool direct;      /* each frame is one chunk, bslz4 or unfiltered, in native byte order */
};

/* Look at the dataset. STOW_UNSUPPORTED; STOW_SOURCE when HDF5 cannot tell. path is for
 * messages. */
int reader_data_describe(const struct reader_file *file, const char *path, hid_t dataset,
                         struct reader_data *data, struct stow_error *err);

/* Count the frames that dims say. False: frames of 4 GiB and more, or too many of them. */
bool reader_data_count(struct reader_data *data);

/* Count chunks of this shape, which the description begins with one frame. False: too many. */
bool reader_data_set_chunk(struct reader_data *data, const uint64_t *chunk);

/* The bits of all filters in a chunk's mask. */
uint32_t reader_data_all_filters(const struct reader_data *data);

/* The filters of a dataset (reader_filters.c): taken into data, or refused. */
int reader_data_filters(const struct reader_file *file, const char *path, hid_t dcpl,
                        struct reader_data *data, struct stow_error *err);

/* "u2", "f4", ">i2", "string", ... and "(4, 8, 8)" for lists of candidates. */
void reader_data_dtype(hid_t dataset, char *text, size_t room);
void reader_data_shape(hid_t dataset, char *text, size_t room);

/* The rank of a dataset of integers or floats, 0 for anything else. */
int reader_data_rank(hid_t object);

#endif
