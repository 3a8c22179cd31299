/* SPDX-License-Identifier: Apache-2.0 */
#include "log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES 1024

static const struct {
    const char *name;
    int syslog;
} levels[] = {
    [LOG_LEVEL_ERR] = {"error", 3},
    [LOG_LEVEL_WARN] = {"warn", 4},
    [LOG_LEVEL_INFO] = {"info", 6},
    [LOG_LEVEL_DBG] = {"debug", 7},
};
#define N_LEVELS (int)(sizeof(levels) / sizeof(levels[0]))

static atomic_int shown = LOG_LEVEL_INFO;

bool log_set_level(const char *name)
{
    for (int i = 0; i < N_LEVELS; i++) {
        if (strcmp(name, levels[i].name) == 0) {
            atomic_store(&shown, i);
            return true;
        }
    }
    return false;
}

/* Append text, control characters as \xNN. */
static size_t append_escaped(char *line, size_t used, const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p && used + 5 < LINE_BYTES; p++) {
        if (*p < 0x20 || *p == 0x7f)
            used += (size_t)snprintf(line + used, LINE_BYTES - used, "\\x%02x", *p);
        else
            line[used++] = (char)*p;
    }
    return used;
}

static size_t prefix(char *line, enum log_level level, const char *module)
{
    if (getenv("JOURNAL_STREAM"))
        return (size_t)snprintf(line, LINE_BYTES, "<%d>%s: ", levels[level].syslog, module);
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t used = strftime(line, LINE_BYTES, "%Y-%m-%dT%H:%M:%S", &utc);
    return used + (size_t)snprintf(line + used, LINE_BYTES - used,
                                   ".%03ldZ %s %s: ", now.tv_nsec / 1000000, levels[level].name,
                                   module);
}

void log_line(enum log_level level, const char *module, const char *format, ...)
{
    if ((int)level > atomic_load(&shown))
        return;
    char text[LINE_BYTES], line[LINE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    size_t used = append_escaped(line, prefix(line, level, module), text);
    line[used++] = '\n';
    /* One write a line, so that lines of several threads do not mix. A stderr that is full or gone loses it. */
    if (write(STDERR_FILENO, line, used) < 0)
        return;
}
