/* SPDX-License-Identifier: Apache-2.0 */
#include "kept_describe.h"

#include <stdlib.h>
#include <string.h>

/* ---- why frames are bad ---- */

struct reason {
    const struct fault *fault;
    size_t number; /* of two for one frame the first counts, as in resident_fault_text */
};

static int by_frame(const void *a, const void *b)
{
    const struct reason *left = a, *right = b;
    if (left->fault->first != right->fault->first)
        return left->fault->first < right->fault->first ? -1 : 1;
    return left->number < right->number ? -1 : 1;
}

/* The part of a fault that is not told yet, joined to the run before where that says the same. */
static void add_fault(struct kept *kept, const struct fault *fault, uint64_t *next)
{
    uint64_t first = fault->first > *next ? fault->first : *next, end = fault->first + fault->count;
    if (first >= end)
        return;
    *next = end;
    struct kept_fault *last = kept->n_faults ? &kept->faults[kept->n_faults - 1] : NULL;
    if (last && last->first + last->count == first && strcmp(last->text, fault->text) == 0)
        last->count += end - first;
    else
        kept->faults[kept->n_faults++] =
            (struct kept_fault){.first = first, .count = end - first, .text = fault->text};
}

static int describe_faults(struct kept *kept, const struct resident *resident)
{
    size_t n = resident->n_faults;
    uint64_t next = 0;
    struct reason *reasons = calloc(n + 1, sizeof(*reasons));
    kept->faults = calloc(n + 1, sizeof(*kept->faults));
    if (!reasons || !kept->faults) {
        free(reasons);
        return STOW_NOMEM;
    }
    for (size_t i = 0; i < n; i++)
        reasons[i] = (struct reason){.fault = &resident->faults[i], .number = i};
    qsort(reasons, n, sizeof(*reasons), by_frame);
    for (size_t i = 0; i < n; i++)
        add_fault(kept, reasons[i].fault, &next);
    free(reasons);
    return 0;
}

/* ---- frames and segments ---- */

static int describe_frames(struct kept *kept, const struct resident *resident)
{
    kept->frames = calloc(resident->n_frames + 1, sizeof(*kept->frames));
    if (!kept->frames)
        return STOW_NOMEM;
    for (uint64_t i = 0; i < resident->n_frames; i++) {
        const struct frame *from = &resident->frames[i];
        bool stored = from->form != STOW_FORM_FILL && from->form != STOW_FORM_BAD;
        kept->frames[i] =
            (struct kept_frame){.bytes = stored ? from->bytes : 0, .form = from->form};
        if (from->form == STOW_FORM_BAD)
            kept->frames[i].code = from->code;
    }
    return 0;
}

static int describe_segments(struct kept *kept, const struct resident *resident)
{
    kept->segments = calloc(resident->n_segments + 1, sizeof(*kept->segments));
    if (!kept->segments)
        return STOW_NOMEM;
    bool any = false;
    for (size_t i = 0; i < resident->n_segments; i++) {
        const struct segment *from = &resident->segments[i];
        bool used = false;
        for (uint64_t id = from->first; !used && id < from->first + from->count; id++)
            used = resident->frames[id].form == STOW_FORM_COUNTS;
        if (!used)
            continue;
        any = true;
        kept->segments[i] = (struct kept_segment){.packed = from->packed,
                                                  .packed_bytes = (uint32_t)from->packed_bytes,
                                                  .table_bytes = from->table_bytes};
    }
    if (any) {
        kept->n_segments = resident->n_segments;
        kept->segment_frames = resident->segment_frames;
    }
    return 0;
}

/* ---- where it is from ---- */

size_t kept_n_sources(const struct resident *resident)
{
    return resident->remembered ? resident->remembered->n_files : resident->n_origins;
}

struct kept_source kept_source_of(const struct resident *resident, size_t i)
{
    if (resident->remembered)
        return resident->remembered->files[i];
    const struct origin *from = &resident->origins[i];
    return (struct kept_source){.path = from->path,
                                .size = from->size,
                                .mtime_ns = from->mtime_ns,
                                .there = from->ino != 0};
}

int kept_same_source(const struct kept_source *was, const char *path, uint64_t size,
                     int64_t mtime_ns, struct stow_error *err)
{
    if (size != was->size)
        return error_set(err, STOW_SOURCE, "the source has changed: %s had %llu bytes and has %llu",
                         path, (unsigned long long)was->size, (unsigned long long)size);
    if (mtime_ns != was->mtime_ns)
        return error_set(err, STOW_SOURCE,
                         "the source has changed: %s was written to since it was loaded (time of "
                         "change)",
                         path);
    return 0;
}

static int describe_origins(struct kept *kept, const struct resident *resident, bool sha256)
{
    const struct remembered *before = resident->remembered;
    size_t n = kept_n_sources(resident);
    kept->sources = calloc(n + 1, sizeof(*kept->sources));
    if (!kept->sources)
        return STOW_NOMEM;
    kept->n_sources = (uint32_t)n;
    kept->dataset = before ? before->dataset : resident->dataset;
    kept->allow_gaps = before ? before->allow_gaps : resident->has_gaps;
    for (size_t i = 0; i < n; i++) {
        kept->sources[i] = kept_source_of(resident, i);
        kept->sources[i].has_sha256 |= sha256 && kept->sources[i].there;
    }
    return 0;
}

int kept_describe(struct kept *kept, const struct resident *resident,
                  const struct kept_describing *how)
{
    *kept = (struct kept){.shape = resident->shape,
                          .det_y = resident->det_y,
                          .det_x = resident->det_x,
                          .scan_y = how->scan_y ? how->scan_y : resident->scan_y,
                          .scan_x = how->scan_y ? how->scan_x : resident->scan_x,
                          .n_frames = resident->n_frames,
                          .has_expected = resident->has_expected,
                          .expected = resident->has_expected ? resident->expected : 0,
                          .source_bytes = resident->source_bytes,
                          .warnings = resident->warnings,
                          .n_warnings = (uint32_t)resident->n_warnings,
                          .has_flags = resident->sums.flags != NULL,
                          .flags = resident->sums.flags,
                          .n_flagged = resident->sums.n_flagged,
                          .lent = true};
    memcpy(kept->dtype, resident->dtype, sizeof(kept->dtype));
    if (resident->sums.pixels) {
        kept->has_sums = true;
        kept->sums = resident->sums.pixels;
        kept->stats = resident->sums.stats;
        kept->n_summed = resident->sums.n_frames;
    }
    if (describe_frames(kept, resident) || describe_segments(kept, resident) ||
        describe_faults(kept, resident) || describe_origins(kept, resident, how->sha256))
        return STOW_NOMEM;
    return kept_layout(kept);
}

uint64_t kept_source_bytes(const struct kept *kept)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < kept->n_sources; i++)
        bytes += kept->sources[i].size;
    return bytes;
}
