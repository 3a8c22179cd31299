/* SPDX-License-Identifier: Apache-2.0
 *
 * launch: the CUDA kernels, as C functions. Each returns once enqueued on the stream, not once run:
 * cudaSuccess, or cudaGetLastError of the launch with nothing enqueued. */
#ifndef STOW_LAUNCH_H
#define STOW_LAUNCH_H

#include "frame.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Decode n frames, each on its own.
 *   status_dev  int32 [n] all 0 on entry; a bad frame's becomes STOW_CORRUPT, and no other is written. A bad
 *               frame does not touch its neighbours, its own pixels mean nothing. Device-visible memory.
 *   jobs_dev    [n] device-visible memory (a GPU address; may be mapped host memory)
 *   shape       of all of them, by value */
cudaError_t launch_decode(int32_t *status_dev, const struct decode_job *jobs_dev, size_t n,
                          struct frame_shape shape, cudaStream_t stream);

/* Have every kernel of this library loaded on the current device now, so that no later launch waits for it. */
cudaError_t launch_load_all(void);

#ifdef __cplusplus
}
#endif
#endif
