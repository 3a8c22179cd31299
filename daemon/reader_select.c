/* SPDX-License-Identifier: Apache-2.0 */
#define H5_USE_110_API 1
#include "reader_select.h"

#include <string.h>

#define OUTSIDE UINT64_MAX

/* ---- from HDF5 ------------------------------------------------------------------------------- */

static uint64_t endless(hsize_t n)
{
    return n == H5S_UNLIMITED ? READER_ENDLESS : n;
}

/* Sizes along one dimension; a block that touches the next one is one with it. */
static const char *set_dim(struct reader_select *select, unsigned i, uint64_t count,
                           uint64_t stride, uint64_t block)
{
    if (stride == 0 || block == 0 || count == 0 || (count > 1 && block > stride))
        return "a selection that makes no sense";
    if (count > 1 && stride == block) {
        if (count == READER_ENDLESS)
            block = READER_ENDLESS;
        else if (__builtin_mul_overflow(count, block, &block))
            return "an impossible selection";
        count = 1;
    }
    select->stride[i] = stride;
    select->block[i] = block;
    if (count == READER_ENDLESS || block == READER_ENDLESS) {
        if (select->endless >= 0 || (block == READER_ENDLESS && count != 1))
            return "a selection without end in more than one way";
        select->endless = (int)i;
        select->n[i] = READER_ENDLESS;
        return NULL;
    }
    return __builtin_mul_overflow(count, block, &select->n[i]) ? "an impossible selection" : NULL;
}

static const char *read_slab(hid_t space, struct reader_select *select)
{
    hsize_t start[READER_RANK], stride[READER_RANK], count[READER_RANK], block[READER_RANK];
    if (H5Sis_regular_hyperslab(space) <= 0 ||
        H5Sget_regular_hyperslab(space, start, stride, count, block) < 0)
        return "a selection that is not regular";
    const char *wrong = NULL;
    for (unsigned i = 0; !wrong && i < select->rank; i++) {
        select->start[i] = start[i];
        wrong = set_dim(select, i, endless(count[i]), stride[i], endless(block[i]));
    }
    return wrong;
}

const char *reader_select_read(hid_t space, struct reader_select *select)
{
    *select = (struct reader_select){.endless = -1};
    H5S_sel_type kind = H5Sget_select_type(space);
    int rank = H5Sget_simple_extent_ndims(space);
    select->all = kind == H5S_SEL_ALL; /* files do not keep the rank of that */
    if (select->all)
        return NULL;
    if (kind == H5S_SEL_POINTS)
        return "a selection of single points";
    if (rank < 1 || rank > (int)READER_RANK)
        return "a selection in too few or too many dimensions";
    select->rank = (unsigned)rank;
    return kind == H5S_SEL_NONE ? NULL : read_slab(space, select);
}

void reader_select_set_dims(struct reader_select *select, const hsize_t *dims, unsigned rank)
{
    if (select->all)
        select->rank = rank;
    for (unsigned i = 0; i < rank; i++) {
        select->dims[i] = dims[i];
        if (select->all) {
            select->start[i] = 0;
            select->stride[i] = 1;
            select->block[i] = select->n[i] = dims[i];
        }
    }
}

uint64_t reader_select_count(const struct reader_select *select, uint64_t extent)
{
    const int i = select->endless;
    if (extent <= select->start[i])
        return 0;
    uint64_t length = extent - select->start[i];
    if (select->block[i] == READER_ENDLESS)
        return length;
    uint64_t rest = length % select->stride[i];
    return length / select->stride[i] * select->block[i] +
           (rest < select->block[i] ? rest : select->block[i]);
}

/* The place of selected element number k along dimension i. */
static uint64_t index_of(const struct reader_select *select, unsigned i, uint64_t k)
{
    uint64_t block = select->block[i], at;
    if (k < block)
        at = k;
    else if (__builtin_mul_overflow(k / block, select->stride[i], &at) ||
             __builtin_add_overflow(at, k % block, &at))
        return OUTSIDE;
    return __builtin_add_overflow(at, select->start[i], &at) ? OUTSIDE : at;
}

uint64_t reader_select_extent(const struct reader_select *select, unsigned dim, uint64_t n)
{
    uint64_t last = n ? index_of(select, dim, n - 1) : 0;
    return n == 0 || last == OUTSIDE ? 0 : last + 1;
}

/* ---- frames, rows and columns ---------------------------------------------------------------- */

/* What one side has of each, in C order. A dataset of one dimension has frames of one row. */
static uint64_t n_frames_of(const struct reader_select *select)
{
    uint64_t n = 1;
    for (unsigned i = 0; i + 2 < select->rank; i++)
        if (__builtin_mul_overflow(n, select->n[i], &n))
            return OUTSIDE;
    return n;
}

/* The number of the k-th selected frame among all of the dataset; OUTSIDE: past its end. */
static uint64_t frame_at(const struct reader_select *select, uint64_t k)
{
    uint64_t frame = 0, stride = 1;
    for (unsigned i = select->rank - 2; i-- > 0;) {
        uint64_t at = index_of(select, i, k % select->n[i]);
        if (at >= select->dims[i])
            return OUTSIDE;
        frame += at * stride;
        stride *= select->dims[i];
        k /= select->n[i];
    }
    return k == 0 ? frame : OUTSIDE;
}

/* A run of places on both sides that step alike. */
struct run {
    uint64_t to, from, n;
};

/* The run of neighbours along a dimension of the frame that begins with element k. */
static struct run side_run(const struct reader_mapping *mapping, unsigned back, uint64_t k)
{
    const struct reader_select *to = &mapping->to, *from = &mapping->from;
    unsigned i = to->rank - back, j = from->rank - back;
    struct run run = {index_of(to, i, k), index_of(from, j, k), 1};
    uint64_t left = to->n[i] - k;
    uint64_t to_block = to->block[i] - k % to->block[i],
             from_block = from->block[j] - k % from->block[j];
    uint64_t step = to_block < from_block ? to_block : from_block;
    run.n = step < left ? step : left;
    return run;
}

/* The frames that begin with selected frame k and step alike. to OUTSIDE: not of this dataset (any more). */
struct frames {
    uint64_t to, to_step, from, from_step, n;
};

static struct frames frames_from(const struct reader_mapping *mapping, uint64_t k, uint64_t end,
                                 uint64_t n_from)
{
    struct frames run = {.to_step = 1, .from_step = 1, .n = 1};
    run.to = frame_at(&mapping->to, k);
    run.from = mapping->lost || k >= n_from ? OUTSIDE : frame_at(&mapping->from, k);
    if (run.to == OUTSIDE)
        return run;
    for (k++; k < end; k++, run.n++) {
        uint64_t to = frame_at(&mapping->to, k);
        uint64_t from = mapping->lost || k >= n_from ? OUTSIDE : frame_at(&mapping->from, k);
        if (to == OUTSIDE || (from == OUTSIDE) != (run.from == OUTSIDE) ||
            (run.from != OUTSIDE && from <= run.from))
            break;
        if (run.n == 1) {
            run.to_step = to - run.to;
            run.from_step = run.from == OUTSIDE ? 1 : from - run.from;
        } else if (to != run.to + run.n * run.to_step ||
                   (run.from != OUTSIDE && from != run.from + run.n * run.from_step)) {
            break;
        }
    }
    return run;
}

/* Rows and columns of these frames: one box, or several where a side has gaps. */
static int put_boxes(const struct reader_mapping *mapping, const struct frames *frames,
                     struct reader_table *table, struct stow_error *err)
{
    const struct reader_select *to = &mapping->to;
    const uint64_t n_y = to->n[to->rank - 2], n_x = to->n[to->rank - 1];
    for (uint64_t j = 0; j < n_y;) {
        struct run y = side_run(mapping, 2, j);
        for (uint64_t i = 0; i < n_x;) {
            struct run x = side_run(mapping, 1, i);
            const struct assembly_box box = {.frame = frames->to,
                                             .frame_step = frames->to_step,
                                             .n_frames = frames->n,
                                             .from_frame = frames->from,
                                             .from_step = frames->from_step,
                                             .y = y.to,
                                             .x = x.to,
                                             .from_y = y.from,
                                             .from_x = x.from,
                                             .n_y = y.n,
                                             .n_x = x.n,
                                             .dataset = (uint32_t)mapping->set};
            int status = reader_table_add_box(table, &box, err);
            if (status)
                return status;
            i += x.n;
        }
        j += y.n;
    }
    return 0;
}

/* Whether the last selected element of the dimension `back` from the end lies in the dataset. */
static bool side_fits(const struct reader_select *select, unsigned back)
{
    unsigned i = select->rank - back;
    return index_of(select, i, select->n[i] - 1) < select->dims[i];
}

static bool is_empty(const struct reader_select *select)
{
    for (unsigned i = 0; i < select->rank; i++)
        if (select->n[i] == 0)
            return true;
    return false;
}

/* Whether both sides have frames of the same rows and columns. */
static bool same_frames(const struct reader_select *to, const struct reader_select *from)
{
    return to->n[to->rank - 1] == from->n[from->rank - 1] &&
           to->n[to->rank - 2] == from->n[from->rank - 2];
}

const char *reader_select_map(const struct reader_mapping *mapping, struct reader_table *table,
                              int *status, struct stow_error *err)
{
    const struct reader_select *to = &mapping->to, *from = &mapping->from;
    *status = 0;
    if (is_empty(to))
        return NULL;
    if (!side_fits(to, 1) || !side_fits(to, 2))
        return "pixels outside of the dataset";
    uint64_t n = n_frames_of(to);
    if (n > ASSEMBLY_MAX_PARTS)
        return "more frames than can be indexed";
    bool lost = mapping->lost;
    if (!lost &&
        (is_empty(from) || (same_frames(to, from) && !(side_fits(from, 1) && side_fits(from, 2)))))
        lost = true; /* all of it lies past the end of its source */
    if (!lost && !same_frames(to, from))
        return "pixels of frames in another order or shape";
    struct reader_mapping sure = *mapping;
    sure.lost = lost;
    uint64_t n_from = lost ? 0 : n_frames_of(from);
    for (uint64_t k = 0; !*status && k < n;) {
        struct frames run = frames_from(&sure, k, n, n_from);
        const struct reader_lost gone = {run.to, run.to_step, run.n, mapping->file};
        if (run.to != OUTSIDE)
            *status = run.from == OUTSIDE ? reader_table_add_lost(table, &gone, err)
                                          : put_boxes(&sure, &run, table, err);
        k += run.n;
    }
    return NULL;
}
