/* SPDX-License-Identifier: Apache-2.0
 *
 * views: a stream's view as it travels. */
#ifndef STOW_VIEWS_H
#define STOW_VIEWS_H

#include "client.h"

/* Into a request, as far as something is asked for; *view and *region are what it then points to. */
void view_put(Stow__Stream *request, Stow__View *view, Stow__Region *region,
              const struct stow_view *from);

/* What the reply says of frames and view; dtype has room for its text. STOW_PROTOCOL: it contradicts itself. */
int view_take(struct stow_stream_info *info, char *dtype, size_t room,
              const Stow__StreamReply *reply, struct stow_error *err);

#endif
