/* SPDX-License-Identifier: Apache-2.0 */
#include "kept_fields.h"

#include "bslz4.h"
#include "large.h"
#include "reader_msg.h"

#include <stdlib.h>
#include <string.h>

#define MAX_TEXT 4096u /* bytes of one */
#define MAX_WARNINGS 4096u

static uint32_t get32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, 4);
    return value;
}

static uint64_t get64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, 8);
    return value;
}

static int refuse(struct stow_error *err, const char *what)
{
    return error_set(err, STOW_SOURCE,
                     "it is damaged, or made by something that knows the format badly: %s", what);
}

bool kept_is(const uint8_t *bytes, size_t n)
{
    return n >= 8 && memcmp(bytes, KEPT_MAGIC, 8) == 0;
}

/* ---- the header ---- */

static int check_length(const struct kept *kept, uint64_t file_bytes, struct stow_error *err)
{
    unsigned long long has = file_bytes, was = kept->file_bytes;
    if (has < was)
        return error_set(err, STOW_SOURCE,
                         "it is cut: %llu of its %llu bytes are missing; copy it again", was - has,
                         was);
    if (has > was)
        return error_set(err, STOW_SOURCE,
                         "it has %llu bytes more than the %llu that were written; copy it again",
                         has - was, was);
    return 0;
}

/* Numbers that other numbers are made from. */
static const char *check_numbers(const struct kept *kept, const uint8_t *header)
{
    uint64_t frame;
    struct reader_shape shape = {.elem_bytes = kept->shape.elem_bytes,
                                 .det_y = kept->det_y,
                                 .det_x = kept->det_x,
                                 .scan_y = kept->scan_y,
                                 .scan_x = kept->scan_x,
                                 .fill = kept->shape.fill,
                                 .n_frames = kept->n_frames};
    memcpy(shape.dtype, kept->dtype, sizeof(shape.dtype));
    const char *wrong = reader_msg_check_shape(&shape, &frame);
    if (wrong)
        return wrong;
    if (get32(header + 12) & ~KEPT_ALL_BITS)
        return "bits that mean nothing";
    if (kept->n_summed > kept->n_frames || (kept->n_summed && !kept->has_sums))
        return "sums over more frames than there are";
    if (kept->text_bytes > kept->file_bytes || kept->model_bytes > kept->file_bytes ||
        kept->file_bytes >> 56)
        return "tables that are larger than the file";
    if (!kept->n_sources || kept->n_sources > READER_MAX_FILES + 1 ||
        kept->n_warnings > MAX_WARNINGS)
        return "an impossible number of source files or warnings";
    if (kept->n_faults > kept->n_frames || kept->stated_blocks > kept->n_frames)
        return "more runs of bad frames, or blocks, than frames";
    return NULL;
}

static void take_header(struct kept *kept, const uint8_t *header)
{
    uint32_t bits = get32(header + 12);
    for (size_t i = 0; i < n_kept_fields; i++)
        memcpy((char *)kept + kept_fields[i].member, header + kept_fields[i].at, 8);
    kept->file_bytes = get64(header + 16);
    kept->n_sources = get32(header + 120);
    kept->n_warnings = get32(header + 124);
    kept->shape.elem_bytes = get32(header + 136);
    memcpy(kept->dtype, header + 140, 8);
    kept->allow_gaps = bits & KEPT_ALLOWED_GAPS;
    kept->has_expected = bits & KEPT_HAS_EXPECTED;
    kept->has_flags = bits & KEPT_HAS_FLAGS;
    kept->has_sums = bits & KEPT_HAS_SUMS;
}

int kept_head(struct kept *kept, const uint8_t header[KEPT_HEADER_BYTES], uint64_t file_bytes,
              struct stow_error *err)
{
    struct kept made = {.n_frames = 0};
    struct kept_places places;
    if (!kept_is(header, KEPT_HEADER_BYTES))
        return error_set(err, STOW_SOURCE, "it is not a .stow file");
    if (get32(header + 8) != KEPT_VERSION)
        return error_set(err, STOW_UNSUPPORTED,
                         "it has version %u of the format, this Framestow reads version %u",
                         (unsigned)get32(header + 8), KEPT_VERSION);
    if (get64(header + KEPT_CHECKSUM_AT) != kept_checksum(header, KEPT_CHECKSUM_AT))
        return error_set(err, STOW_SOURCE,
                         "its header (bytes 0 to %u) is damaged: its checksum is not what was "
                         "written; copy it again",
                         KEPT_HEADER_BYTES - 1);
    take_header(&made, header);
    int rc = check_length(&made, file_bytes, err);
    const char *wrong = rc ? NULL : check_numbers(&made, header);
    if (wrong)
        rc = refuse(err, wrong);
    if (rc)
        return rc;
    made.shape.n_elems = made.det_y * made.det_x;
    made.shape.kind = (uint32_t)pixel_kind_of(made.dtype, made.shape.elem_bytes);
    if (made.segment_frames)
        made.n_segments = (made.n_frames - 1) / made.segment_frames + 1;
    kept_place_tables(&made, &places);
    if (places.end > made.file_bytes)
        return refuse(err, "tables that are larger than the file");
    made.payload_at = places.end;
    *kept = made;
    return 0;
}

/* ---- texts ---- */

struct cursor {
    const uint8_t *at;
    uint64_t left;
    bool bad, nomem;
};

/* The next bytes, or NULL when there are not so many. */
static const uint8_t *take(struct cursor *from, uint64_t bytes)
{
    const uint8_t *at = from->at;
    if (from->bad || bytes > from->left) {
        from->bad = true;
        return NULL;
    }
    from->at += bytes;
    from->left -= bytes;
    return at;
}

static uint64_t take64(struct cursor *from)
{
    const uint8_t *at = take(from, 8);
    return at ? get64(at) : 0;
}

static unsigned take8(struct cursor *from)
{
    const uint8_t *at = take(from, 1);
    return at ? *at : 0;
}

static char *take_text(struct cursor *from)
{
    const uint8_t *at = take(from, 4);
    uint32_t bytes = at ? get32(at) : 0;
    if (bytes >= MAX_TEXT)
        from->bad = true;
    at = take(from, bytes);
    if (!at || memchr(at, 0, bytes)) {
        from->bad = true;
        return NULL;
    }
    char *text = malloc(bytes + 1);
    if (!text) {
        from->bad = from->nomem = true;
        return NULL;
    }
    memcpy(text, at, bytes);
    text[bytes] = '\0';
    return text;
}

static void take_source(struct cursor *from, struct kept_source *source)
{
    unsigned bits = take8(from);
    source->there = bits & KEPT_THERE;
    source->has_sha256 = bits & KEPT_HAS_SHA256;
    source->size = take64(from);
    source->mtime_ns = (int64_t)take64(from);
    source->path = take_text(from);
    const uint8_t *sha256 = source->has_sha256 ? take(from, sizeof(source->sha256)) : NULL;
    if (sha256)
        memcpy(source->sha256, sha256, sizeof(source->sha256));
    from->bad = from->bad || bits > (KEPT_THERE | KEPT_HAS_SHA256) || !source->path[0];
}

static void take_faults(struct kept *kept, struct cursor *from)
{
    uint64_t next = 0;
    for (uint64_t i = 0; !from->bad && i < kept->n_faults; i++) {
        struct kept_fault *fault = &kept->faults[i];
        fault->first = take64(from);
        fault->count = take64(from);
        fault->text = take_text(from);
        if (!fault->text)
            return;
        error_clean(fault->text);
        if (fault->first < next || fault->first >= kept->n_frames || !fault->count ||
            fault->count > kept->n_frames - fault->first)
            from->bad = true;
        next = fault->first + fault->count;
    }
}

static int take_texts(struct kept *kept, const uint8_t *at, struct stow_error *err)
{
    struct cursor from = {.at = at, .left = kept->text_bytes};
    /* No more rows than there can be, so that a number alone asks for no memory. */
    if (kept->n_sources > from.left / 21 || kept->n_warnings > from.left / 4 ||
        kept->n_faults > from.left / 20)
        return refuse(err, "its texts");
    kept->sources = calloc(kept->n_sources, sizeof(*kept->sources));
    kept->warnings = calloc(kept->n_warnings + 1, sizeof(*kept->warnings));
    kept->faults = calloc(kept->n_faults + 1, sizeof(*kept->faults));
    if (!kept->sources || !kept->warnings || !kept->faults)
        return error_set(err, STOW_NOMEM, "no memory for its tables");
    unsigned named = take8(&from);
    if (named == 1)
        kept->dataset = take_text(&from);
    for (uint32_t i = 0; !from.bad && i < kept->n_sources; i++)
        take_source(&from, &kept->sources[i]);
    for (uint32_t i = 0; !from.bad && i < kept->n_warnings; i++) {
        kept->warnings[i] = take_text(&from);
        if (kept->warnings[i])
            error_clean(kept->warnings[i]);
    }
    take_faults(kept, &from);
    if (from.nomem)
        return error_set(err, STOW_NOMEM, "no memory for its tables");
    return from.bad || from.left || named > 1 ? refuse(err, "its texts") : 0;
}

/* ---- segments and frames ---- */

static int take_segments(struct kept *kept, const uint8_t *row, const uint8_t *models,
                         struct stow_error *err)
{
    uint64_t left = kept->model_bytes;
    kept->segments = calloc(kept->n_segments + 1, sizeof(*kept->segments));
    if (!kept->segments)
        return error_set(err, STOW_NOMEM, "no memory for its tables");
    for (uint64_t i = 0; i < kept->n_segments; i++, row += KEPT_SEGMENT_ROW) {
        struct kept_segment *segment = &kept->segments[i];
        segment->packed_bytes = get32(row);
        segment->table_bytes = get32(row + 4);
        if (segment->packed_bytes > left || !segment->packed_bytes != !segment->table_bytes)
            return refuse(err, "its segments");
        segment->packed = models;
        models += segment->packed_bytes;
        left -= segment->packed_bytes;
    }
    return left ? refuse(err, "its segments") : 0;
}

static bool frame_is_possible(const struct kept *kept, const struct kept_frame *frame,
                              bool has_model)
{
    switch (frame->form) {
    case STOW_FORM_COUNTS:
        return frame->bytes && frame->bytes % 16 == 0 && !frame->n_blocks && !frame->code &&
               has_model;
    case STOW_FORM_BSLZ4:
        return frame->bytes >= BSLZ4_HEADER_BYTES && !frame->code &&
               frame->n_blocks <= bslz4_max_blocks(frame->bytes);
    case STOW_FORM_RAW:
        return frame->bytes == frame_bytes(&kept->shape) && !frame->n_blocks && !frame->code;
    case STOW_FORM_FILL: return !frame->bytes && !frame->n_blocks && !frame->code;
    case STOW_FORM_BAD:
        return !frame->bytes && !frame->n_blocks && frame->code && frame->code <= -STOW_INTERNAL;
    default: return false;
    }
}

static bool frames_are_possible(const struct kept *kept)
{
    uint64_t segment = 0, n = kept->n_frames;
    for (uint64_t first = 0, end; first < n; first = end, segment++) {
        bool has_model = kept->segment_frames && kept->segments[segment].packed_bytes &&
                         shape_is_counts(&kept->shape);
        uint64_t step = kept->segment_frames ? kept->segment_frames : n;
        end = step < n - first ? first + step : n;
        for (uint64_t i = first; i < end; i++) {
            const struct kept_frame *frame = &kept->frames[i];
            if (!frame_is_possible(kept, frame, has_model) || frame->reserved)
                return false;
        }
    }
    return true;
}

static int take_frames(struct kept *kept, uint8_t *rows, struct stow_error *err)
{
    _Static_assert(sizeof(struct kept_frame) == KEPT_FRAME_ROW, "rows are used in place");
    kept->frames = (struct kept_frame *)(void *)rows;
    if (!frames_are_possible(kept))
        return refuse(err, "its frames");
    for (uint64_t f = 0; f < kept->n_faults; f++) {
        for (uint64_t i = 0; i < kept->faults[f].count; i++) {
            if (kept->frames[kept->faults[f].first + i].form != STOW_FORM_BAD)
                return refuse(err, "reasons for frames that are good");
        }
    }
    return 0;
}

static int take_blocks(struct kept *kept, const uint8_t *checksums, struct stow_error *err)
{
    if (kept_find_blocks(kept))
        return error_set(err, STOW_NOMEM, "no memory for its tables");
    uint64_t end = kept->payload_at;
    for (uint64_t i = 0; i < kept->n_blocks; i++)
        end += kept->blocks[i].bytes;
    if (end != kept->file_bytes || kept->n_blocks != kept->stated_blocks)
        return refuse(err, "its frames are not those that the file has room for");
    for (uint64_t i = 0; i < kept->n_blocks; i++)
        kept->blocks[i].checksum = get64(checksums + 8 * i);
    return 0;
}

/* ---- sums ---- */

static void take_flags(struct kept *kept, const uint8_t *bits)
{
    for (uint64_t i = 0; i < kept->shape.n_elems; i++) {
        kept->flags[i] = bits[i / 8] >> i % 8 & 1;
        kept->n_flagged += kept->flags[i];
    }
}

static uint8_t *table(const struct kept *kept, const struct kept_places *places,
                      enum kept_table which)
{
    return kept->tables + (places->at[which] - KEPT_HEADER_BYTES);
}

static int take_sums(struct kept *kept, const struct kept_places *places, struct stow_error *err)
{
    if (kept->has_flags)
        kept->flags = malloc(kept->shape.n_elems);
    if (kept->has_sums) {
        kept->sums = malloc(kept->shape.n_elems * sizeof(*kept->sums));
        kept->stats = large_alloc(kept->n_frames * sizeof(*kept->stats));
    }
    if ((kept->has_flags && !kept->flags) || (kept->has_sums && (!kept->sums || !kept->stats)))
        return error_set(err, STOW_NOMEM, "no memory for its tables");
    if (kept->has_flags)
        take_flags(kept, table(kept, places, KEPT_FLAGS));
    if (kept->has_sums)
        memcpy(kept->sums, table(kept, places, KEPT_SUMS), places->bytes[KEPT_SUMS]);
    return 0;
}

void kept_take_stats(const struct kept *kept, struct frame_stats *stats, uint64_t first,
                     uint64_t end)
{
    struct kept_places places;
    kept_place_tables(kept, &places);
    const uint64_t bytes = kept_moments(kept), row_bytes = (kept->has_flags ? 2 : 1) * bytes;
    const uint8_t *row = table(kept, &places, KEPT_STATS) + first * row_bytes;
    for (uint64_t i = first; i < end; i++) {
        struct frame_stats *s = &stats[i];
        s->all_total = get64(row);
        s->all_moment_y = get64(row + 8);
        s->all_moment_x = get64(row + 16);
        s->all_max = bytes == 32 ? get64(row + 24) : get32(row + 24);
        row += kept->has_flags ? bytes : 0;
        s->total = get64(row);
        s->moment_y = get64(row + 8);
        s->moment_x = get64(row + 16);
        s->max = bytes == 32 ? get64(row + 24) : get32(row + 24);
        row += bytes;
    }
}

int kept_parse(struct kept *kept, uint8_t *tables, struct stow_error *err)
{
    struct kept_places places;
    kept->tables = tables;
    kept_place_tables(kept, &places);
    if (kept_checksum(tables, kept->payload_at - KEPT_HEADER_BYTES) != kept->tables_checksum)
        return error_set(err, STOW_SOURCE,
                         "its tables (bytes %u to %llu) are damaged: their checksum is not what "
                         "was written; copy it again",
                         KEPT_HEADER_BYTES, (unsigned long long)kept->payload_at - 1);
    int rc = take_texts(kept, table(kept, &places, KEPT_TEXTS), err);
    if (!rc)
        rc = take_segments(kept, table(kept, &places, KEPT_SEGMENTS),
                           table(kept, &places, KEPT_MODELS), err);
    if (!rc)
        rc = take_frames(kept, table(kept, &places, KEPT_FRAMES), err);
    if (!rc)
        rc = take_blocks(kept, table(kept, &places, KEPT_CHECKSUMS), err);
    if (!rc)
        rc = take_sums(kept, &places, err);
    return rc;
}
