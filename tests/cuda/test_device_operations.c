/* Operations of sequences on the stand-in, which GOSSIPGRAD_CUDA_LIBRARY names, beside the CPU's: LSTM, attention,
 * multi-head attention, embeddings; forward and backward, several times with one operation. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>

#include "cpu/cpu_backend.h"
#include "cuda/cuda_api.h"
#include "loaded_standin.h"

enum { MAX_PARAMETERS = 16, RUNS = 2 };

static long (*standin_kernel_failures)(void);

static gg_device *native, *cuda;

static void is_clean(const char *name) {
    char text[1 << 12] = "";
    const int wrong = standin_violations(text, sizeof text);
    if (!check_count(wrong == 0, __FILE__, __LINE__)) fprintf(stderr, "%s: violations: %s\n", name, text);
    CHECK_INT(standin_kernel_failures(), 0);
}

/* ------------------------------------------------------------------------------------------------ values */

static uint64_t drawn;

static float draw(float least, float most) {
    drawn = drawn * 6364136223846793005u + 1442695040888963407u;
    return least + (most - least) * (float)(drawn >> 40) / (float)(1 << 24);
}

static float *floats(int64_t count, float least, float most) {
    float *all = malloc((size_t)(count + 1) * sizeof *all);
    if (all == NULL) abort();
    for (int64_t i = 0; i < count; ++i) all[i] = draw(least, most);
    return all;
}

static uint16_t narrow(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static float widen(uint16_t value) {
    const uint32_t bits = (uint32_t)value << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

/* ------------------------------------------------------------------------------------------------ running */

/* An operation, and what it is run with. Arrays are float32, PLAIN; numbers: the int32 input, the last one. */
typedef struct problem {
    const char *name;
    gg_op_desc desc;
    int parameters;
    int64_t parameter_count[MAX_PARAMETERS], carried_count;
    float *parameter[MAX_PARAMETERS], *input, *grad_output;
    int32_t *numbers;
    bool evaluate; /* the first run */
    bool no_carried;
} problem;

/* What it gives. */
typedef struct answer {
    float *output[RUNS], *grad_input[RUNS], *gradient[RUNS][MAX_PARAMETERS], *carried[RUNS];
    gg_dtype reads, gives;
} answer;

static int64_t input_count(const problem *p) { return p->desc.batch * gg_shape_count(&p->desc.input[0]); }
static int64_t output_count(const problem *p) { return p->desc.batch * gg_shape_count(&p->desc.output); }

/* Memory of the device with these values in the wanted type; NULL: garbage. */
static void *put(gg_device *device, int64_t count, gg_dtype dtype, const void *values) {
    const size_t bytes = (size_t)count * gg_dtype_size(dtype);
    void *block = NULL, *host = malloc(bytes + 1);
    if (host == NULL) abort();
    CHECK_OK(gg_device_alloc(device, bytes > 0 ? bytes : 1, "a test's values", &block));
    memset(host, 0x7f, bytes);
    if (values != NULL && dtype != GG_BFLOAT16) memcpy(host, values, bytes);
    for (int64_t i = 0; i < count && values != NULL && dtype == GG_BFLOAT16; ++i)
        ((uint16_t *)host)[i] = narrow(((const float *)values)[i]);
    CHECK_OK(gg_device_write(device, block, host, bytes));
    free(host);
    return block;
}

static float *get(gg_device *device, int64_t count, gg_dtype dtype, const void *block) {
    const size_t bytes = (size_t)count * gg_dtype_size(dtype);
    void *host = malloc(bytes + 1);
    float *values = malloc((size_t)(count + 1) * sizeof *values);
    if (host == NULL || values == NULL) abort();
    CHECK_OK(gg_device_read(device, host, block, bytes));
    for (int64_t i = 0; i < count; ++i)
        values[i] = dtype == GG_BFLOAT16 ? widen(((uint16_t *)host)[i]) : ((float *)host)[i];
    free(host);
    return values;
}

static bool run_on(gg_device *device, const problem *p, answer *out) {
    gg_op *op = NULL;
    const int64_t behind = GG_READ_BEHIND / (int64_t)sizeof(float), inputs = input_count(p), outputs = output_count(p);
    const bool tokens = p->desc.offered[0].dtype == GG_INT32;
    if (!CHECK_OK(device->table->create[p->desc.kind](device, &p->desc, &op))) return false;
    for (int i = 0; i < p->desc.inputs; ++i) CHECK_INT(op->input[i].layout, GG_LAYOUT_PLAIN);
    *out = (answer){.reads = op->input[0].dtype, .gives = op->output.dtype};
    float *parameter[MAX_PARAMETERS], *gradient[MAX_PARAMETERS], *zeros = calloc((size_t)p->carried_count + 1, 4);
    void *blocks[64];
    int used = 0;
#define BLOCK(count, dtype, values) (blocks[used++] = put(device, count, dtype, values))
    for (int i = 0; i < p->parameters; ++i) {
        parameter[i] = BLOCK(p->parameter_count[i], GG_FLOAT32, p->parameter[i]);
        gradient[i] = BLOCK(p->parameter_count[i], GG_FLOAT32, NULL);
    }
    float *carried = BLOCK(p->carried_count, GG_FLOAT32, zeros);
    gg_op_args args = {.rank = 3, .parameter = (const float *const *)parameter, .gradient = gradient};
    float *padded = calloc((size_t)(inputs + behind), sizeof *padded);
    if (!tokens) memcpy(padded, p->input, (size_t)inputs * sizeof *padded);
    if (tokens) args.input[0] = BLOCK(inputs, GG_INT32, p->numbers);
    else args.input[0] = BLOCK(inputs + behind, op->input[0].dtype, padded);
    if (p->desc.inputs > 1) args.input[1] = BLOCK(p->desc.batch, GG_INT32, p->numbers);
    args.output = BLOCK(outputs + behind, op->output.dtype, NULL);
    args.saved = BLOCK((int64_t)op->saved_bytes / 4, GG_FLOAT32, NULL);
    args.scratch = BLOCK((int64_t)op->scratch_bytes / 4, GG_FLOAT32, NULL);
    void *forward = BLOCK((int64_t)op->prepared_bytes / 4, GG_FLOAT32, NULL);
    void *data = BLOCK((int64_t)op->prepared_bytes / 4, GG_FLOAT32, NULL);
    void *grad_output = BLOCK(outputs + behind, op->output.dtype, NULL), *grad_input = NULL;
    if (p->desc.input_grad && !tokens) grad_input = BLOCK(inputs + behind, op->input[0].dtype, NULL);
    float *dy = calloc((size_t)(outputs + behind), sizeof *dy);
    memcpy(dy, p->grad_output, (size_t)outputs * sizeof *dy);
    void *error = BLOCK(outputs + behind, op->output.dtype, dy);
    uint64_t *step = BLOCK(sizeof *step / sizeof(float), GG_FLOAT32, NULL);
    args.step = step;
    for (int run = 0; run < RUNS; ++run) {
        const uint64_t number = 1000 + (uint64_t)run;
        CHECK_OK(gg_device_write(device, step, &number, sizeof number));
        args.evaluate = p->evaluate && run == 0;
        args.carried = p->carried_count > 0 && !p->no_carried ? carried : NULL;
        args.prepared = forward;
        CHECK_OK(gg_op_prepare(op, &args, GG_PASS_FORWARD));
        CHECK_OK(gg_op_forward(op, &args));
        args.carried = NULL;
        out->output[run] = get(device, outputs, op->output.dtype, args.output);
        out->carried[run] = get(device, p->carried_count, GG_FLOAT32, carried);
        if (!p->desc.training || args.evaluate) continue;
        args.prepared = data;
        gg_device_copy(device, GG_QUEUE_COMPUTE, grad_output, error,
                       (size_t)(outputs + behind) * gg_dtype_size(op->output.dtype));
        args.grad_output = grad_output;
        args.grad_input[0] = grad_input;
        CHECK_OK(gg_op_backward(op, &args));
        if (grad_input != NULL) out->grad_input[run] = get(device, inputs, op->input[0].dtype, grad_input);
        for (int i = 0; i < p->parameters; ++i)
            out->gradient[run][i] = get(device, p->parameter_count[i], GG_FLOAT32, gradient[i]);
    }
    CHECK_OK(gg_device_check(device));
    gg_op_destroy(op);
    for (int i = 0; i < used; ++i) gg_device_free(device, blocks[i]);
    free(padded), free(dy), free(zeros);
    return true;
}

static void near(const problem *p, const char *what, int64_t count, const float *wanted, const float *got,
                 double bound) {
    double difference = 0, norm = 1e-20;
    CHECK_INT(wanted == NULL, got == NULL);
    if (wanted == NULL || got == NULL) return;
    for (int64_t i = 0; i < count; ++i) {
        difference += ((double)wanted[i] - (double)got[i]) * ((double)wanted[i] - (double)got[i]);
        norm += (double)wanted[i] * (double)wanted[i];
    }
    if (!check_count(sqrt(difference / norm) <= bound, __FILE__, __LINE__))
        fprintf(stderr, "%s: %s differs by %g\n", p->name, what, sqrt(difference / norm));
}

static void compare(const problem *p, double bound) {
    answer wanted, got;
    gg_op_desc floats_only = p->desc;
    problem plain = *p;
    for (int i = 0; i < plain.desc.inputs; ++i)
        if (plain.desc.offered[i].dtype == GG_BFLOAT16) floats_only.offered[i].dtype = GG_FLOAT32;
    floats_only.dtype = GG_FLOAT32;
    plain.desc = floats_only;
    if (!run_on(native, &plain, &wanted) || !run_on(cuda, p, &got)) return;
    const bool narrow_one = p->desc.dtype == GG_BFLOAT16;
    if (p->desc.offered[0].dtype != GG_INT32) CHECK_INT(got.reads, narrow_one ? GG_BFLOAT16 : GG_FLOAT32);
    CHECK_INT(got.gives, narrow_one ? GG_BFLOAT16 : GG_FLOAT32);
    for (int run = 0; run < RUNS; ++run) {
        near(p, "the output", output_count(p), wanted.output[run], got.output[run], bound);
        near(p, "what is carried", p->carried_count, wanted.carried[run], got.carried[run], bound);
        near(p, "the error", input_count(p), wanted.grad_input[run], got.grad_input[run], 4 * bound);
        for (int i = 0; i < p->parameters; ++i)
            near(p, "a gradient", p->parameter_count[i], wanted.gradient[run][i], got.gradient[run][i], 4 * bound);
    }
    is_clean(p->name);
}

static problem make_problem(const char *name, gg_op_kind kind, int64_t batch, gg_shape input, gg_shape output) {
    problem p = {.name = name,
                 .desc = {.kind = kind,
                          .batch = batch,
                          .inputs = 1,
                          .input = {input},
                          .output = output,
                          .training = true,
                          .input_grad = true,
                          .bias = true}};
    drawn = (uint64_t)batch * 77 + (uint64_t)gg_shape_count(&output);
    p.desc.offered[0] = (gg_format){GG_FLOAT32, GG_LAYOUT_PLAIN};
    p.input = floats(input_count(&p), -1, 1);
    p.grad_output = floats(output_count(&p), -1, 1);
    return p;
}

static void add_parameter(problem *p, int64_t count, float most) {
    p->parameter[p->parameters] = floats(count, -most, most);
    p->parameter_count[p->parameters++] = count;
}

/* In bfloat16 all values that the operation is given have few bits, so that only its own rounding differs. */
static void make_narrow(problem *p) {
    p->desc.dtype = GG_BFLOAT16;
    if (p->desc.offered[0].dtype == GG_FLOAT32) p->desc.offered[0].dtype = GG_BFLOAT16;
    for (int64_t i = 0; i < input_count(p); ++i) p->input[i] = widen(narrow(p->input[i]));
    for (int64_t i = 0; i < output_count(p); ++i) p->grad_output[i] = widen(narrow(p->grad_output[i]));
    for (int i = 0; i < p->parameters; ++i)
        for (int64_t j = 0; j < p->parameter_count[i]; ++j) p->parameter[i][j] = widen(narrow(p->parameter[i][j]));
}

static void free_problem(problem *p) {
    for (int i = 0; i < p->parameters; ++i) free(p->parameter[i]);
    free(p->input), free(p->grad_output), free(p->numbers);
}

/* ------------------------------------------------------------------------------------------------ LSTM */

typedef struct lstm_case {
    const char *name;
    int64_t batch, positions, inputs, hidden, layers;
    bool bias, stateful;
    float probability;
    bool evaluate, inference, no_carried, no_input_grad;
} lstm_case;

static problem lstm_problem(const lstm_case *c) {
    problem p = make_problem(c->name, GG_OP_LSTM, c->batch, (gg_shape){2, {c->positions, c->inputs}},
                             (gg_shape){2, {c->positions, c->hidden}});
    for (int64_t layer = 0; layer < c->layers; ++layer) {
        add_parameter(&p, 4 * c->hidden * (layer == 0 ? c->inputs : c->hidden), 0.7f);
        add_parameter(&p, 4 * c->hidden * c->hidden, 0.7f);
        for (int i = 0; i < 2 && c->bias; ++i) add_parameter(&p, 4 * c->hidden, 0.5f);
    }
    p.desc.lstm.layers = c->layers;
    p.desc.bias = c->bias;
    p.desc.lstm.stateful = c->stateful;
    p.desc.probability = c->probability;
    p.desc.seed = 99;
    p.desc.training = !c->inference;
    p.desc.input_grad = !c->no_input_grad && !c->inference;
    p.carried_count = c->stateful ? 2 * c->batch * c->layers * c->hidden : 0;
    p.evaluate = c->evaluate;
    p.no_carried = c->no_carried;
    return p;
}

static const lstm_case lstms[] = {
    {.name = "one of each", .batch = 1, .positions = 1, .inputs = 1, .hidden = 1, .layers = 1, .bias = true},
    {.name = "one layer", .batch = 3, .positions = 4, .inputs = 5, .hidden = 7, .layers = 1, .bias = true},
    {.name = "three layers", .batch = 3, .positions = 4, .inputs = 5, .hidden = 3, .layers = 3, .bias = true},
    {.name = "no biases", .batch = 2, .positions = 5, .inputs = 3, .hidden = 4, .layers = 2},
    {.name = "no error",
     .batch = 2,
     .positions = 3,
     .inputs = 3,
     .hidden = 4,
     .layers = 2,
     .bias = true,
     .no_input_grad = true},
    {.name = "carried",
     .batch = 3,
     .positions = 4,
     .inputs = 5,
     .hidden = 3,
     .layers = 2,
     .bias = true,
     .stateful = true},
    {.name = "nothing carried",
     .batch = 3,
     .positions = 4,
     .inputs = 5,
     .hidden = 3,
     .layers = 2,
     .bias = true,
     .stateful = true,
     .no_carried = true},
    {.name = "dropout",
     .batch = 3,
     .positions = 4,
     .inputs = 5,
     .hidden = 3,
     .layers = 3,
     .bias = true,
     .probability = 0.4f},
    {.name = "all",
     .batch = 3,
     .positions = 4,
     .inputs = 5,
     .hidden = 3,
     .layers = 3,
     .bias = true,
     .stateful = true,
     .probability = 0.4f,
     .evaluate = true},
    {.name = "dropout, no error",
     .batch = 2,
     .positions = 4,
     .inputs = 5,
     .hidden = 3,
     .layers = 2,
     .probability = 0.4f,
     .no_input_grad = true},
    {.name = "inference",
     .batch = 3,
     .positions = 4,
     .inputs = 5,
     .hidden = 3,
     .layers = 3,
     .bias = true,
     .stateful = true,
     .probability = 0.4f,
     .inference = true},
};

static void test_lstm(bool narrow_one) {
    for (size_t i = 0; i < sizeof lstms / sizeof *lstms; ++i) {
        problem p = lstm_problem(&lstms[i]);
        const long before = standin_count("cudnnRNNForward");
        if (narrow_one) make_narrow(&p);
        compare(&p, narrow_one ? 1e-2 : 2e-6);
        CHECK(standin_count("cudnnRNNForward") > before);
        free_problem(&p);
    }
}

/* What cuDNN does not offer is computed by the own form. */
static void test_refused_lstm(void) {
    static const char *const functions[] = {"cudnnSetRNNDescriptor_v8", "cudnnGetRNNTempSpaceSizes",
                                            "cudnnSetRNNDataDescriptor", "cudnnGetRNNWeightSpaceSize"};
    for (size_t i = 0; i < sizeof functions / sizeof *functions; ++i) {
        problem p = lstm_problem(&lstms[8]);
        standin_begin(1);
        standin_plant(functions[i], 1, 3001, false, false);
        compare(&p, 2e-6);
        CHECK_INT(standin_count("cudnnRNNForward"), 0);
        free_problem(&p);
    }
    gg_op *op = NULL;
    problem p = lstm_problem(&lstms[1]);
    standin_begin(1);
    standin_plant("cudnnSetRNNDescriptor_v8", 1, 4000, false, false); /* fails otherwise */
    CHECK_FAILS(cuda->table->create[GG_OP_LSTM](cuda, &p.desc, &op), GG_ERROR_BACKEND, "cudnnSetRNNDescriptor_v8");
    free_problem(&p);
    standin_begin(1);
}

/* ------------------------------------------------------------------------------------------------ attention */

typedef struct attention_case {
    const char *name;
    int64_t batch, positions, heads, size;
    bool causal, lengths;
    float probability;
    bool evaluate, inference, no_input_grad;
} attention_case;

static void add_lengths(problem *p, int64_t positions) {
    p->desc.inputs = 2;
    p->desc.input[1] = (gg_shape){1, {1}};
    p->desc.offered[1] = (gg_format){GG_INT32, GG_LAYOUT_PLAIN};
    p->numbers = malloc((size_t)p->desc.batch * sizeof *p->numbers);
    for (int64_t n = 0; n < p->desc.batch; ++n) p->numbers[n] = 1 + (int32_t)(n * 5 % positions);
}

static problem attention_problem(const attention_case *c, bool projections) {
    const int64_t all = c->heads * c->size, outer = projections ? all + 3 : 3 * all;
    problem p =
        make_problem(c->name, projections ? GG_OP_MULTI_HEAD : GG_OP_ATTENTION, c->batch,
                     (gg_shape){2, {c->positions, outer}}, (gg_shape){2, {c->positions, projections ? outer : all}});
    if (projections) {
        add_parameter(&p, 3 * all * outer, 0.5f);
        add_parameter(&p, 3 * all, 0.5f);
        add_parameter(&p, all * outer, 0.5f);
        add_parameter(&p, outer, 0.5f);
    }
    p.desc.attention.heads = c->heads;
    p.desc.attention.head_size = c->size;
    p.desc.attention.causal = c->causal;
    p.desc.probability = c->probability;
    p.desc.seed = 99;
    p.desc.training = !c->inference;
    p.desc.input_grad = !c->inference && !c->no_input_grad;
    p.evaluate = c->evaluate;
    if (c->lengths) add_lengths(&p, c->positions);
    return p;
}

static const attention_case attentions[] = {
    {.name = "one key", .batch = 1, .positions = 1, .heads = 1, .size = 1},
    {.name = "short", .batch = 2, .positions = 3, .heads = 2, .size = 4},
    {.name = "groups", .batch = 3, .positions = 9, .heads = 4, .size = 3, .causal = true},
    {.name = "groups and lengths",
     .batch = 5,
     .positions = 8,
     .heads = 3,
     .size = 4,
     .lengths = true,
     .probability = 0.3f},
    {.name = "blocks",
     .batch = 2,
     .positions = 40,
     .heads = 2,
     .size = 5,
     .causal = true,
     .probability = 0.3f,
     .evaluate = true},
    {.name = "blocks and lengths", .batch = 3, .positions = 70, .heads = 1, .size = 8, .causal = true, .lengths = true},
    {.name = "blocks of one", .batch = 1, .positions = 530, .heads = 1, .size = 2, .probability = 0.1f},
    {.name = "attention alone",
     .batch = 3,
     .positions = 9,
     .heads = 2,
     .size = 4,
     .lengths = true,
     .inference = true,
     .probability = 0.3f},
    {.name = "no error", .batch = 3, .positions = 9, .heads = 2, .size = 4, .no_input_grad = true},
};

static void test_attention(bool projections, bool narrow_one) {
    for (size_t i = 0; i < sizeof attentions / sizeof *attentions; ++i) {
        problem p = attention_problem(&attentions[i], projections);
        if (narrow_one) make_narrow(&p);
        compare(&p, narrow_one ? 1e-2 : 2e-6);
        free_problem(&p);
    }
}

/* One call for each product, whatever heads and samples there are. */
static void test_calls_of_attention(void) {
    const attention_case few = {.name = "few", .batch = 3, .positions = 3, .heads = 4, .size = 2};
    problem p = attention_problem(&few, false);
    answer got;
    standin_begin(1);
    CHECK(run_on(cuda, &p, &got));
    CHECK_INT(standin_count("cublasLtMatmul"), RUNS * (2 + 5));
    free_problem(&p);
}

/* ------------------------------------------------------------------------------------------------ poolings */

/* A sample whose values 32 bits cannot count. */
static void test_too_large_a_pool(int64_t size, int64_t padding, gg_status wanted) {
    gg_op_desc desc = {.kind = GG_OP_MAX_POOL2D, .batch = 1, .inputs = 1, .training = true};
    gg_op *op = NULL;
    desc.input[0] = (gg_shape){3, {2048, size, size}};
    desc.pool = (gg_window){.kernel = {2, 2}, .stride = {1, 1}, .padding = {padding, padding}, .dilation = {1, 1}};
    const int64_t outputs = gg_window_output(&desc.pool, 0, size, false);
    desc.output = (gg_shape){3, {2048, outputs, outputs}};
    if (wanted == GG_OK) CHECK_OK(library->backend->create[desc.kind](cuda, &desc, &op));
    else CHECK_FAILS(library->backend->create[desc.kind](cuda, &desc, &op), wanted, "2147483647 values");
    gg_op_destroy(op);
}

/* ------------------------------------------------------------------------------------------------ embeddings */

static void test_embedding(int64_t batch, int64_t positions, int64_t numbers, int64_t features, bool narrow_one) {
    problem p = make_problem("embedding", GG_OP_EMBEDDING, batch, (gg_shape){1, {positions}},
                             (gg_shape){2, {positions, features}});
    p.desc.offered[0].dtype = GG_INT32;
    p.desc.embedding.numbers = numbers;
    p.desc.input_grad = false;
    add_parameter(&p, numbers * features, 1);
    p.numbers = malloc((size_t)(batch * positions) * sizeof *p.numbers);
    for (int64_t i = 0; i < batch * positions; ++i) p.numbers[i] = (int32_t)draw(0, (float)numbers - 0.01f);
    if (narrow_one) make_narrow(&p);
    compare(&p, narrow_one ? 4e-3 : 1e-6);
    free_problem(&p);
}

static void test_positions(int64_t batch, int64_t positions, int64_t numbers, int64_t features, bool narrow_one) {
    const gg_shape shape = {2, {positions, features}};
    problem p = make_problem("position embedding", GG_OP_POSITION_EMBEDDING, batch, shape, shape);
    p.desc.embedding.numbers = numbers;
    add_parameter(&p, numbers * features, 1);
    if (narrow_one) make_narrow(&p);
    compare(&p, narrow_one ? 4e-3 : 1e-6);
    free_problem(&p);
}

int main(void) {
    void *handle = load_standin();
    if (handle == NULL) return CHECK_RESULT;
    find(handle, "gg_standin_kernel_failures", &standin_kernel_failures);
    const gg_device_options options = {.threads = 1, .isa = GG_ISA_SCALAR};
    standin_begin(1);
    CHECK_OK(gg_backend_native.open(&options, &native));
    CHECK_OK(library->backend->open(&options, &cuda));
    if (native == NULL || cuda == NULL) return CHECK_RESULT;
    cuda->table = library->backend;
    test_lstm(false);
    test_lstm(true);
    test_refused_lstm();
    test_attention(false, false);
    test_attention(false, true);
    test_attention(true, false);
    test_attention(true, true);
    test_calls_of_attention();
    test_too_large_a_pool(1024, 0, GG_ERROR_UNSUPPORTED);
    test_too_large_a_pool(1023, 1, GG_ERROR_UNSUPPORTED);
    test_too_large_a_pool(1023, 0, GG_OK);
    for (int narrow_one = 0; narrow_one < 2; ++narrow_one) {
        test_embedding(1, 1, 1, 1, narrow_one != 0);
        test_embedding(3, 40, 5, 4, narrow_one != 0);
        test_embedding(10, 250, 70, 3, narrow_one != 0);
        test_positions(1, 1, 1, 1, narrow_one != 0);
        test_positions(3, 5, 7, 4, narrow_one != 0);
    }
    library->backend->close(cuda);
    native->table->close(native);
    char text[1 << 12] = "";
    if (!check_count(standin_leaks(text, sizeof text) == 0, __FILE__, __LINE__)) fprintf(stderr, "left: %s\n", text);
    return CHECK_RESULT;
}
