/* SPDX-License-Identifier: Apache-2.0
 *
 * kept_save: a resident is written to a .stow file.
 *
 * Happy path: the tables are described on a thread of libuv's pool, so that the file's length is known and the disk is
 * asked for all of it; `planned` is called. Hashes of the source's files are taken beside the rest. Blocks follow, some at once: what lies on a GPU is copied to the host,
 * and a pool thread puts frames side by side, takes the checksum and writes. Tables and header come last, then fsync
 * and `done`. The file is the asker's, who publishes it or lets go of it: until then it has no name, so that nobody
 * sees half of it. A resident that is being saved is not evicted. Loop thread only. */
#ifndef STOW_KEPT_SAVE_H
#define STOW_KEPT_SAVE_H

#include "kept_describe.h"

struct kept_save;

struct kept_save_options {
    struct kept_describing what;
    bool force; /* also where the file is larger than its source */
};

struct kept_save_callbacks {
    void *data;
    void (*planned)(void *data, uint64_t file_bytes); /* once, unless done comes before */
    /* With sha256: source files, one after the other; kept_save_give answers. */
    void (*need)(void *data, uint32_t file, const char *path);
    void (*on_progress)(void *data, const struct stow_progress *progress);
    /* Once, at the end, never from within kept_save_start: code 0 or what went wrong. The save is gone after it. */
    void (*done)(void *data, uint64_t file_bytes, const struct stow_error *err);
};

/* fd is an empty regular file that may be written, the save's from here on, also on failure. The resident must be
 * whole. STOW_INVALID, STOW_STATE, STOW_NOMEM: nothing was begun. */
int kept_save_start(struct kept_save **save, uv_loop_t *loop, struct resident *resident, int fd,
                    const struct kept_save_options *options,
                    const struct kept_save_callbacks *callbacks, struct stow_error *err);

/* A file that need asked for; fd -1 with errno_value if it cannot be opened. fd is the save's. */
void kept_save_give(struct kept_save *save, uint32_t file, int fd, int errno_value);

/* Nobody is called any more; it ends when what is under way is done. */
void kept_save_cancel(struct kept_save *save);

/* Saves that are not gone. Zero before the loop ends. */
unsigned kept_save_count(void);

#endif
