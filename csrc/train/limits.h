/* Private to the room: checks that a set fits a network, and limits its integers. Pure. */
#ifndef GG_TRAIN_LIMITS_H
#define GG_TRAIN_LIMITS_H

#include "data/dataset.h"
#include "nn/plan.h"

/* Returns a copy of the set's description with the network's tokens and its losses' classes; retains nothing. head:
 * options of each head; NULL leaves targets unlimited. */
gg_dataset gg_limited_set(const gg_graph *graph, const gg_head_options *head, const gg_dataset *set);
/* GG_ERROR_SHAPE, GG_ERROR_TYPE or GG_ERROR_ARGUMENT if inputs, or targets unless head is NULL, do not fit the network.
 * Names the first sample in memory with an unknown token or class. A source's values are checked when they are read. */
gg_status gg_check_limits(const gg_graph *graph, const gg_head_options *head, const gg_dataset *set);

#endif
