/* SPDX-License-Identifier: Apache-2.0
 *
 * sums_counts: weighted sums of frames of form counts on the GPU, added up from the symbols: no pixel is ever written.
 *
 * A warp takes FRAMES frames of one segment at a time and reads them side by side, so that one's arithmetic covers the
 * other's waiting, and each weight is read once for both. Words come straight from global memory, which a prefetch into
 * L2 runs ahead of; without tiles in shared memory there is L1 cache enough for words and weights. Tables of the
 * segment lie in the thread block's shared memory. Weights come in stream order (sums_weigh): a lane and granule's 8
 * are one read. At constants they are 0, and what constants add is one number; patches, which are few and tell what
 * is to be added to what was decoded or to a constant, look their weights up in raster order.
 *
 * All streams of a frame are read by one warp, and lanes' sums are added in a fixed order: results are the same on
 * every run, also of float64 weights.
 *
 * Sums wrap in 64 bits, so that it is enough for the whole to fit. With uint8 weights a tile's part is added up in 32
 * bits: 64 pixels a lane of at most 255, times 255, stay below 2^23; wide classes go to the 64 bits at once.
 *
 * A damaged frame leads nowhere: a state is always one of its class, words are read only up to the stream's last (then
 * come zeros), patches outside of the stream's tiles are left out. Its status says STOW_CORRUPT. */
#ifndef STOW_SUMS_COUNTS_CUH
#define STOW_SUMS_COUNTS_CUH

#include "sums.h"
#include "sums_read.cuh"

#define SUM_WARPS 32u /* of a thread block, one for each multiprocessor */
#define SUM_THREADS (SUM_WARPS * WARP)
#define TILE_GRANULES (COUNTS_TILE_UNITS / COUNTS_GRANULE_UNITS)
#define LANE_PIXELS (COUNTS_GRANULE_PIXELS / COUNTS_LANES)

struct sum_launch {
    const struct sum_job *jobs;
    const void *weights;
    void *out;
    uint64_t out_stride;
    int32_t *status;
    uint32_t n, chunk;            /* frames, and how many of them a thread block takes */
    uint32_t first_mask, n_masks; /* this launch's, of all_masks */
    uint32_t all_masks;
    struct frame_shape shape;
};

/* ---- weights ------------------------------------------------------------------------------------ */

/* A lane's 8 weights of a granule, and how they are used. `narrow` is for 32-bit sums, where there are such. */
template <enum weight_kind KIND> struct lane_weights;

template <> struct lane_weights<WEIGHT_U8> {
    using weight = uint8_t;
    using total = uint64_t;
    uint2 units;

    __device__ __forceinline__ void load(const void *weights, uint32_t i)
    {
        units = __ldg((const uint2 *)weights + i);
    }
    __device__ __forceinline__ void add(total *, uint32_t *narrow, const uint32_t bytes[2]) const
    {
        *narrow = __dp4a(bytes[0], units.x, *narrow);
        *narrow = __dp4a(bytes[1], units.y, *narrow);
    }
};

template <> struct lane_weights<WEIGHT_I32> {
    using weight = int32_t;
    using total = uint64_t;
    int4 units[2];

    __device__ __forceinline__ void load(const void *weights, uint32_t i)
    {
        units[0] = __ldg((const int4 *)weights + 2 * i);
        units[1] = __ldg((const int4 *)weights + 2 * i + 1);
    }
    __device__ __forceinline__ void add(total *sum, uint32_t *, const uint32_t bytes[2]) const
    {
#pragma unroll
        for (uint32_t u = 0; u < 2; u++) {
            int64_t part = (int64_t)units[u].x * (int32_t)(bytes[u] & 0xff);
            part += (int64_t)units[u].y * (int32_t)(bytes[u] >> 8 & 0xff);
            part += (int64_t)units[u].z * (int32_t)(bytes[u] >> 16 & 0xff);
            part += (int64_t)units[u].w * (int32_t)(bytes[u] >> 24);
            *sum += (uint64_t)part;
        }
    }
};

template <> struct lane_weights<WEIGHT_F64> {
    using weight = double;
    using total = double;
    double2 units[4];

    __device__ __forceinline__ void load(const void *weights, uint32_t i)
    {
#pragma unroll
        for (uint32_t h = 0; h < 4; h++)
            units[h] = __ldg((const double2 *)weights + 4 * i + h);
    }
    __device__ __forceinline__ void add(total *sum, uint32_t *, const uint32_t bytes[2]) const
    {
#pragma unroll
        for (uint32_t h = 0; h < 4; h++) {
            uint32_t two = bytes[h / 2] >> (h % 2 * 16);
            *sum += units[h].x * (double)(two & 0xff);
            *sum += units[h].y * (double)(two >> 8 & 0xff);
        }
    }
};

static __device__ __forceinline__ uint64_t weigh(uint8_t weight, int64_t count)
{
    return (uint64_t)count * weight;
}
static __device__ __forceinline__ uint64_t weigh(int32_t weight, int64_t count)
{
    return (uint64_t)(count * weight);
}
static __device__ __forceinline__ double weigh(double weight, int64_t count)
{
    return weight * (double)count;
}

/* The sum over the warp, in a fixed order. */
template <typename Total> static __device__ __forceinline__ Total sum_of_warp(Total value)
{
#pragma unroll
    for (int d = WARP / 2; d > 0; d /= 2)
        value += __shfl_down_sync(ALL_LANES, value, d);
    return value;
}

/* ---- granules ----------------------------------------------------------------------------------- */

/* What a thread block keeps of its segment. */
struct sum_segment {
    const struct counts_segment *segment;
    uint32_t until4, until2, until1;
};

template <uint32_t FRAMES>
static __device__ __forceinline__ void pairs_direct(struct reader *readers, uint32_t (*entries)[2],
                                                    const struct reading *reading)
{
    static_assert(FRAMES <= 2, "read side by side are one or two");
    if constexpr (FRAMES == 2)
        pairs_of_both(&readers[0], &readers[1], entries, reading);
    else
        pair_direct(&readers[0], entries[0], reading);
}

/* The bytes of a lane's two units, of a class that is not wide. */
template <uint32_t FRAMES>
static __device__ __forceinline__ void units_direct(struct reader *readers, uint32_t (*bytes)[2],
                                                    uint32_t k, const struct sum_segment *of,
                                                    const struct reading *reading)
{
    uint32_t first[FRAMES][2], second[FRAMES][2];
    if (k < of->until4) {
        pairs_direct<FRAMES>(readers, first, reading);
#pragma unroll
        for (uint32_t f = 0; f < FRAMES; f++) {
            bytes[f][0] = bytes_of_four(first[f][0]);
            bytes[f][1] = bytes_of_four(first[f][1]);
        }
    } else if (k < of->until2) {
        pairs_direct<FRAMES>(readers, first, reading);
        pairs_direct<FRAMES>(readers, second, reading);
#pragma unroll
        for (uint32_t f = 0; f < FRAMES; f++) {
            bytes[f][0] = bytes_of_twos(first[f]);
            bytes[f][1] = bytes_of_twos(second[f]);
        }
    } else {
#pragma unroll
        for (uint32_t u = 0; u < 2; u++) {
            pairs_direct<FRAMES>(readers, first, reading);
            pairs_direct<FRAMES>(readers, second, reading);
#pragma unroll
            for (uint32_t f = 0; f < FRAMES; f++)
                bytes[f][u] = bytes_of_ones(first[f], second[f]);
        }
    }
}

/* ---- frames side by side ------------------------------------------------------------------------ */

template <enum weight_kind KIND, uint32_t MASKS, uint32_t FRAMES> struct summing {
    using weights = lane_weights<KIND>;
    using total = typename weights::total;

    struct reading reading;
    struct reader readers[FRAMES];
    uint32_t class_now; /* of all readers */
    total totals[FRAMES][MASKS];
    uint32_t narrow[FRAMES][MASKS];
    const uint8_t *weighed; /* weights in stream order, of all masks */
    uint32_t mask_units;    /* of 8 weights: a mask has */
    uint32_t last_mask;     /* those beyond repeat it, and are not written */

    __device__ __forceinline__ uint32_t unit_of(uint32_t m, uint32_t i) const
    {
        return min(m, last_mask) * mask_units + i;
    }

    /* Granule: i is where its weights are, for this lane. */
    __device__ __forceinline__ void add_narrow(uint32_t k, uint32_t i, const struct sum_segment *of)
    {
        uint32_t bytes[FRAMES][2];
        weights w[MASKS];
        /* Before decoding, so that they are there after it, where there are registers enough. */
        constexpr bool early = KIND == WEIGHT_U8 && MASKS <= 2;
        if constexpr (early) {
#pragma unroll
            for (uint32_t m = 0; m < MASKS; m++)
                w[m].load(weighed, unit_of(m, i));
        }
        units_direct<FRAMES>(readers, bytes, k, of, &reading);
#pragma unroll
        for (uint32_t m = 0; m < MASKS; m++) {
            if constexpr (!early)
                w[m].load(weighed, unit_of(m, i));
#pragma unroll
            for (uint32_t f = 0; f < FRAMES; f++)
                w[m].add(&totals[f][m], &narrow[f][m], bytes[f]);
        }
    }

    __device__ __forceinline__ void add_wide(struct counts_class class_, uint32_t i)
    {
        const typename weights::weight *single = (const typename weights::weight *)weighed;
#pragma unroll 1
        for (uint32_t p = 0; p < LANE_PIXELS; p++) {
            uint32_t values[FRAMES];
#pragma unroll
            for (uint32_t f = 0; f < FRAMES; f++)
                values[f] = wide_direct(&readers[f], class_, &reading);
#pragma unroll
            for (uint32_t m = 0; m < MASKS; m++) {
                typename weights::weight w =
                    __ldg(single + (uint64_t)unit_of(m, i) * LANE_PIXELS + p);
#pragma unroll
                for (uint32_t f = 0; f < FRAMES; f++)
                    totals[f][m] += weigh(w, (int64_t)values[f]);
            }
        }
    }

    /* Eight granules, or what the last tile has; classes: theirs, one a byte. */
    __device__ __forceinline__ void add_tile(uint32_t granule, uint32_t end, uint2 classes,
                                             const struct sum_segment *of,
                                             const struct counts_class *wide, uint32_t lane)
    {
#pragma unroll
        for (uint32_t f = 0; f < FRAMES; f++)
            prefetch_words(&readers[f], lane);
#pragma unroll 1
        for (uint32_t i = granule * WARP + lane; i < end * WARP; i += WARP) {
            uint32_t k = classes.x & 0xff;
            classes.x = __funnelshift_r(classes.x, classes.y, 8);
            classes.y >>= 8;
#pragma unroll
            for (uint32_t f = 0; f < FRAMES; f++)
                change_class(&readers[f], class_now, k);
            class_now = k;
            if (k < of->until1)
                add_narrow(k, i, of);
            else
                add_wide(wide[k], i);
        }
        if constexpr (KIND == WEIGHT_U8) {
#pragma unroll
            for (uint32_t f = 0; f < FRAMES; f++)
#pragma unroll
                for (uint32_t m = 0; m < MASKS; m++) {
                    totals[f][m] += narrow[f][m];
                    narrow[f][m] = 0;
                }
        }
    }

    /* What patches add to frame f. False on a lane that saw one where none can be. */
    __device__ __forceinline__ bool add_patches(uint32_t f, const struct counts_part *part,
                                                uint32_t begin, uint32_t end,
                                                const struct sum_launch *launch, uint32_t lane)
    {
        const typename weights::weight *raster = (const typename weights::weight *)launch->weights;
        const uint32_t words = counts_patch_words(launch->shape.elem_bytes);
        uint32_t next_tile = part->first_tile;
        bool good = true;
#pragma unroll 1
        for (uint32_t first = 0; first < part->n_patches; first += WARP) {
            bool mine = first + lane < part->n_patches;
            const uint32_t *patch = part->patches + (uint64_t)(first + lane) * words;
            uint32_t head = mine ? patch[0] : 0, step = head >> 17 & COUNTS_MAX_TILE_STEP;
            uint32_t steps = sum_to_lane(step, lane), tile = next_tile + steps - step;
            uint64_t pixel = (uint64_t)tile * COUNTS_TILE_PIXELS + (head >> 21);
            int64_t delta = (int32_t)(head << 15) >> 15;
            next_tile += value_of(steps, WARP - 1);
            if (mine && words == 2)
                delta = (int64_t)((uint64_t)delta << 32 | patch[1]);
            if (mine && (tile < begin || tile >= end || pixel >= launch->shape.n_elems))
                mine = good = false;
#pragma unroll
            for (uint32_t m = 0; m < MASKS; m++) {
                uint64_t mask = launch->first_mask + min(m, last_mask);
                if (mine)
                    totals[f][m] += weigh(raster[mask * launch->shape.n_elems + pixel], delta);
            }
        }
        return good;
    }

    /* Stream s of all the frames, which are jobs'. Sets the bits of bad frames in *bad, on any lane. */
    __device__ __forceinline__ void add_stream(const uint32_t jobs[FRAMES], uint32_t s,
                                               uint32_t *bad, const struct sum_launch *launch,
                                               const struct sum_segment *of,
                                               const struct counts_class *wide, uint32_t lane)
    {
        const struct counts_segment *segment = of->segment;
        const uint32_t n_tiles = counts_n_tiles(launch->shape.n_elems);
        const uint32_t n_granules = counts_n_granules(launch->shape.n_elems);
        const uint32_t begin = counts_stream_tile(n_tiles, segment->n_streams, s);
        const uint32_t end = counts_stream_tile(n_tiles, segment->n_streams, s + 1);
        const uint2 *classes = (const uint2 *)((const uint8_t *)segment + segment->granules_at);
        struct counts_part part;
#pragma unroll
        for (uint32_t f = 0; f < FRAMES; f++) {
            bool found = find_part(&part, jobs[f], s, launch, segment);
            bool begun = open_direct(&readers[f], part.words, part.n_words, lane, &reading);
            *bad |= found && begun ? 0 : 1u << f;
        }
        uint2 tile_classes = __ldg(classes + begin);
        class_now = 0;
#pragma unroll 1
        for (uint32_t tile = begin; tile < end; tile++) {
            uint32_t granule = tile * TILE_GRANULES;
            uint2 now = tile_classes;
            tile_classes = __ldg(classes + min(tile + 1, n_tiles - 1));
            add_tile(granule, min(granule + TILE_GRANULES, n_granules), now, of, wide, lane);
        }
#pragma unroll
        for (uint32_t f = 0; f < FRAMES; f++) {
            bool good = find_part(&part, jobs[f], s, launch, segment) &&
                        ended_direct(&readers[f], &reading);
            good = __all_sync(ALL_LANES, good) && add_patches(f, &part, begin, end, launch, lane);
            *bad |= good ? 0 : 1u << f;
        }
    }

    /* Where there is no such stream, something that can be read in its place. */
    static __device__ __forceinline__ bool find_part(struct counts_part *part, uint32_t job,
                                                     uint32_t s, const struct sum_launch *launch,
                                                     const struct counts_segment *segment)
    {
        const struct sum_job *of = launch->jobs + job;
        if (counts_find_part(part, (const uint32_t *)of->src, of->src_bytes, segment->n_streams, s,
                             launch->shape.elem_bytes))
            return true;
        part->words = (const uint32_t *)((const uint8_t *)segment + segment->tables_at);
        part->n_words = 2 * WARP;
        part->n_patches = 0;
        return false;
    }

    /* Frame f's sums to where job's go. */
    __device__ __forceinline__ void put(uint32_t f, uint32_t job, bool good,
                                        const struct sum_launch *launch, uint32_t lane)
    {
        const total *head = (const total *)launch->jobs[job].weighed;
#pragma unroll
        for (uint32_t m = 0; m < MASKS; m++) {
            total sum = sum_of_warp(totals[f][m]);
            uint64_t mask = launch->first_mask + m;
            if (lane == 0 && m <= last_mask)
                ((total *)launch->out)[mask * launch->out_stride + job] = sum + head[mask];
        }
        if (lane == 0)
            launch->status[job] = good ? 0 : STOW_CORRUPT;
    }

    /* The frames of these jobs; one that is no frame of form counts is replaced by another and not written. */
    __device__ __forceinline__ void run(const uint32_t jobs[FRAMES], uint32_t wanted,
                                        const struct sum_launch *launch,
                                        const struct sum_segment *of,
                                        const struct counts_class *wide, uint32_t lane)
    {
        uint32_t bad = 0;
        reading = start_reading();
        mask_units = counts_n_granules(launch->shape.n_elems) * WARP;
        last_mask = launch->n_masks - 1;
        weighed = (const uint8_t *)launch->jobs[jobs[0]].weighed + SUMS_WEIGHED_HEAD +
                  (uint64_t)launch->first_mask * mask_units * LANE_PIXELS * weight_bytes(KIND);
#pragma unroll
        for (uint32_t f = 0; f < FRAMES; f++)
#pragma unroll
            for (uint32_t m = 0; m < MASKS; m++)
                totals[f][m] = 0, narrow[f][m] = 0;
        for (uint32_t s = 0; s < of->segment->n_streams; s++)
            add_stream(jobs, s, &bad, launch, of, wide, lane);
        bad = __reduce_or_sync(ALL_LANES, bad);
#pragma unroll
        for (uint32_t f = 0; f < FRAMES; f++)
            if (wanted >> f & 1)
                put(f, jobs[f], !(bad >> f & 1), launch, lane);
    }
};

/* ---- thread blocks ------------------------------------------------------------------------------ */

/* What the warps of a thread block share besides the tables. */
struct sum_block {
    struct counts_class classes[COUNTS_CLASSES];
    uint32_t found; /* a job that is looked for */
    uint32_t next;  /* the first job that no warp has taken */
};

static __device__ __forceinline__ uint64_t segment_of(const struct sum_job *job)
{
    return job->form == STOW_FORM_COUNTS ? job->segment : 0;
}

/* The first job from `first` on, before end, of form counts and not of `segment`; or end. All threads call this. */
static __device__ uint32_t find_job(struct sum_block *block, const struct sum_job *jobs,
                                    uint32_t first, uint32_t end, uint64_t segment)
{
    __syncthreads();
    if (threadIdx.x == 0)
        block->found = end;
    __syncthreads();
    for (uint32_t i = first + threadIdx.x; i < end; i += SUM_THREADS) {
        uint64_t of = segment_of(jobs + i);
        if (of && of != segment) {
            atomicMin(&block->found, i);
            break;
        }
    }
    __syncthreads();
    return block->found;
}

/* All threads call this, between barriers. */
static __device__ void load_tables(struct sum_block *block, struct sum_segment *of,
                                   const struct counts_segment *segment, uint32_t first)
{
    const uint4 *from = (const uint4 *)((const uint8_t *)segment + segment->tables_at);
    for (uint32_t i = threadIdx.x; i < TABLES_BYTES / 16; i += SUM_THREADS)
        ((uint4 *)sum_tables)[i] = __ldg(from + i);
    if (threadIdx.x < COUNTS_CLASSES)
        block->classes[threadIdx.x] = segment->classes[threadIdx.x];
    if (threadIdx.x == 0)
        block->next = first;
    *of = {segment, segment->until4, segment->until2, segment->until1};
}

/* Jobs of one segment, from first on, taken by warps as they come free; others between them are left alone. */
template <enum weight_kind KIND, uint32_t MASKS, uint32_t FRAMES>
static __device__ __forceinline__ void sum_run(struct sum_block *block,
                                               const struct sum_segment *of, uint32_t end,
                                               const struct sum_launch *launch)
{
    const uint32_t lane = threadIdx.x % WARP;
    for (;;) {
        uint32_t first = 0, jobs[FRAMES], wanted = 0, some = 0;
        if (lane == 0)
            first = atomicAdd(&block->next, FRAMES);
        first = value_of(first, 0);
        if (first >= end)
            return;
#pragma unroll
        for (uint32_t f = 0; f < FRAMES; f++)
            if (first + f < end && launch->jobs[first + f].form == STOW_FORM_COUNTS) {
                wanted |= 1u << f;
                some = first + f;
            }
#pragma unroll
        for (uint32_t f = 0; f < FRAMES; f++)
            jobs[f] = wanted >> f & 1 ? first + f : some;
        struct summing<KIND, MASKS, FRAMES> summing;
        if (wanted)
            summing.run(jobs, wanted, launch, of, block->classes, lane);
    }
}

template <enum weight_kind KIND, uint32_t MASKS, uint32_t FRAMES>
static __global__ void __launch_bounds__(SUM_THREADS, 1)
    sum_counts(const __grid_constant__ struct sum_launch launch)
{
    __shared__ struct sum_block block;
    struct sum_segment of;
    uint32_t begin = blockIdx.x * launch.chunk, end = min(begin + launch.chunk, launch.n);
    uint32_t first = find_job(&block, launch.jobs, begin, end, 0);
    while (first < end) {
        uint64_t segment = launch.jobs[first].segment;
        uint32_t stop = find_job(&block, launch.jobs, first + 1, end, segment);
        load_tables(&block, &of, (const struct counts_segment *)segment, first);
        __syncthreads();
        sum_run<KIND, MASKS, FRAMES>(&block, &of, stop, &launch);
        __syncthreads();
        first = stop;
    }
}

#endif
