/* SPDX-License-Identifier: Apache-2.0
 *
 * server: the loop's owner: the socket, the sessions, the places with their store, and the loads.
 *
 * server_run returns when a SIGTERM or SIGINT has been answered: clients are told GOODBYE, no new batch
 * is filled, and after a while or when the last client left everything is closed in order. */
#ifndef STOW_SERVER_H
#define STOW_SERVER_H

#include "config.h"
#include "images.h"
#include "listen.h"
#include "loads.h"
#include "store.h"

#include <limits.h>

#define BOOT_ID_BYTES 16

struct session;

struct server {
    uv_loop_t loop;
    struct listener listener;
    uv_poll_t accepting;
    uv_prepare_t flushing; /* before the loop sleeps: what was queued goes out */
    uv_signal_t on_term, on_int;
    uv_timer_t drained,
        watch;            /* looks whether all slots are back; after silent and stuck sessions */
    uint64_t deadline_ns; /* of the shutdown */
    struct place places[CONFIG_MAX_DEVICES];
    size_t n_places;
    struct store store;
    struct loads loads;
    struct images images;
    struct session *sessions;
    unsigned n_sessions, max_sessions;
    uint8_t boot_id[BOOT_ID_BYTES];
    uint64_t pid_namespace;
    bool draining;
    bool lost; /* a device is lost: exit non-zero, so that whoever supervises starts anew */
    char reader[512];
    char indexes[PATH_MAX]; /* folder of the index cache; "": none */
};

/* Everything up to being ready to serve. STOW_* as devices, sockets say; nothing is left open on failure. */
int server_open(struct server *server, const struct config *config, struct stow_error *err);

/* Serve until told to end. 0, or STOW_DEVICE when a device was lost. */
int server_run(struct server *server);
void server_close(struct server *server);

#endif
