/* SPDX-License-Identifier: Apache-2.0
 *
 * A job is a span under way: reading (pool) > copying (device) > handed to its encoder. At the end, or when the
 * load has failed, nothing new begins; when the last job and the last encoder are done on_done is called, and the
 * loader goes once its scratch is given back. */
#include "loader.h"

#include "encoder.h"

#define LOG_MODULE "loader"
#include "log.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define MAX_JOBS 24u
#define USUAL_POOL 4u /* threads that libuv starts when nobody says how many */

enum buffer { BUFFER_DIRECT, BUFFER_STAGING, BUFFER_HEAP };

struct job {
    uv_work_t work;
    struct loader *loader;
    struct encoder *encoder;
    const struct span *span;
    enum buffer buffer;
    bool first; /* of its segment */
    uint8_t *bytes;
    struct span_read read;
    uint64_t begun_ns;
    struct chain chain;
};

struct loader {
    uv_loop_t *loop;
    struct resident *resident;
    struct store *store;
    struct place *place;
    struct loader_callbacks callbacks;
    struct encoding all;
    struct encoder encoders[ENCODING_MAX_ENCODERS];
    unsigned n_encoders, n_wanted; /* n_wanted: that get scratch, once the first has some */
    size_t next_segment, next_span;
    struct encoder *reading; /* whose spans are read now */
    unsigned n_jobs, most_jobs;
    uv_timer_t turn; /* the first, and after a cancel: a pump that nobody's call waits for */
    struct staging_waiter staging;
    struct stow_error err; /* code not 0: it fails, once what is under way is done */
    uv_work_t last;        /* adds up frames that were never written */
    bool last_begun, last_failed, last_done, over, turn_closed;
    unsigned n_freeing;
};

static void loader_pump(struct loader *loader);

static void fail(struct loader *loader, const struct stow_error *err)
{
    if (!loader->err.code)
        loader->err = *err;
    atomic_store(&loader->all.stop, true);
}

static void fail_nomem(struct loader *loader)
{
    fail(loader, &(struct stow_error){.code = STOW_NOMEM, .text = "no memory to load frames"});
}

/* ---- jobs ---- */

static void job_free(struct job *job)
{
    struct loader *loader = job->loader;
    if (job->buffer == BUFFER_STAGING && job->bytes)
        staging_give(&loader->place->staging, job->bytes);
    if (job->buffer == BUFFER_HEAP)
        free(job->bytes);
    span_read_fini(&job->read);
    free(job);
    loader->n_jobs--;
}

/* The span lies in the encoder's scratch, or never will. */
static void job_end(struct job *job)
{
    struct loader *loader = job->loader;
    if (!loader->err.code)
        encoder_span(job->encoder, &job->read);
    job_free(job);
    loader_pump(loader);
}

static void on_uploaded(struct chain *chain)
{
    struct job *job = chain->data;
    if (chain->status)
        fail(job->loader, &chain->err);
    job_end(job);
}

static void upload(struct job *job)
{
    job->chain.place = job->loader->place;
    job->chain.lane = job->loader->place->loading;
    job->chain.done = on_uploaded;
    job->chain.data = job;
    chain_begin(&job->chain);
    chain_upload(&job->chain, job->encoder->scratch.chunks.dev + job->span->offset, job->bytes,
                 job->span->bytes);
    if (chain_start(&job->chain)) {
        fail(job->loader, &job->chain.err);
        job_end(job);
    }
}

static void read_on_pool(uv_work_t *work)
{
    struct job *job = work->data;
    if (atomic_load(&job->loader->all.stop))
        return;
    if (job->first)
        encoder_clear(job->encoder);
    span_read(&job->read);
}

static void on_read(uv_work_t *work, int status)
{
    (void)status; /* reads are never cancelled in the queue */
    struct job *job = work->data;
    struct loader *loader = job->loader;
    loader->all.stage_ns[STAGE_READ] += uv_hrtime() - job->begun_ns;
    if (job->read.err.code)
        fail(loader, &job->read.err);
    if (loader->err.code || job->buffer == BUFFER_DIRECT)
        job_end(job);
    else
        upload(job);
}

static bool take_buffer(struct loader *loader, struct job *job)
{
    const struct span *span = job->span;
    if (!device_info(loader->place->device)->is_gpu) {
        job->buffer = BUFFER_DIRECT;
        job->bytes = (uint8_t *)(uintptr_t)(job->encoder->scratch.chunks.dev + span->offset);
    } else if (span->bytes <= loader->place->staging.slot_bytes) {
        job->buffer = BUFFER_STAGING;
        job->bytes = staging_take(&loader->place->staging, &loader->staging);
    } else {
        job->buffer = BUFFER_HEAP;
        job->bytes = malloc(span->bytes);
        if (!job->bytes)
            fail_nomem(loader);
    }
    return job->bytes != NULL;
}

/* Begin to read a span. False when it cannot begin now. */
static bool begin_span(struct loader *loader, size_t number)
{
    struct job *job = calloc(1, sizeof(*job));
    if (!job) {
        fail_nomem(loader);
        return false;
    }
    job->loader = loader;
    job->encoder = loader->reading;
    job->span = &loader->all.plan.spans[number];
    job->first = number == loader->reading->segment->first_span;
    loader->n_jobs++;
    if (!take_buffer(loader, job) || span_read_init(&job->read, loader->all.index, job->span,
                                                    &loader->resident->shape, job->bytes)) {
        if (job->bytes)
            fail_nomem(loader);
        job_free(job);
        return false;
    }
    job->begun_ns = uv_hrtime();
    job->work.data = job;
    uv_queue_work(loader->loop, &job->work, read_on_pool, on_read);
    return true;
}

/* ---- encoders ---- */

static void begin_scratch(struct loader *loader, struct encoder *encoder)
{
    encoder->busy = true;
    scratch_alloc(&encoder->scratch, loader->place->device, &loader->all.sizes);
}

/* Whether an encoder has come to be. The first one may try again with less; the others are not needed. */
static void settle_scratch(struct loader *loader, struct encoder *encoder)
{
    struct stow_error err = encoder->scratch.err;
    bool first = encoder == &loader->encoders[0];
    if (!encoder->scratch.sizes.batch || encoder->busy) /* not asked for yet */
        return;
    if (!err.code) {
        if (!encoder->scratch.memory[0].bytes) { /* the pieces of a failure are given back */
            begin_scratch(loader, encoder);
            return;
        }
        if (loader->all.sizes.flags)
            memcpy(encoder->scratch.flags.host, loader->resident->sums.flags,
                   loader->resident->shape.n_elems);
        encoder->state = ENCODER_IDLE;
        return;
    }
    bool room = err.code == STOW_NOROOM || err.code == STOW_NOMEM;
    if (!room || (first && loader->all.sizes.batch == 1)) {
        fail(loader, &err);
        return;
    }
    if (!first) {
        loader->n_wanted = (unsigned)(encoder - loader->encoders);
        return;
    }
    loader->all.sizes.batch = (loader->all.sizes.batch + 1) / 2;
    LOG_INFO("little memory on %s: %u frames are encoded at once",
             device_info(loader->place->device)->name, loader->all.sizes.batch);
    encoder->busy = scratch_free(&encoder->scratch);
    if (!encoder->busy)
        begin_scratch(loader, encoder);
}

static void pump_encoders(struct loader *loader)
{
    size_t turn;
    for (unsigned i = 0; i < loader->n_wanted && !loader->err.code; i++) {
        struct encoder *encoder = &loader->encoders[i];
        if (encoder->state == ENCODER_NEW && !encoder->busy) {
            if (encoder->scratch.sizes.batch)
                settle_scratch(loader, encoder);
            else if (i == 0 || loader->encoders[0].state != ENCODER_NEW)
                begin_scratch(loader, encoder);
        }
    }
    do {
        turn = loader->all.turn;
        for (unsigned i = 0; i < loader->n_wanted && !loader->err.code; i++)
            encoder_pump(&loader->encoders[i]);
    } while (turn != loader->all.turn);
}

/* The encoder whose segment the next span belongs to. NULL: none is free for it now. */
static struct encoder *encoder_for_span(struct loader *loader)
{
    const struct plan *plan = &loader->all.plan;
    if (loader->next_segment < plan->n_segments &&
        plan->segments[loader->next_segment].first_span == loader->next_span) {
        loader->reading = NULL;
        for (unsigned i = 0; i < loader->n_wanted && !loader->reading; i++) {
            if (loader->encoders[i].state == ENCODER_IDLE)
                loader->reading = &loader->encoders[i];
        }
        if (loader->reading)
            encoder_begin(loader->reading, &plan->segments[loader->next_segment++]);
    }
    return loader->reading;
}

/* ---- the pump ---- */

/* Nothing of it is the lane's, the pool's or the service thread's. */
static bool is_still(const struct loader *loader)
{
    bool busy =
        loader->n_jobs || loader->all.room.asking || (loader->last_begun && !loader->last_done);
    for (unsigned i = 0; i < loader->n_encoders; i++)
        busy |= loader->encoders[i].busy;
    return !busy;
}

static void note_timings(struct loader *loader)
{
    static const char *const names[N_STAGES] = {"read", "decode", "train", "encode", "place"};
    for (int i = 0; i < N_STAGES; i++)
        resident_time(loader->resident, names[i], (double)loader->all.stage_ns[i] * 1e-6);
}

static void loader_free(struct loader *loader)
{
    if (loader->n_freeing || !loader->turn_closed)
        return;
    free(loader);
}

static void on_turn_closed(uv_handle_t *handle)
{
    struct loader *loader = handle->data;
    loader->turn_closed = true;
    loader_free(loader);
}

static void on_scratch_freed(void *data)
{
    struct loader *loader = data;
    loader->n_freeing--;
    loader->store->n_freeing--;
    loader_free(loader);
}

static void loader_drop(struct loader *loader)
{
    for (unsigned i = 0; i < loader->n_encoders; i++)
        encoder_fini(&loader->encoders[i]);
    encoding_fini(&loader->all);
}

/* Nobody works for it any more. Its scratch goes back to the device after on_done. */
static void let_go(struct loader *loader)
{
    staging_forget(&loader->place->staging, &loader->staging);
    loader_drop(loader);
    for (unsigned i = 0; i < loader->n_encoders; i++) {
        struct scratch *scratch = &loader->encoders[i].scratch;
        scratch->changed = on_scratch_freed;
        scratch->data = loader;
        if (scratch_free(scratch)) {
            loader->n_freeing++;
            loader->store->n_freeing++;
        }
    }
    uv_close((uv_handle_t *)&loader->turn, on_turn_closed);
}

static void finish(struct loader *loader)
{
    struct resident *resident = loader->resident;
    struct stow_error err = loader->err;
    assert(err.code || resident->n_loaded == resident->n_frames);
    loader->over = true;
    if (!err.code) {
        note_timings(loader);
        resident_settle(resident);
        resident->state = resident->forms[STOW_FORM_BAD] ? RESIDENT_DAMAGED : RESIDENT_COMPLETE;
        resident->last_used_ns = uv_hrtime();
    } else {
        resident->failure = err;
    }
    struct loader_callbacks callbacks = loader->callbacks;
    let_go(loader);
    resident_changed(resident);
    callbacks.on_done(callbacks.data, err.code, &err);
    resident_unref(resident);
}

static void last_on_pool(uv_work_t *work)
{
    struct loader *loader = work->data;
    if (!atomic_load(&loader->all.stop))
        loader->last_failed = encoding_add_fill(&loader->all) != 0;
}

static void on_last(uv_work_t *work, int status)
{
    (void)status;
    struct loader *loader = work->data;
    loader->last_done = true;
    if (loader->last_failed)
        fail_nomem(loader);
    loader_pump(loader);
}

static void begin_last(struct loader *loader)
{
    loader->last_begun = true;
    loader->last.data = loader;
    uv_queue_work(loader->loop, &loader->last, last_on_pool, on_last);
}

static void loader_pump(struct loader *loader)
{
    if (loader->over)
        return;
    if (loader->all.room.err.code)
        fail(loader, &loader->all.room.err);
    pump_encoders(loader);
    while (!loader->err.code && loader->next_span < loader->all.plan.n_spans &&
           loader->n_jobs < loader->most_jobs && encoder_for_span(loader) &&
           begin_span(loader, loader->next_span))
        loader->next_span++;
    if (!loader->err.code && !loader->last_begun &&
        loader->resident->n_loaded == loader->resident->n_frames && is_still(loader))
        begin_last(loader);
    if ((loader->err.code || loader->last_done) && is_still(loader))
        finish(loader);
}

static void on_turn(uv_timer_t *timer)
{
    loader_pump(timer->data);
}

static void on_staging(struct staging_waiter *waiter)
{
    loader_pump((struct loader *)((char *)waiter - offsetof(struct loader, staging)));
}

static void on_changed(void *data)
{
    loader_pump(data);
}

static void on_progress(void *data)
{
    struct loader *loader = data;
    loader->callbacks.on_progress(loader->callbacks.data, loader->resident->n_loaded,
                                  loader->all.bytes_done);
}

static void on_failed(void *data, const struct stow_error *err)
{
    fail(data, err);
}

/* ---- begin ---- */

static int make_encoders(struct loader *loader, struct stow_error *err)
{
    struct lane **lanes = loader->place->encoding;
    const size_t n_lanes = sizeof(loader->place->encoding) / sizeof(*lanes);
    for (; loader->n_encoders < loader->all.n_encoders; loader->n_encoders++) {
        if (encoder_init(&loader->encoders[loader->n_encoders], &loader->all,
                         lanes[loader->n_encoders % n_lanes])) {
            encoder_fini(&loader->encoders[loader->n_encoders]);
            return error_set(err, STOW_NOMEM, "no memory to load an acquisition");
        }
    }
    loader->n_wanted = loader->n_encoders;
    return 0;
}

/* A quarter of the pool is left to learning models: behind reads in the pool's queue they would hold
 * up the whole load. */
static unsigned reads_at_once(void)
{
    const char *text = getenv("UV_THREADPOOL_SIZE"); /* where libuv looks too */
    unsigned n = text ? (unsigned)atoi(text) : USUAL_POOL;
    n = (n > 1 ? n : USUAL_POOL) * 3 / 4;
    return n < MAX_JOBS ? n : MAX_JOBS;
}

int loader_start(struct loader **loader_out, uv_loop_t *loop, struct resident *resident,
                 const struct source *source, const struct loader_options *options,
                 const struct loader_callbacks *callbacks, struct stow_error *err)
{
    static const struct loader_options usual;
    struct loader *loader = calloc(1, sizeof(*loader));
    if (!loader)
        return error_set(err, STOW_NOMEM, "no memory to load an acquisition");
    if (!options)
        options = &usual;
    loader->loop = loop;
    loader->resident = resident;
    loader->store = resident->store;
    loader->place = resident->place;
    loader->callbacks = *callbacks;
    loader->most_jobs = reads_at_once();
    loader->staging.ready = on_staging;
    loader->all = (struct encoding){.loop = loop,
                                    .resident = resident,
                                    .index = source_index(source),
                                    .keep = options->keep,
                                    .data = loader,
                                    .changed = on_changed,
                                    .progress = on_progress,
                                    .failed = on_failed};
    if (!loader->all.keep.streams)
        loader->all.keep.streams = 1;
    int rc = encoding_init(&loader->all, &options->limits, err);
    if (!rc)
        rc = make_encoders(loader, err);
    if (rc) {
        loader_drop(loader);
        free(loader);
        return rc;
    }
    resident_ref(resident);
    uv_timer_init(loop, &loader->turn);
    loader->turn.data = loader;
    uv_timer_start(&loader->turn, on_turn, 0, 0); /* never call back before this returns */
    *loader_out = loader;
    return 0;
}

void loader_cancel(struct loader *loader)
{
    fail(loader, &(struct stow_error){.code = STOW_CANCELLED, .text = "the load was cancelled"});
    uv_timer_start(&loader->turn, on_turn, 0, 0);
}
