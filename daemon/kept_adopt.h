/* SPDX-License-Identifier: Apache-2.0
 *
 * kept_adopt: what a .stow file says of an acquisition goes to the resident: shape, warnings, sums, models, what is
 * remembered of the source, and a frame table in which stored frames are pending. */
#ifndef STOW_KEPT_ADOPT_H
#define STOW_KEPT_ADOPT_H

#include "store.h"

/* Texts of the source and sums are moved out of *kept. 0 or STOW_NOMEM; what was set goes with the resident either
 * way. */
int kept_adopt(struct resident *resident, struct kept *kept);

#endif
