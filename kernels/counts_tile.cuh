/* SPDX-License-Identifier: Apache-2.0
 *
 * counts_tile: a tile of a frame of form counts, put together in shared memory by a warp and written out in one piece.
 *
 * Units are decoded in the order of their classes and find their places in the tile; constants and patches follow;
 * then the tile goes to global memory by one bulk store where the hardware has those and the frame is 16-byte
 * aligned, else by plain ones. The whole warp calls these functions. */
#ifndef STOW_COUNTS_TILE_CUH
#define STOW_COUNTS_TILE_CUH

#include "counts_lanes.cuh"

/* PTX knows bulk stores from CUDA 12 on. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && __CUDACC_VER_MAJOR__ >= 12
#define BULK_STORES 1
#else
#define BULK_STORES 0
#endif
#define TILE_BYTES(Pixel) (COUNTS_TILE_PIXELS * (uint32_t)sizeof(Pixel))
#define TILE_GRANULES (COUNTS_TILE_UNITS / COUNTS_GRANULE_UNITS)

/* ---- pixels ------------------------------------------------------------------------------------- */

/* The four pixels of a unit, in memory order. */
template <typename Pixel> struct unit;
template <> struct unit<uint8_t> {
    uint32_t pixels;
};
template <> struct unit<uint16_t> {
    uint2 pixels;
};
template <> struct unit<uint32_t> {
    uint4 pixels;
};

/* From bytes, the first pixel lowest. */
static __device__ __forceinline__ void widen(uint32_t *pixels, uint32_t bytes)
{
    *pixels = bytes;
}
static __device__ __forceinline__ void widen(uint2 *pixels, uint32_t bytes)
{
    *pixels = make_uint2(__byte_perm(bytes, 0, 0x4140), __byte_perm(bytes, 0, 0x4342));
}
static __device__ __forceinline__ void widen(uint4 *pixels, uint32_t bytes)
{
    *pixels = make_uint4(bytes & 0xff, __byte_perm(bytes, 0, 0x4441), __byte_perm(bytes, 0, 0x4442),
                         bytes >> 24);
}

/* From values, modulo what a pixel holds. */
static __device__ __forceinline__ void pack(uint32_t *pixels, const uint32_t values[4])
{
    *pixels = __byte_perm(__byte_perm(values[0], values[1], 0x0040),
                          __byte_perm(values[2], values[3], 0x0040), 0x5410);
}
static __device__ __forceinline__ void pack(uint2 *pixels, const uint32_t values[4])
{
    *pixels = make_uint2(__byte_perm(values[0], values[1], 0x5410),
                         __byte_perm(values[2], values[3], 0x5410));
}
static __device__ __forceinline__ void pack(uint4 *pixels, const uint32_t values[4])
{
    *pixels = make_uint4(values[0], values[1], values[2], values[3]);
}

static __device__ __forceinline__ void store_shared(uint32_t at, uint32_t pixels)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(pixels) : "memory");
}
static __device__ __forceinline__ void store_shared(uint32_t at, uint2 pixels)
{
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(pixels.x), "r"(pixels.y)
                 : "memory");
}
static __device__ __forceinline__ void store_shared(uint32_t at, uint4 pixels)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(pixels.x), "r"(pixels.y),
                 "r"(pixels.z), "r"(pixels.w)
                 : "memory");
}

/* Bytes from the symbols of entries: 4 pixels of 2 bits. Fields must not meet while they are spread: bits 6 and 7 of
 * a symbol would carry into others if one multiplication did it all. */
static __device__ __forceinline__ uint32_t spread_4(uint32_t entry)
{
    uint32_t pairs = __byte_perm(entry, 0, 0x4441) * 0x1001u & 0x000f000fu;
    return pairs * 0x41u & 0x03030303u;
}

/* 2 pixels of 4 bits each. */
static __device__ __forceinline__ uint32_t spread_2(const uint32_t entries[2])
{
    uint32_t twice = __byte_perm(entries[0], entries[1], 0x5511);
    return (twice & 0x000f000fu) | (twice >> 4 & 0x0f000f00u);
}

/* 1 pixel of 8 bits each. */
static __device__ __forceinline__ uint32_t spread_1(const uint32_t first[2],
                                                    const uint32_t second[2])
{
    return __byte_perm(__byte_perm(first[0], first[1], 0x0051),
                       __byte_perm(second[0], second[1], 0x0051), 0x5410);
}

/* ---- a granule ---------------------------------------------------------------------------------- */

struct until {
    uint32_t four, two, one; /* classes, as struct counts_segment has them */
};

/* The bytes of a lane's two units. */
static __device__ __forceinline__ void decode_narrow(struct lanes *lanes, uint32_t bytes[2],
                                                     uint32_t k, const struct until *until,
                                                     uint32_t lane)
{
    uint32_t first[2], second[2];
    if (k < until->four) {
        next_pair(lanes, first, lane);
        bytes[0] = spread_4(first[0]);
        bytes[1] = spread_4(first[1]);
    } else if (k < until->two) {
        next_pair(lanes, first, lane);
        bytes[0] = spread_2(first);
        next_pair(lanes, second, lane);
        bytes[1] = spread_2(second);
    } else {
        next_pair(lanes, first, lane);
        next_pair(lanes, second, lane);
        bytes[0] = spread_1(first, second);
        next_pair(lanes, first, lane);
        next_pair(lanes, second, lane);
        bytes[1] = spread_1(first, second);
    }
}

template <typename Pixel>
static __device__ __forceinline__ void decode_granule(struct lanes *lanes, unit<Pixel> units[2],
                                                      uint32_t k, const struct until *until,
                                                      const struct counts_class *classes,
                                                      uint32_t lane)
{
    enter_class(lanes, k);
    if (k < until->one) {
        uint32_t bytes[2];
        decode_narrow(lanes, bytes, k, until, lane);
        widen(&units[0].pixels, bytes[0]);
        widen(&units[1].pixels, bytes[1]);
        return;
    }
    const struct counts_class class_ = classes[k];
#pragma unroll
    for (uint32_t u = 0; u < 2; u++) {
        uint32_t values[COUNTS_UNIT_PIXELS];
#pragma unroll
        for (uint32_t i = 0; i < COUNTS_UNIT_PIXELS; i++)
            values[i] = next_wide(lanes, &class_, lane);
        pack(&units[u].pixels, values);
    }
}

/* ---- constants and patches ---------------------------------------------------------------------- */

/* Both come in the order of tiles, and lanes hold 32 of them at a time. */
struct constants {
    const struct counts_constant *list;
    uint32_t next, n;
    uint32_t pixel, value; /* this lane's; pixel ~0: it has none */
};

static __device__ void load_constants(struct constants *constants, uint32_t lane)
{
    uint32_t i = constants->next + lane;
    constants->pixel = ~0u;
    if (i < constants->n) {
        constants->pixel = constants->list[i].pixel;
        constants->value = constants->list[i].value;
    }
    constants->next += WARP;
}

template <typename Pixel>
static __device__ __forceinline__ void put_constants(struct constants *constants, Pixel *pixels,
                                                     uint32_t tile, uint32_t lane)
{
    for (;;) {
        if (constants->pixel / COUNTS_TILE_PIXELS == tile)
            pixels[constants->pixel % COUNTS_TILE_PIXELS] = (Pixel)constants->value;
        if (__any_sync(ALL_LANES, constants->pixel / COUNTS_TILE_PIXELS > tile))
            return;
        load_constants(constants, lane);
    }
}

struct patches {
    const uint32_t *list;
    uint32_t next, n;
    uint32_t next_tile;          /* of patch `next` */
    uint32_t tile, pixel, delta; /* this lane's; tile ~0: it has none */
};

static __device__ void load_patches(struct patches *patches, uint32_t patch_words, uint32_t lane)
{
    uint32_t i = patches->next + lane, step = 0;
    if (i < patches->n) {
        const uint32_t *at = patches->list + (uint64_t)i * patch_words;
        uint32_t first = at[0];
        step = first >> 17 & COUNTS_MAX_TILE_STEP;
        patches->pixel = first >> 21;
        patches->delta = patch_words == 2 ? at[1] : first;
    }
    uint32_t steps = sum_to_lane(step, lane);
    patches->tile = i < patches->n ? patches->next_tile + steps - step : ~0u;
    patches->next_tile += value_of(steps, WARP - 1);
    patches->next += WARP;
}

/* False on a lane whose patch lies beyond the tile's n_pixels. */
template <typename Pixel>
static __device__ __forceinline__ bool add_patches(struct patches *patches, Pixel *pixels,
                                                   uint32_t tile, uint32_t n_pixels, uint32_t lane)
{
    bool good = true;
    for (;;) {
        if (patches->tile == tile) {
            pixels[patches->pixel] = (Pixel)(pixels[patches->pixel] + patches->delta);
            good = good && patches->pixel < n_pixels;
        }
        if (__any_sync(ALL_LANES, patches->tile > tile))
            return good;
        load_patches(patches, counts_patch_words(sizeof(Pixel)), lane);
    }
}

/* ---- a tile's way out --------------------------------------------------------------------------- */

template <typename Word>
static __device__ void copy_words(uint8_t *dst, const uint8_t *src, uint32_t n_bytes, uint32_t lane)
{
    for (uint32_t i = lane; i < n_bytes / sizeof(Word); i += WARP)
        ((Word *)dst)[i] = ((const Word *)src)[i];
}

/* In the largest words that dst and n_bytes allow. */
static __device__ void copy_tile(uint8_t *dst, const uint8_t *src, uint32_t n_bytes, uint32_t lane)
{
    uint32_t odd = (uint32_t)(uintptr_t)dst | n_bytes;
    if (odd % 16 == 0)
        copy_words<uint4>(dst, src, n_bytes, lane);
    else if (odd % 8 == 0)
        copy_words<uint2>(dst, src, n_bytes, lane);
    else if (odd % 4 == 0)
        copy_words<uint32_t>(dst, src, n_bytes, lane);
    else if (odd % 2 == 0)
        copy_words<uint16_t>(dst, src, n_bytes, lane);
    else
        copy_words<uint8_t>(dst, src, n_bytes, lane);
}

/* Write a tile that all lanes have helped to fill; afterwards it may be filled again. */
static __device__ __forceinline__ void write_tile(uint8_t *dst, uint8_t *tile, uint32_t tile_at,
                                                  uint32_t n_bytes, bool bulk, uint32_t lane)
{
#if BULK_STORES
    if (bulk && (((uint32_t)(uintptr_t)dst | n_bytes) & 15) == 0) {
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncwarp();
        if (lane == 0) {
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n\t"
                         "cp.async.bulk.commit_group;\n\t"
                         "cp.async.bulk.wait_group.read 0;" ::"l"(dst),
                         "r"(tile_at), "r"(n_bytes)
                         : "memory");
        }
        __syncwarp();
        return;
    }
#endif
    __syncwarp();
    copy_tile(dst, tile, n_bytes, lane);
    __syncwarp();
}

/* All bulk stores of this thread have been done. */
static __device__ void finish_stores(void)
{
#if BULK_STORES
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}

#endif
