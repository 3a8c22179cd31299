/* SPDX-License-Identifier: Apache-2.0
 *
 * reader_fd: an HDF5 file driver over pread on a descriptor that is already open. It opens
 * nothing, locks nothing and cannot write. Reads past the end of the file fail; HDF5's own
 * driver gives zeros there. */
#ifndef STOW_READER_FD_H
#define STOW_READER_FD_H

#include <hdf5.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct reader_fd {
    int fd; /* borrowed */
    uint64_t size;
    bool
        open; /* as an HDF5 file: what HDF5 would open by itself, a source of a virtual dataset, is refused */
    int errno_value; /* of the last read that failed; EIO for one past the end */
    void (*on_read)(void *data);
    void *data;
};

/* Open it as an HDF5 file; fd stays where it is until H5Fclose. flags: H5F_ACC_RDONLY, perhaps with
 * H5F_ACC_SWMR_READ. H5I_INVALID_HID on failure. */
hid_t reader_fd_open(struct reader_fd *fd, unsigned flags);

/* Read exactly these bytes; false and errno_value if they are not there. */
bool reader_fd_read(struct reader_fd *fd, uint64_t offset, void *buffer, size_t bytes);

#endif
