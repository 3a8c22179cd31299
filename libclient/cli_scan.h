/* SPDX-License-Identifier: Apache-2.0
 *
 * cli_scan: results in the shape of a scan that is not simply all frames: which frames those are, and room for the positions
 * that were not acquired. */
#ifndef STOW_CLI_SCAN_H
#define STOW_CLI_SCAN_H

#include "framestow.h"

#include <stdbool.h>
#include <stddef.h>

/* Positions of the scan; 0: there is none. */
uint64_t cli_scan_positions(const struct stow_info *info);

/* Its positions are the frames in their order, and all of them. */
bool cli_scan_is_all(const struct stow_info *info);

/* The frames of the positions that have one, in row-major order: from malloc. NULL: no memory. */
uint64_t *cli_scan_frames(const struct stow_info *info, size_t *n);

/* A copy of values [n_rows][n][each_bytes] with room for `positions` in each row; what is behind the first n is zero, or
 * for doubles not a number. NULL: no memory. */
void *cli_scan_pad(const void *values, size_t n_rows, size_t n, size_t positions, size_t each_bytes,
                   bool doubles);

#endif
