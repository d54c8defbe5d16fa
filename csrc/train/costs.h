/* Private to the room: the modelled cost of a network's step. Pure. */
#ifndef GG_TRAIN_COSTS_H
#define GG_TRAIN_COSTS_H

#include "exchange/exchange.h"
#include "nn/graph.h"

/* Seconds of each layer's forward pass, freed by the caller: for one sample, or with step_seconds, the seconds of a
 * step of each rank, for any batch on this rank. The backward pass takes twice as long. */
gg_status gg_forward_costs(const gg_graph *graph, const double *step_seconds, int rank, double **out);
/* Times for tuning the sizes of buckets and chunks, equal on all ranks: those of the slowest rank, or of a usual batch.
 * Sets all of `out` but the link; the caller frees *forward, to which `out` refers. */
gg_status gg_tuning_costs(const gg_graph *graph, const double *step_seconds, int ranks, double **forward,
                          gg_exchange_costs *out);

#endif
