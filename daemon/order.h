/* SPDX-License-Identifier: Apache-2.0
 *
 * order: which frame comes at which position of a stream, in constant time at any position, so that
 * resuming a stream costs nothing. Shuffling is a keyed permutation: a balanced Feistel network over the
 * smallest even number of bits that holds n, walked until it lands below n. docs/protocol.md has it for
 * other implementations. */
#ifndef STOW_ORDER_H
#define STOW_ORDER_H

#include <stdint.h>

/* Where element `position` of 0..n-1 goes under this seed: a permutation of 0..n-1. position < n. */
uint64_t order_permute(uint64_t position, uint64_t n, uint64_t seed);

/* How many of n positions a rank of world gets: those congruent to rank, counted from 0. */
uint64_t order_share(uint64_t n, uint32_t rank, uint32_t world);

#endif
