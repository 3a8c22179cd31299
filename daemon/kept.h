/* SPDX-License-Identifier: Apache-2.0
 *
 * kept: what a .stow file says besides its frames' bytes: docs/formats.md, byte by byte, in both directions.
 *
 * Reading: kept_head tells from the first bytes whether it is one and how long its tables are; kept_parse takes
 * those and believes nothing before it is checked. Writing: who has a description calls kept_layout, which finds
 * the blocks and the sizes, and when the blocks' checksums are known kept_put. Neither reads nor writes files, and
 * neither knows of devices. Any thread; a zeroed struct is safe to _fini. */
#ifndef STOW_KEPT_H
#define STOW_KEPT_H

#include "sums.h"

#include "error.h"

#define KEPT_HEADER_BYTES 256u
#define KEPT_BLOCK_BYTES (UINT64_C(8) << 20) /* of a block, but for a larger frame */

/* A file of the original source. */
struct kept_source {
    char *path;
    uint64_t size;
    int64_t mtime_ns;
    bool there, has_sha256;
    uint8_t sha256[32];
};

/* What a resident that was loaded from a .stow file remembers of the files that this was made from. */
struct remembered {
    char *dataset;             /* as asked for; NULL: found */
    struct kept_source *files; /* [n_files] the master first */
    size_t n_files;
    bool allow_gaps;
};

struct kept_fault {
    uint64_t first, count;
    char *text;
};

struct kept_segment {
    const uint8_t *packed; /* [packed_bytes] in the tables, or the resident's */
    uint32_t packed_bytes, table_bytes;
};

/* As it lies in the file: what was read is used in place. */
struct kept_frame {
    uint32_t bytes;
    uint32_t n_blocks; /* bslz4 */
    uint8_t form, code;
    uint16_t reserved; /* 0 */
};

/* Consecutive frames that are read, checked and copied at once. */
struct kept_block {
    uint64_t first, at, bytes; /* at: of the file */
    uint64_t checksum;
    uint32_t n_frames;
};

struct kept {
    char dtype[8];
    struct frame_shape shape;
    uint64_t det_y, det_x, scan_y, scan_x;
    uint64_t n_frames, expected, source_bytes;
    bool has_expected, allow_gaps, has_flags, has_sums;
    char *dataset;
    struct kept_source *sources; /* [n_sources] the master first */
    uint32_t n_sources, n_warnings;
    char **warnings;
    struct kept_fault *faults; /* [n_faults] ascending */
    uint64_t n_faults;
    uint64_t segment_frames;
    struct kept_segment *segments; /* [n_segments] */
    uint64_t n_segments;
    struct kept_frame *frames; /* [n_frames]; in the tables of what was parsed */
    struct kept_block *blocks; /* [n_blocks] */
    uint64_t n_blocks;
    /* what was added up */
    uint64_t *sums;            /* [n_elems] with has_sums */
    struct frame_stats *stats; /* [n_frames] with has_sums */
    uint8_t *flags;            /* [n_elems] with has_flags */
    uint64_t n_flagged, n_summed;

    uint64_t text_bytes, model_bytes;
    uint64_t payload_at, file_bytes;
    uint64_t tables_checksum, stated_blocks; /* in the header */
    uint8_t *tables; /* what was parsed: models, frames and rows of stats lie in it */
    /* Texts, sums, stats and flags are a resident's: _fini leaves them alone. */
    bool lent;
};

void kept_fini(struct kept *kept);
void remembered_free(struct remembered *remembered);

/* Whether these first bytes (8 will do) are those of a .stow file. */
bool kept_is(const uint8_t *bytes, size_t n);

/* From the header: the tables are payload_at - KEPT_HEADER_BYTES bytes from there on. file_bytes: of the file as it
 * is. STOW_SOURCE: damaged or cut; STOW_UNSUPPORTED: of a later version. The sentence is without the file's name. */
int kept_head(struct kept *kept, const uint8_t header[KEPT_HEADER_BYTES], uint64_t file_bytes,
              struct stow_error *err);

/* The tables, from malloc, the struct's from here on, also on failure. STOW_SOURCE, STOW_NOMEM. Models are not
 * looked into: counts_model_unpack does; stats are not filled: kept_take_stats does. */
int kept_parse(struct kept *kept, uint8_t *tables, struct stow_error *err);

/* Fill the stats of some frames, from the tables. With has_sums only; ranges side by side on any threads. */
void kept_take_stats(const struct kept *kept, struct frame_stats *stats, uint64_t first,
                     uint64_t end);

/* Blocks and sizes, from all the rest. 0 or STOW_NOMEM. */
int kept_layout(struct kept *kept);

/* Header and tables: payload_at bytes. */
void kept_put(const struct kept *kept, uint8_t *bytes);

/* What a frame takes in the file. */
static inline uint64_t kept_stride(const struct kept_frame *frame)
{
    return ((uint64_t)frame->bytes + 15) / 16 * 16;
}

#endif
