/* SPDX-License-Identifier: Apache-2.0
 *
 * reader_table: what the acquisition's frames are made of, as it becomes known: sets (datasets with their chunks), boxes that say
 * which pixels come from which set, and ranges of frames whose file is lost. At the end it becomes the table of
 * frames: directly, where each frame is one chunk of one set that can be served as it lies, or with an assembly. */
#ifndef STOW_READER_TABLE_H
#define STOW_READER_TABLE_H

#include "reader_data.h"
#include "reader_msg.h"
#include "source.h"

struct reader_set {
    struct reader_data data;
    size_t file;
    char *path;
    struct assembly_chunk *chunks; /* [data.n_chunks] */
    uint64_t n_written;
    size_t older; /* as last_set in reader_file: the one before it */
};

/* Frames frame + i * frame_step whose file cannot be used. */
struct reader_lost {
    uint64_t frame, frame_step, n_frames;
    size_t file;
};

struct reader_table {
    struct reader_set *sets;
    size_t n_sets, sets_room;
    struct assembly_box *boxes;
    size_t n_boxes, boxes_room;
    uint64_t n_parts; /* frames of all boxes */
    struct reader_lost *lost;
    size_t n_lost, lost_room;
    bool is_virtual; /* pixels may be mapped nowhere */
    uint64_t fill;   /* of those; what it is otherwise, reader_table_finish decides */
    /* By reader_table_finish: */
    struct source_chunk *frames; /* [n_frames] */
    uint64_t n_frames;
    bool direct;         /* frames is all there is to it */
    uint64_t n_unmapped; /* frames that no box touches */
    uint64_t n_partly;   /* some of whose pixels were never written or mapped */
};

/* The set's path and chunks are the table's from here on, also on failure. */
int reader_table_add_set(struct reader_table *table, const struct reader_set *set,
                         struct stow_error *err);
int reader_table_add_box(struct reader_table *table, const struct assembly_box *box,
                         struct stow_error *err);
int reader_table_add_lost(struct reader_table *table, const struct reader_lost *lost,
                          struct stow_error *err);

/* Make the table of frames for this shape, of which n_frames, det_y, det_x and elem_bytes are known, and set the rest of it
 * that tells of fill and assembly. */
int reader_table_finish(struct reader_table *table, struct reader_shape *shape,
                        struct stow_error *err);

/* Write it as source.c wants it: frames, flags (NULL: none), and the parts of an assembly. 0 or an errno. */
int reader_table_write(const struct reader_table *table, const struct reader_shape *shape,
                       const uint8_t *flags, int fd);

void reader_table_fini(struct reader_table *table);

#endif
