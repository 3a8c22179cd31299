/* SPDX-License-Identifier: Apache-2.0
 *
 * bslz4_cases: chunks good and bad, and a decoder so plain that it can be checked by eye. Whoever is tested
 * gives one function; every case is decoded by it and by the plain decoder, with pixels and without, and both
 * must agree on good or bad, and on every byte. */
#ifndef STOW_BSLZ4_CASES_H
#define STOW_BSLZ4_CASES_H

#include "bslz4.h"
#include "error.h"
#include "golden/bslz4_golden.h"
#include "test.h"

#include <lz4.h>

/* The decoder under test: 0 or STOW_CORRUPT, one frame. dst has frame_bytes, or is NULL to check only; the
 * decoder reports writes outside of it by returning 1. skew: how dst and src are to lie within 16 bytes,
 * where the decoder chooses their place. */
struct case_decoder {
    const char *name;
    int (*decode)(void *data, uint8_t *dst, const uint8_t *src, size_t src_bytes,
                  const uint32_t *blocks, size_t n_blocks, const struct frame_shape *shape,
                  unsigned skew);
    void *data;
    size_t largest;       /* bytes of a frame; larger ones are left out */
    unsigned n_mutations; /* of each chunk that is damaged */
    unsigned n_cuts;      /* the most places where one is cut short */
};

struct case_chunk {
    uint8_t *bytes;
    size_t n_bytes;
};

static inline uint64_t case_random(void)
{
    static uint64_t state = 0x9e3779b97f4a7c15ull;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * 0x2545f4914f6cdd1dull >> 16;
}

static inline void *case_alloc(size_t bytes)
{
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory) {
        fprintf(stderr, "out of memory\n");
        exit(EXIT_FAILURE);
    }
    return memory;
}

/* ---- the plain decoder ---------------------------------------------------------------------------- */

static inline uint64_t plain_number(const uint8_t *bytes, unsigned n)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < n; i++)
        value = value * 256 + bytes[i];
    return value;
}

/* The bytes of a length after its nibble; SIZE_MAX at the end of the input. */
static inline size_t plain_length(size_t nibble, const uint8_t *in, size_t n, size_t *at)
{
    size_t length = nibble;
    if (nibble != 15)
        return length;
    for (;;) {
        if (*at >= n)
            return SIZE_MAX;
        uint8_t byte = in[(*at)++];
        length += byte;
        if (byte != 255)
            return length;
    }
}

static inline bool plain_lz4(uint8_t *out, size_t room, const uint8_t *in, size_t n)
{
    size_t at = 0, done = 0;
    for (;;) {
        if (at >= n)
            return false;
        uint8_t token = in[at++];
        size_t literals = plain_length(token >> 4, in, n, &at);
        if (literals == SIZE_MAX)
            return false;
        for (size_t i = 0; i < literals; i++) {
            if (at >= n || done >= room)
                return false;
            out[done++] = in[at++];
        }
        if (at == n)
            return done == room;
        if (at + 2 > n)
            return false;
        size_t offset = in[at] + 256u * in[at + 1];
        at += 2;
        size_t match = plain_length(token & 15, in, n, &at);
        if (match == SIZE_MAX || offset == 0 || offset > done)
            return false;
        for (size_t i = 0; i < match + 4; i++, done++) {
            if (done >= room)
                return false;
            out[done] = out[done - offset];
        }
    }
}

static inline void plain_untranspose(uint8_t *dst, const uint8_t *rows, size_t n_elems,
                                     size_t elem_bytes)
{
    memset(dst, 0, n_elems * elem_bytes);
    for (size_t bit = 0; bit < 8 * elem_bytes; bit++)
        for (size_t i = 0; i < n_elems; i++)
            if (rows[bit * (n_elems / 8) + i / 8] >> (i % 8) & 1)
                dst[i * elem_bytes + bit / 8] |= (uint8_t)(1 << (bit % 8));
}

/* The frame of a chunk, or false. */
static inline bool plain_decode(uint8_t *dst, const uint8_t *src, size_t n,
                                const struct frame_shape *shape)
{
    size_t e = shape->elem_bytes, total = shape->n_elems * e;
    if (n < 12 || plain_number(src, 8) != total)
        return false;
    size_t block = plain_number(src + 8, 4);
    if (block == 0)
        block = 8192;
    if (block % (8 * e) != 0)
        return false;
    size_t at = 12, done = 0;
    while (total - done >= 8 * e) {
        size_t room = total - done < block ? (total - done) / (8 * e) * (8 * e) : block;
        if (n - at < 4)
            return false;
        size_t length = plain_number(src + at, 4);
        at += 4;
        if (length > n - at)
            return false;
        uint8_t *rows = case_alloc(room);
        bool good = plain_lz4(rows, room, src + at, length);
        if (good)
            plain_untranspose(dst + done, rows, room / e, e);
        free(rows);
        if (!good)
            return false;
        at += length;
        done += room;
    }
    if (n - at != total - done)
        return false;
    memcpy(dst + done, src + at, n - at);
    return true;
}

/* ---- making chunks -------------------------------------------------------------------------------- */

static inline void plain_transpose(uint8_t *rows, const uint8_t *src, size_t n_elems,
                                   size_t elem_bytes)
{
    memset(rows, 0, n_elems * elem_bytes);
    for (size_t bit = 0; bit < 8 * elem_bytes; bit++)
        for (size_t i = 0; i < n_elems; i++)
            if (src[i * elem_bytes + bit / 8] >> (bit % 8) & 1)
                rows[bit * (n_elems / 8) + i / 8] |= (uint8_t)(1 << (i % 8));
}

static inline void put_number(uint8_t *bytes, uint64_t value, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        bytes[i] = (uint8_t)(value >> (8 * (n - 1 - i)));
}

/* The bytes after a nibble of 15. */
static inline size_t put_length(uint8_t *out, size_t length)
{
    size_t n = 0;
    for (; length >= 255; length -= 255)
        out[n++] = 255;
    out[n++] = (uint8_t)length;
    return n;
}

/* Sequences that no compressor would choose: any length at any distance. Returns the bytes written. */
static inline size_t odd_lz4(uint8_t *out, size_t room)
{
    static const uint32_t lengths[] = {0,  1,  3,  14, 15,  16,  18,   19,
                                       31, 32, 33, 64, 270, 271, 1000, 5000};
    static const uint32_t distances[] = {1,  2,  3,  4,  5,  7,   8,    15,   16,
                                         17, 31, 32, 33, 48, 512, 8191, 65535};
    size_t n = 0, done = 0;
    for (;;) {
        size_t literals = case_random() % 3 ? case_random() % 20 : lengths[case_random() % 16];
        size_t match = 4 + (case_random() % 3 ? case_random() % 20 : lengths[case_random() % 16]);
        bool last = literals >= room - done || case_random() % 400 == 0;
        if (last)
            literals = room - done;
        else if (match > room - done - literals)
            match = room - done - literals;
        if (!last && (match < 4 || done + literals == 0))
            continue;
        size_t token = n++;
        out[token] = (uint8_t)((literals < 15 ? literals : 15) << 4);
        if (literals >= 15)
            n += put_length(out + n, literals - 15);
        for (size_t i = 0; i < literals; i++)
            out[n++] = (uint8_t)case_random();
        done += literals;
        if (last)
            return n;
        size_t offset =
            case_random() % 2 ? distances[case_random() % 17] : 1 + case_random() % 65535;
        offset = offset > done ? 1 + offset % done : offset;
        out[n++] = (uint8_t)offset;
        out[n++] = (uint8_t)(offset >> 8);
        out[token] |= (uint8_t)(match - 4 < 15 ? match - 4 : 15);
        if (match - 4 >= 15)
            n += put_length(out + n, match - 4 - 15);
        done += match;
    }
}

/* A chunk of these pixels, its header saying word for the block size; pixels NULL: of odd sequences. */
static inline struct case_chunk make_chunk(const uint8_t *pixels, const struct frame_shape *shape,
                                           uint32_t word)
{
    size_t e = shape->elem_bytes, total = shape->n_elems * e, done = 0;
    size_t block = word ? word : 8192;
    struct case_chunk chunk = {.bytes = case_alloc(4096 + total * 3 + total / (8 * e) * 32)};
    put_number(chunk.bytes, total, 8);
    put_number(chunk.bytes + 8, word, 4);
    chunk.n_bytes = 12;
    while (total - done >= 8 * e) {
        size_t room = total - done < block ? (total - done) / (8 * e) * (8 * e) : block;
        uint8_t *out = chunk.bytes + chunk.n_bytes + 4;
        size_t n;
        if (pixels) {
            uint8_t *rows = case_alloc(room);
            plain_transpose(rows, pixels + done, room / e, e);
            n = (size_t)LZ4_compress_default((char *)rows, (char *)out, (int)room,
                                             LZ4_compressBound((int)room));
            free(rows);
        } else {
            n = odd_lz4(out, room);
        }
        put_number(out - 4, n, 4);
        chunk.n_bytes += 4 + n;
        done += room;
    }
    for (; done < total; done++)
        chunk.bytes[chunk.n_bytes++] = pixels ? pixels[done] : (uint8_t)case_random();
    return chunk;
}

enum content { ZEROS, ONES, NOISE, COUNTS, FLAGGED, RAMP, ODD_LZ4, N_CONTENTS };
static const char *const content_names[] = {"zeros",   "ones", "noise",  "counts",
                                            "flagged", "ramp", "odd LZ4"};

static inline void make_pixels(uint8_t *pixels, const struct frame_shape *shape,
                               enum content content)
{
    size_t e = shape->elem_bytes;
    memset(pixels, content == ONES ? 0xff : 0, shape->n_elems * e);
    for (size_t i = 0; i < shape->n_elems; i++) {
        uint64_t value = case_random();
        if (content == COUNTS || content == FLAGGED)
            value = (value & 3) * (value >> 2 & 1) + (value >> 3) % 3;
        if (content == FLAGGED && case_random() % 997 == 0)
            value = UINT64_MAX;
        if (content == RAMP)
            value = i / 3;
        for (size_t k = 0; k < e && content >= NOISE; k++)
            pixels[i * e + k] = (uint8_t)(value >> (8 * k));
    }
}

/* ---- running a case ------------------------------------------------------------------------------- */

static unsigned case_skew; /* goes round, so that every alignment meets every kind of case */

/* Decode with this table; want NULL: the chunk is bad. must: a good chunk must also be taken. */
static inline void check_decode(const struct case_decoder *decoder, const char *what,
                                const uint8_t *src, size_t n, const uint32_t *blocks,
                                size_t n_blocks, const struct frame_shape *shape,
                                const uint8_t *want, bool must)
{
    size_t total = frame_bytes(shape);
    uint8_t *dst = case_alloc(total);
    unsigned skew = case_skew++;
    int status = decoder->decode(decoder->data, dst, src, n, blocks, n_blocks, shape, skew);
    int checked = decoder->decode(decoder->data, NULL, src, n, blocks, n_blocks, shape, skew);
    CHECK_MSG(status == checked, "%s: %s: decoding says %d, checking %d", decoder->name, what,
              status, checked);
    if (!want || must)
        CHECK_MSG(status == (want ? 0 : STOW_CORRUPT), "%s: %s: status %d", decoder->name, what,
                  status);
    if (want && status == 0)
        CHECK_MSG(memcmp(dst, want, total) == 0, "%s: %s: other pixels", decoder->name, what);
    free(dst);
}

/* One chunk, any bytes. old_blocks: the table of the chunk that this one was made from, or NULL. Returns
 * whether it is good. */
static inline bool check_chunk(const struct case_decoder *decoder, const char *what,
                               const uint8_t *src, size_t n, const struct frame_shape *shape,
                               const uint32_t *old_blocks, size_t n_old)
{
    struct stow_error err = {0};
    size_t room = bslz4_max_blocks(n) + 1, n_blocks = 0;
    uint32_t *blocks = case_alloc(room * sizeof(*blocks));
    uint8_t *want = case_alloc(frame_bytes(shape));
    bool good = plain_decode(want, src, n, shape);
    int status = bslz4_index(blocks, room, &n_blocks, src, n, shape, &err);
    CHECK_MSG(status == 0 || (status == STOW_CORRUPT && !good && err.text[0]),
              "%s: %s: index says %d: %s", decoder->name, what, status, err.text);
    if (status == 0)
        check_decode(decoder, what, src, n, blocks, n_blocks, shape, good ? want : NULL, true);
    if (old_blocks)
        check_decode(decoder, what, src, n, old_blocks, n_old, shape, good ? want : NULL, false);
    free(want);
    free(blocks);
    return good;
}

static inline void check_truncations(const struct case_decoder *decoder,
                                     const struct case_chunk *chunk,
                                     const struct frame_shape *shape, const uint32_t *blocks,
                                     size_t n_blocks)
{
    size_t step = chunk->n_bytes / decoder->n_cuts + 1;
    for (size_t n = case_random() % step; n < chunk->n_bytes; n += step)
        CHECK(!check_chunk(decoder, "cut short", chunk->bytes, n, shape, blocks, n_blocks));
}

static inline void check_mutations(const struct case_decoder *decoder,
                                   const struct case_chunk *chunk, const struct frame_shape *shape,
                                   const uint32_t *blocks, size_t n_blocks)
{
    uint8_t *bytes = case_alloc(chunk->n_bytes);
    for (unsigned i = 0; i < decoder->n_mutations; i++) {
        memcpy(bytes, chunk->bytes, chunk->n_bytes);
        for (size_t k = case_random() % 3 + 1; k > 0; k--) {
            size_t at = case_random() % chunk->n_bytes;
            bytes[at] = (uint8_t)(case_random() % 4 ? bytes[at] ^ 1u << (case_random() % 8)
                                                    : case_random());
        }
        check_chunk(decoder, "flipped", bytes, chunk->n_bytes, shape, blocks, n_blocks);
    }
    free(bytes);
}

/* Lengths that lie, written over one number of a good chunk at a time. */
static inline void check_lies(const struct case_decoder *decoder, const struct case_chunk *chunk,
                              const struct frame_shape *shape, const uint32_t *blocks,
                              size_t n_blocks)
{
    static const uint64_t lies[] = {0,          1,          7,          8,          64,
                                    0x7fffffff, 0x80000000, 0xffffffff, 0xfffffff8, 1ull << 40};
    uint8_t *bytes = case_alloc(chunk->n_bytes);
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        for (unsigned where = 0; where < 3 && 8u + 4 * where <= chunk->n_bytes; where++) {
            static const struct {
                unsigned at, n;
            } places[] = {{0, 8}, {8, 4}, {12, 4}};
            if (places[where].at + places[where].n > chunk->n_bytes)
                continue;
            memcpy(bytes, chunk->bytes, chunk->n_bytes);
            put_number(bytes + places[where].at, lies[i], places[where].n);
            check_chunk(decoder, "lying length", bytes, chunk->n_bytes, shape, blocks, n_blocks);
        }
    }
    free(bytes);
}

/* One shape, block size and content: the good chunk, and if it is small enough, what can be made of it. */
static inline void check_shape(const struct case_decoder *decoder, const struct frame_shape *shape,
                               uint32_t word, enum content content, bool damage)
{
    char what[128];
    size_t total = frame_bytes(shape), n_blocks = 0;
    uint8_t *pixels = case_alloc(total);
    make_pixels(pixels, shape, content);
    struct case_chunk chunk = make_chunk(content == ODD_LZ4 ? NULL : pixels, shape, word);
    uint32_t *blocks = case_alloc((bslz4_max_blocks(chunk.n_bytes) + 1) * sizeof(*blocks));
    struct stow_error err = {0};
    snprintf(what, sizeof(what), "%zu elements of %u, blocks of %u, %s", (size_t)shape->n_elems,
             (unsigned)shape->elem_bytes, (unsigned)word, content_names[content]);

    CHECK_MSG(check_chunk(decoder, what, chunk.bytes, chunk.n_bytes, shape, NULL, 0), "%s: bad",
              what);
    CHECK(bslz4_index(blocks, bslz4_max_blocks(chunk.n_bytes) + 1, &n_blocks, chunk.bytes,
                      chunk.n_bytes, shape, &err) == 0);
    if (damage) {
        check_truncations(decoder, &chunk, shape, blocks, n_blocks);
        check_mutations(decoder, &chunk, shape, blocks, n_blocks);
        check_lies(decoder, &chunk, shape, blocks, n_blocks);
    }
    free(blocks);
    free(chunk.bytes);
    free(pixels);
}

/* Single blocks of LZ4 with what a writer never writes, in a frame of 64 bytes. */
static inline void check_sequences(const struct case_decoder *decoder)
{
    static const struct {
        const char *what;
        uint8_t bytes[80];
        uint8_t n;
        bool good;
    } rows[] = {
        {"one literal, then 59 repeats, then 4 literals",
         {0x1f, 7, 1, 0, 40, 0x40, 1, 2, 3, 4},
         10,
         true},
        {"no literal at the end", {0x1f, 7, 1, 0, 44, 0x00}, 6, true},
        {"ends after a match", {0x1f, 7, 1, 0, 44}, 5, false},
        {"offset 0", {0x1f, 7, 0, 0, 40, 0x40, 1, 2, 3, 4}, 10, false},
        {"offset before the start", {0x1f, 7, 2, 0, 40, 0x40, 1, 2, 3, 4}, 10, false},
        {"match at the very start", {0x0f, 1, 0, 41, 0x40, 1, 2, 3, 4}, 9, false},
        {"match past the block", {0x1f, 7, 1, 0, 45, 0x00}, 6, false},
        {"block not filled", {0x1f, 7, 1, 0, 40, 0x30, 1, 2, 3}, 9, false},
        {"literals past the block", {0x1f, 7, 1, 0, 40, 0x50, 1, 2, 3, 4, 5}, 11, false},
        {"literals past the input", {0xf0, 49, 1, 2, 3}, 5, false},
        {"length without an end", {0xf0, 255, 255}, 3, false},
        {"match length without an end", {0x1f, 7, 1, 0}, 4, false},
        {"half an offset", {0x1f, 7, 1}, 3, false},
        {"one byte too many", {0x1f, 7, 1, 0, 40, 0x40, 1, 2, 3, 4, 0}, 11, false},
        {"no bytes", {0}, 0, false},
        /* The same where input and room are left, so that a decoder may take its short way. */
        {"offset to the start", {0x80, 1, 2, 3, 4, 5, 6, 7, 8, 8, 0, 0xf0, 37}, 65, true},
        {"offset one too far", {0x80, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0xf0, 37}, 65, false},
        {"offset 0, more to come", {0x80, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0xf0, 37}, 65, false},
        {"16 bytes from 7 back", {0x8c, 1, 2, 3, 4, 5, 6, 7, 8, 7, 0, 0xf0, 25}, 53, true},
    };
    const struct frame_shape shape = {.n_elems = 64, .elem_bytes = 1};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint8_t bytes[96];
        put_number(bytes, 64, 8);
        put_number(bytes + 8, 64, 4);
        put_number(bytes + 12, rows[i].n, 4);
        memcpy(bytes + 16, rows[i].bytes, rows[i].n);
        bool good = check_chunk(decoder, rows[i].what, bytes, 16u + rows[i].n, &shape, NULL, 0);
        CHECK_MSG(good == rows[i].good, "%s", rows[i].what);
    }
}

/* Element i of n, as make_golden.py has it. */
static inline uint64_t golden_pixel(uint64_t i, uint64_t n)
{
    uint64_t x = (i * 2654435761u + n) & 0xffffffff;
    x ^= x >> 15;
    return i % 611 == 610 ? UINT64_MAX : (x & 3) * (x >> 2 & 1);
}

/* What another writer made. The plain decoder is held to it too. */
static inline void check_goldens(const struct case_decoder *decoder)
{
    for (size_t g = 0; g < sizeof(goldens) / sizeof(goldens[0]); g++) {
        const struct golden *golden = &goldens[g];
        const struct frame_shape shape = {.n_elems = golden->n_elems,
                                          .elem_bytes = golden->elem_bytes};
        uint8_t *want = case_alloc(frame_bytes(&shape)), *plain = case_alloc(frame_bytes(&shape));
        for (size_t i = 0; i < golden->n_elems; i++)
            for (size_t k = 0; k < golden->elem_bytes; k++)
                want[i * golden->elem_bytes + k] =
                    (uint8_t)(golden_pixel(i, golden->n_elems) >> (8 * k));
        CHECK_MSG(plain_decode(plain, golden->bytes, golden->n_bytes, &shape) &&
                      memcmp(plain, want, frame_bytes(&shape)) == 0,
                  "golden %s: the plain decoder differs", golden->name);
        CHECK(check_chunk(decoder, golden->name, golden->bytes, golden->n_bytes, &shape, NULL, 0));
        free(plain);
        free(want);
    }
}

static inline void run_bslz4_cases(const struct case_decoder *decoder)
{
    static const struct {
        uint32_t y, x;
    } detectors[] = {{0, 5},   {1, 5},     {3, 5},     {7, 7},    {9, 9},
                     {64, 64}, {192, 192}, {229, 659}, {743, 647}};
    static const uint32_t words[] = {0, 64, 96, 192, 1024, 8192, 16384, 32768, 65536, 1 << 20};

    check_goldens(decoder);
    check_sequences(decoder);
    for (size_t d = 0; d < sizeof(detectors) / sizeof(detectors[0]); d++) {
        for (uint32_t e = 1; e <= 8; e *= 2) {
            struct frame_shape shape = {.n_elems = (uint64_t)detectors[d].y * detectors[d].x,
                                        .elem_bytes = e};
            for (int content = 0; content < N_CONTENTS; content++) {
                size_t total = frame_bytes(&shape);
                bool large = total > 400000,
                     damage = total <= 10000 || content == FLAGGED || content == ODD_LZ4;
                if (total > decoder->largest || (large && content != FLAGGED && content != ODD_LZ4))
                    continue;
                check_shape(decoder, &shape, 8 * e, (enum content)content, total < 200);
                for (size_t w = 0; w < sizeof(words) / sizeof(words[0]); w++)
                    if (words[w] % (8 * e) == 0)
                        check_shape(decoder, &shape, words[w], (enum content)content,
                                    damage && total < 80000);
            }
        }
    }
}

#endif
