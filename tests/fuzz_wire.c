/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_wire: bytes from a peer that keeps no promise. They come through a socket in pieces, as wire_read
 * would see them, and each message that wire_next lets through is parsed as what the daemon reads
 * (Request) and as what a client reads (Message).
 *
 * First byte: the size of the pieces, and whether descriptors come along. The rest is the stream. */
#include "framestow.pb-c.h"
#include "wire.h"

#include <assert.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Some bytes, with n_fds descriptors of /dev/null. False when the socket takes no more. */
static bool send_piece(int fd, const uint8_t *data, size_t bytes, size_t n_fds, int null_fd)
{
    union {
        char bytes[CMSG_SPACE(4 * sizeof(int))];
        struct cmsghdr align;
    } control = {.bytes = {0}};
    struct iovec iov = {.iov_base = (void *)data, .iov_len = bytes};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n_fds) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        struct cmsghdr *head = CMSG_FIRSTHDR(&msg);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        for (size_t i = 0; i < n_fds; i++)
            memcpy(CMSG_DATA(head) + i * sizeof(int), &null_fd, sizeof(int));
    }
    return sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)bytes;
}

static void parse(const struct wire_message *message)
{
    assert(message->bytes <= WIRE_MAX_BODY && message->n_fds <= WIRE_MAX_FDS);
    for (size_t i = 0; i < message->n_fds; i++)
        assert(fcntl(message->fds[i], F_GETFD) == FD_CLOEXEC);
    Stow__Request *request = stow__request__unpack(NULL, message->bytes, message->body);
    if (request)
        stow__request__free_unpacked(request, NULL);
    Stow__Message *answer = stow__message__unpack(NULL, message->bytes, message->body);
    if (answer)
        stow__message__free_unpacked(answer, NULL);
}

/* Take all that is there. False once the wire is of no more use. */
static bool drain(struct wire *wire)
{
    struct stow_error err = {0};
    struct wire_message message;
    int rc = wire_read(wire, &err);
    if (rc < 0) {
        assert(err.code == rc && err.text[0]);
        return false;
    }
    while ((rc = wire_next(wire, &message, &err)) > 0)
        parse(&message);
    assert(rc == 0 || (rc == STOW_PROTOCOL && err.text[0]));
    return rc == 0;
}

/* The number that the next descriptor gets: it rises when one leaks. */
static int next_fd(int null_fd)
{
    int fd = dup(null_fd);
    close(fd);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static int null_fd = -1;
    if (null_fd < 0)
        null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int pair[2], first_fd = next_fd(null_fd);
    if (bytes < 1 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return 0;
    size_t piece = (size_t)(data[0] & 0x3f) * 17 + 1, n_fds = data[0] >> 6;
    struct wire *wire = wire_new(pair[0]);
    assert(wire);
    bool usable = true;
    for (size_t at = 1; at < bytes && usable; at += piece) {
        size_t some = bytes - at < piece ? bytes - at : piece;
        usable = send_piece(pair[1], data + at, some, at == 1 ? n_fds : 0, null_fd) && drain(wire);
    }
    close(pair[1]);
    if (usable)
        drain(wire);
    wire_free(wire);
    assert(next_fd(null_fd) == first_fd);
    return 0;
}
