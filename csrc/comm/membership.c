#include "comm/membership.h"

#include "base/memory.h"

typedef enum rank_state { UNKNOWN = 0, READY, MEMBER, DEAD } rank_state;

/* What is known of an identity. */
typedef struct known {
    rank_state state;
    bool whole;    /* a member with weights: others wait for it */
    bool copied;   /* in this view, but others have not */
    int64_t limit; /* -1 means not told since the view began */
    bool reported; /* since the last death */
    int64_t last;  /* DEAD in this view: greatest of the reports */
} known;

struct gg_membership {
    int most, least;
    bool apart;
    gg_phase phase;
    int64_t goal;
    known *rank; /* one an identity */
    gg_view view;
    int *member, *donor, *died; /* the view's; `most` each */
    int64_t *last;
    int *dead; /* since the view began, ascending */
    int deaths;
};

gg_status gg_membership_create(int members, int most, int least, gg_membership **out) {
    gg_status status = GG_OK;
    gg_membership *m = NULL;
    *out = NULL;
    if (members < 1 || most < members || least < 1 || least > members)
        GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT,
                        "membership: %d members of at most %d, of whom %d must live; allowed: 1 <= least <= members <= "
                        "most",
                        members, most, least);
    const size_t n = (size_t)most;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *m, "membership", &m));
    *m = (gg_membership){.most = most, .least = least, .goal = -1};
    GG_TRY_CLEANUP(gg_calloc(n, sizeof *m->rank, "membership", &m->rank));
    GG_TRY_CLEANUP(gg_calloc(n, sizeof *m->member, "members of a view", &m->member));
    GG_TRY_CLEANUP(gg_calloc(n, sizeof *m->donor, "donors of a view", &m->donor));
    GG_TRY_CLEANUP(gg_calloc(n, sizeof *m->died, "dead of a view", &m->died));
    GG_TRY_CLEANUP(gg_calloc(n, sizeof *m->last, "last steps of the dead", &m->last));
    GG_TRY_CLEANUP(gg_calloc(n, sizeof *m->dead, "dead members", &m->dead));
    for (int i = 0; i < members; ++i) {
        m->rank[i] = (known){.state = MEMBER, .whole = true, .limit = -1};
        m->member[i] = i;
        m->donor[i] = -1;
    }
    m->view = (gg_view){.members = members, .member = m->member, .donor = m->donor, .died = m->died, .last = m->last};
    *out = m;
    m = NULL;
cleanup:
    gg_membership_destroy(m);
    return status;
}

void gg_membership_keep_apart(gg_membership *m) { m->apart = true; }

void gg_membership_destroy(gg_membership *m) {
    if (m == NULL) return;
    gg_free(m->rank);
    gg_free(m->member);
    gg_free(m->donor);
    gg_free(m->died);
    gg_free(m->last);
    gg_free(m->dead);
    gg_free(m);
}

static bool ascending(const int *identities, int count, int most) {
    for (int i = 0; i < count; ++i)
        if (identities[i] <= (i > 0 ? identities[i - 1] : -1) || identities[i] >= most) return false;
    return true;
}

gg_status gg_membership_restore(gg_membership *m, gg_phase phase, int64_t goal, const gg_view *view, int deaths,
                                const int *dead) {
    if (phase < GG_PHASE_RUN || phase > GG_PHASE_ENDED || view->members < 1 || view->members > m->most ||
        view->dead < 0 || view->dead > m->most || deaths < 0 || deaths > view->members ||
        !ascending(view->member, view->members, m->most) || !ascending(view->died, view->dead, m->most) ||
        !ascending(dead, deaths, m->most))
        return gg_fail(GG_ERROR_ARGUMENT, "membership: this is no view of at most %d ranks", m->most);
    for (int i = 0; i < m->most; ++i) {
        const bool known_before = m->rank[i].state == MEMBER;
        m->rank[i] = (known){.state = known_before ? DEAD : UNKNOWN, .limit = -1, .last = -1};
    }
    for (int i = 0; i < view->members; ++i) {
        m->member[i] = view->member[i];
        m->donor[i] = view->donor[i];
        m->rank[view->member[i]] = (known){.state = MEMBER, .whole = view->donor[i] < 0, .limit = -1};
    }
    for (int i = 0; i < view->dead; ++i) {
        m->died[i] = view->died[i];
        m->last[i] = view->last[i];
        m->rank[view->died[i]].state = DEAD;
    }
    for (int i = 0; i < deaths; ++i) {
        m->dead[i] = dead[i];
        m->rank[dead[i]] = (known){.state = DEAD, .limit = -1, .last = -1};
    }
    m->deaths = deaths;
    m->phase = phase;
    m->goal = goal;
    m->view.number = view->number;
    m->view.start = view->start;
    m->view.members = view->members;
    m->view.dead = view->dead;
    return GG_OK;
}

/* A member for which the others wait. */
static bool counts(const known *one) { return one->state == MEMBER && one->whole; }

/* The member that gives its state to a newcomer: the next whole one after it, around the identities. */
static int donor_of(const gg_membership *m, int identity) {
    for (int i = 1; i < m->most; ++i)
        if (counts(&m->rank[(identity + i) % m->most])) return (identity + i) % m->most;
    return -1;
}

static void publish(gg_membership *m) {
    gg_view *view = &m->view;
    view->number++;
    view->start = m->goal;
    view->dead = m->deaths;
    for (int i = 0; i < m->deaths; ++i) {
        m->died[i] = m->dead[i];
        m->last[i] = m->rank[m->dead[i]].last;
    }
    view->members = 0;
    for (int i = 0; i < m->most; ++i) {
        known *one = &m->rank[i];
        if (one->state != MEMBER && one->state != READY) continue;
        m->member[view->members] = i;
        m->donor[view->members++] = counts(one) ? -1 : donor_of(m, i);
    }
    for (int i = 0; i < m->most; ++i) {
        if (m->rank[i].state == READY) m->rank[i].state = MEMBER;
        m->rank[i].limit = -1;
        m->rank[i].copied = m->rank[i].reported = false;
    }
    m->deaths = 0;
    m->goal = -1;
    m->phase = GG_PHASE_RUN;
}

/* Goes on to the next phase if nothing is missing for it. */
static void advance(gg_membership *m) {
    int living = 0, told = 0, reported = 0;
    int64_t goal = m->view.start;
    for (int i = 0; i < m->most; ++i) {
        const known *one = &m->rank[i];
        if (!counts(one)) continue;
        ++living;
        told += one->limit >= 0;
        reported += one->reported;
        if (one->limit > goal) goal = one->limit;
    }
    if (living < m->least) m->phase = GG_PHASE_ENDED;
    if (m->phase == GG_PHASE_STOPPING && told == living) {
        m->goal = goal;
        m->phase = GG_PHASE_GOAL;
    }
    if (m->phase == GG_PHASE_GOAL && reported == living) publish(m);
}

static void stop(gg_membership *m) {
    if (m->phase == GG_PHASE_RUN) m->phase = GG_PHASE_STOPPING;
}

/* A change for newcomers becomes one for a death. */
static void withdraw(gg_membership *m) {
    for (int i = 0; i < m->most; ++i) {
        if (m->rank[i].state == READY) m->rank[i].state = UNKNOWN;
        m->rank[i].limit = -1;
    }
    m->goal = -1;
    if (m->phase == GG_PHASE_GOAL) m->phase = GG_PHASE_STOPPING;
}

/* ---- events ---- */

static gg_status check(const gg_membership *m, const char *event, int identity) {
    if (identity >= 0 && identity < m->most) return GG_OK;
    return gg_fail(GG_ERROR_ARGUMENT, "%s of rank %d; allowed: 0 to %d", event, identity, m->most - 1);
}

gg_status gg_membership_died(gg_membership *m, int identity) {
    GG_TRY(check(m, "death", identity));
    known *one = &m->rank[identity];
    if (m->phase == GG_PHASE_ENDED || one->state == DEAD) return GG_OK;
    const bool member = one->state == MEMBER;
    *one = (known){.state = DEAD, .limit = -1, .last = -1};
    if (!member) return GG_OK;
    if (m->apart && m->deaths == 0) withdraw(m);
    int place = m->deaths++;
    for (; place > 0 && m->dead[place - 1] > identity; --place) m->dead[place] = m->dead[place - 1];
    m->dead[place] = identity;
    for (int i = 0; i < m->most; ++i) m->rank[i].reported = false;
    stop(m);
    advance(m);
    return GG_OK;
}

gg_status gg_membership_ready(gg_membership *m, int identity) {
    GG_TRY(check(m, "newcomer", identity));
    if (m->phase == GG_PHASE_ENDED || m->rank[identity].state != UNKNOWN) return GG_OK;
    if (m->apart && m->deaths > 0) return GG_OK;
    m->rank[identity] = (known){.state = READY, .limit = -1};
    stop(m);
    return GG_OK;
}

gg_status gg_membership_copied(gg_membership *m, int identity, int64_t view) {
    GG_TRY(check(m, "copy", identity));
    /* In a later phase its limit and report would be missing: it copies again in the next view. */
    if (m->phase != GG_PHASE_RUN || view != m->view.number || m->rank[identity].state != MEMBER) return GG_OK;
    m->rank[identity].copied = true;
    for (int i = 0; i < m->view.members; ++i)
        if (!m->rank[m->member[i]].whole && !m->rank[m->member[i]].copied) return GG_OK;
    for (int i = 0; i < m->view.members; ++i) {
        m->rank[m->member[i]].whole = true;
        m->donor[i] = -1;
    }
    return GG_OK;
}

gg_status gg_membership_limit(gg_membership *m, int identity, int64_t limit) {
    GG_TRY(check(m, "limit", identity));
    if (!counts(&m->rank[identity])) return GG_OK; /* also of a newcomer that copies, which has made no step */
    if (limit < m->view.start)
        return gg_fail(GG_ERROR_ARGUMENT,
                       "limit of rank %d: step %lld; allowed: from step %lld on, where view %lld began", identity,
                       (long long)limit, (long long)m->view.start, (long long)m->view.number);
    if (m->phase != GG_PHASE_STOPPING) return GG_OK;
    m->rank[identity].limit = limit;
    advance(m);
    return GG_OK;
}

gg_status gg_membership_report(gg_membership *m, int identity, int deaths, const int64_t *received) {
    GG_TRY(check(m, "report", identity));
    if (m->phase != GG_PHASE_GOAL || deaths != m->deaths || !counts(&m->rank[identity])) return GG_OK;
    for (int i = 0; i < deaths; ++i) {
        known *dead = &m->rank[m->dead[i]];
        if (received[i] > dead->last) dead->last = received[i];
    }
    m->rank[identity].reported = true;
    advance(m);
    return GG_OK;
}

/* ---- questions ---- */

gg_phase gg_membership_phase(const gg_membership *m) { return m->phase; }

int gg_membership_dead(const gg_membership *m, const int **dead) {
    *dead = m->dead;
    return m->deaths;
}

bool gg_membership_is_new(const gg_membership *m, int identity) {
    return identity >= 0 && identity < m->most && m->rank[identity].state == UNKNOWN;
}

bool gg_membership_lives(const gg_membership *m, int identity) {
    return identity >= 0 && identity < m->most && m->rank[identity].state == MEMBER;
}

int64_t gg_membership_goal(const gg_membership *m) { return m->goal; }
const gg_view *gg_membership_view(const gg_membership *m) { return &m->view; }
