/* SPDX-License-Identifier: Apache-2.0 */
#include "answers.h"

#include "image_batch.h"

#define LOG_MODULE "images"
#include "log.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct answers {
    uv_work_t work;
    struct table_reader reader;
    struct resident as_it_was; /* its tables stay where they are while they are read */
    int mean, com;             /* -1: it could not be made */
};

static unsigned n_answers;

unsigned answers_count(void)
{
    return n_answers;
}

static uint64_t mean_bytes(const struct resident *resident)
{
    return resident->shape.n_elems * sizeof(uint64_t);
}

static uint64_t com_bytes(const struct resident *resident)
{
    return resident->n_frames * 3 * sizeof(uint64_t);
}

/* ---- on the pool ---- */

static void *map_new(int *fd, uint64_t bytes)
{
    *fd = memfd_create("framestow results", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd < 0 || ftruncate(*fd, (off_t)bytes))
        return NULL;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, *fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

/* Nobody can write to it any more, or it is none. */
static int seal(int fd, void *at, uint64_t bytes, bool good)
{
    if (at)
        munmap(at, bytes);
    if (at && good &&
        !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL))
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static int make_mean(const struct resident *resident)
{
    const struct kept_sums *sums = &resident->sums;
    struct image_work all = {.ask = {.kind = IMAGE_MEAN},
                             .resident = resident,
                             .n = resident->n_frames};
    struct stow_error err;
    int fd;
    if (mean_check(&all, &err))
        return -1;
    uint64_t *at = map_new(&fd, mean_bytes(resident));
    for (uint64_t i = 0; at && i < resident->shape.n_elems; i++)
        at[i] = sums->flags && sums->flags[i] ? 0 : sums->pixels[i];
    return seal(fd, at, mean_bytes(resident), true);
}

static int make_com(const struct resident *resident)
{
    bool limit = false;
    int fd;
    struct image_work all = {.ask = {.kind = IMAGE_COM},
                             .resident = resident,
                             .n = resident->n_frames,
                             .results = map_new(&fd, com_bytes(resident))};
    if (all.results)
        com_from_kept(&all, 0, all.n, &limit);
    return seal(fd, all.results, com_bytes(resident), !limit);
}

static void run_on_pool(uv_work_t *work)
{
    struct answers *answers = work->data;
    answers->mean = make_mean(&answers->as_it_was);
    answers->com = make_com(&answers->as_it_was);
}

/* ---- on the loop ---- */

static void keep(struct resident *resident, enum image_kind kind, int fd)
{
    int *kept = &resident->answers[kind == IMAGE_COM][false];
    if (fd >= 0 && !*kept)
        *kept = fd;
    else if (fd >= 0)
        close(fd); /* somebody asked meanwhile, and has another copy */
}

static void drop(const struct answers *answers)
{
    if (answers->mean >= 0)
        close(answers->mean);
    if (answers->com >= 0)
        close(answers->com);
}

static void on_made(uv_work_t *work, int status)
{
    struct answers *answers = work->data;
    struct resident *resident = answers->reader.resident;
    (void)status; /* never cancelled in the queue */
    n_answers--;
    if (resident)
        resident->reader = NULL;
    if (resident && resident->answers_charged) {
        keep(resident, IMAGE_MEAN, answers->mean);
        keep(resident, IMAGE_COM, answers->com);
        LOG_DBG("mean pattern and centres of mass of acquisition %llu are made",
                (unsigned long long)resident->id);
    } else {
        drop(answers); /* somebody wanted the room, or it has gone */
    }
    if (!resident)
        table_reader_fini(&answers->reader);
    free(answers);
}

void answers_start(uv_loop_t *loop, struct resident *resident)
{
    uint64_t bytes = mean_bytes(resident) + com_bytes(resident);
    if (!resident_is_whole(resident) || resident->reader || !resident->n_frames ||
        !resident->shape.n_elems || !resident->sums.pixels || !resident->sums.stats ||
        resident->answers_charged || place_free_bytes(resident->place) < bytes)
        return;
    struct answers *answers = malloc(sizeof(*answers));
    if (!answers)
        return;
    *answers = (struct answers){.work = {.data = answers},
                                .reader = {.resident = resident},
                                .as_it_was = *resident,
                                .mean = -1,
                                .com = -1};
    place_charge(resident->place, bytes);
    resident->answers_charged = bytes;
    resident->reader = &answers->reader;
    n_answers++;
    uv_queue_work(loop, &answers->work, run_on_pool, on_made);
}
