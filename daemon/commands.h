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
void do_save(struct session *session, const struct request *request);
void do_verify(struct session *session, const struct request *request);
void do_sum(struct session *session, const struct request *request);
void do_mean(struct session *session, const struct request *request);
void do_mask(struct session *session, const struct request *request);
void do_com(struct session *session, const struct request *request);

/* Saves and comparisons of a session: one by its id (NULL: none), a file that it asked for, and all to an end; err NULL:
 * nobody is there to be told. path NULL: it made no sense. */
struct session_task *task_find(struct session *session, uint64_t id);
void task_give(struct session_task *task, uint32_t file, int fd, const char *path, int errno_value);
void task_cancel(struct session_task *task, const struct stow_error *err);
void tasks_end(struct session *session, const struct stow_error *err);

/* A name as a C string for the handler's time, checked: not empty, no NUL, at most 255 bytes. */
int name_of(const ProtobufCBinaryData *bytes, char *name, size_t room, struct stow_error *err);
#define NAME_ROOM 256

/* The acquisition of that name, to be read; NULL and why not: STOW_UNKNOWN, STOW_STATE (evicted), STOW_SHUTDOWN. */
struct name *name_in_memory(struct session *session, const ProtobufCBinaryData *bytes,
                            struct stow_error *err);

/* The ids of a request, in the message or in its one descriptor, as an array from malloc, at most so many. */
int take_ids(const struct request *request, const uint64_t *inlined, size_t n_inlined,
             uint64_t n_ids, uint64_t most, uint64_t **ids, struct stow_error *err);

#endif
