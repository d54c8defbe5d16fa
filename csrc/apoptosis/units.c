#include "apoptosis/units.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "nn/layer.h"

/* While they are looked for, an output of a layer is an element, and a unit is a set of elements: a forest, in which
 * each element knows its parent, and the roots know of the whole set. */
typedef struct element {
    int parent, node;
    int members;       /* of the set, at its root */
    int divided;       /* the set is a head of this node's attention; -1: it is not */
    int blame;         /* the node because of which its set is fixed or single; -1: it is not */
    const char *fixed; /* a format with the name and kind of that node */
    int single_blame;
    const char *single;
} element;

/* Of a node's output. */
typedef struct outputs {
    int axis; /* along which the elements lie; -1: nothing in it can leave */
    int count;
    int *element; /* one an index; -1: cannot leave. NULL: none of them can */
    gg_unit_rule rule;
    gg_layer_kind activation;
    float slope;
    double gain;
    bool constants;
} outputs;

typedef struct search {
    const gg_graph *graph;
    element *element;
    int elements;
    outputs *out;   /* one a node */
    int *heads;     /* one a node: the element of a MULTI_HEAD's first head */
    int *readers;   /* one a node: how many nodes read it, and heads */
    gg_units *made; /* unfinished */
} search;

static const char *const through = "'%s' (%s) reads them, through which units are not followed";

const char *gg_unit_rule_name(gg_unit_rule rule) {
    static const char *const names[GG_UNIT_RULE_COUNT] = {"linear", "positive", "odd", "sigmoid", "equal"};
    return names[rule];
}

static int root_of(search *s, int at) {
    while (s->element[at].parent != at) at = s->element[at].parent = s->element[s->element[at].parent].parent;
    return at;
}

/* The smaller number stays the root, so that roots do not depend on the order of unions. */
static void unite(search *s, int a, int b) {
    a = root_of(s, a);
    b = root_of(s, b);
    if (a == b) return;
    element *to = &s->element[a < b ? a : b], *from = &s->element[a < b ? b : a];
    from->parent = a < b ? a : b;
    to->members += from->members;
    if (to->fixed == NULL && (to->divided >= 0 || from->divided >= 0)) {
        to->fixed = "'%s' (%s) divides them into heads, which are joined with other values";
        to->blame = to->divided >= 0 ? to->divided : from->divided;
    }
    if (to->fixed == NULL) {
        to->fixed = from->fixed;
        to->blame = from->blame;
    }
    if (to->single == NULL) {
        to->single = from->single;
        to->single_blame = from->single_blame;
    }
}

static void fix_element(search *s, int at, int node, const char *why) {
    if (at < 0) return;
    element *root = &s->element[root_of(s, at)];
    if (root->fixed != NULL) return;
    root->fixed = why;
    root->blame = node;
}

static void fix_outputs(search *s, const outputs *of, int node, const char *why) {
    for (int i = 0; of->element != NULL && i < of->count; i++) fix_element(s, of->element[i], node, why);
}

static void forbid_comparison(search *s, const outputs *of, int node, const char *why) {
    for (int i = 0; of->element != NULL && i < of->count; i++) {
        if (of->element[i] < 0) continue;
        element *root = &s->element[root_of(s, of->element[i])];
        if (root->single != NULL) continue;
        root->single = why;
        root->single_blame = node;
    }
}

static gg_status reserve_outputs(outputs *of, int axis, int64_t count) {
    of->axis = axis;
    of->count = (int)count;
    return gg_alloc((size_t)count * sizeof *of->element, "units", &of->element);
}

static int new_element(search *s, int node) {
    s->element[s->elements] =
        (element){.parent = s->elements, .node = node, .members = 1, .divided = -1, .blame = -1, .single_blame = -1};
    return s->elements++;
}

/* A layer with outputs of its own. */
static gg_status add_elements(search *s, int node, int axis) {
    gg_status status = GG_OK;
    const gg_node *it = gg_graph_node(s->graph, node);
    outputs *of = &s->out[node];
    GG_TRY(reserve_outputs(of, axis, it->desc.outputs));
    for (int i = 0; i < of->count; i++) of->element[i] = new_element(s, node);
cleanup:
    return status;
}

static gg_status copy_outputs(search *s, int node) {
    gg_status status = GG_OK;
    const outputs *from = &s->out[gg_graph_node(s->graph, node)->input[0]];
    outputs *to = &s->out[node];
    *to = *from;
    to->element = NULL;
    if (from->axis < 0) goto cleanup;
    GG_TRY(reserve_outputs(to, from->axis, from->count));
    memcpy(to->element, from->element, (size_t)from->count * sizeof *from->element);
cleanup:
    return status;
}

/* (..., units, ...) -> (values): each unit is many of them. */
static gg_status flatten_outputs(search *s, int node) {
    gg_status status = GG_OK;
    const int input = gg_graph_node(s->graph, node)->input[0];
    const gg_shape *shape = &gg_graph_node(s->graph, input)->shape;
    const outputs *from = &s->out[input];
    outputs *to = &s->out[node];
    int64_t inner = 1;
    *to = *from;
    to->element = NULL;
    if (from->axis < 0) goto cleanup;
    for (int i = from->axis + 1; i < shape->dims; i++) inner *= shape->size[i];
    GG_TRY(reserve_outputs(to, 0, gg_shape_count(shape)));
    for (int i = 0; i < to->count; i++) to->element[i] = from->element[(int)(i / inner) % from->count];
cleanup:
    return status;
}

static gg_unit_rule weaker_rule(gg_unit_rule a, gg_unit_rule b) {
    const gg_unit_rule low = a < b ? a : b, high = a < b ? b : a;
    if (low == high || low == GG_UNIT_LINEAR) return high == GG_UNIT_SIGMOID && low != high ? GG_UNIT_EQUAL : high;
    return GG_UNIT_EQUAL;
}

static void activate(search *s, int node) {
    const gg_layer_desc *desc = &gg_graph_node(s->graph, node)->desc;
    outputs *of = &s->out[node];
    if (of->axis < 0) return;
    of->activation = of->activation == GG_LAYER_INPUT && desc->kind != GG_LAYER_GELU ? desc->kind : GG_LAYER_COUNT;
    of->slope = desc->slope;
    switch (desc->kind) {
    case GG_LAYER_LEAKY_RELU:
        of->gain *= fmax(1, fabs((double)desc->slope));
        of->rule = weaker_rule(of->rule, GG_UNIT_POSITIVE);
        break;
    case GG_LAYER_RELU: of->rule = weaker_rule(of->rule, GG_UNIT_POSITIVE); break;
    case GG_LAYER_TANH: of->rule = weaker_rule(of->rule, GG_UNIT_ODD); break;
    case GG_LAYER_SIGMOID:
        of->gain /= 4;
        of->rule = of->rule == GG_UNIT_LINEAR ? GG_UNIT_SIGMOID : GG_UNIT_EQUAL;
        break;
    default:
        of->gain *= 1.13; /* the steepest place of GELU */
        of->rule = GG_UNIT_EQUAL;
    }
}

static int64_t common_divisor(int64_t a, int64_t b) {
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* How many windows hold one element at most, along both axes: of the elements of a window, which lie `dilation` apart,
 * every so many are those of windows that begin `stride` apart. */
static double windows_of_element(const gg_window *window) {
    double count = 1;
    for (int i = 0; i < 2; i++) {
        const int64_t every = window->stride[i] / common_divisor(window->stride[i], window->dilation[i]);
        count *= (double)((window->kernel[i] + every - 1) / every);
    }
    return count;
}

static void pool_outputs(search *s, int node) {
    const gg_node *it = gg_graph_node(s->graph, node);
    const gg_window *window = &it->desc.window;
    const bool padded = window->padding[0] > 0 || window->padding[1] > 0 || window->ceil_mode;
    outputs *of = &s->out[node];
    if (of->axis != 0) {
        fix_outputs(s, of, node, through);
        of->axis = -1;
        return;
    }
    if (it->desc.kind == GG_LAYER_MAX_POOL2D) {
        of->gain *= sqrt(windows_of_element(window));
        of->rule = weaker_rule(of->rule, GG_UNIT_POSITIVE);
    } else if (it->desc.kind == GG_LAYER_AVG_POOL2D) {
        if (padded) of->gain *= sqrt(windows_of_element(window));
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

static void join_kinds(outputs *to, const outputs *more) {
    if (to->rule != more->rule) to->rule = weaker_rule(to->rule, more->rule);
    if (to->activation != more->activation || to->slope != more->slope) to->activation = GG_LAYER_COUNT;
    to->constants = to->constants && more->constants;
}

/* Element by element, all inputs are one. */
static gg_status add_outputs(search *s, int node) {
    gg_status status = GG_OK;
    static const char *const meets = "'%s' (%s) joins them with values that cannot leave";
    const gg_node *it = gg_graph_node(s->graph, node);
    outputs *to = &s->out[node];
    bool meet = true;
    GG_TRY(copy_outputs(s, node));
    for (int k = 1; k < it->inputs; k++) {
        const outputs *more = &s->out[it->input[k]];
        if (to->axis != more->axis) {
            fix_outputs(s, to, node, meets);
            fix_outputs(s, more, node, meets);
            meet = false;
            continue;
        }
        if (to->axis < 0 || to->element == NULL || more->element == NULL) continue;
        for (int i = 0; i < to->count; i++) {
            if (to->element[i] >= 0 && more->element[i] >= 0) {
                unite(s, to->element[i], more->element[i]);
            } else {
                fix_element(s, to->element[i], node, meets);
                fix_element(s, more->element[i], node, meets);
                if (to->element[i] < 0) to->element[i] = more->element[i];
            }
        }
        to->gain += more->gain;
        join_kinds(to, more);
    }
    if (!meet) to->axis = -1;
    if (to->rule == GG_UNIT_SIGMOID) to->rule = GG_UNIT_EQUAL; /* of a sum it is not 1 minus that */
    to->constants = false;
cleanup:
    return status;
}

/* Whether some of these elements are units of `more`. */
static bool holds_units_of(search *s, const int *joined, int count, const outputs *more) {
    for (int k = 0; more->axis == 0 && k < more->count; k++)
        for (int i = 0; more->element[k] >= 0 && i < count; i++)
            if (joined[i] >= 0 && root_of(s, joined[i]) == root_of(s, more->element[k])) return true;
    return false;
}

/* Along the first axis. Where units lie along another one, their elements meet as in a sum. */
static gg_status concatenate_outputs(search *s, int node) {
    gg_status status = GG_OK;
    const gg_node *it = gg_graph_node(s->graph, node);
    outputs *to = &s->out[node];
    bool first = true;
    int at = 0;
    for (int k = 0; k < it->inputs; k++) {
        if (s->out[it->input[k]].axis > 0) {
            bool constants = true;
            for (int i = 0; i < it->inputs; i++) constants = constants && s->out[it->input[i]].constants;
            GG_TRY(add_outputs(s, node));
            to->constants = constants && to->activation != GG_LAYER_COUNT;
            goto cleanup;
        }
    }
    GG_TRY(reserve_outputs(to, 0, it->shape.size[0]));
    for (int k = 0; k < it->inputs; k++) {
        const outputs *from = &s->out[it->input[k]];
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
cleanup:
    return status;
}

static gg_status permute_outputs(search *s, int node) {
    gg_status status = GG_OK;
    const gg_shape *order = &gg_graph_node(s->graph, node)->desc.order;
    outputs *to = &s->out[node];
    GG_TRY(copy_outputs(s, node));
    const int64_t axis = to->axis;
    for (int i = 0; i < order->dims; i++)
        if (order->size[i] == axis) to->axis = i;
cleanup:
    return status;
}

/* A range of neighbouring units; of another axis it is one of their places. */
static gg_status slice_outputs(search *s, int node) {
    gg_status status = GG_OK;
    const gg_node *it = gg_graph_node(s->graph, node);
    const outputs *from = &s->out[it->input[0]];
    const gg_range range = gg_slice_range(&it->desc, &gg_graph_node(s->graph, it->input[0])->shape);
    outputs *to = &s->out[node];
    if (from->axis < 0) goto cleanup;
    if (from->axis != range.axis) {
        GG_TRY(copy_outputs(s, node));
    } else if (range.step > 1) {
        fix_outputs(s, from, node, through);
    } else {
        *to = *from;
        to->element = NULL;
        GG_TRY(reserve_outputs(to, from->axis, range.end - range.begin));
        if (from->element != NULL)
            memcpy(to->element, from->element + range.begin, (size_t)to->count * sizeof *to->element);
    }
cleanup:
    return status;
}

static int64_t pad_axis(const search *s, int node) {
    const gg_node *it = gg_graph_node(s->graph, node);
    return it->desc.range.axis < 0 ? it->desc.range.axis + it->shape.dims : it->desc.range.axis;
}

/* Zeros among units are elements as well, with nothing behind them: what they are added to can leave with them. */
static gg_status pad_outputs(search *s, int node) {
    gg_status status = GG_OK;
    const gg_node *it = gg_graph_node(s->graph, node);
    const outputs *from = &s->out[it->input[0]];
    outputs *to = &s->out[node];
    if (from->axis < 0) goto cleanup;
    if (from->axis != pad_axis(s, node)) {
        GG_TRY(copy_outputs(s, node));
        to->constants = false;
        if (to->rule == GG_UNIT_SIGMOID) to->rule = GG_UNIT_EQUAL;
        goto cleanup;
    }
    *to = *from;
    to->element = NULL;
    GG_TRY(reserve_outputs(to, from->axis, it->shape.size[from->axis]));
    for (int i = 0; i < to->count; i++) {
        const int64_t place = i - it->desc.pads[0];
        const bool zero = place < 0 || place >= from->count;
        to->element[i] = zero ? new_element(s, node) : from->element[place];
    }
cleanup:
    return status;
}

/* Queries, keys and values of a layer, side by side: all rows of one head are a unit. The weights of a row of scores
 * have the sum 1, of a column at most that of all positions, so that an error of the values grows by its root at most.
 */
static gg_status attend_outputs(search *s, int node) {
    gg_status status = GG_OK;
    const gg_node *it = gg_graph_node(s->graph, node);
    const outputs *from = &s->out[it->input[0]];
    outputs *to = &s->out[node];
    const int features = (int)it->shape.size[1], size = features / (int)it->desc.heads;
    bool whole = from->axis == 1;
    for (int i = 0; whole && i < from->count; i++) {
        whole = from->element[i] >= 0;
        if (!whole) break;
        const element *root = &s->element[root_of(s, from->element[i])];
        whole = root->members == 1 && root->node == s->element[from->element[0]].node;
    }
    if (!whole) {
        fix_outputs(s, from, node, through);
        goto cleanup;
    }
    for (int i = 0; i < from->count; i++) unite(s, from->element[i % features / size * size], from->element[i]);
    for (int i = 0; i < features; i++) s->element[root_of(s, from->element[i])].divided = node;
    GG_TRY(reserve_outputs(to, 1, features));
    memcpy(to->element, from->element, (size_t)features * sizeof *to->element);
    to->rule = GG_UNIT_EQUAL;
    to->activation = GG_LAYER_COUNT;
    to->gain = from->gain * sqrt((double)it->shape.size[0]);
    to->constants = false;
cleanup:
    return status;
}

/* Attention with projections of its own: its heads are units inside of it. */
static void add_heads(search *s, int node) {
    const int64_t heads = gg_graph_node(s->graph, node)->desc.heads;
    s->heads[node] = s->elements;
    for (int64_t i = 0; i < heads; i++) s->element[new_element(s, node)].divided = node;
}

static bool is_producer(gg_layer_kind kind) {
    return kind == GG_LAYER_LINEAR || kind == GG_LAYER_CONV2D || kind == GG_LAYER_LSTM;
}

static gg_status normalise_outputs(search *s, int node) {
    gg_status status = GG_OK;
    const gg_node *it = gg_graph_node(s->graph, node);
    const gg_layer_kind before = gg_graph_node(s->graph, it->input[0])->desc.kind;
    outputs *of = &s->out[node];
    GG_TRY(copy_outputs(s, node));
    if (of->axis != 0) {
        fix_outputs(s, of, node, through);
        of->axis = -1;
    } else if (before != GG_LAYER_LINEAR && before != GG_LAYER_CONV2D) {
        forbid_comparison(s, of, node, "'%s' (%s) is not right behind the layer that produces them");
    } else if (s->readers[it->input[0]] > 1) {
        forbid_comparison(s, of, node, "they are read with and without '%s' (%s)");
    } else if (!it->desc.track_statistics) {
        forbid_comparison(s, of, node, "'%s' (%s) has no running statistics");
    }
cleanup:
    return status;
}

/* Whether a layer with weights can be followed to what it reads: the axis on which it sums. */
static bool reads_units(search *s, int node) {
    const gg_node *it = gg_graph_node(s->graph, node);
    const outputs *from = &s->out[it->input[0]];
    if (from->axis < 0) return false;
    if (it->desc.kind == GG_LAYER_CONV2D) return from->axis == 0 && it->desc.groups == 1;
    return from->axis == gg_graph_node(s->graph, it->input[0])->shape.dims - 1;
}

static gg_status follow_node(search *s, int node) {
    gg_status status = GG_OK;
    const gg_node *it = gg_graph_node(s->graph, node);
    outputs *of = &s->out[node];
    *of = (outputs){.axis = -1, .gain = 1, .constants = true};
    switch (it->desc.kind) {
    case GG_LAYER_LINEAR:
    case GG_LAYER_CONV2D:
    case GG_LAYER_LSTM:
        if (!reads_units(s, node)) fix_outputs(s, &s->out[it->input[0]], node, through);
        GG_TRY(add_elements(s, node, it->desc.kind == GG_LAYER_CONV2D ? 0 : it->shape.dims - 1));
        if (it->desc.kind == GG_LAYER_CONV2D && it->desc.groups > 1)
            fix_outputs(s, of, node, "the channels of '%s' (%s) are divided into groups");
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
        for (int k = 0; k < it->inputs; k++) fix_outputs(s, &s->out[it->input[k]], node, through);
        add_heads(s, node);
        break;
    default:
        for (int k = 0; k < it->inputs; k++) fix_outputs(s, &s->out[it->input[k]], node, through);
    }
cleanup:
    return status;
}

static bool has_units(gg_layer_kind kind) { return is_producer(kind) || kind == GG_LAYER_MULTI_HEAD; }

/* What each set of elements is: the layers that have a part in it, a bit a node; and slices that have some of them, as
 * each of these needs one that stays. */
static void mark_producers(search *s, size_t words, uint64_t *bits) {
    for (int i = 0; i < s->elements; i++) {
        const int node = s->element[i].node, root = root_of(s, i);
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
        const outputs *of = &s->out[node];
        if (gg_graph_node(s->graph, node)->desc.kind != GG_LAYER_SLICE || of->axis < 0) continue;
        for (int i = 0; i < of->count; i++)
            if (of->element[i] >= 0)
                bits[(size_t)root_of(s, of->element[i]) * words + (size_t)node / 64] |= (uint64_t)1 << node % 64;
    }
}

/* Sets of zeros alone are none. */
static bool is_produced(const search *s, const uint64_t *bits) {
    for (int node = 0; node < gg_graph_nodes(s->graph); node++)
        if ((bits[node / 64] >> node % 64 & 1) != 0 && has_units(gg_graph_node(s->graph, node)->desc.kind)) return true;
    return false;
}

static void explain(const search *s, const char *why, int node, char out[GG_UNIT_TEXT]) {
    if (why == NULL || out[0] != '\0') return;
    const gg_layer_desc *desc = &gg_graph_node(s->graph, node)->desc;
    const char *name = strstr(why, "%s"), *kind = strstr(name + 2, "%s");
    (void)snprintf(out, GG_UNIT_TEXT, "%.*s%s%.*s%s%s", (int)(name - why), why, desc->name, (int)(kind - name - 2),
                   name + 2, gg_layer_kind_name(desc->kind), kind + 2);
}

/* Gathers sets of the same producers in groups, and numbers units by their groups. number: one an element. */
static gg_status make_groups(search *s, int *number) {
    gg_status status = GG_OK;
    gg_units *made = s->made;
    const size_t words = (size_t)gg_graph_nodes(s->graph) / 64 + 1;
    uint64_t *bits = NULL;
    int *group = NULL, *root = NULL;
    GG_TRY(gg_calloc((size_t)s->elements * words + 1, sizeof *bits, "units", &bits));
    GG_TRY(gg_calloc((size_t)s->elements + 1, sizeof *group, "units", &group)); /* of each root */
    GG_TRY(gg_calloc((size_t)s->elements + 1, sizeof *root, "units", &root));   /* the first of each group */
    mark_producers(s, words, bits);
    for (int i = 0; i < s->elements; i++) {
        if (root_of(s, i) != i) continue;
        group[i] = -1;
        if (!is_produced(s, &bits[(size_t)i * words])) continue;
        int g = 0;
        while (g < made->groups && memcmp(&bits[(size_t)root[g] * words], &bits[(size_t)i * words], words * 8) != 0)
            g++;
        if (g == made->groups) root[made->groups++] = i;
        group[i] = g;
        made->units++;
    }
    GG_TRY(gg_calloc((size_t)made->groups + 1, sizeof *made->group, "unit groups", &made->group));
    GG_TRY(gg_calloc((size_t)made->units + 1, sizeof *made->group_of, "units", &made->group_of));
    for (int i = 0; i < s->elements; i++)
        if (root_of(s, i) == i && group[i] >= 0) made->group[group[i]].units++;
    for (int g = 0, first = 0; g < made->groups; g++) {
        made->group[g].first = first;
        first += made->group[g].units;
        made->group[g].units = 0;
    }
    for (int i = 0; i < s->elements; i++) { /* a root comes before its elements */
        const element *it = &s->element[i];
        if (root_of(s, i) != i) {
            number[i] = number[root_of(s, i)];
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
        GG_TRY(gg_calloc((size_t)made->nodes, sizeof *own->producer, "unit groups", &own->producer));
        GG_TRY(gg_calloc((size_t)made->parameters + 1, sizeof *own->reader, "unit groups", &own->reader));
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
    gg_status status = GG_OK;
    if (from->unit == NULL) goto cleanup;
    GG_TRY(gg_alloc((size_t)(from->count * times) * sizeof *to->unit, "units", &to->unit));
    to->count = from->count * times;
    for (int64_t i = 0; i < times; i++)
        memcpy(to->unit + i * from->count, from->unit, (size_t)from->count * sizeof *to->unit);
cleanup:
    return status;
}

/* Of each layer weight_ih, weight_hh and their biases. Hidden unit k of all layers is one unit. */
static gg_status index_lstm(search *s, int node) {
    gg_status status = GG_OK;
    const gg_node *it = gg_graph_node(s->graph, node);
    const gg_unit_axis *own = &s->made->output[node];
    const int each = it->desc.bias ? 4 : 2;
    int first = 0;
    const int count = gg_graph_layer_parameters(s->graph, it->layer, &first);
    for (int k = 0; k < count; k++) {
        gg_unit_axis *axis = s->made->parameter[first + k];
        GG_TRY(copy_axis(own, 4, &axis[0]));
        if (k == 0 && reads_units(s, node)) GG_TRY(copy_axis(&s->made->output[it->input[0]], 1, &axis[1]));
        if (k > 0 && k % each < 2) GG_TRY(copy_axis(own, 1, &axis[1]));
    }
cleanup:
    return status;
}

/* Index i of an axis is one of head i % (heads * size) / size. */
static gg_status index_heads(const gg_unit_axis *heads, int64_t times, int64_t size, gg_unit_axis *to) {
    gg_status status = GG_OK;
    const int64_t all = heads->count * size;
    GG_TRY(gg_alloc((size_t)(times * all) * sizeof *to->unit, "units", &to->unit));
    to->count = times * all;
    for (int64_t i = 0; i < to->count; i++) to->unit[i] = heads->unit[i % all / size];
cleanup:
    return status;
}

/* in_proj and its bias, out_proj and its bias, which is no head's. */
static gg_status index_multi_head(search *s, int node) {
    gg_status status = GG_OK;
    const gg_node *it = gg_graph_node(s->graph, node);
    const gg_unit_axis *heads = &s->made->inside[node];
    int first = 0;
    (void)gg_graph_layer_parameters(s->graph, it->layer, &first);
    const int in = it->desc.bias ? 2 : 1;
    const int64_t size = gg_graph_parameter(s->graph, first + in)->shape.size[1] / it->desc.heads;
    for (int k = 0; k < in; k++) GG_TRY(index_heads(heads, 3, size, &s->made->parameter[first + k][0]));
    GG_TRY(index_heads(heads, 1, size, &s->made->parameter[first + in][1]));
cleanup:
    return status;
}

static gg_status index_parameters(search *s, int node) {
    gg_status status = GG_OK;
    const gg_node *it = gg_graph_node(s->graph, node);
    gg_units *made = s->made;
    int first = 0;
    if (it->layer < 0) goto cleanup;
    const int count = gg_graph_layer_parameters(s->graph, it->layer, &first);
    const gg_unit_axis *in = &made->output[it->input[0]], *own = &made->output[node];
    const gg_layer_kind kind = it->desc.kind;
    if (kind == GG_LAYER_LSTM) {
        GG_TRY(index_lstm(s, node));
        goto cleanup;
    }
    if (kind == GG_LAYER_MULTI_HEAD) {
        GG_TRY(index_multi_head(s, node));
        goto cleanup;
    }
    for (int k = 0; k < count; k++) {
        gg_unit_axis *axis = made->parameter[first + k];
        if (is_producer(kind)) {
            GG_TRY(copy_axis(own, 1, &axis[0]));
            if (k == 0 && reads_units(s, node)) GG_TRY(copy_axis(in, 1, &axis[1]));
        } else if (kind == GG_LAYER_BATCH_NORM1D || kind == GG_LAYER_BATCH_NORM2D) {
            GG_TRY(copy_axis(own, 1, &axis[0]));
        }
    }
cleanup:
    return status;
}

static void note_norm(search *s, int node) {
    const gg_node *it = gg_graph_node(s->graph, node);
    for (int g = 0; g < s->made->groups; g++) {
        gg_unit_group *group = &s->made->group[g];
        for (int p = 0; p < group->producers; p++)
            if (group->producer[p].node == it->input[0]) group->producer[p].norm = node;
    }
}

/* `from`: the outputs that are read, by the layer with that weight. */
static void add_reader(gg_unit_group *group, const outputs *from, gg_unit_reader reader) {
    if (group->readers == 0) {
        group->rule = from->rule;
        group->activation = from->activation;
        group->slope = from->slope;
    } else {
        if (group->rule != from->rule) group->rule = weaker_rule(group->rule, from->rule);
        if (group->activation != from->activation || group->slope != from->slope) group->activation = GG_LAYER_COUNT;
    }
    if (!reader.constants && group->rule == GG_UNIT_SIGMOID) group->rule = GG_UNIT_EQUAL;
    group->reader[group->readers++] = reader;
}

/* Where a constant of what a layer sums up goes: into its bias, or from the running mean of the normalisation that
 * alone reads it; of an LSTM, into that of its first layer. */
static void find_sink(search *s, int node, gg_unit_reader *reader) {
    const gg_node *it = gg_graph_node(s->graph, node);
    int first = 0;
    (void)gg_graph_layer_parameters(s->graph, it->layer, &first);
    reader->bias = it->desc.bias ? first + (it->desc.kind == GG_LAYER_LSTM ? 2 : 1) : -1;
    for (int i = node + 1; reader->bias < 0 && s->readers[node] == 1 && i < gg_graph_nodes(s->graph); i++) {
        const gg_node *norm = gg_graph_node(s->graph, i);
        if (norm->inputs != 1 || norm->input[0] != node || !norm->desc.track_statistics) continue;
        if (norm->desc.kind != GG_LAYER_BATCH_NORM1D && norm->desc.kind != GG_LAYER_BATCH_NORM2D) continue;
        const int count = gg_graph_layer_parameters(s->graph, norm->layer, &first);
        for (int k = first; k < first + count; k++)
            if (strstr(gg_graph_parameter(s->graph, k)->name, ".running_mean") != NULL) reader->bias = k;
        reader->mean = reader->bias >= 0;
    }
}

static void note_reader(search *s, int node) {
    const gg_node *it = gg_graph_node(s->graph, node);
    const outputs *from = &s->out[it->input[0]];
    const gg_unit_axis *in = &s->made->output[it->input[0]];
    const bool padded =
        it->desc.kind == GG_LAYER_CONV2D && (it->desc.window.padding[0] > 0 || it->desc.window.padding[1] > 0);
    /* By Cauchy and Schwarz a sum over a window is at most the norm of its weights times that of what is in the window,
     * and an element is in so many windows. */
    const double gain =
        it->desc.kind == GG_LAYER_CONV2D ? from->gain * sqrt(windows_of_element(&it->desc.window)) : from->gain;
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
static void note_recurrence(search *s, int node) {
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
static void note_heads(search *s, int node) {
    const gg_node *it = gg_graph_node(s->graph, node);
    gg_unit_group *group = &s->made->group[s->made->group_of[s->made->inside[node].unit[0]]];
    const outputs from = {.rule = GG_UNIT_EQUAL, .activation = GG_LAYER_COUNT};
    int first = 0;
    (void)gg_graph_layer_parameters(s->graph, it->layer, &first);
    const int weight = first + (it->desc.bias ? 2 : 1);
    add_reader(group, &from,
               (gg_unit_reader){.node = node,
                                .weight = weight,
                                .bias = it->desc.bias ? weight + 1 : -1,
                                .gain = sqrt((double)it->shape.size[0])});
}

static gg_status finish_units(search *s) {
    gg_status status = GG_OK;
    gg_units *made = s->made;
    int *number = NULL;
    GG_TRY(gg_calloc((size_t)s->elements + 1, sizeof *number, "units", &number));
    GG_TRY(make_groups(s, number));
    for (int i = 0; i < made->nodes; i++) {
        const outputs *from = &s->out[i];
        const gg_layer_desc *desc = &gg_graph_node(s->graph, i)->desc;
        if (desc->kind == GG_LAYER_MULTI_HEAD) {
            gg_unit_axis *inside = &made->inside[i];
            GG_TRY(gg_alloc((size_t)desc->heads * sizeof *inside->unit, "units", &inside->unit));
            inside->count = desc->heads;
            for (int k = 0; k < inside->count; k++) inside->unit[k] = number[s->heads[i] + k];
        }
        if (from->axis < 0) continue;
        gg_unit_axis *to = &made->output[i];
        to->count = from->count;
        GG_TRY(gg_alloc((size_t)from->count * sizeof *to->unit, "units", &to->unit));
        for (int k = 0; k < from->count; k++) to->unit[k] = from->element[k] < 0 ? -1 : number[from->element[k]];
    }
    for (int i = 0; i < made->nodes; i++) {
        const gg_layer_kind kind = gg_graph_node(s->graph, i)->desc.kind;
        GG_TRY(index_parameters(s, i));
        if (is_producer(kind) && reads_units(s, i)) note_reader(s, i);
        if (kind == GG_LAYER_LSTM) note_recurrence(s, i);
        if (kind == GG_LAYER_MULTI_HEAD) note_heads(s, i);
        if (kind == GG_LAYER_BATCH_NORM1D || kind == GG_LAYER_BATCH_NORM2D) note_norm(s, i);
    }
cleanup:
    gg_free(number);
    return status;
}

gg_status gg_units_find(const gg_graph *graph, gg_units **out) {
    gg_status status = GG_OK;
    const int nodes = gg_graph_nodes(graph);
    search s = {.graph = graph};
    int64_t elements = 0;
    *out = NULL;
    if (gg_graph_output(graph) < 0) GG_FAIL(GG_ERROR_STATE, "units: the graph is not finished");
    for (int i = 0; i < nodes; i++) {
        const gg_layer_desc *desc = &gg_graph_node(graph, i)->desc;
        if (is_producer(desc->kind)) elements += desc->outputs;
        if (desc->kind == GG_LAYER_MULTI_HEAD) elements += desc->heads;
        if (desc->kind == GG_LAYER_PAD) elements += desc->pads[0] + desc->pads[1];
    }
    for (int i = 0; i < nodes; i++)
        if (elements > INT32_MAX || gg_shape_count(&gg_graph_node(graph, i)->shape) > INT32_MAX)
            GG_FAIL(GG_ERROR_UNSUPPORTED, "units: layer '%s' is too large", gg_graph_node(graph, i)->desc.name);
    GG_TRY(gg_calloc(1, sizeof *s.made, "units", &s.made));
    s.made->nodes = nodes;
    s.made->parameters = gg_graph_parameters(graph);
    GG_TRY(gg_calloc((size_t)nodes, sizeof *s.made->output, "units", &s.made->output));
    GG_TRY(gg_calloc((size_t)nodes, sizeof *s.made->inside, "units", &s.made->inside));
    GG_TRY(gg_calloc((size_t)s.made->parameters + 1, sizeof *s.made->parameter, "units", &s.made->parameter));
    GG_TRY(gg_calloc((size_t)elements + 1, sizeof *s.element, "units", &s.element));
    GG_TRY(gg_calloc((size_t)nodes, sizeof *s.out, "units", &s.out));
    GG_TRY(gg_calloc((size_t)nodes, sizeof *s.readers, "units", &s.readers));
    GG_TRY(gg_calloc((size_t)nodes, sizeof *s.heads, "units", &s.heads));
    for (int i = 0; i < nodes; i++) {
        const gg_node *it = gg_graph_node(graph, i);
        for (int k = 0; k < it->inputs; k++) s.readers[it->input[k]]++;
    }
    for (int h = 0; h < gg_graph_heads(graph); h++) s.readers[gg_graph_head(graph, h)->node]++;
    for (int i = 0; i < nodes; i++) GG_TRY(follow_node(&s, i));
    for (int h = 0; h < gg_graph_heads(graph); h++) {
        const int node = gg_graph_head(graph, h)->node;
        fix_outputs(&s, &s.out[node], node, "'%s' (%s) is an output of the network");
    }
    GG_TRY(finish_units(&s));
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
