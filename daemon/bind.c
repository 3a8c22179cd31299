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

/* Some scans of n positions, the squarest first: "4x6, 6x4, 3x8, 8x3 ...". */
static void write_scans(char *text, size_t room, uint64_t n)
{
    size_t used = 0, shown = 0;
    uint64_t y = 1;
    while (y * y < n && y < UINT32_MAX)
        y++;
    for (text[0] = '\0'; y && shown < 3 && used < room; y--) {
        if (n % y || y * y > n)
            continue;
        unsigned long long a = y, b = n / y;
        used +=
            (size_t)snprintf(text + used, room - used, "%s%llux%llu", shown++ ? ", " : "", a, b);
        if (a != b && used < room)
            used += (size_t)snprintf(text + used, room - used, ", %llux%llu", b, a);
    }
}

static int check_scan(const struct waiter *waiter, const struct resident *resident,
                      const char *path, struct stow_error *err)
{
    uint64_t n = resident->n_frames;
    char fitting[128];
    if (!waiter->scan_y || (n && n % waiter->scan_y == 0 && n / waiter->scan_y == waiter->scan_x))
        return 0;
    write_scans(fitting, sizeof(fitting), n);
    return error_set(err, STOW_INVALID,
                     "a scan of %llux%llu does not fit: %s has %llu frames, such as %s",
                     (unsigned long long)waiter->scan_y, (unsigned long long)waiter->scan_x, path,
                     (unsigned long long)n, *fitting ? fitting : "none");
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
    name->scan_y = waiter->scan_y;
    name->scan_x = waiter->scan_x;
    name->share = waiter->share;
    return 0;
}
