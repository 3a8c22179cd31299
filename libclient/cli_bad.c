/* SPDX-License-Identifier: Apache-2.0
 *
 * cli_bad: frames that cannot be given, named on stderr. */
#include "cli.h"
#include "error.h"

#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

int cli_name_bad(struct stow_client *client, const char *name, uint64_t *ids, size_t n)
{
    struct stow_error why, next = {.code = 0};
    if (n)
        qsort(ids, n, sizeof(ids[0]), by_value);
    for (size_t i = 0, end; i < n; i = end) {
        if (i == 0 && stow_frame_error(client, name, ids[0], &next))
            return cli_error(client);
        why = next;
        for (end = i + 1; end < n; end++) {
            if (ids[end] == ids[end - 1])
                continue;
            if (stow_frame_error(client, name, ids[end], &next))
                return cli_error(client);
            if (ids[end] != ids[end - 1] + 1 || next.code != why.code ||
                strcmp(next.text, why.text))
                break;
        }
        fprintf(stderr, ids[end - 1] == ids[i] ? "frame %llu" : "frames %llu-%llu",
                (unsigned long long)ids[i], (unsigned long long)ids[end - 1]);
        fprintf(stderr, ": %s: ", error_name(why.code));
        cli_print(stderr, why.text);
        fputc('\n', stderr);
    }
    return CLI_DONE;
}
