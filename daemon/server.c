/* SPDX-License-Identifier: Apache-2.0 */
#include "server.h"

#include "answers.h"
#include "commands.h"
#include "kept_open.h"
#include "kept_save.h"
#include "loader.h"
#include "recall.h"
#include "session.h"
#include "source.h"
#include "verify.h"

#define LOG_MODULE "server"
#include "log.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#define WATCH_MS 1000
#define DRAIN_MS 5000
#define DRAIN_STEP_MS 20
#define MAX_POOL 16u

/* ---- connections ---- */

/* There is no room for this client: say so, in a message that every client understands. */
static void turn_away(int fd)
{
    struct wire *wire = wire_new(fd);
    if (!wire)
        return;
    Stow__Error error = STOW__ERROR__INIT;
    Stow__Reply reply = STOW__REPLY__INIT;
    Stow__Message message = STOW__MESSAGE__INIT;
    error.code = STOW__CODE__LIMIT;
    error.text = "the daemon has as many connections as it can hold; try again later";
    reply.body_case = STOW__REPLY__BODY_ERROR;
    reply.error = &error;
    message.body_case = STOW__MESSAGE__BODY_REPLY;
    message.reply = &reply;
    uint8_t body[256];
    size_t bytes = stow__message__pack(&message, body);
    if (!wire_send(wire, body, bytes, NULL, 0, NULL))
        wire_flush(wire, NULL);
    wire_free(wire);
}

static void on_connection(uv_poll_t *poll, int status, int events)
{
    struct server *server = poll->data;
    (void)status;
    (void)events;
    int fd = accept4(server->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) {
            LOG_ERR("a connection cannot be taken: %s", strerror(errno));
            uv_poll_stop(
                &server->accepting); /* the watch timer tries again: no spinning at the limit */
        }
        return;
    }
    if (server->n_sessions >= server->max_sessions)
        turn_away(fd);
    else
        session_new(server, fd);
}

static void flush_sessions(uv_prepare_t *prepare)
{
    struct server *server = prepare->data;
    for (struct session *session = server->sessions, *next; session; session = next) {
        next = session->next;
        session_flush(session);
    }
}

static void on_watch(uv_timer_t *timer)
{
    struct server *server = timer->data;
    uint64_t now = uv_hrtime();
    for (struct session *session = server->sessions, *next; session; session = next) {
        next = session->next;
        session_watch(session, now);
    }
    if (!server->draining)
        uv_poll_start(&server->accepting, UV_READABLE, on_connection);
}

/* ---- the end ---- */

static void say_goodbye(struct session *session)
{
    Stow__Goodbye goodbye = STOW__GOODBYE__INIT;
    Stow__Event event = STOW__EVENT__INIT;
    goodbye.deadline_ms = DRAIN_MS;
    goodbye.reason = session->server->lost ? "the device was lost" : "it was told to";
    event.body_case = STOW__EVENT__BODY_GOODBYE;
    event.goodbye = &goodbye;
    if (session->state == SESSION_READY)
        session_event(session, &event);
}

/* Nobody holds a slot, and none is being filled. */
static bool is_drained(const struct server *server)
{
    for (const struct session *session = server->sessions; session; session = session->next) {
        for (const struct session_stream *s = session->streams; s; s = s->next) {
            if (s->stream->n_held || s->stream->n_filling)
                return false;
        }
    }
    return true;
}

static void on_drain(uv_timer_t *timer)
{
    struct server *server = timer->data;
    if (is_drained(server) || uv_hrtime() > server->deadline_ns)
        uv_stop(timer->loop);
}

static void drain(struct server *server)
{
    if (server->draining) {
        uv_stop(&server->loop);
        return;
    }
    server->draining = true;
    sd_notify(0, "STOPPING=1\nSTATUS=draining");
    LOG_INFO("shutting down: %u clients", server->n_sessions);
    uv_poll_stop(&server->accepting);
    loads_clear(&server->loads);
    for (struct session *session = server->sessions; session; session = session->next) {
        for (struct session_stream *s = session->streams; s; s = s->next)
            stream_drain(s->stream);
        tasks_end(session, &(struct stow_error){.code = STOW_SHUTDOWN,
                                                .text = "the daemon is shutting down"});
        say_goodbye(session);
    }
    server->deadline_ns = uv_hrtime() + DRAIN_MS * UINT64_C(1000000);
    uv_timer_start(&server->drained, on_drain, DRAIN_STEP_MS, DRAIN_STEP_MS);
}

static void on_signal(uv_signal_t *signal, int number)
{
    (void)number;
    drain(signal->data);
}

static void on_lost(struct place *place)
{
    struct server *server = place->data;
    if (server->lost)
        return;
    server->lost = true;
    LOG_ERR(
        "device %s is lost: a fault that its context does not survive; no more frames are served",
        device_info(place->device)->name);
    drain(server);
}

/* ---- the start ---- */

/* As many descriptors as are allowed: residents, rings and clients all take some. Returns how many. */
static unsigned raise_limits(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_MEMLOCK, &limit);
    }
    getrlimit(RLIMIT_NOFILE, &limit);
    return limit.rlim_cur > 1048576 ? 1048576 : (unsigned)limit.rlim_cur;
}

static unsigned n_cores(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : (unsigned)n;
}

static void size_pool(unsigned threads)
{
    char text[16];
    unsigned n = threads ? threads : n_cores();
    n = n > MAX_POOL ? MAX_POOL : n < 4 ? 4 : n; /* reads wait for disks as well as for memory */
    snprintf(text, sizeof(text), "%u", n);
    setenv("UV_THREADPOOL_SIZE", text, 1);
}

static int open_places(struct server *server, const struct config *config, struct stow_error *err)
{
    for (size_t i = 0; i < config->n_devices; i++) {
        struct place *place = &server->places[i];
        struct place_options options = {.device = config->devices[i],
                                        .max_bytes = config->max_bytes,
                                        .threads = config->threads ? config->threads : n_cores(),
                                        .staging_bytes = PLAN_SPAN_BYTES};
        place->on_lost = on_lost;
        place->data = server;
        int rc = place_open(place, &server->loop, &options, err);
        if (rc)
            return rc;
        server->n_places++;
    }
    return 0;
}

static uint64_t own_pid_namespace(void)
{
    struct stat st;
    return stat("/proc/self/ns/pid", &st) ? 0 : st.st_ino;
}

static void close_handle(uv_handle_t *handle, void *data)
{
    (void)data;
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

static void close_loop(struct server *server)
{
    for (size_t i = 0; i < server->n_places; i++)
        place_close(&server->places[i]);
    uv_walk(&server->loop, close_handle, NULL);
    uv_run(&server->loop, UV_RUN_DEFAULT);
    uv_loop_close(&server->loop);
}

static void start_handles(struct server *server)
{
    uv_loop_t *loop = &server->loop;
    uv_poll_init(loop, &server->accepting, server->listener.fd);
    server->accepting.data = server;
    uv_poll_start(&server->accepting, UV_READABLE, on_connection);
    uv_prepare_init(loop, &server->flushing);
    server->flushing.data = server;
    uv_prepare_start(&server->flushing, flush_sessions);
    uv_signal_init(loop, &server->on_term);
    uv_signal_init(loop, &server->on_int);
    server->on_term.data = server->on_int.data = server;
    uv_signal_start(&server->on_term, on_signal, SIGTERM);
    uv_signal_start(&server->on_int, on_signal, SIGINT);
    uv_timer_init(loop, &server->drained);
    server->drained.data = server;
    uv_timer_init(loop, &server->watch);
    server->watch.data = server;
    uv_timer_start(&server->watch, on_watch, WATCH_MS, WATCH_MS);
}

/* Where indexes are kept between runs. What cannot be made is told when one is to be kept. */
static void choose_state(struct server *server, const char *folder)
{
    if (!folder)
        return;
    int n = snprintf(server->indexes, sizeof(server->indexes), "%s/indexes", folder);
    if (n < 0 || (size_t)n >= sizeof(server->indexes)) {
        LOG_WARN("the path of the state folder is too long, nothing is kept there");
        server->indexes[0] = '\0';
        return;
    }
    mkdir(folder, 0700);
}

int server_open(struct server *server, const struct config *config, struct stow_error *err)
{
    unsigned n = raise_limits();
    /* A quarter each for clients and source files; the rest is for residents, rings and what is passed on. */
    *server = (struct server){.max_sessions = n / 4, .pid_namespace = own_pid_namespace()};
    size_pool(config->threads);
    int rc = config->reader ? 0 : source_find_reader(server->reader, sizeof(server->reader), err);
    if (rc)
        return rc;
    if (config->reader)
        snprintf(server->reader, sizeof(server->reader), "%s", config->reader);
    if (getrandom(server->boot_id, sizeof(server->boot_id), 0) != sizeof(server->boot_id))
        return error_errno(err, errno, "getrandom");
    rc = uv_loop_init(&server->loop);
    if (rc)
        return error_set(err, STOW_IO, "libuv: %s", uv_strerror(rc));
    rc = listener_open(&server->listener, config->socket, err);
    if (!rc) {
        rc = open_places(server, config, err);
        if (rc)
            listener_close(&server->listener);
    }
    if (rc) {
        close_loop(server);
        return rc;
    }
    choose_state(server, config->state_dir);
    store_init(&server->store, server->places, server->n_places);
    ring_tables_init(&server->store.rings, config->ring_bytes);
    server->loads = (struct loads){.loop = &server->loop,
                                   .store = &server->store,
                                   .reader = server->reader,
                                   .indexes = server->indexes[0] ? server->indexes : NULL,
                                   .max_files = n / 4};
    images_init(&server->images, &server->loop, &server->store);
    start_handles(server);
    return 0;
}

int server_run(struct server *server)
{
    LOG_INFO("framestowd %s serves at %s", STOW_VERSION_TEXT, server->listener.path);
    sd_notifyf(0, "READY=1\nSTATUS=serving at %s", server->listener.path);
    uv_run(&server->loop, UV_RUN_DEFAULT);
    return server->lost ? STOW_DEVICE : 0;
}

/* Let decodes and frees run out; a device that was lost has nothing left to give back. False: a read of a file
 * does not come back (a server of files that is gone), and what it reads into cannot be freed. */
static bool run_out(struct server *server)
{
    uint64_t end_ns = uv_hrtime() + DRAIN_MS * UINT64_C(1000000);
    loads_clear(&server->loads);
    images_clear(&server->images);
    store_clear(&server->store);
    while (!server->lost && (!store_is_idle(&server->store) || server->loads.first ||
                             source_count() || kept_open_count() || answers_count() ||
                             kept_save_count() || verify_count() || recall_count())) {
        if (uv_hrtime() > end_ns)
            return false;
        uv_run(&server->loop, UV_RUN_ONCE); /* the timer of the drain turns it */
    }
    return true;
}

void server_close(struct server *server)
{
    while (server->sessions)
        session_close(server->sessions, "the daemon ends");
    bool all = run_out(server);
    listener_close(&server->listener);
    if (server->lost)
        return; /* the process ends now; closing would wait for a GPU that does not answer */
    if (!all) {
        LOG_ERR("a file's read does not come back; ending without it");
        _exit(EXIT_FAILURE); /* libuv's own end would wait for its thread */
    }
    close_loop(server);
    LOG_INFO("ended");
}
