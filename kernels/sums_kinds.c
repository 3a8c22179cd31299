/* SPDX-License-Identifier: Apache-2.0
 *
 * Integers are added modulo 2^64, extended by their sign where they have one, so that only the whole must fit. Floats
 * are added in double: weighted ones in PARTS that are joined pairwise, statistics in the parts that sums.h tells. */
#include "sums_kinds.h"

#include "bslz4.h"
#include "wide.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PARTS 8u /* of a float sum: pixel i is added to part i mod 8 */
#define RUN 256u /* pixels at a time, in a CPU's nearest cache */

/* What up to RUN neighbours in a row add up to: their sum, that of column * pixel, of integers from the run's first
 * column on, and the largest magnitude. */
struct integer_run {
    uint64_t sum, moment, max;
};

/* What is done with one type of pixels; of integers and floats each has what it needs. */
struct kind {
    uint64_t (*sum_u8)(const void *pixels, const uint8_t *weights, uint64_t n);
    uint64_t (*sum_i32)(const void *pixels, const int32_t *weights, uint64_t n);
    double (*sum_f64)(const void *pixels, const double *weights, uint64_t n);
    struct integer_run (*integer_run)(const void *pixels, uint32_t n);
    void (*add_moments)(double *sums, double *ys, double *xs, const void *pixels, uint32_t n,
                        uint64_t row, uint64_t column);
    void (*add_integers)(uint64_t *sums, const void *pixels, uint32_t n);
    void (*add_reals)(double *sums, const void *pixels, uint32_t n);
};

static double join(const double parts[PARTS])
{
    return ((parts[0] + parts[1]) + (parts[2] + parts[3])) +
           ((parts[4] + parts[5]) + (parts[6] + parts[7]));
}

/* ---- one type after the other --------------------------------------------------------------------- */

#define WEIGHTED_REALS(type, pixel)                                                              \
    WIDE_LOOPS static double sum_f64_##type(const void *from, const double *weights, uint64_t n) \
    {                                                                                            \
        const pixel *pixels = from;                                                              \
        double parts[PARTS] = {0};                                                               \
        uint64_t whole = n / PARTS * PARTS;                                                      \
        for (uint64_t at = 0; at < whole; at += PARTS)                                           \
            for (uint32_t i = 0; i < PARTS; i++)                                                 \
                parts[i] += weights[at + i] != 0 ? weights[at + i] * (double)pixels[at + i] : 0; \
        for (uint64_t at = whole; at < n; at++)                                                  \
            parts[at - whole] += weights[at] != 0 ? weights[at] * (double)pixels[at] : 0;        \
        return join(parts);                                                                      \
    }

/* wide: int64_t for signed pixels, so that they are extended by their sign. narrow: what holds sums of a run, and of
 * these times up to RUN: 32 bits for 16-bit pixels. */
#define INTEGERS(type, pixel, wide, narrow)                                                        \
    WIDE_LOOPS static uint64_t sum_u8_##type(const void *from, const uint8_t *weights, uint64_t n) \
    {                                                                                              \
        const pixel *pixels = from;                                                                \
        uint64_t sum = 0;                                                                          \
        for (uint64_t i = 0; i < n; i++)                                                           \
            sum += (uint64_t)(wide)pixels[i] * weights[i];                                         \
        return sum;                                                                                \
    }                                                                                              \
    WIDE_LOOPS static uint64_t sum_i32_##type(const void *from, const int32_t *weights,            \
                                              uint64_t n)                                          \
    {                                                                                              \
        const pixel *pixels = from;                                                                \
        uint64_t sum = 0;                                                                          \
        for (uint64_t i = 0; i < n; i++)                                                           \
            sum += (uint64_t)(wide)pixels[i] * (uint64_t)(int64_t)weights[i];                      \
        return sum;                                                                                \
    }                                                                                              \
    WIDE_LOOPS static struct integer_run run_##type(const void *from, uint32_t n)                  \
    {                                                                                              \
        const pixel *pixels = from;                                                                \
        narrow sum = 0, moment = 0;                                                                \
        pixel least = 0, most = 0;                                                                 \
        for (uint32_t i = 0; i < n; i++) {                                                         \
            sum += (narrow)pixels[i];                                                              \
            moment += (narrow)(uint16_t)i * (narrow)pixels[i];                                     \
            least = pixels[i] < least ? pixels[i] : least;                                         \
            most = pixels[i] > most ? pixels[i] : most;                                            \
        }                                                                                          \
        uint64_t down = 0 - (uint64_t)(wide)least, up = (uint64_t)(wide)most;                      \
        return (struct integer_run){(uint64_t)(wide)sum, (uint64_t)(wide)moment,                   \
                                    up > down ? up : down};                                        \
    }                                                                                              \
    WIDE_LOOPS static void add_##type(uint64_t *sums, const void *from, uint32_t n)                \
    {                                                                                              \
        const pixel *pixels = from;                                                                \
        for (uint32_t i = 0; i < n; i++)                                                           \
            sums[i] += (uint64_t)(wide)pixels[i];                                                  \
    }                                                                                              \
    WEIGHTED_REALS(type, pixel)

#define REALS(type, pixel)                                                                   \
    WIDE_LOOPS static void moments_##type(double *restrict sums, double *restrict ys,        \
                                          double *restrict xs, const void *from, uint32_t n, \
                                          uint64_t row, uint64_t column)                     \
    {                                                                                        \
        const pixel *pixels = from;                                                          \
        for (uint32_t i = 0; i < n; i++) {                                                   \
            double value = (double)pixels[i];                                                \
            double y = (double)row * value, x = ((double)column + (int32_t)i) * value;       \
            sums[i] += value;                                                                \
            ys[i] += y;                                                                      \
            xs[i] += x;                                                                      \
        }                                                                                    \
    }                                                                                        \
    WIDE_LOOPS static void add_##type(double *sums, const void *from, uint32_t n)            \
    {                                                                                        \
        const pixel *pixels = from;                                                          \
        for (uint32_t i = 0; i < n; i++)                                                     \
            sums[i] += (double)pixels[i];                                                    \
    }                                                                                        \
    WEIGHTED_REALS(type, pixel)

INTEGERS(u8, uint64_t, uint64_t, uint64_t)
INTEGERS(i1, int8_t, int64_t, int32_t)
INTEGERS(i2, int16_t, int64_t, int32_t)
INTEGERS(i4, int32_t, int64_t, int64_t)
INTEGERS(i8, int64_t, int64_t, uint64_t)
REALS(f4, float)
REALS(f8, double)

#define INTEGER_KIND(type)                                                             \
    {                                                                                  \
        .sum_u8 = sum_u8_##type, .sum_i32 = sum_i32_##type, .sum_f64 = sum_f64_##type, \
        .integer_run = run_##type, .add_integers = add_##type                          \
    }
#define REAL_KIND(type)                                                                   \
    {                                                                                     \
        .sum_f64 = sum_f64_##type, .add_moments = moments_##type, .add_reals = add_##type \
    }

static const struct kind kinds[N_PIXEL_TYPES] = {
    [4 * PIXEL_UNSIGNED + 3] = INTEGER_KIND(u8), [4 * PIXEL_SIGNED + 0] = INTEGER_KIND(i1),
    [4 * PIXEL_SIGNED + 1] = INTEGER_KIND(i2),   [4 * PIXEL_SIGNED + 2] = INTEGER_KIND(i4),
    [4 * PIXEL_SIGNED + 3] = INTEGER_KIND(i8),   [4 * PIXEL_FLOAT + 2] = REAL_KIND(f4),
    [4 * PIXEL_FLOAT + 3] = REAL_KIND(f8),
};

/* ---- weighted sums of a frame --------------------------------------------------------------------- */

static void sum_pixels(void *out, uint64_t stride, const void *pixels, const uint8_t *weights,
                       uint32_t n_masks, enum weight_kind of, const struct frame_shape *shape)
{
    const struct kind *kind = &kinds[pixel_type_index(shape)];
    const uint64_t n = shape->n_elems;
    for (uint32_t m = 0; m < n_masks; m++) {
        const void *mask = weights + m * n * weight_bytes(of);
        uint64_t sum = 0;
        if (of == WEIGHT_F64) {
            double real = kind->sum_f64(pixels, mask, n);
            memcpy(&sum, &real, sizeof(sum));
        } else {
            sum = of == WEIGHT_U8 ? kind->sum_u8(pixels, mask, n) : kind->sum_i32(pixels, mask, n);
        }
        memcpy((uint64_t *)out + m * stride, &sum, sizeof(sum));
    }
}

/* A frame that was never written: as if it had been. */
static int sum_fill(void *out, uint64_t stride, const struct sum_job *job, const void *weights,
                    uint32_t n_masks, enum weight_kind kind, const struct frame_shape *shape)
{
    void *pixels = aligned_alloc(16, (frame_bytes(shape) + 15) / 16 * 16);
    const struct decode_job fill = {.form = job->form, .dst = (uintptr_t)pixels};
    int rc = pixels ? decode_frame(&fill, shape, NULL) : STOW_NOMEM;
    if (rc == 0)
        sum_pixels(out, stride, pixels, weights, n_masks, kind, shape);
    free(pixels);
    return rc;
}

int kinds_frame(void *out, uint64_t stride, const struct sum_job *job, const void *weights,
                uint32_t n_masks, enum weight_kind kind, const struct frame_shape *shape)
{
    if (shape->kind == PIXEL_FLOAT && kind != WEIGHT_F64)
        return STOW_CORRUPT;
    if (job->form == STOW_FORM_FILL)
        return sum_fill(out, stride, job, weights, n_masks, kind, shape);
    if (job->form != STOW_FORM_RAW)
        return STOW_CORRUPT;
    sum_pixels(out, stride, (const void *)(uintptr_t)job->src, weights, n_masks, kind, shape);
    return 0;
}

/* ---- statistics of a frame ------------------------------------------------------------------------ */

#define CLEAR_FLAGGED(name, bits)                                                                  \
    WIDE_LOOPS static void name(void *cleared, const void *from, const uint8_t *flags, uint32_t n) \
    {                                                                                              \
        const bits *pixels = from;                                                                 \
        bits *to = cleared;                                                                        \
        for (uint32_t i = 0; i < n; i++)                                                           \
            to[i] = (bits)(flags[i] ? 0 : pixels[i]);                                              \
    }

CLEAR_FLAGGED(clear_1, uint8_t)
CLEAR_FLAGGED(clear_2, uint16_t)
CLEAR_FLAGGED(clear_4, uint32_t)
CLEAR_FLAGGED(clear_8, uint64_t)

/* The run without its flagged pixels: as it is where there are none, which is most of them, else in `cleared`, where
 * they are zeros of whatever type. */
static const void *unflagged(void *cleared, const void *pixels, const uint8_t *flags, uint32_t n,
                             uint32_t elem_bytes)
{
    uint8_t any = 0;
    for (uint32_t i = 0; flags && i < n; i++)
        any |= flags[i];
    if (!any)
        return pixels;
    if (elem_bytes == 1)
        clear_1(cleared, pixels, flags, n);
    else if (elem_bytes == 2)
        clear_2(cleared, pixels, flags, n);
    else if (elem_bytes == 4)
        clear_4(cleared, pixels, flags, n);
    else
        clear_8(cleared, pixels, flags, n);
    return cleared;
}

/* Sums of the runs so far, of all pixels or of those that are not flagged. */
struct integer_sums {
    uint64_t total, y, x, max;
};

static void add_integer_run(struct integer_sums *to, const struct integer_run *run, uint64_t y,
                            uint64_t x)
{
    to->total += run->sum;
    to->y += y * run->sum;
    to->x += x * run->sum + run->moment;
    to->max = run->max > to->max ? run->max : to->max;
}

static void integer_stats(struct frame_stats *of, const uint8_t *pixels, const uint8_t *flags,
                          uint64_t det_x, const struct frame_shape *shape)
{
    const struct kind *kind = &kinds[pixel_type_index(shape)];
    struct integer_sums all = {0}, good = {0};
    uint64_t cleared[RUN];
    for (uint64_t at = 0, n; at < shape->n_elems; at += n) {
        uint64_t y = at / det_x, x = at % det_x;
        n = det_x - x < RUN ? det_x - x : RUN;
        const void *from = pixels + at * shape->elem_bytes;
        const void *rest =
            unflagged(cleared, from, flags ? flags + at : NULL, (uint32_t)n, shape->elem_bytes);
        struct integer_run every = kind->integer_run(from, (uint32_t)n), some = every;
        if (rest != from)
            some = kind->integer_run(rest, (uint32_t)n);
        add_integer_run(&all, &every, y, x);
        add_integer_run(&good, &some, y, x);
    }
    *of = (struct frame_stats){good.total, good.y, good.x,   all.total,
                               all.y,      all.x,  good.max, all.max};
}

/* 32 numbers, the upper half to the lower one, until there is one. */
static double fold(double numbers[32])
{
    for (uint32_t half = 16; half; half /= 2)
        for (uint32_t i = 0; i < half; i++)
            numbers[i] += numbers[i + half];
    return numbers[0];
}

/* As sums.h says. */
static double fold_parts(double *parts, uint32_t n)
{
    double sums[32] = {0};
    for (uint32_t i = 0; i < n / 32; i++)
        sums[i] = fold(parts + (size_t)32 * i);
    double sum = fold(sums);
    return sum == sum ? sum : NAN; /* one NaN for all */
}

/* Total, and moments by row and column; without the flagged pixels, where there are flags. */
static void real_sums(uint64_t to[3], const uint8_t *pixels, const uint8_t *flags, uint64_t det_x,
                      const struct frame_shape *shape)
{
    const struct kind *kind = &kinds[pixel_type_index(shape)];
    const uint32_t n_parts = sums_parts(shape);
    double parts[3][SUMS_MAX_PARTS] = {{0}};
    uint64_t cleared[RUN];
    for (uint64_t at = 0; at < shape->n_elems;) {
        uint64_t y = at / det_x, x = at % det_x, part = at % n_parts;
        uint64_t n = det_x - x < n_parts - part ? det_x - x : n_parts - part;
        n = n < RUN ? n : RUN;
        const void *run = unflagged(cleared, pixels + at * shape->elem_bytes,
                                    flags ? flags + at : NULL, (uint32_t)n, shape->elem_bytes);
        kind->add_moments(parts[0] + part, parts[1] + part, parts[2] + part, run, (uint32_t)n, y,
                          x);
        at += n;
    }
    for (int i = 0; i < 3; i++) {
        double sum = fold_parts(parts[i], n_parts);
        memcpy(&to[i], &sum, sizeof(sum));
    }
}

static void real_stats(struct frame_stats *of, const uint8_t *pixels, const uint8_t *flags,
                       uint64_t det_x, const struct frame_shape *shape)
{
    uint64_t sums[3];
    real_sums(sums, pixels, NULL, det_x, shape);
    *of = (struct frame_stats){.total = sums[0],
                               .moment_y = sums[1],
                               .moment_x = sums[2],
                               .all_total = sums[0],
                               .all_moment_y = sums[1],
                               .all_moment_x = sums[2]};
    if (!flags)
        return;
    real_sums(sums, pixels, flags, det_x, shape);
    of->total = sums[0];
    of->moment_y = sums[1];
    of->moment_x = sums[2];
}

void kinds_stats(struct frame_stats *stats, const void *pixels, const uint8_t *flags,
                 uint64_t det_x, const struct frame_shape *shape)
{
    struct frame_stats of = {0};
    if (shape->kind == PIXEL_FLOAT)
        real_stats(&of, pixels, flags, det_x, shape);
    else
        integer_stats(&of, pixels, flags, det_x, shape);
    *stats = of;
}

/* ---- sums of pixels over frames ------------------------------------------------------------------- */

static void run_of_pixels(uint64_t *sums, const uint64_t *frames, uint64_t n, uint64_t at,
                          uint32_t run, const struct frame_shape *shape)
{
    const struct kind *kind = &kinds[pixel_type_index(shape)];
    double parts[RUN];
    memcpy(parts, sums, run * sizeof(parts[0]));
    for (uint64_t f = 0; f < n; f++) {
        const uint8_t *pixels = (const uint8_t *)(uintptr_t)frames[f] + at * shape->elem_bytes;
        if (kind->add_reals)
            kind->add_reals(parts, pixels, run);
        else
            kind->add_integers(sums, pixels, run);
    }
    if (kind->add_reals)
        memcpy(sums, parts, run * sizeof(parts[0]));
}

void kinds_pixels(uint64_t *sums, const uint64_t *frames, uint64_t n, uint64_t first,
                  uint64_t count, const struct frame_shape *shape)
{
    for (uint64_t at = first; at < first + count; at += RUN) {
        uint64_t rest = first + count - at;
        run_of_pixels(sums + at, frames, n, at, rest < RUN ? (uint32_t)rest : RUN, shape);
    }
}

void sums_add(uint64_t *to, const uint64_t *from, const struct frame_shape *shape)
{
    for (uint64_t i = 0; i < shape->n_elems; i++) {
        if (shape->kind != PIXEL_FLOAT) {
            to[i] += from[i];
            continue;
        }
        double sum, more;
        memcpy(&sum, &to[i], sizeof(sum));
        memcpy(&more, &from[i], sizeof(more));
        sum += more;
        sum = sum == sum ? sum : NAN;
        memcpy(&to[i], &sum, sizeof(sum));
    }
}

/* The fill value as a sum has it: extended by its sign, or a double. */
static double real_fill(const struct frame_shape *shape)
{
    double value;
    float single;
    uint32_t low = (uint32_t)shape->fill;
    memcpy(&single, &low, sizeof(single));
    memcpy(&value, &shape->fill, sizeof(value));
    return shape->elem_bytes == 4 ? (double)single : value;
}

static uint64_t integer_fill(const struct frame_shape *shape)
{
    const uint32_t unused = 64 - 8 * shape->elem_bytes;
    uint64_t high = shape->fill << unused;
    return shape->kind == PIXEL_SIGNED ? (uint64_t)((int64_t)high >> unused) : high >> unused;
}

void sums_add_fill(uint64_t *sums, uint64_t n, const struct frame_shape *shape)
{
    if (!n)
        return;
    double real = (double)n * real_fill(shape), sum;
    uint64_t integer = shape->kind == PIXEL_FLOAT ? 0 : n * integer_fill(shape);
    for (uint64_t i = 0; i < shape->n_elems; i++) {
        sums[i] += integer;
        if (shape->kind != PIXEL_FLOAT)
            continue;
        memcpy(&sum, &sums[i], sizeof(sum));
        sum += real;
        sum = sum == sum ? sum : NAN;
        memcpy(&sums[i], &sum, sizeof(sum));
    }
}
