/* The work of a run at each of its times. */
#include "base/clock.h"
#include "base/memory.h"
#include "nn/plan_pieces.h"

static gg_status plan_poll(const gg_plan_hooks *hooks, const gg_step *step) {
    /* Reorders belong to the node behind them, or to the loss. */
    if (hooks == NULL || hooks->poll == NULL || step->op->desc.kind == GG_OP_REORDER) return GG_OK;
    return hooks->poll(hooks->context);
}

static void plan_enter(const gg_plan_hooks *hooks, const gg_step *step) {
    if (hooks != NULL && hooks->enter != NULL) hooks->enter(hooks->context, step->node);
}

static void plan_leave(const gg_plan_hooks *hooks, const gg_step *step, const char *what) {
    if (hooks == NULL || hooks->leave == NULL) return;
    hooks->leave(hooks->context, step->node, step->op->desc.kind == GG_OP_REORDER ? "reorder" : what);
}

static gg_status name_failure(const gg_plan *plan, const gg_step *step, gg_status status, const char *pass) {
    const gg_node *node = gg_graph_node(plan->graph, step->node);
    return gg_error_prefix(status, "layer '%s' (%s), %s: ", node->desc.name, gg_layer_type_of(node->desc.kind)->name,
                           pass);
}

static gg_vectors plan_vectors(gg_format format, const gg_shape *shape, int64_t batch, const void *data) {
    return (gg_vectors){.data = data,
                        .dtype = format.dtype,
                        .layout = format.layout,
                        .batch = batch,
                        .features = gg_shape_count(shape)};
}

/* One that is applied to each position of a sample is never computed elsewhere. */
bool gg_run_is_watched(const gg_run *run, const gg_step *step) {
    return run->hooks != NULL && run->hooks->input != NULL && step->backward && step->op->desc.kind == GG_OP_LINEAR &&
           step->op->desc.input[0].dims == 1;
}

static gg_status plan_offer_input(const gg_plan *plan, gg_step *step, const gg_run *run) {
    const gg_op *op = step->op;
    const gg_vectors input =
        plan_vectors(op->input[0], &op->desc.input[0], plan->options.batch, step->forward_args.input[0]);
    step->skip_weight_gradient = false;
    if (!gg_run_is_watched(run, step)) return GG_OK;
    return run->hooks->input(run->hooks->context, step->layer[0], &input, &step->skip_weight_gradient);
}

static gg_status give_error(const gg_plan *plan, const gg_step *step, const gg_plan_hooks *hooks) {
    const gg_op *op = step->op;
    const gg_vectors error =
        plan_vectors(op->output, &op->desc.output, plan->options.batch, step->backward_args.grad_output);
    return step->skip_weight_gradient ? hooks->error(hooks->context, step->layer[0], &error) : GG_OK;
}

/* Where a step's parameter lies in every arena. */
static size_t plan_offset(const gg_plan *plan, const gg_step *step, int parameter) {
    return gg_graph_parameter(plan->graph, plan->slot[step->first_slot + parameter])->offset;
}

/* The state with which the samples of a batch begin; it lies behind that of the steps before. */
static float *carried_state(const gg_step *step, const gg_plan_batch *batch) {
    if (step->carried == 0 || batch == NULL || batch->carried == NULL) return NULL;
    return batch->carried + step->carried_before * batch->carried_rows;
}

/* Zeroes the state where sequences begin. */
static void begin_carried_state(const gg_plan *plan, const gg_step *step, const gg_plan_batch *batch) {
    float *rows = carried_state(step, batch);
    for (int64_t i = 0; rows != NULL && batch->begins != NULL && i < plan->options.batch; i++) {
        if (batch->begins[i])
            gg_device_zero(plan->options.device, GG_QUEUE_COMPUTE, rows + i * step->carried,
                           (size_t)step->carried * sizeof(float));
    }
}

static double timing_begins(const gg_plan *plan) {
    if (plan->timing) gg_device_finish(plan->options.device);
    return plan->timing ? gg_clock_now() : 0;
}

static void timing_ends(const gg_plan *plan, double begin, double *seconds) {
    if (plan->timing) gg_device_finish(plan->options.device);
    if (plan->timing) *seconds += gg_clock_now() - begin;
}

static gg_status step_backward(const gg_plan *plan, gg_step *step) {
    gg_op_args *args = &step->backward_args;
    gg_op *weights = step->pass[GG_PASS_WEIGHTS], *data = step->pass[GG_PASS_DATA];
    double begin = timing_begins(plan);
    if (weights->type->backward_weights != NULL) GG_TRY(weights->type->backward_weights(weights, args));
    timing_ends(plan, begin, &step->seconds[GG_PASS_WEIGHTS]);
    if (data->type->backward_data == NULL) return GG_OK;
    begin = timing_begins(plan);
    args->prepared = step->prepared_at[GG_PASS_DATA];
    if (step->prepared[GG_PASS_DATA] != step->prepared[GG_PASS_FORWARD])
        GG_TRY(gg_op_prepare(data, args, GG_PASS_DATA));
    GG_TRY(data->type->backward_data(data, args));
    timing_ends(plan, begin, &step->seconds[GG_PASS_DATA]);
    return GG_OK;
}

static void add_gradients(const gg_plan *plan, int first, int count) {
    gg_device *device = plan->sum_device;
    const float scale[2] = {1, 1};
    for (int i = first; i < first + count; i++) {
        const gg_sum *sum = &plan->sum[i];
        const int skip = sum->add ? 0 : 1;
        if (sum->dtype == GG_BFLOAT16) {
            const uint16_t *source[2] = {sum->target_at, sum->term_at};
            device->table->narrow_sum(device, sum->count, 2 - skip, source + skip, scale, NULL, sum->target_at);
        } else {
            const float *source[2] = {sum->target_at, sum->term_at};
            device->table->weighted_sum(device, sum->count, 2 - skip, source + skip, scale, sum->target_at);
        }
    }
}

static void run_loss(gg_plan *plan, int number, const gg_plan_targets *targets, bool training, gg_loss_result *result) {
    const gg_plan_head *head = &plan->head[number];
    const gg_head_options *options = &plan->options.head[number];
    gg_loss_args args = {
        .loss = options->loss,
        .layout = plan->value[head->value].format.layout,
        .batch = plan->options.batch,
        .positions = head->positions,
        .features = head->features,
        .prediction = head->output_at,
        .targets = targets->target[number],
        .sample_weights = targets->sample_weights,
        .gradient = training ? head->gradient_at : NULL,
        .result = result,
    };
    args.loss.class_weights = targets->class_weights[number];
    plan->loss_device->table->loss(plan->loss_device, &args);
    if (args.gradient != NULL && options->weight != 1) {
        const size_t count = gg_aligned(plan->value[head->value].bytes) / sizeof(float);
        const float *source[1] = {args.gradient};
        plan->sum_device->table->weighted_sum(plan->sum_device, count, 1, source, &options->weight, args.gradient);
    }
    if (training) add_gradients(plan, head->first_sum, head->sums);
}

/* In the host's memory the results are in `sums` then; else gg_plan_stage_fetch brings them. */
static void run_losses(gg_plan *plan, const gg_plan_batch *batch, bool training, gg_loss_sums *sums) {
    gg_loss_sums unwanted[GG_MAX_FIELDS];
    const double begin = timing_begins(plan);
    const gg_plan_targets targets = gg_plan_stage_targets(plan, batch);
    gg_loss_result *results = gg_plan_stage_results(plan, sums != NULL ? sums : unwanted);
    for (int i = 0; i < gg_graph_heads(plan->graph); i++) {
        if (plan->stage.device == NULL) results[i] = (gg_loss_result){0};
        if (plan->head[i].used) run_loss(plan, i, &targets, training, &results[i]);
    }
    timing_ends(plan, begin, &plan->loss_seconds);
}

/* ---- forward ---- */

/* The weights of the step's layers are current then. */
static gg_status need_layers(const gg_step *step, const gg_run *run) {
    const gg_plan_hooks *hooks = run->hooks;
    if (hooks == NULL || hooks->need == NULL) return GG_OK;
    for (int i = 0; i < step->layers; i++) GG_TRY(hooks->need(hooks->context, step->layer[i]));
    return GG_OK;
}

static gg_status before_forward(gg_plan *plan, const gg_run *run, gg_step *step) {
    plan_enter(run->hooks, step);
    GG_TRY(plan_offer_input(plan, step, run));
    GG_TRY(need_layers(step, run));
    begin_carried_state(plan, step, run->batch);
    return GG_OK;
}

static gg_status compute_forward(gg_plan *plan, const gg_run *run, gg_step *step) {
    gg_op_args *args = &step->forward_args;
    for (int i = 0; i < step->parameters; i++)
        plan->parameter_at[step->first_slot + i] = run->weights + plan_offset(plan, step, i);
    args->step = run->step;
    args->evaluate = !run->training;
    args->carried = carried_state(step, run->batch);
    const double begin = timing_begins(plan);
    if (run->fresh) GG_TRY(gg_op_prepare(step->op, args, GG_PASS_FORWARD));
    GG_TRY(gg_op_forward(step->op, args));
    timing_ends(plan, begin, &step->seconds[GG_PASS_FORWARD]);
    return GG_OK;
}

static gg_status after_forward(const gg_run *run, const gg_step *step) {
    plan_leave(run->hooks, step, "forward");
    return plan_poll(run->hooks, step);
}

/* ---- backward ---- */

static gg_status compute_backward(gg_plan *plan, const gg_run *run, gg_step *step) {
    for (int i = 0; i < step->parameters; i++) {
        const bool skip = step->skip_weight_gradient && i == GG_PARAMETER_WEIGHT;
        plan->gradient_at[step->first_slot + i] = skip ? NULL : run->gradients + plan_offset(plan, step, i);
    }
    step->backward_args.step = run->step;
    GG_TRY(step_backward(plan, step));
    const double begin = timing_begins(plan);
    add_gradients(plan, step->first_sum, step->sums);
    timing_ends(plan, begin, &step->seconds[GG_PASS_DATA]);
    return GG_OK;
}

static gg_status after_backward(const gg_plan *plan, const gg_run *run, const gg_step *step) {
    const gg_plan_hooks *hooks = run->hooks;
    GG_TRY(give_error(plan, step, hooks));
    for (int i = step->layers - 1; hooks != NULL && hooks->ready != NULL && i >= 0; i--)
        GG_TRY(hooks->ready(hooks->context, step->layer[i]));
    plan_leave(hooks, step, "backward");
    return plan_poll(hooks, step);
}

/* ---- times ---- */

/* NULL: that of the losses, or of a step that does not go backward. */
static gg_step *step_at(const gg_plan *plan, int time) {
    if (time == plan->steps) return NULL;
    gg_step *step = &plan->step[time < plan->steps ? time : 2 * plan->steps - time];
    return time < plan->steps || step->backward ? step : NULL;
}

gg_status gg_run_before(gg_plan *plan, const gg_run *run, int time) {
    gg_step *step = step_at(plan, time);
    if (step == NULL) return GG_OK;
    if (time < plan->steps) return before_forward(plan, run, step);
    plan_enter(run->hooks, step);
    return GG_OK;
}

gg_status gg_run_compute(gg_plan *plan, const gg_run *run, int time) {
    gg_status status = GG_OK;
    gg_step *step = step_at(plan, time);
    const bool forward = time < plan->steps;
    if (time == plan->steps) run_losses(plan, run->batch, run->gradients != NULL, run->sums);
    if (step == NULL) return GG_OK;
    status = forward ? compute_forward(plan, run, step) : compute_backward(plan, run, step);
    return status == GG_OK ? GG_OK : name_failure(plan, step, status, forward ? "forward" : "backward");
}

gg_status gg_run_after(gg_plan *plan, const gg_run *run, int time) {
    const gg_step *step = step_at(plan, time);
    if (step == NULL) return GG_OK;
    return time < plan->steps ? after_forward(run, step) : after_backward(plan, run, step);
}
