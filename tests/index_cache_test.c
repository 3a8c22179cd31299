/* SPDX-License-Identifier: Apache-2.0
 *
 * index_cache_test: an entry comes back as it was, for its own key alone; one that is cut or has a wrong byte anywhere is as good
 * as none; what cannot be written leaves nothing behind; the oldest go. */
#include "test.h"

#include "index_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64] = "/tmp/index_cache_test.XXXXXX";
static char inside[80];

static const struct index_key key = {.build = "1",
                                     .path = "/data/a b_master.h5",
                                     .dataset = "",
                                     .dev = 1,
                                     .ino = 2,
                                     .size = 3,
                                     .mtime_ns = -4};
static struct index_file files[] = {{.name = "", .dev = 1, .ino = 2, .size = 3, .mtime_ns = -4},
                                    {.name = "a_data_000001.h5", .code = ENOENT},
                                    {.name = "sub/\xf2.h5", .dev = 9, .ino = 8, .size = 7}};
static const char *warnings[] = {"one", ""};
static const uint8_t bytes[37] = {1, 2, 3, [36] = 9};
static const struct index_entry entry = {.shape = {.dtype = "u2", .det_y = 4, .n_frames = 5},
                                         .files = files,
                                         .n_files = 3,
                                         .n_spare = 1,
                                         .warnings = warnings,
                                         .n_warnings = 2,
                                         .bytes = bytes,
                                         .n_bytes = sizeof(bytes)};

static int read_of(const struct index_key *of, struct index_entry *got)
{
    struct stow_error err = {.code = 0};
    return index_cache_read(inside, of, got, &err);
}

static void write_of(const struct index_key *of)
{
    struct stow_error err = {.code = 0};
    CHECK_MSG(index_cache_write(inside, of, &entry, &err) == 0, "%s", err.text);
}

/* The only file of the folder, or how many there are. */
static unsigned count_files(char *path, size_t room)
{
    unsigned n = 0;
    DIR *list = opendir(inside);
    for (struct dirent *one; list && (one = readdir(list)) != NULL;) {
        if (one->d_name[0] == '.')
            continue;
        n++;
        if (path)
            snprintf(path, room, "%s/%s", inside, one->d_name);
    }
    if (list)
        closedir(list);
    return n;
}

static void check_same(const struct index_entry *got)
{
    CHECK(memcmp(&got->shape, &entry.shape, sizeof(got->shape)) == 0);
    CHECK(got->n_files == 3 && got->n_spare == 1 && got->n_warnings == 2 &&
          got->n_bytes == sizeof(bytes));
    CHECK(memcmp(got->bytes, bytes, sizeof(bytes)) == 0 && (uintptr_t)got->bytes % 16 == 0);
    for (size_t i = 0; i < 3; i++) {
        const struct index_file *file = &got->files[i];
        CHECK(strcmp(file->name, files[i].name) == 0 && file->code == files[i].code);
        CHECK(file->dev == files[i].dev && file->ino == files[i].ino);
        CHECK(file->size == files[i].size && file->mtime_ns == files[i].mtime_ns);
    }
    CHECK(strcmp(got->warnings[0], "one") == 0 && strcmp(got->warnings[1], "") == 0);
}

static void test_round_trip(void)
{
    struct index_entry got;
    struct stow_error err;
    CHECK(index_cache_read(inside, &key, &got, &err) != 0); /* no folder yet */
    write_of(&key);
    write_of(&key); /* in place of the first */
    CHECK(count_files(NULL, 0) == 1);
    CHECK(read_of(&key, &got) == 0);
    check_same(&got);
    index_cache_free(&got);
}

static void test_other_keys(void)
{
    struct index_key others[9];
    for (int i = 0; i < 9; i++)
        others[i] = key;
    others[0].build = "2";
    others[1].path = "/data/b_master.h5";
    others[2].dataset = "/x";
    others[3].allow_gaps = true;
    others[4].dev = 9;
    others[5].ino = 9;
    others[6].size = 9;
    others[7].mtime_ns = 9;
    others[8].path = "/data/a b_master.h5x";
    for (int i = 0; i < 9; i++) {
        struct index_entry got;
        CHECK_MSG(read_of(&others[i], &got) == STOW_UNKNOWN, "key %d", i);
        CHECK(!got.memory && !got.files);
    }
}

static uint8_t *read_all(const char *path, size_t *n)
{
    struct stat st;
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && fstat(fd, &st) == 0);
    *n = (size_t)st.st_size;
    uint8_t *all = malloc(*n);
    CHECK(all && read(fd, all, *n) == (ssize_t)*n);
    close(fd);
    return all;
}

static void put_all(const char *path, const uint8_t *all, size_t n)
{
    int fd = open(path, O_WRONLY | O_TRUNC);
    CHECK(fd >= 0 && write(fd, all, n) == (ssize_t)n);
    close(fd);
}

static void test_damage(void)
{
    char path[400];
    size_t n;
    struct index_entry got;
    write_of(&key);
    CHECK(count_files(path, sizeof(path)) == 1);
    uint8_t *all = read_all(path, &n);
    for (size_t i = 0; i < n; i++) {
        all[i] ^= 1u << i % 8;
        put_all(path, all, n);
        CHECK_MSG(read_of(&key, &got) == STOW_UNKNOWN, "byte %zu", i);
        all[i] ^= 1u << i % 8;
        put_all(path, all, i);
        CHECK_MSG(read_of(&key, &got) == STOW_UNKNOWN, "cut to %zu bytes", i);
    }
    put_all(path, all, n);
    CHECK(read_of(&key, &got) == 0);
    index_cache_free(&got);
    free(all);
}

static void test_cannot_be_written(void)
{
    char path[400];
    struct stow_error err = {.code = 0};
    struct rlimit was, small = {.rlim_cur = 100};
    CHECK(count_files(path, sizeof(path)) == 1);
    unlink(path);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &was);
    small.rlim_max = was.rlim_max;
    setrlimit(RLIMIT_FSIZE, &small);
    int rc = index_cache_write(inside, &key, &entry, &err);
    setrlimit(RLIMIT_FSIZE, &was);
    CHECK_MSG(rc && strstr(err.text, inside), "%d %s", rc, err.text);
    CHECK(count_files(NULL, 0) == 0);
    CHECK(index_cache_write("/dev/null/x", &key, &entry, &err) && err.text[0]);
    CHECK(index_cache_write("/dev/null", &key, &entry, &err) && err.text[0]);
}

static void test_oldest_go(void)
{
    struct index_key many = key;
    struct index_entry got;
    for (uint64_t i = 0; i < INDEX_CACHE_ENTRIES + 10; i++) {
        many.ino = 1000 + i;
        write_of(&many);
    }
    CHECK(count_files(NULL, 0) == INDEX_CACHE_ENTRIES);
    CHECK(read_of(&many, &got) == 0);
    index_cache_free(&got);
    many.ino = 1000;
    CHECK(read_of(&many, &got) == STOW_UNKNOWN);
}

int main(void)
{
    char command[128];
    if (!mkdtemp(folder))
        return 1;
    snprintf(inside, sizeof(inside), "%s/state", folder);
    test_round_trip();
    test_other_keys();
    test_damage();
    test_cannot_be_written();
    test_oldest_go();
    snprintf(command, sizeof(command), "rm -r %s", folder);
    CHECK(system(command) == 0);
    return test_end();
}
