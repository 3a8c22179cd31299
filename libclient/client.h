/* SPDX-License-Identifier: Apache-2.0
 *
 * client: one connection to framestowd, and how the rest of the library speaks through it.
 *
 * A request is sent and its reply awaited (client_ask), or sent alone (client_tell). Whatever
 * else comes meanwhile is handed to its owner: batches and ends to their stream (slots.c), the
 * course of a load to the load under way (load.c). When the daemon is gone or broke the
 * protocol, `gone` says why, for good.
 *
 * Receiving is done by the one thread that uses the connection. Sending may come from any
 * thread, since a slot is given back by whoever is done with it: every call on the wire is made
 * under wire_lock. */
#ifndef STOW_CLIENT_H
#define STOW_CLIENT_H

#include "error.h"
#include "framestow.pb-c.h"
#include "wire.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

struct course;

/* A reply as it came, with its descriptors; -1: taken. */
struct answer {
    Stow__Message *message; /* owns all below */
    const Stow__Reply *reply;
    int fds[WIRE_MAX_FDS];
    size_t n_fds;
};

struct stow_client {
    struct wire *wire;
    pthread_mutex_t wire_lock;
    pid_t pid; /* of the process that connected */

    uint64_t last_id;
    uint64_t awaited; /* id of the request whose reply is waited for; 0: none */
    struct answer answer;

    struct stow_error error;   /* the last failure, for stow_last_error */
    struct stow_error gone;    /* code not 0: the connection is of no more use */
    struct stow_error goodbye; /* code not 0: the daemon is ending */

    struct answer hello; /* what the daemon said of itself; daemon points into it */
    struct stow_daemon_info daemon;
    char *daemon_devices;
    char daemon_kinds[64];

    struct course *course; /* under way; NULL: none */

    struct stow_stream *streams;
    uint32_t last_stream;
    pthread_mutex_t slot_lock; /* states of slots, and releases to be sent */

    int poll_fd;  /* epoll of the socket and ready_fd; -1: nobody asked */
    int ready_fd; /* eventfd, readable while a batch or an end lies here unfetched */
    bool ready_set;
};

/* Ids of requests whose reply nobody waits for: kind, and number of the stream. Replies to them
 * matter only when they are errors. */
#define CLIENT_ID_ALONE (1ull << 63)
#define CLIENT_ID_STREAM (1ull << 62)

/* How long a reply may take. */
#define CLIENT_REPLY_NS 60000000000ull

/* 0, or STOW_FORKED, STOW_GONE, ... with the last error set: the connection cannot be used. */
int client_check(struct stow_client *client);

/* Send, and wait for a reply of this kind. On success *answer is the caller's, for answer_drop.
 * A refusal by the daemon, a wrong kind of reply or a lost connection is a negative code, with
 * the last error set. */
int client_ask(struct stow_client *client, Stow__Request *request, const int *fds, size_t n_fds,
               Stow__Reply__BodyCase kind, struct answer *answer);

/* The same with more time than CLIENT_REPLY_NS for the answer. */
int client_ask_within(struct stow_client *client, Stow__Request *request, const int *fds,
                      size_t n_fds, Stow__Reply__BodyCase kind, struct answer *answer,
                      uint64_t limit_ns);

/* The same where the answer is only Done. */
int client_ask_done(struct stow_client *client, Stow__Request *request);

/* Send, and do not wait: request->id is the caller's. Any thread. *err may be NULL. */
int client_tell(struct stow_client *client, const Stow__Request *request, const int *fds,
                size_t n_fds, struct stow_error *err);

/* Take one message and hand it to its owner: 1. 0: none came before the deadline
 * (CLOCK_MONOTONIC; UINT64_MAX: wait for ever). Until spin_ns the socket is asked without
 * sleeping. Negative: gone. */
int client_turn(struct stow_client *client, uint64_t deadline_ns, uint64_t spin_ns);

void answer_drop(struct answer *answer);

/* What the daemon says went wrong. Returns the code. */
int client_error_of(const Stow__Error *error, struct stow_error *err);

/* Copy the caller's options (their first field, size, is passed too) over zeros, as far as they go.
 * STOW_INVALID: larger than is known here. */
int client_options(struct stow_client *client, void *options, size_t known, const void *given,
                   size_t size);

uint64_t client_now_ns(void);

static inline ProtobufCBinaryData client_bytes(const char *text, size_t n)
{
    return (ProtobufCBinaryData){.len = n, .data = (uint8_t *)(uintptr_t)text};
}

/* answers.c: an acquisition as it came, in one heap block; NULL: out of memory. */
struct stow_info *answer_info(const Stow__Acquisition *from);

/* course.c, from client_turn. */
void course_on_need(struct course *course, const Stow__NeedFiles *need);
void course_on_progress(struct course *course, const Stow__Progress *progress);
void course_on_loaded(struct course *course, const Stow__Loaded *loaded);
void course_on_saved(struct course *course, const Stow__Saved *saved);
void course_on_verified(struct course *course, const Stow__Verified *verified);

#endif
