/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_filters: a chunk that keeps no promise through filters that keep none either. Writes stay in what comes out,
 * reads in the chunk: each has memory of its exact size.
 *
 * First byte: how many filters (low two bits, and one) and which are skipped (high four). Second and third: bytes that
 * have to come out, little-endian. Four bytes for each filter: which one, then the values of its parameters 0, 3 and 4
 * (element and block sizes are small numbers there). The rest is the chunk. */
#include "filters.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static struct assembly_filter pick(const uint8_t *data)
{
    static const uint32_t ids[] = {FILTER_GZIP, FILTER_SHUFFLE,    FILTER_FLETCHER32,
                                   FILTER_LZ4,  FILTER_BITSHUFFLE, FILTER_ZSTD,
                                   32001};
    return (struct assembly_filter){
        .id = ids[(data[0] & 15) % (sizeof(ids) / sizeof(*ids))],
        .n_values = data[0] >> 4 & 7,
        .values = {data[1], 0, data[1], data[2], data[3] & 3},
    };
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    uint32_t n = bytes ? 1 + (data[0] & 3) : 1;
    struct assembly_filter filters[4];
    if (bytes < 3 + 4 * n)
        return 0;
    for (uint32_t i = 0; i < n; i++)
        filters[i] = pick(data + 3 + 4 * i);
    struct filter_pipeline pipeline = {.filters = filters, .n_filters = n, .mask = data[0] >> 4};
    size_t dst_bytes = data[1] | (size_t)data[2] << 8, src_bytes = bytes - 3 - 4 * n;
    uint8_t *src = malloc(src_bytes + !src_bytes), *dst = malloc(dst_bytes + !dst_bytes);
    assert(src && dst);
    memcpy(src, data + 3 + 4 * n, src_bytes);
    struct filter_scratch scratch = {0};
    struct stow_error err = {0};
    int rc = filters_undo(dst, dst_bytes, src, src_bytes, &pipeline, &scratch, &err);
    assert(rc == err.code);
    assert(rc == 0 || (err.text[0] && (rc == STOW_CORRUPT || rc == STOW_UNSUPPORTED)));
    filter_scratch_fini(&scratch);
    free(src);
    free(dst);
    return 0;
}
