/* Groups of units, who reads them, and which index of each parameter belongs to which unit. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "apoptosis/unit_search.h"
#include "base/memory.h"
#include "nn/layer.h"

static bool has_units(gg_layer_kind kind) { return gg_layer_is_producer(kind) || kind == GG_LAYER_MULTI_HEAD; }

/* Facts of each set of elements: its layers, a bit a node; and slices that hold some of them, because each slice must
 * keep one. */
static void mark_producers(gg_unit_search *s, size_t words, uint64_t *bits) {
    for (int i = 0; i < s->elements; i++) {
        const int node = s->element[i].node, root = gg_elements_root(s, i);
        const bool produced = has_units(gg_graph_node(s->graph, node)->desc.kind);
        uint64_t *word = &bits[(size_t)root * words + (size_t)node / 64];
        const uint64_t bit = (uint64_t)1 << node % 64;
        if ((*word & bit) != 0 && produced && s->element[root].single == NULL && s->element[root].divided < 0) {
            s->element[root].single = "several outputs of '%s' (%s) are one unit";
            s->element[root].single_blame = node;
        }
        *word |= bit;
    }
    for (int node = 0; node < gg_graph_nodes(s->graph); node++) {
        const gg_unit_outputs *of = &s->out[node];
        if (gg_graph_node(s->graph, node)->desc.kind != GG_LAYER_SLICE || of->axis < 0) continue;
        for (int i = 0; i < of->count; i++)
            if (of->element[i] >= 0)
                bits[(size_t)gg_elements_root(s, of->element[i]) * words + (size_t)node / 64] |= (uint64_t)1
                                                                                                 << node % 64;
    }
}

/* Sets of zeros alone are none. */
static bool is_produced(const gg_unit_search *s, const uint64_t *bits) {
    for (int node = 0; node < gg_graph_nodes(s->graph); node++)
        if ((bits[node / 64] >> node % 64 & 1) != 0 && has_units(gg_graph_node(s->graph, node)->desc.kind)) return true;
    return false;
}

static void explain(const gg_unit_search *s, const char *why, int node, char out[GG_UNIT_TEXT]) {
    if (why == NULL || out[0] != '\0') return;
    const gg_layer_desc *desc = &gg_graph_node(s->graph, node)->desc;
    const char *name = strstr(why, "%s"), *kind = strstr(name + 2, "%s");
    (void)snprintf(out, GG_UNIT_TEXT, "%.*s%s%.*s%s%s", (int)(name - why), why, desc->name, (int)(kind - name - 2),
                   name + 2, gg_layer_kind_name(desc->kind), kind + 2);
}

/* Gathers sets of the same producers in groups, and numbers units by their groups. number: one an element. */
static gg_status make_groups(gg_unit_search *s, int *number) {
    gg_status status = GG_OK;
    gg_units *made = s->made;
    const size_t words = (size_t)gg_graph_nodes(s->graph) / 64 + 1;
    uint64_t *bits = NULL;
    int *group = NULL, *root = NULL;
    GG_TRY_CLEANUP(gg_calloc((size_t)s->elements * words + 1, sizeof *bits, "units", &bits));
    GG_TRY_CLEANUP(gg_calloc((size_t)s->elements + 1, sizeof *group, "units", &group)); /* of each root */
    GG_TRY_CLEANUP(gg_calloc((size_t)s->elements + 1, sizeof *root, "units", &root));   /* the first of each group */
    mark_producers(s, words, bits);
    for (int i = 0; i < s->elements; i++) {
        if (gg_elements_root(s, i) != i) continue;
        group[i] = -1;
        if (!is_produced(s, &bits[(size_t)i * words])) continue;
        int g = 0;
        while (g < made->groups && memcmp(&bits[(size_t)root[g] * words], &bits[(size_t)i * words], words * 8) != 0)
            g++;
        if (g == made->groups) root[made->groups++] = i;
        group[i] = g;
        made->units++;
    }
    GG_TRY_CLEANUP(gg_calloc((size_t)made->groups + 1, sizeof *made->group, "unit groups", &made->group));
    GG_TRY_CLEANUP(gg_calloc((size_t)made->units + 1, sizeof *made->group_of, "units", &made->group_of));
    for (int i = 0; i < s->elements; i++)
        if (gg_elements_root(s, i) == i && group[i] >= 0) made->group[group[i]].units++;
    for (int g = 0, first = 0; g < made->groups; g++) {
        made->group[g].first = first;
        first += made->group[g].units;
        made->group[g].units = 0;
    }
    for (int i = 0; i < s->elements; i++) { /* a root comes before its elements */
        const gg_unit_element *it = &s->element[i];
        if (gg_elements_root(s, i) != i) {
            number[i] = number[gg_elements_root(s, i)];
            continue;
        }
        number[i] = -1;
        if (group[i] < 0) continue;
        gg_unit_group *own = &made->group[group[i]];
        number[i] = own->first + own->units++;
        made->group_of[number[i]] = group[i];
        explain(s, it->fixed, it->blame, own->fixed);
        explain(s, it->single, it->single_blame, own->single);
    }
    for (int g = 0; g < made->groups; g++) {
        gg_unit_group *own = &made->group[g];
        GG_TRY_CLEANUP(gg_calloc((size_t)made->nodes, sizeof *own->producer, "unit groups", &own->producer));
        GG_TRY_CLEANUP(gg_calloc((size_t)made->parameters + 1, sizeof *own->reader, "unit groups", &own->reader));
        own->activation = GG_LAYER_COUNT;
        own->heads = s->element[root[g]].divided >= 0;
        for (int node = 0; node < made->nodes; node++)
            if ((bits[(size_t)root[g] * words + (size_t)node / 64] >> node % 64 & 1) != 0 &&
                has_units(gg_graph_node(s->graph, node)->desc.kind))
                own->producer[own->producers++] = (gg_unit_producer){.node = node, .norm = -1};
    }
cleanup:
    gg_free(bits);
    gg_free(group);
    gg_free(root);
    return status;
}

/* `times` times the indices of `from`. */
static gg_status copy_axis(const gg_unit_axis *from, int64_t times, gg_unit_axis *to) {
    if (from->unit == NULL) return GG_OK;
    GG_TRY(gg_alloc((size_t)(from->count * times) * sizeof *to->unit, "units", &to->unit));
    to->count = from->count * times;
    for (int64_t i = 0; i < times; i++)
        memcpy(to->unit + i * from->count, from->unit, (size_t)from->count * sizeof *to->unit);
    return GG_OK;
}

/* A layer's weight_ih, weight_hh and their biases. Hidden unit k of all layers is one unit. */
static gg_status index_lstm(gg_unit_search *s, int node) {
    const gg_node *it = gg_graph_node(s->graph, node);
    const gg_unit_axis *own = &s->made->output[node];
    const int each = it->desc.bias ? 4 : 2;
    int first = 0;
    const int count = gg_graph_layer_parameters(s->graph, it->layer, &first);
    for (int k = 0; k < count; k++) {
        gg_unit_axis *axis = s->made->parameter[first + k];
        GG_TRY(copy_axis(own, 4, &axis[0]));
        if (k == 0 && gg_outputs_are_read(s, node)) GG_TRY(copy_axis(&s->made->output[it->input[0]], 1, &axis[1]));
        if (k > 0 && k % each < 2) GG_TRY(copy_axis(own, 1, &axis[1]));
    }
    return GG_OK;
}

/* Index i of an axis is one of head i % (heads * size) / size. */
static gg_status index_heads(const gg_unit_axis *heads, int64_t times, int64_t size, gg_unit_axis *to) {
    const int64_t all = heads->count * size;
    GG_TRY(gg_alloc((size_t)(times * all) * sizeof *to->unit, "units", &to->unit));
    to->count = times * all;
    for (int64_t i = 0; i < to->count; i++) to->unit[i] = heads->unit[i % all / size];
    return GG_OK;
}

/* in_proj and its bias, out_proj and its bias, which is no head's. */
static gg_status index_multi_head(gg_unit_search *s, int node) {
    const gg_node *it = gg_graph_node(s->graph, node);
    const gg_unit_axis *heads = &s->made->inside[node];
    int first = 0;
    (void)gg_graph_layer_parameters(s->graph, it->layer, &first);
    const int in = it->desc.bias ? 2 : 1;
    const int64_t size = gg_graph_parameter(s->graph, first + in)->shape.size[1] / it->desc.attention.heads;
    for (int k = 0; k < in; k++) GG_TRY(index_heads(heads, 3, size, &s->made->parameter[first + k][0]));
    return index_heads(heads, 1, size, &s->made->parameter[first + in][1]);
}

static gg_status index_parameters(gg_unit_search *s, int node) {
    const gg_node *it = gg_graph_node(s->graph, node);
    gg_units *made = s->made;
    int first = 0;
    if (it->layer < 0) return GG_OK;
    const int count = gg_graph_layer_parameters(s->graph, it->layer, &first);
    const gg_unit_axis *in = &made->output[it->input[0]], *own = &made->output[node];
    const gg_layer_kind kind = it->desc.kind;
    if (kind == GG_LAYER_LSTM) {
        GG_TRY(index_lstm(s, node));
        return GG_OK;
    }
    if (kind == GG_LAYER_MULTI_HEAD) {
        GG_TRY(index_multi_head(s, node));
        return GG_OK;
    }
    for (int k = 0; k < count; k++) {
        gg_unit_axis *axis = made->parameter[first + k];
        if (gg_layer_is_producer(kind)) {
            GG_TRY(copy_axis(own, 1, &axis[0]));
            if (k == 0 && gg_outputs_are_read(s, node)) GG_TRY(copy_axis(in, 1, &axis[1]));
        } else if (kind == GG_LAYER_BATCH_NORM1D || kind == GG_LAYER_BATCH_NORM2D) {
            GG_TRY(copy_axis(own, 1, &axis[0]));
        }
    }
    return GG_OK;
}

static void note_norm(gg_unit_search *s, int node) {
    const gg_node *it = gg_graph_node(s->graph, node);
    for (int g = 0; g < s->made->groups; g++) {
        gg_unit_group *group = &s->made->group[g];
        for (int p = 0; p < group->producers; p++)
            if (group->producer[p].node == it->input[0]) group->producer[p].norm = node;
    }
}

/* `from`: the outputs that are read, by the layer with that weight. */
static void add_reader(gg_unit_group *group, const gg_unit_outputs *from, gg_unit_reader reader) {
    if (group->readers == 0) {
        group->rule = from->rule;
        group->activation = from->activation;
        group->slope = from->slope;
    } else {
        if (group->rule != from->rule) group->rule = gg_unit_rule_weaker(group->rule, from->rule);
        if (group->activation != from->activation || group->slope != from->slope) group->activation = GG_LAYER_COUNT;
    }
    if (!reader.constants && group->rule == GG_UNIT_SIGMOID) group->rule = GG_UNIT_EQUAL;
    group->reader[group->readers++] = reader;
}

/* Parameter that absorbs a constant in a layer's sums: its bias, or the running mean of the normalisation that is its
 * only reader; in an LSTM, its first layer's bias. */
static void find_sink(gg_unit_search *s, int node, gg_unit_reader *reader) {
    const gg_node *it = gg_graph_node(s->graph, node);
    int first = 0;
    (void)gg_graph_layer_parameters(s->graph, it->layer, &first);
    reader->bias = it->desc.bias ? first + (it->desc.kind == GG_LAYER_LSTM ? 2 : 1) : -1;
    for (int i = node + 1; reader->bias < 0 && s->readers[node] == 1 && i < gg_graph_nodes(s->graph); i++) {
        const gg_node *norm = gg_graph_node(s->graph, i);
        if (norm->inputs != 1 || norm->input[0] != node) continue;
        if (norm->desc.kind != GG_LAYER_BATCH_NORM1D && norm->desc.kind != GG_LAYER_BATCH_NORM2D) continue;
        if (!norm->desc.batch_norm.track_statistics) continue;
        const int count = gg_graph_layer_parameters(s->graph, norm->layer, &first);
        for (int k = first; k < first + count; k++)
            if (strstr(gg_graph_parameter(s->graph, k)->name, ".running_mean") != NULL) reader->bias = k;
        reader->mean = reader->bias >= 0;
    }
}

static void note_reader(gg_unit_search *s, int node) {
    const gg_node *it = gg_graph_node(s->graph, node);
    const gg_unit_outputs *from = &s->out[it->input[0]];
    const gg_unit_axis *in = &s->made->output[it->input[0]];
    const bool padded = it->desc.kind == GG_LAYER_CONV2D &&
                        (it->desc.conv.window.padding[0] > 0 || it->desc.conv.window.padding[1] > 0);
    /* By Cauchy and Schwarz a sum over a window is at most the norm of its weights times the norm of the window's
     * elements. gg_windows_of_element bounds the windows of an element. */
    const double gain =
        it->desc.kind == GG_LAYER_CONV2D ? from->gain * sqrt(gg_windows_of_element(&it->desc.conv.window)) : from->gain;
    int first = 0;
    (void)gg_graph_layer_parameters(s->graph, it->layer, &first);
    gg_unit_reader reader = {
        .node = node, .weight = first, .bias = -1, .gain = gain, .constants = from->constants && !padded};
    find_sink(s, node, &reader);
    for (int64_t i = 0; i < in->count; i++) {
        if (in->unit[i] < 0) continue;
        gg_unit_group *group = &s->made->group[s->made->group_of[in->unit[i]]];
        if (group->readers > 0 && group->reader[group->readers - 1].node == node) continue;
        add_reader(group, from, reader);
    }
}

/* Hidden units are inputs of the same layer one position later, and of the layer that reads it. */
static void note_recurrence(gg_unit_search *s, int node) {
    const gg_node *it = gg_graph_node(s->graph, node);
    int first = 0;
    const int each = it->desc.bias ? 4 : 2, count = gg_graph_layer_parameters(s->graph, it->layer, &first);
    for (int g = 0; g < s->made->groups; g++) {
        bool own = false;
        for (int64_t i = 0; i < s->made->output[node].count; i++)
            own = own || s->made->group_of[s->made->output[node].unit[i]] == g;
        for (int k = 1; own && k < count; k++)
            if (k % each < 2)
                add_reader(&s->made->group[g], &s->out[node],
                           (gg_unit_reader){.node = node, .weight = first + k, .bias = -1, .gain = s->out[node].gain});
    }
}

/* The projection of its outputs reads the heads. */
static void note_heads(gg_unit_search *s, int node) {
    const gg_node *it = gg_graph_node(s->graph, node);
    gg_unit_group *group = &s->made->group[s->made->group_of[s->made->inside[node].unit[0]]];
    const gg_unit_outputs from = {.rule = GG_UNIT_EQUAL, .activation = GG_LAYER_COUNT};
    int first = 0;
    (void)gg_graph_layer_parameters(s->graph, it->layer, &first);
    const int weight = first + (it->desc.bias ? 2 : 1);
    add_reader(group, &from,
               (gg_unit_reader){.node = node,
                                .weight = weight,
                                .bias = it->desc.bias ? weight + 1 : -1,
                                .gain = sqrt((double)it->shape.size[0])});
}

gg_status gg_units_finish(gg_unit_search *s) {
    gg_status status = GG_OK;
    gg_units *made = s->made;
    int *number = NULL;
    GG_TRY_CLEANUP(gg_calloc((size_t)s->elements + 1, sizeof *number, "units", &number));
    GG_TRY_CLEANUP(make_groups(s, number));
    for (int i = 0; i < made->nodes; i++) {
        const gg_unit_outputs *from = &s->out[i];
        const gg_layer_desc *desc = &gg_graph_node(s->graph, i)->desc;
        if (desc->kind == GG_LAYER_MULTI_HEAD) {
            gg_unit_axis *inside = &made->inside[i];
            GG_TRY_CLEANUP(gg_alloc((size_t)desc->attention.heads * sizeof *inside->unit, "units", &inside->unit));
            inside->count = desc->attention.heads;
            for (int k = 0; k < inside->count; k++) inside->unit[k] = number[s->heads[i] + k];
        }
        if (from->axis < 0) continue;
        gg_unit_axis *to = &made->output[i];
        to->count = from->count;
        GG_TRY_CLEANUP(gg_alloc((size_t)from->count * sizeof *to->unit, "units", &to->unit));
        for (int k = 0; k < from->count; k++) to->unit[k] = from->element[k] < 0 ? -1 : number[from->element[k]];
    }
    for (int i = 0; i < made->nodes; i++) {
        const gg_layer_kind kind = gg_graph_node(s->graph, i)->desc.kind;
        GG_TRY_CLEANUP(index_parameters(s, i));
        if (gg_layer_is_producer(kind) && gg_outputs_are_read(s, i)) note_reader(s, i);
        if (kind == GG_LAYER_LSTM) note_recurrence(s, i);
        if (kind == GG_LAYER_MULTI_HEAD) note_heads(s, i);
        if (kind == GG_LAYER_BATCH_NORM1D || kind == GG_LAYER_BATCH_NORM2D) note_norm(s, i);
    }
cleanup:
    gg_free(number);
    return status;
}
