/* SPDX-License-Identifier: Apache-2.0
 *
 * place: bytes are put where they stay: copies, and encoded frames out of their rooms. A thread block takes one job
 * after the other. */
#ifndef STOW_PLACE_CUH
#define STOW_PLACE_CUH

#include "copy.cuh"
#include "work.h"

#define PLACE_THREADS 256u
#define PLACE_BLOCKS 8u /* on each multiprocessor */

/* Put an encoded frame together: see counts_place. */
static __device__ void place_frame(const struct place_job *job, const struct frame_shape *shape)
{
    const struct counts_stream *streams = (const struct counts_stream *)job->encoded;
    const uint32_t patch_words = counts_patch_words(shape->elem_bytes);
    uint32_t *dst = (uint32_t *)job->dst;
    uint32_t at = 2 * job->streams;
    for (uint32_t s = 0; s < job->streams; s++) {
        struct counts_stream stream = streams[s];
        const uint32_t *room =
            (const uint32_t *)(job->src + counts_room_at(shape, job->streams, s));
        const uint32_t *end =
            (const uint32_t *)(job->src + counts_room_at(shape, job->streams, s + 1) / 4 * 4);
        uint32_t n_patch_words = stream.n_patches * patch_words;
        if (threadIdx.x == 0) {
            dst[2 * s] = stream.n_words;
            dst[2 * s + 1] = counts_pack_patches(stream.n_patches, stream.first_tile);
        }
        for (uint32_t i = threadIdx.x; i < n_patch_words; i += PLACE_THREADS)
            dst[at + i] =
                room[(stream.n_patches - 1 - i / patch_words) * patch_words + i % patch_words];
        at += n_patch_words;
        copy_bytes((uint8_t *)(dst + at), (const uint8_t *)(end - stream.n_words),
                   stream.n_words * (uint32_t)sizeof(uint32_t), threadIdx.x, PLACE_THREADS);
        at += stream.n_words;
    }
    for (uint32_t i = at + threadIdx.x; i < job->bytes / sizeof(uint32_t); i += PLACE_THREADS)
        dst[i] = 0;
}

static __global__ void __launch_bounds__(PLACE_THREADS)
    place_bytes(const struct place_job *jobs, uint32_t n, struct frame_shape shape)
{
    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        struct place_job job = jobs[i];
        if (job.streams)
            place_frame(&job, &shape);
        else
            copy_bytes((uint8_t *)job.dst, (const uint8_t *)job.src, job.bytes, threadIdx.x,
                       PLACE_THREADS);
    }
}

#endif
