/* SPDX-License-Identifier: Apache-2.0
 *
 * source: the index of an acquisition in HDF5 files: which bytes of which file are which frame.
 *
 * A source owns a child process (framestow-reader), one for each load, without GPU, network or a
 * way to open files, and the descriptors of the files it was given. HDF5 runs only there: its
 * crash, hang or memory is this load's error and nobody else's.
 *
 * The way: source_open with the master's descriptor; on_need asks for files that the master
 * names, which source_give answers; at last on_done, once. After a success the index and the
 * descriptors stay until source_close. What the child says is checked before it is believed:
 * every chunk lies in its file.
 *
 * To cancel is to close: the child is killed. All on the loop thread; nothing here waits. */
#ifndef STOW_SOURCE_H
#define STOW_SOURCE_H

#include "assembly.h"

#include "error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct source;
struct index_entry;
struct reader_shape;
struct stat;

/* Why a frame cannot be had. To be looked at first: with a fault its bytes are not to be read. */
enum source_fault {
    SOURCE_FAULT_NONE,
    /* Its file is missing or cannot be used (a warning says why): file is SOURCE_NO_FILE, offset the index in files of
     * that file, to name it. */
    SOURCE_FAULT_NO_FILE,
    /* offset + bytes is past the end of the file: a truncated copy. */
    SOURCE_FAULT_PAST_END,
    /* A raw chunk that has not the bytes of a frame, or a stored chunk of 0 bytes. */
    SOURCE_FAULT_BYTES
};

/* Where a frame's bytes are. In an acquisition that has to be assembled: bytes is that of a frame, raw is 1, offset and file
 * are of its first chunk and only for messages. */
struct source_chunk {
    uint64_t offset; /* in the file, from byte 0 (user blocks and base addresses are added) */
    uint32_t bytes;  /* 0 without a fault: never written, the frame is the fill value */
    uint32_t file;   /* index into files; SOURCE_NO_FILE: its file is missing, the frame is bad */
    uint32_t raw;    /* 1: the pixels as they are (no filter, or skipped by the chunk's mask) */
    uint32_t fault;  /* enum source_fault */
};
#define SOURCE_NO_FILE UINT32_MAX

struct source_file {
    char *path; /* the real path, as the client named it */
    int fd;     /* for pread; the source's. -1: it could not be opened: */
    int errno_value;
    uint64_t dev, ino, size;
    int64_t mtime_ns;
};

struct source_index {
    char dtype[8]; /* u1, u2, u4, u8, i1, i2, i4, i8, f4, f8: as served, in native byte order */
    uint32_t elem_bytes;
    uint64_t det_y, det_x;
    uint64_t scan_y, scan_x; /* 0: the files do not shape the scan */
    uint64_t fill;
    uint64_t n_frames;
    bool has_expected;
    uint64_t expected;
    const struct source_chunk *chunks; /* [n_frames] */
    const struct assembly
        *assembly; /* how frames are put together; NULL: each is one chunk, bslz4 or raw */
    struct assembler *assembler; /* who does it, for span.c; with an assembly only */
    const uint8_t
        *flags; /* [det_y * det_x] not 0: flagged by the file's pixel_mask; NULL: none is */
    uint64_t n_flagged;
    struct source_file *files; /* [n_files], the master first */
    size_t n_files;
    char **warnings;
    size_t n_warnings;
    uint64_t chunk_bytes; /* the sum of chunks[].bytes */
};

struct source_options {
    const char *dataset; /* NULL or "": to be found */
    const char *path;    /* the master's, for messages */
    bool allow_gaps;
    const char *reader; /* path of framestow-reader; NULL: beside this program, or in libexec */
    unsigned silent_ms; /* give up when the child says nothing for so long; 0: 60,000 */
};

struct source_callbacks {
    void *data;
    /* The master names this file (relative to the real master's folder, or absolute). Answer by
     * source_give, at once or later; path is valid until then. Some tens may be unanswered at a
     * time. */
    void (*on_need)(void *data, uint32_t file, const char *path);
    /* The index is there (status 0, source_index), or err says what is wrong, where, and what to
     * do. */
    void (*on_done)(void *data, int status, const struct stow_error *err);
};

/* master_fd is the source's from here on, also on failure. */
int source_open(struct source **source, uv_loop_t *loop, int master_fd,
                const struct source_options *options, const struct source_callbacks *callbacks,
                struct stow_error *err);

/* The answer to on_need: a descriptor (the source's from here on) with its real path, or fd -1
 * and errno. */
void source_give(struct source *source, uint32_t file, int fd, const char *path, int errno_value);

/* Valid after on_done with status 0, until source_close. */
const struct source_index *source_index(const struct source *source);

/* ---- for recall.c alone ---- */

/* The table that the reader sent, or that was kept of it; whoever holds it refers to it. Loop thread only. */
struct source_bytes {
    const void *at;
    size_t bytes;
    void *memory; /* that it lies in */
    size_t memory_bytes;
    unsigned refs;
};
struct source_bytes *source_share_bytes(const struct source *source, struct reader_shape *shape);
void source_bytes_unref(struct source_bytes *bytes);

/* The name by which the reader asked for a file. */
const char *source_asked_name(const struct source *source, size_t file);

/* A file that was looked for or into in vain, path as it was asked for; NULL: none was. fd means whether it was there, nothing
 * else. */
const struct source_file *source_spare(const struct source *source);

/* What tells whether it is still the same file. */
void source_identify(struct source_file *file, const struct stat *st);

/* A source without a child, from what the reader said once and files that are the same as then, their descriptors too; the
 * array itself is the caller's. The entry's memory goes over to it. What was kept is checked like what the reader says: another
 * code than 0, and nothing was taken. */
int source_from_entry(struct source **source, struct index_entry *entry,
                      const struct source_file *files);

/* Kill the child if it runs, close the descriptors, free the index. No callback runs after this.
 * The struct itself goes when libuv has let go of its handles. */
void source_close(struct source *source);

/* Sources that are not gone: open, or closed and their killed child not reaped yet. Zero before the loop ends. */
unsigned source_count(void);

/* Whether framestow-reader can be started: its path into *path (512 bytes). For framestowd's
 * start. */
int source_find_reader(char *path, size_t room, struct stow_error *err);

#endif
