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
    printf("}\n");
    for (uint64_t i = 0; frames && i < index->n_frames; i++) {
        const struct source_chunk *chunk = &index->chunks[i];
        printf("[%" PRIu64 ", %u, %d, %u, %u]\n", chunk->offset, chunk->bytes, (int)chunk->file,
               chunk->raw, chunk->fault);
    }
}

#endif
