/* SPDX-License-Identifier: Apache-2.0
 *
 * A slot is a span under way: read and indexed by the pool > decoded and compared on the lane > added up. */
#include "verify.h"

#include "chain.h"
#include "kept_describe.h"
#include "source.h"
#include "span.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_SLOTS 3u
#define SPAN_BYTES (UINT64_C(8) << 20)     /* of chunks, but for a larger frame */
#define DECODED_BYTES (UINT64_C(32) << 20) /* of each side, but for a larger frame */
#define MAX_FRAMES 2048u
#define PROGRESS_NS UINT64_C(100000000)

struct slot {
    struct verify *verify;
    struct device_memory
        memory; /* chunks, block tables, left, right, addresses of both, differences */
    struct device_request request;
    uv_work_t work;
    struct chain chain;
    bool busy, has_read, staged;
    struct span span;
    struct span_read read;
    uint8_t *bytes; /* the chunks on the host */
    /* frames that both sides have */
    uint32_t n;
    struct decode_job *left, *right; /* [n] */
    uint32_t *frame_of;              /* [n] from the span's first */
    int32_t *left_status, *right_status;
    uint64_t *lists; /* [3][n]: left, right, differences */
};

/* Where things lie in a slot's memory. */
struct places {
    uint64_t tables, left, right, lists, end, stride;
};

struct verify {
    struct loads *loads;
    struct resident *resident; /* a reference, and as a stream: it is not evicted */
    struct place *place;
    struct verify_callbacks callbacks; /* done NULL: nobody waits */
    struct source *source;
    const struct source_index *index; /* once it is there */
    bool asked_master, ended, direct; /* direct: device memory is the host's */
    unsigned n_files;                 /* counted among the loads' */
    uint64_t max_chunks, max_frames;  /* of a span */
    struct slot slots[N_SLOTS];
    unsigned n_allocated, n_requests, n_busy;
    uint64_t next_frame, frames_done, bytes_done, begun_ns, told_ns;
    struct staging_waiter staging;
    struct stow_verdict verdict;
    atomic_bool stop;
    struct stow_error err; /* code not 0: it fails, once what is under way is done */
};

static unsigned n_verifies;

unsigned verify_count(void)
{
    return n_verifies;
}

static void pump(struct verify *verify);

static void fail(struct verify *verify, const struct stow_error *err)
{
    if (!verify->err.code)
        verify->err = *err;
    atomic_store(&verify->stop, true);
}

static void fail_nomem(struct verify *verify)
{
    fail(verify, &(struct stow_error){.code = STOW_NOMEM, .text = "no memory to compare"});
}

/* ---- spans ---- */

static struct span next_span(const struct verify *verify, uint64_t first)
{
    const struct source_index *index = verify->index;
    uint64_t stride = (frame_bytes(&verify->resident->shape) + 15) / 16 * 16;
    struct span span = {.first = first};
    while (first + span.n_frames < index->n_frames && span.n_frames < MAX_FRAMES) {
        const struct source_chunk *chunk = &index->chunks[first + span.n_frames];
        uint64_t bytes = chunk_is_stored(chunk) ? chunk->bytes : 0;
        if (span.n_frames &&
            (span.bytes + bytes > SPAN_BYTES || (span.n_frames + 1) * stride > DECODED_BYTES))
            break;
        span.bytes += bytes;
        span.n_frames++;
    }
    return span;
}

/* A block takes 5 bytes of a chunk at least, and 4 of its table. */
static struct places slot_places(const struct verify *verify)
{
    struct places p = {.stride = (frame_bytes(&verify->resident->shape) + 15) / 16 * 16};
    p.tables = (verify->max_chunks + 15) / 16 * 16;
    p.left = p.tables + p.tables + verify->max_frames * 16;
    p.right = p.left + verify->max_frames * p.stride;
    p.lists = p.right + verify->max_frames * p.stride;
    p.end = p.lists + 3 * sizeof(uint64_t) * verify->max_frames;
    return p;
}

/* ---- comparing ---- */

static void slot_end(struct slot *slot)
{
    struct verify *verify = slot->verify;
    if (slot->staged)
        staging_give(&verify->place->staging, slot->bytes);
    else if (slot->bytes && !verify->direct)
        free(slot->bytes);
    if (slot->has_read)
        span_read_fini(&slot->read);
    free(slot->left);
    free(slot->right);
    free(slot->frame_of);
    free(slot->left_status);
    free(slot->right_status);
    free(slot->lists);
    slot->bytes = NULL;
    slot->left = slot->right = NULL;
    slot->frame_of = NULL;
    slot->left_status = slot->right_status = NULL;
    slot->lists = NULL;
    slot->staged = slot->has_read = slot->busy = false;
    verify->n_busy--;
}

static void add_up(struct slot *slot)
{
    struct verify *verify = slot->verify;
    struct stow_verdict *verdict = &verify->verdict;
    const uint64_t *differ = slot->lists + 2 * (size_t)slot->n;
    uint32_t n_compared = 0;
    for (uint32_t i = 0; i < slot->n; i++) {
        if (slot->left_status[i] || slot->right_status[i])
            continue;
        n_compared++;
        verdict->values += verify->resident->shape.n_elems;
        if (!differ[i])
            continue;
        uint64_t id = slot->span.first + slot->frame_of[i];
        if (!verdict->mismatches || id < verdict->first_mismatch)
            verdict->first_mismatch = id;
        verdict->mismatches += differ[i];
    }
    verdict->frames += n_compared;
    verdict->not_compared += slot->span.n_frames - n_compared;
    verify->frames_done += slot->span.n_frames;
    verify->bytes_done += slot->span.bytes;
}

static void tell(struct verify *verify)
{
    uint64_t now = uv_hrtime(), total = verify->index->chunk_bytes, done = verify->bytes_done;
    if (now - verify->told_ns < PROGRESS_NS || !verify->callbacks.done)
        return;
    verify->told_ns = now;
    double seconds = (double)(now - verify->begun_ns) * 1e-9;
    struct stow_progress progress = {.frames = verify->frames_done,
                                     .total_frames = verify->index->n_frames,
                                     .bytes = done,
                                     .total_bytes = total,
                                     .seconds_left =
                                         done && total > done
                                             ? seconds * (double)(total - done) / (double)done
                                             : -1};
    verify->callbacks.on_progress(verify->callbacks.data, &progress);
}

static void on_compared(struct chain *chain)
{
    struct slot *slot = chain->data;
    struct verify *verify = slot->verify;
    if (chain->status)
        fail(verify, &chain->err);
    else
        add_up(slot);
    slot_end(slot);
    tell(verify);
    pump(verify);
}

static struct decode_job source_job(const struct slot *slot, uint32_t i)
{
    const struct source_chunk *chunk = &slot->verify->index->chunks[slot->span.first + i];
    if (!chunk->bytes)
        return (struct decode_job){.form = STOW_FORM_FILL};
    const struct places p = slot_places(slot->verify);
    struct decode_job job = {.src = slot->memory.dev + slot->read.at[i],
                             .src_bytes = chunk->bytes,
                             .form = chunk->raw ? STOW_FORM_RAW : STOW_FORM_BSLZ4};
    if (!chunk->raw)
        job.blocks = slot->memory.dev + p.tables + slot->read.table_at[i] * sizeof(uint32_t);
    return job;
}

static struct decode_job resident_job(const struct frame *frame)
{
    return (struct decode_job){.src = frame->addr,
                               .blocks = frame->blocks,
                               .src_bytes = frame->bytes,
                               .form = frame->form};
}

/* Jobs for the frames that both sides have. */
static int make_jobs(struct slot *slot)
{
    const struct verify *verify = slot->verify;
    const struct places p = slot_places(verify);
    const uint32_t room = slot->span.n_frames;
    slot->left = calloc(room, sizeof(*slot->left));
    slot->right = calloc(room, sizeof(*slot->right));
    slot->frame_of = calloc(room, sizeof(*slot->frame_of));
    slot->left_status = calloc(room, sizeof(*slot->left_status));
    slot->right_status = calloc(room, sizeof(*slot->right_status));
    slot->lists = calloc(3 * (size_t)room, sizeof(*slot->lists));
    if (!slot->left || !slot->right || !slot->frame_of || !slot->left_status ||
        !slot->right_status || !slot->lists)
        return STOW_NOMEM;
    slot->n = 0;
    for (uint32_t i = 0; i < room; i++) {
        const struct frame *frame = &verify->resident->frames[slot->span.first + i];
        const struct source_chunk *chunk = &verify->index->chunks[slot->span.first + i];
        if (chunk->fault || chunk->file == SOURCE_NO_FILE || slot->read.bad[i] ||
            frame->form == STOW_FORM_BAD)
            continue;
        uint32_t k = slot->n++;
        slot->frame_of[k] = i;
        slot->left[k] = source_job(slot, i);
        slot->right[k] = resident_job(frame);
        slot->left[k].dst = slot->memory.dev + p.left + k * p.stride;
        slot->right[k].dst = slot->memory.dev + p.right + k * p.stride;
    }
    for (uint32_t k = 0; k < slot->n; k++) {
        slot->lists[k] = slot->left[k].dst;
        slot->lists[slot->n + k] = slot->right[k].dst;
    }
    return 0;
}

static int compare(struct slot *slot)
{
    struct verify *verify = slot->verify;
    const struct places p = slot_places(verify);
    const uint64_t dev = slot->memory.dev, list = slot->n * sizeof(uint64_t);
    struct chain *chain = &slot->chain;
    *chain = (struct chain){.place = verify->place,
                            .lane = verify->place->loading,
                            .shape = &verify->resident->shape,
                            .done = on_compared,
                            .data = slot};
    struct work work = {.kind = WORK_COMPARE,
                        .n = slot->n,
                        .shape = verify->resident->shape,
                        .compare = {.left = dev + p.lists,
                                    .right = dev + p.lists + list,
                                    .differ = dev + p.lists + 2 * list}};
    chain_begin(chain);
    if (slot->span.bytes && !verify->direct)
        chain_upload(chain, dev, slot->bytes, slot->span.bytes);
    if (slot->read.n_tables)
        chain_upload(chain, dev + p.tables, slot->read.tables,
                     slot->read.n_tables * sizeof(uint32_t));
    if (slot->n) {
        chain_decode(chain, slot->left_status, slot->left, slot->n);
        chain_decode(chain, slot->right_status, slot->right, slot->n);
        chain_upload(chain, dev + p.lists, slot->lists, 2 * list);
        chain_run(chain, &work);
        chain_download(chain, slot->lists + 2 * (size_t)slot->n, dev + p.lists + 2 * list, list);
    }
    return chain_start(chain);
}

static void read_on_pool(uv_work_t *work)
{
    struct slot *slot = work->data;
    if (!atomic_load(&slot->verify->stop))
        span_read(&slot->read);
}

static void on_read(uv_work_t *work, int status)
{
    struct slot *slot = work->data;
    struct verify *verify = slot->verify;
    (void)status; /* never cancelled in the queue */
    if (slot->read.err.code)
        fail(verify, &slot->read.err);
    if (!verify->err.code && make_jobs(slot))
        fail_nomem(verify);
    if (!verify->err.code && compare(slot))
        fail(verify, &slot->chain.err);
    else if (!verify->err.code)
        return;
    slot_end(slot);
    pump(verify);
}

/* Begin with the next span. False when it cannot begin now. */
static bool begin(struct verify *verify)
{
    struct slot *slot = verify->slots;
    while (slot->busy)
        slot++;
    slot->span = next_span(verify, verify->next_frame);
    if (verify->direct) {
        slot->bytes = slot->memory.host;
    } else if (slot->span.bytes <= verify->place->staging.slot_bytes) {
        slot->bytes = staging_take(&verify->place->staging, &verify->staging);
        slot->staged = slot->bytes != NULL;
        if (!slot->bytes)
            return false;
    } else {
        slot->bytes = malloc(slot->span.bytes);
    }
    slot->busy = true;
    verify->n_busy++;
    slot->has_read = slot->bytes && !span_read_init(&slot->read, verify->index, &slot->span,
                                                    &verify->resident->shape, slot->bytes);
    if (!slot->has_read) {
        fail_nomem(verify);
        slot_end(slot);
        return false;
    }
    verify->next_frame += slot->span.n_frames;
    slot->work.data = slot;
    uv_queue_work(verify->loads->loop, &slot->work, read_on_pool, on_read);
    return true;
}

/* ---- the end ---- */

static void verify_free(struct verify *verify)
{
    struct verify_callbacks callbacks = verify->callbacks;
    struct stow_verdict verdict = verify->verdict;
    struct stow_error err = verify->err;
    staging_forget(&verify->place->staging, &verify->staging);
    if (verify->source)
        source_close(verify->source);
    verify->loads->n_files -= verify->n_files;
    verify->resident->n_streams--;
    resident_unref(verify->resident);
    free(verify);
    n_verifies--;
    if (callbacks.done)
        callbacks.done(callbacks.data, &verdict, &err);
}

static void on_freed(struct device_request *request)
{
    struct slot *slot = request->data;
    if (--slot->verify->n_requests == 0)
        verify_free(slot->verify);
}

static void finish(struct verify *verify)
{
    verify->ended = true;
    verify->n_requests = 1; /* this function's */
    for (unsigned i = 0; i < verify->n_allocated; i++) {
        struct slot *slot = &verify->slots[i];
        if (!slot->memory.bytes)
            continue;
        slot->request = (struct device_request){.done = on_freed, .data = slot};
        verify->n_requests++;
        device_free(verify->place->device, &slot->memory, &slot->request);
    }
    if (--verify->n_requests == 0)
        verify_free(verify);
}

static void pump(struct verify *verify)
{
    if (verify->ended || verify->n_requests)
        return;
    bool indexing = verify->source && !verify->index;
    if (indexing && verify->err.code) { /* the child is killed; it will not be heard of again */
        source_close(verify->source);
        verify->source = NULL;
        indexing = false;
    }
    if (indexing || (!verify->index && !verify->err.code))
        return;
    while (!verify->err.code && verify->next_frame < verify->index->n_frames &&
           verify->n_busy < verify->n_allocated && begin(verify))
        ;
    if (verify->n_busy || (!verify->err.code && verify->next_frame < verify->index->n_frames))
        return;
    finish(verify);
}

static void on_staging(struct staging_waiter *waiter)
{
    pump((struct verify *)((char *)waiter - offsetof(struct verify, staging)));
}

/* ---- the source ---- */

static const char *master_path(const struct verify *verify)
{
    return kept_source_of(verify->resident, 0).path;
}

static int check_file(const struct verify *verify, size_t i, struct stow_error *err)
{
    const struct kept_source was = kept_source_of(verify->resident, i);
    const struct source_file *now = &verify->index->files[i];
    if (was.there != (now->fd >= 0))
        return error_set(err, STOW_SOURCE, "the source has changed: %s was %s", now->path,
                         was.there ? "there, and is not" : "missing, and is there");
    return was.there ? kept_same_source(&was, now->path, now->size, now->mtime_ns, err) : 0;
}

static int check_source(const struct verify *verify, struct stow_error *err)
{
    const struct source_index *now = verify->index;
    const struct resident *was = verify->resident;
    const char *path = master_path(verify);
    for (size_t i = 0; i < kept_n_sources(was) && i < now->n_files; i++) {
        if (check_file(verify, i, err))
            return err->code;
    }
    if (now->n_files != kept_n_sources(was))
        return error_set(err, STOW_SOURCE, "the source has changed: %s had %zu files and has %zu",
                         path, kept_n_sources(was), now->n_files);
    if (strcmp(now->dtype, was->dtype) != 0 || now->fill != was->shape.fill)
        return error_set(err, STOW_SOURCE,
                         "the source has changed: %s had frames of %s and has some of %s", path,
                         was->dtype, now->dtype);
    if (now->n_frames != was->n_frames || now->det_y != was->det_y || now->det_x != was->det_x)
        return error_set(
            err, STOW_SOURCE,
            "the source has changed: %s had %llu frames of %llux%llu and has %llu of %llux%llu",
            path, (unsigned long long)was->n_frames, (unsigned long long)was->det_y,
            (unsigned long long)was->det_x, (unsigned long long)now->n_frames,
            (unsigned long long)now->det_y, (unsigned long long)now->det_x);
    return 0;
}

static void on_allocated(struct device_request *request)
{
    struct slot *slot = request->data;
    struct verify *verify = slot->verify;
    if (request->status)
        fail(verify, &request->err);
    verify->n_requests--;
    pump(verify);
}

/* Scratch for as many spans at once as are of use. */
static void alloc_slots(struct verify *verify)
{
    unsigned n = 0;
    for (uint64_t first = 0; first < verify->index->n_frames; n++) {
        struct span span = next_span(verify, first);
        first += span.n_frames;
        if (span.bytes > verify->max_chunks)
            verify->max_chunks = span.bytes;
        if (span.n_frames > verify->max_frames)
            verify->max_frames = span.n_frames;
    }
    n = n < N_SLOTS ? n : N_SLOTS;
    const struct places p = slot_places(verify);
    verify->n_allocated = verify->n_requests = n;
    for (unsigned i = 0; i < n; i++) {
        struct slot *slot = &verify->slots[i];
        slot->verify = verify;
        slot->request = (struct device_request){.done = on_allocated, .data = slot};
        device_alloc(verify->place->device, &slot->memory, MEMORY_RESIDENT, p.end, &slot->request);
    }
}

static void on_indexed(void *data, int status, const struct stow_error *err)
{
    struct verify *verify = data;
    struct stow_error why = {.code = 0};
    verify->index = source_index(verify->source);
    if (status)
        fail(verify, err);
    else if (check_source(verify, &why))
        fail(verify, &why);
    else
        alloc_slots(verify);
    pump(verify);
}

static void on_need(void *data, uint32_t file, const char *path)
{
    struct verify *verify = data;
    struct loads *loads = verify->loads;
    if (loads->n_files >= loads->max_files || !verify->callbacks.done) {
        source_give(verify->source, file, -1, path, EMFILE);
        return;
    }
    verify->n_files++;
    loads->n_files++;
    verify->callbacks.need(verify->callbacks.data, file, path);
}

static void take_master(struct verify *verify, int fd, int errno_value)
{
    const struct remembered *before = verify->resident->remembered;
    const char *path = master_path(verify);
    struct stow_error err = {.code = 0};
    verify->asked_master = false;
    if (fd < 0) {
        error_errno(&err, errno_value ? errno_value : ENOENT, "the source %s", path);
    } else {
        struct source_options options = {.dataset =
                                             before ? before->dataset : verify->resident->dataset,
                                         .path = path,
                                         .allow_gaps = before ? before->allow_gaps
                                                              : verify->resident->has_gaps,
                                         .reader = verify->loads->reader};
        struct source_callbacks callbacks = {.data = verify,
                                             .on_need = on_need,
                                             .on_done = on_indexed};
        if (source_open(&verify->source, verify->loads->loop, fd, &options, &callbacks, &err))
            verify->source = NULL;
    }
    if (err.code) {
        fail(verify, &err);
        pump(verify);
    }
}

void verify_give(struct verify *verify, uint32_t file, int fd, const char *path, int errno_value)
{
    if (file == 0 && verify->asked_master)
        take_master(verify, fd, errno_value);
    else if (verify->source && !verify->index)
        source_give(verify->source, file, fd, path, errno_value);
    else if (fd >= 0)
        close(fd);
}

/* ---- begin ---- */

int verify_new(struct verify **verify_out, struct loads *loads, struct resident *resident,
               const struct verify_callbacks *callbacks, struct stow_error *err)
{
    if (!resident_is_whole(resident))
        return error_set(err, STOW_STATE,
                         "it is %s; only what is loaded to the end can be compared",
                         residence_name(resident->state));
    struct verify *verify = calloc(1, sizeof(*verify));
    if (!verify)
        return error_set(err, STOW_NOMEM, "no memory to compare");
    verify->loads = loads;
    verify->resident = resident;
    verify->place = resident->place;
    verify->callbacks = *callbacks;
    verify->staging.ready = on_staging;
    verify->direct = !verify->place->staging.slot_bytes;
    verify->begun_ns = uv_hrtime();
    resident_ref(resident);
    resident->n_streams++;
    n_verifies++;
    *verify_out = verify;
    return 0;
}

void verify_begin(struct verify *verify)
{
    verify->asked_master = true;
    verify->callbacks.need(verify->callbacks.data, 0, master_path(verify));
}

void verify_cancel(struct verify *verify)
{
    verify->callbacks.done = NULL;
    fail(verify, &(struct stow_error){.code = STOW_CANCELLED, .text = "it was cancelled"});
    pump(verify);
}
