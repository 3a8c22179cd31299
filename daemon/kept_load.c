/* SPDX-License-Identifier: Apache-2.0
 *
 * A job is a block, a segment or some frames' statistics under way: on the pool > on the lane (where the device's
 * memory is not the host's) > done. What there is to do for each frame is done on the pool, but for its form, which the
 * loop sets at the end: what the loop does while nothing is read is time that nobody else uses. */
#include "kept_load.h"

#include "bslz4.h"
#include "chain.h"
#include "counts_model.h"
#include "kept_adopt.h"
#include "kept_fields.h"
#include "kept_open.h"
#include "metrics.h"
#include "room.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define MAX_JOBS STAGING_SLOTS
#define STATS_FRAMES 16384u /* whose statistics one job takes */
#define STEP_BYTES \
    (UINT64_C(1) << 20) /* read, and added to the checksum while it is in the cache */

enum job_kind { JOB_STATS, JOB_SEGMENT, JOB_BLOCK };
enum buffer { BUFFER_NONE, BUFFER_DIRECT, BUFFER_STAGING, BUFFER_HEAP };

struct job {
    uv_work_t work;
    struct chain chain;
    struct kept_load *load;
    bool busy;
    enum job_kind kind;
    uint64_t number; /* of its kind */
    enum buffer buffer;
    uint8_t *bytes;   /* of the block, or the segment's table */
    uint32_t *tables; /* block tables; behind the bytes where these are direct */
    bool owns_tables;
    size_t table_bytes; /* of the block tables */
    uint64_t dev;       /* where it goes: bytes, then block tables */
    struct stow_error err;
};

struct kept_load {
    uv_loop_t *loop;
    struct resident *resident;
    struct place *place;
    struct kept kept;
    int fd;
    const char *path;
    struct loader_callbacks callbacks;
    struct room room;
    bool has_room, direct;
    struct job jobs[MAX_JOBS];
    unsigned n_busy;
    uint64_t next_stats, next_segment, next_block, n_stats;
    uint64_t *segment_dev;       /* [n_segments] known before any block begins */
    uint64_t *block_table_bytes; /* [n_blocks] */
    uint64_t left_bytes;         /* that are given no room yet */
    uint64_t bytes_done, frames_done;
    uv_timer_t turn; /* the first, and after a cancel: a pump that nobody's call waits for */
    uv_work_t last;  /* frees what is left */
    struct store *store;
    struct staging_waiter staging;
    atomic_bool stop;
    struct stow_error err; /* code not 0: it fails, once what is under way is done */
};

static void pump(struct kept_load *load);

static void fail(struct kept_load *load, const struct stow_error *err)
{
    if (!load->err.code)
        load->err = *err;
    atomic_store(&load->stop, true);
}

static void fail_nomem(struct kept_load *load)
{
    fail(load, &(struct stow_error){.code = STOW_NOMEM, .text = "no memory to load a .stow file"});
}

static uint64_t table_bytes(const struct kept_frame *frame)
{
    return frame->form == STOW_FORM_BSLZ4 ? ((uint64_t)frame->n_blocks + 1) * sizeof(uint32_t) : 0;
}

/* ---- jobs ---- */

static void job_end(struct job *job)
{
    struct kept_load *load = job->load;
    if (job->buffer == BUFFER_STAGING)
        staging_give(&load->place->staging, job->bytes);
    if (job->buffer == BUFFER_HEAP)
        free(job->bytes);
    if (job->owns_tables)
        free(job->tables);
    job->busy = false;
    load->n_busy--;
}

static void job_done(struct job *job)
{
    struct kept_load *load = job->load;
    if (job->kind == JOB_SEGMENT) {
        load->resident->segments[job->number].table = job->dev;
    } else if (job->kind == JOB_BLOCK) {
        const struct kept_block *block = &load->kept.blocks[job->number];
        load->bytes_done += block->bytes;
        load->frames_done += block->n_frames;
        metrics.loaded_bytes_total += block->bytes;
        load->callbacks.on_progress(load->callbacks.data, load->frames_done, load->bytes_done);
    }
    job_end(job);
    pump(load);
}

static void on_copied(struct chain *chain)
{
    struct job *job = chain->data;
    struct kept_load *load = job->load;
    if (chain->status) {
        fail(load, &chain->err);
        job_end(job);
        pump(load);
        return;
    }
    job_done(job);
}

/* ---- on the pool ---- */

static void read_block(struct job *job)
{
    const struct kept_load *load = job->load;
    const struct kept_block *block = &load->kept.blocks[job->number];
    XXH3_state_t *hash = XXH3_createState();
    if (!hash) {
        error_set(&job->err, STOW_NOMEM, "no memory to check a block");
        return;
    }
    XXH3_64bits_reset(hash);
    for (uint64_t at = 0; at < block->bytes && !job->err.code && !atomic_load(&load->stop);) {
        uint64_t left = block->bytes - at, n = left < STEP_BYTES ? left : STEP_BYTES;
        if (!kept_pread(load->fd, load->path, job->bytes + at, n, block->at + at, &job->err))
            XXH3_64bits_update(hash, job->bytes + at, n);
        at += n;
    }
    bool good = XXH3_64bits_digest(hash) == block->checksum;
    XXH3_freeState(hash);
    if (!job->err.code && !good && !atomic_load(&load->stop))
        error_set(&job->err, STOW_SOURCE,
                  "%s: block %llu (bytes %llu to %llu) is damaged: its checksum is not what was "
                  "written; copy it again",
                  load->path, (unsigned long long)job->number, (unsigned long long)block->at,
                  (unsigned long long)(block->at + block->bytes - 1));
}

/* The tables of the block's bslz4 frames, which take just the room that the file says. */
static void index_block(struct job *job)
{
    const struct kept_load *load = job->load;
    const struct kept_block *block = &load->kept.blocks[job->number];
    const uint8_t *src = job->bytes;
    uint32_t *table = job->tables;
    for (uint32_t i = 0; i < block->n_frames; i++) {
        const struct kept_frame *frame = &load->kept.frames[block->first + i];
        size_t n_blocks;
        struct stow_error why = {.code = 0};
        if (frame->form == STOW_FORM_BSLZ4) {
            if (bslz4_index(table, (size_t)frame->n_blocks + 1, &n_blocks, src, frame->bytes,
                            &load->kept.shape, &why) ||
                n_blocks != frame->n_blocks) {
                error_set(&job->err, STOW_SOURCE, "%s: frame %llu is no chunk: %s", load->path,
                          (unsigned long long)(block->first + i),
                          why.code ? why.text : "another number of blocks");
                return;
            }
            table += n_blocks + 1;
        }
        src += kept_stride(frame);
    }
}

static void make_segment(struct job *job)
{
    const struct kept_load *load = job->load;
    const struct kept_segment *segment = &load->kept.segments[job->number];
    struct counts_model model = {.n_streams = 0};
    struct stow_error why;
    int rc = counts_model_unpack(&model, segment->packed, segment->packed_bytes, &load->kept.shape,
                                 &why);
    if (!rc && counts_model_segment_bytes(&model) != segment->table_bytes)
        rc = error_set(&why, STOW_CORRUPT, "its table has another size");
    if (rc)
        error_set(&job->err, rc == STOW_NOMEM ? rc : STOW_SOURCE, "%s: segment %llu: %s",
                  load->path, (unsigned long long)job->number, why.text);
    else
        counts_model_segment(&model, job->bytes);
    counts_model_fini(&model);
}

/* Where the block's frames lie. They stay pending: the loop, which may look at their forms now, sets those. */
static void place_frames(const struct job *job)
{
    const struct kept_load *load = job->load;
    const struct kept_block *block = &load->kept.blocks[job->number];
    uint64_t at = job->dev, table = at + block->bytes;
    for (uint64_t id = block->first; id < block->first + block->n_frames; id++) {
        const struct kept_frame *from = &load->kept.frames[id];
        struct frame *frame = &load->resident->frames[id];
        if (!from->bytes)
            continue;
        frame->addr = at;
        frame->bytes = from->bytes;
        if (from->form == STOW_FORM_COUNTS)
            frame->blocks = load->segment_dev[id / load->kept.segment_frames];
        if (from->form == STOW_FORM_BSLZ4)
            frame->blocks = table;
        at += kept_stride(from);
        table += table_bytes(from);
    }
}

static void make_stats(const struct job *job)
{
    const struct kept *kept = &job->load->kept;
    uint64_t first = job->number * STATS_FRAMES, left = kept->n_frames - first;
    kept_take_stats(kept, job->load->resident->sums.stats, first,
                    first + (left < STATS_FRAMES ? left : STATS_FRAMES));
}

static void run_on_pool(uv_work_t *work)
{
    struct job *job = work->data;
    if (atomic_load(&job->load->stop))
        return;
    switch (job->kind) {
    case JOB_STATS: make_stats(job); return;
    case JOB_SEGMENT: make_segment(job); return;
    case JOB_BLOCK: read_block(job); break;
    }
    if (!job->err.code && job->table_bytes && !atomic_load(&job->load->stop))
        index_block(job);
    if (!job->err.code && !atomic_load(&job->load->stop))
        place_frames(job);
}

static void on_run(uv_work_t *work, int status)
{
    struct job *job = work->data;
    struct kept_load *load = job->load;
    (void)status; /* never cancelled in the queue */
    if (job->err.code)
        fail(load, &job->err);
    if (load->err.code) {
        job_end(job);
        pump(load);
        return;
    }
    if (job->buffer == BUFFER_DIRECT || job->kind == JOB_STATS) {
        job_done(job);
        return;
    }
    uint64_t bytes = job->kind == JOB_SEGMENT ? load->kept.segments[job->number].table_bytes
                                              : load->kept.blocks[job->number].bytes;
    job->chain = (struct chain){.place = load->place,
                                .lane = load->place->loading,
                                .shape = &load->kept.shape,
                                .done = on_copied,
                                .data = job};
    chain_begin(&job->chain);
    chain_upload(&job->chain, job->dev, job->bytes, bytes);
    if (job->table_bytes)
        chain_upload(&job->chain, job->dev + bytes, job->tables, job->table_bytes);
    if (chain_start(&job->chain)) {
        fail(load, &job->chain.err);
        job_end(job);
    }
    pump(load);
}

/* ---- the pump ---- */

static bool take_buffer(struct job *job, uint64_t bytes)
{
    struct kept_load *load = job->load;
    if (load->direct) {
        job->buffer = BUFFER_DIRECT;
        job->bytes = (uint8_t *)(uintptr_t)job->dev; /* the host's addresses are pointers */
        job->tables = (uint32_t *)(uintptr_t)(job->dev + bytes);
        return true;
    }
    if (job->table_bytes) {
        job->tables = malloc(job->table_bytes);
        job->owns_tables = true;
    }
    if (job->kind == JOB_BLOCK && bytes <= load->place->staging.slot_bytes) {
        job->buffer = BUFFER_STAGING; /* there is a free one: pump looked */
        job->bytes = staging_take(&load->place->staging, &load->staging);
    } else {
        job->buffer = BUFFER_HEAP;
        job->bytes = malloc(bytes);
    }
    return job->bytes && (job->tables || !job->table_bytes);
}

static struct job *new_job(struct kept_load *load, enum job_kind kind, uint64_t number)
{
    struct job *job = load->jobs;
    while (job->busy)
        job++;
    *job = (struct job){.load = load, .busy = true, .kind = kind, .number = number};
    job->work.data = job;
    load->n_busy++;
    return job;
}

/* Begin with a segment or a block. False when it cannot begin now. */
static bool begin(struct kept_load *load, enum job_kind kind, uint64_t number)
{
    struct kept *kept = &load->kept;
    bool is_block = kind == JOB_BLOCK;
    uint64_t bytes = is_block ? kept->blocks[number].bytes : kept->segments[number].table_bytes;
    uint64_t tables = is_block ? load->block_table_bytes[number] : 0, dev;
    struct stow_error err;
    if (!load->direct && is_block && bytes <= load->place->staging.slot_bytes) {
        uint8_t *slot = staging_take(&load->place->staging, &load->staging);
        if (!slot)
            return false;
        staging_give(&load->place->staging, slot);
    }
    if (!room_take(&load->room, bytes + tables, 16, &dev)) {
        if (room_more(&load->room, bytes + tables, load->left_bytes - bytes - tables, &err))
            fail(load, &err);
        return false;
    }
    load->left_bytes -= (bytes + tables + 15) / 16 * 16;
    struct job *job = new_job(load, kind, number);
    job->table_bytes = tables;
    job->dev = dev;
    if (!is_block)
        load->segment_dev[number] = dev;
    if (!take_buffer(job, bytes)) {
        if (!job->bytes)
            job->buffer = BUFFER_NONE;
        fail_nomem(load);
        job_end(job);
        return false;
    }
    uv_queue_work(load->loop, &job->work, run_on_pool, on_run);
    return true;
}

/* The next thing to be done. False: nothing is left, or it cannot begin now. Segments, the few large tasks, are first,
 * so that the pool ends evenly. */
static bool begin_next(struct kept_load *load)
{
    struct kept *kept = &load->kept;
    while (load->next_segment < kept->n_segments &&
           !kept->segments[load->next_segment].packed_bytes)
        load->next_segment++;
    if (load->next_segment < kept->n_segments) {
        if (!begin(load, JOB_SEGMENT, load->next_segment))
            return false;
        load->next_segment++;
        return true;
    }
    if (load->next_block == kept->n_blocks || !begin(load, JOB_BLOCK, load->next_block))
        return false;
    load->next_block++;
    return true;
}

/* Statistics need no room on the device: they are taken while the first piece of it is on its way. */
static bool begin_stats(struct kept_load *load)
{
    if (load->next_stats == load->n_stats)
        return false;
    struct job *job = new_job(load, JOB_STATS, load->next_stats++);
    uv_queue_work(load->loop, &job->work, run_on_pool, on_run);
    return true;
}

/* Frames have their addresses (place_frames): from here on they are served. */
static void settle_frames(struct kept_load *load)
{
    struct resident *resident = load->resident;
    const struct kept *kept = &load->kept;
    for (uint64_t id = 0; id < kept->n_frames; id++) {
        const struct kept_frame *from = &kept->frames[id];
        resident->frames[id].form = from->form;
        resident->payload_bytes += from->bytes;
        resident->table_bytes += kept_stride(from) - from->bytes + table_bytes(from);
    }
    for (size_t i = 0; i < resident->n_segments; i++)
        resident->table_bytes += resident->segments[i].table_bytes;
    resident->n_loaded = resident->n_frames;
    resident_settle(resident);
    resident->state = resident->forms[STOW_FORM_BAD] ? RESIDENT_DAMAGED : RESIDENT_COMPLETE;
    resident->last_used_ns = uv_hrtime();
}

static void let_go(struct kept_load *load)
{
    staging_forget(&load->place->staging, &load->staging);
    if (load->has_room)
        room_fini(&load->room);
    load->has_room = false;
}

static void load_free(struct kept_load *load)
{
    kept_fini(&load->kept);
    free(load->segment_dev);
    free(load->block_table_bytes);
    free(load);
}

static void free_on_pool(uv_work_t *work)
{
    kept_fini(&((struct kept_load *)work->data)->kept);
}

static void on_freed(uv_work_t *work, int status)
{
    struct kept_load *load = work->data;
    (void)status;
    load->store->n_freeing--;
    load_free(load);
}

/* Tables of many frames take milliseconds to free, which neither the loop nor who waits for the load has to spare. */
static void on_turn_closed(uv_handle_t *handle)
{
    struct kept_load *load = handle->data;
    load->last.data = load;
    uv_queue_work(load->loop, &load->last, free_on_pool, on_freed);
}

static void finish(struct kept_load *load)
{
    struct resident *resident = load->resident;
    struct stow_error err = load->err;
    if (!err.code)
        settle_frames(load);
    else
        resident->failure = err;
    struct loader_callbacks callbacks = load->callbacks;
    let_go(load);
    load->store->n_freeing++;
    uv_close((uv_handle_t *)&load->turn, on_turn_closed);
    resident_changed(resident);
    callbacks.on_done(callbacks.data, err.code, &err);
    resident_unref(resident);
}

static void pump(struct kept_load *load)
{
    struct kept *kept = &load->kept;
    if (uv_is_closing((uv_handle_t *)&load->turn))
        return;
    while (!load->err.code && load->n_busy < MAX_JOBS && (begin_next(load) || begin_stats(load)))
        ;
    bool more = !load->err.code &&
                (load->next_stats < load->n_stats || load->next_segment < kept->n_segments ||
                 load->next_block < kept->n_blocks);
    if (!more && !load->n_busy && !load->room.asking)
        finish(load);
}

static void on_turn(uv_timer_t *timer)
{
    pump(timer->data);
}

static void on_room(void *data)
{
    struct kept_load *load = data;
    if (load->room.err.code)
        fail(load, &load->room.err);
    pump(load);
}

static void on_staging(struct staging_waiter *waiter)
{
    pump((struct kept_load *)((char *)waiter - offsetof(struct kept_load, staging)));
}

/* ---- begin ---- */

/* Tables that lie in host memory count too. */
static int charge_frames(struct kept_load *load, struct stow_error *err)
{
    struct resident *resident = load->resident;
    uint64_t bytes = load->kept.n_frames * sizeof(struct frame);
    if (load->kept.has_sums)
        bytes += load->kept.n_frames * sizeof(struct frame_stats);
    struct shortage shortage;
    if (store_make_room(resident->store, load->place, bytes, &shortage))
        return shortage_error(&shortage, load->place, err);
    place_charge(load->place, bytes);
    resident->frames_charged = bytes;
    return 0;
}

/* What all of it takes of the device, which is known to the byte. */
static int reserve_room(struct kept_load *load, struct stow_error *err)
{
    const struct kept *kept = &load->kept;
    uint64_t bytes = 0, largest = 0;
    load->segment_dev = calloc(kept->n_segments + 1, sizeof(*load->segment_dev));
    load->block_table_bytes = calloc(kept->n_blocks + 1, sizeof(*load->block_table_bytes));
    if (!load->segment_dev || !load->block_table_bytes)
        return error_set(err, STOW_NOMEM, "no memory to load a .stow file");
    for (uint64_t i = 0; i < kept->n_blocks; i++) {
        const struct kept_block *block = &kept->blocks[i];
        uint64_t *tables = &load->block_table_bytes[i];
        for (uint32_t k = 0; k < block->n_frames; k++)
            *tables += table_bytes(&kept->frames[block->first + k]);
        uint64_t all = (block->bytes + *tables + 15) / 16 * 16;
        bytes += all;
        largest = all > largest ? all : largest;
    }
    for (uint64_t i = 0; i < kept->n_segments; i++) {
        uint64_t all = ((uint64_t)kept->segments[i].table_bytes + 15) / 16 * 16;
        bytes += all;
        largest = all > largest ? all : largest;
    }
    load->left_bytes = bytes;
    int rc = room_init(&load->room, load->resident, bytes, largest, on_room, load, err);
    load->has_room = !rc;
    return rc;
}

static int prepare(struct kept_load *load, struct stow_error *err)
{
    int rc = charge_frames(load, err);
    if (!rc && kept_adopt(load->resident, &load->kept))
        rc = error_set(err, STOW_NOMEM, "no memory for the table of %llu frames",
                       (unsigned long long)load->kept.n_frames);
    return rc ? rc : reserve_room(load, err);
}

int kept_load_start(struct kept_load **load_out, uv_loop_t *loop, struct resident *resident,
                    struct kept *kept, int fd, const char *path,
                    const struct loader_callbacks *callbacks, struct stow_error *err)
{
    struct kept_load *load = calloc(1, sizeof(*load));
    if (!load) {
        kept_fini(kept);
        return error_set(err, STOW_NOMEM, "no memory to load an acquisition");
    }
    load->loop = loop;
    load->resident = resident;
    load->store = resident->store;
    load->place = resident->place;
    load->kept = *kept;
    *kept = (struct kept){.n_frames = 0};
    load->fd = fd;
    load->path = path;
    load->callbacks = *callbacks;
    load->direct = !load->place->staging.slot_bytes; /* device memory is the host's */
    load->staging.ready = on_staging;
    if (load->kept.has_sums)
        load->n_stats = (load->kept.n_frames + STATS_FRAMES - 1) / STATS_FRAMES;
    int rc = prepare(load, err);
    if (rc) {
        let_go(load);
        load_free(load);
        return rc;
    }
    resident_ref(resident);
    uv_timer_init(loop, &load->turn);
    load->turn.data = load;
    uv_timer_start(&load->turn, on_turn, 0, 0); /* never call back before this returns */
    *load_out = load;
    return 0;
}

void kept_load_cancel(struct kept_load *load)
{
    fail(load, &(struct stow_error){.code = STOW_CANCELLED, .text = "the load was cancelled"});
    uv_timer_start(&load->turn, on_turn, 0, 0);
}
