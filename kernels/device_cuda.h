/* SPDX-License-Identifier: Apache-2.0
 *
 * device_cuda: what its three files share. device_cuda.c has errors, memory, opening and closing;
 * device_cuda_driver.c finds libcuda and a GPU; device_cuda_lane.c has the lanes. */
#ifndef STOW_DEVICE_CUDA_H
#define STOW_DEVICE_CUDA_H

#include "device_ops.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

/* The functions of libcuda that the runtime has no name for. */
#define DRIVER_CALLS(X)          \
    X(cuInit)                    \
    X(cuDeviceGetAttribute)      \
    X(cuDevicePrimaryCtxRetain)  \
    X(cuDevicePrimaryCtxRelease) \
    X(cuCtxSetCurrent)           \
    X(cuMemCreate)               \
    X(cuMemRelease)              \
    X(cuMemAddressReserve)       \
    X(cuMemAddressFree)          \
    X(cuMemMap)                  \
    X(cuMemUnmap)                \
    X(cuMemSetAccess)            \
    X(cuMemExportToShareableHandle)

#define DECLARE(name) __typeof__(name) *name;

struct driver {
    void *library;
    DRIVER_CALLS(DECLARE)
};

struct cuda_device {
    struct device head;
    struct driver driver;
    CUcontext context;
    int index;
    bool has_fd, probed;
    int priority[LANE_URGENT + 1];
    cudaStream_t service; /* to zero memory on */
    struct cuda_lane *spare[LANE_URGENT + 1];
};

/* What a call returned, as 0 or STOW_DEVICE. Takes it out of the runtime's last error, too; a fault that
 * the context does not survive makes the device lost. */
int cuda_checked(struct cuda_device *cuda, cudaError_t rc, const char *what,
                 struct stow_error *err);

/* Have this thread's calls, of the runtime too, go to this GPU. The loop may serve several. */
static inline void cuda_enter(const struct cuda_device *cuda)
{
    cuda->driver.cuCtxSetCurrent(cuda->context);
}

/* Find the driver and GPU number index (-1: the one with the most free memory) and hold its primary
 * context. Says cause and remedy. driver_close undoes what was done, after a failure too. */
int cuda_driver_open(struct cuda_device *cuda, int index, struct stow_error *err);
void cuda_driver_close(struct cuda_device *cuda);

int cuda_lane_open(struct lane **lane, struct device *device, enum lane_priority priority,
                   struct stow_error *err);
void cuda_lane_drain(struct lane *lane);
void cuda_lane_close(struct lane *lane);
int cuda_lane_copy(struct lane *lane, uint64_t dst, uint64_t src, size_t bytes);
int cuda_lane_decode(struct lane *lane, int32_t *status, const struct decode_job *jobs, size_t n,
                     const struct frame_shape *shape);
int cuda_lane_run(struct lane *lane, const struct work *work);
int cuda_lane_fence(struct lane *lane);
uint64_t cuda_lane_reached(struct lane *lane);
bool cuda_lane_ready(struct lane *lane);
void cuda_lanes_free(struct cuda_device *cuda); /* the closed ones, which are kept */

#endif
