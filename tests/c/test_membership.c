/* Membership: every order of steps, limits, reports, deaths and joins of small groups, and single events. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "check.h"
#include "comm/membership.h"

enum { MAX = 5, PATH = 48, STATES = 1 << 20, TABLE = 1 << 21 };

/* ---- a group of ranks that follow the protocol ---- */

typedef enum action { BEGIN = 0, END, TELL, REPORT, DIE, JOIN, COPY, ACTIONS } action;

/* What a rank knows of itself. */
typedef struct rank {
    unsigned char state; /* 0 not there, 1 ready, 2 member, 3 dead */
    unsigned char whole, copied, in_step, done, told, reported, limit;
} rank;

/* Also the key of a state: the membership depends on nothing else. */
typedef struct group {
    rank rank[MAX];
    unsigned char phase, view, start, goal, deaths, deaths_left, joins_left, since[MAX];
} group;

typedef struct setting {
    int members, most, least, steps, deaths, joins;
} setting;

/* The last step of a dead member that a survivor has received: fewer for some survivors than for others. */
static int64_t received(const group *g, int survivor, int dead) { return g->rank[dead].done - (survivor + dead) % 2; }

static bool member(const group *g, int r) { return g->rank[r].state == 2; }
static bool counts(const group *g, int r) { return member(g, r) && g->rank[r].whole; }

static bool allowed(const setting *s, const group *g, const gg_membership *m, action what, int r) {
    const rank *one = &g->rank[r];
    const gg_phase phase = (gg_phase)g->phase;
    if (phase == GG_PHASE_ENDED) return false;
    if (what == DIE) return g->deaths_left > 0 && (one->state == 1 || one->state == 2);
    if (what == JOIN) return g->joins_left > 0 && one->state == 0;
    if (what == COPY) {
        const gg_view *view = gg_membership_view(m);
        for (int i = 0; i < view->members; ++i)
            if (view->member[i] == r)
                return member(g, r) && !one->whole && !one->copied && phase == GG_PHASE_RUN &&
                       member(g, view->donor[i]);
        return false;
    }
    if (!counts(g, r)) return false;
    if (what == END) return one->in_step;
    if (what == TELL) return phase == GG_PHASE_STOPPING && !one->told;
    if (what == REPORT) return phase == GG_PHASE_GOAL && !one->in_step && !one->reported && one->done == g->goal;
    if (one->in_step) return false;
    if (phase == GG_PHASE_GOAL) return one->done < g->goal;
    return one->done < s->steps && !(one->told && one->done >= one->limit);
}

static void took_effect(group *g, const gg_membership *m) {
    const int *dead;
    const gg_view *view = gg_membership_view(m);
    g->phase = (unsigned char)gg_membership_phase(m);
    g->deaths = (unsigned char)gg_membership_dead(m, &dead);
    g->goal = (unsigned char)(gg_membership_goal(m) + 1 > 0 ? gg_membership_goal(m) : 0);
    if (view->number == g->view) return;
    /* A new view: the same for all, at one step. */
    CHECK_INT(view->number, g->view + 1);
    CHECK_INT(g->phase, GG_PHASE_RUN);
    int members = 0, died = 0;
    for (int r = 0; r < MAX; ++r) {
        rank *one = &g->rank[r];
        if (g->since[r]) {
            int64_t last = -1;
            for (int i = 0; i < MAX; ++i)
                if (counts(g, i) && received(g, i, r) > last) last = received(g, i, r);
            if (CHECK(died < view->dead && view->died[died] == r)) CHECK_INT(view->last[died], last);
            ++died;
            g->since[r] = 0;
        }
        if (one->state == 1) one->state = 2;
        if (one->state != 2) continue;
        if (CHECK(members < view->members && view->member[members] == r)) {
            const int donor = view->donor[members];
            CHECK(one->whole ? donor == -1 : counts(g, donor));
        }
        ++members;
        if (one->whole) CHECK(one->done == view->start && !one->in_step);
        else one->done = (unsigned char)view->start;
        one->copied = one->told = one->reported = one->limit = 0;
    }
    CHECK_INT(view->members, members);
    CHECK_INT(view->dead, died);
    CHECK(view->start >= g->start);
    g->view = (unsigned char)view->number;
    g->start = (unsigned char)view->start;
}

/* Together, when the last one has copied. */
static void become_whole(group *g) {
    for (int i = 0; i < MAX; ++i)
        if (member(g, i) && !g->rank[i].whole && !g->rank[i].copied) return;
    for (int i = 0; i < MAX; ++i)
        if (member(g, i)) g->rank[i].whole = 1, g->rank[i].copied = 0;
}

static void act(group *g, gg_membership *m, action what, int r) {
    rank *one = &g->rank[r];
    int64_t last[MAX];
    const int *dead;
    switch (what) {
    case BEGIN: one->in_step = 1; break;
    case END: one->in_step = 0, one->done++; break;
    case TELL:
        one->told = 1;
        one->limit = one->done + one->in_step;
        CHECK_OK(gg_membership_limit(m, r, one->limit));
        break;
    case REPORT:
        one->reported = 1;
        for (int i = 0; i < gg_membership_dead(m, &dead); ++i) last[i] = received(g, r, dead[i]);
        CHECK_OK(gg_membership_report(m, r, g->deaths, last));
        break;
    case DIE:
        g->deaths_left--;
        if (member(g, r)) {
            g->since[r] = 1;
            for (int i = 0; i < MAX; ++i) g->rank[i].reported = 0;
        }
        one->state = 3;
        CHECK_OK(gg_membership_died(m, r));
        break;
    case JOIN:
        g->joins_left--;
        one->state = 1;
        CHECK_OK(gg_membership_ready(m, r));
        break;
    case COPY:
        one->copied = 1;
        CHECK_OK(gg_membership_copied(m, r, g->view));
        become_whole(g);
        break;
    case ACTIONS: break;
    }
    took_effect(g, m);
    for (int i = 0; i < MAX; ++i)
        if (g->phase == GG_PHASE_GOAL && counts(g, i)) CHECK(g->rank[i].done + g->rank[i].in_step <= g->goal);
}

static group group_of(const setting *s) {
    group g;
    memset(&g, 0, sizeof g);
    for (int r = 0; r < s->members; ++r) g.rank[r] = (rank){.state = 2, .whole = 1};
    g.deaths_left = (unsigned char)s->deaths;
    g.joins_left = (unsigned char)s->joins;
    return g;
}

/* ---- all orders: every state that some order reaches, once ---- */

typedef struct path {
    int length;
    unsigned char step[PATH]; /* action * MAX + rank */
} path;

typedef struct search {
    path *states; /* a shortest path to each */
    group *seen;  /* a table of their keys */
    bool *used;
    int count;
} search;

static bool is_new(search *s, const group *g) {
    uint64_t hash = 1469598103934665603u;
    for (size_t i = 0; i < sizeof *g; ++i) hash = (hash ^ ((const unsigned char *)g)[i]) * 1099511628211u;
    for (size_t at = hash % TABLE;; at = (at + 1) % TABLE) {
        if (!s->used[at]) {
            s->used[at] = true;
            s->seen[at] = *g;
            return true;
        }
        if (memcmp(&s->seen[at], g, sizeof *g) == 0) return false;
    }
}

static void replay(const setting *how, const path *p, group *g, gg_membership **m) {
    *g = group_of(how);
    CHECK_OK(gg_membership_create(how->members, how->most, how->least, m));
    for (int i = 0; i < p->length; ++i) act(g, *m, (action)(p->step[i] / MAX), p->step[i] % MAX);
}

/* Returns the number of states; every one without a successor must be a good end. */
static int search_all(search *s, const setting *how) {
    group g = group_of(how);
    gg_membership *m;
    int ended = 0;
    memset(s->used, 0, TABLE * sizeof *s->used);
    s->count = 0;
    is_new(s, &g);
    s->states[s->count++] = (path){0};
    for (int at = 0; at < s->count && check_failed == 0; ++at) {
        const path from = s->states[at];
        bool goes_on = false;
        for (int step = 0; step < ACTIONS * MAX; ++step) {
            const int r = step % MAX;
            if (r >= how->most) continue;
            replay(how, &from, &g, &m);
            if (allowed(how, &g, m, (action)(step / MAX), r)) {
                goes_on = true;
                act(&g, m, (action)(step / MAX), r);
                if (is_new(s, &g) && CHECK(s->count < STATES && from.length < PATH)) {
                    path *to = &s->states[s->count++];
                    *to = from;
                    to->step[to->length++] = (unsigned char)step;
                }
            }
            gg_membership_destroy(m);
        }
        if (goes_on) continue;
        replay(how, &from, &g, &m);
        ++ended;
        CHECK(g.phase == GG_PHASE_RUN || g.phase == GG_PHASE_ENDED); /* nobody waits for ever */
        int living = 0;
        for (int r = 0; r < MAX; ++r) {
            living += counts(&g, r);
            if (g.phase == GG_PHASE_RUN && counts(&g, r)) CHECK(g.rank[r].done >= how->steps);
        }
        CHECK((g.phase == GG_PHASE_ENDED) == (living < how->least));
        gg_membership_destroy(m);
    }
    CHECK(ended > 0);
    return s->count;
}

static void test_all_orders(void) {
    static const setting settings[] = {
        {1, 1, 1, 2, 1, 0}, {2, 2, 1, 2, 1, 0}, {2, 2, 1, 2, 2, 0}, {2, 3, 1, 2, 1, 1}, {3, 3, 1, 1, 2, 0},
        {3, 3, 2, 2, 1, 0}, {2, 4, 1, 1, 1, 2}, {4, 4, 1, 1, 1, 0}, {3, 4, 1, 1, 1, 1},
    };
    search s = {0};
    CHECK_OK(gg_alloc(STATES * sizeof *s.states, "paths", &s.states));
    CHECK_OK(gg_alloc(TABLE * sizeof *s.seen, "keys", &s.seen));
    CHECK_OK(gg_alloc(TABLE * sizeof *s.used, "keys", &s.used));
    for (size_t i = 0; i < sizeof settings / sizeof *settings; ++i)
        printf("%d members: %d states\n", settings[i].members, search_all(&s, &settings[i]));
    gg_free(s.states);
    gg_free(s.seen);
    gg_free(s.used);
}

/* ---- single events ---- */

static void test_late_events(void) {
    gg_membership *m;
    const int64_t none = -1, five = 5;
    CHECK_OK(gg_membership_create(3, 4, 1, &m));
    CHECK_OK(gg_membership_limit(m, 0, 7)); /* nothing stops */
    CHECK_OK(gg_membership_died(m, 1));
    CHECK_OK(gg_membership_died(m, 1));
    CHECK_OK(gg_membership_limit(m, 1, 9)); /* dead */
    CHECK_OK(gg_membership_limit(m, 0, 6));
    CHECK_OK(gg_membership_report(m, 0, 1, &none)); /* no goal yet */
    CHECK_INT(gg_membership_goal(m), -1);
    CHECK_OK(gg_membership_limit(m, 2, 8));
    CHECK_INT(gg_membership_goal(m), 8);
    CHECK_OK(gg_membership_report(m, 0, 1, &five));
    CHECK_OK(gg_membership_report(m, 2, 0, &none)); /* of fewer deaths */
    CHECK_INT(gg_membership_phase(m), GG_PHASE_GOAL);
    CHECK_OK(gg_membership_report(m, 2, 1, &none));
    const gg_view *view = gg_membership_view(m);
    CHECK(view->number == 1 && view->start == 8 && view->members == 2 && view->member[0] == 0 && view->member[1] == 2);
    CHECK(view->dead == 1 && view->died[0] == 1 && view->last[0] == 5);
    CHECK_OK(gg_membership_ready(m, 1)); /* an identity does not come back */
    CHECK_INT(gg_membership_phase(m), GG_PHASE_RUN);
    CHECK_FAILS(gg_membership_died(m, 4), GG_ERROR_ARGUMENT, "death of rank 4; allowed: 0 to 3");
    CHECK_OK(gg_membership_died(m, 0));
    CHECK_FAILS(gg_membership_limit(m, 2, 7), GG_ERROR_ARGUMENT, "from step 8 on, where view 1 began");
    gg_membership_destroy(m);
    CHECK_OK(gg_membership_create(2, 3, 1, &m));
    CHECK_OK(gg_membership_ready(m, 2));
    for (int r = 0; r < 2; ++r) CHECK_OK(gg_membership_limit(m, r, 1));
    for (int r = 0; r < 2; ++r) CHECK_OK(gg_membership_report(m, r, 0, &none));
    CHECK_INT(gg_membership_view(m)->donor[2], 0);
    CHECK_OK(gg_membership_died(m, 1));
    CHECK_OK(gg_membership_copied(m, 2, 1)); /* too late: it copies again in the next view */
    CHECK_OK(gg_membership_limit(m, 0, 1));
    CHECK_INT(gg_membership_goal(m), 1);
    gg_membership_destroy(m);
    CHECK_FAILS(gg_membership_create(2, 1, 1, &m), GG_ERROR_ARGUMENT, "2 members of at most 1");
    CHECK_FAILS(gg_membership_create(2, 2, 3, &m), GG_ERROR_ARGUMENT, "3 must live");
}

/* A death during a change for a newcomer: limits, goal and the newcomer are told anew, and it comes with a later view.
 */
static void test_newcomers_apart(void) {
    gg_membership *m;
    const int64_t none = -1, four = 4;
    CHECK_OK(gg_membership_create(3, 5, 1, &m));
    gg_membership_keep_apart(m);
    CHECK(gg_membership_is_new(m, 3));
    CHECK_OK(gg_membership_ready(m, 3));
    for (int r = 0; r < 3; ++r) CHECK_OK(gg_membership_limit(m, r, 5));
    CHECK_INT(gg_membership_goal(m), 5);
    CHECK_OK(gg_membership_died(m, 1));
    CHECK(gg_membership_phase(m) == GG_PHASE_STOPPING && gg_membership_goal(m) == -1 && gg_membership_is_new(m, 3));
    CHECK_OK(gg_membership_ready(m, 3)); /* not now */
    CHECK_OK(gg_membership_limit(m, 0, 4));
    CHECK_OK(gg_membership_limit(m, 2, 4));
    CHECK_INT(gg_membership_goal(m), 4);
    for (int r = 0; r < 3; r += 2) CHECK_OK(gg_membership_report(m, r, 1, &four));
    const gg_view *view = gg_membership_view(m);
    CHECK(view->number == 1 && view->start == 4 && view->members == 2 && view->dead == 1);
    CHECK_OK(gg_membership_ready(m, 3));
    for (int r = 0; r < 3; r += 2) CHECK_OK(gg_membership_limit(m, r, 6));
    for (int r = 0; r < 3; r += 2) CHECK_OK(gg_membership_report(m, r, 0, &none));
    view = gg_membership_view(m);
    CHECK(view->number == 2 && view->members == 3 && view->member[2] == 3 && view->donor[2] == 0);
    /* The donor dies before the copy is whole: another one in the next view, which begins at the same step. */
    CHECK_OK(gg_membership_died(m, 0));
    CHECK_OK(gg_membership_copied(m, 3, 2));
    CHECK_OK(gg_membership_limit(m, 3, 0)); /* it has made no step */
    CHECK_OK(gg_membership_limit(m, 2, 6));
    CHECK_OK(gg_membership_report(m, 2, 1, &none));
    view = gg_membership_view(m);
    CHECK(view->number == 3 && view->start == 6 && view->members == 2 && view->donor[1] == 2);
    CHECK_OK(gg_membership_copied(m, 3, 3));
    CHECK_INT(gg_membership_view(m)->donor[1], -1);
    gg_membership_destroy(m);
}

/* A rank dies after one of two newcomers has its copy. That newcomer does not train yet: the others need no limit and
 * no report of it, and both copy in the next view. */
static void test_half_of_the_copies(void) {
    gg_membership *m;
    const int64_t none = -1;
    CHECK_OK(gg_membership_create(2, 4, 1, &m));
    gg_membership_keep_apart(m);
    for (int r = 2; r < 4; ++r) CHECK_OK(gg_membership_ready(m, r));
    for (int r = 0; r < 2; ++r) CHECK_OK(gg_membership_limit(m, r, 5));
    for (int r = 0; r < 2; ++r) CHECK_OK(gg_membership_report(m, r, 0, &none));
    CHECK_OK(gg_membership_copied(m, 2, 1));
    const gg_view *view = gg_membership_view(m);
    CHECK(view->members == 4 && view->donor[2] >= 0 && view->donor[3] >= 0);
    CHECK_OK(gg_membership_died(m, 0));
    CHECK_OK(gg_membership_limit(m, 1, 5));
    CHECK_OK(gg_membership_report(m, 1, 1, &none));
    CHECK(view->number == 2 && view->members == 3);
    CHECK(view->donor[0] == -1 && view->donor[1] == 1 && view->donor[2] == 1);
    CHECK_OK(gg_membership_copied(m, 3, 2)); /* the copy of the former view does not count */
    CHECK(view->donor[1] == 1 && view->donor[2] == 1);
    CHECK_OK(gg_membership_copied(m, 2, 2));
    CHECK(view->donor[1] == -1 && view->donor[2] == -1);
    gg_membership_destroy(m);
}

int main(void) {
    test_late_events();
    test_half_of_the_copies();
    test_newcomers_apart();
    test_all_orders();
    CHECK_INT(gg_memory_live_bytes(), 0);
    return CHECK_RESULT;
}
