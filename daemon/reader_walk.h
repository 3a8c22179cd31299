/* SPDX-License-Identifier: Apache-2.0
 *
 * reader_walk: read a chunk index straight through: HDF5 1.10.8 gives the addresses of n chunks
 * in a time that grows as n squared. Every walk is bounded by the number of chunks and believes
 * nothing: it returns false at the first thing that is not the specification's ordinary case,
 * and HDF5 must be asked. Format: HDF5 File Format Specification III, "Version 1 B-trees",
 * "Fixed Array Index", "Extensible Array Index", "Implicit Index". Checksums are not verified; what is found is
 * compared with HDF5's own reading in reader_index. */
#ifndef STOW_READER_WALK_H
#define STOW_READER_WALK_H

#include "reader_data.h"
#include "reader_layout.h"

#include <stdbool.h>
#include <stdint.h>

struct reader_walk {
    const struct reader_bytes *bytes;
    const struct reader_data *data;
    /* A chunk by its number in the grid; false ends the walk: it cannot be right. */
    bool (*put)(void *to, uint64_t chunk, uint64_t address, uint64_t bytes, uint32_t mask);
    void *to;
};

bool reader_walk_btree(const struct reader_walk *walk, uint64_t address);
bool reader_walk_fixed(const struct reader_walk *walk, uint64_t address);
bool reader_walk_extensible(const struct reader_walk *walk, uint64_t address);

/* No index at all: unfiltered chunks that lie one behind the other. */
bool reader_walk_implicit(const struct reader_walk *walk, uint64_t address);

#endif
