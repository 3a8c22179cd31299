/* SPDX-License-Identifier: Apache-2.0
 *
 * kept_describe: what a .stow file is to say of a resident. It depends on the counts and their source alone. */
#ifndef STOW_KEPT_DESCRIBE_H
#define STOW_KEPT_DESCRIBE_H

#include "store.h"

struct kept_describing {
    uint64_t scan_y, scan_x; /* as the name has it; 0: the resident's */
    bool sha256;             /* leave room for the hash of each source file */
};

/* Into *kept, which borrows the resident's texts and sums; blocks of bslz4 chunks, and hashes but those that a .stow
 * file remembered, are not known yet. The resident is whole, and does not change meanwhile. Any thread. 0 or
 * STOW_NOMEM. */
int kept_describe(struct kept *kept, const struct resident *resident,
                  const struct kept_describing *how);

/* The files that a resident was read from, or that its .stow file was made from: the master first. The path is
 * the resident's. */
size_t kept_n_sources(const struct resident *resident);
struct kept_source kept_source_of(const struct resident *resident, size_t i);

/* 0, or STOW_SOURCE and what has changed of a file that is of this size and time now. */
int kept_same_source(const struct kept_source *was, const char *path, uint64_t size,
                     int64_t mtime_ns, struct stow_error *err);

/* Bytes of the source's files. */
uint64_t kept_source_bytes(const struct kept *kept);

#endif
