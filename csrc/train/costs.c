/* What a step is thought to cost: for virtual clocks, and to choose the sizes of buckets and chunks. */
#include <math.h>

#include "base/memory.h"
#include "train/replica_private.h"

/* Forward times of the layers that add up to `whole`. */
static void scale_costs(int layers, double whole, double *seconds) {
    double all = 0;
    for (int i = 0; i < layers; ++i) all += seconds[i];
    for (int i = 0; i < layers; ++i) seconds[i] = whole * (all > 0 ? seconds[i] / all : 1.0 / layers);
}

gg_status gg_replica_model_costs(gg_replica *r) {
    const gg_graph *graph = r->options.graph;
    int layers = gg_graph_layers(graph);
    GG_TRY(gg_calloc((size_t)layers + 1, sizeof(double), "modelled times", &r->layer_seconds));
    for (int i = 0; i < gg_graph_nodes(graph); ++i) {
        int layer = gg_graph_node(graph, i)->layer;
        if (layer >= 0)
            r->layer_seconds[layer] += 2.0 * (double)gg_graph_node_macs(graph, i) / GG_MODEL_FLOPS_PER_SECOND;
    }
    r->any_batch = r->options.step_seconds != NULL;
    if (!r->any_batch) return GG_OK;
    double forward = r->options.step_seconds[r->options.transport->rank] / 3;
    if (!(forward >= 0 && forward < INFINITY))
        return gg_fail(GG_ERROR_ARGUMENT, "compute_time: %g; must be at least 0", 3 * forward);
    scale_costs(layers, forward, r->layer_seconds);
    return GG_OK;
}

/* All ranks must choose the same sizes, so they use the same times: those of the slowest rank, if times are given. */
void gg_replica_tuning_costs(const gg_replica *r, double *forward, double *least) {
    const gg_replica_options *o = &r->options;
    const int layers = gg_graph_layers(o->graph);
    double slowest = 0;
    for (int i = 0; i < layers; ++i) forward[i] = r->layer_seconds[i] * (r->any_batch ? 1 : GG_USUAL_BATCH);
    for (int i = 0; r->any_batch && i < o->transport->size; ++i) slowest = fmax(slowest, o->step_seconds[i]);
    if (r->any_batch) scale_costs(layers, slowest / 3, forward);
    *least = r->any_batch ? 1.0 : GG_LEAST_OF_USUAL;
}
