/* SPDX-License-Identifier: Apache-2.0
 *
 * view_cases: views of frames, by a bed that runs them somewhere, against what is worked out here step by step: whole
 * arrays, one operation after the other, no part of view.h but its struct. */
#ifndef STOW_TEST_VIEW_CASES_H
#define STOW_TEST_VIEW_CASES_H

#include "work.h"

#include "test.h"

#define VIEW_FRAMES 5u
#define STATUS_KEPT 12345 /* a frame that is right does not touch its status */

struct view_bed {
    void (*run)(const struct work *work);
    void *(*alloc)(size_t bytes); /* poisoned; 16 bytes behind it are too */
    void (*reset)(void);
};

/* What a test asks for; pad 0: none. */
struct view_wish {
    uint32_t det_y, det_x, in, correction, crop[4], bin, out, out_bytes, pad_y, pad_x;
    bool shift, is_signed;
};

static inline uint64_t view_random(void)
{
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static inline uint32_t random_below(uint32_t n)
{
    return n ? (uint32_t)(view_random() % n) : 0;
}

static inline uint32_t max_1(uint32_t n)
{
    return n ? n : 1;
}

static inline struct view view_of_wish(const struct view_wish *w)
{
    struct view v = {.det_y = w->det_y,
                     .det_x = w->det_x,
                     .in = w->in,
                     .correction = w->correction,
                     .crop_y = w->crop[0],
                     .crop_x = w->crop[1],
                     .crop_h = w->crop[2],
                     .crop_w = w->crop[3],
                     .bin = w->bin,
                     .bins_y = max_1(w->crop[2] / w->bin),
                     .bins_x = max_1(w->crop[3] / w->bin),
                     .out = w->out,
                     .out_bytes = w->out_bytes};
    v.size_y = w->pad_y ? w->pad_y : v.bins_y;
    v.size_x = w->pad_x ? w->pad_x : v.bins_x;
    v.at_y = (v.size_y - v.bins_y) / 2;
    v.at_x = (v.size_x - v.bins_x) / 2;
    v.shift_y = w->shift ? v.size_y / 2 : 0;
    v.shift_x = w->shift ? v.size_x / 2 : 0;
    uint64_t all = UINT64_MAX >> (64 - 8 * w->out_bytes);
    v.most = w->out_bytes == 8 ? INT64_MAX : (int64_t)(w->is_signed ? all >> 1 : all);
    v.least = w->out_bytes == 8 ? INT64_MIN : w->is_signed ? -v.most - 1 : 0;
    return v;
}

/* ---- step by step -------------------------------------------------------------------------------- */

static inline int64_t plain_pixel(const void *frame, uint32_t in, size_t i)
{
    const uint8_t *at = frame;
    static const unsigned bytes[] = {1, 2, 4, 8, 1, 2, 4};
    uint64_t bits = 0;
    memcpy(&bits, at + i * bytes[in], bytes[in]);
    if (in == VIEW_I1)
        return (int8_t)bits;
    if (in == VIEW_I2)
        return (int16_t)bits;
    return in == VIEW_I4 ? (int32_t)bits : (int64_t)bits;
}

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static inline void plain_correct(int64_t *to, const int64_t *from, const uint8_t *flags,
                                 const struct view_wish *w)
{
    for (int64_t y = 0; y < w->det_y; y++) {
        for (int64_t x = 0; x < w->det_x; x++) {
            int64_t values[8], n = 0, at = y * w->det_x + x;
            to[at] = from[at];
            if (!flags || !flags[at] || w->correction == VIEW_AS_IT_IS)
                continue;
            for (int64_t i = 0; i < 9; i++) {
                int64_t r = y + i / 3 - 1, c = x + i % 3 - 1;
                if (r >= 0 && c >= 0 && r < w->det_y && c < w->det_x && !flags[r * w->det_x + c])
                    values[n++] = from[r * w->det_x + c];
            }
            qsort(values, (size_t)n, sizeof(values[0]), by_size);
            if (w->correction == VIEW_ZERO)
                to[at] = 0;
            else if (n)
                to[at] = values[(n - 1) / 2];
        }
    }
}

static inline double half_value(uint16_t half)
{
    int exponent = half >> 10;
    return exponent ? ldexp(1024 + (half & 1023), exponent - 25) : ldexp(half, -24);
}

/* The nearest of all halves, of two the even one; infinity from where numpy has it. */
static inline uint16_t plain_half(double value)
{
    double size = fabs(value);
    uint16_t low = 0, high = 0x7c00, sign = value < 0 ? 0x8000 : 0;
    if (size >= 65520)
        return sign | 0x7c00;
    while (high - low > 1) {
        uint16_t middle = (uint16_t)((low + high) / 2);
        if (half_value(middle) <= size)
            low = middle;
        else
            high = middle;
    }
    double below = size - half_value(low), above = half_value(high) - size;
    return (uint16_t)(sign | (above < below || (above == below && low % 2) ? high : low));
}

/* One pixel of the result as bytes; false: it does not fit. */
static inline bool plain_convert(uint8_t *to, int64_t value, const struct view_wish *w,
                                 const struct view *view)
{
    float real = (float)value;
    uint16_t half = plain_half((double)value);
    if (w->out == VIEW_INTEGER)
        memcpy(to, &value, w->out_bytes);
    else if (w->out == VIEW_F2)
        memcpy(to, &half, sizeof(half));
    else {
        if (w->out == VIEW_ROOT)
            real = (float)sqrt(
                (double)real); /* a double has more than twice a float's digits: rounded once */
        memcpy(to, &real, sizeof(real));
    }
    return w->out == VIEW_INTEGER ? value >= view->least && value <= view->most
           : w->out == VIEW_F2    ? (half & 0x7fff) != 0x7c00
           : w->out == VIEW_ROOT  ? value >= 0
                                  : true;
}

/* What the result must be; false: something does not fit, and *to means nothing. */
static inline bool plain_view(uint8_t *to, const void *frame, const uint8_t *flags,
                              const struct view_wish *w, const struct view *view)
{
    size_t n = (size_t)w->det_y * w->det_x, n_bins = (size_t)view->bins_y * view->bins_x;
    int64_t *raw = malloc(n * sizeof(*raw)), *corrected = malloc(n * sizeof(*raw)),
            *bins = calloc(n_bins, sizeof(*bins));
    bool fits = true;
    for (size_t i = 0; i < n; i++)
        raw[i] = plain_pixel(frame, w->in, i);
    plain_correct(corrected, raw, flags, w);
    for (uint32_t y = 0; y < w->crop[2]; y++) {
        for (uint32_t x = 0; x < w->crop[3]; x++) {
            uint32_t row = y / w->bin, column = x / w->bin;
            row = row < view->bins_y ? row : view->bins_y - 1;
            column = column < view->bins_x ? column : view->bins_x - 1;
            bins[(size_t)row * view->bins_x + column] +=
                corrected[(size_t)(w->crop[0] + y) * w->det_x + w->crop[1] + x];
        }
    }
    memset(to, 0, view_bytes(view));
    for (uint32_t y = 0; y < view->bins_y; y++) {
        for (uint32_t x = 0; x < view->bins_x; x++) {
            uint32_t row = (y + view->at_y + (w->shift ? view->size_y / 2 : 0)) % view->size_y;
            uint32_t column = (x + view->at_x + (w->shift ? view->size_x / 2 : 0)) % view->size_x;
            fits &= plain_convert(to + ((size_t)row * view->size_x + column) * w->out_bytes,
                                  bins[(size_t)y * view->bins_x + x], w, view);
        }
    }
    free(raw);
    free(corrected);
    free(bins);
    return fits;
}

/* ---- a case -------------------------------------------------------------------------------------- */

/* Counts that are mostly small; some frames have one that is as large as it can be, or anything. */
static inline void fill_frame(uint8_t *frame, const struct view_wish *w, uint32_t i)
{
    static const unsigned bytes[] = {1, 2, 4, 8, 1, 2, 4};
    const size_t n = (size_t)w->det_y * w->det_x, each = bytes[w->in];
    for (size_t p = 0; p < n; p++) {
        uint64_t value = i == 3 ? view_random() : random_below(i == 2 ? 250 : 4);
        memcpy(frame + p * each, &value, each);
    }
    if (i == 1)
        memset(frame + random_below((uint32_t)n) * each, 0xff, each);
}

static inline void view_case(const struct view_bed *bed, const struct view_wish *w, bool has_flags)
{
    static const unsigned bytes[] = {1, 2, 4, 8, 1, 2, 4};
    const struct view view = view_of_wish(w);
    const size_t n = (size_t)w->det_y * w->det_x, each = n * bytes[w->in], size = view_bytes(&view);
    const size_t stride = (each + 255) / 256 * 256;
    uint8_t *frames = bed->alloc(stride * VIEW_FRAMES), *results = bed->alloc(size * VIEW_FRAMES);
    uint8_t *flags = bed->alloc(n), *want = malloc(size), *behind = malloc(16);
    int32_t *status = bed->alloc(VIEW_FRAMES * sizeof(*status));
    memcpy(behind, results + size * VIEW_FRAMES, 16);
    for (size_t p = 0; p < n; p++)
        flags[p] = random_below(n < 12 ? 2 : 9) == 0;
    for (uint32_t i = 0; i < VIEW_FRAMES; i++) {
        fill_frame(frames + i * stride, w, i);
        status[i] = STATUS_KEPT;
    }
    const struct work work = {.kind = WORK_VIEW,
                              .n = VIEW_FRAMES,
                              .view = {.src = (uintptr_t)frames,
                                       .src_stride = stride,
                                       .dst = (uintptr_t)results,
                                       .dst_stride = size,
                                       .flags = has_flags ? (uintptr_t)flags : 0,
                                       .status = (uintptr_t)status,
                                       .view = view}};
    bed->run(&work);
    for (uint32_t i = 0; i < VIEW_FRAMES; i++) {
        bool fits = plain_view(want, frames + i * stride, has_flags ? flags : NULL, w, &view);
        CHECK_MSG(
            status[i] == (fits ? STATUS_KEPT : STOW_NOFIT) &&
                (!fits || memcmp(want, results + i * size, size) == 0),
            "frame %u, status %d, of %ux%u in %u, crop %u,%u,%ux%u bin %u correction %u out %u "
            "(%u bytes) to %ux%u shifted %d",
            i, (int)status[i], w->det_y, w->det_x, w->in, w->crop[0], w->crop[1], w->crop[2],
            w->crop[3], w->bin, w->correction, w->out, w->out_bytes, view.size_y, view.size_x,
            w->shift);
    }
    CHECK(memcmp(behind, results + size * VIEW_FRAMES, 16) == 0);
    free(want);
    free(behind);
    bed->reset();
}

static inline struct view_wish plain_wish(uint32_t det_y, uint32_t det_x, uint32_t in)
{
    static const unsigned bytes[] = {1, 2, 4, 8, 1, 2, 4};
    return (struct view_wish){.det_y = det_y,
                              .det_x = det_x,
                              .in = in,
                              .crop = {0, 0, det_y, det_x},
                              .bin = 1,
                              .out_bytes = bytes[in],
                              .is_signed = in >= VIEW_I1};
}

/* ---- the cases ----------------------------------------------------------------------------------- */

/* Each option alone, on small and odd detectors. */
static inline void test_each_alone(const struct view_bed *bed)
{
    static const uint32_t sizes[][2] = {{1, 1}, {1, 7}, {9, 1}, {2, 2}, {5, 8}, {17, 33}, {64, 64}};
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        for (uint32_t in = VIEW_U1; in <= VIEW_I4; in++) {
            const struct view_wish plain = plain_wish(sizes[s][0], sizes[s][1], in);
            struct view_wish w = plain;
            view_case(bed, &w, true);
            w.shift = true;
            view_case(bed, &w, false);
            w = plain;
            w.pad_y = w.det_y + 3;
            w.pad_x = w.det_x + 8;
            view_case(bed, &w, false);
            w = plain;
            w.correction = VIEW_ZERO;
            view_case(bed, &w, true);
            if (in == VIEW_U8) /* these are only moved */
                continue;
            w.correction = VIEW_MEDIAN;
            view_case(bed, &w, true);
            for (uint32_t bin = 2; bin <= 70; bin = 2 * bin + 1) {
                w = plain;
                w.bin = bin;
                view_case(bed, &w, false);
                w.out_bytes = 4;
                view_case(bed, &w, false);
            }
            for (uint32_t out = VIEW_F2; out <= VIEW_ROOT; out++) {
                w = plain;
                w.out = out;
                w.out_bytes = out == VIEW_F2 ? 2 : 4;
                view_case(bed, &w, false);
            }
        }
    }
}

/* Every count of 17 bits as f2 and f4 and its root; larger ones about where rounding begins and ends. */
static inline void test_reals(const struct view_bed *bed)
{
    for (uint32_t out = VIEW_F2; out <= VIEW_ROOT; out++) {
        struct view_wish w = plain_wish(1, 1, VIEW_U4);
        w.out = out;
        w.out_bytes = out == VIEW_F2 ? 2 : 4;
        const struct view view = view_of_wish(&w);
        const uint32_t n = (1u << 17) + 4096;
        uint32_t *counts = bed->alloc(n * 4ull);
        uint8_t *results = bed->alloc(n * (size_t)w.out_bytes), want[4];
        int32_t *status = bed->alloc(n * sizeof(*status));
        memset(status, 0, n * sizeof(*status));
        for (uint32_t i = 0; i < n; i++)
            counts[i] = i < 1u << 17 ? i
                        : i % 2      ? (1u << 24) + i / 2 % 512
                                     : UINT32_MAX - i / 2 % 512;
        const struct work work = {.kind = WORK_VIEW,
                                  .n = n,
                                  .view = {.src = (uintptr_t)counts,
                                           .src_stride = 4,
                                           .dst = (uintptr_t)results,
                                           .dst_stride = w.out_bytes,
                                           .status = (uintptr_t)status,
                                           .view = view}};
        bed->run(&work);
        size_t wrong = 0, n_fit = 0;
        for (uint32_t i = 0; i < n; i++) {
            bool fits = plain_convert(want, counts[i], &w, &view);
            n_fit += fits;
            wrong += status[i] != (fits ? 0 : STOW_NOFIT) ||
                     (fits && memcmp(want, results + (size_t)i * w.out_bytes, w.out_bytes) != 0);
        }
        CHECK_INT(wrong, 0);
        CHECK_INT(n_fit, out == VIEW_F2 ? 65520 : n);
        bed->reset();
    }
}

static inline struct view_wish random_wish(uint32_t most)
{
    struct view_wish w =
        plain_wish(1 + random_below(most), 1 + random_below(most), random_below(7));
    w.correction = random_below(w.in == VIEW_U8 ? 2 : 3);
    if (random_below(2)) {
        w.crop[0] = random_below(w.det_y);
        w.crop[1] = random_below(w.det_x);
        w.crop[2] = 1 + random_below(w.det_y - w.crop[0]);
        w.crop[3] = 1 + random_below(w.det_x - w.crop[1]);
    }
    if (w.in != VIEW_U8 && random_below(2))
        w.bin = 1 + random_below(random_below(2) ? 5 : 2 * most);
    if (w.in != VIEW_U8) {
        w.out = random_below(4);
        w.out_bytes = w.out == VIEW_F2 ? 2 : w.out == VIEW_INTEGER ? 1u << random_below(3) : 4;
        w.is_signed = random_below(2);
    }
    if (random_below(2)) {
        const struct view view = view_of_wish(&w);
        w.pad_y = view.bins_y + random_below(9);
        w.pad_x = view.bins_x + random_below(9);
    }
    w.shift = random_below(2);
    return w;
}

static inline void test_random_views(const struct view_bed *bed, unsigned n, uint32_t most)
{
    for (unsigned i = 0; i < n; i++) {
        const struct view_wish w = random_wish(most);
        view_case(bed, &w, random_below(4) != 0);
    }
}

/* Rows longer than what is summed at a time. */
static inline void test_long_rows(const struct view_bed *bed)
{
    for (uint32_t i = 0; i < 12; i++) {
        struct view_wish w = plain_wish(3, 1500 + i, i % 3);
        w.correction = i % 3;
        w.bin = 1 + i % 4;
        w.out_bytes = 4;
        w.is_signed = i % 2;
        w.shift = i % 5 == 0;
        w.pad_y = i % 2 ? 7 : 0;
        w.pad_x = i % 2 ? 2000 : 0;
        view_case(bed, &w, true);
    }
}

#endif
