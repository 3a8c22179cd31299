/* SPDX-License-Identifier: Apache-2.0
 *
 * ring_tables: for residents and centres, the counts of each frame within each whole radius. Any annulus of whole radii
 * about such a centre is then one row of a table minus another: bit for bit what adding up its pixels gives, since ring
 * k is where floor(r) is k, and that is below a whole number exactly where r is.
 *
 * Tables lie in the daemon's own memory, of which all together take at most max_bytes; the one that was not used for
 * longest goes when another wants its room, and all of a resident go with its contents. One that somebody uses (users)
 * stays. A table also has the file that its next answer goes to: making one anew takes longer than filling it. Who makes a table fills its rows from threads of the pool, then sets ready; it is found by nobody before.
 * Loop thread only, but for the rows. */
#ifndef STOW_RING_TABLES_H
#define STOW_RING_TABLES_H

#include "error.h"
#include "rings.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>

struct ring_key {
    const void *owner; /* the resident */
    double center_y, center_x;
    bool flagged; /* flagged pixels are counted too */
};

/* The whole radii that matter: from the one below every pixel, n_rings in number. */
struct ring_extent {
    uint64_t first;
    uint32_t n_rings;
};

#define RING_SPARES 2u

struct ring_table {
    struct ring_table *next;
    struct ring_key key;
    struct ring_extent extent;
    uint64_t n_frames, last_used;
    bool wide, ready;
    unsigned users;
    /* Files for the next answers, their pages there already: making one takes longer than an answer. */
    int spares[RING_SPARES]; /* [n_spares] */
    unsigned n_spares, n_refilling;
    size_t
        spare_bytes; /* of such a file: one sum of all frames, and their codes; 0: none is kept */
    void *
        rows; /* uint32, or uint64 if wide, [n_rings][n_frames]: row k has the counts at r < first + k + 1 */
    size_t rows_bytes, bytes; /* bytes: with the spare files */
};

struct ring_tables {
    struct ring_table *list;
    uint64_t bytes, max_bytes, n_uses;
};

/* max_bytes UINT64_MAX: a sixteenth of this machine's memory. */
void ring_tables_init(struct ring_tables *tables, uint64_t max_bytes);

/* r as numpy's sqrt(dy**2 + dx**2) has it, to the last bit. */
static inline double ring_radius(double dy, double dx)
{
    return sqrt(dy * dy + dx * dx);
}

/* Of a detector. False: there are more rings than RINGS_MAX, or no pixels. */
bool ring_extent(struct ring_extent *extent, double center_y, double center_x, uint64_t det_y,
                 uint64_t det_x);
/* How many rings lie within a radius; false where it cuts through one. */
bool ring_edge(const struct ring_extent *extent, double radius, uint32_t *edge);
/* Into map [det_y][det_x], as WORK_RINGS wants it; pixels with flags are in no ring. flags NULL: none. */
void ring_map(uint16_t *map, const struct ring_key *key, const struct ring_extent *extent,
              const uint8_t *flags, uint64_t det_y, uint64_t det_x);

/* The ready one of this key, or NULL. */
struct ring_table *ring_tables_find(const struct ring_tables *tables, const struct ring_key *key);
/* A new one, not ready, used by the caller; its rows are zeros. STOW_LIMIT: it does not fit, whatever goes. STOW_NOMEM. */
int ring_tables_add(struct ring_table **table, struct ring_tables *tables,
                    const struct ring_key *key, const struct ring_extent *extent, uint64_t n_frames,
                    bool wide, struct stow_error *err);
void ring_table_use(struct ring_tables *tables, struct ring_table *table);
/* Used no more. One that never became ready goes. */
void ring_table_give(struct ring_tables *tables, struct ring_table *table);
/* All of an owner, which nobody uses. */
void ring_tables_drop(struct ring_tables *tables, const void *owner);

/* Counts of frames in the rings from inner up to outer, to out [n]: of ids [n], or of the n frames from first. */
void ring_table_read(uint64_t *out, const struct ring_table *table, uint32_t inner, uint32_t outer,
                     const uint64_t *ids, uint64_t first, uint64_t n);

#endif
