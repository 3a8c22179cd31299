/* SPDX-License-Identifier: Apache-2.0
 *
 * cli_text: words and objects for stdout. */
#include "cli.h"

#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of the UTF-8 character at p, 0 where there is none (RFC 3629: no overlong forms, no
 * surrogates). */
static size_t utf8_length(const unsigned char *p)
{
    static const struct {
        unsigned char lead_min, lead_max, next_min, next_max;
        size_t n;
    } rows[] = {{0x01, 0x7f, 0, 0, 1},       {0xc2, 0xdf, 0x80, 0xbf, 2},
                {0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3},
                {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
                {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4},
                {0xf4, 0xf4, 0x80, 0x8f, 4}};
    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        if (p[0] < rows[r].lead_min || p[0] > rows[r].lead_max)
            continue;
        if (rows[r].n > 1 && (p[1] < rows[r].next_min || p[1] > rows[r].next_max))
            return 0;
        for (size_t i = 2; i < rows[r].n; i++) {
            if ((p[i] & 0xc0) != 0x80)
                return 0;
        }
        return rows[r].n;
    }
    return 0;
}

/* C0, DEL, and C1 as UTF-8 writes it. */
static bool is_control(const unsigned char *p)
{
    return p[0] < 0x20 || p[0] == 0x7f || (p[0] == 0xc2 && p[1] < 0xa0);
}

char *cli_clean(const char *text, bool controls)
{
    const unsigned char *p = (const unsigned char *)text;
    char *clean = malloc(4 * strlen(text) + 1), *at = clean;
    if (!clean) {
        fputs("framestow: out of memory\n", stderr);
        exit(CLI_FAILED);
    }
    while (*p) {
        size_t n = utf8_length(p);
        if (n && !(controls && is_control(p))) {
            memcpy(at, p, n);
            at += n;
            p += n;
            continue;
        }
        for (n = n ? n : 1; n; n--)
            at += sprintf(at, "\\x%02x", *p++);
    }
    *at = 0;
    return clean;
}

void cli_print(FILE *to, const char *text)
{
    char *clean = cli_clean(text, true);
    fputs(clean, to);
    free(clean);
}

const char *cli_size(char text[CLI_SIZE_TEXT], uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)bytes;
    size_t u = 0;
    for (; value >= 1024 && u < 5; u++)
        value /= 1024;
    snprintf(text, CLI_SIZE_TEXT, u ? "%.1f %s" : "%.0f %s", value, units[u]);
    return text;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

struct json_object *cli_json_text(const char *text)
{
    char *clean = cli_clean(text, false);
    struct json_object *object = json_object_new_string(clean);
    free(clean);
    return object;
}

struct json_object *cli_json_real(double value, int decimals)
{
    static char formats[][5] = {"%.0f", "%.1f", "%.2f", "%.3f"};
    struct json_object *object = json_object_new_double(value);
    json_object_set_serializer(object, json_object_double_to_json_string, formats[decimals], NULL);
    return object;
}

static struct json_object *json_pair(const uint64_t pair[2])
{
    struct json_object *array = json_object_new_array();
    json_object_array_add(array, json_object_new_uint64(pair[0]));
    json_object_array_add(array, json_object_new_uint64(pair[1]));
    return array;
}

static struct json_object *json_texts(const char *const *texts, size_t n)
{
    struct json_object *array = json_object_new_array();
    for (size_t i = 0; i < n; i++)
        json_object_array_add(array, cli_json_text(texts[i]));
    return array;
}

static struct json_object *json_forms(const struct stow_info *info)
{
    static const char *const names[STOW_N_FORMS] = {"counts", "bslz4", "raw", "fill", "bad"};
    struct json_object *forms = json_object_new_object();
    for (size_t i = 0; i < STOW_N_FORMS; i++)
        json_object_object_add(forms, names[i], json_object_new_uint64(info->forms[i]));
    return forms;
}

static struct json_object *json_rings(const struct stow_info *info)
{
    struct json_object *array = json_object_new_array();
    for (size_t i = 0; i < info->n_rings; i++) {
        const struct stow_rings *rings = &info->rings[i];
        struct json_object *o = json_object_new_object(), *center = json_object_new_array();
        json_object_array_add(center, json_object_new_double(rings->center[0]));
        json_object_array_add(center, json_object_new_double(rings->center[1]));
        json_object_object_add(o, "center", center);
        json_object_object_add(o, "flagged", json_object_new_boolean(rings->flagged));
        json_object_object_add(o, "bytes", json_object_new_uint64(rings->bytes));
        json_object_array_add(array, o);
    }
    return array;
}

struct json_object *cli_json_info(const struct stow_info *info)
{
    static const char *const shares[] = {"user", "group", "all"};
    struct json_object *o = json_object_new_object(), *bytes = json_object_new_object();
    struct json_object *timings = json_object_new_object();
    json_object_object_add(bytes, "logical", json_object_new_uint64(info->logical_bytes));
    json_object_object_add(bytes, "source", json_object_new_uint64(info->source_bytes));
    json_object_object_add(bytes, "resident", json_object_new_uint64(info->resident_bytes));
    for (size_t i = 0; i < info->n_timings; i++)
        json_object_object_add(timings, info->timings[i].stage,
                               cli_json_real(info->timings[i].ms, 3));
    json_object_object_add(o, "name", cli_json_text(info->name));
    json_object_object_add(o, "id", json_object_new_uint64(info->id));
    json_object_object_add(o, "state", cli_json_text(info->state));
    json_object_object_add(o, "frames", json_object_new_uint64(info->frames));
    json_object_object_add(o, "expected",
                           info->expected < 0 ? NULL : json_object_new_int64(info->expected));
    json_object_object_add(o, "scan", info->scan[0] ? json_pair(info->scan) : NULL);
    json_object_object_add(o, "skip_per_line", json_object_new_uint64(info->skip_per_line));
    json_object_object_add(o, "offset", json_object_new_uint64(info->offset));
    json_object_object_add(o, "not_acquired", json_object_new_uint64(info->not_acquired));
    json_object_object_add(o, "detector", json_pair(info->detector));
    json_object_object_add(o, "dtype", cli_json_text(info->dtype));
    json_object_object_add(o, "forms", json_forms(info));
    json_object_object_add(o, "bytes", bytes);
    json_object_object_add(o, "sources", json_texts(info->sources, info->n_sources));
    json_object_object_add(o, "warnings", json_texts(info->warnings, info->n_warnings));
    json_object_object_add(o, "timings_ms", timings);
    json_object_object_add(o, "rings", json_rings(info));
    json_object_object_add(o, "device", cli_json_text(info->device));
    json_object_object_add(o, "share", json_object_new_string(shares[info->share]));
    json_object_object_add(o, "owner", json_object_new_uint64(info->owner_uid));
    return o;
}

void cli_json_print(struct json_object *object)
{
    puts(json_object_to_json_string_ext(object,
                                        JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE));
    json_object_put(object);
}
