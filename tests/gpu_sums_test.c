/* SPDX-License-Identifier: Apache-2.0
 *
 * sums on the GPU against the plain sums of sums_cases.h, sums_pixel_cases.h and rings_cases.h, on the cases of the CPU's test; memory is managed, so that
 * both sides see the same addresses. And how fast they are.
 *
 *   gpu_sums_test [--short]                 --short: few cases, for runs under compute-sanitizer
 *   gpu_sums_test --bench SAMPLE.gz ...     samples: raw uint16 frames of 192 x 192, at least 512
 *
 * The bench trains one model on 512 frames of a sample, copies what the CPU encoded to 65,536 frames at addresses of
 * their own, in segments of 4,096, and prints a line of JSON for each kind of work: the median of 21 runs between two
 * CUDA events after 3 to warm up, and where 10 and 90 % of them lie. Every result is compared with the CPU's. */
#include "launch.h"
#include "rings_cases.h"
#include "sums_kind_cases.h"
#include "sums_pixel_cases.h"

#include <cuda_runtime_api.h>
#include <math.h>

static void must(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    exit(EXIT_FAILURE);
}

/* ---- the bed -------------------------------------------------------------------------------------- */

#define ARENA_BYTES (512ull << 20)

struct arena {
    uint8_t *memory;
    size_t used;
};

static void run_on_gpu(struct sums_bed *bed, const struct work *work)
{
    (void)bed;
    must(launch_work(work, NULL), "launch");
    must(cudaDeviceSynchronize(), "work");
}

/* 16 bytes are left between allocations, poisoned like them. */
static void *arena_alloc(struct sums_bed *bed, size_t bytes)
{
    struct arena *arena = bed->data;
    uint8_t *memory = arena->memory + arena->used;
    size_t whole = (bytes + 16 + 63) / 64 * 64;
    if (whole > ARENA_BYTES - arena->used) {
        fprintf(stderr, "the arena is too small\n");
        exit(EXIT_FAILURE);
    }
    memset(memory, 0xa5, whole);
    arena->used += whole;
    return memory;
}

static void arena_reset(struct sums_bed *bed)
{
    struct arena *arena = bed->data;
    arena->used = 0;
}

/* Two runs of one work give the same bits, of float64 sums too. */
static void test_same_again(struct sums_bed *bed)
{
    struct frame_shape shape = {.n_elems = 97 * 101, .elem_bytes = 2};
    struct sums_case of;
    uint8_t *weighed[CASE_SEGMENTS];
    uint64_t *out[2];
    make_sums_case(bed, &of, "again", DISK, true, 1, &shape);
    double *weights = bed->alloc(bed, shape.n_elems * sizeof(*weights));
    int32_t *status = bed->alloc(bed, CASE_JOBS * sizeof(*status));
    make_weights(weights, shape.n_elems, WEIGHT_F64, of.most);
    for (uint32_t r = 0; r < 2; r++) {
        out[r] = bed->alloc(bed, CASE_JOBS * sizeof(uint64_t));
        weigh_case(bed, &of, weighed, weights, 1, WEIGHT_F64);
        const struct work work = {.kind = WORK_SUM,
                                  .n = CASE_JOBS,
                                  .shape = shape,
                                  .sum = {.jobs = ADDRESS(of.jobs),
                                          .weights = ADDRESS(weights),
                                          .out = ADDRESS(out[r]),
                                          .out_stride = CASE_JOBS,
                                          .status = ADDRESS(status),
                                          .n_masks = 1,
                                          .weights_kind = WEIGHT_F64}};
        bed->run(bed, &work);
    }
    CHECK(memcmp(out[0], out[1], CASE_JOBS * sizeof(uint64_t)) == 0);
    free_sums_case(bed, &of);
}

static void test_all(bool brief)
{
    struct arena arena = {0};
    struct sums_bed bed = {run_on_gpu, arena_alloc, arena_reset, &arena};
    must(cudaMallocManaged((void **)&arena.memory, ARENA_BYTES, cudaMemAttachGlobal), "memory");
    test_extreme_sums(&bed);
    test_same_again(&bed);
    test_damaged_sums(&bed, brief ? 3 : 60);
    test_compare(&bed);
    if (brief) {
        for (uint32_t elem_bytes = 1; elem_bytes <= 4; elem_bytes *= 2) {
            struct frame_shape shape = {.n_elems = 2051, .elem_bytes = elem_bytes, .fill = 7};
            struct sums_case of;
            make_sums_case(&bed, &of, "short", HOT, elem_bytes != 2, elem_bytes, &shape);
            for (enum weight_kind kind = WEIGHT_U8; kind <= WEIGHT_F64; kind++)
                sum_case(&bed, &of, kind, elem_bytes == 1 ? 8 : elem_bytes);
            free_sums_case(&bed, &of);
            stats_case(&bed, 7, 293, elem_bytes, 3, UNIFORM, 2);
            pixels_case(&bed, &shape, 33, UNIFORM);
            rings_case(&bed, &shape, RINGS_STRIPES, 70, UNIFORM, elem_bytes != 2);
        }
        for (size_t type = 0; type < N_KIND_TYPES; type++) {
            kind_sum_case(&bed, type, 2051, KIND_SPECIAL, WEIGHT_F64);
            kind_stats_case(&bed, type, 7, 293, KIND_SPECIAL, 3);
            kind_pixels_case(&bed, type, 2051, KIND_SPECIAL, 33);
        }
    } else {
        test_kinds(&bed);
        test_large_kinds(&bed);
        test_weighted_sums(&bed);
        test_statistics(&bed);
        test_rings(&bed);
        test_pixel_sums(&bed);
    }
    must(cudaFree(arena.memory), "free");
}

/* ---- the bench: frames ---------------------------------------------------------------------------- */

#define SIDE 192u
#define N_PIXELS (SIDE * SIDE)
#define DISTINCT 512u
#define FRAMES 65536u
#define SEGMENT_FRAMES 4096u
#define N_SEGMENTS (FRAMES / SEGMENT_FRAMES)
/* Room for the sums of all masks, or for statistics. */
#define OUT_BYTES ((size_t)FRAMES * SUMS_MAX_MASKS * sizeof(uint64_t))
_Static_assert(OUT_BYTES >= FRAMES * sizeof(struct frame_stats), "room for statistics");
#define N_RUNS 21
#define N_WARM 3

static const struct frame_shape bench_shape = {.n_elems = N_PIXELS, .elem_bytes = 2};

struct bench {
    const char *sample;
    uint16_t *pixels; /* [DISTINCT][N_PIXELS] */
    double bits_a_pixel;
    struct counts_model model;
    uint8_t *weights; /* [SUMS_MAX_MASKS][N_PIXELS], uint8 */
    uint8_t *flags;   /* [N_PIXELS] */
    /* device memory */
    uint8_t *encoded_dev, *pixels_dev, *weights_dev, *flags_dev, *weighed_dev;
    struct sum_job *jobs_dev, *raw_jobs_dev;
    struct weigh_job *weigh_dev;
    uint64_t *frames_dev, *out_dev;
    int32_t *status_dev;
    /* to be checked, in host memory */
    uint64_t *out;
    int32_t *status;
    cudaEvent_t start, stop;
};

static void *device_memory(size_t bytes)
{
    void *memory = NULL;
    must(cudaMalloc(&memory, bytes), "device memory");
    return memory;
}

static void *uploaded(const void *from, size_t bytes)
{
    void *memory = device_memory(bytes);
    must(cudaMemcpy(memory, from, bytes, cudaMemcpyHostToDevice), "upload");
    return memory;
}

/* Copies of the first `bytes`, one behind the other. */
static uint8_t *repeated(const void *from, size_t bytes, size_t times)
{
    uint8_t *memory = device_memory(bytes * times);
    must(cudaMemcpy(memory, from, bytes, cudaMemcpyHostToDevice), "upload");
    for (size_t i = 1; i < times; i++)
        must(cudaMemcpy(memory + i * bytes, memory, bytes, cudaMemcpyDeviceToDevice), "copy");
    return memory;
}

static void read_sample(struct bench *bench, const char *path)
{
    char command[4096];
    size_t bytes = (size_t)DISTINCT * N_PIXELS * sizeof(uint16_t);
    bench->sample = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    bench->pixels = case_alloc(bytes);
    snprintf(command, sizeof(command), "gzip -dc '%s'", path);
    FILE *pipe = popen(command, "r");
    if (!pipe || fread(bench->pixels, 1, bytes, pipe) != bytes) {
        fprintf(stderr, "%s: not enough frames\n", path);
        exit(EXIT_FAILURE);
    }
    pclose(pipe);
}

static void train_bench(struct bench *bench)
{
    uint64_t n_sample = counts_sample_frames(N_PIXELS, DISTINCT);
    uint16_t *sample = case_alloc(n_sample * frame_bytes(&bench_shape));
    uint64_t *sums = case_alloc(N_PIXELS * sizeof(*sums));
    for (uint64_t i = 0; i < n_sample; i++)
        memcpy(sample + i * N_PIXELS, bench->pixels + i * DISTINCT / n_sample * N_PIXELS,
               frame_bytes(&bench_shape));
    for (uint32_t i = 0; i < N_PIXELS; i++) {
        sums[i] = 0;
        for (uint32_t f = 0; f < DISTINCT; f++)
            sums[i] += bench->pixels[(size_t)f * N_PIXELS + i];
    }
    CHECK_INT(counts_model_train(&bench->model, sample, n_sample, sums, DISTINCT, &bench_shape, 1),
              0);
    free(sample);
    free(sums);
}

/* Encodes all distinct frames; job i of each has src relative to the first. Returns their bytes. */
static size_t encode_bench(struct bench *bench, uint8_t *to, struct sum_job *jobs)
{
    struct counts_segment *segment = case_alloc(counts_model_segment_bytes(&bench->model));
    struct counts_encoder *encoder = case_alloc(sizeof(*encoder));
    uint8_t *room = case_alloc(frame_bytes(&bench_shape) + 16);
    size_t at = 0;
    counts_model_segment(&bench->model, segment);
    counts_model_encoder(&bench->model, encoder);
    for (uint32_t f = 0; f < DISTINCT; f++) {
        struct counts_stream stream;
        counts_encode(&stream, room, bench->pixels + (size_t)f * N_PIXELS, segment, encoder,
                      &bench_shape);
        uint64_t bytes = counts_frame_bytes(&stream, 1, 2);
        CHECK_MSG(bytes > 0, "frame %u of %s does not fit", f, bench->sample);
        counts_place(to + at, room, &stream, 1, &bench_shape);
        jobs[f] =
            (struct sum_job){.src = at, .src_bytes = (uint32_t)bytes, .form = STOW_FORM_COUNTS};
        at += bytes;
    }
    free(segment);
    free(encoder);
    free(room);
    return at;
}

/* A disk, a ring, and others that are no shape at all. */
static void make_masks(struct bench *bench)
{
    bench->weights = case_alloc(SUMS_MAX_MASKS * N_PIXELS);
    bench->flags = case_alloc(N_PIXELS);
    for (uint32_t i = 0; i < N_PIXELS; i++) {
        double y = i / SIDE - 95.5, x = i % SIDE - 95.5, r = sqrt(y * y + x * x);
        bench->flags[i] = case_random() % 1000 == 0;
        for (uint32_t m = 0; m < SUMS_MAX_MASKS; m++)
            bench->weights[m * N_PIXELS + i] = m == 0   ? r < 30
                                               : m == 1 ? r >= 30 && r < 80
                                                        : (uint8_t)case_random();
    }
}

static void upload_bench(struct bench *bench)
{
    const size_t copies = FRAMES / DISTINCT;
    const uint32_t segment_bytes = counts_model_segment_bytes(&bench->model);
    const size_t weighed_bytes =
        sums_weighed_bytes(bench->model.n_granules, SUMS_MAX_MASKS, WEIGHT_F64);
    struct counts_segment *segment = case_alloc(segment_bytes);
    struct sum_job *distinct = case_alloc(DISTINCT * sizeof(*distinct));
    struct sum_job *jobs = case_alloc(FRAMES * sizeof(*jobs)),
                   *raw = case_alloc(FRAMES * sizeof(*raw));
    uint64_t *frames = case_alloc(FRAMES * sizeof(*frames));
    struct weigh_job weigh[N_SEGMENTS];
    uint8_t *encoded = case_alloc(DISTINCT * frame_bytes(&bench_shape));

    size_t bytes = encode_bench(bench, encoded, distinct);
    bench->bits_a_pixel = 8.0 * (double)bytes / ((double)DISTINCT * N_PIXELS);
    counts_model_segment(&bench->model, segment);
    bench->encoded_dev = repeated(encoded, bytes, copies);
    bench->pixels_dev = repeated(bench->pixels, DISTINCT * frame_bytes(&bench_shape), copies);
    uint8_t *segments_dev = repeated(segment, segment_bytes, N_SEGMENTS);
    bench->weighed_dev = device_memory(N_SEGMENTS * weighed_bytes);
    for (uint32_t s = 0; s < N_SEGMENTS; s++)
        weigh[s] = (struct weigh_job){ADDRESS(segments_dev + (size_t)s * segment_bytes),
                                      ADDRESS(bench->weighed_dev + s * weighed_bytes)};
    for (uint32_t f = 0; f < FRAMES; f++) {
        uint32_t s = f / SEGMENT_FRAMES;
        jobs[f] = distinct[f % DISTINCT];
        jobs[f].src += ADDRESS(bench->encoded_dev + f / DISTINCT * bytes);
        jobs[f].segment = weigh[s].segment;
        jobs[f].weighed = weigh[s].weighed;
        frames[f] = ADDRESS(bench->pixels_dev + f * frame_bytes(&bench_shape));
        raw[f] = (struct sum_job){.src = frames[f], .form = STOW_FORM_RAW};
    }
    bench->weigh_dev = uploaded(weigh, sizeof(weigh));
    bench->jobs_dev = uploaded(jobs, FRAMES * sizeof(*jobs));
    bench->raw_jobs_dev = uploaded(raw, FRAMES * sizeof(*raw));
    bench->frames_dev = uploaded(frames, FRAMES * sizeof(*frames));
    bench->weights_dev = device_memory(SUMS_MAX_MASKS * N_PIXELS * sizeof(double));
    bench->flags_dev = uploaded(bench->flags, N_PIXELS);
    bench->out_dev = device_memory(OUT_BYTES);
    bench->status_dev = device_memory(FRAMES * sizeof(int32_t));
    bench->out = case_alloc(OUT_BYTES);
    bench->status = case_alloc(FRAMES * sizeof(int32_t));
    must(cudaEventCreate(&bench->start), "event");
    must(cudaEventCreate(&bench->stop), "event");
    void *done[] = {segment, distinct, jobs, raw, frames, encoded};
    for (size_t i = 0; i < sizeof(done) / sizeof(*done); i++)
        free(done[i]);
}

/* ---- the bench: runs ------------------------------------------------------------------------------ */

static int compare_floats(const void *a, const void *b)
{
    float left = *(const float *)a, right = *(const float *)b;
    return (left > right) - (left < right);
}

/* n: frames; bytes: what one has to be read. */
static void time_work(struct bench *bench, const struct work *work, const char *what, uint32_t n,
                      double bytes)
{
    float ms[N_RUNS];
    for (int r = -N_WARM; r < N_RUNS; r++) {
        must(cudaEventRecord(bench->start, NULL), "event");
        must(launch_work(work, NULL), "launch");
        must(cudaEventRecord(bench->stop, NULL), "event");
        must(cudaEventSynchronize(bench->stop), what);
        if (r >= 0)
            must(cudaEventElapsedTime(&ms[r], bench->start, bench->stop), "event");
    }
    qsort(ms, N_RUNS, sizeof(*ms), compare_floats);
    double median = ms[N_RUNS / 2];
    printf(
        "{\"bench\": \"%s\", \"sample\": \"%s\", \"bits_px\": %.3f, \"frames\": %u, \"ms\": %.4f, "
        "\"ms_10\": %.4f, \"ms_90\": %.4f, \"tpx_s\": %.3f, \"read_tb_s\": %.3f}\n",
        what, bench->sample, bench->bits_a_pixel, n, median, ms[N_RUNS / 10], ms[N_RUNS * 9 / 10],
        (double)n * N_PIXELS / median / 1e9, n * bytes / median / 1e9);
    fflush(stdout);
}

/* Weights as numbers of another kind. */
static void upload_weights(struct bench *bench, enum weight_kind kind)
{
    size_t n = SUMS_MAX_MASKS * N_PIXELS;
    double *weights = case_alloc(n * sizeof(*weights));
    for (size_t i = 0; i < n; i++) {
        if (kind == WEIGHT_U8)
            ((uint8_t *)weights)[i] = bench->weights[i];
        else if (kind == WEIGHT_I32)
            ((int32_t *)weights)[i] = bench->weights[i];
        else
            weights[i] = bench->weights[i];
    }
    must(cudaMemcpy(bench->weights_dev, weights, n * weight_bytes(kind), cudaMemcpyHostToDevice),
         "weights");
    free(weights);
}

/* All the sums that came out; those of float64 weights are whole numbers too. */
static void check_sums(struct bench *bench, enum weight_kind kind, uint32_t n, uint32_t n_masks)
{
    uint32_t wrong = 0;
    must(cudaMemcpy(bench->out, bench->out_dev, (size_t)n * n_masks * 8, cudaMemcpyDeviceToHost),
         "sums");
    must(cudaMemcpy(bench->status, bench->status_dev, n * sizeof(int32_t), cudaMemcpyDeviceToHost),
         "status");
    for (uint32_t m = 0; m < n_masks; m++)
        for (uint32_t d = 0; d < DISTINCT && d < n; d++) {
            uint64_t want = 0;
            for (uint32_t i = 0; i < N_PIXELS; i++)
                want += (uint64_t)bench->weights[m * N_PIXELS + i] *
                        bench->pixels[(size_t)d * N_PIXELS + i];
            double real = (double)want;
            if (kind == WEIGHT_F64)
                memcpy(&want, &real, sizeof(want));
            for (uint32_t f = d; f < n; f += DISTINCT)
                wrong += bench->out[(size_t)m * n + f] != want || bench->status[f] != 0;
        }
    CHECK_MSG(wrong == 0, "%s: %u sums of %u frames and %u masks, %s, are wrong", bench->sample,
              wrong, n, n_masks, kind_names[kind]);
}

static void bench_sums(struct bench *bench, enum weight_kind kind, uint32_t n, uint32_t n_masks,
                       bool raw)
{
    char what[64];
    snprintf(what, sizeof(what), "sum %s%s, masks %u", raw ? "raw " : "", kind_names[kind],
             n_masks);
    upload_weights(bench, kind);
    const struct work weigh = {.kind = WORK_WEIGH,
                               .n = N_SEGMENTS,
                               .shape = bench_shape,
                               .weigh = {.jobs = ADDRESS(bench->weigh_dev),
                                         .weights = ADDRESS(bench->weights_dev),
                                         .n_masks = n_masks,
                                         .weights_kind = kind,
                                         .n_granules = bench->model.n_granules}};
    const struct work work = {.kind = WORK_SUM,
                              .n = n,
                              .shape = bench_shape,
                              .sum = {.jobs = ADDRESS(raw ? bench->raw_jobs_dev : bench->jobs_dev),
                                      .weights = ADDRESS(bench->weights_dev),
                                      .out = ADDRESS(bench->out_dev),
                                      .out_stride = n,
                                      .status = ADDRESS(bench->status_dev),
                                      .n_masks = n_masks,
                                      .weights_kind = kind}};
    if (!raw && n == FRAMES)
        time_work(bench, &weigh, "weigh 16 segments", 0, 0);
    else
        must(launch_work(&weigh, NULL), "weigh");
    must(cudaMemset(bench->out_dev, 0xa5, (size_t)n * n_masks * 8), "poison");
    must(cudaMemset(bench->status_dev, 0xa5, n * sizeof(int32_t)), "poison");
    time_work(bench, &work, what, n, raw ? 2.0 * N_PIXELS : bench->bits_a_pixel / 8 * N_PIXELS);
    check_sums(bench, kind, n, n_masks);
}

static void bench_stats(struct bench *bench)
{
    struct frame_stats *got = (struct frame_stats *)bench->out;
    uint32_t wrong = 0;
    const struct work work = {.kind = WORK_STATS,
                              .n = FRAMES,
                              .shape = bench_shape,
                              .stats = {.frames = ADDRESS(bench->frames_dev),
                                        .flags = ADDRESS(bench->flags_dev),
                                        .stats = ADDRESS(bench->out_dev),
                                        .det_x = SIDE}};
    time_work(bench, &work, "stats", FRAMES, 2.0 * N_PIXELS);
    must(cudaMemcpy(got, bench->out_dev, FRAMES * sizeof(*got), cudaMemcpyDeviceToHost), "stats");
    for (uint32_t d = 0; d < DISTINCT; d++) {
        struct frame_stats want =
            plain_stats(bench->pixels + (size_t)d * N_PIXELS, bench->flags, SIDE, &bench_shape);
        for (uint32_t f = d; f < FRAMES; f += DISTINCT)
            wrong += memcmp(&got[f], &want, sizeof(want)) != 0;
    }
    CHECK_MSG(wrong == 0, "%s: statistics of %u frames are wrong", bench->sample, wrong);
}

static void bench_pixels(struct bench *bench)
{
    uint32_t wrong = 0;
    const uint64_t runs = N_RUNS + N_WARM, copies = FRAMES / DISTINCT;
    const struct work work = {.kind = WORK_PIXELS,
                              .n = N_PIXELS / WORK_PIXELS_BLOCK,
                              .shape = bench_shape,
                              .pixels = {.frames = ADDRESS(bench->frames_dev),
                                         .n_frames = FRAMES,
                                         .sums = ADDRESS(bench->out_dev)}};
    must(cudaMemset(bench->out_dev, 0, N_PIXELS * 8), "sums");
    time_work(bench, &work, "pixels", FRAMES, 2.0 * N_PIXELS);
    must(cudaMemcpy(bench->out, bench->out_dev, N_PIXELS * 8, cudaMemcpyDeviceToHost), "sums");
    for (uint32_t i = 0; i < N_PIXELS; i++) {
        uint64_t want = 0;
        for (uint32_t d = 0; d < DISTINCT; d++)
            want += bench->pixels[(size_t)d * N_PIXELS + i];
        wrong += bench->out[i] != want * copies * runs;
    }
    CHECK_MSG(wrong == 0, "%s: %u sums of pixels are wrong", bench->sample, wrong);
}

static void bench_compare(struct bench *bench)
{
    uint32_t wrong = 0;
    const struct work work = {.kind = WORK_COMPARE,
                              .n = FRAMES / 2,
                              .shape = bench_shape,
                              .compare = {.left = ADDRESS(bench->frames_dev),
                                          .right = ADDRESS(bench->frames_dev + FRAMES / 2),
                                          .differ = ADDRESS(bench->out_dev)}};
    time_work(bench, &work, "compare", FRAMES / 2, 4.0 * N_PIXELS);
    must(cudaMemcpy(bench->out, bench->out_dev, FRAMES / 2 * 8, cudaMemcpyDeviceToHost), "differ");
    for (uint32_t f = 0; f < FRAMES / 2; f++)
        wrong += bench->out[f] != 0;
    CHECK_MSG(wrong == 0, "%s: %u equal frames differ", bench->sample, wrong);
}

/* Rings about the middle. */
static void bench_rings(struct bench *bench)
{
    enum { RINGS = 136 };
    uint16_t *map = case_alloc(N_PIXELS * sizeof(*map));
    uint32_t *want = case_alloc(RINGS * sizeof(*want)), wrong = 0;
    uint32_t *got = case_alloc(FRAMES * RINGS * sizeof(*got));
    uint32_t *out = device_memory(FRAMES * RINGS * sizeof(*out));
    for (uint32_t i = 0; i < N_PIXELS; i++)
        map[i] = (uint16_t)hypot((double)(i / SIDE) - (SIDE - 1) / 2.0,
                                 (double)(i % SIDE) - (SIDE - 1) / 2.0);
    const struct work work = {.kind = WORK_RINGS,
                              .n = FRAMES,
                              .shape = bench_shape,
                              .rings = {.frames = ADDRESS(bench->frames_dev),
                                        .map = ADDRESS(uploaded(map, N_PIXELS * sizeof(*map))),
                                        .out = ADDRESS(out),
                                        .out_stride = FRAMES,
                                        .n_rings = RINGS}};
    time_work(bench, &work, "rings", FRAMES, 2.0 * N_PIXELS);
    must(cudaMemcpy(got, out, FRAMES * RINGS * sizeof(*out), cudaMemcpyDeviceToHost), "rings");
    for (uint32_t d = 0; d < DISTINCT; d++) {
        rings_frame(want, 1, false, bench->pixels + (size_t)d * N_PIXELS, map, RINGS, &bench_shape);
        for (uint32_t f = d; f < FRAMES; f += DISTINCT)
            for (uint32_t k = 0; k < RINGS; k++)
                wrong += got[(size_t)k * FRAMES + f] != want[k];
    }
    CHECK_MSG(wrong == 0, "%s: %u sums over rings are wrong", bench->sample, wrong);
    void *done[] = {map, want, got};
    for (size_t i = 0; i < sizeof(done) / sizeof(*done); i++)
        free(done[i]);
}

static void run_bench(const char *path)
{
    struct bench bench = {0};
    read_sample(&bench, path);
    train_bench(&bench);
    make_masks(&bench);
    upload_bench(&bench);
    for (uint32_t masks = 1; masks <= SUMS_MAX_MASKS; masks *= 2)
        bench_sums(&bench, WEIGHT_U8, FRAMES, masks, false);
    bench_sums(&bench, WEIGHT_U8, 1, 1, false);
    bench_sums(&bench, WEIGHT_U8, 256, 1, false);
    bench_sums(&bench, WEIGHT_U8, 4096, 1, false);
    bench_sums(&bench, WEIGHT_I32, FRAMES, 1, false);
    bench_sums(&bench, WEIGHT_F64, FRAMES, 1, false);
    bench_sums(&bench, WEIGHT_U8, FRAMES, 1, true);
    bench_stats(&bench);
    bench_pixels(&bench);
    bench_compare(&bench);
    bench_rings(&bench);
    must(cudaDeviceReset(), "reset");
    counts_model_fini(&bench.model);
    void *host[] = {bench.pixels, bench.weights, bench.flags, bench.out, bench.status};
    for (size_t i = 0; i < sizeof(host) / sizeof(*host); i++)
        free(host[i]);
}

int main(int argc, char **argv)
{
    int n_devices = 0;
    if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) {
        printf("no NVIDIA GPU here\n");
        return TEST_SKIP;
    }
    if (argc > 2 && strcmp(argv[1], "--bench") == 0) {
        for (int i = 2; i < argc; i++) {
            must(launch_load_all(), "launch_load_all");
            run_bench(argv[i]);
        }
        return test_end();
    }
    must(launch_load_all(), "launch_load_all");
    test_all(argc > 1 && strcmp(argv[1], "--short") == 0);
    return test_end();
}
