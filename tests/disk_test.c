/* SPDX-License-Identifier: Apache-2.0
 *
 * disk: the bright disk is found wherever it lies, cut, dead and hot pixels or not; and not where there is none. */
#include "framestow.h"
#include "test.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#define MAX_ELEMS (192u * 192u)

static uint64_t sums[MAX_ELEMS];
static uint64_t state = 1;

static double uniform(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(state >> 11) / 9007199254740992.0;
}

/* About mean, spread as a Poisson sum of many frames would be. */
static uint64_t noisy(double mean)
{
    double g = 0;
    for (int i = 0; i < 12; i++)
        g += uniform();
    double value = mean + (g - 6) * sqrt(mean);
    return value < 0 ? 0 : (uint64_t)(value + 0.5);
}

struct disk_case {
    const char *label;
    uint64_t y, x;
    double center_y, center_x, radius, bright, dark;
    unsigned hot, dead;     /* so many pixels anywhere */
    uint64_t gap, gap_wide; /* dead columns, wide 0: none */
    double within;          /* of the truth, in pixels */
};

static const struct disk_case cases[] = {
    {"in the middle", 64, 64, 31.5, 31.5, 12, 10000, 200, 0, 0, 0, 0, 0.15},
    {"off centre", 192, 192, 80.3, 121.7, 24.4, 40000, 500, 0, 0, 0, 0, 0.1},
    {"few counts", 96, 96, 40.2, 51.9, 15, 60, 4, 0, 0, 0, 0, 0.5},
    {"hot and dead", 192, 192, 100.25, 90.5, 30, 20000, 100, 150, 300, 0, 0, 0.3},
    {"dead columns", 128, 128, 60, 64.5, 25, 20000, 100, 10, 0, 60, 2, 0.4},
    {"a gap", 128, 128, 60, 64.5, 25, 20000, 100, 0, 0, 70, 4, 0.6},
    {"cut by an edge", 128, 128, 6, 60, 20, 20000, 100, 20, 20, 0, 0, 0.5},
    {"cut by a corner", 128, 128, 5.5, 8.5, 25, 20000, 100, 0, 0, 0, 0, 0.7},
    {"nothing around it", 100, 80, 50, 40, 18, 5000, 0, 0, 0, 0, 0, 0.3},
    {"cut, nothing around it", 100, 80, 50, 3, 18, 5000, 0, 0, 0, 0, 0, 0.6},
    {"small", 32, 48, 11.2, 30.8, 3, 900, 9, 2, 2, 0, 0, 0.5},
    {"large", 64, 64, 30, 33, 29, 5000, 50, 5, 5, 0, 0, 0.4},
};

static void draw(const struct disk_case *c)
{
    for (uint64_t i = 0; i < c->y * c->x; i++) {
        /* a pixel's share in the disk, by 8 x 8 points */
        double share = 0;
        for (int p = 0; p < 64; p++) {
            double dy = (double)(i / c->x) - c->center_y + (p / 8 - 3.5) / 8;
            double dx = (double)(i % c->x) - c->center_x + (p % 8 - 3.5) / 8;
            share += dy * dy + dx * dx < c->radius * c->radius;
        }
        share /= 64;
        sums[i] = noisy(c->dark + share * (c->bright - c->dark));
    }
    for (unsigned i = 0; i < c->hot; i++)
        sums[(uint64_t)(uniform() * (double)(c->y * c->x))] = UINT64_C(1) << 40;
    for (unsigned i = 0; i < c->dead; i++)
        sums[(uint64_t)(uniform() * (double)(c->y * c->x))] = 0;
    for (uint64_t i = 0; i < c->y * c->x; i++) {
        if (i % c->x >= c->gap && i % c->x < c->gap + c->gap_wide)
            sums[i] = 0;
    }
}

static void test_disks(void)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct disk_case *c = &cases[i];
        struct stow_disk disk = {.radius = -1};
        draw(c);
        int rc = stow_find_disk(sums, c->y, c->x, &disk);
        bool ok = !rc && fabs(disk.center[0] - c->center_y) <= c->within &&
                  fabs(disk.center[1] - c->center_x) <= c->within &&
                  fabs(disk.radius - c->radius) <= c->within + 0.2;
        if (!ok)
            printf("%s: %d: %.3f, %.3f r %.3f, not %.3f, %.3f r %.3f\n", c->label, rc,
                   disk.center[0], disk.center[1], disk.radius, c->center_y, c->center_x,
                   c->radius);
        CHECK(ok);
    }
}

static void fill(uint64_t y, uint64_t x, double (*level)(double y, double x))
{
    for (uint64_t i = 0; i < y * x; i++)
        sums[i] = noisy(level((double)(i / x), (double)(i % x)));
}

static double flat(double y, double x)
{
    (void)y, (void)x;
    return 1000;
}

static double nothing(double y, double x)
{
    (void)y, (void)x;
    return 0;
}

static double hollow(double y, double x)
{
    double r = sqrt((y - 50) * (y - 50) + (x - 50) * (x - 50));
    return r > 30 && r < 33 ? 10000 : 10;
}

static double bar(double y, double x)
{
    (void)x;
    return y > 30 && y < 36 ? 10000 : 10;
}

static void test_no_disk(void)
{
    double (*const levels[])(double y, double x) = {flat, nothing, hollow, bar};
    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
        struct stow_disk disk = {.radius = -1};
        fill(100, 100, levels[i]);
        CHECK_INT(stow_find_disk(sums, 100, 100, &disk), STOW_UNSUPPORTED);
        CHECK(disk.radius == -1);
    }
    struct stow_disk disk;
    CHECK_INT(stow_find_disk(sums, 0, 10, &disk), STOW_UNSUPPORTED);
    CHECK_INT(stow_find_disk(sums, UINT64_MAX, 10, &disk), STOW_INVALID);
    CHECK_INT(stow_find_disk(NULL, 10, 10, &disk), STOW_INVALID);
    for (uint64_t n = 1; n < 6; n++) { /* too small for anything, and no reason to fall */
        fill(n, n, flat);
        CHECK_INT(stow_find_disk(sums, n, n, &disk), STOW_UNSUPPORTED);
    }
}

int main(void)
{
    test_disks();
    test_no_disk();
    return test_end();
}
