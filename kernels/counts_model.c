/* SPDX-License-Identifier: Apache-2.0
 *
 * counts_model: what a model says, as tables: those of decoders, those of encoders, and packed. How it is learnt is
 * in counts_train.c.
 *
 * A table of 2,048 states belongs to each class. Its symbols are spread over the states by a fixed step; the states
 * of symbol s are numbered f, f + 1, ..., 2f - 1 in rising order, f being how many it has: number x needs as many
 * new bits as make it 2,048 or more, and 2,048 less than that is the next state, but for these bits. */
#include "counts_model.h"

#include <stdlib.h>
#include <string.h>

#define SPREAD_STEP (COUNTS_STATES / 2 + COUNTS_STATES / 8 + 3)
#define GRANULES_A_TILE (COUNTS_TILE_UNITS / COUNTS_GRANULE_UNITS)

void counts_model_fini(struct counts_model *model)
{
    free(model->order);
    free(model->granules);
    free(model->constants);
    *model = (struct counts_model){0};
}

/* ---- tables --------------------------------------------------------------------------------------- */

static uint32_t log2_floor(uint32_t x)
{
    return 31 - (uint32_t)__builtin_clz(x);
}

/* The symbol of each state. */
static void spread_symbols(uint8_t symbols[COUNTS_STATES], const uint16_t freq[256])
{
    uint32_t at = 0;
    for (uint32_t symbol = 0; symbol < 256; symbol++)
        for (uint32_t i = 0; i < freq[symbol]; i++) {
            symbols[at] = (uint8_t)symbol;
            at = (at + SPREAD_STEP) % COUNTS_STATES;
        }
}

static void make_decoding(uint32_t entries[COUNTS_STATES], uint32_t class_,
                          const uint16_t freq[256])
{
    uint8_t symbols[COUNTS_STATES];
    uint32_t number[256];
    spread_symbols(symbols, freq);
    for (uint32_t symbol = 0; symbol < 256; symbol++)
        number[symbol] = freq[symbol];
    for (uint32_t state = 0; state < COUNTS_STATES; state++) {
        uint32_t x = number[symbols[state]]++, n_bits = COUNTS_TABLE_BITS - log2_floor(x);
        entries[state] =
            counts_entry(class_, (x << n_bits) - COUNTS_STATES, symbols[state], n_bits);
    }
}

static void make_encoding(struct counts_symbol of[256], uint16_t states[COUNTS_STATES],
                          const uint16_t freq[256], const uint8_t coded[256])
{
    uint8_t symbols[COUNTS_STATES];
    uint32_t next[256], begin = 0;
    spread_symbols(symbols, freq);
    for (uint32_t symbol = 0; symbol < 256; symbol++) {
        uint32_t f = freq[symbol], most = f ? COUNTS_TABLE_BITS - log2_floor(f) : 0;
        /* Numbers from f << most on need `most` bits, those below one fewer. */
        of[symbol] = (struct counts_symbol){.bits_add = (most << 16) - (f << most),
                                            .state_add = (int16_t)((int32_t)begin - (int32_t)f),
                                            .coded = coded[symbol]};
        next[symbol] = begin;
        begin += f;
    }
    for (uint32_t state = 0; state < COUNTS_STATES; state++)
        states[next[symbols[state]]++] = (uint16_t)(COUNTS_STATES + state);
}

void counts_model_encoder(const struct counts_model *model, struct counts_encoder *encoder)
{
    for (uint32_t k = 0; k < COUNTS_CLASSES; k++)
        make_encoding(encoder->symbols[k], encoder->states[k], model->freq[k], model->coded[k]);
}

/* ---- the segment's table -------------------------------------------------------------------------- */

static uint32_t round16(uint32_t bytes)
{
    return (bytes + 15) / 16 * 16;
}

/* Its head, with the offsets of all parts. */
static struct counts_segment lay_out(const struct counts_model *model)
{
    struct counts_segment segment = {.n_tiles = model->n_tiles,
                                     .n_granules = model->n_granules,
                                     .n_streams = model->n_streams,
                                     .until4 = model->until4,
                                     .until2 = model->until2,
                                     .until1 = model->until1,
                                     .n_constants = model->n_constants};
    uint32_t at = round16(sizeof(segment));
    memcpy(segment.classes, model->classes, sizeof(segment.classes));
    segment.tables_at = at;
    at += COUNTS_CLASSES * COUNTS_STATES * 4;
    segment.order_at = at;
    at += model->n_granules * COUNTS_LANES * 4;
    segment.granules_at = at;
    at = round16(at + model->n_granules);
    segment.constant_tiles_at = at;
    at = round16(at + (model->n_tiles + 1) * 4);
    segment.constants_at = at;
    segment.bytes = round16(at + model->n_constants * (uint32_t)sizeof(struct counts_constant));
    return segment;
}

uint32_t counts_model_segment_bytes(const struct counts_model *model)
{
    return lay_out(model).bytes;
}

void counts_model_segment(const struct counts_model *model, void *segment)
{
    struct counts_segment head = lay_out(model);
    uint8_t *base = segment;
    memset(base, 0, head.bytes);
    memcpy(base, &head, sizeof(head));

    uint32_t *tables = (uint32_t *)(base + head.tables_at);
    for (uint32_t k = 0; k < COUNTS_CLASSES; k++)
        make_decoding(tables + k * COUNTS_STATES, k, model->freq[k]);

    uint32_t *order = (uint32_t *)(base + head.order_at);
    for (uint32_t i = 0; i < model->n_granules * COUNTS_LANES; i++) {
        const uint16_t *units = model->order + i / COUNTS_LANES * COUNTS_GRANULE_UNITS;
        uint32_t lane = i % COUNTS_LANES;
        order[i] = units[lane] | (uint32_t)units[COUNTS_LANES + lane] << 16;
    }
    memcpy(base + head.granules_at, model->granules, model->n_granules);

    uint32_t *until = (uint32_t *)(base + head.constant_tiles_at);
    uint32_t n = 0;
    for (uint32_t t = 0; t < model->n_tiles; t++) {
        while (n < model->n_constants && model->constants[n].pixel / COUNTS_TILE_PIXELS == t)
            n++;
        until[t + 1] = n;
    }
    if (model->n_constants)
        memcpy(base + head.constants_at, model->constants,
               model->n_constants * sizeof(*model->constants));
}

/* ---- packed --------------------------------------------------------------------------------------- */

/* u32 streams, u8 until4, until2, until1, 0, u32 constants, u32 0; u32 [8][2] base, shift; u16 [8][256] states of
 * each symbol; u8 [granules] classes, zeros up to a multiple of 4; u16 [granules][64] order; u32 [constants][2]
 * pixel, value. */
#define PACKED_HEAD 16u
#define PACKED_CLASSES (COUNTS_CLASSES * 8u)
#define PACKED_FREQ (COUNTS_CLASSES * 256u * 2u)

static size_t packed_granules(uint32_t n_granules)
{
    return ((size_t)n_granules + 3) / 4 * 4;
}

static size_t packed_bytes(uint32_t n_granules, uint32_t n_constants)
{
    return PACKED_HEAD + PACKED_CLASSES + PACKED_FREQ + packed_granules(n_granules) +
           (size_t)n_granules * COUNTS_GRANULE_UNITS * 2 + (size_t)n_constants * 8;
}

size_t counts_model_packed_bytes(const struct counts_model *model)
{
    return packed_bytes(model->n_granules, model->n_constants);
}

static uint8_t *put16(uint8_t *to, uint32_t value)
{
    to[0] = (uint8_t)value;
    to[1] = (uint8_t)(value >> 8);
    return to + 2;
}

static uint8_t *put32(uint8_t *to, uint32_t value)
{
    return put16(put16(to, value), value >> 16);
}

static uint32_t take16(const uint8_t **from)
{
    uint32_t value = (*from)[0] | (uint32_t)(*from)[1] << 8;
    *from += 2;
    return value;
}

static uint32_t take32(const uint8_t **from)
{
    uint32_t low = take16(from);
    return low | take16(from) << 16;
}

void counts_model_pack(const struct counts_model *model, uint8_t *packed)
{
    uint8_t *to = put32(packed, model->n_streams);
    *to++ = (uint8_t)model->until4;
    *to++ = (uint8_t)model->until2;
    *to++ = (uint8_t)model->until1;
    *to++ = 0;
    to = put32(put32(to, model->n_constants), 0);
    for (uint32_t k = 0; k < COUNTS_CLASSES; k++)
        to = put32(put32(to, model->classes[k].base), model->classes[k].shift);
    for (uint32_t i = 0; i < COUNTS_CLASSES * 256; i++)
        to = put16(to, model->freq[i / 256][i % 256]);
    size_t granules = packed_granules(model->n_granules);
    memset(to, 0, granules);
    memcpy(to, model->granules, model->n_granules);
    to += granules;
    for (uint32_t i = 0; i < model->n_granules * COUNTS_GRANULE_UNITS; i++)
        to = put16(to, model->order[i]);
    for (uint32_t i = 0; i < model->n_constants; i++)
        to = put32(put32(to, model->constants[i].pixel), model->constants[i].value);
}

static int unpack_head(struct counts_model *model, const uint8_t **from, size_t bytes,
                       struct stow_error *err)
{
    size_t smallest = packed_bytes(model->n_granules, 0);
    if (bytes < smallest)
        return error_set(err, STOW_CORRUPT, "a model of %zu bytes, at least %zu are needed", bytes,
                         smallest);
    const uint8_t *at = *from;
    model->n_streams = take32(&at);
    model->until4 = *at++;
    model->until2 = *at++;
    model->until1 = *at++;
    uint8_t zero = *at++;
    model->n_constants = take32(&at);
    if (take32(&at) != 0 || zero != 0)
        return error_set(err, STOW_CORRUPT, "a model with unknown marks");
    if (model->n_streams < 1 || model->n_streams > COUNTS_MAX_STREAMS ||
        model->n_streams > model->n_tiles)
        return error_set(err, STOW_CORRUPT, "a model of %lu streams for %lu tiles",
                         (unsigned long)model->n_streams, (unsigned long)model->n_tiles);
    if (model->until4 > model->until2 || model->until2 > model->until1 ||
        model->until1 > COUNTS_CLASSES)
        return error_set(err, STOW_CORRUPT, "a model whose classes end at %lu, %lu, %lu",
                         (unsigned long)model->until4, (unsigned long)model->until2,
                         (unsigned long)model->until1);
    /* Before anything of that size is asked for. */
    if ((bytes - smallest) % 8 != 0 || (bytes - smallest) / 8 != model->n_constants)
        return error_set(err, STOW_CORRUPT, "a model of %zu bytes, with %lu constants", bytes,
                         (unsigned long)model->n_constants);
    *from = at;
    return 0;
}

static int unpack_classes(struct counts_model *model, const uint8_t **from,
                          const struct frame_shape *shape, struct stow_error *err)
{
    for (uint32_t k = 0; k < COUNTS_CLASSES; k++) {
        struct counts_class *class_ = &model->classes[k];
        class_->base = take32(from);
        class_->shift = take32(from);
        bool plain = class_->base == 0 && class_->shift == 0;
        if (k < model->until1 ? !plain
                              : class_->shift > COUNTS_MAX_SHIFT ||
                                    (uint64_t)class_->base + (256ull << class_->shift) >
                                        1ull << 8 * shape->elem_bytes)
            return error_set(err, STOW_CORRUPT, "class %lu: base %lu and shift %lu cannot be",
                             (unsigned long)k, (unsigned long)class_->base,
                             (unsigned long)class_->shift);
    }
    for (uint32_t k = 0; k < COUNTS_CLASSES; k++) {
        uint32_t sum = 0;
        for (uint32_t symbol = 0; symbol < 256; symbol++) {
            model->freq[k][symbol] = (uint16_t)take16(from);
            model->coded[k][symbol] = (uint8_t)symbol;
            sum += model->freq[k][symbol];
        }
        if (sum != COUNTS_STATES)
            return error_set(err, STOW_CORRUPT, "class %lu: its symbols have %lu states",
                             (unsigned long)k, (unsigned long)sum);
    }
    return 0;
}

/* Each tile's units, each once. */
static bool unpack_order(struct counts_model *model, const uint8_t **from)
{
    uint8_t seen[COUNTS_TILE_UNITS] = {0};
    for (uint32_t g = 0; g < model->n_granules; g++) {
        uint32_t first = g / GRANULES_A_TILE * GRANULES_A_TILE, rest = model->n_granules - first;
        uint32_t n_units = (rest < GRANULES_A_TILE ? rest : GRANULES_A_TILE) * COUNTS_GRANULE_UNITS;
        if (g == first)
            memset(seen, 0, sizeof(seen));
        for (uint32_t i = 0; i < COUNTS_GRANULE_UNITS; i++) {
            uint32_t unit = take16(from);
            if (unit >= n_units || seen[unit])
                return false;
            seen[unit] = 1;
            model->order[g * COUNTS_GRANULE_UNITS + i] = (uint16_t)unit;
        }
    }
    return true;
}

static int unpack_constants(struct counts_model *model, const uint8_t **from,
                            const struct frame_shape *shape, struct stow_error *err)
{
    uint64_t least = 0;
    uint32_t largest = UINT32_MAX >> (32 - 8 * shape->elem_bytes);
    for (uint32_t i = 0; i < model->n_constants; i++) {
        struct counts_constant *constant = &model->constants[i];
        constant->pixel = take32(from);
        constant->value = take32(from);
        if (constant->pixel < least || constant->pixel >= shape->n_elems ||
            constant->value > largest)
            return error_set(err, STOW_CORRUPT, "constant %lu: pixel %lu and value %lu cannot be",
                             (unsigned long)i, (unsigned long)constant->pixel,
                             (unsigned long)constant->value);
        least = (uint64_t)constant->pixel + 1;
    }
    return 0;
}

static int unpack_tiles(struct counts_model *model, const uint8_t **from,
                        const struct frame_shape *shape, struct stow_error *err)
{
    model->order = malloc((size_t)model->n_granules * COUNTS_GRANULE_UNITS * sizeof(*model->order));
    model->granules = malloc(model->n_granules);
    model->constants = malloc(((size_t)model->n_constants + 1) * sizeof(*model->constants));
    if (!model->order || !model->granules || !model->constants)
        return error_set(err, STOW_NOMEM, "no memory for a model of %lu granules",
                         (unsigned long)model->n_granules);
    memcpy(model->granules, *from, model->n_granules);
    for (uint32_t g = 0; g < packed_granules(model->n_granules); g++)
        if ((*from)[g] >= (g < model->n_granules ? COUNTS_CLASSES : 1))
            return error_set(err, STOW_CORRUPT, "granule %lu: class %u", (unsigned long)g,
                             (*from)[g]);
    *from += packed_granules(model->n_granules);
    if (!unpack_order(model, from))
        return error_set(err, STOW_CORRUPT, "a model that does not have each unit once");
    return unpack_constants(model, from, shape, err);
}

int counts_model_unpack(struct counts_model *model, const uint8_t *packed, size_t bytes,
                        const struct frame_shape *shape, struct stow_error *err)
{
    uint64_t most = (uint64_t)COUNTS_MAX_TILES * COUNTS_TILE_PIXELS;
    if (shape->n_elems == 0 || shape->n_elems > most)
        return error_set(err, STOW_CORRUPT, "a model for frames of %llu pixels",
                         (unsigned long long)shape->n_elems);
    if (!shape_is_counts(shape))
        return error_set(err, STOW_CORRUPT, "a model for pixels that are no counts");
    struct counts_model made = {.n_tiles = counts_n_tiles(shape->n_elems),
                                .n_granules = counts_n_granules(shape->n_elems)};
    int status = unpack_head(&made, &packed, bytes, err);
    if (status == 0)
        status = unpack_classes(&made, &packed, shape, err);
    if (status == 0)
        status = unpack_tiles(&made, &packed, shape, err);
    if (status)
        counts_model_fini(&made);
    else
        *model = made;
    return status;
}
