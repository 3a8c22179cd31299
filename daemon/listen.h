/* SPDX-License-Identifier: Apache-2.0
 *
 * listen: the daemon's socket. One that systemd passes is adopted and never unlinked. Otherwise a lock
 * file beside the path says who runs; a path that nobody answers at is stale and is replaced; one that
 * somebody answers at, or that is not a socket, is left alone. The socket has its final mode (0660) before
 * anyone can connect. */
#ifndef STOW_LISTEN_H
#define STOW_LISTEN_H

#include "error.h"

#include <stdbool.h>

struct listener {
    int fd, lock_fd;
    bool from_systemd;
    char path[108]; /* sun_path */
};

/* path NULL: /run/framestow/framestow.sock for root, else $XDG_RUNTIME_DIR/framestow.sock. STOW_EXISTS
 * ("already running, pid 12"), STOW_INVALID (path too long, or not a socket), STOW_IO, STOW_DENIED. */
int listener_open(struct listener *listener, const char *path, struct stow_error *err);

/* Remove the socket (unless systemd's) and let the lock go. */
void listener_close(struct listener *listener);

#endif
