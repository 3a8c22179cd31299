/* SPDX-License-Identifier: Apache-2.0 */
#include "reader_layout.h"

#include "reader_fd.h"

#include <stdlib.h>
#include <string.h>

#define MESSAGE_LAYOUT 0x08
#define MESSAGE_CONTINUATION 0x10
#define CLASS_COMPACT 0
#define CLASS_CHUNKED 2
#define MAX_BLOCKS 64 /* of one object header */
#define MAX_BLOCK_BYTES (1u << 20)

struct block {
    uint64_t address, bytes;
};

/* The blocks of an object header, as their addresses become known. */
struct header {
    const struct reader_bytes *bytes;
    unsigned version;
    bool ordered; /* version 2: messages carry a creation order */
    struct block blocks[MAX_BLOCKS];
    size_t n_blocks;
    struct reader_layout *layout;
    bool found;
};

uint64_t reader_number(const uint8_t *at, unsigned width)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < width; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

uint64_t reader_address(const struct reader_bytes *bytes, const uint8_t *at)
{
    uint64_t value = reader_number(at, bytes->offset_bytes);
    uint64_t none =
        bytes->offset_bytes == 8 ? UINT64_MAX : (UINT64_C(1) << (8 * bytes->offset_bytes)) - 1;
    return value == none ? READER_NO_ADDRESS : value;
}

bool reader_bytes_read(const struct reader_bytes *bytes, uint64_t address, void *buffer, size_t n)
{
    uint64_t at;
    return !__builtin_add_overflow(bytes->base, address, &at) &&
           reader_fd_read(bytes->io, at, buffer, n);
}

/* Version 4 of the layout message, from its index type on. */
static bool parse_indexing(const struct reader_bytes *bytes, struct reader_layout *layout,
                           unsigned flags, const uint8_t *at, size_t n)
{
    static const uint8_t parameter_bytes[] = {
        [READER_INDEX_FIXED] = 1, [READER_INDEX_EXTENSIBLE] = 5, [READER_INDEX_BTREE2] = 6};
    if (n < 1 || at[0] < READER_INDEX_SINGLE || at[0] > READER_INDEX_BTREE2)
        return false;
    layout->kind = at[0];
    size_t skip = 1;
    if (layout->kind == READER_INDEX_SINGLE && (flags & 2)) {
        skip += bytes->length_bytes + 4;
        if (n < skip)
            return false;
        layout->single_bytes = reader_number(at + 1, bytes->length_bytes);
        layout->single_mask = (uint32_t)reader_number(at + 1 + bytes->length_bytes, 4);
    } else if (layout->kind != READER_INDEX_SINGLE) {
        skip += parameter_bytes[layout->kind];
    }
    if (n < skip + bytes->offset_bytes)
        return false;
    layout->address = reader_address(bytes, at + skip);
    return true;
}

/* A layout message, which lies at address. False unless it is of chunks or compact. */
static bool parse_layout(const struct reader_bytes *bytes, struct reader_layout *layout,
                         uint64_t address, const uint8_t *at, size_t n)
{
    *layout = (struct reader_layout){.kind = READER_INDEX_BTREE1};
    if (n >= 4 && (at[0] == 3 || at[0] == 4) && at[1] == CLASS_COMPACT) {
        *layout = (struct reader_layout){.kind = READER_INDEX_COMPACT,
                                         .address = address + 4,
                                         .single_bytes = reader_number(at + 2, 2)};
        return layout->single_bytes <= n - 4;
    }
    if (n < 5 || at[1] != CLASS_CHUNKED)
        return false;
    if (at[0] == 3) {
        if (n < 3 + bytes->offset_bytes)
            return false;
        layout->address = reader_address(bytes, at + 3);
        return true;
    }
    if (at[0] != 4)
        return false;
    size_t dims = 5 + (size_t)at[3] * at[4];
    return dims < n && parse_indexing(bytes, layout, at[2], at + dims, n - dims);
}

/* n bytes of a message at `at`, which is the file's address. */
static void take_message(struct header *header, unsigned type, unsigned flags, uint64_t address,
                         const uint8_t *at, size_t n)
{
    const struct reader_bytes *bytes = header->bytes;
    if (type == MESSAGE_CONTINUATION && n >= bytes->offset_bytes + bytes->length_bytes) {
        if (header->n_blocks < MAX_BLOCKS)
            header->blocks[header->n_blocks++] =
                (struct block){reader_address(bytes, at),
                               reader_number(at + bytes->offset_bytes, bytes->length_bytes)};
    } else if (type == MESSAGE_LAYOUT && !(flags & 2)) { /* a shared message lies elsewhere */
        header->found = parse_layout(bytes, header->layout, address, at, n);
    }
}

static void take_messages(struct header *header, uint64_t address, const uint8_t *at, size_t n)
{
    size_t head = header->version == 1 ? 8 : header->ordered ? 6 : 4;
    while (n >= head && !header->found) {
        unsigned type = header->version == 1 ? (unsigned)reader_number(at, 2) : at[0];
        size_t bytes = (size_t)reader_number(at + (header->version == 1 ? 2 : 1), 2);
        unsigned flags = at[header->version == 1 ? 4 : 3];
        if (bytes > n - head)
            return;
        take_message(header, type, flags, address + head, at + head, bytes);
        address += head + bytes;
        at += head + bytes;
        n -= head + bytes;
    }
}

/* One block of messages; those of version 2 after the first begin with a signature, all end in a
 * checksum. */
static bool read_block(struct header *header, const struct block *block, bool first)
{
    size_t skip = header->version == 2 && !first ? 4 : 0,
           tail = header->version == 2 && !first ? 4 : 0;
    if (block->bytes > MAX_BLOCK_BYTES || block->bytes < skip + tail)
        return false;
    uint8_t *data = malloc(block->bytes + 1);
    bool ok = data && reader_bytes_read(header->bytes, block->address, data, block->bytes) &&
              (skip == 0 || memcmp(data, "OCHK", 4) == 0);
    if (ok)
        take_messages(header, block->address + skip, data + skip, block->bytes - skip - tail);
    free(data);
    return ok;
}

/* The prefix of an object header: its version and first block. */
static bool read_prefix(struct header *header, uint64_t address)
{
    uint8_t b[16 + 34] = {0};
    if (!reader_bytes_read(header->bytes, address, b, 16))
        return false;
    if (memcmp(b, "OHDR", 4) == 0 && b[4] == 2) {
        unsigned flags = b[5], width = 1u << (flags & 3);
        size_t at = 6 + (flags & 0x20 ? 16 : 0) + (flags & 0x10 ? 4 : 0);
        if (!reader_bytes_read(header->bytes, address, b, at + width))
            return false;
        header->version = 2;
        header->ordered = (flags & 4) != 0;
        header->blocks[0] = (struct block){address + at + width, reader_number(b + at, width)};
    } else if (b[0] == 1) {
        header->version = 1;
        header->blocks[0] = (struct block){address + 16, reader_number(b + 8, 4)};
    } else {
        return false;
    }
    header->n_blocks = 1;
    return true;
}

bool reader_layout_find(const struct reader_bytes *bytes, uint64_t address,
                        struct reader_layout *layout)
{
    struct header header = {.bytes = bytes, .layout = layout};
    if (!read_prefix(&header, address))
        return false;
    for (size_t i = 0; i < header.n_blocks && !header.found; i++)
        if (!read_block(&header, &header.blocks[i], i == 0))
            return false;
    return header.found;
}
