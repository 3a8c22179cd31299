/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_main: runs a fuzz target over files, for builds without libFuzzer: its corpus is then an ordinary
 * test. Arguments are files, or folders whose files are taken. */
#include "test.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* A target has no verdict but the sanitizers' and its own asserts: to come back is to pass. */
static void run_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    struct stat st;
    if (!file || fstat(fileno(file), &st) < 0) {
        CHECK_MSG(false, "%s: %s", path, strerror(errno));
        if (file)
            fclose(file);
        return;
    }
    /* Exactly as long as the file, so that a read past the end is seen. */
    size_t bytes = (size_t)st.st_size;
    uint8_t *data = malloc(bytes ? bytes : 1);
    bool whole = data && fread(data, 1, bytes, file) == bytes;
    CHECK_MSG(whole, "%s: cannot be read", path);
    if (whole)
        LLVMFuzzerTestOneInput(data, bytes);
    free(data);
    fclose(file);
}

static void run_folder(const char *path)
{
    DIR *folder = opendir(path);
    CHECK_MSG(folder, "%s: %s", path, strerror(errno));
    if (!folder)
        return;
    char file[PATH_MAX];
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(file, sizeof(file), "%s/%s", path, entry->d_name);
        run_file(file);
    }
    closedir(folder);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        struct stat st;
        if (!stat(argv[i], &st) && S_ISDIR(st.st_mode))
            run_folder(argv[i]);
        else
            run_file(argv[i]);
    }
    CHECK_MSG(test_passed, "no input was given");
    return test_end();
}
