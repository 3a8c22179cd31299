/* SPDX-License-Identifier: Apache-2.0
 *
 * rings: of each frame the counts in rings one pixel wide about a centre, added up from the innermost one outwards. The
 * counts between two radii are then one number minus another, whatever the radii.
 *
 * Which pixel is in which ring is a map that the caller draws; a pixel in no ring is in ring n_rings of it, which is
 * in no sum. Runs over decoded frames, like the statistics of sums.h. */
#ifndef STOW_RINGS_H
#define STOW_RINGS_H

#include "frame.h"

#include <stdbool.h>

#define RINGS_MAX 6000u /* so that 64-bit sums of all fit a thread block's 48 KiB */

/* One frame on the CPU.
 *   out     uint32, or uint64 if wide: rings 0 to k together at out[k * stride]. Not wide: who asks has made sure that
 *           no sum reaches 2^32
 *   pixels  uint8, uint16 or uint32
 *   map     [n_elems] the ring of each pixel, at most n_rings */
void rings_frame(void *out, uint64_t stride, bool wide, const void *pixels, const uint16_t *map,
                 uint32_t n_rings, const struct frame_shape *shape);

#endif
