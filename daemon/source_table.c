/* SPDX-License-Identifier: Apache-2.0 */
#include "source_inside.h"

#include "assembler.h"
#include "index_cache.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void fill_index(struct source_index *index, const struct reader_shape *shape)
{
    memcpy(index->dtype, shape->dtype, sizeof(index->dtype));
    index->elem_bytes = shape->elem_bytes;
    index->det_y = shape->det_y;
    index->det_x = shape->det_x;
    index->scan_y = shape->scan_y;
    index->scan_x = shape->scan_x;
    index->fill = shape->fill;
    index->n_frames = shape->n_frames;
    index->has_expected = shape->has_expected != 0;
    index->expected = index->has_expected ? shape->expected : 0;
}

const char *source_use_table(struct source *source, const struct source_parts *parts, int *rc)
{
    struct source_index *index = &source->index;
    const char *wrong =
        source_check_map(index, &source->assembly, &source->shape, parts, source->bytes->at);
    *rc = STOW_SOURCE;
    if (wrong)
        return wrong;
    fill_index(index, &source->shape);
    index->assembly = source->shape.has_assembly ? &source->assembly : NULL;
    if (!index->assembly || (index->assembler = assembler_new(index, 0)))
        return NULL;
    *rc = STOW_NOMEM;
    return "no memory for the index";
}

void source_free_index(struct source *source)
{
    struct source_index *index = &source->index;
    for (size_t i = 0; i < index->n_files; i++) {
        if (index->files[i].fd >= 0)
            close(index->files[i].fd);
        free(index->files[i].path);
        free(source->slots[i].asked);
    }
    for (size_t i = 0; i < index->n_warnings; i++)
        free(index->warnings[i]);
    free(index->files);
    free(index->warnings);
    free(source->slots);
    assembler_free(index->assembler);
    free(source->spare.path);
    source->spare.path = NULL;
    source_bytes_unref(source->bytes);
    source->bytes = NULL;
    *index = (struct source_index){0};
}

struct source_bytes *source_share_bytes(const struct source *source, struct reader_shape *shape)
{
    *shape = source->shape;
    source->bytes->refs++;
    return source->bytes;
}

void source_bytes_unref(struct source_bytes *bytes)
{
    if (!bytes || --bytes->refs)
        return;
    munmap(bytes->memory, bytes->memory_bytes);
    free(bytes);
}

const struct source_file *source_spare(const struct source *source)
{
    return source->spare.path ? &source->spare : NULL;
}

const char *source_asked_name(const struct source *source, size_t file)
{
    return source->slots[file].asked;
}

/* The names and warnings of an entry. */
static int copy_texts(struct source *source, const struct index_entry *entry)
{
    struct source_index *index = &source->index;
    for (size_t i = 0; i < entry->n_files - entry->n_spare; i++) {
        if (source_add_file(source))
            return STOW_NOMEM;
        source->slots[i].asked = strdup(entry->files[i].name);
        if (!source->slots[i].asked)
            return STOW_NOMEM;
    }
    index->warnings = calloc(entry->n_warnings + 1, sizeof(*index->warnings));
    for (size_t i = 0; index->warnings && i < entry->n_warnings; i++) {
        index->warnings[i] = strdup(entry->warnings[i]);
        if (!index->warnings[i])
            return STOW_NOMEM;
        index->n_warnings++;
    }
    return index->warnings ? 0 : STOW_NOMEM;
}

/* The entry's table, of which the source is to be the owner if all goes well. */
static const char *use_entry(struct source *source, const struct index_entry *entry,
                             const struct source_file *files, int *rc)
{
    struct source_parts parts;
    const char *wrong = source_check_shape(&entry->shape, &parts);
    *rc = STOW_SOURCE;
    if (wrong || parts.bytes != entry->n_bytes)
        return "an index of another size";
    source->shape = entry->shape;
    memcpy(source->index.files, files, source->index.n_files * sizeof(*files));
    return source_use_table(source, &parts, rc);
}

int source_from_entry(struct source **source_out, struct index_entry *entry,
                      const struct source_file *files)
{
    struct source *source = calloc(1, sizeof(*source));
    struct source_bytes *bytes = malloc(sizeof(*bytes));
    int rc = source && bytes ? copy_texts(source, entry) : STOW_NOMEM;
    if (!rc) {
        *bytes = (struct source_bytes){.at = entry->bytes, .bytes = entry->n_bytes, .refs = 1};
        source->bytes = bytes;
        rc = use_entry(source, entry, files, &rc) ? rc : 0;
    }
    if (rc) {
        for (size_t i = 0; source && i < source->index.n_files; i++)
            source->index.files[i] = (struct source_file){.fd = -1};
        if (source) {
            source->bytes = NULL;
            source_free_index(source);
        }
        free(bytes);
        free(source);
        return rc;
    }
    bytes->memory = entry->memory;
    bytes->memory_bytes = entry->memory_bytes;
    entry->memory = NULL;
    source->ended = true;
    n_sources++;
    *source_out = source;
    return 0;
}
