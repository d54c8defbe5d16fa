/* Private to the room: the plans of one rank, by batch size and use. */
#ifndef GG_TRAIN_PLANS_H
#define GG_TRAIN_PLANS_H

#include "nn/plan.h"

#define GG_PLANS_CACHED 8

typedef struct gg_plans {
    const gg_graph *graph;
    gg_plan_options options; /* batch, training and memory are set for each plan */
    struct {
        gg_plan *plan;
        int64_t batch;
        bool training;
        int64_t used; /* for finding the least recently used one when all places are in use */
    } cached[GG_PLANS_CACHED];
    int64_t uses;
    uint64_t weights_version; /* of the last evaluation or prediction, for gg_plan_evaluate */
    gg_plan_memory memory;    /* of all of them: one runs at a time */
    gg_plan *pinned;          /* one of them that is not destroyed to make room; NULL: none. Set by the owner. */
} gg_plans;

/* The plan for a batch size, built if it is not there. Owned by `plans`. Valid until the next plan is built; the pinned
 * one, until another one is pinned. The plans share their memory: what is in it belongs to the one asked for last. */
gg_status gg_plans_get(gg_plans *plans, int64_t batch, bool training, gg_plan **out);
size_t gg_plans_bytes(const gg_plans *plans);
void gg_plans_clear(gg_plans *plans);

#endif
