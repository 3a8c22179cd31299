/* SPDX-License-Identifier: Apache-2.0
 *
 * open_source: opens the files of an acquisition with this user's rights, and says exactly what
 * is in the way. Paths are bytes. Nothing but a regular file is ever handed on: a FIFO does not
 * hang the open, a terminal does not become the controlling one. Any thread. */
#ifndef STOW_OPEN_SOURCE_H
#define STOW_OPEN_SOURCE_H

#include "error.h"

#include <stddef.h>

/* Open for reading: a descriptor, with the path free of symbolic links in *real (freed by the
 * caller). STOW_MISSING, STOW_DENIED (naming the first folder that cannot be entered),
 * STOW_SOURCE (no regular file), STOW_IO; *why_errno is set with each. */
int open_source(const char *path, char **real, int *why_errno, struct stow_error *err);

/* The name that an acquisition gets from its master's path: the file's name without _master.h5.
 * The result points into path, and is *n bytes long. */
const char *open_source_name(const char *path, size_t *n);

/* The path of a file that a master names: as it is if absolute, else in the folder of the real
 * master. n: bytes of name, which has no NUL. NULL: out of memory. */
char *open_source_beside(const char *real_master, const char *name, size_t n);

#endif
