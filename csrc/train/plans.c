#include "train/plans.h"

#include <string.h>

/* Frees all that may go; whether there was any. */
static bool plans_drop(gg_plans *plans) {
    bool any = false;
    for (int i = 0; i < GG_PLANS_CACHED; ++i) {
        if (plans->cached[i].plan == NULL || plans->cached[i].plan == plans->pinned) continue;
        gg_plan_destroy(plans->cached[i].plan);
        plans->cached[i].plan = NULL;
        any = true;
    }
    return any;
}

gg_status gg_plans_get(gg_plans *plans, int64_t batch, bool training, gg_plan **out) {
    gg_status status = GG_OK;
    int place = -1; /* of those that may be destroyed, the least recently used one */
    gg_plan_options options = plans->options;
    *out = NULL;
    for (int i = 0; i < GG_PLANS_CACHED; ++i) {
        if (plans->cached[i].plan != NULL && plans->cached[i].batch == batch && plans->cached[i].training == training) {
            plans->cached[i].used = ++plans->uses;
            *out = plans->cached[i].plan;
            goto cleanup;
        }
        if (plans->cached[i].plan != NULL && plans->cached[i].plan == plans->pinned) continue;
        if (place < 0 || plans->cached[i].used < plans->cached[place].used) place = i;
    }
    options.batch = batch;
    options.training = training;
    gg_plan_destroy(plans->cached[place].plan);
    plans->cached[place].plan = NULL;
    status = gg_plan_create(plans->graph, &options, out);
    if (status == GG_ERROR_MEMORY && plans_drop(plans)) status = gg_plan_create(plans->graph, &options, out);
    if (status != GG_OK) goto cleanup;
    plans->cached[place].plan = *out;
    plans->cached[place].batch = batch;
    plans->cached[place].training = training;
    plans->cached[place].used = ++plans->uses;
cleanup:
    return status;
}

size_t gg_plans_bytes(const gg_plans *plans) {
    size_t bytes = 0;
    for (int i = 0; i < GG_PLANS_CACHED; ++i)
        if (plans->cached[i].plan != NULL) bytes += gg_plan_bytes(plans->cached[i].plan);
    return bytes;
}

void gg_plans_clear(gg_plans *plans) {
    for (int i = 0; i < GG_PLANS_CACHED; ++i) gg_plan_destroy(plans->cached[i].plan);
    memset(plans->cached, 0, sizeof plans->cached);
    plans->pinned = NULL;
}
