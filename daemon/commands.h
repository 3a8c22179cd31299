/* SPDX-License-Identifier: Apache-2.0
 *
 * commands: what each request does. One row a request: which states it is allowed in, and its handler.
 * A handler answers by session_reply or session_error, at once or later. */
#ifndef STOW_COMMANDS_H
#define STOW_COMMANDS_H

#include "session.h"

/* A request and its descriptors; a handler that takes one sets it to -1. */
struct request {
    const Stow__Request *body;
    int *fds;
    size_t n_fds;
};

/* Unpack and carry out. False: not a message at all, the session must be closed. */
bool command_dispatch(struct session *session, const struct wire_message *message);

/* Handlers that have files of their own. */
void do_load(struct session *session, const struct request *request);
void do_files(struct session *session, const struct request *request);
void do_cancel(struct session *session, const struct request *request);
void do_stream(struct session *session, const struct request *request);
void do_attached(struct session *session, const struct request *request);
void do_frames(struct session *session, const struct request *request);
void do_release(struct session *session, const struct request *request);
void do_close_stream(struct session *session, const struct request *request);
void do_detached(struct session *session, const struct request *request);

/* A name as a C string for the handler's time, checked: not empty, no NUL, at most 255 bytes. */
int name_of(const ProtobufCBinaryData *bytes, char *name, size_t room, struct stow_error *err);
#define NAME_ROOM 256

#endif
