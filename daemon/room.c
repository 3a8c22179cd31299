/* SPDX-License-Identifier: Apache-2.0 */
#include "room.h"

#include <stdlib.h>

int room_init(struct room *room, struct resident *resident, uint64_t bytes, uint64_t largest,
              void (*changed)(void *data), void *data, struct stow_error *err)
{
    *room = (struct room){.resident = resident, .changed = changed, .data = data};
    /* Each piece but the last may end with less free than the next frame needs. */
    uint64_t reserve = piece_charge(bytes + bytes / ROOM_PIECE_BYTES * largest);
    struct shortage shortage;
    if (store_make_room(resident->store, resident->place, reserve, &shortage))
        return shortage_error(&shortage, resident->place, err);
    place_charge(resident->place, reserve);
    room->reserved = reserve;
    return 0;
}

void room_fini(struct room *room)
{
    if (room->resident)
        place_uncharge(room->resident->place, room->reserved);
    free(room->pieces);
    *room = (struct room){.reserved = 0};
}

static bool fits(struct room_piece *piece, uint64_t bytes, uint64_t align, uint64_t *address)
{
    uint64_t at = (piece->used + align - 1) / align * align;
    if (!piece->ready || at + bytes > piece->piece->memory.bytes)
        return false;
    *address = piece->piece->memory.dev + at;
    piece->used = at + bytes;
    return true;
}

bool room_take(struct room *room, uint64_t bytes, uint64_t align, uint64_t *address)
{
    for (size_t i = room->at; i < room->n_pieces; i++) {
        if (fits(&room->pieces[i], bytes, align, address)) {
            room->at = i;
            return true;
        }
    }
    return false;
}

static void on_piece(struct device_request *request)
{
    struct room *room = request->data;
    room->asking = false;
    if (request->status)
        room->err = request->err;
    else
        room->pieces[room->n_pieces - 1].ready = true;
    room->changed(room->data);
}

/* Bytes of a piece for `now` and perhaps some of `later`, of which there is no more than was set aside. It is as
 * large as it is charged. */
static uint64_t piece_bytes(const struct room *room, uint64_t now, uint64_t later)
{
    uint64_t most = room->reserved < ROOM_PIECE_BYTES ? room->reserved : ROOM_PIECE_BYTES;
    if (now >= most)
        return now;
    return later < most - now ? now + later : most;
}

int room_more(struct room *room, uint64_t now, uint64_t later, struct stow_error *err)
{
    struct resident *resident = room->resident;
    if (room->asking)
        return 0;
    if (room->n_pieces == room->pieces_room) {
        size_t n = room->pieces_room ? 2 * room->pieces_room : 8;
        struct room_piece *pieces = realloc(room->pieces, n * sizeof(*pieces));
        if (!pieces)
            return error_set(err, STOW_NOMEM, "no memory");
        room->pieces = pieces;
        room->pieces_room = n;
    }
    struct room_piece *piece = &room->pieces[room->n_pieces];
    *piece = (struct room_piece){.used = 0};
    uint64_t charge = piece_charge(piece_bytes(room, now, later));
    uint64_t aside = charge < room->reserved ? charge : room->reserved;
    room->reserved -= aside;
    place_uncharge(resident->place, aside);
    struct shortage shortage;
    int rc = resident_add_piece(resident, charge, on_piece, room, &piece->piece, &shortage);
    if (rc)
        return rc == STOW_NOROOM ? shortage_error(&shortage, resident->place, err)
                                 : error_set(err, rc, "no memory");
    room->n_pieces++;
    room->asking = true;
    return 0;
}

struct room_mark room_mark(const struct room *room)
{
    return (struct room_mark){.at = room->at,
                              .used = room->n_pieces ? room->pieces[room->at].used : 0};
}

void room_rewind(struct room *room, struct room_mark mark)
{
    for (size_t i = mark.at; i < room->n_pieces; i++)
        room->pieces[i].used = i == mark.at ? mark.used : 0;
    room->at = mark.at;
}
