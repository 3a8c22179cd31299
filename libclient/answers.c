/* SPDX-License-Identifier: Apache-2.0
 *
 * answers: what the daemon says of acquisitions, frames and itself, as the public structs. Each
 * object given out is one heap block: the struct, its arrays, then its text. */
#include "client.h"

#include "scan.h"

#include <stdlib.h>
#include <string.h>

static const char *const states[] = {"loading", "growing", "complete", "damaged", "evicted"};
#define N_STATES (sizeof(states) / sizeof(states[0]))

/* ---- stow_info ------------------------------------------------------------------------------- */

static size_t text_bytes(const Stow__Acquisition *from)
{
    size_t n = from->name.len + 1 + strlen(from->device) + 1 + strlen(from->dtype) + 1;
    for (size_t i = 0; i < from->n_sources; i++)
        n += from->sources[i].len + 1;
    for (size_t i = 0; i < from->n_warnings; i++)
        n += from->warnings[i].len + 1;
    for (size_t i = 0; i < from->n_timings; i++)
        n += strlen(from->timings[i]->stage) + 1;
    return n;
}

/* Append to the text at *at; returns where it begins. */
static const char *put_bytes(char **at, const void *bytes, size_t n)
{
    char *begin = *at;
    if (n)
        memcpy(begin, bytes, n);
    begin[n] = 0;
    *at += n + 1;
    return begin;
}

static const char *put_text(char **at, const char *text)
{
    return put_bytes(at, text, strlen(text));
}

static void put_plain(struct stow_info *info, const Stow__Acquisition *from)
{
    uint64_t elem = from->elem_bytes;
    *info = (struct stow_info){
        .id = from->id,
        .state = (size_t)from->state < N_STATES ? states[from->state] : "unknown",
        .frames = from->frames,
        .expected =
            from->has_expected && from->expected <= INT64_MAX ? (int64_t)from->expected : -1,
        .scan = {from->scan_y, from->scan_x},
        .detector = {from->detector_y, from->detector_x},
        .elem_bytes = elem,
        .frame_bytes = from->detector_y * from->detector_x * elem,
        .logical_bytes = from->logical_bytes,
        .source_bytes = from->source_bytes,
        .resident_bytes = from->resident_bytes,
        .owner_uid = from->owner_uid,
        .share =
            (size_t)from->share <= STOW_SHARE_ALL ? (enum stow_share)from->share : STOW_SHARE_USER,
        .n_sources = from->n_sources,
        .n_warnings = from->n_warnings,
        .n_timings = from->n_timings,
        .skip_per_line = from->scan_skip,
        .offset = from->scan_offset,
        .n_rings = from->n_rings,
    };
    for (size_t i = 0; i < from->n_forms && i < STOW_N_FORMS; i++)
        info->forms[i] = from->forms[i];
    const struct scan scan = {from->scan_y, from->scan_x, from->scan_skip, from->scan_offset};
    if (scan_sound(&scan))
        info->not_acquired = scan.height * scan.width - scan_acquired(&scan, from->frames);
}

struct stow_info *answer_info(const Stow__Acquisition *from)
{
    size_t n_texts = from->n_sources + from->n_warnings;
    size_t bytes = sizeof(struct stow_info) + from->n_rings * sizeof(struct stow_rings) +
                   from->n_timings * sizeof(struct stow_timing) + n_texts * sizeof(char *);
    struct stow_info *info = malloc(bytes + text_bytes(from));
    if (!info)
        return NULL;
    put_plain(info, from);
    struct stow_rings *rings = (struct stow_rings *)(info + 1);
    struct stow_timing *timings = (struct stow_timing *)(rings + from->n_rings);
    const char **sources = (const char **)(timings + from->n_timings);
    const char **warnings = sources + from->n_sources;
    char *at = (char *)(warnings + from->n_warnings);
    info->name = put_bytes(&at, from->name.data, from->name.len);
    info->device = put_text(&at, from->device);
    info->dtype = put_text(&at, from->dtype);
    for (size_t i = 0; i < from->n_timings; i++)
        timings[i] =
            (struct stow_timing){put_text(&at, from->timings[i]->stage), from->timings[i]->ms};
    for (size_t i = 0; i < from->n_sources; i++)
        sources[i] = put_bytes(&at, from->sources[i].data, from->sources[i].len);
    for (size_t i = 0; i < from->n_warnings; i++)
        warnings[i] = put_bytes(&at, from->warnings[i].data, from->warnings[i].len);
    for (size_t i = 0; i < from->n_rings; i++)
        rings[i] =
            (struct stow_rings){.center = {from->rings[i]->center_y, from->rings[i]->center_x},
                                .flagged = from->rings[i]->flagged,
                                .bytes = from->rings[i]->bytes};
    info->rings = rings;
    info->timings = timings;
    info->sources = sources;
    info->warnings = warnings;
    return info;
}

void stow_info_free(struct stow_info *info)
{
    free(info);
}

static int no_memory(struct stow_client *client)
{
    return error_set(&client->error, STOW_NOMEM, "no memory for the daemon's answer");
}

int stow_info(struct stow_client *client, const char *name, struct stow_info **info)
{
    if (client_check(client))
        return client->error.code;
    Stow__Info ask = STOW__INFO__INIT;
    ask.name = client_bytes(name, strlen(name));
    Stow__Request request = STOW__REQUEST__INIT;
    request.body_case = STOW__REQUEST__BODY_INFO;
    request.info = &ask;
    struct answer answer;
    int rc = client_ask(client, &request, NULL, 0, STOW__REPLY__BODY_INFO, &answer);
    if (rc)
        return rc;
    struct stow_info *got = answer_info(answer.reply->info);
    answer_drop(&answer);
    if (!got)
        return no_memory(client);
    *info = got;
    return 0;
}

/* ---- the list -------------------------------------------------------------------------------- */

void stow_list_free(struct stow_info **list, size_t n)
{
    for (size_t i = 0; list && i < n; i++)
        free(list[i]);
    free(list);
}

/* Append one page to *list. */
static int add_page(struct stow_client *client, struct stow_info ***list, size_t *n,
                    const Stow__ListReply *page)
{
    if (page->n_acquisitions == 0)
        return 0;
    struct stow_info **longer = realloc(*list, (*n + page->n_acquisitions) * sizeof(**list));
    if (!longer)
        return no_memory(client);
    *list = longer;
    for (size_t i = 0; i < page->n_acquisitions; i++) {
        longer[*n] = answer_info(page->acquisitions[i]);
        if (!longer[*n])
            return no_memory(client);
        ++*n;
    }
    return 0;
}

int stow_list(struct stow_client *client, struct stow_info ***list, size_t *n)
{
    struct stow_info **all = NULL;
    size_t count = 0;
    int rc = client_check(client);
    for (bool more = true; more && rc == 0;) {
        const char *after = count ? all[count - 1]->name : "";
        Stow__List ask = STOW__LIST__INIT;
        ask.after = client_bytes(after, strlen(after));
        Stow__Request request = STOW__REQUEST__INIT;
        request.body_case = STOW__REQUEST__BODY_LIST;
        request.list = &ask;
        struct answer answer;
        rc = client_ask(client, &request, NULL, 0, STOW__REPLY__BODY_LIST, &answer);
        if (rc)
            break;
        rc = add_page(client, &all, &count, answer.reply->list);
        more = answer.reply->list->more && answer.reply->list->n_acquisitions > 0;
        answer_drop(&answer);
    }
    if (rc) {
        stow_list_free(all, count);
        return rc;
    }
    *list = all;
    *n = count;
    return 0;
}

int stow_unload(struct stow_client *client, const char *name)
{
    if (client_check(client))
        return client->error.code;
    Stow__Unload ask = STOW__UNLOAD__INIT;
    ask.name = client_bytes(name, strlen(name));
    Stow__Request request = STOW__REQUEST__INIT;
    request.body_case = STOW__REQUEST__BODY_UNLOAD;
    request.unload = &ask;
    return client_ask_done(client, &request);
}

/* ---- frames that cannot be given ------------------------------------------------------------- */

int stow_frame_error(struct stow_client *client, const char *name, uint64_t id,
                     struct stow_error *why)
{
    if (client_check(client))
        return client->error.code;
    Stow__FrameErrors ask = STOW__FRAME_ERRORS__INIT;
    ask.name = client_bytes(name, strlen(name));
    ask.n_ids = 1;
    ask.ids = &id;
    Stow__Request request = STOW__REQUEST__INIT;
    request.body_case = STOW__REQUEST__BODY_FRAME_ERRORS;
    request.frame_errors = &ask;
    struct answer answer;
    int rc = client_ask(client, &request, NULL, 0, STOW__REPLY__BODY_FRAME_ERRORS, &answer);
    if (rc)
        return rc;
    *why = (struct stow_error){.code = STOW_OK};
    const Stow__FrameErrorsReply *reply = answer.reply->frame_errors;
    for (size_t i = 0; i < reply->n_errors; i++) {
        Stow__Error error = STOW__ERROR__INIT;
        error.code = reply->errors[i]->code;
        error.text = reply->errors[i]->text;
        if (reply->errors[i]->id == id)
            client_error_of(&error, why);
    }
    answer_drop(&answer);
    return 0;
}

/* ---- figures --------------------------------------------------------------------------------- */

static struct stow_stat *stats_of(const Stow__StatsReply *reply)
{
    size_t bytes = (reply->n_stats + 1) * sizeof(struct stow_stat);
    for (size_t i = 0; i < reply->n_stats; i++) {
        const Stow__Stat *from = reply->stats[i];
        bytes += strlen(from->name) + strlen(from->unit) + strlen(from->help) + 3;
    }
    struct stow_stat *stats = malloc(bytes);
    if (!stats)
        return NULL;
    char *at = (char *)(stats + reply->n_stats + 1);
    for (size_t i = 0; i < reply->n_stats; i++) {
        const Stow__Stat *from = reply->stats[i];
        stats[i].name = put_text(&at, from->name);
        stats[i].unit = put_text(&at, from->unit);
        stats[i].help = put_text(&at, from->help);
        stats[i].value = from->value;
    }
    return stats;
}

int stow_stats(struct stow_client *client, struct stow_stat **stats, size_t *n)
{
    if (client_check(client))
        return client->error.code;
    Stow__Stats ask = STOW__STATS__INIT;
    Stow__Request request = STOW__REQUEST__INIT;
    request.body_case = STOW__REQUEST__BODY_STATS;
    request.stats = &ask;
    struct answer answer;
    int rc = client_ask(client, &request, NULL, 0, STOW__REPLY__BODY_STATS, &answer);
    if (rc)
        return rc;
    struct stow_stat *got = stats_of(answer.reply->stats);
    if (got) {
        *stats = got;
        *n = answer.reply->stats->n_stats;
    }
    answer_drop(&answer);
    return got ? 0 : no_memory(client);
}

void stow_stats_free(struct stow_stat *stats)
{
    free(stats);
}
