/* SPDX-License-Identifier: Apache-2.0
 *
 * counts_mend: how the encoder says what symbols cannot: pixels are clamped, symbols without a state are coded as
 * others, constants that are not what they should be are found, and patches are written. */
#ifndef STOW_COUNTS_MEND_CUH
#define STOW_COUNTS_MEND_CUH

#include "counts_desk.cuh"

/* ---- patches -------------------------------------------------------------------------------------- */

template <uint32_t ELEM_BYTES>
static __device__ void write_patch(const struct desk *desk, uint32_t i, uint32_t pixel,
                                   uint32_t tile_step, int64_t delta)
{
    const uint32_t n_words = counts_patch_words(ELEM_BYTES);
    uint32_t head = pixel << 21 | tile_step << 17;
    if (i >= desk->room_words / n_words)
        return;
    uint32_t *patch = desk->room + (uint64_t)i * n_words;
    if (n_words == 2)
        patch[1] = (uint32_t)delta;
    patch[0] = head | ((uint32_t)(n_words == 2 ? delta >> 32 : delta) & 0x1ffff);
}

/* Those of lanes whose delta is not 0; the last lane's comes first, since all goes backwards. */
template <uint32_t ELEM_BYTES>
static __device__ void write_patches(struct desk *desk, uint32_t pixel, int64_t delta,
                                     uint32_t lane)
{
    uint32_t lanes = __ballot_sync(ALL_LANES, delta != 0);
    if (!lanes)
        return;
    uint32_t n = desk->n_patches, tile = desk->tile;
    uint32_t distance = n ? desk->patch_tile - tile : 0;
    uint32_t n_fillers = distance ? (distance - 1) / COUNTS_MAX_TILE_STEP : 0;
    for (uint32_t i = lane; i < n_fillers; i += WARP)
        write_patch<ELEM_BYTES>(desk, n + i, 0, COUNTS_MAX_TILE_STEP, 0);
    uint32_t before = __popc(lanes >> lane >> 1);
    uint32_t tile_step = before ? 0 : distance - n_fillers * COUNTS_MAX_TILE_STEP;
    if (delta != 0)
        write_patch<ELEM_BYTES>(desk, n + n_fillers + before, pixel, tile_step, delta);
    __syncwarp();
    if (lane == 0) {
        desk->n_patches = n + n_fillers + __popc(lanes);
        desk->patch_tile = tile;
    }
    __syncwarp();
}

/* How far a constant is from what the model says. Its place in the tile does not tell. */
template <uint32_t ELEM_BYTES>
static __device__ int64_t constant_delta(const struct desk *desk, uint32_t at)
{
    uint32_t pixel = desk->tile * COUNTS_TILE_PIXELS + at;
    uint32_t begin = 0, end = desk->n_constants;
    while (end - begin > 1) {
        uint32_t middle = (begin + end) / 2;
        if (desk->constants[middle].pixel <= pixel)
            begin = middle;
        else
            end = middle;
    }
    return (int64_t)load_pixel<ELEM_BYTES>(desk->frame, pixel) - desk->constants[begin].value;
}

/* A pixel on the way to its symbol. */
struct coded {
    uint32_t field, raw;
};

static __device__ struct coded code_pixel(uint32_t value, struct counts_class range,
                                          uint32_t max_field)
{
    uint32_t above = value - range.base, field = above >> range.shift;
    if (value < range.base)
        return {0, 0};
    if (field > max_field)
        return {max_field, (1u << range.shift) - 1};
    return {field, above & ((1u << range.shift) - 1)};
}

struct mended {
    struct symbol symbol;
    uint32_t raw;
};

/* The symbol of n pixels from `at` of the tile, whatever they are, and patches for what it does not say. The whole
 * warp calls this. */
template <uint32_t ELEM_BYTES>
static __device__ __noinline__ struct mended mend(struct desk *desk, const struct tables *tables,
                                                  uint32_t class_, uint32_t n, uint32_t at)
{
    const struct counts_class range = tables->classes[class_];
    uint32_t lane = threadIdx.x, field_bits = 8 / n, max_field = (1u << field_bits) - 1;
    uint32_t given = 0, symbol = 0, raw = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t p = at + i;
        bool constant = desk->n_constants && (desk->is_constant[p / 32] >> p % 32 & 1);
        if (constant || p >= desk->n_pixels)
            continue;
        struct coded coded = code_pixel(load_pixel<ELEM_BYTES>(tile_of(desk), p), range, max_field);
        given |= 1u << i;
        symbol |= coded.field << i * field_bits;
        raw = coded.raw;
    }
    uint32_t stands = symbol_coded(tables->symbols[class_][symbol]);
    for (uint32_t i = n; i-- > 0;) {
        uint32_t p = at + i;
        uint32_t field = stands >> i * field_bits & max_field;
        int64_t delta = 0;
        if (given >> i & 1)
            delta = (int64_t)load_pixel<ELEM_BYTES>(tile_of(desk), p) -
                    ((int64_t)range.base + ((int64_t)field << range.shift | raw));
        else if (desk->deviates && p < desk->n_pixels)
            delta = constant_delta<ELEM_BYTES>(desk, p);
        write_patches<ELEM_BYTES>(desk, p, delta, lane);
    }
    return {tables->symbols[class_][stands], raw};
}

#endif
