/* Steps of a rank whose caller computes and writes the gradients.
 *
 * The calls are gg_exchange's, with entries for the rank's clock and its trace. Called on that rank's thread. */
#ifndef GG_EXCHANGE_STEPS_H
#define GG_EXCHANGE_STEPS_H

#include "exchange/exchange.h"

typedef struct gg_steps gg_steps;

/* seconds: charged to the virtual clock for a step; 0 means none. The exchange outlives the steps, and its device has
 * the host's memory. */
gg_status gg_steps_create(gg_exchange *exchange, double seconds, gg_steps **out);
void gg_steps_destroy(gg_steps *steps); /* NULL is a no-op */

/* Where the caller writes gradients: a whole arena, at one address for life. Writing is allowed from end to ready,
 * although the strategy may still read the last step's gradients. So it is the strategy's arena, or, if others read
 * that in place, an arena from which ready copies. */
float *gg_steps_gradients(const gg_steps *steps);
/* True if the parameter is large and has no padding behind it: its gradient may lie elsewhere (gg_steps_ready). */
bool gg_steps_is_large(const gg_parameter *parameter);
/* Zeroes the gradients of all parameters that are not large, for a caller that adds to them. */
void gg_steps_zero_gradients(gg_steps *steps);

gg_status gg_steps_begin(gg_steps *steps, const int64_t *batches);
gg_status gg_steps_need(gg_steps *steps, int layer);
/* gradient: for each parameter of the layer the address of its gradient during this call, a multiple of GG_ALIGNMENT.
 * NULL means in the arena; parameters that are not large always have NULL. */
gg_status gg_steps_ready(gg_steps *steps, int layer, const float *const *gradient);
gg_status gg_steps_end(gg_steps *steps);

/* All calls of a step whose gradients are written. The weights are current afterwards. */
gg_status gg_steps_whole(gg_steps *steps, const int64_t *batches);

#endif
