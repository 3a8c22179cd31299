/* SPDX-License-Identifier: Apache-2.0
 *
 * A job is a span under way: reading (pool) > waiting for room > checking (device) > gone. */
#include "loader.h"

#include "bslz4.h"
#include "describe.h"
#include "metrics.h"
#include "plan.h"

#define LOG_MODULE "loader"
#include "log.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define MAX_JOBS 24u
#define TABLE_PIECE_BYTES (UINT64_C(4) << 20)

enum buffer { BUFFER_DIRECT, BUFFER_STAGING, BUFFER_HEAP };

struct job {
    uv_work_t work;
    struct device_request fence;
    struct loader *loader;
    const struct span *span;
    struct job *next; /* waiting */
    enum buffer buffer;
    uint8_t *bytes;
    struct span_read read;
    enum {
        STEP_PLACE,
        STEP_BYTES,
        STEP_TABLES,
        STEP_DECODE,
        STEP_FENCE
    } step; /* that the lane has yet to take */
    uint64_t table_dev;
    struct decode_job *decodes; /* [n_decodes], frame_of their frames, status of them */
    uint32_t *frame_of;
    int32_t *status;
    size_t n_decodes;
};

struct loader {
    uv_loop_t *loop;
    struct resident *resident;
    struct place *place;
    const struct source_index *index;
    struct loader_callbacks callbacks;
    struct plan plan;
    size_t next_span;
    struct job *waiting; /* read, but without room for tables or in the lane */
    unsigned n_jobs, n_allocs;
    uint64_t reserved; /* of the budget, for pieces of payload that are not asked for yet */
    uv_timer_t turn;   /* the first, and after a cancel: a pump that nobody's call waits for */
    struct place_retry retry;
    struct staging_waiter staging;
    atomic_bool stop;
    struct stow_error err; /* code not 0: it fails, once what is under way is done */
    uint64_t bytes_done;
};

static void loader_pump(struct loader *loader);

static void fail(struct loader *loader, const struct stow_error *err)
{
    if (!loader->err.code)
        loader->err = *err;
    atomic_store(&loader->stop, true);
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
    free(job->decodes);
    free(job->frame_of);
    free(job->status);
    free(job);
    loader->n_jobs--;
}

/* The end of a job, and with the last one perhaps the end of the load. */
static void job_end(struct job *job)
{
    struct loader *loader = job->loader;
    job_free(job);
    loader_pump(loader);
}

static void note_faults(struct job *job)
{
    struct resident *resident = job->loader->resident;
    for (size_t i = 0; i < job->read.n_faults; i++) {
        const struct span_fault *f = &job->read.faults[i];
        resident_fault(resident, job->span->first + f->frame, 1, f->code, f->text);
    }
}

/* The device found a frame whose LZ4 makes no sense: have the host say where. */
static void note_corrupt(struct job *job, size_t i)
{
    struct resident *resident = job->loader->resident;
    struct stow_error why = {.code = 0};
    uint32_t frame = job->frame_of[i];
    struct decode_job check = job->decodes[i];
    check.src = (uint64_t)(uintptr_t)(job->bytes + job->read.at[frame]);
    check.blocks = (uint64_t)(uintptr_t)(job->read.tables + job->read.table_at[frame]);
    if (!decode_frame(&check, &resident->shape, &why))
        error_set(&why, STOW_CORRUPT, "the device could not decode it though the host can");
    resident_fault(resident, job->span->first + frame, 1, STOW_CORRUPT, why.text);
}

static void on_checked(struct device_request *request)
{
    struct job *job = request->data;
    struct loader *loader = job->loader;
    struct resident *resident = loader->resident;
    if (request->status) {
        fail(loader, &request->err);
        job_end(job);
        return;
    }
    note_faults(job);
    for (size_t i = 0; i < job->n_decodes; i++) {
        struct frame *frame = &resident->frames[job->span->first + job->frame_of[i]];
        *frame = (struct frame){.addr = job->decodes[i].src,
                                .blocks = job->decodes[i].blocks,
                                .bytes = job->decodes[i].src_bytes,
                                .form = (uint8_t)job->decodes[i].form};
        if (job->status[i])
            note_corrupt(job, i);
    }
    resident->n_loaded += job->n_decodes + job->read.n_faults;
    resident->payload_bytes += job->span->bytes;
    resident->table_bytes += job->read.n_tables * sizeof(uint32_t);
    loader->bytes_done += job->span->bytes;
    metrics.loaded_bytes_total += job->span->bytes;
    resident_changed(resident);
    loader->callbacks.on_progress(loader->callbacks.data, resident->n_loaded, loader->bytes_done);
    job_end(job);
}

/* Where the span's tables go: behind the payload of its piece, else in the current piece of tables. NULL:
 * not yet, or never (then the load fails). */
static struct planned *table_room(struct loader *loader, const struct span *span, uint64_t bytes)
{
    struct planned *own = &loader->plan.pieces[span->piece];
    if (own->tables_at + bytes <= own->piece->memory.bytes)
        return own;
    struct planned *last = loader->plan.n_payload < loader->plan.n_pieces
                               ? &loader->plan.pieces[loader->plan.n_pieces - 1]
                               : NULL;
    if (last && !last->ready)
        return NULL;
    if (last && last->tables_at + bytes <= last->piece->memory.bytes)
        return last;
    uint64_t piece_bytes = bytes > TABLE_PIECE_BYTES ? bytes : TABLE_PIECE_BYTES;
    if (plan_add_tables(&loader->plan, piece_bytes))
        fail(loader,
             &(struct stow_error){.code = STOW_NOMEM, .text = "no memory for a block table"});
    return NULL;
}

/* Settle where the span's tables go. False: there is no room for them yet. */
static bool place_tables(struct job *job)
{
    uint64_t table_bytes = job->read.n_tables * sizeof(uint32_t);
    struct planned *tables = table_room(job->loader, job->span, table_bytes);
    if (!tables)
        return false;
    job->table_dev = tables->piece->memory.dev + tables->tables_at;
    tables->tables_at += (table_bytes + 15) / 16 * 16;
    for (size_t i = 0; i < job->n_decodes; i++) {
        if (job->decodes[i].form == STOW_FORM_BSLZ4)
            job->decodes[i].blocks =
                job->table_dev + job->read.table_at[job->frame_of[i]] * sizeof(uint32_t);
    }
    job->step = STEP_BYTES;
    return true;
}

static int enqueue_step(struct job *job)
{
    struct loader *loader = job->loader;
    struct lane *lane = loader->place->loading;
    switch (job->step) {
    case STEP_BYTES:
        if (job->buffer == BUFFER_DIRECT)
            return 0;
        return lane_upload(lane,
                           loader->plan.pieces[job->span->piece].piece->memory.dev +
                               job->span->offset,
                           job->bytes, job->span->bytes);
    case STEP_TABLES:
        return lane_upload(lane, job->table_dev, job->read.tables,
                           job->read.n_tables * sizeof(uint32_t));
    case STEP_DECODE:
        return lane_decode(lane, job->status, job->decodes, job->n_decodes,
                           &loader->resident->shape);
    default:
        job->fence = (struct device_request){.done = on_checked, .data = job};
        return lane_fence(lane, &job->fence);
    }
}

/* What the lane has not taken yet of the job: a lane that is full is asked again later, from that step on. */
static int enqueue(struct job *job)
{
    for (;; job->step++) {
        int rc = enqueue_step(job);
        if (rc || job->step == STEP_FENCE)
            return rc;
    }
}

/* One decode (a check, for now) for each frame of the span that has bytes and no fault. */
static int make_decodes(struct job *job)
{
    const struct span *span = job->span;
    const struct source_chunk *chunks = job->loader->index->chunks + span->first;
    uint64_t dev = job->loader->plan.pieces[span->piece].piece->memory.dev + span->offset;
    job->decodes = calloc(span->n_frames, sizeof(*job->decodes));
    job->frame_of = calloc(span->n_frames, sizeof(*job->frame_of));
    job->status = calloc(span->n_frames, sizeof(*job->status));
    if (!job->decodes || !job->frame_of || !job->status)
        return STOW_NOMEM;
    for (uint32_t i = 0; i < span->n_frames; i++) {
        if (!chunk_is_stored(&chunks[i]) || job->read.bad[i])
            continue;
        job->frame_of[job->n_decodes] = i;
        job->decodes[job->n_decodes++] =
            (struct decode_job){.src = dev + job->read.at[i],
                                .src_bytes = chunks[i].bytes,
                                .form = chunks[i].raw ? STOW_FORM_RAW : STOW_FORM_BSLZ4};
    }
    return 0;
}

static void wait_for_room(struct job *job)
{
    job->next = job->loader->waiting;
    job->loader->waiting = job;
}

/* Send a span that was read to the device. It may have to wait for memory or for the lane. */
static void submit(struct job *job)
{
    struct loader *loader = job->loader;
    if (job->step == STEP_PLACE && !place_tables(job)) {
        wait_for_room(job);
        return;
    }
    int rc = enqueue(job);
    if (rc == STOW_BUSY) {
        wait_for_room(job);
        place_wait(loader->place, &loader->retry);
    } else if (rc) {
        fail(loader, &(struct stow_error){.code = rc, .text = "the device refused work"});
        job_free(job);
    } else {
        place_submitted(loader->place);
    }
}

static void read_on_pool(uv_work_t *work)
{
    struct job *job = work->data;
    if (!atomic_load(&job->loader->stop))
        span_read(&job->read);
}

static void on_read(uv_work_t *work, int status)
{
    (void)status; /* reads are never cancelled in the queue */
    struct job *job = work->data;
    struct loader *loader = job->loader;
    if (job->read.err.code)
        fail(loader, &job->read.err);
    if (!loader->err.code && make_decodes(job))
        fail(loader, &(struct stow_error){.code = STOW_NOMEM, .text = "no memory to load frames"});
    if (loader->err.code) {
        job_end(job);
        return;
    }
    submit(job);
    loader_pump(loader);
}

/* ---- the pump ---- */

static void on_piece(struct device_request *request)
{
    struct loader *loader = request->data;
    loader->n_allocs--;
    if (request->status)
        fail(loader, &request->err);
    for (size_t i = 0; i < loader->plan.n_pieces; i++) {
        if (loader->plan.pieces[i].piece && &loader->plan.pieces[i].piece->request == request)
            loader->plan.pieces[i].ready = true;
    }
    loader_pump(loader);
}

/* Have the memory of a plan asked for. True when it is there. */
static bool have_piece(struct loader *loader, struct planned *wanted)
{
    if (wanted->piece || loader->err.code)
        return wanted->ready;
    struct shortage shortage;
    struct stow_error err;
    if ((size_t)(wanted - loader->plan.pieces) <
        loader->plan.n_payload) { /* what was set aside for it */
        loader->reserved -= piece_charge(wanted->bytes);
        place_uncharge(loader->place, piece_charge(wanted->bytes));
    }
    int rc = resident_add_piece(loader->resident, wanted->bytes, on_piece, loader, &wanted->piece,
                                &shortage);
    if (!rc) {
        loader->n_allocs++;
        return false;
    }
    if (rc == STOW_NOROOM)
        shortage_error(&shortage, loader->place, &err);
    else
        error_set(&err, rc, "no memory");
    fail(loader, &err);
    return false;
}

static bool take_buffer(struct loader *loader, struct job *job)
{
    const struct span *span = job->span;
    uint8_t *host = loader->plan.pieces[span->piece].piece->memory.host;
    if (host) {
        job->buffer = BUFFER_DIRECT;
        job->bytes = host + span->offset;
    } else if (span->bytes <= loader->place->staging.slot_bytes) {
        job->buffer = BUFFER_STAGING;
        job->bytes = staging_take(&loader->place->staging, &loader->staging);
    } else {
        job->buffer = BUFFER_HEAP;
        job->bytes = malloc(span->bytes);
        if (!job->bytes)
            fail(loader, &(struct stow_error){.code = STOW_NOMEM,
                                              .text = "no memory to read a large frame"});
    }
    return job->bytes != NULL;
}

/* Begin to read a span. False when it cannot begin now. */
static bool begin_span(struct loader *loader, const struct span *span)
{
    if (!have_piece(loader, &loader->plan.pieces[span->piece]))
        return false;
    struct job *job = calloc(1, sizeof(*job));
    if (!job) {
        fail(loader, &(struct stow_error){.code = STOW_NOMEM, .text = "no memory to load frames"});
        return false;
    }
    job->loader = loader;
    job->span = span;
    loader->n_jobs++;
    if (!take_buffer(loader, job) ||
        span_read_init(&job->read, loader->index, span, &loader->resident->shape, job->bytes)) {
        if (job->bytes)
            fail(loader,
                 &(struct stow_error){.code = STOW_NOMEM, .text = "no memory to load frames"});
        job_free(job);
        return false;
    }
    job->work.data = job;
    uv_queue_work(loader->loop, &job->work, read_on_pool, on_read);
    return true;
}

static void on_turn_closed(uv_handle_t *handle)
{
    free(handle->data);
}

/* Nothing is under way any more. The struct goes when libuv has let go of the timer. */
static void finish(struct loader *loader)
{
    struct resident *resident = loader->resident;
    struct stow_error err = loader->err;
    bool all = resident->n_loaded == resident->n_frames;
    assert(err.code || all);
    if (!err.code) {
        resident_settle(resident);
        resident->state = resident->forms[STOW_FORM_BAD] ? RESIDENT_DAMAGED : RESIDENT_COMPLETE;
        resident->last_used_ns = uv_hrtime();
    } else {
        resident->failure = err;
    }
    place_uncharge(loader->place, loader->reserved);
    staging_forget(&loader->place->staging, &loader->staging);
    struct loader_callbacks callbacks = loader->callbacks;
    plan_fini(&loader->plan);
    place_unwait(loader->place, &loader->retry);
    uv_close((uv_handle_t *)&loader->turn, on_turn_closed);
    resident_changed(resident);
    callbacks.on_done(callbacks.data, err.code, &err);
    resident_unref(resident);
}

/* Try again. Once the load has failed only what the lane has a part of already goes on, to its fence: till then
 * the job's memory is the lane's. */
static void resubmit_waiting(struct loader *loader)
{
    struct job *waiting = loader->waiting;
    loader->waiting = NULL;
    while (waiting) {
        struct job *job = waiting;
        waiting = job->next;
        if (loader->err.code && job->step <= STEP_BYTES)
            job_free(job);
        else
            submit(job);
    }
}

static void loader_pump(struct loader *loader)
{
    resubmit_waiting(loader);
    if (loader->plan.n_payload <
        loader->plan.n_pieces) /* after: a job that finds no room has just planned some */
        have_piece(loader, &loader->plan.pieces[loader->plan.n_pieces - 1]);
    while (!loader->err.code && loader->next_span < loader->plan.n_spans &&
           loader->n_jobs < MAX_JOBS && begin_span(loader, &loader->plan.spans[loader->next_span]))
        loader->next_span++;
    if (loader->err.code)
        resubmit_waiting(loader);
    bool more = !loader->err.code && loader->next_span < loader->plan.n_spans;
    if (!more && !loader->n_jobs && !loader->n_allocs)
        finish(loader);
}

static void on_turn(uv_timer_t *timer)
{
    loader_pump(timer->data);
}

static void on_retry(struct place_retry *retry)
{
    loader_pump((struct loader *)((char *)retry - offsetof(struct loader, retry)));
}

static void on_staging(struct staging_waiter *waiter)
{
    loader_pump((struct loader *)((char *)waiter - offsetof(struct loader, staging)));
}

/* The frame table counts too: a small file can have millions of frames that were never written. */
static int charge_frames(struct loader *loader, struct stow_error *err)
{
    struct resident *resident = loader->resident;
    uint64_t bytes = loader->index->n_frames * sizeof(struct frame);
    struct shortage shortage;
    if (store_make_room(resident->store, loader->place, bytes, &shortage))
        return shortage_error(&shortage, loader->place, err);
    place_charge(loader->place, bytes);
    resident->frames_charged = bytes;
    return 0;
}

/* The room for all of it must be there before the first byte is read, and stay there: nobody is evicted in vain,
 * and of two loads that do not fit together one is refused at once. */
static int reserve_room(struct loader *loader, struct stow_error *err)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < loader->plan.n_pieces; i++)
        bytes += piece_charge(loader->plan.pieces[i].bytes);
    struct shortage shortage;
    if (store_make_room(loader->resident->store, loader->place, bytes, &shortage))
        return shortage_error(&shortage, loader->place, err);
    place_charge(loader->place, bytes);
    loader->reserved = bytes;
    return 0;
}

int loader_start(struct loader **loader_out, uv_loop_t *loop, struct resident *resident,
                 const struct source *source, const struct loader_callbacks *callbacks,
                 struct stow_error *err)
{
    struct loader *loader = calloc(1, sizeof(*loader));
    if (!loader)
        return error_set(err, STOW_NOMEM, "no memory to load an acquisition");
    loader->loop = loop;
    loader->resident = resident;
    loader->place = resident->place;
    loader->index = source_index(source);
    loader->callbacks = *callbacks;
    loader->staging.ready = on_staging;
    loader->retry.retry = on_retry;
    int rc = charge_frames(loader, err);
    if (!rc && (describe_resident(resident, loader->index) ||
                plan_init(&loader->plan, loader->index, &resident->shape)))
        rc = error_set(err, STOW_NOMEM, "no memory for the table of %llu frames",
                       (unsigned long long)loader->index->n_frames);
    if (!rc)
        rc = reserve_room(loader, err);
    if (rc) {
        plan_fini(&loader->plan);
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
