/* SPDX-License-Identifier: Apache-2.0
 *
 * Each filter and their combinations against plain encoders; then chunks that are cut, flipped or lie. Memory is of
 * exact size, which counts under the sanitizers. */
#include "filter_cases.h"

#define MAX_KINDS 40u

static struct filter_scratch scratch;

static int undo(struct case_bytes out, struct case_bytes chunk,
                const struct filter_pipeline *pipeline, struct stow_error *err)
{
    struct case_bytes src = case_copy(chunk.at, chunk.n);
    *err = (struct stow_error){0};
    int rc = filters_undo(out.at, out.n, src.at, src.n, pipeline, &scratch, err);
    CHECK_MSG(rc == err->code && !rc == !err->text[0], "returned %d, error %d \"%s\"", rc,
              err->code, err->text);
    free(src.at);
    return rc;
}

static void check_round(struct case_bytes pixels, const struct filter_pipeline *pipeline)
{
    struct case_bytes chunk = case_write(pixels, pipeline), out = case_new(pixels.n);
    struct stow_error err;
    memset(out.at, 0xa5, out.n);
    int rc = undo(out, chunk, pipeline, &err);
    CHECK_MSG(!rc && !memcmp(out.at, pixels.at, pixels.n),
              "filter %u and %u more, mask %u, %zu bytes: %d %s", pipeline->filters[0].id,
              pipeline->n_filters - 1, pipeline->mask, pixels.n, rc, err.text);
    free(chunk.at);
    free(out.at);
}

static unsigned filters_for(struct assembly_filter *kinds, uint32_t elem_bytes)
{
    unsigned n = 0;
    kinds[n++] = filter_with(FILTER_GZIP, 4);
    kinds[n++] = filter_with(FILTER_SHUFFLE, elem_bytes);
    kinds[n++] = filter_of(FILTER_FLETCHER32);
    kinds[n++] = filter_of(FILTER_LZ4);
    kinds[n++] = filter_with(FILTER_LZ4, 0);
    kinds[n++] = filter_with(FILTER_LZ4, 1);
    kinds[n++] = filter_with(FILTER_LZ4, 8);
    kinds[n++] = filter_with(FILTER_LZ4, 512);
    kinds[n++] = filter_of(FILTER_ZSTD);
    for (uint32_t mode = 0; mode <= 3; mode += mode ? 1 : 2) {
        kinds[n++] = filter_bits(elem_bytes, 0, mode);
        kinds[n++] = filter_bits(elem_bytes, 8, mode);
        kinds[n++] = filter_bits(elem_bytes, 136, mode);
        kinds[n++] = filter_bits(elem_bytes, 65536, mode);
    }
    return n;
}

static const uint32_t elem_sizes[] = {1, 2, 3, 4, 8};

static void test_each(void)
{
    static const size_t sizes[] = {1, 5, 7, 8, 15, 64, 81, 129, 1000, 4096, 36864};
    struct assembly_filter kinds[MAX_KINDS];
    for (size_t e = 0; e < 5; e++) {
        unsigned n = filters_for(kinds, elem_sizes[e]);
        for (size_t s = 0; s < sizeof(sizes) / sizeof(*sizes); s++) {
            struct case_bytes pixels = case_pixels(sizes[s], elem_sizes[e]);
            for (unsigned i = 0; i < n; i++) {
                struct filter_pipeline pipeline = {.filters = &kinds[i], .n_filters = 1};
                check_round(pixels, &pipeline);
                pipeline.mask = 1;
                check_round(pixels, &pipeline);
            }
            free(pixels.at);
        }
    }
}

/* Any filters in any order, each applied or not. Bitshuffle takes whole elements only, as the library does. */
static void test_combinations(void)
{
    struct assembly_filter kinds[MAX_KINDS], filters[ASSEMBLY_FILTERS];
    for (unsigned round = 0; round < 3000; round++) {
        uint32_t elem_bytes = elem_sizes[case_random() % 5];
        unsigned n = filters_for(kinds, elem_bytes);
        struct case_bytes pixels = case_pixels(1 + case_random() % 700, elem_bytes);
        struct filter_pipeline pipeline = {.filters = filters,
                                           .n_filters = 1 + case_random() % 4,
                                           .mask = case_random() % 3 ? 0 : case_random() % 16};
        for (unsigned i = 0; i < pipeline.n_filters; i++) {
            filters[i] = kinds[case_random() % n];
            if (filters[i].id == FILTER_LZ4 && filters[i].values[0] == 1)
                filters[i].values[0] = 8; /* twice blocks of one byte is more than is allowed */
            if (i && filters[i].id == FILTER_BITSHUFFLE)
                filters[i].values[2] = 1;
        }
        check_round(pixels, &pipeline);
        free(pixels.at);
    }
}

/* Values that h5py's checksums have. */
static void test_fletcher32(void)
{
    static const struct {
        size_t n;
        uint32_t sum;
    } rows[] = {{1, 0x0b000b00},   {2, 0x0b300b30},   {7, 0x55b9e96f},
                {720, 0x2a3f636c}, {721, 0xa8ab7e6c}, {5001, 0xc410f8a2}};
    uint8_t bytes[5001];
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * 37 + 11);
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
        CHECK_INT(filters_fletcher32(bytes, rows[i].n), rows[i].sum);
    memset(bytes, 255, 1000);
    CHECK_INT(filters_fletcher32(bytes, 1000), 0xffffffff);
}

/* The checksum of old versions is taken, any other is not. */
static void test_old_fletcher32(void)
{
    struct assembly_filter filter = filter_of(FILTER_FLETCHER32);
    struct filter_pipeline pipeline = {.filters = &filter, .n_filters = 1};
    struct case_bytes pixels = case_pixels(40, 2), out = case_new(80);
    struct case_bytes chunk = case_write(pixels, &pipeline);
    struct stow_error err;
    uint8_t *sum = chunk.at + 80, a = sum[0], c = sum[2];
    sum[0] = sum[1], sum[1] = a, sum[2] = sum[3], sum[3] = c;
    CHECK_INT(undo(out, chunk, &pipeline, &err), 0);
    sum[0] ^= 1;
    CHECK_INT(undo(out, chunk, &pipeline, &err), STOW_CORRUPT);
    CHECK_MSG(strstr(err.text, "checksum"), "%s", err.text);
    sum[0] ^= 1;
    chunk.at[17] ^= 64;
    CHECK_INT(undo(out, chunk, &pipeline, &err), STOW_CORRUPT);
    chunk.n = 3;
    CHECK_INT(undo(out, chunk, &pipeline, &err), STOW_CORRUPT);
    free(pixels.at);
    free(out.at);
    free(chunk.at);
}

/* Bitshuffle 0.3 that was asked for Zstandard wrote none. */
static void test_false_zstd(void)
{
    struct assembly_filter alone = filter_bits(2, 0, 0), claimed = filter_bits(2, 0, 3);
    struct filter_pipeline pipeline = {.filters = &alone, .n_filters = 1};
    struct case_bytes pixels = case_pixels(5003, 2), out = case_new(10006);
    struct case_bytes chunk = case_write(pixels, &pipeline);
    struct stow_error err;
    pipeline.filters = &claimed;
    CHECK_INT(undo(out, chunk, &pipeline, &err), STOW_CORRUPT);
    claimed.values[1] = 3;
    CHECK_INT(undo(out, chunk, &pipeline, &err), 0);
    CHECK(!memcmp(out.at, pixels.at, pixels.n));
    check_round(pixels, &pipeline); /* a true one under that number */
    free(pixels.at);
    free(out.at);
    free(chunk.at);
}

static void test_cut(void)
{
    struct assembly_filter kinds[MAX_KINDS];
    struct stow_error err;
    unsigned n = filters_for(kinds, 2);
    struct case_bytes pixels = case_pixels(301, 2), out = case_new(pixels.n);
    for (unsigned i = 0; i < n; i++) {
        struct filter_pipeline pipeline = {.filters = &kinds[i], .n_filters = 1};
        struct case_bytes chunk = case_write(pixels, &pipeline);
        const size_t whole = chunk.n;
        for (chunk.n = 0; chunk.n < whole; chunk.n++) {
            int rc = undo(out, chunk, &pipeline, &err);
            CHECK_MSG(rc == STOW_CORRUPT, "filter %u cut to %zu of %zu: %d", kinds[i].id, chunk.n,
                      whole, rc);
        }
        free(chunk.at);
    }
    free(pixels.at);
    free(out.at);
}

/* What comes out may be other counts where there is no checksum, or a weak one as gzip's, but never more than there is room
 * for. */
static void test_flipped(void)
{
    struct assembly_filter kinds[MAX_KINDS];
    struct stow_error err;
    unsigned n = filters_for(kinds, 4);
    struct case_bytes pixels = case_pixels(150, 4), out = case_new(pixels.n);
    for (unsigned i = 0; i < n; i++) {
        struct filter_pipeline pipeline = {.filters = &kinds[i], .n_filters = 1};
        struct case_bytes chunk = case_write(pixels, &pipeline);
        for (size_t at = 0; at < chunk.n; at++) {
            for (unsigned bit = 0; bit < 8; bit++) {
                chunk.at[at] ^= (uint8_t)(1u << bit);
                int rc = undo(out, chunk, &pipeline, &err);
                CHECK(rc == 0 || rc == STOW_CORRUPT);
                if (kinds[i].id == FILTER_FLETCHER32)
                    CHECK_INT(rc, STOW_CORRUPT);
                chunk.at[at] ^= (uint8_t)(1u << bit);
            }
        }
        free(chunk.at);
    }
    free(pixels.at);
    free(out.at);
}

/* Headers that lie, and parameters that make no sense. */
static void test_lies(void)
{
    static const struct {
        const char *what;
        struct assembly_filter filter;
        uint8_t chunk[40];
        size_t n;
        int code;
    } rows[] = {
        {"an unknown filter", {.id = 32001}, {0}, 16, STOW_UNSUPPORTED},
        {"shuffle without a size", {.id = FILTER_SHUFFLE}, {0}, 16, STOW_UNSUPPORTED},
        {"bitshuffle without a size", {.id = FILTER_BITSHUFFLE}, {0}, 16, STOW_UNSUPPORTED},
        {"an unknown compressor",
         {.id = FILTER_BITSHUFFLE, .n_values = 5, .values = {0, 4, 2, 0, 4}},
         {0},
         16,
         STOW_UNSUPPORTED},
        {"LZ4 of 2^40 bytes", {.id = FILTER_LZ4}, {0, 0, 1}, 40, STOW_CORRUPT},
        {"LZ4 of no bytes", {.id = FILTER_LZ4}, {0}, 12, STOW_CORRUPT},
        {"LZ4 blocks of 0", {.id = FILTER_LZ4}, {[7] = 16}, 40, STOW_CORRUPT},
        {"LZ4 block longer than the chunk",
         {.id = FILTER_LZ4},
         {[7] = 16, [11] = 16, [12] = 0xff},
         32,
         STOW_CORRUPT},
        {"LZ4 offset of 0",
         {.id = FILTER_LZ4},
         {[7] = 16, [11] = 16, [15] = 4, [16] = 0x1b, [17] = 9},
         20,
         STOW_CORRUPT},
        {"LZ4 stored and more",
         {.id = FILTER_LZ4},
         {[7] = 16, [11] = 16, [15] = 16},
         33,
         STOW_CORRUPT},
        {"LZ4 stored", {.id = FILTER_LZ4}, {[7] = 16, [11] = 16, [15] = 16}, 32, 0},
        {"LZ4 stored, blocks said to be larger than all",
         {.id = FILTER_LZ4},
         {[7] = 16, [8] = 0x40, [15] = 16},
         32,
         0},
        {"bitshuffle blocks of 7 bytes",
         {.id = FILTER_BITSHUFFLE, .n_values = 5, .values = {0, 4, 2, 0, 2}},
         {[7] = 16, [11] = 7},
         40,
         STOW_CORRUPT},
        {"raw, one byte short", {.id = FILTER_GZIP}, {0}, 15, STOW_CORRUPT},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        struct filter_pipeline pipeline = {.filters = &rows[i].filter,
                                           .n_filters = 1,
                                           .mask = rows[i].filter.id == FILTER_GZIP};
        struct case_bytes out = case_new(16), chunk = case_copy(rows[i].chunk, rows[i].n);
        struct stow_error err;
        int rc = undo(out, chunk, &pipeline, &err);
        CHECK_MSG(rc == rows[i].code, "%s: %d %s", rows[i].what, rc, err.text);
        free(out.at);
        free(chunk.at);
    }
}

/* A stream that is right, of another size. */
static void test_sizes(void)
{
    struct assembly_filter kinds[MAX_KINDS];
    struct stow_error err;
    unsigned n = filters_for(kinds, 1);
    struct case_bytes pixels = case_pixels(100, 1);
    for (unsigned i = 0; i < n; i++) {
        struct filter_pipeline pipeline = {.filters = &kinds[i], .n_filters = 1};
        struct case_bytes chunk = case_write(pixels, &pipeline);
        for (size_t want = 99; want <= 101; want += 2) {
            struct case_bytes out = case_new(want);
            CHECK_MSG(undo(out, chunk, &pipeline, &err) == STOW_CORRUPT, "filter %u, %zu bytes",
                      kinds[i].id, want);
            free(out.at);
        }
        free(chunk.at);
    }
    free(pixels.at);
}

int main(void)
{
    test_each();
    test_combinations();
    test_fletcher32();
    test_old_fletcher32();
    test_false_zstd();
    test_cut();
    test_flipped();
    test_lies();
    test_sizes();
    filter_scratch_fini(&scratch);
    return test_end();
}
