/* SPDX-License-Identifier: Apache-2.0 */
#include "fill.h"

#include "metrics.h"
#include "order.h"

#include <stdlib.h>

/* ---- what comes next ---- */

/* The frame at a position of this rank. Not for streams on request. */
static uint64_t frame_at(const struct stream *stream, uint64_t position)
{
    const struct stream_options *o = &stream->options;
    uint64_t at = o->rank + position * o->world;
    if (o->order == STOW_ORDER_LIST)
        return o->ids[at];
    if (o->order == STOW_ORDER_SHUFFLED)
        return o->first + order_permute(at, o->count, o->seed);
    return o->first + at;
}

static bool is_loaded(const struct stream *stream, uint64_t id)
{
    return stream->resident->frames[id].form != FRAME_PENDING;
}

/* Put the ids of the next batch into the slot. False when there is none yet, or none any more. */
static bool gather_ids(struct stream *stream, struct slot *slot)
{
    slot->n_frames = 0;
    slot->position = stream->position;
    if (stream->options.order == STOW_ORDER_REQUEST) {
        struct wish *wish = stream->wishes;
        for (size_t i = 0; wish && i < wish->n_ids; i++) {
            if (!is_loaded(stream, wish->ids[i]))
                return false;
            slot->ids[slot->n_frames++] = wish->ids[i];
        }
        return wish != NULL;
    }
    while (slot->n_frames < stream->batch && slot->position + slot->n_frames < stream->end) {
        uint64_t id = frame_at(stream, slot->position + slot->n_frames);
        if (!is_loaded(stream, id))
            return false;
        slot->ids[slot->n_frames++] = id;
    }
    return slot->n_frames > 0;
}

void wish_free(struct wish *wish)
{
    free(wish->ids);
    free(wish);
}

static void advance(struct stream *stream, const struct slot *slot)
{
    stream->position += slot->n_frames;
    struct wish *wish = stream->wishes;
    if (!wish)
        return;
    stream->wishes = wish->next;
    if (!stream->wishes)
        stream->wishes_last = &stream->wishes;
    stream->n_wishes--;
    wish_free(wish);
}

/* ---- filling ---- */

void fill_free(struct fill *fill)
{
    if (!fill)
        return;
    free(fill->slots);
    free(fill->jobs);
    free(fill->status);
    free(fill->target);
    free(fill);
}

static struct fill *fill_new(struct stream *stream, size_t n_slots, size_t n_frames)
{
    struct fill *fill = calloc(1, sizeof(*fill));
    if (!fill)
        return NULL;
    fill->stream = stream;
    fill->slots = malloc(n_slots * sizeof(*fill->slots));
    fill->jobs = malloc(n_frames * sizeof(*fill->jobs));
    fill->status = malloc(n_frames * sizeof(*fill->status));
    fill->target = malloc(n_frames * sizeof(*fill->target));
    if (fill->slots && fill->jobs && fill->status && fill->target)
        return fill;
    fill_free(fill);
    return NULL;
}

/* One job for each good frame of n from `first` on, to dst and so on by stride; bad ones are answered from the table. */
static void add_frames(struct fill *fill, struct slot *slot, uint32_t first, uint32_t n,
                       uint64_t dst, uint64_t stride)
{
    for (uint32_t i = first; i < first + n; i++, dst += stride) {
        const struct frame *frame = &fill->stream->resident->frames[slot->ids[i]];
        slot->status[i] = frame->form == STOW_FORM_BAD ? -(int32_t)frame->code : 0;
        if (slot->status[i]) {
            slot->any_bad = true;
            continue;
        }
        fill->target[fill->n_jobs] = &slot->status[i];
        fill->jobs[fill->n_jobs++] = (struct decode_job){.src = frame->addr,
                                                         .blocks = frame->blocks,
                                                         .src_bytes = frame->bytes,
                                                         .form = frame->form,
                                                         .dst = dst};
    }
}

static void begin_slot(struct stream *stream, struct slot *slot)
{
    slot->any_bad = false;
    slot->state = SLOT_FILLING;
    slot->generation = ++stream->generation;
}

static void add_slot(struct fill *fill, uint32_t number)
{
    struct stream *stream = fill->stream;
    struct slot *slot = &stream->slots[number];
    begin_slot(stream, slot);
    add_frames(fill, slot, 0, slot->n_frames, stream->memory.dev + number * stream->slot_stride,
               stream->frame_bytes);
    fill->slots[fill->n_slots++] = number;
    fill->n_filling++;
    stream->n_filling++;
}

void stream_end(struct stream *stream, const struct stow_error *err)
{
    if (stream->ended || stream->state >= STREAM_CLOSING) /* then it is the consumer who ended it */
        return;
    stream->ended = true;
    if (!stream->abandoned)
        stream->callbacks.on_end(stream->callbacks.data, stream, err);
}

static void publish(struct stream *stream, uint32_t number, uint64_t now)
{
    struct slot *slot = &stream->slots[number];
    if (stream->state != STREAM_RUNNING) {
        slot->state = SLOT_FREE;
        return;
    }
    slot->state = SLOT_HELD;
    stream->n_held++;
    metrics.leases++;
    metrics.batches_total++;
    metrics.frames_total += slot->n_frames;
    struct stream_batch batch = {.slot = number,
                                 .n_frames = slot->n_frames,
                                 .generation = slot->generation,
                                 .position = slot->position,
                                 .bytes = slot->n_frames * stream->frame_bytes,
                                 .ready_ns = now,
                                 .ids = slot->ids,
                                 .status = slot->any_bad ? slot->status : NULL};
    metrics.decoded_bytes_total += batch.bytes;
    stream->callbacks.on_batch(stream->callbacks.data, stream, &batch);
}

/* Frames that were decoded and do not fit what they are shown in. */
static void settle_marks(struct fill *fill)
{
    struct stream *stream = fill->stream;
    const uint64_t marks = (uint64_t)fill->slot * stream->batch;
    for (uint32_t i = fill->first; i < fill->first + fill->n; i++) {
        int32_t *status = &stream->slots[fill->slot].status[i];
        if (!*status && viewing_mark(stream->viewing, marks + i))
            *status = STOW_NOFIT;
    }
}

static void settle_status(struct fill *fill)
{
    struct stream *stream = fill->stream;
    for (size_t i = 0; i < fill->n_jobs; i++)
        *fill->target[i] = fill->status[i];
    settle_marks(fill);
    for (size_t i = 0; i < fill->n_slots; i++) {
        struct slot *slot = &stream->slots[fill->slots[i]];
        for (uint32_t k = 0; k < slot->n_frames; k++) {
            slot->any_bad |= slot->status[k] != 0;
            metrics.frames_bad_total += slot->status[k] != 0;
        }
    }
}

static void on_filled(struct device_request *request)
{
    struct fill *fill = request->data;
    struct stream *stream = fill->stream;
    uint64_t now = uv_hrtime();
    if (request->status) {
        stream_end(stream, &request->err);
    } else {
        settle_status(fill);
        for (size_t i = 0; i < fill->n_slots; i++)
            publish(stream, fill->slots[i], now);
    }
    stream->n_filling -= fill->n_filling; /* not before: what is told may end the stream */
    fill_free(fill);
    stream_pump(stream);
    stream_close_when_idle(stream);
}

static void fill_failed(struct fill *fill, int code)
{
    struct stream *stream = fill->stream;
    struct stow_error err;
    error_set(&err, code, "the device refused to decode frames");
    stream->n_filling -= fill->n_filling;
    fill_free(fill);
    stream_end(stream, &err);
    stream_close_when_idle(stream);
}

/* The view's work on what was decoded. */
static int show(struct fill *fill)
{
    const struct stream *stream = fill->stream;
    const uint64_t dst =
        stream->memory.dev + fill->slot * stream->slot_stride + fill->first * stream->frame_bytes;
    const struct work work =
        viewing_work(stream->viewing, (uint64_t)fill->slot * stream->batch + fill->first, fill->n,
                     dst);
    return lane_run(stream->lane, &work);
}

/* Jobs, work and fence, or what of them the lane has not taken yet. */
static int enqueue(struct fill *fill)
{
    struct stream *stream = fill->stream;
    if (fill->n_jobs && !fill->decoding) {
        int rc = lane_decode(stream->lane, fill->status, fill->jobs, fill->n_jobs,
                             &stream->resident->shape);
        if (rc)
            return rc;
        fill->decoding = true;
    }
    if (stream->viewing && fill->n_jobs && !fill->shown) {
        int rc = show(fill);
        if (rc)
            return rc;
        fill->shown = true;
    }
    fill->fence = (struct device_request){.done = on_filled, .data = fill};
    return lane_fence(stream->lane, &fill->fence);
}

static void submit(struct fill *fill)
{
    struct stream *stream = fill->stream;
    int rc = enqueue(fill);
    if (rc == STOW_BUSY) {
        stream->refused = fill;
        place_wait(stream->place, &stream->retry);
    } else if (rc) {
        fill_failed(fill, rc);
    } else {
        place_submitted(stream->place);
    }
}

void fill_retry(struct stream *stream)
{
    struct fill *fill = stream->refused;
    stream->refused = NULL;
    submit(fill);
}

static size_t count_free(const struct stream *stream)
{
    size_t n = 0;
    for (uint32_t i = 0; i < stream->n_slots; i++)
        n += stream->slots[i].state == SLOT_FREE;
    return n;
}

/* Fill free slots by one launch, as many as one launch takes. False when nothing could be filled. */
static bool fill_free_slots(struct stream *stream)
{
    size_t n_free = count_free(stream), most = n_free * stream->batch;
    if (!n_free || stream->position >= stream->end)
        return false;
    if (most > LANE_MAX_JOBS)
        most = LANE_MAX_JOBS; /* a batch is at most a quarter of this */
    struct fill *fill = fill_new(stream, n_free, most);
    if (!fill) {
        stream_end(stream,
                   &(struct stow_error){.code = STOW_NOMEM, .text = "no memory to decode frames"});
        return false;
    }
    size_t room = most;
    for (uint32_t i = 0; i < stream->n_slots && room >= stream->batch; i++) {
        if (stream->slots[i].state != SLOT_FREE)
            continue;
        if (!gather_ids(stream, &stream->slots[i]))
            break;
        add_slot(fill, i);
        advance(stream, &stream->slots[i]);
        room -= stream->batch;
    }
    if (!fill->n_slots) {
        fill_free(fill);
        return false;
    }
    submit(fill);
    return true;
}

/* A free slot and the ids of what belongs there. False: there is none, or nothing yet. */
static bool begin_viewing(struct stream *stream)
{
    for (uint32_t i = 0; stream->position < stream->end && i < stream->n_slots; i++) {
        struct slot *slot = &stream->slots[i];
        if (slot->state != SLOT_FREE)
            continue;
        if (!gather_ids(stream, slot))
            return false;
        begin_slot(stream, slot);
        advance(stream, slot);
        stream->viewing->filling = true;
        stream->viewing->slot = i;
        stream->viewing->next = 0;
        return true;
    }
    return false;
}

/* With a view: the next frames of a slot, as many as go through the scratch at once. False when there are none. */
static bool fill_step(struct stream *stream)
{
    struct viewing *viewing = stream->viewing;
    if (!viewing->filling && !begin_viewing(stream))
        return false;
    struct slot *slot = &stream->slots[viewing->slot];
    uint32_t left = slot->n_frames - viewing->next, n = left < viewing->step ? left : viewing->step;
    struct fill *fill = fill_new(stream, 1, n);
    if (!fill) {
        stream_end(stream,
                   &(struct stow_error){.code = STOW_NOMEM, .text = "no memory to decode frames"});
        return false;
    }
    fill->slot = viewing->slot;
    fill->first = viewing->next;
    fill->n = n;
    add_frames(fill, slot, fill->first, n, viewing->scratch.dev, viewing->frame_stride);
    viewing->next += n;
    viewing->filling = n < left;
    if (!viewing->filling)
        fill->slots[fill->n_slots++] = fill->slot;
    fill->n_filling = 1;
    stream->n_filling++;
    submit(fill);
    return true;
}

void stream_pump(struct stream *stream)
{
    if (stream->state != STREAM_RUNNING || stream->ended)
        return;
    if (stream->resident->failure.code) {
        if (!stream->n_filling) /* batches under way come before the end */
            stream_end(stream, &stream->resident->failure);
        return;
    }
    while (!stream->refused && !stream->ended &&
           (stream->viewing ? fill_step(stream) : fill_free_slots(stream)))
        ;
    if (stream->position == stream->end && !stream->n_filling)
        stream_end(stream, NULL);
}
