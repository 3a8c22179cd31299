/* SPDX-License-Identifier: Apache-2.0
 *
 * cli_npy: masks from numpy's files: weights of bool, integer or float, of any byte order and layout, one of the
 * detector's shape or a stack of these. */
#ifndef STOW_CLI_NPY_H
#define STOW_CLI_NPY_H

#include "framestow.h"

#include <stdbool.h>

struct cli_masks {
    double *values; /* [n][detector y][detector x] */
    size_t n;
    bool negative, fractional; /* one of them is */
    double least, most;
};

/* Add the masks of a file, at most max in all. false: it said why not; what was there is still there. Integers beyond
 * 32 bits are refused, so that a double holds each weight. */
bool cli_masks_read(struct cli_masks *masks, const char *path, const uint64_t detector[2],
                    size_t max);

/* The weights as narrow as they can be; freed by the caller. NULL: no memory. */
void *cli_masks_pack(const struct cli_masks *masks, const uint64_t detector[2],
                     enum stow_weights *weights);
void cli_masks_free(struct cli_masks *masks);

#endif
