/* LSTM over the positions of a sample: (T, I) to (T, H), one or more layers (Hochreiter and Schmidhuber 1997, with
 * PyTorch's gates i, f, g, o). PLAIN.
 *
 * 1. A product of all samples and positions with the input's weights begins a layer's gates.
 * 2. Each position, in order, adds a product with the recurrent weights, which are packed once. The cells are updated
 *   while the gates are in cache.
 * 3. Backward goes from the last position to the first, and ends with one product for each gradient.
 *
 * Small recurrent weights: each thread takes some samples through all positions. Threads meet between layers only.
 * Recurrent weights larger than a cache: each thread takes some hidden units and reads only their weights. Threads meet
 * after every position. Bits do not depend on this choice.
 *
 * Tokens name rows of a table with fewer rows than there are positions. A row's part of the first layer's gates is
 * computed once; each position begins with a copy. Backward first adds the gate errors of all positions with the same
 * token. The gradients of the table, the input's weights and the biases follow from these sums.
 *
 * lstm_products.c has three kinds of recurrent products.
 *
 * Each layer has arrays over all samples and positions:
 * - gates, which become their errors;
 * - cells;
 * - hidden states, which are the output in the last layer;
 * - with dropout, the next layer's input.
 * Training saves them; otherwise all layers share one memory. */
#include <string.h>

#include "base/parallel.h"
#include "cpu/recurrent/lstm_private.h"

/* True for the first layer of an LSTM over tokens. */
static bool has_tokens(const gg_lstm_op *op, int64_t number) { return number == 0 && op->numbers > 0; }

static gg_lstm_layer layer_of(const gg_lstm_op *op, const gg_op_args *args, int64_t number) {
    const bool training = op->head.desc.training, last = number == op->layers - 1;
    float *scratch = args->scratch, *base = training ? args->saved : scratch;
    gg_lstm_layer l = {.op = op, .args = args, .number = number, .inputs = number == 0 ? op->inputs : op->hidden};
    float *own = base + (size_t)(training ? number : 0) * op->layer_floats;
    /* Without training the previous layer's states are still read, so layers alternate. */
    const size_t other = training || number % 2 == 0 ? 0 : op->dropped_at - op->states_at;
    l.gates = own + op->gates_at;
    l.cells = own + op->cells_at;
    l.first = own + op->first_at;
    l.states = last ? args->output : own + op->states_at + other;
    l.drops = op->dropout.used && !last && !args->evaluate;
    l.dropped = l.drops ? own + op->dropped_at : l.states;
    l.mask = (uint8_t *)(own + op->mask_at);
    l.packed = scratch + op->packed_at;
    l.rows = scratch + op->rows_at;
    l.sums = scratch + op->sums_at;
    l.own = scratch + op->own_at;
    l.later = scratch + op->later_at;
    l.cell_error = scratch + op->cell_error_at;
    if (has_tokens(op, number)) {
        l.token = args->input[0];
        l.in = args->parameter[GG_LSTM_TABLE];
        l.of_token = scratch + op->token_at;
        l.order = (int32_t *)(scratch + op->order_at);
    } else if (number == 0) {
        l.in = args->input[0];
    } else {
        const gg_lstm_layer before = layer_of(op, args, number - 1);
        l.in = before.dropped;
    }
    return l;
}

static gg_lstm_share share_of(const gg_lstm_op *op, int thread, int threads) {
    gg_lstm_share s = {.thread = thread, .samples_end = op->batch, .units_end = op->hidden};
    size_t begin, end;
    const size_t all = (size_t)(op->by_units ? op->hidden : op->batch);
    const int64_t grain = op->by_units ? op->products->unit_grain(op) : op->products->sample_grain;
    gg_parallel_split(all, (size_t)grain, thread, threads, &begin, &end);
    *(op->by_units ? &s.unit : &s.sample) = (int64_t)begin;
    *(op->by_units ? &s.units_end : &s.samples_end) = (int64_t)end;
    return s;
}

static bool is_empty(const gg_lstm_share *s) { return s->sample == s->samples_end || s->unit == s->units_end; }

/* ------------------------------------------------------------------------------------------ forward */

static void lstm_prepare_part(void *context, int thread, int threads) {
    const gg_lstm_layer *l = context;
    const gg_lstm_products *products = l->op->products;
    size_t begin, end;
    products->pack(l, true, thread, threads);
    gg_parallel_split((size_t)l->op->batch, (size_t)products->sample_grain, thread, threads, &begin, &end);
    products->keep_first(l, (int64_t)begin, (int64_t)end);
}

/* States and cells of a sample before position t. */
static const float *state_before(const gg_lstm_layer *l, int64_t n, int64_t t) {
    const int64_t hidden = l->op->hidden;
    return t == 0 ? l->first + 2 * n * hidden : l->states + (n * l->op->positions + t - 1) * hidden;
}
static const float *cell_before(const gg_lstm_layer *l, int64_t n, int64_t t) {
    const int64_t hidden = l->op->hidden;
    return t == 0 ? l->first + (2 * n + 1) * hidden : l->cells + (n * l->op->positions + t - 1) * hidden;
}

/* Initial gates of a position: copies of its tokens' rows. */
static void copy_tokens(const gg_lstm_layer *l, int64_t t, const gg_lstm_share *share) {
    const gg_lstm_op *op = l->op;
    const int64_t hidden = op->hidden, units = share->units_end - share->unit;
    const int64_t pieces = units == hidden ? 1 : 4, columns = units == hidden ? 4 * hidden : units;
    for (int64_t n = share->sample; n < share->samples_end; ++n) {
        const int64_t row = n * op->positions + t;
        const float *from = l->of_token + l->token[row] * op->gate_row + share->unit;
        float *to = l->gates + row * op->gate_row + share->unit;
        for (int64_t i = 0; i < pieces; ++i)
            memcpy(to + i * hidden, from + i * hidden, (size_t)columns * sizeof(float));
    }
}

static void run_position(const gg_lstm_layer *l, int64_t t, const gg_lstm_share *share) {
    const gg_lstm_op *op = l->op;
    const int64_t hidden = op->hidden, units = share->units_end - share->unit;
    const gg_cpu_lstm *kernels = gg_cpu_device_kernels(op->device)->lstm;
    if (l->token != NULL) copy_tokens(l, t, share);
    op->products->gates(l, t, share);
    for (int64_t n = share->sample; n < share->samples_end; ++n) {
        const int64_t row = n * op->positions + t, at = row * hidden + share->unit;
        float *gates = l->gates + row * op->gate_row + share->unit;
        const float *before = cell_before(l, n, t) + share->unit;
        if (op->products->apart)
            kernels->forward_sums(units, hidden, gates, l->sums + n * op->gate_row + share->unit, hidden, before,
                                  l->cells + at, l->states + at);
        else kernels->forward(units, hidden, gates, before, l->cells + at, l->states + at);
    }
    op->products->keep_states(l, t, share);
}

static void lstm_forward_part(void *context, int thread, int threads) {
    const gg_lstm_layer *l = context;
    const gg_lstm_share share = share_of(l->op, thread, threads);
    if (is_empty(&share)) return;
    if (l->op->by_units) {
        run_position(l, l->position, &share);
        return;
    }
    for (int64_t t = 0; t < l->op->positions; ++t) run_position(l, t, &share);
}

static void lstm_drop_part(void *context, int thread, int threads) {
    const gg_lstm_layer *l = context;
    const gg_lstm_op *op = l->op;
    size_t begin, end;
    gg_parallel_split((size_t)op->batch, 1, thread, threads, &begin, &end);
    for (size_t n = begin; n < end; ++n)
        for (int64_t t = 0; t < op->positions; ++t) {
            const int64_t row = (int64_t)n * op->positions + t, at = row * op->hidden;
            gg_lstm_drop(op->device, &op->head, l->args, l->number, (int64_t)n, t, l->states + at,
                         l->mask + row * op->dropout.mask_row, l->dropped + at);
        }
}

static void begin_layer(const gg_lstm_layer *l) {
    const size_t bytes = (size_t)(2 * l->op->hidden) * sizeof(float);
    for (int64_t n = 0; n < l->op->batch; ++n) {
        const float *carried = gg_lstm_carried(&l->op->head, l->args, l->number, n);
        float *first = l->first + 2 * n * l->op->hidden;
        if (carried != NULL) memcpy(first, carried, bytes);
        else memset(first, 0, bytes);
    }
}

static void leave_layer(const gg_lstm_layer *l) {
    const int64_t hidden = l->op->hidden;
    for (int64_t n = 0; n < l->op->batch; ++n) {
        const int64_t last = (n * l->op->positions + l->op->positions - 1) * hidden;
        float *carried = gg_lstm_carried(&l->op->head, l->args, l->number, n);
        if (carried == NULL) return;
        memcpy(carried, l->states + last, (size_t)hidden * sizeof(float));
        memcpy(carried + hidden, l->cells + last, (size_t)hidden * sizeof(float));
    }
}

/* Rows of the first and last products: one a position, or one a row of the table. */
static int64_t rows_of_input(const gg_lstm_layer *l) {
    return has_tokens(l->op, l->number) ? l->op->numbers : l->op->batch * l->op->positions;
}
static float *gates_of_input(const gg_lstm_layer *l) { return has_tokens(l->op, l->number) ? l->of_token : l->gates; }

/* The input's part of the gates: its rows times the transposed weights. */
static gg_sgemm input_product(const gg_lstm_layer *l) {
    const int64_t gates = 4 * l->op->hidden;
    return (gg_sgemm){.m = rows_of_input(l),
                      .n = gates,
                      .k = l->inputs,
                      .a = l->in,
                      .b = gg_lstm_parameter(&l->op->head, l->args, l->number, GG_LSTM_WEIGHT_IH),
                      .c = gates_of_input(l),
                      .lda = l->inputs,
                      .ldb = l->inputs,
                      .ldc = l->op->gate_row,
                      .bias = l->op->head.desc.bias ? (const float *)l->args->scratch + l->op->bias_at : NULL,
                      .transpose_b = true};
}

static void run_positions(gg_lstm_layer *l, gg_parallel_fn part, bool forward) {
    const gg_lstm_op *op = l->op;
    const int64_t runs = op->by_units ? op->positions : 1;
    for (int64_t i = 0; i < runs; ++i) {
        l->position = forward ? i : runs - 1 - i;
        gg_parallel_run(op->device->threads, part, l);
    }
}

static gg_status native_lstm_forward(gg_op *head, const gg_op_args *args) {
    gg_lstm_op *op = (gg_lstm_op *)head;
    if (op->numbers > 0) GG_TRY(gg_native_check_tokens(op->batch, op->positions, op->numbers, args->input[0]));
    for (int64_t number = 0; number < op->layers; ++number) {
        gg_lstm_layer l = layer_of(op, args, number);
        begin_layer(&l);
        gg_parallel_run(op->device->threads, lstm_prepare_part, &l);
        if (head->desc.bias) gg_lstm_add_biases(op->device, head, args, number, (float *)args->scratch + op->bias_at);
        const gg_sgemm product = input_product(&l);
        gg_sgemm_run(op->device->isa, &product, op->device->threads, (float *)args->scratch + op->product_at);
        run_positions(&l, lstm_forward_part, true);
        if (l.drops) gg_parallel_run(op->device->threads, lstm_drop_part, &l);
        leave_layer(&l);
    }
    return GG_OK;
}

/* ------------------------------------------------------------------------------------------ backward */

/* Copies the states before each position side by side. */
static void lstm_gather_part(void *context, int thread, int threads) {
    const gg_lstm_layer *l = context;
    const gg_lstm_op *op = l->op;
    const int64_t hidden = op->hidden;
    float *before = (float *)l->args->scratch + op->before_at;
    op->products->pack(l, false, thread, threads);
    size_t begin, end;
    gg_parallel_split((size_t)op->batch, 1, thread, threads, &begin, &end);
    for (int64_t n = (int64_t)begin; n < (int64_t)end; ++n)
        for (int64_t t = 0; t < op->positions; ++t)
            memcpy(before + (n * op->positions + t) * hidden, state_before(l, n, t), (size_t)hidden * sizeof(float));
}

static void backward_position(const gg_lstm_layer *l, int64_t t, const gg_lstm_share *share) {
    const gg_lstm_op *op = l->op;
    const int64_t hidden = op->hidden, units = share->units_end - share->unit;
    const gg_cpu_lstm *kernels = gg_cpu_device_kernels(op->device)->lstm;
    const size_t bytes = (size_t)units * sizeof(float);
    if (t < op->positions - 1) op->products->errors(l, t, share);
    for (int64_t n = share->sample; n < share->samples_end; ++n) {
        const int64_t row = n * op->positions + t, at = row * hidden + share->unit, own = n * hidden + share->unit;
        if (t == op->positions - 1) {
            memset(l->later + own, 0, bytes);
            memset(l->cell_error + own, 0, bytes);
        }
        kernels->backward(units, hidden, l->gates + row * op->gate_row + share->unit,
                          cell_before(l, n, t) + share->unit, l->cells + at, l->error + at, l->later + own,
                          l->cell_error + own);
    }
    op->products->keep_errors(l, t, share);
}

static void lstm_backward_part(void *context, int thread, int threads) {
    const gg_lstm_layer *l = context;
    const gg_lstm_share share = share_of(l->op, thread, threads);
    if (is_empty(&share)) return;
    if (l->op->by_units) {
        backward_position(l, l->position, &share);
        return;
    }
    for (int64_t t = l->op->positions - 1; t >= 0; --t) backward_position(l, t, &share);
}

static gg_sgemm data_product(const gg_lstm_layer *l, float *out) {
    const int64_t gates = 4 * l->op->hidden;
    return (gg_sgemm){.m = rows_of_input(l),
                      .n = l->inputs,
                      .k = gates,
                      .a = gates_of_input(l),
                      .b = gg_lstm_parameter(&l->op->head, l->args, l->number, GG_LSTM_WEIGHT_IH),
                      .c = out,
                      .lda = l->op->gate_row,
                      .ldb = l->inputs,
                      .ldc = l->inputs};
}

/* (4H, rows) times (rows, of the input or of the previous states). */
static gg_sgemm weight_product(const gg_lstm_layer *l, int64_t rows, float *errors, int64_t columns, const float *input,
                               float *out) {
    const int64_t gates = 4 * l->op->hidden;
    return (gg_sgemm){.m = gates,
                      .n = columns,
                      .k = rows,
                      .a = errors,
                      .b = input,
                      .c = out,
                      .lda = l->op->gate_row,
                      .ldb = columns,
                      .ldc = columns,
                      .transpose_a = true};
}

static gg_sgemm input_weight_product(const gg_lstm_layer *l, float *out) {
    return weight_product(l, rows_of_input(l), gates_of_input(l), l->inputs, l->in, out);
}

static gg_sgemm state_weight_product(const gg_lstm_layer *l, const float *before, float *out) {
    return weight_product(l, l->op->batch * l->op->positions, l->gates, l->op->hidden, before, out);
}

/* Adds the gate errors of all positions with each token. */
static void lstm_add_tokens_part(void *context, int thread, int threads) {
    const gg_lstm_layer *l = context;
    const gg_lstm_op *op = l->op;
    size_t begin, end;
    gg_parallel_split((size_t)(4 * op->hidden), GG_LANES, thread, threads, &begin, &end);
    for (int64_t i = 0; i < op->numbers; ++i)
        gg_native_add_rows(gg_cpu_device_kernels(op->device)->elementwise, l->order, op->numbers, i, l->gates + begin,
                           op->gate_row, end - begin, l->of_token + i * op->gate_row + begin);
}

static void add_tokens(gg_lstm_layer *l) {
    const gg_lstm_op *op = l->op;
    gg_native_order_tokens(op->numbers, op->batch * op->positions, l->token, l->order);
    gg_parallel_run(op->device->threads, lstm_add_tokens_part, l);
}

static void weight_gradients(const gg_lstm_layer *l) {
    const gg_lstm_op *op = l->op;
    float *scratch = l->args->scratch;
    const gg_sgemm input = input_weight_product(l, gg_lstm_gradient(&op->head, l->args, l->number, GG_LSTM_WEIGHT_IH));
    const gg_sgemm states = state_weight_product(l, scratch + op->before_at,
                                                 gg_lstm_gradient(&op->head, l->args, l->number, GG_LSTM_WEIGHT_HH));
    gg_sgemm_run(op->device->isa, &input, op->device->threads, scratch + op->product_at);
    gg_sgemm_run(op->device->isa, &states, op->device->threads, scratch + op->product_at);
    if (op->head.desc.bias)
        gg_lstm_bias_gradients(op->device, &op->head, l->args, l->number, rows_of_input(l), gates_of_input(l),
                               op->gate_row);
}

/* Error of the states, from the error of the next layer's input. */
static void lstm_undrop_part(void *context, int thread, int threads) {
    const gg_lstm_layer *l = context;
    const gg_lstm_op *op = l->op;
    const gg_cpu_elementwise *kernels = gg_cpu_device_kernels(op->device)->elementwise;
    float *error = (float *)l->args->scratch + op->error_at;
    size_t begin, end;
    gg_parallel_split((size_t)(op->batch * op->positions), 1, thread, threads, &begin, &end);
    for (int64_t row = (int64_t)begin; row < (int64_t)end; ++row) {
        float *d = error + row * op->hidden;
        kernels->masked_scale((size_t)op->hidden, d, l->mask + row * op->dropout.mask_row, op->dropout.keep_scale, d);
    }
}

static gg_status native_lstm_backward(gg_op *head, const gg_op_args *args) {
    gg_lstm_op *op = (gg_lstm_op *)head;
    float *scratch = args->scratch;
    for (int64_t number = op->layers - 1; number >= 0; --number) {
        gg_lstm_layer l = layer_of(op, args, number);
        float *out = number > 0 ? scratch + op->error_at : args->grad_input[0];
        if (l.token != NULL) out = args->gradient[GG_LSTM_TABLE];
        l.error = number == op->layers - 1 ? args->grad_output : scratch + op->error_at;
        if (l.drops) gg_parallel_run(op->device->threads, lstm_undrop_part, &l);
        gg_parallel_run(op->device->threads, lstm_gather_part, &l);
        run_positions(&l, lstm_backward_part, false);
        if (l.token != NULL) add_tokens(&l);
        weight_gradients(&l);
        if (out == NULL) continue;
        const gg_sgemm product = data_product(&l, out);
        gg_sgemm_run(op->device->isa, &product, op->device->threads, scratch + op->product_at);
    }
    return GG_OK;
}

static const gg_op_class lstm_class = {
    .forward = native_lstm_forward, .backward_data = native_lstm_backward, .destroy = gg_native_op_free};

/* ------------------------------------------------------------------------------------------ creation */

/* Reserves `floats`, 64-byte aligned. */
static size_t add_room(size_t *used, size_t floats) {
    const size_t at = *used;
    *used += (floats + GG_LANES - 1) / GG_LANES * GG_LANES;
    return at;
}

/* Assigns memory for the layers, then for temporaries that all layers share. */
static void lay_out(gg_lstm_op *op) {
    const bool training = op->head.desc.training;
    const size_t all = (size_t)(op->batch * op->positions), hidden = (size_t)op->hidden;
    size_t used = 0, scratch = 0;
    op->gates_at = add_room(&used, all * (size_t)op->gate_row);
    op->cells_at = add_room(&used, all * hidden);
    op->first_at = add_room(&used, 2 * (size_t)op->batch * hidden);
    op->states_at = op->layers > 1 ? add_room(&used, all * hidden) : 0;
    op->dropped_at = op->layers > 1 && (op->dropout.used || !training) ? add_room(&used, all * hidden) : op->states_at;
    op->mask_at = op->dropout.used ? add_room(&used, (all * (size_t)op->dropout.mask_row + 3) / sizeof(float)) : 0;
    op->layer_floats = used;
    if (training) op->head.saved_bytes = (size_t)op->layers * used * sizeof(float);
    else scratch = used;
    const gg_lstm_products *products = op->products;
    const size_t forward = products->packed_floats(op, true);
    const size_t backward = training ? products->packed_floats(op, false) : 0;
    op->packed_at = add_room(&scratch, forward > backward ? forward : backward);
    op->rows_at = add_room(&scratch, 2 * products->rows_floats(op, training));
    if (products->apart) op->sums_at = add_room(&scratch, (size_t)(op->batch * op->gate_row));
    op->own_at = add_room(&scratch, (size_t)op->device->threads * products->own_floats(op));
    op->bias_at = add_room(&scratch, 4 * hidden);
    op->token_at = add_room(&scratch, (size_t)(op->numbers * op->gate_row));
    if (training) {
        op->order_at = add_room(&scratch, op->numbers > 0 ? gg_native_order_size(op->numbers, (int64_t)all) : 0);
        op->later_at = add_room(&scratch, (size_t)op->batch * hidden);
        op->cell_error_at = add_room(&scratch, (size_t)op->batch * hidden);
        op->error_at = op->layers > 1 ? add_room(&scratch, all * hidden) : 0;
        op->before_at = add_room(&scratch, all * hidden);
    }
    op->product_at = scratch;
}

static void lstm_scratch(gg_lstm_op *op) {
    const float *none[6] = {NULL}; /* up to the first weight of the second layer, after a table */
    size_t most = 0;
    for (int64_t i = 0; i < 2; ++i) {
        const gg_op_args args = {.parameter = none};
        const gg_lstm_layer l = {.op = op, .args = &args, .number = i, .inputs = i == 0 ? op->inputs : op->hidden};
        const gg_sgemm product[4] = {input_product(&l), data_product(&l, NULL), input_weight_product(&l, NULL),
                                     state_weight_product(&l, NULL, NULL)};
        for (int k = 0; k < 4; ++k) {
            const size_t bytes = gg_sgemm_scratch(op->device->isa, &product[k], op->device->threads);
            if (bytes > most) most = bytes;
        }
    }
    op->head.scratch_bytes = op->product_at * sizeof(float) + most;
}

/* desc of an LSTM over tokens as if its input were rows. */
static gg_op_desc over_rows(const gg_op_desc *desc) {
    gg_op_desc plain = *desc;
    if (desc->lstm.numbers < 1) return plain;
    plain.lstm.numbers = 0;
    plain.input[0] = (gg_shape){2, {desc->input[0].size[0], desc->lstm.features}};
    plain.offered[0].dtype = GG_FLOAT32;
    return plain;
}

gg_status gg_native_lstm_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_op *head = NULL;
    *out = NULL;
    const gg_op_desc plain = over_rows(desc);
    GG_TRY(gg_op_check_lstm(&plain));
    if (desc->lstm.numbers > 0 &&
        (desc->dtype != GG_FLOAT32 || 2 * desc->lstm.numbers > desc->batch * desc->input[0].size[0]))
        return gg_fail(GG_ERROR_UNSUPPORTED,
                       "an LSTM of tokens is for float32, and for twice as many tokens as its table has rows");
    const gg_gemm_kernels *kernels = gg_cpu_device_kernels(device)->gemm;
    GG_TRY(gg_native_op_create(&plain, &lstm_class, sizeof(gg_lstm_op), &head));
    gg_lstm_op *op = (gg_lstm_op *)head;
    head->desc = *desc;
    head->input[0] = (gg_format){desc->lstm.numbers > 0 ? GG_INT32 : GG_FLOAT32, GG_LAYOUT_PLAIN};
    head->output.layout = GG_LAYOUT_PLAIN;
    head->backward_needs_input = 1;
    head->backward_needs_output = true;
    op->device = device;
    op->kernels = kernels;
    op->batch = desc->batch;
    op->positions = plain.input[0].size[0];
    op->inputs = plain.input[0].size[1];
    op->numbers = desc->lstm.numbers;
    op->hidden = desc->output.size[1];
    op->layers = desc->lstm.layers;
    op->state_row = gg_odd_lines(op->hidden);
    op->gate_row = gg_odd_lines(4 * op->hidden);
    gg_lstm_choose_products(op);
    const int64_t grain = op->products->unit_grain(op);
    op->by_units = device->threads > 1 && op->hidden % grain == 0 && op->hidden >= 2 * grain &&
                   4 * op->hidden * op->hidden > GG_LSTM_LARGE_WEIGHTS;
    op->dropout = gg_lstm_dropout_of(desc);
    lay_out(op);
    lstm_scratch(op);
    *out = head;
    return GG_OK;
}
