/* SPDX-License-Identifier: Apache-2.0
 *
 * filter: one filter on its way back, between filters.c, which puts them one behind the other, and the files that know
 * a format. */
#ifndef STOW_FILTER_H
#define STOW_FILTER_H

#include "filters.h"

#define FILTER_UNKNOWN SIZE_MAX

struct filter_step {
    const struct assembly_filter *filter;
    struct filter_scratch *scratch;
    const uint8_t *src;
    size_t src_bytes;
    size_t want,
        most;       /* bytes that have to come out; FILTER_UNKNOWN: more than `most` are refused */
    uint8_t *final; /* where they go if this is the last step, else NULL */
    uint8_t *dst;   /* set by filter_room, or within src */
    size_t dst_bytes;
};

/* Room for `bytes` at step->dst, if that many may come out. May be called again with more. */
int filter_room(struct filter_step *step, size_t bytes, struct stow_error *err);

/* One more room for what does not last: NULL if there is no memory. */
uint8_t *filter_window(struct filter_scratch *scratch, size_t bytes);

/* The chunk's parameter i, or `otherwise` if it has fewer. */
uint32_t filter_value(const struct assembly_filter *filter, uint32_t i, uint32_t otherwise);

/* n bytes of Zstandard that must be exactly dst_bytes. */
bool filter_zstd(struct filter_scratch *scratch, uint8_t *dst, size_t dst_bytes, const uint8_t *src,
                 size_t n);

int filter_undo_shuffle(struct filter_step *step, struct stow_error *err);
int filter_undo_lz4(struct filter_step *step, struct stow_error *err);
int filter_undo_bitshuffle(struct filter_step *step, struct stow_error *err);

/* Bitshuffle alone: as many bytes come out as went in. */
bool filter_bitshuffle_alone(const struct assembly_filter *filter);

#endif
