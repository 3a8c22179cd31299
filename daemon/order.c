/* SPDX-License-Identifier: Apache-2.0 */
#include "order.h"

#define ROUNDS 6

/* The finalizer of splitmix64: every input bit reaches every output bit. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static unsigned half_bits(uint64_t n)
{
    unsigned bits = 0;
    while (bits < 64 && (n - 1) >> bits)
        bits++;
    return bits < 2 ? 1 : (bits + 1) / 2;
}

uint64_t order_permute(uint64_t position, uint64_t n, uint64_t seed)
{
    if (n < 2)
        return 0;
    unsigned half = half_bits(n);
    uint64_t mask = (UINT64_C(1) << half) - 1, x = position;
    do { /* the network permutes 0..4^half-1, below 4n: less than four turns on average */
        uint64_t left = x >> half, right = x & mask;
        for (unsigned round = 0; round < ROUNDS; round++) {
            uint64_t key = mix(seed + (round + 1) * UINT64_C(0x9e3779b97f4a7c15));
            uint64_t next = left ^ (mix(right + key) & mask);
            left = right;
            right = next;
        }
        x = left << half | right;
    } while (x >= n);
    return x;
}

uint64_t order_share(uint64_t n, uint32_t rank, uint32_t world)
{
    return rank < n ? (n - rank - 1) / world + 1 : 0;
}
