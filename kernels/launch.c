/* SPDX-License-Identifier: Apache-2.0 */
#include "launch.h"

cudaError_t launch_work(const struct work *work, cudaStream_t stream)
{
    if (work->kind == WORK_ENCODE || work->kind == WORK_PLACE)
        return launch_encode(work, stream);
    if (work->kind == WORK_RINGS)
        return launch_rings(work, stream);
    if (work->kind == WORK_VIEW)
        return launch_view(work, stream);
    return launch_sums(work, stream);
}

cudaError_t launch_load_all(void)
{
    cudaError_t rc = launch_load_bslz4();
    if (!rc)
        rc = launch_load_counts();
    if (!rc)
        rc = launch_load_encode();
    if (!rc)
        rc = launch_load_sums();
    if (!rc)
        rc = launch_load_rings();
    if (!rc)
        rc = launch_load_view();
    return rc;
}
