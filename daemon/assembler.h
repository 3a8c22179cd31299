/* SPDX-License-Identifier: Apache-2.0
 *
 * assembler: frames put together from the chunks of a source's assembly (assembly.h), where a frame is not simply one
 * chunk that the device decodes.
 *
 * For each box that has pixels of the wanted frames the chunks under it are read, their filters undone, their bytes
 * turned around if they are big-endian, and their rows copied. A chunk that is exactly consecutive frames is decoded
 * straight into them; one whose frames are all wanted at once is the thread's own, up to 64 MiB; any other goes through a
 * cache that all threads share (chunk_cache.h), so that it is decoded once a load as long as the budget holds what is in use.
 *
 * A chunk that cannot be had is a fault of each frame that it has pixels of, in words: what is wrong, which chunk of which
 * dataset, where in which file. Other frames are not touched by that.
 *
 * It belongs to a source and goes with it; threads that read must have come back by then. The index was checked
 * (source.c): boxes lie in the acquisition and in their dataset, chunks in their files. */
#ifndef STOW_ASSEMBLER_H
#define STOW_ASSEMBLER_H

#include "source.h"

struct assembler;

/* A frame that is not wanted, among the offsets of a read. */
#define ASSEMBLER_SKIP UINT32_MAX

struct assembler_read {
    uint64_t first;
    uint32_t n_frames;
    uint8_t *dst;
    const uint32_t *at; /* [n_frames] where each goes, from dst */
    void *data;
    /* May be called more than once for a frame. */
    void (*on_fault)(void *data, uint32_t frame, const struct stow_error *why);
};

/* index has an assembly and outlives it. budget_bytes: of decoded chunks; 0: an eighth of the memory that there is for this
 * process, and up to half of it if the layout has more chunks than that in use at once. NULL without memory. */
struct assembler *assembler_new(const struct source_index *index, uint64_t budget_bytes);
void assembler_free(struct assembler *assembler);

/* Pixels of frames first .. first + n_frames - 1, in native byte order. 0, whatever faults there were; or the load cannot
 * go on: STOW_NOMEM, or STOW_SOURCE when a file is not the one that was indexed. Any thread. */
int assembler_read(struct assembler *assembler, const struct assembler_read *read,
                   struct stow_error *err);

/* Whether chunks are likely to be decoded more than once, since more are in use at once than the budget holds: then a
 * sentence for the user. */
bool assembler_is_slow(const struct assembler *assembler, char *text, size_t room);

/* Bytes of all chunks in the files. */
uint64_t assembly_bytes(const struct assembly *assembly);

#endif
