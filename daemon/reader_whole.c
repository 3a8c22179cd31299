/* SPDX-License-Identifier: Apache-2.0 */
#define H5_USE_110_API 1
#include "reader_whole.h"

#include "reader_index.h"
#include "reader_raw.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int index_set(struct reader *reader, struct reader_set *set, hid_t dataset,
                     struct stow_error *err)
{
    const struct reader_data *data = &set->data;
    if (!set->path || !set->chunks)
        return error_set(err, STOW_NOMEM, "out of memory for the index of %" PRIu64 " chunks",
                         data->n_chunks);
    return (data->storage == READER_EXTERNAL ? reader_raw_index : reader_index)(
        reader, set->file, set->path, dataset, data, set->chunks, &set->n_written, err);
}

int reader_whole_set(struct reader *reader, size_t file, const char *path, hid_t dataset,
                     struct reader_data *data, struct reader_table *table, size_t *number,
                     struct stow_error *err)
{
    int status = 0;
    if (data->storage == READER_EXTERNAL)
        status = reader_raw_describe(reader, file, path, dataset, data, err);
    if (status)
        return status;
    struct reader_set set = {.data = *data, .file = file, .path = strdup(path)};
    set.chunks = malloc((data->n_chunks + 1) * sizeof(*set.chunks));
    status = index_set(reader, &set, dataset, err);
    if (status) {
        free(set.path);
        free(set.chunks);
        return status;
    }
    *number = table->n_sets;
    return reader_table_add_set(table, &set, err);
}

int reader_whole(struct reader *reader, size_t file, const char *path, hid_t dataset,
                 struct reader_data *data, struct reader_table *table, struct stow_error *err)
{
    size_t set = 0;
    int status = reader_whole_set(reader, file, path, dataset, data, table, &set, err);
    const struct assembly_box box = {.frame_step = 1,
                                     .n_frames = data->n_frames,
                                     .from_step = 1,
                                     .n_y = data->det_y,
                                     .n_x = data->det_x,
                                     .dataset = (uint32_t)set};
    return status ? status : reader_table_add_box(table, &box, err);
}
