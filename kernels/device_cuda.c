/* SPDX-License-Identifier: Apache-2.0
 *
 * device_cuda: one NVIDIA GPU, on its primary context.
 *
 * Residents and cuda-fd rings come from cuMemCreate, because mapping those stalls no launch; cuda-ipc
 * rings from cudaMalloc, because only that has such a handle; host memory is populated first and then
 * registered. Which kinds of ring this machine can make is found out at open, by making one of each.
 *
 * An error that the context does not survive makes the device lost; any other is that request's own. */
#include "device_cuda.h"

#include "launch.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GRANULE \
    (2u << 20) /* of cuMemCreate, of a cudaMalloc that nothing else shares, of a huge page */

/* ---- errors -------------------------------------------------------------------------------------- */

/* After these the context answers every call with the same error. */
static bool is_fatal(cudaError_t rc)
{
    switch ((int)rc) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case 226: /* cudaErrorContained, which older toolkits do not know */
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorMpsClientTerminated:
    case cudaErrorMpsRpcFailure: return true;
    default: return false;
    }
}

int cuda_checked(struct cuda_device *cuda, cudaError_t rc, const char *what, struct stow_error *err)
{
    if (rc == cudaSuccess)
        return 0;
    cudaGetLastError();
    if (is_fatal(rc))
        device_set_lost(&cuda->head, cudaGetErrorString(rc));
    return error_set(err, STOW_DEVICE, "%s: %s: %s", cuda->head.info.name, what,
                     cudaGetErrorString(rc));
}

/* The same for a call of the driver; its numbers are the runtime's. */
static int driver_checked(struct cuda_device *cuda, CUresult rc, const char *what,
                          struct stow_error *err)
{
    return cuda_checked(cuda, (cudaError_t)rc, what, err);
}

static int no_room(const struct cuda_device *cuda, size_t bytes, size_t free_bytes,
                   struct stow_error *err)
{
    return error_set(err, STOW_NOROOM, "%s: %zu MiB needed, %zu MiB free", cuda->head.info.name,
                     bytes >> 20, free_bytes >> 20);
}

/* ---- memory: on the service thread --------------------------------------------------------------- */

static int zero(struct cuda_device *cuda, uint64_t dev, size_t bytes, struct stow_error *err)
{
    cudaError_t rc = cudaMemsetAsync((void *)(uintptr_t)dev, 0, bytes, cuda->service);
    if (!rc)
        rc = cudaStreamSynchronize(cuda->service);
    return cuda_checked(cuda, rc, "zeroing memory", err);
}

/* Addresses for the allocation, which from then on keep it. */
static int vmm_map(struct cuda_device *cuda, CUdeviceptr *dev, CUmemGenericAllocationHandle handle,
                   size_t bytes, struct stow_error *err)
{
    const struct driver *driver = &cuda->driver;
    CUmemAccessDesc access = {.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = cuda->index;
    CUresult rc = driver->cuMemAddressReserve(dev, bytes, 0, 0, 0);
    if (rc)
        return driver_checked(cuda, rc, "reserving addresses", err);
    rc = driver->cuMemMap(*dev, bytes, 0, handle, 0);
    if (rc)
        goto unreserve;
    rc = driver->cuMemSetAccess(*dev, bytes, &access, 1);
    if (!rc)
        return 0;
    driver->cuMemUnmap(*dev, bytes);
unreserve:
    driver->cuMemAddressFree(*dev, bytes);
    return driver_checked(cuda, rc, "mapping memory", err);
}

static int vmm_unmap(struct cuda_device *cuda, CUdeviceptr dev, size_t bytes,
                     struct stow_error *err)
{
    CUresult rc = cuda->driver.cuMemUnmap(dev, bytes);
    if (!rc)
        rc = cuda->driver.cuMemAddressFree(dev, bytes);
    return driver_checked(cuda, rc, "unmapping memory", err);
}

static int vmm_create(struct cuda_device *cuda, CUmemGenericAllocationHandle *handle, size_t bytes,
                      size_t free_bytes, struct stow_error *err)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = cuda->index;
    if (cuda->has_fd)
        prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUresult rc = cuda->driver.cuMemCreate(handle, bytes, &prop, 0);
    if (rc == CUDA_ERROR_OUT_OF_MEMORY)
        return no_room(cuda, bytes, free_bytes, err);
    return driver_checked(cuda, rc, "cuMemCreate", err);
}

static int vmm_alloc(struct cuda_device *cuda, struct device_memory *memory, enum memory_kind kind,
                     size_t bytes, size_t free_bytes, struct stow_error *err)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr dev;
    int fd = -1;
    int rc = vmm_create(cuda, &handle, bytes, free_bytes, err);
    if (rc)
        return rc;
    rc = vmm_map(cuda, &dev, handle, bytes, err);
    if (rc)
        goto release;
    if (cuda->has_fd)
        rc = driver_checked(cuda,
                            cuda->driver.cuMemExportToShareableHandle(
                                &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                            "exporting memory", err);
    if (rc)
        goto unmap;
    if (fd >= 0)
        fcntl(fd, F_SETFD, FD_CLOEXEC);
    if (kind == MEMORY_CUDA_FD)
        rc = zero(cuda, dev, bytes, err);
    if (rc)
        goto close_fd;
    cuda->driver.cuMemRelease(handle); /* the mapping and the descriptor keep the memory */
    *memory = (struct device_memory){.dev = dev, .bytes = bytes, .fd = fd, .kind = kind};
    return 0;
close_fd:
    if (fd >= 0)
        close(fd);
unmap:
    vmm_unmap(cuda, dev, bytes, NULL);
release:
    cuda->driver.cuMemRelease(handle);
    return rc;
}

static int ipc_alloc(struct cuda_device *cuda, struct device_memory *memory, size_t bytes,
                     size_t free_bytes, struct stow_error *err)
{
    void *dev;
    cudaIpcMemHandle_t handle;
    cudaError_t rc = cudaMalloc(&dev, bytes);
    if (rc == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return no_room(cuda, bytes, free_bytes, err);
    }
    if (rc)
        return cuda_checked(cuda, rc, "cudaMalloc", err);
    int status = cuda_checked(cuda, cudaIpcGetMemHandle(&handle, dev), "cudaIpcGetMemHandle", err);
    if (!status)
        status = zero(cuda, (uintptr_t)dev, bytes, err);
    if (status) {
        cudaFree(dev);
        return status;
    }
    *memory = (struct device_memory){
        .dev = (uintptr_t)dev, .bytes = bytes, .fd = -1, .kind = MEMORY_CUDA_IPC};
    static_assert(sizeof(handle) == sizeof(memory->handle), "a handle is 64 bytes");
    memcpy(memory->handle, &handle, sizeof(handle));
    return 0;
}

/* Have the pages there before they are registered: several times faster, and it stalls no launch. */
static void populate(uint8_t *at, size_t bytes)
{
    madvise(at, bytes, MADV_HUGEPAGE);
#ifdef MADV_POPULATE_WRITE
    if (madvise(at, bytes, MADV_POPULATE_WRITE) == 0)
        return;
#endif
    for (size_t i = 0; i < bytes; i += 4096)
        ((volatile uint8_t *)at)[i] = 0;
}

/* Host memory that the GPU sees. impl is set where it is registered. Staging that cannot be is still of
 * use, only slower, and that is remarked; a ring that cannot be is none. */
static int pinned_alloc(struct cuda_device *cuda, struct device_memory *memory,
                        enum memory_kind kind, size_t bytes, struct stow_error *err)
{
    struct device_memory made;
    void *dev = NULL;
    int rc = host_memory_alloc(&made, kind, bytes, err);
    if (rc)
        return rc;
    if (kind == MEMORY_STAGING)
        populate(made.host, made.bytes);
    cudaError_t why =
        cudaHostRegister(made.host, made.bytes, cudaHostRegisterMapped | cudaHostRegisterPortable);
    if (!why) {
        made.impl = made.host;
        why = cudaHostGetDevicePointer(&dev, made.host, 0);
        made.dev = (uintptr_t)dev;
    }
    rc = cuda_checked(cuda, why, "pinning host memory (is ulimit -l too low?)", err);
    if (rc && kind == MEMORY_STAGING && !made.impl && !device_lost(&cuda->head)) {
        err->code = 0;
        rc = 0;
    }
    if (rc) {
        if (made.impl)
            cudaHostUnregister(made.host);
        host_memory_free(&made);
        return rc;
    }
    *memory = made;
    return 0;
}

static int cuda_alloc(struct device *device, struct device_memory *memory, enum memory_kind kind,
                      size_t bytes, struct stow_error *err)
{
    struct cuda_device *cuda = (struct cuda_device *)device;
    size_t free_bytes, total;
    cuda_enter(cuda);
    if (kind == MEMORY_HOST_FD || kind == MEMORY_STAGING)
        return pinned_alloc(cuda, memory, kind, bytes, err);
    if (kind != MEMORY_RESIDENT && cuda->probed && !(device->info.kinds & kind))
        return error_set(err, STOW_UNSUPPORTED, "%s: %s", device->info.name,
                         device->info.kinds_note);
    int rc = cuda_checked(cuda, cudaMemGetInfo(&free_bytes, &total), "cudaMemGetInfo", err);
    if (rc)
        return rc;
    if (bytes > free_bytes || bytes > SIZE_MAX - GRANULE)
        return no_room(cuda, bytes, free_bytes, err);
    bytes = bytes ? (bytes + GRANULE - 1) / GRANULE * GRANULE : GRANULE;
    if (kind == MEMORY_CUDA_IPC)
        return ipc_alloc(cuda, memory, bytes, free_bytes, err);
    if (kind == MEMORY_CUDA_FD && !cuda->has_fd)
        return error_set(err, STOW_UNSUPPORTED, "the driver makes no descriptors of GPU memory");
    return vmm_alloc(cuda, memory, kind, bytes, free_bytes, err);
}

static int cuda_free(struct device *device, struct device_memory *memory, struct stow_error *err)
{
    struct cuda_device *cuda = (struct cuda_device *)device;
    int rc = 0;
    cuda_enter(cuda);
    if (memory->kind == MEMORY_HOST_FD || memory->kind == MEMORY_STAGING) {
        if (memory->impl)
            rc = cuda_checked(cuda, cudaHostUnregister(memory->host), "unpinning host memory", err);
        host_memory_free(memory);
    } else if (memory->kind == MEMORY_CUDA_IPC) {
        rc = cuda_checked(cuda, cudaFree((void *)(uintptr_t)memory->dev), "cudaFree", err);
    } else {
        rc = vmm_unmap(cuda, memory->dev, memory->bytes, err);
        if (memory->fd >= 0)
            close(memory->fd);
    }
    return rc;
}

/* ---- open and close ------------------------------------------------------------------------------ */

static int describe(struct cuda_device *cuda, struct stow_error *err)
{
    struct device_info *info = &cuda->head.info;
    struct cudaDeviceProp prop;
    int driver = 0, fd = 0;
    snprintf(info->name, sizeof(info->name), "cuda:%d", cuda->index);
    int rc = cuda_checked(cuda, cudaGetDeviceProperties(&prop, cuda->index), "asking for its model",
                          err);
    if (rc)
        return rc;
    cudaDriverGetVersion(&driver);
    cuda->driver.cuDeviceGetAttribute(
        &fd, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, cuda->index);
    cuda->has_fd = fd;
    info->is_gpu = true;
    info->driver = (unsigned)driver;
    info->total_bytes = prop.totalGlobalMem;
    snprintf(info->model, sizeof(info->model), "%.63s", prop.name);
    static_assert(sizeof(info->uuid) == sizeof(prop.uuid), "a UUID is 16 bytes");
    memcpy(info->uuid, &prop.uuid, sizeof(info->uuid));
    rc = cuda_checked(cuda, launch_load_all(),
                      "loading the kernels (built for another architecture?)", err);
    if (!rc)
        rc = cuda_checked(cuda,
                          cudaDeviceGetStreamPriorityRange(&cuda->priority[LANE_BULK],
                                                           &cuda->priority[LANE_URGENT]),
                          "asking for stream priorities", err);
    if (!rc)
        rc = cuda_checked(cuda, cudaStreamCreateWithFlags(&cuda->service, cudaStreamNonBlocking),
                          "making a stream", err);
    return rc;
}

/* Try a kind of ring memory once, and note why not. */
static void probe(struct cuda_device *cuda, enum memory_kind kind, const char *name)
{
    struct device_info *info = &cuda->head.info;
    struct device_memory memory;
    struct stow_error why = {0};
    size_t used = strlen(info->kinds_note);
    if (cuda_alloc(&cuda->head, &memory, kind, 1, &why) == 0) {
        info->kinds |= kind;
        cuda_free(&cuda->head, &memory, NULL);
        return;
    }
    snprintf(info->kinds_note + used, sizeof(info->kinds_note) - used, "%s%s: %s", used ? "; " : "",
             name, why.text);
}

static void cuda_close(struct device *device)
{
    struct cuda_device *cuda = (struct cuda_device *)device;
    if (cuda->context) {
        cuda_enter(cuda);
        cuda_lanes_free(cuda);
        if (cuda->service)
            cudaStreamDestroy(cuda->service);
    }
    cuda_driver_close(cuda);
    free(cuda);
}

static int cuda_open(struct device **out, int index, const struct device_options *options,
                     struct stow_error *err)
{
    struct cuda_device *cuda = calloc(1, sizeof(*cuda));
    if (!cuda)
        return error_set(err, STOW_NOMEM, "no memory for a device");
    cuda->head.ops = &cuda_ops;
    cuda->head.options = *options;
    int rc = cuda_driver_open(cuda, index, err);
    if (!rc)
        rc = describe(cuda, err);
    if (rc) {
        cuda_close(&cuda->head);
        return rc;
    }
    probe(cuda, MEMORY_HOST_FD, "host-fd");
    probe(cuda, MEMORY_CUDA_IPC, "cuda-ipc");
    probe(cuda, MEMORY_CUDA_FD, "cuda-fd");
    cuda->probed = true;
    *out = &cuda->head;
    return 0;
}

const struct device_ops cuda_ops = {
    .polled = true,
    .open = cuda_open,
    .close = cuda_close,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .lane_open = cuda_lane_open,
    .lane_drain = cuda_lane_drain,
    .lane_close = cuda_lane_close,
    .copy = cuda_lane_copy,
    .decode = cuda_lane_decode,
    .run = cuda_lane_run,
    .fence = cuda_lane_fence,
    .reached = cuda_lane_reached,
    .ready = cuda_lane_ready,
};
