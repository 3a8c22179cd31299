/* SPDX-License-Identifier: Apache-2.0
 *
 * kept_test: .stow files in this process: what is written is read again, on a device with and without threads; what is
 * damaged, has no room, or is cancelled at any time leaves nothing; and the answers that are made after a load. Forms here are raw, bslz4, fill and bad; counts are
 * in tests/test_kept.py. */
#include "rig.h"

#include "answers.h"
#include "kept_fields.h"
#include "kept_load.h"
#include "kept_open.h"
#include "kept_save.h"
#include "log.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define N_FRAMES 57u
#define MIB (UINT64_C(1) << 20)

/* ---- what is waited for ---- */

struct outcome {
    bool planned, done;
    uint64_t bytes;
    struct stow_error err;
    int fd;
    struct kept kept;
};

static void on_planned(void *data, uint64_t bytes)
{
    struct outcome *outcome = data;
    CHECK(!outcome->planned && !outcome->done);
    outcome->planned = true;
    outcome->bytes = bytes;
}

static void on_need(void *data, uint32_t file, const char *path)
{
    (void)data;
    CHECK_MSG(false, "file %u, %s, is asked for", file, path);
}

static void on_save_progress(void *data, const struct stow_progress *progress)
{
    (void)data;
    CHECK(progress->bytes <= progress->total_bytes);
}

static void on_saved(void *data, uint64_t bytes, const struct stow_error *err)
{
    struct outcome *outcome = data;
    CHECK(!outcome->done);
    outcome->done = true;
    outcome->err = *err;
    CHECK(err->code || (outcome->planned && bytes == outcome->bytes));
}

static void on_load_progress(void *data, uint64_t frames, uint64_t bytes)
{
    (void)data;
    CHECK(frames <= N_FRAMES && bytes);
}

static void on_loaded(void *data, int status, const struct stow_error *err)
{
    struct outcome *outcome = data;
    CHECK(!outcome->done);
    CHECK_INT(status, err->code);
    outcome->done = true;
    outcome->err = *err;
}

static void on_opened(void *data, int fd, struct kept *kept, const struct stow_error *err)
{
    struct outcome *outcome = data;
    CHECK(!outcome->done && fd >= 0);
    outcome->done = true;
    outcome->fd = fd;
    outcome->err = *err;
    outcome->kept = *kept;
    *kept = (struct kept){.n_frames = 0};
}

/* Until it is done; the pool's threads take their time. */
static void wait_until(struct rig *rig, const bool *done)
{
    for (int i = 0; i < 20000 && !*done; i++) {
        uv_run(&rig->loop, UV_RUN_NOWAIT);
        if (!*done)
            usleep(200);
    }
    CHECK(*done);
}

/* ---- saving ---- */

static struct resident *make(struct rig *rig)
{
    struct resident *resident = rig_resident(rig, N_FRAMES, N_FRAMES);
    resident->origins = calloc(2, sizeof(*resident->origins));
    resident->n_origins = 2;
    resident->origins[0] =
        (struct origin){.path = strdup("/data/scan_master.h5"), .ino = 1, .size = 1 << 20};
    resident->origins[1] = (struct origin){.path = strdup("/data/scan_data_000001.h5")};
    resident->source_bytes = 12345;
    resident->has_expected = true;
    resident->expected = 60;
    resident_warn(resident, "3 frames fewer than %d", 60);
    return resident;
}

static int new_file(void)
{
    return memfd_create("x.stow", MFD_CLOEXEC);
}

static const struct kept_save_callbacks save_callbacks = {
    .planned = on_planned, .need = on_need, .on_progress = on_save_progress, .done = on_saved};

static struct kept_save *begin_save(struct rig *rig, struct resident *resident, int fd,
                                    struct outcome *outcome)
{
    struct kept_save *save = NULL;
    struct kept_save_callbacks callbacks = save_callbacks;
    struct kept_save_options options = {.force = false};
    struct stow_error err;
    callbacks.data = outcome;
    *outcome = (struct outcome){.done = false};
    CHECK_INT(kept_save_start(&save, &rig->loop, resident, dup(fd), &options, &callbacks, &err), 0);
    return save;
}

/* The whole file, from malloc. */
static uint8_t *save(struct rig *rig, struct resident *resident, size_t *bytes)
{
    struct outcome outcome;
    int fd = new_file();
    begin_save(rig, resident, fd, &outcome);
    wait_until(rig, &outcome.done);
    CHECK_MSG(!outcome.err.code, "%s", outcome.err.text);
    *bytes = outcome.bytes;
    uint8_t *file = malloc(*bytes);
    CHECK_INT(pread(fd, file, *bytes, 0), *bytes);
    struct stat st;
    CHECK(!fstat(fd, &st) && (uint64_t)st.st_size == *bytes);
    close(fd);
    return file;
}

/* ---- loading ---- */

static int file_of(const uint8_t *bytes, size_t n)
{
    int fd = new_file();
    CHECK_INT(write(fd, bytes, n), n);
    return fd;
}

static int load(struct rig *rig, const uint8_t *file, size_t bytes, struct resident **resident,
                struct stow_error *err)
{
    struct outcome outcome = {.done = false};
    struct kept_open *open;
    *resident = NULL;
    CHECK_INT(kept_open_start(&open, &rig->loop, file_of(file, bytes), "/x.stow", on_opened,
                              &outcome),
              0);
    wait_until(rig, &outcome.done);
    *err = outcome.err;
    int fd = outcome.fd;
    if (!err->code && outcome.kept.n_frames) {
        struct loader_callbacks callbacks = {.data = &outcome,
                                             .on_progress = on_load_progress,
                                             .on_done = on_loaded};
        struct kept_load *started;
        struct resident *made = resident_new(&rig->store, &rig->place, 1000);
        outcome.done = false;
        if (!kept_load_start(&started, &rig->loop, made, &outcome.kept, fd, "/x.stow", &callbacks,
                             err)) {
            wait_until(rig, &outcome.done);
            *err = outcome.err;
        }
        if (err->code)
            resident_unref(made);
        else
            *resident = made;
    }
    kept_fini(&outcome.kept);
    close(fd);
    return err->code;
}

static void check_resident(const struct resident *resident)
{
    uint8_t pixels[RIG_FRAME_BYTES];
    CHECK_INT(resident->n_frames, N_FRAMES);
    CHECK_INT(resident->n_loaded, N_FRAMES);
    CHECK_INT(resident->state, RESIDENT_DAMAGED);
    CHECK_INT(resident->source_bytes, 12345);
    CHECK(resident->has_expected && resident->expected == 60);
    CHECK(resident->n_warnings == 1 &&
          strcmp(resident->warnings[0], "3 frames fewer than 60") == 0);
    for (uint64_t id = 0; id < N_FRAMES; id++) {
        const struct frame *frame = &resident->frames[id];
        CHECK_INT(frame->form, rig_form(id));
        if (frame->form == STOW_FORM_BAD) {
            CHECK(strcmp(resident_fault_text(resident, id), "made bad") == 0);
            CHECK_INT(frame->code, -(id % 2 ? STOW_CORRUPT : STOW_UNWRITTEN));
            continue;
        }
        struct decode_job job = {.src = frame->addr,
                                 .blocks = frame->blocks,
                                 .dst = (uint64_t)(uintptr_t)pixels,
                                 .src_bytes = frame->bytes,
                                 .form = frame->form};
        CHECK_INT(decode_frame(&job, &resident->shape, NULL), 0);
        CHECK_INT(rig_wrong_pixels(pixels, id), 0);
    }
    const struct remembered *r = resident->remembered;
    CHECK(r && r->n_files == 2 && r->files[0].there && !r->files[1].there);
    CHECK(r && strcmp(r->files[0].path, "/data/scan_master.h5") == 0);
}

static void round_trip(struct rig *rig)
{
    struct resident *made = make(rig), *back;
    struct stow_error err;
    size_t n, n_again;
    uint8_t *file = save(rig, made, &n);
    CHECK_MSG(!load(rig, file, n, &back, &err), "%s", err.text);
    if (back) {
        check_resident(back);
        uint8_t *again = save(rig, back, &n_again);
        CHECK(n == n_again && memcmp(file, again, n) == 0);
        free(again);
        resident_unref(back);
    }
    free(file);
    resident_unref(made);
}

/* ---- what is refused ---- */

/* Each byte of a file, in turn: never loaded. */
static void flipped(struct rig *rig)
{
    struct resident *made = make(rig), *back;
    struct stow_error err;
    size_t n;
    uint8_t *file = save(rig, made, &n);
    for (size_t at = 0; at<n; at += at> 300 && at + 400 < n ? 7 : 1) {
        file[at] ^= (uint8_t)(1u << at % 8);
        int rc = load(rig, file, n, &back, &err);
        CHECK_MSG(at < 8 ? !rc && !back : rc == STOW_SOURCE || rc == STOW_UNSUPPORTED,
                  "byte %zu: %d %s", at, rc, rc ? err.text : "");
        if (back)
            resident_unref(back);
        file[at] ^= (uint8_t)(1u << at % 8);
    }
    free(file);
    resident_unref(made);
}

static void cut(struct rig *rig)
{
    struct resident *made = make(rig), *back;
    struct stow_error err;
    size_t n;
    uint8_t *file = save(rig, made, &n);
    for (size_t bytes = 0; bytes < n; bytes += bytes < 300 ? 1 : 97) {
        int rc = load(rig, file, bytes, &back, &err);
        CHECK_MSG(bytes < 8 ? !rc && !back : rc == STOW_SOURCE, "%zu bytes: %d", bytes, rc);
    }
    free(file);
    resident_unref(made);
}

/* Put a number into the header and the checksums right. */
static void forge(uint8_t *file, size_t at, uint64_t value, size_t bytes)
{
    uint64_t checksum;
    memcpy(file + at, &value, bytes);
    checksum = kept_checksum(file, KEPT_CHECKSUM_AT);
    memcpy(file + KEPT_CHECKSUM_AT, &checksum, sizeof(checksum));
}

static void forged(struct rig *rig)
{
    static const uint64_t values[] = {0,    1,          2,          255,        4096,       1 << 20,
                                      8192, UINT32_MAX, UINT64_MAX, 1ull << 63, 1ull << 40, 58};
    struct resident *made = make(rig), *back;
    struct stow_error err;
    size_t n;
    uint8_t *file = save(rig, made, &n), *copy = malloc(n);
    for (size_t at = 12; at < 240; at += 4) {
        for (size_t v = 0; v < sizeof(values) / sizeof(values[0]); v++) {
            for (size_t bytes = 4; bytes <= 8; bytes += 4) {
                memcpy(copy, file, n);
                forge(copy, at, values[v], bytes);
                if (!load(rig, copy, n, &back, &err) && back)
                    resident_unref(back); /* a number that may be so */
                else
                    CHECK(err.code == STOW_SOURCE && err.text[0]);
            }
        }
    }
    free(copy);
    free(file);
    resident_unref(made);
}

static void without_room(struct rig *rig)
{
    struct resident *made = make(rig), *back;
    struct stow_error err;
    size_t n;
    uint8_t *file = save(rig, made, &n);
    uint64_t max_bytes = rig->place.max_bytes, used = rig->place.used_bytes;
    rig->place.max_bytes = used;
    made->n_streams++; /* or it would go to make room */
    CHECK_INT(load(rig, file, n, &back, &err), STOW_NOROOM);
    CHECK(strstr(err.text, "no room on host"));
    CHECK_INT(rig->place.used_bytes, used);
    rig->place.max_bytes = max_bytes;
    made->n_streams--;
    free(file);
    resident_unref(made);
}

static void refused_saves(struct rig *rig)
{
    struct resident *made = make(rig);
    struct kept_save *save_ = NULL;
    struct kept_save_callbacks callbacks = save_callbacks;
    struct kept_save_options options = {.force = false};
    struct stow_error err;
    struct outcome outcome = {.done = false};
    int fd = new_file();
    callbacks.data = &outcome;
    CHECK_INT(write(fd, "x", 1), 1);
    CHECK_INT(kept_save_start(&save_, &rig->loop, made, dup(fd), &options, &callbacks, &err),
              STOW_INVALID);
    close(fd);
    made->state = RESIDENT_LOADING;
    CHECK_INT(kept_save_start(&save_, &rig->loop, made, new_file(), &options, &callbacks, &err),
              STOW_STATE);
    made->state = RESIDENT_DAMAGED;
    made->origins[0].size = 100;
    fd = new_file();
    begin_save(rig, made, fd, &outcome);
    wait_until(rig, &outcome.done);
    CHECK_INT(outcome.err.code, STOW_LIMIT);
    CHECK(!outcome.planned && strstr(outcome.err.text, "have 100; --force"));
    close(fd);
    resident_unref(made);
}

/* Given up after any number of turns. */
static void cancelled(struct rig *rig)
{
    struct resident *made = make(rig);
    for (int turns = 0; turns < 12; turns++) {
        struct outcome outcome;
        int fd = new_file();
        struct kept_save *saving = begin_save(rig, made, fd, &outcome);
        for (int i = 0; i < turns; i++) {
            uv_run(&rig->loop, UV_RUN_NOWAIT);
            usleep(100);
        }
        bool was_done = outcome.done;
        if (!was_done)
            kept_save_cancel(saving);
        for (int i = 0; i < 20000 && kept_save_count(); i++) {
            uv_run(&rig->loop, UV_RUN_NOWAIT);
            usleep(100);
        }
        CHECK_INT(kept_save_count(), 0);
        CHECK(outcome.done == was_done);
        close(fd);
    }
    CHECK(made->refs == 1 && made->n_streams == 0);
    resident_unref(made);
}

/* ---- answers made beforehand ---- */

static void give_sums(struct resident *resident)
{
    uint64_t n = resident->shape.n_elems;
    resident->sums = (struct kept_sums){.pixels = malloc(n * sizeof(uint64_t)),
                                        .stats = calloc(N_FRAMES, sizeof(struct frame_stats)),
                                        .flags = calloc(n, 1),
                                        .n_flagged = 1};
    for (uint64_t i = 0; i < n; i++)
        resident->sums.pixels[i] = 3 * i + 1;
    for (uint64_t i = 0; i < N_FRAMES; i++)
        resident->sums.stats[i] =
            (struct frame_stats){.total = i, .moment_y = 7 * i, .moment_x = i * i, .max = 1};
    resident->sums.flags[5] = 1;
}

static void check_answers(const struct resident *resident)
{
    uint64_t n = resident->shape.n_elems, wrong = 0;
    CHECK(resident->answers[0][0] && resident->answers[1][0] && !resident->answers[0][1]);
    const uint64_t *mean = mmap(NULL, n * 8, PROT_READ, MAP_SHARED, resident->answers[0][0], 0);
    const double *com =
        mmap(NULL, N_FRAMES * 24ul, PROT_READ, MAP_SHARED, resident->answers[1][0], 0);
    CHECK(mean != MAP_FAILED && com != MAP_FAILED);
    for (uint64_t i = 0; i < n; i++)
        wrong += mean[i] != (i == 5 ? 0 : 3 * i + 1);
    const uint64_t *totals = (const uint64_t *)(com + 2 * N_FRAMES);
    for (uint64_t i = 0; i < N_FRAMES; i++) {
        bool none = rig_form(i) == STOW_FORM_BAD || i == 0;
        wrong += totals[i] != (none ? 0 : i);
        wrong += none ? com[2 * i] == com[2 * i] : com[2 * i] != 7;
        wrong += none ? com[2 * i + 1] == com[2 * i + 1] : com[2 * i + 1] != (double)i;
    }
    CHECK_INT(wrong, 0);
    CHECK(mmap(NULL, 8, PROT_WRITE, MAP_SHARED, resident->answers[0][0], 0) == MAP_FAILED);
    munmap((void *)(uintptr_t)mean, n * 8);
    munmap((void *)(uintptr_t)com, N_FRAMES * 24ul);
}

static void run_answers(struct rig *rig)
{
    for (int i = 0; i < 20000 && answers_count(); i++) {
        uv_run(&rig->loop, UV_RUN_NOWAIT);
        usleep(100);
    }
    CHECK_INT(answers_count(), 0);
}

static void answers(struct rig *rig)
{
    uint64_t before = rig->place.used_bytes;
    struct resident *made = make(rig);
    uint64_t used = rig->place.used_bytes, size = made->shape.n_elems * 8 + N_FRAMES * 24;
    give_sums(made);
    uint64_t max_bytes = rig->place.max_bytes;
    rig->place.max_bytes = used + size - 1; /* no room: nothing is made, nothing goes */
    answers_start(&rig->loop, made);
    CHECK(!answers_count() && rig->place.used_bytes == used && !made->reader);
    rig->place.max_bytes = max_bytes;
    answers_start(&rig->loop, made);
    CHECK_INT(answers_count(), 1);
    CHECK_INT(rig->place.used_bytes, used + size);
    answers_start(&rig->loop, made); /* one at a time */
    CHECK_INT(answers_count(), 1);
    run_answers(rig);
    check_answers(made);
    CHECK(!made->reader);
    for (int turn = 0; turn < 2; turn++) { /* room is wanted: once they are made, and before */
        made->n_streams++;
        struct shortage shortage;
        uint64_t free_bytes = place_free_bytes(&rig->place);
        CHECK_INT(store_make_room(&rig->store, &rig->place, free_bytes + size + 1, &shortage),
                  STOW_NOROOM);
        CHECK_INT(shortage.evictable, size);
        CHECK_INT(store_make_room(&rig->store, &rig->place, free_bytes + size, &shortage), 0);
        CHECK_INT(rig->place.used_bytes, used);
        made->n_streams--;
        run_answers(rig);
        CHECK(!made->answers[0][0] && !made->answers[1][0] && !made->reader && made->frames);
        if (!turn)
            answers_start(&rig->loop, made);
    }
    resident_unref(made);
    CHECK_INT(rig->place.used_bytes, before);
}

/* It goes while they are made, however far they are. */
static void answers_of_nobody(struct rig *rig)
{
    uint64_t before = rig->place.used_bytes;
    for (unsigned wait_us = 0; wait_us < 300; wait_us += 30) {
        struct resident *made = make(rig);
        give_sums(made);
        answers_start(&rig->loop, made);
        CHECK_INT(answers_count(), 1);
        usleep(wait_us);
        resident_unref(made);
        CHECK_INT(rig->place.used_bytes, before);
        run_answers(rig);
    }
}

int main(void)
{
    static const struct {
        const char *name;
        void (*run)(struct rig *rig);
    } cases[] = {{"round trip", round_trip},
                 {"flipped", flipped},
                 {"cut", cut},
                 {"forged", forged},
                 {"without room", without_room},
                 {"refused saves", refused_saves},
                 {"cancelled", cancelled},
                 {"answers", answers},
                 {"answers of nobody", answers_of_nobody}};
    /* With staging all is copied to and from the device, as on a GPU; with little of it, some by the heap. */
    static const struct {
        unsigned threads;
        size_t staging;
    } rigs[] = {{0, 0}, {2, 0}, {0, MIB}, {2, MIB}, {2, 512}};
    log_set_level("error");
    for (size_t r = 0; r < sizeof(rigs) / sizeof(rigs[0]); r++) {
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            struct rig rig;
            int failed = test_failed;
            rig_open(&rig, 64 * MIB, rigs[r].threads);
            if (rigs[r].staging)
                CHECK_INT(staging_init(&rig.place.staging, rig.place.device, rigs[r].staging, NULL),
                          0);
            cases[i].run(&rig);
            for (int turns = 0; turns < 20000 && !store_is_idle(&rig.store); turns++) {
                uv_run(&rig.loop, UV_RUN_NOWAIT);
                usleep(200);
            }
            rig_close(&rig);
            if (test_failed > failed)
                fprintf(stderr, "in %s, %u threads, staging of %zu\n", cases[i].name,
                        rigs[r].threads, rigs[r].staging);
        }
    }
    return test_end();
}
