/* SPDX-License-Identifier: Apache-2.0
 *
 * cli_frames: `framestow frames`: a stream to its end, into a hash, a file, or nothing but a
 * clock. */
#include "cli.h"
#include "cli_ids.h"
#include "cli_out.h"
#include "cli_view.h"

#include <json-c/json.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct wish {
    const char *name;
    struct cli_ids ids;
    bool has_ids, has_at, digest, skip_bad;
    uint64_t at[2];
    const char *out;
    struct stow_stream_options stream;
};

/* A growing list of numbers. */
struct numbers {
    uint64_t *values;
    size_t n, room;
};

struct course {
    struct stow_client *client;
    struct stow_stream *stream;
    EVP_MD_CTX *hash;
    struct cli_out *out;
    uint8_t *host;          /* a batch's bytes, where they lie on a GPU */
    uint64_t frames, bytes; /* good ones */
    struct numbers bad,
        unfit; /* frames that cannot be given, and that do not fit the view's dtype */
    struct numbers handoff_ns; /* of each batch */
    double seconds;
    enum stow_memory memory;
    char dtype[8];
    uint64_t frame[2];
    struct json_object *view; /* as agreed; NULL: none */
    char sha256[2 * EVP_MAX_MD_SIZE + 1];
};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static bool add(struct numbers *list, uint64_t value)
{
    if (list->n == list->room) {
        size_t room = list->room ? 2 * list->room : 256;
        uint64_t *longer = realloc(list->values, room * sizeof(*longer));
        if (!longer)
            return false;
        list->values = longer;
        list->room = room;
    }
    list->values[list->n++] = value;
    return true;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* ---- the frames that are asked for ----------------------------------------------------------- */

static int find_position(struct stow_client *client, struct wish *wish,
                         const struct stow_info *info)
{
    uint64_t id;
    if (stow_scan_frame(client, info, wish->at[0], wish->at[1], &id))
        return cli_error(client);
    wish->ids.ranges = malloc(sizeof(wish->ids.ranges[0]));
    if (!wish->ids.ranges)
        return cli_failed("out of memory");
    wish->ids.ranges[0] = (struct cli_range){id, id};
    wish->ids.n = 1;
    return CLI_DONE;
}

/* The stream's order and range, or its list into *list (freed by the caller). *n: how many
 * frames. */
static int choose(struct stow_client *client, struct wish *wish, const struct stow_info *info,
                  uint64_t **list, size_t *n)
{
    int rc = wish->has_at ? find_position(client, wish, info) : CLI_DONE;
    if (rc)
        return rc;
    *n = info->frames;
    if (cli_view_region(&wish->stream.view, n))
        return CLI_DONE;
    if (wish->ids.n == 0)
        return CLI_DONE;
    if (info->frames == 0)
        return cli_failed("%s has no frames", wish->name);
    if (cli_ids_last(&wish->ids) >= info->frames)
        return cli_failed("frame %llu is past the end: %s has frames 0 to %llu",
                          (unsigned long long)cli_ids_last(&wish->ids), wish->name,
                          (unsigned long long)info->frames - 1);
    if (wish->ids.n == 1) {
        wish->stream.first = wish->ids.ranges[0].first;
        wish->stream.count = wish->ids.ranges[0].last - wish->ids.ranges[0].first + 1;
        *n = wish->stream.count;
        return CLI_DONE;
    }
    if (wish->stream.order == STOW_ORDER_SHUFFLED)
        return cli_failed("--order shuffled takes all frames or one range, not a list");
    if (!cli_ids_expand(&wish->ids, list, n))
        return cli_failed("no memory for a list of so many frames");
    wish->stream.order = STOW_ORDER_LIST;
    wish->stream.ids = *list;
    wish->stream.n_ids = *n;
    return CLI_DONE;
}

/* ---- the stream ------------------------------------------------------------------------------ */

/* The good frames of a batch, in runs, into the hash and the file. */
static bool use(struct course *course, const struct stow_batch *batch, const uint8_t *data)
{
    uint64_t frame_bytes = batch->bytes / batch->n_frames;
    for (uint32_t i = 0, end; i < batch->n_frames; i = end + 1) {
        for (end = i; end < batch->n_frames && batch->status[end] == 0; end++)
            ;
        if (end == i)
            continue;
        const uint8_t *run = data + i * frame_bytes;
        size_t bytes = (end - i) * frame_bytes;
        if (course->hash && EVP_DigestUpdate(course->hash, run, bytes) != 1)
            return cli_failed("hashing failed"), false;
        if (course->out && !cli_out_write(course->out, run, bytes))
            return false;
    }
    return true;
}

static int take(struct course *course, const struct stow_batch *batch)
{
    uint64_t now = now_ns();
    bool ok = add(&course->handoff_ns, now > batch->ready_ns ? now - batch->ready_ns : 0);
    const uint8_t *data = batch->data;
    for (uint32_t i = 0; i < batch->n_frames && batch->n_bad; i++)
        ok = ok &&
             (batch->status[i] == 0 ||
              add(batch->status[i] == STOW_NOFIT ? &course->unfit : &course->bad, batch->ids[i]));
    if (!ok)
        return cli_failed("out of memory");
    if (course->host) {
        size_t room = (size_t)stow_stream_info(course->stream)->batch *
                      stow_stream_info(course->stream)->frame_bytes;
        if (stow_stream_copy(course->stream, batch, course->host, room))
            return cli_error(course->client);
        data = course->host;
    }
    if ((course->hash || course->out) && !use(course, batch, data))
        return CLI_FAILED;
    course->frames += batch->n_frames - batch->n_bad;
    course->bytes += batch->bytes / batch->n_frames * (batch->n_frames - batch->n_bad);
    if (stow_stream_release(course->stream, batch))
        return cli_failed("giving a slot back failed");
    return CLI_DONE;
}

static int open_stream(struct course *course, const struct wish *wish)
{
    course->stream = stow_stream_open(course->client, wish->name, &wish->stream);
    if (!course->stream)
        return cli_error(course->client);
    const struct stow_stream_info *info = stow_stream_info(course->stream);
    course->memory = info->memory;
    snprintf(course->dtype, sizeof(course->dtype), "%s", info->dtype);
    memcpy(course->frame, info->frame, sizeof(course->frame));
    cli_view_warn(info);
    course->view = cli_view_json(info);
    return CLI_DONE;
}

static int run_stream(struct course *course)
{
    const struct stow_batch *batch;
    const struct stow_stream_info *info = stow_stream_info(course->stream);
    int rc = CLI_DONE;
    if (info->memory != STOW_HOST_FD && (course->hash || course->out)) {
        course->host = malloc((size_t)info->batch * info->frame_bytes);
        if (!course->host)
            rc = cli_failed("no memory for a batch of %u frames", info->batch);
    }
    int got = 1;
    while (rc == CLI_DONE && (got = stow_stream_next(course->stream, &batch, -1)) > 0)
        rc = take(course, batch);
    if (rc == CLI_DONE && got < 0)
        rc = cli_error(course->client);
    return rc;
}

/* ---- what is said of it ---------------------------------------------------------------------- */

static double handoff_us(const struct numbers *sorted, double part)
{
    if (sorted->n == 0)
        return 0;
    size_t i = (size_t)(part * (double)(sorted->n - 1) + 0.5);
    return 1e-3 * (double)sorted->values[i];
}

static struct json_object *shape_json(const uint64_t frame[2])
{
    struct json_object *shape = json_object_new_array();
    json_object_array_add(shape, json_object_new_uint64(frame[0]));
    json_object_array_add(shape, json_object_new_uint64(frame[1]));
    return shape;
}

static void print_json(struct course *course)
{
    static const char *const kinds[] = {"none", "host-fd", "cuda-ipc", "cuda-fd"};
    struct numbers *ns = &course->handoff_ns;
    struct json_object *o = json_object_new_object(), *us = json_object_new_object();
    struct json_object *bad = json_object_new_array();
    if (ns->n)
        qsort(ns->values, ns->n, sizeof(ns->values[0]), by_value);
    json_object_object_add(us, "p50", cli_json_real(handoff_us(ns, 0.5), 1));
    json_object_object_add(us, "p95", cli_json_real(handoff_us(ns, 0.95), 1));
    json_object_object_add(us, "p99", cli_json_real(handoff_us(ns, 0.99), 1));
    json_object_object_add(us, "max", cli_json_real(handoff_us(ns, 1), 1));
    struct json_object *unfit = json_object_new_array();
    for (size_t i = 0; i < course->bad.n; i++)
        json_object_array_add(bad, json_object_new_uint64(course->bad.values[i]));
    for (size_t i = 0; i < course->unfit.n; i++)
        json_object_array_add(unfit, json_object_new_uint64(course->unfit.values[i]));
    json_object_object_add(o, "sha256",
                           course->sha256[0] ? json_object_new_string(course->sha256) : NULL);
    json_object_object_add(o, "frames", json_object_new_uint64(course->frames));
    json_object_object_add(o, "bytes", json_object_new_uint64(course->bytes));
    json_object_object_add(o, "bad", bad);
    json_object_object_add(o, "unfit", unfit);
    json_object_object_add(o, "dtype", json_object_new_string(course->dtype));
    json_object_object_add(o, "shape", shape_json(course->frame));
    json_object_object_add(o, "view", course->view ? json_object_get(course->view) : NULL);
    json_object_object_add(o, "seconds", cli_json_real(course->seconds, 3));
    double per_second = course->seconds > 0 ? (double)course->frames / course->seconds : 0;
    json_object_object_add(o, "frames_per_s", cli_json_real(per_second, 1));
    json_object_object_add(o, "batches", json_object_new_uint64(ns->n));
    json_object_object_add(o, "handoff_us", us);
    json_object_object_add(o, "memory", json_object_new_string(kinds[course->memory]));
    cli_json_print(o);
}

static void print_text(const struct course *course, const struct wish *wish)
{
    unsigned long long frames = course->frames, bytes = course->bytes;
    if (wish->digest)
        printf("%s %llu %llu\n", course->sha256, frames, bytes);
    else if (!wish->out)
        printf("%llu frames, %llu bytes, %.3f s, %.1f frames/s\n", frames, bytes, course->seconds,
               course->seconds > 0 ? (double)frames / course->seconds : 0);
}

static int finish(const struct cli *cli, struct course *course, const struct wish *wish)
{
    unsigned char hash[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    int rc = cli_name_bad(course->client, wish->name, course->bad.values, course->bad.n);
    bool partly = (course->bad.n || course->unfit.n) && !wish->skip_bad;
    if (rc)
        return rc;
    cli_view_name_unfit(course->dtype, course->unfit.values, course->unfit.n);
    if (course->hash && !partly) {
        EVP_DigestFinal_ex(course->hash, hash, &n);
        for (unsigned i = 0; i < n; i++)
            sprintf(course->sha256 + 2 * i, "%02x", hash[i]);
    }
    if (course->out && !partly) {
        bool written = cli_out_publish(course->out);
        course->out = NULL;
        if (!written)
            return CLI_FAILED;
    }
    if (cli->json)
        print_json(course);
    else if (!partly || !(wish->digest || wish->out))
        print_text(course, wish);
    return partly ? CLI_PARTLY : CLI_DONE;
}

/* ---- the command ----------------------------------------------------------------------------- */

static int open_sinks(struct course *course, const struct wish *wish)
{
    if (wish->digest) {
        course->hash = EVP_MD_CTX_new();
        if (!course->hash || EVP_DigestInit_ex(course->hash, EVP_sha256(), NULL) != 1)
            return cli_failed("SHA-256 cannot be had from OpenSSL");
    }
    if (wish->out && !(course->out = cli_out_open(wish->out, course->dtype, course->frame)))
        return CLI_FAILED;
    return CLI_DONE;
}

/* What the file is to hold, before anything is made. */
static int check_out(const struct wish *wish, size_t n)
{
    bool picture;
    if (wish->out && cli_out_known(wish->out, &picture) && picture && n != 1)
        return cli_failed("a picture holds one frame, and %zu are asked for: frames %s 0 --out %s",
                          n, wish->name, wish->out);
    return CLI_DONE;
}

/* A stream to its end; sinks are opened once it is known what comes. */
static int serve(struct course *course, const struct wish *wish)
{
    uint64_t begin = now_ns();
    int rc = open_stream(course, wish);
    if (rc == CLI_DONE)
        rc = open_sinks(course, wish);
    if (rc == CLI_DONE)
        rc = run_stream(course);
    course->seconds = 1e-9 * (double)(now_ns() - begin);
    stow_stream_close(course->stream);
    course->stream = NULL;
    return rc;
}

static int frames(const struct cli *cli, struct wish *wish)
{
    struct course course = {.client = NULL};
    struct stow_info *info = NULL;
    uint64_t *list = NULL;
    size_t n = 0;
    int rc = CLI_DONE;
    course.client = cli_connect(cli, &rc);
    if (!course.client)
        return rc;
    rc = stow_info(course.client, wish->name, &info) ? cli_error(course.client)
                                                     : choose(course.client, wish, info, &list, &n);
    if (rc == CLI_DONE)
        rc = check_out(wish, n);
    if (rc == CLI_DONE)
        rc = serve(&course, wish);
    if (rc == CLI_DONE)
        rc = finish(cli, &course, wish);
    cli_out_drop(course.out);
    EVP_MD_CTX_free(course.hash);
    free(course.host);
    free(course.bad.values);
    free(course.unfit.values);
    json_object_put(course.view);
    free(course.handoff_ns.values);
    free(list);
    stow_info_free(info);
    stow_close(course.client);
    return rc;
}

static bool memory_of(const char *text, enum stow_memory *memory)
{
    static const char *const names[] = {"auto", "host-fd", "cuda-ipc", "cuda-fd"};
    for (int i = 0; i < 4; i++) {
        if (strcmp(text, names[i]) == 0) {
            *memory = (enum stow_memory)i;
            return true;
        }
    }
    return false;
}

enum { AT = 'A', OUT, DIGEST, SKIP_BAD, BATCH, SLOTS, ORDER, SEED, MEMORY, SPIN };

static int take_option(const struct cli *cli, int option, struct wish *wish)
{
    uint64_t number = 0;
    bool picture, ok = true;
    if (option >= CLI_VIEW_DTYPE) {
        const char *wanted = cli_view_take(&wish->stream.view, option, optarg);
        return wanted ? cli_usage(cli, "%s is not %s", optarg, wanted) : CLI_DONE;
    }
    switch (option) {
    case AT: wish->has_at = ok = cli_pair(optarg, ',', wish->at); break;
    case OUT:
        wish->out = optarg;
        ok = cli_out_known(optarg, &picture);
        break;
    case DIGEST: wish->digest = true; break;
    case SKIP_BAD: wish->skip_bad = true; break;
    case BATCH:
        ok = cli_number(optarg, UINT32_MAX, &number);
        wish->stream.batch = (uint32_t)number;
        break;
    case SLOTS:
        ok = cli_number(optarg, UINT32_MAX, &number);
        wish->stream.slots = (uint32_t)number;
        break;
    case SPIN:
        ok = cli_number(optarg, UINT32_MAX, &number);
        wish->stream.spin_us = (uint32_t)number;
        break;
    case SEED: ok = cli_number(optarg, UINT64_MAX, &wish->stream.seed); break;
    case MEMORY: ok = memory_of(optarg, &wish->stream.memory); break;
    default:
        wish->stream.order =
            strcmp(optarg, "shuffled") == 0 ? STOW_ORDER_SHUFFLED : STOW_ORDER_SCAN;
        ok = wish->stream.order == STOW_ORDER_SHUFFLED || strcmp(optarg, "scan") == 0;
    }
    return ok ? CLI_DONE : cli_usage(cli, "%s is nothing that this option takes", optarg);
}

int cli_frames(struct cli *cli, int argc, char **argv)
{
    static const struct option options[] = {CLI_GLOBAL_OPTIONS,
                                            CLI_VIEW_OPTIONS,
                                            {"at", required_argument, NULL, AT},
                                            {"out", required_argument, NULL, OUT},
                                            {"digest", no_argument, NULL, DIGEST},
                                            {"skip-bad", no_argument, NULL, SKIP_BAD},
                                            {"batch", required_argument, NULL, BATCH},
                                            {"slots", required_argument, NULL, SLOTS},
                                            {"order", required_argument, NULL, ORDER},
                                            {"seed", required_argument, NULL, SEED},
                                            {"memory", required_argument, NULL, MEMORY},
                                            {"spin-us", required_argument, NULL, SPIN},
                                            {0}};
    struct wish wish = {.stream = {.size = sizeof(wish.stream)}};
    int rc = CLI_DONE, c;
    while ((c = cli_option(cli, argc, argv, options, &rc)) >= 0) {
        rc = take_option(cli, c, &wish);
        if (rc)
            return rc;
    }
    if (c == CLI_STOP || !cli_arguments(cli, argc, 1, 2, &rc))
        return rc;
    wish.name = argv[optind];
    wish.has_ids = argc - optind == 2;
    size_t n;
    if (wish.has_ids + wish.has_at + cli_view_region(&wish.stream.view, &n) > 1)
        return cli_usage(cli, "either a list of frames, or --at, or --region");
    if (wish.has_ids && !cli_ids_parse(argv[optind + 1], &wish.ids))
        return cli_usage(cli, "%s is no list of frames; one is 0,5,7-9", argv[optind + 1]);
    rc = frames(cli, &wish);
    cli_ids_free(&wish.ids);
    return rc;
}
