#include "comm/team.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "comm/collective.h"
#include "comm/device_order.h"
#include "comm/local.h"
#include "comm/mpi/mpi_transport.h"
#include "comm/subgroup.h"
#include "comm/virtual/virtual_views.h"

struct gg_team {
    const char *kind;
    gg_virtual *cluster;     /* virtual only */
    gg_transport *transport; /* all others */
    gg_halt *halt;           /* the transport's, of several processes */
    int size, local;
    atomic_int references;
    bool measured;
    gg_link link;
    gg_transport *net;     /* of kind net, without a slow network around it; owned by `transport` */
    gg_views *views;       /* NULL means that the ranks never change */
    gg_views *deaths;      /* gg_team_fail_on_death's; NULL means that it was not called */
    int ranks;             /* with views: identities */
    gg_transport **member; /* with views: one a local rank that lives, in the view's order; then those of the dead and
                              of newcomers */
    int *place;            /* with views: of each rank of the cluster in the view; -1 means none */
    int *dead;             /* with views: the dead as numbers of this view */
    int *donor;            /* with views: gg_team_donor of each rank of the view */
    int donor_identity;    /* a newcomer's donor */
    int64_t number;        /* with views: of the view that changes */
    bool running;          /* with views: between gg_team_view_begin and gg_team_view_end */
    bool newcomer;         /* of a process of its own; false after it has joined */
    bool trained;          /* gg_team_train */
    int64_t taken;         /* number of the view of the last gg_team_change_view; 0 means none */
};

static gg_status team_make(const char *kind, gg_team **out) {
    GG_TRY(gg_calloc(1, sizeof **out, "team", out));
    (*out)->kind = kind;
    (*out)->size = (*out)->local = 1;
    atomic_init(&(*out)->references, 1);
    return GG_OK;
}

static void set_checks(gg_team *team) {
    const char *choice = getenv("GOSSIPGRAD_CHECK_BUFFERS");
    bool wanted = choice != NULL && *choice != '\0' && strcmp(choice, "0") != 0;
    for (int i = 0; i < team->local; ++i) gg_team_transport(team, i)->check_buffers = wanted;
}

gg_status gg_team_create_single(gg_team **out) {
    gg_status status = GG_OK;
    gg_team *team = NULL;
    GG_TRY_CLEANUP(team_make("single", &team));
    GG_TRY_CLEANUP(gg_local_transport_create(&team->transport));
cleanup:
    if (status != GG_OK) gg_team_release(team), team = NULL;
    *out = team;
    return status;
}

static gg_status slow_down(gg_team *team, const gg_network *network) {
    gg_transport *slow = NULL;
    if (network == NULL) return GG_OK;
    GG_TRY(gg_network_transport_create(team->transport, network, &slow));
    team->transport = slow;
    return GG_OK;
}

gg_status gg_team_create_mpi(bool use_world, int fortran_handle, const gg_network *network, double timeout,
                             gg_team **out) {
    gg_status status = GG_OK;
    gg_team *team = NULL;
    GG_TRY_CLEANUP(team_make("mpi", &team));
    GG_TRY_CLEANUP(gg_mpi_transport_create(use_world, fortran_handle, timeout, &team->transport));
    team->size = team->transport->size;
    team->halt = gg_mpi_transport_halt(team->transport);
    GG_TRY_CLEANUP(slow_down(team, network));
    set_checks(team);
cleanup:
    if (status != GG_OK) gg_team_release(team), team = NULL;
    *out = team;
    return status;
}

/* Every local rank's transport becomes a view of the group, whose members may change; a newcomer's one of itself. */
static gg_status make_members(gg_team *team, const int *present, int count) {
    const int ranks = team->ranks;
    GG_TRY(gg_calloc((size_t)ranks, sizeof *team->dead, "dead ranks", &team->dead));
    GG_TRY(gg_calloc((size_t)ranks, sizeof *team->place, "places", &team->place));
    GG_TRY(gg_calloc((size_t)ranks, sizeof *team->donor, "donors", &team->donor));
    GG_TRY(gg_calloc((size_t)ranks, sizeof(gg_transport *), "members", &team->member));
    for (int i = 0; i < ranks; ++i) team->place[i] = team->donor[i] = -1;
    for (int i = 0; i < count; ++i) team->place[present[i]] = i;
    for (int i = 0; i < gg_team_most_local(team); ++i) {
        gg_transport *own = team->cluster != NULL ? gg_virtual_transport(team->cluster, i) : team->transport;
        const bool there = team->place[own->rank] >= 0;
        GG_TRY(gg_subgroup_create(own, there ? present : &own->rank, there ? count : 1, &team->member[i]));
        team->member[i]->mortal = team->views != NULL;
    }
    return GG_OK;
}

static gg_status make_view_members(gg_team *team) {
    const gg_view *view = team->views->table->view(team->views);
    return make_members(team, view->member, view->members);
}

/* The place of an identity in the view; -1 means none. */
static int place_in(const gg_view *view, int identity) {
    int place = view->members - 1;
    while (place >= 0 && view->member[place] != identity) --place;
    return place;
}

/* Called in each round of a wait. A rank tells its limit here while it waits for another that stands at its limit. */
static gg_status watch_views(void *context, int64_t begun) {
    const gg_team *team = context;
    const int *dead;
    gg_phase phase;
    int64_t goal;
    GG_TRY(
        team->views->table->look(team->views, team->running ? GG_VIEW_WAITS : GG_VIEW_OUTSIDE, begun, &phase, &goal));
    const gg_view *view = team->views->table->view(team->views);
    for (int i = team->views->table->dead(team->views, &dead) - 1; i >= 0; --i)
        gg_net_transport_died(team->net, dead[i]);
    for (int i = 0; i < view->dead; ++i) gg_net_transport_died(team->net, view->died[i]);
    return GG_OK;
}

/* Without views a group of processes has the first members alone. */
static gg_status make_first_members(gg_team *team, const gg_net *net) {
    gg_status status = GG_OK;
    const int count = gg_net_members(net);
    int *first = NULL;
    if (gg_net_rank(net) >= count)
        GG_FAIL_CLEANUP(GG_ERROR_STATE,
                        "a newcomer makes a group that others cannot join; allowed: a Trainer, whose fit "
                        "joins the others, an Exchange, and a wrapped module");
    GG_TRY_CLEANUP(gg_calloc((size_t)count, sizeof *first, "members", &first));
    for (int i = 0; i < count; ++i) first[i] = i;
    GG_TRY_CLEANUP(make_members(team, first, count));
cleanup:
    gg_free(first);
    return status;
}

/* Before any message of the group: it would wait for ranks that have died. */
static gg_status check_unchanged(const gg_net *net, gg_views *views) {
    const gg_view *view = views->table->view(views);
    if (view->number == 0 || place_in(view, gg_net_rank(net)) < 0) return GG_OK; /* else a newcomer */
    return gg_fail(GG_ERROR_STATE,
                   "rank %d: the ranks have changed since the script's first training (%lld times); allowed then: that "
                   "training alone. Save, and start the job again for another one",
                   gg_net_rank(net), (long long)view->number);
}

gg_status gg_team_create_net(gg_net *net, const gg_network *network, double timeout, gg_views *views, gg_team **out) {
    gg_status status = GG_OK;
    gg_team *team = NULL;
    GG_TRY_CLEANUP(team_make("net", &team));
    team->views = views;
    if (views != NULL) GG_TRY_CLEANUP(check_unchanged(net, views));
    GG_TRY_CLEANUP(gg_net_transport_create(net, timeout, &team->transport));
    team->size = team->ranks = team->transport->size;
    team->net = team->transport;
    /* Ranks that may die stop together by their views alone. */
    const bool newcomers = gg_net_members(net) < team->size;
    if (views != NULL) gg_net_transport_survive(team->transport, watch_views, team);
    else if (team->size > 1 && !newcomers) team->halt = gg_net_transport_halt(team->transport);
    GG_TRY_CLEANUP(slow_down(team, network));
    if (views != NULL) GG_TRY_CLEANUP(make_view_members(team));
    else if (newcomers) GG_TRY_CLEANUP(make_first_members(team, net));
    team->newcomer = newcomers && team->place[team->transport->rank] < 0;
    if (newcomers) team->size = team->member[0]->size;
    set_checks(team);
cleanup:
    if (team == NULL && views != NULL) views->table->destroy(views);
    if (status != GG_OK) gg_team_release(team), team = NULL;
    *out = team;
    return status;
}

static gg_status look_for_deaths(void *context) {
    const gg_team *team = context;
    const gg_view *view = team->deaths->table->view(team->deaths);
    const int *dead, count = team->deaths->table->dead(team->deaths, &dead);
    int died = count > 0 ? dead[0] : team->size;
    for (int i = 0; i < died && view->members > 0; ++i)
        if (i >= view->members || view->member[i] != i) died = i;
    if (died >= team->size) return GG_OK; /* a newcomer */
    return gg_fail(
        GG_ERROR_PEER,
        "rank %d: rank %d has died, and a gg.Team does not go on without it; allowed: collective calls of the "
        "Exchange, wrapped module or Trainer that does",
        gg_team_rank(team), died);
}

void gg_team_fail_on_death(gg_team *team, gg_views *views) {
    team->deaths = views;
    gg_net_transport_look(team->net, look_for_deaths, team);
}

gg_status gg_team_create_virtual(const gg_virtual_options *options, gg_team **out) {
    gg_status status = GG_OK;
    gg_team *team = NULL;
    GG_TRY_CLEANUP(team_make("virtual", &team));
    GG_TRY_CLEANUP(gg_virtual_create(options, &team->cluster));
    team->ranks = options->size;
    team->size = team->local = options->size - options->newcomers;
    if (options->death_count > 0 || options->newcomers > 0) {
        GG_TRY_CLEANUP(gg_virtual_views_create(team->cluster, options->joins, options->newcomers, &team->views));
        GG_TRY_CLEANUP(make_view_members(team));
    }
    set_checks(team);
cleanup:
    if (status != GG_OK) gg_team_release(team), team = NULL;
    *out = team;
    return status;
}

void gg_team_retain(gg_team *team) { atomic_fetch_add(&team->references, 1); }

void gg_team_release(gg_team *team) {
    if (team == NULL || atomic_fetch_sub(&team->references, 1) != 1) return;
    for (int i = 0; team->member != NULL && i < team->ranks; ++i) gg_transport_destroy(team->member[i]);
    if (team->cluster != NULL) gg_virtual_destroy(team->cluster);
    gg_transport_destroy(team->transport); /* which may look at the views */
    if (team->views != NULL) team->views->table->destroy(team->views);
    if (team->deaths != NULL) team->deaths->table->destroy(team->deaths);
    gg_free(team->member);
    gg_free(team->place);
    gg_free(team->dead);
    gg_free(team->donor);
    gg_free(team);
}

const char *gg_team_kind(const gg_team *team) { return team->kind; }
int gg_team_size(const gg_team *team) { return team->size; }
int gg_team_rank(const gg_team *team) {
    if (team->cluster != NULL) return 0;
    if (team->newcomer) return team->transport->rank;
    return team->member != NULL ? team->member[0]->rank : team->transport->rank;
}
int gg_team_local(const gg_team *team) { return team->local; }
int gg_team_most_local(const gg_team *team) { return team->cluster != NULL ? gg_virtual_size(team->cluster) : 1; }

gg_transport *gg_team_transport(gg_team *team, int local) {
    if (team->member != NULL) return team->member[local];
    return team->cluster ? gg_virtual_transport(team->cluster, local) : team->transport;
}

int gg_team_identities(const gg_team *team) { return team->views != NULL ? team->ranks : team->size; }

int gg_team_identity(gg_team *team, int local) { return gg_team_transport(team, local)->identity; }

void gg_team_set_timeout(gg_team *team, double seconds) {
    for (int i = 0; i < team->local; ++i) gg_team_transport(team, i)->timeout = seconds;
    /* Transports of members pass their waits on. */
    if (team->member != NULL && team->transport != NULL) team->transport->timeout = seconds;
    for (int i = 0; team->member != NULL && team->cluster != NULL && i < team->ranks; ++i)
        gg_virtual_transport(team->cluster, i)->timeout = seconds;
}

bool gg_team_get_clock(gg_team *team, int local, gg_virtual_clock *out) {
    if (team->cluster) *out = gg_virtual_get_clock(team->cluster, gg_team_identity(team, local));
    return team->cluster != NULL;
}

bool gg_team_set_clock(gg_team *team, int local, gg_virtual_clock clock) {
    if (team->cluster) gg_virtual_set_clock(team->cluster, gg_team_identity(team, local), clock);
    return team->cluster != NULL;
}

gg_status gg_team_halt_begin(gg_team *team, int64_t step) {
    gg_status status = GG_OK;
    int64_t *rounds = NULL, round = 0;
    bool idle = false;
    if (team->halt == NULL) goto cleanup;
    for (int pause = 0;; ++pause) {
        GG_TRY_CLEANUP(gg_halt_idle(team->halt, &idle));
        if (idle) break;
        GG_TRY_CLEANUP(gg_pause(team->transport, pause, -1));
    }
    /* Equal on all ranks, even if one left an earlier round before it began. */
    GG_TRY_CLEANUP(gg_alloc((size_t)team->size * sizeof *rounds, "rounds of all ranks", &rounds));
    round = gg_halt_round(team->halt);
    GG_TRY_CLEANUP(gg_agree(team->transport, &round, sizeof round, rounds));
    for (int rank = 0; rank < team->size; ++rank)
        if (rounds[rank] > round) round = rounds[rank];
    gg_halt_begin(team->halt, round + 1, step);
cleanup:
    gg_free(rounds);
    return status;
}

void gg_team_halt_end(gg_team *team) {
    if (team->halt != NULL) gg_halt_end(team->halt);
}

/* A wait of this rank at its limit, `seconds` long so far: as those of the transport. */
static gg_status halt_pause(gg_transport *transport, double *due, int round, double seconds) {
    const gg_service *service = &transport->service;
    bool busy;
    if (service->serve != NULL) GG_TRY(service->serve(service->context, &busy));
    GG_TRY(gg_progress(transport));
    if (transport->timeout > 0 && seconds >= transport->timeout)
        return gg_fail(GG_ERROR_COMM, "rank %d: waited %.3f s for the steps at which all of %d ranks can stop",
                       transport->rank, seconds, transport->size);
    if (transport->table->check_peer != NULL && gg_check_due(due, round))
        GG_TRY(transport->table->check_peer(transport, -1));
    return gg_pause(transport, round, -1);
}

gg_status gg_team_halt_until(gg_team *team, int64_t step, int64_t next, bool want, int64_t *until) {
    *until = next;
    if (team->halt == NULL) return GG_OK;
    GG_TRY(gg_halt_look(team->halt, next, want));
    const double begin = gg_halt_waits(team->halt, step) ? gg_clock_now() : 0;
    double due = 0;
    for (int round = 0; gg_halt_waits(team->halt, step); ++round) {
        GG_TRY(halt_pause(team->transport, &due, round, gg_clock_now() - begin));
        GG_TRY(gg_halt_listen(team->halt));
    }
    *until = gg_halt_until(team->halt, next);
    return GG_OK;
}

/* ---- views ---- */

/* The view of a team whose ranks may die. */
static const gg_view *current(const gg_team *team) { return team->views->table->view(team->views); }

const gg_view *gg_team_view(const gg_team *team) { return team->views != NULL ? current(team) : NULL; }

void gg_team_view_begin(gg_team *team, int64_t step) {
    if (team->views != NULL) team->views->table->begin(team->views, step);
    team->running = true;
}

void gg_team_view_end(gg_team *team) { team->running = false; }

void gg_team_view_stands(gg_team *team, int64_t step) {
    gg_team_view_begin(team, step);
    gg_team_view_end(team);
}

/* True if the views know that this member of the current view has died. */
static bool has_died(const gg_team *team, int identity) {
    const int *dead, count = team->views->table->dead(team->views, &dead);
    for (int i = 0; i < count; ++i)
        if (dead[i] == identity) return true;
    return false;
}

/* The error of a rank whose process lives, though the others have declared it dead. */
static gg_status check_lives(const gg_team *team) {
    const int own = team->net != NULL ? team->net->rank : -1;
    if (own < 0 || (place_in(current(team), own) >= 0 && !has_died(team, own))) return GG_OK;
    return gg_fail(GG_ERROR_PEER, "rank %d has been declared dead; the others go on without it", own);
}

/* Others may need messages that are still on their way. */
static gg_status wait_round(gg_transport *transport, int round) {
    GG_TRY(gg_progress(transport));
    return gg_pause(transport, round, -1);
}

/* True if a death that the views know of has broken a step. */
static bool is_broken(const gg_team *team) {
    const int *dead;
    return team->views->breaks && team->views->table->dead(team->views, &dead) > 0;
}

/* The phase after a look. Waits while the others' limits decide on the goal; `within` a run of steps not after a death
 * that breaks one, because others may be in it. */
static gg_status look_for_goal(gg_team *team, int local, bool within, int64_t step, gg_phase *phase, int64_t *goal) {
    const int identity = within ? gg_team_identity(team, local) : -1;
    for (int round = 0;; ++round) {
        GG_TRY(team->views->table->look(team->views, identity, step, phase, goal));
        if (*phase != GG_PHASE_STOPPING || (within && is_broken(team))) return GG_OK;
        GG_TRY(wait_round(team->member[local], round));
    }
}

/* A view may have begun after a step that only ranks that have died since had made. */
static int64_t told_step(const gg_team *team, int64_t step) {
    const int64_t start = team->views->breaks ? current(team)->start : step;
    return start > step ? start : step;
}

gg_status gg_team_view_stops(gg_team *team, int local, int64_t step, bool *stops) {
    gg_phase phase;
    int64_t goal;
    *stops = false;
    if (team->views == NULL) return GG_OK;
    GG_TRY(look_for_goal(team, local, true, told_step(team, step), &phase, &goal));
    *stops = phase == GG_PHASE_ENDED || (phase != GG_PHASE_RUN && is_broken(team)) ||
             (phase == GG_PHASE_GOAL && step >= goal);
    return GG_OK;
}

void gg_team_view_breaks(gg_team *team, bool breaks) {
    if (team->views != NULL) team->views->breaks = breaks;
}

gg_status gg_team_await_change(gg_team *team, int64_t step) {
    gg_phase phase;
    int64_t goal;
    for (int round = 0;; ++round) {
        GG_TRY(team->views->table->look(team->views, -1, told_step(team, step), &phase, &goal));
        if (phase == GG_PHASE_ENDED || is_broken(team)) return GG_OK; /* not for newcomers */
        GG_TRY(wait_round(team->member[0], round));
    }
}

gg_status gg_team_view_changes(gg_team *team, int64_t step, bool *changes, int *deaths, const int **dead) {
    const int *identities;
    gg_phase phase;
    int64_t goal;
    *changes = false;
    *deaths = 0;
    *dead = team->dead;
    if (team->views == NULL) return GG_OK;
    const gg_view *view;
    do { /* a death that the view tells of has a goal of its own */
        GG_TRY(look_for_goal(team, 0, false, told_step(team, step), &phase, &goal));
        *deaths = team->views->table->dead(team->views, &identities);
        view = current(team);
    } while (team->views->table->dead(team->views, &identities) != *deaths);
    team->number = view->number;
    for (int i = 0, place = 0; i < *deaths; ++place)
        if (view->member[place] == identities[i]) team->dead[i++] = place;
    if (phase == GG_PHASE_ENDED)
        return gg_fail(GG_ERROR_PEER, "%d of %d ranks have died by step %lld, and fewer than min_ranks live", *deaths,
                       view->members, (long long)step);
    *changes = phase == GG_PHASE_GOAL && (is_broken(team) || step >= goal);
    return *changes ? check_lives(team) : GG_OK;
}

int64_t gg_team_made(gg_team *team, int identity) { return team->views->table->made(team->views, identity); }

gg_status gg_team_report(gg_team *team, int local, int deaths, const int64_t *received) {
    return team->views->table->report(team->views, gg_team_identity(team, local), deaths, received);
}

gg_status gg_team_await_view(gg_team *team, int deaths, bool *again) {
    gg_views *views = team->views;
    const int *dead;
    for (int round = 0;; ++round) {
        const bool next = views->table->view(views)->number != team->number;
        *again = !next && views->table->dead(views, &dead) != deaths;
        if (next) return check_lives(team);
        if (*again) return GG_OK;
        GG_TRY(wait_round(team->member[0], round));
    }
}

void *gg_team_ledger(gg_team *team, int identity) {
    return team->views != NULL ? team->views->table->ledger(team->views, identity) : NULL;
}

void gg_team_train(gg_team *team, bool trains) {
    team->trained = team->trained || trains;
    if (team->views != NULL && team->net != NULL) gg_net_transport_train(team->net, trains);
    if (team->views != NULL && team->views->table->train != NULL) team->views->table->train(team->views, trains);
}

static gg_status hear_votes(gg_team *team) {
    for (int rank = 0; team->net != NULL;) {
        int64_t vote;
        GG_TRY(gg_net_transport_hear_vote(team->net, &rank, &vote));
        if (rank < 0) break;
        team->views->table->heard(team->views, rank, vote);
    }
    return GG_OK;
}

gg_status gg_team_decide(gg_team *team, bool done, bool *all) {
    gg_views *views = team->views;
    *all = done;
    if (views == NULL || views->table->vote == NULL) return GG_OK;
    const int64_t vote = views->table->vote(views, done);
    if (team->net != NULL) GG_TRY(gg_net_transport_tell_vote(team->net, vote));
    for (int round = 0;; ++round) {
        GG_TRY(hear_votes(team));
        if (views->table->decided(views, all)) return GG_OK;
        GG_TRY(wait_round(team->member[0], round));
    }
}

/* The index of a local rank's transport, from `from` on; -1 if the rank is not local. */
static int member_of(const gg_team *team, int identity, int from) {
    for (int at = from; at < gg_team_most_local(team); ++at)
        if (team->member[at]->identity == identity) return at;
    return -1;
}

/* Moves the transport of a living local rank to this place among the local ones; false if the rank is not local. */
static bool move_to(gg_team *team, int identity, int place) {
    const int at = member_of(team, identity, place);
    if (at < 0) return false;
    gg_transport *one = team->member[at];
    team->member[at] = team->member[place];
    team->member[place] = one;
    return true;
}

gg_transport *gg_team_newcomer(gg_team *team, int identity) {
    const int at = member_of(team, identity, team->local);
    return at >= 0 ? team->member[at] : NULL;
}

/* Newcomers of a virtual cluster begin when the last of the others stands at the change. */
static void admit(gg_team *team) {
    const gg_view *view = current(team);
    double now = 0;
    for (int i = 0; i < team->local; ++i) {
        const double clock = gg_transport_now(team->member[i]);
        if (clock > now) now = clock;
    }
    for (int i = 0; i < view->members; ++i) gg_virtual_admit(team->cluster, view->member[i], now);
}

gg_status gg_team_change_view(gg_team *team) {
    int living = 0;
    if (team->cluster != NULL) admit(team);
    const gg_view *view = current(team);
    GG_TRY(check_lives(team));
    if (team->net != NULL) GG_TRY(gg_net_transport_admit(team->net, view->member, view->members));
    team->newcomer = false;
    team->taken = view->number;
    for (int i = 0; i < view->members; ++i) team->donor[i] = place_in(view, view->donor[i]);
    if (team->net != NULL) team->donor_identity = view->donor[place_in(view, team->net->rank)];
    for (int rank = 0; rank < team->ranks; ++rank) team->place[rank] = -1;
    for (int i = 0; i < view->members; ++i) {
        if (!move_to(team, view->member[i], living)) continue;
        team->place[view->member[i]] = living;
        GG_TRY(gg_subgroup_regroup(team->member[living++], view->member, view->members));
    }
    team->size = view->members;
    team->local = living;
    return GG_OK;
}

bool gg_team_is_newcomer(const gg_team *team) { return team->newcomer; }

bool gg_team_is_outdated(const gg_team *team) {
    return team->net != NULL && team->views != NULL && !team->newcomer && current(team)->number != team->taken;
}

gg_status gg_team_is_changing(gg_team *team, bool *changing) {
    gg_phase phase = GG_PHASE_RUN;
    int64_t goal;
    if (team->net != NULL && team->views != NULL && !team->newcomer && !team->trained)
        GG_TRY(team->views->table->look(team->views, -1, current(team)->start, &phase, &goal));
    *changing = phase != GG_PHASE_RUN;
    return GG_OK;
}

gg_status gg_team_await_member(gg_team *team, double seconds, bool *member) {
    const int own = team->transport->rank;
    const double begin = gg_clock_now();
    team->views->table->announce(team->views);
    for (*member = false; !*member;) {
        const gg_view *view = current(team);
        for (int i = 0; i < view->members && view->number > team->taken; ++i)
            *member = *member || (view->member[i] == own && view->donor[i] >= 0);
        if (*member || gg_clock_now() - begin > seconds) return GG_OK;
        gg_clock_sleep(0.001);
    }
    return GG_OK;
}

int64_t gg_team_taken(const gg_team *team) { return team->taken; }

int gg_team_donor(const gg_team *team, int rank) { return team->donor[rank]; }

int gg_team_next_taker(gg_team *team, int local, int after) {
    const int own = gg_team_transport(team, local)->rank;
    for (int rank = after + 1; rank < gg_team_size(team); ++rank)
        if (team->donor[rank] == own) return rank;
    return -1;
}

gg_status gg_team_greet(gg_team *team, int rank) {
    return team->net != NULL ? gg_net_transport_greet(team->net, current(team)->member[rank], team->taken) : GG_OK;
}

gg_status gg_team_await_greeting(gg_team *team) {
    const int64_t own = gg_net_transport_channel(team->net), start = current(team)->start;
    const int donor = team->donor_identity;
    for (int round = 0;; ++round) {
        gg_phase phase;
        int64_t number, goal;
        GG_TRY(gg_net_transport_hear_greeting(team->net, donor, team->taken, &number));
        if (number == own) return GG_OK;
        if (number >= 0)
            return gg_fail(GG_ERROR_ARGUMENT,
                           "this newcomer cannot join: it has made %lld of its script's groups of ranks, the others "
                           "%lld; allowed: the first training of a script",
                           (long long)own + 1, (long long)number + 1);
        GG_TRY(team->views->table->look(team->views, -1, start, &phase, &goal));
        if (current(team)->number != team->taken || has_died(team, donor))
            return gg_fail(GG_ERROR_PEER, "rank %d, a donor, has died", donor);
        GG_TRY(wait_round(team->member[0], round));
    }
}

static bool all_whole(const gg_view *view) {
    for (int i = 0; i < view->members; ++i)
        if (view->donor[i] >= 0) return false;
    return true;
}

bool gg_team_is_whole(const gg_team *team) { return all_whole(current(team)); }

gg_status gg_team_await_whole(gg_team *team, bool *whole) {
    gg_phase phase = GG_PHASE_RUN;
    int64_t goal;
    const int64_t start = current(team)->start;
    for (int round = 0;; ++round) {
        const bool next = current(team)->number != team->taken; /* came without this rank, which had no state */
        *whole = !next && all_whole(current(team));
        if (*whole || next || phase != GG_PHASE_RUN) return GG_OK;
        GG_TRY(wait_round(team->member[0], round));
        GG_TRY(team->views->table->look(team->views, -1, start, &phase, &goal));
    }
}

gg_status gg_team_copied(gg_team *team, int local) {
    return team->views->table->copied(team->views, gg_team_identity(team, local), team->taken);
}

/* ---- runs ---- */

typedef struct placed {
    const gg_team *team;
    gg_status (*fn)(void *context, int local);
    void *context;
} placed;

static gg_status run_placed(void *context, int rank) {
    const placed *p = context;
    const int local = p->team->place != NULL ? p->team->place[rank] : rank;
    return local >= 0 ? p->fn(p->context, local) : GG_OK;
}

typedef struct measurement {
    gg_team *team;
    size_t bytes;
} measurement;

static gg_status team_measure(void *context, int local) {
    const measurement *m = context;
    gg_link link;
    GG_TRY(gg_link_measure(gg_team_transport(m->team, local), m->bytes, &link));
    if (local == 0) m->team->link = link;
    return GG_OK;
}

/* Without a virtual cluster there is one local rank, and its clock is real time. */
static gg_status measure_alone(measurement *m) {
    gg_transport *transport = m->team->transport;
    const int64_t bytes = transport->bytes_sent, messages = transport->messages_sent;
    const double timeout = transport->timeout;
    transport->timeout = 0;
    gg_status status = team_measure(m, 0);
    transport->timeout = timeout;
    transport->bytes_sent = bytes;
    transport->messages_sent = messages;
    return status;
}

gg_status gg_team_link(gg_team *team, size_t bytes, gg_link *out) {
    measurement m = {.team = team, .bytes = bytes};
    placed p = {.team = team, .fn = team_measure, .context = &m};
    if (!team->measured)
        GG_TRY(team->cluster ? gg_virtual_run_aside(team->cluster, run_placed, &p) : measure_alone(&m));
    team->measured = true;
    *out = team->link;
    return GG_OK;
}

bool gg_team_known_link(const gg_team *team, gg_link *out) {
    *out = team->link;
    return team->measured;
}

void gg_team_set_link(gg_team *team, const gg_link *link) {
    team->link = *link;
    team->measured = true;
}

gg_status gg_team_run(gg_team *team, gg_status (*fn)(void *context, int local), void *context) {
    return gg_team_run_watched(team, fn, context, &(gg_watch){0});
}

gg_status gg_team_run_watched(gg_team *team, gg_status (*fn)(void *context, int local), void *context,
                              const gg_watch *watch) {
    if (team->cluster != NULL)
        return gg_virtual_run_watched(team->cluster, run_placed, &(placed){.team = team, .fn = fn, .context = context},
                                      watch);
    const gg_float_mode former = gg_parallel_enter();
    gg_status status = fn(context, 0);
    if (status == GG_OK) status = gg_device_order_flush(team->transport); /* the caller may wait for other ranks */
    gg_parallel_leave(former);
    return status;
}
