/* SPDX-License-Identifier: Apache-2.0
 *
 * The array indexes of HDF5's later formats: fixed arrays for datasets of a final shape,
 * extensible arrays for those that grow along one dimension. Both are tables of an element for
 * each chunk, in order. */
#include "reader_walk.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK_HEAD(bytes) \
    (6 + (bytes)->offset_bytes) /* signature, version, client, address of the header */
#define CHECKSUM 4
#define MAX_READ (64u << 20)

/* An array being read. Element i is the chunk of position i in a grid as large as the dataset may grow, the
 * dimensions in another order where it grows along one that is not the first. */
struct array {
    const struct reader_walk *walk;
    bool filtered;
    unsigned elem_bytes;
    uint64_t n_elems;            /* of the table; the chunks may be fewer */
    uint64_t page_elems;         /* data blocks with more are cut into pages of so many */
    unsigned order[READER_RANK]; /* dimensions, that which runs slowest first */
    uint64_t
        span[READER_RANK]; /* chunks along order[i], as far as that may grow; not of the first */
    uint64_t stride[READER_RANK]; /* in the grid of chunks now, of order[i] */
    uint8_t *buffer;
    size_t room;
};

static bool fetch(struct array *array, uint64_t address, uint64_t bytes)
{
    if (address == READER_NO_ADDRESS || bytes > MAX_READ)
        return false;
    if (bytes > array->room) {
        uint8_t *buffer = realloc(array->buffer, bytes);
        if (!buffer)
            return false;
        array->buffer = buffer;
        array->room = bytes;
    }
    return reader_bytes_read(array->walk->bytes, address, array->buffer, bytes);
}

/* A block's signature, version 0, client, and that it belongs to this header. */
static bool check_block(const struct array *array, const uint8_t *at, const char *signature,
                        uint64_t header)
{
    return memcmp(at, signature, 4) == 0 && at[4] == 0 && at[5] == array->filtered &&
           reader_address(array->walk->bytes, at + 6) == header;
}

/* The number of the chunk at position i. False: outside of the dataset's present shape. */
static bool chunk_at(const struct array *array, uint64_t i, uint64_t *chunk)
{
    const struct reader_data *data = array->walk->data;
    uint64_t at = 0;
    for (unsigned k = data->rank; k-- > 1;) {
        uint64_t here = array->span[k] == 1 ? 0 : i % array->span[k];
        if (here >= data->grid[array->order[k]])
            return false;
        at += here * array->stride[k];
        i = array->span[k] == 1 ? i : i / array->span[k];
    }
    *chunk = at + i * array->stride[0];
    return i < data->grid[array->order[0]];
}

/* n elements from number `first` on. Those outside of the dataset's present shape must be empty. */
static bool take_elems(struct array *array, const uint8_t *at, uint64_t first, uint64_t n)
{
    const struct reader_walk *walk = array->walk;
    unsigned w = walk->bytes->offset_bytes,
             size_bytes = array->filtered ? array->elem_bytes - w - 4 : 0;
    for (uint64_t i = first; i < first + n && i < array->n_elems; i++, at += array->elem_bytes) {
        uint64_t address = reader_address(walk->bytes, at), chunk;
        if (address == READER_NO_ADDRESS)
            continue;
        uint64_t bytes =
            array->filtered ? reader_number(at + w, size_bytes) : walk->data->chunk_bytes;
        uint32_t mask = array->filtered ? (uint32_t)reader_number(at + w + size_bytes, 4) : 0;
        if (!chunk_at(array, i, &chunk) || !walk->put(walk->to, chunk, address, bytes, mask))
            return false;
    }
    return true;
}

/* A data block's elements, from `address` of its head. pages: NULL, or a bit for each page that was
 * ever written, of which the block's first is number `page`. */
static bool take_block(struct array *array, const char *signature, uint64_t header,
                       uint64_t address, size_t head, uint64_t first, uint64_t n,
                       const uint8_t *pages, uint64_t page)
{
    if (!fetch(array, address, head) || !check_block(array, array->buffer, signature, header))
        return false;
    if (n <= array->page_elems)
        return fetch(array, address + head, n * array->elem_bytes) &&
               take_elems(array, array->buffer, first, n);
    uint64_t at = address + head + CHECKSUM; /* in front of pages the head has its own */
    for (uint64_t done = 0; done < n && first + done < array->n_elems; page++) {
        uint64_t here = n - done < array->page_elems ? n - done : array->page_elems;
        bool written = !pages || (pages[page / 8] & (0x80u >> (page % 8)));
        if (written && (!fetch(array, at, here * array->elem_bytes) ||
                        !take_elems(array, array->buffer, first + done, here)))
            return false;
        at += here * array->elem_bytes + CHECKSUM;
        done += here;
    }
    return true;
}

/* The order of dimensions: that one first which grows without end. False: several do. */
static bool order_dims(struct array *array, bool grows)
{
    const struct reader_data *data = array->walk->data;
    unsigned endless = 0, n_endless = 0, n = 1;
    for (unsigned i = 0; i < data->rank; i++)
        if (data->max_dims[i] == H5S_UNLIMITED) {
            endless = i;
            n_endless++;
        }
    if (n_endless != grows)
        return false;
    array->order[0] = endless;
    for (unsigned i = 0; i < data->rank; i++)
        if (i != endless)
            array->order[n++] = i;
    return true;
}

/* Lay out the grid. n_elems: of all chunks that the slowest dimension has now. */
static bool set_grid(struct array *array, bool grows)
{
    const struct reader_data *data = array->walk->data;
    if (!order_dims(array, grows))
        return false;
    array->n_elems = data->grid[array->order[0]];
    for (unsigned k = 0; k < data->rank; k++) {
        unsigned dim = array->order[k];
        uint64_t max = data->max_dims[dim], chunk = data->chunk[dim];
        array->stride[k] = 1;
        for (unsigned i = dim + 1; i < data->rank; i++)
            array->stride[k] *= data->grid[i];
        array->span[k] = k == 0 ? 0 : max / chunk + (max % chunk != 0);
        if (k > 0 && (array->span[k] == 0 ||
                      __builtin_mul_overflow(array->n_elems, array->span[k], &array->n_elems)))
            return false;
    }
    return true;
}

/* What both kinds have in common. */
static bool array_init(struct array *array, const struct reader_walk *walk, bool grows,
                       unsigned client, unsigned elem_bytes, unsigned page_bits)
{
    unsigned w = walk->bytes->offset_bytes;
    *array = (struct array){.walk = walk, .filtered = client == 1, .elem_bytes = elem_bytes};
    array->page_elems = page_bits < 32 ? UINT64_C(1) << page_bits : UINT64_MAX;
    return client <= 1 &&
           (array->filtered ? elem_bytes > w + 4 && elem_bytes <= w + 12 : elem_bytes == w) &&
           set_grid(array, grows);
}

bool reader_walk_implicit(const struct reader_walk *walk, uint64_t address)
{
    struct array array = {.walk = walk};
    if (walk->data->n_filters != 0 || !set_grid(&array, false))
        return false;
    for (uint64_t i = 0; i < array.n_elems; i++) {
        uint64_t chunk, offset;
        if (__builtin_mul_overflow(i, walk->data->chunk_bytes, &offset) ||
            __builtin_add_overflow(offset, address, &offset))
            return false;
        if (chunk_at(&array, i, &chunk) &&
            !walk->put(walk->to, chunk, offset, walk->data->chunk_bytes, 0))
            return false;
    }
    return true;
}

bool reader_walk_fixed(const struct reader_walk *walk, uint64_t address)
{
    const struct reader_bytes *bytes = walk->bytes;
    unsigned w = bytes->offset_bytes, l = bytes->length_bytes;
    uint8_t b[8 + 16], *pages = NULL;
    struct array array;
    if (!reader_bytes_read(bytes, address, b, 8 + l + w) || memcmp(b, "FAHD", 4) != 0 ||
        b[4] != 0 || !array_init(&array, walk, false, b[5], b[6], b[7]))
        return false;
    array.n_elems = reader_number(b + 8, l);
    uint64_t block = reader_address(bytes, b + 8 + l);
    if (block == READER_NO_ADDRESS)
        return true;
    size_t head = BLOCK_HEAD(bytes);
    if (array.n_elems > array.page_elems) {
        uint64_t bitmap = ((array.n_elems + array.page_elems - 1) / array.page_elems + 7) / 8;
        pages = bitmap <= MAX_READ ? malloc(bitmap) : NULL;
        if (!pages || !reader_bytes_read(bytes, block + head, pages, bitmap)) {
            free(pages);
            return false;
        }
        head += bitmap;
    }
    bool ok = take_block(&array, "FADB", address, block, head, 0, array.n_elems, pages, 0);
    free(array.buffer);
    free(pages);
    return ok;
}

/* ---- extensible arrays: an index block, then data blocks that double in number and size ------ */

struct extensible {
    struct array array;
    uint64_t header;
    unsigned index_elems, min_elems, min_pointers, max_bits;
    unsigned n_supers; /* super blocks in all, the first ones without a block of their own */
    unsigned off_bytes;
};

static unsigned log2_of(uint64_t power)
{
    return (unsigned)__builtin_ctzll(power);
}

static bool is_power(uint64_t n)
{
    return n && (n & (n - 1)) == 0;
}

static uint64_t blocks_of(unsigned super)
{
    return UINT64_C(1) << (super / 2);
}

static uint64_t elems_of(const struct extensible *ext, unsigned super)
{
    return (UINT64_C(1) << ((super + 1) / 2)) * ext->min_elems;
}

/* n data blocks of one super block, whose addresses are at `at`. pages: a bit for each page of all of
 * them in a row, or NULL. */
static bool take_data_blocks(struct extensible *ext, const uint8_t *at, uint64_t n, unsigned super,
                             uint64_t first, const uint8_t *pages)
{
    const struct reader_bytes *bytes = ext->array.walk->bytes;
    uint64_t n_elems = elems_of(ext, super), n_pages = n_elems / ext->array.page_elems;
    size_t head = BLOCK_HEAD(bytes) + ext->off_bytes;
    for (uint64_t i = 0; i < n && first < ext->array.n_elems; i++, first += n_elems) {
        uint64_t address = reader_address(bytes, at + i * bytes->offset_bytes);
        if (address != READER_NO_ADDRESS && !take_block(&ext->array, "EADB", ext->header, address,
                                                        head, first, n_elems, pages, i * n_pages))
            return false;
    }
    return true;
}

static bool take_super_block(struct extensible *ext, uint64_t address, unsigned super,
                             uint64_t first)
{
    const struct reader_bytes *bytes = ext->array.walk->bytes;
    uint64_t n = blocks_of(super), n_elems = elems_of(ext, super);
    /* The bits lie in a row, though each block has room for its own in whole bytes. */
    uint64_t n_pages = n_elems / ext->array.page_elems;
    uint64_t bitmap = n_elems > ext->array.page_elems ? n * ((n_pages + 7) / 8) : 0;
    size_t head = BLOCK_HEAD(bytes) + ext->off_bytes;
    uint64_t all = head + bitmap + n * bytes->offset_bytes;
    if (address == READER_NO_ADDRESS)
        return true;
    uint8_t *block = all <= MAX_READ ? malloc(all) : NULL;
    bool ok =
        block && reader_bytes_read(bytes, address, block, all) &&
        check_block(&ext->array, block, "EASB", ext->header) &&
        take_data_blocks(ext, block + head + bitmap, n, super, first, bitmap ? block + head : NULL);
    free(block);
    return ok;
}

/* The index block: the first elements, then addresses of data blocks, then of super blocks. */
static bool take_index_block(struct extensible *ext, const uint8_t *block)
{
    const struct array *array = &ext->array;
    unsigned w = array->walk->bytes->offset_bytes, direct = 2 * log2_of(ext->min_pointers);
    const uint8_t *at = block + BLOCK_HEAD(array->walk->bytes);
    if (!check_block(array, block, "EAIB", ext->header) ||
        !take_elems(&ext->array, at, 0, ext->index_elems))
        return false;
    at += (size_t)ext->index_elems * array->elem_bytes;
    uint64_t first = ext->index_elems;
    for (unsigned super = 0; super < ext->n_supers && first < array->n_elems; super++) {
        bool ok;
        if (super < direct) {
            ok = elems_of(ext, super) <= array->page_elems &&
                 take_data_blocks(ext, at, blocks_of(super), super, first, NULL);
            at += blocks_of(super) * w;
        } else {
            ok = take_super_block(ext, reader_address(array->walk->bytes, at), super, first);
            at += w;
        }
        if (!ok)
            return false;
        first += blocks_of(super) * elems_of(ext, super);
    }
    return true;
}

static bool parse_header(struct extensible *ext, const struct reader_walk *walk, const uint8_t *b)
{
    if (memcmp(b, "EAHD", 4) != 0 || b[4] != 0 ||
        !array_init(&ext->array, walk, true, b[5], b[6], b[11]))
        return false;
    ext->max_bits = b[7];
    ext->index_elems = b[8];
    ext->min_elems = b[9];
    ext->min_pointers = b[10];
    if (ext->max_bits > 48 || !is_power(ext->min_elems) || !is_power(ext->min_pointers) ||
        ext->min_pointers < 2 || ext->max_bits < log2_of(ext->min_elems) + 1)
        return false;
    ext->n_supers = 1 + ext->max_bits - log2_of(ext->min_elems);
    ext->off_bytes = (ext->max_bits + 7) / 8;
    return ext->n_supers >= 2 * log2_of(ext->min_pointers);
}

bool reader_walk_extensible(const struct reader_walk *walk, uint64_t address)
{
    const struct reader_bytes *bytes = walk->bytes;
    unsigned w = bytes->offset_bytes, l = bytes->length_bytes;
    uint8_t b[12 + 6 * 8 + 8];
    struct extensible ext = {.header = address};
    if (!reader_bytes_read(bytes, address, b, 12 + 6 * l + w) || !parse_header(&ext, walk, b))
        return false;
    uint64_t index = reader_address(bytes, b + 12 + 6 * l);
    if (index == READER_NO_ADDRESS)
        return true;
    size_t n =
        BLOCK_HEAD(bytes) + (size_t)ext.index_elems * ext.array.elem_bytes +
        ((size_t)2 * (ext.min_pointers - 1) + ext.n_supers - 2 * log2_of(ext.min_pointers)) * w;
    uint8_t *block = malloc(n);
    bool ok = block && reader_bytes_read(bytes, index, block, n) && take_index_block(&ext, block);
    free(block);
    free(ext.array.buffer);
    return ok;
}
