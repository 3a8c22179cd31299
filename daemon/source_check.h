/* SPDX-License-Identifier: Apache-2.0
 *
 * source_check: the index that framestow-reader sends, part by part, before any of it is believed. The reader has read a hostile
 * file and may be that file's by now: what passes here can be used without another look at bounds. */
#ifndef STOW_SOURCE_CHECK_H
#define STOW_SOURCE_CHECK_H

#include "reader_msg.h"
#include "source.h"

/* Where in the memfd the parts lie. */
struct source_parts {
    uint64_t frame_bytes, n_pixels;
    uint64_t flags, datasets, boxes, chunks, texts; /* the table of frames is at 0 */
    uint64_t bytes;                                 /* of it all */
};

/* What is wrong with the shape, or NULL with *parts. */
const char *source_check_shape(const struct reader_shape *shape, struct source_parts *parts);

/* What is wrong with what lies at map, parts->bytes, or NULL. Of index the files are known; its frames and flags are set, *assembly
 * too where the shape has one. */
const char *source_check_map(struct source_index *index, struct assembly *assembly,
                             const struct reader_shape *shape, const struct source_parts *parts,
                             const uint8_t *map);

#endif
