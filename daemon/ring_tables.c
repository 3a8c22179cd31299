/* SPDX-License-Identifier: Apache-2.0 */
#include "ring_tables.h"

#include "metrics.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_RADIUS \
    1e9 /* beyond it no detector has pixels, and below it rings are numbered exactly */
#define DEFAULT_PART 16u
#define SPARE_FRAMES (4u << 20) /* beyond them answers take their time anyway */

void ring_tables_init(struct ring_tables *tables, uint64_t max_bytes)
{
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    if (max_bytes == UINT64_MAX)
        max_bytes = pages > 0 ? (uint64_t)pages * (uint64_t)page_bytes / DEFAULT_PART : 0;
    *tables = (struct ring_tables){.max_bytes = max_bytes};
}

/* ---- geometry ---- */

/* From a centre to the nearest and to the farthest of pixels 0 to n - 1. */
static void distances(double center, uint64_t n, double *nearest, double *farthest)
{
    double last = (double)(n - 1), at = rint(fmin(fmax(center, 0), last));
    *nearest = fabs(at - center);
    *farthest = fmax(fabs(center), fabs(last - center));
}

bool ring_extent(struct ring_extent *extent, double center_y, double center_x, uint64_t det_y,
                 uint64_t det_x)
{
    double near_y, near_x, far_y, far_x;
    if (!det_y || !det_x)
        return false;
    distances(center_y, det_y, &near_y, &far_y);
    distances(center_x, det_x, &near_x, &far_x);
    double first = floor(ring_radius(near_y, near_x)), last = floor(ring_radius(far_y, far_x));
    if (!(last < MAX_RADIUS) || last - first >= RINGS_MAX)
        return false;
    *extent =
        (struct ring_extent){.first = (uint64_t)first, .n_rings = (uint32_t)(last - first) + 1};
    return true;
}

bool ring_edge(const struct ring_extent *extent, double radius, uint32_t *edge)
{
    double from_first = radius - (double)extent->first;
    if (from_first <= 0)
        *edge = 0;
    else if (from_first >= extent->n_rings)
        *edge = extent->n_rings;
    else if (radius == floor(radius))
        *edge = (uint32_t)from_first;
    else
        return false;
    return true;
}

void ring_map(uint16_t *map, const struct ring_key *key, const struct ring_extent *extent,
              const uint8_t *flags, uint64_t det_y, uint64_t det_x)
{
    for (uint64_t y = 0, i = 0; y < det_y; y++) {
        for (uint64_t x = 0; x < det_x; x++, i++) {
            double r = ring_radius((double)y - key->center_y, (double)x - key->center_x);
            bool out = flags && flags[i];
            map[i] = (uint16_t)(out ? extent->n_rings : (uint64_t)floor(r) - extent->first);
        }
    }
}

/* ---- tables ---- */

static bool same_key(const struct ring_key *a, const struct ring_key *b)
{
    return a->owner == b->owner && a->center_y == b->center_y && a->center_x == b->center_x &&
           a->flagged == b->flagged;
}

struct ring_table *ring_tables_find(const struct ring_tables *tables, const struct ring_key *key)
{
    for (struct ring_table *table = tables->list; table; table = table->next) {
        if (table->ready && same_key(&table->key, key))
            return table;
    }
    return NULL;
}

static void drop(struct ring_tables *tables, struct ring_table *table)
{
    struct ring_table **at = &tables->list;
    assert(!table->users);
    while (*at != table)
        at = &(*at)->next;
    *at = table->next;
    tables->bytes -= table->bytes;
    metrics.ring_bytes = tables->bytes;
    munmap(table->rows, table->rows_bytes);
    while (table->n_spares)
        close(table->spares[--table->n_spares]);
    free(table);
}

static struct ring_table *least_recent(const struct ring_tables *tables)
{
    struct ring_table *oldest = NULL;
    for (struct ring_table *table = tables->list; table; table = table->next) {
        if (!table->users && (!oldest || table->last_used < oldest->last_used))
            oldest = table;
    }
    return oldest;
}

static int make_room(struct ring_tables *tables, uint64_t bytes, struct stow_error *err)
{
    uint64_t held = 0;
    for (const struct ring_table *table = tables->list; table; table = table->next)
        held += table->users ? table->bytes : 0;
    if (bytes > tables->max_bytes || held > tables->max_bytes - bytes)
        return error_set(err, STOW_LIMIT,
                         "a table of ring sums takes %llu bytes, and all may take %llu, %llu of "
                         "which are in use; start framestowd with a larger --ring-bytes",
                         (unsigned long long)bytes, (unsigned long long)tables->max_bytes,
                         (unsigned long long)held);
    while (tables->bytes > tables->max_bytes - bytes)
        drop(tables, least_recent(tables));
    return 0;
}

static int too_large(const struct ring_extent *extent, uint64_t n_frames, struct stow_error *err)
{
    return error_set(err, STOW_LIMIT, "%u ring sums of %llu frames are more than memory holds",
                     extent->n_rings, (unsigned long long)n_frames);
}

int ring_tables_add(struct ring_table **out, struct ring_tables *tables, const struct ring_key *key,
                    const struct ring_extent *extent, uint64_t n_frames, bool wide,
                    struct stow_error *err)
{
    uint64_t bytes;
    if (__builtin_mul_overflow(n_frames, extent->n_rings * (wide ? UINT64_C(8) : 4), &bytes))
        return too_large(extent, n_frames, err);
    bytes = bytes ? bytes : 1;
    size_t spare_bytes = n_frames <= SPARE_FRAMES ? n_frames * (sizeof(uint64_t) + 1) : 0;
    int rc = make_room(tables, bytes + RING_SPARES * spare_bytes, err);
    if (rc)
        return rc;
    struct ring_table *table = malloc(sizeof(*table));
    void *rows = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!table || rows == MAP_FAILED) {
        free(table);
        if (rows != MAP_FAILED)
            munmap(rows, bytes);
        return error_set(err, STOW_NOMEM, "no memory for %llu bytes of ring sums",
                         (unsigned long long)bytes);
    }
    madvise(rows, bytes, MADV_HUGEPAGE); /* fewer faults, where the system allows it */
    *table = (struct ring_table){.next = tables->list,
                                 .key = *key,
                                 .extent = *extent,
                                 .n_frames = n_frames,
                                 .wide = wide,
                                 .users = 1,
                                 .spare_bytes = spare_bytes,
                                 .rows = rows,
                                 .rows_bytes = bytes,
                                 .bytes = bytes + RING_SPARES * spare_bytes};
    tables->list = table;
    tables->bytes += table->bytes;
    metrics.ring_bytes = tables->bytes;
    *out = table;
    return 0;
}

void ring_table_use(struct ring_tables *tables, struct ring_table *table)
{
    table->users++;
    table->last_used = ++tables->n_uses;
}

void ring_table_give(struct ring_tables *tables, struct ring_table *table)
{
    table->last_used = ++tables->n_uses;
    if (--table->users == 0 && !table->ready)
        drop(tables, table);
}

void ring_tables_drop(struct ring_tables *tables, const void *owner)
{
    for (struct ring_table *table = tables->list, *next; table; table = next) {
        next = table->next;
        if (table->key.owner == owner)
            drop(tables, table);
    }
}

/* ---- reading ---- */

/* low NULL: zeros. */
#define READ_ROWS(name, sum_type)                                              \
    static void name(uint64_t *out, const sum_type *high, const sum_type *low, \
                     const uint64_t *ids, uint64_t n)                          \
    {                                                                          \
        for (uint64_t i = 0; i < n; i++) {                                     \
            uint64_t id = ids ? ids[i] : i;                                    \
            out[i] = low ? (sum_type)(high[id] - low[id]) : high[id];          \
        }                                                                      \
    }

READ_ROWS(read_narrow, uint32_t)
READ_ROWS(read_wide, uint64_t)

void ring_table_read(uint64_t *out, const struct ring_table *table, uint32_t inner, uint32_t outer,
                     const uint64_t *ids, uint64_t first, uint64_t n)
{
    const size_t from = ids ? 0 : first, high = (outer - 1) * table->n_frames + from;
    const size_t low = inner ? (inner - 1) * table->n_frames + from : 0;
    if (inner >= outer)
        memset(out, 0, n * sizeof(*out));
    else if (table->wide)
        read_wide(out, (const uint64_t *)table->rows + high,
                  inner ? (const uint64_t *)table->rows + low : NULL, ids, n);
    else
        read_narrow(out, (const uint32_t *)table->rows + high,
                    inner ? (const uint32_t *)table->rows + low : NULL, ids, n);
}
