/* Following outputs of layers through the nodes that read them. */
#include <math.h>
#include <string.h>

#include "apoptosis/unit_search.h"
#include "nn/layer.h"

static const char *const through = "'%s' (%s) reads them, through which units are not followed";

bool gg_layer_is_producer(gg_layer_kind kind) {
    return kind == GG_LAYER_LINEAR || kind == GG_LAYER_CONV2D || kind == GG_LAYER_LSTM;
}

gg_unit_rule gg_unit_rule_weaker(gg_unit_rule a, gg_unit_rule b) {
    const gg_unit_rule low = a < b ? a : b, high = a < b ? b : a;
    if (low == high || low == GG_UNIT_LINEAR) return high == GG_UNIT_SIGMOID && low != high ? GG_UNIT_EQUAL : high;
    return GG_UNIT_EQUAL;
}

static int64_t common_divisor(int64_t a, int64_t b) {
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Max number of windows that hold one element, over both axes. Elements of a window lie `dilation` apart, and windows
 * begin `stride` apart. */
double gg_windows_of_element(const gg_window *window) {
    double count = 1;
    for (int i = 0; i < 2; i++) {
        const int64_t every = window->stride[i] / common_divisor(window->stride[i], window->dilation[i]);
        count *= (double)((window->kernel[i] + every - 1) / every);
    }
    return count;
}

bool gg_outputs_are_read(gg_unit_search *s, int node) {
    const gg_node *it = gg_graph_node(s->graph, node);
    const gg_unit_outputs *from = &s->out[it->input[0]];
    if (from->axis < 0) return false;
    if (it->desc.kind == GG_LAYER_CONV2D) return from->axis == 0 && it->desc.conv.groups == 1;
    return from->axis == gg_graph_node(s->graph, it->input[0])->shape.dims - 1;
}

/* A layer with outputs of its own. */
static gg_status add_elements(gg_unit_search *s, int node, int axis) {
    const gg_node *it = gg_graph_node(s->graph, node);
    gg_unit_outputs *of = &s->out[node];
    GG_TRY(gg_outputs_reserve(of, axis, it->desc.outputs));
    for (int i = 0; i < of->count; i++) of->element[i] = gg_element_add(s, node);
    return GG_OK;
}

static gg_status copy_outputs(gg_unit_search *s, int node) {
    const gg_unit_outputs *from = &s->out[gg_graph_node(s->graph, node)->input[0]];
    gg_unit_outputs *to = &s->out[node];
    *to = *from;
    to->element = NULL;
    if (from->axis < 0) return GG_OK;
    gg_unit_outputs made = *to;
    GG_TRY(gg_outputs_reserve(&made, from->axis, from->count));
    memcpy(made.element, from->element, (size_t)from->count * sizeof *from->element);
    *to = made;
    return GG_OK;
}

/* (..., units, ...) -> (values): each unit is many of them. */
static gg_status flatten_outputs(gg_unit_search *s, int node) {
    const int input = gg_graph_node(s->graph, node)->input[0];
    const gg_shape *shape = &gg_graph_node(s->graph, input)->shape;
    const gg_unit_outputs *from = &s->out[input];
    gg_unit_outputs *to = &s->out[node];
    int64_t inner = 1;
    *to = *from;
    to->element = NULL;
    if (from->axis < 0) return GG_OK;
    for (int i = from->axis + 1; i < shape->dims; i++) inner *= shape->size[i];
    gg_unit_outputs made = *to;
    GG_TRY(gg_outputs_reserve(&made, 0, gg_shape_count(shape)));
    for (int i = 0; i < made.count; i++) made.element[i] = from->element[(int)(i / inner) % from->count];
    *to = made;
    return GG_OK;
}

static void activate(gg_unit_search *s, int node) {
    const gg_layer_desc *desc = &gg_graph_node(s->graph, node)->desc;
    gg_unit_outputs *of = &s->out[node];
    if (of->axis < 0) return;
    of->activation = of->activation == GG_LAYER_INPUT && desc->kind != GG_LAYER_GELU ? desc->kind : GG_LAYER_COUNT;
    of->slope = desc->kind == GG_LAYER_LEAKY_RELU ? desc->leaky_relu.slope : 0;
    switch (desc->kind) {
    case GG_LAYER_LEAKY_RELU:
        of->gain *= fmax(1, fabs((double)of->slope));
        of->rule = gg_unit_rule_weaker(of->rule, GG_UNIT_POSITIVE);
        break;
    case GG_LAYER_RELU: of->rule = gg_unit_rule_weaker(of->rule, GG_UNIT_POSITIVE); break;
    case GG_LAYER_TANH: of->rule = gg_unit_rule_weaker(of->rule, GG_UNIT_ODD); break;
    case GG_LAYER_SIGMOID:
        of->gain /= 4;
        of->rule = of->rule == GG_UNIT_LINEAR ? GG_UNIT_SIGMOID : GG_UNIT_EQUAL;
        break;
    default:
        of->gain *= 1.13; /* the steepest place of GELU */
        of->rule = GG_UNIT_EQUAL;
    }
}

static void pool_outputs(gg_unit_search *s, int node) {
    const gg_node *it = gg_graph_node(s->graph, node);
    const gg_window *window = &it->desc.pool;
    const bool padded = window->padding[0] > 0 || window->padding[1] > 0 || window->ceil_mode;
    gg_unit_outputs *of = &s->out[node];
    if (of->axis != 0) {
        gg_outputs_fix(s, of, node, through);
        of->axis = -1;
        return;
    }
    if (it->desc.kind == GG_LAYER_MAX_POOL2D) {
        of->gain *= sqrt(gg_windows_of_element(window));
        of->rule = gg_unit_rule_weaker(of->rule, GG_UNIT_POSITIVE);
    } else if (it->desc.kind == GG_LAYER_AVG_POOL2D) {
        if (padded) of->gain *= sqrt(gg_windows_of_element(window));
        if (padded && window->count_include_pad) {
            of->constants = false;
            if (of->rule == GG_UNIT_SIGMOID) of->rule = GG_UNIT_EQUAL;
        }
    } else {
        const gg_shape *in = &gg_graph_node(s->graph, it->input[0])->shape;
        for (int i = 1; i < 3; i++) {
            if (in->size[i] % it->shape.size[i] != 0)
                of->gain *= sqrt((double)((it->shape.size[i] + in->size[i] - 1) / in->size[i] + 1));
        }
    }
}

static void join_kinds(gg_unit_outputs *to, const gg_unit_outputs *more) {
    if (to->rule != more->rule) to->rule = gg_unit_rule_weaker(to->rule, more->rule);
    if (to->activation != more->activation || to->slope != more->slope) to->activation = GG_LAYER_COUNT;
    to->constants = to->constants && more->constants;
}

/* Element by element, all inputs are one. */
static gg_status add_outputs(gg_unit_search *s, int node) {
    static const char *const meets = "'%s' (%s) joins them with values that cannot leave";
    const gg_node *it = gg_graph_node(s->graph, node);
    gg_unit_outputs *to = &s->out[node];
    bool meet = true;
    GG_TRY(copy_outputs(s, node));
    for (int k = 1; k < it->inputs; k++) {
        const gg_unit_outputs *more = &s->out[it->input[k]];
        if (to->axis != more->axis) {
            gg_outputs_fix(s, to, node, meets);
            gg_outputs_fix(s, more, node, meets);
            meet = false;
            continue;
        }
        if (to->axis < 0 || to->element == NULL || more->element == NULL) continue;
        for (int i = 0; i < to->count; i++) {
            if (to->element[i] >= 0 && more->element[i] >= 0) {
                gg_elements_unite(s, to->element[i], more->element[i]);
            } else {
                gg_element_fix(s, to->element[i], node, meets);
                gg_element_fix(s, more->element[i], node, meets);
                if (to->element[i] < 0) to->element[i] = more->element[i];
            }
        }
        to->gain += more->gain;
        join_kinds(to, more);
    }
    if (!meet) to->axis = -1;
    if (to->rule == GG_UNIT_SIGMOID) to->rule = GG_UNIT_EQUAL; /* of a sum it is not 1 minus that */
    to->constants = false;
    return GG_OK;
}

/* Whether some of these elements are units of `more`. */
static bool holds_units_of(gg_unit_search *s, const int *joined, int count, const gg_unit_outputs *more) {
    for (int k = 0; more->axis == 0 && k < more->count; k++)
        for (int i = 0; more->element[k] >= 0 && i < count; i++)
            if (joined[i] >= 0 && gg_elements_root(s, joined[i]) == gg_elements_root(s, more->element[k])) return true;
    return false;
}

/* Along the first axis. Where units lie along another one, their elements meet as in a sum. */
static gg_status concatenate_outputs(gg_unit_search *s, int node) {
    const gg_node *it = gg_graph_node(s->graph, node);
    gg_unit_outputs *to = &s->out[node];
    bool first = true;
    int at = 0;
    for (int k = 0; k < it->inputs; k++) {
        if (s->out[it->input[k]].axis > 0) {
            bool constants = true;
            for (int i = 0; i < it->inputs; i++) constants = constants && s->out[it->input[i]].constants;
            GG_TRY(add_outputs(s, node));
            to->constants = constants && to->activation != GG_LAYER_COUNT;
            return GG_OK;
        }
    }
    GG_TRY(gg_outputs_reserve(to, 0, it->shape.size[0]));
    for (int k = 0; k < it->inputs; k++) {
        const gg_unit_outputs *from = &s->out[it->input[k]];
        const int count = (int)gg_graph_node(s->graph, it->input[k])->shape.size[0];
        for (int i = 0; i < count; i++) to->element[at++] = from->axis == 0 ? from->element[i] : -1;
        if (from->axis < 0) continue;
        /* The errors of a unit that is there twice add up; of several units each has its own. */
        const bool again = !first && holds_units_of(s, to->element, at - count, from);
        double gain = first ? from->gain : fmax(to->gain, from->gain);
        if (again) gain = hypot(to->gain, from->gain);
        if (first) {
            to->rule = from->rule;
            to->activation = from->activation;
            to->slope = from->slope;
            to->constants = from->constants;
        }
        to->gain = gain;
        if (!first) join_kinds(to, from);
        first = false;
    }
    return GG_OK;
}

static gg_status permute_outputs(gg_unit_search *s, int node) {
    const gg_shape *order = &gg_graph_node(s->graph, node)->desc.order;
    gg_unit_outputs *to = &s->out[node];
    GG_TRY(copy_outputs(s, node));
    const int64_t axis = to->axis;
    for (int i = 0; i < order->dims; i++)
        if (order->size[i] == axis) to->axis = i;
    return GG_OK;
}

/* A range of neighbouring units; of another axis it is one of their places. */
static gg_status slice_outputs(gg_unit_search *s, int node) {
    const gg_node *it = gg_graph_node(s->graph, node);
    const gg_unit_outputs *from = &s->out[it->input[0]];
    const gg_range range = gg_slice_range(&it->desc, &gg_graph_node(s->graph, it->input[0])->shape);
    gg_unit_outputs *to = &s->out[node];
    if (from->axis < 0) return GG_OK;
    if (from->axis != range.axis) {
        GG_TRY(copy_outputs(s, node));
    } else if (range.step > 1) {
        gg_outputs_fix(s, from, node, through);
    } else {
        *to = *from;
        to->element = NULL;
        gg_unit_outputs made = *to;
        GG_TRY(gg_outputs_reserve(&made, from->axis, range.end - range.begin));
        if (from->element != NULL)
            memcpy(made.element, from->element + range.begin, (size_t)made.count * sizeof *made.element);
        *to = made;
    }
    return GG_OK;
}

static int64_t pad_axis(const gg_unit_search *s, int node) {
    const gg_node *it = gg_graph_node(s->graph, node);
    return it->desc.pad.axis < 0 ? it->desc.pad.axis + it->shape.dims : it->desc.pad.axis;
}

/* Zeros among units are elements as well, without producers: units that they are added to can leave with them. */
static gg_status pad_outputs(gg_unit_search *s, int node) {
    const gg_node *it = gg_graph_node(s->graph, node);
    const gg_unit_outputs *from = &s->out[it->input[0]];
    gg_unit_outputs *to = &s->out[node];
    if (from->axis < 0) return GG_OK;
    if (from->axis != pad_axis(s, node)) {
        GG_TRY(copy_outputs(s, node));
        to->constants = false;
        if (to->rule == GG_UNIT_SIGMOID) to->rule = GG_UNIT_EQUAL;
        return GG_OK;
    }
    *to = *from;
    to->element = NULL;
    gg_unit_outputs made = *to;
    GG_TRY(gg_outputs_reserve(&made, from->axis, it->shape.size[from->axis]));
    for (int i = 0; i < made.count; i++) {
        const int64_t place = i - it->desc.pad.zeros[0];
        const bool zero = place < 0 || place >= from->count;
        made.element[i] = zero ? gg_element_add(s, node) : from->element[place];
    }
    *to = made;
    return GG_OK;
}

/* Queries, keys and values of a layer, side by side: all rows of one head are a unit. Each row of scores sums to 1,
 * each column to at most the number of positions, so an error of the values grows at most by its root.
 */
static gg_status attend_outputs(gg_unit_search *s, int node) {
    const gg_node *it = gg_graph_node(s->graph, node);
    const gg_unit_outputs *from = &s->out[it->input[0]];
    gg_unit_outputs *to = &s->out[node];
    const int features = (int)it->shape.size[1], size = features / (int)it->desc.attention.heads;
    bool whole = from->axis == 1;
    for (int i = 0; whole && i < from->count; i++) {
        whole = from->element[i] >= 0;
        if (!whole) break;
        const gg_unit_element *root = &s->element[gg_elements_root(s, from->element[i])];
        whole = root->members == 1 && root->node == s->element[from->element[0]].node;
    }
    if (!whole) {
        gg_outputs_fix(s, from, node, through);
        return GG_OK;
    }
    for (int i = 0; i < from->count; i++)
        gg_elements_unite(s, from->element[i % features / size * size], from->element[i]);
    for (int i = 0; i < features; i++) s->element[gg_elements_root(s, from->element[i])].divided = node;
    GG_TRY(gg_outputs_reserve(to, 1, features));
    memcpy(to->element, from->element, (size_t)features * sizeof *to->element);
    to->rule = GG_UNIT_EQUAL;
    to->activation = GG_LAYER_COUNT;
    to->gain = from->gain * sqrt((double)it->shape.size[0]);
    to->constants = false;
    return GG_OK;
}

/* Attention with projections of its own: its heads are units inside of it. */
static void add_heads(gg_unit_search *s, int node) {
    const int64_t heads = gg_graph_node(s->graph, node)->desc.attention.heads;
    s->heads[node] = s->elements;
    for (int64_t i = 0; i < heads; i++) s->element[gg_element_add(s, node)].divided = node;
}

static gg_status normalise_outputs(gg_unit_search *s, int node) {
    const gg_node *it = gg_graph_node(s->graph, node);
    const gg_layer_kind before = gg_graph_node(s->graph, it->input[0])->desc.kind;
    gg_unit_outputs *of = &s->out[node];
    GG_TRY(copy_outputs(s, node));
    if (of->axis != 0) {
        gg_outputs_fix(s, of, node, through);
        of->axis = -1;
    } else if (before != GG_LAYER_LINEAR && before != GG_LAYER_CONV2D) {
        gg_outputs_forbid_comparison(s, of, node, "'%s' (%s) is not right behind the layer that produces them");
    } else if (s->readers[it->input[0]] > 1) {
        gg_outputs_forbid_comparison(s, of, node, "they are read with and without '%s' (%s)");
    } else if (!it->desc.batch_norm.track_statistics) {
        gg_outputs_forbid_comparison(s, of, node, "'%s' (%s) has no running statistics");
    }
    return GG_OK;
}

gg_status gg_outputs_follow(gg_unit_search *s, int node) {
    const gg_node *it = gg_graph_node(s->graph, node);
    gg_unit_outputs *of = &s->out[node];
    *of = (gg_unit_outputs){.axis = -1, .gain = 1, .constants = true};
    switch (it->desc.kind) {
    case GG_LAYER_LINEAR:
    case GG_LAYER_CONV2D:
    case GG_LAYER_LSTM:
        if (!gg_outputs_are_read(s, node)) gg_outputs_fix(s, &s->out[it->input[0]], node, through);
        GG_TRY(add_elements(s, node, it->desc.kind == GG_LAYER_CONV2D ? 0 : it->shape.dims - 1));
        if (it->desc.kind == GG_LAYER_CONV2D && it->desc.conv.groups > 1)
            gg_outputs_fix(s, of, node, "the channels of '%s' (%s) are divided into groups");
        if (it->desc.kind == GG_LAYER_LSTM) {
            of->rule = GG_UNIT_EQUAL;
            of->activation = GG_LAYER_COUNT;
            of->constants = false;
            of->gain = 1.05; /* the steepest place of one step from a state of zeros, over all gates */
        }
        break;
    case GG_LAYER_RELU:
    case GG_LAYER_LEAKY_RELU:
    case GG_LAYER_TANH:
    case GG_LAYER_SIGMOID:
    case GG_LAYER_GELU:
        GG_TRY(copy_outputs(s, node));
        activate(s, node);
        break;
    case GG_LAYER_DROPOUT: GG_TRY(copy_outputs(s, node)); break;
    case GG_LAYER_MAX_POOL2D:
    case GG_LAYER_AVG_POOL2D:
    case GG_LAYER_ADAPTIVE_AVG_POOL2D:
        GG_TRY(copy_outputs(s, node));
        pool_outputs(s, node);
        break;
    case GG_LAYER_BATCH_NORM1D:
    case GG_LAYER_BATCH_NORM2D: GG_TRY(normalise_outputs(s, node)); break;
    case GG_LAYER_FLATTEN: GG_TRY(flatten_outputs(s, node)); break;
    case GG_LAYER_ADD: GG_TRY(add_outputs(s, node)); break;
    case GG_LAYER_CONCAT: GG_TRY(concatenate_outputs(s, node)); break;
    case GG_LAYER_PERMUTE: GG_TRY(permute_outputs(s, node)); break;
    case GG_LAYER_SLICE: GG_TRY(slice_outputs(s, node)); break;
    case GG_LAYER_PAD: GG_TRY(pad_outputs(s, node)); break;
    case GG_LAYER_ATTENTION: GG_TRY(attend_outputs(s, node)); break;
    case GG_LAYER_MULTI_HEAD:
        for (int k = 0; k < it->inputs; k++) gg_outputs_fix(s, &s->out[it->input[k]], node, through);
        add_heads(s, node);
        break;
    default:
        for (int k = 0; k < it->inputs; k++) gg_outputs_fix(s, &s->out[it->input[k]], node, through);
    }
    return GG_OK;
}
