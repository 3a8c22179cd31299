/* SPDX-License-Identifier: Apache-2.0
 *
 * sums: what is added up over pixels and over frames, without a decoded copy of anything.
 *
 * Weighted sums: for each frame and each mask, the sum of weight * count over the detector. Weights are
 * given in raster order; for frames of form counts they are first brought into the order of each segment's streams
 * (sums_weigh), with nothing at its constants, whose part is one number for all frames of the segment. Integer
 * weights give exact int64 sums (who asks has made sure that they cannot overflow); float64 weights are
 * added in double, in a fixed order on each device. On a GPU a patched pixel goes through what was decoded, so that
 * rounding there is as of that.
 *
 * Statistics: of each frame its total, moments and maximum, and of each pixel its sum over frames; these run over
 * decoded frames while a load has them in hand.
 *
 * Sums are 64 bits, whatever they mean: of unsigned pixels uint64, of signed ones int64, both modulo 2^64, of floats
 * double. Where a pixel is a float, NaN and infinities go through as IEEE 754 says, and a pixel whose weight is 0, or
 * that is flagged, is left out whatever it is (NaN times 0 is NaN). Sums of a float pixel over frames are in double,
 * frame after frame as they stand in the list: the same bits on each device, however a list is cut into works. */
#ifndef STOW_SUMS_H
#define STOW_SUMS_H

#include "counts.h"

#define SUMS_MAX_MASKS 8u /* at once */

enum weight_kind { WEIGHT_U8, WEIGHT_I32, WEIGHT_F64 };

HD uint32_t weight_bytes(enum weight_kind kind)
{
    return kind == WEIGHT_U8 ? 1 : kind == WEIGHT_I32 ? 4 : 8;
}

/* Weights in stream order, as sums_weigh writes them: int64 or double [SUMS_MAX_MASKS], the constants' part of each
 * mask; then for each mask weights [n_granules][32][8]: of a lane its first unit's 4 pixels, then its second's. */
#define SUMS_WEIGHED_HEAD (SUMS_MAX_MASKS * 8u)
HD uint64_t sums_weighed_bytes(uint32_t n_granules, uint32_t n_masks, enum weight_kind kind)
{
    return SUMS_WEIGHED_HEAD +
           (uint64_t)n_granules * COUNTS_GRANULE_PIXELS * n_masks * weight_bytes(kind);
}

/* A frame to be summed.
 *   STOW_FORM_COUNTS  src, src_bytes: the encoded frame; segment: its table; weighed: the weights in its order,
 *                     16-byte aligned, one for all jobs of the segment
 *   STOW_FORM_RAW     src: the pixels, aligned to elem_bytes
 *   STOW_FORM_FILL    every pixel is shape.fill
 * Pixels that are no counts (shape_is_counts) have no form counts, and floats no weights but float64. */
struct sum_job {
    uint64_t src, segment, weighed;
    uint32_t src_bytes;
    uint32_t form;
};

/* Of one frame. `all` counts every pixel, the others leave out flagged ones. Moments: sums of row * count and of
 * column * count. Exact while max * n_elems * max(det_y, det_x) is below 2^63, which who uses them checks.
 * max: the largest pixel, or magnitude of a signed one; of floats 0.
 *
 * Sums of floats are the same bits on each device, since .stow files keep them: pixel i, or its product, goes to part i
 * modulo sums_parts, in the order of pixels, without the flagged ones; each 32 parts are folded, the upper half to the
 * lower one until there is one; and these are folded likewise, as 32 with zeros behind. What is no number becomes
 * the same one (0x7ff8000000000000), here and in sums_add. */
struct frame_stats {
    uint64_t total, moment_y, moment_x;
    uint64_t all_total, all_moment_y, all_moment_x;
    uint64_t max, all_max;
};

/* A product and its sum are two statements wherever this counts, which no compiler fuses into one rounding. */
#define SUMS_MAX_PARTS 1024u
HD uint32_t sums_parts(const struct frame_shape *shape)
{
    return frame_bytes(shape) >= 1u << 20 ? SUMS_MAX_PARTS : 256;
}

/* The CPU's versions, one item each. Addresses are pointers' values.
 *   weights  [n_masks][n_elems] of weight_kind, raster order */
void sums_weigh(void *weighed, const struct counts_segment *segment, const void *weights,
                uint32_t n_masks, enum weight_kind kind, const struct frame_shape *shape);

/* out: int64 or double, mask m at out[m * stride]. 0, STOW_CORRUPT, or STOW_NOMEM. */
int sums_frame(void *out, uint64_t stride, const struct sum_job *job, const void *weights,
               uint32_t n_masks, enum weight_kind kind, const struct frame_shape *shape);

/* flags: uint8 [n_elems], not 0: flagged; NULL: none. */
void sums_stats(struct frame_stats *stats, const void *pixels, const uint8_t *flags, uint64_t det_x,
                const struct frame_shape *shape);

/* Add frames [n] (pointers' values) to sums [n_elems], pixels first .. first + count - 1 only. */
void sums_pixels(uint64_t *sums, const uint64_t *frames, uint64_t n, uint64_t first, uint64_t count,
                 const struct frame_shape *shape);

/* Sums of pixels to sums of pixels [n_elems]. */
void sums_add(uint64_t *to, const uint64_t *from, const struct frame_shape *shape);
/* n frames that have the fill value everywhere to sums of pixels [n_elems]. */
void sums_add_fill(uint64_t *sums, uint64_t n, const struct frame_shape *shape);

#endif
