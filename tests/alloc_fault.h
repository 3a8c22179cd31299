/* SPDX-License-Identifier: Apache-2.0
 *
 * alloc_fault: let the k-th allocation from now on fail, and see what becomes of it. malloc, calloc and realloc
 * of the whole program, C library and libuv included, come through here, since the program's own are found
 * first. A sanitizer has its own malloc: there alloc_fault_works is 0 and nothing ever fails. Included by one
 * file of a test program. */
#ifndef STOW_TEST_ALLOC_FAULT_H
#define STOW_TEST_ALLOC_FAULT_H

#include <stdbool.h>
#include <stdlib.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
#define ALLOC_FAULT_SANITIZER 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ALLOC_FAULT_SANITIZER 1
#endif

static _Thread_local unsigned alloc_fault_left; /* 0: none is to fail */
static _Thread_local bool alloc_fault_sticks;   /* all that follow fail too */
static _Thread_local bool alloc_fault_happened;
static _Thread_local bool alloc_fault_paused; /* what is allocated meanwhile does not count */

/* The k-th from now on fails, of this thread; with sticks all after it too. */
static inline void alloc_fault_arm(unsigned k, bool sticks)
{
    alloc_fault_happened = alloc_fault_paused = false;
    alloc_fault_sticks = sticks;
    alloc_fault_left = k;
}

/* Whether one failed since. */
static inline bool alloc_fault_disarm(void)
{
    alloc_fault_left = 0;
    return alloc_fault_happened;
}

#if defined(ALLOC_FAULT_SANITIZER) || !defined(__GLIBC__)
enum { alloc_fault_works = 0 };
#else
enum { alloc_fault_works = 1 };

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t n, size_t bytes);
extern void *__libc_realloc(void *memory, size_t bytes);

static inline bool alloc_fault_now(void)
{
    if (!alloc_fault_left || alloc_fault_paused)
        return false;
    if (alloc_fault_left > 1) {
        alloc_fault_left--;
        return false;
    }
    alloc_fault_happened = true;
    if (!alloc_fault_sticks)
        alloc_fault_left = 0;
    return true;
}

void *malloc(size_t bytes)
{
    return alloc_fault_now() ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    return alloc_fault_now() ? NULL : __libc_calloc(n, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    return alloc_fault_now() ? NULL : __libc_realloc(memory, bytes);
}
#endif

#endif
