#include "nn/measure.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "nn/choose.h"
#include "nn/plan_internal.h"

/* Rounds over the candidates of a pass: at least so many, and until LONG_ENOUGH seconds have passed, at most so many. A
 * pass that takes long varies little: after TOO_LONG seconds no further round begins. */
enum { LEAST_ROUNDS = 3, MOST_ROUNDS = 12 };
#define LONG_ENOUGH 0.03
#define TOO_LONG 0.3

/* What the candidates of one pass run on. */
typedef struct bench {
    void *input, *output, *grad_output, *grad_input, *prepared, *scratch;
    float *parameter[2], *gradient[2];
} bench;

static void bench_free(bench *b) {
    void *const all[] = {b->input,   b->output,       b->grad_output,  b->grad_input,  b->prepared,
                         b->scratch, b->parameter[0], b->parameter[1], b->gradient[0], b->gradient[1]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) gg_free(all[i]);
}

/* Numbers between -0.5 and 0.5, none of them denormal. */
static gg_status numbers(size_t bytes, void **out) {
    gg_status status = GG_OK;
    uint32_t state = 1;
    GG_TRY(gg_calloc(bytes + GG_READ_BEHIND, 1, "measuring a convolution", out));
    float *value = *out;
    for (size_t i = 0; i < bytes / sizeof(float); i++) {
        state = state * 1664525u + 1013904223u;
        value[i] = (float)(state >> 16) / 65536.0f - 0.49999f;
    }
cleanup:
    return status;
}

static gg_status bench_make(gg_op *const *op, int ops, bench *b) {
    gg_status status = GG_OK;
    const gg_op_desc *desc = &op[0]->desc;
    const size_t in = gg_format_bytes(op[0]->input[0], &desc->input[0], desc->batch);
    const size_t out = gg_format_bytes(op[0]->output, &desc->output, desc->batch);
    const size_t weights = (size_t)(desc->input[0].size[0] * desc->output.size[0] * 9) * sizeof(float);
    const size_t bias = (size_t)desc->output.size[0] * sizeof(float);
    size_t prepared = 0, scratch = 0;
    void *made = NULL;
    for (int i = 0; i < ops; i++) {
        if (op[i]->prepared_bytes > prepared) prepared = op[i]->prepared_bytes;
        if (op[i]->scratch_bytes > scratch) scratch = op[i]->scratch_bytes;
    }
    GG_TRY(numbers(in, &b->input));
    GG_TRY(numbers(out, &b->output));
    GG_TRY(numbers(out, &b->grad_output));
    GG_TRY(numbers(in, &b->grad_input));
    GG_TRY(numbers(prepared, &b->prepared));
    GG_TRY(numbers(scratch, &b->scratch));
    for (int i = 0; i < 2; i++) {
        GG_TRY(numbers(i == 0 ? weights : bias, &made));
        b->parameter[i] = made;
        made = NULL;
        GG_TRY(numbers(i == 0 ? weights : bias, &made));
        b->gradient[i] = made;
        made = NULL;
    }
cleanup:
    return status;
}

static gg_status run_once(gg_op *op, gg_pass pass, const bench *b, double *seconds) {
    gg_status status = GG_OK;
    const gg_op_args args = {.input = {b->input},
                             .output = b->output,
                             .grad_output = b->grad_output,
                             .grad_input = {b->grad_input},
                             .parameter = (const float *const *)b->parameter,
                             .gradient = b->gradient,
                             .prepared = b->prepared,
                             .scratch = b->scratch};
    const double begin = gg_clock_now();
    if (pass != GG_PASS_WEIGHTS) GG_TRY(gg_op_prepare(op, &args, pass));
    if (pass == GG_PASS_FORWARD) GG_TRY(gg_op_forward(op, &args));
    if (pass == GG_PASS_WEIGHTS) GG_TRY(op->type->backward_weights(op, &args));
    if (pass == GG_PASS_DATA) GG_TRY(op->type->backward_data(op, &args));
    *seconds = gg_clock_now() - begin;
cleanup:
    return status;
}

/* The candidates of a pass that compute in the formats of `chosen`, the operation that the plan has. */
static gg_status candidates(const gg_plan *plan, const gg_op *chosen, gg_pass pass, gg_op *out[GG_ALGORITHM_COUNT],
                            int *count) {
    gg_status status = GG_OK;
    for (int algorithm = 0; algorithm < GG_ALGORITHM_COUNT; algorithm++) {
        bool found = false;
        for (int i = 0; i < plan->devices && !found; i++) {
            gg_device *device = plan->order[i];
            gg_op_desc desc = chosen->desc;
            gg_op *op = NULL;
            desc.algorithm = (gg_algorithm)algorithm;
            desc.passes = 1u << pass;
            desc.offered[0] = chosen->input[0];
            if (device->table->create[desc.kind] == NULL) continue;
            status = device->table->create[desc.kind](device, &desc, &op);
            if (status == GG_ERROR_UNSUPPORTED) {
                status = GG_OK;
                continue;
            }
            GG_TRY(status);
            found = memcmp(&op->input[0], &chosen->input[0], sizeof(gg_format)) == 0 &&
                    memcmp(&op->output, &chosen->output, sizeof(gg_format)) == 0;
            if (found) out[(*count)++] = op;
            else gg_op_destroy(op);
        }
    }
cleanup:
    return status;
}

static gg_status measure_pass(const gg_plan *plan, const gg_op *chosen, gg_pass pass, gg_conv_timing *rows,
                              int *count) {
    gg_status status = GG_OK;
    gg_op *op[GG_ALGORITHM_COUNT] = {NULL};
    double best[GG_ALGORITHM_COUNT], seconds = 0;
    int ops = 0;
    bench b = {0};
    GG_TRY(candidates(plan, chosen, pass, op, &ops));
    if (ops < 2) goto cleanup;
    GG_TRY(bench_make(op, ops, &b));
    for (int i = 0; i < ops; i++) best[i] = INFINITY;
    const double begin = gg_clock_now();
    for (int round = 0; round < MOST_ROUNDS; round++) {
        const double passed = gg_clock_now() - begin;
        if (passed > TOO_LONG || (round >= LEAST_ROUNDS && passed > LONG_ENOUGH)) break;
        for (int i = 0; i < ops; i++) {
            GG_TRY(run_once(op[i], pass, &b, &seconds));
            if (seconds < best[i]) best[i] = seconds;
        }
    }
    for (int i = 0; i < ops; i++)
        rows[(*count)++] = (gg_conv_timing){
            .key = gg_conv_key_of(&chosen->desc), .pass = pass, .algorithm = op[i]->desc.algorithm, .seconds = best[i]};
cleanup:
    for (int i = 0; i < ops; i++) gg_op_destroy(op[i]);
    bench_free(&b);
    return status;
}

gg_status gg_measure_algorithms(const gg_graph *graph, const gg_plan_options *options, const gg_conv_key *known,
                                int knowns, gg_conv_timing **out, int *count) {
    gg_status status = GG_OK;
    gg_plan *plan = NULL;
    gg_plan_options direct = *options;
    void *block = NULL;
    *out = NULL;
    *count = 0;
    direct.conv_algorithm = GG_CONV_DIRECT;
    direct.training = true;
    GG_TRY(gg_plan_make(graph, &direct, &plan));
    GG_TRY(gg_calloc((size_t)(plan->steps * GG_PASS_COUNT * GG_ALGORITHM_COUNT + 1), sizeof(gg_conv_timing),
                     "measured convolutions", &block));
    gg_conv_timing *rows = block;
    for (int s = 0; s < plan->steps; s++) {
        const gg_step *step = &plan->step[s];
        const gg_op *chosen = step->op;
        if (!gg_choose_winograd_possible(&chosen->desc)) continue;
        const gg_conv_key key = gg_conv_key_of(&chosen->desc);
        bool seen = false;
        for (int i = 0; i < knowns; i++) seen = seen || memcmp(&known[i], &key, sizeof key) == 0;
        for (int i = 0; i < *count; i++) seen = seen || memcmp(&rows[i].key, &key, sizeof key) == 0;
        for (int pass = 0; !seen && pass < GG_PASS_COUNT; pass++) {
            if (pass == GG_PASS_DATA && !chosen->desc.input_grad) continue;
            GG_TRY(measure_pass(plan, chosen, (gg_pass)pass, rows, count));
        }
    }
    *out = rows;
    block = NULL;
cleanup:
    gg_plan_destroy(plan);
    gg_free(block);
    if (status != GG_OK) *count = 0;
    return status;
}
