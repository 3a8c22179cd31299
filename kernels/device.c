/* SPDX-License-Identifier: Apache-2.0
 *
 * device: what both backends have in common: requests, fences, bounds, and the two threads.
 *
 * An allocation goes from the loop to the service thread (asked) and back (answered); a fence waits in
 * its lane, first in, first out, until the backend says that it is passed. device_poll collects both and
 * runs the callbacks. A lost device passes every fence and answers every request with STOW_DEVICE.
 *
 * The completion thread exists for a backend that cannot wake the loop itself. It sleeps until the loop
 * says that it is about to sleep (device_arm), looks at the oldest fence of every lane until one is
 * passed, wakes the loop and sleeps again. */
#include "device_ops.h"

#include <assert.h>
#include <glob.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define LOOK_EVERY_NS 20000

static void list_put(struct request_list *list, struct device_request *request)
{
    request->next = NULL;
    if (list->last)
        list->last->next = request;
    else
        list->first = request;
    list->last = request;
    list->n++;
}

static struct device_request *list_take(struct request_list *list)
{
    struct device_request *request = list->first;
    if (!request)
        return NULL;
    list->first = request->next;
    if (!list->first)
        list->last = NULL;
    list->n--;
    return request;
}

void device_wake(struct device *device)
{
    if (device->options.wake)
        device->options.wake(device->options.wake_data);
}

void device_set_lost(struct device *device, const char *why)
{
    const char *none = NULL;
    atomic_compare_exchange_strong(&device->lost, &none, why);
}

bool device_lost(const struct device *device)
{
    return atomic_load(&device->lost) != NULL;
}

static int lost_error(const struct device *device, struct stow_error *err)
{
    return error_set(err, STOW_DEVICE, "%s is lost until the daemon is restarted: %s",
                     device->info.name, atomic_load(&device->lost));
}

const struct device_info *device_info(const struct device *device)
{
    return &device->info;
}

int device_thread(pthread_t *thread, const char *name, void *(*run)(void *), void *data,
                  struct stow_error *err)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(thread, NULL, run, data);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc)
        return error_set(err, STOW_NOMEM, "cannot start a thread: %s", strerror(rc));
    pthread_setname_np(*thread, name);
    return 0;
}

/* ---- the service thread -------------------------------------------------------------------------- */

/* The block that was made at open, for whoever asks first. */
static bool lend_staging(struct device *device, const struct device_request *request)
{
    if (request->kind != MEMORY_STAGING || device->staging_lent ||
        request->bytes > device->staging.bytes)
        return false;
    *request->memory = device->staging;
    device->staging_lent = true;
    return true;
}

static bool take_staging_back(struct device *device, const struct device_memory *memory)
{
    if (!device->staging_lent || memory->host != device->staging.host)
        return false;
    device->staging_lent = false;
    return true;
}

static void serve(struct device *device, struct device_request *request)
{
    struct device_memory *memory = request->memory;
    const struct device_ops *ops = device->ops;
    if (!request->kind) {
        if (!take_staging_back(device, memory))
            request->status = ops->free(device, memory, &request->err);
        *memory = (struct device_memory){0};
        if (device_lost(device))
            request->status = lost_error(device, &request->err);
    } else if (device_lost(device)) {
        request->status = lost_error(device, &request->err);
    } else if (!lend_staging(device, request)) {
        request->status = ops->alloc(device, memory, (enum memory_kind)request->kind,
                                     request->bytes, &request->err);
    }
}

static void *service_run(void *data)
{
    struct device *device = data;
    pthread_mutex_lock(&device->mutex);
    for (;;) {
        struct device_request *request = list_take(&device->asked);
        if (request) {
            pthread_mutex_unlock(&device->mutex);
            serve(device, request);
            pthread_mutex_lock(&device->mutex);
            list_put(&device->answered, request);
            device_wake(device);
        } else if (device->stopping) {
            break;
        } else {
            pthread_cond_wait(&device->asked_cond, &device->mutex);
        }
    }
    pthread_mutex_unlock(&device->mutex);
    return NULL;
}

static void ask(struct device *device, struct device_request *request)
{
    request->status = 0;
    request->err.code = 0;
    request->err.text[0] = '\0';
    device->n_pending++;
    pthread_mutex_lock(&device->mutex);
    list_put(&device->asked, request);
    pthread_cond_signal(&device->asked_cond);
    pthread_mutex_unlock(&device->mutex);
    if (device->inline_work)
        device_wake(device);
}

void device_alloc(struct device *device, struct device_memory *memory, enum memory_kind kind,
                  size_t bytes, struct device_request *request)
{
    request->memory = memory;
    request->kind = kind;
    request->bytes = bytes;
    ask(device, request);
}

void device_free(struct device *device, struct device_memory *memory,
                 struct device_request *request)
{
    request->memory = memory;
    request->kind = 0;
    ask(device, request);
}

/* ---- the completion thread ----------------------------------------------------------------------- */

/* Whether the loop should poll; *under_way: whether there is anything to look for. */
static bool any_ready(struct device *device, bool *under_way)
{
    *under_way = false;
    for (struct lane *lane = device->lanes; lane; lane = lane->next) {
        if (atomic_load(&lane->fences_in) == atomic_load(&lane->fences_out))
            continue;
        *under_way = true;
        if (device_lost(device) || device->ops->ready(lane))
            return true;
    }
    return false;
}

static void *completion_run(void *data)
{
    struct device *device = data;
    const struct timespec pause = {.tv_nsec = LOOK_EVERY_NS};
    prctl(PR_SET_TIMERSLACK, 1000ul); /* or the pause is 50 us longer */
    pthread_mutex_lock(&device->lanes_mutex);
    while (!device->completion_stopping) {
        bool under_way;
        if (!device->armed) {
            pthread_cond_wait(&device->armed_cond, &device->lanes_mutex);
        } else if (any_ready(device, &under_way)) {
            device->armed = false;
            device_wake(device);
        } else if (!under_way) {
            device->armed = false;
        } else {
            pthread_mutex_unlock(&device->lanes_mutex);
            nanosleep(&pause, NULL);
            pthread_mutex_lock(&device->lanes_mutex);
        }
    }
    pthread_mutex_unlock(&device->lanes_mutex);
    return NULL;
}

void device_arm(struct device *device)
{
    if (!device->has_completion)
        return;
    pthread_mutex_lock(&device->lanes_mutex);
    device->armed = true;
    pthread_cond_signal(&device->armed_cond);
    pthread_mutex_unlock(&device->lanes_mutex);
}

/* ---- lanes --------------------------------------------------------------------------------------- */

int lane_open(struct lane **out, struct device *device, enum lane_priority priority,
              struct stow_error *err)
{
    if (device_lost(device))
        return lost_error(device, err);
    struct lane *lane;
    int rc = device->ops->lane_open(&lane, device, priority, err);
    if (rc)
        return rc;
    lane->device = device;
    lane->priority = priority;
    pthread_mutex_lock(&device->lanes_mutex);
    struct lane **at = &device->lanes;
    while (priority == LANE_BULK && *at)
        at = &(*at)->next;
    lane->next = *at;
    *at = lane;
    pthread_mutex_unlock(&device->lanes_mutex);
    *out = lane;
    return 0;
}

/* Take what is done off the lane; the callbacks run later. */
static void lane_reap(struct lane *lane)
{
    struct device *device = lane->device;
    uint64_t out = lane->fences_out, in = lane->fences_in;
    if (in == out)
        return;
    uint64_t reached = device_lost(device) ? in : device->ops->reached(lane);
    for (bool lost = device_lost(device); out < (lost ? in : reached); out++) {
        struct lane_fence *fence = &lane->fences[out % LANE_MAX_FENCES];
        lane->ops_out = fence->ops;
        lane->jobs_out = fence->jobs;
        if (lost)
            fence->request->status = lost_error(device, &fence->request->err);
        list_put(&device->ready, fence->request);
        lane->fences_out = out + 1;
    }
}

void lane_close(struct lane *lane)
{
    struct device *device = lane->device;
    device->ops->lane_drain(lane);
    lane_reap(lane);
    pthread_mutex_lock(&device->lanes_mutex);
    struct lane **at = &device->lanes;
    while (*at != lane)
        at = &(*at)->next;
    *at = lane->next;
    pthread_mutex_unlock(&device->lanes_mutex);
    device->ops->lane_close(lane);
    if (device->ready.n)
        device_wake(device);
}

/* Whether n_jobs more may be enqueued, as one operation. */
static int lane_admit(const struct lane *lane, size_t n_jobs)
{
    if (device_lost(lane->device))
        return STOW_DEVICE;
    if (n_jobs > LANE_MAX_JOBS)
        return STOW_INVALID;
    if (lane->ops_in - lane->ops_out >= LANE_MAX_OPS ||
        lane->jobs_in - lane->jobs_out + n_jobs > LANE_MAX_JOBS)
        return STOW_BUSY;
    return 0;
}

static int lane_copy(struct lane *lane, uint64_t dst, uint64_t src, size_t bytes)
{
    int rc = lane_admit(lane, 0);
    if (rc || !bytes)
        return rc;
    rc = lane->device->ops->copy(lane, dst, src, bytes);
    if (!rc)
        lane->ops_in++;
    return rc;
}

int lane_upload(struct lane *lane, uint64_t dst_dev, const void *src, size_t bytes)
{
    return lane_copy(lane, dst_dev, (uintptr_t)src, bytes);
}

int lane_download(struct lane *lane, void *dst, uint64_t src_dev, size_t bytes)
{
    return lane_copy(lane, (uintptr_t)dst, src_dev, bytes);
}

int lane_decode(struct lane *lane, int32_t *status, const struct decode_job *jobs, size_t n,
                const struct frame_shape *shape)
{
    int rc = lane_admit(lane, n);
    if (rc || !n)
        return rc;
    rc = lane->device->ops->decode(lane, status, jobs, n, shape);
    if (!rc) {
        lane->ops_in++;
        lane->jobs_in += n;
    }
    return rc;
}

int lane_run(struct lane *lane, const struct work *work)
{
    int rc = lane_admit(lane, 0);
    if (rc || !work->n)
        return rc;
    rc = lane->device->ops->run(lane, work);
    if (!rc)
        lane->ops_in++;
    return rc;
}

int lane_fence(struct lane *lane, struct device_request *request)
{
    struct device *device = lane->device;
    uint64_t in = lane->fences_in;
    if (device_lost(device))
        return STOW_DEVICE;
    if (in - lane->fences_out >= LANE_MAX_FENCES)
        return STOW_BUSY;
    request->status = 0;
    request->err.code = 0;
    request->err.text[0] = '\0';
    lane->fences[in % LANE_MAX_FENCES] =
        (struct lane_fence){.request = request, .ops = lane->ops_in, .jobs = lane->jobs_in};
    int rc = device->ops->fence(lane);
    if (rc)
        return rc;
    lane->fences_in = in + 1;
    device->n_pending++;
    return 0;
}

size_t device_poll(struct device *device)
{
    struct device_request *request;
    pthread_mutex_lock(&device->mutex);
    while (device->inline_work && (request = list_take(&device->asked))) {
        serve(device, request);
        list_put(&device->answered, request);
    }
    while ((request = list_take(&device->answered)))
        list_put(&device->ready, request);
    pthread_mutex_unlock(&device->mutex);
    for (struct lane *lane = device->lanes; lane; lane = lane->next)
        lane_reap(lane);
    /* What the callbacks themselves finish waits for the next poll. */
    for (size_t n = device->ready.n; n > 0 && (request = list_take(&device->ready)); n--) {
        device->n_pending--;
        request->done(request);
    }
    return device->n_pending;
}

/* ---- open and close ------------------------------------------------------------------------------ */

static int make_staging(struct device *device, struct stow_error *err)
{
    size_t bytes = device->options.staging_bytes;
    struct stow_error remark = {0};
    if (!bytes)
        return 0;
    int rc = device->ops->alloc(device, &device->staging, MEMORY_STAGING, bytes, &remark);
    if (rc)
        return error_set(err, rc, "staging: %s", remark.text);
    if (remark.text[0] && !device->info.kinds_note[0])
        snprintf(device->info.kinds_note, sizeof(device->info.kinds_note), "%.127s", remark.text);
    return 0;
}

static int start(struct device *device, struct stow_error *err)
{
    pthread_mutex_init(&device->mutex, NULL);
    pthread_cond_init(&device->asked_cond, NULL);
    pthread_mutex_init(&device->lanes_mutex, NULL);
    pthread_cond_init(&device->armed_cond, NULL);
    int rc = make_staging(device, err);
    if (!rc && !device->inline_work) {
        rc = device_thread(&device->service, "stow-service", service_run, device, err);
        device->has_service = !rc;
    }
    if (!rc && device->ops->polled && device->options.wake) {
        rc = device_thread(&device->completion, "stow-fences", completion_run, device, err);
        device->has_completion = !rc;
    }
    return rc;
}

static void stop_service(struct device *device)
{
    if (!device->has_service)
        return;
    pthread_mutex_lock(&device->mutex);
    device->stopping = true;
    pthread_cond_signal(&device->asked_cond);
    pthread_mutex_unlock(&device->mutex);
    pthread_join(device->service, NULL);
    device->has_service = false;
}

static void stop_completion(struct device *device)
{
    if (!device->has_completion)
        return;
    pthread_mutex_lock(&device->lanes_mutex);
    device->completion_stopping = true;
    pthread_cond_signal(&device->armed_cond);
    pthread_mutex_unlock(&device->lanes_mutex);
    pthread_join(device->completion, NULL);
    device->has_completion = false;
}

void device_close(struct device *device)
{
    assert(!device->lanes);
    stop_service(device);
    stop_completion(device);
    device->inline_work = true; /* a free that was asked for last still gets its callback */
    while (device->n_pending)
        device_poll(device);
    if (device->staging.host)
        device->ops->free(device, &device->staging, NULL);
    pthread_cond_destroy(&device->armed_cond);
    pthread_mutex_destroy(&device->lanes_mutex);
    pthread_cond_destroy(&device->asked_cond);
    pthread_mutex_destroy(&device->mutex);
    device->ops->close(device);
}

/* ---- which device -------------------------------------------------------------------------------- */

static bool file_begins(const char *path, const char *with)
{
    char text[16] = "";
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    bool same = fgets(text, sizeof(text), file) && !strncmp(text, with, strlen(with));
    fclose(file);
    return same;
}

/* A display device (class 03) of NVIDIA's, whether or not its driver works; or the driver's own node. */
static bool machine_has_nvidia(void)
{
    glob_t found;
    if (access("/dev/nvidiactl", F_OK) == 0)
        return true;
    if (glob("/sys/bus/pci/devices/*/vendor", 0, NULL, &found))
        return false;
    bool has = false;
    for (size_t i = 0; i < found.gl_pathc && !has; i++) {
        char path[512];
        int folder = (int)(strlen(found.gl_pathv[i]) - strlen("vendor"));
        snprintf(path, sizeof(path), "%.*sclass", folder, found.gl_pathv[i]);
        has = file_begins(found.gl_pathv[i], "0x10de") && file_begins(path, "0x03");
    }
    globfree(&found);
    return has;
}

static int open_cuda(struct device **device, int index, const struct device_options *options,
                     struct stow_error *err)
{
#if STOW_WITH_CUDA
    return cuda_ops.open(device, index, options, err);
#else
    (void)device, (void)index, (void)options;
    return error_set(err, STOW_DEVICE,
                     "%s, but this program was built without CUDA: "
                     "build it where nvcc is installed, or choose the device host",
                     index < 0 ? "this machine has an NVIDIA GPU" : "a GPU was asked for");
#endif
}

static int open_named(struct device **device, const char *name,
                      const struct device_options *options, struct stow_error *err)
{
    if (!strcmp(name, "host"))
        return host_ops.open(device, 0, options, err);
    if (!strcmp(name, "auto"))
        return machine_has_nvidia() ? open_cuda(device, -1, options, err)
                                    : host_ops.open(device, 0, options, err);
    size_t digits = strncmp(name, "cuda:", 5) ? 0 : strspn(name + 5, "0123456789");
    if (digits < 1 || digits > 3 || name[5 + digits])
        return error_set(err, STOW_INVALID,
                         "no device is called \"%.40s\": it is auto, host, or cuda:N", name);
    return open_cuda(device, atoi(name + 5), options, err);
}

int device_open(struct device **out, const char *name, const struct device_options *options,
                struct stow_error *err)
{
    struct device *device;
    int rc = open_named(&device, name, options, err);
    if (rc)
        return rc;
    rc = start(device, err);
    if (rc) {
        device_close(device);
        return rc;
    }
    *out = device;
    return 0;
}
