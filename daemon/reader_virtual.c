/* SPDX-License-Identifier: Apache-2.0 */
#define H5_USE_110_API 1
#include "reader_virtual.h"

#include "reader_msg.h"
#include "reader_path.h"
#include "reader_select.h"
#include "reader_whole.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_OPEN 64 /* sources that stay open in case that another dataset of theirs is mapped */
#define MAX_GAP 4   /* numbers without a file after which no more are looked for */
#define MAX_DENIED 1000 /* numbers in a row with a file that cannot be used */
#define MAX_NAMED 4     /* lost sources in a warning */

/* What is to be said of lost sources. */
struct losses {
    struct stow_error first; /* why, of the first */
    int code;                /* of the last */
    char names[300];
    size_t n_named;
};

struct virtual
{
    struct reader *reader;
    size_t file;
    const char *shown, *path;
    hid_t dcpl;
    struct reader_data *data;
    struct reader_table *table;
    struct reader_mapping *mappings;
    size_t n, room;
    size_t open[MAX_OPEN], n_open; /* sources, a ring */
    int endless;                   /* the dimension whose length the sources tell, or -1 */
    struct losses losses;
    struct stow_error *err;
};

static int no_memory(const struct virtual *all)
{
    return error_set(all->err, STOW_NOMEM, "out of memory for a virtual dataset");
}

static int refuse(const struct virtual *all, const char *why)
{
    return error_set(
        all->err, STOW_UNSUPPORTED,
        "%s: the virtual dataset %s maps %s, which is not supported; copy it into a plain "
        "dataset, for example by h5py: d[...] = f['%.60s'][...]",
        all->shown, all->path, why, all->path);
}

/* ---- names ----------------------------------------------------------------------------------- */

/* A name with %b as this number and %% as %. False: it does not fit. */
static bool expand(const char *name, uint64_t number, bool *numbered, char *to, size_t room)
{
    size_t at = 0;
    for (const char *c = name; *c; c++) {
        if (at + 24 > room)
            return false;
        if (c[0] == '%' && c[1] == 'b') {
            at += (size_t)snprintf(to + at, room - at, "%" PRIu64, number);
            *numbered = true;
            c++;
        } else {
            to[at++] = *c;
            c += c[0] == '%' && c[1] == '%';
        }
    }
    to[at] = '\0';
    return true;
}

typedef ssize_t (*get_name)(hid_t dcpl, size_t i, char *name, size_t room);

static bool read_name(const struct virtual *all, get_name get, size_t i, char *name)
{
    ssize_t n = get(all->dcpl, i, name, READER_PATH);
    return n > 0 && n < READER_PATH;
}

/* ---- sources --------------------------------------------------------------------------------- */

/* Note why frames of a mapping are lost, and the file that it is named by. */
static void note_loss(struct virtual *all, size_t file, const struct stow_error *why)
{
    struct losses *losses = &all->losses;
    const char *shown = all->reader->files[file]->shown, *slash = strrchr(shown, '/');
    const char *name = slash ? slash + 1 : shown;
    size_t at = strlen(losses->names);
    losses->code = why->code;
    if (!losses->first.code)
        losses->first = *why;
    if (losses->n_named > MAX_NAMED || strstr(losses->names, name))
        return;
    if (losses->n_named++ < MAX_NAMED)
        snprintf(losses->names + at, sizeof(losses->names) - at, "%s%.60s", at ? ", " : "", name);
    else
        snprintf(losses->names + at, sizeof(losses->names) - at, ", ...");
}

/* Shut the source that was opened longest ago, unless it is the virtual dataset's file or the master. */
static void note_open(struct virtual *all, size_t file)
{
    if (file == 0 || file == all->file)
        return;
    for (size_t i = 0; i < all->n_open && i < MAX_OPEN; i++)
        if (all->open[i] == file)
            return;
    size_t *place = &all->open[all->n_open % MAX_OPEN];
    if (all->n_open++ >= MAX_OPEN)
        reader_file_shut(all->reader->files[*place]);
    *place = file;
}

static void shut_all(struct virtual *all)
{
    for (size_t i = 0; i < all->n_open && i < MAX_OPEN; i++)
        reader_file_shut(all->reader->files[all->open[i]]);
}

/* The set of this dataset that is known already. */
static bool known_set(const struct virtual *all, size_t file, const char *path, size_t *set)
{
    const struct reader_table *table = all->table;
    for (size_t i = all->reader->files[file]->last_set; i > 0; i = table->sets[i - 1].older)
        if (strcmp(table->sets[i - 1].path, path) == 0) {
            *set = i - 1;
            return true;
        }
    return false;
}

static int check_alike(const struct virtual *all, const struct reader_data *source,
                       const struct reader_file *file, const char *path)
{
    if (source->storage == READER_VIRTUAL)
        return refuse(all, "another virtual dataset");
    if (strcmp(source->dtype, all->data->dtype) != 0)
        return error_set(
            all->err, STOW_SOURCE,
            "%s: the virtual dataset %s has pixels of type %s, its source %s in %s of type "
            "%s; they have to be alike",
            all->shown, all->path, all->data->dtype, path, file->shown, source->dtype);
    return 0;
}

/* Index the dataset at place as a set. */
static int add_source(struct virtual *all, const struct reader_place *place, const char *path,
                      size_t *set)
{
    struct reader_file *file = all->reader->files[place->file];
    struct reader_data source;
    int status = reader_data_describe(file, path, place->object, &source, all->err);
    if (!status)
        status = check_alike(all, &source, file, path);
    if (!status)
        status = reader_whole_set(all->reader, place->file, path, place->object, &source,
                                  all->table, set, all->err);
    return status;
}

/* Not the source's fault: without memory or descriptors nothing is known of it. */
static bool is_fatal(const struct virtual *all, int status, size_t file)
{
    int code = all->reader->files[file]->code;
    return status == STOW_GONE || status == STOW_NOMEM ||
           (status && (code == EMFILE || code == ENFILE));
}

/* The dataset at path in a file as a set; or the mapping is lost. */
static int find_source(struct virtual *all, struct reader_mapping *mapping, size_t file,
                       const char *path)
{
    struct reader_place place;
    struct stow_error why;
    size_t lost = SIZE_MAX;
    if (known_set(all, file, path, &mapping->set))
        return 0;
    int status = reader_open(all->reader, file, &why);
    if (!status && all->reader->files[file]->hid < 0)
        return refuse(all, "several datasets of a file with many others between them");
    if (!status)
        status = reader_path_open_root(all->reader, file, path, &place, &lost, &why);
    if (is_fatal(all, status, lost == SIZE_MAX ? file : lost)) {
        *all->err = why;
        return status;
    }
    if (status) {
        mapping->lost = true;
        mapping->file = lost == SIZE_MAX ? file : lost;
        note_loss(all, mapping->file, &why);
        return 0;
    }
    note_open(all, file);
    note_open(all, place.file);
    status = add_source(all, &place, path, &mapping->set);
    H5Oclose(place.object);
    if (!status) {
        all->table->sets[mapping->set].older = all->reader->files[file]->last_set;
        all->reader->files[file]->last_set = mapping->set + 1;
    }
    return status;
}

/* The number of the file with this name; *missing: there is none. */
static int find_file(struct virtual *all, const char *name, size_t *file)
{
    if (strcmp(name, ".") == 0) {
        *file = all->file;
        return 0;
    }
    int status = reader_ask_beside(all->reader, all->file, name, file, all->err);
    const char *slash = strrchr(name, '/');
    if (status || name[0] != '/' || reader_open(all->reader, *file, NULL) != STOW_MISSING)
        return status;
    size_t beside;
    status = reader_ask_beside(all->reader, all->file, slash + 1, &beside, all->err);
    if (!status && reader_open(all->reader, beside, NULL) != STOW_MISSING)
        *file = beside;
    return status;
}

static int resolve(struct virtual *all, struct reader_mapping *mapping, const char *file,
                   const char *path)
{
    size_t number = 0;
    int status = find_file(all, file, &number);
    if (!status)
        status = find_source(all, mapping, number, path);
    if (!status && !mapping->lost) {
        const struct reader_data *source = &all->table->sets[mapping->set].data;
        if (!mapping->from.all && mapping->from.rank != source->rank)
            return refuse(all, "a source of another number of dimensions than it has");
        reader_select_set_dims(&mapping->from, source->dims, source->rank);
        mapping->file = all->table->sets[mapping->set].file;
    }
    return status;
}

/* ---- mappings -------------------------------------------------------------------------------- */

static int add_mapping(struct virtual *all, const struct reader_mapping *mapping)
{
    if (all->n == all->room) {
        size_t room = all->room ? 2 * all->room : 64;
        struct reader_mapping *mappings =
            room > ASSEMBLY_MAX_BOXES ? NULL : realloc(all->mappings, room * sizeof(*mappings));
        if (!mappings)
            return no_memory(all);
        all->mappings = mappings;
        all->room = room;
    }
    all->mappings[all->n++] = *mapping;
    return 0;
}

/* Block number `block` of a side without end, as a selection of its own. Blocks that touch are one without end, of which the
 * stride still tells their size. */
static struct reader_select one_block(const struct reader_select *of, uint64_t block)
{
    struct reader_select one = *of;
    unsigned i = (unsigned)of->endless;
    one.endless = -1;
    one.n[i] = one.block[i] = of->block[i] == READER_ENDLESS ? of->stride[i] : of->block[i];
    uint64_t skip; /* what is past all numbers is outside of everything */
    if (__builtin_mul_overflow(block, of->stride[i], &skip) ||
        __builtin_add_overflow(skip, of->start[i], &one.start[i]))
        one.start[i] = UINT64_MAX;
    return one;
}

/* The source of one number. */
static int take_number(struct virtual *all, struct reader_mapping *mapping, uint64_t number,
                       const char *file_name, const char *path_name)
{
    char file[READER_PATH], path[READER_PATH];
    bool numbered;
    if (!expand(file_name, number, &numbered, file, sizeof(file)) ||
        !expand(path_name, number, &numbered, path, sizeof(path)))
        return refuse(all, "a source of a very long name");
    int status = resolve(all, mapping, file, path);
    return status ? status : add_mapping(all, mapping);
}

/* Sources with a number in their name: as many as there are, with few missing between them. */
static int take_numbered(struct virtual *all, const struct reader_mapping *mapping,
                         const char *file_name, const char *path_name)
{
    struct losses before = all->losses; /* those after the last one that is there are none */
    size_t end = all->n;
    int status = 0;
    if (mapping->to.endless < 0 || mapping->from.endless >= 0)
        return refuse(all, "numbered sources to an end");
    for (uint64_t i = 0, missing = 0, bad = 0; !status && missing <= MAX_GAP; i++) {
        struct reader_mapping one = *mapping;
        one.to = one_block(&mapping->to, i);
        status = take_number(all, &one, i, file_name, path_name);
        bool absent = all->losses.code == STOW_MISSING || all->losses.code == STOW_UNKNOWN;
        missing = one.lost && absent ? missing + 1 : 0;
        bad = one.lost ? bad + 1 : 0;
        if (bad > MAX_DENIED) {
            *all->err = all->losses.first;
            return all->err->code;
        }
        if (missing == 0) {
            end = all->n;
            before = all->losses;
        }
    }
    all->n = end;
    if (end > 0)
        all->losses = before;
    return status;
}

static int take_mapping(struct virtual *all, size_t i)
{
    char file_name[READER_PATH], path_name[READER_PATH], file[READER_PATH], path[READER_PATH];
    struct reader_mapping mapping = {.lost = false};
    bool numbered = false;
    hid_t to = H5Pget_virtual_vspace(all->dcpl, i), from = H5Pget_virtual_srcspace(all->dcpl, i);
    const char *wrong = to < 0 || from < 0 ? "something that HDF5 cannot tell"
                                           : reader_select_read(to, &mapping.to);
    if (!wrong)
        wrong = reader_select_read(from, &mapping.from);
    if (to >= 0)
        H5Sclose(to);
    if (from >= 0)
        H5Sclose(from);
    if (!wrong && !mapping.to.all && mapping.to.rank != all->data->rank)
        wrong = "a selection of another number of dimensions than it has";
    if (!wrong && (!read_name(all, H5Pget_virtual_filename, i, file_name) ||
                   !read_name(all, H5Pget_virtual_dsetname, i, path_name)))
        wrong = "a source of no name or a very long one";
    if (!wrong && (!expand(file_name, 0, &numbered, file, sizeof(file)) ||
                   !expand(path_name, 0, &numbered, path, sizeof(path))))
        wrong = "a source of a very long name";
    if (!wrong && mapping.to.endless >= 0 && all->endless >= 0 &&
        all->endless != mapping.to.endless)
        wrong = "sources without end along several dimensions";
    if (wrong)
        return refuse(all, wrong);
    if (mapping.to.endless >= 0)
        all->endless = mapping.to.endless;
    reader_alive(all->reader);
    if (numbered)
        return take_numbered(all, &mapping, file_name, path_name);
    int status = resolve(all, &mapping, file, path);
    return status ? status : add_mapping(all, &mapping);
}

/* ---- sides without end ----------------------------------------------------------------------- */

/* How many elements a mapping without end has, as its source tells. */
static const char *measure(struct reader_mapping *mapping)
{
    struct reader_select *to = &mapping->to, *from = &mapping->from;
    if (mapping->lost)
        return NULL;
    if (to->endless < 0)
        return from->endless < 0 ? NULL : "a source without end to an end";
    if (from->endless < 0)
        return "a source that ends to no end";
    to->n[to->endless] = from->n[from->endless] =
        reader_select_count(from, from->dims[from->endless]);
    return NULL;
}

/* The length along the endless dimension as sources make it: HDF5's own answer rests on files that it was not let
 * open. */
static int measure_all(struct virtual *all)
{
    uint64_t extent = 0;
    unsigned dim = (unsigned)all->endless;
    const char *wrong = NULL;
    for (size_t i = 0; !wrong && i < all->n; i++) {
        const struct reader_select *to = &all->mappings[i].to;
        wrong = measure(&all->mappings[i]);
        if (all->endless < 0 || to->all || to->n[dim] == READER_ENDLESS)
            continue;
        uint64_t here = reader_select_extent(to, dim, to->n[dim]);
        extent = here > extent ? here : extent;
    }
    if (!wrong && all->endless >= 0 && dim + 2 >= all->data->rank)
        wrong = "detector pixels without end";
    if (wrong)
        return refuse(all, wrong);
    if (all->endless >= 0)
        all->data->dims[dim] = extent;
    if (!reader_data_count(all->data) || all->data->n_frames > READER_MAX_FRAMES)
        return error_set(all->err, STOW_LIMIT,
                         "%s: the virtual dataset %s has more than the %" PRIu64
                         " frames that are indexed at most",
                         all->shown, all->path, (uint64_t)READER_MAX_FRAMES);
    return 0;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int place_mapping(struct virtual *all, struct reader_mapping *mapping)
{
    struct stow_error why;
    size_t n_lost = all->table->n_lost;
    int status;
    reader_select_set_dims(&mapping->to, all->data->dims, all->data->rank);
    if (mapping->to.endless >= 0 && mapping->lost) /* as many as the others have */
        mapping->to.n[all->endless] =
            reader_select_count(&mapping->to, all->data->dims[all->endless]);
    const char *wrong = reader_select_map(mapping, all->table, &status, all->err);
    if (wrong)
        return refuse(all, wrong);
    if (!status && !mapping->lost && all->table->n_lost > n_lost) {
        const char *shown = all->reader->files[mapping->file]->shown;
        error_set(&why, STOW_SOURCE, "%s: dataset %s is smaller than what is mapped of it", shown,
                  all->table->sets[mapping->set].path);
        note_loss(all, mapping->file, &why);
    }
    return status;
}

/* Frames that any lost range names, each once. */
static uint64_t count_lost(const struct virtual *all, size_t first)
{
    uint64_t n = 0;
    uint8_t *seen = calloc(all->data->n_frames + 1, sizeof(*seen));
    for (size_t i = first; seen && i < all->table->n_lost; i++) {
        const struct reader_lost *lost = &all->table->lost[i];
        for (uint64_t k = 0; k < lost->n_frames; k++) {
            uint8_t *one = &seen[lost->frame + k * lost->frame_step];
            n += !*one;
            *one = 1;
        }
    }
    free(seen);
    return n;
}

static int place_all(struct virtual *all)
{
    size_t first_lost = all->table->n_lost, n_there = 0;
    int status = measure_all(all);
    for (size_t i = 0; !status && i < all->n; i++) {
        n_there += !all->mappings[i].lost;
        status = place_mapping(all, &all->mappings[i]);
    }
    if (status)
        return status;
    const struct losses *losses = &all->losses;
    if (losses->first.code && n_there == 0) {
        *all->err = losses->first;
        error_prefix(all->err, "no source of the virtual dataset %s can be had", all->path);
        return all->err->code;
    }
    if (losses->first.code)
        reader_warn(all->reader,
                    "%" PRIu64
                    " frames of the virtual dataset %s are bad, as its sources cannot be had: "
                    "%s; %.200s",
                    count_lost(all, first_lost), all->path, losses->names, losses->first.text);
    return 0;
}

/* The fill value of what is not mapped: the acquisition's. */
static int take_fill(struct virtual *all)
{
    struct reader_table *table = all->table;
    if (table->is_virtual && table->fill != all->data->fill)
        return error_set(
            all->err, STOW_UNSUPPORTED,
            "%s: the virtual dataset %s has another fill value than one before it, which "
            "is not supported",
            all->shown, all->path);
    table->is_virtual = true;
    table->fill = all->data->fill;
    return 0;
}

int reader_virtual(struct reader *reader, size_t file, const char *path, hid_t dataset,
                   struct reader_data *data, struct reader_table *table, struct stow_error *err)
{
    struct virtual all = {.reader = reader,
                          .file = file,
                          .shown = reader->files[file]->shown,
                          .path = path,
                          .dcpl = H5Dget_create_plist(dataset),
                          .data = data,
                          .table = table,
                          .endless = -1,
                          .err = err};
    size_t n = 0;
    int status = take_fill(&all);
    if (!status && (all.dcpl < 0 || H5Pget_virtual_count(all.dcpl, &n) < 0))
        status = error_set(err, STOW_SOURCE,
                           "%s: HDF5 cannot tell what the virtual dataset %s maps (%s)", all.shown,
                           path, reader_file_reason());
    for (size_t i = 0; !status && i < n; i++)
        status = take_mapping(&all, i);
    if (!status)
        status = place_all(&all);
    shut_all(&all);
    if (all.dcpl >= 0)
        H5Pclose(all.dcpl);
    free(all.mappings);
    return status;
}
