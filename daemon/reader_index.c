/* SPDX-License-Identifier: Apache-2.0 */
#define H5_USE_110_API 1
#include "reader_index.h"

#include "reader_walk.h"
#include "source.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SLOW_CHUNKS \
    20000 /* H5Dget_chunk_info takes some 12 s for so many, and four times that for twice */
#define FEW_CHUNKS 3000
#define N_SAMPLES 3
#define MAX_COMPARED (UINT64_C(64) << 20) /* bytes of a chunk whose content is compared */

/* H5Dchunk_iter came with 1.10.10; what is built on an older HDF5 may run on a newer. Its
 * callback gets the bytes as 32 or 64 bits by version; a chunk is below 4 GiB, so the low half
 * will do. */
typedef int (*chunk_op)(const hsize_t *offset, uint32_t mask, haddr_t address, uint32_t bytes,
                        void *data);
typedef herr_t (*chunk_iter)(hid_t dataset, hid_t dxpl, chunk_op op, void *data);

struct build {
    struct reader *reader;
    struct reader_file *file;
    size_t file_number;
    const char *path;
    hid_t dataset;
    const struct reader_data *data;
    struct assembly_chunk *chunks;
    uint64_t base; /* to be added to addresses */
    uint64_t n_written;
};

static void clear(struct build *build)
{
    for (uint64_t i = 0; i < build->data->n_chunks; i++)
        build->chunks[i] = (struct assembly_chunk){.file = (uint32_t)build->file_number};
    build->n_written = 0;
}

/* Where in the dataset a chunk begins. */
static void chunk_offset(const struct reader_data *data, uint64_t chunk, hsize_t *offset)
{
    for (unsigned i = data->rank; i-- > 0;) {
        offset[i] = chunk % data->grid[i] * data->chunk[i];
        chunk /= data->grid[i];
    }
}

static bool reaches_past_end(const struct reader_data *data, uint64_t chunk)
{
    hsize_t offset[READER_RANK];
    chunk_offset(data, chunk, offset);
    for (unsigned i = 0; i < data->rank; i++)
        if (data->dims[i] - offset[i] < data->chunk[i])
            return true;
    return false;
}

/* One chunk. False: it was there already, so the index cannot be right. */
static bool put(void *to, uint64_t number, uint64_t address, uint64_t bytes, uint32_t mask)
{
    struct build *build = to;
    const struct reader_data *data = build->data;
    const uint32_t all = reader_data_all_filters(data);
    struct assembly_chunk *chunk = &build->chunks[number];
    if (chunk->bytes || chunk->fault)
        return false;
    chunk->mask = data->plain_edges && reaches_past_end(data, number) ? all : mask & all;
    uint64_t end;
    if (__builtin_add_overflow(address, build->base, &chunk->offset) ||
        __builtin_add_overflow(chunk->offset, bytes, &end) || end > build->file->io.size)
        chunk->fault = SOURCE_FAULT_PAST_END;
    else if (bytes == 0 || bytes > UINT32_MAX || (chunk->mask == all && bytes != data->chunk_bytes))
        chunk->fault = SOURCE_FAULT_BYTES;
    chunk->bytes = bytes > UINT32_MAX ? UINT32_MAX : (uint32_t)bytes;
    if (++build->n_written % 4096 == 0)
        reader_alive(build->reader);
    return true;
}

/* ---- without chunks in the file -------------------------------------------------------------- */

static bool put_frames(struct build *build, uint64_t start)
{
    for (uint64_t i = 0; i < build->data->n_chunks; i++) {
        uint64_t address; /* a shape that no file holds: past the end of this one */
        if (__builtin_mul_overflow(i, build->data->frame_bytes, &address) ||
            __builtin_add_overflow(address, start, &address))
            address = UINT64_MAX;
        if (!put(build, i, address, build->data->frame_bytes, 0))
            return false;
    }
    return true;
}

static bool build_contiguous(struct build *build)
{
    haddr_t start =
        H5Dget_offset(build->dataset); /* the base is in it, also where there is no address */
    if (H5Dget_storage_size(build->dataset) == 0)
        return true;
    if (start == HADDR_UNDEF)
        return false;
    build->base = 0;
    return put_frames(build, start);
}

static bool find_layout(const struct build *build, const struct reader_bytes *bytes,
                        struct reader_layout *layout)
{
    H5O_info_t info;
    return H5Oget_info2(build->dataset, &info, H5O_INFO_BASIC) >= 0 &&
           reader_layout_find(bytes, info.addr, layout);
}

/* Whether HDF5 reads the same bytes as lie at this address of the file. */
static bool same_pixels(struct build *build, uint64_t address, size_t bytes)
{
    uint8_t *theirs = malloc(2 * bytes);
    hid_t type = H5Dget_type(build->dataset);
    bool same = theirs && type >= 0 &&
                H5Dread(build->dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, theirs) >= 0 &&
                reader_fd_read(&build->file->io, address, theirs + bytes, bytes) &&
                memcmp(theirs, theirs + bytes, bytes) == 0;
    if (type >= 0)
        H5Tclose(type);
    free(theirs);
    return same;
}

static bool build_compact(struct build *build)
{
    struct reader_file *file = build->file;
    const struct reader_bytes bytes = {&file->io, file->base, file->offset_bytes,
                                       file->length_bytes};
    struct reader_layout layout;
    uint64_t all;
    if (build->data->n_chunks == 0)
        return true;
    build->base = file->base;
    return find_layout(build, &bytes, &layout) && layout.kind == READER_INDEX_COMPACT &&
           !__builtin_mul_overflow(build->data->n_chunks, build->data->frame_bytes, &all) &&
           all == layout.single_bytes && same_pixels(build, build->base + layout.address, all) &&
           put_frames(build, layout.address);
}

/* ---- our own walk ---------------------------------------------------------------------------- */

static bool walk_index(struct build *build)
{
    struct reader_layout layout;
    struct reader_file *file = build->file;
    const struct reader_data *data = build->data;
    const struct reader_bytes bytes = {&file->io, file->base, file->offset_bytes,
                                       file->length_bytes};
    const struct reader_walk walk = {.bytes = &bytes, .data = data, .put = put, .to = build};
    if (!find_layout(build, &bytes, &layout))
        return false;
    if (layout.address == READER_NO_ADDRESS)
        return true;
    switch (layout.kind) {
    case READER_INDEX_BTREE1: return reader_walk_btree(&walk, layout.address);
    case READER_INDEX_SINGLE:
        return data->n_chunks == 1 &&
               put(build, 0, layout.address,
                   data->n_filters ? layout.single_bytes : data->chunk_bytes, layout.single_mask);
    case READER_INDEX_IMPLICIT: return reader_walk_implicit(&walk, layout.address);
    case READER_INDEX_FIXED: return reader_walk_fixed(&walk, layout.address);
    case READER_INDEX_EXTENSIBLE: return reader_walk_extensible(&walk, layout.address);
    default: return false;
    }
}

/* Whether HDF5 reads the same bytes for this chunk as lie where we think. */
static bool same_chunk(struct build *build, uint64_t number)
{
    const struct assembly_chunk *chunk = &build->chunks[number];
    const uint32_t all = reader_data_all_filters(build->data);
    hsize_t offset[READER_RANK], bytes = 0;
    uint32_t mask = 0;
    chunk_offset(build->data, number, offset);
    if (H5Dget_chunk_storage_size(build->dataset, offset, &bytes) < 0)
        bytes = 0; /* how some versions say that there is no chunk */
    if (bytes != chunk->bytes)
        return false;
    if (bytes == 0 || chunk->fault || bytes > MAX_COMPARED)
        return true;
    uint8_t *theirs = malloc(2 * (size_t)bytes), *ours = theirs ? theirs + bytes : NULL;
    bool same = theirs && H5Dread_chunk(build->dataset, H5P_DEFAULT, offset, &mask, theirs) >= 0 &&
                reader_fd_read(&build->file->io, chunk->offset, ours, bytes) &&
                memcmp(theirs, ours, bytes) == 0;
    if (same && !(build->data->plain_edges && reaches_past_end(build->data, number)))
        same = (mask & all) == chunk->mask;
    free(theirs);
    return same;
}

/* The chunk in [first, end) nearest to its start that was written, or was not. end: none. */
static uint64_t next_chunk(const struct build *build, uint64_t first, uint64_t end, bool written)
{
    uint64_t i = first;
    while (i < end && ((build->chunks[i].bytes || build->chunks[i].fault) != written))
        i++;
    return i;
}

/* Compare a few chunks with HDF5: the first and last and one between, of those written and of
 * the others. */
static bool check_samples(struct build *build)
{
    uint64_t n = build->data->n_chunks;
    if (n == 0)
        return true;
    for (int written = 0; written <= 1; written++) {
        const uint64_t starts[N_SAMPLES] = {0, n / 2, n - 1};
        uint64_t done = n; /* the sample before */
        for (int i = 0; i < N_SAMPLES; i++) {
            uint64_t chunk = next_chunk(build, starts[i], n, written);
            if (chunk < n && chunk != done && !same_chunk(build, chunk))
                return false;
            done = chunk;
        }
    }
    return true;
}

/* ---- by the library -------------------------------------------------------------------------- */

/* A file of one known chunk behind a user block, in memory: do this library's chunk addresses
 * count from byte 0 or from the base? Releases differ. *adds is the answer; false: it cannot be
 * told. */
static bool probe_base(bool *adds)
{
    const hsize_t dims[1] = {8}, block = 512;
    uint8_t pixels[8] = {1, 2, 3, 5, 8, 13, 21, 34};
    hsize_t offset[1], bytes = 0;
    unsigned mask;
    haddr_t address = HADDR_UNDEF;
    void *image = NULL;
    hid_t fapl = H5Pcreate(H5P_FILE_ACCESS), fcpl = H5Pcreate(H5P_FILE_CREATE),
          dcpl = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_fapl_core(fapl, 65536, 0);
    H5Pset_userblock(fcpl, block);
    H5Pset_chunk(dcpl, 1, dims);
    hid_t file = H5Fcreate("probe", H5F_ACC_TRUNC, fcpl, fapl),
          space = H5Screate_simple(1, dims, NULL);
    hid_t set = H5Dcreate2(file, "d", H5T_NATIVE_UINT8, space, H5P_DEFAULT, dcpl, H5P_DEFAULT);
    bool ok = set >= 0 &&
              H5Dwrite(set, H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, pixels) >= 0 &&
              H5Fflush(file, H5F_SCOPE_LOCAL) >= 0 &&
              H5Dget_chunk_info(set, space, 0, offset, &mask, &address, &bytes) >= 0 &&
              H5Fget_vfd_handle(file, fapl, &image) >= 0 && image;
    if (ok) {
        const uint8_t *start =
            *(uint8_t **)image; /* the core driver's handle is where it keeps the pointer */
        *adds = memcmp(start + address, pixels, sizeof(pixels)) == 0;
        ok = *adds || memcmp(start + block + address, pixels, sizeof(pixels)) == 0;
    }
    H5Dclose(set);
    H5Sclose(space);
    H5Fclose(file);
    H5Pclose(dcpl);
    H5Pclose(fcpl);
    H5Pclose(fapl);
    return ok;
}

/* The chunk at these offsets; data->n_chunks: nowhere. */
static uint64_t chunk_at(const struct reader_data *data, const hsize_t *offset)
{
    uint64_t chunk = 0;
    for (unsigned i = 0; i < data->rank; i++) {
        if (offset[i] >= data->dims[i] || offset[i] % data->chunk[i] != 0)
            return data->n_chunks;
        chunk = chunk * data->grid[i] + offset[i] / data->chunk[i];
    }
    return chunk;
}

static int on_chunk(const hsize_t *offset, uint32_t mask, haddr_t address, uint32_t bytes,
                    void *data)
{
    struct build *build = data;
    uint64_t chunk = chunk_at(build->data, offset);
    return chunk < build->data->n_chunks && put(build, chunk, address, bytes, mask) ? 0 : -1;
}

static bool list_slowly(struct build *build, hsize_t n)
{
    hid_t space = H5Dget_space(build->dataset);
    bool ok = space >= 0;
    for (hsize_t i = 0; ok && i < n; i++) {
        hsize_t offset[READER_RANK], bytes = 0;
        haddr_t address = HADDR_UNDEF;
        unsigned mask = 0;
        ok = H5Dget_chunk_info(build->dataset, space, i, offset, &mask, &address, &bytes) >= 0 &&
             bytes <= UINT32_MAX && on_chunk(offset, mask, address, (uint32_t)bytes, build) == 0;
        reader_alive(build->reader);
    }
    H5Sclose(space);
    return ok;
}

static int broken(const struct build *build, struct stow_error *err)
{
    return error_set(
        err, STOW_SOURCE,
        "%s: the chunk index of dataset %s cannot be read (%s); the file may be damaged: "
        "copy it again or check it with h5dump",
        build->file->shown, build->path, reader_file_reason());
}

static int ask_library(struct build *build, struct stow_error *err)
{
    chunk_iter iterate;
    void *symbol = dlsym(RTLD_DEFAULT, "H5Dchunk_iter");
    memcpy(&iterate, &symbol, sizeof(iterate));
    hsize_t n = 0;
    bool adds = true;
    clear(build);
    if (build->file->base && !probe_base(&adds))
        return error_set(err, STOW_SOURCE,
                         "%s: HDF5 does not tell how it counts the %" PRIu64
                         " bytes before the data",
                         build->file->shown, build->file->base);
    build->base = adds ? 0 : build->file->base;
    if (iterate)
        return iterate(build->dataset, H5P_DEFAULT, on_chunk, build) >= 0 ? 0 : broken(build, err);
    hid_t space = H5Dget_space(build->dataset);
    herr_t counted = H5Dget_num_chunks(build->dataset, space, &n);
    H5Sclose(space);
    if (counted < 0)
        return broken(build, err);
    if (n > SLOW_CHUNKS)
        return error_set(err, STOW_UNSUPPORTED,
                         "%s: dataset %s has an unusual index of %" PRIu64 " chunks, for which "
                         "this HDF5 is too slow; with HDF5 1.10.10 or later it can be read",
                         build->file->shown, build->path, (uint64_t)n);
    return list_slowly(build, n) ? 0 : broken(build, err);
}

/* A file that is being written may change under our own walk; HDF5 knows in which order to look. */
static bool walk_first(const struct build *build)
{
    return !build->file->swmr || build->data->n_chunks > FEW_CHUNKS;
}

static int build_chunks(struct build *build, struct stow_error *err)
{
    build->base = build->file->base;
    if (walk_first(build) && walk_index(build) && check_samples(build))
        return 0;
    int status = ask_library(build, err);
    if (!status && !check_samples(build)) /* 1.10.8 lists some arrays in the wrong order */
        status = broken(build, err);
    return status;
}

int reader_index(struct reader *reader, size_t file, const char *path, hid_t dataset,
                 const struct reader_data *data, struct assembly_chunk *chunks, uint64_t *n_written,
                 struct stow_error *err)
{
    struct build build = {.reader = reader,
                          .file = reader->files[file],
                          .file_number = file,
                          .path = path,
                          .dataset = dataset,
                          .data = data,
                          .chunks = chunks};
    int status = 0;
    clear(&build);
    if (data->storage == READER_CHUNKED)
        status = build_chunks(&build, err);
    else if (data->storage == READER_COMPACT ? !build_compact(&build) : !build_contiguous(&build))
        status = error_set(err, STOW_SOURCE,
                           "%s: HDF5 cannot tell where the pixels of dataset %s lie (%s); the file "
                           "may be damaged: copy it again or check it with h5dump",
                           build.file->shown, path, reader_file_reason());
    *n_written = build.n_written;
    return status;
}
