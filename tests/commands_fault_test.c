/* SPDX-License-Identifier: Apache-2.0
 *
 * commands_fault_test: a client's whole conversation, with every single allocation of the daemon failing in turn:
 * whatever it answers, it lives, and nothing of the client is left. */
#include "alloc_fault.h"
#include "served.h"

#define N_STEPS 11

static int step_fd;

/* Send the client's next request. Ring, slot and the like are read from the server itself. */
static void send_step(struct client *client, int step)
{
    struct session *session = server.sessions;
    const struct stream *stream = session && session->streams ? session->streams->stream : NULL;
    const uint64_t ring = stream ? stream->ring : 1;
    static uint64_t ids[] = {0, 7, 10}, generation = 1;
    static uint32_t slot;
    Stow__Hello hello = STOW__HELLO__INIT;
    Stow__List list = STOW__LIST__INIT;
    Stow__Info info = STOW__INFO__INIT;
    Stow__Stats stats = STOW__STATS__INIT;
    Stow__FrameErrors errors = STOW__FRAME_ERRORS__INIT;
    Stow__Stream ask = STOW__STREAM__INIT;
    Stow__Attached attached = STOW__ATTACHED__INIT;
    Stow__Release release = STOW__RELEASE__INIT;
    Stow__Load load = STOW__LOAD__INIT;
    Stow__CloseStream closing = STOW__CLOSE_STREAM__INIT;
    Stow__Detached detached = STOW__DETACHED__INIT;
    hello.protocol_min = hello.protocol_max = 1;
    hello.version = "test";
    info.name = errors.name = ask.name = bytes_of("x");
    load.name = bytes_of("y");
    load.path = bytes_of("/data/y.h5");
    errors.ids = ask.ids = ids;
    errors.n_ids = ask.n_ids = ask.total_ids = 3;
    ask.order = STOW__ORDER__LIST;
    ask.batch = 2;
    ask.slots = 1;
    attached.ring = release.ring = closing.ring = detached.ring = ring;
    if (stream)
        attached.nonce =
            (ProtobufCBinaryData){.len = STREAM_NONCE_BYTES, .data = (uint8_t *)stream->nonce};
    release.slots = &slot;
    release.generations = &generation;
    release.n_slots = release.n_generations = 1;
    REQUEST(a, HELLO, hello, hello, 1);
    REQUEST(b, LIST, list, list, 2);
    REQUEST(c, INFO, info, info, 3);
    REQUEST(d, STATS, stats, stats, 4);
    REQUEST(e, FRAME_ERRORS, frame_errors, errors, 5);
    REQUEST(f, STREAM, stream, ask, 6);
    REQUEST(g, ATTACHED, attached, attached, 7);
    REQUEST(h, RELEASE, release, release, 8);
    REQUEST(i, LOAD, load, load, 9);
    REQUEST(j, CLOSE_STREAM, close_stream, closing, 10);
    REQUEST(k, DETACHED, detached, detached, 11);
    const Stow__Request *steps[N_STEPS] = {&a, &b, &c, &d, &e, &f, &g, &h, &i, &j, &k};
    send_fds(client, steps[step], &step_fd, steps[step] == &i);
}

/* Returns how many replies and events that are no errors came. */
static unsigned converse(unsigned k, bool sticks, bool *happened)
{
    unsigned n_good = 0;
    put("x", 1000, 20);
    struct client client = client_connect();
    client.doomed = true;
    alloc_fault_arm(k, sticks);
    alloc_fault_paused = true;
    for (int step = 0; step < N_STEPS; step++) {
        send_step(&client, step);
        alloc_fault_paused = false;
        for (int i = 0; i < 12; i++) {
            uv_run(&server.loop, UV_RUN_NOWAIT);
            /* The ring is made, the reader runs. The first conversation must get to its end on a busy machine too. */
            usleep(k == 0 ? 5000 : step == 5 || step == 8 ? 300 : 20);
        }
        alloc_fault_paused = true;
    }
    *happened = alloc_fault_disarm();
    alloc_fault_paused = false;
    struct wire_message message;
    struct stow_error err;
    while (wire_read(client.wire, &err) == 1) {
        while (wire_next(client.wire, &message, &err) == 1) {
            Stow__Message *m = stow__message__unpack(NULL, message.bytes, message.body);
            CHECK(m != NULL);
            n_good += m && (m->body_case != STOW__MESSAGE__BODY_REPLY ||
                            m->reply->body_case != STOW__REPLY__BODY_ERROR);
            if (m)
                stow__message__free_unpacked(m, NULL);
        }
    }
    client_close(&client);
    for (int i = 0; i < 500 && server.loads.first; i++) {
        turn();
        usleep(1000);
    }
    check_empty();
    return n_good;
}

int main(void)
{
    if (!alloc_fault_works) {
        printf("skipped: a sanitizer is at work, allocations do not fail here\n");
        return TEST_SKIP;
    }
    serve();
    step_fd = memfd_create("file", MFD_CLOEXEC);
    bool happened;
    unsigned most = converse(0, false, &happened);
    CHECK_MSG(most >= N_STEPS && !happened, "%u good answers", most);
    int before = count_fds();
    for (int sticks = 0; sticks < 2; sticks++) {
        happened = true;
        unsigned k = 1;
        for (; happened && k < 2000; k++) {
            int failed = test_failed;
            converse(k, sticks, &happened);
            CHECK_MSG(test_failed == failed, "fault %u", k);
        }
        CHECK_MSG(k > 50 && k < 2000, "%u allocations", k);
    }
    for (int i = 0; i < 1000 && count_fds() != before; i++) {
        turn();
        usleep(1000);
    }
    CHECK_INT(count_fds(), before);
    serve_no_more();
    return test_end();
}
