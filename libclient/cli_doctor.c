/* SPDX-License-Identifier: Apache-2.0
 *
 * cli_doctor: `framestow doctor`: what works here, one fact a line, with the remedy where one
 * does not. */
#include "cli.h"

#include <dlfcn.h>
#include <errno.h>
#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* A fact, printed or put into the object. */
static void tell(struct json_object *object, const char *name, const char *text)
{
    if (object) {
        json_object_object_add(object, name, cli_json_text(text));
        return;
    }
    printf("%-14s ", name);
    cli_print(stdout, text);
    putchar('\n');
}

static void tell_limit(struct json_object *object, const char *name, int resource)
{
    char text[96];
    struct rlimit limit = {0, 0};
    getrlimit((__rlimit_resource_t)resource, &limit);
    if (limit.rlim_cur == RLIM_INFINITY)
        snprintf(text, sizeof(text), "unlimited");
    else
        snprintf(text, sizeof(text), "%llu", (unsigned long long)limit.rlim_cur);
    tell(object, name, text);
}

/* The GPU driver, asked as the library would ask it. Plain numbers: no header of CUDA is needed. */
static void tell_driver(struct json_object *object)
{
    char text[128];
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        tell(object, "libcuda",
             access("/dev/nvidiactl", F_OK) == 0
                 ? "there is a GPU, and no libcuda.so.1: install the NVIDIA driver's libraries"
                 : "none, and no NVIDIA GPU: frames come in host memory");
        return;
    }
    int (*init)(unsigned), (*count)(int *), (*version)(int *);
    *(void **)&init = dlsym(library, "cuInit");
    *(void **)&count = dlsym(library, "cuDeviceGetCount");
    *(void **)&version = dlsym(library, "cuDriverGetVersion");
    int rc = init ? init(0) : -1, gpus = 0, number = 0;
    if (rc || !count || count(&gpus) || !version || version(&number))
        snprintf(text, sizeof(text), "present, and does not start (CUDA error %d)%s", rc,
                 access("/dev/nvidia-uvm", F_OK)
                     ? "; /dev/nvidia-uvm is absent: nvidia-modprobe -u -c 0"
                     : "");
    else
        snprintf(text, sizeof(text), "CUDA %d.%d, %d GPU%s visible here", number / 1000,
                 number % 1000 / 10, gpus, gpus == 1 ? "" : "s");
    tell(object, "libcuda", text);
}

static void tell_daemon(struct json_object *object, struct stow_client *client)
{
    char text[128], size[CLI_SIZE_TEXT];
    const struct stow_daemon_info *daemon = stow_daemon_info(client);
    tell(object, "socket", "answers");
    snprintf(text, sizeof(text), "%.64s, pid %llu", daemon->version,
             (unsigned long long)daemon->pid);
    tell(object, "daemon", text);
    tell(object, "devices", daemon->device);
    snprintf(text, sizeof(text), "%s of the first device", cli_size(size, daemon->max_bytes));
    tell(object, "budget", text);
    tell(object, "memory", daemon->memory_kinds);
    if (daemon->memory_note[0])
        tell(object, "memory note", daemon->memory_note);
}

int cli_doctor(struct cli *cli, int argc, char **argv)
{
    static const struct option options[] = {CLI_GLOBAL_OPTIONS, {0}};
    int exit_code = CLI_DONE;
    if (cli_option(cli, argc, argv, options, &exit_code) == CLI_STOP ||
        !cli_arguments(cli, argc, 0, 0, &exit_code))
        return exit_code;
    struct json_object *object = cli->json ? json_object_new_object() : NULL;
    struct stow_error err;
    struct stow_client *client = stow_connect(cli->socket, &err);
    tell(object, "library", stow_version());
    if (client)
        tell_daemon(object, client);
    else
        tell(object, "socket", err.text);
    tell_driver(object);
    tell_limit(object, "nofile", RLIMIT_NOFILE);
    tell_limit(object, "memlock", RLIMIT_MEMLOCK);
    if (object)
        cli_json_print(object);
    if (!client)
        exit_code = err.code == STOW_INVALID ? CLI_USAGE : CLI_AWAY;
    stow_close(client);
    return exit_code;
}
