/* SPDX-License-Identifier: Apache-2.0
 *
 * encode_trial: models with frames to try them on, and what a GPU needs to encode these. */
#ifndef STOW_ENCODE_TRIAL_H
#define STOW_ENCODE_TRIAL_H

#include "counts_cases.h"
#include "work.h"

#include <cuda_runtime_api.h>

#define ROOM_GUARD 1024u /* behind each room: the words of a granule */
#define N_FRAMES 6u      /* a model is made of */
#define N_STRANGE 6u     /* frames that it is not made for */
#define N_PROBES (N_FRAMES + N_STRANGE)

static inline void must(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    exit(EXIT_FAILURE);
}

static inline void *make_memory(size_t bytes)
{
    void *memory = calloc(1, bytes ? bytes : 1);
    if (!memory)
        exit(EXIT_FAILURE);
    return memory;
}

/* Device memory; with these bytes, or with 0xa5 in all of them. */
static inline uint64_t on_device(const void *bytes, size_t n)
{
    void *memory;
    must(cudaMalloc(&memory, n ? n : 1), "device memory");
    if (bytes)
        must(cudaMemcpy(memory, bytes, n, cudaMemcpyHostToDevice), "upload");
    else
        must(cudaMemset(memory, 0xa5, n), "memset");
    return (uintptr_t)memory;
}

static inline void *from_device(uint64_t memory, size_t n)
{
    void *bytes = make_memory(n);
    must(cudaMemcpy(bytes, (const void *)(uintptr_t)memory, n, cudaMemcpyDeviceToHost), "download");
    return bytes;
}

static inline void release(uint64_t memory)
{
    must(cudaFree((void *)(uintptr_t)memory), "free");
}

/* ---- trials --------------------------------------------------------------------------------------- */

/* A model, and frames to try it on. */
struct trial {
    struct frame_shape shape;
    uint32_t n_streams;
    struct counts_segment *segment;
    struct counts_encoder *encoder;
    uint8_t *pixels;    /* [N_PROBES] */
    size_t pixel_bytes; /* of one, and of its room: frame_bytes up to 16 */
    size_t room_stride;
};

static inline uint8_t *trial_frame(const struct trial *trial, unsigned i)
{
    return trial->pixels + i * trial->pixel_bytes;
}

static inline void set_pixel(void *pixels, uint64_t i, uint32_t value,
                             const struct frame_shape *shape)
{
    memcpy((uint8_t *)pixels + i * shape->elem_bytes, &value, shape->elem_bytes);
}

/* Frame k of those that no model was made for, from one that was. */
static inline void make_strange(void *pixels, const struct frame_shape *shape, unsigned k)
{
    uint32_t largest = case_largest(shape->elem_bytes);
    switch (k) {
    case 0: case_frame(pixels, ZEROS, 0, shape); break;
    case 1: case_frame(pixels, ALL_MAXIMUM, 0, shape); break;
    case 2: case_frame(pixels, UNIFORM, 0, shape); break;
    case 3: /* here and there another value: also in constants' places, and far apart */
        for (uint64_t i = 0; i < shape->n_elems; i += 1 + case_random() % (1 + i))
            set_pixel(pixels, i, (uint32_t)case_random() & largest >> case_random() % 32, shape);
        break;
    case 4: /* more patches than there may be, in the largest frame */
        for (uint64_t i = 0; i < shape->n_elems; i += 3)
            set_pixel(pixels, i, 9, shape);
        break;
    default: /* constants, and many patches */
        for (uint64_t i = 0; i < shape->n_elems; i += 1 + case_random() % 97)
            set_pixel(pixels, i, 9, shape);
    }
}

static inline void take_model(struct trial *trial, struct counts_model *model)
{
    trial->n_streams = model->n_streams;
    trial->segment = make_memory(counts_model_segment_bytes(model));
    trial->encoder = make_memory(sizeof(*trial->encoder));
    counts_model_segment(model, trial->segment);
    counts_model_encoder(model, trial->encoder);
    counts_model_fini(model);
}

/* Make a model of n frames, `apart` bytes from one to the next. */
static inline bool make_model(struct trial *trial, const uint8_t *pixels, size_t apart, uint32_t n,
                              uint32_t n_streams)
{
    struct counts_model model = {0};
    const struct frame_shape *shape = &trial->shape;
    size_t bytes = frame_bytes(shape);
    uint64_t n_sample = counts_sample_frames(shape->n_elems, n);
    uint64_t *sums = make_memory(shape->n_elems * sizeof(*sums));
    uint8_t *sample = make_memory(n_sample * bytes);
    for (uint64_t i = 0; i < n_sample; i++)
        memcpy(sample + i * bytes, pixels + i * n / n_sample * apart, bytes);
    for (uint32_t f = 0; f < n; f++)
        for (uint64_t i = 0; i < shape->n_elems; i++)
            sums[i] += case_pixel(pixels + f * apart, i, shape->elem_bytes);
    int rc = counts_model_train(&model, sample, n_sample, sums, n, shape, n_streams);
    CHECK_INT(rc, 0);
    if (!rc)
        take_model(trial, &model);
    free(sums);
    free(sample);
    return !rc;
}

static inline void end_trial(struct trial *trial)
{
    free(trial->segment);
    free(trial->encoder);
    free(trial->pixels);
}

/* ---- encoding ------------------------------------------------------------------------------------- */

/* What a GPU needs to encode n frames, and what it has made of them. */
struct encoding {
    uint64_t pixels, frames, segment, encoder, rooms, streams;
    uint32_t n;
    struct work work;
};

/* The first n_pixels frames are there; frame i is number i % n_pixels of them, at its own place. */
static inline void open_encoding(struct encoding *encoding, const struct trial *trial,
                                 uint32_t n_pixels, uint32_t n)
{
    uint64_t *frames = make_memory(n * sizeof(*frames));
    size_t bytes = trial->pixel_bytes;
    *encoding = (struct encoding){.n = n};
    encoding->pixels = on_device(NULL, n * bytes);
    for (uint32_t i = 0; i < n; i++) {
        frames[i] = encoding->pixels + i * bytes;
        must(cudaMemcpy((void *)(uintptr_t)frames[i], trial_frame(trial, i % n_pixels),
                        frame_bytes(&trial->shape), cudaMemcpyHostToDevice),
             "upload");
    }
    encoding->frames = on_device(frames, n * sizeof(*frames));
    encoding->segment = on_device(trial->segment, trial->segment->bytes);
    encoding->encoder = on_device(trial->encoder, sizeof(*trial->encoder));
    encoding->rooms = on_device(NULL, n * trial->room_stride);
    encoding->streams = on_device(NULL, (n + 1) * trial->n_streams * sizeof(struct counts_stream));
    encoding->work = (struct work){.kind = WORK_ENCODE,
                                   .n = n,
                                   .shape = trial->shape,
                                   .encode = {.frames = encoding->frames,
                                              .segment = encoding->segment,
                                              .encoder = encoding->encoder,
                                              .rooms = encoding->rooms,
                                              .room_stride = trial->room_stride,
                                              .streams = encoding->streams,
                                              .n_streams = trial->n_streams}};
    free(frames);
}

static inline void close_encoding(struct encoding *encoding)
{
    uint64_t memory[] = {encoding->pixels,  encoding->frames, encoding->segment,
                         encoding->encoder, encoding->rooms,  encoding->streams};
    for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++)
        release(memory[i]);
}

#endif
