/* SPDX-License-Identifier: Apache-2.0 */
#include "simulate_bslz4.h"

#include <lz4.h>
#include <string.h>

#define HEADER_BYTES 12
#define MAX_BLOCK_BYTES 65536

size_t chunk_default_block(size_t elem_bytes)
{
    return 8192 / elem_bytes;
}

size_t chunk_bound(size_t n_elems, size_t elem_bytes, size_t block_elems)
{
    size_t n_blocks = n_elems / block_elems + 1;
    return HEADER_BYTES +
           n_blocks * (4 + (size_t)LZ4_compressBound((int)(block_elems * elem_bytes)));
}

static void put_big_endian(uint8_t *dst, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        dst[i] = (uint8_t)(value >> (8 * (bytes - 1 - i)));
}

/* Bytes of the word are rows of a matrix of 8 x 8 bits; swap rows and columns. */
static uint64_t transpose_8x8(uint64_t x)
{
    uint64_t t = (x ^ (x >> 7)) & 0x00aa00aa00aa00aaull;
    x ^= t ^ (t << 7);
    t = (x ^ (x >> 14)) & 0x0000cccc0000ccccull;
    x ^= t ^ (t << 14);
    t = (x ^ (x >> 28)) & 0x00000000f0f0f0f0ull;
    return x ^ t ^ (t << 28);
}

/* Row b of dst has bit b of every element; n_elems is a multiple of 8. */
static void bit_transpose(uint8_t *dst, const uint8_t *src, size_t n_elems, size_t elem_bytes)
{
    size_t row_bytes = n_elems / 8;
    for (size_t byte = 0; byte < elem_bytes; byte++) {
        for (size_t group = 0; group < row_bytes; group++) {
            const uint8_t *at = src + group * 8 * elem_bytes + byte;
            uint64_t word = 0;
            for (size_t i = 0; i < 8; i++)
                word |= (uint64_t)at[i * elem_bytes] << (8 * i);
            word = transpose_8x8(word);
            for (size_t bit = 0; bit < 8; bit++)
                dst[(byte * 8 + bit) * row_bytes + group] = (uint8_t)(word >> (8 * bit));
        }
    }
}

size_t chunk_encode(uint8_t *dst, const void *src, size_t n_elems, size_t elem_bytes,
                    size_t block_elems)
{
    uint8_t rows[MAX_BLOCK_BYTES];
    const uint8_t *from = src;
    uint8_t *to = dst + HEADER_BYTES;
    if (!block_elems || block_elems % 8 || block_elems * elem_bytes > sizeof(rows))
        return 0;
    put_big_endian(dst, n_elems * elem_bytes, 8);
    put_big_endian(dst + 8, block_elems * elem_bytes, 4);

    size_t left = n_elems;
    while (left >= 8) {
        size_t n = left < block_elems ? left / 8 * 8 : block_elems;
        int bytes = (int)(n * elem_bytes);
        bit_transpose(rows, from, n, elem_bytes);
        int packed = LZ4_compress_default((const char *)rows, (char *)to + 4, bytes,
                                          LZ4_compressBound(bytes));
        if (packed <= 0)
            return 0;
        put_big_endian(to, (uint64_t)packed, 4);
        to += 4 + packed;
        from += bytes;
        left -= n;
    }
    memcpy(to, from, left * elem_bytes);
    return (size_t)(to - dst) + left * elem_bytes;
}
