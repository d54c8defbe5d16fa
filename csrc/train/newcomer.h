/* A newcomer takes the state of its donor: weights, statistics, moments, step, and the position in the epoch.
 *
 * Its residue, edge copies and carried state begin at zero, and so do its counts. Both ranks have the next view's
 * transport. Their messages are those of its epoch, so those of a broken copy are never read. */
#ifndef GG_TRAIN_NEWCOMER_H
#define GG_TRAIN_NEWCOMER_H

#include "train/replica.h"

/* What a donor says before it gives its arenas. */
typedef struct gg_handover {
    int64_t *number;              /* in order: newcomer.c's */
    char *text;                   /* the donor's caller's */
    size_t bytes;                 /* of the text */
    bool linked;                  /* `link` is known */
    gg_link link;                 /* as of gg_team_link */
    gg_progress_counts inherited; /* the donor's trainer's */
} gg_handover;

void gg_handover_free(gg_handover *heard); /* zeroed is a no-op */

/* The donor sends its state, after gg_replica_regroup. given: text, link, inherited counts. If the newcomer dies, this
 * succeeds. */
gg_status gg_replica_give(gg_replica *replica, int to, const gg_handover *given);
/* The newcomer's side: first gg_replica_hear, then gg_replica_take, in the view of this number. GG_ERROR_PEER if a rank
 * has died before the copy is whole: the newcomer waits for the next view. Its replica has begun its data, and nothing
 * else. */
gg_status gg_replica_hear(gg_replica *replica, int from, int64_t view, gg_handover *heard);
/* GG_ERROR_ARGUMENT for a donor with other arenas. */
gg_status gg_replica_take(gg_replica *replica, int from, int64_t view, const gg_exchange_costs *costs,
                          const gg_handover *heard);

#endif
