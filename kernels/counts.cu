/* SPDX-License-Identifier: Apache-2.0
 *
 * counts on the GPU: counts.h has the format, counts_lanes.cuh how symbols come out of it, counts_tile.cuh how they
 * become pixels.
 *
 * One warp decodes one stream, a tile at a time. Tiles are put together in shared memory: scattered stores to global
 * memory would be several times slower.
 *
 * There is one thread block for each multiprocessor, of as many warps as its shared memory has room for, since the
 * tables of a segment, 64 KiB, lie there too, once. A thread block takes a run of the launch's frames, and loads tables
 * anew where the segment changes.
 *
 * A launch may begin while the one before it on the stream still ends (counts_launch.overlap): no thread block of it
 * waits for that, but for ending.
 *
 * Shared memory: tables, the rings of the warps, their tiles, what thread blocks have in common, and the order of units
 * unless it is too large. */
#include "counts_tile.cuh"
#include "launch.h"

/* Warps of a thread block at most, as registers allow. */
#define MAX_WARPS 32u
#define MAX_WARPS_BEFORE_90 24u
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define BLOCK_WARPS MAX_WARPS_BEFORE_90
#else
#define BLOCK_WARPS MAX_WARPS
#endif
/* How many of them decode, as measured on an H200 with frames 5, 9 and 20 times smaller than their pixels. Those that
 * are smaller by more than STORES_LIMIT wait for stores, of which fewer warps make better ones; where a warp has over
 * MANY_ROUNDS streams, a few warps less are as good or better. */
#define STORES_LIMIT 14u
#define STORING_WARPS 24u
#define MANY_ROUNDS 4u
#define MANY_WARPS 28u

#define JOB_WORDS ((uint32_t)sizeof(struct decode_job) / 4)

/* What a thread block has in common. */
struct block_shared {
    struct counts_class classes[COUNTS_CLASSES];
    uint32_t job[JOB_WORDS]; /* of the first frame that was not decoded yet */
    uint32_t pending;        /* the number of that frame in the launch */
};

/* How shared memory is divided: byte offsets. */
struct layout {
    uint32_t warps, tile_bytes;
    uint32_t rings_at, tiles_at, common_at, order_at;
    bool order_shared;
    uint32_t bytes;
};

struct launch {
    int32_t *status;
    const struct decode_job *jobs;
    const uint32_t *picks;
    uint32_t n;
    bool bulk_stores;
    struct frame_shape shape;
    struct layout layout;
};

#define SHARED_RESERVED 1024u /* of each thread block, by CUDA */

extern __shared__ __align__(1024) uint8_t shared[];

/* ---- a stream ----------------------------------------------------------------------------------- */

/* A segment, and where a warp has what it needs. */
struct place {
    const struct counts_segment *segment;
    struct until until;
    uint32_t n_streams;
    const uint32_t *order; /* in global memory */
    uint32_t order_at;     /* in shared memory; 0: it is not */
    uint32_t tables_at, ring_at, tile_at;
    uint8_t *tile;
    const struct counts_class *classes;
};

template <typename Member>
static __device__ const Member *segment_part(const struct counts_segment *segment, uint32_t at)
{
    return (const Member *)((const uint8_t *)segment + at);
}

/* The classes of a tile's granules, 4 bits each, the first lowest. */
static __device__ __forceinline__ uint32_t pack_classes(uint2 classes)
{
    uint32_t low = (classes.x | classes.x >> 4) & 0x00ff00ffu;
    uint32_t high = (classes.y | classes.y >> 4) & 0x00ff00ffu;
    return __byte_perm(low, high, 0x6420);
}

static __device__ __forceinline__ uint32_t load_order(const struct place *place, uint32_t granule,
                                                      uint32_t lane)
{
    uint32_t i = granule * COUNTS_LANES + lane;
    return place->order_at ? load_shared(place->order_at + i * 4) : __ldg(place->order + i);
}

/* The granules of one tile into shared memory. */
template <typename Pixel>
static __device__ __forceinline__ void fill_tile(struct lanes *lanes, const struct place *place,
                                                 uint32_t classes, uint32_t granule, uint32_t end,
                                                 uint32_t lane)
{
    const uint32_t unit_bytes = COUNTS_UNIT_PIXELS * sizeof(Pixel);
#pragma unroll 1
    for (; granule < end; granule++) {
        uint32_t order = load_order(place, granule, lane);
        unit<Pixel> units[2];
        decode_granule<Pixel>(lanes, units, classes & 15, &place->until, place->classes, lane);
        classes >>= 4;
        store_shared(place->tile_at + (order & 0xffff) * unit_bytes, units[0].pixels);
        store_shared(place->tile_at + (order >> 16) * unit_bytes, units[1].pixels);
    }
}

/* counts_find_part by the whole warp. */
static __device__ bool find_part(struct counts_part *part, const struct decode_job *job,
                                 uint32_t n_streams, uint32_t s, uint32_t elem_bytes)
{
    struct counts_part found = {(const uint32_t *)job->src, (const uint32_t *)job->src, 0, 0, 0};
    bool good = counts_find_part(&found, (const uint32_t *)job->src, job->src_bytes, n_streams, s,
                                 elem_bytes);
    part->n_patches = same(found.n_patches);
    part->n_words = same(found.n_words);
    part->first_tile = same(found.first_tile);
    part->patches =
        (const uint32_t *)job->src + same((uint32_t)(found.patches - (const uint32_t *)job->src));
    part->words = part->patches + part->n_patches * counts_patch_words(elem_bytes);
    return same(good);
}

/* Stream s of a frame. False on a lane that saw it is damaged. */
template <typename Pixel>
static __device__ __forceinline__ bool decode_stream(const struct decode_job *job, uint32_t s,
                                                     const struct place *place,
                                                     const struct launch *launch, uint32_t lane)
{
    const struct counts_segment *segment = place->segment;
    struct counts_part part;
    if (!find_part(&part, job, place->n_streams, s, sizeof(Pixel)))
        return false;
    const uint32_t n_elems = (uint32_t)launch->shape.n_elems; /* the launcher has looked */
    const uint32_t n_tiles = counts_n_tiles(n_elems), n_granules = counts_n_granules(n_elems);
    uint32_t tile = counts_stream_tile(n_tiles, place->n_streams, s);
    const uint32_t end = counts_stream_tile(n_tiles, place->n_streams, s + 1);
    const uint2 *granules = segment_part<uint2>(segment, segment->granules_at);
    uint2 tile_classes = __ldg(granules + tile);

    struct lanes lanes;
    lanes.ring = place->ring_at;
    lanes.tables = place->tables_at;
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(lanes.lanes_before));
    bool good = open_lanes(&lanes, part.words, (const void *)job->src, job->src_bytes, lane);
    struct patches patches = {part.patches, 0, part.n_patches, part.first_tile, 0, 0, 0};
    load_patches(&patches, counts_patch_words(sizeof(Pixel)), lane);
    struct constants constants = {
        segment_part<struct counts_constant>(segment, segment->constants_at),
        __ldg(segment_part<uint32_t>(segment, segment->constant_tiles_at) + tile),
        segment->n_constants, 0, 0};
    load_constants(&constants, lane);
    good = good && (part.n_patches == 0 || part.first_tile >= tile);

    uint8_t *dst = (uint8_t *)job->dst + (uint64_t)tile * TILE_BYTES(Pixel);
#pragma unroll 1
    for (; tile < end; tile++) {
        const uint32_t classes = same(pack_classes(tile_classes)), granule = tile * TILE_GRANULES;
        tile_classes = __ldg(granules + min(tile + 1, n_tiles - 1));
        fill_tile<Pixel>(&lanes, place, classes, granule, min(granule + TILE_GRANULES, n_granules),
                         lane);
        const uint32_t n_pixels = min(COUNTS_TILE_PIXELS, n_elems - tile * COUNTS_TILE_PIXELS);
        __syncwarp();
        put_constants(&constants, (Pixel *)place->tile, tile, lane);
        __syncwarp();
        good = add_patches(&patches, (Pixel *)place->tile, tile, n_pixels, lane) && good;
        if (job->dst)
            write_tile(dst, place->tile, place->tile_at, n_pixels * (uint32_t)sizeof(Pixel),
                       launch->bulk_stores, lane);
        else
            __syncwarp();
        dst += TILE_BYTES(Pixel);
    }
    return good && (patches.tile < end || patches.tile == ~0u) &&
           lane_ended(&lanes, part.words, part.n_words);
}

/* ---- a thread block ----------------------------------------------------------------------------- */

static __device__ void copy_block_async(uint8_t *dst, const void *src, uint32_t n_bytes)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(dst);
    for (uint32_t i = threadIdx.x * 16; i < n_bytes; i += blockDim.x * 16)
        copy_async(at + i, (const uint8_t *)src + i);
}

/* Begin to load what decoding a segment's frames needs. All threads call this, and none uses shared memory. */
static __device__ void load_segment(struct place *place, const struct launch *launch,
                                    const struct counts_segment *segment)
{
    const struct layout *layout = &launch->layout;
    const uint32_t order_bytes = counts_n_granules(launch->shape.n_elems) * COUNTS_LANES * 4;
    place->segment = segment;
    place->order = segment_part<uint32_t>(segment, segment->order_at);
    copy_block_async(shared, segment_part<uint8_t>(segment, segment->tables_at), TABLES_BYTES);
    copy_block_async(shared + layout->common_at, segment->classes, sizeof(segment->classes));
    if (layout->order_shared)
        copy_block_async(shared + layout->order_at, place->order, order_bytes);
    place->until =
        (struct until){same(segment->until4), same(segment->until2), same(segment->until1)};
    place->n_streams = same(segment->n_streams);
}

/* All threads call this: what load_segment began is done. */
static __device__ void wait_for_segment(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
}

/* A job from its words in the first lanes. */
static __device__ __forceinline__ struct decode_job share_job(uint32_t word)
{
    uint32_t w[JOB_WORDS];
#pragma unroll
    for (uint32_t i = 0; i < JOB_WORDS; i++)
        w[i] = value_of(word, i);
    return (struct decode_job){w[0] | (uint64_t)w[1] << 32, w[2] | (uint64_t)w[3] << 32,
                               w[4] | (uint64_t)w[5] << 32, w[6], w[7]};
}

/* The number of a frame's job, and this lane's word of it. Jobs may lie across the bus: they are asked for long before
 * they are needed, and not once more than needed. */
struct turn {
    uint32_t pick, word;
};

static __device__ __forceinline__ uint32_t load_pick(const struct launch *launch, uint32_t frame,
                                                     uint32_t end)
{
    return frame < end ? launch->picks[frame] : 0;
}

static __device__ __forceinline__ struct turn load_turn(const struct launch *launch, uint32_t pick,
                                                        uint32_t frame, uint32_t end, uint32_t lane)
{
    struct turn turn = {pick, 0};
    if (frame < end && lane < JOB_WORDS)
        turn.word = ((const uint32_t *)(launch->jobs + pick))[lane];
    return turn;
}

/* Warp 0 tells all others the job of its turn, which is the first. */
static __device__ struct decode_job share_first(struct block_shared *common, uint32_t word,
                                                uint32_t end, uint32_t lane)
{
    if (threadIdx.x < JOB_WORDS)
        common->job[lane] = word;
    if (threadIdx.x == 0)
        common->pending = end;
    __syncthreads();
    return share_job(lane < JOB_WORDS ? common->job[lane] : 0);
}

/* How many warps share n_items, so that all have as much to do. */
static __device__ uint32_t share_items(const struct launch *launch, uint32_t n_items,
                                       uint32_t src_bytes)
{
    uint32_t most = launch->layout.warps;
    if ((uint64_t)src_bytes * STORES_LIMIT < frame_bytes(&launch->shape))
        most = min(most, STORING_WARPS);
    else if (n_items > MANY_ROUNDS * most)
        most = min(most, MANY_WARPS);
    uint32_t rounds = (n_items + most - 1) / most;
    return (n_items + rounds - 1) / rounds;
}

/* This warp's streams of the frames from `first` on, as long as they are of the segment, which is being loaded. Returns
 * the first frame that it met of another one, or end. turn: its first one if frames have one stream. */
template <typename Pixel>
static __device__ uint32_t decode_run(const struct launch *launch, const struct place *place,
                                      struct turn turn, uint32_t first, uint32_t end,
                                      uint32_t active, uint32_t lane)
{
    const uint32_t n_streams = place->n_streams;
    uint32_t item = same(threadIdx.x / WARP), frame = first + item / n_streams;
    if (item >= active)
        frame = end;
    if (n_streams > 1)
        turn = load_turn(launch, load_pick(launch, frame, end), frame, end, lane);
    uint32_t next_pick = load_pick(launch, first + (item + active) / n_streams, end);
    wait_for_segment();
    while (frame < end) {
        const struct decode_job job = share_job(turn.word);
        if (job.blocks != (uint64_t)place->segment)
            break;
        const uint32_t s = item - (frame - first) * n_streams, pick = turn.pick;
        item += active;
        frame = first + item / n_streams;
        turn = load_turn(launch, next_pick, frame, end, lane);
        next_pick = load_pick(launch, first + (item + active) / n_streams, end);
        bool good = decode_stream<Pixel>(&job, s, place, launch, lane);
        if (!__all_sync(ALL_LANES, good) && lane == 0)
            launch->status[pick] = STOW_CORRUPT;
    }
    return frame;
}

/* The next launch on the stream may begin as soon as thread blocks of this one end, if it said so (counts_launch). */
static __device__ void begin_next_launch(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* If this launch began so: what comes after it on the stream shall find the last one done too. */
static __device__ void end_after_last_launch(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

template <typename Pixel>
static __global__ void __launch_bounds__(BLOCK_WARPS *WARP, 1)
    decode_counts(const __grid_constant__ struct launch launch)
{
    const uint32_t lane = threadIdx.x % WARP, warp = same(threadIdx.x / WARP);
    const struct layout *layout = &launch.layout;
    const uint32_t shared_at = (uint32_t)__cvta_generic_to_shared(shared);
    struct block_shared *common = (struct block_shared *)(shared + layout->common_at);
    uint32_t first = (uint32_t)((uint64_t)launch.n * blockIdx.x / gridDim.x);
    const uint32_t end = (uint32_t)((uint64_t)launch.n * (blockIdx.x + 1) / gridDim.x);
    struct place place;
    place.tables_at = shared_at;
    place.ring_at = shared_at + layout->rings_at + warp * RING_BYTES;
    place.tile = shared + layout->tiles_at + warp * layout->tile_bytes;
    place.tile_at = shared_at + layout->tiles_at + warp * layout->tile_bytes;
    place.order_at = layout->order_shared ? shared_at + layout->order_at : 0;
    place.classes = common->classes;
    begin_next_launch();
    while (first < end) {
        struct turn turn =
            load_turn(&launch, load_pick(&launch, first + warp, end), first + warp, end, lane);
        struct decode_job job = share_first(common, turn.word, end, lane);
        load_segment(&place, &launch, (const struct counts_segment *)job.blocks);
        uint32_t active = share_items(&launch, (end - first) * place.n_streams, job.src_bytes);
        uint32_t stopped = decode_run<Pixel>(&launch, &place, turn, first, end, active, lane);
        if (lane == 0 && stopped < end)
            atomicMin(&common->pending, stopped);
        __syncthreads();
        first = same(common->pending);
        __syncthreads(); /* before it changes */
    }
    finish_stores();
    end_after_last_launch();
}

/* ---- launchers ---------------------------------------------------------------------------------- */

static uint32_t warps_in(uint32_t bytes, uint32_t taken, uint32_t warp_bytes, uint32_t most)
{
    uint32_t warps = bytes > taken ? (bytes - taken) / warp_bytes : 0;
    return warps < most ? warps : most;
}

static struct layout divide_shared(const struct frame_shape *shape, uint32_t bytes, uint32_t most)
{
    const uint32_t tile_bytes = COUNTS_TILE_PIXELS * shape->elem_bytes;
    const uint32_t common = (sizeof(struct block_shared) + 127) / 128 * 128;
    const uint32_t order = counts_n_granules(shape->n_elems) * COUNTS_LANES * 4;
    const uint32_t warp_bytes = tile_bytes + RING_BYTES;
    const uint32_t with = warps_in(bytes, TABLES_BYTES + common + order, warp_bytes, most);
    const uint32_t without = warps_in(bytes, TABLES_BYTES + common, warp_bytes, most);
    const bool order_shared = 2 * with >= without; /* rather than half of the warps */
    const uint32_t warps = order_shared ? with : without;
    struct layout layout = {warps, tile_bytes, TABLES_BYTES, 0, 0, 0, order_shared, 0};
    layout.tiles_at = layout.rings_at + warps * RING_BYTES;
    layout.common_at = layout.tiles_at + warps * tile_bytes;
    layout.order_at = layout.common_at + common;
    layout.bytes = layout.order_at + (order_shared ? order : 0);
    return layout;
}

static const void *kernel_for(uint32_t elem_bytes)
{
    switch (elem_bytes) {
    case 1: return (const void *)decode_counts<uint8_t>;
    case 2: return (const void *)decode_counts<uint16_t>;
    case 4: return (const void *)decode_counts<uint32_t>;
    default: return NULL;
    }
}

/* What the current device has. */
struct properties {
    int shared_bytes, all_shared_bytes; /* of a thread block, of a multiprocessor */
    int processors;
    int major; /* compute capability */
};

static cudaError_t ask_device(struct properties *properties)
{
    int device;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&properties->shared_bytes,
                                       cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&properties->all_shared_bytes,
                                       cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
    if (error == cudaSuccess)
        error =
            cudaDeviceGetAttribute(&properties->processors, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess)
        error =
            cudaDeviceGetAttribute(&properties->major, cudaDevAttrComputeCapabilityMajor, device);
    return error;
}

/* Divide shared memory, and tell how many thread blocks share the frames. A few more frames than multiprocessors, which
 * may all be of other segments, are decoded at the same time by two thread blocks on each, if these have room. */
static uint32_t plan_blocks(struct launch *launch, const struct properties *device,
                            uint32_t pretend)
{
    const uint32_t most = device->major >= 9 ? MAX_WARPS : MAX_WARPS_BEFORE_90;
    const uint32_t processors = (uint32_t)device->processors;
    uint32_t bytes = (uint32_t)device->shared_bytes, half = (uint32_t)device->all_shared_bytes / 2;
    if (pretend && pretend < bytes)
        bytes = pretend;
    if (launch->n > processors && launch->n <= 2 * processors) {
        half = half < bytes + SHARED_RESERVED ? half : bytes + SHARED_RESERVED;
        launch->layout = divide_shared(&launch->shape, half - SHARED_RESERVED, most);
        if (launch->layout.warps >= COUNTS_MAX_STREAMS / 2)
            return launch->n;
    }
    launch->layout = divide_shared(&launch->shape, bytes, most);
    return launch->n < processors ? launch->n : processors;
}

extern "C" cudaError_t launch_decode_counts(int32_t *status_dev, const struct decode_job *jobs_dev,
                                            const uint32_t *picks_dev, size_t n,
                                            struct frame_shape shape,
                                            const struct counts_launch *options,
                                            cudaStream_t stream)
{
    const struct counts_launch plain = {}, *wanted = options ? options : &plain;
    const void *kernel = kernel_for(shape.elem_bytes);
    struct properties device = {};
    if (n == 0)
        return cudaSuccess;
    if (!kernel || n > INT32_MAX / COUNTS_MAX_STREAMS || shape.n_elems == 0 ||
        shape.n_elems > (uint64_t)COUNTS_MAX_TILES * COUNTS_TILE_PIXELS)
        return cudaErrorInvalidValue;
    cudaError_t error = ask_device(&device);
    if (error != cudaSuccess)
        return error;
    struct launch launch = {status_dev, jobs_dev, picks_dev, (uint32_t)n, !wanted->plain_stores,
                            shape,      {}};
    uint32_t n_blocks = plan_blocks(&launch, &device, wanted->shared_bytes);
    if (launch.layout.warps == 0)
        return cudaErrorInvalidConfiguration;
    void *arguments[] = {&launch};
    cudaLaunchAttribute overlap;
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(n_blocks);
    config.blockDim = dim3(launch.layout.warps * WARP);
    config.dynamicSmemBytes = launch.layout.bytes;
    config.stream = stream;
    config.attrs = &overlap;
    config.numAttrs = wanted->overlap && device.major >= 9;
    return cudaLaunchKernelExC(&config, kernel, arguments);
}

/* Load the kernels now, and let them have all the shared memory there is. */
extern "C" cudaError_t launch_load_counts(void)
{
    struct properties device = {};
    cudaError_t error = ask_device(&device);
    for (uint32_t elem_bytes = 1; error == cudaSuccess && elem_bytes <= 4; elem_bytes *= 2) {
        error = cudaFuncSetAttribute(kernel_for(elem_bytes),
                                     cudaFuncAttributePreferredSharedMemoryCarveout,
                                     cudaSharedmemCarveoutMaxShared);
        if (error != cudaSuccess)
            return error;
        error =
            cudaFuncSetAttribute(kernel_for(elem_bytes),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, device.shared_bytes);
    }
    return error;
}
