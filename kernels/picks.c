/* SPDX-License-Identifier: Apache-2.0
 *
 * A counting sort. Segments get numbers in the order in which they are met, by way of a table of slots. What earlier
 * calls left in the slots need not be cleared: a slot is in use if the group that it names says so too. */
#include "picks.h"

#include <stdlib.h>

struct group {
    uint64_t segment;
    uint32_t slot;
    uint32_t next; /* how many jobs it has; then where the next of them goes */
};

struct picks_room {
    uint32_t slot_mask;
    uint32_t *
        slots; /* [slot_mask + 1] number of a group; more than twice as many as there can be groups */
    uint32_t *group_of;   /* [max_jobs] */
    struct group *groups; /* [max_jobs] */
    uint32_t n_groups;
};

#define OTHERS UINT32_MAX

struct picks_room *picks_room_new(uint32_t max_jobs)
{
    struct picks_room *room = calloc(1, sizeof(*room));
    if (!room)
        return NULL;
    room->slot_mask = 1;
    while (room->slot_mask < 2 * (uint64_t)max_jobs)
        room->slot_mask = room->slot_mask * 2 + 1;
    room->slots = calloc((size_t)room->slot_mask + 1, sizeof(room->slots[0]));
    room->group_of = calloc(max_jobs, sizeof(room->group_of[0]));
    room->groups = calloc(max_jobs, sizeof(room->groups[0]));
    if (room->slots && room->group_of && room->groups)
        return room;
    picks_room_free(room);
    return NULL;
}

void picks_room_free(struct picks_room *room)
{
    if (!room)
        return;
    free(room->groups);
    free(room->group_of);
    free(room->slots);
    free(room);
}

static uint32_t find_group(struct picks_room *room, uint64_t segment)
{
    uint32_t slot = (uint32_t)(segment * 0x9e3779b97f4a7c15u >> 32) & room->slot_mask;
    for (;; slot = (slot + 1) & room->slot_mask) {
        uint32_t g = room->slots[slot];
        if (g >= room->n_groups || room->groups[g].slot != slot)
            break;
        if (room->groups[g].segment == segment)
            return g;
    }
    room->slots[slot] = room->n_groups;
    room->groups[room->n_groups] = (struct group){.segment = segment, .slot = slot};
    return room->n_groups++;
}

uint32_t picks_order(uint32_t *picks, const struct decode_job *jobs, uint32_t n,
                     struct picks_room *room)
{
    uint32_t n_counts = 0, newest = 0;
    room->n_groups = 0;
    for (uint32_t i = 0; i < n; i++) {
        room->group_of[i] = OTHERS;
        if (jobs[i].form != STOW_FORM_COUNTS)
            continue;
        if (!n_counts++ || room->groups[newest].segment != jobs[i].blocks)
            newest = find_group(room, jobs[i].blocks);
        room->group_of[i] = newest;
        room->groups[newest].next++;
    }
    uint32_t at = 0, others_at = n_counts;
    for (uint32_t g = 0; g < room->n_groups; g++) {
        uint32_t n_of_group = room->groups[g].next;
        room->groups[g].next = at;
        at += n_of_group;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t g = room->group_of[i];
        picks[g == OTHERS ? others_at++ : room->groups[g].next++] = i;
    }
    return n_counts;
}
