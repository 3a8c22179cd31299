/* SPDX-License-Identifier: Apache-2.0
 *
 * kept_open: find out on a thread of libuv's pool whether a file is a .stow file, and read its header and tables.
 * Loop thread only. */
#ifndef STOW_KEPT_OPEN_H
#define STOW_KEPT_OPEN_H

#include "kept.h"

#include <uv.h>

struct kept_open;

/* The descriptor is the callee's again. *kept is what the file says, moved out by the callee, or of no frames when it
 * is no .stow file; err->code not 0: it is one that cannot be read, *kept is empty. */
typedef void (*kept_open_fn)(void *data, int fd, struct kept *kept, const struct stow_error *err);

/* fd is the opening's until done, which is called once and from the loop; on failure (STOW_NOMEM) it is closed.
 * path is for sentences. */
int kept_open_start(struct kept_open **open, uv_loop_t *loop, int fd, const char *path,
                    kept_open_fn done, void *data);

/* done will not be called; the descriptor is closed once the read has come back. */
void kept_open_cancel(struct kept_open *open);

/* Files whose read has not come back. Zero before the loop ends. */
unsigned kept_open_count(void);

/* All of it from a file: 0, or why not (STOW_SOURCE where it ends before). Any thread. */
int kept_pread(int fd, const char *path, uint8_t *to, uint64_t bytes, uint64_t at,
               struct stow_error *err);

#endif
