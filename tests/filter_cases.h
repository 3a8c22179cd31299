/* SPDX-License-Identifier: Apache-2.0
 *
 * filter_cases: the writing side of HDF5's filters, plain and apart from the code under test: what compresses is the
 * libraries' own, bits are moved one by one. */
#ifndef STOW_FILTER_CASES_H
#define STOW_FILTER_CASES_H

#include "filters.h"
#include "test.h"

#include <libdeflate.h>
#include <lz4.h>
#include <zstd.h>

static uint64_t case_state = 88172645463325252u;

static inline uint64_t case_random(void)
{
    case_state ^= case_state << 13;
    case_state ^= case_state >> 7;
    case_state ^= case_state << 17;
    return case_state;
}

/* Heap bytes of their exact size, so that a sanitizer sees one byte too far. */
struct case_bytes {
    uint8_t *at;
    size_t n;
};

static inline struct case_bytes case_new(size_t n)
{
    struct case_bytes bytes = {malloc(n ? n : 1), n};
    if (!bytes.at)
        exit(EXIT_FAILURE);
    return bytes;
}

static inline struct case_bytes case_copy(const void *from, size_t n)
{
    struct case_bytes bytes = case_new(n);
    if (n)
        memcpy(bytes.at, from, n);
    return bytes;
}

/* Small counts with a large one here and there. */
static inline struct case_bytes case_pixels(size_t n_elems, uint32_t elem_bytes)
{
    struct case_bytes pixels = case_new(n_elems * elem_bytes);
    memset(pixels.at, 0, pixels.n);
    for (size_t i = 0; i < n_elems; i++) {
        pixels.at[i * elem_bytes] = (uint8_t)(case_random() % 4);
        if (case_random() % 31 == 0)
            pixels.at[i * elem_bytes + case_random() % elem_bytes] = (uint8_t)case_random();
    }
    return pixels;
}

static inline void case_be(uint8_t *to, uint64_t value, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        to[i] = (uint8_t)(value >> 8 * (n - 1 - i));
}

/* ---- each filter ---------------------------------------------------------------------------------- */

static inline struct case_bytes case_gzip(struct case_bytes in)
{
    struct libdeflate_compressor *c = libdeflate_alloc_compressor(4);
    struct case_bytes out = case_new(libdeflate_zlib_compress_bound(c, in.n));
    out.n = libdeflate_zlib_compress(c, in.at, in.n, out.at, out.n);
    libdeflate_free_compressor(c);
    return out;
}

static inline struct case_bytes case_shuffle(struct case_bytes in, uint32_t elem_bytes)
{
    struct case_bytes out = case_copy(in.at, in.n);
    size_t n = in.n / elem_bytes;
    for (size_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < elem_bytes; k++)
            out.at[k * n + i] = in.at[i * elem_bytes + k];
    return out;
}

static inline struct case_bytes case_fletcher32(struct case_bytes in)
{
    struct case_bytes out = case_new(in.n + 4);
    memcpy(out.at, in.at, in.n);
    uint32_t sum = filters_fletcher32(in.at, in.n);
    for (unsigned i = 0; i < 4; i++)
        out.at[in.n + i] = (uint8_t)(sum >> 8 * i);
    return out;
}

static inline size_t case_lz4_block(uint8_t *to, size_t room, const uint8_t *from, size_t n)
{
    return (size_t)LZ4_compress_default((const char *)from, (char *)to, (int)n, (int)room);
}

static inline struct case_bytes case_lz4(struct case_bytes in, uint32_t block)
{
    if (!block)
        block = 1u << 30;
    if (block > in.n)
        block = (uint32_t)in.n;
    struct case_bytes out = case_new(12 + 6 * in.n + 64);
    size_t at = 12;
    case_be(out.at, in.n, 8);
    case_be(out.at + 8, block, 4);
    for (size_t done = 0; done < in.n; done += block) {
        size_t n = in.n - done < block ? in.n - done : block;
        size_t packed = case_lz4_block(out.at + at + 4, n - 1, in.at + done, n);
        if (!packed) {
            memcpy(out.at + at + 4, in.at + done, n);
            packed = n;
        }
        case_be(out.at + at, packed, 4);
        at += 4 + packed;
    }
    out.n = at;
    return out;
}

static inline struct case_bytes case_zstd(struct case_bytes in)
{
    struct case_bytes out = case_new(ZSTD_compressBound(in.n));
    out.n = ZSTD_compress(out.at, out.n, in.at, in.n, 1);
    return out;
}

/* n elements, a multiple of 8, bit by bit. */
static inline void case_transpose(uint8_t *to, const uint8_t *from, size_t n, uint32_t elem_bytes)
{
    memset(to, 0, n * elem_bytes);
    for (size_t i = 0; i < n; i++)
        for (uint32_t bit = 0; bit < 8 * elem_bytes; bit++)
            if (from[i * elem_bytes + bit / 8] >> bit % 8 & 1)
                to[bit * (n / 8) + i / 8] |= (uint8_t)(1u << i % 8);
}

static inline struct case_bytes case_bitshuffle(struct case_bytes in,
                                                const struct assembly_filter *filter)
{
    const uint32_t elem_bytes = filter->values[2], mode = filter->values[4];
    size_t n_elems = in.n / elem_bytes, at = mode ? 12 : 0;
    size_t block = filter->values[3] ? filter->values[3] : 8192 / elem_bytes / 8 * 8;
    if (block < 128 && !filter->values[3])
        block = 128;
    struct case_bytes out = case_new(64 + 2 * in.n + 64 * (n_elems / block + 2));
    struct case_bytes rows = case_new(block * elem_bytes);
    if (mode) {
        case_be(out.at, in.n, 8);
        case_be(out.at + 8, block * elem_bytes, 4);
    }
    size_t done = 0;
    while (n_elems - done >= 8) {
        size_t n = n_elems - done < block ? (n_elems - done) / 8 * 8 : block;
        size_t bytes = n * elem_bytes, packed = bytes;
        uint8_t *to = out.at + at + (mode ? 4 : 0);
        case_transpose(rows.at, in.at + done * elem_bytes, n, elem_bytes);
        if (mode == 2)
            packed = case_lz4_block(to, bytes + bytes / 255 + 16, rows.at, bytes);
        else if (mode == 3)
            packed = ZSTD_compress(to, ZSTD_compressBound(bytes), rows.at, bytes, 1);
        else
            memcpy(to, rows.at, bytes);
        if (mode)
            case_be(out.at + at, packed, 4);
        at += packed + (mode ? 4 : 0);
        done += n;
    }
    memcpy(out.at + at, in.at + done * elem_bytes, in.n - done * elem_bytes);
    out.n = at + in.n - done * elem_bytes;
    free(rows.at);
    return out;
}

static inline struct case_bytes case_filter(struct case_bytes in,
                                            const struct assembly_filter *filter)
{
    switch (filter->id) {
    case FILTER_GZIP: return case_gzip(in);
    case FILTER_SHUFFLE: return case_shuffle(in, filter->values[0]);
    case FILTER_FLETCHER32: return case_fletcher32(in);
    case FILTER_LZ4: return case_lz4(in, filter->n_values ? filter->values[0] : 0);
    case FILTER_BITSHUFFLE: return case_bitshuffle(in, filter);
    case FILTER_ZSTD: return case_zstd(in);
    default: exit(EXIT_FAILURE);
    }
}

/* The chunk that HDF5 would have written. */
static inline struct case_bytes case_write(struct case_bytes pixels,
                                           const struct filter_pipeline *pipeline)
{
    struct case_bytes chunk = case_copy(pixels.at, pixels.n);
    for (uint32_t i = 0; i < pipeline->n_filters; i++) {
        if (pipeline->mask >> i & 1)
            continue;
        struct case_bytes next = case_filter(chunk, &pipeline->filters[i]);
        free(chunk.at);
        chunk = case_copy(next.at, next.n);
        free(next.at);
    }
    return chunk;
}

/* ---- filters with their parameters ---------------------------------------------------------------- */

static inline struct assembly_filter filter_of(uint32_t id)
{
    return (struct assembly_filter){.id = id};
}

static inline struct assembly_filter filter_with(uint32_t id, uint32_t value)
{
    return (struct assembly_filter){.id = id, .n_values = 1, .values = {value}};
}

static inline struct assembly_filter filter_bits(uint32_t elem_bytes, uint32_t block, uint32_t mode)
{
    return (struct assembly_filter){.id = FILTER_BITSHUFFLE,
                                    .n_values = 5,
                                    .values = {0, 4, elem_bytes, block, mode}};
}

#endif
