/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_kept: header and tables of a .stow file that keeps no promise. What passes must be sound: blocks within the
 * file, frames within blocks, models that unpack or are refused, and what is written from it is what was read.
 *
 * First byte: bit 0: the checksums are put right first, so that what lies behind them is reached. The rest is the
 * file; its frames are not looked at, so that it may end where they begin. */
#include "counts_model.h"
#include "kept_fields.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void put64(uint8_t *to, uint64_t value)
{
    memcpy(to, &value, sizeof(value));
}

static void check_blocks(const struct kept *kept)
{
    uint64_t at = kept->payload_at, next = 0;
    for (uint64_t i = 0; i < kept->n_blocks; i++) {
        const struct kept_block *block = &kept->blocks[i];
        assert(block->at == at && block->bytes && block->n_frames && block->first >= next);
        assert(block->first + block->n_frames <= kept->n_frames);
        uint64_t bytes = 0;
        for (uint32_t k = 0; k < block->n_frames; k++)
            bytes += kept_stride(&kept->frames[block->first + k]);
        assert(bytes == block->bytes && (bytes <= KEPT_BLOCK_BYTES || block->n_frames >= 1));
        at += block->bytes;
        next = block->first + block->n_frames;
    }
    assert(at == kept->file_bytes);
}

static void check_models(const struct kept *kept)
{
    for (uint64_t i = 0; i < kept->n_segments; i++) {
        const struct kept_segment *segment = &kept->segments[i];
        struct counts_model model = {.n_streams = 0};
        struct stow_error err;
        if (!segment->packed_bytes ||
            counts_model_unpack(&model, segment->packed, segment->packed_bytes, &kept->shape, &err))
            continue;
        void *table = malloc(counts_model_segment_bytes(&model));
        assert(table);
        counts_model_segment(&model, table);
        free(table);
        counts_model_fini(&model);
    }
}

/* Written again it is the same, but for texts that were no UTF-8. */
static void check_writing(struct kept *kept, const uint8_t *file)
{
    uint64_t payload_at = kept->payload_at;
    uint8_t *again = malloc(payload_at);
    assert(again);
    free(kept->blocks);
    kept->blocks = NULL;
    if (kept->has_sums)
        kept_take_stats(kept, kept->stats, 0, kept->n_frames);
    assert(kept_layout(kept) == 0 && kept->payload_at == payload_at);
    kept_put(kept, again);
    assert(memcmp(again, file, 12) == 0);
    free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kept kept;
    struct stow_error err = {.code = 0};
    if (bytes < 1 + KEPT_HEADER_BYTES)
        return 0;
    size_t n = bytes - 1;
    uint8_t *file = malloc(n);
    assert(file);
    memcpy(file, data + 1, n);
    if (data[0] & 1)
        put64(file + KEPT_CHECKSUM_AT, kept_checksum(file, KEPT_CHECKSUM_AT));
    uint64_t says;
    memcpy(&says, file + 16, sizeof(says));
    int rc = kept_head(&kept, file, data[0] & 1 ? says : n, &err);
    assert(rc ? rc == err.code && err.text[0] : kept.payload_at >= KEPT_HEADER_BYTES);
    if (!rc && kept.payload_at <= n && kept.payload_at - KEPT_HEADER_BYTES < 1u << 24) {
        size_t tables = kept.payload_at - KEPT_HEADER_BYTES;
        uint8_t *copy = malloc(tables);
        assert(copy);
        memcpy(copy, file + KEPT_HEADER_BYTES, tables);
        if (data[0] & 1)
            kept.tables_checksum = kept_checksum(copy, tables);
        rc = kept_parse(&kept, copy, &err);
        assert(!rc || (rc == err.code && err.text[0]));
        if (!rc) {
            check_blocks(&kept);
            check_models(&kept);
            check_writing(&kept, file);
        }
        kept_fini(&kept);
    }
    free(file);
    return 0;
}
