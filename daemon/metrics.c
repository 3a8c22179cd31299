/* SPDX-License-Identifier: Apache-2.0 */
#include "metrics.h"

#include <string.h>

struct metrics metrics;

const struct metric_row metric_rows[] = {
#define ROW(name, unit, help) {#name, unit, help, offsetof(struct metrics, name)},
    METRICS(ROW)
#undef ROW
};
const size_t n_metric_rows = sizeof(metric_rows) / sizeof(metric_rows[0]);

uint64_t metric_value(const struct metric_row *row)
{
    uint64_t value;
    memcpy(&value, (const char *)&metrics + row->offset, sizeof(value));
    return value;
}
