/* SPDX-License-Identifier: Apache-2.0
 *
 * bslz4 on the GPU. A frame is cut into spans of 8 KiB; a warp takes one span of one frame and decodes the
 * blocks that fall to it: exactly one where blocks have their usual size. The block table makes the blocks
 * of a frame independent; what it says is checked against the chunk's own lengths. Warps share nothing and
 * never wait for each other. Two make a thread block, which lets a multiprocessor of sm_90 hold 26 warps, where
 * single ones would be 24; more to a block would keep those done waiting for the last.
 *
 * The way of a block: its compressed bytes are staged at the end of a window in shared memory; LZ4 decodes
 * from there to the window's beginning; the bits are untransposed in registers on the way to the frame. One
 * buffer does for both ends because a valid block never writes past what it has read (MARGIN); a damaged one
 * that does is found out before it writes. bslz4_lz4.cuh decodes LZ4, bslz4_bits.cuh transposes.
 *
 * Blocks larger than the window are rare (no known writer makes them unless told to). They are decoded
 * without one: each byte goes straight to its bits in the frame, and a match gathers them from there. Slow,
 * but bounded and right for any size.
 *
 * A fault writes STOW_CORRUPT to the frame's status and leaves alone what is not the frame's. */
#include "bslz4.h"
#include "bslz4_bits.cuh"
#include "bslz4_lz4.cuh"
#include "launch.h"

#define BLOCK_WARPS 2u
#define BLOCKS_AT_ONCE 13u /* on a multiprocessor of sm_90: registers must allow what windows do */

/* ---- copies in global memory ---------------------------------------------------------------------- */

/* n bytes; to and from have the same place within 16 bytes. */
static __device__ void copy_alike(uint8_t *__restrict__ to, const uint8_t *__restrict__ from,
                                  uint32_t n, uint32_t lane)
{
    uint32_t head = min(n, (uint32_t)(0 - (uintptr_t)from) & 15);
    uint32_t tail = head + ((n - head) & ~15u);
    for (uint32_t i = lane; i < head; i += WARP)
        to[i] = from[i];
#pragma unroll 4
    for (uint32_t i = head + 16 * lane; i < tail; i += 16 * WARP)
        *(uint4 *)(to + i) = *(const uint4 *)(from + i);
    for (uint32_t i = tail + lane; i < n; i += WARP)
        to[i] = from[i];
}

/* Four bytes at a time to a 4-byte aligned `to`, from anywhere; nothing outside n bytes is read. */
static __device__ void copy_words(uint8_t *__restrict__ to, const uint8_t *__restrict__ from,
                                  uint32_t n, uint32_t lane)
{
    uint32_t skew = (uint32_t)(uintptr_t)from & 3;
    const uint32_t *words = (const uint32_t *)(from - skew);
    uint32_t end = n < 12 ? 1 : (n - 4) / 4;
    for (uint32_t i = lane; i < min(4u, n); i += WARP)
        to[i] = from[i];
#pragma unroll 4
    for (uint32_t i = 1 + lane; i < end; i += WARP)
        ((uint32_t *)to)[i] = __funnelshift_r(words[i], words[i + 1], 8 * skew);
    for (uint32_t i = 4 * end + lane; i < n; i += WARP)
        to[i] = from[i];
}

static __device__ void copy_span(uint8_t *to, const uint8_t *from, uint32_t n, uint32_t lane)
{
    uintptr_t apart = (uintptr_t)to ^ (uintptr_t)from;
    if (apart % 16 == 0)
        copy_alike(to, from, n, lane);
    else if ((uintptr_t)to % 4 == 0)
        copy_words(to, from, n, lane);
    else
        for (uint32_t i = lane; i < n; i += WARP)
            to[i] = from[i];
}

/* n bytes of elements that all have this value. */
static __device__ void fill_span(uint8_t *to, uint32_t n, uint64_t value, uint32_t elem_bytes,
                                 uint32_t lane)
{
    uint32_t head = min(n, (uint32_t)(0 - (uintptr_t)to) & 15);
    uint32_t tail = head + ((n - head) & ~15u);
    uint32_t words[2] = {0, 0}; /* what every 8 bytes from there are */
    for (uint32_t b = 0; b < 8; b++)
        words[b / 4] |= (uint32_t)(value >> ((head + b) % elem_bytes * 8) & 0xff) << (8 * (b % 4));
    for (uint32_t i = lane; i < head; i += WARP)
        to[i] = (uint8_t)(value >> (i % elem_bytes * 8));
    for (uint32_t i = head + 16 * lane; i < tail; i += 16 * WARP)
        *(uint4 *)(to + i) = make_uint4(words[0], words[1], words[0], words[1]);
    for (uint32_t i = tail + lane; i < n; i += WARP)
        to[i] = (uint8_t)(value >> (i % elem_bytes * 8));
}

/* ---- bit transposition ---------------------------------------------------------------------------- */

static __device__ void untranspose_block(const struct block *block, const uint8_t *window,
                                         uint32_t elem_bytes, uint32_t lane)
{
    uint32_t n_columns = block->bytes / (8 * elem_bytes);
    bool aligned = n_columns % 8 == 0;
    if (elem_bytes == 2 && aligned)
        untranspose<2, 2, true>(block->dst, window, n_columns, lane);
    else if (elem_bytes == 2)
        untranspose<2, 2, false>(block->dst, window, n_columns, lane);
    else if (elem_bytes == 8 && aligned)
        untranspose_halves<true>(block->dst, window, n_columns, lane);
    else if (elem_bytes == 8)
        untranspose_halves<false>(block->dst, window, n_columns, lane);
    else if (elem_bytes == 4 && aligned)
        untranspose<4, 4, true>(block->dst, window, n_columns, lane);
    else if (elem_bytes == 4)
        untranspose<4, 4, false>(block->dst, window, n_columns, lane);
    else if (aligned)
        untranspose<1, 1, true>(block->dst, window, n_columns, lane);
    else
        untranspose<1, 1, false>(block->dst, window, n_columns, lane);
}

/* ---- blocks without a window ---------------------------------------------------------------------- */

/* Where byte `at` of a block's transposed bytes has its bits: bit `bit` of 8 bytes, elem_bytes apart. */
struct spread {
    uint8_t *bytes;
    uint32_t bit;
};

static __device__ struct spread spread_of(const struct block *block, uint32_t at,
                                          uint32_t elem_bytes)
{
    uint32_t n_columns = block->bytes / (8 * elem_bytes);
    uint32_t row = at / n_columns, column = at % n_columns;
    return {block->dst + (uint64_t)column * 8 * elem_bytes + row / 8, row % 8};
}

static __device__ uint8_t gather_byte(struct spread from, uint32_t elem_bytes)
{
    uint32_t byte = 0;
    for (uint32_t i = 0; i < 8; i++)
        byte |= (from.bytes[i * elem_bytes] >> from.bit & 1u) << i;
    return (uint8_t)byte;
}

/* Bit 0 is always the first of its byte to be written, and clears the others. */
static __device__ void scatter_byte(struct spread to, uint8_t byte, uint32_t elem_bytes)
{
    for (uint32_t i = 0; i < 8; i++) {
        uint8_t *target = to.bytes + i * elem_bytes;
        uint8_t kept = to.bit == 0 ? 0 : *target;
        *target = (uint8_t)(kept | (byte >> i & 1u) << to.bit);
    }
}

/* n bytes to position `to`, from `from` if that is not NULL, else from span bytes back, n <= span. Between
 * two syncs WARP neighbours are written, and rows are longer: no two lanes meet in a byte. */
static __device__ void copy_scattered(const struct block *block, uint32_t to, const uint8_t *from,
                                      uint32_t span, uint32_t n, uint32_t elem_bytes, uint32_t lane)
{
    for (uint32_t base = 0; base < n; base += WARP) {
        uint32_t i = base + lane;
        uint8_t byte = 0;
        if (i < n)
            byte = from ? from[i]
                        : gather_byte(spread_of(block, to + i - span, elem_bytes), elem_bytes);
        __syncwarp();
        if (i < n)
            scatter_byte(spread_of(block, to + i, elem_bytes), byte, elem_bytes);
        __syncwarp();
    }
}

/* Decode a block of any size over SPAN_BYTES straight to the frame. The whole warp calls this. */
static __device__ __noinline__ bool decode_large(const struct block *block, uint32_t elem_bytes,
                                                 uint32_t lane)
{
    uint32_t at = 0, done = 0;
    struct lz4_sequence sequence;
    do {
        if (!lz4_read_sequence(&sequence, block->in, at, block->in_bytes, done, block->bytes))
            return false;
        uint32_t rest = block->dst ? sequence.n_match : 0, span = sequence.offset;
        if (block->dst)
            copy_scattered(block, done, block->in + sequence.literals, 0, sequence.n_literals,
                           elem_bytes, lane);
        uint32_t to = done + sequence.n_literals;
        while (rest > 0) {
            uint32_t n = min(rest, span);
            copy_scattered(block, to, NULL, span, n, elem_bytes, lane);
            to += n;
            rest -= n;
            span *= 2;
        }
        done += sequence.n_literals + sequence.n_match;
        at = sequence.next;
    } while (sequence.n_match);
    return true;
}

/* ---- frames --------------------------------------------------------------------------------------- */

/* Read the header, and check it and the raw tail against the table. */
static __device__ bool open_chunk(struct bslz4_layout *layout, const struct decode_job *job,
                                  const struct frame_shape *shape)
{
    const uint32_t *blocks = (const uint32_t *)job->blocks;
    uint32_t n_listed = blocks[0]; /* on its way while the header is read */
    if (bslz4_read_layout(layout, (const uint8_t *)job->src, job->src_bytes, shape) != BSLZ4_GOOD ||
        n_listed != layout->n_blocks)
        return false;
    uint32_t tail_at = bslz4_block_at(blocks, layout->n_blocks);
    return tail_at <= job->src_bytes && job->src_bytes - tail_at == layout->tail_bytes;
}

static __device__ bool find_block(struct block *block, uint32_t b,
                                  const struct bslz4_layout *layout, const struct decode_job *job)
{
    const uint32_t *blocks = (const uint32_t *)job->blocks;
    const uint8_t *src = (const uint8_t *)job->src;
    uint32_t at = bslz4_block_at(blocks, b), next = bslz4_block_at(blocks, b + 1);
    if (at < BSLZ4_HEADER_BYTES || at > job->src_bytes || job->src_bytes - at < 4)
        return false;
    uint32_t bytes = bslz4_block_bytes(layout, b), in_bytes = bslz4_be32(src + at);
    if (in_bytes == 0 || in_bytes > job->src_bytes - at - 4 || at + 4 + in_bytes != next ||
        in_bytes > bslz4_max_lz4_bytes(bytes))
        return false;
    *block = {src + at + 4, in_bytes, bytes, NULL};
    if (job->dst)
        block->dst = (uint8_t *)job->dst + (uint64_t)b * layout->block_bytes;
    return true;
}

/* One block, in the window or without. The whole warp calls this. */
static __device__ bool decode_block(uint8_t *window, const struct block *block, uint32_t elem_bytes,
                                    uint32_t lane)
{
    if (block->bytes > SPAN_BYTES)
        return decode_large(block, elem_bytes, lane);
    bool good = decode_lz4(window, block, lane);
    if (good && block->dst)
        untranspose_block(block, window, elem_bytes, lane);
    __syncwarp(); /* before the window is filled again */
    return good;
}

/* The bytes of a span that are not in blocks: all of a raw frame or of one never written, a chunk's tail.
 * False if the frame is not what it says. */
static __device__ bool decode_plain(const struct decode_job *job, const struct frame_shape *shape,
                                    uint32_t span, uint32_t tail_bytes, uint32_t lane)
{
    uint64_t total = frame_bytes(shape), at = (uint64_t)span * SPAN_BYTES;
    uint32_t n = (uint32_t)min((uint64_t)SPAN_BYTES, total - at);
    uint8_t *dst = (uint8_t *)job->dst;
    const uint8_t *src = (const uint8_t *)job->src;
    switch (job->form) {
    case STOW_FORM_BSLZ4:
        if (dst && span == 0)
            for (uint32_t i = lane; i < tail_bytes; i += WARP)
                dst[total - tail_bytes + i] = src[job->src_bytes - tail_bytes + i];
        return true;
    case STOW_FORM_RAW:
        if (job->src_bytes != total)
            return false;
        if (dst)
            copy_span(dst + at, src + at, n, lane);
        return true;
    case STOW_FORM_FILL:
        if (dst)
            fill_span(dst + at, n, shape->fill, shape->elem_bytes, lane);
        return true;
    default: return false;
    }
}

/* ---- kernels -------------------------------------------------------------------------------------- */

/* A warp for each of n_spans spans of each frame, n_units in all. */
static __global__ void __launch_bounds__(BLOCK_WARPS *WARP, BLOCKS_AT_ONCE)
    decode_frames(int32_t *status, const struct decode_job *jobs, const uint32_t *picks,
                  uint32_t n_units, uint32_t n_spans, struct frame_shape shape)
{
    __shared__ __align__(16) uint8_t buffers[BLOCK_WARPS][BEFORE_WINDOW + WINDOW_BYTES];
    uint8_t *window = buffers[threadIdx.y] + BEFORE_WINDOW;
    uint32_t lane = threadIdx.x, unit = blockIdx.x * BLOCK_WARPS + threadIdx.y;
    uint32_t frame = unit / n_spans, span = unit % n_spans;
    if (unit >= n_units)
        return;
    if (picks)
        frame = picks[frame];
    struct decode_job job = jobs[frame];
    struct bslz4_layout layout = {0, 0, 0, 0};

    bool good = job.form != STOW_FORM_BSLZ4 || open_chunk(&layout, &job, &shape);
    good = good && decode_plain(&job, &shape, span, layout.tail_bytes, lane);
    uint32_t n_blocks = good ? (uint32_t)layout.n_blocks : 0;
    for (uint32_t b = span; b < n_blocks; b += n_spans) {
        struct block block;
        good = find_block(&block, b, &layout, &job) &&
               decode_block(window, &block, shape.elem_bytes, lane) && good;
    }
    if (!good && lane == 0)
        status[frame] = STOW_CORRUPT;
}

/* ---- launchers ------------------------------------------------------------------------------------ */

extern "C" cudaError_t launch_decode(int32_t *status_dev, const struct decode_job *jobs_dev,
                                     const uint32_t *picks_dev, size_t n, struct frame_shape shape,
                                     cudaStream_t stream)
{
    uint64_t total = frame_bytes(&shape);
    uint64_t n_spans = total == 0 ? 1 : (total - 1) / SPAN_BYTES + 1;
    if (n == 0)
        return cudaSuccess;
    if (n > INT32_MAX || n_spans > INT32_MAX / n)
        return cudaErrorInvalidValue;
    uint32_t n_units = (uint32_t)(n * n_spans), n_thread_blocks = (n_units - 1) / BLOCK_WARPS + 1;
    decode_frames<<<n_thread_blocks, dim3(WARP, BLOCK_WARPS), 0, stream>>>(
        status_dev, jobs_dev, picks_dev, n_units, (uint32_t)n_spans, shape);
    return cudaGetLastError();
}

/* Load the kernel now, and let its windows have the shared memory they can get. */
extern "C" cudaError_t launch_load_bslz4(void)
{
    const void *kernel = (const void *)decode_frames;
    struct cudaFuncAttributes attributes;
    cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    if (error != cudaSuccess)
        return error;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                cudaSharedmemCarveoutMaxShared);
}
