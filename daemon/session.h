/* SPDX-License-Identifier: Apache-2.0
 *
 * session: one client's connection: its state, its streams, what it waits for.
 *
 * new > ready > closing. Messages are taken as they come and dispatched by commands; a framing error or
 * the end of the connection closes the session, and with it all its streams (their leases end) and its
 * part in loads. What is sent is queued and leaves before the loop sleeps. A client that does not read:
 * over SESSION_BACKLOG_BYTES nothing more is read from it, and after SESSION_STUCK_NS it is closed. */
#ifndef STOW_SESSION_H
#define STOW_SESSION_H

#include "loads.h"
#include "server.h"
#include "stream.h"
#include "wire.h"

#include "framestow.pb-c.h"

#define SESSION_BACKLOG_BYTES (256u << 10)
#define SESSION_STUCK_NS UINT64_C(30000000000)
#define SESSION_HELLO_NS UINT64_C(10000000000)
#define SESSION_MAX_STALE 64u
#define SESSION_MAX_STREAMS 128u /* each has a descriptor of the daemon's, whatever it is charged */
#define SESSION_MAX_LOADS 16u    /* each has a child process */
#define SESSION_MAX_TASKS 4u     /* saves and comparisons */
#define SESSION_MAX_IMAGES 4u    /* each works in memory of its own */

enum session_state { SESSION_NEW, SESSION_READY, SESSION_CLOSING };

struct session_stream {
    struct session_stream *next;
    struct session *session;
    struct stream *stream;
    uint64_t request; /* that opened it; answered once the ring is there */
    const char *note; /* why this memory kind */
    uint64_t acquisition;
};

/* A save or a comparison that is waited for. */
struct session_task {
    struct session_task *next;
    struct session *session;
    uint64_t id, request; /* request: what is still to be answered; 0: nothing */
    struct kept_save *save;
    struct verify *verify; /* one of both */
};

struct session_load {
    struct session_load *next;
    struct session *session;
    struct waiter waiter;
    uint64_t load;
    char *name;
};

/* A sum, mean pattern or centre of mass that is waited for. */
struct session_image {
    struct session_image *next;
    struct session *session;
    struct image *image;
    uint64_t request;
    enum image_kind kind;
    const char *dtype; /* of its results */
    uint32_t n_sums;
};

struct session {
    struct session *next;
    struct server *server;
    struct wire *wire;
    uv_poll_t poll;
    enum session_state state;
    uid_t uid;
    gid_t gid;
    pid_t pid;
    unsigned memory_kinds; /* that the client can map */
    bool same_pid_namespace;
    uint8_t (*uuids)[16];
    size_t n_uuids;
    struct session_stream *streams;
    struct session_load *loads;
    struct session_task *tasks;
    struct session_image *images;
    unsigned n_images;
    unsigned n_streams, n_loads, n_tasks; /* in these lists */
    unsigned n_stale;
    uint64_t since_ns; /* connected; or since when the backlog does not shrink */
    size_t last_backlog;
    bool held_back; /* messages may have come that are taken once the backlog is short again */
    bool stuck, broken;
};

/* Takes the connection. NULL: it was closed. */
struct session *session_new(struct server *server, int fd);

/* Close it: streams are abandoned, loads left; the struct goes with its libuv handle. reason is logged. */
void session_close(struct session *session, const char *reason);

/* Write what is queued. */
void session_flush(struct session *session);

/* Look after time limits; now_ns by uv_hrtime. */
void session_watch(struct session *session, uint64_t now_ns);

/* Queue an answer or an event. Without memory for it the session is closed. */
void session_reply(struct session *session, uint64_t id, Stow__Reply *reply, const int *fds,
                   size_t n_fds);
void session_event(struct session *session, Stow__Event *event);
void session_error(struct session *session, uint64_t id, const struct stow_error *err);
void session_done(struct session *session, uint64_t id);

#endif
