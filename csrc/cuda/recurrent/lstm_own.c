/* LSTM over the positions of a sample: (T, I) to (T, H), one or more layers, with PyTorch's gates i, f, g, o. Used if
 * cuDNN refuses, or if this is faster (lstm.c).
 *
 * 1. A product of all samples and positions with the input's weights begins a layer's gates.
 * 2. Each position, in order, adds a product with the recurrent weights and updates the cells. With precision "fast"
 *   both are one kernel.
 * 3. Backward goes from the last position to the first, and ends with one product for each gradient.
 *
 * Each layer has arrays over all samples and positions:
 * - gates, which become their errors;
 * - cells;
 * - hidden states, which are the output in the last layer;
 * - with dropout, the next layer's input.
 * Training saves them; otherwise all layers share one memory. */
#include "cuda/gemm/product.h"
#include "cuda/recurrent/lstm_private.h"

/* The first layer, and all others, whose inputs are states. */
enum { FIRST = 0, OTHERS, LAYER_KINDS };

typedef struct lstm_op {
    gg_op head;
    gg_cuda_device *device;
    int64_t batch, positions, inputs, hidden, layers;
    bool drops; /* in training, between layers */
    bool steps; /* a position's product and cells are one kernel */
    gg_cuda_product of_input[LAYER_KINDS], of_input_weights[LAYER_KINDS], of_input_data[LAYER_KINDS];
    gg_cuda_product of_first, of_states, of_later, of_state_weights;
    /* Sizes and offsets in floats. */
    size_t layer_floats, gates_at, cells_at, states_at, first_at, dropped_at;
    size_t bias_at, later_at, cell_error_at, before_at, error_at, work_at; /* in scratch */
} lstm_op;

/* One layer of one run. */
typedef struct lstm_layer {
    lstm_op *op;
    const gg_op_args *args;
    int64_t number;
    const float *in; /* (N, T, inputs) */
    float *gates;    /* (N, T, 4H) */
    float *cells;    /* (N, T, H) */
    float *states;   /* (N, T, H) */
    float *first;    /* (N, 2, H): initial states and cells */
    float *dropped;  /* (N, T, H): input of the next layer; equals `states` without dropout */
    void *work;      /* scratch of products and sums */
    bool drops;
} lstm_layer;

static const float *parameter_of(const lstm_layer *l, int which) {
    return l->args->parameter[gg_cuda_lstm_first(&l->op->head.desc, l->number) + which];
}

static float *gradient_of(const lstm_layer *l, int which) {
    return l->args->gradient[gg_cuda_lstm_first(&l->op->head.desc, l->number) + which];
}

static int kind_of(const lstm_layer *l) { return l->number == 0 ? FIRST : OTHERS; }

/* Without training the previous layer's states are still read, so layers alternate. */
static float *states_of(const lstm_op *op, const gg_op_args *args, float *own, int64_t number) {
    if (number == op->layers - 1) return args->output;
    return own + (op->head.desc.training || number % 2 == 0 ? op->states_at : op->dropped_at);
}

static float *own_of(const lstm_op *op, const gg_op_args *args, int64_t number) {
    float *base = op->head.desc.training ? args->saved : args->scratch;
    return base + (size_t)(op->head.desc.training ? number : 0) * op->layer_floats;
}

static lstm_layer layer_of(lstm_op *op, const gg_op_args *args, int64_t number) {
    float *own = own_of(op, args, number);
    lstm_layer l = {.op = op, .args = args, .number = number, .in = args->input[0]};
    l.gates = own + op->gates_at;
    l.cells = own + op->cells_at;
    l.first = own + op->first_at;
    l.states = states_of(op, args, own, number);
    l.drops = op->drops && number < op->layers - 1 && !args->evaluate;
    l.dropped = l.drops ? own + op->dropped_at : l.states;
    l.work = (float *)args->scratch + op->work_at;
    if (number > 0) {
        float *before = own_of(op, args, number - 1);
        const bool dropped = op->drops && !args->evaluate;
        l.in = dropped ? before + op->dropped_at : states_of(op, args, before, number - 1);
    }
    return l;
}

static gg_cuda_stream stream_of(const lstm_op *op) { return gg_cuda_compute(op->device); }

/* Copies rows of `values` floats; from_row and to_row are distances. */
static void copy_rows(const lstm_op *op, int64_t rows, int64_t values, const float *from, int64_t from_row, float *to,
                      int64_t to_row) {
    const gg_cuda_copy_args copy = {
        .axes = 2, .size = {rows, values}, .from_step = {from_row, 1}, .to_step = {to_row, 1}, .from = from, .to = to};
    gg_cuda_copy_strided(stream_of(op), &copy);
}

/* Arguments of the cells' update at a position, except its errors. */
static gg_cuda_lstm_args cells_args(const lstm_layer *l, int64_t t) {
    const lstm_op *op = l->op;
    const int64_t hidden = op->hidden, row = op->positions * hidden;
    return (gg_cuda_lstm_args){.batch = op->batch,
                               .hidden = hidden,
                               .gates_row = 4 * row,
                               .before_row = t == 0 ? 2 * hidden : row,
                               .cell_row = row,
                               .state_row = row,
                               .error_row = row,
                               .gates = l->gates + t * 4 * hidden,
                               .before = t == 0 ? l->first + hidden : l->cells + (t - 1) * hidden,
                               .cell = l->cells + t * hidden,
                               .state = l->states + t * hidden,
                               .last = t == op->positions - 1};
}

/* ------------------------------------------------------------------------------------------ forward */

static float *carried_of(const lstm_layer *l) {
    const bool carries = l->args->carried != NULL && l->op->head.desc.lstm.stateful;
    return carries ? l->args->carried + l->number * 2 * l->op->hidden : NULL;
}

static void begin_layer(const lstm_layer *l) {
    const lstm_op *op = l->op;
    const int64_t both = 2 * op->hidden;
    const float *carried = carried_of(l);
    if (carried != NULL) copy_rows(op, op->batch, both, carried, op->layers * both, l->first, both);
    else gg_cuda_memory.zero(&op->device->head, GG_QUEUE_COMPUTE, l->first, (size_t)(op->batch * both) * sizeof(float));
}

static void leave_layer(const lstm_layer *l) {
    const lstm_op *op = l->op;
    const int64_t hidden = op->hidden, row = op->positions * hidden, last = row - hidden, to = op->layers * 2 * hidden;
    float *carried = carried_of(l);
    if (carried == NULL) return;
    copy_rows(op, op->batch, hidden, l->states + last, row, carried, to);
    copy_rows(op, op->batch, hidden, l->cells + last, row, carried + hidden, to);
}

static gg_status run_positions(const lstm_layer *l) {
    lstm_op *op = l->op;
    const int64_t hidden = op->hidden;
    const float *weights = parameter_of(l, WEIGHT_HH);
    for (int64_t t = 0; t < op->positions; ++t) {
        const gg_cuda_lstm_args cells = cells_args(l, t);
        const float *states = t == 0 ? l->first : l->states + (t - 1) * hidden;
        if (op->steps) {
            gg_cuda_lstm_step(stream_of(op), &cells, weights, states, t == 0 ? 2 * hidden : cells.state_row);
            continue;
        }
        GG_TRY(gg_cuda_product_run(op->device, t == 0 ? &op->of_first : &op->of_states, states, weights, NULL,
                                   cells.gates, l->work));
        gg_cuda_lstm(stream_of(op), &cells);
    }
    return GG_OK;
}

/* Adds the bias, unless the product has added it. */
static void add_bias(const lstm_layer *l, const float *bias) {
    const lstm_op *op = l->op;
    const gg_cuda_bias_args own = {
        .outer = op->batch * op->positions, .channels = 4 * op->hidden, .inner = 1, .bias = bias, .y = l->gates};
    gg_cuda_bias(stream_of(op), &own);
}

static gg_status lstm_forward(gg_op *head, const gg_op_args *args) {
    lstm_op *op = (lstm_op *)head;
    gg_cuda_enter(op->device);
    for (int64_t number = 0; number < op->layers; ++number) {
        const lstm_layer l = layer_of(op, args, number);
        float *bias = head->desc.bias ? (float *)args->scratch + op->bias_at : NULL;
        begin_layer(&l);
        if (bias != NULL) {
            const gg_cuda_add_args sum = {.n = (size_t)(4 * op->hidden),
                                          .inputs = 2,
                                          .input = {parameter_of(&l, BIAS_IH), parameter_of(&l, BIAS_HH)},
                                          .output = bias};
            gg_cuda_add(stream_of(op), &sum);
        }
        GG_TRY(gg_cuda_product_run(op->device, &op->of_input[kind_of(&l)], l.in, parameter_of(&l, WEIGHT_IH), bias,
                                   l.gates, l.work));
        if (bias != NULL && !op->of_input[kind_of(&l)].shape.bias) add_bias(&l, bias);
        GG_TRY(run_positions(&l));
        if (l.drops) gg_cuda_lstm_drop(op->device, &head->desc, args, GG_FLOAT32, number, l.states, l.dropped);
        leave_layer(&l);
    }
    return gg_cuda_op_done(op->device, "an LSTM");
}

/* ------------------------------------------------------------------------------------------ backward */

static gg_status run_back(const lstm_layer *l, const float *error) {
    lstm_op *op = l->op;
    const int64_t hidden = op->hidden;
    float *scratch = l->args->scratch, *later = scratch + op->later_at;
    for (int64_t t = op->positions - 1; t >= 0; --t) {
        gg_cuda_lstm_args cells = cells_args(l, t);
        cells.error = error + t * hidden;
        cells.later = later;
        cells.cell_error = scratch + op->cell_error_at;
        const float *weights = parameter_of(l, WEIGHT_HH), *after = cells.gates + 4 * hidden;
        if (op->steps && !cells.last) {
            gg_cuda_lstm_step_backward(stream_of(op), &cells, weights, after);
            continue;
        }
        if (!cells.last) GG_TRY(gg_cuda_product_run(op->device, &op->of_later, after, weights, NULL, later, l->work));
        gg_cuda_lstm_backward(stream_of(op), &cells);
    }
    return GG_OK;
}

static gg_status weight_gradients(const lstm_layer *l) {
    lstm_op *op = l->op;
    const int64_t hidden = op->hidden, gates = 4 * hidden, row = op->positions * hidden;
    float *before = (float *)l->args->scratch + op->before_at;
    /* Copies the states before each position side by side. */
    copy_rows(op, op->batch, hidden, l->first, 2 * hidden, before, row);
    if (op->positions > 1) copy_rows(op, op->batch, row - hidden, l->states, row, before + hidden, row);
    GG_TRY(gg_cuda_product_run(op->device, &op->of_input_weights[kind_of(l)], l->gates, l->in, NULL,
                               gradient_of(l, WEIGHT_IH), l->work));
    GG_TRY(gg_cuda_product_run(op->device, &op->of_state_weights, l->gates, before, NULL, gradient_of(l, WEIGHT_HH),
                               l->work));
    if (!op->head.desc.bias) return GG_OK;
    const gg_cuda_bias_backward_args bias = {.outer = op->batch * op->positions,
                                             .channels = gates,
                                             .inner = 1,
                                             .grad = l->gates,
                                             .bias = gradient_of(l, BIAS_IH),
                                             .scratch = l->work};
    gg_cuda_bias_backward(stream_of(op), &bias);
    gg_cuda_memory.copy(&op->device->head, GG_QUEUE_COMPUTE, gradient_of(l, BIAS_HH), gradient_of(l, BIAS_IH),
                        (size_t)gates * sizeof(float));
    return GG_OK;
}

static gg_status lstm_backward(gg_op *head, const gg_op_args *args) {
    lstm_op *op = (lstm_op *)head;
    float *between = (float *)args->scratch + op->error_at;
    gg_cuda_enter(op->device);
    for (int64_t number = op->layers - 1; number >= 0; --number) {
        const lstm_layer l = layer_of(op, args, number);
        float *out = number > 0 ? between : args->grad_input[0];
        if (l.drops) gg_cuda_lstm_drop(op->device, &op->head.desc, args, GG_FLOAT32, number, between, between);
        GG_TRY(run_back(&l, number == op->layers - 1 ? args->grad_output : between));
        GG_TRY(weight_gradients(&l));
        if (out != NULL)
            GG_TRY(gg_cuda_product_run(op->device, &op->of_input_data[kind_of(&l)], l.gates,
                                       parameter_of(&l, WEIGHT_IH), NULL, out, l.work));
    }
    return gg_cuda_op_done(op->device, "the backward pass of an LSTM");
}

/* ------------------------------------------------------------------------------------------ creating */

static void list_products(lstm_op *op, gg_cuda_product *all[10]) {
    gg_cuda_product *const list[10] = {&op->of_input[0],
                                       &op->of_input[1],
                                       &op->of_input_weights[0],
                                       &op->of_input_weights[1],
                                       &op->of_input_data[0],
                                       &op->of_input_data[1],
                                       &op->of_first,
                                       &op->of_states,
                                       &op->of_later,
                                       &op->of_state_weights};
    for (int i = 0; i < 10; ++i) all[i] = list[i];
}

static void lstm_destroy(gg_op *head) {
    lstm_op *op = (lstm_op *)head;
    gg_cuda_product *all[10];
    list_products(op, all);
    for (int i = 0; i < 10; ++i) gg_cuda_product_destroy(op->device, all[i]);
    gg_cuda_op_free(head);
}

static const gg_op_class lstm_class = {
    .forward = lstm_forward, .backward_data = lstm_backward, .destroy = lstm_destroy};

static size_t add_room(size_t *used, size_t floats) {
    const size_t at = *used;
    *used += (floats + GG_LANES - 1) / GG_LANES * GG_LANES;
    return at;
}

/* Assigns memory for the layers, then for temporaries that all layers share. */
static void lay_out(lstm_op *op) {
    const bool training = op->head.desc.training;
    const size_t all = (size_t)(op->batch * op->positions), hidden = (size_t)op->hidden;
    size_t used = 0, scratch = 0, work = 0;
    gg_cuda_product *products[10];
    op->gates_at = add_room(&used, 4 * all * hidden);
    op->cells_at = add_room(&used, all * hidden);
    op->first_at = add_room(&used, 2 * (size_t)op->batch * hidden);
    op->states_at = op->layers > 1 ? add_room(&used, all * hidden) : 0;
    op->dropped_at = op->layers > 1 && (op->drops || !training) ? add_room(&used, all * hidden) : op->states_at;
    op->layer_floats = used;
    if (training) op->head.saved_bytes = (size_t)op->layers * used * sizeof(float);
    else scratch = used;
    op->bias_at = add_room(&scratch, 4 * hidden);
    if (training) {
        op->later_at = add_room(&scratch, (size_t)op->batch * hidden);
        op->cell_error_at = add_room(&scratch, (size_t)op->batch * hidden);
        op->error_at = op->layers > 1 ? add_room(&scratch, all * hidden) : 0;
        op->before_at = add_room(&scratch, all * hidden);
        if (op->head.desc.bias) work = gg_cuda_bias_backward_scratch((int64_t)all, 4 * op->hidden, 1);
    }
    op->work_at = scratch;
    list_products(op, products);
    for (int i = 0; i < 10; ++i) {
        const size_t room = gg_cuda_workspace_room(products[i]->workspace);
        if (room > work) work = room;
    }
    op->head.scratch_bytes = scratch * sizeof(float) + work;
}

/* Creates the products of layers with `inputs` inputs. */
static gg_status create_input_products(lstm_op *op, int kind, int64_t inputs, bool data) {
    const int64_t rows = op->batch * op->positions, gates = 4 * op->hidden;
    const gg_cuda_product_shape forward = {.m = rows,
                                           .n = gates,
                                           .k = inputs,
                                           .a_row = inputs,
                                           .b_row = inputs,
                                           .c_row = gates,
                                           .transpose_b = true,
                                           .bias = op->head.desc.bias};
    const gg_cuda_product_shape weights = {
        .m = gates, .n = inputs, .k = rows, .a_row = gates, .b_row = inputs, .c_row = inputs, .transpose_a = true};
    const gg_cuda_product_shape back = {
        .m = rows, .n = inputs, .k = gates, .a_row = gates, .b_row = inputs, .c_row = inputs};
    GG_TRY(gg_cuda_product_create(op->device, &forward, &op->of_input[kind]));
    if (!op->head.desc.training) return GG_OK;
    GG_TRY(gg_cuda_product_create(op->device, &weights, &op->of_input_weights[kind]));
    if (data) GG_TRY(gg_cuda_product_create(op->device, &back, &op->of_input_data[kind]));
    return GG_OK;
}

static gg_status create_state_products(lstm_op *op) {
    const int64_t hidden = op->hidden, gates = 4 * hidden, row = op->positions * hidden;
    gg_cuda_product_shape forward = {.m = op->batch,
                                     .n = gates,
                                     .k = hidden,
                                     .a_row = 2 * hidden,
                                     .b_row = hidden,
                                     .c_row = 4 * row,
                                     .transpose_b = true,
                                     .add = true,
                                     .alignment = hidden % 4 == 0 ? 16 : 4};
    const gg_cuda_product_shape later = {
        .m = op->batch, .n = hidden, .k = gates, .a_row = 4 * row, .b_row = hidden, .c_row = hidden, .alignment = 16};
    const gg_cuda_product_shape weights = {.m = gates,
                                           .n = hidden,
                                           .k = op->batch * op->positions,
                                           .a_row = gates,
                                           .b_row = hidden,
                                           .c_row = hidden,
                                           .transpose_a = true};
    if (op->head.desc.training) GG_TRY(gg_cuda_product_create(op->device, &weights, &op->of_state_weights));
    if (op->steps) return GG_OK;
    GG_TRY(gg_cuda_product_create(op->device, &forward, &op->of_first));
    forward.a_row = row;
    GG_TRY(gg_cuda_product_create(op->device, &forward, &op->of_states));
    if (op->head.desc.training) GG_TRY(gg_cuda_product_create(op->device, &later, &op->of_later));
    return GG_OK;
}

/* A block reads the recurrent weights for 32 samples forward, for 8 backward, so more samples read them more often.
 * With 32 samples it was measured faster than cuDNN. */
enum { MAX_STEP_SAMPLES = 64 };

bool gg_cuda_own_lstm_steps(gg_device *device, const gg_op_desc *desc) {
    return gg_cuda_of(device)->fast && desc->batch <= MAX_STEP_SAMPLES && gg_cuda_lstm_step_fits(desc->output.size[1]);
}

gg_status gg_cuda_own_lstm_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    gg_op *head = NULL;
    *out = NULL;
    GG_TRY_CLEANUP(gg_op_check_lstm(desc));
    GG_TRY_CLEANUP(gg_cuda_op_create(desc, &lstm_class, 1, sizeof(lstm_op), &head));
    lstm_op *op = (lstm_op *)head;
    head->backward_needs_input = 1;
    head->backward_needs_output = true;
    op->device = gg_cuda_of(device);
    op->batch = desc->batch;
    op->positions = desc->input[0].size[0];
    op->inputs = desc->input[0].size[1];
    op->hidden = desc->output.size[1];
    op->layers = desc->lstm.layers;
    op->drops = desc->training && desc->probability > 0 && desc->lstm.layers > 1;
    op->steps = gg_cuda_own_lstm_steps(device, desc);
    GG_TRY_CLEANUP(create_input_products(op, FIRST, op->inputs, desc->input_grad));
    if (op->layers > 1) GG_TRY_CLEANUP(create_input_products(op, OTHERS, op->hidden, true));
    GG_TRY_CLEANUP(create_state_products(op));
    lay_out(op);
    *out = head;
    head = NULL;
cleanup:
    if (head != NULL) lstm_destroy(head);
    return status;
}
