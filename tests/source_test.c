/* SPDX-License-Identifier: Apache-2.0
 *
 * Drives source_open on a loop of its own.
 *
 *     source_test                     checks against readers that crash, hang and lie
 *     source_test --index FILE [--dataset PATH] [--allow-gaps] [--frames]
 *                                     the index as JSON lines, for test_source.py: an object,
 *                                     then --frames: [offset, bytes, file, raw, fault] of each
 *
 * The reader is $FRAMESTOW_READER, else the one beside this program. Files that a master names
 * are opened beside the real master, as the client does it. */
#include "source.h"

#include "assembly_lies.h"
#include "index_json.h"
#include "reader_msg.h"
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct run {
    uv_loop_t loop;
    struct source *source;
    char folder[PATH_MAX]; /* of the real master, with the slash */
    bool done;
    int status;
    struct stow_error err;
    unsigned n_needs;
    bool no_answers, close_on_need; /* what on_need does instead */
};

static const char *reader_path;

/* ---- one load -------------------------------------------------------------------------------- */

static void on_need(void *data, uint32_t file, const char *path)
{
    struct run *run = data;
    char full[2 * PATH_MAX];
    run->n_needs++;
    if (run->close_on_need) {
        source_close(run->source);
        run->source = NULL;
        run->done = true;
        return;
    }
    if (run->no_answers)
        return;
    snprintf(full, sizeof(full), "%s%s", path[0] == '/' ? "" : run->folder, path);
    int fd = open(full, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    source_give(run->source, file, fd, full, fd < 0 ? errno : 0);
}

static void on_done(void *data, int status, const struct stow_error *err)
{
    struct run *run = data;
    CHECK(!run->done);
    run->done = true;
    run->status = status;
    if (err)
        run->err = *err;
}

/* Open and wait for the end. run->source is there after a success and after a failure of the
 * child. */
static void run_open(struct run *run, const char *path, const struct source_options *given)
{
    struct source_options options = given ? *given : (struct source_options){0};
    char real[PATH_MAX];
    const struct source_callbacks callbacks = {run, on_need, on_done};
    uv_loop_init(&run->loop);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || !realpath(path, real)) {
        run->status = error_errno(&run->err, errno, "%s", path);
        run->done = true;
        return;
    }
    *strrchr(strcpy(run->folder, real), '/') = '\0';
    strcat(run->folder, "/");
    options.path = real;
    if (!options.reader)
        options.reader = reader_path;
    run->status = source_open(&run->source, &run->loop, fd, &options, &callbacks, &run->err);
    run->done = run->status != 0;
    while (!run->done && uv_run(&run->loop, UV_RUN_ONCE))
        ;
    CHECK(run->done);
}

static void run_close(struct run *run)
{
    source_close(run->source);
    uv_run(&run->loop, UV_RUN_DEFAULT);
    CHECK_INT(uv_loop_close(&run->loop), 0);
}

static int index_main(int argc, char **argv)
{
    struct source_options options = {0};
    struct run run = {0};
    bool frames = false;
    for (int i = 3; i < argc; i++) {
        if (strcmp(argv[i], "--dataset") == 0 && i + 1 < argc)
            options.dataset = argv[++i];
        else if (strcmp(argv[i], "--allow-gaps") == 0)
            options.allow_gaps = true;
        else if (strcmp(argv[i], "--frames") == 0)
            frames = true;
    }
    uint64_t start = uv_hrtime();
    run_open(&run, argv[2], &options);
    printf("{\"status\": %d, \"ms\": %.2f, \"text\": ", run.status,
           (double)(uv_hrtime() - start) / 1e6);
    print_string(run.err.text);
    printf(", ");
    if (run.status == 0)
        print_index(source_index(run.source), frames);
    else
        printf("\"n_needs\": %u}\n", run.n_needs);
    run_close(&run);
    return 0;
}

/* ---- a reader that is broken or lies --------------------------------------------------------- */

/* This program is its own bad reader: options.reader names it, and the dataset says what it
 * shall do. */

static void fake_send(struct reader_msg *msg, int fd)
{
    if (reader_msg_send(READER_FD, msg, fd))
        _exit(3);
}

static void fake_need(uint32_t file, const char *path)
{
    struct reader_msg msg = {.type = READER_NEED, .file = file};
    reader_msg_text(&msg, path, NULL);
    fake_send(&msg, -1);
}

/* A memfd of these chunks and flags, with or without seals. */
static int fake_chunks(const struct source_chunk *chunks, size_t n, const char *flags, int seals)
{
    int fd = memfd_create("fake", MFD_ALLOW_SEALING);
    if (fd < 0 || write(fd, chunks, n * sizeof(*chunks)) != (ssize_t)(n * sizeof(*chunks)) ||
        (flags && write(fd, flags, strlen(flags)) < 0) ||
        (seals && fcntl(fd, F_ADD_SEALS, seals) < 0))
        _exit(4);
    return fd;
}

#define ALL_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)

/* Each a small change of a good index of two raw frames of 16 bytes in the master (100 bytes). */
static const struct lie {
    const char *name;
    const char *words; /* in the refusal; NULL: it is a good one */
    struct reader_shape shape;
    struct source_chunk chunks[2];
    int seals;
    size_t n_chunks;
    const char *flags;
} lies[] = {
#define SHAPE(dtype_, size, y, x, n, sy, sx, fill_)                                         \
    {                                                                                       \
        .dtype = dtype_, .elem_bytes = (size), .det_y = (y), .det_x = (x), .n_frames = (n), \
        .scan_y = (sy), .scan_x = (sx), .fill = (fill_)                                     \
    }
#define PLAIN SHAPE("u2", 2, 2, 4, 2, 0, 0, 0)
#define FLAGGED                                                                      \
    {                                                                                \
        "u2", .elem_bytes = 2, .det_y = 2, .det_x = 4, .n_frames = 2, .has_flags = 1 \
    }
#define RAW(at)                               \
    {                                         \
        .offset = (at), .bytes = 16, .raw = 1 \
    }
#define REST .seals = ALL_SEALS, .n_chunks = 2
    {"good", NULL, SHAPE("u2", 2, 2, 4, 2, 0, 0, 7), {RAW(0), RAW(84)}, REST},
    {"good scan", NULL, SHAPE("u2", 2, 2, 4, 2, 2, 1, 0), {RAW(0), {.bytes = 100}}, REST},
    {"good bad",
     NULL,
     PLAIN,
     {{.file = SOURCE_NO_FILE, .fault = 1}, {.offset = 999, .bytes = 9, .fault = 2}},
     REST},
    {"good flags", NULL, FLAGGED, {RAW(0), RAW(84)}, REST, .flags = "\1\2\3\4\5\6\7\377"},
    {"too few flags", "another size", FLAGGED, {RAW(0), RAW(84)}, REST, .flags = "\1\2\3\4\5\6\7"},
    {"no flags", "another size", FLAGGED, {RAW(0), RAW(84)}, REST},
    {"flags untold", "another size", PLAIN, {RAW(0), RAW(84)}, REST, .flags = "\1\2\3\4\5\6\7\1"},
    {"past the end", "not in its file", PLAIN, {RAW(0), RAW(85)}, REST},
    {"wraps", "not in its file", PLAIN, {RAW(0), {.offset = UINT64_MAX - 3, .bytes = 16}}, REST},
    {"file 1", "not in its file", PLAIN, {RAW(0), {.bytes = 16, .file = 1}}, REST},
    {"no file", "not in its file", PLAIN, {RAW(0), {.bytes = 16, .file = SOURCE_NO_FILE}}, REST},
    {"missing file 1",
     "not in its file",
     PLAIN,
     {RAW(0), {.offset = 1, .file = SOURCE_NO_FILE, .fault = 1}},
     REST},
    {"fault 9", "not in its file", PLAIN, {RAW(0), {.fault = 9}}, REST},
    {"raw 2", "not in its file", PLAIN, {RAW(0), {.bytes = 16, .raw = 2}}, REST},
    {"raw of 15 bytes", "not in its file", PLAIN, {RAW(0), {.bytes = 15, .raw = 1}}, REST},
    {"no seals", "without seals", PLAIN, {RAW(0), RAW(0)}, .seals = 0, .n_chunks = 2},
    {"may be written",
     "without seals",
     PLAIN,
     {RAW(0)},
     .seals = F_SEAL_SHRINK | F_SEAL_GROW,
     .n_chunks = 2},
    {"short", "another size", PLAIN, {RAW(0)}, .seals = ALL_SEALS, .n_chunks = 1},
    {"no memfd", "without seals", PLAIN, {RAW(0)}, .seals = ALL_SEALS, .n_chunks = 0},
    {"0 frames", "number of frames", SHAPE("u2", 2, 2, 4, 0, 0, 0, 0), {RAW(0)}, REST},
    {"2^63 frames",
     "number of frames",
     SHAPE("u2", 2, 2, 4, UINT64_C(1) << 63, 0, 0, 0),
     {RAW(0)},
     REST},
    {"no pixels", "size", SHAPE("u2", 2, 2, 0, 2, 0, 0, 0), {RAW(0)}, REST},
    {"huge frame", "size", SHAPE("u2", 2, 2, UINT64_C(1) << 31, 2, 0, 0, 0), {RAW(0)}, REST},
    {"wrapping frame", "size", SHAPE("u2", 2, UINT64_C(1) << 62, 4, 2, 0, 0, 0), {RAW(0)}, REST},
    {"scan of 3", "scan", SHAPE("u2", 2, 2, 4, 2, 3, 1, 0), {RAW(0)}, REST},
    {"wrapping scan", "scan", SHAPE("u2", 2, 2, 4, 2, UINT64_C(1) << 63, 2, 0), {RAW(0)}, REST},
    {"u8", NULL, SHAPE("u8", 8, 1, 2, 2, 0, 0, UINT64_MAX), {RAW(0), RAW(84)}, REST},
    {"i1", NULL, SHAPE("i1", 1, 4, 4, 2, 0, 0, 255), {RAW(0), RAW(84)}, REST},
    {"f2", "kind of pixels", SHAPE("f2", 2, 2, 4, 2, 0, 0, 0), {RAW(0)}, REST},
    {"u3", "pixels", SHAPE("u2", 3, 2, 4, 2, 0, 0, 0), {RAW(0)}, REST},
    {"u2 of 4 bytes", "kind of pixels", SHAPE("u2", 4, 2, 4, 2, 0, 0, 0), {RAW(0)}, REST},
    {"no end", "kind of pixels", SHAPE("u2345678", 2, 2, 4, 2, 0, 0, 0), {RAW(0)}, REST},
    {"fill 65536", "fill", SHAPE("u2", 2, 2, 4, 2, 0, 0, 65536), {RAW(0)}, REST},
#undef SHAPE
#undef PLAIN
#undef FLAGGED
#undef RAW
#undef REST
};
#define N_LIES (sizeof(lies) / sizeof(lies[0]))

static void fake_lie(size_t i)
{
    const struct lie *lie = &lies[i];
    struct reader_msg msg = {.type = READER_INDEX, .shape = lie->shape};
    fake_send(&msg,
              lie->n_chunks ? fake_chunks(lie->chunks, lie->n_chunks, lie->flags, lie->seals) : -1);
    pause();
}

static void fake_assembly(size_t i)
{
    struct told told = told_truth();
    tell_lie(i, &told);
    struct reader_msg msg = {.type = READER_INDEX, .shape = told.shape};
    fake_send(&msg, told_memfd(&told));
    pause();
}

static void fake_crash(void)
{
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
}

static void fake_exit(void)
{
    _exit(7);
}

static void fake_hang(void)
{
    pause();
}

static void fake_close(void) /* gone from the socket and still there */
{
    close(READER_FD);
    pause();
}

static void fake_alive(void) /* slow, but at work; then it crashes */
{
    struct reader_msg msg = {.type = READER_ALIVE};
    for (int i = 0; i < 8; i++) {
        fake_send(&msg, -1);
        usleep(100000);
    }
    fake_crash();
}

static void fake_garbage(void)
{
    if (write(READER_FD, "garbage", 7) < 0)
        _exit(3);
    pause();
}

static void fake_long_text(void)
{
    struct reader_msg msg = {.type = READER_WARNING, .text_bytes = 100};
    if (write(READER_FD, &msg, offsetof(struct reader_msg, text) + 10) < 0)
        _exit(3);
    pause();
}

static void fake_no_nul(void)
{
    struct reader_msg msg = {.type = READER_WARNING, .text_bytes = 4, .text = "abcd"};
    fake_send(&msg, -1);
    pause();
}

static void fake_type(void)
{
    struct reader_msg msg = {.type = 99};
    fake_send(&msg, -1);
    pause();
}

static void fake_gap(void)
{
    fake_need(2, "x.h5");
    pause();
}

static void fake_flood(void) /* more files at once than the window */
{
    for (uint32_t i = 1; i < 100; i++)
        fake_need(i, "x.h5");
    pause();
}

static void fake_wait(void)
{
    fake_need(1, "x.h5");
    pause();
}

static void fake_code(void)
{
    struct reader_msg msg = {.type = READER_FAIL, .code = 5};
    reader_msg_text(&msg, "line\nbreak \xf2 \xc3\xa9 \xed\xa0\x80", NULL);
    fake_send(&msg, -1);
    pause();
}

static void fake_warnings(void)
{
    struct reader_msg msg = {.type = READER_WARNING};
    memset(msg.text, 'w', sizeof(msg.text) - 1);
    msg.text_bytes = sizeof(msg.text);
    for (int i = 0; i < 1000; i++)
        fake_send(&msg, -1);
    fake_lie(0);
}

static const struct fake {
    const char *name;
    void (*run)(void);
    int status;
    const char *words; /* in the error */
} fakes[] = {
    {"crash", fake_crash, STOW_SOURCE, "ended with signal 11"},
    {"exit", fake_exit, STOW_SOURCE, "ended with status 7"},
    {"hang", fake_hang, STOW_TIMEOUT, "said nothing for"},
    {"close", fake_close, STOW_TIMEOUT, "said nothing for"},
    {"alive", fake_alive, STOW_SOURCE, "ended with signal 11"},
    {"garbage", fake_garbage, STOW_SOURCE, "half a message"},
    {"long text", fake_long_text, STOW_SOURCE, "half a message"},
    {"no nul", fake_no_nul, STOW_SOURCE, "half a message"},
    {"type", fake_type, STOW_SOURCE, "unknown message"},
    {"gap", fake_gap, STOW_SOURCE, "out of turn"},
    {"flood", fake_flood, STOW_SOURCE, "too many files"},
    {"code", fake_code, STOW_SOURCE, "line\\x0abreak ? \xc3\xa9 ???"},
    {"warnings", fake_warnings, 0, ""},
    {"wait", fake_wait, STOW_TIMEOUT, ""}, /* for tests of close */
};
#define N_FAKES (sizeof(fakes) / sizeof(fakes[0]))

static int fake_main(void)
{
    struct reader_msg msg;
    int fd;
    if (reader_msg_receive(READER_FD, &msg, &fd) || fd < 0)
        return 9;
    const char *what = reader_msg_more(&msg);
    for (size_t i = 0; i < N_FAKES; i++)
        if (strcmp(what, fakes[i].name) == 0)
            fakes[i].run();
    for (size_t i = 0; i < N_LIES; i++)
        if (strcmp(what, lies[i].name) == 0)
            fake_lie(i);
    if (strncmp(what, "assembly ", 9) == 0)
        fake_assembly((size_t)atoi(what + 9));
    return 8;
}

/* ---- the checks ------------------------------------------------------------------------------ */

static char master[] = "/tmp/source_test.XXXXXX";
static char self[PATH_MAX];

static void make_master(void)
{
    char bytes[100] = {0};
    int fd = mkstemp(master);
    CHECK(fd >= 0 && write(fd, bytes, sizeof(bytes)) == sizeof(bytes));
    close(fd);
}

static struct source_options fake_options(const char *name)
{
    return (struct source_options){.dataset = name, .reader = self, .silent_ms = 400};
}

static size_t count_fds(void)
{
    size_t n = 0;
    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void test_fakes(void)
{
    for (size_t i = 0; i < N_FAKES; i++) {
        const struct fake *fake = &fakes[i];
        struct source_options options = fake_options(fake->name);
        struct run run = {.no_answers = true};
        if (fake->run == fake_wait)
            continue;
        run_open(&run, master, &options);
        CHECK_MSG(run.status == fake->status, "%s: status %d: %s", fake->name, run.status,
                  run.err.text);
        CHECK_MSG(strstr(run.err.text, fake->words) != NULL, "%s: %s", fake->name, run.err.text);
        if (fake->status == 0) {
            CHECK_INT(source_index(run.source)->n_warnings, 64);
            CHECK_INT(strlen(source_index(run.source)->warnings[0]), 504);
        }
        run_close(&run);
    }
}

static void test_lies(void)
{
    for (size_t i = 0; i < N_LIES; i++) {
        struct source_options options = fake_options(lies[i].name);
        struct run run = {0};
        run_open(&run, master, &options);
        CHECK_MSG(run.status == (lies[i].words ? STOW_SOURCE : 0), "%s: status %d: %s",
                  lies[i].name, run.status, run.err.text);
        if (lies[i].words)
            CHECK_MSG(strstr(run.err.text, lies[i].words) && strstr(run.err.text, master), "%s: %s",
                      lies[i].name, run.err.text);
        else if (run.status == 0)
            CHECK(memcmp(source_index(run.source)->chunks, lies[i].chunks,
                         sizeof(lies[i].chunks)) == 0);
        if (run.status == 0)
            CHECK_INT(source_index(run.source)->n_flagged, lies[i].flags ? 8 : 0);
        run_close(&run);
    }
}

static void test_assembly_lies(void)
{
    for (size_t i = 0; i < N_TOLD; i++) {
        char name[32];
        snprintf(name, sizeof(name), "assembly %zu", i);
        struct source_options options = fake_options(name);
        struct run run = {0};
        run_open(&run, master, &options);
        CHECK_MSG(run.status == (told_words[i] ? STOW_SOURCE : 0), "%s: status %d: %s", name,
                  run.status, run.err.text);
        if (told_words[i])
            CHECK_MSG(strstr(run.err.text, told_words[i]) != NULL, "%s: %s", name, run.err.text);
        else if (run.status == 0)
            CHECK(strcmp(source_index(run.source)->assembly->texts, "/d") == 0);
        run_close(&run);
    }
}

/* Closed while the child waits, in the callback or outside: nothing is called any more, nothing
 * is left. */
static void test_close(void)
{
    struct source_options options = fake_options("wait");
    struct run run = {.close_on_need = true};
    run_open(&run, master, &options);
    CHECK_INT(run.n_needs, 1);
    run_close(&run);

    run = (struct run){.no_answers = true};
    const struct source_callbacks callbacks = {&run, on_need, on_done};
    options.path = master;
    uv_loop_init(&run.loop);
    CHECK_INT(source_open(&run.source, &run.loop, open(master, O_RDONLY), &options, &callbacks,
                          &run.err),
              0);
    while (run.n_needs == 0 && uv_run(&run.loop, UV_RUN_ONCE))
        ;
    source_give(run.source, 7, -1, "x", ENOENT); /* never asked for */
    source_give(run.source, 0, dup(0), "x", 0);  /* the master */
    source_give(run.source, 1, dup(0), "x", 0);  /* whatever stdin is */
    source_give(run.source, 1, dup(0), "x", 0);  /* again */
    source_close(run.source);
    run.source = NULL;
    run_close(&run);
    CHECK(!run.done);
}

/* While the client has not answered, the child's silence is no fault; after that it is. */
static void on_tick(uv_timer_t *timer)
{
    struct run *run = timer->data;
    CHECK(!run->done);
    source_give(run->source, 1, -1, "x.h5", ENOENT);
    uv_close((uv_handle_t *)timer, NULL);
}

static void test_patience(void)
{
    struct source_options options = fake_options("wait");
    struct run run = {.no_answers = true};
    const struct source_callbacks callbacks = {&run, on_need, on_done};
    uv_timer_t timer = {.data = &run};
    options.path = master;
    uv_loop_init(&run.loop);
    uv_timer_init(&run.loop, &timer);
    uv_timer_start(&timer, on_tick, 1000, 0);
    CHECK_INT(source_open(&run.source, &run.loop, open(master, O_RDONLY), &options, &callbacks,
                          &run.err),
              0);
    while (!run.done && uv_run(&run.loop, UV_RUN_ONCE))
        ;
    CHECK_INT(run.status, STOW_TIMEOUT);
    run_close(&run);
}

static void test_no_reader(void)
{
    struct source_options options = {.reader = "/nonexistent/framestow-reader"};
    struct run run = {0};
    run_open(&run, master, &options);
    CHECK_INT(run.status, STOW_INTERNAL);
    CHECK(strstr(run.err.text, "/nonexistent/framestow-reader") != NULL);
    run_close(&run);

    static const char *const paths[] = {"/tmp", "/dev/null"};
    static const char *const words[] = {"Is a directory", "not a regular file"};
    options = fake_options("hang");
    for (int i = 0; i < 2; i++) {
        run = (struct run){0};
        run_open(&run, paths[i], &options);
        CHECK_INT(run.status, i ? STOW_SOURCE : STOW_IO);
        CHECK(strstr(run.err.text, words[i]) != NULL);
        run_close(&run);
    }
}

/* The true reader, on what is no HDF5 file. */
static void test_reader(void)
{
    struct run run = {0};
    run_open(&run, master, NULL);
    CHECK_INT(run.status, STOW_SOURCE);
    CHECK_MSG(strstr(run.err.text, "is not an HDF5 file") != NULL, "%s", run.err.text);
    run_close(&run);
}

/* The installed tests lie one folder below the reader. */
static void find_reader(void)
{
    static char path[PATH_MAX + 32];
    struct stow_error err;
    reader_path = getenv("FRAMESTOW_READER");
    if (reader_path || source_find_reader(path, sizeof(path), &err) == 0)
        return;
    snprintf(path, sizeof(path), "%.*s/../framestow-reader", (int)(strrchr(self, '/') - self),
             self);
    reader_path = path;
}

int main(int argc, char **argv)
{
    if (strcmp(argv[0], "framestow-reader") == 0)
        return fake_main();
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    CHECK(n > 0);
    find_reader();
    if (argc > 2 && strcmp(argv[1], "--index") == 0)
        return index_main(argc, argv);
    make_master();
    test_reader();
    size_t n_fds = count_fds(); /* libuv keeps a pair for signals */
    test_fakes();
    test_lies();
    test_assembly_lies();
    test_close();
    test_patience();
    test_no_reader();
    CHECK_INT(count_fds(), n_fds);
    unlink(master);
    return test_end();
}
