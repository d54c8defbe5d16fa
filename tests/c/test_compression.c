/* What a network is compressed in. */
#include "base/memory.h"
#include "base/random.h"
#include "check.h"
#include "exchange/codec/compression.h"
#include "nn/graph.h"

static gg_graph *two_layers(void) {
    gg_graph *graph = NULL;
    int node = 0;
    CHECK_OK(gg_graph_create(&graph));
    CHECK_OK(gg_graph_add(graph, &(gg_layer_desc){.kind = GG_LAYER_INPUT, .name = "x"}, &(gg_shape){1, {7}}, 0, NULL,
                          &node));
    for (int i = 0; i < 2; ++i) {
        gg_layer_desc desc = {.kind = GG_LAYER_LINEAR, .outputs = i == 0 ? 5 : 1, .bias = true};
        desc.name[0] = (char)('a' + i);
        CHECK_OK(gg_graph_add(graph, &desc, NULL, 1, &node, &node));
    }
    CHECK_OK(gg_graph_finish(graph, 1, &(gg_head){.node = node}));
    return graph;
}

static void test_segments(void) {
    gg_graph *graph = two_layers();
    gg_compression compression = {.active = true, .bin = {[GG_FAMILY_LINEAR] = 10}, .dense_roles = 1u << GG_ROLE_BIAS};
    for (int family = 0; family < GG_FAMILY_COUNT; ++family) compression.factor[family] = 2;
    gg_segments segments;
    CHECK_OK(gg_compression_check(&compression));
    CHECK_OK(gg_segments_create(gg_graph_layout(graph), &compression, &segments));
    CHECK_INT(segments.count, 4);
    const int first[3] = {0, 2, 4}, bins[4] = {10, 0, 5, 0}, counts[4] = {35, 5, 5, 1};
    for (int i = 0; i < 3; ++i) CHECK_INT(segments.first_of_layer[i], first[i]);
    for (int i = 0; i < 4; ++i) {
        const gg_parameter *parameter = gg_graph_parameter(graph, i);
        CHECK_INT(segments.segment[i].offset, parameter->offset);
        CHECK_INT(segments.segment[i].count, counts[i]);
        CHECK_INT(segments.segment[i].bin, bins[i]);
        CHECK_INT(segments.segment[i].family, GG_FAMILY_LINEAR);
        CHECK_INT(segments.segment[i].layer, i / 2);
    }
    gg_segments_destroy(&segments);
    gg_segments_destroy(&segments);
    CHECK(gg_compression_packs(gg_graph_layout(graph), &compression));
    compression.dense_below = 36;
    CHECK(!gg_compression_packs(gg_graph_layout(graph), &compression));
    compression.packs = "a.weigh\nxb.weight\nb.weightb.weight\n"; /* other names */
    CHECK(!gg_compression_packs(gg_graph_layout(graph), &compression));
    compression.packs = "x\nb.weight\na.bias\n"; /* however small; biases travel dense by their role */
    CHECK_OK(gg_segments_create(gg_graph_layout(graph), &compression, &segments));
    for (int i = 0; i < 4; ++i) CHECK_INT(segments.segment[i].bin, i == 2 ? 5 : 0);
    gg_segments_destroy(&segments);
    compression.packs = NULL;
    compression.dense_below = 0, compression.active = false;
    CHECK(!gg_compression_packs(gg_graph_layout(graph), &compression));
    CHECK_OK(gg_segments_create(gg_graph_layout(graph), &compression, &segments));
    for (int i = 0; i < segments.count; ++i) CHECK_INT(segments.segment[i].bin, 0);
    gg_segments_destroy(&segments);
    gg_graph_destroy(graph);
}

int main(void) {
    test_segments();
    CHECK_INT(gg_memory_live_bytes(), 0);
    return CHECK_RESULT;
}
