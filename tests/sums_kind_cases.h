/* SPDX-License-Identifier: Apache-2.0
 *
 * sums_kind_cases: sums, statistics and sums over frames of pixels that are no counts (signed, 64 bits, floats), on a bed
 * of sums_cases.h, against sums in 128 bits or long double. */
#ifndef STOW_SUMS_KIND_CASES_H
#define STOW_SUMS_KIND_CASES_H

#include "sums_cases.h"

static const struct {
    const char *dtype;
    uint32_t elem_bytes, kind;
} kind_types[] = {{"u8", 8, PIXEL_UNSIGNED}, {"i1", 1, PIXEL_SIGNED}, {"i2", 2, PIXEL_SIGNED},
                  {"i4", 4, PIXEL_SIGNED},   {"i8", 8, PIXEL_SIGNED}, {"f4", 4, PIXEL_FLOAT},
                  {"f8", 8, PIXEL_FLOAT}};
#define N_KIND_TYPES (sizeof(kind_types) / sizeof(*kind_types))

/* SMALL: what everybody has; EXTREME: the type's least and largest, of which 64-bit sums wrap; of floats both have
 * fractions, and SPECIAL is NaN, infinities, -0.0 and denormals among them. */
enum kind_content { KIND_SMALL, KIND_EXTREME, KIND_SPECIAL, N_KIND_CONTENTS };

static inline struct frame_shape kind_shape(size_t type, uint64_t n_elems, uint64_t fill)
{
    return (struct frame_shape){.n_elems = n_elems,
                                .elem_bytes = kind_types[type].elem_bytes,
                                .kind = kind_types[type].kind,
                                .fill =
                                    fill & UINT64_MAX >> (64 - 8 * kind_types[type].elem_bytes)};
}

static inline uint64_t kind_special(uint64_t random, uint32_t elem_bytes)
{
    static const uint64_t f8[] = {0x7ff8000000001234, 0xfff0000000000001, 0x7ff0000000000000,
                                  0xfff0000000000000, 0x8000000000000000, 1};
    static const uint64_t f4[] = {0x7fc00001, 0xffc01234, 0x7f800000, 0xff800000, 0x80000000, 1};
    return elem_bytes == 4 ? f4[random % 6] : f8[random % 6];
}

static inline void kind_frame(uint8_t *pixels, enum kind_content content,
                              const struct frame_shape *shape)
{
    for (uint64_t i = 0; i < shape->n_elems; i++) {
        uint64_t random = case_random(), bits = random << 13 ^ case_random();
        double real = (case_uniform() - .5) * (content == KIND_EXTREME ? 1e30 : 50);
        float single = (float)real;
        if (content == KIND_SMALL)
            bits = random % 9 - (shape->kind == PIXEL_SIGNED ? 4 : 0);
        else if (random % 3 == 0)
            bits = shape->kind == PIXEL_SIGNED ? UINT64_C(1) << (8 * shape->elem_bytes - 1) : 0;
        else if (random % 3 == 1)
            bits = shape->kind == PIXEL_SIGNED ? (UINT64_C(1) << (8 * shape->elem_bytes - 1)) - 1
                                               : UINT64_MAX;
        if (shape->kind == PIXEL_FLOAT && shape->elem_bytes == 8)
            memcpy(&bits, &real, 8);
        if (shape->kind == PIXEL_FLOAT && shape->elem_bytes == 4)
            memcpy(&bits, &single, 4);
        if (shape->kind == PIXEL_FLOAT && content == KIND_SPECIAL && random % 40 == 0)
            bits = kind_special(random / 40, shape->elem_bytes);
        memcpy(pixels + i * shape->elem_bytes, &bits, shape->elem_bytes);
    }
}

static inline __int128 kind_integer(const void *pixels, uint64_t i, const struct frame_shape *shape)
{
    const uint8_t *at = (const uint8_t *)pixels + i * shape->elem_bytes;
    if (shape->kind == PIXEL_UNSIGNED) {
        uint64_t u8;
        memcpy(&u8, at, 8);
        return u8;
    }
    int8_t i1;
    int16_t i2;
    int32_t i4;
    int64_t i8;
    switch (shape->elem_bytes) {
    case 1: memcpy(&i1, at, 1); return i1;
    case 2: memcpy(&i2, at, 2); return i2;
    case 4: memcpy(&i4, at, 4); return i4;
    default: memcpy(&i8, at, 8); return i8;
    }
}

static inline double kind_real(const void *pixels, uint64_t i, const struct frame_shape *shape)
{
    const uint8_t *at = (const uint8_t *)pixels + i * shape->elem_bytes;
    double f8;
    float f4;
    if (shape->kind != PIXEL_FLOAT)
        return (double)kind_integer(pixels, i, shape);
    if (shape->elem_bytes == 4) {
        memcpy(&f4, at, 4);
        return (double)f4;
    }
    memcpy(&f8, at, 8);
    return f8;
}

/* A sum as it should be: of integers modulo 2^64, of floats within n eps of what its parts add up to in size. */
struct kind_sum {
    __int128 whole;
    long double real, size;
    uint64_t n;
};

static inline void kind_add(struct kind_sum *sum, __int128 whole, long double real)
{
    sum->whole += whole;
    sum->real += real;
    sum->size += fabsl(real);
    sum->n++;
}

static inline bool kind_is(uint64_t got, const struct kind_sum *want, bool is_real)
{
    double real;
    if (!is_real)
        return got == (uint64_t)want->whole;
    memcpy(&real, &got, sizeof(real));
    if (isnan(want->real))
        return isnan(real);
    if (isinf(want->real))
        return (long double)real == want->real;
    return fabsl(real - want->real) <= (long double)(want->n + 2) * DBL_EPSILON * want->size;
}

/* ---- weighted sums -------------------------------------------------------------------------------- */

/* Weights of which some are 0, where a pixel may be anything. */
static inline void kind_weights(uint8_t *weights, uint64_t n, enum weight_kind kind)
{
    for (uint64_t i = 0; i < n; i++) {
        uint64_t random = case_random();
        int32_t whole = random % 3 ? (int32_t)(random >> 8) : 0;
        double real = random % 3 ? case_uniform() - .5 : 0;
        if (kind == WEIGHT_U8)
            weights[i] = (uint8_t)whole;
        else if (kind == WEIGHT_I32)
            memcpy(weights + 4 * i, &whole, 4);
        else
            memcpy(weights + 8 * i, &real, 8);
    }
}

static inline struct kind_sum kind_weighted(const void *pixels, const uint8_t *weights,
                                            enum weight_kind kind, const struct frame_shape *shape)
{
    struct kind_sum sum = {0};
    for (uint64_t i = 0; i < shape->n_elems; i++) {
        if (kind != WEIGHT_F64) {
            kind_add(&sum, kind_integer(pixels, i, shape) * whole_weight(weights, i, kind), 0);
            continue;
        }
        double weight = ((const double *)(const void *)weights)[i];
        if (weight != 0)
            kind_add(&sum, 0, (long double)weight * kind_real(pixels, i, shape));
    }
    return sum;
}

static inline void kind_sum_case(struct sums_bed *bed, size_t type, uint64_t n_elems,
                                 enum kind_content content, enum weight_kind kind)
{
    enum { JOBS = 5, MASKS = 3, STRIDE = JOBS + 2 };
    const struct frame_shape shape =
        kind_shape(type, n_elems, content == KIND_SMALL ? UINT64_MAX : 0x123456789abcdef0);
    const bool fits = shape.kind != PIXEL_FLOAT || kind == WEIGHT_F64;
    struct sum_job *jobs = bed->alloc(bed, JOBS * sizeof(*jobs));
    uint8_t *weights = bed->alloc(bed, MASKS * n_elems * weight_bytes(kind)), *pixels[JOBS];
    uint64_t *out = bed->alloc(bed, STRIDE * MASKS * sizeof(*out));
    int32_t *status = bed->alloc(bed, (JOBS + 1) * sizeof(*status));
    if (!fits)
        return;
    kind_weights(weights, MASKS * n_elems, kind);
    for (uint32_t j = 0; j < JOBS; j++) {
        pixels[j] = bed->alloc(bed, frame_bytes(&shape));
        kind_frame(pixels[j], content, &shape);
        jobs[j] = (struct sum_job){.src = ADDRESS(pixels[j]), .form = STOW_FORM_RAW};
        if (j == 2)
            jobs[j] = (struct sum_job){.form = STOW_FORM_FILL};
        for (uint64_t i = 0; j == 2 && i < n_elems; i++)
            memcpy(pixels[j] + i * shape.elem_bytes, &shape.fill, shape.elem_bytes);
    }
    jobs[3].form = STOW_FORM_BSLZ4; /* it would have to be decoded first */
    const struct work work = {.kind = WORK_SUM,
                              .n = JOBS,
                              .shape = shape,
                              .sum = {.jobs = ADDRESS(jobs),
                                      .weights = ADDRESS(weights),
                                      .out = ADDRESS(out),
                                      .out_stride = STRIDE,
                                      .status = ADDRESS(status),
                                      .n_masks = MASKS,
                                      .weights_kind = kind}};
    bed->run(bed, &work);
    for (uint32_t j = 0; j < JOBS; j++) {
        CHECK_INT(status[j], j == 3 ? STOW_CORRUPT : 0);
        for (uint32_t m = 0; j != 3 && m < MASKS; m++) {
            struct kind_sum want =
                kind_weighted(pixels[j], weights + m * n_elems * weight_bytes(kind), kind, &shape);
            CHECK_MSG(kind_is(out[m * STRIDE + j], &want, kind == WEIGHT_F64),
                      "%s, %llu pixels, content %d, weights %s, job %u, mask %u: %llx",
                      kind_types[type].dtype, (unsigned long long)n_elems, (int)content,
                      kind_names[kind], j, m, (unsigned long long)out[m * STRIDE + j]);
        }
    }
    CHECK(status[JOBS] == (int32_t)0xa5a5a5a5 && out[JOBS] == 0xa5a5a5a5a5a5a5a5);
}

/* ---- statistics ----------------------------------------------------------------------------------- */

static inline uint64_t kind_size(const void *pixels, uint64_t i, const struct frame_shape *shape)
{
    __int128 value = shape->kind == PIXEL_FLOAT ? 0 : kind_integer(pixels, i, shape);
    return (uint64_t)(value < 0 ? -value : value);
}

static inline double kind_fold(double numbers[32])
{
    for (int half = 16; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            numbers[i] += numbers[i + half];
    return numbers[0];
}

/* A float frame's sum of factor * pixel, in the order that sums.h tells: to the last bit. by: 0 nothing, 1 the row, 2 the
 * column. flags NULL: all pixels. */
static inline uint64_t kind_exact(const void *pixels, const uint8_t *flags, int by, uint64_t det_x,
                                  const struct frame_shape *shape)
{
    double parts[1024] = {0}, sums[32] = {0};
    uint32_t n = frame_bytes(shape) >= 1048576 ? 1024 : 256;
    uint64_t bits;
    for (uint64_t i = 0; i < shape->n_elems; i++) {
        double factor = by == 0 ? 1 : (double)(by == 1 ? i / det_x : i % det_x);
        volatile double product = factor * kind_real(pixels, i, shape); /* not fused with the sum */
        if (!flags || !flags[i])
            parts[i % n] += product;
    }
    for (uint32_t i = 0; i < n; i += 32)
        sums[i / 32] = kind_fold(parts + i);
    double sum = kind_fold(sums);
    memcpy(&bits, &sum, sizeof(bits));
    return isnan(sum) ? 0x7ff8000000000000 : bits;
}

/* every: one pixel of so many is flagged; 0: there are no flags. */
static inline void kind_stats_case(struct sums_bed *bed, size_t type, uint64_t det_y,
                                   uint64_t det_x, enum kind_content content, uint32_t every)
{
    enum { N = 3 };
    const struct frame_shape shape = kind_shape(type, det_y * det_x, 0);
    const bool is_real = shape.kind == PIXEL_FLOAT;
    uint8_t *flags = bed->alloc(bed, shape.n_elems + 1), *pixels[N];
    uint64_t *frames = bed->alloc(bed, N * sizeof(*frames));
    struct frame_stats *stats = bed->alloc(bed, (N + 1) * sizeof(*stats));
    for (uint64_t i = 0; i < shape.n_elems; i++)
        flags[i] = every && case_random() % every == 0 ? (uint8_t)(1 + case_random() % 255) : 0;
    for (uint32_t f = 0; f < N; f++) {
        pixels[f] = bed->alloc(bed, frame_bytes(&shape));
        kind_frame(pixels[f], content, &shape);
        frames[f] = ADDRESS(pixels[f]);
    }
    const struct work work = {.kind = WORK_STATS,
                              .n = N,
                              .shape = shape,
                              .stats = {.frames = ADDRESS(frames),
                                        .flags = every ? ADDRESS(flags) : 0,
                                        .stats = ADDRESS(stats),
                                        .det_x = det_x}};
    bed->run(bed, &work);
    for (uint32_t f = 0; f < N; f++) {
        struct kind_sum want[6] = {{0}};
        uint64_t most[2] = {0};
        for (uint64_t i = 0; i < shape.n_elems; i++) {
            __int128 whole = is_real ? 0 : kind_integer(pixels[f], i, &shape);
            long double real = kind_real(pixels[f], i, &shape);
            uint64_t size = kind_size(pixels[f], i, &shape), y = i / det_x, x = i % det_x;
            for (int all = 0; all < 2; all++) {
                if (!all && every && flags[i])
                    continue;
                kind_add(&want[3 * all], whole, real);
                kind_add(&want[3 * all + 1], whole * y, real * y);
                kind_add(&want[3 * all + 2], whole * x, real * x);
                most[all] = size > most[all] ? size : most[all];
            }
        }
        const uint64_t got[] = {stats[f].total,     stats[f].moment_y,     stats[f].moment_x,
                                stats[f].all_total, stats[f].all_moment_y, stats[f].all_moment_x};
        for (int i = 0; i < 6; i++)
            CHECK_MSG(kind_is(got[i], &want[i], is_real),
                      "%s, %llu x %llu, content %d, flags %u: number %d is %llx",
                      kind_types[type].dtype, (unsigned long long)det_y, (unsigned long long)det_x,
                      (int)content, every, i, (unsigned long long)got[i]);
        for (int i = 0; is_real && i < 6; i++)
            CHECK_INT(got[i],
                      kind_exact(pixels[f], i < 3 && every ? flags : NULL, i % 3, det_x, &shape));
        CHECK(stats[f].max == most[0] && stats[f].all_max == most[1]);
    }
    CHECK(stats[N].max == 0xa5a5a5a5a5a5a5a5);
    bed->reset(bed);
}

/* ---- sums of pixels ------------------------------------------------------------------------------- */

/* Frame after frame, so that floats come out to the last bit. The list is cut in two works. */
static inline void kind_pixels_case(struct sums_bed *bed, size_t type, uint64_t n_elems,
                                    enum kind_content content, uint32_t n)
{
    const struct frame_shape shape = kind_shape(type, n_elems, 0);
    uint64_t *frames = bed->alloc(bed, n * sizeof(*frames));
    uint64_t *sums = bed->alloc(bed, (n_elems + 1) * sizeof(*sums)), wrong = 0;
    uint64_t *want = case_alloc(n_elems * sizeof(*want));
    memset(sums, 0, n_elems * sizeof(*sums));
    memset(want, 0, n_elems * sizeof(*want));
    for (uint32_t f = 0; f < n; f++) {
        uint8_t *pixels = bed->alloc(bed, frame_bytes(&shape));
        kind_frame(pixels, content, &shape);
        frames[f] = ADDRESS(pixels);
        for (uint64_t i = 0; i < n_elems; i++) {
            double sum;
            memcpy(&sum, &want[i], sizeof(sum));
            sum += kind_real(pixels, i, &shape);
            if (shape.kind == PIXEL_FLOAT)
                memcpy(&want[i], &sum, sizeof(sum));
            else
                want[i] += (uint64_t)kind_integer(pixels, i, &shape);
        }
    }
    struct work work = {
        .kind = WORK_PIXELS,
        .n = (uint32_t)((n_elems + WORK_PIXELS_BLOCK - 1) / WORK_PIXELS_BLOCK),
        .shape = shape,
        .pixels = {.frames = ADDRESS(frames), .n_frames = n / 3, .sums = ADDRESS(sums)}};
    bed->run(bed, &work);
    work.pixels.frames = ADDRESS(frames + n / 3);
    work.pixels.n_frames = n - n / 3;
    bed->run(bed, &work);
    for (uint64_t i = 0; i < n_elems; i++) {
        double a, b;
        memcpy(&a, &sums[i], sizeof(a));
        memcpy(&b, &want[i], sizeof(b));
        bool both_nan = shape.kind == PIXEL_FLOAT && isnan(a) && isnan(b);
        wrong += sums[i] != want[i] && !both_nan;
    }
    CHECK_MSG(wrong == 0, "%s, content %d: %llu of %llu pixels' sums over %u frames are wrong",
              kind_types[type].dtype, (int)content, (unsigned long long)wrong,
              (unsigned long long)n_elems, n);
    CHECK(sums[n_elems] == 0xa5a5a5a5a5a5a5a5);
    free(want);
    bed->reset(bed);
}

static inline void test_kinds(struct sums_bed *bed)
{
    static const uint32_t everies[] = {0, 50, 1, 3};
    uint32_t turn = 0;
    for (size_t type = 0; type < N_KIND_TYPES; type++)
        for (size_t i = 0; i < N_CASE_SHAPES; i++)
            for (int content = 0; content < N_KIND_CONTENTS; content++, turn++) {
                uint64_t y = case_shapes[i].det_y, x = case_shapes[i].det_x;
                for (enum weight_kind kind = WEIGHT_U8; kind <= WEIGHT_F64; kind++) {
                    kind_sum_case(bed, type, y * x, (enum kind_content)content, kind);
                    bed->reset(bed);
                }
                kind_stats_case(bed, type, y, x, (enum kind_content)content, everies[turn % 4]);
                kind_pixels_case(bed, type, y * x, (enum kind_content)content, 1 + turn % 37);
            }
}

/* Frames of which a thread block has more threads. */
static inline void test_large_kinds(struct sums_bed *bed)
{
    kind_stats_case(bed, 5, 600, 511, KIND_SMALL, 50);
    kind_stats_case(bed, 6, 401, 503, KIND_SPECIAL, 0);
    kind_stats_case(bed, 3, 600, 511, KIND_EXTREME, 3);
}

/* Frames that were never written: what they add to sums over frames. */
static inline void test_fill_sums(void)
{
    for (size_t type = 0; type < N_KIND_TYPES; type++) {
        const struct frame_shape shape =
            kind_shape(type, 3, kind_types[type].elem_bytes == 4 ? 0xc0490fdb : 0xc00921fb54442d18);
        uint64_t sums[3] = {0}, one[3];
        sums_add_fill(sums, 1000, &shape);
        memcpy(one, sums, sizeof(one));
        sums_add(sums, one, &shape);
        struct kind_sum want = {0};
        for (int i = 0; i < 2000; i++)
            kind_add(&want, shape.kind == PIXEL_FLOAT ? 0 : kind_integer(&shape.fill, 0, &shape),
                     kind_real(&shape.fill, 0, &shape));
        for (int i = 0; i < 3; i++)
            CHECK(kind_is(sums[i], &want, shape.kind == PIXEL_FLOAT));
    }
}

#endif
