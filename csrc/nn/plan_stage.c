/* Inputs and results of a plan's steps on a device with memory of its own, at fixed addresses, so that the work can be
 * captured. Inputs, targets and weights of samples come from the batch, which the device has; weights of classes are
 * written once. The step's number goes through host memory that the device shares, and the results of losses come back
 * through such memory. In the host's memory nothing of this is needed: inputs are written where they are read. */
#include <string.h>

#include "base/memory.h"
#include "nn/plan_internal.h"

#define RESULTS_BYTES (GG_MAX_FIELDS * sizeof(gg_loss_result))

static bool head_has_classes(const gg_plan *plan, int head) {
    return plan->options.head[head].loss.kind == GG_LOSS_CROSS_ENTROPY;
}

static size_t target_bytes(const gg_plan *plan, int head) {
    const gg_plan_head *it = &plan->head[head];
    const int64_t values = it->positions * (head_has_classes(plan, head) ? 1 : it->features);
    return (size_t)(plan->options.batch * values) * sizeof(float); /* of int32 as many */
}

static size_t class_weight_bytes(const gg_plan *plan, int head) {
    const bool has_some = plan->options.head[head].loss.class_weights != NULL;
    return has_some ? (size_t)plan->head[head].features * sizeof(float) : 0;
}

static const gg_value *input_value(const gg_plan *plan, int i) {
    const int value = plan->node[gg_graph_input(plan->graph, i)].value;
    return value != GG_NONE ? &plan->value[value] : NULL;
}

static size_t take_bytes(size_t *used, size_t bytes) {
    const size_t at = *used;
    *used += gg_aligned(bytes);
    return at;
}

static void place_stage(gg_plan *plan) {
    gg_plan_stage *stage = &plan->stage;
    stage->results = take_bytes(&stage->bytes, RESULTS_BYTES);
    for (int i = 0; i < gg_graph_heads(plan->graph); i++) {
        if (!plan->head[i].used) continue;
        stage->target[i] = take_bytes(&stage->bytes, target_bytes(plan, i));
        stage->class_weights[i] = take_bytes(&stage->bytes, class_weight_bytes(plan, i));
    }
    stage->sample_weights = take_bytes(&stage->bytes, (size_t)plan->options.batch * sizeof(float));
    stage->step = take_bytes(&stage->bytes, sizeof(uint64_t));
}

gg_status gg_plan_stage_create(gg_plan *plan) {
    gg_plan_stage *stage = &plan->stage;
    gg_device *device = plan->options.device;
    if (!gg_device_is_separate(device)) return GG_OK;
    place_stage(plan);
    GG_TRY(gg_device_alloc_host(device, RESULTS_BYTES + GG_STAGED_STEPS * sizeof(uint64_t), "results of the plan",
                                &stage->host));
    GG_TRY(gg_device_alloc(device, stage->bytes, "batch of the plan", &stage->device));
    for (int i = 0; i < gg_graph_heads(plan->graph); i++)
        if (plan->head[i].used)
            GG_TRY(gg_device_write(device, stage->device + stage->class_weights[i],
                                   plan->options.head[i].loss.class_weights, class_weight_bytes(plan, i)));
    return GG_OK;
}

void gg_plan_stage_destroy(gg_plan *plan) {
    if (plan->stage.host != NULL) gg_device_free_host(plan->options.device, plan->stage.host);
    if (plan->stage.device != NULL) gg_device_free(plan->options.device, plan->stage.device);
}

void *gg_plan_input(gg_plan *plan, int i) {
    return gg_device_is_separate(plan->options.device) ? NULL : plan->input_at[i];
}

static void copy_to_stage(gg_plan *plan, size_t at, const void *from, size_t bytes) {
    if (from != NULL) gg_device_copy(plan->options.device, GG_QUEUE_COMPUTE, plan->stage.device + at, from, bytes);
}

/* Into memory of the device that is the same in each step. */
static void stage_step(gg_plan *plan, uint64_t step) {
    gg_plan_stage *stage = &plan->stage;
    gg_device *device = plan->options.device;
    uint64_t *number = (uint64_t *)(void *)(stage->host + RESULTS_BYTES) + stage->next;
    gg_device_wait(device, stage->read[stage->next]);
    *number = step;
    copy_to_stage(plan, stage->step, number, sizeof *number);
    stage->read[stage->next] = gg_device_mark(device, GG_QUEUE_COMPUTE);
    stage->next = (stage->next + 1) % GG_STAGED_STEPS;
}

const uint64_t *gg_plan_stage_give(gg_plan *plan, const gg_plan_batch *batch, uint64_t step) {
    gg_plan_stage *stage = &plan->stage;
    gg_device *device = plan->options.device;
    plan->step_number = step;
    if (stage->device == NULL) return &plan->step_number;
    for (int i = 0; i < gg_graph_inputs(plan->graph); i++) {
        const gg_value *input = input_value(plan, i);
        if (input == NULL) continue;
        gg_gather_args args = batch->input[i];
        args.n = plan->options.batch;
        args.wanted = input->format.dtype;
        args.layout = input->format.layout;
        args.channels = input->shape.size[0];
        args.out = plan->input_at[i];
        device->table->gather(device, &args);
    }
    for (int i = 0; i < gg_graph_heads(plan->graph); i++) {
        if (plan->head[i].used)
            copy_to_stage(plan, stage->target[i], batch->target[plan->options.head[i].target], target_bytes(plan, i));
    }
    copy_to_stage(plan, stage->sample_weights, batch->sample_weights, (size_t)plan->options.batch * sizeof(float));
    stage_step(plan, step);
    return (void *)(stage->device + stage->step);
}

gg_plan_targets gg_plan_stage_targets(const gg_plan *plan, const gg_plan_batch *batch) {
    const gg_plan_stage *stage = &plan->stage;
    const bool staged = stage->device != NULL;
    gg_plan_targets out = {.sample_weights = batch->sample_weights};
    for (int i = 0; i < gg_graph_heads(plan->graph); i++) {
        const gg_head_options *head = &plan->options.head[i];
        if (!plan->head[i].used) continue;
        out.target[i] = staged ? stage->device + stage->target[i] : batch->target[head->target];
        out.class_weights[i] = head->loss.class_weights;
        if (staged && out.class_weights[i] != NULL)
            out.class_weights[i] = (void *)(stage->device + stage->class_weights[i]);
    }
    if (staged && out.sample_weights != NULL) out.sample_weights = (void *)(stage->device + stage->sample_weights);
    return out;
}

gg_loss_result *gg_plan_stage_results(gg_plan *plan, gg_loss_sums *sums) {
    gg_plan_stage *stage = &plan->stage;
    return stage->device == NULL ? sums : (void *)(stage->device + stage->results);
}

void gg_plan_stage_fetch(gg_plan *plan, gg_loss_sums *sums) {
    const gg_plan_stage *stage = &plan->stage;
    if (stage->device == NULL || sums == NULL) return;
    gg_device_copy(plan->options.device, GG_QUEUE_COMPUTE, sums, stage->device + stage->results,
                   (size_t)gg_graph_heads(plan->graph) * sizeof *sums);
}

gg_status gg_plan_stage_finish(gg_plan *plan, gg_loss_sums *sums) {
    gg_plan_stage *stage = &plan->stage;
    gg_device *device = plan->options.device;
    if (stage->device == NULL) return GG_OK;
    gg_loss_sums *fetched = (void *)stage->host;
    gg_plan_stage_fetch(plan, fetched);
    const gg_mark report = gg_device_report(device);
    gg_device_wait(device, report);
    if (sums != NULL) memcpy(sums, fetched, (size_t)gg_graph_heads(plan->graph) * sizeof *sums);
    return gg_device_check_report(device, report);
}
