/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_scan.h"

#include "scan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct scan scan_of(const struct stow_info *info)
{
    return (struct scan){info->scan[0], info->scan[1], info->skip_per_line, info->offset};
}

uint64_t cli_scan_positions(const struct stow_info *info)
{
    const struct scan scan = scan_of(info);
    return scan_sound(&scan) ? scan.height * scan.width : 0;
}

bool cli_scan_is_all(const struct stow_info *info)
{
    return !info->skip_per_line && !info->offset && cli_scan_positions(info) == info->frames;
}

uint64_t *cli_scan_frames(const struct stow_info *info, size_t *n)
{
    const struct scan scan = scan_of(info);
    uint64_t there = scan_acquired(&scan, info->frames);
    uint64_t *list = there < SIZE_MAX / sizeof(*list) ? malloc((there + 1) * sizeof(*list)) : NULL;
    for (uint64_t i = 0; list && i < there; i++)
        list[i] = scan_frame(&scan, i / scan.width, i % scan.width);
    *n = there;
    return list;
}

void *cli_scan_pad(const void *values, size_t n_rows, size_t n, size_t positions, size_t each_bytes,
                   bool doubles)
{
    size_t row, all;
    if (__builtin_mul_overflow(positions, each_bytes, &row) ||
        __builtin_mul_overflow(row, n_rows, &all))
        return NULL;
    char *padded = calloc(all + 1, 1);
    for (size_t r = 0; padded && r < n_rows; r++) {
        memcpy(padded + r * row, (const char *)values + r * n * each_bytes, n * each_bytes);
        double *rest = (double *)(void *)(padded + r * row + n * each_bytes);
        for (size_t i = 0; doubles && i < (positions - n) * each_bytes / sizeof(*rest); i++)
            rest[i] = NAN;
    }
    return padded;
}
