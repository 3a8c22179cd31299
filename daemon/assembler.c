/* SPDX-License-Identifier: Apache-2.0
 *
 * Boxes are found by their first frame; those that a read touches are taken in their own order, one after the other, so
 * that a later one counts. Within a box, frames are sorted by the group of chunks that they are in; each chunk of each
 * group is a piece. A piece whose chunk another thread is decoding is put off till the others of the box are done. */
#include "assembler.h"

#include "piece.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#define BUDGET_PART 8u      /* of the memory, the cache may always have */
#define MOST_BUDGET_PART 2u /* if the layout wants it */
#define USUAL_SPAN (UINT64_C(8) << 20)

/* A box by its frames: last is the largest of all up to here, so that a search may stop. */
struct reach {
    uint64_t first, last;
    size_t box;
};

struct late {
    uint32_t first, n; /* picks */
    uint64_t down, across;
};

struct assembler {
    const struct source_index *index;
    struct grid *grids;    /* [n_datasets] */
    uint64_t budget;       /* of decoded chunks */
    struct reach *reaches; /* [n_boxes] by first frame */
    struct chunk_cache *cache;
    uv_mutex_t mutex; /* of the benches */
    bool has_mutex;
    struct bench *benches; /* that nobody uses */
};

/* ---- made and freed ------------------------------------------------------------------------------- */

/* Decoded chunks that are in use at once when frames are read in order: of all groups across the dimensions that follow
 * the first one of which a chunk has more than one. */
static uint64_t bytes_in_use(const struct grid *grid)
{
    const struct assembly_dataset *dataset = grid->dataset;
    uint64_t bytes = grid->bytes * grid->n_down * grid->n_across;
    uint32_t d = 0;
    while (d + 2 < dataset->rank && dataset->chunk[d] == 1)
        d++;
    for (d++; d + 2 < dataset->rank; d++)
        bytes *= (dataset->dims[d] - 1) / dataset->chunk[d] + 1;
    return grid->n_frames > 1 ? bytes : 0;
}

static const struct grid *hungriest(const struct assembler *assembler)
{
    const struct grid *most = assembler->grids;
    for (size_t i = 1; i < assembler->index->assembly->n_datasets; i++) {
        if (bytes_in_use(&assembler->grids[i]) > bytes_in_use(most))
            most = &assembler->grids[i];
    }
    return most;
}

static uint64_t usual_budget(const struct assembler *assembler)
{
    uint64_t memory = uv_get_total_memory(), allowed = uv_get_constrained_memory();
    uint64_t wanted = bytes_in_use(hungriest(assembler));
    if (allowed && allowed < memory)
        memory = allowed;
    uint64_t least = memory / BUDGET_PART, most = memory / MOST_BUDGET_PART;
    wanted += wanted / 4; /* the next ones begin before the last reader of these is done */
    return wanted < least ? least : wanted < most ? wanted : most;
}

bool assembler_is_slow(const struct assembler *assembler, char *text, size_t room)
{
    const struct source_index *index = assembler->index;
    if (!index->assembly->n_datasets)
        return false;
    const struct grid *grid = hungriest(assembler);
    const struct assembly_dataset *dataset = grid->dataset;
    uint64_t bytes = bytes_in_use(grid);
    if (bytes <= assembler->budget)
        return false;
    uint64_t frames = grid->n_frames * index->det_y * index->det_x * index->elem_bytes;
    snprintf(text, room,
             "%s: chunks of %llu frames by %llux%llu pixels: %llu MiB of them are in use at once, "
             "more than the %llu MiB "
             "that are kept, and they may be decoded up to %llu times; a copy with a frame in each "
             "chunk (h5repack -l "
             "CHUNK=) loads faster",
             index->assembly->texts + dataset->path, (unsigned long long)grid->n_frames,
             (unsigned long long)grid->height, (unsigned long long)grid->width,
             (unsigned long long)(bytes >> 20), (unsigned long long)(assembler->budget >> 20),
             (unsigned long long)(frames / USUAL_SPAN + 2));
    return true;
}

static int by_first(const void *a, const void *b)
{
    const struct reach *x = a, *y = b;
    return x->first != y->first ? (x->first < y->first ? -1 : 1)
                                : (x->box > y->box) - (x->box < y->box);
}

static void find_reaches(struct assembler *assembler)
{
    const struct assembly *assembly = assembler->index->assembly;
    struct reach *reaches = assembler->reaches;
    for (size_t i = 0; i < assembly->n_boxes; i++) {
        const struct assembly_box *box = &assembly->boxes[i];
        reaches[i] = (struct reach){.first = box->frame,
                                    .last = box->frame + (box->n_frames - 1) * box->frame_step,
                                    .box = i};
    }
    qsort(reaches, assembly->n_boxes, sizeof(*reaches), by_first);
    for (size_t i = 1; i < assembly->n_boxes; i++) {
        if (reaches[i].last < reaches[i - 1].last)
            reaches[i].last = reaches[i - 1].last;
    }
}

static int assembler_init(struct assembler *assembler, uint64_t budget_bytes)
{
    const struct assembly *assembly = assembler->index->assembly;
    if (uv_mutex_init(&assembler->mutex))
        return STOW_NOMEM;
    assembler->has_mutex = true;
    assembler->grids = calloc(assembly->n_datasets + 1, sizeof(*assembler->grids));
    assembler->reaches = calloc(assembly->n_boxes + 1, sizeof(*assembler->reaches));
    if (!assembler->grids || !assembler->reaches)
        return STOW_NOMEM;
    for (size_t i = 0; i < assembly->n_datasets; i++)
        grid_init(&assembler->grids[i], &assembly->datasets[i]);
    find_reaches(assembler);
    assembler->budget =
        budget_bytes || !assembly->n_datasets ? budget_bytes : usual_budget(assembler);
    assembler->cache = chunk_cache_new(assembler->budget);
    return assembler->cache ? 0 : STOW_NOMEM;
}

struct assembler *assembler_new(const struct source_index *index, uint64_t budget_bytes)
{
    struct assembler *assembler = calloc(1, sizeof(*assembler));
    if (!assembler)
        return NULL;
    assembler->index = index;
    if (!assembler_init(assembler, budget_bytes))
        return assembler;
    assembler_free(assembler);
    return NULL;
}

static void bench_free(struct bench *bench)
{
    filter_scratch_fini(&bench->filters);
    free(bench->packed);
    free(bench->plain);
    free(bench->picks);
    free(bench->covered);
    free(bench->boxes);
    free(bench->late);
    free(bench);
}

void assembler_free(struct assembler *assembler)
{
    if (!assembler)
        return;
    while (assembler->benches) {
        struct bench *bench = assembler->benches;
        assembler->benches = bench->next;
        bench_free(bench);
    }
    chunk_cache_free(assembler->cache);
    if (assembler->has_mutex)
        uv_mutex_destroy(&assembler->mutex);
    free(assembler->grids);
    free(assembler->reaches);
    free(assembler);
}

uint64_t assembly_bytes(const struct assembly *assembly)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < assembly->n_chunks; i++)
        sum += assembly->chunks[i].fault ? 0 : assembly->chunks[i].bytes;
    return sum;
}

/* ---- a thread's memory ---------------------------------------------------------------------------- */

static struct bench *take_bench(struct assembler *assembler, uint32_t n_frames)
{
    uv_mutex_lock(&assembler->mutex);
    struct bench *bench = assembler->benches;
    if (bench)
        assembler->benches = bench->next;
    uv_mutex_unlock(&assembler->mutex);
    if (!bench)
        bench = calloc(1, sizeof(*bench));
    if (bench && n_frames > bench->frames_room) {
        size_t room = 0;
        if (!bench_grow((void **)&bench->picks, &bench->frames_room,
                        n_frames * sizeof(struct pick)) ||
            !bench_grow((void **)&bench->covered, &room, n_frames)) {
            bench_free(bench);
            return NULL;
        }
        bench->frames_room = n_frames;
    }
    return bench;
}

static bool is_large(const struct bench *bench)
{
    bool large = bench->packed_room > BENCH_KEPT_BYTES;
    for (unsigned i = 0; i < FILTERS_ROOMS; i++)
        large |= bench->filters.room_bytes[i] > BENCH_KEPT_BYTES;
    return large;
}

static void give_bench(struct assembler *assembler, struct bench *bench)
{
    bench->n_late = 0;
    if (is_large(bench)) {
        bench_free(bench);
        return;
    }
    uv_mutex_lock(&assembler->mutex);
    bench->next = assembler->benches;
    assembler->benches = bench;
    uv_mutex_unlock(&assembler->mutex);
}

/* ---- boxes ---------------------------------------------------------------------------------------- */

static int by_number(const void *a, const void *b)
{
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x > y) - (x < y);
}

/* The numbers of boxes that may have frames of first .. last, ascending. */
static int find_boxes(const struct assembler *assembler, struct bench *bench, uint64_t first,
                      uint64_t last, size_t *n_out)
{
    const struct reach *reaches = assembler->reaches;
    size_t low = 0, high = assembler->index->assembly->n_boxes, n = 0;
    while (low < high) { /* how many begin at or before `last` */
        size_t middle = low + (high - low) / 2;
        if (reaches[middle].first <= last)
            low = middle + 1;
        else
            high = middle;
    }
    for (size_t i = low; i-- > 0 && reaches[i].last >= first; n++) {
        if (n == bench->boxes_room) {
            size_t room = n ? 2 * n : 16;
            size_t *boxes = realloc(bench->boxes, room * sizeof(*boxes));
            if (!boxes)
                return STOW_NOMEM;
            bench->boxes = boxes;
            bench->boxes_room = room;
        }
        bench->boxes[n] = reaches[i].box;
    }
    if (n > 1)
        qsort(bench->boxes, n, sizeof(*bench->boxes), by_number);
    *n_out = n;
    return 0;
}

/* Which of its frames a box has among the wanted ones: from *begin on, up to *end. */
static void box_range(const struct assembly_box *box, const struct assembler_read *read,
                      uint64_t *begin, uint64_t *end)
{
    const uint64_t step = box->frame_step, last = read->first + read->n_frames - 1;
    *begin = read->first <= box->frame ? 0 : (read->first - box->frame + step - 1) / step;
    *end = last < box->frame ? 0 : (last - box->frame) / step + 1;
    if (*end > box->n_frames)
        *end = box->n_frames;
}

static int by_group(const void *a, const void *b)
{
    const struct pick *x = a, *y = b;
    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    return (x->frame > y->frame) - (x->frame < y->frame);
}

static uint32_t find_picks(struct bench *bench, const struct grid *grid,
                           const struct assembly_box *box, const struct assembler_read *read)
{
    uint64_t begin, end;
    uint32_t n = 0;
    bool sorted = true;
    box_range(box, read, &begin, &end);
    for (uint64_t i = begin; i < end; i++) {
        struct pick pick = {.frame = (uint32_t)(box->frame + i * box->frame_step - read->first)};
        if (read->at[pick.frame] == ASSEMBLER_SKIP)
            continue;
        grid_find(grid, box->from_frame + i * box->from_step, &pick.group, &pick.inner);
        sorted &= !n || bench->picks[n - 1].group <= pick.group;
        bench->picks[n++] = pick;
    }
    if (!sorted)
        qsort(bench->picks, n, sizeof(*bench->picks), by_group);
    return n;
}

/* ---- pieces --------------------------------------------------------------------------------------- */

static int put_off(struct bench *bench, const struct piece *piece, struct stow_error *err)
{
    if (bench->n_late == bench->late_room) {
        size_t room = bench->late_room ? 2 * bench->late_room : 16;
        struct late *late = realloc(bench->late, room * sizeof(*late));
        if (!late)
            return error_set(err, STOW_NOMEM, "no memory to put frames together");
        bench->late = late;
        bench->late_room = room;
    }
    bench->late[bench->n_late++] = (struct late){.first = (uint32_t)(piece->picks - bench->picks),
                                                 .n = piece->n,
                                                 .down = piece->down,
                                                 .across = piece->across};
    return 0;
}

/* All chunks of one group that the box touches. */
static int put_group(struct piece *piece, struct stow_error *err)
{
    const struct grid *grid = piece->grid;
    const struct assembly_box *box = piece->box;
    uint64_t down_end = (box->from_y + box->n_y - 1) / grid->height + 1;
    uint64_t across_end = (box->from_x + box->n_x - 1) / grid->width + 1;
    for (piece->down = box->from_y / grid->height; piece->down < down_end; piece->down++) {
        for (piece->across = box->from_x / grid->width; piece->across < across_end;
             piece->across++) {
            enum piece_result result = piece_put(piece, false, err);
            if (result == PIECE_FAILED ||
                (result == PIECE_LATER && put_off(piece->bench, piece, err)))
                return err->code;
        }
    }
    return 0;
}

static int put_late(struct piece *piece, struct stow_error *err)
{
    struct bench *bench = piece->bench;
    for (size_t i = 0; i < bench->n_late; i++) {
        const struct late *late = &bench->late[i];
        piece->picks = bench->picks + late->first;
        piece->n = late->n;
        piece->down = late->down;
        piece->across = late->across;
        if (piece_put(piece, true, err) == PIECE_FAILED)
            return err->code;
    }
    bench->n_late = 0;
    return 0;
}

static int put_box(struct assembler *assembler, struct bench *bench,
                   const struct assembler_read *read, const struct assembly_box *box,
                   struct stow_error *err)
{
    struct piece piece = {.index = assembler->index,
                          .read = read,
                          .grid = &assembler->grids[box->dataset],
                          .box = box,
                          .cache = assembler->cache,
                          .bench = bench};
    uint32_t n = find_picks(bench, piece.grid, box, read);
    int rc = 0;
    for (uint32_t i = 0; i < n && !rc; i += piece.n) {
        piece.picks = bench->picks + i;
        piece.n = 1;
        while (i + piece.n < n && piece.picks[piece.n].group == piece.picks->group)
            piece.n++;
        rc = put_group(&piece, err);
    }
    return rc ? rc : put_late(&piece, err);
}

/* ---- a read --------------------------------------------------------------------------------------- */

static bool is_whole_frame(const struct source_index *index, const struct assembly_box *box)
{
    return !box->y && !box->x && box->n_y == index->det_y && box->n_x == index->det_x;
}

/* The fill value for frames of which a box may leave something out. */
static void fill_uncovered(const struct assembler *assembler, struct bench *bench, size_t n_boxes,
                           const struct assembler_read *read)
{
    const struct source_index *index = assembler->index;
    uint64_t begin, end;
    memset(bench->covered, 0, read->n_frames);
    for (size_t i = 0; i < n_boxes; i++) {
        const struct assembly_box *box = &index->assembly->boxes[bench->boxes[i]];
        if (!is_whole_frame(index, box))
            continue;
        box_range(box, read, &begin, &end);
        for (uint64_t k = begin; k < end; k++)
            bench->covered[box->frame + k * box->frame_step - read->first] = true;
    }
    for (uint32_t i = 0; i < read->n_frames; i++) {
        if (bench->covered[i] || read->at[i] == ASSEMBLER_SKIP)
            continue;
        fill_pixels(read->dst + read->at[i], index->det_y * index->det_x, index->elem_bytes,
                    index->fill);
    }
}

int assembler_read(struct assembler *assembler, const struct assembler_read *read,
                   struct stow_error *err)
{
    struct bench *bench = take_bench(assembler, read->n_frames);
    size_t n_boxes = 0;
    if (!bench)
        return error_set(err, STOW_NOMEM, "no memory to put frames together");
    int rc = find_boxes(assembler, bench, read->first, read->first + read->n_frames - 1, &n_boxes);
    if (rc)
        error_set(err, rc, "no memory to put frames together");
    else
        fill_uncovered(assembler, bench, n_boxes, read);
    for (size_t i = 0; i < n_boxes && !rc; i++)
        rc = put_box(assembler, bench, read, &assembler->index->assembly->boxes[bench->boxes[i]],
                     err);
    give_bench(assembler, bench);
    return rc;
}
