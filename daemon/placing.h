/* SPDX-License-Identifier: Apache-2.0
 *
 * placing: in which form each frame of a segment stays, and where.
 *
 * A frame is kept as counts where that is smaller than its chunk; a segment all of whose gain is less than its
 * table would take keeps its source form. Batches are given room as they are encoded; should it turn out at the
 * last one that the segment does not shrink, that room is free again and the segment starts over with its chunks.
 * Loop thread only. */
#ifndef STOW_PLACING_H
#define STOW_PLACING_H

#include "encoder.h"

/* Something that is copied to its place: the first is the job's. */
struct placing {
    enum { PLACE_TABLE, PLACE_COUNTS, PLACE_CHUNK, PLACE_PIXELS, PLACE_BLOCKS } what;
    uint32_t frame; /* which of the good ones */
};

/* The batch was encoded: choose its frames' forms. */
void placing_choose(struct encoder *encoder);

/* It is the segment's turn: list what is to be copied of the batch. */
void placing_list(struct encoder *encoder);

/* Give all of that room. 0, and *placed tells whether all of it has some, or is to be asked for again when a piece
 * has come; STOW_NOROOM, STOW_NOMEM. */
int placing_give_room(struct encoder *encoder, bool *placed, struct stow_error *err);

#endif
