/* SPDX-License-Identifier: Apache-2.0
 *
 * work on the CPU: items of each kind, one after the other, by the functions of counts.h, sums.h, rings.h and view.h. Items touch
 * different outputs, so threads may do different ranges of one work at the same time. */
#include "work.h"

#include <string.h>

static void *at(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

static void run_stats(const struct work *work, uint64_t i)
{
    const uint64_t *frames = at(work->stats.frames);
    struct frame_stats *stats = at(work->stats.stats);
    sums_stats(&stats[i], at(frames[i]), at(work->stats.flags), work->stats.det_x, &work->shape);
}

static void run_pixels(const struct work *work, uint64_t i)
{
    uint64_t first = i * WORK_PIXELS_BLOCK, rest = work->shape.n_elems - first;
    sums_pixels(at(work->pixels.sums), at(work->pixels.frames), work->pixels.n_frames, first,
                rest < WORK_PIXELS_BLOCK ? rest : WORK_PIXELS_BLOCK, &work->shape);
}

static void run_encode(const struct work *work, uint64_t i)
{
    const uint64_t *frames = at(work->encode.frames);
    struct counts_stream *streams = at(work->encode.streams);
    counts_encode(streams + i * work->encode.n_streams,
                  at(work->encode.rooms + i * work->encode.room_stride), at(frames[i]),
                  at(work->encode.segment), at(work->encode.encoder), &work->shape);
}

static void run_place(const struct work *work, uint64_t i)
{
    const struct place_job *job = (const struct place_job *)at(work->place.jobs) + i;
    if (job->streams)
        counts_place(at(job->dst), at(job->src), at(job->encoded), job->streams, &work->shape);
    else
        memcpy(at(job->dst), at(job->src), job->bytes);
}

static void run_weigh(const struct work *work, uint64_t i)
{
    const struct weigh_job *job = (const struct weigh_job *)at(work->weigh.jobs) + i;
    sums_weigh(at(job->weighed), at(job->segment), at(work->weigh.weights), work->weigh.n_masks,
               work->weigh.weights_kind, &work->shape);
}

static void run_sum(const struct work *work, uint64_t i)
{
    const struct sum_job *job = (const struct sum_job *)at(work->sum.jobs) + i;
    int32_t *status = at(work->sum.status);
    status[i] =
        sums_frame((uint64_t *)at(work->sum.out) + i, work->sum.out_stride, job,
                   at(work->sum.weights), work->sum.n_masks, work->sum.weights_kind, &work->shape);
}

#define COUNT_DIFFERENT(name, pixel_type)                                             \
    static uint64_t name(const pixel_type *left, const pixel_type *right, uint64_t n) \
    {                                                                                 \
        uint64_t differ = 0;                                                          \
        for (uint64_t i = 0; i < n; i++)                                              \
            differ += left[i] != right[i];                                            \
        return differ;                                                                \
    }

COUNT_DIFFERENT(differ_u1, uint8_t)
COUNT_DIFFERENT(differ_u2, uint16_t)
COUNT_DIFFERENT(differ_u4, uint32_t)
COUNT_DIFFERENT(differ_u8, uint64_t)

/* Bits are compared, whatever they mean. Frames that agree, nearly all, cost one memcmp. */
static void run_compare(const struct work *work, uint64_t i)
{
    const void *left = at(((const uint64_t *)at(work->compare.left))[i]);
    const void *right = at(((const uint64_t *)at(work->compare.right))[i]);
    uint64_t *differ = (uint64_t *)at(work->compare.differ) + i, n = work->shape.n_elems;
    if (memcmp(left, right, frame_bytes(&work->shape)) == 0)
        *differ = 0;
    else if (work->shape.elem_bytes == 1)
        *differ = differ_u1(left, right, n);
    else if (work->shape.elem_bytes == 2)
        *differ = differ_u2(left, right, n);
    else if (work->shape.elem_bytes == 4)
        *differ = differ_u4(left, right, n);
    else
        *differ = differ_u8(left, right, n);
}

static void run_rings(const struct work *work, uint64_t i)
{
    const uint64_t *frames = at(work->rings.frames);
    rings_frame(at(work->rings.out + i * (work->rings.wide ? 8 : 4)), work->rings.out_stride,
                work->rings.wide, at(frames[i]), at(work->rings.map), work->rings.n_rings,
                &work->shape);
}

static void run_view(const struct work *work, uint64_t i)
{
    view_frame(&work->view, i);
}

void work_run(const struct work *work, uint64_t begin, uint64_t end)
{
    static void (*const items[])(const struct work *work, uint64_t i) = {
        [WORK_STATS] = run_stats,     [WORK_PIXELS] = run_pixels, [WORK_ENCODE] = run_encode,
        [WORK_PLACE] = run_place,     [WORK_WEIGH] = run_weigh,   [WORK_SUM] = run_sum,
        [WORK_COMPARE] = run_compare, [WORK_RINGS] = run_rings,   [WORK_VIEW] = run_view,
    };
    for (uint64_t i = begin; i < end; i++)
        items[work->kind](work, i);
}
