/* SPDX-License-Identifier: Apache-2.0 */
#define H5_USE_110_API 1
#include "reader_find.h"

#include "reader_data.h"
#include "reader_msg.h"
#include "reader_path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA_GROUP "/entry/data"
#define MAX_DEFAULTS 8 /* groups on the way of NeXus's default attributes */

static const char *const never[] = {
    "pixel_mask", "flatfield", "countrate_correction_table", "countrate_correction_lookup_table",
    "mask",       "trimbit"};

bool reader_find_never(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    for (size_t i = 0; i < sizeof(never) / sizeof(never[0]); i++)
        if (strcmp(name, never[i]) == 0)
            return true;
    return false;
}

/* ---- lists of names -------------------------------------------------------------------------- */

struct names {
    char **list;
    size_t n, room;
    bool (*wanted)(const char *name);
    bool failed;
};

static void names_free(struct names *names)
{
    for (size_t i = 0; i < names->n; i++)
        free(names->list[i]);
    free(names->list);
}

static herr_t add_name(hid_t group, const char *name, const H5L_info_t *info, void *data)
{
    struct names *names = data;
    (void)group;
    (void)info;
    if (!names->wanted(name))
        return 0;
    if (names->n == names->room) {
        size_t room = names->room ? 2 * names->room : 64;
        char **list =
            room > 4 * (size_t)READER_MAX_FILES ? NULL : realloc(names->list, room * sizeof(*list));
        if (!list)
            return -1;
        names->list = list;
        names->room = room;
    }
    names->list[names->n] = strdup(name);
    return names->list[names->n] && ++names->n ? 0 : -1;
}

/* The wanted names of a group's links, not followed. */
static bool list_names(hid_t group, bool (*wanted)(const char *name), struct names *names)
{
    *names = (struct names){.wanted = wanted};
    hsize_t at = 0;
    if (H5Literate(group, H5_INDEX_NAME, H5_ITER_INC, &at, add_name, names) >= 0)
        return true;
    names_free(names);
    *names = (struct names){0};
    return false;
}

/* data_000001, data_1, data1: "data", perhaps "_", and nothing but digits. */
static bool is_shard(const char *name)
{
    if (strncmp(name, "data", 4) != 0)
        return false;
    name += name[4] == '_' ? 5 : 4;
    return *name && name[strspn(name, "0123456789")] == '\0';
}

static bool is_data(const char *name)
{
    return strncmp(name, "data", 4) == 0 && !is_shard(name);
}

/* By number, whatever the zeros in front; the same number by name. */
static int compare_shards(const void *a, const void *b)
{
    const char *left = *(char *const *)a, *right = *(char *const *)b;
    const char *l = left + strcspn(left, "0123456789"), *r = right + strcspn(right, "0123456789");
    l += strspn(l, "0");
    r += strspn(r, "0");
    size_t n_left = strlen(l), n_right = strlen(r);
    if (n_left != n_right)
        return n_left < n_right ? -1 : 1;
    int by_number = strcmp(l, r);
    return by_number ? by_number : strcmp(left, right);
}

/* ---- parts ----------------------------------------------------------------------------------- */

void reader_find_free(struct reader_part *parts, size_t n_parts)
{
    for (size_t i = 0; i < n_parts; i++) {
        free(parts[i].path);
        free(parts[i].shown);
    }
    free(parts);
}

static char *join(const char *group, const char *name)
{
    char *text = NULL;
    bool slash = *group && group[strlen(group) - 1] == '/';
    return asprintf(&text, "%s%s%s", group, slash || *name == '/' ? "" : "/", name) < 0 ? NULL
                                                                                        : text;
}

static int no_memory(struct stow_error *err)
{
    return error_set(err, STOW_NOMEM, "out of memory for the list of datasets");
}

/* One part. place is the group that path starts from. */
static int one_part(const struct reader_place *place, const char *path, const char *shown,
                    struct reader_part **parts, size_t *n_parts, struct stow_error *err)
{
    struct reader_part *part = calloc(1, sizeof(*part));
    if (part) {
        *part = (struct reader_part){place->file, place->object, strdup(path), strdup(shown)};
        if (part->path && part->shown) {
            H5Iinc_ref(place->object);
            *parts = part;
            *n_parts = 1;
            return 0;
        }
        reader_find_free(part, 1);
    }
    return no_memory(err);
}

/* The shards of this group as parts, *n_parts 0 if it has none. */
static int find_shards(struct reader *reader, const struct reader_place *group, const char *shown,
                       struct reader_part **parts, size_t *n_parts, struct stow_error *err)
{
    struct names names;
    char name[READER_PATH];
    size_t file;
    int status = 0;
    *n_parts = 0;
    if (!list_names(group->object, is_shard, &names))
        return error_set(err, STOW_SOURCE, "%s: the links in %s cannot be listed (%s)",
                         reader->files[group->file]->shown, shown, reader_file_reason());
    if (names.n == 0)
        return 0;
    qsort(names.list, names.n, sizeof(names.list[0]), compare_shards);
    struct reader_part *list = calloc(names.n, sizeof(*list));
    for (size_t i = 0; list && !status && i < names.n; i++) {
        list[i] = (struct reader_part){group->file, group->object, strdup(names.list[i]),
                                       join(shown, names.list[i])};
        if (!list[i].path || !list[i].shown)
            status = no_memory(err);
        else if (reader_path_external(group->object, names.list[i], name, sizeof(name)))
            status = reader_ask(reader, name, &file, err);
    }
    if (!list)
        status = no_memory(err);
    if (status) {
        if (list)
            reader_find_free(list, names.n);
    } else {
        H5Iinc_ref(group->object);
        *parts = list;
        *n_parts = names.n;
    }
    names_free(&names);
    return status;
}

/* ---- NeXus ----------------------------------------------------------------------------------- */

/* A string attribute, of fixed or variable length. */
static bool get_text(hid_t object, const char *name, char *text, size_t room)
{
    bool ok = false;
    if (H5Aexists(object, name) <= 0)
        return false;
    hid_t attribute = H5Aopen(object, name, H5P_DEFAULT);
    hid_t type = attribute >= 0 ? H5Aget_type(attribute) : H5I_INVALID_HID;
    hid_t space = attribute >= 0 ? H5Aget_space(attribute) : H5I_INVALID_HID;
    if (type >= 0 && space >= 0 && H5Tget_class(type) == H5T_STRING &&
        H5Sget_simple_extent_npoints(space) == 1) {
        size_t bytes = H5Tget_size(type);
        char *value = NULL;
        text[0] = '\0';
        if (H5Tis_variable_str(type) > 0) {
            ok = H5Aread(attribute, type, &value) >= 0 && value && strlen(value) < room;
            if (ok)
                memcpy(text, value, strlen(value) + 1);
            H5free_memory(value);
        } else if (bytes < room) {
            ok = H5Aread(attribute, type, text) >= 0;
            text[bytes] = '\0';
            for (size_t i = strlen(text); i > 0 && text[i - 1] == ' '; i--)
                text[i - 1] = '\0'; /* padded as Fortran does */
        }
    }
    if (space >= 0)
        H5Sclose(space);
    if (type >= 0)
        H5Tclose(type);
    if (attribute >= 0)
        H5Aclose(attribute);
    return ok && text[0];
}

/* Whether path from the group is a dataset that can be frames. */
static bool is_stack(struct reader *reader, const struct reader_place *group, const char *path,
                     int least_rank)
{
    struct reader_place place;
    if (reader_find_never(path) ||
        reader_path_open(reader, group->file, group->object, path, &place, NULL, NULL))
        return false;
    int rank = reader_data_rank(place.object);
    H5Oclose(place.object);
    return rank >= least_rank;
}

/* The signal of a group, then of the group that its default names, and so on. */
static int find_signal(struct reader *reader, const char *from, struct reader_part **parts,
                       size_t *n_parts, struct stow_error *err)
{
    struct reader_place at, next;
    char *shown = strdup(from), *longer, text[READER_PATH];
    int status = shown ? 0 : no_memory(err);
    if (!shown || reader_path_open_root(reader, 0, from, &at, NULL, NULL)) {
        free(shown);
        return status;
    }
    for (int i = 0; !status && i < MAX_DEFAULTS; i++) {
        if (get_text(at.object, "signal", text, sizeof(text)) && is_stack(reader, &at, text, 2)) {
            longer = join(text[0] == '/' ? "" : shown, text);
            status = longer ? one_part(&at, text, longer, parts, n_parts, err) : no_memory(err);
            free(longer);
            break;
        }
        if (!get_text(at.object, "default", text, sizeof(text)) ||
            reader_path_open(reader, at.file, at.object, text, &next, NULL, NULL))
            break;
        longer = join(text[0] == '/' ? "" : shown, text);
        H5Oclose(at.object);
        at = next;
        free(shown);
        shown = longer;
        if (!shown)
            status = no_memory(err);
    }
    free(shown);
    H5Oclose(at.object);
    return status;
}

/* /entry/data/data, or the only other data* that can be frames. */
static int find_named(struct reader *reader, const struct reader_place *group,
                      struct reader_part **parts, size_t *n_parts, struct stow_error *err)
{
    struct names names;
    const char *found = NULL;
    size_t n = 0;
    if (!list_names(group->object, is_data, &names))
        return 0;
    for (size_t i = 0; i < names.n; i++) {
        if (!is_stack(reader, group, names.list[i], 2))
            continue;
        if (n++ == 0 || strcmp(names.list[i], "data") == 0)
            found = names.list[i];
    }
    char *shown = found ? join(DATA_GROUP, found) : NULL;
    int status = 0;
    if (found && (n == 1 || strcmp(found, "data") == 0))
        status = shown ? one_part(group, found, shown, parts, n_parts, err) : no_memory(err);
    free(shown);
    names_free(&names);
    return status;
}

/* A dataset of the master by its path. */
static int by_path(struct reader *reader, const char *path, struct reader_part **parts,
                   size_t *n_parts, struct stow_error *err)
{
    const struct reader_place root = {0, H5Gopen2(reader->files[0]->hid, "/", H5P_DEFAULT)};
    if (root.object < 0)
        return error_set(err, STOW_SOURCE, "%s: its root group cannot be opened (%s)",
                         reader->files[0]->shown, reader_file_reason());
    int status = one_part(&root, path, path, parts, n_parts, err);
    H5Oclose(root.object);
    return status;
}

/* What the user named: a dataset, or a group of shards. */
static int find_given(struct reader *reader, struct reader_part **parts, size_t *n_parts,
                      struct stow_error *err)
{
    struct reader_place place;
    const char *path = reader->dataset;
    int status = reader_path_open_root(reader, 0, path, &place, NULL, err);
    if (status)
        return status;
    if (H5Iget_type(place.object) == H5I_GROUP) {
        status = find_shards(reader, &place, path, parts, n_parts, err);
        if (!status && *n_parts == 0)
            status =
                error_set(err, STOW_SOURCE, "%s: %s is a group without data_NNNNNN; name a dataset",
                          reader->files[0]->shown, path);
    } else {
        status = by_path(reader, path, parts, n_parts, err);
    }
    H5Oclose(place.object);
    return status;
}

static int find_searched(struct reader *reader, struct reader_part **parts, size_t *n_parts,
                         struct stow_error *err)
{
    char *path = NULL;
    int status = reader_search(reader, &path, err);
    if (!status)
        status = by_path(reader, path, parts, n_parts, err);
    free(path);
    return status;
}

int reader_find(struct reader *reader, struct reader_part **parts, size_t *n_parts,
                struct stow_error *err)
{
    struct reader_place group = {.object = H5I_INVALID_HID};
    int status = 0;
    *n_parts = 0;
    *parts = NULL;
    if (reader->dataset[0])
        return find_given(reader, parts, n_parts, err);
    bool has_group = reader_path_open_root(reader, 0, DATA_GROUP, &group, NULL, NULL) == 0 &&
                     H5Iget_type(group.object) == H5I_GROUP;
    if (has_group)
        status = find_shards(reader, &group, DATA_GROUP, parts, n_parts, err);
    if (!status && *n_parts == 0)
        status = find_signal(reader, "/", parts, n_parts, err);
    if (!status && *n_parts == 0)
        status = find_signal(reader, DATA_GROUP, parts, n_parts, err);
    if (!status && *n_parts == 0 && has_group)
        status = find_named(reader, &group, parts, n_parts, err);
    if (!status && *n_parts == 0)
        status = find_searched(reader, parts, n_parts, err);
    if (group.object >= 0)
        H5Oclose(group.object);
    return status;
}
