/* SPDX-License-Identifier: Apache-2.0 */
#include "arena.h"

#include <stdlib.h>

#define LOOK_EVERY_MS 500

static void on_freed(struct device_request *request)
{
    struct arena *arena = request->data;
    if (--arena->n_requests)
        return;
    arena->all->store->n_freeing--;
    free(arena);
}

static void arena_free(struct arena *arena)
{
    struct device *device = arena->place->device;
    struct device_memory *memories[] = {&arena->device, &arena->pinned};
    place_uncharge(arena->place, arena->charged);
    arena->all->store->n_freeing++;
    arena->n_requests = 1; /* until all are asked for */
    for (int i = 0; i < 2; i++) {
        if (!memories[i]->bytes)
            continue;
        arena->n_requests++;
        arena->requests[i] = (struct device_request){.done = on_freed, .data = arena};
        device_free(device, memories[i], &arena->requests[i]);
    }
    struct device_request none = {.data = arena};
    on_freed(&none);
}

static void on_timer(uv_timer_t *timer)
{
    struct arenas *arenas = timer->data;
    uint64_t now = uv_hrtime();
    for (struct arena **at = &arenas->idle; *at;) {
        struct arena *arena = *at;
        if (now - arena->idle_ns < ARENA_IDLE_NS) {
            at = &arena->next;
            continue;
        }
        *at = arena->next;
        arena_free(arena);
    }
    if (!arenas->idle)
        uv_timer_stop(timer);
}

static uint64_t idle_bytes(void *data, const struct place *place)
{
    const struct arenas *arenas = data;
    uint64_t bytes = 0;
    for (const struct arena *arena = arenas->idle; arena; arena = arena->next)
        bytes += arena->place == place ? arena->charged : 0;
    return bytes;
}

static void give_idle(void *data, const struct place *place)
{
    struct arenas *arenas = data;
    for (struct arena **at = &arenas->idle; *at;) {
        struct arena *arena = *at;
        if (arena->place != place) {
            at = &arena->next;
            continue;
        }
        *at = arena->next;
        arena_free(arena);
    }
}

void arenas_init(struct arenas *arenas, uv_loop_t *loop, struct store *store)
{
    *arenas = (struct arenas){.store = store};
    store->spare = (struct spare){.bytes = idle_bytes, .give = give_idle, .data = arenas};
    uv_timer_init(loop, &arenas->timer);
    arenas->timer.data = arenas;
}

void arenas_clear(struct arenas *arenas)
{
    arenas->closing = true;
    while (arenas->idle) {
        struct arena *arena = arenas->idle;
        arenas->idle = arena->next;
        arena_free(arena);
    }
}

static struct arena *take_idle(struct arenas *arenas, const struct place *place,
                               uint64_t device_bytes, uint64_t pinned_bytes)
{
    for (struct arena **at = &arenas->idle; *at; at = &(*at)->next) {
        struct arena *arena = *at;
        if (arena->place != place || arena->device.bytes < device_bytes ||
            arena->pinned.bytes < pinned_bytes)
            continue;
        *at = arena->next;
        return arena;
    }
    return NULL;
}

static void on_request(struct device_request *request)
{
    struct arena *arena = request->data;
    if (request->status && !arena->err.code)
        arena->err = request->err;
    if (--arena->n_requests == 0)
        arena->ready(arena->data);
}

static void ask(struct arena *arena, int which, struct device_memory *memory, enum memory_kind kind,
                uint64_t bytes)
{
    if (!bytes)
        return;
    arena->n_requests++;
    arena->requests[which] = (struct device_request){.done = on_request, .data = arena};
    device_alloc(arena->place->device, memory, kind, bytes, &arena->requests[which]);
}

int arena_take(struct arena **out, struct arenas *arenas, struct place *place,
               uint64_t device_bytes, uint64_t pinned_bytes, void (*ready)(void *data), void *data,
               struct stow_error *err)
{
    bool is_gpu = device_info(place->device)->is_gpu;
    struct shortage shortage;
    pinned_bytes = is_gpu ? pinned_bytes : 0;
    *out = take_idle(arenas, place, device_bytes, pinned_bytes);
    if (*out)
        return 0;
    uint64_t charge = piece_charge(device_bytes);
    int rc = store_make_room(arenas->store, place, charge, &shortage);
    if (rc)
        return shortage_error(&shortage, place, err);
    struct arena *arena = calloc(1, sizeof(*arena));
    if (!arena)
        return error_set(err, STOW_NOMEM, "no memory for a request");
    place_charge(place, charge);
    *arena = (struct arena){
        .all = arenas, .place = place, .charged = charge, .ready = ready, .data = data};
    ask(arena, 0, &arena->device, is_gpu ? MEMORY_RESIDENT : MEMORY_STAGING, device_bytes);
    ask(arena, 1, &arena->pinned, MEMORY_STAGING, pinned_bytes);
    *out = arena;
    return 0;
}

/* Of two of one place the larger is kept. */
static bool is_smaller(const struct arena *arena)
{
    for (struct arena **at = &arena->all->idle; *at; at = &(*at)->next) {
        struct arena *other = *at;
        if (other->place != arena->place)
            continue;
        if (other->device.bytes >= arena->device.bytes &&
            other->pinned.bytes >= arena->pinned.bytes)
            return true;
        *at = other->next;
        arena_free(other);
        return false;
    }
    return false;
}

void arena_give(struct arena *arena)
{
    struct arenas *arenas = arena->all;
    if (arenas->closing || arena->err.code || device_lost(arena->place->device) ||
        is_smaller(arena)) {
        arena_free(arena);
        return;
    }
    arena->idle_ns = uv_hrtime();
    arena->next = arenas->idle;
    arenas->idle = arena;
    if (!uv_is_active((uv_handle_t *)&arenas->timer))
        uv_timer_start(&arenas->timer, on_timer, LOOK_EVERY_MS, LOOK_EVERY_MS);
}
