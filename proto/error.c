/* SPDX-License-Identifier: Apache-2.0 */
#include "error.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    const char *text;
} errors[] = {
    [-STOW_OK] = {"ok", "no error"},
    [-STOW_NOMEM] = {"nomem", "out of host memory"},
    [-STOW_BUSY] = {"busy", "no room now, ask again"},
    [-STOW_CORRUPT] = {"corrupt", "frame data is corrupt"},
    [-STOW_DEVICE] = {"device", "the GPU reported a fault or cannot be used"},
    [-STOW_INVALID] = {"invalid", "an argument makes no sense"},
    [-STOW_STATE] = {"state", "not allowed in this state"},
    [-STOW_UNKNOWN] = {"unknown", "no such acquisition"},
    [-STOW_EXISTS] = {"exists", "the name is in use"},
    [-STOW_NOROOM] = {"noroom", "does not fit the device's budget"},
    [-STOW_UNSUPPORTED] = {"unsupported", "not supported"},
    [-STOW_RANGE] = {"range", "a frame number past the end"},
    [-STOW_SOURCE] = {"source", "the source cannot be read as an acquisition"},
    [-STOW_MISSING] = {"missing", "a file of the source is missing"},
    [-STOW_IO] = {"io", "a read or write failed"},
    [-STOW_DENIED] = {"denied", "permission denied"},
    [-STOW_PROTOCOL] = {"protocol", "the other end broke the protocol"},
    [-STOW_VERSION] = {"version", "the two ends speak different protocols"},
    [-STOW_STALE] = {"stale", "that slot is not held with that generation"},
    [-STOW_CANCELLED] = {"cancelled", "cancelled"},
    [-STOW_NODAEMON] = {"nodaemon", "no daemon answers at the socket"},
    [-STOW_GONE] = {"gone", "the daemon closed the connection"},
    [-STOW_TIMEOUT] = {"timeout", "nothing came in the time given"},
    [-STOW_LIMIT] = {"limit", "a limit is reached"},
    [-STOW_UNWRITTEN] = {"unwritten", "the frame was never acquired, or its file is missing"},
    [-STOW_SHUTDOWN] = {"shutdown", "the daemon is shutting down"},
    [-STOW_FORKED] = {"forked", "this process is a fork of the one that connected; connect anew"},
    [-STOW_INTERNAL] = {"internal", "a fault of framestow itself"},
    [-STOW_NOFIT] = {"nofit", "a count of the frame does not fit the dtype asked for"},
};

static size_t row(int code)
{
    int n = sizeof(errors) / sizeof(errors[0]);
    return (size_t)(code <= 0 && code > -n ? -code : n);
}

const char *stow_strerror(int code)
{
    size_t i = row(code);
    return i < sizeof(errors) / sizeof(errors[0]) ? errors[i].text : "unknown error";
}

const char *error_name(int code)
{
    size_t i = row(code);
    return i < sizeof(errors) / sizeof(errors[0]) ? errors[i].name : "unknown";
}

/* Bytes of the UTF-8 character at text; 0: it is none. */
static size_t utf8_bytes(const unsigned char *text)
{
    static const struct {
        unsigned char first, last, second_from, second_to, bytes;
    } kinds[] = {
        {0x01, 0x7f, 0, 0, 1},       {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
        {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
        {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
    };
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        size_t n = kinds[k].bytes;
        if (text[0] < kinds[k].first || text[0] > kinds[k].last)
            continue;
        if (n > 1 && (text[1] < kinds[k].second_from || text[1] > kinds[k].second_to))
            return 0;
        for (size_t i = 2; i < n; i++) {
            if (text[i] < 0x80 || text[i] > 0xbf) /* the NUL among them */
                return 0;
        }
        return n;
    }
    return 0;
}

void error_clean(char *text)
{
    for (size_t n; *text; text += n ? n : 1) {
        n = utf8_bytes((const unsigned char *)text);
        if (!n)
            *text = '?';
    }
}

int error_vset(struct stow_error *err, int code, const char *format, va_list args)
{
    if (err) {
        err->code = code;
        vsnprintf(err->text, sizeof(err->text), format, args);
        error_clean(err->text);
    }
    return code;
}

int error_set(struct stow_error *err, int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    error_vset(err, code, format, args);
    va_end(args);
    return code;
}

static int code_of_errno(int errno_value)
{
    switch (errno_value) {
    case ENOMEM: return STOW_NOMEM;
    case EACCES:
    case EPERM: return STOW_DENIED;
    case ENOENT:
    case ENOTDIR: return STOW_MISSING;
    default: return STOW_IO;
    }
}

int error_errno(struct stow_error *err, int errno_value, const char *format, ...)
{
    int code = code_of_errno(errno_value);
    if (!err)
        return code;
    va_list args;
    va_start(args, format);
    error_vset(err, code, format, args);
    va_end(args);
    size_t used = strlen(err->text);
    snprintf(err->text + used, sizeof(err->text) - used, ": %s", strerror(errno_value));
    error_clean(err->text);
    return code;
}

int error_prefix(struct stow_error *err, const char *format, ...)
{
    if (!err)
        return STOW_INTERNAL;
    struct stow_error old = *err;
    va_list args;
    va_start(args, format);
    error_vset(err, old.code, format, args);
    va_end(args);
    size_t used = strlen(err->text);
    snprintf(err->text + used, sizeof(err->text) - used, ": %.*s", (int)sizeof(old.text), old.text);
    error_clean(err->text);
    return old.code;
}
