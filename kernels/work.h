/* SPDX-License-Identifier: Apache-2.0
 *
 * work: what a lane does besides copying and decoding, told in plain numbers. All addresses are device addresses
 * (on the host device pointers' values); arrays of jobs lie in device memory too, uploaded by who asks on the
 * same lane before. Results are downloaded the same way after.
 *
 * Work is cut into n items that touch different outputs: the host shares them among its threads, a GPU among its
 * warps or thread blocks. */
#ifndef STOW_WORK_H
#define STOW_WORK_H

#include "counts.h"
#include "rings.h"
#include "sums.h"
#include "view.h"

enum work_kind {
    WORK_STATS,   /* item: a frame */
    WORK_PIXELS,  /* item: WORK_PIXELS_BLOCK pixels */
    WORK_ENCODE,  /* item: a frame */
    WORK_PLACE,   /* item: a frame, or any run of bytes */
    WORK_WEIGH,   /* item: a segment */
    WORK_SUM,     /* item: a frame */
    WORK_COMPARE, /* item: a frame */
    WORK_RINGS,   /* item: a frame */
    WORK_VIEW,    /* item: a frame */
};

#define WORK_PIXELS_BLOCK 1024u

/* Copy bytes, or put an encoded frame together.
 *   streams 0  bytes from src to dst, any alignment
 *   else       src: the room that counts_encode wrote; encoded: struct counts_stream [streams]; dst 16-byte
 *              aligned; bytes: counts_frame_bytes of them */
struct place_job {
    uint64_t src, dst, encoded;
    uint32_t bytes, streams;
};

/* Weigh for one segment: see sums_weigh. */
struct weigh_job {
    uint64_t segment, weighed;
};

struct work {
    enum work_kind kind;
    uint32_t n; /* items */
    struct frame_shape shape;
    union {
        struct {
            uint64_t frames; /* uint64 [n] addresses of decoded frames, each 16-byte aligned */
            uint64_t flags;  /* uint8 [n_elems], or 0 */
            uint64_t stats;  /* struct frame_stats [n] */
            uint64_t det_x;
        } stats;
        struct {
            uint64_t
                frames; /* uint64 [n_frames] addresses of decoded frames, each 16-byte aligned */
            uint64_t n_frames;
            uint64_t sums; /* uint64 [n_elems], added to */
        } pixels;
        struct {
            uint64_t frames;  /* uint64 [n] addresses of decoded frames, each 16-byte aligned */
            uint64_t segment; /* struct counts_segment and its tables */
            uint64_t encoder; /* struct counts_encoder */
            uint64_t rooms;   /* room of item i at rooms + i * room_stride */
            uint64_t room_stride;
            uint64_t streams;   /* struct counts_stream [n][n_streams] */
            uint32_t n_streams; /* as the segment has */
        } encode;
        struct {
            uint64_t jobs; /* struct place_job [n] */
        } place;
        struct {
            uint64_t jobs;    /* struct weigh_job [n] */
            uint64_t weights; /* [n_masks][n_elems] */
            uint32_t n_masks;
            enum weight_kind weights_kind;
            uint32_t n_granules; /* as every segment of this shape has */
        } weigh;
        struct {
            uint64_t jobs;    /* struct sum_job [n]; those of one segment best stand together */
            uint64_t weights; /* [n_masks][n_elems], raster order */
            uint64_t out;     /* int64 or double [n_masks][out_stride]: item i at [m][i] */
            uint64_t out_stride;
            uint64_t status; /* int32 [n]: 0, STOW_CORRUPT or STOW_NOMEM; all are written */
            uint32_t n_masks;
            enum weight_kind weights_kind;
        } sum;
        struct {
            uint64_t left, right; /* uint64 [n] each: addresses of decoded frames */
            uint64_t differ;      /* uint64 [n]: how many pixels of each differ */
        } compare;
        struct {
            uint64_t frames; /* uint64 [n] addresses of decoded frames, each 16-byte aligned */
            uint64_t map;    /* uint16 [n_elems], 8-byte aligned: as rings_frame has it */
            uint64_t out; /* uint32, or uint64 if wide, [n_rings][out_stride]: item i at [k][i] */
            uint64_t out_stride;
            uint32_t n_rings; /* at most RINGS_MAX */
            bool wide;
        } rings;
        struct view_work view; /* addressed by strides, so that no jobs have to be uploaded */
    };
};

/* Do items begin .. end - 1 on the CPU. Any thread. */
void work_run(const struct work *work, uint64_t begin, uint64_t end);

#endif
