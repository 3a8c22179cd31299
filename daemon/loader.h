/* SPDX-License-Identifier: Apache-2.0
 *
 * loader: an indexed source becomes a resident.
 *
 * The frames are taken in order in segments (plan.h), and those are read in spans of up to PLAN_SPAN_BYTES.
 * Threads of libuv's pool read a span and find the blocks of each chunk; the loop uploads the bytes into the
 * scratch of an encoder, which takes the segment from there to servable frames. Some encoders work at once:
 * while one segment is encoded the next is decoded and the one after it is read. On a device whose memory the host
 * sees, a span is read straight into the scratch.
 *
 * Scratch is no part of the place's budget. Where the device has not as much, it is made smaller, down to one
 * frame's; what is loaded is the same.
 *
 * A frame that cannot be read or decoded is marked bad, with the reason; the others go on. The load as a
 * whole fails for want of room, when the device is lost, or when a file changed while it was read.
 * Loop thread only; the pool touches nothing but its span and its segment. */
#ifndef STOW_LOADER_H
#define STOW_LOADER_H

#include "encoding.h"

struct loader;

struct loader_options {
    struct keep keep;
    struct encoding_limits limits;
};

struct loader_callbacks {
    void *data;
    void (*on_progress)(void *data, uint64_t frames, uint64_t bytes);
    /* Once, at the end: 0, STOW_CANCELLED, or what went wrong. The loader is gone after it. */
    void (*on_done)(void *data, int status, const struct stow_error *err);
};

/* Fill the resident (its description and frame table from the source's index, here at once) and begin.
 * The source must stay until on_done. options may be NULL. STOW_NOROOM, STOW_NOMEM, STOW_UNSUPPORTED (a form that
 * is asked for cannot hold the frames): nothing was begun. */
int loader_start(struct loader **loader, uv_loop_t *loop, struct resident *resident,
                 const struct source *source, const struct loader_options *options,
                 const struct loader_callbacks *callbacks, struct stow_error *err);

/* Stop as soon as what is under way is done; on_done then says STOW_CANCELLED. */
void loader_cancel(struct loader *loader);

#endif
