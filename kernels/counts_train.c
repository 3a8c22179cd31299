/* SPDX-License-Identifier: Apache-2.0
 *
 * counts_train: how the model of a segment is learnt. All in integers, so that it is the same everywhere.
 *
 * The order of units and the granules' brightness come from the sums over the whole segment. Granules from dim to
 * bright are put into bins of equal size, and of each bin the sample tells how often each symbol of each kind
 * would come. From that come the classes, and from them the order of units and the states of symbols.
 *
 * One pass over the sample is most of the work, so a unit is counted once only: as a symbol of four pixels if that
 * says it all, else as pairs where these do, else as pixels. */
#include "counts_train.h"

#include <stdlib.h>
#include <string.h>

#define GRANULES_A_TILE (COUNTS_TILE_UNITS / COUNTS_GRANULE_UNITS)
#define SAMPLE_PIXELS (2u << 20)
#define SEGMENT_PIXELS (160u << 20)
#define SEGMENT_LEAST 128u
#define SEGMENT_MOST 8192u

#define BRIGHT 2u          /* counts a pixel */
#define CONSTANT_FRAMES 8u /* fewer look the same by chance; but detectors' flags are sure */

uint64_t counts_segment_frames(uint64_t n_elems)
{
    uint64_t frames = SEGMENT_MOST;
    while (frames > SEGMENT_LEAST && frames * n_elems > SEGMENT_PIXELS)
        frames /= 2;
    return frames;
}

uint64_t counts_sample_frames(uint64_t n_elems, uint64_t n)
{
    uint64_t frames = SAMPLE_PIXELS / (n_elems ? n_elems : 1);
    frames = frames < 2 ? 2 : frames;
    return frames < n ? frames : n;
}

/* ---- sorting -------------------------------------------------------------------------------------- */

/* Ascending, by merging; scratch has n too. */
static void sort_keys(uint64_t *keys, uint64_t *scratch, size_t n)
{
    for (size_t run = 1; run < n; run *= 2) {
        for (size_t at = 0; at < n; at += 2 * run) {
            size_t middle = at + run < n ? at + run : n, end = at + 2 * run < n ? at + 2 * run : n;
            size_t a = at, b = middle;
            for (size_t to = at; to < end; to++) {
                bool first = b == end || (a < middle && keys[a] <= keys[b]);
                scratch[to] = first ? keys[a++] : keys[b++];
            }
        }
        memcpy(keys, scratch, n * sizeof(*keys));
    }
}

/* ---- what training holds -------------------------------------------------------------------------- */

struct training {
    struct counts_model *model;
    const void *sample;
    uint64_t n_sample;
    const uint64_t *pixel_sums;
    uint64_t n_frames;
    const struct frame_shape *shape;
    struct logarithms logs;
    uint64_t n_units;       /* those that begin in the frame */
    uint8_t *bin_of;        /* [n_granules * 64] a unit's bin, then its class, raster order */
    uint8_t *has_fixed;     /* [n_granules * 64] whether it has a constant */
    uint8_t *fixed;         /* [n_elems + 3] whether a pixel is one */
    uint64_t *granule_keys; /* [n_granules] sum and number, and as much for sorting */
    uint16_t *sorted;       /* [n_granules][64] units in their tile, bright to dim */
    struct histogram *bins; /* [BINS] */
    uint32_t n_bins;
    bool bright[BINS]; /* fours and pairs would seldom do: see count_bright */
    struct histogram merged;
};

static uint32_t pixel_at(const void *pixels, uint64_t i, uint32_t elem_bytes)
{
    return elem_bytes == 1   ? ((const uint8_t *)pixels)[i]
           : elem_bytes == 2 ? ((const uint16_t *)pixels)[i]
                             : ((const uint32_t *)pixels)[i];
}

static const void *sample_frame(const struct training *training, uint64_t i)
{
    return (const uint8_t *)training->sample + i * frame_bytes(training->shape);
}

/* ---- constants ------------------------------------------------------------------------------------ */

static bool is_constant(const struct training *training, uint64_t pixel)
{
    uint32_t elem_bytes = training->shape->elem_bytes;
    uint32_t largest = UINT32_MAX >> (32 - 8 * elem_bytes);
    uint32_t value = pixel_at(training->sample, pixel, elem_bytes);
    if (value == 0 || training->pixel_sums[pixel] != value * training->n_frames)
        return false;
    if (training->n_sample < CONSTANT_FRAMES && value < largest - 1)
        return false;
    for (uint64_t i = 1; i < training->n_sample; i++)
        if (pixel_at(sample_frame(training, i), pixel, elem_bytes) != value)
            return false;
    return true;
}

/* Where a frame is mostly constants classes say it well themselves, and none is made. */
static int find_constants(struct training *training)
{
    struct counts_model *model = training->model;
    uint64_t n = 0, n_elems = training->shape->n_elems;
    for (uint64_t i = 0; training->n_sample >= 2 && i < n_elems; i++) {
        training->fixed[i] = is_constant(training, i);
        n += training->fixed[i];
    }
    if (n > n_elems / 4) {
        memset(training->fixed, 0, n_elems);
        n = 0;
    }
    model->constants = malloc((n + 1) * sizeof(*model->constants));
    if (!model->constants)
        return STOW_NOMEM;
    for (uint64_t i = 0; n && i < n_elems; i++)
        if (training->fixed[i]) {
            training->has_fixed[i / COUNTS_UNIT_PIXELS] = 1;
            model->constants[model->n_constants++] =
                (struct counts_constant){(uint32_t)i, pixel_at(training->sample, i,
                                                               training->shape->elem_bytes)};
        }
    return 0;
}

/* ---- order and bins ------------------------------------------------------------------------------- */

static uint64_t unit_sum(const struct training *training, uint64_t unit)
{
    uint64_t sum = 0, end = (unit + 1) * COUNTS_UNIT_PIXELS;
    end = end < training->shape->n_elems ? end : training->shape->n_elems;
    for (uint64_t i = unit * COUNTS_UNIT_PIXELS; i < end; i++)
        sum += training->fixed[i] ? 0 : training->pixel_sums[i];
    return sum;
}

/* Number `low` below a sum, so that equal sums keep the numbers' order. */
static uint64_t sort_key(uint64_t sum, uint32_t low, uint32_t low_bits)
{
    uint64_t most = UINT64_MAX >> low_bits;
    return (sum < most ? sum : most) << low_bits | low;
}

/* Sort the units of a tile and cut them into granules, each with its sum. */
static void sort_tile(struct training *training, uint32_t first_granule, uint32_t n_granules)
{
    uint64_t keys[COUNTS_TILE_UNITS], scratch[COUNTS_TILE_UNITS];
    uint32_t n = n_granules * COUNTS_GRANULE_UNITS;
    uint64_t first = (uint64_t)first_granule * COUNTS_GRANULE_UNITS;
    for (uint32_t i = 0; i < n; i++)
        keys[n - 1 - i] = sort_key(unit_sum(training, first + i), COUNTS_TILE_UNITS - 1 - i, 9);
    sort_keys(keys, scratch, n);
    for (uint32_t g = 0; g < n_granules; g++) {
        uint64_t sum = 0;
        for (uint32_t i = g * COUNTS_GRANULE_UNITS; i < (g + 1) * COUNTS_GRANULE_UNITS; i++) {
            uint64_t key = keys[n - 1 - i];
            training->sorted[first + i] =
                (uint16_t)(COUNTS_TILE_UNITS - 1 - key % COUNTS_TILE_UNITS);
            sum += key / COUNTS_TILE_UNITS;
        }
        training->granule_keys[first_granule + g] = sort_key(sum, first_granule + g, 17);
    }
}

/* Give the units of granule g a number in bin_of. */
static void mark_granule(struct training *training, uint32_t g, uint8_t mark)
{
    uint64_t tile_first = (uint64_t)(g / GRANULES_A_TILE) * COUNTS_TILE_UNITS;
    const uint16_t *units = training->sorted + (uint64_t)g * COUNTS_GRANULE_UNITS;
    for (uint32_t i = 0; i < COUNTS_GRANULE_UNITS; i++)
        training->bin_of[tile_first + units[i]] = mark;
}

static void make_bins(struct training *training)
{
    uint32_t n = training->model->n_granules;
    for (uint32_t g = 0; g < n; g += GRANULES_A_TILE)
        sort_tile(training, g, n - g < GRANULES_A_TILE ? n - g : GRANULES_A_TILE);
    sort_keys(training->granule_keys, training->granule_keys + n, n);
    training->n_bins = n < BINS ? n : BINS;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t key = training->granule_keys[i], bin = (uint64_t)i * training->n_bins / n;
        mark_granule(training, key & 0x1ffff, (uint8_t)bin);
        training->bright[bin] = key >> 17 >= BRIGHT * COUNTS_GRANULE_PIXELS * training->n_frames;
    }
}

/* ---- counting the sample -------------------------------------------------------------------------- */

static inline uint32_t value_step(uint32_t value)
{
    if (value < EXACT)
        return value;
    uint32_t power = 31 - (uint32_t)__builtin_clz(value);
    return EXACT + ((power - 8) << STEP_BITS) +
           (value >> (power - STEP_BITS) & ((1u << STEP_BITS) - 1));
}

static inline uint32_t at_most(uint32_t value, uint32_t most)
{
    return value < most ? value : most;
}

static void count_pair(struct histogram *bin, uint32_t a, uint32_t b)
{
    if ((a | b) < 16) {
        bin->pairs[a | b << 4]++;
        return;
    }
    bin->over_pairs[at_most(a, 15) | at_most(b, 15) << 4]++;
    bin->values[value_step(a)]++;
    bin->values[value_step(b)]++;
}

static inline void count_unit(struct histogram *bin, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    if ((a | b | c | d) < 4) {
        bin->fours[a | b << 2 | c << 4 | d << 6]++;
        return;
    }
    bin->over_fours[at_most(a, 3) | at_most(b, 3) << 2 | at_most(c, 3) << 4 | at_most(d, 3) << 6]++;
    count_pair(bin, a, b);
    count_pair(bin, c, d);
}

/* The same in the end, without asking each time what would do. */
static inline void count_bright(struct histogram *bin, uint32_t a, uint32_t b, uint32_t c,
                                uint32_t d)
{
    bin->over_fours[at_most(a, 3) | at_most(b, 3) << 2 | at_most(c, 3) << 4 | at_most(d, 3) << 6]++;
    bin->over_pairs[at_most(a, 15) | at_most(b, 15) << 4]++;
    bin->over_pairs[at_most(c, 15) | at_most(d, 15) << 4]++;
    bin->values[value_step(a)]++;
    bin->values[value_step(b)]++;
    bin->values[value_step(c)]++;
    bin->values[value_step(d)]++;
}

/* A unit with constants, or that the frame does not have whole: what is no pixel of a class is 0. */
static void count_odd_unit(struct training *training, const void *pixels, uint64_t unit)
{
    uint32_t v[COUNTS_UNIT_PIXELS] = {0};
    uint64_t first = unit * COUNTS_UNIT_PIXELS;
    for (uint32_t i = 0; i < COUNTS_UNIT_PIXELS && first + i < training->shape->n_elems; i++)
        if (!training->fixed[first + i])
            v[i] = pixel_at(pixels, first + i, training->shape->elem_bytes);
    count_unit(&training->bins[training->bin_of[unit]], v[0], v[1], v[2], v[3]);
}

#define COUNT_FRAME(name, pixel_type)                                     \
    static void name(struct training *training, const pixel_type *pixels) \
    {                                                                     \
        uint64_t whole = training->shape->n_elems / COUNTS_UNIT_PIXELS;   \
        for (uint64_t u = 0; u < whole; u++) {                            \
            const pixel_type *p = pixels + u * COUNTS_UNIT_PIXELS;        \
            struct histogram *bin = &training->bins[training->bin_of[u]]; \
            if (training->has_fixed[u])                                   \
                count_odd_unit(training, pixels, u);                      \
            else if (training->bright[training->bin_of[u]])               \
                count_bright(bin, p[0], p[1], p[2], p[3]);                \
            else                                                          \
                count_unit(bin, p[0], p[1], p[2], p[3]);                  \
        }                                                                 \
        for (uint64_t u = whole; u < training->n_units; u++)              \
            count_odd_unit(training, pixels, u);                          \
    }

COUNT_FRAME(count_frame_u1, uint8_t)
COUNT_FRAME(count_frame_u2, uint16_t)
COUNT_FRAME(count_frame_u4, uint32_t)

/* From "counted once" to the whole histogram of each kind. */
static void complete(struct histogram *bin)
{
    for (uint32_t i = 0; i < 256; i++) {
        bin->pairs[(i & 3) | (i >> 2 & 3) << 4] += bin->fours[i];
        bin->pairs[(i >> 4 & 3) | i >> 6 << 4] += bin->fours[i];
        bin->fours[i] += bin->over_fours[i];
    }
    for (uint32_t i = 0; i < 256; i++) {
        bin->values[i & 15] += bin->pairs[i];
        bin->values[i >> 4] += bin->pairs[i];
        bin->pairs[i] += bin->over_pairs[i];
    }
}

static void count_sample(struct training *training)
{
    for (uint64_t i = 0; i < training->n_sample; i++) {
        const void *pixels = sample_frame(training, i);
        if (training->shape->elem_bytes == 1)
            count_frame_u1(training, pixels);
        else if (training->shape->elem_bytes == 2)
            count_frame_u2(training, pixels);
        else
            count_frame_u4(training, pixels);
    }
    uint64_t n_units = (uint64_t)training->model->n_granules * COUNTS_GRANULE_UNITS;
    for (uint64_t u = training->n_units; u < n_units; u++)
        training->bins[training->bin_of[u]].fours[0] += (uint32_t)training->n_sample;
    for (uint32_t b = 0; b < training->n_bins; b++)
        complete(&training->bins[b]);
}

/* ---- wide classes --------------------------------------------------------------------------------- */

static void count_wide_unit(uint64_t counts[256], const struct training *training,
                            const void *pixels, uint64_t unit, struct counts_class class_)
{
    uint64_t first = unit * COUNTS_UNIT_PIXELS;
    for (uint32_t i = 0; i < COUNTS_UNIT_PIXELS; i++) {
        uint32_t value = 0;
        if (first + i < training->shape->n_elems && !training->fixed[first + i])
            value = pixel_at(pixels, first + i, training->shape->elem_bytes);
        value = value > class_.base ? (value - class_.base) >> class_.shift : 0;
        counts[value < 255 ? value : 255]++;
    }
}

/* Steps are too coarse for these: the sample is counted once more. bin_of has classes by now. */
static void count_wide(uint64_t (*counts)[256], const struct training *training)
{
    const struct counts_model *model = training->model;
    uint64_t n_units = (uint64_t)model->n_granules * COUNTS_GRANULE_UNITS;
    for (uint64_t i = 0; i < training->n_sample; i++)
        for (uint64_t u = 0; u < n_units; u++) {
            uint32_t k = training->bin_of[u];
            if (k >= model->until1)
                count_wide_unit(counts[k], training, sample_frame(training, i), u,
                                model->classes[k]);
        }
}

/* ---- the model ------------------------------------------------------------------------------------ */

static void merge_bins(struct training *training, uint32_t from, uint32_t until)
{
    memset(&training->merged, 0, sizeof(training->merged));
    for (uint32_t b = from; b < until; b++)
        histogram_add(&training->merged, &training->bins[b], STEPS);
}

static void make_states(struct training *training, uint32_t k, const uint64_t found[256],
                        uint32_t n_bits)
{
    share_states(training->model->freq[k], training->model->coded[k], found, &training->logs,
                 n_bits, training->shape->elem_bytes);
}

static void fill_class(struct training *training, uint32_t k, enum kind kind)
{
    const struct histogram *h = &training->merged;
    uint64_t counts[256];
    for (uint32_t i = 0; i < 256; i++)
        counts[i] = kind == FOURS ? h->fours[i] : kind == PAIRS ? h->pairs[i] : h->values[i];
    if (kind == SINGLES)
        counts[255] += sum_counts(h->values + EXACT, STEPS - EXACT);
    make_states(training, k, counts, kind == FOURS ? 2 : kind == PAIRS ? 4 : 8);
}

/* Units of a tile by class, bright to dim, each class in raster order. */
static void order_tile(struct training *training, uint32_t first_granule, uint32_t n_granules)
{
    struct counts_model *model = training->model;
    uint32_t n_units = n_granules * COUNTS_GRANULE_UNITS;
    const uint8_t *classes = training->bin_of + (uint64_t)first_granule * COUNTS_GRANULE_UNITS;
    uint64_t at = (uint64_t)first_granule * COUNTS_GRANULE_UNITS;
    for (uint32_t k = COUNTS_CLASSES; k-- > 0;)
        for (uint32_t unit = 0; unit < n_units; unit++)
            if (classes[unit] == k) {
                model->granules[at / COUNTS_GRANULE_UNITS] = (uint8_t)k;
                model->order[at++] = (uint16_t)unit;
            }
}

static void make_classes(struct training *training)
{
    static const uint64_t none[256];
    struct counts_model *model = training->model;
    enum kind kinds[COUNTS_CLASSES];
    uint32_t first_bins[COUNTS_CLASSES + 1], n = model->n_granules;
    uint32_t n_classes = choose_classes(kinds, first_bins, training->bins, training->n_bins,
                                        &training->logs, training->shape->elem_bytes);
    uint8_t class_of[BINS];
    first_bins[n_classes] = training->n_bins;
    for (uint32_t k = 0; k < n_classes; k++) {
        for (uint32_t b = first_bins[k]; b < first_bins[k + 1]; b++)
            class_of[b] = (uint8_t)k;
        model->until4 += kinds[k] == FOURS;
        model->until2 += kinds[k] <= PAIRS;
        model->until1 += kinds[k] <= SINGLES;
        merge_bins(training, first_bins[k], first_bins[k + 1]);
        if (kinds[k] == WIDE)
            model->classes[k] =
                fit_wide(training->merged.values, &training->logs, training->shape->elem_bytes);
        else
            fill_class(training, k, kinds[k]);
    }
    for (uint32_t k = n_classes; k < COUNTS_CLASSES; k++)
        make_states(training, k, none, 8);
    for (uint64_t u = 0; u < (uint64_t)n * COUNTS_GRANULE_UNITS; u++)
        training->bin_of[u] = class_of[training->bin_of[u]];
    for (uint32_t g = 0; g < n; g += GRANULES_A_TILE)
        order_tile(training, g, n - g < GRANULES_A_TILE ? n - g : GRANULES_A_TILE);
    if (model->until1 < n_classes) {
        uint64_t counts[COUNTS_CLASSES][256] = {0};
        count_wide(counts, training);
        for (uint32_t k = model->until1; k < n_classes; k++)
            make_states(training, k, counts[k], 8);
    }
}

static int get_memory(struct training *training)
{
    struct counts_model *model = training->model;
    size_t n = model->n_granules, n_units = n * COUNTS_GRANULE_UNITS;
    model->order = malloc(n_units * sizeof(*model->order));
    model->granules = malloc(n);
    training->bin_of = malloc(n_units);
    training->has_fixed = calloc(n_units, 1);
    training->fixed = calloc(training->shape->n_elems, 1);
    training->granule_keys = malloc(2 * n * sizeof(*training->granule_keys));
    training->sorted = malloc(n_units * sizeof(*training->sorted));
    training->bins = calloc(BINS, sizeof(*training->bins));
    return model->order && model->granules && training->bin_of && training->has_fixed &&
                   training->fixed && training->granule_keys && training->sorted && training->bins
               ? 0
               : STOW_NOMEM;
}

static void training_free(struct training *training)
{
    free(training->bin_of);
    free(training->has_fixed);
    free(training->fixed);
    free(training->granule_keys);
    free(training->sorted);
    free(training->bins);
    free(training);
}

int counts_model_train(struct counts_model *model, const void *sample, uint64_t n_sample,
                       const uint64_t *pixel_sums, uint64_t n_frames,
                       const struct frame_shape *shape, uint32_t n_streams)
{
    uint64_t n_tiles = (shape->n_elems + COUNTS_TILE_PIXELS - 1) / COUNTS_TILE_PIXELS;
    if (n_tiles == 0 || n_tiles > COUNTS_MAX_TILES)
        return STOW_UNSUPPORTED;
    struct counts_model made = {.n_tiles = (uint32_t)n_tiles,
                                .n_granules = counts_n_granules(shape->n_elems),
                                .n_streams = n_streams < n_tiles ? n_streams : (uint32_t)n_tiles};
    struct training *training = calloc(1, sizeof(*training));
    if (!training)
        return STOW_NOMEM;
    training->model = &made;
    training->sample = sample;
    training->n_sample = n_sample;
    training->pixel_sums = pixel_sums;
    training->n_frames = n_frames;
    training->shape = shape;
    training->n_units = (shape->n_elems + COUNTS_UNIT_PIXELS - 1) / COUNTS_UNIT_PIXELS;
    make_logarithms(&training->logs);
    int status = get_memory(training);
    if (status == 0)
        status = find_constants(training);
    if (status == 0) {
        make_bins(training);
        count_sample(training);
        make_classes(training);
        *model = made;
    } else {
        counts_model_fini(&made);
    }
    training_free(training);
    return status;
}
