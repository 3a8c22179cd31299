/* SPDX-License-Identifier: Apache-2.0
 *
 * reader_mask: the detector's pixel mask, where the master has one of the frames' shape: which pixels are flagged
 * as dead, hot or not there at all. It is never the reason why a load fails: one that cannot be used is a warning,
 * and no pixel is flagged. */
#ifndef STOW_READER_MASK_H
#define STOW_READER_MASK_H

#include "reader.h"
#include "reader_msg.h"

/* uint8 [det_y * det_x], not 0: flagged; to be freed. NULL: there is no mask, or none that flags anything. */
uint8_t *reader_mask(struct reader *reader, const struct reader_shape *shape);

#endif
