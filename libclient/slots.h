/* SPDX-License-Identifier: Apache-2.0
 *
 * slots: streams on the client's side. A stream maps its ring, keeps what is known of each slot,
 * and hands batches out in the order they came.
 *
 * A slot is free (the daemon's), ready (filled, not yet fetched), held (the caller's) or
 * deferred (given back once a CUDA stream is done). The daemon decides; the states here only
 * catch a caller or a daemon that is wrong: a READY for a slot that is not free, or that does
 * not fit the ring, ends the connection, a release of a slot that is not held is STOW_STALE and
 * sends nothing.
 *
 * Slots are given back by any thread: their states, and the releases not yet sent, are under the
 * client's slot_lock. All else belongs to the thread that uses the connection. */
#ifndef STOW_SLOTS_H
#define STOW_SLOTS_H

#include "client.h"

/* From client_turn. A READY that cannot be is STOW_PROTOCOL. */
int slots_on_ready(struct stow_client *client, const Stow__Ready *ready, struct stow_error *err);
void slots_on_end(struct stow_client *client, const Stow__StreamEnd *end);

/* The daemon refused a request that nobody waited for, of the stream with this number. */
void slots_refused(struct stow_client *client, uint32_t number, const struct stow_error *why);

/* Where stow_fd is in use: take all that has come, and have its eventfd say whether something
 * lies here unfetched. At the end of every call that may have received. */
void slots_settle(struct stow_client *client);

/* Close every stream, before the connection goes. */
void slots_close_all(struct stow_client *client);

#endif
