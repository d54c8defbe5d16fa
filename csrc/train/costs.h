/* Private to the room: what a step of a network is thought to cost. Pure. */
#ifndef GG_TRAIN_COSTS_H
#define GG_TRAIN_COSTS_H

#include "exchange/exchange.h"
#include "nn/graph.h"

/* Seconds of each layer in the forward pass, freed by the caller: for a sample, or with step_seconds, the seconds of a
 * step of each rank, for any batch on this rank. The backward pass takes twice that. */
gg_status gg_forward_costs(const gg_graph *graph, const double *step_seconds, int rank, double **out);
/* By which sizes of buckets and chunks are tuned: on all ranks the times of the slowest one, or of a usual batch. Sets
 * all of `out` but the link; *forward, which it refers to, is freed by the caller. */
gg_status gg_tuning_costs(const gg_graph *graph, const double *step_seconds, int ranks, double **forward,
                          gg_exchange_costs *out);

#endif
