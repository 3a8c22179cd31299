/* SPDX-License-Identifier: Apache-2.0
 *
 * keep: saving an acquisition to a .stow file, and comparing one with its source.
 *
 * The new file is made here, without a name where the file system can (O_TMPFILE), else with one that begins with a
 * dot; the daemon gets its descriptor and writes. When all of it is on disk it gets its name by a link, which never
 * replaces another file, and the folder is written too. Whoever is killed on the way leaves no file of that name. */
#include "course.h"
#include "slots.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODE 0666 /* but for the umask */
#define TRIES 16

/* A file that is being made. */
struct making {
    const char *path, *name; /* name: within the folder */
    int folder, fd;
    char temporary[32]; /* "": it has none */
};

static int exists(const struct making *making, struct stow_error *err)
{
    return error_set(err, STOW_EXISTS,
                     "%s exists already and is left as it is; choose another name or remove it",
                     making->path);
}

static int open_folder(struct making *making, struct stow_error *err)
{
    const char *slash = strrchr(making->path, '/');
    size_t n = slash ? (size_t)(slash - making->path) : 0;
    char folder[PATH_MAX];
    making->name = slash ? slash + 1 : making->path;
    if (!making->name[0] || n >= sizeof(folder))
        return error_set(err, STOW_INVALID, "%s is not the name of a file", making->path);
    snprintf(folder, sizeof(folder), "%.*s%s", (int)n, making->path, n ? "" : slash ? "/" : ".");
    making->folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return making->folder < 0 ? error_errno(err, errno, "the folder %s", folder) : 0;
}

/* A name of its own, where files without one cannot be. */
static int open_named(struct making *making)
{
    for (int i = 0; i < TRIES; i++) {
        uint64_t random;
        if (getrandom(&random, sizeof(random), 0) != sizeof(random))
            return -1;
        snprintf(making->temporary, sizeof(making->temporary), ".framestow-%016llx",
                 (unsigned long long)random);
        int fd =
            openat(making->folder, making->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, MODE);
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    return -1;
}

static int making_open(struct making *making, const char *path, struct stow_error *err)
{
    struct stat st;
    *making = (struct making){.path = path, .folder = -1, .fd = -1};
    int rc = open_folder(making, err);
    if (rc)
        return rc;
    if (fstatat(making->folder, making->name, &st, AT_SYMLINK_NOFOLLOW) == 0)
        return exists(making, err);
    making->fd = openat(making->folder, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, MODE);
    if (making->fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
        making->fd = open_named(making);
        if (making->fd < 0)
            making->temporary[0] = '\0';
    }
    return making->fd < 0 ? error_errno(err, errno, "%s cannot be made", path) : 0;
}

/* Give it its name, unless there is a file of that name by now. */
static int making_publish(struct making *making, struct stow_error *err)
{
    char self[32];
    snprintf(self, sizeof(self), "/proc/self/fd/%d", making->fd);
    int rc = making->temporary[0]
                 ? linkat(making->folder, making->temporary, making->folder, making->name, 0)
                 : linkat(AT_FDCWD, self, making->folder, making->name, AT_SYMLINK_FOLLOW);
    if (rc && making->temporary[0] && errno != EEXIST) { /* a file system without links */
        rc = renameat2(making->folder, making->temporary, making->folder, making->name,
                       RENAME_NOREPLACE);
        if (!rc)
            making->temporary[0] = '\0';
    }
    if (rc)
        return errno == EEXIST ? exists(making, err) : error_errno(err, errno, "%s", making->path);
    if (fsync(making->folder) && errno != EINVAL)
        return error_errno(err, errno, "writing the folder of %s to disk", making->path);
    return 0;
}

static void making_close(struct making *making)
{
    if (making->temporary[0])
        unlinkat(making->folder, making->temporary, 0);
    if (making->fd >= 0)
        close(making->fd);
    if (making->folder >= 0)
        close(making->folder);
}

static int save(struct course *course, const char *name, int fd,
                const struct stow_save_options *options)
{
    Stow__Save body = STOW__SAVE__INIT;
    body.name = client_bytes(name, strlen(name));
    body.force = options->force != 0;
    body.sha256 = options->sha256 != 0;
    Stow__Request request = STOW__REQUEST__INIT;
    request.body_case = STOW__REQUEST__BODY_SAVE;
    request.save = &body;
    struct answer answer;
    int rc = course_ask(course, &request, &fd, 1, STOW__REPLY__BODY_SAVE, &answer);
    if (rc)
        return rc;
    course->id = answer.reply->save->save;
    answer_drop(&answer);
    return course_run(course, options->progress, options->progress_data);
}

int stow_save(struct stow_client *client, const char *name, const char *path,
              const struct stow_save_options *options)
{
    struct stow_save_options known;
    if (client_check(client) ||
        client_options(client, &known, sizeof(known), options, options ? options->size : 0) ||
        course_check(client))
        return client->error.code;
    struct course course = {.client = client, .seen = {.seconds_left = -1}};
    struct making making;
    int rc = making_open(&making, path, &client->error);
    if (!rc) {
        rc = save(&course, name, making.fd, &known);
        if (rc == STOW_IO || rc == STOW_LIMIT)
            error_prefix(&client->error, "%s", path);
    }
    if (!rc)
        rc = making_publish(&making, &client->error);
    making_close(&making);
    free(course.master);
    return rc;
}

int stow_verify(struct stow_client *client, const char *name, stow_progress_fn progress,
                void *progress_data, struct stow_verdict *verdict)
{
    if (client_check(client) || course_check(client))
        return client->error.code;
    struct course course = {.client = client, .seen = {.seconds_left = -1}};
    Stow__Verify body = STOW__VERIFY__INIT;
    body.name = client_bytes(name, strlen(name));
    Stow__Request request = STOW__REQUEST__INIT;
    request.body_case = STOW__REQUEST__BODY_VERIFY;
    request.verify = &body;
    struct answer answer;
    int rc = course_ask(&course, &request, NULL, 0, STOW__REPLY__BODY_LOAD, &answer);
    if (rc)
        return rc;
    course.id = answer.reply->load->load;
    answer_drop(&answer);
    rc = course_run(&course, progress, progress_data);
    free(course.master);
    if (!rc)
        *verdict = course.verdict;
    return rc;
}
