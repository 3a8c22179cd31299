/* SPDX-License-Identifier: Apache-2.0
 *
 * store: the acquisitions that lie on the devices, and the names people gave them.
 *
 * A resident is a table of frames over a few large allocations (pieces) of one place. It lives while
 * somebody holds a reference: its names, its streams, its load. A name belongs to a uid; several names
 * may mean one resident. When room is wanted, the resident that was least recently used and that nobody
 * streams or loads is evicted: its memory goes, its names stay and say so. Memory is freed by the
 * device's service thread; store_is_idle tells when that is over.
 * Loop thread only. */
#ifndef STOW_STORE_H
#define STOW_STORE_H

#include "kept.h"
#include "place.h"
#include "ring_tables.h"
#include "scan.h"

#include <sys/types.h>

enum residence {
    RESIDENT_LOADING,
    RESIDENT_GROWING,
    RESIDENT_COMPLETE,
    RESIDENT_DAMAGED,
    RESIDENT_EVICTED
};

#define FRAME_PENDING 0xff /* form of a frame that is not loaded yet */

/* How an acquisition is to be kept: what is smallest, or as its loader says. */
enum keep_form { KEEP_AUTO, KEEP_COUNTS, KEEP_BSLZ4, KEEP_RAW };
struct keep {
    enum keep_form form;
    unsigned streams; /* of a frame of form counts; 0: any */
};

/* One stored frame. */
struct frame {
    uint64_t addr;   /* of the stored bytes */
    uint64_t blocks; /* of its block table, bslz4; of its segment's table, counts */
    uint32_t bytes;
    uint8_t form; /* enum stow_form, or FRAME_PENDING */
    uint8_t code; /* of a bad frame: enum stow_code without its sign */
    uint16_t reserved;
};

/* Consecutive frames with one model. */
struct segment {
    uint64_t first, count;
    uint64_t table; /* address of its struct counts_segment; 0: no frame of it has form counts */
    uint32_t table_bytes;
    uint8_t *packed; /* [packed_bytes] its model, as counts_model_pack has it */
    size_t packed_bytes;
};

/* What was added up while the counts were in hand. Frames without counts (bad ones) have zeros and are in no sum;
 * those never written count as what they are served as. */
struct kept_sums {
    uint64_t *pixels; /* [n_elems] over all frames that have counts; NULL: nothing is kept */
    struct frame_stats *stats; /* [n_frames] */
    uint8_t *flags;            /* [n_elems] not 0: flagged by the file; NULL: none */
    uint64_t n_flagged;
    uint64_t n_frames; /* that are in the sums */
};

/* Why frames are bad. */
struct fault {
    uint64_t first, count;
    char *text;
};

/* A file that a resident was read from, and how to tell that it is still the same. */
struct origin {
    char *path;
    uint64_t dev, ino, size;
    int64_t mtime_ns;
};

struct timing {
    const char *stage;
    double ms;
};

/* One allocation of a resident. */
struct piece {
    struct piece *next;
    struct device_memory memory;
    struct device_request request;
    struct resident *resident; /* while it lives */
    struct store *store;
    struct place *place;
    uint64_t charged;
};

/* A thread of the pool that reads frame table and sums. When the resident's contents go these become the reader's. */
struct table_reader {
    struct resident *resident; /* NULL: they have gone */
    struct frame *frames;
    struct kept_sums sums;
};

/* Who wants to know that more frames can be served, or that none will come. */
struct watch {
    struct watch *next;
    void (*changed)(struct watch *watch);
};

struct resident {
    struct resident *next;
    struct store *store;
    struct place *place;
    uint64_t id;
    enum residence state;
    unsigned refs, n_streams;
    struct stow_error failure; /* of a load that ended early; code 0 if none */
    uint64_t last_used_ns;
    uid_t owner;
    /* what it is */
    char dtype[8];
    uint64_t det_y, det_x, scan_y, scan_x;
    struct frame_shape shape;
    uint64_t n_frames, n_loaded;
    bool has_expected, has_gaps; /* gaps: a file between others is missing, and was to be */
    uint64_t expected;
    char *dataset;          /* as asked for; NULL: found */
    struct origin *origins; /* [n_origins], the master first */
    size_t n_origins;
    struct remembered *remembered; /* loaded from a .stow file; else NULL */
    char **warnings;
    size_t n_warnings;
    /* how it is kept */
    struct keep keep;
    struct frame *frames;         /* [n_frames] */
    uint64_t forms[STOW_N_FORMS]; /* frames in each, once all are settled */
    bool settled;
    struct segment *segments; /* [n_segments] of segment_frames each, but for the last */
    size_t n_segments;
    uint64_t segment_frames;
    struct kept_sums sums;
    int answers
        [2]
        [2]; /* sealed memfds: mean, centre of mass of all frames; flagged pixels too. 0: not made yet */
    struct table_reader *reader; /* NULL: there is none */
    uint64_t frames_charged;     /* of the place's budget, for tables in host memory */
    uint64_t
        answers_charged; /* and for answers that nobody asked for yet; they go where room is wanted */
    struct fault *faults; /* [n_faults] in no order */
    size_t n_faults, faults_room;
    struct piece *pieces;
    uint64_t payload_bytes, table_bytes, source_bytes;
    struct timing timings[8];
    size_t n_timings;
    struct watch *watches;
};

struct name {
    struct name *next;
    char *text; /* any bytes but NUL */
    uid_t owner;
    gid_t group;
    enum stow_share share;
    struct scan scan; /* as its loader asked; none: the resident's */
    struct resident *resident;
};

/* What was missing when room was refused. */
struct shortage {
    uint64_t needed, free, evictable;
};

/* Memory that somebody keeps for later, and that goes before anything is evicted. */
struct spare {
    uint64_t (*bytes)(void *data, const struct place *place); /* that it is charged */
    void (*give)(void *data, const struct place *place);      /* all of it */
    void *data;
};

struct store {
    struct place *places;
    size_t n_places;
    struct resident *residents;
    struct name *names; /* sorted by text, then owner */
    struct ring_tables rings;
    uint64_t next_id;
    unsigned n_freeing; /* pieces, and scratch of loads, on their way back to the device */
    struct spare spare; /* set by who has some; bytes NULL: nobody */
};

/* The places are the caller's and outlive the store. Tables of ring sums take what memory ring_tables_init gives them,
 * unless it is called again. */
void store_init(struct store *store, struct place *places, size_t n_places);
/* Drop every name. Memory still used by streams goes with them. */
void store_clear(struct store *store);
bool store_is_idle(const struct store *store);

/* ---- residents ---- */

/* A new, empty resident with one reference, the caller's. NULL: no memory. */
struct resident *resident_new(struct store *store, struct place *place, uid_t owner);
void resident_ref(struct resident *resident);
void resident_unref(struct resident *resident);

/* Free what has become the reader's. */
void table_reader_fini(struct table_reader *reader);

/* Mark frames as bad, and remember why. Text is copied; without memory for it the code alone remains. */
void resident_fault(struct resident *resident, uint64_t first, uint64_t count, int code,
                    const char *text);
/* The sentence for a bad frame. */
const char *resident_fault_text(const struct resident *resident, uint64_t id);
/* Note a warning for people. */
void resident_warn(struct resident *resident, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void resident_time(struct resident *resident, const char *stage, double ms);

/* Every frame is loaded, or bad: their forms do not change any more. */
void resident_settle(struct resident *resident);

/* Frames in each form so far, [STOW_N_FORMS]; pending ones count nowhere. */
void resident_forms(const struct resident *resident, uint64_t *forms);
/* Payload, tables of blocks and of segments, and frame table. */
uint64_t resident_bytes(const struct resident *resident);

/* Tell the watches. They may remove themselves meanwhile. */
void resident_changed(struct resident *resident);
void resident_watch(struct resident *resident, struct watch *watch);
void resident_unwatch(struct resident *resident, struct watch *watch);

/* A piece of this size, charged to the budget at once; done is called when it is there or not. It goes with
 * the resident's contents. STOW_NOROOM and the shortage when the budget has no room even after evicting;
 * STOW_NOMEM. */
int resident_add_piece(struct resident *resident, uint64_t bytes,
                       void (*done)(struct device_request *), void *data, struct piece **piece,
                       struct shortage *shortage);

/* ---- room ---- */

/* What a piece of so many bytes counts against the budget: it comes in whole units. */
uint64_t piece_charge(uint64_t bytes);

/* Have bytes free in the place's budget, letting go of spare memory and evicting what must go; nothing is charged
 * yet. STOW_NOROOM and the shortage if that cannot be; then nothing was evicted. */
int store_make_room(struct store *store, struct place *place, uint64_t bytes,
                    struct shortage *shortage);

/* The sentence of a refusal for want of room. */
int shortage_error(const struct shortage *shortage, const struct place *place,
                   struct stow_error *err);

/* ---- names ---- */

/* The caller's own name, or one that its owner shares with it, or for an admin any. NULL: none. */
struct name *store_find(struct store *store, const char *text, uid_t uid, gid_t gid);
/* Only the uid's own. */
struct name *store_find_own(struct store *store, const char *text, uid_t uid);
bool name_visible(const struct name *name, uid_t uid, gid_t gid);
bool uid_is_admin(uid_t uid);

/* Bind a name that is not in use by this uid; takes a reference. NULL: no memory. */
struct name *store_bind(struct store *store, const char *text, uid_t uid, gid_t gid,
                        enum stow_share share, struct resident *resident);
void store_unbind(struct store *store, struct name *name);

/* All its frames are in memory, or told to be bad. */
bool resident_is_whole(const struct resident *resident);
/* It is read from this master (and dataset, NULL: found), kept as is asked for, and has not failed. */
bool resident_is_of(const struct resident *resident, const struct place *place,
                    const struct origin *master, const char *dataset, bool allow_gaps,
                    struct keep keep);
/* A whole resident of this master. One with gaps only for those who allow them. */
struct resident *store_find_origin(struct store *store, const struct place *place,
                                   const struct origin *master, const char *dataset,
                                   bool allow_gaps, struct keep keep);
bool origin_same(const struct origin *a, const struct origin *b);

/* How the name shapes its frames: as its loader asked, or as the file says. */
struct scan name_scan(const struct name *name);

const char *residence_name(enum residence state);

#endif
