/* Networks for the tests of apoptosis/, and runs of them: a graph, its weights, its outputs for random inputs. */
#ifndef APOPTOSIS_NETWORKS_H
#define APOPTOSIS_NETWORKS_H

#include <stdlib.h>

#include "base/memory.h"
#include "base/random.h"
#include "check.h"
#include "cpu/cpu_backend.h"
#include "nn/layer.h"
#include "nn/plan.h"

static gg_device *device;

static inline void open_device(void) {
    gg_isa isa;
    CHECK_OK(gg_isa_select(NULL, &isa));
    CHECK_OK(gg_backend_native.open(&(gg_device_options){.threads = 1, .isa = isa}, &device));
}

static inline gg_layer_desc layer(gg_layer_kind kind, const char *name) {
    gg_layer_desc desc = gg_layer_desc_of(kind);
    switch (kind) {
    case GG_LAYER_BATCH_NORM1D:
    case GG_LAYER_BATCH_NORM2D: desc.batch_norm = (gg_batch_norm_options){1e-5f, 0.1f, true, true}; break;
    case GG_LAYER_LAYER_NORM:
    case GG_LAYER_RMS_NORM: desc.layer_norm = (gg_layer_norm_options){.affine = true, .epsilon = 1e-5f}; break;
    case GG_LAYER_LEAKY_RELU: desc.leaky_relu.slope = 0.1f; break;
    case GG_LAYER_LSTM: desc.lstm.layers = 1; break;
    default: break;
    }
    snprintf(desc.name, sizeof desc.name, "%s", name);
    return desc;
}

static inline int add_layer(gg_graph *graph, gg_layer_desc desc, int from) {
    int node = -1;
    CHECK_OK(gg_graph_add(graph, &desc, NULL, 1, &from, &node));
    return node;
}

static inline int add_simple(gg_graph *graph, gg_layer_kind kind, const char *name, int from) {
    return add_layer(graph, layer(kind, name), from);
}

static inline int add_linear(gg_graph *graph, const char *name, int64_t outputs, int from) {
    gg_layer_desc desc = layer(GG_LAYER_LINEAR, name);
    desc.outputs = outputs;
    return add_layer(graph, desc, from);
}

static inline gg_layer_desc windowed(gg_layer_kind kind, const char *name, int64_t outputs, int64_t kernel,
                                     int64_t stride, int64_t padding) {
    gg_layer_desc desc = layer(kind, name);
    desc.outputs = outputs;
    gg_window *own = kind == GG_LAYER_CONV2D ? &desc.conv.window : &desc.pool;
    for (int i = 0; i < 2; i++) {
        own->kernel[i] = kernel;
        own->stride[i] = stride;
        own->padding[i] = padding;
    }
    return desc;
}

static inline int add_conv(gg_graph *graph, const char *name, int64_t outputs, int64_t kernel, int64_t padding,
                           bool bias, int from) {
    gg_layer_desc desc = windowed(GG_LAYER_CONV2D, name, outputs, kernel, 1, padding);
    desc.bias = bias;
    return add_layer(graph, desc, from);
}

static inline int add_join(gg_graph *graph, gg_layer_kind kind, const char *name, int a, int b) {
    gg_layer_desc desc = layer(kind, name);
    int node = -1, input[2] = {a, b};
    CHECK_OK(gg_graph_add(graph, &desc, NULL, 2, input, &node));
    return node;
}

static inline gg_graph *begin_graph(gg_shape shape) {
    gg_graph *graph = NULL;
    gg_layer_desc desc = layer(GG_LAYER_INPUT, "x");
    CHECK_OK(gg_graph_create(&graph));
    CHECK_OK(gg_graph_add(graph, &desc, &shape, 0, NULL, NULL));
    return graph;
}

static inline gg_graph *finish_graph(gg_graph *graph, int node) {
    CHECK_OK(gg_graph_finish(graph, 1, &(gg_head){.node = node}));
    return graph;
}

/* 6 - width - width - 3 with one kind of activation; GG_LAYER_INPUT: none. */
static inline gg_graph *mlp(gg_layer_kind activation, int64_t width) {
    gg_graph *graph = begin_graph((gg_shape){1, {6}});
    int at = add_linear(graph, "fc1", width, 0);
    if (activation != GG_LAYER_INPUT) at = add_simple(graph, activation, "act1", at);
    at = add_linear(graph, "fc2", width, at);
    if (activation != GG_LAYER_INPUT) at = add_simple(graph, activation, "act2", at);
    return finish_graph(graph, add_linear(graph, "fc3", 3, at));
}

static inline gg_graph *lenet(void) {
    gg_graph *graph = begin_graph((gg_shape){3, {1, 28, 28}});
    int at = add_conv(graph, "conv1", 6, 5, 2, true, 0);
    at = add_simple(graph, GG_LAYER_TANH, "tanh1", at);
    at = add_layer(graph, windowed(GG_LAYER_AVG_POOL2D, "pool1", 0, 2, 2, 0), at);
    at = add_conv(graph, "conv2", 16, 5, 0, true, at);
    at = add_simple(graph, GG_LAYER_TANH, "tanh2", at);
    at = add_layer(graph, windowed(GG_LAYER_MAX_POOL2D, "pool2", 0, 2, 2, 0), at);
    at = add_simple(graph, GG_LAYER_FLATTEN, "flatten", at);
    at = add_linear(graph, "fc1", 120, at);
    at = add_simple(graph, GG_LAYER_RELU, "relu3", at);
    at = add_linear(graph, "fc2", 84, at);
    at = add_simple(graph, GG_LAYER_RELU, "relu4", at);
    return finish_graph(graph, add_linear(graph, "fc3", 10, at));
}

static inline gg_graph *cifar_quick(void) {
    gg_graph *graph = begin_graph((gg_shape){3, {3, 16, 16}});
    gg_layer_desc pool = windowed(GG_LAYER_MAX_POOL2D, "pool1", 0, 3, 2, 0);
    pool.pool.ceil_mode = true;
    int at = add_conv(graph, "conv1", 12, 5, 2, true, 0);
    at = add_simple(graph, GG_LAYER_RELU, "relu1", add_layer(graph, pool, at));
    at = add_simple(graph, GG_LAYER_RELU, "relu2", add_conv(graph, "conv2", 12, 5, 2, true, at));
    pool.kind = GG_LAYER_AVG_POOL2D;
    snprintf(pool.name, sizeof pool.name, "pool2");
    at = add_layer(graph, pool, at);
    at = add_simple(graph, GG_LAYER_RELU, "relu3", add_conv(graph, "conv3", 20, 5, 2, true, at));
    snprintf(pool.name, sizeof pool.name, "pool3");
    at = add_simple(graph, GG_LAYER_FLATTEN, "flatten", add_layer(graph, pool, at));
    return finish_graph(graph, add_linear(graph, "ip2", 10, add_linear(graph, "ip1", 24, at)));
}

static inline int add_norm(gg_graph *graph, const char *name, int from) {
    return add_simple(graph, GG_LAYER_BATCH_NORM2D, name, from);
}

/* Two stages as in ResNet: blocks of two convolutions, shortcuts without parameters (the second one half the size, with
 * padded channels). */
static inline gg_graph *resnet(void) {
    gg_graph *graph = begin_graph((gg_shape){3, {3, 8, 8}});
    int at = add_norm(graph, "bn", add_conv(graph, "conv", 8, 3, 1, false, 0));
    const int first = at = add_simple(graph, GG_LAYER_RELU, "relu", at);
    at = add_norm(graph, "a.bn1", add_conv(graph, "a.conv1", 8, 3, 1, false, at));
    at = add_simple(graph, GG_LAYER_RELU, "a.relu1", at);
    at = add_norm(graph, "a.bn2", add_conv(graph, "a.conv2", 8, 3, 1, false, at));
    at = add_simple(graph, GG_LAYER_RELU, "a.relu2", add_join(graph, GG_LAYER_ADD, "a.add", at, first));
    gg_layer_desc half = windowed(GG_LAYER_CONV2D, "b.conv1", 16, 3, 2, 1);
    half.bias = false;
    int inner = add_simple(graph, GG_LAYER_RELU, "b.relu1", add_norm(graph, "b.bn1", add_layer(graph, half, at)));
    inner = add_norm(graph, "b.bn2", add_conv(graph, "b.conv2", 16, 3, 1, false, inner));
    gg_layer_desc pad = layer(GG_LAYER_PAD, "b.pad");
    pad.pad.zeros[0] = pad.pad.zeros[1] = 4;
    at = add_layer(graph, windowed(GG_LAYER_MAX_POOL2D, "b.half", 0, 1, 2, 0), at);
    at = add_join(graph, GG_LAYER_ADD, "b.add", inner, add_layer(graph, pad, at));
    at = add_simple(graph, GG_LAYER_RELU, "b.relu2", at);
    gg_layer_desc mean = layer(GG_LAYER_ADAPTIVE_AVG_POOL2D, "mean");
    mean.output_size[0] = mean.output_size[1] = 1;
    at = add_simple(graph, GG_LAYER_FLATTEN, "flatten", add_layer(graph, mean, at));
    return finish_graph(graph, add_linear(graph, "fc", 5, at));
}

/* A residual addition whose every layer can shrink, branches that are joined, and a layer that reads both. */
static inline gg_graph *branches(void) {
    gg_graph *graph = begin_graph((gg_shape){3, {2, 6, 6}});
    const int a = add_conv(graph, "a", 8, 3, 1, true, 0);
    const int a1 = add_simple(graph, GG_LAYER_RELU, "a.relu", a);
    const int b = add_conv(graph, "b", 8, 3, 1, true, a1);
    const int sum = add_simple(graph, GG_LAYER_RELU, "sum.relu", add_join(graph, GG_LAYER_ADD, "sum", a1, b));
    const int c = add_simple(graph, GG_LAYER_TANH, "c.tanh", add_conv(graph, "c", 5, 1, 0, true, a1));
    int at = add_join(graph, GG_LAYER_CONCAT, "cat", sum, c);
    at = add_simple(graph, GG_LAYER_FLATTEN, "flatten", add_conv(graph, "d", 6, 3, 0, true, at));
    return finish_graph(graph, add_linear(graph, "fc", 4, at));
}

/* Convolutions without biases, 1x1 behind the first, with a normalisation behind each. */
static inline gg_graph *normalised(void) {
    gg_graph *graph = begin_graph((gg_shape){3, {2, 6, 6}});
    int at = add_simple(graph, GG_LAYER_TANH, "a.tanh", add_conv(graph, "a", 7, 3, 1, true, 0));
    at = add_norm(graph, "b.bn", add_conv(graph, "b", 8, 1, 0, false, at));
    at = add_simple(graph, GG_LAYER_RELU, "b.relu", at);
    at = add_norm(graph, "c.bn", add_conv(graph, "c", 6, 1, 0, false, at));
    at = add_simple(graph, GG_LAYER_FLATTEN, "flatten", add_simple(graph, GG_LAYER_RELU, "c.relu", at));
    return finish_graph(graph, add_linear(graph, "fc", 3, at));
}

static inline gg_graph *recurrent(int64_t layers, bool bias) {
    gg_graph *graph = begin_graph((gg_shape){2, {5, 7}});
    gg_layer_desc desc = layer(GG_LAYER_LSTM, "lstm");
    desc.outputs = 9;
    desc.lstm.layers = layers;
    desc.bias = bias;
    int at = add_simple(graph, GG_LAYER_TANH, "tanh", add_linear(graph, "in", 6, 0));
    at = add_simple(graph, GG_LAYER_RELU, "relu", add_linear(graph, "mid", 8, add_layer(graph, desc, at)));
    return finish_graph(graph, add_linear(graph, "out", 4, at));
}

/* A residual block of attention over `heads` heads of 3 features, behind projections or with them inside, and one of an
 * inner width, without normalisation. */
static inline gg_graph *transformer(int64_t heads, bool packed, bool bias, bool causal) {
    const int64_t width = 6;
    gg_graph *graph = begin_graph((gg_shape){2, {5, width}});
    gg_layer_desc attention = layer(packed ? GG_LAYER_ATTENTION : GG_LAYER_MULTI_HEAD, "attn");
    gg_layer_desc norm = layer(GG_LAYER_LAYER_NORM, "ln");
    attention.attention.heads = heads;
    attention.attention.head_size = packed ? 0 : 3;
    attention.outputs = packed ? 0 : width;
    attention.bias = bias;
    attention.attention.causal = causal;
    int at = add_layer(graph, norm, 0);
    if (packed) {
        gg_layer_desc linear = layer(GG_LAYER_LINEAR, "attn.in");
        linear.outputs = 9 * heads;
        linear.bias = bias;
        at = add_layer(graph, attention, add_layer(graph, linear, at));
        at = add_linear(graph, "attn.out", width, at);
    } else {
        at = add_layer(graph, attention, at);
    }
    const int first = at = add_join(graph, GG_LAYER_ADD, "add", at, 0);
    at = add_simple(graph, GG_LAYER_GELU, "gelu", add_linear(graph, "mlp.in", 11, at));
    at = add_join(graph, GG_LAYER_ADD, "add2", add_linear(graph, "mlp.out", width, at), first);
    return finish_graph(graph, add_linear(graph, "out", 3, at));
}

/* Units that change their axis and get zeros around them; each of two layers reads a part of them. */
static inline gg_graph *rearranged(void) {
    gg_graph *graph = begin_graph((gg_shape){2, {8, 4}});
    gg_layer_desc turn = layer(GG_LAYER_PERMUTE, "turn"), part = layer(GG_LAYER_SLICE, "left"),
                  pad = layer(GG_LAYER_PAD, "pad"), back;
    turn.order = (gg_shape){2, {1, 0}};
    int at = add_simple(graph, GG_LAYER_TANH, "tanh", add_linear(graph, "rows", 13, 0));
    back = turn;
    snprintf(back.name, sizeof back.name, "back");
    at = add_layer(graph, turn, at); /* (13, 8) */
    part.range = (gg_range){.axis = 0, .begin = 0, .end = 6, .step = 1};
    const int left = add_layer(graph, back, add_layer(graph, part, at));
    snprintf(part.name, sizeof part.name, "right");
    part.range = (gg_range){.axis = -2, .begin = -7, .end = 100, .step = 1};
    snprintf(back.name, sizeof back.name, "back2");
    const int right = add_layer(graph, back, add_layer(graph, part, at));
    snprintf(part.name, sizeof part.name, "places");
    part.range = (gg_range){.axis = 0, .begin = 1, .end = 8, .step = 2};
    const int places = add_layer(graph, part, right); /* (4, 7) */
    pad.pad.axis = 0;
    pad.pad.zeros[1] = 4;
    const int wide = add_linear(graph, "b", 12, add_layer(graph, pad, places)); /* (8, 12) */
    const int narrow = add_simple(graph, GG_LAYER_RELU, "relu", add_linear(graph, "a", 6, left));
    snprintf(pad.name, sizeof pad.name, "pad2");
    pad.pad.axis = -1;
    pad.pad.zeros[0] = 2;
    pad.pad.zeros[1] = 4;
    at = add_join(graph, GG_LAYER_ADD, "sum", wide, add_layer(graph, pad, narrow));
    return finish_graph(graph, add_linear(graph, "out", 3, add_simple(graph, GG_LAYER_RELU, "relu2", at)));
}

/* Runs ------------------------------------------------------------------------------------------------------------- */

static inline const gg_parameter *parameter_named(const gg_graph *graph, const char *name) {
    for (int i = 0; i < gg_graph_parameters(graph); i++)
        if (strcmp(gg_graph_parameter(graph, i)->name, name) == 0) return gg_graph_parameter(graph, i);
    CHECK(!"a parameter of this name");
    return NULL;
}

/* An arena of random values, and statistics and scales as after some training. Zero padding. */
static inline float *random_arena(const gg_graph *graph, uint64_t seed) {
    float *arena = NULL;
    gg_random_key key = {.seed = seed, .purpose = GG_RANDOM_TEST};
    CHECK_OK(gg_calloc(gg_graph_arena_count(graph) + 1, sizeof *arena, "arena", &arena));
    for (int i = 0; i < gg_graph_parameters(graph); i++, key.step++) {
        const gg_parameter *it = gg_graph_parameter(graph, i);
        const float fan = gg_graph_tensor(graph, i)->fan_in > 0 ? (float)gg_graph_tensor(graph, i)->fan_in : 1,
                    reach = 1.7f / sqrtf(fan);
        const bool positive = it->role == GG_ROLE_SCALE || strstr(it->name, "running_var") != NULL;
        if (positive) gg_random_uniform(&key, it->count, 0.5f, 2, arena + it->offset);
        else if (it->role == GG_ROLE_WEIGHT) gg_random_uniform(&key, it->count, -reach, reach, arena + it->offset);
        else gg_random_uniform(&key, it->count, -0.5f, 0.5f, arena + it->offset);
    }
    return arena;
}

#define RUN_BATCH 5

/* The main output of RUN_BATCH random samples; the caller frees. */
static inline float *run_network(const gg_graph *graph, const float *weights, uint64_t seed) {
    gg_plan *plan = NULL;
    /* Sums of products skip channels that are left out, bit for bit. */
    gg_plan_options options = {
        .batch = RUN_BATCH, .device = device, .fallback = device, .conv_algorithm = GG_CONV_DIRECT};
    float *head[GG_MAX_FIELDS] = {0}, *x = NULL;
    const gg_shape *shape = &gg_graph_node(graph, gg_graph_input(graph, 0))->shape;
    const int64_t values = gg_shape_count(shape);
    const size_t count = (size_t)gg_shape_count(&gg_graph_node(graph, gg_graph_output(graph))->shape) * RUN_BATCH;
    gg_random_key key = {.seed = seed, .purpose = GG_RANDOM_TEST, .step = 77};
    x = malloc((size_t)values * RUN_BATCH * sizeof *x);
    gg_random_uniform(&key, (size_t)values * RUN_BATCH, -1, 1, x);
    head[0] = malloc(count * sizeof *x);
    CHECK_OK(gg_plan_create(graph, &options, &plan));
    if (plan != NULL) {
        CHECK_OK(gg_plan_activate(plan));
        const gg_format format = gg_plan_input_format(plan, 0);
        float *to = gg_plan_input(plan, 0);
        const int64_t lanes = gg_lanes_padded(RUN_BATCH);
        for (int64_t n = 0; n < RUN_BATCH; n++)
            for (int64_t i = 0; i < values; i++)
                to[format.layout == GG_LAYOUT_BATCH_LAST ? i * lanes + n : n * values + i] = x[n * values + i];
        CHECK_OK(gg_plan_predict(plan, weights, 0, &(gg_plan_batch){0}, RUN_BATCH, head));
    }
    gg_plan_destroy(plan);
    free(x);
    return head[0];
}

static inline int64_t output_values(const gg_graph *graph) {
    return gg_shape_count(&gg_graph_node(graph, gg_graph_output(graph))->shape) * RUN_BATCH;
}

#endif
