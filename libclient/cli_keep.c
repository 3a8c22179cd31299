/* SPDX-License-Identifier: Apache-2.0
 *
 * cli_keep: `framestow save` and `framestow verify`. */
#include "cli.h"

#include <json-c/json.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FORCE = 'A', SHA256 };

/* Nothing is known before the first progress of a save. */
static int draw_save(void *drawn, const struct stow_progress *progress)
{
    return progress->total_frames ? cli_draw(drawn, progress) : 0;
}

static void print_saved(const struct cli *cli, const char *name, const char *path)
{
    char size[CLI_SIZE_TEXT];
    struct stat st;
    uint64_t bytes = stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
    if (cli->json) {
        struct json_object *object = json_object_new_object();
        json_object_object_add(object, "name", cli_json_text(name));
        json_object_object_add(object, "path", cli_json_text(path));
        json_object_object_add(object, "bytes", json_object_new_uint64(bytes));
        cli_json_print(object);
        return;
    }
    cli_print(stdout, name);
    fputs(" is saved as ", stdout);
    cli_print(stdout, path);
    printf(", %s\n", cli_size(size, bytes));
}

int cli_save(struct cli *cli, int argc, char **argv)
{
    static const struct option options[] = {CLI_GLOBAL_OPTIONS,
                                            {"force", no_argument, NULL, FORCE},
                                            {"sha256", no_argument, NULL, SHA256},
                                            {0}};
    struct stow_save_options o = {.size = sizeof(o)};
    bool drawn = false;
    int exit_code = CLI_DONE, c;
    while ((c = cli_option(cli, argc, argv, options, &exit_code)) >= 0) {
        o.force |= c == FORCE;
        o.sha256 |= c == SHA256;
    }
    if (c == CLI_STOP || !cli_arguments(cli, argc, 2, 2, &exit_code))
        return exit_code;
    const char *name = argv[optind], *path = argv[optind + 1];
    struct stow_client *client = cli_connect(cli, &exit_code);
    if (!client)
        return exit_code;
    if (isatty(STDERR_FILENO)) {
        o.progress = draw_save;
        o.progress_data = &drawn;
    }
    int rc = stow_save(client, name, path, &o);
    if (drawn)
        fputs("\r\033[K", stderr);
    if (rc)
        exit_code = cli_error(client);
    else
        print_saved(cli, name, path);
    stow_close(client);
    return exit_code;
}

static void print_verdict(const struct cli *cli, const struct stow_verdict *v)
{
    if (cli->json) {
        struct json_object *object = json_object_new_object();
        json_object_object_add(object, "frames", json_object_new_uint64(v->frames));
        json_object_object_add(object, "values", json_object_new_uint64(v->values));
        json_object_object_add(object, "mismatches", json_object_new_uint64(v->mismatches));
        json_object_object_add(object, "first_mismatch",
                               v->mismatches ? json_object_new_uint64(v->first_mismatch) : NULL);
        json_object_object_add(object, "not_compared", json_object_new_uint64(v->not_compared));
        cli_json_print(object);
        return;
    }
    printf("%llu frames, %llu values compared, %llu mismatches", (unsigned long long)v->frames,
           (unsigned long long)v->values, (unsigned long long)v->mismatches);
    if (v->mismatches)
        printf(", the first in frame %llu", (unsigned long long)v->first_mismatch);
    putchar('\n');
}

int cli_verify(struct cli *cli, int argc, char **argv)
{
    static const struct option options[] = {CLI_GLOBAL_OPTIONS, {0}};
    struct stow_verdict verdict = {.frames = 0};
    bool drawn = false;
    int exit_code = CLI_DONE, c;
    while ((c = cli_option(cli, argc, argv, options, &exit_code)) >= 0)
        ;
    if (c == CLI_STOP || !cli_arguments(cli, argc, 1, 1, &exit_code))
        return exit_code;
    struct stow_client *client = cli_connect(cli, &exit_code);
    if (!client)
        return exit_code;
    bool draws = isatty(STDERR_FILENO);
    int rc = stow_verify(client, argv[optind], draws ? cli_draw : NULL, &drawn, &verdict);
    if (drawn)
        fputs("\r\033[K", stderr);
    if (rc) {
        exit_code = cli_error(client);
    } else {
        if (verdict.not_compared)
            cli_warn(
                "%llu frames were not compared: the source or the acquisition cannot give them",
                (unsigned long long)verdict.not_compared);
        print_verdict(cli, &verdict);
        if (verdict.mismatches)
            exit_code = cli_failed("what is loaded is not what its source holds now");
    }
    stow_close(client);
    return exit_code;
}
