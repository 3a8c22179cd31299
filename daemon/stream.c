/* SPDX-License-Identifier: Apache-2.0 */
#include "stream.h"

#include "fill.h"
#include "metrics.h"
#include "order.h"

#define LOG_MODULE "stream"
#include "log.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define SLOT_ALIGN 512u
#define PAGE_BYTES 4096u
#define RING_BYTES_GPU (UINT64_C(256) << 20)
#define RING_BYTES_HOST \
    (UINT64_C(8) << 20) /* stays in the caches; populating more costs more than it gains */
#define DEFAULT_SLOTS 4u

static const uint16_t next_states[] = {
    [STREAM_OPENING] = 1u << STREAM_OFFERED | 1u << STREAM_CLOSING,
    [STREAM_OFFERED] = 1u << STREAM_RUNNING | 1u << STREAM_CLOSING,
    [STREAM_RUNNING] = 1u << STREAM_CLOSING,
    [STREAM_CLOSING] = 1u << STREAM_CLOSED,
    [STREAM_CLOSED] = 0,
};

static void move(struct stream *stream, enum stream_state state)
{
    assert(next_states[stream->state] & 1u << state);
    stream->state = state;
}

/* ---- opening ---- */

static void on_changed(struct watch *watch)
{
    stream_pump((struct stream *)((char *)watch - offsetof(struct stream, watch)));
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Sizes of the ring: what was asked, else a share of the device that serves well. */
static void choose_sizes(struct stream *stream)
{
    const struct device_info *info = device_info(stream->place->device);
    uint64_t ring = info->is_gpu ? least(RING_BYTES_GPU, info->total_bytes / 50) : RING_BYTES_HOST;
    ring = least(ring, stream->place->max_bytes / 8);
    uint64_t slots = stream->options.slots ? stream->options.slots : DEFAULT_SLOTS;
    uint64_t batch = stream->options.batch;
    uint64_t bytes = stream->frame_bytes ? stream->frame_bytes : 1;
    if (!batch)
        batch = ring / slots / bytes;
    batch = least(least(batch, STREAM_MAX_BATCH), stream->end ? stream->end : 1);
    if (!batch)
        batch = 1;
    if (!stream->options.slots && slots * batch > ring / bytes) /* large frames, or a large batch */
        slots = ring / bytes / batch > 2 ? ring / bytes / batch : 2;
    if (!stream->options.slots && stream->end != UINT64_MAX) /* no more than are ever filled */
        slots = least(slots, stream->end ? (stream->end + batch - 1) / batch : 1);
    stream->batch = (uint32_t)batch;
    stream->n_slots = (uint32_t)slots;
    stream->slot_stride = (batch * stream->frame_bytes + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN;
    if (!stream->slot_stride)
        stream->slot_stride = SLOT_ALIGN;
    stream->ring_bytes = slots * stream->slot_stride;
    if (stream->options.memory ==
        MEMORY_HOST_FD) /* what it takes of the device, in the units of its kind */
        stream->ring_bytes = (stream->ring_bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    else
        stream->ring_bytes = piece_charge(stream->ring_bytes);
}

/* The first id that the resident does not have, if there is one. */
static bool find_past_end(const struct stream_options *o, uint64_t n, uint64_t *id)
{
    if (o->order == STOW_ORDER_LIST) {
        for (size_t i = 0; i < o->n_ids; i++) {
            *id = o->ids[i];
            if (*id >= n)
                return true;
        }
        return false;
    }
    *id = o->first > n ? o->first : n;
    return o->first > n || o->count > n - o->first;
}

static int check_range(const struct resident *resident, const char *name,
                       const struct stream_options *o, struct stow_error *err)
{
    uint64_t n = resident->n_frames, id;
    if (!find_past_end(o, n, &id))
        return 0;
    if (!n)
        return error_set(err, STOW_RANGE, "frame %llu is past the end: %s has no frames",
                         (unsigned long long)id, name);
    return error_set(err, STOW_RANGE, "frame %llu is past the end: %s has frames 0 to %llu",
                     (unsigned long long)id, name, (unsigned long long)n - 1);
}

static int check_options(const struct stream_options *o, struct stow_error *err)
{
    if (o->batch > STREAM_MAX_BATCH || o->slots > STREAM_MAX_SLOTS)
        return error_set(err, STOW_INVALID, "%u frames in each of %u slots: the most is %u in %u",
                         o->batch, o->slots, STREAM_MAX_BATCH, STREAM_MAX_SLOTS);
    if (o->rank >= o->world)
        return error_set(err, STOW_INVALID, "rank %u of %u", o->rank, o->world);
    return 0;
}

static int make_slots(struct stream *stream)
{
    size_t n = (size_t)stream->n_slots * stream->batch;
    stream->slots = calloc(stream->n_slots, sizeof(*stream->slots));
    stream->slot_ids = malloc(n * sizeof(*stream->slot_ids));
    stream->slot_status = malloc(n * sizeof(*stream->slot_status));
    if (!stream->slots || !stream->slot_ids || !stream->slot_status)
        return STOW_NOMEM;
    for (uint32_t i = 0; i < stream->n_slots; i++) {
        stream->slots[i].ids = stream->slot_ids + (size_t)i * stream->batch;
        stream->slots[i].status = stream->slot_status + (size_t)i * stream->batch;
    }
    return 0;
}

static void stream_free(struct stream *stream)
{
    while (stream->wishes) {
        struct wish *wish = stream->wishes;
        stream->wishes = wish->next;
        wish_free(wish);
    }
    free(stream->options.ids);
    free(stream->viewing);
    free(stream->slots);
    free(stream->slot_ids);
    free(stream->slot_status);
    free(stream);
}

static void on_offered(struct device_request *request)
{
    struct stream *stream = request->data;
    if (stream->state != STREAM_OPENING) { /* it was closed meanwhile */
        stream->n_filling--;
        stream_close_when_idle(stream);
        return;
    }
    stream->n_filling--;
    if (!request->status)
        move(stream, STREAM_OFFERED);
    stream->callbacks.on_open(stream->callbacks.data, stream,
                              request->status ? &request->err : NULL);
}

/* Write the nonce to the ring's start. A lane that is full is tried again, with what it has not taken yet. */
static void offer(struct stream *stream)
{
    struct device_request *request = &stream->request;
    int rc = 0;
    if (!stream->nonce_sent)
        rc = lane_upload(stream->lane, stream->memory.dev, stream->nonce, sizeof(stream->nonce));
    if (!rc) {
        stream->nonce_sent = true;
        rc = stream->viewing ? viewing_send_flags(stream->viewing, stream->lane, stream->resident)
                             : 0;
    }
    if (!rc) {
        rc = lane_fence(stream->lane, request);
    }
    if (!rc) {
        place_submitted(stream->place);
    } else if (rc == STOW_BUSY) {
        place_wait(stream->place, &stream->retry);
    } else {
        request->status = error_set(&request->err, rc, "the device refused work");
        on_offered(request);
    }
}

static void on_viewing(void *data)
{
    struct stream *stream = data;
    stream->request.status = stream->viewing->err.code;
    stream->request.err = stream->viewing->err;
    if (stream->request.status)
        on_offered(&stream->request);
    else
        offer(stream);
}

static void on_ring(struct device_request *request)
{
    struct stream *stream = request->data;
    request->done = on_offered;
    if (request->status)
        on_offered(request);
    else if (stream->viewing)
        viewing_alloc(stream->viewing, stream->place, on_viewing, stream);
    else
        offer(stream);
}

/* The lane has room again. */
static void on_retry(struct place_retry *retry)
{
    struct stream *stream = (struct stream *)((char *)retry - offsetof(struct stream, retry));
    if (stream->refused)
        fill_retry(stream);
    else
        offer(stream);
}

static void start(struct stream *stream)
{
    struct stream_options *o = &stream->options;
    uint64_t n = o->order == STOW_ORDER_LIST ? o->n_ids : o->count;
    stream->end = o->order == STOW_ORDER_REQUEST ? UINT64_MAX : order_share(n, o->rank, o->world);
    stream->position = o->order == STOW_ORDER_REQUEST ? 0 : least(o->start, stream->end);
}

/* The view that is asked for, if there is one; sizes come later. */
static int plan_view(struct stream *stream, const struct view_ask *ask, struct stow_error *err)
{
    stream->frame_bytes = frame_bytes(&stream->resident->shape);
    if (!ask)
        return 0;
    stream->viewing = calloc(1, sizeof(*stream->viewing));
    if (!stream->viewing)
        return error_set(err, STOW_NOMEM, "no memory for a view");
    int rc = view_plan_make(&stream->viewing->plan, ask, stream->resident, err);
    stream->frame_bytes = view_bytes(&stream->viewing->plan.view);
    return rc;
}

/* Slots, and room in the budget for all that the stream will have. The resident counts one stream more. */
static int take_room(struct stream *stream, struct stow_error *err)
{
    struct viewing *viewing = stream->viewing;
    struct shortage shortage;
    choose_sizes(stream);
    stream->charged = stream->ring_bytes + stream->options.n_ids * sizeof(*stream->options.ids);
    if (viewing)
        viewing_size(viewing, stream->place, stream->resident, stream->n_slots, stream->batch);
    if (make_slots(stream) ||
        getrandom(stream->nonce, sizeof(stream->nonce), 0) != sizeof(stream->nonce))
        return error_set(err, STOW_NOMEM, "no memory for a ring of %u slots", stream->n_slots);
    const uint64_t bytes = stream->charged + (viewing ? viewing->charged : 0);
    stream->resident->n_streams++; /* so that making room does not evict it */
    int rc = store_make_room(stream->store, stream->place, bytes, &shortage);
    if (rc) {
        stream->resident->n_streams--;
        return shortage_error(&shortage, stream->place, err);
    }
    place_charge(stream->place, bytes);
    return 0;
}

int stream_open(struct stream **stream_out, struct store *store, struct resident *resident,
                const char *name, const struct stream_options *options,
                const struct stream_callbacks *callbacks, struct stow_error *err)
{
    static uint64_t rings; /* numbers that are never used twice */
    struct stream_options o = *options;
    o.world = o.world ? o.world : 1;
    int rc = check_options(&o, err);
    if (!rc)
        rc = check_range(resident, name, &o, err);
    if (rc)
        return rc;
    if (!o.count)
        o.count = resident->n_frames - o.first;
    struct stream *stream = calloc(1, sizeof(*stream));
    if (!stream)
        return error_set(err, STOW_NOMEM, "no memory for a stream");
    stream->ring = ++rings;
    stream->store = store;
    stream->place = resident->place;
    stream->resident = resident;
    stream->options = o;
    stream->callbacks = *callbacks;
    stream->wishes_last = &stream->wishes;
    stream->watch.changed = on_changed;
    stream->retry.retry = on_retry;
    start(stream);
    rc = plan_view(stream, o.view, err);
    if (!rc)
        rc = take_room(stream, err);
    if (rc) {
        stream->options.ids = NULL;
        stream_free(stream);
        return rc;
    }
    stream->options.view = NULL;
    stream->lane = place_lane(stream->place, stream->batch);
    resident_ref(resident);
    resident_watch(resident, &stream->watch);
    metrics.streams++;
    stream->n_filling = 1; /* the making of the ring counts as work under way */
    stream->request = (struct device_request){.done = on_ring, .data = stream};
    device_alloc(stream->place->device, &stream->memory, o.memory, stream->ring_bytes,
                 &stream->request);
    *stream_out = stream;
    return 0;
}

int stream_attach(struct stream *stream, const uint8_t *nonce, size_t nonce_bytes,
                  struct stow_error *err)
{
    if (stream->state != STREAM_OFFERED)
        return error_set(err, STOW_STATE, "ring %llu is not waiting to be attached",
                         (unsigned long long)stream->ring);
    if (nonce_bytes != sizeof(stream->nonce) || memcmp(nonce, stream->nonce, nonce_bytes) != 0)
        return error_set(
            err, STOW_DEVICE,
            "the memory that was mapped is not ring %llu: a wrong GPU, name space or stale handle",
            (unsigned long long)stream->ring);
    move(stream, STREAM_RUNNING);
    stream_pump(stream);
    return 0;
}

int stream_want(struct stream *stream, uint64_t *ids, size_t n_ids, struct stow_error *err)
{
    if (stream->options.order != STOW_ORDER_REQUEST || stream->state != STREAM_RUNNING)
        return error_set(err, STOW_STATE, "ring %llu brings no frames on request",
                         (unsigned long long)stream->ring);
    if (!n_ids || n_ids > stream->batch)
        return error_set(err, STOW_INVALID, "%zu frames asked for; a slot has room for %u", n_ids,
                         stream->batch);
    for (size_t i = 0; i < n_ids; i++) {
        if (ids[i] >= stream->resident->n_frames)
            return error_set(err, STOW_RANGE, "frame %llu is past the end: there are %llu frames",
                             (unsigned long long)ids[i],
                             (unsigned long long)stream->resident->n_frames);
    }
    if (stream->n_wishes >= STREAM_MAX_WISHES)
        return error_set(err, STOW_LIMIT,
                         "%u requests wait for a free slot of ring %llu; release some",
                         stream->n_wishes, (unsigned long long)stream->ring);
    struct wish *wish = malloc(sizeof(*wish));
    if (!wish)
        return error_set(err, STOW_NOMEM, "no memory for a request");
    *wish = (struct wish){.ids = ids, .n_ids = n_ids};
    *stream->wishes_last = wish;
    stream->wishes_last = &wish->next;
    stream->n_wishes++;
    stream_pump(stream);
    return 0;
}

int stream_release(struct stream *stream, uint32_t slot, uint64_t generation)
{
    if (stream->state >= STREAM_CLOSING)
        return 0; /* it was under way when the stream ended */
    if (slot >= stream->n_slots || stream->slots[slot].state != SLOT_HELD ||
        stream->slots[slot].generation != generation)
        return STOW_STALE;
    stream->slots[slot].state = SLOT_FREE;
    stream->n_held--;
    metrics.leases--;
    stream_pump(stream);
    return 0;
}

/* ---- closing ---- */

void stream_drain(struct stream *stream)
{
    stream->ended = true; /* GOODBYE says it; no STREAM_END follows */
}

static void free_if_over(struct stream *stream)
{
    if (stream->state != STREAM_CLOSED || !(stream->detached || stream->abandoned))
        return;
    place_uncharge(stream->place, stream->charged);
    stream_free(stream);
}

static void on_freed(void *data)
{
    struct stream *stream = data;
    if (stream->viewing)
        place_uncharge(stream->place, stream->viewing->charged);
    stream->store->n_freeing--;
    move(stream, STREAM_CLOSED);
    free_if_over(stream);
}

static void on_ring_freed(struct device_request *request)
{
    struct stream *stream = request->data;
    if (stream->viewing)
        viewing_free(stream->viewing, stream->place, on_freed, stream);
    else
        on_freed(stream);
}

/* Nothing writes into the ring any more: give it back. */
void stream_close_when_idle(struct stream *stream)
{
    if (stream->state != STREAM_CLOSING || stream->n_filling || !stream->resident)
        return;
    struct resident *resident = stream->resident;
    stream->resident = NULL;
    stream->store->n_freeing++;
    resident->n_streams--;
    resident->last_used_ns = uv_hrtime();
    resident_unref(resident);
    stream->request = (struct device_request){.done = on_ring_freed, .data = stream};
    if (stream->memory.bytes)
        device_free(stream->place->device, &stream->memory, &stream->request);
    else
        on_ring_freed(&stream->request);
}

void stream_close(struct stream *stream)
{
    if (stream->state >= STREAM_CLOSING)
        return;
    move(stream, STREAM_CLOSING);
    metrics.streams--;
    metrics.leases -= stream->n_held;
    stream->n_held = 0;
    resident_unwatch(stream->resident, &stream->watch);
    if (stream->refused && !stream->refused->decoding) { /* it never reached the lane */
        stream->n_filling -= stream->refused->n_filling;
        fill_free(stream->refused);
        stream->refused = NULL;
        place_unwait(stream->place, &stream->retry);
    }
    stream_close_when_idle(stream);
}

void stream_detach(struct stream *stream)
{
    stream->detached = true;
    free_if_over(stream);
}

void stream_abandon(struct stream *stream)
{
    stream->abandoned = true;
    if (stream->state < STREAM_CLOSING)
        stream_close(stream);
    else
        free_if_over(stream);
}
