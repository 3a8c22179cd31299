/* SPDX-License-Identifier: Apache-2.0
 *
 * The last filter that was applied is undone first. Each step puts its output into one of two rooms in turn, the last
 * one into the caller's memory. How much has to come out of a step is known from the dataset as long as no filter
 * before it (in the order of writing) compresses; behind that it is bounded. */
#include "filter.h"

#include <libdeflate.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#define FLETCHER_BYTES 4u
#define WINDOW (FILTERS_ROOMS - 1)

void filter_scratch_fini(struct filter_scratch *scratch)
{
    libdeflate_free_decompressor(scratch->inflate);
    ZSTD_freeDCtx(scratch->zstd);
    for (unsigned i = 0; i < FILTERS_ROOMS; i++)
        free(scratch->rooms[i]);
    *scratch = (struct filter_scratch){.inflate = NULL};
}

static uint8_t *grow(struct filter_scratch *scratch, unsigned room, size_t bytes)
{
    if (bytes > scratch->room_bytes[room]) {
        free(scratch->rooms[room]);
        scratch->room_bytes[room] = 0;
        scratch->rooms[room] = malloc(bytes);
        if (scratch->rooms[room])
            scratch->room_bytes[room] = bytes;
    }
    return scratch->rooms[room];
}

uint8_t *filter_window(struct filter_scratch *scratch, size_t bytes)
{
    return grow(scratch, WINDOW, bytes);
}

uint32_t filter_value(const struct assembly_filter *filter, uint32_t i, uint32_t otherwise)
{
    return i < filter->n_values && i < ASSEMBLY_VALUES ? filter->values[i] : otherwise;
}

static bool is_known(const struct filter_step *step)
{
    return step->want != FILTER_UNKNOWN;
}

int filter_room(struct filter_step *step, size_t bytes, struct stow_error *err)
{
    struct filter_scratch *scratch = step->scratch;
    if (is_known(step) ? bytes != step->want : bytes > step->most)
        return error_set(err, STOW_CORRUPT, "%zu bytes come out, where %s%zu are wanted", bytes,
                         is_known(step) ? "" : "at most ",
                         is_known(step) ? step->want : step->most);
    step->dst_bytes = bytes;
    step->dst = step->final;
    if (step->final)
        return 0;
    step->dst = grow(scratch, step->src == scratch->rooms[0], bytes ? bytes : 1);
    if (!step->dst)
        return error_set(err, STOW_NOMEM, "no memory for %zu bytes of a chunk", bytes);
    return 0;
}

/* ---- gzip, Zstandard, fletcher32 ----------------------------------------------------------------- */

/* What follows the end of the stream is no concern of HDF5's, nor ours: the stream has a checksum. */
static int undo_gzip(struct filter_step *step, struct stow_error *err)
{
    struct filter_scratch *scratch = step->scratch;
    size_t room = is_known(step) ? step->want : 4 * step->src_bytes, used, out = 0;
    enum libdeflate_result result;
    if (!scratch->inflate)
        scratch->inflate = libdeflate_alloc_decompressor();
    if (!scratch->inflate)
        return error_set(err, STOW_NOMEM, "no memory to decompress");
    do {
        if (!is_known(step) && room > step->most)
            room = step->most;
        int rc = filter_room(step, room, err);
        if (rc)
            return rc;
        result = libdeflate_zlib_decompress_ex(scratch->inflate, step->src, step->src_bytes,
                                               step->dst, room, &used, &out);
        room *= 2;
    } while (result == LIBDEFLATE_INSUFFICIENT_SPACE && !is_known(step) &&
             step->dst_bytes < step->most);
    if (result == LIBDEFLATE_INSUFFICIENT_SPACE)
        return error_set(err, STOW_CORRUPT, "more than %zu bytes come out", step->dst_bytes);
    if (result)
        return error_set(err, STOW_CORRUPT, "the compressed data is damaged");
    step->dst_bytes = out;
    return 0;
}

bool filter_zstd(struct filter_scratch *scratch, uint8_t *dst, size_t dst_bytes, const uint8_t *src,
                 size_t n)
{
    if (!scratch->zstd)
        scratch->zstd = ZSTD_createDCtx();
    return scratch->zstd && ZSTD_decompressDCtx(scratch->zstd, dst, dst_bytes, src, n) == dst_bytes;
}

static int undo_zstd(struct filter_step *step, struct stow_error *err)
{
    size_t bytes = step->want;
    if (!is_known(step)) {
        unsigned long long said = ZSTD_getFrameContentSize(step->src, step->src_bytes);
        if (said == ZSTD_CONTENTSIZE_ERROR || said == ZSTD_CONTENTSIZE_UNKNOWN)
            return error_set(err, STOW_CORRUPT, "the compressed data does not say its size");
        bytes = said > SIZE_MAX ? SIZE_MAX : (size_t)said;
    }
    int rc = filter_room(step, bytes, err);
    if (!rc && !filter_zstd(step->scratch, step->dst, bytes, step->src, step->src_bytes))
        rc = error_set(err, STOW_CORRUPT, "the compressed data is damaged, or not of %zu bytes",
                       bytes);
    return rc;
}

/* Sums stay below 2^32 for 360 words. */
uint32_t filters_fletcher32(const uint8_t *bytes, size_t n)
{
    uint32_t a = 0, b = 0;
    for (size_t words = n / 2; words;) {
        size_t some = words > 360 ? 360 : words;
        words -= some;
        for (; some; some--, bytes += 2) {
            a += (uint32_t)bytes[0] << 8 | bytes[1];
            b += a;
        }
        a = (a & 0xffff) + (a >> 16);
        b = (b & 0xffff) + (b >> 16);
    }
    if (n % 2) {
        a += (uint32_t)*bytes << 8;
        b += a;
        a = (a & 0xffff) + (a >> 16);
        b = (b & 0xffff) + (b >> 16);
    }
    a = (a & 0xffff) + (a >> 16);
    b = (b & 0xffff) + (b >> 16);
    return b << 16 | a;
}

/* HDF5 up to 1.6.2 wrote the bytes of each half the other way round on little-endian machines. */
static int undo_fletcher32(struct filter_step *step, struct stow_error *err)
{
    if (step->src_bytes < FLETCHER_BYTES)
        return error_set(err, STOW_CORRUPT, "%zu bytes have no checksum", step->src_bytes);
    size_t n = step->src_bytes - FLETCHER_BYTES;
    const uint8_t *at = step->src + n;
    uint32_t sum = filters_fletcher32(step->src, n);
    uint32_t old = (sum & 0x00ff00ff) << 8 | (sum >> 8 & 0x00ff00ff);
    uint32_t stored = at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
    if (stored != sum && stored != old)
        return error_set(err, STOW_CORRUPT, "the checksum does not match: the data is damaged");
    step->dst = (uint8_t *)(uintptr_t)step->src;
    step->dst_bytes = n;
    return 0;
}

/* ---- one behind the other ------------------------------------------------------------------------ */

struct known {
    uint32_t id;
    const char *name;
    int (*undo)(struct filter_step *step, struct stow_error *err);
};

static const struct known all_known[] = {
    {FILTER_GZIP, "gzip", undo_gzip},
    {FILTER_SHUFFLE, "shuffle", filter_undo_shuffle},
    {FILTER_FLETCHER32, "fletcher32", undo_fletcher32},
    {FILTER_LZ4, "LZ4", filter_undo_lz4},
    {FILTER_BITSHUFFLE, "bitshuffle", filter_undo_bitshuffle},
    {FILTER_ZSTD, "Zstandard", undo_zstd},
};

static const struct known *find_known(uint32_t id)
{
    for (size_t i = 0; i < sizeof(all_known) / sizeof(*all_known); i++) {
        if (all_known[i].id == id)
            return &all_known[i];
    }
    return NULL;
}

/* How many bytes went into each filter that was applied, as far as that is known; FILTER_UNKNOWN behind one that
 * compresses. */
static void find_wants(size_t *wants, size_t bytes, const struct filter_pipeline *pipeline)
{
    for (uint32_t i = 0; i < pipeline->n_filters; i++) {
        const struct assembly_filter *filter = &pipeline->filters[i];
        wants[i] = bytes;
        if (pipeline->mask >> i & 1 || bytes == FILTER_UNKNOWN)
            continue;
        if (filter->id == FILTER_FLETCHER32)
            bytes += FLETCHER_BYTES;
        else if (filter->id != FILTER_SHUFFLE &&
                 !(filter->id == FILTER_BITSHUFFLE && filter_bitshuffle_alone(filter)))
            bytes = FILTER_UNKNOWN;
    }
}

static uint32_t applied(const struct filter_pipeline *pipeline)
{
    return ~pipeline->mask & ((1u << pipeline->n_filters) - 1);
}

bool filters_none(const struct filter_pipeline *pipeline)
{
    return !applied(pipeline);
}

static int undo_step(struct filter_step *step, struct stow_error *err)
{
    const struct known *known = find_known(step->filter->id);
    if (!known)
        return error_set(err, STOW_UNSUPPORTED, "filter %u is not known here", step->filter->id);
    int rc = known->undo(step, err);
    if (!rc && is_known(step) && step->dst_bytes != step->want)
        rc = error_set(err, STOW_CORRUPT, "%zu bytes come out where %zu are wanted",
                       step->dst_bytes, step->want);
    return rc ? error_prefix(err, "%s", known->name) : 0;
}

int filters_undo(uint8_t *dst, size_t dst_bytes, const uint8_t *src, size_t src_bytes,
                 const struct filter_pipeline *pipeline, struct filter_scratch *scratch,
                 struct stow_error *err)
{
    const uint32_t which = applied(pipeline);
    size_t wants[ASSEMBLY_FILTERS];
    struct filter_step step = {
        .scratch = scratch, .src = src, .src_bytes = src_bytes, .most = 8 * dst_bytes + 65536};
    find_wants(wants, dst_bytes, pipeline);
    for (uint32_t i = pipeline->n_filters; i-- > 0;) {
        if (!(which >> i & 1))
            continue;
        step.filter = &pipeline->filters[i];
        step.want = wants[i];
        step.final = which & ((1u << i) - 1) ? NULL : dst;
        int rc = undo_step(&step, err);
        if (rc)
            return rc;
        step.src = step.dst;
        step.src_bytes = step.dst_bytes;
    }
    if (step.src_bytes != dst_bytes)
        return error_set(err, STOW_CORRUPT, "%zu bytes of pixels where %zu are wanted",
                         step.src_bytes, dst_bytes);
    if (step.src != dst)
        memcpy(dst, step.src, dst_bytes);
    return 0;
}
