/* SPDX-License-Identifier: Apache-2.0
 *
 * A job is a block under way: copied from the device (not on the host) > put together and written by the pool > done. */
#include "kept_save.h"

#include "bslz4.h"
#include "chain.h"
#include "kept_fields.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_JOBS 6u
#define PROGRESS_NS UINT64_C(100000000)

/* Stored frames that lie one behind the other on the device. */
struct run {
    uint64_t dev, bytes, at; /* at: where in the raw bytes it goes */
};

struct job {
    uv_work_t work;
    struct chain chain;
    struct kept_save *save;
    bool busy;
    uint64_t number; /* of the block */
    struct run *runs;
    size_t n_runs, next_run;
    uint8_t *raw; /* the runs, on the host */
    bool staged;
    struct stow_error err;
};

struct kept_save {
    uv_loop_t *loop;
    struct resident *resident; /* a reference, and as a stream: it is not evicted */
    struct place *place;
    int fd;
    struct kept_save_options options;
    struct kept_save_callbacks callbacks; /* done NULL: nobody waits */
    struct kept kept;
    uv_work_t work; /* of the whole: describing, and the end */
    struct stow_error work_err;
    bool working;
    struct job jobs[MAX_JOBS];
    unsigned n_busy;    /* jobs, and the hash */
    uint32_t next_hash; /* the source file that is being hashed */
    bool asked;         /* for that */
    uv_work_t hash_work;
    int hash_fd;
    struct stow_error hash_err;
    uint64_t next_block, bytes_done, frames_done, begun_ns, told_ns;
    struct staging_waiter staging;
    atomic_bool stop;
    struct stow_error err; /* code not 0: it fails, once what is under way is done */
};

static unsigned n_saves;

unsigned kept_save_count(void)
{
    return n_saves;
}

static void pump(struct kept_save *save);

static void fail(struct kept_save *save, const struct stow_error *err)
{
    if (!save->err.code)
        save->err = *err;
    atomic_store(&save->stop, true);
}

static void fail_nomem(struct kept_save *save)
{
    fail(save, &(struct stow_error){.code = STOW_NOMEM, .text = "no memory to save"});
}

static int write_fully(const struct kept_save *save, const uint8_t *from, uint64_t bytes,
                       uint64_t at, struct stow_error *err)
{
    for (uint64_t have = 0; have < bytes;) {
        ssize_t put = pwrite(save->fd, from + have, bytes - have, (off_t)(at + have));
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return error_errno(err, put ? errno : EIO, "writing byte %llu of %llu",
                               (unsigned long long)(at + have),
                               (unsigned long long)save->kept.file_bytes);
        have += (uint64_t)put;
    }
    return 0;
}

/* ---- blocks ---- */

static void job_end(struct job *job)
{
    struct kept_save *save = job->save;
    if (job->staged)
        staging_give(&save->place->staging, job->raw);
    else
        free(job->raw);
    free(job->runs);
    job->busy = false;
    save->n_busy--;
}

/* Where on the host the frame lies. */
static const uint8_t *stored_bytes(const struct job *job, const struct frame *frame, size_t *run)
{
    if (!job->raw)
        return (const uint8_t *)(uintptr_t)frame->addr; /* the host's addresses are pointers */
    while (frame->addr - job->runs[*run].dev >= job->runs[*run].bytes)
        ++*run;
    return job->raw + job->runs[*run].at + (frame->addr - job->runs[*run].dev);
}

static void write_on_pool(uv_work_t *work)
{
    struct job *job = work->data;
    struct kept_save *save = job->save;
    struct kept_block *block = &save->kept.blocks[job->number];
    uint8_t *bytes = atomic_load(&save->stop) ? NULL : malloc(block->bytes), *to = bytes;
    size_t run = 0;
    if (!bytes) {
        error_set(&job->err, STOW_NOMEM, "no memory to save");
        return;
    }
    for (uint64_t id = block->first; id < block->first + block->n_frames; id++) {
        struct kept_frame *frame = &save->kept.frames[id];
        struct bslz4_layout layout;
        uint64_t stride = kept_stride(frame);
        if (!frame->bytes)
            continue;
        memcpy(to, stored_bytes(job, &save->resident->frames[id], &run), frame->bytes);
        memset(to + frame->bytes, 0, stride - frame->bytes);
        if (frame->form == STOW_FORM_BSLZ4 &&
            bslz4_read_layout(&layout, to, frame->bytes, &save->kept.shape) == BSLZ4_GOOD)
            frame->n_blocks = (uint32_t)layout.n_blocks;
        to += stride;
    }
    block->checksum = kept_checksum(bytes, block->bytes);
    write_fully(save, bytes, block->bytes, block->at, &job->err);
    free(bytes);
}

static void tell(struct kept_save *save)
{
    uint64_t now = uv_hrtime(), total = save->kept.file_bytes;
    if (now - save->told_ns < PROGRESS_NS || !save->callbacks.done)
        return;
    save->told_ns = now;
    double seconds = (double)(now - save->begun_ns) * 1e-9;
    struct stow_progress progress = {.frames = save->frames_done,
                                     .total_frames = save->kept.n_frames,
                                     .bytes = save->bytes_done,
                                     .total_bytes = total,
                                     .seconds_left = save->bytes_done
                                                         ? seconds *
                                                               (double)(total - save->bytes_done) /
                                                               (double)save->bytes_done
                                                         : -1};
    save->callbacks.on_progress(save->callbacks.data, &progress);
}

static void on_written(uv_work_t *work, int status)
{
    struct job *job = work->data;
    struct kept_save *save = job->save;
    const struct kept_block *block = &save->kept.blocks[job->number];
    (void)status; /* never cancelled in the queue */
    if (job->err.code)
        fail(save, &job->err);
    save->bytes_done += block->bytes;
    save->frames_done += block->n_frames;
    job_end(job);
    tell(save);
    pump(save);
}

static void write_job(struct job *job)
{
    job->work.data = job;
    uv_queue_work(job->save->loop, &job->work, write_on_pool, on_written);
}

/* ---- from the device ---- */

static const struct piece *piece_of(const struct resident *resident, uint64_t dev)
{
    for (const struct piece *piece = resident->pieces; piece; piece = piece->next) {
        if (dev - piece->memory.dev < piece->memory.bytes)
            return piece;
    }
    return NULL;
}

/* The runs of a block, and how long they are. No run leaves its piece of memory. */
static uint64_t find_runs(struct job *job)
{
    const struct kept_save *save = job->save;
    const struct kept_block *block = &save->kept.blocks[job->number];
    const struct piece *piece = NULL;
    struct run *run = NULL;
    uint64_t bytes = 0;
    for (uint64_t id = block->first; id < block->first + block->n_frames; id++) {
        const struct frame *frame = &save->resident->frames[id];
        if (!save->kept.frames[id].bytes)
            continue;
        bool same_piece = piece && frame->addr - piece->memory.dev < piece->memory.bytes;
        uint64_t gap = run ? frame->addr - (run->dev + run->bytes) : 0;
        if (run && same_piece && gap < 16) {
            run->bytes += gap + frame->bytes;
            bytes += gap + frame->bytes;
            continue;
        }
        if (!same_piece)
            piece = piece_of(save->resident, frame->addr);
        run = &job->runs[job->n_runs++];
        *run = (struct run){.dev = frame->addr, .bytes = frame->bytes, .at = bytes};
        bytes += frame->bytes;
    }
    return bytes;
}

static void copy_some(struct job *job)
{
    chain_begin(&job->chain);
    for (unsigned i = 0; i < CHAIN_OPS && job->next_run < job->n_runs; i++) {
        const struct run *run = &job->runs[job->next_run++];
        chain_download(&job->chain, job->raw + run->at, run->dev, run->bytes);
    }
    if (chain_start(&job->chain)) {
        fail(job->save, &job->chain.err);
        job_end(job);
    }
}

static void on_copied(struct chain *chain)
{
    struct job *job = chain->data;
    struct kept_save *save = job->save;
    if (chain->status)
        fail(save, &chain->err);
    if (save->err.code)
        job_end(job);
    else if (job->next_run < job->n_runs)
        copy_some(job);
    else
        write_job(job);
    pump(save);
}

/* Begin with a block. False when it cannot begin now. */
static bool begin(struct kept_save *save, uint64_t number)
{
    const struct kept_block *block = &save->kept.blocks[number];
    struct job *job = save->jobs;
    while (job->busy)
        job++;
    *job = (struct job){.save = save, .number = number};
    if (save->place->staging.slot_bytes) { /* else device memory is the host's */
        job->runs = calloc(block->n_frames, sizeof(*job->runs));
        uint64_t bytes = job->runs ? find_runs(job) : 0;
        if (job->runs && bytes <= save->place->staging.slot_bytes) {
            job->raw = staging_take(&save->place->staging, &save->staging);
            job->staged = true;
            if (!job->raw) {
                free(job->runs);
                return false;
            }
        } else if (job->runs) {
            job->raw = malloc(bytes);
        }
        if (!job->raw) {
            free(job->runs);
            fail_nomem(save);
            return false;
        }
    }
    job->busy = true;
    save->n_busy++;
    if (!job->raw) {
        write_job(job);
        return true;
    }
    job->chain = (struct chain){.place = save->place,
                                .lane = save->place->loading,
                                .shape = &save->kept.shape,
                                .done = on_copied,
                                .data = job};
    copy_some(job);
    return true;
}

/* ---- hashes of the source's files ---- */

#define HASH_BYTES ((size_t)1 << 20) /* at once */

static int hash_file(struct kept_save *save, EVP_MD_CTX *hash, uint8_t *bytes)
{
    struct kept_source *source = &save->kept.sources[save->next_hash];
    ssize_t got = 0;
    for (uint64_t at = 0; at < source->size && !atomic_load(&save->stop); at += (uint64_t)got) {
        got = pread(save->hash_fd, bytes, HASH_BYTES, (off_t)at);
        if (got < 0 && errno == EINTR)
            got = 0;
        else if (got < 0)
            return error_errno(&save->hash_err, errno, "%s", source->path);
        else if (got == 0)
            return error_set(&save->hash_err, STOW_SOURCE, "%s was cut while it was read",
                             source->path);
        if (!EVP_DigestUpdate(hash, bytes, (size_t)got))
            return error_set(&save->hash_err, STOW_INTERNAL, "libcrypto does not hash");
    }
    if (!EVP_DigestFinal_ex(hash, source->sha256, NULL))
        return error_set(&save->hash_err, STOW_INTERNAL, "libcrypto does not hash");
    return 0;
}

static void hash_on_pool(uv_work_t *work)
{
    struct kept_save *save = work->data;
    EVP_MD_CTX *hash = EVP_MD_CTX_new();
    uint8_t *bytes = malloc(HASH_BYTES);
    if (hash && bytes && EVP_DigestInit_ex(hash, EVP_sha256(), NULL))
        hash_file(save, hash, bytes);
    else
        error_set(&save->hash_err, STOW_NOMEM, "no memory to hash a file");
    EVP_MD_CTX_free(hash);
    free(bytes);
}

/* Ask for the next file that has no hash yet. */
static void ask_hash(struct kept_save *save)
{
    const struct kept *kept = &save->kept;
    const struct remembered *before = save->resident->remembered;
    while (save->next_hash < kept->n_sources &&
           (!kept->sources[save->next_hash].has_sha256 ||
            (before && before->files[save->next_hash].has_sha256)))
        save->next_hash++;
    save->asked = save->next_hash < kept->n_sources && save->callbacks.done;
    if (save->asked)
        save->callbacks.need(save->callbacks.data, save->next_hash,
                             kept->sources[save->next_hash].path);
}

static void on_hashed(uv_work_t *work, int status)
{
    struct kept_save *save = work->data;
    (void)status;
    close(save->hash_fd);
    save->n_busy--;
    save->next_hash++;
    if (save->hash_err.code)
        fail(save, &save->hash_err);
    if (!save->err.code)
        ask_hash(save);
    pump(save);
}

void kept_save_give(struct kept_save *save, uint32_t file, int fd, int errno_value)
{
    struct stat st;
    struct stow_error err = {.code = 0};
    if (!save->asked || file != save->next_hash) {
        if (fd >= 0)
            close(fd);
        return;
    }
    const struct kept_source *source = &save->kept.sources[file];
    save->asked = false;
    if (fd < 0 || fstat(fd, &st))
        error_errno(&err, fd < 0 && errno_value ? errno_value : errno, "the source %s",
                    source->path);
    else
        kept_same_source(source, source->path, (uint64_t)st.st_size,
                         (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec, &err);
    if (err.code) {
        if (fd >= 0)
            close(fd);
        fail(save, &err);
        pump(save);
        return;
    }
    save->hash_fd = fd;
    save->hash_work.data = save;
    save->n_busy++;
    uv_queue_work(save->loop, &save->hash_work, hash_on_pool, on_hashed);
}

/* ---- the end ---- */

static void finish(struct kept_save *save)
{
    struct kept_save_callbacks callbacks = save->callbacks;
    struct stow_error err = save->err;
    uint64_t bytes = save->kept.file_bytes;
    staging_forget(&save->place->staging, &save->staging);
    close(save->fd);
    kept_fini(&save->kept);
    save->resident->n_streams--;
    resident_unref(save->resident);
    free(save);
    n_saves--;
    if (callbacks.done)
        callbacks.done(callbacks.data, bytes, &err);
}

static void end_on_pool(uv_work_t *work)
{
    struct kept_save *save = work->data;
    uint8_t *tables = atomic_load(&save->stop) ? NULL : malloc(save->kept.payload_at);
    if (!tables) {
        error_set(&save->work_err, STOW_NOMEM, "no memory to save");
        return;
    }
    kept_put(&save->kept, tables);
    int rc = write_fully(save, tables, save->kept.payload_at, 0, &save->work_err);
    free(tables);
    while (!rc && fsync(save->fd)) {
        if (errno != EINTR)
            rc = error_errno(&save->work_err, errno, "writing the file to disk");
    }
}

static void on_end(uv_work_t *work, int status)
{
    struct kept_save *save = work->data;
    (void)status;
    if (save->work_err.code)
        fail(save, &save->work_err);
    finish(save);
}

static bool has_free_job(const struct kept_save *save)
{
    for (unsigned i = 0; i < MAX_JOBS; i++) {
        if (!save->jobs[i].busy)
            return true;
    }
    return false;
}

static void pump(struct kept_save *save)
{
    if (save->working)
        return;
    while (!save->err.code && save->next_block < save->kept.n_blocks && has_free_job(save) &&
           begin(save, save->next_block))
        save->next_block++;
    bool more = save->next_block < save->kept.n_blocks || save->next_hash < save->kept.n_sources;
    if (save->n_busy || (!save->err.code && more))
        return;
    save->working = true;
    if (save->err.code)
        finish(save);
    else
        uv_queue_work(save->loop, &save->work, end_on_pool, on_end);
}

static void on_staging(struct staging_waiter *waiter)
{
    pump((struct kept_save *)((char *)waiter - offsetof(struct kept_save, staging)));
}

/* ---- begin ---- */

/* Have the disk set all of it aside, where the file system can. */
static int make_file(const struct kept_save *save, struct stow_error *err)
{
    off_t bytes = (off_t)save->kept.file_bytes;
    int rc;
    do
        rc = fallocate(save->fd, 0, 0, bytes) ? errno : 0;
    while (rc == EINTR);
    if (rc == EOPNOTSUPP || rc == ENOSYS)
        rc = ftruncate(save->fd, bytes) ? errno : 0;
    return rc ? error_errno(err, rc, "making room for %llu bytes",
                            (unsigned long long)save->kept.file_bytes)
              : 0;
}

static void describe_on_pool(uv_work_t *work)
{
    struct kept_save *save = work->data;
    struct kept *kept = &save->kept;
    if (kept_describe(kept, save->resident, &save->options.what)) {
        error_set(&save->work_err, STOW_NOMEM, "no memory for the tables of %llu frames",
                  (unsigned long long)save->resident->n_frames);
        return;
    }
    uint64_t source = kept_source_bytes(kept);
    if (kept->file_bytes > source && !save->options.force) {
        error_set(&save->work_err, STOW_LIMIT,
                  "the copy would have %llu bytes, its source files have %llu; --force writes it "
                  "all the same",
                  (unsigned long long)kept->file_bytes, (unsigned long long)source);
        return;
    }
    make_file(save, &save->work_err);
}

static void on_described(uv_work_t *work, int status)
{
    struct kept_save *save = work->data;
    (void)status;
    save->working = false;
    if (save->work_err.code)
        fail(save, &save->work_err);
    if (!save->err.code && save->callbacks.done)
        save->callbacks.planned(save->callbacks.data, save->kept.file_bytes);
    if (!save->err.code)
        ask_hash(save);
    pump(save);
}

static int check_file(int fd, struct stow_error *err)
{
    struct stat st;
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fstat(fd, &st))
        return error_errno(err, errno, "the file to save to");
    if (!S_ISREG(st.st_mode) || st.st_size || (flags & O_PATH) || (flags & O_ACCMODE) == O_RDONLY ||
        (flags & O_APPEND))
        return error_set(err, STOW_INVALID,
                         "SAVE takes an empty regular file that is open for writing");
    return 0;
}

int kept_save_start(struct kept_save **save_out, uv_loop_t *loop, struct resident *resident, int fd,
                    const struct kept_save_options *options,
                    const struct kept_save_callbacks *callbacks, struct stow_error *err)
{
    int rc = check_file(fd, err);
    if (!rc && !resident_is_whole(resident))
        rc = error_set(err, STOW_STATE, "it is %s; only what is loaded to the end can be saved",
                       residence_name(resident->state));
    struct kept_save *save = rc ? NULL : calloc(1, sizeof(*save));
    if (!save) {
        close(fd);
        return rc ? rc : error_set(err, STOW_NOMEM, "no memory to save");
    }
    save->loop = loop;
    save->resident = resident;
    save->place = resident->place;
    save->fd = fd;
    save->options = *options;
    save->callbacks = *callbacks;
    save->staging.ready = on_staging;
    save->begun_ns = uv_hrtime();
    save->work.data = save;
    save->working = true;
    resident_ref(resident);
    resident->n_streams++;
    n_saves++;
    uv_queue_work(loop, &save->work, describe_on_pool, on_described);
    *save_out = save;
    return 0;
}

void kept_save_cancel(struct kept_save *save)
{
    save->callbacks.done = NULL;
    fail(save, &(struct stow_error){.code = STOW_CANCELLED, .text = "the save was cancelled"});
    pump(save);
}
