/* SPDX-License-Identifier: Apache-2.0 */
#include "placing.h"

#include <assert.h>

/* The largest frames of 32 bits of bytes; what is longer could not be noted. */
static uint32_t counts_bytes(const struct encoder *e, uint32_t i)
{
    const struct counts_stream *streams = e->scratch.streams.host;
    uint64_t bytes = counts_frame_bytes(streams + (size_t)i * e->n_streams, e->n_streams,
                                        e->scratch.sizes.shape.elem_bytes);
    return bytes <= UINT32_MAX ? (uint32_t)bytes : 0;
}

/* What the frame takes in its other form. */
static uint64_t other_bytes(const struct encoder *e, uint32_t frame)
{
    return e->all->keep.form == KEEP_RAW ? frame_bytes(&e->scratch.sizes.shape)
                                         : e->jobs[frame].src_bytes;
}

/* No frame of the segment is kept as counts. */
static void keep_source(struct encoder *e)
{
    e->table_bytes = 0;
    e->n_placing = 0;
    uint32_t n = e->n_good, batch = e->scratch.sizes.batch;
    e->at = 0;
    e->n_batch = n < batch ? n : batch;
}

void placing_choose(struct encoder *e)
{
    bool forced = e->all->keep.form == KEEP_COUNTS;
    for (uint32_t i = 0; i < e->n_batch; i++) {
        uint32_t frame = e->at + i, bytes = counts_bytes(e, i);
        uint64_t source = other_bytes(e, frame);
        e->encoded[frame] = bytes && (forced || bytes < source) ? bytes : 0;
        if (!e->encoded[frame])
            continue;
        e->gain += (int64_t)source - bytes;
        e->any = true;
    }
    if (e->at + e->n_batch < e->n_good)
        return;
    if (forced ? !e->any : e->gain <= (int64_t)e->table_bytes)
        keep_source(e);
}

/* ---- what is copied ---- */

static void list(struct encoder *e, struct placing placing, const struct place_job *job)
{
    struct place_job *jobs = e->scratch.jobs.host;
    jobs[e->n_placing] = *job;
    e->placing[e->n_placing++] = placing;
}

static void list_counts(struct encoder *e, uint32_t i)
{
    const struct scratch *s = &e->scratch;
    struct place_job job = {.src = s->rooms.dev + i * s->pixel_stride,
                            .encoded = s->streams.dev +
                                       (uint64_t)i * e->n_streams * sizeof(struct counts_stream),
                            .bytes = e->encoded[e->at + i],
                            .streams = e->n_streams};
    list(e, (struct placing){PLACE_COUNTS, e->at + i}, &job);
}

static void list_source(struct encoder *e, uint32_t frame)
{
    const struct decode_job *from = &e->jobs[frame];
    struct place_job job = {.src = from->src, .bytes = from->src_bytes};
    struct placing placing = {PLACE_CHUNK, frame};
    if (e->all->keep.form == KEEP_RAW) {
        job.src = from->dst;
        job.bytes = (uint32_t)frame_bytes(&e->scratch.sizes.shape);
    }
    if (e->all->keep.form == KEEP_RAW || from->form == STOW_FORM_RAW)
        placing.what = PLACE_PIXELS;
    list(e, placing, &job);
}

static void list_blocks(struct encoder *e, uint32_t frame)
{
    const struct scratch *s = &e->scratch;
    uint64_t word = (e->jobs[frame].blocks - s->tables.dev) / sizeof(uint32_t);
    uint32_t n_blocks = ((const uint32_t *)s->tables.host)[word];
    struct place_job job = {.src = e->jobs[frame].blocks,
                            .bytes = (n_blocks + 1) * (uint32_t)sizeof(uint32_t)};
    list(e, (struct placing){PLACE_BLOCKS, frame}, &job);
}

static bool stays_counts(const struct encoder *e, uint32_t frame)
{
    return e->table_bytes && e->encoded[frame];
}

static bool has_blocks(const struct encoder *e, uint32_t frame)
{
    return !stays_counts(e, frame) && e->all->keep.form != KEEP_RAW &&
           e->jobs[frame].form == STOW_FORM_BSLZ4;
}

/* Where the segment's room begins, or began. */
static void set_mark(struct encoder *e)
{
    struct encoding *all = e->all;
    if (e->has_mark) { /* it has placed some already; at its first batch again, it starts over */
        room_rewind(&all->room, e->mark);
        all->source = e->mark_source;
        all->kept = e->mark_kept;
        e->table = 0;
        return;
    }
    e->has_mark = true;
    e->mark = room_mark(&all->room);
    e->mark_source = all->source;
    e->mark_kept = all->kept;
    all->later_bytes -= e->segment->chunk_bytes;
}

static uint64_t align_of(const struct placing *placing)
{
    return placing->what == PLACE_CHUNK ? 1 : placing->what == PLACE_BLOCKS ? 4 : 16;
}

/* Those that are aligned alike stand together, so that little is lost between them. */
void placing_list(struct encoder *e)
{
    struct encoding *all = e->all;
    if (e->at == 0) {
        set_mark(e);
        if (e->table_bytes)
            list(e, (struct placing){PLACE_TABLE, 0},
                 &(struct place_job){.src = e->scratch.segment.dev, .bytes = e->table_bytes});
    }
    for (uint32_t i = 0; i < e->n_batch; i++) {
        all->source += e->jobs[e->at + i].src_bytes;
        if (stays_counts(e, e->at + i))
            list_counts(e, i);
    }
    for (uint32_t i = 0; i < e->n_batch; i++) {
        if (!stays_counts(e, e->at + i))
            list_source(e, e->at + i);
    }
    for (uint32_t i = 0; i < e->n_batch; i++) {
        if (has_blocks(e, e->at + i))
            list_blocks(e, e->at + i);
    }
    e->n_placed = 0;
    const struct place_job *jobs = e->scratch.jobs.host;
    for (uint32_t i = 0; i < e->n_placing; i++)
        all->kept += e->placing[i].what == PLACE_TABLE ? 0 : jobs[i].bytes;
}

/* ---- where it goes ---- */

static void note_place(struct encoder *e, const struct placing *placing,
                       const struct place_job *job)
{
    struct frame *made = &e->made[placing->frame];
    switch (placing->what) {
    case PLACE_TABLE: e->table = job->dst; return;
    case PLACE_BLOCKS: made->blocks = job->dst; return;
    case PLACE_COUNTS: *made = (struct frame){.form = STOW_FORM_COUNTS, .blocks = e->table}; break;
    case PLACE_CHUNK: *made = (struct frame){.form = STOW_FORM_BSLZ4}; break;
    case PLACE_PIXELS: *made = (struct frame){.form = STOW_FORM_RAW}; break;
    }
    made->addr = job->dst;
    made->bytes = job->bytes;
}

/* What the rest of the load will take, going by what it has taken so far. */
static uint64_t later_bytes(const struct encoder *e)
{
    const struct encoding *all = e->all;
    uint64_t source = all->later_bytes;
    for (uint32_t i = e->at + e->n_batch; i < e->n_good; i++)
        source += e->jobs[i].src_bytes;
    if (!source || !all->source)
        return source;
    double ratio = (double)all->kept / (double)all->source;
    return (uint64_t)((double)source * ratio * (1 + 1.0 / 128)) + (UINT64_C(64) << 10);
}

int placing_give_room(struct encoder *e, bool *placed, struct stow_error *err)
{
    struct place_job *jobs = e->scratch.jobs.host;
    for (; e->n_placed < e->n_placing; e->n_placed++) {
        struct placing *placing = &e->placing[e->n_placed];
        if (!room_take(&e->all->room, jobs[e->n_placed].bytes, align_of(placing),
                       &jobs[e->n_placed].dst))
            break;
        note_place(e, placing, &jobs[e->n_placed]);
    }
    *placed = e->n_placed == e->n_placing;
    if (*placed)
        return 0;
    uint64_t now = 0;
    for (uint32_t i = e->n_placed; i < e->n_placing; i++) {
        uint64_t align = align_of(&e->placing[i]);
        now = (now + align - 1) / align * align + jobs[i].bytes;
    }
    return room_more(&e->all->room, now, later_bytes(e), err);
}
