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
#include "comm/team_private.h"
#include "comm/virtual/virtual_views.h"

static gg_status team_make(const char *kind, gg_team **out) {
    GG_TRY(gg_calloc(1, sizeof **out, "team", out));
    (*out)->kind = kind;
    (*out)->goal = -1;
    (*out)->size = (*out)->local = 1;
    atomic_init(&(*out)->references, 1);
    return GG_OK;
}

static void set_checks(gg_team *team) {
    const char *choice = getenv("GOSSIPGRAD_CHECK_BUFFERS");
    bool wanted = choice != NULL && *choice != '\0' && strcmp(choice, "0") != 0;
    for (int i = 0; i < gg_team_most_local(team); ++i) {
        gg_transport *behind = team->cluster != NULL ? gg_virtual_transport(team->cluster, i) : team->transport;
        gg_team_transport(team, i)->check_buffers = behind->check_buffers = wanted;
    }
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
    if (view->number == 0 || gg_view_place(view, gg_net_rank(net)) < 0) return GG_OK; /* else a newcomer */
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
