/* SPDX-License-Identifier: Apache-2.0
 *
 * bslz4_bits: bit transposition on the GPU, from the rows of a block in shared memory to elements in the frame.
 *
 * A lane takes four columns (32 elements) at a time: four bytes of every row, transposed 8 x 8 bits in four
 * bytes at once, then 4 x 4 bytes, until the words are the elements. Its columns are every other one of eight,
 * its neighbour's are those between, so that the two write next to each other: 32 bytes of uint16, which is
 * what memory takes at once. Stores are as wide as the frame's place in memory allows. */
#ifndef STOW_BSLZ4_BITS_CUH
#define STOW_BSLZ4_BITS_CUH

#include "warp.cuh"

static __device__ void swap_bits(uint32_t *a, uint32_t *b, int shift, uint32_t mask)
{
    uint32_t t = (*a >> shift ^ *b) & mask;
    *b ^= t;
    *a ^= t << shift;
}

/* Bit i of byte c of v[j] becomes bit j of byte c of v[i]. */
static __device__ void transpose_bits(uint32_t v[8])
{
#pragma unroll
    for (int j = 0; j < 4; j++)
        swap_bits(&v[j], &v[j + 4], 4, 0x0f0f0f0fu);
#pragma unroll
    for (int j = 0; j < 8; j++)
        if ((j & 2) == 0)
            swap_bits(&v[j], &v[j + 2], 2, 0x33333333u);
#pragma unroll
    for (int j = 0; j < 8; j += 2)
        swap_bits(&v[j], &v[j + 1], 1, 0x55555555u);
}

/* Byte c of v[r] becomes byte r of v[c]. */
static __device__ void transpose_bytes(uint32_t v[4])
{
    uint32_t a = __byte_perm(v[0], v[1], 0x5140), b = __byte_perm(v[0], v[1], 0x7362);
    uint32_t c = __byte_perm(v[2], v[3], 0x5140), d = __byte_perm(v[2], v[3], 0x7362);
    v[0] = __byte_perm(a, c, 0x5410);
    v[1] = __byte_perm(a, c, 0x7632);
    v[2] = __byte_perm(b, d, 0x5410);
    v[3] = __byte_perm(b, d, 0x7632);
}

/* Of eight bytes of the window from `at`, the even or the odd ones. Up to 11 from `at` may be read. */
template <bool ALIGNED>
static __device__ uint32_t load_every_other(const uint8_t *window, uint32_t at, uint32_t odd)
{
    uint32_t choice = odd ? 0x7531 : 0x6420;
    if (ALIGNED) {
        uint2 both = *(const uint2 *)(window + at);
        return __byte_perm(both.x, both.y, choice);
    }
    const uint32_t *words = (const uint32_t *)(window + (at & ~3u));
    uint32_t skew = 8 * (at & 3);
    return __byte_perm(__funnelshift_r(words[0], words[1], skew),
                       __funnelshift_r(words[1], words[2], skew), choice);
}

/* The 8 * ELEM bytes of a column, as wide as dst allows. */
template <unsigned ELEM> static __device__ void store_column(uint8_t *dst, const uint32_t *words)
{
    uintptr_t place = (uintptr_t)dst;
    if (ELEM > 1 && place % 16 == 0) {
#pragma unroll
        for (unsigned i = 0; i + 4 <= 2 * ELEM; i += 4)
            *(uint4 *)(dst + 4 * i) =
                make_uint4(words[i], words[i + 1], words[i + 2], words[i + 3]);
    } else if (place % 8 == 0) {
#pragma unroll
        for (unsigned i = 0; i < 2 * ELEM; i += 2)
            *(uint2 *)(dst + 4 * i) = make_uint2(words[i], words[i + 1]);
    } else if (place % 4 == 0) {
#pragma unroll
        for (unsigned i = 0; i < 2 * ELEM; i++)
            *(uint32_t *)(dst + 4 * i) = words[i];
    } else {
#pragma unroll
        for (unsigned i = 0; i < 8 * ELEM; i++)
            dst[i] = (uint8_t)(words[i / 4] >> (8 * (i % 4)));
    }
}

/* The same where each element has ELEM of its STRIDE bytes here: the others are another pass's. */
template <unsigned ELEM, unsigned STRIDE>
static __device__ void store_spread(uint8_t *dst, const uint32_t *words)
{
    if ((uintptr_t)dst % ELEM == 0) {
#pragma unroll
        for (unsigned i = 0; i < 8; i++)
            *(uint32_t *)(dst + i * STRIDE) = words[i];
    } else {
#pragma unroll
        for (unsigned i = 0; i < 8 * ELEM; i++)
            dst[i / ELEM * STRIDE + i % ELEM] = (uint8_t)(words[i / 4] >> (8 * (i % 4)));
    }
}

/* ELEM bytes of each element of a block, from their rows in the window to the frame, where elements are STRIDE
 * bytes apart. */
template <unsigned ELEM, unsigned STRIDE, bool ALIGNED>
static __device__ void untranspose(uint8_t *dst, const uint8_t *window, uint32_t n_columns,
                                   uint32_t lane)
{
    uint32_t odd = lane % 2;
    for (uint32_t m = lane / 2 * 8; m < n_columns; m += 4 * WARP) {
        /* Byte c of words[i * ELEM + k]: byte k of element i of column m + 2 * c + odd. */
        uint32_t words[8 * ELEM];
#pragma unroll
        for (unsigned k = 0; k < ELEM; k++) {
            uint32_t v[8];
#pragma unroll
            for (unsigned j = 0; j < 8; j++)
                v[j] = load_every_other<ALIGNED>(window, (8 * k + j) * n_columns + m, odd);
            /* Counts are small: upper rows are mostly zeros, and those stay what they are. */
            if (v[0] | v[1] | v[2] | v[3] | v[4] | v[5] | v[6] | v[7])
                transpose_bits(v);
#pragma unroll
            for (unsigned i = 0; i < 8; i++)
                words[i * ELEM + k] = v[i];
        }
#pragma unroll
        for (unsigned q = 0; q < 2 * ELEM; q++)
            transpose_bytes(words + 4 * q);
#pragma unroll
        for (unsigned c = 0; c < 4; c++) {
            uint32_t column[2 * ELEM];
#pragma unroll
            for (unsigned q = 0; q < 2 * ELEM; q++)
                column[q] = words[4 * q + c];
            uint32_t to = m + 2 * c + odd;
            if (to >= n_columns)
                continue;
            if constexpr (ELEM == STRIDE)
                store_column<ELEM>(dst + to * 8 * STRIDE, column);
            else
                store_spread<ELEM, STRIDE>(dst + to * 8 * STRIDE, column);
        }
    }
}

/* Elements of 8 bytes, by their lower and their upper halves: 64 words at once are more than a lane has registers
 * for, or everybody would have fewer warps. */
template <bool ALIGNED>
static __device__ void untranspose_halves(uint8_t *dst, const uint8_t *window, uint32_t n_columns,
                                          uint32_t lane)
{
    untranspose<4, 8, ALIGNED>(dst, window, n_columns, lane);
    untranspose<4, 8, ALIGNED>(dst + 4, window + 32 * n_columns, n_columns, lane);
}

#endif
