/* SPDX-License-Identifier: Apache-2.0
 *
 * counts_classes: how bins of granules become classes. Any run of bins can be priced as one class of any kind, from
 * the entropy of what its bins have together, the patches for what it cannot say, and a little for the time that
 * each symbol takes; the cheapest way to cut all bins into at most 8 classes is found by dynamic programming.
 * Kinds follow each other from dim to bright, four pixels a symbol first, wide ones last. */
#include "counts_train.h"

#include <string.h>

#define SYMBOL_PRICE (BIT / 25) /* .04 bit; twice that in wide classes */
#define PATCH_BITS 32u          /* of a word of a patch */

/* ---- prices --------------------------------------------------------------------------------------- */

struct pricing {
    const struct histogram *bins;
    uint32_t n_bins, elem_bytes;
    const struct logarithms *logs;
    uint32_t n_steps; /* of value steps those up to the largest value that there is */
    struct histogram merged;
    uint64_t price[N_KINDS][BINS][BINS]; /* of bins from .. until as one class of that kind */
};

void histogram_add(struct histogram *to, const struct histogram *from, uint32_t n_steps)
{
    for (uint32_t i = 0; i < 256; i++) {
        to->fours[i] += from->fours[i];
        to->pairs[i] += from->pairs[i];
    }
    for (uint32_t i = 0; i < n_steps; i++)
        to->values[i] += from->values[i];
}

/* n symbols' entropy: n log n, less c log c of each count. */
static uint64_t entropy(const struct logarithms *logs, const uint32_t *counts, uint32_t n_counts)
{
    uint64_t bits = 0, n = 0;
    for (uint32_t i = 0; i < n_counts; i++)
        if (counts[i]) {
            n += counts[i];
            bits += (uint64_t)counts[i] * log2_of(logs, counts[i]);
        }
    return n ? n * log2_of(logs, (uint32_t)n) - bits : 0;
}

/* Bits that say where in its step a value is. */
static uint64_t raw_bits(const uint32_t *values, uint32_t n_steps)
{
    uint64_t bits = 0;
    for (uint32_t i = EXACT; i < n_steps; i++)
        bits += (uint64_t)values[i] * (8 + ((i - EXACT) >> STEP_BITS) - STEP_BITS);
    return bits * BIT;
}

/* The first value of a step; of STEPS: one past the largest. */
static uint64_t step_value(uint32_t step)
{
    if (step < EXACT)
        return step;
    uint32_t power = 8 + ((step - EXACT) >> STEP_BITS);
    uint32_t part = (step - EXACT) & ((1u << STEP_BITS) - 1);
    return (uint64_t)((1u << STEP_BITS) + part) << (power - STEP_BITS);
}

/* Base and shift so that at most `tail` values at either end are not within 256 symbols, and nothing that can be said
 * is beyond the element type. *outside: how many are not. */
static struct counts_class fit_range(uint64_t *outside, const uint32_t *values, uint32_t n_steps,
                                     uint64_t tail, uint32_t elem_bytes)
{
    uint64_t below = 0, above = 0;
    uint32_t low = 0, high = n_steps - 1, shift = 0;
    while (low < high && below + values[low] <= tail)
        below += values[low++];
    while (high > low && above + values[high] <= tail)
        above += values[high--];
    uint64_t base = step_value(low), end = step_value(high + 1), all = 1ull << 8 * elem_bytes;
    while (shift < COUNTS_MAX_SHIFT && base + (256ull << shift) < end)
        shift++;
    for (; high > low && step_value(high) >= base + (256ull << shift); high--)
        above += values[high];
    if (base + (256ull << shift) > all)
        base = all - (256ull << shift);
    *outside = below + above;
    return (struct counts_class){(uint32_t)base, shift};
}

/* The best range for n values that need `bits` at least: at most so many are left out as patches pay for. A value
 * takes `shift` bits at least, which is dear where a few far ones stretch the range. */
static uint64_t price_wide(struct counts_class *best, const uint32_t *values, uint32_t n_steps,
                           uint64_t n, uint64_t bits, uint32_t elem_bytes)
{
    static const uint32_t tails[] = {4096, 64, 8};
    uint64_t patch = (uint64_t)counts_patch_words(elem_bytes) * PATCH_BITS * BIT;
    uint64_t best_price = UINT64_MAX;
    for (uint32_t i = 0; i < sizeof(tails) / sizeof(*tails); i++) {
        uint64_t outside;
        struct counts_class class_ = fit_range(&outside, values, n_steps, n / tails[i], elem_bytes);
        uint64_t price = n * class_.shift * BIT;
        price = (price > bits ? price : bits) + outside * patch;
        if (price < best_price) {
            best_price = price;
            *best = class_;
        }
    }
    return best_price;
}

struct counts_class fit_wide(const uint32_t values[STEPS], const struct logarithms *logs,
                             uint32_t elem_bytes)
{
    struct counts_class best;
    uint64_t bits = entropy(logs, values, STEPS) + raw_bits(values, STEPS);
    price_wide(&best, values, STEPS, sum_counts(values, STEPS), bits, elem_bytes);
    return best;
}

/* The price of symbols that leave `over` of n pixels to patches. Where these are many the kind is out of the question,
 * and the entropy of its symbols is not looked at: it is at most that of the values. */
static uint64_t price_joint(const struct pricing *pricing, const uint32_t symbols[256], uint64_t n,
                            uint64_t over, uint64_t values, uint32_t pixels)
{
    uint64_t patch = (uint64_t)counts_patch_words(pricing->elem_bytes) * PATCH_BITS * BIT;
    uint64_t bits = over > n / 8 ? values : entropy(pricing->logs, symbols, 256);
    return bits + n / pixels * SYMBOL_PRICE + over * patch;
}

/* Prices of the bins from .. until together. */
static void price_run(struct pricing *pricing, uint32_t from, uint32_t until)
{
    const struct histogram *h = &pricing->merged;
    uint32_t n_steps = pricing->n_steps;
    uint64_t(*price)[BINS][BINS] = pricing->price;
    uint64_t at_most_3 = sum_counts(h->values, 4), at_most_15 = sum_counts(h->values, 16);
    uint64_t at_most_255 = sum_counts(h->values, EXACT);
    uint64_t n = at_most_255 + sum_counts(h->values + EXACT, n_steps - EXACT);
    uint64_t values = entropy(pricing->logs, h->values, n_steps);
    price[FOURS][from][until] = price_joint(pricing, h->fours, n, n - at_most_3, values, 4);
    price[PAIRS][from][until] = price_joint(pricing, h->pairs, n, n - at_most_15, values, 2);
    price[SINGLES][from][until] = price_joint(pricing, h->values, n, n - at_most_255, values, 1);
    struct counts_class range;
    price[WIDE][from][until] = UINT64_MAX / 2;
    if (pricing->elem_bytes > 1 && n_steps > EXACT)
        price[WIDE][from][until] =
            n * 2 * SYMBOL_PRICE + price_wide(&range, h->values, n_steps, n,
                                              values + raw_bits(h->values, n_steps),
                                              pricing->elem_bytes);
}

static void price_runs(struct pricing *pricing)
{
    for (uint32_t from = 0; from < pricing->n_bins; from++) {
        memset(&pricing->merged, 0, sizeof(pricing->merged));
        for (uint32_t until = from; until < pricing->n_bins; until++) {
            histogram_add(&pricing->merged, &pricing->bins[until], pricing->n_steps);
            price_run(pricing, from, until);
        }
    }
}

/* ---- classes -------------------------------------------------------------------------------------- */

/* The cheapest way to have bins 0 .. until in so many classes of which the last is of this kind: what it costs, where
 * its last class begins, and the kind of the one before. */
struct cut {
    uint64_t price;
    uint32_t from;
    enum kind before;
};

static void cut_at(struct cut *best, const struct pricing *pricing, struct cut (*fewer)[BINS],
                   enum kind kind, uint32_t until)
{
    *best = (struct cut){.price = UINT64_MAX};
    for (uint32_t from = 1; from <= until; from++)
        for (uint32_t before = 0; before <= (uint32_t)kind; before++) {
            uint64_t price = fewer[before][from - 1].price;
            if (price >= UINT64_MAX / 2)
                continue;
            price += pricing->price[kind][from][until];
            if (price < best->price)
                *best = (struct cut){price, from, (enum kind)before};
        }
}

static uint32_t count_steps(const struct histogram *bins, uint32_t n_bins)
{
    uint32_t n_steps = EXACT;
    for (uint32_t b = 0; b < n_bins; b++)
        for (uint32_t i = n_steps; i < STEPS; i++)
            if (bins[b].values[i])
                n_steps = i + 1;
    return n_steps;
}

/* The cheapest cut with so many classes for each number of them, each last kind, and each last bin. */
static void find_cuts(struct cut (*cuts)[N_KINDS][BINS], const struct pricing *pricing)
{
    for (uint32_t n = 0; n < COUNTS_CLASSES; n++)
        for (uint32_t k = 0; k < N_KINDS; k++)
            for (uint32_t until = 0; until < pricing->n_bins; until++)
                if (n == 0)
                    cuts[n][k][until] = (struct cut){.price = pricing->price[k][0][until]};
                else
                    cut_at(&cuts[n][k][until], pricing, cuts[n - 1], (enum kind)k, until);
}

uint32_t choose_classes(enum kind kinds[COUNTS_CLASSES], uint32_t first_bins[COUNTS_CLASSES],
                        const struct histogram *bins, uint32_t n_bins,
                        const struct logarithms *logs, uint32_t elem_bytes)
{
    struct pricing pricing = {.bins = bins,
                              .n_bins = n_bins,
                              .elem_bytes = elem_bytes,
                              .logs = logs,
                              .n_steps = count_steps(bins, n_bins)};
    struct cut cuts[COUNTS_CLASSES][N_KINDS][BINS];
    uint32_t last = n_bins - 1, n_classes = 0;
    enum kind kind = FOURS;
    price_runs(&pricing);
    find_cuts(cuts, &pricing);
    for (uint32_t n = 0; n < COUNTS_CLASSES; n++)
        for (uint32_t k = 0; k < N_KINDS; k++)
            if (n_classes == 0 || cuts[n][k][last].price < cuts[n_classes - 1][kind][last].price) {
                n_classes = n + 1;
                kind = (enum kind)k;
            }
    for (uint32_t n = n_classes; n-- > 0;) {
        struct cut cut = cuts[n][kind][last];
        kinds[n] = kind;
        first_bins[n] = cut.from;
        last = cut.from - 1;
        kind = cut.before;
    }
    return n_classes;
}
