/* SPDX-License-Identifier: Apache-2.0 */
#include "confine.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MEMORY_BYTES (UINT64_C(4) << 30) /* of addresses; the largest index takes half of it */
#define CPU_SECONDS 300 /* an index takes a few; a loop over a damaged file would take all */

static void close_others(int keep_fd)
{
    if (keep_fd > 3)
        syscall(SYS_close_range, 3u, (unsigned)keep_fd - 1, 0u);
    if (syscall(SYS_close_range, (unsigned)keep_fd + 1, ~0u, 0u) == 0)
        return;
    struct rlimit limit = {.rlim_cur = 65536};
    getrlimit(RLIMIT_NOFILE, &limit);
    for (int fd = 3; (rlim_t)fd < limit.rlim_cur && fd < 1 << 20; fd++)
        if (fd != keep_fd)
            close(fd);
}

static int limit_to(int resource, uint64_t value)
{
    struct rlimit now;
    if (getrlimit(resource, &now) < 0)
        return errno;
    rlim_t to = now.rlim_max < value ? now.rlim_max : (rlim_t)value;
    return setrlimit(resource, &(struct rlimit){.rlim_cur = to, .rlim_max = to}) < 0 ? errno : 0;
}

/* No file can be opened, made, run or removed by name. Needs no_new_privs. */
static int deny_files(void)
{
    struct landlock_ruleset_attr all = {.handled_access_fs =
                                            (LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1};
    int rules = (int)syscall(SYS_landlock_create_ruleset, &all, sizeof(all), 0u);
    if (rules < 0)
        return errno == ENOSYS || errno == EOPNOTSUPP || errno == EPERM ? 0 : errno;
    int status = syscall(SYS_landlock_restrict_self, rules, 0u) < 0 ? errno : 0;
    close(rules);
    return status;
}

static const int allowed[] = {
    SCMP_SYS(read),
    SCMP_SYS(pread64),
    SCMP_SYS(readv),
    SCMP_SYS(preadv),
    SCMP_SYS(write),
    SCMP_SYS(writev),
    SCMP_SYS(recvmsg),
    SCMP_SYS(sendmsg),
    SCMP_SYS(poll),
    SCMP_SYS(ppoll),
    SCMP_SYS(close),
    SCMP_SYS(fstat),
    SCMP_SYS(lseek),
    SCMP_SYS(flock),
    SCMP_SYS(munmap),
    SCMP_SYS(mremap),
    SCMP_SYS(brk),
    SCMP_SYS(madvise),
    SCMP_SYS(futex),
    SCMP_SYS(memfd_create),
    SCMP_SYS(ftruncate),
    SCMP_SYS(fcntl),
    SCMP_SYS(getpid),
    SCMP_SYS(gettid),
    SCMP_SYS(getuid),
    SCMP_SYS(getrandom),
    SCMP_SYS(clock_gettime),
    SCMP_SYS(gettimeofday),
    SCMP_SYS(time),
    SCMP_SYS(rt_sigaction),
    SCMP_SYS(rt_sigprocmask),
    SCMP_SYS(rt_sigreturn),
    SCMP_SYS(sched_yield),
    SCMP_SYS(restart_syscall),
    SCMP_SYS(exit),
    SCMP_SYS(exit_group),
    SCMP_SYS(getrusage),
    SCMP_SYS(sysinfo),
    SCMP_SYS(prlimit64),
    SCMP_SYS(uname),
};

static const int fatal[] = {
    SCMP_SYS(execve), SCMP_SYS(execveat), SCMP_SYS(ptrace), SCMP_SYS(connect), SCMP_SYS(bind),
};

static int add_rules(scmp_filter_ctx filter)
{
    int status = 0;
    for (size_t i = 0; i < sizeof(allowed) / sizeof(allowed[0]) && !status; i++)
        status = seccomp_rule_add(filter, SCMP_ACT_ALLOW, allowed[i], 0);
    for (size_t i = 0; i < sizeof(fatal) / sizeof(fatal[0]) && !status; i++)
        status = seccomp_rule_add(filter, SCMP_ACT_KILL_PROCESS, fatal[i], 0);
    /* No code but what is mapped already. */
    const struct scmp_arg_cmp not_exec = SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0);
    if (!status)
        status = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 1, not_exec);
    if (!status)
        status = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(mprotect), 1, not_exec);
    /* How the C library makes fstat(); looks at files by name are left out. */
    if (!status)
        status = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(newfstatat), 1,
                                  SCMP_A3(SCMP_CMP_MASKED_EQ, AT_EMPTY_PATH, AT_EMPTY_PATH));
    /* abort() signals itself and nobody else. */
    if (!status)
        status = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(tgkill), 1,
                                  SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)getpid(), 0));
    return status;
}

/* Everything not listed answers EPERM: the C library asks for locales and time zones and goes on
 * without. */
static int filter_calls(void)
{
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(EPERM));
    if (!filter)
        return ENOMEM;
    int status = add_rules(filter);
    if (!status)
        status = seccomp_load(filter);
    seccomp_release(filter);
    return status == -ENOSYS || status == -EINVAL ? 0 : -status;
}

int confine_process(int keep_fd)
{
    pid_t parent = getppid();
    int status = prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0
                     ? errno
                     : 0;
    if (getppid() != parent)
        return ESRCH;
    close_others(keep_fd);
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    if (!status && chdir("/") < 0)
        status = errno;
    if (!status)
        status = limit_to(RLIMIT_CORE, 0);
    if (!status)
        status = limit_to(RLIMIT_CPU, CPU_SECONDS);
    if (!status)
        status = deny_files();
    if (CONFINE_PARTLY || status)
        return status;
    status = limit_to(RLIMIT_AS, MEMORY_BYTES);
    return status ? status : filter_calls();
}
