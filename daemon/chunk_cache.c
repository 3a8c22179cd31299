/* SPDX-License-Identifier: Apache-2.0
 *
 * One mutex over a table of chains and a list of what nobody holds, oldest first. Decoding is done outside of it. */
#include "chunk_cache.h"

#include <stdlib.h>
#include <uv.h>

#define N_CHAINS 4096u

struct entry {
    struct cached_chunk chunk; /* first: what is handed out is the entry */
    uint64_t key, n_left;
    size_t bytes;
    uint8_t *memory;
    unsigned n_holders;
    bool decoding;
    struct entry *chain;
    struct entry *older, *newer; /* among those that nobody holds */
};

struct chunk_cache {
    uv_mutex_t mutex;
    uv_cond_t changed;
    size_t budget, used;
    struct entry *chains[N_CHAINS];
    struct entry idle; /* older: the newest of the list, newer: its oldest */
};

static const struct entry no_memory = {
    .chunk.err = {.code = STOW_NOMEM, .text = "no memory for a decoded chunk"}};

struct chunk_cache *chunk_cache_new(size_t budget_bytes)
{
    struct chunk_cache *cache = calloc(1, sizeof(*cache));
    if (!cache)
        return NULL;
    cache->budget = budget_bytes;
    cache->idle.older = cache->idle.newer = &cache->idle;
    if (uv_mutex_init(&cache->mutex)) {
        free(cache);
        return NULL;
    }
    if (uv_cond_init(&cache->changed)) {
        uv_mutex_destroy(&cache->mutex);
        free(cache);
        return NULL;
    }
    return cache;
}

static struct entry **chain_of(struct chunk_cache *cache, uint64_t key)
{
    return &cache->chains[(key * UINT64_C(0x9e3779b97f4a7c15)) >> 52 & (N_CHAINS - 1)];
}

static struct entry *find(struct chunk_cache *cache, uint64_t key)
{
    struct entry *entry = *chain_of(cache, key);
    while (entry && entry->key != key)
        entry = entry->chain;
    return entry;
}

static void list_remove(struct entry *entry)
{
    entry->older->newer = entry->newer;
    entry->newer->older = entry->older;
}

static void list_add(struct chunk_cache *cache, struct entry *entry)
{
    entry->newer = &cache->idle;
    entry->older = cache->idle.older;
    entry->older->newer = entry;
    cache->idle.older = entry;
}

/* One that is in no list. */
static void drop(struct chunk_cache *cache, struct entry *entry)
{
    struct entry **at = chain_of(cache, entry->key);
    while (*at != entry)
        at = &(*at)->chain;
    *at = entry->chain;
    cache->used -= entry->bytes;
    free(entry->memory);
    free(entry);
}

static void drop_oldest(struct chunk_cache *cache)
{
    struct entry *entry = cache->idle.newer;
    list_remove(entry);
    drop(cache, entry);
}

void chunk_cache_free(struct chunk_cache *cache)
{
    if (!cache)
        return;
    while (cache->idle.newer != &cache->idle)
        drop_oldest(cache);
    uv_cond_destroy(&cache->changed);
    uv_mutex_destroy(&cache->mutex);
    free(cache);
}

static bool fits(const struct chunk_cache *cache, size_t bytes)
{
    return !cache->used || (cache->used <= cache->budget && bytes <= cache->budget - cache->used);
}

/* Whether there is room for so much, after what is idle went as far as needed. */
static bool make_room(struct chunk_cache *cache, size_t bytes)
{
    while (!fits(cache, bytes) && cache->idle.newer != &cache->idle)
        drop_oldest(cache);
    return fits(cache, bytes);
}

/* The entry that is there, or a new one that the caller has to decode. NULL: not now. */
static struct entry *find_or_add(struct chunk_cache *cache, const struct chunk_wish *wish)
{
    struct entry *entry = find(cache, wish->key), **chain = chain_of(cache, wish->key);
    if (entry && entry->decoding)
        return NULL;
    if (entry) {
        if (!entry->n_holders++)
            list_remove(entry);
        return entry;
    }
    if (!make_room(cache, wish->bytes))
        return NULL;
    entry = calloc(1, sizeof(*entry));
    if (!entry)
        return (struct entry *)(uintptr_t)&no_memory;
    *entry = (struct entry){.key = wish->key,
                            .n_left = wish->n_uses,
                            .bytes = wish->bytes,
                            .n_holders = 1,
                            .decoding = true,
                            .chain = *chain};
    *chain = entry;
    cache->used += wish->bytes;
    return entry;
}

static void decode(struct chunk_cache *cache, struct entry *entry, const struct chunk_wish *wish)
{
    entry->memory = malloc(entry->bytes ? entry->bytes : 1);
    int rc = entry->memory
                 ? wish->decode(wish->data, entry->memory, &entry->chunk.err)
                 : error_set(&entry->chunk.err, STOW_NOMEM, "%s", no_memory.chunk.err.text);
    uv_mutex_lock(&cache->mutex);
    if (rc) { /* it stays, and says so to the others */
        free(entry->memory);
        entry->memory = NULL;
        cache->used -= entry->bytes;
        entry->bytes = 0;
    } else {
        entry->chunk.err.code = 0;
    }
    entry->chunk.bytes = entry->memory;
    entry->decoding = false;
    uv_cond_broadcast(&cache->changed);
    uv_mutex_unlock(&cache->mutex);
}

const struct cached_chunk *chunk_cache_take(struct chunk_cache *cache,
                                            const struct chunk_wish *wish, bool may_wait)
{
    uv_mutex_lock(&cache->mutex);
    struct entry *entry = find_or_add(cache, wish);
    while (!entry && may_wait) {
        uv_cond_wait(&cache->changed, &cache->mutex);
        entry = find_or_add(cache, wish);
    }
    bool mine = entry && entry->decoding;
    uv_mutex_unlock(&cache->mutex);
    if (mine)
        decode(cache, entry, wish);
    return entry ? &entry->chunk : NULL;
}

void chunk_cache_give(struct chunk_cache *cache, const struct cached_chunk *chunk, uint64_t n)
{
    struct entry *entry = (struct entry *)(uintptr_t)chunk;
    if (entry == &no_memory)
        return;
    uv_mutex_lock(&cache->mutex);
    entry->n_left -= n < entry->n_left ? n : entry->n_left;
    if (!--entry->n_holders) {
        if (entry->n_left)
            list_add(cache, entry);
        else
            drop(cache, entry);
        uv_cond_broadcast(&cache->changed);
    }
    uv_mutex_unlock(&cache->mutex);
}
