/* SPDX-License-Identifier: Apache-2.0 */
#include "client.h"
#include "cuda_import.h"
#include "ring.h"
#include "slots.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifndef STOW_VERSION_TEXT
#define STOW_VERSION_TEXT "0.1.0"
#endif

#define PROTOCOL 1
#define SYSTEM_SOCKET "/run/framestow/framestow.sock"
#define HELLO_NS 8000000000ull
#define MAX_GPUS 64

const char *stow_version(void)
{
    return STOW_VERSION_TEXT;
}

uint64_t client_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void answer_drop(struct answer *answer)
{
    for (size_t i = 0; i < answer->n_fds; i++) {
        if (answer->fds[i] >= 0)
            close(answer->fds[i]);
    }
    if (answer->message)
        stow__message__free_unpacked(answer->message, NULL);
    *answer = (struct answer){.message = NULL};
}

int client_error_of(const Stow__Error *error, struct stow_error *err)
{
    int code = error->code > 0 && error->code <= -STOW_NOFIT ? -(int)error->code : STOW_INTERNAL;
    return error_set(err, code, "%s",
                     error->text && error->text[0] ? error->text : stow_strerror(code));
}

int client_options(struct stow_client *client, void *options, size_t known, const void *given,
                   size_t size)
{
    memset(options, 0, known);
    if (!given)
        return 0;
    if (size < sizeof(size_t) || size > known)
        return error_set(&client->error, STOW_INVALID,
                         "options of %zu bytes: set .size to sizeof the options"
                         " of this library's framestow.h (%zu)",
                         size, known);
    memcpy(options, given, size);
    return 0;
}

int client_check(struct stow_client *client)
{
    if (client->pid != getpid())
        return error_set(&client->error, STOW_FORKED,
                         "this process is a fork of the one that connected;"
                         " connect anew");
    if (client->gone.code)
        client->error = client->gone;
    return client->gone.code;
}

/* The connection is of no more use. What it was first is what is told from here on. */
static int lose(struct stow_client *client, const struct stow_error *why)
{
    if (!client->gone.code) {
        client->gone = *why;
        if (why->code == STOW_GONE)
            error_set(&client->gone, STOW_GONE,
                      "the daemon closed the connection (it ended or was restarted)");
        else if (why->code == STOW_PROTOCOL)
            error_prefix(&client->gone, "the daemon broke the protocol");
    }
    client->error = client->gone;
    return client->gone.code;
}

/* ---- what comes ------------------------------------------------------------------------------ */

static int on_reply(struct stow_client *client, struct answer *came)
{
    const Stow__Reply *reply = came->message->reply;
    struct stow_error err = {.code = 0};
    came->reply = reply;
    if (client->awaited && reply->id == client->awaited) {
        client->awaited = 0;
        client->answer = *came;
        *came = (struct answer){.message = NULL};
        return 0;
    }
    if (reply->body_case != STOW__REPLY__BODY_ERROR)
        return 0;
    client_error_of(reply->error, &err);
    if (reply->id == 0) /* about the connection itself */
        return lose(client, &err);
    if (reply->id & CLIENT_ID_STREAM)
        slots_refused(client, (uint32_t)reply->id, &err);
    return 0;
}

static int on_event(struct stow_client *client, const Stow__Event *event)
{
    struct stow_error err;
    switch (event->body_case) {
    case STOW__EVENT__BODY_READY:
        return slots_on_ready(client, event->ready, &err) ? lose(client, &err) : 0;
    case STOW__EVENT__BODY_STREAM_END: slots_on_end(client, event->stream_end); return 0;
    case STOW__EVENT__BODY_GOODBYE:
        error_set(&client->goodbye, STOW_SHUTDOWN, "the daemon is shutting down%s%s",
                  event->goodbye->reason[0] ? ": " : "", event->goodbye->reason);
        return 0;
    case STOW__EVENT__BODY_NEED_FILES:
        if (client->course)
            course_on_need(client->course, event->need_files);
        return 0;
    case STOW__EVENT__BODY_PROGRESS:
        if (client->course)
            course_on_progress(client->course, event->progress);
        return 0;
    case STOW__EVENT__BODY_LOADED:
        if (client->course)
            course_on_loaded(client->course, event->loaded);
        return 0;
    case STOW__EVENT__BODY_SAVED:
        if (client->course)
            course_on_saved(client->course, event->saved);
        return 0;
    case STOW__EVENT__BODY_VERIFIED:
        if (client->course)
            course_on_verified(client->course, event->verified);
        return 0;
    default: /* of a newer daemon */ return 0;
    }
}

/* The next whole message off the wire: 1, 0 when there is none, or why not. */
static int receive(struct stow_client *client, struct answer *came, struct stow_error *err)
{
    struct wire_message raw;
    pthread_mutex_lock(&client->wire_lock);
    int rc = wire_next(client->wire, &raw, err);
    if (rc == 0) {
        rc = wire_read(client->wire, err);
        if (rc > 0)
            rc = wire_next(client->wire, &raw, err);
    }
    if (rc > 0) {
        came->message = stow__message__unpack(NULL, raw.bytes, raw.body);
        if (!came->message)
            rc = error_set(err, STOW_PROTOCOL, "a message from the daemon that is none");
        for (; came->message && came->n_fds < raw.n_fds; came->n_fds++) {
            came->fds[came->n_fds] = raw.fds[came->n_fds];
            raw.fds[came->n_fds] = -1;
        }
    }
    pthread_mutex_unlock(&client->wire_lock);
    return rc;
}

/* Take one message, if there is one, and hand it to its owner. */
static int take_one(struct stow_client *client)
{
    struct answer came = {.message = NULL};
    struct stow_error err;
    int rc = receive(client, &came, &err);
    if (rc < 0)
        return lose(client, &err);
    if (rc == 0)
        return 0;
    if (came.message->body_case == STOW__MESSAGE__BODY_REPLY)
        rc = on_reply(client, &came);
    else if (came.message->body_case == STOW__MESSAGE__BODY_EVENT)
        rc = on_event(client, came.message->event);
    else
        rc = 0;
    answer_drop(&came);
    return rc < 0 ? rc : 1;
}

/* Sleep until the socket has something, or takes what is queued, or the time is over. */
static void wait_socket(struct stow_client *client, uint64_t left_ns)
{
    pthread_mutex_lock(&client->wire_lock);
    short events = wire_backlog(client->wire) ? POLLIN | POLLOUT : POLLIN;
    pthread_mutex_unlock(&client->wire_lock);
    struct pollfd p = {.fd = wire_fd(client->wire), .events = events};
    struct timespec left = {.tv_sec = (time_t)(left_ns / 1000000000u),
                            .tv_nsec = (long)(left_ns % 1000000000u)};
    if (left.tv_sec > 1000000)
        left.tv_sec = 1000000;
    if (ppoll(&p, 1, &left, NULL) <= 0 || !(p.revents & POLLOUT))
        return;
    pthread_mutex_lock(&client->wire_lock);
    wire_flush(client->wire,
               NULL); /* a lost connection shows on the reading side, after its last words */
    pthread_mutex_unlock(&client->wire_lock);
}

int client_turn(struct stow_client *client, uint64_t deadline_ns, uint64_t spin_ns)
{
    for (;;) {
        int rc = client->gone.code ? client->gone.code : take_one(client);
        if (rc)
            return rc;
        uint64_t now = client_now_ns();
        if (now >= deadline_ns)
            return 0;
        if (now >= spin_ns)
            wait_socket(client, deadline_ns - now);
    }
}

/* ---- what goes ------------------------------------------------------------------------------- */

int client_tell(struct stow_client *client, const Stow__Request *request, const int *fds,
                size_t n_fds, struct stow_error *err)
{
    uint8_t small[4096];
    size_t bytes = stow__request__get_packed_size(request);
    uint8_t *body = bytes <= sizeof(small) ? small : malloc(bytes);
    if (!body)
        return error_set(err, STOW_NOMEM, "no memory for a request of %zu bytes", bytes);
    stow__request__pack(request, body);
    pthread_mutex_lock(&client->wire_lock);
    int rc = wire_send(client->wire, body, bytes, fds, n_fds, err);
    if (rc == 0)
        wire_flush(client->wire, NULL); /* what is left goes when the socket is waited for */
    pthread_mutex_unlock(&client->wire_lock);
    if (body != small)
        free(body);
    return rc;
}

static int await(struct stow_client *client, uint64_t id, uint64_t limit_ns)
{
    uint64_t deadline = client_now_ns() + limit_ns;
    client->awaited = id;
    while (client->awaited) {
        int rc = client_turn(client, deadline, 0);
        if (rc > 0)
            continue;
        client->awaited = 0;
        return rc ? rc
                  : error_set(&client->error, STOW_TIMEOUT, "the daemon did not answer within %u s",
                              (unsigned)(limit_ns / 1000000000u));
    }
    return 0;
}

int client_ask_within(struct stow_client *client, Stow__Request *request, const int *fds,
                      size_t n_fds, Stow__Reply__BodyCase kind, struct answer *answer,
                      uint64_t limit_ns)
{
    request->id = ++client->last_id;
    int rc = client_tell(client, request, fds, n_fds, &client->error);
    if (rc == 0)
        rc = await(client, request->id, limit_ns);
    if (rc)
        return rc;
    *answer = client->answer;
    client->answer = (struct answer){.message = NULL};
    if (kind != STOW__REPLY__BODY_LOAD && kind != STOW__REPLY__BODY_SAVE)
        slots_settle(client); /* what follows those is for a course that has no number yet */
    if (answer->reply->body_case == kind)
        return 0;
    if (answer->reply->body_case == STOW__REPLY__BODY_ERROR)
        rc = client_error_of(answer->reply->error, &client->error);
    else
        rc = error_set(&client->error, STOW_PROTOCOL,
                       "the daemon answered something else than was asked");
    answer_drop(answer);
    return rc;
}

int client_ask(struct stow_client *client, Stow__Request *request, const int *fds, size_t n_fds,
               Stow__Reply__BodyCase kind, struct answer *answer)
{
    return client_ask_within(client, request, fds, n_fds, kind, answer, CLIENT_REPLY_NS);
}

int client_ask_done(struct stow_client *client, Stow__Request *request)
{
    struct answer answer;
    int rc = client_ask(client, request, NULL, 0, STOW__REPLY__BODY_DONE, &answer);
    if (rc == 0)
        answer_drop(&answer);
    return rc;
}

/* ---- connecting ------------------------------------------------------------------------------ */

/* Where the daemon listens, by the rules in framestow.h. */
static int find_socket(const char *given, struct sockaddr_un *where, struct stow_error *err)
{
    char user[sizeof(where->sun_path) + 1];
    const char *path = given ? given : getenv("FRAMESTOW_SOCKET");
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    if (!path || !path[0]) {
        path = SYSTEM_SOCKET;
        if (runtime && runtime[0] && access(SYSTEM_SOCKET, F_OK) != 0) {
            snprintf(user, sizeof(user), "%s/framestow.sock", runtime);
            path = user;
        }
    }
    if (strlen(path) >= sizeof(where->sun_path))
        return error_set(err, STOW_INVALID, "the socket path is longer than %zu bytes: %.80s...",
                         sizeof(where->sun_path) - 1, path);
    *where = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(where->sun_path, path, strlen(path) + 1);
    return 0;
}

static bool is_socket(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISSOCK(st.st_mode);
}

static int connect_error(const char *path, int why, struct stow_error *err)
{
    if (why == ECONNREFUSED &&
        !is_socket(path)) /* what the kernel says of a file of another kind */
        why = ENOTSOCK;
    switch (why) {
    case ENOENT:
    case ENOTDIR: return error_set(err, STOW_NODAEMON, "no daemon at %s: start framestowd", path);
    case ECONNREFUSED:
        return error_set(err, STOW_NODAEMON,
                         "%s is left by a daemon that is gone: start framestowd again", path);
    case EACCES:
    case EPERM:
        return error_set(err, STOW_DENIED,
                         "no permission on %s: join its group (ls -l tells which) and log in again",
                         path);
    case EPROTOTYPE:
    case ENOTSOCK: return error_set(err, STOW_NODAEMON, "%s is not a socket of framestowd", path);
    default:
        return error_set(err, STOW_NODAEMON, "no connection to the daemon at %s: %s", path,
                         strerror(why));
    }
}

/* A listening daemon whose queue is full refuses for a moment (EAGAIN on a non-blocking socket);
 * a blocking connect waits for room, and the send timeout bounds that. */
static int open_socket(const struct sockaddr_un *where, struct stow_error *err)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return error_errno(err, errno, "making a socket");
    struct timeval limit = {.tv_sec = HELLO_NS / 1000000000u};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    int rc;
    do
        rc = connect(fd, (const struct sockaddr *)where, sizeof(*where));
    while (rc < 0 && errno == EINTR);
    if (rc == 0)
        return fd;
    rc = connect_error(where->sun_path, errno, err);
    close(fd);
    return rc;
}

/* Words for what the daemon said of itself. */
static int describe(struct stow_client *client)
{
    const Stow__HelloReply *hello = client->hello.reply->hello;
    size_t bytes = 1;
    for (size_t i = 0; i < hello->n_devices; i++)
        bytes += strlen(hello->devices[i]->name) + 1;
    client->daemon_devices = calloc(1, bytes);
    if (!client->daemon_devices)
        return error_set(&client->error, STOW_NOMEM, "no memory");
    for (size_t i = 0; i < hello->n_devices; i++) {
        if (i)
            strcat(client->daemon_devices, ",");
        strcat(client->daemon_devices, hello->devices[i]->name);
    }
    ring_kind_names(hello->memory_kinds, client->daemon_kinds, sizeof(client->daemon_kinds));
    client->daemon = (struct stow_daemon_info){.version = hello->version,
                                               .device = client->daemon_devices,
                                               .pid = hello->pid,
                                               .max_bytes = hello->max_bytes,
                                               .memory_kinds = client->daemon_kinds,
                                               .memory_note = hello->memory_note};
    return 0;
}

static uint64_t pid_namespace(void)
{
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? st.st_ino : 0;
}

static int say_hello(struct stow_client *client)
{
    uint8_t uuids[MAX_GPUS][16];
    ProtobufCBinaryData list[MAX_GPUS];
    size_t n = cuda_gpus(uuids, MAX_GPUS, NULL);
    for (size_t i = 0; i < n; i++)
        list[i] = (ProtobufCBinaryData){.len = sizeof(uuids[i]), .data = uuids[i]};
    char version[] = STOW_VERSION_TEXT;
    Stow__Hello hello = STOW__HELLO__INIT;
    hello.protocol_min = hello.protocol_max = PROTOCOL;
    hello.version = version;
    hello.memory_kinds = ring_memory_mask(n > 0);
    hello.n_gpu_uuids = n;
    hello.gpu_uuids = list;
    hello.pid_namespace = pid_namespace();
    Stow__Request request = STOW__REQUEST__INIT;
    request.body_case = STOW__REQUEST__BODY_HELLO;
    request.hello = &hello;
    int rc = client_ask_within(client, &request, NULL, 0, STOW__REPLY__BODY_HELLO, &client->hello,
                               HELLO_NS);
    if (rc)
        return rc;
    if (client->hello.reply->hello->protocol != PROTOCOL)
        return error_set(&client->error, STOW_VERSION,
                         "the daemon (%s) speaks protocol %u, this library (%s) %u",
                         client->hello.reply->hello->version, client->hello.reply->hello->protocol,
                         STOW_VERSION_TEXT, PROTOCOL);
    return describe(client);
}

struct stow_client *stow_connect(const char *socket_path, struct stow_error *err)
{
    struct sockaddr_un where;
    struct stow_error unread;
    if (!err)
        err = &unread;
    *err = (struct stow_error){.code = 0};
    if (find_socket(socket_path, &where, err))
        return NULL;
    int fd = open_socket(&where, err);
    if (fd < 0)
        return NULL;
    struct stow_client *client = calloc(1, sizeof(*client));
    struct wire *wire = client ? wire_new(fd) : NULL;
    if (!wire) {
        if (!client)
            close(fd);
        free(client);
        error_set(err, STOW_NOMEM, "no memory for a connection");
        return NULL;
    }
    *client = (struct stow_client){.wire = wire, .pid = getpid(), .poll_fd = -1, .ready_fd = -1};
    pthread_mutex_init(&client->wire_lock, NULL);
    pthread_mutex_init(&client->slot_lock, NULL);
    if (say_hello(client)) {
        *err = client->error;
        error_prefix(err, "%s", where.sun_path);
        stow_close(client);
        return NULL;
    }
    return client;
}

void stow_close(struct stow_client *client)
{
    if (!client)
        return;
    slots_close_all(client);
    wire_free(client->wire);
    answer_drop(&client->answer);
    answer_drop(&client->hello);
    free(client->daemon_devices);
    if (client->poll_fd >= 0)
        close(client->poll_fd);
    if (client->ready_fd >= 0)
        close(client->ready_fd);
    pthread_mutex_destroy(&client->wire_lock);
    pthread_mutex_destroy(&client->slot_lock);
    free(client);
}

const struct stow_error *stow_last_error(const struct stow_client *client)
{
    return &client->error;
}

const struct stow_daemon_info *stow_daemon_info(const struct stow_client *client)
{
    return &client->daemon;
}

/* A batch may lie here already, taken off the socket with an earlier one; the socket alone would
 * then not poll readable. So what is given out is an epoll of the socket and of an eventfd that
 * slots_settle keeps. */
int stow_fd(struct stow_client *client)
{
    int rc = client_check(client);
    if (rc || client->poll_fd >= 0)
        return rc ? rc : client->poll_fd;
    int poll_fd = epoll_create1(EPOLL_CLOEXEC), ready_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN};
    if (poll_fd < 0 || ready_fd < 0 || epoll_ctl(poll_fd, EPOLL_CTL_ADD, ready_fd, &e) < 0 ||
        epoll_ctl(poll_fd, EPOLL_CTL_ADD, wire_fd(client->wire), &e) < 0) {
        rc = error_errno(&client->error, errno, "making a descriptor to poll");
        if (poll_fd >= 0)
            close(poll_fd);
        if (ready_fd >= 0)
            close(ready_fd);
        return rc;
    }
    client->poll_fd = poll_fd;
    client->ready_fd = ready_fd;
    slots_settle(client);
    return poll_fd;
}
