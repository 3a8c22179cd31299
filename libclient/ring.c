/* SPDX-License-Identifier: Apache-2.0 */
#include "ring.h"
#include "cuda_import.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_INLINE_IDS 2048u
#define MAX_GPUS 64
#define CUDA_HANDLE_BYTES 64u

_Static_assert(STOW__MEMORY_KIND__HOST_FD == 1 << (STOW_HOST_FD - 1) &&
                   STOW__MEMORY_KIND__CUDA_IPC == 1 << (STOW_CUDA_IPC - 1) &&
                   STOW__MEMORY_KIND__CUDA_FD == 1 << (STOW_CUDA_FD - 1),
               "a kind on the wire is a bit of the mask");

#define CUDA_KINDS (STOW__MEMORY_KIND__CUDA_IPC | STOW__MEMORY_KIND__CUDA_FD)

uint32_t ring_memory_mask(bool cuda)
{
    return STOW__MEMORY_KIND__HOST_FD | (cuda ? CUDA_KINDS : 0u);
}

void ring_kind_names(uint32_t mask, char *text, size_t room)
{
    static const char *const names[] = {"host-fd", "cuda-ipc", "cuda-fd"};
    size_t used = 0;
    text[0] = 0;
    for (unsigned i = 0; i < 3 && used < room; i++) {
        if (mask & 1u << i)
            used += (size_t)snprintf(text + used, room - used, "%s%s", used ? "," : "", names[i]);
    }
}

/* ---- what to ask for ------------------------------------------------------------------------- */

/* Whether GPU i of the daemon is the one that the acquisition lies on. */
static bool lies_on(struct stow_client *client, const char *name, size_t i)
{
    struct stow_info *info;
    if (stow_info(client, name, &info)) /* opening the stream will say the same, better */
        return false;
    bool same = strcmp(info->device, client->hello.reply->hello->devices[i]->name) == 0;
    stow_info_free(info);
    return same;
}

/* The GPU that both ends see: the daemon's that the acquisition lies on, else this process's
 * first. */
static bool common_gpu(struct stow_client *client, const char *name, struct ring_wish *wish,
                       struct stow_error *why)
{
    uint8_t mine[MAX_GPUS][16];
    const Stow__HelloReply *hello = client->hello.reply->hello;
    size_t n_mine = cuda_gpus(mine, MAX_GPUS, why);
    bool decided = false;
    for (size_t m = 0; m < n_mine; m++) {
        for (size_t d = 0; d < hello->n_devices && !decided; d++) {
            const ProtobufCBinaryData *theirs = &hello->devices[d]->uuid;
            if (theirs->len != sizeof(mine[m]) ||
                memcmp(theirs->data, mine[m], sizeof(mine[m])) != 0)
                continue;
            decided = hello->n_devices == 1 || lies_on(client, name, d);
            if (decided || !wish->has_gpu)
                memcpy(wish->uuid, mine[m], sizeof(mine[m]));
            wish->has_gpu = true;
        }
    }
    if (n_mine && !wish->has_gpu)
        error_set(why, STOW_DEVICE,
                  "none of the daemon's devices (%s) is a GPU that this process sees; look at"
                  " CUDA_VISIBLE_DEVICES",
                  client->daemon_devices);
    return wish->has_gpu;
}

int ring_choose(struct stow_client *client, const char *name, enum stow_memory memory,
                struct ring_wish *wish)
{
    *wish = (struct ring_wish){.kinds = STOW__MEMORY_KIND__HOST_FD};
    struct stow_error why = {.code = 0};
    switch (memory) {
    case STOW_HOST_FD: return 0;
    case STOW_MEMORY_AUTO:
        if (common_gpu(client, name, wish, &why))
            wish->kinds |= CUDA_KINDS;
        return 0;
    case STOW_CUDA_IPC:
    case STOW_CUDA_FD:
        if (!common_gpu(client, name, wish, &why))
            return error_set(&client->error, STOW_DEVICE, "no GPU memory for this process: %s",
                             why.text);
        wish->kinds = 1u << (memory - 1);
        return 0;
    default:
        return error_set(&client->error, STOW_INVALID, "there is no kind of memory %d",
                         (int)memory);
    }
}

int ring_memfd(const void *data, size_t bytes, const char *what, struct stow_error *err)
{
    int fd = memfd_create("framestow request", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return error_errno(err, errno, "making %s of %zu bytes", what, bytes);
    const uint8_t *from = data;
    for (size_t done = 0; done < bytes;) {
        ssize_t put = write(fd, from + done, bytes - done);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0) {
            int rc = error_errno(err, errno, "writing %s of %zu bytes", what, bytes);
            close(fd);
            return rc;
        }
        done += (size_t)put;
    }
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
    return fd;
}

int ring_ids_open(struct ring_ids *list, const uint64_t *ids, size_t n, struct stow_error *err)
{
    *list = (struct ring_ids){.n = n, .fd = -1};
    if (n > MAX_INLINE_IDS) {
        list->fd = ring_memfd(ids, n * sizeof(ids[0]), "a list of frames", err);
        return list->fd < 0 ? list->fd : 0;
    }
    list->here = (uint64_t *)(uintptr_t)ids; /* protobuf-c does not write to it */
    list->n_here = n;
    return 0;
}

void ring_ids_close(struct ring_ids *list)
{
    if (list->fd >= 0)
        close(list->fd);
    list->fd = -1;
}

/* ---- the mapping ----------------------------------------------------------------------------- */

static int check_reply(const Stow__StreamReply *reply, size_t n_fds, struct stow_error *err)
{
    uint64_t batch_bytes, slot_bytes;
    bool ipc = reply->memory == STOW__MEMORY_KIND__CUDA_IPC;
    bool host = reply->memory == STOW__MEMORY_KIND__HOST_FD;
    if (!host && !ipc && reply->memory != STOW__MEMORY_KIND__CUDA_FD)
        return error_set(err, STOW_PROTOCOL, "a ring of an unknown kind of memory (%d)",
                         (int)reply->memory);
    if (n_fds != (ipc ? 0u : 1u) || reply->handle.len != (ipc ? CUDA_HANDLE_BYTES : 0u) ||
        reply->gpu_uuid.len != (host ? 0u : 16u))
        return error_set(err, STOW_PROTOCOL, "a ring without what is needed to map it");
    if (reply->slots == 0 || reply->batch == 0 || reply->frame_bytes == 0 ||
        reply->bytes < RING_NONCE_BYTES ||
        __builtin_mul_overflow(reply->frame_bytes, (uint64_t)reply->batch, &batch_bytes) ||
        __builtin_mul_overflow(reply->slot_stride, (uint64_t)reply->slots, &slot_bytes) ||
        batch_bytes > reply->slot_stride || slot_bytes > reply->bytes ||
        reply->bytes > SIZE_MAX / 2)
        return error_set(err, STOW_PROTOCOL,
                         "a ring of %llu bytes with %u slots of %llu for %u frames of %llu",
                         (unsigned long long)reply->bytes, reply->slots,
                         (unsigned long long)reply->slot_stride, reply->batch,
                         (unsigned long long)reply->frame_bytes);
    return 0;
}

static int map_host(struct ring *ring, int fd, struct stow_error *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return error_errno(err, errno, "looking at the ring's memory");
    if (st.st_size < 0 || (uint64_t)st.st_size < ring->bytes)
        return error_set(err, STOW_PROTOCOL, "a ring of %zu bytes in a memory of %lld", ring->bytes,
                         (long long)st.st_size);
    void *data = mmap(NULL, ring->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED)
        return error_errno(err, errno, "mapping a ring of %zu bytes", ring->bytes);
    ring->data = data;
    return 0;
}

int ring_open(struct ring *ring, const Stow__StreamReply *reply, const int *fds, size_t n_fds,
              struct stow_error *err)
{
    int rc = check_reply(reply, n_fds, err);
    if (rc)
        return rc;
    struct ring made = {.id = ring->id, .bytes = reply->bytes, .slot_stride = reply->slot_stride};
    if (reply->memory == STOW__MEMORY_KIND__HOST_FD) {
        made.memory = STOW_HOST_FD;
        rc = map_host(&made, fds[0], err);
    } else {
        bool ipc = reply->memory == STOW__MEMORY_KIND__CUDA_IPC;
        made.memory = ipc ? STOW_CUDA_IPC : STOW_CUDA_FD;
        rc = cuda_map_open(&made.cuda, reply->gpu_uuid.data, ipc ? reply->handle.data : NULL,
                           ipc ? -1 : fds[0], made.bytes, err);
        if (rc == 0)
            made.data = cuda_map_data(made.cuda);
    }
    if (rc == 0)
        *ring = made;
    return rc;
}

void ring_close(struct ring *ring)
{
    if (ring->cuda)
        cuda_map_close(ring->cuda);
    else if (ring->data)
        munmap(ring->data, ring->bytes);
    ring->cuda = NULL;
    ring->data = NULL;
}

int ring_read(struct ring *ring, void *dst, const void *src, size_t bytes, struct stow_error *err)
{
    if (ring->cuda)
        return cuda_map_read(ring->cuda, dst, src, bytes, err);
    memcpy(dst, src, bytes);
    return 0;
}
