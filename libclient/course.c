/* SPDX-License-Identifier: Apache-2.0 */
#include "course.h"

#include "open_source.h"
#include "slots.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILES_A_MESSAGE 16u /* opened and passed on at once: a limit of 64 descriptors is enough */
#define PROGRESS_NS 100000000u

static void end(struct course *course, int code)
{
    course->over = true;
    course->result = code;
}

/* ---- files that the daemon asks for ---------------------------------------------------------- */

/* A file that was asked for, as the answer says it. */
struct opened {
    Stow__File file;
    int fd;
    char *path; /* what was tried, or the real one */
};

static void open_needed(struct opened *opened, const Stow__NeededFile *needed, const char *master)
{
    const char *name = (const char *)needed->path.data;
    int why = ENOMEM;
    char *real = NULL;
    *opened = (struct opened){.file = STOW__FILE__INIT, .fd = -1};
    opened->file.index = needed->index;
    if ((needed->path.len && memchr(name, 0, needed->path.len)) ||
        (!*master && (!needed->path.len || *name != '/')))
        why = EINVAL;
    else
        opened->path = open_source_beside(master, name, needed->path.len);
    if (opened->path)
        opened->fd = open_source(opened->path, &real, &why, NULL);
    if (real) {
        free(opened->path);
        opened->path = real;
    }
    opened->file.error = opened->fd < 0 ? (uint32_t)why : 0;
    if (opened->path)
        opened->file.path = client_bytes(opened->path, strlen(opened->path));
}

/* Relative names are beside the master; "": it is not known yet. */
static const char *folder_of(const struct course *course)
{
    return course->master ? course->master : "";
}

/* One Files message for up to FILES_A_MESSAGE of the files. */
static int give_some(struct course *course, Stow__NeededFile *const *needed, size_t n)
{
    struct opened opened[FILES_A_MESSAGE];
    Stow__File *list[FILES_A_MESSAGE];
    int fds[FILES_A_MESSAGE];
    size_t n_fds = 0;
    for (size_t i = 0; i < n; i++) {
        open_needed(&opened[i], needed[i], folder_of(course));
        list[i] = &opened[i].file;
        if (opened[i].fd >= 0)
            fds[n_fds++] = opened[i].fd;
        if (opened[i].fd >= 0 && needed[i]->index == 0 && !course->master)
            course->master = strdup(opened[i].path);
    }
    Stow__Files files = STOW__FILES__INIT;
    files.load = course->id;
    files.n_files = n;
    files.files = list;
    Stow__Request request = STOW__REQUEST__INIT;
    request.id = CLIENT_ID_ALONE;
    request.body_case = STOW__REQUEST__BODY_FILES;
    request.files = &files;
    int rc = client_tell(course->client, &request, fds, n_fds, &course->err);
    for (size_t i = 0; i < n; i++) {
        if (opened[i].fd >= 0)
            close(opened[i].fd);
        free(opened[i].path);
    }
    return rc;
}

/* Paths of 4,096 bytes would make that many too long for a message: fewer then. */
static size_t how_many(Stow__NeededFile *const *needed, size_t left, const char *master)
{
    size_t n = 0, bytes = 0, folder = strlen(master);
    while (n < left && n < FILES_A_MESSAGE) {
        bytes += needed[n]->path.len + folder + 32;
        if (n && bytes > WIRE_MAX_BODY / 4)
            break;
        n++;
    }
    return n;
}

void course_on_need(struct course *course, const Stow__NeedFiles *need)
{
    if (need->load != course->id || course->over)
        return;
    for (size_t done = 0, n; done < need->n_files; done += n) {
        n = how_many(need->files + done, need->n_files - done, folder_of(course));
        int rc = give_some(course, need->files + done, n);
        if (rc) {
            end(course, rc);
            return;
        }
    }
}

/* ---- its course ------------------------------------------------------------------------------ */

void course_on_progress(struct course *course, const Stow__Progress *progress)
{
    if (progress->load != course->id)
        return;
    course->seen = (struct stow_progress){.frames = progress->frames,
                                          .total_frames = progress->total_frames,
                                          .bytes = progress->bytes,
                                          .total_bytes = progress->total_bytes,
                                          .seconds_left = progress->seconds_left};
}

void course_on_loaded(struct course *course, const Stow__Loaded *loaded)
{
    if (loaded->load != course->id || course->over)
        return;
    if (loaded->error && loaded->error->code != STOW__CODE__OK) {
        end(course, client_error_of(loaded->error, &course->err));
        return;
    }
    course->info = loaded->acquisition ? answer_info(loaded->acquisition) : NULL;
    if (course->info)
        end(course, 0);
    else if (loaded->acquisition)
        end(course, error_set(&course->err, STOW_NOMEM, "no memory for the daemon's answer"));
    else
        end(course,
            error_set(&course->err, STOW_PROTOCOL, "the daemon says it has loaded, and not what"));
}

void course_on_saved(struct course *course, const Stow__Saved *saved)
{
    if (saved->save != course->id || course->over)
        return;
    course->bytes = saved->bytes;
    if (saved->error && saved->error->code != STOW__CODE__OK)
        end(course, client_error_of(saved->error, &course->err));
    else
        end(course, 0);
}

void course_on_verified(struct course *course, const Stow__Verified *verified)
{
    if (verified->load != course->id || course->over)
        return;
    course->verdict = (struct stow_verdict){.frames = verified->frames,
                                            .values = verified->values,
                                            .mismatches = verified->mismatches,
                                            .first_mismatch = verified->first_mismatch,
                                            .not_compared = verified->not_compared};
    if (verified->error && verified->error->code != STOW__CODE__OK)
        end(course, client_error_of(verified->error, &course->err));
    else
        end(course, 0);
}

static void cancel(struct course *course)
{
    Stow__Cancel body = STOW__CANCEL__INIT;
    body.load = course->id;
    Stow__Request request = STOW__REQUEST__INIT;
    request.id = CLIENT_ID_ALONE;
    request.body_case = STOW__REQUEST__BODY_CANCEL;
    request.cancel = &body;
    int rc = client_tell(course->client, &request, NULL, 0, &course->err);
    if (rc)
        end(course, rc);
}

/* Until its end came: hand on what comes, and tell the caller ten times a second how far it is. */
static int follow(struct course *course, stow_progress_fn progress, void *data)
{
    bool cancelled = false;
    uint64_t next = client_now_ns();
    while (!course->over) {
        bool tell = progress && !cancelled;
        int rc = client_turn(course->client, tell ? next : UINT64_MAX, 0);
        if (rc < 0)
            return rc;
        if (!tell || course->over || client_now_ns() < next)
            continue;
        next = client_now_ns() + PROGRESS_NS;
        if (progress(data, &course->seen)) {
            cancelled = true;
            cancel(course);
        }
    }
    if (course->result)
        course->client->error = course->err;
    return course->result;
}

int course_check(struct stow_client *client)
{
    if (client->course)
        return error_set(&client->error, STOW_STATE,
                         "a load, a save or a comparison is under way on this connection");
    return 0;
}

/* What follows the answer is for a course that has no number yet: it is left on the wire for course_run. */
int course_ask(struct course *course, Stow__Request *request, const int *fds, size_t n_fds,
               Stow__Reply__BodyCase kind, struct answer *answer)
{
    int rc = client_ask(course->client, request, fds, n_fds, kind, answer);
    if (rc)
        slots_settle(course->client);
    return rc;
}

int course_run(struct course *course, stow_progress_fn progress, void *data)
{
    course->client->course = course;
    int rc = follow(course, progress, data);
    course->client->course = NULL;
    slots_settle(course->client);
    return rc;
}
