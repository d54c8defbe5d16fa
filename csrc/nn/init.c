/* Initial weights. */
#include <math.h>

#include "base/random.h"
#include "nn/graph.h"
#include "nn/layer.h"

static void fill_uniform(const gg_random_key *key, size_t n, double bound, float *out) {
    gg_random_uniform(key, n, (float)-bound, (float)bound, out);
}

static void init_fill(const gg_tensor_desc *tensor, const gg_random_key *key, size_t n, float *out) {
    double in = (double)tensor->fan_in, both = in + (double)tensor->fan_out;
    switch (tensor->init.kind) {
    case GG_INIT_XAVIER_UNIFORM: fill_uniform(key, n, sqrt(6 / both), out); break;
    case GG_INIT_XAVIER_NORMAL: gg_random_normal(key, n, 0, (float)sqrt(2 / both), out); break;
    case GG_INIT_HE_UNIFORM: fill_uniform(key, n, sqrt(6 / in), out); break;
    case GG_INIT_HE_NORMAL: gg_random_normal(key, n, 0, (float)sqrt(2 / in), out); break;
    case GG_INIT_CAFFE_XAVIER: fill_uniform(key, n, sqrt(3 / in), out); break;
    case GG_INIT_UNIFORM: fill_uniform(key, n, tensor->init.value, out); break;
    case GG_INIT_NORMAL: gg_random_normal(key, n, 0, tensor->init.value, out); break;
    case GG_INIT_CONSTANT:
        for (size_t i = 0; i < n; i++) out[i] = tensor->init.value;
        break;
    case GG_INIT_DEFAULT:
    case GG_INIT_COUNT: fill_uniform(key, n, 1 / sqrt(in), out); break;
    }
}

void gg_graph_initialise(const gg_graph *graph, uint64_t seed, float *weights) {
    for (size_t i = 0; i < gg_graph_arena_count(graph); i++) weights[i] = 0;
    for (int i = 0; i < gg_graph_parameters(graph); i++) {
        const gg_parameter *parameter = gg_graph_parameter(graph, i);
        gg_random_key key = {.seed = seed, .purpose = GG_RANDOM_WEIGHTS, .rank = 0, .step = (uint64_t)i};
        init_fill(gg_graph_tensor(graph, i), &key, parameter->count, weights + parameter->offset);
    }
}
