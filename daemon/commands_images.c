/* SPDX-License-Identifier: Apache-2.0
 *
 * SUM, MEAN, COM: what is added up over an acquisition. */
#include "commands.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void forget(struct session_image *i)
{
    struct session_image **at = &i->session->images;
    while (*at != i)
        at = &(*at)->next;
    *at = i->next;
    i->session->n_images--;
    free(i);
}

static void put_sum(Stow__SumReply *sum, const struct session_image *i,
                    const struct image_answer *answer)
{
    stow__sum_reply__init(sum);
    sum->dtype = (char *)i->dtype;
    sum->n_sums = i->n_sums;
    sum->n_frames = answer->n_frames;
    sum->n_flagged = answer->n_flagged;
    sum->n_bad = answer->n_bad;
    sum->by_rings = answer->by_rings;
    sum->rings_note = (char *)answer->rings_note;
}

static void on_image(void *data, const struct image_answer *answer, const struct stow_error *err)
{
    struct session_image *i = data;
    struct session *session = i->session;
    Stow__Reply reply = STOW__REPLY__INIT;
    Stow__SumReply sum;
    Stow__MeanReply mean = STOW__MEAN_REPLY__INIT;
    Stow__ComReply com = STOW__COM_REPLY__INIT;
    if (err) {
        session_error(session, i->request, err);
        forget(i);
        return;
    }
    if (i->kind == IMAGE_SUM) {
        put_sum(&sum, i, answer);
        reply.body_case = STOW__REPLY__BODY_SUM;
        reply.sum = &sum;
    } else if (i->kind == IMAGE_MEAN) {
        mean.dtype = (char *)i->dtype;
        mean.n_frames = answer->n_frames;
        mean.n_flagged = answer->n_flagged;
        mean.n_bad = answer->n_bad;
        reply.body_case = STOW__REPLY__BODY_MEAN;
        reply.mean = &mean;
    } else {
        com.dtype = (char *)i->dtype;
        com.n_frames = answer->n_frames;
        com.n_flagged = answer->n_flagged;
        com.n_bad = answer->n_bad;
        reply.body_case = STOW__REPLY__BODY_COM;
        reply.com = &com;
    }
    session_reply(session, i->request, &reply, &answer->fd, 1);
    forget(i);
    session_flush(session); /* before what was used for it is let go of, which takes its time */
}

/* ---- what is asked for ---- */

/* The frames; ids are in the message, or in what descriptors are left. */
static int take_frames(struct image_ask *ask, const struct request *request, size_t fds_used,
                       const Stow__Selection *frames, struct stow_error *err)
{
    struct request rest = {.body = request->body,
                           .fds = request->fds + fds_used,
                           .n_fds = request->n_fds - fds_used};
    if (!frames || !frames->total_ids) {
        if (rest.n_fds || (frames && frames->n_ids))
            return error_set(err, STOW_INVALID, "ids or descriptors that total_ids does not count");
        ask->first = frames ? frames->first : 0;
        ask->count = frames ? frames->count : 0;
        return 0;
    }
    ask->n_ids = frames->total_ids;
    return take_ids(&rest, frames->ids, frames->n_ids, frames->total_ids, IMAGES_MAX_IDS, &ask->ids,
                    err);
}

static int take_weights(const char *text, enum weight_kind *kind, struct stow_error *err)
{
    static const char *const names[] = {"u1", "i4", "f8"};
    for (int i = 0; i < 3; i++) {
        if (strcmp(text, names[i]) == 0) {
            *kind = (enum weight_kind)i;
            return 0;
        }
    }
    return error_set(err, STOW_INVALID, "weights are u1, i4 or f8, not \"%s\"", text);
}

static int take_sum(struct image_ask *ask, const struct request *request, struct stow_error *err)
{
    const Stow__Sum *sum = request->body->sum;
    size_t n_sums = (size_t)sum->n_masks + sum->n_annuli;
    bool by_fd = sum->n_masks != 0;
    if (!n_sums || n_sums > SUMS_MAX_MASKS || sum->n_masks > SUMS_MAX_MASKS)
        return error_set(err, STOW_INVALID, "%zu masks and annuli: 1 to %u go at once", n_sums,
                         SUMS_MAX_MASKS);
    if (by_fd && !request->n_fds)
        return error_set(err, STOW_INVALID, "masks without the descriptor that has them");
    ask->flagged = sum->flagged;
    ask->keep_rings = sum->keep_rings;
    ask->n_masks = sum->n_masks;
    ask->n_annuli = (uint32_t)sum->n_annuli;
    for (size_t i = 0; i < sum->n_annuli; i++) {
        const Stow__Annulus *a = sum->annuli[i];
        ask->annuli[i] = (struct image_annulus){a->inner, a->outer, a->center_y, a->center_x};
    }
    int rc = by_fd || *sum->weights ? take_weights(sum->weights, &ask->weights, err) : 0;
    if (!rc)
        rc = take_frames(ask, request, by_fd, sum->frames, err);
    if (!rc && by_fd) {
        ask->masks_fd = request->fds[0];
        request->fds[0] = -1;
    }
    return rc;
}

static int take_ask(struct image_ask *ask, const ProtobufCBinaryData **name,
                    const struct request *request, struct stow_error *err)
{
    const Stow__Request *body = request->body;
    if (ask->kind == IMAGE_SUM) {
        *name = &body->sum->name;
        return take_sum(ask, request, err);
    }
    if (ask->kind == IMAGE_MEAN) {
        *name = &body->mean->name;
        ask->flagged = body->mean->flagged;
        return take_frames(ask, request, 0, body->mean->frames, err);
    }
    *name = &body->com->name;
    ask->flagged = body->com->flagged;
    return take_frames(ask, request, 0, body->com->frames, err);
}

static int start(struct session_image *i, struct image_ask *ask, const struct request *request,
                 struct stow_error *err)
{
    struct session *session = i->session;
    const ProtobufCBinaryData *text;
    if (session->n_images > SESSION_MAX_IMAGES)
        return error_set(err, STOW_LIMIT,
                         "this connection waits for %u sums already, the most that one may",
                         SESSION_MAX_IMAGES);
    int rc = take_ask(ask, &text, request, err);
    if (rc)
        return rc;
    struct name *name = name_in_memory(session, text, err);
    if (!name)
        return err->code;
    i->kind = ask->kind;
    i->dtype = image_dtype(ask, name->resident);
    i->n_sums = ask->n_masks + ask->n_annuli;
    return image_start(&i->image, &session->server->images, name->resident, name->text, ask,
                       on_image, i, err);
}

static void begin(struct session *session, const struct request *request, enum image_kind kind)
{
    struct stow_error err;
    struct image_ask ask = {.kind = kind, .masks_fd = -1};
    struct session_image *i = calloc(1, sizeof(*i));
    if (!i) {
        session_close(session, "no memory");
        return;
    }
    i->session = session;
    i->request = request->body->id;
    i->next = session->images;
    session->images = i;
    session->n_images++;
    if (!start(i, &ask, request, &err))
        return; /* perhaps answered already */
    free(ask.ids);
    if (ask.masks_fd >= 0)
        close(ask.masks_fd);
    forget(i);
    session_error(session, request->body->id, &err);
}

void do_sum(struct session *session, const struct request *request)
{
    begin(session, request, IMAGE_SUM);
}

void do_mean(struct session *session, const struct request *request)
{
    begin(session, request, IMAGE_MEAN);
}

void do_com(struct session *session, const struct request *request)
{
    begin(session, request, IMAGE_COM);
}
