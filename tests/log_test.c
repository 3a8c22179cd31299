/* SPDX-License-Identifier: Apache-2.0
 *
 * log_test: one line an event, whatever the text holds. */
#define LOG_MODULE "test"
#include "log.h"

#include "test.h"

#include <unistd.h>

static int read_end, kept_stderr;

/* Everything that was logged since the last call; stderr is a pipe meanwhile. */
static const char *take(void)
{
    static char text[8192];
    ssize_t n = read(read_end, text, sizeof(text) - 1);
    text[n > 0 ? n : 0] = '\0';
    return text;
}

static void check_line(const char *got, const char *want)
{
    bool same = strcmp(got, want) == 0;
    dup2(kept_stderr, STDERR_FILENO);
    CHECK_MSG(same, "got \"%s\", expected \"%s\"", got, want);
}

#define LOGGED(want, ...)              \
    do {                               \
        dup2(pipe_end, STDERR_FILENO); \
        LOG_WARN(__VA_ARGS__);         \
        check_line(take(), want);      \
    } while (0)

int main(void)
{
    int ends[2];
    if (pipe(ends))
        return EXIT_FAILURE;
    read_end = ends[0];
    int pipe_end = ends[1];
    kept_stderr = dup(STDERR_FILENO);

    setenv("JOURNAL_STREAM", "8:1", 1);
    LOGGED("<4>test: plain 7\n", "plain %d", 7);
    LOGGED("<4>test: a\\x0a<0>forged\\x0d\\x1b[2J\\x7f\n", "a\n<0>forged\r\x1b[2J\x7f");
    LOGGED("<4>test: tab\\x09 gr\xc3\xbc\xc3\x9f\n", "tab\t gr\xc3\xbc\xc3\x9f");
    LOGGED("<4>test: \n", "%s", "");
    LOGGED("<4>test: %s %n\n", "%s", "%s %n");

    char longer[4000];
    memset(longer, '\n', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    dup2(pipe_end, STDERR_FILENO);
    LOG_ERR("%s", longer);
    const char *line = take();
    size_t n = strlen(line), n_ends = 0;
    for (size_t i = 0; i < n; i++)
        n_ends += line[i] == '\n';
    dup2(kept_stderr, STDERR_FILENO);
    CHECK(n > 500 && n <= 1024);
    CHECK_INT(n_ends, 1);
    CHECK(line[n - 1] == '\n' && strncmp(line, "<3>test: \\x0a", 13) == 0);

    dup2(pipe_end, STDERR_FILENO);
    LOG_DBG("not shown");
    LOG_INFO("shown");
    bool changed = log_set_level("loud");
    LOG_DBG("still not");
    bool set = log_set_level("debug");
    LOG_DBG("now");
    log_set_level("error");
    LOG_WARN("no more");
    LOG_ERR("end");
    line = take();
    dup2(kept_stderr, STDERR_FILENO);
    CHECK(!changed && set);
    CHECK_MSG(strcmp(line, "<6>test: shown\n<7>test: now\n<3>test: end\n") == 0, "got \"%s\"",
              line);

    unsetenv("JOURNAL_STREAM");
    dup2(pipe_end, STDERR_FILENO);
    LOG_ERR("timed");
    line = take();
    dup2(kept_stderr, STDERR_FILENO);
    int year = 0, end = 0;
    CHECK(sscanf(line, "%4d-%*2d-%*2dT%*2d:%*2d:%*d.%*3dZ error test: timed%n", &year, &end) == 1);
    CHECK(year >= 2024 && end && strcmp(line + end, "\n") == 0);
    return test_end();
}
