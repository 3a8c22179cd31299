/* SPDX-License-Identifier: Apache-2.0
 *
 * SAVE and VERIFY, and their events. */
#include "commands.h"

#include "kept_save.h"
#include "verify.h"

#include <stdlib.h>
#include <string.h>

/* ---- tasks ---- */

struct session_task *task_find(struct session *session, uint64_t id)
{
    for (struct session_task *task = session->tasks; task; task = task->next) {
        if (task->id == id)
            return task;
    }
    return NULL;
}

static struct session_task *task_new(struct session *session, struct stow_error *err)
{
    if (session->server->draining) {
        error_set(err, STOW_SHUTDOWN, "the daemon is shutting down");
        return NULL;
    }
    if (session->n_tasks == SESSION_MAX_TASKS) {
        error_set(err, STOW_LIMIT,
                  "this connection waits for %u saves and comparisons, the most that one may; wait "
                  "for one to end",
                  SESSION_MAX_TASKS);
        return NULL;
    }
    struct session_task *task = malloc(sizeof(*task));
    if (!task) {
        error_set(err, STOW_NOMEM, "no memory");
        return NULL;
    }
    *task = (struct session_task){.next = session->tasks,
                                  .session = session,
                                  .id = ++session->server->loads.next_id};
    session->tasks = task;
    session->n_tasks++;
    return task;
}

static void task_forget(struct session_task *task)
{
    struct session_task **at = &task->session->tasks;
    while (*at != task)
        at = &(*at)->next;
    *at = task->next;
    task->session->n_tasks--;
    free(task);
}

static void on_progress(void *data, const struct stow_progress *progress)
{
    struct session_task *task = data;
    Stow__Progress p = STOW__PROGRESS__INIT;
    Stow__Event event = STOW__EVENT__INIT;
    p.load = task->id;
    p.frames = progress->frames;
    p.total_frames = progress->total_frames;
    p.bytes = progress->bytes;
    p.total_bytes = progress->total_bytes;
    p.seconds_left = progress->seconds_left;
    event.body_case = STOW__EVENT__BODY_PROGRESS;
    event.progress = &p;
    session_event(task->session, &event);
}

static void on_need(void *data, uint32_t file, const char *path)
{
    struct session_task *task = data;
    Stow__NeededFile needed = STOW__NEEDED_FILE__INIT, *rows[] = {&needed};
    Stow__NeedFiles need = STOW__NEED_FILES__INIT;
    Stow__Event event = STOW__EVENT__INIT;
    needed.index = file;
    needed.path = (ProtobufCBinaryData){.len = strlen(path), .data = (uint8_t *)path};
    need.load = task->id;
    need.n_files = 1;
    need.files = rows;
    event.body_case = STOW__EVENT__BODY_NEED_FILES;
    event.need_files = &need;
    session_event(task->session, &event);
}

static Stow__Error error_of(const struct stow_error *err)
{
    Stow__Error error = STOW__ERROR__INIT;
    error.code = (Stow__Code)-err->code;
    error.text = (char *)err->text;
    return error;
}

/* ---- save ---- */

static void on_planned(void *data, uint64_t file_bytes)
{
    struct session_task *task = data;
    Stow__SaveReply answer = STOW__SAVE_REPLY__INIT;
    Stow__Reply reply = STOW__REPLY__INIT;
    answer.save = task->id;
    answer.bytes = file_bytes;
    reply.body_case = STOW__REPLY__BODY_SAVE;
    reply.save = &answer;
    session_reply(task->session, task->request, &reply, NULL, 0);
    task->request = 0;
}

static void on_saved(void *data, uint64_t file_bytes, const struct stow_error *err)
{
    struct session_task *task = data;
    if (task->request) { /* it ends before it was answered */
        session_error(task->session, task->request, err);
        task_forget(task);
        return;
    }
    Stow__Saved saved = STOW__SAVED__INIT;
    Stow__Event event = STOW__EVENT__INIT;
    Stow__Error error = error_of(err);
    saved.save = task->id;
    saved.bytes = file_bytes;
    if (err->code)
        saved.error = &error;
    event.body_case = STOW__EVENT__BODY_SAVED;
    event.saved = &saved;
    session_event(task->session, &event);
    task_forget(task);
}

/* A scan that a .stow file can say: each frame is a position. Another view is given again when it is loaded. */
static bool is_plain(const struct scan *scan, uint64_t n_frames)
{
    return scan->height && !scan->skip && !scan->offset && scan->height * scan->width == n_frames;
}

static int begin_save(struct session *session, const struct request *request,
                      struct stow_error *err)
{
    const Stow__Save *ask = request->body->save;
    if (request->n_fds != 1)
        return error_set(err, STOW_INVALID,
                         "SAVE takes one descriptor, that of the new file; %zu came",
                         request->n_fds);
    struct name *name = name_in_memory(session, &ask->name, err);
    struct session_task *task = name ? task_new(session, err) : NULL;
    if (!task)
        return err->code;
    struct kept_save_options options = {.what = {.sha256 = ask->sha256}, .force = ask->force};
    if (is_plain(&name->scan, name->resident->n_frames)) {
        options.what.scan_y = name->scan.height;
        options.what.scan_x = name->scan.width;
    }
    struct kept_save_callbacks callbacks = {.data = task,
                                            .planned = on_planned,
                                            .need = on_need,
                                            .on_progress = on_progress,
                                            .done = on_saved};
    int fd = request->fds[0];
    request->fds[0] = -1;
    task->request = request->body->id;
    if (kept_save_start(&task->save, &session->server->loop, name->resident, fd, &options,
                        &callbacks, err)) {
        task_forget(task);
        return error_prefix(err, "%s", name->text);
    }
    return 0;
}

void do_save(struct session *session, const struct request *request)
{
    struct stow_error err;
    if (begin_save(session, request, &err))
        session_error(session, request->body->id, &err);
}

/* ---- verify ---- */

static void on_verified(void *data, const struct stow_verdict *verdict,
                        const struct stow_error *err)
{
    struct session_task *task = data;
    Stow__Verified verified = STOW__VERIFIED__INIT;
    Stow__Event event = STOW__EVENT__INIT;
    Stow__Error error = error_of(err);
    verified.load = task->id;
    if (err->code)
        verified.error = &error;
    verified.frames = verdict->frames;
    verified.values = verdict->values;
    verified.mismatches = verdict->mismatches;
    verified.first_mismatch = verdict->first_mismatch;
    verified.not_compared = verdict->not_compared;
    event.body_case = STOW__EVENT__BODY_VERIFIED;
    event.verified = &verified;
    session_event(task->session, &event);
    task_forget(task);
}

void do_verify(struct session *session, const struct request *request)
{
    struct stow_error err = {.code = 0};
    struct name *name = name_in_memory(session, &request->body->verify->name, &err);
    struct session_task *task = name ? task_new(session, &err) : NULL;
    struct verify_callbacks callbacks = {
        .data = task, .need = on_need, .on_progress = on_progress, .done = on_verified};
    if (task &&
        verify_new(&task->verify, &session->server->loads, name->resident, &callbacks, &err)) {
        error_prefix(&err, "%s", name->text);
        task_forget(task);
    }
    if (err.code) {
        session_error(session, request->body->id, &err);
        return;
    }
    Stow__LoadReply answer = STOW__LOAD_REPLY__INIT;
    Stow__Reply reply = STOW__REPLY__INIT;
    answer.load = task->id;
    reply.body_case = STOW__REPLY__BODY_LOAD;
    reply.load = &answer;
    session_reply(session, request->body->id, &reply, NULL, 0);
    verify_begin(task->verify);
}

/* ---- files, and the end ---- */

void task_give(struct session_task *task, uint32_t file, int fd, const char *path, int errno_value)
{
    if (task->verify)
        verify_give(task->verify, file, fd, path, errno_value);
    else
        kept_save_give(task->save, file, fd, errno_value);
}

void task_cancel(struct session_task *task, const struct stow_error *err)
{
    static const struct stow_verdict nothing;
    if (task->save)
        kept_save_cancel(task->save);
    else
        verify_cancel(task->verify);
    if (task->save)
        on_saved(task, 0, err);
    else
        on_verified(task, &nothing, err);
}

void tasks_end(struct session *session, const struct stow_error *err)
{
    static const struct stow_error gone = {.code = STOW_CANCELLED};
    while (session->tasks)
        task_cancel(session->tasks, err ? err : &gone);
}
