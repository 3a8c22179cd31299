/* SPDX-License-Identifier: Apache-2.0
 *
 * copy: bytes in global memory from anywhere to anywhere, by any number of threads side by side: thread 0 to
 * n_threads - 1, each with the same other arguments. Nothing outside the n bytes is read or written. */
#ifndef STOW_COPY_CUH
#define STOW_COPY_CUH

#include <stdint.h>

/* to and from are 16-byte aligned. Returns how many bytes are done. */
static __device__ uint32_t copy_quads(uint8_t *__restrict__ to, const uint8_t *__restrict__ from,
                                      uint32_t n, uint32_t thread, uint32_t n_threads)
{
#pragma unroll 4
    for (uint32_t i = thread; i < n / 16; i += n_threads)
        ((uint4 *)to)[i] = ((const uint4 *)from)[i];
    return n / 16 * 16;
}

/* to and from are 4-byte aligned. */
static __device__ uint32_t copy_words(uint8_t *__restrict__ to, const uint8_t *__restrict__ from,
                                      uint32_t n, uint32_t thread, uint32_t n_threads)
{
#pragma unroll 8
    for (uint32_t i = thread; i < n / 4; i += n_threads)
        ((uint32_t *)to)[i] = ((const uint32_t *)from)[i];
    return n / 4 * 4;
}

/* to is 4-byte aligned, from is not. A word is made of two aligned ones, so that the first word and what is left
 * of the last are done by bytes. */
static __device__ uint32_t copy_shifted(uint8_t *__restrict__ to, const uint8_t *__restrict__ from,
                                        uint32_t n, uint32_t thread, uint32_t n_threads)
{
    uint32_t skew = (uint32_t)(uintptr_t)from & 3, end = (n + skew) / 4;
    const uint32_t *words = (const uint32_t *)(from - skew);
    if (end < 3)
        return 0;
    if (thread < 4)
        to[thread] = from[thread];
#pragma unroll 8
    for (uint32_t i = 1 + thread; i < end - 1; i += n_threads)
        ((uint32_t *)to)[i] = __funnelshift_r(words[i], words[i + 1], 8 * skew);
    return 4 * (end - 1);
}

/* n_threads: 16 or more. */
static __device__ void copy_bytes(uint8_t *to, const uint8_t *from, uint32_t n, uint32_t thread,
                                  uint32_t n_threads)
{
    uint32_t head = min(n, (uint32_t)(0 - (uintptr_t)to) & 15);
    if (thread < head)
        to[thread] = from[thread];
    to += head;
    from += head;
    n -= head;
    uint32_t done;
    if ((uintptr_t)from % 16 == 0)
        done = copy_quads(to, from, n, thread, n_threads);
    else if ((uintptr_t)from % 4 == 0)
        done = copy_words(to, from, n, thread, n_threads);
    else
        done = copy_shifted(to, from, n, thread, n_threads);
    for (uint32_t i = done + thread; i < n; i += n_threads)
        to[i] = from[i];
}

#endif
