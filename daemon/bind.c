/* SPDX-License-Identifier: Apache-2.0 */
#include "bind.h"

#include <stdio.h>

int bind_check(struct store *store, const struct waiter *waiter, const struct resident *resident,
               bool changed, struct stow_error *err)
{
    const struct name *in_use = store_find_own(store, waiter->name, waiter->uid);
    if (!in_use || in_use->resident == resident || waiter->replace ||
        in_use->resident->state == RESIDENT_EVICTED)
        return 0;
    const struct resident *other = in_use->resident;
    return error_set(
        err, STOW_EXISTS,
        "the name %s is in use for %s%s; choose another with --name, or give --replace",
        waiter->name, other->n_origins ? other->origins[0].path : "another source",
        changed ? " as it was before it changed" : "");
}

/* Some scans that n frames fill, the squarest first: "4x6, 6x4, 3x8, 8x3 ...". A line is as many frames as it has
 * positions, and skip more. */
static void write_scans(char *text, size_t room, uint64_t n, uint64_t skip)
{
    size_t used = 0, shown = 0;
    uint64_t lines = 1;
    while (lines * lines < n && lines < UINT32_MAX)
        lines++;
    for (text[0] = '\0'; lines && shown < 3 && used < room; lines--) {
        uint64_t line = n / lines, other = lines;
        if (n % lines || line < lines || line <= skip)
            continue;
        used += (size_t)snprintf(text + used, room - used, "%s%llux%llu", shown++ ? ", " : "",
                                 (unsigned long long)lines, (unsigned long long)(line - skip));
        if (line != other && other > skip && used < room)
            used += (size_t)snprintf(text + used, room - used, ", %llux%llu",
                                     (unsigned long long)line, (unsigned long long)(other - skip));
    }
}

/* The shape alone: as many positions as frames, or with gaps allowed, more. */
static int check_shape(const struct waiter *waiter, uint64_t n, const char *path,
                       struct stow_error *err)
{
    const struct scan *scan = &waiter->scan;
    unsigned long long height = scan->height, width = scan->width, all = height * width;
    char fitting[128];
    if (all == n || (waiter->allow_gaps && all > n && n))
        return 0;
    write_scans(fitting, sizeof(fitting), n, 0);
    return error_set(
        err, STOW_INVALID,
        "a scan of %llux%llu = %llu positions does not fit: %s has %llu frames, as for "
        "%s%s",
        height, width, all, path, (unsigned long long)n, *fitting ? fitting : "none",
        all > n ? "; if it ended early, --allow-gaps takes the rest as not acquired" : "");
}

/* A scan that leaves frames out: its last line has begun, or with gaps allowed, any position is there. */
static int check_view(const struct waiter *waiter, uint64_t n, const char *path,
                      struct stow_error *err)
{
    const struct scan *scan = &waiter->scan;
    unsigned long long offset = scan->offset, skip = scan->skip, frames = n, end = scan_end(scan);
    char fitting[128];
    if (n <= offset)
        return error_set(err, STOW_INVALID,
                         "the scan begins at frame %llu, which is past the end: %s has %llu frames",
                         offset, path, frames);
    if (waiter->allow_gaps || n > scan_frame(scan, scan->height - 1, 0))
        return 0;
    write_scans(fitting, sizeof(fitting), n - offset, skip);
    return error_set(
        err, STOW_INVALID,
        "a scan of %llux%llu with %llu frames before it and %llu after each line takes "
        "%llu frames, and %s has %llu, as for %s; if it ended early, --allow-gaps "
        "takes the rest as not acquired",
        (unsigned long long)scan->height, (unsigned long long)scan->width, offset, skip, end, path,
        frames, *fitting ? fitting : "none");
}

static int check_scan(const struct waiter *waiter, const struct resident *resident,
                      const char *path, struct stow_error *err)
{
    const struct scan *scan = &waiter->scan;
    if (!scan->height)
        return 0;
    return scan->skip || scan->offset ? check_view(waiter, resident->n_frames, path, err)
                                      : check_shape(waiter, resident->n_frames, path, err);
}

int bind_name(struct store *store, const struct waiter *waiter, struct resident *resident,
              const char *path, bool changed, struct stow_error *err)
{
    int rc = bind_check(store, waiter, resident, changed, err);
    if (!rc)
        rc = check_scan(waiter, resident, path, err);
    if (rc)
        return rc;
    struct name *name = store_find_own(store, waiter->name, waiter->uid);
    if (name && name->resident != resident) {
        store_unbind(store, name);
        name = NULL;
    }
    if (!name)
        name = store_bind(store, waiter->name, waiter->uid, waiter->gid, waiter->share, resident);
    if (!name)
        return error_set(err, STOW_NOMEM, "no memory for a name");
    name->scan = waiter->scan;
    name->share = waiter->share;
    return 0;
}
