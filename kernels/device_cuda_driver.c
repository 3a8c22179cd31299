/* SPDX-License-Identifier: Apache-2.0
 *
 * device_cuda_driver: from a machine to the context of one GPU, with a sentence for each way to fail.
 *
 * The driver is found at run time, so that the program starts without one; the runtime is linked
 * statically. Once a context is current both mean the same GPU. */
#include "device_cuda.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name) /* cuda.h maps some names to others: ..._v2 */

static int driver_load(struct driver *driver, struct stow_error *err)
{
    driver->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver->library)
        return error_set(err, STOW_DEVICE,
                         "no NVIDIA driver: libcuda.so.1 not found; install the driver (in a "
                         "container: start it with GPU access)");
#define LOAD(name)                                                                       \
    *(void **)&driver->name = dlsym(driver->library, TEXT(name));                        \
    if (!driver->name)                                                                   \
        return error_set(err, STOW_DEVICE, "the NVIDIA driver is too old: it has no %s", \
                         TEXT(name));
    DRIVER_CALLS(LOAD)
    return 0;
}

/* The causes that have a remedy; any other is told in the driver's words. */
static int init_error(int rc, struct stow_error *err)
{
    int of_driver = 0, of_runtime = 0;
    if (rc == cudaErrorNoDevice)
        return error_set(err, STOW_DEVICE,
                         "the NVIDIA driver sees no GPU: none is there, or it is "
                         "hidden from this process (CUDA_VISIBLE_DEVICES, a container's settings)");
    if (rc == cudaErrorUnknown && access("/dev/nvidia-uvm", F_OK))
        return error_set(err, STOW_DEVICE,
                         "the NVIDIA driver does not start: /dev/nvidia-uvm is "
                         "missing; run nvidia-modprobe -u -c 0");
    if (rc == cudaErrorInsufficientDriver) {
        cudaDriverGetVersion(&of_driver);
        cudaRuntimeGetVersion(&of_runtime);
        return error_set(err, STOW_DEVICE,
                         "the NVIDIA driver is too old: it is for CUDA %d.%d, "
                         "this program was built with %d.%d; update the driver",
                         of_driver / 1000, of_driver % 1000 / 10, of_runtime / 1000,
                         of_runtime % 1000 / 10);
    }
    if (rc == cudaErrorSystemDriverMismatch)
        return error_set(err, STOW_DEVICE,
                         "the NVIDIA driver was updated while its kernel module "
                         "was loaded: restart the machine");
    return error_set(err, STOW_DEVICE, "the NVIDIA driver does not start: %s (%d)",
                     cudaGetErrorString((cudaError_t)rc), rc);
}

static int context_retain(struct cuda_device *cuda, int index, struct stow_error *err)
{
    CUresult rc = cuda->driver.cuDevicePrimaryCtxRetain(&cuda->context, index);
    if (rc)
        return error_set(err, STOW_DEVICE, "cuda:%d cannot be used: %s", index,
                         cudaGetErrorString((cudaError_t)rc));
    cuda->index = index;
    cuda_enter(cuda);
    return 0;
}

static void context_release(struct cuda_device *cuda)
{
    cuda->driver.cuCtxSetCurrent(NULL);
    cuda->driver.cuDevicePrimaryCtxRelease(cuda->index);
    cuda->context = NULL;
}

/* The GPU with the most free memory, of those that can be used. -1: none, and *err says why not. */
static int roomiest(struct cuda_device *cuda, int n_gpus, struct stow_error *err)
{
    int best = n_gpus == 1 ? 0 : -1;
    size_t best_free = 0, free_bytes, total;
    for (int i = 0; n_gpus > 1 && i < n_gpus; i++) {
        if (context_retain(cuda, i, err))
            continue;
        if (!cudaMemGetInfo(&free_bytes, &total) && (best < 0 || free_bytes > best_free)) {
            best = i;
            best_free = free_bytes;
        }
        context_release(cuda);
    }
    return best;
}

int cuda_driver_open(struct cuda_device *cuda, int index, struct stow_error *err)
{
    int n_gpus = 0;
    setenv("CUDA_MODULE_LOADING", "EAGER", 1); /* or a kernel's first launch waits for all others */
    int rc = driver_load(&cuda->driver, err);
    if (rc)
        return rc;
    rc = (int)cuda->driver.cuInit(0);
    if (!rc)
        rc = (int)cudaGetDeviceCount(&n_gpus);
    if (!rc && n_gpus == 0)
        rc = cudaErrorNoDevice;
    if (rc)
        return init_error(rc, err);
    if (index >= n_gpus)
        return error_set(err, STOW_DEVICE, "cuda:%d: this process sees %d GPU%s, cuda:0 to cuda:%d",
                         index, n_gpus, n_gpus == 1 ? "" : "s", n_gpus - 1);
    if (index < 0) {
        error_set(err, STOW_DEVICE, "no GPU says how much memory it has");
        index = roomiest(cuda, n_gpus, err);
    }
    return index < 0 ? STOW_DEVICE : context_retain(cuda, index, err);
}

void cuda_driver_close(struct cuda_device *cuda)
{
    if (cuda->context)
        context_release(cuda);
    if (cuda->driver.library)
        dlclose(cuda->driver.library);
}
