/* SPDX-License-Identifier: Apache-2.0 */
#include "simulate_counts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CLASS_STEP (1.0 / 128)
#define CLASS_MIN_MEAN 1e-4
#define CLASS_COUNT 3072 /* up to a mean of 2.6 million */
#define CLASS_MARGIN 64  /* what gain and brightness may add to a pattern's class, or take away */
#define FLAGGED 24
#define HOT 6
#define REFERENCE_PIXELS (192 * 192)
#define GAIN_SPREAD 0.03

/* Column of an alias table: the draw is the column itself if the low bits are below, else the other. */
struct column {
    uint32_t below, other;
};

struct table {
    const struct column *columns;
    uint32_t base;  /* added to what is drawn */
    uint32_t shift; /* the column is the random word shifted right by this */
};

struct counts {
    struct counts_options options;
    size_t pad_y, pad_x;  /* how far the pattern may move */
    size_t phases;        /* steps a pixel in which it moves */
    uint16_t *pattern;    /* [phases, phases, det_y + 2 pad_y, det_x + 2 pad_x] classes */
    int16_t *gain;        /* [det_y, det_x] steps */
    struct table *tables; /* [CLASS_COUNT], those in use have columns */
    struct column *columns;
    uint32_t flagged[FLAGGED], hot[HOT];
    size_t n_flagged, n_hot;
};

struct sample {
    double bragg, diffuse, floor; /* against the disk's 1 */
    double brightness;            /* modulation over the scan */
};
static const struct sample thin = {0.008, 0.010, 0.003, 0.08};
static const struct sample thick = {0.060, 0.105, 0.030, 0.10};

/* ---- random bits ---- */

/* splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014. */
#define GOLDEN 0x9e3779b97f4a7c15ull
static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static uint64_t stream_key(uint64_t seed, uint64_t stream)
{
    return mix(mix(seed + GOLDEN) ^ mix(stream * GOLDEN + 1));
}

static double uniform(uint64_t key, uint64_t n)
{
    return ((double)(mix(key + n * GOLDEN) >> 11) + 0.5) * 0x1p-53;
}

/* ---- the pattern ---- */

static double disk(double y, double x, double radius)
{
    double soft = 0.025 * radius + 0.2;
    return 1 / (1 + exp((hypot(y, x) - radius) / soft));
}

/* Brightness at (y, x) about the pattern's middle, radius of the disk 1. */
static double pattern_at(const struct sample *sample, double y, double x, double radius)
{
    double sum = disk(y, x, radius);
    for (int k = 0; k < 6; k++) {
        double angle = 0.35 + k * M_PI / 3, distance = 1.55 * radius;
        double strength = sample->bragg * (1 + 0.3 * cos(2.1 * k));
        sum += strength * disk(y - distance * sin(angle), x - distance * cos(angle), radius);
    }
    double r = hypot(y, x) / radius;
    return sum + sample->diffuse * exp(-r * r / 6) + sample->floor;
}

static int class_of(double mean)
{
    return (int)lround((log(mean) - log(CLASS_MIN_MEAN)) / CLASS_STEP);
}

static double class_mean(int class)
{
    return CLASS_MIN_MEAN * exp(class * CLASS_STEP);
}

static double smaller_side(const struct counts_options *o)
{
    return (double)(o->det_y < o->det_x ? o->det_y : o->det_x);
}

static double disk_radius(const struct counts_options *o)
{
    return 50.0 / 192 * smaller_side(o);
}

/* Brightness of detector pixel (y, x), which may lie outside it. */
static double pixel_brightness(const struct counts *c, double y, double x)
{
    const struct counts_options *o = &c->options;
    double middle_y = 0.52 * (double)o->det_y - 0.5, middle_x = 0.48 * (double)o->det_x - 0.5;
    return pattern_at(o->thick ? &thick : &thin, y - middle_y, x - middle_x, disk_radius(o));
}

static void make_pattern(struct counts *c)
{
    const struct counts_options *o = &c->options;
    double sum = 0;
    for (size_t y = 0; y < o->det_y; y++)
        for (size_t x = 0; x < o->det_x; x++)
            sum += pixel_brightness(c, (double)y, (double)x);
    double scale = o->dose * (double)(o->det_y * o->det_x) / sum;

    uint16_t *at = c->pattern;
    for (size_t phase = 0; phase < c->phases * c->phases; phase++) {
        double dy = (double)(phase / c->phases) / (double)c->phases - (double)c->pad_y;
        double dx = (double)(phase % c->phases) / (double)c->phases - (double)c->pad_x;
        for (size_t y = 0; y < o->det_y + 2 * c->pad_y; y++) {
            for (size_t x = 0; x < o->det_x + 2 * c->pad_x; x++) {
                int class = class_of(scale * pixel_brightness(c, (double)y + dy, (double)x + dx));
                class = class < CLASS_MARGIN ? CLASS_MARGIN : class;
                class =
                    class >= CLASS_COUNT - CLASS_MARGIN ? CLASS_COUNT - CLASS_MARGIN - 1 : class;
                *at++ = (uint16_t) class;
            }
        }
    }
}

/* Gains by the sum of twelve uniforms: close to normal, and never beyond 6 spreads. */
static void make_gain(struct counts *c)
{
    uint64_t key = stream_key(c->options.seed, UINT64_MAX);
    for (size_t i = 0; i < c->options.det_y * c->options.det_x; i++) {
        double normal = -6;
        for (uint64_t k = 0; k < 12; k++)
            normal += uniform(key, 12 * i + k);
        c->gain[i] = (int16_t)lround(log(1 + GAIN_SPREAD * normal) / CLASS_STEP);
    }
}

static int compare_u32(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Different pixels: the flagged first, then the hot. */
static void choose_pixels(struct counts *c)
{
    uint32_t n_pixels = (uint32_t)(c->options.det_y * c->options.det_x), chosen[FLAGGED + HOT];
    double share = fmin(1, (double)n_pixels / REFERENCE_PIXELS);
    c->n_flagged = (size_t)lround(FLAGGED * share);
    c->n_hot = (size_t)lround(HOT * share);
    uint64_t key = stream_key(c->options.seed, UINT64_MAX - 1), draw = 0;
    for (size_t n = 0; n < c->n_flagged + c->n_hot;) {
        uint32_t pixel = (uint32_t)(uniform(key, draw++) * n_pixels);
        bool taken = false;
        for (size_t i = 0; i < n; i++)
            taken |= chosen[i] == pixel;
        if (!taken)
            chosen[n++] = pixel;
    }
    memcpy(c->flagged, chosen, c->n_flagged * sizeof(*chosen));
    memcpy(c->hot, chosen + c->n_flagged, c->n_hot * sizeof(*chosen));
    qsort(c->flagged, c->n_flagged, sizeof(*c->flagged), compare_u32);
}

/* ---- alias tables: Walker's method as Vose builds it ---- */

struct window {
    uint32_t base, bits; /* counts base .. base + 2^bits - 1 */
};

static struct window class_window(double mean)
{
    double reach = 6.5 * sqrt(mean) + 8;
    double low = floor(fmax(0, mean - reach)), high = mean + reach + 6;
    struct window w = {(uint32_t)low, 4};
    while ((double)(1u << w.bits) < high - low)
        w.bits++;
    return w;
}

static void fill_table(struct column *columns, struct window w, double mean, double *p,
                       uint32_t *stack)
{
    uint32_t n = 1u << w.bits, n_small = 0, n_large = 0;
    double sum = 0, one = (double)(1ull << (32 - w.bits));
    for (uint32_t i = 0; i < n; i++) {
        double k = (double)w.base + i;
        p[i] = exp(k * log(mean) - mean - lgamma(k + 1));
        sum += p[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        p[i] *= n / sum;
        columns[i] = (struct column){(uint32_t)one, i};
        if (p[i] < 1)
            stack[n_small++] = i;
        else
            stack[n - ++n_large] = i;
    }
    while (n_small && n_large) { /* the small ones lie at the front, the large ones at the back */
        uint32_t small = stack[--n_small], large = stack[n - n_large];
        columns[small] = (struct column){(uint32_t)lround(p[small] * one), large};
        p[large] -= 1 - p[small];
        if (p[large] < 1) {
            n_large--;
            stack[n_small++] = large;
        }
    }
}

static void mark_classes(const struct counts *c, bool *used)
{
    const struct counts_options *o = &c->options;
    size_t n = c->phases * c->phases * (o->det_y + 2 * c->pad_y) * (o->det_x + 2 * c->pad_x);
    int low = CLASS_COUNT, high = 0;
    for (size_t i = 0; i < n; i++) {
        low = c->pattern[i] < low ? c->pattern[i] : low;
        high = c->pattern[i] > high ? c->pattern[i] : high;
    }
    for (int class = low - CLASS_MARGIN; class < high + CLASS_MARGIN; class ++)
        used[class] = true;
    for (int i = 0; i < HOT; i++)
        used[class_of(20 * (i + 1))] = true;
}

static bool make_tables(struct counts *c)
{
    bool used[CLASS_COUNT] = {false};
    size_t total = 0, most = 0;
    mark_classes(c, used);
    for (int class = 0; class < CLASS_COUNT; class ++) {
        size_t n = used[class] ? (size_t)1 << class_window(class_mean(class)).bits : 0;
        total += n;
        most = n > most ? n : most;
    }
    c->columns = malloc(total * sizeof(*c->columns));
    double *p = malloc(most * sizeof(*p));
    uint32_t *stack = malloc(most * sizeof(*stack));
    bool ok = c->columns && p && stack;
    struct column *next = c->columns;
    for (int class = 0; ok && class < CLASS_COUNT; class ++) {
        if (!used[class])
            continue;
        struct window w = class_window(class_mean(class));
        fill_table(next, w, class_mean(class), p, stack);
        c->tables[class] = (struct table){next, w.base, 32 - w.bits};
        next += (size_t)1 << w.bits;
    }
    free(p);
    free(stack);
    return ok;
}

/* ---- frames ---- */

static inline uint32_t draw(const struct table *table, uint32_t random)
{
    uint32_t column = random >> table->shift, low = random & ((1u << table->shift) - 1);
    struct column at = table->columns[column];
    return table->base + (low < at.below ? column : at.other);
}

/* Where the pattern lies in this frame, in phases from the pad's corner, and how much brighter it is. */
static void frame_place(const struct counts *c, uint64_t frame, size_t *y, size_t *x,
                        int *brightness)
{
    const struct counts_options *o = &c->options;
    double v = (double)(frame / o->scan_x) / (double)o->scan_y * 2 * M_PI;
    double u = (double)(frame % o->scan_x) / (double)o->scan_x * 2 * M_PI;
    double reach = disk_radius(o) / 25;
    double dy = reach * (0.6 * sin(u + 0.4) + 0.4 * sin(2 * v)),
           dx = reach * (0.7 * cos(v) + 0.3 * sin(2 * u + 1));
    double share = (o->thick ? &thick : &thin)->brightness;
    double bright = 1 + share * (sin(3 * u + 0.5) * cos(2 * v) + 0.7 * sin(v + 1));
    *y = (size_t)lround((dy + (double)c->pad_y) * (double)c->phases);
    *x = (size_t)lround((dx + (double)c->pad_x) * (double)c->phases);
    *brightness = (int)lround(log(bright) / CLASS_STEP);
}

static void draw_row(const struct counts *c, uint32_t *dst, const uint16_t *pattern,
                     const int16_t *gain, int brightness, uint64_t key)
{
    size_t width = c->options.det_x;
    for (size_t x = 0; x < width; x += 2) {
        uint64_t random = mix(key + x * GOLDEN);
        dst[x] = draw(&c->tables[pattern[x] + gain[x] + brightness], (uint32_t)random);
        if (x + 1 < width)
            dst[x + 1] = draw(&c->tables[pattern[x + 1] + gain[x + 1] + brightness],
                              (uint32_t)(random >> 32));
    }
}

static void narrow(void *dst, const uint32_t *src, size_t n, size_t elem_bytes)
{
    uint8_t *u1 = dst;
    uint16_t *u2 = dst;
    switch (elem_bytes) {
    case 1:
        for (size_t i = 0; i < n; i++)
            u1[i] = (uint8_t)(src[i] < UINT8_MAX ? src[i] : UINT8_MAX - 1);
        break;
    case 2:
        for (size_t i = 0; i < n; i++)
            u2[i] = (uint16_t)(src[i] < UINT16_MAX ? src[i] : UINT16_MAX - 1);
        break;
    default: memcpy(dst, src, n * sizeof(*src));
    }
}

/* The classes of a frame's first pixel and its neighbours; *stride: from one row to the next. */
static const uint16_t *frame_pattern(const struct counts *c, uint64_t frame, size_t *stride,
                                     int *brightness)
{
    size_t y0, x0;
    *stride = c->options.det_x + 2 * c->pad_x;
    frame_place(c, frame, &y0, &x0, brightness);
    size_t phase = y0 % c->phases * c->phases + x0 % c->phases;
    return c->pattern + phase * (c->options.det_y + 2 * c->pad_y) * *stride +
           y0 / c->phases * *stride + x0 / c->phases;
}

void counts_means(const struct counts *c, uint64_t frame, double *means)
{
    size_t stride;
    int brightness;
    const uint16_t *pattern = frame_pattern(c, frame, &stride, &brightness);
    for (size_t i = 0; i < c->options.det_y * c->options.det_x; i++) {
        size_t y = i / c->options.det_x, x = i % c->options.det_x;
        means[i] = class_mean(pattern[y * stride + x] + c->gain[i] + brightness);
    }
}

void counts_frame(const struct counts *c, uint64_t frame, void *dst, uint32_t *scratch)
{
    const struct counts_options *o = &c->options;
    size_t stride, n_pixels = o->det_y * o->det_x;
    int brightness;
    const uint16_t *pattern = frame_pattern(c, frame, &stride, &brightness);
    uint64_t key = stream_key(o->seed, frame);
    for (size_t y = 0; y < o->det_y; y++)
        draw_row(c, scratch + y * o->det_x, pattern + y * stride, c->gain + y * o->det_x,
                 brightness, key + y * (o->det_x + 2) * GOLDEN);
    for (size_t i = 0; i < c->n_hot; i++)
        scratch[c->hot[i]] =
            draw(&c->tables[class_of(20 * ((double)i + 1))], (uint32_t)mix(key - (i + 1) * GOLDEN));
    narrow(dst, scratch, n_pixels, o->elem_bytes);
    for (size_t i = 0; i < c->n_flagged; i++)
        memset((uint8_t *)dst + c->flagged[i] * o->elem_bytes, 0xff, o->elem_bytes);
}

const uint32_t *counts_flagged(const struct counts *counts, size_t *n)
{
    *n = counts->n_flagged;
    return counts->flagged;
}

struct counts *counts_new(const struct counts_options *options)
{
    struct counts *c = calloc(1, sizeof(*c));
    if (!c)
        return NULL;
    size_t n_pixels = options->det_y * options->det_x;
    c->options = *options;
    c->pad_y = c->pad_x = (size_t)ceil(disk_radius(options) / 25) + 1;
    c->phases = n_pixels <= 1u << 18 ? 4 : 1; /* on a large detector whole pixels are fine enough */
    size_t map = (options->det_y + 2 * c->pad_y) * (options->det_x + 2 * c->pad_x);
    c->pattern = malloc(c->phases * c->phases * map * sizeof(*c->pattern));
    c->gain = malloc(n_pixels * sizeof(*c->gain));
    c->tables = calloc(CLASS_COUNT, sizeof(*c->tables));
    if (!c->pattern || !c->gain || !c->tables)
        goto fail;
    make_pattern(c);
    make_gain(c);
    choose_pixels(c);
    if (!make_tables(c))
        goto fail;
    return c;
fail:
    counts_free(c);
    return NULL;
}

void counts_free(struct counts *counts)
{
    if (!counts)
        return;
    free(counts->pattern);
    free(counts->gain);
    free(counts->tables);
    free(counts->columns);
    free(counts);
}
