/* SPDX-License-Identifier: Apache-2.0
 *
 * counts_desk: what the encoder has in shared memory: the encoding tables, once for a thread block, and for each warp
 * a desk: the stream that it works on and the tile that it has of the frame. */
#ifndef STOW_COUNTS_DESK_CUH
#define STOW_COUNTS_DESK_CUH

#include "counts.h"
#include "warp.cuh"

#include <cuda_pipeline.h>

/* ---- tables and desks ----------------------------------------------------------------------------- */

/* A struct counts_symbol, loaded as one. In its `rest`, from the low bit up: 16 bits where it goes in the states of
 * all classes, signed; 8 bits the symbol that stands for it; whether that is another. */
struct alignas(8) symbol {
    uint32_t bits_add, rest;
};

/* Of a block. */
struct tables {
    struct symbol symbols[COUNTS_CLASSES][256];
    uint16_t states[COUNTS_CLASSES * COUNTS_STATES];
    struct counts_class classes[COUNTS_CLASSES];
};

/* Of a warp: its stream, and the tile that it is in. The tile's pixels follow. */
struct alignas(16) desk {
    const uint8_t *frame;
    const struct counts_constant *constants; /* of the tile */
    uint32_t *room;
    uint32_t room_words;
    uint32_t n_patches;
    uint32_t patch_tile; /* of the patch written last */
    uint32_t tile;
    uint32_t n_pixels; /* of the tile that the frame has */
    uint32_t n_constants;
    uint32_t deviates;               /* a constant is not what the model says */
    uint8_t n_crossed[COUNTS_LANES]; /* words completed; only until one is laid down */
    uint32_t is_constant[COUNTS_TILE_PIXELS / 32]; /* means something where there are constants */
};

static_assert(sizeof(struct tables) % 16 == 0 && sizeof(struct desk) % 16 == 0,
              "tiles are aligned");

template <uint32_t ELEM_BYTES> static __host__ __device__ uint32_t desk_bytes(void)
{
    return (uint32_t)sizeof(struct desk) + COUNTS_TILE_PIXELS * ELEM_BYTES;
}

static __device__ uint8_t *tile_of(struct desk *desk)
{
    return (uint8_t *)(desk + 1);
}

template <uint32_t ELEM_BYTES> struct pixel_type;
template <> struct pixel_type<1> {
    typedef uint8_t type;
};
template <> struct pixel_type<2> {
    typedef uint16_t type;
};
template <> struct pixel_type<4> {
    typedef uint32_t type;
};

template <uint32_t ELEM_BYTES> static __device__ uint32_t load_pixel(const void *pixels, uint64_t i)
{
    return ((const typename pixel_type<ELEM_BYTES>::type *)pixels)[i];
}

static __device__ struct symbol make_symbol(struct counts_symbol of, uint32_t class_,
                                            uint32_t index)
{
    uint32_t state_add = (uint32_t)(of.state_add + (int32_t)(class_ * COUNTS_STATES));
    return {of.bits_add,
            (uint32_t)(of.coded != index) << 24 | (uint32_t)of.coded << 16 | (state_add & 0xffff)};
}

static __device__ int32_t symbol_state_add(struct symbol symbol)
{
    return (int16_t)(symbol.rest & 0xffff);
}

static __device__ uint32_t symbol_coded(struct symbol symbol)
{
    return symbol.rest >> 16 & 0xff;
}

static __device__ bool symbol_is_other(struct symbol symbol)
{
    return symbol.rest >> 24;
}

static __device__ void load_tables(struct tables *tables, const struct counts_encoder *encoder,
                                   const struct counts_segment *segment)
{
    uint32_t thread = threadIdx.y * WARP + threadIdx.x, n_threads = blockDim.y * WARP;
    const uint4 *states = (const uint4 *)encoder->states;
    for (uint32_t i = thread; i < sizeof(tables->states) / sizeof(uint4); i += n_threads)
        ((uint4 *)tables->states)[i] = states[i];
    for (uint32_t i = thread; i < COUNTS_CLASSES * 256; i += n_threads)
        tables->symbols[i / 256][i % 256] =
            make_symbol(encoder->symbols[i / 256][i % 256], i / 256, i % 256);
    if (thread < COUNTS_CLASSES)
        tables->classes[thread] = segment->classes[thread];
    __syncthreads();
}

/* ---- tiles ---------------------------------------------------------------------------------------- */

static __device__ void prefetch(const void *address)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/* The tile's pixels to shared memory; zeros where the frame ends before the tile does. */
template <uint32_t ELEM_BYTES>
static __device__ void load_tile(struct desk *desk, uint32_t n_pixels, uint32_t lane)
{
    uint8_t *tile = tile_of(desk);
    const uint32_t tile_bytes = COUNTS_TILE_PIXELS * ELEM_BYTES;
    const uint8_t *from = desk->frame + (uint64_t)desk->tile * tile_bytes;
    uint32_t n = n_pixels * ELEM_BYTES, whole = n / 16 * 16;
#pragma unroll 4
    for (uint32_t i = 16 * lane; i < whole; i += 16 * WARP)
        __pipeline_memcpy_async(tile + i, from + i, 16);
    __pipeline_commit();
    if (desk->tile > 0)
#pragma unroll 1
        for (uint32_t i = 128 * lane; i < tile_bytes; i += 128 * WARP)
            prefetch(from - tile_bytes + i);
#pragma unroll 1
    for (uint32_t i = whole + lane; i < tile_bytes; i += WARP)
        tile[i] = i < n ? from[i] : 0;
    __pipeline_wait_prior(0);
    __syncwarp();
}

/* Mark the tile's constants, put zeros in their places, and see whether they are what they should be. */
template <uint32_t ELEM_BYTES>
static __device__ bool take_constants(struct desk *desk, const struct counts_constant *constants,
                                      uint32_t n, uint32_t lane)
{
    typename pixel_type<ELEM_BYTES>::type *tile =
        (typename pixel_type<ELEM_BYTES>::type *)tile_of(desk);
    bool deviates = false;
#pragma unroll
    for (uint32_t i = lane; i < COUNTS_TILE_PIXELS / 32; i += WARP)
        desk->is_constant[i] = 0;
    __syncwarp();
#pragma unroll 1
    for (uint32_t i = lane; i < n; i += WARP) {
        uint32_t at = constants[i].pixel % COUNTS_TILE_PIXELS;
        deviates = deviates || tile[at] != constants[i].value;
        tile[at] = 0;
        atomicOr(&desk->is_constant[at / 32], 1u << at % 32);
    }
    return __any_sync(ALL_LANES, deviates);
}

/* Returns whether a constant deviates. Apart, so that it takes no registers from the way through granules. */
template <uint32_t ELEM_BYTES>
static __device__ __noinline__ bool open_tile(struct desk *desk,
                                              const struct counts_segment *segment,
                                              uint64_t n_elems, uint32_t tile, uint32_t lane)
{
    const uint8_t *base = (const uint8_t *)segment;
    const uint32_t *starts = (const uint32_t *)(base + segment->constant_tiles_at) + tile;
    uint32_t first = starts[0], n = starts[1] - first;
    const struct counts_constant *constants =
        (const struct counts_constant *)(base + segment->constants_at) + first;
    uint32_t n_pixels =
        (uint32_t)min((uint64_t)COUNTS_TILE_PIXELS, n_elems - (uint64_t)tile * COUNTS_TILE_PIXELS);
    __syncwarp(); /* all are done with the tile before */
    if (lane == 0) {
        desk->tile = tile;
        desk->n_pixels = n_pixels;
        desk->constants = constants;
        desk->n_constants = n;
    }
    __syncwarp();
    load_tile<ELEM_BYTES>(desk, n_pixels, lane);
    bool deviates = n && take_constants<ELEM_BYTES>(desk, constants, n, lane);
    if (lane == 0)
        desk->deviates = deviates;
    __syncwarp();
    return deviates;
}

#endif
