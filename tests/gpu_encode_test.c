/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoding on the GPU against the host's: streams, rooms and placed frames byte for byte, decoded back; frames that a
 * model was made for and frames that it was not. Copies of every alignment.
 *
 *   gpu_encode_test [--short]            --short: few cases, for runs under compute-sanitizer
 *   gpu_encode_test --bench FILE.gz ...  how fast; each file has frames of 192x192 uint16. JSON lines */
#include "encode_trial.h"
#include "launch.h"

#include <sys/wait.h>
#include <unistd.h>

#define GUARD 64u

/* ---- cases ---------------------------------------------------------------------------------------- */

static const struct kase {
    uint64_t n_elems;
    uint32_t elem_bytes, n_streams;
    enum pattern pattern;
    bool brief;
} kases[] = {
    {1, 2, 1, POISSON_1, false},
    {300, 2, 1, POISSON_5, false},
    {2048, 2, 1, POISSON_01, true},
    {2047, 1, 1, DISK, false},
    {2051, 1, 2, POISSON_5, true},
    {3 * 2048 + 77, 2, 1, POISSON_5000, true},
    {3 * 2048 + 77, 2, 1, DEVIATING, true},
    {5 * 2048 + 255, 2, 3, DISK, true},
    {5 * 2048 + 257, 4, 3, POISSON_40, true},
    {192 * 192, 2, 1, POISSON_01, false},
    {192 * 192, 2, 1, POISSON_1, false},
    {192 * 192, 2, 1, POISSON_40, false},
    {192 * 192, 2, 1, POISSON_300, false},
    {192 * 192, 2, 4, DEVIATING, true},
    {192 * 192, 2, 1, HOT, false},
    {192 * 192, 2, 8, ZEROS, false},
    {192 * 192, 2, 1, SYMBOLS_2, false},
    {192 * 192, 2, 1, SYMBOLS_4, false},
    {192 * 192, 2, 1, SYMBOLS_8, false},
    {192 * 192 + 1, 2, 1, UNIFORM, false},
    {192 * 192, 1, 1, DISK, false},
    {192 * 192, 1, 3, DEVIATING, false},
    {192 * 192, 1, 1, SYMBOLS_8, true},
    {192 * 192, 1, 1, UNIFORM, false},
    {192 * 192, 4, 1, POISSON_1, false},
    {192 * 192, 4, 2, DEVIATING, false},
    {192 * 192, 4, 1, POISSON_5000, false},
    {256 * 256 + 13, 4, 5, UNIFORM, false},
    {515 * 511, 2, 1, POISSON_003, false},
    {515 * 511, 4, 2, ONE_FLAGGED, false},
    {512 * 512, 1, 7, HOT, false},
    {1024 * 1024, 4, 1, POISSON_01, false},
};

/* With a model of its frames, or with a random one. */
static bool make_trial(struct trial *trial, const struct kase *kase, bool any_model)
{
    *trial = (struct trial){.shape = {.n_elems = kase->n_elems, .elem_bytes = kase->elem_bytes}};
    trial->pixel_bytes = (frame_bytes(&trial->shape) + 15) / 16 * 16;
    trial->room_stride = trial->pixel_bytes + ROOM_GUARD;
    trial->pixels = make_memory(N_PROBES * trial->pixel_bytes);
    for (unsigned i = 0; i < N_PROBES; i++) {
        case_frame(trial_frame(trial, i), kase->pattern, i, &trial->shape);
        if (i >= N_FRAMES)
            make_strange(trial_frame(trial, i), &trial->shape, i - N_FRAMES);
    }
    if (!any_model)
        return make_model(trial, trial->pixels, trial->pixel_bytes, N_FRAMES, kase->n_streams);
    struct counts_model model;
    random_model(&model, &trial->shape, kase->n_streams);
    take_model(trial, &model);
    return true;
}

static bool all_are(const uint8_t *bytes, size_t n, uint8_t value)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != value)
            return false;
    return true;
}

/* What counts of a room: patches, words. */
static bool rooms_agree(const uint8_t *left, const uint8_t *right,
                        const struct counts_stream *streams, const struct trial *trial)
{
    for (uint32_t s = 0; s < trial->n_streams; s++) {
        uint64_t begin = counts_room_at(&trial->shape, trial->n_streams, s);
        uint64_t end = counts_room_at(&trial->shape, trial->n_streams, s + 1) / 4 * 4;
        uint64_t patches = 4u * streams[s].n_patches * counts_patch_words(trial->shape.elem_bytes);
        uint64_t words = 4u * (uint64_t)streams[s].n_words;
        if (streams[s].n_words && (memcmp(left + begin, right + begin, patches) != 0 ||
                                   memcmp(left + end - words, right + end - words, words) != 0))
            return false;
    }
    return true;
}

/* The host's encoding of frame i of a trial; its place in memory, or NULL where it does not fit. */
static uint8_t *encode_host(struct counts_stream *streams, uint8_t *room, const struct trial *trial,
                            unsigned i, uint64_t *bytes)
{
    counts_encode(streams, room, trial_frame(trial, i), trial->segment, trial->encoder,
                  &trial->shape);
    *bytes = counts_frame_bytes(streams, trial->n_streams, trial->shape.elem_bytes);
    if (!*bytes)
        return NULL;
    uint8_t *placed = aligned_alloc(16, *bytes);
    if (!placed)
        exit(EXIT_FAILURE);
    counts_place(placed, room, streams, trial->n_streams, &trial->shape);
    return placed;
}

static void check_decodes(const struct trial *trial, const uint8_t *placed, uint64_t bytes,
                          unsigned i, size_t kase)
{
    struct stow_error err = {0};
    size_t n = frame_bytes(&trial->shape);
    uint8_t *pixels = make_memory(n);
    struct decode_job job = {.src = (uintptr_t)placed,
                             .blocks = (uintptr_t)trial->segment,
                             .dst = (uintptr_t)pixels,
                             .src_bytes = (uint32_t)bytes,
                             .form = STOW_FORM_COUNTS};
    int rc = counts_decode(&job, &trial->shape, &err);
    CHECK_MSG(!rc, "case %zu frame %u: %s", kase, i, err.text);
    CHECK_MSG(rc || memcmp(pixels, trial_frame(trial, i), n) == 0,
              "case %zu frame %u: other pixels", kase, i);
    free(pixels);
}

/* Place what the GPU has encoded of frame i, alone in guarded memory, and compare it with the host's. */
static void check_placed(const struct trial *trial, const struct encoding *encoding,
                         const uint8_t *placed, uint64_t bytes, unsigned i, size_t kase)
{
    uint64_t dst = on_device(NULL, bytes + 2 * GUARD);
    struct place_job job = {.src = encoding->rooms + i * trial->room_stride,
                            .dst = dst + GUARD,
                            .encoded = encoding->streams +
                                       i * trial->n_streams * sizeof(struct counts_stream),
                            .bytes = (uint32_t)bytes,
                            .streams = trial->n_streams};
    uint64_t jobs = on_device(&job, sizeof(job));
    struct work work = {.kind = WORK_PLACE, .n = 1, .shape = trial->shape, .place = {.jobs = jobs}};
    must(launch_encode(&work, NULL), "place");
    must(cudaDeviceSynchronize(), "place");
    uint8_t *got = from_device(dst, bytes + 2 * GUARD);
    CHECK_MSG(memcmp(got + GUARD, placed, bytes) == 0, "case %zu frame %u: placed otherwise", kase,
              i);
    CHECK(all_are(got, GUARD, 0xa5) && all_are(got + GUARD + bytes, GUARD, 0xa5));
    free(got);
    release(dst);
    release(jobs);
}

static unsigned n_fit; /* frames */

static void check_probes(const struct trial *trial, const struct encoding *encoding, size_t kase)
{
    size_t n_streams = trial->n_streams, stride = trial->room_stride;
    uint8_t *rooms = from_device(encoding->rooms, N_PROBES * stride);
    struct counts_stream *streams =
        from_device(encoding->streams, (N_PROBES + 1) * n_streams * sizeof(*streams));
    uint8_t *room = make_memory(trial->pixel_bytes);
    for (unsigned i = 0; i < N_PROBES; i++) {
        uint64_t bytes;
        struct counts_stream want[COUNTS_MAX_STREAMS];
        uint8_t *placed = encode_host(want, room, trial, i, &bytes);
        bool same = memcmp(want, streams + i * n_streams, n_streams * sizeof(*want)) == 0;
        CHECK_MSG(same, "case %zu frame %u: other streams: %u words, %u patches, not %u, %u", kase,
                  i, streams[i * n_streams].n_words, streams[i * n_streams].n_patches,
                  want[0].n_words, want[0].n_patches);
        CHECK_MSG(!same || rooms_agree(room, rooms + i * stride, want, trial),
                  "case %zu frame %u: another room", kase, i);
        CHECK_MSG(all_are(rooms + i * stride + trial->pixel_bytes, ROOM_GUARD, 0xa5),
                  "case %zu frame %u: written behind a room", kase, i);
        if (placed && same) {
            n_fit++;
            check_placed(trial, encoding, placed, bytes, i, kase);
            check_decodes(trial, placed, bytes, i, kase);
        }
        free(placed);
    }
    CHECK(all_are((const uint8_t *)(streams + N_PROBES * n_streams), n_streams * sizeof(*streams),
                  0xa5));
    free(room);
    free(rooms);
    free(streams);
}

/* What a block gets at most here and on other GPUs, and so little that few warps fit. */
static const uint32_t shared_bytes[] = {0, 99u << 10, 60u << 10};

static void run_case(const struct kase *kase, bool any_model, size_t k)
{
    struct trial trial;
    struct encoding encoding;
    if (make_trial(&trial, kase, any_model)) {
        open_encoding(&encoding, &trial, N_PROBES, N_PROBES);
        must(launch_encode_within(&encoding.work, shared_bytes[k % 3], NULL), "encode");
        must(cudaDeviceSynchronize(), "encode");
        check_probes(&trial, &encoding, k);
        close_encoding(&encoding);
    }
    end_trial(&trial);
}

static void test_cases(bool brief)
{
    for (size_t k = 0; k < sizeof(kases) / sizeof(kases[0]); k++)
        if (!brief || kases[k].brief)
            run_case(&kases[k], false, k);
    struct work none = {.kind = WORK_ENCODE};
    CHECK_INT(launch_encode(&none, NULL), cudaSuccess);
}

/* Models that training would not make; of dim frames, or few would fit. Case numbers go on from 1,000. */
static void test_any_models(bool brief)
{
    static const enum pattern patterns[] = {ZEROS, POISSON_003, POISSON_01, POISSON_1, SYMBOLS_2};
    unsigned fit = n_fit;
    for (size_t k = 0; k < (brief ? 12 : 150); k++) {
        struct kase kase = {.n_elems = 1 + case_random() % 9000,
                            .elem_bytes = 1u << k % 3,
                            .n_streams = 1 + (uint32_t)(case_random() % 4),
                            .pattern = patterns[case_random() % 5]};
        run_case(&kase, true, 1000 + k);
    }
    CHECK_MSG(n_fit > fit, "no frame fitted");
}

/* ---- copies --------------------------------------------------------------------------------------- */

static const uint32_t copy_sizes[] = {0,  1,  3,  4,   7,    15,   16,   17,
                                      20, 33, 64, 100, 1021, 4096, 40007};
#define N_SIZES (sizeof(copy_sizes) / sizeof(copy_sizes[0]))
#define COPY_ROOM (40007u + 16u + 2 * GUARD)

/* All sizes, from src_skew to each skew. */
static void check_copies(const uint8_t *bytes, uint64_t src, unsigned src_skew)
{
    struct place_job jobs[16 * N_SIZES];
    uint64_t dst = on_device(NULL, 16 * N_SIZES * COPY_ROOM);
    for (size_t i = 0; i < 16 * N_SIZES; i++)
        jobs[i] = (struct place_job){.src = src + src_skew,
                                     .dst = dst + i * COPY_ROOM + GUARD + i % 16,
                                     .bytes = copy_sizes[i / 16]};
    uint64_t jobs_dev = on_device(jobs, sizeof(jobs));
    struct work work = {.kind = WORK_PLACE, .n = 16 * N_SIZES, .place = {.jobs = jobs_dev}};
    must(launch_encode(&work, NULL), "copies");
    must(cudaDeviceSynchronize(), "copies");
    uint8_t *got = from_device(dst, 16 * N_SIZES * COPY_ROOM);
    for (size_t i = 0; i < 16 * N_SIZES; i++) {
        const uint8_t *room = got + i * COPY_ROOM;
        size_t at = GUARD + i % 16, n = jobs[i].bytes;
        CHECK_MSG(all_are(room, at, 0xa5) && memcmp(room + at, bytes + src_skew, n) == 0 &&
                      all_are(room + at + n, COPY_ROOM - at - n, 0xa5),
                  "%zu bytes from %u to %zu", n, src_skew, i % 16);
    }
    free(got);
    release(dst);
    release(jobs_dev);
}

static void test_copies(bool brief)
{
    uint8_t *bytes = make_memory(COPY_ROOM);
    for (size_t i = 0; i < COPY_ROOM; i++)
        bytes[i] = (uint8_t)case_random();
    uint64_t src = on_device(bytes, COPY_ROOM);
    for (unsigned skew = 0; skew < 16; skew += brief ? 5 : 1)
        check_copies(bytes, src, skew);
    release(src);
    free(bytes);
}

/* ---- how fast ------------------------------------------------------------------------------------- */

#define BENCH_ELEMS (192u * 192u)
#define BENCH_FRAME_BYTES (BENCH_ELEMS * 2u)
#define BENCH_FRAMES 512u /* of a file */
#define BENCH_RUNS 21
#define BENCH_WARM_UPS 3

/* Up to n bytes of what gzip unpacks of a file. */
static size_t read_gzip(uint8_t *to, size_t n, const char *path)
{
    int ends[2], status;
    size_t done = 0;
    ssize_t got = 1;
    if (pipe(ends))
        return 0;
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        execlp("gzip", "gzip", "-dc", "--", path, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    while (child > 0 && done < n && (got = read(ends[0], to + done, n - done)) > 0)
        done += (size_t)got;
    close(ends[0]);
    if (child > 0)
        waitpid(child, &status, 0);
    return done;
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* One JSON line; amount: what a run does, in units of 1e9. */
static void bench(const char *name, const char *path, uint32_t n, const struct work *work,
                  double amount, const char *unit, double bits)
{
    float ms[BENCH_RUNS];
    cudaEvent_t begin, end;
    must(cudaEventCreate(&begin), "event");
    must(cudaEventCreate(&end), "event");
    for (int i = -BENCH_WARM_UPS; i < BENCH_RUNS; i++) {
        must(cudaEventRecord(begin, NULL), "event");
        must(launch_encode(work, NULL), "launch");
        must(cudaEventRecord(end, NULL), "event");
        must(cudaEventSynchronize(end), "run");
        must(cudaEventElapsedTime(&ms[i < 0 ? 0 : i], begin, end), "time");
    }
    qsort(ms, BENCH_RUNS, sizeof(ms[0]), by_value);
    double median = ms[BENCH_RUNS / 2], p10 = ms[BENCH_RUNS / 10],
           p90 = ms[BENCH_RUNS - 1 - BENCH_RUNS / 10];
    printf("{\"bench\": \"%s\", \"sample\": \"%s\", \"frames\": %u, \"median_us\": %.1f, "
           "\"p10_us\": %.1f, \"p90_us\": %.1f, \"%s\": %.1f, \"bits_per_count\": %.4f}\n",
           name, path, n, median * 1e3, p10 * 1e3, p90 * 1e3, unit, amount / (median * 1e-3), bits);
    fflush(stdout);
    must(cudaEventDestroy(begin), "event");
    must(cudaEventDestroy(end), "event");
}

/* Jobs that place n encoded frames one behind the other; how many bytes they have. 0: one does not fit. */
static uint64_t make_places(struct place_job *jobs, const struct encoding *encoding,
                            const struct trial *trial, uint64_t dst)
{
    size_t n = (size_t)encoding->n * trial->n_streams;
    struct counts_stream *streams = from_device(encoding->streams, n * sizeof(*streams));
    uint64_t total = 0;
    for (uint32_t i = 0; i < encoding->n; i++) {
        size_t at = (size_t)i * trial->n_streams;
        uint64_t bytes = counts_frame_bytes(streams + at, trial->n_streams, 2);
        if (!bytes) {
            total = 0;
            break;
        }
        jobs[i] = (struct place_job){.src = encoding->rooms + i * trial->room_stride,
                                     .dst = dst + total,
                                     .encoded = encoding->streams + at * sizeof(*streams),
                                     .bytes = (uint32_t)bytes,
                                     .streams = trial->n_streams};
        total += bytes;
    }
    free(streams);
    return total;
}

static void bench_places(const struct encoding *encoding, const struct trial *trial,
                         const char *path)
{
    uint32_t n = encoding->n;
    uint64_t dst = on_device(NULL, n * trial->pixel_bytes);
    struct place_job *jobs = make_memory(n * sizeof(*jobs));
    uint64_t bytes = make_places(jobs, encoding, trial, dst);
    CHECK(bytes > 0);
    uint64_t jobs_dev = on_device(jobs, n * sizeof(*jobs));
    struct work work = {
        .kind = WORK_PLACE, .n = n, .shape = trial->shape, .place = {.jobs = jobs_dev}};
    double bits = bytes * 8.0 / ((double)n * BENCH_ELEMS);
    bench("place", path, n, &work, (double)bytes / 1e9, "gbytes_per_s", bits);
    release(jobs_dev);
    static const unsigned skews[] = {0, 4, 1}; /* by sixteen bytes, by four, and neither */
    for (size_t k = 0; k < sizeof(skews) / sizeof(skews[0]); k++) {
        for (uint32_t i = 0; i < n; i++)
            jobs[i] =
                (struct place_job){.src = encoding->pixels + i * trial->pixel_bytes + skews[k],
                                   .dst = dst + i * trial->pixel_bytes,
                                   .bytes = BENCH_FRAME_BYTES - 16};
        jobs_dev = on_device(jobs, n * sizeof(*jobs));
        work.place.jobs = jobs_dev;
        bench(skews[k] == 0   ? "copy, 16 bytes apart"
              : skews[k] == 4 ? "copy, 4 bytes apart"
                              : "copy, 1 byte apart",
              path, n, &work, n * (BENCH_FRAME_BYTES - 16) / 1e9, "gbytes_per_s", 16);
        release(jobs_dev);
    }
    release(dst);
    free(jobs);
}

/* Some frames against the host's, before anything is timed. */
static void check_some(const struct trial *trial, const struct encoding *encoding)
{
    uint8_t *rooms = from_device(encoding->rooms, BENCH_FRAMES * trial->room_stride);
    uint8_t *room = make_memory(trial->pixel_bytes);
    struct counts_stream *streams =
        from_device(encoding->streams, BENCH_FRAMES * trial->n_streams * sizeof(*streams));
    for (unsigned i = 0; i < BENCH_FRAMES; i += 37) {
        uint64_t bytes;
        struct counts_stream want[COUNTS_MAX_STREAMS];
        uint8_t *placed = encode_host(want, room, trial, i, &bytes);
        CHECK(placed &&
              memcmp(want, streams + i * trial->n_streams, trial->n_streams * sizeof(*want)) == 0);
        CHECK(rooms_agree(room, rooms + i * trial->room_stride, want, trial));
        if (placed)
            check_decodes(trial, placed, bytes, i, 0);
        free(placed);
    }
    free(room);
    free(rooms);
    free(streams);
}

static void bench_file(const char *path, uint32_t n_streams)
{
    static const uint32_t sizes[] = {512, 4096, 16384};
    struct trial trial = {.shape = {.n_elems = BENCH_ELEMS, .elem_bytes = 2},
                          .pixel_bytes = BENCH_FRAME_BYTES,
                          .room_stride = BENCH_FRAME_BYTES};
    size_t bytes = (size_t)BENCH_FRAMES * BENCH_FRAME_BYTES;
    trial.pixels = make_memory(bytes);
    size_t got = read_gzip(trial.pixels, bytes, path);
    CHECK_MSG(got == bytes, "%s: %zu bytes", path, got);
    if (got == bytes &&
        make_model(&trial, trial.pixels, BENCH_FRAME_BYTES, BENCH_FRAMES, n_streams)) {
        for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
            struct encoding encoding;
            open_encoding(&encoding, &trial, BENCH_FRAMES, sizes[k]);
            must(launch_encode(&encoding.work, NULL), "encode");
            must(cudaDeviceSynchronize(), "encode");
            check_some(&trial, &encoding);
            bench(n_streams == 1 ? "encode" : "encode, 4 streams", path, sizes[k], &encoding.work,
                  (double)sizes[k] * BENCH_ELEMS / 1e9, "gcounts_per_s", 0);
            if (n_streams == 1)
                bench_places(&encoding, &trial, path);
            close_encoding(&encoding);
        }
    }
    end_trial(&trial);
}

int main(int argc, char **argv)
{
    int n_devices = 0;
    bool brief = argc > 1 && strcmp(argv[1], "--short") == 0;
    if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) {
        printf("no NVIDIA GPU here\n");
        return TEST_SKIP;
    }
    must(launch_load_encode(), "launch_load_encode");
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        for (int i = 2; i < argc; i++) {
            bench_file(argv[i], 1);
            bench_file(argv[i], 4);
        }
        return test_end();
    }
    test_copies(brief);
    test_cases(brief);
    test_any_models(brief);
    must(cudaDeviceSynchronize(), "at the end");
    return test_end();
}
