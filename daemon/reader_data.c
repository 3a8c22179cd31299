/* SPDX-License-Identifier: Apache-2.0 */
#define H5_USE_110_API 1
#include "reader_data.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAX_RANK 32

/* ---- in words -------------------------------------------------------------------------------- */

static void type_name(hid_t type, char *text, size_t room)
{
    static const char *const classes[] = {"integer",  "float",           "time",     "string",
                                          "bitfield", "opaque",          "compound", "reference",
                                          "enum",     "variable-length", "array"};
    H5T_class_t class = H5Tget_class(type);
    size_t bytes = H5Tget_size(type);
    const char *order = bytes > 1 && H5Tget_order(type) == H5T_ORDER_BE ? ">" : "";
    if (class == H5T_INTEGER)
        snprintf(text, room, "%s%c%zu", order, H5Tget_sign(type) == H5T_SGN_NONE ? 'u' : 'i',
                 bytes);
    else if (class == H5T_FLOAT)
        snprintf(text, room, "%sf%zu", order, bytes);
    else if (class >= 0 && (size_t) class < sizeof(classes) / sizeof(classes[0]))
        snprintf(text, room, "%s", classes[class]);
    else
        snprintf(text, room, "unknown");
}

static void shape_name(const hsize_t *dims, int rank, char *text, size_t room)
{
    size_t at = (size_t)snprintf(text, room, "(");
    for (int i = 0; i < rank && at < room; i++)
        at +=
            (size_t)snprintf(text + at, room - at, "%s%" PRIu64, i ? ", " : "", (uint64_t)dims[i]);
    if (at < room)
        snprintf(text + at, room - at, ")");
}

void reader_data_dtype(hid_t dataset, char *text, size_t room)
{
    hid_t type = H5Dget_type(dataset);
    type_name(type, text, room);
    H5Tclose(type);
}

/* Rank, or -1; dims has MAX_RANK entries. */
static int get_dims(hid_t dataset, hsize_t *dims, hsize_t *max_dims)
{
    hid_t space = H5Dget_space(dataset);
    int rank = space < 0 ? -1 : H5Sget_simple_extent_ndims(space);
    if (rank > MAX_RANK || (rank > 0 && H5Sget_simple_extent_dims(space, dims, max_dims) < 0))
        rank = -1;
    if (space >= 0)
        H5Sclose(space);
    return rank;
}

void reader_data_shape(hid_t dataset, char *text, size_t room)
{
    hsize_t dims[MAX_RANK];
    int rank = get_dims(dataset, dims, NULL);
    shape_name(dims, rank, text, room);
}

int reader_data_rank(hid_t object)
{
    hsize_t dims[MAX_RANK];
    if (H5Iget_type(object) != H5I_DATASET)
        return 0;
    hid_t type = H5Dget_type(object);
    H5T_class_t class = type < 0 ? H5T_NO_CLASS : H5Tget_class(type);
    if (type >= 0)
        H5Tclose(type);
    if (class != H5T_INTEGER && class != H5T_FLOAT)
        return 0;
    int rank = get_dims(object, dims, NULL);
    return rank < 0 ? 0 : rank;
}

/* ---- the checks, each of one thing ----------------------------------------------------------- */

struct look {
    const struct reader_file *file;
    const char *shown, *path;
    hid_t dataset, dcpl, native; /* native: the type of a pixel in this machine, not to be closed */
    struct reader_data *data;
    struct stow_error *err;
};

static int hdf5_failed(const struct look *look, const char *what)
{
    return error_set(look->err, STOW_SOURCE, "%s: dataset %s has %s that HDF5 cannot tell (%s)",
                     look->shown, look->path, what, reader_file_reason());
}

/* The native type for pixels of these; H5I_INVALID_HID: none that is served. */
static hid_t native_type(H5T_class_t class, bool is_signed, size_t bytes)
{
    if (class == H5T_FLOAT)
        return bytes == 4 ? H5T_NATIVE_FLOAT : bytes == 8 ? H5T_NATIVE_DOUBLE : H5I_INVALID_HID;
    if (class != H5T_INTEGER)
        return H5I_INVALID_HID;
    switch (bytes) {
    case 1: return is_signed ? H5T_NATIVE_INT8 : H5T_NATIVE_UINT8;
    case 2: return is_signed ? H5T_NATIVE_INT16 : H5T_NATIVE_UINT16;
    case 4: return is_signed ? H5T_NATIVE_INT32 : H5T_NATIVE_UINT32;
    case 8: return is_signed ? H5T_NATIVE_INT64 : H5T_NATIVE_UINT64;
    default: return H5I_INVALID_HID;
    }
}

/* Whether it is the native type, or that turned around: all bits used, floats as IEEE has them. */
static bool is_plain(hid_t type, hid_t native, bool *swapped)
{
    hid_t other = H5Tcopy(native);
    bool ok = other >= 0 && H5Tset_order(other, H5T_ORDER_BE) >= 0;
    *swapped = ok && H5Tget_size(type) > 1 && H5Tequal(type, other) > 0;
    ok = ok && H5Tset_order(other, H5T_ORDER_LE) >= 0 && (*swapped || H5Tequal(type, other) > 0);
    if (other >= 0)
        H5Tclose(other);
    return ok;
}

static int check_type(struct look *look)
{
    hid_t type = H5Dget_type(look->dataset);
    struct reader_data *data = look->data;
    char name[32];
    if (type < 0)
        return hdf5_failed(look, "a type");
    type_name(type, name, sizeof(name));
    H5T_class_t class = H5Tget_class(type);
    size_t bytes = H5Tget_size(type);
    bool is_signed = class == H5T_INTEGER && H5Tget_sign(type) != H5T_SGN_NONE;
    look->native = native_type(class, is_signed, bytes);
    bool plain = look->native >= 0 && is_plain(type, look->native, &data->big_endian);
    H5Tclose(type);
    if (look->native < 0)
        return error_set(look->err, STOW_UNSUPPORTED,
                         "%s: dataset %s has pixels of type %s, which is not supported; "
                         "integers of 1, 2, 4 and 8 bytes and floats of 4 and 8 are",
                         look->shown, look->path, name);
    if (!plain)
        return error_set(look->err, STOW_UNSUPPORTED,
                         "%s: dataset %s has pixels of type %s with unused or rearranged bits, "
                         "which is not supported",
                         look->shown, look->path, name);
    data->elem_bytes = (uint32_t)bytes;
    snprintf(data->dtype, sizeof(data->dtype), "%c%u",
             class == H5T_FLOAT ? 'f'
             : is_signed        ? 'i'
                                : 'u',
             (unsigned)bytes);
    return 0;
}

bool reader_data_set_chunk(struct reader_data *data, const uint64_t *chunk)
{
    uint64_t n_chunks = 1, bytes = data->elem_bytes;
    bool huge = false;
    for (unsigned i = 0; i < data->rank; i++) {
        if (chunk[i] == 0)
            return false;
        data->chunk[i] = chunk[i];
        data->grid[i] = data->dims[i] / chunk[i] + (data->dims[i] % chunk[i] != 0);
        huge = huge || __builtin_mul_overflow(n_chunks, data->grid[i], &n_chunks) ||
               __builtin_mul_overflow(bytes, chunk[i], &bytes);
    }
    data->n_chunks = n_chunks;
    data->chunk_bytes = bytes;
    return !huge && bytes <= UINT32_MAX && n_chunks <= ASSEMBLY_MAX_CHUNKS;
}

uint32_t reader_data_all_filters(const struct reader_data *data)
{
    return (1u << data->n_filters) - 1;
}

bool reader_data_count(struct reader_data *data)
{
    uint64_t pixels;
    data->det_y = data->dims[data->rank - 2];
    data->det_x = data->dims[data->rank - 1];
    data->n_frames = 1;
    bool huge = __builtin_mul_overflow(data->det_y, data->det_x, &pixels) ||
                __builtin_mul_overflow(pixels, (uint64_t)data->elem_bytes, &data->frame_bytes);
    for (unsigned i = 0; i + 2 < data->rank; i++)
        huge = huge || __builtin_mul_overflow(data->n_frames, data->dims[i], &data->n_frames);
    if (data->rank == 4) {
        data->scan_y = data->dims[0];
        data->scan_x = data->dims[1];
    }
    return !huge && data->frame_bytes <= UINT32_MAX;
}

static int check_dims(struct look *look)
{
    struct reader_data *data = look->data;
    hsize_t dims[MAX_RANK], max_dims[MAX_RANK];
    char shape[128];
    int rank = get_dims(look->dataset, dims, max_dims);
    if (rank < 0)
        return hdf5_failed(look, "a shape");
    shape_name(dims, rank, shape, sizeof(shape));
    if (rank < 2 || rank > (int)READER_RANK)
        return error_set(look->err, STOW_UNSUPPORTED,
                         "%s: dataset %s has the shape %s, which is not supported: 2 to %u "
                         "dimensions are, the last two of them a frame",
                         look->shown, look->path, shape, READER_RANK);
    data->rank = (unsigned)rank;
    memcpy(data->dims, dims, (size_t)rank * sizeof(dims[0]));
    memcpy(data->max_dims, max_dims, (size_t)rank * sizeof(dims[0]));
    if (!reader_data_count(data))
        return error_set(look->err, STOW_UNSUPPORTED,
                         "%s: dataset %s has the shape %s: frames of 4 GiB and more are not "
                         "supported",
                         look->shown, look->path, shape);
    if (data->frame_bytes == 0)
        return error_set(look->err, STOW_SOURCE,
                         "%s: dataset %s has the shape %s: its frames have no pixels", look->shown,
                         look->path, shape);
    return 0;
}

static int check_storage(struct look *look)
{
    struct reader_data *data = look->data;
    switch (H5Pget_layout(look->dcpl)) {
    case H5D_CHUNKED: data->storage = READER_CHUNKED; return 0;
    case H5D_COMPACT: data->storage = READER_COMPACT; return 0;
    case H5D_VIRTUAL: data->storage = READER_VIRTUAL; return 0;
    case H5D_CONTIGUOUS:
        data->storage =
            H5Pget_external_count(look->dcpl) == 0 ? READER_CONTIGUOUS : READER_EXTERNAL;
        return 0;
    default: return hdf5_failed(look, "a layout");
    }
}

static int check_chunk(struct look *look)
{
    struct reader_data *data = look->data;
    uint64_t frame[READER_RANK] = {1, 1, 1, 1, 1}, shape[READER_RANK];
    hsize_t chunk[MAX_RANK] = {0};
    unsigned options = 0;
    char text[128];
    frame[data->rank - 2] = data->det_y;
    frame[data->rank - 1] = data->det_x;
    memcpy(shape, frame, sizeof(shape));
    if (data->storage == READER_CHUNKED) {
        if (H5Pget_chunk(look->dcpl, MAX_RANK, chunk) != (int)data->rank)
            return hdf5_failed(look, "chunks");
        for (unsigned i = 0; i < data->rank; i++)
            shape[i] = chunk[i];
        data->plain_edges = H5Pget_chunk_opts(look->dcpl, &options) >= 0 &&
                            (options & H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS);
    }
    if (data->storage != READER_VIRTUAL && !reader_data_set_chunk(data, shape)) {
        for (unsigned i = 0; i < data->rank; i++)
            chunk[i] = shape[i];
        shape_name(chunk, (int)data->rank, text, sizeof(text));
        return error_set(look->err, STOW_LIMIT,
                         "%s: dataset %s has chunks of the shape %s: more than %" PRIu64
                         " of them, or of 4 GiB and more, are not supported",
                         look->shown, look->path, text, (uint64_t)ASSEMBLY_MAX_CHUNKS);
    }
    data->direct = memcmp(shape, frame, sizeof(shape)) == 0;
    return 0;
}

static int check_filters(struct look *look)
{
    struct reader_data *data = look->data;
    int status = reader_data_filters(look->file, look->path, look->dcpl, data, look->err);
    data->direct = data->direct && !data->big_endian && (data->n_filters == 0 || data->bslz4);
    return status;
}

static int get_fill(struct look *look)
{
    struct reader_data *data = look->data;
    H5D_fill_value_t defined = H5D_FILL_VALUE_ERROR;
    uint8_t fill[8] = {0};
    if (H5Pfill_value_defined(look->dcpl, &defined) < 0 || defined != H5D_FILL_VALUE_USER_DEFINED)
        return 0; /* the library's own is 0, and an undefined one reads as 0 */
    if (H5Pget_fill_value(look->dcpl, look->native, fill) < 0)
        return hdf5_failed(look, "a fill value");
    for (unsigned i = 0; i < data->elem_bytes; i++)
        data->fill |= (uint64_t)fill[i] << (8 * i);
    return 0;
}

int reader_data_describe(const struct reader_file *file, const char *path, hid_t dataset,
                         struct reader_data *data, struct stow_error *err)
{
    static int (*const checks[])(struct look *) = {check_type,  check_dims,    check_storage,
                                                   check_chunk, check_filters, get_fill};
    struct look look = {.file = file,
                        .shown = file->shown,
                        .path = path,
                        .dataset = dataset,
                        .native = H5I_INVALID_HID,
                        .data = data,
                        .err = err};
    *data = (struct reader_data){0};
    if (H5Iget_type(dataset) != H5I_DATASET)
        return error_set(err, STOW_SOURCE, "%s: %s is not a dataset", file->shown, path);
    look.dcpl = H5Dget_create_plist(dataset);
    if (look.dcpl < 0)
        return error_set(err, STOW_SOURCE, "%s: dataset %s cannot be understood (%s)", file->shown,
                         path, reader_file_reason());
    int status = 0;
    for (size_t i = 0; !status && i < sizeof(checks) / sizeof(checks[0]); i++)
        status = checks[i](&look);
    H5Pclose(look.dcpl);
    return status;
}
