/* Ranks and their keeper over shared memory: all that live agree on each view, whoever dies when. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "check.h"
#include "comm/view_pages.h"

enum { RANKS = 6, STEPS = 300, ROUNDS = 20 };

typedef struct job {
    void *memory;
    atomic_bool finished[RANKS], ended[RANKS], over; /* finished: all its steps; ended: its thread writes no more */
    int64_t dies_at[RANKS];                          /* a step; STEPS means never */
    int64_t start[RANKS][RANKS + 1];                 /* of each view, as each rank saw it; -1 means not */
    int members[RANKS][RANKS + 1];
} job;

typedef struct one {
    job *job;
    int identity;
} one;

/* Goes on from the goal. */
static void change_view(const one *o, gg_views *views, int64_t step) {
    const int64_t number = views->table->view(views)->number;
    int reported = -1;
    for (;;) {
        const int *dead;
        int64_t received[RANKS] = {0}, goal;
        gg_phase phase;
        if (views->table->view(views)->number != number) break;
        if (views->table->look(views, o->identity, step, &phase, &goal) != GG_OK || phase != GG_PHASE_GOAL) {
            sched_yield();
            continue;
        }
        const int deaths = views->table->dead(views, &dead);
        for (int i = 0; i < deaths; ++i) received[i] = 10 * dead[i] + o->identity;
        if (deaths > reported) (void)views->table->report(views, o->identity, deaths, received);
        reported = deaths;
        sched_yield();
    }
    const gg_view *view = views->table->view(views);
    o->job->start[o->identity][view->number] = view->start;
    o->job->members[o->identity][view->number] = view->members;
}

/* Waits until the rank, which has made `step` steps, may make another one, or all is over. */
static void look(const one *o, gg_views *views, int64_t step) {
    for (;;) {
        gg_phase phase;
        int64_t goal;
        if (views->table->look(views, o->identity, step, &phase, &goal) != GG_OK) abort();
        if (step == STEPS ? atomic_load(&o->job->over) : phase == GG_PHASE_RUN) return;
        if (phase == GG_PHASE_GOAL && step > goal) abort();
        if (phase == GG_PHASE_GOAL && step < goal) return;
        if (phase == GG_PHASE_GOAL) change_view(o, views, step);
        sched_yield();
    }
}

static void *run_rank(void *context) {
    const one *o = context;
    gg_views *views;
    if (gg_view_pages_open(o->job->memory, RANKS, o->identity, &views) != GG_OK) abort();
    for (int64_t step = 0; step < STEPS; ++step) {
        if (step == o->job->dies_at[o->identity]) break;
        look(o, views, step);
        if (o->identity % 2 == 0) sched_yield();
    }
    if (o->job->dies_at[o->identity] == STEPS) {
        atomic_store(&o->job->finished[o->identity], true);
        look(o, views, STEPS);
    }
    atomic_store(&o->job->ended[o->identity], true);
    views->table->destroy(views);
    return NULL;
}

static void test_job(unsigned seed) {
    job *j = NULL;
    one ranks[RANKS];
    pthread_t thread[RANKS];
    gg_view_keeper *keeper;
    gg_phase phase;
    CHECK_OK(gg_calloc(1, sizeof *j, "job", &j));
    CHECK_OK(gg_calloc(1, gg_view_pages_bytes(RANKS), "pages", &j->memory));
    CHECK_OK(gg_view_keeper_create(j->memory, RANKS, RANKS, 1, &keeper));
    srand(seed);
    for (int i = 0; i < RANKS; ++i) {
        j->dies_at[i] = i > 0 && rand() % 2 ? rand() % (STEPS / 2) : STEPS;
        for (int v = 0; v <= RANKS; ++v) j->start[i][v] = -1;
        ranks[i] = (one){j, i};
        CHECK(pthread_create(&thread[i], NULL, run_rank, &ranks[i]) == 0);
    }
    for (bool over = false; !over; sched_yield()) {
        over = true;
        for (int i = 0; i < RANKS; ++i) {
            if (atomic_load(&j->ended[i]) && gg_membership_lives(gg_view_keeper_membership(keeper), i))
                CHECK_OK(gg_view_keeper_died(keeper, i));
            over = over && (atomic_load(&j->finished[i]) || atomic_load(&j->ended[i]));
        }
        CHECK_OK(gg_view_keeper_poll(keeper, &phase));
        over = over && phase == GG_PHASE_RUN;
    }
    atomic_store(&j->over, true);
    for (int i = 0; i < RANKS; ++i) pthread_join(thread[i], NULL);
    for (int v = 1; v <= RANKS; ++v) /* every rank that saw a view saw the same one */
        for (int i = 0; i < RANKS; ++i)
            for (int k = 0; k < RANKS; ++k)
                if (j->start[i][v] >= 0 && j->start[k][v] >= 0)
                    CHECK(j->start[i][v] == j->start[k][v] && j->members[i][v] == j->members[k][v]);
    const gg_view *view = gg_membership_view(gg_view_keeper_membership(keeper));
    int living = 0;
    for (int i = 0; i < RANKS; ++i)
        if (j->dies_at[i] == STEPS) CHECK(living < view->members && view->member[living++] == i);
    CHECK_INT(view->members, living);
    gg_view_keeper_destroy(keeper);
    gg_free(j->memory);
    gg_free(j);
}

static gg_views *open_and_vote(void *memory, int identity, int votes) {
    gg_views *views;
    CHECK_OK(gg_view_pages_open(memory, RANKS, identity, &views));
    for (int i = 0; i < votes; ++i) views->table->vote(views, true);
    return views;
}

/* The votes of a process's former object do not count for its next one. */
static void test_next_object(void) {
    void *memory;
    gg_view_keeper *keeper;
    bool all;
    CHECK_OK(gg_calloc(1, gg_view_pages_bytes(RANKS), "pages", &memory));
    CHECK_OK(gg_view_keeper_create(memory, 2, RANKS, 1, &keeper));
    for (int i = 0; i < 2; ++i) {
        gg_views *former = open_and_vote(memory, i, 3);
        former->table->destroy(former);
    }
    gg_views *first = open_and_vote(memory, 0, 1);
    CHECK(!first->table->decided(first, &all));
    gg_views *second = open_and_vote(memory, 1, 1);
    CHECK(first->table->decided(first, &all) && all);
    CHECK(second->table->decided(second, &all) && all);
    first->table->destroy(first);
    second->table->destroy(second);
    gg_view_keeper_destroy(keeper);
    gg_free(memory);
}

/* A newcomer over the pages: a rank in a call outside of a run promises a step more, unless a rank has died. */
static void test_newcomer(void) {
    gg_view_keeper *keeper;
    gg_views *views[3];
    void *memory;
    gg_phase phase;
    int64_t goal;
    const int64_t none = -1;
    CHECK_OK(gg_calloc(1, gg_view_pages_bytes(3) + 64, "pages", &memory));
    CHECK_OK(gg_view_keeper_create(memory, 2, 3, 1, &keeper));
    for (int i = 0; i < 3; ++i) CHECK_OK(gg_view_pages_open(memory, 3, i, &views[i]));
    CHECK(gg_view_keeper_rests(keeper));
    views[2]->table->announce(views[2]);
    CHECK(!gg_view_keeper_rests(keeper));
    CHECK_OK(gg_view_keeper_poll(keeper, &phase));
    CHECK_INT(phase, GG_PHASE_STOPPING);
    CHECK_OK(views[0]->table->look(views[0], GG_VIEW_OUTSIDE, 7, &phase, &goal));
    CHECK_OK(views[1]->table->look(views[1], 1, 7, &phase, &goal));
    CHECK_OK(gg_view_keeper_poll(keeper, &phase));
    CHECK_OK(views[1]->table->look(views[1], 1, 7, &phase, &goal));
    CHECK(phase == GG_PHASE_GOAL && goal == 8);
    for (int i = 0; i < 2; ++i) CHECK_OK(views[i]->table->look(views[i], i, 8, &phase, &goal));
    for (int i = 0; i < 2; ++i) CHECK_OK(views[i]->table->report(views[i], i, 0, &none));
    CHECK_OK(gg_view_keeper_poll(keeper, &phase));
    const gg_view *view = views[2]->table->view(views[2]);
    CHECK(view->number == 1 && view->start == 8 && view->members == 3 && view->donor[2] == 0);
    /* The donor dies: limits of the dead change have no more step. */
    CHECK_OK(gg_view_keeper_died(keeper, 0));
    CHECK_OK(views[2]->table->copied(views[2], 2, 1)); /* too late */
    CHECK_OK(views[1]->table->look(views[1], GG_VIEW_OUTSIDE, 8, &phase, &goal));
    CHECK_OK(gg_view_keeper_poll(keeper, &phase));
    CHECK_OK(views[1]->table->look(views[1], 1, 8, &phase, &goal));
    CHECK(phase == GG_PHASE_GOAL && goal == 8);
    CHECK_OK(views[1]->table->report(views[1], 1, 1, &none));
    CHECK_OK(gg_view_keeper_poll(keeper, &phase));
    view = views[2]->table->view(views[2]);
    CHECK(view->number == 2 && view->members == 2 && view->donor[1] == 1 && !gg_view_keeper_rests(keeper));
    CHECK_OK(views[2]->table->copied(views[2], 2, 1)); /* of the donor that has died */
    CHECK_OK(gg_view_keeper_poll(keeper, &phase));
    CHECK(views[1]->table->view(views[1])->donor[1] == 1 && !gg_view_keeper_rests(keeper));
    CHECK_OK(views[2]->table->copied(views[2], 2, 2));
    CHECK_OK(gg_view_keeper_poll(keeper, &phase));
    CHECK(views[1]->table->view(views[1])->donor[1] == -1 && gg_view_keeper_rests(keeper));
    for (int i = 0; i < 3; ++i) views[i]->table->destroy(views[i]);
    gg_view_keeper_destroy(keeper);
    gg_free(memory);
}

/* Where a death breaks steps. For a newcomer a rank in a wait tells the step that it has begun, because no other can
 * then end it; after a death it tells nothing before it has left the wait. */
static void test_newcomer_of_sums(void) {
    gg_view_keeper *keeper;
    gg_views *views[2];
    void *memory;
    gg_phase phase;
    int64_t goal;
    CHECK_OK(gg_calloc(1, gg_view_pages_bytes(4) + 64, "pages", &memory));
    CHECK_OK(gg_view_keeper_create(memory, 3, 4, 1, &keeper));
    for (int i = 0; i < 2; ++i) CHECK_OK(gg_view_pages_open(memory, 4, i, &views[i]));
    for (int i = 0; i < 2; ++i) views[i]->breaks = true;
    gg_views *other, *newcomer;
    CHECK_OK(gg_view_pages_open(memory, 4, 2, &other));
    CHECK_OK(gg_view_pages_open(memory, 4, 3, &newcomer));
    newcomer->table->announce(newcomer);
    CHECK_OK(gg_view_keeper_poll(keeper, &phase));
    CHECK_OK(views[0]->table->look(views[0], GG_VIEW_WAITS, 6, &phase, &goal));
    CHECK_OK(views[1]->table->look(views[1], 1, 5, &phase, &goal));
    CHECK_OK(other->table->look(other, 2, 5, &phase, &goal));
    CHECK_OK(gg_view_keeper_poll(keeper, &phase));
    CHECK_OK(views[1]->table->look(views[1], 1, 5, &phase, &goal));
    CHECK(phase == GG_PHASE_GOAL && goal == 6);
    CHECK_OK(gg_view_keeper_died(keeper, 2));
    CHECK_OK(views[0]->table->look(views[0], GG_VIEW_WAITS, 6, &phase, &goal));
    CHECK_OK(views[1]->table->look(views[1], 1, 5, &phase, &goal));
    CHECK_OK(gg_view_keeper_poll(keeper, &phase));
    CHECK_INT(phase, GG_PHASE_STOPPING);
    CHECK_OK(views[0]->table->look(views[0], -1, 5, &phase, &goal));
    CHECK_OK(gg_view_keeper_poll(keeper, &phase));
    CHECK_OK(views[0]->table->look(views[0], 0, 5, &phase, &goal));
    CHECK(phase == GG_PHASE_GOAL && goal == 5);
    for (int i = 0; i < 2; ++i) views[i]->table->destroy(views[i]);
    other->table->destroy(other);
    newcomer->table->destroy(newcomer);
    gg_view_keeper_destroy(keeper);
    gg_free(memory);
}

static void carry(void *from, void *to) {
    int64_t told[16 + GG_LEDGER_TOLD];
    CHECK(gg_view_pages_told_bytes(2) <= sizeof told);
    gg_view_pages_told(from, 2, 1, told);
    gg_view_pages_tell(to, 2, 1, told);
}

/* Agents carry the last entry of a rank's ledger to other hosts, and from there. */
static void test_ledger(void) {
    void *memory[3], *ledger[3];
    gg_views *views;
    for (int i = 0; i < 3; ++i) {
        CHECK_OK(gg_calloc(1, gg_view_pages_bytes(2) + 64, "pages", &memory[i]));
        CHECK_OK(gg_view_pages_open(memory[i], 2, 0, &views));
        ledger[i] = views->table->ledger(views, 1);
        views->table->destroy(views);
    }
    int64_t old[GG_LEDGER_TOLD];
    carry(memory[0], memory[1]);
    CHECK(gg_ledger_back(ledger[1], 0) == NULL); /* it has written nothing */
    for (int64_t step = 1; step <= 200; ++step) {
        gg_ledger_append(ledger[0], &step, sizeof step);
        if (step == 100) gg_ledger_told(ledger[0], old);
        if (step % 50 == 0) carry(memory[0], memory[1]);
    }
    for (int i = 0; i < 3; ++i)
        carry(memory[1], memory[2]), carry(memory[1], memory[0]); /* the rank's host knows all */
    gg_ledger_tell(ledger[2], old);
    CHECK_INT(*(const int64_t *)gg_ledger_back(ledger[0], 0), 200);
    CHECK_INT(*(const int64_t *)gg_ledger_back(ledger[0], 1), 199);
    CHECK_INT(*(const int64_t *)gg_ledger_back(ledger[0], GG_LEDGER_ENTRIES - 2), 200 - GG_LEDGER_ENTRIES + 2);
    CHECK(gg_ledger_back(ledger[0], GG_LEDGER_ENTRIES - 1) == NULL);
    CHECK_INT(*(const int64_t *)gg_ledger_back(ledger[1], 0), 200);
    CHECK_INT(*(const int64_t *)gg_ledger_back(ledger[1], 1), 150);
    CHECK_INT(*(const int64_t *)gg_ledger_back(ledger[2], 0), 200);
    CHECK(gg_ledger_back(ledger[2], 1) == NULL && gg_ledger_back(ledger[1], 4) == NULL);
    for (int i = 0; i < 3; ++i) gg_free(memory[i]);
}

int main(void) {
    test_ledger();
    test_newcomer_of_sums();
    test_next_object();
    test_newcomer();
    for (unsigned round = 0; round < ROUNDS; ++round) test_job(round);
    CHECK_INT(gg_memory_live_bytes(), 0);
    return CHECK_RESULT;
}
