/* SPDX-License-Identifier: Apache-2.0
 *
 * cli_show: the commands that ask one thing and print it: ls, info, unload, stats, version. */
#include "cli.h"

#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>

static const struct option no_options[] = {CLI_GLOBAL_OPTIONS, {0}};

/* Options and arguments of a command without options of its own, and a connection; NULL: end
 * with *exit. */
static struct stow_client *begin(struct cli *cli, int argc, char **argv, int arguments, int *exit)
{
    if (cli_option(cli, argc, argv, no_options, exit) == CLI_STOP ||
        !cli_arguments(cli, argc, arguments, arguments, exit))
        return NULL;
    return cli_connect(cli, exit);
}

/* ---- ls -------------------------------------------------------------------------------------- */

static void print_pair(char *text, size_t room, const uint64_t pair[2])
{
    if (pair[0])
        snprintf(text, room, "%llux%llu", (unsigned long long)pair[0], (unsigned long long)pair[1]);
    else
        snprintf(text, room, "-");
}

static void print_table(struct stow_info *const *list, size_t n)
{
    size_t width = 4;
    for (size_t i = 0; i < n; i++) {
        char *name = cli_clean(list[i]->name, true);
        width = strlen(name) > width ? strlen(name) : width;
        free(name);
    }
    if (n)
        printf("%-*s %10s %12s %12s %5s %-9s %12s\n", (int)width, "NAME", "FRAMES", "SCAN",
               "DETECTOR", "DTYPE", "STATE", "RESIDENT");
    for (size_t i = 0; i < n; i++) {
        char scan[48], detector[48], size[CLI_SIZE_TEXT], *name = cli_clean(list[i]->name, true);
        print_pair(scan, sizeof(scan), list[i]->scan);
        print_pair(detector, sizeof(detector), list[i]->detector);
        printf("%-*s %10llu %12s %12s %5s %-9s %12s\n", (int)width, name,
               (unsigned long long)list[i]->frames, scan, detector, list[i]->dtype, list[i]->state,
               cli_size(size, list[i]->resident_bytes));
        free(name);
    }
}

int cli_ls(struct cli *cli, int argc, char **argv)
{
    int exit_code = CLI_DONE;
    struct stow_info **list = NULL;
    size_t n = 0;
    struct stow_client *client = begin(cli, argc, argv, 0, &exit_code);
    if (!client)
        return exit_code;
    if (stow_list(client, &list, &n)) {
        exit_code = cli_error(client);
    } else if (cli->json) {
        struct json_object *array = json_object_new_array();
        for (size_t i = 0; i < n; i++)
            json_object_array_add(array, cli_json_info(list[i]));
        cli_json_print(array);
    } else {
        print_table(list, n);
    }
    stow_list_free(list, n);
    stow_close(client);
    return exit_code;
}

/* ---- info ------------------------------------------------------------------------------------ */

static void print_named(const char *name, const char *text)
{
    printf("%-10s ", name);
    cli_print(stdout, text);
    putchar('\n');
}

static void print_sizes(const struct stow_info *info)
{
    char logical[CLI_SIZE_TEXT], source[CLI_SIZE_TEXT], resident[CLI_SIZE_TEXT];
    printf("%-10s %s decoded, %s in the files, %s resident\n", "bytes",
           cli_size(logical, info->logical_bytes), cli_size(source, info->source_bytes),
           cli_size(resident, info->resident_bytes));
    printf("%-10s counts %llu, bslz4 %llu, raw %llu, fill %llu, bad %llu\n", "forms",
           (unsigned long long)info->forms[STOW_FORM_COUNTS],
           (unsigned long long)info->forms[STOW_FORM_BSLZ4],
           (unsigned long long)info->forms[STOW_FORM_RAW],
           (unsigned long long)info->forms[STOW_FORM_FILL],
           (unsigned long long)info->forms[STOW_FORM_BAD]);
}

static void print_rings(const struct stow_info *info)
{
    char bytes[CLI_SIZE_TEXT];
    for (size_t i = 0; i < info->n_rings; i++)
        printf("%-10s about %.3f,%.3f%s, %s\n", i ? "" : "rings", info->rings[i].center[0],
               info->rings[i].center[1], info->rings[i].flagged ? " with flagged pixels" : "",
               cli_size(bytes, info->rings[i].bytes));
}

static void print_info(const struct stow_info *info)
{
    static const char *const shares[] = {"user", "group", "all"};
    char pair[48];
    print_named("name", info->name);
    printf("%-10s %llu\n%-10s %s on %s\n", "id", (unsigned long long)info->id, "state", info->state,
           info->device);
    printf("%-10s %llu", "frames", (unsigned long long)info->frames);
    if (info->expected >= 0)
        printf(" of %lld expected", (long long)info->expected);
    print_pair(pair, sizeof(pair), info->scan);
    printf("\n%-10s %s", "scan", info->scan[0] ? pair : "flat");
    if (info->skip_per_line)
        printf(", %llu skipped after each line", (unsigned long long)info->skip_per_line);
    if (info->offset)
        printf(", %llu before it", (unsigned long long)info->offset);
    putchar('\n');
    print_pair(pair, sizeof(pair), info->detector);
    printf("%-10s %s %s\n", "detector", pair, info->dtype);
    print_sizes(info);
    printf("%-10s uid %llu, shared with %s\n", "owner", (unsigned long long)info->owner_uid,
           shares[info->share]);
    for (size_t i = 0; i < info->n_sources; i++)
        print_named(i ? "" : "sources", info->sources[i]);
    for (size_t i = 0; i < info->n_warnings; i++)
        print_named(i ? "" : "warnings", info->warnings[i]);
    for (size_t i = 0; i < info->n_timings; i++)
        printf("%-10s %s %.1f ms\n", i ? "" : "timings", info->timings[i].stage,
               info->timings[i].ms);
    print_rings(info);
}

int cli_info(struct cli *cli, int argc, char **argv)
{
    int exit_code = CLI_DONE;
    struct stow_info *info = NULL;
    struct stow_client *client = begin(cli, argc, argv, 1, &exit_code);
    if (!client)
        return exit_code;
    if (stow_info(client, argv[optind], &info))
        exit_code = cli_error(client);
    else if (cli->json)
        cli_json_print(cli_json_info(info));
    else
        print_info(info);
    stow_info_free(info);
    stow_close(client);
    return exit_code;
}

int cli_unload(struct cli *cli, int argc, char **argv)
{
    int exit_code = CLI_DONE;
    struct stow_client *client = begin(cli, argc, argv, 1, &exit_code);
    if (!client)
        return exit_code;
    if (stow_unload(client, argv[optind]))
        exit_code = cli_error(client);
    stow_close(client);
    return exit_code;
}

/* ---- stats ----------------------------------------------------------------------------------- */

static void print_stats(const struct cli *cli, const struct stow_stat *stats, size_t n,
                        bool prometheus)
{
    struct json_object *object = cli->json ? json_object_new_object() : NULL;
    for (size_t i = 0; i < n; i++) {
        const struct stow_stat *s = &stats[i];
        if (object)
            json_object_object_add(object, s->name, json_object_new_uint64(s->value));
        else if (prometheus)
            printf("# HELP framestow_%s %s (%s)\n# TYPE framestow_%s untyped\nframestow_%s %llu\n",
                   s->name, s->help, s->unit, s->name, s->name, (unsigned long long)s->value);
        else
            printf("%s %llu %s\n", s->name, (unsigned long long)s->value, s->unit);
    }
    if (object)
        cli_json_print(object);
}

int cli_stats(struct cli *cli, int argc, char **argv)
{
    static const struct option options[] = {CLI_GLOBAL_OPTIONS,
                                            {"prometheus", no_argument, NULL, 'P'},
                                            {0}};
    int exit_code = CLI_DONE, c;
    bool prometheus = false;
    struct stow_stat *stats = NULL;
    size_t n = 0;
    while ((c = cli_option(cli, argc, argv, options, &exit_code)) == 'P')
        prometheus = true;
    if (c == CLI_STOP || !cli_arguments(cli, argc, 0, 0, &exit_code))
        return exit_code;
    struct stow_client *client = cli_connect(cli, &exit_code);
    if (!client)
        return exit_code;
    if (stow_stats(client, &stats, &n))
        exit_code = cli_error(client);
    else
        print_stats(cli, stats, n, prometheus);
    stow_stats_free(stats);
    stow_close(client);
    return exit_code;
}

int cli_version(struct cli *cli, int argc, char **argv)
{
    int exit_code = CLI_DONE;
    if (cli->command && (cli_option(cli, argc, argv, no_options, &exit_code) == CLI_STOP ||
                         !cli_arguments(cli, argc, 0, 0, &exit_code)))
        return exit_code;
    if (cli->json) {
        struct json_object *object = json_object_new_object();
        json_object_object_add(object, "version", json_object_new_string(stow_version()));
        cli_json_print(object);
    } else {
        printf("framestow %s\n", stow_version());
    }
    return exit_code;
}
