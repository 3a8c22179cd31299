/* SPDX-License-Identifier: Apache-2.0
 *
 * chunk_cache: decoded chunks that several frames need, shared by the threads that read a load.
 *
 * A chunk is decoded by the first who asks for it, while the others wait, or do something else first. It stays while
 * somebody holds it or has not come yet, as far as the budget allows: what was held longest ago goes first. A chunk that
 * alone is more than the budget waits until nothing is held, and has it all.
 *
 * Any thread. Who holds a chunk asks for no other, so that those who wait always go on. */
#ifndef STOW_CHUNK_CACHE_H
#define STOW_CHUNK_CACHE_H

#include "error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct chunk_cache;

struct cached_chunk {
    const uint8_t *bytes;
    struct stow_error err; /* code not 0: it could not be decoded, bytes is NULL */
};

struct chunk_wish {
    uint64_t key;
    size_t bytes;    /* decoded */
    uint64_t n_uses; /* after so many it is not kept any more */
    int (*decode)(void *data, uint8_t *to, struct stow_error *err);
    void *data;
};

/* NULL without memory. */
struct chunk_cache *chunk_cache_new(size_t budget_bytes);

/* Nothing is held. */
void chunk_cache_free(struct chunk_cache *cache);

/* The chunk, to be given back. NULL, only with may_wait false: another thread decodes it, or there is no room now. */
const struct cached_chunk *chunk_cache_take(struct chunk_cache *cache,
                                            const struct chunk_wish *wish, bool may_wait);

/* n of its uses are done. */
void chunk_cache_give(struct chunk_cache *cache, const struct cached_chunk *chunk, uint64_t n);

#endif
