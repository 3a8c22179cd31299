/* SPDX-License-Identifier: Apache-2.0
 *
 * log: one line an event, to stderr, with the <N> prefixes that journald reads when it is listening
 * (JOURNAL_STREAM) and a time and a word otherwise. A failure is logged once, by whoever handles it.
 * Control characters are escaped: a file name cannot forge a line. Any thread. */
#ifndef STOW_LOG_H
#define STOW_LOG_H

#include <stdbool.h>

enum log_level { LOG_LEVEL_ERR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DBG };

/* error, warn, info, debug; false for anything else, and nothing is changed. */
bool log_set_level(const char *name);

void log_line(enum log_level level, const char *module, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The including file defines LOG_MODULE first. */
#define LOG_ERR(...) log_line(LOG_LEVEL_ERR, LOG_MODULE, __VA_ARGS__)
#define LOG_WARN(...) log_line(LOG_LEVEL_WARN, LOG_MODULE, __VA_ARGS__)
#define LOG_INFO(...) log_line(LOG_LEVEL_INFO, LOG_MODULE, __VA_ARGS__)
#define LOG_DBG(...) log_line(LOG_LEVEL_DBG, LOG_MODULE, __VA_ARGS__)

#endif
