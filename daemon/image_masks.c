/* SPDX-License-Identifier: Apache-2.0 */
#include "image_masks.h"

#include "ring_tables.h"
#include "sealed.h"

#include <string.h>

static void put(void *weights, uint64_t i, enum weight_kind kind, bool on)
{
    if (kind == WEIGHT_U8)
        ((uint8_t *)weights)[i] = on;
    else if (kind == WEIGHT_I32)
        ((int32_t *)weights)[i] = on;
    else
        ((double *)weights)[i] = on;
}

static void draw_annulus(void *weights, const struct image_annulus *a, enum weight_kind kind,
                         uint64_t det_y, uint64_t det_x)
{
    for (uint64_t y = 0, i = 0; y < det_y; y++) {
        double dy = (double)y - a->center_y;
        for (uint64_t x = 0; x < det_x; x++, i++) {
            double r = ring_radius(dy, (double)x - a->center_x);
            put(weights, i, kind, a->inner <= r && r < a->outer);
        }
    }
}

static void clear_flagged(void *weights, const uint8_t *flags, enum weight_kind kind, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        if (flags[i])
            put(weights, i, kind, false);
    }
}

/* ---- overflow ---- */

static uint64_t sum_of_magnitudes(const void *weights, enum weight_kind kind, uint64_t n)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < n; i++) {
        int64_t w =
            kind == WEIGHT_U8 ? ((const uint8_t *)weights)[i] : ((const int32_t *)weights)[i];
        sum += (uint64_t)(w < 0 ? -w : w);
    }
    return sum;
}

static bool overflows(uint64_t magnitudes, uint64_t count)
{
    uint64_t most;
    return __builtin_mul_overflow(magnitudes, count, &most) || most > INT64_MAX;
}

/* The largest magnitude that the type has. */
static uint64_t largest_of_type(const struct frame_shape *shape)
{
    return UINT64_MAX >> (64 - 8 * shape->elem_bytes) >> (shape->kind == PIXEL_SIGNED) |
           (uint64_t)(shape->kind == PIXEL_SIGNED) << (8 * shape->elem_bytes - 1);
}

/* Of all frames, as far as it is known. */
static uint64_t largest_count(const struct resident *resident, bool flagged)
{
    uint64_t most = 0;
    if (!resident->sums.stats)
        return largest_of_type(&resident->shape);
    for (uint64_t i = 0; i < resident->n_frames; i++) {
        const struct frame_stats *stats = &resident->sums.stats[i];
        uint64_t max = flagged ? stats->all_max : stats->max;
        most = max > most ? max : most;
    }
    return most;
}

/* What the type of the counts allows is enough nearly always; else it is looked at what there really is. */
static int check_sum(uint32_t number, const void *weights, const struct image_work *all,
                     struct stow_error *err)
{
    const struct resident *resident = all->resident;
    uint64_t sum = sum_of_magnitudes(weights, all->weights, resident->shape.n_elems);
    if (!overflows(sum, largest_of_type(&resident->shape)))
        return 0;
    uint64_t count = largest_count(resident, all->ask.flagged);
    if (!overflows(sum, count))
        return 0;
    return error_set(err, STOW_LIMIT,
                     "mask %u: its weights add up to %llu and counts go up to %llu, so that a sum "
                     "could need more than 63 bits; use smaller weights, or float64 ones",
                     number, (unsigned long long)sum, (unsigned long long)count);
}

/* ---- all of it ---- */

static int check_annuli(const struct image_ask *ask, struct stow_error *err)
{
    for (uint32_t i = 0; i < ask->n_annuli; i++) {
        const struct image_annulus *a = &ask->annuli[i];
        if (!(a->inner < a->outer) || !isfinite(a->center_y) || !isfinite(a->center_x))
            return error_set(err, STOW_INVALID,
                             "annulus %g,%g about %g,%g: the outer radius is to be larger than the "
                             "inner one, and the centre a number",
                             a->inner, a->outer, a->center_y, a->center_x);
    }
    return 0;
}

/* The masks that were sent, perhaps narrower than what sums are made with: those come to stand at the end of their
 * room, and are widened from its beginning on. */
static int read_masks(uint8_t *weights, const struct image_work *all, struct stow_error *err)
{
    const struct image_ask *ask = &all->ask;
    uint64_t n = ask->n_masks * all->resident->shape.n_elems;
    uint32_t from = weight_bytes(ask->weights), to = weight_bytes(all->weights);
    uint8_t *sent = weights + n * (to - from);
    int rc = sealed_read(ask->masks_fd, sent, n * from, "weights", err);
    for (uint64_t i = 0; !rc && from < to && i < n; i++) {
        int32_t whole = sent[i * from];
        if (from == sizeof(whole))
            memcpy(&whole, sent + i * from, sizeof(whole));
        double weight = whole;
        memcpy(weights + i * sizeof(weight), &weight, sizeof(weight));
    }
    return rc;
}

int masks_make(void *weights, const struct image_work *all, struct stow_error *err)
{
    const struct image_ask *ask = &all->ask;
    const struct resident *resident = all->resident;
    uint64_t n = resident->shape.n_elems, bytes = n * weight_bytes(all->weights);
    int rc = check_annuli(ask, err);
    if (!rc && ask->n_masks)
        rc = read_masks(weights, all, err);
    for (uint32_t m = 0; !rc && m < all->n_sums; m++) {
        void *mask = (uint8_t *)weights + m * bytes;
        if (m >= ask->n_masks)
            draw_annulus(mask, &ask->annuli[m - ask->n_masks], all->weights, resident->det_y,
                         resident->det_x);
        if (resident->sums.flags && !ask->flagged)
            clear_flagged(mask, resident->sums.flags, all->weights, n);
        if (all->weights != WEIGHT_F64)
            rc = check_sum(m, mask, all, err);
    }
    return rc;
}
