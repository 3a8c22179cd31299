/* SPDX-License-Identifier: Apache-2.0
 *
 * picks_test: every job once, those of form counts first, each segment's in one run, all in the order given. */
#include "picks.h"

#include "test.h"

#include <stdbool.h>

#define MAX_JOBS 32768u

static struct decode_job jobs[MAX_JOBS];
static uint32_t picks[MAX_JOBS + 1];
static bool seen[MAX_JOBS];

struct deal {
    const char *name;
    uint32_t n, n_segments;
    uint32_t others; /* of 100 jobs */
    bool shuffled;
    uint64_t stride; /* between the segments' addresses; 0: anywhere, so that some meet in a slot */
};

static const struct deal deals[] = {
    {"one", 1, 1, 0, false, 16},
    {"one other", 1, 1, 100, false, 16},
    {"one segment", 4096, 1, 0, false, 16},
    {"in order", 10000, 7, 0, false, 1 << 20},
    {"in order, mixed", 10000, 7, 30, false, 1 << 20},
    {"shuffled", MAX_JOBS, 32, 0, true, 1 << 20},
    {"shuffled, mixed", MAX_JOBS, 2048, 50, true, 4096},
    {"each its own", MAX_JOBS, MAX_JOBS, 0, true, 16},
    {"anywhere", MAX_JOBS, 30000, 0, true, 0},
    {"near", 4096, 300, 0, true, 16},
    {"far apart", 5000, 1000, 10, true, UINT64_C(1) << 40},
    {"others alone", 5000, 1000, 100, true, 16},
};

static uint32_t random_next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static uint64_t address_of(const struct deal *deal, uint32_t segment)
{
    uint64_t anywhere = segment * 0xd1342543de82ef95u >> 20;
    anywhere ^= anywhere * anywhere << 9;
    return 0x7f0000000000u + (deal->stride ? segment * deal->stride : anywhere);
}

static void make_jobs(const struct deal *deal, uint64_t *state)
{
    for (uint32_t i = 0; i < deal->n; i++) {
        uint32_t segment = deal->shuffled ? random_next(state) % deal->n_segments
                                          : (uint32_t)((uint64_t)i * deal->n_segments / deal->n);
        jobs[i] = (struct decode_job){.src = i,
                                      .blocks = address_of(deal, segment),
                                      .form = STOW_FORM_COUNTS};
        if (random_next(state) % 100 < deal->others)
            jobs[i].form = i % 2 ? STOW_FORM_BSLZ4 : STOW_FORM_FILL;
    }
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

/* Segments that have more than one run. */
static uint32_t torn_segments(uint32_t n_counts)
{
    static uint64_t runs[MAX_JOBS];
    uint32_t n_runs = 0, torn = 0;
    for (uint32_t k = 0; k < n_counts; k++) {
        uint64_t segment = jobs[picks[k]].blocks;
        if (!n_runs || runs[n_runs - 1] != segment)
            runs[n_runs++] = segment;
    }
    qsort(runs, n_runs, sizeof(runs[0]), compare_u64);
    for (uint32_t r = 1; r < n_runs; r++)
        torn += runs[r] == runs[r - 1];
    return torn;
}

static void check_order(const struct deal *deal, uint32_t n_counts)
{
    uint32_t n_wrong = 0;
    memset(seen, 0, sizeof(seen));
    for (uint32_t k = 0; k < deal->n; k++) {
        if (picks[k] >= deal->n || seen[picks[k]]) {
            CHECK_MSG(false, "%s: pick %u is %u", deal->name, k, picks[k]);
            return;
        }
        seen[picks[k]] = true;
        n_wrong += (jobs[picks[k]].form == STOW_FORM_COUNTS) != (k < n_counts);
        bool alike = k > 0 && (k < n_counts ? jobs[picks[k]].blocks == jobs[picks[k - 1]].blocks
                                            : k > n_counts);
        n_wrong += alike && picks[k] < picks[k - 1];
    }
    CHECK_MSG(!n_wrong, "%s: %u wrong", deal->name, n_wrong);
    CHECK_MSG(!torn_segments(n_counts), "%s: a segment comes twice", deal->name);
}

int main(void)
{
    struct picks_room *room = picks_room_new(MAX_JOBS);
    uint64_t state = 1;
    for (int round = 0; round < 3; round++) { /* the room is used again */
        for (size_t i = 0; i < sizeof(deals) / sizeof(deals[0]); i++) {
            make_jobs(&deals[i], &state);
            picks[deals[i].n] = 0xabcdabcd;
            check_order(&deals[i], picks_order(picks, jobs, deals[i].n, room));
            CHECK_INT(picks[deals[i].n], 0xabcdabcd);
        }
    }
    CHECK_INT(picks_order(picks, jobs, 0, room), 0);
    picks_room_free(room);
    return test_end();
}
