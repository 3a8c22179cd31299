/* SPDX-License-Identifier: Apache-2.0
 *
 * staging: pinned buffers that uploads run from, made once before the daemon is ready and shared by all
 * loads of a place. A loader that finds none is told when one is given back. Loop thread only. */
#ifndef STOW_STAGING_H
#define STOW_STAGING_H

#include "device.h"

#define STAGING_SLOTS 32u

struct staging_waiter {
    struct staging_waiter *next;
    void (*ready)(struct staging_waiter *waiter);
    bool waiting;
};

struct staging {
    struct device *device;
    struct device_memory memory;
    size_t slot_bytes;
    uint8_t *free[STAGING_SLOTS];
    size_t n_free;
    struct staging_waiter *waiters;
};

/* Waits for the device's service thread: for the daemon's start. On failure nothing is left. */
int staging_init(struct staging *staging, struct device *device, size_t slot_bytes,
                 struct stow_error *err);
void staging_fini(struct staging *staging);

/* A buffer of slot_bytes, or NULL; then the waiter's ready is called once when one may be had. */
uint8_t *staging_take(struct staging *staging, struct staging_waiter *waiter);
void staging_give(struct staging *staging, uint8_t *slot);
/* The waiter goes away. */
void staging_forget(struct staging *staging, struct staging_waiter *waiter);

#endif
