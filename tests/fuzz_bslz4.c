/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_bslz4: a chunk from a file that keeps no promise, indexed, decoded and checked. Both must say the same
 * of it, write inside the frame only, and read inside the chunk only: each has memory of its exact size.
 *
 * First byte: the element size (low two bits, its power of two) and whether the table is read as another chunk's, spoilt (bit
 * 7). Second and third: elements, little-endian. The rest is the chunk. */
#include "bslz4.h"
#include "error.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void decode_both(const uint8_t *src, size_t src_bytes, uint32_t *blocks,
                        const struct frame_shape *shape, bool whole)
{
    uint8_t *dst = malloc(frame_bytes(shape) + 1);
    assert(dst);
    struct decode_job job = {
        .src = (uintptr_t)src,
        .src_bytes = (uint32_t)src_bytes,
        .blocks = (uintptr_t)blocks,
        .form = STOW_FORM_BSLZ4,
    };
    struct stow_error err;
    int checked = decode_frame(&job, shape, NULL);
    job.dst = (uintptr_t)dst;
    int decoded = decode_frame(&job, shape, &err);
    assert(checked == decoded);
    assert(decoded == 0 || (decoded == STOW_CORRUPT && err.text[0] && !(whole && err.code == 0)));
    free(dst);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes < 3)
        return 0;
    struct frame_shape shape = {
        .n_elems = data[1] | (uint64_t)data[2] << 8,
        .elem_bytes = 1u << (data[0] & 3),
    };
    size_t src_bytes = bytes - 3, n_blocks;
    uint8_t *src = malloc(src_bytes + !src_bytes);
    size_t room = bslz4_max_blocks(src_bytes) + 1;
    uint32_t *blocks = malloc(room * sizeof(*blocks));
    assert(src && blocks);
    memcpy(src, data + 3, src_bytes);
    if (bslz4_index(blocks, room, &n_blocks, src, src_bytes, &shape, NULL) == 0) {
        assert(n_blocks < room && blocks[0] == n_blocks);
        if (data[0] & 0x80)
            blocks[n_blocks] ^= data[0];
        decode_both(src, src_bytes, blocks, &shape, !(data[0] & 0x80));
    }
    free(blocks);
    free(src);
    return 0;
}
