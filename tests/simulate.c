/* SPDX-License-Identifier: Apache-2.0
 *
 * framestow-simulate: writes a made-up DECTRIS-style 4D-STEM acquisition, for tests, demos and benchmarks.
 *
 * Frames are made and compressed in batches by worker threads; the main thread writes the batches in
 * order, since HDF5 lets one thread in at a time; with --truth a third kind of thread hashes the counts in
 * order. A window of batches bounds the memory: a batch's place in it is free again once it is written and
 * hashed. The files and the digest depend on the options alone, not on the threads.
 *
 * Fails with one sentence and exit 1; the files written so far stay. */
#include "error.h"
#include "simulate_bslz4.h"
#include "simulate_counts.h"
#include "simulate_hdf5.h"

#include <errno.h>
#include <getopt.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_THREADS 256
#define BATCH_BYTES (1u << 20)
#define MAX_BATCH 64

struct batch {
    size_t number;       /* which batch lies here; SIZE_MAX: none, a worker may take the place */
    unsigned waited_for; /* writer and hasher that still need it; 0 while a worker fills it */
    uint8_t *counts;     /* batch_frames decoded frames */
    uint8_t *chunks;     /* batch_frames times bound bytes */
    size_t chunk_bytes[MAX_BATCH];
};

struct simulation {
    struct layout layout;
    const struct counts *counts;
    size_t frame_bytes, bound, batch_frames, n_batches;
    bool truth;
    unsigned n_threads;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct batch *window;
    size_t n_window;
    size_t next_batch;     /* that no worker has taken */
    struct stow_error err; /* the first failure; everybody stops on it */
    EVP_MD_CTX *hash;
};

/* ---- the window ---- */

static size_t batch_count(const struct simulation *s, size_t number)
{
    size_t left = s->layout.n_frames - number * s->batch_frames;
    return left < s->batch_frames ? left : s->batch_frames;
}

static void fail(struct simulation *s, const struct stow_error *err)
{
    pthread_mutex_lock(&s->lock);
    if (!s->err.code)
        s->err = *err;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* The place for the next batch to be made, once it is free; NULL when there is none, or on failure. A number
 * is taken together with its place: else a later number could take the place first. */
static struct batch *take_batch(struct simulation *s)
{
    struct batch *batch = NULL;
    pthread_mutex_lock(&s->lock);
    while (!s->err.code && s->next_batch < s->n_batches &&
           s->window[s->next_batch % s->n_window].number != SIZE_MAX)
        pthread_cond_wait(&s->changed, &s->lock);
    if (!s->err.code && s->next_batch < s->n_batches) {
        batch = &s->window[s->next_batch % s->n_window];
        batch->number = s->next_batch++;
    }
    pthread_mutex_unlock(&s->lock);
    return batch;
}

/* This batch, once it is made; NULL on failure. */
static struct batch *await_batch(struct simulation *s, size_t number)
{
    struct batch *batch = &s->window[number % s->n_window];
    pthread_mutex_lock(&s->lock);
    while (!s->err.code && !(batch->number == number && batch->waited_for))
        pthread_cond_wait(&s->changed, &s->lock);
    if (s->err.code)
        batch = NULL;
    pthread_mutex_unlock(&s->lock);
    return batch;
}

static void batch_made(struct simulation *s, struct batch *batch)
{
    pthread_mutex_lock(&s->lock);
    batch->waited_for = s->truth ? 2 : 1;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void batch_used(struct simulation *s, struct batch *batch)
{
    pthread_mutex_lock(&s->lock);
    if (--batch->waited_for == 0) {
        batch->number = SIZE_MAX;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
}

/* ---- threads ---- */

static void make_batch(const struct simulation *s, struct batch *batch, uint32_t *scratch)
{
    size_t n = batch_count(s, batch->number), elem_bytes = s->layout.elem_bytes;
    for (size_t i = 0; i < n; i++) {
        uint8_t *counts = batch->counts + i * s->frame_bytes;
        counts_frame(s->counts, batch->number * s->batch_frames + i, counts, scratch);
        batch->chunk_bytes[i] =
            chunk_encode(batch->chunks + i * s->bound, counts, s->frame_bytes / elem_bytes,
                         elem_bytes, chunk_default_block(elem_bytes));
    }
}

static void *work(void *data)
{
    struct simulation *s = data;
    uint32_t *scratch = malloc(s->layout.det_y * s->layout.det_x * sizeof(*scratch));
    if (!scratch) {
        struct stow_error err;
        error_set(&err, STOW_NOMEM, "out of memory");
        fail(s, &err);
        return NULL;
    }
    struct batch *batch;
    while ((batch = take_batch(s))) {
        make_batch(s, batch, scratch);
        batch_made(s, batch);
    }
    free(scratch);
    return NULL;
}

static void *hash_all(void *data)
{
    struct simulation *s = data;
    for (size_t number = 0; number < s->n_batches; number++) {
        struct batch *batch = await_batch(s, number);
        if (!batch)
            break;
        EVP_DigestUpdate(s->hash, batch->counts, batch_count(s, number) * s->frame_bytes);
        batch_used(s, batch);
    }
    return NULL;
}

/* Put one batch's chunks, from one shard to the next where they cross over. */
static int write_batch(struct simulation *s, const struct batch *batch, struct shard **shard,
                       size_t *index, struct stow_error *err)
{
    for (size_t i = 0; i < batch_count(s, batch->number); i++) {
        size_t frame = batch->number * s->batch_frames + i;
        int code = 0;
        if (frame == layout_first(&s->layout, *index + 1)) {
            code = shard_close(*shard, err);
            *shard = NULL;
            if (code == 0)
                code = shard_open(shard, &s->layout, ++*index, err);
        }
        if (code == 0)
            code =
                shard_put(*shard, frame, batch->chunks + i * s->bound, batch->chunk_bytes[i], err);
        if (code)
            return code;
    }
    return 0;
}

static void write_all(struct simulation *s)
{
    struct stow_error err;
    struct shard *shard = NULL;
    size_t index = 0;
    int code = master_write(&s->layout, &err);
    if (code == 0)
        code = shard_open(&shard, &s->layout, 0, &err);
    for (size_t number = 0; code == 0 && number < s->n_batches; number++) {
        struct batch *batch = await_batch(s, number);
        if (!batch)
            break;
        code = write_batch(s, batch, &shard, &index, &err);
        batch_used(s, batch);
    }
    struct stow_error close_err;
    int close_code = shard_close(shard, &close_err);
    if (code)
        fail(s, &err);
    else if (close_code)
        fail(s, &close_err);
}

/* ---- life ---- */

static bool make_window(struct simulation *s)
{
    s->n_window = 2 * (size_t)s->n_threads + 2;
    s->window = calloc(s->n_window, sizeof(*s->window));
    if (!s->window)
        return false;
    bool ok = true;
    for (size_t i = 0; i < s->n_window; i++) {
        s->window[i].number = SIZE_MAX;
        s->window[i].counts = malloc(s->batch_frames * s->frame_bytes);
        s->window[i].chunks = malloc(s->batch_frames * s->bound);
        ok &= s->window[i].counts && s->window[i].chunks;
    }
    return ok;
}

static void free_window(struct simulation *s)
{
    for (size_t i = 0; s->window && i < s->n_window; i++) {
        free(s->window[i].counts);
        free(s->window[i].chunks);
    }
    free(s->window);
}

static void start(struct simulation *s, pthread_t *thread, void *(*run)(void *), size_t *n_started)
{
    int code = pthread_create(thread, NULL, run, s);
    if (code) {
        struct stow_error err;
        error_errno(&err, code, "cannot start a thread");
        fail(s, &err);
        return;
    }
    ++*n_started;
}

static void run_threads(struct simulation *s)
{
    pthread_t threads[MAX_THREADS + 1];
    size_t n_started = 0;
    for (unsigned i = 0; i < s->n_threads; i++)
        start(s, &threads[n_started], work, &n_started);
    if (s->truth)
        start(s, &threads[n_started], hash_all, &n_started);
    write_all(s);
    for (size_t i = 0; i < n_started; i++)
        pthread_join(threads[i], NULL);
}

static void print_truth(struct simulation *s)
{
    uint8_t digest[EVP_MAX_MD_SIZE];
    unsigned bytes = 0;
    EVP_DigestFinal_ex(s->hash, digest, &bytes);
    for (unsigned i = 0; i < bytes; i++)
        printf("%02x", digest[i]);
    printf(" %zu %zu\n", s->layout.n_frames, s->layout.n_frames * s->frame_bytes);
}

static int simulate(struct simulation *s, const struct counts_options *options)
{
    size_t n_pixels = options->det_y * options->det_x;
    s->frame_bytes = n_pixels * options->elem_bytes;
    s->bound = chunk_bound(n_pixels, options->elem_bytes, chunk_default_block(options->elem_bytes));
    s->batch_frames = BATCH_BYTES / s->frame_bytes;
    s->batch_frames = s->batch_frames < 1           ? 1
                      : s->batch_frames > MAX_BATCH ? MAX_BATCH
                                                    : s->batch_frames;
    s->n_batches = (s->layout.n_frames + s->batch_frames - 1) / s->batch_frames;

    struct counts *counts = counts_new(options);
    s->counts = counts;
    s->hash = EVP_MD_CTX_new();
    if (!counts || !s->hash || !make_window(s) || !EVP_DigestInit_ex(s->hash, EVP_sha256(), NULL)) {
        error_set(&s->err, STOW_NOMEM, "out of memory");
    } else {
        s->layout.flagged = counts_flagged(counts, &s->layout.n_flagged);
        run_threads(s);
    }
    if (!s->err.code && s->truth)
        print_truth(s);
    free_window(s);
    EVP_MD_CTX_free(s->hash);
    counts_free(counts);
    if (!s->err.code && (fflush(stdout) || ferror(stdout)))
        error_errno(&s->err, errno, "cannot write to standard output");
    if (!s->err.code)
        return EXIT_SUCCESS;
    fprintf(stderr, "framestow-simulate: %s\n", s->err.text);
    return EXIT_FAILURE;
}

/* ---- command line ---- */

static const char usage_text[] =
    "usage: framestow-simulate DIR [--scan YxX] [--detector YxX] [--dtype u1|u2|u4] [--sample "
    "thin|thick]\n"
    "           [--dose MEAN] [--seed N] [--shards N] [--truth] [--threads N] [--name NAME]\n"
    "Writes DIR/NAME_master.h5 (NAME: sim) and its shards. MEAN: mean counts a pixel (1.1).\n"
    "--truth prints the SHA-256 of the counts, the number of frames, the number of bytes.\n";

static int usage(const char *what, const char *value)
{
    fprintf(stderr, "framestow-simulate: %s: %s\n%s", what, value, usage_text);
    return 2;
}

static bool parse_number(const char *text, uint64_t low, uint64_t high, uint64_t *value)
{
    char *end;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    *value = n;
    return *text >= '0' && *text <= '9' && !*end && !errno && n >= low && n <= high;
}

static bool parse_pair(const char *text, uint64_t high, size_t *y, size_t *x)
{
    char first[24];
    const char *cross = strchr(text, 'x');
    uint64_t a, b;
    if (!cross || (size_t)(cross - text) >= sizeof(first))
        return false;
    memcpy(first, text, (size_t)(cross - text));
    first[cross - text] = '\0';
    if (!parse_number(first, 1, high, &a) || !parse_number(cross + 1, 1, high, &b))
        return false;
    *y = a;
    *x = b;
    return true;
}

static bool parse_dose(const char *text, double *dose)
{
    char *end;
    *dose = strtod(text, &end);
    return end != text && !*end && *dose >= 0.001 && *dose <= 100000;
}

enum setting { SCAN = 1, DETECTOR, DTYPE, SAMPLE, DOSE, SEED, SHARDS, TRUTH, THREADS, NAME, HELP };

static bool apply_option(struct simulation *s, struct counts_options *counts, int setting,
                         const char *value)
{
    uint64_t n = 0;
    bool ok = true;
    switch (setting) {
    case SCAN: return parse_pair(value, 65536, &counts->scan_y, &counts->scan_x);
    case DETECTOR: return parse_pair(value, 16384, &counts->det_y, &counts->det_x);
    case DTYPE:
        counts->elem_bytes = (size_t)(value[0] && value[1] ? value[1] - '0' : 0);
        return !strcmp(value, "u1") || !strcmp(value, "u2") || !strcmp(value, "u4");
    case SAMPLE:
        counts->thick = !strcmp(value, "thick");
        return counts->thick || !strcmp(value, "thin");
    case DOSE: return parse_dose(value, &counts->dose);
    case SEED: return parse_number(value, 0, UINT64_MAX, &counts->seed);
    case SHARDS:
        ok = parse_number(value, 1, 999999, &n);
        s->layout.n_shards = n;
        return ok;
    case THREADS:
        ok = parse_number(value, 1, MAX_THREADS, &n);
        s->n_threads = (unsigned)n;
        return ok;
    case TRUTH: s->truth = true; return true;
    case NAME: s->layout.name = value; return *value && !strchr(value, '/') && strlen(value) < 200;
    default: return false;
    }
}

static const struct option long_options[] = {
    {"scan", required_argument, NULL, SCAN},
    {"detector", required_argument, NULL, DETECTOR},
    {"dtype", required_argument, NULL, DTYPE},
    {"sample", required_argument, NULL, SAMPLE},
    {"dose", required_argument, NULL, DOSE},
    {"seed", required_argument, NULL, SEED},
    {"shards", required_argument, NULL, SHARDS},
    {"truth", no_argument, NULL, TRUTH},
    {"threads", required_argument, NULL, THREADS},
    {"name", required_argument, NULL, NAME},
    {"help", no_argument, NULL, HELP},
    {0},
};

/* 0, or the exit status in *status. */
static int parse(struct simulation *s, struct counts_options *counts, int argc, char **argv,
                 int *status)
{
    int option, index = 0;
    while ((option = getopt_long(argc, argv, "", long_options, &index)) != -1) {
        if (option == HELP) {
            fputs(usage_text, stdout);
            *status = EXIT_SUCCESS;
            return -1;
        }
        if (option == '?' || !apply_option(s, counts, option, optarg)) {
            *status = option == '?' ? usage("not an option", argv[optind - 1])
                                    : usage(long_options[index].name, optarg);
            return -1;
        }
    }
    if (optind != argc - 1)
        *status =
            usage("one folder to write to", optind < argc ? "more were given" : "none was given");
    else if (s->layout.n_shards > counts->scan_y * counts->scan_x)
        *status = usage("shards", "more than there are frames");
    else if (strlen(argv[optind]) > 3000)
        *status = usage("the folder's name is too long", argv[optind]);
    else
        return 0;
    return -1;
}

int main(int argc, char **argv)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    struct counts_options counts = {
        .scan_y = 64,
        .scan_x = 64,
        .det_y = 192,
        .det_x = 192,
        .elem_bytes = 2,
        .thick = true,
        .dose = 1.1,
        .seed = 1,
    };
    struct simulation s = {
        .layout = {.name = "sim", .n_shards = 1},
        .n_threads = cpus < 1             ? 1
                     : cpus > MAX_THREADS ? MAX_THREADS
                                          : (unsigned)cpus,
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .changed = PTHREAD_COND_INITIALIZER,
    };
    int status;
    if (parse(&s, &counts, argc, argv, &status))
        return status;
    s.layout.folder = argv[optind];
    s.layout.n_frames = counts.scan_y * counts.scan_x;
    s.layout.det_y = counts.det_y;
    s.layout.det_x = counts.det_x;
    s.layout.elem_bytes = counts.elem_bytes;
    if (mkdir(s.layout.folder, 0777) && errno != EEXIST) {
        fprintf(stderr, "framestow-simulate: cannot make the folder %s: %s\n", s.layout.folder,
                strerror(errno));
        return EXIT_FAILURE;
    }
    return simulate(&s, &counts);
}
