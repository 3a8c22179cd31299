/* SPDX-License-Identifier: Apache-2.0 */
#include "image_batch.h"

#include "ring_tables.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t pick_id(const struct image_work *all, uint64_t i)
{
    return all->picks ? all->picks[i].id : all->first + i;
}

static uint64_t pick_at(const struct image_work *all, uint64_t i)
{
    return all->picks ? all->picks[i].at : i;
}

/* ---- results ---- */

static void put_sums(const struct image_work *all, uint64_t at, const uint64_t *sums,
                     uint64_t stride, int code)
{
    uint64_t *values = all->results;
    const double none = NAN;
    for (uint32_t m = 0; m < all->n_sums; m++) {
        uint64_t value = code ? 0 : sums[m * stride];
        if (code && all->weights == WEIGHT_F64)
            memcpy(&value, &none, sizeof(value));
        values[m * all->n + at] = value;
    }
    ((uint8_t *)(values + all->n_sums * all->n))[at] = (uint8_t)-code;
}

/* False: the moments of this frame may not fit 64 bits. What signed pixels add up to says nothing of their parts. */
static bool moments_fit(uint64_t max, uint64_t total, const struct resident *resident)
{
    uint64_t all, most,
        side = resident->det_y > resident->det_x ? resident->det_y : resident->det_x;
    if (resident->shape.kind == PIXEL_FLOAT)
        return true;
    return !__builtin_mul_overflow(max, resident->shape.n_elems, &all) &&
           !__builtin_mul_overflow(resident->shape.kind == PIXEL_SIGNED ? all : total, side,
                                   &most) &&
           most <= INT64_MAX;
}

/* What 64 bits of a sum mean. */
static double number_of(uint64_t bits, const struct resident *resident)
{
    double real;
    memcpy(&real, &bits, sizeof(real));
    return resident->shape.kind == PIXEL_FLOAT    ? real
           : resident->shape.kind == PIXEL_SIGNED ? (double)(int64_t)bits
                                                  : (double)bits;
}

/* stats NULL: the frame has no counts. */
static bool put_center(const struct image_work *all, uint64_t at, const struct frame_stats *stats)
{
    double *center = (double *)all->results + 2 * at;
    uint64_t *totals = (uint64_t *)all->results + 2 * all->n;
    bool flagged = all->ask.flagged;
    uint64_t bits = !stats ? 0 : flagged ? stats->all_total : stats->total;
    double total = number_of(bits, all->resident);
    totals[at] = bits;
    center[0] = center[1] = NAN;
    if (!stats)
        return true;
    if (total != 0) {
        center[0] =
            number_of(flagged ? stats->all_moment_y : stats->moment_y, all->resident) / total;
        center[1] =
            number_of(flagged ? stats->all_moment_x : stats->moment_x, all->resident) / total;
    }
    return moments_fit(flagged ? stats->all_max : stats->max, bits, all->resident);
}

uint64_t com_from_kept(const struct image_work *all, uint64_t begin, uint64_t end, bool *limit)
{
    const struct resident *resident = all->resident;
    uint64_t n_bad = 0;
    for (uint64_t i = begin; i < end; i++) {
        uint64_t id = all->ask.ids ? all->ask.ids[i] : all->first + i;
        bool bad = resident->frames[id].form == STOW_FORM_BAD;
        n_bad += bad;
        if (!put_center(all, i, bad ? NULL : &resident->sums.stats[id]))
            *limit = true;
    }
    return n_bad;
}

/* What frames' largest pixels add up to no pixel's sum is above. Only those of 8 bytes can come so far. */
int mean_check(const struct image_work *all, struct stow_error *err)
{
    const struct resident *resident = all->resident;
    const uint32_t kind = resident->shape.kind;
    const uint64_t most = kind == PIXEL_SIGNED ? INT64_MAX : UINT64_MAX;
    uint64_t sum = 0;
    if (resident->shape.elem_bytes < 8 || kind == PIXEL_FLOAT)
        return 0;
    for (uint64_t i = 0; i < all->n; i++) {
        uint64_t id = all->ask.ids ? all->ask.ids[i] : all->first + i, max = UINT64_MAX;
        if (resident->sums.stats)
            max =
                all->ask.flagged ? resident->sums.stats[id].all_max : resident->sums.stats[id].max;
        if (__builtin_add_overflow(sum, max, &sum) || sum > most)
            return error_set(err, STOW_LIMIT,
                             "counts are so large that a pixel's sum over %llu frames could need "
                             "more than 64 bits; ask for fewer frames",
                             (unsigned long long)all->n);
    }
    return 0;
}

static void put_bad(struct image_batch *batch, uint64_t at, int code)
{
    batch->n_bad++;
    if (batch->all->ask.kind == IMAGE_SUM)
        put_sums(batch->all, at, NULL, 0, code);
    else if (batch->all->ask.kind == IMAGE_COM)
        put_center(batch->all, at, NULL);
}

/* ---- what a batch is made of ---- */

/* Whether a kernel can read the pixels where they lie. Sums ask for whole elements, all else for 16 bytes. */
static bool is_readable(const struct image_work *all, const struct frame *frame)
{
    uint64_t align = all->ask.kind == IMAGE_SUM ? all->resident->shape.elem_bytes : 16;
    return frame->form == STOW_FORM_RAW && frame->addr % align == 0;
}

static bool has_to_be_decoded(const struct image_work *all, const struct frame *frame)
{
    if (all->ask.kind == IMAGE_SUM &&
        (frame->form == STOW_FORM_COUNTS || frame->form == STOW_FORM_FILL))
        return false;
    return frame->form != STOW_FORM_BAD && !is_readable(all, frame);
}

/* How many jobs the next batch has. A small one is there soon, a large one wastes less of a GPU at its end: so each is up to
 * twice the one before, and a third of what is left. */
static uint32_t choose_jobs(struct image_work *all)
{
    const uint32_t least = all->sizes.first_jobs, most = all->sizes.jobs;
    uint64_t share = (all->n - all->next) / 3;
    uint64_t ramp = all->last_jobs ? 2 * (uint64_t)all->last_jobs : least;
    uint64_t jobs = share < ramp ? share : ramp;
    jobs = (jobs + least - 1) / least * least;
    all->last_jobs = (uint32_t)(jobs < least ? least : jobs < most ? jobs : most);
    return all->last_jobs;
}

/* Up to where a batch goes that begins at `begin`, whose frames have to be looked at. */
static uint64_t find_end(const struct image_work *all, uint64_t begin, uint32_t most_jobs)
{
    uint32_t n_jobs = 0, n_decodes = 0, n_segments = 0;
    uint64_t table = 0, i;
    for (i = begin; i < all->n && !atomic_load(&all->stop); i++) {
        const struct frame *frame = &all->resident->frames[pick_id(all, i)];
        n_jobs += frame->form != STOW_FORM_BAD;
        n_decodes += has_to_be_decoded(all, frame);
        if (frame->form == STOW_FORM_COUNTS && frame->blocks != table) {
            table = frame->blocks;
            n_segments++;
        }
        if (n_jobs > most_jobs || n_decodes > all->sizes.decodes ||
            n_segments > all->sizes.segments)
            break;
    }
    return i;
}

/* The same where all are alike: looking at each would take as long as the GPU does. */
static uint64_t find_end_of_counts(const struct image_work *all, uint64_t begin, uint32_t most_jobs)
{
    const uint64_t segment = all->resident->segment_frames, first = all->first + begin;
    uint64_t end = begin + most_jobs, last = first / segment + all->sizes.segments;
    if (!__builtin_mul_overflow(last, segment, &last) && end > last - all->first)
        end = last - all->first;
    return end < all->n ? end : all->n;
}

/* Which frames: from *begin up to *end, as many as there is room for. */
static void take_range(struct image_work *all, uint64_t *begin, uint64_t *end)
{
    uv_mutex_lock(&all->lock);
    uint32_t most_jobs = choose_jobs(all);
    *begin = all->next;
    if (all->ask.kind == IMAGE_SUM && all->all_counts && !all->picks)
        *end = atomic_load(&all->stop) ? *begin : find_end_of_counts(all, *begin, most_jobs);
    else
        *end = find_end(all, *begin, most_jobs);
    all->next = *end;
    uv_mutex_unlock(&all->lock);
}

/* Decode a frame into the batch's own memory; its address there. */
static uint64_t decode(struct image_batch *batch, const struct frame *frame, uint32_t job)
{
    uint32_t i = batch->n_decodes++;
    uint64_t dst = batch->pixels.dev + i * batch->all->sizes.pixel_stride;
    batch->decode_of[i] = job;
    batch->decodes[i] = (struct decode_job){.src = frame->addr,
                                            .blocks = frame->blocks,
                                            .src_bytes = frame->bytes,
                                            .form = frame->form,
                                            .dst = dst};
    return dst;
}

/* The weights in the order of this segment; of one that was met just before they are there. */
static uint64_t weigh(struct image_batch *batch, uint64_t segment)
{
    struct weigh_job *jobs = batch->weigh_jobs.host;
    if (!batch->n_segments || jobs[batch->n_segments - 1].segment != segment) {
        uint32_t i = batch->n_segments++;
        jobs[i] = (struct weigh_job){.segment = segment,
                                     .weighed =
                                         batch->weighed.dev + i * batch->all->sizes.weighed_stride};
    }
    return jobs[batch->n_segments - 1].weighed;
}

static void add_sum(struct image_batch *batch, const struct frame *frame)
{
    struct sum_job *job = (struct sum_job *)batch->jobs.host + batch->n_jobs;
    *job = (struct sum_job){.src = frame->addr, .src_bytes = frame->bytes, .form = frame->form};
    if (has_to_be_decoded(batch->all, frame)) {
        job->src = decode(batch, frame, batch->n_jobs);
        job->form = STOW_FORM_RAW;
    } else if (frame->form == STOW_FORM_COUNTS) {
        job->segment = frame->blocks;
        job->weighed = weigh(batch, frame->blocks);
    }
}

static void add_pixels(struct image_batch *batch, const struct frame *frame)
{
    uint64_t *address = (uint64_t *)batch->jobs.host + batch->n_jobs;
    *address = is_readable(batch->all, frame) ? frame->addr : decode(batch, frame, batch->n_jobs);
}

void batch_take(struct image_batch *batch)
{
    struct image_work *all = batch->all;
    uint64_t begin, end;
    batch->n_jobs = batch->n_decodes = batch->n_segments = 0;
    do { /* frames that are all bad make no batch */
        take_range(all, &begin, &end);
        for (uint64_t i = begin; i < end; i++) {
            const struct frame *frame = &all->resident->frames[pick_id(all, i)];
            if (frame->form == STOW_FORM_BAD) {
                put_bad(batch, pick_at(all, i), -(int)frame->code);
                continue;
            }
            if (all->ask.kind == IMAGE_SUM)
                add_sum(batch, frame);
            else
                add_pixels(batch, frame);
            batch->at[batch->n_jobs++] = pick_at(all, i);
        }
    } while (begin < end && !batch->n_jobs);
}

/* ---- what comes out ---- */

static int collect_sums(struct image_batch *batch)
{
    int32_t *status = batch->status.host;
    for (uint32_t i = 0; i < batch->n_decodes; i++) {
        if (batch->decoded[i])
            status[batch->decode_of[i]] = batch->decoded[i];
    }
    for (uint32_t i = 0; i < batch->n_jobs; i++) {
        if (status[i])
            put_bad(batch, batch->at[i], status[i]);
        else
            put_sums(batch->all, batch->at[i], (uint64_t *)batch->out.host + i, batch->n_jobs, 0);
    }
    return 0;
}

static int collect_stats(struct image_batch *batch, struct stow_error *err)
{
    const struct frame_stats *stats = batch->out.host;
    bool *failed = calloc(batch->n_jobs, sizeof(*failed)), fit = true;
    if (!failed)
        return error_set(err, STOW_NOMEM, "no memory for centres of mass");
    for (uint32_t i = 0; i < batch->n_decodes; i++)
        failed[batch->decode_of[i]] = batch->decoded[i] != 0;
    for (uint32_t i = 0; i < batch->n_jobs; i++) {
        if (failed[i])
            put_bad(batch, batch->at[i], STOW_CORRUPT);
        else
            fit = put_center(batch->all, batch->at[i], &stats[i]) && fit;
    }
    free(failed);
    return fit ? 0 : error_set(err, STOW_LIMIT, "%s", IMAGE_LIMIT_TEXT);
}

/* Batches have columns of their own. */
static void collect_rings(const struct image_batch *batch)
{
    const struct ring_table *table = batch->all->table;
    const uint64_t n = batch->n_jobs, *at = batch->at;
    for (uint32_t k = 0; k < table->extent.n_rings; k++) {
        if (table->wide) {
            const uint64_t *from = (const uint64_t *)batch->out.host + k * n;
            uint64_t *row = (uint64_t *)table->rows + k * table->n_frames;
            for (uint64_t i = 0; i < n; i++)
                row[at[i]] = from[i];
        } else {
            const uint32_t *from = (const uint32_t *)batch->out.host + k * n;
            uint32_t *row = (uint32_t *)table->rows + k * table->n_frames;
            for (uint64_t i = 0; i < n; i++)
                row[at[i]] = from[i];
        }
    }
}

int batch_collect(struct image_batch *batch, struct stow_error *err)
{
    if (batch->all->ask.kind == IMAGE_SUM)
        return collect_sums(batch);
    if (batch->all->ask.kind == IMAGE_COM)
        return collect_stats(batch, err);
    for (uint32_t i = 0; i < batch->n_decodes; i++) {
        if (batch->decoded[i])
            return error_set(err, STOW_CORRUPT,
                             "a frame could not be decoded again while its pixels were added up");
    }
    if (batch->all->ask.kind == IMAGE_RINGS)
        collect_rings(batch);
    return 0;
}
