/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_import: all that this library does with CUDA. The driver, libcuda.so.1, is loaded at run
 * time, so that one library serves machines with and without a GPU. Without it, and when built
 * without CUDA, every function here still answers, and says why nothing can be done.
 *
 * The caller's current context is used where it is on the right GPU, else that GPU's primary one
 * is retained for the life of the mapping. Contexts are pushed and popped around each call: the
 * caller's stays current. GPUs are named by their UUID; ordinals differ between processes. Any
 * thread. */
#ifndef STOW_CUDA_IMPORT_H
#define STOW_CUDA_IMPORT_H

#include "error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cuda_map;

/* UUIDs of the GPUs that this process can use, that of the current context first. Returns how
 * many were written; with 0, *why (may be NULL) tells the reason. The first call initialises the
 * driver. */
size_t cuda_gpus(uint8_t (*uuids)[16], size_t room, struct stow_error *why);

/* Map a ring's allocation of `bytes` on the GPU with this UUID. handle: the 64 bytes of a
 * cuda-ipc handle; NULL: fd is a cuda-fd descriptor, which stays the caller's. STOW_DEVICE,
 * STOW_NOMEM. */
int cuda_map_open(struct cuda_map **map, const uint8_t uuid[16], const uint8_t *handle, int fd,
                  size_t bytes, struct stow_error *err);
void cuda_map_close(struct cuda_map *map); /* NULL is allowed */

/* The device address of its first byte. */
void *cuda_map_data(const struct cuda_map *map);

/* The mapping's own CUDA stream: what cuda_map_read copies on. */
void *cuda_map_stream(const struct cuda_map *map);

/* Copy to host memory, and wait until it is there. */
int cuda_map_read(struct cuda_map *map, void *dst, const void *src_dev, size_t bytes,
                  struct stow_error *err);

/* Call fn(data) once all work now queued on the CUDA stream is done, from a thread of the
 * driver. */
int cuda_after(void *cuda_stream, void (*fn)(void *data), void *data, struct stow_error *err);

/* Wait for a CUDA stream. After this, calls asked for by cuda_after on it have run, or, where
 * the context is broken, never will. */
void cuda_wait(void *cuda_stream);

#endif
