/* SPDX-License-Identifier: Apache-2.0
 *
 * bslz4 on the CPU against the plain decoder. Chunks and frames end at a page that cannot be touched, and
 * frames have guard bytes before them, so that one byte too far is seen. */
#include "bslz4_cases.h"

#include <sys/mman.h>
#include <unistd.h>

#define GUARD 64

/* Memory that ends where a page without rights begins. */
struct fenced {
    uint8_t *map;
    size_t map_bytes;
    uint8_t *end;
};

static struct fenced fence(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct fenced fenced = {.map_bytes = (bytes + page - 1) / page * page + page};
    fenced.map =
        mmap(NULL, fenced.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fenced.end = fenced.map + fenced.map_bytes - page;
    if (fenced.map == MAP_FAILED || mprotect(fenced.end, page, PROT_NONE) != 0) {
        perror("mmap");
        exit(EXIT_FAILURE);
    }
    return fenced;
}

/* Two fences that are kept, since a case is small and a mapping is slow. */
struct host {
    struct fenced src, dst;
};

static int decode_host(void *data, uint8_t *dst, const uint8_t *src, size_t src_bytes,
                       const uint32_t *blocks, size_t n_blocks, const struct frame_shape *shape,
                       unsigned skew)
{
    struct host *host = data;
    size_t total = frame_bytes(shape);
    uint8_t *chunk = host->src.end - src_bytes, *frame = host->dst.end - total;
    (void)n_blocks;
    (void)skew;
    memcpy(chunk, src, src_bytes);
    memset(frame - GUARD, 0xa5, GUARD);
    struct decode_job job = {
        .src = (uintptr_t)chunk,
        .src_bytes = (uint32_t)src_bytes,
        .blocks = (uintptr_t)blocks,
        .dst = dst ? (uintptr_t)frame : 0,
        .form = STOW_FORM_BSLZ4,
    };
    struct stow_error err = {0};
    int status = decode_frame(&job, shape, &err);
    if (status != err.code || (status && !err.text[0]))
        return 1;
    for (size_t i = 1; i <= GUARD; i++)
        if (frame[-(ptrdiff_t)i] != 0xa5)
            return 1;
    if (dst)
        memcpy(dst, frame, total);
    return status;
}

/* Wide and plain, every count of columns, against the plain decoder's. */
static void test_untranspose(void)
{
    static uint8_t rows[8 * 8 * 200], want[sizeof(rows)], got[sizeof(rows)];
    for (size_t i = 0; i < sizeof(rows); i++)
        rows[i] = (uint8_t)case_random();
    for (uint32_t e = 1; e <= 8; e *= 2) {
        for (size_t columns = 0; columns <= 200; columns++) {
            for (int wide = 0; wide < 2; wide++) {
                plain_untranspose(want, rows, 8 * columns, e);
                memset(got, 0, sizeof(got));
                bslz4_untranspose(got, rows, 8 * columns, e, wide);
                CHECK(memcmp(got, want, 8 * columns * e) == 0);
            }
        }
    }
}

static void test_plain_forms(void)
{
    uint8_t pixels[30], frame[30];
    const struct frame_shape shape = {.n_elems = 15, .elem_bytes = 2, .fill = 0xbeef};
    struct decode_job job = {.src = (uintptr_t)pixels, .src_bytes = 30, .dst = (uintptr_t)frame};
    struct stow_error err = {0};
    make_pixels(pixels, &shape, NOISE);

    job.form = STOW_FORM_RAW;
    CHECK_INT(decode_frame(&job, &shape, &err), 0);
    CHECK(memcmp(frame, pixels, 30) == 0);
    job.src_bytes = 29;
    CHECK_INT(decode_frame(&job, &shape, &err), STOW_CORRUPT);
    job.form = STOW_FORM_FILL;
    CHECK_INT(decode_frame(&job, &shape, NULL), 0);
    for (size_t i = 0; i < 30; i += 2)
        CHECK(frame[i] == 0xef && frame[i + 1] == 0xbe);
    job.form = STOW_FORM_BAD;
    CHECK_INT(decode_frame(&job, &shape, NULL), STOW_CORRUPT);
}

/* Bits that are lost where one takes the value for a number of another kind: of f8 a NaN with a payload. */
static void test_fill_of_eight(void)
{
    const struct frame_shape shape = {
        .n_elems = 3, .elem_bytes = 8, .kind = PIXEL_FLOAT, .fill = 0xfff4000000c0ffee};
    uint64_t frame[3] = {0};
    const struct decode_job job = {.form = STOW_FORM_FILL, .dst = (uintptr_t)frame};
    CHECK_INT(decode_frame(&job, &shape, NULL), 0);
    for (size_t i = 0; i < 3; i++)
        CHECK(frame[i] == shape.fill);
}

/* What index says, word for word where a person will read it. */
static void test_index_errors(void)
{
    const struct frame_shape shape = {.n_elems = 64, .elem_bytes = 1};
    uint8_t bytes[16] = {0};
    uint32_t blocks[2];
    size_t n_blocks = 99;
    struct stow_error err = {0};
    put_number(bytes, 64, 8);
    put_number(bytes + 8, 8192, 4);
    put_number(bytes + 12, 9000, 4);
    CHECK_INT(bslz4_index(blocks, 2, &n_blocks, bytes, 16, &shape, &err), STOW_CORRUPT);
    CHECK_MSG(strcmp(err.text, "block 0: 9000 bytes from offset 16, the chunk has 16") == 0, "%s",
              err.text);
    CHECK_INT(bslz4_index(blocks, 1, &n_blocks, bytes, 16, &shape, &err), STOW_CORRUPT);
    put_number(bytes, 65, 8);
    CHECK_INT(bslz4_index(blocks, 2, &n_blocks, bytes, 16, &shape, &err), STOW_CORRUPT);
    CHECK_MSG(strcmp(err.text, "the chunk says 65 decoded bytes, the frame has 64") == 0, "%s",
              err.text);
    CHECK_INT(n_blocks, 99);
}

int main(void)
{
    struct host host = {.src = fence(8u << 20), .dst = fence(4u << 20)};
    struct case_decoder decoder = {"host", decode_host, &host, 2u << 20, 60, 600};
    test_untranspose();
    test_plain_forms();
    test_fill_of_eight();
    test_index_errors();
    run_bslz4_cases(&decoder);
    munmap(host.src.map, host.src.map_bytes);
    munmap(host.dst.map, host.dst.map_bytes);
    return test_end();
}
