/* SPDX-License-Identifier: Apache-2.0
 *
 * kept_load: a .stow file becomes a resident.
 *
 * What the file says is known already (kept_open). Blocks are read side by side on threads of libuv's pool, into
 * pinned memory or straight into place, held against their checksums there, and copied to the device; the tables of
 * segments and of bslz4 frames are made on the pool too. Frames are servable when all of it has come: a damaged
 * block ends the load, and is named. Loop thread only. */
#ifndef STOW_KEPT_LOAD_H
#define STOW_KEPT_LOAD_H

#include "kept.h"
#include "loader.h"

struct kept_load;

/* Fill the resident (its description here at once) and begin. *kept is taken over and left empty, also on failure; fd
 * and path stay the caller's, until on_done. on_progress tells bytes of the file. STOW_NOROOM, STOW_NOMEM: nothing was
 * begun. */
int kept_load_start(struct kept_load **load, uv_loop_t *loop, struct resident *resident,
                    struct kept *kept, int fd, const char *path,
                    const struct loader_callbacks *callbacks, struct stow_error *err);

/* Stop as soon as what is under way is done; on_done then says STOW_CANCELLED. */
void kept_load_cancel(struct kept_load *load);

#endif
