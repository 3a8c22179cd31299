/* SPDX-License-Identifier: Apache-2.0
 *
 * counts_sizes: what the counts form makes of frames in a file, and how fast one core does it.
 *
 *     counts_sizes FILE ELEM_BYTES PIXELS_A_FRAME [STREAMS]
 *     counts_sizes --make FILE thin|thick DOSE FRAMES
 *
 * FILE is plain pixels, little-endian. Segments and samples are as the loader takes them. Every frame is decoded again
 * and compared; a frame that would be larger than its pixels counts as its pixels. One line of JSON comes out.
 *
 * --make writes the first frames of a simulated scan of 512 x 512, uint16, 192 x 192, and tells how many bits a pixel
 * has at least: when its mean is known in each frame ("known"), and when one distribution serves it in all frames
 * ("pixel"; of every 37th pixel). counts_sizes.py makes a table of all this. */
#include "counts_model.h"

#include "simulate_counts.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct source {
    const uint8_t *pixels;
    uint64_t n_frames;
    struct frame_shape shape;
    uint32_t n_streams;
};

struct result {
    uint64_t encoded, tables, packed; /* bytes */
    uint64_t raw_frames, patches, words;
    double train, encode, decode; /* seconds; decode: the fastest of three */
    uint64_t segments;
    uint32_t until4, until2, until1;
    uint64_t steps; /* symbols of 32 lanes in a frame */
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *get(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (!memory) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return memory;
}

static const uint8_t *frame_of(const struct source *source, uint64_t i)
{
    return source->pixels + i * frame_bytes(&source->shape);
}

static void add_sums(uint64_t *sums, const uint8_t *frame, const struct frame_shape *shape)
{
    for (uint64_t i = 0; i < shape->n_elems; i++)
        sums[i] += shape->elem_bytes == 1   ? frame[i]
                   : shape->elem_bytes == 2 ? ((const uint16_t *)frame)[i]
                                            : ((const uint32_t *)frame)[i];
}

static void train(struct counts_model *model, struct result *result, const struct source *source,
                  uint64_t first, uint64_t n)
{
    uint64_t bytes = frame_bytes(&source->shape), n_elems = source->shape.n_elems;
    uint64_t n_sample = counts_sample_frames(n_elems, n);
    uint64_t *sums = get(n_elems * sizeof(*sums));
    uint8_t *sample = get(n_sample * bytes);
    memset(sums, 0, n_elems * sizeof(*sums));
    for (uint64_t i = 0; i < n; i++)
        add_sums(sums, frame_of(source, first + i), &source->shape);
    for (uint64_t i = 0; i < n_sample; i++)
        memcpy(sample + i * bytes, frame_of(source, first + i * n / n_sample), bytes);
    double begin = now();
    if (counts_model_train(model, sample, n_sample, sums, n, &source->shape, source->n_streams)) {
        fprintf(stderr, "training failed\n");
        exit(1);
    }
    result->train += now() - begin;
    free(sample);
    free(sums);
}

struct stored {
    uint32_t *bytes;
    uint64_t n_bytes;
};

static void encode(struct stored *stored, struct result *result, const struct source *source,
                   uint64_t first, uint64_t n, const struct counts_segment *segment,
                   const struct counts_encoder *encoder)
{
    struct counts_stream streams[COUNTS_MAX_STREAMS];
    void *room = get(frame_bytes(&source->shape));
    double begin = now();
    for (uint64_t i = 0; i < n; i++) {
        counts_encode(streams, room, frame_of(source, first + i), segment, encoder, &source->shape);
        uint64_t bytes = counts_frame_bytes(streams, segment->n_streams, source->shape.elem_bytes);
        if (bytes == 0 || bytes >= frame_bytes(&source->shape)) {
            stored[i] = (struct stored){0};
            result->raw_frames++;
            result->encoded += frame_bytes(&source->shape);
            continue;
        }
        stored[i] = (struct stored){get(bytes), bytes};
        counts_place(stored[i].bytes, room, streams, segment->n_streams, &source->shape);
        result->encoded += bytes;
        for (uint32_t s = 0; s < segment->n_streams; s++) {
            result->patches += streams[s].n_patches;
            result->words += streams[s].n_words;
        }
    }
    result->encode += now() - begin;
    free(room);
}

static void decode(const struct stored *stored, struct result *result, const struct source *source,
                   uint64_t first, uint64_t n, const struct counts_segment *segment)
{
    uint64_t bytes = frame_bytes(&source->shape);
    uint8_t *pixels = get(bytes);
    double best = 1e30;
    for (int round = 0; round < 3; round++) {
        double took = 0;
        for (uint64_t i = 0; i < n; i++) {
            const struct decode_job job = {.src = (uintptr_t)stored[i].bytes,
                                           .src_bytes = (uint32_t)stored[i].n_bytes,
                                           .blocks = (uintptr_t)segment,
                                           .dst = (uintptr_t)pixels,
                                           .form = STOW_FORM_COUNTS};
            if (!stored[i].bytes)
                continue;
            double begin = now();
            struct stow_error err = {0};
            int status = counts_decode(&job, &source->shape, &err);
            took += now() - begin;
            if (status || memcmp(pixels, frame_of(source, first + i), bytes) != 0) {
                fprintf(stderr, "frame %" PRIu64 " differs: %s\n", first + i, err.text);
                exit(1);
            }
        }
        best = took < best ? took : best;
    }
    result->decode += best;
    free(pixels);
}

static void run_segment(struct result *result, const struct source *source, uint64_t first,
                        uint64_t n)
{
    struct counts_model model = {0};
    train(&model, result, source, first, n);
    struct counts_segment *segment = get(counts_model_segment_bytes(&model));
    struct counts_encoder *encoder = get(sizeof(*encoder));
    struct stored *stored = get(n * sizeof(*stored));
    counts_model_segment(&model, segment);
    counts_model_encoder(&model, encoder);
    encode(stored, result, source, first, n, segment, encoder);
    decode(stored, result, source, first, n, segment);
    result->tables += segment->bytes;
    result->packed += counts_model_packed_bytes(&model);
    result->segments++;
    result->until4 = model.until4;
    result->until2 = model.until2;
    result->until1 = model.until1;
    for (uint32_t g = 0; g < model.n_granules; g++)
        result->steps += model.granules[g] < model.until4   ? 2
                         : model.granules[g] < model.until2 ? 4
                                                            : 8;
    for (uint64_t i = 0; i < n; i++)
        free(stored[i].bytes);
    free(stored);
    free(encoder);
    free(segment);
    counts_model_fini(&model);
}

static void print_result(const struct result *r, const struct source *source)
{
    double pixels = (double)source->n_frames * (double)source->shape.n_elems;
    printf("{\"frames\": %" PRIu64 ", \"bits\": %.4f, \"table_bits\": %.4f, \"packed_bits\": %.4f, "
           "\"raw_frames\": %" PRIu64 ", \"patches_a_pixel\": %.6f, \"pixels_a_symbol\": %.2f, "
           "\"classes\": [%u, %u, %u], \"train_ms\": %.2f, \"encode_mpx\": %.0f, "
           "\"decode_mpx\": %.0f}\n",
           source->n_frames, 8 * (double)r->encoded / pixels, 8 * (double)r->tables / pixels,
           8 * (double)r->packed / pixels, r->raw_frames, (double)r->patches / pixels,
           (double)(r->segments * source->shape.n_elems) / ((double)r->steps * COUNTS_LANES),
           r->until4, r->until2, r->until1, 1e3 * r->train / (double)r->segments,
           1e-6 * pixels / r->encode, 1e-6 * pixels / r->decode);
}

/* ---- simulated frames ----------------------------------------------------------------------------- */

#define SIDE 192u
#define PIXELS (SIDE * SIDE)
#define EVERY 37u /* pixel whose distribution is looked at */
#define MOST 32768u

/* Add share * the Poisson distribution of this mean. */
static void add_poisson(double *p, double mean, double share)
{
    double reach = 9 * sqrt(mean) + 12;
    int low = mean > reach ? (int)(mean - reach) : 0, high = (int)(mean + reach);
    for (int k = low; k <= high && k < (int)MOST; k++)
        p[k] += share * exp(k * log(mean) - mean - lgamma(k + 1.0));
}

static double entropy(const double *p)
{
    double bits = 0;
    for (uint32_t k = 0; k < MOST; k++)
        if (p[k] > 1e-18)
            bits -= p[k] * log2(p[k]);
    return bits;
}

/* Of the first n frames, every 16th. */
static void print_bounds(const struct counts *counts, uint64_t n)
{
    uint64_t n_frames = (n + 15) / 16, n_pixels = (PIXELS + EVERY - 1) / EVERY;
    double *means = get(n_frames * PIXELS * sizeof(*means)), *p = get(MOST * sizeof(*p));
    double *mixed = get(MOST * sizeof(*p)), known = 0, pixel = 0;
    for (uint64_t f = 0; f < n_frames; f++)
        counts_means(counts, 16 * f, means + f * PIXELS);
    for (uint64_t i = 0; i < PIXELS; i += EVERY) {
        memset(mixed, 0, MOST * sizeof(*p));
        for (uint64_t f = 0; f < n_frames; f++) {
            memset(p, 0, MOST * sizeof(*p));
            add_poisson(p, means[f * PIXELS + i], 1);
            add_poisson(mixed, means[f * PIXELS + i], 1 / (double)n_frames);
            known += entropy(p) / (double)n_frames;
        }
        pixel += entropy(mixed);
    }
    printf("{\"known\": %.4f, \"pixel\": %.4f}\n", known / (double)n_pixels,
           pixel / (double)n_pixels);
    free(mixed);
    free(p);
    free(means);
}

static int make(char **args)
{
    struct counts_options options = {.scan_y = 512,
                                     .scan_x = 512,
                                     .det_y = SIDE,
                                     .det_x = SIDE,
                                     .elem_bytes = 2,
                                     .thick = strcmp(args[1], "thick") == 0,
                                     .dose = strtod(args[2], NULL),
                                     .seed = 1};
    uint64_t n = strtoull(args[3], NULL, 10);
    struct counts *counts = counts_new(&options);
    FILE *file = fopen(args[0], "wb");
    uint16_t *frame = get(PIXELS * sizeof(*frame));
    uint32_t *scratch = get(PIXELS * sizeof(*scratch));
    bool good = counts && file;
    for (uint64_t i = 0; good && i < n; i++) {
        counts_frame(counts, i, frame, scratch);
        good = fwrite(frame, sizeof(*frame), PIXELS, file) == PIXELS;
    }
    if (!good || fclose(file)) {
        fprintf(stderr, "%s cannot be made\n", args[0]);
        return 1;
    }
    print_bounds(counts, n);
    counts_free(counts);
    free(scratch);
    free(frame);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 6 && strcmp(argv[1], "--make") == 0)
        return make(argv + 2);
    struct stat st;
    int fd = argc > 3 ? open(argv[1], O_RDONLY) : -1;
    if (fd < 0 || fstat(fd, &st) < 0) {
        fprintf(stderr, "usage: counts_sizes FILE ELEM_BYTES PIXELS_A_FRAME [STREAMS]\n"
                        "       counts_sizes --make FILE thin|thick DOSE FRAMES\n");
        return 2;
    }
    struct source source = {.shape = {.elem_bytes = (uint32_t)atoi(argv[2]),
                                      .n_elems = strtoull(argv[3], NULL, 10)},
                            .n_streams = argc > 4 ? (uint32_t)atoi(argv[4]) : 1};
    source.n_frames = (uint64_t)st.st_size / frame_bytes(&source.shape);
    source.pixels = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
    if (source.pixels == MAP_FAILED)
        return 1;
    struct result result = {0};
    uint64_t of_segment = counts_segment_frames(source.shape.n_elems);
    for (uint64_t first = 0; first < source.n_frames; first += of_segment) {
        uint64_t rest = source.n_frames - first;
        run_segment(&result, &source, first, rest < of_segment ? rest : of_segment);
    }
    print_result(&result, &source);
    return 0;
}
