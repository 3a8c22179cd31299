/* SPDX-License-Identifier: Apache-2.0 */
#include "image.h"

#include <stdlib.h>

#define ALIGN 256u
#define N_DECODE_SLOTS \
    2u /* where each has frames to be decoded, which take room; and on the host */
#define SLOT_JOBS_GPU 65536u
#define FIRST_JOBS_GPU 8192u /* enough to fill a GPU, few enough to begin soon */
#define N_SLOTS_GPU 5u /* while one is on the GPU others are prepared and their results taken */
#define SLOT_JOBS_HOST 2048u                /* others' work comes in between */
#define SLOT_BYTES_GPU (UINT64_C(64) << 20) /* for decoded frames */
#define SLOT_BYTES_HOST (UINT64_C(16) << 20)
#define WEIGHED_BYTES (UINT64_C(16) << 20) /* for weights in stream order */
#define SLOT_SEGMENTS_GPU 16u
#define SLOT_SEGMENTS_HOST 64u              /* it does not use weights in stream order */
#define ONE_SLOT_BYTES (UINT64_C(32) << 20) /* what each slot has and takes so much is had once */

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

/* Lays parts out in both memories; over addresses of 0 it adds up how much they take. On the host a pinned part lies
 * where the device's does. */
struct layout {
    uint64_t dev, pinned;
    bool is_gpu;
};

static void put(struct layout *at, struct image_part *part, uint64_t bytes, bool pinned)
{
    *part = (struct image_part){.dev = at->dev};
    at->dev += round_up(bytes, ALIGN);
    if (!pinned)
        return;
    part->host = (void *)(uintptr_t)(at->is_gpu ? at->pinned : part->dev);
    at->pinned += round_up(bytes, ALIGN);
}

/* What a frame has in a table of ring sums. */
static uint64_t rings_bytes(const struct image *image)
{
    const struct ring_table *table = image->all.table;
    return (uint64_t)table->extent.n_rings * (table->wide ? sizeof(uint64_t) : sizeof(uint32_t));
}

static void lay_out_slot(const struct image *image, struct image_batch *batch, struct layout *at)
{
    const struct batch_sizes *z = &image->all.sizes;
    const struct frame_shape *shape = &image->resident->shape;
    enum image_kind kind = image->all.ask.kind;
    bool sums = kind == IMAGE_SUM, gpu = at->is_gpu;
    bool flags = kind == IMAGE_COM && image->resident->sums.flags;
    struct image_part
        places; /* nothing that the device needs: it is memory that is there already */
    put(at, &batch->weights, sums && gpu ? image_weights_bytes(image) : 0, false);
    put(at, &batch->weigh_jobs, sums ? z->segments * sizeof(struct weigh_job) : 0, true);
    put(at, &batch->jobs, z->jobs * (sums ? sizeof(struct sum_job) : sizeof(uint64_t)), true);
    put(at, &places, z->jobs * sizeof(*batch->at), true);
    batch->at = places.host;
    put(at, &batch->out,
        sums                 ? z->jobs * (image->all.n_sums * sizeof(uint64_t) + sizeof(int32_t))
        : kind == IMAGE_MEAN ? shape->n_elems * sizeof(uint64_t)
        : kind == IMAGE_COM  ? z->jobs * sizeof(struct frame_stats)
                             : z->jobs * rings_bytes(image),
        true);
    put(at, &batch->weighed, sums && gpu ? z->segments * z->weighed_stride : 0, false);
    put(at, &batch->pixels, z->decodes * z->pixel_stride, false);
    put(at, &batch->flags, flags ? shape->n_elems : 0, true);
    if (!flags)
        batch->flags = (struct image_part){.dev = 0};
    put(at, &batch->map, kind == IMAGE_RINGS ? shape->n_elems * sizeof(uint16_t) : 0, true);
    if (sums && !gpu)
        batch->weights = (struct image_part){.dev = (uintptr_t)image->weights};
}

static void lay_out(struct image *image, struct layout *at)
{
    struct image_part shared = {.host = NULL};
    if (at->is_gpu) { /* pinned alone */
        shared.host = (void *)(uintptr_t)at->pinned;
        at->pinned += round_up(image_weights_bytes(image), ALIGN);
        image->weights = shared.host;
    }
    for (unsigned i = 0; i < image->n_slots; i++)
        lay_out_slot(image, &image->slots[i].batch, at);
}

static void choose_sizes(struct image *image)
{
    const struct frame_shape *shape = &image->resident->shape;
    struct batch_sizes *z = &image->all.sizes;
    bool gpu = image->all.is_gpu, sums = image->all.ask.kind == IMAGE_SUM;
    uint64_t forms[STOW_N_FORMS], n = image->all.n ? image->all.n : 1;
    uint64_t room =
        least(gpu ? SLOT_BYTES_GPU : SLOT_BYTES_HOST, image->resident->place->max_bytes / 32);
    resident_forms(image->resident, forms);
    image->all.all_counts = forms[STOW_FORM_COUNTS] == image->resident->n_frames;
    bool decodes = !sums || forms[STOW_FORM_BSLZ4] || forms[STOW_FORM_RAW];
    z->pixel_stride = round_up(frame_bytes(shape), ALIGN);
    z->weighed_stride = round_up(sums_weighed_bytes(counts_n_granules(shape->n_elems),
                                                    image->all.n_sums, image->all.weights),
                                 ALIGN);
    z->jobs = (uint32_t)least(n, gpu ? SLOT_JOBS_GPU : SLOT_JOBS_HOST);
    if (image->all.ask.kind == IMAGE_RINGS)
        z->jobs = (uint32_t)least(z->jobs, room / rings_bytes(image) + 1);
    z->first_jobs = (uint32_t)least(z->jobs, gpu ? FIRST_JOBS_GPU : SLOT_JOBS_HOST);
    z->decodes = (uint32_t)least(room / (z->pixel_stride ? z->pixel_stride : 1), z->jobs);
    z->decodes = decodes && z->decodes ? z->decodes : 1;
    z->segments =
        gpu ? (uint32_t)least(least(room, WEIGHED_BYTES) / z->weighed_stride, SLOT_SEGMENTS_GPU)
            : SLOT_SEGMENTS_HOST;
    if (!sums)
        z->segments = UINT32_MAX;
    z->segments = !z->segments || !forms[STOW_FORM_COUNTS] ? 1 : z->segments;
    uint64_t common = sums ? image_weights_bytes(image) : shape->n_elems * sizeof(uint64_t);
    uint64_t batch = decodes ? z->decodes : z->first_jobs;
    image->n_slots = (unsigned)least((n + batch - 1) / batch,
                                     decodes || !gpu ? N_DECODE_SLOTS : IMAGE_MAX_SLOTS);
    bool ordered = image->all.ask.kind == IMAGE_MEAN && shape->kind == PIXEL_FLOAT;
    if (common > ONE_SLOT_BYTES || ordered) /* floats are added frame after frame */
        image->n_slots = 1;
}

static int alloc_lists(struct image *image)
{
    const struct batch_sizes *z = &image->all.sizes;
    for (unsigned i = 0; i < image->n_slots; i++) {
        struct image_batch *batch = &image->slots[i].batch;
        image->slots[i].image = image;
        batch->all = &image->all;
        batch->decodes = malloc(z->decodes * sizeof(*batch->decodes));
        batch->decoded = malloc(z->decodes * sizeof(*batch->decoded));
        batch->decode_of = malloc(z->decodes * sizeof(*batch->decode_of));
        if (!batch->decodes || !batch->decoded || !batch->decode_of)
            return STOW_NOMEM;
    }
    if (image->all.ask.kind != IMAGE_SUM || image->all.is_gpu)
        return 0;
    image->weights = aligned_alloc(ALIGN, round_up(image_weights_bytes(image), ALIGN));
    return image->weights ? 0 : STOW_NOMEM;
}

static void on_arena(void *data)
{
    struct image *image = data;
    struct layout at = {.is_gpu = image->all.is_gpu,
                        .dev = image->arena->device.dev,
                        .pinned = (uintptr_t)image->arena->pinned.host};
    if (!image->arena->err.code)
        lay_out(image, &at);
    image->ready(image);
}

int image_memory_take(struct image *image, void (*ready)(void *image), struct stow_error *err)
{
    struct layout at = {.is_gpu = image->all.is_gpu};
    image->ready = ready;
    choose_sizes(image);
    if (alloc_lists(image))
        return error_set(err, STOW_NOMEM, "no memory for a sum over frames");
    void *weights = image->weights;
    lay_out(image, &at);
    image->weights = image->all.is_gpu ? NULL : weights;
    int rc = arena_take(&image->arena, &image->images->arenas, image->resident->place, at.dev,
                        at.pinned, on_arena, image, err);
    if (!rc && !image->arena->n_requests)
        on_arena(image);
    return rc;
}

void image_memory_free(struct image *image)
{
    for (unsigned i = 0; i < IMAGE_MAX_SLOTS; i++) {
        struct image_batch *batch = &image->slots[i].batch;
        free(batch->decodes);
        free(batch->decoded);
        free(batch->decode_of);
        batch->decodes = NULL;
        batch->decoded = NULL;
        batch->decode_of = NULL;
    }
    if (!image->all.is_gpu)
        free(image->weights);
    image->weights = NULL;
    if (image->arena)
        arena_give(image->arena);
    image->arena = NULL;
}
