#include "train/limits.h"

#include <inttypes.h>

/* The classes of a head's loss. */
static int64_t classes_of(const gg_graph *graph, int head) {
    const gg_shape *output = &gg_graph_node(graph, gg_graph_head(graph, head)->node)->shape;
    return output->size[output->dims - 1];
}

/* True if a head can be trained on this number as a class. */
static bool is_target_of(const gg_graph *graph, const gg_head_options *head, int h, int64_t value) {
    const gg_loss_options *loss = &head[h].loss;
    return (value >= 0 && value < classes_of(graph, h)) || (loss->ignores && value == loss->ignore_index);
}

/* Limits a target to numbers that all of its heads can use. The head with the fewest classes decides: these, and the
 * number that it ignores, if the others can use that one. */
static void limit_target(const gg_graph *graph, const gg_head_options *head, int number, gg_field *target) {
    int narrowest = -1;
    for (int h = 0; h < gg_graph_heads(graph); ++h) {
        if (head[h].target != number || head[h].loss.kind != GG_LOSS_CROSS_ENTROPY) continue;
        if (narrowest < 0 || classes_of(graph, h) < classes_of(graph, narrowest)) narrowest = h;
    }
    if (narrowest < 0) return;
    const int64_t classes = classes_of(graph, narrowest);
    if (target->classes == 0 || classes < target->classes) target->classes = classes;
    target->ignores = head[narrowest].loss.ignores;
    target->ignored = head[narrowest].loss.ignore_index;
    for (int h = 0; target->ignores && h < gg_graph_heads(graph); ++h)
        if (head[h].target == number && head[h].loss.kind == GG_LOSS_CROSS_ENTROPY)
            target->ignores = is_target_of(graph, head, h, target->ignored);
}

gg_dataset gg_limited_set(const gg_graph *graph, const gg_head_options *head, const gg_dataset *set) {
    gg_dataset limited = *set;
    for (int i = 0; i < set->inputs && i < gg_graph_inputs(graph); ++i)
        if (set->field[i].tokens) {
            const gg_integers allowed = gg_graph_integers(graph, i);
            limited.field[i].first = allowed.first;
            limited.field[i].classes = allowed.end;
        }
    for (int i = 0; head != NULL && i < set->targets; ++i)
        limit_target(graph, head, i, &limited.field[set->inputs + i]);
    return limited;
}

static gg_status check_input(const gg_graph *graph, const gg_dataset *set, int i) {
    const gg_node *input = gg_graph_node(graph, gg_graph_input(graph, i));
    const gg_field *field = &set->field[i];
    char have[GG_SHAPE_TEXT], want[GG_SHAPE_TEXT];
    if (!gg_shape_equal(&field->shape, &input->shape))
        return gg_fail(GG_ERROR_SHAPE, "data set: a sample has shape %s, the network's input '%s' is %s",
                       gg_shape_text(&field->shape, have), input->desc.name, gg_shape_text(&input->shape, want));
    if (field->tokens != (input->dtype == GG_INT32))
        return gg_fail(GG_ERROR_TYPE, "data set: samples are %s, the network's input '%s' takes %s",
                       field->tokens ? "tokens" : gg_dtype_name(field->dtype), input->desc.name,
                       input->dtype == GG_INT32 ? "tokens" : gg_dtype_name(input->dtype));
    return GG_OK;
}

static gg_status check_target(const gg_graph *graph, const gg_head_options *options, int head, const gg_dataset *set) {
    const gg_shape *output = &gg_graph_node(graph, gg_graph_head(graph, head)->node)->shape;
    const bool classes = options->loss.kind == GG_LOSS_CROSS_ENTROPY;
    char want[GG_SHAPE_TEXT];
    if (options->target >= set->targets)
        return gg_fail(GG_ERROR_SHAPE, "data set: %d targets, a loss of the network wants target %d", set->targets,
                       options->target);
    const gg_field *target = gg_dataset_target(set, options->target);
    const int64_t values = gg_shape_count(output), wanted = classes ? values / classes_of(graph, head) : values;
    if (target->dtype != (classes ? GG_INT32 : GG_FLOAT32))
        return gg_fail(GG_ERROR_TYPE, "data set: targets are %s; %s", gg_dtype_name(target->dtype),
                       classes ? "cross_entropy takes integer classes (int32)" : "this loss takes float32");
    if (gg_field_values(target) != wanted)
        return gg_fail(GG_ERROR_SHAPE,
                       "data set: a sample has %" PRId64
                       " target values, the network's output of shape %s wants %" PRId64,
                       gg_field_values(target), gg_shape_text(output, want), wanted);
    return GG_OK;
}

gg_status gg_check_limits(const gg_graph *graph, const gg_head_options *head, const gg_dataset *set) {
    GG_TRY(gg_dataset_check(set));
    if (set->inputs != gg_graph_inputs(graph))
        return gg_fail(GG_ERROR_SHAPE, "data set: %d inputs, the network has %d", set->inputs, gg_graph_inputs(graph));
    for (int i = 0; i < set->inputs; ++i) GG_TRY(check_input(graph, set, i));
    for (int h = 0; head != NULL && h < gg_graph_heads(graph); ++h) GG_TRY(check_target(graph, &head[h], h, set));
    const gg_dataset limited = gg_limited_set(graph, head, set);
    return gg_dataset_check_classes(&limited);
}
