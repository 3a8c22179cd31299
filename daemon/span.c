/* SPDX-License-Identifier: Apache-2.0 */
#include "span.h"

#include "bslz4.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

/* All of it, or 0 bytes with *err. */
static bool read_fully(const struct source_file *file, uint8_t *to, size_t bytes, uint64_t offset,
                       struct stow_error *err)
{
    size_t have = 0;
    while (have < bytes) {
        ssize_t got = pread(file->fd, to + have, bytes - have, (off_t)(offset + have));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            if (got < 0)
                error_errno(err, errno, "%s at byte %llu", file->path,
                            (unsigned long long)(offset + have));
            else
                error_set(err, STOW_CORRUPT,
                          "%s ends at byte %llu, the chunk needs %zu bytes from %llu; copy "
                          "it again",
                          file->path, (unsigned long long)(offset + have), bytes,
                          (unsigned long long)offset);
            return false;
        }
        have += (size_t)got;
    }
    return true;
}

/* Chunks first .. last - 1 of the span lie one behind the other in a file: one read, or one each to find
 * the frames that cannot be read. */
static void read_run(struct span_read *read, uint32_t first, uint32_t last, size_t bytes)
{
    const struct source_chunk *chunks = read->index->chunks + read->span->first;
    const struct source_file *file = &read->index->files[chunks[first].file];
    struct stow_error err;
    if (read_fully(file, read->bytes + read->at[first], bytes, chunks[first].offset, &err))
        return;
    for (uint32_t i = first; i < last; i++) {
        if (!read_fully(file, read->bytes + read->at[i], chunks[i].bytes, chunks[i].offset, &err))
            fault(read, i, &err);
    }
}

/* The file is still the one that was indexed: otherwise the chunks' addresses mean nothing. */
static bool file_unchanged(struct span_read *read, uint32_t number)
{
    const struct source_file *file = &read->index->files[number];
    struct stat now;
    if (fstat(file->fd, &now)) {
        error_errno(&read->err, errno, "%s", file->path);
        return false;
    }
    int64_t mtime_ns = (int64_t)now.st_mtim.tv_sec * 1000000000 + now.st_mtim.tv_nsec;
    if ((uint64_t)now.st_size == file->size && mtime_ns == file->mtime_ns)
        return true;
    error_set(&read->err, STOW_SOURCE, "%s changed while it was being read; load it again",
              file->path);
    return false;
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
            !file_unchanged(read, unchecked))
            return;
        unchecked = chunks[i].file;
        read_run(read, i, last, bytes);
        used += (uint32_t)bytes;
        i = last;
    }
    if (unchecked != SOURCE_NO_FILE)
        file_unchanged(read, unchecked);
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

void span_read(struct span_read *read)
{
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
