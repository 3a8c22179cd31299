/* SPDX-License-Identifier: Apache-2.0
 *
 * counts_bench FOLDER [--streams N] [--device-jobs] [--plain] [--no-overlap] [SAMPLE ...]
 *
 * How fast frames of form counts become pixels on this GPU.
 *
 * FOLDER has x_SAMPLE.gz: 512 or more frames of 192 x 192 uint16, raw little-endian. 512 of them are a segment, and lie
 * 128 times at addresses of their own on the GPU, as do the frames decoded from them, so that nothing is in the L2 from
 * before. Jobs lie in host memory, as a lane has them, or on the GPU with --device-jobs (but for "slots").
 *
 * A row is the median of 21 launches after 3, between CUDA events, with the 10th and the 90th percentile, as a line of
 * JSON. "frames": launches of so many, each of other frames. "scattered": each frame of a segment of its own. "slots":
 * 64 launches of 4,096 frames, one behind the other, into two slots in turn, as a consumer has it: a scan of 512 x 512.
 * "lone": one frame by the clock, from the launch to synchronized. All frames of the largest launch, and of the slots,
 * are compared with the source. Exits 1 if a pixel differs. */
#include "counts_model.h"
#include "launch.h"

#include <cuda_runtime_api.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SIDE 192u
#define FRAME_BYTES (SIDE * SIDE * 2u)
#define N_DISTINCT 512u
#define N_COPIES 128u
#define N_FRAMES (N_DISTINCT * N_COPIES)
#define N_SEGMENTS 256u /* copies of the segment's table */
#define N_RUNS 21u
#define N_WARM 3u
#define N_LONE 2001u
#define SLOT_FRAMES 4096u
#define N_LAUNCHES 64u /* of a scan */

static const struct frame_shape shape = {.n_elems = SIDE * SIDE, .elem_bytes = 2};

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(EXIT_FAILURE);
}

static void must(cudaError_t error, const char *what)
{
    if (error != cudaSuccess)
        fail(what, cudaGetErrorString(error));
}

static void *must_alloc(size_t bytes)
{
    void *memory = calloc(1, bytes);
    if (!memory)
        fail("memory", "there is not enough");
    return memory;
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int by_value(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* ---- the data ------------------------------------------------------------------------------------ */

struct data {
    const char *name;
    uint8_t *pixels;  /* [N_DISTINCT, FRAME_BYTES] */
    uint8_t *payload; /* encoded frames, one behind the other */
    size_t offset[N_DISTINCT + 1];
    uint8_t *segment;
    uint32_t segment_bytes;
};

static void read_pixels(struct data *data, const char *folder)
{
    char command[1024];
    snprintf(command, sizeof(command), "gzip -dc '%s/x_%s.gz'", folder, data->name);
    FILE *pipe = popen(command, "r");
    data->pixels = must_alloc((size_t)N_DISTINCT * FRAME_BYTES);
    if (!pipe || fread(data->pixels, FRAME_BYTES, N_DISTINCT, pipe) != N_DISTINCT)
        fail(command, "not 512 frames");
    pclose(pipe); /* of no interest: what was wanted is here, and the file may have more */
}

static void train(struct counts_model *model, const struct data *data, uint32_t n_streams)
{
    uint64_t n_sample = counts_sample_frames(shape.n_elems, N_DISTINCT);
    uint64_t *sums = must_alloc(shape.n_elems * sizeof(*sums));
    uint8_t *sample = must_alloc(n_sample * FRAME_BYTES);
    for (size_t i = 0; i < N_DISTINCT; i++)
        for (size_t k = 0; k < shape.n_elems; k++)
            sums[k] += ((const uint16_t *)(data->pixels + i * FRAME_BYTES))[k];
    for (size_t i = 0; i < n_sample; i++)
        memcpy(sample + i * FRAME_BYTES, data->pixels + i * N_DISTINCT / n_sample * FRAME_BYTES,
               FRAME_BYTES);
    if (counts_model_train(model, sample, n_sample, sums, N_DISTINCT, &shape, n_streams))
        fail(data->name, "cannot be modelled");
    free(sample);
    free(sums);
}

static void encode(struct data *data, const struct counts_model *model)
{
    struct counts_encoder *encoder = must_alloc(sizeof(*encoder));
    uint8_t *room = must_alloc(FRAME_BYTES);
    counts_model_encoder(model, encoder);
    data->segment_bytes = counts_model_segment_bytes(model);
    data->segment = aligned_alloc(16, data->segment_bytes);
    data->payload = must_alloc((size_t)N_DISTINCT * FRAME_BYTES);
    if (!data->segment)
        fail("memory", "there is not enough");
    counts_model_segment(model, data->segment);
    for (size_t i = 0; i < N_DISTINCT; i++) {
        struct counts_stream streams[COUNTS_MAX_STREAMS];
        counts_encode(streams, room, data->pixels + i * FRAME_BYTES,
                      (const struct counts_segment *)data->segment, encoder, &shape);
        uint64_t bytes = counts_frame_bytes(streams, model->n_streams, shape.elem_bytes);
        if (bytes == 0 || bytes > FRAME_BYTES)
            fail(data->name, "a frame does not become smaller");
        counts_place(data->payload + data->offset[i], room, streams, model->n_streams, &shape);
        data->offset[i + 1] = data->offset[i] + bytes;
    }
    free(room);
    free(encoder);
}

static void make_data(struct data *data, const char *folder, const char *name, uint32_t n_streams)
{
    struct counts_model model = {0};
    *data = (struct data){.name = name};
    read_pixels(data, folder);
    train(&model, data, n_streams);
    encode(data, &model);
    printf("{\"sample\": \"%s\", \"streams\": %u, \"bits_per_pixel\": %.4f}\n", name,
           model.n_streams,
           8.0 * (double)data->offset[N_DISTINCT] / ((double)N_DISTINCT * SIDE * SIDE));
    counts_model_fini(&model);
}

static void free_data(struct data *data)
{
    free(data->segment);
    free(data->payload);
    free(data->pixels);
}

/* ---- the GPU ------------------------------------------------------------------------------------- */

struct gpu {
    uint8_t *payload_dev, *frames_dev, *segments_dev;
    size_t segment_stride;
    struct decode_job *jobs; /* [N_FRAMES], and where a launch reads them */
    uint32_t *picks;
    struct decode_job *jobs_dev;
    uint32_t *picks_dev;
    bool device_jobs;
    struct counts_launch options;
    int32_t *status;
    uint8_t *frames; /* [N_DISTINCT, FRAME_BYTES] of host memory, for comparing */
    cudaStream_t stream;
    cudaEvent_t start, stop, fence;
};

static void *host_memory(size_t bytes)
{
    void *memory = NULL;
    must(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped), "host memory");
    return memory;
}

static void open_gpu(struct gpu *gpu)
{
    struct cudaDeviceProp properties;
    must(cudaGetDeviceProperties(&properties, 0), "the GPU");
    printf("{\"gpu\": \"%s\", \"processors\": %d}\n", properties.name,
           properties.multiProcessorCount);
    gpu->jobs = host_memory(N_FRAMES * sizeof(*gpu->jobs));
    gpu->picks = host_memory(N_FRAMES * sizeof(*gpu->picks));
    gpu->status = host_memory(N_FRAMES * sizeof(*gpu->status));
    gpu->frames = host_memory((size_t)N_DISTINCT * FRAME_BYTES);
    memset(gpu->status, 0, N_FRAMES * sizeof(*gpu->status));
    for (uint32_t i = 0; i < N_FRAMES; i++)
        gpu->picks[i] = i;
    gpu->jobs_dev = gpu->jobs;
    gpu->picks_dev = gpu->picks;
    if (gpu->device_jobs) {
        must(cudaMalloc((void **)&gpu->jobs_dev, N_FRAMES * sizeof(*gpu->jobs)), "jobs");
        must(cudaMalloc((void **)&gpu->picks_dev, N_FRAMES * sizeof(*gpu->picks)), "picks");
    }
    must(cudaMalloc((void **)&gpu->frames_dev, (size_t)N_FRAMES * FRAME_BYTES), "frames");
    must(cudaStreamCreateWithFlags(&gpu->stream, cudaStreamNonBlocking), "stream");
    must(cudaEventCreate(&gpu->start), "event");
    must(cudaEventCreate(&gpu->stop), "event");
    must(cudaEventCreateWithFlags(&gpu->fence, cudaEventDisableTiming), "event");
    must(launch_load_counts(), "launch_load_counts");
}

static void upload(struct gpu *gpu, const struct data *data)
{
    size_t bytes = data->offset[N_DISTINCT];
    gpu->segment_stride = (data->segment_bytes + 255) / 256 * 256;
    must(cudaMalloc((void **)&gpu->payload_dev, bytes * N_COPIES), "payload");
    must(cudaMalloc((void **)&gpu->segments_dev, gpu->segment_stride * N_SEGMENTS), "segments");
    for (size_t c = 0; c < N_COPIES; c++)
        must(cudaMemcpy(gpu->payload_dev + c * bytes, data->payload, bytes, cudaMemcpyDefault),
             "copy");
    for (size_t s = 0; s < N_SEGMENTS; s++)
        must(cudaMemcpy(gpu->segments_dev + s * gpu->segment_stride, data->segment,
                        data->segment_bytes, cudaMemcpyDefault),
             "copy");
    must(cudaMemset(gpu->frames_dev, 0xa5, (size_t)N_FRAMES * FRAME_BYTES), "poison");
}

/* Job k decodes into the place of frame k % n_places; segments: how many copies of the table take turns. */
static void make_jobs(struct gpu *gpu, const struct data *data, size_t n_places, size_t segments)
{
    for (size_t k = 0; k < N_FRAMES; k++) {
        size_t i = k % N_DISTINCT, bytes = data->offset[N_DISTINCT];
        gpu->jobs[k] = (struct decode_job){
            .src = (uintptr_t)(gpu->payload_dev + k / N_DISTINCT * bytes + data->offset[i]),
            .src_bytes = (uint32_t)(data->offset[i + 1] - data->offset[i]),
            .blocks = (uintptr_t)(gpu->segments_dev + k % segments * gpu->segment_stride),
            .dst = (uintptr_t)(gpu->frames_dev + k % n_places * FRAME_BYTES),
            .form = STOW_FORM_COUNTS,
        };
    }
    if (gpu->device_jobs) {
        must(cudaMemcpy(gpu->jobs_dev, gpu->jobs, N_FRAMES * sizeof(*gpu->jobs), cudaMemcpyDefault),
             "copy");
        must(cudaMemcpy(gpu->picks_dev, gpu->picks, N_FRAMES * sizeof(*gpu->picks),
                        cudaMemcpyDefault),
             "copy");
    }
}

/* Decode n frames from job `first` on; follows: right behind another such launch. */
static void launch(struct gpu *gpu, size_t first, size_t n, bool follows)
{
    struct counts_launch options = gpu->options;
    options.overlap = options.overlap && follows;
    must(launch_decode_counts(gpu->status, gpu->jobs_dev, gpu->picks_dev + first, n, shape,
                              &options, gpu->stream),
         "launch");
}

/* The first n places against the source; n is a multiple of N_DISTINCT. */
static void compare(struct gpu *gpu, const struct data *data, size_t n)
{
    for (size_t first = 0; first < n; first += N_DISTINCT) {
        must(cudaMemcpy(gpu->frames, gpu->frames_dev + first * FRAME_BYTES,
                        (size_t)N_DISTINCT * FRAME_BYTES, cudaMemcpyDefault),
             "copy");
        if (memcmp(gpu->frames, data->pixels, (size_t)N_DISTINCT * FRAME_BYTES) != 0)
            fail(data->name, "other pixels");
    }
    for (size_t i = 0; i < N_FRAMES; i++)
        if (gpu->status[i] != 0)
            fail(data->name, "a frame is called corrupt");
    must(cudaMemset(gpu->frames_dev, 0xa5, n * FRAME_BYTES), "poison");
}

/* ---- what is measured ---------------------------------------------------------------------------- */

static void report(const struct data *data, const char *what, size_t n, double *seconds)
{
    qsort(seconds, N_RUNS, sizeof(seconds[0]), by_value);
    double median = seconds[N_RUNS / 2], counts = (double)n * SIDE * SIDE;
    printf(
        "{\"sample\": \"%s\", \"what\": \"%s\", \"frames\": %zu, \"us\": %.2f, \"us_p10\": %.2f, "
        "\"us_p90\": %.2f, \"gcounts_per_s\": %.1f, \"tb_per_s\": %.3f}\n",
        data->name, what, n, median * 1e6, seconds[N_RUNS / 10] * 1e6,
        seconds[N_RUNS * 9 / 10] * 1e6, counts / median / 1e9, 2 * counts / median / 1e12);
    fflush(stdout);
}

/* launches one behind the other between two events, of n frames each, from place `first` on, around; each with a
 * fence behind it. */
static double time_launches(struct gpu *gpu, size_t first, size_t n, size_t launches)
{
    float ms;
    must(cudaEventRecord(gpu->start, gpu->stream), "event");
    for (size_t k = 0; k < launches; k++) {
        launch(gpu, (first + k * n) % N_FRAMES, n, k > 0);
        if (launches > 1)
            must(cudaEventRecord(gpu->fence, gpu->stream), "event");
    }
    must(cudaEventRecord(gpu->stop, gpu->stream), "event");
    must(cudaStreamSynchronize(gpu->stream), "decode");
    must(cudaEventElapsedTime(&ms, gpu->start, gpu->stop), "event");
    return ms / 1e3;
}

static void bench_launches(struct gpu *gpu, const struct data *data, const char *what, size_t n)
{
    double seconds[N_RUNS];
    for (size_t run = 0; run < N_RUNS + N_WARM; run++) {
        double took = time_launches(gpu, run * 7 * n % N_FRAMES / n * n, n, 1);
        if (run >= N_WARM)
            seconds[run - N_WARM] = took;
    }
    report(data, what, n, seconds);
}

static void bench_slots(struct gpu *gpu, const struct data *data)
{
    double seconds[N_RUNS];
    struct decode_job *jobs_dev = gpu->jobs_dev;
    uint32_t *picks_dev = gpu->picks_dev;
    gpu->jobs_dev = gpu->jobs;
    gpu->picks_dev = gpu->picks;
    make_jobs(gpu, data, 2 * SLOT_FRAMES, 1);
    for (size_t run = 0; run < N_RUNS + N_WARM; run++) {
        double took = time_launches(gpu, 0, SLOT_FRAMES, N_LAUNCHES);
        if (run >= N_WARM)
            seconds[run - N_WARM] = took;
    }
    compare(gpu, data, 2 * SLOT_FRAMES);
    gpu->jobs_dev = jobs_dev;
    gpu->picks_dev = picks_dev;
    report(data, "slots", (size_t)N_LAUNCHES * SLOT_FRAMES, seconds);
}

static void bench_lone(struct gpu *gpu, const struct data *data)
{
    static double us[N_LONE];
    for (size_t run = 0; run < N_LONE; run++) {
        double start = now_s();
        launch(gpu, run * 37 % N_FRAMES, 1, false);
        must(cudaStreamSynchronize(gpu->stream), "decode");
        us[run] = (now_s() - start) * 1e6;
    }
    qsort(us, N_LONE, sizeof(us[0]), by_value);
    printf(
        "{\"sample\": \"%s\", \"what\": \"lone\", \"frames\": 1, \"us\": %.2f, \"us_p99\": %.2f}\n",
        data->name, us[N_LONE / 2], us[N_LONE - 1 - N_LONE / 100]);
}

static void bench(struct gpu *gpu, const struct data *data)
{
    static const size_t sizes[] = {65536, 16384, 8192, 4096, 1024, 256, 64, 1};
    upload(gpu, data);
    make_jobs(gpu, data, N_FRAMES, 1);
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        bench_launches(gpu, data, "frames", sizes[s]);
        if (s == 0)
            compare(gpu, data, N_FRAMES);
    }
    bench_lone(gpu, data);
    make_jobs(gpu, data, N_FRAMES, N_SEGMENTS);
    bench_launches(gpu, data, "scattered", 256);
    bench_launches(gpu, data, "scattered", 64);
    bench_slots(gpu, data);
    must(cudaFree(gpu->segments_dev), "free");
    must(cudaFree(gpu->payload_dev), "free");
}

static void close_gpu(struct gpu *gpu)
{
    void *host[] = {gpu->jobs, gpu->picks, gpu->status, gpu->frames};
    must(cudaFree(gpu->frames_dev), "free");
    if (gpu->device_jobs) {
        must(cudaFree(gpu->jobs_dev), "free");
        must(cudaFree(gpu->picks_dev), "free");
    }
    must(cudaEventDestroy(gpu->start), "event");
    must(cudaEventDestroy(gpu->stop), "event");
    must(cudaEventDestroy(gpu->fence), "event");
    must(cudaStreamDestroy(gpu->stream), "stream");
    for (size_t i = 0; i < sizeof(host) / sizeof(host[0]); i++)
        must(cudaFreeHost(host[i]), "free");
}

int main(int argc, char **argv)
{
    static const char *const all[] = {"thin_0.5", "thick_1.1", "thick_5.0"};
    struct gpu gpu = {.options.overlap = true};
    uint32_t n_streams = 1;
    int next = 2;
    if (argc < 2)
        fail("counts_bench", "which folder has the samples?");
    for (; next < argc && argv[next][0] == '-'; next++) {
        if (strcmp(argv[next], "--device-jobs") == 0)
            gpu.device_jobs = true;
        else if (strcmp(argv[next], "--plain") == 0)
            gpu.options.plain_stores = true;
        else if (strcmp(argv[next], "--no-overlap") == 0)
            gpu.options.overlap = false;
        else if (strcmp(argv[next], "--streams") == 0 && next + 1 < argc)
            n_streams = (uint32_t)strtoul(argv[++next], NULL, 10);
        else
            fail(argv[next], "unknown option");
    }
    open_gpu(&gpu);
    const char *const *names = next < argc ? (const char *const *)(argv + next) : all;
    size_t n_names = next < argc ? (size_t)(argc - next) : sizeof(all) / sizeof(all[0]);
    for (size_t s = 0; s < n_names; s++) {
        struct data data;
        make_data(&data, argv[1], names[s], n_streams);
        bench(&gpu, &data);
        free_data(&data);
    }
    close_gpu(&gpu);
    return EXIT_SUCCESS;
}
