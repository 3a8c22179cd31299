/* SPDX-License-Identifier: Apache-2.0
 *
 * The counts form on the CPU: what is encoded is byte for byte what a plain encoder writes, and decodes to what it
 * was; damaged frames and models are refused or decode to something, and nothing outside is touched.
 *
 *     counts_test [--golden | --corpus FOLDER]
 *
 * writes tests/golden/counts_golden.h, or seeds of fuzz_counts, instead. */
#include "counts_cases.h"

#include "bslz4.h"
#include "error.h"
#include "golden/counts_golden.h"

#include <sys/mman.h>
#include <unistd.h>

/* ---- memory between pages that nobody may touch --------------------------------------------------- */

struct fence {
    uint8_t *base, *end; /* what lies before end can be used, what begins there cannot */
    size_t bytes;
};

static struct fence fence_new(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (bytes + page - 1) / page * page;
    uint8_t *base =
        mmap(NULL, room + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || mprotect(base, page, PROT_NONE) ||
        mprotect(base + page + room, page, PROT_NONE)) {
        perror("mmap");
        exit(EXIT_FAILURE);
    }
    return (struct fence){base, base + page + room, room + 2 * page};
}

static void fence_free(struct fence *fence)
{
    munmap(fence->base, fence->bytes);
}

/* ---- a model with its tables ---------------------------------------------------------------------- */

struct bench {
    struct frame_shape shape;
    struct counts_model model;
    struct counts_segment *segment;
    struct counts_encoder *encoder;
    struct plain_table *plain;
    struct fence pixels; /* room for a decoded frame */
};

static void make_tables(struct bench *bench)
{
    bench->segment = case_alloc(counts_model_segment_bytes(&bench->model));
    bench->encoder = case_alloc(sizeof(*bench->encoder));
    counts_model_segment(&bench->model, bench->segment);
    counts_model_encoder(&bench->model, bench->encoder);
}

static void bench_init(struct bench *bench)
{
    make_tables(bench);
    bench->plain = case_alloc(COUNTS_CLASSES * sizeof(*bench->plain));
    for (uint32_t k = 0; k < COUNTS_CLASSES; k++)
        bench->plain[k].made = false;
    bench->pixels = fence_new(frame_bytes(&bench->shape) + 16);
}

static void bench_fini(struct bench *bench)
{
    free(bench->segment);
    free(bench->encoder);
    free(bench->plain);
    fence_free(&bench->pixels);
    counts_model_fini(&bench->model);
}

/* Decode what lies at src, with pixels that end `skew` bytes before the fence, and without; both must say the same. */
static int decode(struct bench *bench, const void *src, size_t src_bytes, uint32_t skew,
                  struct stow_error *err)
{
    struct decode_job job = {.src = (uintptr_t)src,
                             .src_bytes = (uint32_t)src_bytes,
                             .blocks = (uintptr_t)bench->segment,
                             .form = STOW_FORM_COUNTS};
    int checked = decode_frame(&job, &bench->shape, NULL);
    uint8_t *dst = bench->pixels.end - skew - frame_bytes(&bench->shape);
    uint8_t *before = dst - 1; /* there is a byte: the fence has 16 more */
    *before = 0x5a;
    memset(bench->pixels.end - skew, 0xa5, skew);
    job.dst = (uintptr_t)dst;
    int status = decode_frame(&job, &bench->shape, err);
    bool clean = *before == 0x5a;
    for (uint32_t i = 1; i <= skew; i++)
        clean &= bench->pixels.end[-(int32_t)i] == 0xa5;
    if (status != checked || !clean || (status && status != STOW_CORRUPT))
        CHECK_MSG(false, "decoding says %d, checking %d, %s", status, checked,
                  clean ? "writes are inside" : "wrote outside");
    return status;
}

/* ---- round trips ---------------------------------------------------------------------------------- */

static struct plain_frame encode(struct bench *bench, const void *pixels, const char *name)
{
    struct plain_frame plain;
    struct counts_stream streams[COUNTS_MAX_STREAMS];
    size_t room_bytes = (frame_bytes(&bench->shape) + 15) / 16 * 16;
    uint8_t *room = case_alloc(room_bytes + 64);
    memset(room, 0x77, room_bytes + 64);
    plain_encode(&plain, bench->plain, &bench->model, pixels, &bench->shape);
    counts_encode(streams, room, pixels, bench->segment, bench->encoder, &bench->shape);
    for (uint32_t i = 0; i < 64; i++)
        if (room[room_bytes + i] != 0x77)
            CHECK_MSG(false, "%s: encoding wrote behind its room", name);
    uint64_t bytes = counts_frame_bytes(streams, bench->model.n_streams, bench->shape.elem_bytes);
    CHECK_MSG((bytes != 0) == plain.fits, "%s: %llu bytes where it %s", name,
              (unsigned long long)bytes, plain.fits ? "fits" : "does not fit");
    if (bytes && plain.fits) {
        uint8_t *frame = case_alloc(bytes + 16);
        memset(frame, 0x33, bytes + 16);
        counts_place(frame, room, streams, bench->model.n_streams, &bench->shape);
        CHECK_MSG(bytes == plain.n_bytes && memcmp(frame, plain.words, bytes) == 0,
                  "%s: %llu bytes, not the %zu that they should be", name,
                  (unsigned long long)bytes, plain.n_bytes);
        CHECK_MSG(frame[bytes] == 0x33, "%s: placing wrote behind the frame", name);
        free(frame);
    }
    free(room);
    return plain;
}

static void round_trip(struct bench *bench, const void *pixels, const char *name)
{
    struct plain_frame plain = encode(bench, pixels, name);
    struct stow_error err = {0};
    uint32_t skew = (uint32_t)case_random() % 16;
    int status = decode(bench, plain.words, plain.n_bytes, skew, &err);
    CHECK_MSG(status == 0, "%s: %s", name, err.text);
    CHECK_MSG(memcmp(bench->pixels.end - skew - frame_bytes(&bench->shape), pixels,
                     frame_bytes(&bench->shape)) == 0,
              "%s: decodes to other pixels", name);
    free(plain.words);
}

static const uint64_t sizes[] = {1, 3, 255, 256, 257, 2048, 2049, 97 * 101, 192 * 192};
static const uint32_t stream_counts[] = {1, 3, 4, 8};

static void name_case(char name[128], enum pattern pattern, const struct bench *bench)
{
    snprintf(name, 128, "%s, u%lu x %llu, %lu streams", pattern_names[pattern],
             (unsigned long)bench->shape.elem_bytes, (unsigned long long)bench->shape.n_elems,
             (unsigned long)bench->model.n_streams);
}

static void add_sums(uint64_t *sums, const void *pixels, const struct frame_shape *shape)
{
    for (uint64_t i = 0; i < shape->n_elems; i++)
        sums[i] += case_pixel(pixels, i, shape->elem_bytes);
}

static void train(struct counts_model *model, const uint8_t *frames, uint64_t n_frames,
                  uint64_t n_sample, const struct frame_shape *shape, uint32_t n_streams)
{
    uint64_t *sums = case_alloc(shape->n_elems * sizeof(*sums));
    memset(sums, 0, shape->n_elems * sizeof(*sums));
    for (uint64_t i = 0; i < n_frames; i++)
        add_sums(sums, frames + i * frame_bytes(shape), shape);
    CHECK_INT(counts_model_train(model, frames, n_sample, sums, n_frames, shape, n_streams), 0);
    free(sums);
}

static void test_pattern(enum pattern pattern, uint64_t n_elems, uint32_t elem_bytes,
                         uint32_t n_streams, uint64_t n_frames)
{
    struct bench bench = {.shape = {.n_elems = n_elems, .elem_bytes = elem_bytes}};
    uint64_t bytes = frame_bytes(&bench.shape), n_sample = n_frames > 1 ? n_frames - 1 : 1;
    uint8_t *frames = case_alloc(n_frames * bytes);
    char name[128];
    for (uint64_t i = 0; i < n_frames; i++)
        case_frame(frames + i * bytes, pattern, i, &bench.shape);
    train(&bench.model, frames, n_frames, n_sample, &bench.shape, n_streams);
    bench_init(&bench);
    name_case(name, pattern, &bench);
    for (uint64_t i = n_frames > 2 ? n_frames - 2 : 0; i < n_frames; i++) {
        uint8_t *frame = case_alloc(bytes);
        memcpy(frame, frames + i * bytes, bytes); /* where it is aligned */
        round_trip(&bench, frame, name);
        free(frame);
    }
    bench_fini(&bench);
    free(frames);
}

static void test_patterns(void)
{
    for (uint32_t pattern = 0; pattern < N_PATTERNS; pattern++)
        for (uint32_t elem_bytes = 1; elem_bytes <= 4; elem_bytes *= 2)
            for (uint32_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
                for (uint32_t s = 0; s < sizeof(stream_counts) / sizeof(*stream_counts); s++)
                    if (s == 0 || counts_n_tiles(sizes[i]) > 1)
                        test_pattern((enum pattern)pattern, sizes[i], elem_bytes, stream_counts[s],
                                     s == 1 ? 1 : 4);
}

static void test_random_models(void)
{
    for (uint32_t i = 0; i < 120; i++) {
        struct bench bench = {.shape = {.n_elems = i % 4 == 0 ? 1 + case_random() % 3000
                                                              : 2000 + case_random() % 9000,
                                        .elem_bytes = 1u << i % 3}};
        enum pattern pattern = (enum pattern)(case_random() % N_PATTERNS);
        char name[128];
        random_model(&bench.model, &bench.shape, 1 + case_random() % COUNTS_MAX_STREAMS);
        bench_init(&bench);
        name_case(name, pattern, &bench);
        void *pixels = case_alloc(frame_bytes(&bench.shape));
        case_frame(pixels, pattern, 0, &bench.shape);
        round_trip(&bench, pixels, name);
        free(pixels);
        bench_fini(&bench);
    }
}

/* Patches that are many tiles apart: a model that knows zeros only. */
static void test_far_patches(void)
{
    static const uint32_t tiles[] = {0, 1, 16, 17, 32, 48, 79, 110};
    for (uint32_t elem_bytes = 1; elem_bytes <= 4; elem_bytes *= 2) {
        struct bench bench = {.shape = {.n_elems = 2048 * 120 - 5, .elem_bytes = elem_bytes}};
        uint8_t *pixels = case_alloc(frame_bytes(&bench.shape));
        memset(pixels, 0, frame_bytes(&bench.shape));
        train(&bench.model, pixels, 1, 1, &bench.shape, 1);
        bench_init(&bench);
        for (uint32_t i = 0; i < sizeof(tiles) / sizeof(*tiles); i++)
            memset(pixels + (2048ull * tiles[i] + 100 * i) * elem_bytes, 0x80 + (int)i, elem_bytes);
        round_trip(&bench, pixels, "far patches");
        free(pixels);
        bench_fini(&bench);
    }
}

/* ---- what training chooses ------------------------------------------------------------------------ */

static void test_training(void)
{
    struct frame_shape shape = {.n_elems = 97 * 101, .elem_bytes = 2};
    struct counts_model model = {0}, again = {0};
    uint8_t *frames = case_alloc(16 * frame_bytes(&shape));
    CHECK_INT(counts_segment_frames(192 * 192), 4096);
    CHECK_INT(counts_segment_frames(1), 8192);
    CHECK_INT(counts_segment_frames(4000000), 128);
    CHECK_INT(counts_sample_frames(192 * 192, 4096), 56);
    CHECK_INT(counts_sample_frames(192 * 192, 5), 5);
    CHECK_INT(counts_sample_frames(4000000, 128), 2);
    CHECK_INT(counts_sample_frames(4000000, 1), 1);

    for (uint64_t i = 0; i < 16; i++) /* so many that no other pixel is steady by chance */
        case_frame(frames + i * frame_bytes(&shape), DEVIATING, i, &shape);
    train(&model, frames, 16, 9, &shape, 3);
    train(&again, frames, 16, 9, &shape, 3);
    CHECK_INT(model.n_streams, 3);
    CHECK(memcmp(model.freq, again.freq, sizeof(model.freq)) == 0);
    uint32_t steady =
        0; /* pixels that are the same in all frames; the others' sums say that they are not */
    for (uint64_t i = 3; i < shape.n_elems; i += 97)
        steady += i % 2 == 0;
    CHECK_INT(model.n_constants, steady);
    counts_model_fini(&model);
    counts_model_fini(&again);
    /* Two frames tell of flags, and of nothing that may be chance. */
    train(&model, frames, 16, 2, &shape, 3);
    CHECK_INT(model.n_constants, steady);
    counts_model_fini(&model);

    /* One frame says of no pixel that it is constant, and a bright field is no list of constants. */
    train(&model, frames, 1, 1, &shape, 9);
    CHECK_INT(model.n_constants, 0);
    CHECK_INT(model.n_streams, 5);
    counts_model_fini(&model);
    memset(frames, 0xff, 4 * frame_bytes(&shape));
    train(&model, frames, 4, 4, &shape, 1);
    CHECK_INT(model.n_constants, 0);
    counts_model_fini(&model);

    uint64_t sum = 0;
    shape.n_elems = 0;
    CHECK_INT(counts_model_train(&model, frames, 1, &sum, 1, &shape, 1), STOW_UNSUPPORTED);
    shape.n_elems = (uint64_t)COUNTS_MAX_TILES * COUNTS_TILE_PIXELS + 1;
    CHECK_INT(counts_model_train(&model, frames, 1, &sum, 1, &shape, 1), STOW_UNSUPPORTED);
    free(frames);
}

/* ---- the segment's table -------------------------------------------------------------------------- */

static void check_segment(const struct bench *bench)
{
    const struct counts_model *model = &bench->model;
    const struct counts_segment *segment = bench->segment;
    const uint8_t *base = (const uint8_t *)segment;
    const uint32_t *entries = (const uint32_t *)(base + segment->tables_at);
    const uint32_t *order = (const uint32_t *)(base + segment->order_at);
    const uint32_t *until = (const uint32_t *)(base + segment->constant_tiles_at);
    const struct counts_constant *constants = (const void *)(base + segment->constants_at);
    uint32_t wrong = 0;
    for (uint32_t k = 0; k < COUNTS_CLASSES; k++) {
        struct plain_table *table = &bench->plain[k];
        if (!table->made)
            plain_make_table(table, model->freq[k]);
        for (uint32_t s = 0; s < COUNTS_STATES; s++) {
            uint32_t entry = entries[k * COUNTS_STATES + s];
            wrong += entry >> 16 != (k * 2048 + table->next[s]) * 4;
            wrong += (entry >> 8 & 255) != table->symbol[s] || (entry & 255) != table->n_bits[s];
        }
        wrong += memcmp(&segment->classes[k], &model->classes[k], sizeof(model->classes[k])) != 0;
    }
    for (uint32_t i = 0; i < model->n_granules * 32; i++)
        wrong += (order[i] & 0xffff) != model->order[i / 32 * 64 + i % 32] ||
                 order[i] >> 16 != model->order[i / 32 * 64 + 32 + i % 32];
    for (uint32_t t = 0; t < model->n_tiles; t++)
        for (uint32_t i = until[t]; i < until[t + 1]; i++)
            wrong +=
                constants[i].pixel / 2048 != t || constants[i].value != model->constants[i].value;
    CHECK_INT(wrong, 0);
    CHECK(until[0] == 0 && until[model->n_tiles] == model->n_constants);
    CHECK(memcmp(base + segment->granules_at, model->granules, model->n_granules) == 0);
    CHECK(segment->bytes % 16 == 0 && segment->tables_at % 16 == 0 && segment->order_at % 16 == 0);
    CHECK(segment->granules_at % 16 == 0 && segment->constant_tiles_at % 16 == 0 &&
          segment->constants_at % 16 == 0);
    CHECK(segment->constants_at + segment->n_constants * 8 <= segment->bytes);
}

static void test_segments(void)
{
    for (uint32_t i = 0; i < 12; i++) {
        struct bench bench = {
            .shape = {.n_elems = 1 + case_random() % 9000, .elem_bytes = 1u << i % 3}};
        random_model(&bench.model, &bench.shape, 1 + i % 8);
        bench_init(&bench);
        check_segment(&bench);
        bench_fini(&bench);
    }
}

/* ---- damage --------------------------------------------------------------------------------------- */

/* A frame at the end of memory, cut at every byte, then with flipped bits. */
static void damage(struct bench *bench, const struct plain_frame *plain, const char *name)
{
    struct fence fence = fence_new(plain->n_bytes + 16);
    uint32_t good_cuts = 0;
    for (size_t n = 0; n < plain->n_bytes; n++) {
        uint8_t *src = fence.end - (n + 15) / 16 * 16;
        memcpy(src, plain->words, n);
        if (n < 2000 || n % 7 == 0 || plain->n_bytes - n < 300)
            good_cuts += decode(bench, src, n, 0, NULL) == 0;
    }
    /* Only padding can be missed. */
    CHECK_MSG(good_cuts <= 15, "%s: %u cuts went unnoticed", name, good_cuts);

    uint8_t *src = fence.end - plain->n_bytes;
    uint32_t noticed = 0, n = 600;
    for (uint32_t i = 0; i < n; i++) {
        memcpy(src, plain->words, plain->n_bytes);
        size_t at = i < 96 ? i : case_random() % plain->n_bytes;
        src[at % plain->n_bytes] ^= (uint8_t)(1u << case_random() % 8);
        struct stow_error err = {0};
        int status = decode(bench, src, plain->n_bytes, 0, &err);
        noticed += status != 0;
        if (status && !err.text[0])
            CHECK_MSG(false, "%s: refused without a word", name);
    }
    CHECK_MSG(noticed > n / 3, "%s: %u of %u flipped bits noticed", name, noticed, n);
    fence_free(&fence);
}

static void test_damage(void)
{
    static const struct {
        uint64_t n_elems;
        uint32_t elem_bytes, n_streams;
        enum pattern pattern;
    } cases[] = {
        {257, 1, 1, POISSON_1},  {2049, 2, 2, POISSON_5},    {4096, 2, 1, HOT},
        {9797, 2, 3, DEVIATING}, {4000, 4, 2, POISSON_5000},
    };
    for (uint32_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct bench bench = {
            .shape = {.n_elems = cases[i].n_elems, .elem_bytes = cases[i].elem_bytes}};
        uint64_t bytes = frame_bytes(&bench.shape);
        uint8_t *frames = case_alloc(4 * bytes);
        for (uint64_t f = 0; f < 4; f++)
            case_frame(frames + f * bytes, cases[i].pattern, f, &bench.shape);
        train(&bench.model, frames, 4, 3, &bench.shape, cases[i].n_streams);
        bench_init(&bench);
        uint8_t *last = case_alloc(bytes);
        memcpy(last, frames + 3 * bytes, bytes);
        struct plain_frame plain = encode(&bench, last, pattern_names[cases[i].pattern]);
        damage(&bench, &plain, pattern_names[cases[i].pattern]);
        free(plain.words);
        free(last);
        free(frames);
        bench_fini(&bench);
    }
}

/* ---- packed models -------------------------------------------------------------------------------- */

static bool same_segment(const struct counts_model *a, const struct counts_model *b)
{
    uint32_t bytes = counts_model_segment_bytes(a);
    if (bytes != counts_model_segment_bytes(b))
        return false;
    void *left = case_alloc(bytes), *right = case_alloc(bytes);
    counts_model_segment(a, left);
    counts_model_segment(b, right);
    bool same = memcmp(left, right, bytes) == 0;
    free(left);
    free(right);
    return same;
}

/* Whatever was flipped: refused with a word, or a model that can be used and packs to the same bytes. */
static void try_unpack(struct bench *bench, const uint8_t *packed, size_t bytes,
                       const struct plain_frame *plain)
{
    struct bench other = {.shape = bench->shape, .pixels = bench->pixels};
    struct stow_error err = {0};
    int status = counts_model_unpack(&other.model, packed, bytes, &bench->shape, &err);
    if (status) {
        if (status != STOW_CORRUPT || !err.text[0] || other.model.order)
            CHECK_MSG(false, "unpacking says %d, \"%s\"", status, err.text);
        return;
    }
    uint8_t *again = case_alloc(bytes);
    if (counts_model_packed_bytes(&other.model) != bytes)
        CHECK_MSG(false, "a model of %zu bytes packs to other bytes", bytes);
    else
        counts_model_pack(&other.model, again);
    if (memcmp(again, packed, bytes) != 0)
        CHECK_MSG(false, "a model of %zu bytes packs to other bytes", bytes);
    make_tables(&other);
    decode(&other, plain->words, plain->n_bytes, 0, NULL);
    free(again);
    free(other.segment);
    free(other.encoder);
    counts_model_fini(&other.model);
}

static void test_packed(uint32_t elem_bytes)
{
    struct bench bench = {.shape = {.n_elems = 2500, .elem_bytes = elem_bytes}};
    random_model(&bench.model, &bench.shape, 2);
    bench_init(&bench);
    uint8_t *pixels = case_alloc(frame_bytes(&bench.shape));
    case_frame(pixels, POISSON_1, 0, &bench.shape);
    struct plain_frame plain;
    plain_encode(&plain, bench.plain, &bench.model, pixels, &bench.shape);

    size_t bytes = counts_model_packed_bytes(&bench.model);
    struct fence fence = fence_new(bytes + 8);
    uint8_t *packed = fence.end - bytes;
    struct counts_model unpacked = {0};
    counts_model_pack(&bench.model, packed);
    CHECK_INT(counts_model_unpack(&unpacked, packed, bytes, &bench.shape, NULL), 0);
    CHECK(same_segment(&bench.model, &unpacked));
    counts_model_fini(&unpacked);
    for (size_t i = 0; i < bytes; i++) {
        uint8_t was = packed[i];
        packed[i] ^= (uint8_t)(1u << case_random() % 8);
        try_unpack(&bench, packed, bytes, &plain);
        packed[i] = (uint8_t)case_random();
        try_unpack(&bench, packed, bytes, &plain);
        packed[i] = was;
    }
    uint32_t good_cuts = 0;
    for (size_t n = 0; n < bytes; n++) {
        memmove(fence.end - n, packed, n);
        good_cuts += counts_model_unpack(&unpacked, fence.end - n, n, &bench.shape, NULL) == 0;
        counts_model_pack(&bench.model, packed);
    }
    CHECK_INT(good_cuts, 0);
    struct frame_shape nothing = {.n_elems = 0, .elem_bytes = 1};
    CHECK_INT(counts_model_unpack(&unpacked, packed, bytes, &nothing, NULL), STOW_CORRUPT);
    const struct frame_shape no_counts[] = {
        {.n_elems = bench.shape.n_elems, .elem_bytes = 8},
        {.n_elems = bench.shape.n_elems, .elem_bytes = 4, .kind = PIXEL_SIGNED},
        {.n_elems = bench.shape.n_elems, .elem_bytes = 4, .kind = PIXEL_FLOAT}};
    for (size_t i = 0; i < 3; i++)
        CHECK_INT(counts_model_unpack(&unpacked, packed, bytes, &no_counts[i], NULL), STOW_CORRUPT);
    fence_free(&fence);
    free(plain.words);
    free(pixels);
    bench_fini(&bench);
}

/* ---- for ever ------------------------------------------------------------------------------------- */

/* Plain arithmetic, so that it stays what it was: mostly 0 to 3, a bright patch, a constant, an outlier. */
static uint32_t golden_pixel(uint64_t i)
{
    uint32_t x = (uint32_t)i * 2654435761u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    if (i == 777)
        return 65535;
    if (i == 1234)
        return 40000;
    if (i / 64 % 48 >= 12 && i / 64 % 48 < 20)
        return 300 + (x & 63) + (x >> 8 & 63) + (x >> 16 & 31);
    if (i / 64 % 48 >= 20 && i / 64 % 48 < 30)
        return (x & 3) + (x >> 8 & 7);
    return (x & 3) * (x >> 9 & 1) * (x >> 11 & 1);
}

#define GOLDEN_PIXELS (64 * 70)

/* Two compilers, or machines, that train differently show here. Set anew when training is changed. */
#define TRAINED 0x8468ee97e159c14dull

static uint64_t hash_model(const struct counts_model *model)
{
    size_t bytes = counts_model_packed_bytes(model);
    uint8_t *packed = case_alloc(bytes);
    uint64_t hash = 0xcbf29ce484222325ull;
    counts_model_pack(model, packed);
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ packed[i]) * 0x100000001b3ull;
    free(packed);
    return hash;
}

static void test_determinism(void)
{
    struct frame_shape shape = {.n_elems = GOLDEN_PIXELS, .elem_bytes = 4};
    struct counts_model model;
    uint32_t *frames = case_alloc(9 * frame_bytes(&shape));
    for (uint64_t i = 0; i < 9 * GOLDEN_PIXELS; i++)
        frames[i] = i % GOLDEN_PIXELS < 2048 ? golden_pixel(i) >> 9 : golden_pixel(i) * (i % 3 + 1);
    train(&model, (const uint8_t *)frames, 9, 9, &shape, 2);
    uint64_t hash = hash_model(&model);
    CHECK_MSG(hash == TRAINED, "training gives 0x%llx", (unsigned long long)hash);
    CHECK_MSG(model.until4 > 0 && model.until1 < COUNTS_CLASSES, "classes end at %u, %u, %u",
              model.until4, model.until2, model.until1);
    counts_model_fini(&model);
    free(frames);
}

static void test_golden(void)
{
    struct bench bench = {.shape = {.n_elems = GOLDEN_PIXELS, .elem_bytes = 2}};
    struct stow_error err = {0};
    uint8_t *frame = case_alloc(sizeof(golden_frame));
    memcpy(frame, golden_frame, sizeof(golden_frame));
    CHECK_MSG(counts_model_unpack(&bench.model, golden_model, sizeof(golden_model), &bench.shape,
                                  &err) == 0,
              "golden model: %s", err.text);
    if (bench.model.order) {
        bench_init(&bench);
        CHECK_MSG(decode(&bench, frame, sizeof(golden_frame), 0, &err) == 0, "golden frame: %s",
                  err.text);
        const uint8_t *pixels = bench.pixels.end - frame_bytes(&bench.shape);
        uint32_t wrong = 0;
        for (uint64_t i = 0; i < GOLDEN_PIXELS; i++)
            wrong += case_pixel(pixels, i, 2) != golden_pixel(i);
        CHECK_INT(wrong, 0);
        bench_fini(&bench);
    }
    free(frame);
}

static void print_bytes(const char *name, const uint8_t *bytes, size_t n)
{
    printf("static const uint8_t %s[%zu] = {", name, n);
    for (size_t i = 0; i < n; i++)
        printf("%s%u,", i % 24 == 0 ? "\n    " : " ", bytes[i]);
    printf("\n};\n");
}

static void print_golden(void)
{
    struct bench bench = {.shape = {.n_elems = GOLDEN_PIXELS, .elem_bytes = 2}};
    uint64_t bytes = frame_bytes(&bench.shape);
    uint16_t *frames = case_alloc(3 * bytes);
    for (uint64_t i = 0; i < 3 * GOLDEN_PIXELS; i++) {
        uint64_t pixel = i % GOLDEN_PIXELS;
        frames[i] = (uint16_t)golden_pixel(pixel == 777 || pixel == 1234 ? pixel : i);
    }
    frames[GOLDEN_PIXELS + 1234] = 0;
    train(&bench.model, (const uint8_t *)frames, 3, 3, &bench.shape, 2);
    bench_init(&bench);
    struct plain_frame plain = encode(&bench, frames, "golden");
    size_t packed_bytes = counts_model_packed_bytes(&bench.model);
    uint8_t *packed = case_alloc(packed_bytes);
    counts_model_pack(&bench.model, packed);
    puts("/* SPDX-License-Identifier: Apache-2.0\n *\n"
         " * A packed model and a frame encoded with it, of the first version: they must decode "
         "for ever.\n"
         " * Written by counts_test --golden. */\n"
         "#ifndef STOW_COUNTS_GOLDEN_H\n#define STOW_COUNTS_GOLDEN_H\n\n#include <stdint.h>\n\n/* "
         "clang-format off */");
    print_bytes("golden_model", packed, packed_bytes);
    print_bytes("golden_frame", (const uint8_t *)plain.words, plain.n_bytes);
    puts("\n#endif");
}

/* ---- seeds of fuzz_counts ------------------------------------------------------------------------- */

static void write_seed(const char *folder, uint32_t number, const struct bench *bench,
                       const struct plain_frame *plain)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/seed_%02lu", folder, (unsigned long)number);
    FILE *file = fopen(path, "wb");
    size_t bytes = counts_model_packed_bytes(&bench->model);
    uint8_t *packed = case_alloc(bytes);
    counts_model_pack(&bench->model, packed);
    const uint8_t head[] = {(uint8_t)(bench->shape.elem_bytes / 2), (uint8_t)bench->shape.n_elems,
                            (uint8_t)(bench->shape.n_elems >> 8)};
    const uint8_t n[] = {(uint8_t)bytes, (uint8_t)(bytes >> 8), (uint8_t)(bytes >> 16)};
    if (!file || !fwrite(head, sizeof(head), 1, file) || !fwrite(n, sizeof(n), 1, file) ||
        !fwrite(packed, bytes, 1, file) || !fwrite(plain->words, plain->n_bytes, 1, file) ||
        fclose(file))
        CHECK_MSG(false, "%s cannot be written", path);
    free(packed);
}

static void write_corpus(const char *folder)
{
    static const uint64_t shapes[] = {1, 255, 257, 700, 2049, 2300};
    for (uint32_t i = 0; i < 12; i++) {
        struct bench bench = {.shape = {.n_elems = shapes[i % 6], .elem_bytes = 1u << i % 3}};
        void *pixels = case_alloc(frame_bytes(&bench.shape));
        case_frame(pixels, (enum pattern)(i + 3), 0, &bench.shape);
        if (i % 2)
            train(&bench.model, pixels, 1, 1, &bench.shape, 2);
        else
            random_model(&bench.model, &bench.shape, 2);
        bench_init(&bench);
        struct plain_frame plain;
        plain_encode(&plain, bench.plain, &bench.model, pixels, &bench.shape);
        write_seed(folder, i, &bench, &plain);
        free(plain.words);
        free(pixels);
        bench_fini(&bench);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--golden") == 0) {
        print_golden();
        return 0;
    }
    if (argc > 2 && strcmp(argv[1], "--corpus") == 0) {
        write_corpus(argv[2]);
        return test_failed != 0;
    }
    test_golden();
    test_determinism();
    test_training();
    test_segments();
    for (uint32_t elem_bytes = 1; elem_bytes <= 4; elem_bytes *= 2)
        test_packed(elem_bytes);
    test_far_patches();
    test_random_models();
    test_damage();
    test_patterns();
    return test_end();
}
