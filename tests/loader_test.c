/* SPDX-License-Identifier: Apache-2.0
 *
 * loader_test: loads from sources made by hand: more at once than a lane has room for, cancelled half-way,
 * with damaged chunks, without room, and from a file that changes. */
#include "rig.h"

#include "loader.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)
#define CHUNK_BYTES 256u /* where chunk i lies: i times this */

/* What loader.c asks of a source. The real one is not linked here. */
struct source {
    struct source_index index;
};

const struct source_index *source_index(const struct source *source)
{
    return &source->index;
}

struct load {
    struct source source;
    struct source_file file;
    struct resident *resident;
    struct loader *loader;
    unsigned n_done;
    struct stow_error err;
    uint64_t frames, bytes;
};

#define N_CROWD 300
static struct load crowd[N_CROWD];
static bool cancel_some; /* with the next progress */

static void on_progress(void *data, uint64_t frames, uint64_t bytes)
{
    struct load *load = data;
    for (unsigned k = 0; cancel_some && k < N_CROWD; k += 3) {
        if (&crowd[k] != load && !crowd[k].n_done)
            loader_cancel(crowd[k].loader);
    }
    cancel_some = false;
    CHECK(frames >= load->frames && bytes >= load->bytes);
    load->frames = frames;
    load->bytes = bytes;
}

static void on_done(void *data, int status, const struct stow_error *err)
{
    struct load *load = data;
    load->n_done++;
    load->err = *err;
    CHECK_INT(status, err->code);
}

/* Frames as rig_form has them, but for the bad ones: a chunk that is cut short. */
static void make_source(struct load *load, uint64_t n)
{
    *load = (struct load){
        .file = {.path = "/data/x.h5", .fd = memfd_create("chunks", MFD_CLOEXEC), .ino = 1}};
    struct source_chunk *chunks = calloc(n, sizeof(*chunks));
    uint8_t *bytes = calloc(n, CHUNK_BYTES);
    struct source_index *index = &load->source.index;
    *index = (struct source_index){.dtype = "u2",
                                   .elem_bytes = 2,
                                   .det_y = 1,
                                   .det_x = RIG_ELEMS,
                                   .fill = RIG_FILL,
                                   .n_frames = n,
                                   .chunks = chunks,
                                   .files = &load->file,
                                   .n_files = 1};
    for (uint64_t id = 0; id < n; id++) {
        uint16_t pixels[RIG_ELEMS];
        uint8_t *at = bytes + id * CHUNK_BYTES;
        for (size_t e = 0; e < RIG_ELEMS; e++)
            pixels[e] = rig_pixel(id, e);
        chunks[id].offset = id * CHUNK_BYTES;
        chunks[id].raw = rig_form(id) == STOW_FORM_RAW;
        if (rig_form(id) == STOW_FORM_FILL)
            continue;
        chunks[id].bytes = RIG_FRAME_BYTES;
        if (chunks[id].raw)
            memcpy(at, pixels, sizeof(pixels));
        else
            chunks[id].bytes = (uint32_t)chunk_encode(at, pixels, RIG_ELEMS, 2, 16);
        if (rig_form(id) == STOW_FORM_BAD)
            chunks[id].bytes--;
        index->chunk_bytes += chunks[id].bytes;
    }
    struct stat st;
    CHECK(write(load->file.fd, bytes, n * CHUNK_BYTES) == (ssize_t)(n * CHUNK_BYTES) &&
          !fstat(load->file.fd, &st));
    load->file.size = (uint64_t)st.st_size;
    load->file.mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    free(bytes);
}

static int load_start(struct rig *rig, struct load *load, struct stow_error *err)
{
    struct loader_callbacks callbacks = {.data = load,
                                         .on_progress = on_progress,
                                         .on_done = on_done};
    load->resident = resident_new(&rig->store, &rig->place, 1000);
    return loader_start(&load->loader, &rig->loop, load->resident, &load->source, NULL, &callbacks,
                        err);
}

static void load_free(struct load *load)
{
    resident_unref(load->resident);
    free((void *)load->source.index.chunks);
    close(load->file.fd);
}

static void run_until_done(struct rig *rig, struct load *loads, unsigned n)
{
    unsigned n_done = 0;
    for (int i = 0; i < 20000 && n_done < n; i++) {
        uv_run(&rig->loop, UV_RUN_NOWAIT);
        n_done = 0;
        for (unsigned k = 0; k < n; k++)
            n_done += loads[k].n_done;
        if (i > 100)
            usleep(500);
    }
    CHECK_INT(n_done, n);
}

/* Every frame of a resident is what its source says. */
static void check_frames(const struct resident *resident)
{
    size_t wrong = 0;
    for (uint64_t id = 0; id < resident->n_frames; id++) {
        const struct frame *frame = &resident->frames[id];
        uint8_t pixels[RIG_FRAME_BYTES];
        wrong += frame->form != rig_form(id);
        if (frame->form == STOW_FORM_BAD) {
            wrong +=
                frame->code != -STOW_CORRUPT || !strstr(resident_fault_text(resident, id), "b");
            continue;
        }
        struct decode_job job = {.src = frame->addr,
                                 .blocks = frame->blocks,
                                 .dst = (uintptr_t)pixels,
                                 .src_bytes = frame->bytes,
                                 .form = frame->form};
        wrong += decode_frame(&job, &resident->shape, NULL) != 0 || rig_wrong_pixels(pixels, id);
    }
    CHECK_INT(wrong, 0);
}

static void test_load(struct rig *rig)
{
    static const uint64_t sizes[] = {1, 5, 2048, 2049, 5000};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct load load;
        struct stow_error err;
        make_source(&load, sizes[i]);
        CHECK_INT(load_start(rig, &load, &err), 0);
        CHECK_INT(load.n_done, 0);
        run_until_done(rig, &load, 1);
        CHECK_INT(load.err.code, 0);
        CHECK_INT(load.resident->state, sizes[i] < 5 ? RESIDENT_COMPLETE : RESIDENT_DAMAGED);
        CHECK_INT(load.resident->n_loaded, sizes[i]);
        CHECK_INT(load.bytes, load.source.index.chunk_bytes);
        check_frames(load.resident);
        load_free(&load);
        rig_turn(rig);
    }
}

/* More loads at once than a lane has room for; some are cancelled while parts of them lie in the lane. */
static void test_crowd(struct rig *rig, bool cancel)
{
    struct stow_error err;
    for (unsigned k = 0; k < N_CROWD; k++) {
        make_source(&crowd[k], 500);
        CHECK_INT(load_start(rig, &crowd[k], &err), 0);
    }
    /* Have everything read before any of it is checked, so that all of it comes to the lane at once. */
    for (int i = 0; i < 3; i++) {
        uv_run(&rig->loop, UV_RUN_NOWAIT);
        usleep(i < 2 ? 1000 : 300000);
    }
    cancel_some = cancel;
    run_until_done(rig, crowd, N_CROWD);
    unsigned n_good = 0;
    for (unsigned k = 0; k < N_CROWD; k++) {
        CHECK(!crowd[k].err.code || (cancel && crowd[k].err.code == STOW_CANCELLED));
        n_good += !crowd[k].err.code;
        if (!crowd[k].err.code)
            check_frames(crowd[k].resident);
        load_free(&crowd[k]);
    }
    CHECK_MSG(cancel ? n_good < N_CROWD && n_good >= N_CROWD / 2 : n_good == N_CROWD, "%u are good",
              n_good);
    for (int i = 0; i < 50000 && !store_is_idle(&rig->store); i++) {
        uv_run(&rig->loop, UV_RUN_NOWAIT);
        usleep(200);
    }
    CHECK(store_is_idle(&rig->store) && !rig->place.used_bytes && !rig->place.retries);
}

static void test_refusals(struct rig *rig)
{
    struct load load;
    struct stow_error err;
    /* no room: nothing is begun */
    make_source(&load, 100);
    uint64_t most = rig->place.max_bytes;
    rig->place.max_bytes = 100;
    CHECK_INT(load_start(rig, &load, &err), STOW_NOROOM);
    CHECK(err.code == STOW_NOROOM && strstr(err.text, "--max-bytes"));
    rig->place.max_bytes = most;
    rig_turn(rig);
    CHECK_INT(load.n_done, 0);
    load_free(&load);
    /* the file is another one by now */
    make_source(&load, 100);
    load.file.mtime_ns++;
    CHECK_INT(load_start(rig, &load, &err), 0);
    run_until_done(rig, &load, 1);
    CHECK_MSG(load.err.code == STOW_SOURCE && strstr(load.err.text, "changed"), "%s",
              load.err.text);
    CHECK_INT(load.resident->failure.code, STOW_SOURCE);
    load_free(&load);
    /* cancelled before its first turn */
    make_source(&load, 100);
    CHECK_INT(load_start(rig, &load, &err), 0);
    loader_cancel(load.loader);
    run_until_done(rig, &load, 1);
    CHECK_INT(load.err.code, STOW_CANCELLED);
    load_free(&load);
    /* a file that ends early: its frames are bad, the others good */
    make_source(&load, 100);
    CHECK(!ftruncate(load.file.fd, 50 * CHUNK_BYTES));
    struct stat st;
    fstat(load.file.fd, &st);
    load.file.size = (uint64_t)st.st_size;
    load.file.mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    CHECK_INT(load_start(rig, &load, &err), 0);
    run_until_done(rig, &load, 1);
    CHECK_INT(load.err.code, 0);
    CHECK_INT(load.resident->frames[45].form, STOW_FORM_RAW);
    CHECK_INT(load.resident->frames[50].form, STOW_FORM_BAD);
    CHECK(strstr(resident_fault_text(load.resident, 50), "/data/x.h5 ends at byte 12800") != NULL);
    load_free(&load);
    rig_turn(rig);
}

int main(void)
{
    static struct rig rig;
    rig_open(&rig, 1024 * MIB, 0);
    test_load(&rig);
    test_refusals(&rig);
    rig_close(&rig);
    for (unsigned threads = 0; threads < 3; threads++) {
        rig_open(&rig, 1024 * MIB, threads);
        test_crowd(&rig, false);
        test_crowd(&rig, true);
        rig_close(&rig);
    }
    return test_end();
}
