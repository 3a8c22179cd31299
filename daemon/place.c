/* SPDX-License-Identifier: Apache-2.0 */
#include "place.h"

#define LOG_MODULE "place"
#include "log.h"

#include <assert.h>
#include <string.h>

static void wake(void *data)
{
    uv_async_send(data);
}

static void stop_spinning(struct place *place)
{
    if (!place->spinning)
        return;
    uv_idle_stop(&place->idle);
    place->spinning = false;
}

void place_wait(struct place *place, struct place_retry *retry)
{
    if (retry->waiting)
        return;
    retry->waiting = true;
    retry->next = place->retries;
    place->retries = retry;
}

void place_unwait(struct place *place, struct place_retry *retry)
{
    for (struct place_retry **at = &place->retries; *at; at = &(*at)->next) {
        if (*at == retry) {
            *at = retry->next;
            break;
        }
    }
    retry->waiting = false;
}

/* Those that are refused again join the list anew, behind what is taken off it here. */
static void run_retries(struct place *place)
{
    size_t n = 0;
    for (const struct place_retry *r = place->retries; r; r = r->next)
        n++;
    while (n-- && place->retries) {
        struct place_retry *last = place->retries;
        while (last->next)
            last = last->next;
        place_unwait(place, last);
        last->retry(last);
    }
}

/* Run what is finished. While work is left, either the loop keeps turning or the device is told to wake it. */
static void poll_device(struct place *place)
{
    size_t under_way = device_poll(place->device);
    run_retries(place);
    if (device_lost(place->device) && place->on_lost)
        place->on_lost(place);
    if (!under_way) {
        stop_spinning(place);
    } else if (uv_hrtime() - place->submitted_ns > PLACE_SPIN_NS) {
        stop_spinning(place);
        device_arm(place->device);
    }
}

static void on_idle(uv_idle_t *idle)
{
    poll_device(idle->data);
}

static void on_async(uv_async_t *async)
{
    poll_device(async->data);
}

void place_submitted(struct place *place)
{
    place->submitted_ns = uv_hrtime();
    if (!device_info(place->device)->is_gpu || place->spinning)
        return; /* the host's pool wakes the loop itself, and needs the core that would spin */
    uv_idle_start(&place->idle, on_idle);
    place->spinning = true;
}

static int open_lanes(struct place *place, struct stow_error *err)
{
    int rc = lane_open(&place->loading, place->device, LANE_BULK, err);
    if (!rc)
        rc = lane_open(&place->urgent, place->device, LANE_URGENT, err);
    for (int i = 0; !rc && i < PLACE_N_BULK; i++)
        rc = lane_open(&place->bulk[i], place->device, LANE_BULK, err);
    for (int i = 0; !rc && i < PLACE_N_ENCODING; i++)
        rc = lane_open(&place->encoding[i], place->device, LANE_BULK, err);
    return rc;
}

static void close_lanes(struct place *place)
{
    struct lane *lanes[2 + PLACE_N_BULK + PLACE_N_ENCODING] = {place->loading, place->urgent};
    memcpy(lanes + 2, place->bulk, sizeof(place->bulk));
    memcpy(lanes + 2 + PLACE_N_BULK, place->encoding, sizeof(place->encoding));
    for (size_t i = 0; i < sizeof(lanes) / sizeof(lanes[0]); i++) {
        if (lanes[i])
            lane_close(lanes[i]);
    }
    device_poll(place->device);
}

int place_open(struct place *place, uv_loop_t *loop, const struct place_options *options,
               struct stow_error *err)
{
    void (*on_lost)(struct place *) = place->on_lost;
    void *data = place->data;
    *place = (struct place){.on_lost = on_lost, .data = data};
    uv_async_init(loop, &place->async, on_async);
    place->async.data = place;
    uv_idle_init(loop, &place->idle);
    place->idle.data = place;
    struct device_options device_options = {.threads = options->threads,
                                            .wake = wake,
                                            .wake_data = &place->async};
    int rc = device_open(&place->device, options->device, &device_options, err);
    if (!rc)
        rc = open_lanes(place, err);
    if (!rc && device_info(place->device)->is_gpu)
        rc = staging_init(&place->staging, place->device, options->staging_bytes, err);
    if (rc) {
        place_close(place);
        return rc;
    }
    const struct device_info *info = device_info(place->device);
    place->max_bytes = options->max_bytes ? options->max_bytes : info->total_bytes / 2;
    LOG_INFO("device %s (%s), %llu MiB, budget %llu MiB", info->name, info->model,
             (unsigned long long)(info->total_bytes >> 20),
             (unsigned long long)(place->max_bytes >> 20));
    if (info->kinds_note[0])
        LOG_WARN("device %s: %s", info->name, info->kinds_note);
    return 0;
}

void place_close(struct place *place)
{
    if (place->device) {
        staging_fini(&place->staging);
        close_lanes(place);
        device_close(place->device);
        place->device = NULL;
    }
    stop_spinning(place);
    uv_close((uv_handle_t *)&place->async, NULL);
    uv_close((uv_handle_t *)&place->idle, NULL);
}

struct lane *place_lane(struct place *place, size_t n_frames)
{
    if (n_frames <= PLACE_URGENT_FRAMES)
        return place->urgent;
    return place->bulk[place->next_bulk++ % PLACE_N_BULK];
}

bool place_charge(struct place *place, uint64_t bytes)
{
    if (bytes > place_free_bytes(place))
        return false;
    place->used_bytes += bytes;
    return true;
}

void place_uncharge(struct place *place, uint64_t bytes)
{
    assert(bytes <= place->used_bytes);
    place->used_bytes -= bytes;
}

uint64_t place_free_bytes(const struct place *place)
{
    return place->used_bytes < place->max_bytes ? place->max_bytes - place->used_bytes : 0;
}
