/* SPDX-License-Identifier: Apache-2.0 */
#define H5_USE_110_API 1
#include "reader_whole.h"

#include "reader_index.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int reader_whole_set(struct reader *reader, size_t file, const char *path, hid_t dataset,
                     struct reader_data *data, struct reader_table *table, size_t *number,
                     struct stow_error *err)
{
    struct reader_set set = {.data = *data, .file = file, .path = strdup(path)};
    set.chunks = malloc((data->n_chunks + 1) * sizeof(*set.chunks));
    int status =
        set.path && set.chunks
            ? 0
            : error_set(err, STOW_NOMEM, "out of memory for the index of %" PRIu64 " chunks",
                        data->n_chunks);
    if (!status && (data->storage == READER_EXTERNAL || data->storage == READER_VIRTUAL))
        status = error_set(err, STOW_UNSUPPORTED, "%s: dataset %s is %s, which is not supported",
                           reader->files[file]->shown, path,
                           data->storage == READER_EXTERNAL ? "in an external raw file"
                                                            : "a virtual dataset over other files");
    if (!status)
        status = reader_index(reader, file, path, dataset, data, set.chunks, &set.n_written, err);
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
