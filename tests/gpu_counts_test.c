/* SPDX-License-Identifier: Apache-2.0
 *
 * counts on the GPU against the pixels and against the host's decoder, by models made by hand, of chance, and
 * trained. Also what only a batch can show: a bad frame between good ones, frames of many segments in one launch,
 * launches that overlap.
 *
 *   gpu_counts_test [--short]     --short: few cases, for runs under compute-sanitizer */
#include "gpu_counts_cases.h"
#include "launch.h"

#define GUARD 64u
#define MAX_JOBS 1400u
#define SMALL_SHARED (99u * 1024u)
#define MIDDLE_SHARED (163u * 1024u)

/* ---- launches ------------------------------------------------------------------------------------ */

/* What a launch needs; small things lie in host memory that the GPU sees. */
struct gpu {
    struct decode_job *jobs;
    uint32_t *picks;
    int32_t *status;
    cudaStream_t stream;
};

/* A frame of a launch. */
struct wish {
    const struct made *made;
    uint32_t frame;
    uint32_t skew;      /* of dst, in bytes */
    bool check_only;    /* dst 0 */
    uint8_t *other_dev; /* bytes in place of the frame's, for damaged ones */
    uint32_t other_bytes;
    bool in_header,
        in_patches;      /* damaged there; several patches of one pixel then add up to anything */
    int host_status;     /* of damaged ones */
    uint8_t *host_frame; /* what the host made of it */
};

static bool all_are(const uint8_t *bytes, size_t n, uint8_t value)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != value)
            return false;
    return true;
}

static void check_wish(const struct wish *wish, const uint8_t *place, int status, const char *how)
{
    const struct made *made = wish->made;
    size_t total = frame_bytes(&made->shape);
    const uint8_t *frame = place + GUARD + wish->skew;
    const uint8_t *want = made->pixels + wish->frame * total;
    CHECK_MSG(all_are(place, GUARD + wish->skew, 0xa5) && all_are(frame + total, GUARD, 0xa5),
              "%s, %s: written beside the frame", made->test->name, how);
    if (wish->check_only)
        CHECK_MSG(all_are(frame, total, 0xa5), "%s, %s: written, though only checked",
                  made->test->name, how);
    if (!wish->other_dev) {
        CHECK_MSG(status == 0, "%s, %s: status %d", made->test->name, how, status);
        CHECK_MSG(wish->check_only || memcmp(frame, want, total) == 0, "%s, %s: other pixels",
                  made->test->name, how);
    } else {
        /* Where only the number of words was too small, the GPU may have read what it needed all the same. */
        bool whole = wish->in_header && wish->host_status && status == 0;
        CHECK_MSG(whole || status == wish->host_status, "%s, %s: status %d, the host has %d",
                  made->test->name, how, status, wish->host_status);
        if (status == 0 && !wish->in_patches)
            CHECK_MSG(memcmp(frame, whole ? want : wish->host_frame, total) == 0,
                      "%s, %s: not the host's pixels", made->test->name, how);
    }
}

/* Decode n wishes, all of one shape, in one launch; order: of the jobs, or NULL. host: frames go to host memory. */
static void run_wishes(struct gpu *gpu, const struct wish *wishes, uint32_t n,
                       const uint32_t *order, const struct counts_launch *options, bool host,
                       const char *how)
{
    const struct frame_shape shape = wishes[0].made->shape;
    size_t total = frame_bytes(&shape), stride = (total + 3 * GUARD + 63) / 64 * 64;
    uint8_t *places = NULL, *places_dev = NULL;
    must(cudaHostAlloc((void **)&places, n * stride, cudaHostAllocDefault), "host memory");
    memset(places, 0xa5, n * stride);
    if (host)
        places_dev = places;
    else
        places_dev = to_device(places, n * stride);
    memset(gpu->status, 0x5a, (n + 2) * sizeof(int32_t));
    for (uint32_t i = 0; i < n; i++) {
        const struct wish *wish = &wishes[i];
        const struct made *made = wish->made;
        gpu->status[i + 1] = 0;
        gpu->picks[i] = (order ? order[i] : i) + 1;
        gpu->jobs[i + 1] = (struct decode_job){
            .src = (uintptr_t)(wish->other_dev ? wish->other_dev : made->frames_dev[wish->frame]),
            .src_bytes = wish->other_dev ? wish->other_bytes : made->bytes[wish->frame],
            .blocks = (uintptr_t)made->segment_dev,
            .dst = wish->check_only
                       ? 0
                       : (uintptr_t)(places_dev + (size_t)i * stride + GUARD + wish->skew),
            .form = STOW_FORM_COUNTS,
        };
    }
    must(launch_decode_counts(gpu->status, gpu->jobs, gpu->picks, n, shape, options, gpu->stream),
         "launch");
    must(cudaStreamSynchronize(gpu->stream), how);
    if (!host) {
        must(cudaMemcpy(places, places_dev, n * stride, cudaMemcpyDeviceToHost), "copy");
        must(cudaFree(places_dev), "free");
    }
    for (uint32_t i = 0; i < n; i++)
        check_wish(&wishes[i], places + (size_t)i * stride, gpu->status[i + 1], how);
    CHECK_INT(gpu->status[0], 0x5a5a5a5a);
    CHECK_INT(gpu->status[n + 1], 0x5a5a5a5a);
    must(cudaFreeHost(places), "free");
}

/* ---- tests --------------------------------------------------------------------------------------- */

static void check_host(const struct made *made)
{
    size_t total = frame_bytes(&made->shape);
    uint8_t *frame = must_alloc(total);
    for (uint32_t i = 0; i < made->n_frames; i++) {
        struct decode_job job = {.src = (uintptr_t)made->frames[i],
                                 .src_bytes = made->bytes[i],
                                 .blocks = (uintptr_t)made->segment,
                                 .dst = (uintptr_t)frame,
                                 .form = STOW_FORM_COUNTS};
        struct stow_error err = {0};
        int status = counts_decode(&job, &made->shape, &err);
        CHECK_MSG(status == 0, "%s: the host says %s", made->test->name, err.text);
        CHECK_MSG(memcmp(frame, made->pixels + i * total, total) == 0,
                  "%s: other pixels on the host", made->test->name);
    }
    free(frame);
}

/* A case in all ways. */
static void test_ways(struct gpu *gpu, const struct made *made)
{
    static const struct {
        const char *name;
        struct counts_launch options;
        bool host;
    } ways[] = {
        {"as it is", {0}, false},
        {"plain stores", {.plain_stores = true}, false},
        {"99 KiB shared", {.shared_bytes = SMALL_SHARED}, false},
        {"163 KiB shared", {.shared_bytes = MIDDLE_SHARED}, false},
        {"to host memory", {0}, true},
    };
    static const uint32_t skews[] = {0, 16, 8, 4, 2, 1, 13};
    struct wish wishes[2 * MAX_FRAMES];
    for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++)
        for (size_t k = 0; k < sizeof(skews) / sizeof(skews[0]); k++) {
            uint32_t n = 0;
            if (k > 1 && (w > 1 || made->test->n_elems > 1000000))
                break;
            for (uint32_t i = 0; i < made->n_frames; i++)
                for (uint32_t check = 0; check < 2; check++)
                    wishes[n++] = (struct wish){
                        .made = made, .frame = i, .skew = skews[k], .check_only = check};
            run_wishes(gpu, wishes, n, NULL, &ways[w].options, ways[w].host, ways[w].name);
        }
}

static void test_cases(struct gpu *gpu, bool brief)
{
    for (size_t c = 0; c < N_CASES; c++) {
        struct made made;
        if (brief && (cases[c].n_elems > 40000 || c % 3 != 0))
            continue;
        make_case(&made, &cases[c], c + 1);
        if (strstr(cases[c].name, "over 1,000 patches"))
            CHECK_MSG(made.patches > 1000, "%s: it has %u", cases[c].name, made.patches);
        check_host(&made);
        test_ways(gpu, &made);
        free_case(&made);
    }
}

/* Every pattern by models of chance and by trained ones. */
static void test_patterns(struct gpu *gpu, bool brief)
{
    static const struct {
        uint64_t n_elems;
        uint32_t n_streams;
    } shapes[] = {{700, 1}, {6922, 2}, {20001, 3}, {36864, 8}};
    for (uint32_t i = 0; i < N_PATTERNS * 3 * 4 * 2; i++) {
        const enum pattern pattern = i % N_PATTERNS;
        const uint32_t shape = i / N_PATTERNS / 3 % 4;
        const struct test_case test = {.name = pattern_names[pattern],
                                       .n_elems = shapes[shape].n_elems,
                                       .elem_bytes = 1u << i / N_PATTERNS % 3,
                                       .n_streams = shapes[shape].n_streams,
                                       .n_frames = 3};
        struct made made;
        struct wish wishes[3];
        if (brief && i % 29 != 0)
            continue;
        make_plain_case(&made, &test, pattern, i / N_PATTERNS / 12);
        check_host(&made);
        for (uint32_t k = 0; k < 3; k++)
            wishes[k] = (struct wish){.made = &made, .frame = k, .skew = i % 2 * k};
        run_wishes(gpu, wishes, 3, NULL, NULL, false, "a pattern");
        free_case(&made);
    }
}

static void shuffle(uint32_t *order, uint32_t n, uint64_t *random)
{
    for (uint32_t i = n; i-- > 1;) {
        uint32_t j = random_next(random) % (i + 1), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

/* Frames of many segments, and of 1 to 8 streams, in one launch. */
static void test_mixed(struct gpu *gpu, bool brief)
{
    static struct test_case mixed[8];
    static struct wish wishes[MAX_JOBS];
    static uint32_t order[MAX_JOBS];
    struct made made[8];
    uint64_t random = 11;
    const uint32_t n = brief ? 40 : MAX_JOBS;
    for (uint32_t m = 0; m < 8; m++) {
        static const uint32_t streams[8] = {1, 3, 4, 8, 2, 1, 5, 1};
        mixed[m] = (struct test_case){"mixed segments", 9000, 2,      streams[m], ALL_KINDS,
                                      SKEWED,           1,    m * 10, 4};
        make_case(&made[m], &mixed[m], 100 + m);
    }
    for (uint32_t i = 0; i < n; i++) {
        wishes[i] = (struct wish){.made = &made[i * 8 / n],
                                  .frame = i % 4,
                                  .skew = i % 5 == 0 ? 0 : 16,
                                  .check_only = i % 11 == 0};
        order[i] = i;
    }
    const struct counts_launch small = {.shared_bytes = SMALL_SHARED};
    run_wishes(gpu, wishes, n, order, NULL, false, "in order");
    run_wishes(gpu, wishes, n, order, &small, false, "in order, 99 KiB");
    for (uint32_t i = 0; i < n; i++)
        order[i] = n - 1 - i;
    run_wishes(gpu, wishes, n, order, NULL, false, "backwards");
    shuffle(order, n, &random);
    run_wishes(gpu, wishes, n, order, NULL, false, "shuffled");
    for (uint32_t k = 1; k <= (brief ? 3u : 40u); k += 1 + k / 4)
        run_wishes(gpu, wishes, k, NULL, NULL, false, "a few");
    for (uint32_t m = 0; m < 8; m++)
        free_case(&made[m]);
}

/* What the host makes of a damaged frame. */
static void ask_host(struct wish *wish, const uint8_t *bytes)
{
    const struct made *made = wish->made;
    wish->host_frame = must_alloc(frame_bytes(&made->shape));
    struct decode_job job = {.src = (uintptr_t)bytes,
                             .src_bytes = wish->other_bytes,
                             .blocks = (uintptr_t)made->segment,
                             .dst = (uintptr_t)wish->host_frame,
                             .form = STOW_FORM_COUNTS};
    wish->host_status = counts_decode(&job, &made->shape, NULL);
}

/* One bit of a frame is another, or its end is missing. */
static void damage(struct wish *wish, uint8_t *bytes, uint64_t *random, uint32_t i)
{
    const struct made *made = wish->made;
    uint32_t n = made->bytes[wish->frame], bit = 1u << random_next(random) % 8;
    wish->in_header = i % 4 == 1;
    wish->in_patches = i % 4 == 2 && made->patches > 0;
    memcpy(bytes, made->frames[wish->frame], n);
    wish->other_bytes = n;
    switch (i % 4) {
    case 0: wish->other_bytes = random_next(random) % (n / 16) * 16; break;
    case 1: bytes[random_next(random) % made->header_bytes] ^= (uint8_t)bit; break;
    case 2: memset(bytes + made->header_bytes, (int)(random_next(random) & 0xff), 64); break;
    default: bytes[random_next(random) % n] ^= (uint8_t)bit;
    }
}

/* Damaged frames between good ones. */
static void test_damaged(struct gpu *gpu, const struct test_case *test, uint32_t n)
{
    struct made made;
    struct wish *wishes = must_alloc(2 * n * sizeof(*wishes));
    uint64_t random = test->n_elems * 31 + test->n_streams;
    uint32_t corrupt = 0;
    make_case(&made, test, 7);
    for (uint32_t i = 0; i < n; i++) {
        struct wish *wish = &wishes[2 * i];
        uint32_t frame = i % made.n_frames;
        uint8_t *bytes = must_alloc(made.bytes[frame]);
        *wish = (struct wish){.made = &made, .frame = frame};
        damage(wish, bytes, &random, i);
        ask_host(wish, bytes);
        corrupt += wish->host_status != 0;
        /* Ends where the allocation ends, so that a read beyond it is seen by compute-sanitizer. */
        wish->other_dev = to_device(bytes, wish->other_bytes ? wish->other_bytes : 16);
        wishes[2 * i + 1] = (struct wish){.made = &made, .frame = frame, .skew = i % 3 * 8};
        free(bytes);
    }
    CHECK_MSG(corrupt >= n / 4, "%s: %u of %u are called corrupt", test->name, corrupt, n);
    run_wishes(gpu, wishes, 2 * n, NULL, NULL, false, "damaged");
    for (uint32_t i = 0; i < n; i++) {
        must(cudaFree(wishes[2 * i].other_dev), "free");
        free(wishes[2 * i].host_frame);
    }
    free(wishes);
    free_case(&made);
}

/* Launches that begin while the one before ends. */
static void test_overlap(struct gpu *gpu)
{
    struct made made;
    const uint32_t n = 300, launches = 4;
    size_t total = 36864 * 2;
    uint8_t *frames_dev, *frames = must_alloc(launches * n * total);
    must(cudaMalloc((void **)&frames_dev, launches * n * total), "frames");
    make_case(&made, &cases[1], 3);
    for (uint32_t i = 0; i < launches * n; i++) {
        gpu->status[i] = 0;
        gpu->picks[i] = i;
        gpu->jobs[i] = (struct decode_job){.src = (uintptr_t)made.frames_dev[i % made.n_frames],
                                           .src_bytes = made.bytes[i % made.n_frames],
                                           .blocks = (uintptr_t)made.segment_dev,
                                           .dst = (uintptr_t)(frames_dev + i * total),
                                           .form = STOW_FORM_COUNTS};
    }
    for (uint32_t k = 0; k < launches; k++) {
        const struct counts_launch options = {.overlap = k > 0};
        must(launch_decode_counts(gpu->status, gpu->jobs, gpu->picks + k * n, n, made.shape,
                                  &options, gpu->stream),
             "launch");
    }
    must(cudaMemcpyAsync(frames, frames_dev, launches * n * total, cudaMemcpyDeviceToHost,
                         gpu->stream),
         "copy");
    must(cudaStreamSynchronize(gpu->stream), "overlap");
    for (uint32_t i = 0; i < launches * n; i++) {
        CHECK_INT(gpu->status[i], 0);
        CHECK_MSG(memcmp(frames + i * total, made.pixels + i % made.n_frames * total, total) == 0,
                  "frame %u of overlapping launches: other pixels", i);
    }
    must(cudaFree(frames_dev), "free");
    free(frames);
    free_case(&made);
}

static void test_refusals(struct gpu *gpu)
{
    const struct frame_shape shape = {.n_elems = 36864, .elem_bytes = 2};
    const struct frame_shape odd = {.n_elems = 36864, .elem_bytes = 3};
    const struct frame_shape none = {.n_elems = 0, .elem_bytes = 2};
    const struct frame_shape large = {.n_elems = 16384u * 2048u + 1, .elem_bytes = 1};
    const struct counts_launch tiny = {.shared_bytes = 65536};
    const struct {
        size_t n;
        struct frame_shape shape;
        const struct counts_launch *options;
        cudaError_t error;
    } refusals[] = {
        {0, shape, NULL, cudaSuccess},
        {1, odd, NULL, cudaErrorInvalidValue},
        {1, none, NULL, cudaErrorInvalidValue},
        {1, large, NULL, cudaErrorInvalidValue},
        {1, shape, &tiny, cudaErrorInvalidConfiguration},
    };
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++)
        CHECK_INT(launch_decode_counts(gpu->status, gpu->jobs, gpu->picks, refusals[i].n,
                                       refusals[i].shape, refusals[i].options, gpu->stream),
                  refusals[i].error);
}

static void open_gpu(struct gpu *gpu)
{
    *gpu = (struct gpu){0};
    must(cudaHostAlloc((void **)&gpu->jobs, (MAX_JOBS + 2) * sizeof(*gpu->jobs),
                       cudaHostAllocDefault),
         "host memory");
    must(cudaHostAlloc((void **)&gpu->picks, (MAX_JOBS + 2) * sizeof(*gpu->picks),
                       cudaHostAllocDefault),
         "host memory");
    must(cudaHostAlloc((void **)&gpu->status, (MAX_JOBS + 2) * sizeof(*gpu->status),
                       cudaHostAllocDefault),
         "host memory");
    must(cudaStreamCreate(&gpu->stream), "stream");
    must(launch_load_counts(), "launch_load_counts");
}

static void close_gpu(struct gpu *gpu)
{
    must(cudaDeviceSynchronize(), "at the end");
    must(cudaStreamDestroy(gpu->stream), "stream");
    must(cudaFreeHost(gpu->status), "free");
    must(cudaFreeHost(gpu->picks), "free");
    must(cudaFreeHost(gpu->jobs), "free");
}

int main(int argc, char **argv)
{
    int n_devices = 0;
    bool brief = argc > 1 && strcmp(argv[1], "--short") == 0;
    if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) {
        printf("no NVIDIA GPU here\n");
        return TEST_SKIP;
    }
    struct gpu gpu;
    open_gpu(&gpu);
    test_refusals(&gpu);
    test_cases(&gpu, brief);
    test_patterns(&gpu, brief);
    test_mixed(&gpu, brief);
    for (size_t c = 0; c < 7; c++)
        test_damaged(&gpu, &cases[c], brief ? 8 : 200);
    test_damaged(&gpu, &cases[20], brief ? 8 : 200);
    if (!brief)
        test_overlap(&gpu);
    close_gpu(&gpu);
    return test_end();
}
