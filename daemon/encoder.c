/* SPDX-License-Identifier: Apache-2.0
 *
 * Each step begins something on the lane or the pool and names the step that follows: begin_decode > on_decoded >
 * begin_sums > on_summed, for each batch; train > on_trained; then for each batch begin_encode > on_encoded, and
 * placing.h's choice, turn and room > begin_place > on_placed; at last commit. */
#include "encoder.h"

#include "counts_model.h"
#include "metrics.h"
#include "placing.h"

#include <stdlib.h>
#include <string.h>

static void begin_decode(struct encoder *e);
static void begin_sums(struct encoder *e);
static void begin_train(struct encoder *e);
static void begin_encode(struct encoder *e);

/* ---- how steps follow each other ---- */

static void fail(struct encoder *e, const struct stow_error *err)
{
    e->all->failed(e->all->data, err);
}

static void fail_text(struct encoder *e, int code, const char *text)
{
    struct stow_error err;
    error_set(&err, code, "%s", text);
    fail(e, &err);
}

/* What made it busy is done. */
static void go_on(struct encoder *e, const struct stow_error *err)
{
    void (*next)(struct encoder *) = e->next;
    e->busy = false;
    e->next = NULL;
    if (err->code)
        fail(e, err);
    else if (next && !atomic_load(&e->all->stop))
        next(e);
    e->all->changed(e->all->data);
}

static void on_chain(struct chain *chain)
{
    struct encoder *e = chain->data;
    e->all->stage_ns[e->stage] += chain->done_ns - chain->begun_ns;
    if (chain->status && !chain->err.code)
        chain->err.code = chain->status;
    go_on(e, &chain->err);
}

static void start_chain(struct encoder *e, enum encode_stage stage, void (*next)(struct encoder *))
{
    e->stage = stage;
    e->next = next;
    e->busy = true;
    if (!chain_start(&e->chain))
        return;
    e->busy = false;
    fail(e, &e->chain.err);
}

static void on_pool(uv_work_t *work)
{
    struct encoder *e = work->data;
    if (!atomic_load(&e->all->stop))
        e->work_run(e);
}

static void on_pool_done(uv_work_t *work, int status)
{
    (void)status;
    struct encoder *e = work->data;
    e->all->stage_ns[e->stage] += uv_hrtime() - e->begun_ns;
    go_on(e, &e->err);
}

static void start_pool(struct encoder *e, enum encode_stage stage, void (*run)(struct encoder *),
                       void (*next)(struct encoder *))
{
    e->stage = stage;
    e->work_run = run;
    e->next = next;
    e->busy = true;
    e->err = (struct stow_error){.code = 0};
    e->begun_ns = uv_hrtime();
    e->work.data = e;
    uv_queue_work(e->all->loop, &e->work, on_pool, on_pool_done);
}

static void on_scratch(void *data)
{
    struct encoder *e = data;
    if (e->state == ENCODER_NEW) { /* the loader asked for it, and looks at what came */
        e->busy = false;
        e->all->changed(e->all->data);
        return;
    }
    go_on(e, &e->scratch.err);
}

static bool last_batch(const struct encoder *e, uint32_t n)
{
    return e->at + e->n_batch >= n;
}

/* More good frames than have pixels at once: they are decoded once more after the model is learnt. */
static bool in_batches(const struct encoder *e)
{
    return e->segment->n_stored > e->scratch.sizes.batch;
}

/* The batch from `at` on of n frames to be decoded. */
static void set_batch(struct encoder *e, uint32_t at, uint32_t n)
{
    e->at = at;
    e->n_batch = n - at < e->scratch.sizes.batch ? n - at : e->scratch.sizes.batch;
    for (uint32_t i = 0; i < e->n_batch; i++)
        e->jobs[at + i].dst = e->scratch.pixels.dev + i * e->scratch.pixel_stride;
}

/* The same of the good ones. Where all fit, their pixels are still there. */
static void set_good_batch(struct encoder *e, uint32_t at)
{
    if (in_batches(e)) {
        set_batch(e, at, e->n_good);
        return;
    }
    e->at = at;
    e->n_batch = e->n_good - at;
}

static void add_decode(struct encoder *e)
{
    chain_decode(&e->chain, e->status, e->jobs + e->at, e->n_batch);
}

/* ---- spans come in ---- */

static void drop_reads(struct encoder *e)
{
    for (size_t i = 0; e->segment && i < e->segment->n_spans; i++)
        span_read_fini(&e->reads[i]);
    e->n_reads = 0;
}

void encoder_begin(struct encoder *e, const struct plan_segment *segment)
{
    e->segment = segment;
    e->state = ENCODER_FILLING;
    e->n_jobs = e->n_good = 0;
    e->n_streams = e->table_bytes = 0;
    e->gain = 0;
    e->has_mark = e->any = false;
    e->table = 0;
}

void encoder_clear(struct encoder *e)
{
    memset(e->scratch.sums.host, 0, e->scratch.sizes.shape.n_elems * sizeof(uint64_t));
}

static void add_jobs(struct encoder *e, const struct span_read *read, uint64_t table_dev)
{
    const struct span *span = read->span;
    const struct source_chunk *chunks = e->all->index->chunks + span->first;
    for (uint32_t i = 0; i < span->n_frames; i++) {
        if (!chunk_is_stored(&chunks[i]) || read->bad[i])
            continue;
        struct decode_job job = {.src = e->scratch.chunks.dev + span->offset + read->at[i],
                                 .src_bytes = chunks[i].bytes,
                                 .form = chunks[i].raw ? STOW_FORM_RAW : STOW_FORM_BSLZ4};
        if (!chunks[i].raw)
            job.blocks = table_dev + read->table_at[i] * sizeof(uint32_t);
        e->frame_of[e->n_jobs] = (uint32_t)(span->first - e->segment->first) + i;
        e->jobs[e->n_jobs++] = job;
    }
}

/* All spans are in: their block tables go to the scratch, and their frames become jobs. */
static void take_reads(struct encoder *e)
{
    uint64_t words = 0;
    for (size_t i = 0; i < e->segment->n_spans; i++)
        words += e->reads[i].n_tables;
    if (words > e->scratch.table_words) { /* unusually small blocks */
        e->next = take_reads;
        e->busy = true;
        scratch_grow_tables(&e->scratch, words + words / 4);
        return;
    }
    words = 0;
    for (size_t i = 0; i < e->segment->n_spans; i++) { /* they came in any order */
        struct span_read *read = &e->reads[i];
        if (read->n_tables)
            memcpy((uint32_t *)e->scratch.tables.host + words, read->tables,
                   read->n_tables * sizeof(uint32_t));
        add_jobs(e, read, e->scratch.tables.dev + words * sizeof(uint32_t));
        words += read->n_tables;
    }
    drop_reads(e);
    set_batch(e, 0, e->n_jobs);
    chain_begin(&e->chain);
    chain_upload(&e->chain, e->scratch.tables.dev, e->scratch.tables.host,
                 words * sizeof(uint32_t));
    begin_decode(e);
}

static void note_faults(struct encoder *e, const struct span_read *read)
{
    struct resident *resident = e->all->resident;
    for (size_t i = 0; i < read->n_faults; i++) {
        const struct span_fault *f = &read->faults[i];
        resident_fault(resident, read->span->first + f->frame, 1, f->code, f->text);
    }
    resident->n_loaded += read->n_faults;
}

void encoder_span(struct encoder *e, struct span_read *read)
{
    note_faults(e, read);
    e->reads[read->span - &e->all->plan.spans[e->segment->first_span]] = *read;
    *read = (struct span_read){.index = NULL};
    if (++e->n_reads < e->segment->n_spans)
        return;
    e->state = ENCODER_WORKING;
    take_reads(e);
}

/* ---- decoding ---- */

/* The device found frames that make no sense: they are read again, and the host says where. */
static void find_reasons(struct encoder *e)
{
    const struct encoding *all = e->all;
    for (uint32_t i = 0, k = 0; i < e->n_batch && !e->err.code; i++) {
        if (e->status[i])
            span_explain(all->index, e->segment->first + e->frame_of[e->at + i],
                         &all->resident->shape, &e->reasons[k++], &e->err);
    }
}

static void on_reasons(struct encoder *e)
{
    struct resident *resident = e->all->resident;
    for (uint32_t i = 0, k = 0; i < e->n_batch; i++) {
        if (!e->status[i])
            continue;
        const struct stow_error *why = &e->reasons[k++];
        resident_fault(resident, e->segment->first + e->frame_of[e->at + i], 1, why->code,
                       why->text);
        resident->n_loaded++;
    }
    free(e->reasons);
    e->reasons = NULL;
    begin_sums(e);
}

static void on_decoded(struct encoder *e)
{
    size_t n_bad = 0;
    for (uint32_t i = 0; i < e->n_batch; i++)
        n_bad += e->status[i] != 0;
    if (!n_bad) {
        begin_sums(e);
        return;
    }
    e->reasons = calloc(n_bad, sizeof(*e->reasons));
    if (e->reasons)
        start_pool(e, STAGE_DECODE, find_reasons, on_reasons);
    else
        fail_text(e, STOW_NOMEM, "no memory to note damaged frames");
}

static void begin_decode(struct encoder *e)
{
    add_decode(e);
    start_chain(e, STAGE_DECODE, on_decoded);
}

/* ---- adding up ---- */

static void on_summed(struct encoder *e)
{
    const struct frame_stats *stats = e->scratch.stats.host;
    struct frame_stats *kept = e->all->resident->sums.stats + e->segment->first;
    uint32_t n = 0; /* good frames of this batch are the last ones so far */
    for (uint32_t i = 0; i < e->n_batch; i++)
        n += !e->status[i];
    for (uint32_t i = 0; i < n; i++)
        kept[e->frame_of[e->n_good - n + i]] = stats[i];
    if (last_batch(e, e->n_jobs)) {
        begin_train(e);
        return;
    }
    set_batch(e, e->at + e->n_batch, e->n_jobs);
    chain_begin(&e->chain);
    begin_decode(e);
}

static void add_stats(struct encoder *e, uint32_t n)
{
    const struct scratch *s = &e->scratch;
    const struct frame_shape *shape = &s->sizes.shape;
    struct work stats = {.kind = WORK_STATS, .n = n, .shape = *shape};
    stats.stats.frames = s->frames.dev;
    stats.stats.flags = s->sizes.flags ? s->flags.dev : 0;
    stats.stats.stats = s->stats.dev;
    stats.stats.det_x = e->all->resident->det_x;
    struct work pixels = {.kind = WORK_PIXELS, .shape = *shape};
    pixels.n = n ? (uint32_t)((shape->n_elems + WORK_PIXELS_BLOCK - 1) / WORK_PIXELS_BLOCK) : 0;
    pixels.pixels.frames = s->frames.dev;
    pixels.pixels.n_frames = n;
    pixels.pixels.sums = s->sums.dev;
    chain_upload(&e->chain, s->frames.dev, s->frames.host, n * sizeof(uint64_t));
    chain_run(&e->chain, &stats);
    chain_run(&e->chain, &pixels);
    chain_download(&e->chain, s->stats.host, s->stats.dev, n * sizeof(struct frame_stats));
}

/* Which frames the model is learnt from depends on which are good, and on nothing else: they are decoded again,
 * one behind the other. */
static void add_sample(struct encoder *e)
{
    const struct scratch *s = &e->scratch;
    uint64_t bytes = frame_bytes(&s->sizes.shape);
    e->n_sample = (uint32_t)counts_sample_frames(s->sizes.shape.n_elems, e->n_good);
    for (uint32_t i = 0; i < e->n_sample; i++) {
        e->sample_jobs[i] = e->jobs[(uint64_t)i * e->n_good / e->n_sample];
        e->sample_jobs[i].dst = s->sample.dev + i * bytes;
    }
    chain_decode(&e->chain, e->status + s->sizes.batch, e->sample_jobs, e->n_sample);
    chain_download(&e->chain, s->sample.host, s->sample.dev, e->n_sample * bytes);
}

/* Put the batch's good frames behind those before them, and add them up. */
static void begin_sums(struct encoder *e)
{
    const struct scratch *s = &e->scratch;
    uint64_t *frames = s->frames.host, sums_bytes = s->sizes.shape.n_elems * sizeof(uint64_t);
    uint32_t n = 0;
    for (uint32_t i = e->at; i < e->at + e->n_batch; i++) {
        if (e->status[i - e->at])
            continue;
        frames[n++] = e->jobs[i].dst;
        e->jobs[e->n_good] = e->jobs[i];
        e->frame_of[e->n_good++] = e->frame_of[i];
    }
    chain_begin(&e->chain);
    if (!e->has_flags && s->sizes.flags)
        chain_upload(&e->chain, s->flags.dev, s->flags.host, s->sizes.shape.n_elems);
    e->has_flags = true;
    if (e->at == 0)
        chain_upload(&e->chain, s->sums.dev, s->sums.host, sums_bytes);
    add_stats(e, n);
    if (last_batch(e, e->n_jobs)) {
        chain_download(&e->chain, s->sums.host, s->sums.dev, sums_bytes);
        if (s->sizes.n_streams && e->n_good)
            add_sample(e);
    }
    start_chain(e, STAGE_DECODE, on_summed);
}

/* ---- learning ---- */

/* In the order of the segments, which counts where pixels are floats. Those that come too early wait where they are:
 * before their encoder takes another segment it has its turn, and until then all earlier ones have come. */
static void add_pixel_sums(struct encoder *e)
{
    struct encoding *all = e->all;
    struct resident *resident = all->resident;
    size_t segment = (size_t)(e->segment - all->plan.segments);
    uv_mutex_lock(&all->sums);
    all->early[all->n_early++] = (struct segment_sums){segment, e->scratch.sums.host};
    for (unsigned i = 0; i < all->n_early;) {
        if (all->early[i].segment != all->next_sums) {
            i++;
            continue;
        }
        sums_add(resident->sums.pixels, all->early[i].pixels, &resident->shape);
        all->early[i] = all->early[--all->n_early];
        all->next_sums++;
        i = 0;
    }
    uv_mutex_unlock(&all->sums);
}

/* The model's tables, and its packed self. Without a model the segment keeps its source form. */
static int make_tables(struct encoder *e, const struct counts_model *model)
{
    e->packed_bytes = counts_model_packed_bytes(model);
    e->packed = malloc(e->packed_bytes);
    if (!e->packed)
        return STOW_NOMEM;
    counts_model_pack(model, e->packed);
    counts_model_segment(model, e->scratch.segment.host);
    counts_model_encoder(model, e->scratch.encoder.host);
    e->n_streams = model->n_streams;
    e->table_bytes = counts_model_segment_bytes(model);
    return 0;
}

static void train(struct encoder *e)
{
    struct counts_model model = {.n_streams = 0};
    add_pixel_sums(e);
    if (!e->scratch.sizes.n_streams || !e->n_good)
        return;
    int rc = counts_model_train(&model, e->scratch.sample.host, e->n_sample, e->scratch.sums.host,
                                e->n_good, &e->scratch.sizes.shape, e->all->keep.streams);
    if (!rc)
        rc = make_tables(e, &model);
    counts_model_fini(&model);
    if (rc == STOW_NOMEM)
        error_set(&e->err, rc, "no memory to learn a model of frames");
}

static void on_trained(struct encoder *e)
{
    set_good_batch(e, 0);
    if (e->table_bytes)
        begin_encode(e);
    else
        e->state = ENCODER_WAITING;
}

static void begin_train(struct encoder *e)
{
    start_pool(e, STAGE_TRAIN, train, on_trained);
}

/* ---- encoding and placing ---- */

static void on_encoded(struct encoder *e)
{
    placing_choose(e);
    e->state = ENCODER_WAITING;
}

static void begin_encode(struct encoder *e)
{
    const struct scratch *s = &e->scratch;
    uint64_t *frames = s->frames.host;
    struct work work = {.kind = WORK_ENCODE, .n = e->n_batch, .shape = s->sizes.shape};
    chain_begin(&e->chain);
    if (in_batches(e))
        add_decode(e);
    for (uint32_t i = 0; i < e->n_batch; i++)
        frames[i] = e->jobs[e->at + i].dst;
    work.encode.frames = s->frames.dev;
    work.encode.segment = s->segment.dev;
    work.encode.encoder = s->encoder.dev;
    work.encode.rooms = s->rooms.dev;
    work.encode.room_stride = s->pixel_stride;
    work.encode.streams = s->streams.dev;
    work.encode.n_streams = e->n_streams;
    chain_upload(&e->chain, s->frames.dev, frames, e->n_batch * sizeof(uint64_t));
    if (e->at == 0) {
        chain_upload(&e->chain, s->segment.dev, s->segment.host, e->table_bytes);
        chain_upload(&e->chain, s->encoder.dev, s->encoder.host, sizeof(struct counts_encoder));
    }
    chain_run(&e->chain, &work);
    chain_download(&e->chain, s->streams.host, s->streams.dev,
                   (size_t)e->n_batch * e->n_streams * sizeof(struct counts_stream));
    start_chain(e, STAGE_ENCODE, on_encoded);
}

/* The segment's frames are where they stay. */
static void commit(struct encoder *e)
{
    struct resident *resident = e->all->resident;
    struct segment *segment = &resident->segments[e->segment->first / resident->segment_frames];
    for (uint32_t i = 0; i < e->n_good; i++) {
        resident->frames[e->segment->first + e->frame_of[i]] = e->made[i];
        resident->payload_bytes += e->made[i].bytes;
    }
    if (e->table) {
        segment->table = e->table;
        segment->table_bytes = e->table_bytes;
        segment->packed = e->packed;
        segment->packed_bytes = e->packed_bytes;
        resident->table_bytes += e->table_bytes;
        e->packed = NULL;
    }
    free(e->packed);
    e->packed = NULL;
    resident->n_loaded += e->n_good;
    resident->sums.n_frames += e->n_good;
    e->all->bytes_done += e->segment->chunk_bytes;
    metrics.loaded_bytes_total += e->segment->chunk_bytes;
    e->state = ENCODER_IDLE;
    resident_changed(resident);
    e->all->progress(e->all->data);
}

static void on_placed(struct encoder *e)
{
    if (last_batch(e, e->n_good)) {
        commit(e);
        return;
    }
    set_good_batch(e, e->at + e->n_batch);
    if (e->table_bytes)
        begin_encode(e);
    else
        e->state = ENCODER_WAITING;
}

static void begin_place(struct encoder *e)
{
    const struct scratch *s = &e->scratch;
    struct work work = {.kind = WORK_PLACE, .n = e->n_placing, .shape = s->sizes.shape};
    work.place.jobs = s->jobs.dev;
    chain_begin(&e->chain);
    if (e->all->keep.form == KEEP_RAW && in_batches(e))
        add_decode(e);
    chain_upload(&e->chain, s->jobs.dev, s->jobs.host, e->n_placing * sizeof(struct place_job));
    chain_run(&e->chain, &work);
    e->state = ENCODER_WORKING;
    start_chain(e, STAGE_PLACE, on_placed);
}

void encoder_pump(struct encoder *e)
{
    struct encoding *all = e->all;
    if (e->state != ENCODER_WAITING || e->busy || e->segment != &all->plan.segments[all->turn])
        return;
    struct stow_error err;
    bool placed = false;
    if (!e->n_placing)
        placing_list(e);
    int rc = placing_give_room(e, &placed, &err);
    if (rc) {
        fail(e, &err);
        return;
    }
    if (!placed)
        return;
    if (last_batch(e, e->n_good))
        all->turn++;
    begin_place(e);
    e->n_placing = 0;
}

/* ---- life ---- */

int encoder_init(struct encoder *e, struct encoding *all, struct lane *lane)
{
    const uint32_t n = all->plan.max_stored, batch = all->sizes.batch;
    *e = (struct encoder){.all = all};
    e->scratch.changed = on_scratch;
    e->scratch.data = e;
    e->chain.place = all->resident->place;
    e->chain.lane = lane;
    e->chain.shape = &all->resident->shape;
    e->chain.done = on_chain;
    e->chain.data = e;
    e->reads = calloc(all->plan.max_spans, sizeof(*e->reads));
    e->jobs = calloc(n, sizeof(*e->jobs));
    e->frame_of = calloc(n, sizeof(*e->frame_of));
    e->encoded = calloc(n, sizeof(*e->encoded));
    e->made = calloc(n, sizeof(*e->made));
    e->status = calloc(batch + all->sizes.n_sample, sizeof(*e->status));
    e->sample_jobs = calloc(all->sizes.n_sample, sizeof(*e->sample_jobs));
    e->placing = calloc(2 * (size_t)batch + 1, sizeof(*e->placing));
    return e->reads && e->jobs && e->frame_of && e->encoded && e->made && e->status &&
                   e->sample_jobs && e->placing
               ? 0
               : STOW_NOMEM;
}

void encoder_fini(struct encoder *e)
{
    drop_reads(e);
    free(e->reads);
    free(e->jobs);
    free(e->frame_of);
    free(e->encoded);
    free(e->made);
    free(e->status);
    free(e->sample_jobs);
    free(e->reasons);
    free(e->packed);
    free(e->placing);
}
