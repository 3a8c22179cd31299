/* SPDX-License-Identifier: Apache-2.0
 *
 * scan: positions of a scan as frames, for programs. */
#include "client.h"

#include "scan.h"

int stow_scan_frame(struct stow_client *client, const struct stow_info *info, uint64_t y,
                    uint64_t x, uint64_t *frame)
{
    const struct scan scan = {info->scan[0], info->scan[1], info->skip_per_line, info->offset};
    const unsigned long long at[] = {y, x}, last[] = {scan.height - 1, scan.width - 1};
    if (client_check(client))
        return client->error.code;
    if (!scan_sound(&scan))
        return error_set(&client->error, STOW_INVALID,
                         "%s has no scan shape, so a position names nothing: load it with --scan",
                         info->name);
    if (y >= scan.height || x >= scan.width)
        return error_set(&client->error, STOW_RANGE,
                         "position %llu,%llu is outside the scan of %s: 0,0 to %llu,%llu", at[0],
                         at[1], info->name, last[0], last[1]);
    uint64_t id = scan_frame(&scan, y, x);
    if (id >= info->frames)
        return error_set(&client->error, STOW_UNWRITTEN,
                         "position %llu,%llu of %s was not acquired: it would be frame %llu, and "
                         "there are %llu frames",
                         at[0], at[1], info->name, (unsigned long long)id,
                         (unsigned long long)info->frames);
    *frame = id;
    return 0;
}
