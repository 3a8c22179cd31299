/* SPDX-License-Identifier: Apache-2.0
 *
 * What a confined process cannot do any more, and what it still can; each in a child of its own. */
#include "confine.h"

#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEPT 7

/* Each returns 0 when all is as it should be. */

static int opens_no_file(void)
{
    return open("/etc/passwd", O_RDONLY) >= 0 || open("/proc/self/maps", O_RDONLY) >= 0 ||
           open("/tmp/confine_test.new", O_CREAT | O_WRONLY, 0600) >= 0 || errno != EPERM;
}

static int makes_no_socket(void)
{
    return socket(AF_INET, SOCK_STREAM, 0) >= 0 || socket(AF_UNIX, SOCK_STREAM, 0) >= 0;
}

static int forks_not(void)
{
    return fork() >= 0;
}

static int maps_no_code(void)
{
    return mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) !=
           MAP_FAILED;
}

static int closed_others(void)
{
    struct stat st;
    return fcntl(KEPT, F_GETFD) < 0 || fcntl(3, F_GETFD) >= 0 || fcntl(KEPT + 1, F_GETFD) >= 0 ||
           fstat(KEPT, &st) < 0;
}

static int dumps_no_core(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_CORE, &limit) < 0 || limit.rlim_max != 0;
}

static int works_on(void)
{
    char byte = 1;
    int fd = memfd_create("x", MFD_ALLOW_SEALING);
    void *map = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return fd < 0 || write(fd, &byte, 1) != 1 || pread(fd, &byte, 1, 0) != 1 ||
           fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) < 0 || map == MAP_FAILED || chdir("/tmp") == 0;
}

static int runs_program(void)
{
    char *args[] = {(char[]){"true"}, NULL};
    execv("/bin/true", args);
    return 1;
}

static int ends_itself(void)
{
    abort();
}

static const struct {
    const char *name;
    int (*run)(void);
    int signal; /* that must end it */
} checks[] = {
    {"opens no file", opens_no_file, 0},
    {"makes no socket", makes_no_socket, 0},
    {"does not fork", forks_not, 0},
    {"maps no code", maps_no_code, 0},
    {"other descriptors", closed_others, 0},
    {"no core", dumps_no_core, 0},
    {"works on", works_on, 0},
    {"runs no program", runs_program, SIGSYS},
    {"may abort", ends_itself, SIGABRT},
};

static int child(int (*run)(void))
{
    dup2(0, 3);
    dup2(0, KEPT);
    dup2(0, KEPT + 1);
    int status = confine_process(KEPT);
    if (status)
        fprintf(stderr, "confine_process: %s\n", strerror(status));
    return status ? 100 : run();
}

int main(void)
{
    if (CONFINE_PARTLY) {
        printf("skipped: a sanitizer build confines in part\n");
        return TEST_SKIP;
    }
    for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
        int status = 0;
        pid_t pid = fork();
        if (pid == 0)
            _exit(child(checks[i].run));
        CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
        if (checks[i].signal)
            CHECK_MSG(WIFSIGNALED(status) && WTERMSIG(status) == checks[i].signal, "%s: status %x",
                      checks[i].name, (unsigned)status);
        else
            CHECK_MSG(status == 0, "%s: status %x", checks[i].name, (unsigned)status);
    }
    return test_end();
}
