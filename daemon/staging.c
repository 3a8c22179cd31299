/* SPDX-License-Identifier: Apache-2.0 */
#include "staging.h"

#include <time.h>

static void on_request(struct device_request *request)
{
    *(bool *)request->data = true;
}

static void wait_for(struct device *device, const bool *done)
{
    while (!*done) {
        device_poll(device);
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
}

int staging_init(struct staging *staging, struct device *device, size_t slot_bytes,
                 struct stow_error *err)
{
    *staging = (struct staging){.device = device, .slot_bytes = slot_bytes};
    bool done = false;
    struct device_request request = {.done = on_request, .data = &done};
    device_alloc(device, &staging->memory, MEMORY_STAGING, STAGING_SLOTS * slot_bytes, &request);
    wait_for(device, &done);
    if (request.status) {
        if (err)
            *err = request.err;
        return request.status;
    }
    for (size_t i = 0; i < STAGING_SLOTS; i++)
        staging->free[staging->n_free++] = staging->memory.host + i * slot_bytes;
    return 0;
}

void staging_fini(struct staging *staging)
{
    if (!staging->memory.bytes)
        return;
    bool done = false;
    struct device_request request = {.done = on_request, .data = &done};
    device_free(staging->device, &staging->memory, &request);
    wait_for(staging->device, &done);
}

uint8_t *staging_take(struct staging *staging, struct staging_waiter *waiter)
{
    if (staging->n_free)
        return staging->free[--staging->n_free];
    if (!waiter->waiting) {
        waiter->waiting = true;
        waiter->next = staging->waiters;
        staging->waiters = waiter;
    }
    return NULL;
}

void staging_forget(struct staging *staging, struct staging_waiter *waiter)
{
    for (struct staging_waiter **at = &staging->waiters; *at; at = &(*at)->next) {
        if (*at == waiter) {
            *at = waiter->next;
            break;
        }
    }
    waiter->waiting = false;
}

void staging_give(struct staging *staging, uint8_t *slot)
{
    staging->free[staging->n_free++] = slot;
    struct staging_waiter *waiter = staging->waiters;
    if (!waiter)
        return;
    staging_forget(staging, waiter);
    waiter->ready(waiter);
}
