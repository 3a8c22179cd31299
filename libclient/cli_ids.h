/* SPDX-License-Identifier: Apache-2.0
 *
 * cli_ids: which frames, as people write it: "all", or a list of numbers and ranges such as
 * 0,5,7-9, whose order and repeats count. */
#ifndef STOW_CLI_IDS_H
#define STOW_CLI_IDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cli_range {
    uint64_t first, last;
};

struct cli_ids {
    struct cli_range *ranges;
    size_t n; /* 0: all frames */
};

/* false: not such a list, or no memory; then *ids is as it was. */
bool cli_ids_parse(const char *text, struct cli_ids *ids);
void cli_ids_free(struct cli_ids *ids);

/* The greatest number named; 0 for all. */
uint64_t cli_ids_last(const struct cli_ids *ids);

/* Written out: *list of *n, freed by the caller. false: no memory for so many. */
bool cli_ids_expand(const struct cli_ids *ids, uint64_t **list, size_t *n);

#endif
