/* SPDX-License-Identifier: Apache-2.0
 *
 * counts_cases: frames of many kinds, models that training would never make, and an encoder so plain that it can be
 * checked by eye: it writes each lane's bits as a string of zeros and ones from a table of its own, then asks
 * for words as a decoder does. What it writes is what counts_encode has to write, whether or not that fits. */
#ifndef STOW_COUNTS_CASES_H
#define STOW_COUNTS_CASES_H

#include "counts_model.h"
#include "test.h"

#include <math.h>

static inline uint64_t case_random(void)
{
    static uint64_t state = 0x9e3779b97f4a7c15ull;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * 0x2545f4914f6cdd1dull >> 16;
}

static inline void *case_alloc(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (!memory) {
        fprintf(stderr, "out of memory\n");
        exit(EXIT_FAILURE);
    }
    return memory;
}

static inline uint32_t case_pixel(const void *pixels, uint64_t i, uint32_t elem_bytes)
{
    return elem_bytes == 1   ? ((const uint8_t *)pixels)[i]
           : elem_bytes == 2 ? ((const uint16_t *)pixels)[i]
                             : ((const uint32_t *)pixels)[i];
}

static inline uint32_t case_largest(uint32_t elem_bytes)
{
    return UINT32_MAX >> (32 - 8 * elem_bytes);
}

/* ---- frames --------------------------------------------------------------------------------------- */

enum pattern {
    ZEROS,
    ALL_MAXIMUM,
    ONE_FLAGGED,
    UNIFORM,
    POISSON_003,
    POISSON_01,
    POISSON_1,
    POISSON_5,
    POISSON_40,
    POISSON_300,
    POISSON_5000,
    DISK,
    HOT,
    DEVIATING,
    SYMBOLS_2,
    SYMBOLS_4,
    SYMBOLS_8,
    N_PATTERNS
};

static const char *const pattern_names[] = {
    "zeros",     "maximum",   "one flagged", "uniform",     "poisson .003", "poisson .1",
    "poisson 1", "poisson 5", "poisson 40",  "poisson 300", "poisson 5000", "disk",
    "hot",       "deviating", "symbols 2",   "symbols 4",   "symbols 8"};

static inline double case_uniform(void)
{
    return ((double)(case_random() & 0xffffffff) + 0.5) / 4294967296.0;
}

static inline uint32_t case_poisson(double mean)
{
    if (mean > 50) {
        double normal = sqrt(-2 * log(case_uniform())) * cos(2 * M_PI * case_uniform());
        double value = mean + sqrt(mean) * normal + 0.5;
        return value < 0 ? 0 : (uint32_t)value;
    }
    double limit = exp(-mean), product = case_uniform();
    uint32_t n = 0;
    for (; product > limit; n++)
        product *= case_uniform();
    return n;
}

/* Pixel i of frame number `frame`. */
static inline uint32_t pattern_value(enum pattern pattern, uint64_t i, uint64_t frame,
                                     const struct frame_shape *shape)
{
    static const double means[] = {
        [POISSON_003] = .003, [POISSON_01] = .1,   [POISSON_1] = 1,      [POISSON_5] = 5,
        [POISSON_40] = 40,    [POISSON_300] = 300, [POISSON_5000] = 5000};
    uint32_t largest = case_largest(shape->elem_bytes);
    uint64_t side = (uint64_t)sqrt((double)shape->n_elems) + 1;
    double y = (double)(i / side) - (double)side * (.45 + .01 * (double)frame);
    double x = (double)(i % side) - (double)side * .5;
    switch (pattern) {
    case ZEROS: return 0;
    case ALL_MAXIMUM: return largest;
    case ONE_FLAGGED: return i == shape->n_elems / 2 ? largest : 0;
    case UNIFORM: return (uint32_t)case_random() & largest;
    case DISK: return case_poisson(y * y + x * x < .06 * (double)(side * side) ? 12 : .2);
    case HOT: return i % 701 == 5 ? case_poisson(2000) : case_poisson(.5);
    case DEVIATING:
        if (i % 97 == 3)
            return frame == 2 && i % 2 ? case_poisson(3) : largest;
        return case_poisson(.8);
    case SYMBOLS_2: return (uint32_t)(i / 4 >> (2 * (i % 4)) & 3);
    case SYMBOLS_4: return (uint32_t)(i / 2 >> (4 * (i % 2)) & 15);
    case SYMBOLS_8: return (uint32_t)(i & 255);
    default: return case_poisson(means[pattern]);
    }
}

static inline void case_frame(void *pixels, enum pattern pattern, uint64_t frame,
                              const struct frame_shape *shape)
{
    uint32_t largest = case_largest(shape->elem_bytes);
    for (uint64_t i = 0; i < shape->n_elems; i++) {
        uint32_t value = pattern_value(pattern, i, frame, shape);
        value = value < largest ? value : largest;
        memcpy((uint8_t *)pixels + i * shape->elem_bytes, &value, shape->elem_bytes);
    }
}

/* ---- models that training would not make ---------------------------------------------------------- */

/* States for some symbols, in shares as uneven as they come; the others are coded as any of these. */
static inline void random_states(uint16_t freq[256], uint8_t coded[256])
{
    uint32_t n = 1 + (uint32_t)case_random() % (case_random() % 2 ? 256 : 8), left = COUNTS_STATES;
    uint8_t has[256];
    memset(freq, 0, 256 * sizeof(*freq));
    for (uint32_t i = 0; i < n; i++) {
        has[i] = (uint8_t)(case_random() % 4 ? i : case_random());
        freq[has[i]]++;
        left--;
    }
    while (left) {
        uint32_t share = 1 + (uint32_t)case_random() % (case_random() % 4 ? 1 + left / 8 : left);
        freq[has[case_random() % n]] += (uint16_t)share;
        left -= share;
    }
    for (uint32_t i = 0; i < 256; i++)
        coded[i] = freq[i] ? (uint8_t)i : has[case_random() % n];
}

static inline void random_class(struct counts_class *class_, uint32_t elem_bytes)
{
    uint64_t all = 1ull << 8 * elem_bytes;
    uint32_t most = elem_bytes == 1 ? 0 : elem_bytes == 2 ? 8 : COUNTS_MAX_SHIFT;
    class_->shift = (uint32_t)(case_random() % (most + 1));
    uint64_t room = all - (256ull << class_->shift) + 1;
    class_->base = (uint32_t)(case_random() % (case_random() % 2 ? room : room < 99 ? room : 99));
}

static inline void random_order(uint16_t *order, uint32_t n_granules)
{
    for (uint32_t first = 0; first < n_granules; first += 8) {
        uint32_t n = (n_granules - first < 8 ? n_granules - first : 8) * COUNTS_GRANULE_UNITS;
        uint16_t *units = order + first * COUNTS_GRANULE_UNITS;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t at = (uint32_t)(case_random() % (i + 1));
            units[i] = units[at];
            units[at] = (uint16_t)i;
        }
    }
}

static inline void random_model(struct counts_model *model, const struct frame_shape *shape,
                                uint32_t n_streams)
{
    *model = (struct counts_model){.n_tiles = counts_n_tiles(shape->n_elems),
                                   .n_granules = counts_n_granules(shape->n_elems)};
    model->n_streams = n_streams < model->n_tiles ? n_streams : model->n_tiles;
    model->until4 = (uint32_t)case_random() % 5;
    model->until2 = model->until4 + (uint32_t)case_random() % (5 - model->until4);
    model->until1 = model->until2 + (uint32_t)case_random() % (9 - model->until2);
    for (uint32_t k = 0; k < COUNTS_CLASSES; k++) {
        random_states(model->freq[k], model->coded[k]);
        if (k >= model->until1)
            random_class(&model->classes[k], shape->elem_bytes);
    }
    model->order = malloc((size_t)model->n_granules * COUNTS_GRANULE_UNITS * sizeof(uint16_t));
    model->granules = malloc(model->n_granules);
    model->constants = malloc((shape->n_elems + 1) * sizeof(*model->constants));
    if (!model->order || !model->granules || !model->constants)
        exit(EXIT_FAILURE);
    random_order(model->order, model->n_granules);
    for (uint32_t g = 0; g < model->n_granules; g++)
        model->granules[g] = case_random() % COUNTS_CLASSES;
    for (uint32_t i = 0; i < shape->n_elems; i++)
        if (case_random() % 50 == 0)
            model->constants[model->n_constants++] =
                (struct counts_constant){i,
                                         (uint32_t)case_random() & case_largest(shape->elem_bytes)};
}

/* ---- the plain encoder: tables -------------------------------------------------------------------- */

/* Of one class: what each state says. */
struct plain_table {
    bool made;
    uint8_t symbol[COUNTS_STATES], n_bits[COUNTS_STATES];
    uint16_t next[COUNTS_STATES]; /* with its new bits 0 */
    /* the state that says this symbol and can come to that state */
    uint16_t before[256][COUNTS_STATES];
};

static inline void plain_make_table(struct plain_table *table, const uint16_t freq[256])
{
    uint32_t at = 0, number[256];
    for (uint32_t s = 0; s < 256; s++) {
        number[s] = freq[s];
        for (uint32_t i = 0; i < freq[s]; i++, at = (at + 1283) % 2048)
            table->symbol[at] = (uint8_t)s;
    }
    for (uint32_t state = 0; state < COUNTS_STATES; state++) {
        uint32_t x = number[table->symbol[state]]++, n = 0;
        while (x << n < 2048)
            n++;
        table->n_bits[state] = (uint8_t)n;
        table->next[state] = (uint16_t)((x << n) - 2048);
        for (uint32_t bits = 0; bits < 1u << n; bits++)
            table->before[table->symbol[state]][table->next[state] + bits] = (uint16_t)state;
    }
    table->made = true;
}

/* ---- the plain encoder: what is said -------------------------------------------------------------- */

/* One symbol of a lane. */
struct plain_symbol {
    uint32_t class_, symbol, raw, raw_bits;
    bool last_of_group; /* a decoder looks at its place after it */
};

struct plain_patch {
    uint32_t tile, pixel;
    int64_t delta;
};

struct plain_stream {
    struct plain_symbol *symbols[COUNTS_LANES];
    uint32_t n_symbols; /* of each lane */
    struct plain_patch *patches;
    uint32_t n_patches;
    uint32_t *words;
    uint32_t n_words;
};

static inline void plain_patch_pixel(struct plain_stream *stream, uint64_t pixel, int64_t delta)
{
    if (delta)
        stream->patches[stream->n_patches++] =
            (struct plain_patch){(uint32_t)(pixel / 2048), (uint32_t)(pixel % 2048), delta};
}

/* Code n pixels from `pixel` on as one symbol. deltas: what is missing. */
static inline struct plain_symbol plain_code(int64_t deltas[4], const struct counts_model *model,
                                             const struct counts_constant *const *constant_of,
                                             const void *pixels, uint64_t pixel, uint32_t n,
                                             uint32_t k, const struct frame_shape *shape)
{
    struct plain_symbol out = {.class_ = k, .raw_bits = model->classes[k].shift};
    uint32_t bits = 8 / n, most = (1u << bits) - 1;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t at = pixel + i;
        if (at >= shape->n_elems || constant_of[at])
            continue;
        int64_t value = case_pixel(pixels, at, shape->elem_bytes), low = model->classes[k].base;
        int64_t high = low + ((int64_t)(most + 1) << out.raw_bits) - 1;
        value = (value < low ? low : value > high ? high : value) - low;
        out.symbol |= (uint32_t)(value >> out.raw_bits) << (i * bits);
        out.raw = (uint32_t)value & ((1u << out.raw_bits) - 1);
    }
    out.symbol = model->coded[k][out.symbol];
    for (uint32_t i = 0; i < n; i++) {
        uint64_t at = pixel + i;
        deltas[i] = 0;
        if (at >= shape->n_elems)
            continue;
        int64_t said = (int64_t)model->classes[k].base +
                       ((int64_t)(out.symbol >> (i * bits) & most) << out.raw_bits | out.raw);
        if (constant_of[at])
            said = constant_of[at]->value;
        deltas[i] = (int64_t)case_pixel(pixels, at, shape->elem_bytes) - said;
    }
    return out;
}

static inline void plain_say_granule(struct plain_stream *stream, const struct counts_model *model,
                                     const struct counts_constant *const *constant_of,
                                     const void *pixels, uint32_t g,
                                     const struct frame_shape *shape)
{
    uint32_t k = model->granules[g];
    uint32_t n = k < model->until4 ? 4 : k < model->until2 ? 2 : 1;
    for (uint32_t row = 0; row < 2; row++)
        for (uint32_t first = 0; first < 4; first += n) {
            int64_t deltas[COUNTS_LANES][4];
            uint64_t at[COUNTS_LANES];
            for (uint32_t l = 0; l < COUNTS_LANES; l++) {
                at[l] = (uint64_t)(g / 8) * 2048 + 4u * model->order[64 * g + 32 * row + l] + first;
                struct plain_symbol *to = &stream->symbols[l][stream->n_symbols];
                *to = plain_code(deltas[l], model, constant_of, pixels, at[l], n, k, shape);
                to->last_of_group = k >= model->until1 || stream->n_symbols % 2 == 1;
            }
            stream->n_symbols++;
            for (uint32_t i = 0; i < n; i++)
                for (uint32_t l = 0; l < COUNTS_LANES; l++)
                    plain_patch_pixel(stream, at[l] + i, deltas[l][i]);
        }
}

/* ---- the plain encoder: strings and words --------------------------------------------------------- */

/* A lane's string: one byte a bit. */
struct plain_string {
    uint8_t *bits;
    size_t n;       /* a multiple of 32 */
    size_t *places; /* [n_symbols] where the string stands after each */
    size_t begin;   /* after the head */
};

static inline void plain_put(struct plain_string *string, uint32_t value, uint32_t n)
{
    while (n-- > 0)
        string->bits[string->n++] = value >> n & 1;
}

static inline void plain_make_string(struct plain_string *string,
                                     const struct plain_symbol *symbols, uint32_t n_symbols,
                                     struct plain_table *tables)
{
    uint16_t *states = case_alloc((n_symbols + 1) * sizeof(*states));
    size_t n_bits = 1 + COUNTS_TABLE_BITS;
    states[n_symbols] = 0;
    for (uint32_t i = n_symbols; i-- > 0;) {
        const struct plain_table *table = &tables[symbols[i].class_];
        states[i] = table->before[symbols[i].symbol][states[i + 1]];
        n_bits += table->n_bits[states[i]] + symbols[i].raw_bits;
    }
    string->bits = case_alloc(n_bits + 32);
    string->places = case_alloc(n_symbols * sizeof(size_t) + 1);
    string->n = 0;
    while ((string->n + n_bits) % 32 != 0)
        plain_put(string, 0, 1);
    plain_put(string, 1, 1);
    plain_put(string, states[0], COUNTS_TABLE_BITS);
    string->begin = string->n;
    for (uint32_t i = 0; i < n_symbols; i++) {
        const struct plain_table *table = &tables[symbols[i].class_];
        plain_put(string, states[i + 1] - (uint32_t)table->next[states[i]],
                  table->n_bits[states[i]]);
        plain_put(string, symbols[i].raw, symbols[i].raw_bits);
        string->places[i] = string->n;
    }
    free(states);
}

/* Word i of a string; zeros past its end. */
static inline uint32_t plain_word(const struct plain_string *string, size_t i, bool *real)
{
    uint32_t word = 0;
    *real = 32 * i < string->n;
    for (size_t b = 32 * i; *real && b < 32 * i + 32; b++)
        word = word << 1 | string->bits[b];
    return word;
}

static inline void plain_ask(struct plain_stream *stream, const struct plain_string *string,
                             size_t i, uint32_t *end)
{
    bool real;
    stream->words[stream->n_words++] = plain_word(string, i, &real);
    if (real)
        *end = stream->n_words;
}

/* The words in the order in which a decoder asks for them, without those that nobody needs at the end. */
static inline void plain_interleave(struct plain_stream *stream, const struct plain_string *strings)
{
    size_t has[COUNTS_LANES], most = 3 * COUNTS_LANES;
    uint32_t end = 0;
    for (uint32_t l = 0; l < COUNTS_LANES; l++)
        most += strings[l].n / 32 + 2;
    stream->words = case_alloc(most * sizeof(uint32_t));
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t l = 0; l < COUNTS_LANES; l++)
            plain_ask(stream, &strings[l], i, &end);
    end = stream->n_words;
    for (uint32_t l = 0; l < COUNTS_LANES; l++) {
        has[l] = 2;
        if (strings[l].begin / 32 + 2 > has[l])
            plain_ask(stream, &strings[l], has[l]++, &end);
    }
    for (uint32_t i = 0; i < stream->n_symbols; i++) {
        if (!stream->symbols[0][i].last_of_group)
            continue;
        for (uint32_t l = 0; l < COUNTS_LANES; l++)
            if (strings[l].places[i] / 32 + 2 > has[l])
                plain_ask(stream, &strings[l], has[l]++, &end);
    }
    stream->n_words = end;
}

/* Patches of delta 0 where the next one is too far away, as near to that one as they can be. */
static inline void plain_fill_patches(struct plain_stream *stream)
{
    struct plain_patch *was = stream->patches;
    uint32_t n_was = stream->n_patches;
    stream->patches = case_alloc((n_was + COUNTS_MAX_TILES) * sizeof(*was));
    stream->n_patches = 0;
    for (uint32_t i = 0; i < n_was; i++) {
        uint32_t distance = i ? was[i].tile - was[i - 1].tile : 0;
        for (uint32_t n = distance ? (distance - 1) / 15 : 0; n > 0; n--)
            stream->patches[stream->n_patches++] = (struct plain_patch){was[i].tile - 15 * n, 0, 0};
        stream->patches[stream->n_patches++] = was[i];
    }
    free(was);
}

static inline void plain_encode_stream(struct plain_stream *stream,
                                       const struct counts_model *model, struct plain_table *tables,
                                       const struct counts_constant *const *constant_of,
                                       const void *pixels, uint32_t s,
                                       const struct frame_shape *shape)
{
    uint32_t begin = counts_stream_tile(model->n_tiles, model->n_streams, s) * 8;
    uint32_t end = counts_stream_tile(model->n_tiles, model->n_streams, s + 1) * 8;
    struct plain_string strings[COUNTS_LANES];
    end = end < model->n_granules ? end : model->n_granules;
    *stream = (struct plain_stream){0};
    stream->patches = case_alloc((size_t)(end - begin) * 256 * sizeof(*stream->patches));
    for (uint32_t l = 0; l < COUNTS_LANES; l++)
        stream->symbols[l] = case_alloc((size_t)(end - begin) * 8 * sizeof(struct plain_symbol));
    for (uint32_t g = begin; g < end; g++) {
        struct plain_table *table = &tables[model->granules[g]];
        if (!table->made)
            plain_make_table(table, model->freq[model->granules[g]]);
        plain_say_granule(stream, model, constant_of, pixels, g, shape);
    }
    plain_fill_patches(stream);
    for (uint32_t l = 0; l < COUNTS_LANES; l++)
        plain_make_string(&strings[l], stream->symbols[l], stream->n_symbols, tables);
    plain_interleave(stream, strings);
    for (uint32_t l = 0; l < COUNTS_LANES; l++) {
        free(strings[l].bits);
        free(strings[l].places);
        free(stream->symbols[l]);
    }
}

/* ---- the plain encoder: frames -------------------------------------------------------------------- */

struct plain_frame {
    uint32_t *words;
    size_t n_bytes;
    bool fits; /* each stream in the room that its pixels have */
};

static inline uint32_t *plain_put_patches(uint32_t *to, const struct plain_stream *stream,
                                          uint32_t elem_bytes)
{
    for (uint32_t i = 0; i < stream->n_patches; i++) {
        const struct plain_patch *patch = &stream->patches[i];
        uint32_t step = i + 1 < stream->n_patches ? patch[1].tile - patch->tile : 0;
        uint64_t delta = (uint64_t)patch->delta;
        *to++ = patch->pixel << 21 | step << 17 |
                ((uint32_t)(elem_bytes == 4 ? delta >> 32 : delta) & 0x1ffff);
        if (elem_bytes == 4)
            *to++ = (uint32_t)delta;
    }
    return to;
}

static inline size_t plain_room(const struct counts_model *model, uint32_t s,
                                const struct frame_shape *shape)
{
    uint64_t begin = 2048ull * counts_stream_tile(model->n_tiles, model->n_streams, s);
    uint64_t end = 2048ull * counts_stream_tile(model->n_tiles, model->n_streams, s + 1);
    end = end < shape->n_elems ? end : shape->n_elems;
    return (size_t)((end - begin) * shape->elem_bytes / 4);
}

/* tables: [COUNTS_CLASSES], zeroed before the model's first frame. */
static inline void plain_encode(struct plain_frame *frame, struct plain_table *tables,
                                const struct counts_model *model, const void *pixels,
                                const struct frame_shape *shape)
{
    struct plain_stream streams[COUNTS_MAX_STREAMS];
    const struct counts_constant **constant_of = case_alloc(shape->n_elems * sizeof(*constant_of));
    memset(constant_of, 0, shape->n_elems * sizeof(*constant_of));
    for (uint32_t i = 0; i < model->n_constants; i++)
        constant_of[model->constants[i].pixel] = &model->constants[i];
    size_t n_words = 2 * (size_t)model->n_streams, each = shape->elem_bytes == 4 ? 2 : 1;
    frame->fits = true;
    for (uint32_t s = 0; s < model->n_streams; s++) {
        struct plain_stream *stream = &streams[s];
        plain_encode_stream(stream, model, tables, constant_of, pixels, s, shape);
        size_t needs = stream->n_words + stream->n_patches * each;
        frame->fits &= needs <= plain_room(model, s, shape);
        n_words += needs;
    }
    frame->n_bytes = (n_words * 4 + 15) / 16 * 16;
    frame->words = case_alloc(frame->n_bytes);
    memset(frame->words, 0, frame->n_bytes);
    uint32_t *to = frame->words + 2 * (size_t)model->n_streams;
    for (uint32_t s = 0; s < model->n_streams; s++) {
        const struct plain_stream *stream = &streams[s];
        uint32_t first_tile = stream->n_patches ? stream->patches[0].tile : 0;
        frame->words[2 * s] = stream->n_words;
        frame->words[2 * s + 1] = stream->n_patches | first_tile << 18;
        to = plain_put_patches(to, stream, shape->elem_bytes);
        memcpy(to, stream->words, stream->n_words * 4);
        to += stream->n_words;
        free(stream->words);
        free(stream->patches);
    }
    free(constant_of);
}

#endif
