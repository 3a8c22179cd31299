/* SPDX-License-Identifier: Apache-2.0
 *
 * bslz4 on the GPU. A frame is cut into spans of 8 KiB; a group of LANES lanes takes one span of one frame
 * and decodes the blocks that fall to it: exactly one where blocks have their usual size. The block table
 * makes the blocks of a frame independent; what it says is checked against the chunk's own lengths.
 *
 * The way of a block: its compressed bytes are staged at the end of a window in shared memory; LZ4 decodes
 * from there to the window's beginning; the bits are untransposed in registers on the way to the frame. One
 * buffer does for both ends because a valid block never writes past what it has read (MARGIN); where a
 * damaged one does, it is found out at the next sequence. All lanes of a group read each sequence alike, then
 * copy together: the first STEP bytes of a sequence at once, literals and match, the rest in wide copies.
 *
 * Lanes of several groups share a warp, so everything between two syncs is written for the whole warp: a
 * group without work goes along with lengths of 0. A block is one warp, which spreads few frames over many
 * multiprocessors and lets no warp wait for another.
 *
 * Blocks larger than the window are rare (no known writer makes them unless told to). They are decoded
 * without one: each byte goes straight to its bits in the frame, and a match gathers them from there. Slow,
 * but bounded and right for any size.
 *
 * A fault writes STOW_CORRUPT to the frame's status and leaves alone what is not the frame's. */
#include "bslz4.h"
#include "bslz4_bits.cuh"
#include "launch.h"

#define WARP 32u
#define ALL_LANES 0xffffffffu
#define STEP 32u         /* bytes of a sequence that are copied at once */
#define SPAN_BYTES 8192u /* the largest block that has a window */
#define MARGIN 48u       /* bslz4_max_lz4_bytes(n) <= n + MARGIN up to SPAN_BYTES */
#define OVERREAD 32u     /* how far loads may look past the input */
#define WINDOW_BYTES (SPAN_BYTES + MARGIN + 16u + OVERREAD)

/* Lanes that share a block when there are many blocks, and when there are few and latency counts. */
#ifndef BSLZ4_BULK_LANES
#define BSLZ4_BULK_LANES 32
#endif
#define FEW_BLOCKS 1024u

static_assert(SPAN_BYTES / 255 + 16 <= MARGIN, "compressed bytes must not meet decoded ones");
static_assert(WINDOW_BYTES % 16 == 0, "windows are 16-byte aligned");

/* Whether x holds in any group of this warp. One group is a whole warp, or x differs between groups only. */
template <unsigned LANES> static __device__ bool any(bool x)
{
    return LANES == WARP ? x : __any_sync(ALL_LANES, x);
}

/* ---- copies between global memory and elsewhere --------------------------------------------------- */

/* n bytes; to and from have the same place within 16 bytes. */
template <unsigned LANES>
static __device__ void copy_alike(uint8_t *__restrict__ to, const uint8_t *__restrict__ from,
                                  uint32_t n, uint32_t lane)
{
    uint32_t head = min(n, (uint32_t)(0 - (uintptr_t)from) & 15);
    uint32_t tail = head + ((n - head) & ~15u);
    for (uint32_t i = lane; i < head; i += LANES)
        to[i] = from[i];
#pragma unroll 4
    for (uint32_t i = head + 16 * lane; i < tail; i += 16 * LANES)
        *(uint4 *)(to + i) = *(const uint4 *)(from + i);
    for (uint32_t i = tail + lane; i < n; i += LANES)
        to[i] = from[i];
}

/* Four bytes at a time to a 4-byte aligned `to`, from anywhere; nothing outside n bytes is read. */
template <unsigned LANES>
static __device__ void copy_words(uint8_t *__restrict__ to, const uint8_t *__restrict__ from,
                                  uint32_t n, uint32_t lane)
{
    uint32_t skew = (uint32_t)(uintptr_t)from & 3;
    const uint32_t *words = (const uint32_t *)(from - skew);
    uint32_t end = n < 12 ? 1 : (n - 4) / 4;
    for (uint32_t i = lane; i < min(4u, n); i += LANES)
        to[i] = from[i];
#pragma unroll 4
    for (uint32_t i = 1 + lane; i < end; i += LANES)
        ((uint32_t *)to)[i] = __funnelshift_r(words[i], words[i + 1], 8 * skew);
    for (uint32_t i = 4 * end + lane; i < n; i += LANES)
        to[i] = from[i];
}

template <unsigned LANES>
static __device__ void copy_span(uint8_t *to, const uint8_t *from, uint32_t n, uint32_t lane)
{
    uintptr_t apart = (uintptr_t)to ^ (uintptr_t)from;
    if (apart % 16 == 0)
        copy_alike<LANES>(to, from, n, lane);
    else if ((uintptr_t)to % 4 == 0)
        copy_words<LANES>(to, from, n, lane);
    else
        for (uint32_t i = lane; i < n; i += LANES)
            to[i] = from[i];
}

/* n bytes of elements that all have this value. */
template <unsigned LANES>
static __device__ void fill_span(uint8_t *to, uint32_t n, uint64_t value, uint32_t elem_bytes,
                                 uint32_t lane)
{
    uint32_t head = min(n, (uint32_t)(0 - (uintptr_t)to) & 15);
    uint32_t tail = head + ((n - head) & ~15u);
    uint32_t word = 0;
    for (uint32_t b = 0; b < 4; b++)
        word |= (uint32_t)(value >> ((head + b) % elem_bytes * 8) & 0xff) << (8 * b);
    for (uint32_t i = lane; i < head; i += LANES)
        to[i] = (uint8_t)(value >> (i % elem_bytes * 8));
    for (uint32_t i = head + 16 * lane; i < tail; i += 16 * LANES)
        *(uint4 *)(to + i) = make_uint4(word, word, word, word);
    for (uint32_t i = tail + lane; i < n; i += LANES)
        to[i] = (uint8_t)(value >> (i % elem_bytes * 8));
}

/* ---- LZ4 in a window ------------------------------------------------------------------------------ */

/* n bytes within the window. The whole warp calls this, groups without work with n 0. The two may overlap
 * when from > to. Edges are read first and written last, so that the wide middle finds its source whole. */
template <unsigned LANES>
static __device__ void copy_within(uint8_t *window, uint32_t to, uint32_t from, uint32_t n,
                                   uint32_t lane)
{
    bool wide = (to - from) % 16 == 0;
    uint32_t unit = wide ? 16 : 4;
    uint32_t head = min(n, (0 - to) & (unit - 1));
    uint32_t n_units = (n - head) / unit;
    uint32_t middle = head + n_units * unit;

    uint8_t edge[STEP / LANES];
    uint32_t edge_at[STEP / LANES]; /* n: none */
    for (uint32_t u = 0; u < STEP / LANES; u++) {
        uint32_t i = lane + u * LANES;
        edge_at[u] = i < 16 ? (i < head ? i : n) : min(n, middle + i - 16);
        edge[u] = edge_at[u] < n ? window[from + edge_at[u]] : 0;
    }

    uint32_t n_wide = wide ? n_units : 0, n_words = wide ? 0 : n_units;
    uint4 *wide_to = (uint4 *)(window + to + head);
    const uint4 *wide_from = (const uint4 *)(window + from + head);
    for (uint32_t base = 0; any<LANES>(base < n_wide); base += LANES) {
        bool mine = base + lane < n_wide;
        uint4 value = mine ? wide_from[base + lane] : make_uint4(0, 0, 0, 0);
        __syncwarp();
        if (mine)
            wide_to[base + lane] = value;
        __syncwarp();
    }

    uint32_t skew = (from + head) & 3;
    uint32_t *word_to = (uint32_t *)(window + to + head);
    const uint32_t *word_from = (const uint32_t *)(window + from + head - skew);
    for (uint32_t base = 0; any<LANES>(base < n_words); base += LANES) {
        bool mine = base + lane < n_words;
        uint32_t value = 0;
        if (mine)
            value = __funnelshift_r(word_from[base + lane], word_from[base + lane + 1], 8 * skew);
        __syncwarp();
        if (mine)
            word_to[base + lane] = value;
        __syncwarp();
    }

    __syncwarp();
    for (uint32_t u = 0; u < STEP / LANES; u++)
        if (edge_at[u] < n)
            window[to + edge_at[u]] = edge[u];
    __syncwarp();
}

/* The usual sequence, whose lengths are in its token, without a branch; false if it is another kind or not
 * a good one: lz4_read_sequence then tells. May look 17 bytes past the input. */
static __device__ bool read_short(struct lz4_sequence *sequence, const uint8_t *in, uint32_t at,
                                  uint32_t in_bytes, uint32_t done, uint32_t block_bytes)
{
    uint32_t token = in[at], n_literals = token >> 4, nibble = token & 15;
    uint32_t end = at + 1 + n_literals;
    uint32_t offset = (uint32_t)in[end] | (uint32_t)in[end + 1] << 8;
    uint32_t filled = done + n_literals;
    *sequence = {at + 1, n_literals, offset, nibble + 4, end + 2};
    return (n_literals != 15) & (nibble != 15) & (end + 2 <= in_bytes) &
           (filled + nibble + 4 <= block_bytes) & (offset - 1 < filled);
}

/* A lane keeps this for its number in the warp, so that i / n for i < 2 * STEP is a shuffle, a multiplication
 * and a shift: floor(2^16 / n) + 1, and 0 for 0. */
static __device__ uint32_t reciprocal_of_lane()
{
    return threadIdx.x == 0 ? 0 : 65536 / threadIdx.x + 1;
}

/* Where byte i of a sequence comes from, while nothing of the sequence is written: its literals are in the
 * input, and a match that overlaps itself repeats the offset bytes before it. reciprocal: of the offset, 0 if
 * that is STEP or more. */
static __device__ uint32_t byte_source(uint32_t i, uint32_t done, uint32_t literals,
                                       uint32_t n_literals, uint32_t offset, uint32_t reciprocal)
{
    uint32_t laps = (i - n_literals) * reciprocal >> 16;
    int32_t from = (int32_t)(i < n_literals ? i : i - offset - laps * offset);
    return (from < 0 ? done : literals) + from;
}

/* Put a sequence's bytes at `done`; the input is at in_at of the same window. The whole warp calls this. */
template <unsigned LANES>
static __device__ void copy_sequence(uint8_t *window, uint32_t in_at, uint32_t done,
                                     const struct lz4_sequence *sequence, uint32_t lane,
                                     uint32_t reciprocal_of_lane)
{
    uint32_t literals = in_at + sequence->literals, n_literals = sequence->n_literals;
    uint32_t offset = sequence->offset, n_match = sequence->n_match;
    bool many = n_literals > STEP;
    if (any<LANES>(many)) {
        copy_within<LANES>(window, done, literals, many ? n_literals : 0, lane);
        done += many ? n_literals : 0;
        n_literals = many ? 0 : n_literals;
    }

    uint32_t first = min(n_literals + n_match, STEP);
    uint32_t reciprocal = __shfl_sync(ALL_LANES, reciprocal_of_lane, offset % WARP);
    reciprocal = offset < WARP ? reciprocal : 0;
    uint8_t bytes[STEP / LANES];
    for (uint32_t u = 0; u < STEP / LANES; u++) {
        uint32_t i = lane + u * LANES;
        bytes[u] =
            i < first ? window[byte_source(i, done, literals, n_literals, offset, reciprocal)] : 0;
    }
    __syncwarp();
    for (uint32_t u = 0; u < STEP / LANES; u++)
        if (lane + u * LANES < first)
            window[done + lane + u * LANES] = bytes[u];
    __syncwarp();

    uint32_t rest = n_literals + n_match - first;
    if (!any<LANES>(rest > 0))
        return;
    /* What is there repeats, so each round has twice as much to copy from. */
    uint32_t to = done + first, span = offset;
    while (rest > 0 && 2 * span <= offset + first - n_literals)
        span *= 2;
    while (any<LANES>(rest > 0)) {
        uint32_t n = min(rest, span);
        copy_within<LANES>(window, to, to - span, n, lane);
        to += n;
        rest -= n;
        span *= 2;
    }
}

/* A block to be decoded; in_bytes 0: none. */
struct block {
    const uint8_t *in;
    uint32_t in_bytes;
    uint32_t bytes; /* decoded */
    uint8_t *dst;   /* NULL: check only */
};

/* Decode a block's LZ4 bytes to the start of the window. The whole warp calls this. */
template <unsigned LANES>
static __device__ bool decode_lz4(uint8_t *window, const struct block *block, uint32_t lane)
{
    /* The input ends where its 16-byte alignment lets it, and no valid block decodes past what is read. */
    uint32_t in_at = 0;
    if (block->in_bytes) {
        in_at = WINDOW_BYTES - OVERREAD - 16 - block->in_bytes;
        in_at += (uint32_t)((uintptr_t)block->in - in_at) & 15;
        copy_alike<LANES>(window + in_at, block->in, block->in_bytes, lane);
    }
    __syncwarp();

    uint32_t at = 0, done = 0, reciprocal = reciprocal_of_lane();
    bool good = true, busy = block->in_bytes != 0;
    bool writes = any<LANES>(block->dst != NULL);
    while (any<LANES>(busy)) {
        struct lz4_sequence sequence = {0, 0, 0, 0, 0};
        if (busy) {
            good = done <= in_at + at;
            if (good &&
                !read_short(&sequence, window + in_at, at, block->in_bytes, done, block->bytes))
                good = lz4_read_sequence(&sequence, window + in_at, at, block->in_bytes, done,
                                         block->bytes);
            busy = good && sequence.n_match;
        }
        if (!good)
            sequence.n_literals = sequence.n_match = 0;
        if (writes) {
            __syncwarp();
            copy_sequence<LANES>(window, in_at, done, &sequence, lane, reciprocal);
        }
        done += sequence.n_literals + sequence.n_match;
        at = sequence.next;
    }
    return good;
}

/* ---- bit transposition ---------------------------------------------------------------------------- */

template <unsigned LANES>
static __device__ void untranspose_block(const struct block *block, const uint8_t *window,
                                         uint32_t elem_bytes, uint32_t lane)
{
    uint32_t n_columns = block->bytes / (8 * elem_bytes);
    bool aligned = n_columns % 4 == 0;
    if (elem_bytes == 2 && aligned)
        untranspose<LANES, 2, true>(block->dst, window, n_columns, lane);
    else if (elem_bytes == 2)
        untranspose<LANES, 2, false>(block->dst, window, n_columns, lane);
    else if (elem_bytes == 4 && aligned)
        untranspose<LANES, 4, true>(block->dst, window, n_columns, lane);
    else if (elem_bytes == 4)
        untranspose<LANES, 4, false>(block->dst, window, n_columns, lane);
    else if (aligned)
        untranspose<LANES, 1, true>(block->dst, window, n_columns, lane);
    else
        untranspose<LANES, 1, false>(block->dst, window, n_columns, lane);
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
 * two syncs LANES neighbours are written, and rows are longer: no two lanes meet in a byte. */
template <unsigned LANES>
static __device__ void copy_scattered(const struct block *block, uint32_t to, const uint8_t *from,
                                      uint32_t span, uint32_t n, uint32_t elem_bytes, uint32_t lane,
                                      uint32_t group_lanes)
{
    for (uint32_t base = 0; base < n; base += LANES) {
        uint32_t i = base + lane;
        uint8_t byte = 0;
        if (i < n)
            byte = from ? from[i]
                        : gather_byte(spread_of(block, to + i - span, elem_bytes), elem_bytes);
        __syncwarp(group_lanes);
        if (i < n)
            scatter_byte(spread_of(block, to + i, elem_bytes), byte, elem_bytes);
        __syncwarp(group_lanes);
    }
}

/* Decode a block of any size over SPAN_BYTES straight to the frame. Groups call this on their own. */
template <unsigned LANES>
static __device__ __noinline__ bool decode_large(const struct block *block, uint32_t elem_bytes,
                                                 uint32_t lane, uint32_t group_lanes)
{
    uint32_t at = 0, done = 0;
    struct lz4_sequence sequence;
    do {
        if (!lz4_read_sequence(&sequence, block->in, at, block->in_bytes, done, block->bytes))
            return false;
        uint32_t rest = block->dst ? sequence.n_match : 0, span = sequence.offset;
        if (block->dst)
            copy_scattered<LANES>(block, done, block->in + sequence.literals, 0,
                                  sequence.n_literals, elem_bytes, lane, group_lanes);
        uint32_t to = done + sequence.n_literals;
        while (rest > 0) {
            uint32_t n = min(rest, span);
            copy_scattered<LANES>(block, to, NULL, span, n, elem_bytes, lane, group_lanes);
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
    if (bslz4_read_layout(layout, (const uint8_t *)job->src, job->src_bytes, shape) != BSLZ4_GOOD ||
        blocks[0] != layout->n_blocks)
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
    if (at > job->src_bytes || job->src_bytes - at < 4)
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
template <unsigned LANES>
static __device__ bool decode_block(uint8_t *window, const struct block *block, uint32_t elem_bytes,
                                    uint32_t lane)
{
    bool large = block->bytes > SPAN_BYTES;
    struct block small = *block;
    if (large)
        small = {NULL, 0, 0, NULL};
    bool good = decode_lz4<LANES>(window, &small, lane);
    if (good && small.dst)
        untranspose_block<LANES>(&small, window, elem_bytes, lane);
    if (large) {
        uint32_t group_lanes = (uint32_t)(((1ull << LANES) - 1) << (threadIdx.x / LANES * LANES));
        good = decode_large<LANES>(block, elem_bytes, lane, group_lanes);
    }
    __syncwarp();
    return good;
}

/* The bytes of a span that are not in blocks: all of a raw frame or of one never written, a chunk's tail.
 * False if the frame is not what it says. */
template <unsigned LANES>
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
            for (uint32_t i = lane; i < tail_bytes; i += LANES)
                dst[total - tail_bytes + i] = src[job->src_bytes - tail_bytes + i];
        return true;
    case STOW_FORM_RAW:
        if (job->src_bytes != total)
            return false;
        if (dst)
            copy_span<LANES>(dst + at, src + at, n, lane);
        return true;
    case STOW_FORM_FILL:
        if (dst)
            fill_span<LANES>(dst + at, n, shape->fill, shape->elem_bytes, lane);
        return true;
    default: return false;
    }
}

/* ---- kernels -------------------------------------------------------------------------------------- */

static __global__ void clear_status(int32_t *status, uint32_t n)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        status[i] = 0;
}

/* A group of LANES lanes for each of n_spans spans of each frame. */
template <unsigned LANES>
static __global__ void __launch_bounds__(WARP)
    decode_frames(int32_t *status, const struct decode_job *jobs, uint32_t n_units,
                  uint32_t n_spans, struct frame_shape shape)
{
    __shared__ __align__(16) uint8_t windows[WARP / LANES][WINDOW_BYTES];
    uint32_t lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    uint32_t unit = blockIdx.x * (WARP / LANES) + group;
    uint32_t frame = unit / n_spans, span = unit % n_spans;

    struct bslz4_layout layout = {0, 0, 0, 0};
    struct decode_job job = {0, 0, 0, 0, 0};
    bool good = true;
    if (unit < n_units) {
        job = jobs[frame];
        good = job.form != STOW_FORM_BSLZ4 || open_chunk(&layout, &job, &shape);
        good = good && decode_plain<LANES>(&job, &shape, span, layout.tail_bytes, lane);
    }
    uint32_t n_blocks = good ? (uint32_t)layout.n_blocks : 0;
    for (uint32_t b = span; any<LANES>(b < n_blocks); b += n_spans) {
        struct block block = {NULL, 0, 0, NULL};
        if (b < n_blocks)
            good = find_block(&block, b, &layout, &job) && good;
        good = decode_block<LANES>(windows[group], &block, shape.elem_bytes, lane) && good;
    }
    if (unit < n_units && !good && lane == 0)
        status[frame] = STOW_CORRUPT;
}

/* ---- launchers ------------------------------------------------------------------------------------ */

template <unsigned LANES>
static void start_decode(int32_t *status, const struct decode_job *jobs, uint32_t n_units,
                         uint32_t n_spans, struct frame_shape shape, cudaStream_t stream)
{
    uint32_t n_warps = (n_units - 1) / (WARP / LANES) + 1;
    decode_frames<LANES><<<n_warps, WARP, 0, stream>>>(status, jobs, n_units, n_spans, shape);
}

extern "C" cudaError_t launch_decode(int32_t *status_dev, const struct decode_job *jobs_dev,
                                     size_t n, struct frame_shape shape, cudaStream_t stream)
{
    uint64_t total = frame_bytes(&shape);
    uint64_t n_spans = total == 0 ? 1 : (total - 1) / SPAN_BYTES + 1;
    if (n == 0)
        return cudaSuccess;
    if (n > INT32_MAX || n_spans > INT32_MAX / n)
        return cudaErrorInvalidValue;
    uint32_t n_units = (uint32_t)(n * n_spans);

    clear_status<<<((uint32_t)n - 1) / 256 + 1, 256, 0, stream>>>(status_dev, (uint32_t)n);
    cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess)
        return error;
    if (n_units <= FEW_BLOCKS)
        start_decode<WARP>(status_dev, jobs_dev, n_units, (uint32_t)n_spans, shape, stream);
    else
        start_decode<BSLZ4_BULK_LANES>(status_dev, jobs_dev, n_units, (uint32_t)n_spans, shape,
                                       stream);
    return cudaGetLastError();
}

/* Load a kernel now, and let its windows have the shared memory they can get. */
static cudaError_t load(const void *kernel)
{
    struct cudaFuncAttributes attributes;
    cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    if (error != cudaSuccess)
        return error;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                cudaSharedmemCarveoutMaxShared);
}

extern "C" cudaError_t launch_load_all(void)
{
    const void *kernels[] = {(const void *)clear_status, (const void *)decode_frames<WARP>,
                             (const void *)decode_frames<BSLZ4_BULK_LANES>};
    for (const void *kernel : kernels) {
        cudaError_t error = load(kernel);
        if (error != cudaSuccess)
            return error;
    }
    return cudaSuccess;
}
