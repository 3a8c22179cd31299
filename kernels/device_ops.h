/* SPDX-License-Identifier: Apache-2.0
 *
 * device_ops: what a backend (device_host.c, device_cuda.c) gives to device.c, and the heads of its
 * structs. device.c keeps queues, fences and bounds; a backend does the work and says how far it is.
 *
 * Threads: `alloc` and `free` run on the service thread (or before it starts, in open); `ready` on any;
 * all else on the loop thread. A backend calls back only through device_wake and device_set_lost. */
#ifndef STOW_DEVICE_OPS_H
#define STOW_DEVICE_OPS_H

#include "device.h"

#include <pthread.h>
#include <stdatomic.h>

/* Bounds of a lane, besides LANE_MAX_JOBS. With both full, a CUDA stream holds fewer commands than the
 * 1,024 at which enqueuing begins to wait for the GPU: mostly one for each operation, two at times, and four only
 * for mixed decodes of so many jobs that LANE_MAX_JOBS lets 128 of them in. */
#define LANE_MAX_OPS \
    256u /* uploads, downloads, decodes and works since the last fence that is done */
#define LANE_MAX_FENCES 128u /* fences that are not done */

struct device_ops {
    bool polled; /* no device_wake when a fence is passed: the completion thread must look */

    /* index: of the GPU; -1: the one with the most free memory. Sets head.info and head.options. */
    int (*open)(struct device **device, int index, const struct device_options *options,
                struct stow_error *err);
    void (*close)(struct device *device);

    /* *memory is set on success alone. free gives everything back even where it fails. */
    int (*alloc)(struct device *device, struct device_memory *memory, enum memory_kind kind,
                 size_t bytes, struct stow_error *err);
    int (*free)(struct device *device, struct device_memory *memory, struct stow_error *err);

    int (*lane_open)(struct lane **lane, struct device *device, enum lane_priority priority,
                     struct stow_error *err);
    void (*lane_drain)(struct lane *lane); /* waits until all is done */
    void (*lane_close)(struct lane *lane); /* drained before */

    /* Enqueue. The bounds are kept by the caller. On failure nothing is enqueued. */
    int (*copy)(struct lane *lane, uint64_t dst, uint64_t src, size_t bytes);
    int (*decode)(struct lane *lane, int32_t *status, const struct decode_job *jobs, size_t n,
                  const struct frame_shape *shape);
    int (*run)(struct lane *lane, const struct work *work);
    int (*fence)(struct lane *lane); /* the fence number lane->fences_in */

    /* Fences passed since the lane was opened; what stands before them is in the caller's memory. */
    uint64_t (*reached)(struct lane *lane);
    bool (*ready)(struct lane *lane); /* fence number lane->fences_out is passed */
};

extern const struct device_ops host_ops, cuda_ops;

struct request_list {
    struct device_request *first, *last;
    size_t n;
};

struct device {
    const struct device_ops *ops;
    struct device_info info;
    struct device_options options;
    bool inline_work;             /* no service thread: device_poll does its work */
    _Atomic(const char *) lost;   /* why; NULL: it is not */
    struct device_memory staging; /* made at open */
    bool staging_lent;

    struct lane *lanes;        /* urgent ones first; changed by the loop under lanes_mutex */
    struct request_list ready; /* the loop's: finished, callback to be run */
    size_t n_pending;          /* the loop's: requests whose callback has not run */

    pthread_mutex_t mutex; /* of these four */
    pthread_cond_t asked_cond;
    struct request_list asked, answered; /* the service thread's work */
    bool stopping;
    pthread_t service;
    bool has_service;

    pthread_mutex_t lanes_mutex; /* of these three, and of the list of lanes */
    pthread_cond_t armed_cond;
    bool armed, completion_stopping;
    pthread_t completion;
    bool has_completion;
};

struct lane_fence {
    struct device_request *request;
    uint64_t ops, jobs; /* that stand before it */
};

struct lane {
    struct device *device;
    struct lane *next;
    enum lane_priority priority;
    uint64_t ops_in, ops_out, jobs_in, jobs_out; /* enqueued; known to be done */
    _Atomic uint64_t fences_in, fences_out;
    struct lane_fence fences[LANE_MAX_FENCES]; /* number i is at i % LANE_MAX_FENCES */
};

/* Something may be ready to poll. Any thread. */
void device_wake(struct device *device);

/* The context is gone. why: a static string. Any thread; the first reason stays. */
void device_set_lost(struct device *device, const char *why);

/* A thread that takes no signals: those are the loop's. 0 or STOW_NOMEM. */
int device_thread(pthread_t *thread, const char *name, void *(*run)(void *), void *data,
                  struct stow_error *err);

/* HOST_FD, RESIDENT (memfds) and STAGING (anonymous) in host memory, for both backends. */
int host_memory_alloc(struct device_memory *memory, enum memory_kind kind, size_t bytes,
                      struct stow_error *err);
void host_memory_free(struct device_memory *memory);

#endif
