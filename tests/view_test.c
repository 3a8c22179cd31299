/* SPDX-License-Identifier: Apache-2.0
 *
 * view on the CPU against the steps of view_cases.h. */
#include "view_cases.h"

static void *allocated[16];
static size_t n_allocated;

static void *bed_alloc(size_t bytes)
{
    void *memory = malloc(bytes + 16);
    memset(memory, 0xa5, bytes + 16);
    return allocated[n_allocated++] = memory;
}

static void bed_reset(void)
{
    while (n_allocated)
        free(allocated[--n_allocated]);
}

/* In two parts, as threads would share them. */
static void bed_run(const struct work *work)
{
    work_run(work, work->n / 2, work->n);
    work_run(work, 0, work->n / 2);
}

int main(void)
{
    const struct view_bed bed = {bed_run, bed_alloc, bed_reset};
    test_each_alone(&bed);
    test_reals(&bed);
    test_long_rows(&bed);
    test_random_views(&bed, 3000, 24);
    test_random_views(&bed, 100, 150);
    return test_end();
}
