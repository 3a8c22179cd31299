/* SPDX-License-Identifier: Apache-2.0
 *
 * handoff: how fast and how truly frames reach their consumers.
 *
 *     handoff NAME [--socket PATH] [--mode request|stream|sequential] [--consumers N] [--seconds S]
 *             [--spin US] [--rate HZ] [--memory auto|host-fd|cuda-ipc|cuda-fd] [--batch N] [--slots N]
 *
 * Consumers are processes, forked before anybody connects, that begin together:
 *   request     asks for one random frame (or --batch of them, each from anywhere) at a time: hand-off is ready_ns to the return of
 *               stow_stream_next, call-to-usable begins at stow_stream_request
 *   stream      a shuffled stream of single frames, each released at once: hand-off of those batches
 *               that the consumer was already waiting for; of the others it would be the queue's length
 *   sequential  scan order in the default batches (or --batch, --slots), frames not looked at: frames a second,
 *               the whole scan again and again; opening and closing a stream is not in that time
 * Before that, one process reads all frames and keeps a 64-bit hash of each; in the first two modes every
 * frame is hashed again before its slot is given back, and one that differs is torn. A position left out is
 * skipped, a generation that is not above the slot's last one is duplicate.
 *
 * Prints one JSON object. Exit 1 when a consumer failed or anything was torn, skipped or duplicate. */
#include "framestow.h"

#include <getopt.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_CONSUMERS 16
#define MAX_SAMPLES (1u << 20) /* kept of each consumer */
#define MAX_SLOTS 64

enum mode { REQUEST, STREAM, SEQUENTIAL, N_MODES };
static const char *const mode_names[N_MODES] = {"request", "stream", "sequential"};
static const char *const memory_names[] = {"auto", "host-fd", "cuda-ipc", "cuda-fd"};

struct settings {
    const char *name, *socket;
    enum mode mode;
    unsigned consumers;
    double seconds, rate;
    uint32_t spin_us;
    uint32_t batch, slots; /* 0: one frame in 4 slots; sequential: the daemon's choice */
    enum stow_memory memory;
};

/* What a consumer tells; it lies in memory shared with the parent. */
struct report {
    uint64_t frames, batches, torn, skipped, duplicate, bad;
    double seconds;
    enum stow_memory memory;
    bool finished;
    size_t n_handoff, n_usable;
    float handoff_us[MAX_SAMPLES], usable_us[MAX_SAMPLES];
};

struct shared {
    atomic_uint ready, go;
    uint64_t n_frames, frame_bytes;
    uint64_t *expected; /* [n_frames], shared too */
    struct report reports[MAX_CONSUMERS];
};

struct consumer {
    const struct settings *settings;
    struct shared *shared;
    struct report *report;
    struct stow_client *client;
    struct stow_stream *stream;
    uint32_t batch; /* frames asked for at a time */
    uint64_t *ids;
    uint8_t *copy; /* of a batch */
    uint64_t next_position, generations[MAX_SLOTS];
    uint64_t random;
};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Four sums side by side, so that the processor does not wait for each multiplication. */
static uint64_t hash_bytes(const uint8_t *bytes, size_t n)
{
    uint64_t sums[4] = {1, 2, 3, 4};
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        for (size_t k = 0; k < 4; k++) {
            uint64_t word;
            memcpy(&word, bytes + i + 8 * k, 8);
            sums[k] = (sums[k] ^ word) * 0x9e3779b97f4a7c15u;
            sums[k] ^= sums[k] >> 29;
        }
    }
    for (; i < n; i++)
        sums[0] = (sums[0] ^ bytes[i]) * 0x100000001b3u;
    return sums[0] ^ (sums[1] * 3) ^ (sums[2] * 5) ^ (sums[3] * 7);
}

static bool complain(const struct consumer *c, const char *what)
{
    fprintf(stderr, "handoff: %s: %s\n", what, stow_last_error(c->client)->text);
    return false;
}

static void *shared_memory(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        perror("handoff: mmap");
        exit(EXIT_FAILURE);
    }
    return at;
}

/* ---- a consumer ---- */

static bool open_consumer(struct consumer *c, const struct stow_stream_options *options)
{
    struct stow_error err;
    c->client = stow_connect(c->settings->socket, &err);
    if (!c->client) {
        fprintf(stderr, "handoff: %s\n", err.text);
        return false;
    }
    c->stream = stow_stream_open(c->client, c->settings->name, options);
    return c->stream || complain(c, "cannot open a stream");
}

static void close_consumer(struct consumer *c)
{
    stow_stream_close(c->stream);
    stow_close(c->client);
    free(c->copy);
    free(c->ids);
}

static void check_order(struct consumer *c, const struct stow_batch *batch)
{
    struct report *r = c->report;
    if (batch->position != c->next_position)
        r->skipped++;
    c->next_position = batch->position + batch->n_frames;
    if (batch->slot < MAX_SLOTS) {
        if (batch->generation <= c->generations[batch->slot])
            r->duplicate++;
        c->generations[batch->slot] = batch->generation;
    }
    r->bad += batch->n_bad;
    r->frames += batch->n_frames;
    r->batches++;
}

static bool check_pixels(struct consumer *c, const struct stow_batch *batch)
{
    size_t bytes = c->shared->frame_bytes;
    const uint8_t *pixels = batch->data;
    if (batch->memory != STOW_HOST_FD) {
        if (stow_stream_copy(c->stream, batch, c->copy, batch->n_frames * bytes) < 0)
            return complain(c, "cannot copy a batch");
        pixels = c->copy;
    }
    for (uint32_t i = 0; i < batch->n_frames; i++) {
        if (hash_bytes(pixels + i * bytes, bytes) != c->shared->expected[batch->ids[i]])
            c->report->torn++;
    }
    return true;
}

static void keep(float *samples, size_t *n, uint64_t from, uint64_t to)
{
    if (*n < MAX_SAMPLES)
        samples[(*n)++] = (float)((double)(int64_t)(to - from) * 1e-3);
}

static void pause_until(uint64_t when)
{
    struct timespec t = {(time_t)(when / 1000000000u), (long)(when % 1000000000u)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static void choose_frames(struct consumer *c)
{
    for (uint32_t i = 0; i < c->batch; i++) {
        c->random = c->random * 6364136223846793005u + 1442695040888963407u;
        c->ids[i] = (c->random >> 33) % c->shared->n_frames;
    }
}

/* One batch of a request or shuffled stream; a stream that ends is opened anew. */
static int take_one(struct consumer *c, const struct stow_stream_options *options)
{
    struct report *r = c->report;
    const struct stow_batch *batch;
    choose_frames(c);
    uint64_t called = now_ns();
    if (c->settings->mode == REQUEST && stow_stream_request(c->stream, c->ids, c->batch) < 0) {
        complain(c, "request");
        return -1;
    }
    int got = stow_stream_next(c->stream, &batch, 10000);
    uint64_t returned = now_ns();
    if (got == 0) {
        stow_stream_close(c->stream);
        c->stream = stow_stream_open(c->client, c->settings->name, options);
        c->next_position = 0;
        memset(c->generations, 0, sizeof(c->generations));
        return c->stream ? 0 : (complain(c, "cannot open a stream"), -1);
    }
    if (got < 0) {
        complain(c, "next");
        return -1;
    }
    if (batch->ready_ns >= called)
        keep(r->handoff_us, &r->n_handoff, batch->ready_ns, returned);
    if (c->settings->mode == REQUEST)
        keep(r->usable_us, &r->n_usable, called, returned);
    check_order(c, batch);
    if (batch->n_bad == 0 && !check_pixels(c, batch))
        return -1;
    return stow_stream_release(c->stream, batch) < 0 ? (complain(c, "release"), -1) : 0;
}

static bool run_single(struct consumer *c, const struct stow_stream_options *options)
{
    const struct settings *s = c->settings;
    uint64_t begin = now_ns(), end = begin + (uint64_t)(s->seconds * 1e9), at = begin;
    while (now_ns() < end) {
        if (take_one(c, options) < 0)
            return false;
        if (s->rate > 0)
            pause_until(at += (uint64_t)(1e9 / s->rate));
    }
    c->report->seconds = (double)(now_ns() - begin) * 1e-9;
    return true;
}

static bool run_sequential(struct consumer *c, const struct stow_stream_options *options)
{
    uint64_t begin = now_ns(), end = begin + (uint64_t)(c->settings->seconds * 1e9);
    uint64_t between = 0; /* one scan's stream and the next one's */
    while (now_ns() < end) {
        const struct stow_batch *batch;
        int got = stow_stream_next(c->stream, &batch, 10000);
        if (got < 0)
            return complain(c, "next");
        if (got > 0) {
            check_order(c, batch);
            if (stow_stream_release(c->stream, batch) < 0)
                return complain(c, "release");
            continue;
        }
        uint64_t closing = now_ns();
        stow_stream_close(c->stream);
        c->stream = stow_stream_open(c->client, c->settings->name, options);
        c->next_position = 0;
        memset(c->generations, 0, sizeof(c->generations));
        if (!c->stream)
            return complain(c, "cannot open a stream");
        between += now_ns() - closing;
    }
    c->report->seconds = (double)(now_ns() - begin - between) * 1e-9;
    return true;
}

static bool consume(const struct settings *settings, struct shared *shared, unsigned index)
{
    struct consumer c = {.settings = settings,
                         .shared = shared,
                         .report = &shared->reports[index],
                         .random = index + 1,
                         .batch = settings->batch ? settings->batch : 1};
    bool single = settings->mode != SEQUENTIAL;
    c.copy = malloc(c.batch * shared->frame_bytes);
    c.ids = malloc(c.batch * sizeof(*c.ids));
    struct stow_stream_options options = {.size = sizeof(options),
                                          .order = settings->mode == REQUEST  ? STOW_ORDER_REQUEST
                                                   : settings->mode == STREAM ? STOW_ORDER_SHUFFLED
                                                                              : STOW_ORDER_SCAN,
                                          .seed = index,
                                          .batch = single ? c.batch : settings->batch,
                                          .slots = single && !settings->slots ? 4 : settings->slots,
                                          .memory = settings->memory,
                                          .spin_us = settings->spin_us};
    bool ok = c.copy && c.ids && open_consumer(&c, &options);
    if (ok)
        c.report->memory = stow_stream_info(c.stream)->memory;
    atomic_fetch_add(&shared->ready, 1);
    while (!atomic_load(&shared->go))
        usleep(100);
    ok = ok && (single ? run_single(&c, &options) : run_sequential(&c, &options));
    c.report->finished = ok;
    close_consumer(&c);
    return ok;
}

/* ---- what the frames should be ---- */

/* Run in a process of its own: learn the size, then hash every frame. */
static bool learn_size(const struct settings *settings, struct shared *shared)
{
    struct stow_error err;
    struct stow_info *info;
    struct stow_client *client = stow_connect(settings->socket, &err);
    if (!client) {
        fprintf(stderr, "handoff: %s\n", err.text);
        return false;
    }
    bool ok = stow_info(client, settings->name, &info) >= 0;
    if (ok) {
        shared->n_frames = info->frames;
        shared->frame_bytes = info->frame_bytes;
        stow_info_free(info);
    } else {
        fprintf(stderr, "handoff: %s\n", stow_last_error(client)->text);
    }
    stow_close(client);
    return ok;
}

static bool hash_frames(const struct settings *settings, struct shared *shared)
{
    struct stow_stream_options options = {.size = sizeof(options),
                                          .batch = 64,
                                          .memory = settings->memory};
    struct consumer c = {.settings = settings, .shared = shared};
    uint8_t *copy = malloc(64 * shared->frame_bytes);
    bool ok = copy && open_consumer(&c, &options);
    const struct stow_batch *batch;
    int got = 0;
    while (ok && (got = stow_stream_next(c.stream, &batch, 10000)) > 0) {
        ok = stow_stream_copy(c.stream, batch, copy, 64 * shared->frame_bytes) >= 0;
        for (uint32_t i = 0; ok && i < batch->n_frames; i++)
            shared->expected[batch->ids[i]] =
                hash_bytes(copy + i * shared->frame_bytes, shared->frame_bytes);
        stow_stream_release(c.stream, batch);
    }
    if (ok && got < 0)
        ok = complain(&c, "next");
    close_consumer(&c);
    free(copy);
    return ok;
}

static bool in_child(bool (*run)(const struct settings *, struct shared *),
                     const struct settings *settings, struct shared *shared)
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(run(settings, shared) ? EXIT_SUCCESS : EXIT_FAILURE);
    int status = -1;
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

/* ---- the parent ---- */

static int compare_float(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static void print_samples(const char *name, const struct shared *shared, unsigned consumers,
                          bool usable)
{
    size_t n = 0;
    float *all = malloc((size_t)consumers * MAX_SAMPLES * sizeof(*all));
    for (unsigned i = 0; all && i < consumers; i++) {
        const struct report *r = &shared->reports[i];
        size_t count = usable ? r->n_usable : r->n_handoff;
        memcpy(all + n, usable ? r->usable_us : r->handoff_us, count * sizeof(*all));
        n += count;
    }
    if (n) {
        qsort(all, n, sizeof(*all), compare_float);
        printf(", \"%s\": {\"n\": %zu, \"p50\": %.1f, \"p95\": %.1f, \"p99\": %.1f, \"max\": %.1f}",
               name, n, (double)all[n / 2], (double)all[n * 95 / 100], (double)all[n * 99 / 100],
               (double)all[n - 1]);
    }
    free(all);
}

static bool print_report(const struct settings *settings, const struct shared *shared)
{
    uint64_t frames = 0, batches = 0, torn = 0, skipped = 0, duplicate = 0, bad = 0;
    bool ok = true;
    for (unsigned i = 0; i < settings->consumers; i++) {
        const struct report *r = &shared->reports[i];
        frames += r->frames, batches += r->batches, torn += r->torn;
        skipped += r->skipped, duplicate += r->duplicate, bad += r->bad;
        ok &= r->finished;
    }
    printf("{\"mode\": \"%s\", \"consumers\": %u, \"spin_us\": %u, \"rate_hz\": %.0f, \"batch\": "
           "%u, \"slots\": %u, \"memory\": \"%s\"",
           mode_names[settings->mode], settings->consumers, settings->spin_us, settings->rate,
           settings->batch, settings->slots, memory_names[shared->reports[0].memory]);
    printf(", \"frames\": %llu, \"generations\": %llu, \"torn\": %llu, \"skipped\": %llu"
           ", \"duplicate\": %llu, \"bad\": %llu, \"frames_per_s\": [",
           (unsigned long long)frames, (unsigned long long)batches, (unsigned long long)torn,
           (unsigned long long)skipped, (unsigned long long)duplicate, (unsigned long long)bad);
    for (unsigned i = 0; i < settings->consumers; i++) {
        const struct report *r = &shared->reports[i];
        printf("%s%.0f", i ? ", " : "", r->seconds > 0 ? (double)r->frames / r->seconds : 0);
    }
    printf("]");
    print_samples("handoff_us", shared, settings->consumers, false);
    print_samples("call_to_usable_us", shared, settings->consumers, true);
    printf("}\n");
    return ok && !torn && !skipped && !duplicate;
}

static bool run_consumers(const struct settings *settings, struct shared *shared)
{
    unsigned started = 0;
    for (; started < settings->consumers; started++) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(consume(settings, shared, started) ? EXIT_SUCCESS : EXIT_FAILURE);
        if (pid < 0)
            break;
    }
    for (int ms = 0; atomic_load(&shared->ready) < started && ms < 30000; ms++)
        usleep(1000); /* one that died early is not waited for */
    atomic_store(&shared->go, 1);
    bool ok = started == settings->consumers;
    for (int status; wait(&status) > 0;)
        ok &= status == 0;
    return ok;
}

static int find_name(const char *value, const char *const *names, int n)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(value, names[i]))
            return i;
    fprintf(stderr, "handoff: not known: %s\n", value);
    exit(2);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"socket", 1, NULL, 's'},    {"mode", 1, NULL, 'm'},
        {"consumers", 1, NULL, 'c'}, {"seconds", 1, NULL, 't'},
        {"spin", 1, NULL, 'p'},      {"rate", 1, NULL, 'r'},
        {"memory", 1, NULL, 'k'},    {"batch", 1, NULL, 'b'},
        {"slots", 1, NULL, 'n'},     {0},
    };
    struct settings settings = {.mode = REQUEST, .consumers = 1, .seconds = 5};
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (option) {
        case 's': settings.socket = optarg; break;
        case 'm': settings.mode = (enum mode)find_name(optarg, mode_names, N_MODES); break;
        case 'c': settings.consumers = (unsigned)atoi(optarg); break;
        case 't': settings.seconds = atof(optarg); break;
        case 'p': settings.spin_us = (uint32_t)atoi(optarg); break;
        case 'r': settings.rate = atof(optarg); break;
        case 'b': settings.batch = (uint32_t)atoi(optarg); break;
        case 'n': settings.slots = (uint32_t)atoi(optarg); break;
        case 'k': settings.memory = (enum stow_memory)find_name(optarg, memory_names, 4); break;
        default: return 2;
        }
    }
    if (optind != argc - 1 || settings.consumers < 1 || settings.consumers > MAX_CONSUMERS) {
        fprintf(stderr, "handoff: one acquisition, 1 to %d consumers\n", MAX_CONSUMERS);
        return 2;
    }
    settings.name = argv[optind];
    struct shared *shared = shared_memory(sizeof(*shared));
    if (!in_child(learn_size, &settings, shared) || !shared->n_frames)
        return EXIT_FAILURE;
    shared->expected = shared_memory(shared->n_frames * sizeof(uint64_t));
    if (settings.mode != SEQUENTIAL && !in_child(hash_frames, &settings, shared))
        return EXIT_FAILURE;
    bool ok = run_consumers(&settings, shared);
    ok &= print_report(&settings, shared);
    return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
