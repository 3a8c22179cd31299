/* SPDX-License-Identifier: Apache-2.0
 *
 * reader_join: one acquisition of several parts: each opened, described, indexed and shut in its
 * turn, then put in a row. A part whose file is missing or cannot be opened is left out at the
 * end of the row, with a warning; between others it makes a hole, which is refused, or filled
 * with bad frames where the user allows gaps. Parts that are not alike are refused, naming both. */
#ifndef STOW_READER_JOIN_H
#define STOW_READER_JOIN_H

#include "reader_find.h"
#include "reader_table.h"

/* The shape, and the table of all frames, finished; it is to be freed, also after a failure. */
int reader_join(struct reader *reader, struct reader_part *parts, size_t n_parts,
                struct reader_shape *shape, struct reader_table *table, struct stow_error *err);

#endif
