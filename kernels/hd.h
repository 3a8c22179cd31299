/* SPDX-License-Identifier: Apache-2.0
 *
 * hd: one source for arithmetic and format on the CPU and the GPU. A function marked HD is plain C11
 * that nvcc also compiles for the device. */
#ifndef STOW_HD_H
#define STOW_HD_H

#ifdef __CUDACC__
#define HD static inline __host__ __device__
#else
#define HD static inline
#endif

#endif
