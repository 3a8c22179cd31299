/* SPDX-License-Identifier: Apache-2.0 */
#include "views.h"

#include <string.h>

_Static_assert((int)STOW_MASK_ZERO == STOW__MASK_CORRECTION__MASK_ZERO &&
                   (int)STOW_MASK_MEDIAN == STOW__MASK_CORRECTION__MASK_MEDIAN,
               "numbers of the wire");

static bool any(const uint64_t *numbers, size_t n)
{
    bool found = false;
    for (size_t i = 0; i < n; i++)
        found = found || numbers[i];
    return found;
}

static bool is_view(const struct stow_view *v)
{
    return v->mask_correction || any(v->crop, 4) || v->bin > 1 || v->sqrt || v->dtype ||
           any(v->pad, 2) || v->fftshift;
}

void view_put(Stow__Stream *request, Stow__View *view, Stow__Region *region,
              const struct stow_view *from)
{
    stow__view__init(view);
    stow__region__init(region);
    view->mask_correction = (Stow__MaskCorrection)from->mask_correction;
    view->crop_y = from->crop[0];
    view->crop_x = from->crop[1];
    view->crop_h = from->crop[2];
    view->crop_w = from->crop[3];
    view->bin = from->bin;
    view->sqrt = from->sqrt != 0;
    if (from->dtype)
        view->dtype = (char *)(uintptr_t)from->dtype; /* protobuf-c does not write to it */
    view->pad_y = from->pad[0];
    view->pad_x = from->pad[1];
    view->fftshift = from->fftshift != 0;
    region->y_begin = from->region[0];
    region->y_end = from->region[1];
    region->x_begin = from->region[2];
    region->x_end = from->region[3];
    request->view = is_view(from) ? view : NULL;
    request->region = any(from->region, 4) ? region : NULL;
}

int view_take(struct stow_stream_info *info, char *dtype, size_t room,
              const Stow__StreamReply *reply, struct stow_error *err)
{
    const Stow__View *view = reply->view;
    if (strlen(reply->dtype) >= room)
        return error_set(err, STOW_PROTOCOL, "frames of an unknown dtype");
    strcpy(dtype, reply->dtype);
    info->dtype = dtype;
    info->frame[0] = reply->detector_y;
    info->frame[1] = reply->detector_x;
    if (!view)
        return 0;
    if (view->mask_correction > STOW__MASK_CORRECTION__MASK_MEDIAN)
        return error_set(err, STOW_PROTOCOL, "an unknown mask correction, %d",
                         (int)view->mask_correction);
    info->view =
        (struct stow_view){.mask_correction = (enum stow_mask_correction)view->mask_correction,
                           .crop = {view->crop_y, view->crop_x, view->crop_h, view->crop_w},
                           .bin = view->bin,
                           .sqrt = view->sqrt,
                           .dtype = dtype,
                           .pad = {view->pad_y, view->pad_x},
                           .fftshift = view->fftshift};
    info->n_flagged = view->n_flagged;
    info->n_kept = view->n_kept;
    info->last_bin[0] = view->last_bin_y;
    info->last_bin[1] = view->last_bin_x;
    info->pad_at[0] = view->at_y;
    info->pad_at[1] = view->at_x;
    return 0;
}
