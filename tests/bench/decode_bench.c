/* SPDX-License-Identifier: Apache-2.0
 *
 * decode_bench [--host]: how fast bslz4 chunks become pixels, on this GPU and on one thread of the host.
 *
 * Frames of 192 x 192 uint16 as the simulator makes them. Chunks and frames of the GPU lie apart from each
 * other, and a run takes the next ones of 16,384, so that nothing is in the L2 from the run before. A figure
 * is decoded bytes over the time between two CUDA events, the median of 21 runs, with the fastest and the
 * slowest; the frames of the last run are compared with the counts. A lone frame is timed by the clock, from
 * the launch to the return of cudaStreamSynchronize. The last line is a JSON object.
 *
 * --host: without a GPU. Exits 1 if a pixel differs. */
#include "bslz4.h"
#include "launch.h"
#include "simulate_bslz4.h"
#include "simulate_counts.h"

#include <cuda_runtime_api.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SIDE 192u
#define FRAME_BYTES (SIDE * SIDE * 2u)
#define N_DISTINCT 256u /* frames of other counts */
#define N_FRAMES 16384u /* places for chunks and frames on the GPU */
#define N_RUNS 21u
#define N_LONE 2001u

static const struct frame_shape shape = {.n_elems = SIDE * SIDE, .elem_bytes = 2};

static void *must_alloc(size_t bytes)
{
    void *memory = malloc(bytes);
    if (!memory) {
        fprintf(stderr, "out of memory\n");
        exit(EXIT_FAILURE);
    }
    return memory;
}

static void must(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    exit(EXIT_FAILURE);
}

/* ---- the data ------------------------------------------------------------------------------------- */

/* N_DISTINCT frames, and their chunks with block tables, one after the other. */
struct data {
    const char *name;
    uint8_t *pixels;
    uint8_t *chunks;
    uint32_t *tables; /* [N_DISTINCT, table_entries] */
    size_t offset[N_DISTINCT + 1];
    size_t table_entries;
};

static void make_data(struct data *data, const char *name, bool thick, double dose)
{
    const struct counts_options options = {.scan_y = 16,
                                           .scan_x = 16,
                                           .det_y = SIDE,
                                           .det_x = SIDE,
                                           .elem_bytes = 2,
                                           .thick = thick,
                                           .dose = dose,
                                           .seed = 1};
    struct counts *counts = counts_new(&options);
    size_t block = chunk_default_block(2), bound = chunk_bound(shape.n_elems, 2, block), n_blocks;
    uint32_t *scratch = must_alloc(shape.n_elems * sizeof(*scratch));
    *data = (struct data){.name = name, .table_entries = FRAME_BYTES / 8192 + 1};
    data->pixels = must_alloc((size_t)N_DISTINCT * FRAME_BYTES);
    data->chunks = must_alloc(N_DISTINCT * bound);
    data->tables = must_alloc(N_DISTINCT * data->table_entries * sizeof(uint32_t));
    for (size_t i = 0; counts && i < N_DISTINCT; i++) {
        uint8_t *pixels = data->pixels + i * FRAME_BYTES, *chunk = data->chunks + data->offset[i];
        counts_frame(counts, i, pixels, scratch);
        size_t n = chunk_encode(chunk, pixels, shape.n_elems, 2, block);
        data->offset[i + 1] = data->offset[i] + n;
        if (bslz4_index(data->tables + i * data->table_entries, data->table_entries, &n_blocks,
                        chunk, n, &shape, NULL) != 0) {
            fprintf(stderr, "the chunk made is not one\n");
            exit(EXIT_FAILURE);
        }
    }
    if (!counts)
        exit(EXIT_FAILURE);
    counts_free(counts);
    free(scratch);
}

static void free_data(struct data *data)
{
    free(data->tables);
    free(data->chunks);
    free(data->pixels);
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of N_RUNS runs of n frames as GB/s; returns the median. */
static double report(const struct data *data, const char *what, size_t n, double seconds[N_RUNS])
{
    double gigabytes = (double)n * FRAME_BYTES / 1e9;
    qsort(seconds, N_RUNS, sizeof(seconds[0]), by_value);
    double median = gigabytes / seconds[N_RUNS / 2];
    printf("%-10s %-16s %6zu frames %9.1f GB/s (%.1f to %.1f)\n", data->name, what, n, median,
           gigabytes / seconds[N_RUNS - 1], gigabytes / seconds[0]);
    return median;
}

/* ---- the host ------------------------------------------------------------------------------------- */

static double bench_host(const struct data *data)
{
    double seconds[N_RUNS];
    uint8_t *frames = must_alloc((size_t)N_DISTINCT * FRAME_BYTES);
    memset(frames, 0, (size_t)N_DISTINCT * FRAME_BYTES);
    for (size_t run = 0; run < N_RUNS; run++) {
        double start = now_s();
        for (size_t i = 0; i < N_DISTINCT; i++) {
            const struct decode_job job = {
                .src = (uintptr_t)(data->chunks + data->offset[i]),
                .src_bytes = (uint32_t)(data->offset[i + 1] - data->offset[i]),
                .blocks = (uintptr_t)(data->tables + i * data->table_entries),
                .dst = (uintptr_t)(frames + i * FRAME_BYTES),
                .form = STOW_FORM_BSLZ4,
            };
            if (decode_frame(&job, &shape, NULL) != 0)
                exit(EXIT_FAILURE);
        }
        seconds[run] = now_s() - start;
    }
    if (memcmp(frames, data->pixels, (size_t)N_DISTINCT * FRAME_BYTES) != 0) {
        fprintf(stderr, "other pixels on the host\n");
        exit(EXIT_FAILURE);
    }
    free(frames);
    return report(data, "host, 1 thread", N_DISTINCT, seconds);
}

/* ---- the GPU -------------------------------------------------------------------------------------- */

struct gpu {
    uint8_t *chunks_dev, *frames_dev;
    uint32_t *tables_dev;
    struct decode_job *jobs, *jobs_dev; /* the same; jobs in host memory that the GPU sees */
    int32_t *status;
    uint8_t *frames; /* [N_DISTINCT] to compare */
    cudaStream_t stream;
    cudaEvent_t start, stop;
};

static void open_gpu(struct gpu *gpu)
{
    must(launch_load_all(), "loading kernels");
    must(cudaMalloc((void **)&gpu->frames_dev, (size_t)N_FRAMES * FRAME_BYTES), "frames");
    must(cudaMalloc((void **)&gpu->jobs_dev, N_FRAMES * sizeof(*gpu->jobs)), "jobs");
    must(cudaHostAlloc((void **)&gpu->jobs, N_FRAMES * sizeof(*gpu->jobs), cudaHostAllocDefault),
         "jobs");
    must(cudaHostAlloc((void **)&gpu->status, N_FRAMES * sizeof(*gpu->status),
                       cudaHostAllocDefault),
         "status");
    memset(gpu->status, 0, N_FRAMES * sizeof(*gpu->status));
    must(cudaStreamCreate(&gpu->stream), "stream");
    must(cudaEventCreate(&gpu->start), "event");
    must(cudaEventCreate(&gpu->stop), "event");
    gpu->frames = must_alloc((size_t)N_DISTINCT * FRAME_BYTES);
}

static void close_gpu(struct gpu *gpu)
{
    free(gpu->frames);
    must(cudaEventDestroy(gpu->stop), "event");
    must(cudaEventDestroy(gpu->start), "event");
    must(cudaStreamDestroy(gpu->stream), "stream");
    must(cudaFreeHost(gpu->status), "status");
    must(cudaFreeHost(gpu->jobs), "jobs");
    must(cudaFree(gpu->jobs_dev), "jobs");
    must(cudaFree(gpu->frames_dev), "frames");
}

/* Chunk k of N_FRAMES is a copy of chunk k % N_DISTINCT at its own place. */
static void upload(struct gpu *gpu, const struct data *data)
{
    size_t set_bytes = data->offset[N_DISTINCT], n_sets = N_FRAMES / N_DISTINCT;
    size_t tables_bytes = N_DISTINCT * data->table_entries * sizeof(uint32_t);
    must(cudaMalloc((void **)&gpu->chunks_dev, n_sets * set_bytes), "chunks");
    must(cudaMalloc((void **)&gpu->tables_dev, n_sets * tables_bytes), "tables");
    must(cudaMemset(gpu->frames_dev, 0xa5, (size_t)N_FRAMES * FRAME_BYTES), "frames");
    for (size_t k = 0; k < N_FRAMES; k++) {
        size_t set = k / N_DISTINCT, i = k % N_DISTINCT;
        uint8_t *tables = (uint8_t *)gpu->tables_dev + set * tables_bytes;
        if (i == 0) {
            must(cudaMemcpy(gpu->chunks_dev + set * set_bytes, data->chunks, set_bytes,
                            cudaMemcpyDefault),
                 "copy");
            must(cudaMemcpy(tables, data->tables, tables_bytes, cudaMemcpyDefault), "copy");
        }
        gpu->jobs[k] = (struct decode_job){
            .src = (uintptr_t)(gpu->chunks_dev + set * set_bytes + data->offset[i]),
            .src_bytes = (uint32_t)(data->offset[i + 1] - data->offset[i]),
            .blocks = (uintptr_t)(tables + i * data->table_entries * sizeof(uint32_t)),
            .dst = (uintptr_t)(gpu->frames_dev + k * FRAME_BYTES),
            .form = STOW_FORM_BSLZ4,
        };
    }
    must(cudaMemcpy(gpu->jobs_dev, gpu->jobs, N_FRAMES * sizeof(*gpu->jobs), cudaMemcpyDefault),
         "copy");
}

/* Frames first to first + n of the GPU against the counts. */
static void compare(struct gpu *gpu, const struct data *data, size_t first, size_t n)
{
    for (size_t k = first; k < first + n;) {
        size_t i = k % N_DISTINCT,
               m = N_DISTINCT - i < first + n - k ? N_DISTINCT - i : first + n - k;
        must(cudaMemcpy(gpu->frames, gpu->frames_dev + k * FRAME_BYTES, m * FRAME_BYTES,
                        cudaMemcpyDefault),
             "copy");
        if (memcmp(gpu->frames, data->pixels + i * FRAME_BYTES, m * FRAME_BYTES) != 0) {
            fprintf(stderr, "other pixels in frames %zu to %zu\n", k, k + m - 1);
            exit(EXIT_FAILURE);
        }
        k += m;
    }
    for (size_t k = 0; k < n; k++)
        if (gpu->status[k] != 0) {
            fprintf(stderr, "frame %zu: status %d\n", first + k, (int)gpu->status[k]);
            exit(EXIT_FAILURE);
        }
}

/* n frames a launch; check: LZ4 is walked and nothing written. */
static double bench_batch(struct gpu *gpu, const struct data *data, size_t n, bool check)
{
    double seconds[N_RUNS];
    size_t first = 0;
    for (size_t run = 0; run < N_RUNS + 3; run++) {
        float ms;
        first = run * n % N_FRAMES;
        must(cudaEventRecord(gpu->start, gpu->stream), "event");
        must(launch_decode(gpu->status, gpu->jobs_dev + first, NULL, n, shape, gpu->stream),
             "launch");
        must(cudaEventRecord(gpu->stop, gpu->stream), "event");
        must(cudaStreamSynchronize(gpu->stream), "decode");
        must(cudaEventElapsedTime(&ms, gpu->start, gpu->stop), "event");
        if (run >= 3)
            seconds[run - 3] = ms / 1e3;
    }
    if (!check)
        compare(gpu, data, first, n);
    return report(data, check ? "check only" : "decode", n, seconds);
}

/* One frame a launch, its job in host memory. Microseconds: median, and the 99th percentile in *p99. */
static double bench_lone(struct gpu *gpu, const struct data *data, double *p99)
{
    static double us[N_LONE];
    for (size_t run = 0; run < N_LONE; run++) {
        size_t k = run * 37 % N_FRAMES;
        double start = now_s();
        must(launch_decode(gpu->status, gpu->jobs + k, NULL, 1, shape, gpu->stream), "launch");
        must(cudaStreamSynchronize(gpu->stream), "decode");
        us[run] = (now_s() - start) * 1e6;
    }
    qsort(us, N_LONE, sizeof(us[0]), by_value);
    *p99 = us[N_LONE - 1 - N_LONE / 100];
    printf("%-10s one frame, launch to synchronized: p50 %.1f us, p99 %.1f us\n", data->name,
           us[N_LONE / 2], *p99);
    return us[N_LONE / 2];
}

static void bench_gpu(struct gpu *gpu, const struct data *data)
{
    static const size_t counts[] = {512, 4096, 16384};
    double rates[3], p99;
    upload(gpu, data);
    for (size_t c = 0; c < 3; c++)
        rates[c] = bench_batch(gpu, data, counts[c], false);
    double lone = bench_lone(gpu, data, &p99);
    for (size_t k = 0; k < N_FRAMES; k++)
        gpu->jobs[k].dst = 0;
    must(cudaMemcpy(gpu->jobs_dev, gpu->jobs, N_FRAMES * sizeof(*gpu->jobs), cudaMemcpyDefault),
         "copy");
    double checked = bench_batch(gpu, data, 4096, true);
    printf("{\"data\": \"%s\", \"gbps_512\": %.1f, \"gbps_4096\": %.1f, \"gbps_16384\": %.1f, "
           "\"check_gbps_4096\": %.1f, "
           "\"lone_p50_us\": %.1f, \"lone_p99_us\": %.1f}\n",
           data->name, rates[0], rates[1], rates[2], checked, lone, p99);
    must(cudaFree(gpu->tables_dev), "free");
    must(cudaFree(gpu->chunks_dev), "free");
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        bool thick;
        double dose;
    } samples[] = {{"thin 0.5", false, 0.5}, {"thick 1.1", true, 1.1}, {"thick 5", true, 5}};
    bool host_only = argc > 1 && strcmp(argv[1], "--host") == 0;
    struct gpu gpu = {0};
    if (!host_only)
        open_gpu(&gpu);
    for (size_t s = 0; s < sizeof(samples) / sizeof(samples[0]); s++) {
        struct data data;
        make_data(&data, samples[s].name, samples[s].thick, samples[s].dose);
        printf("%-10s %.2f bits a pixel\n", data.name,
               8.0 * (double)data.offset[N_DISTINCT] / ((double)N_DISTINCT * SIDE * SIDE));
        double host = bench_host(&data);
        if (host_only)
            printf("{\"data\": \"%s\", \"host_gbps\": %.2f}\n", data.name, host);
        else
            bench_gpu(&gpu, &data);
        free_data(&data);
    }
    if (!host_only)
        close_gpu(&gpu);
    return EXIT_SUCCESS;
}
