/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "log.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: framestowd [OPTION]...\n"
    "Keep detector acquisitions encoded on a device and serve frames to local programs.\n"
    "\n"
    "  --device LIST      auto (default), host, cuda:N, or several: cuda:0,cuda:1\n"
    "  --socket PATH      where clients connect; default /run/framestow/framestow.sock for\n"
    "                     root, else $XDG_RUNTIME_DIR/framestow.sock\n"
    "  --max-bytes SIZE   budget of residents and rings on each device, with K, M, G, T;\n"
    "                     default half of the device's memory\n"
    "  --ring-bytes SIZE  host memory for ring sums, which answer annuli at once; default a\n"
    "                     sixteenth of this machine's, 0: none are kept\n"
    "  --state-dir DIR    folder for what is kept between runs: indexes of files, so that these\n"
    "                     load faster\n"
    "  --threads N        host worker threads; default one a core\n"
    "  --reader PATH      the framestow-reader to use\n"
    "  --log-level LEVEL  error, warn, info (default), debug\n"
    "  --help, --version\n";

int config_size(const char *text, uint64_t *bytes)
{
    static const char units[] = "KMGT";
    char *end;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || errno) /* no sign, no space before it */
        return STOW_INVALID;
    unsigned shift = 0;
    const char *unit = *end ? strchr(units, *end) : NULL;
    if (unit)
        shift = 10 * (unsigned)(unit - units + 1);
    if ((*end && !unit) || (unit && end[1]) || n > UINT64_MAX >> shift)
        return STOW_INVALID;
    *bytes = (uint64_t)n << shift;
    return 0;
}

static int parse_devices(struct config *config, const char *list, struct stow_error *err)
{
    free(config->device_list);
    config->device_list = strdup(list);
    if (!config->device_list)
        return error_set(err, STOW_NOMEM, "no memory");
    config->n_devices = 0;
    char *rest = config->device_list, *name;
    while ((name = strsep(&rest, ","))) {
        if (config->n_devices == CONFIG_MAX_DEVICES)
            return error_set(err, STOW_INVALID, "--device: more than %d devices",
                             CONFIG_MAX_DEVICES);
        for (size_t i = 0; i < config->n_devices; i++) {
            if (strcmp(config->devices[i], name) == 0)
                return error_set(err, STOW_INVALID, "--device: %s is named twice", name);
        }
        config->devices[config->n_devices++] = name;
    }
    return 0;
}

static int parse_count(const char *text, unsigned *n)
{
    uint64_t value;
    if (config_size(text, &value) || value > 4096)
        return STOW_INVALID;
    *n = (unsigned)value;
    return 0;
}

enum {
    OPT_DEVICE = 1,
    OPT_SOCKET,
    OPT_MAX_BYTES,
    OPT_RING_BYTES,
    OPT_STATE,
    OPT_THREADS,
    OPT_READER,
    OPT_LOG,
    OPT_HELP,
    OPT_VERSION
};

static const struct option options[] = {
    {"device", required_argument, NULL, OPT_DEVICE},
    {"socket", required_argument, NULL, OPT_SOCKET},
    {"max-bytes", required_argument, NULL, OPT_MAX_BYTES},
    {"ring-bytes", required_argument, NULL, OPT_RING_BYTES},
    {"state-dir", required_argument, NULL, OPT_STATE},
    {"threads", required_argument, NULL, OPT_THREADS},
    {"reader", required_argument, NULL, OPT_READER},
    {"log-level", required_argument, NULL, OPT_LOG},
    {"help", no_argument, NULL, OPT_HELP},
    {"version", no_argument, NULL, OPT_VERSION},
    {NULL, 0, NULL, 0},
};

static int apply(struct config *config, int option, const char *value, struct stow_error *err)
{
    switch (option) {
    case OPT_DEVICE: return parse_devices(config, value, err);
    case OPT_SOCKET: config->socket = value; return 0;
    case OPT_STATE: config->state_dir = value; return 0;
    case OPT_READER: config->reader = value; return 0;
    case OPT_MAX_BYTES:
        if (config_size(value, &config->max_bytes) || !config->max_bytes)
            return error_set(err, STOW_INVALID, "--max-bytes: %s is no size; write 8M or 64G",
                             value);
        return 0;
    case OPT_RING_BYTES:
        if (config_size(value, &config->ring_bytes))
            return error_set(err, STOW_INVALID, "--ring-bytes: %s is no size; write 512M or 4G",
                             value);
        return 0;
    case OPT_THREADS:
        if (parse_count(value, &config->threads))
            return error_set(err, STOW_INVALID, "--threads: %s is no number of threads", value);
        return 0;
    case OPT_LOG:
        if (!log_set_level(value))
            return error_set(err, STOW_INVALID,
                             "--log-level: %s is none of error, warn, info, debug", value);
        return 0;
    case OPT_HELP: fputs(usage, stdout); return 1;
    case OPT_VERSION: puts("framestowd " STOW_VERSION_TEXT); return 1;
    default: return error_set(err, STOW_INVALID, "see framestowd --help");
    }
}

int config_parse(struct config *config, int argc, char **argv, struct stow_error *err)
{
    *config = (struct config){.ring_bytes = UINT64_MAX};
    int rc = parse_devices(config, "auto", err), option;
    while (!rc && (option = getopt_long(argc, argv, "", options, NULL)) != -1)
        rc = apply(config, option, optarg, err);
    if (!rc && optind < argc)
        rc = error_set(err, STOW_INVALID, "%s: not an option; see framestowd --help", argv[optind]);
    return rc;
}

void config_fini(struct config *config)
{
    free(config->device_list);
}
