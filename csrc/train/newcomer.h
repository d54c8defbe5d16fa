/* A newcomer takes the state of its donor (exchange/handover.h), and the position in the epoch.
 *
 * Its carried state begins at zero, and so do its counts. */
#ifndef GG_TRAIN_NEWCOMER_H
#define GG_TRAIN_NEWCOMER_H

#include "exchange/handover.h"
#include "train/replica.h"

/* The donor sends its state, after gg_replica_regroup. given: text and link. inherited: its trainer's. If the newcomer
 * dies, this succeeds. */
gg_status gg_replica_give(gg_replica *replica, int to, const gg_handover *given, const gg_progress_counts *inherited);
/* The newcomer's side: first gg_replica_hear, then gg_replica_take, in the view of this number. GG_ERROR_PEER if a rank
 * has died before the copy is whole: the newcomer waits for the next view. Its replica has begun its data, and nothing
 * else. */
gg_status gg_replica_hear(gg_replica *replica, int from, int64_t view, gg_handover *heard);
/* GG_ERROR_ARGUMENT for a donor with other arenas. */
gg_status gg_replica_take(gg_replica *replica, int from, int64_t view, const gg_exchange_costs *costs,
                          const gg_handover *heard);

#endif
