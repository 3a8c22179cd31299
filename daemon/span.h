/* SPDX-License-Identifier: Apache-2.0
 *
 * span: consecutive frames of a source that are read and uploaded together. span_read runs on a pool
 * thread and touches nothing but the span's own read; everything else is the loop's. */
#ifndef STOW_SPAN_H
#define STOW_SPAN_H

#include "source.h"

#include "frame.h"

/* What is read at once: frames first .. first + n_frames - 1, their stored bytes packed in frame order. */
struct span {
    uint64_t first;
    uint32_t n_frames;
    uint64_t offset, bytes; /* where they lie among the bytes of their segment */
};

/* A frame that cannot be kept, found while reading. */
struct span_fault {
    uint32_t frame; /* from the span's first */
    int code;
    char text[200];
};

struct span_read {
    const struct source_index *index;
    const struct span *span;
    const struct frame_shape *shape;
    uint8_t *bytes;     /* [span->bytes] where the stored bytes go */
    uint32_t *at;       /* [n_frames] offset of the frame in bytes */
    uint32_t *table_at; /* [n_frames] first entry of the frame's block table in tables */
    bool *bad;          /* [n_frames] there is a fault of it */
    uint32_t *tables;   /* block tables one after the other */
    size_t n_tables, tables_room;
    struct span_fault *faults;
    size_t n_faults, faults_room;
    struct stow_error err; /* code not 0: the load cannot go on */
};

/* Room for what a span's frames need; 0 or STOW_NOMEM. span_read_fini frees it; bytes are the caller's. */
int span_read_init(struct span_read *read, const struct source_index *index,
                   const struct span *span, const struct frame_shape *shape, uint8_t *bytes);
void span_read_fini(struct span_read *read);

/* Read the chunks and find their blocks. Any thread. A frame whose bytes cannot be had or whose chunk is
 * malformed becomes a fault; err is set when a file is no longer the one that was indexed. */
void span_read(struct span_read *read);

/* Why a frame that was read without a fault cannot be decoded: it is read once more, and decoded on the CPU. *why is
 * always filled; err only where the load cannot go on. Any thread. */
void span_explain(const struct source_index *index, uint64_t id, const struct frame_shape *shape,
                  struct stow_error *why, struct stow_error *err);

/* Whether a frame of the index has bytes to be read. */
bool chunk_is_stored(const struct source_chunk *chunk);

#endif
