/* The operations of a plan, and the times of their passes. */
#include <math.h>
#include <string.h>

#include "nn/measure.h"
#include "nn/plan_internal.h"

void gg_plan_set_timing(gg_plan *plan, bool on) {
    plan->timing = on;
    for (int s = 0; on && s < plan->steps; s++)
        for (int pass = 0; pass < GG_PASS_COUNT; pass++) plan->step[s].seconds[pass] = 0;
    if (on) plan->loss_seconds = 0;
}

int gg_plan_steps(const gg_plan *plan) { return plan->steps; }

double gg_plan_loss_seconds(const gg_plan *plan) { return plan->loss_seconds; }

/* How often the pass computes as many products as forward: for the gradients of the input, and of the parameters. */
static int pass_products(const gg_step *step, gg_pass pass) {
    if (pass == GG_PASS_FORWARD) return 1;
    if (!step->backward) return 0;
    const bool weights = step->parameters > 0 && step->pass[GG_PASS_WEIGHTS]->type->backward_weights != NULL;
    if (pass == GG_PASS_WEIGHTS) return weights;
    const gg_op *op = step->pass[GG_PASS_DATA];
    if (op->type->backward_data == NULL) return 0;
    /* An LSTM of tokens has the gradient of the rows that they name in place of the input's. */
    const bool rows = op->desc.kind == GG_OP_LSTM && op->desc.lstm.numbers > 0;
    return (op->desc.input_grad || rows) + (step->parameters > 0 && !weights);
}

/* Min bytes of the pass: each number moved once. */
static double pass_bytes(const gg_plan *plan, const gg_step *step, gg_pass pass, int products) {
    double input = 0, parameters = 0;
    const double output = (double)plan->value[step->output].bytes;
    for (int i = 0; i < step->inputs; i++) input += (double)plan->value[step->input[i]].bytes;
    for (int i = 0; i < step->parameters; i++)
        parameters += (double)gg_graph_parameter(plan->graph, plan->slot[step->first_slot + i])->count * sizeof(float);
    return pass == GG_PASS_DATA ? output + products * (input + parameters) : input + output + parameters;
}

gg_cost_query gg_plan_step_query(const gg_plan *plan, int number, gg_pass pass) {
    const gg_op *op = plan->step[number].pass[pass];
    return (gg_cost_query){.desc = &op->desc,
                           .native = strcmp(op->backend, "native") == 0,
                           .input = op->input[0].layout,
                           .output = op->output.layout,
                           .algorithm = op->desc.algorithm,
                           .pass = pass,
                           .slow = (op->slow >> pass & 1u) != 0,
                           .isa = plan->options.device->isa};
}

double gg_plan_predicted(const gg_plan *plan) {
    const gg_plan_options *o = &plan->options;
    const gg_cost_model *model = o->costs != NULL ? o->costs : gg_cost_model_of(o->device->isa);
    double seconds = 0;
    for (int s = 0; s < plan->steps; s++) {
        for (int pass = 0; pass < GG_PASS_COUNT; pass++) {
            if (pass != GG_PASS_FORWARD && !o->training) break;
            if (pass_products(&plan->step[s], (gg_pass)pass) == 0) continue;
            const gg_cost_query query = gg_plan_step_query(plan, s, (gg_pass)pass);
            const double one = gg_cost_seconds(model, &query);
            if (one < INFINITY) seconds += one;
        }
    }
    return seconds;
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
        one->products = pass_products(step, (gg_pass)pass);
        if (one->products == 0) continue;
        one->backend = step->pass[pass]->backend;
        one->algorithm = step->pass[pass]->desc.algorithm;
        one->seconds = step->seconds[pass];
        one->bytes = pass_bytes(plan, step, (gg_pass)pass, one->products);
        one->with_update = pass == GG_PASS_WEIGHTS && step->skip_weight_gradient;
    }
    return profile;
}
