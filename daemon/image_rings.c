/* SPDX-License-Identifier: Apache-2.0 */
#include "image_rings.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define READ_FRAMES 4096u /* at once: results stay in the cache until they are in the file */

static struct ring_tables *tables_of(const struct image *image)
{
    return &image->resident->store->rings;
}

static struct ring_key key_of(const struct image *image, const struct image_annulus *annulus)
{
    return (struct ring_key){.owner = image->resident,
                             .center_y = annulus->center_y,
                             .center_x = annulus->center_x,
                             .flagged = image->all.ask.flagged};
}

static bool edges_of(const struct image_annulus *annulus, const struct ring_extent *extent,
                     uint32_t *inner, uint32_t *outer)
{
    return ring_edge(extent, annulus->inner, inner) && ring_edge(extent, annulus->outer, outer);
}

/* ---- what rings can answer ---- */

static bool note(struct image *image, const char *why)
{
    error_set(&image->no_rings, STOW_UNSUPPORTED, "%s", why);
    return false;
}

/* Annuli that are none go the other way, which says what is wrong with them. */
static bool fits(struct image *image)
{
    const struct frame_shape *shape = &image->resident->shape;
    const struct image_ask *ask = &image->all.ask;
    struct ring_extent extent;
    uint32_t edge;
    if (ask->kind != IMAGE_SUM || ask->n_masks || ask->weights != WEIGHT_U8)
        return note(image, "ring sums answer annuli, not masks");
    if (shape->kind != PIXEL_UNSIGNED || shape->elem_bytes > 4 || shape->n_elems >> 31)
        return note(image, "ring sums are kept of unsigned pixels of up to 32 bits");
    for (uint32_t i = 0; i < ask->n_annuli; i++) {
        const struct image_annulus *a = &ask->annuli[i];
        if (!(a->inner < a->outer) || !ring_extent(&extent, a->center_y, a->center_x,
                                                   image->resident->det_y, image->resident->det_x))
            return note(image, "there are more rings about this centre than a table holds");
        if (!edges_of(a, &extent, &edge, &edge))
            return note(image, "ring sums answer annuli of whole radii");
    }
    return true;
}

/* Whether a table's file is of the size of this image's results. */
static bool suits_spare(const struct image *image)
{
    return image->all.n_sums == 1 && image->all.n == image->tables[0]->n_frames &&
           image->tables[0]->spare_bytes;
}

static bool has_spare(const struct image *image)
{
    return suits_spare(image) && image->tables[0]->n_spares;
}

bool image_rings_take(struct image *image)
{
    bool all = fits(image);
    for (uint32_t i = 0; all && i < image->all.ask.n_annuli; i++) {
        struct ring_key key = key_of(image, &image->all.ask.annuli[i]);
        if (image->tables[i])
            continue;
        image->tables[i] = ring_tables_find(tables_of(image), &key);
        if (image->tables[i])
            ring_table_use(tables_of(image), image->tables[i]);
        else
            all = false;
    }
    if (all && image->fd < 0 && has_spare(image)) {
        image->fd = image->tables[0]->spares[--image->tables[0]->n_spares];
    }
    return all;
}

/* ---- the file of the next answer ---- */

struct refill {
    uv_work_t work;
    struct resident *resident;
    struct ring_table *table;
    int fd;
};

/* Pages are had, but those of the sums not cleared: an answer writes all of them. */
static void refill_run(uv_work_t *work)
{
    static const uint8_t zeros[READ_FRAMES];
    struct refill *refill = work->data;
    const off_t n = (off_t)refill->table->n_frames, sums = n * (off_t)sizeof(uint64_t);
    refill->fd = memfd_create("framestow results", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    bool good = refill->fd >= 0 && !ftruncate(refill->fd, sums + n) &&
                !fallocate(refill->fd, 0, 0, sums + n);
    for (off_t at = 0; good && at < n; at += READ_FRAMES) {
        size_t bytes = n - at < READ_FRAMES ? (size_t)(n - at) : READ_FRAMES;
        good = pwrite(refill->fd, zeros, bytes, sums + at) == (ssize_t)bytes;
    }
    if (!good && refill->fd >= 0) {
        close(refill->fd);
        refill->fd = -1;
    }
}

static void on_refilled(uv_work_t *work, int status)
{
    struct refill *refill = work->data;
    struct resident *resident = refill->resident;
    (void)status;
    refill->table->n_refilling--;
    if (refill->fd >= 0)
        refill->table->spares[refill->table->n_spares++] = refill->fd;
    ring_table_give(&resident->store->rings, refill->table);
    resident->n_streams--;
    resident_unref(resident);
    free(refill);
}

static void start_refill(struct image *image, struct ring_table *table)
{
    struct refill *refill = malloc(sizeof(*refill));
    if (!refill)
        return; /* the next answer makes its file itself */
    *refill = (struct refill){
        .work = {.data = refill}, .resident = image->resident, .table = table, .fd = -1};
    table->n_refilling++;
    ring_table_use(tables_of(image), table);
    resident_ref(image->resident);
    image->resident->n_streams++;
    uv_queue_work(image->images->loop, &refill->work, refill_run, on_refilled);
}

void image_rings_free(struct image *image)
{
    struct ring_table *first = image->tables[0];
    bool used = image->by_rings && !image->err.code && suits_spare(image);
    for (unsigned n = first ? first->n_spares + first->n_refilling : 0; used && n < RING_SPARES;
         n++)
        start_refill(image, first);
    for (uint32_t i = 0; i < SUMS_MAX_MASKS; i++) {
        if (image->tables[i])
            ring_table_give(tables_of(image), image->tables[i]);
    }
    if (image->all.table)
        ring_table_give(tables_of(image), image->all.table);
}

/* ---- making one ---- */

/* Whether a frame's counts may add up to 2^32: what the type of the pixels allows rules that out nearly always; else it is
 * looked at what there really is. */
static bool are_wide(const struct resident *resident, bool flagged)
{
    const struct frame_stats *stats = resident->sums.stats;
    uint64_t most = UINT64_MAX >> (64 - 8 * resident->shape.elem_bytes);
    if (resident->shape.n_elems * most <= UINT32_MAX)
        return false;
    for (uint64_t i = 0; stats && i < resident->n_frames; i++) {
        if ((flagged ? stats[i].all_total : stats[i].total) > UINT32_MAX)
            return true;
    }
    return !stats;
}

/* The table of a centre is made, or is not. */
static void on_made(void *data, const struct image_answer *answer, const struct stow_error *err)
{
    struct image *image = data;
    struct image *made = image->making;
    image->making = NULL;
    if (answer) /* unless somebody else made the same meanwhile */
        made->all.table->ready = !ring_tables_find(tables_of(image), &made->all.table->key);
    else
        note(image, err->text);
    bool next = answer && !image->abandoned && !image_rings_take(image) && image_rings_make(image);
    if (!next)
        image_go_on(image);
}

static int start(struct image *image, const struct image_annulus *annulus, struct stow_error *err)
{
    struct resident *resident = image->resident;
    struct image_ask ask = {.kind = IMAGE_RINGS,
                            .flagged = image->all.ask.flagged,
                            .masks_fd = -1,
                            .annuli = {*annulus}};
    struct ring_key key = key_of(image, annulus);
    struct ring_extent extent;
    if (!ring_extent(&extent, key.center_y, key.center_x, resident->det_y, resident->det_x))
        return error_set(err, STOW_LIMIT, "too many rings");
    struct image *making = image_new(image->images, resident, &ask, on_made, image);
    if (!making)
        return error_set(err, STOW_NOMEM, "no memory for a request");
    int rc = ring_tables_add(&making->all.table, tables_of(image), &key, &extent,
                             resident->n_frames, are_wide(resident, ask.flagged), err);
    if (!rc)
        rc = image_take_memory(making, err);
    if (rc)
        image_free(making);
    else
        image->making = making;
    return rc;
}

bool image_rings_make(struct image *image)
{
    struct stow_error err;
    if (!fits(image))
        return false;
    for (uint32_t i = 0; i < image->all.ask.n_annuli; i++) {
        if (image->tables[i])
            continue;
        if (!start(image, &image->all.ask.annuli[i], &err))
            return true;
        return note(image, err.text);
    }
    return false;
}

/* ---- answering ---- */

static int put(const struct image *image, const void *from, size_t bytes, uint64_t at,
               struct stow_error *err)
{
    ssize_t n = pwrite(image->fd, from, bytes, (off_t)at);
    return n == (ssize_t)bytes
               ? 0
               : error_errno(err, n < 0 ? errno : ENOSPC, "room for %zu bytes of results", bytes);
}

static int put_sums(const struct image *image, uint32_t sum, uint64_t begin, uint64_t n,
                    struct stow_error *err)
{
    uint64_t values[READ_FRAMES];
    const struct image_work *all = &image->all;
    const struct ring_table *table = image->tables[sum];
    const uint64_t *ids = all->ask.ids ? all->ask.ids + begin : NULL;
    uint32_t inner = 0, outer = 0;
    edges_of(&all->ask.annuli[sum], &table->extent, &inner, &outer);
    ring_table_read(values, table, inner, outer, ids, all->first + begin, n);
    return put(image, values, n * sizeof(values[0]), (sum * all->n + begin) * sizeof(values[0]),
               err);
}

/* The new file is zeros, which is right where there are no bad frames. */
static int put_codes(const struct image *image, uint64_t begin, uint64_t n, uint64_t *n_bad,
                     struct stow_error *err)
{
    uint8_t codes[READ_FRAMES];
    const struct image_work *all = &image->all;
    if (all->resident->settled && !all->resident->forms[STOW_FORM_BAD])
        return 0;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t id = all->ask.ids ? all->ask.ids[begin + i] : all->first + begin + i;
        const struct frame *frame = &all->resident->frames[id];
        bool bad = frame->form == STOW_FORM_BAD;
        codes[i] = bad ? frame->code : 0;
        *n_bad += bad;
    }
    return put(image, codes, n, all->n_sums * all->n * sizeof(uint64_t) + begin, err);
}

/* Written, not mapped: the system then need not clear pages first, nor meet a fault for each (half the time, 2.4 MB on
 * Linux 6.18). */
int image_rings_answer(const struct image *image, uint64_t begin, uint64_t end, uint64_t *n_bad,
                       struct stow_error *err)
{
    int rc = 0;
    for (uint64_t at = begin; !rc && at < end; at += READ_FRAMES) {
        uint64_t n = end - at < READ_FRAMES ? end - at : READ_FRAMES;
        for (uint32_t sum = 0; !rc && sum < image->all.n_sums; sum++)
            rc = put_sums(image, sum, at, n, err);
        if (!rc)
            rc = put_codes(image, at, n, n_bad, err);
    }
    return rc;
}
