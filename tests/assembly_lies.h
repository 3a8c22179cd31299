/* SPDX-License-Identifier: Apache-2.0
 *
 * assembly_lies: an index with an assembly, and what a lying reader makes of it. Two frames of 2x4 u2, from a dataset of
 * chunks that are half a frame, unfiltered, in a master of 100 bytes. */
#ifndef STOW_TEST_ASSEMBLY_LIES_H
#define STOW_TEST_ASSEMBLY_LIES_H

#include "reader_msg.h"
#include "source.h"
#include "test.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

struct told {
    struct reader_shape shape;
    struct source_chunk frames[2];
    char flags[8];
    struct assembly_dataset datasets[3];
    struct assembly_box boxes[3];
    struct assembly_chunk chunks[7];
    char texts[8];
};

static inline struct told told_truth(void)
{
    struct told told = {
        .shape = {.dtype = "u2",
                  .elem_bytes = 2,
                  .det_y = 2,
                  .det_x = 4,
                  .n_frames = 2,
                  .has_assembly = 1,
                  .n_datasets = 1,
                  .n_boxes = 1,
                  .n_chunks = 4,
                  .n_texts = 3},
        .frames = {{.offset = 100, .bytes = 16, .raw = 1}, {.bytes = 0}},
        .datasets =
            {{.rank = 3, .elem_bytes = 2, .dims = {2, 2, 4}, .chunk = {1, 2, 2}, .n_chunks = 4}},
        .boxes = {{.frame_step = 1, .n_frames = 2, .from_step = 1, .n_y = 2, .n_x = 4}},
        .chunks = {{.bytes = 8}, {.offset = 92, .bytes = 8}, {.bytes = 0}, {.fault = 2}},
        .texts = "/d"};
    return told;
}

/* The memfd of it. */
static inline int told_memfd(const struct told *told)
{
    const struct reader_shape *shape = &told->shape;
    int fd = memfd_create("fake", MFD_ALLOW_SEALING);
    bool ok = fd >= 0 && write(fd, told->frames, sizeof(told->frames)) > 0 &&
              (!shape->has_flags || write(fd, told->flags, sizeof(told->flags)) > 0) &&
              write(fd, told->datasets, sizeof(told->datasets[0]) * (shape->n_datasets & 3)) >= 0 &&
              write(fd, told->boxes, sizeof(told->boxes[0]) * (shape->n_boxes & 3)) >= 0 &&
              write(fd, told->chunks, sizeof(told->chunks[0]) * (shape->n_chunks & 7)) >= 0 &&
              write(fd, told->texts, shape->n_texts & 7) >= 0 &&
              fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) == 0;
    if (!ok)
        _exit(4);
    return fd;
}

#define HUGE UINT64_MAX

/* Each is one change; words: in the refusal, NULL: it is as good. */
#define TOLD_LIES(X)                                                                               \
    X(NULL, told->shape.n_frames = 2)                                                              \
    X(NULL, told->shape.has_flags = 1)                                                             \
    X(NULL, told->datasets[0].flags = ASSEMBLY_BIG_ENDIAN)                                         \
    X(NULL, told->boxes[1] = told->boxes[0]; told->shape.n_boxes = 2)                              \
    X(NULL, told->datasets[0].n_filters = 1; told->datasets[0].filters[0].id = 1;                  \
      told->chunks[0].bytes = 99)                                                                  \
    X("another size", told->shape.n_texts = 4; told->shape.n_boxes = 2; told->shape.n_chunks = 12) \
    X("impossible size", told->shape.n_datasets = HUGE)                                            \
    X("impossible size", told->shape.n_boxes = HUGE / 16)                                          \
    X("impossible size", told->shape.n_chunks = HUGE / 24 + 1)                                     \
    X("impossible size", told->shape.n_texts = HUGE)                                               \
    X("another size", told->shape.has_assembly = 0)                                                \
    X("names without an end", told->shape.n_texts = 2)                                             \
    X("without a file or name", told->datasets[0].path = 3)                                        \
    X("without a file or name", told->datasets[0].file = 1)                                        \
    X("unknown kind", told->datasets[0].rank = 1)                                                  \
    X("unknown kind", told->datasets[0].rank = 6)                                                  \
    X("unknown kind", told->datasets[0].elem_bytes = 4)                                            \
    X("unknown kind", told->datasets[0].flags = 4)                                                 \
    X("impossible shape", told->datasets[0].dims[0] = 0)                                           \
    X("impossible shape", told->datasets[0].chunk[2] = 0)                                          \
    X("impossible shape", told->datasets[0].dims[1] = told->datasets[0].dims[2] = 1u << 31)        \
    X("impossible shape", told->datasets[0].chunk[0] = 1u << 30)                                   \
    X("impossible shape", told->datasets[0].chunk[0] = HUGE)                                       \
    X("too many chunks", told->datasets[0].dims[0] = HUGE)                                         \
    X("number of chunks", told->datasets[0].dims[0] = 3)                                           \
    X("number of chunks", told->datasets[0].n_chunks = 5)                                          \
    X("number of chunks", told->datasets[0].first_chunk = 1)                                       \
    X("number of chunks", told->datasets[0].first_chunk = HUGE)                                    \
    X("another's chunks", told->datasets[1] = told->datasets[0]; told->shape.n_datasets = 2)       \
    X("chunks of no dataset", told->shape.n_datasets = told->shape.n_boxes = 0)                    \
    X("does not fit a pixel", told->datasets[0].fill = 65536)                                      \
    X("too many filters", told->datasets[0].n_filters = 9)                                         \
    X("too many values", told->datasets[0].n_filters = 1;                                          \
      told->datasets[0].filters[0].n_values = 9)                                                   \
    X("not in its file", told->chunks[0].bytes = 7)                                                \
    X("not in its file", told->chunks[1].offset = 93)                                              \
    X("not in its file", told->chunks[1].offset = HUGE - 3)                                        \
    X("not in its file", told->chunks[0].file = 1)                                                 \
    X("not in its file", told->chunks[0].file = SOURCE_NO_FILE)                                    \
    X("not in its file", told->chunks[0].mask = 1)                                                 \
    X("not in its file", told->chunks[0].fault = 4)                                                \
    X("not in its file", told->frames[0].bytes = 15)                                               \
    X("not in its file", told->frames[0].raw = 0)                                                  \
    X("not in its file", told->frames[0].offset = 101)                                             \
    X("outside", told->boxes[0].dataset = 1)                                                       \
    X("outside", told->boxes[0].n_frames = 0)                                                      \
    X("outside", told->boxes[0].n_frames = 3)                                                      \
    X("outside", told->boxes[0].frame = 1)                                                         \
    X("outside", told->boxes[0].from_frame = 1)                                                    \
    X("outside", told->boxes[0].frame_step = 2)                                                    \
    X("outside", told->boxes[0].frame_step = HUGE)                                                 \
    X("outside", told->boxes[0].from_step = 0)                                                     \
    X("outside", told->boxes[0].from_step = HUGE)                                                  \
    X("outside", told->boxes[0].n_frames = told->boxes[0].frame_step = HUGE)                       \
    X("outside", told->boxes[0].frame = HUGE)                                                      \
    X("outside", told->boxes[0].n_y = 0)                                                           \
    X("outside", told->boxes[0].n_x = 5)                                                           \
    X("outside", told->boxes[0].y = 1)                                                             \
    X("outside", told->boxes[0].x = HUGE)                                                          \
    X("outside", told->boxes[0].from_y = HUGE - 1)                                                 \
    X("outside", told->boxes[0].from_x = 1)

static inline void tell_lie(size_t i, struct told *told)
{
    size_t n = 0;
#define CHANGE(words, ...) \
    if (n++ == i) {        \
        __VA_ARGS__;       \
    }
    TOLD_LIES(CHANGE)
#undef CHANGE
}

static const char *const told_words[] = {
#define WORDS(words, ...) words,
    TOLD_LIES(WORDS)
#undef WORDS
};
#define N_TOLD (sizeof(told_words) / sizeof(told_words[0]))

#endif
