/* SPDX-License-Identifier: Apache-2.0
 *
 * index_json: the index of a source as JSON, for the tests in Python. Strings are bytes as \u00NN. */
#ifndef STOW_TEST_INDEX_JSON_H
#define STOW_TEST_INDEX_JSON_H

#include "source.h"
#include "test.h"

#include <inttypes.h>

static inline void print_string(const char *text)
{
    putchar('"');
    for (const unsigned char *s = (const unsigned char *)text; *s; s++)
        printf(*s < 0x20 || *s >= 0x7f || *s == '"' || *s == '\\' ? "\\u%04x" : "%c", *s);
    putchar('"');
}

/* The pixels' numbers; null: there is no mask. */
static inline void print_flagged(const struct source_index *index)
{
    uint64_t n = 0;
    printf("%s", index->flags ? "[" : "null");
    for (uint64_t i = 0; index->flags && i < index->det_y * index->det_x; i++) {
        if (index->flags[i])
            printf("%s%" PRIu64, n++ ? ", " : "", i);
    }
    printf("%s", index->flags ? "]" : "");
    CHECK_INT(n, index->n_flagged);
}

static inline void print_numbers(const char *name, const uint64_t *numbers, size_t n)
{
    printf("%s[", name);
    for (size_t i = 0; i < n; i++)
        printf("%s%" PRIu64, i ? ", " : "", numbers[i]);
    printf("]");
}

static inline void print_dataset(const struct assembly *assembly,
                                 const struct assembly_dataset *set)
{
    printf("{\"path\": ");
    print_string(assembly->texts + set->path);
    printf(", \"file\": %u, \"big\": %u, \"fill\": %" PRIu64 ", ", set->file, set->flags,
           set->fill);
    print_numbers("\"dims\": ", set->dims, set->rank);
    print_numbers(", \"chunk\": ", set->chunk, set->rank);
    printf(", \"filters\": [");
    for (uint32_t i = 0; i < set->n_filters; i++) {
        printf("%s[%u", i ? ", " : "", set->filters[i].id);
        for (uint32_t k = 0; k < set->filters[i].n_values; k++)
            printf(", %u", set->filters[i].values[k]);
        printf("]");
    }
    printf("], \"chunks\": [");
    for (uint64_t i = 0; i < set->n_chunks; i++) {
        const struct assembly_chunk *chunk = &assembly->chunks[set->first_chunk + i];
        printf("%s[%" PRIu64 ", %u, %d, %u, %u]", i ? ", " : "", chunk->offset, chunk->bytes,
               (int)chunk->file, chunk->mask, chunk->fault);
    }
    printf("]}");
}

/* Boxes as in the struct, but for its last word. */
static inline void print_assembly(const struct assembly *assembly)
{
    printf("{\"datasets\": [");
    for (size_t i = 0; i < assembly->n_datasets; i++) {
        printf("%s", i ? ", " : "");
        print_dataset(assembly, &assembly->datasets[i]);
    }
    printf("], \"boxes\": [");
    for (size_t i = 0; i < assembly->n_boxes; i++) {
        const struct assembly_box *box = &assembly->boxes[i];
        const uint64_t all[] = {box->frame,     box->frame_step, box->n_frames, box->from_frame,
                                box->from_step, box->y,          box->x,        box->from_y,
                                box->from_x,    box->n_y,        box->n_x,      box->dataset};
        print_numbers(i ? ", " : "", all, sizeof(all) / sizeof(all[0]));
    }
    printf("]}");
}

static inline void print_index(const struct source_index *index, bool frames)
{
    printf("\"dtype\": \"%s\", \"det\": [%" PRIu64 ", %" PRIu64 "], \"scan\": [%" PRIu64
           ", %" PRIu64 "], ",
           index->dtype, index->det_y, index->det_x, index->scan_y, index->scan_x);
    printf("\"fill\": %" PRIu64 ", \"n_frames\": %" PRIu64 ", \"chunk_bytes\": %" PRIu64 ", ",
           index->fill, index->n_frames, index->chunk_bytes);
    if (index->has_expected)
        printf("\"expected\": %" PRIu64 ", ", index->expected);
    printf("\"files\": [");
    for (size_t i = 0; i < index->n_files; i++) {
        printf("%s[", i ? ", " : "");
        print_string(index->files[i].path);
        printf(", %" PRIu64 ", %s]", index->files[i].size,
               index->files[i].fd >= 0 ? "true" : "false");
    }
    printf("], \"warnings\": [");
    for (size_t i = 0; i < index->n_warnings; i++) {
        printf("%s", i ? ", " : "");
        print_string(index->warnings[i]);
    }
    printf("], \"flagged\": ");
    print_flagged(index);
    printf(", \"assembly\": ");
    if (index->assembly && frames)
        print_assembly(index->assembly);
    else
        printf("%s", index->assembly ? "true" : "null");
    printf("}\n");
    for (uint64_t i = 0; frames && i < index->n_frames; i++) {
        const struct source_chunk *chunk = &index->chunks[i];
        printf("[%" PRIu64 ", %u, %d, %u, %u]\n", chunk->offset, chunk->bytes, (int)chunk->file,
               chunk->raw, chunk->fault);
    }
}

#endif
