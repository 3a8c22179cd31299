/* SPDX-License-Identifier: Apache-2.0
 *
 * course: what takes the daemon a while: a load, a save, a comparison. It was asked for and has a number; then the
 * daemon names files it needs (NeedFiles) and gets their descriptors, or why they could not be opened; Progress comes,
 * and one event that ends it. To cancel is a request like any other: that event comes all the same. A connection has
 * one course at a time. */
#ifndef STOW_COURSE_H
#define STOW_COURSE_H

#include "client.h"

struct course {
    struct stow_client *client;
    uint64_t id;
    char *master; /* real path, the owner's to free; NULL: taken from the answer to file 0 */
    struct stow_progress seen;
    bool over;
    int result; /* once over: 0, or the code of err */
    struct stow_error err;
    /* of its end */
    struct stow_info *info;
    uint64_t bytes;
    struct stow_verdict verdict;
};

/* 0, or STOW_STATE: there is one already. */
int course_check(struct stow_client *client);

/* Ask for it: as client_ask. course_run is to follow at once. */
int course_ask(struct course *course, Stow__Request *request, const int *fds, size_t n_fds,
               Stow__Reply__BodyCase kind, struct answer *answer);

/* Follow it from its number to its end: 0, or a negative code with the last error set. */
int course_run(struct course *course, stow_progress_fn progress, void *data);

#endif
