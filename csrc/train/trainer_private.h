/* Private to the room: a trainer's fields. */
#ifndef GG_TRAIN_TRAINER_PRIVATE_H
#define GG_TRAIN_TRAINER_PRIVATE_H

#include "comm/agreement.h"
#include "exchange/handover.h"
#include "train/batches.h"
#include "train/trainer.h"

struct gg_trainer {
    gg_peers *peers;
    gg_team *team; /* of the peers */
    int *died;     /* of the last gg_view_change, like the next */
    int64_t *last;
    gg_replica_options options; /* without an exchange */
    double *seconds;            /* of a step of each identity (gg_team_identities); NULL means none were given */
    double *step_seconds;       /* of each rank of the team, from `seconds`; NULL likewise */
    int local;
    gg_replica **replica;
    gg_progress_counts inherited;   /* of the dead, which the first rank counts from the view's begin on */
    gg_handover given;              /* to newcomers: the text alone, the trainer's */
    gg_handover heard;              /* by a newcomer */
    gg_conv_choice *conv_choices;   /* of all local ranks; NULL means that none are set */
    gg_table_choice *table_choices; /* likewise */
};

/* Sets step_seconds for the team's current ranks. */
static inline void gg_trainer_place_seconds(gg_trainer *t) {
    const gg_view *view = gg_team_view(t->team);
    for (int i = 0; t->seconds != NULL && i < gg_team_size(t->team); ++i)
        t->step_seconds[i] = t->seconds[view != NULL ? view->member[i] : i];
}

/* Costs for tuning exchanges that begin anew. *out refers to *forward, which the caller frees, and to *link. */
gg_status gg_trainer_costs(const gg_trainer *trainer, double **forward, gg_link *link, gg_exchange_costs *out);

/* ---- survive.c ---- */

/* A change of the view on all local ranks. */
typedef struct gg_trainer_change {
    gg_trainer *trainer;
    gg_agreement agreement;
    bool breaks;             /* gg_trainer_breaks */
    bool whole;              /* gg_team_is_whole of the view that changes */
    const gg_replica *first; /* a local rank that lives */
    int64_t *read, *scratch; /* one a rank of the former view */
    int *former, formers;    /* identities of its members, and their number */
    gg_redealt dealt;
    int64_t *recall;   /* the dealt's */
    int64_t *recalled; /* of each rank: samples of former parts of the epoch that go back */
    int heir;          /* local rank that counts for the dead from here on; -1 means that another process has it */
    int64_t view;      /* number of the former view */
    gg_exchange_costs costs;
    gg_view_change *out;
    int stay; /* local ranks that go on; those behind them are newcomers */
} gg_trainer_change;

/* ---- newcomer.c ---- */

/* Makes the exchanges and replicas of the next view's newcomers in this process, behind the others. */
gg_status gg_trainer_add_newcomers(gg_trainer *trainer);
/* A local rank gives its state to the newcomers whose donor it is. */
gg_status gg_trainer_give(const gg_trainer_change *change, int local);
/* A local newcomer takes the state of its donor. */
gg_status gg_trainer_take(const gg_trainer_change *change, int local);

#endif
