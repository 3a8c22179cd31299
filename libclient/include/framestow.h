/* SPDX-License-Identifier: Apache-2.0
 *
 * framestow.h: frames of a detector acquisition, from the daemon that keeps it.
 *
 * The life of a stream, in order:
 *
 *     struct stow_error err;
 *     struct stow_client *client = stow_connect(NULL, &err);        one connection to framestowd
 *     stow_load(client, "scan_master.h5", NULL, NULL);              once; later callers share it
 *     struct stow_stream *stream = stow_stream_open(client, "scan", NULL);
 *     const struct stow_batch *batch;
 *     while (stow_stream_next(stream, &batch, -1) > 0) {            decoded frames, mapped here
 *         use(batch->data, batch->n_frames);
 *         stow_stream_release(stream, batch);                       the slot may be filled again
 *     }
 *     stow_stream_close(stream);
 *     stow_close(client);
 *
 * Frames lie in the batch's memory one after the other, C order, little-endian, the very counts
 * of the file. That memory is the GPU's (memory STOW_CUDA_IPC, STOW_CUDA_FD: data is a device
 * address of the current context) or the host's (STOW_HOST_FD). A held slot is never refilled;
 * there is no time limit.
 *
 * Functions return 0 or a positive number on success and a negative `enum stow_code` on failure;
 * then stow_last_error() has the sentence. Nothing is printed. A connection and its streams are
 * used by one thread at a time and may move between threads; stow_stream_release() may be called
 * from any thread. A connection does not survive fork(): the child gets STOW_FORKED and must
 * connect anew. In C++ write `struct stow_info`, `struct stow_mask` and so on: functions have these
 * names too. */
#ifndef FRAMESTOW_H
#define FRAMESTOW_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Error codes, the same numbers (without the sign) as on the wire. Never reused. */
enum stow_code {
    STOW_OK = 0,
    STOW_NOMEM = -1,        /* out of host memory */
    STOW_BUSY = -2,         /* no room now, ask again */
    STOW_CORRUPT = -3,      /* frame data is corrupt */
    STOW_DEVICE = -4,       /* the GPU reported a fault, or cannot be used */
    STOW_INVALID = -5,      /* an argument makes no sense */
    STOW_STATE = -6,        /* not allowed in this state */
    STOW_UNKNOWN = -7,      /* no acquisition of that name or number */
    STOW_EXISTS = -8,       /* the name is in use */
    STOW_NOROOM = -9,       /* does not fit the device's budget */
    STOW_UNSUPPORTED = -10, /* not supported */
    STOW_RANGE = -11,       /* a frame number past the end */
    STOW_SOURCE = -12,      /* the source cannot be read as an acquisition */
    STOW_MISSING = -13,     /* a file of the source is missing */
    STOW_IO = -14,          /* the operating system refused a read or write */
    STOW_DENIED = -15,      /* no permission */
    STOW_PROTOCOL = -16,    /* the other end broke the protocol */
    STOW_VERSION = -17,     /* the two ends speak different protocols */
    STOW_STALE = -18,       /* that slot is not held with that generation */
    STOW_CANCELLED = -19,   /* cancelled */
    STOW_NODAEMON = -20,    /* no daemon answers at the socket */
    STOW_GONE = -21,        /* the daemon closed the connection, or ended */
    STOW_TIMEOUT = -22,     /* nothing came in the time given */
    STOW_LIMIT = -23,       /* a limit of this user or connection is reached */
    STOW_UNWRITTEN = -24,   /* the frame was never acquired, or its file is missing */
    STOW_SHUTDOWN = -25,    /* the daemon is shutting down */
    STOW_FORKED = -26,      /* this process is a fork of the one that connected */
    STOW_INTERNAL = -27,    /* a fault of framestow itself */
    STOW_NOFIT = -28        /* a count of the frame does not fit the dtype asked for */
};

struct stow_error {
    int code;       /* enum stow_code */
    char text[508]; /* one sentence, UTF-8, NUL-terminated: what, where, what to do */
};

/* The code in words, for any value; a static string. */
const char *stow_strerror(int code);

/* Version of this library, "MAJOR.MINOR.PATCH". */
const char *stow_version(void);

/* ---- connection ------------------------------------------------------------------------------ */

struct stow_client;

/* Connect to the daemon at socket_path; NULL: $FRAMESTOW_SOCKET, else
 * /run/framestow/framestow.sock if it exists, else $XDG_RUNTIME_DIR/framestow.sock. NULL on
 * failure, with the reason in *err (may be NULL): STOW_NODAEMON, STOW_DENIED, STOW_VERSION,
 * STOW_INVALID (path over 107 bytes). */
struct stow_client *stow_connect(const char *socket_path, struct stow_error *err);

/* Give back every slot, close every stream, disconnect. NULL is allowed. */
void stow_close(struct stow_client *client);

/* The last failure on this connection; code 0 if there was none. Valid until the next call. */
const struct stow_error *stow_last_error(const struct stow_client *client);

/* A descriptor that polls readable when stow_stream_next(..., 0) may have a batch. Do not read
 * it. It is the connection's, the same at every call; negative on failure. */
int stow_fd(struct stow_client *client);

/* ---- acquisitions ---------------------------------------------------------------------------- */

enum stow_form {
    STOW_FORM_COUNTS,
    STOW_FORM_BSLZ4,
    STOW_FORM_RAW,
    STOW_FORM_FILL,
    STOW_FORM_BAD,
    STOW_N_FORMS
};
enum stow_share { STOW_SHARE_USER, STOW_SHARE_GROUP, STOW_SHARE_ALL };

struct stow_timing {
    const char *stage;
    double ms;
};

/* Sums that answer any annulus of whole radii about a centre at once (stow_sum_options.keep_rings). */
struct stow_rings {
    double center[2]; /* y, x */
    int flagged;      /* flagged pixels are counted too */
    uint64_t bytes;   /* of the daemon's memory */
};

/* What is known of an acquisition. Text is UTF-8 or, where the source's bytes are not, those
 * bytes. */
struct stow_info {
    uint64_t id; /* one resident, whatever its names; never reused by a daemon */
    const char *name;
    const char *state; /* loading, growing, complete, damaged, evicted */
    const char *device;
    const char *dtype;    /* numpy style: u1, u2, u4, u8, i1, i2, i4, i8, f4, f8 */
    uint64_t frames;      /* that can be asked for now */
    int64_t expected;     /* frames that the file says were planned; -1: it does not say */
    uint64_t scan[2];     /* y, x; 0, 0: a flat list */
    uint64_t detector[2]; /* y, x in pixels */
    uint64_t elem_bytes;
    uint64_t frame_bytes;
    uint64_t forms[STOW_N_FORMS]; /* frames in each form; they add up to frames */
    uint64_t logical_bytes;       /* decoded */
    uint64_t source_bytes;        /* the chunks as they lie in the files */
    uint64_t resident_bytes;      /* payload, tables and frame table on the device */
    uint64_t owner_uid;
    enum stow_share share;
    size_t n_sources;
    const char *const *sources; /* resolved paths, the master first */
    size_t n_warnings;
    const char *const *warnings;
    size_t n_timings;
    const struct stow_timing *timings;
    uint64_t skip_per_line, offset; /* of the scan: see stow_scan_frame */
    uint64_t not_acquired;          /* positions of the scan without a frame, the last ones */
    size_t n_rings;
    const struct stow_rings *rings;
};

/* All acquisitions that this user may attach to: *list of *n pointers, freed by stow_list_free. */
int stow_list(struct stow_client *client, struct stow_info ***list, size_t *n);
void stow_list_free(struct stow_info **list, size_t n);

/* One acquisition by name; freed by stow_info_free. STOW_UNKNOWN. */
int stow_info(struct stow_client *client, const char *name, struct stow_info **info);
void stow_info_free(struct stow_info *info);

/* The frame at a position of the scan: offset + y * (scan[1] + skip_per_line) + x. Frames between lines, before the
 * scan and after it belong to no position; all are had by their number. STOW_INVALID (no scan), STOW_RANGE (outside of
 * it), STOW_UNWRITTEN: that position was not acquired. */
int stow_scan_frame(struct stow_client *client, const struct stow_info *info, uint64_t y,
                    uint64_t x, uint64_t *frame);

struct stow_progress {
    uint64_t frames, total_frames; /* total 0 while the index is being read */
    uint64_t bytes, total_bytes;   /* of the source */
    double seconds_left;           /* below 0: not known yet */
};

/* Called from within stow_load, some ten times a second. Non-zero cancels the load. */
typedef int (*stow_progress_fn)(void *data, const struct stow_progress *progress);

struct stow_load_options {
    size_t size;         /* sizeof(struct stow_load_options) */
    const char *name;    /* NULL: the file's name without _master.h5 */
    const char *dataset; /* NULL: found by the rules in docs/formats.md */
    const char *device;  /* NULL: the daemon's choice; else host, cuda:N */
    const char *form;    /* NULL or auto, counts, bslz4, raw */
    enum stow_share share;
    int replace;      /* drop a different acquisition of the same name */
    int allow_gaps;   /* a missing file between present ones makes bad frames, not a refusal */
    uint64_t scan[2]; /* y, x; 0, 0: as the file says, else flat */
    stow_progress_fn progress;
    void *progress_data;
    unsigned
        streams; /* that a frame of form counts is cut into, up to 8: a lone frame is had sooner, all take
                       * more room; 0: 1 */
    uint64_t
        skip_per_line; /* frames after each line of the scan that are not of it (flyback); scan is given */
    uint64_t offset; /* frames before the scan; scan is given */
};

/* Have the acquisition resident, and wait until it is. path: an HDF5 master, or a .stow file. The files are opened here, with this
 * user's rights. *info (may be NULL) is freed by stow_info_free. STOW_SOURCE, STOW_MISSING,
 * STOW_UNSUPPORTED, STOW_NOROOM, STOW_EXISTS, STOW_CANCELLED, STOW_IO, STOW_DENIED. */
int stow_load(struct stow_client *client, const char *path, const struct stow_load_options *options,
              struct stow_info **info);

/* Drop the name at once; the memory goes with the last name and the last stream. */
int stow_unload(struct stow_client *client, const char *name);

/* ---- streams --------------------------------------------------------------------------------- */

enum stow_order {
    STOW_ORDER_SCAN,     /* as acquired */
    STOW_ORDER_LIST,     /* ids[], in that order, repeats allowed */
    STOW_ORDER_SHUFFLED, /* a permutation of the range by seed, each frame once */
    STOW_ORDER_REQUEST   /* whatever stow_stream_request asks for */
};
enum stow_memory { STOW_MEMORY_AUTO, STOW_HOST_FD, STOW_CUDA_IPC, STOW_CUDA_FD };

enum stow_mask_correction { STOW_MASK_NONE, STOW_MASK_ZERO, STOW_MASK_MEDIAN };

/* What is done to each frame on its way into a slot, in this order, which is the only one; zeros ask
 * for nothing. What is kept stays the raw counts.
 *   1. mask correction, since a bad pixel's neighbours may lie outside of the crop
 *   2. crop, so that bins begin where it does
 *   3. bins, since counts add up and their roots do not
 *   4. root or dtype
 *   5. padding
 *   6. fftshift, of all that a Fourier transform is to take
 * Pixels of floats and of 8 bytes take crop, padding, fftshift and correction to 0 alone. */
struct stow_view {
    /* Pixels that the file flags: as they are; 0; or the lower median of those of their 8 neighbours
     * that are on the detector and not flagged. Without any such they stay as they are:
     * stow_stream_info.n_kept. */
    enum stow_mask_correction mask_correction;
    /* Of the detector: first row, first column, rows, columns. All 0: the whole. */
    uint64_t crop[4];
    /* Rows and columns whose counts are added up to a pixel. What is left over at the far edges
     * belongs to the last bin: stow_stream_info.last_bin. 0: 1. */
    uint32_t bin;
    int sqrt; /* the root of each, in f4 */
    /* u1, u2, u4, i1, i2, i4, f4, f2; NULL: the acquisition's, or f4 with sqrt. A frame with a count
     * (the sum of a bin) that an integer dtype does not hold, or that would be infinite in f2, has
     * the status STOW_NOFIT: nothing is clipped or wrapped. f4 and f2 round to nearest, ties to
     * even. */
    const char *dtype;
    /* Rows and columns of the result, zeros about the frame. That begins at row
     * (pad[0] - its rows) / 2, rounded down, and column alike: of an odd difference the one more
     * comes behind it. 0, 0: no padding. */
    uint64_t pad[2];
    /* Rolled by half the rows and half the columns, rounded down: numpy.fft.fftshift. */
    int fftshift;
    /* Rows region[0] to region[1] - 1 of the scan and columns region[2] to region[3] - 1, row by
     * row, in place of all frames; for order scan alone, and positions count these. All 0: none. */
    uint64_t region[4];
};

struct stow_stream_options {
    size_t size; /* sizeof(struct stow_stream_options) */
    enum stow_order order;
    uint64_t first;      /* scan, shuffled: first frame of the range */
    uint64_t count;      /* and how many; 0: to the end */
    const uint64_t *ids; /* list */
    size_t n_ids;
    uint64_t seed;        /* shuffled */
    uint64_t start;       /* position (of this rank) to begin at: how a stream is resumed */
    uint32_t rank, world; /* take positions rank, rank + world, ...; world 0: all */
    uint32_t batch;       /* frames a slot; 0: a sane default */
    uint32_t slots;       /* 0: as the default ring has room for, at least 2 */
    enum stow_memory memory;
    uint32_t spin_us; /* how long stow_stream_next may spin before it sleeps */
    struct stow_view view;
};

struct stow_stream;

struct stow_stream_info {
    enum stow_memory memory; /* what was agreed */
    const char *note;        /* why it is not what one might expect, or "" */
    uint32_t batch, slots;
    uint64_t frame_bytes;
    uint64_t positions; /* frames this stream will bring; UINT64_MAX on request */
    const char *dtype;  /* of the frames in the batches */
    uint64_t frame[2];  /* their rows and columns */
    /* As agreed, with nothing left out: pad is the size of the result. Zeros: frames as they are. */
    struct stow_view view;
    uint64_t n_flagged; /* pixels that were corrected, of those that are shown */
    uint64_t n_kept; /* flagged ones that stay as they are: all their neighbours are flagged, too */
    uint64_t last_bin[2]; /* rows and columns of the last bin */
    uint64_t pad_at[2];   /* where in the padding the frame begins, before fftshift */
};

struct stow_batch {
    void *data; /* n_frames * frame_bytes; a device address unless memory is STOW_HOST_FD */
    const uint64_t *ids; /* [n_frames] frame numbers, in acquisition order from 0 */
    /* [n_frames] 0, or STOW_CORRUPT, STOW_UNWRITTEN, STOW_NOFIT: that frame's bytes mean nothing */
    const int32_t *status;
    uint64_t acquisition; /* stow_info.id */
    uint64_t position;    /* of the first frame, in this stream's order */
    uint64_t generation;  /* of the slot; never repeats in a stream */
    uint64_t bytes;
    uint64_t ready_ns; /* CLOCK_MONOTONIC when the daemon saw the batch done */
    uint32_t n_frames;
    uint32_t n_bad; /* frames whose status is not 0 */
    uint32_t slot;
    enum stow_memory memory;
};

/* Open a stream on a resident acquisition (it may still be loading). NULL options: all frames in
 * scan order. NULL on failure: STOW_UNKNOWN, STOW_RANGE, STOW_NOROOM, STOW_LIMIT, STOW_DEVICE; for a view that cannot be
 * STOW_INVALID, STOW_UNSUPPORTED. */
struct stow_stream *stow_stream_open(struct stow_client *client, const char *name,
                                     const struct stow_stream_options *options);
const struct stow_stream_info *stow_stream_info(const struct stow_stream *stream);

/* The next batch, in order. timeout_ms: -1 waits, 0 never waits.
 * Returns 1 with *batch, 0 at the end of the stream, STOW_TIMEOUT, or another negative code. */
int stow_stream_next(struct stow_stream *stream, const struct stow_batch **batch, int timeout_ms);

/* Give a batch back; it and its data may not be used after. Any thread, so stow_last_error() is
 * left alone by this one and the next: STOW_STALE (not held), STOW_FORKED, STOW_NOMEM,
 * STOW_DEVICE. */
int stow_stream_release(struct stow_stream *stream, const struct stow_batch *batch);

/* The same once all work now queued on this CUDA stream (a CUstream or cudaStream_t) is done. */
int stow_stream_release_after(struct stow_stream *stream, const struct stow_batch *batch,
                              void *cuda_stream);

/* On request only: bring these frames, in that order, as one batch (n_ids up to the stream's
 * batch). Does not wait: what the daemon refuses (STOW_RANGE) is what a stow_stream_next then
 * returns in place of that batch. */
int stow_stream_request(struct stow_stream *stream, const uint64_t *ids, size_t n_ids);

/* Copy a batch's bytes to host memory of dst_bytes, wherever they lie. STOW_INVALID if too
 * small. */
int stow_stream_copy(struct stow_stream *stream, const struct stow_batch *batch, void *dst,
                     size_t dst_bytes);

/* What is wrong with a frame, in a sentence ("block 3: ..."); why->code 0: nothing is. */
int stow_frame_error(struct stow_client *client, const char *name, uint64_t id,
                     struct stow_error *why);

/* Give back every slot and unmap the ring. NULL is allowed. */
void stow_stream_close(struct stow_stream *stream);

/* ---- sums over an acquisition ---------------------------------------------------------------- */

/* Which frames; all zero: every one. ids in any order, repeats allowed. */
struct stow_selection {
    uint64_t first, count; /* count 0: to the end */
    const uint64_t *ids;
    size_t n_ids;
};

/* Pixels at inner <= r < outer about a centre (y, x), in pixels; pixel centres are at integers. */
struct stow_annulus {
    double inner, outer;
    double center[2];
};

enum stow_weights { STOW_WEIGHTS_U8, STOW_WEIGHTS_I32, STOW_WEIGHTS_F64 };

struct stow_sum_options {
    size_t size;       /* sizeof(struct stow_sum_options) */
    const void *masks; /* [n_masks][detector y][detector x] weights, C order */
    size_t n_masks;
    enum stow_weights weights; /* of the masks, and what annuli are drawn with */
    const struct stow_annulus *annuli;
    size_t n_annuli; /* masks and annuli together: 1 to 8 */
    int flagged;     /* count pixels that the file flags, too */
    struct stow_selection frames;
    int keep_rings; /* have the daemon keep what answers annuli of whole radii about these centres from here on */
};

/* values [n_sums][n_frames], masks first, then annuli: uint64_t ("u8"), int64_t ("i8") where a weight or a pixel may be
 * negative, double ("f8") for float weights or pixels. Integers are exact; floats are added in double, in a fixed
 * order, without the pixels whose weight is 0, and NaN and infinities go through. */
struct stow_sums {
    const char *dtype;
    const void *values;
    const int32_t
        *status; /* [n_frames] 0, or why the frame has no counts: its values are 0, or NaN for f8 */
    size_t n_sums;
    uint64_t n_frames;
    uint64_t n_flagged;     /* pixels left out */
    uint64_t n_bad;         /* frames whose status is not 0 */
    int by_rings;           /* answered from ring sums, with the same values */
    const char *rings_note; /* keep_rings: why there are none; else empty */
};

/* Virtual images: for each frame and each mask the sum of weight * count. Nothing is decoded to memory. Annuli of whole
 * radii are answered from ring sums about their centre, in a fraction of the time, once keep_rings had them made.
 * STOW_UNKNOWN, STOW_RANGE, STOW_STATE (still loading), STOW_LIMIT (could overflow 63 bits), STOW_INVALID. */
int stow_sum(struct stow_client *client, const char *name, const struct stow_sum_options *options,
             struct stow_sums **sums);
void stow_sums_free(struct stow_sums *sums);

/* The sum of every detector pixel over frames; the mean diffraction pattern is that over n_frames. Flagged pixels
 * are 0 unless asked for. frames may be NULL. STOW_LIMIT: 64-bit integers whose sum could need more bits. */
struct stow_mean {
    const void *sums; /* [detector y][detector x] of dtype */
    uint64_t detector[2];
    uint64_t n_frames; /* that were added up */
    uint64_t n_flagged, n_bad;
    const char *dtype; /* u8: uint64_t; of signed pixels i8: int64_t; of floats f8: double */
};
int stow_mean(struct stow_client *client, const char *name, const struct stow_selection *frames,
              int flagged, struct stow_mean **mean);
void stow_mean_free(struct stow_mean *mean);

/* The centre of mass of each frame: row, then column; NaN for a frame without counts, or whose total is 0. */
struct stow_com {
    const double *centers; /* [n_frames][2] */
    const void *totals;    /* [n_frames] of dtype */
    uint64_t n_frames, n_flagged, n_bad;
    const char *dtype; /* of the totals, as of stow_mean's sums */
};
int stow_com(struct stow_client *client, const char *name, const struct stow_selection *frames,
             int flagged, struct stow_com **com);
void stow_com_free(struct stow_com *com);

/* Which pixels the file flags: [detector y][detector x], 1 where its pixel_mask is not 0. */
struct stow_mask {
    const uint8_t *flags;
    uint64_t detector[2];
    uint64_t n_flagged;
};
int stow_mask(struct stow_client *client, const char *name, struct stow_mask **mask);
void stow_mask_free(struct stow_mask *mask);

/* The bright disk of a mean pattern (sums [y][x]): where its middle is and how large it is, in pixels.
 * STOW_UNSUPPORTED: there is none to be found. */
struct stow_disk {
    double center[2], radius;
};
int stow_find_disk(const uint64_t *sums, uint64_t y, uint64_t x, struct stow_disk *disk);

/* ---- keeping an acquisition ------------------------------------------------------------------- */

struct stow_save_options {
    size_t size; /* sizeof(struct stow_save_options) */
    int force;   /* even if the file would be larger than the source */
    int sha256;  /* keep a hash of the source files in it */
    stow_progress_fn progress;
    void *progress_data;
};

/* Write a resident to a new .stow file, which stow_load opens in a fraction of the time. The file is there whole or
 * not at all, and never replaces another (STOW_EXISTS). STOW_LIMIT: larger than its source. STOW_IO, STOW_STATE. */
int stow_save(struct stow_client *client, const char *name, const char *path,
              const struct stow_save_options *options);

struct stow_verdict {
    uint64_t frames, values; /* compared */
    uint64_t mismatches;     /* values that differ: always 0, or something is very wrong */
    uint64_t first_mismatch; /* its frame */
    uint64_t not_compared;   /* frames that cannot be given on one side */
};

/* Read the source again and compare every count. STOW_SOURCE: it has changed. */
int stow_verify(struct stow_client *client, const char *name, stow_progress_fn progress,
                void *progress_data, struct stow_verdict *verdict);

/* ---- the daemon's own figures ---------------------------------------------------------------- */

struct stow_stat {
    const char *name;
    const char *unit;
    const char *help;
    uint64_t value;
};

int stow_stats(struct stow_client *client, struct stow_stat **stats, size_t *n);
void stow_stats_free(struct stow_stat *stats);

/* What the daemon said of itself when it was connected to. */
struct stow_daemon_info {
    const char *version;
    const char *device; /* its devices, comma-separated */
    uint64_t pid;
    uint64_t max_bytes;       /* budget of the first device */
    const char *memory_kinds; /* that it can hand out, comma-separated */
    const char *memory_note;  /* why some are not offered to this process, or "" */
};
const struct stow_daemon_info *stow_daemon_info(const struct stow_client *client);

#ifdef __cplusplus
}
#endif
#endif
