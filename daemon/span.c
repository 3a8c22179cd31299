/* SPDX-License-Identifier: Apache-2.0 */
#include "span.h"

#include "assembler.h"
#include "bslz4.h"
#include "source_read.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool chunk_is_stored(const struct source_chunk *chunk)
{
    return chunk->bytes != 0 && chunk->file != SOURCE_NO_FILE && !chunk->fault;
}

int span_read_init(struct span_read *read, const struct source_index *index,
                   const struct span *span, const struct frame_shape *shape, uint8_t *bytes)
{
    *read = (struct span_read){.index = index, .span = span, .shape = shape, .bytes = bytes};
    read->at = calloc(span->n_frames, sizeof(*read->at));
    read->table_at = calloc(span->n_frames, sizeof(*read->table_at));
    read->bad = calloc(span->n_frames, sizeof(*read->bad));
    if (read->at && read->table_at && read->bad)
        return 0;
    span_read_fini(read);
    return STOW_NOMEM;
}

void span_read_fini(struct span_read *read)
{
    free(read->at);
    free(read->table_at);
    free(read->bad);
    free(read->tables);
    free(read->faults);
    *read = (struct span_read){.index = NULL};
}

static void fault(struct span_read *read, uint32_t frame, const struct stow_error *why)
{
    if (read->bad[frame]) /* the first reason is enough */
        return;
    read->bad[frame] = true;
    if (read->n_faults == read->faults_room) {
        size_t room = read->faults_room ? 2 * read->faults_room : 8;
        struct span_fault *faults = realloc(read->faults, room * sizeof(*faults));
        if (!faults) { /* a bad frame that cannot be noted must not pass for a good one */
            error_set(&read->err, STOW_NOMEM, "no memory to note a damaged frame");
            return;
        }
        read->faults = faults;
        read->faults_room = room;
    }
    struct span_fault *f = &read->faults[read->n_faults++];
    *f = (struct span_fault){.frame = frame, .code = why->code};
    snprintf(f->text, sizeof(f->text), "%.*s", (int)sizeof(f->text) - 1, why->text);
    error_clean(f->text);
}

/* Chunks first .. last - 1 of the span lie one behind the other in a file: one read, or one each to find
 * the frames that cannot be read. */
static void read_run(struct span_read *read, uint32_t first, uint32_t last, size_t bytes)
{
    const struct source_chunk *chunks = read->index->chunks + read->span->first;
    const struct source_file *file = &read->index->files[chunks[first].file];
    struct stow_error err;
    if (!source_read(file, read->bytes + read->at[first], bytes, chunks[first].offset, &err))
        return;
    for (uint32_t i = first; i < last; i++) {
        if (source_read(file, read->bytes + read->at[i], chunks[i].bytes, chunks[i].offset, &err))
            fault(read, i, &err);
    }
}

static void read_chunks(struct span_read *read)
{
    const struct source_chunk *chunks = read->index->chunks + read->span->first;
    uint32_t n = read->span->n_frames, used = 0,
             unchecked = SOURCE_NO_FILE; /* a file read from since its check */
    for (uint32_t i = 0; i < n;) {
        if (!chunk_is_stored(&chunks[i])) {
            i++;
            continue;
        }
        uint32_t last = i;
        size_t bytes = 0;
        while (last < n && chunk_is_stored(&chunks[last]) && chunks[last].file == chunks[i].file &&
               chunks[last].offset == chunks[i].offset + bytes) {
            read->at[last] = used + (uint32_t)bytes;
            bytes += chunks[last++].bytes;
        }
        if (unchecked != SOURCE_NO_FILE && unchecked != chunks[i].file &&
            source_unchanged(&read->index->files[unchecked], &read->err))
            return;
        unchecked = chunks[i].file;
        read_run(read, i, last, bytes);
        used += (uint32_t)bytes;
        i = last;
    }
    if (unchecked != SOURCE_NO_FILE)
        source_unchanged(&read->index->files[unchecked], &read->err);
}

static bool tables_fit(struct span_read *read, size_t more)
{
    if (read->n_tables + more <= read->tables_room)
        return true;
    size_t room = 2 * read->tables_room + more;
    uint32_t *tables = realloc(read->tables, room * sizeof(*tables));
    if (!tables) {
        error_set(&read->err, STOW_NOMEM, "no memory for a block table");
        return false;
    }
    read->tables = tables;
    read->tables_room = room;
    return true;
}

static void find_blocks(struct span_read *read)
{
    const struct source_chunk *chunks = read->index->chunks + read->span->first;
    for (uint32_t i = 0; i < read->span->n_frames && !read->err.code; i++) {
        if (!chunk_is_stored(&chunks[i]) || chunks[i].raw || read->bad[i])
            continue;
        size_t room = bslz4_max_blocks(chunks[i].bytes) + 1, n_blocks;
        struct stow_error err;
        if (!tables_fit(read, room))
            return;
        if (bslz4_index(read->tables + read->n_tables, room, &n_blocks, read->bytes + read->at[i],
                        chunks[i].bytes, read->shape, &err)) {
            fault(read, i, &err);
            continue;
        }
        read->table_at[i] = (uint32_t)read->n_tables;
        read->n_tables += n_blocks + 1;
    }
}

static void on_fault(void *data, uint32_t frame, const struct stow_error *why)
{
    fault(data, frame, why);
}

/* Frames that are not simply chunks come as pixels. */
static void assemble(struct span_read *read)
{
    const struct source_chunk *chunks = read->index->chunks + read->span->first;
    uint32_t used = 0;
    for (uint32_t i = 0; i < read->span->n_frames; i++) {
        bool stored = chunk_is_stored(&chunks[i]);
        read->at[i] = stored ? used : ASSEMBLER_SKIP;
        used += stored ? chunks[i].bytes : 0;
    }
    struct assembler_read wanted = {.first = read->span->first,
                                    .n_frames = read->span->n_frames,
                                    .dst = read->bytes,
                                    .at = read->at,
                                    .data = read,
                                    .on_fault = on_fault};
    struct stow_error err = {0};
    if (assembler_read(read->index->assembler, &wanted, &err))
        read->err = err;
}

void span_read(struct span_read *read)
{
    if (read->index->assembler) {
        assemble(read);
        return;
    }
    read_chunks(read);
    if (!read->err.code)
        find_blocks(read);
}

void span_explain(const struct source_index *index, uint64_t id, const struct frame_shape *shape,
                  struct stow_error *why, struct stow_error *err)
{
    const struct source_chunk *chunk = &index->chunks[id];
    struct span one = {.first = id, .n_frames = 1, .bytes = chunk->bytes};
    struct span_read read;
    uint8_t *bytes = malloc(one.bytes);
    error_set(why, STOW_CORRUPT, "it cannot be decoded");
    if (!bytes || span_read_init(&read, index, &one, shape, bytes)) {
        free(bytes);
        return;
    }
    span_read(&read);
    struct decode_job job = {.src = (uintptr_t)bytes,
                             .blocks = (uintptr_t)read.tables,
                             .src_bytes = chunk->bytes,
                             .form = chunk->raw ? STOW_FORM_RAW : STOW_FORM_BSLZ4};
    if (read.err.code)
        *err = read.err;
    else if (read.n_faults)
        error_set(why, read.faults[0].code, "%s", read.faults[0].text);
    else if (!decode_frame(&job, shape, why))
        error_set(why, STOW_CORRUPT, "the device could not decode it though the host can");
    span_read_fini(&read);
    free(bytes);
}
