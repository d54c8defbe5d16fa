#include "nn/choose.h"

#include <string.h>

/* The additional time of a oneDNN convolution whose channels do not fill blocks of GG_LANES, relative to one whose
 * channels do: half of the padding. An image's few channels and groups have kernels of their own, without padding. */
static double time_of_convolution(int64_t in, int64_t out, int64_t groups) {
    enum { PICTURE = 4 };
    if (groups != 1) return 1;
    double padded = (double)gg_lanes_padded(out) / (double)out;
    if (in > PICTURE) padded *= (double)gg_lanes_padded(in) / (double)in;
    return 1 + (padded - 1) / 2;
}

/* oneDNN's time for a sample relative to the native table's with full lanes, by their multiply-adds. For graphs without
 * convolutions: as measured for linear layers of 512 to 2048. */
static double time_of_sample(const gg_graph *graph) {
    const double linear = 1.5;
    double time = 0, all = 0;
    for (int i = 0; i < gg_graph_nodes(graph); i++) {
        const gg_node *node = gg_graph_node(graph, i);
        if (node->desc.kind != GG_LAYER_CONV2D) continue;
        const double macs = (double)gg_graph_node_macs(graph, i);
        time += macs * time_of_convolution(gg_graph_node(graph, node->input[0])->shape.size[0], node->shape.size[0],
                                           node->desc.groups);
        all += macs;
    }
    return all > 0 ? time / all : linear;
}

/* The native table computes in BATCH_LAST, where a batch fills whole vectors of GG_LANES samples: any channel count,
 * window and stride then runs at full width, joins and flattenings move nothing, and a chain of native operations needs
 * no reorder. Its cost is the padding: a batch of 1 does the work of 16 samples. So it comes first where its padding
 * costs less than the other table loses otherwise. One rule for the whole graph, because a change of table between
 * neighbours costs a reorder of the whole activation. */
static bool native_first(const gg_graph *graph, int64_t batch) {
    return (double)gg_lanes_padded(batch) <= time_of_sample(graph) * (double)batch;
}

int gg_choose_devices(const gg_graph *graph, const gg_plan_options *options, gg_device *order[2]) {
    gg_device *first = options->device, *second = options->fallback;
    if (second == NULL || second == first) {
        order[0] = first;
        return 1;
    }
    if (options->choose && strcmp(second->table->name, "native") == 0 && native_first(graph, options->batch)) {
        order[0] = second;
        order[1] = first;
    } else {
        order[0] = first;
        order[1] = second;
    }
    return 2;
}
