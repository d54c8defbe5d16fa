/* A team whose ranks die and join: what it asks of its views, and how it takes the next one. */
#include "base/clock.h"
#include "comm/subgroup.h"
#include "comm/team_private.h"

/* The view of a team whose ranks may die. */
static const gg_view *current(const gg_team *team) { return team->views->table->view(team->views); }

const gg_view *gg_team_view(const gg_team *team) { return team->views != NULL ? current(team) : NULL; }

void gg_team_view_begin(gg_team *team, int64_t step) {
    if (team->views != NULL) team->views->table->begin(team->views, step);
    if (team->views != NULL && team->net != NULL) gg_transport_step_begun(team->net, step);
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
    if (own < 0 || (gg_view_place(current(team), own) >= 0 && !has_died(team, own))) return GG_OK;
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
    team->goal = -1;
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
    if (phase == GG_PHASE_GOAL && !*changes && *deaths > 0) team->goal = goal;
    return *changes ? check_lives(team) : GG_OK;
}

int64_t gg_team_goal(const gg_team *team) { return team->goal; }

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

/* The error of a rank that has waited for votes as long as it may, if one cannot come: its connection to a member that
 * nobody has declared dead has broken. */
static gg_status check_votes(const gg_team *team, double seconds) {
    if (team->net == NULL || team->transport->timeout <= 0 || seconds < team->transport->timeout) return GG_OK;
    const gg_view *view = current(team);
    for (int i = 0; i < view->members; ++i)
        if (gg_net_transport_is_cut_off(team->net, view->member[i]))
            return gg_fail(GG_ERROR_COMM,
                           "rank %d: waited %.3f s for the vote of rank %d, to which the connection has broken",
                           team->net->rank, seconds, view->member[i]);
    return GG_OK;
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
    const double begin = gg_clock_now();
    if (team->net != NULL) GG_TRY(gg_net_transport_tell_vote(team->net, vote));
    for (int round = 0;; ++round) {
        GG_TRY(hear_votes(team));
        if (views->table->decided(views, all)) return GG_OK;
        GG_TRY(check_votes(team, gg_clock_now() - begin));
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
    for (int i = 0; i < view->members; ++i) team->donor[i] = gg_view_place(view, view->donor[i]);
    if (team->net != NULL) team->donor_identity = view->donor[gg_view_place(view, team->net->rank)];
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
