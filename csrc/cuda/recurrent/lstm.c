/* LSTM by cuDNN: (T, I) to (T, H), one or more layers, with PyTorch's gates i, f, g, o, which cuDNN shares.
 *
 * All layers are one run of cuDNN. With dropout between layers each layer is a run of its own, because dropout draws
 * the CPU's numbers. `prepare` packs the parameters into cuDNN's weight space, with both biases added. Gradients are
 * copied back from such a space. Samples begin with their carried state, or with zeros.
 *
 * Saved memory (in scratch without training) holds:
 * - initial states and cells of all layers, if they are carried;
 * - for each run but the last, its states and the next run's input;
 * - cuDNN's reserve of each run.
 *
 * With bfloat16 cuDNN's weights, their gradients and states are bfloat16; carried states are float32. */
#include <limits.h>

#include "base/memory.h"
#include "cuda/recurrent/lstm_private.h"

enum { INPUT_GATES = 0, STATE_GATES = 4, GATES = 4 }; /* cuDNN's numbers of the matrices of a layer */
enum { STATE_ALIGNMENT = 32 };                        /* elements: at least 64 bytes */

/* A copy between parameters and weight spaces: values [begin, begin + count) of a parameter. `second` is another
 * parameter if two biases become one. */
typedef struct lstm_part {
    int parameter, second; /* second: -1: none */
    int64_t begin, at, count;
} lstm_part;

typedef struct lstm_run {
    int64_t first, layers, inputs;
    gg_cudnn_rnn rnn;
    gg_cudnn_rnn_data x, y;
    gg_cudnn_tensor state; /* (layers, N, H) */
    size_t weight_bytes, work_bytes, reserve_bytes;
    size_t weights_at;                        /* in weight spaces */
    size_t states_at, dropped_at, reserve_at; /* in saved memory; states and dropped of all runs but the last */
} lstm_run;

typedef struct lstm_op {
    gg_op head;
    gg_cuda_device *device;
    gg_dtype dtype;
    int64_t batch, positions, inputs, hidden, layers;
    gg_cudnn_dropout no_dropout;
    gg_cudnn_tensor matrix, bias; /* cuDNN's answer about a parameter */
    int runs, parts;
    lstm_run *run;
    lstm_part *part;
    size_t weights_bytes;                                                 /* of all runs */
    size_t begin_at[2];                                                   /* states and cells, in saved memory */
    size_t end_at[2], error_at[2], input_error_at, gradients_at, work_at; /* in scratch */
    bool refused;                                                         /* during creation: cuDNN does not offer it */
} lstm_op;

/* A call by which cuDNN may report that it does not offer this network. */
#define TRY_OFFERED(op, name, arguments)                                                                               \
    do {                                                                                                               \
        const int error_of_call = (op)->device->api->name arguments;                                                   \
        (op)->refused = (error_of_call >= GG_CUDNN_BAD_PARAM && error_of_call < GG_CUDNN_MIN_REFUSAL) ||               \
                        gg_cudnn_status(error_of_call) == GG_ERROR_UNSUPPORTED;                                        \
        if (error_of_call != GG_CUDNN_SUCCESS) GG_TRY(gg_cudnn_fail((op)->device->api, error_of_call, #name));         \
    } while (0)

static size_t bytes_of(const lstm_op *op, int64_t values) { return (size_t)values * gg_dtype_size(op->dtype); }

/* Distance of the states of `layers` layers; if each layer is a run of its own, each begins aligned. */
static int64_t state_step(const lstm_op *op) {
    const int64_t values = op->batch * op->hidden;
    return op->runs > 1 ? (values + STATE_ALIGNMENT - 1) / STATE_ALIGNMENT * STATE_ALIGNMENT : values;
}
static int64_t state_values(const lstm_op *op, int64_t layers) { return layers * state_step(op); }

/* Memory saved for backward. */
static char *base_of(const lstm_op *op, const gg_op_args *args) {
    return op->head.desc.training ? args->saved : args->scratch;
}

static bool is_last(const lstm_op *op, const lstm_run *run) { return run == &op->run[op->runs - 1]; }

static void *weights_of(const gg_op_args *args, const lstm_run *run) {
    return (char *)gg_cuda_workspace(args->prepared) + run->weights_at;
}

static void *work_of(const lstm_op *op, const gg_op_args *args, const lstm_run *run) {
    return run->work_bytes > 0 ? gg_cuda_workspace((char *)args->scratch + op->work_at) : NULL;
}

static void *reserve_of(const lstm_op *op, const gg_op_args *args, const lstm_run *run) {
    return run->reserve_bytes > 0 ? gg_cuda_workspace(base_of(op, args) + run->reserve_at) : NULL;
}

/* Initial states (0) or cells (1) of a run; NULL means zeros. */
static const void *begin_of(const lstm_op *op, const gg_op_args *args, const lstm_run *run, int which) {
    if (!op->head.desc.lstm.stateful) return NULL;
    return base_of(op, args) + op->begin_at[which] + bytes_of(op, state_values(op, run->first));
}

static void *states_of(const lstm_op *op, const gg_op_args *args, const lstm_run *run) {
    return is_last(op, run) ? args->output : base_of(op, args) + run->states_at;
}

static const void *input_of(const lstm_op *op, const gg_op_args *args, const lstm_run *run) {
    if (run == op->run) return args->input[0];
    return base_of(op, args) + (args->evaluate ? run[-1].states_at : run[-1].dropped_at);
}

/* ------------------------------------------------------------------------------------------ weight spaces */

/* Copies the parameters to a space, or a space to the gradients. */
static void move_parts(const lstm_op *op, void *space, const gg_op_args *args, bool unpack) {
    for (int first = 0; first < op->parts; first += GG_CUDA_LSTM_PIECES) {
        const int left = op->parts - first;
        gg_cuda_lstm_pieces all = {.dtype = op->dtype, .space = space};
        all.pieces = left < GG_CUDA_LSTM_PIECES ? left : GG_CUDA_LSTM_PIECES;
        for (int i = 0; i < all.pieces; ++i) {
            const lstm_part *part = &op->part[first + i];
            gg_cuda_lstm_piece *piece = &all.piece[i];
            *piece = (gg_cuda_lstm_piece){.at = part->at, .count = part->count};
            const int parameter[2] = {part->parameter, part->second};
            for (int j = 0; j < 2 && parameter[j] >= 0; ++j) {
                if (unpack) piece->to[j] = args->gradient[parameter[j]] + part->begin;
                else piece->from[j] = args->parameter[parameter[j]] + part->begin;
            }
        }
        if (unpack) gg_cuda_lstm_unpack(gg_cuda_compute(op->device), &all);
        else gg_cuda_lstm_pack(gg_cuda_compute(op->device), &all);
    }
}

static gg_status lstm_prepare(gg_op *head, const gg_op_args *args, gg_pass pass) {
    lstm_op *op = (lstm_op *)head;
    (void)pass;
    gg_cuda_enter(op->device);
    move_parts(op, gg_cuda_workspace(args->prepared), args, false);
    return gg_cuda_op_done(op->device, "the weights of an LSTM");
}

/* ------------------------------------------------------------------------------------------ running */

/* States and cells of all layers, at base + at[0] and at[1]. */
static gg_cuda_lstm_state_args all_states(const lstm_op *op, const gg_op_args *args, char *base, const size_t at[2]) {
    return (gg_cuda_lstm_state_args){.layers = op->layers,
                                     .batch = op->batch,
                                     .hidden = op->hidden,
                                     .step = state_step(op),
                                     .dtype = op->dtype,
                                     .carried = args->carried,
                                     .states = base + at[0],
                                     .cells = base + at[1]};
}

/* The initial states of all layers are saved, because backward reads them. */
static void begin_states(const lstm_op *op, const gg_op_args *args) {
    const gg_cuda_lstm_state_args begin = all_states(op, args, base_of(op, args), op->begin_at);
    void *const all[2] = {begin.states, begin.cells};
    if (!op->head.desc.lstm.stateful) return;
    if (args->carried != NULL) gg_cuda_lstm_begin(gg_cuda_compute(op->device), &begin);
    else
        for (int i = 0; i < 2; ++i)
            gg_cuda_memory.zero(&op->device->head, GG_QUEUE_COMPUTE, all[i],
                                bytes_of(op, state_values(op, op->layers)));
}

static void end_states(const lstm_op *op, const gg_op_args *args) {
    const gg_cuda_lstm_state_args end = all_states(op, args, args->scratch, op->end_at);
    if (op->head.desc.lstm.stateful && args->carried != NULL) gg_cuda_lstm_end(gg_cuda_compute(op->device), &end);
}

static gg_status run_forward(lstm_op *op, const gg_op_args *args, const lstm_run *run) {
    const bool ends = op->head.desc.lstm.stateful && args->carried != NULL;
    const size_t state_at = bytes_of(op, state_values(op, run->first));
    char *scratch = args->scratch;
    void *end[2] = {NULL, NULL};
    for (int i = 0; i < 2 && ends; ++i) end[i] = scratch + op->end_at[i] + state_at;
    TRY_OFFERED(op, cudnnRNNForward,
                (op->device->dnn, run->rnn, op->head.desc.training ? GG_CUDNN_RNN_TRAINING : GG_CUDNN_RNN_INFERENCE,
                 NULL, run->x, input_of(op, args, run), run->y, states_of(op, args, run), run->state,
                 begin_of(op, args, run, 0), end[0], run->state, begin_of(op, args, run, 1), end[1], run->weight_bytes,
                 weights_of(args, run), run->work_bytes, work_of(op, args, run), run->reserve_bytes,
                 reserve_of(op, args, run)));
    return GG_OK;
}

static gg_status lstm_forward(gg_op *head, const gg_op_args *args) {
    lstm_op *op = (lstm_op *)head;
    gg_cuda_enter(op->device);
    begin_states(op, args);
    for (lstm_run *run = op->run; run < op->run + op->runs; ++run) {
        GG_TRY(run_forward(op, args, run));
        if (!is_last(op, run) && !args->evaluate)
            gg_cuda_lstm_drop(op->device, &head->desc, args, op->dtype, run->first, states_of(op, args, run),
                              base_of(op, args) + run->dropped_at);
    }
    end_states(op, args);
    return gg_cuda_op_done(op->device, "an LSTM");
}

/* dy: error of the run's states; dx: receives the error of the run's input. */
static gg_status run_backward(lstm_op *op, const gg_op_args *args, const lstm_run *run, const void *dy, void *dx) {
    const gg_cuda_api *api = op->device->api;
    const void *states = states_of(op, args, run), *begin[2];
    char *gradients = gg_cuda_workspace((char *)args->scratch + op->gradients_at);
    for (int i = 0; i < 2; ++i) begin[i] = begin_of(op, args, run, i);
    GG_CUDNN_TRY(api, cudnnRNNBackwardData_v8,
                 (op->device->dnn, run->rnn, NULL, run->y, states, dy, run->x, dx, run->state, begin[0], NULL, NULL,
                  run->state, begin[1], NULL, NULL, run->weight_bytes, weights_of(args, run), run->work_bytes,
                  work_of(op, args, run), run->reserve_bytes, reserve_of(op, args, run)));
    GG_CUDNN_TRY(api, cudnnRNNBackwardWeights_v8,
                 (op->device->dnn, run->rnn, GG_CUDNN_RNN_ADD, NULL, run->x, input_of(op, args, run), run->state,
                  begin[0], run->y, states, run->weight_bytes, gradients + run->weights_at, run->work_bytes,
                  work_of(op, args, run), run->reserve_bytes, reserve_of(op, args, run)));
    return GG_OK;
}

static gg_status lstm_backward(gg_op *head, const gg_op_args *args) {
    lstm_op *op = (lstm_op *)head;
    char *scratch = args->scratch;
    void *dy = args->grad_output;
    gg_cuda_enter(op->device);
    gg_cuda_memory.zero(&op->device->head, GG_QUEUE_COMPUTE, gg_cuda_workspace(scratch + op->gradients_at),
                        op->weights_bytes);
    for (int r = op->runs - 1; r >= 0; --r) {
        const lstm_run *run = &op->run[r];
        void *dx = r > 0 ? scratch + op->error_at[r % 2] : args->grad_input[0];
        if (dx == NULL) dx = scratch + op->input_error_at;
        GG_TRY(run_backward(op, args, run, dy, dx));
        if (r > 0) gg_cuda_lstm_drop(op->device, &head->desc, args, op->dtype, run[-1].first, dx, dx);
        dy = dx;
    }
    move_parts(op, gg_cuda_workspace(scratch + op->gradients_at), args, true);
    return gg_cuda_op_done(op->device, "the backward pass of an LSTM");
}

static void lstm_destroy(gg_op *head) {
    lstm_op *op = (lstm_op *)head;
    const gg_cuda_api *api = op->device->api;
    for (int r = 0; op->run != NULL && r < op->runs; ++r) {
        lstm_run *run = &op->run[r];
        if (run->state != NULL) (void)api->cudnnDestroyTensorDescriptor(run->state);
        if (run->y != NULL) (void)api->cudnnDestroyRNNDataDescriptor(run->y);
        if (run->x != NULL) (void)api->cudnnDestroyRNNDataDescriptor(run->x);
        if (run->rnn != NULL) (void)api->cudnnDestroyRNNDescriptor(run->rnn);
    }
    if (op->bias != NULL) (void)api->cudnnDestroyTensorDescriptor(op->bias);
    if (op->matrix != NULL) (void)api->cudnnDestroyTensorDescriptor(op->matrix);
    if (op->no_dropout != NULL) (void)api->cudnnDestroyDropoutDescriptor(op->no_dropout);
    gg_free(op->part);
    gg_free(op->run);
    gg_cuda_op_free(head);
}

static const gg_op_class lstm_class = {
    .prepare = lstm_prepare, .forward = lstm_forward, .backward_data = lstm_backward, .destroy = lstm_destroy};

/* ------------------------------------------------------------------------------------------ creating */

static int dnn_type(const lstm_op *op) {
    return op->dtype == GG_BFLOAT16 ? GG_CUDNN_DATA_BFLOAT16 : GG_CUDNN_DATA_FLOAT;
}

/* All samples have all positions. */
static gg_status describe_sequences(lstm_op *op, int64_t values, const int *lengths, gg_cudnn_rnn_data *out) {
    const gg_cuda_api *api = op->device->api;
    GG_CUDNN_TRY(api, cudnnCreateRNNDataDescriptor, (out));
    TRY_OFFERED(
        op, cudnnSetRNNDataDescriptor,
        (*out, dnn_type(op), GG_CUDNN_RNN_BATCH_MAJOR, (int)op->positions, (int)op->batch, (int)values, lengths, NULL));
    return GG_OK;
}

static gg_status describe_run(lstm_op *op, lstm_run *run, const int *lengths) {
    const gg_cuda_api *api = op->device->api;
    const gg_op_desc *desc = &op->head.desc;
    const int hidden = (int)op->hidden, batch = (int)op->batch;
    const int size[3] = {(int)run->layers, batch, hidden}, stride[3] = {batch * hidden, hidden, 1};
    GG_CUDNN_TRY(api, cudnnCreateRNNDescriptor, (&run->rnn));
    TRY_OFFERED(op, cudnnSetRNNDescriptor_v8,
                (run->rnn, GG_CUDNN_RNN_STANDARD, GG_CUDNN_RNN_LSTM,
                 desc->bias ? GG_CUDNN_RNN_INPUT_BIAS : GG_CUDNN_RNN_NO_BIAS, GG_CUDNN_RNN_ONE_WAY,
                 GG_CUDNN_RNN_LINEAR_INPUT, dnn_type(op), GG_CUDNN_DATA_FLOAT,
                 op->device->fast || op->dtype == GG_BFLOAT16 ? GG_CUDNN_DEFAULT_MATH : GG_CUDNN_FMA_MATH,
                 (int32_t)run->inputs, hidden, hidden, (int32_t)run->layers, op->no_dropout, GG_CUDNN_RNN_PADDED));
    GG_TRY(describe_sequences(op, run->inputs, lengths, &run->x));
    GG_TRY(describe_sequences(op, op->hidden, lengths, &run->y));
    GG_CUDNN_TRY(api, cudnnCreateTensorDescriptor, (&run->state));
    TRY_OFFERED(op, cudnnSetTensorNdDescriptor, (run->state, dnn_type(op), 3, size, stride));
    TRY_OFFERED(op, cudnnGetRNNWeightSpaceSize, (op->device->dnn, run->rnn, &run->weight_bytes));
    TRY_OFFERED(op, cudnnGetRNNTempSpaceSizes,
                (op->device->dnn, run->rnn, desc->training ? GG_CUDNN_RNN_TRAINING : GG_CUDNN_RNN_INFERENCE, run->x,
                 &run->work_bytes, &run->reserve_bytes));
    if (!desc->training) run->reserve_bytes = 0;
    run->weights_at = op->weights_bytes;
    op->weights_bytes +=
        gg_cuda_workspace_room(run->weight_bytes) / GG_CUDA_WORKSPACE_ALIGNMENT * GG_CUDA_WORKSPACE_ALIGNMENT;
    return GG_OK;
}

static gg_status describe_no_dropout(lstm_op *op) {
    GG_CUDNN_TRY(op->device->api, cudnnCreateDropoutDescriptor, (&op->no_dropout));
    TRY_OFFERED(op, cudnnSetDropoutDescriptor, (op->no_dropout, op->device->dnn, 0, NULL, 0, 0));
    return GG_OK;
}

static gg_status describe(lstm_op *op) {
    const gg_cuda_api *api = op->device->api;
    int *lengths = NULL;
    gg_status status = GG_OK;
    GG_TRY_CLEANUP(gg_calloc((size_t)op->batch, sizeof *lengths, "the lengths of sequences", &lengths));
    for (int64_t n = 0; n < op->batch; ++n) lengths[n] = (int)op->positions;
    GG_TRY_CLEANUP(describe_no_dropout(op));
    GG_CUDNN_TRY_CLEANUP(api, cudnnCreateTensorDescriptor, (&op->matrix));
    GG_CUDNN_TRY_CLEANUP(api, cudnnCreateTensorDescriptor, (&op->bias));
    for (int r = 0; r < op->runs; ++r) GG_TRY_CLEANUP(describe_run(op, &op->run[r], lengths));
cleanup:
    gg_free(lengths);
    return status;
}

/* Checks that cuDNN's array has the shape of ours. */
static gg_status check_array(const lstm_op *op, gg_cudnn_tensor tensor, int64_t values, const char *what) {
    enum { MAX = 8 };
    int type = 0, dims = 0, size[MAX], stride[MAX];
    int64_t found = 1;
    GG_CUDNN_TRY(op->device->api, cudnnGetTensorNdDescriptor, (tensor, MAX, &type, &dims, size, stride));
    for (int i = 0; i < dims && i < MAX; ++i) found *= size[i];
    if (dims < 1 || found != values || type != dnn_type(op))
        return gg_fail(GG_ERROR_BACKEND,
                       "cuDNN has %lld values of type %d in %d dimensions for the %s of an LSTM, not %lld",
                       (long long)found, type, dims, what, (long long)values);
    return GG_OK;
}

/* Adds a part; merges it with the last one if it continues that. */
static void add_part(lstm_op *op, const lstm_part *part) {
    lstm_part *last = op->parts > 0 ? &op->part[op->parts - 1] : NULL;
    if (last != NULL && last->parameter == part->parameter && last->second == part->second &&
        last->begin + last->count == part->begin && last->at + last->count == part->at)
        last->count += part->count;
    else op->part[op->parts++] = *part;
}

/* Finds cuDNN's place of a layer's gate matrix; for input matrices also of the bias. */
static gg_status find_gate(lstm_op *op, const lstm_run *run, int64_t layer, int number) {
    const bool of_input = number < STATE_GATES, biased = op->head.desc.bias && of_input;
    const int64_t inputs = of_input && layer == 0 ? run->inputs : op->hidden, gate = number % GATES;
    const int first = gg_cuda_lstm_first(&op->head.desc, run->first + layer);
    const size_t bytes = gg_dtype_size(op->dtype);
    const void *base = op->device->bad; /* only offsets are wanted: any address of the device works */
    void *matrix = NULL, *bias = NULL;
    TRY_OFFERED(op, cudnnGetRNNWeightParams,
                (op->device->dnn, run->rnn, (int32_t)layer, run->weight_bytes, base, number, op->matrix, &matrix,
                 op->bias, &bias));
    GG_TRY(check_array(op, op->matrix, op->hidden * inputs, "weight"));
    if (biased) GG_TRY(check_array(op, op->bias, op->hidden, "bias"));
    const size_t at = run->weights_at + (size_t)((uintptr_t)matrix - (uintptr_t)base);
    const size_t bias_at = run->weights_at + (size_t)((uintptr_t)bias - (uintptr_t)base);
    add_part(op, &(lstm_part){.parameter = first + (of_input ? WEIGHT_IH : WEIGHT_HH),
                              .second = -1,
                              .begin = gate * op->hidden * inputs,
                              .at = (int64_t)(at / bytes),
                              .count = op->hidden * inputs});
    if (biased)
        add_part(op, &(lstm_part){.parameter = first + BIAS_IH,
                                  .second = first + BIAS_HH,
                                  .begin = gate * op->hidden,
                                  .at = (int64_t)(bias_at / bytes),
                                  .count = op->hidden});
    return GG_OK;
}

static gg_status find_parts(lstm_op *op) {
    GG_TRY(gg_calloc((size_t)op->layers * 3 * GATES, sizeof *op->part, "the weights of an LSTM", &op->part));
    for (int r = 0; r < op->runs; ++r)
        for (int64_t layer = 0; layer < op->run[r].layers; ++layer)
            for (int number = INPUT_GATES; number < STATE_GATES + GATES; ++number)
                GG_TRY(find_gate(op, &op->run[r], layer, number));
    return GG_OK;
}

static size_t add_bytes(size_t *used, size_t bytes) {
    const size_t at = *used;
    *used += gg_aligned(bytes);
    return at;
}

static void lay_out(lstm_op *op) {
    const gg_op_desc *desc = &op->head.desc;
    const size_t state_bytes = bytes_of(op, state_values(op, op->layers));
    const size_t output_bytes = bytes_of(op, op->batch * op->positions * op->hidden);
    size_t saved = 0, forward = 0, backward = 0, work = 0;
    for (int i = 0; i < 2 && desc->lstm.stateful; ++i) op->begin_at[i] = add_bytes(&saved, state_bytes);
    for (int r = 0; r < op->runs; ++r) {
        lstm_run *run = &op->run[r];
        if (!is_last(op, run)) {
            run->states_at = add_bytes(&saved, output_bytes);
            run->dropped_at = add_bytes(&saved, output_bytes);
        }
        run->reserve_at = add_bytes(&saved, gg_cuda_workspace_room(run->reserve_bytes));
        if (run->work_bytes > work) work = run->work_bytes;
    }
    if (desc->training) op->head.saved_bytes = saved;
    else forward = saved;
    for (int i = 0; i < 2 && desc->lstm.stateful; ++i) op->end_at[i] = add_bytes(&forward, state_bytes);
    if (desc->training) {
        op->gradients_at = add_bytes(&backward, gg_cuda_workspace_room(op->weights_bytes));
        for (int i = 0; i < 2 && op->runs > 1; ++i) op->error_at[i] = add_bytes(&backward, output_bytes);
        if (!desc->input_grad)
            op->input_error_at = add_bytes(&backward, bytes_of(op, op->batch * op->positions * op->inputs));
    }
    op->work_at = forward > backward ? forward : backward;
    op->head.scratch_bytes = op->work_at + gg_cuda_workspace_room(work);
    op->head.prepared_bytes = gg_cuda_workspace_room(op->weights_bytes);
}

static gg_status make_runs(lstm_op *op) {
    const gg_op_desc *desc = &op->head.desc;
    const bool drops = desc->training && desc->probability > 0 && desc->lstm.layers > 1;
    op->runs = drops ? (int)op->layers : 1;
    GG_TRY(gg_calloc((size_t)op->runs, sizeof *op->run, "the layers of an LSTM", &op->run));
    for (int r = 0; r < op->runs; ++r)
        op->run[r] =
            (lstm_run){.first = r, .layers = op->layers / op->runs, .inputs = r == 0 ? op->inputs : op->hidden};
    return GG_OK;
}

/* Runs cuDNN once on zeros, in temporary memory, because it may refuse a run that it has described. Skipped if that
 * memory is missing. */
static gg_status try_forward(lstm_op *op) {
    gg_device *device = &op->device->head;
    const size_t sizes[] = {bytes_of(op, op->batch * op->positions * op->inputs),
                            bytes_of(op, op->batch * op->positions * op->hidden), op->head.prepared_bytes,
                            op->head.saved_bytes, op->head.scratch_bytes};
    enum { BLOCKS = sizeof sizes / sizeof *sizes };
    size_t at[BLOCKS], all = 0;
    void *block = NULL;
    gg_status status = GG_OK;
    for (int i = 0; i < BLOCKS; ++i) at[i] = add_bytes(&all, gg_cuda_workspace_room(sizes[i]));
    status = gg_cuda_memory.alloc(device, all, "the first run of an LSTM", &block);
    if (status == GG_ERROR_MEMORY) status = GG_OK;
    if (block == NULL) goto cleanup;
    char *const base = block;
    const gg_op_args args = {.input = {base + at[0]},
                             .output = base + at[1],
                             .prepared = base + at[2],
                             .saved = base + at[3],
                             .scratch = base + at[4],
                             .evaluate = true};
    gg_cuda_memory.zero(device, GG_QUEUE_COMPUTE, block, all);
    status = lstm_forward(&op->head, &args);
    gg_cuda_memory.wait(device, gg_cuda_memory.mark(device, GG_QUEUE_COMPUTE));
cleanup:
    if (block != NULL) gg_cuda_memory.free(device, block);
    return status;
}

/* *refused: cuDNN does not offer it. */
static gg_status create_by_dnn(gg_device *device, const gg_op_desc *desc, bool *refused, gg_op **out) {
    gg_op *head = NULL;
    gg_status status = GG_OK;
    GG_TRY_CLEANUP(gg_op_check_lstm(desc));
    GG_TRY_CLEANUP(gg_cuda_op_create(desc, &lstm_class, 1, sizeof(lstm_op), &head));
    lstm_op *op = (lstm_op *)head;
    op->device = gg_cuda_of(device);
    op->dtype = head->input[0].dtype = head->output.dtype = desc->dtype;
    op->batch = desc->batch;
    op->positions = desc->input[0].size[0];
    op->inputs = desc->input[0].size[1];
    op->hidden = desc->output.size[1];
    op->layers = desc->lstm.layers;
    const int64_t widest = op->inputs > 4 * op->hidden ? op->inputs : 4 * op->hidden;
    op->refused = op->batch > INT_MAX / widest / op->positions || op->batch > INT_MAX / op->hidden / op->layers;
    if (op->refused)
        GG_FAIL_CLEANUP(GG_ERROR_UNSUPPORTED, "cuDNN's LSTM is for less than %d values, not a batch of %lld", INT_MAX,
                        (long long)op->batch);
    head->backward_needs_input = 1;
    head->backward_needs_output = true;
    head->prepared_once = true;
    gg_cuda_enter(op->device);
    GG_TRY_CLEANUP(make_runs(op));
    GG_TRY_CLEANUP(describe(op));
    GG_TRY_CLEANUP(find_parts(op));
    lay_out(op);
    GG_TRY_CLEANUP(try_forward(op));
    *out = head;
    head = NULL;
cleanup:
    if (head != NULL) {
        *refused = ((lstm_op *)head)->refused;
        lstm_destroy(head);
    }
    return status;
}

gg_status gg_cuda_lstm_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    bool refused = false;
    *out = NULL;
    if (desc->dtype == GG_FLOAT32 && gg_cuda_own_lstm_steps(device, desc))
        return gg_cuda_own_lstm_create(device, desc, out);
    const gg_status status = create_by_dnn(device, desc, &refused, out);
    return refused ? gg_cuda_own_lstm_create(device, desc, out) : status;
}
