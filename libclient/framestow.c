/* SPDX-License-Identifier: Apache-2.0
 *
 * framestow: the command line. This file finds the command and holds what all of them share;
 * each command is in a cli_*.c of its own. */
#include "cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const struct cli_command commands[] = {
    {"load",
     "FILE|FILE.stow [--name NAME] [--replace] [--share user|group|all] [--device cuda:N|host]\n"
     "           [--dataset PATH] [--scan YxX] [--allow-gaps] [--form auto|counts|bslz4|raw]\n"
     "           [--streams N]",
     "have an acquisition in the daemon's memory, and wait until it is", cli_load},
    {"ls", "", "what is loaded", cli_ls},
    {"info", "NAME", "all that is known of one acquisition", cli_info},
    {"unload", "NAME", "drop a name; the memory goes with its last stream", cli_unload},
    {"frames",
     "NAME [IDS | --at Y,X | --region Y0:Y1,X0:X1] [--out FILE.npy|FILE.png] [--digest] "
     "[--skip-bad]\n"
     "           [--batch N] [--slots N] [--order scan|shuffled] [--seed N] [--spin-us N]\n"
     "           [--memory auto|host-fd|cuda-ipc|cuda-fd]\n"
     "           [--mask-correction none|zero|median] [--crop Y,X,HxW] [--bin N] [--sqrt] [--dtype "
     "T]\n"
     "           [--pad YxX] [--fftshift]",
     "decoded frames: their SHA-256, a .npy, a picture of one, or how fast they come.\n"
     "             IDS: all (default), or a list such as 0,5,7-9, in that order. A .png is 8-bit "
     "grey,\n"
     "             scaled linearly from the least to the largest count; pixels at the type's "
     "maximum\n"
     "             (flagged) are left out of that and drawn white. Where asked for, each frame is "
     "corrected,\n"
     "             cropped, binned, turned into roots or another dtype, padded and shifted, in "
     "this "
     "order;\n"
     "             a frame that does not fit the dtype is named, like one that cannot be given. A "
     "region\n"
     "             is rows Y0 to Y1-1 and columns X0 to X1-1 of the scan",
     cli_frames},
    {"save", "NAME FILE.stow [--force] [--sha256]",
     "write an acquisition to a file that loads in a fraction of the time. It is there whole or "
     "not at\n"
     "             all, and no file is ever replaced. One larger than its source is written with\n"
     "             --force only; --sha256 keeps a hash of each source file in it",
     cli_save},
    {"verify", "NAME", "read the source again and compare every count", cli_verify},
    {"sum",
     "NAME (--mask FILE.npy | --annulus INNER,OUTER)... [--center Y,X|auto] [--flagged]\n"
     "           [--frames IDS] [--rings] --out FILE.npy|FILE.png",
     "virtual images: for each frame the sum of weight * count over the detector.\n"
     "             A mask is an array of weights of the detector's shape, bool, integer or float, "
     "or a\n"
     "             stack of these; an annulus is INNER <= r < OUTER pixels about the detector's "
     "middle,\n"
     "             a given centre, or (auto) that of the bright disk. Several give an array more "
     "of\n"
     "             axes, masks first. uint64; int64 where a weight is negative, float64 where one "
     "is no\n"
     "             whole number. Pixels that the file flags are left out unless --flagged. --rings "
     "keeps\n"
     "             sums over 1-pixel rings about the centre, from which annuli of whole radii "
     "about it "
     "are\n"
     "             answered at once from then on, with the same numbers",
     cli_sum},
    {"mean", "NAME [--sum] [--flagged] [--frames IDS] --out FILE.npy|FILE.png",
     "the mean diffraction pattern, or the sum of each pixel over frames", cli_mean},
    {"com", "NAME [--flagged] [--frames IDS] --out FILE.npy",
     "the centre of mass of each frame, row and column; NaN where it has no counts", cli_com},
    {"mask", "NAME [--out FILE.npy]",
     "which pixels the file flags: 1 where its pixel_mask is not 0", cli_mask},
    {"stats", "[--prometheus]", "the daemon's figures", cli_stats},
    {"doctor", "", "what works here, and what does not and why", cli_doctor},
    {"version", "", "the version of this program", cli_version},
};
#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

/* ---- saying things --------------------------------------------------------------------------- */

static void say(const char *before, const char *format, va_list args)
    __attribute__((format(printf, 2, 0), nonnull(1, 2)));

static void say(const char *before, const char *format, va_list args)
{
    char text[1024];
    vsnprintf(text, sizeof(text), format, args);
    fputs(before, stderr);
    cli_print(stderr, text);
    fputc('\n', stderr);
}

int cli_failed(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say("framestow: ", format, args);
    va_end(args);
    return CLI_FAILED;
}

void cli_warn(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say("framestow: warning: ", format, args);
    va_end(args);
}

int cli_usage(const struct cli *cli, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say("framestow: ", format, args);
    va_end(args);
    if (cli->command)
        fprintf(stderr, "usage: framestow [--socket PATH] [--json] %s %s\n", cli->command->name,
                cli->command->arguments);
    else
        fputs("framestow --help lists the commands\n", stderr);
    return CLI_USAGE;
}

static void help(const struct cli *cli)
{
    if (cli->command) {
        printf("framestow %s %s\n    %s\n", cli->command->name, cli->command->arguments,
               cli->command->help);
        return;
    }
    puts("framestow [--socket PATH] [--json] COMMAND ...\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        printf("  %-10s %s\n", commands[i].name, commands[i].help);
    puts(
        "\nframestow COMMAND --help tells a command's options.\n"
        "The socket: --socket, else $FRAMESTOW_SOCKET, else /run/framestow/framestow.sock where it "
        "exists,\n"
        "else $XDG_RUNTIME_DIR/framestow.sock.\n"
        "Exit: 0 done; 1 refused or failed; 2 usage; 3 no daemon, no permission, or it went away;\n"
        "4 done but for the frames named.");
}

/* ---- options --------------------------------------------------------------------------------- */

int cli_option(struct cli *cli, int argc, char **argv, const struct option *options, int *exit)
{
    for (;;) {
        opterr = 0;
        optopt = 0;
        int c = getopt_long(argc, argv, cli->command ? ":" : "+:", options, NULL);
        switch (c) {
        case CLI_OPTION_SOCKET: cli->socket = optarg; continue;
        case CLI_OPTION_JSON: cli->json = true; continue;
        case CLI_OPTION_HELP:
            help(cli);
            *exit = CLI_DONE;
            return CLI_STOP;
        case '?':
            *exit = optopt ? cli_usage(cli, "no such option, or one without a value: -%c", optopt)
                           : cli_usage(cli, "no such option, or not a unique one: %s",
                                       argv[optind - 1]);
            return CLI_STOP;
        case ':': *exit = cli_usage(cli, "%s needs a value", argv[optind - 1]); return CLI_STOP;
        default: return c;
        }
    }
}

bool cli_arguments(const struct cli *cli, int argc, int min, int max, int *exit)
{
    int n = argc - optind;
    if (n >= min && n <= max)
        return true;
    *exit = cli_usage(cli, n < min ? "%s: an argument is missing" : "%s: too many arguments",
                      cli->command->name);
    return false;
}

bool cli_number(const char *text, uint64_t max, uint64_t *number)
{
    char *end;
    if (text[0] < '0' || text[0] > '9')
        return false;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno || *end || value > max)
        return false;
    *number = value;
    return true;
}

bool cli_pair(const char *text, char between, uint64_t pair[2])
{
    char first[32];
    const char *at = strchr(text, between);
    if (!at || (size_t)(at - text) >= sizeof(first))
        return false;
    memcpy(first, text, (size_t)(at - text));
    first[at - text] = 0;
    return cli_number(first, UINT64_MAX, &pair[0]) && cli_number(at + 1, UINT64_MAX, &pair[1]);
}

/* ---- the connection -------------------------------------------------------------------------- */

struct stow_client *cli_connect(const struct cli *cli, int *exit)
{
    struct stow_error err;
    struct stow_client *client = stow_connect(cli->socket, &err);
    if (client)
        return client;
    cli_failed("%s", err.text);
    *exit = err.code == STOW_INVALID ? CLI_USAGE : err.code == STOW_VERSION ? CLI_FAILED : CLI_AWAY;
    return NULL;
}

int cli_error(const struct stow_client *client)
{
    const struct stow_error *err = stow_last_error(client);
    cli_failed("%s", err->text);
    return err->code == STOW_GONE || err->code == STOW_SHUTDOWN ? CLI_AWAY : CLI_FAILED;
}

static const struct cli_command *find(const char *name)
{
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    }
    return NULL;
}

int main(int argc, char **argv)
{
    static const struct option globals[] = {CLI_GLOBAL_OPTIONS,
                                            {"version", no_argument, NULL, 'V'},
                                            {0}};
    struct cli cli = {.socket = NULL};
    int exit_code = CLI_DONE, c;
    while ((c = cli_option(&cli, argc, argv, globals, &exit_code)) == 'V')
        return cli_version(&cli, 1, argv);
    if (c == CLI_STOP)
        return exit_code;
    if (optind >= argc)
        return cli_usage(&cli, "a command is missing");
    argc -= optind;
    argv += optind;
    cli.command = find(argv[0]);
    if (!cli.command)
        return cli_usage(&cli, "no such command: %s", argv[0]);
    optind = 0; /* getopt_long begins anew */
    exit_code = cli.command->run(&cli, argc, argv);
    if (fflush(stdout) || ferror(stdout))
        return cli_failed("writing to standard output: %s", strerror(errno));
    return exit_code;
}
