/* SPDX-License-Identifier: Apache-2.0 */
#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

static void on_end(uv_poll_t *poll, int status, int events)
{
    struct child *child = poll->data;
    siginfo_t info = {.si_pid = 0};
    (void)status;
    (void)events;
    if (waitid(P_PIDFD, (id_t)child->pidfd, &info, WEXITED | WNOHANG) || !info.si_pid)
        return;
    uv_poll_stop(poll);
    bool exited = info.si_code == CLD_EXITED;
    child->ended(child, exited ? info.si_status : 0, exited ? 0 : info.si_status);
}

/* No signal blocked or ignored that a program does not expect to be. */
static int set_signals(posix_spawnattr_t *attributes)
{
    sigset_t none, defaults;
    sigemptyset(&none);
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    sigaddset(&defaults, SIGXFSZ);
    int rc = posix_spawnattr_setsigmask(attributes, &none);
    if (!rc)
        rc = posix_spawnattr_setsigdefault(attributes, &defaults);
    if (!rc)
        rc = posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    return rc;
}

static int spawn(pid_t *pid, const char *program, char *const *argv, char *const *env, int fd)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    int rc = posix_spawn_file_actions_init(&files);
    if (rc)
        return rc;
    rc = posix_spawnattr_init(&attributes);
    if (rc)
        goto no_attributes;
    rc = set_signals(&attributes);
    if (!rc)
        rc = posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDWR, 0);
    if (!rc)
        rc = posix_spawn_file_actions_adddup2(&files, STDIN_FILENO, STDOUT_FILENO);
    if (!rc)
        rc = posix_spawn_file_actions_adddup2(&files, fd, 3);
    if (!rc)
        rc = posix_spawn(pid, program, &files, &attributes, argv, env);
    posix_spawnattr_destroy(&attributes);
no_attributes:
    posix_spawn_file_actions_destroy(&files);
    return rc;
}

int child_spawn(struct child *child, uv_loop_t *loop, const char *program, char *const *argv,
                char *const *env, int fd)
{
    int rc = spawn(&child->pid, program, argv, env, fd);
    if (rc)
        return rc;
    child->pidfd = pidfd_open(child->pid, 0);
    if (child->pidfd < 0) {
        rc = errno;
        kill(child->pid, SIGKILL);
        waitpid(child->pid, NULL, 0);
        return rc;
    }
    fcntl(child->pidfd, F_SETFD, FD_CLOEXEC);
    uv_poll_init(loop, &child->poll, child->pidfd);
    child->poll.data = child;
    uv_poll_start(&child->poll, UV_READABLE, on_end);
    return 0;
}

void child_kill(struct child *child)
{
    kill(child->pid, SIGKILL); /* not reaped yet, so the number is still its own */
}

void child_close(struct child *child, uv_close_cb closed)
{
    uv_close((uv_handle_t *)&child->poll, closed);
    close(child->pidfd);
}
