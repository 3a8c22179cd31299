/* SPDX-License-Identifier: Apache-2.0
 *
 * config: what framestowd was told on its command line. */
#ifndef STOW_CONFIG_H
#define STOW_CONFIG_H

#include "error.h"

#include <stddef.h>
#include <stdint.h>

#define CONFIG_MAX_DEVICES 16

struct config {
    const char *devices[CONFIG_MAX_DEVICES]; /* auto, host, cuda:N */
    size_t n_devices;
    char *device_list;     /* what devices point into */
    const char *socket;    /* NULL: the default */
    const char *state_dir; /* NULL: none */
    const char *reader;    /* NULL: found beside the program */
    uint64_t max_bytes;    /* of each device; 0: half of it */
    uint64_t
        ring_bytes;   /* of tables of ring sums; UINT64_MAX: a sixteenth of the machine's memory */
    unsigned threads; /* 0: one a core */
};

/* Returns 1 when all was said (--help, --version: exit 0), STOW_INVALID with the reason for a usage error. */
int config_parse(struct config *config, int argc, char **argv, struct stow_error *err);
void config_fini(struct config *config);

/* "64M" and the like: K, M, G, T are powers of 1024. */
int config_size(const char *text, uint64_t *bytes);

#endif
