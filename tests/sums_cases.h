/* SPDX-License-Identifier: Apache-2.0
 *
 * sums_cases: the work of sums.h on frames of many kinds, against sums so plain that they can be checked by eye, in
 * 128 bits or long double. A bed says where memory comes from and what does the work: the CPU, or a GPU that sees
 * the same addresses. */
#ifndef STOW_SUMS_CASES_H
#define STOW_SUMS_CASES_H

#include "counts_cases.h"
#include "work.h"

#include <float.h>

struct sums_bed {
    void (*run)(struct sums_bed *bed, const struct work *work);
    void *(*alloc)(struct sums_bed *bed, size_t bytes); /* 64-byte aligned, poisoned */
    void (*reset)(struct sums_bed *bed);                /* all of it is free again */
    void *data;
};

#define ADDRESS(pointer) ((uint64_t)(uintptr_t)(pointer))

static const char *const kind_names[] = {"u8", "i32", "f64"};

/* ---- frames of a case ----------------------------------------------------------------------------- */

#define CASE_JOBS 9u
#define CASE_SEGMENTS 2u

/* Form and segment of each job: runs of odd length, and plain frames between those of a segment. */
static const struct {
    uint32_t form, segment;
} case_jobs[CASE_JOBS] = {{STOW_FORM_COUNTS, 0}, {STOW_FORM_COUNTS, 0}, {STOW_FORM_RAW, 0},
                          {STOW_FORM_COUNTS, 0}, {STOW_FORM_FILL, 0},   {STOW_FORM_COUNTS, 1},
                          {STOW_FORM_RAW, 1},    {STOW_FORM_RAW, 1},    {STOW_FORM_COUNTS, 1}};

struct sums_case {
    const char *name;
    struct frame_shape shape;
    struct counts_model models[CASE_SEGMENTS];
    struct counts_segment *segments[CASE_SEGMENTS];
    uint8_t *pixels[CASE_JOBS]; /* what job i is of */
    struct sum_job *jobs;
    uint64_t most; /* total of the frame that has most */
    bool trained;
};

static inline uint64_t frame_total(const void *pixels, const struct frame_shape *shape)
{
    uint64_t total = 0;
    for (uint64_t i = 0; i < shape->n_elems; i++)
        total += case_pixel(pixels, i, shape->elem_bytes);
    return total;
}

/* A model of frames of this pattern; or one that no training would make. */
static inline void case_model(struct counts_model *model, enum pattern pattern, bool trained,
                              uint32_t n_streams, const struct frame_shape *shape)
{
    if (!trained) {
        random_model(model, shape, n_streams);
        return;
    }
    enum { SAMPLE = 6 };
    uint8_t *sample = case_alloc(SAMPLE * frame_bytes(shape));
    uint64_t *sums = case_alloc(shape->n_elems * sizeof(*sums));
    memset(sums, 0, shape->n_elems * sizeof(*sums));
    for (uint32_t f = 0; f < SAMPLE; f++) {
        case_frame(sample + f * frame_bytes(shape), pattern, f, shape);
        for (uint64_t i = 0; i < shape->n_elems; i++)
            sums[i] += case_pixel(sample + f * frame_bytes(shape), i, shape->elem_bytes);
    }
    CHECK_INT(counts_model_train(model, sample, SAMPLE, sums, SAMPLE, shape, n_streams), 0);
    free(sample);
    free(sums);
}

static inline void make_sums_case(struct sums_bed *bed, struct sums_case *of, const char *name,
                                  enum pattern pattern, bool trained, uint32_t n_streams,
                                  const struct frame_shape *shape)
{
    struct plain_table *tables = case_alloc(COUNTS_CLASSES * sizeof(*tables));
    *of = (struct sums_case){.name = name, .shape = *shape, .trained = trained};
    of->jobs = bed->alloc(bed, CASE_JOBS * sizeof(*of->jobs));
    for (uint32_t i = 0, was = CASE_SEGMENTS; i < CASE_JOBS; i++) {
        uint32_t s = case_jobs[i].segment;
        if (s != was) {
            case_model(&of->models[s], pattern, trained, n_streams, shape);
            of->segments[s] = bed->alloc(bed, counts_model_segment_bytes(&of->models[s]));
            counts_model_segment(&of->models[s], of->segments[s]);
            for (uint32_t k = 0; k < COUNTS_CLASSES; k++)
                memset(&tables[k], 0, sizeof(*tables));
        }
        was = s;
        struct sum_job *job = &of->jobs[i];
        *job = (struct sum_job){.form = case_jobs[i].form};
        of->pixels[i] = bed->alloc(bed, frame_bytes(shape));
        case_frame(of->pixels[i], pattern, i, shape);
        if (job->form == STOW_FORM_RAW)
            job->src = ADDRESS(of->pixels[i]);
        for (uint64_t p = 0; job->form == STOW_FORM_FILL && p < shape->n_elems; p++)
            memcpy(of->pixels[i] + p * shape->elem_bytes, &shape->fill, shape->elem_bytes);
        if (job->form == STOW_FORM_COUNTS) {
            struct plain_frame frame;
            plain_encode(&frame, tables, &of->models[s], of->pixels[i], shape);
            void *src = bed->alloc(bed, frame.n_bytes);
            memcpy(src, frame.words, frame.n_bytes);
            free(frame.words);
            job->src = ADDRESS(src);
            job->src_bytes = (uint32_t)frame.n_bytes;
            job->segment = ADDRESS(of->segments[s]);
        }
        uint64_t total = frame_total(of->pixels[i], shape);
        of->most = total > of->most ? total : of->most;
    }
    free(tables);
}

static inline void free_sums_case(struct sums_bed *bed, struct sums_case *of)
{
    for (uint32_t s = 0; s < CASE_SEGMENTS; s++)
        counts_model_fini(&of->models[s]);
    bed->reset(bed);
}

/* ---- weights -------------------------------------------------------------------------------------- */

/* No sum of these over a frame of total `most` leaves 63 bits. */
static inline void make_weights(void *weights, uint64_t n, enum weight_kind kind, uint64_t most)
{
    int64_t bound = most ? (int64_t)(INT64_MAX / most) : INT32_MAX;
    bound = bound < INT32_MAX ? bound : INT32_MAX;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t random = case_random();
        int64_t extreme = random & 16                       ? bound
                          : bound == INT32_MAX && most == 0 ? INT32_MIN
                                                            : -bound;
        if (kind == WEIGHT_U8)
            ((uint8_t *)weights)[i] = (uint8_t)(random % 4 == 0   ? 255
                                                : random % 4 == 1 ? 0
                                                                  : random >> 8);
        else if (kind == WEIGHT_I32)
            ((int32_t *)weights)[i] =
                (int32_t)(random % 4 == 0
                              ? extreme
                              : (int64_t)((random >> 8) % (2 * (uint64_t)bound + 1)) - bound);
        else
            ((double *)weights)[i] = (case_uniform() - .5) * (random % 4 == 0 ? 1e6 : 1);
    }
}

/* Weight i, as what it is exactly. */
static inline __int128 whole_weight(const void *weights, uint64_t i, enum weight_kind kind)
{
    return kind == WEIGHT_U8 ? ((const uint8_t *)weights)[i] : ((const int32_t *)weights)[i];
}

/* Check one sum of one frame. What models that nobody trained say of a pixel may be far from it, and patches take it
 * back: float64 sums, which go through both, are as exact as the largest pixel allows. */
static inline void check_sum(const void *got, const void *weights, const void *pixels,
                             enum weight_kind kind, const struct frame_shape *shape, bool trained,
                             const char *name, uint32_t job, uint32_t mask)
{
    __int128 whole = 0;
    long double real = 0, size = 0;
    for (uint64_t i = 0; i < shape->n_elems; i++) {
        uint32_t pixel = case_pixel(pixels, i, shape->elem_bytes);
        if (kind == WEIGHT_F64) {
            long double part = (long double)((const double *)weights)[i] * pixel;
            real += part;
            size += trained ? fabsl(part)
                            : fabsl((long double)((const double *)weights)[i]) *
                                  case_largest(shape->elem_bytes);
        } else {
            whole += whole_weight(weights, i, kind) * pixel;
        }
    }
    if (kind == WEIGHT_F64) {
        double sum = *(const double *)got;
        CHECK_MSG(fabsl(sum - real) <= size * 1e-12L, "%s, job %u mask %u: %.17g, not %.17Lg", name,
                  job, mask, sum, real);
    } else {
        int64_t sum = *(const int64_t *)got;
        CHECK_MSG(sum == whole, "%s, %s, job %u mask %u: %lld, not %lld", name, kind_names[kind],
                  job, mask, (long long)sum, (long long)whole);
    }
}

/* ---- weighing ------------------------------------------------------------------------------------- */

/* What sums_weigh has to write for one mask, unit by unit. */
static inline void check_weighed(const uint8_t *weighed, const struct counts_model *model,
                                 const uint8_t *weights, uint32_t mask, enum weight_kind kind,
                                 const struct frame_shape *shape, const char *name)
{
    uint32_t bytes = weight_bytes(kind), wrong = 0;
    uint8_t *expected = case_alloc(shape->n_elems * bytes);
    static const uint8_t nothing[8];
    long double real = 0, size = 0;
    __int128 whole = 0;
    memcpy(expected, weights, shape->n_elems * bytes);
    for (uint32_t c = 0; c < model->n_constants; c++) {
        uint32_t pixel = model->constants[c].pixel, value = model->constants[c].value;
        if (kind == WEIGHT_F64) {
            long double part = (long double)((const double *)weights)[pixel] * value;
            real += part;
            size += fabsl(part);
        } else {
            whole += whole_weight(weights, pixel, kind) * value;
        }
        memset(expected + (size_t)pixel * bytes, 0, bytes);
    }
    const uint8_t *at = weighed + SUMS_WEIGHED_HEAD +
                        (uint64_t)mask * model->n_granules * COUNTS_GRANULE_PIXELS * bytes;
    for (uint32_t g = 0; g < model->n_granules; g++)
        for (uint32_t l = 0; l < 32; l++)
            for (uint32_t i = 0; i < 8; i++, at += bytes) {
                uint32_t unit = model->order[64 * g + 32 * (i / 4) + l];
                uint64_t pixel = (uint64_t)(g / 8) * 2048 + 4 * unit + i % 4;
                const uint8_t *want = pixel < shape->n_elems ? expected + pixel * bytes : nothing;
                wrong += memcmp(at, want, bytes) != 0;
            }
    CHECK_MSG(wrong == 0, "%s: %u weights %s of mask %u are not in their place", name, wrong,
              kind_names[kind], mask);
    if (kind == WEIGHT_F64)
        CHECK_MSG(fabsl(((const double *)weighed)[mask] - real) <= size * 1e-12L,
                  "%s: constants' part of mask %u", name, mask);
    else
        CHECK_MSG(((const int64_t *)weighed)[mask] == (int64_t)whole,
                  "%s: constants' part of mask %u", name, mask);
    free(expected);
}

/* Weights in the order of each segment, for all jobs. Returns those of segment s in weighed[s]. */
static inline void weigh_case(struct sums_bed *bed, const struct sums_case *of, uint8_t *weighed[],
                              const void *weights, uint32_t n_masks, enum weight_kind kind)
{
    struct weigh_job *jobs = bed->alloc(bed, CASE_SEGMENTS * sizeof(*jobs));
    uint32_t n_granules = counts_n_granules(of->shape.n_elems);
    size_t bytes = sums_weighed_bytes(n_granules, n_masks, kind);
    for (uint32_t s = 0; s < CASE_SEGMENTS; s++) {
        weighed[s] = bed->alloc(bed, bytes + 64);
        jobs[s] = (struct weigh_job){ADDRESS(of->segments[s]), ADDRESS(weighed[s])};
    }
    for (uint32_t i = 0; i < CASE_JOBS; i++)
        of->jobs[i].weighed = ADDRESS(weighed[case_jobs[i].segment]);
    const struct work work = {.kind = WORK_WEIGH,
                              .n = CASE_SEGMENTS,
                              .shape = of->shape,
                              .weigh = {.jobs = ADDRESS(jobs),
                                        .weights = ADDRESS(weights),
                                        .n_masks = n_masks,
                                        .weights_kind = kind,
                                        .n_granules = n_granules}};
    bed->run(bed, &work);
    for (uint32_t s = 0; s < CASE_SEGMENTS; s++)
        CHECK_MSG(weighed[s][bytes] == 0xa5, "%s: written past the weights", of->name);
}

/* ---- weighted sums -------------------------------------------------------------------------------- */

static inline void sum_case(struct sums_bed *bed, struct sums_case *of, enum weight_kind kind,
                            uint32_t n_masks)
{
    const uint64_t n = of->shape.n_elems, stride = CASE_JOBS + 2;
    uint8_t *weights = bed->alloc(bed, n * n_masks * weight_bytes(kind));
    uint64_t *out = bed->alloc(bed, stride * n_masks * sizeof(*out));
    int32_t *status = bed->alloc(bed, (CASE_JOBS + 1) * sizeof(*status));
    uint8_t *weighed[CASE_SEGMENTS];
    make_weights(weights, n * n_masks, kind, of->most);
    weigh_case(bed, of, weighed, weights, n_masks, kind);
    for (uint32_t s = 0; s < CASE_SEGMENTS; s++)
        for (uint32_t m = 0; m < n_masks; m++)
            check_weighed(weighed[s], &of->models[s], weights + m * n * weight_bytes(kind), m, kind,
                          &of->shape, of->name);
    const struct work work = {.kind = WORK_SUM,
                              .n = CASE_JOBS,
                              .shape = of->shape,
                              .sum = {.jobs = ADDRESS(of->jobs),
                                      .weights = ADDRESS(weights),
                                      .out = ADDRESS(out),
                                      .out_stride = stride,
                                      .status = ADDRESS(status),
                                      .n_masks = n_masks,
                                      .weights_kind = kind}};
    bed->run(bed, &work);
    for (uint32_t i = 0; i < CASE_JOBS; i++) {
        CHECK_MSG(status[i] == 0, "%s, job %u: status %d", of->name, i, status[i]);
        for (uint32_t m = 0; m < n_masks; m++)
            check_sum(&out[m * stride + i], weights + m * n * weight_bytes(kind), of->pixels[i],
                      kind, &of->shape, of->trained, of->name, i, m);
    }
    CHECK(status[CASE_JOBS] == (int32_t)0xa5a5a5a5);
    for (uint32_t m = 0; m < n_masks; m++)
        CHECK(out[m * stride + CASE_JOBS] == 0xa5a5a5a5a5a5a5a5);
}

/* Shapes of all cases. */
static const struct {
    uint64_t det_y, det_x;
} case_shapes[] = {{1, 1},    {1, 3},   {5, 51},   {16, 16},  {1, 257},  {1, 2047},
                   {2048, 1}, {683, 3}, {97, 101}, {7, 2341}, {192, 192}};
#define N_CASE_SHAPES (sizeof(case_shapes) / sizeof(*case_shapes))

static inline struct frame_shape case_shape(size_t i, uint32_t elem_bytes)
{
    return (struct frame_shape){.n_elems = case_shapes[i].det_y * case_shapes[i].det_x,
                                .elem_bytes = elem_bytes,
                                .fill = i % 2 ? UINT64_MAX : 3};
}

static inline void test_weighted_sums(struct sums_bed *bed)
{
    static const uint32_t mask_counts[] = {1, 2, 3, 4, 5, 8};
    uint32_t turn = 0;
    for (size_t i = 0; i < N_CASE_SHAPES; i++)
        for (uint32_t elem_bytes = 1; elem_bytes <= 4; elem_bytes *= 2)
            for (uint32_t p = 0; p < N_PATTERNS; p++) {
                struct frame_shape shape = case_shape(i, elem_bytes);
                struct sums_case of;
                bool trained = turn % 3 != 0;
                if (shape.n_elems > 3000 && (p + turn) % 4 != 0 && ++turn)
                    continue;
                make_sums_case(bed, &of, pattern_names[p], (enum pattern)p, trained,
                               turn % 4 == 3 ? 3 : 1, &shape);
                for (enum weight_kind kind = WEIGHT_U8; kind <= WEIGHT_F64; kind++)
                    sum_case(bed, &of, kind, mask_counts[(turn + kind) % 6]);
                free_sums_case(bed, &of);
                turn++;
            }
}

/* The largest sums that fit: of one pixel, and of two whose parts alone would not. */
static inline void test_extreme_sums(struct sums_bed *bed)
{
    struct frame_shape shape = {.n_elems = 3, .elem_bytes = 4};
    uint32_t *pixels = bed->alloc(bed, 12);
    int32_t *weights = bed->alloc(bed, 24);
    int64_t *out = bed->alloc(bed, 16);
    int32_t *status = bed->alloc(bed, 4);
    struct sum_job *job = bed->alloc(bed, sizeof(*job));
    memcpy(pixels, (uint32_t[]){UINT32_MAX, UINT32_MAX, UINT32_MAX}, 12);
    memcpy(weights, (int32_t[]){INT32_MIN, 0, 0, INT32_MAX, INT32_MAX, INT32_MIN + 1}, 24);
    *job = (struct sum_job){.src = ADDRESS(pixels), .form = STOW_FORM_RAW};
    const struct work work = {.kind = WORK_SUM,
                              .n = 1,
                              .shape = shape,
                              .sum = {.jobs = ADDRESS(job),
                                      .weights = ADDRESS(weights),
                                      .out = ADDRESS(out),
                                      .out_stride = 1,
                                      .status = ADDRESS(status),
                                      .n_masks = 2,
                                      .weights_kind = WEIGHT_I32}};
    bed->run(bed, &work);
    for (uint32_t m = 0; m < 2; m++)
        check_sum(&out[m], weights + 3 * m, pixels, WEIGHT_I32, &shape, true, "extremes", 0, m);
    job->form = STOW_FORM_BSLZ4;
    bed->run(bed, &work);
    CHECK_INT(status[0], STOW_CORRUPT);
    bed->reset(bed);
}

/* ---- damaged frames ------------------------------------------------------------------------------- */

/* Change something of a frame: a bit of its words or patches, its head, or its length. */
static inline void damage(uint8_t *frame, uint32_t *bytes, uint32_t how)
{
    switch (how % 6) {
    case 0: *bytes = (uint32_t)(case_random() % *bytes); break;
    case 1: frame[case_random() % 8] ^= (uint8_t)(1 + case_random() % 255); break;
    case 2: memset(frame + 8, 0, 128); break;
    case 3: memset(frame + *bytes / 2, 0xff, *bytes - *bytes / 2); break;
    case 4:
        for (uint32_t i = 8; i < *bytes; i++)
            frame[i] = (uint8_t)case_random();
        break;
    default: frame[case_random() % *bytes] ^= (uint8_t)(1u << case_random() % 8);
    }
}

/* Damaged and good frames in turn: what is damaged is known by it, just as to who decodes it, and the others are
 * right. */
static inline void test_damaged_sums(struct sums_bed *bed, uint32_t rounds)
{
    struct frame_shape shape = {.n_elems = 97 * 101, .elem_bytes = 2};
    for (uint32_t r = 0; r < rounds; r++) {
        struct sums_case of;
        enum { N = 24 };
        shape.elem_bytes = r % 3 == 0 ? 1 : r % 3 == 1 ? 2 : 4;
        make_sums_case(bed, &of, "damaged", r % 2 ? DISK : HOT, true, r % 4 == 3 ? 3 : 1, &shape);
        uint8_t *weights = bed->alloc(bed, shape.n_elems);
        int64_t *out = bed->alloc(bed, N * sizeof(*out));
        int32_t *status = bed->alloc(bed, N * sizeof(*status)), expected[N];
        struct sum_job *jobs = bed->alloc(bed, N * sizeof(*jobs));
        uint8_t *weighed[CASE_SEGMENTS], *decoded = case_alloc(frame_bytes(&shape));
        make_weights(weights, shape.n_elems, WEIGHT_U8, of.most);
        weigh_case(bed, &of, weighed, weights, 1, WEIGHT_U8);
        for (uint32_t i = 0; i < N; i++) {
            jobs[i] = of.jobs[i < N / 2 ? 1 : CASE_JOBS - 1];
            expected[i] = 0;
            if (i % 2 == 0)
                continue;
            uint8_t *src = bed->alloc(bed, jobs[i].src_bytes);
            memcpy(src, (const void *)(uintptr_t)jobs[i].src, jobs[i].src_bytes);
            damage(src, &jobs[i].src_bytes, r + i / 2);
            jobs[i].src = ADDRESS(src);
            const struct decode_job decode = {.src = jobs[i].src,
                                              .blocks = jobs[i].segment,
                                              .dst = ADDRESS(decoded),
                                              .src_bytes = jobs[i].src_bytes,
                                              .form = STOW_FORM_COUNTS};
            expected[i] = counts_decode(&decode, &shape, NULL);
        }
        const struct work work = {.kind = WORK_SUM,
                                  .n = N,
                                  .shape = shape,
                                  .sum = {.jobs = ADDRESS(jobs),
                                          .weights = ADDRESS(weights),
                                          .out = ADDRESS(out),
                                          .out_stride = N,
                                          .status = ADDRESS(status),
                                          .n_masks = 1,
                                          .weights_kind = WEIGHT_U8}};
        bed->run(bed, &work);
        for (uint32_t i = 0; i < N; i++) {
            CHECK_MSG(status[i] == expected[i], "round %u, frame %u: status %d, not %d", r, i,
                      status[i], expected[i]);
            if (i % 2 == 0)
                check_sum(&out[i], weights, of.pixels[i < N / 2 ? 1 : CASE_JOBS - 1], WEIGHT_U8,
                          &shape, true, "beside damage", i, 0);
        }
        free(decoded);
        free_sums_case(bed, &of);
    }
}

#endif
