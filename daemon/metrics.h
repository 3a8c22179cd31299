/* SPDX-License-Identifier: Apache-2.0
 *
 * metrics: the daemon's counters and gauges, one row each: name, unit, and a sentence that says what it
 * counts. A counter is a plain field of `metrics`, counted where the thing happens. Loop thread only. */
#ifndef STOW_METRICS_H
#define STOW_METRICS_H

#include <stddef.h>
#include <stdint.h>

#define METRICS(X)                                                                             \
    X(sessions, "connections", "Clients that are connected now.")                              \
    X(sessions_total, "connections", "Clients that have connected since the start.")           \
    X(residents, "acquisitions", "Acquisitions that lie on a device now.")                     \
    X(loads_total, "loads", "Loads that were begun.")                                          \
    X(loads_failed_total, "loads", "Loads that ended with an error or were cancelled.")        \
    X(loaded_bytes_total, "bytes", "Bytes of source files that were read into residents.")     \
    X(evictions_total, "acquisitions", "Acquisitions that made room for others.")              \
    X(streams, "streams", "Streams that are open now.")                                        \
    X(leases, "slots", "Slots that consumers hold now: READY was sent, RELEASE has not come.") \
    X(batches_total, "batches", "Batches that were made ready.")                               \
    X(frames_total, "frames", "Frames that were decoded into slots.")                          \
    X(frames_bad_total, "frames", "Frames that were asked for and answered with an error.")    \
    X(images_total, "requests", "Sums, mean patterns and centres of mass that were answered.") \
    X(ring_answers_total, "requests", "Sums that were answered from tables of ring sums.")     \
    X(ring_bytes, "bytes", "Bytes of host memory that tables of ring sums take now.")          \
    X(decoded_bytes_total, "bytes", "Bytes that were decoded into slots.")                     \
    X(stale_releases_total, "releases",                                                        \
      "RELEASEs that named a slot or generation the client did not hold.")                     \
    X(protocol_errors_total, "connections",                                                    \
      "Connections that were closed because of a framing error.")                              \
    X(used_bytes, "bytes", "Bytes of the budgets that residents and rings take now.")          \
    X(max_bytes, "bytes", "Bytes of the budgets of all devices.")

struct metrics {
#define FIELD(name, unit, help) uint64_t name;
    METRICS(FIELD)
#undef FIELD
};

struct metric_row {
    const char *name, *unit, *help;
    size_t offset; /* in struct metrics */
};

extern struct metrics metrics;
extern const struct metric_row metric_rows[];
extern const size_t n_metric_rows;

uint64_t metric_value(const struct metric_row *row);

#endif
