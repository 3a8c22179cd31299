/* SPDX-License-Identifier: Apache-2.0 */
#include "plan.h"

#include "counts_model.h"

#include <stdlib.h>

#define SPAN_FRAMES 2048u
#define SPAN_ALIGN 16u

static int add_span(struct plan *plan, const struct span *span)
{
    if (plan->n_spans == plan->spans_room) {
        size_t room = plan->spans_room ? 2 * plan->spans_room : 64;
        struct span *spans = realloc(plan->spans, room * sizeof(*spans));
        if (!spans)
            return STOW_NOMEM;
        plan->spans = spans;
        plan->spans_room = room;
    }
    plan->spans[plan->n_spans++] = *span;
    return 0;
}

static int add_segment(struct plan *plan, const struct plan_segment *segment)
{
    if (!segment->n_spans)
        return 0;
    if (plan->n_segments == plan->segments_room) {
        size_t room = plan->segments_room ? 2 * plan->segments_room : 16;
        struct plan_segment *segments = realloc(plan->segments, room * sizeof(*segments));
        if (!segments)
            return STOW_NOMEM;
        plan->segments = segments;
        plan->segments_room = room;
    }
    plan->segments[plan->n_segments++] = *segment;
    if (segment->bytes > plan->max_bytes)
        plan->max_bytes = segment->bytes;
    if (segment->n_stored > plan->max_stored)
        plan->max_stored = segment->n_stored;
    if (segment->n_spans > plan->max_spans)
        plan->max_spans = segment->n_spans;
    plan->n_stored += segment->n_stored;
    return 0;
}

/* The frames from `first` on that fit one span, none of them at `end`. */
static struct span next_span(const struct source_index *index, uint64_t first, uint64_t end,
                             uint32_t *n_stored)
{
    struct span span = {.first = first};
    *n_stored = 0;
    while (first + span.n_frames < end && span.n_frames < SPAN_FRAMES) {
        const struct source_chunk *chunk = &index->chunks[first + span.n_frames];
        uint64_t bytes = chunk_is_stored(chunk) ? chunk->bytes : 0;
        if (span.n_frames && span.bytes + bytes > PLAN_SPAN_BYTES)
            break;
        *n_stored += bytes != 0;
        span.bytes += bytes;
        span.n_frames++;
    }
    return span;
}

static int cut_segment(struct plan *plan, const struct source_index *index, uint64_t first)
{
    uint64_t left = index->n_frames - first, end;
    uint32_t n_stored;
    struct plan_segment segment = {.first = first, .first_span = plan->n_spans};
    segment.n_frames = (uint32_t)(left < plan->segment_frames ? left : plan->segment_frames);
    end = first + segment.n_frames;
    while (first < end) {
        struct span span = next_span(index, first, end, &n_stored);
        first += span.n_frames;
        if (!span.bytes)
            continue;
        span.offset = segment.bytes;
        segment.bytes += (span.bytes + SPAN_ALIGN - 1) / SPAN_ALIGN * SPAN_ALIGN;
        segment.chunk_bytes += span.bytes;
        segment.n_stored += n_stored;
        segment.n_spans++;
        if (add_span(plan, &span))
            return STOW_NOMEM;
    }
    return add_segment(plan, &segment);
}

int plan_init(struct plan *plan, const struct source_index *index, const struct frame_shape *shape)
{
    *plan = (struct plan){.segment_frames = counts_segment_frames(shape->n_elems)};
    for (uint64_t first = 0; first < index->n_frames; first += plan->segment_frames) {
        if (cut_segment(plan, index, first))
            return STOW_NOMEM;
    }
    return 0;
}

void plan_fini(struct plan *plan)
{
    free(plan->spans);
    free(plan->segments);
}
