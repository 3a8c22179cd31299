/* SPDX-License-Identifier: Apache-2.0 */
#include "reader_table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int no_memory(struct stow_error *err)
{
    return error_set(err, STOW_NOMEM, "out of memory for the index");
}

/* Room for one more in a list. */
static bool grow(void *list, size_t *room, size_t n, size_t bytes)
{
    void **at = list;
    if (n < *room)
        return true;
    size_t wanted = *room ? 2 * *room : 16;
    void *grown = realloc(*at, wanted * bytes);
    if (!grown)
        return false;
    *at = grown;
    *room = wanted;
    return true;
}

int reader_table_add_set(struct reader_table *table, const struct reader_set *set,
                         struct stow_error *err)
{
    if (!grow(&table->sets, &table->sets_room, table->n_sets, sizeof(*table->sets))) {
        free(set->path);
        free(set->chunks);
        return no_memory(err);
    }
    table->sets[table->n_sets++] = *set;
    return 0;
}

int reader_table_add_box(struct reader_table *table, const struct assembly_box *box,
                         struct stow_error *err)
{
    table->n_parts += box->n_frames;
    if (table->n_boxes == ASSEMBLY_MAX_BOXES || table->n_parts > ASSEMBLY_MAX_PARTS)
        return error_set(
            err, STOW_LIMIT,
            "the acquisition is put together from more than %u boxes, or %llu parts of "
            "frames",
            ASSEMBLY_MAX_BOXES, (unsigned long long)ASSEMBLY_MAX_PARTS);
    if (!grow(&table->boxes, &table->boxes_room, table->n_boxes, sizeof(*table->boxes)))
        return no_memory(err);
    table->boxes[table->n_boxes++] = *box;
    return 0;
}

int reader_table_add_lost(struct reader_table *table, const struct reader_lost *lost,
                          struct stow_error *err)
{
    if (!grow(&table->lost, &table->lost_room, table->n_lost, sizeof(*table->lost)))
        return no_memory(err);
    table->lost[table->n_lost++] = *lost;
    return 0;
}

void reader_table_fini(struct reader_table *table)
{
    for (size_t i = 0; i < table->n_sets; i++) {
        free(table->sets[i].path);
        free(table->sets[i].chunks);
    }
    free(table->sets);
    free(table->boxes);
    free(table->lost);
    free(table->frames);
    *table = (struct reader_table){0};
}

/* ---- frames that are one chunk each ---------------------------------------------------------- */

static bool whole_frames(const struct assembly_box *box, const struct reader_data *data)
{
    return box->y == 0 && box->x == 0 && box->from_y == 0 && box->from_x == 0 &&
           box->n_y == data->det_y && box->n_x == data->det_x;
}

/* The fill value of what was never written, where all sets agree on it. */
static bool common_fill(struct reader_table *table)
{
    bool told = table->is_virtual;
    for (size_t i = 0; i < table->n_sets; i++) {
        const struct reader_set *set = &table->sets[i];
        if (set->n_written == set->data.n_chunks)
            continue;
        if (told && table->fill != set->data.fill)
            return false;
        table->fill = set->data.fill;
        told = true;
    }
    if (!told && table->n_sets)
        table->fill = table->sets[0].data.fill;
    return true;
}

static bool is_direct(const struct reader_table *table, const struct reader_shape *shape)
{
    for (size_t i = 0; i < table->n_boxes; i++) {
        const struct reader_data *data = &table->sets[table->boxes[i].dataset].data;
        if (!data->direct || data->det_y != shape->det_y || data->det_x != shape->det_x ||
            !whole_frames(&table->boxes[i], data))
            return false;
    }
    return true;
}

static void take_direct(struct reader_table *table, const struct assembly_box *box)
{
    const struct reader_set *set = &table->sets[box->dataset];
    for (uint64_t i = 0; i < box->n_frames; i++) {
        const struct assembly_chunk *chunk = &set->chunks[box->from_frame + i * box->from_step];
        table->frames[box->frame + i * box->frame_step] =
            (struct source_chunk){.offset = chunk->offset,
                                  .bytes = chunk->bytes,
                                  .file = chunk->file,
                                  .raw = set->data.n_filters == 0 || (chunk->mask & 1),
                                  .fault = chunk->fault};
    }
}

/* ---- frames that are put together ------------------------------------------------------------ */

/* What is known of the chunks that some frames are made of. */
struct part {
    const struct assembly_chunk *first, *fault; /* the first written one, the first bad one */
    bool gaps;                                  /* some were never written */
};

/* The chunks [y0, y1) x [x0, x1) of the detector's grid at one place of the grid before it. */
static struct part look_at(const struct reader_set *set, uint64_t place, const uint64_t *y,
                           const uint64_t *x)
{
    const struct reader_data *data = &set->data;
    uint64_t n_y = data->grid[data->rank - 2], n_x = data->grid[data->rank - 1];
    struct part part = {0};
    for (uint64_t i = y[0]; i < y[1]; i++)
        for (uint64_t k = x[0]; k < x[1]; k++) {
            const struct assembly_chunk *chunk = &set->chunks[(place * n_y + i) * n_x + k];
            if (chunk->fault && !part.fault)
                part.fault = chunk;
            if (!chunk->fault && chunk->bytes == 0)
                part.gaps = true;
            else if (!part.first)
                part.first = chunk;
        }
    return part;
}

/* The place of a frame in the grid of the dimensions before the detector's. */
static uint64_t place_of(const struct reader_data *data, uint64_t frame)
{
    uint64_t place = 0, stride = 1;
    for (unsigned i = data->rank - 2; i-- > 0;) {
        place += frame % data->dims[i] / data->chunk[i] * stride;
        stride *= data->grid[i];
        frame /= data->dims[i];
    }
    return place;
}

/* A frame without bytes is the acquisition's fill value: one that is another has to be put together. */
static void note_part(struct source_chunk *frame, const struct part *part, uint64_t frame_bytes,
                      bool other_fill)
{
    if (part->gaps && other_fill && !frame->bytes) {
        frame->bytes = (uint32_t)frame_bytes;
        frame->raw = 1;
    }
    if (part->first && !frame->offset) {
        frame->offset = part->first->offset;
        frame->file = part->first->file;
        frame->bytes = (uint32_t)frame_bytes;
        frame->raw = 1;
    }
    if (part->fault && !frame->fault) {
        frame->offset = part->fault->offset;
        frame->file = part->fault->file;
        frame->fault = part->fault->fault;
    }
}

/* state[frame]: 1: touched by a box; 2: some of it was never written. */
static void take_box(struct reader_table *table, const struct assembly_box *box, uint8_t *state,
                     uint64_t frame_bytes)
{
    const struct reader_set *set = &table->sets[box->dataset];
    const struct reader_data *data = &set->data;
    uint64_t chunk_y = data->chunk[data->rank - 2], chunk_x = data->chunk[data->rank - 1];
    const uint64_t y[2] = {box->from_y / chunk_y, (box->from_y + box->n_y - 1) / chunk_y + 1},
                   x[2] = {box->from_x / chunk_x, (box->from_x + box->n_x - 1) / chunk_x + 1};
    uint64_t done = UINT64_MAX; /* the place that part is of: frames in a row share theirs */
    struct part part = {0};
    for (uint64_t i = 0; i < box->n_frames; i++) {
        uint64_t place = place_of(data, box->from_frame + i * box->from_step);
        uint64_t frame = box->frame + i * box->frame_step;
        if (place != done)
            part = look_at(set, place, y, x);
        done = place;
        note_part(&table->frames[frame], &part, frame_bytes, data->fill != table->fill);
        state[frame] |= part.gaps ? 3 : 1;
    }
}

/* How many pixels of each frame are mapped, as far as boxes do not overlap. */
static void count_unmapped(struct reader_table *table, const struct reader_shape *shape,
                           uint8_t *state, uint64_t *mapped)
{
    for (size_t i = 0; i < table->n_boxes; i++) {
        const struct assembly_box *box = &table->boxes[i];
        for (uint64_t k = 0; k < box->n_frames; k++)
            mapped[box->frame + k * box->frame_step] += box->n_y * box->n_x;
    }
    for (uint64_t i = 0; i < table->n_frames; i++)
        if (mapped[i] > 0 && mapped[i] < shape->det_y * shape->det_x)
            state[i] |= 2;
}

static void count_states(struct reader_table *table, const uint8_t *state)
{
    for (uint64_t i = 0; i < table->n_frames; i++) {
        const struct source_chunk *frame = &table->frames[i];
        table->n_unmapped += table->is_virtual && !frame->fault && !(state[i] & 1);
        table->n_partly += !frame->fault && frame->bytes != 0 && (state[i] & 2);
    }
}

/* ---- the whole ------------------------------------------------------------------------------- */

static void take_lost(struct reader_table *table, const struct reader_lost *lost)
{
    for (uint64_t i = 0; i < lost->n_frames; i++)
        table->frames[lost->frame + i * lost->frame_step] = (struct source_chunk){
            .file = SOURCE_NO_FILE, .fault = SOURCE_FAULT_NO_FILE, .offset = lost->file};
}

static size_t texts_bytes(const struct reader_table *table)
{
    size_t bytes = 0;
    for (size_t i = 0; i < table->n_sets; i++)
        bytes += strlen(table->sets[i].path) + 1;
    return bytes;
}

static void describe_assembly(const struct reader_table *table, struct reader_shape *shape)
{
    shape->has_assembly = 1;
    shape->n_datasets = table->n_sets;
    shape->n_boxes = table->n_boxes;
    shape->n_texts = texts_bytes(table);
    for (size_t i = 0; i < table->n_sets; i++)
        shape->n_chunks += table->sets[i].data.n_chunks;
}

static int take_boxes(struct reader_table *table, const struct reader_shape *shape,
                      struct stow_error *err)
{
    uint64_t frame_bytes = shape->det_y * shape->det_x * shape->elem_bytes;
    uint8_t *state = calloc(table->n_frames, sizeof(*state));
    uint64_t *mapped = table->is_virtual ? calloc(table->n_frames, sizeof(*mapped)) : NULL;
    bool ok = state && (mapped || !table->is_virtual);
    for (size_t i = 0; ok && i < table->n_boxes; i++) {
        if (table->direct)
            take_direct(table, &table->boxes[i]);
        if (!table->direct || table->is_virtual)
            take_box(table, &table->boxes[i], state, frame_bytes);
    }
    for (size_t i = 0; ok && i < table->n_lost; i++)
        take_lost(table, &table->lost[i]);
    if (ok && mapped)
        count_unmapped(table, shape, state, mapped);
    if (ok)
        count_states(table, state);
    free(state);
    free(mapped);
    return ok ? 0 : no_memory(err);
}

int reader_table_finish(struct reader_table *table, struct reader_shape *shape,
                        struct stow_error *err)
{
    bool one_fill = common_fill(table);
    table->n_frames = shape->n_frames;
    table->direct = one_fill && is_direct(table, shape);
    table->frames = calloc(table->n_frames, sizeof(*table->frames));
    if (!table->frames)
        return no_memory(err);
    int status = take_boxes(table, shape, err);
    shape->fill = table->fill;
    if (!status && !table->direct)
        describe_assembly(table, shape);
    if (!status && shape->n_chunks > ASSEMBLY_MAX_CHUNKS)
        return error_set(err, STOW_LIMIT,
                         "the acquisition has %llu chunks, more than the %llu "
                         "that are indexed at most",
                         (unsigned long long)shape->n_chunks,
                         (unsigned long long)ASSEMBLY_MAX_CHUNKS);
    return status;
}

/* ---- to the parent --------------------------------------------------------------------------- */

static int put(int fd, const void *from, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t wrote = write(fd, (const char *)from + done, bytes - done);
        if (wrote <= 0)
            return wrote < 0 ? errno : ENOSPC;
        done += (size_t)wrote;
    }
    return 0;
}

static int put_dataset(const struct reader_set *set, uint64_t first_chunk, size_t text, int fd)
{
    const struct reader_data *data = &set->data;
    struct assembly_dataset to = {.rank = data->rank,
                                  .elem_bytes = data->elem_bytes,
                                  .flags = data->big_endian ? ASSEMBLY_BIG_ENDIAN : 0,
                                  .n_filters = data->n_filters,
                                  .fill = data->fill,
                                  .first_chunk = first_chunk,
                                  .n_chunks = data->n_chunks,
                                  .file = (uint32_t)set->file,
                                  .path = (uint32_t)text};
    for (unsigned i = 0; i < data->rank; i++) {
        to.dims[i] = data->dims[i];
        to.chunk[i] = data->chunk[i];
    }
    memcpy(to.filters, data->filters, sizeof(to.filters));
    return put(fd, &to, sizeof(to));
}

static int put_assembly(const struct reader_table *table, int fd)
{
    uint64_t first_chunk = 0;
    size_t text = 0;
    int status = 0;
    for (size_t i = 0; !status && i < table->n_sets; i++) {
        status = put_dataset(&table->sets[i], first_chunk, text, fd);
        first_chunk += table->sets[i].data.n_chunks;
        text += strlen(table->sets[i].path) + 1;
    }
    if (!status)
        status = put(fd, table->boxes, table->n_boxes * sizeof(*table->boxes));
    for (size_t i = 0; !status && i < table->n_sets; i++)
        status = put(fd, table->sets[i].chunks,
                     table->sets[i].data.n_chunks * sizeof(*table->sets[i].chunks));
    for (size_t i = 0; !status && i < table->n_sets; i++)
        status = put(fd, table->sets[i].path, strlen(table->sets[i].path) + 1);
    return status;
}

int reader_table_write(const struct reader_table *table, const struct reader_shape *shape,
                       const uint8_t *flags, int fd)
{
    static const uint8_t zeros[8];
    uint64_t pixels = shape->det_y * shape->det_x;
    int status = put(fd, table->frames, table->n_frames * sizeof(*table->frames));
    if (!status && flags)
        status = put(fd, flags, pixels);
    if (!status && shape->has_assembly && flags) /* what follows is aligned */
        status = put(fd, zeros, -pixels % 8);
    return !status && shape->has_assembly ? put_assembly(table, fd) : status;
}
