#include "nn/graph.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "nn/layer.h"

struct gg_graph {
    gg_node *node;
    int nodes, capacity;
    int inputs, input[GG_MAX_FIELDS];
    int heads; /* 0: not finished */
    gg_head head[GG_MAX_FIELDS];
    int layers;
    bool finished;
    gg_arena_layout layout;
    gg_tensor_desc *tensor; /* one a parameter */
};

const gg_layer_type gg_layer_input = {.name = "input", .op = GG_OP_COUNT};

static const gg_layer_type *const types[GG_LAYER_COUNT] = {
#define GG_LAYER_TYPE(kind, row) &gg_layer_##row,
    GG_LAYERS(GG_LAYER_TYPE)
#undef GG_LAYER_TYPE
};

const gg_layer_type *gg_layer_type_of(gg_layer_kind kind) { return types[kind]; }
const char *gg_layer_kind_name(gg_layer_kind kind) { return types[kind]->name; }

const gg_option *gg_layer_options(gg_layer_kind kind) {
    static const gg_option none = {.name = NULL};
    return types[kind]->options != NULL ? types[kind]->options : &none;
}

gg_layer_desc gg_layer_desc_of(gg_layer_kind kind) {
    gg_layer_desc desc = {.kind = kind};
    gg_options_reset(gg_layer_options(kind), &desc);
    return desc;
}

gg_status gg_graph_create(gg_graph **out) {
    void *block = NULL;
    *out = NULL;
    GG_TRY(gg_calloc(1, sizeof(gg_graph), "graph", &block));
    *out = block;
    return GG_OK;
}

void gg_graph_destroy(gg_graph *graph) {
    if (graph == NULL) return;
    gg_free(graph->node);
    gg_arena_layout_destroy(&graph->layout);
    gg_free(graph->tensor);
    gg_free(graph);
}

static gg_status reserve_node(gg_graph *graph) {
    if (graph->nodes < graph->capacity) return GG_OK;
    int capacity = graph->capacity > 0 ? 2 * graph->capacity : 16;
    void *block = NULL;
    GG_TRY(gg_calloc((size_t)capacity, sizeof(gg_node), "graph nodes", &block));
    if (graph->nodes > 0) memcpy(block, graph->node, (size_t)graph->nodes * sizeof(gg_node));
    gg_free(graph->node);
    graph->node = block;
    graph->capacity = capacity;
    return GG_OK;
}

/* Every size at least 1, and the whole small enough for any product made of it later. */
static gg_status check_shape(const gg_shape *shape) {
    char text[GG_SHAPE_TEXT];
    int64_t count = 1;
    if (shape->dims < 1 || shape->dims > GG_MAX_DIMS)
        return gg_fail(GG_ERROR_SHAPE, "a sample has 1 to %d axes, got %d", GG_MAX_DIMS, shape->dims);
    for (int i = 0; i < shape->dims; i++) {
        int64_t size = shape->size[i];
        if (size < 1)
            return gg_fail(GG_ERROR_SHAPE, "every size must be at least 1, got %s", gg_shape_text(shape, text));
        if (size > GG_MAX_SAMPLE / count)
            return gg_fail(GG_ERROR_SHAPE, "a sample of shape %s has too many values (at most %lld)",
                           gg_shape_text(shape, text), (long long)GG_MAX_SAMPLE);
        count *= size;
    }
    return GG_OK;
}

static gg_status check_name(const gg_graph *graph, const char name[GG_NAME_LENGTH]) {
    if (memchr(name, '\0', GG_NAME_LENGTH) == NULL)
        return gg_fail(GG_ERROR_ARGUMENT, "a layer's name must be shorter than %d bytes, got '%.*s...'", GG_NAME_LENGTH,
                       GG_NAME_LENGTH - 1, name);
    if (name[0] == '\0') return gg_fail(GG_ERROR_ARGUMENT, "a layer's name must not be empty");
    for (int i = 0; i < graph->nodes; i++) {
        if (strcmp(graph->node[i].desc.name, name) == 0)
            return gg_fail(GG_ERROR_ARGUMENT, "layer name '%s' is already that of node %d (%s); names must be unique",
                           name, i, types[graph->node[i].desc.kind]->name);
    }
    return GG_OK;
}

/* Token numbers are not quantities: a layer accepts them only if its type says so. */
static gg_status check_dtype(const gg_layer_type *type, int i, const gg_node *input) {
    gg_dtype wanted = type->integer_inputs >> i & 1 ? GG_INT32 : GG_FLOAT32;
    if (type->view || input->dtype == wanted) return GG_OK;
    return gg_fail(GG_ERROR_TYPE, "input %d must be %s, got %s from '%s'", i, gg_dtype_name(wanted),
                   gg_dtype_name(input->dtype), input->desc.name);
}

static gg_status check_init(const gg_init *init, const char *what) {
    if ((int)init->kind < 0 || init->kind >= GG_INIT_COUNT)
        return gg_fail(GG_ERROR_ARGUMENT, "%s: unknown kind %d", what, (int)init->kind);
    if (init->kind != GG_INIT_UNIFORM && init->kind != GG_INIT_NORMAL && init->kind != GG_INIT_CONSTANT) return GG_OK;
    if (!isfinite(init->value))
        return gg_fail(GG_ERROR_ARGUMENT, "%s: the value must be finite, got %g", what, init->value);
    if (init->kind != GG_INIT_CONSTANT && init->value < 0)
        return gg_fail(GG_ERROR_ARGUMENT, "%s: the bound or deviation must not be negative, got %g", what, init->value);
    return GG_OK;
}

static gg_status graph_infer(const gg_graph *graph, const gg_layer_type *type, const gg_layer_desc *desc,
                             const gg_shape *shape, int inputs, const int *input, gg_shape *out) {
    const gg_node *node[GG_MAX_INPUTS + 1] = {0};
    const int least = type->inputs[0] > 0 ? type->inputs[0] : 1, most = type->inputs[1] > 0 ? type->inputs[1] : 1;
    if (desc->kind == GG_LAYER_INPUT) {
        if (inputs != 0) return gg_fail(GG_ERROR_ARGUMENT, "has no inputs, got %d", inputs);
        if (graph->inputs == GG_MAX_FIELDS)
            return gg_fail(GG_ERROR_UNSUPPORTED, "a graph has at most %d inputs", GG_MAX_FIELDS);
        if (desc->dtype != GG_FLOAT32 && desc->dtype != GG_INT32)
            return gg_fail(GG_ERROR_TYPE, "an input is float32 or int32, got %s", gg_dtype_name(desc->dtype));
        if (shape == NULL) return gg_fail(GG_ERROR_ARGUMENT, "needs the shape of one sample");
        *out = *shape;
        return check_shape(out);
    }
    if (inputs < least || inputs > most || input == NULL) {
        if (least == most) return gg_fail(GG_ERROR_ARGUMENT, "needs %d input, got %d", least, inputs);
        return gg_fail(GG_ERROR_ARGUMENT, "needs %d to %d inputs, got %d", least, most, inputs);
    }
    for (int i = 0; i < inputs; i++) {
        if (input[i] < 0 || input[i] >= graph->nodes)
            return gg_fail(GG_ERROR_ARGUMENT, "input %d is node %d, but the graph has nodes 0 to %d", i, input[i],
                           graph->nodes - 1);
        node[i] = &graph->node[input[i]];
        GG_TRY(check_dtype(type, i, node[i]));
    }
    GG_TRY(gg_options_check(gg_layer_options(desc->kind), desc));
    GG_TRY(check_init(&desc->weight_init, "weight_init"));
    GG_TRY(check_init(&desc->bias_init, "bias_init"));
    *out = node[0]->shape;
    if (type->infer != NULL) GG_TRY(type->infer(desc, node, out));
    return check_shape(out);
}

gg_status gg_graph_add(gg_graph *graph, const gg_layer_desc *desc, const gg_shape *shape, int inputs, const int *input,
                       int *node) {
    gg_status status = GG_OK;
    if (graph->finished)
        return gg_fail(GG_ERROR_STATE, "layer '%.63s': the graph is finished, no layer can be added", desc->name);
    if ((int)desc->kind < 0 || desc->kind >= GG_LAYER_COUNT)
        return gg_fail(GG_ERROR_ARGUMENT, "layer '%.63s': unknown layer kind %d", desc->name, (int)desc->kind);
    const gg_layer_type *type = types[desc->kind];
    gg_node made = {.desc = *desc, .lr = {1, 1}, .decay = {1, 1}, .inputs = inputs, .layer = -1};

    GG_TRY(check_name(graph, desc->name));
    status = graph_infer(graph, type, desc, shape, inputs, input, &made.shape);
    GG_TRY(gg_error_prefix(status, "layer '%s' (%s): ", desc->name, type->name));
    GG_TRY(reserve_node(graph));
    for (int i = 0; i < inputs; i++) made.input[i] = input[i];
    if (desc->kind == GG_LAYER_INPUT) made.dtype = desc->dtype;
    else if (type->view) made.dtype = graph->node[input[0]].dtype;
    if (type->parameters != NULL && type->parameters(&made, &graph->node[input[0]].shape, NULL) > 0)
        made.layer = graph->layers++;
    if (desc->kind == GG_LAYER_INPUT) graph->input[graph->inputs++] = graph->nodes;
    if (node != NULL) *node = graph->nodes;
    graph->node[graph->nodes++] = made;
    return status;
}

static gg_status check_factors(const char *what, gg_factors factors) {
    for (int i = 0; i < 2; ++i) {
        const double value = i == 0 ? (double)factors.weight : (double)factors.bias;
        if (!(value >= 0 && value <= (double)FLT_MAX))
            return gg_fail(GG_ERROR_ARGUMENT, "%s of the %s is %g; must be finite and at least 0", what,
                           i == 0 ? "weight" : "bias", value);
    }
    return GG_OK;
}

gg_status gg_graph_set_factors(gg_graph *graph, int node, gg_factors lr, gg_factors decay) {
    gg_status status = GG_OK;
    if (graph->finished) GG_FAIL_CLEANUP(GG_ERROR_STATE, "factors of node %d: the graph is finished", node);
    if (node < 0 || node >= graph->nodes)
        GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT, "node: %d; the graph has nodes 0 to %d", node, graph->nodes - 1);
    GG_TRY_CLEANUP(check_factors("lr", lr));
    GG_TRY_CLEANUP(check_factors("weight_decay", decay));
    graph->node[node].lr = lr;
    graph->node[node].decay = decay;
cleanup:
    if (status != GG_OK && node >= 0 && node < graph->nodes)
        status = gg_error_prefix(status, "layer '%s': ", graph->node[node].desc.name);
    return status;
}

/* Every node must lead to a head: a layer that does not would silently never be trained. */
static gg_status check_reachable(const gg_graph *graph, int heads, const gg_head *head) {
    gg_status status = GG_OK;
    bool *leads = NULL;
    GG_TRY_CLEANUP(gg_calloc((size_t)graph->nodes, sizeof *leads, "graph marks", &leads));
    for (int i = 0; i < heads; i++) leads[head[i].node] = true;
    for (int i = graph->nodes - 1; i >= 0; i--) {
        for (int k = 0; leads[i] && k < graph->node[i].inputs; k++) leads[graph->node[i].input[k]] = true;
    }
    for (int i = 0; i < graph->nodes; i++) {
        if (leads[i]) continue;
        const char *name = graph->node[i].desc.name, *type = types[graph->node[i].desc.kind]->name;
        if (heads > 1) GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT, "layer '%s' (%s) does not lead to any output", name, type);
        GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT, "layer '%s' (%s) does not lead to the output '%s'", name, type,
                        graph->node[head[0].node].desc.name);
    }
cleanup:
    gg_free(leads);
    return status;
}

static gg_status check_heads(const gg_graph *graph, int heads, const gg_head *head) {
    if (heads < 1 || heads > GG_MAX_FIELDS)
        return gg_fail(GG_ERROR_ARGUMENT, "a graph has 1 to %d outputs, got %d", GG_MAX_FIELDS, heads);
    for (int i = 0; i < heads; i++) {
        if (head[i].node < 0 || head[i].node >= graph->nodes)
            return gg_fail(GG_ERROR_ARGUMENT, "the output is node %d, but the graph has nodes 0 to %d", head[i].node,
                           graph->nodes - 1);
        const gg_node *node = &graph->node[head[i].node];
        if (node->dtype != GG_FLOAT32)
            return gg_fail(GG_ERROR_TYPE, "the output '%s' is %s; a loss needs float32", node->desc.name,
                           gg_dtype_name(node->dtype));
        for (int k = 0; k < i; k++) {
            if (head[k].node == head[i].node)
                return gg_fail(GG_ERROR_ARGUMENT, "'%s' is an output twice; each node is one once at most",
                               node->desc.name);
        }
    }
    if (head[0].training_only)
        return gg_fail(GG_ERROR_ARGUMENT, "the first output, '%s', is the main one and cannot be for training only",
                       graph->node[head[0].node].desc.name);
    return check_reachable(graph, heads, head);
}

static int count_parameters(const gg_graph *graph) {
    int count = 0;
    for (int i = 0; i < graph->nodes; i++) {
        const gg_node *node = &graph->node[i];
        if (node->layer >= 0)
            count += types[node->desc.kind]->parameters(node, &graph->node[node->input[0]].shape, NULL);
    }
    return count;
}

/* Lists the parameters in forward order, `count` in all. */
static gg_status place_parameters(gg_graph *graph, int count) {
    enum { NAME = GG_NAME_LENGTH + GG_SUFFIX_LENGTH };
    gg_status status = GG_OK;
    gg_layer_place *layer = NULL;
    gg_parameter *parameter = NULL;
    char(*name)[NAME] = NULL;
    int at = 0;
    GG_TRY_CLEANUP(gg_calloc((size_t)graph->layers + 1, sizeof *layer, "graph layers", &layer));
    GG_TRY_CLEANUP(gg_calloc((size_t)count + 1, sizeof *parameter, "graph parameters", &parameter));
    GG_TRY_CLEANUP(gg_calloc((size_t)count + 1, sizeof *name, "graph parameters", &name));
    for (int i = 0; i < graph->nodes; i++) {
        const gg_node *node = &graph->node[i];
        if (node->layer < 0) continue;
        const gg_layer_type *type = types[node->desc.kind];
        /* One that is applied to each position of a sample has as many inputs as positions. */
        layer[node->layer] = (gg_layer_place){
            .name = node->desc.name, .partitionable = node->desc.kind == GG_LAYER_LINEAR && node->shape.dims == 1};
        const int n = type->parameters(node, &graph->node[node->input[0]].shape, &graph->tensor[at]);
        for (int k = 0; k < n; k++, at++) {
            const gg_tensor_desc *tensor = &graph->tensor[at];
            const bool added = tensor->role == GG_ROLE_BIAS || tensor->role == GG_ROLE_SHIFT;
            snprintf(name[at], NAME, "%s%s", node->desc.name, tensor->name);
            parameter[at] = (gg_parameter){.name = name[at],
                                           .role = tensor->role,
                                           .family = type->family,
                                           .lr_factor = added ? node->lr.bias : node->lr.weight,
                                           .decay_factor = added ? node->decay.bias : node->decay.weight,
                                           .momentum_factor = 1,
                                           .shape = tensor->shape,
                                           .layer = node->layer};
        }
    }
    GG_TRY_CLEANUP(gg_arena_layout_create(layer, graph->layers, parameter, count, &graph->layout));
cleanup:
    gg_free(layer);
    gg_free(parameter);
    gg_free(name);
    return status;
}

gg_status gg_graph_finish(gg_graph *graph, int heads, const gg_head *head) {
    if (graph->finished) return gg_fail(GG_ERROR_STATE, "the graph is already finished");
    if (graph->inputs == 0) return gg_fail(GG_ERROR_STATE, "the graph has no input");
    GG_TRY(check_heads(graph, heads, head));
    const int parameters = count_parameters(graph);
    gg_free(graph->tensor); /* of a finish that failed before */
    GG_TRY(gg_calloc((size_t)parameters + 1, sizeof *graph->tensor, "graph parameters", &graph->tensor));
    GG_TRY(place_parameters(graph, parameters));
    memcpy(graph->head, head, (size_t)heads * sizeof *head);
    graph->heads = heads;
    graph->finished = true;
    return GG_OK;
}

int gg_graph_nodes(const gg_graph *graph) { return graph->nodes; }
const gg_node *gg_graph_node(const gg_graph *graph, int node) { return &graph->node[node]; }
int gg_graph_inputs(const gg_graph *graph) { return graph->inputs; }
int gg_graph_input(const gg_graph *graph, int i) { return graph->input[i]; }
int gg_graph_heads(const gg_graph *graph) { return graph->heads; }
const gg_head *gg_graph_head(const gg_graph *graph, int head) { return &graph->head[head]; }
int gg_graph_output(const gg_graph *graph) { return graph->heads > 0 ? graph->head[0].node : -1; }
static gg_integers readable_integers(const gg_graph *graph, int node) {
    gg_integers all = {0, 0};
    for (int i = node + 1; i < graph->nodes; i++) {
        const gg_node *it = &graph->node[i];
        const gg_layer_type *type = types[it->desc.kind];
        for (int k = 0; k < it->inputs; k++) {
            if (it->input[k] != node) continue;
            const gg_integers own = type->view               ? readable_integers(graph, i)
                                    : type->integers != NULL ? type->integers(it, k)
                                                             : (gg_integers){0, 0};
            if (own.end == 0) continue;
            if (all.end == 0 || own.end < all.end) all.end = own.end;
            if (own.first > all.first) all.first = own.first;
        }
    }
    return all;
}

gg_integers gg_graph_integers(const gg_graph *graph, int i) {
    const gg_integers any = {0, 0};
    return graph->node[graph->input[i]].dtype == GG_INT32 ? readable_integers(graph, graph->input[i]) : any;
}

const gg_arena_layout *gg_graph_layout(const gg_graph *graph) { return &graph->layout; }
const gg_tensor_desc *gg_graph_tensor(const gg_graph *graph, int parameter) { return &graph->tensor[parameter]; }
int gg_graph_parameters(const gg_graph *graph) { return graph->layout.parameters; }
const gg_parameter *gg_graph_parameter(const gg_graph *graph, int parameter) {
    return &graph->layout.parameter[parameter];
}
int gg_graph_layers(const gg_graph *graph) { return graph->layout.layers; }
const gg_slice *gg_graph_layer(const gg_graph *graph, int layer) {
    return gg_arena_layout_slice(&graph->layout, layer);
}

int gg_graph_layer_parameters(const gg_graph *graph, int layer, int *first) {
    *first = graph->layout.layer[layer].first_parameter;
    return graph->layout.layer[layer].parameters;
}

size_t gg_graph_arena_count(const gg_graph *graph) { return graph->layout.count; }

const char *gg_graph_layer_name(const gg_graph *graph, int layer) { return graph->layout.layer[layer].name; }

gg_family gg_graph_family(const gg_graph *graph, int layer) {
    return graph->layout.parameter[graph->layout.layer[layer].first_parameter].family;
}

int64_t gg_graph_parameter_count(const gg_graph *graph) {
    int64_t count = 0;
    for (int i = 0; i < graph->layout.parameters; i++) count += (int64_t)graph->layout.parameter[i].count;
    return count;
}

int64_t gg_graph_node_carried(const gg_graph *graph, int node) {
    const gg_node *it = &graph->node[node];
    const gg_layer_type *type = types[it->desc.kind];
    return type->carried != NULL ? type->carried(it, &graph->node[it->input[0]].shape) : 0;
}

int64_t gg_graph_node_macs(const gg_graph *graph, int node) {
    const gg_node *it = &graph->node[node];
    const gg_layer_type *type = types[it->desc.kind];
    return type->macs != NULL ? type->macs(it, &graph->node[it->input[0]].shape) : 0;
}

static bool same_node(const gg_node *a, const gg_node *b) {
    bool same = a->desc.kind == b->desc.kind && a->inputs == b->inputs && a->dtype == b->dtype &&
                a->layer == b->layer && strcmp(a->desc.name, b->desc.name) == 0;
    for (int i = 0; same && i < a->inputs; ++i) same = a->input[i] == b->input[i];
    return same;
}

static bool same_factors(const gg_node *a, const gg_node *b) {
    return a->lr.weight == b->lr.weight && a->lr.bias == b->lr.bias && a->decay.weight == b->decay.weight &&
           a->decay.bias == b->decay.bias;
}

bool gg_graph_is_alike(const gg_graph *a, const gg_graph *b) {
    bool same = gg_graph_nodes(a) == gg_graph_nodes(b) && gg_graph_heads(a) == gg_graph_heads(b) &&
                gg_graph_parameters(a) == gg_graph_parameters(b);
    for (int i = 0; same && i < gg_graph_nodes(a); ++i) {
        const gg_node *x = gg_graph_node(a, i), *y = gg_graph_node(b, i);
        same = same_node(x, y) && (x->desc.kind != GG_LAYER_INPUT || gg_shape_equal(&x->shape, &y->shape));
    }
    for (int h = 0; same && h < gg_graph_heads(a); ++h) {
        const gg_head *x = gg_graph_head(a, h), *y = gg_graph_head(b, h);
        same = x->node == y->node && x->training_only == y->training_only &&
               gg_shape_equal(&gg_graph_node(a, x->node)->shape, &gg_graph_node(b, y->node)->shape);
    }
    return same;
}

bool gg_graph_same_layout(const gg_graph *a, const gg_graph *b) {
    bool same = gg_graph_is_alike(a, b) && gg_graph_arena_count(a) == gg_graph_arena_count(b);
    for (int i = 0; same && i < gg_graph_nodes(a); ++i) {
        const gg_node *x = gg_graph_node(a, i), *y = gg_graph_node(b, i);
        same = gg_shape_equal(&x->shape, &y->shape) && same_factors(x, y) &&
               gg_graph_node_carried(a, i) == gg_graph_node_carried(b, i) &&
               gg_graph_node_macs(a, i) == gg_graph_node_macs(b, i);
    }
    for (int i = 0; same && i < gg_graph_parameters(a); ++i) {
        const gg_parameter *x = gg_graph_parameter(a, i), *y = gg_graph_parameter(b, i);
        same = strcmp(x->name, y->name) == 0 && x->role == y->role && x->offset == y->offset &&
               gg_shape_equal(&x->shape, &y->shape);
    }
    return same;
}
