/* SPDX-License-Identifier: Apache-2.0
 *
 * LZ4 as filter 32004 frames it, and bitshuffle (32008) alone, with LZ4 or with Zstandard. All numbers are big-endian.
 *
 * 32004: u64 decoded bytes, u32 block size; for each block a u32 length and so many bytes. A length that is the block's
 * decoded size says that it was stored; else it is LZ4.
 *
 * 32008: its parameters are two version numbers, the bytes of an element, the elements of a block (0: bitshuffle's own
 * choice), and what compresses the blocks (0 nothing, 2 LZ4, 3 Zstandard). With a compressor a chunk is as bslz4.h
 * says; without, there are no header and no lengths. */
#include "bslz4.h"
#include "filter.h"

#include <string.h>

#define HEADER_BYTES BSLZ4_HEADER_BYTES
#define MAX_ELEM_BYTES 65536u

enum { BITSHUFFLE_ALONE = 0, BITSHUFFLE_LZ4 = 2, BITSHUFFLE_ZSTD = 3 };

struct lengths {
    const uint8_t *src;
    size_t bytes, at;
    uint64_t block;
};

/* The next length word, with so many bytes behind it in the chunk. */
static int next_length(struct lengths *lengths, uint32_t *n, struct stow_error *err)
{
    size_t left = lengths->bytes - lengths->at;
    if (left < 4)
        return error_set(err, STOW_CORRUPT, "the chunk of %zu bytes ends before block %llu",
                         lengths->bytes, (unsigned long long)lengths->block);
    *n = bslz4_be32(lengths->src + lengths->at);
    if (*n > left - 4)
        return error_set(err, STOW_CORRUPT,
                         "block %llu: %u bytes from offset %zu, the chunk has %zu",
                         (unsigned long long)lengths->block, *n, lengths->at + 4, lengths->bytes);
    lengths->at += 4;
    lengths->block++;
    return 0;
}

static int bad_block(const struct lengths *lengths, const char *what, struct stow_error *err)
{
    return error_set(err, STOW_CORRUPT, "block %llu: bad %s at offset %zu",
                     (unsigned long long)lengths->block - 1, what, lengths->at);
}

/* The decoded size that the header says, for which there is room from here on. */
static int take_total(struct filter_step *step, struct stow_error *err)
{
    if (step->src_bytes < HEADER_BYTES)
        return error_set(err, STOW_CORRUPT, "the chunk has %zu bytes, less than its header of %d",
                         step->src_bytes, HEADER_BYTES);
    uint64_t total = (uint64_t)bslz4_be32(step->src) << 32 | bslz4_be32(step->src + 4);
    return filter_room(step, (size_t)total, err);
}

/* ---- LZ4 ----------------------------------------------------------------------------------------- */

int filter_undo_lz4(struct filter_step *step, struct stow_error *err)
{
    int rc = take_total(step, err);
    if (rc)
        return rc;
    struct lengths lengths = {.src = step->src, .bytes = step->src_bytes, .at = HEADER_BYTES};
    uint32_t block = bslz4_be32(step->src + 8), n = 0;
    size_t total = step->dst_bytes;
    if (block > total)
        block = (uint32_t)total;
    if (total && (!block || block > BSLZ4_MAX_BLOCK_BYTES))
        return error_set(err, STOW_CORRUPT, "the chunk says blocks of %u bytes", block);
    for (size_t done = 0; done < total; done += block) {
        if (block > total - done)
            block = (uint32_t)(total - done);
        rc = next_length(&lengths, &n, err);
        if (rc)
            return rc;
        const uint8_t *from = step->src + lengths.at;
        if (n == block)
            memcpy(step->dst + done, from, n);
        else if (!lz4_decode(step->dst + done, block, from, n))
            return bad_block(&lengths, "LZ4", err);
        lengths.at += n;
    }
    if (lengths.at != step->src_bytes)
        return error_set(err, STOW_CORRUPT, "%zu bytes follow the last block",
                         step->src_bytes - lengths.at);
    return 0;
}

/* ---- bitshuffle ---------------------------------------------------------------------------------- */

bool filter_bitshuffle_alone(const struct assembly_filter *filter)
{
    return filter_value(filter, 4, BITSHUFFLE_ALONE) == BITSHUFFLE_ALONE;
}

/* Bitshuffle before 0.4 knows no Zstandard: asked for it, it writes blocks that are not compressed, and says nothing. */
static bool is_false_zstd(const struct filter_step *step)
{
    return filter_value(step->filter, 4, 0) == BITSHUFFLE_ZSTD &&
           filter_value(step->filter, 0, 0) == 0 && filter_value(step->filter, 1, 0) < 4 &&
           step->src_bytes == step->want;
}

static int undo_alone(struct filter_step *step, uint32_t elem_bytes, struct stow_error *err)
{
    uint64_t n_elems = filter_value(step->filter, 3, 0);
    size_t block = n_elems ? n_elems * elem_bytes : bslz4_default_block_bytes(elem_bytes);
    const size_t stride = 8 * (size_t)elem_bytes, total = step->src_bytes;
    if (n_elems % 8)
        return error_set(err, STOW_UNSUPPORTED, "blocks of %llu elements",
                         (unsigned long long)n_elems);
    int rc = filter_room(step, total, err);
    if (rc)
        return rc;
    size_t at = 0;
    while (total - at >= stride) {
        size_t bytes = total - at < block ? (total - at) / stride * stride : block;
        bslz4_untranspose(step->dst + at, step->src + at, bytes / elem_bytes, elem_bytes, true);
        at += bytes;
    }
    memcpy(step->dst + at, step->src + at, total - at);
    return 0;
}

static bool decompress(struct filter_step *step, uint8_t *window, uint32_t bytes,
                       const uint8_t *from, uint32_t n)
{
    if (filter_value(step->filter, 4, 0) == BITSHUFFLE_ZSTD)
        return filter_zstd(step->scratch, window, bytes, from, n);
    return lz4_decode(window, bytes, from, n);
}

static int undo_blocks(struct filter_step *step, const struct bslz4_layout *layout,
                       uint32_t elem_bytes, struct stow_error *err)
{
    struct lengths lengths = {.src = step->src, .bytes = step->src_bytes, .at = HEADER_BYTES};
    const uint32_t largest = layout->n_blocks == 1 ? layout->last_bytes : layout->block_bytes;
    uint8_t *window = layout->n_blocks ? filter_window(step->scratch, largest) : NULL;
    uint32_t n = 0;
    if (layout->n_blocks && !window)
        return error_set(err, STOW_NOMEM, "no memory for a block of %u bytes", largest);
    for (uint64_t b = 0; b < layout->n_blocks; b++) {
        uint32_t bytes = bslz4_block_bytes(layout, b);
        int rc = next_length(&lengths, &n, err);
        if (rc)
            return rc;
        if (!decompress(step, window, bytes, step->src + lengths.at, n))
            return bad_block(&lengths, "compressed data", err);
        bslz4_untranspose(step->dst + b * layout->block_bytes, window, bytes / elem_bytes,
                          elem_bytes, true);
        lengths.at += n;
    }
    if (lengths.bytes - lengths.at != layout->tail_bytes)
        return error_set(err, STOW_CORRUPT, "%zu bytes after the last block, not %u",
                         lengths.bytes - lengths.at, layout->tail_bytes);
    if (layout->tail_bytes)
        memcpy(step->dst + step->dst_bytes - layout->tail_bytes, step->src + lengths.at,
               layout->tail_bytes);
    return 0;
}

static int undo_compressed(struct filter_step *step, uint32_t elem_bytes, struct stow_error *err)
{
    struct bslz4_layout layout = {0};
    int rc = take_total(step, err);
    if (rc)
        return rc;
    struct frame_shape shape = {.n_elems = step->dst_bytes / elem_bytes, .elem_bytes = elem_bytes};
    enum bslz4_fault fault = bslz4_read_layout(&layout, step->src, step->src_bytes, &shape);
    if (fault == BSLZ4_TOTAL)
        return error_set(err, STOW_CORRUPT, "%zu bytes are no whole elements of %u",
                         step->dst_bytes, elem_bytes);
    if (fault)
        return error_set(err, STOW_CORRUPT, "the chunk says blocks of %u bytes, for elements of %u",
                         bslz4_be32(step->src + 8), elem_bytes);
    return undo_blocks(step, &layout, elem_bytes, err);
}

int filter_undo_bitshuffle(struct filter_step *step, struct stow_error *err)
{
    uint32_t elem_bytes = filter_value(step->filter, 2, 0);
    uint32_t mode = filter_value(step->filter, 4, BITSHUFFLE_ALONE);
    if (!elem_bytes || elem_bytes > MAX_ELEM_BYTES)
        return error_set(err, STOW_UNSUPPORTED, "elements of %u bytes", elem_bytes);
    if (mode == BITSHUFFLE_ALONE || is_false_zstd(step))
        return undo_alone(step, elem_bytes, err);
    if (mode == BITSHUFFLE_LZ4 || mode == BITSHUFFLE_ZSTD)
        return undo_compressed(step, elem_bytes, err);
    return error_set(err, STOW_UNSUPPORTED, "compressor %u is not known here", mode);
}
