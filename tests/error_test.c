/* SPDX-License-Identifier: Apache-2.0
 *
 * error_test: every code has a name and a text, the numbers are those of the wire, and sentences stay whole. */
#include "error.h"
#include "framestow.pb-c.h"
#include "test.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>

static void test_codes(void)
{
    const ProtobufCEnumDescriptor *codes = &stow__code__descriptor;
    CHECK_INT(codes->n_values, -STOW_NOFIT + 1);
    for (unsigned i = 0; i < codes->n_values; i++) {
        const ProtobufCEnumValue *value = &codes->values[i];
        char name[32] = "";
        for (size_t k = 0; value->name[k] && k < sizeof(name) - 1; k++)
            name[k] = (char)tolower((unsigned char)value->name[k]);
        CHECK_INT(value->value, i);
        CHECK_MSG(strcmp(error_name(-value->value), name) == 0,
                  "code %d is called %s here, %s on the wire", value->value,
                  error_name(-value->value), name);
        CHECK_MSG(strlen(stow_strerror(-value->value)) > 3 &&
                      strcmp(stow_strerror(-value->value), "unknown error") != 0,
                  "code %d has no text", value->value);
    }
    static const int none[] = {1, 27, STOW_NOFIT - 1, -1000, INT_MAX, INT_MIN};
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        CHECK_MSG(strcmp(error_name(none[i]), "unknown") == 0, "%d is a code", none[i]);
        CHECK_MSG(strcmp(stow_strerror(none[i]), "unknown error") == 0, "%d has a text", none[i]);
    }
}

/* The header's enum and the wire's, by name, so that neither can be renumbered alone. */
static void test_numbers(void)
{
#define ROW(code)                              \
    {                                          \
#code, STOW__CODE__##code, STOW_##code \
    }
    static const struct {
        const char *name;
        int wire, code;
    } rows[] = {
        ROW(OK),          ROW(NOMEM),    ROW(BUSY),     ROW(CORRUPT), ROW(DEVICE),
        ROW(INVALID),     ROW(STATE),    ROW(UNKNOWN),  ROW(EXISTS),  ROW(NOROOM),
        ROW(UNSUPPORTED), ROW(RANGE),    ROW(SOURCE),   ROW(MISSING), ROW(IO),
        ROW(DENIED),      ROW(PROTOCOL), ROW(VERSION),  ROW(STALE),   ROW(CANCELLED),
        ROW(NODAEMON),    ROW(GONE),     ROW(TIMEOUT),  ROW(LIMIT),   ROW(UNWRITTEN),
        ROW(SHUTDOWN),    ROW(FORKED),   ROW(INTERNAL), ROW(NOFIT),
    };
#undef ROW
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        CHECK_MSG(rows[i].wire == -rows[i].code, "%s is %d and %d", rows[i].name, rows[i].wire,
                  rows[i].code);
}

static void test_sentences(void)
{
    struct stow_error err;
    CHECK_INT(error_set(&err, STOW_RANGE, "frame %d of %s", 7, "x"), STOW_RANGE);
    CHECK_INT(err.code, STOW_RANGE);
    CHECK(strcmp(err.text, "frame 7 of x") == 0);
    CHECK_INT(error_prefix(&err, "load %d", 3), STOW_RANGE);
    CHECK_MSG(strcmp(err.text, "load 3: frame 7 of x") == 0, "\"%s\"", err.text);
    CHECK_INT(error_set(NULL, STOW_BUSY, "%s", "nobody reads this"), STOW_BUSY);
    CHECK_INT(error_errno(NULL, EIO, "%s", "nor this"), STOW_IO);
    CHECK(error_prefix(NULL, "nor this") < 0);

    char longer[2000];
    memset(longer, 'a', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    error_set(&err, STOW_IO, "%s", longer);
    CHECK_INT(strlen(err.text), sizeof(err.text) - 1);
    CHECK_INT(error_prefix(&err, "p"), STOW_IO);
    CHECK_INT(strlen(err.text), sizeof(err.text) - 1);
    CHECK(strncmp(err.text, "p: aaa", 6) == 0);
    error_prefix(&err, "%s", longer);
    CHECK_INT(strlen(err.text), sizeof(err.text) - 1);
    CHECK_INT(error_errno(&err, EACCES, "%s", longer), STOW_DENIED);
    CHECK_INT(strlen(err.text), sizeof(err.text) - 1);
}

static void test_errno(void)
{
    static const struct {
        int value, code;
    } cases[] = {{ENOMEM, STOW_NOMEM},   {EACCES, STOW_DENIED},   {EPERM, STOW_DENIED},
                 {ENOENT, STOW_MISSING}, {ENOTDIR, STOW_MISSING}, {EIO, STOW_IO},
                 {EMFILE, STOW_IO}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct stow_error err;
        char want[200];
        snprintf(want, sizeof(want), "file 4: %s", strerror(cases[i].value));
        CHECK_INT(error_errno(&err, cases[i].value, "file %d", 4), cases[i].code);
        CHECK_INT(err.code, cases[i].code);
        CHECK_MSG(strcmp(err.text, want) == 0, "\"%s\", expected \"%s\"", err.text, want);
    }
}

/* Names and paths may hold any bytes; a sentence is UTF-8 whatever they are. */
static void test_utf8(void)
{
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"plain", "plain"},
        {"gr\xc3\xbc\xc3\x9f", "gr\xc3\xbc\xc3\x9f"},
        {"\xe2\x82\xac \xf0\x9f\x94\xac", "\xe2\x82\xac \xf0\x9f\x94\xac"},
        {"a\xff"
         "b",
         "a?b"},
        {"\x80", "?"},
        {"\xc3", "?"},
        {"\xc3(", "?("},
        {"\xc0\xaf", "??"}, /* overlong */
        {"\xe0\x80\xaf", "???"},
        {"\xed\xa0\x80", "???"},      /* a surrogate */
        {"\xf4\x90\x80\x80", "????"}, /* past U+10FFFF */
        {"\xf0\x9f\x94", "???"},
        {"\xe2\x82", "??"},
        {"\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf"},
        {"\xed\x9f\xbf\xee\x80\x80", "\xed\x9f\xbf\xee\x80\x80"},
    };
    struct stow_error err;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        error_set(&err, STOW_UNKNOWN, "%s", cases[i].in);
        CHECK_MSG(strcmp(err.text, cases[i].out) == 0, "case %zu became \"%s\"", i, err.text);
    }
    /* A character that the end of the text cuts. */
    char text[520];
    memset(text, 'x', sizeof(text));
    memcpy(text + sizeof(err.text) - 2, "\xc3\xbc", 3);
    error_set(&err, STOW_UNKNOWN, "%s", text);
    CHECK_INT(err.text[sizeof(err.text) - 2], '?');
    error_set(&err, STOW_UNKNOWN, "%.*s\xc3\xbc", (int)sizeof(err.text) - 4, text);
    error_prefix(&err, "p");
    CHECK_INT(strlen(err.text), sizeof(err.text) - 1);
    for (size_t i = 0; i < sizeof(err.text) - 1; i++) {
        if ((unsigned char)err.text[i] >= 0x80 &&
            (i + 2 >= sizeof(err.text) || !(err.text[i + 1] & 0x80))) {
            CHECK_MSG(false, "half a character at %zu", i);
            break;
        }
        if ((unsigned char)err.text[i] >= 0x80)
            i++;
    }
}

int main(void)
{
    test_codes();
    test_numbers();
    test_sentences();
    test_errno();
    test_utf8();
    return test_end();
}
