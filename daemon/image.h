/* SPDX-License-Identifier: Apache-2.0
 *
 * image: one request of images.h on its way. For images.c (beginning and end), image_slots.c (batches on lanes) and
 * image_memory.c (what they lie in) alone. */
#ifndef STOW_IMAGE_H
#define STOW_IMAGE_H

#include "image_batch.h"
#include "ring_tables.h"

#define IMAGE_MAX_SLOTS 6u /* while one is on the GPU others are prepared, or their results taken */
#define IMAGE_MAX_RANGES 8u

/* A batch, and what it goes through: a thread of the pool, then a lane, and again. */
struct image_slot {
    struct image *image;
    struct image_batch batch;
    struct chain chain;
    uv_work_t work;
    struct stow_error err; /* of the pool's work */
    bool waiting;          /* a batch is taken and waits for the weights */
    bool begun;            /* the lane has what all batches of this slot have in common */
    bool collecting;       /* the batch has been on the lane */
};

/* Kept statistics of some frames. */
struct image_range {
    struct image *image;
    uv_work_t work;
    uint64_t begin, end, n_bad;
    bool limit;
    struct stow_error err;
};

struct image {
    struct images *images;
    struct resident *resident;
    struct image_work all;
    image_done done;
    void *data;
    bool abandoned, kept; /* kept: the answer is read from what was added up before */
    bool by_rings;        /* from tables of ring sums, that is */
    bool preparing;       /* weights are being made */
    struct ring_table *tables[SUMS_MAX_MASKS]; /* of its annuli, held */
    struct image *making;                      /* what it waits for: a table is made */
    struct stow_error no_rings;                /* why it cannot be from them */
    struct stow_error err;                     /* the first failure */
    uint64_t n_bad;
    int fd;
    size_t bytes;  /* of results */
    void *weights; /* [n_sums][n_elems]; pinned, or the heap's where the device is the host */
    struct arena *arena;
    void (*ready)(void *image); /* the arena is there, or is not to be had */
    struct image_slot slots[IMAGE_MAX_SLOTS];
    struct image_range ranges[IMAGE_MAX_RANGES];
    unsigned n_slots, n_running; /* slots or ranges, and preparing */
    uint64_t begun_ns, prepared_ns, lane_ns;
    unsigned n_batches;
    uv_work_t work;
    struct stow_error work_err;
};

static inline uint64_t image_weights_bytes(const struct image *image)
{
    return image->resident->shape.n_elems * image->all.n_sums * weight_bytes(image->all.weights);
}

/* Over frames that are there. NULL: no memory. */
struct image *image_new(struct images *images, struct resident *resident,
                        const struct image_ask *ask, image_done done, void *data);
void image_free(struct image *image);
/* Have memory, then go through the lanes. */
int image_take_memory(struct image *image, struct stow_error *err);
/* What it waited for before it could begin is over. */
void image_go_on(struct image *image);

/* The first failure counts; nothing new is begun. */
void image_fail(struct image *image, const struct stow_error *err);
/* A slot or a range is over; after the last the image is. */
void image_part_over(struct image *image);

/* Have memory, and slots and lists laid out in it; ready is called, at once or later, then arena->err tells. */
int image_memory_take(struct image *image, void (*ready)(void *image), struct stow_error *err);
void image_memory_free(struct image *image); /* a second call does nothing */

/* Take all frames through the lanes. Batches are taken, but not given to a lane, while the image is preparing; go on with these
 * once it is not. */
void image_slots_start(struct image *image);
void image_slots_go_on(struct image *image);

#endif
