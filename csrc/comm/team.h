/* A team: the ranks that train together. Some are local to this process.
 *
 * A single rank, a rank of MPI and one of net have one local rank; in a virtual cluster all ranks are local. Training
 * runs a function on every local rank and need not know the kind. Used by one thread at a time. */
#ifndef GG_COMM_TEAM_H
#define GG_COMM_TEAM_H

#include "comm/link.h"
#include "comm/net/net.h"
#include "comm/transport.h"
#include "comm/view.h"
#include "comm/virtual/virtual.h"

typedef struct gg_team gg_team;

gg_status gg_team_create_single(gg_team **out);
/* Over a duplicate of an MPI communicator, as gg_mpi_transport_create; slowed down by `network` unless it is NULL. MPI
 * must have been started. Collective. */
gg_status gg_team_create_mpi(bool use_world, int fortran_handle, const gg_network *network, double timeout,
                             gg_team **out);
/* Over links without MPI, as gg_net_transport_create; `net` outlives the team. views: this rank's (comm/view_pages.h),
 * freed with the team, also on failure: ranks may die. NULL means that a death ends all. A newcomer is alone, its rank
 * its identity, until it joins; GG_ERROR_STATE without views. GG_ERROR_STATE for a member after a change of the view.
 * Collective. */
gg_status gg_team_create_net(gg_net *net, const gg_network *network, double timeout, gg_views *views, gg_team **out);
/* Waits of more than a second fail with GG_ERROR_PEER when a rank of this group has died. views: as above, with which
 * others go on. The group is of kind net, and was made without. */
void gg_team_fail_on_death(gg_team *team, gg_views *views);
gg_status gg_team_create_virtual(const gg_virtual_options *options, gg_team **out);
void gg_team_retain(gg_team *team);
void gg_team_release(gg_team *team); /* the last release destroys; NULL is a no-op */

const char *gg_team_kind(const gg_team *team); /* "single", "mpi", "net", "virtual" */
int gg_team_size(const gg_team *team);
int gg_team_rank(const gg_team *team);       /* of the first local rank */
int gg_team_local(const gg_team *team);      /* number of local ranks */
int gg_team_most_local(const gg_team *team); /* that can ever be at once, at most */
gg_transport *gg_team_transport(gg_team *team, int local);
void gg_team_set_timeout(gg_team *team, double seconds);
/* Gets or sets a local rank's virtual clock, with nothing in flight. False means that the clock is real. */
bool gg_team_get_clock(gg_team *team, int local, gg_virtual_clock *out);
bool gg_team_set_clock(gg_team *team, int local, gg_virtual_clock clock);

/* Stops all processes after one common step when a rank wants to stop (comm/halt.h); other teams ask nobody.
 *
 * - Begin is called before a round of steps, after `step` steps. Collective; another collective call must precede the
 *   first gg_team_halt_until.
 * - Until: this rank has made `step` steps and is about to train to `next`. *until receives `next`, less if a rank
 *   wants to stop, and `step` if all ranks stop there. Only then does the call wait, for messages that others send
 *   between two of their calls or during waits. */
gg_status gg_team_halt_begin(gg_team *team, int64_t step);
void gg_team_halt_end(gg_team *team);
gg_status gg_team_halt_until(gg_team *team, int64_t step, int64_t next, bool want, int64_t *until);

/* ---- teams that outlive ranks ----
 *
 * The ranks of such a team are the members of its current view: sizes, ranks and local numbers count these alone, in
 * the view's order. The transports stay where they are while their ranks change. Until a change is complete
 * (gg_team_change_view) the dead keep their numbers, and a newcomer is alone in a group of its own. */

/* NULL means that the ranks never change. Valid until the next change. */
const gg_view *gg_team_view(const gg_team *team);
int gg_team_identities(const gg_team *team);    /* that can ever be; the size if the ranks never change */
int gg_team_identity(gg_team *team, int local); /* of a local rank; its number if the ranks never change */
/* Begins a run of steps; all local ranks have made `step`. */
void gg_team_view_begin(gg_team *team, int64_t step);
void gg_team_view_end(gg_team *team); /* the run has ended */
/* A run of no steps: later waits may be those of collective calls, which end before a view with newcomers begins. */
void gg_team_view_stands(gg_team *team, int64_t step);
/* True if a death breaks the step of all ranks: gg_views.breaks. */
void gg_team_view_breaks(gg_team *team, bool breaks);
/* A death has kept this process's ranks, which have made `step` steps, from what they did: waits until the views know
 * of it. Not in a run. */
gg_status gg_team_await_change(gg_team *team, int64_t step);
/* A local rank has made `step` steps and is about to begin another. *stops: it must not, because the view changes here.
 * Called on the rank's thread; waits only if the others' limits decide. */
gg_status gg_team_view_stops(gg_team *team, int local, int64_t step, bool *stops);
/* After a run that has ended at `step`: the ranks that have died since the view began, as numbers of this view,
 * ascending; the team's own. *changes: the view is to change at this step; false also if the ranks first go on to a
 * later one. Waits only while the others' limits are not known. GG_ERROR_PEER if too few live, and, here as in the
 * calls below, if this process's rank has been declared dead. */
gg_status gg_team_view_changes(gg_team *team, int64_t step, bool *changes, int *deaths, const int **dead);
/* After gg_team_view_changes: the step to which the others train before a death changes the view, if this process's
 * ranks have not made it; else -1. Until then no collective call of all can be completed. */
int64_t gg_team_goal(const gg_team *team);
int64_t gg_team_made(gg_team *team, int identity); /* whole steps of a dead rank */
/* A living local rank stands at the goal. received: one a dead rank, as in gg_membership_report. */
gg_status gg_team_report(gg_team *team, int local, int deaths, const int64_t *received);
/* After a collective operation outside of steps: this process's ranks have completed it (`done`), or a death has kept
 * them from that. *all: all members have; equal on all ranks. If false, the view changes at this step, and the next
 * view's members make the operation again. GG_ERROR_COMM after the timeout if the connection to a member has broken. */
gg_status gg_team_decide(gg_team *team, bool done, bool *all);
/* Waits for the next view after the reports of all local ranks that live. *again: more ranks have died instead: ask
 * gg_team_view_changes again, settle, and report again. */
gg_status gg_team_await_view(gg_team *team, int deaths, bool *again);
/* Memory of a rank that outlives it (gg_views_table); NULL if the ranks never change. */
void *gg_team_ledger(gg_team *team, int identity);
void gg_team_train(gg_team *team, bool trains); /* tells that this process's ranks train, or do so no more */
/* The transport of a newcomer of the awaited view, if it is in this process; else NULL. */
gg_transport *gg_team_newcomer(gg_team *team, int identity);
/* Takes the view that has been awaited. Nothing is in flight. Not collective. */
gg_status gg_team_change_view(gg_team *team);
/* True for a newcomer of its own process that has not joined. */
bool gg_team_is_newcomer(const gg_team *team);
/* Of ranks that are processes: true if the view has changed, and this team has not, because another one has trained
 * since this one was made. */
bool gg_team_is_outdated(const gg_team *team);
/* Of ranks that are processes, in a team that has not trained: a change of the view has begun. */
gg_status gg_team_is_changing(gg_team *team, bool *changing);
/* This newcomer has built all but its state. *member: within `seconds` a view has come with it as a member that has no
 * state, later than the view of the last gg_team_change_view. */
gg_status gg_team_await_member(gg_team *team, double seconds, bool *member);
/* A local newcomer has a whole copy of its donor's state in the view that was taken. */
gg_status gg_team_copied(gg_team *team, int local);
/* The number of the view that the last gg_team_change_view has taken. A later view may have come: it comes without a
 * newcomer that has no state. */
int64_t gg_team_taken(const gg_team *team);
/* The rank of that view that gives its state to `rank`; -1 means that `rank` has a state. */
int gg_team_donor(const gg_team *team, int rank);
/* The next rank after `after` that takes this local rank's state; -1 means none. The first one follows -1. */
int gg_team_next_taker(gg_team *team, int local, int after);
/* A donor greets a newcomer before it gives its state; the newcomer, of its own process, waits for the greeting.
 * GG_ERROR_ARGUMENT if their groups differ, because their scripts have made other numbers of them: no message of the
 * one reaches the other. GG_ERROR_PEER if the donor has died. */
gg_status gg_team_greet(gg_team *team, int rank);
gg_status gg_team_await_greeting(gg_team *team);
/* True if all newcomers of the view have a state. Before that nobody makes a step. */
bool gg_team_is_whole(const gg_team *team);
/* Waits until all newcomers of the view have it. *whole: false if a rank has died before: the view changes again. */
gg_status gg_team_await_whole(gg_team *team, bool *whole);

/* Runs fn(context, local) for every local rank, each on its own thread if there are several; returns after the last.
 * They compute in gg_cpu_compute_mode; the calling thread's mode is restored. */
gg_status gg_team_run(gg_team *team, gg_status (*fn)(void *context, int local), void *context);
/* Like gg_team_run, watched by gg_virtual_run_watched if the ranks are virtual; otherwise `watch` is ignored. */
gg_status gg_team_run_watched(gg_team *team, gg_status (*fn)(void *context, int local), void *context,
                              const gg_watch *watch);
/* Cost of messages between these ranks (gg_link_measure), measured at the first call. Advances no virtual clock, counts
 * no messages, waits without timeout. Collective, with nothing in flight. */
gg_status gg_team_link(gg_team *team, size_t bytes, gg_link *out);
/* The measured cost, if there is one; a newcomer's is that of its donor. */
bool gg_team_known_link(const gg_team *team, gg_link *out);
void gg_team_set_link(gg_team *team, const gg_link *link);

#endif
