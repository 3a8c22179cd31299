/* SPDX-License-Identifier: Apache-2.0
 *
 * work_test [device]: what lanes do besides copying, each kind of work.h, in the order of a load and of sums
 * afterwards: frames are counted, encoded, put in place, decoded together with other forms, compared and
 * summed. On the host with 0, 1 and 4 threads, or on the device named (cuda:0). */
#include "bed.h"

#include "counts_model.h"

enum {
    DET_Y = 67,
    DET_X = 59,
    ELEMS = DET_Y * DET_X, /* two tiles, of which the second is not full */
    BYTES = 2 * ELEMS,
    STRIDE = (BYTES + 15) / 16 * 16,
    N = 150,
    SEGMENTS = 2,
    PER_SEGMENT = N / SEGMENTS,
    STREAMS = 2,
    MASKS = 3,
    RINGS = 40,
    BLOCKS = (ELEMS + WORK_PIXELS_BLOCK - 1) / WORK_PIXELS_BLOCK,
};

static const struct frame_shape shape = {.n_elems = ELEMS, .elem_bytes = 2, .fill = 3};

/* On the device: everything that a work is told of. */
struct arena {
    uint16_t frames[N][STRIDE / 2], decoded[N][STRIDE / 2];
    uint64_t frames_at[N], decoded_at[N];
    uint8_t flags[ELEMS];
    uint64_t sums[ELEMS];
    struct frame_stats stats[N];
    _Alignas(16) uint8_t segments[SEGMENTS][256 << 10];
    _Alignas(16) struct counts_encoder encoder[SEGMENTS];
    _Alignas(16) uint8_t rooms[N][STRIDE];
    struct counts_stream streams[N][STREAMS];
    struct place_job place[N];
    _Alignas(16) uint8_t stored[N][STRIDE];
    int32_t weights[MASKS][ELEMS];
    _Alignas(16) uint8_t weighed[SEGMENTS][256 << 10];
    struct weigh_job weigh[SEGMENTS];
    struct sum_job sum[N];
    int64_t out[MASKS][N];
    int32_t status[N];
    uint64_t differ[N];
    _Alignas(16) uint16_t map[ELEMS];
    uint32_t ring_sums[RINGS][N];
};

struct yard {
    struct device *device;
    struct lane *lane;
    struct device_memory memory;
    struct arena *a; /* the host's copy */
    struct counts_model models[SEGMENTS];
    uint32_t stored_bytes[N];
};

/* Where a part of the arena lies on the device. */
static uint64_t dev(const struct yard *yard, const void *part)
{
    return yard->memory.dev + (uint64_t)((const uint8_t *)part - (const uint8_t *)yard->a);
}

static void up(struct yard *yard, const void *part, size_t bytes)
{
    CHECK_INT(lane_upload(yard->lane, dev(yard, part), part, bytes), 0);
}

static void down(struct yard *yard, void *part, size_t bytes)
{
    CHECK_INT(lane_download(yard->lane, part, dev(yard, part), bytes), 0);
}

#define UP(part) up(yard, yard->a->part, sizeof(yard->a->part))
#define DOWN(part) down(yard, yard->a->part, sizeof(yard->a->part))

/* Frame i, pixel e: few counts mostly, a bright spot, and a pixel that is stuck. */
static uint16_t count_of(uint32_t i, uint32_t e)
{
    uint32_t mix = (i * 2654435761u) ^ (e * 40503u);
    mix = (mix ^ mix >> 13) * 0x5bd1e995u;
    mix ^= mix >> 15;
    if (e == 1234)
        return 65535;
    return (uint16_t)(e / DET_X == 30 ? mix % 900 : mix % (1 + e % 5));
}

static bool is_flagged(uint32_t e)
{
    return e == 1234 || e % 501 == 7;
}

static void yard_open(struct yard *yard, struct device *device)
{
    struct stow_error err;
    *yard = (struct yard){.device = device, .a = aligned_alloc(16, sizeof(struct arena))};
    memset(yard->a, 0, sizeof(struct arena));
    CHECK_INT(alloc_wait(device, &yard->memory, MEMORY_RESIDENT, sizeof(struct arena), &err), 0);
    CHECK_INT(lane_open(&yard->lane, device, LANE_BULK, &err), 0);
    for (uint32_t i = 0; i < N; i++) {
        for (uint32_t e = 0; e < ELEMS; e++)
            yard->a->frames[i][e] = count_of(i, e);
        yard->a->frames_at[i] = dev(yard, yard->a->frames[i]);
        yard->a->decoded_at[i] = dev(yard, yard->a->decoded[i]);
    }
    for (uint32_t e = 0; e < ELEMS; e++) {
        yard->a->flags[e] = is_flagged(e) ? 4 : 0;
        for (uint32_t m = 0; m < MASKS; m++)
            yard->a->weights[m][e] = (int32_t)(e * (m + 1) % 23) - 9;
    }
    UP(frames), UP(frames_at), UP(decoded_at), UP(flags), UP(weights), UP(sums);
}

static void yard_close(struct yard *yard)
{
    for (uint32_t s = 0; s < SEGMENTS; s++)
        counts_model_fini(&yard->models[s]);
    lane_close(yard->lane);
    device_poll(yard->device);
    free_wait(yard->device, &yard->memory);
    free(yard->a);
}

static void run(struct yard *yard, const struct work *work)
{
    CHECK_INT(lane_run(yard->lane, work), 0);
}

/* ---- statistics ---------------------------------------------------------------------------------- */

static void check_stats(const struct yard *yard)
{
    size_t wrong = 0, wrong_sums = 0;
    for (uint32_t i = 0; i < N; i++) {
        struct frame_stats want = {0};
        for (uint32_t e = 0; e < ELEMS; e++) {
            uint32_t v = count_of(i, e);
            want.all_total += v;
            want.all_moment_y += (uint64_t)v * (e / DET_X);
            want.all_moment_x += (uint64_t)v * (e % DET_X);
            want.all_max = v > want.all_max ? v : want.all_max;
            v = is_flagged(e) ? 0 : v;
            want.total += v;
            want.moment_y += (uint64_t)v * (e / DET_X);
            want.moment_x += (uint64_t)v * (e % DET_X);
            want.max = v > want.max ? v : want.max;
        }
        wrong += memcmp(&want, &yard->a->stats[i], sizeof(want)) != 0;
    }
    for (uint32_t e = 0; e < ELEMS; e++) {
        uint64_t want = 0;
        for (uint32_t i = 0; i < N; i++)
            want += count_of(i, e);
        wrong_sums += yard->a->sums[e] != want;
    }
    CHECK_MSG(!wrong && !wrong_sums, "%zu statistics, %zu sums are wrong", wrong, wrong_sums);
}

static void test_stats(struct yard *yard)
{
    run(yard, &(struct work){.kind = WORK_STATS,
                             .n = N,
                             .shape = shape,
                             .stats = {.frames = dev(yard, yard->a->frames_at),
                                       .flags = dev(yard, yard->a->flags),
                                       .stats = dev(yard, yard->a->stats),
                                       .det_x = DET_X}});
    run(yard, &(struct work){.kind = WORK_PIXELS,
                             .n = BLOCKS,
                             .shape = shape,
                             .pixels = {.frames = dev(yard, yard->a->frames_at),
                                        .n_frames = N,
                                        .sums = dev(yard, yard->a->sums)}});
    DOWN(stats);
    DOWN(sums);
    CHECK_INT(fence_wait(yard->device, yard->lane), 0);
    check_stats(yard);
}

/* ---- into the form counts ------------------------------------------------------------------------ */

static void train(struct yard *yard, uint32_t s)
{
    uint16_t *sample = malloc(PER_SEGMENT * BYTES);
    uint64_t *pixel_sums = calloc(ELEMS, sizeof(pixel_sums[0]));
    for (uint32_t k = 0; k < PER_SEGMENT; k++) {
        for (uint32_t e = 0; e < ELEMS; e++) {
            sample[k * ELEMS + e] = count_of(s * PER_SEGMENT + k, e);
            pixel_sums[e] += sample[k * ELEMS + e];
        }
    }
    CHECK_INT(counts_model_train(&yard->models[s], sample, PER_SEGMENT, pixel_sums, PER_SEGMENT,
                                 &shape, STREAMS),
              0);
    CHECK(counts_model_segment_bytes(&yard->models[s]) <= sizeof(yard->a->segments[s]));
    CHECK_INT(yard->models[s].n_streams, STREAMS);
    counts_model_segment(&yard->models[s], yard->a->segments[s]);
    counts_model_encoder(&yard->models[s], &yard->a->encoder[s]);
    free(pixel_sums);
    free(sample);
}

static void encode(struct yard *yard, uint32_t s)
{
    const uint32_t first = s * PER_SEGMENT;
    run(yard, &(struct work){.kind = WORK_ENCODE,
                             .n = PER_SEGMENT,
                             .shape = shape,
                             .encode = {.frames = dev(yard, &yard->a->frames_at[first]),
                                        .segment = dev(yard, yard->a->segments[s]),
                                        .encoder = dev(yard, &yard->a->encoder[s]),
                                        .rooms = dev(yard, yard->a->rooms[first]),
                                        .room_stride = STRIDE,
                                        .streams = dev(yard, yard->a->streams[first]),
                                        .n_streams = STREAMS}});
}

/* Every fifth frame is copied as it is, and stays raw. */
static bool stays_raw(uint32_t i)
{
    return i % 5 == 1;
}

static void place(struct yard *yard)
{
    for (uint32_t i = 0; i < N; i++) {
        uint64_t bytes = counts_frame_bytes(yard->a->streams[i], STREAMS, 2);
        CHECK_MSG(bytes > 0 && bytes <= STRIDE, "frame %u: %llu bytes", i,
                  (unsigned long long)bytes);
        yard->stored_bytes[i] = stays_raw(i) ? BYTES : (uint32_t)bytes;
        yard->a->place[i] =
            (struct place_job){.src = dev(yard, stays_raw(i) ? (void *)yard->a->frames[i]
                                                             : yard->a->rooms[i]),
                               .dst = dev(yard, yard->a->stored[i]),
                               .encoded = stays_raw(i) ? 0 : dev(yard, yard->a->streams[i]),
                               .bytes = yard->stored_bytes[i],
                               .streams = stays_raw(i) ? 0 : STREAMS};
    }
    UP(place);
    run(yard, &(struct work){.kind = WORK_PLACE,
                             .n = N,
                             .shape = shape,
                             .place = {.jobs = dev(yard, yard->a->place)}});
}

static void test_encode(struct yard *yard)
{
    for (uint32_t s = 0; s < SEGMENTS; s++)
        train(yard, s);
    UP(segments), UP(encoder);
    for (uint32_t s = 0; s < SEGMENTS; s++)
        encode(yard, s);
    DOWN(streams);
    CHECK_INT(fence_wait(yard->device, yard->lane), 0);
    place(yard);
}

/* ---- and out of it ------------------------------------------------------------------------------- */

/* Scattered: position k asks for frame k * 7 mod N, so that segments and forms alternate. */
static uint32_t frame_at(uint32_t k)
{
    return k * 7 % N;
}

enum batch { ALL_COUNTS, MIXED, NO_COUNTS };

static struct decode_job job_for(const struct yard *yard, uint32_t k, enum batch batch)
{
    const uint32_t i = frame_at(k);
    struct decode_job job = {.src = dev(yard, yard->a->stored[i]),
                             .dst = dev(yard, yard->a->decoded[k]),
                             .src_bytes = yard->stored_bytes[i],
                             .form = STOW_FORM_RAW};
    if (stays_raw(i) ? batch == ALL_COUNTS : batch == NO_COUNTS)
        job = (struct decode_job){.dst = job.dst, .form = STOW_FORM_FILL};
    else if (!stays_raw(i)) {
        job.form = STOW_FORM_COUNTS;
        job.blocks = dev(yard, yard->a->segments[i / PER_SEGMENT]);
    }
    return job;
}

/* All jobs but the fillers, in a row; damaged ones where `bad` says. Returns how many. */
static uint32_t make_jobs(const struct yard *yard, struct decode_job *jobs, uint32_t *position,
                          enum batch batch)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < N; k++) {
        jobs[n] = job_for(yard, k, batch);
        if (batch == ALL_COUNTS && jobs[n].form == STOW_FORM_FILL)
            continue;
        position[n++] = k;
    }
    return n;
}

static void check_decoded(struct yard *yard, const struct decode_job *jobs,
                          const uint32_t *position, uint32_t n, const int32_t *status)
{
    size_t wrong = 0, wrong_status = 0;
    for (uint32_t j = 0; j < n; j++) {
        const uint32_t k = position[j];
        wrong_status +=
            status[j] != (k % 11 == 5 && jobs[j].form != STOW_FORM_FILL ? STOW_CORRUPT : 0);
        for (uint32_t e = 0; e < ELEMS && !status[j]; e++)
            wrong += yard->a->decoded[k][e] !=
                     (jobs[j].form == STOW_FORM_FILL ? shape.fill : count_of(frame_at(k), e));
    }
    CHECK_MSG(!wrong && !wrong_status, "%zu pixels and %zu statuses are wrong", wrong,
              wrong_status);
}

static void test_decode(struct yard *yard, enum batch batch)
{
    struct decode_job jobs[N];
    uint32_t position[N];
    int32_t status[N];
    uint32_t n = make_jobs(yard, jobs, position, batch);
    for (uint32_t j = 0; j < n; j++) {
        status[j] = 99;
        if (position[j] % 11 == 5)
            jobs[j].src_bytes = jobs[j].form == STOW_FORM_COUNTS ? 16 : BYTES - 1;
    }
    memset(yard->a->decoded, 0x77, sizeof(yard->a->decoded));
    UP(decoded);
    CHECK_INT(lane_decode(yard->lane, status, jobs, n, &shape), 0);
    DOWN(decoded);
    CHECK_INT(fence_wait(yard->device, yard->lane), 0);
    check_decoded(yard, jobs, position, n, status);
}

/* Decoded frames against those of the next number, which are others. */
static void test_compare(struct yard *yard, uint32_t shift)
{
    struct decode_job jobs[N];
    int32_t status[N];
    for (uint32_t k = 0; k < N; k++) {
        jobs[k] = job_for(yard, k, MIXED);
        yard->a->frames_at[k] = dev(yard, yard->a->frames[(frame_at(k) + shift) % N]);
    }
    UP(frames_at);
    CHECK_INT(lane_decode(yard->lane, status, jobs, N, &shape), 0);
    run(yard, &(struct work){.kind = WORK_COMPARE,
                             .n = N,
                             .shape = shape,
                             .compare = {.left = dev(yard, yard->a->decoded_at),
                                         .right = dev(yard, yard->a->frames_at),
                                         .differ = dev(yard, yard->a->differ)}});
    DOWN(differ);
    CHECK_INT(fence_wait(yard->device, yard->lane), 0);
    size_t wrong = 0;
    for (uint32_t k = 0; k < N; k++) {
        uint64_t want = 0;
        for (uint32_t e = 0; e < ELEMS; e++)
            want += count_of(frame_at(k), e) != count_of((frame_at(k) + shift) % N, e);
        wrong += yard->a->differ[k] != want;
    }
    CHECK_MSG(!wrong, "shift %u: %zu wrong", shift, wrong);
}

/* Pixels by their row, of which some are in no ring. */
static void test_rings(struct yard *yard)
{
    size_t wrong = 0;
    for (uint32_t e = 0; e < ELEMS; e++)
        yard->a->map[e] = is_flagged(e) || e / DET_X > RINGS ? RINGS : (uint16_t)(e / DET_X);
    for (uint32_t i = 0; i < N; i++)
        yard->a->frames_at[i] = dev(yard, yard->a->frames[i]);
    UP(frames_at), UP(map);
    run(yard, &(struct work){.kind = WORK_RINGS,
                             .n = N,
                             .shape = shape,
                             .rings = {.frames = dev(yard, yard->a->frames_at),
                                       .map = dev(yard, yard->a->map),
                                       .out = dev(yard, yard->a->ring_sums),
                                       .out_stride = N,
                                       .n_rings = RINGS}});
    DOWN(ring_sums);
    CHECK_INT(fence_wait(yard->device, yard->lane), 0);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t want = 0;
        for (uint32_t e = 0; e < RINGS * DET_X; e++) {
            want += is_flagged(e) ? 0 : count_of(i, e);
            if (e % DET_X == DET_X - 1)
                wrong += yard->a->ring_sums[e / DET_X][i] != want;
        }
    }
    CHECK_MSG(!wrong, "%zu wrong", wrong);
}

/* ---- sums ---------------------------------------------------------------------------------------- */

static void make_sum_jobs(struct yard *yard)
{
    for (uint32_t s = 0; s < SEGMENTS; s++) {
        CHECK(sums_weighed_bytes(yard->models[s].n_granules, MASKS, WEIGHT_I32) <=
              sizeof(yard->a->weighed[s]));
        yard->a->weigh[s] = (struct weigh_job){.segment = dev(yard, yard->a->segments[s]),
                                               .weighed = dev(yard, yard->a->weighed[s])};
    }
    for (uint32_t i = 0; i < N; i++) {
        const uint32_t s = i / PER_SEGMENT;
        yard->a->sum[i] = (struct sum_job){.src = dev(yard, yard->a->stored[i]),
                                           .segment = dev(yard, yard->a->segments[s]),
                                           .weighed = dev(yard, yard->a->weighed[s]),
                                           .src_bytes = yard->stored_bytes[i],
                                           .form = stays_raw(i) ? STOW_FORM_RAW : STOW_FORM_COUNTS};
    }
    yard->a->sum[17].form = STOW_FORM_FILL;
    yard->a->sum[40].src_bytes = 16; /* of form counts, and nothing of it there */
}

static void check_sums(const struct yard *yard)
{
    size_t wrong = 0, wrong_status = 0;
    for (uint32_t i = 0; i < N; i++) {
        wrong_status += yard->a->status[i] != (i == 40 ? STOW_CORRUPT : 0);
        for (uint32_t m = 0; m < MASKS && i != 40; m++) {
            int64_t want = 0;
            for (uint32_t e = 0; e < ELEMS; e++)
                want += (int64_t)yard->a->weights[m][e] * (i == 17 ? 3 : count_of(i, e));
            wrong += yard->a->out[m][i] != want;
        }
    }
    CHECK_MSG(!wrong && !wrong_status, "%zu sums and %zu statuses are wrong", wrong, wrong_status);
}

static void test_sums(struct yard *yard)
{
    make_sum_jobs(yard);
    memset(yard->a->status, 0x55, sizeof(yard->a->status));
    UP(weigh), UP(sum), UP(status);
    run(yard, &(struct work){.kind = WORK_WEIGH,
                             .n = SEGMENTS,
                             .shape = shape,
                             .weigh = {.jobs = dev(yard, yard->a->weigh),
                                       .weights = dev(yard, yard->a->weights),
                                       .n_masks = MASKS,
                                       .weights_kind = WEIGHT_I32,
                                       .n_granules = yard->models[0].n_granules}});
    run(yard, &(struct work){.kind = WORK_SUM,
                             .n = N,
                             .shape = shape,
                             .sum = {.jobs = dev(yard, yard->a->sum),
                                     .weights = dev(yard, yard->a->weights),
                                     .out = dev(yard, yard->a->out),
                                     .out_stride = N,
                                     .status = dev(yard, yard->a->status),
                                     .n_masks = MASKS,
                                     .weights_kind = WEIGHT_I32}});
    DOWN(out);
    DOWN(status);
    CHECK_INT(fence_wait(yard->device, yard->lane), 0);
    check_sums(yard);
}

static void cases(struct device *device, unsigned threads)
{
    struct yard yard;
    (void)threads;
    yard_open(&yard, device);
    test_stats(&yard);
    test_encode(&yard);
    test_decode(&yard, ALL_COUNTS);
    test_decode(&yard, MIXED);
    test_decode(&yard, NO_COUNTS);
    test_compare(&yard, 0);
    test_compare(&yard, 1);
    test_sums(&yard);
    test_rings(&yard);
    yard_close(&yard);
}

int main(int argc, char **argv)
{
    return bed_main(argc, argv, cases);
}
