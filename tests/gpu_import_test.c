/* SPDX-License-Identifier: Apache-2.0
 *
 * gpu_import_test: libclient/cuda_import.c against the memory that kernels/device_cuda.c makes.
 * A child process is the daemon: it makes one ring of each kind, fills it, sends what a daemon
 * sends, and waits; this process maps, reads back, and gives back after a CUDA stream. */
#include "cuda_import.h"

#include "bed.h"
#include "wire.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define RING_BYTES (5u << 20)

struct offer {
    uint8_t uuid[16];
    uint8_t handle[64];
    uint64_t bytes;
    uint32_t kind;
};

static void fill(struct device *device, struct device_memory *ring,
                 const struct device_memory *staging)
{
    struct lane *lane;
    struct stow_error err;
    for (size_t i = 0; i < RING_BYTES; i++)
        staging->host[i] = (uint8_t)(i * 7 + ring->kind);
    CHECK_INT(lane_open(&lane, device, LANE_BULK, &err), 0);
    CHECK_INT(lane_upload(lane, ring->dev, staging->host, RING_BYTES), 0);
    CHECK_INT(fence_wait(device, lane), 0);
    lane_close(lane);
}

/* The child: offers both rings, then waits until the other end is closed. */
static int be_daemon(struct wire *wire)
{
    static const enum memory_kind kinds[] = {MEMORY_CUDA_IPC, MEMORY_CUDA_FD};
    struct device *device;
    struct stow_error err;
    struct device_options options = {.wake = wake, .staging_bytes = BED_STAGING_BYTES};
    struct device_memory rings[2] = {{0}, {0}}, staging = {0};
    if (device_open(&device, "cuda:0", &options, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return TEST_SKIP;
    }
    CHECK_INT(alloc_wait(device, &staging, MEMORY_STAGING, RING_BYTES, &err), 0);
    for (int i = 0; i < 2; i++) {
        struct offer offer = {.kind = kinds[i]};
        CHECK_INT(alloc_wait(device, &rings[i], kinds[i], RING_BYTES, &err), 0);
        fill(device, &rings[i], &staging);
        memcpy(offer.uuid, device_info(device)->uuid, sizeof(offer.uuid));
        memcpy(offer.handle, rings[i].handle, sizeof(offer.handle));
        offer.bytes = rings[i].bytes;
        CHECK_INT(wire_send(wire, (const uint8_t *)&offer, sizeof(offer), &rings[i].fd,
                            kinds[i] == MEMORY_CUDA_FD, &err),
                  0);
        CHECK_INT(wire_flush(wire, &err), 0);
    }
    struct pollfd p = {.fd = wire_fd(wire), .events = POLLIN};
    poll(&p, 1, 60000);
    free_wait(device, &rings[0]);
    free_wait(device, &rings[1]);
    free_wait(device, &staging);
    device_close(device);
    return test_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* The next offer and its descriptor (-1: none); false: the child has none. */
static bool next_offer(struct wire *wire, struct offer *offer, int *fd)
{
    struct wire_message message;
    int rc;
    while ((rc = wire_next(wire, &message, NULL)) == 0) {
        struct pollfd p = {.fd = wire_fd(wire), .events = POLLIN};
        poll(&p, 1, 60000);
        if (wire_read(wire, NULL) < 0)
            return false;
    }
    if (rc < 0 || message.bytes != sizeof(*offer))
        return false;
    memcpy(offer, message.body, sizeof(*offer));
    *fd = message.n_fds ? message.fds[0] : -1;
    if (message.n_fds)
        message.fds[0] = -1;
    return true;
}

static void count(void *data)
{
    atomic_fetch_add((atomic_uint *)data, 1);
}

static void test_ring(const struct offer *offer, int fd)
{
    struct cuda_map *map = NULL;
    struct stow_error err = {0};
    bool ipc = offer->kind == MEMORY_CUDA_IPC;
    uint8_t uuids[64][16], other[16] = {1, 2, 3};
    size_t n = cuda_gpus(uuids, 64, &err), seen = 0;
    for (size_t i = 0; i < n; i++)
        seen += memcmp(uuids[i], offer->uuid, 16) == 0;
    CHECK_MSG(seen == 1, "the GPU is seen %zu times among %zu: %s", seen, n, err.text);
    CHECK_INT(cuda_map_open(&map, other, ipc ? offer->handle : NULL, fd, offer->bytes, &err),
              STOW_DEVICE);
    CHECK(!map && strstr(err.text, "not visible"));
    CHECK_INT(cuda_map_open(&map, offer->uuid, ipc ? offer->handle : NULL, fd, offer->bytes, &err),
              0);
    if (!map) {
        fprintf(stderr, "kind %u: %s\n", offer->kind, err.text);
        return;
    }
    uint8_t *copy = calloc(1, RING_BYTES);
    size_t wrong = 0;
    CHECK_INT(cuda_map_read(map, copy, cuda_map_data(map), RING_BYTES, &err), 0);
    for (size_t i = 0; i < RING_BYTES; i++)
        wrong += copy[i] != (uint8_t)(i * 7 + offer->kind);
    CHECK_MSG(wrong == 0, "kind %u: %zu bytes differ", offer->kind, wrong);
    memset(copy, 0, 16);
    CHECK_INT(cuda_map_read(map, copy, (uint8_t *)cuda_map_data(map) + 1000, 16, &err), 0);
    CHECK(copy[15] == (uint8_t)(1015 * 7 + offer->kind));
    free(copy);
    cuda_map_close(map);
}

/* What is to run after a CUDA stream runs once, from a thread of the driver. */
static void test_after(const struct offer *offer, int fd)
{
    struct cuda_map *map = NULL;
    struct stow_error err = {0};
    atomic_uint calls = 0;
    CHECK_INT(cuda_map_open(&map, offer->uuid, NULL, fd, offer->bytes, &err), 0);
    if (!map)
        return;
    CHECK_INT(cuda_after(cuda_map_stream(map), count, &calls, &err), 0);
    cuda_wait(cuda_map_stream(map));
    CHECK_INT(atomic_load(&calls), 1);
    cuda_map_close(map);
}

int main(void)
{
    int ends[2], fd, status = 0;
    struct offer offer;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
        return EXIT_FAILURE;
    pid_t child = fork(); /* before CUDA is touched */
    struct wire *wire = wire_new(ends[child == 0]);
    close(ends[child != 0]);
    if (child == 0)
        _exit(be_daemon(wire));
    for (int i = 0; i < 2 && next_offer(wire, &offer, &fd); i++) {
        test_ring(&offer, fd);
        if (fd >= 0)
            test_after(&offer, fd);
        if (fd >= 0)
            close(fd);
    }
    wire_free(wire);
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == TEST_SKIP) {
        printf("skipped: no cuda:0 here\n");
        return TEST_SKIP;
    }
    CHECK_INT(status, 0);
    CHECK(test_passed > 10);
    return test_end();
}
