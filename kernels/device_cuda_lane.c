/* SPDX-License-Identifier: Apache-2.0
 *
 * device_cuda_lane: a lane is a stream; a fence is an event, the one at its number.
 *
 * What a launch needs lies in rings that were made when the lane was: jobs, the order they are launched in (picks.h)
 * and status words, in mapped host memory. A decode is one launch for the frames of form counts and one for all
 * others, mostly one in all. Of larger launches of others the jobs are copied to the GPU; those of form counts are
 * read across the bus, each by its own thread block, since a copy in between would keep a launch from beginning
 * while the one before it ends. Statuses go to their asker when a fence behind them is seen passed. A closed lane
 * is kept for the next that is opened: making and freeing its memory would stall everybody's launches. */
#include "device_cuda.h"

#include "launch.h"
#include "picks.h"

#include <stdlib.h>
#include <string.h>

#define RING_JOBS (2u * LANE_MAX_JOBS) /* see ring_place */
/* A launch of more others than this has its jobs copied to the GPU first, rather than read across the bus. */
#define JOBS_COPIED_ABOVE 256u

struct decoded { /* a launch whose statuses are to be copied to its asker */
    int32_t *status;
    uint32_t at, n;
};

struct cuda_lane {
    struct lane head;
    struct cuda_lane *next_spare;
    cudaStream_t stream;
    cudaEvent_t events[LANE_MAX_FENCES];
    struct decode_job *jobs, *jobs_mapped, *jobs_dev; /* [RING_JOBS] */
    uint32_t *picks, *picks_mapped, *picks_dev;       /* [RING_JOBS] */
    int32_t *status, *status_mapped;                  /* [RING_JOBS] */
    struct picks_room *picks_room;
    uint32_t ring_next;
    bool counts_last; /* what was enqueued last, but for fences, is a launch of form counts */
    struct decoded decoded[LANE_MAX_OPS]; /* number i is at i % LANE_MAX_OPS */
    uint64_t decoded_in, decoded_out;
    uint64_t fence_decoded[LANE_MAX_FENCES]; /* decoded_in when the fence was made */
};

static struct cuda_device *device_of(const struct cuda_lane *lane)
{
    return (struct cuda_device *)lane->head.device;
}

static void lane_destroy(struct cuda_lane *lane)
{
    for (size_t i = 0; i < LANE_MAX_FENCES; i++) {
        if (lane->events[i])
            cudaEventDestroy(lane->events[i]);
    }
    if (lane->stream)
        cudaStreamDestroy(lane->stream);
    cudaFree(lane->picks_dev);
    cudaFree(lane->jobs_dev);
    cudaFreeHost(lane->status);
    cudaFreeHost(lane->picks);
    cudaFreeHost(lane->jobs);
    picks_room_free(lane->picks_room);
    free(lane);
}

/* Mapped host memory, and where the GPU sees it. */
static cudaError_t mapped_make(void *host, void *mapped, size_t bytes)
{
    cudaError_t rc = cudaHostAlloc(host, bytes, cudaHostAllocMapped | cudaHostAllocPortable);
    return rc ? rc : cudaHostGetDevicePointer(mapped, *(void **)host, 0);
}

static cudaError_t lane_make(struct cuda_lane *lane, int priority)
{
    const size_t jobs_bytes = RING_JOBS * sizeof(lane->jobs[0]);
    const size_t picks_bytes = RING_JOBS * sizeof(lane->picks[0]);
    const size_t status_bytes = RING_JOBS * sizeof(lane->status[0]);
    cudaError_t rc = cudaStreamCreateWithPriority(&lane->stream, cudaStreamNonBlocking, priority);
    for (size_t i = 0; !rc && i < LANE_MAX_FENCES; i++)
        rc = cudaEventCreateWithFlags(&lane->events[i], cudaEventDisableTiming);
    if (!rc)
        rc = mapped_make(&lane->jobs, &lane->jobs_mapped, jobs_bytes);
    if (!rc)
        rc = mapped_make(&lane->picks, &lane->picks_mapped, picks_bytes);
    if (!rc)
        rc = mapped_make(&lane->status, &lane->status_mapped, status_bytes);
    if (!rc)
        rc = cudaMalloc((void **)&lane->jobs_dev, jobs_bytes);
    if (!rc)
        rc = cudaMalloc((void **)&lane->picks_dev, picks_bytes);
    return rc;
}

int cuda_lane_open(struct lane **out, struct device *device, enum lane_priority priority,
                   struct stow_error *err)
{
    struct cuda_device *cuda = (struct cuda_device *)device;
    struct cuda_lane *lane = cuda->spare[priority];
    cuda_enter(cuda);
    if (lane) {
        cuda->spare[priority] = lane->next_spare;
        *out = &lane->head;
        return 0;
    }
    lane = calloc(1, sizeof(*lane));
    if (lane)
        lane->picks_room = picks_room_new(LANE_MAX_JOBS);
    if (!lane || !lane->picks_room) {
        free(lane);
        return error_set(err, STOW_NOMEM, "no memory for a lane");
    }
    cudaError_t rc = lane_make(lane, cuda->priority[priority]);
    if (rc) {
        lane_destroy(lane);
        return cuda_checked(cuda, rc, "opening a lane", err);
    }
    *out = &lane->head;
    return 0;
}

void cuda_lane_drain(struct lane *head)
{
    struct cuda_lane *lane = (struct cuda_lane *)head;
    cuda_enter(device_of(lane));
    cuda_checked(device_of(lane), cudaStreamSynchronize(lane->stream), "finishing a lane", NULL);
}

void cuda_lane_close(struct lane *head)
{
    struct cuda_lane *lane = (struct cuda_lane *)head;
    struct cuda_device *cuda = device_of(lane);
    enum lane_priority priority = head->priority;
    lane->ring_next = 0;
    lane->decoded_in = lane->decoded_out = 0;
    memset(head, 0, sizeof(*head));
    lane->next_spare = cuda->spare[priority];
    cuda->spare[priority] = lane;
}

int cuda_lane_copy(struct lane *head, uint64_t dst, uint64_t src, size_t bytes)
{
    struct cuda_lane *lane = (struct cuda_lane *)head;
    cuda_enter(device_of(lane));
    lane->counts_last = false;
    cudaError_t rc = cudaMemcpyAsync((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, bytes,
                                     cudaMemcpyDefault, lane->stream);
    return cuda_checked(device_of(lane), rc, "copying", NULL);
}

/* Where in the rings the next n jobs go, in one piece. With at most LANE_MAX_JOBS under way, these n
 * among them, and rings twice as long, the place that this finds is always free: if n do not fit behind
 * the newest, then either the oldest begins past n, or over 2 * (LANE_MAX_JOBS - n) lie between. */
static uint32_t ring_place(const struct cuda_lane *lane, size_t n)
{
    return lane->ring_next + n <= RING_JOBS ? lane->ring_next : 0;
}

/* Launch the n frames from place `first` of the ring on that are not of form counts; picked: some of all, as the
 * picks from `picks` on have it. */
static cudaError_t decode_others(struct cuda_lane *lane, uint32_t first, uint32_t n_all,
                                 uint32_t picks, uint32_t n, const struct frame_shape *shape)
{
    const bool picked = n < n_all;
    const struct decode_job *jobs = lane->jobs_mapped;
    const uint32_t *order = lane->picks_mapped;
    cudaError_t rc = cudaSuccess;
    if (n > JOBS_COPIED_ABOVE) {
        jobs = lane->jobs_dev;
        order = lane->picks_dev;
        rc = cudaMemcpyAsync(lane->jobs_dev + first, lane->jobs + first, n_all * sizeof(jobs[0]),
                             cudaMemcpyHostToDevice, lane->stream);
        if (!rc && picked)
            rc = cudaMemcpyAsync(lane->picks_dev + picks, lane->picks + picks, n * sizeof(order[0]),
                                 cudaMemcpyHostToDevice, lane->stream);
    }
    cudaGetLastError(); /* the launch reports the last error, which should be its own */
    return rc ? rc
              : launch_decode(lane->status_mapped + first, jobs + first,
                              picked ? order + picks : NULL, n, *shape, lane->stream);
}

static cudaError_t decode_launch(struct cuda_lane *lane, uint32_t at, uint32_t n,
                                 const struct frame_shape *shape)
{
    uint32_t n_counts = picks_order(lane->picks + at, lane->jobs + at, n, lane->picks_room);
    const struct counts_launch options = {.overlap = lane->counts_last && n_counts == n};
    lane->counts_last = false;
    if (n_counts < n) {
        cudaError_t rc = decode_others(lane, at, n, at + n_counts, n - n_counts, shape);
        if (rc || !n_counts)
            return rc;
    }
    cudaGetLastError();
    cudaError_t rc =
        launch_decode_counts(lane->status_mapped + at, lane->jobs_mapped + at,
                             lane->picks_mapped + at, n_counts, *shape, &options, lane->stream);
    lane->counts_last = !rc;
    if (rc && n_counts < n)
        cudaStreamSynchronize(lane->stream); /* all of it, or nothing */
    return rc;
}

int cuda_lane_decode(struct lane *head, int32_t *status, const struct decode_job *jobs, size_t n,
                     const struct frame_shape *shape)
{
    struct cuda_lane *lane = (struct cuda_lane *)head;
    const uint32_t at = ring_place(lane, n);
    cuda_enter(device_of(lane));
    memcpy(lane->jobs + at, jobs, n * sizeof(jobs[0]));
    /* Here rather than by the GPU: that would be one more kernel before each decode. */
    memset(lane->status + at, 0, n * sizeof(lane->status[0]));
    cudaError_t rc = decode_launch(lane, at, (uint32_t)n, shape);
    if (rc)
        return cuda_checked(device_of(lane), rc, "launching a decode", NULL);
    lane->ring_next = at + (uint32_t)n;
    lane->decoded[lane->decoded_in++ % LANE_MAX_OPS] =
        (struct decoded){.status = status, .at = at, .n = (uint32_t)n};
    return 0;
}

int cuda_lane_run(struct lane *head, const struct work *work)
{
    struct cuda_lane *lane = (struct cuda_lane *)head;
    cuda_enter(device_of(lane));
    lane->counts_last = false;
    cudaGetLastError();
    return cuda_checked(device_of(lane), launch_work(work, lane->stream), "launching a work", NULL);
}

int cuda_lane_fence(struct lane *head)
{
    struct cuda_lane *lane = (struct cuda_lane *)head;
    size_t i = head->fences_in % LANE_MAX_FENCES;
    cuda_enter(device_of(lane));
    lane->fence_decoded[i] = lane->decoded_in;
    return cuda_checked(device_of(lane), cudaEventRecord(lane->events[i], lane->stream),
                        "recording an event", NULL);
}

static void take_statuses(struct cuda_lane *lane, uint64_t until)
{
    for (; lane->decoded_out < until; lane->decoded_out++) {
        const struct decoded *decoded = &lane->decoded[lane->decoded_out % LANE_MAX_OPS];
        memcpy(decoded->status, lane->status + decoded->at, decoded->n * sizeof(int32_t));
    }
}

uint64_t cuda_lane_reached(struct lane *head)
{
    struct cuda_lane *lane = (struct cuda_lane *)head;
    struct cuda_device *cuda = device_of(lane);
    uint64_t out = head->fences_out, in = head->fences_in;
    cuda_enter(cuda);
    for (; out < in; out++) {
        cudaError_t rc = cudaEventQuery(lane->events[out % LANE_MAX_FENCES]);
        if (rc == cudaErrorNotReady)
            break;
        if (rc) { /* whatever it is, this event will never be passed */
            device_set_lost(&cuda->head, cudaGetErrorString(rc));
            break;
        }
        take_statuses(lane, lane->fence_decoded[out % LANE_MAX_FENCES]);
    }
    return out;
}

bool cuda_lane_ready(struct lane *head)
{
    struct cuda_lane *lane = (struct cuda_lane *)head;
    cuda_enter(device_of(lane));
    return cudaEventQuery(lane->events[head->fences_out % LANE_MAX_FENCES]) != cudaErrorNotReady;
}

void cuda_lanes_free(struct cuda_device *cuda)
{
    for (size_t i = 0; i <= LANE_URGENT; i++) {
        for (struct cuda_lane *lane; (lane = cuda->spare[i]);) {
            cuda->spare[i] = lane->next_spare;
            lane_destroy(lane);
        }
    }
}
