/* SPDX-License-Identifier: Apache-2.0
 *
 * chain: operations on a lane that go one behind the other, and a fence at their end.
 *
 * chain_begin, then chain_upload .. chain_run in order, then chain_start; `done` is called once the fence is
 * passed. A lane that is full is asked again later, from where it stopped. What a chain began it brings to its
 * fence, also when the lane refuses an operation in between: till then the memory is the lane's. The struct is
 * its owner's, who waits for `done`. Loop thread only. */
#ifndef STOW_CHAIN_H
#define STOW_CHAIN_H

#include "place.h"

#define CHAIN_OPS 12u

struct chain_op {
    enum { CHAIN_UPLOAD, CHAIN_DOWNLOAD, CHAIN_DECODE, CHAIN_RUN } what;
    uint64_t dev;
    void *host;
    size_t bytes;
    const struct decode_job *jobs;
    int32_t *status;
    size_t n;
    struct work work;
};

struct chain {
    struct place *place;
    struct lane *lane;
    const struct frame_shape *shape;
    void (*done)(struct chain *chain); /* status and err tell how it went */
    void *data;
    int status;
    struct stow_error err;
    uint64_t begun_ns, done_ns;

    /* its own */
    struct chain_op ops[CHAIN_OPS];
    unsigned n_ops, next_op;
    struct place_retry retry;
    struct device_request fence;
};

/* Empty it. place, lane, shape, done, data are set by the owner, once. */
void chain_begin(struct chain *chain);
void chain_upload(struct chain *chain, uint64_t dst_dev, const void *src, size_t bytes);
void chain_download(struct chain *chain, void *dst, uint64_t src_dev, size_t bytes);
void chain_decode(struct chain *chain, int32_t *status, const struct decode_job *jobs, size_t n);
void chain_run(struct chain *chain, const struct work *work);

/* 0, and done will be called; or STOW_DEVICE with nothing under way, and it will not. */
int chain_start(struct chain *chain);

#endif
