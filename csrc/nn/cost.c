#include "nn/cost.h"

#include <math.h>
#include <string.h>

#include "base/cpu.h"
#include "nn/cost_internal.h"

const char *gg_cost_form_name(gg_cost_form form) {
    static const char *const names[GG_COST_FORMS] = {
        [GG_COST_GENERAL] = "general", [GG_COST_WIDE] = "wide", [GG_COST_POINTWISE] = "pointwise",
        [GG_COST_GROUPED] = "grouped", [GG_COST_FEW] = "few",   [GG_COST_LARGE] = "large",
        [GG_COST_SLOW] = "slow",
    };
    return (unsigned)form < GG_COST_FORMS ? names[form] : "unknown";
}

/* Outputs of a tile along one axis; 0: the algorithm has no tiles. */
static int64_t tile_of(gg_algorithm algorithm) {
    switch (algorithm) {
    case GG_ALGORITHM_WINOGRAD2:
    case GG_ALGORITHM_TURNED2: return 2;
    case GG_ALGORITHM_WINOGRAD4:
    case GG_ALGORITHM_TURNED4: return 4;
    case GG_ALGORITHM_WINOGRAD6:
    case GG_ALGORITHM_TURNED6: return 6;
    default: return 0;
    }
}

static int64_t rounded_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

/* Samples and channels that are computed with, padding included. */
static int64_t samples_in(gg_layout layout, int64_t batch) {
    return layout == GG_LAYOUT_BATCH_LAST ? gg_lanes_padded(batch) : batch;
}

static int64_t channels_in(gg_layout layout, int64_t channels) {
    if (layout == GG_LAYOUT_BATCH_LAST || layout == GG_LAYOUT_NHWC) return channels;
    return rounded_up(channels, layout == GG_LAYOUT_CHANNELS8 ? 8 : GG_LANES);
}

bool gg_cost_is_native(gg_algorithm algorithm, gg_layout output) {
    return (algorithm != GG_ALGORITHM_DIRECT && algorithm != GG_ALGORITHM_WIDENED) || output == GG_LAYOUT_BATCH_LAST;
}

/* Padded count for Winograd's kernels, which omit half of the padding of incomplete vectors. */
static int64_t tiled_samples(const gg_cost_query *q, gg_layout layout) {
    const int64_t half = GG_LANES / 2;
    if (layout == GG_LAYOUT_BATCH_LAST && q->isa < GG_ISA_AVX512F && q->desc->batch <= half) return half;
    return samples_in(layout, q->desc->batch);
}

/* The layout in which a convolution computes. */
static gg_layout inner_layout(const gg_cost_query *q) {
    return gg_conv_unturned(q->algorithm) != GG_ALGORITHM_COUNT ? GG_LAYOUT_BATCH_LAST : q->output;
}

static gg_cost_form conv_form(const gg_cost_query *q) {
    const gg_window *w = &q->desc->conv.window;
    if (q->desc->conv.groups > 1) return GG_COST_GROUPED;
    if (tile_of(q->algorithm) > 0) return w->kernel[0] == 5 ? GG_COST_WIDE : GG_COST_GENERAL;
    if (q->desc->input[0].size[0] <= GG_CONV_FEW_CHANNELS) return GG_COST_FEW;
    const bool single = w->kernel[0] == 1 && w->kernel[1] == 1 && w->stride[0] == 1 && w->stride[1] == 1;
    return single ? GG_COST_POINTWISE : GG_COST_GENERAL;
}

/* Elements of the image in all windows along an axis; padding is not computed. */
static double covered(const gg_op_desc *desc, int axis) {
    const gg_window *w = &desc->conv.window;
    const int64_t input = desc->input[0].size[1 + axis];
    int64_t taps = 0;
    for (int64_t out = 0; out < desc->output.size[1 + axis]; out++) {
        const int64_t begin = out * w->stride[axis] - w->padding[axis], step = w->dilation[axis];
        const int64_t first = begin < 0 ? (-begin + step - 1) / step : 0;
        const int64_t room = input - begin > 0 ? (input - begin + step - 1) / step : 0;
        const int64_t last = room < w->kernel[axis] ? room : w->kernel[axis];
        if (last > first) taps += last - first;
    }
    return (double)taps;
}

static void conv_features(const gg_cost_query *q, double feature[GG_COST_FEATURES]) {
    const gg_op_desc *desc = q->desc;
    const gg_layout layout = inner_layout(q);
    const int64_t *in = desc->input[0].size, *out = desc->output.size, *kernel = desc->conv.window.kernel;
    const int64_t tile = tile_of(q->algorithm);
    const int64_t samples = tile > 0 ? tiled_samples(q, layout) : samples_in(layout, desc->batch);
    const bool few = in[0] <= GG_CONV_FEW_CHANNELS && tile == 0;
    const double from = few ? (double)in[0] : (double)channels_in(layout, in[0]);
    const double to = (double)channels_in(layout, out[0]);
    const double images = (double)samples * ((double)(in[1] * in[2]) * from + (double)(out[1] * out[2]) * to);
    double rows, places, terms; /* of products: rows of outputs, places of the window, terms of all sums */
    if (tile > 0) {
        const int64_t *size = q->pass == GG_PASS_DATA ? in : out, side = tile + kernel[0] - 1;
        rows =
            (double)(samples * (rounded_up(size[1], tile) / tile) * (rounded_up(size[2], tile) / tile) * side * side);
        places = (double)(side * side);
        terms = rows * from;
    } else {
        rows = (double)(samples * out[1] * out[2]);
        places = (double)(kernel[0] * kernel[1]);
        /* The native table's gradient of weights sums zeros for the padding. */
        terms = q->native && q->pass == GG_PASS_WEIGHTS ? rows * places
                                                        : (double)samples * covered(desc, 0) * covered(desc, 1);
        terms *= from;
    }
    feature[0] = terms * to / (double)desc->conv.groups;
    feature[1] = rows * to;
    feature[2] = terms;
    feature[3] = places * from * to / (double)desc->conv.groups;
    feature[4] = images;
}

static void matrix_features(const gg_cost_query *q, double feature[GG_COST_FEATURES]) {
    const gg_op_desc *desc = q->desc;
    const double out = (double)desc->output.size[desc->output.dims - 1];
    const double in = (double)desc->input[0].size[desc->input[0].dims - 1];
    const double positions = (double)gg_shape_count(&desc->output) / out;
    const double rows = (double)samples_in(q->output, desc->batch) * positions;
    const double gates = desc->kind == GG_OP_LSTM ? 4 : 1,
                 layers = desc->kind == GG_OP_LSTM ? (double)desc->lstm.layers : 1;
    const double terms =
        desc->kind == GG_OP_LSTM ? out + (desc->lstm.numbers > 0 ? (double)desc->lstm.features : in) : in;
    feature[0] = rows * terms * gates * out * layers;
    feature[1] = rows * out * gates * layers;
    feature[2] = rows * terms * layers;
    feature[3] = terms * gates * out * layers;
    feature[4] = desc->kind == GG_OP_LSTM ? positions * layers : 0;
}

static bool is_large(const gg_op_desc *desc) {
    enum { MIN = 48 };
    const int64_t out = desc->output.size[desc->output.dims - 1];
    return out >= MIN && desc->input[0].size[desc->input[0].dims - 1] >= MIN &&
           desc->batch * (gg_shape_count(&desc->output) / out) >= MIN;
}

/* Numbers of an array, padding included. */
static double numbers(gg_layout layout, const gg_shape *shape, int64_t batch) {
    return (double)gg_format_bytes((gg_format){GG_FLOAT32, layout}, shape, batch) / sizeof(float);
}

static void other_features(const gg_cost_query *q, double feature[GG_COST_FEATURES]) {
    const gg_op_desc *desc = q->desc;
    const double out = numbers(q->output, &desc->output, desc->batch);
    double window = 0;
    if (desc->kind == GG_OP_MAX_POOL2D || desc->kind == GG_OP_AVG_POOL2D)
        window = (double)(desc->pool.kernel[0] * desc->pool.kernel[1]);
    if (desc->kind == GG_OP_LOCAL_RESPONSE_NORM) window = (double)desc->lrn.size;
    if (desc->kind == GG_OP_ATTENTION) window = (double)desc->output.size[0];
    feature[0] = out * window;
    feature[1] = out;
    feature[2] = feature[3] = 0;
    feature[4] = 0;
    for (int i = 0; i < desc->inputs; i++) feature[4] += numbers(q->input, &desc->input[i], desc->batch);
}

/* Numbers that stay in a core's second-level cache, about. */
#define CACHED (256 * 1024)

gg_cost_key gg_cost_describe(const gg_cost_query *q, double feature[GG_COST_FEATURES]) {
    gg_cost_key key = {.dtype = q->desc->dtype,
                       .kind = q->desc->kind,
                       .native = q->native,
                       .input = q->desc->kind == GG_OP_REORDER ? q->input : inner_layout(q),
                       .output = inner_layout(q),
                       .form = GG_COST_GENERAL,
                       .algorithm = q->algorithm,
                       .pass = q->pass};
    switch (q->desc->kind) {
    case GG_OP_CONV2D:
        key.form = conv_form(q);
        conv_features(q, feature);
        break;
    case GG_OP_LINEAR:
    case GG_OP_LSTM:
        if (is_large(q->desc)) key.form = GG_COST_LARGE;
        matrix_features(q, feature);
        break;
    default: other_features(q, feature);
    }
    if (q->slow) key.form = GG_COST_SLOW;
    for (int i = 0; i < 2; i++) feature[5 + i] = fmax(0, feature[3 + i] - CACHED);
    feature[GG_COST_FEATURES - 1] = 1;
    return key;
}

static const gg_cost_model *const models[] = {&gg_cost_zen4, &gg_cost_avx512, &gg_cost_avx2, &gg_cost_scalar};

const gg_cost_model *gg_cost_model_of(gg_isa isa) {
    if (isa == GG_ISA_AVX512 && gg_cpu_pairs_products()) return &gg_cost_zen4;
    if (isa >= GG_ISA_AVX512F) return &gg_cost_avx512;
    return isa == GG_ISA_SCALAR ? &gg_cost_scalar : &gg_cost_avx2; /* NEON's are not measured */
}

const gg_cost_model *gg_cost_model_named(const char *name) {
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (strcmp(models[i]->name, name) == 0) return models[i];
    return NULL;
}

const char *gg_cost_model_name(const gg_cost_model *model) { return model->name; }

/* Similarity of two keys, weighed by its effect on times; -1 means that their times are unrelated. */
static int likeness(const gg_cost_key *a, const gg_cost_key *b) {
    if (a->kind != b->kind || a->pass != b->pass) return -1;
    if (a->algorithm != b->algorithm && a->kind == GG_OP_CONV2D) return -1;
    return 32 * (a->output == b->output) + 16 * (a->native == b->native) + 8 * (a->input == b->input) +
           4 * (a->form == b->form) + 2 * (a->dtype == b->dtype) + (a->algorithm == b->algorithm);
}

double gg_cost_seconds(const gg_cost_model *model, const gg_cost_query *query) {
    double feature[GG_COST_FEATURES], nanoseconds = 0;
    const gg_cost_key key = gg_cost_describe(query, feature);
    const gg_cost_row *found = NULL;
    int best = -1;
    for (int i = 0; i < model->rows; i++) {
        const int like = likeness(&model->row[i].key, &key);
        if (like <= best) continue;
        best = like;
        found = &model->row[i];
    }
    if (found == NULL) return query->desc->kind == GG_OP_CONV2D ? INFINITY : 0;
    for (int i = 0; i < GG_COST_FEATURES; i++) nanoseconds += found->coefficient[i] * feature[i];
    return nanoseconds * 1e-9;
}
