/* SPDX-License-Identifier: Apache-2.0
 *
 * source_read: bytes of a source's file, by a thread of the pool. */
#ifndef STOW_SOURCE_READ_H
#define STOW_SOURCE_READ_H

#include "source.h"

/* All of the bytes at `offset`; 0, STOW_CORRUPT where the file ends before, or the system's refusal. Any thread. */
int source_read(const struct source_file *file, uint8_t *to, size_t bytes, uint64_t offset,
                struct stow_error *err);

/* 0 while the file is the one that was indexed; otherwise the addresses of its chunks mean nothing: STOW_SOURCE, or
 * the system's refusal. To be asked after what was read. Any thread. */
int source_unchanged(const struct source_file *file, struct stow_error *err);

#endif
