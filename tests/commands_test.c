/* SPDX-License-Identifier: Apache-2.0
 *
 * commands_test: lists, names and loads: what each request does, and what it refuses. */
#include "served.h"

/* ---- what there is ---- */

/* Page through the list; each page's rows are counted, and their names checked against the store's order. */
static size_t list_all(struct client *client, size_t *n_pages)
{
    size_t n = 0;
    uint8_t after[256];
    ProtobufCBinaryData last = {.len = 0};
    bool more = true;
    const struct name *name = server.store.names;
    for (*n_pages = 0; more && *n_pages < 100; ++*n_pages) {
        Stow__List list = STOW__LIST__INIT;
        list.after = last;
        REQUEST(request, LIST, list, list, 30);
        send_request(client, &request);
        const Stow__Reply *reply = expect(client, 30, STOW__REPLY__BODY_LIST);
        if (!reply || (reply->list->more && !reply->list->n_acquisitions))
            break;
        more = reply->list->more;
        for (size_t i = 0; i < reply->list->n_acquisitions;
             i++, n++, name = name ? name->next : NULL) {
            const Stow__Acquisition *row = reply->list->acquisitions[i];
            CHECK(name && row->name.len == strlen(name->text) &&
                  !memcmp(row->name.data, name->text, row->name.len) &&
                  row->owner_uid == name->owner);
            memcpy(after, row->name.data, row->name.len);
            last = (ProtobufCBinaryData){.len = row->name.len, .data = after};
        }
    }
    return n;
}

static void test_list(void)
{
    struct client client = client_ready();
    size_t n_pages;
    CHECK_INT(list_all(&client, &n_pages), 0);
    for (int i = 0; i < 40; i++) {
        char text[32];
        snprintf(text, sizeof(text), "scan %02d", i * 7 % 40);
        put(text, 1000, 20);
    }
    CHECK_INT(list_all(&client, &n_pages), 40);
    CHECK_INT(n_pages, 3);
    /* names of any bytes */
    static const char *const odd[] = {"\xff\xfe", "line\nbreak", "\x01", "gr\xc3\xbc\xc3\x9f",
                                      "\x80",     "../..",       " "};
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++)
        put(odd[i], 1000, 3);
    char longest[256];
    memset(longest, 0xee, 255);
    longest[255] = '\0';
    put(longest, 1000, 3);
    CHECK_INT(list_all(&client, &n_pages), 48);
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        Stow__Info info = STOW__INFO__INIT;
        info.name = bytes_of(odd[i]);
        REQUEST(request, INFO, info, info, 31);
        send_request(&client, &request);
        const Stow__Reply *reply = expect(&client, 31, STOW__REPLY__BODY_INFO);
        CHECK(reply && reply->info->name.len == strlen(odd[i]) && reply->info->frames == 3 &&
              reply->info->n_forms == STOW_N_FORMS && reply->info->forms[STOW_FORM_FILL] == 2 &&
              reply->info->forms[STOW_FORM_BAD] == 1);
    }
    store_clear(&server.store);
    /* The same name of two owners where a page ends: both are listed. */
    for (int n_before = 13; n_before <= 16; n_before++) {
        for (int i = 0; i < n_before; i++)
            put((char[]){'a', (char)('a' + i), 0}, 1000, 3);
        for (uid_t owner = 0; owner < 4; owner++)
            put("same", 1000 + owner, 3);
        put("z", 1000, 3);
        CHECK_INT(list_all(&client, &n_pages), n_before + 5);
        store_clear(&server.store);
    }
    client_close(&client);
    check_empty();
}

/* Long paths and warnings: pages get shorter, no answer is too long, and nobody brings the daemon down. */
static void test_list_long(void)
{
    struct client client = client_ready();
    size_t n_pages;
    char path[4096], text[32];
    memset(path, 'p', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    for (int same = 0; same < 2; same++) {
        for (int i = 0; i < 40; i++) {
            snprintf(text, sizeof(text), same ? "same" : "n%02d", i);
            struct resident *resident = put(text, (uid_t)(1000 + i), 3);
            free(resident->origins[0].path);
            resident->origins[0].path = strdup(path);
            resident_warn(resident, "%s", path);
            resident_warn(resident, "%s", path);
        }
        size_t n = list_all(&client, &n_pages);
        CHECK_MSG(same ? n >= 3 : n == 40 && n_pages > 3, "%zu names on %zu pages", n, n_pages);
        Stow__Info info = STOW__INFO__INIT;
        info.name = bytes_of(same ? "same" : "n03");
        REQUEST(request, INFO, info, info, 32);
        send_request(&client, &request);
        const Stow__Reply *reply = expect(&client, 32, STOW__REPLY__BODY_INFO);
        CHECK(reply && reply->info->n_warnings == 2 && reply->info->n_sources == 1);
        store_clear(&server.store);
    }
    client_close(&client);
    check_empty();
}

static bool is_utf8(const char *text)
{
    char copy[1024];
    snprintf(copy, sizeof(copy), "%s", text);
    error_clean(copy);
    return strcmp(copy, text) == 0;
}

static void test_names(void)
{
    struct client client = client_ready();
    char too_long[257];
    memset(too_long, 'x', 256);
    too_long[256] = '\0';
    const struct {
        ProtobufCBinaryData name;
        int code;
    } cases[] = {
        {{.len = 0}, STOW_INVALID},
        {{.len = 3, .data = (uint8_t *)"a\0b"}, STOW_INVALID},
        {{.len = 256, .data = (uint8_t *)too_long}, STOW_INVALID},
        {{.len = 255, .data = (uint8_t *)too_long}, STOW_UNKNOWN},
        {{.len = 4, .data = (uint8_t *)"none"}, STOW_UNKNOWN},
        {{.len = 3, .data = (uint8_t *)"\xff\xc3\n"}, STOW_UNKNOWN},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        Stow__Info info = STOW__INFO__INIT;
        Stow__Unload unload = STOW__UNLOAD__INIT;
        Stow__Stream stream = STOW__STREAM__INIT;
        Stow__FrameErrors errors = STOW__FRAME_ERRORS__INIT;
        info.name = unload.name = stream.name = errors.name = cases[i].name;
        REQUEST(a, INFO, info, info, 1);
        REQUEST(b, UNLOAD, unload, unload, 2);
        REQUEST(c, STREAM, stream, stream, 3);
        REQUEST(d, FRAME_ERRORS, frame_errors, errors, 4);
        const Stow__Request *all[] = {&a, &b, &c, &d};
        for (uint64_t k = 0; k < 4; k++) {
            send_request(&client, all[k]);
            expect_error(&client, k + 1, cases[i].code, NULL);
            CHECK(client.message &&
                  is_utf8(client.message->reply->error->text)); /* it is a proto3 string */
        }
    }
    put("x", 1000, 3);
    Stow__Unload unload = STOW__UNLOAD__INIT;
    unload.name = bytes_of("x");
    REQUEST(request, UNLOAD, unload, unload, 9);
    send_request(&client, &request);
    expect(&client, 9, STOW__REPLY__BODY_DONE);
    send_request(&client, &request);
    expect_error(&client, 9, STOW_UNKNOWN, "x");
    client_close(&client);
    check_empty();
}

static void test_frame_errors(void)
{
    struct client client = client_ready();
    put("x", 1000, 2000);
    uint64_t ids[100];
    for (uint64_t i = 0; i < 100; i++)
        ids[i] = i * 5; /* every second is bad */
    ids[1] = UINT64_MAX;
    Stow__FrameErrors errors = STOW__FRAME_ERRORS__INIT;
    errors.name = bytes_of("x");
    errors.ids = ids;
    errors.n_ids = 100;
    REQUEST(request, FRAME_ERRORS, frame_errors, errors, 8);
    send_request(&client, &request);
    const Stow__Reply *reply = expect(&client, 8, STOW__REPLY__BODY_FRAME_ERRORS);
    CHECK(reply && reply->frame_errors->n_errors == 32 &&
          reply->frame_errors->errors[1]->id == 10 &&
          reply->frame_errors->errors[1]->code == STOW__CODE__CORRUPT &&
          !strcmp(reply->frame_errors->errors[1]->text, "block 3 makes no sense"));
    client_close(&client);
    check_empty();
}

/* ---- loads ---- */

static void test_load_refusals(void)
{
    struct client client = client_ready();
    int directory = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC),
        file = memfd_create("file", MFD_CLOEXEC);
    const struct {
        const char *name, *device, *form;
        uint64_t scan_y;
        int share;
        size_t n_fds;
        bool is_directory;
        int code;
        uint32_t streams;
    } cases[] = {
        {"n", "", "", 0, 0, 0, false, STOW_INVALID, 0},
        {"n", "", "", 0, 0, 2, false, STOW_INVALID, 0},
        {"", "", "", 0, 0, 1, false, STOW_INVALID, 0},
        {"n", "cuda:7", "", 0, 0, 1, false, STOW_UNKNOWN, 0},
        {"n", "", "zip", 0, 0, 1, false, STOW_INVALID, 0},
        {"n", "", "", 4, 0, 1, false, STOW_INVALID, 0},
        {"n", "", "", 0, 9, 1, false, STOW_INVALID, 0},
        {"n", "", "", 0, 0, 1, true, STOW_SOURCE, 0},
        {"n", "", "counts", 0, 0, 1, false, STOW_INVALID, 9},
    };
    int before = count_fds();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int failed = test_failed;
        Stow__Load load = STOW__LOAD__INIT;
        load.name = bytes_of(cases[i].name);
        load.path = bytes_of("/data/x.h5");
        load.device = (char *)cases[i].device;
        load.form = (char *)cases[i].form;
        load.scan_y = cases[i].scan_y;
        load.streams = cases[i].streams;
        load.share = (Stow__Share)cases[i].share;
        REQUEST(request, LOAD, load, load, 70);
        int fds[2] = {cases[i].is_directory ? directory : file, file};
        send_fds(&client, &request, fds, cases[i].n_fds);
        expect_error(&client, 70, cases[i].code, NULL);
        CHECK_MSG(test_failed == failed, "case %zu", i);
    }
    Stow__Load load = STOW__LOAD__INIT;
    load.name = bytes_of("n");
    load.path = (ProtobufCBinaryData){.len = 4, .data = (uint8_t *)"/a\0b"};
    REQUEST(request, LOAD, load, load, 71);
    send_fds(&client, &request, &file, 1);
    expect_error(&client, 71, STOW_INVALID, NULL);
    /* FILES that nobody waits for, and whose numbers do not match */
    Stow__File one = STOW__FILE__INIT, *rows[] = {&one, &one};
    Stow__Files files = STOW__FILES__INIT;
    one.path = bytes_of("/x");
    files.load = 99;
    files.n_files = 2;
    files.files = rows;
    REQUEST(given, FILES, files, files, 72);
    send_fds(&client, &given, &file, 1);
    expect_error(&client, 72, STOW_INVALID, NULL);
    send_fds(&client, &given, (int[]){file, file}, 2);
    expect(&client, 72, STOW__REPLY__BODY_DONE);
    Stow__Stats stats = STOW__STATS__INIT;
    REQUEST(last, STATS, stats, stats, 73);
    send_request(&client, &last);
    expect(&client, 73, STOW__REPLY__BODY_STATS);
    CHECK_INT(count_fds(), before);
    close(directory);
    close(file);
    client_close(&client);
    check_empty();
}

/* A reader that ends at once without a word: the load fails, with a sentence, and cancel is harmless. */
static void test_load_fails(void)
{
    for (int how = 0; how < 3; how++) {
        struct client client = client_ready();
        int file = memfd_create("file", MFD_CLOEXEC);
        CHECK(write(file, "not HDF5", 8) == 8);
        Stow__Load load = STOW__LOAD__INIT;
        load.name = bytes_of("n");
        load.path = bytes_of("/data/x.h5");
        REQUEST(request, LOAD, load, load, 70);
        send_fds(&client, &request, &file, 1);
        close(file);
        const Stow__Reply *reply = expect(&client, 70, STOW__REPLY__BODY_LOAD);
        uint64_t number = reply ? reply->load->load : 0;
        if (how == 1) {
            Stow__Cancel cancel = STOW__CANCEL__INIT;
            cancel.load = number;
            REQUEST(stop, CANCEL, cancel, cancel, 71);
            send_request(&client, &stop);
            Stow__Message *message = receive(&client);
            bool done = message && message->body_case == STOW__MESSAGE__BODY_REPLY;
            if (!done) /* it had failed before */
                expect(&client, 71, STOW__REPLY__BODY_DONE);
            message = done ? receive(&client) : NULL;
            CHECK(!done || (message && message->body_case == STOW__MESSAGE__BODY_EVENT &&
                            message->event->body_case == STOW__EVENT__BODY_LOADED &&
                            message->event->loaded->error));
        } else if (how == 0) {
            Stow__Event *event = receive_event(&client);
            CHECK(event && event->body_case == STOW__EVENT__BODY_LOADED &&
                  event->loaded->load == number && event->loaded->error &&
                  event->loaded->error->text[0] && !event->loaded->acquisition);
        } /* else it leaves */
        client_close(&client);
        for (int i = 0; i < 500 && server.loads.first; i++) {
            turn();
            usleep(1000);
        }
        check_empty();
    }
}

int main(void)
{
    serve();
    int before = count_fds();
    test_list();
    test_list_long();
    test_names();
    test_frame_errors();
    test_load_refusals();
    test_load_fails();
    for (int i = 0; i < 1000 && count_fds() != before; i++) { /* libuv lets go of handles later */
        turn();
        usleep(1000);
    }
    CHECK_INT(count_fds(), before);
    serve_no_more();
    return test_end();
}
