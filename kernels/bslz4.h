/* SPDX-License-Identifier: Apache-2.0
 *
 * bslz4: bitshuffle + LZ4 chunks as HDF5 filter 32008 writes them, decoded with every read and write
 * bounded, whatever the bytes say.
 *
 * A chunk: u64 big-endian, decoded bytes; u32 big-endian, bytes of a block of decoded pixels; then for
 * each block a u32 big-endian length and that many bytes of LZ4. A block holds a multiple of 8 elements,
 * bit-transposed within the block. The last block rounds the rest down to a multiple of 8 elements; the
 * up to 7 elements after it follow raw, without a length. Format: bitshuffle's bshuf_h5filter.c, and
 * docs/formats.md in our words. There is no checksum: a flipped literal decodes to other counts.
 *
 * A block of n elements, n a multiple of 8, is stored as 8 * elem_bytes rows of n / 8 bytes: bit i of byte
 * m of row 8 * k + j is bit j of byte k of element 8 * m + i. A "column" below is one m: 8 elements.
 *
 * What is an LZ4 block here: sequences of a token, literals, and a match; the last has literals only and
 * ends both the compressed bytes and the block. Literals lie inside the compressed bytes, offsets inside
 * what is decoded, and are not 0. (liblz4 refuses a few more, by where the last match may end; no
 * compressor writes those, and they decode in one way only.)
 *
 * The functions marked HD are the format itself, one text for the CPU and the GPU. */
#ifndef STOW_BSLZ4_H
#define STOW_BSLZ4_H

#include "frame.h"
#include "hd.h"

#include <stdbool.h>

#define BSLZ4_HEADER_BYTES 12

/* More than this no LZ4 block can hold, so that 32-bit sums of lengths below do not wrap. */
#define BSLZ4_MAX_BLOCK_BYTES 0x7e000000u

/* The block table of a chunk.
 *   blocks      uint32 [room] entry 0: the number of blocks; then the offset from src of the length word of
 *               blocks 1 and on, then of the raw tail. Block 0 always lies after the header. The count is
 *               there so that a decoder can tell a table from another chunk's before it reads on
 *   n_blocks    blocks found; the table has one entry more. Set when the return is 0
 *   room        entries that blocks has; bslz4_max_blocks(src_bytes) + 1 always do
 * 0; STOW_CORRUPT when the header does not fit the shape, or a length leaves the chunk, or bytes are
 * left over: err says which ("block 7: 9000 bytes from offset 120, the chunk has 8000"). */
int bslz4_index(uint32_t *blocks, size_t room, size_t *n_blocks, const uint8_t *src,
                size_t src_bytes, const struct frame_shape *shape, struct stow_error *err);

/* More blocks than this a chunk of src_bytes cannot have. */
size_t bslz4_max_blocks(size_t src_bytes);

/* Decode one frame on the CPU: any form of struct decode_job. 0 or STOW_CORRUPT, err (may be NULL) names
 * the block; STOW_NOMEM where a block over 32 KiB finds no scratch. dst 0 checks every LZ4 sequence and
 * writes nothing. Any thread. */
int decode_frame(const struct decode_job *job, const struct frame_shape *shape,
                 struct stow_error *err);

/* Decode one LZ4 block of exactly dst_bytes (at most BSLZ4_MAX_BLOCK_BYTES) on the CPU. False when it is not well-formed:
 * dst then means nothing, but nothing beyond it was written. Any thread. */
bool lz4_decode(uint8_t *dst, uint32_t dst_bytes, const uint8_t *src, uint32_t src_bytes);

/* Undo the bit transposition of one block: n_elems (a multiple of 8) elements from rows to dst, which do
 * not overlap. wide false takes the plain path, which is else left to the last columns (for tests). */
void bslz4_untranspose(uint8_t *dst, const uint8_t *rows, size_t n_elems, uint32_t elem_bytes,
                       bool wide);

/* ---- the format ---------------------------------------------------------------------------------- */

HD uint32_t bslz4_be32(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* Bytes of a block where the header says 0: bitshuffle's own choice. */
HD uint32_t bslz4_default_block_bytes(uint32_t elem_bytes)
{
    uint32_t n_elems = 8192 / elem_bytes / 8 * 8;
    return (n_elems < 128 ? 128 : n_elems) * elem_bytes;
}

/* How a header cuts the frame: n_blocks of block_bytes, of which the last may be shorter, and a raw tail. */
struct bslz4_layout {
    uint64_t n_blocks;
    uint32_t block_bytes;
    uint32_t last_bytes; /* of the last block; block_bytes if all are whole */
    uint32_t tail_bytes;
};

enum bslz4_fault { BSLZ4_GOOD, BSLZ4_SHORT, BSLZ4_TOTAL, BSLZ4_BLOCK_SIZE };

/* Read the header of src_bytes at src. Nothing is believed but that shape is what it should be. */
HD enum bslz4_fault bslz4_read_layout(struct bslz4_layout *layout, const uint8_t *src,
                                      uint64_t src_bytes, const struct frame_shape *shape)
{
    if (src_bytes < BSLZ4_HEADER_BYTES)
        return BSLZ4_SHORT;
    uint64_t total = (uint64_t)bslz4_be32(src) << 32 | bslz4_be32(src + 4);
    if (total != frame_bytes(shape))
        return BSLZ4_TOTAL;

    uint32_t stride = 8 * shape->elem_bytes;
    uint32_t block_bytes = bslz4_be32(src + 8);
    if (block_bytes == 0)
        block_bytes = bslz4_default_block_bytes(shape->elem_bytes);
    if (block_bytes % stride != 0)
        return BSLZ4_BLOCK_SIZE;

    uint64_t n_whole = total / block_bytes;
    uint32_t rest = (uint32_t)(total % block_bytes);
    uint32_t partial = rest / stride * stride;
    uint32_t largest = n_whole > 0 ? block_bytes : partial;
    if (largest > BSLZ4_MAX_BLOCK_BYTES)
        return BSLZ4_BLOCK_SIZE;
    layout->n_blocks = n_whole + (partial > 0);
    layout->block_bytes = block_bytes;
    layout->last_bytes = partial > 0 ? partial : block_bytes;
    layout->tail_bytes = rest - partial;
    return BSLZ4_GOOD;
}

HD uint32_t bslz4_block_bytes(const struct bslz4_layout *layout, uint64_t block)
{
    return block + 1 == layout->n_blocks ? layout->last_bytes : layout->block_bytes;
}

/* The offset of block b's length word; of the raw tail for b the number of blocks. */
HD uint32_t bslz4_block_at(const uint32_t *blocks, uint64_t b)
{
    return b == 0 ? BSLZ4_HEADER_BYTES : blocks[b];
}

/* More compressed bytes than this do not decode to block_bytes: a sequence puts out at least what it takes
 * in, but for the length bytes of long literals and the last token. */
HD uint32_t bslz4_max_lz4_bytes(uint32_t block_bytes)
{
    return block_bytes + block_bytes / 255 + 16;
}

/* One LZ4 sequence: copy n_literals from position literals of the input, then n_match bytes from offset
 * bytes back in the output. n_match 0: the last sequence. next is where the following one begins. */
struct lz4_sequence {
    uint32_t literals, n_literals;
    uint32_t offset, n_match;
    uint32_t next;
};

/* The rest of a length whose nibble was 15: bytes are added while they are 255. At the end of the input,
 * or once over limit, false. */
HD bool lz4_read_length(uint32_t *length, const uint8_t *in, uint32_t *at, uint32_t in_bytes,
                        uint32_t limit)
{
    uint8_t byte;
    do {
        if (*at == in_bytes || *length > limit)
            return false;
        byte = in[(*at)++];
        *length += byte;
    } while (byte == 255);
    return true;
}

/* Read the sequence at position `at` of in_bytes at in, with `done` bytes of a block of block_bytes decoded.
 * False if it reads past the input, goes back further than done, fills more than the block, or is the last
 * without filling it. in_bytes and block_bytes are at most bslz4_max_lz4_bytes(BSLZ4_MAX_BLOCK_BYTES). */
HD bool lz4_read_sequence(struct lz4_sequence *sequence, const uint8_t *in, uint32_t at,
                          uint32_t in_bytes, uint32_t done, uint32_t block_bytes)
{
    if (at >= in_bytes)
        return false;
    uint32_t token = in[at++];
    uint32_t room = block_bytes - done;

    uint32_t n_literals = token >> 4;
    if (n_literals == 15 && !lz4_read_length(&n_literals, in, &at, in_bytes, room))
        return false;
    if (n_literals > room || n_literals > in_bytes - at)
        return false;
    sequence->literals = at;
    sequence->n_literals = n_literals;
    at += n_literals;
    room -= n_literals;
    if (at == in_bytes) {
        sequence->n_match = 0;
        return room == 0;
    }

    if (in_bytes - at < 2)
        return false;
    sequence->offset = (uint32_t)in[at] | (uint32_t)in[at + 1] << 8;
    at += 2;
    uint32_t n_match = (token & 15) + 4;
    if (n_match == 19 && !lz4_read_length(&n_match, in, &at, in_bytes, room))
        return false;
    sequence->n_match = n_match;
    sequence->next = at;
    return n_match <= room && sequence->offset != 0 && sequence->offset <= done + n_literals;
}

/* Transpose 8 x 8 bits: bit i of byte j becomes bit j of byte i. */
HD uint64_t bslz4_transpose8(uint64_t x)
{
    uint64_t t = (x ^ x >> 7) & 0x00aa00aa00aa00aaull;
    x ^= t ^ t << 7;
    t = (x ^ x >> 14) & 0x0000cccc0000ccccull;
    x ^= t ^ t << 14;
    t = (x ^ x >> 28) & 0x00000000f0f0f0f0ull;
    return x ^ t ^ t << 28;
}

/* The 8 elements of column m, of n_columns, from rows to dst. */
HD void bslz4_untranspose_column(uint8_t *dst, const uint8_t *rows, uint64_t m, uint64_t n_columns,
                                 uint32_t elem_bytes)
{
    for (uint32_t k = 0; k < elem_bytes; k++) {
        uint64_t bits = 0;
        for (uint32_t j = 0; j < 8; j++)
            bits |= (uint64_t)rows[(8 * k + j) * n_columns + m] << (8 * j);
        bits = bslz4_transpose8(bits);
        for (uint32_t i = 0; i < 8; i++)
            dst[i * elem_bytes + k] = (uint8_t)(bits >> (8 * i));
    }
}

#endif
