/* SPDX-License-Identifier: Apache-2.0
 *
 * sums on the CPU. Everything is cut into runs of RUN pixels, over which 32-bit sums of products cannot overflow
 * where pixels have up to 16 bits and the other factor is below 256; that keeps the inner loops narrow enough for a
 * compiler to make them wide. A frame of form counts is decoded into scratch of its own and summed from there: a
 * CPU's cache holds it. So the weights in stream order, which a GPU reads, are only made here and not used.
 * Pixels that are no counts are sums_kinds.c's. */
#include "sums_kinds.h"
#include "wide.h"

#include <stdlib.h>
#include <string.h>

#define RUN 256u /* 256 * 65535 * 255 is below 2^32 */
#define PARTS 8u /* float sums: pixel i of a run is added to part i mod 8 */

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint32_t fill_value(const struct frame_shape *shape)
{
    return (uint32_t)(shape->fill & (UINT64_MAX >> (64 - 8 * shape->elem_bytes)));
}

/* ---- weighted sums of pixels ---------------------------------------------------------------------- */

/* Sum of one run of n pixels, n <= RUN. Signed sums wrap as unsigned ones do, so that only the whole must fit. */
#define RUN_SUM(name, pixel_type, weight_type, narrow, wide)                                      \
    WIDE_LOOPS static wide name(const pixel_type *pixels, const weight_type *weights, uint32_t n) \
    {                                                                                             \
        narrow sum = 0;                                                                           \
        for (uint32_t i = 0; i < n; i++)                                                          \
            sum += (narrow)pixels[i] * (narrow)weights[i];                                        \
        return (wide)sum;                                                                         \
    }

RUN_SUM(run_u1_u8, uint8_t, uint8_t, uint32_t, uint64_t)
RUN_SUM(run_u2_u8, uint16_t, uint8_t, uint32_t, uint64_t)
RUN_SUM(run_u4_u8, uint32_t, uint8_t, uint64_t, uint64_t)
RUN_SUM(run_u1_i32, uint8_t, int32_t, int64_t, uint64_t)
RUN_SUM(run_u2_i32, uint16_t, int32_t, int64_t, uint64_t)

/* The product alone may take 63 bits here, and sums of products may pass through more. */
static uint64_t run_u4_i32(const uint32_t *pixels, const int32_t *weights, uint32_t n)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (uint64_t)((int64_t)pixels[i] * weights[i]);
    return sum;
}

static uint64_t sum_run(const uint8_t *pixels, const uint8_t *weights, uint32_t n,
                        enum weight_kind kind, uint32_t elem_bytes)
{
    const void *p = pixels, *w = weights;
    if (kind == WEIGHT_U8)
        return elem_bytes == 1   ? run_u1_u8(p, w, n)
               : elem_bytes == 2 ? run_u2_u8(p, w, n)
                                 : run_u4_u8(p, w, n);
    return elem_bytes == 1   ? run_u1_i32(p, w, n)
           : elem_bytes == 2 ? run_u2_i32(p, w, n)
                             : run_u4_i32(p, w, n);
}

static uint64_t sum_integers(const uint8_t *pixels, const uint8_t *weights, enum weight_kind kind,
                             const struct frame_shape *shape)
{
    uint64_t sum = 0;
    for (uint64_t at = 0; at < shape->n_elems; at += RUN)
        sum += sum_run(pixels + at * shape->elem_bytes, weights + at * weight_bytes(kind),
                       (uint32_t)min_u64(RUN, shape->n_elems - at), kind, shape->elem_bytes);
    return sum;
}

#define ADD_REALS(name, pixel_type)                                                              \
    static void name(double *parts, const pixel_type *pixels, const double *weights, uint64_t n) \
    {                                                                                            \
        uint64_t whole = n / PARTS * PARTS;                                                      \
        for (uint64_t at = 0; at < whole; at += PARTS)                                           \
            for (uint32_t i = 0; i < PARTS; i++)                                                 \
                parts[i] += weights[at + i] * (double)pixels[at + i];                            \
        for (uint64_t at = whole; at < n; at++)                                                  \
            parts[at - whole] += weights[at] * (double)pixels[at];                               \
    }

ADD_REALS(add_u1, uint8_t)
ADD_REALS(add_u2, uint16_t)
ADD_REALS(add_u4, uint32_t)

/* Parts are added pairwise: the order is the same for every frame and on every run. */
static double sum_reals(const void *pixels, const double *weights, const struct frame_shape *shape)
{
    double parts[PARTS] = {0};
    if (shape->elem_bytes == 1)
        add_u1(parts, pixels, weights, shape->n_elems);
    else if (shape->elem_bytes == 2)
        add_u2(parts, pixels, weights, shape->n_elems);
    else
        add_u4(parts, pixels, weights, shape->n_elems);
    return ((parts[0] + parts[1]) + (parts[2] + parts[3])) +
           ((parts[4] + parts[5]) + (parts[6] + parts[7]));
}

/* Sums are kept as they come out, 8 bytes each. */
static void put_sum(void *out, uint64_t at, enum weight_kind kind, uint64_t integer, double real)
{
    if (kind == WEIGHT_F64)
        ((double *)out)[at] = real;
    else
        memcpy((uint64_t *)out + at, &integer, sizeof(integer));
}

static void sum_pixels(void *out, uint64_t stride, const void *pixels, const uint8_t *weights,
                       uint32_t n_masks, enum weight_kind kind, const struct frame_shape *shape)
{
    uint64_t mask_bytes = shape->n_elems * weight_bytes(kind);
    for (uint32_t m = 0; m < n_masks; m++) {
        const uint8_t *mask = weights + m * mask_bytes;
        if (kind == WEIGHT_F64)
            put_sum(out, m * stride, kind, 0, sum_reals(pixels, (const double *)mask, shape));
        else
            put_sum(out, m * stride, kind, sum_integers(pixels, mask, kind, shape), 0);
    }
}

/* ---- frames --------------------------------------------------------------------------------------- */

/* A frame that has one value everywhere. */
static void sum_fill(void *out, uint64_t stride, const void *weights, uint32_t n_masks,
                     enum weight_kind kind, const struct frame_shape *shape)
{
    uint64_t n = shape->n_elems;
    uint32_t fill = fill_value(shape);
    for (uint32_t m = 0; m < n_masks; m++) {
        uint64_t integer = 0;
        double real = 0;
        for (uint64_t i = m * n; i < (m + 1) * n; i++) {
            if (kind == WEIGHT_U8)
                integer += ((const uint8_t *)weights)[i];
            else if (kind == WEIGHT_I32)
                integer += (uint64_t)(int64_t)((const int32_t *)weights)[i];
            else
                real += ((const double *)weights)[i];
        }
        put_sum(out, m * stride, kind, integer * fill, real * fill);
    }
}

static int sum_counts(void *out, uint64_t stride, const struct sum_job *job, const void *weights,
                      uint32_t n_masks, enum weight_kind kind, const struct frame_shape *shape)
{
    void *pixels = aligned_alloc(16, (frame_bytes(shape) + 15) / 16 * 16);
    if (!pixels)
        return STOW_NOMEM;
    const struct decode_job decode = {.src = job->src,
                                      .blocks = job->segment,
                                      .dst = (uintptr_t)pixels,
                                      .src_bytes = job->src_bytes,
                                      .form = STOW_FORM_COUNTS};
    int rc = counts_decode(&decode, shape, NULL);
    if (rc == 0)
        sum_pixels(out, stride, pixels, weights, n_masks, kind, shape);
    free(pixels);
    return rc;
}

int sums_frame(void *out, uint64_t stride, const struct sum_job *job, const void *weights,
               uint32_t n_masks, enum weight_kind kind, const struct frame_shape *shape)
{
    if (!shape_is_counts(shape))
        return kinds_frame(out, stride, job, weights, n_masks, kind, shape);
    switch (job->form) {
    case STOW_FORM_COUNTS: return sum_counts(out, stride, job, weights, n_masks, kind, shape);
    case STOW_FORM_RAW:
        sum_pixels(out, stride, (const void *)(uintptr_t)job->src, weights, n_masks, kind, shape);
        return 0;
    case STOW_FORM_FILL: sum_fill(out, stride, weights, n_masks, kind, shape); return 0;
    default: return STOW_CORRUPT;
    }
}

/* ---- weights in stream order ---------------------------------------------------------------------- */

/* What the constants of a tile add to the head of mask m; their own weights become 0. */
static void weigh_constants(void *weighed, uint32_t m, uint8_t *tile, uint32_t t,
                            const struct counts_segment *segment, enum weight_kind kind)
{
    const uint8_t *base = (const uint8_t *)segment;
    const uint32_t *until = (const uint32_t *)(base + segment->constant_tiles_at) + t;
    const struct counts_constant *constants = (const void *)(base + segment->constants_at);
    for (uint32_t c = until[0]; c < until[1]; c++) {
        uint32_t at = constants[c].pixel % COUNTS_TILE_PIXELS, value = constants[c].value;
        if (kind == WEIGHT_F64)
            ((double *)weighed)[m] += ((double *)tile)[at] * value;
        else
            ((uint64_t *)weighed)[m] += kind == WEIGHT_U8
                                            ? (uint64_t)tile[at] * value
                                            : (uint64_t)(((int32_t *)tile)[at] * (int64_t)value);
        memset(tile + at * weight_bytes(kind), 0, weight_bytes(kind));
    }
}

/* From raster order in its tile to stream order, for the granules of tile t. */
static void order_weights(uint8_t *to, const uint8_t *tile, uint32_t t,
                          const struct counts_segment *segment, uint32_t unit_bytes)
{
    const uint32_t *order = (const uint32_t *)((const uint8_t *)segment + segment->order_at);
    uint32_t per_tile = COUNTS_TILE_PIXELS / COUNTS_GRANULE_PIXELS;
    uint32_t begin = t * per_tile * COUNTS_LANES;
    uint32_t end = (uint32_t)min_u64(begin + per_tile * COUNTS_LANES,
                                     (uint64_t)segment->n_granules * COUNTS_LANES);
    for (uint32_t i = begin; i < end; i++) {
        uint8_t *units = to + (uint64_t)i * 2 * unit_bytes;
        memcpy(units, tile + (order[i] & 0xffff) * unit_bytes, unit_bytes);
        memcpy(units + unit_bytes, tile + (order[i] >> 16) * unit_bytes, unit_bytes);
    }
}

void sums_weigh(void *weighed, const struct counts_segment *segment, const void *weights,
                uint32_t n_masks, enum weight_kind kind, const struct frame_shape *shape)
{
    _Alignas(16) uint8_t tile[COUNTS_TILE_PIXELS * sizeof(double)];
    uint32_t bytes = weight_bytes(kind);
    uint64_t mask_bytes = (uint64_t)segment->n_granules * COUNTS_GRANULE_PIXELS * bytes;
    memset(weighed, 0, SUMS_WEIGHED_HEAD);
    for (uint32_t m = 0; m < n_masks; m++) {
        const uint8_t *mask = (const uint8_t *)weights + m * shape->n_elems * bytes;
        uint8_t *to = (uint8_t *)weighed + SUMS_WEIGHED_HEAD + m * mask_bytes;
        for (uint32_t t = 0; t < segment->n_tiles; t++) {
            uint64_t first = (uint64_t)t * COUNTS_TILE_PIXELS;
            uint64_t n = min_u64(COUNTS_TILE_PIXELS, shape->n_elems - first);
            memcpy(tile, mask + first * bytes, n * bytes);
            memset(tile + n * bytes, 0, (COUNTS_TILE_PIXELS - n) * bytes);
            weigh_constants(weighed, m, tile, t, segment, kind);
            order_weights(to, tile, t, segment, COUNTS_UNIT_PIXELS * bytes);
        }
    }
}

/* ---- statistics of a frame ------------------------------------------------------------------------ */

/* Of up to RUN neighbours in a row: their sum, the sum of i * pixel i, and the largest. */
struct run_stats {
    uint64_t sum, moment;
    uint32_t max;
};

#define RUN_STATS(name, pixel_type, narrow)                                       \
    WIDE_LOOPS static struct run_stats name(const pixel_type *pixels, uint32_t n) \
    {                                                                             \
        narrow sum = 0, moment = 0;                                               \
        pixel_type max = 0;                                                       \
        for (uint32_t i = 0; i < n; i++) {                                        \
            sum += pixels[i];                                                     \
            moment += (narrow)(uint16_t)i * pixels[i];                            \
            max = pixels[i] > max ? pixels[i] : max;                              \
        }                                                                         \
        return (struct run_stats){.sum = sum, .moment = moment, .max = max};      \
    }

/* The same with flagged pixels as zeros. */
#define CLEAR_FLAGGED(name, pixel_type)                                                         \
    WIDE_LOOPS static void name(pixel_type *to, const pixel_type *pixels, const uint8_t *flags, \
                                uint32_t n)                                                     \
    {                                                                                           \
        for (uint32_t i = 0; i < n; i++)                                                        \
            to[i] = (pixel_type)(flags[i] ? 0 : pixels[i]);                                     \
    }

RUN_STATS(stats_u1, uint8_t, uint32_t)
RUN_STATS(stats_u2, uint16_t, uint32_t)
RUN_STATS(stats_u4, uint32_t, uint64_t)
CLEAR_FLAGGED(clear_u1, uint8_t)
CLEAR_FLAGGED(clear_u2, uint16_t)
CLEAR_FLAGGED(clear_u4, uint32_t)

static struct run_stats stats_of_run(const void *pixels, uint32_t n, uint32_t elem_bytes)
{
    return elem_bytes == 1   ? stats_u1(pixels, n)
           : elem_bytes == 2 ? stats_u2(pixels, n)
                             : stats_u4(pixels, n);
}

static bool any_flagged(const uint8_t *flags, uint32_t n)
{
    uint8_t any = 0;
    for (uint32_t i = 0; i < n; i++)
        any |= flags[i];
    return any != 0;
}

/* Flagged pixels are few and stand together: most runs have none and are looked at once. */
static struct run_stats stats_unflagged(const void *pixels, const uint8_t *flags, uint32_t n,
                                        uint32_t elem_bytes)
{
    _Alignas(16) uint32_t cleared[RUN];
    if (elem_bytes == 1)
        clear_u1((uint8_t *)cleared, pixels, flags, n);
    else if (elem_bytes == 2)
        clear_u2((uint16_t *)cleared, pixels, flags, n);
    else
        clear_u4(cleared, pixels, flags, n);
    return stats_of_run(cleared, n, elem_bytes);
}

void sums_stats(struct frame_stats *stats, const void *pixels, const uint8_t *flags, uint64_t det_x,
                const struct frame_shape *shape)
{
    struct frame_stats of = {0};
    uint64_t y = 0, x = 0;
    if (!shape_is_counts(shape)) {
        kinds_stats(stats, pixels, flags, det_x, shape);
        return;
    }
    for (uint64_t at = 0; at < shape->n_elems;) {
        uint32_t n = (uint32_t)min_u64(min_u64(RUN, det_x - x), shape->n_elems - at);
        const uint8_t *run = (const uint8_t *)pixels + at * shape->elem_bytes;
        struct run_stats all = stats_of_run(run, n, shape->elem_bytes), good = all;
        if (flags && any_flagged(flags + at, n))
            good = stats_unflagged(run, flags + at, n, shape->elem_bytes);
        of.all_total += all.sum;
        of.all_moment_y += y * all.sum;
        of.all_moment_x += x * all.sum + all.moment;
        of.all_max = all.max > of.all_max ? all.max : of.all_max;
        of.total += good.sum;
        of.moment_y += y * good.sum;
        of.moment_x += x * good.sum + good.moment;
        of.max = good.max > of.max ? good.max : of.max;
        at += n;
        x += n;
        if (x == det_x) {
            x = 0;
            y++;
        }
    }
    *stats = of;
}

/* ---- sums of pixels over frames ------------------------------------------------------------------- */

/* So many frames of 16-bit pixels fit in a 32-bit sum. */
#define FRAMES_IN_32 65536u

/* Each frame is in other pages, where a CPU does not see what comes next: it is asked for so many frames ahead. */
#define AHEAD 4u
#define ADD_FRAMES(name, pixel_type, narrow)                                                  \
    WIDE_LOOPS static void name(uint64_t *sums, const uint64_t *frames, uint64_t n,           \
                                uint64_t first, uint32_t count)                               \
    {                                                                                         \
        narrow parts[RUN] = {0};                                                              \
        for (uint64_t f = 0; f < n; f++) {                                                    \
            const pixel_type *pixels = (const pixel_type *)(uintptr_t)frames[f] + first;      \
            const pixel_type *next =                                                          \
                (const pixel_type *)(uintptr_t)frames[f + AHEAD < n ? f + AHEAD : f] + first; \
            for (uint32_t i = 0; i < count; i += 64 / sizeof(pixel_type))                     \
                __builtin_prefetch(next + i);                                                 \
            for (uint32_t i = 0; i < count; i++)                                              \
                parts[i] += pixels[i];                                                        \
        }                                                                                     \
        for (uint32_t i = 0; i < count; i++)                                                  \
            sums[first + i] += parts[i];                                                      \
    }

ADD_FRAMES(frames_u1, uint8_t, uint32_t)
ADD_FRAMES(frames_u2, uint16_t, uint32_t)
ADD_FRAMES(frames_u4, uint32_t, uint64_t)

void sums_pixels(uint64_t *sums, const uint64_t *frames, uint64_t n, uint64_t first, uint64_t count,
                 const struct frame_shape *shape)
{
    if (!shape_is_counts(shape)) {
        kinds_pixels(sums, frames, n, first, count, shape);
        return;
    }
    for (uint64_t f = 0; f < n; f += FRAMES_IN_32) {
        uint64_t some = min_u64(FRAMES_IN_32, n - f);
        for (uint64_t at = 0; at < count; at += RUN) {
            uint32_t run = (uint32_t)min_u64(RUN, count - at);
            if (shape->elem_bytes == 1)
                frames_u1(sums, frames + f, some, first + at, run);
            else if (shape->elem_bytes == 2)
                frames_u2(sums, frames + f, some, first + at, run);
            else
                frames_u4(sums, frames + f, some, first + at, run);
        }
    }
}
