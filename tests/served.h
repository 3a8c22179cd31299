/* SPDX-License-Identifier: Apache-2.0
 *
 * served: a whole server in this process, its loop driven from here, acquisitions made by hand, and clients
 * that speak the wire themselves. */
#ifndef STOW_TEST_SERVED_H
#define STOW_TEST_SERVED_H

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

static inline void turn(void)
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
    bool doomed; /* it may be closed at any send */
};

static inline struct client client_connect(void)
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

static inline void client_close(struct client *client)
{
    if (client->message)
        stow__message__free_unpacked(client->message, NULL);
    if (client->message_fd >= 0)
        close(client->message_fd);
    wire_free(client->wire);
    turn();
}

/* The next message; NULL when none comes in a while, or the daemon closed the connection. */
static inline Stow__Message *receive(struct client *client)
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

static inline Stow__Reply *receive_reply(struct client *client)
{
    Stow__Message *message = receive(client);
    return message && message->body_case == STOW__MESSAGE__BODY_REPLY ? message->reply : NULL;
}

static inline Stow__Event *receive_event(struct client *client)
{
    Stow__Message *message = receive(client);
    return message && message->body_case == STOW__MESSAGE__BODY_EVENT ? message->event : NULL;
}

static inline bool is_closed(struct client *client)
{
    while (receive(client))
        ;
    return client->closed;
}

/* Declare a request of this kind (its member of the union), message and number. */
#define REQUEST(var, NAME, member, message, number) \
    Stow__Request var = STOW__REQUEST__INIT;        \
    var.id = number;                                \
    var.body_case = STOW__REQUEST__BODY_##NAME;     \
    var.member = &message

static inline void send_fds(struct client *client, const Stow__Request *request, const int *fds,
                            size_t n_fds)
{
    static uint8_t body[WIRE_MAX_BODY];
    struct stow_error err;
    size_t bytes = stow__request__pack(request, body);
    CHECK(!wire_send(client->wire, body, bytes, fds, n_fds, &err));
    CHECK(wire_flush(client->wire, &err) >= 0 || client->doomed);
}

static inline void send_request(struct client *client, const Stow__Request *request)
{
    send_fds(client, request, NULL, 0);
}

/* The reply must be this error; its sentence must be there, and hold `names` if that is given. */
static inline void expect_error(struct client *client, uint64_t id, int code, const char *names)
{
    const Stow__Reply *reply = receive_reply(client);
    CHECK_MSG(reply != NULL, "request %llu: no reply", (unsigned long long)id);
    if (!reply)
        return;
    CHECK_INT(reply->id, id);
    CHECK_INT(reply->body_case, STOW__REPLY__BODY_ERROR);
    if (reply->body_case != STOW__REPLY__BODY_ERROR)
        return;
    CHECK_MSG((int)reply->error->code == -code, "request %llu: code %d, expected %d: %s",
              (unsigned long long)id, -(int)reply->error->code, code, reply->error->text);
    CHECK(reply->error->text[0] && (!names || strstr(reply->error->text, names)));
}

static inline Stow__Reply *expect(struct client *client, uint64_t id, Stow__Reply__BodyCase body)
{
    Stow__Reply *reply = receive_reply(client);
    CHECK_MSG(reply && reply->id == id && reply->body_case == body,
              "request %llu: reply %d, expected %d: %s", (unsigned long long)id,
              reply ? (int)reply->body_case : -1, (int)body,
              reply && reply->body_case == STOW__REPLY__BODY_ERROR ? reply->error->text : "");
    return reply && reply->body_case == body ? reply : NULL;
}

static inline void say_hello(struct client *client)
{
    Stow__Hello hello = STOW__HELLO__INIT;
    hello.protocol_min = hello.protocol_max = 1;
    hello.version = "test";
    REQUEST(request, HELLO, hello, hello, 1);
    send_request(client, &request);
    expect(client, 1, STOW__REPLY__BODY_HELLO);
}

static inline struct client client_ready(void)
{
    struct client client = client_connect();
    say_hello(&client);
    return client;
}

static inline ProtobufCBinaryData bytes_of(const char *text)
{
    return (ProtobufCBinaryData){.len = strlen(text), .data = (uint8_t *)text};
}

/* ---- what the server holds ---- */

/* Frames of the fill value; every tenth is bad. One reference, the name's. */
static inline struct resident *put(const char *text, uid_t owner, uint64_t n_frames)
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

static inline void check_empty(void)
{
    for (int i = 0;
         i < 4000 && (server.sessions || server.places[0].used_bytes || server.store.n_freeing);
         i++) {
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

static inline int count_fds(void)
{
    int n = 0;
    DIR *open_ones = opendir("/proc/self/fd");
    while (open_ones && readdir(open_ones))
        n++;
    if (open_ones)
        closedir(open_ones);
    return n;
}

/* A server with the host device at a socket of its own. Its reader ends at once without a word. */
static inline void serve(void)
{
    struct config config = {.devices = {"host"},
                            .n_devices = 1,
                            .socket = socket_path,
                            .reader = "/bin/true",
                            .max_bytes = 64 * MIB,
                            .threads = 1};
    struct stow_error err;
    signal(SIGPIPE, SIG_IGN);
    if (!mkdtemp(folder))
        exit(EXIT_FAILURE);
    snprintf(socket_path, sizeof(socket_path), "%s/sock", folder);
    unsetenv("NOTIFY_SOCKET");
    log_set_level("error");
    if (server_open(&server, &config, &err)) {
        fprintf(stderr, "%s\n", err.text);
        exit(EXIT_FAILURE);
    }
    struct stat st;
    CHECK(!stat(socket_path, &st) && S_ISSOCK(st.st_mode) && (st.st_mode & 07777) == 0660);
}

static inline void serve_no_more(void)
{
    server_close(&server);
    CHECK(access(socket_path, F_OK) != 0);
    char lock[80];
    snprintf(lock, sizeof(lock), "%s.lock", socket_path);
    unlink(lock);
    CHECK(!rmdir(folder));
}

#endif
