/* SPDX-License-Identifier: Apache-2.0 */
#include "open_source.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MASTER_SUFFIX "_master.h5"

const char *open_source_name(const char *path, size_t *n)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t all = strlen(name), suffix = strlen(MASTER_SUFFIX);
    *n = all > suffix && strcmp(name + all - suffix, MASTER_SUFFIX) == 0 ? all - suffix : all;
    return name;
}

char *open_source_beside(const char *real_master, const char *name, size_t n)
{
    const char *slash = strrchr(real_master, '/');
    size_t folder = n && name[0] != '/' && slash ? (size_t)(slash - real_master) + 1 : 0;
    char *path = malloc(folder + n + 1);
    if (!path)
        return NULL;
    memcpy(path, real_master, folder);
    if (n)
        memcpy(path + folder, name, n);
    path[folder + n] = 0;
    return path;
}

/* Who this process is, for a sentence. */
static void user_name(char *name, size_t room)
{
    char space[1024];
    struct passwd pw, *found = NULL;
    if (getpwuid_r(geteuid(), &pw, space, sizeof(space), &found) == 0 && found)
        snprintf(name, room, "%s", found->pw_name);
    else
        snprintf(name, room, "%u", (unsigned)geteuid());
}

/* The first component of the path that keeps this user out, as the sentence of a STOW_DENIED. */
static int say_denied(const char *path, struct stow_error *err)
{
    char part[PATH_MAX], user[64];
    struct stat st;
    user_name(user, sizeof(user));
    for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        size_t n = (size_t)(slash - path);
        if (n >= sizeof(part))
            break;
        memcpy(part, path, n);
        part[n] = 0;
        if (faccessat(AT_FDCWD, part, X_OK, AT_EACCESS) == 0 || errno != EACCES)
            continue;
        if (stat(part, &st) == 0)
            return error_set(err, STOW_DENIED,
                             "user %s cannot enter the folder %s (mode %04o): permission denied",
                             user, part, st.st_mode & 07777u);
        return error_set(err, STOW_DENIED, "user %s cannot enter the folder %s: permission denied",
                         user, part);
    }
    if (stat(path, &st) == 0)
        return error_set(err, STOW_DENIED, "user %s cannot read %s (mode %04o): permission denied",
                         user, path, st.st_mode & 07777u);
    return error_set(err, STOW_DENIED, "user %s cannot read %s: permission denied", user, path);
}

static int say_why(const char *path, int why, struct stow_error *err)
{
    return why == EACCES ? say_denied(path, err) : error_errno(err, why, "%s", path);
}

static int open_real(const char *real, int *why_errno, struct stow_error *err)
{
    int fd = open(real, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0) {
        *why_errno = errno;
        return say_why(real, *why_errno, err);
    }
    struct stat st;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
        return fd;
    *why_errno = S_ISDIR(st.st_mode) ? EISDIR : EINVAL;
    close(fd);
    return error_set(err, STOW_SOURCE, "%s is %s, not a file", real,
                     *why_errno == EISDIR ? "a folder" : "a device or a pipe");
}

int open_source(const char *path, char **real, int *why_errno, struct stow_error *err)
{
    char *resolved = realpath(path, NULL);
    if (!resolved) {
        *why_errno = errno;
        return say_why(path, *why_errno, err);
    }
    int fd = open_real(resolved, why_errno, err);
    if (fd < 0)
        free(resolved);
    else
        *real = resolved;
    return fd;
}
