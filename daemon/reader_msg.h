/* SPDX-License-Identifier: Apache-2.0
 *
 * reader_msg: what framestowd (source.c) and its child framestow-reader (reader.c) say to each
 * other: plain structs over one SOCK_SEQPACKET pair, with at most one descriptor each by
 * SCM_RIGHTS. Both ends are one build, so there is no version. The child reads hostile files and
 * may say anything: the parent takes nothing on trust, least of all a length.
 *
 *     parent                              child
 *     START, fd of the master      ->
 *                                  <-     NEED file 1 .. n (at most READER_WINDOW unanswered)
 *     FILE, fd or errno            ->
 *                                  <-     ALIVE, WARNING
 *                                  <-     INDEX, memfd of frames, flags, assembly; or FAIL */
#ifndef STOW_READER_MSG_H
#define STOW_READER_MSG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define READER_NAME "framestow-reader"
#define READER_FD 3      /* the child's end */
#define READER_WINDOW 32 /* files asked for and not yet answered */
#define READER_PATH 4096 /* bytes of a path, with its NUL */
#define READER_MAX_FILES 100000u
#define READER_MAX_FRAMES (UINT64_C(1) << 23)
#define READER_NOT_REGULAR (-1) /* in code of FILE, where otherwise an errno is */

enum reader_msg_type {
    READER_START = 1, /* flags; text: the master's path, more: the dataset or "" */
    READER_FILE,      /* file, code 0 with a descriptor or an errno; text: its path */
    READER_NEED,      /* file (the next number); text: its name in the link */
    READER_ALIVE,     /* work goes on */
    READER_WARNING,   /* text */
    READER_FAIL,      /* code: enum stow_code; text */
    READER_INDEX      /* flags, shape, and the memfd */
};

#define READER_ALLOW_GAPS 1u /* in flags of START */
#define READER_SPARE_FILE 1u /* in flags of INDEX: the last file that was asked for is not used */

struct reader_shape {
    char dtype[8];
    uint32_t elem_bytes;
    uint32_t has_expected;
    uint64_t det_y, det_x, scan_y, scan_x, fill, n_frames, expected;
    uint32_t has_flags; /* behind the chunks: uint8 [det_y * det_x], not 0: a flagged pixel */
    /* Behind those, at a multiple of 8: struct assembly_dataset [n_datasets], assembly_box [n_boxes],
     * assembly_chunk [n_chunks], char [n_texts]. All 0 without. */
    uint32_t has_assembly;
    uint64_t n_datasets, n_boxes, n_chunks, n_texts;
};

struct reader_msg {
    uint32_t type;
    int32_t code;
    uint32_t file;
    uint32_t flags;
    struct reader_shape shape;
    uint32_t text_bytes; /* of text, with the NULs of its one or two strings */
    char text[2 * READER_PATH];
};

/* Put one or two strings into msg->text. False when they do not fit, and text is then empty. */
bool reader_msg_text(struct reader_msg *msg, const char *text, const char *more);

/* The second string; "" if there is none. */
const char *reader_msg_more(const struct reader_msg *msg);

/* Send, with fd unless it is -1; fd stays the caller's. 0 or an errno (EAGAIN on a non-blocking
 * socket). */
int reader_msg_send(int socket, const struct reader_msg *msg, int fd);

/* Receive one; *fd is its descriptor (the caller's, closed on exec) or -1. Strings end in NUL.
 * 0, an errno, or READER_MSG_END: the other end is gone; EBADMSG: not a message of ours. */
int reader_msg_receive(int socket, struct reader_msg *msg, int *fd);
#define READER_MSG_END (-1)

/* A text of the child for people: on one line, control characters as \xNN, cut to room; what is not
 * UTF-8 becomes '?'. */
void reader_msg_clean(char *to, size_t room, const char *text);

/* What is wrong with the shape, or NULL. *frame gets the bytes of a frame. */
const char *reader_msg_check_shape(const struct reader_shape *shape, uint64_t *frame);

#endif
