/* SPDX-License-Identifier: Apache-2.0
 *
 * The B-tree of version 1: what HDF5 writes unless told to use a later format. */
#include "reader_walk.h"

#include <stdlib.h>
#include <string.h>

#define NODE_HEAD(bytes) \
    (8 + 2 * (bytes)->offset_bytes) /* TREE, type, level, entries, two siblings */
#define GUESS_BYTES 4096            /* holds a node of the usual 64 entries */
#define MAX_NODE_BYTES (8u << 20)
#define TYPE_CHUNKS 1
#define MAX_LEVEL 16

/* A node to visit, and the level it must have. */
struct visit {
    uint64_t address;
    int level; /* -1: the root, any */
};

struct tree {
    const struct reader_walk *walk;
    uint8_t *node;
    size_t node_room;
    struct visit *stack;
    size_t n_stack, stack_room;
    uint64_t n_nodes, max_nodes;
};

static bool push(struct tree *tree, uint64_t address, int level)
{
    if (++tree->n_nodes > tree->max_nodes)
        return false;
    if (tree->n_stack == tree->stack_room) {
        size_t room = tree->stack_room ? 2 * tree->stack_room : 256;
        struct visit *stack = realloc(tree->stack, room * sizeof(*stack));
        if (!stack)
            return false;
        tree->stack = stack;
        tree->stack_room = room;
    }
    tree->stack[tree->n_stack++] = (struct visit){address, level};
    return true;
}

/* Have bytes of the node in tree->node, of which `have` are there already. */
static bool fetch(struct tree *tree, uint64_t address, size_t bytes, size_t have)
{
    if (bytes > tree->node_room) {
        uint8_t *node = bytes > MAX_NODE_BYTES ? NULL : realloc(tree->node, bytes);
        if (!node)
            return false;
        tree->node = node;
        tree->node_room = bytes;
    }
    return bytes <= have ||
           reader_bytes_read(tree->walk->bytes, address + have, tree->node + have, bytes - have);
}

/* The whole node: its head tells how long it is. The first read takes more than the head, if it
 * is there. */
static bool read_node(struct tree *tree, uint64_t address, size_t entry_bytes, size_t key_bytes,
                      unsigned *n_entries)
{
    const struct reader_bytes *bytes = tree->walk->bytes;
    size_t head = NODE_HEAD(bytes), have = GUESS_BYTES;
    if (!fetch(tree, address, GUESS_BYTES, 0)) {
        have = head;
        if (!reader_bytes_read(bytes, address, tree->node, head))
            return false;
    }
    if (memcmp(tree->node, "TREE", 4) != 0 || tree->node[4] != TYPE_CHUNKS)
        return false;
    *n_entries = (unsigned)reader_number(tree->node + 6, 2);
    return fetch(tree, address, head + *n_entries * entry_bytes + key_bytes, have);
}

/* The number of a chunk by its offsets, which are in pixels and end with that of the element, 0. */
static bool chunk_of(const struct reader_data *data, const uint8_t *offsets, uint64_t *chunk)
{
    uint64_t at = 0;
    for (unsigned i = 0; i < data->rank; i++) {
        uint64_t offset = reader_number(offsets + 8 * i, 8);
        if (offset >= data->dims[i] || offset % data->chunk[i] != 0)
            return false;
        at = at * data->grid[i] + offset / data->chunk[i];
    }
    *chunk = at;
    return reader_number(offsets + 8 * data->rank, 8) == 0;
}

static bool visit_node(struct tree *tree, struct visit visit)
{
    const struct reader_walk *walk = tree->walk;
    size_t key_bytes = 8 + 8 * ((size_t)walk->data->rank + 1);
    size_t entry_bytes = key_bytes + walk->bytes->offset_bytes;
    unsigned n_entries;
    if (!read_node(tree, visit.address, entry_bytes, key_bytes, &n_entries))
        return false;
    int level = tree->node[5];
    if (level > MAX_LEVEL || (visit.level >= 0 && level != visit.level))
        return false;
    const uint8_t *at = tree->node + NODE_HEAD(walk->bytes);
    for (unsigned i = 0; i < n_entries; i++, at += entry_bytes) {
        uint64_t child = reader_address(walk->bytes, at + key_bytes), chunk;
        if (child == READER_NO_ADDRESS)
            return false;
        if (level > 0 ? !push(tree, child, level - 1)
                      : !chunk_of(walk->data, at + 8, &chunk) ||
                            !walk->put(walk->to, chunk, child, reader_number(at, 4),
                                       (uint32_t)reader_number(at + 4, 4)))
            return false;
    }
    return true;
}

bool reader_walk_btree(const struct reader_walk *walk, uint64_t address)
{
    struct tree tree = {.walk = walk,
                        .node_room = GUESS_BYTES,
                        .max_nodes = 2 * walk->data->n_chunks + 64};
    tree.node = malloc(tree.node_room);
    bool ok = tree.node && push(&tree, address, -1);
    while (ok && tree.n_stack > 0)
        ok = visit_node(&tree, tree.stack[--tree.n_stack]);
    free(tree.node);
    free(tree.stack);
    return ok;
}
