/* Backward code shared by convolutions and linear layers: the error before the activation, and the bias gradient. In
 * BATCH_LAST a channel or feature is a row of numbers. In CHANNELS16 it is a lane of vectors. */
#include "base/parallel.h"
#include "cpu/gemm/gemm_kernels.h"
#include "cpu/native.h"

static float mask_row(const gg_gemm_kernels *kernels, int64_t columns, int64_t summed, const float *y, float *dy) {
    double sum = 0;
    if (summed == 0) return kernels->mask_sum(columns, y, dy);
    for (int64_t i = 0; i < columns; i += summed)
        sum += (double)kernels->mask_sum(columns - i < summed ? columns - i : summed, y != NULL ? y + i : NULL, dy + i);
    return (float)sum;
}

void gg_native_mask_rows(const gg_gemm_kernels *kernels, const gg_op *op, const gg_op_args *args, int64_t summed,
                         int64_t begin, int64_t end) {
    const gg_op_desc *desc = &op->desc;
    const int64_t columns = gg_shape_count(&desc->output) / desc->output.size[0] * gg_lanes_padded(desc->batch);
    const float *y = desc->activation == GG_ACTIVATION_RELU ? args->output : NULL;
    if (y == NULL && !desc->bias) return;
    for (int64_t i = begin; i < end; ++i) {
        float *dy = (float *)args->grad_output + i * columns;
        const float sum = mask_row(kernels, columns, summed, y != NULL ? y + i * columns : NULL, dy);
        if (desc->bias) args->gradient[GG_PARAMETER_BIAS][i] = sum;
    }
}

/* Samples are cut into at most MAX_PARTS parts. At most MAX_SUMS sums, each of a part and a block of channels, are
 * computed side by side. Sums are double and added in the order of the parts, so bits do not depend on threads. */
#define MAX_PARTS 16
#define MAX_SUMS 512

typedef struct blocks_job {
    gg_device *device;
    const gg_op *op;
    const gg_op_args *args;
    int64_t parts, first, count; /* of the samples; blocks of channels [first, first + count) */
    double (*sums)[GG_LANES];    /* [part][block] */
} blocks_job;

/* Each thread takes neighbours in memory. */
static void blocks_part(void *context, int thread, int threads) {
    const blocks_job *j = context;
    const gg_op_desc *desc = &j->op->desc;
    const int64_t area = desc->output.size[1] * desc->output.size[2];
    const int64_t sample = gg_block_count(desc->output.size[0], GG_LANES) * area * GG_LANES;
    const bool relu = desc->activation == GG_ACTIVATION_RELU;
    const gg_norm_lanes lanes = {0};
    size_t begin, end;
    gg_parallel_split((size_t)(j->parts * j->count), 1, thread, threads, &begin, &end);
    for (int64_t i = (int64_t)begin; i < (int64_t)end; ++i) {
        const int64_t part = i / j->count, from = gg_block_begin(desc->batch, j->parts, part);
        const int64_t at = from * sample + (j->first + i % j->count) * area * GG_LANES;
        const gg_norm_runs runs = {
            .runs = gg_block_begin(desc->batch, j->parts, part + 1) - from, .run_step = sample, .vectors = area};
        float *dy = (float *)j->args->grad_output + at;
        double unused[GG_LANES] = {0};
        for (int l = 0; l < GG_LANES; ++l) j->sums[i][l] = 0;
        gg_cpu_device_kernels(j->device)->norm->products(&runs, &lanes, relu, dy,
                                                         relu ? (const float *)j->args->output + at : NULL, dy,
                                                         relu ? dy : NULL, j->sums[i], unused);
    }
}

void gg_native_mask_blocks(gg_device *device, const gg_op *op, const gg_op_args *args) {
    const gg_op_desc *desc = &op->desc;
    const int64_t channels = desc->output.size[0], blocks = gg_block_count(channels, GG_LANES);
    double sums[MAX_SUMS][GG_LANES];
    blocks_job j = {.device = device, .op = op, .args = args, .sums = sums};
    if (desc->activation != GG_ACTIVATION_RELU && !desc->bias) return;
    j.parts = desc->batch < MAX_PARTS ? desc->batch : MAX_PARTS;
    for (; j.first < blocks; j.first += j.count) {
        const int64_t left = blocks - j.first, most = MAX_SUMS / j.parts;
        j.count = left < most ? left : most;
        gg_parallel_run(device->threads, blocks_part, &j);
        for (int64_t c = j.first * GG_LANES; desc->bias && c < (j.first + j.count) * GG_LANES && c < channels; ++c) {
            double total = 0;
            for (int64_t part = 0; part < j.parts; ++part)
                total += sums[part * j.count + c / GG_LANES - j.first][c % GG_LANES];
            args->gradient[GG_PARAMETER_BIAS][c] = (float)total;
        }
    }
}
