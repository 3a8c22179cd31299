/* SPDX-License-Identifier: Apache-2.0 */
#include "viewing.h"

#include <string.h>

#define ALIGN 256u
#define PAGE_BYTES 4096u
#define SCRATCH_BYTES_GPU (UINT64_C(64) << 20)
#define SCRATCH_BYTES_HOST (UINT64_C(4) << 20) /* stays in the caches */

static uint64_t round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void viewing_size(struct viewing *viewing, const struct place *place,
                  const struct resident *resident, uint32_t n_slots, uint32_t batch)
{
    const bool is_gpu = device_info(place->device)->is_gpu;
    const uint64_t room =
        least(is_gpu ? SCRATCH_BYTES_GPU : SCRATCH_BYTES_HOST, place->max_bytes / 32);
    viewing->frame_stride = round_up(frame_bytes(&resident->shape), ALIGN);
    viewing->step = (uint32_t)least(room / viewing->frame_stride, batch);
    viewing->step = viewing->step ? viewing->step : 1;
    viewing->has_flags =
        viewing->plan.view.correction != VIEW_AS_IT_IS && resident->sums.flags != NULL;
    const uint64_t flags = viewing->has_flags ? resident->shape.n_elems : 0;
    viewing->flags_at = viewing->step * viewing->frame_stride;
    viewing->scratch_bytes = viewing->flags_at + round_up(flags, ALIGN);
    viewing->flags_from = (uint64_t)n_slots * batch * sizeof(int32_t);
    viewing->marks_bytes = round_up(viewing->flags_from + flags, PAGE_BYTES);
    viewing->charged =
        viewing->marks_bytes + (is_gpu ? piece_charge(viewing->scratch_bytes)
                                       : round_up(viewing->scratch_bytes, PAGE_BYTES));
}

/* ---- memory -------------------------------------------------------------------------------------- */

static void on_request(struct device_request *request)
{
    struct viewing *viewing = request->data;
    if (request->status && !viewing->err.code)
        viewing->err = request->err;
    if (--viewing->n_requests == 0)
        viewing->done(viewing->data);
}

void viewing_alloc(struct viewing *viewing, struct place *place, void (*done)(void *data),
                   void *data)
{
    const struct device_info *info = device_info(place->device);
    const enum memory_kind zeroed = !info->is_gpu                  ? MEMORY_HOST_FD
                                    : info->kinds & MEMORY_CUDA_FD ? MEMORY_CUDA_FD
                                                                   : MEMORY_CUDA_IPC;
    viewing->done = done;
    viewing->data = data;
    viewing->n_requests = 2;
    for (int i = 0; i < 2; i++)
        viewing->requests[i] = (struct device_request){.done = on_request, .data = viewing};
    device_alloc(place->device, &viewing->scratch, zeroed, viewing->scratch_bytes,
                 &viewing->requests[0]);
    device_alloc(place->device, &viewing->marks, MEMORY_HOST_FD, viewing->marks_bytes,
                 &viewing->requests[1]);
}

void viewing_free(struct viewing *viewing, struct place *place, void (*done)(void *data),
                  void *data)
{
    struct device_memory *memories[] = {&viewing->scratch, &viewing->marks};
    viewing->done = done;
    viewing->data = data;
    viewing->n_requests = 1; /* until all are asked for */
    for (int i = 0; i < 2; i++) {
        if (!memories[i]->bytes)
            continue;
        viewing->n_requests++;
        viewing->requests[i] = (struct device_request){.done = on_request, .data = viewing};
        device_free(place->device, memories[i], &viewing->requests[i]);
    }
    struct device_request none = {.data = viewing};
    on_request(&none);
}

/* ---- work ---------------------------------------------------------------------------------------- */

/* By way of memory that copies run from without anybody waiting. */
int viewing_send_flags(struct viewing *viewing, struct lane *lane, const struct resident *resident)
{
    const size_t n = resident->shape.n_elems;
    if (!viewing->has_flags || viewing->flags_sent)
        return 0;
    uint8_t *at = viewing->marks.host + viewing->flags_from;
    memcpy(at, resident->sums.flags, n);
    int rc = lane_upload(lane, viewing->scratch.dev + viewing->flags_at, at, n);
    viewing->flags_sent = !rc;
    return rc;
}

struct work viewing_work(const struct viewing *viewing, uint64_t mark, uint32_t n, uint64_t dst)
{
    memset(viewing->marks.host + mark * sizeof(int32_t), 0, n * sizeof(int32_t));
    return (struct work){
        .kind = WORK_VIEW,
        .n = n,
        .view = {.src = viewing->scratch.dev,
                 .src_stride = viewing->frame_stride,
                 .dst = dst,
                 .dst_stride = view_bytes(&viewing->plan.view),
                 .flags = viewing->has_flags ? viewing->scratch.dev + viewing->flags_at : 0,
                 .status = viewing->marks.dev + mark * sizeof(int32_t),
                 .view = viewing->plan.view}};
}

int viewing_mark(const struct viewing *viewing, uint64_t mark)
{
    int32_t code;
    memcpy(&code, viewing->marks.host + mark * sizeof(code), sizeof(code));
    return code;
}
