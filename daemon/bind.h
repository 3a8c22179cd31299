/* SPDX-License-Identifier: Apache-2.0
 *
 * bind: the name that somebody loads under comes to mean a resident, if it may and its scan fits. */
#ifndef STOW_BIND_H
#define STOW_BIND_H

#include "loads.h"

/* Whether the waiter's name may come to mean this resident (NULL: one that is not there yet). STOW_EXISTS when it
 * means another source; changed says that it is the same one as it was before. */
int bind_check(struct store *store, const struct waiter *waiter, const struct resident *resident,
               bool changed, struct stow_error *err);

/* Bind it. path is the source's, for messages. STOW_EXISTS, STOW_INVALID (the scan), STOW_NOMEM. */
int bind_name(struct store *store, const struct waiter *waiter, struct resident *resident,
              const char *path, bool changed, struct stow_error *err);

#endif
