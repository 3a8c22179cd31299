/* SPDX-License-Identifier: Apache-2.0
 *
 * image_masks: the weights of a sum: those that a client gave, then the annuli; flagged pixels at 0; and whether the sums
 * can overflow. On a thread of the pool: a mask may be large. */
#ifndef STOW_IMAGE_MASKS_H
#define STOW_IMAGE_MASKS_H

#include "images.h"

/* weights: [n_masks + n_annuli][n_elems] of ask->weights. STOW_INVALID (a memfd that is none, or too small; an
 * annulus that is none), STOW_LIMIT, STOW_IO. */
int masks_make(void *weights, const struct image_ask *ask, const struct resident *resident,
               struct stow_error *err);

#endif
