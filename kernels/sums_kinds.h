/* SPDX-License-Identifier: Apache-2.0
 *
 * sums_kinds: what sums.h tells, on the CPU, of pixels that are no counts: signed, of 64 bits, floats. For sums.c. */
#ifndef STOW_SUMS_KINDS_H
#define STOW_SUMS_KINDS_H

#include "sums.h"

/* As sums_frame; forms raw and fill. */
int kinds_frame(void *out, uint64_t stride, const struct sum_job *job, const void *weights,
                uint32_t n_masks, enum weight_kind kind, const struct frame_shape *shape);

/* As sums_stats and sums_pixels. */
void kinds_stats(struct frame_stats *stats, const void *pixels, const uint8_t *flags,
                 uint64_t det_x, const struct frame_shape *shape);
void kinds_pixels(uint64_t *sums, const uint64_t *frames, uint64_t n, uint64_t first,
                  uint64_t count, const struct frame_shape *shape);

#endif
