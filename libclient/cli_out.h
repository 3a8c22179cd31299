/* SPDX-License-Identifier: Apache-2.0
 *
 * cli_out: frames as a file, .npy of (n, det_y, det_x) or a .png of one. It is written beside
 * its place under another name and takes its place whole; on failure, and when the program is
 * interrupted, nothing is left. */
#ifndef STOW_CLI_OUT_H
#define STOW_CLI_OUT_H

#include "framestow.h"

#include <stdbool.h>

struct cli_out;

/* Whether the path ends in .npy or .png, and which. */
bool cli_out_known(const char *path, bool *picture);

/* Frames of this dtype and shape into a file at path. NULL: it said why not. */
struct cli_out *cli_out_open(const char *path, const char *dtype, const uint64_t frame[2]);

/* More frames, `bytes` in all; host memory. false: it said why not. */
bool cli_out_write(struct cli_out *out, const void *frames, size_t bytes);

/* The file takes its place, with what was written. Frees out. false: it said why not, nothing is
 * left. */
bool cli_out_publish(struct cli_out *out);

/* A whole array as a file at once: .npy, or of two dimensions a picture with a bar of its values. dtype: u1, u8, i8, f8.
 * false: it said why not, nothing is left. */
struct cli_array {
    const char *dtype;
    const void *values; /* C order */
    uint64_t shape[4];
    unsigned n_dims;
};
bool cli_out_array(const char *path, const struct cli_array *array);

/* Frees out and leaves nothing. NULL is allowed. */
void cli_out_drop(struct cli_out *out);

#endif
