/* The team's ranks in this process, each with its replica. A call applies to all of them.
 *
 * Every function runs on every local rank (gg_team_run) and is collective over the whole team, unless marked otherwise.
 * One thread may call at a time. */
#ifndef GG_TRAIN_TRAINER_H
#define GG_TRAIN_TRAINER_H

#include "exchange/peers.h"
#include "train/replica.h"

typedef struct gg_trainer gg_trainer;

/* Makes the exchanges of all local ranks, and the trainer that makes their steps. The caller gives all options of the
 * exchanges but layout, transport and costs, and all of the replicas but the exchange. The graph and *peers outlive the
 * trainer; the caller destroys both. Retains the team. */
gg_status gg_trainer_create(const gg_replica_options *options, const gg_exchange_options *exchange, gg_team *team,
                            gg_peers **peers, gg_trainer **out);
/* Settles first, unless a call has failed. The peers stay usable. Collective. NULL is a no-op. */
void gg_trainer_destroy(gg_trainer *trainer);

gg_replica *gg_trainer_replica(const gg_trainer *trainer, int local);

/* sets: one a local rank: a common one, or with GG_SHARD_OWN each rank's own part. */
gg_status gg_trainer_begin(gg_trainer *trainer, const gg_dataset *const *sets, const gg_data_options *data);
/* gg_replica_epoch of all ranks; GG_ERROR_ARGUMENT unless `next` is a step of the epoch or their number. */
gg_status gg_trainer_epoch(gg_trainer *trainer, const gg_position *position);
/* Makes up to `steps` more steps of the epoch on every rank, fewer if the view is to change (gg_trainer_change_view).
 * In a virtual cluster `watch` (NULL means none) is called a few times a second, with all ranks paused in the middle of
 * their steps: it may only read counts. If it returns false, the run ends after the first step that no rank has made
 * yet. */
gg_status gg_trainer_run(gg_trainer *trainer, int64_t steps, bool (*watch)(void *context), void *context);

/* A change of the view that has been made. */
typedef struct gg_view_change {
    bool changed;
    const gg_view *view; /* the team's; valid until the next change */
    int64_t next;        /* the epoch's next step, at which all members stand */
    int64_t step;        /* training steps made there */
    int dead;        /* ranks that have died since the change before: as the view tells, and in views that another */
    const int *died; /* death has ended at once; identities, the trainer's, valid like the view */
    const int64_t *last; /* their last steps that count */
    int64_t again;       /* samples of the dead that are read again */
    bool whole;          /* false: ranks have died before all newcomers had their state; the view changes again */
    double begin, end;   /* of the change on the slowest rank's clock */
} gg_view_change;

/* Called after every gg_trainer_run of a team whose ranks may die (gg_team_view). If some have died, all others go on
 * from their common step with the samples that no rank has read: settles, takes the next view and makes the exchange of
 * every rank anew (gg_replica_regroup). The replicas of the dead are destroyed; their counts stay in the epoch's.
 * Newcomers take the state of their donors, and the position in the epoch. GG_ERROR_PEER if too few ranks live. */
gg_status gg_trainer_change_view(gg_trainer *trainer, gg_view_change *out);
/* What newcomers hear from this process's ranks beside their state; copied. Not collective. */
gg_status gg_trainer_set_text(gg_trainer *trainer, const char *text, size_t bytes);
/* A newcomer of its own process, which gg_team_await_member has made a member, after gg_trainer_begin: takes the view,
 * and hears its donor's text, valid until the next call. Then gg_trainer_join takes the state; *whole: all newcomers
 * have it, and training goes on. GG_ERROR_PEER from both, and *whole false: ranks have died before; await the next
 * view. */
gg_status gg_trainer_hear(gg_trainer *trainer, const char **text, size_t *bytes);
gg_status gg_trainer_join(gg_trainer *trainer, bool *whole);
/* GG_ERROR_ARGUMENT for a strategy or data that need all ranks, if ranks may die. Not collective. */
gg_status gg_trainer_check_survival(const gg_trainer *trainer);

/* Counts of all ranks of the team since gg_trainer_epoch. */
typedef struct gg_epoch_summary {
    gg_progress_counts sum;  /* counts and seconds summed over ranks; steps of one rank */
    gg_progress_counts most; /* seconds of the slowest rank */
    double consensus_distance;
} gg_epoch_summary;

gg_status gg_trainer_end_epoch(gg_trainer *trainer, gg_epoch_summary *out);

/* One step, one batch a local rank. losses: one a local rank. */
gg_status gg_trainer_step(gg_trainer *trainer, const gg_given *given, double *losses);
/* `steps` steps on one batch for every rank. seconds: of each step on the first local rank, as in gg_replica_bench. */
gg_status gg_trainer_bench(gg_trainer *trainer, const gg_given *given, int steps, double *seconds);

/* gg_replica_reshape of all ranks. Ignores how->step_seconds and how->link. The given seconds of a step change in
 * proportion to the multiply-adds of a sample, and open sizes of the strategy are chosen anew. Errors of
 * gg_replica_check_reshape change nothing. After any other failure the trainer can only be destroyed. */
gg_status gg_trainer_reshape(gg_trainer *trainer, const gg_reshape *how);
/* gg_replica_set_algorithms of all local ranks, or of none if it fails; both arrays are copied. Not collective. */
gg_status gg_trainer_set_algorithms(gg_trainer *trainer, const gg_conv_choice *choices, int count,
                                    const gg_table_choice *tables, int table_count);
gg_status gg_trainer_audit(gg_trainer *trainer, gg_sample_audit *out);
typedef enum gg_evaluation_kind {
    GG_EVALUATE_SPLIT = 0, /* the consensus model, one set split over the ranks; one result */
    GG_EVALUATE_OWN,       /* the consensus model, each rank's own set; one result over all of them */
    GG_EVALUATE_REPLICAS,  /* each rank's own weights on the whole set: one result a rank of the team */
} gg_evaluation_kind;

/* sets: one a local rank; a common one, except for OWN. A single result is the sum over the ranks. */
gg_status gg_trainer_evaluate(gg_trainer *trainer, const gg_dataset *const *sets, int64_t batch,
                              gg_evaluation_kind kind, gg_evaluation *out);
/* The consensus model's outputs, as of gg_replica_predict, computed by the first local rank on every process. */
gg_status gg_trainer_predict(gg_trainer *trainer, const gg_dataset *set, int64_t batch, float *const *output);
/* gg_replica_reset_carried on every local rank. Not collective. */
void gg_trainer_reset_carried(gg_trainer *trainer);

/* GG_ERROR_SHAPE or GG_ERROR_TYPE if a set does not fit the network's input or its loss. */
gg_status gg_trainer_check_set(const gg_trainer *trainer, const gg_dataset *set);

#endif
