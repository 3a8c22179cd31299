/* SPDX-License-Identifier: Apache-2.0
 *
 * sums_kinds: statistics and sums of pixels on the GPU where pixels are no counts: signed, of 64 bits, floats. And how
 * a pixel of any type enters a sum, which is told by sums.h.
 *
 *   statistics   a thread block a frame, a pixel a thread at a time; a thread is a part of a float sum (sums.h), which
 *                lanes and then warps fold
 *   pixel sums   a thread has one pixel of all frames, in their order */
#ifndef STOW_SUMS_KINDS_CUH
#define STOW_SUMS_KINDS_CUH

#include "sums_pixels.cuh"

/* ---- pixels as numbers of a sum ----------------------------------------------------------------- */

template <typename Pixel> struct kind_of {
    static const bool is_real = false;
    using total = uint64_t;
};
template <> struct kind_of<float> {
    static const bool is_real = true;
    using total = double;
};
template <> struct kind_of<double> {
    static const bool is_real = true;
    using total = double;
};

/* Signed ones are extended by their sign: the conversion to 64 bits without one does that. */
template <typename Pixel>
static __device__ __forceinline__ typename kind_of<Pixel>::total widen(Pixel pixel)
{
    return (typename kind_of<Pixel>::total)pixel;
}

template <typename Pixel> static __device__ __forceinline__ uint64_t magnitude(Pixel pixel)
{
    if constexpr (kind_of<Pixel>::is_real)
        return 0;
    uint64_t bits = (uint64_t)pixel;
    return Pixel(-1) < Pixel(1) && (int64_t)bits < 0 ? 0 - bits : bits;
}

template <typename Pixel> static __device__ __forceinline__ Pixel fill_of(uint64_t fill)
{
    Pixel value;
    memcpy(&value, &fill, sizeof(value));
    return value;
}

static __device__ __forceinline__ uint64_t bits_of(uint64_t total)
{
    return total;
}
static __device__ __forceinline__ uint64_t bits_of(double total)
{
    return isnan(total) ? 0x7ff8000000000000 : (uint64_t)__double_as_longlong(total);
}

/* sum + a * b, for doubles rounded twice, as on a CPU. */
static __device__ __forceinline__ uint64_t add_product(uint64_t sum, uint32_t a, uint64_t b)
{
    return sum + a * b;
}
static __device__ __forceinline__ double add_product(double sum, uint32_t a, double b)
{
    return __dadd_rn(sum, __dmul_rn((double)a, b));
}

/* Weight * pixel, modulo 2^64 or in double. */
template <typename Total, typename Weight, typename Pixel>
static __device__ __forceinline__ Total weigh_pixel(Weight weight, Pixel pixel)
{
    if constexpr (kind_of<Weight>::is_real)
        return kind_of<Pixel>::is_real && weight == 0 ? 0 : weight * (double)pixel;
    else
        return widen(pixel) * (uint64_t)(int64_t)weight;
}

/* ---- statistics --------------------------------------------------------------------------------- */

static __device__ uint64_t largest_of_block(uint64_t value, uint64_t *scratch)
{
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    for (int d = WARP / 2; d > 0; d /= 2)
        value = max(value, __shfl_down_sync(ALL_LANES, value, d));
    if (lane == 0)
        scratch[warp] = value;
    __syncthreads();
    value = threadIdx.x < blockDim.x / WARP ? scratch[threadIdx.x] : 0;
    for (int d = WARP / 2; warp == 0 && d > 0; d /= 2)
        value = max(value, __shfl_down_sync(ALL_LANES, value, d));
    __syncthreads();
    return value;
}

/* Total, moments, and the largest magnitude. */
template <typename Total> struct kind_seen {
    Total total, y, x;
    uint64_t max;
};

template <typename Total, typename Pixel>
static __device__ __forceinline__ void kind_see(struct kind_seen<Total> *seen, Pixel pixel,
                                                struct position at)
{
    const Total value = widen(pixel);
    seen->total += value;
    seen->y = add_product(seen->y, at.y, value);
    seen->x = add_product(seen->x, at.x, value);
    seen->max = max(seen->max, magnitude(pixel));
}

template <typename Pixel>
static __global__ void __launch_bounds__(LARGE_THREADS)
    kind_statistics(const __grid_constant__ struct stats_launch launch)
{
    using total = typename kind_of<Pixel>::total;
    __shared__ total scratch[MAX_BLOCK_WARPS];
    __shared__ uint64_t largest[MAX_BLOCK_WARPS];
    const Pixel *pixels = (const Pixel *)launch.frames[blockIdx.x];
    struct kind_seen<total> all = {0, 0, 0, 0}, good = {
        0, 0, 0, 0
    };
    struct position at = find_position(threadIdx.x, launch.det_x);
    const struct position step = find_position(blockDim.x, launch.det_x);
#pragma unroll 4
    for (uint64_t i = threadIdx.x; i < launch.n_elems; i += blockDim.x) {
        const Pixel pixel = pixels[i];
        kind_see(&all, pixel, at);
        if (!launch.flags || !launch.flags[i])
            kind_see(&good, pixel, at);
        at.y += step.y;
        at.x += step.x;
        if (at.x >= launch.det_x) {
            at.x -= launch.det_x;
            at.y++;
        }
    }
    struct frame_stats stats;
    stats.all_total = bits_of(sum_of_block(all.total, scratch));
    stats.all_moment_y = bits_of(sum_of_block(all.y, scratch));
    stats.all_moment_x = bits_of(sum_of_block(all.x, scratch));
    stats.total = bits_of(sum_of_block(good.total, scratch));
    stats.moment_y = bits_of(sum_of_block(good.y, scratch));
    stats.moment_x = bits_of(sum_of_block(good.x, scratch));
    stats.max = largest_of_block(good.max, largest);
    stats.all_max = largest_of_block(all.max, largest);
    if (threadIdx.x == 0)
        launch.stats[blockIdx.x] = stats;
}

/* ---- sums of pixels over frames ----------------------------------------------------------------- */

template <typename Pixel>
static __global__ void __launch_bounds__(THREADS)
    add_in_order(const __grid_constant__ struct pixels_launch launch)
{
    using total = typename kind_of<Pixel>::total;
    const uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= launch.n_elems)
        return;
    total *to = (total *)launch.sums + i;
    total sum = *to;
#pragma unroll 8
    for (uint64_t f = 0; f < launch.n_frames; f++)
        sum += widen(((const Pixel *)launch.frames[f])[i]);
    *to = sum;
}

#endif
