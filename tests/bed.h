/* SPDX-License-Identifier: Apache-2.0
 *
 * bed: what the tests of devices stand on: a device that is polled until something is done, and a bed of
 * memory with frames stored in it. Through the public face of kernels/device.h alone. */
#ifndef STOW_TEST_BED_H
#define STOW_TEST_BED_H

#include "device.h"
#include "test.h"

#include <stdatomic.h>
#include <time.h>

#define FRAME_ELEMS 1003u
#define FRAME_BYTES (FRAME_ELEMS * 2u)
#define BED_STAGING_BYTES (1u << 20)

static atomic_uint n_wakes;
static unsigned n_done;

static const struct frame_shape bed_shape = {.n_elems = FRAME_ELEMS,
                                             .elem_bytes = 2,
                                             .fill = 0xabcd};

static inline void wake(void *data)
{
    (void)data;
    atomic_fetch_add(&n_wakes, 1);
}

static inline void done(struct device_request *request)
{
    n_done++;
    *(bool *)request->data = true;
}

static inline void pause_us(long us)
{
    nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
}

/* Poll until the request's callback ran; 20 s at most. */
static inline int wait_for(struct device *device, struct device_request *request)
{
    bool *finished = request->data;
    for (int i = 0; i < 200000 && !*finished; i++) {
        device_poll(device);
        if (!*finished)
            pause_us(100);
    }
    CHECK_MSG(*finished, "a request did not finish");
    return request->status;
}

static inline int alloc_wait(struct device *device, struct device_memory *memory,
                             enum memory_kind kind, size_t bytes, struct stow_error *err)
{
    bool finished = false;
    struct device_request request = {.done = done, .data = &finished};
    device_alloc(device, memory, kind, bytes, &request);
    int rc = wait_for(device, &request);
    *err = request.err;
    CHECK_MSG(!rc || err->code == rc, "status %d, error %d", rc, err->code);
    return rc;
}

static inline void free_wait(struct device *device, struct device_memory *memory)
{
    bool finished = false;
    struct device_request request = {.done = done, .data = &finished};
    device_free(device, memory, &request);
    CHECK_INT(wait_for(device, &request), 0);
    CHECK(!memory->dev && !memory->host && !memory->bytes);
}

static inline int fence_wait(struct device *device, struct lane *lane)
{
    bool finished = false;
    struct device_request request = {.done = done, .data = &finished};
    int rc = lane_fence(lane, &request);
    return rc ? rc : wait_for(device, &request);
}

/* What frame i, element e holds. */
static inline uint16_t pixel(size_t i, size_t e)
{
    return (uint16_t)(i * 7919u + e * 31u + 5u);
}

/* Memory of one device with a lane, and frames stored in it. */
struct bed {
    struct device *device;
    struct lane *lane;
    struct device_memory stored, ring, staging;
    size_t n;
};

static inline struct bed bed_open(struct device *device, size_t n)
{
    struct stow_error err;
    struct bed bed = {.device = device, .n = n};
    CHECK_INT(alloc_wait(device, &bed.stored, MEMORY_RESIDENT, n * FRAME_BYTES, &err), 0);
    CHECK_INT(alloc_wait(device, &bed.ring, MEMORY_HOST_FD, n * FRAME_BYTES, &err), 0);
    CHECK_INT(alloc_wait(device, &bed.staging, MEMORY_STAGING, n * FRAME_BYTES, &err), 0);
    CHECK_INT(lane_open(&bed.lane, device, LANE_BULK, &err), 0);
    uint16_t *pixels = (uint16_t *)bed.staging.host;
    for (size_t i = 0; i < n * FRAME_ELEMS; i++)
        pixels[i] = pixel(i / FRAME_ELEMS, i % FRAME_ELEMS);
    CHECK_INT(lane_upload(bed.lane, bed.stored.dev, pixels, n * FRAME_BYTES), 0);
    CHECK_INT(fence_wait(device, bed.lane), 0);
    return bed;
}

static inline void bed_close(struct bed *bed)
{
    if (bed->lane)
        lane_close(bed->lane);
    device_poll(bed->device);
    free_wait(bed->device, &bed->stored);
    free_wait(bed->device, &bed->ring);
    free_wait(bed->device, &bed->staging);
}

/* Frame i of the bed, raw; in slot i. */
static inline struct decode_job raw_job(const struct bed *bed, size_t i)
{
    return (struct decode_job){.src = bed->stored.dev + i * FRAME_BYTES,
                               .dst = bed->ring.dev + i * FRAME_BYTES,
                               .src_bytes = FRAME_BYTES,
                               .form = STOW_FORM_RAW};
}

static inline size_t wrong_pixels(const struct bed *bed, size_t slot, size_t frame)
{
    const uint16_t *got = (const uint16_t *)(bed->ring.host + slot * FRAME_BYTES);
    size_t wrong = 0;
    for (size_t e = 0; e < FRAME_ELEMS; e++)
        wrong += got[e] != pixel(frame, e);
    return wrong;
}

/* Run the cases on the host with 0, 1 and 4 threads, or on the device named on the command line. */
static inline int bed_main(int argc, char **argv,
                           void (*cases)(struct device *device, unsigned threads))
{
    static const unsigned host_threads[] = {0, 1, 4};
    for (size_t i = 0; i < (argc > 1 ? 1 : 3); i++) {
        struct device *device;
        struct stow_error err;
        struct device_options options = {.threads = host_threads[i],
                                         .wake = wake,
                                         .staging_bytes = BED_STAGING_BYTES};
        int rc = device_open(&device, argc > 1 ? argv[1] : "host", &options, &err);
        if (rc) {
            printf("skipped: %s\n", err.text);
            return argc > 1 ? TEST_SKIP : EXIT_FAILURE;
        }
        cases(device, host_threads[i]);
        CHECK_INT(device_poll(device), 0);
        device_close(device);
    }
    return test_end();
}

#endif
