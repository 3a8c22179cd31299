/* SPDX-License-Identifier: Apache-2.0
 *
 * view on the CPU: a row of bins at a time. Rows of pixels are added up first, column by column, then the columns of
 * each bin, LINE at a time on the stack; flagged pixels, which are few, are looked for afterwards and what they have
 * changed is added. Where the result's pixels are the frame's and none is
 * corrected, rows are copied. */
#include "view.h"

#include "wide.h"

#define LINE 512u

/* Bins first .. first + n - 1 of one row of them; the last has last_length columns, all others view->bin. */
struct run {
    const struct view_work *work;
    const uint8_t *frame;
    uint32_t y, first, n, last_length;
    int64_t sums[LINE];
};

/* ---- sums of a run -------------------------------------------------------------------------------- */

/* Unsigned additions: pixels that are only moved may be anything. */
#define ADD_ROW(name, pixel_type)                                                  \
    WIDE_LOOPS static void name(int64_t *sums, const void *row, uint32_t n)        \
    {                                                                              \
        const pixel_type *pixels = row;                                            \
        for (uint32_t i = 0; i < n; i++)                                           \
            sums[i] = (int64_t)((uint64_t)sums[i] + (uint64_t)(int64_t)pixels[i]); \
    }

ADD_ROW(add_u1, uint8_t)
ADD_ROW(add_u2, uint16_t)
ADD_ROW(add_u4, uint32_t)
ADD_ROW(add_8, int64_t)
ADD_ROW(add_i1, int8_t)
ADD_ROW(add_i2, int16_t)
ADD_ROW(add_i4, int32_t)

/* The next pixel from `at` on that is flagged, or end. */
static uint64_t next_flagged(const uint8_t *flags, uint64_t at, uint64_t end)
{
    uint64_t eight;
    for (; at + sizeof(eight) <= end; at += sizeof(eight)) {
        memcpy(&eight, flags + at, sizeof(eight));
        if (eight)
            break;
    }
    while (at < end && !flags[at])
        at++;
    return at;
}

/* Row y of the detector: put what flagged pixels become in the place of what they are. */
static void correct_row(struct run *run, uint32_t y, uint32_t x, uint32_t n_columns)
{
    const struct view *view = &run->work->view;
    const uint8_t *flags = (const uint8_t *)(uintptr_t)run->work->flags;
    const uint64_t row = (uint64_t)y * view->det_x, end = row + x + n_columns;
    for (uint64_t at = row + x; (at = next_flagged(flags, at, end)) < end; at++) {
        uint32_t column = (uint32_t)(at - row), bin = (column - x) / view->bin;
        int64_t was = view_pixel(run->frame, view->in, at),
                is = view_corrected(view, view->in, run->frame, flags, y, column);
        int64_t *sum = &run->sums[bin < run->n ? bin : run->n - 1];
        *sum = (int64_t)((uint64_t)*sum - (uint64_t)was + (uint64_t)is);
    }
}

/* Add n columns, from number `first` of the run on, to their bins. */
static void fold(struct run *run, const int64_t *columns, uint32_t first, uint32_t n)
{
    const uint32_t bin = run->work->view.bin, last = run->n - 1;
    uint32_t b = first / bin < last ? first / bin : last;
    for (uint32_t i = 0, until = (b + 1) * bin - first; i < n; b++, until += bin) {
        int64_t sum = 0;
        until = b < last && until < n ? until : n;
        for (; i < until; i++)
            sum += columns[i];
        run->sums[b] += sum;
    }
}

static void sum_run(struct run *run)
{
    static void (*const add[])(int64_t * sums, const void *row, uint32_t n) = {
        [VIEW_U1] = add_u1, [VIEW_U2] = add_u2, [VIEW_U4] = add_u4, [VIEW_U8] = add_8,
        [VIEW_I1] = add_i1, [VIEW_I2] = add_i2, [VIEW_I4] = add_i4,
    };
    const struct view *view = &run->work->view;
    const uint32_t x = view->crop_x + run->first * view->bin,
                   n_columns = (run->n - 1) * view->bin + run->last_length;
    const uint32_t y = view->crop_y + run->y * view->bin,
                   n_rows = view_bin_length(run->y, view->bins_y, view->bin, view->crop_h);
    const uint32_t bytes = view_in_bytes(view->in);
    int64_t columns[LINE], *sums = view->bin == 1 ? run->sums : columns;
    memset(run->sums, 0, run->n * sizeof(run->sums[0]));
    for (uint32_t c = 0, n; c < n_columns; c += n) {
        n = n_columns - c < LINE ? n_columns - c : LINE;
        memset(sums, 0, n * sizeof(sums[0]));
        for (uint32_t r = 0; r < n_rows; r++)
            add[view->in](sums, run->frame + ((uint64_t)(y + r) * view->det_x + x + c) * bytes, n);
        if (view->bin > 1)
            fold(run, columns, c, n);
    }
    for (uint32_t r = 0; run->work->flags && view->correction && r < n_rows; r++)
        correct_row(run, y + r, x, n_columns);
}

/* ---- results -------------------------------------------------------------------------------------- */

#define STORE_WHOLE(name, pixel_type)                                      \
    WIDE_LOOPS static bool name(void *to, const int64_t *sums, uint32_t n, \
                                const struct view *view)                   \
    {                                                                      \
        const int64_t least = view->least, most = view->most;              \
        pixel_type *pixels = to;                                           \
        int out = 0;                                                       \
        for (uint32_t i = 0; i < n; i++) {                                 \
            out |= (sums[i] < least) | (sums[i] > most);                   \
            pixels[i] = (pixel_type)(uint64_t)sums[i];                     \
        }                                                                  \
        return !out;                                                       \
    }

STORE_WHOLE(store_1, uint8_t)
STORE_WHOLE(store_2, uint16_t)
STORE_WHOLE(store_4, uint32_t)
STORE_WHOLE(store_8, uint64_t)

#define STORE_REAL(name, pixel_type, out_kind)                                                     \
    static bool name(void *to, const int64_t *sums, uint32_t n)                                    \
    {                                                                                              \
        static const struct view view = {.out =                                                    \
                                             out_kind}; /* known here, so that nothing is asked */ \
        pixel_type *pixels = to;                                                                   \
        bool fits = true;                                                                          \
        for (uint32_t i = 0; i < n; i++) {                                                         \
            uint64_t bits;                                                                         \
            fits &= view_convert(&bits, &view, sums[i]);                                           \
            pixels[i] = (pixel_type)bits;                                                          \
        }                                                                                          \
        return fits;                                                                               \
    }

STORE_REAL(store_f2, uint16_t, VIEW_F2)
STORE_REAL(store_f4, uint32_t, VIEW_F4)
STORE_REAL(store_root, uint32_t, VIEW_ROOT)

static bool store(void *to, const int64_t *sums, uint32_t n, const struct view *view)
{
    if (view->out == VIEW_F2)
        return store_f2(to, sums, n);
    if (view->out != VIEW_INTEGER)
        return view->out == VIEW_F4 ? store_f4(to, sums, n) : store_root(to, sums, n);
    switch (view->out_bytes) {
    case 1: return store_1(to, sums, n, view);
    case 2: return store_2(to, sums, n, view);
    case 4: return store_4(to, sums, n, view);
    default: return store_8(to, sums, n, view);
    }
}

/* Pixels that are the frame's own bytes. */
static bool is_moved(const struct view_work *work)
{
    static const int64_t least[] = {
        [VIEW_I1] = INT8_MIN, [VIEW_I2] = INT16_MIN, [VIEW_I4] = INT32_MIN};
    static const int64_t most[] = {
        [VIEW_U1] = UINT8_MAX, [VIEW_U2] = UINT16_MAX, [VIEW_U4] = UINT32_MAX, [VIEW_U8] = 0,
        [VIEW_I1] = INT8_MAX,  [VIEW_I2] = INT16_MAX,  [VIEW_I4] = INT32_MAX};
    const struct view *view = &work->view;
    return view->bin == 1 && !(work->flags && view->correction) && view->out == VIEW_INTEGER &&
           view->out_bytes == view_in_bytes(view->in) && view->least <= least[view->in] &&
           view->most >= most[view->in];
}

/* A run to its place in its row of the result: in two pieces where it is rolled around. */
static bool put_run(const struct run *run, uint8_t *row, bool moved)
{
    const struct view *view = &run->work->view;
    const uint32_t bytes = view->out_bytes;
    uint32_t column = (view->at_x + run->first + view->shift_x) % view->size_x;
    uint64_t from = (uint64_t)(view->crop_y + run->y) * view->det_x + view->crop_x + run->first;
    bool fits = true;
    for (uint32_t done = 0, n; done < run->n; done += n, column = 0) {
        n = run->n - done;
        n = n < view->size_x - column ? n : view->size_x - column;
        uint8_t *to = row + (uint64_t)column * bytes;
        if (moved)
            memcpy(to, run->frame + (from + done) * bytes, (size_t)n * bytes);
        else
            fits &= store(to, run->sums + done, n, view);
    }
    return fits;
}

static bool put_row(struct run *run, uint8_t *row, bool moved)
{
    const struct view *view = &run->work->view;
    bool fits = true;
    for (run->first = 0; run->first < view->bins_x; run->first += run->n) {
        uint32_t left = view->bins_x - run->first;
        run->n = left < LINE ? left : LINE;
        run->last_length =
            view_bin_length(run->first + run->n - 1, view->bins_x, view->bin, view->crop_w);
        if (!moved)
            sum_run(run);
        fits &= put_run(run, row, moved);
    }
    return fits;
}

void view_frame(const struct view_work *work, uint64_t i)
{
    const struct view *view = &work->view;
    const size_t row_bytes = (size_t)view->size_x * view->out_bytes;
    const bool moved = is_moved(work);
    uint8_t *to = (uint8_t *)(uintptr_t)(work->dst + i * work->dst_stride);
    struct run run = {.work = work,
                      .frame = (const uint8_t *)(uintptr_t)(work->src + i * work->src_stride)};
    bool fits = true;
    for (uint32_t r = 0; r < view->size_y; r++, to += row_bytes) {
        run.y = (r + view->size_y - view->shift_y) % view->size_y - view->at_y;
        if (run.y >= view->bins_y || view->bins_x < view->size_x)
            memset(to, 0, row_bytes);
        if (run.y < view->bins_y)
            fits &= put_row(&run, to, moved);
    }
    if (!fits)
        ((int32_t *)(uintptr_t)work->status)[i] = STOW_NOFIT;
}
