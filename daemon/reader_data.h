/* SPDX-License-Identifier: Apache-2.0
 *
 * reader_data: what a dataset is, and whether its frames can be served as they lie in the file:
 * unsigned little-endian integers of 1, 2 or 4 bytes; 2, 3 or 4 dimensions of which the last two
 * are a frame; chunks of one frame, bslz4 or unfiltered, or one contiguous block. Anything else
 * is refused here, in a sentence that names it. */
#ifndef STOW_READER_DATA_H
#define STOW_READER_DATA_H

#include "error.h"
#include "reader_file.h"

#include <hdf5.h>
#include <stdbool.h>
#include <stdint.h>

#define READER_RANK 4

struct reader_data {
    char dtype[8]; /* u1, u2, u4 */
    uint32_t elem_bytes;
    unsigned rank;
    hsize_t dims[READER_RANK], max_dims[READER_RANK];
    uint64_t det_y, det_x, n_frames, frame_bytes;
    uint64_t scan_y, scan_x; /* 0, 0: not four-dimensional */
    uint64_t fill;
    bool chunked; /* else contiguous */
    bool bslz4;   /* else the pixels as they are */
};

/* Look at the dataset. STOW_UNSUPPORTED; STOW_SOURCE when HDF5 cannot tell. path is for
 * messages. */
int reader_data_describe(const struct reader_file *file, const char *path, hid_t dataset,
                         struct reader_data *data, struct stow_error *err);

/* "u2", "f4", ">i2", "string", ... and "(4, 8, 8)" for lists of candidates. */
void reader_data_dtype(hid_t dataset, char *text, size_t room);
void reader_data_shape(hid_t dataset, char *text, size_t room);

/* The rank of a dataset of integers or floats, 0 for anything else. */
int reader_data_rank(hid_t object);

#endif
