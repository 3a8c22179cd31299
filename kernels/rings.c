/* SPDX-License-Identifier: Apache-2.0 */
#include "rings.h"

#include <string.h>

/* Even and odd pixels apart: neighbours are mostly in one ring, and would wait for each other's addition. */
#define ADD_PIXELS(name, pixel_type)                                                               \
    static void name(uint64_t *even, uint64_t *odd, const pixel_type *pixels, const uint16_t *map, \
                     uint64_t n)                                                                   \
    {                                                                                              \
        uint64_t i = 0;                                                                            \
        for (; i + 1 < n; i += 2) {                                                                \
            even[map[i]] += pixels[i];                                                             \
            odd[map[i + 1]] += pixels[i + 1];                                                      \
        }                                                                                          \
        if (i < n)                                                                                 \
            even[map[i]] += pixels[i];                                                             \
    }

ADD_PIXELS(add_u1, uint8_t)
ADD_PIXELS(add_u2, uint16_t)
ADD_PIXELS(add_u4, uint32_t)

void rings_frame(void *out, uint64_t stride, bool wide, const void *pixels, const uint16_t *map,
                 uint32_t n_rings, const struct frame_shape *shape)
{
    uint64_t even[RINGS_MAX + 1], odd[RINGS_MAX + 1], sum = 0;
    memset(even, 0, (n_rings + 1) * sizeof(even[0]));
    memset(odd, 0, (n_rings + 1) * sizeof(odd[0]));
    if (shape->elem_bytes == 1)
        add_u1(even, odd, pixels, map, shape->n_elems);
    else if (shape->elem_bytes == 2)
        add_u2(even, odd, pixels, map, shape->n_elems);
    else
        add_u4(even, odd, pixels, map, shape->n_elems);
    for (uint32_t k = 0; k < n_rings; k++) {
        sum += even[k] + odd[k];
        if (wide)
            ((uint64_t *)out)[k * stride] = sum;
        else
            ((uint32_t *)out)[k * stride] = (uint32_t)sum;
    }
}
