/* SPDX-License-Identifier: Apache-2.0
 *
 * order_test: shuffling is a permutation, always the same one, and ranks share positions without loss. */
#include "order.h"
#include "test.h"

#include <stdbool.h>

/* Every n up to 2000: each element comes once. */
static void test_bijection(void)
{
    static bool seen[2000];
    static const uint64_t seeds[] = {0, 1, 0xfeedface, UINT64_MAX};
    size_t wrong = 0;
    for (uint64_t n = 1; n <= 2000; n++) {
        uint64_t seed = seeds[n % 4];
        memset(seen, 0, sizeof(seen));
        for (uint64_t i = 0; i < n; i++) {
            uint64_t at = order_permute(i, n, seed);
            wrong += at >= n || seen[at];
            if (at < n)
                seen[at] = true;
        }
    }
    CHECK_INT(wrong, 0);
    for (uint64_t n = 1; n <= 64; n++) { /* small ones under many seeds */
        for (uint64_t seed = 0; seed < 100; seed++) {
            uint64_t all = 0;
            for (uint64_t i = 0; i < n; i++)
                all |= UINT64_C(1) << order_permute(i, n, seed);
            wrong += all != (n == 64 ? UINT64_MAX : (UINT64_C(1) << n) - 1);
        }
    }
    CHECK_INT(wrong, 0);
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Large n, sampled: in range, and nothing comes twice. */
static void test_large(void)
{
    enum { N_SAMPLES = 20000 };
    static uint64_t got[N_SAMPLES];
    static const uint64_t sizes[] = {262144,
                                     1000003,
                                     UINT64_C(1) << 32,
                                     (UINT64_C(1) << 40) + 1,
                                     (UINT64_C(1) << 62) + 12345,
                                     UINT64_C(1) << 63,
                                     UINT64_MAX};
    for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
        uint64_t n = sizes[k], step = n / N_SAMPLES;
        size_t wrong = 0, fixed = 0;
        for (uint64_t i = 0; i < N_SAMPLES; i++) {
            got[i] = order_permute(i * step, n, 7);
            wrong += got[i] >= n;
            fixed += got[i] == i * step;
        }
        qsort(got, N_SAMPLES, sizeof(got[0]), compare);
        for (size_t i = 1; i < N_SAMPLES; i++)
            wrong += got[i] == got[i - 1];
        CHECK_MSG(!wrong && fixed < 10, "n %llu: %zu wrong, %zu stay where they are",
                  (unsigned long long)n, wrong, fixed);
    }
}

/* docs/protocol.md has the algorithm for others: it can never change. */
static void test_golden(void)
{
    static const struct {
        uint64_t n, seed, position, want;
    } cases[] = {
        {2, 0, 0, 1},
        {2, 0, 1, 0},
        {3, 0, 0, 1},
        {3, 0, 1, 2},
        {3, 0, 2, 0},
        {10, 42, 0, 1},
        {10, 42, 1, 5},
        {10, 42, 9, 4},
        {4096, 7, 0, 1268},
        {4096, 7, 1, 1581},
        {4096, 7, 2, 2061},
        {4096, 7, 4095, 935},
        {262144, 0, 0, 43708},
        {262144, 0, 1, 70198},
        {262144, 0, 131072, 81868},
        {262144, 12345, 0, 71253},
        {262144, 12345, 262143, 6175},
        {1000003, UINT64_MAX, 5, 971678},
        {1000003, UINT64_MAX, 1000002, 280995},
        {1099511627777, 99, 1099511627776, 259178620886},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t got = order_permute(cases[i].position, cases[i].n, cases[i].seed);
        CHECK_MSG(got == cases[i].want, "n %llu seed %llu position %llu went to %llu",
                  (unsigned long long)cases[i].n, (unsigned long long)cases[i].seed,
                  (unsigned long long)cases[i].position, (unsigned long long)got);
    }
}

/* It looks shuffled: neighbours are far apart, seeds differ. */
static void test_mixing(void)
{
    enum { N = 10000 };
    double distance = 0;
    size_t same = 0;
    for (uint64_t i = 0; i + 1 < N; i++) {
        int64_t a = (int64_t)order_permute(i, N, 3), b = (int64_t)order_permute(i + 1, N, 3);
        distance += (double)(a < b ? b - a : a - b);
        same += order_permute(i, N, 3) == order_permute(i, N, 4);
    }
    distance /= N - 1; /* a third of N for a random order */
    CHECK_MSG(distance > N * .31 && distance < N * .36, "neighbours are %.0f apart", distance);
    CHECK_MSG(same < 12, "%zu positions are the same under two seeds", same);
}

static void test_share(void)
{
    static const uint32_t worlds[] = {1, 2, 3, 7, 64, 1000, UINT32_MAX};
    size_t wrong = 0;
    for (uint64_t n = 0; n < 300; n++) {
        for (size_t k = 0; k < 6; k++) {
            uint64_t sum = 0;
            for (uint32_t rank = 0; rank < worlds[k]; rank++) {
                uint64_t share = order_share(n, rank, worlds[k]), count = 0;
                for (uint64_t at = rank; at < n; at += worlds[k])
                    count++;
                wrong += share != count;
                sum += share;
            }
            wrong += sum != n;
        }
    }
    CHECK_INT(wrong, 0);
    CHECK_INT(order_share(5, UINT32_MAX - 1, UINT32_MAX), 0);
    CHECK(order_share(UINT64_MAX, 0, 1) == UINT64_MAX);
    CHECK(order_share(UINT64_MAX, 1, 2) == UINT64_MAX / 2);
}

int main(void)
{
    CHECK_INT(order_permute(0, 0, 5), 0);
    CHECK_INT(order_permute(0, 1, 5), 0);
    test_bijection();
    test_large();
    test_golden();
    test_mixing();
    test_share();
    return test_end();
}
