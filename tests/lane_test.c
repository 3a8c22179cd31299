/* SPDX-License-Identifier: Apache-2.0
 *
 * lane_test [device]: order, bounds and results of lanes, on the host with 0, 1 and 4 threads, or on the
 * device named (cuda:0). */
#include "bed.h"

#include "bslz4.h"

static void test_round_trip(struct device *device, size_t n)
{
    struct bed bed = bed_open(device, n);
    struct decode_job *jobs = calloc(n, sizeof(jobs[0]));
    int32_t *status = calloc(n, sizeof(status[0]));
    for (size_t i = 0; i < n; i++) {
        jobs[i] = raw_job(&bed, i);
        status[i] = 99;
        if (i % 5 == 3)
            jobs[i] = (struct decode_job){.dst = jobs[i].dst, .form = STOW_FORM_FILL};
        if (i % 5 == 4)
            jobs[i].src_bytes--; /* not a frame: damaged */
    }
    CHECK_INT(lane_decode(bed.lane, status, jobs, n, &bed_shape), 0);
    memset(jobs, 0xff, n * sizeof(jobs[0])); /* they were copied */
    CHECK_INT(fence_wait(device, bed.lane), 0);
    size_t wrong = 0, wrong_status = 0;
    for (size_t i = 0; i < n; i++) {
        const uint16_t *got = (const uint16_t *)(bed.ring.host + i * FRAME_BYTES);
        wrong_status += status[i] != (i % 5 == 4 ? STOW_CORRUPT : 0);
        if (i % 5 < 3)
            wrong += wrong_pixels(&bed, i, i);
        for (size_t e = 0; e < FRAME_ELEMS && i % 5 == 3; e++)
            wrong += got[e] != 0xabcd;
    }
    CHECK_MSG(!wrong && !wrong_status, "n %zu: %zu wrong pixels, %zu wrong statuses", n, wrong,
              wrong_status);
    memset(bed.staging.host, 0, n * FRAME_BYTES);
    CHECK_INT(lane_download(bed.lane, bed.staging.host, bed.stored.dev, n * FRAME_BYTES), 0);
    CHECK_INT(fence_wait(device, bed.lane), 0);
    const uint16_t *pixels = (const uint16_t *)bed.staging.host;
    wrong = 0;
    for (size_t i = 0; i < n * FRAME_ELEMS; i++)
        wrong += pixels[i] != pixel(i / FRAME_ELEMS, i % FRAME_ELEMS);
    CHECK_MSG(!wrong, "n %zu: %zu pixels differ after the download", n, wrong);
    free(status);
    free(jobs);
    bed_close(&bed);
}

/* A chunk as filter 32008 writes it, with LZ4 blocks that are literals alone: frame i of pixel(). */
static size_t make_chunk(uint8_t *chunk, size_t i)
{
    enum { BLOCK = 512, LITERALS = 2 + (BLOCK - 15) / 255 }; /* bytes; token and length bytes */
    const size_t n_whole = FRAME_BYTES / 16 * 16; /* a multiple of 8 elements; the rest is raw */
    uint8_t *at = chunk;
    memcpy(at,
           (uint8_t[]){0, 0, 0, 0, 0, 0, FRAME_BYTES >> 8, FRAME_BYTES & 255, 0, 0, BLOCK >> 8, 0},
           BSLZ4_HEADER_BYTES);
    at += BSLZ4_HEADER_BYTES;
    for (size_t begin = 0; begin < n_whole; begin += BLOCK) {
        size_t n = n_whole - begin < BLOCK ? n_whole - begin : BLOCK;
        uint8_t *length = at;
        at += 4;
        *at++ = 0xf0;
        size_t left = n - 15;
        for (; left >= 255; left -= 255)
            *at++ = 255;
        *at++ = (uint8_t)left;
        memset(at, 0, n);
        for (size_t e = 0; e < n / 2; e++) {
            uint16_t value = pixel(i, begin / 2 + e);
            for (size_t bit = 0; bit < 16; bit++)
                at[bit * (n / 16) + e / 8] |= (uint8_t)((value >> bit & 1) << e % 8);
        }
        at += n;
        size_t stored = (size_t)(at - length) - 4;
        memcpy(length, (uint8_t[]){0, 0, (uint8_t)(stored >> 8), (uint8_t)stored}, 4);
    }
    for (size_t e = n_whole / 2; e < FRAME_ELEMS; e++) {
        uint16_t value = pixel(i, e);
        memcpy(at, &value, 2);
        at += 2;
    }
    return (size_t)(at - chunk);
}

/* Real chunks and their block tables, as the loader keeps them; every third is damaged. */
static void test_bslz4(struct device *device)
{
    enum {
        N = 300,
        ROOM = 4096,
        TABLE = 3072
    }; /* bytes of a chunk and its table; where that lies */
    struct bed bed = bed_open(device, N);
    struct device_memory chunks = {0};
    struct stow_error err = {0};
    uint8_t *host = calloc(N, ROOM);
    struct decode_job jobs[N];
    int32_t status[N];
    CHECK_INT(alloc_wait(device, &chunks, MEMORY_RESIDENT, N * ROOM, &err), 0);
    for (size_t i = 0; i < N; i++) {
        uint8_t *chunk = host + i * ROOM;
        size_t n_blocks, bytes = make_chunk(chunk, i);
        CHECK(bytes <= TABLE);
        CHECK_MSG(bslz4_index((uint32_t *)(chunk + TABLE), (ROOM - TABLE) / 4, &n_blocks, chunk,
                              bytes, &bed_shape, &err) == 0,
                  "%s", err.text);
        if (i % 3 == 2)
            memset(chunk + BSLZ4_HEADER_BYTES + 4, 0, 3); /* a match at offset 0 */
        jobs[i] = (struct decode_job){.src = chunks.dev + i * ROOM,
                                      .blocks = chunks.dev + i * ROOM + TABLE,
                                      .dst = bed.ring.dev + i * FRAME_BYTES,
                                      .src_bytes = (uint32_t)bytes,
                                      .form = STOW_FORM_BSLZ4};
    }
    CHECK_INT(lane_upload(bed.lane, chunks.dev, host, N * ROOM), 0);
    CHECK_INT(lane_decode(bed.lane, status, jobs, N, &bed_shape), 0);
    CHECK_INT(fence_wait(device, bed.lane), 0);
    size_t wrong = 0, wrong_status = 0;
    for (size_t i = 0; i < N; i++) {
        wrong_status += status[i] != (i % 3 == 2 ? STOW_CORRUPT : 0);
        wrong += i % 3 == 2 ? 0 : wrong_pixels(&bed, i, i);
    }
    CHECK_MSG(!wrong && !wrong_status, "%zu wrong pixels, %zu wrong statuses", wrong, wrong_status);
    free_wait(device, &chunks);
    free(host);
    bed_close(&bed);
}

/* Each operation reads what the one before it wrote: a chain of copies, one frame further each time. */
static void test_order(struct device *device)
{
    enum { n = 100 };
    struct bed bed = bed_open(device, n);
    int32_t status[n];
    uint64_t ring = bed.ring.dev;
    CHECK_INT(lane_upload(bed.lane, ring, bed.staging.host, FRAME_BYTES), 0);
    for (size_t i = 1; i < n; i++) {
        struct decode_job job = raw_job(&bed, i);
        job.src = ring + (i - 1) * FRAME_BYTES;
        CHECK_INT(lane_decode(bed.lane, &status[i], &job, 1, &bed_shape), 0);
        if (i % 10 == 0)
            CHECK_INT(fence_wait(device, bed.lane), 0);
    }
    CHECK_INT(fence_wait(device, bed.lane), 0);
    CHECK_INT(wrong_pixels(&bed, n - 1, 0), 0);
    bed_close(&bed);
}

/* Fences of a lane come back in order, none outside device_poll, all exactly once. */
static unsigned fence_order[8], n_fences_back;

static void on_fence(struct device_request *request)
{
    fence_order[n_fences_back++] = *(unsigned *)request->data;
}

static void test_fences(struct device *device)
{
    struct bed bed = bed_open(device, 64);
    struct device_request requests[8] = {0};
    unsigned numbers[8];
    int32_t status[64];
    struct decode_job jobs[64];
    n_fences_back = 0;
    for (size_t i = 0; i < 64; i++)
        jobs[i] = raw_job(&bed, i);
    for (unsigned i = 0; i < 8; i++) {
        numbers[i] = i;
        requests[i] = (struct device_request){.done = on_fence, .data = &numbers[i]};
        if (i != 3) /* one stands directly behind another */
            CHECK_INT(lane_decode(bed.lane, status, jobs, 64, &bed_shape), 0);
        CHECK_INT(lane_fence(bed.lane, &requests[i]), 0);
    }
    CHECK_INT(n_fences_back, 0); /* nothing calls back but device_poll */
    while (n_fences_back < 8 && device_poll(device))
        pause_us(50);
    CHECK_INT(n_fences_back, 8);
    for (unsigned i = 0; i < 8; i++) {
        CHECK_INT(fence_order[i], i);
        CHECK_INT(requests[i].status, 0);
    }
    CHECK_INT(device_poll(device), 0);
    bed_close(&bed);
}

static void test_parallel_lanes(struct device *device)
{
    enum { N_LANES = 4, N = 200 };
    struct bed bed = bed_open(device, N_LANES * N);
    struct lane *lanes[N_LANES];
    struct device_request requests[N_LANES];
    bool finished[N_LANES] = {false};
    static struct decode_job jobs[N_LANES][N];
    static int32_t status[N_LANES][N];
    struct stow_error err;
    for (unsigned k = 0; k < N_LANES; k++) {
        CHECK_INT(lane_open(&lanes[k], device, k % 2 ? LANE_URGENT : LANE_BULK, &err), 0);
        requests[k] = (struct device_request){.done = done, .data = &finished[k]};
        for (size_t i = 0; i < N; i++)
            jobs[k][i] = raw_job(&bed, k * N + i);
        CHECK_INT(lane_decode(lanes[k], status[k], jobs[k], N, &bed_shape), 0);
        CHECK_INT(lane_fence(lanes[k], &requests[k]), 0);
    }
    for (unsigned k = 0; k < N_LANES; k++)
        CHECK_INT(wait_for(device, &requests[k]), 0);
    size_t wrong = 0;
    for (size_t i = 0; i < N_LANES * N; i++)
        wrong += wrong_pixels(&bed, i, i);
    CHECK_INT(wrong, 0);
    for (unsigned k = 0; k < N_LANES; k++)
        lane_close(lanes[k]);
    bed_close(&bed);
}

/* The bound is met with BUSY, nothing is enqueued, and a fence opens the lane again; many times around. */
static void test_busy(struct device *device)
{
    struct bed bed = bed_open(device, 1);
    struct decode_job *jobs = calloc(LANE_MAX_JOBS + 1, sizeof(jobs[0]));
    int32_t *status = calloc(LANE_MAX_JOBS + 1, sizeof(status[0]));
    for (size_t i = 0; i <= LANE_MAX_JOBS; i++) {
        jobs[i] = raw_job(&bed, 0);
        jobs[i].dst = 0;
    }
    CHECK_INT(lane_decode(bed.lane, status, jobs, LANE_MAX_JOBS + 1, &bed_shape), STOW_INVALID);
    for (int round = 0; round < 5; round++) {
        const size_t n = 20000u - 3000u * (size_t)round;
        for (size_t i = 0; i < n; i++)
            status[i] = 99;
        CHECK_INT(lane_decode(bed.lane, status, jobs, n, &bed_shape), 0);
        CHECK_INT(lane_decode(bed.lane, status, jobs, LANE_MAX_JOBS - n + 1, &bed_shape),
                  STOW_BUSY);
        CHECK_INT(fence_wait(device, bed.lane), 0);
        size_t unwritten = 0;
        for (size_t i = 0; i < n; i++)
            unwritten += status[i] != 0;
        CHECK_MSG(!unwritten, "round %d: %zu statuses not written", round, unwritten);
    }
    int rc = 0, n_ops = 0;
    for (; !rc && n_ops < 100000; n_ops++)
        rc = lane_upload(bed.lane, bed.stored.dev, bed.staging.host, 1);
    CHECK_INT(rc, STOW_BUSY);
    CHECK_INT(fence_wait(device, bed.lane), 0);
    CHECK_INT(lane_upload(bed.lane, bed.stored.dev, bed.staging.host, 1), 0);
    CHECK_INT(fence_wait(device, bed.lane), 0);
    free(status);
    free(jobs);
    bed_close(&bed);
}

/* A work is one operation, whatever its items; one of none is none. It is done in its turn. */
static void test_busy_works(struct device *device)
{
    struct bed bed = bed_open(device, 2);
    struct place_job job = {.src = bed.stored.dev,
                            .dst = bed.stored.dev + FRAME_BYTES,
                            .bytes = FRAME_BYTES};
    struct work work = {.kind = WORK_PLACE, .place = {.jobs = bed.ring.dev}};
    struct decode_job second = raw_job(&bed, 1);
    int32_t status;
    int rc = 0, n_ops = 0;
    for (int i = 0; i < 1000; i++)
        CHECK_INT(lane_run(bed.lane, &work), 0);
    work.n = 1;
    CHECK_INT(lane_upload(bed.lane, bed.ring.dev, &job, sizeof(job)), 0);
    for (; !rc && n_ops < 100000; n_ops++)
        rc = lane_run(bed.lane, &work);
    CHECK_INT(rc, STOW_BUSY);
    CHECK(n_ops > 100);
    CHECK_INT(fence_wait(device, bed.lane), 0);
    CHECK_INT(lane_run(bed.lane, &work), 0);
    CHECK_INT(lane_decode(bed.lane, &status, &second, 1, &bed_shape), 0);
    CHECK_INT(fence_wait(device, bed.lane), 0);
    CHECK_INT(wrong_pixels(&bed, 1, 0), 0);
    bed_close(&bed);
}

static void test_too_many_fences(struct device *device)
{
    enum { N = 1000 };
    static struct device_request requests[N];
    static bool finished[N];
    struct bed bed = bed_open(device, 1);
    int rc = 0, n = 0;
    unsigned before = n_done;
    for (; !rc && n < N; n++) {
        finished[n] = false;
        requests[n] = (struct device_request){.done = done, .data = &finished[n]};
        rc = lane_fence(bed.lane, &requests[n]);
    }
    CHECK_INT(rc, STOW_BUSY);
    lane_close(bed.lane);
    bed.lane = NULL;
    CHECK_INT(n_done, before); /* they finish at the next poll */
    device_poll(device);
    CHECK_INT(n_done - before, n - 1);
    bed_close(&bed);
}

static void test_close_under_way(struct device *device)
{
    enum { N = 2000 };
    struct bed bed = bed_open(device, N);
    struct decode_job *jobs = calloc(N, sizeof(jobs[0]));
    int32_t *status = calloc(N, sizeof(status[0]));
    bool finished = false;
    struct device_request request = {.done = done, .data = &finished};
    for (size_t i = 0; i < N; i++)
        jobs[i] = raw_job(&bed, i);
    for (int i = 0; i < 4; i++)
        CHECK_INT(lane_decode(bed.lane, status, jobs, N, &bed_shape), 0);
    CHECK_INT(lane_fence(bed.lane, &request), 0);
    CHECK_INT(lane_upload(bed.lane, bed.stored.dev, bed.staging.host, FRAME_BYTES), 0);
    lane_close(bed.lane);
    bed.lane = NULL;
    CHECK(!finished);
    CHECK_INT(wait_for(device, &request), 0);
    size_t wrong = 0;
    for (size_t i = 0; i < N; i++)
        wrong += wrong_pixels(&bed, i, i);
    CHECK_INT(wrong, 0);
    free(status);
    free(jobs);
    bed_close(&bed);
}

/* With no threads, nothing happens outside device_poll and everything does in one. */
static void test_no_threads(struct device *device)
{
    struct bed bed = bed_open(device, 100);
    struct decode_job jobs[100];
    int32_t status[100];
    bool finished[2] = {false, false};
    struct device_request requests[2] = {{.done = done, .data = &finished[0]},
                                         {.done = done, .data = &finished[1]}};
    struct device_memory memory = {0};
    for (size_t i = 0; i < 100; i++) {
        jobs[i] = raw_job(&bed, i);
        status[i] = 99;
    }
    CHECK_INT(lane_decode(bed.lane, status, jobs, 100, &bed_shape), 0);
    CHECK_INT(lane_fence(bed.lane, &requests[0]), 0);
    device_alloc(device, &memory, MEMORY_HOST_FD, 1, &requests[1]);
    pause_us(5000);
    CHECK_INT(status[0], 99);
    CHECK(!memory.host && !finished[0] && !finished[1]);
    CHECK_INT(device_poll(device), 0);
    CHECK(finished[0] && finished[1] && memory.host);
    CHECK_INT(status[99], 0);
    free_wait(device, &memory);
    bed_close(&bed);
}

static void cases(struct device *device, unsigned threads)
{
    static const size_t sizes[] = {1, 64, 65, 3000};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        test_round_trip(device, sizes[i]);
    test_bslz4(device);
    test_order(device);
    test_fences(device);
    test_parallel_lanes(device);
    test_busy(device);
    test_busy_works(device);
    test_too_many_fences(device);
    test_close_under_way(device);
    if (!threads && !device_info(device)->is_gpu)
        test_no_threads(device);
}

int main(int argc, char **argv)
{
    return bed_main(argc, argv, cases);
}
