/* SPDX-License-Identifier: Apache-2.0
 *
 * cli_load: `framestow load`. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BAR 30

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int cli_draw(void *data, const struct stow_progress *p)
{
    char bar[BAR + 1], have[CLI_SIZE_TEXT], all[CLI_SIZE_TEXT];
    bool *drawn = data;
    *drawn = true;
    if (p->total_frames == 0) {
        fputs("\r\033[Kreading the index ...", stderr);
        return 0;
    }
    double part = p->total_bytes ? (double)p->bytes / (double)p->total_bytes
                                 : (double)p->frames / (double)p->total_frames;
    int full = part >= 1 ? BAR : (int)(part * BAR);
    memset(bar, '.', BAR);
    memset(bar, '#', (size_t)full);
    bar[BAR] = 0;
    fprintf(stderr, "\r\033[K[%s] %3.0f %%  %s of %s", bar, part >= 1 ? 100.0 : part * 100,
            cli_size(have, p->bytes), cli_size(all, p->total_bytes));
    if (p->seconds_left >= 0)
        fprintf(stderr, "  %.0f s left", p->seconds_left);
    return 0;
}

static void print_line(const struct stow_info *info, double took)
{
    char logical[CLI_SIZE_TEXT], resident[CLI_SIZE_TEXT];
    cli_print(stdout, info->name);
    printf(": %llu frames of %llux%llu %s", (unsigned long long)info->frames,
           (unsigned long long)info->detector[0], (unsigned long long)info->detector[1],
           info->dtype);
    if (info->scan[0])
        printf(", scan %llux%llu", (unsigned long long)info->scan[0],
               (unsigned long long)info->scan[1]);
    printf(", %s on %s, %s in %s, %.2f s\n", info->state, info->device,
           cli_size(logical, info->logical_bytes), cli_size(resident, info->resident_bytes), took);
}

static bool share_of(const char *text, enum stow_share *share)
{
    static const char *const names[] = {"user", "group", "all"};
    for (int i = 0; i < 3; i++) {
        if (strcmp(text, names[i]) == 0) {
            *share = (enum stow_share)i;
            return true;
        }
    }
    return false;
}

enum { NAME = 'A', REPLACE, SHARE, DEVICE, DATASET, SCAN, GAPS, FORM, SKIP, OFFSET, STREAMS };

/* One option into *o. CLI_DONE, or how the command ends. */
static int take_option(const struct cli *cli, int option, struct stow_load_options *o)
{
    switch (option) {
    case NAME: o->name = optarg; break;
    case REPLACE: o->replace = 1; break;
    case DEVICE: o->device = optarg; break;
    case DATASET: o->dataset = optarg; break;
    case GAPS: o->allow_gaps = 1; break;
    case SHARE:
        if (!share_of(optarg, &o->share))
            return cli_usage(cli, "--share %s: user, group or all", optarg);
        break;
    case SCAN:
        if (!cli_pair(optarg, 'x', o->scan) || o->scan[0] == 0 || o->scan[1] == 0)
            return cli_usage(cli, "--scan %s: rows x columns, as 64x64", optarg);
        break;
    case FORM:
        if (strcmp(optarg, "auto") != 0 && strcmp(optarg, "counts") != 0 &&
            strcmp(optarg, "bslz4") != 0 && strcmp(optarg, "raw") != 0)
            return cli_usage(cli, "--form %s: auto, counts, bslz4 or raw", optarg);
        o->form = optarg;
        break;
    case SKIP:
        if (!cli_number(optarg, INT64_MAX, &o->skip_per_line))
            return cli_usage(cli, "--skip-per-line %s: a number of frames, 0 or more", optarg);
        break;
    case OFFSET:
        if (!cli_number(optarg, INT64_MAX, &o->offset))
            return cli_usage(cli, "--offset %s: a number of frames, 0 or more", optarg);
        break;
    default:
        if (optarg[0] < '1' || optarg[0] > '8' || optarg[1])
            return cli_usage(cli, "--streams %s: a number from 1 to 8", optarg);
        o->streams = (unsigned)(optarg[0] - '0');
    }
    return CLI_DONE;
}

static int load(const struct cli *cli, const char *path, struct stow_load_options *options)
{
    bool drawn = false;
    int exit_code = CLI_DONE;
    double begin = seconds();
    struct stow_client *client = cli_connect(cli, &exit_code);
    struct stow_info *info = NULL;
    if (!client)
        return exit_code;
    if (isatty(STDERR_FILENO)) {
        options->progress = cli_draw;
        options->progress_data = &drawn;
    }
    int rc = stow_load(client, path, options, &info);
    if (drawn)
        fputs("\r\033[K", stderr);
    if (rc) {
        exit_code = cli_error(client);
    } else {
        for (size_t i = 0; i < info->n_warnings; i++)
            cli_warn("%s", info->warnings[i]);
        if (info->forms[STOW_FORM_BAD])
            cli_warn("%llu frames cannot be given; framestow frames NAME says which and why",
                     (unsigned long long)info->forms[STOW_FORM_BAD]);
        if (cli->json)
            cli_json_print(cli_json_info(info));
        else
            print_line(info, seconds() - begin);
    }
    stow_info_free(info);
    stow_close(client);
    return exit_code;
}

int cli_load(struct cli *cli, int argc, char **argv)
{
    static const struct option options[] = {CLI_GLOBAL_OPTIONS,
                                            {"name", required_argument, NULL, NAME},
                                            {"replace", no_argument, NULL, REPLACE},
                                            {"share", required_argument, NULL, SHARE},
                                            {"device", required_argument, NULL, DEVICE},
                                            {"dataset", required_argument, NULL, DATASET},
                                            {"scan", required_argument, NULL, SCAN},
                                            {"allow-gaps", no_argument, NULL, GAPS},
                                            {"form", required_argument, NULL, FORM},
                                            {"skip-per-line", required_argument, NULL, SKIP},
                                            {"offset", required_argument, NULL, OFFSET},
                                            {"streams", required_argument, NULL, STREAMS},
                                            {0}};
    struct stow_load_options o = {.size = sizeof(o)};
    int exit_code = CLI_DONE, c;
    while ((c = cli_option(cli, argc, argv, options, &exit_code)) >= 0) {
        exit_code = take_option(cli, c, &o);
        if (exit_code)
            return exit_code;
    }
    if (c == CLI_STOP || !cli_arguments(cli, argc, 1, 1, &exit_code))
        return exit_code;
    if ((o.skip_per_line || o.offset) && !o.scan[0])
        return cli_usage(cli,
                         "--skip-per-line and --offset say how the frames of a scan follow each "
                         "other: give its shape too, --scan YxX");
    if (o.name && !o.name[0])
        return cli_usage(cli, "--name: a name has at least one character");
    return load(cli, argv[optind], &o);
}
