/* SPDX-License-Identifier: Apache-2.0
 *
 * launch_bench [device [seconds]]: what the loop thread pays to enqueue a decode while the device's
 * service thread works, against when it does not; and how long one frame takes from enqueue to callback.
 *
 * Each row enqueues single-frame decodes, with a fence every 64, for the given time (default 2 s), while
 * the named memory is allocated and freed over and over. Prints microseconds. */
#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define MAX_SAMPLES 4000000u
#define FRAME_ELEMS (192u * 192u)
#define FRAME_BYTES (FRAME_ELEMS * 2u)

static const struct frame_shape shape = {.n_elems = FRAME_ELEMS, .elem_bytes = 2};

static struct bench {
    struct device *device;
    struct lane *lane;
    struct device_memory stored, ring;
    int wake_fd;
    uint32_t *samples; /* [MAX_SAMPLES] ns */
    size_t n;
} bench;

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void sample(uint64_t since_ns)
{
    if (bench.n < MAX_SAMPLES)
        bench.samples[bench.n++] = (uint32_t)(now_ns() - since_ns);
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void report(const char *name, const char *extra)
{
    size_t n = bench.n;
    qsort(bench.samples, n, sizeof(bench.samples[0]), by_value);
    if (n)
        printf("| %-38s | %8zu | %7.1f | %7.1f | %9.1f | %s |\n", name, n,
               bench.samples[n / 2] / 1e3, bench.samples[n - 1 - n / 100] / 1e3,
               bench.samples[n - 1] / 1e3, extra);
    bench.n = 0;
}

static void wake(void *data)
{
    const uint64_t one = 1;
    (void)data;
    if (write(bench.wake_fd, &one, sizeof(one)) != sizeof(one))
        abort();
}

static void on_done(struct device_request *request)
{
    if (request->status) {
        fprintf(stderr, "%s\n", request->err.text);
        exit(1);
    }
    *(bool *)request->data = true;
}

static void check(int rc, const char *what)
{
    if (!rc)
        return;
    fprintf(stderr, "%s: %s\n", what, stow_strerror(rc));
    exit(1);
}

static void wait_for(const bool *finished)
{
    while (!*finished)
        device_poll(bench.device);
}

static void alloc(struct device_memory *memory, enum memory_kind kind, size_t bytes)
{
    bool finished = false;
    struct device_request request = {.done = on_done, .data = &finished};
    device_alloc(bench.device, memory, kind, bytes, &request);
    wait_for(&finished);
}

static void release(struct device_memory *memory)
{
    bool finished = false;
    struct device_request request = {.done = on_done, .data = &finished};
    device_free(bench.device, memory, &request);
    wait_for(&finished);
}

/* The service thread's work: allocate, free, again, until told to stop. */
struct churn {
    struct device_memory memory;
    struct device_request request;
    enum memory_kind kind;
    size_t bytes;
    unsigned n;
    bool stop, idle;
};

static void on_churn(struct device_request *request)
{
    struct churn *churn = request->data;
    if (request->status) {
        fprintf(stderr, "%s\n", request->err.text);
        exit(1);
    }
    if (churn->memory.bytes) {
        device_free(bench.device, &churn->memory, request);
    } else if (churn->stop) {
        churn->idle = true;
    } else {
        churn->n++;
        device_alloc(bench.device, &churn->memory, churn->kind, churn->bytes, request);
    }
}

static struct decode_job job_at(size_t i)
{
    return (struct decode_job){.src = bench.stored.dev,
                               .dst = bench.ring.dev + i % 64 * FRAME_BYTES,
                               .src_bytes = FRAME_BYTES,
                               .form = STOW_FORM_RAW};
}

static void enqueue_for(double seconds)
{
    static int32_t status[64];
    uint64_t end = now_ns() + (uint64_t)(seconds * 1e9);
    while (now_ns() < end) {
        bool finished = false;
        struct device_request request = {.done = on_done, .data = &finished};
        for (size_t i = 0; i < 64; i++) {
            struct decode_job job = job_at(i);
            uint64_t begin = now_ns();
            check(lane_decode(bench.lane, &status[i], &job, 1, &shape), "lane_decode");
            sample(begin);
        }
        check(lane_fence(bench.lane, &request), "lane_fence");
        wait_for(&finished);
    }
}

static void bench_launches(double seconds)
{
    static const struct {
        const char *name;
        enum memory_kind kind;
        size_t bytes;
    } rows[] = {
        {"nothing", 0, 0},
        {"resident 256 MiB", MEMORY_RESIDENT, 256u << 20},
        {"cuda-fd ring 64 MiB", MEMORY_CUDA_FD, 64u << 20},
        {"cuda-ipc ring 64 MiB", MEMORY_CUDA_IPC, 64u << 20},
        {"host-fd ring 64 MiB", MEMORY_HOST_FD, 64u << 20},
        {"staging 256 MiB", MEMORY_STAGING, 256u << 20},
    };
    const unsigned kinds = device_info(bench.device)->kinds | MEMORY_RESIDENT | MEMORY_STAGING;
    printf("| %-38s | %8s | %7s | %7s | %9s | %s |\n|---|---|---|---|---|---|\n",
           "enqueue one decode, us, meanwhile", "n", "p50", "p99", "max", "rounds");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct churn churn = {.kind = rows[i].kind, .bytes = rows[i].bytes, .idle = !rows[i].kind};
        char rounds[64] = "";
        if (rows[i].kind && !(kinds & rows[i].kind))
            continue;
        churn.request = (struct device_request){.done = on_churn, .data = &churn};
        if (rows[i].kind)
            on_churn(&churn.request);
        uint64_t begin = now_ns();
        enqueue_for(seconds);
        if (churn.n)
            snprintf(rounds, sizeof(rounds), "%u, %.2f ms each", churn.n,
                     (double)(now_ns() - begin) / 1e6 / churn.n);
        churn.stop = true;
        wait_for(&churn.idle);
        report(rows[i].name, rounds);
    }
}

/* One frame on an urgent lane: enqueue, fence, callback. Sleeping: as the loop does when it is woken. */
static void bench_round_trips(bool sleeping, double seconds)
{
    int32_t status;
    uint64_t end = now_ns() + (uint64_t)(seconds * 1e9), woken;
    while (now_ns() < end) {
        bool finished = false;
        struct device_request request = {.done = on_done, .data = &finished};
        struct decode_job job = job_at(0);
        uint64_t begin = now_ns();
        check(lane_decode(bench.lane, &status, &job, 1, &shape), "lane_decode");
        check(lane_fence(bench.lane, &request), "lane_fence");
        while (sleeping && !finished) {
            device_arm(bench.device);
            if (read(bench.wake_fd, &woken, sizeof(woken)) != sizeof(woken))
                abort();
            device_poll(bench.device);
        }
        wait_for(&finished);
        sample(begin);
    }
    report(sleeping ? "one frame, enqueue to callback, sleeping"
                    : "one frame, enqueue to callback, polling",
           "");
}

/* A batch on the lane, polling: where the jobs of a launch come from shows here. */
static void bench_batches(double seconds)
{
    static const size_t sizes[] = {16, 64, 256, 1024, 4096};
    static struct decode_job jobs[4096];
    static int32_t status[4096];
    for (size_t i = 0; i < 4096; i++)
        jobs[i] = job_at(i);
    for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
        char name[64];
        uint64_t end = now_ns() + (uint64_t)(seconds * 1e9);
        while (now_ns() < end) {
            bool finished = false;
            struct device_request request = {.done = on_done, .data = &finished};
            uint64_t begin = now_ns();
            check(lane_decode(bench.lane, status, jobs, sizes[k], &shape), "lane_decode");
            check(lane_fence(bench.lane, &request), "lane_fence");
            wait_for(&finished);
            sample(begin);
        }
        snprintf(name, sizeof(name), "%zu raw frames, polling", sizes[k]);
        report(name, "");
    }
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "host";
    const double seconds = argc > 2 ? atof(argv[2]) : 2;
    struct stow_error err;
    struct device_options options = {.threads = 2, .wake = wake};
    bench.wake_fd = eventfd(0, EFD_CLOEXEC);
    bench.samples = malloc(MAX_SAMPLES * sizeof(bench.samples[0]));
    if (bench.wake_fd < 0 || !bench.samples || device_open(&bench.device, name, &options, &err) ||
        lane_open(&bench.lane, bench.device, LANE_URGENT, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return EXIT_FAILURE;
    }
    memset(bench.samples, 0, MAX_SAMPLES * sizeof(bench.samples[0]));
    printf("%s, %s\n", device_info(bench.device)->name, device_info(bench.device)->model);
    alloc(&bench.stored, MEMORY_RESIDENT, FRAME_BYTES);
    alloc(&bench.ring, MEMORY_RESIDENT, 64 * FRAME_BYTES);
    enqueue_for(.2);
    bench.n = 0;
    bench_launches(seconds);
    bench_round_trips(false, seconds);
    bench_round_trips(true, seconds);
    bench_batches(seconds / 4);
    lane_close(bench.lane);
    release(&bench.stored);
    release(&bench.ring);
    device_close(bench.device);
    free(bench.samples);
    close(bench.wake_fd);
    return EXIT_SUCCESS;
}
