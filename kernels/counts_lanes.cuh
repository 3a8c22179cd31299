/* SPDX-License-Identifier: Apache-2.0
 *
 * counts_lanes: the 32 bit strings of a stream of form counts, read by the 32 lanes of a warp, symbol by symbol.
 *
 * A lane keeps its current word and the next one, how many bits of the current one are used, and its state as the
 * place of its entry in the tables, which lie in shared memory. Words come through a ring of 512 bytes in shared
 * memory, filled by asynchronous copies of 128 bytes: read from global memory one by one they would cost a wait
 * each, since tables and tiles leave hardly any L1 cache.
 *
 * Nothing here trusts the words: a state is always one of its class, since the tables are our own; the ring wraps; and
 * copies past the frame's last byte bring its last 16 instead. What lanes end with tells whether the stream was whole.
 *
 * The whole warp calls these functions. Shared memory is addressed by 32-bit numbers: a generic pointer costs an
 * instruction more for each symbol. */
#ifndef STOW_COUNTS_LANES_CUH
#define STOW_COUNTS_LANES_CUH

#include "counts.h"
#include "warp.cuh"

#define TABLES_BYTES (COUNTS_CLASSES * COUNTS_STATES * 4u)
#define RING_BYTES 512u  /* of a warp, aligned to as much */
#define CHUNK_BYTES 128u /* what two symbols of all lanes ask for at most */
/* A chunk is asked for so far ahead of the words that are handed out. */
#define CHUNK_AHEAD (3u * CHUNK_BYTES)

struct lanes {
    uint32_t cur, next;
    uint32_t used;  /* bits of cur: the low 5 bits; what is above counts for nothing */
    uint32_t entry; /* byte offset into the tables */
    uint32_t
        word_at; /* where the next word lies; offsets are from `words`, and modulo 512 in the ring */
    uint32_t fetch_at; /* once word_at is there, it is time for the chunk CHUNK_AHEAD of it */
    uint32_t last_at;  /* the frame's last 16 bytes */
    const uint8_t *words;
    uint32_t ring, tables; /* in shared memory */
    uint32_t lanes_before; /* mask */
};

/* What all lanes have, so that the compiler knows: else it takes care of lanes gone astray at each vote. */
static __device__ __forceinline__ uint32_t same(uint32_t value)
{
    return value_of(value, 0);
}

static __device__ __forceinline__ uint32_t load_shared(uint32_t at)
{
    uint32_t value;
    asm("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(at));
    return value;
}

static __device__ __forceinline__ void copy_async(uint32_t shared_at, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_at), "l"(from)
                 : "memory");
}

static __device__ __forceinline__ void fetch_chunk(struct lanes *lanes, uint32_t lane)
{
    uint32_t at = lanes->fetch_at + CHUNK_AHEAD + lane * 16;
    asm volatile("{\n\t"
                 ".reg .pred fetches;\n\t"
                 "setp.lt.u32 fetches, %2, 8;\n\t"
                 "@fetches cp.async.cg.shared.global [%0], [%1], 16;\n\t"
                 "cp.async.commit_group;\n\t"
                 "}" ::"r"(lanes->ring | (at & (RING_BYTES - 1))),
                 "l"(lanes->words + min(at, lanes->last_at)), "r"(lane)
                 : "memory");
    lanes->fetch_at += CHUNK_BYTES;
}

/* Two chunks may still be on their way: the one now being read and the one behind it are here. */
static __device__ __forceinline__ void keep_ring_filled(struct lanes *lanes, uint32_t lane)
{
    if (lanes->word_at < lanes->fetch_at)
        return;
    __syncwarp(); /* all lanes have read what the chunk replaces */
    fetch_chunk(lanes, lane);
    asm volatile("cp.async.wait_group 2;" ::: "memory");
    __syncwarp();
}

/* Lanes that have crossed into their next word get the one after it, in their order. One piece of assembly, since
 * the compiler makes a branch of it, or counts votes twice. */
static __device__ __forceinline__ void refill(struct lanes *lanes, uint32_t used_before)
{
    uint32_t votes;
    asm volatile("{\n\t"
                 ".reg .pred crossed;\n\t"
                 ".reg .b32 t;\n\t"
                 "xor.b32 t, %3, %4;\n\t"
                 "and.b32 t, t, 32;\n\t"
                 "setp.ne.u32 crossed, t, 0;\n\t"
                 "vote.sync.ballot.b32 %2, crossed, 0xffffffff;\n\t"
                 "and.b32 t, %2, %5;\n\t"
                 "popc.b32 t, t;\n\t"
                 "mad.lo.u32 t, t, 4, %6;\n\t"
                 "and.b32 t, t, 511;\n\t"
                 "or.b32 t, t, %7;\n\t"
                 "@crossed mov.b32 %0, %1;\n\t"
                 "@crossed ld.shared.u32 %1, [t];\n\t"
                 "}"
                 : "+r"(lanes->cur), "+r"(lanes->next), "=&r"(votes)
                 : "r"(used_before), "r"(lanes->used), "r"(lanes->lanes_before),
                   "r"(lanes->word_at), "r"(lanes->ring));
    lanes->word_at += 4 * __popc(votes);
}

/* The entry of the state that a lane is in; the next state takes its bits from the top of *bits. */
static __device__ __forceinline__ uint32_t step_state(struct lanes *lanes, uint32_t bits)
{
    uint32_t entry = load_shared(lanes->tables + lanes->entry);
    lanes->entry = (entry >> 16) + 4 * __funnelshift_l(bits, 0, entry);
    return entry;
}

/* Two symbols of a class that is not wide. What has an entry's low bits added is right in these. */
static __device__ __forceinline__ void next_pair(struct lanes *lanes, uint32_t entries[2],
                                                 uint32_t lane)
{
    uint32_t used = lanes->used;
    keep_ring_filled(lanes, lane);
    uint32_t bits = __funnelshift_l(lanes->next, lanes->cur, used);
    entries[0] = step_state(lanes, bits);
    entries[1] = step_state(lanes, __funnelshift_l(0, bits, entries[0]));
    lanes->used = used + entries[0] + entries[1];
    refill(lanes, used);
}

/* One pixel of a wide class. */
static __device__ __forceinline__ uint32_t next_wide(struct lanes *lanes,
                                                     const struct counts_class *class_,
                                                     uint32_t lane)
{
    uint32_t used = lanes->used, shift = class_->shift;
    keep_ring_filled(lanes, lane);
    uint32_t bits = __funnelshift_l(lanes->next, lanes->cur, used);
    uint32_t entry = step_state(lanes, bits);
    uint32_t raw = __funnelshift_l(__funnelshift_l(0, bits, entry), 0, shift);
    lanes->used = used + entry + shift;
    refill(lanes, used);
    return class_->base + ((entry >> 8 & 0xff) << shift | raw);
}

/* From here on symbols are of class k; what the state is stays. */
static __device__ __forceinline__ void enter_class(struct lanes *lanes, uint32_t k)
{
    lanes->entry = (lanes->entry & (COUNTS_STATES * 4 - 1)) | k * (COUNTS_STATES * 4);
}

/* Begin with a stream of at least 64 words in a frame of frame_bytes at `frame`; ring, tables and lanes_before are
 * set. False on a lane whose string has no beginning; the others may go on. */
static __device__ bool open_lanes(struct lanes *lanes, const uint32_t *words, const void *frame,
                                  uint32_t frame_bytes, uint32_t lane)
{
    uint32_t skew = (uint32_t)(uintptr_t)words & 15;
    lanes->words = (const uint8_t *)words - skew;
    lanes->last_at = ((frame_bytes - 1) & ~15u) - (uint32_t)(lanes->words - (const uint8_t *)frame);
    lanes->word_at = skew + 2 * WARP * 4;
    lanes->fetch_at = 0u - CHUNK_BYTES; /* the first two chunks are not wanted */
    /* What the stream before this one asked for and did not read shall not come later than what is asked for now. */
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncwarp();
    for (uint32_t i = 0; i < RING_BYTES / CHUNK_BYTES; i++)
        fetch_chunk(lanes, lane);
    lanes->cur = words[lane];
    lanes->next = words[WARP + lane];
    uint32_t zeros = __clz(lanes->cur), start = zeros + 1;
    lanes->entry = __funnelshift_lc(lanes->next, lanes->cur, start) >> (32 - COUNTS_TABLE_BITS)
                                                                           << 2;
    lanes->used = start + COUNTS_TABLE_BITS;
    bool begun = lanes->cur != 0;
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncwarp();
    refill(lanes, 0);
    return begun;
}

/* Whether this lane's string ended where it should, and the stream with it: all of its words were asked for, and of
 * those asked for none is missing but two a lane behind the ends, which are left out unless others follow. */
static __device__ bool lane_ended(const struct lanes *lanes, const uint32_t *words,
                                  uint32_t n_words)
{
    uint32_t asked = (lanes->word_at - (uint32_t)((const uint8_t *)words - lanes->words)) / 4;
    return (lanes->entry & (COUNTS_STATES * 4 - 1)) == 0 && (lanes->used & 31) == 0 &&
           asked >= n_words && asked - n_words <= 2 * COUNTS_LANES;
}

#endif
