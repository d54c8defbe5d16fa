#include "apoptosis/selection.h"

#include <string.h>

#include "base/memory.h"
#include "nn/layer.h"

/* A parameter as rows x columns x inner elements; with one axis it has one column. */
typedef struct parameter_selection {
    size_t from, to; /* where it is in the arenas */
    int64_t columns, inner;
    int64_t kept[2];
    int64_t *index[2];
} parameter_selection;

/* Which numbers of a row of carried state stay. */
typedef struct carried_selection {
    int64_t kept;
    int64_t *index; /* NULL: the layer carries none */
} carried_selection;

struct gg_selection {
    int nodes, parameters;
    gg_layer_desc *desc; /* one a node: its description afterwards */
    parameter_selection *parameter;
    carried_selection *carried; /* one a node */
    size_t before, after;
    uint64_t hash;
};

static void hash_bytes(uint64_t *hash, const void *bytes, size_t count) {
    const unsigned char *at = bytes; /* FNV-1a */
    for (size_t i = 0; i < count; i++) *hash = (*hash ^ at[i]) * 0x100000001b3u;
}

/* Byte by byte from the lowest, whatever the machine's order is. */
static void hash_number(uint64_t *hash, int64_t number) {
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)((uint64_t)number >> 8 * i & 255);
    hash_bytes(hash, bytes, sizeof bytes);
}

static void hash_graph(uint64_t *hash, const gg_graph *graph) {
    for (int i = 0; i < gg_graph_nodes(graph); i++) {
        const gg_node *node = gg_graph_node(graph, i);
        hash_number(hash, node->desc.kind);
        hash_bytes(hash, node->desc.name, strlen(node->desc.name) + 1);
        for (int k = 0; k < node->inputs; k++) hash_number(hash, node->input[k]);
        for (int k = 0; k < node->shape.dims; k++) hash_number(hash, node->shape.size[k]);
    }
}

/* Finds the indices of an axis, of `count`, whose units stay. */
static gg_status select_axis(const gg_unit_axis *axis, const bool *leaves, int64_t count, int64_t *kept,
                             int64_t **index) {
    GG_TRY(gg_alloc((size_t)count * sizeof **index, "selection", index));
    *kept = 0;
    for (int64_t i = 0; i < count; i++) {
        const int unit = axis->unit != NULL ? axis->unit[i] : -1;
        if (unit < 0 || !leaves[unit]) (*index)[(*kept)++] = i;
    }
    return GG_OK;
}

static gg_status check_leaves(const gg_graph *graph, const gg_units *units, const bool *leaves) {
    for (int g = 0; g < units->groups; g++) {
        const gg_unit_group *group = &units->group[g];
        const char *name = gg_graph_node(graph, group->producer[0].node)->desc.name;
        int stay = 0;
        for (int i = group->first; i < group->first + group->units; i++) {
            stay += !leaves[i];
            if (leaves[i] && group->fixed[0] != '\0')
                return gg_fail(GG_ERROR_ARGUMENT, "unit %d of layer '%s' cannot leave: %s", i - group->first, name,
                               group->fixed);
        }
        if (stay == 0)
            return gg_fail(GG_ERROR_ARGUMENT, "all %d units of layer '%s' leave; at least one has to stay",
                           group->units, name);
    }
    return GG_OK;
}

/* How many of the indices from `begin` to end - 1 stay. */
static int64_t count_stay(const gg_unit_axis *axis, const bool *leaves, int64_t begin, int64_t end) {
    int64_t count = 0;
    for (int64_t i = begin; i < end; i++) count += axis->unit == NULL || axis->unit[i] < 0 || !leaves[axis->unit[i]];
    return count;
}

/* Describes a node's layer in the smaller graph. */
static void describe_node(const gg_graph *graph, const gg_units *units, const bool *leaves, int number,
                          gg_layer_desc *out) {
    const gg_node *node = gg_graph_node(graph, number);
    const gg_unit_axis *own = &units->output[number], *in = node->inputs > 0 ? &units->output[node->input[0]] : NULL;
    *out = node->desc;
    switch (node->desc.kind) {
    case GG_LAYER_LINEAR:
    case GG_LAYER_CONV2D:
    case GG_LAYER_LSTM: out->outputs = count_stay(own, leaves, 0, own->count); break;
    case GG_LAYER_MULTI_HEAD:
        if (out->attention.head_size == 0) out->attention.head_size = out->outputs / out->attention.heads;
        out->attention.heads = count_stay(&units->inside[number], leaves, 0, out->attention.heads);
        break;
    case GG_LAYER_ATTENTION:
        if (own->count > 0)
            out->attention.heads = count_stay(own, leaves, 0, own->count) / (own->count / out->attention.heads);
        break;
    case GG_LAYER_PAD:
        if (in == NULL || in->unit == NULL || own->count == in->count) break; /* along another axis */
        out->pad.zeros[0] = count_stay(own, leaves, 0, node->desc.pad.zeros[0]);
        out->pad.zeros[1] = count_stay(own, leaves, own->count - node->desc.pad.zeros[1], own->count);
        break;
    case GG_LAYER_SLICE:
        if (in == NULL || in->unit == NULL || own->count == in->count) break;
        const gg_range range = gg_slice_range(&node->desc, &gg_graph_node(graph, node->input[0])->shape);
        out->range.begin = count_stay(in, leaves, 0, range.begin);
        out->range.end = out->range.begin + count_stay(in, leaves, range.begin, range.end);
        break;
    default: break;
    }
}

gg_status gg_graph_select(const gg_graph *graph, const gg_selection *selection, gg_graph **out) {
    gg_status status = GG_OK;
    gg_graph *made = NULL;
    gg_head head[GG_MAX_FIELDS];
    *out = NULL;
    GG_TRY_CLEANUP(gg_graph_create(&made));
    for (int i = 0; i < gg_graph_nodes(graph); i++) {
        const gg_node *node = gg_graph_node(graph, i);
        GG_TRY_CLEANUP(gg_graph_add(made, &selection->desc[i], &node->shape, node->inputs, node->input, NULL));
        GG_TRY_CLEANUP(gg_graph_set_factors(made, i, node->lr, node->decay));
    }
    for (int h = 0; h < gg_graph_heads(graph); h++) head[h] = *gg_graph_head(graph, h);
    GG_TRY_CLEANUP(gg_graph_finish(made, gg_graph_heads(graph), head));
    *out = made;
    made = NULL;
cleanup:
    gg_graph_destroy(made);
    return status;
}

/* A row is made of runs with a number for each hidden unit: states and cells. */
static gg_status select_carried(const gg_graph *graph, const gg_units *units, const bool *leaves, int node,
                                const gg_graph *small, carried_selection *out) {
    const int64_t numbers = gg_graph_node_carried(graph, node), after = gg_graph_node_carried(small, node);
    const gg_unit_axis *axis = &units->output[node];
    if (numbers == 0) return GG_OK;
    GG_TRY(gg_alloc((size_t)numbers * sizeof *out->index, "selection", &out->index));
    for (int64_t i = 0; i < numbers; i++) {
        const int unit = axis->unit != NULL ? axis->unit[i % axis->count] : -1;
        if (unit < 0 || !leaves[unit]) out->index[out->kept++] = i;
    }
    if (out->kept != after)
        return gg_fail(GG_ERROR_STATE, "selection: layer '%s' carries %lld numbers afterwards, but %lld of them stay",
                       gg_graph_node(graph, node)->desc.name, (long long)after, (long long)out->kept);
    return GG_OK;
}

/* Where the parameter lies in both graphs, and which of its indices stay. */
static gg_status select_parameter(const gg_units *units, const bool *leaves, int number, const gg_parameter *before,
                                  const gg_parameter *after, parameter_selection *out) {
    const int dims = before->shape.dims;
    out->from = before->offset;
    out->to = after->offset;
    out->columns = dims > 1 ? before->shape.size[1] : 1;
    out->inner = 1;
    for (int i = 2; i < dims; i++) out->inner *= before->shape.size[i];
    for (int i = 0; i < 2; i++) {
        const int64_t count = i < dims ? before->shape.size[i] : 1;
        GG_TRY(select_axis(&units->parameter[number][i], leaves, count, &out->kept[i], &out->index[i]));
    }
    if ((int64_t)after->count != out->kept[0] * out->kept[1] * out->inner)
        return gg_fail(GG_ERROR_STATE, "selection: '%s' has %lld numbers afterwards, but %lld of it stay", before->name,
                       (long long)after->count, (long long)(out->kept[0] * out->kept[1] * out->inner));
    return GG_OK;
}

gg_status gg_selection_create(const gg_graph *graph, const gg_units *units, const bool *leaves, gg_selection **out) {
    gg_status status = GG_OK;
    gg_selection *made = NULL;
    gg_graph *small = NULL;
    *out = NULL;
    GG_TRY_CLEANUP(check_leaves(graph, units, leaves));
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *made, "selection", &made));
    made->nodes = gg_graph_nodes(graph);
    made->parameters = gg_graph_parameters(graph);
    GG_TRY_CLEANUP(gg_calloc((size_t)made->nodes, sizeof *made->desc, "selection", &made->desc));
    GG_TRY_CLEANUP(gg_calloc((size_t)made->parameters + 1, sizeof *made->parameter, "selection", &made->parameter));
    GG_TRY_CLEANUP(gg_calloc((size_t)made->nodes, sizeof *made->carried, "selection", &made->carried));
    for (int i = 0; i < made->nodes; i++) describe_node(graph, units, leaves, i, &made->desc[i]);
    GG_TRY_CLEANUP(gg_graph_select(graph, made, &small));
    for (int i = 0; i < made->nodes; i++)
        GG_TRY_CLEANUP(select_carried(graph, units, leaves, i, small, &made->carried[i]));
    made->before = gg_graph_arena_count(graph);
    made->after = gg_graph_arena_count(small);
    made->hash = 0xcbf29ce484222325u;
    hash_graph(&made->hash, small);
    for (int i = 0; i < made->parameters; i++) {
        parameter_selection *own = &made->parameter[i];
        GG_TRY_CLEANUP(
            select_parameter(units, leaves, i, gg_graph_parameter(graph, i), gg_graph_parameter(small, i), own));
        for (int axis = 0; axis < 2; axis++) {
            hash_number(&made->hash, own->kept[axis]);
            for (int64_t k = 0; k < own->kept[axis]; k++) hash_number(&made->hash, own->index[axis][k]);
        }
    }
    *out = made;
    made = NULL;
cleanup:
    gg_graph_destroy(small);
    gg_selection_destroy(made);
    return status;
}

void gg_selection_destroy(gg_selection *selection) {
    if (selection == NULL) return;
    for (int i = 0; selection->parameter != NULL && i < selection->parameters; i++) {
        gg_free(selection->parameter[i].index[0]);
        gg_free(selection->parameter[i].index[1]);
    }
    for (int i = 0; selection->carried != NULL && i < selection->nodes; i++) gg_free(selection->carried[i].index);
    gg_free(selection->carried);
    gg_free(selection->parameter);
    gg_free(selection->desc);
    gg_free(selection);
}

size_t gg_selection_count_before(const gg_selection *selection) { return selection->before; }
size_t gg_selection_count_after(const gg_selection *selection) { return selection->after; }
uint64_t gg_selection_hash(const gg_selection *selection) { return selection->hash; }

int64_t gg_selection_kept(const gg_selection *selection, int parameter, int axis, const int64_t **index) {
    *index = selection->parameter[parameter].index[axis];
    return selection->parameter[parameter].kept[axis];
}

void gg_carried_select(const gg_selection *selection, int node, const float *before, float *after) {
    const carried_selection *it = &selection->carried[node];
    for (int64_t i = 0; i < it->kept; i++) after[i] = before[it->index[i]];
}

/* The columns of a row that stay, neighbouring ones at once. */
static float *select_row(const parameter_selection *it, const float *row, float *out) {
    const int64_t *index = it->index[1];
    for (int64_t c = 0, next; c < it->kept[1]; c = next) {
        for (next = c + 1; next < it->kept[1] && index[next] == index[next - 1] + 1;) next++;
        memcpy(out, row + index[c] * it->inner, (size_t)((next - c) * it->inner) * sizeof *out);
        out += (next - c) * it->inner;
    }
    return out;
}

void gg_arena_select(const gg_selection *selection, const float *from, float *to) {
    for (int i = 0; i < selection->parameters; i++) {
        const parameter_selection *it = &selection->parameter[i];
        float *out = to + it->to;
        for (int64_t r = 0; r < it->kept[0]; r++)
            out = select_row(it, from + it->from + it->index[0][r] * it->columns * it->inner, out);
        const size_t next = i + 1 < selection->parameters ? selection->parameter[i + 1].to : selection->after;
        memset(out, 0, (size_t)(to + next - out) * sizeof *out); /* padding */
    }
}
