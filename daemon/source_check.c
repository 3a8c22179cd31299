/* SPDX-License-Identifier: Apache-2.0 */
#include "source_check.h"

#include <string.h>

#define MAX_DATASETS (UINT64_C(1) << 20)
#define MAX_TEXTS (UINT64_C(1) << 30)

const char *source_check_shape(const struct reader_shape *shape, struct source_parts *parts)
{
    const char *wrong = reader_msg_check_shape(shape, &parts->frame_bytes);
    if (wrong)
        return wrong;
    if (shape->n_datasets > MAX_DATASETS || shape->n_boxes > ASSEMBLY_MAX_BOXES ||
        shape->n_chunks > ASSEMBLY_MAX_CHUNKS || shape->n_texts > MAX_TEXTS)
        return "an assembly of an impossible size";
    parts->n_pixels = parts->frame_bytes / shape->elem_bytes;
    parts->flags = shape->n_frames * sizeof(struct source_chunk);
    parts->datasets = parts->flags + (shape->has_flags ? parts->n_pixels : 0);
    if (!shape->has_assembly) {
        parts->bytes = parts->datasets;
        return NULL;
    }
    parts->datasets = (parts->datasets + 7) & ~UINT64_C(7);
    parts->boxes = parts->datasets + shape->n_datasets * sizeof(struct assembly_dataset);
    parts->chunks = parts->boxes + shape->n_boxes * sizeof(struct assembly_box);
    parts->texts = parts->chunks + shape->n_chunks * sizeof(struct assembly_chunk);
    parts->bytes = parts->texts + shape->n_texts;
    return NULL;
}

static bool is_open(const struct source_index *index, uint32_t file)
{
    return file < index->n_files && index->files[file].fd >= 0;
}

static bool in_file(const struct source_index *index, uint32_t file, uint64_t offset,
                    uint64_t bytes)
{
    uint64_t end;
    return !__builtin_add_overflow(offset, bytes, &end) && end <= index->files[file].size;
}

/* Whether a frame's or chunk's fault is one, and its file one that can be named. */
static bool fault_ok(const struct source_index *index, uint32_t fault, uint32_t file,
                     uint64_t offset)
{
    if (fault == SOURCE_FAULT_NO_FILE)
        return file == SOURCE_NO_FILE && offset < index->n_files;
    return fault <= SOURCE_FAULT_BYTES && is_open(index, file);
}

/* Whether the frame's bytes lie in a file that is open, or a fault says why not. */
static bool frame_ok(const struct source_index *index, const struct source_chunk *frame,
                     uint64_t frame_bytes, bool assembled)
{
    if (frame->raw > 1 || !fault_ok(index, frame->fault, frame->file, frame->offset))
        return false;
    if (frame->fault || frame->bytes == 0)
        return true;
    if ((frame->raw || assembled) && frame->bytes != frame_bytes)
        return false;
    if (assembled)
        return frame->raw && in_file(index, frame->file, frame->offset, 0);
    return in_file(index, frame->file, frame->offset, frame->bytes);
}

static const char *check_frames(struct source_index *index, const struct reader_shape *shape,
                                const struct source_parts *parts)
{
    index->chunk_bytes = 0;
    for (uint64_t i = 0; i < shape->n_frames; i++) {
        const struct source_chunk *frame = &index->chunks[i];
        if (!frame_ok(index, frame, parts->frame_bytes, shape->has_assembly))
            return "a chunk that is not in its file";
        index->chunk_bytes += frame->fault ? 0 : frame->bytes;
    }
    return NULL;
}

/* ---- the assembly ---------------------------------------------------------------------------- */

/* The product of n numbers, none of which may be 0. False: more than limit. */
static bool product(const uint64_t *of, unsigned n, uint64_t limit, uint64_t *result)
{
    for (unsigned i = 0; i < n; i++)
        if (of[i] == 0 || __builtin_mul_overflow(*result, of[i], result) || *result > limit)
            return false;
    return true;
}

static const char *check_filters(const struct assembly_dataset *set)
{
    if (set->n_filters > ASSEMBLY_FILTERS)
        return "a dataset of too many filters";
    for (uint32_t i = 0; i < set->n_filters; i++)
        if (set->filters[i].n_values > ASSEMBLY_VALUES)
            return "a filter of too many values";
    return NULL;
}

static const char *check_dataset(const struct source_index *index, const struct assembly *assembly,
                                 const struct assembly_dataset *set,
                                 const struct reader_shape *shape)
{
    uint64_t frame = set->elem_bytes, n_frames = 1, chunk = set->elem_bytes, n_chunks = 1;
    if (set->rank < 2 || set->rank > ASSEMBLY_RANK || set->elem_bytes != shape->elem_bytes ||
        set->flags & ~(uint32_t)ASSEMBLY_BIG_ENDIAN)
        return "a dataset of an unknown kind";
    if (!is_open(index, set->file) || set->path >= assembly->n_texts)
        return "a dataset without a file or name";
    if (!product(set->dims + set->rank - 2, 2, UINT32_MAX, &frame) ||
        !product(set->dims, set->rank - 2, UINT64_MAX, &n_frames) ||
        !product(set->chunk, set->rank, UINT32_MAX, &chunk))
        return "a dataset of an impossible shape";
    for (uint32_t i = 0; i < set->rank; i++) {
        uint64_t n = (set->dims[i] - 1) / set->chunk[i] + 1;
        if (!product(&n, 1, ASSEMBLY_MAX_CHUNKS, &n_chunks))
            return "a dataset of too many chunks";
    }
    if (n_chunks != set->n_chunks || set->first_chunk > assembly->n_chunks ||
        n_chunks > assembly->n_chunks - set->first_chunk)
        return "a dataset of another number of chunks";
    if (set->fill >> (8 * set->elem_bytes - 1) >> 1)
        return "a fill value that does not fit a pixel";
    return check_filters(set);
}

static bool chunk_ok(const struct source_index *index, const struct assembly_chunk *chunk,
                     uint32_t all_filters, uint64_t chunk_bytes)
{
    if (!fault_ok(index, chunk->fault, chunk->file, chunk->offset) || chunk->mask & ~all_filters)
        return false;
    if (chunk->fault || chunk->bytes == 0)
        return true;
    if (chunk->mask == all_filters && chunk->bytes != chunk_bytes)
        return false;
    return in_file(index, chunk->file, chunk->offset, chunk->bytes);
}

static const char *check_chunks(const struct source_index *index, const struct assembly *assembly,
                                const struct assembly_dataset *set)
{
    uint32_t all = (1u << set->n_filters) - 1;
    uint64_t bytes = set->elem_bytes;
    product(set->chunk, set->rank, UINT32_MAX, &bytes);
    for (uint64_t i = 0; i < set->n_chunks; i++)
        if (!chunk_ok(index, &assembly->chunks[set->first_chunk + i], all, bytes))
            return "a chunk that is not in its file";
    return NULL;
}

/* Whether first + i * step for i < n lie below limit. */
static bool row_fits(uint64_t first, uint64_t step, uint64_t n, uint64_t limit)
{
    uint64_t last;
    return n > 0 && step > 0 && !__builtin_mul_overflow(n - 1, step, &last) &&
           !__builtin_add_overflow(last, first, &last) && last < limit;
}

static bool side_fits(uint64_t first, uint64_t n, uint64_t limit)
{
    return n > 0 && n <= limit && first <= limit - n;
}

static bool box_fits(const struct assembly *assembly, const struct assembly_box *box,
                     const struct reader_shape *shape)
{
    if (box->dataset >= assembly->n_datasets)
        return false;
    const struct assembly_dataset *set = &assembly->datasets[box->dataset];
    const uint64_t *det = set->dims + set->rank - 2;
    uint64_t n_frames = 1;
    product(set->dims, set->rank - 2, UINT64_MAX, &n_frames);
    return row_fits(box->frame, box->frame_step, box->n_frames, shape->n_frames) &&
           row_fits(box->from_frame, box->from_step, box->n_frames, n_frames) &&
           side_fits(box->y, box->n_y, shape->det_y) && side_fits(box->x, box->n_x, shape->det_x) &&
           side_fits(box->from_y, box->n_y, det[0]) && side_fits(box->from_x, box->n_x, det[1]);
}

static const char *check_assembly(const struct source_index *index, const struct assembly *assembly,
                                  const struct reader_shape *shape)
{
    const char *wrong = NULL;
    uint64_t n_chunks = 0, n_parts = 0;
    if (assembly->n_texts && assembly->texts[assembly->n_texts - 1] != '\0')
        return "names without an end";
    for (size_t i = 0; !wrong && i < assembly->n_datasets; i++) {
        const struct assembly_dataset *set = &assembly->datasets[i];
        wrong = check_dataset(index, assembly, set, shape);
        if (!wrong && set->first_chunk != n_chunks)
            wrong = "a dataset of another's chunks";
        if (!wrong)
            wrong = check_chunks(index, assembly, set);
        n_chunks += set->n_chunks;
    }
    if (!wrong && n_chunks != assembly->n_chunks)
        wrong = "chunks of no dataset";
    for (size_t i = 0; !wrong && i < assembly->n_boxes; i++) {
        if (!box_fits(assembly, &assembly->boxes[i], shape))
            wrong = "a box outside of its dataset or the frames";
        else if ((n_parts += assembly->boxes[i].n_frames) > ASSEMBLY_MAX_PARTS)
            wrong = "frames of too many parts";
    }
    return wrong;
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* What the file's mask says of each pixel. One that flags none is as good as no mask. */
static void take_flags(struct source_index *index, const uint8_t *flags, uint64_t n_pixels)
{
    for (uint64_t i = 0; i < n_pixels; i++)
        index->n_flagged += flags[i] != 0;
    index->flags = index->n_flagged ? flags : NULL;
}

const char *source_check_map(struct source_index *index, struct assembly *assembly,
                             const struct reader_shape *shape, const struct source_parts *parts,
                             const uint8_t *map)
{
    index->chunks = (const struct source_chunk *)map;
    const char *wrong = check_frames(index, shape, parts);
    if (!wrong && shape->has_assembly) {
        *assembly =
            (struct assembly){.datasets = (const struct assembly_dataset *)(map + parts->datasets),
                              .n_datasets = shape->n_datasets,
                              .boxes = (const struct assembly_box *)(map + parts->boxes),
                              .n_boxes = shape->n_boxes,
                              .chunks = (const struct assembly_chunk *)(map + parts->chunks),
                              .n_chunks = shape->n_chunks,
                              .texts = (const char *)(map + parts->texts),
                              .n_texts = shape->n_texts};
        wrong = check_assembly(index, assembly, shape);
    }
    if (!wrong && shape->has_flags)
        take_flags(index, map + parts->flags, parts->n_pixels);
    return wrong;
}
