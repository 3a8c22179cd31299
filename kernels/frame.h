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
