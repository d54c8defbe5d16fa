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
        int64_t used; /* for finding the least recently used plan if all places are in use */
    } cached[GG_PLANS_CACHED];
    int64_t uses;
    uint64_t weights_version; /* of the last evaluation or prediction, for gg_plan_evaluate */
    gg_plan_memory memory;    /* shared by the plans: one runs at a time */
    gg_plan *pinned;          /* a plan that is not destroyed to make room; NULL means none. Set by the owner */
} gg_plans;

/* Returns the plan for a batch size; builds it if needed. Owned by `plans`. Valid until the next plan is built; the
 * pinned one until another is pinned. The plans share memory, whose content belongs to the last returned one. */
gg_status gg_plans_get(gg_plans *plans, int64_t batch, bool training, gg_plan **out);
size_t gg_plans_bytes(const gg_plans *plans);
void gg_plans_clear(gg_plans *plans);

#endif
