/* SPDX-License-Identifier: Apache-2.0 */
#include "index_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define MAGIC "STOWIDX1"
#define SUFFIX ".index"
#define NAME_BYTES 64
#define ALIGN 16u
#define MAX_TEXT (UINT64_C(1) << 30) /* all names and warnings together */

/* The beginning of a file. Behind it, each aligned: files [n_files], texts, the reader's bytes. Texts: the key's build,
 * path and dataset, the files' names, the warnings, each with its NUL. All is in this machine's byte order: a state
 * folder stays where it is. */
struct head {
    char magic[8];
    uint64_t checksum; /* of everything after this member */
    uint64_t file_bytes;
    uint64_t dev, ino, size;
    int64_t mtime_ns;
    uint64_t n_files, n_warnings, text_bytes, n_bytes;
    uint64_t n_spare;
    uint32_t allow_gaps, shape_bytes;
    struct reader_shape shape;
};
#define CHECKED_FROM offsetof(struct head, file_bytes)

/* Lies in the file as it is; `name` counts for nothing there. */
struct file_row {
    int32_t code;
    uint32_t reserved;
    uint64_t dev, ino, size;
    int64_t mtime_ns;
};

struct places {
    uint64_t files, texts, bytes, end;
};

static uint64_t align(uint64_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

/* False: numbers that no file can have. */
static bool find_places(const struct head *head, struct places *places)
{
    if (head->n_files == 0 || head->n_spare >= head->n_files ||
        head->n_files > READER_MAX_FILES + 1 || head->n_warnings > 4096 ||
        head->text_bytes > MAX_TEXT || head->n_bytes > UINT64_MAX / 4)
        return false;
    places->files = align(sizeof(*head));
    places->texts = align(places->files + head->n_files * sizeof(struct file_row));
    places->bytes = align(places->texts + head->text_bytes);
    places->end = places->bytes + head->n_bytes;
    return true;
}

/* One name for each key; two keys of one name take turns. */
static void name_entry(char *name, const struct index_key *key)
{
    XXH64_hash_t hash = XXH3_64bits_withSeed(key->path, strlen(key->path), key->allow_gaps);
    hash = XXH3_64bits_withSeed(key->dataset, strlen(key->dataset), hash ^ key->ino);
    snprintf(name, NAME_BYTES, "%016" PRIx64 SUFFIX, (uint64_t)(hash ^ key->dev));
}

static int open_folder(const char *folder, struct stow_error *err)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? error_errno(err, errno, "%s", folder) : fd;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* The whole file in memory of its own: a mapping would change with the file, after it was checked. */
static void *read_file(int fd, size_t *bytes)
{
    struct stat st;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size < (off_t)sizeof(struct head) ||
        (uint64_t)st.st_size > INDEX_CACHE_BYTES)
        return NULL;
    *bytes = (size_t)st.st_size;
    uint8_t *memory = mmap(NULL, *bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    for (size_t have = 0; have < *bytes;) {
        ssize_t got = pread(fd, memory + have, *bytes - have, (off_t)have);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            munmap(memory, *bytes);
            return NULL;
        }
        have += (size_t)got;
    }
    return memory;
}

static bool is_of(const struct head *head, const struct index_key *key)
{
    return head->dev == key->dev && head->ino == key->ino && head->size == key->size &&
           head->mtime_ns == key->mtime_ns && head->allow_gaps == key->allow_gaps;
}

/* The next text, or NULL at the end. */
static const char *next_text(const char **at, const char *end)
{
    const char *text = *at;
    if (text >= end)
        return NULL;
    *at += strlen(text) + 1; /* the last byte of all is a NUL */
    return text;
}

static bool take_texts(struct index_entry *entry, const char *at, const char *end,
                       const struct index_key *key)
{
    const char *build = next_text(&at, end), *path = next_text(&at, end),
               *dataset = next_text(&at, end);
    if (!build || !path || !dataset || strcmp(build, key->build) != 0 ||
        strcmp(path, key->path) != 0 || strcmp(dataset, key->dataset) != 0)
        return false;
    for (size_t i = 0; i < entry->n_files; i++) {
        entry->files[i].name = next_text(&at, end);
        if (!entry->files[i].name)
            return false;
    }
    for (size_t i = 0; i < entry->n_warnings; i++) {
        entry->warnings[i] = next_text(&at, end);
        if (!entry->warnings[i])
            return false;
    }
    return at == end;
}

static bool take_entry(struct index_entry *entry, const uint8_t *memory, size_t bytes,
                       const struct index_key *key)
{
    const struct head *head = (const struct head *)memory;
    struct places places;
    if (memcmp(head->magic, MAGIC, sizeof(head->magic)) != 0 || head->file_bytes != bytes ||
        head->shape_bytes != sizeof(head->shape) || !is_of(head, key) ||
        !find_places(head, &places) || places.end != bytes || head->text_bytes == 0 ||
        memory[places.texts + head->text_bytes - 1] != 0 ||
        head->checksum != XXH3_64bits(memory + CHECKED_FROM, bytes - CHECKED_FROM))
        return false;
    entry->shape = head->shape;
    entry->bytes = memory + places.bytes;
    entry->n_bytes = head->n_bytes;
    entry->files = calloc(head->n_files, sizeof(*entry->files));
    entry->warnings = calloc(head->n_warnings ? head->n_warnings : 1, sizeof(*entry->warnings));
    if (!entry->files || !entry->warnings)
        return false;
    entry->n_files = head->n_files;
    entry->n_warnings = head->n_warnings;
    entry->n_spare = head->n_spare;
    const struct file_row *rows = (const struct file_row *)(memory + places.files);
    for (size_t i = 0; i < entry->n_files; i++)
        entry->files[i] = (struct index_file){.code = rows[i].code,
                                              .dev = rows[i].dev,
                                              .ino = rows[i].ino,
                                              .size = rows[i].size,
                                              .mtime_ns = rows[i].mtime_ns};
    const char *texts = (const char *)memory + places.texts;
    return take_texts(entry, texts, texts + head->text_bytes, key);
}

int index_cache_read(const char *folder, const struct index_key *key, struct index_entry *entry,
                     struct stow_error *err)
{
    char name[NAME_BYTES];
    *entry = (struct index_entry){.memory = NULL};
    int dir = open_folder(folder, err);
    if (dir < 0)
        return err->code;
    name_entry(name, key);
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    int why = errno;
    close(dir);
    if (fd < 0)
        return why == ENOENT ? STOW_UNKNOWN : error_errno(err, why, "%s/%s", folder, name);
    entry->memory = read_file(fd, &entry->memory_bytes);
    close(fd);
    if (entry->memory && take_entry(entry, entry->memory, entry->memory_bytes, key))
        return 0;
    index_cache_free(entry);
    return STOW_UNKNOWN;
}

void index_cache_free(struct index_entry *entry)
{
    free(entry->files);
    free(entry->warnings);
    if (entry->memory)
        munmap(entry->memory, entry->memory_bytes);
    *entry = (struct index_entry){.memory = NULL};
}

/* ---- writing --------------------------------------------------------------------------------- */

static char *add_text(char *at, const char *text)
{
    size_t bytes = strlen(text) + 1;
    return at ? (char *)memcpy(at, text, bytes) + bytes : NULL;
}

/* Write all texts to `at`; NULL: only say how many bytes they are. */
static uint64_t put_texts(char *at, const struct index_key *key, const struct index_entry *entry)
{
    const char *fixed[] = {key->build, key->path, key->dataset};
    uint64_t bytes = 0;
    for (size_t i = 0; i < 3; i++) {
        bytes += strlen(fixed[i]) + 1;
        at = add_text(at, fixed[i]);
    }
    for (size_t i = 0; i < entry->n_files; i++) {
        bytes += strlen(entry->files[i].name) + 1;
        at = add_text(at, entry->files[i].name);
    }
    for (size_t i = 0; i < entry->n_warnings; i++) {
        bytes += strlen(entry->warnings[i]) + 1;
        at = add_text(at, entry->warnings[i]);
    }
    return bytes;
}

static uint8_t *make_file(const struct index_key *key, const struct index_entry *entry,
                          size_t *bytes)
{
    struct head head = {.magic = MAGIC,
                        .dev = key->dev,
                        .ino = key->ino,
                        .size = key->size,
                        .mtime_ns = key->mtime_ns,
                        .n_files = entry->n_files,
                        .n_warnings = entry->n_warnings,
                        .text_bytes = put_texts(NULL, key, entry),
                        .n_bytes = entry->n_bytes,
                        .n_spare = entry->n_spare,
                        .allow_gaps = key->allow_gaps,
                        .shape_bytes = sizeof(head.shape),
                        .shape = entry->shape};
    struct places places;
    if (!find_places(&head, &places) || places.end > INDEX_CACHE_BYTES / 4)
        return NULL;
    head.file_bytes = *bytes = places.end;
    uint8_t *file = calloc(1, *bytes);
    if (!file)
        return NULL;
    struct file_row *rows = (struct file_row *)(file + places.files);
    for (size_t i = 0; i < entry->n_files; i++)
        rows[i] = (struct file_row){.code = entry->files[i].code,
                                    .dev = entry->files[i].dev,
                                    .ino = entry->files[i].ino,
                                    .size = entry->files[i].size,
                                    .mtime_ns = entry->files[i].mtime_ns};
    put_texts((char *)file + places.texts, key, entry);
    memcpy(file + places.bytes, entry->bytes, entry->n_bytes);
    memcpy(file, &head, sizeof(head));
    head.checksum = XXH3_64bits(file + CHECKED_FROM, *bytes - CHECKED_FROM);
    memcpy(file, &head, sizeof(head));
    return file;
}

static int write_fully(int fd, const uint8_t *bytes, size_t n)
{
    while (n) {
        ssize_t put = write(fd, bytes, n);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return put < 0 ? errno : ENOSPC;
        bytes += put;
        n -= (size_t)put;
    }
    return 0;
}

struct old {
    char name[NAME_BYTES];
    int64_t mtime_ns;
    uint64_t bytes;
};

static int by_age(const void *a, const void *b)
{
    const struct old *x = a, *y = b;
    return x->mtime_ns < y->mtime_ns ? 1 : x->mtime_ns > y->mtime_ns ? -1 : 0;
}

/* The entries of the folder, and what writers left that were killed. NULL: no memory, or none. */
static struct old *list_entries(int dir, size_t *n)
{
    struct old *all = NULL;
    size_t room = 0;
    int copy = dup(dir);
    DIR *list = copy < 0 ? NULL : fdopendir(copy);
    *n = 0;
    if (!list) {
        if (copy >= 0)
            close(copy);
        return NULL;
    }
    rewinddir(list); /* copies share their place with the original */
    for (struct dirent *entry; (entry = readdir(list)) != NULL;) {
        struct stat st;
        size_t length = strlen(entry->d_name);
        if (!strstr(entry->d_name, SUFFIX) || length >= NAME_BYTES ||
            fstatat(dir, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode))
            continue;
        if (*n == room) {
            room = room ? 2 * room : 64;
            struct old *more = realloc(all, room * sizeof(*all));
            if (!more)
                break;
            all = more;
        }
        struct old *one = &all[(*n)++];
        memcpy(one->name, entry->d_name, length + 1);
        one->mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
        one->bytes = (uint64_t)st.st_size;
    }
    closedir(list);
    return all;
}

static void drop_oldest(int dir)
{
    size_t n;
    uint64_t bytes = 0;
    struct old *all = list_entries(dir, &n);
    if (n)
        qsort(all, n, sizeof(*all), by_age);
    for (size_t i = 0; i < n; i++) {
        bytes += all[i].bytes;
        if (i >= INDEX_CACHE_ENTRIES || bytes > INDEX_CACHE_BYTES)
            unlinkat(dir, all[i].name, 0);
    }
    free(all);
}

static int write_entry(int dir, const char *folder, const char *name, const uint8_t *file,
                       size_t bytes, struct stow_error *err)
{
    static _Atomic unsigned n_written;
    char beside[NAME_BYTES + 48];
    snprintf(beside, sizeof(beside), "%s.%d.%u", name, (int)getpid(), n_written++);
    int fd = openat(dir, beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    int why = fd < 0 ? errno : write_fully(fd, file, bytes);
    if (fd >= 0 && close(fd) && !why)
        why = errno;
    if (!why && renameat(dir, beside, dir, name))
        why = errno;
    if (why && fd >= 0)
        unlinkat(dir, beside, 0);
    return why ? error_errno(err, why, "%s/%s", folder, name) : 0;
}

int index_cache_write(const char *folder, const struct index_key *key,
                      const struct index_entry *entry, struct stow_error *err)
{
    char name[NAME_BYTES];
    size_t bytes;
    if (mkdir(folder, 0700) && errno != EEXIST)
        return error_errno(err, errno, "%s", folder);
    int dir = open_folder(folder, err);
    if (dir < 0)
        return err->code;
    name_entry(name, key);
    uint8_t *file = make_file(key, entry, &bytes);
    int rc = file ? write_entry(dir, folder, name, file, bytes, err)
                  : error_set(err, STOW_LIMIT, "%s: an index that is too large to be kept", folder);
    free(file);
    if (!rc)
        drop_oldest(dir);
    close(dir);
    return rc;
}
