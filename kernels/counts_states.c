/* SPDX-License-Identifier: Apache-2.0
 *
 * counts_states: how the 2,048 states of a class are shared among its symbols: in proportion to how often they come.
 * Symbols that would deserve much less than one state get none: another symbol and patches stand for them, which is
 * dearer for those few and cheaper for all others. */
#include "counts_train.h"

#define RARE_STATES 7u /* in 1/100: a symbol that deserves less is not coded */

/* ---- logarithms ----------------------------------------------------------------------------------- */

/* Bit by bit: squaring doubles the logarithm. */
void make_logarithms(struct logarithms *logs)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint64_t x = (uint64_t)(256 + i) << 23; /* 1 is 1 << 31 */
        uint32_t log = 0;
        for (uint32_t bit = BIT / 2; bit; bit /= 2) {
            x = x * x >> 31;
            if (x >> 32) {
                x >>= 1;
                log |= bit;
            }
        }
        logs->at[i] = log;
    }
    logs->at[256] = BIT;
}

/* ---- states --------------------------------------------------------------------------------------- */

/* Pixels in which two symbols differ: patches that one needs in the other's stead. */
static uint32_t n_different(uint32_t a, uint32_t b, uint32_t n_bits)
{
    uint32_t x = a ^ b;
    if (n_bits == 8)
        return x != 0;
    if (n_bits == 4)
        return (x & 15) != 0 ? 1 + (x > 15) : x > 15;
    return (uint32_t)__builtin_popcount((x | x >> 1) & 0x55);
}

/* The symbol that stands for each: itself, or the one that needs fewest patches, of those the most frequent. Moves the
 * counts there. */
static void choose_coded(uint8_t coded[256], uint64_t counts[256], uint64_t total, uint32_t n_bits,
                         uint32_t patch_words)
{
    bool kept[256];
    uint64_t was[256];
    uint32_t most = 0;
    for (uint32_t i = 0; i < 256; i++) {
        was[i] = counts[i];
        kept[i] = counts[i] * COUNTS_STATES * 100 * patch_words > total * RARE_STATES;
        most = counts[i] > counts[most] ? i : most;
    }
    kept[most] = true;
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t best = kept[i] ? i : most, patches = n_different(i, best, n_bits);
        for (uint32_t k = 0; patches > 1 && k < 256; k++) {
            uint32_t needs = kept[k] ? n_different(i, k, n_bits) : UINT32_MAX;
            if (needs < patches || (needs == patches && was[k] > was[best])) {
                best = k;
                patches = needs;
            }
        }
        coded[i] = (uint8_t)best;
        if (best != i) {
            counts[best] += counts[i];
            counts[i] = 0;
        }
    }
}

/* What it costs to have one state fewer, or saves to have one more: count * log2((f + 1) / f). */
static uint64_t state_worth(const struct logarithms *logs, uint64_t count, uint32_t f)
{
    return count * (log2_of(logs, f + 1) - log2_of(logs, f));
}

/* Share 2,048 states in proportion, one at least to each symbol that is coded; what rounding leaves over goes, or is
 * taken, where it matters most, or least. */
static void share(uint16_t freq[256], const uint64_t counts[256], const uint8_t coded[256],
                  uint64_t total, const struct logarithms *logs)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < 256; i++) {
        uint64_t f = coded[i] == i ? (counts[i] * COUNTS_STATES + total / 2) / total : 0;
        freq[i] = (uint16_t)(coded[i] == i && f == 0 ? 1 : f);
        sum += freq[i];
    }
    while (sum != COUNTS_STATES) {
        bool more = sum < COUNTS_STATES;
        uint32_t best = 256;
        uint64_t best_worth = 0;
        for (uint32_t i = 0; i < 256; i++) {
            if (freq[i] < (more ? 1 : 2))
                continue;
            uint64_t worth = state_worth(logs, counts[i], freq[i] - (more ? 0 : 1));
            if (best == 256 || (more ? worth > best_worth : worth < best_worth)) {
                best = i;
                best_worth = worth;
            }
        }
        freq[best] = (uint16_t)(freq[best] + (more ? 1 : -1));
        sum += more ? 1u : UINT32_MAX;
    }
}

void share_states(uint16_t freq[256], uint8_t coded[256], const uint64_t found[256],
                  const struct logarithms *logs, uint32_t n_bits, uint32_t elem_bytes)
{
    uint64_t counts[256], total = 0;
    for (uint32_t i = 0; i < 256; i++)
        total += counts[i] = found[i];
    if (total == 0)
        counts[0] = total = 1;
    choose_coded(coded, counts, total, n_bits, counts_patch_words(elem_bytes));
    share(freq, counts, coded, total, logs);
}
