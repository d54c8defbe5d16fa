#include "apoptosis/units.h"

#include <string.h>

#include "apoptosis/unit_search.h"
#include "base/memory.h"

const char *gg_unit_rule_name(gg_unit_rule rule) {
    static const char *const names[GG_UNIT_RULE_COUNT] = {"linear", "positive", "odd", "sigmoid", "equal"};
    return names[rule];
}

gg_status gg_units_find(const gg_graph *graph, gg_units **out) {
    gg_status status = GG_OK;
    const int nodes = gg_graph_nodes(graph);
    gg_unit_search s = {.graph = graph};
    int64_t elements = 0;
    *out = NULL;
    if (gg_graph_output(graph) < 0) GG_FAIL_CLEANUP(GG_ERROR_STATE, "units: the graph is not finished");
    for (int i = 0; i < nodes; i++) {
        const gg_layer_desc *desc = &gg_graph_node(graph, i)->desc;
        if (gg_layer_is_producer(desc->kind)) elements += desc->outputs;
        if (desc->kind == GG_LAYER_MULTI_HEAD) elements += desc->attention.heads;
        if (desc->kind == GG_LAYER_PAD) elements += desc->pad.zeros[0] + desc->pad.zeros[1];
    }
    for (int i = 0; i < nodes; i++)
        if (elements > INT32_MAX || gg_shape_count(&gg_graph_node(graph, i)->shape) > INT32_MAX)
            GG_FAIL_CLEANUP(GG_ERROR_UNSUPPORTED, "units: layer '%s' is too large", gg_graph_node(graph, i)->desc.name);
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *s.made, "units", &s.made));
    s.made->nodes = nodes;
    s.made->parameters = gg_graph_parameters(graph);
    GG_TRY_CLEANUP(gg_calloc((size_t)nodes, sizeof *s.made->output, "units", &s.made->output));
    GG_TRY_CLEANUP(gg_calloc((size_t)nodes, sizeof *s.made->inside, "units", &s.made->inside));
    GG_TRY_CLEANUP(gg_calloc((size_t)s.made->parameters + 1, sizeof *s.made->parameter, "units", &s.made->parameter));
    GG_TRY_CLEANUP(gg_calloc((size_t)elements + 1, sizeof *s.element, "units", &s.element));
    GG_TRY_CLEANUP(gg_calloc((size_t)nodes, sizeof *s.out, "units", &s.out));
    GG_TRY_CLEANUP(gg_calloc((size_t)nodes, sizeof *s.readers, "units", &s.readers));
    GG_TRY_CLEANUP(gg_calloc((size_t)nodes, sizeof *s.heads, "units", &s.heads));
    for (int i = 0; i < nodes; i++) {
        const gg_node *it = gg_graph_node(graph, i);
        for (int k = 0; k < it->inputs; k++) s.readers[it->input[k]]++;
    }
    for (int h = 0; h < gg_graph_heads(graph); h++) s.readers[gg_graph_head(graph, h)->node]++;
    for (int i = 0; i < nodes; i++) GG_TRY_CLEANUP(gg_outputs_follow(&s, i));
    for (int h = 0; h < gg_graph_heads(graph); h++) {
        const int node = gg_graph_head(graph, h)->node;
        gg_outputs_fix(&s, &s.out[node], node, "'%s' (%s) is an output of the network");
    }
    GG_TRY_CLEANUP(gg_units_finish(&s));
    *out = s.made;
    s.made = NULL;
cleanup:
    gg_units_destroy(s.made);
    for (int i = 0; s.out != NULL && i < nodes; i++) gg_free(s.out[i].element);
    gg_free(s.out);
    gg_free(s.readers);
    gg_free(s.heads);
    gg_free(s.element);
    return status;
}

void gg_units_destroy(gg_units *units) {
    if (units == NULL) return;
    for (int g = 0; units->group != NULL && g < units->groups; g++) {
        gg_free(units->group[g].producer);
        gg_free(units->group[g].reader);
    }
    for (int i = 0; units->output != NULL && i < units->nodes; i++) gg_free(units->output[i].unit);
    for (int i = 0; units->inside != NULL && i < units->nodes; i++) gg_free(units->inside[i].unit);
    for (int i = 0; units->parameter != NULL && i < units->parameters; i++) {
        gg_free(units->parameter[i][0].unit);
        gg_free(units->parameter[i][1].unit);
    }
    gg_free(units->output);
    gg_free(units->inside);
    gg_free(units->parameter);
    gg_free(units->group);
    gg_free(units->group_of);
    gg_free(units);
}

const gg_unit_axis *gg_units_produced(const gg_units *units, int node) {
    return units->inside[node].count > 0 ? &units->inside[node] : &units->output[node];
}

int gg_units_group_named(const gg_units *units, const gg_graph *graph, const char *name) {
    for (int g = 0; g < units->groups; g++)
        for (int p = 0; p < units->group[g].producers; p++)
            if (strcmp(gg_graph_node(graph, units->group[g].producer[p].node)->desc.name, name) == 0) return g;
    return -1;
}
