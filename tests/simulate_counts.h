/* SPDX-License-Identifier: Apache-2.0
 *
 * simulate_counts: the counts of a made-up 4D-STEM acquisition.
 *
 * A pattern (a soft-edged bright-field disk off centre, six Bragg disks, a diffuse dark field) moves and
 * brightens slowly over the scan; each pixel has its own gain (3 % spread). Counts are Poisson draws about
 * that mean. A few pixels are flagged and always read the largest value of the dtype; a few are hot. Both
 * are 24 and 6 on a detector of 192 x 192, fewer on a smaller one.
 *
 * Means are held as classes: whole steps of 1/128 in their logarithm, so that pattern, gain and brightness
 * are added as integers; every class has an alias table, so that a draw is one look-up and one comparison.
 * Random bits come from a counter (seed, frame, pixel): a frame is the same whoever makes it, and when.
 *
 * counts_new is one thread's; counts_frame any number of threads' at once. */
#ifndef STOW_SIMULATE_COUNTS_H
#define STOW_SIMULATE_COUNTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct counts;

struct counts_options {
    size_t scan_y, scan_x, det_y, det_x;
    size_t elem_bytes; /* 1, 2, 4: counts stay one below its largest value, which means flagged */
    bool thick;        /* more diffuse and Bragg scattering */
    double dose;       /* mean counts a pixel over the whole detector: 0.001 to 100,000 */
    uint64_t seed;
};

/* NULL: out of memory. */
struct counts *counts_new(const struct counts_options *options);
void counts_free(struct counts *counts);

/* Make one frame: det_y * det_x elements of elem_bytes into dst. scratch: as many uint32. */
void counts_frame(const struct counts *counts, uint64_t frame, void *dst, uint32_t *scratch);

/* What the counts of a frame are drawn about, flagged and hot pixels aside: det_y * det_x means. */
void counts_means(const struct counts *counts, uint64_t frame, double *means);

/* Indices of the flagged pixels, ascending. */
const uint32_t *counts_flagged(const struct counts *counts, size_t *n);

#endif
