/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding.h"

#include "bslz4.h"
#include "counts_model.h"
#include "describe.h"

#include <stdlib.h>
#include <string.h>

#define BATCH_BYTES (UINT64_C(320) << 20)
/* What is decoded stays in the caches until it is added up or encoded, and little memory has to be made. Decoding
 * twice costs less than that. */
#define HOST_BATCH_BYTES (UINT64_C(16) << 20)
/* Learning a model takes longer than all else of a segment together: with so many the GPU always has
 * some segment to work at. */
#define GPU_ENCODERS 14u
#define GPU_SCRATCH_PART 12u /* of the device's memory, the most that encoders take together */
#define HOST_ENCODERS 2u
#define HOST_SCRATCH_BYTES (UINT64_C(1) << 30) /* an encoder that takes more is alone */
#define USUAL_BLOCK_BYTES 8192u

/* The frame table and what is kept of each frame's counts lie in host memory, and count too: a small file can have
 * millions of frames that were never written. */
static int charge_frames(struct encoding *all, struct stow_error *err)
{
    struct resident *resident = all->resident;
    uint64_t bytes = all->index->n_frames * (sizeof(struct frame) + sizeof(struct frame_stats));
    struct shortage shortage;
    if (store_make_room(resident->store, resident->place, bytes, &shortage))
        return shortage_error(&shortage, resident->place, err);
    place_charge(resident->place, bytes);
    resident->frames_charged = bytes;
    return 0;
}

/* Whether counts can hold such frames. */
static int check_form(const struct encoding *all, struct stow_error *err)
{
    const uint64_t n_elems = all->index->det_y * all->index->det_x;
    if (all->keep.form != KEEP_COUNTS)
        return 0;
    if (all->index->dtype[0] != 'u' || all->index->elem_bytes > 4)
        return error_set(err, STOW_UNSUPPORTED,
                         "--form counts holds u1, u2 and u4; these frames are %s: load them with "
                         "--form auto",
                         all->index->dtype);
    if (counts_n_tiles(n_elems) <= COUNTS_MAX_TILES)
        return 0;
    return error_set(err, STOW_UNSUPPORTED,
                     "--form counts holds frames of up to %u pixels; these have %llu: load them "
                     "with --form auto",
                     COUNTS_MAX_TILES * COUNTS_TILE_PIXELS, (unsigned long long)n_elems);
}

static uint64_t usual_table_words(const struct frame_shape *shape)
{
    return frame_bytes(shape) / USUAL_BLOCK_BYTES + 2;
}

/* Whether frames are tried as counts. */
static bool encodes(const struct encoding *all)
{
    const uint64_t n_elems = all->resident->shape.n_elems;
    return (all->keep.form == KEEP_AUTO || all->keep.form == KEEP_COUNTS) && n_elems &&
           shape_is_counts(&all->resident->shape) && counts_n_tiles(n_elems) <= COUNTS_MAX_TILES;
}

/* So many encoders that their scratch fits beside the budget, and leaves most of a GPU to others. */
static unsigned count_encoders(const struct encoding *all)
{
    const struct place *place = all->resident->place;
    const struct device_info *info = device_info(place->device);
    uint64_t each = scratch_device_bytes(&all->sizes);
    uint64_t spare =
        info->total_bytes > place->max_bytes ? info->total_bytes - place->max_bytes : 0;
    unsigned n = info->is_gpu ? GPU_ENCODERS : each > HOST_SCRATCH_BYTES ? 1 : HOST_ENCODERS;
    if (info->is_gpu && spare > info->total_bytes / GPU_SCRATCH_PART)
        spare = info->total_bytes / GPU_SCRATCH_PART;
    while (n > 1 && n * each > spare)
        n--;
    return n;
}

static void size_scratch(struct encoding *all, const struct encoding_limits *limits)
{
    const struct plan *plan = &all->plan;
    const struct frame_shape *shape = &all->resident->shape;
    uint64_t stride = frame_stride(shape);
    uint64_t batch_bytes =
        device_info(all->resident->place->device)->is_gpu ? BATCH_BYTES : HOST_BATCH_BYTES;
    uint64_t most = (limits->batch_bytes ? limits->batch_bytes : batch_bytes) / (stride | 1);
    all->sizes =
        (struct scratch_sizes){.shape = *shape,
                               .chunk_bytes = plan->max_bytes,
                               .table_words = plan->max_stored * usual_table_words(shape),
                               .batch = most < plan->max_stored ? (uint32_t)most : plan->max_stored,
                               .n_sample =
                                   (uint32_t)counts_sample_frames(shape->n_elems, plan->max_stored),
                               .n_streams = encodes(all) ? all->keep.streams : 0,
                               .flags = all->resident->sums.flags != NULL};
    if (!all->sizes.batch)
        all->sizes.batch = 1;
    unsigned n = limits->n_encoders ? limits->n_encoders : count_encoders(all);
    if (n > ENCODING_MAX_ENCODERS)
        n = ENCODING_MAX_ENCODERS;
    all->n_encoders = plan->n_segments < n ? (unsigned)plan->n_segments : n;
}

/* The most that a frame may take, its block table with it. */
static uint64_t worst_bytes(const struct encoding *all, const struct source_chunk *chunk)
{
    const struct frame_shape *shape = &all->resident->shape;
    uint64_t counts = frame_stride(shape) + 16 + all->keep.streams * 2 * sizeof(uint32_t);
    uint64_t bytes = chunk->bytes + (chunk->raw ? 16 : usual_table_words(shape) * sizeof(uint32_t));
    if (all->keep.form == KEEP_RAW)
        return frame_stride(shape);
    return all->keep.form == KEEP_COUNTS && bytes < counts ? counts : bytes;
}

/* The worst case. With all that shrinks of a segment goes its table; but for one that turns out at its end not to
 * shrink, and by then had room for that. */
static int reserve_room(struct encoding *all, struct stow_error *err)
{
    const uint64_t n_segments = all->plan.n_segments;
    uint64_t bytes = n_segments * 64, largest = 0;
    for (uint64_t id = 0; id < all->index->n_frames; id++) {
        const struct source_chunk *chunk = &all->index->chunks[id];
        if (!chunk_is_stored(chunk))
            continue;
        uint64_t frame = worst_bytes(all, chunk);
        bytes += frame;
        largest = frame > largest ? frame : largest;
    }
    uint64_t table = all->sizes.n_streams ? scratch_segment_bytes(&all->resident->shape) : 0;
    if (all->keep.form == KEEP_COUNTS)
        bytes += n_segments * table;
    else if (all->sizes.batch < all->plan.max_stored)
        bytes += table;
    return room_init(&all->room, all->resident, bytes, largest, all->changed, all->data, err);
}

int encoding_init(struct encoding *all, const struct encoding_limits *limits,
                  struct stow_error *err)
{
    struct resident *resident = all->resident;
    int rc = check_form(all, err);
    if (!rc)
        rc = charge_frames(all, err);
    if (rc)
        return rc;
    if (uv_mutex_init(&all->sums))
        return error_set(err, STOW_NOMEM, "no memory to load an acquisition");
    all->has_sums_mutex = true;
    if (describe_resident(resident, all->index) ||
        plan_init(&all->plan, all->index, &resident->shape) ||
        describe_segments(resident, all->plan.segment_frames, all->index->flags))
        return error_set(err, STOW_NOMEM, "no memory for the table of %llu frames",
                         (unsigned long long)all->index->n_frames);
    resident->keep = all->keep;
    size_scratch(all, limits);
    for (size_t i = 0; i < all->plan.n_segments; i++)
        all->later_bytes += all->plan.segments[i].chunk_bytes;
    return reserve_room(all, err);
}

void encoding_fini(struct encoding *all)
{
    room_fini(&all->room);
    plan_fini(&all->plan);
    if (all->has_sums_mutex)
        uv_mutex_destroy(&all->sums);
}

static void add_fill(struct resident *resident, const void *pixels)
{
    struct kept_sums *sums = &resident->sums;
    struct frame_stats stats;
    uint64_t n = 0;
    sums_stats(&stats, pixels, sums->flags, resident->det_x, &resident->shape);
    for (uint64_t id = 0; id < resident->n_frames; id++) {
        if (resident->frames[id].form != STOW_FORM_FILL)
            continue;
        sums->stats[id] = stats;
        n++;
    }
    sums_add_fill(sums->pixels, n, &resident->shape);
    sums->n_frames += n;
}

int encoding_add_fill(struct encoding *all)
{
    const struct resident *resident = all->resident;
    const size_t bytes = frame_bytes(&resident->shape);
    uint64_t id = 0;
    while (id < resident->n_frames && resident->frames[id].form != STOW_FORM_FILL)
        id++;
    if (id == resident->n_frames)
        return 0;
    void *pixels = aligned_alloc(16, (bytes + 16) / 16 * 16);
    struct decode_job fill = {.form = STOW_FORM_FILL, .dst = (uintptr_t)pixels};
    int rc = pixels ? decode_frame(&fill, &resident->shape, NULL) : STOW_NOMEM;
    if (!rc)
        add_fill(all->resident, pixels);
    free(pixels);
    return rc;
}
