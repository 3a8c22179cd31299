/* SPDX-License-Identifier: Apache-2.0
 *
 * What both directions share, and writing. Reading is in kept_parse.c. */
#include "kept_fields.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "tables are copied as they lie in memory");

const struct kept_field kept_fields[] = {
    {24, offsetof(struct kept, n_frames)},
    {32, offsetof(struct kept, det_y)},
    {40, offsetof(struct kept, det_x)},
    {48, offsetof(struct kept, scan_y)},
    {56, offsetof(struct kept, scan_x)},
    {64, offsetof(struct kept, shape.fill)},
    {72, offsetof(struct kept, expected)},
    {80, offsetof(struct kept, source_bytes)},
    {88, offsetof(struct kept, n_summed)},
    {96, offsetof(struct kept, segment_frames)},
    {104, offsetof(struct kept, text_bytes)},
    {112, offsetof(struct kept, model_bytes)},
    {128, offsetof(struct kept, n_faults)},
    {232, offsetof(struct kept, stated_blocks)},
    {240, offsetof(struct kept, tables_checksum)},
};
const size_t n_kept_fields = sizeof(kept_fields) / sizeof(kept_fields[0]);

void kept_fini(struct kept *kept)
{
    for (uint32_t i = 0; !kept->lent && kept->sources && i < kept->n_sources; i++)
        free(kept->sources[i].path);
    for (uint32_t i = 0; !kept->lent && kept->warnings && i < kept->n_warnings; i++)
        free(kept->warnings[i]);
    for (uint64_t i = 0; !kept->lent && kept->faults && i < kept->n_faults; i++)
        free(kept->faults[i].text);
    if (!kept->lent) {
        free(kept->dataset);
        free(kept->warnings);
        free(kept->sums);
        free(kept->stats);
        free(kept->flags);
    }
    free(kept->sources);
    free(kept->faults);
    free(kept->segments);
    if (!kept->tables)
        free(kept->frames);
    free(kept->blocks);
    free(kept->tables);
    *kept = (struct kept){.n_frames = 0};
}

void remembered_free(struct remembered *remembered)
{
    if (!remembered)
        return;
    for (size_t i = 0; i < remembered->n_files; i++)
        free(remembered->files[i].path);
    free(remembered->files);
    free(remembered->dataset);
    free(remembered);
}

/* ---- where the tables lie ---- */

static uint64_t padded(uint64_t bytes)
{
    return (bytes + KEPT_ALIGN - 1) / KEPT_ALIGN * KEPT_ALIGN;
}

/* Each number that goes into this is below 2^40 (kept_head checks), so that nothing here wraps. */
void kept_place_tables(const struct kept *kept, struct kept_places *places)
{
    uint64_t n_elems = kept->shape.n_elems, row = (kept->has_flags ? 2 : 1) * kept_moments(kept);
    const uint64_t bytes[KEPT_N_TABLES] = {
        [KEPT_TEXTS] = kept->text_bytes,
        [KEPT_FLAGS] = kept->has_flags ? (n_elems + 7) / 8 : 0,
        [KEPT_SEGMENTS] = kept->n_segments * KEPT_SEGMENT_ROW,
        [KEPT_MODELS] = kept->model_bytes,
        [KEPT_FRAMES] = kept->n_frames * KEPT_FRAME_ROW,
        [KEPT_CHECKSUMS] = kept->stated_blocks * 8,
        [KEPT_SUMS] = kept->has_sums ? n_elems * 8 : 0,
        [KEPT_STATS] = kept->has_sums ? kept->n_frames * row : 0,
    };
    uint64_t at = KEPT_HEADER_BYTES;
    for (int i = 0; i < KEPT_N_TABLES; i++) {
        places->at[i] = at;
        places->bytes[i] = bytes[i];
        at += padded(bytes[i]);
    }
    places->end = (at + KEPT_PAGE - 1) / KEPT_PAGE * KEPT_PAGE;
}

/* ---- blocks ---- */

/* The block that begins with frame *next or behind it, of 0 bytes if there is none. */
static struct kept_block next_block(const struct kept *kept, uint64_t *next, uint64_t at)
{
    struct kept_block block = {.first = *next, .at = at};
    uint64_t i = *next;
    for (; i < kept->n_frames; i++) {
        uint64_t stride = kept_stride(&kept->frames[i]);
        if (!block.bytes && !stride) { /* a block begins with a frame that has bytes */
            block.first = i + 1;
            continue;
        }
        if (block.bytes && stride && block.bytes + stride > KEPT_BLOCK_BYTES)
            break;
        block.bytes += stride;
    }
    block.n_frames = (uint32_t)(i - block.first);
    *next = i;
    return block;
}

int kept_find_blocks(struct kept *kept)
{
    uint64_t room = 0, next = 0, at = kept->payload_at;
    kept->n_blocks = 0;
    for (;;) {
        struct kept_block block = next_block(kept, &next, at);
        if (kept->n_blocks == room) {
            room = room ? 2 * room : 256;
            struct kept_block *blocks = realloc(kept->blocks, room * sizeof(*blocks));
            if (!blocks)
                return STOW_NOMEM;
            kept->blocks = blocks;
        }
        if (!block.bytes)
            return 0;
        kept->blocks[kept->n_blocks++] = block;
        at += block.bytes;
    }
}

/* ---- writing ---- */

static size_t text_bytes(const char *text)
{
    return 4 + strlen(text);
}

static uint64_t all_texts(const struct kept *kept)
{
    uint64_t bytes = 1 + (kept->dataset ? text_bytes(kept->dataset) : 0);
    for (uint32_t i = 0; i < kept->n_sources; i++)
        bytes += 17 + text_bytes(kept->sources[i].path) + (kept->sources[i].has_sha256 ? 32 : 0);
    for (uint32_t i = 0; i < kept->n_warnings; i++)
        bytes += text_bytes(kept->warnings[i]);
    for (uint64_t i = 0; i < kept->n_faults; i++)
        bytes += 16 + text_bytes(kept->faults[i].text);
    return bytes;
}

int kept_layout(struct kept *kept)
{
    struct kept_places places;
    kept->text_bytes = all_texts(kept);
    kept->model_bytes = 0;
    for (uint64_t i = 0; i < kept->n_segments; i++)
        kept->model_bytes += kept->segments[i].packed_bytes;
    if (kept_find_blocks(kept))
        return STOW_NOMEM;
    kept->stated_blocks = kept->n_blocks;
    kept_place_tables(kept, &places);
    kept->payload_at = kept->file_bytes = places.end;
    for (uint64_t i = 0; i < kept->n_blocks; i++) {
        kept->blocks[i].at = kept->file_bytes;
        kept->file_bytes += kept->blocks[i].bytes;
    }
    return 0;
}

static uint8_t *put(uint8_t *to, const void *from, size_t bytes)
{
    if (bytes)
        memcpy(to, from, bytes);
    return to + bytes;
}

static uint8_t *put32(uint8_t *to, uint32_t value)
{
    return put(to, &value, 4);
}

static uint8_t *put64(uint8_t *to, uint64_t value)
{
    return put(to, &value, 8);
}

static uint8_t *put_text(uint8_t *to, const char *text)
{
    size_t n = strlen(text);
    return put(put32(to, (uint32_t)n), text, n);
}

static uint8_t *put_texts(const struct kept *kept, uint8_t *to)
{
    *to++ = kept->dataset != NULL;
    if (kept->dataset)
        to = put_text(to, kept->dataset);
    for (uint32_t i = 0; i < kept->n_sources; i++) {
        const struct kept_source *source = &kept->sources[i];
        *to++ = (uint8_t)(source->there * KEPT_THERE | source->has_sha256 * KEPT_HAS_SHA256);
        to = put64(put64(to, source->size), (uint64_t)source->mtime_ns);
        to = put_text(to, source->path);
        if (source->has_sha256)
            to = put(to, source->sha256, sizeof(source->sha256));
    }
    for (uint32_t i = 0; i < kept->n_warnings; i++)
        to = put_text(to, kept->warnings[i]);
    for (uint64_t i = 0; i < kept->n_faults; i++) {
        to = put64(put64(to, kept->faults[i].first), kept->faults[i].count);
        to = put_text(to, kept->faults[i].text);
    }
    return to;
}

static void put_frames(const struct kept *kept, uint8_t *to)
{
    for (uint64_t i = 0; i < kept->n_frames; i++) {
        const struct kept_frame *frame = &kept->frames[i];
        to = put32(put32(to, frame->bytes), frame->n_blocks);
        *to++ = frame->form;
        *to++ = frame->code;
        to += 2;
    }
}

static uint8_t *put_moments(uint8_t *to, const uint64_t sums[3], uint64_t max, uint64_t row)
{
    return put(put(to, sums, 24), &max, row - 24);
}

static void put_stats(const struct kept *kept, uint8_t *to)
{
    for (uint64_t i = 0; i < kept->n_frames; i++) {
        const struct frame_stats *s = &kept->stats[i];
        const uint64_t all[3] = {s->all_total, s->all_moment_y, s->all_moment_x};
        const uint64_t good[3] = {s->total, s->moment_y, s->moment_x}, row = kept_moments(kept);
        to = put_moments(to, all, s->all_max, row);
        if (kept->has_flags)
            to = put_moments(to, good, s->max, row);
    }
}

static void put_header(const struct kept *kept, uint8_t *bytes)
{
    uint32_t bits = kept->allow_gaps * KEPT_ALLOWED_GAPS | kept->has_sums * KEPT_HAS_SUMS |
                    kept->has_flags * KEPT_HAS_FLAGS | kept->has_expected * KEPT_HAS_EXPECTED;
    put(bytes, KEPT_MAGIC, 8);
    put32(bytes + 8, KEPT_VERSION);
    put32(bytes + 12, bits);
    put64(bytes + 16, kept->file_bytes);
    for (size_t i = 0; i < n_kept_fields; i++)
        put(bytes + kept_fields[i].at, (const char *)kept + kept_fields[i].member, 8);
    put32(bytes + 120, kept->n_sources);
    put32(bytes + 124, kept->n_warnings);
    put32(bytes + 136, kept->shape.elem_bytes);
    put(bytes + 140, kept->dtype, 8);
    put64(bytes + 240,
          kept_checksum(bytes + KEPT_HEADER_BYTES, kept->payload_at - KEPT_HEADER_BYTES));
    put64(bytes + KEPT_CHECKSUM_AT, kept_checksum(bytes, KEPT_CHECKSUM_AT));
}

void kept_put(const struct kept *kept, uint8_t *bytes)
{
    struct kept_places places;
    kept_place_tables(kept, &places);
    memset(bytes, 0, kept->payload_at);
    uint8_t *end = put_texts(kept, bytes + places.at[KEPT_TEXTS]);
    assert(end == bytes + places.at[KEPT_TEXTS] + kept->text_bytes);
    for (uint64_t i = 0; kept->has_flags && i < kept->shape.n_elems; i++)
        bytes[places.at[KEPT_FLAGS] + i / 8] |= (uint8_t)((kept->flags[i] != 0) << i % 8);
    uint8_t *row = bytes + places.at[KEPT_SEGMENTS], *model = bytes + places.at[KEPT_MODELS];
    for (uint64_t i = 0; i < kept->n_segments; i++) {
        const struct kept_segment *segment = &kept->segments[i];
        row = put32(put32(row, segment->packed_bytes), segment->table_bytes);
        model = put(model, segment->packed, segment->packed_bytes);
    }
    put_frames(kept, bytes + places.at[KEPT_FRAMES]);
    for (uint64_t i = 0; i < kept->n_blocks; i++)
        put64(bytes + places.at[KEPT_CHECKSUMS] + 8 * i, kept->blocks[i].checksum);
    if (kept->has_sums) {
        put(bytes + places.at[KEPT_SUMS], kept->sums, kept->shape.n_elems * 8);
        put_stats(kept, bytes + places.at[KEPT_STATS]);
    }
    put_header(kept, bytes);
}
