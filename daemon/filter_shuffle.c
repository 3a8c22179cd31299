/* SPDX-License-Identifier: Apache-2.0
 *
 * shuffle: HDF5 puts the first bytes of all elements first, then all second bytes, and so on; what is no whole element
 * stays behind them. */
#include "filter.h"
#include "wide.h"

#include <string.h>

#define LANES 16u
typedef uint8_t vbytes __attribute__((vector_size(LANES)));

/* n vectors as one array: its halves interleaved. After log2(n) rounds byte m of vector r is at m * n + r. */
static INLINED void interleave_halves(vbytes *out, const vbytes *in, uint32_t n)
{
    for (uint32_t r = 0; r < n / 2; r++) {
        vbytes a = in[r], b = in[r + n / 2];
        out[2 * r] =
            __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        out[2 * r + 1] = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29,
                                                 14, 30, 15, 31);
    }
}

/* LANES elements; inlined with a constant elem_bytes of 2, 4 or 8, so that vectors stay in registers. */
static INLINED void unshuffle_lanes(uint8_t *dst, const uint8_t *src, size_t n, uint32_t elem_bytes)
{
    vbytes a[8], b[8];
    for (uint32_t k = 0; k < elem_bytes; k++)
        memcpy(&a[k], src + k * n, LANES);
    interleave_halves(b, a, elem_bytes);
    if (elem_bytes >= 4)
        interleave_halves(a, b, elem_bytes);
    if (elem_bytes == 8)
        interleave_halves(b, a, elem_bytes);
    memcpy(dst, elem_bytes == 4 ? a : b, (size_t)elem_bytes * LANES);
}

static void unshuffle(uint8_t *dst, const uint8_t *src, size_t n, uint32_t elem_bytes)
{
    size_t i = 0;
    if (elem_bytes == 2)
        for (; i + LANES <= n; i += LANES)
            unshuffle_lanes(dst + 2 * i, src + i, n, 2);
    if (elem_bytes == 4)
        for (; i + LANES <= n; i += LANES)
            unshuffle_lanes(dst + 4 * i, src + i, n, 4);
    if (elem_bytes == 8)
        for (; i + LANES <= n; i += LANES)
            unshuffle_lanes(dst + 8 * i, src + i, n, 8);
    for (; i < n; i++) {
        for (uint32_t k = 0; k < elem_bytes; k++)
            dst[i * elem_bytes + k] = src[k * n + i];
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
    if (elem_bytes == 1)
        memcpy(step->dst, step->src, n);
    else
        unshuffle(step->dst, step->src, n, elem_bytes);
    memcpy(step->dst + n * elem_bytes, step->src + n * elem_bytes,
           step->src_bytes - n * elem_bytes);
    return 0;
}
