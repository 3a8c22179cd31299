/* SPDX-License-Identifier: Apache-2.0
 *
 * device_test [device]: opening, memory, waking and loss of kernels/device.h, on the host with 0, 1 and 4
 * threads, or on the device named (cuda:0). */
#include "bed.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* How many bytes of a memory are not zero. */
static size_t bytes_set(struct device *device, const struct device_memory *memory)
{
    struct lane *lane;
    struct stow_error err;
    size_t set = 0;
    uint8_t *bytes = malloc(memory->bytes);
    memset(bytes, 0xff, memory->bytes);
    CHECK_INT(lane_open(&lane, device, LANE_BULK, &err), 0);
    CHECK_INT(lane_download(lane, bytes, memory->dev, memory->bytes), 0);
    CHECK_INT(fence_wait(device, lane), 0);
    lane_close(lane);
    for (size_t i = 0; i < memory->bytes; i++)
        set += bytes[i] != 0;
    free(bytes);
    return set;
}

static void test_memory(struct device *device)
{
    static const struct {
        enum memory_kind kind;
        size_t bytes;
        bool fd, host, zeroed;
    } rows[] = {
        {MEMORY_RESIDENT, 1, false, false, false},
        {MEMORY_RESIDENT, 5u << 20, false, false, false},
        {MEMORY_STAGING, 3u << 20, false, true, false},
        {MEMORY_HOST_FD, 1, true, true, true},
        {MEMORY_HOST_FD, (3u << 20) + 1, true, true, true},
        {MEMORY_CUDA_IPC, 1, false, false, true},
        {MEMORY_CUDA_FD, (2u << 20) + 1, true, false, true},
    };
    const struct device_info *info = device_info(device);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct device_memory memory = {0};
        struct stow_error err;
        bool ring = rows[i].kind <= 7;
        int want = ring && !(info->kinds & rows[i].kind) ? STOW_UNSUPPORTED : 0;
        CHECK_INT(alloc_wait(device, &memory, rows[i].kind, rows[i].bytes, &err), want);
        if (want) {
            CHECK_MSG(!memory.dev && !memory.host, "row %zu: output touched by a failure", i);
            continue;
        }
        CHECK_MSG(memory.bytes >= rows[i].bytes && memory.dev && memory.kind == rows[i].kind,
                  "row %zu", i);
        CHECK_MSG(!rows[i].fd || memory.fd >= 0, "row %zu: no descriptor", i);
        CHECK_MSG(!rows[i].fd || (fcntl(memory.fd, F_GETFD) & FD_CLOEXEC), "row %zu: not cloexec",
                  i);
        CHECK_MSG(!rows[i].host || memory.host, "row %zu: not mapped here", i);
        if (rows[i].zeroed) {
            size_t set = bytes_set(device, &memory);
            CHECK_MSG(set == 0, "row %zu: %zu bytes are not zero", i, set);
        }
        free_wait(device, &memory);
    }
}

/* What a client does with the descriptor of a ring: it sees the bytes, and cannot cut them off. */
static void test_seals(struct device *device)
{
    struct device_memory memory = {0};
    struct stow_error err;
    CHECK_INT(alloc_wait(device, &memory, MEMORY_HOST_FD, 1u << 20, &err), 0);
    uint8_t *other = mmap(NULL, memory.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd, 0);
    CHECK(other != MAP_FAILED);
    memory.host[12345] = 77;
    CHECK_INT(other[12345], 77);
    CHECK(ftruncate(memory.fd, 0) < 0 && errno == EPERM);
    CHECK(ftruncate(memory.fd, 1 << 30) < 0 && errno == EPERM);
    CHECK(fcntl(memory.fd, F_ADD_SEALS, F_SEAL_WRITE) < 0);
    struct stat st;
    CHECK(fstat(memory.fd, &st) == 0 && (size_t)st.st_size == memory.bytes);
    CHECK(st.st_blocks * 512 >= st.st_size);
    munmap(other, memory.bytes);
    free_wait(device, &memory);
}

static void test_no_room(struct device *device)
{
    static const size_t sizes[] = {(size_t)1 << 50, SIZE_MAX - 100, SIZE_MAX};
    for (size_t i = 0; i < 3; i++) {
        for (unsigned kind = 1; kind <= 16; kind *= 2) {
            struct device_memory memory = {0};
            struct stow_error err;
            int rc = alloc_wait(device, &memory, (enum memory_kind)kind, sizes[i], &err);
            CHECK_MSG(rc == STOW_NOROOM || rc == STOW_UNSUPPORTED, "kind %u: %d", kind, rc);
            CHECK_MSG(rc != STOW_NOROOM || (strstr(err.text, "needed") && strstr(err.text, "free")),
                      "no figures: %s", err.text);
            CHECK(!memory.dev && !memory.host);
        }
    }
}

/* The staging made at open is handed out, taken back, and handed out again. */
static void test_staging(struct device *device)
{
    struct device_memory a = {0}, b = {0};
    struct stow_error err;
    CHECK_INT(alloc_wait(device, &a, MEMORY_STAGING, 100, &err), 0);
    CHECK_INT(alloc_wait(device, &b, MEMORY_STAGING, 100, &err), 0);
    uint8_t *first = a.host;
    CHECK(a.bytes >= 1u << 20 && a.host != b.host);
    free_wait(device, &a);
    CHECK_INT(alloc_wait(device, &a, MEMORY_STAGING, 1u << 20, &err), 0);
    CHECK(a.host == first);
    free_wait(device, &b);
    free_wait(device, &a);
}

/* A loop that sleeps after device_arm is woken, for lane work and for allocations. */
static void test_wake(struct device *device)
{
    struct bed bed = bed_open(device, 512);
    struct decode_job jobs[512];
    int32_t status[512];
    for (size_t i = 0; i < 512; i++)
        jobs[i] = raw_job(&bed, i);
    for (int round = 0; round < 50; round++) {
        bool finished = false;
        struct device_request request = {.done = done, .data = &finished};
        unsigned before = atomic_load(&n_wakes);
        CHECK_INT(lane_decode(bed.lane, status, jobs, round % 2 ? 512 : 1, &bed_shape), 0);
        CHECK_INT(lane_fence(bed.lane, &request), 0);
        device_arm(device);
        for (int i = 0; i < 50000 && atomic_load(&n_wakes) == before; i++)
            pause_us(100);
        CHECK(atomic_load(&n_wakes) != before);
        CHECK_INT(wait_for(device, &request), 0);
    }
    unsigned before = atomic_load(&n_wakes);
    struct device_memory memory;
    bool finished = false;
    struct device_request request = {.done = done, .data = &finished};
    device_alloc(device, &memory, MEMORY_HOST_FD, 1, &request);
    for (int i = 0; i < 50000 && atomic_load(&n_wakes) == before; i++)
        pause_us(100);
    CHECK(atomic_load(&n_wakes) != before);
    CHECK_INT(wait_for(device, &request), 0);
    free_wait(device, &memory);
    bed_close(&bed);
}

/* A callback may ask for more; that is not run in the same poll. */
static struct device *chain_device;
static unsigned chain_left;

static void on_chain(struct device_request *request)
{
    if (--chain_left == 0)
        return;
    if (chain_left % 2)
        device_free(chain_device, request->data, request);
    else
        device_alloc(chain_device, request->data, MEMORY_HOST_FD, 4096, request);
}

static void test_chain(struct device *device)
{
    struct device_memory memory = {0};
    struct device_request request = {.done = on_chain, .data = &memory};
    chain_device = device;
    chain_left = 20;
    device_alloc(device, &memory, MEMORY_HOST_FD, 4096, &request);
    for (int i = 0; i < 100000 && chain_left; i++) {
        device_poll(device);
        pause_us(20);
    }
    CHECK_INT(chain_left, 0);
    CHECK(!memory.host);
}

/* A fault that the GPU's context does not survive: everything after it fails, and nothing hangs. */
static void test_lost(struct device *device)
{
    struct bed bed = bed_open(device, 1);
    int32_t status = 99;
    struct decode_job job = raw_job(&bed, 0);
    struct stow_error err;
    struct device_memory memory = {0};
    bool finished = false;
    struct device_request request = {.done = done, .data = &finished};
    job.src = 1u << 20; /* nothing is mapped there */
    CHECK_INT(lane_decode(bed.lane, &status, &job, 1, &bed_shape), 0);
    CHECK_INT(fence_wait(device, bed.lane), STOW_DEVICE);
    CHECK(device_lost(device));
    CHECK_INT(lane_decode(bed.lane, &status, &job, 1, &bed_shape), STOW_DEVICE);
    CHECK_INT(lane_fence(bed.lane, &request), STOW_DEVICE);
    CHECK_INT(alloc_wait(device, &memory, MEMORY_RESIDENT, 1, &err), STOW_DEVICE);
    printf("lost: %s\n", err.text);
    lane_close(bed.lane);
    struct device_memory *all[] = {&bed.stored, &bed.ring, &bed.staging};
    for (size_t i = 0; i < 3; i++) {
        finished = false;
        device_free(device, all[i], &request);
        CHECK_INT(wait_for(device, &request), STOW_DEVICE);
        CHECK(!all[i]->dev && !all[i]->host);
    }
}

static void test_names(void)
{
    static const char *const names[] = {"",       "gpu",     "cuda", "cuda:",     "cuda:-1",
                                        "cuda:x", "cuda:0x", "Host", "cuda:1234", "host "};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct device *device = NULL;
        struct stow_error err;
        struct device_options options = {0};
        CHECK_MSG(device_open(&device, names[i], &options, &err) == STOW_INVALID && !device,
                  "\"%s\" was taken", names[i]);
    }
}

/* A GPU that is not there, and the choice by itself: a device, or a reason. */
static void test_absent(void)
{
    static const char *const names[] = {"auto", "cuda:999"};
    for (size_t i = 0; i < 2; i++) {
        struct device *device = NULL;
        struct stow_error err = {0};
        struct device_options options = {0};
        int rc = device_open(&device, names[i], &options, &err);
        CHECK_MSG(rc == (i || rc ? STOW_DEVICE : 0), "%s: %d", names[i], rc);
        CHECK(rc ? !device && err.code == rc && err.text[0] : device != NULL);
        printf("%s: %s\n", names[i], rc ? err.text : device_info(device)->name);
        if (!rc)
            device_close(device);
    }
}

static void test_info(struct device *device)
{
    const struct device_info *info = device_info(device);
    const char *name = info->name;
    CHECK(info->total_bytes > 0 && info->model[0]);
    CHECK(info->kinds & MEMORY_HOST_FD);
    CHECK(info->is_gpu == !!strncmp(name, "host", 4));
    CHECK(!device_lost(device));
    printf("%s: %s, %llu MiB, kinds %u%s%s\n", name, info->model,
           (unsigned long long)(info->total_bytes >> 20), info->kinds,
           info->kinds_note[0] ? ", " : "", info->kinds_note);
}

static void cases(struct device *device, unsigned threads)
{
    (void)threads;
    test_info(device);
    test_memory(device);
    test_seals(device);
    test_no_room(device);
    test_staging(device);
    test_wake(device);
    test_chain(device);
    if (device_info(device)->is_gpu)
        test_lost(device);
}

int main(int argc, char **argv)
{
    test_names();
    test_absent();
    return bed_main(argc, argv, cases);
}
