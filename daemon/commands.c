/* SPDX-License-Identifier: Apache-2.0 */
#include "commands.h"

#include "answer.h"
#include "metrics.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROTOCOL 1
#define LIST_PAGE 16
#define MAX_UUIDS 64
#define MAX_FRAME_ERRORS 64

#define BIT(state) (1u << (state))

int name_of(const ProtobufCBinaryData *bytes, char *name, size_t room, struct stow_error *err)
{
    if (!bytes->len)
        return error_set(err, STOW_INVALID, "a name must not be empty");
    if (bytes->len >= room || memchr(bytes->data, '\0', bytes->len))
        return error_set(err, STOW_INVALID, "a name has at most %zu bytes and no NUL", room - 1);
    memcpy(name, bytes->data, bytes->len);
    name[bytes->len] = '\0';
    return 0;
}

/* ---- hello ---- */

static int keep_uuids(struct session *session, const Stow__Hello *hello)
{
    size_t n = hello->n_gpu_uuids < MAX_UUIDS ? hello->n_gpu_uuids : MAX_UUIDS;
    session->uuids = calloc(n ? n : 1, sizeof(*session->uuids));
    if (!session->uuids)
        return STOW_NOMEM;
    for (size_t i = 0; i < n; i++) {
        if (hello->gpu_uuids[i].len == sizeof(session->uuids[0]))
            memcpy(session->uuids[session->n_uuids++], hello->gpu_uuids[i].data,
                   sizeof(session->uuids[0]));
    }
    return 0;
}

static void describe_devices(const struct server *server, Stow__Gpu *gpus, Stow__Gpu **rows)
{
    for (size_t i = 0; i < server->n_places; i++) {
        const struct device_info *info = device_info(server->places[i].device);
        stow__gpu__init(&gpus[i]);
        gpus[i].name = (char *)info->name;
        gpus[i].model = (char *)info->model;
        gpus[i].driver = info->driver;
        if (info->is_gpu)
            gpus[i].uuid =
                (ProtobufCBinaryData){.len = sizeof(info->uuid), .data = (uint8_t *)info->uuid};
        rows[i] = &gpus[i];
    }
}

static void do_hello(struct session *session, const struct request *request)
{
    const Stow__Hello *hello = request->body->hello;
    struct server *server = session->server;
    struct stow_error err;
    if (hello->protocol_min > PROTOCOL || hello->protocol_max < PROTOCOL) {
        error_set(&err, STOW_VERSION,
                  "this daemon (%s) speaks protocol %d, the client (%s) %u to %u; install the same "
                  "version of both",
                  STOW_VERSION_TEXT, PROTOCOL, hello->version, hello->protocol_min,
                  hello->protocol_max);
        session_error(session, request->body->id, &err);
        session_close(session, err.text);
        return;
    }
    if (keep_uuids(session, hello)) {
        session_close(session, "no memory");
        return;
    }
    session->memory_kinds = hello->memory_kinds | MEMORY_HOST_FD;
    session->same_pid_namespace = hello->pid_namespace == server->pid_namespace;
    session->state = SESSION_READY;
    Stow__HelloReply answer = STOW__HELLO_REPLY__INIT;
    Stow__Reply reply = STOW__REPLY__INIT;
    Stow__Gpu gpus[CONFIG_MAX_DEVICES], *rows[CONFIG_MAX_DEVICES];
    describe_devices(server, gpus, rows);
    answer.protocol = PROTOCOL;
    answer.version = (char *)STOW_VERSION_TEXT;
    answer.boot_id = (ProtobufCBinaryData){.len = BOOT_ID_BYTES, .data = server->boot_id};
    answer.n_devices = server->n_places;
    answer.devices = rows;
    answer.memory_kinds = memory_kinds_for(session, &server->places[0]);
    answer.memory_note = (char *)memory_note_for(session, &server->places[0]);
    answer.max_bytes = server->places[0].max_bytes;
    answer.max_message = WIRE_MAX_BODY;
    answer.max_batch = STREAM_MAX_BATCH;
    answer.pid = (uint64_t)getpid();
    reply.body_case = STOW__REPLY__BODY_HELLO;
    reply.hello = &answer;
    session_reply(session, request->body->id, &reply, NULL, 0);
}

/* ---- what there is ---- */

/* Rows of one ListReply. A page is continued after a name, so equal names of several owners stay on one. */
struct page {
    struct answer_acquisition *answers[LIST_PAGE];
    Stow__Acquisition *rows[LIST_PAGE];
    const char *names[LIST_PAGE];
    size_t n, bytes;
    bool more;
};

static void page_cut(struct page *page, size_t n)
{
    while (page->n > n)
        answer_acquisition_free(page->answers[--page->n]);
}

static bool page_ends_with(const struct page *page, const struct name *name)
{
    return page->n && strcmp(page->names[page->n - 1], name->text) == 0;
}

/* 1 when it was added, 0 when there is no room, STOW_NOMEM. */
static int page_add(struct page *page, const struct name *name)
{
    if (page->n == LIST_PAGE)
        return 0;
    struct answer_acquisition *answer = answer_acquisition_new(name, page->n != 0);
    if (!answer)
        return STOW_NOMEM;
    size_t size = stow__acquisition__get_packed_size(&answer->message) + 8;
    if (page->n && page->bytes + size > WIRE_MAX_BODY / 2) {
        answer_acquisition_free(answer);
        return 0;
    }
    page->answers[page->n] = answer;
    page->names[page->n] = name->text;
    page->rows[page->n++] = &answer->message;
    page->bytes += size;
    return 1;
}

/* There is no room for this name: it begins the next page, and so do its rows that are on this one already.
 * Where they are all of this one there is no way on but to leave the rest of them out: false. */
static bool page_end(struct page *page, const struct name *name)
{
    size_t keep = page->n;
    while (keep && strcmp(page->names[keep - 1], name->text) == 0)
        keep--;
    if (!keep)
        return false;
    page_cut(page, keep);
    page->more = true;
    return true;
}

static bool comes_after(const struct name *name, const ProtobufCBinaryData *after)
{
    size_t len = strlen(name->text), common = len < after->len ? len : after->len;
    int order = common ? memcmp(name->text, after->data, common) : 0;
    return order > 0 || (order == 0 && len > after->len);
}

static int fill_page(struct page *page, const struct session *session,
                     const ProtobufCBinaryData *after)
{
    bool left_out = false;
    for (const struct name *name = session->server->store.names; name; name = name->next) {
        if (!comes_after(name, after) || !name_visible(name, session->uid, session->gid) ||
            (left_out && page_ends_with(page, name)))
            continue;
        int rc = page_add(page, name);
        if (rc < 0)
            return rc;
        if (rc == 0 && page_end(page, name))
            return 0;
        left_out = left_out || rc == 0;
    }
    return 0;
}

static void do_list(struct session *session, const struct request *request)
{
    struct page page = {.n = 0};
    Stow__ListReply answer = STOW__LIST_REPLY__INIT;
    Stow__Reply reply = STOW__REPLY__INIT;
    struct stow_error err;
    if (fill_page(&page, session, &request->body->list->after)) {
        error_set(&err, STOW_NOMEM, "no memory for a list of acquisitions");
        session_error(session, request->body->id, &err);
    } else {
        answer.acquisitions = page.rows;
        answer.n_acquisitions = page.n;
        answer.more = page.more;
        reply.body_case = STOW__REPLY__BODY_LIST;
        reply.list = &answer;
        session_reply(session, request->body->id, &reply, NULL, 0);
    }
    page_cut(&page, 0);
}

/* The name that a request means, or an error to the client and NULL. */
static struct name *find_name(struct session *session, const struct request *request,
                              const ProtobufCBinaryData *bytes)
{
    char text[NAME_ROOM];
    struct stow_error err;
    struct name *name = NULL;
    if (!name_of(bytes, text, sizeof(text), &err)) {
        name = store_find(&session->server->store, text, session->uid, session->gid);
        if (!name)
            error_set(&err, STOW_UNKNOWN,
                      "no acquisition is called %s; framestow ls shows what there is", text);
    }
    if (!name)
        session_error(session, request->body->id, &err);
    return name;
}

static void do_info(struct session *session, const struct request *request)
{
    struct name *name = find_name(session, request, &request->body->info->name);
    if (!name)
        return;
    struct answer_acquisition *answer = answer_acquisition_new(name, false);
    if (!answer) {
        session_close(session, "no memory");
        return;
    }
    Stow__Reply reply = STOW__REPLY__INIT;
    reply.body_case = STOW__REPLY__BODY_INFO;
    reply.info = &answer->message;
    session_reply(session, request->body->id, &reply, NULL, 0);
    answer_acquisition_free(answer);
}

static void do_unload(struct session *session, const struct request *request)
{
    struct name *name = find_name(session, request, &request->body->unload->name);
    struct stow_error err;
    if (!name)
        return;
    if (name->owner != session->uid && !uid_is_admin(session->uid)) {
        error_set(&err, STOW_DENIED,
                  "%s belongs to uid %u; only its owner or an admin may unload it", name->text,
                  (unsigned)name->owner);
        session_error(session, request->body->id, &err);
        return;
    }
    store_unbind(&session->server->store, name);
    session_done(session, request->body->id);
}

static void do_frame_errors(struct session *session, const struct request *request)
{
    const Stow__FrameErrors *ask = request->body->frame_errors;
    struct name *name = find_name(session, request, &ask->name);
    if (!name)
        return;
    const struct resident *resident = name->resident;
    Stow__FrameError errors[MAX_FRAME_ERRORS], *rows[MAX_FRAME_ERRORS];
    Stow__FrameErrorsReply answer = STOW__FRAME_ERRORS_REPLY__INIT;
    for (size_t i = 0; resident->frames && i < ask->n_ids && i < MAX_FRAME_ERRORS; i++) {
        uint64_t id = ask->ids[i];
        if (id >= resident->n_frames || resident->frames[id].form != STOW_FORM_BAD)
            continue;
        Stow__FrameError *e = &errors[answer.n_errors];
        stow__frame_error__init(e);
        e->id = id;
        e->code = (Stow__Code)resident->frames[id].code;
        e->text = (char *)resident_fault_text(resident, id);
        rows[answer.n_errors++] = e;
    }
    answer.errors = rows;
    Stow__Reply reply = STOW__REPLY__INIT;
    reply.body_case = STOW__REPLY__BODY_FRAME_ERRORS;
    reply.frame_errors = &answer;
    session_reply(session, request->body->id, &reply, NULL, 0);
}

static void do_stats(struct session *session, const struct request *request)
{
    struct server *server = session->server;
    metrics.used_bytes = metrics.max_bytes = 0;
    for (size_t i = 0; i < server->n_places; i++) {
        metrics.used_bytes += server->places[i].used_bytes;
        metrics.max_bytes += server->places[i].max_bytes;
    }
    Stow__Stat stats[sizeof(struct metrics) / sizeof(uint64_t)],
        *rows[sizeof(struct metrics) / sizeof(uint64_t)];
    for (size_t i = 0; i < n_metric_rows; i++) {
        stow__stat__init(&stats[i]);
        stats[i].name = (char *)metric_rows[i].name;
        stats[i].unit = (char *)metric_rows[i].unit;
        stats[i].help = (char *)metric_rows[i].help;
        stats[i].value = metric_value(&metric_rows[i]);
        rows[i] = &stats[i];
    }
    Stow__StatsReply answer = STOW__STATS_REPLY__INIT;
    Stow__Reply reply = STOW__REPLY__INIT;
    answer.n_stats = n_metric_rows;
    answer.stats = rows;
    reply.body_case = STOW__REPLY__BODY_STATS;
    reply.stats = &answer;
    session_reply(session, request->body->id, &reply, NULL, 0);
}

/* ---- dispatch ---- */

static const struct command {
    Stow__Request__BodyCase body;
    const char *name;
    unsigned states;
    void (*run)(struct session *session, const struct request *request);
} commands[] = {
    /* one row a request in framestow.proto, same order */
    {STOW__REQUEST__BODY_HELLO, "hello", BIT(SESSION_NEW), do_hello},
    {STOW__REQUEST__BODY_LOAD, "load", BIT(SESSION_READY), do_load},
    {STOW__REQUEST__BODY_FILES, "files", BIT(SESSION_READY), do_files},
    {STOW__REQUEST__BODY_CANCEL, "cancel", BIT(SESSION_READY), do_cancel},
    {STOW__REQUEST__BODY_LIST, "list", BIT(SESSION_READY), do_list},
    {STOW__REQUEST__BODY_INFO, "info", BIT(SESSION_READY), do_info},
    {STOW__REQUEST__BODY_UNLOAD, "unload", BIT(SESSION_READY), do_unload},
    {STOW__REQUEST__BODY_STREAM, "stream", BIT(SESSION_READY), do_stream},
    {STOW__REQUEST__BODY_ATTACHED, "attached", BIT(SESSION_READY), do_attached},
    {STOW__REQUEST__BODY_FRAMES, "frames", BIT(SESSION_READY), do_frames},
    {STOW__REQUEST__BODY_RELEASE, "release", BIT(SESSION_READY), do_release},
    {STOW__REQUEST__BODY_CLOSE_STREAM, "close-stream", BIT(SESSION_READY), do_close_stream},
    {STOW__REQUEST__BODY_DETACHED, "detached", BIT(SESSION_READY), do_detached},
    {STOW__REQUEST__BODY_FRAME_ERRORS, "frame-errors", BIT(SESSION_READY), do_frame_errors},
    {STOW__REQUEST__BODY_STATS, "stats", BIT(SESSION_READY), do_stats},
    {STOW__REQUEST__BODY_SUM, "sum", BIT(SESSION_READY), do_sum},
    {STOW__REQUEST__BODY_MEAN, "mean", BIT(SESSION_READY), do_mean},
    {STOW__REQUEST__BODY_COM, "com", BIT(SESSION_READY), do_com},
    {STOW__REQUEST__BODY_SAVE, "save", BIT(SESSION_READY), do_save},
    {STOW__REQUEST__BODY_VERIFY, "verify", BIT(SESSION_READY), do_verify},
    {STOW__REQUEST__BODY_MASK, "mask", BIT(SESSION_READY), do_mask},
};

static void run(struct session *session, const struct request *request)
{
    struct stow_error err;
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        const struct command *command = &commands[i];
        if (command->body != request->body->body_case)
            continue;
        if (command->states & BIT(session->state)) {
            command->run(session, request);
            return;
        }
        error_set(&err, STOW_STATE, "%s is not allowed %s HELLO", command->name,
                  session->state == SESSION_NEW ? "before" : "after");
        session_error(session, request->body->id, &err);
        return;
    }
    error_set(&err, STOW_UNSUPPORTED, "this daemon (%s) does not know that request",
              STOW_VERSION_TEXT);
    session_error(session, request->body->id, &err);
}

bool command_dispatch(struct session *session, const struct wire_message *message)
{
    Stow__Request *body = stow__request__unpack(NULL, message->bytes, message->body);
    if (!body)
        return false;
    struct request request = {.body = body, .fds = message->fds, .n_fds = message->n_fds};
    run(session, &request);
    stow__request__free_unpacked(body, NULL);
    return true;
}
