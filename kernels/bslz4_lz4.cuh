/* SPDX-License-Identifier: Apache-2.0
 *
 * bslz4_lz4: one block of LZ4, decoded by a warp within a window of shared memory.
 *
 * Sequences are taken in batches, one to a lane. The lanes find together where each begins, which one length
 * after the other decides; all else of a sequence its lane reads on its own, and checks it. Nothing is written
 * before the whole batch is good.
 *
 * Then the bytes are put out. A compressor of counts leaves many short sequences, a few bytes each, between
 * some that are long. Short ones are decoded across their boundaries: every lane takes one byte of the next
 * 32, finds whose it is and where it comes from. Where it comes from may be among the 32 itself; then it is
 * that byte's source, found by asking that lane, until no lane's source is among them. Long matches and
 * literals are copied one by one in words, or filled where a match repeats a few bytes.
 *
 * Every function here is called by the whole warp, with the same arguments but for `lane` and a batch. */
#ifndef STOW_BSLZ4_LZ4_CUH
#define STOW_BSLZ4_LZ4_CUH

#include "bslz4.h"
#include "warp.cuh"

#include <cuda_pipeline.h>

#define SPAN_BYTES 8192u /* the largest block that has a window */
#define MARGIN 48u       /* bslz4_max_lz4_bytes(n) <= n + MARGIN up to SPAN_BYTES */
#define LEAD \
    WARP /* what is decoded ends this far before what is to be read, room to write too much */
#define OVERREAD 16u      /* how far loads of words may look past the input */
#define BEFORE_WINDOW 16u /* and before the window */
#define WINDOW_BYTES (SPAN_BYTES + MARGIN + LEAD + 16u + OVERREAD)

#define AT_ONCE 4u /* usual sequences that are stepped over between two looks at what is left */
#define STRIDE (4 * WARP) /* bytes that a warp copies at once, as words */
#define LONG 48u /* a sequence with more literals, or a longer match, is copied by itself */

static_assert(SPAN_BYTES / 255 + 16 <= MARGIN, "compressed bytes must not meet decoded ones");
static_assert(WINDOW_BYTES % 16 == 0, "windows are 16-byte aligned");
static_assert(WINDOW_BYTES < 65536, "places in a window have 16 bits");

/* A block to be decoded. */
struct block {
    const uint8_t *in; /* with 16 readable bytes before it */
    uint32_t in_bytes;
    uint32_t bytes; /* decoded */
    uint8_t *dst;   /* NULL: check only */
};

/* ---- reading -------------------------------------------------------------------------------------- */

/* The compressed bytes, to the window's end so far as their alignment lets them. Returns where. */
static __device__ uint32_t stage_input(uint8_t *window, const struct block *block, uint32_t lane)
{
    uint32_t skew = (uint32_t)(uintptr_t)block->in & 15;
    uint32_t in_at = WINDOW_BYTES - OVERREAD - block->in_bytes;
    in_at -= (in_at - skew) & 15;

    /* Whole units of 16 bytes, though the first may begin before the block; the last bytes singly. */
    uint32_t end = skew + block->in_bytes, whole = end & ~15u;
    uint8_t *to = window + in_at - skew;
    const uint8_t *from = block->in - skew;
    for (uint32_t i = 16 * lane; i < whole; i += 16 * WARP)
        __pipeline_memcpy_async(to + i, from + i, 16);
    __pipeline_commit();
    if (whole + lane < end)
        to[whole + lane] = from[whole + lane];
    __pipeline_wait_prior(0);
    __syncwarp();
    return in_at;
}

/* A sequence of each lane; the last of a block has n_match 0. */
struct batch {
    uint32_t n;     /* lanes that have one */
    bool ends;      /* the last of them is the last of the block, or is bad */
    bool good;      /* it is not bad */
    uint32_t start; /* where it begins in the window; of a lane without, past all that have */
    uint32_t literals, n_literals;
    uint32_t offset, n_match;
};

/* The rest of a length whose nibble was 15: bytes are added while they are 255. Past the end of the input
 * *at becomes more than in_bytes. The bytes that are not the first are looked at by all lanes at once: a run of
 * 7,000 zeros has 28 of them. */
static __device__ void read_length(uint32_t *length, uint32_t *at, const uint8_t *in,
                                   uint32_t in_bytes, uint32_t lane)
{
    /* Nearly always one byte. */
    if (*at < in_bytes && in[*at] != 255) {
        *length += in[(*at)++];
        return;
    }
    for (;;) {
        uint32_t byte = *at + lane < in_bytes ? in[*at + lane] : 0;
        uint32_t ends = __ballot_sync(ALL_LANES, byte != 255);
        if (ends) {
            uint32_t n = (uint32_t)__ffs((int)ends) - 1;
            *length += 255 * n + value_of(byte, n);
            *at += n + 1;
            return;
        }
        *length += 255 * WARP;
        *at += WARP;
    }
}

/* Step over sequences whose lengths are in their tokens and that others follow. A lane keeps where its own
 * begins. The one that *at stops before is of another kind, or a lane for it is not sure to be left. */
static __device__ void skip_usual(uint32_t *n, uint32_t *at, uint32_t *mine, const uint8_t *in,
                                  uint32_t in_bytes, uint32_t lane)
{
    while (*n <= WARP - AT_ONCE) {
#pragma unroll
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            uint32_t token = in[*at], next = *at + 3 + (token >> 4);
            if ((token >= 0xf0) | ((token & 15) == 15) | (next >= in_bytes))
                return;
            *mine = lane == *n ? *at : *mine;
            *at = next;
            ++*n;
        }
    }
}

/* The lengths of the next sequences, from *at on, which is inside the input. */
static __device__ struct batch read_lengths(const uint8_t *in, uint32_t *at, uint32_t in_bytes,
                                            uint32_t lane)
{
    struct batch batch = {0, false, true, 0, 0, 0, 0, 0};
    uint32_t usual = UINT32_MAX;
    for (;;) {
        skip_usual(&batch.n, at, &usual, in, in_bytes, lane);
        if (batch.n > WARP - AT_ONCE)
            break;
        uint32_t token = in[*at], literals = *at + 1;
        uint32_t n_literals = token >> 4, n_match = token & 15;
        if (n_literals == 15)
            read_length(&n_literals, &literals, in, in_bytes, lane);
        uint32_t end = literals + n_literals, next = end + 2;
        if (n_match == 15)
            read_length(&n_match, &next, in, in_bytes, lane);
        /* Whatever comes next begins with a token. */
        batch.ends = next >= in_bytes;
        if (lane == batch.n) {
            batch.literals = literals;
            batch.n_literals = n_literals;
            batch.n_match = batch.ends ? 0 : n_match + 4;
        }
        batch.n++;
        *at = next;
        if (batch.ends) {
            batch.good = end == in_bytes;
            break;
        }
    }
    if (usual < in_bytes) {
        uint32_t token = in[usual];
        batch.literals = usual + 1;
        batch.n_literals = token >> 4;
        batch.n_match = (token & 15) + 4;
    }
    return batch;
}

/* Place a batch behind the `*done` bytes that are decoded, and read its offsets. False if it goes back
 * further than the start, fills more than the block, does not fill it and yet ends it, or would be written
 * over literals that are still to be read. */
static __device__ bool place_batch(struct batch *batch, uint32_t *done, const uint8_t *in,
                                   uint32_t in_at, uint32_t block_bytes, uint32_t lane)
{
    bool has_one = lane<batch->n, has_match = batch->n_match> 0;
    uint32_t total = batch->n_literals + batch->n_match;
    uint32_t end = *done + sum_to_lane(total, lane);
    uint32_t match = batch->literals + batch->n_literals;
    if (!batch->good)
        return false;
    batch->offset = has_match ? (uint32_t)in[match] | (uint32_t)in[match + 1] << 8 : 0;
    batch->start = has_one ? end - total : UINT32_MAX;

    bool fits = has_match ? end <= block_bytes && batch->offset - 1 < end - batch->n_match
                          : end == block_bytes;
    fits = fits && end - total + LEAD <= in_at + batch->literals;
    *done = value_of(end, WARP - 1);
    return __all_sync(ALL_LANES, fits || !has_one);
}

/* ---- writing -------------------------------------------------------------------------------------- */

/* n bytes within the window, as words; up to 3 more are written. `from` lies at least STRIDE or n bytes before
 * `to`, or LEAD behind it. */
static __device__ void copy_words(uint8_t *window, uint32_t to, uint32_t from, uint32_t n,
                                  uint32_t lane)
{
    /* Words begin up to 3 bytes before `to`; what is there stays. */
    uint32_t head = to & 3, kept = (1u << (8 * head)) - 1;
    uint32_t n_words = (head + n + 3) / 4;
    int32_t word_from = (int32_t)(from - head) >> 2;
    uint32_t skew = 8 * ((from - head) & 3);
    uint32_t *out = (uint32_t *)(window + to - head);
    const uint32_t *in = (const uint32_t *)window + word_from;
    uint32_t before = lane == 0 ? out[0] & kept : 0;
    kept = lane == 0 ? kept : 0;
    for (uint32_t base = 0; base < n_words; base += WARP) {
        bool mine = base + lane < n_words;
        uint32_t word = 0;
        if (mine)
            word = __funnelshift_r(in[lane], in[lane + 1], skew);
        word = (word & ~kept) | before;
        __syncwarp();
        if (mine)
            out[lane] = word;
        __syncwarp();
        kept = before = 0;
        in += WARP;
        out += WARP;
    }
}

/* A match whose offset divides 16, as a run of zeros has it. Up to 31 bytes more are written. */
static __device__ void fill(uint8_t *window, uint32_t to, uint32_t offset, uint32_t n,
                            uint32_t lane)
{
    /* Singly as far as the end of a whole unit of 16 bytes; all further units are like that one. Nothing reads
     * what is written here. */
    window[to + lane] = window[to - offset + (lane & (offset - 1))];
    __syncwarp();
    uint32_t unit = (to + 15) & ~15u;
    uint4 value = *(const uint4 *)(window + unit);
    for (uint32_t i = unit + 16 * (lane + 1); i < to + n; i += 16 * WARP)
        *(uint4 *)(window + i) = value;
    __syncwarp();
}

/* A match of more than `offset` bytes, where offset < STRIDE. Up to 3 more are written. */
static __device__ void repeat(uint8_t *window, uint32_t to, uint32_t offset, uint32_t n,
                              uint32_t lane)
{
    /* Byte by byte from the one period that is there, until more than STRIDE bytes are. */
    uint32_t end = to + n, begin = to & ~3u, next = begin + 2 * STRIDE;
    float per_lap = 1.0f / (float)offset;
    for (uint32_t base = begin; base < min(end, next); base += STRIDE) {
        uint32_t word = 0;
#pragma unroll
        for (uint32_t b = 0; b < 4; b++) {
            int32_t i = (int32_t)(base + 4 * lane + b - to);
            /* Exact: i is below 260, and the half keeps rounding away from whole laps. */
            int32_t lap = (int32_t)(((float)i + 0.5f) * per_lap);
            int32_t back = i < 0 ? 0 : (lap + 1) * (int32_t)offset;
            word |= (uint32_t)window[(int32_t)to + i - back] << (8 * b);
        }
        __syncwarp();
        if (base + 4 * lane < end)
            *(uint32_t *)(window + base + 4 * lane) = word;
        __syncwarp();
    }
    uint32_t period = offset * (STRIDE / offset + 1);
    if (next < end)
        copy_words(window, next, next - period, end - next, lane);
}

/* Everything between `base` and `end`: the short sequences of the batch from `first` on, and maybe the literals
 * of the one after them. */
static __device__ void copy_short(uint8_t *window, const struct batch *batch, uint32_t in_at,
                                  uint32_t first, uint32_t base, uint32_t end, uint32_t lane)
{
    uint32_t match = batch->start + batch->n_literals;
    /* How far on a literal comes from, and how far back a match. */
    uint32_t ways = (in_at + batch->literals - batch->start) | batch->offset << 16;
    uint32_t below_lane = (1u << lane) - 1;
    for (; base < end; base += WARP) {
        /* Whose byte is mine: of those sequences that start up to here, the last. */
        uint32_t ahead = batch->start - base - 1;
        uint32_t starts = __reduce_or_sync(ALL_LANES, ahead < WARP ? 1u << ahead : 0);
        uint32_t owner = first + (uint32_t)__popc(starts & below_lane);
        first += (uint32_t)__popc(starts);
        uint32_t owner_match = value_of(match, owner);
        uint32_t owner_ways = value_of(ways, owner);

        uint32_t at = base + lane;
        uint32_t offset = owner_ways >> 16, into = at - owner_match;
        /* Most matches that overlap themselves are 1, 2 or 4 back: spared the way from lap to lap. */
        uint32_t lap = (offset & (offset - 1)) == 0 ? offset - 1 : UINT32_MAX;
        uint32_t from =
            at < owner_match ? at + (owner_ways & 0xffff) : owner_match - offset + (into & lap);
        from = at < end ? from : UINT32_MAX;
        /* Literals lie LEAD ahead: what is in these bytes themselves is a match, and goes back. */
        while (__any_sync(ALL_LANES, from - base < WARP)) {
            uint32_t further = value_of(from, from - base);
            from = from - base < WARP ? further : from;
        }
        uint8_t byte = at < end ? window[from] : 0;
        __syncwarp();
        if (at < end)
            window[at] = byte;
        __syncwarp();
    }
}

/* A match of n bytes, of which there are more than 0. */
static __device__ void copy_match(uint8_t *window, uint32_t to, uint32_t offset, uint32_t n,
                                  uint32_t lane)
{
    if (offset <= 16 && (offset & (offset - 1)) == 0)
        fill(window, to, offset, n, lane);
    else if (offset < STRIDE && offset < n)
        repeat(window, to, offset, n, lane);
    else
        copy_words(window, to, to - offset, n, lane);
}

/* Put out a batch that is placed, from `at` up to `end`. */
static __device__ void write_batch(uint8_t *window, const struct batch *batch, uint32_t in_at,
                                   uint32_t at, uint32_t end, uint32_t lane)
{
    uint32_t most = max(batch->n_literals, batch->n_match), first = 0;
    uint32_t long_ones = __ballot_sync(ALL_LANES, most > LONG);
    while (long_ones) {
        uint32_t owner = (uint32_t)__ffs((int)long_ones) - 1;
        uint32_t start = value_of(batch->start, owner);
        uint32_t n_literals = value_of(batch->n_literals, owner);
        uint32_t n_match = value_of(batch->n_match, owner);
        uint32_t offset = value_of(batch->offset, owner);
        uint32_t match = start + n_literals;
        copy_short(window, batch, in_at, first, at, n_literals > LONG ? start : match, lane);
        if (n_literals > LONG)
            copy_words(window, start, in_at + value_of(batch->literals, owner), n_literals, lane);
        if (n_match > 0)
            copy_match(window, match, offset, n_match, lane);
        at = match + n_match;
        first = owner + 1;
        long_ones &= long_ones - 1;
    }
    copy_short(window, batch, in_at, first, at, end, lane);
}

/* Decode a block's LZ4 bytes to the start of the window; false if it is not good. */
static __device__ bool decode_lz4(uint8_t *window, const struct block *block, uint32_t lane)
{
    uint32_t in_at = stage_input(window, block, lane), at = 0, done = 0;
    const uint8_t *in = window + in_at;
    struct batch batch;
    do {
        batch = read_lengths(in, &at, block->in_bytes, lane);
        uint32_t end = done;
        if (!place_batch(&batch, &end, in, in_at, block->bytes, lane) ||
            (!batch.ends && end + LEAD > in_at + at))
            return false;
        __syncwarp();
        if (block->dst)
            write_batch(window, &batch, in_at, done, end, lane);
        done = end;
    } while (!batch.ends);
    return true;
}

#endif
