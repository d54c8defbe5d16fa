#include "train/plans.h"

#include <string.h>

gg_status gg_plans_get(gg_plans *plans, int64_t batch, bool training, gg_plan **out) {
    int place = -1; /* the least recently used plan that may be destroyed */
    gg_plan_options options = plans->options;
    *out = NULL;
    for (int i = 0; i < GG_PLANS_CACHED; ++i) {
        if (plans->cached[i].plan != NULL && plans->cached[i].batch == batch && plans->cached[i].training == training) {
            plans->cached[i].used = ++plans->uses;
            GG_TRY(gg_plan_activate(plans->cached[i].plan));
            *out = plans->cached[i].plan;
            return GG_OK;
        }
        if (plans->cached[i].plan != NULL && plans->cached[i].plan == plans->pinned) continue;
        if (place < 0 || plans->cached[i].used < plans->cached[place].used) place = i;
    }
    options.memory = &plans->memory;
    options.batch = batch;
    options.training = training;
    gg_plan_destroy(plans->cached[place].plan);
    plans->cached[place].plan = NULL;
    GG_TRY(gg_plan_create(plans->graph, &options, out));
    plans->cached[place].plan = *out;
    plans->cached[place].batch = batch;
    plans->cached[place].training = training;
    plans->cached[place].used = ++plans->uses;
    return GG_OK;
}

size_t gg_plans_bytes(const gg_plans *plans) { return plans->memory.bytes; }

void gg_plans_clear(gg_plans *plans) {
    for (int i = 0; i < GG_PLANS_CACHED; ++i) gg_plan_destroy(plans->cached[i].plan);
    memset(plans->cached, 0, sizeof plans->cached);
    plans->pinned = NULL;
    gg_plan_memory_release(&plans->memory);
}
