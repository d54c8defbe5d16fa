/* The smallest network that trains: a linear layer "a" from `width` values to as many. The caller destroys it. */
#ifndef GG_TEST_ONE_LAYER_H
#define GG_TEST_ONE_LAYER_H

#include "check.h"
#include "nn/graph.h"

static inline gg_graph *one_layer(int width) {
    gg_graph *graph = NULL;
    const gg_layer_desc desc = {.kind = GG_LAYER_LINEAR, .name = "a", .outputs = width};
    int node = 0;
    CHECK_OK(gg_graph_create(&graph));
    CHECK_OK(gg_graph_add(graph, &(gg_layer_desc){.kind = GG_LAYER_INPUT, .name = "x"}, &(gg_shape){1, {width}}, 0,
                          NULL, &node));
    CHECK_OK(gg_graph_add(graph, &desc, NULL, 1, &node, &node));
    CHECK_OK(gg_graph_finish(graph, 1, &(gg_head){.node = node}));
    return graph;
}

#endif
