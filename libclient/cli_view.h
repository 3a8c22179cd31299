/* SPDX-License-Identifier: Apache-2.0
 *
 * cli_view: the options of `framestow frames` that make a view, and what is said of one. */
#ifndef STOW_CLI_VIEW_H
#define STOW_CLI_VIEW_H

#include "framestow.h"

#include <stdbool.h>
#include <stddef.h>

struct json_object;
struct stow_client;

enum {
    CLI_VIEW_DTYPE = 'a',
    CLI_VIEW_SQRT,
    CLI_VIEW_FFTSHIFT,
    CLI_VIEW_PAD,
    CLI_VIEW_CROP,
    CLI_VIEW_BIN,
    CLI_VIEW_MASK_CORRECTION,
    CLI_VIEW_REGION
};

#define CLI_VIEW_OPTIONS                                                        \
    {"dtype", required_argument, NULL, CLI_VIEW_DTYPE},                         \
        {"sqrt", no_argument, NULL, CLI_VIEW_SQRT},                             \
        {"fftshift", no_argument, NULL, CLI_VIEW_FFTSHIFT},                     \
        {"pad", required_argument, NULL, CLI_VIEW_PAD},                         \
        {"crop", required_argument, NULL, CLI_VIEW_CROP},                       \
        {"bin", required_argument, NULL, CLI_VIEW_BIN},                         \
        {"mask-correction", required_argument, NULL, CLI_VIEW_MASK_CORRECTION}, \
    {                                                                           \
        "region", required_argument, NULL, CLI_VIEW_REGION                      \
    }

/* One of these options. NULL; or what it takes, when text is not that. The text must live as long as the view. */
const char *cli_view_take(struct stow_view *view, int option, const char *text);

/* Whether a region is asked for, and of how many frames. */
bool cli_view_region(const struct stow_view *view, size_t *n);

/* Warn of what may be surprising about it. */
void cli_view_warn(const struct stow_stream_info *info);

/* The view as agreed; NULL: there is none. */
struct json_object *cli_view_json(const struct stow_stream_info *info);

/* Name frames that did not fit the dtype on stderr. ids need not be sorted. */
void cli_view_name_unfit(const char *dtype, uint64_t *ids, size_t n);

#endif
