/* SPDX-License-Identifier: Apache-2.0
 *
 * commands_view: from a STREAM request to what stream.h is asked, and back: views, and regions of the scan. */
#ifndef STOW_COMMANDS_VIEW_H
#define STOW_COMMANDS_VIEW_H

#include "commands.h"

/* STOW_INVALID for what no view can be. */
int take_view(struct view_ask *ask, const Stow__View *view, struct stow_error *err);

/* What was agreed; it points into the plan. */
void put_view(Stow__View *to, struct view_plan *plan);

/* The ids of a region, row by row, from malloc. STOW_INVALID, STOW_RANGE, STOW_UNWRITTEN (not
 * acquired), STOW_LIMIT (over most), STOW_NOMEM. */
int take_region(uint64_t **ids, size_t *n_ids, const Stow__Region *region, const struct name *name,
                uint64_t most, struct stow_error *err);

#endif
