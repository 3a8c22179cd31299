/* SPDX-License-Identifier: Apache-2.0
 *
 * image_rings: annuli answered from tables of ring sums (ring_tables.h), and the making of such a table: a request of
 * its own, IMAGE_RINGS, over all frames, on whose end the one that wanted it waits. */
#ifndef STOW_IMAGE_RINGS_H
#define STOW_IMAGE_RINGS_H

#include "image.h"

/* Hold the tables of all annuli, as far as they are there. True: every sum of the request is to be had from them; the
 * image then has a file for its results, if one lay ready. */
bool image_rings_take(struct image *image);

/* Begin to make the first table that is missing; the image goes on by itself once it is made or cannot be. False: there
 * is none to be made, and no_rings says why. */
bool image_rings_make(struct image *image);

/* Of frames begin up to end of the request, to the image's file. Any thread. */
int image_rings_answer(const struct image *image, uint64_t begin, uint64_t end, uint64_t *n_bad,
                       struct stow_error *err);

/* Let go of what is held; another file is made for the next. */
void image_rings_free(struct image *image);

#endif
