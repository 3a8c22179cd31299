/* SPDX-License-Identifier: Apache-2.0
 *
 * device_cuda_lane: a lane is a stream; a fence is an event, the one at its number.
 *
 * What a launch needs lies in rings that were made when the lane was: jobs and status words in mapped
 * host memory, and for larger launches a copy of the jobs on the GPU. Statuses go to their asker when a
 * fence behind them is seen passed. A closed lane is kept for the next that is opened: making and
 * freeing its memory would stall everybody's launches. */
#include "device_cuda.h"

#include "launch.h"

#include <stdlib.h>
#include <string.h>

#define RING_JOBS (2u * LANE_MAX_JOBS) /* see ring_place */
/* A launch of more jobs than this has them copied to the GPU first, rather than read across the bus. */
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
    int32_t *status, *status_mapped;                  /* [RING_JOBS] */
    uint32_t ring_next;
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
    cudaFree(lane->jobs_dev);
    cudaFreeHost(lane->status);
    cudaFreeHost(lane->jobs);
    free(lane);
}

static cudaError_t lane_make(struct cuda_lane *lane, int priority)
{
    const size_t jobs_bytes = RING_JOBS * sizeof(lane->jobs[0]);
    const size_t status_bytes = RING_JOBS * sizeof(lane->status[0]);
    const unsigned flags = cudaHostAllocMapped | cudaHostAllocPortable;
    cudaError_t rc = cudaStreamCreateWithPriority(&lane->stream, cudaStreamNonBlocking, priority);
    for (size_t i = 0; !rc && i < LANE_MAX_FENCES; i++)
        rc = cudaEventCreateWithFlags(&lane->events[i], cudaEventDisableTiming);
    if (!rc)
        rc = cudaHostAlloc((void **)&lane->jobs, jobs_bytes, flags);
    if (!rc)
        rc = cudaHostAlloc((void **)&lane->status, status_bytes, flags);
    if (!rc)
        rc = cudaHostGetDevicePointer((void **)&lane->jobs_mapped, lane->jobs, 0);
    if (!rc)
        rc = cudaHostGetDevicePointer((void **)&lane->status_mapped, lane->status, 0);
    if (!rc)
        rc = cudaMalloc((void **)&lane->jobs_dev, jobs_bytes);
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
    if (!lane)
        return error_set(err, STOW_NOMEM, "no memory for a lane");
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

int cuda_lane_decode(struct lane *head, int32_t *status, const struct decode_job *jobs, size_t n,
                     const struct frame_shape *shape)
{
    struct cuda_lane *lane = (struct cuda_lane *)head;
    struct cuda_device *cuda = device_of(lane);
    const uint32_t at = ring_place(lane, n);
    const struct decode_job *seen = lane->jobs_mapped + at;
    cudaError_t rc = cudaSuccess;
    cuda_enter(cuda);
    memcpy(lane->jobs + at, jobs, n * sizeof(jobs[0]));
    /* Here rather than by the GPU: that would be one more kernel before each decode. */
    memset(lane->status + at, 0, n * sizeof(lane->status[0]));
    if (n > JOBS_COPIED_ABOVE) {
        seen = lane->jobs_dev + at;
        rc = cudaMemcpyAsync(lane->jobs_dev + at, lane->jobs + at, n * sizeof(jobs[0]),
                             cudaMemcpyHostToDevice, lane->stream);
    }
    cudaGetLastError(); /* the launch reports the last error, which should be its own */
    if (!rc)
        rc = launch_decode(lane->status_mapped + at, seen, n, *shape, lane->stream);
    if (rc)
        return cuda_checked(cuda, rc, "launching a decode", NULL);
    lane->ring_next = at + (uint32_t)n;
    lane->decoded[lane->decoded_in++ % LANE_MAX_OPS] =
        (struct decoded){.status = status, .at = at, .n = (uint32_t)n};
    return 0;
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
