/* SPDX-License-Identifier: Apache-2.0
 *
 * source_inside: what the parts of a source share: source.c, which speaks with the child, and source_table.c, which turns a table
 * into an index, whether the child has just sent it or it was kept. */
#ifndef STOW_SOURCE_INSIDE_H
#define STOW_SOURCE_INSIDE_H

#include "child.h"
#include "reader_msg.h"
#include "source.h"
#include "source_check.h"

/* What the loop knows of a file beside its public part. */
struct slot {
    bool given; /* source_give has answered */
    bool sent;
    int code;    /* 0, an errno or READER_NOT_REGULAR */
    char *asked; /* its name in the link */
};

struct source {
    struct child child;
    uv_poll_t poll;
    uv_timer_t timer;
    unsigned open_handles;
    int socket;
    bool running; /* the child is not reaped yet */
    bool ended;   /* on_done has been called, or source_close */
    bool closed;
    unsigned silent_ms;
    struct source_callbacks callbacks;
    struct source_index index;
    struct assembly assembly; /* what index.assembly points to */
    struct slot *slots;       /* [index.n_files] */
    size_t room;              /* of index.files and slots */
    size_t n_asked, n_given;  /* of the files after the master */
    size_t first_unsent;
    uint64_t n_heard;           /* messages */
    struct source_bytes *bytes; /* the table */
    struct source_file spare;   /* looked at in vain: by its asked name; path NULL: none was */
    struct reader_shape shape;  /* of it */
    struct reader_msg msg;      /* 8 KiB of room for one message */
};

extern unsigned n_sources;

/* One more file, empty. 0 or STOW_NOMEM. */
int source_add_file(struct source *source);

/* Index from shape and bytes. NULL, or what is wrong with them; *rc is then STOW_SOURCE or STOW_NOMEM. */
const char *source_use_table(struct source *source, const struct source_parts *parts, int *rc);

/* Descriptors too. */
void source_free_index(struct source *source);

#endif
