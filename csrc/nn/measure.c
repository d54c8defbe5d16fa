#include "nn/measure.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "nn/choose.h"
#include "nn/plan_internal.h"

/* Rounds over the candidates of a pass: at least so many, and until LONG_ENOUGH seconds have passed, at most so many. A
 * round that takes long by the shortest times so far varies little: from QUARTER seconds on one is enough, from a tenth
 * on two. A candidate that took SLOW times as long as the fastest in two rounds runs no further: another process may
 * have had the processor in one. */
enum { MIN_ROUNDS = 4, MAX_ROUNDS = 12, SURE_ROUNDS = 2 };
#define LONG_ENOUGH 0.03
#define TENTH 0.1
#define QUARTER 0.25
#define SLOW 2.0

/* The operations that compute a pass of a convolution. */
typedef struct candidate_list {
    gg_op *op[GG_ALGORITHM_COUNT];
    int count;
} candidate_list;

/* Inputs and outputs of the candidates of one convolution. */
typedef struct bench {
    gg_device *device;
    candidate_list pass[GG_PASS_COUNT];
    void *input, *output, *grad_output, *grad_input, *prepared, *scratch;
    float *parameter[2], *gradient[2];
} bench;

static void bench_free(bench *b) {
    void *const all[] = {b->input,   b->output,       b->grad_output,  b->grad_input,  b->prepared,
                         b->scratch, b->parameter[0], b->parameter[1], b->gradient[0], b->gradient[1]};
    for (int pass = 0; pass < GG_PASS_COUNT; pass++)
        for (int i = 0; i < b->pass[pass].count; i++) gg_op_destroy(b->pass[pass].op[i]);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) gg_device_free(b->device, all[i]);
}

/* An array of float32 between -0.5 and 0.5, none of them denormal. Their upper halves are such bfloat16. */
static gg_status make_array(size_t bytes, void **out) {
    enum { DRAWN = 4096 };
    uint32_t state = 1;
    GG_TRY(gg_calloc(bytes + GG_READ_BEHIND, 1, "measuring a convolution", out));
    float *value = *out;
    const size_t count = bytes / sizeof(float);
    for (size_t i = 0; i < count && i < DRAWN; i++) {
        state = state * 1664525u + 1013904223u;
        value[i] = (float)(state >> 16) / 65536.0f - 0.49999f;
    }
    for (size_t i = DRAWN; i < count; i += DRAWN)
        memcpy(value + i, value, (count - i < DRAWN ? count - i : DRAWN) * sizeof(float));
    return GG_OK;
}

/* These arrays in memory of the device. */
static gg_status device_array(gg_device *device, size_t bytes, void **out) {
    gg_status status = GG_OK;
    void *made = NULL;
    GG_TRY_CLEANUP(make_array(bytes, &made));
    if (!gg_device_is_separate(device)) {
        *out = made;
        made = NULL;
        goto cleanup;
    }
    GG_TRY_CLEANUP(gg_device_alloc(device, bytes + GG_READ_BEHIND, "measuring a convolution", out));
    GG_TRY_CLEANUP(gg_device_write(device, *out, made, bytes));
cleanup:
    gg_free(made);
    return status;
}

static gg_status make_parameters(gg_device *device, size_t bytes, float **out) {
    void *made = NULL;
    const gg_status status = device_array(device, bytes, &made);
    *out = made;
    return status;
}

/* The arrays for the candidates that have been found, of the shapes of `chosen`. */
static gg_status bench_make(const gg_op *chosen, bench *b) {
    const gg_op_desc *desc = &chosen->desc;
    const size_t in = gg_format_bytes(chosen->input[0], &desc->input[0], desc->batch);
    const size_t out = gg_format_bytes(chosen->output, &desc->output, desc->batch);
    const int64_t taps = desc->conv.window.kernel[0] * desc->conv.window.kernel[1];
    const size_t weights = (size_t)(desc->input[0].size[0] * desc->output.size[0] * taps) * sizeof(float);
    const size_t bias = (size_t)desc->output.size[0] * sizeof(float);
    size_t prepared = 0, scratch = 0;
    for (int pass = 0; pass < GG_PASS_COUNT; pass++) {
        for (int i = 0; i < b->pass[pass].count; i++) {
            const gg_op *op = b->pass[pass].op[i];
            if (op->prepared_bytes > prepared) prepared = op->prepared_bytes;
            if (op->scratch_bytes > scratch) scratch = op->scratch_bytes;
        }
    }
    GG_TRY(device_array(b->device, in, &b->input));
    GG_TRY(device_array(b->device, out, &b->output));
    GG_TRY(device_array(b->device, prepared, &b->prepared));
    GG_TRY(device_array(b->device, scratch, &b->scratch));
    for (int i = 0; i < 2; i++) GG_TRY(make_parameters(b->device, i == 0 ? weights : bias, &b->parameter[i]));
    if (b->pass[GG_PASS_WEIGHTS].count + b->pass[GG_PASS_DATA].count == 0) return GG_OK;
    GG_TRY(device_array(b->device, out, &b->grad_output));
    GG_TRY(device_array(b->device, in, &b->grad_input));
    for (int i = 0; i < 2; i++) GG_TRY(make_parameters(b->device, i == 0 ? weights : bias, &b->gradient[i]));
    return GG_OK;
}

/* How often a candidate runs for one time: work that is done later costs a call and a wait besides. */
enum { RUNS_LATER = 8 };

/* The time of one run. */
static gg_status run_some(gg_op *op, gg_pass pass, const bench *b, double *seconds) {
    const gg_op_args args = {.input = {b->input},
                             .output = b->output,
                             .grad_output = b->grad_output,
                             .grad_input = {b->grad_input},
                             .parameter = (const float *const *)b->parameter,
                             .gradient = b->gradient,
                             .prepared = b->prepared,
                             .scratch = b->scratch};
    const int runs = gg_device_is_separate(b->device) ? RUNS_LATER : 1;
    const double begin = gg_clock_now();
    for (int i = 0; i < runs; i++) {
        if (pass != GG_PASS_WEIGHTS) GG_TRY(gg_op_prepare(op, &args, pass));
        if (pass == GG_PASS_FORWARD) GG_TRY(gg_op_forward(op, &args));
        if (pass == GG_PASS_WEIGHTS) GG_TRY(op->type->backward_weights(op, &args));
        if (pass == GG_PASS_DATA) GG_TRY(op->type->backward_data(op, &args));
    }
    gg_device_finish(b->device);
    *seconds = (gg_clock_now() - begin) / runs;
    return GG_OK;
}

/* The candidates of a pass that compute in the formats of `chosen`, the operation that the plan has. */
static gg_status find_candidates(const gg_plan *plan, const gg_op *chosen, gg_pass pass, candidate_list *out) {
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
            /* There "direct" is one of those with numbers. */
            if (device->table->numbered_algorithms && algorithm == GG_ALGORITHM_DIRECT) continue;
            status = device->table->create[desc.kind](device, &desc, &op);
            if (status == GG_ERROR_UNSUPPORTED) {
                status = GG_OK;
                continue;
            }
            GG_TRY(status);
            found = memcmp(&op->input[0], &chosen->input[0], sizeof(gg_format)) == 0 &&
                    memcmp(&op->output, &chosen->output, sizeof(gg_format)) == 0;
            if (found) out->op[out->count++] = op;
            else gg_op_destroy(op);
        }
    }
    return status;
}

/* By the shortest times of the rounds so far. */
static int least_rounds(const double *best, int count) {
    double round = 0;
    for (int i = 0; i < count; i++) round += best[i];
    return round > QUARTER && round < INFINITY ? 1 : round > TENTH && round < INFINITY ? SURE_ROUNDS : MIN_ROUNDS;
}

/* True if such a failure of a run says nothing about the device: a library may refuse an offered algorithm. */
static bool is_refusal(gg_device *device, gg_status status) {
    return (status == GG_ERROR_UNSUPPORTED || status == GG_ERROR_MEMORY) && gg_device_check(device) == GG_OK;
}

static void drop_candidate(candidate_list *all, double *best, int i) {
    gg_op_destroy(all->op[i]);
    --all->count;
    for (int next = i; next < all->count; next++) {
        all->op[next] = all->op[next + 1];
        best[next] = best[next + 1];
    }
}

static gg_status measure_pass(const gg_conv_key *key, gg_pass pass, bench *b, gg_conv_timing *rows, int *count) {
    gg_status status = GG_OK;
    candidate_list *all = &b->pass[pass];
    double best[GG_ALGORITHM_COUNT], fastest = INFINITY, seconds = 0;
    for (int i = 0; i < all->count; i++) best[i] = INFINITY;
    const double begin = gg_clock_now();
    for (int round = 0; all->count > 0 && round < MAX_ROUNDS; round++) {
        if (round >= least_rounds(best, all->count) && gg_clock_now() - begin > LONG_ENOUGH) break;
        for (int i = 0; i < all->count; i++) {
            if (round >= SURE_ROUNDS && best[i] > SLOW * fastest) continue;
            status = run_some(all->op[i], pass, b, &seconds);
            if (is_refusal(b->device, status)) {
                status = GG_OK;
                drop_candidate(all, best, i--);
                continue;
            }
            GG_TRY(status);
            if (seconds < best[i]) best[i] = seconds;
            if (seconds < fastest) fastest = seconds;
        }
    }
    for (int i = 0; i < all->count; i++)
        rows[(*count)++] =
            (gg_conv_timing){.key = *key, .pass = pass, .algorithm = all->op[i]->desc.algorithm, .seconds = best[i]};
    return status;
}

/* If a convolution has several candidates in one pass, all its passes are timed, so that its choice is complete. */
static gg_status measure_convolution(const gg_plan *plan, const gg_op *chosen, gg_conv_timing *rows, int *count) {
    gg_status status = GG_OK;
    const gg_conv_key key = gg_conv_key_of(&chosen->desc);
    bool several = plan->options.device->table->numbered_algorithms;
    bench b = {.device = plan->options.device};
    for (int pass = 0; pass < GG_PASS_COUNT; pass++) {
        if (pass != GG_PASS_FORWARD && !plan->options.training) continue;
        if (pass == GG_PASS_DATA && !chosen->desc.input_grad) continue;
        GG_TRY_CLEANUP(find_candidates(plan, chosen, (gg_pass)pass, &b.pass[pass]));
        several = several || b.pass[pass].count > 1;
    }
    if (!several) goto cleanup;
    GG_TRY_CLEANUP(bench_make(chosen, &b));
    for (int pass = 0; pass < GG_PASS_COUNT; pass++) GG_TRY_CLEANUP(measure_pass(&key, (gg_pass)pass, &b, rows, count));
cleanup:
    bench_free(&b);
    return status;
}

/* A plan whose layouts are those that are measured in. */
static gg_status measured_plan(const gg_graph *graph, const gg_plan_options *options, gg_plan **out) {
    gg_plan_options direct = *options;
    direct.conv_algorithm = GG_CONV_DIRECT;
    return gg_plan_make(graph, &direct, out);
}

/* The operation of the plan's first convolution of this kind; NULL: there is none. */
static const gg_op *find_convolution(const gg_plan *plan, const gg_conv_key *key) {
    for (int s = 0; s < plan->steps; s++) {
        const gg_op *op = plan->step[s].op;
        if (!gg_choose_has_algorithms(&plan->options, op)) continue;
        const gg_conv_key own = gg_conv_key_of(&op->desc);
        if (memcmp(&own, key, sizeof own) == 0) return op;
    }
    return NULL;
}

static double key_operations(const gg_conv_key *key) {
    const double inputs = (double)key->batch * (double)(key->input[0] * key->input[1] * key->input[2]);
    const double window = (double)(key->kernel[0] * key->kernel[1]);
    return inputs * (double)key->output * window / (double)(key->stride[0] * key->stride[1] * key->groups);
}

gg_status gg_measured_convolutions(const gg_graph *graph, const gg_plan_options *options, gg_conv_key **out,
                                   int *count) {
    gg_status status = GG_OK;
    gg_plan *plan = NULL;
    void *block = NULL;
    *out = NULL;
    *count = 0;
    GG_TRY_CLEANUP(measured_plan(graph, options, &plan));
    GG_TRY_CLEANUP(gg_calloc((size_t)plan->steps + 1, sizeof(gg_conv_key), "convolutions", &block));
    gg_conv_key *keys = block;
    for (int s = 0; s < plan->steps; s++) {
        if (!gg_choose_has_algorithms(options, plan->step[s].op)) continue;
        const gg_conv_key key = gg_conv_key_of(&plan->step[s].op->desc);
        bool seen = false;
        for (int i = 0; i < *count; i++) seen = seen || memcmp(&keys[i], &key, sizeof key) == 0;
        if (seen) continue;
        int at = (*count)++;
        for (; at > 0 && key_operations(&keys[at - 1]) < key_operations(&key); at--) keys[at] = keys[at - 1];
        keys[at] = key;
    }
    *out = keys;
    block = NULL;
cleanup:
    gg_plan_destroy(plan);
    gg_free(block);
    return status;
}

gg_status gg_measure_algorithms(const gg_graph *graph, const gg_plan_options *options, const gg_conv_key *wanted,
                                int wants, double seconds, gg_conv_timing **out, int *count) {
    gg_status status = GG_OK;
    gg_plan *plan = NULL;
    void *block = NULL;
    *out = NULL;
    *count = 0;
    const double begin = gg_clock_now();
    GG_TRY_CLEANUP(measured_plan(graph, options, &plan));
    GG_TRY_CLEANUP(gg_calloc((size_t)(wants * GG_PASS_COUNT * GG_ALGORITHM_COUNT + 1), sizeof(gg_conv_timing),
                             "measured convolutions", &block));
    gg_conv_timing *rows = block;
    for (int i = 0; i < wants && gg_clock_now() - begin < seconds; i++) {
        const gg_op *chosen = find_convolution(plan, &wanted[i]);
        const int before = *count;
        if (chosen != NULL) status = measure_convolution(plan, chosen, rows, count);
        if (status == GG_ERROR_MEMORY) {
            *count = before;
            status = GG_OK;
        }
        GG_TRY_CLEANUP(status);
    }
    *out = rows;
    block = NULL;
cleanup:
    gg_plan_destroy(plan);
    gg_free(block);
    return status;
}

/* Which table comes first --------------------------------------------------------------------------------------- */

/* The orders alternate, so that other load of the machine slows down both. A round makes at
 * least TABLES_MIN_STEPS steps with an order, and goes on for TABLES_SECONDS. It stops early after TABLES_TOO_LONG
 * seconds, and after a quarter of the budget, since there are four such runs. The second round is skipped if the first
 * took ROUND_LONG seconds and one order took CLEAR times as long as the other: times that long vary little. */
enum { TABLES_ROUNDS = 2, TABLES_MIN_STEPS = 2 };
#define TABLES_SECONDS 0.25
#define TABLES_TOO_LONG 1.0
#define ROUND_LONG 2.0
#define CLEAR 1.25

/* Arguments shared by the steps of both orders. */
typedef struct step_bench {
    const gg_graph *graph;
    const gg_plan_options *options;
    const float *weights;
    const gg_conv_choices *algorithms; /* of either order; NULL means the options' */
    void *targets, *gradients;
    gg_plan_batch batch;
    double budget, deadline;
    double shortest[2]; /* INFINITY: no step has been completed */
} step_bench;

static gg_status fill_inputs(gg_plan *plan, const gg_graph *graph, int64_t batch) {
    gg_status status = GG_OK;
    void *made = NULL;
    for (int i = 0; i < gg_plan_inputs(plan); i++) {
        const gg_format format = gg_plan_input_format(plan, i);
        const gg_shape *shape = &gg_graph_node(graph, gg_graph_input(graph, i))->shape;
        const size_t bytes = gg_format_bytes(format, shape, batch);
        if (gg_plan_input(plan, i) == NULL) continue;
        GG_TRY_CLEANUP(make_array(bytes, &made));
        for (size_t n = 0; format.dtype == GG_INT32 && n < bytes / sizeof(int32_t); n++)
            ((int32_t *)made)[n] = (int32_t)gg_graph_integers(graph, i).first;
        memcpy(gg_plan_input(plan, i), made, bytes);
        gg_free(made);
        made = NULL;
    }
cleanup:
    gg_free(made);
    return status;
}

/* A hook of the plan: even the first step ends with the operation in which the time is spent. */
static gg_status stop_at_deadline(void *context) {
    const step_bench *b = context;
    return gg_clock_now() < b->deadline ? GG_OK : GG_ERROR_CANCELLED;
}

/* *Lowers *shortest to the shortest step of a plan with these options. GG_ERROR_CANCELLED: the
 * time was spent in the middle of a step. */
static gg_status time_steps(step_bench *b, const gg_plan_options *options, double *shortest) {
    gg_status status = GG_OK;
    gg_plan *plan = NULL;
    const gg_plan_hooks hooks = {.context = b, .poll = stop_at_deadline};
    GG_TRY_CLEANUP(gg_plan_create(b->graph, options, &plan));
    GG_TRY_CLEANUP(fill_inputs(plan, b->graph, options->batch));
    const double begin = gg_clock_now();
    double before = begin;
    for (int step = 0;; step++) {
        GG_TRY_CLEANUP(gg_plan_train(plan, b->weights, b->gradients, &b->batch, 0, &hooks, NULL, NULL));
        gg_device_finish(options->device);
        const double now = gg_clock_now(), spent = now - begin;
        if (now - before < *shortest) *shortest = now - before;
        before = now;
        if (spent > TABLES_TOO_LONG || spent > b->budget / (2 * TABLES_ROUNDS)) break;
        if (step + 1 >= TABLES_MIN_STEPS && spent > TABLES_SECONDS) break;
    }
cleanup:
    gg_plan_destroy(plan);
    return status;
}

/* With one of the orders. */
static gg_status time_order(step_bench *b, bool fallback_first) {
    const gg_table_choice choice = {.batch = b->options->batch, .fallback_first = fallback_first};
    gg_plan_options own = *b->options;
    own.training = true;
    own.table_choice = &choice;
    own.table_choices = 1;
    if (b->algorithms != NULL) {
        own.conv_choice = b->algorithms[fallback_first].choice;
        own.conv_choices = b->algorithms[fallback_first].count;
    }
    return time_steps(b, &own, &b->shortest[fallback_first]);
}

/* Run 1 is expected to take as long as run 0 has; the second round as long as the first. */
static bool wants_run(const step_bench *b, int run) {
    const double spent = gg_clock_now() - (b->deadline - b->budget);
    const double faster = fmin(b->shortest[0], b->shortest[1]), slower = fmax(b->shortest[0], b->shortest[1]);
    if (run == 0) return b->budget > 0;
    if (run == 2 && spent > ROUND_LONG && slower > CLEAR * faster) return false;
    return run > 2 || 2 * spent < b->budget;
}

/* Zeros are classes, tokens and numbers alike. */
static size_t targets_bytes(const gg_graph *graph, int64_t batch) {
    size_t most = 0;
    for (int i = 0; i < gg_graph_heads(graph); i++) {
        const size_t count = (size_t)gg_shape_count(&gg_graph_node(graph, gg_graph_head(graph, i)->node)->shape);
        if (count > most) most = count;
    }
    return most * (size_t)batch * sizeof(float);
}

static void step_bench_free(step_bench *b) {
    gg_free(b->targets);
    gg_device_free(b->options->device, b->gradients);
}

/* Also where it fails, b is to be freed. */
static gg_status step_bench_make(step_bench *b, double seconds) {
    const char *what = "measuring a step";
    GG_TRY(gg_calloc(targets_bytes(b->graph, b->options->batch) + GG_READ_BEHIND, 1, what, &b->targets));
    GG_TRY(
        gg_device_alloc(b->options->device, (gg_graph_arena_count(b->graph) + 1) * sizeof(float), what, &b->gradients));
    for (int i = 0; i < GG_MAX_FIELDS; i++) b->batch.target[i] = b->targets;
    b->budget = seconds;
    b->deadline = gg_clock_now() + seconds;
    b->shortest[0] = b->shortest[1] = INFINITY;
    return GG_OK;
}

gg_status gg_measure_tables(const gg_graph *graph, const gg_plan_options *options, const float *weights,
                            const gg_conv_choices algorithms[2], double seconds, gg_tables_timing *out) {
    gg_status status = GG_OK;
    step_bench b = {.graph = graph, .options = options, .weights = weights, .algorithms = algorithms};
    *out = (gg_tables_timing){.outcome = GG_TABLES_ONE};
    if (!gg_choose_has_tables(options)) goto cleanup;
    GG_TRY_CLEANUP(step_bench_make(&b, seconds));
    for (int run = 0; run < 2 * TABLES_ROUNDS && wants_run(&b, run); run++) {
        status = time_order(&b, run % 2 == 1);
        if (status == GG_ERROR_CANCELLED) break;
        GG_TRY_CLEANUP(status);
    }
    status = GG_OK;
    out->outcome = GG_TABLES_NO_TIME;
    if (b.shortest[0] == INFINITY || b.shortest[1] == INFINITY) goto cleanup;
    out->outcome = GG_TABLES_MEASURED;
    memcpy(out->seconds, b.shortest, sizeof b.shortest);
cleanup:
    step_bench_free(&b);
    if (status == GG_ERROR_MEMORY) {
        out->outcome = GG_TABLES_NO_MEMORY;
        status = GG_OK;
    }
    return status;
}

gg_status gg_measure_step(const gg_graph *graph, const gg_plan_options *options, const float *weights,
                          double *seconds) {
    gg_status status = GG_OK;
    step_bench b = {.graph = graph, .options = options, .weights = weights};
    *seconds = INFINITY;
    if (gg_device_is_separate(options->device))
        GG_FAIL_CLEANUP(GG_ERROR_UNSUPPORTED,
                        "a step is timed on a CPU alone: here the batch would have to go up first");
    GG_TRY_CLEANUP(step_bench_make(&b, INFINITY));
    GG_TRY_CLEANUP(time_steps(&b, options, seconds));
cleanup:
    step_bench_free(&b);
    return status;
}
