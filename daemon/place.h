/* SPDX-License-Identifier: Apache-2.0
 *
 * place: where acquisitions can lie: a device, its lanes, and its budget of bytes, on the loop.
 *
 * A place polls its device from the loop: while work is under way the loop turns without sleeping for
 * PLACE_SPIN_NS after the last submission, and queries; past that the device's own thread wakes it.
 * The budget is a cap on residents and rings together, counted when memory is asked for and given back
 * when it is to be freed: the device's service thread works in order, so the room is there in time.
 * Loop thread only. */
#ifndef STOW_PLACE_H
#define STOW_PLACE_H

#include "staging.h"

#include <uv.h>

#define PLACE_N_BULK 2
#define PLACE_N_ENCODING 2
#define PLACE_SPIN_NS 200000u
/* A launch of up to so many frames takes the urgent lane. */
#define PLACE_URGENT_FRAMES 64u

/* Somebody whose work a lane had no room for. */
struct place_retry {
    struct place_retry *next;
    void (*retry)(struct place_retry *retry);
    bool waiting;
};

struct place {
    struct device *device;
    struct lane *loading, *urgent, *bulk[PLACE_N_BULK], *encoding[PLACE_N_ENCODING];
    unsigned next_bulk;
    struct staging staging;         /* GPU only */
    uint64_t max_bytes, used_bytes; /* budget, and what is counted against it */
    uv_async_t async;
    uv_idle_t idle;
    uint64_t submitted_ns; /* when work was last put under way */
    bool spinning;
    struct place_retry *retries;
    void (*on_lost)(struct place *place); /* the device can serve no more */
    void *data;
};

struct place_options {
    const char *device;
    uint64_t max_bytes;   /* 0: half of the device's memory */
    unsigned threads;     /* host */
    size_t staging_bytes; /* of one staging buffer */
};

/* Open the device and its lanes. The place must not move. On failure nothing is left open. */
int place_open(struct place *place, uv_loop_t *loop, const struct place_options *options,
               struct stow_error *err);

/* All memory must be freed. The struct may be let go of once the loop has run its close callbacks. */
void place_close(struct place *place);

/* The lane for a batch of n frames. */
struct lane *place_lane(struct place *place, size_t n_frames);

/* Work was put under way: look for its end without sleeping for a while. */
void place_submitted(struct place *place);

/* After STOW_BUSY: be called once something is finished, when it is worth trying again. */
void place_wait(struct place *place, struct place_retry *retry);
void place_unwait(struct place *place, struct place_retry *retry);

/* Count bytes against the budget. False, and nothing counted, when they do not fit. */
bool place_charge(struct place *place, uint64_t bytes);
void place_uncharge(struct place *place, uint64_t bytes);
uint64_t place_free_bytes(const struct place *place);

#endif
