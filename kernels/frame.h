/* SPDX-License-Identifier: Apache-2.0
 *
 * frame: what a decoder is told of a stored frame. Plain numbers, the same on the host and on a GPU;
 * "address" is a device address on a GPU and a pointer's value on the host device. */
#ifndef STOW_FRAME_H
#define STOW_FRAME_H

#include "framestow.h"
#include "hd.h"

#include <stddef.h>
#include <stdint.h>

/* What the bytes of a pixel mean: for sums; decoding does not ask. */
enum pixel_kind { PIXEL_UNSIGNED, PIXEL_SIGNED, PIXEL_FLOAT };

/* What all frames of an acquisition have in common. */
struct frame_shape {
    uint64_t n_elems;    /* det_y * det_x */
    uint32_t elem_bytes; /* 1, 2, 4, 8 */
    uint32_t kind;       /* enum pixel_kind */
    uint64_t fill;       /* the value of an unwritten pixel, in its low elem_bytes bytes */
};

HD uint64_t frame_bytes(const struct frame_shape *shape)
{
    return shape->n_elems * shape->elem_bytes;
}

/* Pixels that the form counts is made for: unsigned, up to 32 bits. */
HD int shape_is_counts(const struct frame_shape *shape)
{
    return shape->kind == PIXEL_UNSIGNED && shape->elem_bytes <= 4;
}

/* The kind of pixels of so many bytes that a dtype such as u2, i4, f8 says; -1: there is none. */
HD int pixel_kind_of(const char *dtype, uint32_t elem_bytes)
{
    const char letter = dtype[0];
    if (elem_bytes != 1 && elem_bytes != 2 && elem_bytes != 4 && elem_bytes != 8)
        return -1;
    if (dtype[0] == '\0' || dtype[1] != (char)('0' + elem_bytes) || dtype[2] != '\0')
        return -1;
    return letter == 'u'                      ? (int)PIXEL_UNSIGNED
           : letter == 'i'                    ? (int)PIXEL_SIGNED
           : letter == 'f' && elem_bytes >= 4 ? (int)PIXEL_FLOAT
                                              : -1;
}

/* All pixel types in a row, for tables of what is made for each: kind, then size. f1 and f2 do not exist. */
#define N_PIXEL_TYPES 12u
HD uint32_t pixel_type_index(const struct frame_shape *shape)
{
    uint32_t bytes = shape->elem_bytes;
    return 4 * shape->kind + (bytes == 8 ? 3 : bytes == 4 ? 2 : bytes - 1);
}

/* One frame to be decoded.
 *   STOW_FORM_BSLZ4  src_bytes at src: a chunk with HDF5 filter 32008 framing, any alignment;
 *                    blocks: uint32 [n_blocks + 1], the table that bslz4_index made
 *   STOW_FORM_COUNTS src_bytes at src, 16-byte aligned: an encoded frame (counts.h);
 *                    blocks: its segment's table, struct counts_segment
 *   STOW_FORM_RAW    src_bytes at src: the pixels
 *   STOW_FORM_FILL   neither; every pixel becomes shape.fill
 * dst: frame_bytes, 16-byte aligned or not; 0: check the frame and write nothing. */
struct decode_job {
    uint64_t src;
    uint64_t blocks;
    uint64_t dst;
    uint32_t src_bytes;
    uint32_t form; /* enum stow_form */
};

#endif
