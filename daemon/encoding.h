/* SPDX-License-Identifier: Apache-2.0
 *
 * encoding: what the encoders of a load have in common: the source, how it is cut, the room that the resident
 * takes, and how much of everything an encoder gets. Loop thread only, but for what says otherwise. */
#ifndef STOW_ENCODING_H
#define STOW_ENCODING_H

#include "plan.h"
#include "room.h"
#include "scratch.h"

#include <stdatomic.h>

/* For tests and measurements; 0: as it is best. What is loaded does not depend on them. */
struct encoding_limits {
    uint64_t batch_bytes; /* of decoded pixels at once */
    unsigned n_encoders;
};

#define ENCODING_MAX_ENCODERS 16u

enum encode_stage { STAGE_READ, STAGE_DECODE, STAGE_TRAIN, STAGE_ENCODE, STAGE_PLACE, N_STAGES };

/* What the encoders of a load have in common. */
struct encoding {
    uv_loop_t *loop;
    struct resident *resident;
    const struct source_index *index;
    struct plan plan;
    struct room room;
    struct keep keep;           /* streams at least 1 */
    struct scratch_sizes sizes; /* of each encoder */
    unsigned n_encoders;
    size_t turn;           /* the segment of the plan that takes room now */
    uint64_t later_bytes;  /* of chunks of segments that have taken none */
    uint64_t source, kept; /* bytes of chunks whose frames were given room, and of these frames */
    uv_mutex_t sums;       /* of the resident's pixel sums, and the next three */
    size_t next_sums;      /* the segment of the plan whose pixel sums they wait for */
    struct segment_sums {
        size_t segment;
        const uint64_t *pixels; /* its encoder's */
    } early[ENCODING_MAX_ENCODERS];
    unsigned n_early;            /* sums of segments after that one */
    uint64_t stage_ns[N_STAGES]; /* added up over segments, which overlap */
    uint64_t bytes_done;
    atomic_bool stop; /* the load has failed */
    bool has_sums_mutex;
    void *data;
    void (*changed)(void *data);  /* something is finished: see what can go on */
    void (*progress)(void *data); /* more frames are servable */
    void (*failed)(void *data, const struct stow_error *err);
};

/* Describe the resident, cut the source, and set room aside for the worst case. loop, resident, index, keep and
 * the callbacks are set. STOW_NOROOM, STOW_NOMEM, STOW_UNSUPPORTED: a form that is asked for cannot hold the frames.
 * fini is safe either way. */
int encoding_init(struct encoding *encoding, const struct encoding_limits *limits,
                  struct stow_error *err);
void encoding_fini(struct encoding *encoding);

/* At the end: frames that were never written count as what they are served as. 0 or STOW_NOMEM. A pool thread,
 * while nobody else has to do with the resident's sums. */
int encoding_add_fill(struct encoding *encoding);

#endif
