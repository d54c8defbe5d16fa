/* Operations that are one own kernel forward and one backward. */
#include "base/memory.h"
#include "cuda/kernels_nn.h"
#include "cuda/ops.h"

/* The sample's axes as kernels see them: outer x channels x inner values of a batch. */
typedef struct element_op {
    gg_op head;
    gg_cuda_device *device;
    size_t n; /* values of the output's batch */
    int64_t outer, channels, inner;
} element_op;

static gg_status element_create(gg_device *device, const gg_op_desc *desc, const gg_op_class *type, gg_op **out) {
    gg_status status = GG_OK;
    GG_TRY(gg_cuda_op_create(desc, type, desc->inputs, sizeof(element_op), out));
    element_op *op = (element_op *)*out;
    op->device = gg_cuda_of(device);
    op->n = (size_t)(gg_shape_count(&desc->output) * desc->batch);
    op->outer = desc->batch;
    op->channels = desc->output.size[0];
    op->inner = gg_shape_count(&desc->output) / op->channels;
cleanup:
    return status;
}

static gg_status check_same_shapes(const gg_op_desc *desc) {
    char given[GG_SHAPE_TEXT], wanted[GG_SHAPE_TEXT];
    gg_status status = GG_OK;
    for (int i = 0; i < desc->inputs; ++i)
        if (!gg_shape_equal(&desc->input[i], &desc->output))
            GG_FAIL(GG_ERROR_SHAPE, "%s: input %d is %s, the output %s", gg_op_kind_name(desc->kind), i,
                    gg_shape_text(&desc->input[i], given), gg_shape_text(&desc->output, wanted));
cleanup:
    return status;
}

static gg_cuda_stream stream_of(const gg_op *head) {
    gg_cuda_device *device = ((const element_op *)head)->device;
    gg_cuda_enter(device);
    return gg_cuda_compute(device);
}

static gg_status done(const gg_op *head) {
    return gg_cuda_op_done(((const element_op *)head)->device, gg_op_kind_name(head->desc.kind));
}

static void copy_values(const gg_op *head, void *to, const void *from) {
    const element_op *op = (const element_op *)head;
    if (to != from) gg_cuda_memory.copy(&op->device->head, GG_QUEUE_COMPUTE, to, from, op->n * sizeof(float));
}

/* ------------------------------------------------------------------------------------------ activations */

static gg_cuda_activation_args activation_args(const gg_op *head) {
    return (gg_cuda_activation_args){.kind = head->desc.kind,
                                     .slope = head->desc.slope,
                                     .tanh_form = head->desc.tanh_form,
                                     .n = ((const element_op *)head)->n};
}

static gg_status activation_forward(gg_op *head, const gg_op_args *args) {
    gg_cuda_activation_args own = activation_args(head);
    own.in = args->input[0];
    own.out = args->output;
    gg_cuda_activation(stream_of(head), &own);
    return done(head);
}

static gg_status activation_backward(gg_op *head, const gg_op_args *args) {
    gg_cuda_activation_args own = activation_args(head);
    if (args->grad_input[0] == NULL) return GG_OK;
    own.in = head->backward_needs_output ? args->output : args->input[0];
    own.grad = args->grad_output;
    own.out = args->grad_input[0];
    gg_cuda_activation_backward(stream_of(head), &own);
    return done(head);
}

static const gg_op_class activation_class = {
    .forward = activation_forward, .backward_data = activation_backward, .destroy = gg_cuda_op_free};

gg_status gg_cuda_activation_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    *out = NULL;
    GG_TRY(check_same_shapes(desc));
    GG_TRY(element_create(device, desc, &activation_class, out));
    const bool by_input = desc->kind == GG_OP_GELU || (desc->kind == GG_OP_LEAKY_RELU && desc->slope < 0);
    (*out)->in_place = true;
    (*out)->backward_needs_output = !by_input;
    (*out)->backward_needs_input = by_input;
cleanup:
    return status;
}

/* ------------------------------------------------------------------------------------------ sums */

static gg_cuda_add_args add_args(const gg_op *head, const gg_op_args *args) {
    gg_cuda_add_args own = {.n = ((const element_op *)head)->n,
                            .inputs = head->desc.inputs,
                            .relu = head->desc.activation == GG_ACTIVATION_RELU,
                            .output = args->output,
                            .grad_output = args->grad_output};
    for (int i = 0; i < own.inputs; ++i) {
        own.input[i] = args->input[i];
        own.grad[i] = args->grad_input[i];
    }
    return own;
}

static gg_status add_forward(gg_op *head, const gg_op_args *args) {
    const gg_cuda_add_args own = add_args(head, args);
    gg_cuda_add(stream_of(head), &own);
    return done(head);
}

static gg_status add_backward(gg_op *head, const gg_op_args *args) {
    const gg_cuda_add_args own = add_args(head, args);
    gg_cuda_add_backward(stream_of(head), &own);
    return done(head);
}

static const gg_op_class add_class = {
    .forward = add_forward, .backward_data = add_backward, .destroy = gg_cuda_op_free};

gg_status gg_cuda_add_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    *out = NULL;
    if (desc->inputs < 2) GG_FAIL(GG_ERROR_ARGUMENT, "add has at least 2 inputs, not %d", desc->inputs);
    GG_TRY(check_same_shapes(desc));
    GG_TRY(element_create(device, desc, &add_class, out));
    (*out)->in_place = true;
    (*out)->backward_needs_output = desc->activation == GG_ACTIVATION_RELU;
    if ((*out)->backward_needs_output && desc->inputs == 2) (*out)->over_output = 1u << 1;
cleanup:
    return status;
}

/* ------------------------------------------------------------------------------------------ dropout */

static gg_status dropout_run(gg_op *head, const gg_op_args *args, const void *in, void *out) {
    const gg_op_desc *desc = &head->desc;
    if (out == NULL) return GG_OK;
    if (!desc->training || args->evaluate || desc->probability == 0.0f) {
        copy_values(head, out, in);
        return done(head);
    }
    const gg_cuda_dropout_args own = {
        .layout = GG_LAYOUT_PLAIN,
        .batch = desc->batch,
        .features = gg_shape_count(&desc->output),
        .channels = 1,
        .draw = {.seed = desc->seed, .step = args->step, .rank = args->rank, .probability = desc->probability},
        .in = in,
        .out = out};
    gg_cuda_dropout(stream_of(head), &own);
    return done(head);
}

static gg_status dropout_forward(gg_op *head, const gg_op_args *args) {
    return dropout_run(head, args, args->input[0], args->output);
}

static gg_status dropout_backward(gg_op *head, const gg_op_args *args) {
    return dropout_run(head, args, args->grad_output, args->grad_input[0]);
}

static const gg_op_class dropout_class = {
    .forward = dropout_forward, .backward_data = dropout_backward, .destroy = gg_cuda_op_free};

gg_status gg_cuda_dropout_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    const double p = (double)desc->probability;
    *out = NULL;
    if (!(p >= 0 && p <= 1)) GG_FAIL(GG_ERROR_ARGUMENT, "dropout: the probability must be in 0..1, not %g", p);
    const int64_t features = gg_shape_count(&desc->output), blocks = (desc->batch + 3) / 4;
    if (features > (INT64_C(1) << 32) / (blocks > 0 ? blocks : 1))
        GG_FAIL(GG_ERROR_UNSUPPORTED, "dropout: %lld x %lld elements are more than a stream has numbers",
                (long long)features, (long long)desc->batch);
    GG_TRY(check_same_shapes(desc));
    GG_TRY(element_create(device, desc, &dropout_class, out));
    (*out)->in_place = true;
cleanup:
    return status;
}

/* ------------------------------------------------------------------------------------------ pooling */

static gg_status pool_forward(gg_op *head, const gg_op_args *args) {
    gg_cuda_pool(stream_of(head), &head->desc, GG_LAYOUT_PLAIN, args->input[0], args->output,
                 head->saved_bytes > 0 ? args->saved : NULL);
    return done(head);
}

static gg_status pool_backward(gg_op *head, const gg_op_args *args) {
    if (args->grad_input[0] == NULL) return GG_OK;
    gg_cuda_pool_backward(stream_of(head), &head->desc, GG_LAYOUT_PLAIN, args->grad_output, args->saved,
                          args->grad_input[0]);
    return done(head);
}

static const gg_op_class pool_class = {
    .forward = pool_forward, .backward_data = pool_backward, .destroy = gg_cuda_op_free};

static gg_status check_pool_axis(const gg_op_desc *desc, int a) {
    static const char *const axes[2] = {"height", "width"};
    const gg_window *w = &desc->window;
    const char *name = gg_op_kind_name(desc->kind);
    const int64_t in = desc->input[0].size[1 + a], outputs = desc->output.size[1 + a];
    gg_status status = GG_OK;
    if (w->kernel[a] < 1 || w->stride[a] < 1 || w->dilation[a] < 1 || w->padding[a] < 0 || w->kernel[a] > 32768 ||
        w->padding[a] > (w->dilation[a] * (w->kernel[a] - 1) + 1) / 2 ||
        (desc->kind == GG_OP_AVG_POOL2D && w->dilation[a] != 1))
        GG_FAIL(GG_ERROR_ARGUMENT, "%s, %s: kernel %lld, stride %lld, dilation %lld, padding %lld are out of range",
                name, axes[a], (long long)w->kernel[a], (long long)w->stride[a], (long long)w->dilation[a],
                (long long)w->padding[a]);
    if (gg_window_output(w, a, in, w->ceil_mode) != outputs)
        GG_FAIL(GG_ERROR_SHAPE, "%s, %s: windows over %lld elements do not give %lld outputs", name, axes[a],
                (long long)in, (long long)outputs);
    if (!gg_window_covers(w, a, in, outputs))
        GG_FAIL(GG_ERROR_SHAPE, "%s, %s: a window holds no element of the image", name, axes[a]);
cleanup:
    return status;
}

gg_status gg_cuda_pool_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    *out = NULL;
    if (desc->inputs != 1 || desc->input[0].dims != 3 || desc->output.dims != 3 ||
        desc->input[0].size[0] != desc->output.size[0])
        GG_FAIL(GG_ERROR_SHAPE, "%s maps one image (C, H, W) to another of as many channels",
                gg_op_kind_name(desc->kind));
    for (int a = 0; a < 2 && desc->kind != GG_OP_ADAPTIVE_AVG_POOL2D; ++a) GG_TRY(check_pool_axis(desc, a));
    GG_TRY(element_create(device, desc, &pool_class, out));
    (*out)->saved_bytes = desc->training ? gg_cuda_pool_saved(desc) : 0;
cleanup:
    return status;
}

/* ------------------------------------------------------------------------------------------ batch norm */

static gg_cuda_batch_norm_args batch_norm_args(const gg_op *head, const gg_op_args *args) {
    const element_op *op = (const element_op *)head;
    const gg_op_desc *desc = &head->desc;
    const int mean = desc->affine ? 2 : 0;
    gg_cuda_batch_norm_args own = {.outer = op->outer,
                                   .channels = op->channels,
                                   .inner = op->inner,
                                   .relu = desc->activation == GG_ACTIVATION_RELU,
                                   .batch_statistics = (desc->training && !args->evaluate) || !desc->track_statistics,
                                   .epsilon = desc->epsilon,
                                   .momentum = desc->momentum,
                                   .input = args->input[0],
                                   .output = args->output,
                                   .saved = args->saved,
                                   .scratch = args->scratch};
    if (desc->affine) {
        own.weight = args->parameter[GG_PARAMETER_WEIGHT];
        own.bias = args->parameter[GG_PARAMETER_BIAS];
    }
    if (desc->track_statistics) {
        own.running_mean = args->parameter[mean];
        own.running_variance = args->parameter[mean + 1];
    }
    return own;
}

static gg_status batch_norm_forward(gg_op *head, const gg_op_args *args) {
    gg_cuda_batch_norm_args own = batch_norm_args(head, args);
    own.added = head->desc.inputs == 2 ? args->input[1] : NULL;
    gg_cuda_batch_norm(stream_of(head), &own);
    return done(head);
}

static gg_status batch_norm_backward(gg_op *head, const gg_op_args *args) {
    gg_cuda_batch_norm_args own = batch_norm_args(head, args);
    const gg_op_desc *desc = &head->desc;
    const int mean = desc->affine ? 2 : 0;
    own.batch_statistics = true;
    own.added = desc->inputs == 2 ? args->grad_output : NULL; /* says that there is one; it is not read */
    own.grad_output = args->grad_output;
    own.grad_input = args->grad_input[0];
    own.grad_added = desc->inputs == 2 ? args->grad_input[1] : NULL;
    if (desc->affine) {
        own.grad_weight = args->gradient[GG_PARAMETER_WEIGHT];
        own.grad_bias = args->gradient[GG_PARAMETER_BIAS];
    }
    if (desc->track_statistics) {
        own.grad_mean = args->gradient[mean];
        own.grad_variance = args->gradient[mean + 1];
    }
    gg_cuda_batch_norm_backward(stream_of(head), &own);
    return done(head);
}

static const gg_op_class batch_norm_class = {
    .forward = batch_norm_forward, .backward_data = batch_norm_backward, .destroy = gg_cuda_op_free};

gg_status gg_cuda_batch_norm_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    char in[GG_SHAPE_TEXT];
    *out = NULL;
    if (desc->inputs < 1 || desc->inputs > 2)
        GG_FAIL(GG_ERROR_SHAPE, "batch_norm has one or two inputs, not %d", desc->inputs);
    GG_TRY(check_same_shapes(desc));
    const int64_t channels = desc->input[0].size[0], values = gg_shape_count(&desc->input[0]) / channels * desc->batch;
    if (values < 2 && (desc->training || !desc->track_statistics))
        GG_FAIL(GG_ERROR_SHAPE,
                "in training a channel must have more than one value in a batch, but a batch of %lld sample of shape "
                "%s has %lld; choose another batch_size, or drop_last=True of fit, which leaves a last batch out that "
                "is not full",
                (long long)desc->batch, gg_shape_text(&desc->input[0], in), (long long)values);
    GG_TRY(element_create(device, desc, &batch_norm_class, out));
    const element_op *op = (const element_op *)*out;
    gg_op *head = *out;
    head->in_place = true;
    head->backward_needs_input = 1;
    head->backward_needs_output = desc->inputs == 2 && desc->activation == GG_ACTIVATION_RELU;
    head->over_output = desc->inputs == 2 ? 1u << 1 : 0;
    head->saved_bytes = gg_cuda_batch_norm_saved(channels);
    head->scratch_bytes = gg_cuda_batch_norm_scratch(op->outer, op->channels, op->inner);
cleanup:
    return status;
}

/* ------------------------------------------------------------------------------------------ layer norm */

static gg_cuda_layer_norm_args layer_norm_args(const gg_op *head, const gg_op_args *args) {
    const element_op *op = (const element_op *)head;
    const gg_op_desc *desc = &head->desc;
    return (gg_cuda_layer_norm_args){.rows = op->outer,
                                     .length = op->inner,
                                     .epsilon = desc->epsilon,
                                     .input = args->input[0],
                                     .output = args->output,
                                     .weight = desc->affine ? args->parameter[GG_PARAMETER_WEIGHT] : NULL,
                                     .bias = desc->affine && desc->bias ? args->parameter[GG_PARAMETER_BIAS] : NULL,
                                     .saved = args->saved,
                                     .scratch = args->scratch};
}

static gg_status layer_norm_forward(gg_op *head, const gg_op_args *args) {
    const gg_cuda_layer_norm_args own = layer_norm_args(head, args);
    gg_cuda_layer_norm(stream_of(head), &own);
    return done(head);
}

static gg_status layer_norm_backward(gg_op *head, const gg_op_args *args) {
    gg_cuda_layer_norm_args own = layer_norm_args(head, args);
    own.grad_output = args->grad_output;
    own.grad_input = args->grad_input[0];
    own.grad_weight = head->desc.affine ? args->gradient[GG_PARAMETER_WEIGHT] : NULL;
    own.grad_bias = own.bias != NULL ? args->gradient[GG_PARAMETER_BIAS] : NULL;
    gg_cuda_layer_norm_backward(stream_of(head), &own);
    return done(head);
}

static const gg_op_class layer_norm_class = {
    .forward = layer_norm_forward, .backward_data = layer_norm_backward, .destroy = gg_cuda_op_free};

gg_status gg_cuda_layer_norm_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    *out = NULL;
    GG_TRY(check_same_shapes(desc));
    if (desc->inputs != 1 || desc->axis < 0 || desc->axis >= desc->output.dims)
        GG_FAIL(GG_ERROR_SHAPE, "layer_norm has one input and begins at one of its axes, not at %lld",
                (long long)desc->axis);
    GG_TRY(element_create(device, desc, &layer_norm_class, out));
    element_op *op = (element_op *)*out;
    op->inner = 1;
    for (int i = (int)desc->axis; i < desc->output.dims; ++i) op->inner *= desc->output.size[i];
    op->channels = 1;
    op->outer = (int64_t)op->n / op->inner;
    op->head.in_place = true;
    op->head.backward_needs_input = 1;
    op->head.saved_bytes = gg_cuda_layer_norm_saved(op->outer);
    if (desc->training && desc->affine) op->head.scratch_bytes = gg_cuda_layer_norm_scratch(op->outer, op->inner);
cleanup:
    return status;
}

/* ------------------------------------------------------------------------------------------ LRN */

static gg_cuda_lrn_args lrn_args(const gg_op *head, const gg_op_args *args) {
    const element_op *op = (const element_op *)head;
    return (gg_cuda_lrn_args){.outer = op->outer,
                              .channels = op->channels,
                              .inner = op->inner,
                              .size = head->desc.size,
                              .alpha = head->desc.alpha,
                              .beta = head->desc.beta,
                              .k = head->desc.k,
                              .input = args->input[0],
                              .output = args->output,
                              .saved = head->desc.training ? args->saved : NULL,
                              .scratch = args->scratch};
}

static gg_status lrn_forward(gg_op *head, const gg_op_args *args) {
    const gg_cuda_lrn_args own = lrn_args(head, args);
    gg_cuda_lrn(stream_of(head), &own);
    return done(head);
}

static gg_status lrn_backward(gg_op *head, const gg_op_args *args) {
    gg_cuda_lrn_args own = lrn_args(head, args);
    if (args->grad_input[0] == NULL) return GG_OK;
    own.grad_output = args->grad_output;
    own.grad_input = args->grad_input[0];
    gg_cuda_lrn_backward(stream_of(head), &own);
    return done(head);
}

static const gg_op_class lrn_class = {
    .forward = lrn_forward, .backward_data = lrn_backward, .destroy = gg_cuda_op_free};

gg_status gg_cuda_lrn_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    *out = NULL;
    GG_TRY(check_same_shapes(desc));
    if (desc->inputs != 1 || desc->size < 1)
        GG_FAIL(GG_ERROR_ARGUMENT, "local_response_norm has one input, and its size is at least 1, not %lld",
                (long long)desc->size);
    GG_TRY(element_create(device, desc, &lrn_class, out));
    (*out)->backward_needs_input = 1;
    if (desc->training) (*out)->saved_bytes = (*out)->scratch_bytes = ((element_op *)*out)->n * sizeof(float);
cleanup:
    return status;
}

/* ------------------------------------------------------------------------------------------ softmax */

static gg_cuda_softmax_args softmax_args(const gg_op *head) {
    const element_op *op = (const element_op *)head;
    return (gg_cuda_softmax_args){.outer = op->outer, .length = op->channels, .inner = op->inner};
}

static gg_status softmax_forward(gg_op *head, const gg_op_args *args) {
    gg_cuda_softmax_args own = softmax_args(head);
    own.input = args->input[0];
    own.output = args->output;
    gg_cuda_softmax(stream_of(head), &own);
    return done(head);
}

static gg_status softmax_backward(gg_op *head, const gg_op_args *args) {
    gg_cuda_softmax_args own = softmax_args(head);
    if (args->grad_input[0] == NULL) return GG_OK;
    own.output = args->output;
    own.grad_output = args->grad_output;
    own.grad_input = args->grad_input[0];
    gg_cuda_softmax_backward(stream_of(head), &own);
    return done(head);
}

static const gg_op_class softmax_class = {
    .forward = softmax_forward, .backward_data = softmax_backward, .destroy = gg_cuda_op_free};

gg_status gg_cuda_softmax_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    *out = NULL;
    GG_TRY(check_same_shapes(desc));
    if (desc->inputs != 1 || desc->axis < 0 || desc->axis >= desc->output.dims)
        GG_FAIL(GG_ERROR_SHAPE, "softmax has one input and goes along one of its axes, not %lld",
                (long long)desc->axis);
    GG_TRY(element_create(device, desc, &softmax_class, out));
    element_op *op = (element_op *)*out;
    op->channels = desc->output.size[desc->axis];
    op->inner = 1;
    for (int i = (int)desc->axis + 1; i < desc->output.dims; ++i) op->inner *= desc->output.size[i];
    op->outer = (int64_t)op->n / op->channels / op->inner;
    op->head.in_place = true;
    op->head.backward_needs_output = true;
cleanup:
    return status;
}

/* ------------------------------------------------------------------------------------------ tables of rows
 * outer: tokens of the batch; channels: positions of a sample; inner: features. */

static gg_cuda_embedding_args embedding_args(const gg_op *head, const gg_op_args *args) {
    const element_op *op = (const element_op *)head;
    return (gg_cuda_embedding_args){.tokens = op->outer,
                                    .features = op->inner,
                                    .numbers = head->desc.numbers,
                                    .token = args->input[0],
                                    .scratch = args->scratch};
}

static gg_status embedding_forward(gg_op *head, const gg_op_args *args) {
    const element_op *op = (const element_op *)head;
    gg_cuda_embedding_args own = embedding_args(head, args);
    own.table = args->parameter[GG_PARAMETER_WEIGHT];
    own.output = args->output;
    own.bad = gg_cuda_bad(op->device, GG_CUDA_BAD_TOKEN);
    gg_cuda_embedding(stream_of(head), &own);
    gg_cuda_report_bad(op->device, GG_CUDA_BAD_TOKEN, op->channels, head->desc.numbers);
    return done(head);
}

static gg_status embedding_backward_weights(gg_op *head, const gg_op_args *args) {
    gg_cuda_embedding_args own = embedding_args(head, args);
    own.grad_output = args->grad_output;
    own.grad_table = args->gradient[GG_PARAMETER_WEIGHT];
    gg_cuda_embedding_backward(stream_of(head), &own);
    return done(head);
}

static const gg_op_class embedding_class = {
    .forward = embedding_forward, .backward_weights = embedding_backward_weights, .destroy = gg_cuda_op_free};

gg_status gg_cuda_embedding_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_op *head = NULL;
    gg_status status = GG_OK;
    *out = NULL;
    if (desc->inputs != 1 || desc->numbers < 1)
        GG_FAIL(GG_ERROR_ARGUMENT, "an embedding has one int32 input and at least one row, not %d inputs and %lld rows",
                desc->inputs, (long long)desc->numbers);
    const int64_t positions = gg_shape_count(&desc->input[0]), tokens = desc->batch * positions;
    if (tokens > INT32_MAX)
        GG_FAIL(GG_ERROR_UNSUPPORTED, "embedding: a batch of %lld tokens; allowed are %d", (long long)tokens,
                INT32_MAX);
    GG_TRY(gg_cuda_op_create(desc, &embedding_class, 0, sizeof(element_op), &head));
    element_op *op = (element_op *)head;
    op->device = gg_cuda_of(device);
    op->inner = desc->output.size[desc->output.dims - 1];
    op->channels = positions;
    op->outer = tokens;
    op->n = (size_t)(tokens * op->inner);
    head->backward_needs_input = 1;
    if (desc->training) head->scratch_bytes = gg_cuda_embedding_scratch(tokens);
    *out = head;
cleanup:
    return status;
}

static gg_cuda_position_embedding_args position_args(const gg_op *head) {
    return (gg_cuda_position_embedding_args){.samples = head->desc.batch,
                                             .positions = head->desc.input[0].size[0],
                                             .features = head->desc.input[0].size[1],
                                             .numbers = head->desc.numbers};
}

static gg_status position_embedding_forward(gg_op *head, const gg_op_args *args) {
    gg_cuda_position_embedding_args own = position_args(head);
    own.input = args->input[0];
    own.table = args->parameter[GG_PARAMETER_WEIGHT];
    own.output = args->output;
    gg_cuda_position_embedding(stream_of(head), &own);
    return done(head);
}

static gg_status position_embedding_backward_weights(gg_op *head, const gg_op_args *args) {
    gg_cuda_position_embedding_args own = position_args(head);
    own.grad_output = args->grad_output;
    own.grad_table = args->gradient[GG_PARAMETER_WEIGHT];
    gg_cuda_position_embedding_backward(stream_of(head), &own);
    return done(head);
}

static gg_status position_embedding_backward_data(gg_op *head, const gg_op_args *args) {
    if (args->grad_input[0] != NULL) copy_values(head, args->grad_input[0], args->grad_output);
    return done(head);
}

static const gg_op_class position_embedding_class = {.forward = position_embedding_forward,
                                                     .backward_weights = position_embedding_backward_weights,
                                                     .backward_data = position_embedding_backward_data,
                                                     .destroy = gg_cuda_op_free};

gg_status gg_cuda_position_embedding_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    *out = NULL;
    if (desc->inputs != 1 || desc->input[0].dims != 2 || desc->numbers < desc->input[0].size[0])
        GG_FAIL(GG_ERROR_SHAPE, "positions are added to one input (positions, features) of at most %lld positions",
                (long long)desc->numbers);
    GG_TRY(element_create(device, desc, &position_embedding_class, out));
    (*out)->in_place = true;
cleanup:
    return status;
}

/* ------------------------------------------------------------------------------------------ moving values */

static gg_status rearrange_forward(gg_op *head, const gg_op_args *args) {
    gg_cuda_rearrange(stream_of(head), &head->desc, false, args->input[0], args->output);
    return done(head);
}

static gg_status rearrange_backward(gg_op *head, const gg_op_args *args) {
    if (args->grad_input[0] == NULL) return GG_OK;
    gg_cuda_rearrange(stream_of(head), &head->desc, true, args->grad_output, args->grad_input[0]);
    return done(head);
}

static const gg_op_class rearrange_class = {
    .forward = rearrange_forward, .backward_data = rearrange_backward, .destroy = gg_cuda_op_free};

gg_status gg_cuda_rearrange_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    *out = NULL;
    if (desc->inputs != 1 || desc->input[0].dims != desc->output.dims)
        GG_FAIL(GG_ERROR_SHAPE, "%s: one input with as many axes as the output", gg_op_kind_name(desc->kind));
    GG_TRY(element_create(device, desc, &rearrange_class, out));
cleanup:
    return status;
}

static gg_status concat_forward(gg_op *head, const gg_op_args *args) {
    for (int i = 0; i < head->desc.inputs; ++i)
        gg_cuda_concat(stream_of(head), &head->desc, GG_LAYOUT_PLAIN, i, false, (float *)args->input[i], args->output);
    return done(head);
}

static gg_status concat_backward(gg_op *head, const gg_op_args *args) {
    for (int i = 0; i < head->desc.inputs; ++i)
        if (args->grad_input[i] != NULL)
            gg_cuda_concat(stream_of(head), &head->desc, GG_LAYOUT_PLAIN, i, true, args->grad_input[i],
                           args->grad_output);
    return done(head);
}

static const gg_op_class concat_class = {
    .forward = concat_forward, .backward_data = concat_backward, .destroy = gg_cuda_op_free};

gg_status gg_cuda_concat_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    int64_t rows = 0;
    bool fits = true;
    *out = NULL;
    for (int i = 0; i < desc->inputs; ++i) {
        const gg_shape *in = &desc->input[i];
        rows += in->size[0];
        fits = fits && in->dims == desc->output.dims;
        for (int d = 1; fits && d < in->dims; ++d) fits = in->size[d] == desc->output.size[d];
    }
    if (!fits || rows != desc->output.size[0])
        GG_FAIL(GG_ERROR_SHAPE, "concat: the inputs' first axes sum to %lld of %lld, or other axes differ",
                (long long)rows, (long long)desc->output.size[0]);
    GG_TRY(element_create(device, desc, &concat_class, out));
cleanup:
    return status;
}

/* From one layout to another; `n` is of one that is not padded. */
static void move(const gg_op *head, gg_layout from_layout, gg_layout to_layout, const void *from, void *to) {
    const gg_op_desc *desc = &head->desc;
    const int64_t values = gg_shape_count(&desc->output);
    if (from_layout == to_layout) {
        const size_t bytes = gg_format_bytes(head->output, &desc->output, desc->batch);
        if (from != to)
            gg_cuda_memory.copy(&((const element_op *)head)->device->head, GG_QUEUE_COMPUTE, to, from, bytes);
    } else if (from_layout == GG_LAYOUT_BATCH_LAST || to_layout == GG_LAYOUT_BATCH_LAST) {
        gg_cuda_transpose(stream_of(head), desc->batch, values, to_layout == GG_LAYOUT_BATCH_LAST, from, to);
    } else {
        gg_cuda_reorder(stream_of(head), &desc->output, desc->batch, from_layout, to_layout, from, to);
    }
}

static gg_status reorder_forward(gg_op *head, const gg_op_args *args) {
    move(head, head->input[0].layout, head->output.layout, args->input[0], args->output);
    return done(head);
}

static gg_status reorder_backward(gg_op *head, const gg_op_args *args) {
    if (args->grad_input[0] == NULL) return GG_OK;
    move(head, head->output.layout, head->input[0].layout, args->grad_output, args->grad_input[0]);
    return done(head);
}

static const gg_op_class reorder_class = {
    .forward = reorder_forward, .backward_data = reorder_backward, .destroy = gg_cuda_op_free};

static bool is_known(gg_layout layout, const gg_shape *shape) {
    return layout == GG_LAYOUT_PLAIN || layout == GG_LAYOUT_BATCH_LAST ||
           (layout == GG_LAYOUT_NHWC && shape->dims == 3);
}

gg_status gg_cuda_reorder_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    const gg_format from = desc->offered[0], to = desc->wanted_output;
    const bool lanes = from.layout == GG_LAYOUT_BATCH_LAST || to.layout == GG_LAYOUT_BATCH_LAST;
    const bool channels = from.layout == GG_LAYOUT_NHWC || to.layout == GG_LAYOUT_NHWC;
    *out = NULL;
    if (from.dtype != GG_FLOAT32 || to.dtype != GG_FLOAT32 || !is_known(from.layout, &desc->output) ||
        !is_known(to.layout, &desc->output) || (lanes && channels))
        GG_FAIL(GG_ERROR_UNSUPPORTED, "reorder on a GPU: not from %s %s to %s %s", gg_dtype_name(from.dtype),
                gg_layout_name(from.layout), gg_dtype_name(to.dtype), gg_layout_name(to.layout));
    GG_TRY(element_create(device, desc, &reorder_class, out));
    (*out)->input[0] = from;
    (*out)->output = to;
cleanup:
    return status;
}
