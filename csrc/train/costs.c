#include "train/costs.h"

#include <math.h>

#include "base/memory.h"

/* Forward times of the layers that add up to `whole`. */
static void scale_costs(int layers, double whole, double *seconds) {
    double all = 0;
    for (int i = 0; i < layers; ++i) all += seconds[i];
    for (int i = 0; i < layers; ++i) seconds[i] = whole * (all > 0 ? seconds[i] / all : 1.0 / layers);
}

gg_status gg_forward_costs(const gg_graph *graph, const double *step_seconds, int rank, double **out) {
    const int layers = gg_graph_layers(graph);
    GG_TRY(gg_calloc((size_t)layers + 1, sizeof **out, "modelled times", out));
    for (int i = 0; i < gg_graph_nodes(graph); ++i) {
        const int layer = gg_graph_node(graph, i)->layer;
        if (layer >= 0) (*out)[layer] += 2.0 * (double)gg_graph_node_macs(graph, i) / GG_MODEL_FLOPS_PER_SECOND;
    }
    if (step_seconds != NULL) scale_costs(layers, step_seconds[rank] / 3, *out);
    return GG_OK;
}

gg_status gg_tuning_costs(const gg_graph *graph, const double *step_seconds, int ranks, double **forward,
                          gg_exchange_costs *out) {
    const int layers = gg_graph_layers(graph);
    double slowest = 0;
    GG_TRY(gg_forward_costs(graph, NULL, 0, forward));
    for (int i = 0; step_seconds != NULL && i < ranks; ++i) slowest = fmax(slowest, step_seconds[i]);
    if (step_seconds != NULL) scale_costs(layers, slowest / 3, *forward);
    else
        for (int i = 0; i < layers; ++i) (*forward)[i] *= GG_USUAL_BATCH;
    out->forward = *forward;
    out->least = step_seconds != NULL ? 1.0 : GG_MIN_OF_USUAL;
    return GG_OK;
}
