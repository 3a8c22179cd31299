/* SPDX-License-Identifier: Apache-2.0 */
#include "session.h"

#include "commands.h"
#include "metrics.h"

#define LOG_MODULE "session"
#include "log.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void on_io(uv_poll_t *poll, int status, int events);

/* What the socket is watched for: reading, unless too much waits to be written or messages wait to be taken;
 * writing, while something does. */
static void watch_socket(struct session *session)
{
    size_t backlog = wire_backlog(session->wire);
    int events = 0;
    if (backlog < SESSION_BACKLOG_BYTES && !session->held_back)
        events |= UV_READABLE;
    if (backlog || session->held_back)
        events |= UV_WRITABLE;
    uv_poll_start(&session->poll, events, on_io);
}

struct session *session_new(struct server *server, int fd)
{
    struct ucred peer;
    socklen_t size = sizeof(peer);
    struct session *session = calloc(1, sizeof(*session));
    if (!session || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size)) {
        free(session);
        close(fd);
        return NULL;
    }
    struct wire *wire = wire_new(fd);
    if (!wire) {
        free(session);
        return NULL;
    }
    *session = (struct session){.next = server->sessions,
                                .server = server,
                                .wire = wire,
                                .uid = peer.uid,
                                .gid = peer.gid,
                                .pid = peer.pid,
                                .since_ns = uv_hrtime()};
    uv_poll_init(&server->loop, &session->poll, fd);
    session->poll.data = session;
    server->sessions = session;
    server->n_sessions++;
    metrics.sessions++;
    metrics.sessions_total++;
    watch_socket(session);
    return session;
}

static void on_closed(uv_handle_t *handle)
{
    struct session *session = handle->data;
    wire_free(session->wire);
    free(session->uuids);
    free(session);
}

void session_close(struct session *session, const char *reason)
{
    if (session->state == SESSION_CLOSING)
        return;
    LOG_DBG("pid %d uid %u: %s", (int)session->pid, (unsigned)session->uid, reason);
    session->state = SESSION_CLOSING;
    struct session **at = &session->server->sessions;
    while (*at != session)
        at = &(*at)->next;
    *at = session->next;
    session->server->n_sessions--;
    metrics.sessions--;
    while (session->streams) {
        struct session_stream *s = session->streams;
        session->streams = s->next;
        stream_abandon(s->stream);
        free(s);
    }
    while (session->images) {
        struct session_image *i = session->images;
        session->images = i->next;
        image_abandon(i->image);
        free(i);
    }
    while (session->loads) {
        struct session_load *l = session->loads;
        session->loads = l->next;
        load_leave(&l->waiter);
        free(l->name);
        free(l);
    }
    tasks_end(session, NULL);
    wire_flush(session->wire, NULL); /* a last word, if the socket takes it */
    uv_poll_stop(&session->poll);
    uv_close((uv_handle_t *)&session->poll, on_closed);
}

/* ---- sending ---- */

static void queue(struct session *session, Stow__Message *message, const int *fds, size_t n_fds)
{
    if (session->state == SESSION_CLOSING)
        return;
    size_t bytes = stow__message__get_packed_size(message);
    uint8_t body[WIRE_MAX_BODY];
    struct stow_error err;
    assert(bytes <= sizeof(body)); /* whoever builds a message keeps it in pages */
    stow__message__pack(message, body);
    if (wire_send(session->wire, body, bytes, fds, n_fds, &err)) {
        LOG_ERR("pid %d uid %u: %s", (int)session->pid, (unsigned)session->uid, err.text);
        session->broken =
            true; /* closed by the next flush: whoever sends is in the middle of something */
    }
}

void session_reply(struct session *session, uint64_t id, Stow__Reply *reply, const int *fds,
                   size_t n_fds)
{
    Stow__Message message = STOW__MESSAGE__INIT;
    reply->id = id;
    message.body_case = STOW__MESSAGE__BODY_REPLY;
    message.reply = reply;
    queue(session, &message, fds, n_fds);
}

void session_event(struct session *session, Stow__Event *event)
{
    Stow__Message message = STOW__MESSAGE__INIT;
    message.body_case = STOW__MESSAGE__BODY_EVENT;
    message.event = event;
    queue(session, &message, NULL, 0);
}

void session_error(struct session *session, uint64_t id, const struct stow_error *err)
{
    Stow__Error error = STOW__ERROR__INIT;
    Stow__Reply reply = STOW__REPLY__INIT;
    error.code = (Stow__Code)-err->code;
    error.text = (char *)err->text;
    reply.body_case = STOW__REPLY__BODY_ERROR;
    reply.error = &error;
    session_reply(session, id, &reply, NULL, 0);
}

void session_done(struct session *session, uint64_t id)
{
    Stow__Done done = STOW__DONE__INIT;
    Stow__Reply reply = STOW__REPLY__INIT;
    reply.body_case = STOW__REPLY__BODY_DONE;
    reply.done = &done;
    session_reply(session, id, &reply, NULL, 0);
}

void session_flush(struct session *session)
{
    struct stow_error err;
    if (session->broken)
        session_close(session, "a message could not be queued");
    if (session->state == SESSION_CLOSING || !wire_backlog(session->wire))
        return;
    if (wire_flush(session->wire, &err) < 0) {
        session_close(session, err.text);
        return;
    }
    watch_socket(session);
}

/* ---- receiving ---- */

static void refuse(struct session *session, const struct stow_error *err)
{
    if (err->code == STOW_PROTOCOL) {
        metrics.protocol_errors_total++;
        LOG_WARN("pid %d uid %u: %s; the connection is closed", (int)session->pid,
                 (unsigned)session->uid, err->text);
    } else if (err->code == STOW_LIMIT) { /* of ours, not the client's fault */
        LOG_ERR("pid %d uid %u: %s; the connection is closed", (int)session->pid,
                (unsigned)session->uid, err->text);
        session_error(session, 0, err);
    }
    session_close(session, err->text);
}

static void take_messages(struct session *session)
{
    struct wire_message message;
    struct stow_error err;
    int rc = 1;
    while (session->state != SESSION_CLOSING &&
           wire_backlog(session->wire) < SESSION_BACKLOG_BYTES &&
           (rc = wire_next(session->wire, &message, &err)) > 0) {
        if (!command_dispatch(session, &message)) {
            error_set(&err, STOW_PROTOCOL, "a message that is none");
            rc = STOW_PROTOCOL;
            break;
        }
    }
    session->held_back = wire_backlog(session->wire) >= SESSION_BACKLOG_BYTES;
    if (rc < 0 && session->state != SESSION_CLOSING)
        refuse(session, &err);
}

static void read_socket(struct session *session)
{
    struct stow_error err;
    int rc = wire_read(session->wire, &err);
    if (rc > 0)
        take_messages(session);
    else if (rc < 0)
        refuse(session, &err);
}

static void on_io(uv_poll_t *poll, int status, int events)
{
    struct session *session = poll->data;
    if (status < 0) {
        session_close(session, uv_strerror(status));
        return;
    }
    if (events & UV_WRITABLE) {
        session_flush(session);
        if (session->state != SESSION_CLOSING)
            take_messages(session); /* those that came before the backlog was too long */
    }
    if (events & UV_READABLE && session->state != SESSION_CLOSING && !session->held_back)
        read_socket(session);
    if (session->state != SESSION_CLOSING)
        watch_socket(session);
}

void session_watch(struct session *session, uint64_t now_ns)
{
    size_t backlog = wire_backlog(session->wire);
    if (session->state == SESSION_NEW) {
        if (now_ns - session->since_ns > SESSION_HELLO_NS)
            session_close(session, "no HELLO came");
        return;
    }
    if (backlog < SESSION_BACKLOG_BYTES || backlog < session->last_backlog || !session->stuck) {
        session->since_ns = now_ns;
    } else if (now_ns - session->since_ns > SESSION_STUCK_NS) {
        LOG_WARN("pid %d uid %u does not read what it asked for; the connection is closed",
                 (int)session->pid, (unsigned)session->uid);
        session_close(session, "it does not read");
        return;
    }
    session->stuck = backlog >= SESSION_BACKLOG_BYTES;
    session->last_backlog = backlog;
}
