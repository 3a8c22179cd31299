/* SPDX-License-Identifier: Apache-2.0
 *
 * counts_encode: the encoder on the CPU, whose bytes a GPU's must have.
 *
 * It goes backwards, last tile, last granule, last step first, since a state says which symbol led to it. Of a
 * granule all symbols are made first. Nearly always they say the pixels as they are: then whole units are looked at
 * together, in 16 bits a pixel. Elsewhere they are made one by one, with what decoding would make of them, and patches
 * follow. Then the lanes' strings grow at their front by what the symbols need. */
#include "counts.h"

#include "counts_segment.h"
#include "counts_strings.h"

#include <string.h>

/* ---- patches -------------------------------------------------------------------------------------- */

static void put_patch(struct room *room, uint32_t tile, uint32_t pixel, int64_t delta,
                      uint32_t elem_bytes)
{
    uint32_t step = room->n_patches ? room->first_tile - tile : 0;
    uint32_t n_words = counts_patch_words(elem_bytes);
    if ((size_t)(room->words_begin - room->patches_end) < n_words ||
        room->n_patches == COUNTS_MAX_PATCHES) {
        room->full = true;
        return;
    }
    uint32_t high = (uint32_t)(n_words == 2 ? delta >> 32 : delta) & 0x1ffff;
    *room->patches_end++ = pixel << 21 | step << 17 | high;
    if (n_words == 2)
        *room->patches_end++ = (uint32_t)delta;
    room->n_patches++;
    room->first_tile = tile;
}

/* A patch before those that are there, with patches of delta 0 between where they are too far away. */
static void patch_pixel(struct room *room, uint32_t tile, uint32_t pixel, int64_t delta,
                        uint32_t elem_bytes)
{
    while (!room->full && room->n_patches && room->first_tile - tile > COUNTS_MAX_TILE_STEP)
        put_patch(room, room->first_tile - COUNTS_MAX_TILE_STEP, 0, 0, elem_bytes);
    if (!room->full)
        put_patch(room, tile, pixel, delta, elem_bytes);
}

/* ---- tiles ---------------------------------------------------------------------------------------- */

/* A tile's pixels, and which are none of a class's business: constants, and what is beyond the
 * frame. */
struct source_tile {
    uint32_t pixels[COUNTS_TILE_PIXELS];
    bool any_fixed;
    bool fixed[COUNTS_TILE_PIXELS];
    uint32_t said[COUNTS_TILE_PIXELS]; /* what decoding makes of a fixed pixel, patches aside */

    /* The same pixels in 16 bits, fixed ones as zeros; usable: where that says all of them, and no
     * fixed pixel needs a patch. */
    bool usable;
    uint16_t narrow[COUNTS_TILE_PIXELS];
    bool widened; /* pixels, fixed and said are there, too */
};

static void narrow_u1(uint16_t *to, const uint8_t *from, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        to[i] = from[i];
}

/* How many pixels do not fit. */
static uint32_t narrow_u4(uint16_t *to, const uint32_t *from, uint32_t n)
{
    uint32_t n_over = 0;
    for (uint32_t i = 0; i < n; i++) {
        to[i] = (uint16_t)from[i];
        n_over += from[i] > UINT16_MAX;
    }
    return n_over;
}

static uint32_t pixel_at(const void *pixels, uint32_t i, uint32_t elem_bytes)
{
    return elem_bytes == 1   ? ((const uint8_t *)pixels)[i]
           : elem_bytes == 2 ? ((const uint16_t *)pixels)[i]
                             : ((const uint32_t *)pixels)[i];
}

static void load_tile(struct source_tile *tile, const void *pixels,
                      const struct counts_segment *segment, const struct frame_shape *shape,
                      uint32_t t)
{
    uint32_t n = counts_tile_pixels(shape, t), n_over = 0, differ = 0;
    const void *from =
        (const uint8_t *)pixels + (uint64_t)t * COUNTS_TILE_PIXELS * shape->elem_bytes;
    if (shape->elem_bytes == 1)
        narrow_u1(tile->narrow, from, n);
    else if (shape->elem_bytes == 2)
        memcpy(tile->narrow, from, n * sizeof(*tile->narrow));
    else
        n_over = narrow_u4(tile->narrow, from, n);
    memset(tile->narrow + n, 0, (COUNTS_TILE_PIXELS - n) * sizeof(*tile->narrow));

    const uint32_t *until = counts_at(segment, segment->constant_tiles_at);
    const struct counts_constant *constants = counts_at(segment, segment->constants_at);
    for (uint32_t i = until[t]; i < until[t + 1]; i++) {
        uint32_t at = constants[i].pixel % COUNTS_TILE_PIXELS;
        uint32_t pixel = pixel_at(from, at, shape->elem_bytes);
        n_over -= pixel > UINT16_MAX;
        differ |= pixel ^ constants[i].value;
        tile->narrow[at] = 0;
    }
    tile->usable = !n_over && !differ;
    tile->widened = false;
}

/* The whole truth of a tile, where narrow is not enough. */
static void widen_tile(struct source_tile *tile, const void *pixels,
                       const struct counts_segment *segment, const struct frame_shape *shape,
                       uint32_t t)
{
    uint32_t n = counts_tile_pixels(shape, t);
    uint64_t first = (uint64_t)t * COUNTS_TILE_PIXELS;
    tile->widened = true;
    for (uint32_t i = 0; shape->elem_bytes == 1 && i < n; i++)
        tile->pixels[i] = ((const uint8_t *)pixels)[first + i];
    for (uint32_t i = 0; shape->elem_bytes == 2 && i < n; i++)
        tile->pixels[i] = ((const uint16_t *)pixels)[first + i];
    if (shape->elem_bytes == 4)
        memcpy(tile->pixels, (const uint32_t *)pixels + first, n * sizeof(*tile->pixels));

    const uint32_t *until = counts_at(segment, segment->constant_tiles_at);
    const struct counts_constant *constants = counts_at(segment, segment->constants_at);
    tile->any_fixed = n < COUNTS_TILE_PIXELS || until[t] < until[t + 1];
    if (!tile->any_fixed)
        return;
    memset(tile->fixed, 0, sizeof(tile->fixed));
    for (uint32_t i = n; i < COUNTS_TILE_PIXELS; i++) {
        tile->fixed[i] = true;
        tile->pixels[i] = tile->said[i] = 0;
    }
    for (uint32_t i = until[t]; i < until[t + 1]; i++) {
        uint32_t at = constants[i].pixel % COUNTS_TILE_PIXELS;
        tile->fixed[at] = true;
        tile->said[at] = constants[i].value;
    }
}

/* ---- symbols, whole units at a time
 * ---------------------------------------------------------------- */

/* The symbols of a granule, of each lane in order; raw: the low bits of wide ones. */
struct granule {
    uint8_t symbols[COUNTS_LANES][COUNTS_MAX_STEPS];
    uint32_t raw[COUNTS_LANES][COUNTS_MAX_STEPS];
};

/* Four pixels of 16 bits, the first one lowest. */
static INLINED uint64_t load_unit(const struct source_tile *tile, uint32_t unit)
{
    uint64_t value;
    memcpy(&value, tile->narrow + unit * COUNTS_UNIT_PIXELS, sizeof(value));
    return value;
}

static INLINED uint64_t pack4(uint64_t unit) /* 4 times 2 bits */
{
    unit |= unit >> 14;
    return (unit | unit >> 28) & 0xff;
}

static INLINED uint64_t pack2(uint64_t unit) /* 2 symbols of 2 times 4 bits */
{
    unit |= unit >> 12;
    return (unit & 0xff) | (unit >> 24 & 0xff00);
}

static INLINED uint64_t pack1(uint64_t unit) /* 4 symbols */
{
    unit = (unit | unit >> 8) & 0x0000ffff0000ffff;
    return (unit | unit >> 16) & 0xffffffff;
}

/* False: some pixels are beyond what the class can say. */
static INLINED bool pack_units(struct granule *granule, const struct source_tile *tile,
                               const uint32_t *order, uint32_t n_pixels)
{
    const uint64_t beyond = n_pixels == 4   ? 0xfffcfffcfffcfffc
                            : n_pixels == 2 ? 0xfff0fff0fff0fff0
                                            : 0xff00ff00ff00ff00;
    uint64_t any = 0;
    for (uint32_t l = 0; l < COUNTS_LANES; l++) {
        uint64_t a = load_unit(tile, order[l] & 0xffff), b = load_unit(tile, order[l] >> 16);
        any |= a | b;
        uint64_t both = n_pixels == 4   ? pack4(a) | pack4(b) << 8
                        : n_pixels == 2 ? pack2(a) | pack2(b) << 16
                                        : pack1(a) | pack1(b) << 32;
        memcpy(granule->symbols[l], &both, sizeof(both));
    }
    return (any & beyond) == 0;
}

static INLINED bool pack_wide(struct granule *granule, const struct source_tile *tile,
                              const uint32_t *order, const struct counts_class *class_)
{
    const uint32_t base = class_->base, shift = class_->shift, most = (256u << shift) - 1;
    uint32_t any = 0;
    if (base > UINT16_MAX) /* no narrow pixel is above it */
        return false;
    for (uint32_t l = 0; l < COUNTS_LANES; l++)
        for (uint32_t i = 0; i < COUNTS_MAX_STEPS; i++) {
            uint32_t unit = i < COUNTS_UNIT_PIXELS ? order[l] & 0xffff : order[l] >> 16;
            uint32_t pixel = tile->narrow[unit * COUNTS_UNIT_PIXELS + i % COUNTS_UNIT_PIXELS];
            uint32_t value = pixel - base; /* below base: huge */
            any |= value & ~most;
            granule->symbols[l][i] = (uint8_t)(value >> shift);
            granule->raw[l][i] = value & ((1u << shift) - 1);
        }
    return any == 0;
}

/* Whether all symbols stand for themselves. */
static INLINED bool all_coded(const struct granule *granule, const struct counts_symbol *of,
                              uint32_t n_steps)
{
    uint32_t any = 0;
    for (uint32_t l = 0; l < COUNTS_LANES; l++)
        for (uint32_t step = 0; step < n_steps; step++) {
            uint32_t symbol = granule->symbols[l][step];
            any |= of[symbol].coded ^ symbol;
        }
    return any == 0;
}

/* The symbols of a granule that needs no patch. False: it does need some. */
static INLINED bool make_exact(struct granule *granule, const struct source_tile *tile,
                               const uint32_t *order, const struct counts_segment *segment,
                               const struct counts_encoder *encoder, uint32_t class_)
{
    struct counts_kind kind = counts_kind_of(segment, class_);
    const struct counts_symbol *of = encoder->symbols[class_];
    if (kind.wide)
        return pack_wide(granule, tile, order, &segment->classes[class_]) &&
               all_coded(granule, of, 8);
    if (kind.pixels == 4)
        return pack_units(granule, tile, order, 4) && all_coded(granule, of, 2);
    if (kind.pixels == 2)
        return pack_units(granule, tile, order, 2) && all_coded(granule, of, 4);
    return pack_units(granule, tile, order, 1) && all_coded(granule, of, 8);
}

/* ---- symbols, one by one -------------------------------------------------------------------------- */

/* Of a granule, for each lane: its 8 pixels as they are, and as decoding makes them before patches. */
struct source_granule {
    uint32_t at[COUNTS_MAX_STEPS][COUNTS_LANES]; /* in the tile */
    uint32_t actual[COUNTS_MAX_STEPS][COUNTS_LANES];
    uint32_t decoded[COUNTS_MAX_STEPS][COUNTS_LANES];
};

static void gather(struct source_granule *source, const struct source_tile *tile,
                   const uint32_t *order)
{
    for (uint32_t l = 0; l < COUNTS_LANES; l++)
        for (uint32_t i = 0; i < COUNTS_UNIT_PIXELS; i++) {
            uint32_t a = (order[l] & 0xffff) * COUNTS_UNIT_PIXELS + i;
            uint32_t b = (order[l] >> 16) * COUNTS_UNIT_PIXELS + i;
            source->at[i][l] = a;
            source->at[COUNTS_UNIT_PIXELS + i][l] = b;
            source->actual[i][l] = tile->pixels[a];
            source->actual[COUNTS_UNIT_PIXELS + i][l] = tile->pixels[b];
        }
}

/* Fields of fixed pixels are 0: `decoded` is their value meanwhile, and is set right after. */
static inline uint32_t field_value(const struct source_granule *source,
                                   const struct source_tile *tile, uint32_t i, uint32_t l)
{
    bool fixed = tile->any_fixed && tile->fixed[source->at[i][l]];
    return fixed ? 0 : source->actual[i][l];
}

static inline void make_plain(struct granule *granule, struct source_granule *source,
                              const struct source_tile *tile, const struct counts_symbol *of,
                              uint32_t n_pixels, uint32_t n_bits)
{
    uint32_t most = (1u << n_bits) - 1;
    for (uint32_t step = 0; step < COUNTS_MAX_STEPS / n_pixels; step++)
        for (uint32_t l = 0; l < COUNTS_LANES; l++) {
            uint32_t symbol = 0;
            for (uint32_t i = 0; i < n_pixels; i++) {
                uint32_t value = field_value(source, tile, step * n_pixels + i, l);
                symbol |= (value < most ? value : most) << (i * n_bits);
            }
            symbol = of[symbol].coded;
            granule->symbols[l][step] = (uint8_t)symbol;
            for (uint32_t i = 0; i < n_pixels; i++)
                source->decoded[step * n_pixels + i][l] = symbol >> (i * n_bits) & most;
        }
}

static void make_wide(struct granule *granule, struct source_granule *source,
                      const struct source_tile *tile, const struct counts_symbol *of,
                      const struct counts_class *class_)
{
    uint32_t most = (256u << class_->shift) - 1;
    for (uint32_t step = 0; step < COUNTS_MAX_STEPS; step++)
        for (uint32_t l = 0; l < COUNTS_LANES; l++) {
            uint32_t value = field_value(source, tile, step, l);
            value = value > class_->base ? value - class_->base : 0;
            value = value < most ? value : most;
            uint32_t symbol = of[value >> class_->shift].coded;
            uint32_t raw = value & ((1u << class_->shift) - 1);
            granule->symbols[l][step] = (uint8_t)symbol;
            granule->raw[l][step] = raw;
            source->decoded[step][l] = class_->base + (symbol << class_->shift | raw);
        }
}

static void set_fixed(struct source_granule *source, const struct source_tile *tile)
{
    for (uint32_t i = 0; i < COUNTS_MAX_STEPS; i++)
        for (uint32_t l = 0; l < COUNTS_LANES; l++)
            if (tile->fixed[source->at[i][l]])
                source->decoded[i][l] = tile->said[source->at[i][l]];
}

static void make_symbols(struct granule *granule, struct source_granule *source,
                         const struct source_tile *tile, const struct counts_segment *segment,
                         const struct counts_encoder *encoder, uint32_t class_)
{
    struct counts_kind kind = counts_kind_of(segment, class_);
    const struct counts_symbol *of = encoder->symbols[class_];
    if (kind.wide)
        make_wide(granule, source, tile, of, &segment->classes[class_]);
    else if (kind.pixels == 4)
        make_plain(granule, source, tile, of, 4, 2);
    else if (kind.pixels == 2)
        make_plain(granule, source, tile, of, 2, 4);
    else
        make_plain(granule, source, tile, of, 1, 8);
    if (tile->any_fixed)
        set_fixed(source, tile);
}

/* Step, pixel of the symbol, lane, backwards: step and pixel together are the lane's pixel. */
static void patch_granule(struct room *room, const struct source_granule *source, uint32_t t,
                          uint32_t elem_bytes)
{
    for (uint32_t i = COUNTS_MAX_STEPS; i-- > 0;)
        for (uint32_t l = COUNTS_LANES; l-- > 0;)
            if (source->actual[i][l] != source->decoded[i][l])
                patch_pixel(room, t, source->at[i][l],
                            (int64_t)source->actual[i][l] - source->decoded[i][l], elem_bytes);
}

/* ---- granules ------------------------------------------------------------------------------------- */

/* Two symbols of every lane. */
static INLINED void put_pair(struct strings *strings, struct room *room,
                             const struct granule *granule, const struct counts_symbol *of,
                             const uint16_t *states, uint32_t first)
{
    struct step_bits step;
    for (uint32_t l = 0; l < COUNTS_LANES; l++) {
        const uint8_t *symbols = granule->symbols[l] + first;
        uint32_t state = strings->state[l], low, high;
        uint32_t n = take_symbol(&state, &low, of + symbols[1], states);
        step.n[l] = n + take_symbol(&state, &high, of + symbols[0], states);
        step.bits[l] = low | high << n;
        strings->state[l] = state;
    }
    put_bits(strings, room, &step);
}

/* A symbol and its raw bits of every lane. */
static INLINED void put_wide(struct strings *strings, struct room *room,
                             const struct granule *granule, const struct counts_symbol *of,
                             const uint16_t *states, uint32_t shift, uint32_t i)
{
    struct step_bits step;
    for (uint32_t l = 0; l < COUNTS_LANES; l++) {
        uint32_t bits;
        step.n[l] =
            shift + take_symbol(&strings->state[l], &bits, of + granule->symbols[l][i], states);
        step.bits[l] = granule->raw[l][i] | bits << shift;
    }
    put_bits(strings, room, &step);
}

static INLINED void put_granule(struct strings *strings, struct room *room,
                                const struct granule *granule, const struct counts_segment *segment,
                                const struct counts_encoder *encoder, uint32_t class_)
{
    struct counts_kind kind = counts_kind_of(segment, class_);
    const struct counts_symbol *of = encoder->symbols[class_];
    const uint16_t *states = encoder->states[class_];
    if (kind.wide)
        for (uint32_t i = COUNTS_MAX_STEPS; i-- > 0;)
            put_wide(strings, room, granule, of, states, segment->classes[class_].shift, i);
    else
        for (uint32_t i = COUNTS_MAX_STEPS / kind.pixels; i > 0; i -= 2)
            put_pair(strings, room, granule, of, states, i - 2);
}

/* ---- streams and frames --------------------------------------------------------------------------- */

/* The room of stream s within that of a frame. */
static struct room find_room(void *frame_room, const struct frame_shape *shape, uint32_t n_streams,
                             uint32_t s)
{
    uint32_t n_tiles = counts_n_tiles(shape->n_elems);
    uint64_t first = (uint64_t)counts_stream_tile(n_tiles, n_streams, s) * COUNTS_TILE_PIXELS;
    uint64_t end = (uint64_t)counts_stream_tile(n_tiles, n_streams, s + 1) * COUNTS_TILE_PIXELS;
    end = end < shape->n_elems ? end : shape->n_elems;
    uint32_t *words = frame_room;
    struct room room = {.begin = words + first * shape->elem_bytes / 4,
                        .end = words + end * shape->elem_bytes / 4};
    room.patches_end = room.begin;
    room.words_begin = room.end;
    return room;
}

WIDE_LOOPS static struct counts_stream encode_stream(struct room *room, const void *pixels,
                                                     const struct counts_segment *segment,
                                                     const struct counts_encoder *encoder,
                                                     const struct frame_shape *shape, uint32_t s)
{
    const uint32_t *order = counts_at(segment, segment->order_at);
    const uint8_t *classes = counts_at(segment, segment->granules_at);
    uint32_t begin = counts_stream_tile(segment->n_tiles, segment->n_streams, s);
    struct strings strings;
    struct source_tile tile;
    struct source_granule source;
    struct granule granule;
    strings_start(&strings);
    for (uint32_t t = counts_stream_tile(segment->n_tiles, segment->n_streams, s + 1);
         t-- > begin && !room->full;) {
        load_tile(&tile, pixels, segment, shape, t);
        uint32_t first = t * COUNTS_TILE_GRANULES;
        for (uint32_t g = first + counts_tile_granules(segment, t); g-- > first;) {
            const uint32_t *units = order + g * COUNTS_LANES;
            if (!tile.usable || !make_exact(&granule, &tile, units, segment, encoder, classes[g])) {
                if (!tile.widened)
                    widen_tile(&tile, pixels, segment, shape, t);
                gather(&source, &tile, units);
                make_symbols(&granule, &source, &tile, segment, encoder, classes[g]);
                patch_granule(room, &source, t, shape->elem_bytes);
            }
            put_granule(&strings, room, &granule, segment, encoder, classes[g]);
        }
    }
    put_heads(&strings, room);
    if (room->full)
        return (struct counts_stream){0};
    return (struct counts_stream){.n_words = (uint32_t)(room->end - room->words_begin),
                                  .n_patches = room->n_patches,
                                  .first_tile = room->first_tile};
}

void counts_encode(struct counts_stream *streams, void *room, const void *pixels,
                   const struct counts_segment *segment, const struct counts_encoder *encoder,
                   const struct frame_shape *shape)
{
    for (uint32_t s = 0; s < segment->n_streams; s++) {
        struct room of_stream = find_room(room, shape, segment->n_streams, s);
        streams[s] = encode_stream(&of_stream, pixels, segment, encoder, shape, s);
    }
}

void counts_place(void *dst, const void *room, const struct counts_stream *streams,
                  uint32_t n_streams, const struct frame_shape *shape)
{
    uint32_t *words = dst, *to = words + 2 * (size_t)n_streams;
    uint32_t patch_words = counts_patch_words(shape->elem_bytes);
    for (uint32_t s = 0; s < n_streams; s++) {
        const struct counts_stream *stream = &streams[s];
        struct room from = find_room((void *)(uintptr_t)room, shape, n_streams, s);
        words[2 * s] = stream->n_words;
        words[2 * s + 1] = counts_pack_patches(stream->n_patches, stream->first_tile);
        for (uint32_t i = stream->n_patches; i-- > 0; to += patch_words)
            memcpy(to, from.begin + (size_t)i * patch_words, patch_words * 4);
        memcpy(to, from.end - stream->n_words, (size_t)stream->n_words * 4);
        to += stream->n_words;
    }
    uint64_t bytes = counts_frame_bytes(streams, n_streams, shape->elem_bytes);
    memset(to, 0, bytes - (uint64_t)(to - words) * 4);
}
