/* Creating, running and asking a plan. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "nn/choose.h"
#include "nn/plan_pieces.h"

/* Creating -------------------------------------------------------------------------------------------------- */

static gg_status check_head_options(const gg_head_options *head) {
    const gg_loss_options *loss = &head->loss;
    if ((int)loss->kind < 0 || loss->kind >= GG_LOSS_COUNT)
        return gg_fail(GG_ERROR_ARGUMENT, "unknown loss %d", (int)loss->kind);
    if (!(loss->label_smoothing >= 0 && loss->label_smoothing < 1))
        return gg_fail(GG_ERROR_ARGUMENT, "label_smoothing must be at least 0 and less than 1, got %g",
                       loss->label_smoothing);
    if (!(head->weight >= 0 && head->weight < INFINITY))
        return gg_fail(GG_ERROR_ARGUMENT, "the weight of a loss must be at least 0, got %g", head->weight);
    if (head->target < 0 || head->target >= GG_MAX_FIELDS)
        return gg_fail(GG_ERROR_ARGUMENT, "targets are numbered 0 to %d, got %d", GG_MAX_FIELDS - 1, head->target);
    return GG_OK;
}

static gg_status plan_check_options(const gg_graph *graph, const gg_plan_options *options) {
    if (gg_graph_output(graph) < 0) return gg_fail(GG_ERROR_STATE, "a plan needs a finished graph");
    if (options->batch < 1 || options->batch > GG_MAX_BATCH)
        return gg_fail(GG_ERROR_ARGUMENT, "batch must be 1 to %lld, got %lld", (long long)GG_MAX_BATCH,
                       (long long)options->batch);
    for (int i = 0; i < gg_graph_heads(graph); i++) GG_TRY(check_head_options(&options->head[i]));
    if (options->dtype != GG_FLOAT32 && options->dtype != GG_BFLOAT16)
        return gg_fail(GG_ERROR_ARGUMENT, "a plan computes in float32 or bfloat16, not %s",
                       gg_dtype_name(options->dtype));
    if (options->device == NULL) return gg_fail(GG_ERROR_ARGUMENT, "a plan needs a device");
    return GG_OK;
}

/* A sample of shape (T, V) has a class a position. */
static gg_status check_loss(gg_loss_kind kind, const gg_node *output) {
    char text[GG_SHAPE_TEXT];
    const gg_shape *shape = &output->shape;
    if (kind != GG_LOSS_CROSS_ENTROPY) return GG_OK;
    if (shape->dims <= 2 && shape->size[shape->dims - 1] >= 2) return GG_OK;
    return gg_fail(
        GG_ERROR_SHAPE,
        "the cross-entropy loss needs an output of (classes) or (positions, classes), at least 2 of them, got "
        "%s from '%s'",
        gg_shape_text(shape, text), output->desc.name);
}

gg_status gg_plan_check_losses(const gg_plan *plan) {
    for (int i = 0; i < gg_graph_heads(plan->graph); i++) {
        const int node = gg_graph_head(plan->graph, i)->node;
        if (plan->head[i].used) GG_TRY(check_loss(plan->options.head[i].loss.kind, gg_graph_node(plan->graph, node)));
    }
    return GG_OK;
}

static void count_outputs(gg_plan *plan) {
    for (int i = 0; i < gg_graph_heads(plan->graph); i++) {
        const gg_shape *shape = &gg_graph_node(plan->graph, gg_graph_head(plan->graph, i)->node)->shape;
        const bool each = plan->options.head[i].loss.kind == GG_LOSS_CROSS_ENTROPY && shape->dims == 2;
        plan->head[i].positions = each ? shape->size[0] : 1;
        plan->head[i].features = gg_shape_count(shape) / plan->head[i].positions;
    }
}

static gg_status find_kernels(gg_plan *plan) {
    gg_device *device[2] = {plan->options.fallback, plan->options.device};
    for (int i = 0; i < 2; i++) {
        if (device[i] == NULL) continue;
        if (device[i]->table->loss != NULL) plan->loss_device = device[i];
        const bool narrow = plan->options.dtype == GG_FLOAT32 || device[i]->table->narrow_sum != NULL;
        if (device[i]->table->weighted_sum != NULL && narrow) plan->sum_device = device[i];
        if (device[i]->table->transpose != NULL) plan->transpose_device = device[i];
    }
    if (plan->loss_device == NULL || plan->sum_device == NULL || plan->transpose_device == NULL)
        return gg_fail(GG_ERROR_UNSUPPORTED, "neither table offers %s",
                       plan->loss_device == NULL  ? "a loss"
                       : plan->sum_device == NULL ? "weighted_sum, or narrow_sum"
                                                  : "transpose");
    return GG_OK;
}

static gg_status make_ordered(const gg_graph *graph, const gg_plan_options *options, gg_plan **out) {
    gg_status status = GG_OK;
    void *block = NULL;
    gg_plan *plan = NULL;
    *out = NULL;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof(gg_plan), "plan", &block));
    plan = block;
    plan->graph = graph;
    plan->options = *options;
    count_outputs(plan);
    GG_TRY_CLEANUP(gg_calloc((size_t)gg_graph_nodes(graph), sizeof(gg_node_state), "plan", &block));
    plan->node = block;
    const size_t parameters = (size_t)gg_graph_parameters(graph) + 1; /* at least one, so that there are arrays */
    GG_TRY_CLEANUP(gg_calloc(parameters, sizeof *plan->slot, "plan", &plan->slot));
    GG_TRY_CLEANUP(gg_calloc(parameters, sizeof *plan->parameter_at, "plan", &plan->parameter_at));
    GG_TRY_CLEANUP(gg_calloc(parameters, sizeof *plan->gradient_at, "plan", &plan->gradient_at));
    GG_TRY_CLEANUP(find_kernels(plan));
    GG_TRY_CLEANUP(gg_plan_build(plan));
    if (options->training) GG_TRY_CLEANUP(gg_plan_check_losses(plan));
    *out = plan;
    plan = NULL;
cleanup:
    gg_plan_destroy(plan);
    return status;
}

/* Where either table may be asked first, and nothing says which one: the plan that the cost model expects to be the
 * faster one, the device's if both are equal. */
gg_status gg_plan_make(const gg_graph *graph, const gg_plan_options *options, gg_plan **out) {
    gg_status status = GG_OK;
    gg_plan *plan[2] = {NULL, NULL};
    *out = NULL;
    GG_TRY_CLEANUP(plan_check_options(graph, options));
    if (!gg_choose_has_tables(options) || gg_choose_told_table(options) != NULL) {
        status = make_ordered(graph, options, out);
        goto cleanup;
    }
    for (int i = 0; i < 2; i++) {
        const gg_table_choice order = {.batch = options->batch, .fallback_first = i == 1};
        gg_plan_options own = *options;
        own.table_choice = &order;
        own.table_choices = 1;
        GG_TRY_CLEANUP(make_ordered(graph, &own, &plan[i]));
        plan[i]->options.table_choice = options->table_choice;
        plan[i]->options.table_choices = options->table_choices;
    }
    const int best = gg_plan_predicted(plan[1]) < gg_plan_predicted(plan[0]);
    *out = plan[best];
    plan[best] = NULL;
cleanup:
    for (int i = 0; i < 2; i++) gg_plan_destroy(plan[i]);
    return status;
}

gg_status gg_plan_create(const gg_graph *graph, const gg_plan_options *options, gg_plan **out) {
    gg_status status = GG_OK;
    gg_plan *plan = NULL;
    *out = NULL;
    GG_TRY_CLEANUP(gg_plan_make(graph, options, &plan));
    GG_TRY_CLEANUP(gg_plan_layout(plan));
    GG_TRY_CLEANUP(gg_plan_stage_create(plan));
    GG_TRY_CLEANUP(gg_plan_graphs_create(plan));
    for (int i = 0; i < plan->steps; i++)
        for (int pass = 0; pass < GG_PASS_COUNT; pass++)
            if (gg_step_own_op(&plan->step[i], pass)) gg_op_compile(plan->step[i].pass[pass]);
    *out = plan;
    plan = NULL;
cleanup:
    gg_plan_destroy(plan);
    return status;
}

void gg_plan_destroy(gg_plan *plan) {
    if (plan == NULL) return;
    gg_plan_graphs_destroy(plan);
    for (int i = 0; i < plan->steps; i++) {
        for (int pass = GG_PASS_COUNT - 1; pass >= 0; pass--)
            if (gg_step_own_op(&plan->step[i], pass)) gg_op_destroy(plan->step[i].pass[pass]);
    }
    gg_free(plan->node);
    gg_free(plan->value);
    gg_free(plan->step);
    gg_free(plan->buffer);
    gg_free(plan->sum);
    gg_free(plan->slot);
    gg_free(plan->parameter_at);
    gg_free(plan->gradient_at);
    gg_plan_stage_destroy(plan);
    if (plan->options.memory == NULL) gg_device_free(plan->options.device, plan->block);
    else if (plan->options.memory->user == plan) plan->options.memory->user = NULL;
    gg_free(plan);
}

/* Running --------------------------------------------------------------------------------------------------- */

/* Prepared weights stay valid while nothing overwrites them. version: as in gg_plan_evaluate.
 */
static gg_status run_version(gg_plan *plan, gg_run *run, uint64_t version) {
    run->fresh = version == 0 || version != plan->prepared_version;
    plan->prepared_version = 0;
    const gg_status status = gg_plan_run_all(plan, run);
    if (status == GG_OK && !plan->options.training) plan->prepared_version = version;
    return status;
}

static gg_status check_batch(const gg_plan *plan, const gg_plan_batch *batch) {
    for (int i = 0; i < gg_graph_heads(plan->graph); i++) {
        if (plan->head[i].used && batch->target[plan->options.head[i].target] == NULL)
            return gg_fail(GG_ERROR_ARGUMENT, "no targets given");
    }
    if (batch->carried != NULL && batch->carried_rows < plan->options.batch)
        return gg_fail(GG_ERROR_ARGUMENT, "state is carried for %lld rows, but the batch has %lld",
                       (long long)batch->carried_rows, (long long)plan->options.batch);
    return GG_OK;
}

static gg_status check_arena(const gg_plan *plan, const void *arena, const char *what) {
    if (arena != NULL || gg_graph_arena_count(plan->graph) == 0) return GG_OK;
    return gg_fail(GG_ERROR_ARGUMENT, "no %s given", what);
}

gg_status gg_plan_train(gg_plan *plan, const float *weights, float *gradients, const gg_plan_batch *batch,
                        uint64_t step, const gg_plan_hooks *hooks, gg_loss_sums *sums, gg_mark *report) {
    if (!plan->options.training) return gg_fail(GG_ERROR_STATE, "this plan was not made for training");
    GG_TRY(check_batch(plan, batch));
    GG_TRY(check_arena(plan, weights, "weights"));
    GG_TRY(check_arena(plan, gradients, "gradients"));
    gg_run run = {.weights = weights,
                  .gradients = gradients,
                  .batch = batch,
                  .step = gg_plan_stage_give(plan, batch, step),
                  .hooks = hooks,
                  .sums = sums,
                  .training = true,
                  .end = 2 * plan->steps + 1};
    GG_TRY(run_version(plan, &run, 0));
    gg_plan_stage_fetch(plan, sums);
    if (report != NULL) *report = gg_device_report(plan->options.device);
    return GG_OK;
}

gg_status gg_plan_evaluate(gg_plan *plan, const float *weights, uint64_t version, const gg_plan_batch *batch,
                           gg_loss_sums *sums) {
    GG_TRY(check_batch(plan, batch));
    GG_TRY(gg_plan_check_losses(plan));
    GG_TRY(check_arena(plan, weights, "weights"));
    gg_plan_stage_give(plan, batch, 0);
    gg_run run = {.weights = weights, .batch = batch, .sums = sums, .end = plan->steps + 1};
    GG_TRY(run_version(plan, &run, version));
    return gg_plan_stage_finish(plan, sums);
}

static gg_status predict_head(gg_plan *plan, const gg_plan_head *head, int64_t n, float *output) {
    const int64_t values = head->positions * head->features;
    const float *from = head->output_at;
    if (plan->value[head->value].format.layout != GG_LAYOUT_PLAIN) {
        plan->transpose_device->table->transpose(plan->transpose_device, plan->options.batch, values, false, from,
                                                 plan->plain_at);
        from = plan->plain_at;
    }
    return gg_device_read(plan->options.device, output, from, (size_t)n * (size_t)values * sizeof(float));
}

gg_status gg_plan_predict(gg_plan *plan, const float *weights, uint64_t version, const gg_plan_batch *batch, int64_t n,
                          float *const *output) {
    if (n < 0 || n > plan->options.batch)
        return gg_fail(GG_ERROR_ARGUMENT, "n must be 0 to the plan's batch of %lld, got %lld",
                       (long long)plan->options.batch, (long long)n);
    GG_TRY(check_arena(plan, weights, "weights"));
    const gg_plan_batch own = {
        .input = batch->input, .carried = batch->carried, .carried_rows = batch->carried_rows, .begins = batch->begins};
    gg_plan_stage_give(plan, &own, 0);
    gg_run run = {.weights = weights, .batch = &own, .end = plan->steps};
    GG_TRY(run_version(plan, &run, version));
    for (int i = 0; i < gg_graph_heads(plan->graph); i++) {
        if (plan->head[i].used && output[i] != NULL) GG_TRY(predict_head(plan, &plan->head[i], n, output[i]));
    }
    return GG_OK;
}

/* Asking ---------------------------------------------------------------------------------------------------- */

int gg_plan_inputs(const gg_plan *plan) { return gg_graph_inputs(plan->graph); }

gg_format gg_plan_input_format(const gg_plan *plan, int i) {
    const int node = gg_graph_input(plan->graph, i), value = plan->node[node].value;
    if (value != GG_NONE) return plan->value[value].format;
    return (gg_format){gg_graph_node(plan->graph, node)->dtype, GG_LAYOUT_PLAIN};
}

void gg_loss_sums_add(gg_loss_sums *to, const gg_loss_sums *more) {
    to->loss_sum += more->loss_sum;
    to->divisor += more->divisor;
    to->correct += more->correct;
    to->counted += more->counted;
}

double gg_loss_sums_mean(const gg_loss_sums *sums) {
    return sums->divisor > 0 ? sums->loss_sum / sums->divisor : (double)NAN;
}

double gg_heads_total_loss(const gg_head_options *head, int heads, const gg_loss_sums *sums, int64_t samples) {
    double total = 0;
    for (int i = 0; i < heads; i++) {
        const double divisor = sums[i].divisor, n = (double)samples;
        if (divisor <= 0) continue; /* nothing counts */
        total += (double)head[i].weight * (divisor == n ? sums[i].loss_sum : sums[i].loss_sum / divisor * n);
    }
    return total;
}

size_t gg_plan_bytes(const gg_plan *plan) { return plan->block_bytes; }

size_t gg_plan_prepared_bytes(const gg_plan *plan) {
    size_t bytes = 0;
    for (int s = 0; s < plan->steps; s++) {
        const int forward = plan->step[s].prepared[GG_PASS_FORWARD], data = plan->step[s].prepared[GG_PASS_DATA];
        if (forward != GG_NONE) bytes += plan->buffer[forward].bytes;
        if (data != GG_NONE && data != forward) bytes += plan->buffer[data].bytes;
    }
    return bytes;
}

const char *gg_plan_node_backend(const gg_plan *plan, int node) { return plan->node[node].backend; }

bool gg_plan_node_algorithm(const gg_plan *plan, int node, gg_pass pass, const char **backend,
                            gg_algorithm *algorithm) {
    for (int s = 0; s < plan->steps; s++) {
        const gg_step *step = &plan->step[s];
        if (step->node != node || step->op->desc.kind != GG_OP_CONV2D) continue;
        if (pass != GG_PASS_FORWARD && (!step->backward || (pass == GG_PASS_DATA && !step->op->desc.input_grad)))
            return false;
        *backend = step->pass[pass]->backend;
        *algorithm = step->pass[pass]->desc.algorithm;
        return true;
    }
    return false;
}
