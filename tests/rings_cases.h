/* SPDX-License-Identifier: Apache-2.0
 *
 * rings_cases: sums over rings, on a bed of sums_cases.h: each against a sum over the pixels of all rings up to it, by
 * maps that are no circles, and with pixels in no ring. */
#ifndef STOW_RINGS_CASES_H
#define STOW_RINGS_CASES_H

#include "sums_cases.h"

/* How a map is drawn: stripes that neighbours share, at random, or nothing but one ring. */
enum rings_map { RINGS_STRIPES, RINGS_RANDOM, RINGS_ONE };

static inline void draw_rings(uint16_t *map, enum rings_map kind, uint32_t n_rings, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        uint64_t ring = kind == RINGS_STRIPES  ? i / 5 % n_rings
                        : kind == RINGS_RANDOM ? case_random() % n_rings
                                               : n_rings / 2;
        map[i] = (uint16_t)(case_random() % 9 == 0 ? n_rings : ring);
    }
}

static inline uint64_t plain_rings(const void *pixels, const uint16_t *map, uint32_t ring,
                                   const struct frame_shape *shape)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < shape->n_elems; i++)
        sum += map[i] <= ring ? case_pixel(pixels, i, shape->elem_bytes) : 0;
    return sum;
}

/* Rows of n + 1: the last of each is to stay as it is. */
static inline void rings_case(struct sums_bed *bed, const struct frame_shape *shape,
                              enum rings_map kind, uint32_t n_rings, enum pattern pattern,
                              bool wide)
{
    enum { FRAMES = 3, STRIDE = FRAMES + 1 };
    uint64_t *frames = bed->alloc(bed, FRAMES * sizeof(*frames)), wrong = 0;
    uint16_t *map = bed->alloc(bed, shape->n_elems * sizeof(*map));
    uint8_t *out = bed->alloc(bed, (size_t)n_rings * STRIDE * 8);
    draw_rings(map, kind, n_rings, shape->n_elems);
    for (uint32_t f = 0; f < FRAMES; f++) {
        void *pixels = bed->alloc(bed, frame_bytes(shape));
        case_frame(pixels, pattern, f, shape);
        frames[f] = ADDRESS(pixels);
    }
    const struct work work = {.kind = WORK_RINGS,
                              .n = FRAMES,
                              .shape = *shape,
                              .rings = {.frames = ADDRESS(frames),
                                        .map = ADDRESS(map),
                                        .out = ADDRESS(out),
                                        .out_stride = STRIDE,
                                        .n_rings = n_rings,
                                        .wide = wide}};
    bed->run(bed, &work);
    for (uint32_t k = 0; k<n_rings; k += n_rings> 200 ? n_rings / 50 : 1) {
        for (uint32_t f = 0; f < STRIDE; f++) {
            uint64_t i = (uint64_t)k * STRIDE + f;
            uint64_t got = wide ? ((uint64_t *)out)[i] : ((uint32_t *)out)[i];
            uint64_t untouched = wide ? 0xa5a5a5a5a5a5a5a5 : 0xa5a5a5a5;
            wrong += got != (f == FRAMES
                                 ? untouched
                                 : plain_rings((const void *)(uintptr_t)frames[f], map, k, shape));
        }
    }
    CHECK_MSG(wrong == 0, "%llu sums of %u rings of %llu pixels of %u bytes are wrong, %s, map %u",
              (unsigned long long)wrong, n_rings, (unsigned long long)shape->n_elems,
              shape->elem_bytes, pattern_names[pattern], kind);
    bed->reset(bed);
}

/* Narrow sums where they fit: 32 bits hold 65,537 pixels of 16 bits. */
static inline void test_rings(struct sums_bed *bed)
{
    static const uint32_t counts[] = {1, 2, 31, 32, 33, 136, 1000, RINGS_MAX};
    static const enum pattern patterns[] = {UNIFORM, ALL_MAXIMUM, POISSON_5, ONE_FLAGGED};
    uint32_t turn = 0;
    for (size_t i = 0; i < N_CASE_SHAPES; i++) {
        for (uint32_t elem_bytes = 1; elem_bytes <= 4; elem_bytes *= 2) {
            for (uint32_t kind = RINGS_STRIPES; kind <= RINGS_ONE; kind++, turn++) {
                struct frame_shape shape = {.n_elems = case_shapes[i].det_y * case_shapes[i].det_x,
                                            .elem_bytes = elem_bytes};
                uint32_t n_rings = counts[turn % (sizeof(counts) / sizeof(counts[0]))];
                enum pattern pattern = patterns[turn / 3 % 4];
                rings_case(bed, &shape, (enum rings_map)kind, n_rings, pattern, true);
                if (elem_bytes < 4 && shape.n_elems < 65537)
                    rings_case(bed, &shape, (enum rings_map)kind, n_rings, pattern, false);
            }
        }
    }
    for (uint32_t elem_bytes = 1; elem_bytes <= 4; elem_bytes *= 2) {
        struct frame_shape shape = {.n_elems = 1030 * 1027, .elem_bytes = elem_bytes};
        rings_case(bed, &shape, RINGS_STRIPES, 730, UNIFORM, true);
    }
}

#endif
