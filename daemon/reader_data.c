/* SPDX-License-Identifier: Apache-2.0 */
#define H5_USE_110_API 1
#include "reader_data.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define FILTER_BITSHUFFLE 32008
#define BITSHUFFLE_LZ4 2u
#define MAX_RANK 32

static const struct {
    H5Z_filter_t number;
    const char *name;
} filter_names[] = {
    {1, "gzip"},          {2, "shuffle"},     {3, "fletcher32"},     {4, "szip"},
    {5, "nbit"},          {6, "scaleoffset"}, {307, "bzip2"},        {32000, "LZF"},
    {32001, "Blosc"},     {32004, "LZ4"},     {32008, "bitshuffle"}, {32013, "ZFP"},
    {32015, "Zstandard"}, {32017, "SZ"},      {32026, "Blosc2"},
};

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
    const char *shown, *path;
    hid_t dataset, dcpl;
    struct reader_data *data;
    struct stow_error *err;
};

static int check_type(struct look *look)
{
    hid_t type = H5Dget_type(look->dataset);
    struct reader_data *data = look->data;
    char name[32];
    type_name(type, name, sizeof(name));
    size_t bytes = H5Tget_size(type);
    bool plain = H5Tget_class(type) == H5T_INTEGER && H5Tget_sign(type) == H5T_SGN_NONE &&
                 (bytes == 1 || H5Tget_order(type) == H5T_ORDER_LE) &&
                 (bytes == 1 || bytes == 2 || bytes == 4);
    bool full = plain && H5Tget_precision(type) == 8 * bytes && H5Tget_offset(type) == 0;
    H5Tclose(type);
    if (!plain)
        return error_set(look->err, STOW_UNSUPPORTED,
                         "%s: dataset %s has pixels of type %s, which is not supported; "
                         "u1, u2 and u4 are",
                         look->shown, look->path, name);
    if (!full)
        return error_set(look->err, STOW_UNSUPPORTED,
                         "%s: dataset %s has pixels of type %s with unused bits, which is "
                         "not supported",
                         look->shown, look->path, name);
    data->elem_bytes = (uint32_t)bytes;
    snprintf(data->dtype, sizeof(data->dtype), "u%u", (unsigned)bytes);
    return 0;
}

static int check_dims(struct look *look)
{
    struct reader_data *data = look->data;
    hsize_t dims[MAX_RANK], max_dims[MAX_RANK];
    char shape[128];
    int rank = get_dims(look->dataset, dims, max_dims);
    if (rank < 0)
        return error_set(look->err, STOW_SOURCE,
                         "%s: dataset %s has a shape that HDF5 cannot tell (%s)", look->shown,
                         look->path, reader_file_reason());
    shape_name(dims, rank, shape, sizeof(shape));
    if (rank < 2 || rank > READER_RANK)
        return error_set(look->err, STOW_UNSUPPORTED,
                         "%s: dataset %s has the shape %s, which is not supported: 2, 3 or "
                         "4 dimensions are, the last two of them a frame",
                         look->shown, look->path, shape);
    data->rank = (unsigned)rank;
    memcpy(data->dims, dims, (size_t)rank * sizeof(dims[0]));
    memcpy(data->max_dims, max_dims, (size_t)rank * sizeof(dims[0]));
    data->det_y = dims[rank - 2];
    data->det_x = dims[rank - 1];
    data->n_frames = 1;
    uint64_t pixels;
    bool huge = __builtin_mul_overflow(data->det_y, data->det_x, &pixels) ||
                __builtin_mul_overflow(pixels, (uint64_t)data->elem_bytes, &data->frame_bytes);
    for (int i = 0; i < rank - 2; i++)
        huge = huge || __builtin_mul_overflow(data->n_frames, dims[i], &data->n_frames);
    if (huge || data->frame_bytes > UINT32_MAX)
        return error_set(look->err, STOW_UNSUPPORTED,
                         "%s: dataset %s has the shape %s: frames of 4 GiB and more are not "
                         "supported",
                         look->shown, look->path, shape);
    if (pixels == 0)
        return error_set(look->err, STOW_SOURCE,
                         "%s: dataset %s has the shape %s: its frames have no pixels", look->shown,
                         look->path, shape);
    if (rank == 4) {
        data->scan_y = dims[0];
        data->scan_x = dims[1];
    }
    return 0;
}

static int check_chunk(struct look *look)
{
    const struct reader_data *data = look->data;
    hsize_t chunk[MAX_RANK] = {0};
    char text[128];
    int rank = H5Pget_chunk(look->dcpl, MAX_RANK, chunk);
    bool one_frame =
        rank == (int)data->rank && chunk[rank - 2] == data->det_y && chunk[rank - 1] == data->det_x;
    for (int i = 0; i < rank - 2; i++)
        one_frame = one_frame && chunk[i] == 1;
    if (one_frame)
        return 0;
    shape_name(chunk, rank, text, sizeof(text));
    return error_set(look->err, STOW_UNSUPPORTED,
                     "%s: dataset %s has chunks of the shape %s, which is not supported: "
                     "a chunk of one frame is",
                     look->shown, look->path, text);
}

static int check_layout(struct look *look)
{
    H5D_layout_t layout = H5Pget_layout(look->dcpl);
    const char *name =
        layout == H5D_VIRTUAL ? "a virtual dataset over other files" : "a compact dataset";
    if (layout == H5D_CHUNKED) {
        look->data->chunked = true;
        return check_chunk(look);
    }
    if (layout == H5D_CONTIGUOUS && H5Pget_external_count(look->dcpl) == 0)
        return 0;
    if (layout == H5D_CONTIGUOUS)
        name = "a dataset whose pixels lie in an external raw file";
    else if (layout != H5D_COMPACT && layout != H5D_VIRTUAL)
        return error_set(look->err, STOW_SOURCE,
                         "%s: dataset %s has a layout that HDF5 cannot tell (%s)", look->shown,
                         look->path, reader_file_reason());
    return error_set(look->err, STOW_UNSUPPORTED, "%s: %s is %s, which is not supported",
                     look->shown, look->path, name);
}

/* Whether these are the parameters of bitshuffle with LZ4: (block, 2) as given, or (version,
 * version, element size, block, 2) as the filter stores them. */
static bool is_bslz4(const unsigned *values, size_t n, uint32_t elem_bytes)
{
    if (n == 2)
        return values[1] == BITSHUFFLE_LZ4;
    return n >= 5 && values[2] == elem_bytes && values[4] == BITSHUFFLE_LZ4;
}

static int refuse_filters(struct look *look, int n)
{
    char text[256] = "";
    size_t at = 0;
    for (int i = 0; i < n && at < sizeof(text); i++) {
        unsigned flags, config;
        size_t n_values = 0;
        char stored[64] = "";
        H5Z_filter_t number = H5Pget_filter2(look->dcpl, (unsigned)i, &flags, &n_values, NULL,
                                             sizeof(stored), stored, &config);
        const char *name = stored[0] ? stored : "unnamed";
        for (size_t k = 0; k < sizeof(filter_names) / sizeof(filter_names[0]); k++)
            if (filter_names[k].number == number)
                name = filter_names[k].name;
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%d (%.40s)", i ? ", then " : "",
                               (int)number, name);
    }
    return error_set(look->err, STOW_UNSUPPORTED,
                     "%s: dataset %s has chunks with filter %s, which is not supported: "
                     "32008 (bitshuffle with LZ4) alone or no filter is",
                     look->shown, look->path, text);
}

static int check_filters(struct look *look)
{
    unsigned flags, config, values[16];
    size_t n_values = sizeof(values) / sizeof(values[0]);
    int n = H5Pget_nfilters(look->dcpl);
    if (n == 0)
        return 0;
    if (n < 0)
        return error_set(look->err, STOW_SOURCE,
                         "%s: dataset %s has filters that HDF5 cannot tell (%s)", look->shown,
                         look->path, reader_file_reason());
    H5Z_filter_t number =
        H5Pget_filter2(look->dcpl, 0, &flags, &n_values, values, 0, NULL, &config);
    if (n != 1 || number != FILTER_BITSHUFFLE || !look->data->chunked)
        return refuse_filters(look, n);
    if (!is_bslz4(values, n_values < 16 ? n_values : 16, look->data->elem_bytes))
        return error_set(
            look->err, STOW_UNSUPPORTED,
            "%s: dataset %s has bitshuffled chunks (filter 32008) that are "
            "not compressed by LZ4, or not of its element size, which is not supported",
            look->shown, look->path);
    look->data->bslz4 = true;
    return 0;
}

static int get_fill(struct look *look)
{
    struct reader_data *data = look->data;
    H5D_fill_value_t defined = H5D_FILL_VALUE_ERROR;
    union {
        uint8_t u1;
        uint16_t u2;
        uint32_t u4;
    } fill = {.u4 = 0};
    if (H5Pfill_value_defined(look->dcpl, &defined) < 0 || defined != H5D_FILL_VALUE_USER_DEFINED)
        return 0; /* the library's own is 0, and an undefined one reads as 0 */
    hid_t type = data->elem_bytes == 1   ? H5T_NATIVE_UINT8
                 : data->elem_bytes == 2 ? H5T_NATIVE_UINT16
                                         : H5T_NATIVE_UINT32;
    if (H5Pget_fill_value(look->dcpl, type, &fill) < 0)
        return error_set(look->err, STOW_SOURCE,
                         "%s: dataset %s has a fill value that HDF5 cannot tell (%s)", look->shown,
                         look->path, reader_file_reason());
    data->fill = data->elem_bytes == 1 ? fill.u1 : data->elem_bytes == 2 ? fill.u2 : fill.u4;
    return 0;
}

int reader_data_describe(const struct reader_file *file, const char *path, hid_t dataset,
                         struct reader_data *data, struct stow_error *err)
{
    static int (*const checks[])(struct look *) = {check_type, check_dims, check_layout,
                                                   check_filters, get_fill};
    struct look look = {
        .shown = file->shown, .path = path, .dataset = dataset, .data = data, .err = err};
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
