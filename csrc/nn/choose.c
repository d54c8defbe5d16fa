#include "nn/choose.h"

#include <math.h>
#include <string.h>

#include "base/cpu.h"

/* A table that fills lanes computes in BATCH_LAST: a batch fills whole vectors of GG_LANES samples. Any channel count,
 * window and stride then runs at full width, joins and flattenings move nothing, and a chain of its operations needs no
 * reorder. Its cost is the padding: a batch of 1 does the work of 16 samples. One order for the whole graph, because a
 * change of table between neighbours costs a reorder of the whole activation. */
bool gg_choose_has_tables(const gg_plan_options *options) {
    const gg_device *second = options->fallback;
    return options->choose && options->dtype == GG_FLOAT32 && second != NULL && second != options->device &&
           second->table->fills_lanes;
}

const gg_table_choice *gg_choose_told_table(const gg_plan_options *options) {
    for (int i = options->table_choices - 1; i >= 0; i--)
        if (options->table_choice[i].batch == options->batch) return &options->table_choice[i];
    return NULL;
}

int gg_choose_devices(const gg_plan_options *options, gg_device *order[2]) {
    gg_device *first = options->device, *second = options->fallback;
    const gg_table_choice *told = gg_choose_has_tables(options) ? gg_choose_told_table(options) : NULL;
    const bool swapped = told != NULL && told->fallback_first;
    if (second == NULL || second == first) {
        order[0] = first;
        return 1;
    }
    order[0] = swapped ? second : first;
    order[1] = swapped ? first : second;
    return 2;
}

/* Algorithms ----------------------------------------------------------------------------------------------- */

gg_conv_key gg_conv_key_of(const gg_op_desc *desc) {
    gg_conv_key key = {.batch = desc->batch,
                       .output = desc->output.size[0],
                       .bias = desc->bias,
                       .relu = desc->activation == GG_ACTIVATION_RELU,
                       .groups = desc->conv.groups};
    const gg_window *w = &desc->conv.window;
    memcpy(key.input, desc->input[0].size, sizeof key.input);
    memcpy(key.padding, w->padding, sizeof key.padding);
    memcpy(key.kernel, w->kernel, sizeof key.kernel);
    memcpy(key.stride, w->stride, sizeof key.stride);
    memcpy(key.dilation, w->dilation, sizeof key.dilation);
    return key;
}

/* True if the device is a CPU with bfloat16 in vector registers at most: float32 between conversions may be faster
 * there. With AMX it never is. */
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

/* By the options' choices; the last one counts. */
static bool was_told(const gg_plan_options *options, const gg_op_desc *desc, gg_algorithm out[GG_PASS_COUNT]) {
    const gg_conv_key key = gg_conv_key_of(desc);
    for (int i = options->conv_choices - 1; i >= 0; i--) {
        const gg_conv_choice *choice = &options->conv_choice[i];
        if (memcmp(&choice->key, &key, sizeof key) != 0) continue;
        memcpy(out, choice->algorithm, sizeof choice->algorithm);
        return true;
    }
    return false;
}

bool gg_choose_by_cost(const gg_plan_options *options, const gg_op_desc *desc, gg_algorithm out[GG_PASS_COUNT]) {
    const bool own = may_be_in_float32(options, desc), tiled = has_tiled(options, desc);
    const bool numbered = options->device->table->numbered_algorithms;
    const bool winograd = options->conv_algorithm == GG_CONV_WINOGRAD && own &&
                          gg_conv_has_form(desc, GG_LAYOUT_BATCH_LAST, GG_ALGORITHM_WINOGRAD4);
    for (int pass = 0; pass < GG_PASS_COUNT; pass++)
        out[pass] = winograd ? GG_ALGORITHM_WINOGRAD4 : gg_choose_direct(options, desc);
    if (options->conv_algorithm != GG_CONV_AUTO) return false;
    if (tiled) out[GG_PASS_WEIGHTS] = GG_ALGORITHM_TILED;
    if ((own || tiled || numbered) && was_told(options, desc, out)) return false;
    if (!own || numbered || desc->conv.groups != 1) return false;
    return desc->dtype == GG_BFLOAT16 || options->device->isa == GG_ISA_AMX ||
           gg_conv_has_form(desc, GG_LAYOUT_BATCH_LAST, GG_ALGORITHM_WINOGRAD2);
}

/* A more accurate algorithm is taken where it is expected to take hardly more. */
static const double hardly_more = 1.03;

/* The CPU's algorithms, the most accurate first. */
static const gg_algorithm candidates[] = {
    GG_ALGORITHM_DIRECT,  GG_ALGORITHM_WIDENED,   GG_ALGORITHM_TURNED,  GG_ALGORITHM_SPLIT,     GG_ALGORITHM_WINOGRAD2,
    GG_ALGORITHM_TURNED2, GG_ALGORITHM_WINOGRAD4, GG_ALGORITHM_TURNED4, GG_ALGORITHM_WINOGRAD6, GG_ALGORITHM_TURNED6};

static bool is_candidate(const gg_plan_options *options, const gg_op *direct, gg_algorithm algorithm) {
    const gg_op_desc *desc = &direct->desc;
    const gg_layout layout = direct->input[0].layout;
    const bool turned = gg_conv_unturned(algorithm) != GG_ALGORITHM_COUNT;
    if (algorithm == gg_choose_direct(options, desc)) return true;
    if (algorithm == GG_ALGORITHM_DIRECT) return false;
    if (algorithm == GG_ALGORITHM_WIDENED || turned) {
        if (desc->dtype != GG_BFLOAT16) return false;
        return !turned || gg_conv_has_form(desc, layout, algorithm);
    }
    if (algorithm == GG_ALGORITHM_SPLIT && (options->device->isa != GG_ISA_AMX || desc->dtype != GG_FLOAT32))
        return false;
    return layout == direct->output.layout && gg_conv_has_form(desc, layout, algorithm);
}

void gg_choose_algorithms(const gg_plan_options *options, const gg_op *direct, gg_algorithm out[GG_PASS_COUNT]) {
    enum { CANDIDATES = sizeof candidates / sizeof *candidates };
    const gg_cost_model *model = options->costs != NULL ? options->costs : gg_cost_model_of(options->device->isa);
    for (int pass = 0; pass < GG_PASS_COUNT; pass++) {
        double seconds[CANDIDATES], least = INFINITY;
        out[pass] = gg_choose_direct(options, &direct->desc);
        for (int i = 0; i < CANDIDATES; i++) {
            const gg_cost_query query = {.desc = &direct->desc,
                                         .native = gg_cost_is_native(candidates[i], direct->output.layout),
                                         .input = direct->input[0].layout,
                                         .output = direct->output.layout,
                                         .algorithm = candidates[i],
                                         .pass = (gg_pass)pass,
                                         .slow = candidates[i] == direct->desc.algorithm && (direct->slow >> pass & 1u),
                                         .isa = options->device->isa};
            seconds[i] = is_candidate(options, direct, candidates[i]) ? gg_cost_seconds(model, &query) : INFINITY;
            least = fmin(least, seconds[i]);
        }
        for (int i = 0; i < CANDIDATES && least < INFINITY; i++) {
            if (seconds[i] > hardly_more * least) continue;
            out[pass] = candidates[i];
            break;
        }
    }
}
