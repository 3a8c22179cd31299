/* SPDX-License-Identifier: Apache-2.0
 *
 * bslz4 on the GPU against the plain decoder and the host's, on the cases of the host's test. Also what only a
 * batch can show: a bad frame between good ones, all forms in one launch, more frames than fit at once.
 *
 *   gpu_bslz4_test [--short]     --short: few cases, for runs under compute-sanitizer */
#include "bslz4_cases.h"
#include "launch.h"

#include <cuda_runtime_api.h>

#define GUARD 64u
#define ROOM (8u << 20)
#define BATCH 700u /* frames of 192x192 */
#define SHORT_BATCH 30u
#define SHORT_EVERY 31u /* one small case of so many is the GPU's; odd: with pixels and without */

static void must(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    exit(EXIT_FAILURE);
}

/* What a launch needs; small things lie in host memory that the GPU sees. */
struct gpu {
    uint8_t *chunk; /* [ROOM] */
    uint32_t *blocks;
    struct decode_job *jobs;
    int32_t *status;
    uint8_t *frame_dev; /* [ROOM] */
    uint8_t *frame;
    cudaStream_t stream;
    unsigned every, n_cases; /* one case of `every` is the GPU's */
};

static void *shared_memory(size_t bytes)
{
    void *memory = NULL;
    must(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault), "host memory");
    return memory;
}

static void open_gpu(struct gpu *gpu)
{
    *gpu = (struct gpu){
        .chunk = shared_memory(ROOM),
        .blocks = shared_memory(ROOM),
        .jobs = shared_memory(BATCH * sizeof(struct decode_job)),
        .status = shared_memory((BATCH + 1) * sizeof(int32_t)),
        .frame = shared_memory(ROOM),
    };
    must(cudaMalloc((void **)&gpu->frame_dev, ROOM), "device memory");
    must(cudaStreamCreate(&gpu->stream), "stream");
    must(launch_load_bslz4(), "launch_load_bslz4");
}

static bool guards_hold(const uint8_t *frame, size_t total)
{
    for (size_t i = 0; i < GUARD; i++)
        if (frame[i] != 0xa5 || frame[GUARD + total + i] != 0xa5)
            return false;
    return true;
}

/* In place of the GPU, where that would take too long. */
static int decode_host(uint8_t *dst, const uint8_t *src, size_t src_bytes, const uint32_t *blocks,
                       const struct frame_shape *shape)
{
    const struct decode_job job = {.src = (uintptr_t)src,
                                   .src_bytes = (uint32_t)src_bytes,
                                   .blocks = (uintptr_t)blocks,
                                   .dst = (uintptr_t)dst,
                                   .form = STOW_FORM_BSLZ4};
    return decode_frame(&job, shape, NULL);
}

static int decode_gpu(void *data, uint8_t *dst, const uint8_t *src, size_t src_bytes,
                      const uint32_t *blocks, size_t n_blocks, const struct frame_shape *shape,
                      unsigned skew)
{
    struct gpu *gpu = data;
    if (gpu->n_cases++ % gpu->every != 0)
        return decode_host(dst, src, src_bytes, blocks, shape);
    size_t total = frame_bytes(shape);
    unsigned dst_skew = skew % 2 ? 0 : skew / 2 % 16, src_skew = skew / 3 % 16;
    uint8_t *frame_dev = gpu->frame_dev + dst_skew;
    memcpy(gpu->chunk + src_skew, src, src_bytes);
    memcpy(gpu->blocks, blocks, (n_blocks + 1) * sizeof(*blocks));
    gpu->jobs[0] = (struct decode_job){
        .src = (uintptr_t)(gpu->chunk + src_skew),
        .src_bytes = (uint32_t)src_bytes,
        .blocks = (uintptr_t)gpu->blocks,
        .dst = dst ? (uintptr_t)(frame_dev + GUARD) : 0,
        .form = STOW_FORM_BSLZ4,
    };
    gpu->status[0] = 0;
    gpu->status[1] = 77;
    must(cudaMemsetAsync(frame_dev, 0xa5, total + 2 * GUARD, gpu->stream), "memset");
    must(launch_decode(gpu->status, gpu->jobs, NULL, 1, *shape, gpu->stream), "launch");
    must(cudaMemcpyAsync(gpu->frame, frame_dev, total + 2 * GUARD, cudaMemcpyDeviceToHost,
                         gpu->stream),
         "copy");
    must(cudaStreamSynchronize(gpu->stream), "decode");
    if (!guards_hold(gpu->frame, total) || gpu->status[1] != 77)
        return 1;
    if (dst)
        memcpy(dst, gpu->frame + GUARD, total);
    return gpu->status[0];
}

/* ---- batches -------------------------------------------------------------------------------------- */

static const struct frame_shape batch_shape = {.n_elems = 192u * 192u,
                                               .elem_bytes = 2,
                                               .fill = 0x1234};
#define BATCH_FRAME_BYTES (192u * 192u * 2u)

/* Frame i of a batch is of one of these, in turn. */
enum kind { GOOD, FLIPPED_LENGTH, BAD_LZ4, RAW, RAW_SHORT, FILL, GOOD_CHECKED, N_KINDS };
static const int kind_status[] = {[FLIPPED_LENGTH] = STOW_CORRUPT,
                                  [BAD_LZ4] = STOW_CORRUPT,
                                  [RAW_SHORT] = STOW_CORRUPT,
                                  [FILL] = 0};

/* The chunks that the frames share, one after the other in device-visible memory. */
struct batch {
    uint8_t *pixels; /* what a good frame decodes to */
    struct decode_job kinds[N_KINDS];
};

static void make_batch(struct gpu *gpu, struct batch *batch)
{
    size_t n_blocks;
    batch->pixels = case_alloc(BATCH_FRAME_BYTES);
    make_pixels(batch->pixels, &batch_shape, FLAGGED);
    struct case_chunk chunk = make_chunk(batch->pixels, &batch_shape, 0);
    uint8_t *good = gpu->chunk + 5, *flipped = good + chunk.n_bytes, *bad = flipped + chunk.n_bytes;
    uint8_t *raw = bad + chunk.n_bytes + 1;
    CHECK_INT(bslz4_index(gpu->blocks, ROOM / 4, &n_blocks, chunk.bytes, chunk.n_bytes,
                          &batch_shape, NULL),
              0);
    memcpy(good, chunk.bytes, chunk.n_bytes);
    memcpy(flipped, chunk.bytes, chunk.n_bytes);
    memcpy(bad, chunk.bytes, chunk.n_bytes);
    memcpy(raw, batch->pixels, BATCH_FRAME_BYTES);
    flipped[gpu->blocks[4] + 2] ^= 0x10;
    memset(bad + gpu->blocks[7] + 4, 0xff, 40);

    struct decode_job bslz4 = {.blocks = (uintptr_t)gpu->blocks,
                               .src_bytes = (uint32_t)chunk.n_bytes,
                               .form = STOW_FORM_BSLZ4};
    struct decode_job plain = {.src = (uintptr_t)raw,
                               .src_bytes = BATCH_FRAME_BYTES,
                               .form = STOW_FORM_RAW};
    for (int kind = 0; kind < N_KINDS; kind++)
        batch->kinds[kind] = kind == RAW || kind == RAW_SHORT ? plain : bslz4;
    batch->kinds[GOOD].src = batch->kinds[GOOD_CHECKED].src = (uintptr_t)good;
    batch->kinds[FLIPPED_LENGTH].src = (uintptr_t)flipped;
    batch->kinds[BAD_LZ4].src = (uintptr_t)bad;
    batch->kinds[RAW_SHORT].src_bytes--;
    batch->kinds[FILL] = (struct decode_job){.form = STOW_FORM_FILL};
    free(chunk.bytes);
}

static void check_frame(const struct batch *batch, enum kind kind, unsigned i, const uint8_t *frame,
                        int status)
{
    CHECK_MSG(status == kind_status[kind], "frame %u: status %d", i, status);
    if (kind == GOOD || kind == RAW)
        CHECK_MSG(memcmp(frame, batch->pixels, BATCH_FRAME_BYTES) == 0, "frame %u: other pixels",
                  i);
    for (size_t k = 0; kind == FILL && k < BATCH_FRAME_BYTES; k += 2)
        if (frame[k] != 0x34 || frame[k + 1] != 0x12) {
            CHECK_MSG(false, "frame %u: not the fill value at byte %zu", i, k);
            break;
        }
    for (size_t k = 0; kind == GOOD_CHECKED && k < BATCH_FRAME_BYTES; k++)
        if (frame[k] != 0xa5) {
            CHECK_MSG(false, "frame %u: written at byte %zu, though only checked", i, k);
            break;
        }
}

/* n frames, each beside others that are bad or of another form. */
static void check_batch(struct gpu *gpu, const struct batch *batch, unsigned n, unsigned skew)
{
    size_t bytes = (size_t)n * BATCH_FRAME_BYTES + skew;
    uint8_t *frames_dev, *frames = case_alloc(bytes);
    must(cudaMalloc((void **)&frames_dev, bytes), "frames");
    must(cudaMemset(frames_dev, 0xa5, bytes), "memset");
    for (unsigned i = 0; i < n; i++) {
        gpu->jobs[i] = batch->kinds[i % N_KINDS];
        if (i % N_KINDS != GOOD_CHECKED)
            gpu->jobs[i].dst = (uintptr_t)(frames_dev + skew + (size_t)i * BATCH_FRAME_BYTES);
    }
    memset(gpu->status, 0, n * sizeof(int32_t));
    gpu->status[n] = 77;
    must(launch_decode(gpu->status, gpu->jobs, NULL, n, batch_shape, gpu->stream), "launch");
    must(cudaStreamSynchronize(gpu->stream), "decode");
    must(cudaMemcpy(frames, frames_dev, bytes, cudaMemcpyDeviceToHost), "copy");
    for (unsigned i = 0; i < n; i++)
        check_frame(batch, i % N_KINDS, i, frames + skew + (size_t)i * BATCH_FRAME_BYTES,
                    gpu->status[i]);
    CHECK_INT(gpu->status[n], 77);
    must(cudaFree(frames_dev), "free");
    free(frames);
}

static void test_batches(struct gpu *gpu, bool brief)
{
    struct batch batch;
    make_batch(gpu, &batch);
    check_batch(gpu, &batch, 1, 0);
    check_batch(gpu, &batch, N_KINDS, 2);
    check_batch(gpu, &batch, 4 * N_KINDS, 1);
    check_batch(gpu, &batch, brief ? SHORT_BATCH : BATCH, 0);
    CHECK_INT(launch_decode(gpu->status, gpu->jobs, NULL, 0, batch_shape, gpu->stream),
              cudaSuccess);
    free(batch.pixels);
}

/* One frame of more than one span, never written or plain, at this place within 16 bytes. */
static void check_plain(struct gpu *gpu, uint32_t elem_bytes, enum stow_form form, unsigned skew)
{
    const struct frame_shape shape = {.n_elems = 10007 / elem_bytes,
                                      .elem_bytes = elem_bytes,
                                      .fill = 0x8877665544332211};
    size_t total = frame_bytes(&shape), wrong = 0;
    uint8_t *frame_dev = gpu->frame_dev + skew, *raw = gpu->chunk + skew / 2;
    for (size_t i = 0; i < total; i++)
        raw[i] = form == STOW_FORM_FILL ? (uint8_t)(shape.fill >> (8 * (i % elem_bytes)))
                                        : (uint8_t)case_random();
    gpu->jobs[0] = (struct decode_job){.dst = (uintptr_t)(frame_dev + GUARD), .form = form};
    if (form == STOW_FORM_RAW) {
        gpu->jobs[0].src = (uintptr_t)raw;
        gpu->jobs[0].src_bytes = (uint32_t)total;
    }
    gpu->status[0] = 0;
    must(cudaMemset(frame_dev, 0xa5, total + 2 * GUARD), "memset");
    must(launch_decode(gpu->status, gpu->jobs, NULL, 1, shape, gpu->stream), "launch");
    must(cudaStreamSynchronize(gpu->stream), "decode");
    must(cudaMemcpy(gpu->frame, frame_dev, total + 2 * GUARD, cudaMemcpyDeviceToHost), "copy");
    for (size_t i = 0; i < total; i++)
        wrong += gpu->frame[GUARD + i] != raw[i];
    CHECK_MSG(!wrong && gpu->status[0] == 0 && guards_hold(gpu->frame, total),
              "form %d, %u bytes, skew %u: %zu bytes are wrong", (int)form, elem_bytes, skew,
              wrong);
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
    gpu.every = brief ? SHORT_EVERY : 1;
    test_batches(&gpu, brief);
    for (uint32_t e = 1; e <= 8; e *= 2) {
        for (unsigned skew = 0; skew < 16; skew += brief ? 5 : 1) {
            check_plain(&gpu, e, STOW_FORM_FILL, skew);
            check_plain(&gpu, e, STOW_FORM_RAW, skew);
        }
    }
    struct case_decoder decoder = {"gpu", decode_gpu, &gpu, 2u << 20, 20, 60};
    if (brief) {
        decoder.largest = 20000;
        decoder.n_mutations = decoder.n_cuts = 2;
    }
    run_bslz4_cases(&decoder);
    must(cudaDeviceSynchronize(), "at the end");
    must(cudaStreamDestroy(gpu.stream), "stream");
    must(cudaFree(gpu.frame_dev), "free");
    void *shared[] = {gpu.chunk, gpu.blocks, gpu.jobs, gpu.status, gpu.frame};
    for (size_t i = 0; i < sizeof(shared) / sizeof(shared[0]); i++)
        must(cudaFreeHost(shared[i]), "free");
    return test_end();
}
