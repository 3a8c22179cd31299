/* SPDX-License-Identifier: Apache-2.0 */
#include "listen.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#define BACKLOG 128
#define SYSTEM_FOLDER "/run/framestow"

static int default_path(char *path, size_t room, struct stow_error *err)
{
    const char *folder = getenv("XDG_RUNTIME_DIR");
    if (geteuid() == 0) {
        folder = SYSTEM_FOLDER;
        if (mkdir(folder, 0755) && errno != EEXIST)
            return error_errno(err, errno, "making %s", folder);
    } else if (!folder || !*folder) {
        return error_set(err, STOW_INVALID,
                         "XDG_RUNTIME_DIR is not set; say where the socket goes by --socket PATH");
    }
    if (snprintf(path, room, "%s/framestow.sock", folder) >= (int)room)
        return error_set(err, STOW_INVALID,
                         "%s is too long for a socket; say another place by --socket PATH", folder);
    return 0;
}

/* What lies at the path is looked at first of all: nothing is made beside a file that is no socket. */
static int check_path(const char *path, struct stow_error *err)
{
    struct stat st;
    if (!*path)
        return error_set(err, STOW_INVALID,
                         "the socket path is empty; say where the socket goes by --socket PATH");
    if (lstat(path, &st) == 0 && !S_ISSOCK(st.st_mode))
        return error_set(err, STOW_INVALID,
                         "%s exists and is not a socket; it is left alone: move it away or choose "
                         "another --socket",
                         path);
    return 0;
}

/* Exclusive use of the path for as long as this process lives. The file holds our pid for the other's message. */
static int take_lock(struct listener *listener, struct stow_error *err)
{
    char lock[sizeof(listener->path) + 8], text[32] = "";
    snprintf(lock, sizeof(lock), "%s.lock", listener->path);
    listener->lock_fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640);
    if (listener->lock_fd < 0)
        return error_errno(err, errno, "%s", lock);
    for (int i = 0; flock(listener->lock_fd, LOCK_EX | LOCK_NB); i++) {
        if (errno != EWOULDBLOCK)
            return error_errno(err, errno, "locking %s", lock);
        ssize_t n = pread(listener->lock_fd, text, sizeof(text) - 1, 0);
        text[n > 0 ? n : 0] = '\0';
        if (*text || i == 100) /* whoever took it a moment ago writes its pid next */
            return error_set(err, STOW_EXISTS, "framestowd is already running at %s, pid %ld",
                             listener->path, strtol(text, NULL, 10));
        usleep(1000);
    }
    int n = snprintf(text, sizeof(text), "%ld\n", (long)getpid());
    if (ftruncate(listener->lock_fd, 0) || pwrite(listener->lock_fd, text, (size_t)n, 0) != n)
        return error_errno(err, errno, "%s", lock);
    return 0;
}

/* What lies at the path may go only if it is a socket that nobody answers at. */
static int clear_path(const struct sockaddr_un *address, struct stow_error *err)
{
    struct stat st;
    int rc = check_path(address->sun_path, err);
    if (rc)
        return rc;
    if (lstat(address->sun_path, &st))
        return errno == ENOENT ? 0 : error_errno(err, errno, "%s", address->sun_path);
    int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (probe < 0)
        return error_errno(err, errno, "socket");
    int refused =
        connect(probe, (const struct sockaddr *)address, sizeof(*address)) && errno == ECONNREFUSED;
    struct ucred peer = {.pid = 0};
    socklen_t size = sizeof(peer);
    getsockopt(probe, SOL_SOCKET, SO_PEERCRED, &peer, &size);
    close(probe);
    if (!refused)
        return error_set(err, STOW_EXISTS, "somebody already answers at %s, pid %ld",
                         address->sun_path, (long)peer.pid);
    if (unlink(address->sun_path))
        return error_errno(err, errno, "removing the stale socket %s", address->sun_path);
    return 0;
}

static int bind_path(struct listener *listener, struct stow_error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, listener->path, sizeof(address.sun_path));
    int rc = clear_path(&address, err);
    if (rc)
        return rc;
    listener->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener->fd < 0)
        return error_errno(err, errno, "socket");
    mode_t before = umask(0117); /* 0660 from the first moment on */
    rc = bind(listener->fd, (const struct sockaddr *)&address, sizeof(address));
    int why = errno;
    umask(before);
    if (rc)
        return error_errno(err, why, "binding %s", listener->path);
    if (listen(listener->fd, BACKLOG))
        return error_errno(err, errno, "listening at %s", listener->path);
    return 0;
}

static int adopt(struct listener *listener, struct stow_error *err)
{
    listener->fd = SD_LISTEN_FDS_START;
    listener->from_systemd = true;
    if (sd_is_socket_unix(listener->fd, SOCK_STREAM, 1, NULL, 0) <= 0)
        return error_set(err, STOW_INVALID,
                         "the descriptor from systemd is not a listening Unix stream socket");
    int flags = fcntl(listener->fd, F_GETFL);
    if (flags < 0 || fcntl(listener->fd, F_SETFL, flags | O_NONBLOCK))
        return error_errno(err, errno, "the socket from systemd");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t size = sizeof(address) - 1;
    if (getsockname(listener->fd, (struct sockaddr *)&address, &size) == 0)
        snprintf(listener->path, sizeof(listener->path), "%s", address.sun_path);
    return 0;
}

int listener_open(struct listener *listener, const char *path, struct stow_error *err)
{
    *listener = (struct listener){.fd = -1, .lock_fd = -1};
    int n = sd_listen_fds(1);
    if (n > 1)
        return error_set(err, STOW_INVALID, "systemd passed %d sockets; one is wanted", n);
    if (n == 1)
        return adopt(listener, err);
    int rc = 0;
    if (!path)
        rc = default_path(listener->path, sizeof(listener->path), err);
    else if (strlen(path) >= sizeof(listener->path))
        rc = error_set(err, STOW_INVALID, "the socket path has %zu bytes, the most is %zu: %s",
                       strlen(path), sizeof(listener->path) - 1, path);
    else
        snprintf(listener->path, sizeof(listener->path), "%s", path);
    if (!rc)
        rc = check_path(listener->path, err);
    if (!rc)
        rc = take_lock(listener, err);
    if (!rc)
        rc = bind_path(listener, err);
    if (rc) {
        if (listener->fd >= 0)
            close(listener->fd);
        if (listener->lock_fd >= 0)
            close(listener->lock_fd);
    }
    return rc;
}

void listener_close(struct listener *listener)
{
    if (!listener->from_systemd)
        unlink(listener->path);
    close(listener->fd);
    if (listener->lock_fd >= 0)
        close(listener->lock_fd);
}
