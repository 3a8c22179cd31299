/* SPDX-License-Identifier: Apache-2.0 */
#include "view_plan.h"

#include <stdio.h>
#include <string.h>

typedef unsigned long long ull;

struct dtype {
    const char *name;
    enum view_out out;
    uint32_t bytes;
    int64_t least, most;
};
static const struct dtype dtypes[] = {
    {"u1", VIEW_INTEGER, 1, 0, UINT8_MAX},
    {"u2", VIEW_INTEGER, 2, 0, UINT16_MAX},
    {"u4", VIEW_INTEGER, 4, 0, UINT32_MAX},
    {"i1", VIEW_INTEGER, 1, INT8_MIN, INT8_MAX},
    {"i2", VIEW_INTEGER, 2, INT16_MIN, INT16_MAX},
    {"i4", VIEW_INTEGER, 4, INT32_MIN, INT32_MAX},
    {"f4", VIEW_F4, 4, 0, 0},
    {"f2", VIEW_F2, 2, 0, 0},
};

static const struct dtype *find_dtype(const char *name)
{
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        if (strcmp(dtypes[i].name, name) == 0)
            return &dtypes[i];
    }
    return NULL;
}

/* ---- what comes in ------------------------------------------------------------------------------- */

/* Whole numbers of up to 32 bits; all else is only moved. */
static bool is_counted(const struct resident *resident)
{
    const struct dtype *dtype = find_dtype(resident->dtype);
    return dtype && dtype->out == VIEW_INTEGER;
}

static enum view_in kind_of(const struct resident *resident)
{
    bool is_signed = resident->dtype[0] == 'i';
    switch (resident->shape.elem_bytes) {
    case 1: return is_signed ? VIEW_I1 : VIEW_U1;
    case 2: return is_signed ? VIEW_I2 : VIEW_U2;
    case 4: return is_signed ? VIEW_I4 : VIEW_U4;
    default: return VIEW_U8;
    }
}

static int check_source(const struct view_ask *ask, const struct resident *resident,
                        struct stow_error *err)
{
    bool same = !ask->dtype[0] || strcmp(ask->dtype, resident->dtype) == 0;
    if (!resident->shape.n_elems)
        return error_set(err, STOW_INVALID, "frames without a pixel have no view");
    if (resident->shape.n_elems > INT32_MAX)
        return error_set(err, STOW_UNSUPPORTED,
                         "frames of %llu pixels have no view, %d is the most",
                         (ull)resident->shape.n_elems, INT32_MAX);
    if (!is_counted(resident) &&
        (!same || ask->bin > 1 || ask->root || ask->correction == VIEW_MEDIAN))
        return error_set(err, STOW_UNSUPPORTED,
                         "pixels of %s are shown as they are: crop, padding, fftshift and mask "
                         "correction zero are there for them; another dtype, sqrt, bins and median "
                         "are not",
                         resident->dtype);
    return 0;
}

/* ---- step by step -------------------------------------------------------------------------------- */

static int plan_crop(struct view *view, const struct view_ask *ask, const struct resident *resident,
                     struct stow_error *err)
{
    const uint64_t det_y = resident->det_y, det_x = resident->det_x;
    view->det_y = (uint32_t)det_y;
    view->det_x = (uint32_t)det_x;
    view->crop_h = view->det_y;
    view->crop_w = view->det_x;
    if (!ask->crop_y && !ask->crop_x && !ask->crop_h && !ask->crop_w)
        return 0;
    if (!ask->crop_h || !ask->crop_w)
        return error_set(err, STOW_INVALID, "a crop of %llux%llu pixels has nothing to show",
                         (ull)ask->crop_h, (ull)ask->crop_w);
    if (ask->crop_y >= det_y || ask->crop_h > det_y - ask->crop_y || ask->crop_x >= det_x ||
        ask->crop_w > det_x - ask->crop_x)
        return error_set(
            err, STOW_INVALID,
            "a crop of %llux%llu pixels from row %llu, column %llu on is outside of the "
            "detector, which has %llux%llu",
            (ull)ask->crop_h, (ull)ask->crop_w, (ull)ask->crop_y, (ull)ask->crop_x, (ull)det_y,
            (ull)det_x);
    view->crop_y = (uint32_t)ask->crop_y;
    view->crop_x = (uint32_t)ask->crop_x;
    view->crop_h = (uint32_t)ask->crop_h;
    view->crop_w = (uint32_t)ask->crop_w;
    return 0;
}

static void plan_bins(struct view *view, const struct view_ask *ask)
{
    view->bin = ask->bin ? ask->bin : 1;
    view->bins_y = view->crop_h / view->bin;
    view->bins_x = view->crop_w / view->bin;
    view->bins_y = view->bins_y ? view->bins_y : 1;
    view->bins_x = view->bins_x ? view->bins_x : 1;
}

static int plan_dtype(struct view_plan *plan, const struct view_ask *ask,
                      const struct resident *resident, struct stow_error *err)
{
    struct view *view = &plan->view;
    const char *name = ask->dtype[0] ? ask->dtype : ask->root ? "f4" : resident->dtype;
    const struct dtype *dtype = find_dtype(name);
    snprintf(plan->dtype, sizeof(plan->dtype), "%s", name);
    if (!is_counted(resident)) {
        view->out_bytes = resident->shape.elem_bytes;
        view->least = view->out_bytes == 8 ? INT64_MIN : 0;
        view->most = view->out_bytes == 8 ? INT64_MAX : UINT32_MAX;
        return 0;
    }
    if (!dtype)
        return error_set(err, STOW_INVALID,
                         "a view has no dtype \"%s\": u1, u2, u4, i1, i2, i4, f4 and f2 are there",
                         ask->dtype);
    if (ask->root && strcmp(name, "f4") != 0)
        return error_set(err, STOW_INVALID, "square roots are given in f4, not in %s", name);
    view->out = ask->root ? VIEW_ROOT : dtype->out;
    view->out_bytes = dtype->bytes;
    view->least = dtype->least;
    view->most = dtype->most;
    return 0;
}

static int plan_padding(struct view *view, const struct view_ask *ask, struct stow_error *err)
{
    bool padded = ask->pad_y || ask->pad_x;
    if (padded && (ask->pad_y < view->bins_y || ask->pad_x < view->bins_x))
        return error_set(err, STOW_INVALID,
                         "padding to %llux%llu is too small: after crop and bins a frame has %ux%u "
                         "pixels",
                         (ull)ask->pad_y, (ull)ask->pad_x, view->bins_y, view->bins_x);
    if (padded && (ask->pad_y > VIEW_MAX_SIDE || ask->pad_x > VIEW_MAX_SIDE))
        return error_set(err, STOW_INVALID, "padding to %llux%llu: the most is %ux%u",
                         (ull)ask->pad_y, (ull)ask->pad_x, VIEW_MAX_SIDE, VIEW_MAX_SIDE);
    view->size_y = padded ? (uint32_t)ask->pad_y : view->bins_y;
    view->size_x = padded ? (uint32_t)ask->pad_x : view->bins_x;
    view->at_y = (view->size_y - view->bins_y) / 2;
    view->at_x = (view->size_x - view->bins_x) / 2;
    view->shift_y = ask->shift ? view->size_y / 2 : 0;
    view->shift_x = ask->shift ? view->size_x / 2 : 0;
    return 0;
}

/* ---- flagged pixels ------------------------------------------------------------------------------ */

static bool has_neighbour(const struct view *view, const uint8_t *flags, uint32_t y, uint32_t x)
{
    for (uint32_t row = y ? y - 1 : 0; row <= y + 1 && row < view->det_y; row++) {
        for (uint32_t column = x ? x - 1 : 0; column <= x + 1 && column < view->det_x; column++) {
            if (!flags[(size_t)row * view->det_x + column])
                return true;
        }
    }
    return false;
}

static void count_flagged(struct view_plan *plan, const uint8_t *flags)
{
    const struct view *view = &plan->view;
    for (uint32_t r = 0; r < view->crop_h; r++) {
        for (uint32_t c = 0; c < view->crop_w; c++) {
            uint32_t y = view->crop_y + r, x = view->crop_x + c;
            if (!flags[(size_t)y * view->det_x + x])
                continue;
            if (view->correction == VIEW_MEDIAN && !has_neighbour(view, flags, y, x))
                plan->n_kept++;
            else
                plan->n_flagged++;
        }
    }
}

int view_plan_make(struct view_plan *plan, const struct view_ask *ask,
                   const struct resident *resident, struct stow_error *err)
{
    *plan = (struct view_plan){.view = {.in = kind_of(resident), .correction = ask->correction},
                               .shifted = ask->shift};
    int rc = check_source(ask, resident, err);
    if (!rc)
        rc = plan_crop(&plan->view, ask, resident, err);
    if (!rc)
        plan_bins(&plan->view, ask);
    if (!rc)
        rc = plan_dtype(plan, ask, resident, err);
    if (!rc)
        rc = plan_padding(&plan->view, ask, err);
    if (!rc && ask->correction != VIEW_AS_IT_IS && resident->sums.flags)
        count_flagged(plan, resident->sums.flags);
    return rc;
}
