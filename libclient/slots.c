/* SPDX-License-Identifier: Apache-2.0 */
#include "slots.h"
#include "cuda_import.h"
#include "ring.h"
#include "views.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RELEASES_A_MESSAGE 256u
#define NOTHING 2 /* of fetch: neither a batch, nor an end, nor an error is here */

enum slot_state { SLOT_FREE, SLOT_READY, SLOT_HELD, SLOT_DEFERRED };

struct slot {
    struct stow_batch batch; /* first: a batch that is given back is found by its address */
    struct stow_stream *stream;
    enum slot_state state;
    void *cuda_stream; /* deferred: after which */
};

struct stow_stream {
    struct stow_client *client;
    struct stow_stream *next;
    uint32_t number; /* in ids of requests that nobody waits for */
    struct ring ring;
    struct stow_stream_info info;
    char *note;
    char dtype[8];
    uint32_t spin_us;

    struct slot *slots;
    uint64_t *ids;   /* [slots][batch] */
    int32_t *status; /* [slots][batch] */
    uint32_t *queue; /* slots that are ready, in the order they came, from queue[head] on */
    uint32_t head, n_queued;

    uint32_t *pending; /* [2 * slots] given back and not known to be sent, under slot_lock */
    uint32_t n_pending;
    bool releasing; /* a thread is sending them, and will send later ones too */

    struct stow_error refused; /* the last refusal of a request */
    uint32_t n_refused;        /* refusals that are not told yet: each takes the place of a batch */
    struct stow_error failed;  /* of the stream; for good */
    bool ended, end_told;
};

/* ---- what comes ------------------------------------------------------------------------------ */

static struct stow_stream *by_ring(struct stow_client *client, uint64_t ring)
{
    struct stow_stream *stream = client->streams;
    while (stream && stream->ring.id != ring)
        stream = stream->next;
    return stream;
}

static int check_ready(struct stow_stream *stream, const Stow__Ready *ready, struct stow_error *err)
{
    const struct stow_stream_info *info = &stream->info;
    if (ready->slot >= info->slots || ready->n_frames == 0 || ready->n_frames > info->batch ||
        ready->bytes != ready->n_frames * info->frame_bytes)
        return error_set(err, STOW_PROTOCOL,
                         "a batch of %u frames in slot %u of a ring of %u slots of %u frames",
                         ready->n_frames, ready->slot, info->slots, info->batch);
    if ((ready->n_ids && ready->n_ids != ready->n_frames) ||
        (ready->n_status && ready->n_status != ready->n_frames))
        return error_set(err, STOW_PROTOCOL, "a batch of %u frames with %zu numbers and %zu states",
                         ready->n_frames, ready->n_ids, ready->n_status);
    struct slot *slot = &stream->slots[ready->slot];
    pthread_mutex_lock(&stream->client->slot_lock);
    bool is_free = slot->state == SLOT_FREE;
    pthread_mutex_unlock(&stream->client->slot_lock);
    if (!is_free || ready->generation == slot->batch.generation)
        return error_set(err, STOW_PROTOCOL, "slot %u was filled again while it is held",
                         ready->slot);
    return 0;
}

static void fill_frames(struct stow_stream *stream, struct stow_batch *batch,
                        const Stow__Ready *ready)
{
    uint64_t *ids = stream->ids + (size_t)ready->slot * stream->info.batch;
    int32_t *status = stream->status + (size_t)ready->slot * stream->info.batch;
    for (uint32_t i = 0; i < ready->n_frames; i++) {
        ids[i] = ready->n_ids ? ready->ids[i] : ready->first_id + i;
        uint32_t code = ready->n_status ? ready->status[i] : 0;
        status[i] = code <= (uint32_t)-STOW_NOFIT ? -(int32_t)code : STOW_INTERNAL;
        batch->n_bad += status[i] != 0;
    }
    batch->ids = ids;
    batch->status = status;
}

int slots_on_ready(struct stow_client *client, const Stow__Ready *ready, struct stow_error *err)
{
    struct stow_stream *stream = by_ring(client, ready->ring);
    if (!stream) /* closed here, and under way when it was */
        return 0;
    int rc = check_ready(stream, ready, err);
    if (rc)
        return rc;
    struct slot *slot = &stream->slots[ready->slot];
    slot->batch = (struct stow_batch){
        .data = (uint8_t *)stream->ring.data + ready->slot * stream->ring.slot_stride,
        .acquisition = ready->acquisition,
        .position = ready->position,
        .generation = ready->generation,
        .bytes = ready->bytes,
        .ready_ns = ready->ready_ns,
        .n_frames = ready->n_frames,
        .slot = ready->slot,
        .memory = stream->info.memory,
    };
    fill_frames(stream, &slot->batch, ready);
    pthread_mutex_lock(&client->slot_lock);
    slot->state = SLOT_READY;
    pthread_mutex_unlock(&client->slot_lock);
    stream->queue[(stream->head + stream->n_queued++) % stream->info.slots] = ready->slot;
    return 0;
}

void slots_on_end(struct stow_client *client, const Stow__StreamEnd *end)
{
    struct stow_stream *stream = by_ring(client, end->ring);
    if (!stream)
        return;
    stream->ended = true;
    if (end->error && end->error->code != STOW__CODE__OK)
        client_error_of(end->error, &stream->failed);
}

void slots_refused(struct stow_client *client, uint32_t number, const struct stow_error *why)
{
    for (struct stow_stream *stream = client->streams; stream; stream = stream->next) {
        if (stream->number != number)
            continue;
        stream->refused = *why;
        stream->n_refused++;
    }
}

static bool anything_here(const struct stow_client *client)
{
    bool here = client->goodbye.code != 0;
    for (const struct stow_stream *s = client->streams; s; s = s->next)
        here = here || s->n_queued || s->n_refused || (s->ended && !s->end_told);
    return here;
}

void slots_settle(struct stow_client *client)
{
    if (client->ready_fd < 0)
        return;
    while (client_turn(client, 0, 0) > 0)
        ;
    bool here = anything_here(client);
    uint64_t one = 1;
    if (here == client->ready_set)
        return;
    ssize_t n = here ? write(client->ready_fd, &one, sizeof(one))
                     : read(client->ready_fd, &one, sizeof(one));
    if (n == sizeof(one))
        client->ready_set = here;
}

/* ---- batches --------------------------------------------------------------------------------- */

const struct stow_stream_info *stow_stream_info(const struct stow_stream *stream)
{
    return &stream->info;
}

/* What is here for the caller, in the order that matters: whatever was filled is still good. */
static int fetch(struct stow_stream *stream, const struct stow_batch **batch)
{
    struct stow_client *client = stream->client;
    if (stream->n_queued) {
        struct slot *slot = &stream->slots[stream->queue[stream->head]];
        stream->head = (stream->head + 1) % stream->info.slots;
        stream->n_queued--;
        pthread_mutex_lock(&client->slot_lock);
        slot->state = SLOT_HELD;
        pthread_mutex_unlock(&client->slot_lock);
        *batch = &slot->batch;
        return 1;
    }
    if (stream->n_refused) {
        client->error = stream->refused;
        stream->n_refused--;
        return client->error.code;
    }
    if (stream->ended) {
        stream->end_told = true;
        if (stream->failed.code)
            client->error = stream->failed;
        return stream->failed.code;
    }
    if (client->gone.code || client->goodbye.code) {
        client->error = client->gone.code ? client->gone : client->goodbye;
        return client->error.code;
    }
    return NOTHING;
}

int stow_stream_next(struct stow_stream *stream, const struct stow_batch **batch, int timeout_ms)
{
    struct stow_client *client = stream->client;
    if (client->pid != getpid())
        return client_check(client);
    uint64_t deadline = UINT64_MAX, spin = 0;
    if (timeout_ms >= 0)
        deadline = timeout_ms ? client_now_ns() + (uint64_t)timeout_ms * 1000000u : 0;
    if (stream->spin_us && timeout_ms)
        spin = client_now_ns() + (uint64_t)stream->spin_us * 1000u;
    for (;;) {
        int rc = fetch(stream, batch);
        if (rc != NOTHING) {
            slots_settle(client);
            return rc;
        }
        rc = client_turn(client, deadline, spin);
        if (rc == 0) {
            slots_settle(client);
            return error_set(&client->error, STOW_TIMEOUT, "no batch within %d ms", timeout_ms);
        }
    }
}

int stow_stream_request(struct stow_stream *stream, const uint64_t *ids, size_t n_ids)
{
    struct stow_client *client = stream->client;
    if (client_check(client))
        return client->error.code;
    if (n_ids == 0 || n_ids > stream->info.batch)
        return error_set(&client->error, STOW_INVALID, "%zu frames for a batch of 1 to %u", n_ids,
                         stream->info.batch);
    Stow__Frames body = STOW__FRAMES__INIT;
    struct ring_ids list;
    int rc = ring_ids_open(&list, ids, n_ids, &client->error);
    if (rc)
        return rc;
    body.ring = stream->ring.id;
    body.n_ids = list.n_here;
    body.ids = list.here;
    body.total_ids = n_ids;
    Stow__Request request = STOW__REQUEST__INIT;
    request.id = CLIENT_ID_ALONE | CLIENT_ID_STREAM | stream->number;
    request.body_case = STOW__REQUEST__BODY_FRAMES;
    request.frames = &body;
    rc = client_tell(client, &request, &list.fd, list.fd >= 0, &client->error);
    ring_ids_close(&list);
    return rc;
}

/* ---- giving back ----------------------------------------------------------------------------- */

/* Send one message of releases. Under slot_lock, which is let go of meanwhile. */
static int send_pending(struct stow_stream *stream)
{
    uint32_t slots[RELEASES_A_MESSAGE];
    uint64_t generations[RELEASES_A_MESSAGE];
    uint32_t n = stream->n_pending < RELEASES_A_MESSAGE ? stream->n_pending : RELEASES_A_MESSAGE;
    for (uint32_t i = 0; i < n; i++) {
        slots[i] = stream->pending[i];
        generations[i] = stream->slots[slots[i]].batch.generation;
    }
    pthread_mutex_unlock(&stream->client->slot_lock);
    Stow__Release body = STOW__RELEASE__INIT;
    body.ring = stream->ring.id;
    body.n_slots = body.n_generations = n;
    body.slots = slots;
    body.generations = generations;
    Stow__Request request = STOW__REQUEST__INIT;
    request.id = CLIENT_ID_ALONE | CLIENT_ID_STREAM | stream->number;
    request.body_case = STOW__REQUEST__BODY_RELEASE;
    request.release = &body;
    int rc = client_tell(stream->client, &request, NULL, 0, NULL);
    pthread_mutex_lock(&stream->client->slot_lock);
    return rc;
}

/* The slot becomes the daemon's, if it is in this state. What other threads give back while a
 * message is being sent goes with the next one. A slot is marked free before its release leaves,
 * since the daemon may fill it at once; it may then be given back once more while its first
 * release is still in pending, but not twice, as the second is not sent before. */
static int give_back(struct slot *slot, enum slot_state from)
{
    struct stow_stream *stream = slot->stream;
    int rc = 0;
    pthread_mutex_lock(&stream->client->slot_lock);
    if (slot->state == from) {
        slot->state = SLOT_FREE;
        stream->pending[stream->n_pending++] = slot->batch.slot;
    } else {
        rc = STOW_STALE;
    }
    while (rc == 0 && stream->n_pending && !stream->releasing) {
        uint32_t n =
            stream->n_pending < RELEASES_A_MESSAGE ? stream->n_pending : RELEASES_A_MESSAGE;
        stream->releasing = true;
        rc = send_pending(stream);
        stream->releasing = false;
        if (rc)
            break;
        stream->n_pending -= n;
        memmove(stream->pending, stream->pending + n,
                stream->n_pending * sizeof(stream->pending[0]));
    }
    pthread_mutex_unlock(&stream->client->slot_lock);
    return rc;
}

/* The slot that a batch of this stream lies in; NULL: it is none of this stream's. */
static struct slot *slot_of(struct stow_stream *stream, const struct stow_batch *batch)
{
    uintptr_t offset = (uintptr_t)batch - (uintptr_t)stream->slots;
    if (!batch || (uintptr_t)batch < (uintptr_t)stream->slots || offset % sizeof(struct slot) ||
        offset / sizeof(struct slot) >= stream->info.slots)
        return NULL;
    return &stream->slots[offset / sizeof(struct slot)];
}

int stow_stream_release(struct stow_stream *stream, const struct stow_batch *batch)
{
    if (stream->client->pid != getpid())
        return STOW_FORKED;
    struct slot *slot = slot_of(stream, batch);
    return slot ? give_back(slot, SLOT_HELD) : STOW_STALE;
}

static void on_stream_done(void *data)
{
    give_back(data, SLOT_DEFERRED);
}

int stow_stream_release_after(struct stow_stream *stream, const struct stow_batch *batch,
                              void *cuda_stream)
{
    struct stow_client *client = stream->client;
    if (client->pid != getpid())
        return STOW_FORKED;
    struct slot *slot = slot_of(stream, batch);
    if (!slot)
        return STOW_STALE;
    pthread_mutex_lock(&client->slot_lock);
    int rc = slot->state == SLOT_HELD ? 0 : STOW_STALE;
    if (rc == 0) {
        slot->state = SLOT_DEFERRED;
        slot->cuda_stream = cuda_stream;
    }
    pthread_mutex_unlock(&client->slot_lock);
    if (rc)
        return rc;
    rc = cuda_after(cuda_stream, on_stream_done, slot, NULL);
    if (rc) {
        pthread_mutex_lock(&client->slot_lock);
        slot->state = SLOT_HELD;
        pthread_mutex_unlock(&client->slot_lock);
    }
    return rc;
}

int stow_stream_copy(struct stow_stream *stream, const struct stow_batch *batch, void *dst,
                     size_t dst_bytes)
{
    struct stow_client *client = stream->client;
    if (client->pid != getpid())
        return client_check(client);
    if (!slot_of(stream, batch))
        return error_set(&client->error, STOW_STALE, "that batch is not of this stream");
    if (dst_bytes < batch->bytes)
        return error_set(&client->error, STOW_INVALID, "a batch of %llu bytes into %zu",
                         (unsigned long long)batch->bytes, dst_bytes);
    return ring_read(&stream->ring, dst, batch->data, batch->bytes, &client->error);
}

/* ---- opening and closing --------------------------------------------------------------------- */

static void stream_free(struct stow_stream *stream)
{
    ring_close(&stream->ring);
    free(stream->note);
    free(stream->slots);
    free(stream->ids);
    free(stream->status);
    free(stream->queue);
    free(stream->pending);
    free(stream);
}

/* The tables of a stream whose ring is open. */
static int make_tables(struct stow_stream *stream, const Stow__StreamReply *reply,
                       struct stow_error *err)
{
    size_t slots = reply->slots, frames;
    if (__builtin_mul_overflow(slots, (size_t)reply->batch, &frames))
        return error_set(err, STOW_PROTOCOL, "a ring of %u slots of %u frames", reply->slots,
                         reply->batch);
    stream->note = strdup(reply->note);
    stream->slots = calloc(slots, sizeof(stream->slots[0]));
    stream->queue = calloc(slots, sizeof(stream->queue[0]));
    stream->pending = calloc(2 * slots, sizeof(stream->pending[0]));
    stream->ids = calloc(frames, sizeof(stream->ids[0]));
    stream->status = calloc(frames, sizeof(stream->status[0]));
    if (!stream->note || !stream->slots || !stream->queue || !stream->pending || !stream->ids ||
        !stream->status)
        return error_set(err, STOW_NOMEM, "no memory for a stream of %u slots of %u frames",
                         reply->slots, reply->batch);
    for (size_t i = 0; i < slots; i++) {
        stream->slots[i].stream = stream;
        stream->slots[i].batch.generation = UINT64_MAX;
    }
    stream->info = (struct stow_stream_info){.memory = stream->ring.memory,
                                             .note = stream->note,
                                             .batch = reply->batch,
                                             .slots = reply->slots,
                                             .frame_bytes = reply->frame_bytes,
                                             .positions = reply->positions};
    return view_take(&stream->info, stream->dtype, sizeof(stream->dtype), reply, err);
}

/* CLOSE_STREAM, unmap, DETACHED: the ring stays on this connection's account until the last. */
static void leave(struct stow_stream *stream)
{
    struct stow_client *client = stream->client;
    struct stow_error kept = client->error;
    uint64_t ring = stream->ring.id;
    if (client->pid != getpid() || client->gone.code)
        return;
    Stow__CloseStream close_body = STOW__CLOSE_STREAM__INIT;
    close_body.ring = ring;
    Stow__Request request = STOW__REQUEST__INIT;
    request.body_case = STOW__REQUEST__BODY_CLOSE_STREAM;
    request.close_stream = &close_body;
    client_ask_done(client, &request);
    ring_close(&stream->ring);
    Stow__Detached detached = STOW__DETACHED__INIT;
    detached.ring = ring;
    request.body_case = STOW__REQUEST__BODY_DETACHED;
    request.detached = &detached;
    client_ask_done(client, &request);
    client->error = kept; /* a ring that is gone already is what was wanted */
}

/* Map what the reply describes and prove it: the nonce read back is the daemon's. */
static int attach(struct stow_stream *stream, struct answer *answer)
{
    struct stow_client *client = stream->client;
    const Stow__StreamReply *reply = answer->reply->stream;
    int rc = ring_open(&stream->ring, reply, answer->fds, answer->n_fds, &client->error);
    if (rc == 0)
        rc = make_tables(stream, reply, &client->error);
    uint8_t nonce[RING_NONCE_BYTES];
    if (rc == 0)
        rc = ring_read(&stream->ring, nonce, stream->ring.data, sizeof(nonce), &client->error);
    if (rc)
        return rc;
    stream->next = client->streams;
    client->streams = stream;
    Stow__Attached body = STOW__ATTACHED__INIT;
    body.ring = stream->ring.id;
    body.nonce = (ProtobufCBinaryData){.len = sizeof(nonce), .data = nonce};
    Stow__Request request = STOW__REQUEST__INIT;
    request.body_case = STOW__REQUEST__BODY_ATTACHED;
    request.attached = &body;
    rc = client_ask_done(client, &request);
    if (rc)
        client->streams = stream->next;
    return rc;
}

/* STREAM, as the options say. */
static int ask(struct stow_client *client, const char *name,
               const struct stow_stream_options *options, struct answer *answer)
{
    struct ring_wish wish;
    struct ring_ids list;
    int rc = ring_choose(client, name, options->memory, &wish);
    if (rc == 0)
        rc = ring_ids_open(&list, options->ids,
                           options->order == STOW_ORDER_LIST ? options->n_ids : 0, &client->error);
    if (rc)
        return rc;
    Stow__Stream body = STOW__STREAM__INIT;
    body.name = client_bytes(name, strlen(name));
    body.order = (Stow__Order)options->order;
    body.first = options->first;
    body.count = options->count;
    body.n_ids = list.n_here;
    body.ids = list.here;
    body.total_ids = list.n;
    body.seed = options->seed;
    body.start = options->start;
    body.rank = options->rank;
    body.world = options->world;
    body.batch = options->batch;
    body.slots = options->slots;
    body.memory_kinds = wish.kinds;
    body.gpu_uuid =
        (ProtobufCBinaryData){.len = wish.has_gpu ? sizeof(wish.uuid) : 0, .data = wish.uuid};
    Stow__View view;
    Stow__Region region;
    view_put(&body, &view, &region, &options->view);
    Stow__Request request = STOW__REQUEST__INIT;
    request.body_case = STOW__REQUEST__BODY_STREAM;
    request.stream = &body;
    rc = client_ask(client, &request, &list.fd, list.fd >= 0, STOW__REPLY__BODY_STREAM, answer);
    ring_ids_close(&list);
    return rc;
}

struct stow_stream *stow_stream_open(struct stow_client *client, const char *name,
                                     const struct stow_stream_options *options)
{
    struct stow_stream_options known;
    struct answer answer;
    if (client_check(client) ||
        client_options(client, &known, sizeof(known), options, options ? options->size : 0))
        return NULL;
    struct stow_stream *stream = calloc(1, sizeof(*stream));
    if (!stream) {
        error_set(&client->error, STOW_NOMEM, "no memory for a stream");
        return NULL;
    }
    if (ask(client, name, &known, &answer)) {
        free(stream);
        return NULL;
    }
    *stream = (struct stow_stream){.client = client,
                                   .number = ++client->last_stream,
                                   .spin_us = known.spin_us,
                                   .ring = {.id = answer.reply->stream->ring}};
    int rc = attach(stream, &answer);
    answer_drop(&answer);
    if (rc) {
        leave(stream);
        stream_free(stream);
        return NULL;
    }
    return stream;
}

/* Slots given back after a CUDA stream are still to be sent by a thread of the driver: wait for
 * it. */
static void wait_deferred(struct stow_stream *stream)
{
    for (uint32_t i = 0; i < stream->info.slots; i++) {
        struct slot *slot = &stream->slots[i];
        pthread_mutex_lock(&stream->client->slot_lock);
        bool deferred = slot->state == SLOT_DEFERRED;
        void *after = slot->cuda_stream;
        pthread_mutex_unlock(&stream->client->slot_lock);
        if (deferred)
            cuda_wait(after);
    }
}

void stow_stream_close(struct stow_stream *stream)
{
    if (!stream)
        return;
    struct stow_client *client = stream->client;
    if (client->pid == getpid()) {
        wait_deferred(stream);
        leave(stream);
    }
    struct stow_stream **at = &client->streams;
    while (*at != stream)
        at = &(*at)->next;
    *at = stream->next;
    stream_free(stream);
    if (client->pid == getpid())
        slots_settle(client);
}

void slots_close_all(struct stow_client *client)
{
    while (client->streams)
        stow_stream_close(client->streams);
}
