/* SPDX-License-Identifier: Apache-2.0
 *
 * launch: the CUDA kernels, as C functions. Each returns once enqueued on the stream, not once run:
 * cudaSuccess, or cudaGetLastError of the launch with nothing enqueued. */
#ifndef STOW_LAUNCH_H
#define STOW_LAUNCH_H

#include "work.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Decode n frames of forms bslz4, raw and fill, each on its own.
 *   status_dev  int32, all 0 on entry; a bad frame's becomes STOW_CORRUPT, and no other is written. A bad
 *               frame does not touch its neighbours, its own pixels mean nothing. Device-visible memory.
 *   jobs_dev    device-visible memory (a GPU address; may be mapped host memory)
 *   picks_dev   uint32 [n]: which of jobs_dev; status has the same numbers. NULL: 0 to n - 1
 *   shape       of all of them, by value */
cudaError_t launch_decode(int32_t *status_dev, const struct decode_job *jobs_dev,
                          const uint32_t *picks_dev, size_t n, struct frame_shape shape,
                          cudaStream_t stream);

/* Decode n frames of form counts. As launch_decode, but:
 *   picks_dev   not NULL. Jobs of one segment stand together: a thread block loads the tables anew wherever the
 *               segment changes
 *   options     may be NULL */
struct counts_launch {
    uint32_t
        shared_bytes; /* pretend that a thread block gets no more shared memory than this; 0: what there is */
    bool
        plain_stores; /* leave out the bulk stores, as before sm_90 and for frames that are not 16-byte aligned */
    bool
        overlap; /* what comes before on the stream is a launch like this, which writes elsewhere: begin as it ends */
};
cudaError_t launch_decode_counts(int32_t *status_dev, const struct decode_job *jobs_dev,
                                 const uint32_t *picks_dev, size_t n, struct frame_shape shape,
                                 const struct counts_launch *options, cudaStream_t stream);

/* What work.h tells, all of its items. */
cudaError_t launch_work(const struct work *work, cudaStream_t stream);

/* The kinds of it, each in its own file. */
cudaError_t launch_encode(const struct work *work, cudaStream_t stream); /* ENCODE, PLACE */
/* shared_bytes: pretend that a thread block gets no more shared memory than this; 0: what there is */
cudaError_t launch_encode_within(const struct work *work, uint32_t shared_bytes,
                                 cudaStream_t stream);
cudaError_t launch_rings(const struct work *work, cudaStream_t stream);
cudaError_t launch_view(const struct work *work, cudaStream_t stream); /* VIEW */
cudaError_t launch_sums(const struct work *work, cudaStream_t stream); /* all others */

/* Have every kernel of this library loaded on the current device now, so that no later launch waits for it. */
cudaError_t launch_load_all(void);
cudaError_t launch_load_bslz4(void);
cudaError_t launch_load_counts(void);
cudaError_t launch_load_encode(void);
cudaError_t launch_load_sums(void);
cudaError_t launch_load_rings(void);
cudaError_t launch_load_view(void);

#ifdef __cplusplus
}
#endif
#endif
