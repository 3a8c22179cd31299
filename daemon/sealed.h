/* SPDX-License-Identifier: Apache-2.0
 *
 * sealed: what a client hands over in a memfd. */
#ifndef STOW_SEALED_H
#define STOW_SEALED_H

#include "error.h"

/* Copy so many bytes of a memfd that is sealed against shrinking: what its sender could still cut or change is not
 * trusted. what: for the sentence, in plural. STOW_INVALID (not sealed, or too small), STOW_IO. Any thread. */
int sealed_read(int fd, void *to, uint64_t bytes, const char *what, struct stow_error *err);

#endif
