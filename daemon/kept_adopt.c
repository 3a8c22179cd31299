/* SPDX-License-Identifier: Apache-2.0 */
#include "kept_adopt.h"

#include "large.h"

#include <stdlib.h>
#include <string.h>

static int describe_segments(struct resident *resident, const struct kept *kept)
{
    resident->segment_frames = kept->segment_frames;
    resident->segments = calloc(kept->n_segments + 1, sizeof(*resident->segments));
    if (!resident->segments)
        return STOW_NOMEM;
    resident->n_segments = kept->n_segments;
    for (uint64_t i = 0; i < kept->n_segments; i++) {
        const struct kept_segment *from = &kept->segments[i];
        uint64_t first = i * kept->segment_frames, left = kept->n_frames - first;
        struct segment *segment = &resident->segments[i];
        *segment =
            (struct segment){.first = first,
                             .count = left < kept->segment_frames ? left : kept->segment_frames};
        if (!from->packed_bytes)
            continue;
        segment->packed = malloc(from->packed_bytes);
        if (!segment->packed)
            return STOW_NOMEM;
        memcpy(segment->packed, from->packed, from->packed_bytes);
        segment->packed_bytes = from->packed_bytes;
        segment->table_bytes = from->table_bytes;
    }
    return 0;
}

static int describe_frames(struct resident *resident, const struct kept *kept)
{
    resident->frames = large_alloc(kept->n_frames * sizeof(*resident->frames));
    if (!resident->frames)
        return STOW_NOMEM;
    for (uint64_t i = 0; i < kept->n_frames; i++) {
        const struct kept_frame *from = &kept->frames[i];
        resident->frames[i] =
            (struct frame){.form = from->bytes ? FRAME_PENDING : from->form, .code = from->code};
        resident->n_loaded += from->bytes == 0;
    }
    for (uint64_t i = 0; i < kept->n_faults; i++) {
        const struct kept_fault *fault = &kept->faults[i];
        for (uint64_t id = fault->first, next; id < fault->first + fault->count; id = next) {
            int code = -(int)kept->frames[id].code;
            for (next = id + 1;
                 next < fault->first + fault->count && -(int)kept->frames[next].code == code;)
                next++;
            resident_fault(resident, id, next - id, code, fault->text);
        }
    }
    return 0;
}

/* What the file remembers of its source goes on with the resident. */
static int describe_origin(struct resident *resident, struct kept *kept)
{
    struct remembered *source = calloc(1, sizeof(*source));
    if (!source)
        return STOW_NOMEM;
    *source = (struct remembered){.dataset = kept->dataset,
                                  .files = kept->sources,
                                  .n_files = kept->n_sources,
                                  .allow_gaps = kept->allow_gaps};
    kept->dataset = NULL;
    kept->sources = NULL;
    resident->remembered = source;
    for (uint32_t i = 0; i < kept->n_warnings; i++)
        resident_warn(resident, "%s", kept->warnings[i]);
    return 0;
}

int kept_adopt(struct resident *resident, struct kept *kept)
{
    memcpy(resident->dtype, kept->dtype, sizeof(resident->dtype));
    resident->det_y = kept->det_y;
    resident->det_x = kept->det_x;
    resident->scan_y = kept->scan_y;
    resident->scan_x = kept->scan_x;
    resident->shape = kept->shape;
    resident->n_frames = kept->n_frames;
    resident->has_expected = kept->has_expected;
    resident->expected = kept->expected;
    resident->source_bytes = kept->source_bytes;
    if (describe_frames(resident, kept) || describe_segments(resident, kept) ||
        describe_origin(resident, kept))
        return STOW_NOMEM;
    resident->sums = (struct kept_sums){.pixels = kept->sums,
                                        .stats = kept->stats,
                                        .flags = kept->flags,
                                        .n_flagged = kept->n_flagged,
                                        .n_frames = kept->n_summed};
    kept->sums = NULL;
    kept->stats = NULL;
    kept->flags = NULL;
    return 0;
}
