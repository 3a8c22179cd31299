/* SPDX-License-Identifier: Apache-2.0
 *
 * view on the GPU against the steps of view_cases.h, on the cases of the CPU's test and bit for bit; memory is managed,
 * so that both sides see the same addresses. And how fast it is.
 *
 *   gpu_view_test [--short]    --short: few cases, for runs under compute-sanitizer
 *   gpu_view_test --bench      a line of JSON for each view of 8,192 frames of 192 x 192: the median of 21 runs */
#include "launch.h"
#include "view_cases.h"

#include <cuda_runtime_api.h>

#define ARENA_BYTES (64ull << 20)
#define BENCH_FRAMES 8192u
#define BENCH_SIDE 192u
#define N_RUNS 21

static uint8_t *arena;
static size_t used;

static void must(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    exit(EXIT_FAILURE);
}

static void *bed_alloc(size_t bytes)
{
    uint8_t *memory = arena + used;
    size_t whole = (bytes + 16 + 63) / 64 * 64;
    if (whole > ARENA_BYTES - used) {
        fprintf(stderr, "the arena is too small\n");
        exit(EXIT_FAILURE);
    }
    memset(memory, 0xa5, whole);
    used += whole;
    return memory;
}

static void bed_reset(void)
{
    used = 0;
}

static void bed_run(const struct work *work)
{
    must(launch_work(work, NULL), "launch");
    must(cudaDeviceSynchronize(), "work");
}

/* ---- the bench ----------------------------------------------------------------------------------- */

static float run_once(const struct work *work, cudaEvent_t begin, cudaEvent_t end)
{
    float ms;
    must(cudaEventRecord(begin, NULL), "event");
    must(launch_work(work, NULL), "launch");
    must(cudaEventRecord(end, NULL), "event");
    must(cudaEventSynchronize(end), "work");
    must(cudaEventElapsedTime(&ms, begin, end), "time");
    return ms;
}

static int by_ms(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static void bench_one(const char *name, const struct view_wish *wish, bool has_flags)
{
    const struct view view = view_of_wish(wish);
    const size_t in = (size_t)BENCH_SIDE * BENCH_SIDE * 2, out = view_bytes(&view);
    uint8_t *frames, *results, *flags;
    int32_t *status;
    float ms[N_RUNS];
    cudaEvent_t begin, end;
    must(cudaMalloc((void **)&frames, in * BENCH_FRAMES), "memory");
    must(cudaMalloc((void **)&results, out * BENCH_FRAMES), "memory");
    must(cudaMalloc((void **)&flags, in), "memory");
    must(cudaMalloc((void **)&status, BENCH_FRAMES * sizeof(*status)), "memory");
    must(cudaMemset(frames, 1, in * BENCH_FRAMES), "memory");
    must(cudaMemset(flags, 0, in), "memory");
    must(cudaMemset(flags, 1, BENCH_SIDE), "memory");
    must(cudaEventCreate(&begin), "event");
    must(cudaEventCreate(&end), "event");
    const struct work work = {.kind = WORK_VIEW,
                              .n = BENCH_FRAMES,
                              .view = {.src = (uintptr_t)frames,
                                       .src_stride = in,
                                       .dst = (uintptr_t)results,
                                       .dst_stride = out,
                                       .flags = has_flags ? (uintptr_t)flags : 0,
                                       .status = (uintptr_t)status,
                                       .view = view}};
    for (int i = -3; i < N_RUNS; i++)
        ms[i < 0 ? 0 : i] = run_once(&work, begin, end);
    qsort(ms, N_RUNS, sizeof(ms[0]), by_ms);
    printf(
        "{\"bench\": \"view\", \"view\": \"%s\", \"frames\": %u, \"ms\": %.3f, \"GB_s\": %.0f}\n",
        name, BENCH_FRAMES, (double)ms[N_RUNS / 2],
        (double)((in + out) * BENCH_FRAMES) / (double)ms[N_RUNS / 2] * 1e-6);
    must(cudaEventDestroy(begin), "event");
    must(cudaEventDestroy(end), "event");
    void *memories[] = {frames, results, flags, status};
    for (size_t i = 0; i < sizeof(memories) / sizeof(memories[0]); i++)
        must(cudaFree(memories[i]), "free");
}

static void bench(void)
{
    const struct view_wish plain = plain_wish(BENCH_SIDE, BENCH_SIDE, VIEW_U2);
    struct view_wish w = plain;
    w.shift = true;
    bench_one("fftshift", &w, false);
    w.out = VIEW_ROOT;
    w.out_bytes = 4;
    bench_one("sqrt fftshift", &w, false);
    w.pad_y = w.pad_x = 256;
    bench_one("sqrt pad 256 fftshift", &w, false);
    w = plain;
    w.correction = VIEW_MEDIAN;
    bench_one("median", &w, true);
    w = plain;
    w.out = VIEW_F2;
    bench_one("f2", &w, false);
    for (w = plain, w.bin = 2; w.bin <= 192; w.bin = w.bin < 16 ? 2 * w.bin : 12 * w.bin) {
        char name[16];
        snprintf(name, sizeof(name), "bin %u", w.bin);
        bench_one(name, &w, false);
    }
}

int main(int argc, char **argv)
{
    const struct view_bed bed = {bed_run, bed_alloc, bed_reset};
    int n_devices = 0;
    if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) {
        printf("no GPU here\n");
        return TEST_SKIP;
    }
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        bench();
        return 0;
    }
    const bool brief = argc > 1 && strcmp(argv[1], "--short") == 0;
    must(cudaMallocManaged((void **)&arena, ARENA_BYTES, cudaMemAttachGlobal), "memory");
    if (!brief) {
        test_each_alone(&bed);
        test_reals(&bed);
    }
    test_long_rows(&bed);
    test_random_views(&bed, brief ? 40 : 3000, 24);
    test_random_views(&bed, brief ? 2 : 100, 150);
    must(cudaFree(arena), "free");
    return test_end();
}
