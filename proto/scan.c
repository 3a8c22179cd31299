/* SPDX-License-Identifier: Apache-2.0 */
#include "scan.h"

bool scan_sound(const struct scan *scan)
{
    uint64_t line, lines, all;
    return scan->height && scan->width && !__builtin_add_overflow(scan->width, scan->skip, &line) &&
           !__builtin_mul_overflow(line, scan->height, &lines) &&
           !__builtin_add_overflow(lines, scan->offset, &all) && all <= INT64_MAX;
}

uint64_t scan_frame(const struct scan *scan, uint64_t y, uint64_t x)
{
    return scan->offset + y * (scan->width + scan->skip) + x;
}

uint64_t scan_end(const struct scan *scan)
{
    return scan_frame(scan, scan->height - 1, scan->width);
}

uint64_t scan_acquired(const struct scan *scan, uint64_t n_frames)
{
    if (n_frames <= scan->offset)
        return 0;
    uint64_t there = n_frames - scan->offset, line = scan->width + scan->skip;
    uint64_t lines = there / line, rest = there % line;
    if (lines >= scan->height)
        return scan->height * scan->width;
    return lines * scan->width + (rest < scan->width ? rest : scan->width);
}
