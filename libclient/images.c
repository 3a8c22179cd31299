/* SPDX-License-Identifier: Apache-2.0
 *
 * images: sums over an acquisition, and its mask. Results come in a sealed memfd, and are given out as they lie there: each object
 * is one heap block that owns a mapping. */
#include "ring.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A sum over a long acquisition on a host of few cores takes its time. */
#define SUM_NS (3600 * UINT64_C(1000000000))
#define MAX_SUMS 8u

_Static_assert((int)STOW_WEIGHTS_U8 == 0 && (int)STOW_WEIGHTS_F64 == 2, "rows of the tables below");
static const char *const weight_names[] = {"u1", "i4", "f8"};
static const size_t weight_bytes[] = {1, 4, 8};
static const char *const value_names[] = {"u8", "i8", "f8"};

/* ---- results --------------------------------------------------------------------------------------- */

struct results {
    void *data; /* NULL: there are none */
    size_t bytes;
};

struct sums {
    struct stow_sums head;
    struct results results;
    int32_t *status;
    char *note;
};

struct mean {
    struct stow_mean head;
    struct results results;
};

struct com {
    struct stow_com head;
    struct results results;
};

struct mask {
    struct stow_mask head;
    struct results results;
};

/* Map them; *bytes are as many as the reply says. */
static int map_results(struct results *results, const struct answer *answer, uint64_t bytes,
                       struct stow_error *err)
{
    struct stat st;
    if (answer->n_fds != 1)
        return error_set(err, STOW_PROTOCOL, "an answer without the memory of its results");
    if (fstat(answer->fds[0], &st))
        return error_errno(err, errno, "looking at results");
    if (st.st_size < 0 || (uint64_t)st.st_size < bytes || bytes > SIZE_MAX / 2 ||
        !(fcntl(answer->fds[0], F_GET_SEALS) & F_SEAL_SHRINK))
        return error_set(err, STOW_PROTOCOL, "results of %llu bytes in a memory of %lld",
                         (unsigned long long)bytes, (long long)st.st_size);
    *results = (struct results){.bytes = bytes};
    if (!bytes)
        return 0;
    /* Not populated: that goes page by page, while a touch maps 16 at once. */
    void *data = mmap(NULL, bytes, PROT_READ, MAP_SHARED, answer->fds[0], 0);
    if (data == MAP_FAILED)
        return error_errno(err, errno, "mapping %llu bytes of results", (unsigned long long)bytes);
    results->data = data;
    return 0;
}

static void unmap_results(struct results *results)
{
    if (results->data)
        munmap(results->data, results->bytes);
}

/* count values of so many bytes each; false: nobody can have so many. */
static bool fits(uint64_t count, uint64_t each, uint64_t *bytes)
{
    return !__builtin_mul_overflow(count, each, bytes);
}

static int no_memory(struct stow_client *client)
{
    return error_set(&client->error, STOW_NOMEM, "no memory for the daemon's answer");
}

/* ---- what is asked for ----------------------------------------------------------------------------- */

/* A selection as it travels; its list is closed by ring_ids_close. */
static int put_selection(Stow__Selection *to, struct ring_ids *list,
                         const struct stow_selection *from, struct stow_error *err)
{
    stow__selection__init(to);
    *list = (struct ring_ids){.fd = -1};
    if (!from)
        return 0;
    if (!from->n_ids) {
        to->first = from->first;
        to->count = from->count;
        return 0;
    }
    if (!from->ids || from->first || from->count)
        return error_set(err, STOW_INVALID, "frames are a range or a list of ids, not both");
    int rc = ring_ids_open(list, from->ids, from->n_ids, err);
    to->ids = list->here;
    to->n_ids = list->n_here;
    to->total_ids = list->n;
    return rc;
}

/* Ask, with the descriptors that are there. */
static int ask(struct stow_client *client, Stow__Request *request, int masks_fd,
               const struct ring_ids *list, Stow__Reply__BodyCase kind, struct answer *answer)
{
    int fds[2];
    size_t n_fds = 0;
    if (masks_fd >= 0)
        fds[n_fds++] = masks_fd;
    if (list->fd >= 0)
        fds[n_fds++] = list->fd;
    return client_ask_within(client, request, fds, n_fds, kind, answer, SUM_NS);
}

/* The name as one of ours; NULL: there is no such. A daemon of before says nothing of sums that are uint64. */
static const char *value_name(const char *dtype)
{
    const char *found = *dtype ? NULL : value_names[0];
    for (size_t i = 0; i < 3; i++) {
        if (strcmp(dtype, value_names[i]) == 0)
            found = value_names[i];
    }
    return found;
}

/* ---- sums ------------------------------------------------------------------------------------------ */

static int check_options(const struct stow_sum_options *o, struct stow_error *err)
{
    size_t n = o->n_masks + o->n_annuli;
    if (o->n_masks > MAX_SUMS || o->n_annuli > MAX_SUMS || n < 1 || n > MAX_SUMS)
        return error_set(err, STOW_INVALID, "%zu masks and %zu annuli: 1 to %u go at once",
                         o->n_masks, o->n_annuli, MAX_SUMS);
    if ((o->n_masks && !o->masks) || (o->n_annuli && !o->annuli))
        return error_set(err, STOW_INVALID, "masks or annuli that are NULL");
    if ((unsigned)o->weights > STOW_WEIGHTS_F64)
        return error_set(err, STOW_INVALID, "there are no weights of kind %d", (int)o->weights);
    return 0;
}

static int open_masks(struct stow_client *client, const char *name,
                      const struct stow_sum_options *o, int *fd)
{
    struct stow_info *info;
    *fd = -1;
    if (!o->n_masks)
        return 0;
    int rc = stow_info(client, name, &info);
    if (rc)
        return rc;
    size_t bytes = info->detector[0] * info->detector[1] * o->n_masks * weight_bytes[o->weights];
    stow_info_free(info);
    *fd = ring_memfd(o->masks, bytes, "masks", &client->error);
    return *fd < 0 ? *fd : 0;
}

static int put_status(struct sums *sums, const uint8_t *codes)
{
    uint64_t n = sums->head.n_frames;
    sums->status = calloc(n ? n : 1, sizeof(sums->status[0]));
    if (!sums->status)
        return STOW_NOMEM;
    for (uint64_t i = 0; sums->head.n_bad && i < n; i++)
        sums->status[i] = -(int32_t)codes[i];
    sums->head.status = sums->status;
    return 0;
}

static int take_sums(struct stow_client *client, const struct answer *answer, size_t n_sums,
                     struct stow_sums **out)
{
    const Stow__SumReply *reply = answer->reply->sum;
    struct stow_error *err = &client->error;
    struct sums *sums = calloc(1, sizeof(*sums));
    uint64_t bytes = 0;
    if (!sums)
        return no_memory(client);
    sums->head.dtype = value_name(reply->dtype);
    int rc = 0;
    if (!sums->head.dtype || reply->n_sums != n_sums ||
        !fits(reply->n_frames, 8 * n_sums + 1, &bytes))
        rc = error_set(err, STOW_PROTOCOL, "sums of another kind than was asked for");
    if (!rc)
        rc = map_results(&sums->results, answer, bytes, err);
    if (!rc) {
        sums->head.values = sums->results.data;
        sums->head.n_sums = n_sums;
        sums->head.n_frames = reply->n_frames;
        sums->head.n_flagged = reply->n_flagged;
        sums->head.n_bad = reply->n_bad;
        sums->head.by_rings = reply->by_rings;
        sums->head.rings_note = sums->note = strdup(reply->rings_note);
        if (!sums->note ||
            put_status(sums, (const uint8_t *)sums->results.data + 8 * n_sums * reply->n_frames))
            rc = no_memory(client);
    }
    if (rc)
        stow_sums_free(&sums->head);
    else
        *out = &sums->head;
    return rc;
}

static int ask_sum(struct stow_client *client, const char *name, const struct stow_sum_options *o,
                   struct stow_sums **sums)
{
    Stow__Annulus annuli[MAX_SUMS], *rows[MAX_SUMS];
    Stow__Selection selection;
    Stow__Sum sum = STOW__SUM__INIT;
    Stow__Request request = STOW__REQUEST__INIT;
    struct ring_ids list;
    struct answer answer;
    int masks_fd = -1;
    sum.name = client_bytes(name, strlen(name));
    for (size_t i = 0; i < o->n_annuli; i++) {
        stow__annulus__init(&annuli[i]);
        annuli[i].inner = o->annuli[i].inner;
        annuli[i].outer = o->annuli[i].outer;
        annuli[i].center_y = o->annuli[i].center[0];
        annuli[i].center_x = o->annuli[i].center[1];
        rows[i] = &annuli[i];
    }
    sum.annuli = rows;
    sum.n_annuli = o->n_annuli;
    sum.n_masks = (uint32_t)o->n_masks;
    sum.weights = (char *)(uintptr_t)weight_names[o->weights];
    sum.flagged = o->flagged != 0;
    sum.keep_rings = o->keep_rings != 0;
    sum.frames = &selection;
    request.body_case = STOW__REQUEST__BODY_SUM;
    request.sum = &sum;
    int rc = put_selection(&selection, &list, &o->frames, &client->error);
    if (!rc)
        rc = open_masks(client, name, o, &masks_fd);
    if (!rc)
        rc = ask(client, &request, masks_fd, &list, STOW__REPLY__BODY_SUM, &answer);
    if (!rc) {
        rc = take_sums(client, &answer, o->n_masks + o->n_annuli, sums);
        answer_drop(&answer);
    }
    if (masks_fd >= 0)
        close(masks_fd);
    ring_ids_close(&list);
    return rc;
}

int stow_sum(struct stow_client *client, const char *name, const struct stow_sum_options *options,
             struct stow_sums **sums)
{
    struct stow_sum_options o;
    int rc = client_check(client);
    if (!rc)
        rc = client_options(client, &o, sizeof(o), options, options ? options->size : 0);
    if (!rc)
        rc = check_options(&o, &client->error);
    return rc ? rc : ask_sum(client, name, &o, sums);
}

void stow_sums_free(struct stow_sums *head)
{
    struct sums *sums = (struct sums *)head;
    if (!sums)
        return;
    unmap_results(&sums->results);
    free(sums->status);
    free(sums->note);
    free(sums);
}

/* ---- mean ------------------------------------------------------------------------------------------ */

static int take_mean(struct stow_client *client, const struct answer *answer,
                     const uint64_t detector[2], struct stow_mean **out)
{
    const Stow__MeanReply *reply = answer->reply->mean;
    struct mean *mean = calloc(1, sizeof(*mean));
    if (!mean)
        return no_memory(client);
    const char *dtype = value_name(reply->dtype);
    int rc = dtype ? map_results(&mean->results, answer,
                                 detector[0] * detector[1] * sizeof(uint64_t), &client->error)
                   : error_set(&client->error, STOW_PROTOCOL, "sums of an unknown type");
    if (rc) {
        free(mean);
        return rc;
    }
    mean->head = (struct stow_mean){.sums = mean->results.data,
                                    .detector = {detector[0], detector[1]},
                                    .n_frames = reply->n_frames,
                                    .n_flagged = reply->n_flagged,
                                    .n_bad = reply->n_bad,
                                    .dtype = dtype};
    *out = &mean->head;
    return 0;
}

int stow_mean(struct stow_client *client, const char *name, const struct stow_selection *frames,
              int flagged, struct stow_mean **mean)
{
    Stow__Selection selection;
    Stow__Mean body = STOW__MEAN__INIT;
    Stow__Request request = STOW__REQUEST__INIT;
    struct ring_ids list;
    struct answer answer;
    struct stow_info *info;
    if (client_check(client) || stow_info(client, name, &info))
        return client->error.code;
    body.name = client_bytes(name, strlen(name));
    body.flagged = flagged != 0;
    body.frames = &selection;
    request.body_case = STOW__REQUEST__BODY_MEAN;
    request.mean = &body;
    int rc = put_selection(&selection, &list, frames, &client->error);
    if (!rc)
        rc = ask(client, &request, -1, &list, STOW__REPLY__BODY_MEAN, &answer);
    if (!rc) {
        rc = take_mean(client, &answer, info->detector, mean);
        answer_drop(&answer);
    }
    ring_ids_close(&list);
    stow_info_free(info);
    return rc;
}

void stow_mean_free(struct stow_mean *head)
{
    struct mean *mean = (struct mean *)head;
    if (!mean)
        return;
    unmap_results(&mean->results);
    free(mean);
}

/* ---- centre of mass -------------------------------------------------------------------------------- */

static int take_com(struct stow_client *client, const struct answer *answer, struct stow_com **out)
{
    const Stow__ComReply *reply = answer->reply->com;
    struct com *com = calloc(1, sizeof(*com));
    uint64_t bytes = 0;
    if (!com)
        return no_memory(client);
    const char *dtype = value_name(reply->dtype);
    int rc = dtype && fits(reply->n_frames, 3 * sizeof(uint64_t), &bytes)
                 ? map_results(&com->results, answer, bytes, &client->error)
                 : error_set(&client->error, STOW_PROTOCOL,
                             "centres of too many frames, or of unknown totals");
    if (rc) {
        free(com);
        return rc;
    }
    com->head = (struct stow_com){.centers = com->results.data,
                                  .n_frames = reply->n_frames,
                                  .n_flagged = reply->n_flagged,
                                  .n_bad = reply->n_bad,
                                  .dtype = dtype};
    if (com->results.data)
        com->head.totals = (const uint64_t *)com->results.data + 2 * reply->n_frames;
    *out = &com->head;
    return 0;
}

int stow_com(struct stow_client *client, const char *name, const struct stow_selection *frames,
             int flagged, struct stow_com **com)
{
    Stow__Selection selection;
    Stow__Com body = STOW__COM__INIT;
    Stow__Request request = STOW__REQUEST__INIT;
    struct ring_ids list;
    struct answer answer;
    int rc = client_check(client);
    if (rc)
        return rc;
    body.name = client_bytes(name, strlen(name));
    body.flagged = flagged != 0;
    body.frames = &selection;
    request.body_case = STOW__REQUEST__BODY_COM;
    request.com = &body;
    rc = put_selection(&selection, &list, frames, &client->error);
    if (!rc)
        rc = ask(client, &request, -1, &list, STOW__REPLY__BODY_COM, &answer);
    if (!rc) {
        rc = take_com(client, &answer, com);
        answer_drop(&answer);
    }
    ring_ids_close(&list);
    return rc;
}

void stow_com_free(struct stow_com *head)
{
    struct com *com = (struct com *)head;
    if (!com)
        return;
    unmap_results(&com->results);
    free(com);
}

/* ---- the mask -------------------------------------------------------------------------------------- */

static int take_mask(struct stow_client *client, const struct answer *answer,
                     struct stow_mask **out)
{
    const Stow__MaskReply *reply = answer->reply->mask;
    struct mask *mask = calloc(1, sizeof(*mask));
    uint64_t bytes = 0;
    if (!mask)
        return no_memory(client);
    int rc = fits(reply->detector_y, reply->detector_x, &bytes)
                 ? map_results(&mask->results, answer, bytes, &client->error)
                 : error_set(&client->error, STOW_PROTOCOL, "a mask of too many pixels");
    if (rc) {
        free(mask);
        return rc;
    }
    mask->head = (struct stow_mask){.flags = mask->results.data,
                                    .detector = {reply->detector_y, reply->detector_x},
                                    .n_flagged = reply->n_flagged};
    *out = &mask->head;
    return 0;
}

int stow_mask(struct stow_client *client, const char *name, struct stow_mask **mask)
{
    Stow__Mask body = STOW__MASK__INIT;
    Stow__Request request = STOW__REQUEST__INIT;
    struct answer answer;
    int rc = client_check(client);
    if (rc)
        return rc;
    body.name = client_bytes(name, strlen(name));
    request.body_case = STOW__REQUEST__BODY_MASK;
    request.mask = &body;
    rc = client_ask(client, &request, NULL, 0, STOW__REPLY__BODY_MASK, &answer);
    if (rc)
        return rc;
    rc = take_mask(client, &answer, mask);
    answer_drop(&answer);
    return rc;
}

void stow_mask_free(struct stow_mask *head)
{
    struct mask *mask = (struct mask *)head;
    if (!mask)
        return;
    unmap_results(&mask->results);
    free(mask);
}
