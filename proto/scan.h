/* SPDX-License-Identifier: Apache-2.0
 *
 * scan: which frame belongs to which position of a scan. Both ends compute it alike, and nothing is copied for it:
 *
 *     frame(y, x) = offset + y * (width + skip) + x
 *
 * offset frames come before the scan, skip frames after each line (flyback), the last line's perhaps not. Frames grow with
 * positions, so that where an acquisition ends early, the positions without a frame are the last ones. */
#ifndef STOW_SCAN_H
#define STOW_SCAN_H

#include <stdbool.h>
#include <stdint.h>

struct scan {
    uint64_t height, width; /* positions; 0, 0: a flat list of frames */
    uint64_t skip, offset;
};

/* It has positions, and all numbers that are made from it stay below 2^63. The others want one that is sound. */
bool scan_sound(const struct scan *scan);

uint64_t scan_frame(const struct scan *scan, uint64_t y, uint64_t x);

/* The first frame behind the last position. */
uint64_t scan_end(const struct scan *scan);

/* How many positions have a frame, the first ones, of an acquisition of n_frames. */
uint64_t scan_acquired(const struct scan *scan, uint64_t n_frames);

#endif
