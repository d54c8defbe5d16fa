/* The graph: shapes, parameters, arenas, initial weights, and what is refused. */
#include <stdlib.h>

#include "base/memory.h"
#include "check.h"
#include "nn/layer.h"

static gg_layer_desc named(gg_layer_kind kind, const char *name) {
    gg_layer_desc desc = gg_layer_desc_of(kind);
    snprintf(desc.name, sizeof desc.name, "%s", name);
    return desc;
}

static gg_layer_desc windowed(gg_layer_kind kind, const char *name, int64_t kernel, int64_t stride, int64_t padding) {
    gg_layer_desc desc = named(kind, name);
    gg_window *own = kind == GG_LAYER_CONV2D ? &desc.conv.window : &desc.pool;
    for (int i = 0; i < 2; i++) {
        own->kernel[i] = kernel;
        own->stride[i] = stride;
        own->padding[i] = padding;
    }
    return desc;
}

static gg_graph *start(int dims, const int64_t *size) {
    gg_graph *graph = NULL;
    gg_shape shape = {.dims = dims};
    gg_layer_desc input = named(GG_LAYER_INPUT, "input");
    for (int i = 0; i < dims; i++) shape.size[i] = size[i];
    CHECK_OK(gg_graph_create(&graph));
    CHECK_OK(gg_graph_add(graph, &input, &shape, 0, NULL, NULL));
    return graph;
}

static gg_status add1(gg_graph *graph, gg_layer_desc desc, int from, int *node) {
    return gg_graph_add(graph, &desc, NULL, 1, &from, node);
}

static void check_shape(const gg_graph *graph, int node, const char *wanted) {
    char text[GG_SHAPE_TEXT];
    CHECK_TEXT(gg_shape_text(&gg_graph_node(graph, node)->shape, text), wanted);
}

/* The network of the first page: a LeNet. */
static void test_lenet(void) {
    gg_graph *graph = start(3, (int64_t[]){1, 28, 28});
    int at = 0;
    gg_layer_desc conv1 = windowed(GG_LAYER_CONV2D, "conv1", 5, 1, 0),
                  conv2 = windowed(GG_LAYER_CONV2D, "conv2", 5, 1, 0);
    gg_layer_desc fc1 = named(GG_LAYER_LINEAR, "fc1"), fc2 = named(GG_LAYER_LINEAR, "fc2");
    conv1.outputs = 20;
    conv2.outputs = 50;
    fc1.outputs = 500;
    fc2.outputs = 10;
    CHECK_OK(add1(graph, conv1, at, &at));
    check_shape(graph, at, "(20, 24, 24)");
    CHECK_OK(add1(graph, windowed(GG_LAYER_MAX_POOL2D, "pool1", 2, 2, 0), at, &at));
    check_shape(graph, at, "(20, 12, 12)");
    CHECK_OK(add1(graph, conv2, at, &at));
    CHECK_OK(add1(graph, windowed(GG_LAYER_MAX_POOL2D, "pool2", 2, 2, 0), at, &at));
    check_shape(graph, at, "(50, 4, 4)");
    CHECK_OK(add1(graph, named(GG_LAYER_FLATTEN, "flatten"), at, &at));
    check_shape(graph, at, "(800,)");
    CHECK_OK(add1(graph, fc1, at, &at));
    CHECK_OK(add1(graph, named(GG_LAYER_RELU, "relu"), at, &at));
    CHECK_OK(add1(graph, fc2, at, &at));
    CHECK_OK(gg_graph_finish(graph, 1, &(gg_head){.node = at}));
    CHECK_FAILS(gg_graph_finish(graph, 1, &(gg_head){.node = at}), GG_ERROR_STATE, "already finished");
    CHECK_FAILS(add1(graph, named(GG_LAYER_RELU, "more"), at, NULL), GG_ERROR_STATE, "'more'");

    CHECK_INT(gg_graph_parameter_count(graph), 431080);
    CHECK_INT(gg_graph_layers(graph), 4);
    CHECK_INT(gg_graph_parameters(graph), 8);
    CHECK_TEXT(gg_graph_parameter(graph, 0)->name, "conv1.weight");
    CHECK_TEXT(gg_graph_parameter(graph, 7)->name, "fc2.bias");
    CHECK_TEXT(gg_graph_layer_name(graph, 2), "fc1");
    CHECK_INT(gg_graph_node_macs(graph, 1), 20 * 24 * 24 * 25);
    CHECK_INT(gg_graph_node_macs(graph, 2), 0);
    CHECK_INT(gg_graph_node_macs(graph, 6), 800 * 500);
    CHECK_INT(gg_graph_tensor(graph, 2)->fan_in, 20 * 25);
    CHECK_INT(gg_graph_tensor(graph, 2)->fan_out, 50 * 25);

    /* Slices follow each other, and what is not a parameter is padding. */
    size_t end = 0, count = 0;
    for (int i = 0; i < gg_graph_layers(graph); i++) {
        CHECK_INT(gg_graph_layer(graph, i)->offset, end);
        CHECK_INT(gg_graph_layer(graph, i)->count % GG_LANES, 0);
        end += gg_graph_layer(graph, i)->count;
    }
    CHECK_INT(end, gg_graph_arena_count(graph));
    float *arena = malloc(end * sizeof(float)), *again = malloc(end * sizeof(float));
    for (size_t i = 0; i < end; i++) arena[i] = 7;
    gg_graph_initialise(graph, 3, arena);
    gg_graph_initialise(graph, 3, again);
    CHECK(memcmp(arena, again, end * sizeof(float)) == 0);
    gg_graph_initialise(graph, 4, again);
    CHECK(memcmp(arena, again, end * sizeof(float)) != 0);
    for (int i = 0; i < gg_graph_parameters(graph); i++) {
        const gg_parameter *parameter = gg_graph_parameter(graph, i);
        double bound = 1 / sqrt((double)gg_graph_tensor(graph, i)->fan_in), most = 0;
        size_t padded = (size_t)gg_lanes_padded((int64_t)parameter->count);
        CHECK_INT(parameter->offset % GG_LANES, 0);
        for (size_t k = 0; k < parameter->count; k++) most = fmax(most, fabs((double)arena[parameter->offset + k]));
        CHECK(most <= bound * 1.000001 && most > bound * 0.7);
        for (size_t k = parameter->count; k < padded; k++) CHECK(arena[parameter->offset + k] == 0);
        count += parameter->count;
    }
    CHECK_INT(count, 431080);
    free(arena);
    free(again);
    gg_graph_destroy(graph);
}

/* PyTorch's output sizes. */
static void test_windows(void) {
    static const struct {
        gg_layer_kind kind;
        int64_t input, kernel, stride, padding, dilation;
        bool ceil_mode;
        int64_t output;
    } rows[] = {
        {GG_LAYER_CONV2D, 224, 7, 2, 3, 1, false, 112},    {GG_LAYER_CONV2D, 7, 3, 1, 0, 3, false, 1},
        {GG_LAYER_CONV2D, 5, 3, 2, 1, 2, false, 2},        {GG_LAYER_MAX_POOL2D, 112, 3, 2, 0, 1, true, 56},
        {GG_LAYER_MAX_POOL2D, 112, 3, 2, 0, 1, false, 55}, {GG_LAYER_MAX_POOL2D, 112, 3, 2, 1, 1, false, 56},
        {GG_LAYER_MAX_POOL2D, 5, 2, 2, 0, 1, true, 3},     {GG_LAYER_MAX_POOL2D, 4, 2, 3, 0, 1, true, 2},
        {GG_LAYER_AVG_POOL2D, 3, 2, 3, 1, 1, true, 2},     {GG_LAYER_AVG_POOL2D, 2, 2, 3, 1, 1, true, 1},
        {GG_LAYER_AVG_POOL2D, 3, 1, 2, 0, 1, true, 2},     {GG_LAYER_AVG_POOL2D, 6, 3, 4, 1, 1, true, 2},
        {GG_LAYER_MAX_POOL2D, 10, 3, 2, 1, 2, false, 4},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        gg_graph *graph = start(3, (int64_t[]){2, rows[i].input, rows[i].input + 40});
        gg_layer_desc desc = windowed(rows[i].kind, "it", rows[i].kernel, rows[i].stride, rows[i].padding);
        int node = 0;
        desc.outputs = 3;
        gg_window *own = rows[i].kind == GG_LAYER_CONV2D ? &desc.conv.window : &desc.pool;
        own->dilation[0] = own->dilation[1] = rows[i].dilation;
        own->ceil_mode = rows[i].ceil_mode;
        if (CHECK_OK(add1(graph, desc, 0, &node))) {
            CHECK_INT(gg_graph_node(graph, node)->shape.size[1], rows[i].output);
            CHECK_INT(gg_graph_node(graph, node)->shape.size[0], rows[i].kind == GG_LAYER_CONV2D ? 3 : 2);
        }
        gg_graph_destroy(graph);
    }
}

/* Several inputs, of two types. */
static void test_inputs(void) {
    gg_graph *graph = start(1, (int64_t[]){3});
    gg_layer_desc tokens = named(GG_LAYER_INPUT, "tokens"), more = named(GG_LAYER_INPUT, "more");
    const gg_shape shape = {1, {6}};
    int token = 0, flat = 0, node = 0;
    tokens.dtype = GG_INT32;
    CHECK_OK(gg_graph_add(graph, &tokens, &shape, 0, NULL, &token));
    CHECK_OK(gg_graph_add(graph, &more, &shape, 0, NULL, &node));
    CHECK_INT(gg_graph_inputs(graph), 3);
    CHECK_INT(gg_graph_input(graph, 0), 0);
    CHECK_INT(gg_graph_input(graph, 1), token);
    CHECK_INT(gg_graph_input(graph, 2), node);
    CHECK_INT(gg_graph_node(graph, token)->dtype, GG_INT32);
    CHECK_INT(gg_graph_node(graph, node)->dtype, GG_FLOAT32);
    CHECK_FAILS(add1(graph, named(GG_LAYER_TANH, "t"), token, NULL), GG_ERROR_TYPE,
                "layer 't' (tanh): input 0 must be float32, got int32 from 'tokens'");
    CHECK_OK(add1(graph, named(GG_LAYER_FLATTEN, "flat"), token, &flat));
    CHECK_INT(gg_graph_node(graph, flat)->dtype, GG_INT32);
    CHECK_FAILS(gg_graph_finish(graph, 1, &(gg_head){.node = flat}), GG_ERROR_TYPE, "'flat' is int32");
    CHECK_FAILS(gg_graph_finish(graph, 1, &(gg_head){.node = node}), GG_ERROR_ARGUMENT,
                "layer 'input' (input) does not lead to");
    CHECK_FAILS(gg_graph_finish(graph, 0, NULL), GG_ERROR_ARGUMENT, "has 1 to 8 outputs, got 0");
    CHECK_FAILS(gg_graph_finish(graph, 2, (gg_head[]){{.node = node}, {.node = node}}), GG_ERROR_ARGUMENT,
                "'more' is an output twice");
    CHECK_FAILS(gg_graph_finish(graph, 1, &(gg_head){.node = node, .training_only = true}), GG_ERROR_ARGUMENT,
                "the first output, 'more', is the main one");
    CHECK_FAILS(gg_graph_finish(graph, 2, (gg_head[]){{.node = node}, {.node = 0}}), GG_ERROR_ARGUMENT,
                "layer 'tokens' (input) does not lead to any output");
    for (int i = 3; i < GG_MAX_FIELDS; i++) {
        snprintf(more.name, sizeof more.name, "input%d", i);
        CHECK_OK(gg_graph_add(graph, &more, &shape, 0, NULL, NULL));
    }
    snprintf(more.name, sizeof more.name, "last");
    CHECK_FAILS(gg_graph_add(graph, &more, &shape, 0, NULL, NULL), GG_ERROR_UNSUPPORTED, "at most 8 inputs");
    gg_graph_destroy(graph);
}

static void test_refusals(void) {
    gg_graph *graph = start(3, (int64_t[]){4, 8, 6});
    gg_layer_desc desc = named(GG_LAYER_INPUT, "second");
    gg_shape shape = {1, {3}};
    int pair[2] = {0, 0}, node;
    desc.dtype = GG_UINT8;
    CHECK_FAILS(gg_graph_add(graph, &desc, &shape, 0, NULL, NULL), GG_ERROR_TYPE, "float32 or int32, got uint8");
    CHECK_FAILS(add1(graph, named(GG_LAYER_RELU, ""), 0, NULL), GG_ERROR_ARGUMENT, "must not be empty");
    CHECK_FAILS(add1(graph, named(GG_LAYER_RELU, "input"), 0, NULL), GG_ERROR_ARGUMENT,
                "'input' is already that of node");
    CHECK_FAILS(add1(graph, named(GG_LAYER_RELU, "r"), 1, NULL), GG_ERROR_ARGUMENT, "nodes 0 to 0");
    CHECK_FAILS(add1(graph, named(GG_LAYER_RELU, "r"), -1, NULL), GG_ERROR_ARGUMENT, "is node -1");
    CHECK_FAILS(add1(graph, named(GG_LAYER_ADD, "a"), 0, NULL), GG_ERROR_ARGUMENT, "needs 2 to 16 inputs, got 1");
    desc = named(GG_LAYER_RELU, "r");
    CHECK_FAILS(gg_graph_add(graph, &desc, NULL, 2, pair, NULL), GG_ERROR_ARGUMENT, "needs 1 input, got 2");
    desc.kind = GG_LAYER_COUNT;
    CHECK_FAILS(add1(graph, desc, 0, NULL), GG_ERROR_ARGUMENT, "unknown layer kind");
    memset(desc.name, 'x', sizeof desc.name);
    desc.kind = GG_LAYER_RELU;
    CHECK_FAILS(add1(graph, desc, 0, NULL), GG_ERROR_ARGUMENT, "shorter than 64");

    desc = windowed(GG_LAYER_CONV2D, "c", 3, 1, 0);
    CHECK_FAILS(add1(graph, desc, 0, NULL), GG_ERROR_ARGUMENT, "outputs=0: must be at least 1 and at most 2147483648");
    desc.outputs = ((int64_t)1 << 31) + 1;
    CHECK_FAILS(add1(graph, desc, 0, NULL), GG_ERROR_ARGUMENT,
                "outputs=2147483649: must be at least 1 and at most 2147483648");
    desc.outputs = 6;
    desc.conv.groups = 4;
    CHECK_FAILS(add1(graph, desc, 0, NULL), GG_ERROR_SHAPE, "groups = 4 must divide the 6 output channels and the 4");
    desc.conv.groups = 0;
    CHECK_FAILS(add1(graph, desc, 0, NULL), GG_ERROR_ARGUMENT, "groups=0: must be at least 1");
    desc.conv.groups = 2;
    desc.conv.window.kernel[1] = 7;
    CHECK_FAILS(add1(graph, desc, 0, NULL), GG_ERROR_SHAPE, "larger than the input (4, 8, 6) from 'input'");
    desc.conv.window.kernel[1] = 0;
    CHECK_FAILS(add1(graph, desc, 0, NULL), GG_ERROR_ARGUMENT, "kernel=0: must be at least 1 and at most 16777216");
    desc.conv.window.kernel[1] = 1;
    desc.conv.window.padding[0] = -1;
    CHECK_FAILS(add1(graph, desc, 0, NULL), GG_ERROR_ARGUMENT, "padding=-1: must be at least 0");
    desc = windowed(GG_LAYER_CONV2D, "c", 3, 1, 0);
    desc.outputs = 2;
    desc.weight_init = (gg_init){GG_INIT_NORMAL, -1};
    CHECK_FAILS(add1(graph, desc, 0, NULL), GG_ERROR_ARGUMENT,
                "weight_init: the bound or deviation must not be negative");
    desc.weight_init = (gg_init){GG_INIT_CONSTANT, NAN};
    CHECK_FAILS(add1(graph, desc, 0, NULL), GG_ERROR_ARGUMENT, "must be finite");

    CHECK_FAILS(add1(graph, windowed(GG_LAYER_MAX_POOL2D, "p", 3, 2, 2), 0, NULL), GG_ERROR_ARGUMENT,
                "layer 'p' (max_pool2d): padding must be at most half of the kernel, 1, got 2");
    desc = windowed(GG_LAYER_AVG_POOL2D, "p", 2, 2, 0);
    desc.pool.dilation[1] = 2;
    CHECK_FAILS(add1(graph, desc, 0, NULL), GG_ERROR_UNSUPPORTED, "no dilation");

    desc = named(GG_LAYER_DROPOUT, "d");
    desc.probability = 1;
    CHECK_FAILS(add1(graph, desc, 0, NULL), GG_ERROR_ARGUMENT,
                "layer 'd' (dropout): probability=1: must be at least 0 and below 1");
    desc.probability = NAN;
    CHECK_FAILS(add1(graph, desc, 0, NULL), GG_ERROR_ARGUMENT, "probability=nan");

    CHECK_OK(add1(graph, windowed(GG_LAYER_MAX_POOL2D, "pool", 2, 2, 0), 0, &node));
    pair[1] = node;
    desc = named(GG_LAYER_ADD, "sum");
    CHECK_FAILS(gg_graph_add(graph, &desc, NULL, 2, pair, NULL), GG_ERROR_SHAPE,
                "layer 'sum' (add): inputs must have one shape, got (4, 8, 6) from 'input' and (4, 4, 3) from 'pool'");
    desc = named(GG_LAYER_CONCAT, "join");
    CHECK_FAILS(gg_graph_add(graph, &desc, NULL, 2, pair, NULL), GG_ERROR_SHAPE, "(4, 4, 3) from 'pool'");
    pair[0] = node;
    CHECK_OK(gg_graph_add(graph, &desc, NULL, 2, pair, &node));
    check_shape(graph, node, "(8, 4, 3)");
    CHECK_FAILS(gg_graph_finish(graph, 1, &(gg_head){.node = 9}), GG_ERROR_ARGUMENT, "nodes 0 to 2");
    CHECK_FAILS(gg_graph_finish(graph, 1, &(gg_head){.node = 1}), GG_ERROR_ARGUMENT,
                "layer 'join' (concat) does not lead to the output 'pool'");
    CHECK_OK(gg_graph_finish(graph, 1, &(gg_head){.node = node}));
    CHECK_INT(gg_graph_arena_count(graph), 0);
    CHECK_INT(gg_graph_output(graph), 2);
    gg_graph_destroy(graph);

    CHECK_OK(gg_graph_create(&graph));
    CHECK_FAILS(gg_graph_finish(graph, 1, &(gg_head){.node = 0}), GG_ERROR_STATE, "no input");
    desc = named(GG_LAYER_INPUT, "input");
    shape = (gg_shape){2, {3, 0}};
    CHECK_FAILS(gg_graph_add(graph, &desc, &shape, 0, NULL, NULL), GG_ERROR_SHAPE, "(3, 0)");
    shape = (gg_shape){0};
    CHECK_FAILS(gg_graph_add(graph, &desc, &shape, 0, NULL, NULL), GG_ERROR_SHAPE, "1 to 5 axes");
    shape = (gg_shape){3, {(int64_t)1 << 40, (int64_t)1 << 40, 1}};
    CHECK_FAILS(gg_graph_add(graph, &desc, &shape, 0, NULL, NULL), GG_ERROR_SHAPE, "too many values");
    CHECK_INT(gg_graph_nodes(graph), 0);
    gg_graph_destroy(graph);
}

/* Each initialiser's spread. */
static void test_initialisers(void) {
    static const struct {
        gg_init init;
        double deviation, most;
    } rows[] = {
        {{GG_INIT_DEFAULT, 0}, 0.1 / 1.7320508, 0.1},  {{GG_INIT_XAVIER_UNIFORM, 0}, 0.08164966, 0.14142136},
        {{GG_INIT_XAVIER_NORMAL, 0}, 0.08164966, 0.6}, {{GG_INIT_HE_UNIFORM, 0}, 0.14142136, 0.24494897},
        {{GG_INIT_HE_NORMAL, 0}, 0.14142136, 1},       {{GG_INIT_CAFFE_XAVIER, 0}, 0.1, 0.17320508},
        {{GG_INIT_UNIFORM, 2}, 2 / 1.7320508, 2},      {{GG_INIT_NORMAL, 0.5f}, 0.5, 4},
        {{GG_INIT_CONSTANT, 0.25f}, 0.25, 0.25},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        gg_graph *graph = start(1, (int64_t[]){100});
        gg_layer_desc desc = named(GG_LAYER_LINEAR, "fc");
        int node = 0;
        desc.outputs = 200;
        desc.weight_init = rows[i].init;
        desc.bias = false;
        CHECK_OK(add1(graph, desc, 0, &node));
        CHECK_OK(gg_graph_finish(graph, 1, &(gg_head){.node = node}));
        size_t n = gg_graph_arena_count(graph);
        float *arena = malloc(n * sizeof(float));
        double squares = 0, most = 0;
        gg_graph_initialise(graph, 1, arena);
        for (size_t k = 0; k < n; k++) {
            squares += (double)arena[k] * (double)arena[k];
            most = fmax(most, fabs((double)arena[k]));
        }
        CHECK_INT(n, 20000);
        CHECK_NEAR(sqrt(squares / (double)n), rows[i].deviation, rows[i].deviation * 0.02);
        CHECK(most <= rows[i].most * 1.000001);
        free(arena);
        gg_graph_destroy(graph);
    }
}

int main(void) {
    test_lenet();
    test_windows();
    test_inputs();
    test_refusals();
    test_initialisers();
    CHECK_INT(gg_memory_live_bytes(), 0);
    return check_report();
}
