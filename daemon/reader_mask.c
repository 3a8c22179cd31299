/* SPDX-License-Identifier: Apache-2.0
 *
 * DECTRIS writes the mask as one chunk of bitshuffle with LZ4, for which HDF5 has no filter here: that is decoded as
 * frames are. Everything else is read by HDF5, as signed bytes: it clips what does not fit, so that only 0 becomes
 * 0. */
#define H5_USE_110_API 1
#include "reader_mask.h"

#include "bslz4.h"
#include "reader_data.h"
#include "reader_path.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Where masters keep it; the first that can be used is taken. */
static const char *const paths[] = {"/entry/instrument/detector/detectorSpecific/pixel_mask",
                                    "/entry/instrument/detector/pixel_mask"};

struct mask {
    const struct reader_file *file;
    const struct reader_shape *shape;
    const char *path;
    hid_t dataset, dcpl;
    uint8_t *flags; /* [n] */
    size_t n;
    struct stow_error *err;
};

static int hdf5_failed(const struct mask *mask)
{
    return error_set(mask->err, STOW_SOURCE, "it cannot be read (%s)", reader_file_reason());
}

/* ---- a chunk of bitshuffle with LZ4 -------------------------------------------------------------- */

static int decode_chunk(const struct mask *mask, uint32_t elem_bytes, uint8_t *pixels,
                        const uint8_t *chunk, size_t bytes, bool raw)
{
    const struct frame_shape shape = {.n_elems = mask->n, .elem_bytes = elem_bytes};
    size_t room = bslz4_max_blocks(bytes) + 1, n_blocks;
    uint32_t *blocks = malloc(room * sizeof(*blocks));
    if (!blocks)
        return error_set(mask->err, STOW_NOMEM, "no memory for its blocks");
    const struct decode_job job = {.src = (uintptr_t)chunk,
                                   .blocks = (uintptr_t)blocks,
                                   .dst = (uintptr_t)pixels,
                                   .src_bytes = (uint32_t)bytes,
                                   .form = raw ? STOW_FORM_RAW : STOW_FORM_BSLZ4};
    int status = raw ? 0 : bslz4_index(blocks, room, &n_blocks, chunk, bytes, &shape, mask->err);
    if (!status)
        status = decode_frame(&job, &shape, mask->err);
    free(blocks);
    return status;
}

static int read_chunk(const struct mask *mask, uint32_t elem_bytes, uint8_t *pixels)
{
    const hsize_t first[2] = {0, 0};
    hsize_t bytes;
    uint32_t skipped; /* filters that the chunk did without */
    if (H5Dget_chunk_storage_size(mask->dataset, first, &bytes) < 0)
        return hdf5_failed(mask);
    if (bytes == 0 || bytes > UINT32_MAX)
        return error_set(mask->err, STOW_SOURCE, "its chunk has %" PRIu64 " bytes",
                         (uint64_t)bytes);
    uint8_t *chunk = malloc(bytes);
    if (!chunk)
        return error_set(mask->err, STOW_NOMEM, "no memory for its chunk");
    int status = H5Dread_chunk(mask->dataset, H5P_DEFAULT, first, &skipped, chunk) < 0
                     ? hdf5_failed(mask)
                     : decode_chunk(mask, elem_bytes, pixels, chunk, bytes, skipped & 1);
    free(chunk);
    return status;
}

static int read_bslz4(const struct mask *mask, uint32_t elem_bytes)
{
    uint8_t *pixels = malloc(mask->n * elem_bytes);
    if (!pixels)
        return error_set(mask->err, STOW_NOMEM, "no memory for its pixels");
    int status = read_chunk(mask, elem_bytes, pixels);
    for (size_t i = 0; !status && i < mask->n; i++) {
        uint8_t any = 0;
        for (uint32_t b = 0; b < elem_bytes; b++)
            any |= pixels[i * elem_bytes + b];
        mask->flags[i] = any != 0;
    }
    free(pixels);
    return status;
}

/* ---- by HDF5 ------------------------------------------------------------------------------------- */

/* HDF5 must not look for a plug-in or open another file. */
static int check_plain(const struct mask *mask)
{
    H5D_layout_t layout = H5Pget_layout(mask->dcpl);
    if ((layout != H5D_CHUNKED && layout != H5D_CONTIGUOUS && layout != H5D_COMPACT) ||
        H5Pget_external_count(mask->dcpl) != 0)
        return error_set(mask->err, STOW_UNSUPPORTED, "its values lie in other files");
    int n = H5Pget_nfilters(mask->dcpl);
    for (int i = 0; i < n; i++) {
        char name[64] = "";
        unsigned flags, config;
        size_t n_values = 0;
        H5Z_filter_t number = H5Pget_filter2(mask->dcpl, (unsigned)i, &flags, &n_values, NULL,
                                             sizeof(name), name, &config);
        if (number < 0 || H5Zfilter_avail(number) <= 0)
            return error_set(mask->err, STOW_UNSUPPORTED,
                             "its filter %d (%.60s) is not available here", (int)number,
                             name[0] ? name : "unnamed");
    }
    return n < 0 ? hdf5_failed(mask) : 0;
}

static int read_plain(const struct mask *mask)
{
    int status = check_plain(mask);
    if (status)
        return status;
    if (H5Dread(mask->dataset, H5T_NATIVE_INT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, mask->flags) < 0)
        return hdf5_failed(mask);
    for (size_t i = 0; i < mask->n; i++)
        mask->flags[i] = mask->flags[i] != 0;
    return 0;
}

/* ---- one mask ------------------------------------------------------------------------------------ */

/* Integers, or what h5py makes of booleans, in the shape of a frame. */
static int check_kind(const struct mask *mask)
{
    hsize_t dims[2] = {0, 0};
    char text[128];
    hid_t type = H5Dget_type(mask->dataset), space = H5Dget_space(mask->dataset);
    H5T_class_t kind = type < 0 ? H5T_NO_CLASS : H5Tget_class(type);
    int rank = space < 0 ? -1 : H5Sget_simple_extent_ndims(space);
    if (rank == 2)
        H5Sget_simple_extent_dims(space, dims, NULL);
    if (space >= 0)
        H5Sclose(space);
    if (type >= 0)
        H5Tclose(type);
    if (kind != H5T_INTEGER && kind != H5T_ENUM) {
        reader_data_dtype(mask->dataset, text, sizeof(text));
        return error_set(mask->err, STOW_UNSUPPORTED, "it is of type %s, not of integers", text);
    }
    if (rank != 2 || dims[0] != mask->shape->det_y || dims[1] != mask->shape->det_x) {
        reader_data_shape(mask->dataset, text, sizeof(text));
        return error_set(mask->err, STOW_UNSUPPORTED,
                         "it has the shape %s, and frames have (%" PRIu64 ", %" PRIu64 ")", text,
                         mask->shape->det_y, mask->shape->det_x);
    }
    return 0;
}

static int read_mask(struct mask *mask)
{
    struct reader_data data;
    if (H5Iget_type(mask->dataset) != H5I_DATASET)
        return error_set(mask->err, STOW_SOURCE, "it is not a dataset");
    int status = check_kind(mask);
    if (status)
        return status;
    mask->dcpl = H5Dget_create_plist(mask->dataset);
    if (mask->dcpl < 0)
        return hdf5_failed(mask);
    bool bslz4 = reader_data_describe(mask->file, mask->path, mask->dataset, &data, NULL) == 0 &&
                 data.direct && data.bslz4;
    status = bslz4 ? read_bslz4(mask, data.elem_bytes) : read_plain(mask);
    H5Pclose(mask->dcpl);
    return status;
}

/* 0, STOW_UNKNOWN where there is none, or another code and err says why it cannot be used. */
static int open_mask(struct reader *reader, struct mask *mask)
{
    struct reader_place place;
    int status = reader_path_open_root(reader, 0, mask->path, &place, NULL, mask->err);
    if (status)
        return status;
    mask->file = reader->files[place.file];
    mask->dataset = place.object;
    status = read_mask(mask);
    H5Oclose(place.object);
    return status;
}

uint8_t *reader_mask(struct reader *reader, const struct reader_shape *shape)
{
    struct stow_error err, first_err = {0};
    struct mask mask = {.shape = shape, .n = shape->det_y * shape->det_x, .err = &err};
    const char *first_path = NULL;
    int status = STOW_UNKNOWN;
    mask.flags = malloc(mask.n);
    for (size_t i = 0; mask.flags && status && i < sizeof(paths) / sizeof(paths[0]); i++) {
        mask.path = paths[i];
        status = open_mask(reader, &mask);
        if (status && status != STOW_UNKNOWN && !first_path) {
            first_path = paths[i];
            first_err = err;
        }
    }
    if (!mask.flags)
        reader_warn(reader, "the pixel mask is left out: no memory for it");
    else if (status && first_path)
        reader_warn(reader, "the pixel mask %s is left out: %s", first_path, first_err.text);
    if (!status && memchr(mask.flags, 1, mask.n))
        return mask.flags;
    free(mask.flags);
    return NULL;
}
