/* SPDX-License-Identifier: Apache-2.0
 *
 * arena: memory of a place that a request works in: on the device, and pinned host memory that copies run from and
 * to. Making it takes the device's service thread a while, so that one arena a place is kept for the next request, and
 * let go of when none has come for ARENA_IDLE_NS, or the store needs its room. It counts against the budget as long as
 * it is there.
 * On the host both are one, and only the first exists. Loop thread only. */
#ifndef STOW_ARENA_H
#define STOW_ARENA_H

#include "store.h"

#define ARENA_IDLE_NS UINT64_C(2000000000)

struct arena {
    struct arena *next;
    struct arenas *all;
    struct place *place;
    struct device_memory device, pinned;
    struct device_request requests[2];
    unsigned n_requests;
    uint64_t charged, idle_ns;
    struct stow_error err; /* code not 0: it could not be had; to be given back all the same */
    void (*ready)(void *data);
    void *data;
};

struct arenas {
    struct store *store;
    uv_timer_t timer;
    struct arena *idle;
    bool closing;
};

void arenas_init(struct arenas *arenas, uv_loop_t *loop, struct store *store);
/* Keep none from here on. store_is_idle tells when all are gone. */
void arenas_clear(struct arenas *arenas);

/* An arena of at least so many bytes. n_requests 0: it is there; else ready is called when it is, or err tells
 * why not. STOW_NOROOM with the sentence, STOW_NOMEM. */
int arena_take(struct arena **arena, struct arenas *arenas, struct place *place,
               uint64_t device_bytes, uint64_t pinned_bytes, void (*ready)(void *data), void *data,
               struct stow_error *err);
void arena_give(struct arena *arena);

#endif
