/* SPDX-License-Identifier: Apache-2.0
 *
 * picks: the order in which jobs of several forms are launched. Numbers of jobs, those of form counts first and of
 * each segment together, so that its tables are loaded once; then all others. Otherwise in the order given. In a
 * number of steps that is proportional to the jobs, however shuffled they are. */
#ifndef STOW_PICKS_H
#define STOW_PICKS_H

#include "frame.h"

struct picks_room;

/* Room for sorting up to max_jobs at a time. NULL: no memory. */
struct picks_room *picks_room_new(uint32_t max_jobs);
void picks_room_free(struct picks_room *room);

/* Order jobs [n] into picks [n]. Returns how many of them have form counts. */
uint32_t picks_order(uint32_t *picks, const struct decode_job *jobs, uint32_t n,
                     struct picks_room *room);

#endif
