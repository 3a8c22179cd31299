/* SPDX-License-Identifier: Apache-2.0
 *
 * reader_companion: the file that the program which steers the scan writes beside an ARINA master: BASE.h5 beside BASE_master.h5,
 * with the scan's shape as attributes. */
#ifndef STOW_READER_COMPANION_H
#define STOW_READER_COMPANION_H

#include "reader.h"
#include "reader_msg.h"

/* Where the master's own data say no scan, what its companion says, if that fits the frames; else a warning. True: a file was asked
 * for, the last one, and is not used. */
bool reader_companion(struct reader *reader, struct reader_shape *shape);

#endif
