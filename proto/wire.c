/* SPDX-License-Identifier: Apache-2.0
 *
 * Incoming bytes collect in one buffer that is moved down when room is needed and grows to hold the
 * message under way, never beyond one whole message and a little. Incoming descriptors wait in a FIFO:
 * SCM_RIGHTS come with the first byte of their message, so the FIFO's head belongs to the next message.
 * Outgoing messages are a list; those without descriptors leave together in one sendmsg. */
#include "wire.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define HEADER_BYTES 8u
#define READ_STEP 4096u
#define MAX_QUEUED_FDS (2 * WIRE_MAX_FDS)
#define MAX_IOV 16

struct outgoing {
    struct outgoing *next;
    size_t bytes, sent;
    size_t n_fds;
    int fds[WIRE_MAX_FDS];
    uint8_t data[];
};

struct wire {
    int fd;
    uint8_t *in;
    size_t room, begin, end; /* in[begin..end) has come and is not taken */
    int fds[MAX_QUEUED_FDS];
    size_t n_fds;
    size_t taken_bytes, taken_fds; /* of the message that wire_next gave out last */
    struct outgoing *out, **out_last;
    size_t backlog;
};

static uint32_t get_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void put_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static void close_all(int *fds, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
}

struct wire *wire_new(int fd)
{
    struct wire *wire = calloc(1, sizeof(*wire));
    int flags = fcntl(fd, F_GETFL);
    if (!wire || flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) {
        free(wire);
        close(fd);
        return NULL;
    }
    wire->fd = fd;
    wire->out_last = &wire->out;
    return wire;
}

static void drop_outgoing(struct wire *wire)
{
    struct outgoing *gone = wire->out;
    wire->out = gone->next;
    if (!wire->out)
        wire->out_last = &wire->out;
    wire->backlog -= gone->bytes - gone->sent;
    close_all(gone->fds, gone->n_fds);
    free(gone);
}

void wire_free(struct wire *wire)
{
    if (!wire)
        return;
    while (wire->out)
        drop_outgoing(wire);
    close_all(wire->fds, wire->n_fds);
    close(wire->fd);
    free(wire->in);
    free(wire);
}

int wire_fd(const struct wire *wire)
{
    return wire->fd;
}

/* Forget the message that was given out last. */
static void let_go(struct wire *wire)
{
    wire->begin += wire->taken_bytes;
    close_all(wire->fds, wire->taken_fds);
    wire->n_fds -= wire->taken_fds;
    memmove(wire->fds, wire->fds + wire->taken_fds, wire->n_fds * sizeof(wire->fds[0]));
    wire->taken_bytes = wire->taken_fds = 0;
    if (wire->begin == wire->end)
        wire->begin = wire->end = 0;
}

/* Have at least READ_STEP bytes, or what the message under way still lacks, behind the buffer's end. */
static int make_room(struct wire *wire)
{
    size_t have = wire->end - wire->begin, want = have + READ_STEP;
    if (have >= HEADER_BYTES && HEADER_BYTES + get_u32(wire->in + wire->begin) > want)
        want = HEADER_BYTES + get_u32(wire->in + wire->begin);
    if (wire->room - wire->begin >= want)
        return 0;
    if (have)
        memmove(wire->in, wire->in + wire->begin, have);
    wire->begin = 0;
    wire->end = have;
    if (wire->room >= want)
        return 0;
    uint8_t *in = realloc(wire->in, want);
    if (!in)
        return STOW_NOMEM;
    wire->in = in;
    wire->room = want;
    return 0;
}

/* Append the descriptors of one recvmsg to the FIFO. */
static int take_fds(struct wire *wire, struct msghdr *msg, struct stow_error *err)
{
    size_t came = 0;
    int rc = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        came += n;
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
            if (wire->n_fds < MAX_QUEUED_FDS) {
                wire->fds[wire->n_fds++] = fd;
            } else {
                close(fd);
                rc = STOW_PROTOCOL;
            }
        }
    }
    if (!rc && msg->msg_flags & MSG_CTRUNC && came < WIRE_MAX_FDS)
        return error_set(err, STOW_LIMIT,
                         "no descriptor is left to receive a file; raise the limit of open files "
                         "(of framestowd: LimitNOFILE= or ulimit -Hn)");
    if (msg->msg_flags & MSG_CTRUNC)
        rc = STOW_PROTOCOL;
    return rc ? error_set(err, rc, "too many descriptors in one message") : 0;
}

/* A length that cannot be is told before anything is allocated for it. */
static int check_header(const struct wire *wire, struct stow_error *err)
{
    if (wire->end - wire->begin < HEADER_BYTES)
        return 0;
    uint32_t bytes = get_u32(wire->in + wire->begin), n_fds = get_u32(wire->in + wire->begin + 4);
    if (bytes > WIRE_MAX_BODY)
        return error_set(err, STOW_PROTOCOL, "a message of %u bytes; the most is %u", bytes,
                         WIRE_MAX_BODY);
    if (n_fds > WIRE_MAX_FDS)
        return error_set(err, STOW_PROTOCOL, "a message with %u descriptors; the most is %u", n_fds,
                         WIRE_MAX_FDS);
    return 0;
}

int wire_read(struct wire *wire, struct stow_error *err)
{
    let_go(wire);
    int rc = check_header(wire, err);
    if (rc)
        return rc;
    if (make_room(wire))
        return error_set(err, STOW_NOMEM, "no memory for a message");
    union {
        char bytes[CMSG_SPACE(WIRE_MAX_FDS * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = wire->in + wire->end, .iov_len = wire->room - wire->end};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof(control.bytes)};
    ssize_t got;
    do
        got = recvmsg(wire->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            return 0;
        if (errno == ECONNRESET || errno == EPIPE)
            return error_set(err, STOW_GONE, "the other end closed the connection");
        return error_errno(err, errno, "receiving a message");
    }
    rc = take_fds(wire, &msg, err);
    if (rc)
        return rc;
    if (got == 0)
        return error_set(err, STOW_GONE, "the other end closed the connection");
    wire->end += (size_t)got;
    rc = check_header(wire, err);
    return rc ? rc : 1;
}

int wire_next(struct wire *wire, struct wire_message *message, struct stow_error *err)
{
    let_go(wire);
    int rc = check_header(wire, err);
    if (rc)
        return rc;
    size_t have = wire->end - wire->begin;
    if (have < HEADER_BYTES)
        return 0;
    size_t bytes = get_u32(wire->in + wire->begin), n_fds = get_u32(wire->in + wire->begin + 4);
    if (have < HEADER_BYTES + bytes)
        return 0;
    if (n_fds > wire->n_fds)
        return error_set(err, STOW_PROTOCOL, "a message announced %zu descriptors and brought %zu",
                         n_fds, wire->n_fds);
    if (have == HEADER_BYTES + bytes && wire->n_fds > n_fds)
        return error_set(err, STOW_PROTOCOL, "a message announced %zu descriptors and brought %zu",
                         n_fds, wire->n_fds);
    *message = (struct wire_message){.body = wire->in + wire->begin + HEADER_BYTES,
                                     .bytes = bytes,
                                     .fds = wire->fds,
                                     .n_fds = n_fds};
    wire->taken_bytes = HEADER_BYTES + bytes;
    wire->taken_fds = n_fds;
    return 1;
}

int wire_send(struct wire *wire, const uint8_t *body, size_t bytes, const int *fds, size_t n_fds,
              struct stow_error *err)
{
    if (bytes > WIRE_MAX_BODY || n_fds > WIRE_MAX_FDS)
        return error_set(err, STOW_INVALID,
                         "a message of %zu bytes with %zu descriptors is too long", bytes, n_fds);
    struct outgoing *out = malloc(sizeof(*out) + HEADER_BYTES + bytes);
    if (!out)
        return error_set(err, STOW_NOMEM, "no memory for a message of %zu bytes", bytes);
    *out = (struct outgoing){.bytes = HEADER_BYTES + bytes};
    for (; out->n_fds < n_fds; out->n_fds++) {
        out->fds[out->n_fds] = fcntl(fds[out->n_fds], F_DUPFD_CLOEXEC, 0);
        if (out->fds[out->n_fds] < 0) {
            int why = errno;
            close_all(out->fds, out->n_fds);
            free(out);
            return error_errno(err, why, "passing a descriptor on");
        }
    }
    put_u32(out->data, (uint32_t)bytes);
    put_u32(out->data + 4, (uint32_t)n_fds);
    if (bytes)
        memcpy(out->data + HEADER_BYTES, body, bytes);
    *wire->out_last = out;
    wire->out_last = &out->next;
    wire->backlog += out->bytes;
    return 0;
}

/* The front of the queue as one sendmsg: up to MAX_IOV messages, the first of which may carry
 * descriptors that have not left yet. */
static ssize_t send_front(struct wire *wire)
{
    struct iovec iov[MAX_IOV];
    size_t n = 0;
    for (struct outgoing *out = wire->out; out && n < MAX_IOV; out = out->next) {
        if (n && out->n_fds)
            break;
        iov[n++] =
            (struct iovec){.iov_base = out->data + out->sent, .iov_len = out->bytes - out->sent};
    }
    union {
        char bytes[CMSG_SPACE(WIRE_MAX_FDS * sizeof(int))];
        struct cmsghdr align;
    } control = {.bytes = {0}};
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = n};
    struct outgoing *first = wire->out;
    if (first->n_fds) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE(first->n_fds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(first->n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), first->fds, first->n_fds * sizeof(int));
    }
    ssize_t sent;
    do
        sent = sendmsg(wire->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent;
}

/* Take what was sent off the queue. Descriptors left with the first byte. */
static void account(struct wire *wire, size_t sent)
{
    while (sent) {
        struct outgoing *out = wire->out;
        size_t part = out->bytes - out->sent;
        close_all(out->fds, out->n_fds);
        out->n_fds = 0;
        if (part > sent)
            part = sent;
        out->sent += part;
        wire->backlog -= part;
        sent -= part;
        if (out->sent == out->bytes)
            drop_outgoing(wire);
    }
}

int wire_flush(struct wire *wire, struct stow_error *err)
{
    while (wire->out) {
        ssize_t sent = send_front(wire);
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 1;
        if (sent < 0 && (errno == EPIPE || errno == ECONNRESET))
            return error_set(err, STOW_GONE, "the other end closed the connection");
        if (sent < 0)
            return error_errno(err, errno, "sending a message");
        account(wire, (size_t)sent);
    }
    return 0;
}

size_t wire_backlog(const struct wire *wire)
{
    return wire->backlog;
}
