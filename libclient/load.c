/* SPDX-License-Identifier: Apache-2.0
 *
 * load: having an acquisition made resident. The master is opened here and its descriptor sent; all else is the
 * course of it. */
#include "course.h"
#include "open_source.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *text_of(const char *text)
{
    return (char *)(uintptr_t)(text ? text : ""); /* protobuf-c does not write to it */
}

/* LOAD with the master's descriptor. */
static int ask(struct course *load, const char *path, int fd,
               const struct stow_load_options *options)
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
    body.streams = options->streams;
    body.scan_skip = options->skip_per_line;
    body.scan_offset = options->offset;
    Stow__Request request = STOW__REQUEST__INIT;
    request.body_case = STOW__REQUEST__BODY_LOAD;
    request.load = &body;
    struct answer answer;
    int rc = course_ask(load, &request, &fd, 1, STOW__REPLY__BODY_LOAD, &answer);
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
    if (course_check(client))
        return client->error.code;
    if ((known.scan[0] == 0) != (known.scan[1] == 0))
        return error_set(&client->error, STOW_INVALID, "a scan of %llu by %llu positions",
                         (unsigned long long)known.scan[0], (unsigned long long)known.scan[1]);
    struct course load = {.client = client, .seen = {.seconds_left = -1}};
    int why;
    int fd = open_source(path, &load.master, &why, &client->error);
    if (fd < 0)
        return fd;
    int rc = ask(&load, path, fd, &known);
    close(fd);
    if (rc == 0)
        rc = course_run(&load, known.progress, known.progress_data);
    free(load.master);
    if (rc == 0 && info)
        *info = load.info;
    else
        stow_info_free(load.info);
    return rc;
}
