/* SPDX-License-Identifier: Apache-2.0
 *
 * image_batch: frames of a request that go through a lane together: their jobs, and where their results go.
 *
 * Frames are taken in the order of their numbers, whatever order they were asked for in, so that those of one segment
 * stand together. A batch ends where one of its rooms does: for jobs, for decoded frames, for weights in the order of
 * segments. Frames without counts get their answer at once and no job.
 * batch_take and batch_collect run on threads of the pool, those of one batch never at the same time. */
#ifndef STOW_IMAGE_BATCH_H
#define STOW_IMAGE_BATCH_H

#include "chain.h"
#include "images.h"

#include <stdatomic.h>

/* Addresses of one thing: on the device, and where this process sees it or a pinned copy of it. */
struct image_part {
    uint64_t dev;
    void *host;
};

/* How much fits into a batch, and how large its parts are. */
struct batch_sizes {
    uint32_t jobs, first_jobs; /* the most, and of the first batch, at most as many */
    uint32_t decodes, segments;
    uint64_t pixel_stride, weighed_stride;
};

/* A frame that was asked for, and where its result goes. */
struct image_pick {
    uint64_t id, at;
};

/* What the batches of a request have in common. */
struct image_work {
    struct image_ask ask;
    enum weight_kind weights; /* that sums are made with */
    const struct resident *resident;
    uint64_t n;               /* frames that were asked for */
    uint64_t first;           /* of a range */
    struct image_pick *picks; /* [n] of a list, by number; NULL: the range */
    uint32_t n_sums;
    void *results;            /* of all: the memfd */
    struct ring_table *table; /* IMAGE_RINGS: the one that is filled */
    struct batch_sizes sizes;
    bool is_gpu;
    bool all_counts;    /* every frame of the resident has form counts */
    uv_mutex_t lock;    /* of next and last_jobs */
    uint64_t next;      /* frames before it are taken */
    uint32_t last_jobs; /* that the batch before could have */
    atomic_bool stop;
};

struct image_batch {
    struct image_work *all;
    struct image_part weights, weigh_jobs, jobs, out, status, weighed, pixels, flags, map;
    struct decode_job *decodes; /* [sizes.decodes] */
    int32_t *decoded;           /* of these */
    uint32_t *decode_of;        /* their jobs */
    uint64_t *at;               /* [sizes.jobs] where a job's results go */
    uint32_t n_jobs, n_decodes, n_segments;
    uint64_t n_bad; /* of all batches so far */
    bool any_sums;  /* IMAGE_MEAN: out holds sums that nobody has taken */
};

/* Fill it with the next frames; n_jobs 0: there are none any more. */
void batch_take(struct image_batch *batch);

/* Its results to their places. STOW_CORRUPT: a sum of pixels met a frame that does not decode. */
int batch_collect(struct image_batch *batch, struct stow_error *err);

#define IMAGE_LIMIT_TEXT \
    "counts are so large that moments of a frame could need more than 63 bits: no centre of mass"

/* IMAGE_MEAN: 0, or STOW_LIMIT: a pixel's sum over the frames could need more than 64 bits. */
int mean_check(const struct image_work *all, struct stow_error *err);

/* IMAGE_COM of frames whose statistics are kept: those from begin up to end of the request. Returns how many have no
 * counts; *limit: moments of one may have overflowed. */
uint64_t com_from_kept(const struct image_work *all, uint64_t begin, uint64_t end, bool *limit);

#endif
