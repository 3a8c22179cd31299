/* SPDX-License-Identifier: Apache-2.0
 *
 * kept_fields: the numbers of the .stow format that reading and writing share (docs/formats.md). */
#ifndef STOW_KEPT_FIELDS_H
#define STOW_KEPT_FIELDS_H

#include "kept.h"

#include <xxhash.h>

#define KEPT_MAGIC "\x89STOW\r\n\x1a"
#define KEPT_VERSION 1u
#define KEPT_CHECKSUM_AT 248u
#define KEPT_ALIGN 16u
#define KEPT_PAGE 4096u

#define KEPT_ALLOWED_GAPS 1u
#define KEPT_HAS_SUMS 2u
#define KEPT_HAS_FLAGS 4u
#define KEPT_HAS_EXPECTED 8u
#define KEPT_ALL_BITS 15u

#define KEPT_THERE 1u
#define KEPT_HAS_SHA256 2u

enum kept_table {
    KEPT_TEXTS,
    KEPT_FLAGS,
    KEPT_SEGMENTS,
    KEPT_MODELS,
    KEPT_FRAMES,
    KEPT_CHECKSUMS,
    KEPT_SUMS,
    KEPT_STATS,
    KEPT_N_TABLES
};

#define KEPT_SEGMENT_ROW 8u
#define KEPT_FRAME_ROW 12u

/* From byte 0 of the file. */
struct kept_places {
    uint64_t at[KEPT_N_TABLES], bytes[KEPT_N_TABLES], end;
};

/* From what the header says. */
void kept_place_tables(const struct kept *kept, struct kept_places *places);

/* From frames and payload_at. 0 or STOW_NOMEM. */
int kept_find_blocks(struct kept *kept);

/* u64 of the header that are members of struct kept. */
struct kept_field {
    uint32_t at;
    size_t member;
};
extern const struct kept_field kept_fields[];
extern const size_t n_kept_fields;

/* Bytes of a frame's total, moments and largest, which has 8 of them where pixels have. */
static inline uint64_t kept_moments(const struct kept *kept)
{
    return kept->shape.elem_bytes == 8 ? 32 : 28;
}

static inline uint64_t kept_checksum(const void *bytes, size_t n)
{
    return XXH3_64bits(bytes, n);
}

#endif
