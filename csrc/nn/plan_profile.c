/* What the operations of a plan are, and what their passes took. */
#include "nn/plan_internal.h"

void gg_plan_set_timing(gg_plan *plan, bool on) {
    plan->timing = on;
    for (int s = 0; on && s < plan->steps; s++)
        for (int pass = 0; pass < GG_PASS_COUNT; pass++) plan->step[s].seconds[pass] = 0;
    if (on) plan->loss_seconds = 0;
}

int gg_plan_steps(const gg_plan *plan) { return plan->steps; }

double gg_plan_loss_seconds(const gg_plan *plan) { return plan->loss_seconds; }

static bool pass_runs(const gg_step *step, gg_pass pass) {
    const gg_op *op = step->pass[pass];
    if (pass == GG_PASS_FORWARD) return true;
    if (!step->backward) return false;
    return (pass == GG_PASS_WEIGHTS ? op->type->backward_weights : op->type->backward_data) != NULL;
}

/* What the pass has to read and write, if each number is moved once. */
static double pass_bytes(const gg_plan *plan, const gg_step *step, gg_pass pass) {
    const bool joint = !pass_runs(step, GG_PASS_WEIGHTS); /* with GG_PASS_DATA */
    double input = 0, parameters = 0;
    const double output = (double)plan->value[step->output].bytes;
    for (int i = 0; i < step->inputs; i++) input += (double)plan->value[step->input[i]].bytes;
    for (int i = 0; i < step->parameters; i++)
        parameters += (double)gg_graph_parameter(plan->graph, plan->slot[step->first_slot + i])->count * sizeof(float);
    if (pass != GG_PASS_DATA) return input + output + parameters;
    if (step->parameters > 0 && joint) return 2 * input + output + 2 * parameters;
    return input + output + parameters;
}

gg_step_profile gg_plan_step_profile(const gg_plan *plan, int number) {
    const gg_step *step = &plan->step[number];
    const bool reorder = step->group.nodes == 0; /* belongs to the node before or behind it */
    gg_step_profile profile = {.node = reorder ? &step->node : step->group.node,
                               .nodes = reorder ? 1 : step->group.nodes,
                               .kind = step->op->desc.kind,
                               .input = step->op->input[0],
                               .output = step->op->output};
    for (int pass = 0; pass < GG_PASS_COUNT; pass++) {
        gg_pass_profile *one = &profile.pass[pass];
        one->run = pass_runs(step, (gg_pass)pass);
        if (!one->run) continue;
        one->backend = step->pass[pass]->backend;
        one->algorithm = step->pass[pass]->desc.algorithm;
        one->seconds = step->seconds[pass];
        one->bytes = pass_bytes(plan, step, (gg_pass)pass);
    }
    return profile;
}
