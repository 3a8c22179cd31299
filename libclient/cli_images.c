/* SPDX-License-Identifier: Apache-2.0
 *
 * cli_images: `framestow sum`, `mean` and `com`: what is added up over an acquisition, as a file. */
#include "cli.h"
#include "cli_ids.h"
#include "cli_npy.h"
#include "cli_out.h"
#include "cli_scan.h"

#include <json-c/json.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SUMS 8u

struct wish {
    const char *name, *out;
    struct cli_ids ids;
    bool flagged, exact; /* exact: the sums, not their mean */
    bool rings;
    const char *masks[MAX_SUMS];
    size_t n_masks;
    struct stow_annulus annuli[MAX_SUMS];
    size_t n_annuli;
    bool has_center, find_center;
    double center[2];
};

struct course {
    struct stow_client *client;
    struct stow_info *info;
    struct stow_selection frames;
    uint64_t *list; /* of frames; NULL: a range */
    uint64_t n;     /* how many frames */
    bool by_scan;   /* they are what the scan leaves of all */
    void *padded;   /* results with room for positions that were not acquired */
    struct stow_disk disk;
    uint64_t n_flagged;
    bool by_rings;
    const char *rings_note; /* NULL: nothing to be said */
    uint64_t *bad;          /* [n_bad] frames without counts */
    uint64_t n_bad;
    struct cli_array array;
};

/* ---- which frames ---------------------------------------------------------------------------------- */

/* All frames, or where the scan leaves some out, those of its positions. */
static int choose_scan(struct course *course)
{
    const struct stow_info *info = course->info;
    size_t n;
    if (!cli_scan_positions(info) || cli_scan_is_all(info))
        return CLI_DONE;
    course->list = cli_scan_frames(info, &n);
    if (!course->list)
        return cli_failed("no memory for a list of so many frames");
    course->by_scan = true;
    course->frames.ids = course->list;
    course->frames.n_ids = course->n = n;
    return CLI_DONE;
}

static int choose_frames(struct course *course, const struct wish *wish)
{
    const struct stow_info *info = course->info;
    size_t n;
    course->n = info->frames;
    if (!wish->ids.n)
        return choose_scan(course);
    if (!info->frames || cli_ids_last(&wish->ids) >= info->frames)
        return cli_failed("frame %llu is past the end: %s has %llu frames",
                          (unsigned long long)cli_ids_last(&wish->ids), wish->name,
                          (unsigned long long)info->frames);
    if (wish->ids.n == 1) {
        course->frames.first = wish->ids.ranges[0].first;
        course->frames.count = wish->ids.ranges[0].last - wish->ids.ranges[0].first + 1;
        course->n = course->frames.count;
        return CLI_DONE;
    }
    if (!cli_ids_expand(&wish->ids, &course->list, &n))
        return cli_failed("no memory for a list of so many frames");
    course->frames.ids = course->list;
    course->frames.n_ids = course->n = n;
    return CLI_DONE;
}

static uint64_t frame_of(const struct course *course, uint64_t i)
{
    return course->list ? course->list[i] : course->frames.first + i;
}

/* All frames of a scan have its shape; of some, or of a flat list, there are n. */
static void add_frame_dims(struct course *course, const struct wish *wish)
{
    struct cli_array *array = &course->array;
    const uint64_t *scan = course->info->scan;
    if (!wish->ids.n && scan[0]) {
        array->shape[array->n_dims++] = scan[0];
        array->shape[array->n_dims++] = scan[1];
    } else {
        array->shape[array->n_dims++] = course->n;
    }
}

/* Positions that were not acquired have a place in the results, too, behind the others of each row. */
static int pad(struct course *course, size_t n_rows, size_t each_bytes)
{
    struct cli_array *array = &course->array;
    if (!course->by_scan || !course->info->not_acquired)
        return CLI_DONE;
    course->padded =
        cli_scan_pad(array->values, n_rows, course->n, cli_scan_positions(course->info), each_bytes,
                     array->dtype[0] == 'f');
    array->values = course->padded;
    return course->padded ? CLI_DONE : cli_failed("no memory for the results of a scan");
}

/* ---- what cannot be given -------------------------------------------------------------------------- */

static int keep_bad(struct course *course, const int32_t *status, uint64_t n)
{
    course->bad = malloc((course->n_bad ? course->n_bad : 1) * sizeof(course->bad[0]));
    if (!course->bad)
        return cli_failed("out of memory");
    uint64_t found = 0;
    for (uint64_t i = 0; i < n && found < course->n_bad; i++) {
        if (status[i])
            course->bad[found++] = frame_of(course, i);
    }
    course->n_bad = found;
    return CLI_DONE;
}

/* A mean or a centre of mass says how many; sums over one pixel say which. */
static int find_bad(struct course *course, const struct wish *wish)
{
    const struct stow_annulus one = {.inner = 0, .outer = 0.5};
    struct stow_sum_options options = {.size = sizeof(options),
                                       .annuli = &one,
                                       .n_annuli = 1,
                                       .weights = STOW_WEIGHTS_F64, /* never refused */
                                       .frames = course->frames};
    struct stow_sums *sums;
    if (!course->n_bad)
        return CLI_DONE;
    if (stow_sum(course->client, wish->name, &options, &sums))
        return cli_error(course->client);
    int rc = keep_bad(course, sums->status, sums->n_frames);
    stow_sums_free(sums);
    return rc;
}

/* ---- what is said of it ---------------------------------------------------------------------------- */

struct summary {
    double least, most, sum;
    uint64_t total; /* of u8, exactly */
    bool any, exact;
};

static struct summary summarize(const struct cli_array *array)
{
    struct summary s = {.least = INFINITY, .most = -INFINITY, .exact = array->dtype[0] == 'u'};
    uint64_t n = 1;
    for (unsigned i = 0; i < array->n_dims; i++)
        n *= array->shape[i];
    for (uint64_t i = 0; i < n; i++) {
        double value = array->dtype[0] == 'f'   ? ((const double *)array->values)[i]
                       : array->dtype[0] == 'i' ? (double)((const int64_t *)array->values)[i]
                                                : (double)((const uint64_t *)array->values)[i];
        if (!isfinite(value))
            continue;
        s.any = true;
        s.least = fmin(s.least, value);
        s.most = fmax(s.most, value);
        s.sum += value;
        if (s.exact)
            s.exact =
                !__builtin_add_overflow(s.total, ((const uint64_t *)array->values)[i], &s.total);
    }
    return s;
}

static struct json_object *number(const struct cli_array *array, double value)
{
    if (array->dtype[0] != 'f' && fabs(value) < 9e15)
        return json_object_new_int64((int64_t)value);
    return json_object_new_double(value);
}

/* Frames that belong to no position. */
static uint64_t count_apart(const struct course *course)
{
    return course->by_scan ? course->info->frames - course->n : 0;
}

static void print_json(const struct course *course, const struct wish *wish)
{
    const struct cli_array *array = &course->array;
    struct json_object *o = json_object_new_object(), *shape = json_object_new_array();
    struct json_object *bad = json_object_new_array(), *center = NULL;
    struct summary s = summarize(array);
    for (unsigned i = 0; i < array->n_dims; i++)
        json_object_array_add(shape, json_object_new_uint64(array->shape[i]));
    for (uint64_t i = 0; i < course->n_bad; i++)
        json_object_array_add(bad, json_object_new_uint64(course->bad[i]));
    if (wish->n_annuli) {
        center = json_object_new_array();
        json_object_array_add(center, json_object_new_double(wish->annuli[0].center[0]));
        json_object_array_add(center, json_object_new_double(wish->annuli[0].center[1]));
    }
    json_object_object_add(o, "shape", shape);
    json_object_object_add(o, "dtype", json_object_new_string(array->dtype));
    json_object_object_add(o, "min", s.any ? number(array, s.least) : NULL);
    json_object_object_add(o, "max", s.any ? number(array, s.most) : NULL);
    json_object_object_add(o, "sum",
                           s.exact ? json_object_new_uint64(s.total) : number(array, s.sum));
    json_object_object_add(o, "flagged", json_object_new_uint64(course->n_flagged));
    json_object_object_add(o, "bad", bad);
    json_object_object_add(o, "outside_scan", json_object_new_uint64(count_apart(course)));
    json_object_object_add(o, "not_acquired",
                           json_object_new_uint64(course->by_scan ? course->info->not_acquired
                                                                  : 0));
    json_object_object_add(o, "center", center);
    json_object_object_add(o, "radius",
                           wish->find_center ? json_object_new_double(course->disk.radius) : NULL);
    if (wish->masks[0] || wish->n_annuli)
        json_object_object_add(o, "rings", json_object_new_boolean(course->by_rings));
    if (course->rings_note)
        json_object_object_add(o, "rings_note", json_object_new_string(course->rings_note));
    cli_json_print(o);
}

/* The file, then what there is to be said. */
static int finish(const struct cli *cli, struct course *course, const struct wish *wish)
{
    if (!cli_out_array(wish->out, &course->array))
        return CLI_FAILED;
    int rc = cli_name_bad(course->client, wish->name, course->bad, course->n_bad);
    if (rc)
        return rc;
    if (course->padded)
        cli_warn("%llu positions of the scan of %s were not acquired, the last ones: their values "
                 "are %s",
                 (unsigned long long)course->info->not_acquired, wish->name,
                 course->array.dtype[0] == 'f' ? "not a number" : "0");
    if (cli->json) {
        print_json(course, wish);
    } else {
        if (count_apart(course))
            printf("%llu frame%s outside the scan left out\n",
                   (unsigned long long)count_apart(course), count_apart(course) == 1 ? "" : "s");
        if (wish->find_center)
            printf("center %.3f,%.3f radius %.3f\n", course->disk.center[0], course->disk.center[1],
                   course->disk.radius);
        if (course->n_flagged)
            printf("%llu flagged pixel%s left out\n", (unsigned long long)course->n_flagged,
                   course->n_flagged == 1 ? "" : "s");
        if (course->by_rings)
            puts("answered from ring sums");
        if (course->rings_note)
            printf("no ring sums: %s\n", course->rings_note);
    }
    return course->n_bad || course->padded ? CLI_PARTLY : CLI_DONE;
}

/* ---- the three commands' own ----------------------------------------------------------------------- */

/* A mean pattern as counts, for stow_find_disk: what is negative or not finite is none. Floats may be of any size, and
 * are brought to 32 bits. */
static uint64_t *pattern_of(const struct stow_mean *mean)
{
    const double *reals = mean->sums;
    const int64_t *integers = mean->sums;
    uint64_t n = mean->detector[0] * mean->detector[1];
    uint64_t *counts = calloc(n ? n : 1, sizeof(*counts));
    double most = 0;
    for (uint64_t i = 0; mean->dtype[0] == 'f' && i < n; i++)
        most = isfinite(reals[i]) ? fmax(most, reals[i]) : most;
    for (uint64_t i = 0; counts && i < n; i++) {
        if (mean->dtype[0] == 'f')
            counts[i] = reals[i] > 0 && isfinite(reals[i])
                            ? (uint64_t)(reals[i] / most * UINT32_MAX + 0.5)
                            : 0;
        else
            counts[i] = mean->dtype[0] == 'i' && integers[i] < 0 ? 0 : (uint64_t)integers[i];
    }
    return counts;
}

static int find_center(struct course *course, struct wish *wish)
{
    struct stow_mean *mean;
    if (!wish->find_center)
        return CLI_DONE;
    if (stow_mean(course->client, wish->name, NULL, 0, &mean))
        return cli_error(course->client);
    uint64_t *pattern = pattern_of(mean);
    int rc = pattern ? stow_find_disk(pattern, mean->detector[0], mean->detector[1], &course->disk)
                     : STOW_NOMEM;
    free(pattern);
    stow_mean_free(mean);
    if (rc)
        return cli_failed(
            "no bright disk is to be found in the mean pattern of %s; give its centre: "
            "--center Y,X",
            wish->name);
    wish->center[0] = course->disk.center[0];
    wish->center[1] = course->disk.center[1];
    return CLI_DONE;
}

static int center_annuli(struct course *course, struct wish *wish)
{
    int rc = find_center(course, wish);
    for (size_t i = 0; i < wish->n_annuli; i++) {
        for (int axis = 0; axis < 2; axis++)
            wish->annuli[i].center[axis] = wish->has_center || wish->find_center
                                               ? wish->center[axis]
                                               : ((double)course->info->detector[axis] - 1) / 2;
    }
    return rc;
}

static int finish_sum(const struct cli *cli, struct course *course, const struct wish *wish,
                      const struct stow_sums *sums, bool is_signed)
{
    struct cli_array *array = &course->array;
    array->dtype = sums->dtype[0] == 'f' ? "f8" : is_signed ? "i8" : "u8";
    array->values = sums->values;
    if (sums->n_sums > 1)
        array->shape[array->n_dims++] = sums->n_sums;
    add_frame_dims(course, wish);
    course->n_flagged = sums->n_flagged;
    course->n_bad = sums->n_bad;
    course->by_rings = sums->by_rings;
    course->rings_note = *sums->rings_note ? sums->rings_note : NULL;
    int rc = keep_bad(course, sums->status, sums->n_frames);
    if (!rc)
        rc = pad(course, sums->n_sums, sizeof(uint64_t));
    return rc ? rc : finish(cli, course, wish);
}

static int run_sum(const struct cli *cli, struct course *course, struct wish *wish)
{
    struct cli_masks masks = {.n = 0};
    struct stow_sum_options options = {.size = sizeof(options),
                                       .annuli = wish->annuli,
                                       .n_annuli = wish->n_annuli,
                                       .flagged = wish->flagged,
                                       .keep_rings = wish->rings,
                                       .frames = course->frames};
    struct stow_sums *sums = NULL;
    void *packed = NULL;
    int rc = center_annuli(course, wish);
    for (size_t i = 0; !rc && i < wish->n_masks; i++)
        rc = cli_masks_read(&masks, wish->masks[i], course->info->detector,
                            MAX_SUMS - wish->n_annuli)
                 ? CLI_DONE
                 : CLI_FAILED;
    if (!rc && masks.n) {
        packed = cli_masks_pack(&masks, course->info->detector, &options.weights);
        if (!packed)
            rc = cli_failed("no memory for masks");
    }
    options.masks = packed;
    options.n_masks = masks.n;
    if (!rc && stow_sum(course->client, wish->name, &options, &sums))
        rc = cli_error(course->client);
    if (!rc)
        rc = finish_sum(cli, course, wish, sums, masks.negative || course->info->dtype[0] == 'i');
    stow_sums_free(sums);
    free(packed);
    cli_masks_free(&masks);
    return rc;
}

static double mean_at(const struct stow_mean *mean, uint64_t i)
{
    double sum = mean->dtype[0] == 'f'   ? ((const double *)mean->sums)[i]
                 : mean->dtype[0] == 'i' ? (double)((const int64_t *)mean->sums)[i]
                                         : (double)((const uint64_t *)mean->sums)[i];
    return sum / (double)mean->n_frames;
}

static int run_mean(const struct cli *cli, struct course *course, struct wish *wish)
{
    struct stow_mean *mean;
    struct cli_array *array = &course->array;
    if (stow_mean(course->client, wish->name, &course->frames, wish->flagged, &mean))
        return cli_error(course->client);
    uint64_t n = mean->detector[0] * mean->detector[1];
    double *means = wish->exact ? NULL : malloc(n * sizeof(*means) + 1);
    *array = (struct cli_array){.dtype = wish->exact ? mean->dtype : "f8",
                                .values = wish->exact ? mean->sums : means,
                                .shape = {mean->detector[0], mean->detector[1]},
                                .n_dims = 2};
    for (uint64_t i = 0; means && i < n; i++)
        means[i] = mean_at(mean, i);
    course->n_flagged = mean->n_flagged;
    course->n_bad = mean->n_bad;
    int rc = array->values ? find_bad(course, wish) : cli_failed("no memory for a mean pattern");
    if (!rc)
        rc = finish(cli, course, wish);
    free(means);
    stow_mean_free(mean);
    return rc;
}

static int run_com(const struct cli *cli, struct course *course, struct wish *wish)
{
    struct stow_com *com;
    if (stow_com(course->client, wish->name, &course->frames, wish->flagged, &com))
        return cli_error(course->client);
    course->array = (struct cli_array){.dtype = "f8", .values = com->centers};
    add_frame_dims(course, wish);
    course->array.shape[course->array.n_dims++] = 2;
    course->n_flagged = com->n_flagged;
    course->n_bad = com->n_bad;
    int rc = find_bad(course, wish);
    if (!rc)
        rc = pad(course, 1, 2 * sizeof(double));
    if (!rc)
        rc = finish(cli, course, wish);
    stow_com_free(com);
    return rc;
}

/* ---- options --------------------------------------------------------------------------------------- */

typedef int (*run_fn)(const struct cli *cli, struct course *course, struct wish *wish);

static int run(const struct cli *cli, struct wish *wish, run_fn command)
{
    struct course course = {.client = NULL};
    int rc = CLI_DONE;
    course.client = cli_connect(cli, &rc);
    if (!course.client)
        return rc;
    rc = stow_info(course.client, wish->name, &course.info) ? cli_error(course.client)
                                                            : choose_frames(&course, wish);
    if (!rc)
        rc = command(cli, &course, wish);
    free(course.bad);
    free(course.list);
    free(course.padded);
    stow_info_free(course.info);
    stow_close(course.client);
    return rc;
}

/* Two numbers with a comma between. */
static bool take_pair(const char *text, double pair[2])
{
    char *end;
    pair[0] = strtod(text, &end);
    if (end == text || *end != ',')
        return false;
    text = end + 1;
    pair[1] = strtod(text, &end);
    return end != text && !*end && isfinite(pair[0]) && isfinite(pair[1]);
}

static bool take_annulus(struct wish *wish, const char *text)
{
    double radii[2];
    if (!take_pair(text, radii) || radii[0] < 0 || radii[1] <= radii[0])
        return false;
    wish->annuli[wish->n_annuli++] = (struct stow_annulus){.inner = radii[0], .outer = radii[1]};
    return true;
}

enum { MASK = 'A', ANNULUS, CENTER, FLAGGED, FRAMES, OUT, SUM, RINGS };

static int take_option(const struct cli *cli, int option, struct wish *wish)
{
    static const char *const wanted[] = {
        [MASK - MASK] = "a file",
        [ANNULUS - MASK] = "two radii in pixels, INNER,OUTER, the inner one the smaller",
        [CENTER - MASK] = "auto, or a row and a column, Y,X",
        [FRAMES - MASK] = "ids such as 0,5,7-9",
        [OUT - MASK] = "a file that ends in .npy or .png",
    };
    bool picture, ok = true;
    if ((option == MASK || option == ANNULUS) && wish->n_masks + wish->n_annuli == MAX_SUMS)
        return cli_usage(cli, "at most %u masks and annuli go at once", MAX_SUMS);
    switch (option) {
    case MASK: wish->masks[wish->n_masks++] = optarg; break;
    case ANNULUS: ok = take_annulus(wish, optarg); break;
    case CENTER:
        wish->find_center = strcmp(optarg, "auto") == 0;
        wish->has_center = !wish->find_center;
        ok = wish->find_center || take_pair(optarg, wish->center);
        break;
    case FLAGGED: wish->flagged = true; break;
    case FRAMES:
        cli_ids_free(&wish->ids);
        ok = cli_ids_parse(optarg, &wish->ids);
        break;
    case SUM: wish->exact = true; break;
    case RINGS: wish->rings = true; break;
    default: wish->out = optarg; ok = cli_out_known(optarg, &picture);
    }
    return ok ? CLI_DONE : cli_usage(cli, "%s is not %s", optarg, wanted[option - MASK]);
}

static int parse(struct cli *cli, int argc, char **argv, const struct option *options,
                 struct wish *wish)
{
    int rc = CLI_DONE, c;
    while ((c = cli_option(cli, argc, argv, options, &rc)) >= 0) {
        rc = take_option(cli, c, wish);
        if (rc)
            return rc;
    }
    if (c == CLI_STOP || !cli_arguments(cli, argc, 1, 1, &rc))
        return rc ? rc : -1; /* --help: done */
    wish->name = argv[optind];
    return wish->out ? CLI_DONE : cli_usage(cli, "--out FILE is missing");
}

#define COMMON_OPTIONS                                           \
    CLI_GLOBAL_OPTIONS, {"flagged", no_argument, NULL, FLAGGED}, \
        {"frames", required_argument, NULL, FRAMES},             \
    {                                                            \
        "out", required_argument, NULL, OUT                      \
    }

int cli_sum(struct cli *cli, int argc, char **argv)
{
    static const struct option options[] = {COMMON_OPTIONS,
                                            {"mask", required_argument, NULL, MASK},
                                            {"annulus", required_argument, NULL, ANNULUS},
                                            {"center", required_argument, NULL, CENTER},
                                            {"rings", no_argument, NULL, RINGS},
                                            {0}};
    struct wish wish = {.name = NULL};
    int rc = parse(cli, argc, argv, options, &wish);
    if (!rc && !wish.n_masks && !wish.n_annuli)
        rc = cli_usage(cli, "--mask FILE.npy or --annulus INNER,OUTER is missing");
    if (!rc && (wish.has_center || wish.find_center) && !wish.n_annuli)
        rc = cli_usage(cli, "--center is that of --annulus, and there is none");
    if (!rc && wish.rings && !wish.n_annuli)
        rc = cli_usage(cli, "--rings are those of --annulus, and there is none");
    if (!rc)
        rc = run(cli, &wish, run_sum);
    cli_ids_free(&wish.ids);
    return rc < 0 ? CLI_DONE : rc;
}

int cli_mean(struct cli *cli, int argc, char **argv)
{
    static const struct option options[] = {COMMON_OPTIONS, {"sum", no_argument, NULL, SUM}, {0}};
    struct wish wish = {.name = NULL};
    int rc = parse(cli, argc, argv, options, &wish);
    if (!rc)
        rc = run(cli, &wish, run_mean);
    cli_ids_free(&wish.ids);
    return rc < 0 ? CLI_DONE : rc;
}

int cli_com(struct cli *cli, int argc, char **argv)
{
    static const struct option options[] = {COMMON_OPTIONS, {0}};
    struct wish wish = {.name = NULL};
    bool picture;
    int rc = parse(cli, argc, argv, options, &wish);
    if (!rc && cli_out_known(wish.out, &picture) && picture)
        rc = cli_usage(cli, "centres of mass are written as .npy: --out FILE.npy");
    if (!rc)
        rc = run(cli, &wish, run_com);
    cli_ids_free(&wish.ids);
    return rc < 0 ? CLI_DONE : rc;
}
