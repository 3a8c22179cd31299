/* SPDX-License-Identifier: Apache-2.0
 *
 * counts_strings: the strings of bits of a stream's lanes as the CPU makes them: backwards, at their front. Since
 * a decoder asks for a word two words ahead, a lane lays down the word before the one that it has just completed. All
 * lanes take a step side by side, without a branch, so that a compiler can make it wide; the words that were completed
 * are laid down after it. */
#ifndef STOW_COUNTS_STRINGS_H
#define STOW_COUNTS_STRINGS_H

#include "counts.h"
#include "wide.h"

#include <string.h>

/* The room of a stream: patches grow from its begin, words from its end. */
struct room {
    uint32_t *begin, *end;
    uint32_t *patches_end, *words_begin;
    uint32_t n_patches;
    uint32_t first_tile; /* of the patch put last, which is the first to a decoder */
    bool full;
};

/* The lanes' strings, from their ends: the low bits of acc wait, 1 to 32, one more than `count`,
 * the last one lowest; hold is the word that was complete last. A lane starts with a word of zeros
 * that nobody reads, as a decoder asks for two words past a string's end. */
struct strings {
    uint64_t acc[COUNTS_LANES];
    uint32_t count[COUNTS_LANES];
    uint32_t hold[COUNTS_LANES];
    uint32_t state[COUNTS_LANES];  /* 2,048 to 4,095 */
    uint8_t crossed[COUNTS_LANES]; /* words completed, until one has been laid */
};

/* What comes to each lane's string in one step: up to 32 bits. */
struct step_bits {
    uint64_t bits[COUNTS_LANES];
    uint32_t n[COUNTS_LANES];
};

/* What lanes let go of in one step: of those whose `crossed` is 32 the word; of others, 0, nothing. */
struct step_words {
    uint32_t words[COUNTS_LANES];
    uint8_t crossed[COUNTS_LANES];
};

static INLINED void strings_start(struct strings *strings)
{
    memset(strings, 0, sizeof(*strings));
    for (uint32_t l = 0; l < COUNTS_LANES; l++) {
        strings->count[l] = 31;
        strings->state[l] = COUNTS_STATES;
    }
}

static INLINED void put_word(struct room *room, uint32_t word)
{
    if (room->words_begin == room->patches_end)
        room->full = true;
    else
        *--room->words_begin = word;
}

/* Bit l: lane l has let go of a word. Of 8 bytes of 32 or 0, the product has one bit of each at its
 * top. */
static INLINED uint32_t crossed_lanes(const struct step_words *step)
{
    uint32_t lanes = 0;
    for (uint32_t i = 0; i < COUNTS_LANES / 8; i++) {
        uint64_t bytes;
        memcpy(&bytes, step->crossed + 8 * i, sizeof(bytes));
        lanes |= (uint32_t)((bytes >> 5) * 0x0102040810204080 >> 56) << 8 * i;
    }
    return lanes;
}

/* The last lane's word lies behind the others'. The first two of a lane are none of its own, and
 * are left out while nothing follows them. */
static INLINED void lay_words(struct strings *strings, struct room *room,
                              const struct step_words *step)
{
    for (uint32_t left = crossed_lanes(step); left;) {
        uint32_t l = 31 - (uint32_t)__builtin_clz(left);
        left ^= 1u << l;
        if (room->words_begin != room->end || strings->crossed[l]++ >= 2)
            put_word(room, step->words[l]);
    }
}

/* A lane that has completed a word lets go of the one before it. No branch, so that many lanes are
 * done at once. */
static INLINED void put_bits(struct strings *strings, struct room *room,
                             const struct step_bits *step)
{
    struct step_words out;
    for (uint32_t l = 0; l < COUNTS_LANES; l++) {
        uint64_t acc = strings->acc[l] | step->bits[l] << 1 << strings->count[l];
        uint32_t count = strings->count[l] + step->n[l], hold = strings->hold[l];
        out.words[l] = hold;
        out.crossed[l] = (uint8_t)(count & 32);
        strings->hold[l] = hold ^ ((hold ^ (uint32_t)acc) & -(count >> 5));
        strings->acc[l] = acc >> (count & 32);
        strings->count[l] = count & 31;
    }
    lay_words(strings, room, &out);
}

/* The low bits of the state go out. How many. */
static INLINED uint32_t take_symbol(uint32_t *state, uint32_t *bits,
                                    const struct counts_symbol *symbol, const uint16_t *states)
{
    uint32_t n = (*state + symbol->bits_add) >> 16;
    *bits = *state & ((1u << n) - 1);
    *state = states[(uint32_t)symbol->state_add + (*state >> n)];
    return n;
}

/* What a decoder meets first: marker and state of each lane, in its first two words. */
static INLINED void put_heads(struct strings *strings, struct room *room)
{
    struct step_bits step;
    for (uint32_t l = 0; l < COUNTS_LANES; l++) {
        step.bits[l] = strings->state[l]; /* its top bit is the marker */
        step.n[l] = COUNTS_TABLE_BITS + 1;
    }
    put_bits(strings, room, &step);
    for (uint32_t l = COUNTS_LANES; l-- > 0;)
        put_word(room, strings->hold[l]);
    for (uint32_t l = COUNTS_LANES; l-- > 0;)
        put_word(room, (uint32_t)strings->acc[l]);
}

#endif
