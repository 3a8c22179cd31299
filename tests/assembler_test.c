/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames put together from indexes made here: chunk grids, edges, boxes, faults, and threads that share chunks. What has
 * to come out is put together pixel by pixel. */
#include "assembler.h"
#include "chunk_cache.h"
#include "filter_cases.h"
#include "span.h"

#include <malloc.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_DATASETS 2u
#define MAX_BOXES 6u
#define MAX_CHUNKS 4096u

/* An acquisition of datasets that lie in one file, with the pixels that they have. */
struct bed {
    struct source_index index;
    struct assembly assembly;
    struct assembly_dataset datasets[MAX_DATASETS];
    struct assembly_box boxes[MAX_BOXES];
    struct assembly_chunk chunks[MAX_CHUNKS];
    struct case_bytes pixels[MAX_DATASETS]; /* native, C order */
    struct source_chunk *frames;
    struct source_file file;
    uint8_t *want; /* [n_frames] frames */
    bool *bad;     /* [n_frames] */
    uint64_t frame_bytes;
};

static uint64_t product(const uint64_t *dims, uint32_t n)
{
    uint64_t p = 1;
    for (uint32_t d = 0; d < n; d++)
        p *= dims[d];
    return p;
}

static uint64_t along(const struct assembly_dataset *set, uint32_t d)
{
    return (set->dims[d] + set->chunk[d] - 1) / set->chunk[d];
}

static uint64_t grid_size(const struct assembly_dataset *set)
{
    uint64_t n = 1;
    for (uint32_t d = 0; d < set->rank; d++)
        n *= along(set, d);
    return n;
}

static void turn(uint8_t *bytes, size_t n, uint32_t elem)
{
    for (size_t i = 0; i < n; i += elem)
        for (uint32_t k = 0; k < elem / 2; k++) {
            uint8_t t = bytes[i + k];
            bytes[i + k] = bytes[i + elem - 1 - k];
            bytes[i + elem - 1 - k] = t;
        }
}

/* For each element of chunk `number`: its place in the dataset, or -1 for padding. */
static int64_t place_of(const struct assembly_dataset *set, uint64_t number, uint64_t elem)
{
    uint64_t at = 0, stride = 1;
    for (uint32_t d = set->rank; d-- > 0;) {
        uint64_t x = number % along(set, d) * set->chunk[d] + elem % set->chunk[d];
        number /= along(set, d);
        elem /= set->chunk[d];
        if (x >= set->dims[d])
            return -1;
        at += x * stride;
        stride *= set->dims[d];
    }
    return (int64_t)at;
}

/* Chunk `number` as it is written: pixels, with noise where it sticks out. Unwritten: the fill value into the pixels. */
static struct case_bytes cut_chunk(struct bed *bed, unsigned s, uint64_t number, bool written)
{
    const struct assembly_dataset *set = &bed->datasets[s];
    const uint32_t elem = set->elem_bytes;
    uint64_t n = product(set->chunk, set->rank);
    struct case_bytes chunk = case_new(n * elem);
    for (uint64_t i = 0; i < n; i++) {
        int64_t at = place_of(set, number, i);
        uint64_t noise = case_random();
        uint8_t *pixel = at < 0 ? (uint8_t *)&noise : bed->pixels[s].at + (uint64_t)at * elem;
        if (!written && at >= 0)
            memcpy(pixel, &set->fill, elem);
        memcpy(chunk.at + i * elem, pixel, elem);
    }
    if (set->flags & ASSEMBLY_BIG_ENDIAN)
        turn(chunk.at, chunk.n, elem);
    return chunk;
}

static void write_chunk(struct bed *bed, unsigned s, uint64_t number, bool written, uint32_t mask)
{
    const struct assembly_dataset *set = &bed->datasets[s];
    struct assembly_chunk *chunk = &bed->chunks[set->first_chunk + number];
    struct filter_pipeline pipeline = {.filters = set->filters,
                                       .n_filters = set->n_filters,
                                       .mask = mask};
    struct case_bytes pixels = cut_chunk(bed, s, number, written);
    *chunk = (struct assembly_chunk){.file = 0, .mask = mask};
    if (written) {
        struct case_bytes packed = case_write(pixels, &pipeline);
        off_t at = lseek(bed->file.fd, (off_t)(case_random() % 5), SEEK_END);
        CHECK(write(bed->file.fd, packed.at, packed.n) == (ssize_t)packed.n);
        chunk->offset = (uint64_t)at;
        chunk->bytes = (uint32_t)packed.n;
        free(packed.at);
    }
    free(pixels.at);
}

/* The next dataset, of random pixels; `unwritten` of 8 chunks are not there, `skipping` of 8 have a filter mask. */
static unsigned add_dataset(struct bed *bed, struct assembly_dataset set, unsigned unwritten,
                            unsigned skipping)
{
    unsigned s = (unsigned)bed->assembly.n_datasets++;
    set.first_chunk = bed->assembly.n_chunks;
    set.n_chunks = grid_size(&set);
    bed->assembly.n_chunks += set.n_chunks;
    if (bed->assembly.n_chunks > MAX_CHUNKS)
        exit(EXIT_FAILURE);
    bed->datasets[s] = set;
    bed->pixels[s] = case_pixels(product(set.dims, set.rank), set.elem_bytes);
    for (uint64_t i = 0; i < set.n_chunks; i++)
        write_chunk(bed, s, i, case_random() % 8 >= unwritten,
                    case_random() % 8 < skipping ? (uint32_t)case_random() % 4 : 0);
    return s;
}

static void add_box(struct bed *bed, struct assembly_box box)
{
    bed->boxes[bed->assembly.n_boxes++] = box;
}

/* All of a dataset as the frames from `frame` on. */
static struct assembly_box whole_box(const struct bed *bed, unsigned s, uint64_t frame)
{
    const struct assembly_dataset *set = &bed->datasets[s];
    return (struct assembly_box){.frame = frame,
                                 .frame_step = 1,
                                 .n_frames = product(set->dims, set->rank - 2),
                                 .from_step = 1,
                                 .n_y = set->dims[set->rank - 2],
                                 .n_x = set->dims[set->rank - 1],
                                 .dataset = s};
}

static struct bed *bed_new(void)
{
    struct bed *bed = calloc(1, sizeof(*bed));
    if (!bed)
        exit(EXIT_FAILURE);
    bed->file.fd = memfd_create("chunks", MFD_CLOEXEC);
    bed->file.path = strdup("/data/chunks.h5");
    return bed;
}

static void copy_box(struct bed *bed, const struct assembly_box *box)
{
    const struct assembly_dataset *set = &bed->datasets[box->dataset];
    const uint64_t height = set->dims[set->rank - 2], width = set->dims[set->rank - 1];
    const uint32_t elem = set->elem_bytes;
    for (uint64_t i = 0; i < box->n_frames; i++)
        for (uint64_t y = 0; y < box->n_y; y++)
            for (uint64_t x = 0; x < box->n_x; x++) {
                uint64_t frame = box->frame + i * box->frame_step;
                uint64_t from = box->from_frame + i * box->from_step;
                memcpy(bed->want + frame * bed->frame_bytes +
                           ((box->y + y) * bed->index.det_x + box->x + x) * elem,
                       bed->pixels[box->dataset].at +
                           ((from * height + box->from_y + y) * width + box->from_x + x) * elem,
                       elem);
            }
}

/* Datasets and boxes are in: the index, and what has to come out. budget 0: the usual one. */
static void bed_open(struct bed *bed, uint64_t n_frames, uint64_t det_y, uint64_t det_x,
                     uint64_t fill, uint64_t budget)
{
    struct stat st;
    const uint32_t elem = bed->datasets[0].elem_bytes;
    fstat(bed->file.fd, &st);
    bed->file.size = (uint64_t)st.st_size;
    bed->file.mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    bed->frame_bytes = det_y * det_x * elem;
    bed->index.det_x = det_x;
    bed->want = malloc(n_frames * bed->frame_bytes);
    bed->bad = calloc(n_frames, sizeof(bool));
    bed->frames = calloc(n_frames, sizeof(*bed->frames));
    for (uint64_t i = 0; i < n_frames; i++)
        bed->frames[i] = (struct source_chunk){.bytes = (uint32_t)bed->frame_bytes, .raw = 1};
    for (uint64_t i = 0; i < n_frames * det_y * det_x; i++)
        memcpy(bed->want + i * elem, &fill, elem);
    for (size_t i = 0; i < bed->assembly.n_boxes; i++)
        copy_box(bed, &bed->boxes[i]);
    bed->assembly.datasets = bed->datasets;
    bed->assembly.boxes = bed->boxes;
    bed->assembly.chunks = bed->chunks;
    bed->assembly.texts = "/entry/data/data";
    bed->assembly.n_texts = 17;
    bed->index = (struct source_index){.elem_bytes = elem,
                                       .det_y = det_y,
                                       .det_x = det_x,
                                       .fill = fill,
                                       .n_frames = n_frames,
                                       .chunks = bed->frames,
                                       .assembly = &bed->assembly,
                                       .files = &bed->file,
                                       .n_files = 1};
    bed->index.assembler = assembler_new(&bed->index, budget);
    if (!bed->index.assembler)
        exit(EXIT_FAILURE);
}

static void bed_free(struct bed *bed)
{
    assembler_free(bed->index.assembler);
    for (size_t i = 0; i < bed->assembly.n_datasets; i++)
        free(bed->pixels[i].at);
    close(bed->file.fd);
    free(bed->file.path);
    free(bed->want);
    free(bed->bad);
    free(bed->frames);
    free(bed);
}

/* Read frames first .. first + n - 1 as the loader does, and compare; their faults must be the bed's. */
static void check_span(const struct bed *bed, uint64_t first, uint32_t n)
{
    struct frame_shape shape = {.n_elems = bed->index.det_y * bed->index.det_x,
                                .elem_bytes = bed->index.elem_bytes,
                                .fill = bed->index.fill};
    struct span span = {.first = first, .n_frames = n, .bytes = n * bed->frame_bytes};
    struct span_read read;
    struct case_bytes bytes = case_new(n * bed->frame_bytes);
    memset(bytes.at, 0xa5, bytes.n);
    if (span_read_init(&read, &bed->index, &span, &shape, bytes.at))
        exit(EXIT_FAILURE);
    span_read(&read);
    CHECK_MSG(!read.err.code, "%s", read.err.text);
    for (uint32_t i = 0; i < n; i++) {
        CHECK_MSG(read.bad[i] == bed->bad[first + i], "frame %llu: %s",
                  (unsigned long long)first + i, read.bad[i] ? read.faults[0].text : "no fault");
        if (!read.bad[i])
            CHECK_MSG(!memcmp(bytes.at + read.at[i], bed->want + (first + i) * bed->frame_bytes,
                              bed->frame_bytes),
                      "frame %llu of %llu differs", (unsigned long long)first + i,
                      (unsigned long long)bed->index.n_frames);
    }
    span_read_fini(&read);
    free(bytes.at);
}

/* All frames in spans of random lengths. */
static void check_all(const struct bed *bed)
{
    uint64_t n = bed->index.n_frames;
    for (uint64_t first = 0; first < n;) {
        uint64_t some = 1 + case_random() % (case_random() % 3 ? 7 : n);
        if (some > n - first)
            some = n - first;
        check_span(bed, first, (uint32_t)some);
        first += some;
    }
}

static struct assembly_dataset dataset(uint32_t rank, const uint64_t *dims, const uint64_t *chunk,
                                       uint32_t elem_bytes)
{
    struct assembly_dataset set = {.rank = rank, .elem_bytes = elem_bytes, .fill = 7};
    memcpy(set.dims, dims, rank * sizeof(*dims));
    memcpy(set.chunk, chunk, rank * sizeof(*chunk));
    return set;
}

/* ---- layouts -------------------------------------------------------------------------------------- */

static void add_filters(struct assembly_dataset *set, unsigned kind)
{
    set->n_filters = 0;
    if (kind == 1 || kind == 2)
        set->filters[set->n_filters++] = filter_with(FILTER_SHUFFLE, set->elem_bytes);
    if (kind == 1)
        set->filters[set->n_filters++] = filter_with(FILTER_GZIP, 1);
    if (kind == 2)
        set->filters[set->n_filters++] = filter_of(FILTER_FLETCHER32);
    if (kind == 3)
        set->filters[set->n_filters++] = filter_bits(set->elem_bytes, 0, 2);
}

static void test_layouts(void)
{
    static const struct {
        uint32_t rank;
        uint64_t dims[ASSEMBLY_RANK], chunk[ASSEMBLY_RANK];
    } rows[] = {
        {3, {7, 8, 8}, {1, 8, 8}},
        {3, {7, 8, 8}, {3, 8, 8}},
        {3, {7, 8, 8}, {1, 4, 8}},
        {3, {7, 8, 8}, {1, 5, 5}},
        {3, {7, 8, 8}, {2, 3, 8}},
        {3, {7, 8, 8}, {7, 8, 8}},
        {3, {7, 8, 8}, {16, 8, 8}},
        {3, {7, 8, 8}, {16, 9, 11}},
        {4, {3, 5, 8, 8}, {2, 2, 8, 8}},
        {4, {3, 5, 8, 8}, {1, 5, 4, 4}},
        {4, {3, 5, 8, 8}, {1, 5, 8, 8}},
        {4, {3, 5, 8, 8}, {3, 5, 8, 8}},
        {4, {3, 5, 4, 6}, {2, 3, 3, 4}},
        {5, {2, 3, 4, 6, 5}, {1, 2, 3, 5, 3}},
        {5, {2, 3, 4, 6, 5}, {2, 3, 4, 6, 5}},
        {2, {9, 6}, {9, 6}},
        {2, {9, 6}, {4, 4}},
        {3, {1, 3, 5}, {1, 3, 5}},
        {3, {40, 3, 3}, {6, 3, 3}},
        {4, {2, 9, 6, 1}, {1, 4, 5, 1}},
    };
    static const uint32_t elems[] = {1, 2, 4, 8};
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        for (unsigned kind = 0; kind < 4; kind++) {
            for (unsigned round = 0; round < 8; round++) {
                struct bed *bed = bed_new();
                struct assembly_dataset set =
                    dataset(rows[i].rank, rows[i].dims, rows[i].chunk, elems[case_random() % 4]);
                set.flags = round & 1 ? ASSEMBLY_BIG_ENDIAN : 0;
                add_filters(&set, kind);
                add_dataset(bed, set, round & 2, round & 4 ? 3 : 0);
                add_box(bed, whole_box(bed, 0, 0));
                bed_open(bed, bed->boxes[0].n_frames, set.dims[set.rank - 2],
                         set.dims[set.rank - 1], 5, round < 6 ? 0 : 1000);
                check_all(bed);
                bed_free(bed);
            }
        }
    }
}

/* Two datasets, boxes anywhere, also on each other: the later one counts; the rest is the fill value. */
static void test_boxes(void)
{
    static const uint64_t dims[2][4] = {{6, 9, 7, 10}, {11, 8, 9}};
    for (unsigned round = 0; round < 400; round++) {
        struct bed *bed = bed_new();
        for (unsigned s = 0; s < 2; s++) {
            uint32_t rank = s ? 3 : 4;
            uint64_t chunk[4];
            for (uint32_t d = 0; d < rank; d++)
                chunk[d] = 1 + case_random() % (dims[s][d] + 2);
            struct assembly_dataset set = dataset(rank, dims[s], chunk, 2);
            set.fill = 1000 + s;
            add_filters(&set, (unsigned)case_random() % 4);
            add_dataset(bed, set, 1, 1);
        }
        uint64_t n_frames = 40, det_y = 11, det_x = 12;
        for (unsigned b = 1 + (unsigned)case_random() % MAX_BOXES; b > 0; b--) {
            uint32_t s = (uint32_t)(case_random() % 2);
            uint64_t height = s ? 8 : 7, width = s ? 9 : 10, have = s ? 11 : 54;
            struct assembly_box box = {.dataset = s,
                                       .n_frames = 1 + case_random() % 8,
                                       .frame_step = 1 + case_random() % 3,
                                       .from_step = 1 + case_random() % 2,
                                       .n_y = 1 + case_random() % height,
                                       .n_x = 1 + case_random() % width};
            while ((box.n_frames - 1) * box.from_step >= have)
                box.n_frames--;
            box.frame = case_random() % (n_frames - (box.n_frames - 1) * box.frame_step);
            box.from_frame = case_random() % (have - (box.n_frames - 1) * box.from_step);
            box.y = case_random() % (det_y - box.n_y + 1);
            box.x = case_random() % (det_x - box.n_x + 1);
            box.from_y = case_random() % (height - box.n_y + 1);
            box.from_x = case_random() % (width - box.n_x + 1);
            add_box(bed, box);
        }
        bed_open(bed, n_frames, det_y, det_x, 77, 0);
        check_all(bed);
        bed_free(bed);
    }
}

/* ---- faults --------------------------------------------------------------------------------------- */

static struct bed *gzip_bed(const uint64_t *chunk)
{
    static const uint64_t dims[] = {12, 8, 8};
    struct bed *bed = bed_new();
    struct assembly_dataset set = dataset(3, dims, chunk, 2);
    add_filters(&set, 1);
    add_dataset(bed, set, 0, 0);
    add_box(bed, whole_box(bed, 0, 0));
    return bed;
}

/* The text of a frame's fault. */
static void fault_of(const struct bed *bed, uint64_t id, char text[200])
{
    struct frame_shape shape = {.n_elems = 64, .elem_bytes = 2};
    struct span span = {.first = id, .n_frames = 1, .bytes = bed->frame_bytes};
    struct span_read read;
    uint8_t bytes[128];
    span_read_init(&read, &bed->index, &span, &shape, bytes);
    span_read(&read);
    CHECK_INT(read.n_faults, 1);
    snprintf(text, 200, "%s", read.n_faults ? read.faults[0].text : "");
    span_read_fini(&read);
}

static void test_damage(void)
{
    static const uint64_t chunks[][3] = {{1, 8, 8}, {3, 8, 8}, {3, 4, 8}, {5, 8, 8}, {12, 5, 5}};
    for (size_t i = 0; i < sizeof(chunks) / sizeof(*chunks); i++) {
        struct bed *bed = gzip_bed(chunks[i]);
        char text[200];
        bed_open(bed, 12, 8, 8, 0, 0);
        bed->chunks[0].offset += 1; /* no longer where the stream begins */
        for (uint64_t k = 0; k < chunks[i][0]; k++)
            bed->bad[k] = true;
        check_all(bed);
        fault_of(bed, 0, text);
        CHECK_MSG(strstr(text, "gzip") && strstr(text, "(0,0,0)") &&
                      strstr(text, "/entry/data/data") && strstr(text, "/data/chunks.h5"),
                  "%s", text);
        bed_free(bed);
    }
}

static void test_known_faults(void)
{
    static const uint64_t chunk[] = {2, 8, 8};
    static const struct {
        uint32_t fault;
        const char *says;
    } rows[] = {{SOURCE_FAULT_NO_FILE, "missing"},
                {SOURCE_FAULT_PAST_END, "truncated"},
                {SOURCE_FAULT_BYTES, "stored"}};
    for (size_t i = 0; i < 3; i++) {
        struct bed *bed = gzip_bed(chunk);
        char text[200];
        bed_open(bed, 12, 8, 8, 0, 0);
        bed->chunks[2].fault = rows[i].fault;
        if (rows[i].fault == SOURCE_FAULT_NO_FILE)
            bed->chunks[2].offset = 0, bed->chunks[2].file = SOURCE_NO_FILE;
        bed->bad[4] = bed->bad[5] = true;
        check_all(bed);
        fault_of(bed, 5, text);
        CHECK_MSG(strstr(text, rows[i].says), "%s", text);
        bed_free(bed);
    }
}

/* A plugin's filter, and one that nobody knows. */
static void test_filters_not_known(void)
{
    static const uint64_t chunk[] = {2, 8, 8};
    for (unsigned foreign = 0; foreign < 2; foreign++) {
        struct bed *bed = gzip_bed(chunk);
        char text[200];
        bed_open(bed, 12, 8, 8, 0, 0);
        bed->datasets[0].filters[1].id = 32001;
        bed->datasets[0].flags = foreign ? ASSEMBLY_FOREIGN : 0;
        memset(bed->bad, 1, 12);
        check_all(bed);
        fault_of(bed, 5, text);
        CHECK_MSG(strstr(text, foreign ? "plugin" : "filter 32001"), "%s", text);
        bed_free(bed);
    }
}

static void test_changed_file(void)
{
    static const uint64_t chunks[][3] = {{1, 8, 8}, {5, 8, 8}};
    for (size_t i = 0; i < 2; i++) {
        struct bed *bed = gzip_bed(chunks[i]);
        struct frame_shape shape = {.n_elems = 64, .elem_bytes = 2};
        struct span span = {.n_frames = 2, .bytes = 256};
        struct span_read read;
        uint8_t bytes[256];
        bed_open(bed, 12, 8, 8, 0, 0);
        bed->file.mtime_ns++;
        span_read_init(&read, &bed->index, &span, &shape, bytes);
        span_read(&read);
        CHECK_INT(read.err.code, STOW_SOURCE);
        CHECK_MSG(strstr(read.err.text, "changed"), "%s", read.err.text);
        span_read_fini(&read);
        bed_free(bed);
    }
}

/* Frames without bytes are left out: no room is theirs. */
static void test_skipped(void)
{
    static const uint64_t chunk[] = {5, 8, 8};
    struct bed *bed = gzip_bed(chunk);
    struct frame_shape shape = {.n_elems = 64, .elem_bytes = 2};
    struct span span = {.n_frames = 12, .bytes = (uint64_t)10 * 128};
    struct span_read read;
    struct case_bytes bytes = case_new(span.bytes);
    bed_open(bed, 12, 8, 8, 0, 0);
    bed->frames[3].bytes = bed->frames[7].bytes = 0;
    span_read_init(&read, &bed->index, &span, &shape, bytes.at);
    span_read(&read);
    CHECK_INT(read.n_faults, 0);
    for (uint32_t i = 0; i < 12; i++)
        if (i != 3 && i != 7)
            CHECK(!memcmp(bytes.at + read.at[i], bed->want + i * 128, 128));
    span_read_fini(&read);
    free(bytes.at);
    bed_free(bed);
}

/* Memory of a large chunk's filters is not kept by each thread that has met one. (A sanitizer's malloc is not counted.) */
static void test_large_chunk(void)
{
    static const uint64_t dims[] = {2, 2048, 2304};
    const size_t chunk_bytes = (size_t)2 * 2048 * 2304 * 8;
    struct bed *bed = bed_new();
    struct assembly_dataset set = dataset(3, dims, dims, 8);
    set.filters[set.n_filters++] = filter_with(FILTER_SHUFFLE, 8);
    set.filters[set.n_filters++] = filter_of(FILTER_ZSTD);
    add_dataset(bed, set, 0, 0);
    struct assembly_box box = whole_box(bed, 0, 0);
    box.n_y = box.n_x = 4;
    add_box(bed, box);
    bed_open(bed, 2, 4, 4, 0, 1);
    size_t before = mallinfo2().hblkhd;
    check_span(bed, 0, 2);
    check_span(bed, 0, 1);
    check_span(bed, 1, 1);
    CHECK(mallinfo2().hblkhd < before + chunk_bytes / 2);
    bed_free(bed);
}

/* No dataset at all: every frame is the fill value. */
static void test_nothing(void)
{
    struct bed *bed = bed_new();
    char text[400];
    bed->datasets[0].elem_bytes = 2;
    bed_open(bed, 9, 5, 4, 12, 0);
    check_all(bed);
    CHECK(!assembler_is_slow(bed->index.assembler, text, sizeof(text)));
    bed_free(bed);
}

/* Chunks of many frames by few pixels, of which a budget holds too few: that is said, and only then. */
static void test_slow_layouts(void)
{
    static const struct {
        uint64_t chunk[4], budget;
        bool slow;
    } rows[] = {
        {{6, 5, 2, 2}, 3839, true}, {{6, 5, 2, 2}, 3840, false}, /* all of it */
        {{1, 5, 2, 2}, 639, true},  {{1, 5, 2, 2}, 640, false},  /* a row of the scan */
        {{2, 1, 8, 8}, 1279, true}, {{2, 1, 8, 8}, 1280, false}, /* two rows, in ten groups */
        {{1, 1, 2, 2}, 1, false}};
    static const uint64_t dims[] = {6, 5, 8, 8};
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        struct bed *bed = bed_new();
        char text[400] = "";
        add_dataset(bed, dataset(4, dims, rows[i].chunk, 2), 0, 0);
        add_box(bed, whole_box(bed, 0, 0));
        bed_open(bed, 30, 8, 8, 0, rows[i].budget);
        bool slow = assembler_is_slow(bed->index.assembler, text, sizeof(text));
        CHECK_MSG(slow == rows[i].slow, "row %zu: %s", i, text);
        CHECK(!slow || (strstr(text, "/entry/data/data") && strstr(text, "h5repack")));
        bed_free(bed);
    }
}

/* ---- threads -------------------------------------------------------------------------------------- */

static struct bed *shared_bed;
static atomic_uint next_span;

static void read_spans(void *data)
{
    (void)data;
    for (;;) {
        uint64_t first = (uint64_t)atomic_fetch_add(&next_span, 1) * 5;
        if (first >= shared_bed->index.n_frames)
            return;
        uint64_t left = shared_bed->index.n_frames - first;
        struct span span = {.first = first, .n_frames = (uint32_t)(left < 5 ? left : 5)};
        struct frame_shape shape = {.n_elems = 64, .elem_bytes = 2};
        struct span_read read;
        struct case_bytes bytes = case_new(5 * shared_bed->frame_bytes);
        if (span_read_init(&read, &shared_bed->index, &span, &shape, bytes.at))
            exit(EXIT_FAILURE);
        span_read(&read);
        if (read.err.code || read.n_faults ||
            memcmp(bytes.at, shared_bed->want + first * shared_bed->frame_bytes,
                   span.n_frames * shared_bed->frame_bytes))
            abort(); /* counters are the main thread's */
        span_read_fini(&read);
        free(bytes.at);
    }
}

/* Chunks of many frames and of parts of them, with budgets for all, for some, and for less than one. */
static void test_threads(void)
{
    static const uint64_t dims[] = {600, 8, 8}, chunks[][3] = {{600, 8, 8}, {64, 3, 8}, {7, 8, 5}};
    static const uint64_t budgets[] = {0, 20000, 100};
    for (size_t i = 0; i < 3; i++) {
        for (size_t k = 0; k < 3; k++) {
            uv_thread_t threads[6];
            struct assembly_dataset set = dataset(3, dims, chunks[i], 2);
            shared_bed = bed_new();
            add_filters(&set, 1);
            add_dataset(shared_bed, set, 1, 0);
            add_box(shared_bed, whole_box(shared_bed, 0, 0));
            bed_open(shared_bed, 600, 8, 8, 0, budgets[k]);
            atomic_store(&next_span, 0);
            for (size_t t = 0; t < 6; t++)
                uv_thread_create(&threads[t], read_spans, NULL);
            for (size_t t = 0; t < 6; t++)
                uv_thread_join(&threads[t]);
            CHECK(true);
            bed_free(shared_bed);
        }
    }
}

/* ---- the cache ------------------------------------------------------------------------------------ */

struct decoder {
    unsigned n;
    bool fails;
};

static int count_decode(void *data, uint8_t *to, struct stow_error *err)
{
    struct decoder *decoder = data;
    decoder->n++;
    if (decoder->fails)
        return error_set(err, STOW_CORRUPT, "broken");
    memset(to, 42, 100);
    return 0;
}

static void use(struct chunk_cache *cache, struct chunk_wish wish, uint64_t key)
{
    wish.key = key;
    const struct cached_chunk *chunk = chunk_cache_take(cache, &wish, true);
    CHECK(chunk && (chunk->err.code || chunk->bytes[99] == 42));
    chunk_cache_give(cache, chunk, 1);
}

static void test_cache(void)
{
    struct decoder decoder = {0};
    struct chunk_wish wish = {.bytes = 100, .n_uses = 3, .decode = count_decode, .data = &decoder};
    struct chunk_cache *cache = chunk_cache_new(250);
    for (int i = 0; i < 3; i++)
        use(cache, wish, 1);
    CHECK_INT(decoder.n, 1); /* once for all its uses */
    use(cache, wish, 1);
    CHECK_INT(decoder.n, 2); /* it had gone with its last */
    use(cache, wish, 2);
    use(cache, wish, 1);
    CHECK_INT(decoder.n, 3);
    use(cache, wish, 3); /* no room for three: 2 was held longest ago */
    use(cache, wish, 1);
    CHECK_INT(decoder.n, 4);
    use(cache, wish, 2);
    CHECK_INT(decoder.n, 5);
    wish.bytes = 1000; /* more than the budget */
    use(cache, wish, 4);
    CHECK_INT(decoder.n, 6);
    wish.bytes = 100;
    decoder.fails = true;
    use(cache, wish, 5);
    use(cache, wish, 5);
    CHECK_INT(decoder.n, 7); /* a failure is told to all */
    chunk_cache_free(cache);
}

/* What is held is not given up, and who may not wait is told so. */
static void test_cache_full(void)
{
    struct decoder decoder = {0};
    struct chunk_wish a = {.key = 1,
                           .bytes = 100,
                           .n_uses = 3,
                           .decode = count_decode,
                           .data = &decoder},
                      b = a;
    struct chunk_cache *cache = chunk_cache_new(150);
    b.key = 2;
    const struct cached_chunk *held = chunk_cache_take(cache, &a, false);
    CHECK(held != NULL);
    CHECK(!chunk_cache_take(cache, &b, false));
    chunk_cache_give(cache, held, 1);
    held = chunk_cache_take(cache, &b, false);
    CHECK(held != NULL);
    chunk_cache_give(cache, held, 1);
    CHECK_INT(decoder.n, 2);
    chunk_cache_free(cache);
}

int main(void)
{
    test_layouts();
    test_boxes();
    test_damage();
    test_known_faults();
    test_filters_not_known();
    test_changed_file();
    test_skipped();
    test_large_chunk();
    test_nothing();
    test_slow_layouts();
    test_threads();
    test_cache();
    test_cache_full();
    return test_end();
}
