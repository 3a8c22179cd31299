/* SPDX-License-Identifier: Apache-2.0
 *
 * sums on the CPU, by way of work_run, against the plain sums of sums_cases.h, sums_pixel_cases.h and
 * rings_cases.h. Each piece of memory is an allocation
 * of its own, so that a sanitizer sees whatever is read or written beyond it. */
#include "rings_cases.h"
#include "sums_kind_cases.h"
#include "sums_pixel_cases.h"

/* Allocations, to be freed together. */
struct heap {
    void *list[4096];
    size_t n;
};

/* In two parts, as threads would have it. */
static void run_on_cpu(struct sums_bed *bed, const struct work *work)
{
    (void)bed;
    work_run(work, 0, work->n / 2);
    work_run(work, work->n / 2, work->n);
}

/* Whole: a sanitizer knows the end to the byte. */
static void *heap_alloc(struct sums_bed *bed, size_t bytes)
{
    struct heap *heap = bed->data;
    void *memory = NULL;
    if (heap->n == sizeof(heap->list) / sizeof(*heap->list) ||
        posix_memalign(&memory, 64, bytes) != 0) {
        fprintf(stderr, "out of memory\n");
        exit(EXIT_FAILURE);
    }
    memset(memory, 0xa5, bytes);
    heap->list[heap->n++] = memory;
    return memory;
}

static void heap_reset(struct sums_bed *bed)
{
    struct heap *heap = bed->data;
    while (heap->n > 0)
        free(heap->list[--heap->n]);
}

int main(void)
{
    static struct heap heap;
    struct sums_bed bed = {run_on_cpu, heap_alloc, heap_reset, &heap};
    test_weighted_sums(&bed);
    test_extreme_sums(&bed);
    test_damaged_sums(&bed, 12);
    test_statistics(&bed);
    test_pixel_sums(&bed);
    test_compare(&bed);
    test_kinds(&bed);
    test_large_kinds(&bed);
    test_fill_sums();
    test_rings(&bed);
    return test_end();
}
