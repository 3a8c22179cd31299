/* SPDX-License-Identifier: Apache-2.0
 *
 * room: where the bytes of a resident go while it is loaded: its pieces, filled one behind the other.
 *
 * The worst case is set aside in the budget before anything begins, so that nobody is evicted in vain and of two
 * loads that do not fit together one is refused at once. Pieces are asked for when they are needed, about as large
 * as what is still to come, and what was set aside and not used is given back at the end. Nothing straddles two
 * pieces. Loop thread only. */
#ifndef STOW_ROOM_H
#define STOW_ROOM_H

#include "store.h"

#define ROOM_PIECE_BYTES (UINT64_C(256) << 20)

struct room_piece {
    struct piece *piece;
    uint64_t used;
    bool ready;
};

struct room {
    struct resident *resident;
    uint64_t reserved; /* of the budget, for pieces that are not asked for yet */
    struct room_piece *pieces;
    size_t n_pieces, pieces_room, at; /* at: the one that is being filled */
    bool asking;
    struct stow_error err; /* code not 0: a piece that was asked for did not come */
    void (*changed)(void *data);
    void *data;
};

/* Set aside room for bytes, no part of them larger than largest. changed is called when a piece has come, or
 * has not. STOW_NOROOM with the sentence: nothing was set aside. */
int room_init(struct room *room, struct resident *resident, uint64_t bytes, uint64_t largest,
              void (*changed)(void *data), void *data, struct stow_error *err);
/* Give back what is set aside. No piece may be under way. The pieces are the resident's. */
void room_fini(struct room *room);

/* Bytes at an address that is a multiple of align. False: there is no room for them yet. */
bool room_take(struct room *room, uint64_t bytes, uint64_t align, uint64_t *address);

/* Have a piece come, for `now` bytes and perhaps `later` ones, unless one is on its way. */
int room_more(struct room *room, uint64_t now, uint64_t later, struct stow_error *err);

/* What was taken since the mark is free again. */
struct room_mark {
    size_t at;
    uint64_t used;
};
struct room_mark room_mark(const struct room *room);
void room_rewind(struct room *room, struct room_mark mark);

#endif
