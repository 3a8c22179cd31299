/* SPDX-License-Identifier: Apache-2.0
 *
 * STREAM and what follows it: ATTACHED, FRAMES, RELEASE, CLOSE_STREAM, DETACHED, and the events of a stream. */
#include "commands_view.h"

#include "answer.h"
#include "metrics.h"
#include "sealed.h"

#define LOG_MODULE "stream"
#include "log.h"

#include <stdlib.h>
#include <string.h>

#define MAX_LIST_IDS \
    (UINT64_C(1) << 24) /* the loop copies them: more would keep everybody waiting */

/* ---- ids ---- */

int take_ids(const struct request *request, const uint64_t *inlined, size_t n_inlined,
             uint64_t n_ids, uint64_t most, uint64_t **ids, struct stow_error *err)
{
    bool by_fd = request->n_fds == 1;
    uint64_t n = by_fd ? n_ids : n_inlined;
    if (request->n_fds > 1 || (by_fd && n_inlined) || n_ids != n || n > most)
        return error_set(err, STOW_INVALID,
                         "a list of ids is either in the message or in one descriptor, and n_ids "
                         "counts it (at most %llu)",
                         (unsigned long long)most);
    *ids = malloc(n ? n * sizeof(**ids) : 1);
    if (!*ids)
        return error_set(err, STOW_NOMEM, "no memory for %llu ids", (unsigned long long)n);
    if (n_inlined)
        memcpy(*ids, inlined, n_inlined * sizeof(**ids));
    int rc = by_fd ? sealed_read(request->fds[0], *ids, n * sizeof(**ids), "ids", err) : 0;
    if (rc) {
        free(*ids);
        *ids = NULL;
    }
    return rc;
}

/* ---- events ---- */

static struct session_stream *find_ring(struct session *session, uint64_t ring)
{
    for (struct session_stream *s = session->streams; s; s = s->next) {
        if (s->stream->ring == ring)
            return s;
    }
    return NULL;
}

static void forget(struct session_stream *s)
{
    struct session_stream **at = &s->session->streams;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    s->session->n_streams--;
    free(s);
}

static bool consecutive(const struct stream_batch *batch)
{
    for (uint32_t i = 1; i < batch->n_frames; i++) {
        if (batch->ids[i] != batch->ids[0] + i)
            return false;
    }
    return true;
}

static void on_batch(void *data, struct stream *stream, const struct stream_batch *batch)
{
    struct session_stream *s = data;
    uint32_t status[STREAM_MAX_BATCH];
    Stow__Ready ready = STOW__READY__INIT;
    Stow__Event event = STOW__EVENT__INIT;
    ready.ring = stream->ring;
    ready.slot = batch->slot;
    ready.generation = batch->generation;
    ready.position = batch->position;
    ready.n_frames = batch->n_frames;
    ready.first_id = batch->ids[0];
    if (!consecutive(batch)) {
        ready.n_ids = batch->n_frames;
        ready.ids = (uint64_t *)batch->ids;
    }
    for (uint32_t i = 0; batch->status && i < batch->n_frames; i++)
        status[i] = (uint32_t)-batch->status[i];
    ready.n_status = batch->status ? batch->n_frames : 0;
    ready.status = status;
    ready.bytes = batch->bytes;
    ready.ready_ns = batch->ready_ns;
    ready.acquisition = s->acquisition;
    event.body_case = STOW__EVENT__BODY_READY;
    event.ready = &ready;
    session_event(s->session, &event);
}

static void on_end(void *data, struct stream *stream, const struct stow_error *err)
{
    struct session_stream *s = data;
    Stow__StreamEnd end = STOW__STREAM_END__INIT;
    Stow__Error error = STOW__ERROR__INIT;
    Stow__Event event = STOW__EVENT__INIT;
    end.ring = stream->ring;
    if (err) {
        error.code = (Stow__Code)-err->code;
        error.text = (char *)err->text;
        end.error = &error;
    }
    event.body_case = STOW__EVENT__BODY_STREAM_END;
    event.stream_end = &end;
    session_event(s->session, &event);
}

static void answer_stream(struct session_stream *s)
{
    struct stream *stream = s->stream;
    const struct device_info *info = device_info(stream->place->device);
    bool is_cuda = stream->memory.kind != MEMORY_HOST_FD,
         by_fd = stream->memory.kind != MEMORY_CUDA_IPC;
    Stow__StreamReply answer = STOW__STREAM_REPLY__INIT;
    Stow__View view;
    Stow__Reply reply = STOW__REPLY__INIT;
    answer.ring = stream->ring;
    answer.memory = (Stow__MemoryKind)stream->memory.kind;
    answer.bytes = stream->memory.bytes;
    answer.slot_stride = stream->slot_stride;
    answer.slots = stream->n_slots;
    answer.batch = stream->batch;
    answer.frame_bytes = stream->frame_bytes;
    if (!by_fd)
        answer.handle = (ProtobufCBinaryData){.len = sizeof(stream->memory.handle),
                                              .data = stream->memory.handle};
    if (is_cuda)
        answer.gpu_uuid =
            (ProtobufCBinaryData){.len = sizeof(info->uuid), .data = (uint8_t *)info->uuid};
    answer.note = (char *)s->note;
    answer.acquisition = s->acquisition;
    answer.positions = stream->end == UINT64_MAX ? stream->end : stream->end - stream->position;
    answer.dtype = stream->resident->dtype;
    answer.detector_y = stream->resident->det_y;
    answer.detector_x = stream->resident->det_x;
    if (stream->viewing) {
        put_view(&view, &stream->viewing->plan);
        answer.dtype = view.dtype;
        answer.detector_y = view.pad_y;
        answer.detector_x = view.pad_x;
        answer.view = &view;
    }
    reply.body_case = STOW__REPLY__BODY_STREAM;
    reply.stream = &answer;
    session_reply(s->session, s->request, &reply, &stream->memory.fd, by_fd ? 1 : 0);
}

static void on_open(void *data, struct stream *stream, const struct stow_error *err)
{
    struct session_stream *s = data;
    if (!err) {
        answer_stream(s);
        return;
    }
    session_error(s->session, s->request, err);
    forget(s);
    stream_abandon(stream);
}

/* ---- requests ---- */

/* The memory kind to use: the best that place, client and wish have in common. */
static int choose_memory(const struct session *session, const struct place *place,
                         const Stow__Stream *ask, enum memory_kind *kind, const char **note,
                         struct stow_error *err)
{
    const struct device_info *info = device_info(place->device);
    unsigned wished = ask->memory_kinds
                          ? ask->memory_kinds
                          : (unsigned)(MEMORY_HOST_FD | MEMORY_CUDA_IPC | MEMORY_CUDA_FD);
    unsigned kinds = memory_kinds_for(session, place) & wished;
    bool wants_this_gpu = ask->gpu_uuid.len == sizeof(info->uuid) &&
                          memcmp(ask->gpu_uuid.data, info->uuid, sizeof(info->uuid)) == 0;
    *note = memory_note_for(session, place);
    if (info->is_gpu && !wants_this_gpu) {
        kinds &= MEMORY_HOST_FD;
        if (!**note)
            *note = ask->gpu_uuid.len ? "the acquisition lies on another GPU than the one asked "
                                        "for: frames come in host memory"
                                      : "no GPU was asked for: frames come in host memory";
    }
    if (!session->same_pid_namespace &&
        kinds & MEMORY_CUDA_FD) /* ipc works there too on today's drivers; fd by design */
        kinds &= ~(unsigned)MEMORY_CUDA_IPC;
    *kind = kinds & MEMORY_CUDA_IPC  ? MEMORY_CUDA_IPC
            : kinds & MEMORY_CUDA_FD ? MEMORY_CUDA_FD
                                     : MEMORY_HOST_FD;
    if (kinds)
        return 0;
    return error_set(err, STOW_UNSUPPORTED,
                     "none of the memory kinds asked for can be had from %s: %s", info->name,
                     **note ? *note : "it is not a GPU");
}

struct name *name_in_memory(struct session *session, const ProtobufCBinaryData *bytes,
                            struct stow_error *err)
{
    char text[NAME_ROOM];
    if (name_of(bytes, text, sizeof(text), err))
        return NULL;
    struct name *name = store_find(&session->server->store, text, session->uid, session->gid);
    if (!name) {
        error_set(err, STOW_UNKNOWN,
                  "no acquisition is called %s; framestow ls shows what there is", text);
        return NULL;
    }
    if (name->resident->state == RESIDENT_EVICTED) {
        error_set(err, STOW_STATE, "%s was evicted to make room; load it again: framestow load %s",
                  text, name->resident->origins[0].path);
        return NULL;
    }
    if (session->server->draining) {
        error_set(err, STOW_SHUTDOWN, "the daemon is shutting down");
        return NULL;
    }
    return name;
}

/* Which frames, where there is more to it than a range. */
static int take_list(struct stream_options *options, const struct request *request,
                     const struct name *name, struct stow_error *err)
{
    const Stow__Stream *ask = request->body->stream;
    if (ask->region) {
        if (options->order != STOW_ORDER_SCAN || ask->first || ask->count)
            return error_set(err, STOW_INVALID,
                             "a region of the scan comes in scan order, and without another range");
        options->order = STOW_ORDER_LIST;
        return take_region(&options->ids, &options->n_ids, ask->region, name, MAX_LIST_IDS, err);
    }
    if (options->order != STOW_ORDER_LIST)
        return 0;
    options->n_ids = request->n_fds ? ask->total_ids : ask->n_ids;
    return take_ids(request, ask->ids, ask->n_ids, ask->total_ids, MAX_LIST_IDS, &options->ids,
                    err);
}

static int open_stream(struct session_stream *s, const struct request *request,
                       struct stow_error *err)
{
    const Stow__Stream *ask = request->body->stream;
    struct session *session = s->session;
    if (session->n_streams == SESSION_MAX_STREAMS)
        return error_set(err, STOW_LIMIT,
                         "this connection has %u streams, the most that one may have; close some, "
                         "or connect again",
                         SESSION_MAX_STREAMS);
    struct name *name = name_in_memory(session, &ask->name, err);
    if (!name)
        return err->code;
    struct stream_options options = {.order = (enum stow_order)ask->order,
                                     .first = ask->first,
                                     .count = ask->count,
                                     .seed = ask->seed,
                                     .start = ask->start,
                                     .rank = ask->rank,
                                     .world = ask->world,
                                     .batch = ask->batch,
                                     .slots = ask->slots};
    struct view_ask view;
    struct stream_callbacks callbacks = {
        .data = s, .on_open = on_open, .on_batch = on_batch, .on_end = on_end};
    int rc = 0;
    if (ask->order > STOW__ORDER__ON_REQUEST)
        rc = error_set(err, STOW_INVALID, "no such order");
    if (!rc)
        rc = choose_memory(session, name->resident->place, ask, &options.memory, &s->note, err);
    if (!rc && ask->view) {
        rc = take_view(&view, ask->view, err);
        options.view = &view;
    }
    if (!rc)
        rc = take_list(&options, request, name, err);
    if (rc)
        return rc;
    s->acquisition = name->resident->id;
    rc = stream_open(&s->stream, &session->server->store, name->resident, name->text, &options,
                     &callbacks, err);
    if (rc)
        free(options.ids);
    return rc;
}

void do_stream(struct session *session, const struct request *request)
{
    struct stow_error err;
    struct session_stream *s = calloc(1, sizeof(*s));
    if (!s) {
        session_close(session, "no memory");
        return;
    }
    s->session = session;
    s->request = request->body->id;
    if (open_stream(s, request, &err)) {
        free(s);
        session_error(session, request->body->id, &err);
        return;
    }
    s->next = session->streams;
    session->streams = s;
    session->n_streams++;
}

/* The stream of a ring that this session holds, or an error to the client and NULL. */
static struct session_stream *of_ring(struct session *session, const struct request *request,
                                      uint64_t ring)
{
    struct session_stream *s = find_ring(session, ring);
    if (!s) {
        struct stow_error err;
        error_set(&err, STOW_UNKNOWN, "this connection has no ring %llu", (unsigned long long)ring);
        session_error(session, request->body->id, &err);
    }
    return s;
}

void do_attached(struct session *session, const struct request *request)
{
    const Stow__Attached *attached = request->body->attached;
    struct session_stream *s = of_ring(session, request, attached->ring);
    struct stow_error err;
    if (!s)
        return;
    /* The answer goes first: READY may follow from within. */
    if (s->stream->state == STREAM_OFFERED && attached->nonce.len == STREAM_NONCE_BYTES &&
        memcmp(attached->nonce.data, s->stream->nonce, STREAM_NONCE_BYTES) == 0) {
        session_done(session, request->body->id);
        stream_attach(s->stream, attached->nonce.data, attached->nonce.len, &err);
        return;
    }
    int rc = stream_attach(s->stream, attached->nonce.data, attached->nonce.len, &err);
    session_error(session, request->body->id, &err);
    if (rc == STOW_DEVICE) {
        LOG_WARN("pid %d uid %u: %s", (int)session->pid, (unsigned)session->uid, err.text);
        stream_close(s->stream);
    }
}

void do_frames(struct session *session, const struct request *request)
{
    const Stow__Frames *frames = request->body->frames;
    struct session_stream *s = of_ring(session, request, frames->ring);
    struct stow_error err;
    uint64_t *ids = NULL;
    if (!s)
        return;
    int rc = take_ids(request, frames->ids, frames->n_ids, frames->total_ids, STREAM_MAX_BATCH,
                      &ids, &err);
    if (!rc)
        rc = stream_want(s->stream, ids, request->n_fds ? frames->total_ids : frames->n_ids, &err);
    if (rc) {
        free(ids);
        session_error(session, request->body->id, &err);
    } else {
        session_done(session, request->body->id);
    }
}

/* One thing that was released wrongly. Some are forgiven: a connection that goes on so is broken. */
static void stale(struct session *session, const struct request *request, uint64_t ring,
                  uint32_t slot, uint64_t generation)
{
    struct stow_error err;
    metrics.stale_releases_total++;
    error_set(&err, STOW_STALE, "slot %u of ring %llu is not held with generation %llu", slot,
              (unsigned long long)ring, (unsigned long long)generation);
    session_error(session, request->body->id, &err);
    if (++session->n_stale >= SESSION_MAX_STALE)
        session_close(session, "it released too much that it did not hold");
}

void do_release(struct session *session, const struct request *request)
{
    const Stow__Release *release = request->body->release;
    if (release->n_slots != release->n_generations) {
        stale(session, request, release->ring, 0, 0);
        return;
    }
    for (size_t i = 0; i < release->n_slots && session->state != SESSION_CLOSING; i++) {
        struct session_stream *s = find_ring(session, release->ring);
        if (!s || stream_release(s->stream, release->slots[i], release->generations[i]))
            stale(session, request, release->ring, release->slots[i], release->generations[i]);
    }
}

void do_close_stream(struct session *session, const struct request *request)
{
    struct session_stream *s = of_ring(session, request, request->body->close_stream->ring);
    if (!s)
        return;
    if (s->stream->state == STREAM_OPENING) { /* the request that opens it gets its answer too */
        struct stow_error err;
        error_set(&err, STOW_CANCELLED, "the stream was closed before it was open");
        session_error(session, s->request, &err);
    }
    stream_close(s->stream);
    session_done(session, request->body->id);
}

void do_detached(struct session *session, const struct request *request)
{
    struct session_stream *s = of_ring(session, request, request->body->detached->ring);
    struct stow_error err;
    if (!s)
        return;
    if (s->stream->state < STREAM_CLOSING) {
        error_set(&err, STOW_STATE, "ring %llu is not closed", (unsigned long long)s->stream->ring);
        session_error(session, request->body->id, &err);
        return;
    }
    struct stream *stream = s->stream;
    forget(s);
    stream_detach(stream);
    session_done(session, request->body->id);
}
