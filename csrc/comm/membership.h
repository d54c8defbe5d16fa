/* Who trains: the state machine that decides on deaths and newcomers. Events in, a view out.
 *
 * Sends nothing, reads no clock and knows no transport. The virtual cluster, the launcher of one host and the
 * coordinator of several own one each and pass on what their ranks tell. Used by one thread at a time. A change of the
 * view has these phases:
 *
 *     RUN      -- a death, or a ready newcomer --> STOPPING
 *     STOPPING -- all have told their limits   --> GOAL
 *     GOAL     -- all have reported            --> RUN
 *
 * 1. STOPPING: each member tells its limit: the steps that it has made when the step that it is in ends.
 * 2. GOAL: the greatest limit is the goal. All members train to it, without the messages of the dead.
 * 3. At the goal each member reports the last step of each dead member whose messages it received whole.
 * 4. The next view begins at the goal. The samples of a dead member count up to the last such step that any member
 *    reports; later ones are read again.
 *
 * Another death in any phase enlarges the set of the dead. A known goal stays, except as gg_membership_keep_apart says;
 * reports are then told anew.
 *
 * A newcomer is a member from the next view on. All newcomers of a view become whole together, when each has a copy of
 * its donor's state. Until then nobody waits for them. If the view changes first, each gets a donor in the next view,
 * even if it has a copy: it does not take part in the change. */
#ifndef GG_COMM_MEMBERSHIP_H
#define GG_COMM_MEMBERSHIP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef enum gg_phase {
    GG_PHASE_RUN = 0,
    GG_PHASE_STOPPING,
    GG_PHASE_GOAL,
    GG_PHASE_ENDED /* fewer than the least number of members live: the job ends; no event changes that */
} gg_phase;

/* Members are named by identities, which never change. A member's place in a view is its index there. */
typedef struct gg_view {
    int64_t number;      /* 0, 1, ... */
    int64_t start;       /* training steps made before it */
    int members;         /* at least 1 */
    const int *member;   /* identities, ascending */
    const int *donor;    /* one a member: the identity from which it copies its state; -1 means that it is whole */
    int dead;            /* members of the former view that have died since */
    const int *died;     /* identities, ascending */
    const int64_t *last; /* one a dead member: its last step that counts; -1 means none */
} gg_view;

typedef struct gg_membership gg_membership;

/* The first view has the identities 0 to members - 1. most: identities that can ever be, at least `members`. least: the
 * job ends if fewer members live, at least 1. */
gg_status gg_membership_create(int members, int most, int least, gg_membership **out);
/* From here on a view after deaths has no newcomers, because ranks may meet a death in any call, but a newcomer between
 * two steps alone. A death withdraws those that are ready, who must be told of again. Limits that were told for them,
 * and the goal, are void. */
void gg_membership_keep_apart(gg_membership *membership);
void gg_membership_destroy(gg_membership *membership); /* NULL is a no-op */
/* Goes on where another membership was, as its answers to the questions below say. Limits and reports of that phase are
 * told anew. Only of a membership just created. dead: since the view began. */
gg_status gg_membership_restore(gg_membership *membership, gg_phase phase, int64_t goal, const gg_view *view,
                                int deaths, const int *dead);

/* ---- events ----
 *
 * An event that comes late or twice is a no-op: of an identity that is dead, or in a phase that has passed.
 * GG_ERROR_ARGUMENT for an identity that cannot be. */

gg_status gg_membership_died(gg_membership *membership, int identity);
/* A newcomer, never a member before, has built all that it needs but its state. */
gg_status gg_membership_ready(gg_membership *membership, int identity);
/* A newcomer has a whole copy of its donor's state in this view. */
gg_status gg_membership_copied(gg_membership *membership, int identity, int64_t view);
/* STOPPING: a member will have made `limit` steps when its current step ends. GG_ERROR_ARGUMENT below the view's start.
 */
gg_status gg_membership_limit(gg_membership *membership, int identity, int64_t limit);
/* GOAL: a member has made all steps up to the goal. received: one a dead member (gg_membership_dead): the last step
 * whose messages came whole; -1 means none. deaths: their number, which must be the current one, or the report is
 * late. */
gg_status gg_membership_report(gg_membership *membership, int identity, int deaths, const int64_t *received);

/* ---- questions ---- */

gg_phase gg_membership_phase(const gg_membership *membership);
/* Members that have died since the view began, in ascending order; *dead is owned by the membership. */
int gg_membership_dead(const gg_membership *membership, const int **dead);
bool gg_membership_is_new(const gg_membership *membership, int identity); /* nothing has been told of it */
bool gg_membership_lives(const gg_membership *membership, int identity);  /* a member that has not died */
int64_t gg_membership_goal(const gg_membership *membership);              /* -1 means not known */
/* The current view; valid until the next event. */
const gg_view *gg_membership_view(const gg_membership *membership);

#endif
