/* SPDX-License-Identifier: Apache-2.0 */
#include "describe.h"

#include "assembler.h"
#include "span.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void no_file_text(const struct source_file *file, struct stow_error *why)
{
    if (file->errno_value && file->errno_value != ENOENT)
        error_set(why, STOW_UNWRITTEN, "its file %s cannot be opened: %s", file->path,
                  strerror(file->errno_value));
    else if (file->fd >= 0)
        error_set(why, STOW_UNWRITTEN, "its file %s cannot be used", file->path);
    else
        error_set(why, STOW_UNWRITTEN, "its file %s is missing", file->path);
}

static void fault_text(const struct source_index *index, const struct source_chunk *chunk,
                       uint64_t id, struct stow_error *why)
{
    switch (chunk->fault) {
    case SOURCE_FAULT_NO_FILE: no_file_text(&index->files[chunk->offset], why); break;
    case SOURCE_FAULT_PAST_END:
        error_set(why, STOW_CORRUPT,
                  "its chunk passes the end of %s, which is truncated; copy it again",
                  index->files[chunk->file].path);
        break;
    default:
        error_set(why, STOW_CORRUPT, "its chunk of %u bytes in %s does not hold frame %llu",
                  chunk->bytes, index->files[chunk->file].path, (unsigned long long)id);
    }
}

static bool same_fault(const struct source_chunk *a, const struct source_chunk *b)
{
    return a->fault == b->fault && a->file == b->file &&
           (a->fault != SOURCE_FAULT_NO_FILE || a->offset == b->offset);
}

/* Frames without bytes are as good as they will be; the others wait. */
static void describe_frames(struct resident *resident, const struct source_index *index)
{
    for (uint64_t id = 0; id < index->n_frames;) {
        const struct source_chunk *chunk = &index->chunks[id];
        if (chunk->fault) {
            resident->has_gaps |= chunk->fault == SOURCE_FAULT_NO_FILE;
            uint64_t end = id + 1;
            while (end < index->n_frames && same_fault(chunk, &index->chunks[end]))
                end++;
            struct stow_error why;
            fault_text(index, chunk, id, &why);
            resident_fault(resident, id, end - id, why.code, why.text);
            resident->n_loaded += end - id;
            id = end;
            continue;
        }
        bool stored = chunk->bytes != 0;
        resident->frames[id++].form = stored ? FRAME_PENDING : STOW_FORM_FILL;
        resident->n_loaded += !stored;
    }
}

/* All files, where so far the resident knew its master. */
static int describe_files(struct resident *resident, const struct source_index *index)
{
    struct origin *origins = calloc(index->n_files, sizeof(*origins));
    if (!origins)
        return STOW_NOMEM;
    for (size_t i = 0; i < resident->n_origins; i++)
        free(resident->origins[i].path);
    free(resident->origins);
    resident->origins = origins;
    for (resident->n_origins = 0; resident->n_origins < index->n_files; resident->n_origins++) {
        const struct source_file *file = &index->files[resident->n_origins];
        struct origin origin = {.path = strdup(file->path),
                                .dev = file->dev,
                                .ino = file->ino,
                                .size = file->size,
                                .mtime_ns = file->mtime_ns};
        if (!origin.path)
            return STOW_NOMEM;
        origins[resident->n_origins] = origin;
    }
    return 0;
}

int describe_resident(struct resident *resident, const struct source_index *index)
{
    resident->frames = calloc(index->n_frames ? index->n_frames : 1, sizeof(*resident->frames));
    if (!resident->frames || describe_files(resident, index))
        return STOW_NOMEM;
    memcpy(resident->dtype, index->dtype, sizeof(resident->dtype));
    resident->det_y = index->det_y;
    resident->det_x = index->det_x;
    resident->scan_y = index->scan_y;
    resident->scan_x = index->scan_x;
    resident->shape =
        (struct frame_shape){.n_elems = index->det_y * index->det_x,
                             .elem_bytes = index->elem_bytes,
                             .kind = (uint32_t)pixel_kind_of(index->dtype, index->elem_bytes),
                             .fill = index->fill};
    resident->n_frames = index->n_frames;
    resident->has_expected = index->has_expected;
    resident->expected = index->expected;
    resident->source_bytes = index->assembly ? assembly_bytes(index->assembly) : index->chunk_bytes;
    for (size_t i = 0; i < index->n_warnings; i++)
        resident_warn(resident, "%s", index->warnings[i]);
    char slow[400];
    if (index->assembler && assembler_is_slow(index->assembler, slow, sizeof(slow)))
        resident_warn(resident, "%s", slow);
    describe_frames(resident, index);
    return 0;
}

static int describe_flags(struct resident *resident, const uint8_t *flags)
{
    struct kept_sums *sums = &resident->sums;
    const size_t n = resident->shape.n_elems;
    sums->flags = malloc(n ? n : 1);
    if (!sums->flags)
        return STOW_NOMEM;
    memcpy(sums->flags, flags, n);
    for (size_t i = 0; i < n; i++)
        sums->n_flagged += flags[i] != 0;
    return 0;
}

int describe_segments(struct resident *resident, uint64_t segment_frames, const uint8_t *flags)
{
    struct kept_sums *sums = &resident->sums;
    const uint64_t n = resident->n_frames, n_elems = resident->shape.n_elems;
    resident->segment_frames = segment_frames;
    resident->n_segments = (size_t)(n / segment_frames + (n % segment_frames != 0));
    resident->segments =
        calloc(resident->n_segments ? resident->n_segments : 1, sizeof(*resident->segments));
    sums->pixels = calloc(n_elems ? n_elems : 1, sizeof(*sums->pixels));
    sums->stats = calloc(n ? n : 1, sizeof(*sums->stats));
    if (!resident->segments || !sums->pixels || !sums->stats)
        return STOW_NOMEM;
    for (size_t i = 0; i < resident->n_segments; i++) {
        uint64_t first = i * segment_frames;
        resident->segments[i] =
            (struct segment){.first = first,
                             .count = n - first < segment_frames ? n - first : segment_frames};
    }
    return flags ? describe_flags(resident, flags) : 0;
}
