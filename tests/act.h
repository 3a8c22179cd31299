/* SPDX-License-Identifier: Apache-2.0
 *
 * act: a daemon that is acted, for the tests of libframestow: a thread with one end of a wire. What
 * it says is a table or a short script, right and wrong, so that each lie can be told. */
#ifndef STOW_TEST_ACT_H
#define STOW_TEST_ACT_H

#include "client.h"
#include "test.h"

#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static char folder[] = "/tmp/framestow_test_XXXXXX";

static inline const char *in_folder(const char *name)
{
    static char path[256];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

/* The folder of this test, made and removed. */
static inline void folder_make(void)
{
    if (!mkdtemp(folder)) {
        perror("making a folder");
        exit(EXIT_FAILURE);
    }
}

static inline void folder_remove(void)
{
    char command[64];
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    CHECK_INT(system(command), 0);
}

struct act {
    int listener;
    struct wire *wire;
    pthread_t thread;
    void (*script)(struct act *act);
    uint64_t id; /* of the last request */
    int ring_fd;
    uint8_t *ring;
    size_t ring_bytes;
    unsigned
        wrong; /* checks that failed on this side; counted by the other once the thread has ended */
};

#define ACT_CHECK(ok) act_check(act, (ok), #ok, __LINE__)

static inline bool act_check(struct act *act, bool ok, const char *what, int line)
{
    if (!ok) {
        act->wrong++;
        fprintf(stderr, "%s:%d: the daemon's side: %s\n", __FILE__, line, what);
    }
    return ok;
}

/* The next request, or NULL when the client is gone. */
static inline Stow__Request *next_request(struct act *act)
{
    struct wire_message message;
    for (;;) {
        int rc = wire_next(act->wire, &message, NULL);
        if (rc == 0)
            rc = wire_read(act->wire, NULL);
        else if (rc > 0) {
            Stow__Request *request = stow__request__unpack(NULL, message.bytes, message.body);
            act->id = request ? request->id : 0;
            return request;
        }
        if (rc < 0)
            return NULL;
        struct pollfd p = {.fd = wire_fd(act->wire), .events = POLLIN};
        if (rc == 0)
            poll(&p, 1, 10000);
    }
}

static inline void send_message(struct act *act, const Stow__Message *message, int fd)
{
    static uint8_t body[WIRE_MAX_BODY];
    size_t n = stow__message__pack(message, body);
    wire_send(act->wire, body, n, &fd, fd >= 0, NULL);
    while (wire_flush(act->wire, NULL) == 1)
        usleep(1000);
}

static inline void send_reply(struct act *act, Stow__Reply *reply, int fd)
{
    Stow__Message message = STOW__MESSAGE__INIT;
    reply->id = act->id;
    message.body_case = STOW__MESSAGE__BODY_REPLY;
    message.reply = reply;
    send_message(act, &message, fd);
}

static inline void send_event(struct act *act, Stow__Event *event)
{
    Stow__Message message = STOW__MESSAGE__INIT;
    message.body_case = STOW__MESSAGE__BODY_EVENT;
    message.event = event;
    send_message(act, &message, -1);
}

static inline void reply_done(struct act *act)
{
    Stow__Done done = STOW__DONE__INIT;
    Stow__Reply reply = STOW__REPLY__INIT;
    reply.body_case = STOW__REPLY__BODY_DONE;
    reply.done = &done;
    send_reply(act, &reply, -1);
}

static inline void reply_error(struct act *act, Stow__Code code, const char *text)
{
    Stow__Error error = STOW__ERROR__INIT;
    Stow__Reply reply = STOW__REPLY__INIT;
    error.code = code;
    error.text = (char *)(uintptr_t)text;
    reply.body_case = STOW__REPLY__BODY_ERROR;
    reply.error = &error;
    send_reply(act, &reply, -1);
}

/* Take one request, which should be of this kind, and forget it. */
static inline bool expect(struct act *act, Stow__Request__BodyCase kind)
{
    Stow__Request *request = next_request(act);
    bool ok = ACT_CHECK(request && request->body_case == kind);
    if (!ok)
        fprintf(stderr, "request %d came, expected %d\n", request ? (int)request->body_case : -1,
                (int)kind);
    if (request)
        stow__request__free_unpacked(request, NULL);
    return ok;
}

static inline void greet(struct act *act)
{
    Stow__Gpu host = STOW__GPU__INIT, *devices[] = {&host};
    Stow__HelloReply hello = STOW__HELLO_REPLY__INIT;
    Stow__Reply reply = STOW__REPLY__INIT;
    char name[] = "host", version[] = "0.0.9";
    host.name = name;
    hello.protocol = 1;
    hello.version = version;
    hello.n_devices = 1;
    hello.devices = devices;
    hello.memory_kinds = STOW__MEMORY_KIND__HOST_FD;
    hello.pid = 42;
    reply.body_case = STOW__REPLY__BODY_HELLO;
    reply.hello = &hello;
    if (expect(act, STOW__REQUEST__BODY_HELLO))
        send_reply(act, &reply, -1);
}

static inline void *play(void *data)
{
    struct act *act = data;
    int fd = accept4(act->listener, NULL, NULL, SOCK_CLOEXEC);
    act->wire = wire_new(fd);
    act->script(act);
    wire_free(act->wire);
    if (act->ring)
        munmap(act->ring, act->ring_bytes);
    if (act->ring_fd >= 0)
        close(act->ring_fd);
    return NULL;
}

/* A client connected to a daemon that acts by this script; NULL and *err when it could not
 * connect. */
static inline struct stow_client *start(struct act *act, void (*script)(struct act *act),
                                        struct stow_error *err)
{
    struct sockaddr_un where = {.sun_family = AF_UNIX};
    snprintf(where.sun_path, sizeof(where.sun_path), "%s/s", folder);
    unlink(where.sun_path);
    *act = (struct act){.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0),
                        .script = script,
                        .ring_fd = -1};
    if (bind(act->listener, (struct sockaddr *)&where, sizeof(where)) || listen(act->listener, 1) ||
        pthread_create(&act->thread, NULL, play, act)) {
        perror("client_test: socket");
        exit(EXIT_FAILURE);
    }
    return stow_connect(where.sun_path, err);
}

static inline void end(struct act *act, struct stow_client *client)
{
    stow_close(client);
    pthread_join(act->thread, NULL);
    close(act->listener);
    CHECK_INT(act->wrong, 0);
}

#endif
