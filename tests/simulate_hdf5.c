/* SPDX-License-Identifier: Apache-2.0 */
#include "simulate_hdf5.h"

#include <errno.h>
#include <hdf5.h>
#include <stdlib.h>
#include <string.h>

#define FILTER_BSLZ4 32008
#define PATH_ROOM 4096

struct shard {
    const struct layout *layout;
    size_t first;
    hid_t file, dataset;
    char path[PATH_ROOM];
};

size_t layout_first(const struct layout *layout, size_t shard)
{
    return layout->n_frames / layout->n_shards * shard +
           (layout->n_frames % layout->n_shards * shard) / layout->n_shards;
}

/* HDF5 leaves the system's reason in errno, where there was one. */
static int write_failed(struct stow_error *err, const char *path)
{
    if (errno)
        return error_errno(err, errno, "cannot write %s", path);
    return error_set(err, STOW_IO, "cannot write %s: HDF5 refused", path);
}

static hid_t stored_type(size_t elem_bytes)
{
    return elem_bytes == 1 ? H5T_STD_U8LE : elem_bytes == 2 ? H5T_STD_U16LE : H5T_STD_U32LE;
}

static hid_t file_create(const char *path)
{
    H5dont_atexit(); /* it would try a failed file again at exit, and crash on it */
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL); /* failures are told by the caller */
    errno = 0;
    return H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
}

/* ---- small pieces of metadata; true when written ---- */

static hid_t text_type(const char *text)
{
    hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, strlen(text));
    H5Tset_strpad(type, H5T_STR_NULLPAD);
    return type;
}

static bool put_attribute(hid_t object, const char *name, hid_t type, const void *value)
{
    hid_t space = H5Screate(H5S_SCALAR);
    hid_t attribute = H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    bool ok = attribute >= 0 && H5Awrite(attribute, type, value) >= 0;
    if (attribute >= 0)
        ok &= H5Aclose(attribute) >= 0;
    H5Sclose(space);
    return ok;
}

static bool put_text_attribute(hid_t object, const char *name, const char *text)
{
    hid_t type = text_type(text);
    bool ok = put_attribute(object, name, type, text);
    H5Tclose(type);
    return ok;
}

/* rank 0: a scalar. */
static bool put_dataset(hid_t group, const char *name, hid_t type, int rank, const hsize_t *dims,
                        const void *values)
{
    hid_t space = rank ? H5Screate_simple(rank, dims, NULL) : H5Screate(H5S_SCALAR);
    hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_obj_track_times(properties, false); /* the same options make the same bytes */
    hid_t dataset = H5Dcreate2(group, name, type, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    bool ok = dataset >= 0 && H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0;
    if (dataset >= 0)
        ok &= H5Dclose(dataset) >= 0;
    H5Pclose(properties);
    H5Sclose(space);
    return ok;
}

static bool put_number(hid_t group, const char *name, uint64_t value)
{
    return put_dataset(group, name, H5T_NATIVE_UINT64, 0, NULL, &value);
}

static bool put_real(hid_t group, const char *name, double value)
{
    return put_dataset(group, name, H5T_NATIVE_DOUBLE, 0, NULL, &value);
}

static bool put_text(hid_t group, const char *name, const char *text)
{
    hid_t type = text_type(text);
    bool ok = put_dataset(group, name, type, 0, NULL, text);
    H5Tclose(type);
    return ok;
}

/* Returns the group, with its NeXus class; negative on failure. */
static hid_t group_create(hid_t parent, const char *name, const char *nexus)
{
    hid_t group = H5Gcreate2(parent, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    if (group >= 0 && !put_text_attribute(group, "NX_class", nexus)) {
        H5Gclose(group);
        return H5I_INVALID_HID;
    }
    return group;
}

static bool group_close(hid_t group, bool ok)
{
    return group >= 0 && H5Gclose(group) >= 0 && ok;
}

/* ---- master ---- */

static bool put_pixel_mask(hid_t group, const struct layout *l)
{
    uint32_t *mask = calloc(l->det_y * l->det_x, sizeof(*mask));
    if (!mask)
        return false;
    for (size_t i = 0; i < l->n_flagged; i++)
        mask[l->flagged[i]] = 2; /* dead, in DECTRIS's bits */
    hsize_t dims[] = {l->det_y, l->det_x};
    bool ok = put_dataset(group, "pixel_mask", H5T_NATIVE_UINT32, 2, dims, mask);
    free(mask);
    return ok;
}

static bool put_specific(hid_t detector, const struct layout *l)
{
    hid_t group = group_create(detector, "detectorSpecific", "NXcollection");
    bool ok = group >= 0 && put_number(group, "nimages", 1) &&
              put_number(group, "ntrigger", l->n_frames) &&
              put_number(group, "x_pixels_in_detector", l->det_x) &&
              put_number(group, "y_pixels_in_detector", l->det_y) &&
              put_real(group, "photon_energy", 300000) && put_text(group, "compression", "bslz4") &&
              put_text(group, "trigger_mode", "exts") &&
              put_text(group, "software_version", "1.8.0") && put_pixel_mask(group, l);
    return group_close(group, ok);
}

static bool put_instrument(hid_t entry, const struct layout *l)
{
    uint64_t bits = 8 * l->elem_bytes;
    hid_t instrument = group_create(entry, "instrument", "NXinstrument");
    hid_t detector =
        instrument < 0 ? instrument : group_create(instrument, "detector", "NXdetector");
    bool ok = detector >= 0 && put_number(detector, "bit_depth_image", bits) &&
              put_number(detector, "bit_depth_readout", bits) &&
              put_text(detector, "description", "Simulated 4D-STEM detector") &&
              put_text(detector, "detector_number", "S-00-0000") &&
              put_real(detector, "count_time", 9.95e-5) &&
              put_real(detector, "frame_time", 9.96e-5) &&
              put_real(detector, "x_pixel_size", 1e-4) &&
              put_real(detector, "y_pixel_size", 1e-4) && put_specific(detector, l);
    ok = group_close(detector, ok);
    return group_close(instrument, ok);
}

static bool put_links(hid_t entry, const struct layout *l)
{
    hid_t data = group_create(entry, "data", "NXdata");
    bool ok = data >= 0 && put_text_attribute(data, "signal", "data_000001");
    for (size_t i = 0; ok && i < l->n_shards; i++) {
        char file[PATH_ROOM], link[32];
        snprintf(file, sizeof(file), "%s_data_%06zu.h5", l->name, i + 1);
        snprintf(link, sizeof(link), "data_%06zu", i + 1);
        ok =
            H5Lcreate_external(file, "/entry/data/data", data, link, H5P_DEFAULT, H5P_DEFAULT) >= 0;
    }
    return group_close(data, ok);
}

int master_write(const struct layout *layout, struct stow_error *err)
{
    char path[PATH_ROOM];
    snprintf(path, sizeof(path), "%s/%s_master.h5", layout->folder, layout->name);
    hid_t file = file_create(path);
    if (file < 0)
        return write_failed(err, path);
    hid_t entry = group_create(file, "entry", "NXentry");
    bool ok = entry >= 0 && put_text_attribute(file, "default", "entry") &&
              put_text(entry, "definition", "NXmx") && put_instrument(entry, layout) &&
              put_links(entry, layout);
    ok = group_close(entry, ok);
    ok &= H5Fclose(file) >= 0;
    return ok ? 0 : write_failed(err, path);
}

/* ---- shards ---- */

/* HDF5 asks for a filter's code before it lets a dataset name it; chunks come compressed, so it never runs.
 * It also stands in for an installed plug-in, which would put parameters of its own before ours. */
static size_t filter_never(unsigned flags, size_t n_values, const unsigned values[], size_t bytes,
                           size_t *buffer_bytes, void **buffer)
{
    (void)flags, (void)n_values, (void)values, (void)bytes, (void)buffer_bytes, (void)buffer;
    return 0;
}

static bool filter_name(void)
{
    static const H5Z_class2_t class = {
        .version = H5Z_CLASS_T_VERS,
        .id = FILTER_BSLZ4,
        .encoder_present = 1,
        .decoder_present = 1,
        .name = "bitshuffle; see https://github.com/kiyo-masui/bitshuffle",
        .filter = filter_never,
    };
    return H5Zregister(&class) >= 0;
}

static hid_t dataset_create(hid_t group, const struct layout *l, size_t n_frames)
{
    hsize_t dims[] = {n_frames, l->det_y, l->det_x}, chunk[] = {1, l->det_y, l->det_x};
    unsigned values[] = {0, 3, (unsigned)l->elem_bytes, 0,
                         2}; /* version 0.3, block by default, LZ4 */
    hid_t properties = H5Pcreate(H5P_DATASET_CREATE), space = H5Screate_simple(3, dims, NULL);
    hid_t dataset = H5I_INVALID_HID;
    if (filter_name() && H5Pset_obj_track_times(properties, false) >= 0 &&
        H5Pset_chunk(properties, 3, chunk) >= 0 &&
        H5Pset_filter(properties, FILTER_BSLZ4, H5Z_FLAG_MANDATORY, 5, values) >= 0)
        dataset = H5Dcreate2(group, "data", stored_type(l->elem_bytes), space, H5P_DEFAULT,
                             properties, H5P_DEFAULT);
    H5Sclose(space);
    H5Pclose(properties);
    return dataset;
}

int shard_open(struct shard **shard, const struct layout *layout, size_t index,
               struct stow_error *err)
{
    struct shard *s = calloc(1, sizeof(*s));
    if (!s)
        return error_set(err, STOW_NOMEM, "out of memory");
    s->layout = layout;
    s->first = layout_first(layout, index);
    snprintf(s->path, sizeof(s->path), "%s/%s_data_%06zu.h5", layout->folder, layout->name,
             index + 1);
    s->file = file_create(s->path);
    if (s->file < 0) {
        int code = write_failed(err, s->path);
        free(s);
        return code;
    }
    size_t end = layout_first(layout, index + 1);
    uint32_t low = (uint32_t)s->first + 1, high = (uint32_t)end;
    hid_t entry = group_create(s->file, "entry", "NXentry");
    hid_t data = entry < 0 ? entry : group_create(entry, "data", "NXdata");
    s->dataset = data < 0 ? data : dataset_create(data, layout, end - s->first);
    bool ok = s->dataset >= 0 &&
              put_attribute(s->dataset, "image_nr_low", H5T_NATIVE_UINT32, &low) &&
              put_attribute(s->dataset, "image_nr_high", H5T_NATIVE_UINT32, &high);
    ok = group_close(data, ok);
    ok = group_close(entry, ok);
    if (!ok) {
        int code = write_failed(err, s->path);
        shard_close(s, NULL);
        return code;
    }
    *shard = s;
    return 0;
}

int shard_put(struct shard *shard, size_t frame, const void *chunk, size_t bytes,
              struct stow_error *err)
{
    hsize_t at[] = {frame - shard->first, 0, 0};
    errno = 0;
    if (H5Dwrite_chunk(shard->dataset, H5P_DEFAULT, 0, at, bytes, chunk) < 0)
        return write_failed(err, shard->path);
    return 0;
}

int shard_close(struct shard *shard, struct stow_error *err)
{
    if (!shard)
        return 0;
    errno = 0;
    bool ok = shard->dataset < 0 || H5Dclose(shard->dataset) >= 0;
    ok &= H5Fclose(shard->file) >= 0;
    int code = ok ? 0 : write_failed(err, shard->path);
    free(shard);
    return code;
}
