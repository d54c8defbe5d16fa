/* LSTM in bfloat16: (T, I) to (T, H), one or more layers, PLAIN, with the gates and dropout of the native LSTM.
 *
 * Operands of products are bfloat16: inputs, states, weights and gate errors. Gates, cells and all sums are float32.
 * Inside the operation positions come first, so each product reads and writes one block of memory. One product for all
 * positions begins a layer's gates. Then each position adds the product of the previous states. Backward ends with one
 * product for each gradient. Weights are packed in the blocks that the products read.
 *
 * A layer's states begin with its initial states. The states before each position are therefore this array, one
 * position earlier. */
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "cpu/native.h"
#include "cpu/onednn_common.h"
#include "cpu/recurrent/lstm_shared.h"

/* Layers after the first have equal shapes. */
typedef enum lstm_product_kind {
    FORWARD_FIRST = 0, /* inputs to gates */
    FORWARD_LATER,
    FORWARD_STATES, /* states before a position to its gates */
    DATA_FIRST,     /* errors of the gates to errors of the inputs */
    DATA_LATER,
    DATA_STATES,   /* errors of a position's gates to errors of the states before it */
    WEIGHTS_FIRST, /* errors of the gates and inputs to the gradient of the weights */
    WEIGHTS_LATER, /* for the recurrent weights */
    PRODUCTS
} lstm_product_kind;

/* A primitive with a memory object for each argument; the scratchpad, if any, is the last. */
typedef struct lstm_primitive {
    dnnl_primitive_t primitive;
    int arguments;
    bool scratchpad;
    dnnl_exec_arg_t argument[5];
} lstm_primitive;

typedef struct lstm_product {
    lstm_primitive run, pack; /* pack: of its weights */
    size_t packed_bytes;
} lstm_product;

typedef struct narrow_lstm {
    gg_op head;
    gg_device *device;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_attr_t attributes[2]; /* of products; the second adds to the result. NULL after creation */
    lstm_product product[PRODUCTS];
    int64_t batch, positions, inputs, hidden, layers;
    gg_lstm_dropout dropout;
    /* Sizes and offsets in bytes. */
    size_t layer_bytes, gates_at, cells_at, first_cells_at, states_at, dropped_at, mask_at, in_at;
    size_t bias_at, hidden_at, row_at, later_at, cell_error_at, error_at, errors_at, data_at, scratchpad_at;
} narrow_lstm;

/* One layer of one run. Rows of all samples are stored position by position. */
typedef struct lstm_layer {
    const narrow_lstm *op;
    const gg_op_args *args;
    int64_t number, position;
    bool first, last, drops;
    const uint16_t *in;         /* (T, N, I); after the first layer (T, N, H) */
    float *gates, *cells;       /* (T, N, 4H), (T, N, H) */
    float *first_cells;         /* (N, H) */
    uint16_t *states, *dropped; /* (1 + T, N, H); (T, N, H), the next layer's input */
    uint8_t *mask;              /* (T, N, mask_row) */
    float *hidden, *row;        /* (N, H): the states of a position, and room for a row of each sample */
    float *later, *cell_error;  /* (N, H) */
    float *error;               /* (T, N, H): error of the states, except in the last layer */
    uint16_t *errors;           /* (T, N, 4H): errors of the gates */
} lstm_layer;

static void *at(const void *base, size_t bytes) { return (char *)(uintptr_t)base + bytes; }

static lstm_layer layer_of(const narrow_lstm *op, const gg_op_args *args, int64_t number) {
    const bool training = op->head.desc.training;
    const void *base = training ? args->saved : args->scratch;
    const void *own = at(base, (size_t)(training ? number : 0) * op->layer_bytes);
    /* Without training the previous layer's states are still read, so layers alternate. */
    const size_t other = training || number % 2 == 0 ? 0 : op->dropped_at - op->states_at;
    lstm_layer l = {.op = op, .args = args, .number = number};
    l.first = number == 0;
    l.last = number == op->layers - 1;
    l.drops = op->dropout.used && !l.last && !args->evaluate;
    l.gates = at(own, op->gates_at);
    l.cells = at(own, op->cells_at);
    l.first_cells = at(own, op->first_cells_at);
    l.states = at(own, op->states_at + other);
    l.dropped = l.drops ? at(own, op->dropped_at) : l.states + op->batch * op->hidden;
    l.mask = at(own, op->mask_at);
    l.hidden = at(args->scratch, op->hidden_at);
    l.row = at(args->scratch, op->row_at);
    l.later = at(args->scratch, op->later_at);
    l.cell_error = at(args->scratch, op->cell_error_at);
    l.error = at(args->scratch, op->error_at);
    l.errors = at(args->scratch, op->errors_at);
    if (l.first) {
        l.in = at(base, op->in_at);
    } else {
        const lstm_layer before = layer_of(op, args, number - 1);
        l.in = before.dropped;
    }
    return l;
}

/* ------------------------------------------------------------------------------------------ products */

/* data: addresses of all arguments except the scratchpad. */
static gg_status run_primitive(const narrow_lstm *op, const lstm_primitive *it, const gg_op_args *args,
                               const void *const *data) {
    for (int i = 0; i < it->arguments; i++) {
        const bool scratchpad = it->scratchpad && i == it->arguments - 1;
        /* oneDNN's API has no const, but does not write inputs. */
        void *place = scratchpad ? at(args->scratch, op->scratchpad_at) : (void *)(uintptr_t)data[i];
        GG_DNN_TRY(dnnl_memory_set_data_handle, it->argument[i].memory, place);
    }
    GG_DNN_TRY(gg_dnn_execute, it->primitive, op->stream, it->arguments, it->argument);
    GG_DNN_TRY(dnnl_stream_wait, op->stream);
    return GG_OK;
}

static gg_status multiply(const lstm_layer *l, lstm_product_kind kind, const void *a, const void *b, const void *out,
                          const void *bias) {
    const void *const data[4] = {a, b, out, bias};
    return run_primitive(l->op, &l->op->product[kind].run, l->args, data);
}

/* Packed weights of a layer for a pass: the inputs' weights, or the recurrent ones. */
static const void *packed_weights(const narrow_lstm *op, const gg_op_args *args, gg_pass pass, int64_t number,
                                  bool states) {
    const lstm_product *products = op->product + (pass == GG_PASS_FORWARD ? FORWARD_FIRST : DATA_FIRST);
    const size_t first = products[0].packed_bytes, later = products[1].packed_bytes, own = products[2].packed_bytes;
    size_t offset = number == 0 ? 0 : first + own + (size_t)(number - 1) * (later + own);
    if (states) offset += number == 0 ? first : later;
    return at(args->prepared, offset);
}

static gg_status narrow_lstm_prepare(gg_op *head, const gg_op_args *args, gg_pass pass) {
    const narrow_lstm *op = (narrow_lstm *)head;
    const lstm_product *products = op->product + (pass == GG_PASS_FORWARD ? FORWARD_FIRST : DATA_FIRST);
    gg_parallel_set_threads(op->device->threads);
    for (int64_t number = 0; number < op->layers; ++number) {
        const void *const inputs[2] = {gg_lstm_parameter(head, args, number, GG_LSTM_WEIGHT_IH),
                                       packed_weights(op, args, pass, number, false)};
        const void *const states[2] = {gg_lstm_parameter(head, args, number, GG_LSTM_WEIGHT_HH),
                                       packed_weights(op, args, pass, number, true)};
        const lstm_primitive *pack = &products[number == 0 ? 0 : 1].pack;
        if (pack->primitive != NULL) GG_TRY(run_primitive(op, pack, args, inputs));
        GG_TRY(run_primitive(op, &products[2].pack, args, states));
    }
    return GG_OK;
}

/* ------------------------------------------------------------------------------------------- forward */

typedef struct lstm_samples {
    int64_t begin, end;
} lstm_samples;

static lstm_samples samples_of(const narrow_lstm *op, int thread, int threads) {
    size_t begin, end;
    gg_parallel_split((size_t)op->batch, 1, thread, threads, &begin, &end);
    return (lstm_samples){(int64_t)begin, (int64_t)end};
}

static void lstm_begin_part(void *context, int thread, int threads) {
    const lstm_layer *l = context;
    const narrow_lstm *op = l->op;
    const gg_cpu_kernels *kernels = gg_cpu_device_kernels(op->device);
    const lstm_samples share = samples_of(op, thread, threads);
    const size_t hidden = (size_t)op->hidden;
    for (int64_t n = share.begin; n < share.end; ++n) {
        const float *carried = gg_lstm_carried(&op->head, l->args, l->number, n);
        uint16_t *states = l->states + n * op->hidden;
        float *cells = l->first_cells + n * op->hidden;
        if (carried == NULL) {
            memset(states, 0, hidden * sizeof *states);
            memset(cells, 0, hidden * sizeof *cells);
        } else {
            gg_cpu_narrow_any(kernels, hidden, carried, states);
            memcpy(cells, carried + hidden, hidden * sizeof *cells);
        }
        const uint16_t *from = l->first ? (const uint16_t *)l->args->input[0] + n * op->positions * op->inputs : NULL;
        for (int64_t t = 0; from != NULL && t < op->positions; ++t)
            memcpy((uint16_t *)(uintptr_t)l->in + (t * op->batch + n) * op->inputs, from + t * op->inputs,
                   (size_t)op->inputs * sizeof *from);
    }
}

/* Writes the next layer's input from a row of states. */
static void drop_row(const lstm_layer *l, int64_t n, int64_t t) {
    const narrow_lstm *op = l->op;
    const int64_t row = t * op->batch + n;
    float *scaled = l->row + n * op->hidden;
    gg_lstm_drop(op->device, &op->head, l->args, l->number, n, t, l->hidden + n * op->hidden,
                 l->mask + row * op->dropout.mask_row, scaled);
    gg_cpu_narrow_any(gg_cpu_device_kernels(op->device), (size_t)op->hidden, scaled, l->dropped + row * op->hidden);
}

/* The cells before a position of a sample. */
static const float *cells_before(const lstm_layer *l, int64_t n, int64_t t) {
    const narrow_lstm *op = l->op;
    return t == 0 ? l->first_cells + n * op->hidden : l->cells + ((t - 1) * op->batch + n) * op->hidden;
}

static void lstm_forward_part(void *context, int thread, int threads) {
    const lstm_layer *l = context;
    const narrow_lstm *op = l->op;
    const gg_cpu_kernels *kernels = gg_cpu_device_kernels(op->device);
    const lstm_samples share = samples_of(op, thread, threads);
    const int64_t hidden = op->hidden, t = l->position;
    for (int64_t n = share.begin; n < share.end; ++n) {
        const int64_t row = t * op->batch + n;
        float *made = l->hidden + n * hidden;
        uint16_t *states = l->states + (row + op->batch) * hidden;
        kernels->lstm->forward(hidden, hidden, l->gates + row * 4 * hidden, cells_before(l, n, t),
                               l->cells + row * hidden, made);
        gg_cpu_narrow_any(kernels, (size_t)hidden, made, states);
        if (l->last)
            memcpy((uint16_t *)l->args->output + (n * op->positions + t) * hidden, states,
                   (size_t)hidden * sizeof *states);
        if (l->drops) drop_row(l, n, t);
    }
}

static void leave_layer(const lstm_layer *l) {
    const narrow_lstm *op = l->op;
    const size_t bytes = (size_t)op->hidden * sizeof(float);
    for (int64_t n = 0; n < op->batch; ++n) {
        float *carried = gg_lstm_carried(&op->head, l->args, l->number, n);
        if (carried == NULL) return;
        memcpy(carried, l->hidden + n * op->hidden, bytes);
        memcpy(carried + op->hidden, cells_before(l, n, op->positions), bytes);
    }
}

static int threads_of(const narrow_lstm *op) {
    return gg_cpu_threads_for(op->device, (size_t)(4 * op->batch * op->hidden));
}

static gg_status narrow_lstm_forward(gg_op *head, const gg_op_args *args) {
    const narrow_lstm *op = (narrow_lstm *)head;
    float *bias = head->desc.bias ? at(args->scratch, op->bias_at) : NULL;
    gg_parallel_set_threads(op->device->threads);
    for (int64_t number = 0; number < op->layers; ++number) {
        lstm_layer l = layer_of(op, args, number);
        const void *weights = packed_weights(op, args, GG_PASS_FORWARD, number, true);
        gg_parallel_run(threads_of(op), lstm_begin_part, &l);
        if (bias != NULL) gg_lstm_add_biases(op->device, head, args, number, bias);
        GG_TRY(multiply(&l, l.first ? FORWARD_FIRST : FORWARD_LATER, l.in,
                        packed_weights(op, args, GG_PASS_FORWARD, number, false), l.gates, bias));
        for (int64_t t = 0; t < op->positions; ++t) {
            const int64_t rows = t * op->batch;
            l.position = t;
            GG_TRY(multiply(&l, FORWARD_STATES, l.states + rows * op->hidden, weights, l.gates + rows * 4 * op->hidden,
                            NULL));
            gg_parallel_run(threads_of(op), lstm_forward_part, &l);
        }
        leave_layer(&l);
    }
    return GG_OK;
}

/* ------------------------------------------------------------------------------------------ backward */

static void lstm_backward_part(void *context, int thread, int threads) {
    const lstm_layer *l = context;
    const narrow_lstm *op = l->op;
    const gg_cpu_kernels *kernels = gg_cpu_device_kernels(op->device);
    const lstm_samples share = samples_of(op, thread, threads);
    const int64_t hidden = op->hidden, t = l->position;
    const size_t bytes = (size_t)hidden * sizeof(float);
    for (int64_t n = share.begin; n < share.end; ++n) {
        const int64_t row = t * op->batch + n, own = n * hidden;
        float *error = l->last ? l->row + own : l->error + row * hidden, *gates = l->gates + row * 4 * hidden;
        if (l->last)
            gg_cpu_widen_any(kernels, (size_t)hidden,
                             (const uint16_t *)l->args->grad_output + (n * op->positions + t) * hidden, error);
        else if (l->drops)
            kernels->elementwise->masked_scale((size_t)hidden, error, l->mask + row * op->dropout.mask_row,
                                               op->dropout.keep_scale, error);
        if (t == op->positions - 1) {
            memset(l->later + own, 0, bytes);
            memset(l->cell_error + own, 0, bytes);
        }
        kernels->lstm->backward(hidden, hidden, gates, cells_before(l, n, t), l->cells + row * hidden, error,
                                l->later + own, l->cell_error + own);
        gg_cpu_narrow_any(kernels, (size_t)(4 * hidden), gates, l->errors + row * 4 * hidden);
    }
}

/* Copies the errors of the inputs, sample by sample. */
static void lstm_return_part(void *context, int thread, int threads) {
    const lstm_layer *l = context;
    const narrow_lstm *op = l->op;
    const lstm_samples share = samples_of(op, thread, threads);
    const uint16_t *from = at(l->args->scratch, op->data_at);
    uint16_t *to = l->args->grad_input[0];
    for (int64_t n = share.begin; n < share.end; ++n)
        for (int64_t t = 0; t < op->positions; ++t)
            memcpy(to + (n * op->positions + t) * op->inputs, from + (t * op->batch + n) * op->inputs,
                   (size_t)op->inputs * sizeof *to);
}

static gg_status weight_gradients(const lstm_layer *l) {
    const narrow_lstm *op = l->op;
    GG_TRY(multiply(l, l->first ? WEIGHTS_FIRST : WEIGHTS_LATER, l->in, l->errors,
                    gg_lstm_gradient(&op->head, l->args, l->number, GG_LSTM_WEIGHT_IH), NULL));
    GG_TRY(multiply(l, WEIGHTS_LATER, l->states, l->errors,
                    gg_lstm_gradient(&op->head, l->args, l->number, GG_LSTM_WEIGHT_HH), NULL));
    if (op->head.desc.bias)
        gg_lstm_bias_gradients(op->device, &op->head, l->args, l->number, op->batch * op->positions, l->gates,
                               4 * op->hidden);
    return GG_OK;
}

static gg_status narrow_lstm_backward(gg_op *head, const gg_op_args *args) {
    const narrow_lstm *op = (narrow_lstm *)head;
    gg_parallel_set_threads(op->device->threads);
    for (int64_t number = op->layers - 1; number >= 0; --number) {
        lstm_layer l = layer_of(op, args, number);
        const void *weights = packed_weights(op, args, GG_PASS_DATA, number, true);
        for (int64_t t = op->positions - 1; t >= 0; --t) {
            const uint16_t *behind = l.errors + (t + 1) * op->batch * 4 * op->hidden;
            l.position = t;
            if (t < op->positions - 1) GG_TRY(multiply(&l, DATA_STATES, behind, weights, l.later, NULL));
            gg_parallel_run(threads_of(op), lstm_backward_part, &l);
        }
        GG_TRY(weight_gradients(&l));
        if (l.first && args->grad_input[0] == NULL) continue;
        GG_TRY(multiply(&l, l.first ? DATA_FIRST : DATA_LATER, l.errors,
                        packed_weights(op, args, GG_PASS_DATA, number, false),
                        l.first ? at(args->scratch, op->data_at) : l.error, NULL));
        if (l.first) gg_parallel_run(threads_of(op), lstm_return_part, &l);
    }
    return GG_OK;
}

static void drop_attributes(narrow_lstm *op) {
    for (int i = 0; i < 2; i++) {
        if (op->attributes[i] != NULL) dnnl_primitive_attr_destroy(op->attributes[i]);
        op->attributes[i] = NULL;
    }
}

static void destroy_primitive(const lstm_primitive *it) {
    for (int i = 0; i < it->arguments; i++)
        if (it->argument[i].memory != NULL) dnnl_memory_destroy(it->argument[i].memory);
    if (it->primitive != NULL) dnnl_primitive_destroy(it->primitive);
}

static void narrow_lstm_destroy(gg_op *head) {
    narrow_lstm *op = (narrow_lstm *)head;
    for (int i = 0; i < PRODUCTS; i++) {
        destroy_primitive(&op->product[i].run);
        destroy_primitive(&op->product[i].pack);
    }
    drop_attributes(op);
    if (op->stream != NULL) dnnl_stream_destroy(op->stream);
    gg_free(op);
}

static const gg_op_class narrow_lstm_class = {.prepare = narrow_lstm_prepare,
                                              .forward = narrow_lstm_forward,
                                              .backward_data = narrow_lstm_backward,
                                              .destroy = narrow_lstm_destroy};

/* ------------------------------------------------------------------------------------------ creation */

static gg_status matrix(int64_t rows, int64_t cols, dnnl_data_type_t type, dnnl_format_tag_t tag,
                        dnnl_memory_desc_t *out) {
    dnnl_dims_t size = {rows, cols};
    GG_DNN_TRY(dnnl_memory_desc_create_with_tag, out, 2, size, type, tag);
    return GG_OK;
}

/* Creates a primitive with arguments of md[0], md[1], ..., and reserves its scratchpad after all other data. */
static gg_status make_primitive(narrow_lstm *op, const_dnnl_primitive_desc_t pd, int arguments, const int *argument,
                                const const_dnnl_memory_desc_t *md, lstm_primitive *out) {
    const_dnnl_memory_desc_t scratchpad = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    const size_t bytes = scratchpad != NULL ? dnnl_memory_desc_get_size(scratchpad) : 0;
    GG_DNN_TRY(dnnl_primitive_create, &out->primitive, pd);
    for (int i = 0; i < arguments + (bytes > 0); i++) {
        out->argument[i].arg = i < arguments ? argument[i] : DNNL_ARG_SCRATCHPAD;
        GG_DNN_TRY(dnnl_memory_create, &out->argument[i].memory, i < arguments ? md[i] : scratchpad, op->engine,
                   DNNL_MEMORY_NONE);
        out->arguments++;
    }
    out->scratchpad = bytes > 0;
    if (bytes > op->head.scratch_bytes) op->head.scratch_bytes = bytes;
    return GG_OK;
}

/* Creates a product of `m` rows with weights, and their packing. The parameter, (4H, columns), is read as stored or
 * transposed. add: to the result; bias: one for each column of the result. */
static gg_status make_product(narrow_lstm *op, lstm_product_kind kind, int64_t m, int64_t columns, bool transposed,
                              bool add, bool bias, dnnl_data_type_t out) {
    static const int arguments[4] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS};
    static const int copied[2] = {DNNL_ARG_FROM, DNNL_ARG_TO};
    gg_status status = GG_OK;
    const int64_t gates = 4 * op->hidden, k = transposed ? columns : gates, n = transposed ? gates : columns;
    enum { SOURCE, WEIGHTS, TARGET, BIAS, PARAMETER, COUNT };
    dnnl_memory_desc_t md[COUNT] = {NULL};
    dnnl_primitive_desc_t pd = NULL, pack = NULL;
    lstm_product *product = &op->product[kind];
    GG_TRY_CLEANUP(matrix(m, k, dnnl_bf16, dnnl_ab, &md[SOURCE]));
    GG_TRY_CLEANUP(matrix(k, n, dnnl_bf16, dnnl_format_tag_any, &md[WEIGHTS]));
    GG_TRY_CLEANUP(matrix(m, n, out, dnnl_ab, &md[TARGET]));
    GG_TRY_CLEANUP(matrix(1, n, dnnl_f32, dnnl_ab, &md[BIAS]));
    GG_TRY_CLEANUP(matrix(k, n, dnnl_f32, transposed ? dnnl_ba : dnnl_ab, &md[PARAMETER]));
    GG_DNN_TRY_CLEANUP(dnnl_matmul_primitive_desc_create, &pd, op->engine, md[SOURCE], md[WEIGHTS],
                       bias ? md[BIAS] : NULL, md[TARGET], op->attributes[add]);
    if (gg_dnn_is_slow(pd)) GG_FAIL_CLEANUP(GG_ERROR_UNSUPPORTED, "oneDNN has no kernels for an LSTM in bfloat16 here");
    const_dnnl_memory_desc_t packed = dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    const const_dnnl_memory_desc_t places[4] = {md[SOURCE], packed, md[TARGET], md[BIAS]};
    GG_TRY_CLEANUP(make_primitive(op, pd, bias ? 4 : 3, arguments, places, &product->run));
    GG_DNN_TRY_CLEANUP(dnnl_reorder_primitive_desc_create, &pack, md[PARAMETER], op->engine, packed, op->engine,
                       op->attributes[0]);
    const const_dnnl_memory_desc_t copies[2] = {md[PARAMETER], packed};
    GG_TRY_CLEANUP(make_primitive(op, pack, 2, copied, copies, &product->pack));
    product->packed_bytes = gg_aligned(dnnl_memory_desc_get_size(packed));
cleanup:
    for (int i = 0; i < COUNT; i++)
        if (md[i] != NULL) dnnl_memory_desc_destroy(md[i]);
    if (pd != NULL) dnnl_primitive_desc_destroy(pd);
    if (pack != NULL) dnnl_primitive_desc_destroy(pack);
    return status;
}

/* (4H, N*T) times (N*T, columns): an inner product, because its kernels need no copy of the first factor. */
static gg_status make_weights_product(narrow_lstm *op, lstm_product_kind kind, int64_t columns) {
    static const int arguments[3] = {DNNL_ARG_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_WEIGHTS};
    gg_status status = GG_OK;
    const int64_t rows = op->batch * op->positions, gates = 4 * op->hidden;
    enum { SOURCE, ERROR, GRADIENT, WEIGHTS, COUNT };
    dnnl_memory_desc_t md[COUNT] = {NULL};
    dnnl_primitive_desc_t hint = NULL, pd = NULL;
    GG_TRY_CLEANUP(matrix(rows, columns, dnnl_bf16, dnnl_ab, &md[SOURCE]));
    GG_TRY_CLEANUP(matrix(rows, gates, dnnl_bf16, dnnl_ab, &md[ERROR]));
    GG_TRY_CLEANUP(matrix(gates, columns, dnnl_f32, dnnl_ab, &md[GRADIENT]));
    GG_TRY_CLEANUP(matrix(gates, columns, dnnl_bf16, dnnl_format_tag_any, &md[WEIGHTS]));
    GG_DNN_TRY_CLEANUP(dnnl_inner_product_forward_primitive_desc_create, &hint, op->engine, dnnl_forward_training,
                       md[SOURCE], md[WEIGHTS], NULL, md[ERROR], op->attributes[0]);
    GG_DNN_TRY_CLEANUP(dnnl_inner_product_backward_weights_primitive_desc_create, &pd, op->engine, md[SOURCE],
                       md[GRADIENT], NULL, md[ERROR], hint, op->attributes[0]);
    const const_dnnl_memory_desc_t places[3] = {md[SOURCE], md[ERROR], md[GRADIENT]};
    GG_TRY_CLEANUP(make_primitive(op, pd, 3, arguments, places, &op->product[kind].run));
cleanup:
    for (int i = 0; i < COUNT; i++)
        if (md[i] != NULL) dnnl_memory_desc_destroy(md[i]);
    if (pd != NULL) dnnl_primitive_desc_destroy(pd);
    if (hint != NULL) dnnl_primitive_desc_destroy(hint);
    return status;
}

static gg_status make_attributes(narrow_lstm *op) {
    gg_status status = GG_OK;
    dnnl_post_ops_t sum = NULL;
    for (int i = 0; i < 2; i++) {
        GG_DNN_TRY_CLEANUP(dnnl_primitive_attr_create, &op->attributes[i]);
        GG_DNN_TRY_CLEANUP(dnnl_primitive_attr_set_scratchpad_mode, op->attributes[i], dnnl_scratchpad_mode_user);
    }
    GG_DNN_TRY_CLEANUP(dnnl_post_ops_create, &sum);
    GG_DNN_TRY_CLEANUP(dnnl_post_ops_append_sum, sum, 1, 0, dnnl_data_type_undef);
    GG_DNN_TRY_CLEANUP(dnnl_primitive_attr_set_post_ops, op->attributes[1], sum);
cleanup:
    if (sum != NULL) dnnl_post_ops_destroy(sum);
    return status;
}

static gg_status make_products(narrow_lstm *op) {
    gg_status status = GG_OK;
    const gg_op_desc *desc = &op->head.desc;
    const int64_t rows = op->batch * op->positions, hidden = op->hidden;
    const bool later = op->layers > 1;
    GG_TRY_CLEANUP(make_attributes(op));
    GG_TRY_CLEANUP(make_product(op, FORWARD_FIRST, rows, op->inputs, true, false, desc->bias, dnnl_f32));
    if (later) GG_TRY_CLEANUP(make_product(op, FORWARD_LATER, rows, hidden, true, false, desc->bias, dnnl_f32));
    GG_TRY_CLEANUP(make_product(op, FORWARD_STATES, op->batch, hidden, true, true, false, dnnl_f32));
    if (!desc->training) goto cleanup;
    if (desc->input_grad)
        GG_TRY_CLEANUP(make_product(op, DATA_FIRST, rows, op->inputs, false, false, false, dnnl_bf16));
    if (later) GG_TRY_CLEANUP(make_product(op, DATA_LATER, rows, hidden, false, false, false, dnnl_f32));
    GG_TRY_CLEANUP(make_product(op, DATA_STATES, op->batch, hidden, false, false, false, dnnl_f32));
    GG_TRY_CLEANUP(make_weights_product(op, WEIGHTS_FIRST, op->inputs));
    GG_TRY_CLEANUP(make_weights_product(op, WEIGHTS_LATER, hidden));
cleanup:
    drop_attributes(op);
    return status;
}

/* Reserves `count` elements, 64-byte aligned. */
static size_t add_room(size_t *used, int64_t count, size_t size) {
    const size_t here = *used;
    *used += gg_aligned((size_t)count * size);
    return here;
}

/* Assigns memory for the layers, then for temporaries that all layers share. */
static void lay_out(narrow_lstm *op) {
    const bool training = op->head.desc.training;
    const size_t wide = sizeof(float), narrow = sizeof(uint16_t);
    const int64_t rows = op->batch * op->positions, some = op->batch * op->hidden, all = rows * op->hidden;
    size_t used = 0, scratch = 0;
    op->gates_at = add_room(&used, 4 * all, wide);
    op->cells_at = add_room(&used, all, wide);
    op->first_cells_at = add_room(&used, some, wide);
    op->states_at = add_room(&used, some + all, narrow);
    op->dropped_at = op->states_at;
    if (training && op->dropout.used) op->dropped_at = add_room(&used, all, narrow);
    if (!training && op->layers > 1) op->dropped_at = add_room(&used, some + all, narrow);
    op->mask_at = op->dropout.used ? add_room(&used, rows * op->dropout.mask_row, 1) : 0;
    op->layer_bytes = used;
    if (training) used *= (size_t)op->layers;
    op->in_at = add_room(&used, rows * op->inputs, narrow);
    if (training) op->head.saved_bytes = used;
    else scratch = used;
    op->bias_at = add_room(&scratch, 4 * op->hidden, wide);
    op->hidden_at = add_room(&scratch, some, wide);
    op->row_at = add_room(&scratch, some, wide);
    if (training) {
        op->later_at = add_room(&scratch, some, wide);
        op->cell_error_at = add_room(&scratch, some, wide);
        op->error_at = op->layers > 1 ? add_room(&scratch, all, wide) : 0;
        op->errors_at = add_room(&scratch, 4 * all, narrow);
        op->data_at = op->head.desc.input_grad ? add_room(&scratch, rows * op->inputs, narrow) : 0;
    }
    op->scratchpad_at = scratch;
    op->head.scratch_bytes += scratch;
}

static size_t prepared_bytes(const narrow_lstm *op, lstm_product_kind first) {
    const lstm_product *products = op->product + first;
    return products[0].packed_bytes + (size_t)(op->layers - 1) * products[1].packed_bytes +
           (size_t)op->layers * products[2].packed_bytes;
}

static gg_status onednn_lstm_direct(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    void *block = NULL;
    *out = NULL;
    if (desc->dtype != GG_BFLOAT16 || device->isa < GG_ISA_AVX512)
        GG_FAIL_CLEANUP(GG_ERROR_UNSUPPORTED, "oneDNN's LSTM is for bfloat16 and AVX-512");
    if (desc->offered[0].dtype != GG_FLOAT32 && desc->offered[0].dtype != GG_BFLOAT16)
        GG_FAIL_CLEANUP(GG_ERROR_UNSUPPORTED, "oneDNN's LSTM reads float32 or bfloat16, not %s",
                        gg_dtype_name(desc->offered[0].dtype));
    GG_TRY_CLEANUP(gg_op_check_lstm(desc));
    GG_TRY_CLEANUP(gg_calloc(1, sizeof(narrow_lstm), "an operation", &block));
    narrow_lstm *op = block;
    op->head.type = &narrow_lstm_class;
    op->head.backend = GG_DNN_NAME;
    op->head.desc = *desc;
    op->head.input[0] = op->head.output = (gg_format){GG_BFLOAT16, GG_LAYOUT_PLAIN};
    op->device = device;
    op->engine = ((gg_dnn_device *)device)->engine;
    op->batch = desc->batch;
    op->positions = desc->input[0].size[0];
    op->inputs = desc->input[0].size[1];
    op->hidden = desc->output.size[1];
    op->layers = desc->lstm.layers;
    op->dropout = gg_lstm_dropout_of(desc);
    /* A primitive divides its work by the number of threads at its creation. */
    gg_parallel_set_threads(device->threads);
    GG_DNN_TRY_CLEANUP(dnnl_stream_create, &op->stream, op->engine, dnnl_stream_default_flags);
    GG_TRY_CLEANUP(make_products(op));
    lay_out(op);
    const size_t forward = prepared_bytes(op, FORWARD_FIRST), back = prepared_bytes(op, DATA_FIRST);
    op->head.prepared_bytes = forward > back ? forward : back;
    *out = &op->head;
    block = NULL;
cleanup:
    if (block != NULL) narrow_lstm_destroy(block);
    return status;
}

gg_status gg_dnn_lstm_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    const bool widened = desc->algorithm == GG_ALGORITHM_WIDENED && desc->lstm.numbers == 0;
    return widened ? gg_cpu_widened_create(device, desc, gg_native_lstm_create, out)
                   : onednn_lstm_direct(device, desc, out);
}
