/* SPDX-License-Identifier: Apache-2.0
 *
 * session_test: a whole server in this process, its loop driven from here, and clients that speak the wire by
 * hand: every request whole and byte by byte, in the right and the wrong state, good and bad; and clients that
 * misbehave. */
#include "server.h"
#include "session.h"

#include "log.h"
#include "metrics.h"
#include "test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define HEADER 8
#define MIB (UINT64_C(1) << 20)
#define N_ELEMS 30u

static struct server server;
static char folder[] = "/tmp/framestow-session-XXXXXX";
static char socket_path[64];

static void turn(void)
{
    for (int i = 0; i < 4; i++)
        uv_run(&server.loop, UV_RUN_NOWAIT);
}

/* ---- a client ---- */

struct client {
    int fd;
    struct wire *wire;
    Stow__Message *message; /* the last that came */
    int message_fd;         /* its descriptor, or -1 */
    bool closed;
    bool doomed;            /* it may be closed at any send */
};

static struct client client_connect(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, socket_path);
    struct client client = {.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), .message_fd = -1};
    if (client.fd < 0 || connect(client.fd, (struct sockaddr *)&address, sizeof(address)))
        exit(EXIT_FAILURE);
    client.wire = wire_new(client.fd);
    turn();
    return client;
}

static void client_close(struct client *client)
{
    if (client->message)
        stow__message__free_unpacked(client->message, NULL);
    if (client->message_fd >= 0)
        close(client->message_fd);
    wire_free(client->wire);
    turn();
}

/* The next message; NULL when none comes in a while, or the daemon closed the connection. */
static Stow__Message *receive(struct client *client)
{
    struct wire_message raw;
    struct stow_error err;
    if (client->message)
        stow__message__free_unpacked(client->message, NULL);
    if (client->message_fd >= 0)
        close(client->message_fd);
    client->message = NULL;
    client->message_fd = -1;
    for (int i = 0; i < 300 && !client->closed; i++) {
        turn();
        int rc = wire_next(client->wire, &raw, &err);
        if (rc == 1) {
            client->message = stow__message__unpack(NULL, raw.bytes, raw.body);
            CHECK(client->message != NULL && raw.n_fds <= 1);
            if (raw.n_fds) {
                client->message_fd = raw.fds[0];
                raw.fds[0] = -1;
            }
            return client->message;
        }
        rc = rc < 0 ? rc : wire_read(client->wire, &err);
        client->closed = rc < 0;
        if (i > 20 && !rc)
            usleep(1000);
    }
    return NULL;
}

static Stow__Reply *receive_reply(struct client *client)
{
    Stow__Message *message = receive(client);
    return message && message->body_case == STOW__MESSAGE__BODY_REPLY ? message->reply : NULL;
}

static Stow__Event *receive_event(struct client *client)
{
    Stow__Message *message = receive(client);
    return message && message->body_case == STOW__MESSAGE__BODY_EVENT ? message->event : NULL;
}

static bool is_closed(struct client *client)
{
    while (receive(client))
        ;
    return client->closed;
}

/* Declare a request of this kind (its member of the union), message and number. */
#define REQUEST(var, NAME, member, message, number)    \
    Stow__Request var = STOW__REQUEST__INIT;           \
    var.id = number;                                   \
    var.body_case = STOW__REQUEST__BODY_##NAME;        \
    var.member = &message

static void send_fds(struct client *client, const Stow__Request *request, const int *fds, size_t n_fds)
{
    static uint8_t body[WIRE_MAX_BODY];
    struct stow_error err;
    size_t bytes = stow__request__pack(request, body);
    CHECK(!wire_send(client->wire, body, bytes, fds, n_fds, &err));
    CHECK(wire_flush(client->wire, &err) >= 0 || client->doomed);
}

static void send_request(struct client *client, const Stow__Request *request)
{
    send_fds(client, request, NULL, 0);
}

/* The reply must be this error; its sentence must be there, and hold `names` if that is given. */
static void expect_error(struct client *client, uint64_t id, int code, const char *names)
{
    const Stow__Reply *reply = receive_reply(client);
    CHECK_MSG(reply != NULL, "request %llu: no reply", (unsigned long long)id);
    if (!reply)
        return;
    CHECK_INT(reply->id, id);
    CHECK_INT(reply->body_case, STOW__REPLY__BODY_ERROR);
    if (reply->body_case != STOW__REPLY__BODY_ERROR)
        return;
    CHECK_MSG((int)reply->error->code == -code, "request %llu: code %d, expected %d: %s", (unsigned long long)id,
              -(int)reply->error->code, code, reply->error->text);
    CHECK(reply->error->text[0] && (!names || strstr(reply->error->text, names)));
}

static Stow__Reply *expect(struct client *client, uint64_t id, Stow__Reply__BodyCase body)
{
    Stow__Reply *reply = receive_reply(client);
    CHECK_MSG(reply && reply->id == id && reply->body_case == body, "request %llu: reply %d, expected %d: %s",
              (unsigned long long)id, reply ? (int)reply->body_case : -1, (int)body,
              reply && reply->body_case == STOW__REPLY__BODY_ERROR ? reply->error->text : "");
    return reply && reply->body_case == body ? reply : NULL;
}

static void say_hello(struct client *client)
{
    Stow__Hello hello = STOW__HELLO__INIT;
    hello.protocol_min = hello.protocol_max = 1;
    hello.version = "test";
    REQUEST(request, HELLO, hello, hello, 1);
    send_request(client, &request);
    expect(client, 1, STOW__REPLY__BODY_HELLO);
}

static struct client client_ready(void)
{
    struct client client = client_connect();
    say_hello(&client);
    return client;
}

static ProtobufCBinaryData bytes_of(const char *text)
{
    return (ProtobufCBinaryData){.len = strlen(text), .data = (uint8_t *)text};
}

/* ---- what the server holds ---- */

/* Frames of the fill value; every tenth is bad. One reference, the name's. */
static struct resident *put(const char *text, uid_t owner, uint64_t n_frames)
{
    struct resident *resident = resident_new(&server.store, &server.places[0], owner);
    strcpy(resident->dtype, "u2");
    resident->det_y = 1;
    resident->det_x = N_ELEMS;
    resident->shape = (struct frame_shape){.n_elems = N_ELEMS, .elem_bytes = 2, .fill = 0x1234};
    resident->n_frames = resident->n_loaded = n_frames;
    resident->frames = calloc(n_frames + 1, sizeof(*resident->frames));
    resident->origins = calloc(1, sizeof(*resident->origins));
    resident->origins[0].path = strdup("/data/scan_master.h5");
    resident->n_origins = 1;
    resident->state = RESIDENT_DAMAGED;
    for (uint64_t id = 0; id < n_frames; id++)
        resident->frames[id].form = STOW_FORM_FILL;
    for (uint64_t id = 0; id < n_frames; id += 10)
        resident_fault(resident, id, 1, STOW_CORRUPT, "block 3 makes no sense");
    CHECK(store_bind(&server.store, text, owner, 100, STOW_SHARE_ALL, resident));
    resident_unref(resident);
    return resident;
}

static void check_empty(void)
{
    for (int i = 0; i < 4000 && (server.sessions || server.places[0].used_bytes || server.store.n_freeing); i++) {
        turn();
        usleep(500);
    }
    CHECK(!server.sessions && !server.n_sessions && metrics.sessions == 0);
    CHECK_INT(metrics.leases, 0);
    CHECK_INT(metrics.streams, 0);
    CHECK_INT(server.places[0].used_bytes, 0);
    store_clear(&server.store);
    turn();
    CHECK(store_is_idle(&server.store) && !server.loads.first);
}

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
              reply->hello->max_message == WIRE_MAX_BODY && reply->hello->max_batch == STREAM_MAX_BATCH &&
              reply->hello->max_bytes == 64 * MIB && reply->hello->pid == (uint64_t)getpid() &&
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
    text[n++] = (uint8_t)((unsigned)body << 3 | 2); /* field numbers are the body cases; all below 17 */
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

static void send_text(struct client *client, const void *body, uint32_t bytes, uint32_t announced, uint32_t n_fds)
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
    static const uint8_t field99[] = {0x08, 0x05, 0x9a, 0x06, 0x02, 'h', 'i'}, only_id[] = {0x08, 0x06};
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
    } cases[] = {{100, 100, 0}, {4096, 4096, 0}, {4, 65537, 0}, {4, 0xffffffffu, 0}, {4, 4, 65}, {4, 4, 1}};
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

static int count_fds(void)
{
    int n = 0;
    DIR *open_ones = opendir("/proc/self/fd");
    while (open_ones && readdir(open_ones))
        n++;
    if (open_ones)
        closedir(open_ones);
    return n;
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

/* ---- what there is ---- */

/* Page through the list; each page's rows are counted, and their names checked against the store's order. */
static size_t list_all(struct client *client, size_t *n_pages)
{
    size_t n = 0;
    uint8_t after[256];
    ProtobufCBinaryData last = {.len = 0};
    bool more = true;
    const struct name *name = server.store.names;
    for (*n_pages = 0; more && *n_pages < 100; ++*n_pages) {
        Stow__List list = STOW__LIST__INIT;
        list.after = last;
        REQUEST(request, LIST, list, list, 30);
        send_request(client, &request);
        const Stow__Reply *reply = expect(client, 30, STOW__REPLY__BODY_LIST);
        if (!reply || (reply->list->more && !reply->list->n_acquisitions))
            break;
        more = reply->list->more;
        for (size_t i = 0; i < reply->list->n_acquisitions; i++, n++, name = name ? name->next : NULL) {
            const Stow__Acquisition *row = reply->list->acquisitions[i];
            CHECK(name && row->name.len == strlen(name->text) && !memcmp(row->name.data, name->text, row->name.len) &&
                  row->owner_uid == name->owner);
            memcpy(after, row->name.data, row->name.len);
            last = (ProtobufCBinaryData){.len = row->name.len, .data = after};
        }
    }
    return n;
}

static void test_list(void)
{
    struct client client = client_ready();
    size_t n_pages;
    CHECK_INT(list_all(&client, &n_pages), 0);
    for (int i = 0; i < 40; i++) {
        char text[32];
        snprintf(text, sizeof(text), "scan %02d", i * 7 % 40);
        put(text, 1000, 20);
    }
    CHECK_INT(list_all(&client, &n_pages), 40);
    CHECK_INT(n_pages, 3);
    /* names of any bytes */
    static const char *const odd[] = {"\xff\xfe", "line\nbreak", "\x01", "gr\xc3\xbc\xc3\x9f", "\x80", "../..", " "};
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++)
        put(odd[i], 1000, 3);
    char longest[256];
    memset(longest, 0xee, 255);
    longest[255] = '\0';
    put(longest, 1000, 3);
    CHECK_INT(list_all(&client, &n_pages), 48);
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        Stow__Info info = STOW__INFO__INIT;
        info.name = bytes_of(odd[i]);
        REQUEST(request, INFO, info, info, 31);
        send_request(&client, &request);
        const Stow__Reply *reply = expect(&client, 31, STOW__REPLY__BODY_INFO);
        CHECK(reply && reply->info->name.len == strlen(odd[i]) && reply->info->frames == 3 &&
              reply->info->n_forms == STOW_N_FORMS && reply->info->forms[STOW_FORM_FILL] == 2 &&
              reply->info->forms[STOW_FORM_BAD] == 1);
    }
    store_clear(&server.store);
    /* The same name of two owners where a page ends: both are listed. */
    for (int n_before = 13; n_before <= 16; n_before++) {
        for (int i = 0; i < n_before; i++)
            put((char[]){'a', (char)('a' + i), 0}, 1000, 3);
        for (uid_t owner = 0; owner < 4; owner++)
            put("same", 1000 + owner, 3);
        put("z", 1000, 3);
        CHECK_INT(list_all(&client, &n_pages), n_before + 5);
        store_clear(&server.store);
    }
    client_close(&client);
    check_empty();
}

/* Long paths and warnings: pages get shorter, no answer is too long, and nobody brings the daemon down. */
static void test_list_long(void)
{
    struct client client = client_ready();
    size_t n_pages;
    char path[4096], text[32];
    memset(path, 'p', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    for (int same = 0; same < 2; same++) {
        for (int i = 0; i < 40; i++) {
            snprintf(text, sizeof(text), same ? "same" : "n%02d", i);
            struct resident *resident = put(text, (uid_t)(1000 + i), 3);
            free(resident->origins[0].path);
            resident->origins[0].path = strdup(path);
            resident_warn(resident, "%s", path);
            resident_warn(resident, "%s", path);
        }
        size_t n = list_all(&client, &n_pages);
        CHECK_MSG(same ? n >= 3 : n == 40 && n_pages > 3, "%zu names on %zu pages", n, n_pages);
        Stow__Info info = STOW__INFO__INIT;
        info.name = bytes_of(same ? "same" : "n03");
        REQUEST(request, INFO, info, info, 32);
        send_request(&client, &request);
        const Stow__Reply *reply = expect(&client, 32, STOW__REPLY__BODY_INFO);
        CHECK(reply && reply->info->n_warnings == 2 && reply->info->n_sources == 1);
        store_clear(&server.store);
    }
    client_close(&client);
    check_empty();
}

static bool is_utf8(const char *text)
{
    char copy[1024];
    snprintf(copy, sizeof(copy), "%s", text);
    error_clean(copy);
    return strcmp(copy, text) == 0;
}

static void test_names(void)
{
    struct client client = client_ready();
    char too_long[257];
    memset(too_long, 'x', 256);
    too_long[256] = '\0';
    const struct {
        ProtobufCBinaryData name;
        int code;
    } cases[] = {
        {{.len = 0}, STOW_INVALID},
        {{.len = 3, .data = (uint8_t *)"a\0b"}, STOW_INVALID},
        {{.len = 256, .data = (uint8_t *)too_long}, STOW_INVALID},
        {{.len = 255, .data = (uint8_t *)too_long}, STOW_UNKNOWN},
        {{.len = 4, .data = (uint8_t *)"none"}, STOW_UNKNOWN},
        {{.len = 3, .data = (uint8_t *)"\xff\xc3\n"}, STOW_UNKNOWN},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        Stow__Info info = STOW__INFO__INIT;
        Stow__Unload unload = STOW__UNLOAD__INIT;
        Stow__Stream stream = STOW__STREAM__INIT;
        Stow__FrameErrors errors = STOW__FRAME_ERRORS__INIT;
        info.name = unload.name = stream.name = errors.name = cases[i].name;
        REQUEST(a, INFO, info, info, 1);
        REQUEST(b, UNLOAD, unload, unload, 2);
        REQUEST(c, STREAM, stream, stream, 3);
        REQUEST(d, FRAME_ERRORS, frame_errors, errors, 4);
        const Stow__Request *all[] = {&a, &b, &c, &d};
        for (uint64_t k = 0; k < 4; k++) {
            send_request(&client, all[k]);
            expect_error(&client, k + 1, cases[i].code, NULL);
            CHECK(client.message && is_utf8(client.message->reply->error->text)); /* it is a proto3 string */
        }
    }
    put("x", 1000, 3);
    Stow__Unload unload = STOW__UNLOAD__INIT;
    unload.name = bytes_of("x");
    REQUEST(request, UNLOAD, unload, unload, 9);
    send_request(&client, &request);
    expect(&client, 9, STOW__REPLY__BODY_DONE);
    send_request(&client, &request);
    expect_error(&client, 9, STOW_UNKNOWN, "x");
    client_close(&client);
    check_empty();
}

static void test_frame_errors(void)
{
    struct client client = client_ready();
    put("x", 1000, 2000);
    uint64_t ids[100];
    for (uint64_t i = 0; i < 100; i++)
        ids[i] = i * 5; /* every second is bad */
    ids[1] = UINT64_MAX;
    Stow__FrameErrors errors = STOW__FRAME_ERRORS__INIT;
    errors.name = bytes_of("x");
    errors.ids = ids;
    errors.n_ids = 100;
    REQUEST(request, FRAME_ERRORS, frame_errors, errors, 8);
    send_request(&client, &request);
    const Stow__Reply *reply = expect(&client, 8, STOW__REPLY__BODY_FRAME_ERRORS);
    CHECK(reply && reply->frame_errors->n_errors == 32 && reply->frame_errors->errors[1]->id == 10 &&
          reply->frame_errors->errors[1]->code == STOW__CODE__CORRUPT &&
          !strcmp(reply->frame_errors->errors[1]->text, "block 3 makes no sense"));
    client_close(&client);
    check_empty();
}

/* ---- streams ---- */

struct ring {
    uint64_t ring, positions;
    uint32_t slots, batch;
    size_t bytes;
    uint8_t nonce[STREAM_NONCE_BYTES];
};

static bool open_ring(struct client *client, struct ring *ring, const Stow__Stream *ask, const int *fds, size_t n_fds)
{
    Stow__Request request = STOW__REQUEST__INIT;
    request.id = 60;
    request.body_case = STOW__REQUEST__BODY_STREAM;
    request.stream = (Stow__Stream *)ask;
    send_fds(client, &request, fds, n_fds);
    const Stow__Reply *reply = expect(client, 60, STOW__REPLY__BODY_STREAM);
    if (!reply)
        return false;
    *ring = (struct ring){.ring = reply->stream->ring, .positions = reply->stream->positions,
                          .slots = reply->stream->slots, .batch = reply->stream->batch, .bytes = reply->stream->bytes};
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
    attached.nonce = (ProtobufCBinaryData){.len = sizeof(ring->nonce), .data = (uint8_t *)ring->nonce};
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
              ready->first_id == position && !ready->n_ids && ready->bytes == n * N_ELEMS * 2 && ready->slot < 2);
        bool any_bad = position % 20 == 0 || position == 8;
        CHECK(ready->n_status == (any_bad ? n : 0));
        if (any_bad)
            CHECK_INT(ready->status[position == 8 ? 2 : 0], STOW__CODE__CORRUPT);
        send_release(&client, ring.ring, ready->slot, ready->generation);
    }
    Stow__Event *event = receive_event(&client);
    CHECK(event && event->body_case == STOW__EVENT__BODY_STREAM_END && event->stream_end->ring == ring.ring &&
          !event->stream_end->error);
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
        {.kinds = STOW__MEMORY_KIND__CUDA_FD | STOW__MEMORY_KIND__CUDA_IPC, .code = STOW_UNSUPPORTED},
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
    CHECK(ready && ready->n_ids == 5000 && !memcmp(ready->ids, ids, sizeof(ids)) && ready->n_status == 5000);
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
    CHECK(ready && ready->ring == ring.ring && ready->n_frames == 3 && ready->n_ids == 3 && ready->ids[2] == ids[2]);
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

/* ---- loads ---- */

static void test_load_refusals(void)
{
    struct client client = client_ready();
    int directory = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC), file = memfd_create("file", MFD_CLOEXEC);
    const struct {
        const char *name, *device, *form;
        uint64_t scan_y;
        int share;
        size_t n_fds;
        bool is_directory;
        int code;
    } cases[] = {
        {"n", "", "", 0, 0, 0, false, STOW_INVALID},
        {"n", "", "", 0, 0, 2, false, STOW_INVALID},
        {"", "", "", 0, 0, 1, false, STOW_INVALID},
        {"n", "cuda:7", "", 0, 0, 1, false, STOW_UNKNOWN},
        {"n", "", "raw", 0, 0, 1, false, STOW_UNSUPPORTED},
        {"n", "", "zip", 0, 0, 1, false, STOW_INVALID},
        {"n", "", "", 4, 0, 1, false, STOW_INVALID},
        {"n", "", "", 0, 9, 1, false, STOW_INVALID},
        {"n", "", "", 0, 0, 1, true, STOW_SOURCE},
    };
    int before = count_fds();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int failed = test_failed;
        Stow__Load load = STOW__LOAD__INIT;
        load.name = bytes_of(cases[i].name);
        load.path = bytes_of("/data/x.h5");
        load.device = (char *)cases[i].device;
        load.form = (char *)cases[i].form;
        load.scan_y = cases[i].scan_y;
        load.share = (Stow__Share)cases[i].share;
        REQUEST(request, LOAD, load, load, 70);
        int fds[2] = {cases[i].is_directory ? directory : file, file};
        send_fds(&client, &request, fds, cases[i].n_fds);
        expect_error(&client, 70, cases[i].code, NULL);
        CHECK_MSG(test_failed == failed, "case %zu", i);
    }
    Stow__Load load = STOW__LOAD__INIT;
    load.name = bytes_of("n");
    load.path = (ProtobufCBinaryData){.len = 4, .data = (uint8_t *)"/a\0b"};
    REQUEST(request, LOAD, load, load, 71);
    send_fds(&client, &request, &file, 1);
    expect_error(&client, 71, STOW_INVALID, NULL);
    /* FILES that nobody waits for, and whose numbers do not match */
    Stow__File one = STOW__FILE__INIT, *rows[] = {&one, &one};
    Stow__Files files = STOW__FILES__INIT;
    one.path = bytes_of("/x");
    files.load = 99;
    files.n_files = 2;
    files.files = rows;
    REQUEST(given, FILES, files, files, 72);
    send_fds(&client, &given, &file, 1);
    expect_error(&client, 72, STOW_INVALID, NULL);
    send_fds(&client, &given, (int[]){file, file}, 2);
    expect(&client, 72, STOW__REPLY__BODY_DONE);
    Stow__Stats stats = STOW__STATS__INIT;
    REQUEST(last, STATS, stats, stats, 73);
    send_request(&client, &last);
    expect(&client, 73, STOW__REPLY__BODY_STATS);
    CHECK_INT(count_fds(), before);
    close(directory);
    close(file);
    client_close(&client);
    check_empty();
}

/* A reader that ends at once without a word: the load fails, with a sentence, and cancel is harmless. */
static void test_load_fails(void)
{
    for (int how = 0; how < 3; how++) {
        struct client client = client_ready();
        int file = memfd_create("file", MFD_CLOEXEC);
        CHECK(write(file, "not HDF5", 8) == 8);
        Stow__Load load = STOW__LOAD__INIT;
        load.name = bytes_of("n");
        load.path = bytes_of("/data/x.h5");
        REQUEST(request, LOAD, load, load, 70);
        send_fds(&client, &request, &file, 1);
        close(file);
        const Stow__Reply *reply = expect(&client, 70, STOW__REPLY__BODY_LOAD);
        uint64_t number = reply ? reply->load->load : 0;
        if (how == 1) {
            Stow__Cancel cancel = STOW__CANCEL__INIT;
            cancel.load = number;
            REQUEST(stop, CANCEL, cancel, cancel, 71);
            send_request(&client, &stop);
            Stow__Message *message = receive(&client);
            bool done = message && message->body_case == STOW__MESSAGE__BODY_REPLY;
            if (!done) /* it had failed before */
                expect(&client, 71, STOW__REPLY__BODY_DONE);
            message = done ? receive(&client) : NULL;
            CHECK(!done || (message && message->body_case == STOW__MESSAGE__BODY_EVENT &&
                            message->event->body_case == STOW__EVENT__BODY_LOADED && message->event->loaded->error));
        } else if (how == 0) {
            Stow__Event *event = receive_event(&client);
            CHECK(event && event->body_case == STOW__EVENT__BODY_LOADED && event->loaded->load == number &&
                  event->loaded->error && event->loaded->error->text[0] && !event->loaded->acquisition);
        } /* else it leaves */
        client_close(&client);
        for (int i = 0; i < 500 && server.loads.first; i++) {
            turn();
            usleep(1000);
        }
        check_empty();
    }
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
    flood(&client, 1000000, &n_sent); /* whole requests: the kernel takes the short ones whole or not at all */
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
    CHECK(!setsockopt(wire_fd(session->wire), SOL_SOCKET, SO_SNDBUFFORCE, &large, sizeof(large)) || geteuid() != 0);
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
    struct config config = {.devices = {"host"}, .n_devices = 1, .socket = socket_path, .reader = "/bin/true",
                            .max_bytes = 64 * MIB, .threads = 1};
    struct stow_error err;
    signal(SIGPIPE, SIG_IGN);
    if (!mkdtemp(folder))
        return EXIT_FAILURE;
    snprintf(socket_path, sizeof(socket_path), "%s/sock", folder);
    unsetenv("NOTIFY_SOCKET");
    log_set_level("error");
    if (server_open(&server, &config, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return EXIT_FAILURE;
    }
    struct stat st;
    CHECK(!stat(socket_path, &st) && S_ISSOCK(st.st_mode) && (st.st_mode & 07777) == 0660);
    int before = count_fds();
    test_hello();
    test_states();
    test_byte_by_byte();
    test_unknown();
    test_garbage();
    test_stray_fds();
    test_list();
    test_list_long();
    test_names();
    test_frame_errors();
    test_stream();
    test_stream_refusals();
    test_list_and_request();
    test_wrong_nonce();
    test_stale();
    test_vanish();
    test_load_refusals();
    test_load_fails();
    test_backlog();
    test_backlog_drains_at_once();
    test_time_limits();
    test_turned_away();
    CHECK_INT(count_fds(), before);
    test_goodbye();
    server_close(&server);
    CHECK(access(socket_path, F_OK) != 0);
    char lock[80];
    snprintf(lock, sizeof(lock), "%s.lock", socket_path);
    unlink(lock);
    CHECK(!rmdir(folder));
    return test_end();
}
