/* SPDX-License-Identifier: Apache-2.0
 *
 * child: a program started from the loop. By posix_spawn, not fork: fork copies the page tables of the
 * whole process, which with a GPU's mappings and pinned memory takes longer than all that the child does.
 * Its end is seen through a pidfd, so no SIGCHLD handler and no other child is in the way. Loop thread only. */
#ifndef STOW_CHILD_H
#define STOW_CHILD_H

#include <sys/types.h>
#include <uv.h>

struct child {
    pid_t pid;
    int pidfd;
    uv_poll_t poll;
    void *data;
    /* Once: it exited with status, or was ended by a signal (not 0). It is reaped; child_close is next. */
    void (*ended)(struct child *child, int status, int signal);
};

/* Start program with stdin and stdout at /dev/null, our stderr, and fd as its descriptor 3; nothing else of
 * ours stays open that is closed on exec. data and ended are set by the caller. 0 or an errno. */
int child_spawn(struct child *child, uv_loop_t *loop, const char *program, char *const *argv,
                char *const *env, int fd);

void child_kill(struct child *child);

/* After ended: let go of the handle; closed as libuv's. */
void child_close(struct child *child, uv_close_cb closed);

#endif
