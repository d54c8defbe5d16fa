/* What a network is compressed in, and what is folded where units are merged. */
#include <stdlib.h>

#include "base/memory.h"
#include "base/random.h"
#include "check.h"
#include "compress/compression.h"
#include "compress/fold.h"
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
    gg_compression compression = {
        .active = true, .bin = {[GG_FAMILY_LINEAR] = 10}, .factor = 2, .dense_roles = 1u << GG_ROLE_BIAS};
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
    compression.dense_below = 0, compression.active = false;
    CHECK(!gg_compression_packs(gg_graph_layout(graph), &compression));
    CHECK_OK(gg_segments_create(gg_graph_layout(graph), &compression, &segments));
    for (int i = 0; i < segments.count; ++i) CHECK_INT(segments.segment[i].bin, 0);
    gg_segments_destroy(&segments);
    gg_graph_destroy(graph);
}

/* A network of two linear layers computes the same after a fold of units that are exact multiples of others, and the
 * fold of a sum is the sum of the folds. */
static void test_fold(void) {
    enum { INPUTS = 3, UNITS = 5, LEFT = 3, OUTPUTS = 4, SUM = 2 };
    const int64_t into[UNITS] = {0, 1, 0, 2, -1};
    const float factor[UNITS] = {1, 1, -2, 1, 0.5f};
    const gg_fold fold = {.units = UNITS, .left = LEFT, .into = into, .factor = factor};
    float in[SUM + 1][OUTPUTS * UNITS], out[SUM + 1][OUTPUTS * LEFT];
    for (int s = 0; s < SUM; ++s) {
        const gg_random_key key = {.seed = 1, .purpose = GG_RANDOM_TEST, .step = (uint64_t)s};
        gg_random_uniform(&key, OUTPUTS * UNITS, -1, 1, in[s]);
    }
    for (int i = 0; i < OUTPUTS * UNITS; ++i) in[SUM][i] = in[0][i] + in[1][i];
    for (int s = 0; s <= SUM; ++s) CHECK_OK(gg_fold_run(&fold, OUTPUTS, 1, in[s], out[s]));
    for (int i = 0; i < OUTPUTS * LEFT; ++i) CHECK_NEAR(out[SUM][i], out[0][i] + out[1][i], 1e-6);
    /* The hidden units' values, where unit i is factor[i] times the one that it goes into, and the last is always 0. */
    const float kept[LEFT] = {0.7f, -1.3f, 2.1f};
    for (int o = 0; o < OUTPUTS; ++o) {
        float before = 0, after = 0;
        for (int u = 0; u < UNITS; ++u)
            if (into[u] >= 0) before += in[0][o * UNITS + u] * factor[u] * kept[into[u]];
        for (int u = 0; u < LEFT; ++u) after += out[0][o * LEFT + u] * kept[u];
        CHECK_NEAR(after, before, 1e-5);
    }
    /* Rows: outer 1. */
    float rows[UNITS * INPUTS], left[LEFT * INPUTS];
    for (int i = 0; i < UNITS * INPUTS; ++i) rows[i] = (float)i;
    CHECK_OK(gg_fold_run(&fold, 1, INPUTS, rows, left));
    for (int k = 0; k < INPUTS; ++k) {
        CHECK_NEAR(left[k], (float)k - 2 * (float)(2 * INPUTS + k), 0);
        CHECK_NEAR(left[INPUTS + k], (float)(INPUTS + k), 0);
        CHECK_NEAR(left[2 * INPUTS + k], (float)(3 * INPUTS + k), 0);
    }
    const int64_t wrong[UNITS] = {0, 1, 0, 3, -1};
    const float infinite[UNITS] = {1, 1, 1, 1, INFINITY};
    CHECK_FAILS(gg_fold_run(&(gg_fold){UNITS, LEFT, wrong, factor}, 1, 1, rows, left), GG_ERROR_ARGUMENT,
                "unit 3 goes into unit 3; allowed are -1 to 2");
    CHECK_FAILS(gg_fold_run(&(gg_fold){UNITS, LEFT, into, infinite}, 1, 1, rows, left), GG_ERROR_ARGUMENT,
                "factor of unit 4");
    CHECK_FAILS(gg_fold_run(&(gg_fold){LEFT, UNITS, into, factor}, 1, 1, rows, left), GG_ERROR_ARGUMENT,
                "units do not become more");
}

int main(void) {
    test_segments();
    test_fold();
    CHECK_INT(gg_memory_live_bytes(), 0);
    return CHECK_RESULT;
}
