/* Private to the room: a team's fields. */
#ifndef GG_COMM_TEAM_PRIVATE_H
#define GG_COMM_TEAM_PRIVATE_H

#include <stdatomic.h>

#include "comm/team.h"

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
    int64_t goal;          /* gg_team_goal */
    bool running;          /* with views: between gg_team_view_begin and gg_team_view_end */
    bool newcomer;         /* of a process of its own; false after it has joined */
    bool trained;          /* gg_team_train */
    int64_t taken;         /* number of the view of the last gg_team_change_view; 0 means none */
};

/* The place of an identity in a view; -1 means none. */
static inline int gg_view_place(const gg_view *view, int identity) {
    int place = view->members - 1;
    while (place >= 0 && view->member[place] != identity) --place;
    return place;
}

#endif
