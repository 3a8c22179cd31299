/* SPDX-License-Identifier: Apache-2.0
 *
 * bslz4 on the CPU: the walk over a chunk's lengths, and the decoder of one frame.
 *
 * A block is decoded from LZ4 into a scratch window, then bit-untransposed to its place in the frame. The
 * window is as long as the block and WINDOW_SLACK more, so that short copies may be of a fixed 16 or 32
 * bytes: what they write too much is overwritten by the next sequence, or never read. Reading too much is
 * allowed only inside the chunk.
 *
 * A chunk that is not well-formed gives STOW_CORRUPT with a sentence; pixels already written then mean
 * nothing. Every function here may be called from any thread. */
#include "bslz4.h"

#include "counts.h"
#include "error.h"
#include "wide.h"

#include <stdlib.h>
#include <string.h>

#define WINDOW_SLACK 64
#define WINDOW_BYTES 32768 /* on the stack; larger blocks are decoded in heap memory */

/* ---- the chunk's lengths ------------------------------------------------------------------------- */

size_t bslz4_max_blocks(size_t src_bytes)
{
    /* A length word and at least one byte each. */
    return src_bytes < BSLZ4_HEADER_BYTES ? 0 : (src_bytes - BSLZ4_HEADER_BYTES) / 5;
}

static int say_fault(enum bslz4_fault fault, const uint8_t *src, size_t src_bytes,
                     const struct frame_shape *shape, struct stow_error *err)
{
    switch (fault) {
    case BSLZ4_GOOD: return 0;
    case BSLZ4_SHORT:
        return error_set(err, STOW_CORRUPT, "the chunk has %zu bytes, less than its header of %d",
                         src_bytes, BSLZ4_HEADER_BYTES);
    case BSLZ4_TOTAL:
        return error_set(err, STOW_CORRUPT, "the chunk says %llu decoded bytes, the frame has %llu",
                         (unsigned long long)bslz4_be32(src) << 32 | bslz4_be32(src + 4),
                         (unsigned long long)frame_bytes(shape));
    case BSLZ4_BLOCK_SIZE: break;
    }
    return error_set(err, STOW_CORRUPT, "the chunk says blocks of %lu bytes, for elements of %lu",
                     (unsigned long)bslz4_be32(src + 8), (unsigned long)shape->elem_bytes);
}

static int read_layout(struct bslz4_layout *layout, const uint8_t *src, size_t src_bytes,
                       const struct frame_shape *shape, struct stow_error *err)
{
    enum bslz4_fault fault = bslz4_read_layout(layout, src, src_bytes, shape);
    return say_fault(fault, src, src_bytes, shape, err);
}

/* The length of the LZ4 bytes of a block whose length word is at offset `at`. */
static int read_length(uint32_t *bytes, const uint8_t *src, size_t src_bytes, size_t at,
                       size_t block, uint32_t block_bytes, struct stow_error *err)
{
    if (at > src_bytes || src_bytes - at < 4)
        return error_set(err, STOW_CORRUPT,
                         "block %zu: starts at offset %zu, the chunk has %zu bytes", block, at,
                         src_bytes);
    uint32_t n = bslz4_be32(src + at);
    if (n > src_bytes - at - 4)
        return error_set(err, STOW_CORRUPT,
                         "block %zu: %lu bytes from offset %zu, the chunk has %zu", block,
                         (unsigned long)n, at + 4, src_bytes);
    if (n == 0 || n > bslz4_max_lz4_bytes(block_bytes))
        return error_set(err, STOW_CORRUPT,
                         "block %zu: %lu compressed bytes cannot be a block of %lu", block,
                         (unsigned long)n, (unsigned long)block_bytes);
    *bytes = n;
    return 0;
}

int bslz4_index(uint32_t *blocks, size_t room, size_t *n_blocks, const uint8_t *src,
                size_t src_bytes, const struct frame_shape *shape, struct stow_error *err)
{
    struct bslz4_layout layout = {0};
    int status = read_layout(&layout, src, src_bytes, shape, err);
    if (status)
        return status;
    if (src_bytes > UINT32_MAX)
        return error_set(err, STOW_CORRUPT, "the chunk has %zu bytes, over 4 GiB", src_bytes);
    if (layout.n_blocks >= room)
        return error_set(err, STOW_CORRUPT, "the chunk has %zu bytes, too few for %llu blocks",
                         src_bytes, (unsigned long long)layout.n_blocks);

    size_t at = BSLZ4_HEADER_BYTES;
    for (size_t b = 0; b < layout.n_blocks; b++) {
        uint32_t bytes = 0;
        status = read_length(&bytes, src, src_bytes, at, b, bslz4_block_bytes(&layout, b), err);
        if (status)
            return status;
        at += 4 + (size_t)bytes;
        blocks[b + 1] = (uint32_t)at;
    }
    blocks[0] = (uint32_t)layout.n_blocks;
    if (src_bytes - at != layout.tail_bytes)
        return error_set(err, STOW_CORRUPT, "%zu bytes after the last block at offset %zu, not %lu",
                         src_bytes - at, at, (unsigned long)layout.tail_bytes);
    *n_blocks = layout.n_blocks;
    return 0;
}

/* ---- LZ4 ----------------------------------------------------------------------------------------- */

/* One block's LZ4 bytes. */
struct lz4_input {
    const uint8_t *in;
    uint32_t bytes;
};

static bool check_block(const struct lz4_input *input, uint32_t block_bytes)
{
    struct lz4_sequence sequence = {.n_match = 1};
    uint32_t at = 0, done = 0;
    while (sequence.n_match) {
        if (!lz4_read_sequence(&sequence, input->in, at, input->bytes, done, block_bytes))
            return false;
        done += sequence.n_literals + sequence.n_match;
        at = sequence.next;
    }
    return true;
}

/* n bytes to `to` from offset bytes before it, where they may overlap. What is there repeats every offset
 * bytes, so each round has twice as much to copy from. */
static void copy_match(uint8_t *to, size_t offset, size_t n)
{
    while (n > offset) {
        memcpy(to, to - offset, offset);
        to += offset;
        n -= offset;
        offset *= 2;
    }
    memcpy(to, to - offset, n);
}

/* The usual sequence, few literals and a short match, by copies of a fixed size. False if it is another
 * kind, or nothing is sure: then nothing has happened. */
static inline bool short_sequence(uint8_t *window, uint32_t *done, uint32_t block_bytes,
                                  const struct lz4_input *input, uint32_t *at)
{
    const uint8_t *in = input->in + *at;
    if (input->bytes - *at < 20 || block_bytes - *done < 32)
        return false;
    uint32_t token = in[0], n_literals = token >> 4, n_match = (token & 15) + 4;
    uint32_t offset;
    uint8_t *to = window + *done;
    if (n_literals == 15 || n_match == 19)
        return false;
    offset = (uint32_t)in[n_literals + 1] | (uint32_t)in[n_literals + 2] << 8;
    if (offset < 8 || offset > *done + n_literals)
        return false;
    memcpy(to, in + 1, 16);
    to += n_literals;
    memcpy(to, to - offset, 8);
    memcpy(to + 8, to + 8 - offset, 8);
    memcpy(to + 16, to + 16 - offset, 2);
    *done += n_literals + n_match;
    *at += n_literals + 3;
    return true;
}

static bool decode_block(uint8_t *window, uint32_t block_bytes, const struct lz4_input *input)
{
    uint32_t at = 0, done = 0;
    for (;;) {
        while (short_sequence(window, &done, block_bytes, input, &at))
            ;
        struct lz4_sequence sequence;
        if (!lz4_read_sequence(&sequence, input->in, at, input->bytes, done, block_bytes))
            return false;
        memcpy(window + done, input->in + sequence.literals, sequence.n_literals);
        done += sequence.n_literals;
        if (sequence.n_match == 0)
            return true;
        copy_match(window + done, sequence.offset, sequence.n_match);
        done += sequence.n_match;
        at = sequence.next;
    }
}

bool lz4_decode(uint8_t *dst, uint32_t dst_bytes, const uint8_t *src, uint32_t src_bytes)
{
    struct lz4_input input = {src, src_bytes};
    return src_bytes <= bslz4_max_lz4_bytes(dst_bytes) && decode_block(dst, dst_bytes, &input);
}

/* ---- bit transposition --------------------------------------------------------------------------- */

#define LANES 16 /* columns at a time */
typedef uint8_t vbytes __attribute__((vector_size(LANES)));
typedef uint64_t vwords __attribute__((vector_size(LANES)));

static inline void swap_bits(vwords *a, vwords *b, int shift, uint64_t mask)
{
    vwords t = (*a >> shift ^ *b) & mask;
    *b ^= t;
    *a ^= t << shift;
}

/* Bit i of byte m of v[j] becomes bit j of byte m of v[i]. */
static inline void transpose_bits(vwords v[8])
{
    for (int j = 0; j < 4; j++)
        swap_bits(&v[j], &v[j + 4], 4, 0x0f0f0f0f0f0f0f0full);
    for (int j = 0; j < 8; j += 4) {
        swap_bits(&v[j], &v[j + 2], 2, 0x3333333333333333ull);
        swap_bits(&v[j + 1], &v[j + 3], 2, 0x3333333333333333ull);
    }
    for (int j = 0; j < 8; j += 2)
        swap_bits(&v[j], &v[j + 1], 1, 0x5555555555555555ull);
}

/* The n vectors as one array: interleave its halves. The index bits rotate by one, so that after log2(n)
 * rounds byte m of vector r is byte m * n + r of the array. */
static inline void interleave_halves(vbytes *out, const vbytes *in, uint32_t n)
{
    for (uint32_t r = 0; r < n / 2; r++) {
        vbytes a = in[r], b = in[r + n / 2];
        out[2 * r] =
            __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        out[2 * r + 1] = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29,
                                                 14, 30, 15, 31);
    }
}

/* LANES columns; inlined with a constant elem_bytes, so that loops unroll and vectors stay in registers. */
static inline __attribute__((always_inline)) void untranspose_lanes(uint8_t *dst,
                                                                    const uint8_t *rows,
                                                                    size_t n_columns,
                                                                    uint32_t elem_bytes)
{
    uint32_t n = 8 * elem_bytes;
    vbytes a[64], b[64];
    for (uint32_t k = 0; k < elem_bytes; k++) {
        vwords v[8];
        for (uint32_t j = 0; j < 8; j++)
            memcpy(&v[j], rows + (8 * k + j) * n_columns, LANES);
        transpose_bits(v);
        for (uint32_t i = 0; i < 8; i++)
            a[i * elem_bytes + k] = (vbytes)v[i];
    }
    interleave_halves(b, a, n);
    interleave_halves(a, b, n);
    interleave_halves(b, a, n);
    if (elem_bytes >= 2)
        interleave_halves(a, b, n);
    if (elem_bytes >= 4)
        interleave_halves(b, a, n);
    if (elem_bytes == 8)
        interleave_halves(a, b, n);
    memcpy(dst, elem_bytes == 2 || elem_bytes == 8 ? a : b, (size_t)n * LANES);
}

WIDE_LOOPS static void untranspose(uint8_t *dst, const uint8_t *rows, size_t n_elems,
                                   uint32_t elem_bytes, bool wide)
{
    size_t n_columns = n_elems / 8, column_bytes = 8 * (size_t)elem_bytes;
    size_t m = 0;
    if (wide && elem_bytes == 1)
        for (; m + LANES <= n_columns; m += LANES)
            untranspose_lanes(dst + m * column_bytes, rows + m, n_columns, 1);
    if (wide && elem_bytes == 2)
        for (; m + LANES <= n_columns; m += LANES)
            untranspose_lanes(dst + m * column_bytes, rows + m, n_columns, 2);
    if (wide && elem_bytes == 4)
        for (; m + LANES <= n_columns; m += LANES)
            untranspose_lanes(dst + m * column_bytes, rows + m, n_columns, 4);
    if (wide && elem_bytes == 8)
        for (; m + LANES <= n_columns; m += LANES)
            untranspose_lanes(dst + m * column_bytes, rows + m, n_columns, 8);
    for (; m < n_columns; m++)
        bslz4_untranspose_column(dst + m * column_bytes, rows, m, n_columns, elem_bytes);
}

void bslz4_untranspose(uint8_t *dst, const uint8_t *rows, size_t n_elems, uint32_t elem_bytes,
                       bool wide)
{
    untranspose(dst, rows, n_elems, elem_bytes, wide);
}

/* ---- frames -------------------------------------------------------------------------------------- */

static int decode_blocks(uint8_t *dst, uint8_t *window, const struct bslz4_layout *layout,
                         const struct decode_job *job, const struct frame_shape *shape,
                         struct stow_error *err)
{
    const uint8_t *src = (const uint8_t *)(uintptr_t)job->src;
    const uint32_t *blocks = (const uint32_t *)(uintptr_t)job->blocks;
    size_t at = BSLZ4_HEADER_BYTES;
    if (blocks[0] != layout->n_blocks)
        return error_set(err, STOW_CORRUPT, "the chunk has %llu blocks, its table %lu",
                         (unsigned long long)layout->n_blocks, (unsigned long)blocks[0]);
    for (size_t b = 0; b < layout->n_blocks; b++) {
        uint32_t block_bytes = bslz4_block_bytes(layout, b), bytes = 0;
        int status = read_length(&bytes, src, job->src_bytes, at, b, block_bytes, err);
        if (status)
            return status;
        at += 4;
        struct lz4_input input = {src + at, bytes};
        bool good =
            dst ? decode_block(window, block_bytes, &input) : check_block(&input, block_bytes);
        if (!good)
            return error_set(err, STOW_CORRUPT, "block %zu: bad LZ4 in %lu bytes at offset %zu", b,
                             (unsigned long)bytes, at);
        if (dst)
            bslz4_untranspose(dst + b * layout->block_bytes, window,
                              block_bytes / shape->elem_bytes, shape->elem_bytes, true);
        at += bytes;
        if (bslz4_block_at(blocks, b + 1) != at)
            return error_set(err, STOW_CORRUPT, "block %zu: ends at offset %zu, its table says %lu",
                             b, at, (unsigned long)blocks[b + 1]);
    }
    if (job->src_bytes - at != layout->tail_bytes)
        return error_set(err, STOW_CORRUPT, "%zu bytes after the last block at offset %zu, not %lu",
                         (size_t)job->src_bytes - at, at, (unsigned long)layout->tail_bytes);
    if (dst && layout->tail_bytes)
        memcpy(dst + frame_bytes(shape) - layout->tail_bytes, src + at, layout->tail_bytes);
    return 0;
}

static int decode_bslz4(const struct decode_job *job, const struct frame_shape *shape,
                        struct stow_error *err)
{
    struct bslz4_layout layout = {0};
    uint8_t *dst = (uint8_t *)(uintptr_t)job->dst;
    int status =
        read_layout(&layout, (const uint8_t *)(uintptr_t)job->src, job->src_bytes, shape, err);
    if (status)
        return status;

    uint32_t largest = layout.n_blocks == 1 ? layout.last_bytes : layout.block_bytes;
    if (!dst || layout.n_blocks == 0 || largest <= WINDOW_BYTES) {
        uint8_t window[WINDOW_BYTES + WINDOW_SLACK] __attribute__((aligned(64)));
        return decode_blocks(dst, window, &layout, job, shape, err);
    }
    uint8_t *window = malloc((size_t)largest + WINDOW_SLACK);
    if (!window)
        return error_set(err, STOW_NOMEM, "no memory for a block of %lu bytes",
                         (unsigned long)largest);
    status = decode_blocks(dst, window, &layout, job, shape, err);
    free(window);
    return status;
}

static int copy_raw(const struct decode_job *job, const struct frame_shape *shape,
                    struct stow_error *err)
{
    if (job->src_bytes != frame_bytes(shape))
        return error_set(err, STOW_CORRUPT, "%lu bytes of pixels, the frame has %llu",
                         (unsigned long)job->src_bytes, (unsigned long long)frame_bytes(shape));
    if (job->dst)
        memcpy((void *)(uintptr_t)job->dst, (const void *)(uintptr_t)job->src, job->src_bytes);
    return 0;
}

static void fill_frame(uint8_t *dst, const struct frame_shape *shape)
{
    uint32_t elem_bytes = shape->elem_bytes;
    for (uint64_t i = 0; i < shape->n_elems; i++)
        for (uint32_t k = 0; k < elem_bytes; k++)
            dst[i * elem_bytes + k] = (uint8_t)(shape->fill >> (8 * k));
}

int decode_frame(const struct decode_job *job, const struct frame_shape *shape,
                 struct stow_error *err)
{
    switch (job->form) {
    case STOW_FORM_BSLZ4: return decode_bslz4(job, shape, err);
    case STOW_FORM_COUNTS: return counts_decode(job, shape, err);
    case STOW_FORM_RAW: return copy_raw(job, shape, err);
    case STOW_FORM_FILL:
        if (job->dst)
            fill_frame((uint8_t *)(uintptr_t)job->dst, shape);
        return 0;
    default:
        return error_set(err, STOW_CORRUPT, "frames of form %lu are not decoded here",
                         (unsigned long)job->form);
    }
}
