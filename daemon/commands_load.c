/* SPDX-License-Identifier: Apache-2.0
 *
 * LOAD, FILES, CANCEL, and the events of a load. */
#include "commands.h"

#include "answer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH_ROOM 4096

/* Bytes as a C string from malloc; NULL with err when they hold a NUL, are too long, or memory is out. */
static char *text_of(const ProtobufCBinaryData *bytes, const char *what, struct stow_error *err)
{
    if (bytes->len >= PATH_ROOM || (bytes->len && memchr(bytes->data, '\0', bytes->len))) {
        error_set(err, STOW_INVALID, "%s has at most %d bytes and no NUL", what, PATH_ROOM - 1);
        return NULL;
    }
    char *text = malloc(bytes->len + 1);
    if (!text) {
        error_set(err, STOW_NOMEM, "no memory");
        return NULL;
    }
    if (bytes->len)
        memcpy(text, bytes->data, bytes->len);
    text[bytes->len] = '\0';
    return text;
}

static struct session_load *of_waiter(struct waiter *waiter)
{
    return waiter->data;
}

static void on_need(struct waiter *waiter, uint32_t file, const char *path)
{
    struct session_load *l = of_waiter(waiter);
    Stow__NeededFile needed = STOW__NEEDED_FILE__INIT, *rows[] = {&needed};
    Stow__NeedFiles need = STOW__NEED_FILES__INIT;
    Stow__Event event = STOW__EVENT__INIT;
    needed.index = file;
    needed.path = (ProtobufCBinaryData){.len = strlen(path), .data = (uint8_t *)path};
    need.load = load_id(waiter->load);
    need.n_files = 1;
    need.files = rows;
    event.body_case = STOW__EVENT__BODY_NEED_FILES;
    event.need_files = &need;
    session_event(l->session, &event);
}

static void on_progress(struct waiter *waiter, const struct stow_progress *progress)
{
    struct session_load *l = of_waiter(waiter);
    Stow__Progress p = STOW__PROGRESS__INIT;
    Stow__Event event = STOW__EVENT__INIT;
    p.load = l->load;
    p.frames = progress->frames;
    p.total_frames = progress->total_frames;
    p.bytes = progress->bytes;
    p.total_bytes = progress->total_bytes;
    p.seconds_left = progress->seconds_left;
    event.body_case = STOW__EVENT__BODY_PROGRESS;
    event.progress = &p;
    session_event(l->session, &event);
}

static void forget(struct session_load *l)
{
    struct session_load **at = &l->session->loads;
    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    l->session->n_loads--;
    free(l->name);
    free(l);
}

static void on_ended(struct waiter *waiter, const struct name *name, const struct stow_error *err)
{
    struct session_load *l = of_waiter(waiter);
    Stow__Loaded loaded = STOW__LOADED__INIT;
    Stow__Error error = STOW__ERROR__INIT;
    Stow__Event event = STOW__EVENT__INIT;
    struct stow_error nomem = {.code = STOW_NOMEM, .text = "no memory for the answer"};
    struct answer_acquisition *answer = name ? answer_acquisition_new(name, false) : NULL;
    if (name && !answer)
        err = &nomem;
    loaded.load = l->load;
    if (answer) {
        loaded.acquisition = &answer->message;
    } else {
        error.code = (Stow__Code)-err->code;
        error.text = (char *)err->text;
        loaded.error = &error;
    }
    event.body_case = STOW__EVENT__BODY_LOADED;
    event.loaded = &loaded;
    session_event(l->session, &event);
    answer_acquisition_free(answer);
    forget(l);
}

static struct place *find_place(struct server *server, const char *device, struct stow_error *err)
{
    struct place *best = NULL;
    for (size_t i = 0; i < server->n_places; i++) {
        struct place *place = &server->places[i];
        if (*device && strcmp(device, "auto") != 0 &&
            strcmp(device_info(place->device)->name, device) != 0)
            continue;
        if (!best || place_free_bytes(place) > place_free_bytes(best))
            best = place;
    }
    if (!best)
        error_set(err, STOW_UNKNOWN,
                  "this daemon does not own the device %s; framestow doctor lists its devices",
                  device);
    return best;
}

/* How the acquisition is to be kept; auto keeps of each frame what is smallest. */
static int read_keep(const Stow__Load *ask, struct keep *keep, struct stow_error *err)
{
    static const char *const names[] = {"auto", "counts", "bslz4", "raw"};
    const char *form = *ask->form ? ask->form : names[KEEP_AUTO];
    *keep = (struct keep){.streams = ask->streams};
    if (ask->streams > COUNTS_MAX_STREAMS)
        return error_set(err, STOW_INVALID, "--streams %u: from 1 to %u", ask->streams,
                         COUNTS_MAX_STREAMS);
    for (int i = 0; i < 4; i++) {
        keep->form = (enum keep_form)i;
        if (strcmp(form, names[i]) == 0)
            return 0;
    }
    return error_set(err, STOW_INVALID, "--form %s: none of auto, counts, bslz4, raw", form);
}

static struct scan scan_of(const Stow__Load *ask)
{
    return (struct scan){ask->scan_y, ask->scan_x, ask->scan_skip, ask->scan_offset};
}

static int check_scan(const Stow__Load *ask, struct stow_error *err)
{
    const struct scan scan = scan_of(ask);
    if (!scan.height != !scan.width)
        return error_set(err, STOW_INVALID, "a scan has a height and a width");
    if (!scan.height && (scan.skip || scan.offset))
        return error_set(err, STOW_INVALID,
                         "frames to skip after each line, or before the scan, mean nothing without "
                         "the scan's shape: give it too");
    if (scan.height && !scan_sound(&scan))
        return error_set(
            err, STOW_INVALID,
            "a scan of %llux%llu with %llu frames skipped after each line and %llu before "
            "it: nothing has so many frames",
            (unsigned long long)scan.height, (unsigned long long)scan.width,
            (unsigned long long)scan.skip, (unsigned long long)scan.offset);
    return 0;
}

static struct session_load *new_load(struct session *session, const Stow__Load *ask,
                                     struct stow_error *err)
{
    char name[NAME_ROOM];
    if (name_of(&ask->name, name, sizeof(name), err))
        return NULL;
    struct session_load *l = malloc(sizeof(*l));
    char *copy = strdup(name);
    if (!l || !copy) {
        free(l);
        free(copy);
        error_set(err, STOW_NOMEM, "no memory to load an acquisition");
        return NULL;
    }
    *l = (struct session_load){.next = session->loads, .session = session, .name = copy};
    l->waiter = (struct waiter){.data = l,
                                .uid = session->uid,
                                .gid = session->gid,
                                .name = copy,
                                .share = (enum stow_share)ask->share,
                                .replace = ask->replace,
                                .scan = scan_of(ask),
                                .allow_gaps = ask->allow_gaps,
                                .need = on_need,
                                .progress = on_progress,
                                .ended = on_ended};
    session->loads = l;
    session->n_loads++;
    return l;
}

static int check_load(struct session *session, const struct request *request, struct keep *keep,
                      struct stow_error *err)
{
    const Stow__Load *ask = request->body->load;
    if (session->server->draining)
        return error_set(err, STOW_SHUTDOWN, "the daemon is shutting down");
    if (session->n_loads == SESSION_MAX_LOADS)
        return error_set(err, STOW_LIMIT,
                         "this connection waits for %u loads, the most that one may; wait for one "
                         "to end",
                         SESSION_MAX_LOADS);
    if (request->n_fds != 1)
        return error_set(err, STOW_INVALID, "LOAD takes one descriptor, the master's; %zu came",
                         request->n_fds);
    if (check_scan(ask, err))
        return STOW_INVALID;
    if (ask->share > STOW__SHARE__SHARE_ALL)
        return error_set(err, STOW_INVALID, "no such share");
    return read_keep(ask, keep, err);
}

static int begin_load(struct session *session, const struct request *request,
                      struct session_load **load, bool *shared, struct stow_error *err)
{
    const Stow__Load *ask = request->body->load;
    struct keep keep;
    int rc = check_load(session, request, &keep, err);
    struct place *place = rc ? NULL : find_place(session->server, ask->device, err);
    if (!place)
        return STOW_INVALID;
    char *path = text_of(&ask->path, "a path", err),
         *dataset = path ? text_of(&ask->dataset, "a dataset path", err) : NULL;
    struct session_load *l = dataset ? new_load(session, ask, err) : NULL;
    rc = STOW_INVALID;
    if (l) {
        struct load_options options = {.path = path,
                                       .dataset = *dataset ? dataset : NULL,
                                       .allow_gaps = ask->allow_gaps,
                                       .keep = keep};
        int fd = request->fds[0];
        request->fds[0] = -1;
        rc = load_begin(&session->server->loads, place, fd, &options, &l->waiter, shared, err);
        if (rc) {
            forget(l);
        } else {
            l->load = load_id(l->waiter.load);
            *load = l;
        }
    }
    free(path);
    free(dataset);
    return rc;
}

void do_load(struct session *session, const struct request *request)
{
    struct session_load *l;
    bool shared;
    struct stow_error err;
    if (begin_load(session, request, &l, &shared, &err)) {
        session_error(session, request->body->id, &err);
        return;
    }
    Stow__LoadReply answer = STOW__LOAD_REPLY__INIT;
    Stow__Reply reply = STOW__REPLY__INIT;
    answer.load = l->load;
    answer.shared = shared;
    reply.body_case = STOW__REPLY__BODY_LOAD;
    reply.load = &answer;
    session_reply(session, request->body->id, &reply, NULL, 0);
}

static struct session_load *find_load(struct session *session, uint64_t id)
{
    for (struct session_load *l = session->loads; l; l = l->next) {
        if (l->load == id)
            return l;
    }
    return NULL;
}

static int count_fds(const Stow__Files *files, size_t n_fds, struct stow_error *err)
{
    size_t n = 0;
    for (size_t i = 0; i < files->n_files; i++)
        n += files->files[i]->error == 0;
    return n == n_fds ? 0
                      : error_set(err, STOW_INVALID,
                                  "FILES has %zu good entries and %zu descriptors", n, n_fds);
}

/* Hand a file to who asked for it, which may end with any file. */
static void give(struct session *session, uint64_t id, const Stow__File *file, int fd)
{
    struct session_load *l = find_load(session, id);
    struct session_task *task = l ? NULL : task_find(session, id);
    struct stow_error err;
    char *path = l || task ? text_of(&file->path, "a path", &err) : NULL;
    int why = path ? (int)file->error : ENAMETOOLONG;
    if (!path && fd >= 0) {
        close(fd);
        fd = -1;
    }
    if (l)
        load_give(l->waiter.load, file->index, fd, path ? path : "", why);
    else if (task)
        task_give(task, file->index, fd, path ? path : "", why);
    free(path);
}

void do_files(struct session *session, const struct request *request)
{
    const Stow__Files *files = request->body->files;
    struct stow_error err;
    if (count_fds(files, request->n_fds, &err)) {
        session_error(session, request->body->id, &err);
        return;
    }
    size_t next = 0;
    for (size_t i = 0; i < files->n_files; i++) {
        const Stow__File *file = files->files[i];
        int fd = -1;
        if (!file->error) {
            fd = request->fds[next];
            request->fds[next++] = -1;
        }
        give(session, files->load, file, fd);
    }
    session_done(session, request->body->id);
}

void do_cancel(struct session *session, const struct request *request)
{
    struct session_load *l = find_load(session, request->body->cancel->load);
    struct session_task *task = l ? NULL : task_find(session, request->body->cancel->load);
    session_done(session, request->body->id);
    struct stow_error err;
    error_set(&err, STOW_CANCELLED, "the %s was cancelled",
              l                    ? "load"
              : task && task->save ? "save"
                                   : "comparison");
    if (task)
        task_cancel(task, &err);
    if (!l)
        return;
    load_leave(&l->waiter);
    on_ended(&l->waiter, NULL, &err);
}
