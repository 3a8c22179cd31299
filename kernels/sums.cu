/* SPDX-License-Identifier: Apache-2.0
 *
 * sums on the GPU: the launchers, and the kernels that bring weights in order or read raw frames with them. Frames of
 * form counts are added up as they are decoded (sums_counts.cuh); statistics, sums of pixels and comparing are in
 * sums_pixels.cuh, and for pixels that are no counts in sums_kinds.cuh.
 *
 * Weighing goes by tiles through shared memory: a thread block has some tiles of one segment and mask. A raw frame is
 * a thread block's. Float64 sums have a fixed order: a thread's own pixels, then the lanes of a warp, then the warps. */
#include "launch.h"
#include "sums_kinds.cuh"

#define BLOCKS_A_PROCESSOR 8u /* of THREADS each: as many as are resident */

/* ---- weights in stream order -------------------------------------------------------------------- */

struct weigh_launch {
    const struct weigh_job *jobs;
    const void *weights;
    uint64_t n_elems;
    uint32_t n_masks;
};

template <typename Member>
static __device__ __forceinline__ const Member *part_of(const struct counts_segment *segment,
                                                        uint32_t at)
{
    return (const Member *)((const uint8_t *)segment + at);
}

/* Thread blocks: segments, some tiles each, masks. */
template <typename Weight>
static __global__ void __launch_bounds__(THREADS)
    weigh_tiles(const __grid_constant__ struct weigh_launch launch)
{
    struct alignas(sizeof(Weight) == 1 ? 4 : 16) unit {
        Weight weights[COUNTS_UNIT_PIXELS];
    };
    __shared__ struct unit tile[COUNTS_TILE_UNITS];
    Weight *pixels = tile[0].weights;
    const struct weigh_job job = launch.jobs[blockIdx.x];
    const struct counts_segment *segment = (const struct counts_segment *)job.segment;
    const uint32_t n_granules = segment->n_granules, n_tiles = segment->n_tiles;
    const uint32_t *order = part_of<uint32_t>(segment, segment->order_at);
    const uint32_t *until = part_of<uint32_t>(segment, segment->constant_tiles_at);
    const struct counts_constant *constants =
        part_of<struct counts_constant>(segment, segment->constants_at);
    const Weight *from = (const Weight *)launch.weights + blockIdx.z * launch.n_elems;
    struct unit *to = (struct unit *)(job.weighed + SUMS_WEIGHED_HEAD) +
                      (uint64_t)blockIdx.z * n_granules * COUNTS_GRANULE_UNITS;
    for (uint32_t t = blockIdx.y; t < n_tiles; t += gridDim.y) {
        uint64_t first = (uint64_t)t * COUNTS_TILE_PIXELS;
        for (uint32_t i = threadIdx.x; i < COUNTS_TILE_PIXELS; i += THREADS)
            pixels[i] = first + i < launch.n_elems ? from[first + i] : Weight(0);
        __syncthreads();
        for (uint32_t c = until[t] + threadIdx.x; c < until[t + 1]; c += THREADS)
            pixels[constants[c].pixel % COUNTS_TILE_PIXELS] = 0;
        __syncthreads();
        uint32_t begin = t * TILE_GRANULES * WARP;
        uint32_t end = min(begin + TILE_GRANULES * WARP, n_granules * WARP);
        for (uint32_t i = begin + threadIdx.x; i < end; i += THREADS) {
            to[2 * (uint64_t)i] = tile[order[i] & 0xffff];
            to[2 * (uint64_t)i + 1] = tile[order[i] >> 16];
        }
        __syncthreads();
    }
}

/* What constants add. Thread blocks: segments, masks. */
template <typename Weight, typename Total>
static __global__ void __launch_bounds__(THREADS)
    weigh_constants(const __grid_constant__ struct weigh_launch launch)
{
    __shared__ Total scratch[MAX_BLOCK_WARPS];
    const struct weigh_job job = launch.jobs[blockIdx.x];
    const struct counts_segment *segment = (const struct counts_segment *)job.segment;
    const struct counts_constant *constants =
        part_of<struct counts_constant>(segment, segment->constants_at);
    const Weight *from = (const Weight *)launch.weights + blockIdx.y * launch.n_elems;
    const uint32_t n = blockIdx.y < launch.n_masks ? segment->n_constants : 0;
    Total sum = 0;
    for (uint32_t c = threadIdx.x; c < n; c += THREADS)
        sum += weigh(from[constants[c].pixel], (int64_t)constants[c].value);
    sum = sum_of_block(sum, scratch);
    if (threadIdx.x == 0)
        ((Total *)job.weighed)[blockIdx.y] = sum;
}

/* ---- sums of plain frames ----------------------------------------------------------------------- */

/* One frame by a thread block: its pixels, or NULL and the value of all of them. */
template <typename Pixel, typename Weight, typename Total>
static __device__ void sum_plain_frame(uint32_t job, const Pixel *pixels, Pixel value,
                                       const struct sum_launch *launch, Total *scratch)
{
    const uint64_t n = launch->shape.n_elems;
    for (uint32_t m = 0; m < launch->all_masks; m++) {
        const Weight *weights = (const Weight *)launch->weights + m * n;
        Total sum = 0;
#pragma unroll 8
        for (uint64_t i = threadIdx.x; i < n; i += THREADS)
            sum += weigh_pixel<Total>(__ldg(weights + i), pixels ? pixels[i] : value);
        sum = sum_of_block(sum, scratch);
        if (threadIdx.x == 0)
            ((Total *)launch->out)[m * launch->out_stride + job] = sum;
    }
}

/* A thread block looks for frames of no form of counts among those of its part. */
template <typename Pixel, typename Weight, typename Total>
static __global__ void __launch_bounds__(THREADS)
    sum_plain(const __grid_constant__ struct sum_launch launch)
{
    __shared__ Total scratch[MAX_BLOCK_WARPS];
    __shared__ uint32_t list[THREADS], n;
    const Pixel value = fill_of<Pixel>(launch.shape.fill);
    const uint32_t begin = blockIdx.x * launch.chunk, end = min(begin + launch.chunk, launch.n);
    for (uint32_t first = begin; first < end; first += THREADS) {
        uint32_t i = first + threadIdx.x;
        if (threadIdx.x == 0)
            n = 0;
        __syncthreads();
        if (i < end && launch.jobs[i].form != STOW_FORM_COUNTS)
            list[atomicAdd(&n, 1u)] = i;
        __syncthreads();
        for (uint32_t l = 0; l < n; l++) {
            const struct sum_job *job = launch.jobs + list[l];
            bool raw = job->form == STOW_FORM_RAW, known = raw || job->form == STOW_FORM_FILL;
            if (known)
                sum_plain_frame<Pixel, Weight, Total>(list[l], raw ? (const Pixel *)job->src : NULL,
                                                      value, &launch, scratch);
            if (threadIdx.x == 0)
                launch.status[list[l]] = known ? 0 : STOW_CORRUPT;
        }
        __syncthreads();
    }
}

/* ---- launchers ---------------------------------------------------------------------------------- */

/* Kernels by pixel_type: one for counts of up to 32 bits, and one for the others. NULL: there are no such pixels. */
#define BY_PIXEL(counts, others)                                                      \
    {                                                                                 \
        (const void *)counts<uint8_t>, (const void *)counts<uint16_t>,                \
            (const void *)counts<uint32_t>, (const void *)others<uint64_t>,           \
            (const void *)others<int8_t>, (const void *)others<int16_t>,              \
            (const void *)others<int32_t>, (const void *)others<int64_t>, NULL, NULL, \
            (const void *)others<float>, (const void *)others<double>                 \
    }
/* The same with weights; floats have float64 ones alone. */
#define BY_INTEGER_AND(kernel, ...)                                                               \
    (const void *)kernel<uint8_t, __VA_ARGS__>, (const void *)kernel<uint16_t, __VA_ARGS__>,      \
        (const void *)kernel<uint32_t, __VA_ARGS__>, (const void *)kernel<uint64_t, __VA_ARGS__>, \
        (const void *)kernel<int8_t, __VA_ARGS__>, (const void *)kernel<int16_t, __VA_ARGS__>,    \
        (const void *)kernel<int32_t, __VA_ARGS__>, (const void *)kernel<int64_t, __VA_ARGS__>

static const void *const statistics_kernels[N_PIXEL_TYPES] =
    BY_PIXEL(frame_statistics, kind_statistics);
static const void *const pixels_kernels[N_PIXEL_TYPES] = BY_PIXEL(add_frames, add_in_order);
/* By size alone: bits are compared. */
static const void *const compare_kernels[4] = {(const void *)compare_frames<uint8_t>,
                                               (const void *)compare_frames<uint16_t>,
                                               (const void *)compare_frames<uint32_t>,
                                               (const void *)compare_frames<uint64_t>};
/* By kind of weight. */
static const void *const tiles_kernels[3] = {(const void *)weigh_tiles<uint8_t>,
                                             (const void *)weigh_tiles<int32_t>,
                                             (const void *)weigh_tiles<double>};
static const void *const constants_kernels[3] = {(const void *)weigh_constants<uint8_t, uint64_t>,
                                                 (const void *)weigh_constants<int32_t, uint64_t>,
                                                 (const void *)weigh_constants<double, double>};
static const void *const plain_kernels[3][N_PIXEL_TYPES] = {
    {BY_INTEGER_AND(sum_plain, uint8_t, uint64_t)},
    {BY_INTEGER_AND(sum_plain, int32_t, uint64_t)},
    {BY_INTEGER_AND(sum_plain, double, double), NULL, NULL,
     (const void *)sum_plain<float, double, double>,
     (const void *)sum_plain<double, double, double>}};

/* Kernels that sum up frames of form counts: for up to `masks` masks at once, so many frames side by side, worth it from `least`
 * masks on. Two frames side by side hide each other's waiting, but leave registers for two masks only; with more than these
 * a second launch is faster than one kernel for all, until 8 masks share the decoding of one frame. */
struct counts_kernel {
    enum weight_kind kind;
    uint32_t least, masks;
    const void *kernel;
};
#define COUNTS_KERNEL(kind, least, masks, frames)                         \
    {                                                                     \
        kind, least, masks, (const void *)sum_counts<kind, masks, frames> \
    }
static const struct counts_kernel counts_kernels[] = {
    COUNTS_KERNEL(WEIGHT_U8, 1, 1, 2),  COUNTS_KERNEL(WEIGHT_U8, 2, 2, 2),
    COUNTS_KERNEL(WEIGHT_U8, 7, 8, 1),  COUNTS_KERNEL(WEIGHT_I32, 1, 1, 2),
    COUNTS_KERNEL(WEIGHT_I32, 3, 4, 1), COUNTS_KERNEL(WEIGHT_F64, 1, 1, 2),
};
#define N_COUNTS_KERNELS (sizeof(counts_kernels) / sizeof(*counts_kernels))

static uint64_t divide_up(uint64_t n, uint64_t by)
{
    return (n + by - 1) / by;
}

static cudaError_t ask_processors(uint32_t *n_processors)
{
    int device, n = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
    *n_processors = (uint32_t)n;
    return error;
}

static cudaError_t launch(const void *kernel, dim3 blocks, uint32_t threads, void *arguments,
                          size_t shared_bytes, cudaStream_t stream)
{
    void *list[] = {arguments};
    if (!kernel)
        return cudaErrorInvalidValue;
    return cudaLaunchKernel(kernel, blocks, dim3(threads), list, shared_bytes, stream);
}

static cudaError_t launch_stats(const struct work *work, cudaStream_t stream)
{
    if (work->stats.det_x == 0 || work->stats.det_x > UINT32_MAX)
        return cudaErrorInvalidValue;
    struct stats_launch of = {(const uint64_t *)work->stats.frames,
                              (const uint8_t *)work->stats.flags,
                              (struct frame_stats *)work->stats.stats, work->shape.n_elems,
                              (uint32_t)work->stats.det_x};
    uint32_t threads =
        sums_parts(&work->shape); /* the more the larger frames are: there are few of them then */
    return launch(statistics_kernels[pixel_type_index(&work->shape)], dim3(work->n), threads, &of,
                  0, stream);
}

/* Not cut into groups, since floats have an order. */
static cudaError_t launch_in_order(const struct work *work, cudaStream_t stream)
{
    struct pixels_launch of = {(const uint64_t *)work->pixels.frames,
                               (unsigned long long *)work->pixels.sums, work->shape.n_elems,
                               work->pixels.n_frames, 0};
    dim3 blocks((uint32_t)divide_up(work->shape.n_elems, THREADS));
    return launch(pixels_kernels[pixel_type_index(&work->shape)], blocks, THREADS, &of, 0, stream);
}

static cudaError_t launch_pixels(const struct work *work, cudaStream_t stream)
{
    if (!shape_is_counts(&work->shape))
        return launch_in_order(work, stream);
    uint32_t n_processors, pixels = VECTOR_BYTES / work->shape.elem_bytes;
    cudaError_t error = ask_processors(&n_processors);
    if (error != cudaSuccess || work->pixels.n_frames == 0)
        return error;
    uint64_t n_blocks = divide_up(work->shape.n_elems, THREADS * pixels);
    uint64_t groups = divide_up(n_processors * BLOCKS_A_PROCESSOR, n_blocks);
    uint64_t group = divide_up(work->pixels.n_frames, groups);
    group = group < 16 ? 16 : group > 65536 ? 65536 : group;
    struct pixels_launch of = {(const uint64_t *)work->pixels.frames,
                               (unsigned long long *)work->pixels.sums, work->shape.n_elems,
                               work->pixels.n_frames, (uint32_t)group};
    dim3 blocks((uint32_t)n_blocks, (uint32_t)divide_up(work->pixels.n_frames, group));
    return launch(pixels_kernels[pixel_type_index(&work->shape)], blocks, THREADS, &of, 0, stream);
}

static cudaError_t launch_weigh(const struct work *work, cudaStream_t stream)
{
    struct weigh_launch of = {(const struct weigh_job *)work->weigh.jobs,
                              (const void *)work->weigh.weights, work->shape.n_elems,
                              work->weigh.n_masks};
    uint32_t n_tiles = counts_n_tiles(work->shape.n_elems);
    dim3 blocks(work->n, n_tiles < 64 ? n_tiles : 64, work->weigh.n_masks);
    cudaError_t error =
        launch(tiles_kernels[work->weigh.weights_kind], blocks, THREADS, &of, 0, stream);
    if (error != cudaSuccess)
        return error;
    return launch(constants_kernels[work->weigh.weights_kind], dim3(work->n, SUMS_MAX_MASKS),
                  THREADS, &of, 0, stream);
}

/* The one for the most masks that is worth it for so many; they stand in that order. */
static const struct counts_kernel *find_counts_kernel(enum weight_kind kind, uint32_t n_masks)
{
    const struct counts_kernel *found = NULL;
    for (size_t i = 0; i < N_COUNTS_KERNELS; i++)
        if (counts_kernels[i].kind == kind && counts_kernels[i].least <= n_masks)
            found = &counts_kernels[i];
    return found;
}

/* Thread blocks in whole rounds over the multiprocessors, of up to about a thousand frames each: a slow part of the
 * scan then does not keep the others waiting. A power of two, where one is near: segments mostly have such sizes, and a
 * thread block with frames of two waits once more for its slowest warp, which all the others then wait for. */
static uint32_t chunk_of(uint32_t n, uint32_t n_processors)
{
    uint64_t rounds = divide_up(n, (uint64_t)n_processors * 1024);
    uint64_t chunk = divide_up(n, n_processors * rounds * 2) * 2, power = 2;
    while (power < chunk)
        power *= 2;
    return (uint32_t)(power <= chunk + chunk / 8 ? power : chunk);
}

static cudaError_t launch_sum(const struct work *work, cudaStream_t stream)
{
    uint32_t n_processors;
    cudaError_t error = ask_processors(&n_processors);
    if (error != cudaSuccess)
        return error;
    struct sum_launch of = {(const struct sum_job *)work->sum.jobs,
                            (const void *)work->sum.weights,
                            (void *)work->sum.out,
                            work->sum.out_stride,
                            (int32_t *)work->sum.status,
                            work->n,
                            (uint32_t)divide_up(work->n, n_processors * BLOCKS_A_PROCESSOR),
                            0,
                            work->sum.n_masks,
                            work->sum.n_masks,
                            work->shape};
    error = launch(plain_kernels[work->sum.weights_kind][pixel_type_index(&work->shape)],
                   dim3((uint32_t)divide_up(of.n, of.chunk)), THREADS, &of, 0, stream);
    if (!shape_is_counts(&work->shape) ||
        work->shape.n_elems > (uint64_t)COUNTS_MAX_TILES * COUNTS_TILE_PIXELS)
        return error;
    of.chunk = chunk_of(of.n, n_processors);
    while (error == cudaSuccess && of.first_mask < of.all_masks) {
        uint32_t left = of.all_masks - of.first_mask;
        const struct counts_kernel *kernel = find_counts_kernel(work->sum.weights_kind, left);
        of.n_masks = left < kernel->masks ? left : kernel->masks;
        error = launch(kernel->kernel, dim3((uint32_t)divide_up(of.n, of.chunk)), SUM_THREADS, &of,
                       TABLES_BYTES, stream);
        of.first_mask += of.n_masks;
    }
    return error;
}

static cudaError_t launch_compare(const struct work *work, cudaStream_t stream)
{
    struct compare_launch of = {(const uint64_t *)work->compare.left,
                                (const uint64_t *)work->compare.right,
                                (uint64_t *)work->compare.differ, work->shape.n_elems};
    return launch(compare_kernels[pixel_type_index(&work->shape) % 4], dim3(work->n), THREADS, &of,
                  0, stream);
}

extern "C" cudaError_t launch_sums(const struct work *work, cudaStream_t stream)
{
    uint32_t bytes = work->shape.elem_bytes;
    if (work->n == 0 || work->shape.n_elems == 0)
        return cudaSuccess;
    if ((bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8) || work->shape.kind > PIXEL_FLOAT)
        return cudaErrorInvalidValue;
    switch (work->kind) {
    case WORK_STATS: return launch_stats(work, stream);
    case WORK_PIXELS: return launch_pixels(work, stream);
    case WORK_WEIGH: return launch_weigh(work, stream);
    case WORK_SUM: return launch_sum(work, stream);
    case WORK_COMPARE: return launch_compare(work, stream);
    default: return cudaErrorInvalidValue;
    }
}

/* Load a kernel now. */
static cudaError_t load(const void *kernel)
{
    struct cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, kernel);
}

/* Those that decode have their tables in shared memory, and want all that is over as cache. */
static cudaError_t load_counts(const void *kernel)
{
    int device, bytes = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
    if (error == cudaSuccess)
        error =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, TABLES_BYTES);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                     (int)((TABLES_BYTES + 4096) * 100 / bytes + 1));
    return error;
}

extern "C" cudaError_t launch_load_sums(void)
{
    cudaError_t error = cudaSuccess;
    for (uint32_t i = 0; i < N_PIXEL_TYPES && error == cudaSuccess; i++) {
        const void *kernels[] = {statistics_kernels[i],
                                 pixels_kernels[i],
                                 plain_kernels[0][i],
                                 plain_kernels[1][i],
                                 plain_kernels[2][i],
                                 i < 4 ? compare_kernels[i] : NULL,
                                 i < 3 ? tiles_kernels[i] : NULL,
                                 i < 3 ? constants_kernels[i] : NULL};
        for (size_t k = 0; k < sizeof(kernels) / sizeof(*kernels) && error == cudaSuccess; k++)
            error = kernels[k] ? load(kernels[k]) : cudaSuccess;
    }
    for (size_t i = 0; i < N_COUNTS_KERNELS && error == cudaSuccess; i++)
        error = load_counts(counts_kernels[i].kernel);
    return error;
}
