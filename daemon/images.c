/* SPDX-License-Identifier: Apache-2.0 */
#include "images.h"

#include "image.h"
#include "image_masks.h"
#include "image_rings.h"
#include "metrics.h"

#define LOG_MODULE "images"
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define RANGE_FRAMES 32768u /* that one thread of the pool reads statistics of */
#define RANGE_RING_FRAMES \
    131072u /* they write to one file, which lets one in at a time: few are faster than many */
#define AT_ONCE (256u << 10) /* results that the loop seals, or lets go of, by itself */

void image_fail(struct image *image, const struct stow_error *err)
{
    if (!image->err.code)
        image->err = *err;
    atomic_store(&image->all.stop, true);
}

/* ---- the end --------------------------------------------------------------------------------------- */

void image_free(struct image *image)
{
    image_rings_free(image);
    image_memory_free(image);
    if (image->fd >= 0)
        close(image->fd);
    if (image->all.ask.masks_fd >= 0)
        close(image->all.ask.masks_fd);
    free(image->all.ask.ids);
    free(image->all.picks);
    uv_mutex_destroy(&image->all.lock);
    image->resident->n_streams--;
    image->resident->last_used_ns = uv_hrtime();
    resident_unref(image->resident);
    free(image);
}

/* Where the answer to this is kept once it was given; NULL: it is not. */
static int *cached(struct resident *resident, const struct image_ask *ask, uint64_t n)
{
    if (ask->kind == IMAGE_SUM || ask->kind == IMAGE_RINGS || ask->ids || n != resident->n_frames)
        return NULL;
    return &resident->answers[ask->kind == IMAGE_COM][ask->flagged && resident->sums.flags];
}

/* A thread of the pool. */
static void let_go_run(uv_work_t *work)
{
    struct image *image = work->data;
    munmap(image->all.results, image->bytes);
    close(image->fd);
    image->fd = -1;
}

static void on_let_go(uv_work_t *work, int status)
{
    (void)status;
    image_free(work->data);
}

/* Freeing some megabytes takes longer than the loop has. */
static void let_go(struct image *image)
{
    if (!image->all.results) {
        image_free(image);
    } else if (image->bytes <= AT_ONCE) {
        let_go_run(&image->work);
        image_free(image);
    } else {
        uv_queue_work(image->images->loop, &image->work, let_go_run, on_let_go);
    }
}

static void count(const struct image *image)
{
    if (image->err.code || image->all.ask.kind == IMAGE_RINGS)
        return;
    metrics.images_total++;
    metrics.ring_answers_total += image->by_rings;
}

static void deliver(struct image *image)
{
    static const char *const names[] = {"sum", "mean", "com", "ring sums"};
    const struct kept_sums *sums = &image->resident->sums;
    struct image_answer answer = {.fd = image->fd,
                                  .n_frames = image->all.n,
                                  .n_bad = image->n_bad,
                                  .n_flagged = image->all.ask.flagged ? 0 : sums->n_flagged,
                                  .by_rings = image->by_rings,
                                  .rings_note = image->all.ask.keep_rings && !image->by_rings
                                                    ? image->no_rings.text
                                                    : ""};
    if (image->all.ask.kind == IMAGE_MEAN)
        answer.n_frames -= image->n_bad;
    LOG_DBG("%s over %llu frames: prepared in %.3f ms, %u batches of %.3f ms on lanes, %.3f ms",
            names[image->all.ask.kind], (unsigned long long)image->all.n,
            1e-6 * (double)(image->prepared_ns - image->begun_ns), image->n_batches,
            1e-6 * (double)image->lane_ns, 1e-6 * (double)(uv_hrtime() - image->begun_ns));
    image_memory_free(image); /* who asks next, having the answer, finds it free */
    if (!image->abandoned) {
        count(image);
        image->done(image->data, image->err.code ? NULL : &answer,
                    image->err.code ? &image->err : NULL);
    }
    let_go(image);
}

static void clear_flagged_sums(struct image *image)
{
    const uint8_t *flags = image->resident->sums.flags;
    uint64_t *sums = image->all.results;
    for (uint64_t i = 0; flags && !image->all.ask.flagged && i < image->resident->shape.n_elems;
         i++)
        sums[i] = flags[i] ? 0 : sums[i];
}

static void add_slots(struct image *image)
{
    for (unsigned s = 0; s < image->n_slots; s++) {
        if (image->slots[s].begun)
            sums_add(image->all.results, image->slots[s].batch.out.host, &image->resident->shape);
    }
    clear_flagged_sums(image);
}

/* Nobody can write to the results any more but through this mapping, which nobody does. To undo it first, as F_SEAL_WRITE
 * wants, takes .2 ms for 2 MB; it is kept for what many will read, and for kernels before 5.1. */
static bool seal_mapped(const struct image *image)
{
    return image->all.ask.kind == IMAGE_SUM &&
           fcntl(image->fd, F_ADD_SEALS,
                 F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0;
}

/* A thread of the pool, or the loop. */
static void seal_run(uv_work_t *work)
{
    struct image *image = work->data;
    if (image->all.ask.kind == IMAGE_MEAN && !image->kept && !image->err.code && image->all.results)
        add_slots(image);
    if (image->fd < 0 || seal_mapped(image))
        return;
    if (image->all.results)
        munmap(image->all.results, image->bytes);
    image->all.results = NULL;
    if (fcntl(image->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL))
        error_errno(&image->work_err, errno, "sealing results");
}

/* The next who asks for this gets it at once. */
static void cache(struct image *image)
{
    int *kept = cached(image->resident, &image->all.ask, image->all.n);
    if (image->kept && kept && !*kept && !image->err.code)
        *kept = fcntl(image->fd, F_DUPFD_CLOEXEC, 3);
    if (kept && *kept < 0)
        *kept = 0;
}

static void on_sealed(uv_work_t *work, int status)
{
    struct image *image = work->data;
    (void)status;
    for (unsigned i = 0; i < IMAGE_MAX_SLOTS; i++)
        image->n_bad += image->slots[i].batch.n_bad;
    if (image->work_err.code)
        image_fail(image, &image->work_err);
    cache(image);
    deliver(image);
}

static void finish(struct image *image)
{
    image->work_err = (struct stow_error){.code = 0};
    if (image->bytes <= AT_ONCE || image->all.ask.kind == IMAGE_SUM) {
        seal_run(&image->work);
        on_sealed(&image->work, 0);
    } else {
        uv_queue_work(image->images->loop, &image->work, seal_run, on_sealed);
    }
}

void image_part_over(struct image *image)
{
    if (--image->n_running == 0)
        finish(image);
}

/* ---- statistics that are kept ---------------------------------------------------------------------- */

static void range_run(uv_work_t *work)
{
    struct image_range *range = work->data;
    if (range->image->by_rings)
        image_rings_answer(range->image, range->begin, range->end, &range->n_bad, &range->err);
    else
        range->n_bad = com_from_kept(&range->image->all, range->begin, range->end, &range->limit);
}

static void on_range(uv_work_t *work, int status)
{
    struct image_range *range = work->data;
    struct image *image = range->image;
    struct stow_error err;
    (void)status;
    image->n_bad += range->n_bad;
    if (range->err.code)
        image_fail(image, &range->err);
    if (range->limit) {
        error_set(&err, STOW_LIMIT, "%s", IMAGE_LIMIT_TEXT);
        image_fail(image, &err);
    }
    image_part_over(image);
}

static void start_ranges(struct image *image)
{
    uint64_t n = image->all.n;
    uint64_t parts = n / (image->by_rings ? RANGE_RING_FRAMES : RANGE_FRAMES) + 1;
    parts = parts < IMAGE_MAX_RANGES ? parts : IMAGE_MAX_RANGES;
    image->n_running = (unsigned)parts;
    for (uint64_t i = 0; i < parts; i++) {
        image->ranges[i] = (struct image_range){.image = image,
                                                .begin = n * i / parts,
                                                .end = n * (i + 1) / parts,
                                                .work = {.data = &image->ranges[i]}};
        uv_queue_work(image->images->loop, &image->ranges[i].work, range_run, on_range);
    }
}

/* ---- the beginning --------------------------------------------------------------------------------- */

static int make_results(struct image *image, struct stow_error *err)
{
    uint64_t n = image->all.n;
    image->bytes = image->all.ask.kind == IMAGE_SUM    ? n * (image->all.n_sums * 8 + 1)
                   : image->all.ask.kind == IMAGE_MEAN ? image->resident->shape.n_elems * 8
                                                       : n * 24;
    image->fd = memfd_create("framestow results", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (image->fd < 0 || ftruncate(image->fd, (off_t)image->bytes))
        return error_errno(err, errno, "room for %zu bytes of results", image->bytes);
    if (!image->bytes || image->by_rings)
        return 0;
    void *at = mmap(NULL, image->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, image->fd, 0);
    if (at == MAP_FAILED)
        return error_errno(err, errno, "room for %zu bytes of results", image->bytes);
    image->all.results = at;
    return 0;
}

static int by_id(const void *a, const void *b)
{
    const struct image_pick *x = a, *y = b;
    return x->id < y->id ? -1 : x->id > y->id;
}

static int sort_picks(struct image_work *all, struct stow_error *err)
{
    bool ascending = true;
    if (!all->ask.ids)
        return 0;
    all->picks = malloc((all->n ? all->n : 1) * sizeof(*all->picks));
    if (!all->picks)
        return error_set(err, STOW_NOMEM, "no memory for a list of frames");
    for (uint64_t i = 0; i < all->n; i++) {
        all->picks[i] = (struct image_pick){.id = all->ask.ids[i], .at = i};
        ascending = ascending && (!i || all->ask.ids[i - 1] <= all->ask.ids[i]);
    }
    if (!ascending)
        qsort(all->picks, all->n, sizeof(*all->picks), by_id);
    return 0;
}

/* A thread of the pool. */
static void prepare_run(uv_work_t *work)
{
    struct image *image = work->data;
    struct stow_error *err = &image->work_err;
    bool has_file = image->fd >= 0 || image->all.ask.kind == IMAGE_RINGS;
    if (err->code || (!has_file && make_results(image, err)))
        return;
    if (image->all.ask.kind == IMAGE_MEAN && mean_check(&image->all, err))
        return;
    if (image->kept && image->all.ask.kind == IMAGE_MEAN) {
        memcpy(image->all.results, image->resident->sums.pixels, image->bytes);
        clear_flagged_sums(image);
    }
    if (!image->kept && !sort_picks(&image->all, err) && image->all.ask.kind == IMAGE_SUM)
        masks_make(image->weights, &image->all, err);
}

static void on_prepared(uv_work_t *work, int status)
{
    struct image *image = work->data;
    (void)status;
    image->prepared_ns = uv_hrtime();
    if (image->work_err.code)
        image_fail(image, &image->work_err);
    if (image->preparing) {
        image->preparing = false;
        image_slots_go_on(image);
        image_part_over(image);
    } else if (image->err.code || (image->kept && image->all.ask.kind == IMAGE_MEAN))
        finish(image);
    else if (image->kept)
        start_ranges(image);
    else
        image_slots_start(image);
}

static void prepare(struct image *image)
{
    image->work.data = image;
    image->work_err = image->err; /* a batch that fails meanwhile changes that */
    uv_queue_work(image->images->loop, &image->work, prepare_run, on_prepared);
}

/* Batches of a range are taken while weights are being made; a list has to be sorted first. */
static void prepare_beside(struct image *image)
{
    struct stow_error err;
    if (make_results(image, &err)) {
        image_fail(image, &err);
        prepare(image); /* so that nobody hears of it before image_start returns */
        return;
    }
    image->preparing = true;
    image->n_running = 1;
    prepare(image);
    image_slots_start(image);
}

/* Memory is there, or is not to be had. */
static void on_memory(void *data)
{
    struct image *image = data;
    if (image->arena->err.code) {
        image_fail(image, &image->arena->err);
        finish(image);
    } else if (image->all.ask.kind == IMAGE_SUM && !image->all.ask.ids) {
        prepare_beside(image);
    } else {
        prepare(image);
    }
}

int image_take_memory(struct image *image, struct stow_error *err)
{
    return image_memory_take(image, on_memory, err);
}

void image_go_on(struct image *image)
{
    struct stow_error err;
    if (image->abandoned) {
        finish(image);
        return;
    }
    image->kept = image->by_rings = image_rings_take(image);
    if (image->kept) {
        prepare(image);
    } else if (image_take_memory(image, &err)) {
        image_fail(image, &err);
        finish(image);
    }
}

/* ---- what others call ------------------------------------------------------------------------------ */

static int check_state(const struct resident *resident, const char *name, struct stow_error *err)
{
    if (resident->failure.code) {
        *err = resident->failure;
        return err->code;
    }
    if (resident_is_whole(resident))
        return 0;
    return error_set(err, STOW_STATE,
                     "%s is still loading: %llu of %llu frames; sums are over all of them", name,
                     (unsigned long long)resident->n_loaded,
                     (unsigned long long)resident->n_frames);
}

/* The first number that there is no frame of, if there is one. */
static bool find_past_end(const struct image_ask *ask, uint64_t n, uint64_t *id)
{
    for (size_t i = 0; i < ask->n_ids; i++) {
        *id = ask->ids[i];
        if (*id >= n)
            return true;
    }
    *id = ask->first > n ? ask->first : n;
    return !ask->ids && (ask->first > n || ask->count > n - ask->first);
}

static int check_frames(const struct resident *resident, const char *name,
                        const struct image_ask *ask, struct stow_error *err)
{
    uint64_t n = resident->n_frames, id;
    if (!find_past_end(ask, n, &id))
        return 0;
    if (!n)
        return error_set(err, STOW_RANGE, "frame %llu is past the end: %s has no frames",
                         (unsigned long long)id, name);
    return error_set(err, STOW_RANGE, "frame %llu is past the end: %s has frames 0 to %llu",
                     (unsigned long long)id, name, (unsigned long long)n - 1);
}

static uint64_t count_frames(const struct image_ask *ask, const struct resident *resident)
{
    return ask->ids ? ask->n_ids : ask->count ? ask->count : resident->n_frames - ask->first;
}

static bool is_kept(const struct image *image)
{
    const struct kept_sums *sums = &image->resident->sums;
    if (image->all.ask.kind == IMAGE_COM)
        return sums->stats != NULL;
    return image->all.ask.kind == IMAGE_MEAN && sums->pixels && !image->all.ask.ids &&
           image->all.n == image->resident->n_frames;
}

const char *image_dtype(const struct image_ask *ask, const struct resident *resident)
{
    const uint32_t kind = resident->shape.kind;
    if (kind == PIXEL_FLOAT || (ask->kind == IMAGE_SUM && ask->weights == WEIGHT_F64))
        return "f8";
    return kind == PIXEL_SIGNED || (ask->kind == IMAGE_SUM && ask->weights == WEIGHT_I32) ? "i8"
                                                                                          : "u8";
}

struct image *image_new(struct images *images, struct resident *resident,
                        const struct image_ask *ask, image_done done, void *data)
{
    struct image *image = calloc(1, sizeof(*image));
    if (!image)
        return NULL;
    image->images = images;
    image->work.data = image;
    image->resident = resident;
    image->done = done;
    image->data = data;
    image->fd = -1;
    image->begun_ns = image->prepared_ns = uv_hrtime();
    image->all.ask = *ask;
    image->all.resident = resident;
    image->all.first = ask->first;
    image->all.weights = resident->shape.kind == PIXEL_FLOAT ? WEIGHT_F64 : ask->weights;
    image->all.n = count_frames(ask, resident);
    image->all.n_sums = ask->n_masks + ask->n_annuli;
    image->all.is_gpu = device_info(resident->place->device)->is_gpu;
    uv_mutex_init(&image->all.lock);
    resident_ref(resident);
    resident->n_streams++; /* so that it is not evicted */
    image->kept = is_kept(image);
    if (image->kept && ask->kind == IMAGE_MEAN)
        image->n_bad = resident->n_frames - resident->sums.n_frames;
    return image;
}

static bool answer_cached(struct resident *resident, const struct image_ask *ask, image_done done,
                          void *data)
{
    const struct kept_sums *sums = &resident->sums;
    const int *kept = cached(resident, ask, count_frames(ask, resident));
    if (!kept || !*kept)
        return false;
    struct image_answer answer = {.fd = *kept,
                                  .n_frames = resident->n_frames,
                                  .n_flagged = ask->flagged ? 0 : sums->n_flagged,
                                  .n_bad = resident->n_frames - sums->n_frames};
    if (ask->kind == IMAGE_MEAN)
        answer.n_frames -= answer.n_bad;
    resident->last_used_ns = uv_hrtime();
    metrics.images_total++;
    done(data, &answer, NULL);
    return true;
}

int image_start(struct image **out, struct images *images, struct resident *resident,
                const char *name, const struct image_ask *ask, image_done done, void *data,
                struct stow_error *err)
{
    int rc = check_state(resident, name, err);
    if (!rc)
        rc = check_frames(resident, name, ask, err);
    if (rc)
        return rc;
    if (answer_cached(resident, ask, done, data))
        return 0;
    struct image *image = image_new(images, resident, ask, done, data);
    if (!image)
        return error_set(err, STOW_NOMEM, "no memory for a request");
    image->by_rings = image_rings_take(image);
    image->kept = image->kept || image->by_rings;
    if (image->kept)
        prepare(image);
    else if (!ask->keep_rings || !image_rings_make(image))
        rc = image_take_memory(image, err);
    if (rc) {
        image->all.ask.ids = NULL; /* they stay the caller's */
        image->all.ask.masks_fd = -1;
        image_free(image);
        return rc;
    }
    *out = image;
    return 0;
}

void image_abandon(struct image *image)
{
    struct stow_error err;
    image->abandoned = true;
    error_set(&err, STOW_CANCELLED, "nobody waits for it any more");
    if (image->making)
        image_fail(image->making, &err);
    atomic_store(&image->all.stop, true);
}

void images_init(struct images *images, uv_loop_t *loop, struct store *store)
{
    *images = (struct images){.loop = loop, .store = store};
    arenas_init(&images->arenas, loop, store);
}

void images_clear(struct images *images)
{
    arenas_clear(&images->arenas);
}
