/* SPDX-License-Identifier: Apache-2.0
 *
 * image_masks: the weights of a sum: those that a client gave, then the annuli; flagged pixels at 0; and whether the sums
 * can overflow. On a thread of the pool: a mask may be large. */
#ifndef STOW_IMAGE_MASKS_H
#define STOW_IMAGE_MASKS_H

#include "image_batch.h"

/* weights: [n_sums][n_elems] of all->weights. STOW_INVALID (a memfd that is none, or too small; an annulus that is
 * none), STOW_LIMIT, STOW_IO. */
int masks_make(void *weights, const struct image_work *all, struct stow_error *err);

#endif
