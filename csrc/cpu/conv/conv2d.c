/* Convolution on BATCH_LAST activations by direct sums, blocked for the cache. */
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "cpu/gemm/gemm_kernels.h"
#include "cpu/native.h"
#include "ops/backend.h"

/* Bytes of a source that stay in the L2 cache: at most half of that cache on every CPU with these vectors. */
#define SOURCE_BYTES (512 * 1024)
/* Min multiply-adds of an element between load and store, so that these stay cheap. */
#define MIN_TERMS 128
/* Min cost for dot products, in vectors; their last step costs more. */
#define MIN_DOT 384

/* Maps target positions to source positions, in one direction. */
typedef struct conv_walk {
    gg_tap *taps[2]; /* of rows, of columns */
    int32_t *start[2];
    gg_column *columns;
    int64_t column_count, strip;
    int64_t source[2], target[2]; /* sizes of the planes */
    int64_t rows, terms;          /* channels of a group: target, source */
    int64_t parts;                /* the terms are summed in this many parts */
} conv_walk;

typedef struct conv_op {
    gg_op op;
    const gg_gemm_kernels *kernels;
    int threads;
    int64_t lanes, groups, taps, in_channels, out_channels; /* channels of a group */
    conv_walk forward, backward;
    /* Weight gradients process the image in slabs of output rows and a few input channels. With padding a slab is
     * copied, so that the window never leaves the slab. */
    bool copied;
    int64_t slab_rows, slab_channels;
    int64_t slab_height, slab_width; /* of the copy */
    int64_t slab_bytes;              /* of one thread's copy */
    int64_t *col_x;
} conv_op;

/* ------------------------------------------------------------------------------------------------ creating */

static int64_t at_least_one(int64_t n) { return n > 1 ? n : 1; }

/* Source position of a target position at place k of the window; -1 means none. */
static int64_t find_source(const gg_window *w, int axis, bool forward, int64_t target, int64_t k, int64_t size) {
    int64_t s;
    if (forward) {
        s = target * w->stride[axis] - w->padding[axis] + k * w->dilation[axis];
    } else {
        s = target + w->padding[axis] - k * w->dilation[axis];
        if (s % w->stride[axis] != 0) return -1;
        s /= w->stride[axis];
    }
    return s >= 0 && s < size ? s : -1;
}

/* Shift between two columns that can be computed together; -1 if they cannot. */
static int64_t shift_between(const conv_walk *walk, int64_t a, int64_t b) {
    const int32_t *start = walk->start[1];
    const int32_t count = start[a + 1] - start[a];
    if (count == 0 || start[b + 1] - start[b] != count) return -1;
    const gg_tap *p = &walk->taps[1][start[a]], *q = &walk->taps[1][start[b]];
    for (int32_t i = 0; i < count; ++i)
        if (p[i].w != q[i].w || q[i].x - p[i].x != q[0].x - p[0].x) return -1;
    return q[0].x - p[0].x;
}

static bool even_distances(const conv_walk *walk, int64_t c) {
    const gg_tap *tap = &walk->taps[1][walk->start[1][c]];
    const int32_t count = walk->start[1][c + 1] - walk->start[1][c];
    for (int32_t i = 2; i < count; ++i)
        if (tap[i].w - tap[i - 1].w != tap[1].w - tap[0].w || tap[i].x - tap[i - 1].x != tap[1].x - tap[0].x)
            return false;
    return true;
}

/* A pixel with an odd number of vectors would leave half of its last tile empty; two pixels together do not. */
static void pair_columns(conv_walk *walk, bool pairs, int64_t reach) {
    const int64_t width = walk->target[1];
    gg_column *columns = walk->columns;
    int64_t count = 0;
    for (int64_t c = 0; c < width; ++c) {
        bool paired = false;
        for (int64_t i = count - 1; i >= 0 && i >= count - 2 * reach && !paired; --i)
            paired = columns[i].column[1] == c;
        if (paired) continue;
        columns[count] = (gg_column){.column = {(int32_t)c, -1}, .even = even_distances(walk, c)};
        for (int64_t d = c + 1; pairs && d <= c + reach && d < width; ++d) {
            bool used = false;
            for (int64_t i = count - 1; i >= 0 && i >= count - 2 * reach && !used; --i)
                used = columns[i].column[1] == d;
            const int64_t shift = used ? -1 : shift_between(walk, c, d);
            if (shift < 0) continue;
            columns[count].column[1] = (int32_t)d;
            columns[count].shift = shift;
            break;
        }
        ++count;
    }
    walk->column_count = count;
}

static gg_status walk_create(const conv_op *conv, bool forward, conv_walk *walk) {
    const gg_op_desc *desc = &conv->op.desc;
    const gg_window *window = &desc->conv.window;
    const int64_t *in = desc->input[0].size, *out = desc->output.size;
    for (int axis = 0; axis < 2; ++axis) {
        walk->source[axis] = forward ? in[1 + axis] : out[1 + axis];
        walk->target[axis] = forward ? out[1 + axis] : in[1 + axis];
    }
    walk->rows = forward ? conv->out_channels : conv->in_channels;
    walk->terms = forward ? conv->in_channels : conv->out_channels;
    for (int axis = 0; axis < 2; ++axis) {
        const int64_t size = walk->target[axis], kernel = window->kernel[axis];
        void *block;
        GG_TRY(gg_calloc((size_t)(size * kernel), sizeof(gg_tap), "convolution taps", &block));
        walk->taps[axis] = block;
        GG_TRY(gg_calloc((size_t)(size + 1), sizeof(int32_t), "convolution taps", &block));
        walk->start[axis] = block;
        const int64_t step = axis == 0 ? walk->source[1] * conv->lanes : conv->lanes;
        int32_t count = 0;
        for (int64_t t = 0; t < size; ++t) {
            for (int64_t k = 0; k < kernel; ++k) {
                const int64_t s = find_source(window, axis, forward, t, k, walk->source[axis]);
                if (s < 0) continue;
                walk->taps[axis][count++] = (gg_tap){.w = axis == 0 ? k * window->kernel[1] : k, .x = s * step};
            }
            walk->start[axis][t + 1] = count;
        }
    }
    void *block;
    GG_TRY(gg_calloc((size_t)walk->target[1], sizeof(gg_column), "convolution columns", &block));
    walk->columns = block;
    const bool odd = conv->kernels->vector > 1 && conv->lanes / conv->kernels->vector % 2 != 0;
    pair_columns(walk, odd, forward ? 1 : window->stride[1]);

    /* Chooses a row of the source under the window for all channels, if it fits in the cache. Otherwise for as many
     * channels as fit, but enough for a tile, and then for a strip of columns. */
    const int64_t height = window->kernel[0] < walk->source[0] ? window->kernel[0] : walk->source[0];
    const int64_t column = height * conv->lanes * (int64_t)sizeof(float);
    const int64_t least = gg_block_count(MIN_TERMS, conv->taps);
    int64_t part = SOURCE_BYTES / (column * walk->source[1]);
    const int64_t light = SOURCE_BYTES / (walk->rows * conv->taps * (int64_t)sizeof(float));
    if (part > light) part = light;
    if (part < least) part = least;
    walk->parts = gg_block_count(walk->terms, part);
    part = gg_block_count(walk->terms, walk->parts);
    const int64_t per_column = at_least_one(walk->source[1] / at_least_one(walk->target[1]));
    walk->strip = at_least_one(SOURCE_BYTES / (column * part * per_column));
    if (walk->strip < 4) walk->strip = 4;
    return GG_OK;
}

static void walk_destroy(conv_walk *walk) {
    for (int axis = 0; axis < 2; ++axis) {
        gg_free(walk->taps[axis]);
        gg_free(walk->start[axis]);
    }
    gg_free(walk->columns);
}

static gg_status slab_create(conv_op *conv) {
    const gg_op_desc *desc = &conv->op.desc;
    const gg_window *w = &desc->conv.window;
    const int64_t *in = desc->input[0].size, *out = desc->output.size;
    const int64_t row = out[2] * conv->lanes;
    conv->copied = w->padding[0] > 0 || w->padding[1] > 0;
    conv->slab_rows = gg_block_count(MIN_DOT * GG_LANES, row);
    const int64_t slabs = gg_block_count(out[1], conv->slab_rows);
    conv->slab_rows = gg_block_count(out[1], slabs);
    conv->slab_height = (conv->slab_rows - 1) * w->stride[0] + (w->kernel[0] - 1) * w->dilation[0] + 1;
    conv->slab_width = (out[2] - 1) * w->stride[1] + (w->kernel[1] - 1) * w->dilation[1] + 1;
    const int64_t channel = conv->slab_height * conv->slab_width * conv->lanes * (int64_t)sizeof(float);
    const int64_t parts = gg_block_count(conv->in_channels, at_least_one(SOURCE_BYTES / channel));
    conv->slab_channels = gg_block_count(conv->in_channels, parts);
    conv->slab_bytes = conv->copied ? conv->slab_channels * channel : 0;

    void *block;
    GG_TRY(gg_calloc((size_t)(conv->slab_channels * conv->taps), sizeof(int64_t), "convolution offsets", &block));
    conv->col_x = block;
    const int64_t width = conv->copied ? conv->slab_width : in[2];
    const int64_t plane = (conv->copied ? conv->slab_height * width : in[1] * in[2]) * conv->lanes;
    int64_t *at = conv->col_x;
    for (int64_t c = 0; c < conv->slab_channels; ++c)
        for (int64_t i = 0; i < w->kernel[0]; ++i)
            for (int64_t j = 0; j < w->kernel[1]; ++j)
                *at++ = c * plane + (i * w->dilation[0] * width + j * w->dilation[1]) * conv->lanes;
    return GG_OK;
}

/* ------------------------------------------------------------------------------------- forward, backward data */

typedef struct job {
    const conv_op *conv;
    const gg_op_args *args;
    const conv_walk *walk;
    bool forward;
} job;

/* Packs weights in the tiles' reading order: group, part of the terms, block of rows, place of the window, term,
 * row. */
static void native_conv2d_pack_part(void *context, int thread, int threads) {
    const job *j = context;
    const conv_op *conv = j->conv;
    const conv_walk *walk = j->walk;
    const int64_t taps = conv->taps, blocks = gg_block_count(walk->rows, conv->kernels->tile_rows);
    const int64_t weights = walk->rows * walk->terms * taps;
    const int64_t row_step = j->forward ? conv->in_channels * taps : taps;
    const int64_t term_step = j->forward ? taps : conv->in_channels * taps;
    size_t begin, end;
    gg_parallel_split((size_t)(conv->groups * walk->parts * blocks), 1, thread, threads, &begin, &end);
    for (size_t unit = begin; unit < end; ++unit) {
        const int64_t group = (int64_t)unit / (walk->parts * blocks), part = (int64_t)unit / blocks % walk->parts;
        const int64_t block = (int64_t)unit % blocks;
        const int64_t m = gg_block_begin(walk->rows, blocks, block);
        const int64_t rows = gg_block_begin(walk->rows, blocks, block + 1) - m;
        const int64_t k = gg_block_begin(walk->terms, walk->parts, part);
        const int64_t terms = gg_block_begin(walk->terms, walk->parts, part + 1) - k;
        const float *from = j->args->parameter[GG_PARAMETER_WEIGHT] + group * weights + m * row_step + k * term_step;
        float *to = (float *)j->args->prepared + group * weights + k * walk->rows * taps + m * taps * terms;
        for (int64_t t = 0; t < taps; ++t)
            for (int64_t term = 0; term < terms; ++term)
                for (int64_t r = 0; r < rows; ++r) *to++ = from[r * row_step + term * term_step + t];
    }
}

static void walk_part(void *context, int thread, int threads) {
    const job *j = context;
    const conv_op *conv = j->conv;
    const gg_op_args *args = j->args;
    const conv_walk *walk = j->walk;
    const int64_t blocks = gg_block_count(walk->rows, conv->kernels->tile_rows);
    const int64_t source_plane = walk->source[0] * walk->source[1] * conv->lanes;
    const int64_t target_plane = walk->target[0] * walk->target[1] * conv->lanes;
    const float *source = j->forward ? args->input[0] : args->grad_output;
    float *target = j->forward ? args->output : args->grad_input[0];
    const float *bias = j->forward && conv->op.desc.bias ? args->parameter[GG_PARAMETER_BIAS] : NULL;
    /* By rows if there are enough, because each thread then reads its part of the source only. */
    const bool by_rows = walk->target[0] >= 4 * threads || walk->target[0] >= blocks;
    size_t begin, end;
    gg_parallel_split((size_t)(by_rows ? walk->target[0] : blocks), 1, thread, threads, &begin, &end);
    if (begin == end) return;
    for (int64_t group = 0; group < conv->groups; ++group) {
        for (int64_t part = 0; part < walk->parts; ++part) {
            const int64_t k = gg_block_begin(walk->terms, walk->parts, part);
            const gg_conv_pass pass = {
                .rows = walk->rows,
                .terms = gg_block_begin(walk->terms, walk->parts, part + 1) - k,
                .taps = conv->taps,
                .lanes = conv->lanes,
                .source = source + (group * walk->terms + k) * source_plane,
                .source_plane = source_plane,
                .target = target + group * walk->rows * target_plane,
                .target_plane = target_plane,
                .target_width = walk->target[1],
                .weights = (const float *)args->prepared + (group * walk->terms + k) * walk->rows * conv->taps,
                .bias = bias ? bias + group * walk->rows : NULL,
                .row_taps = walk->taps[0],
                .col_taps = walk->taps[1],
                .row_start = walk->start[0],
                .col_start = walk->start[1],
                .columns = walk->columns,
                .column_count = walk->column_count,
                .strip = walk->strip,
                .add = part > 0,
                .relu = j->forward && conv->op.desc.activation == GG_ACTIVATION_RELU && part == walk->parts - 1,
            };
            if (by_rows) conv->kernels->conv(&pass, 0, blocks, (int64_t)begin, (int64_t)end);
            else conv->kernels->conv(&pass, (int64_t)begin, (int64_t)end, 0, walk->target[0]);
        }
    }
}

static void walk_run(const conv_op *conv, const gg_op_args *args, bool forward, gg_parallel_fn part) {
    job j = {.conv = conv, .args = args, .walk = forward ? &conv->forward : &conv->backward, .forward = forward};
    gg_parallel_run(conv->threads, part, &j);
}

/* ------------------------------------------------------------------------------------------ weight gradients */

/* Applies the activation's gradient to rows [begin, end) of one channel's output gradient, and sums them for the
 * bias. */
static void native_conv2d_prepare(const conv_op *conv, const gg_op_args *args, int64_t channel, int64_t begin,
                                  int64_t end) {
    const int64_t *out = conv->op.desc.output.size;
    const int64_t at = (channel * out[1] + begin) * out[2] * conv->lanes, n = (end - begin) * out[2] * conv->lanes;
    const bool relu = conv->op.desc.activation == GG_ACTIVATION_RELU;
    if (!relu && !conv->op.desc.bias) return;
    const float *y = relu ? (const float *)args->output + at : NULL;
    const float sum = conv->kernels->mask_sum(n, y, (float *)args->grad_output + at);
    if (!conv->op.desc.bias) return;
    float *bias = &args->gradient[GG_PARAMETER_BIAS][channel];
    *bias = begin == 0 ? sum : *bias + sum;
}

/* Copies channels [channel, channel+count) of the source rows under output rows [begin, end), with the padding. */
static void copy_slab(const conv_op *conv, const float *x, int64_t channel, int64_t count, int64_t begin, int64_t end,
                      float *slab) {
    const gg_window *w = &conv->op.desc.conv.window;
    const int64_t *in = conv->op.desc.input[0].size;
    const int64_t lanes = conv->lanes, width = conv->slab_width;
    const int64_t height = (end - begin - 1) * w->stride[0] + (w->kernel[0] - 1) * w->dilation[0] + 1;
    const int64_t first = begin * w->stride[0] - w->padding[0];
    /* Columns [left, right) of a row lie in the image; the window may lie outside completely. */
    int64_t left = w->padding[1] < width ? w->padding[1] : width;
    int64_t right = in[2] + w->padding[1] < width ? in[2] + w->padding[1] : width;
    for (int64_t c = 0; c < count; ++c) {
        for (int64_t r = 0; r < height; ++r) {
            float *row = slab + (c * conv->slab_height + r) * width * lanes;
            const int64_t s = first + r;
            if (s < 0 || s >= in[1]) {
                memset(row, 0, (size_t)(width * lanes) * sizeof(float));
                continue;
            }
            memset(row, 0, (size_t)(left * lanes) * sizeof(float));
            memcpy(row + left * lanes, x + ((channel + c) * in[1] + s) * in[2] * lanes,
                   (size_t)((right - left) * lanes) * sizeof(float));
            memset(row + right * lanes, 0, (size_t)((width - right) * lanes) * sizeof(float));
        }
    }
}

static void native_conv2d_weights_part(void *context, int thread, int threads) {
    const job *j = context;
    const conv_op *conv = j->conv;
    const gg_op_args *args = j->args;
    const gg_window *w = &conv->op.desc.conv.window;
    const int64_t *in = conv->op.desc.input[0].size, *out = conv->op.desc.output.size;
    const int64_t lanes = conv->lanes, cols = conv->in_channels * conv->taps, dy_row = out[2] * lanes;
    const int64_t x_width = conv->copied ? conv->slab_width : in[2];
    float *slab = (float *)((char *)args->scratch + thread * conv->slab_bytes);
    /* Output channels of all groups, in order. */
    size_t begin, end;
    gg_parallel_split((size_t)(conv->groups * conv->out_channels), 1, thread, threads, &begin, &end);
    if (begin == end) return;
    const int64_t first = (int64_t)begin / conv->out_channels, last = ((int64_t)end - 1) / conv->out_channels;
    for (int64_t r = 0; r < out[1]; r += conv->slab_rows) {
        const int64_t r_end = r + conv->slab_rows < out[1] ? r + conv->slab_rows : out[1];
        for (int64_t group = first; group <= last; ++group) {
            const int64_t from = group == first ? (int64_t)begin : group * conv->out_channels;
            const int64_t to = group == last ? (int64_t)end : (group + 1) * conv->out_channels;
            const int64_t blocks = gg_block_count(to - from, conv->kernels->dot_rows);
            for (int64_t c = 0; c < conv->in_channels; c += conv->slab_channels) {
                const int64_t left = conv->in_channels - c;
                const int64_t count = left < conv->slab_channels ? left : conv->slab_channels;
                const int64_t channel = group * conv->in_channels + c;
                const float *x = (const float *)args->input[0] + (channel * in[1] + r * w->stride[0]) * in[2] * lanes;
                if (conv->copied) {
                    copy_slab(conv, args->input[0], channel, count, r, r_end, slab);
                    x = slab;
                }
                const gg_conv_dot dot = {
                    .rows = to - from,
                    .cols = count * conv->taps,
                    .height = r_end - r,
                    .width = out[2],
                    .lanes = lanes,
                    .x = x,
                    .col_x = conv->col_x,
                    .x_row = w->stride[0] * x_width * lanes,
                    .x_col = w->stride[1] * lanes,
                    .dy = (const float *)args->grad_output + from * out[1] * dy_row + r * dy_row,
                    .dy_plane = out[1] * dy_row,
                    .dy_row = dy_row,
                    .dw = args->gradient[GG_PARAMETER_WEIGHT] + from * cols + c * conv->taps,
                    .dw_row = cols,
                    .add = r > 0,
                };
                for (int64_t b = 0; b < blocks; ++b) {
                    /* Block by block, so that the values read here are still in cache for the products. */
                    if (c == 0)
                        for (int64_t m = gg_block_begin(to - from, blocks, b);
                             m < gg_block_begin(to - from, blocks, b + 1); ++m)
                            native_conv2d_prepare(conv, args, from + m, r, r_end);
                    conv->kernels->dot(&dot, b, b + 1);
                }
            }
        }
    }
}

/* -------------------------------------------------------------------------------------------------- operation */

static bool has_data_pass(const gg_op_desc *desc) {
    return desc->training && desc->input_grad && gg_op_has_pass(desc, GG_PASS_DATA);
}

static gg_status native_conv2d_pack(gg_op *op, const gg_op_args *args, gg_pass pass) {
    if (pass == GG_PASS_FORWARD || has_data_pass(&op->desc))
        walk_run((const conv_op *)op, args, pass == GG_PASS_FORWARD, native_conv2d_pack_part);
    return GG_OK;
}

static gg_status native_conv2d_forward(gg_op *op, const gg_op_args *args) {
    walk_run((const conv_op *)op, args, true, walk_part);
    return GG_OK;
}

static gg_status native_conv2d_backward_weights(gg_op *op, const gg_op_args *args) {
    const conv_op *conv = (const conv_op *)op;
    job j = {.conv = conv, .args = args};
    gg_parallel_run(conv->threads, native_conv2d_weights_part, &j);
    return GG_OK;
}

static gg_status native_conv2d_backward_data(gg_op *op, const gg_op_args *args) {
    if (has_data_pass(&op->desc) && args->grad_input[0] != NULL) walk_run((const conv_op *)op, args, false, walk_part);
    return GG_OK;
}

static void native_conv2d_destroy(gg_op *op) {
    conv_op *conv = (conv_op *)op;
    walk_destroy(&conv->forward);
    walk_destroy(&conv->backward);
    gg_free(conv->col_x);
    gg_native_op_free(op);
}

static const gg_op_class conv_class = {.prepare = native_conv2d_pack,
                                       .forward = native_conv2d_forward,
                                       .backward_weights = native_conv2d_backward_weights,
                                       .backward_data = native_conv2d_backward_data,
                                       .destroy = native_conv2d_destroy};

static gg_status native_conv2d_check(const gg_op_desc *desc) {
    const gg_window *w = &desc->conv.window;
    char text[GG_SHAPE_TEXT];
    if (desc->inputs != 1 || desc->input[0].dims != 3 || desc->output.dims != 3)
        return gg_fail(GG_ERROR_SHAPE, "a convolution has one image (C, H, W), not %s",
                       gg_shape_text(&desc->input[0], text));
    if (desc->batch < 1)
        return gg_fail(GG_ERROR_ARGUMENT, "batch is %lld; at least 1 is needed", (long long)desc->batch);
    const int64_t *in = desc->input[0].size, *out = desc->output.size;
    if (desc->conv.groups < 1 || in[0] % desc->conv.groups != 0 || out[0] % desc->conv.groups != 0)
        return gg_fail(GG_ERROR_ARGUMENT, "groups is %lld; it must divide %lld input and %lld output channels",
                       (long long)desc->conv.groups, (long long)in[0], (long long)out[0]);
    for (int a = 0; a < 2; ++a) {
        if (w->kernel[a] < 1 || w->stride[a] < 1 || w->dilation[a] < 1 || w->padding[a] < 0)
            return gg_fail(GG_ERROR_ARGUMENT,
                           "kernel %lld, stride %lld, dilation %lld must be at least 1 and padding %lld at least 0",
                           (long long)w->kernel[a], (long long)w->stride[a], (long long)w->dilation[a],
                           (long long)w->padding[a]);
        const int64_t room = in[1 + a] + 2 * w->padding[a] - w->dilation[a] * (w->kernel[a] - 1) - 1;
        const int64_t size = room < 0 ? 0 : room / w->stride[a] + 1;
        if (size < 1 || size != out[1 + a])
            return gg_fail(GG_ERROR_SHAPE, "output size is %lld; this window gives %lld", (long long)out[1 + a],
                           (long long)size);
    }
    return GG_OK;
}

gg_status gg_native_conv2d_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    gg_op *op = NULL;
    *out = NULL;
    GG_TRY_CLEANUP(native_conv2d_check(desc));
    if (desc->algorithm == GG_ALGORITHM_WIDENED || gg_conv_unturned(desc->algorithm) != GG_ALGORITHM_COUNT)
        GG_FAIL_CLEANUP(GG_ERROR_UNSUPPORTED, "the direct convolution here lies %s",
                        gg_layout_name(GG_LAYOUT_BATCH_LAST));
    if (desc->algorithm == GG_ALGORITHM_TILED) {
        status = gg_native_image_conv_create(device, desc, out);
        goto cleanup;
    }
    if (desc->algorithm != GG_ALGORITHM_DIRECT && desc->dtype == GG_BFLOAT16) {
        status = gg_cpu_widened_create(device, desc, gg_native_conv2d_create, out);
        goto cleanup;
    }
    if (desc->algorithm != GG_ALGORITHM_DIRECT) {
        status = desc->algorithm == GG_ALGORITHM_SPLIT ? gg_native_split_conv_create(device, desc, out)
                                                       : gg_native_winograd_create(device, desc, out);
        goto cleanup;
    }
    status = gg_native_pointwise_create(device, desc, out);
    if (status != GG_ERROR_UNSUPPORTED) goto cleanup;
    status = GG_OK;
    const gg_gemm_kernels *kernels = gg_cpu_device_kernels(device)->gemm;
    GG_TRY_CLEANUP(gg_native_op_create(desc, &conv_class, sizeof(conv_op), &op));
    conv_op *conv = (conv_op *)op;
    conv->op.backward_needs_input = gg_op_has_pass(desc, GG_PASS_WEIGHTS);
    conv->op.backward_needs_output = gg_op_has_pass(desc, GG_PASS_WEIGHTS) && desc->activation == GG_ACTIVATION_RELU;
    conv->kernels = kernels;
    conv->threads = device->threads;
    conv->lanes = gg_lanes_padded(desc->batch);
    conv->groups = desc->conv.groups;
    conv->taps = desc->conv.window.kernel[0] * desc->conv.window.kernel[1];
    conv->in_channels = desc->input[0].size[0] / desc->conv.groups;
    conv->out_channels = desc->output.size[0] / desc->conv.groups;
    GG_TRY_CLEANUP(walk_create(conv, true, &conv->forward));
    if (desc->training && gg_op_has_pass(desc, GG_PASS_WEIGHTS)) {
        GG_TRY_CLEANUP(slab_create(conv));
        conv->op.scratch_bytes = (size_t)(conv->slab_bytes * conv->threads);
    }
    if (has_data_pass(desc)) GG_TRY_CLEANUP(walk_create(conv, false, &conv->backward));
    conv->op.prepared_bytes =
        (size_t)(conv->groups * conv->in_channels * conv->out_channels * conv->taps) * sizeof(float);
    *out = op;
    op = NULL;
cleanup:
    if (op != NULL) native_conv2d_destroy(op);
    return status;
}
