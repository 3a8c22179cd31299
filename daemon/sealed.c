/* SPDX-License-Identifier: Apache-2.0 */
#include "sealed.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

int sealed_read(int fd, void *to, uint64_t bytes, const char *what, struct stow_error *err)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) || (uint64_t)st.st_size < bytes)
        return error_set(err, STOW_INVALID,
                         "%s come in a memfd of at least %llu bytes, sealed against shrinking",
                         what, (unsigned long long)bytes);
    for (uint64_t have = 0; have < bytes;) {
        ssize_t got = pread(fd, (char *)to + have, bytes - have, (off_t)have);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return error_errno(err, got ? errno : EIO, "reading %s", what);
        have += (uint64_t)got;
    }
    return 0;
}
