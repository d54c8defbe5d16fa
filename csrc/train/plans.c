#include "train/plans.h"

#include <string.h>

gg_status gg_plans_get(gg_plans *plans, int64_t batch, bool training, gg_plan **out) {
    gg_status status = GG_OK;
    int place = -1; /* of those that may go, the one that was not used for the longest time */
    gg_plan_options options = plans->options;
    *out = NULL;
    for (int i = 0; i < GG_PLANS_KEPT; ++i) {
        if (plans->kept[i].plan != NULL && plans->kept[i].batch == batch && plans->kept[i].training == training) {
            plans->kept[i].used = ++plans->uses;
            *out = plans->kept[i].plan;
            return GG_OK;
        }
        if (plans->kept[i].plan != NULL && plans->kept[i].plan == plans->pinned) continue;
        if (place < 0 || plans->kept[i].used < plans->kept[place].used) place = i;
    }
    options.batch = batch;
    options.training = training;
    gg_plan_destroy(plans->kept[place].plan);
    plans->kept[place].plan = NULL;
    GG_TRY(gg_plan_create(plans->graph, &options, out));
    plans->kept[place].plan = *out;
    plans->kept[place].batch = batch;
    plans->kept[place].training = training;
    plans->kept[place].used = ++plans->uses;
cleanup:
    return status;
}

size_t gg_plans_bytes(const gg_plans *plans) {
    size_t bytes = 0;
    for (int i = 0; i < GG_PLANS_KEPT; ++i)
        if (plans->kept[i].plan != NULL) bytes += gg_plan_bytes(plans->kept[i].plan);
    return bytes;
}

void gg_plans_clear(gg_plans *plans) {
    for (int i = 0; i < GG_PLANS_KEPT; ++i) gg_plan_destroy(plans->kept[i].plan);
    memset(plans->kept, 0, sizeof plans->kept);
    plans->pinned = NULL;
}
