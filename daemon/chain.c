/* SPDX-License-Identifier: Apache-2.0 */
#include "chain.h"

#include <assert.h>

void chain_begin(struct chain *chain)
{
    chain->n_ops = chain->next_op = 0;
    chain->status = 0;
    chain->err = (struct stow_error){.code = 0};
}

static struct chain_op *add(struct chain *chain)
{
    assert(chain->n_ops < CHAIN_OPS);
    return &chain->ops[chain->n_ops++];
}

void chain_upload(struct chain *chain, uint64_t dst_dev, const void *src, size_t bytes)
{
    *add(chain) = (struct chain_op){
        .what = CHAIN_UPLOAD, .dev = dst_dev, .host = (void *)(uintptr_t)src, .bytes = bytes};
}

void chain_download(struct chain *chain, void *dst, uint64_t src_dev, size_t bytes)
{
    *add(chain) =
        (struct chain_op){.what = CHAIN_DOWNLOAD, .dev = src_dev, .host = dst, .bytes = bytes};
}

void chain_decode(struct chain *chain, int32_t *status, const struct decode_job *jobs, size_t n)
{
    *add(chain) = (struct chain_op){.what = CHAIN_DECODE, .status = status, .jobs = jobs, .n = n};
}

void chain_run(struct chain *chain, const struct work *work)
{
    *add(chain) = (struct chain_op){.what = CHAIN_RUN, .work = *work};
}

static int enqueue(struct chain *chain, const struct chain_op *op)
{
    switch (op->what) {
    case CHAIN_UPLOAD: return lane_upload(chain->lane, op->dev, op->host, op->bytes);
    case CHAIN_DOWNLOAD: return lane_download(chain->lane, op->host, op->dev, op->bytes);
    case CHAIN_DECODE: return lane_decode(chain->lane, op->status, op->jobs, op->n, chain->shape);
    default: return lane_run(chain->lane, &op->work);
    }
}

static void on_fence(struct device_request *request)
{
    struct chain *chain = request->data;
    chain->done_ns = uv_hrtime();
    if (!chain->status && request->status) {
        chain->status = request->status;
        chain->err = request->err;
    }
    chain->done(chain);
}

/* What the lane has not taken yet. 0: the fence is under way, or the lane will be asked again. */
static int go_on(struct chain *chain)
{
    while (chain->next_op < chain->n_ops && !chain->status) {
        int rc = enqueue(chain, &chain->ops[chain->next_op]);
        if (rc == STOW_BUSY) {
            place_wait(chain->place, &chain->retry);
            return 0;
        }
        if (rc) {
            chain->status = error_set(&chain->err, rc, "the device refused work");
            break;
        }
        chain->next_op++;
    }
    if (chain->status && !chain->next_op)
        return chain->status;
    chain->fence = (struct device_request){.done = on_fence, .data = chain};
    int rc = lane_fence(chain->lane, &chain->fence);
    if (rc == STOW_BUSY) {
        place_wait(chain->place, &chain->retry);
        return 0;
    }
    if (rc)
        return chain->status = error_set(&chain->err, rc, "the device refused work");
    place_submitted(chain->place);
    return 0;
}

static void on_retry(struct place_retry *retry)
{
    struct chain *chain = (struct chain *)((char *)retry - offsetof(struct chain, retry));
    if (go_on(chain)) {
        chain->done_ns = uv_hrtime();
        chain->done(chain);
    }
}

int chain_start(struct chain *chain)
{
    chain->begun_ns = uv_hrtime();
    chain->retry.retry = on_retry;
    return go_on(chain);
}
