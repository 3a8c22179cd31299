/* SPDX-License-Identifier: Apache-2.0
 *
 * simulate_bslz4: the writing side of HDF5 filter 32008 (bitshuffle + LZ4), which the product itself
 * never needs. Written from the description in docs/formats.md, apart from the decoder, so that the two
 * do not share a mistake. Any thread; nothing is kept. */
#ifndef STOW_SIMULATE_BSLZ4_H
#define STOW_SIMULATE_BSLZ4_H

#include <stddef.h>
#include <stdint.h>

/* Elements of a block where nobody asks for another number: 8192 bytes, as the bitshuffle library takes. */
size_t chunk_default_block(size_t elem_bytes);

/* Bytes that chunk_encode can need for a chunk of n_elems. */
size_t chunk_bound(size_t n_elems, size_t elem_bytes, size_t block_elems);

/* Encode one chunk.
 *   dst          chunk_bound bytes
 *   elem_bytes   1, 2, 4 or 8
 *   block_elems  a multiple of 8, up to 65,536 bytes a block
 * Returns the bytes of the chunk, 0 when LZ4 refused (it does not, within the bound). */
size_t chunk_encode(uint8_t *dst, const void *src, size_t n_elems, size_t elem_bytes,
                    size_t block_elems);

#endif
