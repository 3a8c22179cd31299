/* SPDX-License-Identifier: Apache-2.0 */
#define H5_USE_110_API 1
#include "reader_join.h"

#include "reader_data.h"
#include "reader_index.h"
#include "reader_path.h"
#include "reader_virtual.h"
#include "reader_whole.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPECIFIC "/entry/instrument/detector/detectorSpecific"
#define MAX_NAMED 4 /* files in a warning */

struct shard {
    const struct reader_part *part;
    struct reader_data data;
    uint64_t n_frames;
    size_t first_box, end_box, first_lost,
        end_lost;       /* its own in the table, counted from its first frame */
    uint64_t low, high; /* image_nr_low, image_nr_high; 0: not told */
    size_t file;        /* where it lies, or which file is lost */
    bool lost;
    struct stow_error why;
};

struct join {
    struct reader *reader;
    struct reader_table *table;
    struct shard *shards;
    size_t n, n_present, first, last; /* present ones */
    size_t open;                      /* the file of the shard read last; 0: none */
    struct stow_error *err;
};

/* A number in a scalar dataset or attribute's id; 0: none, or not above 0. */
static uint64_t positive(hid_t type, hid_t space, int64_t value)
{
    bool number = type >= 0 && space >= 0 && H5Tget_class(type) == H5T_INTEGER &&
                  H5Sget_simple_extent_npoints(space) == 1;
    if (space >= 0)
        H5Sclose(space);
    if (type >= 0)
        H5Tclose(type);
    return number && value > 0 ? (uint64_t)value : 0;
}

static uint64_t read_attribute(hid_t object, const char *name)
{
    int64_t value = 0;
    if (H5Aexists(object, name) <= 0)
        return 0;
    hid_t id = H5Aopen(object, name, H5P_DEFAULT);
    hid_t space = id >= 0 ? H5Aget_space(id) : H5I_INVALID_HID;
    if (space >= 0 && H5Sget_simple_extent_npoints(space) == 1 &&
        H5Aread(id, H5T_NATIVE_INT64, &value) < 0)
        value = 0;
    uint64_t number = id >= 0 ? positive(H5Aget_type(id), space, value) : 0;
    if (id >= 0)
        H5Aclose(id);
    return number;
}

/* ---- one part -------------------------------------------------------------------------------- */

static int check_count(struct join *join, const struct shard *shard)
{
    if (shard->data.n_frames <= READER_MAX_FRAMES)
        return 0;
    return error_set(join->err, STOW_LIMIT,
                     "%s: dataset %s has %" PRIu64 " frames, more than the %" PRIu64
                     " that are indexed at most",
                     join->reader->files[shard->file]->shown, shard->part->shown,
                     shard->data.n_frames, (uint64_t)READER_MAX_FRAMES);
}

/* What the dataset's frames are made of, into the table. */
static int read_frames(struct join *join, struct shard *shard, hid_t dataset)
{
    struct reader_data *data = &shard->data;
    const char *path = shard->part->shown;
    if (data->storage == READER_VIRTUAL)
        return reader_virtual(join->reader, shard->file, path, dataset, data, join->table,
                              join->err);
    return data->n_frames == 0 ? 0
                               : reader_whole(join->reader, shard->file, path, dataset, data,
                                              join->table, join->err);
}

static int read_dataset(struct join *join, struct shard *shard, hid_t dataset)
{
    struct reader_file *file = join->reader->files[shard->file];
    int status = reader_data_describe(file, shard->part->shown, dataset, &shard->data, join->err);
    if (!status)
        status = check_count(join, shard);
    if (status)
        return status;
    shard->low = read_attribute(dataset, "image_nr_low");
    shard->high = read_attribute(dataset, "image_nr_high");
    if (file->swmr)
        reader_warn(join->reader,
                    "%s is open for SWMR writing: a snapshot of the %" PRIu64 " frames it has now",
                    file->shown, shard->data.n_frames);
    shard->first_box = join->table->n_boxes;
    shard->first_lost = join->table->n_lost;
    status = read_frames(join, shard, dataset);
    shard->end_box = join->table->n_boxes;
    shard->end_lost = join->table->n_lost;
    shard->n_frames = shard->data.n_frames;
    return status;
}

/* Files that groups of the parts lie in stay open; a shard's own has told all once the next part lies in
 * another. */
static void shut_before(struct join *join, size_t file)
{
    if (join->open != file && join->open != 0 && join->open != join->shards[0].part->file)
        reader_file_shut(join->reader->files[join->open]);
    join->open = file;
}

static int read_part(struct join *join, struct shard *shard)
{
    struct reader_place place;
    size_t lost;
    const struct reader_part *part = shard->part;
    struct stow_error why;
    int status =
        reader_path_open(join->reader, part->file, part->group, part->path, &place, &lost, &why);
    if (status && lost != SIZE_MAX && status != STOW_GONE && status != STOW_NOMEM) {
        shard->lost = true;
        shard->file = lost;
        shard->why = why;
        shut_before(join, lost);
        return 0;
    }
    if (status) {
        *join->err = why;
        error_prefix(join->err, "%s", part->shown);
        return status;
    }
    shard->file = place.file;
    shut_before(join, place.file);
    status = read_dataset(join, shard, place.object);
    H5Oclose(place.object);
    return status;
}

/* ---- what they have in common ---------------------------------------------------------------- */

static int compare(struct join *join, const struct shard *a, const struct shard *b)
{
    const struct reader_data *left = &a->data, *right = &b->data;
    struct reader_file **files = join->reader->files;
    if (strcmp(left->dtype, right->dtype) != 0 || left->det_y != right->det_y ||
        left->det_x != right->det_x)
        return error_set(join->err, STOW_SOURCE,
                         "the parts do not fit together: %s has frames of %" PRIu64 "x%" PRIu64
                         " %s, %s of %" PRIu64 "x%" PRIu64 " %s",
                         files[a->file]->shown, left->det_y, left->det_x, left->dtype,
                         files[b->file]->shown, right->det_y, right->det_x, right->dtype);
    return 0;
}

static int refuse_all_lost(struct join *join)
{
    const struct shard *first = &join->shards[0];
    if (join->n == 1) {
        *join->err = first->why;
        return first->why.code;
    }
    *join->err = first->why;
    error_prefix(join->err, "none of the %zu files that %s names can be had, the first one of them",
                 join->n, join->reader->files[0]->shown);
    return first->why.code;
}

/* The files of some lost shards by name: "a.h5, b.h5 and 996 more". */
static void name_lost(const struct join *join, size_t from, size_t to, char *text, size_t room)
{
    size_t at = 0;
    text[0] = '\0';
    for (size_t i = from; i < to && i < from + MAX_NAMED && at < room; i++) {
        const struct shard *shard = &join->shards[i];
        const char *shown = join->reader->files[shard->file]->shown, *slash = strrchr(shown, '/');
        at += (size_t)snprintf(text + at, room - at, "%s%.100s", i > from ? ", " : "",
                               slash ? slash + 1 : shown);
    }
    if (to - from > MAX_NAMED && at < room)
        snprintf(text + at, room - at, " and %zu more", to - from - MAX_NAMED);
}

/* Shards at the end that were never made, or were cut, are left out. One that is there and that
 * the system does not let us read is refused: that can be mended. */
static int leave_trailing(struct join *join)
{
    char names[480];
    const struct shard *first = &join->shards[join->last + 1];
    size_t n = join->n - join->last - 1;
    bool all_missing = true;
    for (size_t i = 0; i < n; i++) {
        int code = first[i].why.code;
        all_missing = all_missing && code == STOW_MISSING;
        if (code != STOW_MISSING && code != STOW_SOURCE && !join->reader->allow_gaps) {
            *join->err = first[i].why;
            return code;
        }
    }
    name_lost(join, join->last + 1, join->n, names, sizeof(names));
    if (n && all_missing)
        reader_warn(join->reader,
                    "%zu of %zu files are missing at the end and their frames left out: %s", n,
                    join->n, names);
    else if (n)
        reader_warn(
            join->reader,
            "%zu of %zu files at the end cannot be used and their frames are left out: %s; %s", n,
            join->n, names, first->why.text);
    return 0;
}

/* ---- holes ----------------------------------------------------------------------------------- */

/* Frames of the shards before the last one, which may be short, when they agree; 0: they do not
 * tell. */
static uint64_t common_size(const struct join *join)
{
    uint64_t size = 0;
    for (size_t i = 0; i < join->n; i++) {
        const struct shard *shard = &join->shards[i];
        if (shard->lost || shard->n_frames == 0 || (i == join->n - 1 && join->n_present > 1))
            continue;
        if (size && size != shard->n_frames)
            return 0;
        size = shard->n_frames;
    }
    return size;
}

/* Frames of the lost shards [from, to), to being a present one, by the image numbers on both
 * sides. */
static uint64_t by_numbers(const struct join *join, size_t from, size_t to)
{
    uint64_t low = join->shards[to].low, high = from ? join->shards[from - 1].high : 0;
    if (low == 0 || (from > 0 && high == 0) || low <= high + 1)
        return 0;
    uint64_t frames = low - high - 1;
    return frames <= READER_MAX_FRAMES ? frames : 0;
}

/* Give the lost shards [from, to) their frames. */
static int fill_hole(struct join *join, size_t from, size_t to)
{
    char names[300];
    uint64_t n = to - from, common = common_size(join), frames = by_numbers(join, from, to);
    name_lost(join, from, to, names, sizeof(names));
    if (!join->reader->allow_gaps) {
        struct stow_error why = join->shards[from].why;
        return error_set(join->err, why.code,
                         "a hole in the middle of the acquisition, files %s: %.200s; with "
                         "--allow-gaps its frames are counted as bad",
                         names, why.text);
    }
    if (frames == 0)
        frames = n * common;
    uint64_t each = common && n * common <= frames ? common : frames / n;
    if (each == 0)
        return error_set(join->err, STOW_MISSING,
                         "it cannot be told how many frames the missing files %s had: the other "
                         "files differ in size and carry no image_nr_low and image_nr_high",
                         names);
    for (size_t i = from; i < to; i++) {
        struct shard *shard = &join->shards[i];
        shard->n_frames = i + 1 < to ? each : frames - (n - 1) * each;
        if (shard->n_frames > READER_MAX_FRAMES)
            return error_set(join->err, STOW_LIMIT, "the missing files %s had too many frames",
                             names);
        const struct reader_lost lost = {.frame_step = 1,
                                         .n_frames = shard->n_frames,
                                         .file = shard->file};
        shard->first_lost = join->table->n_lost;
        shard->end_lost = shard->first_lost + 1;
        int status = reader_table_add_lost(join->table, &lost, join->err);
        if (status)
            return status;
    }
    reader_warn(join->reader, "%" PRIu64 " frames are bad, their files cannot be had: %s; %.200s",
                frames, names, join->shards[from].why.text);
    return 0;
}

static int fill_holes(struct join *join)
{
    for (size_t i = 0; i < join->last; i++) {
        size_t from = i;
        while (join->shards[i].lost)
            i++;
        if (i > from) {
            int status = fill_hole(join, from, i);
            if (status)
                return status;
        }
    }
    return 0;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static uint64_t read_specific(struct reader *reader, const char *name)
{
    struct reader_place place;
    char path[128];
    int64_t value = 0;
    uint64_t number = 0;
    snprintf(path, sizeof(path), SPECIFIC "/%s", name);
    if (reader_path_open_root(reader, 0, path, &place, NULL, NULL))
        return 0;
    hid_t dcpl = H5Iget_type(place.object) == H5I_DATASET ? H5Dget_create_plist(place.object)
                                                          : H5I_INVALID_HID;
    if (dcpl >= 0) {
        hid_t space = H5Dget_space(place.object);
        bool simple = H5Pget_nfilters(dcpl) == 0 && H5Pget_external_count(dcpl) == 0 &&
                      space >= 0 && H5Sget_simple_extent_npoints(space) == 1;
        if (!simple ||
            H5Dread(place.object, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, &value) < 0)
            value = 0;
        number = positive(H5Dget_type(place.object), space, value);
        H5Pclose(dcpl);
    }
    H5Oclose(place.object);
    return number;
}

/* nimages x ntrigger is what was planned, no more: it checks the count and never makes it. */
static void check_expected(struct reader *reader, struct reader_shape *shape)
{
    uint64_t images = read_specific(reader, "nimages"),
             triggers = read_specific(reader, "ntrigger");
    if (images == 0 || triggers == 0 || __builtin_mul_overflow(images, triggers, &shape->expected))
        return;
    shape->has_expected = 1;
    if (shape->expected != shape->n_frames)
        reader_warn(reader,
                    "expected %" PRIu64 " frames (nimages %" PRIu64 " x ntrigger %" PRIu64
                    "), found %" PRIu64,
                    shape->expected, images, triggers, shape->n_frames);
}

static void warn_frames(struct reader *reader, const struct reader_table *table)
{
    const uint64_t n = table->n_frames;
    uint64_t unwritten = 0, cut = 0, wrong = 0;
    for (uint64_t i = 0; i < n; i++) {
        const struct source_chunk *frame = &table->frames[i];
        unwritten += !frame->fault && frame->bytes == 0;
        cut += frame->fault == SOURCE_FAULT_PAST_END;
        wrong += frame->fault == SOURCE_FAULT_BYTES;
    }
    const struct {
        uint64_t count;
        const char *what;
    } lines[] = {
        {unwritten - table->n_unmapped, "were never written and have the fill value"},
        {table->n_unmapped, "are unmapped in the virtual dataset and have the fill value"},
        {table->n_partly, "have parts that were never written or mapped and have the fill value"},
        {cut, "are bad: their chunks lie past the end of the file"},
        {wrong, "are bad: their chunks have an impossible size"},
    };
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
        if (lines[i].count)
            reader_warn(reader, "%" PRIu64 " of %" PRIu64 " frames %s", lines[i].count, n,
                        lines[i].what);
}

/* Move what the shards know of their own frames to where these are in the row. */
static void place_shards(struct join *join)
{
    uint64_t first = 0;
    for (size_t i = 0; i <= join->last; i++) {
        const struct shard *shard = &join->shards[i];
        for (size_t k = shard->first_box; k < shard->end_box; k++)
            join->table->boxes[k].frame += first;
        for (size_t k = shard->first_lost; k < shard->end_lost; k++)
            join->table->lost[k].frame += first;
        first += shard->n_frames;
    }
}

static int put_together(struct join *join, struct reader_shape *shape)
{
    const struct reader_data *data = &join->shards[join->first].data;
    uint64_t n = 0;
    for (size_t i = 0; i <= join->last; i++)
        n += join->shards[i].n_frames;
    if (n == 0)
        return error_set(join->err, STOW_SOURCE, "%s has no frames", join->reader->files[0]->shown);
    if (n > READER_MAX_FRAMES)
        return error_set(join->err, STOW_LIMIT,
                         "%s has %" PRIu64 " frames, more than the %" PRIu64
                         " that are indexed at most",
                         join->reader->files[0]->shown, n, (uint64_t)READER_MAX_FRAMES);
    *shape = (struct reader_shape){
        .elem_bytes = data->elem_bytes, .det_y = data->det_y, .det_x = data->det_x, .n_frames = n};
    memcpy(shape->dtype, data->dtype, sizeof(shape->dtype));
    if (join->n == 1) {
        shape->scan_y = data->scan_y;
        shape->scan_x = data->scan_x;
    }
    place_shards(join);
    return reader_table_finish(join->table, shape, join->err);
}

static int read_all(struct join *join)
{
    for (size_t i = 0; i < join->n; i++) {
        struct shard *shard = &join->shards[i];
        int status = read_part(join, shard);
        if (status)
            return status;
        if (shard->lost)
            continue;
        if (join->n_present++ == 0)
            join->first = i;
        else if ((status = compare(join, &join->shards[join->first], shard)))
            return status;
        join->last = i;
    }
    return join->n_present ? 0 : refuse_all_lost(join);
}

int reader_join(struct reader *reader, struct reader_part *parts, size_t n_parts,
                struct reader_shape *shape, struct reader_table *table, struct stow_error *err)
{
    struct join join = {.reader = reader, .table = table, .n = n_parts, .err = err};
    join.shards = calloc(n_parts, sizeof(*join.shards));
    if (!join.shards)
        return error_set(err, STOW_NOMEM, "out of memory for the list of shards");
    for (size_t i = 0; i < n_parts; i++)
        join.shards[i].part = &parts[i];
    int status = read_all(&join);
    if (!status)
        status = fill_holes(&join);
    if (!status)
        status = leave_trailing(&join);
    if (!status)
        status = put_together(&join, shape);
    if (!status) {
        warn_frames(reader, table);
        check_expected(reader, shape);
    }
    free(join.shards);
    return status;
}
