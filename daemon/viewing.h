/* SPDX-License-Identifier: Apache-2.0
 *
 * viewing: what a stream with a view has besides its ring. Frames are decoded into scratch, some at a time, and shown
 * from there into the slot by work of the same lane, which is in order: the next ones may be put behind it at once.
 *
 *   scratch  on the device, zeroed when made and this stream's alone, so that a frame that fails to decode shows nothing
 *            of others': decoded frames, then the detector's flags
 *   marks    seen by both sides: of each frame of each slot whether it fits; the flags on their way to the scratch
 *
 * Both are charged to the place's budget until they are freed. For stream.c and fill.c alone. */
#ifndef STOW_VIEWING_H
#define STOW_VIEWING_H

#include "view_plan.h"

struct viewing {
    struct view_plan plan;
    uint64_t frame_stride; /* in the scratch */
    uint32_t step;         /* frames decoded at a time */
    struct device_memory scratch, marks;
    uint64_t scratch_bytes, marks_bytes, charged;
    uint64_t flags_at, flags_from; /* in the scratch; behind the marks */
    bool has_flags, flags_sent;
    /* a slot of which not all steps are under way */
    bool filling;
    uint32_t slot, next; /* its next frame */

    /* its own */
    struct device_request requests[2];
    unsigned n_requests;
    struct stow_error err;
    void (*done)(void *data);
    void *data;
};

/* Sizes, for a stream whose slots are chosen. The resident's flags may be NULL. */
void viewing_size(struct viewing *viewing, const struct place *place,
                  const struct resident *resident, uint32_t n_slots, uint32_t batch);

/* Have the memory made; done is called once it is there, or cannot be had: err.code is not 0 then. */
void viewing_alloc(struct viewing *viewing, struct place *place, void (*done)(void *data),
                   void *data);
/* Give back what there is; done is called once it is gone. */
void viewing_free(struct viewing *viewing, struct place *place, void (*done)(void *data),
                  void *data);

/* Send the flags, where there are any, once; asked again after STOW_BUSY. */
int viewing_send_flags(struct viewing *viewing, struct lane *lane, const struct resident *resident);

/* What to run on n frames that lie decoded in the scratch: their marks are from number `mark` on, and are cleared here;
 * results go to dst. */
struct work viewing_work(const struct viewing *viewing, uint64_t mark, uint32_t n, uint64_t dst);

/* The mark of a frame once that has run: 0, or STOW_NOFIT. */
int viewing_mark(const struct viewing *viewing, uint64_t mark);

#endif
