/* Private to the room: whether a set is one for a network, and which numbers its integers may be. Pure. */
#ifndef GG_TRAIN_LIMITS_H
#define GG_TRAIN_LIMITS_H

#include "data/dataset.h"
#include "nn/plan.h"

/* A copy of the set's description that knows which tokens the network has and which classes its losses allow; nothing
 * is retained. head: options of each head, NULL: targets are left alone. */
gg_dataset gg_limited_set(const gg_graph *graph, const gg_head_options *head, const gg_dataset *set);
/* GG_ERROR_SHAPE, GG_ERROR_TYPE or GG_ERROR_ARGUMENT where inputs, and targets unless head is NULL, are not those of
 * the network; names the first sample in memory whose token or class is none. What a source reads is checked as it is
 * read.
 */
gg_status gg_check_limits(const gg_graph *graph, const gg_head_options *head, const gg_dataset *set);

#endif
