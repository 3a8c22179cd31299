/* SPDX-License-Identifier: Apache-2.0 */
#include "image.h"

#include <string.h>

/* On the host both are one memory, and there is nothing to be copied. */
static void upload(struct chain *chain, const struct image_part *to, const void *from, size_t bytes)
{
    if (to->dev != (uintptr_t)from && bytes)
        chain_upload(chain, to->dev, from, bytes);
}

static void download(struct chain *chain, const struct image_part *from, size_t bytes)
{
    if (from->dev != (uintptr_t)from->host && bytes)
        chain_download(chain, from->host, from->dev, bytes);
}

/* What all batches of a slot have in common. */
static void submit_common(struct image_slot *slot)
{
    const struct image *image = slot->image;
    struct image_batch *batch = &slot->batch;
    uint64_t n_elems = image->resident->shape.n_elems;
    if (slot->begun)
        return;
    slot->begun = true;
    if (image->all.ask.kind == IMAGE_SUM) {
        upload(&slot->chain, &batch->weights, image->weights, image_weights_bytes(image));
    } else if (image->all.ask.kind == IMAGE_MEAN) {
        upload(&slot->chain, &batch->out, batch->out.host, n_elems * sizeof(uint64_t));
    } else if (image->all.ask.kind == IMAGE_RINGS) {
        upload(&slot->chain, &batch->map, batch->map.host, n_elems * sizeof(uint16_t));
    } else if (batch->flags.dev) {
        upload(&slot->chain, &batch->flags, batch->flags.host, n_elems);
    }
}

static void submit_sums(struct image_slot *slot)
{
    const struct image *image = slot->image;
    const struct frame_shape *shape = &image->resident->shape;
    struct image_batch *batch = &slot->batch;
    size_t out_bytes = sizeof(uint64_t) * batch->n_jobs * image->all.n_sums;
    if (batch->n_segments && image->all.is_gpu) {
        struct work weigh = {.kind = WORK_WEIGH, .n = batch->n_segments, .shape = *shape};
        weigh.weigh.jobs = batch->weigh_jobs.dev;
        weigh.weigh.weights = batch->weights.dev;
        weigh.weigh.n_masks = image->all.n_sums;
        weigh.weigh.weights_kind = image->all.weights;
        weigh.weigh.n_granules = counts_n_granules(shape->n_elems);
        upload(&slot->chain, &batch->weigh_jobs, batch->weigh_jobs.host,
               batch->n_segments * sizeof(struct weigh_job));
        chain_run(&slot->chain, &weigh);
    }
    batch->status = (struct image_part){.dev = batch->out.dev + out_bytes,
                                        .host = (uint8_t *)batch->out.host + out_bytes};
    struct work sum = {.kind = WORK_SUM, .n = batch->n_jobs, .shape = *shape};
    sum.sum.jobs = batch->jobs.dev;
    sum.sum.weights = batch->weights.dev;
    sum.sum.out = batch->out.dev;
    sum.sum.out_stride = batch->n_jobs;
    sum.sum.status = batch->status.dev;
    sum.sum.n_masks = image->all.n_sums;
    sum.sum.weights_kind = image->all.weights;
    upload(&slot->chain, &batch->jobs, batch->jobs.host, batch->n_jobs * sizeof(struct sum_job));
    chain_run(&slot->chain, &sum);
    download(&slot->chain, &batch->out, out_bytes + batch->n_jobs * sizeof(int32_t));
}

static void submit_decoded(struct image_slot *slot)
{
    const struct image *image = slot->image;
    struct image_batch *batch = &slot->batch;
    struct work work = {.kind = WORK_STATS, .n = batch->n_jobs, .shape = image->resident->shape};
    upload(&slot->chain, &batch->jobs, batch->jobs.host, batch->n_jobs * sizeof(uint64_t));
    if (image->all.ask.kind == IMAGE_COM) {
        work.stats.frames = batch->jobs.dev;
        work.stats.flags = batch->flags.dev;
        work.stats.stats = batch->out.dev;
        work.stats.det_x = image->resident->det_x;
    } else {
        work.kind = WORK_PIXELS;
        work.n = (uint32_t)((work.shape.n_elems + WORK_PIXELS_BLOCK - 1) / WORK_PIXELS_BLOCK);
        work.pixels.frames = batch->jobs.dev;
        work.pixels.n_frames = batch->n_jobs;
        work.pixels.sums = batch->out.dev;
        batch->any_sums = true;
    }
    chain_run(&slot->chain, &work);
    if (image->all.ask.kind == IMAGE_COM)
        download(&slot->chain, &batch->out, batch->n_jobs * sizeof(struct frame_stats));
}

static void submit_rings(struct image_slot *slot)
{
    const struct image *image = slot->image;
    const struct ring_table *table = image->all.table;
    struct image_batch *batch = &slot->batch;
    struct work work = {.kind = WORK_RINGS, .n = batch->n_jobs, .shape = image->resident->shape};
    work.rings.frames = batch->jobs.dev;
    work.rings.map = batch->map.dev;
    work.rings.out = batch->out.dev;
    work.rings.out_stride = batch->n_jobs;
    work.rings.n_rings = table->extent.n_rings;
    work.rings.wide = table->wide;
    upload(&slot->chain, &batch->jobs, batch->jobs.host, batch->n_jobs * sizeof(uint64_t));
    chain_run(&slot->chain, &work);
    download(&slot->chain, &batch->out,
             (size_t)batch->n_jobs * table->extent.n_rings * (table->wide ? 8 : 4));
}

static void start_chain(struct image_slot *slot)
{
    if (chain_start(&slot->chain)) {
        image_fail(slot->image, &slot->chain.err);
        image_part_over(slot->image);
    }
}

static void submit(struct image_slot *slot)
{
    struct image_batch *batch = &slot->batch;
    chain_begin(&slot->chain);
    submit_common(slot);
    if (batch->n_decodes)
        chain_decode(&slot->chain, batch->decoded, batch->decodes, batch->n_decodes);
    if (slot->image->all.ask.kind == IMAGE_SUM)
        submit_sums(slot);
    else if (slot->image->all.ask.kind == IMAGE_RINGS)
        submit_rings(slot);
    else
        submit_decoded(slot);
    slot->collecting = true;
    start_chain(slot);
}

/* The pixel sums of all of the slot's batches are still on the device. */
static void fetch_sums(struct image_slot *slot)
{
    slot->batch.any_sums = false;
    slot->collecting = false;
    chain_begin(&slot->chain);
    download(&slot->chain, &slot->batch.out,
             slot->image->resident->shape.n_elems * sizeof(uint64_t));
    start_chain(slot);
}

/* What batches add to, and what they all read, as it is uploaded before the first. */
static void fill_common(struct image_slot *slot)
{
    const struct resident *resident = slot->image->resident;
    const struct ring_table *table = slot->image->all.table;
    if (table)
        ring_map(slot->batch.map.host, &table->key, &table->extent,
                 table->key.flagged ? NULL : resident->sums.flags, resident->det_y,
                 resident->det_x);
    else if (slot->image->all.ask.kind == IMAGE_MEAN)
        memset(slot->batch.out.host, 0, resident->shape.n_elems * sizeof(uint64_t));
    else if (slot->batch.flags.dev)
        memcpy(slot->batch.flags.host, resident->sums.flags, resident->shape.n_elems);
}

/* A thread of the pool. */
static void slot_run(uv_work_t *work)
{
    struct image_slot *slot = work->data;
    if (!slot->begun)
        fill_common(slot);
    if (slot->collecting && batch_collect(&slot->batch, &slot->err))
        return;
    slot->collecting = false;
    batch_take(&slot->batch);
}

static void go_on(struct image_slot *slot)
{
    struct image *image = slot->image;
    slot->waiting = false;
    if (!atomic_load(&image->all.stop) && slot->batch.n_jobs)
        submit(slot);
    else if (!atomic_load(&image->all.stop) && slot->batch.any_sums)
        fetch_sums(slot);
    else
        image_part_over(image);
}

static void on_slot(uv_work_t *work, int status)
{
    struct image_slot *slot = work->data;
    (void)status;
    if (slot->err.code)
        image_fail(slot->image, &slot->err);
    if (slot->image->preparing)
        slot->waiting = true;
    else
        go_on(slot);
}

static void turn_slot(struct image_slot *slot)
{
    slot->work.data = slot;
    uv_queue_work(slot->image->images->loop, &slot->work, slot_run, on_slot);
}

static void on_chain(struct chain *chain)
{
    struct image_slot *slot = chain->data;
    slot->image->n_batches++;
    slot->image->lane_ns += chain->done_ns - chain->begun_ns;
    if (chain->status)
        image_fail(slot->image, &chain->err);
    if (slot->image->err.code)
        image_part_over(slot->image);
    else
        turn_slot(slot);
}

void image_slots_go_on(struct image *image)
{
    for (unsigned i = 0; i < image->n_slots; i++) {
        if (image->slots[i].waiting)
            go_on(&image->slots[i]);
    }
}

void image_slots_start(struct image *image)
{
    image->n_running += image->n_slots;
    for (unsigned i = 0; i < image->n_slots; i++) {
        struct image_slot *slot = &image->slots[i];
        struct place *place = image->resident->place;
        slot->chain = (struct chain){.place = place,
                                     .lane = place_lane(place, image->all.n),
                                     .shape = &image->resident->shape,
                                     .done = on_chain,
                                     .data = slot};
        turn_slot(slot);
    }
}
