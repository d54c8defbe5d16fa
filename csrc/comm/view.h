/* A rank's side of a change of the view (comm/membership.h): learns of deaths and newcomers, tells limits and reports.
 *
 * One table, an implementation for each way to reach the membership. The views belong to a process and serve its local
 * ranks. */
#ifndef GG_COMM_VIEW_H
#define GG_COMM_VIEW_H

#include "comm/ledger.h"
#include "comm/membership.h"

typedef struct gg_views gg_views;

/* In place of an identity: a wait of a rank that is alone in its process. */
#define GG_VIEW_OUTSIDE (-2) /* outside of a run of steps, as in a collective call */
#define GG_VIEW_WAITS (-3)   /* in a run of steps */

typedef struct gg_views_table {
    void (*destroy)(gg_views *views);
    /* Before a run of steps, and after one of a rank of its own process; all local ranks have made `step`. */
    void (*begin)(gg_views *views, int64_t step);
    /* Called by a rank between two steps, by the caller of the ranks between two runs (identity -1), and in waits of a
     * rank that is alone in its process (GG_VIEW_WAITS in a run, GG_VIEW_OUTSIDE outside of one), then with the steps
     * that it has begun. A collective call outside of a run is completed before the view changes for newcomers. Tells
     * the rank's limit, `step` steps, if limits are wanted. *goal: at which step this rank stops for the next view; -1
     * means that it need not stop, or not known yet. */
    gg_status (*look)(gg_views *views, int identity, int64_t step, gg_phase *phase, int64_t *goal);
    /* Members that have died since the view began, ascending; the views' own. */
    int (*dead)(gg_views *views, const int **dead);
    int64_t (*made)(gg_views *views, int identity); /* whole steps of a dead rank */
    /* As gg_membership_report, of a rank that stands at the goal. */
    gg_status (*report)(gg_views *views, int identity, int deaths, const int64_t *received);
    const gg_view *(*view)(gg_views *views); /* the current one; valid until the next event */
    /* This rank, a newcomer, has built all but its state. NULL means that nobody asks. */
    void (*announce)(gg_views *views);
    /* A newcomer has a whole copy of the state of its donor in the view of this number. */
    gg_status (*copied)(gg_views *views, int identity, int64_t view);
    /* Tells that this rank trains, or does so no more. NULL means that nobody asks. */
    void (*train)(gg_views *views, bool trains);
    /* After an operation that all members make, in one order: this rank has completed it (`done`), or a death has kept
     * it from that. Returns the vote, for ranks of other hosts. NULL means that no rank dies in such an operation. */
    int64_t (*vote)(gg_views *views, bool done);
    /* The vote of a rank of another host. */
    void (*heard)(gg_views *views, int identity, int64_t vote);
    /* False until all have completed it, or one cannot. *all: every member has completed the operation; equal on all
     * ranks. If false, the view changes, and the operation is made again by the next view's members. */
    bool (*decided)(gg_views *views, bool *all);
    /* An identity's ledger. Of a rank of another host: copies, as its agent has carried them. */
    void *(*ledger)(gg_views *views, int identity);
} gg_views_table;

struct gg_views {
    const gg_views_table *table;
    /* A death breaks the step of all ranks (exchange/exchange.h). After a death limits are steps that are complete: a
     * rank in a wait cannot tell its limit, and between two steps it stops as soon as it hears of the death. For
     * newcomers alone all ranks train to a goal, as without this. */
    bool breaks;
};

/* The epoch of messages with which a view begins, equal on all its members; reshapes and mends count on from there. */
static inline int64_t gg_view_epoch(int64_t view) { return view << 16; }

#endif
