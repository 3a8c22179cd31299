/* SPDX-License-Identifier: Apache-2.0
 *
 * The search through all groups of a file, for one that follows no layout we know. Hard links
 * only, each group once, however they are tied together. */
#define H5_USE_110_API 1
#include "reader_data.h"
#include "reader_find.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_GROUPS 10000
#define MAX_LISTED 6 /* candidates in the message */

struct search {
    struct reader *reader;
    char *groups[MAX_GROUPS]; /* paths, also those visited */
    haddr_t seen[MAX_GROUPS];
    size_t n_groups, n_candidates;
    char *found; /* the first candidate */
    char list[400];
    size_t listed; /* bytes of list */
    size_t at;     /* the group being visited */
};

static void add_group(struct search *search, char *path, haddr_t address)
{
    for (size_t i = 0; i < search->n_groups; i++)
        if (search->seen[i] == address) {
            free(path);
            return;
        }
    if (search->n_groups == MAX_GROUPS) {
        free(path);
        return;
    }
    search->groups[search->n_groups] = path;
    search->seen[search->n_groups++] = address;
}

static void add_candidate(struct search *search, hid_t dataset, const char *path)
{
    char dtype[32], shape[96];
    if (search->n_candidates++ == 0)
        search->found = strdup(path);
    if (search->n_candidates > MAX_LISTED || search->listed >= sizeof(search->list))
        return;
    reader_data_dtype(dataset, dtype, sizeof(dtype));
    reader_data_shape(dataset, shape, sizeof(shape));
    search->listed +=
        (size_t)snprintf(search->list + search->listed, sizeof(search->list) - search->listed,
                         "%s%s %s %s", search->listed ? ", " : "", path, shape, dtype);
}

static herr_t visit(hid_t group, const char *name, const H5L_info_t *info, void *data)
{
    struct search *search = data;
    H5O_info_t object;
    char *path = NULL;
    const char *parent = search->groups[search->at];
    reader_alive(search->reader);
    if (info->type != H5L_TYPE_HARD || reader_find_never(name))
        return 0;
    hid_t id = H5Oopen(group, name, H5P_DEFAULT);
    if (id < 0)
        return 0;
    if (H5Oget_info2(id, &object, H5O_INFO_BASIC) >= 0 &&
        asprintf(&path, "%s/%s", parent, name) >= 0) {
        if (object.type == H5O_TYPE_GROUP) {
            add_group(search, path, object.addr);
            path = NULL;
        } else if (object.type == H5O_TYPE_DATASET && reader_data_rank(id) >= 3) {
            add_candidate(search, id, path);
        }
        free(path);
    }
    H5Oclose(id);
    return 0;
}

static void visit_all(struct search *search)
{
    hid_t root = search->reader->files[0]->hid;
    for (search->at = 0; search->at < search->n_groups; search->at++) {
        const char *path = search->groups[search->at];
        hsize_t next = 0;
        hid_t group = H5Gopen2(root, *path ? path : "/", H5P_DEFAULT);
        if (group < 0)
            continue;
        H5Literate(group, H5_INDEX_NAME, H5_ITER_INC, &next, visit, search);
        H5Gclose(group);
    }
}

int reader_search(struct reader *reader, char **path, struct stow_error *err)
{
    struct search *search = calloc(1, sizeof(*search));
    if (!search)
        return error_set(err, STOW_NOMEM, "out of memory for a search");
    search->reader = reader;
    char *root = strdup("");
    if (root) {
        add_group(search, root, HADDR_UNDEF);
        visit_all(search);
    }
    const char *file = reader->files[0]->shown;
    int status = 0;
    if (search->n_candidates == 1 && search->found)
        *path = search->found;
    else if (search->n_candidates == 0)
        status =
            error_set(err, STOW_SOURCE,
                      "%s has no dataset of frames: no /entry/data/data_NNNNNN and no numbers in "
                      "three or more dimensions; name one with --dataset PATH",
                      file);
    else
        status = error_set(err, STOW_SOURCE,
                           "%s has %zu datasets that may be meant: choose by --dataset PATH: %s%s",
                           file, search->n_candidates, search->list,
                           search->n_candidates > MAX_LISTED ? ", ..." : "");
    if (status)
        free(search->found);
    for (size_t i = 0; i < search->n_groups; i++)
        free(search->groups[i]);
    free(search);
    return status;
}
