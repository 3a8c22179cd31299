/* SPDX-License-Identifier: Apache-2.0
 *
 * view: what is done to a decoded frame before a consumer sees it, in plain numbers. In this order, whatever was
 * asked for, each step optional:
 *
 *   1. mask correction  of the whole detector's frame, since a bad pixel's neighbours may lie outside of a crop
 *   2. crop             before binning, so that bins begin where the consumer said
 *   3. bin              sums of counts, exact in integers
 *   4. dtype, or root   of the sums: intensities add, amplitudes do not
 *   5. pad              with zeros, which are no counts and not corrected
 *   6. fftshift         of what a Fourier transform is to take, so after padding
 *
 * Counts and sums are whole numbers (int64 holds any, which who makes a view has checked). One that the result's type
 * does not hold makes the frame STOW_NOFIT: nothing is clipped or wrapped. f4 and f2 are rounded to nearest, ties to
 * even; only what would become infinite does not fit. A root is that of the count as f4, rounded once more.
 *
 * Pixels of 8 bytes and floating ones are moved as they are (VIEW_BITS): their view has no bins, no median and no
 * other type, and who makes it sees to that.
 *
 * The functions marked HD are the arithmetic, one text for the CPU and the GPU. */
#ifndef STOW_VIEW_H
#define STOW_VIEW_H

#include "frame.h"
#include "hd.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum view_correction { VIEW_AS_IT_IS, VIEW_ZERO, VIEW_MEDIAN }; /* values as MaskCorrection */
enum view_in { VIEW_U1, VIEW_U2, VIEW_U4, VIEW_U8, VIEW_I1, VIEW_I2, VIEW_I4 };
enum view_out { VIEW_INTEGER, VIEW_F2, VIEW_F4, VIEW_ROOT };

struct view {
    uint32_t det_y, det_x;
    uint32_t in;                             /* enum view_in; VIEW_U8 for any 8 bytes */
    uint32_t correction;                     /* enum view_correction */
    uint32_t crop_y, crop_x, crop_h, crop_w; /* what of the detector is taken */
    uint32_t bin;            /* rows and columns of a bin; what is left over belongs to the last */
    uint32_t bins_y, bins_x; /* at least 1 */
    uint32_t out, out_bytes; /* enum view_out, and bytes of a pixel */
    int64_t least, most;     /* that an integer result holds */
    uint32_t size_y, size_x; /* of the result */
    uint32_t at_y, at_x;     /* where in it the bins begin, before it is shifted */
    uint32_t shift_y, shift_x; /* it is rolled down and to the right by so much */
};

HD uint64_t view_bytes(const struct view *view)
{
    return (uint64_t)view->size_y * view->size_x * view->out_bytes;
}

HD uint32_t view_in_bytes(uint32_t in)
{
    return in == VIEW_U8                    ? 8
           : in == VIEW_U4 || in == VIEW_I4 ? 4
           : in == VIEW_U2 || in == VIEW_I2 ? 2
                                            : 1;
}

/* Pixel `at` of a frame; of 8 bytes its bits. */
HD int64_t view_pixel(const void *frame, uint32_t in, uint64_t at)
{
    switch (in) {
    case VIEW_U1: return ((const uint8_t *)frame)[at];
    case VIEW_U2: return ((const uint16_t *)frame)[at];
    case VIEW_U4: return ((const uint32_t *)frame)[at];
    case VIEW_I1: return ((const int8_t *)frame)[at];
    case VIEW_I2: return ((const int16_t *)frame)[at];
    case VIEW_I4: return ((const int32_t *)frame)[at];
    default: return ((const int64_t *)frame)[at];
    }
}

/* How many rows or columns bin i has, of n bins over `length` pixels. */
HD uint32_t view_bin_length(uint32_t i, uint32_t n, uint32_t bin, uint32_t length)
{
    return i + 1 < n ? bin : length - i * bin;
}

/* Lower median of n values, 1 to 8; they are sorted. */
HD int64_t view_median(int64_t *values, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        int64_t value = values[i];
        uint32_t k = i;
        for (; k > 0 && values[k - 1] > value; k--)
            values[k] = values[k - 1];
        values[k] = value;
    }
    return values[(n - 1) / 2];
}

/* What a flagged pixel becomes. Of its 8 neighbours those count that lie on the detector and are not flagged; with none
 * it stays as it is. */
HD int64_t view_corrected(const struct view *view, uint32_t in, const void *frame,
                          const uint8_t *flags, uint32_t y, uint32_t x)
{
    int64_t values[8];
    uint32_t n = 0, row, column;
    if (view->correction == VIEW_ZERO)
        return 0;
    for (row = y ? y - 1 : 0; row <= y + 1 && row < view->det_y; row++) {
        for (column = x ? x - 1 : 0; column <= x + 1 && column < view->det_x; column++) {
            uint64_t at = (uint64_t)row * view->det_x + column;
            if (!flags[at])
                values[n++] = view_pixel(frame, in, at);
        }
    }
    return n ? view_median(values, n) : view_pixel(frame, in, (uint64_t)y * view->det_x + x);
}

/* A whole number as f2, n up to 65,519 in size: larger ones become infinite, 0x7c00 or more without the sign. */
HD uint16_t view_half(int64_t n)
{
    const float size = (float)(n < 0 ? -n : n); /* exact where it matters */
    uint32_t bits;
    memcpy(&bits, &size, sizeof(bits));
    if (bits == 0)
        return 0;
    if (size > 65519.0f)
        return (uint16_t)(n < 0 ? 0xfc00 : 0x7c00);
    bits += 0xfff + (bits >> 13 & 1); /* to nearest, ties to even; whole numbers are normal in f2 */
    return (uint16_t)((n < 0 ? 0x8000 : 0) | ((bits >> 13) - (112u << 10)));
}

#ifdef __CUDA_ARCH__
#define VIEW_SQRT __fsqrt_rn
#else
#define VIEW_SQRT sqrtf
#endif

/* The result of a sum, in its low out_bytes bytes; false: it does not fit. */
HD bool view_convert(uint64_t *bits, const struct view *view, int64_t sum)
{
    float real;
    uint32_t real_bits;
    *bits = (uint64_t)sum;
    if (view->out == VIEW_INTEGER)
        return sum >= view->least && sum <= view->most;
    if (view->out == VIEW_F2) {
        *bits = view_half(sum);
        return (*bits & 0x7fff) < 0x7c00;
    }
    real = (float)sum;
    if (view->out == VIEW_ROOT) {
        if (sum < 0)
            return false;
        real = VIEW_SQRT(real);
    }
    memcpy(&real_bits, &real, sizeof(real_bits));
    *bits = real_bits;
    return true;
}

/* Frames of one view, decoded: item i lies at src + i * src_stride. */
struct view_work {
    uint64_t src, src_stride;
    uint64_t dst, dst_stride; /* where the results go; whole pixels */
    uint64_t flags;           /* uint8 [det_y][det_x], not 0: to be corrected; 0: there are none */
    uint64_t
        status; /* int32 [n], 0 on entry: STOW_NOFIT where something does not fit, and no other is written */
    struct view view;
};

/* Item i on the CPU. Any thread. */
void view_frame(const struct view_work *work, uint64_t i);

#endif
