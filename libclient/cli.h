/* SPDX-License-Identifier: Apache-2.0
 *
 * cli: what the commands of `framestow` share: the global options, a connection, what is printed
 * and how it ends. Results go to stdout, all else to stderr. What others named is printed with
 * its control characters and bytes that are not UTF-8 as \xNN, so that a file's name cannot play
 * on a terminal. */
#ifndef STOW_CLI_H
#define STOW_CLI_H

#include "framestow.h"

#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>

struct json_object;

/* How `framestow` ends. Scripts rest on these. */
enum cli_exit {
    CLI_DONE = 0,
    CLI_FAILED = 1, /* refused, or failed */
    CLI_USAGE = 2,
    CLI_AWAY = 3,  /* no daemon there, no permission on its socket, or it went away */
    CLI_PARTLY = 4 /* done, but for the frames named */
};

struct cli {
    const char *socket; /* NULL: the default */
    bool json;
    const struct cli_command *command;
};

struct cli_command {
    const char *name;
    const char *arguments; /* for the usage line */
    const char *help;
    int (*run)(struct cli *cli, int argc, char **argv); /* argv[0]: the command's name */
};

/* A command's own options (has_arg as in getopt_long, val from 'A' to 'z') come after the global
 * ones. */
#define CLI_GLOBAL_OPTIONS                                  \
    {"socket", required_argument, NULL, CLI_OPTION_SOCKET}, \
        {"json", no_argument, NULL, CLI_OPTION_JSON},       \
    {                                                       \
        "help", no_argument, NULL, CLI_OPTION_HELP          \
    }
enum { CLI_OPTION_SOCKET = 1000, CLI_OPTION_JSON, CLI_OPTION_HELP };

#define CLI_END (-1)
#define CLI_STOP (-2)

/* The next option, before the command or of it: its val, CLI_END after the last, CLI_STOP when
 * the command is to end with *exit (usage was printed). Global options are dealt with here. */
int cli_option(struct cli *cli, int argc, char **argv, const struct option *options, int *exit);

/* Exactly min to max arguments after the options, or *exit; the first is argv[optind]. */
bool cli_arguments(const struct cli *cli, int argc, int min, int max, int *exit);

/* "framestow: ..." on stderr; returns CLI_USAGE, after the command's usage line. */
int cli_usage(const struct cli *cli, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* "framestow: ..." on stderr; returns CLI_FAILED. */
int cli_failed(const char *format, ...) __attribute__((format(printf, 1, 2)));
void cli_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Connect, or say why not: NULL and *exit. */
struct stow_client *cli_connect(const struct cli *cli, int *exit);

/* Say the connection's last error; returns the exit code for it. */
int cli_error(const struct stow_client *client);

/* A whole number of this option or argument, from text; false: it is none, or above max. */
bool cli_number(const char *text, uint64_t max, uint64_t *number);

/* Two numbers with `between` between them, as 64x64 or 3,5. */
bool cli_pair(const char *text, char between, uint64_t pair[2]);

/* Name frames that cannot be given on stderr, those in a row with one reason together. ids are sorted. CLI_DONE, or
 * what went wrong. */
int cli_name_bad(struct stow_client *client, const char *name, uint64_t *ids, size_t n);

/* ---- text (cli_text.c) ----------------------------------------------------------------------- */

/* A copy with control characters, if asked, and bytes that are not UTF-8 as \xNN; freed by the
 * caller. Never NULL: without memory the program ends. */
char *cli_clean(const char *text, bool controls);

/* Print it cleaned. */
void cli_print(FILE *to, const char *text);

/* 1536 -> "1.5 KiB". Returns text. */
#define CLI_SIZE_TEXT 32
const char *cli_size(char text[CLI_SIZE_TEXT], uint64_t bytes);

/* A bar on the terminal: 0, go on. drawn: a bool, set once something was drawn (cli_load.c). */
int cli_draw(void *drawn, const struct stow_progress *progress);

struct json_object *cli_json_text(const char *text);
struct json_object *cli_json_real(double value, int decimals); /* decimals: 1 to 3 */
struct json_object *cli_json_info(const struct stow_info *info);
void cli_json_print(struct json_object *object); /* on stdout, and frees it */

/* ---- commands -------------------------------------------------------------------------------- */

int cli_load(struct cli *cli, int argc, char **argv);
int cli_ls(struct cli *cli, int argc, char **argv);
int cli_info(struct cli *cli, int argc, char **argv);
int cli_unload(struct cli *cli, int argc, char **argv);
int cli_frames(struct cli *cli, int argc, char **argv);
int cli_save(struct cli *cli, int argc, char **argv);
int cli_verify(struct cli *cli, int argc, char **argv);
int cli_sum(struct cli *cli, int argc, char **argv);
int cli_mean(struct cli *cli, int argc, char **argv);
int cli_mask(struct cli *cli, int argc, char **argv);
int cli_com(struct cli *cli, int argc, char **argv);
int cli_stats(struct cli *cli, int argc, char **argv);
int cli_doctor(struct cli *cli, int argc, char **argv);
int cli_version(struct cli *cli, int argc, char **argv);

#endif
