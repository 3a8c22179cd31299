/* SPDX-License-Identifier: Apache-2.0
 *
 * counts: our own form of a frame of counts: entropy coded, exact, each frame by itself.
 *
 * Consecutive frames make a segment, which has one model: how the pixels are ordered, into which classes they fall,
 * and how often each symbol comes. Pixels go four in a row as a unit; 512 units of raster order are a tile; inside
 * a tile the units are sorted from bright to dim and cut into granules of 64, all of one class. A class says how a
 * unit becomes symbols of 8 bits: 4 pixels of 2 bits, 2 of 4 bits, 1 of 8 bits, or ("wide") 1 pixel as a coded
 * high part above `base` and `shift` raw low bits. Classes are numbered from dim to bright, and these four kinds
 * follow each other in that order.
 *
 * Symbols are coded by tANS with tables of 2,048 states, by 32 lanes side by side: in a granule lane l has units l
 * and 32 + l. Each lane owns a string of bits, first bit first: zeros, a one, the 11 bits of its first state, then
 * what its symbols need; it ends on a word boundary with state 0. Strings are cut into 32-bit words and interleaved
 * in the order in which a decoder asks: the first word of all lanes, the second of all lanes, then whenever a lane
 * has crossed into its next word, the word after that one, lanes in order. It is looked at after every second
 * symbol, in wide classes after each (COUNTS_WIDE_BITS). Words after a lane's end are zeros, and are left out where
 * no other word follows.
 *
 * A pixel that has one value all through the segment is a constant of the model. What a class cannot say is said by
 * patches, added to what was decoded. docs/formats.md has every byte.
 *
 * The functions marked HD are the format itself, one text for the CPU and the GPU. counts_model.h makes models. */
#ifndef STOW_COUNTS_H
#define STOW_COUNTS_H

#include "frame.h"
#include "hd.h"

#include <stdbool.h>

#define COUNTS_CLASSES 8u
#define COUNTS_TABLE_BITS 11u
#define COUNTS_STATES 2048u
#define COUNTS_LANES 32u
#define COUNTS_UNIT_PIXELS 4u
#define COUNTS_GRANULE_UNITS 64u
#define COUNTS_GRANULE_PIXELS 256u
#define COUNTS_TILE_UNITS 512u
#define COUNTS_TILE_PIXELS 2048u
#define COUNTS_MAX_STREAMS 8u
#define COUNTS_MAX_TILES 16384u /* larger frames keep another form */
#define COUNTS_MAX_SHIFT 21u    /* 11 bits of state and these are at most one word */

/* ---- what decoders need of a segment ------------------------------------------------------------- */

struct counts_class {
    uint32_t base;  /* wide: what symbol 0 with raw bits 0 means; else 0 */
    uint32_t shift; /* wide: raw bits a pixel, up to COUNTS_MAX_SHIFT; else 0 */
};

struct counts_constant {
    uint32_t pixel; /* of the frame, raster order */
    uint32_t value;
};

/* The head of a segment's table: one block of memory, 16-byte aligned, that may lie anywhere. Offsets are from its
 * first byte and multiples of 16. It is our own making and is believed. */
struct counts_segment {
    uint32_t bytes; /* of all of it, a multiple of 16 */
    uint32_t n_tiles, n_granules, n_streams;
    /* class k: k < until4: 4 pixels a symbol; < until2: 2; < until1: 1; else wide */
    uint32_t until4, until2, until1;
    uint32_t n_constants;
    struct counts_class classes[COUNTS_CLASSES];
    uint32_t tables_at; /* uint32 [COUNTS_CLASSES][COUNTS_STATES], see counts_entry */
    uint32_t
        order_at; /* uint32 [n_granules][32]: a lane's units in their tile: its first in the low 16 bits,
                           * its second in the high ones */
    uint32_t granules_at; /* uint8 [n_granules] class */
    uint32_t
        constant_tiles_at; /* uint32 [n_tiles + 1]: constants of tile t are those from [t] up to [t + 1] */
    uint32_t constants_at; /* struct counts_constant [n_constants], pixels ascending */
    uint32_t reserved[3];
};

/* An entry of the decoding tables: what state s of class k says.
 *   bits 31..16  (k * 2048 + next state before its new bits are added) * 4: a byte offset into the tables
 *   bits 15..8   symbol
 *   bits 4..0    how many bits the new state takes, 0 to 11 */
HD uint32_t counts_entry(uint32_t class_, uint32_t next, uint32_t symbol, uint32_t n_bits)
{
    return (class_ * COUNTS_STATES + next) * 4u << 16 | symbol << 8 | n_bits;
}

HD uint32_t counts_n_tiles(uint64_t n_elems)
{
    return (uint32_t)((n_elems + COUNTS_TILE_PIXELS - 1) / COUNTS_TILE_PIXELS);
}

/* The last tile of a frame may have fewer than 8. What they have beyond the frame's pixels is zero. */
HD uint32_t counts_n_granules(uint64_t n_elems)
{
    return (uint32_t)((n_elems + COUNTS_GRANULE_PIXELS - 1) / COUNTS_GRANULE_PIXELS);
}

/* The first tile of stream s; of stream n_streams: the number of tiles. */
HD uint32_t counts_stream_tile(uint32_t n_tiles, uint32_t n_streams, uint32_t s)
{
    return n_tiles * s / n_streams; /* of at most COUNTS_MAX_TILES and COUNTS_MAX_STREAMS */
}

/* ---- an encoded frame ---------------------------------------------------------------------------- */

/* uint32, little-endian, 16-byte aligned, padded with zeros to a multiple of 16 bytes:
 *   [n_streams][2]  words; patches in the low 18 bits, tile of the first patch above them
 *   then for each stream its patches, then its words
 * A patch is one word, for uint32 pixels two:
 *   bits 31..21  pixel in its tile
 *   bits 20..17  tiles from this patch's to the next one's; 15 at most, so that a patch of delta 0 may stand between
 *   bits 16..0   delta, signed: what is added to the decoded value (for uint32: bits 32 and up of it; the second
 *                word is bits 31..0) */
#define COUNTS_MAX_PATCHES 0x3ffffu
#define COUNTS_MAX_TILE_STEP 15u

HD uint32_t counts_patch_words(uint32_t elem_bytes)
{
    return elem_bytes == 4 ? 2 : 1;
}

HD uint32_t counts_pack_patches(uint32_t n_patches, uint32_t first_tile)
{
    return n_patches | first_tile << 18;
}

/* What encoding found of one stream. n_words 0: it would be larger than its pixels. */
struct counts_stream {
    uint32_t n_words, n_patches, first_tile, reserved;
};

/* Bytes of a frame with these streams; 0 if one of them did not fit. */
HD uint64_t counts_frame_bytes(const struct counts_stream *streams, uint32_t n_streams,
                               uint32_t elem_bytes)
{
    uint64_t words = 2 * (uint64_t)n_streams;
    for (uint32_t s = 0; s < n_streams; s++) {
        if (!streams[s].n_words)
            return 0;
        words +=
            streams[s].n_words + (uint64_t)streams[s].n_patches * counts_patch_words(elem_bytes);
    }
    return (words * 4 + 15) / 16 * 16;
}

/* Where stream s of an encoded frame lies. False: the bytes do not hold what they say. */
struct counts_part {
    const uint32_t *patches, *words;
    uint32_t n_patches, n_words, first_tile;
};
HD bool counts_find_part(struct counts_part *part, const uint32_t *frame, uint64_t frame_bytes_,
                         uint32_t n_streams, uint32_t s, uint32_t elem_bytes)
{
    uint64_t n = frame_bytes_ / 4, at = 2 * (uint64_t)n_streams;
    if (n < at)
        return false;
    for (uint32_t i = 0;; i++) {
        uint32_t n_words = frame[2 * i], packed = frame[2 * i + 1];
        uint64_t patch_words =
            (uint64_t)(packed & COUNTS_MAX_PATCHES) * counts_patch_words(elem_bytes);
        if (n_words < 2 * COUNTS_LANES || patch_words + n_words > n - at)
            return false;
        if (i == s) {
            part->patches = frame + at;
            part->words = frame + at + patch_words;
            part->n_patches = packed & COUNTS_MAX_PATCHES;
            part->n_words = n_words;
            part->first_tile = packed >> 18;
            return true;
        }
        at += patch_words + n_words;
    }
}

/* Decode one frame of form STOW_FORM_COUNTS on the CPU. 0 or STOW_CORRUPT, and err (may be NULL) says what; dst 0
 * checks only. Whatever the bytes, nothing outside src_bytes is read. Any thread. */
int counts_decode(const struct decode_job *job, const struct frame_shape *shape,
                  struct stow_error *err);

/* ---- what encoders need ------------------------------------------------------------------------- */

/* How a symbol is coded, X being the state, 2,048 to 4,095: n_bits = (X + bits_add) >> 16, these bits of X go out,
 * and the next state is states[class][state_add + (X >> n_bits)] (itself 2,048 to 4,095). */
struct counts_symbol {
    uint32_t bits_add;
    int16_t state_add;
    uint8_t
        coded; /* the symbol that stands for this one; itself unless it is too rare to have a state */
    uint8_t reserved;
};

/* Encoding tables of a segment; used beside its struct counts_segment, and let go of after encoding. */
struct counts_encoder {
    struct counts_symbol symbols[COUNTS_CLASSES][256];
    uint16_t states[COUNTS_CLASSES][COUNTS_STATES];
};

/* Where the room of stream s begins in the room of its frame; of stream n_streams: where it ends, frame_bytes. */
HD uint64_t counts_room_at(const struct frame_shape *shape, uint32_t n_streams, uint32_t s)
{
    uint64_t pixel = (uint64_t)counts_stream_tile(counts_n_tiles(shape->n_elems), n_streams, s) *
                     COUNTS_TILE_PIXELS;
    return (pixel < shape->n_elems ? pixel : shape->n_elems) * shape->elem_bytes;
}

/* Encoding runs backwards, from the last symbol to the first, so that states come out right; its words are met in
 * the reverse of the order in which a decoder asks for them, and are laid down from the end of the room.
 *
 * The room of a frame has frame_bytes; stream s has what its tiles' pixels have there (multiples of 4: what is over
 * at the end is not used). In the room of a stream: patches from its first byte on, last one first (of uint32 pixels
 * each patch's two words in order); words up to its last whole word, ready to be read. A stream whose patches and
 * words would meet, or that has over COUNTS_MAX_PATCHES, is all zeros, and its room means nothing.
 *
 * Patches come in the order of decoding: by step (symbol of the granule), then pixel of the symbol, then lane.
 * Where the next patch is over 15 tiles away, patches of pixel 0 and delta 0 stand between, as near to that one as
 * they can be.
 *
 *   room     frame_bytes, rounded up to 16; 16-byte aligned
 *   streams  [n_streams]
 *   pixels   frame_bytes, in C order, aligned to elem_bytes
 * Any thread. */
void counts_encode(struct counts_stream *streams, void *room, const void *pixels,
                   const struct counts_segment *segment, const struct counts_encoder *encoder,
                   const struct frame_shape *shape);

/* Put an encoded frame together: from its room to dst, counts_frame_bytes of them. */
void counts_place(void *dst, const void *room, const struct counts_stream *streams,
                  uint32_t n_streams, const struct frame_shape *shape);

#endif
