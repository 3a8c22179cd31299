/* SPDX-License-Identifier: Apache-2.0
 *
 * sums_bench: how long sums over a resident take, from the call until the result has been read in this process.
 *
 *   sums_bench SOCKET NAME [REPEATS]
 *
 * Each line: what, median, least and most of the repeats in ms, G counts/s of the median. Making a table of ring sums is
 * timed once, about a centre that has none before the first run. */
#include "framestow.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_REPEATS 1000

struct bench {
    struct stow_client *client;
    const char *name;
    struct stow_info *info;
    void *masks;
    int repeats;
};

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double p = *(const double *)a, q = *(const double *)b;
    return p < q ? -1 : p > q;
}

static void fail(const struct bench *bench)
{
    fprintf(stderr, "sums_bench: %s\n", stow_last_error(bench->client)->text);
    exit(EXIT_FAILURE);
}

/* Results are mapped, not copied: what has not been read may not be there yet. */
static double end_of_reading(const void *values, uint64_t bytes)
{
    const uint64_t *words = values;
    uint64_t all = 0;
    for (uint64_t i = 0; i < bytes / 8; i++)
        all ^= words[i];
    return now_ms() + (all == 1 ? 1e-9 : 0); /* so that the reading is done */
}

/* Each returns when the result had been read; what is freed comes after. */
static double sum(const struct bench *bench, const struct stow_sum_options *options)
{
    struct stow_sums *sums;
    if (stow_sum(bench->client, bench->name, options, &sums))
        fail(bench);
    double end = end_of_reading(sums->values, sums->n_sums * sums->n_frames * 8);
    stow_sums_free(sums);
    return end;
}

static double mean(const struct bench *bench, const struct stow_sum_options *options)
{
    struct stow_mean *got;
    (void)options;
    if (stow_mean(bench->client, bench->name, NULL, 0, &got))
        fail(bench);
    double end = end_of_reading(got->sums, got->detector[0] * got->detector[1] * 8);
    stow_mean_free(got);
    return end;
}

static double com(const struct bench *bench, const struct stow_sum_options *options)
{
    struct stow_com *got;
    (void)options;
    if (stow_com(bench->client, bench->name, NULL, 0, &got))
        fail(bench);
    double end = end_of_reading(got->centers, got->n_frames * 16);
    stow_com_free(got);
    return end;
}

static void measure(const struct bench *bench, const char *what,
                    double (*run)(const struct bench *, const struct stow_sum_options *),
                    const struct stow_sum_options *options)
{
    static double ms[MAX_REPEATS];
    uint64_t frames =
        options && options->frames.count ? options->frames.count : bench->info->frames;
    double counts =
        (double)frames * (double)bench->info->detector[0] * (double)bench->info->detector[1];
    run(bench, options); /* memory is had, kernels are loaded */
    for (int i = 0; i < bench->repeats; i++) {
        double begin = now_ms();
        ms[i] = run(bench, options) - begin;
    }
    qsort(ms, (size_t)bench->repeats, sizeof(ms[0]), by_value);
    double median = ms[bench->repeats / 2];
    printf("%-24s %9.3f %9.3f %9.3f ms %9.1f G counts/s\n", what, median, ms[0],
           ms[bench->repeats - 1], 1e-6 * counts / median);
}

/* Weights of no particular shape. */
static void fill(struct bench *bench, enum stow_weights weights, size_t n)
{
    uint32_t state = 1;
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525 + 1013904223;
        if (weights == STOW_WEIGHTS_U8)
            ((uint8_t *)bench->masks)[i] = (uint8_t)(state >> 31);
        else if (weights == STOW_WEIGHTS_I32)
            ((int32_t *)bench->masks)[i] = (int32_t)(state >> 24) - 128;
        else
            ((double *)bench->masks)[i] = (double)state / 4294967296.0 - 0.5;
    }
}

static void measure_masks(struct bench *bench)
{
    static const char *const kinds[] = {"u8", "i32", "f64"};
    static const size_t counts[] = {1, 8};
    size_t n = bench->info->detector[0] * bench->info->detector[1];
    for (int kind = 0; kind < 3; kind++) {
        fill(bench, (enum stow_weights)kind, 8 * n);
        for (int i = 0; i < 2; i++) {
            char what[64];
            struct stow_sum_options options = {.size = sizeof(options),
                                               .masks = bench->masks,
                                               .n_masks = counts[i],
                                               .weights = (enum stow_weights)kind};
            snprintf(what, sizeof(what), "%zu mask%s of %s", counts[i], i ? "s" : "", kinds[kind]);
            measure(bench, what, sum, &options);
        }
    }
}

/* The first makes the table, about a centre that has none yet. */
static void measure_rings(const struct bench *bench, struct stow_sum_options options)
{
    struct stow_annulus annulus = {.inner = floor(options.annuli[0].outer / 2),
                                   .outer = floor(options.annuli[0].outer),
                                   .center = {options.annuli[0].center[0] + 0.25,
                                              options.annuli[0].center[1] + 0.25}};
    struct stow_sums *sums;
    options.annuli = &annulus;
    options.keep_rings = 1;
    double begin = now_ms();
    if (stow_sum(bench->client, bench->name, &options, &sums))
        fail(bench);
    printf("%-24s %9.3f ms, %s\n", "making ring sums", now_ms() - begin,
           sums->by_rings ? "answered from them" : sums->rings_note);
    stow_sums_free(sums);
    options.keep_rings = 0;
    measure(bench, "an annulus by ring sums", sum, &options);
}

int main(int argc, char **argv)
{
    struct stow_error err;
    struct bench bench = {.repeats = argc > 3 ? atoi(argv[3]) : 20};
    if (argc < 3 || bench.repeats < 1 || bench.repeats > MAX_REPEATS) {
        fprintf(stderr, "usage: sums_bench SOCKET NAME [REPEATS]\n");
        return 2;
    }
    bench.name = argv[2];
    bench.client = stow_connect(argv[1], &err);
    if (!bench.client) {
        fprintf(stderr, "sums_bench: %s\n", err.text);
        return EXIT_FAILURE;
    }
    if (stow_info(bench.client, bench.name, &bench.info))
        fail(&bench);
    const uint64_t *detector = bench.info->detector;
    bench.masks = malloc(8 * sizeof(double) * detector[0] * detector[1]);
    if (!bench.masks)
        return EXIT_FAILURE;
    struct stow_annulus annulus = {.outer = (double)detector[0] / 4,
                                   .center = {(double)detector[0] / 2, (double)detector[1] / 2}};
    struct stow_sum_options options = {.size = sizeof(options), .annuli = &annulus, .n_annuli = 1};
    measure(&bench, "an annulus", sum, &options);
    measure_masks(&bench);
    measure_rings(&bench, options);
    options.frames.count = bench.info->frames < 64 ? bench.info->frames : 64;
    measure(&bench, "an annulus of 64 frames", sum, &options);
    measure(&bench, "mean pattern", mean, NULL);
    measure(&bench, "centre of mass", com, NULL);
    free(bench.masks);
    stow_info_free(bench.info);
    stow_close(bench.client);
    return EXIT_SUCCESS;
}
