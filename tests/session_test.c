/* SPDX-License-Identifier: Apache-2.0
 *
 * session_test: every request in the right and the wrong state, whole and byte by byte; what is no request; and
 * clients that do not read, say nothing, or are too many. */
#include "served.h"

/* ---- hello and states ---- */

static void test_hello(void)
{
    static const struct {
        uint32_t min, max;
        bool ok;
    } cases[] = {{1, 1, true}, {0, 9, true}, {2, 9, false}, {0, 0, false}, {9, 2, false}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct client client = client_connect();
        Stow__Hello hello = STOW__HELLO__INIT;
        hello.protocol_min = cases[i].min;
        hello.protocol_max = cases[i].max;
        hello.version = "9.9.9";
        REQUEST(request, HELLO, hello, hello, 77);
        send_request(&client, &request);
        if (!cases[i].ok) {
            expect_error(&client, 77, STOW_VERSION, "9.9.9");
            CHECK(is_closed(&client));
            client_close(&client);
            continue;
        }
        const Stow__Reply *reply = expect(&client, 77, STOW__REPLY__BODY_HELLO);
        CHECK(reply && reply->hello->protocol == 1 && reply->hello->boot_id.len == 16 &&
              reply->hello->n_devices == 1 && strcmp(reply->hello->devices[0]->name, "host") == 0 &&
              reply->hello->max_message == WIRE_MAX_BODY &&
              reply->hello->max_batch == STREAM_MAX_BATCH && reply->hello->max_bytes == 64 * MIB &&
              reply->hello->pid == (uint64_t)getpid() &&
              reply->hello->memory_kinds == STOW__MEMORY_KIND__HOST_FD);
        request.id = 78;
        send_request(&client, &request); /* twice */
        expect_error(&client, 78, STOW_STATE, "hello");
        Stow__Stats stats = STOW__STATS__INIT;
        REQUEST(again, STATS, stats, stats, 79);
        send_request(&client, &again);
        expect(&client, 79, STOW__REPLY__BODY_STATS);
        client_close(&client);
    }
    check_empty();
}

/* Every request as it is when nothing is filled in. */
static Stow__Request *empty_request(Stow__Request__BodyCase body, uint64_t id)
{
    uint8_t text[16];
    size_t n = 0;
    text[n++] = 1 << 3; /* id */
    text[n++] = (uint8_t)id;
    text[n++] =
        (uint8_t)((unsigned)body << 3 | 2); /* field numbers are the body cases; all below 17 */
    if (body == STOW__REQUEST__BODY_STATS) {
        n--;
        text[n++] = 0x82;
        text[n++] = 0x01;
    }
    text[n++] = 0;
    return stow__request__unpack(NULL, n, text);
}

static void test_states(void)
{
    struct client client = client_connect();
    for (int body = STOW__REQUEST__BODY_LOAD; body <= STOW__REQUEST__BODY_STATS; body++) {
        Stow__Request *request = empty_request((Stow__Request__BodyCase)body, 50);
        CHECK(request && (int)request->body_case == body);
        send_request(&client, request);
        expect_error(&client, 50, STOW_STATE, "HELLO");
        stow__request__free_unpacked(request, NULL);
    }
    say_hello(&client); /* and it lives */
    client_close(&client);
    check_empty();
}

/* What each request says when nothing is filled in. */
static const struct {
    Stow__Request__BodyCase body;
    Stow__Reply__BodyCase reply;
    int code;
} bare[] = {
    {STOW__REQUEST__BODY_LOAD, STOW__REPLY__BODY_ERROR, STOW_INVALID},
    {STOW__REQUEST__BODY_FILES, STOW__REPLY__BODY_DONE, 0},
    {STOW__REQUEST__BODY_CANCEL, STOW__REPLY__BODY_DONE, 0},
    {STOW__REQUEST__BODY_LIST, STOW__REPLY__BODY_LIST, 0},
    {STOW__REQUEST__BODY_INFO, STOW__REPLY__BODY_ERROR, STOW_INVALID},
    {STOW__REQUEST__BODY_UNLOAD, STOW__REPLY__BODY_ERROR, STOW_INVALID},
    {STOW__REQUEST__BODY_STREAM, STOW__REPLY__BODY_ERROR, STOW_INVALID},
    {STOW__REQUEST__BODY_ATTACHED, STOW__REPLY__BODY_ERROR, STOW_UNKNOWN},
    {STOW__REQUEST__BODY_FRAMES, STOW__REPLY__BODY_ERROR, STOW_UNKNOWN},
    {STOW__REQUEST__BODY_CLOSE_STREAM, STOW__REPLY__BODY_ERROR, STOW_UNKNOWN},
    {STOW__REQUEST__BODY_DETACHED, STOW__REPLY__BODY_ERROR, STOW_UNKNOWN},
    {STOW__REQUEST__BODY_FRAME_ERRORS, STOW__REPLY__BODY_ERROR, STOW_INVALID},
    {STOW__REQUEST__BODY_STATS, STOW__REPLY__BODY_STATS, 0},
};
#define N_BARE (sizeof(bare) / sizeof(bare[0]))

static void check_bare(struct client *client, size_t i, uint64_t id)
{
    if (bare[i].code)
        expect_error(client, id, bare[i].code, NULL);
    else
        expect(client, id, bare[i].reply);
}

static size_t frame_request(uint8_t *text, const Stow__Request *request)
{
    size_t bytes = stow__request__pack(request, text + HEADER);
    for (int i = 0; i < 4; i++) {
        text[i] = (uint8_t)(bytes >> (8 * i));
        text[4 + i] = 0;
    }
    return HEADER + bytes;
}

/* All requests, one byte each turn of the loop; then all of them by one write. */
static void test_byte_by_byte(void)
{
    static uint8_t text[4096];
    for (int at_once = 0; at_once < 2; at_once++) {
        struct client client = client_connect();
        Stow__Hello hello = STOW__HELLO__INIT;
        hello.protocol_min = hello.protocol_max = 1;
        REQUEST(first, HELLO, hello, hello, 100);
        size_t n = frame_request(text, &first);
        for (size_t i = 0; i < N_BARE; i++) {
            Stow__Request *request = empty_request(bare[i].body, 101 + i);
            n += frame_request(text + n, request);
            stow__request__free_unpacked(request, NULL);
        }
        for (size_t i = 0; i < n; i += at_once ? n : 1) {
            CHECK(send(client.fd, text + i, at_once ? n : 1, 0) > 0);
            uv_run(&server.loop, UV_RUN_NOWAIT);
        }
        expect(&client, 100, STOW__REPLY__BODY_HELLO);
        for (size_t i = 0; i < N_BARE; i++)
            check_bare(&client, i, 101 + i);
        client_close(&client);
    }
    check_empty();
}

/* ---- what is no request ---- */

static void send_text(struct client *client, const void *body, uint32_t bytes, uint32_t announced,
                      uint32_t n_fds)
{
    uint8_t header[HEADER];
    for (int i = 0; i < 4; i++) {
        header[i] = (uint8_t)(announced >> (8 * i));
        header[4 + i] = (uint8_t)(n_fds >> (8 * i));
    }
    CHECK(send(client->fd, header, HEADER, MSG_NOSIGNAL) == HEADER);
    CHECK(!bytes || send(client->fd, body, bytes, MSG_NOSIGNAL) == (ssize_t)bytes);
}

static void test_unknown(void)
{
    struct client client = client_ready();
    static const uint8_t field99[] = {0x08, 0x05, 0x9a, 0x06, 0x02, 'h', 'i'},
                         only_id[] = {0x08, 0x06};
    send_text(&client, field99, sizeof(field99), sizeof(field99), 0);
    expect_error(&client, 5, STOW_UNSUPPORTED, NULL);
    send_text(&client, only_id, sizeof(only_id), sizeof(only_id), 0);
    expect_error(&client, 6, STOW_UNSUPPORTED, NULL);
    send_text(&client, "", 0, 0, 0);
    expect_error(&client, 0, STOW_UNSUPPORTED, NULL);
    /* a known request with a field of a later version */
    static const uint8_t later[] = {0x08, 0x07, 0x32, 0x04, 0xf8, 0x07, 0x01, 0x00};
    send_text(&client, later, 7, 7, 0); /* cut short: not a message */
    CHECK(is_closed(&client));
    client_close(&client);
    client = client_ready();
    static const uint8_t list[] = {0x08, 0x07, 0x32, 0x03, 0xf8, 0x07, 0x01};
    send_text(&client, list, sizeof(list), sizeof(list), 0);
    expect(&client, 7, STOW__REPLY__BODY_LIST);
    client_close(&client);
    check_empty();
}

static void test_garbage(void)
{
    static uint8_t noise[4096];
    for (size_t i = 0; i < sizeof(noise); i++)
        noise[i] = (uint8_t)(i * 131 + 0xff - i / 7);
    static const struct {
        uint32_t bytes, announced, n_fds;
    } cases[] = {{100, 100, 0},       {4096, 4096, 0}, {4, 65537, 0},
                 {4, 0xffffffffu, 0}, {4, 4, 65},      {4, 4, 1}};
    for (int greeted = 0; greeted < 2; greeted++) {
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            uint64_t errors = metrics.protocol_errors_total;
            struct client client = client_connect(), other = client_ready();
            if (greeted)
                say_hello(&client);
            send_text(&client, noise, cases[i].bytes, cases[i].announced, cases[i].n_fds);
            CHECK(is_closed(&client));
            CHECK_INT(metrics.protocol_errors_total, errors + 1);
            Stow__Stats stats = STOW__STATS__INIT; /* the others do not notice */
            REQUEST(request, STATS, stats, stats, 3);
            send_request(&other, &request);
            expect(&other, 3, STOW__REPLY__BODY_STATS);
            client_close(&client);
            client_close(&other);
        }
    }
    /* half a message, and gone */
    struct client client = client_ready();
    send_text(&client, noise, 10, 100, 0);
    turn();
    CHECK_INT(server.n_sessions, 1);
    client_close(&client);
    check_empty();
}

/* Descriptors that no request wants are closed. */
static void test_stray_fds(void)
{
    struct client client = client_ready();
    Stow__Stats stats = STOW__STATS__INIT;
    REQUEST(request, STATS, stats, stats, 4);
    int before = count_fds();
    for (int i = 0; i < 5; i++) {
        send_fds(&client, &request, (int[]){0, 1, 2}, 3);
        expect(&client, 4, STOW__REPLY__BODY_STATS);
    }
    send_request(&client, &request);
    expect(&client, 4, STOW__REPLY__BODY_STATS);
    CHECK_INT(count_fds(), before);
    client_close(&client);
    check_empty();
}

/* ---- clients that do not read ---- */

static void flood(struct client *client, size_t n, size_t *n_sent)
{
    static uint8_t text[64];
    Stow__Stats stats = STOW__STATS__INIT;
    for (*n_sent = 0; *n_sent < n; ++*n_sent) {
        REQUEST(request, STATS, stats, stats, 1000 + *n_sent);
        size_t bytes = frame_request(text, &request);
        if (send(client->fd, text, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)bytes)
            break;
        if (*n_sent % 16 == 0)
            uv_run(&server.loop, UV_RUN_NOWAIT);
    }
    turn();
}

static void test_backlog(void)
{
    struct client client = client_ready(), other = client_ready();
    size_t n_sent;
    flood(&client, 1000000,
          &n_sent); /* whole requests: the kernel takes the short ones whole or not at all */
    CHECK_MSG(n_sent > 100 && n_sent < 1000000, "%zu were taken", n_sent);
    struct session *session = server.sessions;
    while (session->next)
        session = session->next; /* the first */
    CHECK_MSG(wire_backlog(session->wire) >= SESSION_BACKLOG_BYTES &&
                  wire_backlog(session->wire) < SESSION_BACKLOG_BYTES + WIRE_MAX_BODY,
              "backlog %zu", wire_backlog(session->wire));
    Stow__Stats stats = STOW__STATS__INIT;
    REQUEST(request, STATS, stats, stats, 3);
    send_request(&other, &request); /* nobody else waits for it */
    expect(&other, 3, STOW__REPLY__BODY_STATS);
    size_t n_came = 0, wrong = 0;
    for (; n_came < n_sent; n_came++) {
        const Stow__Reply *reply = receive_reply(&client);
        if (!reply)
            break;
        wrong += reply->id != 1000 + n_came || reply->body_case != STOW__REPLY__BODY_STATS;
    }
    CHECK_INT(n_came, n_sent);
    CHECK_INT(wrong, 0);
    client_close(&client);
    client_close(&other);
    check_empty();
}

/* Requests that came while too much was queued are carried out as soon as it is not, though the client says
 * no more: also when all of the queue left by one write. */
static void test_backlog_drains_at_once(void)
{
    struct client client = client_ready();
    int large = 64 << 20;
    struct session *session = server.sessions;
    CHECK(!setsockopt(wire_fd(session->wire), SOL_SOCKET, SO_SNDBUFFORCE, &large, sizeof(large)) ||
          geteuid() != 0);
    static uint8_t text[1 << 16];
    size_t bytes = 0, n = 0;
    Stow__Stats stats = STOW__STATS__INIT;
    for (; n < 1000; n++) {
        REQUEST(request, STATS, stats, stats, 1000 + n);
        bytes += frame_request(text + bytes, &request);
    }
    for (size_t at = 0; at < bytes;) {
        ssize_t sent = send(client.fd, text + at, bytes - at, MSG_DONTWAIT | MSG_NOSIGNAL);
        at += sent > 0 ? (size_t)sent : 0;
        if (sent < 0)
            turn();
    }
    size_t n_came = 0;
    while (n_came < n && receive_reply(&client))
        n_came++;
    CHECK_INT(n_came, n);
    client_close(&client);
    check_empty();
}

static void test_time_limits(void)
{
    struct client silent = client_connect(), client = client_ready();
    struct session *ready = server.sessions, *fresh = ready->next;
    uint64_t now = uv_hrtime();
    session_watch(fresh, now + SESSION_HELLO_NS / 2);
    session_watch(ready, now + 100 * SESSION_HELLO_NS);
    turn();
    CHECK_INT(server.n_sessions, 2);
    session_watch(fresh, now + 2 * SESSION_HELLO_NS);
    CHECK(is_closed(&silent));
    CHECK_INT(server.n_sessions, 1);
    size_t n_sent;
    flood(&client, 1000000, &n_sent);
    session_watch(ready, now);
    session_watch(ready, now + 1);
    session_watch(ready, now + SESSION_STUCK_NS / 2);
    CHECK_INT(server.n_sessions, 1);
    session_watch(ready, now + 2 * SESSION_STUCK_NS);
    CHECK_INT(server.n_sessions, 0);
    client_close(&silent);
    client_close(&client);
    check_empty();
}

static void test_turned_away(void)
{
    struct client client = client_ready();
    unsigned most = server.max_sessions;
    server.max_sessions = 1;
    struct client second = client_connect();
    expect_error(&second, 0, STOW_LIMIT, NULL);
    CHECK(is_closed(&second));
    CHECK_INT(server.n_sessions, 1);
    client_close(&second);
    client_close(&client);
    second = client_ready(); /* there is room again */
    client_close(&second);
    server.max_sessions = most;
    check_empty();
}

int main(void)
{
    serve();
    int before = count_fds();
    test_hello();
    test_states();
    test_byte_by_byte();
    test_unknown();
    test_garbage();
    test_stray_fds();
    test_backlog();
    test_backlog_drains_at_once();
    test_time_limits();
    test_turned_away();
    CHECK_INT(count_fds(), before);
    serve_no_more();
    return test_end();
}
