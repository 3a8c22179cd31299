/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_view.h"
#include "cli.h"
#include "cli_out.h"

#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>

static const char *const corrections[] = {"none", "zero", "median"};

/* ---- options ------------------------------------------------------------------------------------- */

/* The text up to `end`, cut off and put by. */
static bool cut(const char **at, char end, char *piece, size_t room)
{
    const char *to = strchr(*at, end);
    if (!to || (size_t)(to - *at) >= room)
        return false;
    memcpy(piece, *at, (size_t)(to - *at));
    piece[to - *at] = 0;
    *at = to + 1;
    return true;
}

/* Y,X,HxW */
static bool take_crop(uint64_t crop[4], const char *text)
{
    char y[24], x[24];
    return cut(&text, ',', y, sizeof(y)) && cut(&text, ',', x, sizeof(x)) &&
           cli_number(y, UINT64_MAX, &crop[0]) && cli_number(x, UINT64_MAX, &crop[1]) &&
           cli_pair(text, 'x', crop + 2) && crop[2] && crop[3];
}

/* Y0:Y1,X0:X1 */
static bool take_region(uint64_t region[4], const char *text)
{
    char rows[48];
    return cut(&text, ',', rows, sizeof(rows)) && cli_pair(rows, ':', region) &&
           cli_pair(text, ':', region + 2) && region[0] < region[1] && region[2] < region[3];
}

static bool take_bin(uint32_t *bin, const char *text)
{
    uint64_t number;
    if (!cli_number(text, UINT32_MAX, &number) || !number)
        return false;
    *bin = (uint32_t)number;
    return true;
}

static bool take_correction(enum stow_mask_correction *correction, const char *text)
{
    for (int i = 0; i < 3; i++) {
        if (strcmp(text, corrections[i]) == 0) {
            *correction = (enum stow_mask_correction)i;
            return true;
        }
    }
    return false;
}

static bool is_dtype(const char *text)
{
    static const char *const names[] = {"u1", "u2", "u4", "i1", "i2", "i4", "f4", "f2"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(text, names[i]) == 0)
            return true;
    }
    return false;
}

const char *cli_view_take(struct stow_view *view, int option, const char *text)
{
    switch (option) {
    case CLI_VIEW_SQRT: view->sqrt = 1; return NULL;
    case CLI_VIEW_FFTSHIFT: view->fftshift = 1; return NULL;
    case CLI_VIEW_DTYPE:
        view->dtype = text;
        return is_dtype(text) ? NULL : "u1, u2, u4, i1, i2, i4, f4 or f2";
    case CLI_VIEW_PAD:
        return cli_pair(text, 'x', view->pad) && view->pad[0] && view->pad[1]
                   ? NULL
                   : "rows and columns, YxX";
    case CLI_VIEW_CROP:
        return take_crop(view->crop, text)
                   ? NULL
                   : "a first row and column and a size of at least 1x1, Y,X,HxW";
    case CLI_VIEW_BIN: return take_bin(&view->bin, text) ? NULL : "a number of pixels, at least 1";
    case CLI_VIEW_REGION:
        return take_region(view->region, text)
                   ? NULL
                   : "rows and columns of the scan, Y0:Y1,X0:X1, each end past its beginning";
    default: return take_correction(&view->mask_correction, text) ? NULL : "none, zero or median";
    }
}

bool cli_view_region(const struct stow_view *view, size_t *n)
{
    const uint64_t *r = view->region;
    if (!r[1])
        return false;
    if (__builtin_mul_overflow(r[1] - r[0], r[3] - r[2], n))
        *n = SIZE_MAX;
    return true;
}

/* ---- what is said -------------------------------------------------------------------------------- */

static bool is_view(const struct stow_stream_info *info)
{
    return info->view.dtype != NULL; /* of a view that was agreed it is always told */
}

void cli_view_warn(const struct stow_stream_info *info)
{
    const struct stow_view *view = &info->view;
    if (!is_view(info))
        return;
    if (view->bin > 1 && (info->last_bin[0] != view->bin || info->last_bin[1] != view->bin))
        cli_warn(
            "%llux%llu pixels are no whole number of bins of %u: the last row of bins has %llu "
            "rows, the last column %llu columns",
            (unsigned long long)view->crop[2], (unsigned long long)view->crop[3], view->bin,
            (unsigned long long)info->last_bin[0], (unsigned long long)info->last_bin[1]);
    if (info->n_kept)
        cli_warn("%llu flagged pixels have no neighbour that is not flagged: they stay as they are",
                 (unsigned long long)info->n_kept);
    if (view->mask_correction && !info->n_kept && !info->n_flagged)
        cli_warn("none of the pixels that are shown is flagged: nothing was corrected");
}

static struct json_object *numbers(const uint64_t *from, int n)
{
    struct json_object *array = json_object_new_array();
    for (int i = 0; i < n; i++)
        json_object_array_add(array, json_object_new_uint64(from[i]));
    return array;
}

struct json_object *cli_view_json(const struct stow_stream_info *info)
{
    const struct stow_view *view = &info->view;
    if (!is_view(info))
        return NULL;
    struct json_object *o = json_object_new_object();
    json_object_object_add(o, "mask_correction",
                           json_object_new_string(corrections[view->mask_correction]));
    json_object_object_add(o, "corrected", json_object_new_uint64(info->n_flagged));
    json_object_object_add(o, "kept", json_object_new_uint64(info->n_kept));
    json_object_object_add(o, "crop", numbers(view->crop, 4));
    json_object_object_add(o, "bin", json_object_new_uint64(view->bin));
    json_object_object_add(o, "last_bin", numbers(info->last_bin, 2));
    json_object_object_add(o, "sqrt", json_object_new_boolean(view->sqrt));
    json_object_object_add(o, "dtype", json_object_new_string(view->dtype));
    json_object_object_add(o, "size", numbers(view->pad, 2));
    json_object_object_add(o, "pad_at", numbers(info->pad_at, 2));
    json_object_object_add(o, "fftshift", json_object_new_boolean(view->fftshift));
    return o;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

void cli_view_name_unfit(const char *dtype, uint64_t *ids, size_t n)
{
    if (n)
        qsort(ids, n, sizeof(ids[0]), by_value);
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && ids[end] <= ids[end - 1] + 1; end++)
            ;
        fprintf(stderr, ids[end - 1] == ids[i] ? "frame %llu" : "frames %llu-%llu",
                (unsigned long long)ids[i], (unsigned long long)ids[end - 1]);
        fprintf(stderr, ": nofit: a count does not fit %s; ask for a wider --dtype\n", dtype);
    }
}

/* ---- the mask ------------------------------------------------------------------------------------ */

enum { OUT = 'A' };

static int write_mask(const struct cli *cli, const char *path, const struct stow_mask *mask)
{
    const struct cli_array array = {.dtype = "u1",
                                    .values = mask->flags,
                                    .shape = {mask->detector[0], mask->detector[1]},
                                    .n_dims = 2};
    if (path && !cli_out_array(path, &array))
        return CLI_FAILED;
    if (cli->json) {
        struct json_object *o = json_object_new_object();
        json_object_object_add(o, "detector", numbers(mask->detector, 2));
        json_object_object_add(o, "flagged", json_object_new_uint64(mask->n_flagged));
        cli_json_print(o);
    } else {
        printf("%llu of %llux%llu pixels are flagged\n", (unsigned long long)mask->n_flagged,
               (unsigned long long)mask->detector[0], (unsigned long long)mask->detector[1]);
    }
    return CLI_DONE;
}

int cli_mask(struct cli *cli, int argc, char **argv)
{
    static const struct option options[] = {CLI_GLOBAL_OPTIONS,
                                            {"out", required_argument, NULL, OUT},
                                            {0}};
    struct stow_mask *mask = NULL;
    const char *path = NULL;
    bool picture = false;
    int rc = CLI_DONE, c;
    while ((c = cli_option(cli, argc, argv, options, &rc)) == OUT) {
        path = optarg;
        if (!cli_out_known(path, &picture) || picture)
            return cli_usage(cli, "a mask is written as .npy: --out FILE.npy");
    }
    if (c == CLI_STOP || !cli_arguments(cli, argc, 1, 1, &rc))
        return rc;
    struct stow_client *client = cli_connect(cli, &rc);
    if (!client)
        return rc;
    rc = stow_mask(client, argv[optind], &mask) ? cli_error(client) : write_mask(cli, path, mask);
    stow_mask_free(mask);
    stow_close(client);
    return rc;
}
