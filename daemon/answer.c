/* SPDX-License-Identifier: Apache-2.0 */
#include "answer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* All texts together must leave a message far below its bound. */
#define TEXT_BYTES (24u << 10)

static ProtobufCBinaryData bytes_of(const char *text)
{
    return (ProtobufCBinaryData){.len = strlen(text), .data = (uint8_t *)text};
}

static size_t put_texts(ProtobufCBinaryData *rows, const char *text, size_t n, size_t most,
                        size_t *room)
{
    if (n == most || strlen(text) > *room)
        return n;
    *room -= strlen(text);
    rows[n] = bytes_of(text);
    return n + 1;
}

/* Where the scan of this name and the frames do not end together. Empty: they do. */
static void write_view(char *text, size_t room, const struct scan *scan, uint64_t n)
{
    unsigned long long positions, missing, end, frames = n;
    text[0] = '\0';
    if (!scan->height)
        return;
    positions = scan->height * scan->width;
    missing = positions - scan_acquired(scan, n);
    end = scan_end(scan) + scan->skip;
    if (missing)
        snprintf(text, room,
                 "%llu of %llu positions of the scan were not acquired, the last ones: %llu frames "
                 "are wanted, and there are %llu",
                 missing, positions, (unsigned long long)scan_end(scan), frames);
    else if (n > end)
        snprintf(text, room, "%llu of %llu frames come after the scan", frames - end, frames);
}

static void put_lists(struct answer_acquisition *answer, const struct resident *resident,
                      size_t most)
{
    Stow__Acquisition *m = &answer->message;
    size_t room = TEXT_BYTES;
    if (answer->view[0])
        m->n_warnings = put_texts(answer->warnings, answer->view, m->n_warnings, most, &room);
    for (size_t i = 0; i < resident->n_warnings; i++)
        m->n_warnings =
            put_texts(answer->warnings, resident->warnings[i], m->n_warnings, most, &room);
    for (size_t i = 0; i < resident->n_origins; i++)
        m->n_sources =
            put_texts(answer->sources, resident->origins[i].path, m->n_sources, most, &room);
    m->warnings = answer->warnings;
    m->sources = answer->sources;
    m->total_sources = (uint32_t)resident->n_origins;
    for (size_t i = 0; i < resident->n_timings; i++) {
        stow__timing__init(&answer->timings[i]);
        answer->timings[i].stage = (char *)resident->timings[i].stage;
        answer->timings[i].ms = resident->timings[i].ms;
        answer->timing_rows[i] = &answer->timings[i];
    }
    m->timings = answer->timing_rows;
    m->n_timings = resident->n_timings;
}

static void put_rings(struct answer_acquisition *answer, const struct resident *resident)
{
    Stow__Acquisition *m = &answer->message;
    for (const struct ring_table *table = resident->store->rings.list; table; table = table->next) {
        if (table->key.owner != resident || !table->ready || m->n_rings == ANSWER_MAX_RINGS)
            continue;
        Stow__RingTable *row = &answer->rings[m->n_rings];
        stow__ring_table__init(row);
        row->center_y = table->key.center_y;
        row->center_x = table->key.center_x;
        row->flagged = table->key.flagged;
        row->bytes = table->bytes;
        answer->ring_rows[m->n_rings++] = row;
    }
    m->rings = answer->ring_rows;
}

struct answer_acquisition *answer_acquisition_new(const struct name *name, bool brief)
{
    struct answer_acquisition *answer = calloc(1, sizeof(*answer));
    if (!answer)
        return NULL;
    const struct resident *resident = name->resident;
    Stow__Acquisition *m = &answer->message;
    stow__acquisition__init(m);
    m->id = resident->id;
    m->name = bytes_of(name->text);
    m->state = (Stow__Residence)resident->state;
    m->device = (char *)device_info(resident->place->device)->name;
    m->dtype = (char *)resident->dtype;
    m->frames = resident->n_frames;
    m->has_expected = resident->has_expected;
    m->expected = resident->expected;
    const struct scan scan = name_scan(name);
    m->scan_y = scan.height;
    m->scan_x = scan.width;
    m->scan_skip = scan.skip;
    m->scan_offset = scan.offset;
    write_view(answer->view, sizeof(answer->view), &scan, resident->n_frames);
    m->detector_y = resident->det_y;
    m->detector_x = resident->det_x;
    m->elem_bytes = resident->shape.elem_bytes;
    resident_forms(resident, answer->forms);
    m->forms = answer->forms;
    m->n_forms = STOW_N_FORMS;
    m->logical_bytes = resident->n_frames * frame_bytes(&resident->shape);
    m->source_bytes = resident->source_bytes;
    m->resident_bytes = resident->state == RESIDENT_EVICTED ? 0 : resident_bytes(resident);
    m->owner_uid = name->owner;
    m->share = (Stow__Share)name->share;
    put_lists(answer, resident, brief ? 1 : ANSWER_MAX_TEXTS);
    if (!brief)
        put_rings(answer, resident);
    return answer;
}

void answer_acquisition_free(struct answer_acquisition *answer)
{
    free(answer);
}

static bool sees_gpu(const struct session *session, const uint8_t *uuid)
{
    for (size_t i = 0; i < session->n_uuids; i++) {
        if (memcmp(session->uuids[i], uuid, sizeof(session->uuids[i])) == 0)
            return true;
    }
    return false;
}

unsigned memory_kinds_for(const struct session *session, const struct place *place)
{
    const struct device_info *info = device_info(place->device);
    unsigned kinds = info->kinds & session->memory_kinds;
    if (info->is_gpu && !sees_gpu(session, info->uuid))
        kinds &= MEMORY_HOST_FD;
    return kinds;
}

const char *memory_note_for(const struct session *session, const struct place *place)
{
    const struct device_info *info = device_info(place->device);
    if (!info->is_gpu)
        return "";
    if (!(session->memory_kinds & (MEMORY_CUDA_IPC | MEMORY_CUDA_FD)))
        return "the client has no usable CUDA driver: frames come in host memory";
    if (!sees_gpu(session, info->uuid))
        return "the GPU that holds the acquisition is not visible to the client "
               "(CUDA_VISIBLE_DEVICES?): frames come "
               "in host memory";
    if (!session->same_pid_namespace)
        return "the client is in another pid namespace: cuda-fd rather than cuda-ipc";
    return info->kinds_note;
}
