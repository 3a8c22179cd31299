/* SPDX-License-Identifier: Apache-2.0
 *
 * The attributes are scalars or arrays of one element, of any integer type. NumPixelsPrescan is not needed: whether there are
 * frames of those pixels shows in the number of frames, and then the user says how they lie. */
#define H5_USE_110_API 1
#include "reader_companion.h"

#include <hdf5.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SUFFIX "_master.h5"
#define GROUP "STEM Metadata"

/* BASE.h5 of /some/where/BASE_master.h5. False: it is no such master. */
static bool name_companion(const char *master, char *name, size_t room)
{
    const char *slash = strrchr(master, '/'), *base = slash ? slash + 1 : master;
    size_t all = strlen(base), suffix = strlen(SUFFIX);
    if (all <= suffix || strcmp(base + all - suffix, SUFFIX) != 0)
        return false;
    return snprintf(name, room, "%.*s.h5", (int)(all - suffix), base) < (int)room;
}

static bool get_number(hid_t object, const char *name, uint64_t *number)
{
    if (H5Aexists(object, name) <= 0)
        return false;
    hid_t attribute = H5Aopen(object, name, H5P_DEFAULT);
    hid_t type = attribute >= 0 ? H5Aget_type(attribute) : H5I_INVALID_HID;
    hid_t space = attribute >= 0 ? H5Aget_space(attribute) : H5I_INVALID_HID;
    bool ok = type >= 0 && space >= 0 && H5Tget_class(type) == H5T_INTEGER &&
              H5Sget_simple_extent_npoints(space) == 1 &&
              H5Aread(attribute, H5T_NATIVE_UINT64, number) >= 0;
    if (space >= 0)
        H5Sclose(space);
    if (type >= 0)
        H5Tclose(type);
    if (attribute >= 0)
        H5Aclose(attribute);
    return ok;
}

static bool get_scan(const struct reader_file *file, uint64_t *y, uint64_t *x)
{
    if (H5Lexists(file->hid, GROUP, H5P_DEFAULT) <= 0)
        return false;
    hid_t group = H5Gopen2(file->hid, GROUP, H5P_DEFAULT);
    bool ok = group >= 0 && get_number(group, "NumPixelsY", y) &&
              get_number(group, "NumPixelsX", x) && *y && *x;
    if (group >= 0)
        H5Gclose(group);
    return ok;
}

static bool take(struct reader *reader, size_t file, struct reader_shape *shape)
{
    uint64_t y, x, all;
    if (!get_scan(reader->files[file], &y, &x))
        return false;
    if (!__builtin_mul_overflow(y, x, &all) && all == shape->n_frames) {
        shape->scan_y = y;
        shape->scan_x = x;
        return true;
    }
    reader_warn(reader,
                "%s says a scan of %" PRIu64 "x%" PRIu64 ", which does not fit the %" PRIu64
                " frames: they are a list without a shape (--scan gives one)",
                reader->files[file]->shown, y, x, shape->n_frames);
    return false;
}

bool reader_companion(struct reader *reader, struct reader_shape *shape)
{
    char name[READER_PATH];
    struct stow_error err;
    size_t file, before = reader->n_files;
    if (shape->scan_y || !name_companion(reader->files[0]->name, name, sizeof(name)) ||
        reader_ask(reader, name, &file, &err) || reader->n_files == before)
        return false;
    int status = reader_open(reader, file, &err);
    if (status && status != STOW_MISSING)
        reader_warn(reader, "the scan's shape is not looked up: %s", err.text);
    bool used = !status && take(reader, file, shape);
    if (!status)
        reader_file_shut(reader->files[file]);
    return !used;
}
