/* SPDX-License-Identifier: Apache-2.0
 *
 * counts on the GPU, the way in: frames of a segment are encoded, and encoded frames are put where they stay. What
 * comes out is byte for byte what counts_encode and counts_place give on the CPU; counts.h says what that is.
 *
 * A warp encodes one stream, lane by lane as the format has it, from its last tile to its first. The encoding
 * tables lie in shared memory, once for all warps of a block; of the frame each warp has a tile there, from which
 * units are gathered. One block stays on each multiprocessor, with as many warps as shared memory allows.
 *
 * The common way through a granule knows nothing of patches. A step is "odd" if in any lane the pixels are not what
 * their symbol would say; it goes through mend(), which clamps, substitutes and writes patches. Of counts about one
 * step in thirty is. To keep constants off the common way, a tile has zeros in their places, which nearly always
 * is what is coded for them; where it is not (most wide classes have no zero), the step comes out odd and mend knows.
 *
 * A stream that does not fit its room is given up at the end of a granule, and its struct counts_stream is zeros. */
#include "counts_mend.cuh"
#include "launch.h"
#include "place.cuh"

#define MAX_WARPS 32u
#define LEAST_WARPS 4u /* of a block: the tables take one warp long to load */

/* ---- a lane's string of bits ---------------------------------------------------------------------- */

/* Bits come from the last one on; `low` is filled from its lowest bit up and has 32 - free of them. */
struct lane {
    uint32_t state;
    uint32_t low, hold; /* the word in the making; the one completed last, not laid down yet */
    int32_t free;       /* 0 to 31 */
    /* the same in all lanes */
    int32_t at;   /* words of the room that are below the one laid down last */
    bool started; /* one was */
};

/* Of the words that `crossed` lanes would lay down, those that there are, as long as nothing is laid down: each lane's
 * first two lie beyond its end, and what comes behind the last real one is left out. */
static __device__ __noinline__ uint32_t choose_laid(struct desk *desk, uint32_t crossed)
{
    uint32_t lane = threadIdx.x;
    bool crosses = crossed >> lane & 1;
    uint32_t real = __ballot_sync(ALL_LANES, crosses && desk->n_crossed[lane] >= 2);
    desk->n_crossed[lane] += crosses;
    return real ? crossed & (0xffffffffu >> __clz((int)real)) : 0;
}

/* n bits, at most 32, above those that are there; then what a decoder does when it looks at its place. */
static __device__ void push_bits(struct lane *own, struct desk *desk, uint32_t *room, uint32_t bits,
                                 uint32_t n, uint32_t lane_bit)
{
    __builtin_assume(__isGlobal(room));
    own->low |= __funnelshift_r(0, bits, (uint32_t)own->free);
    uint32_t over = bits >> own->free;
    own->free -= (int32_t)n;
    bool crosses = own->free < 0;
    own->free &= 31;
    uint32_t laid = __ballot_sync(ALL_LANES, crosses);
    if (!own->started) {
        laid = choose_laid(desk, laid);
        own->started = laid != 0;
    }
    own->at -= __popc(laid);
    /* Where there is no room, which is seen at the granule's end, the first word takes it all. */
    if (laid & lane_bit)
        room[max(own->at + __popc(laid & (lane_bit - 1)), 0)] = own->hold;
    if (crosses) {
        own->hold = own->low;
        own->low = over;
    }
}

/* The bits that coding this symbol puts out; how many, in *n. */
static __device__ uint32_t code_symbol(struct lane *own, const struct tables *tables,
                                       struct symbol symbol, uint32_t *n)
{
    *n = (own->state + symbol.bits_add) >> 16;
    uint32_t kept = own->state >> *n, bits = own->state - (kept << *n);
    own->state = tables->states[(int32_t)kept + symbol_state_add(symbol)];
    return bits;
}

/* ---- granules ------------------------------------------------------------------------------------- */

template <uint32_t ELEM_BYTES> struct unit {
    uint32_t words[ELEM_BYTES];
    uint32_t at; /* pixel in the tile */
};

template <uint32_t ELEM_BYTES>
static __device__ unit<ELEM_BYTES> load_unit(const uint8_t *tile, uint32_t index)
{
    struct unit<ELEM_BYTES> unit;
    unit.at = index * COUNTS_UNIT_PIXELS;
    if (ELEM_BYTES == 1) {
        unit.words[0] = ((const uint32_t *)tile)[index];
    } else if (ELEM_BYTES == 2) {
        uint2 both = ((const uint2 *)tile)[index];
        unit.words[0] = both.x;
        unit.words[ELEM_BYTES / 2] = both.y;
    } else {
        uint4 all = ((const uint4 *)tile)[index];
        unit.words[0] = all.x;
        unit.words[ELEM_BYTES / 4] = all.y;
        unit.words[ELEM_BYTES / 2] = all.z;
        unit.words[ELEM_BYTES - 1] = all.w;
    }
    return unit;
}

template <uint32_t ELEM_BYTES>
static __device__ uint32_t unit_pixel(const struct unit<ELEM_BYTES> &unit, uint32_t i)
{
    if (ELEM_BYTES == 4)
        return unit.words[i];
    const uint32_t per_word = 4 / ELEM_BYTES, bits = 8 * ELEM_BYTES;
    return unit.words[i / per_word] >> i % per_word * bits & ((1u << bits % 32) - 1);
}

/* The symbol that N pixels from the unit's i-th on would have; whether it is another, in *odd. */
template <uint32_t ELEM_BYTES, uint32_t N>
static __device__ struct symbol find_symbol(const struct tables *tables, uint32_t class_,
                                            const struct unit<ELEM_BYTES> &unit, uint32_t i,
                                            bool *odd)
{
    const uint32_t field_bits = 8 / N;
    uint32_t symbol = 0, all = 0;
#pragma unroll
    for (uint32_t f = 0; f < N; f++) {
        uint32_t value = unit_pixel<ELEM_BYTES>(unit, i + f);
        symbol |= value << f * field_bits;
        all |= value;
    }
    struct symbol found = tables->symbols[class_][symbol & 0xff];
    *odd |= all >> field_bits || symbol_is_other(found);
    return found;
}

/* What all lanes have in common in a granule. */
struct granule {
    const struct tables *tables;
    struct desk *desk;
    uint32_t *room;
    uint32_t class_;
    bool deviates;
    uint32_t lane, lane_bit;
};

/* Two steps, `second` after `first` in decoding order. */
template <uint32_t ELEM_BYTES, uint32_t N>
static __device__ void code_pair(struct lane *own, const struct granule &granule,
                                 const struct unit<ELEM_BYTES> &first, uint32_t first_i,
                                 const struct unit<ELEM_BYTES> &second, uint32_t second_i)
{
    const struct tables *tables = granule.tables;
    bool odd = granule.deviates;
    struct symbol a = find_symbol<ELEM_BYTES, N>(tables, granule.class_, first, first_i, &odd);
    struct symbol b = find_symbol<ELEM_BYTES, N>(tables, granule.class_, second, second_i, &odd);
    if (__any_sync(ALL_LANES, odd)) {
        b = mend<ELEM_BYTES>(granule.desk, tables, granule.class_, N, second.at + second_i).symbol;
        a = mend<ELEM_BYTES>(granule.desk, tables, granule.class_, N, first.at + first_i).symbol;
    }
    uint32_t n_b, n_a, bits = code_symbol(own, tables, b, &n_b);
    bits |= code_symbol(own, tables, a, &n_a) << n_b;
    push_bits(own, granule.desk, granule.room, bits, n_a + n_b, granule.lane_bit);
}

/* One step of a wide class. No value is beyond the last field and below base at once: what is below comes out far
 * above all fields, since base and what they hold are less than 2^32. */
template <uint32_t ELEM_BYTES>
static __device__ void code_wide(struct lane *own, const struct granule &granule,
                                 struct counts_class range, const struct unit<ELEM_BYTES> &unit,
                                 uint32_t i)
{
    uint32_t value = unit_pixel<ELEM_BYTES>(unit, i), above = value - range.base;
    uint32_t field = above >> range.shift, raw = above - (field << range.shift), n;
    struct symbol symbol = granule.tables->symbols[granule.class_][field & 0xff];
    bool odd = granule.deviates || field > 0xff || symbol_is_other(symbol);
    if (__any_sync(ALL_LANES, odd)) {
        struct mended mended =
            mend<ELEM_BYTES>(granule.desk, granule.tables, granule.class_, 1, unit.at + i);
        symbol = mended.symbol;
        raw = mended.raw;
    }
    uint32_t bits = code_symbol(own, granule.tables, symbol, &n) << range.shift | raw;
    push_bits(own, granule.desk, granule.room, bits, n + range.shift, granule.lane_bit);
}

template <uint32_t ELEM_BYTES>
static __device__ void code_granule(struct lane *own, const struct granule &granule, uint32_t kind,
                                    const struct unit<ELEM_BYTES> &a,
                                    const struct unit<ELEM_BYTES> &b)
{
    if (kind == 4) {
        code_pair<ELEM_BYTES, 4>(own, granule, a, 0, b, 0);
    } else if (kind == 2) {
        code_pair<ELEM_BYTES, 2>(own, granule, b, 0, b, 2);
        code_pair<ELEM_BYTES, 2>(own, granule, a, 0, a, 2);
    } else if (kind == 1) {
        code_pair<ELEM_BYTES, 1>(own, granule, b, 2, b, 3);
        code_pair<ELEM_BYTES, 1>(own, granule, b, 0, b, 1);
        code_pair<ELEM_BYTES, 1>(own, granule, a, 2, a, 3);
        code_pair<ELEM_BYTES, 1>(own, granule, a, 0, a, 1);
    } else {
        struct counts_class range = granule.tables->classes[granule.class_];
#pragma unroll
        for (uint32_t i = COUNTS_UNIT_PIXELS; i-- > 0;)
            code_wide<ELEM_BYTES>(own, granule, range, b, i);
#pragma unroll
        for (uint32_t i = COUNTS_UNIT_PIXELS; i-- > 0;)
            code_wide<ELEM_BYTES>(own, granule, range, a, i);
    }
}

/* ---- streams -------------------------------------------------------------------------------------- */

static __device__ bool has_room(const struct lane *own, const struct desk *desk,
                                uint32_t elem_bytes)
{
    return own->at >= (int32_t)(desk->n_patches * counts_patch_words(elem_bytes));
}

/* False as soon as there is no room. */
template <uint32_t ELEM_BYTES>
static __device__ bool code_tiles(struct lane *own, struct granule *granule,
                                  const struct counts_segment *segment, uint64_t n_elems,
                                  uint32_t first_tile, uint32_t end_tile)
{
    const uint8_t *base = (const uint8_t *)segment;
    const uint32_t *order = (const uint32_t *)(base + segment->order_at) + granule->lane;
    const uint8_t *classes = base + segment->granules_at;
    const uint32_t until4 = segment->until4, until2 = segment->until2, until1 = segment->until1;
    const uint32_t per_tile = COUNTS_TILE_UNITS / COUNTS_GRANULE_UNITS;
    struct desk *desk = granule->desk;
    uint32_t g = min(end_tile * per_tile, segment->n_granules);
    uint32_t next_units = order[(g - 1) * WARP], next_class = classes[g - 1];
    for (uint32_t tile = end_tile; tile-- > first_tile;) {
        granule->deviates = open_tile<ELEM_BYTES>(desk, segment, n_elems, tile, granule->lane);
        while (g > tile * per_tile) {
            uint32_t units = next_units, k = next_class;
            g--;
            if (g > 0) {
                next_units = order[(g - 1) * WARP];
                next_class = classes[g - 1];
            }
            granule->class_ = k;
            uint32_t kind = k < until4 ? 4 : k < until2 ? 2 : k < until1 ? 1 : 0;
            code_granule<ELEM_BYTES>(own, *granule, kind,
                                     load_unit<ELEM_BYTES>(tile_of(desk), units & 0xffff),
                                     load_unit<ELEM_BYTES>(tile_of(desk), units >> 16));
            if (!has_room(own, desk, ELEM_BYTES))
                return false;
        }
    }
    return true;
}

/* The first states and the markers; then what is left in each lane, which a decoder reads first. */
static __device__ bool finish_stream(struct lane *own, const struct granule *granule,
                                     uint32_t elem_bytes)
{
    /* A state is from 2,048 to 4,095: it has the marker as its top bit. */
    push_bits(own, granule->desk, granule->room, own->state, COUNTS_TABLE_BITS + 1,
              granule->lane_bit);
    own->at -= 2 * (int32_t)COUNTS_LANES;
    if (!has_room(own, granule->desk, elem_bytes) || granule->desk->n_patches > COUNTS_MAX_PATCHES)
        return false;
    granule->room[own->at + (int32_t)granule->lane] = own->low;
    granule->room[own->at + (int32_t)(COUNTS_LANES + granule->lane)] = own->hold;
    return true;
}

template <uint32_t ELEM_BYTES>
static __device__ struct counts_stream code_stream(struct desk *desk, const struct tables *tables,
                                                   const struct work &work, uint32_t frame,
                                                   uint32_t s, uint32_t lane)
{
    const struct counts_segment *segment = (const struct counts_segment *)work.encode.segment;
    const uint32_t n_streams = work.encode.n_streams;
    uint64_t at = counts_room_at(&work.shape, n_streams, s);
    uint32_t *room =
        (uint32_t *)(work.encode.rooms + (uint64_t)frame * work.encode.room_stride + at);
    uint32_t room_words =
        (uint32_t)((counts_room_at(&work.shape, n_streams, s + 1) - at) / sizeof(uint32_t));
    __syncwarp();
    desk->n_crossed[lane] = 0;
    if (lane == 0) {
        desk->frame = (const uint8_t *)((const uint64_t *)work.encode.frames)[frame];
        desk->room = room;
        desk->room_words = room_words;
        desk->n_patches = desk->patch_tile = 0;
    }
    __syncwarp();
    struct granule granule = {tables, desk, room, 0, false, lane, 1u << lane};
    struct lane own = {COUNTS_STATES, 0, 0, 0, (int32_t)room_words, false};
    if (!code_tiles<ELEM_BYTES>(&own, &granule, segment, work.shape.n_elems,
                                counts_stream_tile(segment->n_tiles, n_streams, s),
                                counts_stream_tile(segment->n_tiles, n_streams, s + 1)) ||
        !finish_stream(&own, &granule, ELEM_BYTES))
        return {0, 0, 0, 0};
    return {room_words - (uint32_t)own.at, desk->n_patches, desk->patch_tile, 0};
}

/* ---- kernels -------------------------------------------------------------------------------------- */

/* Streams of one segment, n_items of them, frame by frame. */
template <uint32_t ELEM_BYTES>
static __global__ void __launch_bounds__(MAX_WARPS *WARP, 1)
    encode_frames(const __grid_constant__ struct work work, uint32_t n_items)
{
    extern __shared__ __align__(16) uint8_t shared[];
    struct tables *tables = (struct tables *)shared;
    struct desk *desk =
        (struct desk *)(shared + sizeof(*tables) + threadIdx.y * desk_bytes<ELEM_BYTES>());
    load_tables(tables, (const struct counts_encoder *)work.encode.encoder,
                (const struct counts_segment *)work.encode.segment);
    for (uint32_t item = threadIdx.y * gridDim.x + blockIdx.x; item < n_items;
         item += blockDim.y * gridDim.x) {
        uint32_t frame = item / work.encode.n_streams;
        struct counts_stream found =
            code_stream<ELEM_BYTES>(desk, tables, work, frame, item - frame * work.encode.n_streams,
                                    threadIdx.x);
        if (threadIdx.x == 0)
            ((struct counts_stream *)work.encode.streams)[item] = found;
    }
}

/* ---- launchers ------------------------------------------------------------------------------------ */

struct encode_kernel {
    void (*run)(struct work work, uint32_t n_items);
    uint32_t desk_bytes;
};

static struct encode_kernel find_kernel(uint32_t elem_bytes)
{
    switch (elem_bytes) {
    case 1: return {encode_frames<1>, desk_bytes<1>()};
    case 2: return {encode_frames<2>, desk_bytes<2>()};
    default: return {encode_frames<4>, desk_bytes<4>()};
    }
}

/* What this device gives. Let the kernel have it. */
struct limits {
    int n_multiprocessors, shared_bytes;
};

static cudaError_t prepare(struct limits *limits, const struct encode_kernel *kernel)
{
    int device;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&limits->n_multiprocessors, cudaDevAttrMultiProcessorCount,
                                       device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&limits->shared_bytes,
                                       cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error == cudaSuccess && kernel)
        error =
            cudaFuncSetAttribute((const void *)kernel->run,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, limits->shared_bytes);
    return error;
}

static uint32_t blocks_for(uint32_t n_items, uint32_t per_block, uint32_t most)
{
    return min((n_items - 1) / per_block + 1, most);
}

static cudaError_t launch_encode_frames(const struct work *work, uint32_t shared_bytes,
                                        cudaStream_t stream)
{
    struct encode_kernel kernel = find_kernel(work->shape.elem_bytes);
    struct limits limits;
    cudaError_t error = prepare(&limits, &kernel);
    if (error != cudaSuccess)
        return error;
    uint32_t room = (uint32_t)limits.shared_bytes, n_blocks = (uint32_t)limits.n_multiprocessors;
    if (shared_bytes)
        room = min(room, shared_bytes);
    if (work->n > INT32_MAX / COUNTS_MAX_STREAMS ||
        room < sizeof(struct tables) + kernel.desk_bytes)
        return cudaErrorInvalidValue;
    uint32_t n_items = work->n * work->encode.n_streams;
    uint32_t fit = min(MAX_WARPS, (room - (uint32_t)sizeof(struct tables)) / kernel.desk_bytes);
    uint32_t n_warps = min(fit, max(LEAST_WARPS, (n_items - 1) / n_blocks + 1));
    kernel.run<<<blocks_for(n_items, n_warps, n_blocks), dim3(WARP, n_warps),
                 sizeof(struct tables) + n_warps * kernel.desk_bytes, stream>>>(*work, n_items);
    return cudaGetLastError();
}

static cudaError_t launch_place(const struct work *work, cudaStream_t stream)
{
    struct limits limits;
    cudaError_t error = prepare(&limits, NULL);
    if (error != cudaSuccess)
        return error;
    uint32_t most = PLACE_BLOCKS * (uint32_t)limits.n_multiprocessors;
    place_bytes<<<blocks_for(work->n, 1, most), PLACE_THREADS, 0, stream>>>(
        (const struct place_job *)work->place.jobs, work->n, work->shape);
    return cudaGetLastError();
}

extern "C" cudaError_t launch_encode_within(const struct work *work, uint32_t shared_bytes,
                                            cudaStream_t stream)
{
    if (work->n == 0)
        return cudaSuccess;
    switch (work->kind) {
    case WORK_ENCODE: return launch_encode_frames(work, shared_bytes, stream);
    case WORK_PLACE: return launch_place(work, stream);
    default: return cudaErrorInvalidValue;
    }
}

extern "C" cudaError_t launch_encode(const struct work *work, cudaStream_t stream)
{
    return launch_encode_within(work, 0, stream);
}

extern "C" cudaError_t launch_load_encode(void)
{
    struct cudaFuncAttributes attributes;
    struct limits limits;
    cudaError_t error = cudaFuncGetAttributes(&attributes, (const void *)place_bytes);
    for (uint32_t elem_bytes = 1; elem_bytes <= 4 && error == cudaSuccess; elem_bytes *= 2) {
        struct encode_kernel kernel = find_kernel(elem_bytes);
        error = prepare(&limits, &kernel);
        if (error == cudaSuccess)
            error = cudaFuncGetAttributes(&attributes, (const void *)kernel.run);
    }
    return error;
}
