/* SPDX-License-Identifier: Apache-2.0
 *
 * shuffle: HDF5 puts the first bytes of all elements first, then all second bytes, and so on; what is no whole element
 * stays behind them. */
#include "filter.h"
#include "wide.h"

#include <string.h>

#define BLOCK \
    64u /* elements: their bytes come from as many lines of the cache as an element has bytes */

static INLINED void unshuffle(uint8_t *restrict dst, const uint8_t *restrict src, size_t n,
                              uint32_t elem_bytes)
{
    size_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        for (uint32_t k = 0; k < elem_bytes; k++) {
            for (uint32_t m = 0; m < BLOCK; m++)
                dst[(i + m) * elem_bytes + k] = src[k * n + i + m];
        }
    }
    for (; i < n; i++) {
        for (uint32_t k = 0; k < elem_bytes; k++)
            dst[i * elem_bytes + k] = src[k * n + i];
    }
}

static void unshuffle_any(uint8_t *dst, const uint8_t *src, size_t n, uint32_t elem_bytes)
{
    switch (elem_bytes) {
    case 2: unshuffle(dst, src, n, 2); break;
    case 4: unshuffle(dst, src, n, 4); break;
    case 8: unshuffle(dst, src, n, 8); break;
    default: unshuffle(dst, src, n, elem_bytes);
    }
}

int filter_undo_shuffle(struct filter_step *step, struct stow_error *err)
{
    uint32_t elem_bytes = filter_value(step->filter, 0, 0);
    int rc = elem_bytes ? filter_room(step, step->src_bytes, err)
                        : error_set(err, STOW_UNSUPPORTED, "it does not say the element's size");
    if (rc)
        return rc;
    size_t n = step->src_bytes / elem_bytes;
    unshuffle_any(step->dst, step->src, n, elem_bytes);
    memcpy(step->dst + n * elem_bytes, step->src + n * elem_bytes,
           step->src_bytes - n * elem_bytes);
    return 0;
}
