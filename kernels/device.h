/* SPDX-License-Identifier: Apache-2.0
 *
 * device: memory and work of one GPU, or of the host, behind one face.
 *
 * A device owns a service thread, which does every allocation, map, free and pin, because those stall
 * launches when the launching thread does them; and lanes, which run work in order (a CUDA stream, or a
 * FIFO on a pool of host threads). The loop thread opens lanes, enqueues, and calls device_poll, which
 * runs the callbacks of what is finished. Nothing here waits, except device_open, device_close, lane_open,
 * lane_close.
 *
 * Requests are the asker's, embedded in its struct; they are the device's until `done` ran, exactly once,
 * on the thread that calls device_poll. When something may be ready to poll, the device calls `wake`
 * (from any thread; it must be cheap and thread-safe, like uv_async_send).
 *
 * A GPU fault that the context does not survive sets device_lost for good: every later request fails with
 * STOW_DEVICE. */
#ifndef STOW_DEVICE_H
#define STOW_DEVICE_H

#include "work.h"

#include "error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct device;
struct device_memory;
struct lane;

struct device_options {
    unsigned threads; /* host: size of the pool; 0: work is done inside device_poll (tests) */
    void (*wake)(void *data); /* may be NULL */
    void *wake_data;
    size_t
        staging_bytes; /* MEMORY_STAGING to make now, once: a later ask for at most this much gets it
                           * while it is free, at no cost to launches */
};

struct device_info {
    char name[16]; /* host, cuda:0 */
    char model[64];
    uint8_t uuid[16]; /* of the GPU; zeros for host */
    bool is_gpu;
    uint64_t total_bytes; /* memory of the device */
    unsigned kinds;       /* mask of enum memory_kind that can be made here for rings */
    char kinds_note[128]; /* why some cannot */
    unsigned driver;      /* as cuDriverGetVersion has it; 0 for host */
};

/* name: auto, host, cuda:N. auto takes the GPU with the most free memory; host only where this machine
 * has no NVIDIA device at all. STOW_DEVICE names the cause and the remedy (no driver, nvidia-uvm missing,
 * no such GPU, built without CUDA); STOW_INVALID for a name that is none of these. */
int device_open(struct device **device, const char *name, const struct device_options *options,
                struct stow_error *err);

/* All lanes must be closed and all memory freed. */
void device_close(struct device *device);

const struct device_info *device_info(const struct device *device);

/* The context is lost: nothing more can be served from this device. */
bool device_lost(const struct device *device);

/* ---- requests ------------------------------------------------------------------------------------ */

struct device_request {
    void (*done)(struct device_request *request);
    void *data;
    int status;            /* 0 or STOW_NOMEM, STOW_NOROOM, STOW_DEVICE, STOW_UNSUPPORTED */
    struct stow_error err; /* at status 0: "", or a remark (staging that could not be pinned) */

    /* the device's */
    struct device_request *next;
    struct device_memory *memory;
    size_t bytes;
    unsigned kind; /* enum memory_kind to allocate; 0: free */
};

/* Run the callbacks of all that is finished. Returns how many requests are still under way. */
size_t device_poll(struct device *device);

/* The loop is about to sleep while lane work is under way: wake it when some is done. */
void device_arm(struct device *device);

/* ---- memory -------------------------------------------------------------------------------------- */

enum memory_kind {
    MEMORY_RESIDENT =
        8, /* where acquisitions live; on a GPU shareable by a descriptor that never leaves the daemon */
    MEMORY_STAGING = 16, /* host memory that uploads run from at full speed */
    MEMORY_HOST_FD = 1,  /* rings: values as MemoryKind in framestow.proto */
    MEMORY_CUDA_IPC = 2,
    MEMORY_CUDA_FD = 4,
};

struct device_memory {
    uint64_t dev;  /* address for jobs and uploads */
    uint8_t *host; /* where this process sees the same bytes; NULL if it does not */
    size_t bytes;  /* at least what was asked */
    int fd;        /* a descriptor of it (HOST_FD, CUDA_FD, RESIDENT), or -1; owned by the memory */
    uint8_t handle[64]; /* CUDA_IPC */
    enum memory_kind kind;
    void *impl; /* the device's */
};

/* Allocate; *memory is filled before request->done. Zeroed, except RESIDENT and STAGING. NOROOM when the
 * device has less left than asked for (err has both figures). */
void device_alloc(struct device *device, struct device_memory *memory, enum memory_kind kind,
                  size_t bytes, struct device_request *request);

/* Free; *memory is zeroed before request->done. Nothing may be using it. Never fails but for a lost device. */
void device_free(struct device *device, struct device_memory *memory,
                 struct device_request *request);

/* ---- lanes --------------------------------------------------------------------------------------- */

enum lane_priority { LANE_BULK, LANE_URGENT };

int lane_open(struct lane **lane, struct device *device, enum lane_priority priority,
              struct stow_error *err);
void lane_close(
    struct lane *lane); /* waits for what is under way; its requests finish at the next poll */

/* Work, in order. Each returns once enqueued: 0, or STOW_BUSY when the lane's queue is full (ask again
 * after a fence is done), STOW_DEVICE. src and dst stay valid until a later fence is done. */
int lane_upload(struct lane *lane, uint64_t dst_dev, const void *src, size_t bytes);
int lane_download(struct lane *lane, void *dst, uint64_t src_dev, size_t bytes);

/* Decode n frames of one shape, of any forms; jobs are copied, status [n] is written before a later fence is done.
 * Frames of form counts may be decoded beside those of a lane_decode just before: what was decoded to the same
 * place must have had its fence, or other work stand behind it. */
int lane_decode(struct lane *lane, int32_t *status, const struct decode_job *jobs, size_t n,
                const struct frame_shape *shape);

/* Do the work (copied) that work.h tells; its arrays lie on the device. */
int lane_run(struct lane *lane, const struct work *work);

/* request->done once everything enqueued so far on this lane is done; its status is STOW_DEVICE if not. */
int lane_fence(struct lane *lane, struct device_request *request);

#define LANE_MAX_JOBS 32768u /* jobs that one lane_decode takes, and that a lane holds under way */

#endif
