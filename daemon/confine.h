/* SPDX-License-Identifier: Apache-2.0
 *
 * confine: take from this process all that reading an index does not need. After it the process
 * can read and map the descriptors that it is given, talk on its socket, make memfds and use the
 * CPU; it cannot open a file, start a program, trace, or make a socket, and it ends with its
 * parent. Every layer that the kernel lacks is left out: what remains still holds. In sanitizer
 * builds the memory limit and the system call filter are left out, since their run-time needs
 * more. */
#ifndef STOW_CONFINE_H
#define STOW_CONFINE_H

/* 1 in a sanitizer build. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CONFINE_PARTLY 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
#define CONFINE_PARTLY 1
#endif
#endif
#ifndef CONFINE_PARTLY
#define CONFINE_PARTLY 0
#endif

/* Keep descriptors 0, 1, 2 and keep_fd, close all others. 0, or the errno of a layer that this
 * kernel has and that failed. */
int confine_process(int keep_fd);

#endif
