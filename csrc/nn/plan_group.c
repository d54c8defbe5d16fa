/* Which nodes one operation computes. */
#include <string.h>

#include "nn/plan_internal.h"

/* Successive kinds of operations, each the only reader of the operation before it. The operation of the node `main`
 * computes them all, with this activation; other inputs of the nodes become its further inputs. Longer patterns come
 * before their beginnings. */
typedef struct gg_pattern {
    int nodes, main;
    gg_op_kind kind[GG_MAX_GROUP];
    gg_activation activation;
    bool (*fits)(const gg_plan *plan, const gg_plan_group *group); /* NULL: always */
    /* Adds further fields of the other nodes; NULL means none. */
    void (*describe)(const gg_plan *plan, const gg_plan_group *group, gg_op_desc *desc);
} gg_pattern;

static bool adds_two(const gg_plan *plan, const gg_plan_group *group);
static bool not_pooled(const gg_plan *plan, const gg_plan_group *group);
static void describe_table(const gg_plan *plan, const gg_plan_group *group, gg_op_desc *desc);
static void describe_gelu(const gg_plan *plan, const gg_plan_group *group, gg_op_desc *desc);

static const gg_pattern patterns[] = {
    {2, 0, {GG_OP_CONV2D, GG_OP_RELU}, GG_ACTIVATION_RELU, not_pooled, NULL},
    {2, 0, {GG_OP_LINEAR, GG_OP_RELU}, GG_ACTIVATION_RELU, NULL, NULL},
    {2, 0, {GG_OP_LINEAR, GG_OP_GELU}, GG_ACTIVATION_GELU, NULL, describe_gelu},
    {3, 0, {GG_OP_BATCH_NORM, GG_OP_ADD, GG_OP_RELU}, GG_ACTIVATION_RELU, adds_two, NULL},
    {2, 0, {GG_OP_BATCH_NORM, GG_OP_ADD}, GG_ACTIVATION_NONE, adds_two, NULL},
    {2, 0, {GG_OP_BATCH_NORM, GG_OP_RELU}, GG_ACTIVATION_RELU, NULL, NULL},
    {2, 0, {GG_OP_ADD, GG_OP_RELU}, GG_ACTIVATION_RELU, NULL, NULL},
    {2, 1, {GG_OP_RELU, GG_OP_MAX_POOL2D}, GG_ACTIVATION_RELU, NULL, NULL}, /* no matter which of both comes first */
    {2, 0, {GG_OP_MAX_POOL2D, GG_OP_RELU}, GG_ACTIVATION_RELU, NULL, NULL},
    {2, 1, {GG_OP_EMBEDDING, GG_OP_LSTM}, GG_ACTIVATION_NONE, NULL, describe_table},
};

static gg_op_kind group_kind(const gg_plan *plan, int node) {
    return gg_layer_type_of(gg_graph_node(plan->graph, node)->desc.kind)->op;
}

/* The only reader of a node, if it is one node that is in no group but that of `first`; else GG_NONE. */
static int only_reader(const gg_plan *plan, int node, int first) {
    if (plan->node[node].consumers != 1) return GG_NONE;
    for (int i = node + 1; i < gg_graph_nodes(plan->graph); i++) {
        const gg_node *it = gg_graph_node(plan->graph, i);
        for (int k = 0; plan->node[i].live && k < it->inputs; k++)
            if (it->input[k] == node)
                return plan->node[i].first == GG_NONE || plan->node[i].first == first ? i : GG_NONE;
    }
    return GG_NONE; /* a head's loss */
}

static bool matches(const gg_plan *plan, const gg_pattern *pattern, int first, gg_plan_group *out) {
    *out = (gg_plan_group){.pattern = pattern};
    for (int i = 0, node = first; i < pattern->nodes; i++) {
        if (i > 0) node = only_reader(plan, node, first);
        if (node == GG_NONE || group_kind(plan, node) != pattern->kind[i]) return false;
        out->node[out->nodes++] = node;
    }
    out->main = out->node[pattern->main];
    return pattern->fits == NULL || pattern->fits(plan, out);
}

static bool adds_two(const gg_plan *plan, const gg_plan_group *group) {
    return gg_graph_node(plan->graph, group->node[1])->inputs == 2;
}

/* A ReLU before a maximum costs nothing there, neither forward nor backward. */
static bool not_pooled(const gg_plan *plan, const gg_plan_group *group) {
    const int reader = only_reader(plan, gg_plan_group_last(group), group->node[0]);
    return reader == GG_NONE || group_kind(plan, reader) != GG_OP_MAX_POOL2D;
}

/* The LSTM reads the tokens. */
static void describe_table(const gg_plan *plan, const gg_plan_group *group, gg_op_desc *desc) {
    const gg_node *table = gg_graph_node(plan->graph, group->node[0]);
    desc->lstm.numbers = table->desc.embedding.numbers;
    desc->lstm.features = table->desc.outputs;
}

static void describe_gelu(const gg_plan *plan, const gg_plan_group *group, gg_op_desc *desc) {
    desc->gelu = gg_graph_node(plan->graph, group->node[1])->desc.gelu;
}

gg_plan_group gg_plan_group_at(const gg_plan *plan, int first, int most) {
    gg_plan_group found;
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        if (patterns[i].nodes <= most && matches(plan, &patterns[i], first, &found)) return found;
    return (gg_plan_group){.nodes = 1, .node = {first}, .main = first};
}

static void group_claim(gg_plan *plan, const gg_plan_group *group) {
    plan->node[group->node[0]].group = *group;
    for (int i = 0; i < group->nodes; i++) plan->node[group->node[i]].first = group->node[0];
}

void gg_plan_group_set(gg_plan *plan, const gg_plan_group *group) {
    const gg_plan_group before = plan->node[group->node[0]].group;
    for (int i = 0; i < before.nodes; i++) plan->node[before.node[i]].first = GG_NONE;
    group_claim(plan, group);
    for (int i = 0; i < before.nodes; i++) {
        if (plan->node[before.node[i]].first != GG_NONE) continue;
        const gg_plan_group rest = gg_plan_group_at(plan, before.node[i], GG_MAX_GROUP);
        group_claim(plan, &rest);
    }
}

void gg_plan_group_all(gg_plan *plan) {
    for (int i = 0; i < gg_graph_nodes(plan->graph); i++) plan->node[i].first = GG_NONE;
    for (int i = 0; i < gg_graph_nodes(plan->graph); i++) {
        if (!plan->node[i].live || plan->node[i].first != GG_NONE) continue;
        const gg_plan_group group = gg_plan_group_at(plan, i, GG_MAX_GROUP);
        group_claim(plan, &group);
    }
}

int gg_plan_group_inputs(const gg_plan *plan, const gg_plan_group *group, int source[GG_MAX_INPUTS]) {
    int inputs = 0;
    for (int i = 0; i < group->nodes; i++) {
        const gg_node *it = gg_graph_node(plan->graph, group->node[i]);
        for (int k = 0; k < it->inputs; k++)
            if (i == 0 || it->input[k] != group->node[i - 1]) source[inputs++] = it->input[k];
    }
    return inputs;
}

void gg_plan_group_describe(const gg_plan *plan, const gg_plan_group *group, gg_op_desc *desc) {
    if (group->pattern == NULL) return;
    desc->activation = group->pattern->activation;
    if (group->pattern->describe != NULL) group->pattern->describe(plan, group, desc);
}
