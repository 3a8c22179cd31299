/* SPDX-License-Identifier: Apache-2.0 */
#include "piece.h"

#include "source_read.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN_PATH \
    80u /* the end of a longer one, so that a fault's text has room for all it says */

/* ---- chunks of a dataset -------------------------------------------------------------------------- */

void grid_init(struct grid *grid, const struct assembly_dataset *dataset)
{
    const uint32_t y = dataset->rank - 2, x = dataset->rank - 1;
    *grid = (struct grid){.dataset = dataset,
                          .height = dataset->chunk[y],
                          .width = dataset->chunk[x],
                          .n_down = (dataset->dims[y] - 1) / dataset->chunk[y] + 1,
                          .n_across = (dataset->dims[x] - 1) / dataset->chunk[x] + 1,
                          .n_frames = 1};
    for (uint32_t d = 0; d < y; d++)
        grid->n_frames *= dataset->chunk[d];
    grid->frame_bytes = grid->height * grid->width * dataset->elem_bytes;
    grid->bytes = grid->n_frames * grid->frame_bytes;
}

void grid_find(const struct grid *grid, uint64_t frame, uint64_t *group, uint64_t *inner)
{
    const struct assembly_dataset *dataset = grid->dataset;
    uint64_t groups = 1, inners = 1;
    *group = *inner = 0;
    for (uint32_t d = dataset->rank - 2; d-- > 0;) {
        uint64_t at = frame % dataset->dims[d], chunk = dataset->chunk[d];
        frame /= dataset->dims[d];
        *group += at / chunk * groups;
        *inner += at % chunk * inners;
        groups *= (dataset->dims[d] - 1) / chunk + 1;
        inners *= chunk;
    }
}

uint64_t grid_group_frames(const struct grid *grid, uint64_t group)
{
    const struct assembly_dataset *dataset = grid->dataset;
    uint64_t n = 1;
    for (uint32_t d = dataset->rank - 2; d-- > 0;) {
        uint64_t chunk = dataset->chunk[d], along = (dataset->dims[d] - 1) / chunk + 1;
        uint64_t left = dataset->dims[d] - group % along * chunk;
        group /= along;
        n *= left < chunk ? left : chunk;
    }
    return n;
}

static uint64_t chunk_number(const struct piece *piece)
{
    const struct grid *grid = piece->grid;
    return grid->dataset->first_chunk +
           (piece->picks->group * grid->n_down + piece->down) * grid->n_across + piece->across;
}

/* ---- one thread's memory -------------------------------------------------------------------------- */

bool bench_grow(void **memory, size_t *room, size_t bytes)
{
    if (bytes <= *room && *memory)
        return true;
    free(*memory);
    *memory = malloc(bytes ? bytes : 1);
    *room = *memory ? bytes : 0;
    return *memory != NULL;
}

/* ---- getting a chunk ------------------------------------------------------------------------------ */

static void put_coordinates(char *text, size_t room, const struct piece *piece)
{
    const struct assembly_dataset *dataset = piece->grid->dataset;
    uint64_t at[ASSEMBLY_RANK], group = piece->picks->group;
    size_t n = 0;
    for (uint32_t d = dataset->rank - 2; d-- > 0;) {
        uint64_t along = (dataset->dims[d] - 1) / dataset->chunk[d] + 1;
        at[d] = group % along;
        group /= along;
    }
    at[dataset->rank - 2] = piece->down;
    at[dataset->rank - 1] = piece->across;
    for (uint32_t d = 0; d < dataset->rank && n < room; d++)
        n += (size_t)snprintf(text + n, room - n, d ? ",%llu" : "%llu",
                              (unsigned long long)(at[d] * dataset->chunk[d]));
}

/* What is wrong, and where that is: the chunk by its first element, as h5py names it. */
static void say_where(const struct piece *piece, const struct assembly_chunk *chunk,
                      struct stow_error *err)
{
    char text[160], at[ASSEMBLY_RANK * 22];
    const char *path = chunk->file == SOURCE_NO_FILE ? NULL : piece->index->files[chunk->file].path;
    const char *dataset = piece->index->assembly->texts + piece->grid->dataset->path;
    size_t n = path ? strlen(path) : 0;
    put_coordinates(at, sizeof(at), piece);
    snprintf(text, sizeof(text), "%.*s", (int)sizeof(text) - 1, err->text);
    if (!path)
        error_set(err, err->code, "%s: chunk (%s) of %s", text, at, dataset);
    else
        error_set(err, err->code, "%s: chunk (%s) of %s, byte %llu of %s%s", text, at, dataset,
                  (unsigned long long)chunk->offset, n > SHOWN_PATH ? "..." : "",
                  path + (n > SHOWN_PATH ? n - SHOWN_PATH : 0));
}

static void turn_around(uint8_t *bytes, uint64_t n_bytes, uint32_t elem_bytes)
{
    if (elem_bytes == 2) {
        for (uint64_t i = 0; i < n_bytes; i += 2) {
            uint16_t v;
            memcpy(&v, bytes + i, 2);
            v = __builtin_bswap16(v);
            memcpy(bytes + i, &v, 2);
        }
    } else if (elem_bytes == 4) {
        for (uint64_t i = 0; i < n_bytes; i += 4) {
            uint32_t v;
            memcpy(&v, bytes + i, 4);
            v = __builtin_bswap32(v);
            memcpy(bytes + i, &v, 4);
        }
    } else if (elem_bytes == 8) {
        for (uint64_t i = 0; i < n_bytes; i += 8) {
            uint64_t v;
            memcpy(&v, bytes + i, 8);
            v = __builtin_bswap64(v);
            memcpy(bytes + i, &v, 8);
        }
    }
}

static void make_native(const struct grid *grid, uint8_t *bytes, uint64_t n)
{
    if (grid->dataset->flags & ASSEMBLY_BIG_ENDIAN)
        turn_around(bytes, n, grid->dataset->elem_bytes);
}

static struct filter_pipeline pipeline_of(const struct grid *grid,
                                          const struct assembly_chunk *chunk)
{
    return (struct filter_pipeline){.filters = grid->dataset->filters,
                                    .n_filters = grid->dataset->n_filters,
                                    .mask = chunk->mask};
}

static int read_packed(const struct piece *piece, const struct assembly_chunk *chunk, uint8_t *to,
                       uint64_t skip, size_t bytes, struct stow_error *err)
{
    const struct source_file *file = &piece->index->files[chunk->file];
    int rc = source_read(file, to, bytes, chunk->offset + skip, err);
    return rc ? rc : source_unchanged(file, err);
}

/* The chunk's pixels into grid->bytes at `to`. */
static int decode(const struct piece *piece, uint8_t *to, struct stow_error *err)
{
    const struct grid *grid = piece->grid;
    const struct assembly_chunk *chunk = &piece->index->assembly->chunks[chunk_number(piece)];
    const struct filter_pipeline pipeline = pipeline_of(grid, chunk);
    struct bench *bench = piece->bench;
    int rc;
    if (filters_none(&pipeline) && chunk->bytes == grid->bytes) {
        rc = read_packed(piece, chunk, to, 0, chunk->bytes, err);
    } else if (!bench_grow((void **)&bench->packed, &bench->packed_room, chunk->bytes)) {
        rc = error_set(err, STOW_NOMEM, "no memory for a chunk of %u bytes", chunk->bytes);
    } else {
        rc = read_packed(piece, chunk, bench->packed, 0, chunk->bytes, err);
        if (!rc)
            rc = filters_undo(to, grid->bytes, bench->packed, chunk->bytes, &pipeline,
                              &bench->filters, err);
    }
    if (!rc)
        make_native(grid, to, grid->bytes);
    else
        say_where(piece, chunk, err);
    return rc;
}

static int decode_wish(void *data, uint8_t *to, struct stow_error *err)
{
    return decode(data, to, err);
}

/* ---- copying from it ------------------------------------------------------------------------------ */

/* The pixels that box and chunk share: n_y rows of n_x, in the chunk from row y and column x, in the frame from to_y, to_x. */
struct part {
    uint64_t y, x, to_y, to_x, n_y, n_x;
};

static void share(uint64_t from, uint64_t n, uint64_t chunk_at, uint64_t chunk_n, uint64_t *begin,
                  uint64_t *count)
{
    uint64_t end = from + n < chunk_at + chunk_n ? from + n : chunk_at + chunk_n;
    *begin = from > chunk_at ? from : chunk_at;
    *count = end - *begin;
}

static struct part part_of(const struct piece *piece)
{
    const struct grid *grid = piece->grid;
    const struct assembly_box *box = piece->box;
    struct part p;
    uint64_t y, x, top = piece->down * grid->height, left = piece->across * grid->width;
    share(box->from_y, box->n_y, top, grid->height, &y, &p.n_y);
    share(box->from_x, box->n_x, left, grid->width, &x, &p.n_x);
    p.y = y - top;
    p.x = x - left;
    p.to_y = box->y + y - box->from_y;
    p.to_x = box->x + x - box->from_x;
    return p;
}

static uint8_t *frame_at(const struct piece *piece, const struct pick *pick)
{
    return piece->read->dst + piece->read->at[pick->frame];
}

static void copy_part(const struct piece *piece, const struct part *part, const uint8_t *chunk)
{
    const struct grid *grid = piece->grid;
    const size_t elem = grid->dataset->elem_bytes, across = piece->index->det_x * elem;
    const size_t row = grid->width * elem, bytes = part->n_x * elem;
    for (uint32_t i = 0; i < piece->n; i++) {
        const struct pick *pick = &piece->picks[i];
        const uint8_t *from =
            chunk + pick->inner * grid->frame_bytes + part->y * row + part->x * elem;
        uint8_t *to = frame_at(piece, pick) + part->to_y * across + part->to_x * elem;
        if (bytes == row && row == across) {
            memcpy(to, from, part->n_y * row);
            continue;
        }
        for (uint64_t y = 0; y < part->n_y; y++)
            memcpy(to + y * across, from + y * row, bytes);
    }
}

/* Little-endian, as every platform here. */
void fill_pixels(uint8_t *to, uint64_t n, uint32_t elem_bytes, uint64_t fill)
{
    const uint64_t bytes = n * elem_bytes;
    uint64_t have = elem_bytes;
    memcpy(to, &fill, elem_bytes);
    for (; have < bytes; have *= 2)
        memcpy(to + have, to, have < bytes - have ? have : bytes - have);
}

static void fill_part(const struct piece *piece, const struct part *part)
{
    const struct assembly_dataset *dataset = piece->grid->dataset;
    const size_t elem = dataset->elem_bytes, across = piece->index->det_x * elem;
    for (uint32_t i = 0; i < piece->n; i++) {
        uint8_t *to = frame_at(piece, &piece->picks[i]) + part->to_y * across + part->to_x * elem;
        for (uint64_t y = 0; y < part->n_y; y++)
            fill_pixels(to + y * across, part->n_x, dataset->elem_bytes, dataset->fill);
    }
}

/* ---- the ways to get there ------------------------------------------------------------------------ */

static bool is_hard(const struct stow_error *err)
{
    return err->code == STOW_SOURCE || err->code == STOW_NOMEM;
}

/* A chunk that cannot be had. */
static enum piece_result fault(const struct piece *piece, uint32_t first, uint32_t n,
                               const struct stow_error *why, struct stow_error *err)
{
    if (is_hard(why)) {
        *err = *why;
        return PIECE_FAILED;
    }
    for (uint32_t i = 0; i < n; i++)
        piece->read->on_fault(piece->read->data, piece->picks[first + i].frame, why);
    return PIECE_DONE;
}

/* Whether the part is all of chunk and frame, so that chunks and frames have the same bytes. */
static bool is_whole(const struct piece *piece, const struct part *part)
{
    return part->n_y == piece->grid->height && part->n_x == piece->grid->width &&
           part->n_y == piece->index->det_y && part->n_x == piece->index->det_x;
}

/* How many picks from `first` on follow each other in the chunk and in the destination. */
static uint32_t count_run(const struct piece *piece, uint32_t first)
{
    const struct pick *picks = piece->picks;
    const uint32_t *at = piece->read->at;
    const uint64_t bytes = piece->grid->frame_bytes;
    uint32_t n = 1;
    while (first + n < piece->n && picks[first + n].inner == picks[first].inner + n &&
           at[picks[first + n].frame] == at[picks[first].frame] + n * bytes)
        n++;
    return n;
}

/* Frames as they lie in the file. */
static enum piece_result put_raw(const struct piece *piece, const struct assembly_chunk *chunk,
                                 struct stow_error *err)
{
    const struct grid *grid = piece->grid;
    enum piece_result result = PIECE_DONE;
    for (uint32_t i = 0, n; i < piece->n && result == PIECE_DONE; i += n) {
        struct stow_error why;
        n = count_run(piece, i);
        uint8_t *to = frame_at(piece, &piece->picks[i]);
        if (!read_packed(piece, chunk, to, piece->picks[i].inner * grid->frame_bytes,
                         n * grid->frame_bytes, &why)) {
            make_native(grid, to, n * grid->frame_bytes);
        } else {
            say_where(piece, chunk, &why);
            result = fault(piece, i, n, &why, err);
        }
    }
    return result;
}

static enum piece_result put_straight(const struct piece *piece, struct stow_error *err)
{
    struct stow_error why;
    if (decode(piece, frame_at(piece, piece->picks), &why))
        return fault(piece, 0, piece->n, &why, err);
    return PIECE_DONE;
}

static enum piece_result put_own(const struct piece *piece, const struct part *part,
                                 struct stow_error *err)
{
    struct bench *bench = piece->bench;
    struct stow_error why;
    if (!bench_grow((void **)&bench->plain, &bench->plain_room, piece->grid->bytes)) {
        error_set(err, STOW_NOMEM, "no memory for a decoded chunk");
        return PIECE_FAILED;
    }
    if (decode(piece, bench->plain, &why))
        return fault(piece, 0, piece->n, &why, err);
    copy_part(piece, part, bench->plain);
    return PIECE_DONE;
}

static enum piece_result put_shared(const struct piece *piece, const struct part *part,
                                    uint64_t n_uses, bool may_wait, struct stow_error *err)
{
    struct chunk_wish wish = {
        .key = (uint64_t)piece->box->dataset << 32 | chunk_number(piece),
        .bytes = piece->grid->bytes,
        .n_uses = n_uses,
        .decode = decode_wish,
        .data = (void *)(uintptr_t)piece,
    };
    const struct cached_chunk *chunk = chunk_cache_take(piece->cache, &wish, may_wait);
    enum piece_result result = PIECE_DONE;
    if (!chunk)
        return PIECE_LATER;
    if (chunk->err.code)
        result = fault(piece, 0, piece->n, &chunk->err, err);
    else
        copy_part(piece, part, chunk->bytes);
    chunk_cache_give(piece->cache, chunk, piece->n);
    return result;
}

/* A fault that the index knows, or STOW_OK. */
static int known_fault(const struct piece *piece, const struct assembly_chunk *chunk,
                       struct stow_error *why)
{
    switch (chunk->fault) {
    case SOURCE_FAULT_NONE: break;
    case SOURCE_FAULT_NO_FILE:
        error_set(why, STOW_UNWRITTEN, "its file %s is missing",
                  piece->index->files[chunk->offset].path);
        return why->code;
    case SOURCE_FAULT_PAST_END:
        error_set(why, STOW_CORRUPT,
                  "it passes the end of the file, which is truncated; copy it again");
        say_where(piece, chunk, why);
        return why->code;
    default:
        error_set(why, STOW_CORRUPT, "%u bytes are stored where %llu are wanted", chunk->bytes,
                  (unsigned long long)piece->grid->bytes);
        say_where(piece, chunk, why);
        return why->code;
    }
    if (!chunk->bytes || !(piece->grid->dataset->flags & ASSEMBLY_FOREIGN))
        return 0;
    error_set(why, STOW_UNSUPPORTED, "its filter is known to a plugin of HDF5 only");
    say_where(piece, chunk, why);
    return why->code;
}

enum piece_result piece_put(const struct piece *piece, bool may_wait, struct stow_error *err)
{
    const struct grid *grid = piece->grid;
    const struct assembly_chunk *chunk = &piece->index->assembly->chunks[chunk_number(piece)];
    const struct filter_pipeline pipeline = pipeline_of(grid, chunk);
    const struct part part = part_of(piece);
    struct stow_error why;
    if (known_fault(piece, chunk, &why))
        return fault(piece, 0, piece->n, &why, err);
    if (!chunk->bytes) {
        fill_part(piece, &part);
        return PIECE_DONE;
    }
    if (is_whole(piece, &part)) {
        if (filters_none(&pipeline) && chunk->bytes == grid->bytes)
            return put_raw(piece, chunk, err);
        if (piece->n == grid->n_frames && piece->picks->inner == 0 &&
            count_run(piece, 0) == piece->n)
            return put_straight(piece, err);
    }
    uint64_t n_uses = grid_group_frames(grid, piece->picks->group);
    if (piece->n >= n_uses && grid->bytes <= BENCH_KEPT_BYTES)
        return put_own(piece, &part, err);
    return put_shared(piece, &part, n_uses, may_wait, err);
}
