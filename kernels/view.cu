/* SPDX-License-Identifier: Apache-2.0
 *
 * view on the GPU: each pixel of a result is gathered by whoever writes it, so that one launch does all steps and
 * nothing lies in between. Bins of up to SMALL_BIN rows are a thread's each, neighbours in a row side by side; larger
 * ones are a warp's, whose lanes share the bin's pixels. Sums are whole numbers, so that any order gives the same. */
#include "launch.h"
#include "warp.cuh"

#define SMALL_BIN 8u
#define THREADS 256u
#define TILE_X 128u /* of a result, for a thread block of lanes by rows */
#define TILE_Y (THREADS / WARP)
#define MAX_ROWS_OF_BLOCKS 65535u

struct view_launch {
    struct view_work work;
    uint32_t n;       /* frames */
    uint32_t tiles_x; /* of a result; of warps for large bins: not used */
};

/* The bin that a row or column of a result shows; `bins` or more: padding. */
static __device__ __forceinline__ uint32_t bin_at(uint32_t result, uint32_t size, uint32_t shift,
                                                  uint32_t at)
{
    uint32_t before = result >= shift ? result - shift : result + size - shift;
    return before - at;
}

template <uint32_t IN, bool CORRECTED>
static __device__ __forceinline__ int64_t value_at(const struct view_work &work, const void *frame,
                                                   const uint8_t *flags, uint32_t y, uint32_t x)
{
    const uint64_t at = (uint64_t)y * work.view.det_x + x;
    if (CORRECTED && flags[at])
        return view_corrected(&work.view, IN, frame, flags, y, x);
    return view_pixel(frame, IN, at);
}

/* One pixel of the result; false: it does not fit. */
static __device__ __forceinline__ bool put(const struct view_work &work, uint32_t frame, uint32_t y,
                                           uint32_t x, bool inside, int64_t sum)
{
    const struct view &view = work.view;
    const uint64_t at = (uint64_t)y * view.size_x + x;
    uint64_t bits = 0;
    bool fits = !inside || view_convert(&bits, &view, sum);
    void *to = (void *)(work.dst + frame * work.dst_stride);
    switch (view.out_bytes) {
    case 1: ((uint8_t *)to)[at] = (uint8_t)bits; break;
    case 2: ((uint16_t *)to)[at] = (uint16_t)bits; break;
    case 4: ((uint32_t *)to)[at] = (uint32_t)bits; break;
    default: ((uint64_t *)to)[at] = bits;
    }
    return fits;
}

static __device__ __forceinline__ void mark(const struct view_work &work, uint32_t frame)
{
    ((int32_t *)work.status)[frame] = STOW_NOFIT; /* by whoever comes: all write the same */
}

/* Thread blocks: tiles of a result, frames. */
template <uint32_t IN, bool CORRECTED>
static __global__ void __launch_bounds__(THREADS)
    view_by_threads(const __grid_constant__ struct view_launch launch)
{
    const struct view_work &work = launch.work;
    const struct view &view = work.view;
    const uint8_t *flags = (const uint8_t *)work.flags;
    const uint32_t y = blockIdx.x / launch.tiles_x * TILE_Y + threadIdx.x / WARP;
    const uint32_t first_x = blockIdx.x % launch.tiles_x * TILE_X + threadIdx.x % WARP;
    if (y >= view.size_y)
        return;
    const uint32_t row = bin_at(y, view.size_y, view.shift_y, view.at_y);
    const uint32_t n_rows =
        row < view.bins_y ? view_bin_length(row, view.bins_y, view.bin, view.crop_h) : 0;
    const uint32_t top = view.crop_y + row * view.bin;
    for (uint32_t frame = blockIdx.y; frame < launch.n; frame += gridDim.y) {
        const void *from = (const void *)(work.src + frame * work.src_stride);
        bool fits = true;
#pragma unroll
        for (uint32_t k = 0; k < TILE_X; k += WARP) {
            const uint32_t x = first_x + k;
            if (x >= view.size_x)
                break;
            const uint32_t column = bin_at(x, view.size_x, view.shift_x, view.at_x);
            const bool inside = n_rows && column < view.bins_x;
            const uint32_t n_columns =
                inside ? view_bin_length(column, view.bins_x, view.bin, view.crop_w) : 0;
            const uint32_t left = view.crop_x + column * view.bin;
            int64_t sum = 0;
            for (uint32_t r = 0; r < n_rows; r++) {
                for (uint32_t c = 0; c < n_columns; c++)
                    sum += value_at<IN, CORRECTED>(work, from, flags, top + r, left + c);
            }
            fits &= put(work, frame, y, x, inside, sum);
        }
        if (!fits)
            mark(work, frame);
    }
}

/* Thread blocks: some pixels of a result, frames. */
template <uint32_t IN, bool CORRECTED>
static __global__ void __launch_bounds__(THREADS)
    view_by_warps(const __grid_constant__ struct view_launch launch)
{
    const struct view_work &work = launch.work;
    const struct view &view = work.view;
    const uint8_t *flags = (const uint8_t *)work.flags;
    const uint32_t lane = threadIdx.x % WARP;
    const uint64_t pixel = (uint64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    const uint32_t y = (uint32_t)(pixel / view.size_x), x = (uint32_t)(pixel % view.size_x);
    if (y >= view.size_y)
        return;
    const uint32_t row = bin_at(y, view.size_y, view.shift_y, view.at_y);
    const uint32_t column = bin_at(x, view.size_x, view.shift_x, view.at_x);
    const bool inside = row < view.bins_y && column < view.bins_x;
    const uint32_t n_rows = inside ? view_bin_length(row, view.bins_y, view.bin, view.crop_h) : 0;
    const uint32_t n_columns =
        inside ? view_bin_length(column, view.bins_x, view.bin, view.crop_w) : 1;
    const uint32_t top = view.crop_y + row * view.bin, left = view.crop_x + column * view.bin;
    const uint32_t n = n_rows * n_columns; /* a frame's pixels fit 32 bits */
    for (uint32_t frame = blockIdx.y; frame < launch.n; frame += gridDim.y) {
        const void *from = (const void *)(work.src + frame * work.src_stride);
        int64_t sum = 0;
#pragma unroll 4
        for (uint32_t i = lane; i < n; i += WARP)
            sum += value_at<IN, CORRECTED>(work, from, flags, top + i / n_columns,
                                           left + i % n_columns);
#pragma unroll
        for (uint32_t d = WARP / 2; d > 0; d /= 2)
            sum += __shfl_xor_sync(ALL_LANES, sum, (int)d);
        if (lane == 0 && !put(work, frame, y, x, inside, sum))
            mark(work, frame);
    }
}

/* ---- launchers ----------------------------------------------------------------------------------- */

/* By enum view_in. */
#define BY_IN(kernel, corrected)                                                                \
    {                                                                                           \
        (const void *)kernel<VIEW_U1, corrected>, (const void *)kernel<VIEW_U2, corrected>,     \
            (const void *)kernel<VIEW_U4, corrected>, (const void *)kernel<VIEW_U8, corrected>, \
            (const void *)kernel<VIEW_I1, corrected>, (const void *)kernel<VIEW_I2, corrected>, \
            (const void *)kernel<VIEW_I4, corrected>                                            \
    }
#define N_IN (VIEW_I4 + 1)

/* Without correction and with; nobody waits for registers of the one that he does not ask for. */
static const void *const thread_kernels[2][N_IN] = {BY_IN(view_by_threads, false),
                                                    BY_IN(view_by_threads, true)};
static const void *const warp_kernels[2][N_IN] = {BY_IN(view_by_warps, false),
                                                  BY_IN(view_by_warps, true)};

static uint64_t divide_up(uint64_t n, uint64_t by)
{
    return (n + by - 1) / by;
}

extern "C" cudaError_t launch_view(const struct work *work, cudaStream_t stream)
{
    const struct view *view = &work->view.view;
    struct view_launch of = {work->view, work->n, (uint32_t)divide_up(view->size_x, TILE_X)};
    void *list[] = {&of};
    if (work->n == 0)
        return cudaSuccess;
    if (view->in >= N_IN)
        return cudaErrorInvalidValue;
    const bool large = view->bin >= SMALL_BIN;
    const uint64_t blocks = large ? divide_up((uint64_t)view->size_y * view->size_x, THREADS / WARP)
                                  : of.tiles_x * divide_up(view->size_y, TILE_Y);
    const uint32_t rows = work->n < MAX_ROWS_OF_BLOCKS ? work->n : MAX_ROWS_OF_BLOCKS;
    if (blocks > INT32_MAX)
        return cudaErrorInvalidValue;
    const bool corrected = view->correction && work->view.flags;
    return cudaLaunchKernel(large ? warp_kernels[corrected][view->in]
                                  : thread_kernels[corrected][view->in],
                            dim3((uint32_t)blocks, rows), dim3(THREADS), list, 0, stream);
}

extern "C" cudaError_t launch_load_view(void)
{
    cudaError_t error = cudaSuccess;
    for (uint32_t i = 0; i < 2 * N_IN && error == cudaSuccess; i++) {
        struct cudaFuncAttributes attributes;
        error = cudaFuncGetAttributes(&attributes, thread_kernels[i / N_IN][i % N_IN]);
        if (error == cudaSuccess)
            error = cudaFuncGetAttributes(&attributes, warp_kernels[i / N_IN][i % N_IN]);
    }
    return error;
}
