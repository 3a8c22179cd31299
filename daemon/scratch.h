/* SPDX-License-Identifier: Apache-2.0
 *
 * scratch: the memory in which one segment of a load becomes frames of a resident: on the device what kernels
 * work on, and pinned host memory that copies run from and to. Made once for a load and used by one segment
 * after the other. Loop thread only. */
#ifndef STOW_SCRATCH_H
#define STOW_SCRATCH_H

#include "store.h"

/* From one decoded frame to the next: 16-byte aligned, which kernels ask for. */
static inline uint64_t frame_stride(const struct frame_shape *shape)
{
    return (frame_bytes(shape) + 15) / 16 * 16;
}

/* How much of everything. Batch: so many frames have decoded pixels at once. */
struct scratch_sizes {
    struct frame_shape shape;
    uint64_t chunk_bytes;                /* of a segment */
    uint64_t table_words;                /* block tables of a segment, at the usual block size */
    uint32_t batch, n_sample, n_streams; /* n_streams 0: nothing is encoded */
    bool flags;
};

/* One thing's addresses: on the device, and pinned (NULL: it has none there). */
struct scratch_part {
    uint64_t dev;
    void *host;
};

struct scratch {
    struct device *device;
    struct scratch_sizes sizes;
    /* Of the device and pinned; then the same for tables that did not fit there. */
    struct device_memory memory[4];
    struct device_request requests[8]; /* to have each of these, and to give it back */
    unsigned n_requests;
    struct stow_error err; /* code not 0: an allocation failed */
    void (*changed)(void *data);
    void *data;
    uint64_t table_words, pixel_stride;
    struct scratch_part chunks, pixels, rooms, tables, sums, flags, stats, frames, jobs, streams,
        sample, segment, encoder;
};

/* The most that a segment's table may take. */
uint64_t scratch_segment_bytes(const struct frame_shape *shape);
/* What scratch_alloc would take of the device. */
uint64_t scratch_device_bytes(const struct scratch_sizes *sizes);

/* Ask for it; changed is called when n_requests has come down to 0, then err tells. What came is to be given back
 * also after a failure; then this may be called again. */
void scratch_alloc(struct scratch *scratch, struct device *device,
                   const struct scratch_sizes *sizes);
/* Room for more words of block tables, instead of those before; changed is called as above. */
void scratch_grow_tables(struct scratch *scratch, uint64_t words);
/* Give all back; changed is called when that is done. False: there was nothing, it is not called. */
bool scratch_free(struct scratch *scratch);

#endif
