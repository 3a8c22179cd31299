/* SPDX-License-Identifier: Apache-2.0 */
#include "reader_fd.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define MAX_ADDRESS ((haddr_t)INT64_MAX)

/* HDF5 wants its own struct first. */
struct driver_file {
    H5FD_t head;
    struct reader_fd *fd;
    haddr_t eoa;
};

bool reader_fd_read(struct reader_fd *fd, uint64_t offset, void *buffer, size_t bytes)
{
    if (fd->on_read)
        fd->on_read(fd->data);
    if (offset > fd->size || bytes > fd->size - offset) {
        fd->errno_value = EIO;
        return false;
    }
    for (char *to = buffer; bytes > 0;) {
        ssize_t got = pread(fd->fd, to, bytes, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            fd->errno_value = got < 0 ? errno : EIO;
            return false;
        }
        to += got;
        offset += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return true;
}

static H5FD_t *driver_open(const char *name, unsigned flags, hid_t fapl, haddr_t max)
{
    (void)name;
    (void)max;
    struct reader_fd *const *info = H5Pget_driver_info(fapl);
    if (!info || !*info || (*info)->open ||
        (flags & (H5F_ACC_RDWR | H5F_ACC_TRUNC | H5F_ACC_CREAT)))
        return NULL;
    struct driver_file *file = calloc(1, sizeof(*file));
    if (!file)
        return NULL;
    file->fd = *info;
    file->fd->open = true;
    return &file->head;
}

static herr_t driver_close(H5FD_t *head)
{
    ((struct driver_file *)head)->fd->open = false;
    free(head);
    return 0;
}

static int driver_compare(const H5FD_t *a, const H5FD_t *b)
{
    int left = ((const struct driver_file *)a)->fd->fd,
        right = ((const struct driver_file *)b)->fd->fd;
    return (left > right) - (left < right);
}

static herr_t driver_query(const H5FD_t *head, unsigned long *flags)
{
    (void)head;
    *flags = H5FD_FEAT_ACCUMULATE_METADATA_READ | H5FD_FEAT_DATA_SIEVE | H5FD_FEAT_SUPPORTS_SWMR_IO;
    return 0;
}

static haddr_t driver_get_eoa(const H5FD_t *head, H5FD_mem_t type)
{
    (void)type;
    return ((const struct driver_file *)head)->eoa;
}

static herr_t driver_set_eoa(H5FD_t *head, H5FD_mem_t type, haddr_t address)
{
    (void)type;
    ((struct driver_file *)head)->eoa = address;
    return 0;
}

static haddr_t driver_get_eof(const H5FD_t *head, H5FD_mem_t type)
{
    (void)type;
    return ((const struct driver_file *)head)->fd->size;
}

static herr_t driver_read(H5FD_t *head, H5FD_mem_t type, hid_t dxpl, haddr_t address, size_t bytes,
                          void *buffer)
{
    (void)type;
    (void)dxpl;
    return reader_fd_read(((struct driver_file *)head)->fd, address, buffer, bytes) ? 0 : -1;
}

static herr_t driver_write(H5FD_t *head, H5FD_mem_t type, hid_t dxpl, haddr_t address, size_t bytes,
                           const void *buffer)
{
    (void)head;
    (void)type;
    (void)dxpl;
    (void)address;
    (void)bytes;
    (void)buffer;
    return -1;
}

static const H5FD_class_t driver = {
#ifdef H5FD_CLASS_VERSION /* HDF5 1.14 and later */
    .version = H5FD_CLASS_VERSION,
    .value = (H5FD_class_value_t)512,
#endif
    .name = "framestow-fd",
    .maxaddr = MAX_ADDRESS,
    .fc_degree = H5F_CLOSE_STRONG,
    .fapl_size = sizeof(struct reader_fd *),
    .open = driver_open,
    .close = driver_close,
    .cmp = driver_compare,
    .query = driver_query,
    .get_eoa = driver_get_eoa,
    .set_eoa = driver_set_eoa,
    .get_eof = driver_get_eof,
    .read = driver_read,
    .write = driver_write,
    .fl_map = H5FD_FLMAP_SINGLE,
};

hid_t reader_fd_open(struct reader_fd *fd, unsigned flags)
{
    hid_t file = H5I_INVALID_HID;
    hid_t id = H5FDregister(&driver);
    hid_t fapl = H5Pcreate(H5P_FILE_ACCESS);
    if (id >= 0 && fapl >= 0 && H5Pset_driver(fapl, id, &fd) >= 0)
        file = H5Fopen("fd", flags, fapl);
    if (fapl >= 0)
        H5Pclose(fapl);
    if (id >= 0)
        H5FDunregister(id);
    return file;
}
