/* Convolution by cuDNN, with its bias and activation. bfloat16, and float32 by TF32, use NHWC; otherwise NCHW.
 *
 * For NHWC cuDNN reads the weight as (O, kH, kW, I), in the type of the activations. `prepare` writes this form. cuDNN
 * writes the gradient in it too, which is converted back.
 *
 * cuDNN may refuse to run an algorithm that it has listed. Each pass therefore has all allowed algorithms of its list.
 * If the first run of an algorithm is refused, the next one is used. The bias is cuDNN's if it has a form for that. The
 * ReLU is not, because cuDNN's makes NaN 0. */
#include <limits.h>

#include "cuda/kernels_nn.h"
#include "cuda/ops.h"

enum { MAX_ALGORITHMS = 16 };
/* Max workspace of an algorithm. */
#define MAX_WORKSPACE ((size_t)1 << 30)
/* Max workspace of an algorithm used only if the first one is refused. */
#define MAX_SPARE_WORKSPACE ((size_t)32 << 20)
/* The only algorithm that adds a bias without an activation. */
enum { PRECOMPUTED_PRODUCTS = 1 };

/* An algorithm that may compute a pass. */
typedef struct listed {
    int algorithm, math;
    size_t workspace; /* bytes */
} listed;

typedef struct conv_op {
    gg_op head;
    gg_cuda_device *device;
    gg_cudnn_tensor input, output, bias;
    gg_cudnn_filter filter;
    gg_cudnn_activation activation;
    /* For each pass, because the math may differ. */
    gg_cudnn_convolution convolution[GG_PASS_COUNT];
    listed list[GG_PASS_COUNT][MAX_ALGORITHMS];
    int count[GG_PASS_COUNT], current[GG_PASS_COUNT]; /* of each list */
    size_t room[GG_PASS_COUNT];                       /* bytes of existing workspace */
    bool ran[GG_PASS_COUNT];                          /* the current one has computed the pass */
    int64_t outputs, inputs, taps;                    /* of the weight; inputs of a group */
    size_t weight_bytes; /* of the weight in cuDNN's form, with alignment; 0 means the trained form */
    bool fused;          /* cuDNN adds the bias, until it refuses */
} conv_op;

static const float zero = 0, one = 1;

static bool is_unsupported(int error) { return gg_cudnn_status(error) == GG_ERROR_UNSUPPORTED; }

/* True if another algorithm may succeed. */
static bool is_refusal(int error) { return is_unsupported(error) || gg_cudnn_status(error) == GG_ERROR_MEMORY; }

static const listed *used(const conv_op *op, gg_pass pass) { return &op->list[pass][op->current[pass]]; }

static size_t aligned(size_t bytes) {
    const size_t step = GG_CUDA_WORKSPACE_ALIGNMENT;
    return (bytes + step - 1) / step * step;
}

static bool is_narrow(const conv_op *op) { return op->head.output.dtype == GG_BFLOAT16; }

/* ------------------------------------------------------------------------------------------------ running */

/* The weight and the bias for cuDNN are adjacent. */
static const void *weight_of(const conv_op *op, const gg_op_args *args) {
    return op->weight_bytes > 0 ? args->prepared : args->parameter[GG_PARAMETER_WEIGHT];
}

static void *narrow_bias(const conv_op *op, const gg_op_args *args) {
    return (char *)args->prepared + op->weight_bytes;
}

static gg_status conv_prepare(gg_op *head, const gg_op_args *args, gg_pass pass) {
    conv_op *op = (conv_op *)head;
    if (pass == GG_PASS_DATA && args->grad_input[0] == NULL) return GG_OK;
    gg_cuda_enter(op->device);
    gg_cuda_transpose_batched(gg_cuda_compute(op->device), op->outputs, op->inputs, op->taps, GG_FLOAT32,
                              head->output.dtype, args->parameter[GG_PARAMETER_WEIGHT], args->prepared);
    if (pass == GG_PASS_FORWARD && op->fused && is_narrow(op))
        gg_cuda_narrow(gg_cuda_compute(op->device), (size_t)op->outputs, args->parameter[GG_PARAMETER_BIAS],
                       narrow_bias(op, args));
    return gg_cuda_op_done(op->device, "the weight of a convolution");
}

/* outer of the batch, for kernels of biases. */
static int64_t outer_of(const gg_op *head) {
    const gg_op_desc *desc = &head->desc;
    const int64_t area = desc->output.size[1] * desc->output.size[2];
    return head->output.layout == GG_LAYOUT_NHWC ? desc->batch * area : desc->batch;
}

static int64_t inner_of(const gg_op *head) {
    return head->output.layout == GG_LAYOUT_NHWC ? 1 : head->desc.output.size[1] * head->desc.output.size[2];
}

static gg_status use(conv_op *op, gg_pass pass, int number) {
    const gg_cuda_api *api = op->device->api;
    op->current[pass] = number;
    GG_CUDNN_TRY(api, cudnnSetConvolutionMathType, (op->convolution[pass], op->list[pass][number].math));
    return GG_OK;
}

static int call_pass(const conv_op *op, const gg_op_args *args, gg_pass pass) {
    const gg_cuda_api *api = op->device->api;
    gg_cudnn_handle dnn = op->device->dnn;
    gg_cudnn_convolution convolution = op->convolution[pass];
    const int algorithm = used(op, pass)->algorithm;
    const size_t bytes = used(op, pass)->workspace;
    char *const scratch = gg_cuda_workspace(args->scratch);
    if (pass == GG_PASS_FORWARD)
        return api->cudnnConvolutionForward(dnn, &one, op->input, args->input[0], op->filter, weight_of(op, args),
                                            convolution, algorithm, scratch, bytes, &zero, op->output, args->output);
    if (pass == GG_PASS_DATA)
        return api->cudnnConvolutionBackwardData(dnn, &one, op->filter, weight_of(op, args), op->output,
                                                 args->grad_output, convolution, algorithm, scratch, bytes, &zero,
                                                 op->input, args->grad_input[0]);
    return api->cudnnConvolutionBackwardFilter(
        dnn, &one, op->input, args->input[0], op->output, args->grad_output, convolution, algorithm,
        scratch + op->weight_bytes, bytes, &zero, op->filter,
        op->weight_bytes > 0 ? (void *)scratch : args->gradient[GG_PARAMETER_WEIGHT]);
}

/* Runs the first algorithm, from the current one on, that is not refused and whose workspace exists. */
static gg_status run_pass(conv_op *op, const gg_op_args *args, gg_pass pass) {
    static const char *const calls[GG_PASS_COUNT] = {
        [GG_PASS_FORWARD] = "cudnnConvolutionForward",
        [GG_PASS_WEIGHTS] = "cudnnConvolutionBackwardFilter",
        [GG_PASS_DATA] = "cudnnConvolutionBackwardData",
    };
    int error = call_pass(op, args, pass);
    for (int next = op->current[pass] + 1; !op->ran[pass] && is_refusal(error) && next < op->count[pass]; ++next) {
        if (op->list[pass][next].workspace > op->room[pass]) continue;
        GG_TRY(use(op, pass, next));
        error = call_pass(op, args, pass);
    }
    if (error != GG_CUDNN_SUCCESS) GG_TRY(gg_cudnn_fail(op->device->api, error, calls[pass]));
    op->ran[pass] = true;
    return GG_OK;
}

/* At first any refusal means that cuDNN has no form with a bias; op->fused becomes false. */
static gg_status forward_with_bias(conv_op *op, const gg_op_args *args) {
    const gg_cuda_api *api = op->device->api;
    const void *bias = is_narrow(op) ? narrow_bias(op, args) : args->parameter[GG_PARAMETER_BIAS];
    const listed *by = used(op, GG_PASS_FORWARD);
    const int error = api->cudnnConvolutionBiasActivationForward(
        op->device->dnn, &one, op->input, args->input[0], op->filter, weight_of(op, args),
        op->convolution[GG_PASS_FORWARD], by->algorithm, gg_cuda_workspace(args->scratch), by->workspace, &zero,
        op->output, args->output, op->bias, bias, op->activation, op->output, args->output);
    const bool refused = is_refusal(error) || (error >= GG_CUDNN_BAD_PARAM && error <= GG_CUDNN_MAX_REFUSAL);
    op->fused = op->ran[GG_PASS_FORWARD] || !refused;
    if (op->fused && error != GG_CUDNN_SUCCESS)
        GG_TRY(gg_cudnn_fail(api, error, "cudnnConvolutionBiasActivationForward"));
    op->ran[GG_PASS_FORWARD] = op->fused;
    return GG_OK;
}

static gg_status conv_forward(gg_op *head, const gg_op_args *args) {
    conv_op *op = (conv_op *)head;
    gg_cuda_bias_args rest = {.dtype = head->output.dtype,
                              .outer = outer_of(head),
                              .channels = head->desc.output.size[0],
                              .inner = inner_of(head),
                              .relu = head->desc.activation == GG_ACTIVATION_RELU,
                              .y = args->output};
    gg_cuda_enter(op->device);
    if (op->fused) GG_TRY(forward_with_bias(op, args));
    if (!op->fused) GG_TRY(run_pass(op, args, GG_PASS_FORWARD));
    if (head->desc.bias && !op->fused) rest.bias = args->parameter[GG_PARAMETER_BIAS];
    if (rest.bias != NULL || rest.relu) gg_cuda_bias(gg_cuda_compute(op->device), &rest);
    return gg_cuda_op_done(op->device, "the bias of a convolution");
}

static gg_status bias_backward(conv_op *op, const gg_op_args *args) {
    const gg_op_desc *desc = &op->head.desc;
    const bool relu = desc->activation == GG_ACTIVATION_RELU;
    const gg_cuda_bias_backward_args bias = {.dtype = op->head.output.dtype,
                                             .outer = outer_of(&op->head),
                                             .channels = desc->output.size[0],
                                             .inner = inner_of(&op->head),
                                             .y = relu ? args->output : NULL,
                                             .grad = args->grad_output,
                                             .bias = desc->bias ? args->gradient[GG_PARAMETER_BIAS] : NULL,
                                             .scratch = args->scratch};
    if (!relu && !desc->bias) return GG_OK;
    gg_cuda_bias_backward(gg_cuda_compute(op->device), &bias);
    return gg_cuda_op_done(op->device, "the backward pass of a bias");
}

static gg_status conv_backward_weights(gg_op *head, const gg_op_args *args) {
    conv_op *op = (conv_op *)head;
    gg_cuda_enter(op->device);
    GG_TRY(bias_backward(op, args));
    GG_TRY(run_pass(op, args, GG_PASS_WEIGHTS));
    if (op->weight_bytes == 0) return GG_OK;
    gg_cuda_transpose_batched(gg_cuda_compute(op->device), op->outputs, op->taps, op->inputs, head->output.dtype,
                              GG_FLOAT32, gg_cuda_workspace(args->scratch), args->gradient[GG_PARAMETER_WEIGHT]);
    return gg_cuda_op_done(op->device, "the gradient of a convolution's weight");
}

static gg_status conv_backward_data(gg_op *head, const gg_op_args *args) {
    conv_op *op = (conv_op *)head;
    if (args->grad_input[0] == NULL) return GG_OK;
    gg_cuda_enter(op->device);
    return run_pass(op, args, GG_PASS_DATA);
}

static void conv_destroy(gg_op *head) {
    conv_op *op = (conv_op *)head;
    const gg_cuda_api *api = op->device->api;
    for (int pass = 0; pass < GG_PASS_COUNT; ++pass)
        if (op->convolution[pass] != NULL) (void)api->cudnnDestroyConvolutionDescriptor(op->convolution[pass]);
    if (op->activation != NULL) (void)api->cudnnDestroyActivationDescriptor(op->activation);
    if (op->bias != NULL) (void)api->cudnnDestroyTensorDescriptor(op->bias);
    if (op->filter != NULL) (void)api->cudnnDestroyFilterDescriptor(op->filter);
    if (op->output != NULL) (void)api->cudnnDestroyTensorDescriptor(op->output);
    if (op->input != NULL) (void)api->cudnnDestroyTensorDescriptor(op->input);
    gg_cuda_op_free(head);
}

static const gg_op_class conv_class = {.prepare = conv_prepare,
                                       .forward = conv_forward,
                                       .backward_weights = conv_backward_weights,
                                       .backward_data = conv_backward_data,
                                       .destroy = conv_destroy};

/* ------------------------------------------------------------------------------------------------ creating */

static gg_status describe_tensor(const gg_cuda_api *api, gg_format format, int64_t batch, const gg_shape *shape,
                                 gg_cudnn_tensor *out) {
    const int order = format.layout == GG_LAYOUT_NHWC ? GG_CUDNN_TENSOR_NHWC : GG_CUDNN_TENSOR_NCHW;
    const int type = format.dtype == GG_BFLOAT16 ? GG_CUDNN_DATA_BFLOAT16 : GG_CUDNN_DATA_FLOAT;
    GG_CUDNN_TRY(api, cudnnCreateTensorDescriptor, (out));
    GG_CUDNN_TRY(api, cudnnSetTensor4dDescriptor,
                 (*out, order, type, (int)batch, (int)shape->size[0], (int)shape->size[1], (int)shape->size[2]));
    return GG_OK;
}

/* Math type of a convolution: accumulation, and allowed rounding of factors. */
static int math_of(const conv_op *op) {
    return is_narrow(op) ? GG_CUDNN_TENSOR_OP_MATH : op->device->fast ? GG_CUDNN_DEFAULT_MATH : GG_CUDNN_FMA_MATH;
}

static gg_status describe_convolution(conv_op *op, gg_pass pass) {
    const gg_cuda_api *api = op->device->api;
    const gg_window *w = &op->head.desc.conv.window;
    gg_cudnn_convolution *made = &op->convolution[pass];
    GG_CUDNN_TRY(api, cudnnCreateConvolutionDescriptor, (made));
    GG_CUDNN_TRY(api, cudnnSetConvolution2dDescriptor,
                 (*made, (int)w->padding[0], (int)w->padding[1], (int)w->stride[0], (int)w->stride[1],
                  (int)w->dilation[0], (int)w->dilation[1], GG_CUDNN_CROSS_CORRELATION, GG_CUDNN_DATA_FLOAT));
    GG_CUDNN_TRY(api, cudnnSetConvolutionGroupCount, (*made, (int)op->head.desc.conv.groups));
    GG_CUDNN_TRY(api, cudnnSetConvolutionMathType, (*made, math_of(op)));
    return GG_OK;
}

static gg_status describe(conv_op *op) {
    const gg_cuda_api *api = op->device->api;
    const gg_op_desc *desc = &op->head.desc;
    const gg_format format = op->head.output;
    const int order = format.layout == GG_LAYOUT_NHWC ? GG_CUDNN_TENSOR_NHWC : GG_CUDNN_TENSOR_NCHW;
    GG_TRY(describe_tensor(api, format, desc->batch, &desc->input[0], &op->input));
    GG_TRY(describe_tensor(api, format, desc->batch, &desc->output, &op->output));
    GG_CUDNN_TRY(api, cudnnCreateFilterDescriptor, (&op->filter));
    GG_CUDNN_TRY(api, cudnnSetFilter4dDescriptor,
                 (op->filter, is_narrow(op) ? GG_CUDNN_DATA_BFLOAT16 : GG_CUDNN_DATA_FLOAT, order, (int)op->outputs,
                  (int)op->inputs, (int)desc->conv.window.kernel[0], (int)desc->conv.window.kernel[1]));
    for (int pass = 0; pass < GG_PASS_COUNT; ++pass) GG_TRY(describe_convolution(op, (gg_pass)pass));
    return GG_OK;
}

/* cuDNN adds the bias in the convolution's own kernel. In exact mode our own kernel does, with the CPU's bits. The ReLU
 * is always our own. */
static gg_status describe_bias(conv_op *op) {
    const gg_cuda_api *api = op->device->api;
    const gg_op_desc *desc = &op->head.desc;
    const gg_shape channels = {.dims = 3, .size = {op->outputs, 1, 1}};
    if (!desc->bias || !gg_op_has_pass(desc, GG_PASS_FORWARD)) return GG_OK;
    if (!op->device->fast && !is_narrow(op)) return GG_OK;
    if (used(op, GG_PASS_FORWARD)->algorithm != PRECOMPUTED_PRODUCTS) return GG_OK;
    GG_TRY(describe_tensor(api, op->head.output, 1, &channels, &op->bias));
    GG_CUDNN_TRY(api, cudnnCreateActivationDescriptor, (&op->activation));
    GG_CUDNN_TRY(api, cudnnSetActivationDescriptor,
                 (op->activation, GG_CUDNN_ACTIVATION_IDENTITY, GG_CUDNN_NOT_PROPAGATE_NAN, 0.0));
    op->fused = true;
    return GG_OK;
}

static gg_status ask_algorithms(const conv_op *op, gg_pass pass, int *got, gg_cudnn_algorithm *found) {
    static const char *const calls[GG_PASS_COUNT] = {
        [GG_PASS_FORWARD] = "cudnnGetConvolutionForwardAlgorithm_v7",
        [GG_PASS_WEIGHTS] = "cudnnGetConvolutionBackwardFilterAlgorithm_v7",
        [GG_PASS_DATA] = "cudnnGetConvolutionBackwardDataAlgorithm_v7",
    };
    const gg_cuda_api *api = op->device->api;
    gg_cudnn_handle dnn = op->device->dnn;
    gg_cudnn_convolution convolution = op->convolution[pass];
    int error = GG_CUDNN_SUCCESS;
    if (pass == GG_PASS_FORWARD)
        error = api->cudnnGetConvolutionForwardAlgorithm_v7(dnn, op->input, op->filter, convolution, op->output,
                                                            MAX_ALGORITHMS, got, found);
    if (pass == GG_PASS_WEIGHTS)
        error = api->cudnnGetConvolutionBackwardFilterAlgorithm_v7(dnn, op->input, op->output, convolution, op->filter,
                                                                   MAX_ALGORITHMS, got, found);
    if (pass == GG_PASS_DATA)
        error = api->cudnnGetConvolutionBackwardDataAlgorithm_v7(dnn, op->filter, op->output, convolution, op->input,
                                                                 MAX_ALGORITHMS, got, found);
    if (is_unsupported(error)) *got = 0;
    else if (error != GG_CUDNN_SUCCESS) GG_TRY(gg_cudnn_fail(api, error, calls[pass]));
    return GG_OK;
}

static gg_status ask_workspace(const conv_op *op, gg_pass pass, int algorithm, size_t *bytes) {
    const gg_cuda_api *api = op->device->api;
    gg_cudnn_handle dnn = op->device->dnn;
    gg_cudnn_convolution convolution = op->convolution[pass];
    if (pass == GG_PASS_FORWARD)
        GG_CUDNN_TRY(api, cudnnGetConvolutionForwardWorkspaceSize,
                     (dnn, op->input, op->filter, convolution, op->output, algorithm, bytes));
    if (pass == GG_PASS_WEIGHTS)
        GG_CUDNN_TRY(api, cudnnGetConvolutionBackwardFilterWorkspaceSize,
                     (dnn, op->input, op->output, convolution, op->filter, algorithm, bytes));
    if (pass == GG_PASS_DATA)
        GG_CUDNN_TRY(api, cudnnGetConvolutionBackwardDataWorkspaceSize,
                     (dnn, op->filter, op->output, convolution, op->input, algorithm, bytes));
    return GG_OK;
}

/* Algorithms by Fourier transforms and Winograd's method; their errors exceed those of plain sums. */
static bool is_transforming(gg_pass pass, int algorithm) {
    static const unsigned numbers[GG_PASS_COUNT] = {
        [GG_PASS_FORWARD] = 1u << 4 | 1u << 5 | 1u << 6 | 1u << 7,
        [GG_PASS_WEIGHTS] = 1u << 2 | 1u << 4 | 1u << 5 | 1u << 6,
        [GG_PASS_DATA] = 1u << 2 | 1u << 3 | 1u << 4 | 1u << 5,
    };
    return algorithm >= 0 && algorithm < 32 && (numbers[pass] >> algorithm & 1u) != 0;
}

static bool is_allowed(const conv_op *op, gg_pass pass, const gg_cudnn_algorithm *found) {
    /* Lists may say "default" for an algorithm without another form; then the descriptor's math excludes TF32. Products
     * of bfloat16 are exact in any form. */
    const bool plain = is_narrow(op) || found->math == GG_CUDNN_FMA_MATH || found->math == GG_CUDNN_DEFAULT_MATH;
    const bool exact =
        found->determinism == GG_CUDNN_DETERMINISTIC && plain && !is_transforming(pass, found->algorithm);
    return found->status == GG_CUDNN_SUCCESS && found->memory <= MAX_WORKSPACE && (op->device->fast || exact);
}

/* Appends an algorithm to the list, unless its workspace exceeds the limit. */
static gg_status add_listed(conv_op *op, gg_pass pass, const gg_cudnn_algorithm *found) {
    const int number = op->count[pass];
    listed *made = &op->list[pass][number];
    gg_status status = GG_OK;
    *made = (listed){.algorithm = found->algorithm, .math = op->device->fast ? found->math : math_of(op)};
    GG_TRY(use(op, pass, number)); /* the workspace depends on it */
    status = ask_workspace(op, pass, made->algorithm, &made->workspace);
    op->count[pass] += status == GG_OK && made->workspace <= MAX_WORKSPACE;
    if (status == GG_ERROR_UNSUPPORTED || status == GG_ERROR_MEMORY) return GG_OK;
    return status;
}

/* Workspace for the first algorithm, and enough for an alternative that needs little. */
static size_t room_of(const conv_op *op, gg_pass pass) {
    const size_t first = op->list[pass][0].workspace;
    size_t least = SIZE_MAX;
    for (int i = 1; i < op->count[pass]; ++i)
        if (op->list[pass][i].workspace < least) least = op->list[pass][i].workspace;
    return least <= MAX_SPARE_WORKSPACE && least > first ? least : first;
}

/* Takes the allowed algorithms of cuDNN's list, fastest first, or the requested algorithm. */
static gg_status choose_algorithm(conv_op *op, gg_pass pass) {
    const gg_op_desc *desc = &op->head.desc;
    const int wanted = (int)desc->algorithm - GG_ALGORITHM_CUDNN0;
    gg_cudnn_algorithm found[MAX_ALGORITHMS];
    int got = 0;
    GG_TRY(ask_algorithms(op, pass, &got, found));
    for (int i = 0; i < got; ++i) {
        const bool meant = desc->algorithm == GG_ALGORITHM_DIRECT || found[i].algorithm == wanted;
        if (meant && is_allowed(op, pass, &found[i])) GG_TRY(add_listed(op, pass, &found[i]));
    }
    if (op->count[pass] == 0)
        return gg_fail(GG_ERROR_UNSUPPORTED, "cuDNN has no %salgorithm%s%s for the %s pass of this convolution",
                       op->device->fast ? "" : "deterministic ", desc->algorithm == GG_ALGORITHM_DIRECT ? "" : " ",
                       desc->algorithm == GG_ALGORITHM_DIRECT ? "" : gg_algorithm_name(desc->algorithm),
                       gg_pass_name(pass));
    GG_TRY(use(op, pass, 0));
    op->room[pass] = room_of(op, pass);
    return GG_OK;
}

static gg_status check_conv(const gg_op_desc *desc) {
    const gg_shape *in = &desc->input[0], *out = &desc->output;
    if (desc->inputs != 1 || in->dims != 3 || out->dims != 3 || desc->conv.groups < 1 ||
        in->size[0] % desc->conv.groups != 0 || out->size[0] % desc->conv.groups != 0)
        return gg_fail(GG_ERROR_SHAPE,
                       "conv2d maps one image (C, H, W) to another; %lld groups divide both channel counts",
                       (long long)desc->conv.groups);
    for (int a = 0; a < 2; ++a)
        if (gg_window_output(&desc->conv.window, a, in->size[1 + a], false) != out->size[1 + a])
            return gg_fail(GG_ERROR_SHAPE, "conv2d: windows over %lld elements do not give %lld outputs",
                           (long long)in->size[1 + a], (long long)out->size[1 + a]);
    if (desc->algorithm != GG_ALGORITHM_DIRECT && desc->algorithm != GG_ALGORITHM_TILED &&
        (desc->algorithm < GG_ALGORITHM_CUDNN0 || desc->algorithm > GG_ALGORITHM_CUDNN7))
        return gg_fail(GG_ERROR_UNSUPPORTED, "conv2d on a GPU: '%s' is an algorithm of the CPU; cuDNN has its own",
                       gg_algorithm_name(desc->algorithm));
    if (desc->batch > INT_MAX / gg_shape_count(in) || desc->batch > INT_MAX / gg_shape_count(out))
        return gg_fail(GG_ERROR_UNSUPPORTED, "conv2d on a GPU: a batch of %lld has more than %d values",
                       (long long)desc->batch, INT_MAX);
    return GG_OK;
}

/* Sets the weight's layout for cuDNN, and the memory for it. */
static void place_weights(conv_op *op) {
    const gg_op_desc *desc = &op->head.desc;
    op->outputs = desc->output.size[0];
    op->inputs = desc->input[0].size[0] / desc->conv.groups;
    op->taps = desc->conv.window.kernel[0] * desc->conv.window.kernel[1];
    const size_t size = gg_dtype_size(op->head.output.dtype);
    const bool turned = op->head.output.layout == GG_LAYOUT_NHWC && op->inputs > 1 && op->taps > 1;
    if (turned || is_narrow(op)) op->weight_bytes = aligned((size_t)(op->outputs * op->inputs * op->taps) * size);
    op->head.prepared_bytes = op->weight_bytes;
    if (is_narrow(op)) op->head.prepared_bytes += (size_t)op->outputs * size;
}

static gg_status create_as(gg_device *device, const gg_op_desc *desc, gg_format format, gg_op **out) {
    gg_op *head = NULL;
    gg_status status = GG_OK;
    GG_TRY_CLEANUP(gg_cuda_op_create(desc, &conv_class, 1, sizeof(conv_op), &head));
    conv_op *op = (conv_op *)head;
    op->device = gg_cuda_of(device);
    head->input[0] = head->output = format;
    head->prepared_once = true;
    place_weights(op);
    gg_cuda_enter(op->device);
    GG_TRY_CLEANUP(describe(op));
    head->backward_needs_input = gg_op_has_pass(desc, GG_PASS_WEIGHTS);
    head->backward_needs_output = gg_op_has_pass(desc, GG_PASS_WEIGHTS) && desc->activation == GG_ACTIVATION_RELU;
    if (desc->training && desc->bias && gg_op_has_pass(desc, GG_PASS_WEIGHTS))
        head->scratch_bytes = gg_cuda_bias_backward_scratch(outer_of(head), desc->output.size[0], inner_of(head));
    for (int pass = 0; pass < GG_PASS_COUNT; ++pass) {
        const bool run = pass == GG_PASS_FORWARD || (desc->training && (pass == GG_PASS_WEIGHTS || desc->input_grad));
        if (!run || !gg_op_has_pass(desc, (gg_pass)pass)) continue;
        GG_TRY_CLEANUP(choose_algorithm(op, (gg_pass)pass));
        const size_t gradient = pass == GG_PASS_WEIGHTS ? op->weight_bytes : 0;
        const size_t room = gradient + op->room[pass] + GG_CUDA_WORKSPACE_ALIGNMENT;
        if (room > head->scratch_bytes) head->scratch_bytes = room;
    }
    GG_TRY_CLEANUP(describe_bias(op));
    *out = head;
    head = NULL;
cleanup:
    if (head != NULL) conv_destroy(head);
    return status;
}

/* Uses the first of these formats in which cuDNN has all passes. */
gg_status gg_cuda_conv2d_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    const gg_format formats[3] = {
        {GG_BFLOAT16, GG_LAYOUT_NHWC}, {GG_FLOAT32, GG_LAYOUT_NHWC}, {GG_FLOAT32, GG_LAYOUT_PLAIN}};
    const bool possible[3] = {desc->dtype == GG_BFLOAT16, gg_cuda_of(device)->fast, true};
    gg_status status = GG_OK;
    *out = NULL;
    GG_TRY(check_conv(desc));
    status = GG_ERROR_UNSUPPORTED;
    if (desc->algorithm == GG_ALGORITHM_TILED) {
        return gg_cuda_tiled_conv2d_create(device, desc, out);
    }
    for (int i = 0; i < 3 && status == GG_ERROR_UNSUPPORTED; ++i)
        if (possible[i]) status = create_as(device, desc, formats[i], out);
    return status;
}
