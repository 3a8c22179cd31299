/* SPDX-License-Identifier: Apache-2.0
 *
 * large: memory for tables that are written once from end to end. Of 4 KiB pages each is a fault; of 262,144 frames
 * that is most of the time their tables take. Any thread. */
#ifndef STOW_LARGE_H
#define STOW_LARGE_H

#include <stdlib.h>
#include <sys/mman.h>

#define LARGE_PAGE_BYTES ((size_t)2 << 20)

/* As malloc, and for free; in large pages where the system has some to give and bytes fill at least two. */
static inline void *large_alloc(size_t bytes)
{
    if (bytes < 2 * LARGE_PAGE_BYTES)
        return malloc(bytes);
    void *at = NULL;
    if (posix_memalign(&at, LARGE_PAGE_BYTES, bytes))
        return NULL;
    madvise(at, bytes / LARGE_PAGE_BYTES * LARGE_PAGE_BYTES, MADV_HUGEPAGE); /* a wish */
    return at;
}

#endif
