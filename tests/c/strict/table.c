/* The strict device's table: each entry makes a record of its arguments for the thread, which calls the native one. */
#include <limits.h>
#include <string.h>

#include "base/memory.h"
#include "strict/strict.h"

static gg_strict *table_device(gg_device *device) { return (gg_strict *)device; }
static const gg_backend *native_of(const gg_strict *device) { return device->native->table; }

static gg_strict_work *new_work(gg_device *device, gg_status (*run)(gg_strict *device, gg_strict_work *work)) {
    gg_strict_work *work = gg_strict_work_new(table_device(device), GG_QUEUE_COMPUTE);
    work->run = run;
    return work;
}

static void give_work(gg_device *device, const char *what) {
    gg_strict_give(table_device(device), GG_QUEUE_COMPUTE, what);
}

/* ---- operations ---- */

typedef struct strict_op {
    gg_op head;
    gg_op_class class; /* with the entries that the native one has */
    gg_op *native;
    gg_strict *device;
} strict_op;

static int parameters_of(const gg_op_desc *desc) {
    const int bias = desc->bias ? 1 : 0;
    switch ((int)desc->kind) {
    case GG_OP_CONV2D:
    case GG_OP_LINEAR: return 1 + bias;
    case GG_OP_BATCH_NORM: return (desc->batch_norm.affine ? 2 : 0) + (desc->batch_norm.track_statistics ? 2 : 0);
    case GG_OP_LAYER_NORM: return desc->layer_norm.affine ? 1 + bias : 0;
    case GG_OP_EMBEDDING:
    case GG_OP_POSITION_EMBEDDING: return 1;
    case GG_OP_LSTM: return (desc->lstm.numbers > 0 ? 1 : 0) + (int)desc->lstm.layers * 2 * (1 + bias);
    case GG_OP_MULTI_HEAD: return 2 * (1 + bias);
    default: return 0;
    }
}

static gg_status run_op(gg_strict *device, gg_strict_work *work) {
    gg_strict_op_call *call = &work->as.op;
    (void)device;
    call->args.parameter = call->parameter;
    call->args.gradient = call->gradient;
    return call->run(call->op, &call->args, call->pass);
}

static gg_status run_prepare(gg_op *op, const gg_op_args *args, gg_pass pass) {
    return op->type->prepare(op, args, pass);
}

static gg_status run_forward(gg_op *op, const gg_op_args *args, gg_pass pass) {
    (void)pass;
    return op->type->forward(op, args);
}

static gg_status run_weights(gg_op *op, const gg_op_args *args, gg_pass pass) {
    (void)pass;
    return op->type->backward_weights(op, args);
}

static gg_status run_data(gg_op *op, const gg_op_args *args, gg_pass pass) {
    (void)pass;
    return op->type->backward_data(op, args);
}

/* Gradients are pointers of a backward pass only. */
static gg_status give_op(gg_op *head, const gg_op_args *args, gg_pass pass, bool backward,
                         gg_status (*run)(gg_op *op, const gg_op_args *args, gg_pass pass)) {
    const strict_op *op = (const strict_op *)head;
    gg_strict *device = op->device;
    gg_strict_op_call *call = &new_work(&device->head, run_op)->as.op;
    *call = (gg_strict_op_call){.op = op->native, .run = run, .pass = pass, .args = *args};
    for (int i = 0; i < GG_MAX_INPUTS; ++i) {
        call->args.input[i] = gg_strict_in(device, args->input[i]);
        call->args.grad_input[i] = gg_strict_out(device, args->grad_input[i]);
    }
    call->args.output = gg_strict_out(device, args->output);
    call->args.grad_output = gg_strict_out(device, args->grad_output);
    call->args.prepared = gg_strict_out(device, args->prepared);
    call->args.saved = gg_strict_out(device, args->saved);
    call->args.scratch = gg_strict_out(device, args->scratch);
    call->args.carried = gg_strict_out(device, args->carried);
    call->args.step = gg_strict_in(device, args->step);
    for (int i = 0; i < parameters_of(&head->desc); ++i) {
        if (args->parameter != NULL) call->parameter[i] = gg_strict_in(device, args->parameter[i]);
        if (backward && args->gradient != NULL) call->gradient[i] = gg_strict_out(device, args->gradient[i]);
    }
    give_work(&device->head, gg_op_kind_name(head->desc.kind));
    return GG_OK;
}

static gg_status strict_prepare(gg_op *op, const gg_op_args *args, gg_pass pass) {
    return give_op(op, args, pass, false, run_prepare);
}

static gg_status strict_forward(gg_op *op, const gg_op_args *args) {
    return give_op(op, args, GG_PASS_FORWARD, false, run_forward);
}

static gg_status strict_weights(gg_op *op, const gg_op_args *args) {
    return give_op(op, args, GG_PASS_WEIGHTS, true, run_weights);
}

static gg_status strict_data(gg_op *op, const gg_op_args *args) {
    return give_op(op, args, GG_PASS_DATA, true, run_data);
}

static void strict_destroy(gg_op *head) {
    strict_op *op = (strict_op *)head;
    gg_strict_wait_all(op->device, GG_QUEUE_COMPUTE);
    gg_op_destroy(op->native);
    gg_free(op);
}

static gg_status strict_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    strict_op *op = NULL;
    gg_strict *own = table_device(device);
    *out = NULL;
    if (parameters_of(desc) > GG_STRICT_MAX_PARAMETERS)
        GG_FAIL_CLEANUP(GG_ERROR_UNSUPPORTED, "the strict device has operations of at most %d parameters, not %d",
                        GG_STRICT_MAX_PARAMETERS, parameters_of(desc));
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *op, "an operation of the strict device", &op));
    op->device = own;
    GG_TRY_CLEANUP(native_of(own)->create[desc->kind](own->native, desc, &op->native));
    const gg_op_class *type = op->native->type;
    op->head = *op->native;
    op->head.type = &op->class;
    op->head.backend = gg_backend_strict.name;
    op->class = (gg_op_class){.prepare = type->prepare != NULL ? strict_prepare : NULL,
                              .forward = strict_forward,
                              .backward_weights = type->backward_weights != NULL ? strict_weights : NULL,
                              .backward_data = type->backward_data != NULL ? strict_data : NULL,
                              .destroy = strict_destroy};
    *out = &op->head;
    op = NULL;
cleanup:
    gg_free(op);
    return status;
}

/* ---- losses and kernels on arenas ---- */

static gg_status run_loss(gg_strict *device, gg_strict_work *work) {
    native_of(device)->loss(device->native, &work->as.loss);
    return GG_OK;
}

static void strict_loss(gg_device *head, const gg_loss_args *args) {
    gg_strict *device = table_device(head);
    gg_loss_args *own = &new_work(head, run_loss)->as.loss;
    *own = *args;
    own->loss.class_weights = gg_strict_in(device, args->loss.class_weights);
    own->prediction = gg_strict_in(device, args->prediction);
    own->targets = gg_strict_in(device, args->targets);
    own->sample_weights = gg_strict_in(device, args->sample_weights);
    own->gradient = gg_strict_out(device, args->gradient);
    own->result = gg_strict_out(device, args->result);
    give_work(head, "loss");
}

static gg_status run_update(gg_strict *device, gg_strict_work *work) {
    native_of(device)->update(device->native, 1, &work->as.update);
    return GG_OK;
}

static void update_one(gg_device *head, const gg_update_args *args) {
    gg_strict *device = table_device(head);
    gg_update_args *own = &new_work(head, run_update)->as.update;
    *own = *args;
    own->grad = gg_strict_in(device, args->grad);
    own->weight = gg_strict_out(device, args->weight);
    own->momentum = gg_strict_out(device, args->momentum);
    own->square = gg_strict_out(device, args->square);
    own->weight_after = gg_strict_in(device, args->weight_after);
    own->momentum_before = gg_strict_in(device, args->momentum_before);
    own->square_before = gg_strict_in(device, args->square_before);
    own->weight_copy = gg_strict_out(device, args->weight_copy);
    own->momentum_copy = gg_strict_out(device, args->momentum_copy);
    own->square_copy = gg_strict_out(device, args->square_copy);
    give_work(head, "update");
}

static void strict_update(gg_device *head, int count, const gg_update_args *args) {
    for (int i = 0; i < count; ++i) update_one(head, &args[i]);
}

/* Makes the record of a kernel on arenas. */
static gg_strict_arrays *new_arrays(gg_device *head, gg_status (*run)(gg_strict *device, gg_strict_work *work),
                                    size_t n, const void *const in[3], void *const out[2]) {
    gg_strict *device = table_device(head);
    gg_strict_arrays *own = &new_work(head, run)->as.arrays;
    own->n = n;
    for (int i = 0; i < 3; ++i) own->in[i] = gg_strict_in(device, in[i]);
    for (int i = 0; i < 2; ++i) own->out[i] = gg_strict_out(device, out[i]);
    return own;
}

#define IN(...) ((const void *const[3]){__VA_ARGS__})
#define OUT(...) ((void *const[2]){__VA_ARGS__})

static gg_status run_mix(gg_strict *device, gg_strict_work *work) {
    const gg_strict_arrays *w = &work->as.arrays;
    native_of(device)->mix(device->native, w->n, w->wire, w->share, w->in[0], w->in[1], w->in[2], w->out[0]);
    return GG_OK;
}

static void strict_mix(gg_device *head, size_t n, gg_dtype wire, float share, const float *base, const void *received,
                       const float *sent, float *out) {
    gg_strict_arrays *own = new_arrays(head, run_mix, n, IN(base, received, sent), OUT(out));
    own->wire = wire;
    own->share = share;
    give_work(head, "mix");
}

static gg_status run_narrow(gg_strict *device, gg_strict_work *work) {
    const gg_strict_arrays *w = &work->as.arrays;
    native_of(device)->narrow(device->native, w->n, w->in[0], w->out[0]);
    return GG_OK;
}

static void strict_narrow(gg_device *head, size_t n, const float *in, uint16_t *out) {
    (void)new_arrays(head, run_narrow, n, IN(in), OUT(out));
    give_work(head, "narrow");
}

static gg_status run_widen(gg_strict *device, gg_strict_work *work) {
    const gg_strict_arrays *w = &work->as.arrays;
    native_of(device)->widen(device->native, w->n, w->in[0], w->out[0]);
    return GG_OK;
}

static void strict_widen(gg_device *head, size_t n, const uint16_t *in, float *out) {
    (void)new_arrays(head, run_widen, n, IN(in), OUT(out));
    give_work(head, "widen");
}

static gg_status run_widen_add(gg_strict *device, gg_strict_work *work) {
    const gg_strict_arrays *w = &work->as.arrays;
    native_of(device)->widen_add(device->native, w->n, w->in[0], w->out[0]);
    return GG_OK;
}

static void strict_widen_add(gg_device *head, size_t n, const uint16_t *in, float *out) {
    (void)new_arrays(head, run_widen_add, n, IN(in), OUT(out));
    give_work(head, "widen_add");
}

/* Sources beyond what a record has room for are an error. */
static void add_sources(gg_strict *device, gg_strict_arrays *own, int sources, const void *const *source,
                        const float *scale) {
    own->sources = sources;
    if (sources > GG_STRICT_MAX_SOURCES) device->too_many = device->invalid = true;
    for (int i = 0; i < sources && i < GG_STRICT_MAX_SOURCES; ++i) {
        own->source[i] = gg_strict_in(device, source[i]);
        own->scale[i] = scale[i];
    }
}

static gg_status run_weighted_sum(gg_strict *device, gg_strict_work *work) {
    const gg_strict_arrays *w = &work->as.arrays;
    native_of(device)->weighted_sum(device->native, w->n, w->sources, (const float *const *)w->source, w->scale,
                                    w->out[0]);
    return GG_OK;
}

static void strict_weighted_sum(gg_device *head, size_t n, int sources, const float *const *source, const float *scale,
                                float *out) {
    gg_strict_arrays *own = new_arrays(head, run_weighted_sum, n, IN(NULL), OUT(out));
    add_sources(table_device(head), own, sources, (const void *const *)source, scale);
    give_work(head, "weighted_sum");
}

static gg_status run_narrow_sum(gg_strict *device, gg_strict_work *work) {
    const gg_strict_arrays *w = &work->as.arrays;
    native_of(device)->narrow_sum(device->native, w->n, w->sources, (const uint16_t *const *)w->source, w->scale,
                                  w->out[0], w->out[1]);
    return GG_OK;
}

static void strict_narrow_sum(gg_device *head, size_t n, int sources, const uint16_t *const *source, const float *scale,
                              float *out, uint16_t *rounded) {
    gg_strict_arrays *own = new_arrays(head, run_narrow_sum, n, IN(NULL), OUT(out, rounded));
    add_sources(table_device(head), own, sources, (const void *const *)source, scale);
    give_work(head, "narrow_sum");
}

static gg_status run_narrow_difference(gg_strict *device, gg_strict_work *work) {
    const gg_strict_arrays *w = &work->as.arrays;
    native_of(device)->narrow_difference(device->native, w->n, w->in[0], w->in[1], w->out[0]);
    return GG_OK;
}

static void strict_narrow_difference(gg_device *head, size_t n, const float *a, const uint16_t *b, uint16_t *out) {
    (void)new_arrays(head, run_narrow_difference, n, IN(a, b), OUT(out));
    give_work(head, "narrow_difference");
}

/* ---- entries that return a value: their result lies on the stack of the call, which waits ---- */

static gg_status run_sum_squares(gg_strict *device, gg_strict_work *work) {
    const gg_strict_arrays *w = &work->as.arrays;
    *(double *)w->out[0] = native_of(device)->sum_squares(device->native, w->n, w->in[0], w->in[1]);
    return GG_OK;
}

static double strict_sum_squares(gg_device *head, size_t n, const float *a, const float *b) {
    double sum = 0;
    gg_strict_arrays *own = new_arrays(head, run_sum_squares, n, IN(a, b), OUT(NULL));
    own->out[0] = &sum;
    give_work(head, "sum_squares");
    gg_strict_wait_all(table_device(head), GG_QUEUE_COMPUTE);
    return sum;
}

static gg_status run_all_finite(gg_strict *device, gg_strict_work *work) {
    const gg_strict_arrays *w = &work->as.arrays;
    *(bool *)w->out[0] = native_of(device)->all_finite(device->native, w->n, w->in[0]);
    return GG_OK;
}

static bool strict_all_finite(gg_device *head, size_t n, const float *a) {
    bool finite = false;
    gg_strict_arrays *own = new_arrays(head, run_all_finite, n, IN(a), OUT(NULL));
    own->out[0] = &finite;
    give_work(head, "all_finite");
    gg_strict_wait_all(table_device(head), GG_QUEUE_COMPUTE);
    return finite;
}

/* ---- packed messages ---- */

static gg_status run_pack(gg_strict *device, gg_strict_work *work) {
    native_of(device)->pack(device->native, 1, &work->as.pack);
    return GG_OK;
}

static void pack_one(gg_device *head, const gg_pack_args *args) {
    gg_strict *device = table_device(head);
    if (args->prepare != NULL)
        (void)args->prepare(args->context, args->offset, (args->n + GG_LANES - 1) / GG_LANES * GG_LANES);
    gg_pack_args *own = &new_work(head, run_pack)->as.pack;
    *own = *args;
    own->gradient = gg_strict_in(device, args->gradient);
    own->clear = gg_strict_out(device, args->clear);
    own->residue = gg_strict_out(device, args->residue);
    own->value = gg_strict_in(device, args->value);
    own->known = gg_strict_out(device, args->known);
    own->scratch = gg_strict_out(device, args->scratch);
    own->result = gg_strict_out(device, args->result);
    own->place = gg_strict_out(device, args->place);
    own->chosen = gg_strict_out(device, args->chosen);
    own->values = gg_strict_out(device, args->values);
    own->prepare = NULL;
    give_work(head, "pack");
}

static void strict_pack(gg_device *head, int count, const gg_pack_args *args) {
    for (int i = 0; i < count; ++i) pack_one(head, &args[i]);
}

static void give_elements(gg_device *head, gg_status (*run)(gg_strict *device, gg_strict_work *work),
                          const gg_elements_args *args, const char *what) {
    gg_strict *device = table_device(head);
    gg_elements_args *own = &new_work(head, run)->as.elements;
    *own = *args;
    own->element = gg_strict_in(device, args->element);
    own->values = gg_strict_out(device, args->values);
    own->at = gg_strict_out(device, args->at);
    give_work(head, what);
}

static gg_status run_add_elements(gg_strict *device, gg_strict_work *work) {
    native_of(device)->add_elements(device->native, &work->as.elements);
    return GG_OK;
}

static void strict_add_elements(gg_device *head, const gg_elements_args *args) {
    give_elements(head, run_add_elements, args, "add_elements");
}

static gg_status run_take_elements(gg_strict *device, gg_strict_work *work) {
    native_of(device)->take_elements(device->native, &work->as.elements);
    return GG_OK;
}

static void strict_take_elements(gg_device *head, const gg_elements_args *args) {
    give_elements(head, run_take_elements, args, "take_elements");
}

/* ---- batches ---- */

static gg_status run_gather(gg_strict *device, gg_strict_work *work) {
    native_of(device)->gather(device->native, &work->as.gather);
    return GG_OK;
}

static void strict_gather(gg_device *head, const gg_gather_args *args) {
    gg_strict *device = table_device(head);
    gg_gather_args *own = &new_work(head, run_gather)->as.gather;
    *own = *args;
    own->rows = gg_strict_in(device, args->rows);
    own->index = gg_strict_in(device, args->index);
    own->scales = gg_strict_in(device, args->scales);
    own->out = gg_strict_out(device, args->out);
    give_work(head, "gather");
}

static gg_status run_weight_gradient(gg_strict *device, gg_strict_work *work) {
    native_of(device)->weight_gradient(device->native, &work->as.weight_gradient);
    return GG_OK;
}

static void strict_weight_gradient(gg_device *head, const gg_weight_gradient_args *args) {
    gg_strict *device = table_device(head);
    gg_weight_gradient_args *own = &new_work(head, run_weight_gradient)->as.weight_gradient;
    *own = *args;
    own->error = gg_strict_in(device, args->error);
    own->input = gg_strict_in(device, args->input);
    own->out = gg_strict_out(device, args->out);
    give_work(head, "weight_gradient");
}

static gg_status run_columns(gg_strict *device, gg_strict_work *work) {
    const gg_strict_columns *own = &work->as.columns;
    native_of(device)->columns(device->native, &own->from, own->first, own->count, own->out);
    return GG_OK;
}

static void strict_columns(gg_device *head, const gg_vectors *from, int64_t first, int64_t count, float *out) {
    gg_strict *device = table_device(head);
    gg_strict_columns *own = &new_work(head, run_columns)->as.columns;
    *own = (gg_strict_columns){.from = *from, .first = first, .count = count, .out = gg_strict_out(device, out)};
    own->from.data = gg_strict_in(device, from->data);
    give_work(head, "columns");
}

static gg_status run_transpose(gg_strict *device, gg_strict_work *work) {
    const gg_strict_transpose *own = &work->as.transpose;
    native_of(device)->transpose(device->native, own->n, own->values, own->to_lanes, own->in, own->out);
    return GG_OK;
}

static void strict_transpose(gg_device *head, int64_t n, int64_t values, bool to_lanes, const float *in, float *out) {
    gg_strict *device = table_device(head);
    gg_strict_transpose *own = &new_work(head, run_transpose)->as.transpose;
    *own = (gg_strict_transpose){.n = n,
                                 .values = values,
                                 .to_lanes = to_lanes,
                                 .in = gg_strict_in(device, in),
                                 .out = gg_strict_out(device, out)};
    give_work(head, "transpose");
}

static gg_status strict_open(const gg_device_options *options, gg_device **out) {
    return gg_strict_open(&gg_backend_strict, options, out);
}

const gg_backend gg_backend_strict = {
    .name = "strict",
    .fills_lanes = true,
    .open = strict_open,
    .close = gg_strict_close,
    .memory = &gg_strict_memory,
    .create =
        {
            [GG_OP_CONV2D] = strict_create,
            [GG_OP_LINEAR] = strict_create,
            [GG_OP_MAX_POOL2D] = strict_create,
            [GG_OP_AVG_POOL2D] = strict_create,
            [GG_OP_ADAPTIVE_AVG_POOL2D] = strict_create,
            [GG_OP_BATCH_NORM] = strict_create,
            [GG_OP_LOCAL_RESPONSE_NORM] = strict_create,
            [GG_OP_LAYER_NORM] = strict_create,
            [GG_OP_SOFTMAX] = strict_create,
            [GG_OP_LEAKY_RELU] = strict_create,
            [GG_OP_GELU] = strict_create,
            [GG_OP_RELU] = strict_create,
            [GG_OP_TANH] = strict_create,
            [GG_OP_SIGMOID] = strict_create,
            [GG_OP_DROPOUT] = strict_create,
            [GG_OP_ADD] = strict_create,
            [GG_OP_CONCAT] = strict_create,
            [GG_OP_REORDER] = strict_create,
            [GG_OP_EMBEDDING] = strict_create,
            [GG_OP_POSITION_EMBEDDING] = strict_create,
            [GG_OP_PERMUTE] = strict_create,
            [GG_OP_SLICE] = strict_create,
            [GG_OP_PAD] = strict_create,
            [GG_OP_ATTENTION] = strict_create,
            [GG_OP_LSTM] = strict_create,
            [GG_OP_MULTI_HEAD] = strict_create,
        },
    .loss = strict_loss,
    .update = strict_update,
    .mix = strict_mix,
    .narrow = strict_narrow,
    .widen = strict_widen,
    .widen_add = strict_widen_add,
    .weighted_sum = strict_weighted_sum,
    .narrow_sum = strict_narrow_sum,
    .narrow_difference = strict_narrow_difference,
    .sum_squares = strict_sum_squares,
    .all_finite = strict_all_finite,
    .pack = strict_pack,
    .add_elements = strict_add_elements,
    .take_elements = strict_take_elements,
    .gather = strict_gather,
    .weight_gradient = strict_weight_gradient,
    .columns = strict_columns,
    .transpose = strict_transpose,
};

/* ---- the kind ---- */

/* Any number: it is the seed of the delays. */
static gg_status strict_count(int *out) {
    *out = INT_MAX;
    return GG_OK;
}

static gg_status strict_kind_open(const gg_devices_options *options, gg_devices *out) {
    if (strcmp(options->backend, "auto") != 0 && strcmp(options->backend, "native") != 0)
        return gg_fail(GG_ERROR_ARGUMENT, "backend: '%s'; allowed with device 'strict' are auto, native",
                       options->backend);
    if (options->dtype != GG_FLOAT32)
        return gg_fail(GG_ERROR_UNSUPPORTED, "dtype: '%s'; allowed with device 'strict' is float32",
                       gg_dtype_name(options->dtype));
    GG_TRY(gg_backend_strict.open(&options->device, &out->device));
    out->first = out->device;
    return GG_OK;
}

const gg_device_kind gg_strict_kind = {.name = "strict", .count = strict_count, .open = strict_kind_open};
