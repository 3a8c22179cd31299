/* SPDX-License-Identifier: Apache-2.0
 *
 * sums_pixels: what is added up or compared over plain pixels on the GPU, 16 bytes a thread at a time:
 *
 *   statistics   a thread block a frame
 *   pixel sums   a thread has 16 bytes' pixels, of a group of frames; groups meet in 64-bit atomic additions, which
 *                are exact in any order
 *   comparing    a thread block a frame */
#ifndef STOW_SUMS_PIXELS_CUH
#define STOW_SUMS_PIXELS_CUH

#include "sums.h"
#include "sums_counts.cuh"

#define THREADS 256u /* of a thread block, unless frames are large */
#define VECTOR_BYTES 16u
#define LARGE_THREADS 1024u
#define MAX_BLOCK_WARPS (LARGE_THREADS / WARP)

static_assert(LARGE_THREADS == SUMS_MAX_PARTS, "a thread is a part of a float sum");

/* The pixels of 16 bytes, and what holds a sum of them times their numbers. */
template <typename Pixel> struct vector {
    static const uint32_t N = VECTOR_BYTES / sizeof(Pixel);
    Pixel pixels[N];
};
template <typename Pixel> struct narrow {
    using sum = uint32_t; /* 8 * 7 * 65535, 16 * 15 * 255 */
};
template <> struct narrow<uint32_t> {
    using sum = uint64_t;
};

template <typename Pixel>
static __device__ __forceinline__ void load_vector(struct vector<Pixel> *to, const void *from,
                                                   uint64_t i)
{
    uint4 bytes = ((const uint4 *)from)[i];
    memcpy(to->pixels, &bytes, sizeof(bytes));
}

static __device__ __forceinline__ bool is_aligned(uint64_t address)
{
    return address % VECTOR_BYTES == 0;
}

/* Sum over a thread block, right in thread 0. scratch [MAX_BLOCK_WARPS] is free again after. All threads call this. */
template <typename Total> static __device__ Total sum_of_block(Total value, Total *scratch)
{
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    value = sum_of_warp(value);
    if (lane == 0)
        scratch[warp] = value;
    __syncthreads();
    value = threadIdx.x < blockDim.x / WARP ? scratch[threadIdx.x] : 0;
    if (warp == 0)
        value = sum_of_warp(value);
    __syncthreads();
    return value;
}

static __device__ uint32_t max_of_block(uint32_t value, uint64_t *scratch)
{
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    value = __reduce_max_sync(ALL_LANES, value);
    if (lane == 0)
        scratch[warp] = value;
    __syncthreads();
    value = threadIdx.x < blockDim.x / WARP ? (uint32_t)scratch[threadIdx.x] : 0;
    if (warp == 0)
        value = __reduce_max_sync(ALL_LANES, value);
    __syncthreads();
    return value;
}

/* ---- statistics --------------------------------------------------------------------------------- */

struct stats_launch {
    const uint64_t *frames;
    const uint8_t *flags;
    struct frame_stats *stats;
    uint64_t n_elems;
    uint32_t det_x;
};

struct moments {
    uint64_t total, y, x;
};

struct position {
    uint32_t y, x;
};

static __device__ __forceinline__ struct position find_position(uint64_t pixel, uint32_t det_x)
{
    return {(uint32_t)(pixel / det_x), (uint32_t)(pixel % det_x)};
}

static __device__ __forceinline__ void next_position(struct position *at, uint32_t det_x)
{
    if (++at->x == det_x) {
        at->x = 0;
        at->y++;
    }
}

static __device__ __forceinline__ void add_pixel(struct moments *to, uint32_t pixel,
                                                 struct position at)
{
    to->total += pixel;
    to->y += (uint64_t)at.y * pixel;
    to->x += (uint64_t)at.x * pixel;
}

/* Neighbours in one row. */
template <typename Pixel>
static __device__ __forceinline__ void add_in_row(struct moments *to,
                                                  const struct vector<Pixel> *vector,
                                                  struct position at)
{
    typename narrow<Pixel>::sum total = 0, moment = 0;
#pragma unroll
    for (uint32_t i = 0; i < vector->N; i++) {
        total += vector->pixels[i];
        moment += (typename narrow<Pixel>::sum)vector->pixels[i] * i;
    }
    to->total += total;
    to->y += (uint64_t)at.y * total;
    to->x += (uint64_t)at.x * total + moment;
}

/* Which of n pixels are flagged, the first in bit 0; flags are aligned. */
template <uint32_t N> static __device__ __forceinline__ uint32_t flagged_of(const uint8_t *flags)
{
    uint32_t any = 0, bits = 0;
#pragma unroll
    for (uint32_t i = 0; i < N / 4; i++)
        any |= __ldg((const uint32_t *)flags + i);
    if (any)
        for (uint32_t i = 0; i < N; i++)
            bits |= (flags[i] ? 1u : 0u) << i;
    return bits;
}

/* What a thread has seen: all pixels, and those of them that are flagged. */
struct seen {
    struct moments all, flagged;
    uint32_t max, all_max;
};

template <typename Pixel>
static __device__ __forceinline__ void see_vector(struct seen *seen,
                                                  const struct vector<Pixel> *vector,
                                                  uint32_t flagged, struct position at,
                                                  uint32_t det_x)
{
    uint32_t largest = 0;
#pragma unroll
    for (uint32_t i = 0; i < vector->N; i++)
        largest = max(largest, (uint32_t)vector->pixels[i]);
    seen->all_max = max(seen->all_max, largest);
    if (det_x - at.x >= vector->N && !flagged) {
        add_in_row(&seen->all, vector, at);
        seen->max = max(seen->max, largest);
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < vector->N; i++) {
        add_pixel(&seen->all, vector->pixels[i], at);
        if (flagged >> i & 1)
            add_pixel(&seen->flagged, vector->pixels[i], at);
        else
            seen->max = max(seen->max, (uint32_t)vector->pixels[i]);
        next_position(&at, det_x);
    }
}

template <typename Pixel>
static __device__ __forceinline__ void see_pixel(struct seen *seen, uint32_t pixel, bool flagged,
                                                 struct position at)
{
    add_pixel(&seen->all, pixel, at);
    seen->all_max = max(seen->all_max, pixel);
    if (flagged)
        add_pixel(&seen->flagged, pixel, at);
    else
        seen->max = max(seen->max, pixel);
}

/* This thread's pixels of a frame. */
template <typename Pixel>
static __device__ void see_frame(struct seen *seen, const Pixel *pixels,
                                 const struct stats_launch *launch)
{
    const uint32_t N = vector<Pixel>::N, det_x = launch->det_x;
    const bool whole = is_aligned((uint64_t)pixels) && is_aligned((uint64_t)launch->flags);
    const uint64_t n_vectors = whole ? launch->n_elems / N : 0;
    struct position at = find_position((uint64_t)threadIdx.x * N, det_x);
    const struct position step = find_position((uint64_t)blockDim.x * N, det_x);
#pragma unroll 2
    for (uint64_t v = threadIdx.x; v < n_vectors; v += blockDim.x) {
        struct vector<Pixel> vector;
        load_vector(&vector, pixels, v);
        uint32_t flagged = launch->flags ? flagged_of<N>(launch->flags + v * N) : 0;
        see_vector(seen, &vector, flagged, at, det_x);
        at.y += step.y;
        at.x += step.x;
        if (at.x >= det_x) {
            at.x -= det_x;
            at.y++;
        }
    }
    for (uint64_t i = n_vectors * N + threadIdx.x; i < launch->n_elems; i += blockDim.x)
        see_pixel<Pixel>(seen, pixels[i], launch->flags && launch->flags[i],
                         find_position(i, det_x));
}

template <typename Pixel>
static __global__ void __launch_bounds__(LARGE_THREADS)
    frame_statistics(const __grid_constant__ struct stats_launch launch)
{
    __shared__ uint64_t scratch[MAX_BLOCK_WARPS];
    struct seen seen = {{0, 0, 0}, {0, 0, 0}, 0, 0};
    see_frame(&seen, (const Pixel *)launch.frames[blockIdx.x], &launch);
    struct frame_stats stats;
    stats.all_total = sum_of_block(seen.all.total, scratch);
    stats.all_moment_y = sum_of_block(seen.all.y, scratch);
    stats.all_moment_x = sum_of_block(seen.all.x, scratch);
    stats.total = stats.all_total - sum_of_block(seen.flagged.total, scratch);
    stats.moment_y = stats.all_moment_y - sum_of_block(seen.flagged.y, scratch);
    stats.moment_x = stats.all_moment_x - sum_of_block(seen.flagged.x, scratch);
    stats.max = max_of_block(seen.max, scratch);
    stats.all_max = max_of_block(seen.all_max, scratch);
    if (threadIdx.x == 0)
        launch.stats[blockIdx.x] = stats;
}

/* ---- sums of pixels over frames ----------------------------------------------------------------- */

struct pixels_launch {
    const uint64_t *frames;
    unsigned long long *sums;
    uint64_t n_elems, n_frames;
    uint32_t
        group; /* frames that a thread adds up; up to 65,536, which 32 bits hold of 16-bit pixels */
};

template <typename Pixel>
static __global__ void __launch_bounds__(THREADS)
    add_frames(const __grid_constant__ struct pixels_launch launch)
{
    const uint32_t N = vector<Pixel>::N;
    const uint64_t v = (uint64_t)blockIdx.x * THREADS + threadIdx.x, first = v * N;
    const uint64_t begin = (uint64_t)blockIdx.y * launch.group;
    const uint64_t end = min(begin + launch.group, launch.n_frames);
    typename narrow<Pixel>::sum parts[N] = {};
    if (first >= launch.n_elems)
        return;
    const uint32_t n = (uint32_t)min((uint64_t)N, launch.n_elems - first);
    if (n == N) {
#pragma unroll 8
        for (uint64_t f = begin; f < end; f++) {
            struct vector<Pixel> vector;
            load_vector(&vector, (const void *)launch.frames[f], v);
#pragma unroll
            for (uint32_t i = 0; i < N; i++)
                parts[i] += vector.pixels[i];
        }
    } else {
        for (uint64_t f = begin; f < end; f++)
#pragma unroll
            for (uint32_t i = 0; i < N; i++)
                parts[i] += i < n ? ((const Pixel *)launch.frames[f])[first + i] : 0;
    }
#pragma unroll
    for (uint32_t i = 0; i < N; i++)
        if (i < n)
            atomicAdd(launch.sums + first + i, (unsigned long long)parts[i]);
}

/* ---- comparing ---------------------------------------------------------------------------------- */

struct compare_launch {
    const uint64_t *left, *right;
    uint64_t *differ;
    uint64_t n_elems;
};

template <typename Pixel>
static __global__ void __launch_bounds__(THREADS)
    compare_frames(const __grid_constant__ struct compare_launch launch)
{
    __shared__ uint64_t scratch[MAX_BLOCK_WARPS];
    const uint32_t N = vector<Pixel>::N;
    const uint64_t left = launch.left[blockIdx.x], right = launch.right[blockIdx.x];
    const uint64_t n_vectors = is_aligned(left | right) ? launch.n_elems / N : 0;
    uint64_t differ = 0;
#pragma unroll 4
    for (uint64_t v = threadIdx.x; v < n_vectors; v += THREADS) {
        struct vector<Pixel> a, b;
        load_vector(&a, (const void *)left, v);
        load_vector(&b, (const void *)right, v);
#pragma unroll
        for (uint32_t i = 0; i < N; i++)
            differ += a.pixels[i] != b.pixels[i];
    }
    for (uint64_t i = n_vectors * N + threadIdx.x; i < launch.n_elems; i += THREADS)
        differ += ((const Pixel *)left)[i] != ((const Pixel *)right)[i];
    differ = sum_of_block(differ, scratch);
    if (threadIdx.x == 0)
        launch.differ[blockIdx.x] = differ;
}

#endif
