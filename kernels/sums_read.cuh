/* SPDX-License-Identifier: Apache-2.0
 *
 * sums_read: how a warp reads a stream of form counts when it has several at a time and no pixels to write. As in
 * counts_lanes.cuh, but words come straight from global memory: L1 has room for them here, a ring for each stream
 * would cost instructions, and another stream's arithmetic covers the waiting.
 *
 * A state is always one of its class, and words are read only up to the stream's last, whatever the words say. The
 * whole warp calls these functions. */
#ifndef STOW_SUMS_READ_CUH
#define STOW_SUMS_READ_CUH

#include "counts_lanes.cuh"

/* The tables of the segment, at the start of dynamic shared memory. */
extern __shared__ __align__(1024) uint8_t sum_tables[];

/* ---- words -------------------------------------------------------------------------------------- */

/* A stream as a warp reads it: struct lanes without a ring. The entry is an address in shared memory here, so that
 * nothing is left to add for a look-up. */
struct reader {
    uint32_t cur, next; /* words of this lane's string */
    uint32_t used;      /* bits of cur: the low 5 bits; what is above counts for nothing */
    uint32_t entry;
    const uint32_t *words;
    uint32_t last_word, next_word;
};

/* The same for all streams that a warp reads. */
struct reading {
    uint32_t tables;       /* address in shared memory */
    uint32_t lanes_before; /* mask */
};

static __device__ __forceinline__ struct reading start_reading(void)
{
    struct reading reading;
    /* volatile, as it would else be found out anew wherever it is used */
    asm volatile("mov.u32 %0, %1;"
                 : "=r"(reading.tables)
                 : "r"((uint32_t)__cvta_generic_to_shared(sum_tables)));
    asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(reading.lanes_before));
    return reading;
}

/* Lanes that have crossed into their next word get the one after it, in their order; past the end that is the last
 * word once more, of which no whole stream uses anything. In assembly for the reason that `refill` gives. */
static __device__ __forceinline__ void refill_direct(struct reader *reader, uint32_t used_before,
                                                     const struct reading *reading)
{
    uint32_t votes;
    asm volatile("{\n\t"
                 ".reg .pred crossed;\n\t"
                 ".reg .b32 t;\n\t"
                 ".reg .b64 at;\n\t"
                 "xor.b32 t, %3, %4;\n\t"
                 "and.b32 t, t, 32;\n\t"
                 "setp.ne.u32 crossed, t, 0;\n\t"
                 "vote.sync.ballot.b32 %2, crossed, 0xffffffff;\n\t"
                 "@crossed mov.b32 %0, %1;\n\t"
                 "and.b32 t, %2, %5;\n\t"
                 "popc.b32 t, t;\n\t"
                 "add.u32 t, t, %6;\n\t"
                 "min.u32 t, t, %7;\n\t"
                 "mad.wide.u32 at, t, 4, %8;\n\t"
                 "@crossed ld.global.nc.u32 %1, [at];\n\t"
                 "}"
                 : "+r"(reader->cur), "+r"(reader->next), "=&r"(votes)
                 : "r"(used_before), "r"(reader->used), "r"(reading->lanes_before),
                   "r"(reader->next_word), "r"(reader->last_word), "l"(reader->words));
    reader->next_word += (uint32_t)__popc(votes);
}

/* The entry of the state; the next state takes its bits from the top of bits. The offset in the entry's upper half is
 * added to the tables' address by a dot product, which takes one instruction, and not of the busiest unit. */
static __device__ __forceinline__ uint32_t step_direct(struct reader *reader, uint32_t bits,
                                                       const struct reading *reading)
{
    uint32_t entry = load_shared(reader->entry);
    reader->entry =
        __dp2a_hi(entry, 0x01000000u, reading->tables) + 4 * __funnelshift_l(bits, 0, entry);
    return entry;
}

/* From class `before` to class k. */
static __device__ __forceinline__ void change_class(struct reader *reader, uint32_t before,
                                                    uint32_t k)
{
    reader->entry += (k - before) * (COUNTS_STATES * 4);
}

static __device__ __forceinline__ void pair_direct(struct reader *reader, uint32_t entries[2],
                                                   const struct reading *reading)
{
    uint32_t used = reader->used;
    uint32_t bits = __funnelshift_l(reader->next, reader->cur, used);
    entries[0] = step_direct(reader, bits, reading);
    entries[1] = step_direct(reader, __funnelshift_l(0, bits, entries[0]), reading);
    reader->used = used + entries[0] + entries[1];
    refill_direct(reader, used, reading);
}

/* The same for two streams at once. Both ask for their words before either waits for one: one refill after the other, the
 * second stood behind the first one's word, and sums took a seventh longer. */
static __device__ __forceinline__ void refill_both(struct reader *a, uint32_t a_before,
                                                   struct reader *b, uint32_t b_before,
                                                   const struct reading *reading)
{
    uint32_t a_votes, b_votes;
    asm volatile("{\n\t"
                 ".reg .pred p, q;\n\t"
                 ".reg .b32 t, u;\n\t"
                 ".reg .b64 at, bt;\n\t"
                 "xor.b32 t, %6, %7;\n\t"
                 "xor.b32 u, %8, %9;\n\t"
                 "and.b32 t, t, 32;\n\t"
                 "and.b32 u, u, 32;\n\t"
                 "setp.ne.u32 p, t, 0;\n\t"
                 "setp.ne.u32 q, u, 0;\n\t"
                 "vote.sync.ballot.b32 %2, p, 0xffffffff;\n\t"
                 "vote.sync.ballot.b32 %5, q, 0xffffffff;\n\t"
                 "@p mov.b32 %0, %1;\n\t"
                 "@q mov.b32 %3, %4;\n\t"
                 "and.b32 t, %2, %10;\n\t"
                 "and.b32 u, %5, %10;\n\t"
                 "popc.b32 t, t;\n\t"
                 "popc.b32 u, u;\n\t"
                 "add.u32 t, t, %11;\n\t"
                 "add.u32 u, u, %12;\n\t"
                 "min.u32 t, t, %13;\n\t"
                 "min.u32 u, u, %14;\n\t"
                 "mad.wide.u32 at, t, 4, %15;\n\t"
                 "mad.wide.u32 bt, u, 4, %16;\n\t"
                 "@p ld.global.nc.u32 %1, [at];\n\t"
                 "@q ld.global.nc.u32 %4, [bt];\n\t"
                 "}"
                 : "+r"(a->cur), "+r"(a->next), "=&r"(a_votes), "+r"(b->cur), "+r"(b->next),
                   "=&r"(b_votes)
                 : "r"(a_before), "r"(a->used), "r"(b_before), "r"(b->used),
                   "r"(reading->lanes_before), "r"(a->next_word), "r"(b->next_word),
                   "r"(a->last_word), "r"(b->last_word), "l"(a->words), "l"(b->words));
    a->next_word += (uint32_t)__popc(a_votes);
    b->next_word += (uint32_t)__popc(b_votes);
}

/* pair_direct of two streams. */
static __device__ __forceinline__ void pairs_of_both(struct reader *a, struct reader *b,
                                                     uint32_t (*entries)[2],
                                                     const struct reading *reading)
{
    uint32_t a_used = a->used, b_used = b->used;
    uint32_t a_bits = __funnelshift_l(a->next, a->cur, a_used);
    uint32_t b_bits = __funnelshift_l(b->next, b->cur, b_used);
    entries[0][0] = step_direct(a, a_bits, reading);
    entries[1][0] = step_direct(b, b_bits, reading);
    entries[0][1] = step_direct(a, __funnelshift_l(0, a_bits, entries[0][0]), reading);
    entries[1][1] = step_direct(b, __funnelshift_l(0, b_bits, entries[1][0]), reading);
    a->used = a_used + entries[0][0] + entries[0][1];
    b->used = b_used + entries[1][0] + entries[1][1];
    refill_both(a, a_used, b, b_used, reading);
}

static __device__ __forceinline__ uint32_t wide_direct(struct reader *reader,
                                                       struct counts_class class_,
                                                       const struct reading *reading)
{
    uint32_t used = reader->used;
    uint32_t bits = __funnelshift_l(reader->next, reader->cur, used);
    uint32_t entry = step_direct(reader, bits, reading);
    uint32_t raw = __funnelshift_l(__funnelshift_l(0, bits, entry), 0, class_.shift);
    reader->used = used + entry + class_.shift;
    refill_direct(reader, used, reading);
    return class_.base + ((entry >> 8 & 0xff) << class_.shift | raw);
}

/* Begin with a stream, in class 0. False on a lane that cannot begin. */
static __device__ __forceinline__ bool open_direct(struct reader *reader, const uint32_t *words,
                                                   uint32_t n_words, uint32_t lane,
                                                   const struct reading *reading)
{
    reader->words = words;
    reader->last_word = n_words - 1;
    reader->next_word = 2 * WARP;
    reader->cur = words[lane];
    reader->next = words[WARP + lane];
    uint32_t start =
        (uint32_t)__clz((int)reader->cur) + 1; /* 32 takes all of next, hence the clamp */
    uint32_t state = __funnelshift_lc(reader->next, reader->cur, start) >> (32 - COUNTS_TABLE_BITS);
    reader->entry = reading->tables + 4 * state;
    reader->used = start + COUNTS_TABLE_BITS;
    refill_direct(reader, 0, reading);
    return start <= WARP;
}

static __device__ __forceinline__ bool ended_direct(const struct reader *reader,
                                                    const struct reading *reading)
{
    uint32_t state = (reader->entry - reading->tables) & (COUNTS_STATES * 4 - 1);
    return state == 0 && (reader->used & 31) == 0 && reader->next_word > reader->last_word;
}

/* Have the next KiB of words come to L2: about a tile's. */
static __device__ __forceinline__ void prefetch_words(const struct reader *reader, uint32_t lane)
{
    uint32_t at = reader->next_word + 64 + 8 * lane;
    if (at <= reader->last_word)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(reader->words + at));
}

/* ---- symbols to pixels: 4 bytes, the first pixel lowest -------------------------------------------- */

/* 4 pixels of 2 bits to bytes, in two steps: one multiplication for all would let bits 6 and 7 carry. */
static __device__ __forceinline__ uint32_t bytes_of_four(uint32_t entry)
{
    uint32_t pairs = __byte_perm(entry, 0, 0x4441) * 0x1001u & 0x000f000fu;
    return pairs * 0x41u & 0x03030303u;
}

static __device__ __forceinline__ uint32_t bytes_of_twos(const uint32_t entries[2])
{
    uint32_t twice = __byte_perm(entries[0], entries[1], 0x5511);
    return (twice & 0x000f000fu) | (twice >> 4 & 0x0f000f00u);
}

static __device__ __forceinline__ uint32_t bytes_of_ones(const uint32_t first[2],
                                                         const uint32_t second[2])
{
    return __byte_perm(__byte_perm(first[0], first[1], 0x0051),
                       __byte_perm(second[0], second[1], 0x0051), 0x5410);
}

#endif
