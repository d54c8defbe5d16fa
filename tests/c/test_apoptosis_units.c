/* Which units networks have, which leave together, and what cannot leave. */
#include "apoptosis/units.h"
#include "apoptosis_networks.h"

static const gg_unit_group *group_named(const gg_units *units, const gg_graph *graph, const char *name) {
    const int g = gg_units_group_named(units, graph, name);
    CHECK(g >= 0);
    return &units->group[g < 0 ? 0 : g];
}

static gg_units *find(const gg_graph *graph) {
    gg_units *units = NULL;
    CHECK_OK(gg_units_find(graph, &units));
    return units;
}

static void done(gg_graph *graph, gg_units *units) {
    gg_units_destroy(units);
    gg_graph_destroy(graph);
}

static void test_mlp(void) {
    static const struct {
        gg_layer_kind kind;
        gg_unit_rule rule;
    } cases[] = {{GG_LAYER_INPUT, GG_UNIT_LINEAR},        {GG_LAYER_RELU, GG_UNIT_POSITIVE},
                 {GG_LAYER_LEAKY_RELU, GG_UNIT_POSITIVE}, {GG_LAYER_TANH, GG_UNIT_ODD},
                 {GG_LAYER_SIGMOID, GG_UNIT_SIGMOID},     {GG_LAYER_GELU, GG_UNIT_EQUAL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gg_graph *graph = mlp(cases[i].kind, 5);
        gg_units *units = find(graph);
        CHECK_INT(units->units, 13);
        CHECK_INT(units->groups, 3);
        const gg_unit_group *first = group_named(units, graph, "fc1"), *last = group_named(units, graph, "fc3");
        CHECK_INT(first->units, 5);
        CHECK_INT(first->producers, 1);
        CHECK_INT(first->readers, 1);
        CHECK_INT(first->rule, cases[i].rule);
        CHECK_INT(first->activation, cases[i].kind == GG_LAYER_GELU ? GG_LAYER_COUNT : cases[i].kind);
        CHECK_TEXT(first->fixed, "");
        CHECK_TEXT(first->single, "");
        CHECK_TEXT(gg_graph_parameter(graph, first->reader[0].weight)->name, "fc2.weight");
        CHECK_TEXT(gg_graph_parameter(graph, first->reader[0].bias)->name, "fc2.bias");
        CHECK(first->reader[0].constants);
        CHECK_TEXT(last->fixed, "'fc3' (linear) is an output of the network");
        CHECK_INT(gg_units_group_named(units, graph, "x"), -1);
        const gg_unit_axis *axis = units->parameter[2]; /* fc2.weight */
        for (int k = 0; k < 5; k++) {
            CHECK_INT(axis[1].unit[k], first->first + k);
            CHECK_INT(axis[0].unit[k], group_named(units, graph, "fc2")->first + k);
        }
        CHECK(units->parameter[0][1].unit == NULL); /* the network's inputs */
        CHECK_TEXT(gg_unit_rule_name(GG_UNIT_SIGMOID), "sigmoid");
        done(graph, units);
    }
}

static void test_lenet(void) {
    gg_graph *graph = lenet();
    gg_units *units = find(graph);
    const gg_unit_group *conv1 = group_named(units, graph, "conv1"), *conv2 = group_named(units, graph, "conv2");
    CHECK_INT(conv1->rule, GG_UNIT_ODD); /* averages of tanh */
    CHECK_INT(conv1->units, 6);
    CHECK(conv1->reader[0].constants);          /* conv2 is not padded */
    CHECK_INT(conv2->rule, GG_UNIT_EQUAL);      /* maxima of tanh are not odd */
    const int weight = conv2->reader[0].weight; /* fc1: 25 columns a filter */
    CHECK_INT(units->parameter[weight][1].count, 400);
    for (int k = 0; k < 400; k++) CHECK_INT(units->parameter[weight][1].unit[k], conv2->first + k / 25);
    done(graph, units);
}

static void test_gains(void) {
    gg_graph *graph = cifar_quick();
    gg_units *units = find(graph);
    const gg_unit_group *conv1 = group_named(units, graph, "conv1");
    CHECK_NEAR(conv1->reader[0].gain, 10, 1e-12); /* one value is in 4 windows of pool1 at most, and in 25 of conv2 */
    CHECK(!conv1->reader[0].constants);           /* conv2 is padded */
    CHECK_INT(conv1->rule, GG_UNIT_POSITIVE);
    CHECK_INT(group_named(units, graph, "ip1")->rule, GG_UNIT_LINEAR);
    done(graph, units);

    graph = begin_graph((gg_shape){3, {2, 9, 9}}); /* an even place is in all three windows that reach it */
    gg_layer_desc pool = windowed(GG_LAYER_MAX_POOL2D, "pool", 0, 3, 2, 0);
    pool.pool.dilation[0] = pool.pool.dilation[1] = 2;
    int at = add_layer(graph, pool, add_conv(graph, "conv", 3, 1, 0, true, 0));
    finish_graph(graph, add_linear(graph, "out", 2, add_simple(graph, GG_LAYER_FLATTEN, "flatten", at)));
    units = find(graph);
    CHECK_NEAR(group_named(units, graph, "conv")->reader[0].gain, 3, 1e-12);
    done(graph, units);

    graph = begin_graph((gg_shape){1, {4}}); /* both are read */
    at = add_linear(graph, "a", 3, 0);
    const int relu = add_simple(graph, GG_LAYER_RELU, "relu", at), odd = add_simple(graph, GG_LAYER_TANH, "tanh", at);
    finish_graph(graph, add_linear(graph, "out", 2, add_join(graph, GG_LAYER_CONCAT, "cat", relu, odd)));
    units = find(graph);
    CHECK_NEAR(group_named(units, graph, "a")->reader[0].gain, sqrt(2), 1e-12);
    done(graph, units);
}

/* What lies behind the weights of the first of several layers are those of the next one. */
static void test_without_biases(void) {
    gg_graph *graph = begin_graph((gg_shape){2, {5, 7}});
    gg_layer_desc desc = layer(GG_LAYER_LSTM, "lstm");
    desc.outputs = 3;
    desc.lstm.layers = 2;
    desc.bias = false;
    finish_graph(graph, add_linear(graph, "out", 2, add_layer(graph, desc, add_linear(graph, "in", 6, 0))));
    gg_units *units = find(graph);
    CHECK_INT(group_named(units, graph, "in")->reader[0].bias, -1);
    done(graph, units);
}

static void test_resnet(void) {
    gg_graph *graph = resnet();
    gg_units *units = find(graph);
    const gg_unit_group *inner = group_named(units, graph, "b.conv1");
    CHECK_TEXT(inner->fixed, "");
    CHECK_TEXT(inner->single, "");
    CHECK_TEXT(gg_graph_node(graph, inner->producer[0].norm)->desc.name, "b.bn1");
    CHECK(inner->reader[0].mean);
    CHECK_TEXT(gg_graph_parameter(graph, inner->reader[0].bias)->name, "b.bn2.running_mean");
    const gg_unit_group *stream = group_named(units, graph, "conv");
    CHECK_INT(stream->producers, 3); /* conv, a.conv2, and the channels of b.conv2 that they are added to */
    CHECK_INT(stream->units, 8);
    CHECK_TEXT(stream->fixed, "");
    const gg_unit_group *zeros = NULL; /* the channels of b.conv2 to which zeros are added */
    for (int g = 0; g < units->groups; g++)
        if (units->group[g].producers == 1 &&
            strcmp(gg_graph_node(graph, units->group[g].producer[0].node)->desc.name, "b.conv2") == 0)
            zeros = &units->group[g];
    CHECK(zeros != NULL && zeros->units == 8 && zeros->fixed[0] == '\0' && zeros->single[0] == '\0');
    for (int k = 0; zeros != NULL && k < 16; k++)
        CHECK_INT(units->output[zeros->producer[0].node].unit[k], k < 4    ? zeros->first + k
                                                                  : k < 12 ? stream->first + k - 4
                                                                           : zeros->first + k - 8);
    for (int p = 0; p < units->parameters; p++)
        if (strcmp(gg_graph_parameter(graph, p)->name, "b.bn1.running_var") == 0)
            for (int k = 0; k < 16; k++) CHECK_INT(units->parameter[p][0].unit[k], inner->first + k);
    done(graph, units);
}

static void test_branches(void) {
    gg_graph *graph = branches();
    gg_units *units = find(graph);
    const gg_unit_group *sum = group_named(units, graph, "a"), *c = group_named(units, graph, "c");
    CHECK_INT(sum->producers, 2);
    CHECK_INT(sum->readers, 3); /* b, c, d */
    CHECK_INT(sum->units, 8);
    CHECK_INT(sum->rule, GG_UNIT_EQUAL); /* concatenated with a tanh: the same rule for both */
    CHECK_INT(c->producers, 1);
    CHECK_INT(c->units, 5);
    const gg_unit_axis *axis = &units->parameter[c->reader[0].weight][1];
    CHECK_INT(axis->count, 13);
    for (int k = 0; k < 13; k++) CHECK_INT(axis->unit[k], k < 8 ? sum->first + k : c->first + k - 8);
    done(graph, units);
}

static void test_recurrent(void) {
    gg_graph *graph = recurrent(1, true);
    gg_units *units = find(graph);
    const gg_unit_group *lstm = group_named(units, graph, "lstm"), *in = group_named(units, graph, "in");
    CHECK_TEXT(lstm->fixed, "");
    CHECK_TEXT(lstm->single, "");
    CHECK_INT(lstm->rule, GG_UNIT_EQUAL);
    CHECK_INT(lstm->readers, 2); /* itself and mid */
    CHECK_TEXT(gg_graph_parameter(graph, lstm->reader[0].weight)->name, "lstm.weight_hh_l0");
    CHECK_TEXT(gg_graph_parameter(graph, lstm->reader[1].weight)->name, "mid.weight");
    CHECK_INT(in->reader[0].bias, in->reader[0].weight + 2);
    const gg_unit_axis *recurrence = units->parameter[in->reader[0].weight + 1];
    CHECK_INT(recurrence[0].count, 36);
    CHECK_INT(recurrence[1].count, 9);
    for (int k = 0; k < 36; k++) CHECK_INT(recurrence[0].unit[k], lstm->first + k % 9);
    for (int k = 0; k < 6; k++) CHECK_INT(units->parameter[in->reader[0].weight][1].unit[k], in->first + k);
    done(graph, units);
}

/* One width: hidden unit k of all layers is one unit, which each layer reads of the one before. */
static void test_recurrent_layers(void) {
    gg_graph *graph = recurrent(3, false);
    gg_units *units = find(graph);
    const gg_unit_group *lstm = group_named(units, graph, "lstm");
    CHECK_TEXT(lstm->fixed, "");
    CHECK_INT(lstm->units, 9);
    CHECK_INT(lstm->readers, 6); /* of the LSTM weight_hh of three layers and weight_ih of two; mid */
    for (int p = 0; p < units->parameters; p++) {
        const char *name = gg_graph_parameter(graph, p)->name;
        if (strncmp(name, "lstm.", 5) != 0) continue;
        const int64_t columns = strcmp(name, "lstm.weight_ih_l0") == 0 ? 6 : 9;
        CHECK_INT(units->parameter[p][0].count, 36);
        CHECK_INT(units->parameter[p][1].count, columns);
        for (int k = 0; k < 36; k++) CHECK_INT(units->parameter[p][0].unit[k], lstm->first + k % 9);
        for (int k = 0; columns == 9 && k < 9; k++) CHECK_INT(units->parameter[p][1].unit[k], lstm->first + k);
    }
    done(graph, units);
}

/* Heads are units, of a layer before attention or inside of it, with what they read in the output's projection. */
static void test_heads(void) {
    for (int packed = 0; packed < 2; packed++) {
        gg_graph *graph = transformer(2, packed, true, false);
        gg_units *units = find(graph);
        const gg_unit_group *heads = group_named(units, graph, packed ? "attn.in" : "attn");
        CHECK_INT(heads->units, 2);
        CHECK_INT(heads->heads, 1);
        CHECK_TEXT(heads->fixed, "");
        CHECK_TEXT(heads->single, "");
        CHECK_INT(heads->readers, 1);
        CHECK_NEAR(heads->reader[0].gain, sqrt(5), 1e-12);
        CHECK_TEXT(gg_graph_parameter(graph, heads->reader[0].weight)->name,
                   packed ? "attn.out.weight" : "attn.out_proj.weight");
        const gg_unit_axis *axis = units->parameter[heads->reader[0].weight];
        CHECK_INT(axis[1].count, 6);
        for (int k = 0; k < 6; k++) CHECK_INT(axis[1].unit[k], heads->first + k / 3);
        axis = units->parameter[2]; /* behind ln's weight and bias: rows of queries, keys and values */
        CHECK_INT(axis[0].count, 18);
        for (int k = 0; k < 18; k++) CHECK_INT(axis[0].unit[k], heads->first + k % 6 / 3);
        const gg_unit_group *inner = group_named(units, graph, "mlp.in");
        CHECK_INT(inner->units, 11);
        CHECK_INT(inner->rule, GG_UNIT_EQUAL);
        CHECK_TEXT(inner->fixed, "");
        CHECK_TEXT(group_named(units, graph, "mlp.out")->fixed,
                   "'add2' (add) joins them with values that cannot leave");
        done(graph, units);
    }
}

/* The units of a layer in a slice are a group, and one of them stays. A slice with steps is not followed. */
static void test_slices(void) {
    for (int step = 1; step < 3; step++) {
        gg_graph *graph = begin_graph((gg_shape){1, {4}});
        gg_layer_desc part = layer(GG_LAYER_SLICE, "part");
        part.range = (gg_range){.begin = 1, .end = 6, .step = step};
        const int at = add_linear(graph, "a", 6, 0);
        const int some = add_linear(graph, "b", 3, add_layer(graph, part, at));
        finish_graph(graph, add_join(graph, GG_LAYER_ADD, "sum", some, add_linear(graph, "c", 3, at)));
        gg_units *units = find(graph);
        const gg_unit_axis *own = &units->output[at];
        CHECK(units->group_of[own->unit[0]] != units->group_of[own->unit[1]] || step == 2);
        CHECK_INT(units->group_of[own->unit[1]], units->group_of[own->unit[5]]);
        CHECK_TEXT(group_named(units, graph, "a")->fixed,
                   step == 1 ? "" : "'part' (slice) reads them, through which units are not followed");
        done(graph, units);
    }
}

/* What is not followed says why; what is coupled in itself is one unit. */
static void test_fixed(void) {
    gg_graph *graph = begin_graph((gg_shape){3, {4, 5, 5}});
    gg_units *units = NULL;
    gg_layer_desc grouped = windowed(GG_LAYER_CONV2D, "grouped", 6, 3, 1, 1), shape = layer(GG_LAYER_RESHAPE, "shape");
    grouped.conv.groups = 2;
    shape.reshape = (gg_shape){2, {6, 25}};
    int at = add_conv(graph, "first", 4, 1, 0, true, 0);
    at = add_layer(graph, grouped, at);
    at = add_linear(graph, "rows", 3, add_layer(graph, shape, at));
    CHECK_FAILS(gg_units_find(graph, &units), GG_ERROR_STATE, "not finished");
    finish_graph(graph, at);
    units = find(graph);
    CHECK_TEXT(group_named(units, graph, "first")->fixed,
               "'grouped' (conv2d) reads them, through which units are not followed");
    CHECK_TEXT(group_named(units, graph, "grouped")->fixed,
               "the channels of 'grouped' (conv2d) are divided into groups");
    done(graph, units);

    graph = begin_graph((gg_shape){1, {4}});
    const int a = add_linear(graph, "a", 2, 0), b = add_linear(graph, "b", 2, 0);
    const int ab = add_join(graph, GG_LAYER_CONCAT, "ab", a, b), ba = add_join(graph, GG_LAYER_CONCAT, "ba", b, a);
    finish_graph(graph, add_linear(graph, "out", 2, add_join(graph, GG_LAYER_ADD, "sum", ab, ba)));
    units = find(graph);
    CHECK_INT(group_named(units, graph, "a")->units, 2);
    CHECK_INT(group_named(units, graph, "a")->producers, 2);
    for (int k = 0; k < 4; k++) CHECK_INT(units->parameter[4][1].unit[k], k % 2);
    done(graph, units);

    graph = begin_graph((gg_shape){1, {4}}); /* a1 is added to b0, and b0 to a0 */
    const int c = add_linear(graph, "a", 2, 0), d = add_linear(graph, "b", 1, 0);
    const int cd = add_join(graph, GG_LAYER_CONCAT, "cd", c, d), dc = add_join(graph, GG_LAYER_CONCAT, "dc", d, c);
    finish_graph(graph, add_linear(graph, "out", 2, add_join(graph, GG_LAYER_ADD, "sum", cd, dc)));
    units = find(graph);
    CHECK_INT(group_named(units, graph, "a")->units, 1);
    CHECK_TEXT(group_named(units, graph, "a")->single, "several outputs of 'a' (linear) are one unit");
    done(graph, units);

    graph = begin_graph((gg_shape){3, {2, 4, 4}}); /* a normalisation behind the activation */
    at = add_simple(graph, GG_LAYER_RELU, "relu", add_conv(graph, "conv", 3, 3, 1, true, 0));
    at = add_simple(graph, GG_LAYER_FLATTEN, "flatten", add_norm(graph, "bn", at));
    finish_graph(graph, add_linear(graph, "out", 2, at));
    units = find(graph);
    CHECK_TEXT(group_named(units, graph, "conv")->fixed, "");
    CHECK_TEXT(group_named(units, graph, "conv")->single,
               "'bn' (batch_norm2d) is not right behind the layer that produces them");
    done(graph, units);
}

int main(void) {
    test_mlp();
    test_lenet();
    test_gains();
    test_without_biases();
    test_resnet();
    test_branches();
    test_recurrent();
    test_recurrent_layers();
    test_heads();
    test_slices();
    test_fixed();
    CHECK_INT(gg_memory_live_bytes(), 0);
    return CHECK_RESULT;
}
