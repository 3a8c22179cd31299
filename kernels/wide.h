/* SPDX-License-Identifier: Apache-2.0
 *
 * wide: WIDE_LOOPS before a static function makes it once more for AVX2 and the shifts that came with it, chosen when
 * the program starts: a plain x86-64 has no 32-bit multiplication, no unsigned maximum and no shifts by different
 * numbers of many at once. It counts for what is inlined into the function, too: INLINED before that. Sanitizers run
 * before such a choice can be made. */
#ifndef STOW_WIDE_H
#define STOW_WIDE_H

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#if __GNUC__ >= 12
#define WIDE_LOOPS __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define WIDE_LOOPS __attribute__((target_clones("avx2", "default")))
#endif
#define INLINED inline __attribute__((always_inline))
#else
#define WIDE_LOOPS
#define INLINED inline
#endif

#endif
