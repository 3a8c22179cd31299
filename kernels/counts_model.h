/* SPDX-License-Identifier: Apache-2.0
 *
 * counts_model: the model of a segment: learnt from some of its frames, by integer arithmetic alone, so that it is
 * the same on every machine and for both devices; and the tables that decoders and encoders use, made from it.
 *
 * Happy path: counts_model_train, then counts_model_segment and counts_model_encoder into memory of the right size.
 * A model can be packed (what a .stow file keeps: frequencies rather than tables) and unpacked again, which
 * believes nothing. A zeroed model is safe to _fini. Any thread; nothing is shared. */
#ifndef STOW_COUNTS_MODEL_H
#define STOW_COUNTS_MODEL_H

#include "counts.h"

#include "error.h"

/* Frames of a segment, but for the last of an acquisition: a power of two from 128 to 8,192, with at most
 * 160 Mi pixels where that is more than 128. */
uint64_t counts_segment_frames(uint64_t n_elems);

/* How many of a segment's n frames are looked at: n, or fewer, so that they have about 2 Mi pixels; 2 at least
 * (unless n is 1). Those are frames i * n / n_sample. */
uint64_t counts_sample_frames(uint64_t n_elems, uint64_t n);

struct counts_model {
    uint32_t n_streams, n_tiles, n_granules, n_constants;
    uint32_t until4, until2, until1;
    struct counts_class classes[COUNTS_CLASSES];
    uint16_t freq[COUNTS_CLASSES][256]; /* states of each symbol; 2,048 in each class */
    uint8_t coded[COUNTS_CLASSES][256]; /* see counts_symbol; not kept by pack */
    uint16_t *order;                    /* [n_granules][64] units in their tile, in stream order */
    uint8_t *granules;                  /* [n_granules] class */
    struct counts_constant *constants;
};

/* Learn.
 *   sample      [n_sample] frames of the segment, one behind the other, C order
 *   pixel_sums  [n_elems] over all n_frames of the segment
 *   n_streams   1 to COUNTS_MAX_STREAMS; fewer are made where there are fewer tiles
 * 0, STOW_NOMEM, or STOW_UNSUPPORTED for a frame of over COUNTS_MAX_TILES tiles or of no pixels. */
int counts_model_train(struct counts_model *model, const void *sample, uint64_t n_sample,
                       const uint64_t *pixel_sums, uint64_t n_frames,
                       const struct frame_shape *shape, uint32_t n_streams);
void counts_model_fini(struct counts_model *model);

/* The table that decoders use, into counts_model_segment_bytes bytes. */
uint32_t counts_model_segment_bytes(const struct counts_model *model);
void counts_model_segment(const struct counts_model *model, void *segment);

/* What encoders use besides. Only for a model that was trained. */
void counts_model_encoder(const struct counts_model *model, struct counts_encoder *encoder);

/* Packed: little-endian, as docs/formats.md has it. */
size_t counts_model_packed_bytes(const struct counts_model *model);
void counts_model_pack(const struct counts_model *model, uint8_t *packed);
/* STOW_CORRUPT when the bytes are no model for this shape (every number is checked), STOW_NOMEM. */
int counts_model_unpack(struct counts_model *model, const uint8_t *packed, size_t bytes,
                        const struct frame_shape *shape, struct stow_error *err);

#endif
