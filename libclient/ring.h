/* SPDX-License-Identifier: Apache-2.0
 *
 * ring: the memory of a stream, mapped into this process: a memfd, or an allocation on a GPU.
 * Also what is asked for before there is one: which kinds of memory this process can take, and
 * the list of frames.
 *
 * What the daemon says of a ring is checked before it is mapped: its slots lie within the
 * allocation, and a memfd is as large as it is said to be. */
#ifndef STOW_RING_H
#define STOW_RING_H

#include "client.h"

#define RING_NONCE_BYTES 16u

struct cuda_map;

struct ring {
    uint64_t id;
    enum stow_memory memory;
    void *data; /* where this process, or its GPU, sees the first byte; NULL: not mapped */
    size_t bytes;
    uint64_t slot_stride;
    struct cuda_map *cuda; /* NULL: host memory */
};

/* Map what a reply describes; id stays as it is. Descriptors stay the caller's. STOW_PROTOCOL,
 * STOW_DEVICE, STOW_NOMEM; then nothing is mapped. */
int ring_open(struct ring *ring, const Stow__StreamReply *reply, const int *fds, size_t n_fds,
              struct stow_error *err);
void ring_close(struct ring *ring); /* zeroed or closed already is allowed */

/* Copy out of it, from an address within. */
int ring_read(struct ring *ring, void *dst, const void *src, size_t bytes, struct stow_error *err);

/* What to ask the daemon for. */
struct ring_wish {
    uint32_t kinds; /* mask of MemoryKind */
    bool has_gpu;
    uint8_t uuid[16];
};

/* memory as the caller said. For GPU memory this process and the daemon must see one GPU in
 * common; of several, the one that the acquisition lies on. STOW_DEVICE, STOW_INVALID, with the
 * client's last error set. */
int ring_choose(struct stow_client *client, const char *name, enum stow_memory memory,
                struct ring_wish *wish);

/* A sealed memfd of these bytes, the caller's; negative: why there is none. what: "a list", for the sentence. */
int ring_memfd(const void *data, size_t bytes, const char *what, struct stow_error *err);

/* A list of frames as it travels: in the message, or in a sealed memfd where it is long. */
struct ring_ids {
    size_t n;
    uint64_t *here; /* NULL: in fd */
    size_t n_here;
    int fd; /* -1: none */
};
int ring_ids_open(struct ring_ids *list, const uint64_t *ids, size_t n, struct stow_error *err);
void ring_ids_close(struct ring_ids *list);

/* Mask of MemoryKind that this process can map, and a mask in words ("host-fd,cuda-ipc"). */
uint32_t ring_memory_mask(bool cuda);
void ring_kind_names(uint32_t mask, char *text, size_t room);

#endif
