/* SPDX-License-Identifier: Apache-2.0
 *
 * device_host: the device that needs no GPU. Rings are memfds, "device addresses" are pointers, and
 * lanes run on a pool of threads that all lanes share.
 *
 * An operation is cut into tasks which may run beside each other; the next operation of the lane starts
 * when all of them are done. Threads take a task at a time, of urgent lanes first, of equal lanes in
 * turn. Work completes as on a GPU: the pool counts the fences that are passed and wakes the loop, and
 * nothing calls back but device_poll. With 0 threads the loop runs the tasks itself, in device_poll. */
#include "device_ops.h"

#include "bslz4.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LARGE_PAGE ((size_t)2 << 20)
#define TASK_ITEMS 64u
#define THREAD_TASKS 8u /* of an operation, for each thread */
#define TASK_BYTES (4u << 20)
#define N_OPS (LANE_MAX_OPS + LANE_MAX_FENCES)

struct host_op {
    enum { OP_FENCE, OP_COPY, OP_DECODE, OP_RUN } what;
    size_t n_tasks, started, done; /* under the pool's mutex */
    uint8_t *dst;
    const uint8_t *src;
    size_t bytes;
    int32_t *status;
    uint64_t first_job;
    size_t n_items, task_items; /* jobs of a decode, items of a work */
    struct frame_shape shape;
    struct work work;
};

struct host_lane {
    struct lane head;
    struct host_lane *next_ready;
    struct host_op ops[N_OPS];
    uint64_t op_in, op_out; /* under the pool's mutex; number i is at i % N_OPS */
    _Atomic uint64_t reached;
    struct decode_job *jobs; /* [LANE_MAX_JOBS], number i at i % LANE_MAX_JOBS */
    uint64_t job_in;
};

struct host_device {
    struct device head;
    pthread_mutex_t mutex;
    pthread_cond_t work, idle;
    /* Lanes whose front operation has tasks that nobody has taken, by priority. */
    struct host_lane *first[LANE_URGENT + 1], *last[LANE_URGENT + 1];
    bool stopping;
    unsigned n_threads;
    pthread_t *threads;
};

/* ---- memory -------------------------------------------------------------------------------------- */

/* The number, in KiB, of a line of /proc/meminfo, as bytes; 0: not there. */
static uint64_t meminfo_bytes(const char *line_name)
{
    char line[128];
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/meminfo", "re");
    if (!file)
        return 0;
    while (fgets(line, sizeof(line), file)) {
        if (!strncmp(line, line_name, strlen(line_name))) {
            sscanf(line + strlen(line_name), ": %llu", &kib);
            break;
        }
    }
    fclose(file);
    return kib << 10;
}

/* What this process may use at most: of the machine, or of its container (cgroup 2). */
static uint64_t total_bytes(void)
{
    char group[256] = "/", path[320];
    unsigned long long limit = 0;
    uint64_t total = meminfo_bytes("MemTotal");
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (file) {
        if (fscanf(file, "0::%255[^\n]", group) != 1)
            strcpy(group, "/");
        fclose(file);
    }
    snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.max", group);
    file = fopen(path, "re");
    if (file) {
        if (fscanf(file, "%llu", &limit) == 1 && limit < total)
            total = limit;
        fclose(file);
    }
    return total;
}

static int no_room(struct stow_error *err, size_t bytes)
{
    return error_set(err, STOW_NOROOM, "host memory: %zu MiB needed, %llu MiB free", bytes >> 20,
                     (unsigned long long)(meminfo_bytes("MemAvailable") >> 20));
}

/* A memfd of bytes, all of them really there: a page that is missing later would be a SIGBUS. */
static int memfd_new(size_t bytes, enum memory_kind kind, struct stow_error *err)
{
    int fd = memfd_create("framestow", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return error_errno(err, errno, "memfd_create");
    int rc = ftruncate(fd, (off_t)bytes) ? errno : posix_fallocate(fd, 0, (off_t)bytes);
    if (rc) {
        close(fd);
        if (rc == ENOSPC || rc == ENOMEM || rc == EFBIG)
            return no_room(err, bytes);
        return error_errno(err, rc, "memfd of %zu MiB", bytes >> 20);
    }
    /* A client gets this descriptor: it must not be able to cut the file under our mapping. */
    if (kind == MEMORY_HOST_FD &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
        rc = errno;
        close(fd);
        return error_errno(err, rc, "sealing a memfd");
    }
    return fd;
}

/* In large pages where the system has some: to touch 300 MB page by page for the first time takes longer than to read
 * as much from a file. What acquisitions live in is really there from now on. */
static int make_pages(void *at, enum memory_kind kind, size_t bytes)
{
    if (bytes >= LARGE_PAGE)
        madvise(at, bytes, MADV_HUGEPAGE); /* without it, it is only slower */
    if (kind == MEMORY_RESIDENT && madvise(at, bytes, MADV_POPULATE_WRITE) && errno != EINVAL)
        return errno;
    return 0;
}

int host_memory_alloc(struct device_memory *memory, enum memory_kind kind, size_t bytes,
                      struct stow_error *err)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint64_t available = meminfo_bytes("MemAvailable");
    if (bytes > SIZE_MAX / 2 || (available && bytes > available))
        return no_room(err, bytes);
    bytes = (bytes ? bytes + page - 1 : page) / page * page;
    int fd = -1, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    if (kind == MEMORY_HOST_FD) {
        fd = memfd_new(bytes, kind, err);
        if (fd < 0)
            return fd;
        flags = MAP_SHARED | (kind == MEMORY_HOST_FD ? MAP_POPULATE : 0);
    }
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (at == MAP_FAILED) {
        int why = errno;
        if (fd >= 0)
            close(fd);
        return error_errno(err, why, "mapping %zu MiB", bytes >> 20);
    }
    if (fd < 0 && make_pages(at, kind, bytes)) {
        munmap(at, bytes);
        return no_room(err, bytes);
    }
    *memory = (struct device_memory){
        .dev = (uintptr_t)at, .host = at, .bytes = bytes, .fd = fd, .kind = kind};
    return 0;
}

void host_memory_free(struct device_memory *memory)
{
    munmap(memory->host, memory->bytes);
    if (memory->fd >= 0)
        close(memory->fd);
}

static int host_alloc(struct device *device, struct device_memory *memory, enum memory_kind kind,
                      size_t bytes, struct stow_error *err)
{
    (void)device;
    if (kind == MEMORY_CUDA_IPC || kind == MEMORY_CUDA_FD)
        return error_set(err, STOW_UNSUPPORTED, "the host device has no GPU memory");
    return host_memory_alloc(memory, kind, bytes, err);
}

static int host_free(struct device *device, struct device_memory *memory, struct stow_error *err)
{
    (void)device, (void)err;
    host_memory_free(memory);
    return 0;
}

/* ---- the pool ------------------------------------------------------------------------------------ */

static struct host_device *pool_of(struct host_lane *lane)
{
    return (struct host_device *)lane->head.device;
}

static void ready_put(struct host_device *pool, struct host_lane *lane)
{
    enum lane_priority priority = lane->head.priority;
    lane->next_ready = NULL;
    if (pool->last[priority])
        pool->last[priority]->next_ready = lane;
    else
        pool->first[priority] = lane;
    pool->last[priority] = lane;
}

static struct host_lane *ready_take(struct host_device *pool)
{
    for (int priority = LANE_URGENT; priority >= LANE_BULK; priority--) {
        struct host_lane *lane = pool->first[priority];
        if (!lane)
            continue;
        pool->first[priority] = lane->next_ready;
        if (!pool->first[priority])
            pool->last[priority] = NULL;
        return lane;
    }
    return NULL;
}

/* Pass the fences at the front, then offer the operation behind them. Mutex held.
 * True: a fence was passed, the loop is to be woken. */
static bool lane_advance(struct host_device *pool, struct host_lane *lane)
{
    bool passed = false;
    while (lane->op_out < lane->op_in && lane->ops[lane->op_out % N_OPS].what == OP_FENCE) {
        lane->op_out++;
        atomic_fetch_add(&lane->reached, 1);
        passed = true;
    }
    if (lane->op_out == lane->op_in) {
        pthread_cond_broadcast(&pool->idle);
        return passed;
    }
    ready_put(pool, lane);
    if (lane->ops[lane->op_out % N_OPS].n_tasks > 1)
        pthread_cond_broadcast(&pool->work);
    else
        pthread_cond_signal(&pool->work);
    return passed;
}

/* Cut n items so that a small batch is shared by all threads, too, and none has much to do when the others are done. */
static void op_cut(struct host_op *op, size_t n, unsigned n_threads)
{
    size_t parts = n_threads * THREAD_TASKS, most = parts ? (n + parts - 1) / parts : n;
    op->n_items = n;
    op->task_items = most < TASK_ITEMS ? most : TASK_ITEMS;
    op->n_tasks = (n + op->task_items - 1) / op->task_items;
}

static size_t task_end(const struct host_op *op, size_t begin)
{
    return begin + op->task_items < op->n_items ? begin + op->task_items : op->n_items;
}

static void run_decode(const struct host_lane *lane, const struct host_op *op, size_t task)
{
    size_t begin = task * op->task_items, end = task_end(op, begin);
    for (size_t i = begin; i < end; i++) {
        const struct decode_job *job = &lane->jobs[(op->first_job + i) % LANE_MAX_JOBS];
        op->status[i] = decode_frame(job, &op->shape, NULL);
    }
}

static void run_work(const struct host_op *op, size_t task)
{
    size_t begin = task * op->task_items;
    work_run(&op->work, begin, task_end(op, begin));
}

static void run_copy(const struct host_op *op, size_t task)
{
    size_t begin = task * TASK_BYTES;
    size_t n = op->bytes - begin < TASK_BYTES ? op->bytes - begin : TASK_BYTES;
    memcpy(op->dst + begin, op->src + begin, n);
}

/* Run one task, if there is one to run. Mutex held on entry and exit, not between. */
static bool pool_step(struct host_device *pool)
{
    struct host_lane *lane = ready_take(pool);
    if (!lane)
        return false;
    struct host_op *op = &lane->ops[lane->op_out % N_OPS];
    size_t task = op->started++;
    if (op->started < op->n_tasks)
        ready_put(pool, lane);
    pthread_mutex_unlock(&pool->mutex);
    if (op->what == OP_DECODE)
        run_decode(lane, op, task);
    else if (op->what == OP_RUN)
        run_work(op, task);
    else
        run_copy(op, task);
    pthread_mutex_lock(&pool->mutex);
    bool passed = false;
    if (++op->done == op->n_tasks) {
        lane->op_out++;
        passed = lane_advance(pool, lane);
    }
    if (passed)
        device_wake(&pool->head);
    return true;
}

static void *pool_run(void *data)
{
    struct host_device *pool = data;
    pthread_mutex_lock(&pool->mutex);
    for (;;) {
        if (pool_step(pool))
            continue;
        if (pool->stopping)
            break;
        pthread_cond_wait(&pool->work, &pool->mutex);
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

/* ---- lanes --------------------------------------------------------------------------------------- */

static int host_lane_open(struct lane **out, struct device *device, enum lane_priority priority,
                          struct stow_error *err)
{
    (void)device, (void)priority;
    struct host_lane *lane = calloc(1, sizeof(*lane));
    if (lane)
        lane->jobs = malloc(LANE_MAX_JOBS * sizeof(lane->jobs[0]));
    if (!lane || !lane->jobs) {
        free(lane);
        return error_set(err, STOW_NOMEM, "no memory for a lane");
    }
    *out = &lane->head;
    return 0;
}

static void host_lane_drain(struct lane *head)
{
    struct host_lane *lane = (struct host_lane *)head;
    struct host_device *pool = pool_of(lane);
    pthread_mutex_lock(&pool->mutex);
    while (lane->op_in != lane->op_out) {
        if (pool->n_threads)
            pthread_cond_wait(&pool->idle, &pool->mutex);
        else
            pool_step(pool);
    }
    pthread_mutex_unlock(&pool->mutex);
}

static void host_lane_close(struct lane *head)
{
    struct host_lane *lane = (struct host_lane *)head;
    free(lane->jobs);
    free(lane);
}

static void lane_put(struct host_lane *lane, const struct host_op *op)
{
    struct host_device *pool = pool_of(lane);
    pthread_mutex_lock(&pool->mutex);
    lane->ops[lane->op_in++ % N_OPS] = *op;
    bool passed = lane->op_in - lane->op_out == 1 && lane_advance(pool, lane);
    pthread_mutex_unlock(&pool->mutex);
    if (passed || (op->what == OP_FENCE && !pool->n_threads))
        device_wake(&pool->head);
}

static int host_copy(struct lane *lane, uint64_t dst, uint64_t src, size_t bytes)
{
    struct host_op op = {.what = OP_COPY,
                         .n_tasks = (bytes + TASK_BYTES - 1) / TASK_BYTES,
                         .dst = (uint8_t *)(uintptr_t)dst,
                         .src = (const uint8_t *)(uintptr_t)src,
                         .bytes = bytes};
    lane_put((struct host_lane *)lane, &op);
    return 0;
}

static int host_decode(struct lane *head, int32_t *status, const struct decode_job *jobs, size_t n,
                       const struct frame_shape *shape)
{
    struct host_lane *lane = (struct host_lane *)head;
    struct host_op op = {
        .what = OP_DECODE, .status = status, .first_job = lane->job_in, .shape = *shape};
    op_cut(&op, n, pool_of(lane)->n_threads);
    size_t at = lane->job_in % LANE_MAX_JOBS;
    size_t to_end = n < LANE_MAX_JOBS - at ? n : LANE_MAX_JOBS - at;
    memcpy(lane->jobs + at, jobs, to_end * sizeof(jobs[0]));
    memcpy(lane->jobs, jobs + to_end, (n - to_end) * sizeof(jobs[0]));
    lane->job_in += n;
    lane_put(lane, &op);
    return 0;
}

static int host_run(struct lane *head, const struct work *work)
{
    struct host_lane *lane = (struct host_lane *)head;
    struct host_op op = {.what = OP_RUN, .work = *work};
    op_cut(&op, work->n, pool_of(lane)->n_threads);
    lane_put(lane, &op);
    return 0;
}

static int host_fence(struct lane *lane)
{
    struct host_op op = {.what = OP_FENCE};
    lane_put((struct host_lane *)lane, &op);
    return 0;
}

static uint64_t host_reached(struct lane *head)
{
    struct host_lane *lane = (struct host_lane *)head;
    struct host_device *pool = pool_of(lane);
    if (!pool->n_threads) {
        pthread_mutex_lock(&pool->mutex);
        while (pool_step(pool))
            ;
        pthread_mutex_unlock(&pool->mutex);
    }
    return atomic_load(&lane->reached);
}

static bool host_ready(struct lane *head)
{
    struct host_lane *lane = (struct host_lane *)head;
    return atomic_load(&lane->reached) > atomic_load(&head->fences_out);
}

/* ---- open and close ------------------------------------------------------------------------------ */

static void host_close(struct device *device)
{
    struct host_device *pool = (struct host_device *)device;
    pthread_mutex_lock(&pool->mutex);
    pool->stopping = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->mutex);
    for (unsigned i = 0; i < pool->n_threads; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->idle);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->mutex);
    free(pool->threads);
    free(pool);
}

static void describe(struct device_info *info)
{
    char line[256];
    *info = (struct device_info){
        .name = "host", .model = "CPU", .total_bytes = total_bytes(), .kinds = MEMORY_HOST_FD};
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (!file)
        return;
    while (fgets(line, sizeof(line), file)) {
        if (sscanf(line, "model name : %63[^\n]", info->model) == 1)
            break;
    }
    fclose(file);
}

static int host_open(struct device **out, int index, const struct device_options *options,
                     struct stow_error *err)
{
    (void)index;
    struct host_device *pool = calloc(1, sizeof(*pool));
    pthread_t *threads = calloc(options->threads + 1, sizeof(threads[0]));
    if (!pool || !threads) {
        free(pool);
        free(threads);
        return error_set(err, STOW_NOMEM, "no memory for a pool of %u threads", options->threads);
    }
    pool->threads = threads;
    pool->head.ops = &host_ops;
    pool->head.options = *options;
    pool->head.inline_work = options->threads == 0;
    describe(&pool->head.info);
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->idle, NULL);
    for (; pool->n_threads < options->threads; pool->n_threads++) {
        int rc = device_thread(&threads[pool->n_threads], "stow-pool", pool_run, pool, err);
        if (rc) {
            host_close(&pool->head);
            return rc;
        }
    }
    *out = &pool->head;
    return 0;
}

const struct device_ops host_ops = {
    .polled = false,
    .open = host_open,
    .close = host_close,
    .alloc = host_alloc,
    .free = host_free,
    .lane_open = host_lane_open,
    .lane_drain = host_lane_drain,
    .lane_close = host_lane_close,
    .copy = host_copy,
    .decode = host_decode,
    .run = host_run,
    .fence = host_fence,
    .reached = host_reached,
    .ready = host_ready,
};
