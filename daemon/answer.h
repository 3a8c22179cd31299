/* SPDX-License-Identifier: Apache-2.0
 *
 * answer: parts of replies that more than one command sends. */
#ifndef STOW_ANSWER_H
#define STOW_ANSWER_H

#include "session.h"

#define ANSWER_MAX_TEXTS 64
#define ANSWER_MAX_RINGS 16

/* An Acquisition message with the memory that its lists point into. */
struct answer_acquisition {
    Stow__Acquisition message;
    ProtobufCBinaryData sources[ANSWER_MAX_TEXTS], warnings[ANSWER_MAX_TEXTS];
    Stow__Timing timings[8], *timing_rows[8];
    Stow__RingTable rings[ANSWER_MAX_RINGS], *ring_rows[ANSWER_MAX_RINGS];
    uint64_t forms[STOW_N_FORMS];
    char view[200]; /* what is to be said of the name's scan */
};

/* NULL: no memory. brief: without sources and warnings past the first, for lists. */
struct answer_acquisition *answer_acquisition_new(const struct name *name, bool brief);
void answer_acquisition_free(struct answer_acquisition *answer);

/* Memory kinds that this place can hand to this client, and why some cannot ("" if all can). */
unsigned memory_kinds_for(const struct session *session, const struct place *place);
const char *memory_note_for(const struct session *session, const struct place *place);

#endif
