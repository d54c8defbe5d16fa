/* EMBEDDING and POSITION_EMBEDDING. outer: tokens of the batch; channels: positions of a sample; inner: features. */
#include "cuda/kernels_nn.h"
#include "cuda/ops.h"

static gg_cuda_embedding_args embedding_args(const gg_op *head, const gg_op_args *args) {
    const gg_cuda_element_op *op = (const gg_cuda_element_op *)head;
    return (gg_cuda_embedding_args){.tokens = op->outer,
                                    .features = op->inner,
                                    .numbers = head->desc.embedding.numbers,
                                    .dtype = head->output.dtype,
                                    .token = args->input[0],
                                    .scratch = args->scratch};
}

static gg_status embedding_forward(gg_op *head, const gg_op_args *args) {
    const gg_cuda_element_op *op = (const gg_cuda_element_op *)head;
    gg_cuda_embedding_args own = embedding_args(head, args);
    own.table = args->parameter[GG_PARAMETER_WEIGHT];
    own.output = args->output;
    own.bad = gg_cuda_bad(op->device, GG_CUDA_BAD_TOKEN);
    gg_cuda_embedding(gg_cuda_element_stream(head), &own);
    gg_cuda_explain_bad(op->device, GG_CUDA_BAD_TOKEN, op->channels, head->desc.embedding.numbers);
    return gg_cuda_element_done(head);
}

static gg_status embedding_backward_weights(gg_op *head, const gg_op_args *args) {
    gg_cuda_embedding_args own = embedding_args(head, args);
    own.grad_output = args->grad_output;
    own.grad_table = args->gradient[GG_PARAMETER_WEIGHT];
    gg_cuda_embedding_backward(gg_cuda_element_stream(head), &own);
    return gg_cuda_element_done(head);
}

static const gg_op_class embedding_class = {
    .forward = embedding_forward, .backward_weights = embedding_backward_weights, .destroy = gg_cuda_op_free};

gg_status gg_cuda_embedding_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_op *head = NULL;
    *out = NULL;
    if (desc->inputs != 1 || desc->embedding.numbers < 1)
        return gg_fail(GG_ERROR_ARGUMENT,
                       "an embedding has one int32 input and at least one row, not %d inputs and %lld rows",
                       desc->inputs, (long long)desc->embedding.numbers);
    const int64_t positions = gg_shape_count(&desc->input[0]), tokens = desc->batch * positions;
    if (tokens > INT32_MAX)
        return gg_fail(GG_ERROR_UNSUPPORTED, "embedding: a batch of %lld tokens; allowed are %d", (long long)tokens,
                       INT32_MAX);
    GG_TRY(gg_cuda_op_create(desc, &embedding_class, 0, sizeof(gg_cuda_element_op), &head));
    gg_cuda_element_op *op = (gg_cuda_element_op *)head;
    op->device = gg_cuda_of(device);
    op->inner = desc->output.size[desc->output.dims - 1];
    op->channels = positions;
    op->outer = tokens;
    op->n = (size_t)(tokens * op->inner);
    head->backward_needs_input = 1;
    head->output.dtype = desc->dtype;
    if (desc->training) head->scratch_bytes = gg_cuda_embedding_scratch(tokens, op->inner);
    *out = head;
    return GG_OK;
}

static gg_cuda_position_embedding_args position_args(const gg_op *head) {
    return (gg_cuda_position_embedding_args){.samples = head->desc.batch,
                                             .positions = head->desc.input[0].size[0],
                                             .features = head->desc.input[0].size[1],
                                             .numbers = head->desc.embedding.numbers,
                                             .dtype = head->output.dtype};
}

static gg_status position_embedding_forward(gg_op *head, const gg_op_args *args) {
    gg_cuda_position_embedding_args own = position_args(head);
    own.input = args->input[0];
    own.table = args->parameter[GG_PARAMETER_WEIGHT];
    own.output = args->output;
    gg_cuda_position_embedding(gg_cuda_element_stream(head), &own);
    return gg_cuda_element_done(head);
}

static gg_status position_embedding_backward_weights(gg_op *head, const gg_op_args *args) {
    gg_cuda_position_embedding_args own = position_args(head);
    own.grad_output = args->grad_output;
    own.grad_table = args->gradient[GG_PARAMETER_WEIGHT];
    gg_cuda_position_embedding_backward(gg_cuda_element_stream(head), &own);
    return gg_cuda_element_done(head);
}

static gg_status position_embedding_backward_data(gg_op *head, const gg_op_args *args) {
    if (args->grad_input[0] != NULL) gg_cuda_element_copy(head, args->grad_input[0], args->grad_output);
    return gg_cuda_element_done(head);
}

static const gg_op_class position_embedding_class = {.forward = position_embedding_forward,
                                                     .backward_weights = position_embedding_backward_weights,
                                                     .backward_data = position_embedding_backward_data,
                                                     .destroy = gg_cuda_op_free};

gg_status gg_cuda_position_embedding_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    *out = NULL;
    if (desc->inputs != 1 || desc->input[0].dims != 2 || desc->embedding.numbers < desc->input[0].size[0])
        return gg_fail(GG_ERROR_SHAPE,
                       "positions are added to one input (positions, features) of at most %lld positions",
                       (long long)desc->embedding.numbers);
    GG_TRY(gg_cuda_element_create(device, desc, &position_embedding_class, GG_CUDA_BFLOAT16, out));
    (*out)->in_place = true;
    return GG_OK;
}
