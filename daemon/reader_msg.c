/* SPDX-License-Identifier: Apache-2.0 */
#include "reader_msg.h"

#include "error.h"
#include "frame.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

bool reader_msg_text(struct reader_msg *msg, const char *text, const char *more)
{
    size_t first = strlen(text) + 1, second = more ? strlen(more) + 1 : 0;
    msg->text_bytes = 0;
    if (first > sizeof(msg->text) || second > sizeof(msg->text) - first)
        return false;
    memcpy(msg->text, text, first);
    if (more)
        memcpy(msg->text + first, more, second);
    msg->text_bytes = (uint32_t)(first + second);
    return true;
}

const char *reader_msg_more(const struct reader_msg *msg)
{
    size_t first = msg->text_bytes ? strlen(msg->text) + 1 : 0;
    return first < msg->text_bytes ? msg->text + first : "";
}

int reader_msg_send(int socket, const struct reader_msg *msg, int fd)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec iov = {.iov_base = (void *)msg,
                        .iov_len = offsetof(struct reader_msg, text) + msg->text_bytes};
    struct msghdr header = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd >= 0) {
        header.msg_control = control.bytes;
        header.msg_controllen = sizeof(control.bytes);
        struct cmsghdr *part = CMSG_FIRSTHDR(&header);
        part->cmsg_level = SOL_SOCKET;
        part->cmsg_type = SCM_RIGHTS;
        part->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(part), &fd, sizeof(fd));
    }
    while (sendmsg(socket, &header, MSG_NOSIGNAL) < 0)
        if (errno != EINTR)
            return errno;
    return 0;
}

/* Keep the first descriptor, close any others. */
static void take_fds(struct msghdr *header, int *fd)
{
    for (struct cmsghdr *part = CMSG_FIRSTHDR(header); part; part = CMSG_NXTHDR(header, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int got;
            memcpy(&got, CMSG_DATA(part) + i * sizeof(int), sizeof(got));
            if (*fd < 0)
                *fd = got;
            else
                close(got);
        }
    }
}

static bool well_formed(const struct reader_msg *msg, size_t bytes)
{
    size_t head = offsetof(struct reader_msg, text);
    if (bytes < head || msg->text_bytes != bytes - head)
        return false;
    return msg->text_bytes == 0 || msg->text[msg->text_bytes - 1] == '\0';
}

int reader_msg_receive(int socket, struct reader_msg *msg, int *fd)
{
    union {
        char bytes[CMSG_SPACE(4 * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = msg, .iov_len = sizeof(*msg)};
    struct msghdr header = {.msg_iov = &iov,
                            .msg_iovlen = 1,
                            .msg_control = control.bytes,
                            .msg_controllen = sizeof(control.bytes)};
    *fd = -1;
    ssize_t got;
    do
        got = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return errno == ECONNRESET ? READER_MSG_END : errno;
    if (got == 0)
        return READER_MSG_END;
    take_fds(&header, fd);
    if (!(header.msg_flags & MSG_TRUNC) && well_formed(msg, (size_t)got)) {
        if (msg->text_bytes == 0)
            msg->text[0] = '\0';
        return 0;
    }
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
    return EBADMSG;
}

void reader_msg_clean(char *to, size_t room, const char *text)
{
    size_t at = 0;
    for (; *text && at + sizeof("\\x0a") <= room; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x20 || c == 0x7f)
            at += (size_t)snprintf(to + at, room - at, "\\x%02x", c);
        else
            to[at++] = (char)c;
    }
    to[at] = '\0';
    error_clean(to);
}

const char *reader_msg_check_shape(const struct reader_shape *shape, uint64_t *frame)
{
    uint64_t pixels, scanned, all;
    uint32_t size = shape->elem_bytes;
    if (pixel_kind_of(shape->dtype, size) < 0)
        return "an unknown kind of pixels";
    if (shape->det_y == 0 || shape->det_x == 0 ||
        __builtin_mul_overflow(shape->det_y, shape->det_x, &pixels) ||
        __builtin_mul_overflow(pixels, (uint64_t)size, frame) || *frame > UINT32_MAX)
        return "frames of an impossible size";
    if (shape->n_frames == 0 || shape->n_frames > READER_MAX_FRAMES ||
        __builtin_mul_overflow(*frame, shape->n_frames, &all))
        return "an impossible number of frames";
    if (__builtin_mul_overflow(shape->scan_y, shape->scan_x, &scanned) ||
        ((shape->scan_y || shape->scan_x) && scanned != shape->n_frames))
        return "a scan that does not fit the frames";
    return shape->fill >> (8 * size - 1) >> 1 ? "a fill value that does not fit a pixel" : NULL;
}
