/* SPDX-License-Identifier: Apache-2.0
 *
 * Where this program's own framestow-reader is: beside it in a build folder, in libexec once installed. */
#include "source.h"

#include "reader_msg.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int source_find_reader(char *path, size_t room, struct stow_error *err)
{
    static const char *const places[] = {"/" READER_NAME, "/../libexec/framestow/" READER_NAME};
    char folder[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", folder, sizeof(folder) - 1);
    if (n < 0)
        return error_errno(err, errno, "cannot tell where this program lies (/proc/self/exe)");
    folder[n] = '\0';
    *strrchr(folder, '/') = '\0';
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        int length = snprintf(path, room, "%s%s", folder, places[i]);
        if (length > 0 && (size_t)length < room && access(path, X_OK) == 0)
            return 0;
    }
    return error_set(err, STOW_INTERNAL,
                     "%s is neither in %s nor in its ../libexec/framestow; install framestow anew",
                     READER_NAME, folder);
}
