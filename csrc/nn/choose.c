#include "nn/choose.h"

#include <string.h>

#include "base/cpu.h"

/* The additional time of a oneDNN convolution whose channels do not fill blocks of GG_LANES, relative to one whose
 * channels do: half of the padding. An image's few channels and groups have kernels of their own, without padding. */
static double time_of_convolution(int64_t in, int64_t out, int64_t groups) {
    enum { PICTURE = 4 };
    if (groups != 1) return 1;
    double padded = (double)gg_lanes_padded(out) / (double)out;
    if (in > PICTURE) padded *= (double)gg_lanes_padded(in) / (double)in;
    return 1 + (padded - 1) / 2;
}

/* Where Winograd's was faster, measured with AVX-512, and with AVX2 for windows of 5 x 5, of which it saves more:
 * transforms cost as much for each channel, and products gain with the channels on the other side. Tiles that reach far
 * beyond the image compute too much. */
static bool winograd_by_rule(const gg_op_desc *desc, gg_pass pass) {
    const int64_t in = desc->input[0].size[0], out = desc->output.size[0], channels = in < out ? in : out;
    const gg_layout layout = desc->offered[0].layout;
    const bool blocks = layout == GG_LAYOUT_CHANNELS16;
    const int64_t tile = 4;
    int64_t area = 1, tiled = 1;
    for (int axis = 1; axis <= 2; axis++) {
        area *= desc->output.size[axis];
        tiled *= (desc->output.size[axis] + tile - 1) / tile * tile;
    }
    if (2 * tiled > 3 * area || (!blocks && layout != GG_LAYOUT_BATCH_LAST)) return false;
    return channels >= ((blocks && pass != GG_PASS_WEIGHTS) || desc->window.kernel[0] == 5 ? 32 : 64);
}

/* Whether it is Winograd's where images lie BATCH_LAST, but has no such form in the layout of the device's table:
 * without AVX-512 oneDNN has images in blocks of eight channels. */
static bool loses_winograd(const gg_plan_options *options, const gg_graph *graph, const gg_node *node) {
    const gg_isa isa = options->device->isa;
    const gg_layout layout = GG_LAYOUT_BATCH_LAST;
    const gg_op_desc desc = {.kind = GG_OP_CONV2D,
                             .groups = node->desc.groups,
                             .window = node->desc.window,
                             .input = {gg_graph_node(graph, node->input[0])->shape},
                             .output = node->shape,
                             .offered = {{.layout = layout}}};
    if ((isa != GG_ISA_AVX2 && isa != GG_ISA_AVX512F) || options->conv_algorithm == GG_CONV_DIRECT) return false;
    if (!gg_conv_has_form(&desc, layout, GG_ALGORITHM_WINOGRAD4)) return false;
    return options->conv_algorithm == GG_CONV_WINOGRAD || winograd_by_rule(&desc, GG_PASS_FORWARD);
}

/* oneDNN's time for a sample relative to the native table's with full lanes, by their multiply-adds. For graphs without
 * convolutions: as measured for linear layers of 512 to 2048. */
static double time_of_sample(const gg_graph *graph, const gg_plan_options *options) {
    const double linear = 1.5, winograd = 2.5; /* measured with AVX2: 1.5 to 4 */
    double time = 0, all = 0;
    for (int i = 0; i < gg_graph_nodes(graph); i++) {
        const gg_node *node = gg_graph_node(graph, i);
        if (node->desc.kind != GG_LAYER_CONV2D) continue;
        const int64_t in = gg_graph_node(graph, node->input[0])->shape.size[0], out = node->shape.size[0];
        const double macs = (double)gg_graph_node_macs(graph, i);
        time += macs * time_of_convolution(in, out, node->desc.groups) *
                (loses_winograd(options, graph, node) ? winograd : 1);
        all += macs;
    }
    return all > 0 ? time / all : linear;
}

/* A table that fills lanes computes in BATCH_LAST, where a batch fills whole vectors of GG_LANES samples: any channel
 * count, window and stride then runs at full width, joins and flattenings move nothing, and a chain of its operations
 * needs no reorder. Its cost is the padding: a batch of 1 does the work of 16 samples. So it comes first where its
 * padding costs less than the other table loses otherwise. One rule for the whole graph, because a change of table
 * between neighbours costs a reorder of the whole activation. */
static bool lanes_first(const gg_graph *graph, const gg_plan_options *options) {
    return (double)gg_lanes_padded(options->batch) <= time_of_sample(graph, options) * (double)options->batch;
}

bool gg_choose_has_tables(const gg_plan_options *options) {
    const gg_device *second = options->fallback;
    return options->choose && options->dtype == GG_FLOAT32 && second != NULL && second != options->device &&
           second->table->fills_lanes;
}

int gg_choose_devices(const gg_graph *graph, const gg_plan_options *options, gg_device *order[2]) {
    gg_device *first = options->device, *second = options->fallback;
    if (second == NULL || second == first) {
        order[0] = first;
        return 1;
    }
    bool swapped = gg_choose_has_tables(options) && lanes_first(graph, options);
    for (int i = 0; gg_choose_has_tables(options) && i < options->table_choices; i++)
        if (options->table_choice[i].batch == options->batch) swapped = options->table_choice[i].fallback_first;
    if (swapped) {
        order[0] = second;
        order[1] = first;
    } else {
        order[0] = first;
        order[1] = second;
    }
    return 2;
}

/* Algorithms ----------------------------------------------------------------------------------------------- */

gg_conv_key gg_conv_key_of(const gg_op_desc *desc) {
    gg_conv_key key = {.batch = desc->batch,
                       .output = desc->output.size[0],
                       .bias = desc->bias,
                       .relu = desc->activation == GG_ACTIVATION_RELU,
                       .groups = desc->groups};
    const gg_window *w = &desc->window;
    memcpy(key.input, desc->input[0].size, sizeof key.input);
    memcpy(key.padding, w->padding, sizeof key.padding);
    memcpy(key.kernel, w->kernel, sizeof key.kernel);
    memcpy(key.stride, w->stride, sizeof key.stride);
    memcpy(key.dilation, w->dilation, sizeof key.dilation);
    return key;
}

/* Whether the device is a CPU that has bfloat16 in vector registers, if at all: there what is computed in float32
 * between conversions may be faster. With AMX it never is. */
static bool bfloat16_in_vectors(const gg_device *device) {
    return !gg_device_is_separate(device) && device->isa >= GG_ISA_AVX512 && strcmp(gg_cpu_bfloat16(), "amx") != 0;
}

gg_algorithm gg_choose_direct(const gg_plan_options *options, const gg_op_desc *desc) {
    const bool products = desc->kind == GG_OP_CONV2D || desc->kind == GG_OP_LINEAR || desc->kind == GG_OP_LSTM;
    const bool narrow = desc->dtype == GG_BFLOAT16 && products && bfloat16_in_vectors(options->device);
    return narrow ? gg_bfloat16_algorithm() : GG_ALGORITHM_DIRECT;
}

/* Whether the tables' own convolutions may compute it: in float32, or in float32 between conversions. */
static bool may_be_in_float32(const gg_plan_options *options, const gg_op_desc *desc) {
    return desc->dtype == GG_FLOAT32 || (desc->dtype == GG_BFLOAT16 && bfloat16_in_vectors(options->device));
}

/* Whether the gradient of its weights has kernels of its own. */
static bool has_tiled(const gg_plan_options *options, const gg_op_desc *desc) {
    return desc->dtype == GG_BFLOAT16 && !gg_device_is_separate(options->device) &&
           options->device->isa == GG_ISA_AMX && gg_conv_has_form(desc, GG_LAYOUT_NHWC, GG_ALGORITHM_TILED);
}

/* Split products where blocks of sixteen channels are not mostly zeros. bfloat16 where both its own instructions and
 * float32 between conversions may be the faster ones. */
bool gg_choose_has_algorithms(const gg_plan_options *options, const gg_op *op) {
    const gg_op_desc *desc = &op->desc;
    const gg_layout layout = op->input[0].layout;
    if (desc->kind != GG_OP_CONV2D) return false;
    if (options->device->table->numbered_algorithms) return true;
    if (options->training && op->output.layout == GG_LAYOUT_NHWC && has_tiled(options, desc)) return true;
    if (!may_be_in_float32(options, desc)) return false;
    if (desc->dtype == GG_BFLOAT16 && gg_conv_has_form(desc, layout, GG_ALGORITHM_TURNED)) return true;
    if (op->output.layout != layout) return false;
    if (gg_conv_has_form(desc, layout, GG_ALGORITHM_WINOGRAD4)) return true;
    if (desc->dtype == GG_BFLOAT16 && gg_cpu_bfloat16_is_fast()) return true;
    return options->device->isa == GG_ISA_AMX && desc->dtype == GG_FLOAT32 && desc->input[0].size[0] >= GG_LANES &&
           desc->output.size[0] >= GG_LANES && gg_conv_has_form(desc, layout, GG_ALGORITHM_SPLIT);
}

void gg_choose_algorithms(const gg_plan_options *options, const gg_op_desc *desc, gg_algorithm out[GG_PASS_COUNT]) {
    const bool own = may_be_in_float32(options, desc), tiled = has_tiled(options, desc);
    const bool measured =
        options->conv_algorithm == GG_CONV_AUTO && (own || tiled || options->device->table->numbered_algorithms);
    const bool possible = own && options->conv_algorithm != GG_CONV_DIRECT &&
                          gg_conv_has_form(desc, GG_LAYOUT_BATCH_LAST, GG_ALGORITHM_WINOGRAD4);
    const gg_conv_key key = gg_conv_key_of(desc);
    for (int pass = 0; pass < GG_PASS_COUNT; pass++) {
        const bool faster = options->conv_algorithm == GG_CONV_WINOGRAD || winograd_by_rule(desc, (gg_pass)pass);
        out[pass] = possible && faster ? GG_ALGORITHM_WINOGRAD4 : gg_choose_direct(options, desc);
    }
    if (tiled && options->conv_algorithm == GG_CONV_AUTO) out[GG_PASS_WEIGHTS] = GG_ALGORITHM_TILED;
    for (int i = 0; measured && i < options->conv_choices; i++) {
        const gg_conv_choice *choice = &options->conv_choice[i];
        if (memcmp(&choice->key, &key, sizeof key) == 0) memcpy(out, choice->algorithm, sizeof choice->algorithm);
    }
}
