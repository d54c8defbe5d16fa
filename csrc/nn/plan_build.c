/* From nodes to steps: tables, layouts, fusing, views, reorders. */
#include <string.h>

#include "base/memory.h"
#include "nn/choose.h"
#include "nn/plan_internal.h"

static const gg_format plain = {GG_FLOAT32, GG_LAYOUT_PLAIN};

static bool same_format(gg_format a, gg_format b) { return a.dtype == b.dtype && a.layout == b.layout; }

/* Layouts with the values of a sample in row-major order, so that its shape does not matter. */
static bool plan_shapeless(gg_layout layout) { return layout == GG_LAYOUT_PLAIN || layout == GG_LAYOUT_BATCH_LAST; }

gg_status gg_plan_reserve(void *array, int *capacity, int count, size_t size, void **out) {
    *out = array;
    if (count < *capacity) return GG_OK;
    int room = *capacity > 0 ? 2 * *capacity : 32;
    void *block = NULL;
    GG_TRY(gg_calloc((size_t)room, size, "plan", &block));
    if (count > 0) memcpy(block, array, (size_t)count * size);
    gg_free(array);
    *out = block;
    *capacity = room;
    return GG_OK;
}

static gg_status add_value(gg_plan *plan, const gg_value *made, int *out) {
    void *array = NULL;
    GG_TRY(gg_plan_reserve(plan->value, &plan->value_capacity, plan->values, sizeof(gg_value), &array));
    plan->value = array;
    gg_value *value = &plan->value[plan->values];
    *value = *made;
    value->bytes = gg_format_bytes(made->format, &made->shape, plan->options.batch);
    value->parent = value->buffer = value->grad_buffer = GG_NONE;
    if (value->origin == GG_NONE) value->origin = plan->values;
    *out = plan->values++;
    return GG_OK;
}

static void destroy_ops(gg_op *const op[GG_PASS_COUNT]) {
    for (int pass = 0; pass < GG_PASS_COUNT; pass++) {
        bool own = op[pass] != NULL;
        for (int i = 0; i < pass; i++) own = own && op[i] != op[pass];
        if (own) gg_op_destroy(op[pass]);
    }
}

/* Takes over step->op and those in step->pass, also when it fails. */
static gg_status add_step(gg_plan *plan, const gg_step *made) {
    void *array = NULL;
    gg_status status = gg_plan_reserve(plan->step, &plan->step_capacity, plan->steps, sizeof(gg_step), &array);
    if (status != GG_OK) {
        if (made->pass[0] == NULL) gg_op_destroy(made->op);
        destroy_ops(made->pass);
        return status;
    }
    plan->step = array;
    gg_step *step = &plan->step[plan->steps++];
    *step = *made;
    step->saved = GG_NONE;
    for (int pass = 0; pass < GG_PASS_COUNT; pass++) {
        step->prepared[pass] = GG_NONE;
        if (step->pass[pass] == NULL) step->pass[pass] = step->op;
        const size_t scratch = step->pass[pass]->scratch_bytes;
        if (scratch > plan->scratch_bytes) plan->scratch_bytes = scratch;
    }
    for (int i = 0; i < GG_MAX_INPUTS; i++) step->grad_input[i].buffer = GG_NONE;
    return GG_OK;
}

/* Whether a value's elements lie as those of this shape, which is another one than the value's behind a view. */
static bool lies_as(const gg_value *value, const gg_shape *shape) {
    return plan_shapeless(value->format.layout) || gg_shape_equal(&value->shape, shape);
}

/* The format that readers of a node are offered: behind a view that changes the shape a layout that depends on it
 * becomes PLAIN, when it is read. */
static gg_format node_format(const gg_plan *plan, int node) {
    const gg_value *value = &plan->value[plan->node[node].value];
    gg_format format = value->format;
    if (!lies_as(value, &gg_graph_node(plan->graph, node)->shape)) format.layout = GG_LAYOUT_PLAIN;
    return format;
}

static void plan_decide(gg_plan *plan, int value, gg_format format) {
    gg_value *it = &plan->value[value];
    it->undecided = false;
    it->format = format;
    it->bytes = gg_format_bytes(format, &it->shape, plan->options.batch);
}

/* A table that has no widened form of an operation is asked for the direct one. */
static gg_status create_from(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_ERROR_UNSUPPORTED; /* named: analysers do not see gg_fail's result */
    gg_op_desc direct = *desc;
    direct.algorithm = GG_ALGORITHM_DIRECT;
    *out = NULL;
    if (device->table->create[desc->kind] == NULL)
        (void)gg_fail(status, "table '%s' has no operation %s", device->table->name, gg_op_kind_name(desc->kind));
    else status = device->table->create[desc->kind](device, desc, out);
    if (status == GG_ERROR_UNSUPPORTED && desc->algorithm == GG_ALGORITHM_WIDENED)
        status = create_from(device, &direct, out);
    if (status == GG_OK && *out == NULL) {
        status = GG_ERROR_BACKEND;
        (void)gg_fail(status, "table '%s' made no operation %s", device->table->name, gg_op_kind_name(desc->kind));
    }
    if (status == GG_OK && (*out)->backend == NULL) (*out)->backend = device->table->name;
    return status;
}

/* Reorders ----------------------------------------------------------------------------------------------- */

/* A reorder from one value to a new one, if a table does it in one go. `shape` is that of the node whose output is
 * read: another one than the value's behind a view. */
static gg_status try_reorder(gg_plan *plan, int node, int from, const gg_shape *shape, gg_format format, int *out) {
    gg_status status = GG_OK;
    const gg_value *source = &plan->value[from];
    gg_device *order[2] = {plan->options.device, plan->options.fallback};
    int devices = order[1] != NULL && order[1] != order[0] ? 2 : 1;
    gg_op_desc desc = {
        .kind = GG_OP_REORDER,
        .batch = plan->options.batch,
        .inputs = 1,
        .input = {*shape},
        .output = *shape,
        .offered = {source->format},
        .wanted_output = format,
        .training = plan->options.training,
        .input_grad = plan->options.training && source->needs_gradient,
    };
    gg_value made = {.shape = *shape,
                     .format = format,
                     .needs_gradient = source->needs_gradient,
                     .node = source->node,
                     .origin = source->origin,
                     .producer = plan->steps};
    gg_step step = {.node = node, .inputs = 1, .input = {from}, .backward = desc.input_grad};

    status = create_from(order[0], &desc, &step.op);
    if (status == GG_ERROR_UNSUPPORTED && devices == 2) status = create_from(order[1], &desc, &step.op);
    if (status != GG_OK) return status;
    if (!same_format(step.op->input[0], desc.offered[0]) || !same_format(step.op->output, format)) {
        const char *backend = step.op->backend;
        gg_op_destroy(step.op);
        return gg_fail(GG_ERROR_BACKEND, "the reorder of table '%s' is not between the formats asked for", backend);
    }
    status = add_value(plan, &made, &step.output);
    if (status != GG_OK) {
        gg_op_destroy(step.op);
        return status;
    }
    GG_TRY(add_step(plan, &step));
    *out = step.output;
    return status;
}

/* A copy of an activation in this format, or the value itself. */
static int find_copy(const gg_plan *plan, int value, const gg_shape *shape, gg_format format) {
    const gg_value *own = &plan->value[value];
    if (same_format(own->format, format) && lies_as(own, shape)) return value;
    for (int i = 0; i < plan->values; i++) {
        const gg_value *copy = &plan->value[i];
        if (copy->origin == own->origin && same_format(copy->format, format) && lies_as(copy, shape)) return i;
    }
    return GG_NONE;
}

/* The activation in another format: an existing copy, a reorder of the value, or two reorders with PLAIN between them.
 * Two are needed if both layouts depend on the shape and the shapes differ. */
static gg_status plan_convert(gg_plan *plan, int node, int value, const gg_shape *shape, gg_format format, int *out) {
    gg_status status = GG_OK;
    int found = find_copy(plan, value, shape, format);
    if (found != GG_NONE) {
        *out = found;
        return status;
    }
    gg_format from = plan->value[value].format;
    const gg_shape own = plan->value[value].shape;
    int between = GG_NONE;
    if (!lies_as(&plan->value[value], shape)) {
        if (!plan_shapeless(format.layout)) {
            GG_TRY(plan_convert(plan, node, value, &own, (gg_format){from.dtype, GG_LAYOUT_PLAIN}, &between));
            return plan_convert(plan, node, between, shape, format, out);
        }
        shape = &own;
    }
    status = try_reorder(plan, node, value, shape, format, out);
    if (status != GG_ERROR_UNSUPPORTED) return status;
    if (same_format(from, plain) || same_format(format, plain)) {
        gg_error_prefix(status, "from %s %s to %s %s: ", gg_dtype_name(from.dtype), gg_layout_name(from.layout),
                        gg_dtype_name(format.dtype), gg_layout_name(format.layout));
        return status;
    }
    GG_TRY(plan_convert(plan, node, value, shape, plain, &between));
    return plan_convert(plan, node, between, shape, format, out);
}

/* Whether a value, which `source` shows, has one reader alone, behind views or not. */
static bool one_reads(const gg_plan *plan, int source) {
    const int shown = plan->value[plan->node[source].value].node;
    while (plan->node[source].consumers == 1 && source != shown) source = gg_graph_node(plan->graph, source)->input[0];
    return plan->node[source].consumers == 1;
}

/* Whether the plan's input can have the format of its first reader. Rounded only where nothing else reads it. An input
 * is gathered in its own shape. */
static bool can_be_input(const gg_plan *plan, int source, gg_format format) {
    if (format.dtype == GG_FLOAT32 && plan_shapeless(format.layout)) return true;
    if (!plan->options.device->table->gathers_images || !one_reads(plan, source)) return false;
    if (format.dtype != GG_FLOAT32 && format.dtype != GG_BFLOAT16) return false;
    const gg_shape *shape = &gg_graph_node(plan->graph, source)->shape;
    const bool image = shape->dims == 3 && gg_shape_equal(shape, &plan->value[plan->node[source].value].shape);
    return format.layout == GG_LAYOUT_PLAIN || (format.layout == GG_LAYOUT_NHWC && image);
}

/* The value of node `source` in the format of its reader `node`. The first reader decides the format of the plan's
 * input. */
static gg_status plan_resolve(gg_plan *plan, int node, int source, gg_format format, int *out) {
    int value = plan->node[source].value;
    if (plan->value[value].undecided) {
        plan_decide(plan, value, can_be_input(plan, source, format) ? format : plain);
    }
    if (!plan_shapeless(format.layout) && gg_graph_node(plan->graph, source)->shape.dims != 3)
        return gg_fail(GG_ERROR_BACKEND, "layout %s is for images only, but was asked for the output of '%s'",
                       gg_layout_name(format.layout), gg_graph_node(plan->graph, source)->desc.name);
    return plan_convert(plan, node, value, &gg_graph_node(plan->graph, source)->shape, format, out);
}

/* Nodes ---------------------------------------------------------------------------------------------------- */

/* Every layer draws from its own stream (the finaliser of SplitMix64 over the node's number). */
static uint64_t dropout_seed(uint64_t seed, int node) {
    uint64_t z = 0x9e3779b97f4a7c15u * ((uint64_t)node + 1);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return seed ^ z ^ (z >> 31);
}

static void plan_describe(const gg_plan *plan, const gg_plan_group *group, gg_op_desc *desc) {
    const gg_node *it = gg_graph_node(plan->graph, group->main);
    const gg_layer_type *type = gg_layer_type_of(it->desc.kind);
    int source[GG_MAX_INPUTS];
    memset(desc, 0, sizeof *desc);
    desc->kind = type->op;
    desc->batch = plan->options.batch;
    desc->inputs = gg_plan_group_inputs(plan, group, source);
    desc->output = gg_graph_node(plan->graph, gg_plan_group_last(group))->shape;
    desc->training = plan->options.training;
    desc->dtype = plan->options.dtype;
    for (int i = 0; i < desc->inputs; i++) {
        desc->input[i] = gg_graph_node(plan->graph, source[i])->shape;
        desc->offered[i] = node_format(plan, source[i]);
        if (plan->options.training && plan->node[source[i]].needs_gradient) desc->input_grad = true;
    }
    desc->bias = it->desc.bias;
    desc->probability = it->desc.probability;
    desc->options = it->desc.options;
    if (type->describe != NULL) type->describe(&it->desc, desc);
    gg_plan_group_describe(plan, group, desc);
    desc->seed = dropout_seed(plan->options.seed, group->main);
}

/* The operation of a group, or of as many of its nodes as a table computes, from the first on: *group becomes these. A
 * table that has the first node's operation alone still comes before the next table: a group saves less than another
 * table and a reorder may cost. algorithm, passes: as in gg_op_desc. */
static gg_status create_group(gg_plan *plan, gg_plan_group *group, gg_algorithm algorithm, unsigned passes,
                              gg_op **out) {
    gg_status status = GG_ERROR_UNSUPPORTED;
    gg_op_desc desc;
    for (int i = 0; i < plan->devices && status == GG_ERROR_UNSUPPORTED; i++) {
        for (int most = group->nodes; most > 0 && status == GG_ERROR_UNSUPPORTED;) {
            const gg_plan_group part = gg_plan_group_at(plan, group->node[0], most);
            plan_describe(plan, &part, &desc);
            /* A part may have another main node. */
            desc.algorithm = desc.kind == GG_OP_CONV2D ? algorithm : gg_choose_direct(&plan->options, &desc);
            desc.passes = passes;
            status = create_from(plan->order[i], &desc, out);
            if (status == GG_OK) *group = part;
            most = part.nodes - 1;
        }
    }
    return status;
}

/* An operation for one backward pass of a node beside `first`, the forward pass's operation. NULL means that no table
 * has it in these formats; the forward pass's operation then also runs this pass. */
static gg_status create_beside(gg_plan *plan, const gg_op *first, gg_algorithm algorithm, gg_pass pass, gg_op **out) {
    gg_status status = GG_ERROR_UNSUPPORTED;
    gg_op_desc desc = first->desc;
    desc.offered[0] = first->input[0];
    desc.algorithm = algorithm;
    desc.passes = 1u << pass;
    *out = NULL;
    for (int i = 0; i < plan->devices && *out == NULL; i++) {
        status = create_from(plan->order[i], &desc, out);
        if (status != GG_OK && status != GG_ERROR_UNSUPPORTED) return status;
        if (status != GG_OK) continue;
        if (same_format((*out)->input[0], first->input[0]) && same_format((*out)->output, first->output)) continue;
        gg_op_destroy(*out);
        *out = NULL;
    }
    return GG_OK;
}

/* The passes that have this algorithm, or are not run, as bits; 0: all have. */
static unsigned passes_with(const gg_algorithm algorithm[GG_PASS_COUNT], gg_algorithm one, bool input_grad) {
    const unsigned all = (1u << GG_PASS_COUNT) - 1;
    unsigned passes = 1u << GG_PASS_FORWARD;
    for (int pass = GG_PASS_WEIGHTS; pass < GG_PASS_COUNT; pass++)
        if (algorithm[pass] == one || (pass == GG_PASS_DATA && !input_grad)) passes |= 1u << pass;
    return passes != all ? passes : 0;
}

/* The algorithms of a convolution's passes. Where the cost model chooses, the layouts are those that it has with sums
 * of products. */
static gg_status choose_algorithms(gg_plan *plan, const gg_plan_group *group, const gg_op_desc *desc,
                                   gg_algorithm out[GG_PASS_COUNT]) {
    gg_status status = GG_OK;
    gg_plan_group part = *group;
    gg_op *direct = NULL;
    if (!gg_choose_by_cost(&plan->options, desc, out)) goto cleanup;
    const gg_algorithm algorithm = gg_choose_direct(&plan->options, desc);
    GG_TRY_CLEANUP(create_group(plan, &part, algorithm, 0, &direct));
    gg_choose_algorithms(&plan->options, direct, out);
cleanup:
    gg_op_destroy(direct);
    return status;
}

/* Creates the operations of a group's passes; *group receives the nodes that they compute. A convolution may have
 * another algorithm for each pass; where no table has that, the direct one. */
static gg_status create_ops(gg_plan *plan, gg_plan_group *group, gg_op *out[GG_PASS_COUNT]) {
    gg_status status = GG_OK;
    gg_op_desc desc;
    plan_describe(plan, group, &desc);
    const gg_algorithm direct = gg_choose_direct(&plan->options, &desc);
    gg_algorithm algorithm[GG_PASS_COUNT] = {direct, direct, direct}, first;
    if (desc.kind == GG_OP_CONV2D) GG_TRY(choose_algorithms(plan, group, &desc, algorithm));
    first = algorithm[GG_PASS_FORWARD];
    unsigned passes = plan->options.training ? passes_with(algorithm, first, desc.input_grad) : 0;
    status = create_group(plan, group, first, passes, &out[GG_PASS_FORWARD]);
    if (status == GG_ERROR_UNSUPPORTED && first != direct) {
        first = direct;
        passes = plan->options.training ? passes_with(algorithm, first, desc.input_grad) : 0;
        status = create_group(plan, group, first, passes, &out[GG_PASS_FORWARD]);
    }
    if (status != GG_OK || passes == 0) return status;
    unsigned missing = 0;
    for (int pass = GG_PASS_WEIGHTS; pass < GG_PASS_COUNT; pass++) {
        if ((passes >> pass & 1u) != 0) continue;
        GG_TRY(create_beside(plan, out[GG_PASS_FORWARD], algorithm[pass], (gg_pass)pass, &out[pass]));
        if (out[pass] == NULL && first != direct)
            GG_TRY(create_beside(plan, out[GG_PASS_FORWARD], direct, (gg_pass)pass, &out[pass]));
        if (out[pass] == NULL) missing |= 1u << pass;
    }
    if (missing == 0) return status;
    /* The first operation again serves passes without another one. */
    gg_op_destroy(out[GG_PASS_FORWARD]);
    out[GG_PASS_FORWARD] = NULL;
    status = create_group(plan, group, first, passes | missing, &out[GG_PASS_FORWARD]);
    if (status != GG_ERROR_UNSUPPORTED || first == direct) return status;
    destroy_ops(out);
    memset(out, 0, GG_PASS_COUNT * sizeof *out);
    return create_group(plan, group, direct, 0, &out[GG_PASS_FORWARD]);
}

/* A join whose inputs can be written where they belong in it: each then is a slice, and nothing is copied. Inputs that
 * are already part of another join, or twice of this one, or the plan's input, leave the join to its operation. */
static bool is_view(const gg_plan *plan, const gg_op *op, int inputs, const int *input) {
    if (op->desc.kind != GG_OP_CONCAT || op->output.layout != GG_LAYOUT_BATCH_LAST) return false;
    for (int i = 0; i < inputs; i++) {
        const gg_value *value = &plan->value[input[i]];
        if (!same_format(op->input[i], op->output) || value->pinned || value->parent != GG_NONE) return false;
        if (value->bytes % GG_ALIGNMENT != 0) return false;
        for (int k = 0; k < i; k++) {
            if (input[k] == input[i]) return false;
        }
    }
    return true;
}

static void join_by_view(gg_plan *plan, int joined, int inputs, const int *input) {
    size_t offset = 0;
    for (int i = 0; i < inputs; i++) {
        plan->value[input[i]].parent = joined;
        plan->value[input[i]].parent_offset = offset;
        offset += plan->value[input[i]].bytes;
    }
    plan->value[joined].children = inputs;
}

/* The layers of the step's nodes, their parameters, and the state that they carry. */
static void step_layers(gg_plan *plan, gg_step *step) {
    step->first_slot = plan->slots;
    for (int i = 0; i < step->group.nodes; i++) {
        const int node = step->group.node[i], layer = gg_graph_node(plan->graph, node)->layer;
        int first;
        step->carried += gg_graph_node_carried(plan->graph, node);
        if (layer < 0) continue;
        step->layer[step->layers++] = layer;
        for (int k = 0, n = gg_graph_layer_parameters(plan->graph, layer, &first); k < n; k++)
            plan->slot[plan->slots++] = first + k;
    }
    step->parameters = plan->slots - step->first_slot;
    for (int i = 0; i < step->node; i++) step->carried_before += gg_graph_node_carried(plan->graph, i);
}

static gg_status build_op(gg_plan *plan, int first) {
    gg_status status = GG_OK;
    gg_plan_group group = plan->node[first].group;
    gg_op *ops[GG_PASS_COUNT] = {NULL}, *op = NULL;
    gg_step step = {.node = GG_NONE};
    gg_value made = {.origin = GG_NONE, .producer = GG_NONE};
    int source[GG_MAX_INPUTS];

    GG_TRY_CLEANUP(create_ops(plan, &group, ops));
    op = ops[GG_PASS_FORWARD];
    gg_plan_group_set(plan, &group);
    const int last = gg_plan_group_last(&group);
    step.inputs = gg_plan_group_inputs(plan, &group, source);
    for (int i = 0; i < step.inputs; i++)
        GG_TRY_CLEANUP(plan_resolve(plan, group.main, source[i], op->input[i], &step.input[i]));
    made.shape = gg_graph_node(plan->graph, last)->shape;
    made.needs_gradient = plan->node[last].needs_gradient;
    made.node = last;
    made.format = op->output;
    const bool view = is_view(plan, op, step.inputs, step.input);
    if (!view) made.producer = plan->steps;
    GG_TRY_CLEANUP(add_value(plan, &made, &step.output));
    for (int i = 0; i < group.nodes; i++) plan->node[group.node[i]].value = step.output;
    if (view) {
        join_by_view(plan, step.output, step.inputs, step.input);
        goto cleanup;
    }
    plan->node[group.main].backend = op->backend;
    step.group = group;
    step.node = group.main;
    step.backward = plan->options.training && made.needs_gradient;
    step_layers(plan, &step);
    step.op = op;
    memcpy(step.pass, ops, sizeof ops);
    memset(ops, 0, sizeof ops);
    GG_TRY_CLEANUP(add_step(plan, &step));
cleanup:
    destroy_ops(ops);
    return status;
}

static gg_status build_node(gg_plan *plan, int node) {
    const gg_node *it = gg_graph_node(plan->graph, node);
    gg_node_state *state = &plan->node[node];
    if (it->desc.kind == GG_LAYER_INPUT) {
        gg_value made = {.shape = it->shape,
                         .format = {it->dtype, GG_LAYOUT_PLAIN},
                         .undecided = it->dtype == GG_FLOAT32,
                         .pinned = true,
                         .node = node,
                         .origin = GG_NONE,
                         .producer = GG_NONE};
        return add_value(plan, &made, &state->value);
    }
    const bool still = it->desc.kind == GG_LAYER_DROPOUT && (!plan->options.training || it->desc.probability == 0);
    /* A view shows its input's values under another shape: who reads it reads a copy where they lie otherwise. */
    if (still || gg_layer_type_of(it->desc.kind)->view) {
        state->value = plan->node[it->input[0]].value;
        return GG_OK;
    }
    return build_op(plan, node);
}

/* Marks the nodes that lead to a used head, and counts their readers. */
static void mark_live(gg_plan *plan) {
    for (int i = 0; i < gg_graph_heads(plan->graph); i++) {
        const gg_head *head = gg_graph_head(plan->graph, i);
        plan->head[i].used = plan->options.training || !head->training_only;
        if (!plan->head[i].used) continue;
        plan->node[head->node].live = true;
        plan->node[head->node].consumers++;
    }
    for (int i = gg_graph_nodes(plan->graph) - 1; i >= 0; i--) {
        const gg_node *it = gg_graph_node(plan->graph, i);
        for (int k = 0; plan->node[i].live && k < it->inputs; k++) {
            plan->node[it->input[k]].live = true;
            plan->node[it->input[k]].consumers++;
        }
    }
}

/* Who needs a gradient. */
static void mark_nodes(gg_plan *plan) {
    for (int i = 0; i < gg_graph_nodes(plan->graph); i++) {
        const gg_node *it = gg_graph_node(plan->graph, i);
        gg_node_state *state = &plan->node[i];
        state->value = GG_NONE;
        state->backend = "";
        state->needs_gradient = it->layer >= 0;
        for (int k = 0; k < it->inputs; k++) {
            if (plan->node[it->input[k]].needs_gradient) state->needs_gradient = true;
        }
    }
}

/* A head's loss reads float32, in a layout with the values in row-major order. */
static gg_status build_head(gg_plan *plan, gg_plan_head *head, int node) {
    gg_status status = GG_OK;
    const gg_node *it = gg_graph_node(plan->graph, node);
    gg_value *value = &plan->value[plan->node[node].value];
    if (value->undecided) value->undecided = false;
    gg_format format = value->format;
    if (format.dtype != GG_FLOAT32 || !plan_shapeless(format.layout)) format = plain;
    status = plan_convert(plan, node, plan->node[node].value, &it->shape, format, &head->value);
    GG_TRY(gg_error_prefix(status, "the loss on '%s': ", it->desc.name));
    return status;
}

/* Whether all that a group reads has been built. */
static bool group_ready(const gg_plan *plan, const gg_plan_group *group) {
    int source[GG_MAX_INPUTS];
    const int inputs = gg_plan_group_inputs(plan, group, source);
    for (int i = 0; i < inputs; i++)
        if (plan->node[source[i]].value == GG_NONE) return false;
    return true;
}

/* A group is built with the first of its nodes before which all that it reads is there. */
static gg_status build_group_of(gg_plan *plan, int node) {
    while (plan->node[node].value == GG_NONE) {
        const int first = plan->node[node].first;
        if (!group_ready(plan, &plan->node[first].group)) break;
        GG_TRY(build_node(plan, first)); /* perhaps without `node` */
    }
    return GG_OK;
}

gg_status gg_plan_build(gg_plan *plan) {
    gg_status status = GG_OK;
    plan->devices = gg_choose_devices(&plan->options, plan->order);
    mark_live(plan);
    mark_nodes(plan);
    gg_plan_group_all(plan);
    for (int i = 0; i < gg_graph_nodes(plan->graph); i++) {
        const gg_node *it = gg_graph_node(plan->graph, i);
        if (!plan->node[i].live) continue;
        status = build_group_of(plan, i);
        GG_TRY(gg_error_prefix(status, "layer '%s' (%s): ", it->desc.name, gg_layer_type_of(it->desc.kind)->name));
    }
    for (int i = 0; i < gg_graph_heads(plan->graph); i++) {
        if (plan->head[i].used) GG_TRY(build_head(plan, &plan->head[i], gg_graph_head(plan->graph, i)->node));
    }
    return status;
}
