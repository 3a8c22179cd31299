/* SPDX-License-Identifier: Apache-2.0
 *
 * What of a STREAM request and its reply is about views, and MASK. */
#include "commands_view.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef unsigned long long ull;

_Static_assert((int)VIEW_ZERO == STOW__MASK_CORRECTION__MASK_ZERO &&
                   (int)VIEW_MEDIAN == STOW__MASK_CORRECTION__MASK_MEDIAN,
               "numbers of the wire");

/* ---- views --------------------------------------------------------------------------------------- */

int take_view(struct view_ask *ask, const Stow__View *view, struct stow_error *err)
{
    if (view->mask_correction > STOW__MASK_CORRECTION__MASK_MEDIAN)
        return error_set(err, STOW_INVALID, "no such mask correction: %d",
                         (int)view->mask_correction);
    if (strlen(view->dtype) >= sizeof(ask->dtype))
        return error_set(err, STOW_INVALID, "a view has no dtype \"%.16s\"", view->dtype);
    *ask = (struct view_ask){.correction = (enum view_correction)view->mask_correction,
                             .crop_y = view->crop_y,
                             .crop_x = view->crop_x,
                             .crop_h = view->crop_h,
                             .crop_w = view->crop_w,
                             .bin = view->bin,
                             .root = view->sqrt,
                             .pad_y = view->pad_y,
                             .pad_x = view->pad_x,
                             .shift = view->fftshift};
    strcpy(ask->dtype, view->dtype);
    return 0;
}

void put_view(Stow__View *to, struct view_plan *plan)
{
    const struct view *view = &plan->view;
    stow__view__init(to);
    to->mask_correction = (Stow__MaskCorrection)view->correction;
    to->crop_y = view->crop_y;
    to->crop_x = view->crop_x;
    to->crop_h = view->crop_h;
    to->crop_w = view->crop_w;
    to->bin = view->bin;
    to->sqrt = view->out == VIEW_ROOT;
    to->dtype = plan->dtype;
    to->pad_y = view->size_y;
    to->pad_x = view->size_x;
    to->fftshift = plan->shifted;
    to->n_flagged = plan->n_flagged;
    to->n_kept = plan->n_kept;
    to->last_bin_y = view_bin_length(view->bins_y - 1, view->bins_y, view->bin, view->crop_h);
    to->last_bin_x = view_bin_length(view->bins_x - 1, view->bins_x, view->bin, view->crop_w);
    to->at_y = view->at_y;
    to->at_x = view->at_x;
}

/* ---- a region of the scan ------------------------------------------------------------------------ */

static int check_region(const Stow__Region *region, const struct scan *scan,
                        const struct name *name, struct stow_error *err)
{
    if (!scan_sound(scan))
        return error_set(err, STOW_INVALID,
                         "%s has no scan shape, so that a region of it says nothing: load it with "
                         "--scan",
                         name->text);
    if (region->y_begin >= region->y_end || region->x_begin >= region->x_end)
        return error_set(err, STOW_INVALID,
                         "a region of rows %llu:%llu, columns %llu:%llu is empty",
                         (ull)region->y_begin, (ull)region->y_end, (ull)region->x_begin,
                         (ull)region->x_end);
    if (region->y_end > scan->height || region->x_end > scan->width)
        return error_set(
            err, STOW_RANGE,
            "rows %llu:%llu, columns %llu:%llu are outside of the scan of %s, which has "
            "%llux%llu",
            (ull)region->y_begin, (ull)region->y_end, (ull)region->x_begin, (ull)region->x_end,
            name->text, (ull)scan->height, (ull)scan->width);
    return 0;
}

/* Frames are in the order of positions: the last one of the region tells whether all were acquired. */
static int check_acquired(const uint64_t *ids, uint64_t n, const struct scan *scan,
                          const struct name *name, struct stow_error *err)
{
    const uint64_t n_frames = name->resident->n_frames;
    uint64_t i = n;
    while (i > 0 && ids[i - 1] >= n_frames)
        i--;
    if (i == n)
        return 0;
    const uint64_t at = ids[i] - scan->offset, line = scan->width + scan->skip;
    return error_set(
        err, STOW_UNWRITTEN,
        "position %llu,%llu of %s was not acquired: it would be frame %llu, and there are "
        "%llu frames",
        (ull)(at / line), (ull)(at % line), name->text, (ull)ids[i], (ull)n_frames);
}

int take_region(uint64_t **ids, size_t *n_ids, const Stow__Region *region, const struct name *name,
                uint64_t most, struct stow_error *err)
{
    const struct scan scan = name_scan(name);
    int rc = check_region(region, &scan, name, err);
    if (rc)
        return rc;
    const uint64_t rows = region->y_end - region->y_begin,
                   columns = region->x_end - region->x_begin;
    if (rows > most / columns)
        return error_set(err, STOW_LIMIT, "a region of %llux%llu frames: at most %llu in all",
                         (ull)rows, (ull)columns, (ull)most);
    uint64_t *list = malloc(rows * columns * sizeof(*list)), n = 0;
    if (!list)
        return error_set(err, STOW_NOMEM, "no memory for %llu ids", (ull)(rows * columns));
    for (uint64_t y = region->y_begin; y < region->y_end; y++) {
        for (uint64_t x = region->x_begin; x < region->x_end; x++)
            list[n++] = scan_frame(&scan, y, x);
    }
    rc = check_acquired(list, n, &scan, name, err);
    if (rc) {
        free(list);
        return rc;
    }
    *ids = list;
    *n_ids = n;
    return 0;
}

/* ---- the mask ------------------------------------------------------------------------------------ */

/* A sealed memfd of a byte for each pixel. */
static int make_mask(const struct resident *resident, int *fd_out, struct stow_error *err)
{
    const uint8_t *flags = resident->sums.flags;
    const size_t n = resident->shape.n_elems;
    int fd = memfd_create("framestow mask", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    uint8_t *at = MAP_FAILED;
    if (fd < 0 || ftruncate(fd, (off_t)n))
        goto failed;
    if (n && flags) {
        at = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (at == MAP_FAILED)
            goto failed;
        for (size_t i = 0; i < n; i++)
            at[i] = flags[i] != 0;
        munmap(at, n);
    }
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL))
        goto failed;
    *fd_out = fd;
    return 0;
failed:
    error_errno(err, errno, "room for a mask of %zu pixels", n);
    if (fd >= 0)
        close(fd);
    return err->code;
}

void do_mask(struct session *session, const struct request *request)
{
    struct stow_error err;
    int fd = -1;
    struct name *name = name_in_memory(session, &request->body->mask->name, &err);
    if (!name || make_mask(name->resident, &fd, &err)) {
        session_error(session, request->body->id, &err);
        return;
    }
    const struct resident *resident = name->resident;
    Stow__MaskReply mask = STOW__MASK_REPLY__INIT;
    Stow__Reply reply = STOW__REPLY__INIT;
    mask.n_flagged = resident->sums.n_flagged;
    mask.detector_y = resident->det_y;
    mask.detector_x = resident->det_x;
    reply.body_case = STOW__REPLY__BODY_MASK;
    reply.mask = &mask;
    session_reply(session, request->body->id, &reply, &fd, 1);
    close(fd);
}
