/* SPDX-License-Identifier: Apache-2.0
 *
 * cli_picture: an array of two dimensions as a grey picture to look at: scaled from the least value (black) to the largest
 * (white), NaN black, small ones enlarged by a whole number, and beside it a bar of the greys with both values. */
#ifndef STOW_CLI_PICTURE_H
#define STOW_CLI_PICTURE_H

#include "cli_out.h"

#define CLI_PICTURE_MAX 65500u

struct cli_picture {
    uint8_t *grey; /* [height][width] */
    uint32_t width, height;
};

/* Two dimensions, none of them 0 or too long. */
bool cli_picture_fits(const struct cli_array *array);

/* Of one that fits. false: no memory; to be freed either way. */
bool cli_picture_draw(struct cli_picture *picture, const struct cli_array *array);
void cli_picture_free(struct cli_picture *picture);

#endif
