/* SPDX-License-Identifier: Apache-2.0
 *
 * warp: what the lanes of a warp do together. The whole warp calls these. */
#ifndef STOW_WARP_CUH
#define STOW_WARP_CUH

#include <stdint.h>

#define WARP 32u
#define ALL_LANES 0xffffffffu

/* The value that lane `from` has; of `from` only the low 5 bits count. */
static __device__ uint32_t value_of(uint32_t value, uint32_t from)
{
    return __shfl_sync(ALL_LANES, value, (int)from);
}

/* Sum of this lane's value and those of the lanes before. */
static __device__ uint32_t sum_to_lane(uint32_t value, uint32_t lane)
{
#pragma unroll
    for (uint32_t d = 1; d < WARP; d *= 2) {
        uint32_t before = __shfl_up_sync(ALL_LANES, value, d);
        value += lane >= d ? before : 0;
    }
    return value;
}

#endif
