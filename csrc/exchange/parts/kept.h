/* Private to the room: copies of the arenas that a step changes before its sums are complete, residues and with local
 * momentum the moments. Where ranks may die a step may have to be made again from them. */
#ifndef GG_EXCHANGE_PARTS_KEPT_H
#define GG_EXCHANGE_PARTS_KEPT_H

#include "exchange/strategy.h"

typedef struct gg_kept {
    float *copy[GG_MAX_ARENAS]; /* one an arena of the state; NULL means not kept */
    bool taken;                 /* the copies are those of the step under way */
} gg_kept;

/* Allocates copies if ranks may die and values are unsent. After a failure gg_kept_destroy frees. */
gg_status gg_kept_create(const gg_strategy *strategy, bool local_momentum, gg_kept *out);
void gg_kept_destroy(const gg_strategy_env *env, gg_kept *kept); /* all zero is a no-op */
/* Copies the arenas. Nothing is in flight. */
void gg_kept_take(gg_strategy *strategy, gg_kept *kept);
/* The arenas become the copies. A no-op if none were taken since the last call. */
void gg_kept_restore(const gg_strategy *strategy, gg_kept *kept);

#endif
