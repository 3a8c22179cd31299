/* SPDX-License-Identifier: Apache-2.0
 *
 * counts_segment: how the decoder and the encoder on the CPU look things up in a segment's table. */
#ifndef STOW_COUNTS_SEGMENT_H
#define STOW_COUNTS_SEGMENT_H

#include "counts.h"

#define COUNTS_TILE_GRANULES (COUNTS_TILE_UNITS / COUNTS_GRANULE_UNITS)
#define COUNTS_MAX_STEPS 8u /* of a granule; also the pixels that a lane has in it */

/* How the symbols of a class are made of pixels. */
struct counts_kind {
    uint32_t pixels; /* a symbol has: 4, 2, 1 */
    uint32_t bits;   /* of each */
    bool wide;
};

static inline struct counts_kind counts_kind_of(const struct counts_segment *segment,
                                                uint32_t class_)
{
    if (class_ < segment->until4)
        return (struct counts_kind){4, 2, false};
    if (class_ < segment->until2)
        return (struct counts_kind){2, 4, false};
    return (struct counts_kind){1, 8, class_ >= segment->until1};
}

static inline const void *counts_at(const struct counts_segment *segment, uint32_t offset)
{
    return (const uint8_t *)segment + offset;
}

static inline uint32_t counts_tile_granules(const struct counts_segment *segment, uint32_t tile)
{
    uint32_t rest = segment->n_granules - tile * COUNTS_TILE_GRANULES;
    return rest < COUNTS_TILE_GRANULES ? rest : COUNTS_TILE_GRANULES;
}

/* Pixels of the frame in this tile. */
static inline uint32_t counts_tile_pixels(const struct frame_shape *shape, uint32_t tile)
{
    uint64_t rest = shape->n_elems - (uint64_t)tile * COUNTS_TILE_PIXELS;
    return rest < COUNTS_TILE_PIXELS ? (uint32_t)rest : COUNTS_TILE_PIXELS;
}

#endif
