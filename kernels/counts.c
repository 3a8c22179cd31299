/* SPDX-License-Identifier: Apache-2.0
 *
 * counts on the CPU: the decoder that a GPU's is checked against. counts_encode.c is the way back.
 *
 * Decoding goes stream by stream, tile by tile, granule by granule. The symbols of a granule are read for all 32
 * lanes, two steps at a time, then spread over its units' pixels in a tile of its own; constants and patches follow,
 * and the tile is copied to the frame. Words are read in runs of which 32 are always there: past a stream's end
 * come zeros, so that a damaged frame leads nowhere.
 *
 * A frame that is not well-formed gives STOW_CORRUPT with a sentence; pixels already written then mean nothing.
 * What is checked: that streams lie in the frame's bytes, that each lane begins with its marker and ends with state
 * 0 on a word's border, that all words were asked for, that patches lie in the stream's tiles and in the frame. */
#include "counts.h"

#include "counts_segment.h"
#include "error.h"
#include "wide.h"

#include <string.h>

#define STATE_MASK (COUNTS_STATES - 1)

/* ---- lanes ---------------------------------------------------------------------------------------- */

/* A lane has 64 bits of its string in hand, the next one at the top: used of the first 32 are gone, and zeros have come
 * in below. Its state is the index of an entry in the tables of all classes. */
struct lanes {
    uint64_t window[COUNTS_LANES];
    uint32_t used[COUNTS_LANES];
    uint32_t state[COUNTS_LANES];
    /* the words of the stream, and how many were asked for */
    const uint32_t *words;
    uint64_t n_words, at;
    uint32_t spare[COUNTS_LANES];
};

/* The next 32 words; those past the end are zeros. */
static INLINED const uint32_t *next_words(struct lanes *lanes)
{
    if (lanes->at + COUNTS_LANES <= lanes->n_words)
        return lanes->words + lanes->at;
    memset(lanes->spare, 0, sizeof(lanes->spare));
    if (lanes->at < lanes->n_words)
        memcpy(lanes->spare, lanes->words + lanes->at, (lanes->n_words - lanes->at) * 4);
    return lanes->spare;
}

/* Lanes that are through with a word take the next one, in turn. */
static INLINED void refill(struct lanes *lanes)
{
    const uint32_t *next = next_words(lanes), *word = next;
    for (uint32_t l = 0; l < COUNTS_LANES; l++) {
        uint32_t crossed = lanes->used[l] >> 5;
        lanes->used[l] &= 31;
        lanes->window[l] |= ((uint64_t)*word & -(uint64_t)crossed) << lanes->used[l];
        /* Never beyond the last of 32: it moves after lane 31 only where all have crossed. */
        word += l + 1 < COUNTS_LANES ? crossed : 0;
        lanes->at += crossed;
    }
}

static INLINED bool start_lanes(struct lanes *lanes)
{
    uint32_t missing = 0;
    for (uint32_t l = 0; l < COUNTS_LANES; l++) {
        uint32_t first = lanes->words[l];
        missing |= first == 0;
        uint32_t skip = (uint32_t)__builtin_clz(first | 1) + 1;
        uint64_t window = ((uint64_t)first << 32 | lanes->words[COUNTS_LANES + l]) << skip;
        lanes->state[l] = (uint32_t)(window >> (64 - COUNTS_TABLE_BITS));
        lanes->window[l] = window << COUNTS_TABLE_BITS;
        lanes->used[l] = skip + COUNTS_TABLE_BITS;
    }
    lanes->at = 2 * COUNTS_LANES;
    refill(lanes);
    return !missing;
}

/* One symbol of lane l. */
static INLINED uint8_t read_symbol(struct lanes *lanes, const uint32_t *tables, uint32_t l)
{
    uint32_t entry = tables[lanes->state[l]], n_bits = entry & 31;
    uint64_t window = lanes->window[l];
    lanes->state[l] = (entry >> 18) + (uint32_t)(window >> 1 >> (63 - n_bits));
    lanes->window[l] = window << n_bits;
    lanes->used[l] += n_bits;
    return (uint8_t)(entry >> 8);
}

/* Two symbols of every lane. */
static INLINED void read_pair(struct lanes *lanes, const uint32_t *tables,
                              uint8_t (*symbols)[COUNTS_LANES])
{
    for (uint32_t l = 0; l < COUNTS_LANES; l++) {
        symbols[0][l] = read_symbol(lanes, tables, l);
        symbols[1][l] = read_symbol(lanes, tables, l);
    }
    refill(lanes);
}

/* One value of every lane of a wide class. */
static INLINED void read_wide(struct lanes *lanes, const uint32_t *tables,
                              const struct counts_class *class_, uint32_t values[COUNTS_LANES])
{
    uint32_t shift = class_->shift;
    for (uint32_t l = 0; l < COUNTS_LANES; l++) {
        uint32_t high = read_symbol(lanes, tables, l);
        uint32_t low = (uint32_t)(lanes->window[l] >> 1 >> (63 - shift));
        lanes->window[l] <<= shift;
        lanes->used[l] += shift;
        values[l] = class_->base + (high << shift | low);
    }
    refill(lanes);
}

/* ---- tiles ---------------------------------------------------------------------------------------- */

/* Pixels of a tile, of the frame's element size. */
union tile {
    uint8_t u1[COUNTS_TILE_PIXELS];
    uint16_t u2[COUNTS_TILE_PIXELS];
    uint32_t u4[COUNTS_TILE_PIXELS];
};

/* A granule as it was read: values of wide classes, else symbols. */
struct granule {
    uint8_t symbols[COUNTS_MAX_STEPS][COUNTS_LANES];
    uint32_t values[COUNTS_MAX_STEPS][COUNTS_LANES];
};

/* From lanes to units. order: the two units of each lane. */
#define SPREAD(name, pixel_type)                                                      \
    static INLINED void name(pixel_type *tile, const struct granule *granule,         \
                             const uint32_t *order, struct counts_kind kind)          \
    {                                                                                 \
        for (uint32_t l = 0; l < COUNTS_LANES; l++) {                                 \
            pixel_type *a = tile + (order[l] & 0xffff) * COUNTS_UNIT_PIXELS;          \
            pixel_type *b = tile + (order[l] >> 16) * COUNTS_UNIT_PIXELS;             \
            if (kind.pixels == 4) {                                                   \
                uint8_t in_a = granule->symbols[0][l], in_b = granule->symbols[1][l]; \
                for (uint32_t i = 0; i < 4; i++)                                      \
                    a[i] = in_a >> (2 * i) & 3, b[i] = in_b >> (2 * i) & 3;           \
            } else if (kind.pixels == 2) {                                            \
                for (uint32_t i = 0; i < 4; i++) {                                    \
                    a[i] = granule->symbols[i / 2][l] >> (i % 2 * 4) & 15;            \
                    b[i] = granule->symbols[2 + i / 2][l] >> (i % 2 * 4) & 15;        \
                }                                                                     \
            } else if (!kind.wide) {                                                  \
                for (uint32_t i = 0; i < 4; i++)                                      \
                    a[i] = granule->symbols[i][l], b[i] = granule->symbols[4 + i][l]; \
            } else {                                                                  \
                for (uint32_t i = 0; i < 4; i++) {                                    \
                    a[i] = (pixel_type)granule->values[i][l];                         \
                    b[i] = (pixel_type)granule->values[4 + i][l];                     \
                }                                                                     \
            }                                                                         \
        }                                                                             \
    }

SPREAD(spread_u1, uint8_t)
SPREAD(spread_u2, uint16_t)
SPREAD(spread_u4, uint32_t)

static INLINED void spread(union tile *tile, const struct granule *granule, const uint32_t *order,
                           struct counts_kind kind, uint32_t elem_bytes)
{
    switch (elem_bytes) {
    case 1: spread_u1(tile->u1, granule, order, kind); break;
    case 2: spread_u2(tile->u2, granule, order, kind); break;
    default: spread_u4(tile->u4, granule, order, kind);
    }
}

static INLINED void read_granule(struct granule *granule, struct lanes *lanes,
                                 const struct counts_segment *segment, uint32_t class_,
                                 struct counts_kind kind)
{
    const uint32_t *tables = counts_at(segment, segment->tables_at);
    for (uint32_t l = 0; l < COUNTS_LANES; l++)
        lanes->state[l] = (lanes->state[l] & STATE_MASK) | class_ * COUNTS_STATES;
    uint32_t n_steps = COUNTS_MAX_STEPS / kind.pixels;
    if (kind.wide)
        for (uint32_t step = 0; step < n_steps; step++)
            read_wide(lanes, tables, &segment->classes[class_], granule->values[step]);
    else
        for (uint32_t step = 0; step < n_steps; step += 2)
            read_pair(lanes, tables, &granule->symbols[step]);
}

static void set_pixel(union tile *tile, uint32_t i, uint32_t value, uint32_t elem_bytes)
{
    switch (elem_bytes) {
    case 1: tile->u1[i] = (uint8_t)value; break;
    case 2: tile->u2[i] = (uint16_t)value; break;
    default: tile->u4[i] = value;
    }
}

static void add_to_pixel(union tile *tile, uint32_t i, uint32_t delta, uint32_t elem_bytes)
{
    switch (elem_bytes) {
    case 1: tile->u1[i] = (uint8_t)(tile->u1[i] + delta); break;
    case 2: tile->u2[i] = (uint16_t)(tile->u2[i] + delta); break;
    default: tile->u4[i] += delta;
    }
}

static void set_constants(union tile *tile, const struct counts_segment *segment, uint32_t t,
                          uint32_t elem_bytes)
{
    const uint32_t *until = counts_at(segment, segment->constant_tiles_at);
    const struct counts_constant *constants = counts_at(segment, segment->constants_at);
    for (uint32_t i = until[t]; i < until[t + 1]; i++)
        set_pixel(tile, constants[i].pixel % COUNTS_TILE_PIXELS, constants[i].value, elem_bytes);
}

/* Where the patches of a stream have got to. */
struct patches {
    const uint32_t *next;
    uint32_t left;
    uint32_t tile; /* of the next one */
};

/* Apply those of tile t. False: one lies beyond the tile's n_pixels. */
static bool apply_patches(union tile *tile, struct patches *patches, uint32_t t, uint32_t n_pixels,
                          uint32_t elem_bytes)
{
    while (patches->left && patches->tile == t) {
        uint32_t word = patches->next[0], pixel = word >> 21;
        if (pixel >= n_pixels)
            return false;
        add_to_pixel(tile, pixel, elem_bytes == 4 ? patches->next[1] : word, elem_bytes);
        patches->tile += word >> 17 & COUNTS_MAX_TILE_STEP;
        patches->next += counts_patch_words(elem_bytes);
        patches->left--;
    }
    return true;
}

/* ---- streams and frames --------------------------------------------------------------------------- */

/* How a stream ended. */
static int check_end(const struct lanes *lanes, const struct patches *patches, uint32_t s,
                     struct stow_error *err)
{
    for (uint32_t l = 0; l < COUNTS_LANES; l++)
        if ((lanes->state[l] & STATE_MASK) != 0 || lanes->used[l] != 0)
            return error_set(err, STOW_CORRUPT, "stream %lu: lane %lu does not end as it should",
                             (unsigned long)s, (unsigned long)l);
    if (lanes->at < lanes->n_words)
        return error_set(err, STOW_CORRUPT, "stream %lu: %lu words at its end are not used",
                         (unsigned long)s, (unsigned long)(lanes->n_words - lanes->at));
    if (patches->left)
        return error_set(err, STOW_CORRUPT, "stream %lu: a patch for tile %lu, which it has not",
                         (unsigned long)s, (unsigned long)patches->tile);
    return 0;
}

WIDE_LOOPS static int decode_stream(uint8_t *dst, const struct counts_part *part,
                                    const struct counts_segment *segment,
                                    const struct frame_shape *shape, uint32_t s,
                                    struct stow_error *err)
{
    struct lanes lanes = {.words = part->words, .n_words = part->n_words};
    struct patches patches = {part->patches, part->n_patches, part->first_tile};
    const uint32_t *order = counts_at(segment, segment->order_at);
    const uint8_t *classes = counts_at(segment, segment->granules_at);
    uint32_t end = counts_stream_tile(segment->n_tiles, segment->n_streams, s + 1);
    union tile tile;
    struct granule granule;
    if (!start_lanes(&lanes))
        return error_set(err, STOW_CORRUPT, "stream %lu: a lane has no marker", (unsigned long)s);
    for (uint32_t t = counts_stream_tile(segment->n_tiles, segment->n_streams, s); t < end; t++) {
        uint32_t n_pixels = counts_tile_pixels(shape, t), first = t * COUNTS_TILE_GRANULES;
        for (uint32_t g = first; g < first + counts_tile_granules(segment, t); g++) {
            struct counts_kind kind = counts_kind_of(segment, classes[g]);
            read_granule(&granule, &lanes, segment, classes[g], kind);
            if (dst)
                spread(&tile, &granule, order + g * COUNTS_LANES, kind, shape->elem_bytes);
        }
        if (dst)
            set_constants(&tile, segment, t, shape->elem_bytes);
        if (!apply_patches(&tile, &patches, t, n_pixels, shape->elem_bytes))
            return error_set(err, STOW_CORRUPT, "stream %lu: a patch outside of the frame",
                             (unsigned long)s);
        if (dst)
            memcpy(dst + (uint64_t)t * COUNTS_TILE_PIXELS * shape->elem_bytes, &tile,
                   (size_t)n_pixels * shape->elem_bytes);
    }
    return check_end(&lanes, &patches, s, err);
}

int counts_decode(const struct decode_job *job, const struct frame_shape *shape,
                  struct stow_error *err)
{
    const struct counts_segment *segment = (const struct counts_segment *)(uintptr_t)job->blocks;
    const uint32_t *frame = (const uint32_t *)(uintptr_t)job->src;
    for (uint32_t s = 0; s < segment->n_streams; s++) {
        struct counts_part part;
        if (!counts_find_part(&part, frame, job->src_bytes, segment->n_streams, s,
                              shape->elem_bytes))
            return error_set(err, STOW_CORRUPT, "stream %lu does not lie in the frame's %lu bytes",
                             (unsigned long)s, (unsigned long)job->src_bytes);
        int status = decode_stream((uint8_t *)(uintptr_t)job->dst, &part, segment, shape, s, err);
        if (status)
            return status;
    }
    return 0;
}
