/* SPDX-License-Identifier: Apache-2.0
 *
 * counts_train: what the parts of training share. counts_train.c counts the sample and makes the model,
 * counts_classes.c finds the classes, counts_states.c gives states to symbols. */
#ifndef STOW_COUNTS_TRAIN_H
#define STOW_COUNTS_TRAIN_H

#include "counts_model.h"

#define BIT 65536u /* the price of one */

/* Values by size: exact up to 255, then 64 steps in each power of two. */
#define EXACT 256u
#define STEP_BITS 6u
#define STEPS (EXACT + (24u << STEP_BITS))

/* How often each symbol comes in a bin, or in a run of bins.
 * While the sample is counted: a unit that fours can say is only in fours; of others, a pair that pairs can say is
 * only in pairs; pixels of other pairs are in values; and over_... has what fours and pairs would clamp. */
struct histogram {
    uint32_t fours[256], pairs[256];
    uint32_t values[STEPS];
    uint32_t over_fours[256], over_pairs[256];
};

static inline uint64_t sum_counts(const uint32_t *counts, uint32_t n)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += counts[i];
    return sum;
}

/* Add what is complete of a histogram, its first n_steps values. */
void histogram_add(struct histogram *to, const struct histogram *from, uint32_t n_steps);

/* ---- logarithms ----------------------------------------------------------------------------------- */

struct logarithms {
    uint32_t at[257]; /* of 1 + i / 256, times BIT */
};

void make_logarithms(struct logarithms *logs);

static inline uint32_t log2_of(const struct logarithms *logs, uint32_t x)
{
    uint32_t whole = 31 - (uint32_t)__builtin_clz(x), top = x << (31 - whole);
    uint32_t i = top >> 23 & 255, rest = top & 0x7fffff;
    uint64_t step = logs->at[i + 1] - logs->at[i];
    return whole * BIT + logs->at[i] + (uint32_t)(step * rest >> 23);
}

/* ---- classes -------------------------------------------------------------------------------------- */

#define BINS 32u

enum kind { FOURS, PAIRS, SINGLES, WIDE, N_KINDS };

/* Bins [n_bins, 1 to BINS] of complete histograms, dim to bright, cut into classes at the least price: the kind of
 * each and its first bin. Returns how many. */
uint32_t choose_classes(enum kind kinds[COUNTS_CLASSES], uint32_t first_bins[COUNTS_CLASSES],
                        const struct histogram *bins, uint32_t n_bins,
                        const struct logarithms *logs, uint32_t elem_bytes);

/* Base and shift of a wide class for such values. */
struct counts_class fit_wide(const uint32_t values[STEPS], const struct logarithms *logs,
                             uint32_t elem_bytes);

/* ---- states --------------------------------------------------------------------------------------- */

/* Share the states of a class among its symbols, as often as they were found; n_bits: of a pixel's field. */
void share_states(uint16_t freq[256], uint8_t coded[256], const uint64_t found[256],
                  const struct logarithms *logs, uint32_t n_bits, uint32_t elem_bytes);

#endif
