/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_import.h"

#ifndef STOW_WITH_CUDA
#define STOW_WITH_CUDA 0
#endif

#if STOW_WITH_CUDA

#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* The driver's functions that are used, under the names that cuda.h gives to this version of
 * them. */
/* clang-format off */
#define DRIVER_FUNCTIONS(X)                                                                  \
    X(cuInit) X(cuGetErrorString) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetUuid)      \
    X(cuCtxGetCurrent) X(cuCtxGetDevice) X(cuCtxPushCurrent) X(cuCtxPopCurrent)              \
    X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(cuIpcOpenMemHandle)           \
    X(cuIpcCloseMemHandle) X(cuMemGetAddressRange) X(cuMemGetAllocationGranularity)          \
    X(cuMemImportFromShareableHandle) X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemMap) \
    X(cuMemUnmap) X(cuMemSetAccess) X(cuMemRelease) X(cuStreamCreate) X(cuStreamDestroy)     \
    X(cuStreamSynchronize) X(cuMemcpyDtoHAsync) X(cuLaunchHostFunc)
/* clang-format on */

#define IN_WORDS(name) #name
#define AS_TEXT(name) IN_WORDS(name)

static struct {
#define X(name) __typeof__(name) *p_##name;
    DRIVER_FUNCTIONS(X)
#undef X
    struct stow_error why; /* code 0: usable */
} driver;

static pthread_once_t driver_once = PTHREAD_ONCE_INIT;

struct cuda_map {
    CUcontext context;
    CUdevice device;
    CUdeviceptr at;
    CUstream stream; /* for copies, beside whatever the caller's streams do */
    size_t bytes;    /* of the mapping */
    bool retained;   /* the primary context, by this mapping */
    bool ipc;
};

static int fail(struct stow_error *err, CUresult rc, const char *what)
{
    const char *text = NULL;
    if (rc == CUDA_ERROR_OUT_OF_MEMORY)
        return error_set(err, STOW_NOMEM, "%s: the GPU is out of memory", what);
    if (driver.p_cuGetErrorString(rc, &text) != CUDA_SUCCESS || !text)
        text = "unknown error";
    return error_set(err, STOW_DEVICE, "%s: %s (CUDA error %d)", what, text, (int)rc);
}

static void driver_load(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        error_set(&driver.why, STOW_DEVICE, "there is no libcuda.so.1 here");
        return;
    }
    const char *absent = NULL;
#define X(name)                                                   \
    *(void **)(&driver.p_##name) = dlsym(library, AS_TEXT(name)); \
    if (!driver.p_##name)                                         \
        absent = AS_TEXT(name);
    DRIVER_FUNCTIONS(X)
#undef X
    if (absent) {
        error_set(&driver.why, STOW_DEVICE, "libcuda.so.1 is too old: it has no %s", absent);
        return;
    }
    CUresult rc = driver.p_cuInit(0);
    if (rc != CUDA_SUCCESS)
        fail(&driver.why, rc, "starting the CUDA driver");
}

/* Load the driver, once for this process. */
static int driver_need(struct stow_error *err)
{
    pthread_once(&driver_once, driver_load);
    if (driver.why.code && err)
        *err = driver.why;
    return driver.why.code;
}

/* ---- GPUs ------------------------------------------------------------------------------------ */

static bool current_device(CUcontext *context, CUdevice *device)
{
    return driver.p_cuCtxGetCurrent(context) == CUDA_SUCCESS && *context &&
           driver.p_cuCtxGetDevice(device) == CUDA_SUCCESS;
}

static bool uuid_of(CUdevice device, uint8_t uuid[16])
{
    CUuuid id;
    if (driver.p_cuDeviceGetUuid(&id, device) != CUDA_SUCCESS)
        return false;
    memcpy(uuid, id.bytes, 16);
    return true;
}

size_t cuda_gpus(uint8_t (*uuids)[16], size_t room, struct stow_error *why)
{
    CUcontext context = NULL;
    CUdevice first = -1, device;
    int count = 0;
    size_t n = 0;
    if (driver_need(why))
        return 0;
    CUresult rc = driver.p_cuDeviceGetCount(&count);
    if (rc != CUDA_SUCCESS) {
        fail(why, rc, "counting GPUs");
        return 0;
    }
    bool has_first = current_device(&context, &first);
    if (has_first && n < room && uuid_of(first, uuids[n]))
        n++;
    for (int i = 0; i < count && n < room; i++) {
        if (driver.p_cuDeviceGet(&device, i) == CUDA_SUCCESS && !(has_first && device == first) &&
            uuid_of(device, uuids[n]))
            n++;
    }
    if (n == 0)
        error_set(why, STOW_DEVICE, "this process sees no GPU");
    return n;
}

/* Take the GPU's primary context. One reference stays for as long as the process lives: making the
 * context costs some 150 ms, and the next stream would pay it again. */
static CUresult take_primary(CUcontext *context, CUdevice device)
{
    static atomic_uint kept; /* a bit a GPU */
    unsigned bit = (unsigned)device < 32 ? 1u << device : 0;
    CUcontext same;
    CUresult rc = driver.p_cuDevicePrimaryCtxRetain(context, device);
    if (rc == CUDA_SUCCESS && bit && !(atomic_fetch_or(&kept, bit) & bit))
        driver.p_cuDevicePrimaryCtxRetain(&same, device);
    return rc;
}

/* The context to map in: the caller's where it is on that GPU, else the primary one. */
static int find_context(struct cuda_map *map, const uint8_t uuid[16], struct stow_error *err)
{
    uint8_t have[16];
    int count = 0;
    if (current_device(&map->context, &map->device) && uuid_of(map->device, have) &&
        !memcmp(have, uuid, 16))
        return 0;
    driver.p_cuDeviceGetCount(&count);
    for (int i = 0; i < count; i++) {
        if (driver.p_cuDeviceGet(&map->device, i) != CUDA_SUCCESS || !uuid_of(map->device, have) ||
            memcmp(have, uuid, 16) != 0)
            continue;
        CUresult rc = take_primary(&map->context, map->device);
        if (rc != CUDA_SUCCESS)
            return fail(err, rc, "taking the GPU's primary context");
        map->retained = true;
        return 0;
    }
    return error_set(err, STOW_DEVICE,
                     "the GPU that holds the ring is not visible here; look at"
                     " CUDA_VISIBLE_DEVICES");
}

/* ---- mapping, with the context pushed -------------------------------------------------------- */

static int map_ipc(struct cuda_map *map, const uint8_t *bytes, struct stow_error *err)
{
    CUipcMemHandle handle;
    CUdeviceptr base = 0;
    size_t room = 0;
    memcpy(&handle, bytes, sizeof(handle));
    CUresult rc = driver.p_cuIpcOpenMemHandle(&map->at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (rc != CUDA_SUCCESS) {
        map->at = 0;
        return fail(err, rc, "opening the ring by cuda-ipc");
    }
    map->ipc = true;
    rc = driver.p_cuMemGetAddressRange(&base, &room, map->at);
    if (rc != CUDA_SUCCESS)
        return fail(err, rc, "looking at the ring");
    if (room - (size_t)(map->at - base) < map->bytes)
        return error_set(err, STOW_PROTOCOL, "a ring of %zu bytes in a memory of %zu", map->bytes,
                         room);
    return 0;
}

static int map_fd(struct cuda_map *map, int fd, struct stow_error *err)
{
    CUmemGenericAllocationHandle memory;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE,
                                             .id = map->device}};
    CUmemAccessDesc access = {.location = prop.location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    size_t unit = 0;
    CUresult rc =
        driver.p_cuMemGetAllocationGranularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (rc != CUDA_SUCCESS || unit == 0)
        return fail(err, rc, "asking how GPU memory is divided");
    map->bytes = (map->bytes + unit - 1) / unit * unit;
    rc = driver.p_cuMemImportFromShareableHandle(&memory, (void *)(uintptr_t)fd,
                                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (rc != CUDA_SUCCESS)
        return fail(err, rc, "importing the ring by cuda-fd");
    CUdeviceptr at = 0;
    rc = driver.p_cuMemAddressReserve(&at, map->bytes, 0, 0, 0);
    if (rc == CUDA_SUCCESS) {
        rc = driver.p_cuMemMap(at, map->bytes, 0, memory, 0);
        if (rc != CUDA_SUCCESS)
            driver.p_cuMemAddressFree(at, map->bytes);
        else
            map->at = at;
    }
    driver.p_cuMemRelease(memory); /* the mapping keeps it */
    if (rc == CUDA_SUCCESS)
        rc = driver.p_cuMemSetAccess(at, map->bytes, &access, 1);
    return rc == CUDA_SUCCESS ? 0 : fail(err, rc, "mapping the ring");
}

static void unmap(struct cuda_map *map)
{
    if (map->stream)
        driver.p_cuStreamDestroy(map->stream);
    if (map->at && map->ipc) {
        driver.p_cuIpcCloseMemHandle(map->at);
    } else if (map->at) {
        driver.p_cuMemUnmap(map->at, map->bytes);
        driver.p_cuMemAddressFree(map->at, map->bytes);
    }
}

int cuda_map_open(struct cuda_map **map, const uint8_t uuid[16], const uint8_t *handle, int fd,
                  size_t bytes, struct stow_error *err)
{
    CUcontext popped;
    int rc = driver_need(err);
    if (rc)
        return rc;
    struct cuda_map *made = calloc(1, sizeof(*made));
    if (!made)
        return error_set(err, STOW_NOMEM, "no memory for a mapping");
    made->bytes = bytes;
    rc = find_context(made, uuid, err);
    if (rc) {
        free(made);
        return rc;
    }
    driver.p_cuCtxPushCurrent(made->context);
    rc = handle ? map_ipc(made, handle, err) : map_fd(made, fd, err);
    CUresult cu =
        rc ? CUDA_SUCCESS : driver.p_cuStreamCreate(&made->stream, CU_STREAM_NON_BLOCKING);
    if (cu != CUDA_SUCCESS)
        rc = fail(err, cu, "making a CUDA stream");
    driver.p_cuCtxPopCurrent(&popped);
    if (rc)
        cuda_map_close(made);
    else
        *map = made;
    return rc;
}

void cuda_map_close(struct cuda_map *map)
{
    CUcontext popped;
    if (!map)
        return;
    driver.p_cuCtxPushCurrent(map->context);
    unmap(map);
    driver.p_cuCtxPopCurrent(&popped);
    if (map->retained)
        driver.p_cuDevicePrimaryCtxRelease(map->device);
    free(map);
}

void *cuda_map_data(const struct cuda_map *map)
{
    return (void *)(uintptr_t)map->at;
}

void *cuda_map_stream(const struct cuda_map *map)
{
    return map->stream;
}

int cuda_map_read(struct cuda_map *map, void *dst, const void *src_dev, size_t bytes,
                  struct stow_error *err)
{
    CUcontext popped;
    driver.p_cuCtxPushCurrent(map->context);
    CUresult rc =
        driver.p_cuMemcpyDtoHAsync(dst, (CUdeviceptr)(uintptr_t)src_dev, bytes, map->stream);
    if (rc == CUDA_SUCCESS)
        rc = driver.p_cuStreamSynchronize(map->stream);
    driver.p_cuCtxPopCurrent(&popped);
    return rc == CUDA_SUCCESS ? 0 : fail(err, rc, "copying from the GPU");
}

int cuda_after(void *cuda_stream, void (*fn)(void *data), void *data, struct stow_error *err)
{
    int rc = driver_need(err);
    if (rc)
        return rc;
    CUresult cu = driver.p_cuLaunchHostFunc((CUstream)cuda_stream, fn, data);
    return cu == CUDA_SUCCESS ? 0 : fail(err, cu, "queueing the release on a CUDA stream");
}

void cuda_wait(void *cuda_stream)
{
    if (driver_need(NULL) == 0)
        driver.p_cuStreamSynchronize((CUstream)cuda_stream);
}

#else

static int without(struct stow_error *err)
{
    return error_set(err, STOW_DEVICE, "libframestow was built without CUDA");
}

size_t cuda_gpus(uint8_t (*uuids)[16], size_t room, struct stow_error *why)
{
    (void)uuids;
    (void)room;
    without(why);
    return 0;
}

int cuda_map_open(struct cuda_map **map, const uint8_t uuid[16], const uint8_t *handle, int fd,
                  size_t bytes, struct stow_error *err)
{
    (void)map;
    (void)uuid;
    (void)handle;
    (void)fd;
    (void)bytes;
    return without(err);
}

void cuda_map_close(struct cuda_map *map)
{
    (void)map;
}

void *cuda_map_data(const struct cuda_map *map)
{
    (void)map;
    return NULL;
}

void *cuda_map_stream(const struct cuda_map *map)
{
    (void)map;
    return NULL;
}

int cuda_map_read(struct cuda_map *map, void *dst, const void *src_dev, size_t bytes,
                  struct stow_error *err)
{
    (void)map;
    (void)dst;
    (void)src_dev;
    (void)bytes;
    return without(err);
}

int cuda_after(void *cuda_stream, void (*fn)(void *data), void *data, struct stow_error *err)
{
    (void)cuda_stream;
    (void)fn;
    (void)data;
    return without(err);
}

void cuda_wait(void *cuda_stream)
{
    (void)cuda_stream;
}

#endif
