/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_ids.h"

#include <stdlib.h>
#include <string.h>

/* Digits at *at, and *at behind them. */
static bool take_number(const char **at, uint64_t *number)
{
    uint64_t value = 0;
    const char *p = *at;
    for (; *p >= '0' && *p <= '9'; p++) {
        if (__builtin_mul_overflow(value, (uint64_t)10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*p - '0'), &value))
            return false;
    }
    if (p == *at)
        return false;
    *at = p;
    *number = value;
    return true;
}

static bool take_range(const char **at, struct cli_range *range)
{
    if (!take_number(at, &range->first))
        return false;
    range->last = range->first;
    if (**at != '-')
        return true;
    ++*at;
    return take_number(at, &range->last) && range->first <= range->last;
}

bool cli_ids_parse(const char *text, struct cli_ids *ids)
{
    size_t room = 1, n = 0;
    if (strcmp(text, "all") == 0) {
        *ids = (struct cli_ids){.n = 0};
        return true;
    }
    for (const char *p = text; *p; p++)
        room += *p == ',';
    struct cli_range *ranges = calloc(room, sizeof(*ranges));
    for (const char *p = text; ranges && take_range(&p, &ranges[n++]) && (*p == ',' || *p == 0);
         p++) {
        if (*p == 0) {
            *ids = (struct cli_ids){.ranges = ranges, .n = n};
            return true;
        }
    }
    free(ranges);
    return false;
}

void cli_ids_free(struct cli_ids *ids)
{
    free(ids->ranges);
    *ids = (struct cli_ids){.n = 0};
}

uint64_t cli_ids_last(const struct cli_ids *ids)
{
    uint64_t last = 0;
    for (size_t i = 0; i < ids->n; i++)
        last = ids->ranges[i].last > last ? ids->ranges[i].last : last;
    return last;
}

bool cli_ids_expand(const struct cli_ids *ids, uint64_t **list, size_t *n)
{
    uint64_t total = 0;
    for (size_t i = 0; i < ids->n; i++) {
        uint64_t count;
        if (__builtin_add_overflow(ids->ranges[i].last - ids->ranges[i].first, (uint64_t)1,
                                   &count) ||
            __builtin_add_overflow(total, count, &total) || total > SIZE_MAX / sizeof(**list))
            return false;
    }
    uint64_t *all = malloc(total ? total * sizeof(*all) : 1), *at = all;
    if (!all)
        return false;
    for (size_t i = 0; i < ids->n; i++) {
        for (uint64_t k = 0; k <= ids->ranges[i].last - ids->ranges[i].first; k++)
            *at++ = ids->ranges[i].first + k;
    }
    *list = all;
    *n = total;
    return true;
}
