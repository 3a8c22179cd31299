/* SPDX-License-Identifier: Apache-2.0
 *
 * reader_layout: where a dataset's chunk index lies and of which kind it is, read from the
 * object header itself: HDF5 has no call for it. Numbers only, no HDF5 here. Format: HDF5 File
 * Format Specification III, "Data Object Headers" (versions 1 and 2) and "Data Layout Message"
 * (versions 3 and 4). */
#ifndef STOW_READER_LAYOUT_H
#define STOW_READER_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct reader_fd;

/* Bytes of a file in its own terms: addresses count from base, in offset_bytes of width. */
struct reader_bytes {
    struct reader_fd *io;
    uint64_t base;
    unsigned offset_bytes, length_bytes;
};

enum reader_index_kind {
    READER_INDEX_BTREE1 = 0, /* layout message 3 */
    READER_INDEX_SINGLE = 1, /* the numbers of layout message 4 */
    READER_INDEX_IMPLICIT = 2,
    READER_INDEX_FIXED = 3,
    READER_INDEX_EXTENSIBLE = 4,
    READER_INDEX_BTREE2 = 5,
    READER_INDEX_COMPACT = 100 /* none: the pixels lie in the object header, at address */
};

struct reader_layout {
    enum reader_index_kind kind;
    uint64_t address;      /* of the index; READER_NO_ADDRESS: no chunk was ever written */
    uint64_t single_bytes; /* of a filtered single chunk, or of compact pixels; else 0 */
    uint32_t single_mask;
};
#define READER_NO_ADDRESS UINT64_MAX

/* Find the chunked or compact layout of the object whose header is at address. False: not there, or not as the
 * specification's ordinary case; HDF5 must be asked then. */
bool reader_layout_find(const struct reader_bytes *bytes, uint64_t address,
                        struct reader_layout *layout);

/* Read n bytes at an address of the file. */
bool reader_bytes_read(const struct reader_bytes *bytes, uint64_t address, void *buffer, size_t n);

/* A little-endian number of up to 8 bytes; an address, of which all ones is READER_NO_ADDRESS. */
uint64_t reader_number(const uint8_t *at, unsigned width);
uint64_t reader_address(const struct reader_bytes *bytes, const uint8_t *at);

#endif
