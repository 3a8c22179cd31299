/* SPDX-License-Identifier: Apache-2.0
 *
 * error: how a failure is said. The codes and struct stow_error are the public header's, so that the
 * number in a C return value, in a reply on the wire and in a log line is one number. An error is filled
 * where the fact is known and prefixed on the way out; it never allocates. */
#ifndef STOW_ERROR_H
#define STOW_ERROR_H

#include "framestow.h"

#include <stdarg.h>

/* Fill *err (may be NULL) with a sentence. Returns code, so that `return error_set(err, ...)` works. */
int error_set(struct stow_error *err, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
int error_vset(struct stow_error *err, int code, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));

/* The same for a failed system call: the sentence ends in ": " and the text of errno_value. The code is
 * STOW_NOMEM, STOW_DENIED, STOW_MISSING or else STOW_IO. */
int error_errno(struct stow_error *err, int errno_value, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Put "prefix: " before the sentence that is there. Returns the code that is there. */
int error_prefix(struct stow_error *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Make text UTF-8 in place: bytes that are not become '?'. Names and paths may hold any bytes, and a text that
 * is cut may end within a character; the functions above do this themselves. */
void error_clean(char *text);

/* The short name of a code, as it is shown to people: "corrupt", "noroom"; "unknown" for no code. */
const char *error_name(int code);

#endif
