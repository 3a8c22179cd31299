/* SPDX-License-Identifier: Apache-2.0
 *
 * load: having an acquisition made resident. The master is opened here and its descriptor sent;
 * the daemon names the files it needs next (NeedFiles) and gets their descriptors, or why they
 * could not be opened; Progress comes, then one Loaded. Cancelling is a request like any other:
 * the load ends with its Loaded. */
#include "client.h"
#include "open_source.h"
#include "slots.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILES_A_MESSAGE 16u /* opened and passed on at once: a limit of 64 descriptors is enough */
#define PROGRESS_NS 100000000u

struct load {
    struct stow_client *client;
    uint64_t id;
    char *master; /* real path */
    struct stow_progress seen;
    bool over;
    int result; /* once over: 0, or the code of err */
    struct stow_error err;
    struct stow_info *info;
};

static void end(struct load *load, int code)
{
    load->over = true;
    load->result = code;
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
    if (needed->path.len && memchr(name, 0, needed->path.len))
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

/* One Files message for up to FILES_A_MESSAGE of the files. */
static int give_some(struct load *load, Stow__NeededFile *const *needed, size_t n)
{
    struct opened opened[FILES_A_MESSAGE];
    Stow__File *list[FILES_A_MESSAGE];
    int fds[FILES_A_MESSAGE];
    size_t n_fds = 0;
    for (size_t i = 0; i < n; i++) {
        open_needed(&opened[i], needed[i], load->master);
        list[i] = &opened[i].file;
        if (opened[i].fd >= 0)
            fds[n_fds++] = opened[i].fd;
    }
    Stow__Files files = STOW__FILES__INIT;
    files.load = load->id;
    files.n_files = n;
    files.files = list;
    Stow__Request request = STOW__REQUEST__INIT;
    request.id = CLIENT_ID_ALONE;
    request.body_case = STOW__REQUEST__BODY_FILES;
    request.files = &files;
    int rc = client_tell(load->client, &request, fds, n_fds, &load->err);
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

void load_on_need(struct load *load, const Stow__NeedFiles *need)
{
    if (need->load != load->id || load->over)
        return;
    for (size_t done = 0, n; done < need->n_files; done += n) {
        n = how_many(need->files + done, need->n_files - done, load->master);
        int rc = give_some(load, need->files + done, n);
        if (rc) {
            end(load, rc);
            return;
        }
    }
}

/* ---- its course ------------------------------------------------------------------------------ */

void load_on_progress(struct load *load, const Stow__Progress *progress)
{
    if (progress->load != load->id)
        return;
    load->seen = (struct stow_progress){.frames = progress->frames,
                                        .total_frames = progress->total_frames,
                                        .bytes = progress->bytes,
                                        .total_bytes = progress->total_bytes,
                                        .seconds_left = progress->seconds_left};
}

void load_on_loaded(struct load *load, const Stow__Loaded *loaded)
{
    if (loaded->load != load->id || load->over)
        return;
    if (loaded->error && loaded->error->code != STOW__CODE__OK) {
        end(load, client_error_of(loaded->error, &load->err));
        return;
    }
    load->info = loaded->acquisition ? answer_info(loaded->acquisition) : NULL;
    if (load->info)
        end(load, 0);
    else if (loaded->acquisition)
        end(load, error_set(&load->err, STOW_NOMEM, "no memory for the daemon's answer"));
    else
        end(load,
            error_set(&load->err, STOW_PROTOCOL, "the daemon says it has loaded, and not what"));
}

static void cancel(struct load *load)
{
    Stow__Cancel body = STOW__CANCEL__INIT;
    body.load = load->id;
    Stow__Request request = STOW__REQUEST__INIT;
    request.id = CLIENT_ID_ALONE;
    request.body_case = STOW__REQUEST__BODY_CANCEL;
    request.cancel = &body;
    int rc = client_tell(load->client, &request, NULL, 0, &load->err);
    if (rc)
        end(load, rc);
}

/* Until Loaded came: hand on what comes, and tell the caller ten times a second how far it is. */
static int follow(struct load *load, const struct stow_load_options *options)
{
    bool cancelled = false;
    uint64_t next = client_now_ns();
    while (!load->over) {
        bool tell = options->progress && !cancelled;
        int rc = client_turn(load->client, tell ? next : UINT64_MAX, 0);
        if (rc < 0)
            return rc;
        if (!tell || load->over || client_now_ns() < next)
            continue;
        next = client_now_ns() + PROGRESS_NS;
        if (options->progress(options->progress_data, &load->seen)) {
            cancelled = true;
            cancel(load);
        }
    }
    if (load->result)
        load->client->error = load->err;
    return load->result;
}

static char *text_of(const char *text)
{
    return (char *)(uintptr_t)(text ? text : ""); /* protobuf-c does not write to it */
}

/* LOAD with the master's descriptor. */
static int ask(struct load *load, const char *path, int fd, const struct stow_load_options *options)
{
    size_t n;
    const char *name = options->name ? options->name : open_source_name(path, &n);
    Stow__Load body = STOW__LOAD__INIT;
    body.name = client_bytes(name, options->name ? strlen(name) : n);
    body.path = client_bytes(load->master, strlen(load->master));
    body.dataset =
        client_bytes(text_of(options->dataset), options->dataset ? strlen(options->dataset) : 0);
    body.device = text_of(options->device);
    body.form = text_of(options->form);
    body.share = (Stow__Share)options->share;
    body.replace = options->replace != 0;
    body.allow_gaps = options->allow_gaps != 0;
    body.scan_y = options->scan[0];
    body.scan_x = options->scan[1];
    Stow__Request request = STOW__REQUEST__INIT;
    request.body_case = STOW__REQUEST__BODY_LOAD;
    request.load = &body;
    struct answer answer;
    int rc = client_ask(load->client, &request, &fd, 1, STOW__REPLY__BODY_LOAD, &answer);
    if (rc)
        return rc;
    load->id = answer.reply->load->load;
    answer_drop(&answer);
    return 0;
}

int stow_load(struct stow_client *client, const char *path, const struct stow_load_options *options,
              struct stow_info **info)
{
    struct stow_load_options known;
    if (client_check(client) ||
        client_options(client, &known, sizeof(known), options, options ? options->size : 0))
        return client->error.code;
    if (client->load)
        return error_set(&client->error, STOW_STATE, "a load is under way on this connection");
    if ((known.scan[0] == 0) != (known.scan[1] == 0))
        return error_set(&client->error, STOW_INVALID, "a scan of %llu by %llu positions",
                         (unsigned long long)known.scan[0], (unsigned long long)known.scan[1]);
    struct load load = {.client = client, .seen = {.seconds_left = -1}};
    int why;
    int fd = open_source(path, &load.master, &why, &client->error);
    if (fd < 0)
        return fd;
    int rc = ask(&load, path, fd, &known);
    close(fd);
    if (rc == 0) {
        client->load = &load;
        rc = follow(&load, &known);
        client->load = NULL;
    }
    slots_settle(client);
    free(load.master);
    if (rc == 0 && info)
        *info = load.info;
    else
        stow_info_free(load.info);
    return rc;
}
