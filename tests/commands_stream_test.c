/* SPDX-License-Identifier: Apache-2.0
 *
 * commands_stream_test: STREAM and what follows it, as a client sees it: leases, refusals, clients that vanish, and
 * the daemon's goodbye. */
#include "served.h"

/* ---- streams ---- */

struct ring {
    uint64_t ring, positions;
    uint32_t slots, batch;
    size_t bytes;
    uint8_t nonce[STREAM_NONCE_BYTES];
};

static bool open_ring(struct client *client, struct ring *ring, const Stow__Stream *ask,
                      const int *fds, size_t n_fds)
{
    Stow__Request request = STOW__REQUEST__INIT;
    request.id = 60;
    request.body_case = STOW__REQUEST__BODY_STREAM;
    request.stream = (Stow__Stream *)ask;
    send_fds(client, &request, fds, n_fds);
    const Stow__Reply *reply = expect(client, 60, STOW__REPLY__BODY_STREAM);
    if (!reply)
        return false;
    *ring = (struct ring){.ring = reply->stream->ring,
                          .positions = reply->stream->positions,
                          .slots = reply->stream->slots,
                          .batch = reply->stream->batch,
                          .bytes = reply->stream->bytes};
    CHECK(reply->stream->memory == STOW__MEMORY_KIND__HOST_FD && client->message_fd >= 0);
    uint8_t *at = mmap(NULL, ring->bytes, PROT_READ, MAP_SHARED, client->message_fd, 0);
    CHECK(at != MAP_FAILED);
    if (at == MAP_FAILED)
        return false;
    memcpy(ring->nonce, at, sizeof(ring->nonce));
    munmap(at, ring->bytes);
    CHECK(ftruncate(client->message_fd, 0) != 0); /* sealed */
    return true;
}

static void send_attached(struct client *client, const struct ring *ring)
{
    Stow__Attached attached = STOW__ATTACHED__INIT;
    attached.ring = ring->ring;
    attached.nonce =
        (ProtobufCBinaryData){.len = sizeof(ring->nonce), .data = (uint8_t *)ring->nonce};
    REQUEST(request, ATTACHED, attached, attached, 61);
    send_request(client, &request);
}

static void send_release(struct client *client, uint64_t ring, uint32_t slot, uint64_t generation)
{
    Stow__Release release = STOW__RELEASE__INIT;
    release.ring = ring;
    release.slots = &slot;
    release.generations = &generation;
    release.n_slots = release.n_generations = 1;
    REQUEST(request, RELEASE, release, release, 62);
    send_request(client, &request);
}

static Stow__Ready *expect_ready(struct client *client)
{
    Stow__Event *event = receive_event(client);
    CHECK_MSG(event && event->body_case == STOW__EVENT__BODY_READY, "no READY");
    return event && event->body_case == STOW__EVENT__BODY_READY ? event->ready : NULL;
}

static void send_ring(struct client *client, bool close_it, uint64_t ring)
{
    Stow__CloseStream close_stream = STOW__CLOSE_STREAM__INIT;
    Stow__Detached detached = STOW__DETACHED__INIT;
    close_stream.ring = detached.ring = ring;
    REQUEST(a, CLOSE_STREAM, close_stream, close_stream, 63);
    REQUEST(b, DETACHED, detached, detached, 63);
    send_request(client, close_it ? &a : &b);
}

static Stow__Stream ask_for(const char *name)
{
    Stow__Stream ask = STOW__STREAM__INIT;
    ask.name = bytes_of(name);
    ask.batch = 4;
    ask.slots = 2;
    return ask;
}

static void test_stream(void)
{
    struct client client = client_ready();
    struct ring ring;
    put("x", 1000, 21);
    Stow__Stream ask = ask_for("x");
    if (!open_ring(&client, &ring, &ask, NULL, 0))
        return;
    CHECK(ring.positions == 21 && ring.slots == 2 && ring.batch == 4);
    CHECK(server.places[0].used_bytes > 0);
    send_ring(&client, false, ring.ring); /* not closed yet */
    expect_error(&client, 63, STOW_STATE, NULL);
    send_attached(&client, &ring);
    expect(&client, 61, STOW__REPLY__BODY_DONE); /* before the first READY */
    for (uint64_t position = 0; position < 21; position += 4) {
        Stow__Ready *ready = expect_ready(&client);
        if (!ready)
            return;
        uint32_t n = position + 4 <= 21 ? 4 : 1;
        CHECK(ready->ring == ring.ring && ready->position == position && ready->n_frames == n &&
              ready->first_id == position && !ready->n_ids && ready->bytes == n * N_ELEMS * 2 &&
              ready->slot < 2);
        bool any_bad = position % 20 == 0 || position == 8;
        CHECK(ready->n_status == (any_bad ? n : 0));
        if (any_bad)
            CHECK_INT(ready->status[position == 8 ? 2 : 0], STOW__CODE__CORRUPT);
        send_release(&client, ring.ring, ready->slot, ready->generation);
    }
    Stow__Event *event = receive_event(&client);
    CHECK(event && event->body_case == STOW__EVENT__BODY_STREAM_END &&
          event->stream_end->ring == ring.ring && !event->stream_end->error);
    send_attached(&client, &ring); /* again */
    expect_error(&client, 61, STOW_STATE, NULL);
    send_ring(&client, true, ring.ring);
    expect(&client, 63, STOW__REPLY__BODY_DONE);
    send_ring(&client, true, ring.ring); /* closing twice is nothing */
    expect(&client, 63, STOW__REPLY__BODY_DONE);
    CHECK(server.places[0].used_bytes > 0);
    send_ring(&client, false, ring.ring);
    expect(&client, 63, STOW__REPLY__BODY_DONE);
    send_ring(&client, false, ring.ring);
    expect_error(&client, 63, STOW_UNKNOWN, NULL);
    client_close(&client);
    check_empty();
}

/* Sealed against shrinking or not. */
static int id_fd(const uint64_t *ids, size_t bytes, bool sealed)
{
    int fd = memfd_create("ids", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(write(fd, ids, bytes) == (ssize_t)bytes);
    CHECK(!sealed || !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE));
    return fd;
}

static void test_stream_refusals(void)
{
    struct client client = client_ready();
    put("x", 1000, 21);
    uint64_t ids[4] = {1, 20, 0, UINT64_MAX};
    const struct {
        int order;
        uint64_t first, count, total_ids;
        size_t n_ids, fd_ids; /* fd_ids: that many in a memfd */
        uint32_t batch, rank, world, kinds;
        bool unsealed;
        int code;
    } cases[] = {
        {.order = 4, .code = STOW_INVALID},
        {.order = -1, .code = STOW_INVALID},
        {.first = 22, .code = STOW_RANGE},
        {.first = UINT64_MAX, .code = STOW_RANGE},
        {.first = 2, .count = UINT64_MAX, .code = STOW_RANGE},
        {.batch = 8193, .code = STOW_INVALID},
        {.rank = 2, .world = 2, .code = STOW_INVALID},
        {.kinds = STOW__MEMORY_KIND__CUDA_FD | STOW__MEMORY_KIND__CUDA_IPC,
         .code = STOW_UNSUPPORTED},
        {.order = 1, .n_ids = 2, .total_ids = 3, .code = STOW_INVALID},
        {.order = 1, .n_ids = 4, .total_ids = 4, .code = STOW_RANGE},
        {.order = 1, .fd_ids = 4, .total_ids = 4, .code = STOW_RANGE},
        {.order = 1, .fd_ids = 2, .total_ids = 3, .code = STOW_INVALID},
        {.order = 1, .fd_ids = 2, .total_ids = UINT64_MAX, .code = STOW_INVALID},
        {.order = 1, .fd_ids = 2, .total_ids = UINT64_MAX / 8 + 1, .code = STOW_INVALID},
        {.order = 1, .fd_ids = 2, .total_ids = 2, .n_ids = 1, .code = STOW_INVALID},
        {.order = 1, .fd_ids = 2, .total_ids = 2, .unsealed = true, .code = STOW_INVALID},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int failed = test_failed;
        Stow__Stream ask = ask_for("x");
        ask.order = (Stow__Order)cases[i].order;
        ask.first = cases[i].first;
        ask.count = cases[i].count;
        ask.batch = cases[i].batch;
        ask.rank = cases[i].rank;
        ask.world = cases[i].world;
        ask.memory_kinds = cases[i].kinds;
        ask.ids = ids;
        ask.n_ids = cases[i].n_ids;
        ask.total_ids = cases[i].total_ids;
        int fd = cases[i].fd_ids ? id_fd(ids, cases[i].fd_ids * 8, !cases[i].unsealed) : -1;
        REQUEST(request, STREAM, stream, ask, 60);
        send_fds(&client, &request, &fd, fd >= 0);
        expect_error(&client, 60, cases[i].code, NULL);
        if (fd >= 0)
            close(fd);
        CHECK_MSG(test_failed == failed, "case %zu", i);
    }
    server.store.residents->state = RESIDENT_EVICTED;
    Stow__Stream ask = ask_for("x");
    REQUEST(request, STREAM, stream, ask, 60);
    send_request(&client, &request);
    expect_error(&client, 60, STOW_STATE, "scan_master.h5");
    server.store.residents->state = RESIDENT_DAMAGED;
    CHECK_INT(server.places[0].used_bytes, 0);
    client_close(&client);
    check_empty();
}

static void test_list_and_request(void)
{
    struct client client = client_ready();
    struct ring ring;
    put("x", 1000, 30000);
    static uint64_t ids[5000];
    for (uint64_t i = 0; i < 5000; i++)
        ids[i] = (i * 7919 + 1) % 30000;
    Stow__Stream ask = ask_for("x");
    ask.order = STOW__ORDER__LIST;
    ask.total_ids = 5000;
    ask.batch = 5000;
    int fd = id_fd(ids, sizeof(ids), true);
    CHECK(open_ring(&client, &ring, &ask, &fd, 1));
    close(fd);
    CHECK_INT(ring.positions, 5000);
    send_attached(&client, &ring);
    expect(&client, 61, STOW__REPLY__BODY_DONE);
    Stow__Ready *ready = expect_ready(&client);
    CHECK(ready && ready->n_ids == 5000 && !memcmp(ready->ids, ids, sizeof(ids)) &&
          ready->n_status == 5000);
    Stow__Event *event = receive_event(&client);
    CHECK(event && event->body_case == STOW__EVENT__BODY_STREAM_END);
    /* the largest READY there is: every id and every status */
    ask.order = STOW__ORDER__SHUFFLED;
    ask.total_ids = 0;
    ask.batch = STREAM_MAX_BATCH;
    CHECK(open_ring(&client, &ring, &ask, NULL, 0));
    send_attached(&client, &ring);
    expect(&client, 61, STOW__REPLY__BODY_DONE);
    ready = expect_ready(&client);
    CHECK(ready && ready->n_ids == STREAM_MAX_BATCH && ready->n_status == STREAM_MAX_BATCH);
    CHECK(expect_ready(&client) != NULL);
    /* on request */
    ask.order = STOW__ORDER__ON_REQUEST;
    ask.batch = 4;
    CHECK(open_ring(&client, &ring, &ask, NULL, 0));
    CHECK(ring.positions == UINT64_MAX);
    Stow__Frames frames = STOW__FRAMES__INIT;
    frames.ring = ring.ring;
    frames.ids = ids;
    frames.n_ids = frames.total_ids = 3;
    REQUEST(request, FRAMES, frames, frames, 64);
    send_request(&client, &request);
    expect_error(&client, 64, STOW_STATE, NULL); /* not attached */
    send_attached(&client, &ring);
    expect(&client, 61, STOW__REPLY__BODY_DONE);
    send_request(&client, &request);
    expect(&client, 64, STOW__REPLY__BODY_DONE);
    ready = expect_ready(&client);
    CHECK(ready && ready->ring == ring.ring && ready->n_frames == 3 && ready->n_ids == 3 &&
          ready->ids[2] == ids[2]);
    frames.n_ids = frames.total_ids = 5;
    send_request(&client, &request);
    expect_error(&client, 64, STOW_INVALID, NULL);
    frames.n_ids = frames.total_ids = 1;
    uint64_t past = UINT64_MAX;
    frames.ids = &past;
    send_request(&client, &request);
    expect_error(&client, 64, STOW_RANGE, NULL);
    client_close(&client);
    check_empty();
}

static void test_wrong_nonce(void)
{
    struct client client = client_ready();
    struct ring ring;
    put("x", 1000, 21);
    Stow__Stream ask = ask_for("x");
    CHECK(open_ring(&client, &ring, &ask, NULL, 0));
    ring.nonce[15] ^= 0x80;
    send_attached(&client, &ring);
    expect_error(&client, 61, STOW_DEVICE, "ring");
    ring.nonce[15] ^= 0x80;
    send_attached(&client, &ring); /* it has ended */
    expect_error(&client, 61, STOW_STATE, NULL);
    send_ring(&client, false, ring.ring);
    expect(&client, 63, STOW__REPLY__BODY_DONE);
    client_close(&client);
    check_empty();
}

/* Some wrong releases are answered; too many close the connection. Another's ring cannot be touched. */
static void test_stale(void)
{
    struct client client = client_ready(), thief = client_ready();
    struct ring ring;
    put("x", 1000, 21);
    Stow__Stream ask = ask_for("x");
    CHECK(open_ring(&client, &ring, &ask, NULL, 0));
    send_attached(&client, &ring);
    expect(&client, 61, STOW__REPLY__BODY_DONE);
    Stow__Ready *ready = expect_ready(&client);
    uint64_t generation = ready ? ready->generation : 0, stale = metrics.stale_releases_total;
    uint32_t slot = ready ? ready->slot : 0;
    CHECK(expect_ready(&client) != NULL);
    send_release(&thief, ring.ring, slot, generation);
    expect_error(&thief, 62, STOW_STALE, NULL);
    send_ring(&thief, true, ring.ring);
    expect_error(&thief, 63, STOW_UNKNOWN, NULL);
    send_release(&client, ring.ring, slot, generation + 1);
    expect_error(&client, 62, STOW_STALE, NULL);
    send_release(&client, ring.ring, 2, generation);
    expect_error(&client, 62, STOW_STALE, NULL);
    send_release(&client, ring.ring + 1000, slot, generation);
    expect_error(&client, 62, STOW_STALE, NULL);
    Stow__Release uneven = STOW__RELEASE__INIT;
    uneven.ring = ring.ring;
    uneven.slots = &slot;
    uneven.n_slots = 1;
    REQUEST(request, RELEASE, release, uneven, 65);
    send_request(&client, &request);
    expect_error(&client, 65, STOW_STALE, NULL);
    CHECK_INT(metrics.stale_releases_total, stale + 5);
    send_release(&client, ring.ring, slot, generation); /* held all along */
    CHECK(expect_ready(&client) != NULL);
    unsigned n = 0;
    client.doomed = true;
    for (; n < 200 && !client.closed; n++) {
        send_release(&client, ring.ring, slot, generation);
        receive(&client);
    }
    CHECK_MSG(n > 30 && n < 100, "closed after %u", n);
    client_close(&client);
    client_close(&thief);
    check_empty();
}

/* A client that dies at any moment of a stream leaves nothing. */
static void test_vanish(void)
{
    for (int stage = 0; stage < 6; stage++) {
        struct client client = client_ready();
        struct ring ring;
        put("x", 1000, 21);
        Stow__Stream ask = ask_for("x");
        REQUEST(request, STREAM, stream, ask, 60);
        if (stage == 0) {
            send_request(&client, &request);
            uv_run(&server.loop, UV_RUN_NOWAIT);
        } else {
            CHECK(open_ring(&client, &ring, &ask, NULL, 0));
            if (stage > 1)
                send_attached(&client, &ring);
            if (stage > 2)
                expect(&client, 61, STOW__REPLY__BODY_DONE);
            if (stage > 3)
                CHECK(expect_ready(&client) != NULL);
            if (stage > 4)
                send_ring(&client, true, ring.ring);
        }
        client_close(&client);
        check_empty();
    }
}

/* ---- the end ---- */

static void test_goodbye(void)
{
    struct client client = client_ready(), fresh = client_connect();
    struct ring ring;
    put("x", 1000, 21);
    Stow__Stream ask = ask_for("x");
    CHECK(open_ring(&client, &ring, &ask, NULL, 0));
    send_attached(&client, &ring);
    expect(&client, 61, STOW__REPLY__BODY_DONE);
    Stow__Ready *ready = expect_ready(&client);
    uint32_t slot = ready ? ready->slot : 0;
    uint64_t generation = ready ? ready->generation : 0;
    CHECK(expect_ready(&client) != NULL);
    kill(getpid(), SIGTERM);
    Stow__Event *event = receive_event(&client);
    CHECK(event && event->body_case == STOW__EVENT__BODY_GOODBYE && event->goodbye->reason[0] &&
          event->goodbye->deadline_ms > 0);
    CHECK(server.draining);
    send_release(&client, ring.ring, slot, generation);
    REQUEST(request, STREAM, stream, ask, 60);
    send_request(&client, &request);
    expect_error(&client, 60, STOW_SHUTDOWN, NULL); /* and no READY before it */
    int file = memfd_create("file", MFD_CLOEXEC);
    Stow__Load load = STOW__LOAD__INIT;
    load.name = bytes_of("n");
    REQUEST(late, LOAD, load, load, 70);
    send_fds(&client, &late, &file, 1);
    close(file);
    expect_error(&client, 70, STOW_SHUTDOWN, NULL);
    CHECK(!receive(&fresh) && !fresh.closed); /* it never said HELLO: nothing to say to it */
    client_close(&client);
    client_close(&fresh);
}

int main(void)
{
    serve();
    int before = count_fds();
    test_stream();
    test_stream_refusals();
    test_list_and_request();
    test_wrong_nonce();
    test_stale();
    test_vanish();
    for (int i = 0; i < 1000 && count_fds() != before; i++) { /* libuv lets go of handles later */
        turn();
        usleep(1000);
    }
    CHECK_INT(count_fds(), before);
    test_goodbye();
    serve_no_more();
    return test_end();
}
