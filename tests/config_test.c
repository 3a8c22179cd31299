/* SPDX-License-Identifier: Apache-2.0
 *
 * config_test: what framestowd's command line may say. */
#include "config.h"

#include "test.h"

#include <getopt.h>
#include <stdbool.h>
#include <unistd.h>

static void test_sizes(void)
{
    static const struct {
        const char *text;
        int rc;
        uint64_t bytes;
    } cases[] = {
        {"0", 0, 0},
        {"1", 0, 1},
        {"4096", 0, 4096},
        {"1K", 0, 1024},
        {"64M", 0, UINT64_C(64) << 20},
        {"3G", 0, UINT64_C(3) << 30},
        {"2T", 0, UINT64_C(2) << 40},
        {"18446744073709551615", 0, UINT64_MAX},
        {"16777215T", 0, UINT64_C(16777215) << 40},
        {"16777216T", STOW_INVALID, 0},
        {"18446744073709551616", STOW_INVALID, 0},
        {"99999999999999999999K", STOW_INVALID, 0},
        {"", STOW_INVALID, 0},
        {"K", STOW_INVALID, 0},
        {"-1", STOW_INVALID, 0},
        {" -1", STOW_INVALID, 0},
        {" 1", STOW_INVALID, 0},
        {"+1", STOW_INVALID, 0},
        {"1 K", STOW_INVALID, 0},
        {"1KB", STOW_INVALID, 0},
        {"1KK", STOW_INVALID, 0},
        {"1P", STOW_INVALID, 0},
        {"1.5G", STOW_INVALID, 0},
        {"0x10", STOW_INVALID, 0},
        {"ten", STOW_INVALID, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t bytes = 77;
        int rc = config_size(cases[i].text, &bytes);
        CHECK_MSG(rc == cases[i].rc, "\"%s\" gave %d", cases[i].text, rc);
        CHECK_MSG(bytes == (rc ? 77 : cases[i].bytes), "\"%s\" is %llu", cases[i].text,
                  (unsigned long long)bytes);
    }
}

#define MAX_ARGS 8

static int parse(struct config *config, const char *const *args, struct stow_error *err)
{
    char *argv[MAX_ARGS + 2] = {"framestowd"};
    int argc = 1;
    while (args[argc - 1]) {
        argv[argc] = (char *)args[argc - 1];
        argc++;
    }
    optind = 0; /* glibc: begin anew */
    opterr = 0;
    return config_parse(config, argc, argv, err);
}

static void test_good(void)
{
    struct config config;
    struct stow_error err;
    CHECK_INT(parse(&config, (const char *[]){NULL}, &err), 0);
    CHECK_INT(config.n_devices, 1);
    CHECK(strcmp(config.devices[0], "auto") == 0);
    CHECK(!config.socket && !config.reader && !config.state_dir && !config.max_bytes &&
          !config.threads);
    config_fini(&config);

    CHECK_INT(parse(&config,
                    (const char *[]){"--device", "cuda:0,cuda:1,host", "--socket=/tmp/s",
                                     "--max-bytes", "8G", "--threads=3", NULL},
                    &err),
              0);
    CHECK_INT(config.n_devices, 3);
    CHECK(strcmp(config.devices[0], "cuda:0") == 0 && strcmp(config.devices[1], "cuda:1") == 0 &&
          strcmp(config.devices[2], "host") == 0);
    CHECK(config.socket && strcmp(config.socket, "/tmp/s") == 0);
    CHECK(config.max_bytes == UINT64_C(8) << 30);
    CHECK_INT(config.threads, 3);
    config_fini(&config);

    CHECK_INT(parse(&config,
                    (const char *[]){"--device=host", "--device=cuda:2", "--log-level", "info",
                                     "--reader", "/r", "--state-dir=/s", NULL},
                    &err),
              0);
    CHECK_INT(config.n_devices, 1);
    CHECK(strcmp(config.devices[0], "cuda:2") == 0 && strcmp(config.reader, "/r") == 0 &&
          strcmp(config.state_dir, "/s") == 0);
    config_fini(&config);
}

static void test_bad(void)
{
    static const struct {
        const char *args[MAX_ARGS];
        const char *names; /* what the sentence must name */
    } cases[] = {
        {{"--max-bytes", "0"}, "--max-bytes"},
        {{"--max-bytes", "8X"}, "8X"},
        {{"--max-bytes", "-1"}, "-1"},
        {{"--threads", "many"}, "many"},
        {{"--threads", "4097"}, "4097"},
        {{"--log-level", "loud"}, "loud"},
        {{"--device", "host,host"}, "twice"},
        {{"--device", "cuda:0,cuda:1,cuda:0"}, "cuda:0"},
        {{"--device", "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q"}, "16"},
        {{"--nonsense"}, "--help"},
        {{"--socket"}, "--help"},
        {{"-x"}, "--help"},
        {{"file.h5"}, "file.h5"},
        {{"--device", "host", "--", "more"}, "more"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct config config;
        struct stow_error err = {.code = 0};
        CHECK_INT(parse(&config, cases[i].args, &err), STOW_INVALID);
        CHECK_INT(err.code, STOW_INVALID);
        CHECK_MSG(strstr(err.text, cases[i].names) != NULL, "case %zu: \"%s\"", i, err.text);
        config_fini(&config);
    }
    /* As many devices as are allowed. */
    struct config config;
    struct stow_error err;
    CHECK_INT(parse(&config, (const char *[]){"--device", "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p", NULL},
                    &err),
              0);
    CHECK_INT(config.n_devices, CONFIG_MAX_DEVICES);
    config_fini(&config);
}

/* --help and --version print and are no error. */
static void test_said(void)
{
    static const char *const options[] = {"--help", "--version"};
    for (size_t i = 0; i < 2; i++) {
        struct config config;
        struct stow_error err;
        CHECK_INT(parse(&config, (const char *[]){options[i], "--max-bytes", "0", NULL}, &err), 1);
        config_fini(&config);
    }
}

int main(void)
{
    test_sizes();
    test_good();
    test_bad();
    test_said();
    return test_end();
}
