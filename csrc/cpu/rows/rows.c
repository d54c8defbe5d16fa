/* LAYER_NORM and SOFTMAX, in PLAIN if offered, otherwise in BATCH_LAST. Groups of images are PLAIN unless BATCH_LAST is
 * offered, because a reorder to PLAIN pads no batch. */
#include <math.h>
#include <string.h>

#include "base/parallel.h"
#include "cpu/native.h"

typedef struct rows_op {
    gg_op head;
    gg_device *device;
    gg_norm_rows rows;     /* LAYER_NORM */
    int64_t length, outer; /* values of a row; rows (PLAIN), or rows of a sample */
    int64_t inner;         /* SOFTMAX: floats between two values of a row; LAYER_NORM: 1, or the lanes */
    bool side_by_side;     /* rows whose values are not adjacent */
    int64_t units;         /* unit of work of the threads: a row, or up to sixteen rows side by side */
    int threads;
} rows_op;

/* One run, for the threads. */
typedef struct rows_job {
    const rows_op *op;
    const gg_op_args *args;
} rows_job;

static const gg_cpu_rows *kernels_of(const rows_op *op) { return gg_cpu_device_kernels(op->device)->rows; }

static gg_status check_rows(const gg_op_desc *desc) {
    char in[GG_SHAPE_TEXT], given[GG_SHAPE_TEXT];
    if (desc->inputs != 1 || !gg_shape_equal(&desc->input[0], &desc->output))
        return gg_fail(GG_ERROR_SHAPE, "%s has one input of its output's shape, not %d of %s for %s",
                       gg_op_kind_name(desc->kind), desc->inputs, gg_shape_text(&desc->input[0], in),
                       gg_shape_text(&desc->output, given));
    const gg_layer_norm_options *norm = desc->kind == GG_OP_LAYER_NORM ? &desc->layer_norm : NULL;
    const int64_t axis = norm != NULL ? norm->axis : desc->softmax.axis;
    if (axis < 0 || axis >= desc->output.dims)
        return gg_fail(GG_ERROR_ARGUMENT, "%s: axis %lld of a sample of %d axes", gg_op_kind_name(desc->kind),
                       (long long)axis, desc->output.dims);
    if (norm != NULL && (norm->groups < 0 || (norm->groups > 0 && desc->output.size[0] % norm->groups)))
        return gg_fail(GG_ERROR_ARGUMENT, "layer_norm: groups is %lld; allowed: 0, and divisors of %lld channels",
                       (long long)norm->groups, (long long)desc->output.size[0]);
    return GG_OK;
}

static gg_status rows_create(gg_device *device, const gg_op_desc *desc, const gg_op_class *type, gg_op **out) {
    gg_op *head;
    *out = NULL;
    GG_TRY(check_rows(desc));
    GG_TRY(gg_native_op_create(desc, type, sizeof(rows_op), &head));
    const gg_layout offered = desc->offered[0].layout;
    const bool grouped = desc->kind == GG_OP_LAYER_NORM && desc->layer_norm.groups > 0;
    if (offered == GG_LAYOUT_PLAIN || (grouped && offered != GG_LAYOUT_BATCH_LAST))
        head->input[0].layout = head->output.layout = GG_LAYOUT_PLAIN;
    head->in_place = true;
    ((rows_op *)head)->device = device;
    *out = head;
    return GG_OK;
}

/* Sets the geometry: `length` values a row, `inner` values of the sample between two of them. */
static void rows_place(rows_op *op, int64_t length, int64_t inner) {
    const gg_op_desc *desc = &op->head.desc;
    const bool plain = op->head.output.layout == GG_LAYOUT_PLAIN;
    op->length = length;
    op->outer = gg_shape_count(&desc->output) / length / inner;
    op->inner = plain ? inner : inner * gg_lanes_padded(desc->batch);
    if (plain) op->outer *= desc->batch;
    op->side_by_side = op->inner > 1;
    op->units = op->outer * (op->side_by_side ? (op->inner + GG_LANES - 1) / GG_LANES : 1);
    op->threads = gg_cpu_threads_for(op->device, (size_t)(op->outer * op->length * op->inner));
}

/* First value of a unit, and the number of its rows side by side. */
static size_t unit_at(const rows_op *op, int64_t unit, size_t *width) {
    const int64_t columns = (op->inner + GG_LANES - 1) / GG_LANES, column = unit % columns * GG_LANES;
    *width = (size_t)(op->inner - column < GG_LANES ? op->inner - column : GG_LANES);
    if (!op->side_by_side) return (size_t)(unit * op->length);
    return (size_t)(unit / columns * op->length * op->inner + column);
}

/* ------------------------------------------------------------------------------------- layer normalisation */

/* Saved mean and inverse deviation of each row of a unit: GG_LANES of each if rows lie side by side. */
static float *stats_at(const rows_op *op, const gg_op_args *args, int64_t unit) {
    return (float *)args->saved + unit * 2 * (op->side_by_side ? GG_LANES : 1);
}

/* The first weight of a unit's rows. */
static int64_t first_weight(const rows_op *op, int64_t unit) {
    const int64_t row = op->side_by_side ? unit / ((op->inner + GG_LANES - 1) / GG_LANES) : unit;
    return row * op->rows.weights % op->rows.parameters;
}

/* A parameter from the unit's first weight on. */
static const float *layer_norm_parameter(const rows_op *op, const gg_op_args *args, int place, int64_t unit) {
    const gg_op_desc *desc = &op->head.desc;
    const bool there = desc->layer_norm.affine && (place == GG_PARAMETER_WEIGHT || desc->bias);
    return there ? args->parameter[place] + first_weight(op, unit) : NULL;
}

/* Mean and inverse deviation from a row's moments. With a root mean square the mean counts as 0. */
static void row_stats(const rows_op *op, double mean, double squares, float *center, float *inverse) {
    double square = squares / (double)op->length;
    if (op->rows.root_mean_square) square += mean * mean;
    *center = op->rows.root_mean_square ? 0 : (float)mean;
    *inverse = (float)(1 / sqrt(square + (double)op->head.desc.layer_norm.epsilon));
}

static void measure_row(const rows_op *op, const float *x, float *stats) {
    double mean, squares;
    kernels_of(op)->row_moments((size_t)op->length, x, &mean, &squares);
    row_stats(op, mean, squares, &stats[0], &stats[1]);
}

/* Lanes after the batch get the factor 0, so that none is infinite. */
static void measure_lanes(const rows_op *op, int64_t first, const float *x, float *stats) {
    const gg_norm_runs runs = {.runs = op->length, .run_step = op->inner, .vectors = 1};
    double mean[GG_LANES], squares[GG_LANES];
    gg_cpu_device_kernels(op->device)->norm->moments(&runs, x, mean, squares);
    for (int lane = 0; lane < GG_LANES; ++lane) {
        row_stats(op, mean[lane], squares[lane], &stats[lane], &stats[GG_LANES + lane]);
        if (first + lane >= op->head.desc.batch) stats[GG_LANES + lane] = 0;
    }
}

static void layer_norm_forward_part(void *context, int thread, int threads) {
    const rows_job *job = context;
    const rows_op *op = job->op;
    const gg_op_args *args = job->args;
    size_t begin, end, width;
    gg_parallel_split((size_t)op->units, 1, thread, threads, &begin, &end);
    for (int64_t unit = (int64_t)begin; unit < (int64_t)end; ++unit) {
        const size_t at = unit_at(op, unit, &width);
        const float *weight = layer_norm_parameter(op, args, GG_PARAMETER_WEIGHT, unit);
        const float *bias = layer_norm_parameter(op, args, GG_PARAMETER_BIAS, unit);
        const float *x = (const float *)args->input[0] + at;
        float *y = (float *)args->output + at, *stats = stats_at(op, args, unit);
        if (op->side_by_side) {
            measure_lanes(op, (int64_t)at % op->inner, x, stats);
            kernels_of(op)->lanes_apply(&op->rows, (size_t)op->inner, x, stats, stats + GG_LANES, weight, bias, y);
        } else {
            measure_row(op, x, stats);
            kernels_of(op)->row_apply(&op->rows, x, stats[0], stats[1], weight, bias, y);
        }
    }
}

static gg_status layer_norm_forward(gg_op *head, const gg_op_args *args) {
    rows_job job = {(rows_op *)head, args};
    gg_parallel_run(job.op->threads, layer_norm_forward_part, &job);
    return GG_OK;
}

/* Rows whose part of the weight and bias gradients is summed in float32, then added to double sums. Does not depend on
 * the number of threads. */
#define SUM_ROWS 32

/* Sums of the two gradients of one thread: weight, then bias. */
static double *sums_at(const rows_op *op, const gg_op_args *args, int thread) {
    return (double *)args->scratch + (size_t)thread * 3 * (size_t)op->rows.parameters;
}

/* After these sums: sums of a few rows. */
static float *part_sums_at(const rows_op *op, const gg_op_args *args, int thread) {
    return (float *)(sums_at(op, args, thread) + 2 * op->rows.parameters);
}

/* The part of the input's gradient that changes the row's mean: none with a root mean square. */
static float mean_error(const rows_op *op, double sum) {
    return op->rows.root_mean_square ? 0 : (float)(sum / (double)op->length);
}

/* sums: those of the thread, for all weights; NULL means none. */
static void row_backward(const rows_op *op, const rows_job *job, int64_t unit, size_t at, float *sums) {
    const gg_op_args *args = job->args;
    const float *weight = layer_norm_parameter(op, args, GG_PARAMETER_WEIGHT, unit), *stats = stats_at(op, args, unit);
    const float *x = (const float *)args->input[0] + at, *dy = (const float *)args->grad_output + at;
    const int64_t first = first_weight(op, unit);
    double sum, product;
    kernels_of(op)->row_sums(&op->rows, x, dy, stats[0], stats[1], weight, &sum, &product,
                             sums != NULL ? sums + first : NULL,
                             sums != NULL ? sums + op->rows.parameters + first : NULL);
    if (args->grad_input[0] == NULL) return;
    kernels_of(op)->row_gradient(&op->rows, x, dy, stats[0], stats[1], weight, mean_error(op, sum),
                                 (float)(product / (double)op->length), (float *)args->grad_input[0] + at);
}

static void lanes_backward(const rows_op *op, const rows_job *job, int64_t unit, size_t at, double *sums) {
    const gg_op_args *args = job->args;
    const float *weight = layer_norm_parameter(op, args, GG_PARAMETER_WEIGHT, unit), *stats = stats_at(op, args, unit);
    const float *x = (const float *)args->input[0] + at, *dy = (const float *)args->grad_output + at;
    const int64_t first = first_weight(op, unit);
    const size_t step = (size_t)op->inner;
    double sum[GG_LANES], product[GG_LANES];
    float mean_sum[GG_LANES], mean_product[GG_LANES];
    kernels_of(op)->lanes_sums(&op->rows, step, x, dy, stats, stats + GG_LANES, weight, sum, product,
                               sums != NULL ? sums + first : NULL,
                               sums != NULL ? sums + op->rows.parameters + first : NULL);
    if (args->grad_input[0] == NULL) return;
    for (int lane = 0; lane < GG_LANES; ++lane) {
        mean_sum[lane] = mean_error(op, sum[lane]);
        mean_product[lane] = (float)(product[lane] / (double)op->length);
    }
    kernels_of(op)->lanes_gradient(&op->rows, step, x, dy, stats, stats + GG_LANES, weight, mean_sum, mean_product,
                                   (float *)args->grad_input[0] + at);
}

static void layer_norm_backward_part(void *context, int thread, int threads) {
    const rows_job *job = context;
    const rows_op *op = job->op;
    double *sums = op->head.desc.layer_norm.affine ? sums_at(op, job->args, thread) : NULL;
    float *part = sums != NULL ? part_sums_at(op, job->args, thread) : NULL;
    const size_t count = 2 * (size_t)op->rows.parameters;
    size_t begin, end, width;
    gg_parallel_split((size_t)op->units, op->side_by_side ? 1 : SUM_ROWS, thread, threads, &begin, &end);
    if (sums != NULL) memset(sums, 0, count * sizeof *sums);
    for (int64_t unit = (int64_t)begin; unit < (int64_t)end; ++unit) {
        const size_t at = unit_at(op, unit, &width);
        if (op->side_by_side) {
            lanes_backward(op, job, unit, at, sums);
            continue;
        }
        if (part != NULL && unit % SUM_ROWS == 0) memset(part, 0, count * sizeof *part);
        row_backward(op, job, unit, at, part);
        if (part == NULL || (unit % SUM_ROWS != SUM_ROWS - 1 && unit + 1 < (int64_t)end)) continue;
        for (size_t i = 0; i < count; ++i) sums[i] += (double)part[i];
    }
}

static gg_status layer_norm_backward(gg_op *head, const gg_op_args *args) {
    const rows_op *op = (rows_op *)head;
    rows_job job = {op, args};
    const size_t n = (size_t)op->rows.parameters;
    gg_parallel_run(op->threads, layer_norm_backward_part, &job);
    for (int place = 0; head->desc.layer_norm.affine && place < 1 + head->desc.bias; ++place)
        for (size_t i = 0; i < n; ++i) {
            double sum = 0;
            for (int thread = 0; thread < op->threads; ++thread)
                sum += sums_at(op, args, thread)[(size_t)place * n + i];
            args->gradient[place][i] = (float)sum;
        }
    return GG_OK;
}

static const gg_op_class layer_norm_class = {
    .forward = layer_norm_forward, .backward_data = layer_norm_backward, .destroy = gg_native_op_free};

gg_status gg_native_layer_norm_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_op *head;
    *out = NULL;
    GG_TRY(rows_create(device, desc, &layer_norm_class, &head));
    rows_op *op = (rows_op *)head;
    op->rows = gg_norm_rows_of(desc);
    rows_place(op, op->rows.length, 1);
    head->backward_needs_input = 1;
    head->saved_bytes = (size_t)(op->units * 2 * (op->side_by_side ? GG_LANES : 1)) * sizeof(float);
    if (desc->training && desc->layer_norm.affine)
        head->scratch_bytes = (size_t)(op->threads * 3 * op->rows.parameters) * sizeof(double);
    *out = head;
    return GG_OK;
}

/* ------------------------------------------------------------------------------------------------- softmax */

static void softmax_part(const rows_job *job, bool backward, int thread, int threads) {
    const rows_op *op = job->op;
    const gg_op_args *args = job->args;
    const size_t n = (size_t)op->length, step = (size_t)op->inner;
    size_t begin, end, width;
    gg_parallel_split((size_t)op->units, 1, thread, threads, &begin, &end);
    for (int64_t unit = (int64_t)begin; unit < (int64_t)end; ++unit) {
        const size_t at = unit_at(op, unit, &width);
        const float *in = (const float *)(backward ? args->grad_output : args->input[0]) + at;
        float *out = (float *)(backward ? args->grad_input[0] : args->output) + at;
        const float *y = backward ? (const float *)args->output + at : NULL;
        if (op->side_by_side && backward) kernels_of(op)->softmax_lanes_backward(n, step, width, y, in, out);
        else if (op->side_by_side) kernels_of(op)->softmax_lanes(n, step, width, in, out);
        else if (backward) kernels_of(op)->softmax_row_backward(n, y, in, out);
        else kernels_of(op)->softmax_row(n, in, out);
    }
}

static void softmax_forward_part(void *context, int thread, int threads) {
    softmax_part(context, false, thread, threads);
}

static void softmax_backward_part(void *context, int thread, int threads) {
    softmax_part(context, true, thread, threads);
}

static gg_status softmax_forward(gg_op *head, const gg_op_args *args) {
    rows_job job = {(rows_op *)head, args};
    gg_parallel_run(job.op->threads, softmax_forward_part, &job);
    return GG_OK;
}

static gg_status softmax_backward(gg_op *head, const gg_op_args *args) {
    rows_job job = {(rows_op *)head, args};
    if (args->grad_input[0] != NULL) gg_parallel_run(job.op->threads, softmax_backward_part, &job);
    return GG_OK;
}

static const gg_op_class softmax_class = {
    .forward = softmax_forward, .backward_data = softmax_backward, .destroy = gg_native_op_free};

gg_status gg_native_softmax_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_op *head;
    int64_t inner = 1;
    *out = NULL;
    GG_TRY(rows_create(device, desc, &softmax_class, &head));
    for (int i = (int)desc->softmax.axis + 1; i < desc->output.dims; ++i) inner *= desc->output.size[i];
    rows_place((rows_op *)head, desc->output.size[desc->softmax.axis], inner);
    head->backward_needs_output = true;
    *out = head;
    return GG_OK;
}
