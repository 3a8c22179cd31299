/* SPDX-License-Identifier: Apache-2.0
 *
 * framestowd: keeps acquisitions encoded on a device and serves frames to local programs. Exit status: 0
 * after SIGTERM or SIGINT, 1 when it cannot start or a device was lost, 2 for a usage error. */
#include "server.h"

#define LOG_MODULE "main"
#include "log.h"

#include <signal.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    static struct server server; /* with its loop, too large for the stack */
    struct config config;
    struct stow_error err;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* where files may not grow so far, one request fails */
    int rc = config_parse(&config, argc, argv, &err);
    if (rc) {
        config_fini(&config);
        if (rc > 0)
            return EXIT_SUCCESS;
        LOG_ERR("%s", err.text);
        return 2;
    }
    rc = server_open(&server, &config, &err);
    if (rc) {
        config_fini(&config);
        LOG_ERR("%s", err.text);
        return rc == STOW_INVALID ? 2 : EXIT_FAILURE;
    }
    rc = server_run(&server);
    server_close(&server);
    config_fini(&config);
    return rc ? EXIT_FAILURE : EXIT_SUCCESS;
}
