/* SPDX-License-Identifier: Apache-2.0
 *
 * index_cache: indexes of sources, kept in the state folder, so that a source that is loaded again need not be indexed again.
 *
 * An entry is what framestow-reader said, with the files that it asked for, each by its name in the link and by what tells that
 * it is still the same: device, inode, size, time of change, or the error that it could not be opened with. Whoever loads gives
 * the files all the same; only where every one is as it was is the entry used, and then it is checked as if the reader had
 * just said it. An entry of another build, of another master, cut, or damaged (XXH3 over all of it) is as good as none.
 *
 * The folder never has more than INDEX_CACHE_ENTRIES entries or INDEX_CACHE_BYTES; the oldest go. Entries are written beside and renamed.
 * No function here needs the loop; each is called on a thread of the pool. */
#ifndef STOW_INDEX_CACHE_H
#define STOW_INDEX_CACHE_H

#include "reader_msg.h"

#include "error.h"

#define INDEX_CACHE_ENTRIES 1000u
#define INDEX_CACHE_BYTES (UINT64_C(2) << 30)

/* What tells one index from another. */
struct index_key {
    const char *build;          /* of the reader: what another one said may be read otherwise */
    const char *path, *dataset; /* dataset "": found */
    bool allow_gaps;
    uint64_t dev, ino, size; /* of the master */
    int64_t mtime_ns;
};

struct index_file {
    const char *name; /* as the reader asked for it; of the master "" */
    int32_t code;     /* 0, an errno or READER_NOT_REGULAR: then there is nothing more */
    uint32_t reserved;
    uint64_t dev, ino, size;
    int64_t mtime_ns;
};

struct index_entry {
    struct reader_shape shape;
    struct index_file *files; /* [n_files], the master first */
    size_t n_files;
    size_t
        n_spare; /* of these, the last ones: looked for or into in vain, none of the acquisition's */
    const char **warnings; /* [n_warnings] */
    size_t n_warnings;
    const void *bytes; /* [n_bytes] what the reader's memfd held, 16-byte aligned */
    size_t n_bytes;
    void *memory; /* that all of it lies in; NULL: others' */
    size_t memory_bytes;
};

/* The entry of this key, to be let go of by index_cache_free. 0; STOW_UNKNOWN: there is none, or none that can be used; another
 * code: the folder or the file cannot be read, err says why. */
int index_cache_read(const char *folder, const struct index_key *key, struct index_entry *entry,
                     struct stow_error *err);
void index_cache_free(struct index_entry *entry);

/* Keep it, in place of what was there. err says why it cannot be; nothing is left behind then. */
int index_cache_write(const char *folder, const struct index_key *key,
                      const struct index_entry *entry, struct stow_error *err);

#endif
