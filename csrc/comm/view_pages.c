#include "comm/view_pages.h"

#include <stdatomic.h>
#include <string.h>

#include "base/memory.h"

/* Written by a rank; `limit_of` and `report_of` last, as signs that the rest is there. A line of its own. */
typedef struct rank_page {
    _Alignas(64) _Atomic int64_t step; /* steps made at the last look, or begin */
    _Atomic int64_t limit, limit_of;   /* limit_of: stop_of the change */
    _Atomic int64_t report_of;         /* sign_of the report */
    _Atomic int64_t trains;            /* gg_view_keeper_trains */
    _Atomic int64_t vote;              /* vote_of the last operation */
    _Atomic int64_t ready;             /* a newcomer */
    _Atomic int64_t copied_of;         /* the view in which it has copied its donor's state; its number + 1 */
} rank_page;

/* The first numbers of a slot. The lists follow, `most` numbers each: of the view its members, donors, the dead before
 * it and their last steps; the dead since. */
enum { NUMBER = 0, START, GOAL, PHASE, MEMBERS, DIED_BEFORE, DEATHS, HEAD };
enum { MEMBER = 0, DONOR, DIED, LAST, DEAD, LISTS };

/* The shared memory. The keeper writes the slot that is not current, then `version`, whose lowest bit is the current
 * slot. A reader's copy is whole if the version has not changed meanwhile, so it never waits for a keeper that died. */
typedef struct pages {
    _Atomic uint64_t *version;
    rank_page *rank;
    _Atomic int64_t *slot[2];
    _Atomic int64_t *received; /* a row for each rank */
    unsigned char *ledger;     /* GG_LEDGER_BYTES of each rank */
    int most;
} pages;

static size_t rounded(size_t bytes) { return (bytes + 63) / 64 * 64; }
static size_t slot_bytes(int most) { return rounded((HEAD + LISTS * (size_t)most) * sizeof(int64_t)); }

static size_t received_bytes(int most) { return rounded((size_t)most * (size_t)most * sizeof(int64_t)); }

static pages pages_at(void *memory, int most) {
    unsigned char *at = memory;
    pages p = {.version = memory, .most = most};
    at += rounded(sizeof *p.version);
    p.rank = (rank_page *)at;
    at += (size_t)most * sizeof *p.rank;
    for (int i = 0; i < 2; ++i) p.slot[i] = (_Atomic int64_t *)(at + (size_t)i * slot_bytes(most));
    p.received = (_Atomic int64_t *)(at + 2 * slot_bytes(most));
    p.ledger = at + 2 * slot_bytes(most) + received_bytes(most);
    return p;
}

size_t gg_view_pages_bytes(int most) {
    const size_t n = (size_t)most;
    return rounded(sizeof(uint64_t)) + n * (sizeof(rank_page) + GG_LEDGER_BYTES) + 2 * slot_bytes(most) +
           received_bytes(most);
}

/* A vote on operation `number` of a view. A later one says that the rank had completed the earlier ones, and that all
 * others had. */
static int64_t vote_of(int64_t view, int64_t number, bool done) { return (view << 32) + (number << 1) + done; }

#define FROZEN ((int64_t)1 << 62) /* in a vote: no other one is heard */

/* A change that began for newcomers wants other limits after a death. */
static int64_t stop_of(int64_t view, int deaths) { return 2 * view + (deaths > 0) + 1; }

static int64_t sign_of(int64_t view, int deaths) { return (view << 16) + deaths + 1; }

static void put(_Atomic int64_t *to, int64_t value) { atomic_store_explicit(to, value, memory_order_relaxed); }
static int64_t get(_Atomic int64_t *from) { return atomic_load_explicit(from, memory_order_relaxed); }

/* ---- the keeper ---- */

struct gg_view_keeper {
    pages pages;
    gg_membership *membership;
    int64_t *received;
};

static void publish(gg_view_keeper *k) {
    const gg_view *view = gg_membership_view(k->membership);
    const int *dead, most = k->pages.most;
    const int deaths = gg_membership_dead(k->membership, &dead);
    const uint64_t version = atomic_load_explicit(k->pages.version, memory_order_relaxed) + 1;
    _Atomic int64_t *slot = k->pages.slot[version % 2], *list = slot + HEAD;
    atomic_thread_fence(memory_order_release);
    put(&slot[NUMBER], view->number);
    put(&slot[START], view->start);
    put(&slot[GOAL], gg_membership_goal(k->membership));
    put(&slot[PHASE], gg_membership_phase(k->membership));
    put(&slot[MEMBERS], view->members);
    put(&slot[DIED_BEFORE], view->dead);
    put(&slot[DEATHS], deaths);
    for (int i = 0; i < view->members; ++i) put(&list[MEMBER * most + i], view->member[i]);
    for (int i = 0; i < view->members; ++i) put(&list[DONOR * most + i], view->donor[i]);
    for (int i = 0; i < view->dead; ++i) put(&list[DIED * most + i], view->died[i]);
    for (int i = 0; i < view->dead; ++i) put(&list[LAST * most + i], view->last[i]);
    for (int i = 0; i < deaths; ++i) put(&list[DEAD * most + i], dead[i]);
    atomic_store_explicit(k->pages.version, version, memory_order_release);
}

static bool waits(const gg_view_keeper *k, int identity) {
    return atomic_load_explicit(&k->pages.rank[identity].ready, memory_order_acquire) != 0 &&
           gg_membership_is_new(k->membership, identity);
}

gg_status gg_view_keeper_create(void *memory, int members, int most, int least, gg_view_keeper **out) {
    gg_status status = GG_OK;
    gg_view_keeper *k = NULL;
    *out = NULL;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *k, "keeper of a membership", &k));
    GG_TRY_CLEANUP(gg_membership_create(members, most, least, &k->membership));
    gg_membership_keep_apart(k->membership);
    GG_TRY_CLEANUP(gg_calloc((size_t)most, sizeof *k->received, "received steps", &k->received));
    k->pages = pages_at(memory, most);
    publish(k);
    *out = k;
    k = NULL;
cleanup:
    gg_view_keeper_destroy(k);
    return status;
}

gg_status gg_view_keeper_restore(gg_view_keeper *k, const void *published) {
    gg_status status = GG_OK;
    const int most = k->pages.most;
    int64_t head[HEAD], *list = NULL;
    int *members = NULL;
    memcpy(head, published, sizeof head);
    GG_TRY_CLEANUP(gg_alloc((size_t)(LISTS * most) * sizeof *list, "lists of a view", &list));
    GG_TRY_CLEANUP(gg_alloc((size_t)(LISTS * most) * sizeof *members, "lists of a view", &members));
    memcpy(list, (const unsigned char *)published + sizeof head, (size_t)(LISTS * most) * sizeof *list);
    for (int i = 0; i < LISTS * most; ++i) members[i] = (int)list[i];
    const gg_view view = {.number = head[NUMBER],
                          .start = head[START],
                          .members = (int)head[MEMBERS],
                          .member = members + MEMBER * most,
                          .donor = members + DONOR * most,
                          .dead = (int)head[DIED_BEFORE],
                          .died = members + DIED * most,
                          .last = list + LAST * most};
    GG_TRY_CLEANUP(gg_membership_restore(k->membership, (gg_phase)head[PHASE], head[GOAL], &view, (int)head[DEATHS],
                                         members + DEAD * most));
    /* Those for whom the view changes are told of again: the change may stand without a death. */
    for (int i = 0; i < most && head[PHASE] != GG_PHASE_RUN; ++i)
        if (waits(k, i)) GG_TRY_CLEANUP(gg_membership_ready(k->membership, i));
    publish(k);
cleanup:
    gg_free(list);
    gg_free(members);
    return status;
}

void gg_view_keeper_destroy(gg_view_keeper *k) {
    if (k == NULL) return;
    gg_membership_destroy(k->membership);
    gg_free(k->received);
    gg_free(k);
}

const gg_membership *gg_view_keeper_membership(const gg_view_keeper *k) { return k->membership; }

static gg_status read_limit(gg_view_keeper *k, int identity) {
    rank_page *rank = &k->pages.rank[identity];
    const int *dead;
    const int deaths = gg_membership_dead(k->membership, &dead);
    const int64_t of = atomic_load_explicit(&rank->limit_of, memory_order_acquire);
    if (of != stop_of(gg_membership_view(k->membership)->number, deaths)) return GG_OK;
    return gg_membership_limit(k->membership, identity, get(&rank->limit));
}

static gg_status read_report(gg_view_keeper *k, int identity) {
    const pages *p = &k->pages;
    const int *dead;
    const int64_t sign = atomic_load_explicit(&p->rank[identity].report_of, memory_order_acquire);
    const int deaths = gg_membership_dead(k->membership, &dead);
    if (sign != sign_of(gg_membership_view(k->membership)->number, deaths)) return GG_OK;
    for (int i = 0; i < deaths; ++i) k->received[i] = get(&p->received[identity * p->most + i]);
    return gg_membership_report(k->membership, identity, deaths, k->received);
}

/* Members of the current view that have no state yet. */
static int unwhole(const gg_view_keeper *k) {
    const gg_view *view = gg_membership_view(k->membership);
    int count = 0;
    for (int i = 0; i < view->members; ++i) count += view->donor[i] >= 0;
    return count;
}

bool gg_view_keeper_rests(const gg_view_keeper *k) {
    bool rests = gg_membership_phase(k->membership) == GG_PHASE_RUN && unwhole(k) == 0;
    for (int i = 0; i < k->pages.most && rests; ++i) rests = !waits(k, i);
    return rests;
}

/* While no view changes: copies of newcomers, and then those that are ready. */
static gg_status read_newcomers(gg_view_keeper *k) {
    const int64_t number = gg_membership_view(k->membership)->number;
    for (int i = 0; i < k->pages.most; ++i)
        if (atomic_load_explicit(&k->pages.rank[i].copied_of, memory_order_acquire) == number + 1)
            GG_TRY(gg_membership_copied(k->membership, i, number));
    for (int i = 0; i < k->pages.most && unwhole(k) == 0; ++i)
        if (waits(k, i)) GG_TRY(gg_membership_ready(k->membership, i));
    return GG_OK;
}

gg_status gg_view_keeper_poll(gg_view_keeper *k, gg_phase *phase) {
    const gg_phase before = gg_membership_phase(k->membership);
    const int64_t number = gg_membership_view(k->membership)->number;
    const int lacking = unwhole(k);
    if (before == GG_PHASE_RUN) GG_TRY(read_newcomers(k));
    for (int i = 0; i < k->pages.most && gg_membership_phase(k->membership) == GG_PHASE_STOPPING; ++i)
        GG_TRY(read_limit(k, i));
    for (int i = 0; i < k->pages.most && gg_membership_phase(k->membership) == GG_PHASE_GOAL; ++i)
        GG_TRY(read_report(k, i));
    *phase = gg_membership_phase(k->membership);
    if (*phase != before || gg_membership_view(k->membership)->number != number || unwhole(k) != lacking) publish(k);
    return GG_OK;
}

static bool trains(const pages *p, int identity) {
    return atomic_load_explicit(&p->rank[identity].trains, memory_order_acquire) != 0;
}

bool gg_view_keeper_trains(const gg_view_keeper *k, int identity) { return trains(&k->pages, identity); }

gg_status gg_view_keeper_died(gg_view_keeper *k, int identity) {
    GG_TRY(gg_membership_died(k->membership, identity));
    publish(k);
    return GG_OK;
}

/* ---- mirrors ---- */

enum { PAGE_WORDS = sizeof(rank_page) / sizeof(int64_t) };

static _Atomic int64_t *words_of(const pages *p, int identity) { return (_Atomic int64_t *)&p->rank[identity]; }

static bool is_sign(int word) {
    return word == offsetof(rank_page, limit_of) / sizeof(int64_t) ||
           word == offsetof(rank_page, report_of) / sizeof(int64_t);
}

static bool is_vote(int word) { return word == offsetof(rank_page, vote) / sizeof(int64_t); }

/* A vote is final: the greater one is the newer. */
static void take_vote(_Atomic int64_t *to, int64_t vote, int64_t closed) {
    int64_t was = atomic_load(to);
    while ((was & closed) == 0 && was < vote && !atomic_compare_exchange_weak(to, &was, vote)) continue;
}

static unsigned char *ledger_of(const pages *p, int identity) { return p->ledger + (size_t)identity * GG_LEDGER_BYTES; }

size_t gg_view_pages_told_bytes(int most) { return (PAGE_WORDS + (size_t)most + GG_LEDGER_TOLD) * sizeof(int64_t); }

void gg_view_pages_told(void *memory, int most, int identity, void *to) {
    const pages p = pages_at(memory, most);
    _Atomic int64_t *page = words_of(&p, identity), *row = &p.received[identity * most];
    int64_t *out = to;
    for (int i = 0; i < PAGE_WORDS; ++i) /* signs first: what they promise is there */
        if (is_sign(i)) out[i] = atomic_load_explicit(&page[i], memory_order_acquire);
    for (int i = 0; i < PAGE_WORDS; ++i)
        if (!is_sign(i)) out[i] = get(&page[i]);
    for (int i = 0; i < most; ++i) out[PAGE_WORDS + i] = get(&row[i]);
    gg_ledger_told(ledger_of(&p, identity), out + PAGE_WORDS + most);
}

void gg_view_pages_tell(void *memory, int most, int identity, const void *from) {
    const pages p = pages_at(memory, most);
    _Atomic int64_t *page = words_of(&p, identity), *row = &p.received[identity * most];
    const int64_t *in = from;
    bool old = false;
    gg_ledger_tell(ledger_of(&p, identity), in + PAGE_WORDS + most);
    for (int i = 0; i < PAGE_WORDS; ++i) {
        if (is_vote(i)) take_vote(&page[i], in[i], 0);
        old = old || (is_sign(i) && in[i] < get(&page[i]));
    }
    if (old) return;
    for (int i = 0; i < most; ++i) put(&row[i], in[PAGE_WORDS + i]);
    for (int i = 0; i < PAGE_WORDS; ++i)
        if (!is_sign(i) && !is_vote(i)) put(&page[i], in[i]);
    for (int i = 0; i < PAGE_WORDS; ++i)
        if (is_sign(i)) atomic_store_explicit(&page[i], in[i], memory_order_release);
}

void gg_view_pages_freeze(void *memory, int most, int identity) {
    const pages p = pages_at(memory, most);
    (void)atomic_fetch_or(&p.rank[identity].vote, FROZEN);
}

bool gg_view_pages_trains(void *memory, int most, int identity) {
    const pages p = pages_at(memory, most);
    return trains(&p, identity);
}

size_t gg_view_pages_published_bytes(int most) { return slot_bytes(most); }

void gg_view_pages_published(void *memory, int most, void *to) {
    const pages p = pages_at(memory, most);
    _Atomic int64_t *slot = p.slot[atomic_load(p.version) % 2];
    int64_t *out = to;
    for (size_t i = 0; i < slot_bytes(most) / sizeof *out; ++i) out[i] = get(&slot[i]);
}

void gg_view_pages_publish(void *memory, int most, const void *from) {
    const pages p = pages_at(memory, most);
    const uint64_t version = atomic_load_explicit(p.version, memory_order_relaxed) + 1;
    const int64_t *in = from;
    atomic_thread_fence(memory_order_release);
    for (size_t i = 0; i < slot_bytes(most) / sizeof *in; ++i) put(&p.slot[version % 2][i], in[i]);
    atomic_store_explicit(p.version, version, memory_order_release);
}

int gg_view_pages_view(void *memory, int most, int64_t *number, int64_t *start, int *member) {
    const pages p = pages_at(memory, most);
    _Atomic int64_t *slot = p.slot[atomic_load(p.version) % 2];
    const int members = (int)get(&slot[MEMBERS]);
    *number = get(&slot[NUMBER]);
    *start = get(&slot[START]);
    for (int i = 0; i < members; ++i) member[i] = (int)get(&slot[HEAD + MEMBER * most + i]);
    return members;
}

/* ---- a rank ---- */

/* A rank's copy of the keeper's last slot. */
typedef struct page_views {
    gg_views head; /* first: a gg_views is cast to this */
    pages pages;
    int identity;
    uint64_t version; /* of the copy */
    gg_phase phase;
    int64_t goal;
    gg_view view;
    int *list;     /* LISTS * most */
    int64_t *last; /* LAST's, whole: `list` has them as int */
    int dead;
    int64_t base;  /* steps that the rank has surely made */
    int64_t told;  /* stop_of the change for which this rank has told its limit */
    int64_t votes; /* of this rank in this view */
} page_views;

static page_views *views_of(gg_views *views) { return (page_views *)views; }

static void views_destroy(gg_views *views) {
    gg_free(views_of(views)->list);
    gg_free(views_of(views)->last);
    gg_free(views);
}

static void views_begin(gg_views *views, int64_t step) {
    page_views *v = views_of(views);
    v->base = step;
    put(&v->pages.rank[v->identity].step, step);
}

static void copy_slot(page_views *v, _Atomic int64_t *slot) {
    const int most = v->pages.most;
    v->phase = (gg_phase)get(&slot[PHASE]);
    v->goal = get(&slot[GOAL]);
    v->view.number = get(&slot[NUMBER]);
    v->view.start = get(&slot[START]);
    v->view.members = (int)get(&slot[MEMBERS]);
    v->view.dead = (int)get(&slot[DIED_BEFORE]);
    v->dead = (int)get(&slot[DEATHS]);
    for (int i = 0; i < LISTS * most; ++i) v->list[i] = (int)get(&slot[HEAD + i]);
    for (int i = 0; i < most; ++i) v->last[i] = get(&slot[HEAD + LAST * most + i]);
}

/* Reads what the keeper has published since. */
static void refresh(page_views *v) {
    const int64_t before = v->view.number;
    for (;;) {
        const uint64_t version = atomic_load_explicit(v->pages.version, memory_order_acquire);
        if (version == v->version) break;
        copy_slot(v, v->pages.slot[version % 2]);
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(v->pages.version, memory_order_relaxed) == version) v->version = version;
    }
    if (v->view.number == before) return;
    v->votes = 0;
}

static gg_status views_look(gg_views *views, int identity, int64_t step, gg_phase *phase, int64_t *goal) {
    page_views *v = views_of(views);
    rank_page *own = &v->pages.rank[v->identity];
    refresh(v);
    if (identity >= 0) put(&own->step, step);
    const int64_t stop = stop_of(v->view.number, v->dead), made = step > v->base ? step : v->base;
    const bool waits = identity == GG_VIEW_WAITS || identity == GG_VIEW_OUTSIDE;
    const bool broken = views->breaks && v->dead > 0;
    if (v->phase == GG_PHASE_STOPPING && v->told != stop && !(broken && waits)) {
        /* A collective call outside of a run ends before newcomers join, so the view changes a step later. After a
         * death the call cannot end. */
        put(&own->limit, made + (identity == GG_VIEW_OUTSIDE && v->dead == 0));
        atomic_store_explicit(&own->limit_of, stop, memory_order_release);
        v->told = stop;
    }
    *phase = v->phase;
    *goal = v->goal;
    return GG_OK;
}

static int views_dead(gg_views *views, const int **dead) {
    page_views *v = views_of(views);
    *dead = v->list + DEAD * v->pages.most;
    return v->dead;
}

static int64_t views_made(gg_views *views, int identity) { return get(&views_of(views)->pages.rank[identity].step); }

static gg_status views_report(gg_views *views, int identity, int deaths, const int64_t *received) {
    page_views *v = views_of(views);
    rank_page *own = &v->pages.rank[v->identity];
    (void)identity;
    for (int i = 0; i < deaths; ++i) put(&v->pages.received[v->identity * v->pages.most + i], received[i]);
    atomic_store_explicit(&own->report_of, sign_of(v->view.number, deaths), memory_order_release);
    return GG_OK;
}

static const gg_view *views_view(gg_views *views) {
    refresh(views_of(views));
    return &views_of(views)->view;
}

static void views_announce(gg_views *views) {
    page_views *v = views_of(views);
    atomic_store_explicit(&v->pages.rank[v->identity].ready, 1, memory_order_release);
}

static gg_status views_copied(gg_views *views, int identity, int64_t view) {
    page_views *v = views_of(views);
    (void)identity;
    atomic_store_explicit(&v->pages.rank[v->identity].copied_of, view + 1, memory_order_release);
    return GG_OK;
}

static void views_train(gg_views *views, bool trains) {
    page_views *v = views_of(views);
    atomic_store_explicit(&v->pages.rank[v->identity].trains, trains, memory_order_release);
}

static int64_t views_vote(gg_views *views, bool done) {
    page_views *v = views_of(views);
    refresh(v);
    v->votes++;
    const int64_t vote = vote_of(v->view.number, v->votes, done);
    atomic_store_explicit(&v->pages.rank[v->identity].vote, vote, memory_order_release);
    return vote;
}

static void views_heard(gg_views *views, int identity, int64_t vote) {
    page_views *v = views_of(views);
    if (vote > 0 && vote < FROZEN) take_vote(&v->pages.rank[identity].vote, vote, FROZEN);
}

static bool is_dead(const page_views *v, int identity) {
    for (int i = 0; i < v->dead; ++i)
        if (v->list[DEAD * v->pages.most + i] == identity) return true;
    return false;
}

/* One rank that cannot complete the operation decides. Its vote is final, as is that of a dead rank, whose death the
 * keeper tells after it has ended. So nobody ever sees the votes of all. */
static bool views_decided(gg_views *views, bool *all) {
    page_views *v = views_of(views);
    const int64_t wanted = vote_of(v->view.number, v->votes, true);
    bool failed = false;
    *all = true;
    refresh(v);
    for (int i = 0; i < v->view.members; ++i) {
        const int identity = v->view.member[i];
        const int64_t vote = atomic_load_explicit(&v->pages.rank[identity].vote, memory_order_acquire) & ~FROZEN;
        if (vote >= wanted) continue;
        *all = false;
        failed = failed || vote == wanted - 1 || is_dead(v, identity);
    }
    return *all || failed;
}

static void *views_ledger(gg_views *views, int identity) { return ledger_of(&views_of(views)->pages, identity); }

static const gg_views_table table = {
    .destroy = views_destroy,
    .begin = views_begin,
    .look = views_look,
    .dead = views_dead,
    .made = views_made,
    .report = views_report,
    .view = views_view,
    .announce = views_announce,
    .copied = views_copied,
    .train = views_train,
    .vote = views_vote,
    .heard = views_heard,
    .decided = views_decided,
    .ledger = views_ledger,
};

gg_status gg_view_pages_open(void *memory, int most, int identity, gg_views **out) {
    gg_status status = GG_OK;
    page_views *v = NULL;
    *out = NULL;
    if (identity < 0 || identity >= most)
        GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT, "views: identity %d; allowed: 0 to %d", identity, most - 1);
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *v, "views", &v));
    v->head.table = &table;
    v->pages = pages_at(memory, most);
    v->identity = identity;
    GG_TRY_CLEANUP(gg_calloc((size_t)(LISTS * most), sizeof *v->list, "views", &v->list));
    GG_TRY_CLEANUP(gg_calloc((size_t)most, sizeof *v->last, "views", &v->last));
    v->view.member = v->list + MEMBER * most;
    v->view.donor = v->list + DONOR * most;
    v->view.died = v->list + DIED * most;
    v->view.last = v->last;
    refresh(v);
    /* Others may look for the votes of an earlier object of this process. */
    const int64_t vote = atomic_load_explicit(&v->pages.rank[identity].vote, memory_order_relaxed);
    if (vote >> 32 == v->view.number) v->votes = (vote & UINT32_MAX) >> 1;
    *out = &v->head;
    v = NULL;
cleanup:
    if (v != NULL) views_destroy(&v->head);
    return status;
}
