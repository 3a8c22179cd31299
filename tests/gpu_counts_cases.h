/* SPDX-License-Identifier: Apache-2.0
 *
 * gpu_counts_cases: frames of form counts, on the host and on the GPU, of models made by hand, so that every kind of
 * class, symbol and order occurs: what training would make of such pixels is no matter here. */
#ifndef STOW_GPU_COUNTS_CASES_H
#define STOW_GPU_COUNTS_CASES_H

#include "counts_cases.h"

#include <cuda_runtime_api.h>

#define MAX_FRAMES 6u /* that a case has */

static void must(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    exit(EXIT_FAILURE);
}

static void *must_alloc(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (!memory) {
        fprintf(stderr, "out of memory\n");
        exit(EXIT_FAILURE);
    }
    memset(memory, 0, (bytes + 64) / 64 * 64);
    return memory;
}

static uint32_t random_next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = *state ^ *state >> 29;
    return (uint32_t)(x * 0x9e3779b97f4a7c15u >> 32);
}

/* ---- cases --------------------------------------------------------------------------------------- */

enum classes {
    ALL_KINDS,  /* two classes of each kind, wide ones too */
    ONLY_FOURS, /* 4 pixels a symbol */
    ONLY_TWOS,
    ONLY_ONES,
    ONLY_WIDE,
};
enum symbols {
    EVERY,  /* all 256, as often */
    SKEWED, /* all 256, most of them once: states take 11 bits */
    FEW,    /* 3 are coded, all others are patched */
    ONE,    /* symbol 0 alone, of no bits */
};

struct test_case {
    const char *name;
    uint64_t n_elems;
    uint32_t elem_bytes, n_streams;
    enum classes classes;
    enum symbols symbols;
    uint32_t per_mille_large; /* pixels that no class can say */
    uint32_t n_constants;
    uint32_t n_frames;
};

static const struct test_case cases[] = {
    {"192x192 uint16", 36864, 2, 1, ALL_KINDS, EVERY, 0, 0, 5},
    {"192x192 uint16, skewed", 36864, 2, 1, ALL_KINDS, SKEWED, 1, 40, 5},
    {"192x192 uint16, 3 streams", 36864, 2, 3, ALL_KINDS, SKEWED, 2, 7, 5},
    {"192x192 uint16, 4 streams", 36864, 2, 4, ALL_KINDS, EVERY, 1, 100, 5},
    {"192x192 uint16, 8 streams", 36864, 2, 8, ALL_KINDS, SKEWED, 1, 33, 5},
    {"192x192 uint8", 36864, 1, 1, ALL_KINDS, SKEWED, 0, 32, 5},
    {"192x192 uint32", 36864, 4, 1, ALL_KINDS, EVERY, 2, 64, 5},
    {"2-bit fields, every symbol", 20480, 2, 1, ONLY_FOURS, EVERY, 0, 0, 3},
    {"2-bit fields, uint8", 20480, 1, 2, ONLY_FOURS, EVERY, 0, 3, 3},
    {"2-bit fields, uint32", 20480, 4, 2, ONLY_FOURS, EVERY, 0, 3, 3},
    {"4-bit fields, every symbol", 20480, 2, 1, ONLY_TWOS, EVERY, 0, 0, 3},
    {"4-bit fields, uint8", 20480, 1, 1, ONLY_TWOS, SKEWED, 0, 0, 3},
    {"4-bit fields, uint32", 20480, 4, 1, ONLY_TWOS, EVERY, 0, 0, 3},
    {"8-bit fields, every symbol", 20480, 2, 1, ONLY_ONES, EVERY, 0, 0, 3},
    {"8-bit fields, uint8, skewed", 20480, 1, 1, ONLY_ONES, SKEWED, 0, 0, 3},
    {"8-bit fields, uint32", 20480, 4, 1, ONLY_ONES, EVERY, 3, 0, 3},
    {"wide, uint16", 20480, 2, 1, ONLY_WIDE, SKEWED, 1, 5, 3},
    {"wide, uint32", 20480, 4, 3, ONLY_WIDE, SKEWED, 1, 5, 3},
    {"wide, uint8", 20480, 1, 1, ONLY_WIDE, SKEWED, 0, 5, 3},
    {"over 1,000 patches", 36864, 2, 1, ONLY_FOURS, FEW, 40, 0, 4},
    {"over 1,000 patches, uint32", 36864, 4, 4, ALL_KINDS, FEW, 40, 50, 4},
    {"patches far apart", 400000, 2, 1, ONLY_FOURS, ONE, 0, 0, 2},
    {"one value", 40000, 2, 1, ONLY_FOURS, ONE, 0, 0, 2},
    {"nothing but constants", 4096, 2, 2, ONLY_FOURS, ONE, 0, 4096, 2},
    {"one tile", 2048, 2, 8, ALL_KINDS, SKEWED, 5, 3, 5},
    {"part of a tile", 1700, 2, 1, ALL_KINDS, SKEWED, 0, 3, 5},
    {"a tile and one pixel", 2049, 2, 1, ALL_KINDS, SKEWED, 0, 3, 5},
    {"odd, uint8", 20001, 1, 1, ALL_KINDS, SKEWED, 0, 17, 5},
    {"odd, uint8, 8 streams", 20003, 1, 8, ALL_KINDS, SKEWED, 0, 17, 5},
    {"odd, uint16", 20005, 2, 3, ALL_KINDS, SKEWED, 2, 17, 5},
    {"odd, uint32", 20007, 4, 4, ALL_KINDS, SKEWED, 2, 17, 5},
    {"8 mod 16", 20484, 2, 1, ALL_KINDS, SKEWED, 2, 17, 5},
    {"512x512 uint16", 262144, 2, 4, ALL_KINDS, SKEWED, 1, 300, 3},
    {"largest, uint8", 16384u * 2048u, 1, 1, ONLY_FOURS, SKEWED, 0, 1000, 1},
};
#define N_CASES (sizeof(cases) / sizeof(cases[0]))

static uint32_t class_of_granule(const struct test_case *test, uint64_t *random)
{
    switch (test->classes) {
    case ALL_KINDS: return random_next(random) % COUNTS_CLASSES;
    default: return random_next(random) % 3; /* of eight of one kind */
    }
}

static void set_kinds(struct counts_model *model, const struct test_case *test)
{
    static const uint32_t until[][3] = {[ALL_KINDS] = {2, 4, 6},
                                        [ONLY_FOURS] = {8, 8, 8},
                                        [ONLY_TWOS] = {0, 8, 8},
                                        [ONLY_ONES] = {0, 0, 8},
                                        [ONLY_WIDE] = {0, 0, 0}};
    static const uint32_t shifts[5][2] = {[1] = {0, 0}, [2] = {3, 6}, [4] = {12, COUNTS_MAX_SHIFT}};
    model->until4 = until[test->classes][0];
    model->until2 = until[test->classes][1];
    model->until1 = until[test->classes][2];
    for (uint32_t k = model->until1; k < COUNTS_CLASSES; k++)
        model->classes[k] =
            (struct counts_class){.base = 10 * k, .shift = shifts[test->elem_bytes][k % 2]};
}

static void set_symbols(struct counts_model *model, enum symbols symbols, uint32_t k)
{
    for (uint32_t s = 0; s < 256; s++) {
        bool kept = symbols == EVERY || symbols == SKEWED || s == 0 ||
                    (symbols == FEW && (s == 1 || s == 85));
        model->freq[k][s] = !kept ? 0 : symbols == EVERY ? 8 : 1;
        model->coded[k][s] = kept ? (uint8_t)s : 0;
    }
    uint32_t sum = 0;
    for (uint32_t s = 0; s < 256; s++)
        sum += model->freq[k][s];
    model->freq[k][0] += (uint16_t)(COUNTS_STATES - sum);
}

/* Any order of a tile's units will do. */
static void set_order(struct counts_model *model, uint64_t *random)
{
    const uint32_t a_tile = COUNTS_TILE_UNITS / COUNTS_GRANULE_UNITS;
    for (uint32_t first = 0; first < model->n_granules; first += a_tile) {
        uint32_t rest = model->n_granules - first, n = (rest < a_tile ? rest : a_tile) * 64;
        uint16_t *order = model->order + (size_t)first * 64;
        for (uint32_t i = 0; i < n; i++)
            order[i] = (uint16_t)i;
        for (uint32_t i = n - 1; i > 0; i--) {
            uint32_t j = random_next(random) % (i + 1);
            uint16_t kept = order[i];
            order[i] = order[j];
            order[j] = kept;
        }
    }
}

static void make_model(struct counts_model *model, const struct test_case *test, uint64_t *random)
{
    *model = (struct counts_model){.n_tiles = counts_n_tiles(test->n_elems),
                                   .n_granules = counts_n_granules(test->n_elems),
                                   .n_constants = test->n_constants};
    model->n_streams = test->n_streams < model->n_tiles ? test->n_streams : model->n_tiles;
    model->order = must_alloc((size_t)model->n_granules * 64 * sizeof(uint16_t));
    model->granules = must_alloc(model->n_granules);
    model->constants = must_alloc((test->n_constants + 1) * sizeof(struct counts_constant));
    set_kinds(model, test);
    for (uint32_t k = 0; k < COUNTS_CLASSES; k++)
        set_symbols(model, test->symbols, k);
    set_order(model, random);
    for (uint32_t g = 0; g < model->n_granules; g++)
        model->granules[g] = (uint8_t)class_of_granule(test, random);
    for (uint32_t i = 0; i < test->n_constants; i++)
        model->constants[i] = (struct counts_constant){
            .pixel = (uint32_t)(i * test->n_elems / test->n_constants),
            .value =
                (0u - 1 - i) & (test->elem_bytes == 4 ? ~0u : (1u << 8 * test->elem_bytes) - 1),
        };
}

/* ---- pixels -------------------------------------------------------------------------------------- */

static void put_pixel(void *pixels, uint64_t i, uint32_t elem_bytes, uint32_t value)
{
    switch (elem_bytes) {
    case 1: ((uint8_t *)pixels)[i] = (uint8_t)value; break;
    case 2: ((uint16_t *)pixels)[i] = (uint16_t)value; break;
    default: ((uint32_t *)pixels)[i] = value;
    }
}

/* A value that class k can say. */
static uint32_t random_value(const struct counts_model *model, enum symbols symbols, uint32_t k,
                             uint64_t *random)
{
    uint32_t x = random_next(random);
    if (symbols == SKEWED && random_next(random) % 8 != 0)
        x = 0;
    if (symbols == ONE)
        x = 0;
    if (symbols == FEW)
        x = x % 4 == 0;
    if (k < model->until4)
        return x & 3;
    if (k < model->until2)
        return x & 15;
    if (k < model->until1)
        return x & 255;
    uint32_t shift = model->classes[k].shift, raw = random_next(random) & ((1u << shift) - 1);
    return model->classes[k].base + ((x & 255) << shift | raw);
}

static void make_pixels(void *pixels, const struct test_case *test,
                        const struct counts_model *model, uint64_t *random)
{
    for (uint32_t g = 0; g < model->n_granules; g++)
        for (uint32_t i = 0; i < COUNTS_GRANULE_PIXELS; i++) {
            uint32_t tile = g / 8, unit = model->order[g * 64 + i / 4];
            uint64_t at = (uint64_t)tile * COUNTS_TILE_PIXELS + unit * 4 + i % 4;
            uint32_t value = random_value(model, test->symbols, model->granules[g], random);
            if (random_next(random) % 1000 < test->per_mille_large)
                value = random_next(random);
            if (at < test->n_elems)
                put_pixel(pixels, at, test->elem_bytes, value);
        }
    for (uint32_t i = 0; i < model->n_constants; i++)
        put_pixel(pixels, model->constants[i].pixel, test->elem_bytes, model->constants[i].value);
    if (strcmp(test->name, "patches far apart") == 0) {
        put_pixel(pixels, 1999, test->elem_bytes, 60000);
        put_pixel(pixels, test->n_elems / 2, test->elem_bytes, 3);
        put_pixel(pixels, test->n_elems - 1, test->elem_bytes, 65535);
    }
}

/* ---- a case, encoded ----------------------------------------------------------------------------- */

struct made {
    const struct test_case *test;
    struct frame_shape shape;
    uint8_t *segment, *segment_dev;
    uint32_t n_frames;
    uint8_t *pixels; /* [n_frames, frame_bytes] */
    uint8_t *frames[MAX_FRAMES], *frames_dev[MAX_FRAMES];
    uint32_t bytes[MAX_FRAMES];
    uint32_t header_bytes, patches; /* most patches of a frame */
};

static void *to_device(const void *from, size_t bytes)
{
    void *memory = NULL;
    must(cudaMalloc(&memory, bytes), "device memory");
    must(cudaMemcpy(memory, from, bytes, cudaMemcpyHostToDevice), "copy");
    return memory;
}

static void encode_one(struct made *made, const struct counts_encoder *encoder, uint32_t i)
{
    const struct counts_segment *segment = (const struct counts_segment *)made->segment;
    struct counts_stream streams[COUNTS_MAX_STREAMS];
    size_t total = frame_bytes(&made->shape);
    uint8_t *room = must_alloc(total + 16);
    counts_encode(streams, room, made->pixels + i * total, segment, encoder, &made->shape);
    uint64_t bytes = counts_frame_bytes(streams, segment->n_streams, made->shape.elem_bytes);
    CHECK_MSG(bytes != 0, "%s: does not fit its room", made->test->name);
    if (bytes == 0)
        exit(test_end());
    made->frames[i] = must_alloc(bytes);
    made->bytes[i] = (uint32_t)bytes;
    counts_place(made->frames[i], room, streams, segment->n_streams, &made->shape);
    made->frames_dev[i] = to_device(made->frames[i], bytes);
    uint32_t patches = 0;
    for (uint32_t s = 0; s < segment->n_streams; s++)
        patches += streams[s].n_patches;
    made->patches = patches > made->patches ? patches : made->patches;
    free(room);
}

static void make_case(struct made *made, const struct test_case *test, uint64_t seed)
{
    struct counts_model model;
    uint64_t random = seed * 977 + 5;
    make_model(&model, test, &random);
    *made = (struct made){.test = test,
                          .shape = {.n_elems = test->n_elems, .elem_bytes = test->elem_bytes},
                          .n_frames = test->n_frames,
                          .header_bytes = 8 * model.n_streams};
    size_t total = frame_bytes(&made->shape);
    uint32_t segment_bytes = counts_model_segment_bytes(&model);
    struct counts_encoder *encoder = must_alloc(sizeof(*encoder));
    made->pixels = must_alloc(total * test->n_frames);
    made->segment = must_alloc(segment_bytes);
    counts_model_segment(&model, made->segment);
    counts_model_encoder(&model, encoder);
    made->segment_dev = to_device(made->segment, segment_bytes);
    for (uint32_t i = 0; i < test->n_frames; i++) {
        make_pixels(made->pixels + i * total, test, &model, &random);
        encode_one(made, encoder, i);
    }
    free(encoder);
    counts_model_fini(&model);
}

/* A pattern of counts_cases.h in place of pixels that a model is known to say: coded by a model of chance or by a
 * trained one, with the plain encoder. */
static void make_plain_case(struct made *made, const struct test_case *test, enum pattern pattern,
                            bool trained)
{
    const uint32_t n = test->n_frames;
    struct counts_model model;
    *made = (struct made){.test = test,
                          .shape = {.n_elems = test->n_elems, .elem_bytes = test->elem_bytes},
                          .n_frames = n};
    size_t total = frame_bytes(&made->shape);
    uint64_t *sums = must_alloc(test->n_elems * sizeof(*sums));
    struct plain_table *tables = must_alloc(COUNTS_CLASSES * sizeof(*tables));
    made->pixels = must_alloc(total * n);
    for (uint32_t i = 0; i < n; i++) {
        case_frame(made->pixels + i * total, pattern, i, &made->shape);
        for (uint64_t k = 0; k < test->n_elems; k++)
            sums[k] += case_pixel(made->pixels + i * total, k, test->elem_bytes);
    }
    if (trained)
        CHECK_INT(
            counts_model_train(&model, made->pixels, n, sums, n, &made->shape, test->n_streams), 0);
    else
        random_model(&model, &made->shape, test->n_streams);
    made->header_bytes = 8 * model.n_streams;
    made->segment = must_alloc(counts_model_segment_bytes(&model));
    counts_model_segment(&model, made->segment);
    made->segment_dev = to_device(made->segment, counts_model_segment_bytes(&model));
    for (uint32_t i = 0; i < n; i++) {
        struct plain_frame frame;
        plain_encode(&frame, tables, &model, made->pixels + i * total, &made->shape);
        made->frames[i] = (uint8_t *)frame.words;
        made->bytes[i] = (uint32_t)frame.n_bytes;
        made->frames_dev[i] = to_device(frame.words, frame.n_bytes);
    }
    counts_model_fini(&model);
    free(tables);
    free(sums);
}

static void free_case(struct made *made)
{
    for (uint32_t i = 0; i < made->n_frames; i++) {
        free(made->frames[i]);
        must(cudaFree(made->frames_dev[i]), "free");
    }
    must(cudaFree(made->segment_dev), "free");
    free(made->segment);
    free(made->pixels);
}

#endif
