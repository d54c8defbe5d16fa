/* The steps of a rank whose gradients a caller computes and writes.
 *
 * The calls are gg_exchange's, with what goes to the rank's clock and its trace. Called on that rank's thread. */
#ifndef GG_EXCHANGE_STEPS_H
#define GG_EXCHANGE_STEPS_H

#include "exchange/exchange.h"

typedef struct gg_steps gg_steps;

/* seconds: what its virtual clock is charged for a step; 0: nothing. The exchange outlives it, and its device has the
 * host's memory. */
gg_status gg_steps_create(gg_exchange *exchange, double seconds, gg_steps **out);
void gg_steps_destroy(gg_steps *steps); /* NULL is fine */

/* Where the caller writes gradients, a whole arena at one address for life. They may be written from end to ready,
 * whatever the strategy still reads of the last step: its own arena, or, where others read that in place, one that
 * ready copies from. */
float *gg_steps_gradients(const gg_steps *steps);
/* Whether a parameter is large, and has no padding behind it: its gradient may lie elsewhere (gg_steps_ready). */
bool gg_steps_is_large(const gg_parameter *parameter);
/* Those of all parameters that are not large, for a caller who adds to them. */
void gg_steps_zero_gradients(gg_steps *steps);

gg_status gg_steps_begin(gg_steps *steps, const int64_t *batches);
gg_status gg_steps_need(gg_steps *steps, int layer);
/* gradient: of each parameter of the layer, at an address that GG_ALIGNMENT divides, where it lies in this call; NULL:
 * in the arena, as that of all that are not large. */
gg_status gg_steps_ready(gg_steps *steps, int layer, const float *const *gradient);
gg_status gg_steps_end(gg_steps *steps);

/* All calls of a step whose gradients are written; afterwards the weights are current. */
gg_status gg_steps_whole(gg_steps *steps, const int64_t *batches);

#endif
