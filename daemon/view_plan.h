/* SPDX-License-Identifier: Apache-2.0
 *
 * view_plan: from what a consumer wants to see of each frame to the numbers that kernels go by (view.h), or the
 * sentence why not. What is agreed is told back in full. Loop thread only. */
#ifndef STOW_VIEW_PLAN_H
#define STOW_VIEW_PLAN_H

#include "store.h"

/* Zeros ask for nothing. */
struct view_ask {
    enum view_correction correction;
    uint64_t crop_y, crop_x, crop_h, crop_w;
    uint32_t bin;
    bool root;
    char dtype[8];
    uint64_t pad_y, pad_x;
    bool shift;
};

struct view_plan {
    struct view view;
    char dtype[8]; /* of the result */
    bool shifted;
    uint64_t n_flagged; /* pixels that are shown and corrected */
    uint64_t n_kept;    /* that would be, but have no neighbour to go by */
};

#define VIEW_MAX_SIDE 65536u /* of what is padded */

/* STOW_INVALID, or STOW_UNSUPPORTED for what pixels of this dtype do not take. */
int view_plan_make(struct view_plan *plan, const struct view_ask *ask,
                   const struct resident *resident, struct stow_error *err);

#endif
