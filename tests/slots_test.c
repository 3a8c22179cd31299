/* SPDX-License-Identifier: Apache-2.0
 *
 * slots_test: streams of libframestow against a daemon that is acted (act.h): batches in order,
 * slots given back once, by any thread; and rings and batches that cannot be. */
#include "framestow.h"

#include "act.h"

#include <sys/wait.h>

#define SLOTS 2u
#define BATCH 4u
#define FRAME 32u
#define STRIDE 4096u

/* ---- streams --------------------------------------------------------------------------------- */

static Stow__StreamReply ring_reply(void)
{
    Stow__StreamReply reply = STOW__STREAM_REPLY__INIT;
    static char note[] = "host it is";
    reply.ring = 7;
    reply.memory = STOW__MEMORY_KIND__HOST_FD;
    reply.bytes = SLOTS * STRIDE;
    reply.slot_stride = STRIDE;
    reply.slots = SLOTS;
    reply.batch = BATCH;
    reply.frame_bytes = FRAME;
    reply.positions = 100;
    reply.note = note;
    return reply;
}

static void give_ring(struct act *act, Stow__StreamReply *stream)
{
    Stow__Reply reply = STOW__REPLY__INIT;
    act->ring_fd = memfd_create("ring", MFD_CLOEXEC);
    ACT_CHECK(ftruncate(act->ring_fd, SLOTS * STRIDE) == 0);
    act->ring_bytes = SLOTS * STRIDE;
    act->ring = mmap(NULL, SLOTS * STRIDE, PROT_READ | PROT_WRITE, MAP_SHARED, act->ring_fd, 0);
    memcpy(act->ring, "0123456789abcdef", 16);
    reply.body_case = STOW__REPLY__BODY_STREAM;
    reply.stream = stream;
    send_reply(act, &reply, act->ring_fd);
}

/* HELLO, STREAM, ATTACHED with the right nonce. */
static bool open_ring(struct act *act)
{
    Stow__StreamReply reply = ring_reply();
    greet(act);
    if (!expect(act, STOW__REQUEST__BODY_STREAM))
        return false;
    give_ring(act, &reply);
    Stow__Request *request = next_request(act);
    bool ok = ACT_CHECK(request && request->body_case == STOW__REQUEST__BODY_ATTACHED &&
                        request->attached->ring == 7 && request->attached->nonce.len == 16 &&
                        memcmp(request->attached->nonce.data, act->ring, 16) == 0);
    if (request)
        stow__request__free_unpacked(request, NULL);
    if (ok)
        reply_done(act);
    return ok;
}

static Stow__Ready ready_of(uint32_t slot, uint64_t generation, uint64_t position)
{
    Stow__Ready ready = STOW__READY__INIT;
    ready.ring = 7;
    ready.slot = slot;
    ready.generation = generation;
    ready.position = ready.first_id = position;
    ready.n_frames = BATCH;
    ready.bytes = BATCH * FRAME;
    ready.ready_ns = 1;
    ready.acquisition = 3;
    return ready;
}

static void send_ready(struct act *act, Stow__Ready ready)
{
    Stow__Event event = STOW__EVENT__INIT;
    event.body_case = STOW__EVENT__BODY_READY;
    event.ready = &ready;
    send_event(act, &event);
}

static void send_end(struct act *act)
{
    Stow__StreamEnd body = STOW__STREAM_END__INIT;
    Stow__Event event = STOW__EVENT__INIT;
    body.ring = 7;
    event.body_case = STOW__EVENT__BODY_STREAM_END;
    event.stream_end = &body;
    send_event(act, &event);
}

/* Take releases until `left` slots or more were given back; each must be held with its
 * generation. */
static void take_releases(struct act *act, uint64_t *held, unsigned left)
{
    while (left) {
        Stow__Request *request = next_request(act);
        if (!ACT_CHECK(request && request->body_case == STOW__REQUEST__BODY_RELEASE)) {
            if (request)
                stow__request__free_unpacked(request, NULL);
            return;
        }
        for (size_t i = 0; i < request->release->n_slots; i++) {
            uint32_t slot = request->release->slots[i];
            if (!ACT_CHECK(slot < SLOTS))
                continue;
            ACT_CHECK(held[slot] && held[slot] == request->release->generations[i]);
            held[slot] = 0;
            left -= left > 0;
        }
        stow__request__free_unpacked(request, NULL);
    }
}

static void close_ring(struct act *act)
{
    if (expect(act, STOW__REQUEST__BODY_CLOSE_STREAM))
        reply_done(act);
    if (expect(act, STOW__REQUEST__BODY_DETACHED))
        reply_done(act);
}

static void two_batches(struct act *act)
{
    uint64_t held[SLOTS] = {11, 12};
    if (!open_ring(act))
        return;
    uint32_t states[BATCH] = {0, STOW__CODE__CORRUPT, 0, 99};
    uint64_t ids[BATCH] = {9, 8, 8, 7};
    Stow__Ready second = ready_of(1, 12, 4);
    memset(act->ring + STRIDE, 0x5a, BATCH * FRAME);
    second.n_status = second.n_ids = BATCH;
    second.status = states;
    second.ids = ids;
    send_ready(act, ready_of(0, 11, 0));
    send_ready(act, second);
    take_releases(act, held, 2);
    send_end(act);
    close_ring(act);
}

static void test_batches(void)
{
    struct act act;
    struct stow_error err;
    struct stow_client *client = start(&act, two_batches, &err);
    CHECK(client && strcmp(stow_daemon_info(client)->version, "0.0.9") == 0 &&
          stow_daemon_info(client)->pid == 42);
    CHECK(client && strcmp(stow_daemon_info(client)->memory_kinds, "host-fd") == 0);
    struct stow_stream *stream = client ? stow_stream_open(client, "x", NULL) : NULL;
    CHECK(stream != NULL);
    if (!stream) {
        end(&act, client);
        return;
    }
    const struct stow_stream_info *info = stow_stream_info(stream);
    CHECK(info->memory == STOW_HOST_FD && info->slots == SLOTS && info->batch == BATCH &&
          info->positions == 100);
    const struct stow_batch *first = NULL, *second = NULL, *none = NULL;
    CHECK_INT(stow_stream_next(stream, &first, 10000), 1);
    CHECK_INT(stow_stream_next(stream, &second, 10000), 1);
    CHECK_INT(stow_stream_next(stream, &none, 20), STOW_TIMEOUT);
    CHECK_INT(stow_stream_next(stream, &none, 0), STOW_TIMEOUT);
    CHECK(first->ids[3] == 3 && first->n_bad == 0 && first->generation == 11 &&
          first->acquisition == 3);
    CHECK(memcmp(first->data, "0123456789abcdef", 16) == 0);
    CHECK(second->n_bad == 2 && second->status[1] == STOW_CORRUPT &&
          second->status[3] == STOW_INTERNAL);
    CHECK(second->ids[1] == 8 && second->ids[3] == 7 && second->position == 4);
    uint8_t copy[BATCH * FRAME];
    CHECK_INT(stow_stream_copy(stream, second, copy, sizeof(copy) - 1), STOW_INVALID);
    CHECK_INT(stow_stream_copy(stream, second, copy, sizeof(copy)), 0);
    CHECK(copy[0] == 0x5a && copy[sizeof(copy) - 1] == 0x5a);
    struct stow_batch forged = *first;
    CHECK_INT(stow_stream_release(stream, &forged), STOW_STALE);
    CHECK_INT(stow_stream_release(stream, first), 0);
    CHECK_INT(stow_stream_release(stream, first), STOW_STALE);
    CHECK_INT(stow_stream_release(stream, second), 0);
    CHECK_INT(stow_stream_next(stream, &none, 10000), 0);
    CHECK_INT(stow_stream_next(stream, &none, 10000), 0);
    stow_stream_close(stream);
    end(&act, client);
}

/* What a batch must not be, after a good one in slot 0 that is still held. */
enum lie {
    SLOT_HELD_TWICE,
    SLOT_OUTSIDE,
    NO_FRAMES,
    TOO_MANY,
    OTHER_BYTES,
    FEW_STATES,
    FEW_IDS,
    N_LIES
};
static enum lie lie;

static void lying(struct act *act)
{
    uint32_t states[1] = {0};
    uint64_t ids[1] = {0};
    if (!open_ring(act))
        return;
    send_ready(act, ready_of(0, 1, 0));
    Stow__Ready bad = ready_of(lie == SLOT_HELD_TWICE ? 0 : lie == SLOT_OUTSIDE ? SLOTS : 1, 2, 4);
    if (lie == NO_FRAMES)
        bad.n_frames = 0, bad.bytes = 0;
    if (lie == TOO_MANY)
        bad.n_frames = BATCH + 1, bad.bytes = (BATCH + 1) * FRAME;
    if (lie == OTHER_BYTES)
        bad.bytes--;
    if (lie == FEW_STATES)
        bad.n_status = 1, bad.status = states;
    if (lie == FEW_IDS)
        bad.n_ids = 1, bad.ids = ids;
    send_ready(act, bad);
    for (Stow__Request *request; (request = next_request(act));)
        stow__request__free_unpacked(request, NULL);
}

static void test_lies(void)
{
    for (lie = 0; lie < N_LIES; lie++) {
        struct act act;
        struct stow_error err;
        const struct stow_batch *batch;
        struct stow_client *client = start(&act, lying, &err);
        struct stow_stream *stream = client ? stow_stream_open(client, "x", NULL) : NULL;
        CHECK_INT(stream ? stow_stream_next(stream, &batch, 10000) : -1, 1);
        int rc = stream ? stow_stream_next(stream, &batch, 10000) : 0;
        CHECK_MSG(rc == STOW_PROTOCOL, "lie %d: %d", (int)lie, rc);
        CHECK(client && stow_unload(client, "x") == STOW_PROTOCOL); /* for good */
        end(&act, client);
    }
}

/* What a ring must not be: none is mapped, and the ring is given up. */
static void (*spoil)(Stow__StreamReply *reply);
static void stride_short(Stow__StreamReply *reply)
{
    reply->slot_stride = BATCH * FRAME - 1;
}
static void bytes_short(Stow__StreamReply *reply)
{
    reply->bytes = SLOTS * STRIDE - 1;
}
static void larger_than_memfd(Stow__StreamReply *reply)
{
    reply->bytes = 2 * SLOTS * STRIDE;
}
static void overflowing(Stow__StreamReply *reply)
{
    reply->slot_stride = UINT64_MAX / 2 + 1;
}
static void no_slots(Stow__StreamReply *reply)
{
    reply->slots = 0;
}
static void no_batch(Stow__StreamReply *reply)
{
    reply->batch = 0;
}
static void unknown_memory(Stow__StreamReply *reply)
{
    reply->memory = (Stow__MemoryKind)64;
}
static void ipc_without_handle(Stow__StreamReply *reply)
{
    reply->memory = STOW__MEMORY_KIND__CUDA_IPC;
}

static void bad_ring(struct act *act)
{
    Stow__StreamReply reply = ring_reply();
    spoil(&reply);
    greet(act);
    if (!expect(act, STOW__REQUEST__BODY_STREAM))
        return;
    give_ring(act, &reply);
    close_ring(act);
    expect(act, STOW__REQUEST__BODY_UNLOAD);
    reply_error(act, STOW__CODE__UNKNOWN, "no x here");
}

static void test_bad_rings(void)
{
    static void (*const rows[])(
        Stow__StreamReply *) = {stride_short, bytes_short, larger_than_memfd, overflowing,
                                no_slots,     no_batch,    unknown_memory,    ipc_without_handle};
    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        struct act act;
        struct stow_error err;
        spoil = rows[r];
        struct stow_client *client = start(&act, bad_ring, &err);
        CHECK(client && !stow_stream_open(client, "x", NULL));
        CHECK_MSG(client && stow_last_error(client)->code == STOW_PROTOCOL, "ring %zu: %s", r,
                  client ? stow_last_error(client)->text : err.text);
        CHECK(client && stow_unload(client, "x") == STOW_UNKNOWN); /* the connection lives */
        end(&act, client);
    }
}

/* ---- waiting, and being left ----------------------------------------------------------------- */

static void leaves_two(struct act *act)
{
    if (open_ring(act)) {
        send_ready(act, ready_of(0, 1, 0));
        send_ready(act, ready_of(1, 2, 4));
    }
}

/* Batches that came before the end are still good; then it is gone, and releasing does no harm. */
static void test_gone(void)
{
    struct act act;
    struct stow_error err;
    const struct stow_batch *batch, *last;
    struct stow_client *client = start(&act, leaves_two, &err);
    struct stow_stream *stream = client ? stow_stream_open(client, "x", NULL) : NULL;
    CHECK(stream != NULL);
    if (stream) {
        struct pollfd p = {.fd = stow_fd(client), .events = POLLIN};
        CHECK_INT(poll(&p, 1, 10000), 1);
        CHECK_INT(stow_stream_next(stream, &batch, 0), 1);
        CHECK_INT(poll(&p, 1, 10000), 1); /* the second is here, or will be */
        CHECK_INT(stow_stream_next(stream, &last, 10000), 1);
        CHECK_INT(stow_stream_next(stream, &last, 10000), STOW_GONE);
        CHECK_INT(stow_stream_release(stream, batch), 0);
        CHECK(strstr(stow_last_error(client)->text, "the daemon closed the connection"));
        CHECK_INT(stow_unload(client, "x"), STOW_GONE);
        CHECK(!stow_stream_open(client, "x", NULL));
    }
    end(&act, client);
}

static void says_goodbye(struct act *act)
{
    Stow__Goodbye goodbye = STOW__GOODBYE__INIT;
    Stow__Event event = STOW__EVENT__INIT;
    if (!open_ring(act))
        return;
    event.body_case = STOW__EVENT__BODY_GOODBYE;
    event.goodbye = &goodbye;
    send_event(act, &event);
    close_ring(act);
}

static void test_goodbye(void)
{
    struct act act;
    struct stow_error err;
    const struct stow_batch *batch;
    struct stow_client *client = start(&act, says_goodbye, &err);
    struct stow_stream *stream = client ? stow_stream_open(client, "x", NULL) : NULL;
    CHECK_INT(stream ? stow_stream_next(stream, &batch, 10000) : 0, STOW_SHUTDOWN);
    stow_stream_close(stream);
    end(&act, client);
}

static void test_fork(void)
{
    struct act act;
    struct stow_error err;
    const struct stow_batch *batch;
    struct stow_client *client = start(&act, says_goodbye, &err);
    struct stow_stream *stream = client ? stow_stream_open(client, "x", NULL) : NULL;
    CHECK(stream != NULL);
    pid_t child = stream ? fork() : -1;
    if (child == 0) {
        bool ok = stow_stream_next(stream, &batch, 0) == STOW_FORKED &&
                  stow_unload(client, "x") == STOW_FORKED && !stow_stream_open(client, "x", NULL) &&
                  stow_last_error(client)->code == STOW_FORKED;
        stow_close(client); /* says nothing to the daemon, which serves the parent */
        _exit(!ok);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK_INT(status, 0);
    stow_stream_close(stream);
    end(&act, client);
}

/* ---- on request, and releases from many threads ---------------------------------------------- */

#define ROUNDS 4000u

static void refills(struct act *act)
{
    uint64_t held[SLOTS] = {0}, generation = 0;
    if (!open_ring(act))
        return;
    for (unsigned sent = 0, back = 0; back < ROUNDS;) {
        for (uint32_t slot = 0; slot < SLOTS; slot++) {
            if (held[slot] || sent == ROUNDS)
                continue;
            held[slot] = ++generation;
            send_ready(act, ready_of(slot, generation, BATCH * sent++));
        }
        unsigned before = !!held[0] + !!held[1];
        take_releases(act, held, 1);
        back += before - (!!held[0] + !!held[1]);
        if (before == (unsigned)(!!held[0] + !!held[1]))
            return; /* take_releases has said why */
    }
    send_end(act);
    close_ring(act);
}

struct hand {
    struct stow_stream *stream;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    const struct stow_batch *batches[SLOTS];
    unsigned n;
    bool over;
};

static void *release_all(void *data)
{
    struct hand *hand = data;
    pthread_mutex_lock(&hand->lock);
    while (!hand->over || hand->n) {
        if (hand->n) {
            const struct stow_batch *batch = hand->batches[--hand->n];
            pthread_mutex_unlock(&hand->lock);
            if (stow_stream_release(hand->stream, batch))
                abort();
            pthread_mutex_lock(&hand->lock);
        } else {
            pthread_cond_wait(&hand->changed, &hand->lock);
        }
    }
    pthread_mutex_unlock(&hand->lock);
    return NULL;
}

static void test_threads(void)
{
    struct act act;
    struct stow_error err;
    pthread_t threads[3];
    struct stow_client *client = start(&act, refills, &err);
    struct stow_stream_options options = {.size = sizeof(options), .spin_us = 50};
    struct hand hand = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    hand.stream = client ? stow_stream_open(client, "x", &options) : NULL;
    CHECK(hand.stream != NULL);
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, release_all, &hand);
    const struct stow_batch *batch;
    uint64_t position = 0;
    int rc = 0;
    while (hand.stream && (rc = stow_stream_next(hand.stream, &batch, 10000)) == 1) {
        if (batch->position != position || batch->ids[BATCH - 1] != position + BATCH - 1)
            break;
        position += BATCH;
        pthread_mutex_lock(&hand.lock);
        hand.batches[hand.n++] = batch;
        pthread_cond_signal(&hand.changed);
        pthread_mutex_unlock(&hand.lock);
    }
    CHECK_INT(rc, 0);
    CHECK_INT(position, ROUNDS * BATCH);
    pthread_mutex_lock(&hand.lock);
    hand.over = true;
    pthread_cond_broadcast(&hand.changed);
    pthread_mutex_unlock(&hand.lock);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    stow_stream_close(hand.stream);
    end(&act, client);
}

static void refuses_request(struct act *act)
{
    if (!open_ring(act) || !expect(act, STOW__REQUEST__BODY_FRAMES))
        return;
    reply_error(act, STOW__CODE__RANGE, "frame 900 is past the end");
    if (!expect(act, STOW__REQUEST__BODY_FRAMES))
        return;
    reply_done(act);
    send_ready(act, ready_of(0, 1, 0));
    close_ring(act);
}

static void test_request(void)
{
    struct act act;
    struct stow_error err;
    const struct stow_batch *batch;
    uint64_t ids[BATCH + 1] = {900};
    struct stow_client *client = start(&act, refuses_request, &err);
    struct stow_stream_options options = {.size = sizeof(options), .order = STOW_ORDER_REQUEST};
    struct stow_stream *stream = client ? stow_stream_open(client, "x", &options) : NULL;
    CHECK(stream != NULL);
    if (stream) {
        CHECK_INT(stow_stream_request(stream, ids, BATCH + 1), STOW_INVALID);
        CHECK_INT(stow_stream_request(stream, ids, 0), STOW_INVALID);
        CHECK_INT(stow_stream_request(stream, ids, 1), 0);
        CHECK_INT(stow_stream_next(stream, &batch, 10000), STOW_RANGE);
        CHECK(strstr(stow_last_error(client)->text, "900"));
        CHECK_INT(stow_stream_request(stream, ids, BATCH), 0);
        CHECK_INT(stow_stream_next(stream, &batch, 10000), 1);
    }
    stow_stream_close(stream);
    end(&act, client);
}

int main(void)
{
    folder_make();
    test_batches();
    test_lies();
    test_bad_rings();
    test_gone();
    test_goodbye();
    test_fork();
    test_threads();
    test_request();
    folder_remove();
    return test_end();
}
