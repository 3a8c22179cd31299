/* SPDX-License-Identifier: Apache-2.0
 *
 * sums_pixel_cases: statistics of frames, sums of pixels over frames, and comparing, on a bed of sums_cases.h. */
#ifndef STOW_SUMS_PIXEL_CASES_H
#define STOW_SUMS_PIXEL_CASES_H

#include "sums_cases.h"

/* ---- statistics ----------------------------------------------------------------------------------- */

static inline struct frame_stats plain_stats(const void *pixels, const uint8_t *flags,
                                             uint64_t det_x, const struct frame_shape *shape)
{
    struct frame_stats stats = {0};
    for (uint64_t i = 0; i < shape->n_elems; i++) {
        uint32_t pixel = case_pixel(pixels, i, shape->elem_bytes);
        stats.all_total += pixel;
        stats.all_moment_y += i / det_x * pixel;
        stats.all_moment_x += i % det_x * pixel;
        stats.all_max = pixel > stats.all_max ? pixel : stats.all_max;
        if (flags && flags[i])
            continue;
        stats.total += pixel;
        stats.moment_y += i / det_x * pixel;
        stats.moment_x += i % det_x * pixel;
        stats.max = pixel > stats.max ? pixel : stats.max;
    }
    return stats;
}

/* every: one pixel of so many is flagged; 0: no flags. */
static inline void stats_case(struct sums_bed *bed, uint64_t det_y, uint64_t det_x,
                              uint32_t elem_bytes, uint32_t every, enum pattern pattern, uint32_t n)
{
    struct frame_shape shape = {.n_elems = det_y * det_x, .elem_bytes = elem_bytes};
    uint8_t *flags = bed->alloc(bed, shape.n_elems + 1);
    uint64_t *frames = bed->alloc(bed, n * sizeof(*frames));
    struct frame_stats *stats = bed->alloc(bed, (n + 1) * sizeof(*stats));
    flags += every % 2; /* not aligned, at times */
    for (uint64_t i = 0; i < shape.n_elems; i++)
        flags[i] = every && case_random() % every == 0 ? (uint8_t)(1 + case_random() % 255) : 0;
    for (uint32_t f = 0; f < n; f++) {
        void *pixels = bed->alloc(bed, frame_bytes(&shape));
        case_frame(pixels, pattern, f, &shape);
        frames[f] = ADDRESS(pixels);
    }
    const struct work work = {.kind = WORK_STATS,
                              .n = n,
                              .shape = shape,
                              .stats = {.frames = ADDRESS(frames),
                                        .flags = every ? ADDRESS(flags) : 0,
                                        .stats = ADDRESS(stats),
                                        .det_x = det_x}};
    bed->run(bed, &work);
    for (uint32_t f = 0; f < n; f++) {
        struct frame_stats want =
            plain_stats((const void *)(uintptr_t)frames[f], every ? flags : NULL, det_x, &shape);
        CHECK_MSG(memcmp(&want, &stats[f], sizeof(want)) == 0,
                  "statistics of %s, %llu x %llu, %u bytes, flags %u: total %llu, not %llu",
                  pattern_names[pattern], (unsigned long long)det_y, (unsigned long long)det_x,
                  elem_bytes, every, (unsigned long long)stats[f].total,
                  (unsigned long long)want.total);
    }
    CHECK(stats[n].max == 0xa5a5a5a5a5a5a5a5);
    bed->reset(bed);
}

static inline void test_statistics(struct sums_bed *bed)
{
    static const uint32_t everies[] = {0, 50, 1, 3};
    for (size_t i = 0; i < N_CASE_SHAPES; i++)
        for (uint32_t elem_bytes = 1; elem_bytes <= 4; elem_bytes *= 2)
            for (uint32_t p = 0; p < 4; p++)
                stats_case(bed, case_shapes[i].det_y, case_shapes[i].det_x, elem_bytes,
                           everies[(p + i) % 4],
                           (enum pattern[]){UNIFORM, ALL_MAXIMUM, POISSON_5, ONE_FLAGGED}[p], 3);
    for (uint32_t elem_bytes = 1; elem_bytes <= 4; elem_bytes *= 2)
        stats_case(bed, 1030, 1027, elem_bytes, 50, UNIFORM, 2);
}

/* ---- sums of pixels ------------------------------------------------------------------------------- */

static inline void pixels_case(struct sums_bed *bed, const struct frame_shape *shape, uint32_t n,
                               enum pattern pattern)
{
    uint64_t *frames = bed->alloc(bed, n * sizeof(*frames));
    uint64_t *sums = bed->alloc(bed, (shape->n_elems + 1) * sizeof(*sums)), wrong = 0;
    uint64_t *want = case_alloc(shape->n_elems * sizeof(*want));
    for (uint64_t i = 0; i < shape->n_elems; i++)
        sums[i] = want[i] = case_random() << 20;
    for (uint32_t f = 0; f < n; f++) {
        void *pixels = bed->alloc(bed, frame_bytes(shape));
        case_frame(pixels, pattern, f, shape);
        frames[f] = ADDRESS(pixels);
        for (uint64_t i = 0; i < shape->n_elems; i++)
            want[i] += case_pixel(pixels, i, shape->elem_bytes);
    }
    const struct work work = {
        .kind = WORK_PIXELS,
        .n = (uint32_t)((shape->n_elems + WORK_PIXELS_BLOCK - 1) / WORK_PIXELS_BLOCK),
        .shape = *shape,
        .pixels = {.frames = ADDRESS(frames), .n_frames = n, .sums = ADDRESS(sums)}};
    bed->run(bed, &work);
    for (uint64_t i = 0; i < shape->n_elems; i++)
        wrong += sums[i] != want[i];
    CHECK_MSG(wrong == 0, "%llu of %llu pixels' sums over %u frames are wrong",
              (unsigned long long)wrong, (unsigned long long)shape->n_elems, n);
    CHECK(sums[shape->n_elems] == 0xa5a5a5a5a5a5a5a5);
    free(want);
    bed->reset(bed);
}

/* The same frame so often that 32 bits would not hold its pixels' sums. */
static inline void many_pixels_case(struct sums_bed *bed)
{
    struct frame_shape shape = {.n_elems = 9, .elem_bytes = 2};
    enum { N = 65536 + 1234 };
    uint64_t *frames = bed->alloc(bed, N * sizeof(*frames));
    uint64_t *sums = bed->alloc(bed, shape.n_elems * sizeof(*sums));
    void *pixels = bed->alloc(bed, frame_bytes(&shape));
    memset(pixels, 0xff, frame_bytes(&shape));
    memset(sums, 0, shape.n_elems * sizeof(*sums));
    for (uint32_t f = 0; f < N; f++)
        frames[f] = ADDRESS(pixels);
    const struct work work = {
        .kind = WORK_PIXELS,
        .n = 1,
        .shape = shape,
        .pixels = {.frames = ADDRESS(frames), .n_frames = N, .sums = ADDRESS(sums)}};
    bed->run(bed, &work);
    for (uint64_t i = 0; i < shape.n_elems; i++)
        CHECK_INT(sums[i], 65535ull * N);
    bed->reset(bed);
}

static inline void test_pixel_sums(struct sums_bed *bed)
{
    static const uint32_t counts[] = {1, 2, 33, 40};
    for (size_t i = 0; i < N_CASE_SHAPES; i++)
        for (uint32_t elem_bytes = 1; elem_bytes <= 4; elem_bytes *= 2) {
            struct frame_shape shape = case_shape(i, elem_bytes);
            pixels_case(bed, &shape, counts[(i + elem_bytes) % 4], i % 2 ? UNIFORM : ALL_MAXIMUM);
        }
    many_pixels_case(bed);
}

/* ---- comparing ------------------------------------------------------------------------------------ */

static inline void test_compare(struct sums_bed *bed)
{
    enum { N = 4 };
    for (size_t s = 0; s < N_CASE_SHAPES; s++)
        for (uint32_t elem_bytes = 1; elem_bytes <= 8; elem_bytes *= 2) {
            struct frame_shape shape = case_shape(s, elem_bytes);
            uint64_t *left = bed->alloc(bed, N * 8), *right = bed->alloc(bed, N * 8), want[N] = {0};
            uint64_t *differ = bed->alloc(bed, (N + 1) * 8);
            for (uint32_t f = 0; f < N; f++) {
                uint8_t *a = bed->alloc(bed, frame_bytes(&shape));
                uint8_t *b = bed->alloc(bed, frame_bytes(&shape) + elem_bytes);
                b += f == 3 ? elem_bytes : 0; /* not aligned to more */
                for (uint64_t i = 0; i < frame_bytes(&shape); i++)
                    a[i] = (uint8_t)case_random();
                memcpy(b, a, frame_bytes(&shape));
                for (uint64_t i = 0; i < shape.n_elems; i++)
                    if (f == 2 || (f && (i == 0 || i + 1 == shape.n_elems))) {
                        b[i * elem_bytes + case_random() % elem_bytes] ^= 0x40;
                        want[f]++;
                    }
                left[f] = ADDRESS(a);
                right[f] = ADDRESS(b);
            }
            const struct work work = {.kind = WORK_COMPARE,
                                      .n = N,
                                      .shape = shape,
                                      .compare = {.left = ADDRESS(left),
                                                  .right = ADDRESS(right),
                                                  .differ = ADDRESS(differ)}};
            bed->run(bed, &work);
            for (uint32_t f = 0; f < N; f++)
                CHECK_INT(differ[f], want[f]);
            CHECK(differ[N] == 0xa5a5a5a5a5a5a5a5);
            bed->reset(bed);
        }
}

#endif
