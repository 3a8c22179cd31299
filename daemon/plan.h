/* SPDX-License-Identifier: Apache-2.0
 *
 * plan: how the frames of a source are cut into spans, and where the spans go.
 *
 * A piece of memory is planned for about 256 MiB of payload, with room behind it for the block tables that its
 * frames need at the usual block size; tables that do not fit there go to pieces of their own, planned as
 * they are needed. No frame straddles two pieces. The plan depends on the index alone. */
#ifndef STOW_PLAN_H
#define STOW_PLAN_H

#include "span.h"

/* What is read at once, unless a single frame is larger. */
#define PLAN_SPAN_BYTES (UINT64_C(8) << 20)

/* A piece of memory, as planned and, once it is asked for, as it is. Tables are put in from `tables_at` on. */
struct planned {
    uint64_t payload_bytes, bytes, tables_at;
    struct piece *piece;
    bool ready;
};

struct plan {
    struct span *spans; /* [n_spans] those that have bytes, in frame order */
    size_t n_spans, spans_room;
    struct planned
        *pieces; /* [n_pieces] n_payload of payload, then those of tables that did not fit */
    size_t n_pieces, pieces_room, n_payload;
};

/* 0 or STOW_NOMEM; plan_fini frees it either way. */
int plan_init(struct plan *plan, const struct source_index *index, const struct frame_shape *shape);
void plan_fini(struct plan *plan);

/* One more piece for tables, at the end. Pointers into pieces are of no more use. 0 or STOW_NOMEM. */
int plan_add_tables(struct plan *plan, uint64_t bytes);

#endif
