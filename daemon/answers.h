/* SPDX-License-Identifier: Apache-2.0
 *
 * answers: mean pattern and centres of mass of all frames, made before somebody asks.
 *
 * They are what people look at first once an acquisition is there, and no more than what the load added up, written
 * in another way. A thread of libuv's pool makes them when the load is over and has been answered, and the resident
 * keeps them (store.h). They are charged to the budget of the resident's place: 24 bytes a frame and 8 a pixel; where
 * there is no such room, or somebody wants it, they go, and are made when they are asked for (images.h). The resident
 * may be evicted or go at any time: its tables then last until the thread is done with them. Loop thread only. */
#ifndef STOW_ANSWERS_H
#define STOW_ANSWERS_H

#include "store.h"

#include <uv.h>

/* Begin, if the resident is whole and its sums are kept. What cannot be had is made later, so nothing is said. */
void answers_start(uv_loop_t *loop, struct resident *resident);

/* Those that a thread is at. Zero before the loop ends. */
unsigned answers_count(void);

#endif
