/* SPDX-License-Identifier: Apache-2.0
 *
 * describe: what a source's index says of an acquisition goes to the resident: shape, files, warnings, and
 * a frame table in which frames that have no bytes are settled (fill or bad) and the others are pending. */
#ifndef STOW_DESCRIBE_H
#define STOW_DESCRIBE_H

#include "source.h"
#include "store.h"

/* 0 or STOW_NOMEM; what was set goes with the resident either way. */
int describe_resident(struct resident *resident, const struct source_index *index);

/* Room for its segments, and for what is added up while it is loaded. Likewise.
 *   flags  uint8 [n_elems], not 0: flagged by the file; NULL: none */
int describe_segments(struct resident *resident, uint64_t segment_frames, const uint8_t *flags);

#endif
