/* SPDX-License-Identifier: Apache-2.0 */
#include "plan.h"

#include <stdlib.h>

#define PIECE_BYTES (UINT64_C(256) << 20)
#define SPAN_FRAMES 2048u
#define USUAL_BLOCK_BYTES 8192u
#define TABLE_ALIGN 16u

static int add_piece(struct plan *plan, uint64_t bytes)
{
    if (plan->n_pieces == plan->pieces_room) {
        size_t room = plan->pieces_room ? 2 * plan->pieces_room : 8;
        struct planned *pieces = realloc(plan->pieces, room * sizeof(*pieces));
        if (!pieces)
            return STOW_NOMEM;
        plan->pieces = pieces;
        plan->pieces_room = room;
    }
    plan->pieces[plan->n_pieces++] = (struct planned){.bytes = bytes};
    return 0;
}

int plan_add_tables(struct plan *plan, uint64_t bytes)
{
    return add_piece(plan, bytes);
}

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

/* The frames from `first` on that fit one span; its offset and piece are not set. */
static struct span next_span(const struct source_index *index, uint64_t first)
{
    struct span span = {.first = first};
    while (first + span.n_frames < index->n_frames && span.n_frames < SPAN_FRAMES) {
        const struct source_chunk *chunk = &index->chunks[first + span.n_frames];
        uint64_t bytes = chunk_is_stored(chunk) ? chunk->bytes : 0;
        if (span.n_frames && span.bytes + bytes > PLAN_SPAN_BYTES)
            break;
        span.bytes += bytes;
        span.n_frames++;
    }
    return span;
}

/* Put the span behind what its piece holds so far, or into a new piece. */
static int place_span(struct plan *plan, struct span *span, uint64_t table_bytes)
{
    struct planned *last = plan->n_pieces ? &plan->pieces[plan->n_pieces - 1] : NULL;
    if (!last || last->payload_bytes + span->bytes > PIECE_BYTES) {
        if (add_piece(plan, 0))
            return STOW_NOMEM;
        last = &plan->pieces[plan->n_pieces - 1];
    }
    span->piece = (uint32_t)(plan->n_pieces - 1);
    span->offset = last->payload_bytes;
    last->payload_bytes += span->bytes;
    last->tables_at = (last->payload_bytes + TABLE_ALIGN - 1) / TABLE_ALIGN * TABLE_ALIGN;
    last->bytes += span->bytes + span->n_frames * table_bytes + TABLE_ALIGN;
    return add_span(plan, span);
}

int plan_init(struct plan *plan, const struct source_index *index, const struct frame_shape *shape)
{
    uint64_t table_bytes = (frame_bytes(shape) / USUAL_BLOCK_BYTES + 2) * sizeof(uint32_t);
    *plan = (struct plan){.n_spans = 0};
    for (uint64_t first = 0; first < index->n_frames;) {
        struct span span = next_span(index, first);
        first += span.n_frames;
        if (span.bytes && place_span(plan, &span, table_bytes))
            return STOW_NOMEM;
    }
    plan->n_payload = plan->n_pieces;
    return 0;
}

void plan_fini(struct plan *plan)
{
    free(plan->spans);
    free(plan->pieces);
}
