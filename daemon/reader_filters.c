/* SPDX-License-Identifier: Apache-2.0
 *
 * The filters of a dataset. Those that framestowd undoes itself are taken as they are stored; others are refused by number and
 * name: a plugin of the HDF5 library is code that this process has not got and cannot load. */
#define H5_USE_110_API 1
#include "reader_data.h"

#include <stdio.h>
#include <string.h>

#define BITSHUFFLE 32008
#define MAX_VALUES 32

enum { BITSHUFFLE_NONE = 0, BITSHUFFLE_LZ4 = 2, BITSHUFFLE_ZSTD = 3 };

static const struct {
    H5Z_filter_t number;
    bool known; /* undone by us */
    const char *name;
} filters[] = {
    {1, true, "gzip"},          {2, true, "shuffle"},        {3, true, "fletcher32"},
    {4, false, "szip"},         {5, false, "nbit"},          {6, false, "scaleoffset"},
    {307, false, "bzip2"},      {32000, false, "LZF"},       {32001, false, "Blosc"},
    {32004, true, "LZ4"},       {32008, true, "bitshuffle"}, {32013, false, "ZFP"},
    {32015, true, "Zstandard"}, {32017, false, "SZ"},        {32018, false, "FCIDECOMP"},
    {32019, false, "JPEG"},     {32023, false, "SZ3"},       {32026, false, "Blosc2"},
    {32028, false, "SPERR"},
};
#define N_FILTERS (sizeof(filters) / sizeof(filters[0]))

static bool is_known(H5Z_filter_t number)
{
    for (size_t i = 0; i < N_FILTERS; i++)
        if (filters[i].number == number)
            return filters[i].known;
    return false;
}

struct look {
    const char *shown, *path;
    hid_t dcpl;
    int n;
    struct reader_data *data;
    struct stow_error *err;
};

static int hdf5_failed(const struct look *look)
{
    return error_set(look->err, STOW_SOURCE,
                     "%s: dataset %s has filters that HDF5 cannot tell (%s)", look->shown,
                     look->path, reader_file_reason());
}

/* "2 (shuffle), then 32001 (Blosc)" */
static void list_filters(const struct look *look, char *text, size_t room)
{
    size_t at = 0;
    text[0] = '\0';
    for (int i = 0; i < look->n && at < room; i++) {
        unsigned flags, config;
        size_t n_values = 0;
        char stored[64] = "";
        H5Z_filter_t number = H5Pget_filter2(look->dcpl, (unsigned)i, &flags, &n_values, NULL,
                                             sizeof(stored), stored, &config);
        const char *name = stored[0] ? stored : "unnamed";
        for (size_t k = 0; k < N_FILTERS; k++)
            if (filters[k].number == number)
                name = filters[k].name;
        at += (size_t)snprintf(text + at, room - at, "%s%d (%.40s)", i ? ", then " : "",
                               (int)number, name);
    }
}

static int refuse(const struct look *look, const char *why)
{
    char text[256];
    list_filters(look, text, sizeof(text));
    return error_set(
        look->err, STOW_UNSUPPORTED,
        "%s: dataset %s has chunks with filter %s, which is not supported%s; rewrite it "
        "where that filter's plugin is installed, for example by `h5repack -f GZIP=1 "
        "OLD NEW`",
        look->shown, look->path, text, why);
}

/* (block, mode) as given, or (version, version, element size, block, mode, ...) as the filter stores them. */
static unsigned bitshuffle_mode(const struct assembly_filter *filter)
{
    return filter->n_values == 2  ? filter->values[1]
           : filter->n_values > 4 ? filter->values[4]
                                  : BITSHUFFLE_NONE;
}

static int check_bitshuffle(const struct look *look, const struct assembly_filter *filter)
{
    unsigned mode = bitshuffle_mode(filter);
    if (filter->n_values > 2 && filter->values[2] != look->data->elem_bytes)
        return refuse(look, " with elements of another size than the dataset's");
    if (mode != BITSHUFFLE_NONE && mode != BITSHUFFLE_LZ4 && mode != BITSHUFFLE_ZSTD)
        return refuse(look, " in its compression mode");
    return 0;
}

static int take_filter(const struct look *look, unsigned i)
{
    unsigned flags, config, values[MAX_VALUES];
    size_t n_values = MAX_VALUES;
    H5Z_filter_t number =
        H5Pget_filter2(look->dcpl, i, &flags, &n_values, values, 0, NULL, &config);
    if (number < 0)
        return hdf5_failed(look);
    if (!is_known(number))
        return refuse(look, "");
    if (n_values > ASSEMBLY_VALUES)
        return refuse(look, " with so many parameters");
    struct assembly_filter *filter = &look->data->filters[i];
    *filter = (struct assembly_filter){.id = (uint32_t)number, .n_values = (uint32_t)n_values};
    for (size_t k = 0; k < n_values; k++)
        filter->values[k] = values[k];
    look->data->n_filters = i + 1;
    return number == BITSHUFFLE ? check_bitshuffle(look, filter) : 0;
}

int reader_data_filters(const struct reader_file *file, const char *path, hid_t dcpl,
                        struct reader_data *data, struct stow_error *err)
{
    struct look look = {.shown = file->shown,
                        .path = path,
                        .dcpl = dcpl,
                        .n = H5Pget_nfilters(dcpl),
                        .data = data,
                        .err = err};
    int status = 0;
    if (look.n < 0)
        return hdf5_failed(&look);
    if (look.n > (int)ASSEMBLY_FILTERS || (look.n > 0 && data->storage != READER_CHUNKED))
        return refuse(&look,
                      data->storage == READER_CHUNKED ? " in such a number" : " without chunks");
    for (int i = 0; !status && i < look.n; i++)
        status = take_filter(&look, (unsigned)i);
    data->bslz4 = data->n_filters == 1 && data->filters[0].id == BITSHUFFLE &&
                  bitshuffle_mode(&data->filters[0]) == BITSHUFFLE_LZ4;
    return status;
}
