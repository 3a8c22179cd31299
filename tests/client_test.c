/* SPDX-License-Identifier: Apache-2.0
 *
 * client_test: libframestow's connection, lists and loads against a daemon that is acted (act.h);
 * and the rules for paths and frame lists. */
#include "framestow.h"

#include "../libclient/cli_ids.c" /* part of the command line, which is not linked here */
#include "act.h"
#include "open_source.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* ---- frame lists ----------------------------------------------------------------------------- */

static void test_ids(void)
{
    static const struct {
        const char *text;
        size_t n; /* 0: refused */
        uint64_t ids[6];
    } rows[] = {
        {"0", 1, {0}},
        {"0,5,7-9", 5, {0, 5, 7, 8, 9}},
        {"9,2,2,0", 4, {9, 2, 2, 0}},
        {"3-3", 1, {3}},
        {"18446744073709551615", 1, {UINT64_MAX}},
        {"18446744073709551616", 0, {0}},
        {"99999999999999999999999", 0, {0}},
        {"", 0, {0}},
        {"x", 0, {0}},
        {"3-", 0, {0}},
        {"-1", 0, {0}},
        {"5-3", 0, {0}},
        {"1,,2", 0, {0}},
        {"1,", 0, {0}},
        {",1", 0, {0}},
        {"1 ,2", 0, {0}},
        {"1-2-3", 0, {0}},
        {"+1", 0, {0}},
        {"ALL", 0, {0}},
    };
    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        struct cli_ids ids = {.n = 77};
        uint64_t *list = NULL;
        size_t n = 0;
        bool ok = cli_ids_parse(rows[r].text, &ids);
        CHECK_MSG(ok == (rows[r].n > 0), "'%s' is %s", rows[r].text, ok ? "taken" : "refused");
        if (!ok) {
            CHECK_INT(ids.n, 77);
            continue;
        }
        CHECK(cli_ids_expand(&ids, &list, &n) && n == rows[r].n &&
              memcmp(list, rows[r].ids, n * sizeof(*list)) == 0);
        free(list);
        cli_ids_free(&ids);
    }
    struct cli_ids ids = {.n = 77};
    uint64_t *list;
    size_t n;
    CHECK(cli_ids_parse("all", &ids) && ids.n == 0);
    CHECK(cli_ids_parse("0-18446744073709551615,1", &ids));
    CHECK(!cli_ids_expand(&ids, &list, &n)); /* 2^64 of them */
    CHECK(cli_ids_last(&ids) == UINT64_MAX);
    cli_ids_free(&ids);
}

/* ---- paths ----------------------------------------------------------------------------------- */

static void test_names(void)
{
    static const char *const rows[][2] = {
        {"scan_master.h5", "scan"},
        {"/a/b/scan_master.h5", "scan"},
        {"plain.h5", "plain.h5"},
        {"_master.h5", "_master.h5"},
        {"x_master.h5.old", "x_master.h5.old"},
        {"dir_master.h5/x", "x"},
        {"/e'x \"1\"_master.h5", "e'x \"1\""},
    };
    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        size_t n;
        const char *name = open_source_name(rows[r][0], &n);
        CHECK_MSG(n == strlen(rows[r][1]) && memcmp(name, rows[r][1], n) == 0,
                  "the name of %s is %.*s", rows[r][0], (int)n, name);
    }
    static const char *const beside[][3] = {
        {"/d/m.h5", "x.h5", "/d/x.h5"},
        {"/d/m.h5", "../x.h5", "/d/../x.h5"},
        {"/d/m.h5", "/y/x.h5", "/y/x.h5"},
        {"/m.h5", "x.h5", "/x.h5"},
    };
    for (size_t r = 0; r < sizeof(beside) / sizeof(beside[0]); r++) {
        char *path = open_source_beside(beside[r][0], beside[r][1], strlen(beside[r][1]));
        CHECK_MSG(path && strcmp(path, beside[r][2]) == 0, "%s beside %s is %s", beside[r][1],
                  beside[r][0], path);
        free(path);
    }
}

static void test_open(void)
{
    struct stow_error err;
    char *real = NULL;
    int why = 0;
    CHECK_INT(open_source("", &real, &why, &err), STOW_MISSING);
    CHECK_INT(open_source(in_folder("none"), &real, &why, &err), STOW_MISSING);
    CHECK(why == ENOENT && strstr(err.text, "none"));
    CHECK_INT(open_source(folder, &real, &why, &err), STOW_SOURCE);
    CHECK_INT(why, EISDIR);
    CHECK(mkfifo(in_folder("pipe"), 0600) == 0);
    CHECK_INT(open_source(in_folder("pipe"), &real, &why, &err),
              STOW_SOURCE); /* and does not wait for a writer */
    close(open(in_folder("file"), O_CREAT | O_WRONLY, 0600));
    CHECK(symlink("file", in_folder("link")) == 0);
    int fd = open_source(in_folder("link"), &real, &why, &err);
    CHECK(fd >= 0 && real && strcmp(real + strlen(real) - 5, "/file") == 0);
    CHECK(fd >= 0 && fcntl(fd, F_GETFD) & FD_CLOEXEC);
    close(fd);
    free(real);
}

/* Another user, kept out by a folder: the sentence names the folder, not the file. */
static void test_denied(void)
{
    if (geteuid() != 0)
        return;
    mkdir(in_folder("private"), 0700);
    close(open(in_folder("private/file"), O_CREAT | O_WRONLY, 0644));
    chmod(folder, 0755);
    pid_t child = fork();
    if (child == 0) {
        struct stow_error err;
        char *real;
        int why = 0;
        bool ok = setegid(65534) == 0 && seteuid(65534) == 0 &&
                  open_source(in_folder("private/file"), &real, &why, &err) == STOW_DENIED &&
                  why == EACCES && strstr(err.text, "/private (mode 0700)");
        _exit(!ok);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK_INT(status, 0);
}

/* ---- connecting ------------------------------------------------------------------------------ */

static void hang_up(struct act *act)
{
    expect(act, STOW__REQUEST__BODY_HELLO);
}

static void too_new(struct act *act)
{
    if (expect(act, STOW__REQUEST__BODY_HELLO))
        reply_error(act, STOW__CODE__VERSION, "this daemon speaks protocol 7 to 9");
}

static void full(struct act *act)
{
    if (!expect(act, STOW__REQUEST__BODY_HELLO))
        return;
    act->id = 0; /* about the connection */
    reply_error(act, STOW__CODE__LIMIT, "200 clients are connected");
}

static void garbage(struct act *act)
{
    if (expect(act, STOW__REQUEST__BODY_HELLO))
        ACT_CHECK(send(wire_fd(act->wire), "\xff\xff\xff\xff\0\0\0\0xxxxxxxxxxxxx", 20,
                       MSG_NOSIGNAL) == 20);
}

static void not_protobuf(struct act *act)
{
    if (expect(act, STOW__REQUEST__BODY_HELLO))
        ACT_CHECK(send(wire_fd(act->wire), "\4\0\0\0\0\0\0\0\xff\xff\xff\xff", 12, MSG_NOSIGNAL) ==
                  12);
}

static void wrong_kind(struct act *act)
{
    if (expect(act, STOW__REQUEST__BODY_HELLO))
        reply_done(act);
}

static void test_connect(void)
{
    static const struct {
        const char *what;
        void (*script)(struct act *act);
        int code;
    } rows[] = {{"hangs up", hang_up, STOW_GONE},
                {"too new", too_new, STOW_VERSION},
                {"full", full, STOW_LIMIT},
                {"garbage", garbage, STOW_PROTOCOL},
                {"no protobuf", not_protobuf, STOW_PROTOCOL},
                {"wrong kind", wrong_kind, STOW_PROTOCOL}};
    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        struct act act;
        struct stow_error err;
        struct stow_client *client = start(&act, rows[r].script, &err);
        CHECK_MSG(!client && err.code == rows[r].code && err.text[0], "%s: %d %s", rows[r].what,
                  err.code, err.text);
        end(&act, client);
    }
    struct stow_error err;
    char path[200];
    memset(path, 'a', sizeof(path) - 1);
    path[sizeof(path) - 1] = 0;
    CHECK(!stow_connect(path, &err) && err.code == STOW_INVALID);
    CHECK(!stow_connect(in_folder("none"), &err) && err.code == STOW_NODAEMON &&
          strstr(err.text, "start framestowd"));
    CHECK(!stow_connect(in_folder("s"), &err) && err.code == STOW_NODAEMON &&
          strstr(err.text, "left by"));
    CHECK(!stow_connect(in_folder("none"), NULL));
}
/* ---- loading --------------------------------------------------------------------------------- */

static void send_need(struct act *act, uint64_t load, size_t n)
{
    static Stow__NeededFile files[40];
    Stow__NeededFile *list[40];
    Stow__NeedFiles need = STOW__NEED_FILES__INIT;
    Stow__Event event = STOW__EVENT__INIT;
    for (size_t i = 0; i < n; i++) {
        const char *name = i == n - 1 ? "none" : i % 2 ? "file" : "link";
        files[i] = (Stow__NeededFile)STOW__NEEDED_FILE__INIT;
        files[i].index = (uint32_t)i;
        files[i].path = client_bytes(name, strlen(name));
        list[i] = &files[i];
    }
    need.load = load;
    need.n_files = n;
    need.files = list;
    event.body_case = STOW__EVENT__BODY_NEED_FILES;
    event.need_files = &need;
    send_event(act, &event);
}

static void send_loaded(struct act *act, Stow__Code code)
{
    Stow__Error error = STOW__ERROR__INIT;
    Stow__Acquisition acquisition = STOW__ACQUISITION__INIT;
    Stow__Loaded loaded = STOW__LOADED__INIT;
    Stow__Event event = STOW__EVENT__INIT;
    ProtobufCBinaryData sources[2] = {client_bytes("/a\xff", 3), client_bytes("", 0)};
    error.code = code;
    acquisition.name = client_bytes("scan", 4);
    acquisition.state = STOW__RESIDENCE__COMPLETE;
    acquisition.detector_y = 3;
    acquisition.detector_x = 5;
    acquisition.elem_bytes = 2;
    acquisition.n_sources = 2;
    acquisition.sources = sources;
    loaded.load = 5;
    loaded.error = code ? &error : NULL;
    loaded.acquisition = code ? NULL : &acquisition;
    event.body_case = STOW__EVENT__BODY_LOADED;
    event.loaded = &loaded;
    send_event(act, &event);
}

static bool answer_load(struct act *act)
{
    Stow__LoadReply load = STOW__LOAD_REPLY__INIT;
    Stow__Reply reply = STOW__REPLY__INIT;
    load.load = 5;
    reply.body_case = STOW__REPLY__BODY_LOAD;
    reply.load = &load;
    greet(act);
    if (!expect(act, STOW__REQUEST__BODY_LOAD))
        return false;
    send_reply(act, &reply, -1);
    return true;
}

/* 40 files are asked for, the last of which is not there. Another load's wishes are not
 * answered. */
static void needs_files(struct act *act)
{
    if (!answer_load(act))
        return;
    send_need(act, 6, 1);
    send_need(act, 5, 40);
    for (size_t got = 0; got < 40;) {
        Stow__Request *request = next_request(act);
        if (!ACT_CHECK(request && request->body_case == STOW__REQUEST__BODY_FILES))
            return;
        for (size_t i = 0; i < request->files->n_files; i++, got++) {
            const Stow__File *file = request->files->files[i];
            ACT_CHECK(file->index == got);
            ACT_CHECK(file->error == (got == 39 ? ENOENT : 0));
            const char *ending = got == 39 ? "/none" : "/file";
            ACT_CHECK(file->path.len > 5 &&
                      memcmp(file->path.data + file->path.len - 5, ending, 5) == 0);
        }
        stow__request__free_unpacked(request, NULL);
    }
    send_loaded(act, STOW__CODE__OK);
}

static void cancelled(struct act *act)
{
    if (answer_load(act) && expect(act, STOW__REQUEST__BODY_CANCEL))
        send_loaded(act, STOW__CODE__CANCELLED);
}

static int stop_at_once(void *data, const struct stow_progress *progress)
{
    CHECK(progress->seconds_left < 0);
    return ++*(int *)data;
}

static void test_load(void)
{
    struct act act;
    struct stow_error err;
    struct stow_info *info = NULL;
    char path[256];
    snprintf(path, sizeof(path), "%s", in_folder("link"));
    struct stow_client *client = start(&act, needs_files, &err);
    CHECK_INT(client ? stow_load(client, path, NULL, &info) : -1, 0);
    CHECK(info && strcmp(info->name, "scan") == 0 && strcmp(info->state, "complete") == 0 &&
          info->expected == -1);
    CHECK(info && info->frame_bytes == 30 && info->n_sources == 2 &&
          strcmp(info->sources[0], "/a\xff") == 0);
    stow_info_free(info);
    end(&act, client);

    int calls = 0;
    struct stow_load_options options = {.size = sizeof(options),
                                        .progress = stop_at_once,
                                        .progress_data = &calls};
    client = start(&act, cancelled, &err);
    CHECK_INT(client ? stow_load(client, path, &options, NULL) : -1, STOW_CANCELLED);
    CHECK_INT(calls, 1);
    end(&act, client);

    client = start(&act, greet, &err);
    options.size = sizeof(options) + 8;
    CHECK_INT(client ? stow_load(client, path, &options, NULL) : -1, STOW_INVALID);
    options.size = sizeof(options);
    options.scan[0] = 3;
    CHECK_INT(client ? stow_load(client, path, &options, NULL) : -1, STOW_INVALID);
    CHECK_INT(client ? stow_load(client, in_folder("none"), NULL, NULL) : -1, STOW_MISSING);
    end(&act, client);
}

/* ---- lists, figures, bad frames -------------------------------------------------------------- */

static void send_page(struct act *act, const char *name, bool more)
{
    Stow__Acquisition acquisition = STOW__ACQUISITION__INIT, *list[] = {&acquisition};
    Stow__ListReply page = STOW__LIST_REPLY__INIT;
    Stow__Reply reply = STOW__REPLY__INIT;
    uint64_t forms[] = {1, 2, 3, 4, 5};
    acquisition.name = client_bytes(name, strlen(name));
    acquisition.state = STOW__RESIDENCE__EVICTED;
    acquisition.has_expected = true;
    acquisition.expected = 15;
    acquisition.n_forms = 5;
    acquisition.forms = forms;
    page.n_acquisitions = 1;
    page.acquisitions = list;
    page.more = more;
    reply.body_case = STOW__REPLY__BODY_LIST;
    reply.list = &page;
    send_reply(act, &reply, -1);
}

static void lists(struct act *act)
{
    static const char *const after[] = {"", "a"};
    greet(act);
    for (int i = 0; i < 2; i++) {
        Stow__Request *request = next_request(act);
        if (!ACT_CHECK(request && request->body_case == STOW__REQUEST__BODY_LIST))
            return;
        ACT_CHECK(request->list->after.len == strlen(after[i]) &&
                  (i == 0 || request->list->after.data[0] == 'a'));
        send_page(act, i ? "b" : "a", i == 0);
        stow__request__free_unpacked(request, NULL);
    }
    char name[] = "leases", unit[] = "slots", text[] = "block 3: too short";
    Stow__Stat stat = STOW__STAT__INIT, *stats[] = {&stat};
    Stow__StatsReply stats_reply = STOW__STATS_REPLY__INIT;
    Stow__Reply reply = STOW__REPLY__INIT;
    stat.name = name;
    stat.unit = unit;
    stat.value = UINT64_MAX;
    stats_reply.n_stats = 1;
    stats_reply.stats = stats;
    reply.body_case = STOW__REPLY__BODY_STATS;
    reply.stats = &stats_reply;
    if (expect(act, STOW__REQUEST__BODY_STATS))
        send_reply(act, &reply, -1);
    Stow__FrameError error = STOW__FRAME_ERROR__INIT, *errors[] = {&error};
    Stow__FrameErrorsReply errors_reply = STOW__FRAME_ERRORS_REPLY__INIT;
    error.id = 7;
    error.code = STOW__CODE__CORRUPT;
    error.text = text;
    errors_reply.n_errors = 1;
    errors_reply.errors = errors;
    reply.body_case = STOW__REPLY__BODY_FRAME_ERRORS;
    reply.frame_errors = &errors_reply;
    for (int i = 0; i < 2 && expect(act, STOW__REQUEST__BODY_FRAME_ERRORS); i++)
        send_reply(act, &reply, -1);
}

static void test_lists(void)
{
    struct act act;
    struct stow_error err;
    struct stow_info **list = NULL;
    struct stow_stat *stats = NULL;
    size_t n = 0;
    struct stow_client *client = start(&act, lists, &err);
    CHECK(client && stow_list(client, &list, &n) == 0 && n == 2);
    CHECK(n == 2 && strcmp(list[0]->name, "a") == 0 && strcmp(list[1]->name, "b") == 0);
    CHECK(n == 2 && list[1]->expected == 15 && list[1]->forms[STOW_FORM_BAD] == 5);
    CHECK(n == 2 && strcmp(list[1]->state, "evicted") == 0);
    stow_list_free(list, n);
    CHECK(client && stow_stats(client, &stats, &n) == 0 && n == 1);
    CHECK(stats && strcmp(stats[0].name, "leases") == 0 && stats[0].value == UINT64_MAX);
    stow_stats_free(stats);
    CHECK(client && stow_frame_error(client, "a", 7, &err) == 0);
    CHECK(err.code == STOW_CORRUPT && strcmp(err.text, "block 3: too short") == 0);
    CHECK(client && stow_frame_error(client, "a", 8, &err) == 0 && err.code == STOW_OK);
    end(&act, client);
}

int main(void)
{
    folder_make();
    test_ids();
    test_names();
    test_open();
    test_denied();
    test_connect();
    test_load();
    test_lists();
    folder_remove();
    return test_end();
}
