/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_counts: a packed model and an encoded frame that keep no promise. A model that is taken packs to the bytes
 * that it was; decoding with it and checking say the same, write inside the frame only, and read inside what there
 * is only: each has memory of its exact size.
 *
 * First byte: the element size (low two bits), and whether the model is made up rather than read (bit 7), so that
 * frames get far. Second and third: elements, little-endian. Next three: bytes of the packed model, which follows;
 * made up, they are its seed. The rest is the frame. */
#include "bslz4.h"
#include "counts_model.h"
#include "error.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define HEAD 6u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* A model without any learning, but with every kind of class. */
static void make_up(struct counts_model *model, const struct frame_shape *shape, uint32_t seed)
{
    *model = (struct counts_model){.n_tiles = counts_n_tiles(shape->n_elems),
                                   .n_granules = counts_n_granules(shape->n_elems),
                                   .until4 = seed & 3,
                                   .until2 = 3,
                                   .until1 = 5};
    model->n_streams = 1 + (seed >> 2 & 7) % model->n_tiles;
    model->order = malloc((size_t)model->n_granules * COUNTS_GRANULE_UNITS * sizeof(uint16_t));
    model->granules = malloc(model->n_granules);
    model->constants = malloc(sizeof(*model->constants));
    assert(model->order && model->granules && model->constants);
    for (uint32_t k = 0; k < COUNTS_CLASSES; k++)
        for (uint32_t i = 0; i < COUNTS_STATES; i++)
            model->freq[k][seed >> 5 & 1 ? i % 256 : i % (k + 2)]++;
    if (shape->elem_bytes == 4)
        model->classes[7] = (struct counts_class){seed >> 8, seed % (COUNTS_MAX_SHIFT + 1)};
    for (uint32_t i = 0; i < model->n_granules * COUNTS_GRANULE_UNITS; i++)
        model->order[i] = (uint16_t)(i % COUNTS_TILE_UNITS);
    for (uint32_t g = 0; g < model->n_granules; g++)
        model->granules[g] = (uint8_t)((g + seed) % COUNTS_CLASSES);
    model->constants[model->n_constants++] =
        (struct counts_constant){seed % (uint32_t)shape->n_elems, seed & 0xff};
}

static void check_packing(const struct counts_model *model, const uint8_t *packed, size_t bytes)
{
    assert(counts_model_packed_bytes(model) == bytes);
    uint8_t *again = malloc(bytes);
    assert(again);
    counts_model_pack(model, again);
    assert(memcmp(packed, again, bytes) == 0);
    free(again);
}

static void decode_both(const struct counts_model *model, const uint8_t *data, size_t bytes,
                        const struct frame_shape *shape)
{
    uint8_t *dst = malloc(frame_bytes(shape)), *src = malloc(bytes + !bytes);
    struct counts_segment *segment = malloc(counts_model_segment_bytes(model));
    struct stow_error err = {0};
    assert(dst && src && segment);
    memcpy(src, data, bytes);
    counts_model_segment(model, segment);
    struct decode_job job = {
        .src = (uintptr_t)src,
        .src_bytes = (uint32_t)bytes,
        .blocks = (uintptr_t)segment,
        .form = STOW_FORM_COUNTS,
    };
    int checked = decode_frame(&job, shape, NULL);
    job.dst = (uintptr_t)dst;
    int decoded = decode_frame(&job, shape, &err);
    assert(checked == decoded);
    assert(decoded == 0 || (decoded == STOW_CORRUPT && err.text[0]));
    free(segment);
    free(src);
    free(dst);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes < HEAD)
        return 0;
    struct frame_shape shape = {
        .n_elems = data[1] | (uint64_t)data[2] << 8,
        .elem_bytes = (data[0] & 3) == 0   ? 1
                      : (data[0] & 3) == 1 ? 2
                                           : 4,
    };
    uint32_t number = data[3] | (uint32_t)data[4] << 8 | (uint32_t)data[5] << 16;
    struct counts_model model = {0};
    data += HEAD;
    bytes -= HEAD;
    if (data[-(int)HEAD] & 0x80) {
        if (shape.n_elems == 0)
            return 0;
        make_up(&model, &shape, number);
    } else {
        size_t model_bytes = number < bytes ? number : bytes;
        uint8_t *packed = malloc(model_bytes + !model_bytes);
        struct stow_error err = {0};
        assert(packed);
        memcpy(packed, data, model_bytes);
        int status = counts_model_unpack(&model, packed, model_bytes, &shape, &err);
        assert(status == 0 || (status == STOW_CORRUPT && err.text[0]));
        if (status == 0)
            check_packing(&model, packed, model_bytes);
        free(packed);
        if (status)
            return 0;
        data += model_bytes;
        bytes -= model_bytes;
    }
    decode_both(&model, data, bytes, &shape);
    counts_model_fini(&model);
    return 0;
}
