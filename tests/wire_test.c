/* SPDX-License-Identifier: Apache-2.0
 *
 * wire_test: messages and their descriptors over a socket pair, byte by byte and all at once, good and bad. */
#include "wire.h"

#include "test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADER 8

/* ---- helpers ---- */

static int count_fds(void)
{
    int n = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder))
        n++;
    if (folder)
        closedir(folder);
    return n;
}

/* A wire, and the other end of its socket as a plain descriptor. */
static struct wire *wire_pair(int *peer)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
        exit(EXIT_FAILURE);
    *peer = ends[1];
    return wire_new(ends[0]);
}

static void put_header(uint8_t *at, uint32_t bytes, uint32_t n_fds)
{
    for (int i = 0; i < 4; i++) {
        at[i] = (uint8_t)(bytes >> (8 * i));
        at[4 + i] = (uint8_t)(n_fds >> (8 * i));
    }
}

/* Send raw bytes with descriptors at the first of them. */
static ssize_t send_raw(int fd, const void *bytes, size_t n, const int *fds, size_t n_fds)
{
    union {
        char bytes[CMSG_SPACE(253 * sizeof(int))];
        struct cmsghdr align;
    } control = {.bytes = {0}};
    struct iovec iov = {.iov_base = (void *)bytes, .iov_len = n};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n_fds) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
    }
    return sendmsg(fd, &msg, MSG_NOSIGNAL);
}

/* A file that can be told from others by its size. */
static int marked_fd(unsigned mark)
{
    int fd = memfd_create("mark", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)mark))
        exit(EXIT_FAILURE);
    return fd;
}

static long mark_of(int fd)
{
    struct stat st;
    return fd < 0 || fstat(fd, &st) ? -1 : (long)st.st_size;
}

static uint8_t body_byte(size_t message, size_t i)
{
    return (uint8_t)(message * 37 + i * 11 + (i >> 8));
}

static size_t wrong_bytes(const struct wire_message *message, size_t number)
{
    size_t wrong = 0;
    for (size_t i = 0; i < message->bytes; i++)
        wrong += message->body[i] != body_byte(number, i);
    return wrong;
}

/* Header and body of a message, from malloc. Not inlined: gcc 12 then warns of an overflow that cannot be. */
__attribute__((noinline)) static uint8_t *make_message(size_t number, size_t bytes, size_t n_fds)
{
    uint8_t *text = malloc(HEADER + bytes);
    if (!text)
        exit(EXIT_FAILURE);
    put_header(text, (uint32_t)bytes, (uint32_t)n_fds);
    for (size_t i = 0; i < bytes; i++)
        text[HEADER + i] = body_byte(number, i);
    return text;
}

/* ---- receiving ---- */

/* One byte at a time: nothing comes before the last, everything with it. */
static void test_byte_by_byte(void)
{
    static const size_t sizes[] = {0, 1, 7, 8, 9, 255, 300};
    int peer;
    struct wire *wire = wire_pair(&peer);
    struct wire_message message;
    struct stow_error err;
    CHECK_INT(wire_read(wire, &err), 0);
    CHECK_INT(wire_next(wire, &message, &err), 0);
    for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
        size_t n = HEADER + sizes[k], early = 0;
        uint8_t *text = make_message(k, sizes[k], 0);
        for (size_t i = 0; i < n; i++) {
            early += i && wire_next(wire, &message, &err) != 0;
            CHECK(send(peer, text + i, 1, 0) == 1 && wire_read(wire, &err) == 1);
        }
        CHECK_INT(early, 0);
        CHECK_INT(wire_next(wire, &message, &err), 1);
        CHECK_INT(message.bytes, sizes[k]);
        CHECK_INT(message.n_fds, 0);
        CHECK_INT(wrong_bytes(&message, k), 0);
        CHECK_INT(wire_next(wire, &message, &err), 0);
        free(text);
    }
    close(peer);
    CHECK_INT(wire_read(wire, &err), STOW_GONE);
    wire_free(wire);
}

/* Several messages by one write, cut at every place into two. */
static void test_several(void)
{
    enum { N = 6 };
    static const size_t sizes[N] = {3, 0, 17, 1, 0, 40};
    uint8_t all[N * HEADER + 61];
    size_t n = 0;
    for (size_t k = 0; k < N; k++) {
        uint8_t *text = make_message(k, sizes[k], 0);
        memcpy(all + n, text, HEADER + sizes[k]);
        n += HEADER + sizes[k];
        free(text);
    }
    for (size_t cut = 1; cut <= n; cut++) {
        int peer;
        struct wire *wire = wire_pair(&peer);
        struct wire_message message;
        struct stow_error err;
        size_t came = 0, wrong = 0;
        for (int part = 0; part < 2; part++) {
            size_t begin = part ? cut : 0, end = part ? n : cut;
            if (begin == end)
                continue;
            wrong += send(peer, all + begin, end - begin, 0) != (ssize_t)(end - begin);
            wrong += wire_read(wire, &err) != 1;
            while (wire_next(wire, &message, &err) == 1) {
                wrong +=
                    message.bytes != sizes[came] || wrong_bytes(&message, came) || message.n_fds;
                came++;
            }
        }
        CHECK_MSG(came == N && !wrong, "cut at %zu: %zu messages, %zu wrong", cut, came, wrong);
        wire_free(wire);
        close(peer);
    }
}

/* The longest body there is, and the next longer. */
static void test_lengths(void)
{
    static const struct {
        uint32_t bytes, n_fds;
        int rc;
    } cases[] = {
        {0, 0, 1},
        {WIRE_MAX_BODY, 0, 1},
        {WIRE_MAX_BODY + 1, 0, STOW_PROTOCOL},
        {0xffffffffu, 0, STOW_PROTOCOL},
        {0x80000000u, 0, STOW_PROTOCOL},
        {4, WIRE_MAX_FDS + 1, STOW_PROTOCOL},
        {4, 0xffffffffu, STOW_PROTOCOL},
        {4, 1, STOW_PROTOCOL}, /* announced, and did not come */
    };
    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        int peer;
        struct wire *wire = wire_pair(&peer);
        struct wire_message message;
        struct stow_error err;
        size_t bytes = cases[k].bytes > WIRE_MAX_BODY ? 16 : cases[k].bytes, sent = 0;
        uint8_t *text = make_message(k, bytes, 0);
        put_header(text, cases[k].bytes, cases[k].n_fds);
        int rc = 0;
        for (int turn = 0; turn < 1000 && !rc; turn++) {
            if (sent < HEADER + bytes)
                sent += (size_t)send(peer, text + sent, HEADER + bytes - sent, MSG_DONTWAIT);
            rc = wire_read(wire, &err);
            if (rc >= 0)
                rc = wire_next(wire, &message, &err);
        }
        CHECK_MSG(rc == cases[k].rc, "case %zu gave %d", k, rc);
        if (rc == 1)
            CHECK(message.bytes == cases[k].bytes && !wrong_bytes(&message, k));
        else
            CHECK_INT(err.code, cases[k].rc);
        wire_free(wire);
        close(peer);
        free(text);
    }
}

/* A length that cannot be is refused with the header, before the body comes. */
static void test_refused_early(void)
{
    int peer;
    struct wire *wire = wire_pair(&peer);
    struct stow_error err;
    uint8_t header[HEADER];
    put_header(header, WIRE_MAX_BODY + 1, 0);
    CHECK(send(peer, header, HEADER - 1, 0) == HEADER - 1);
    CHECK_INT(wire_read(wire, &err), 1);
    CHECK(send(peer, header + HEADER - 1, 1, 0) == 1);
    CHECK_INT(wire_read(wire, &err), STOW_PROTOCOL);
    CHECK(strstr(err.text, "65537") && strstr(err.text, "65536"));
    wire_free(wire);
    close(peer);
}

static void test_end_of_file(void)
{
    static const size_t cuts[] = {0, 1, 4, 7, 8, 11};
    for (size_t k = 0; k < sizeof(cuts) / sizeof(cuts[0]); k++) {
        int peer;
        struct wire *wire = wire_pair(&peer);
        struct wire_message message;
        struct stow_error err;
        uint8_t *text = make_message(0, 10, 0);
        if (cuts[k]) {
            CHECK(send(peer, text, cuts[k], 0) == (ssize_t)cuts[k]);
            CHECK_INT(wire_read(wire, &err), 1);
        }
        CHECK_INT(wire_next(wire, &message, &err), 0);
        close(peer);
        CHECK_INT(wire_read(wire, &err), STOW_GONE);
        CHECK_INT(wire_next(wire, &message, &err), 0);
        wire_free(wire);
        free(text);
    }
}

/* ---- descriptors ---- */

/* Messages with 0 to 3 descriptors each, read late and all at once, then one byte at a time. */
static void test_fds_in_order(bool slowly)
{
    enum { N = 8 };
    int before = count_fds(), peer;
    struct wire *wire = wire_pair(&peer);
    struct wire_message message;
    struct stow_error err;
    unsigned mark = 1;
    for (size_t k = 0; k < N; k++) {
        int fds[3];
        size_t n_fds = k % 4;
        uint8_t *text = make_message(k, 5 + k, n_fds);
        for (size_t i = 0; i < n_fds; i++)
            fds[i] = marked_fd(mark++);
        for (size_t i = 0; i < HEADER + 5 + k; i += slowly ? 1 : HEADER + 5 + k)
            CHECK(send_raw(peer, text + i, slowly ? 1 : HEADER + 5 + k, fds, i ? 0 : n_fds) > 0);
        for (size_t i = 0; i < n_fds; i++)
            close(fds[i]);
        free(text);
    }
    size_t came = 0;
    mark = 1;
    while (wire_read(wire, &err) == 1) {
        while (wire_next(wire, &message, &err) == 1) {
            CHECK_INT(message.n_fds, came % 4);
            CHECK_INT(wrong_bytes(&message, came), 0);
            for (size_t i = 0; i < message.n_fds; i++) {
                CHECK_INT(mark_of(message.fds[i]), mark);
                CHECK(fcntl(message.fds[i], F_GETFD) & FD_CLOEXEC);
                mark++;
            }
            came++;
        }
    }
    CHECK_INT(came, N);
    wire_free(wire);
    close(peer);
    CHECK_INT(count_fds(), before);
}

/* Taken ones are the taker's; the others are closed by the next call. */
static void test_fds_taken(void)
{
    int before = count_fds(), peer;
    struct wire *wire = wire_pair(&peer);
    struct wire_message message;
    struct stow_error err;
    int fds[2] = {marked_fd(11), marked_fd(12)};
    uint8_t *text = make_message(0, 2, 2);
    CHECK(send_raw(peer, text, HEADER + 2, fds, 2) > 0);
    close(fds[0]);
    close(fds[1]);
    CHECK_INT(wire_read(wire, &err), 1);
    CHECK_INT(wire_next(wire, &message, &err), 1);
    CHECK_INT(message.n_fds, 2);
    int taken = message.fds[1], left = message.fds[0];
    message.fds[1] = -1;
    CHECK_INT(wire_next(wire, &message, &err), 0);
    CHECK_INT(mark_of(left), -1);
    CHECK_INT(mark_of(taken), 12);
    wire_free(wire);
    CHECK_INT(mark_of(taken), 12);
    close(taken);
    close(peer);
    free(text);
    CHECK_INT(count_fds(), before);
}

/* Fewer or more than announced; as many as there may be; too many. Nothing is left open. */
static void test_fds_counts(void)
{
    static const struct {
        size_t announced, sent;
        int rc;
    } cases[] = {{1, 0, STOW_PROTOCOL},   {2, 1, STOW_PROTOCOL},   {0, 1, STOW_PROTOCOL},
                 {1, 2, STOW_PROTOCOL},   {1, 64, STOW_PROTOCOL},  {64, 64, 1},
                 {64, 63, STOW_PROTOCOL}, {65, 65, STOW_PROTOCOL}, {64, 65, STOW_PROTOCOL},
                 {0, 200, STOW_PROTOCOL}};
    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        int before = count_fds(), peer, fds[200];
        struct wire *wire = wire_pair(&peer);
        struct wire_message message;
        struct stow_error err;
        uint8_t *text = make_message(0, 3, cases[k].announced);
        for (size_t i = 0; i < cases[k].sent; i++)
            fds[i] = marked_fd(1);
        CHECK(send_raw(peer, text, HEADER + 3, fds, cases[k].sent) > 0);
        int rc = wire_read(wire, &err);
        if (rc == 1)
            rc = wire_next(wire, &message, &err);
        CHECK_MSG(rc == cases[k].rc, "%zu announced, %zu sent gave %d", cases[k].announced,
                  cases[k].sent, rc);
        wire_free(wire);
        for (size_t i = 0; i < cases[k].sent; i++)
            close(fds[i]);
        close(peer);
        free(text);
        CHECK_INT(count_fds(), before);
    }
}

/* Descriptors that come with every byte of a message that never ends are not kept without bound. */
static void test_fds_flood(void)
{
    int before = count_fds(), peer, rc = 1, fds[64], n = 0;
    struct wire *wire = wire_pair(&peer);
    struct wire_message message;
    struct stow_error err;
    for (int i = 0; i < 64; i++)
        fds[i] = marked_fd(1);
    uint8_t *text = make_message(0, 1000, 64);
    for (; rc == 1 && n < 10; n++) {
        CHECK(send_raw(peer, text + n, 1, fds, 64) == 1);
        rc = wire_read(wire, &err);
        CHECK(wire_next(wire, &message, &err) == 0 || rc < 0);
    }
    CHECK_MSG(rc == STOW_PROTOCOL && n <= 3, "%d after %d", rc, n);
    wire_free(wire);
    for (int i = 0; i < 64; i++)
        close(fds[i]);
    close(peer);
    free(text);
    CHECK_INT(count_fds(), before);
}

/* Descriptors of half a message, and of one that nobody took, go with the wire. */
static void test_fds_freed(void)
{
    int before = count_fds(), peer, fd = marked_fd(1);
    struct wire *wire = wire_pair(&peer);
    struct wire_message message;
    struct stow_error err;
    uint8_t *text = make_message(0, 20, 1);
    CHECK(send_raw(peer, text, HEADER + 20, &fd, 1) > 0);
    CHECK_INT(wire_read(wire, &err), 1);
    CHECK(send_raw(peer, text, HEADER + 3, &fd, 1) > 0);
    CHECK_INT(wire_read(wire, &err), 1);
    CHECK_INT(wire_next(wire, &message, &err), 1);
    CHECK_INT(wire_next(wire, &message, &err), 0);
    /* queued and never flushed */
    CHECK_INT(wire_send(wire, text, 20, &fd, 1, &err), 0);
    wire_free(wire);
    close(peer);
    close(fd);
    free(text);
    CHECK_INT(count_fds(), before);
    wire_free(NULL);
}

/* ---- sending ---- */

static void test_send_bounds(void)
{
    int peer, fd = marked_fd(1), fds[65];
    struct wire *wire = wire_pair(&peer);
    struct stow_error err;
    static uint8_t body[WIRE_MAX_BODY + 1];
    for (int i = 0; i < 65; i++)
        fds[i] = fd;
    CHECK_INT(wire_send(wire, body, WIRE_MAX_BODY + 1, NULL, 0, &err), STOW_INVALID);
    CHECK_INT(wire_send(wire, body, 1, fds, 65, &err), STOW_INVALID);
    CHECK_INT(wire_send(wire, body, 1, (int[]){fd, -1}, 2, &err), STOW_IO);
    CHECK_INT(wire_backlog(wire), 0);
    CHECK_INT(wire_flush(wire, &err), 0);
    CHECK_INT(wire_send(wire, NULL, 0, NULL, 0, &err), 0);
    CHECK_INT(wire_backlog(wire), HEADER);
    CHECK_INT(wire_flush(wire, &err), 0);
    CHECK_INT(wire_backlog(wire), 0);
    uint8_t got[16];
    CHECK_INT(recv(peer, got, sizeof(got), MSG_DONTWAIT), HEADER);
    CHECK(memcmp(got, (uint8_t[HEADER]){0}, HEADER) == 0);
    wire_free(wire);
    close(peer);
    close(fd);
}

/* A socket that takes little at a time: everything arrives, in order, each with its descriptors. */
static void test_partial_writes(bool one_byte_reads)
{
    enum { N = 60 };
    int before = count_fds(), ends[2], small = 1;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
        exit(EXIT_FAILURE);
    setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
    struct wire *from = wire_new(ends[0]), *to = wire_new(ends[1]);
    struct wire_message message;
    struct stow_error err;
    size_t queued = 0, came = 0, n_partial = 0, wrong = 0;
    for (size_t k = 0; k < N; k++) {
        size_t bytes = k % 3 == 2 ? 30000 + k : k * 7, n_fds = k % 5 == 1 ? 1 + k % 3 : 0;
        int fds[3];
        uint8_t *text = make_message(k, bytes, 0);
        for (size_t i = 0; i < n_fds; i++)
            fds[i] = marked_fd((unsigned)(1000 * k + i));
        CHECK_INT(wire_send(from, text + HEADER, bytes, fds, n_fds, &err), 0);
        queued += HEADER + bytes;
        for (size_t i = 0; i < n_fds; i++)
            close(fds[i]);
        free(text);
    }
    CHECK_INT(wire_backlog(from), queued);
    for (int turn = 0; came < N && turn < 100000; turn++) {
        int rc = wire_flush(from, &err);
        CHECK_MSG(rc == 0 || rc == 1, "flush gave %d", rc);
        CHECK((rc == 0) == (wire_backlog(from) == 0));
        n_partial += rc == 1;
        rc = wire_read(to, &err);
        if (rc < 0)
            break;
        while (!one_byte_reads || turn % 2) {
            if (wire_next(to, &message, &err) != 1)
                break;
            size_t n_fds = came % 5 == 1 ? 1 + came % 3 : 0;
            wrong += message.bytes != (came % 3 == 2 ? 30000 + came : came * 7) ||
                     wrong_bytes(&message, came) || message.n_fds != n_fds;
            for (size_t i = 0; i < message.n_fds; i++)
                wrong += mark_of(message.fds[i]) != (long)(1000 * came + i);
            came++;
        }
    }
    CHECK_MSG(came == N && !wrong && n_partial > 5, "%zu came, %zu wrong, %zu partial", came, wrong,
              n_partial);
    wire_free(from);
    wire_free(to);
    CHECK_INT(count_fds(), before);
}

static void test_peer_gone(void)
{
    int before = count_fds(), peer, fd = marked_fd(1);
    struct wire *wire = wire_pair(&peer);
    struct stow_error err;
    uint8_t body[100] = {0};
    signal(SIGPIPE, SIG_DFL); /* a write must not raise it */
    close(peer);
    CHECK_INT(wire_send(wire, body, sizeof(body), &fd, 1, &err), 0);
    CHECK_INT(wire_flush(wire, &err), STOW_GONE);
    CHECK_INT(err.code, STOW_GONE);
    CHECK_INT(wire_read(wire, &err), STOW_GONE);
    wire_free(wire);
    close(fd);
    CHECK_INT(count_fds(), before);
    /* not a socket */
    CHECK(wire_new(-1) == NULL);
    fd = marked_fd(1);
    wire = wire_new(fd);
    CHECK(wire && wire_fd(wire) == fd && fcntl(fd, F_GETFL) & O_NONBLOCK);
    CHECK_INT(wire_read(wire, &err), STOW_IO);
    wire_free(wire);
    CHECK_INT(count_fds(), before);
}

int main(void)
{
    test_byte_by_byte();
    test_several();
    test_lengths();
    test_refused_early();
    test_end_of_file();
    test_fds_in_order(false);
    test_fds_in_order(true);
    test_fds_taken();
    test_fds_counts();
    test_fds_flood();
    test_fds_freed();
    test_send_bounds();
    test_partial_writes(false);
    test_partial_writes(true);
    test_peer_gone();
    return test_end();
}
