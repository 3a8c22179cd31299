/* SPDX-License-Identifier: Apache-2.0
 *
 * rings on the GPU: a thread block a frame. Its rings are sums in shared memory, which threads add 16 bytes' pixels to:
 * first what neighbours in one ring have together, and nothing where that is 0, as most pixels are in many
 * acquisitions. Additions of integers are exact in any order. Then a warp adds the rings up from the innermost one. */
#include "launch.h"
#include "rings.h"

#define WARP 32u
#define ALL_LANES 0xffffffffu
#define VECTOR_BYTES 16u
#define THREADS 256u
#define LARGE_THREADS 1024u
#define LARGE_FRAME_BYTES (512u << 10)

struct rings_launch {
    const uint64_t *frames;
    const uint16_t *map;
    void *out;
    uint64_t out_stride, n_elems;
    uint32_t n_rings;
};

/* The pixels of 16 bytes and their rings. */
template <typename Pixel> struct stretch {
    static const uint32_t N = VECTOR_BYTES / sizeof(Pixel);
    Pixel pixels[N];
    uint16_t rings[N];
};

template <typename Pixel>
static __device__ __forceinline__ void load_stretch(struct stretch<Pixel> *to, const Pixel *pixels,
                                                    const uint16_t *map, uint64_t v)
{
    const uint32_t N = stretch<Pixel>::N;
    uint4 bytes = ((const uint4 *)pixels)[v];
    memcpy(to->pixels, &bytes, sizeof(bytes));
#pragma unroll
    for (uint32_t i = 0; i < N / 4; i++) {
        uint2 four = __ldg((const uint2 *)(map + v * N) + i);
        memcpy(to->rings + 4 * i, &four, sizeof(four));
    }
}

template <typename Sum>
static __device__ __forceinline__ void add(Sum *sums, uint32_t ring, Sum sum)
{
    if (sum != 0)
        atomicAdd(sums + ring, sum);
}

template <typename Pixel, typename Sum>
static __device__ __forceinline__ void add_stretch(Sum *sums, const struct stretch<Pixel> *from)
{
    uint32_t ring = from->rings[0];
    Sum sum = from->pixels[0];
#pragma unroll
    for (uint32_t i = 1; i < stretch<Pixel>::N; i++) {
        if (from->rings[i] != ring) {
            add(sums, ring, sum);
            ring = from->rings[i];
            sum = 0;
        }
        sum += from->pixels[i];
    }
    add(sums, ring, sum);
}

/* The whole warp calls this. */
template <typename Sum>
static __device__ void put_sums(const Sum *sums, uint32_t frame, const struct rings_launch *launch)
{
    const uint32_t lane = threadIdx.x % WARP;
    Sum before = 0;
    for (uint32_t first = 0; first < launch->n_rings; first += WARP) {
        const uint32_t ring = first + lane;
        Sum sum = ring < launch->n_rings ? sums[ring] : 0;
        for (uint32_t step = 1; step < WARP; step *= 2) {
            Sum below = __shfl_up_sync(ALL_LANES, sum, step);
            sum += lane >= step ? below : 0;
        }
        sum += before;
        if (ring < launch->n_rings)
            ((Sum *)launch->out)[ring * launch->out_stride + frame] = sum;
        before = __shfl_sync(ALL_LANES, sum, WARP - 1);
    }
}

template <typename Pixel, typename Sum>
static __global__ void __launch_bounds__(LARGE_THREADS)
    sum_rings(const __grid_constant__ struct rings_launch launch)
{
    extern __shared__ __align__(16) uint8_t memory[];
    Sum *sums = (Sum *)memory;
    const Pixel *pixels = (const Pixel *)launch.frames[blockIdx.x];
    const uint64_t n_vectors = launch.n_elems / stretch<Pixel>::N;
    for (uint32_t k = threadIdx.x; k <= launch.n_rings; k += blockDim.x)
        sums[k] = 0;
    __syncthreads();
#pragma unroll 2
    for (uint64_t v = threadIdx.x; v < n_vectors; v += blockDim.x) {
        struct stretch<Pixel> stretch;
        load_stretch(&stretch, pixels, launch.map, v);
        add_stretch(sums, &stretch);
    }
    for (uint64_t i = n_vectors * stretch<Pixel>::N + threadIdx.x; i < launch.n_elems;
         i += blockDim.x)
        add(sums, launch.map[i], (Sum)pixels[i]);
    __syncthreads();
    if (threadIdx.x < WARP)
        put_sums(sums, blockIdx.x, &launch);
}

/* By element size (1, 2, 4 bytes), narrow and wide. */
#define BY_SUM(pixel)                                          \
    {                                                          \
        (const void *)sum_rings<pixel, uint32_t>,              \
            (const void *)sum_rings<pixel, unsigned long long> \
    }
static const void *const kernels[3][2] = {BY_SUM(uint8_t), BY_SUM(uint16_t), BY_SUM(uint32_t)};

extern "C" cudaError_t launch_rings(const struct work *work, cudaStream_t stream)
{
    const uint32_t bytes = work->shape.elem_bytes;
    if (work->n == 0)
        return cudaSuccess;
    if ((bytes != 1 && bytes != 2 && bytes != 4) || work->rings.n_rings > RINGS_MAX)
        return cudaErrorInvalidValue;
    struct rings_launch of = {(const uint64_t *)work->rings.frames,
                              (const uint16_t *)work->rings.map,
                              (void *)work->rings.out,
                              work->rings.out_stride,
                              work->shape.n_elems,
                              work->rings.n_rings};
    const void *kernel = kernels[bytes == 4 ? 2 : bytes - 1][work->rings.wide];
    uint32_t threads = frame_bytes(&work->shape) >= LARGE_FRAME_BYTES ? LARGE_THREADS : THREADS;
    size_t shared_bytes = (of.n_rings + 1) * (work->rings.wide ? 8 : 4);
    void *arguments[] = {&of};
    return cudaLaunchKernel(kernel, dim3(work->n), dim3(threads), arguments, shared_bytes, stream);
}

extern "C" cudaError_t launch_load_rings(void)
{
    cudaError_t error = cudaSuccess;
    for (uint32_t i = 0; i < 6 && error == cudaSuccess; i++) {
        struct cudaFuncAttributes attributes;
        error = cudaFuncGetAttributes(&attributes, kernels[i / 2][i % 2]);
    }
    return error;
}
