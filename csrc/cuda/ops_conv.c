/* Convolution by cuDNN, NCHW; bias and activation by own kernels. */
#include <limits.h>

#include "cuda/kernels_nn.h"
#include "cuda/ops.h"

enum { MOST_ALGORITHMS = 16 };
/* A workspace above which an algorithm is not used. */
#define MOST_WORKSPACE ((size_t)1 << 30)

typedef struct conv_op {
    gg_op head;
    gg_cuda_device *device;
    gg_cudnn_tensor input, output;
    gg_cudnn_filter filter;
    /* Of each pass, because the math may differ. */
    gg_cudnn_convolution convolution[GG_PASS_COUNT];
    int algorithm[GG_PASS_COUNT];
    size_t workspace[GG_PASS_COUNT];
} conv_op;

static const float zero = 0, one = 1;

/* ------------------------------------------------------------------------------------------------ running */

static gg_cuda_bias_args bias_of(const conv_op *op, const gg_op_args *args) {
    const gg_op_desc *desc = &op->head.desc;
    return (gg_cuda_bias_args){.outer = desc->batch,
                               .channels = desc->output.size[0],
                               .inner = desc->output.size[1] * desc->output.size[2],
                               .relu = desc->activation == GG_ACTIVATION_RELU,
                               .bias = desc->bias ? args->parameter[GG_PARAMETER_BIAS] : NULL,
                               .y = args->output};
}

static gg_status conv_forward(gg_op *head, const gg_op_args *args) {
    conv_op *op = (conv_op *)head;
    const gg_cuda_api *api = op->device->api;
    const gg_cuda_bias_args bias = bias_of(op, args);
    gg_status status = GG_OK;
    gg_cuda_enter(op->device);
    GG_CUDNN_TRY(api, cudnnConvolutionForward,
                 (op->device->dnn, &one, op->input, args->input[0], op->filter, args->parameter[GG_PARAMETER_WEIGHT],
                  op->convolution[GG_PASS_FORWARD], op->algorithm[GG_PASS_FORWARD], gg_cuda_workspace(args->scratch),
                  op->workspace[GG_PASS_FORWARD], &zero, op->output, args->output));
    if (bias.bias != NULL || bias.relu) gg_cuda_bias(gg_cuda_compute(op->device), &bias);
    GG_TRY(gg_cuda_op_done(op->device, "the bias of a convolution"));
cleanup:
    return status;
}

static gg_status conv_backward_weights(gg_op *head, const gg_op_args *args) {
    conv_op *op = (conv_op *)head;
    const gg_cuda_api *api = op->device->api;
    const gg_op_desc *desc = &head->desc;
    const bool relu = desc->activation == GG_ACTIVATION_RELU;
    gg_status status = GG_OK;
    gg_cuda_enter(op->device);
    if (relu || desc->bias) {
        const gg_cuda_bias_backward_args bias = {.outer = desc->batch,
                                                 .channels = desc->output.size[0],
                                                 .inner = desc->output.size[1] * desc->output.size[2],
                                                 .y = relu ? args->output : NULL,
                                                 .grad = args->grad_output,
                                                 .bias = desc->bias ? args->gradient[GG_PARAMETER_BIAS] : NULL,
                                                 .scratch = args->scratch};
        gg_cuda_bias_backward(gg_cuda_compute(op->device), &bias);
        GG_TRY(gg_cuda_op_done(op->device, "the backward pass of a bias"));
    }
    GG_CUDNN_TRY(api, cudnnConvolutionBackwardFilter,
                 (op->device->dnn, &one, op->input, args->input[0], op->output, args->grad_output,
                  op->convolution[GG_PASS_WEIGHTS], op->algorithm[GG_PASS_WEIGHTS], gg_cuda_workspace(args->scratch),
                  op->workspace[GG_PASS_WEIGHTS], &zero, op->filter, args->gradient[GG_PARAMETER_WEIGHT]));
cleanup:
    return status;
}

static gg_status conv_backward_data(gg_op *head, const gg_op_args *args) {
    conv_op *op = (conv_op *)head;
    const gg_cuda_api *api = op->device->api;
    gg_status status = GG_OK;
    if (args->grad_input[0] == NULL) goto cleanup;
    gg_cuda_enter(op->device);
    GG_CUDNN_TRY(api, cudnnConvolutionBackwardData,
                 (op->device->dnn, &one, op->filter, args->parameter[GG_PARAMETER_WEIGHT], op->output,
                  args->grad_output, op->convolution[GG_PASS_DATA], op->algorithm[GG_PASS_DATA],
                  gg_cuda_workspace(args->scratch), op->workspace[GG_PASS_DATA], &zero, op->input,
                  args->grad_input[0]));
cleanup:
    return status;
}

static void conv_destroy(gg_op *head) {
    conv_op *op = (conv_op *)head;
    const gg_cuda_api *api = op->device->api;
    for (int pass = 0; pass < GG_PASS_COUNT; ++pass)
        if (op->convolution[pass] != NULL) (void)api->cudnnDestroyConvolutionDescriptor(op->convolution[pass]);
    if (op->filter != NULL) (void)api->cudnnDestroyFilterDescriptor(op->filter);
    if (op->output != NULL) (void)api->cudnnDestroyTensorDescriptor(op->output);
    if (op->input != NULL) (void)api->cudnnDestroyTensorDescriptor(op->input);
    gg_cuda_op_free(head);
}

static const gg_op_class conv_class = {.forward = conv_forward,
                                       .backward_weights = conv_backward_weights,
                                       .backward_data = conv_backward_data,
                                       .destroy = conv_destroy};

/* ------------------------------------------------------------------------------------------------ creating */

static gg_status describe_tensor(const gg_cuda_api *api, int64_t batch, const gg_shape *shape, gg_cudnn_tensor *out) {
    gg_status status = GG_OK;
    GG_CUDNN_TRY(api, cudnnCreateTensorDescriptor, (out));
    GG_CUDNN_TRY(api, cudnnSetTensor4dDescriptor,
                 (*out, GG_CUDNN_TENSOR_NCHW, GG_CUDNN_DATA_FLOAT, (int)batch, (int)shape->size[0], (int)shape->size[1],
                  (int)shape->size[2]));
cleanup:
    return status;
}

static gg_status describe(conv_op *op) {
    const gg_cuda_api *api = op->device->api;
    const gg_op_desc *desc = &op->head.desc;
    const gg_window *w = &desc->window;
    gg_status status = GG_OK;
    GG_TRY(describe_tensor(api, desc->batch, &desc->input[0], &op->input));
    GG_TRY(describe_tensor(api, desc->batch, &desc->output, &op->output));
    GG_CUDNN_TRY(api, cudnnCreateFilterDescriptor, (&op->filter));
    GG_CUDNN_TRY(api, cudnnSetFilter4dDescriptor,
                 (op->filter, GG_CUDNN_DATA_FLOAT, GG_CUDNN_TENSOR_NCHW, (int)desc->output.size[0],
                  (int)(desc->input[0].size[0] / desc->groups), (int)w->kernel[0], (int)w->kernel[1]));
    for (int pass = 0; pass < GG_PASS_COUNT; ++pass) {
        GG_CUDNN_TRY(api, cudnnCreateConvolutionDescriptor, (&op->convolution[pass]));
        GG_CUDNN_TRY(api, cudnnSetConvolution2dDescriptor,
                     (op->convolution[pass], (int)w->padding[0], (int)w->padding[1], (int)w->stride[0],
                      (int)w->stride[1], (int)w->dilation[0], (int)w->dilation[1], GG_CUDNN_CROSS_CORRELATION,
                      GG_CUDNN_DATA_FLOAT));
        GG_CUDNN_TRY(api, cudnnSetConvolutionGroupCount, (op->convolution[pass], (int)desc->groups));
        GG_CUDNN_TRY(api, cudnnSetConvolutionMathType,
                     (op->convolution[pass], op->device->fast ? GG_CUDNN_DEFAULT_MATH : GG_CUDNN_FMA_MATH));
    }
cleanup:
    return status;
}

static gg_status ask_algorithms(const conv_op *op, gg_pass pass, int *got, gg_cudnn_algorithm *found) {
    const gg_cuda_api *api = op->device->api;
    gg_cudnn_handle dnn = op->device->dnn;
    gg_cudnn_convolution convolution = op->convolution[pass];
    gg_status status = GG_OK;
    if (pass == GG_PASS_FORWARD)
        GG_CUDNN_TRY(api, cudnnGetConvolutionForwardAlgorithm_v7,
                     (dnn, op->input, op->filter, convolution, op->output, MOST_ALGORITHMS, got, found));
    if (pass == GG_PASS_WEIGHTS)
        GG_CUDNN_TRY(api, cudnnGetConvolutionBackwardFilterAlgorithm_v7,
                     (dnn, op->input, op->output, convolution, op->filter, MOST_ALGORITHMS, got, found));
    if (pass == GG_PASS_DATA)
        GG_CUDNN_TRY(api, cudnnGetConvolutionBackwardDataAlgorithm_v7,
                     (dnn, op->filter, op->output, convolution, op->input, MOST_ALGORITHMS, got, found));
cleanup:
    return status;
}

static gg_status ask_workspace(const conv_op *op, gg_pass pass, int algorithm, size_t *bytes) {
    const gg_cuda_api *api = op->device->api;
    gg_cudnn_handle dnn = op->device->dnn;
    gg_cudnn_convolution convolution = op->convolution[pass];
    gg_status status = GG_OK;
    if (pass == GG_PASS_FORWARD)
        GG_CUDNN_TRY(api, cudnnGetConvolutionForwardWorkspaceSize,
                     (dnn, op->input, op->filter, convolution, op->output, algorithm, bytes));
    if (pass == GG_PASS_WEIGHTS)
        GG_CUDNN_TRY(api, cudnnGetConvolutionBackwardFilterWorkspaceSize,
                     (dnn, op->input, op->output, convolution, op->filter, algorithm, bytes));
    if (pass == GG_PASS_DATA)
        GG_CUDNN_TRY(api, cudnnGetConvolutionBackwardDataWorkspaceSize,
                     (dnn, op->filter, op->output, convolution, op->input, algorithm, bytes));
cleanup:
    return status;
}

/* Algorithms by Fourier transforms and Winograd's method, whose errors are larger than those of plain sums. */
static bool is_transforming(gg_pass pass, int algorithm) {
    static const unsigned numbers[GG_PASS_COUNT] = {
        [GG_PASS_FORWARD] = 1u << 4 | 1u << 5 | 1u << 6 | 1u << 7,
        [GG_PASS_WEIGHTS] = 1u << 2 | 1u << 4 | 1u << 5 | 1u << 6,
        [GG_PASS_DATA] = 1u << 2 | 1u << 3 | 1u << 4 | 1u << 5,
    };
    return algorithm >= 0 && algorithm < 32 && (numbers[pass] >> algorithm & 1u) != 0;
}

/* The first algorithm of cuDNN's list, which has the fastest first, that is allowed here. */
static gg_status choose_algorithm(conv_op *op, gg_pass pass) {
    const gg_cuda_api *api = op->device->api;
    const bool fast = op->device->fast;
    gg_cudnn_algorithm found[MOST_ALGORITHMS];
    int got = 0, chosen = -1;
    gg_status status = GG_OK;
    GG_TRY(ask_algorithms(op, pass, &got, found));
    for (int i = 0; i < got && chosen < 0; ++i) {
        /* Lists may say "default" of what has no other form: the descriptor's math is what rules out TF32. */
        const bool plain = found[i].math == GG_CUDNN_FMA_MATH || found[i].math == GG_CUDNN_DEFAULT_MATH;
        const bool exact =
            found[i].determinism == GG_CUDNN_DETERMINISTIC && plain && !is_transforming(pass, found[i].algorithm);
        if (found[i].status == GG_CUDNN_SUCCESS && found[i].memory <= MOST_WORKSPACE && (fast || exact)) chosen = i;
    }
    if (chosen < 0)
        GG_FAIL(GG_ERROR_UNSUPPORTED, "cuDNN has no %salgorithm for the %s pass of this convolution",
                fast ? "" : "deterministic ", gg_pass_name(pass));
    op->algorithm[pass] = found[chosen].algorithm;
    GG_CUDNN_TRY(api, cudnnSetConvolutionMathType,
                 (op->convolution[pass], fast ? found[chosen].math : GG_CUDNN_FMA_MATH));
    GG_TRY(ask_workspace(op, pass, op->algorithm[pass], &op->workspace[pass]));
cleanup:
    return status;
}

static gg_status check_conv(const gg_op_desc *desc) {
    gg_status status = GG_OK;
    const gg_shape *in = &desc->input[0], *out = &desc->output;
    if (desc->inputs != 1 || in->dims != 3 || out->dims != 3 || desc->groups < 1 || in->size[0] % desc->groups != 0 ||
        out->size[0] % desc->groups != 0)
        GG_FAIL(GG_ERROR_SHAPE, "conv2d maps one image (C, H, W) to another; %lld groups divide both channel counts",
                (long long)desc->groups);
    for (int a = 0; a < 2; ++a)
        if (gg_window_output(&desc->window, a, in->size[1 + a], false) != out->size[1 + a])
            GG_FAIL(GG_ERROR_SHAPE, "conv2d: windows over %lld elements do not give %lld outputs",
                    (long long)in->size[1 + a], (long long)out->size[1 + a]);
    if (desc->algorithm != GG_ALGORITHM_DIRECT)
        GG_FAIL(GG_ERROR_UNSUPPORTED, "conv2d on a GPU: cuDNN chooses the algorithm; '%s' cannot be asked for",
                gg_algorithm_name(desc->algorithm));
    if (desc->batch > INT_MAX / gg_shape_count(in) || desc->batch > INT_MAX / gg_shape_count(out))
        GG_FAIL(GG_ERROR_UNSUPPORTED, "conv2d on a GPU: a batch of %lld has more than %d values",
                (long long)desc->batch, INT_MAX);
cleanup:
    return status;
}

gg_status gg_cuda_conv2d_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_op *head = NULL;
    gg_status status = GG_OK;
    *out = NULL;
    GG_TRY(check_conv(desc));
    GG_TRY(gg_cuda_op_create(desc, &conv_class, 1, sizeof(conv_op), &head));
    conv_op *op = (conv_op *)head;
    op->device = gg_cuda_of(device);
    gg_cuda_enter(op->device);
    GG_TRY(describe(op));
    head->backward_needs_input = 1;
    head->backward_needs_output = desc->activation == GG_ACTIVATION_RELU;
    if (desc->training && desc->bias)
        head->scratch_bytes = gg_cuda_bias_backward_scratch(desc->batch, desc->output.size[0],
                                                            desc->output.size[1] * desc->output.size[2]);
    for (int pass = 0; pass < GG_PASS_COUNT; ++pass) {
        const bool run = pass == GG_PASS_FORWARD || (desc->training && (pass == GG_PASS_WEIGHTS || desc->input_grad));
        if (!run || !gg_op_has_pass(desc, (gg_pass)pass)) continue;
        GG_TRY(choose_algorithm(op, (gg_pass)pass));
        const size_t room = op->workspace[pass] + GG_CUDA_WORKSPACE_ALIGNMENT;
        if (room > head->scratch_bytes) head->scratch_bytes = room;
    }
    *out = head;
    head = NULL;
cleanup:
    if (head != NULL) conv_destroy(head);
    return status;
}
