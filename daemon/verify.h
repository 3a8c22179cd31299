/* SPDX-License-Identifier: Apache-2.0
 *
 * verify: a resident is compared with its source, count by count.
 *
 * The client opens the source's files again: the master first (need with file 0), then what it names. They are
 * indexed as for a load and must be of the size and time that they had. Then spans are read and decoded on the
 * device, the resident's frames are decoded beside them, and the device counts what differs. Frames that one side
 * cannot give are counted apart. The resident is not evicted meanwhile. Scratch is no part of the place's budget. Loop
 * thread only. */
#ifndef STOW_VERIFY_H
#define STOW_VERIFY_H

#include "loads.h"

struct verify;

struct verify_callbacks {
    void *data;
    void (*need)(void *data, uint32_t file, const char *path);
    void (*on_progress)(void *data, const struct stow_progress *progress);
    /* Once, at the end: code 0, or STOW_SOURCE (it has changed: what), STOW_MISSING, ... Gone after it. */
    void (*done)(void *data, const struct stow_verdict *verdict, const struct stow_error *err);
};

/* STOW_STATE (not loaded to the end), STOW_NOMEM: nothing was begun. Otherwise verify_begin begins. */
int verify_new(struct verify **verify, struct loads *loads, struct resident *resident,
               const struct verify_callbacks *callbacks, struct stow_error *err);
/* Asks for the master; may call done. */
void verify_begin(struct verify *verify);

/* A file that need asked for; fd -1 with errno_value if it cannot be opened. fd is the verify's. */
void verify_give(struct verify *verify, uint32_t file, int fd, const char *path, int errno_value);

/* Nobody is called any more; it ends when what is under way is done. */
void verify_cancel(struct verify *verify);

/* Those that are not gone. Zero before the loop ends. */
unsigned verify_count(void);

#endif
