/* SPDX-License-Identifier: Apache-2.0
 *
 * recall: whether the index of a source is in the cache (index_cache.h) and still true, before framestow-reader is asked.
 *
 * The entry is read on a thread of libuv's pool; then the files that it names are asked for, as the reader would ask, since only who
 * gives them has a right to what is in them, and each must be as it was. The outcome is a source with its index, as if source_open had
 * been called and had ended well, or none: then the reader is to be asked, and asks for the files once more. Loop thread only.
 *
 * A folder that cannot be read or written costs one warning in the log, once a daemon. */
#ifndef STOW_RECALL_H
#define STOW_RECALL_H

#include "index_cache.h"
#include "source.h"

struct recall;

struct recall_callbacks {
    void *data;
    /* As source_callbacks: to be answered by recall_give. */
    void (*on_need)(void *data, uint32_t file, const char *path);
    /* Once. source is the callee's; NULL: nothing to be recalled, and master_fd the callee's again. */
    void (*on_done)(void *data, struct source *source, int master_fd);
};

/* master_fd is the recall's from here on, also on failure (STOW_NOMEM). reader: path of framestow-reader. */
int recall_start(struct recall **recall, uv_loop_t *loop, const char *folder, const char *reader,
                 int master_fd, const struct source_options *options,
                 const struct recall_callbacks *callbacks);
void recall_give(struct recall *recall, uint32_t file, int fd, const char *path, int errno_value);
/* No callback runs after this. */
void recall_cancel(struct recall *recall);

/* Keep what the reader said of this source, in the background. */
void recall_keep(uv_loop_t *loop, const char *folder, const char *reader,
                 const struct source_options *options, const struct source *source);

/* What is under way on the pool. Zero before the loop ends. */
unsigned recall_count(void);

#endif
