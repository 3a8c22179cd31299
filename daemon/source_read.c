/* SPDX-License-Identifier: Apache-2.0 */
#include "source_read.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

int source_read(const struct source_file *file, uint8_t *to, size_t bytes, uint64_t offset,
                struct stow_error *err)
{
    size_t have = 0;
    while (have < bytes) {
        ssize_t got = pread(file->fd, to + have, bytes - have, (off_t)(offset + have));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return error_errno(err, errno, "%s at byte %llu", file->path,
                               (unsigned long long)(offset + have));
        if (got == 0)
            return error_set(err, STOW_CORRUPT,
                             "%s ends at byte %llu, the chunk needs %zu bytes from %llu; copy "
                             "it again",
                             file->path, (unsigned long long)(offset + have), bytes,
                             (unsigned long long)offset);
        have += (size_t)got;
    }
    return 0;
}

int source_unchanged(const struct source_file *file, struct stow_error *err)
{
    struct stat now;
    if (fstat(file->fd, &now))
        return error_errno(err, errno, "%s", file->path);
    int64_t mtime_ns = (int64_t)now.st_mtim.tv_sec * 1000000000 + now.st_mtim.tv_nsec;
    if ((uint64_t)now.st_size == file->size && mtime_ns == file->mtime_ns)
        return 0;
    return error_set(err, STOW_SOURCE, "%s changed while it was being read; load it again",
                     file->path);
}
