/* SPDX-License-Identifier: Apache-2.0
 *
 * images: what is added up over a resident: virtual images, mean pattern, centre of mass.
 *
 * image_start checks what is asked for and returns; `done` is called with a sealed memfd of results, or with the
 * reason why there are none. What is kept since the load (store.h) is read on threads of libuv's pool. All else goes
 * through the device in batches: a thread of the pool writes the jobs of a batch and takes the results of the one
 * before, a lane decodes what has to be decoded and adds up. Two batches at a time, on the two bulk lanes, so that
 * neither waits for the other; requests go side by side.
 *
 * The resident is held, and not evicted, until all that is under way has run out. image_abandon: nobody is to be
 * called any more; no new batch is begun. Loop thread only. */
#ifndef STOW_IMAGES_H
#define STOW_IMAGES_H

#include "arena.h"

#define IMAGES_MAX_IDS (UINT64_C(1) << 24)

struct images {
    uv_loop_t *loop;
    struct store *store;
    struct arenas arenas;
};

enum image_kind { IMAGE_SUM, IMAGE_MEAN, IMAGE_COM, IMAGE_RINGS /* nobody's but image_rings' */ };

/* Pixels at inner <= r < outer. */
struct image_annulus {
    double inner, outer, center_y, center_x;
};

struct image_ask {
    enum image_kind kind;
    bool flagged;          /* count flagged pixels too */
    bool keep_rings;       /* make what answers annuli about these centres from here on */
    uint64_t first, count; /* frames; count 0: to the end */
    uint64_t *ids;         /* or these, from malloc; NULL: the range */
    size_t n_ids;
    /* sums */
    int masks_fd; /* memfd, sealed against shrinking: [n_masks][det_y][det_x] weights; -1: none */
    uint32_t n_masks, n_annuli; /* together 1 to SUMS_MAX_MASKS */
    enum weight_kind weights;   /* of the masks; sums over floats use float64 ones */
    struct image_annulus annuli[SUMS_MAX_MASKS];
};

/* fd is closed after the callback. Its layout: SumReply, MeanReply, ComReply of framestow.proto. */
struct image_answer {
    int fd;
    uint64_t n_frames, n_flagged, n_bad;
    bool by_rings;          /* from a table of ring sums */
    const char *rings_note; /* keep_rings: why not; else empty */
};

struct image;
typedef void (*image_done)(void *data, const struct image_answer *answer,
                           const struct stow_error *err);

/* What its values are, 8 bytes each (of IMAGE_COM the totals): u8, i8 or f8. Integers are exact. */
const char *image_dtype(const struct image_ask *ask, const struct resident *resident);

void images_init(struct images *images, uv_loop_t *loop, struct store *store);
/* The daemon ends: keep no memory. */
void images_clear(struct images *images);

/* What was asked for before, of all frames, is answered at once: done is called before this returns, and *image left
 * alone. On success ask's ids and masks_fd are the image's. STOW_RANGE, STOW_STATE (not whole), STOW_INVALID, STOW_NOROOM,
 * STOW_NOMEM; the same and STOW_LIMIT (a sum could overflow) may come by `done`. */
int image_start(struct image **image, struct images *images, struct resident *resident,
                const char *name, const struct image_ask *ask, image_done done, void *data,
                struct stow_error *err);
void image_abandon(struct image *image);

#endif
