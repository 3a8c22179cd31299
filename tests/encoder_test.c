/* SPDX-License-Identifier: Apache-2.0
 *
 * encoder_test: sources made by hand go through the whole load in every form, with damaged, raw and unwritten
 * frames between good ones; every count that comes back, every sum, and the room that is taken are compared with
 * what plain code here says, and the bytes with those of the same load in other batches. */
#include "rig.h"

#include "counts.h"
#include "loader.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

/* What loader.c asks of a source. The real one is not linked here. */
struct source {
    struct source_index index;
};

const struct source_index *source_index(const struct source *source)
{
    return &source->index;
}

enum content { DIM, BRIGHT, NOISE, MIXED, ZEROS };

struct acquisition {
    const char *name; /* begins with the type of pixels, unless that is u */
    enum content content;
    uint32_t elem_bytes;
    uint64_t det_y, det_x, n;
    bool special;    /* with frames that are raw, unwritten, cut short, damaged */
    bool flags;      /* some pixels are flagged, and hold the largest value */
    bool shrinks;    /* as counts */
    uint64_t blocks; /* elements of a bitshuffle block; 0: as usual */
};

static const struct acquisition acquisitions[] = {
    {"u2 dim", DIM, 2, 48, 40, 700, false, false, true, 0},
    {"u2 dim, a segment and a bit", DIM, 2, 32, 33, 8192 + 300, true, true, true, 0},
    {"u1 dim", DIM, 1, 31, 33, 900, true, true, true, 0},
    {"u1 dim, and less gain than a table", DIM, 1, 31, 33, 150, true, true, false, 0},
    {"u4 bright", BRIGHT, 4, 40, 41, 1200, true, true, true, 0},
    {"u2 bright, odd", BRIGHT, 2, 37, 61, 400, true, true, true, 64},
    {"u2 noise", NOISE, 2, 20, 30, 500, true, false, false, 0},
    {"u1 noise", NOISE, 1, 20, 30, 500, false, true, false, 16},
    {"u2 some of it empty", MIXED, 2, 64, 64, 300, true, false, true, 0},
    {"u2 zeros", ZEROS, 2, 16, 16, 1000, true, false, false, 0},
    {"u2 small", DIM, 2, 9, 11, 900, true, true, false, 0},
    {"few", DIM, 2, 16, 16, 3, false, false, false, 0},
    {"one", BRIGHT, 4, 5, 7, 1, false, false, false, 0},
    {"one pixel", BRIGHT, 2, 1, 1, 300, true, false, false, 0},
    {"i1", NOISE, 1, 20, 30, 300, true, true, false, 0},
    {"i2", DIM, 2, 31, 33, 500, true, true, false, 0},
    {"i4", NOISE, 4, 20, 30, 200, true, true, false, 0},
    {"i8", BRIGHT, 8, 20, 30, 200, true, true, false, 0},
    {"u8", BRIGHT, 8, 31, 33, 200, true, true, false, 64},
    {"f4", BRIGHT, 4, 20, 30, 200, true, true, false, 0},
    {"f8", DIM, 8, 20, 30, 200, true, false, false, 0},
    {"f4, of several segments", DIM, 4, 2, 3, 3 * 8192 + 100, true, false, false, 0},
};
#define N_ACQUISITIONS (sizeof(acquisitions) / sizeof(acquisitions[0]))

struct load {
    const struct acquisition *a;
    struct source source;
    struct source_file file;
    uint8_t *flags;
    struct resident *resident;
    struct loader *loader;
    bool over;
    struct stow_error err;
};

static char kind_of(const struct acquisition *a)
{
    bool typed = a->name[1] >= '1' && a->name[1] <= '8';
    return typed ? a->name[0] : 'u';
}

/* Pixels that are kept as they are in the file, or raw. */
static bool is_other_kind(const struct acquisition *a)
{
    return kind_of(a) != 'u' || a->elem_bytes == 8;
}

/* ---- what the frames hold ---- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static bool flagged(const struct acquisition *a, uint64_t pixel)
{
    return a->flags && mix(pixel) % 53 == 0;
}

static uint32_t pixel_of(const struct acquisition *a, uint64_t id, uint64_t pixel)
{
    const uint32_t most = a->elem_bytes >= 4 ? UINT32_MAX : (1u << 8 * a->elem_bytes) - 1;
    uint64_t r = mix(id * 1000003 + pixel * 7 + 1), mean = mix(pixel / 9) % 12;
    if (flagged(a, pixel))
        return most;
    enum content content = a->content;
    if (content == MIXED)
        content = id % 3 ? DIM : ZEROS;
    switch (content) {
    case NOISE: return (uint32_t)r & most;
    case ZEROS: return 0;
    case DIM: {
        uint32_t dim = (uint32_t)__builtin_popcountll(r & (UINT64_C(0x1111111111) >> 4 * mean));
        return r >> 52 ? dim : most - 1; /* now and then something that no class holds */
    }
    default: {
        uint64_t scale = a->elem_bytes >= 4 ? 70001 : a->elem_bytes == 2 ? 97 : 3;
        return (uint32_t)((mean * scale + (uint64_t)__builtin_popcountll(r) * (1 + scale / 16)) &
                          most);
    }
    }
}

/* The same number as a pixel of its kind: its bits. */
static uint64_t bits_of(const struct acquisition *a, uint64_t id, uint64_t pixel)
{
    uint64_t bits = pixel_of(a, id, pixel);
    double real = ((double)(bits % 2001) - 1000) / 7;
    float single = (float)real;
    if (kind_of(a) == 'f' && a->elem_bytes == 8)
        memcpy(&bits, &real, sizeof(real));
    else if (kind_of(a) == 'f')
        memcpy(&bits, &single, sizeof(single));
    else if (a->elem_bytes == 8)
        bits = kind_of(a) == 'i' && bits % 2 ? 0 - bits * 0x10001 : bits * 0x10001;
    return bits;
}

static void fill_pixels(const struct acquisition *a, uint64_t id, uint8_t *to)
{
    for (uint64_t p = 0; p < a->det_y * a->det_x; p++) {
        uint64_t v = bits_of(a, id, p);
        memcpy(to + p * a->elem_bytes, &v, a->elem_bytes); /* little-endian */
    }
}

enum special { PLAIN, RAW, UNWRITTEN, CUT, DAMAGED };

static enum special special_of(const struct acquisition *a, uint64_t id)
{
    static const enum special of[] = {[5] = RAW, [9] = UNWRITTEN, [14] = CUT, [22] = DAMAGED};
    size_t k = id % 41;
    return a->special && k < sizeof(of) / sizeof(of[0]) ? of[k] : PLAIN;
}

/* Of kind i -3, f -2.5. */
static uint64_t fill_of(const struct acquisition *a)
{
    if (kind_of(a) == 'f')
        return a->elem_bytes == 8 ? 0xc004000000000000 : 0xc0200000;
    return kind_of(a) == 'i' ? UINT64_MAX >> (64 - 8 * a->elem_bytes) & (UINT64_MAX - 2) : 3;
}

static size_t put_chunk(const struct acquisition *a, uint64_t id, uint8_t *at, uint8_t *pixels)
{
    const uint64_t n_elems = a->det_y * a->det_x;
    fill_pixels(a, id, pixels);
    if (special_of(a, id) == RAW) {
        memcpy(at, pixels, n_elems * a->elem_bytes);
        return n_elems * a->elem_bytes;
    }
    size_t block = a->blocks ? a->blocks : chunk_default_block(a->elem_bytes);
    size_t bytes = chunk_encode(at, pixels, n_elems, a->elem_bytes, block);
    if (special_of(a, id) == CUT)
        return bytes - 1;
    if (special_of(a, id) == DAMAGED && n_elems >= 8) /* a first sequence that does not end */
        memset(at + BSLZ4_HEADER_BYTES + 4, 0xff, bslz4_be32(at + BSLZ4_HEADER_BYTES));
    return bytes;
}

static void make_source(struct load *load, const struct acquisition *a)
{
    const uint64_t n_elems = a->det_y * a->det_x, frame = n_elems * a->elem_bytes;
    const uint64_t room = 4 * frame + 4096;
    *load = (struct load){.a = a,
                          .file = {.path = (char *)"/data/x.h5",
                                   .fd = memfd_create("chunks", MFD_CLOEXEC),
                                   .ino = 1}};
    struct source_chunk *chunks = calloc(a->n, sizeof(*chunks));
    uint8_t *bytes = malloc(room), *pixels = malloc(frame);
    struct source_index *index = &load->source.index;
    uint64_t at = 0;
    *index = (struct source_index){.elem_bytes = a->elem_bytes,
                                   .det_y = a->det_y,
                                   .det_x = a->det_x,
                                   .fill = fill_of(a),
                                   .n_frames = a->n,
                                   .chunks = chunks,
                                   .files = &load->file,
                                   .n_files = 1};
    snprintf(index->dtype, sizeof(index->dtype), "%c%u", kind_of(a), a->elem_bytes);
    for (uint64_t id = 0; id < a->n; id++) {
        if (special_of(a, id) == UNWRITTEN)
            continue;
        chunks[id] = (struct source_chunk){.offset = at, .raw = special_of(a, id) == RAW};
        chunks[id].bytes = (uint32_t)put_chunk(a, id, bytes, pixels);
        CHECK(pwrite(load->file.fd, bytes, chunks[id].bytes, (off_t)at) == chunks[id].bytes);
        at += chunks[id].bytes + (id % 7 == 0); /* not all of one read */
        index->chunk_bytes += chunks[id].bytes;
    }
    if (a->flags) {
        load->flags = malloc(n_elems);
        for (uint64_t p = 0; p < n_elems; p++)
            load->flags[p] = flagged(a, p);
        index->flags = load->flags;
    }
    struct stat st;
    CHECK(!fstat(load->file.fd, &st));
    load->file.size = (uint64_t)st.st_size;
    load->file.mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    free(bytes);
    free(pixels);
}

static void free_source(struct load *load)
{
    free((void *)(uintptr_t)load->source.index.chunks);
    free(load->flags);
    close(load->file.fd);
}

/* ---- loading ---- */

static void on_progress(void *data, uint64_t frames, uint64_t bytes)
{
    (void)data, (void)frames, (void)bytes;
}

static void on_done(void *data, int status, const struct stow_error *err)
{
    struct load *load = data;
    load->over = true;
    load->err = *err;
    CHECK_INT(status, err->code);
}

static bool run(struct rig *rig, struct load *load, const struct loader_options *options)
{
    struct loader_callbacks callbacks = {.data = load,
                                         .on_progress = on_progress,
                                         .on_done = on_done};
    load->over = false;
    load->resident = resident_new(&rig->store, &rig->place, 1000);
    int rc = loader_start(&load->loader, &rig->loop, load->resident, &load->source, options,
                          &callbacks, &load->err);
    CHECK_MSG(!rc, "%s: %s", load->a->name, load->err.text);
    for (int i = 0; i < 200000 && !rc && !load->over; i++) {
        uv_run(&rig->loop, UV_RUN_NOWAIT);
        if (i > 50)
            usleep(100);
    }
    CHECK(rc || load->over);
    CHECK_MSG(!load->err.code, "%s: %s", load->a->name, load->err.text);
    return !rc && load->over && !load->err.code;
}

/* ---- is it right? ---- */

static bool is_bad(const struct acquisition *a, uint64_t id)
{
    enum special special = special_of(a, id);
    return special == CUT || (special == DAMAGED && a->det_y * a->det_x >= 8);
}

static enum stow_form form_of(const struct acquisition *a, uint64_t id, enum keep_form keep)
{
    enum special special = special_of(a, id);
    return is_bad(a, id)                        ? STOW_FORM_BAD
           : special == UNWRITTEN               ? STOW_FORM_FILL
           : keep == KEEP_RAW || special == RAW ? STOW_FORM_RAW
                                                : STOW_FORM_BSLZ4;
}

static uint64_t truth_of(const struct acquisition *a, uint64_t id, uint64_t p)
{
    return special_of(a, id) == UNWRITTEN ? fill_of(a) : bits_of(a, id, p);
}

/* A pixel as a sum has it: extended by its sign, or as a double. */
static uint64_t widened(const struct acquisition *a, uint64_t bits)
{
    const uint32_t unused = 64 - 8 * a->elem_bytes;
    float single;
    if (kind_of(a) == 'i')
        return (uint64_t)((int64_t)(bits << unused) >> unused);
    if (kind_of(a) != 'f' || a->elem_bytes == 8)
        return bits;
    memcpy(&single, &bits, sizeof(single));
    double real = (double)single;
    memcpy(&bits, &real, sizeof(bits));
    return bits;
}

static double real_of(uint64_t bits)
{
    double real;
    memcpy(&real, &bits, sizeof(real));
    return real;
}

/* times * value more. */
static void add(const struct acquisition *a, uint64_t *sum, uint64_t times, uint64_t value)
{
    double real = real_of(*sum) + (double)times * real_of(value);
    if (kind_of(a) == 'f')
        memcpy(sum, &real, sizeof(real));
    else
        *sum += times * value;
}

static void check_frames(const struct load *load, const struct keep *keep)
{
    const struct acquisition *a = load->a;
    const struct resident *r = load->resident;
    const uint64_t bytes = frame_bytes(&r->shape);
    uint8_t *got = malloc(bytes), *want = malloc(bytes);
    size_t wrong = 0, unlike = 0;
    uint64_t n_counts = 0;
    for (uint64_t id = 0; id < a->n; id++) {
        const struct frame *f = &r->frames[id];
        bool counts = f->form == STOW_FORM_COUNTS;
        n_counts += counts;
        unlike += !counts && f->form != form_of(a, id, keep->form);
        unlike += counts && (keep->form == KEEP_RAW || keep->form == KEEP_BSLZ4);
        if (f->form == STOW_FORM_BAD) {
            unlike += f->code != -STOW_CORRUPT || !strlen(resident_fault_text(r, id));
            continue;
        }
        struct decode_job job = {.src = f->addr,
                                 .blocks = f->blocks,
                                 .dst = (uintptr_t)got,
                                 .src_bytes = f->bytes,
                                 .form = f->form};
        for (uint64_t p = 0; p < a->det_y * a->det_x; p++) {
            uint64_t v = truth_of(a, id, p);
            memcpy(want + p * a->elem_bytes, &v, a->elem_bytes);
        }
        wrong += decode_frame(&job, &r->shape, NULL) || memcmp(got, want, bytes) != 0;
        unlike += counts && f->addr % 16;
    }
    CHECK_MSG(!wrong && !unlike, "%s, form %d: %zu frames are wrong, %zu not as they should be",
              a->name, (int)keep->form, wrong, unlike);
    if (keep->form == KEEP_AUTO && keep->streams == 1)
        CHECK_MSG((n_counts != 0) == a->shrinks, "%s: %llu frames are counts, %llu bytes of %llu",
                  a->name, (unsigned long long)n_counts, (unsigned long long)r->payload_bytes,
                  (unsigned long long)load->source.index.chunk_bytes);
    free(got);
    free(want);
}

/* Floats may be added in another order within a frame. */
static bool same_stats(const struct acquisition *a, const struct frame_stats *want,
                       const struct frame_stats *got)
{
    const uint64_t *x = &want->total, *y = &got->total;
    if (kind_of(a) != 'f')
        return memcmp(want, got, sizeof(*want)) == 0;
    bool same = !got->max && !got->all_max;
    for (int i = 0; i < 6; i++) {
        double apart = real_of(x[i]) - real_of(y[i]);
        same = same && (apart < 0 ? -apart : apart) < 1e-6; /* of sums up to some 10^6 */
    }
    return same;
}

static void check_sums(const struct load *load)
{
    const struct acquisition *a = load->a;
    const struct resident *r = load->resident;
    const uint64_t n_elems = a->det_y * a->det_x;
    uint64_t *sums = calloc(n_elems, sizeof(*sums)), n = 0, n_flagged = 0, n_fill = 0;
    uint64_t *part = calloc(n_elems, sizeof(*part)); /* of a segment */
    size_t wrong = 0;
    for (uint64_t id = 0; id < a->n; id++) {
        struct frame_stats s = {.total = 0};
        n += !is_bad(a, id);
        n_fill += special_of(a, id) == UNWRITTEN;
        for (uint64_t p = 0; p < n_elems && !is_bad(a, id); p++) {
            uint64_t v = widened(a, truth_of(a, id, p)), size = kind_of(a) == 'f' ? 0 : v;
            if (kind_of(a) == 'i' && (int64_t)v < 0)
                size = 0 - v;
            if (special_of(a, id) != UNWRITTEN)
                add(a, &part[p], 1, v);
            add(a, &s.all_total, 1, v);
            add(a, &s.all_moment_y, p / a->det_x, v);
            add(a, &s.all_moment_x, p % a->det_x, v);
            s.all_max = size > s.all_max ? size : s.all_max;
            if (flagged(a, p))
                continue;
            add(a, &s.total, 1, v);
            add(a, &s.moment_y, p / a->det_x, v);
            add(a, &s.moment_x, p % a->det_x, v);
            s.max = size > s.max ? size : s.max;
        }
        wrong += !same_stats(a, &s, &r->sums.stats[id]);
        for (uint64_t p = 0; p < n_elems && ((id + 1) % r->segment_frames == 0 || id + 1 == a->n);
             p++) {
            add(a, &sums[p], 1, part[p]);
            part[p] = 0;
        }
    }
    for (uint64_t p = 0; p < n_elems; p++) {
        if (n_fill)
            add(a, &sums[p], n_fill, widened(a, fill_of(a)));
        n_flagged += flagged(a, p);
    }
    free(part);
    CHECK_MSG(!wrong, "%s: statistics of %zu frames are wrong", a->name, wrong);
    CHECK_MSG(!memcmp(sums, r->sums.pixels, n_elems * sizeof(*sums)), "%s: pixel sums", a->name);
    CHECK_INT(r->sums.n_frames, n);
    CHECK_INT(r->sums.n_flagged, n_flagged);
    free(sums);
}

/* What it takes, and what was set aside for it. */
static void check_room(const struct rig *rig, const struct load *load,
                       const struct loader_options *options)
{
    const struct resident *r = load->resident;
    const struct keep *keep = &options->keep;
    uint64_t payload = 0, tables = 0, charged = r->frames_charged, chunks = 0;
    for (uint64_t id = 0; id < r->n_frames; id++) {
        payload += r->frames[id].bytes;
        if (r->frames[id].form < STOW_N_FORMS && r->frames[id].bytes)
            chunks += load->source.index.chunks[id].bytes;
    }
    for (size_t i = 0; i < r->n_segments; i++) {
        tables += r->segments[i].table_bytes;
        CHECK_INT(r->segments[i].first, i * r->segment_frames);
        CHECK(!r->segments[i].table == !r->segments[i].packed);
    }
    for (const struct piece *p = r->pieces; p; p = p->next)
        charged += p->charged;
    CHECK_INT(r->payload_bytes, payload);
    CHECK(r->table_bytes >= tables);
    CHECK_INT(rig->place.used_bytes, charged);
    if (keep->form == KEEP_AUTO || keep->form == KEEP_BSLZ4)
        CHECK_MSG(payload + tables <= chunks, "%s: %llu bytes of %llu", load->a->name,
                  (unsigned long long)(payload + tables), (unsigned long long)chunks);
    /* A first batch of a few frames tells little of how much room is wanted. */
    uint64_t over = options->limits.batch_bytes ? 6 * MIB : 2 * MIB;
    CHECK_MSG(charged <= r->frames_charged + piece_charge(payload + r->table_bytes) + over,
              "%s: %llu charged", load->a->name, (unsigned long long)charged);
}

/* One number for all that is kept of the frames, wherever it lies. */
static uint64_t fingerprint(const struct resident *r)
{
    uint64_t h = 1;
    for (uint64_t id = 0; id < r->n_frames; id++) {
        const struct frame *f = &r->frames[id];
        h = mix(h ^ f->form) ^ f->bytes;
        for (uint32_t i = 0; i < f->bytes; i++)
            h = mix(h + ((const uint8_t *)(uintptr_t)f->addr)[i]);
    }
    for (size_t i = 0; i < r->n_segments; i++) {
        for (size_t k = 0; k < r->segments[i].packed_bytes; k++)
            h = mix(h + r->segments[i].packed[k]);
    }
    return h;
}

static void drop(struct rig *rig, struct load *load)
{
    resident_unref(load->resident);
    for (int i = 0; i < 1000 && !store_is_idle(&rig->store); i++) {
        uv_run(&rig->loop, UV_RUN_NOWAIT);
        usleep(100);
    }
    CHECK(store_is_idle(&rig->store));
    CHECK_INT(rig->place.used_bytes, 0);
}

static void test_forms(struct rig *rig)
{
    static const struct keep keeps[] = {{KEEP_AUTO, 1},   {KEEP_AUTO, 8},  {KEEP_COUNTS, 1},
                                        {KEEP_COUNTS, 3}, {KEEP_BSLZ4, 1}, {KEEP_RAW, 1}};
    for (size_t k = 0; k < N_ACQUISITIONS; k++) {
        struct load load;
        make_source(&load, &acquisitions[k]);
        for (size_t i = 0; i < sizeof(keeps) / sizeof(keeps[0]); i++) {
            struct loader_options options = {.keep = keeps[i]};
            if (keeps[i].form == KEEP_COUNTS && is_other_kind(&acquisitions[k]))
                continue;
            if (run(rig, &load, &options)) {
                check_frames(&load, &keeps[i]);
                check_sums(&load);
                check_room(rig, &load, &options);
            }
            drop(rig, &load);
        }
        free_source(&load);
    }
}

/* The same bytes, however many frames are decoded at once, by however many encoders. */
static void test_batches(struct rig *rig)
{
    static const struct encoding_limits limits[] = {{0, 0}, {40000, 2}, {1, 1}, {0, 8}};
    static const enum keep_form forms[] = {KEEP_AUTO, KEEP_COUNTS, KEEP_RAW};
    for (size_t k = 0; k < N_ACQUISITIONS; k++) {
        struct load load;
        make_source(&load, &acquisitions[k]);
        for (size_t f = 0; f < sizeof(forms) / sizeof(forms[0]); f++) {
            uint64_t first = 0;
            if (forms[f] == KEEP_COUNTS && is_other_kind(&acquisitions[k]))
                continue;
            for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
                struct loader_options options = {.keep = {forms[f], 1}, .limits = limits[i]};
                if (limits[i].batch_bytes == 1 && acquisitions[k].n > 600)
                    options.limits.batch_bytes = 7777;
                if (run(rig, &load, &options)) {
                    uint64_t now = fingerprint(load.resident);
                    first = i ? first : now;
                    CHECK_MSG(now == first, "%s: other bytes in batches of %llu", load.a->name,
                              (unsigned long long)options.limits.batch_bytes);
                    check_frames(&load, &options.keep);
                    check_room(rig, &load, &options);
                    check_sums(&load);
                }
                drop(rig, &load);
            }
        }
        free_source(&load);
    }
}

/* Counts hold no frame of over COUNTS_MAX_TILES: asked for by name they are refused, else something else is kept. */
static void test_too_large(struct rig *rig)
{
    static const struct acquisition large = {"large", ZEROS, 1,     5800,  5800,
                                             1,       false, false, false, 0};
    struct load load;
    struct stow_error err;
    struct loader_callbacks callbacks = {.data = &load,
                                         .on_progress = on_progress,
                                         .on_done = on_done};
    struct loader_options options = {.keep = {KEEP_COUNTS, 1}};
    make_source(&load, &large);
    load.resident = resident_new(&rig->store, &rig->place, 1000);
    CHECK_INT(loader_start(&load.loader, &rig->loop, load.resident, &load.source, &options,
                           &callbacks, &err),
              STOW_UNSUPPORTED);
    CHECK(strstr(err.text, "--form auto") != NULL);
    drop(rig, &load);
    options.keep.form = KEEP_AUTO;
    if (run(rig, &load, &options)) {
        check_frames(&load, &options.keep);
        check_sums(&load);
    }
    drop(rig, &load);
    free_source(&load);
}

/* Nor does it hold pixels of other kinds. */
static void test_other_kinds(struct rig *rig)
{
    for (size_t k = 0; k < N_ACQUISITIONS; k++) {
        struct load load;
        struct stow_error err;
        struct loader_callbacks callbacks = {.data = &load,
                                             .on_progress = on_progress,
                                             .on_done = on_done};
        struct loader_options options = {.keep = {KEEP_COUNTS, 1}};
        if (!is_other_kind(&acquisitions[k]))
            continue;
        make_source(&load, &acquisitions[k]);
        load.resident = resident_new(&rig->store, &rig->place, 1000);
        CHECK_INT(loader_start(&load.loader, &rig->loop, load.resident, &load.source, &options,
                               &callbacks, &err),
                  STOW_UNSUPPORTED);
        CHECK_MSG(strstr(err.text, acquisitions[k].name) || strstr(err.text, "f4"), "%s", err.text);
        drop(rig, &load);
        free_source(&load);
    }
}

/* Where memory is short the load gets along with less. */
static void test_little_memory(struct rig *rig)
{
    static const struct acquisition wide = {"wide", DIM, 2, 320, 320, 200, false, true, true, 0};
    struct load load;
    struct loader_options options = {.keep = {KEEP_AUTO, 1}};
    unsigned long pages = 0;
    make_source(&load, &wide);
    FILE *statm = fopen("/proc/self/statm", "r");
    CHECK(statm && fscanf(statm, "%lu", &pages) == 1);
    if (statm)
        fclose(statm);
    struct rlimit before, low;
    getrlimit(RLIMIT_AS, &before);
    low = before;
    low.rlim_cur = pages * 4096 + 80 * MIB; /* a batch of all frames takes over 90 */
    CHECK(!setrlimit(RLIMIT_AS, &low));
    bool loaded = run(rig, &load, &options);
    setrlimit(RLIMIT_AS, &before);
    if (loaded) {
        check_frames(&load, &options.keep);
        check_sums(&load);
        check_room(rig, &load, &options);
    }
    drop(rig, &load);
    free_source(&load);
}

int main(void)
{
    static struct rig rig;
    for (unsigned threads = 0; threads < 3; threads += 2) {
        rig_open(&rig, 1024 * MIB, threads);
        if (threads)
            test_batches(&rig);
        else
            test_forms(&rig);
        test_too_large(&rig);
        test_other_kinds(&rig);
        if (!threads) /* those that there are have all the memory that they want */
            test_little_memory(&rig);
        rig_close(&rig);
    }
    return test_end();
}
