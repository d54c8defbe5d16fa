/* Weight gradient of a convolution of images with few channels, in bfloat16. Uses products of taps and errors
 * (cpu/conv/image_kernels.h). The input lies PLAIN or NHWC, the output NHWC.
 *
 * First, the rows of a sample are spread. For each channel, columns with equal remainder by the stride become adjacent,
 * with their padding. A tap then sees a run of numbers for each output row. Then chunks of output rows are packed and
 * multiplied. An additional tap of ones gives the bias gradient. Parts of the batch have their own sums, so that bits
 * do not depend on threads. */
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "cpu/conv/image_kernels.h"
#include "cpu/gemm/gemm_kernels.h"
#include "cpu/native.h"

/* Min runs of pixels in a chunk; a packed chunk stays in cache. */
enum { CHUNK_RUNS = 16 };

#define ONE ((uint16_t)0x3f80)

typedef struct image_conv {
    gg_op op;
    gg_device *device;
    const gg_image_kernels *kernels;
    int64_t channels, filters, taps; /* taps: including the tap of ones */
    int64_t phases, pitch;           /* phases: remainders of columns; pitch: numbers in a spread row */
    int64_t runs, rows;              /* runs: of pixels in an output row; rows: of a chunk */
    int64_t tap_groups, filter_groups, parts;
    size_t taps_at, errors_at, thread_bytes, sums_at; /* in scratch: offsets of a thread, and after all threads */
} image_conv;

typedef struct image_job {
    const image_conv *conv;
    const gg_op_args *args;
} image_job;

static size_t sums_of_part(const image_conv *conv) {
    return (size_t)(conv->tap_groups * conv->filter_groups) * GG_IMAGE_SIDE * GG_IMAGE_SIDE;
}

/* Spread row of a channel and a remainder of columns. A row of zeros precedes all, then a row of ones. */
static uint16_t *spread_row(const image_conv *conv, uint16_t *spread, int64_t channel, int64_t phase, int64_t row) {
    return spread + (2 + (channel * conv->phases + phase) * conv->op.desc.input[0].size[1] + row) * conv->pitch;
}

static void spread_sample(const image_conv *conv, const uint16_t *image, uint16_t *spread) {
    const gg_op_desc *desc = &conv->op.desc;
    const int64_t height = desc->input[0].size[1], width = desc->input[0].size[2], stride = desc->conv.window.stride[1];
    const bool plain = conv->op.input[0].layout == GG_LAYOUT_PLAIN;
    const int64_t step = plain ? 1 : conv->channels, from_channel = plain ? height * width : 1;
    for (int64_t c = 0; c < conv->channels; ++c) {
        for (int64_t phase = 0; phase < conv->phases; ++phase) {
            /* Number i is column i*stride + first; the numbers before and after the image stay zeros. */
            const int64_t first = phase - desc->conv.window.padding[1];
            const int64_t begin = first < 0 ? gg_block_count(-first, stride) : 0;
            const int64_t some = first + begin * stride < width ? gg_block_count(width - first, stride) : begin;
            const int64_t end = some < conv->pitch ? some : conv->pitch;
            for (int64_t row = 0; row < height; ++row) {
                const uint16_t *from = image + c * from_channel + row * width * step;
                uint16_t *to = spread_row(conv, spread, c, phase, row);
                for (int64_t i = begin; i < end; ++i) to[i] = from[(first + i * stride) * step];
            }
        }
    }
}

/* Source of a tap: output row r sees numbers from 0 on of row stride*r + first of `plane`. */
typedef struct image_tap {
    const uint16_t *plane;
    int64_t first;
} image_tap;

static image_tap image_tap_of(const image_conv *conv, uint16_t *spread, int64_t tap) {
    const gg_window *w = &conv->op.desc.conv.window;
    const int64_t column = tap % w->kernel[1], place = tap / w->kernel[1];
    const uint16_t *plane = spread_row(conv, spread, place / w->kernel[0], column % w->stride[1], 0);
    return (image_tap){plane + column / w->stride[1], place % w->kernel[0] - w->padding[0]};
}

/* Packs as tiles the numbers that taps see for output rows [begin, end). */
static void pack_taps(const image_conv *conv, uint16_t *spread, int64_t begin, int64_t end, uint16_t *taps) {
    const gg_op_desc *desc = &conv->op.desc;
    const int64_t height = desc->input[0].size[1], stride = desc->conv.window.stride[0], runs = conv->runs;
    const int64_t group = (end - begin) * runs * GG_IMAGE_TILE, weights = conv->taps - desc->bias;
    for (int64_t tap = 0; tap < conv->taps; ++tap) {
        const image_tap it = tap < weights ? image_tap_of(conv, spread, tap) : (image_tap){0};
        uint16_t *to = taps + tap / GG_IMAGE_SIDE * group + tap % GG_IMAGE_SIDE * GG_IMAGE_PIXELS;
        for (int64_t row = begin; row < end; ++row) {
            const int64_t y = row * stride + it.first;
            const uint16_t *from = spread; /* zeros */
            if (it.plane == NULL) from = spread + conv->pitch;
            else if (y >= 0 && y < height) from = it.plane + y * conv->pitch;
            for (int64_t k = 0; k < runs; ++k, from += GG_IMAGE_PIXELS, to += GG_IMAGE_TILE)
                memcpy(to, from, GG_IMAGE_PIXELS * sizeof *to);
        }
    }
}

/* Multiplies rows [begin, end) of a sample's output. */
static void multiply_rows(const image_conv *conv, uint16_t *spread, const uint16_t *error, int64_t begin, int64_t end,
                          uint16_t *taps, uint16_t *errors, float *sums, bool add) {
    const int64_t width = conv->op.desc.output.size[2], runs = (end - begin) * conv->runs;
    pack_taps(conv, spread, begin, end, taps);
    for (int64_t row = begin; row < end; ++row)
        conv->kernels->pack_errors(&(gg_image_errors){.pixels = width,
                                                      .filters = conv->filters,
                                                      .from = error + row * width * conv->filters,
                                                      .to = errors + (row - begin) * conv->runs * GG_IMAGE_TILE,
                                                      .group = runs * GG_IMAGE_TILE});
    conv->kernels->multiply(&(gg_image_product){.tap_groups = conv->tap_groups,
                                                .filter_groups = conv->filter_groups,
                                                .runs = runs,
                                                .taps = taps,
                                                .errors = errors,
                                                .sums = sums,
                                                .add = add});
}

static void image_part(void *context, int thread, int threads) {
    const image_job *job = context;
    const image_conv *conv = job->conv;
    const gg_op_desc *desc = &conv->op.desc;
    const gg_cpu_elementwise *elementwise = gg_cpu_device_kernels(conv->device)->elementwise;
    char *scratch = (char *)job->args->scratch + (size_t)thread * conv->thread_bytes;
    uint16_t *spread = (uint16_t *)scratch, *taps = (uint16_t *)(scratch + conv->taps_at);
    uint16_t *errors = (uint16_t *)(scratch + conv->errors_at);
    float *const all = (float *)((char *)job->args->scratch + conv->sums_at);
    const size_t inputs = (size_t)gg_shape_count(&desc->input[0]), outputs = (size_t)gg_shape_count(&desc->output);
    const int64_t height = desc->output.size[1];
    size_t part, behind;
    gg_parallel_split((size_t)conv->parts, 1, thread, threads, &part, &behind);
    if (part == behind) return;
    memset(scratch, 0, conv->taps_at); /* clears the tiles; results of rows without a tap are never read */
    for (int64_t i = 0; i < conv->pitch; ++i) spread[conv->pitch + i] = ONE;
    for (; part < behind; ++part) {
        float *sums = all + part * sums_of_part(conv);
        size_t sample, last;
        gg_parallel_split((size_t)desc->batch, 1, (int)part, (int)conv->parts, &sample, &last);
        bool add = false;
        for (; sample < last; ++sample) {
            uint16_t *error = (uint16_t *)job->args->grad_output + sample * outputs;
            if (desc->activation == GG_ACTIVATION_RELU)
                elementwise->relu_narrow_backward(outputs, (const uint16_t *)job->args->output + sample * outputs,
                                                  error, error);
            spread_sample(conv, (const uint16_t *)job->args->input[0] + sample * inputs, spread);
            for (int64_t row = 0; row < height; row += conv->rows, add = true)
                multiply_rows(conv, spread, error, row, row + conv->rows < height ? row + conv->rows : height, taps,
                              errors, sums, add);
        }
    }
}

/* Gradients are the sums of all parts, in order; they have filters in rows. */
static void add_parts(const image_conv *conv, const gg_op_args *args) {
    const float *sums = (const float *)((const char *)args->scratch + conv->sums_at);
    const int64_t across = conv->filter_groups * GG_IMAGE_SIDE, weights = conv->taps - conv->op.desc.bias;
    for (int64_t tap = 0; tap < conv->taps; ++tap) {
        const bool is_weight = tap < weights;
        float *to = is_weight ? args->gradient[GG_PARAMETER_WEIGHT] + tap : args->gradient[GG_PARAMETER_BIAS];
        for (int64_t filter = 0; filter < conv->filters; ++filter) {
            const float *from = sums + tap * across + filter;
            float sum = 0;
            for (int64_t part = 0; part < conv->parts; ++part, from += sums_of_part(conv)) sum += *from;
            to[filter * (is_weight ? weights : 1)] = sum;
        }
    }
}

static gg_status image_conv_weights(gg_op *op, const gg_op_args *args) {
    const image_conv *conv = (const image_conv *)op;
    image_job job = {.conv = conv, .args = args};
    gg_parallel_run(conv->device->threads, image_part, &job);
    add_parts(conv, args);
    return GG_OK;
}

static const gg_op_class image_conv_class = {.backward_weights = image_conv_weights, .destroy = gg_native_op_free};

gg_status gg_native_image_conv_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    gg_op *head = NULL;
    *out = NULL;
    const gg_image_kernels *kernels = gg_cpu_device_kernels(device)->image;
    const gg_window *w = &desc->conv.window;
    if (kernels == NULL || desc->dtype != GG_BFLOAT16 || desc->passes != 1u << GG_PASS_WEIGHTS ||
        desc->offered[0].dtype != GG_BFLOAT16 || !gg_conv_has_form(desc, desc->offered[0].layout, GG_ALGORITHM_TILED))
        GG_FAIL_CLEANUP(
            GG_ERROR_UNSUPPORTED,
            "own convolutions of few channels are for the gradient of the weights in bfloat16 alone, on AMX, "
            "without dilation and groups, of at most %d channels that lie plain or nhwc",
            GG_CONV_FEW_CHANNELS);
    GG_TRY_CLEANUP(gg_native_op_create(desc, &image_conv_class, sizeof(image_conv), &head));
    image_conv *conv = (image_conv *)head;
    head->input[0] = desc->offered[0];
    head->output = (gg_format){GG_BFLOAT16, GG_LAYOUT_NHWC};
    head->backward_needs_input = 1;
    head->backward_needs_output = desc->activation == GG_ACTIVATION_RELU;
    conv->device = device;
    conv->kernels = kernels;
    conv->channels = desc->input[0].size[0];
    conv->filters = desc->output.size[0];
    conv->taps = conv->channels * w->kernel[0] * w->kernel[1] + desc->bias;
    conv->phases = w->stride[1] < w->kernel[1] ? w->stride[1] : w->kernel[1];
    conv->runs = gg_block_count(desc->output.size[2], GG_IMAGE_PIXELS);
    conv->pitch = conv->runs * GG_IMAGE_PIXELS + w->kernel[1] / w->stride[1];
    conv->rows = gg_block_count(CHUNK_RUNS, conv->runs);
    if (conv->rows > desc->output.size[1]) conv->rows = desc->output.size[1];
    conv->tap_groups = gg_block_count(conv->taps, GG_IMAGE_SIDE);
    conv->filter_groups = gg_block_count(conv->filters, GG_IMAGE_SIDE);
    const size_t sums = sums_of_part(conv) * sizeof(float);
    if (sums > GG_NATIVE_SUM_BYTES)
        GG_FAIL_CLEANUP(
            GG_ERROR_UNSUPPORTED,
            "the gradient of %lld x %lld weights by own kernels needs %zu bytes of sums for each part of a batch: "
            "more than %d",
            (long long)conv->filters, (long long)conv->taps, sums, GG_NATIVE_SUM_BYTES);
    conv->parts = gg_native_parts(desc->batch, (int64_t)sums);
    const size_t tiles = (size_t)(conv->rows * conv->runs) * GG_IMAGE_TILE * sizeof(uint16_t);
    const int64_t spread = (2 + conv->channels * conv->phases * desc->input[0].size[1]) * conv->pitch;
    conv->taps_at = (size_t)gg_block_count(spread, GG_IMAGE_PIXELS) * GG_IMAGE_PIXELS * sizeof(uint16_t); /* lines */
    conv->errors_at = conv->taps_at + (size_t)conv->tap_groups * tiles;
    conv->thread_bytes = conv->errors_at + (size_t)conv->filter_groups * tiles;
    conv->sums_at = (size_t)device->threads * conv->thread_bytes;
    head->scratch_bytes = conv->sums_at + (size_t)conv->parts * sums;
    *out = head;
    head = NULL;
cleanup:
    if (head != NULL) gg_native_op_free(head);
    return status;
}
