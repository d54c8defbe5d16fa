/* Which table is asked first for a graph's operations. A pure function, so that every rank makes the same choice. */
#ifndef GG_NN_CHOOSE_H
#define GG_NN_CHOOSE_H

#include "nn/plan.h"

/* Fills `order` with the devices to ask, best first, and returns how many (1 or 2). */
int gg_choose_devices(const gg_graph *graph, const gg_plan_options *options, gg_device *order[2]);

#endif
