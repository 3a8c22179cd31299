/* SPDX-License-Identifier: Apache-2.0
 *
 * reader_select: the regular selections of a virtual dataset's mappings, and how two of them, element by element in C order,
 * become boxes. */
#ifndef STOW_READER_SELECT_H
#define STOW_READER_SELECT_H

#include "reader_table.h"

#include <hdf5.h>

#define READER_ENDLESS UINT64_MAX

/* start, start + 1, ... of each block, `count` blocks `stride` apart, along each dimension. */
struct reader_select {
    unsigned rank;
    bool all;                   /* of a dataset that is known later */
    int endless;                /* the dimension that has no end, or -1 */
    uint64_t dims[READER_RANK]; /* of the dataset it selects from */
    uint64_t start[READER_RANK], stride[READER_RANK], block[READER_RANK];
    uint64_t n[READER_RANK]; /* selected along each: count * block; READER_ENDLESS */
};

/* What is wrong with the selection of a dataspace, in words, or NULL. */
const char *reader_select_read(hid_t space, struct reader_select *select);

/* All of a dataset, where the selection says no more than that. */
void reader_select_set_dims(struct reader_select *select, const hsize_t *dims, unsigned rank);

/* The number of elements below an extent along the endless dimension. */
uint64_t reader_select_count(const struct reader_select *select, uint64_t extent);

/* The extent along a dimension that holds the first n selected elements. */
uint64_t reader_select_extent(const struct reader_select *select, unsigned dim, uint64_t n);

/* One mapping, both sides of known size. */
struct reader_mapping {
    struct reader_select to, from;
    bool lost;
    size_t file; /* of the source */
    size_t set;  /* unless it is lost */
};

/* Boxes of it into the table, and lost frames where there is no source or that is too short. What is wrong with the mapping, in
 * words, or NULL; *status is not 0 where the table cannot take it. */
const char *reader_select_map(const struct reader_mapping *mapping, struct reader_table *table,
                              int *status, struct stow_error *err);

#endif
