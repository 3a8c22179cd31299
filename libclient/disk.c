/* SPDX-License-Identifier: Apache-2.0
 *
 * disk: the bright disk of a mean diffraction pattern.
 *
 * A median of 3 x 3 pixels takes hot pixels away and closes small holes. The disk's pixels are those over half of
 * the plateau's level, the median of what is over half of it, and stand together. Their middle and their
 * area are a first answer; a circle through their outline is a better one where the detector's edge, or a gap of dead
 * pixels, cuts the disk. Outline next to such a cut is none of the disk's. */
#include "framestow.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MIN_PIXELS 5u
#define MAX_SHARE 0.9 /* of the detector: then it is no disk, but light everywhere */
#define MIN_FILL 0.6  /* of the circle's pixels that can be seen are the disk's */
#define LEVEL_STEPS 8 /* of the plateau's level; it stands still after two or three */
#define FIT_STEPS 4
#define MIN_OUTLINE 8u
#define MAX_GAP 6u /* pixels without counts between parts of a detector */

struct field {
    uint64_t y, x;
    const uint64_t *sums;
    double *level;   /* [y][x] after the median */
    uint8_t *inside; /* [y][x] 1: over the threshold; 2: of the disk */
    double *scratch; /* [y * x] */
    size_t *queue;   /* [y * x] */
};

static const int ways[4][2] = {{-1, 0}, {1, 0}, {0, -1}, {0, 1}};

struct circle {
    double y, x, r;
};

static int by_value(const void *a, const void *b)
{
    double p = *(const double *)a, q = *(const double *)b;
    return p < q ? -1 : p > q;
}

static double median_of(double *values, size_t n)
{
    qsort(values, n, sizeof(*values), by_value);
    return n % 2 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

/* Of the pixel and its neighbours. Those without any count are left out where they are the fewer: they are dead. */
static double local_median(const struct field *f, uint64_t y, uint64_t x)
{
    double values[9];
    size_t n = 0;
    for (uint64_t j = y ? y - 1 : 0; j <= y + 1 && j < f->y; j++) {
        for (uint64_t i = x ? x - 1 : 0; i <= x + 1 && i < f->x; i++) {
            if (f->sums[j * f->x + i])
                values[n++] = (double)f->sums[j * f->x + i];
        }
    }
    return n < 5 ? 0 : median_of(values, n);
}

/* Half of the plateau's level; 0: there is none. */
static double find_threshold(const struct field *f)
{
    size_t n = f->y * f->x;
    double threshold = 0;
    for (size_t i = 0; i < n; i++)
        threshold = f->level[i] > threshold ? f->level[i] : threshold;
    threshold /= 2;
    for (int step = 0; step < LEVEL_STEPS && threshold > 0; step++) {
        size_t over = 0;
        for (size_t i = 0; i < n; i++) {
            if (f->level[i] >= threshold)
                f->scratch[over++] = f->level[i];
        }
        threshold = median_of(f->scratch, over) / 2;
    }
    return threshold;
}

/* The next pixel over the threshold in this direction, with nothing but pixels without counts between; or n. */
static size_t across(const struct field *f, size_t from, int dy, int dx)
{
    int64_t y = (int64_t)(from / f->x), x = (int64_t)(from % f->x);
    for (unsigned i = 0; i <= MAX_GAP; i++) {
        y += dy;
        x += dx;
        if (y < 0 || x < 0 || y >= (int64_t)f->y || x >= (int64_t)f->x)
            break;
        size_t at = (size_t)y * f->x + (size_t)x;
        if (f->inside[at])
            return at;
        if (f->sums[at])
            break;
    }
    return f->y * f->x;
}

/* Turn the pixels that stand together with this one from 1 to mark; how many there are. */
static size_t flood(struct field *f, size_t from, uint8_t mark)
{
    size_t n = 0, done = 0;
    f->inside[from] = mark;
    f->queue[n++] = from;
    while (done < n) {
        size_t at = f->queue[done++];
        for (int i = 0; i < 4; i++) {
            size_t next = across(f, at, ways[i][0], ways[i][1]);
            if (next < f->y * f->x && f->inside[next] == 1) {
                f->inside[next] = mark;
                f->queue[n++] = next;
            }
        }
    }
    return n;
}

/* Mark the largest group of pixels over the threshold as the disk; its size. */
static size_t find_group(struct field *f, double threshold)
{
    size_t n = f->y * f->x, best = 0, best_n = 0;
    for (size_t i = 0; i < n; i++)
        f->inside[i] = f->level[i] >= threshold;
    for (size_t i = 0; i < n; i++) {
        size_t size = f->inside[i] == 1 ? flood(f, i, 3) : 0;
        if (size > best_n) {
            best = i;
            best_n = size;
        }
    }
    for (size_t i = 0; i < n; i++)
        f->inside[i] = f->inside[i] == 3;
    return best_n ? flood(f, best, 2) : 0;
}

static struct circle middle_and_area(const struct field *f, size_t n)
{
    struct circle c = {.r = sqrt((double)n / M_PI)};
    for (size_t i = 0; i < f->y * f->x; i++) {
        if (f->inside[i] == 2) {
            c.y += (double)(i / f->x) / (double)n;
            c.x += (double)(i % f->x) / (double)n;
        }
    }
    return c;
}

/* ---- the outline ----------------------------------------------------------------------------------- */

/* Sums of a linear least-squares problem: y, x and 1 against y^2 + x^2 (Kasa's circle). */
struct fit {
    double a[3][4];
    size_t n;
};

static void add_point(struct fit *fit, double y, double x)
{
    double row[4] = {y, x, 1, y * y + x * x};
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 4; k++)
            fit->a[i][k] += row[i] * row[k];
    }
    fit->n++;
}

/* Gauss, with the largest pivot. */
static bool solve(struct fit *fit, double *s)
{
    double(*a)[4] = fit->a;
    for (int c = 0; c < 3; c++) {
        int pivot = c;
        for (int i = c + 1; i < 3; i++)
            pivot = fabs(a[i][c]) > fabs(a[pivot][c]) ? i : pivot;
        if (!(fabs(a[pivot][c]) > 1e-9))
            return false;
        for (int k = 0; k < 4; k++) {
            double swap = a[c][k];
            a[c][k] = a[pivot][k];
            a[pivot][k] = swap;
        }
        for (int i = 0; i < 3; i++) {
            double factor = i == c ? 0 : a[i][c] / a[c][c];
            for (int k = c; k < 4; k++)
                a[i][k] -= factor * a[c][k];
        }
    }
    for (int c = 0; c < 3; c++)
        s[c] = a[c][3] / a[c][c];
    return true;
}

/* Where the level falls through the threshold between a pixel of the disk and its neighbour, if it is near enough to
 * what the circle is now. Coordinates are from the circle's middle. */
static void add_crossing(const struct field *f, struct fit *fit, const struct circle *c, size_t in,
                         size_t out, double threshold, double near)
{
    double t = (f->level[in] - threshold) / (f->level[in] - f->level[out]);
    double y = (double)(in / f->x) - c->y, x = (double)(in % f->x) - c->x;
    y += t * ((double)(out / f->x) - (double)(in / f->x));
    x += t * ((double)(out % f->x) - (double)(in % f->x));
    if (fabs(sqrt(y * y + x * x) - c->r) <= 1.5 + near * c->r)
        add_point(fit, y, x);
}

/* near: how far from the circle outline may be, for its radius. */
static bool improve(const struct field *f, struct circle *c, double threshold, double near)
{
    struct fit fit = {.n = 0};
    for (size_t i = 0; i < f->y * f->x; i++) {
        size_t y = i / f->x, x = i % f->x;
        size_t next[4] = {i - f->x, i + f->x, i - 1, i + 1};
        bool there[4] = {y > 0, y + 1 < f->y, x > 0, x + 1 < f->x};
        for (int k = 0; k < 4 && f->inside[i] == 2; k++) {
            /* where the disk goes on behind a gap, the gap's rim is no outline */
            if (there[k] && !f->inside[next[k]] &&
                across(f, i, ways[k][0], ways[k][1]) == f->y * f->x)
                add_crossing(f, &fit, c, i, next[k], threshold, near);
        }
    }
    double s[3];
    if (fit.n < MIN_OUTLINE || !solve(&fit, s))
        return false;
    double r2 = s[2] + 0.25 * (s[0] * s[0] + s[1] * s[1]);
    if (!(r2 > 0) || !isfinite(r2))
        return false;
    *c = (struct circle){.y = c->y + s[0] / 2, .x = c->x + s[1] / 2, .r = sqrt(r2)};
    return true;
}

/* ---- what is found --------------------------------------------------------------------------------- */

/* How much of the circle is the disk's, of what can be seen, is to be most of it. */
static bool is_disk(const struct field *f, const struct circle *c, size_t n)
{
    size_t seen = 0, filled = 0;
    for (size_t i = 0; i < f->y * f->x; i++) {
        double y = (double)(i / f->x) - c->y, x = (double)(i % f->x) - c->x;
        if (y * y + x * x > c->r * c->r || !f->sums[i])
            continue;
        seen++;
        filled += f->inside[i] == 2;
    }
    return seen && (double)filled >= MIN_FILL * (double)seen &&
           (double)filled >= MIN_FILL * (double)n;
}

/* A group that reaches all four edges of the detector. */
static bool is_everywhere(const struct field *f)
{
    bool top = false, bottom = false, left = false, right = false;
    for (size_t x = 0; x < f->x; x++) {
        top = top || f->inside[x] == 2;
        bottom = bottom || f->inside[(f->y - 1) * f->x + x] == 2;
    }
    for (size_t y = 0; y < f->y; y++) {
        left = left || f->inside[y * f->x] == 2;
        right = right || f->inside[(y + 1) * f->x - 1] == 2;
    }
    return top && bottom && left && right;
}

static int find(struct field *f, struct stow_disk *disk)
{
    size_t n = f->y * f->x;
    for (size_t i = 0; i < n; i++)
        f->level[i] = local_median(f, i / f->x, i % f->x);
    double threshold = find_threshold(f);
    size_t size = threshold > 0 ? find_group(f, threshold) : 0;
    if (size < MIN_PIXELS || (double)size > MAX_SHARE * (double)n || is_everywhere(f))
        return STOW_UNSUPPORTED;
    struct circle first = middle_and_area(f, size), c = first;
    for (int step = 0; step < FIT_STEPS; step++) {
        if (!improve(f, &c, threshold, 0.8 / (1 << step))) {
            c = first;
            break;
        }
    }
    if (!is_disk(f, &c, size)) {
        c = first;
        if (!is_disk(f, &c, size))
            return STOW_UNSUPPORTED;
    }
    *disk = (struct stow_disk){.center = {c.y, c.x}, .radius = c.r};
    return 0;
}

int stow_find_disk(const uint64_t *sums, uint64_t y, uint64_t x, struct stow_disk *disk)
{
    uint64_t n;
    if (!sums || !disk || __builtin_mul_overflow(y, x, &n) || n > SIZE_MAX / 32)
        return STOW_INVALID;
    if (!n)
        return STOW_UNSUPPORTED;
    struct field f = {.y = y,
                      .x = x,
                      .sums = sums,
                      .level = malloc(n * sizeof(double)),
                      .inside = malloc(n),
                      .scratch = malloc(n * sizeof(double)),
                      .queue = malloc(n * sizeof(size_t))};
    int rc = f.level && f.inside && f.scratch && f.queue ? find(&f, disk) : STOW_NOMEM;
    free(f.level);
    free(f.inside);
    free(f.scratch);
    free(f.queue);
    return rc;
}
