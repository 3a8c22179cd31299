/* SPDX-License-Identifier: Apache-2.0
 *
 * test: counters and checks for the test programs. A failed check prints where and goes on. */
#ifndef STOW_TEST_H
#define STOW_TEST_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEST_SKIP 77

static int test_passed, test_failed;

/* Count one check; what is a printf format and its arguments. */
#define CHECK_MSG(ok, ...)                                  \
    do {                                                    \
        if (ok) {                                           \
            test_passed++;                                  \
        } else {                                            \
            test_failed++;                                  \
            fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
            fprintf(stderr, __VA_ARGS__);                   \
            fprintf(stderr, "\n");                          \
        }                                                   \
    } while (0)

#define CHECK(ok) CHECK_MSG(ok, "%s", #ok)

#define CHECK_INT(got, want)                                                      \
    do {                                                                          \
        long long got_ = (long long)(got), want_ = (long long)(want);             \
        CHECK_MSG(got_ == want_, "%s is %lld, expected %lld", #got, got_, want_); \
    } while (0)

/* Last line of a test program, and its exit status. */
static inline int test_end(void)
{
    printf("%d passed, %d failed\n", test_passed, test_failed);
    return test_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
