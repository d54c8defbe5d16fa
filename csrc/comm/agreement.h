/* Agreement on the next view: the local ranks of a team settle, report on the dead, and wait until all others have
 * (comm/membership.h, phases STOPPING and GOAL). The caller has ended a run of steps. */
#ifndef GG_COMM_AGREEMENT_H
#define GG_COMM_AGREEMENT_H

#include "comm/team.h"

typedef struct gg_agreement {
    gg_team *team;
    /* The view changes here, and `dead` is known. Before any rank settles. */
    gg_status (*begin)(void *context);
    /* Completes all that is in flight on a living local rank, on its thread. */
    gg_status (*settle)(void *context, int local);
    /* As gg_membership_report, of a settled local rank. Asked for all ranks of the former view. */
    int64_t (*received)(void *context, int local, int rank);
    void *context;
    /* Set by gg_agree_on_view. Numbers of the former view, ascending; the team's. */
    int first; /* local rank */
    const int *dead;
    int deaths;
} gg_agreement;

/* *changes: as of gg_team_view_changes after `step` steps. If true, the next view is known: gg_team_change_view takes
 * it. If more ranks die meanwhile, begins again. Collective over the living. */
gg_status gg_agree_on_view(gg_agreement *agreement, int64_t step, bool *changes);
bool gg_agreement_is_dead(const gg_agreement *agreement, int rank); /* of the former view */

#endif
