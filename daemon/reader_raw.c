/* SPDX-License-Identifier: Apache-2.0 */
#define H5_USE_110_API 1
#include "reader_raw.h"

#include "reader_msg.h"
#include "source.h"

#include <stdlib.h>
#include <string.h>

#define MAX_SEGMENTS 100000

/* A piece of the dataset: bytes `first` .. first + bytes - 1 of it, at offset of a raw file. */
struct segment {
    char name[READER_PATH];
    uint64_t offset, bytes;
};

struct raw {
    const char *shown, *path;
    hid_t dcpl;
    int n;
    struct stow_error *err;
};

static int open_raw(struct raw *raw, const struct reader_file *file, const char *path,
                    hid_t dataset, struct stow_error *err)
{
    *raw = (struct raw){
        .shown = file->shown, .path = path, .dcpl = H5Dget_create_plist(dataset), .err = err};
    raw->n = raw->dcpl < 0 ? -1 : H5Pget_external_count(raw->dcpl);
    if (raw->n >= 1 && raw->n <= MAX_SEGMENTS)
        return 0;
    if (raw->dcpl >= 0)
        H5Pclose(raw->dcpl);
    return error_set(err, STOW_SOURCE, "%s: HDF5 cannot tell which raw files dataset %s has (%s)",
                     raw->shown, path, reader_file_reason());
}

static int get_segment(const struct raw *raw, int i, struct segment *segment)
{
    off_t offset = 0;
    hsize_t bytes = 0;
    segment->name[sizeof(segment->name) - 1] = '\0';
    if (H5Pget_external(raw->dcpl, (unsigned)i, sizeof(segment->name), segment->name, &offset,
                        &bytes) < 0 ||
        offset < 0 || segment->name[sizeof(segment->name) - 1])
        return error_set(raw->err, STOW_SOURCE,
                         "%s: dataset %s names a raw file that HDF5 cannot tell (%s)", raw->shown,
                         raw->path, reader_file_reason());
    segment->offset = (uint64_t)offset;
    segment->bytes = bytes == H5F_UNLIMITED ? UINT64_MAX : bytes;
    return 0;
}

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

int reader_raw_describe(struct reader *reader, size_t file, const char *path, hid_t dataset,
                        struct reader_data *data, struct stow_error *err)
{
    struct raw raw;
    struct segment segment;
    uint64_t end = 0, unit = data->frame_bytes;
    const uint64_t row = data->det_x * data->elem_bytes;
    int status = open_raw(&raw, reader->files[file], path, dataset, err);
    if (status)
        return status;
    for (int i = 0; !status && i + 1 < raw.n; i++) {
        status = get_segment(&raw, i, &segment);
        if (!status && __builtin_add_overflow(end, segment.bytes, &end))
            break; /* the others are never reached */
        unit = common_divisor(unit, end);
    }
    H5Pclose(raw.dcpl);
    if (!status && unit % row != 0)
        return error_set(
            err, STOW_UNSUPPORTED,
            "%s: dataset %s lies in raw files of which one ends within a row of pixels, "
            "which is not supported; copy it into a plain dataset",
            raw.shown, path);
    uint64_t chunk[READER_RANK] = {1, 1, 1, 1, 1};
    chunk[data->rank - 2] = unit / row;
    chunk[data->rank - 1] = data->det_x;
    data->direct = data->direct && unit == data->frame_bytes;
    if (!status && !reader_data_set_chunk(data, chunk))
        status = error_set(err, STOW_LIMIT, "%s: dataset %s lies in too many pieces of raw files",
                           raw.shown, path);
    return status;
}

/* Chunks from number `first` on that a segment has, as far as it goes. */
static uint64_t put_segment(const struct reader_data *data, const struct segment *segment,
                            size_t number, uint64_t size, struct assembly_chunk *chunks,
                            uint64_t first)
{
    uint64_t n = segment->bytes / data->chunk_bytes;
    for (uint64_t i = 0; i < n && first + i < data->n_chunks; i++) {
        struct assembly_chunk *chunk = &chunks[first + i];
        uint64_t at = i * data->chunk_bytes, end;
        *chunk =
            (struct assembly_chunk){.bytes = (uint32_t)data->chunk_bytes, .file = (uint32_t)number};
        if (__builtin_add_overflow(at, segment->offset, &chunk->offset) ||
            __builtin_add_overflow(chunk->offset, data->chunk_bytes, &end) || end > size)
            chunk->fault = SOURCE_FAULT_PAST_END;
    }
    return n < data->n_chunks - first ? first + n : data->n_chunks;
}

int reader_raw_index(struct reader *reader, size_t file, const char *path, hid_t dataset,
                     const struct reader_data *data, struct assembly_chunk *chunks,
                     uint64_t *n_written, struct stow_error *err)
{
    struct raw raw;
    struct segment segment;
    uint64_t done = 0;
    int status = open_raw(&raw, reader->files[file], path, dataset, err);
    if (status)
        return status;
    for (int i = 0; !status && i < raw.n && done < data->n_chunks; i++) {
        size_t number = 0;
        status = get_segment(&raw, i, &segment);
        if (!status)
            status = reader_ask_beside(reader, file, segment.name, &number, err);
        if (!status && (status = reader_await(reader, number, err)))
            error_prefix(err, "%s: an external raw file of dataset %s", raw.shown, path);
        if (!status)
            done =
                put_segment(data, &segment, number, reader->files[number]->io.size, chunks, done);
    }
    for (uint64_t i = done; !status && i < data->n_chunks; i++) /* no file has them */
        chunks[i] = (struct assembly_chunk){.file = (uint32_t)file, .fault = SOURCE_FAULT_PAST_END};
    H5Pclose(raw.dcpl);
    *n_written = data->n_chunks;
    return status;
}
