/* SPDX-License-Identifier: Apache-2.0
 *
 * wire: messages with descriptors over a Unix stream socket, for both ends.
 *
 * A message is two little-endian u32, the body's length and the number of descriptors, then the body
 * (protobuf, at most WIRE_MAX_BODY bytes). Its descriptors travel by SCM_RIGHTS with the first byte of
 * the message. A wire owns its socket, what is queued to be written, and what came but was not yet taken.
 *
 * Receiving: wire_read takes what the socket has, then wire_next hands out whole messages. A length over
 * the bound, more descriptors than announced or fewer, is STOW_PROTOCOL and the wire is of no more use.
 * Descriptors that nobody took are closed. Every descriptor received is closed on exec.
 * Sending: wire_send queues, wire_flush writes as much as the socket takes.
 * Any one thread at a time. */
#ifndef STOW_WIRE_H
#define STOW_WIRE_H

#include "error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_MAX_BODY 65536u
#define WIRE_MAX_FDS 64u

struct wire;

/* A message as it came. The body is valid until the next call on the wire; descriptors are the
 * receiver's to take (set to -1) or are closed with the next call. */
struct wire_message {
    const uint8_t *body;
    size_t bytes;
    int *fds;
    size_t n_fds;
};

/* Owns fd from here on, also on failure (NULL: out of memory). The socket is made non-blocking. */
struct wire *wire_new(int fd);
void wire_free(struct wire *wire);

int wire_fd(const struct wire *wire);

/* Take what the socket holds, without waiting. Returns 1 when something came, 0 when nothing is there,
 * STOW_GONE at end of file, STOW_PROTOCOL, STOW_LIMIT (no descriptor is left for one that came),
 * STOW_NOMEM, STOW_IO. */
int wire_read(struct wire *wire, struct stow_error *err);

/* The next whole message: 1 with *message, 0 when there is none yet, STOW_PROTOCOL. */
int wire_next(struct wire *wire, struct wire_message *message, struct stow_error *err);

/* Queue a message; the descriptors are duplicated, the caller keeps its own. STOW_NOMEM, STOW_INVALID
 * (too long), STOW_IO (no descriptor left to duplicate): then nothing was queued. */
int wire_send(struct wire *wire, const uint8_t *body, size_t bytes, const int *fds, size_t n_fds,
              struct stow_error *err);

/* Write what is queued, without waiting. 0 when all is written, 1 when some is left (poll for writing),
 * STOW_GONE, STOW_IO. */
int wire_flush(struct wire *wire, struct stow_error *err);

/* Bytes queued and not yet written. */
size_t wire_backlog(const struct wire *wire);

#endif
