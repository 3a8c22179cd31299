/* SPDX-License-Identifier: Apache-2.0
 *
 * counts_encode: the encoder on the CPU, whose bytes a GPU's must have.
 *
 * It goes backwards, last tile, last granule, last step first, since a state says which symbol led to it. Of a
 * granule all symbols are made first, and what decoding would make of them: where that is not what the pixels
 * are, which is seldom, patches follow. Then the lanes' strings grow at their front by what the symbols need; and since a
 * decoder asks for a word two words ahead, a lane lays down the word before the one that it has just completed. */
#include "counts.h"

#include "counts_segment.h"

#include <string.h>

/* ---- lanes ---------------------------------------------------------------------------------------- */

/* The room of a stream: patches grow from its begin, words from its end. */
struct room {
    uint32_t *begin, *end;
    uint32_t *patches_end, *words_begin;
    uint32_t n_patches;
    uint32_t first_tile; /* of the patch put last, which is the first to a decoder */
    bool full;
};

/* A lane's string, from its end: `count` bits wait in acc, the last one lowest; hold is the word that was complete
 * last. A lane starts with a word of zeros that nobody reads, as a decoder asks for two words past a string's end. */
struct strings {
    uint64_t acc[COUNTS_LANES];
    uint32_t count[COUNTS_LANES];
    uint32_t hold[COUNTS_LANES];
    uint32_t state[COUNTS_LANES]; /* 2,048 to 4,095 */
    uint32_t crossed[COUNTS_LANES];
};

static void strings_start(struct strings *strings)
{
    memset(strings, 0, sizeof(*strings));
    for (uint32_t l = 0; l < COUNTS_LANES; l++) {
        strings->count[l] = 32;
        strings->state[l] = COUNTS_STATES;
    }
}

static void put_word(struct room *room, uint32_t word)
{
    if (room->words_begin == room->patches_end)
        room->full = true;
    else
        *--room->words_begin = word;
}

/* Lanes that have completed a word lay down the one before it, the last lane's behind the others'. The first two
 * of a lane are none of its own, and are left out while nothing follows them. */
static void lay_words(struct strings *strings, struct room *room)
{
    for (uint32_t l = COUNTS_LANES; l-- > 0;) {
        if (strings->count[l] <= 32)
            continue;
        if (strings->crossed[l]++ >= 2 || room->words_begin != room->end)
            put_word(room, strings->hold[l]);
        strings->hold[l] = (uint32_t)strings->acc[l];
        strings->acc[l] >>= 32;
        strings->count[l] -= 32;
    }
}

static inline void put_bits(struct strings *strings, uint32_t l, uint32_t bits, uint32_t n)
{
    strings->acc[l] |= (uint64_t)bits << strings->count[l];
    strings->count[l] += n;
}

static void put_symbols(struct strings *strings, const uint8_t symbols[COUNTS_LANES],
                        const struct counts_encoder *encoder, uint32_t class_)
{
    const struct counts_symbol *of = encoder->symbols[class_];
    const uint16_t *states = encoder->states[class_];
    for (uint32_t l = 0; l < COUNTS_LANES; l++) {
        struct counts_symbol symbol = of[symbols[l]];
        uint32_t state = strings->state[l], n_bits = (state + symbol.bits_add) >> 16;
        put_bits(strings, l, state & ((1u << n_bits) - 1), n_bits);
        strings->state[l] = states[symbol.state_add + (int32_t)(state >> n_bits)];
    }
}

/* What a decoder meets first: marker and state of each lane, in its first two words. */
static void put_heads(struct strings *strings, struct room *room)
{
    for (uint32_t l = 0; l < COUNTS_LANES; l++)
        put_bits(strings, l, strings->state[l],
                 COUNTS_TABLE_BITS + 1); /* its top bit is the marker */
    lay_words(strings, room);
    for (uint32_t l = COUNTS_LANES; l-- > 0;)
        put_word(room, strings->hold[l]);
    for (uint32_t l = COUNTS_LANES; l-- > 0;)
        put_word(room, (uint32_t)strings->acc[l]);
}

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

/* ---- granules ------------------------------------------------------------------------------------- */

/* A tile's pixels, and which are none of a class's business: constants, and what is beyond the frame. */
struct source_tile {
    uint32_t pixels[COUNTS_TILE_PIXELS];
    bool any_fixed;
    bool fixed[COUNTS_TILE_PIXELS];
    uint32_t said[COUNTS_TILE_PIXELS]; /* what decoding makes of a fixed pixel, patches aside */
};

/* Of a granule, for each lane: its 8 pixels as they are, and as decoding makes them before patches. */
struct source_granule {
    uint32_t at[COUNTS_MAX_STEPS][COUNTS_LANES]; /* in the tile */
    uint32_t actual[COUNTS_MAX_STEPS][COUNTS_LANES];
    uint32_t decoded[COUNTS_MAX_STEPS][COUNTS_LANES];
    uint8_t symbols[COUNTS_MAX_STEPS][COUNTS_LANES];
    uint32_t raw[COUNTS_MAX_STEPS][COUNTS_LANES];
};

static void load_tile(struct source_tile *tile, const void *pixels,
                      const struct counts_segment *segment, const struct frame_shape *shape,
                      uint32_t t)
{
    uint32_t n = counts_tile_pixels(shape, t);
    uint64_t first = (uint64_t)t * COUNTS_TILE_PIXELS;
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

static void gather(struct source_granule *granule, const struct source_tile *tile,
                   const uint32_t *order)
{
    for (uint32_t l = 0; l < COUNTS_LANES; l++)
        for (uint32_t i = 0; i < COUNTS_UNIT_PIXELS; i++) {
            uint32_t a = (order[l] & 0xffff) * COUNTS_UNIT_PIXELS + i;
            uint32_t b = (order[l] >> 16) * COUNTS_UNIT_PIXELS + i;
            granule->at[i][l] = a;
            granule->at[COUNTS_UNIT_PIXELS + i][l] = b;
            granule->actual[i][l] = tile->pixels[a];
            granule->actual[COUNTS_UNIT_PIXELS + i][l] = tile->pixels[b];
        }
}

/* Fields of fixed pixels are 0: `decoded` is their value meanwhile, and is set right after. */
static inline uint32_t field_value(const struct source_granule *granule,
                                   const struct source_tile *tile, uint32_t i, uint32_t l)
{
    bool fixed = tile->any_fixed && tile->fixed[granule->at[i][l]];
    return fixed ? 0 : granule->actual[i][l];
}

static inline void make_plain(struct source_granule *granule, const struct source_tile *tile,
                              const struct counts_symbol *of, uint32_t n_pixels, uint32_t n_bits)
{
    uint32_t most = (1u << n_bits) - 1;
    for (uint32_t step = 0; step < COUNTS_MAX_STEPS / n_pixels; step++)
        for (uint32_t l = 0; l < COUNTS_LANES; l++) {
            uint32_t symbol = 0;
            for (uint32_t i = 0; i < n_pixels; i++) {
                uint32_t value = field_value(granule, tile, step * n_pixels + i, l);
                symbol |= (value < most ? value : most) << (i * n_bits);
            }
            symbol = of[symbol].coded;
            granule->symbols[step][l] = (uint8_t)symbol;
            for (uint32_t i = 0; i < n_pixels; i++)
                granule->decoded[step * n_pixels + i][l] = symbol >> (i * n_bits) & most;
        }
}

static void make_wide(struct source_granule *granule, const struct source_tile *tile,
                      const struct counts_symbol *of, const struct counts_class *class_)
{
    uint32_t most = (256u << class_->shift) - 1;
    for (uint32_t step = 0; step < COUNTS_MAX_STEPS; step++)
        for (uint32_t l = 0; l < COUNTS_LANES; l++) {
            uint32_t value = field_value(granule, tile, step, l);
            value = value > class_->base ? value - class_->base : 0;
            value = value < most ? value : most;
            uint32_t symbol = of[value >> class_->shift].coded;
            uint32_t raw = value & ((1u << class_->shift) - 1);
            granule->symbols[step][l] = (uint8_t)symbol;
            granule->raw[step][l] = raw;
            granule->decoded[step][l] = class_->base + (symbol << class_->shift | raw);
        }
}

static void set_fixed(struct source_granule *granule, const struct source_tile *tile)
{
    for (uint32_t i = 0; i < COUNTS_MAX_STEPS; i++)
        for (uint32_t l = 0; l < COUNTS_LANES; l++)
            if (tile->fixed[granule->at[i][l]])
                granule->decoded[i][l] = tile->said[granule->at[i][l]];
}

static void make_symbols(struct source_granule *granule, const struct source_tile *tile,
                         const struct counts_segment *segment, const struct counts_encoder *encoder,
                         uint32_t class_)
{
    struct counts_kind kind = counts_kind_of(segment, class_);
    const struct counts_symbol *of = encoder->symbols[class_];
    if (kind.wide)
        make_wide(granule, tile, of, &segment->classes[class_]);
    else if (kind.pixels == 4)
        make_plain(granule, tile, of, 4, 2);
    else if (kind.pixels == 2)
        make_plain(granule, tile, of, 2, 4);
    else
        make_plain(granule, tile, of, 1, 8);
    if (tile->any_fixed)
        set_fixed(granule, tile);
}

/* Step, pixel of the symbol, lane, backwards: step and pixel together are the lane's pixel. */
static void patch_granule(struct room *room, const struct source_granule *granule, uint32_t t,
                          uint32_t elem_bytes)
{
    for (uint32_t i = COUNTS_MAX_STEPS; i-- > 0;)
        for (uint32_t l = COUNTS_LANES; l-- > 0;)
            if (granule->actual[i][l] != granule->decoded[i][l])
                patch_pixel(room, t, granule->at[i][l],
                            (int64_t)granule->actual[i][l] - granule->decoded[i][l], elem_bytes);
}

static void put_granule(struct strings *strings, struct room *room,
                        const struct source_granule *granule, const struct counts_segment *segment,
                        const struct counts_encoder *encoder, uint32_t class_)
{
    struct counts_kind kind = counts_kind_of(segment, class_);
    for (uint32_t step = COUNTS_MAX_STEPS / kind.pixels; step-- > 0;) {
        for (uint32_t l = 0; kind.wide && l < COUNTS_LANES; l++)
            put_bits(strings, l, granule->raw[step][l], segment->classes[class_].shift);
        put_symbols(strings, granule->symbols[step], encoder, class_);
        if (kind.wide || step % 2 == 0)
            lay_words(strings, room);
    }
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

static struct counts_stream encode_stream(struct room *room, const void *pixels,
                                          const struct counts_segment *segment,
                                          const struct counts_encoder *encoder,
                                          const struct frame_shape *shape, uint32_t s)
{
    const uint32_t *order = counts_at(segment, segment->order_at);
    const uint8_t *classes = counts_at(segment, segment->granules_at);
    uint32_t begin = counts_stream_tile(segment->n_tiles, segment->n_streams, s);
    struct strings strings;
    struct source_tile tile;
    struct source_granule granule;
    strings_start(&strings);
    for (uint32_t t = counts_stream_tile(segment->n_tiles, segment->n_streams, s + 1);
         t-- > begin && !room->full;) {
        load_tile(&tile, pixels, segment, shape, t);
        uint32_t first = t * COUNTS_TILE_GRANULES;
        for (uint32_t g = first + counts_tile_granules(segment, t); g-- > first;) {
            gather(&granule, &tile, order + g * COUNTS_LANES);
            make_symbols(&granule, &tile, segment, encoder, classes[g]);
            if (memcmp(granule.actual, granule.decoded, sizeof(granule.actual)) != 0)
                patch_granule(room, &granule, t, shape->elem_bytes);
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
