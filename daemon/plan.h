/* SPDX-License-Identifier: Apache-2.0
 *
 * plan: how the frames of a source are cut: into segments, which are encoded together, and those into spans,
 * which are read together. The plan depends on the index alone. */
#ifndef STOW_PLAN_H
#define STOW_PLAN_H

#include "span.h"

/* What is read at once, unless a single frame is larger. */
#define PLAN_SPAN_BYTES (UINT64_C(8) << 20)

/* Consecutive frames of which at least one has bytes. */
struct plan_segment {
    uint64_t first; /* a multiple of segment_frames */
    uint32_t n_frames, n_stored;
    uint64_t bytes; /* of their chunks, with what spans leave free between them */
    uint64_t chunk_bytes;
    size_t first_span, n_spans;
};

struct plan {
    uint64_t segment_frames;
    struct span *spans; /* [n_spans] those that have bytes, in frame order */
    size_t n_spans, spans_room;
    struct plan_segment *segments; /* [n_segments] those that have bytes, in frame order */
    size_t n_segments, segments_room;
    uint64_t max_bytes; /* the most that a segment has */
    uint32_t max_stored;
    size_t max_spans;
    uint64_t n_stored;
};

/* 0 or STOW_NOMEM; plan_fini frees it either way. */
int plan_init(struct plan *plan, const struct source_index *index, const struct frame_shape *shape);
void plan_fini(struct plan *plan);

#endif
