/* SPDX-License-Identifier: Apache-2.0 */
#define H5_USE_110_API 1
#include "reader_path.h"

#include "reader_msg.h"

#include <stdlib.h>
#include <string.h>

#define MAX_HOPS 16   /* links on the way to one object */
#define MAX_STEPS 256 /* components on the way */
#define PATH_ROOM (2 * READER_PATH)

/* A walk in progress. rest is what is left of the path, always ended by NUL. */
struct walk {
    struct reader *reader;
    size_t file;
    hid_t at; /* owned */
    char rest[PATH_ROOM];
    char value[PATH_ROOM]; /* of a link */
    unsigned hops;
    size_t *lost;
    struct stow_error *err;
    const char *path; /* as asked, for messages */
};

bool reader_path_external(hid_t group, const char *link, char *name, size_t room)
{
    char value[PATH_ROOM];
    const char *file, *object;
    unsigned flags;
    H5L_info_t info;
    if (H5Lget_info(group, link, &info, H5P_DEFAULT) < 0 || info.type != H5L_TYPE_EXTERNAL ||
        info.u.val_size > sizeof(value) ||
        H5Lget_val(group, link, value, sizeof(value), H5P_DEFAULT) < 0 ||
        H5Lunpack_elink_val(value, info.u.val_size, &flags, &file, &object) < 0 ||
        strlen(file) >= room)
        return false;
    memcpy(name, file, strlen(file) + 1);
    return true;
}

/* Replace what is left by target, then what was left. */
static int go_on_at(struct walk *walk, const char *target)
{
    size_t head = strlen(target), tail = strlen(walk->rest);
    if (++walk->hops > MAX_HOPS)
        return error_set(walk->err, STOW_SOURCE,
                         "%s: more than %d links in a row; do they form a circle?",
                         walk->reader->files[walk->file]->shown, MAX_HOPS);
    if (head + 1 + tail >= sizeof(walk->rest))
        return error_set(walk->err, STOW_SOURCE, "%s: a link is longer than %d bytes",
                         walk->reader->files[walk->file]->shown, PATH_ROOM);
    memmove(walk->rest + head + 1, walk->rest, tail + 1);
    memcpy(walk->rest, target, head);
    walk->rest[head] = '/';
    return 0;
}

static int to_root(struct walk *walk)
{
    if (walk->at >= 0)
        H5Oclose(walk->at);
    walk->at = H5Gopen2(walk->reader->files[walk->file]->hid, "/", H5P_DEFAULT);
    return walk->at >= 0
               ? 0
               : error_set(walk->err, STOW_SOURCE, "%s: its root group cannot be opened (%s)",
                           walk->reader->files[walk->file]->shown, reader_file_reason());
}

static int follow_soft(struct walk *walk)
{
    int status = walk->value[0] == '/' ? to_root(walk) : 0;
    return status ? status : go_on_at(walk, walk->value);
}

static int follow_external(struct walk *walk, size_t bytes)
{
    const char *name, *object;
    unsigned flags;
    size_t file;
    if (H5Lunpack_elink_val(walk->value, bytes, &flags, &name, &object) < 0)
        return error_set(walk->err, STOW_SOURCE, "%s: an external link cannot be understood",
                         walk->reader->files[walk->file]->shown);
    int status = go_on_at(walk, object);
    if (!status)
        status = reader_ask_beside(walk->reader, walk->file, name, &file, walk->err);
    if (status)
        return status;
    status = reader_open(walk->reader, file, walk->err);
    if (status) {
        if (walk->lost)
            *walk->lost = file;
        return status;
    }
    if (walk->reader->files[file]->hid < 0)
        return error_set(walk->err, STOW_UNSUPPORTED,
                         "several parts of the acquisition lie in %s with others between them, "
                         "which is not supported",
                         walk->reader->files[file]->shown);
    walk->file = file;
    return to_root(walk);
}

/* One component, which is not empty. */
static int step(struct walk *walk, const char *name)
{
    H5L_info_t info;
    const char *shown = walk->reader->files[walk->file]->shown;
    if (H5Lget_info(walk->at, name, &info, H5P_DEFAULT) < 0)
        return error_set(walk->err, STOW_UNKNOWN, "%s: %s not found: it has no object '%s'", shown,
                         walk->path, name);
    if (info.type == H5L_TYPE_HARD) {
        hid_t next = H5Oopen(walk->at, name, H5P_DEFAULT);
        if (next < 0)
            return error_set(walk->err, STOW_SOURCE,
                             "%s: the object '%s' cannot be opened (%s); the file may be "
                             "damaged",
                             shown, name, reader_file_reason());
        H5Oclose(walk->at);
        walk->at = next;
        return 0;
    }
    if (info.type != H5L_TYPE_SOFT && info.type != H5L_TYPE_EXTERNAL)
        return error_set(walk->err, STOW_UNSUPPORTED,
                         "%s: '%s' is a user-defined link, which is not supported", shown, name);
    if (info.u.val_size >= sizeof(walk->value) ||
        H5Lget_val(walk->at, name, walk->value, sizeof(walk->value), H5P_DEFAULT) < 0)
        return error_set(walk->err, STOW_SOURCE, "%s: the link '%s' cannot be read", shown, name);
    walk->value[info.u.val_size] = '\0';
    return info.type == H5L_TYPE_SOFT ? follow_soft(walk) : follow_external(walk, info.u.val_size);
}

/* Cut the next component off rest into name; false at the end. */
static bool next_component(struct walk *walk, char *name, size_t room)
{
    const char *start = walk->rest + strspn(walk->rest, "/");
    size_t bytes = strcspn(start, "/");
    if (bytes == 0 || bytes >= room)
        return false;
    memcpy(name, start, bytes);
    name[bytes] = '\0';
    memmove(walk->rest, start + bytes, strlen(start + bytes) + 1);
    return true;
}

static int run(struct walk *walk)
{
    char name[READER_PATH];
    int status = 0;
    for (unsigned i = 0; !status && next_component(walk, name, sizeof(name)); i++) {
        reader_alive(walk->reader);
        if (i == MAX_STEPS)
            return error_set(walk->err, STOW_SOURCE, "%s: a path of more than %d steps",
                             walk->reader->files[walk->file]->shown, MAX_STEPS);
        if (strcmp(name, ".") != 0)
            status = step(walk, name);
    }
    return status;
}

int reader_path_open(struct reader *reader, size_t file, hid_t at, const char *path,
                     struct reader_place *place, size_t *lost, struct stow_error *err)
{
    struct walk *walk = malloc(sizeof(*walk));
    if (!walk)
        return error_set(err, STOW_NOMEM, "out of memory for a path");
    *walk = (struct walk){
        .reader = reader, .file = file, .at = at, .path = path, .lost = lost, .err = err};
    if (lost)
        *lost = SIZE_MAX;
    H5Iinc_ref(at);
    int status = 0;
    if (strlen(path) >= sizeof(walk->rest))
        status = error_set(err, STOW_INVALID, "a dataset's path of more than %d bytes", PATH_ROOM);
    else
        memcpy(walk->rest, path, strlen(path) + 1);
    if (!status && path[0] == '/')
        status = to_root(walk);
    if (!status)
        status = run(walk);
    if (!status)
        *place = (struct reader_place){.file = walk->file, .object = walk->at};
    else if (walk->at >= 0)
        H5Oclose(walk->at);
    free(walk);
    return status;
}

int reader_path_open_root(struct reader *reader, size_t file, const char *path,
                          struct reader_place *place, size_t *lost, struct stow_error *err)
{
    hid_t root = H5Gopen2(reader->files[file]->hid, "/", H5P_DEFAULT);
    if (root < 0)
        return error_set(err, STOW_SOURCE, "%s: its root group cannot be opened (%s)",
                         reader->files[file]->shown, reader_file_reason());
    int status = reader_path_open(reader, file, root, path, place, lost, err);
    H5Oclose(root);
    return status;
}
