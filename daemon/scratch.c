/* SPDX-License-Identifier: Apache-2.0
 *
 * On the host all of it is ordinary memory, of which only what is touched exists. */
#include "scratch.h"

#define ALIGN 256u

enum { DEV, PINNED, MORE_DEV, MORE_PINNED };

/* Lays parts out one behind the other, in both memories; with addresses of 0 it only adds up. */
struct layout {
    uint64_t dev, host;
};

static void put(struct layout *at, struct scratch_part *part, uint64_t bytes, bool pinned)
{
    *part = (struct scratch_part){.dev = at->dev};
    at->dev += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (!pinned)
        return;
    part->host = (void *)(uintptr_t)at->host;
    at->host += (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

uint64_t scratch_segment_bytes(const struct frame_shape *shape)
{
    uint64_t granules = counts_n_granules(shape->n_elems), tiles = counts_n_tiles(shape->n_elems);
    return sizeof(struct counts_segment) + COUNTS_CLASSES * COUNTS_STATES * sizeof(uint32_t) +
           granules * (COUNTS_LANES * sizeof(uint32_t) + 1) + (tiles + 1) * sizeof(uint32_t) +
           shape->n_elems * sizeof(struct counts_constant) + UINT64_C(16) * 8;
}

static void lay_out(struct scratch *s, const struct scratch_sizes *z, struct layout *at)
{
    const uint64_t stride = frame_stride(&z->shape), n = z->batch;
    const bool encodes = z->n_streams != 0;
    s->pixel_stride = stride;
    s->table_words = z->table_words;
    put(at, &s->chunks, z->chunk_bytes, false);
    put(at, &s->pixels, n * stride, false);
    put(at, &s->rooms, encodes ? n * stride : 0, false);
    put(at, &s->tables, z->table_words * sizeof(uint32_t), true);
    put(at, &s->sums, z->shape.n_elems * sizeof(uint64_t), true);
    put(at, &s->flags, z->flags ? z->shape.n_elems : 0, true);
    put(at, &s->stats, n * sizeof(struct frame_stats), true);
    put(at, &s->frames, n * sizeof(uint64_t), true);
    put(at, &s->jobs, (2 * n + 1) * sizeof(struct place_job), true);
    put(at, &s->streams, n * z->n_streams * sizeof(struct counts_stream), true);
    put(at, &s->sample, encodes ? z->n_sample * frame_bytes(&z->shape) : 0, true);
    put(at, &s->segment, encodes ? scratch_segment_bytes(&z->shape) : 0, true);
    put(at, &s->encoder, encodes ? sizeof(struct counts_encoder) : 0, true);
}

uint64_t scratch_device_bytes(const struct scratch_sizes *sizes)
{
    struct scratch none;
    struct layout at = {.dev = 0};
    lay_out(&none, sizes, &at);
    return at.dev;
}

/* Everything is there: settle where its parts lie. */
static void settle(struct scratch *scratch)
{
    struct layout at = {.dev = scratch->memory[DEV].dev,
                        .host = (uintptr_t)scratch->memory[PINNED].host};
    lay_out(scratch, &scratch->sizes, &at);
    if (!scratch->memory[MORE_DEV].bytes)
        return;
    scratch->tables.dev = scratch->memory[MORE_DEV].dev;
    scratch->tables.host = scratch->memory[MORE_PINNED].host;
    scratch->table_words = scratch->memory[MORE_DEV].bytes / sizeof(uint32_t);
}

static void on_request(struct device_request *request)
{
    struct scratch *scratch = request->data;
    if (request->status && !scratch->err.code)
        scratch->err = request->err;
    if (--scratch->n_requests)
        return;
    if (!scratch->err.code && scratch->memory[DEV].bytes)
        settle(scratch);
    scratch->changed(scratch->data);
}

static struct device_request *begin(struct scratch *scratch, unsigned which)
{
    scratch->n_requests++;
    scratch->requests[which] = (struct device_request){.done = on_request, .data = scratch};
    return &scratch->requests[which];
}

static void ask(struct scratch *scratch, unsigned which, uint64_t dev_bytes, uint64_t pinned_bytes)
{
    bool gpu = device_info(scratch->device)->is_gpu;
    scratch->err = (struct stow_error){.code = 0};
    device_alloc(scratch->device, &scratch->memory[which], gpu ? MEMORY_RESIDENT : MEMORY_STAGING,
                 dev_bytes, begin(scratch, which));
    device_alloc(scratch->device, &scratch->memory[which + 1], MEMORY_STAGING, pinned_bytes,
                 begin(scratch, which + 1));
}

void scratch_alloc(struct scratch *scratch, struct device *device,
                   const struct scratch_sizes *sizes)
{
    struct layout at = {.dev = 0};
    scratch->device = device;
    scratch->sizes = *sizes;
    lay_out(scratch, sizes, &at);
    ask(scratch, DEV, at.dev, at.host);
}

static void give(struct scratch *scratch, unsigned which)
{
    if (scratch->memory[which].bytes)
        device_free(scratch->device, &scratch->memory[which], begin(scratch, 4 + which));
}

void scratch_grow_tables(struct scratch *scratch, uint64_t words)
{
    give(scratch, MORE_DEV); /* before what is asked for next: the service thread works in order */
    give(scratch, MORE_PINNED);
    ask(scratch, MORE_DEV, words * sizeof(uint32_t), words * sizeof(uint32_t));
}

bool scratch_free(struct scratch *scratch)
{
    scratch->err = (struct stow_error){.code = 0};
    for (unsigned i = 0; i < 4; i++)
        give(scratch, i);
    return scratch->n_requests != 0;
}
