/* Convolution. Weights and their gradients are float32 in PyTorch's layout. Weights are prepared in the kernels'
 * layouts and type. Reorders of their gradients use scratch, and cost little compared with the convolution. */
#include "base/cpu.h"
#include "cpu/native.h"
#include "cpu/onednn_common.h"

typedef struct conv {
    gg_dnn_op *op;
    dnnl_dims_t stride, dilation, left, right;
    const_dnnl_memory_desc_t input, output;            /* as the operation declares them */
    const_dnnl_memory_desc_t weight, bias;             /* as parameters; bias NULL means none */
    const_dnnl_memory_desc_t weight_any, gradient_any; /* as the kernels read and write them */
    dnnl_primitive_desc_t forward;
    bool slow; /* result of gg_dnn_is_slow for a pass */
} conv;

static gg_status onednn_conv2d_check(const gg_op_desc *desc) {
    char in[GG_SHAPE_TEXT], out[GG_SHAPE_TEXT];
    if (desc->algorithm != GG_ALGORITHM_DIRECT)
        return gg_fail(GG_ERROR_UNSUPPORTED, "oneDNN's convolution is direct, not %s",
                       gg_algorithm_name(desc->algorithm));
    if (desc->inputs != 1 || desc->input[0].dims != 3 || desc->output.dims != 3)
        return gg_fail(GG_ERROR_SHAPE, "conv2d has one image, not %d of shape %s to %s", desc->inputs,
                       gg_shape_text(&desc->input[0], in), gg_shape_text(&desc->output, out));
    if (desc->conv.groups < 1 || desc->input[0].size[0] % desc->conv.groups != 0 ||
        desc->output.size[0] % desc->conv.groups != 0)
        return gg_fail(GG_ERROR_SHAPE, "conv2d: %lld groups do not divide %lld and %lld channels",
                       (long long)desc->conv.groups, (long long)desc->input[0].size[0],
                       (long long)desc->output.size[0]);
    return GG_OK;
}

static gg_status forward_pd(conv *it, const_dnnl_memory_desc_t input, const_dnnl_memory_desc_t output,
                            dnnl_primitive_desc_t *out) {
    gg_dnn_op *op = it->op;
    const gg_op_desc *desc = &op->head.desc;
    GG_DNN_PD(op, out, dnnl_convolution_forward_primitive_desc_create, op->engine,
              desc->training ? dnnl_forward_training : dnnl_forward_inference, dnnl_convolution_direct, input,
              it->weight_any, it->bias, output, it->stride, it->dilation, it->left, it->right, op->plain_attr);
    return GG_OK;
}

static int64_t onednn_conv2d_rounded(int64_t n, int64_t block) { return (n + block - 1) / block * block; }

/* In blocked layouts padded channels cost time in all three passes, in NHWC they do not. Measured with AVX-512: NHWC is
 * 1.7 times faster for 20 -> 50 channels, 1.4 times for 24 -> 64. Without padding and with stride 1 both are equal.
 * Inputs of up to 4 channels have kernels that read PLAIN. */
static bool prefer_nhwc(const gg_op_desc *desc, gg_isa isa) {
    const int64_t block = isa >= GG_ISA_AVX512 ? 16 : 8;
    const int64_t in = desc->input[0].size[0], out = desc->output.size[0];
    if (desc->conv.groups != 1 || in <= 4) return false;
    if (in >= 8 && 4 * onednn_conv2d_rounded(in, block) * onednn_conv2d_rounded(out, block) > 5 * in * out) return true;
    return desc->offered[0].layout == GG_LAYOUT_NHWC && desc->conv.window.stride[0] == 1 &&
           desc->conv.window.stride[1] == 1;
}

static gg_status in_layouts(conv *it, gg_layout input, gg_layout output) {
    gg_dnn_op *op = it->op;
    op->head.input[0].layout = input;
    op->head.output.layout = output;
    GG_TRY(gg_dnn_batch_md(op, op->head.input[0], &op->head.desc.input[0], &it->input));
    GG_TRY(gg_dnn_batch_md(op, op->head.output, &op->head.desc.output, &it->output));
    return forward_pd(it, it->input, it->output, &it->forward);
}

/* Chooses the operation's formats: NHWC if it is faster. Otherwise oneDNN's preference if gg_layout has it, then NHWC
 * or PLAIN. */
static gg_status choose_layouts(conv *it, gg_isa isa) {
    const gg_op_desc *desc = &it->op->head.desc;
    const_dnnl_memory_desc_t any_input = NULL, any_output = NULL;
    dnnl_primitive_desc_t any = NULL;
    gg_layout input, output;
    if (it->op->dtype == GG_FLOAT32 && prefer_nhwc(desc, isa) &&
        in_layouts(it, GG_LAYOUT_NHWC, GG_LAYOUT_NHWC) == GG_OK && !gg_dnn_is_slow(it->forward))
        return GG_OK;
    GG_TRY(gg_dnn_any_md(it->op, &desc->input[0], &any_input));
    GG_TRY(gg_dnn_any_md(it->op, &desc->output, &any_output));
    GG_TRY(forward_pd(it, any_input, any_output, &any));
    if (gg_dnn_layout_of(dnnl_primitive_desc_query_md(any, dnnl_query_src_md, 0), &input) &&
        gg_dnn_layout_of(dnnl_primitive_desc_query_md(any, dnnl_query_dst_md, 0), &output) &&
        in_layouts(it, input, output) == GG_OK && !gg_dnn_is_slow(it->forward))
        return GG_OK;
    /* An image of one channel is both PLAIN and NHWC; kernels may exist for NHWC only. */
    if (in_layouts(it, GG_LAYOUT_NHWC, GG_LAYOUT_NHWC) == GG_OK && !gg_dnn_is_slow(it->forward)) return GG_OK;
    return in_layouts(it, GG_LAYOUT_PLAIN, GG_LAYOUT_PLAIN);
}

static gg_status onednn_conv2d_add_forward(conv *it) {
    gg_dnn_op *op = it->op;
    const_dnnl_memory_desc_t weight = dnnl_primitive_desc_query_md(it->forward, dnnl_query_weights_md, 0);
    gg_dnn_place place;
    it->slow = it->slow || gg_dnn_is_slow(it->forward);
    GG_TRY(gg_dnn_read_weight(op, GG_DNN_PREPARE_FORWARD, "conv2d weights", it->weight, weight, &place));
    const gg_dnn_bind bind[4] = {{DNNL_ARG_SRC, it->input, gg_dnn_at(GG_DNN_INPUT)},
                                 {DNNL_ARG_WEIGHTS, weight, place},
                                 {DNNL_ARG_BIAS, it->bias, gg_dnn_parameter(GG_PARAMETER_BIAS)},
                                 {DNNL_ARG_DST, it->output, gg_dnn_at(GG_DNN_OUTPUT)}};
    return gg_dnn_add(op, GG_DNN_FORWARD, "conv2d", gg_dnn_at(GG_DNN_ALWAYS), it->forward, 4, bind);
}

static gg_status data_pd(conv *it, const_dnnl_memory_desc_t input, const_dnnl_memory_desc_t output,
                         dnnl_primitive_desc_t *out) {
    gg_dnn_op *op = it->op;
    GG_DNN_PD(op, out, dnnl_convolution_backward_data_primitive_desc_create, op->engine, dnnl_convolution_direct, input,
              it->weight_any, output, it->stride, it->dilation, it->left, it->right, it->forward, op->plain_attr);
    return GG_OK;
}

static gg_status weights_pd(conv *it, const_dnnl_memory_desc_t input, const_dnnl_memory_desc_t output,
                            dnnl_primitive_desc_t *out) {
    gg_dnn_op *op = it->op;
    GG_DNN_PD(op, out, dnnl_convolution_backward_weights_primitive_desc_create, op->engine, dnnl_convolution_direct,
              input, it->gradient_any, it->bias, output, it->stride, it->dilation, it->left, it->right, it->forward,
              op->plain_attr);
    return GG_OK;
}

/* Creates a backward pass in the forward's layouts. If that is only a plain loop, uses the layouts that oneDNN
 * prefers. */
static gg_status best_pd(conv *it,
                         gg_status (*make)(conv *, const_dnnl_memory_desc_t, const_dnnl_memory_desc_t,
                                           dnnl_primitive_desc_t *),
                         dnnl_primitive_desc_t *out) {
    dnnl_primitive_desc_t own = NULL, any = NULL;
    const_dnnl_memory_desc_t any_input = NULL, any_output = NULL;
    gg_status status = make(it, it->input, it->output, out);
    if (status == GG_OK && !gg_dnn_is_slow(*out)) return status;
    if (status != GG_OK && status != GG_ERROR_UNSUPPORTED) return status;
    own = *out;
    GG_TRY(gg_dnn_any_md(it->op, &it->op->head.desc.input[0], &any_input));
    GG_TRY(gg_dnn_any_md(it->op, &it->op->head.desc.output, &any_output));
    status = make(it, any_input, any_output, &any);
    *out = any;
    if (own != NULL && (status == GG_ERROR_UNSUPPORTED || (status == GG_OK && gg_dnn_is_slow(any)))) {
        *out = own;
        status = GG_OK;
    }
    return status;
}

/* grad_output in the format that a backward pass reads. */
typedef struct conv_error {
    const_dnnl_memory_desc_t md;
    gg_dnn_place place;
} conv_error;

static gg_status onednn_conv2d_add_weights(conv *it, conv_error *error) {
    gg_dnn_op *op = it->op;
    const gg_dnn_place always = gg_dnn_at(GG_DNN_ALWAYS);
    gg_dnn_place x, place;
    dnnl_primitive_desc_t weights = NULL;

    GG_TRY(best_pd(it, weights_pd, &weights));
    it->slow = it->slow || gg_dnn_is_slow(weights);
    const_dnnl_memory_desc_t x_md = dnnl_primitive_desc_query_md(weights, dnnl_query_src_md, 0);
    const_dnnl_memory_desc_t dw_md = dnnl_primitive_desc_query_md(weights, dnnl_query_diff_weights_md, 0);
    error->md = dnnl_primitive_desc_query_md(weights, dnnl_query_diff_dst_md, 0);
    GG_TRY(gg_dnn_read_as(op, GG_DNN_WEIGHTS, "conv2d input", always, it->input, gg_dnn_at(GG_DNN_INPUT), x_md, &x));
    GG_TRY(gg_dnn_read_as(op, GG_DNN_WEIGHTS, "conv2d gradient", always, it->output, gg_dnn_at(GG_DNN_GRAD_OUTPUT),
                          error->md, &error->place));
    const bool direct = dnnl_memory_desc_equal(dw_md, it->weight) != 0;
    place = direct ? gg_dnn_gradient(GG_PARAMETER_WEIGHT) : gg_dnn_temporary(op, GG_DNN_WEIGHTS, dw_md);
    const gg_dnn_bind bind[4] = {{DNNL_ARG_SRC, x_md, x},
                                 {DNNL_ARG_DIFF_DST, error->md, error->place},
                                 {DNNL_ARG_DIFF_WEIGHTS, dw_md, place},
                                 {DNNL_ARG_DIFF_BIAS, it->bias, gg_dnn_gradient(GG_PARAMETER_BIAS)}};
    GG_TRY(gg_dnn_add(op, GG_DNN_WEIGHTS, "conv2d backward weights", always, weights, 4, bind));
    if (!direct)
        GG_TRY(gg_dnn_add_reorder(op, GG_DNN_WEIGHTS, "conv2d weight gradient", always, dw_md, place, it->weight,
                                  gg_dnn_gradient(GG_PARAMETER_WEIGHT)));
    op->head.backward_needs_input = 1;
    return GG_OK;
}

/* Both backward passes read grad_output. If both need it in one other layout, a single reorder stores it in scratch. */
static gg_status onednn_conv2d_add_data(conv *it, const conv_error *error) {
    gg_dnn_op *op = it->op;
    const gg_dnn_place wanted = gg_dnn_at(GG_DNN_GRAD_INPUT);
    gg_dnn_place w, place;
    dnnl_primitive_desc_t data = NULL;
    GG_TRY(best_pd(it, data_pd, &data));
    it->slow = it->slow || gg_dnn_is_slow(data);
    const_dnnl_memory_desc_t dx_md = dnnl_primitive_desc_query_md(data, dnnl_query_diff_src_md, 0);
    const_dnnl_memory_desc_t w_md = dnnl_primitive_desc_query_md(data, dnnl_query_weights_md, 0);
    const_dnnl_memory_desc_t dy_md = dnnl_primitive_desc_query_md(data, dnnl_query_diff_dst_md, 0);
    gg_dnn_place dy = error->place;
    if (error->md == NULL || !dnnl_memory_desc_equal(error->md, dy_md))
        GG_TRY(gg_dnn_read_as(op, GG_DNN_DATA, "conv2d gradient", wanted, it->output, gg_dnn_at(GG_DNN_GRAD_OUTPUT),
                              dy_md, &dy));
    else op->temporaries[GG_DNN_DATA] = op->temporaries[GG_DNN_WEIGHTS];
    GG_TRY(gg_dnn_read_weight(op, GG_DNN_PREPARE_DATA, "conv2d weights", it->weight, w_md, &w));
    const bool direct = dnnl_memory_desc_equal(dx_md, it->input) != 0;
    place = direct ? wanted : gg_dnn_temporary(op, GG_DNN_DATA, dx_md);
    const gg_dnn_bind bind2[3] = {
        {DNNL_ARG_DIFF_SRC, dx_md, place}, {DNNL_ARG_WEIGHTS, w_md, w}, {DNNL_ARG_DIFF_DST, dy_md, dy}};
    GG_TRY(gg_dnn_add(op, GG_DNN_DATA, "conv2d backward data", wanted, data, 3, bind2));
    if (!direct)
        GG_TRY(gg_dnn_add_reorder(op, GG_DNN_DATA, "conv2d input gradient", wanted, dx_md, place, it->input, wanted));
    return GG_OK;
}

/* *slow becomes true if gg_dnn_is_slow is true for any pass; NULL means not wanted. */
static gg_status create_direct(gg_device *device, const gg_op_desc *desc, gg_op **out, bool *slow) {
    gg_status status = GG_OK;
    conv it = {0};
    conv_error error = {.md = NULL};
    *out = NULL;
    GG_TRY_CLEANUP(onednn_conv2d_check(desc));
    GG_TRY_CLEANUP(gg_dnn_op_create(device, desc, &it.op));
    for (int i = 0; i < 2; i++) {
        GG_TRY_CLEANUP(gg_dnn_window(desc, i, &it.right[i]));
        it.stride[i] = desc->conv.window.stride[i];
        it.dilation[i] = desc->conv.window.dilation[i] - 1;
        it.left[i] = desc->conv.window.padding[i];
    }
    const int64_t groups = desc->conv.groups, outputs = desc->output.size[0];
    const int64_t weight[5] = {groups, outputs / groups, desc->input[0].size[0] / groups, desc->conv.window.kernel[0],
                               desc->conv.window.kernel[1]};
    const int skip = groups == 1 ? 1 : 0; /* the axis of groups is there only if there are some */
    GG_TRY_CLEANUP(gg_dnn_md(it.op, 5 - skip, weight + skip, GG_FLOAT32, skip ? dnnl_abcd : dnnl_abcde, &it.weight));
    GG_TRY_CLEANUP(gg_dnn_md(it.op, 5 - skip, weight + skip, it.op->dtype, dnnl_format_tag_any, &it.weight_any));
    GG_TRY_CLEANUP(gg_dnn_md(it.op, 5 - skip, weight + skip, GG_FLOAT32, dnnl_format_tag_any, &it.gradient_any));
    if (desc->bias) GG_TRY_CLEANUP(gg_dnn_md(it.op, 1, &outputs, GG_FLOAT32, dnnl_a, &it.bias));
    GG_TRY_CLEANUP(choose_layouts(&it, device->isa));
    if (gg_op_has_pass(desc, GG_PASS_FORWARD)) GG_TRY_CLEANUP(onednn_conv2d_add_forward(&it));
    if (desc->activation == GG_ACTIVATION_RELU) GG_TRY_CLEANUP(gg_dnn_add_relu(it.op));
    if (desc->training && gg_op_has_pass(desc, GG_PASS_WEIGHTS)) GG_TRY_CLEANUP(onednn_conv2d_add_weights(&it, &error));
    if (desc->training && desc->input_grad && gg_op_has_pass(desc, GG_PASS_DATA))
        GG_TRY_CLEANUP(onednn_conv2d_add_data(&it, &error));
    if (slow != NULL) *slow = it.slow;
cleanup:
    return gg_dnn_op_finish(status, it.op, out);
}

static gg_status onednn_conv2d_direct(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    return create_direct(device, desc, out, NULL);
}

/* Creates a convolution by our own kernels on transposed images. Takes the layouts of oneDNN's convolution without
 * transposition, which do not depend on the passes. */
static gg_status create_turned(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    gg_op *here = NULL;
    gg_op_desc own = *desc;
    own.algorithm = gg_bfloat16_algorithm();
    own.passes = 0;
    if (desc->dtype != GG_BFLOAT16 || !gg_conv_has_form(desc, desc->offered[0].layout, desc->algorithm))
        GG_FAIL_CLEANUP(
            GG_ERROR_UNSUPPORTED,
            "images are turned for convolutions in bfloat16 without groups and dilation, of channels that fill "
            "vectors of %d less than samples do",
            GG_LANES);
    GG_TRY_CLEANUP(gg_dnn_conv2d_create(device, &own, &here));
    GG_TRY_CLEANUP(
        gg_cpu_turned_create(device, desc, here->input[0].layout, here->output.layout, gg_native_conv2d_create, out));
cleanup:
    gg_op_destroy(here);
    return status;
}

/* Uses float32 for all passes if oneDNN lacks a fast bfloat16 kernel for one of them. In evaluation only forward
 * counts. Example: the weight gradient of an image with one channel, without AMX. */
gg_status gg_dnn_conv2d_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    const bool widened = desc->algorithm == GG_ALGORITHM_WIDENED;
    bool slow = false;
    *out = NULL;
    if (gg_conv_unturned(desc->algorithm) != GG_ALGORITHM_COUNT) {
        return create_turned(device, desc, out);
    }
    if (!widened) GG_TRY(create_direct(device, desc, out, &slow));
    if (!widened && (!slow || desc->dtype != GG_BFLOAT16)) return GG_OK;
    gg_op_destroy(*out);
    return gg_cpu_widened_create(device, desc, onednn_conv2d_direct, out);
}
