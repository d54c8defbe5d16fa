/* Private to the room: what a change of the view (survive.c) asks of strategies whose steps a death breaks
 * (survive_sums.c). */
#ifndef GG_TRAIN_SURVIVE_PRIVATE_H
#define GG_TRAIN_SURVIVE_PRIVATE_H

#include "train/replica.h"
#include "train/trainer_private.h"

/* Ends the step that a death has broken, or what is left of a complete one. Nothing is in flight afterwards. Not
 * collective. */
gg_status gg_replica_break(gg_replica *replica);

/* True if a death breaks the steps of the trainer's strategy. */
bool gg_trainer_breaks(const gg_trainer *trainer);
/* True if a local rank stands in a broken step. */
bool gg_trainer_broken(const gg_trainer *trainer);
/* All members of a new view get to one step: to the broken one's end if some member has made it, else to its begin.
 * *whole: all have; equal on all. If false, more ranks have died, and the next view mends again. Collective. */
gg_status gg_trainer_mend(gg_trainer *trainer, bool *whole);

#endif
