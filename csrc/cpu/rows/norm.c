/* BATCH_NORM in any offered layout: reorders would cost more than the operation. A second input can be added in the
 * same pass. Backward then sees from the output which values the ReLU cut. */
#include <math.h>
#include <string.h>

#include "base/parallel.h"
#include "cpu/native.h"

/* Arrays over the channels that forward saves for backward. */
enum { SAVED_MEAN = 0, SAVED_INVERSE, SAVED_VARIANCE, SAVED_SCALE, SAVED_OFFSET, SAVED_COUNT };

typedef struct norm_op {
    gg_op head;
    gg_device *device;
    gg_dtype dtype;           /* of the activations */
    int64_t channels, values; /* values of a channel in a batch */
    int64_t groups, period;   /* groups of `period` channels, whose lanes repeat with that period */
    int64_t group_step;       /* elements */
    gg_norm_runs runs;        /* of a group, except for the last of images in NHWC */
    int last_tail;            /* NHWC: channels in the last group if it is not full; otherwise 0 */
    /* Runs are computed in blocks of `rows`. In NHWC all groups lie side by side, and a block stays in a cache while
     * its groups are computed. In other layouts few groups have blocks, to give each thread work. Blocks depend on the
     * shape alone, and so do the bits. */
    int64_t blocks, rows;
    bool side_by_side; /* NHWC */
    int weight, mean;  /* indices of the parameters; -1 means none */
} norm_op;

/* One run, for the threads. */
typedef struct norm_job {
    const norm_op *op;
    const gg_op_args *args;
    bool batch_statistics;
} norm_job;

/* BLOCK_BYTES: bytes of a block's runs. MIN_ROWS: min positions of a block in NHWC, to justify a call. ENOUGH_BLOCKS:
 * max blocks of all groups in other layouts, enough for any number of threads. */
enum { BLOCK_BYTES = 1 << 17, MIN_ROWS = 32, ENOUGH_BLOCKS = 64 };

/* Sets the geometry of a batch of samples (channels, elements), as seen from its channels. */
static void norm_place(norm_op *op) {
    const gg_op_desc *desc = &op->head.desc;
    const int64_t batch = desc->batch, elements = gg_shape_count(&desc->input[0]) / op->channels;
    const int64_t lanes = gg_lanes_padded(batch);
    gg_norm_runs *runs = &op->runs;
    gg_layout layout = op->head.input[0].layout;
    if (layout == GG_LAYOUT_PLAIN && elements == 1) layout = GG_LAYOUT_NHWC; /* equal layouts then */
    const int64_t block = layout == GG_LAYOUT_CHANNELS8 ? 8 : layout == GG_LAYOUT_CHANNELS16 ? 16 : 1;
    op->period = block;
    op->blocks = 1;
    switch (layout) {
    case GG_LAYOUT_BATCH_LAST:
        op->group_step = elements * lanes;
        *runs = (gg_norm_runs){.runs = elements, .run_step = lanes, .padded = true};
        runs->vectors = batch / GG_LANES;
        runs->tail = (int)(batch % GG_LANES);
        if (batch == lanes) *runs = (gg_norm_runs){.runs = 1, .vectors = elements * lanes / GG_LANES};
        break;
    case GG_LAYOUT_NHWC:
        op->period = op->group_step = GG_LANES;
        op->side_by_side = true;
        *runs = (gg_norm_runs){.runs = batch * elements, .run_step = op->channels, .vectors = 1};
        op->last_tail = (int)(op->channels % GG_LANES);
        op->rows = BLOCK_BYTES / (op->channels * (int64_t)gg_dtype_size(op->dtype));
        if (op->rows < MIN_ROWS) op->rows = MIN_ROWS;
        op->blocks = (runs->runs + op->rows - 1) / op->rows;
        break;
    default:
        op->group_step = elements * block;
        *runs = (gg_norm_runs){.runs = batch};
        runs->run_step = (op->channels + block - 1) / block * op->group_step;
        runs->vectors = op->group_step / GG_LANES;
        runs->tail = (int)(op->group_step % GG_LANES);
    }
    op->groups = (op->channels + op->period - 1) / op->period;
    if (op->side_by_side || layout == GG_LAYOUT_BATCH_LAST) return;
    const int64_t run = op->group_step * (int64_t)gg_dtype_size(op->dtype), most = ENOUGH_BLOCKS / op->groups;
    op->rows = (BLOCK_BYTES + run - 1) / run;
    if (op->rows * most < batch) op->rows = most > 0 ? (batch + most - 1) / most : batch;
    op->blocks = (batch + op->rows - 1) / op->rows;
}

static gg_norm_runs runs_of(const norm_op *op, int64_t block, int64_t group) {
    gg_norm_runs runs = op->runs;
    if (op->blocks > 1) runs.runs = runs.runs - block * op->rows < op->rows ? runs.runs - block * op->rows : op->rows;
    if (group == op->groups - 1 && op->last_tail > 0) {
        runs.vectors = 0;
        runs.tail = op->last_tail;
    }
    return runs;
}

/* Channels in a group; blocks may be padded. */
static int64_t channels_in(const norm_op *op, int64_t group) {
    const int64_t rest = op->channels - group * op->period;
    return rest < op->period ? rest : op->period;
}

static float *saved_at(const norm_op *op, const gg_op_args *args, int what, int64_t channel) {
    return (float *)args->saved + what * op->channels + channel;
}

static float parameter_of(const gg_op_args *args, int parameter, int64_t channel, float otherwise) {
    return parameter >= 0 ? args->parameter[parameter][channel] : otherwise;
}

/* Two numbers a lane, for a group in a block: mean and sum of squared differences, or sums of d and of products. */
typedef struct norm_pair {
    double first[GG_LANES], second[GG_LANES];
} norm_pair;

/* Address of a pair: all groups and blocks, block by block; then slopes and shifts, group by group. */
static norm_pair *pair_at(const norm_op *op, const gg_op_args *args, int64_t block, int64_t group) {
    return (norm_pair *)args->scratch + block * op->groups + group;
}

static float *slopes_at(const norm_op *op, const gg_op_args *args, int64_t group) {
    return (float *)pair_at(op, args, op->blocks, 0) + group * 2 * GG_LANES;
}

/* The first element of a group in a block. */
static int64_t place_of(const norm_op *op, int64_t block, int64_t group) {
    return group * op->group_step + (op->blocks > 1 ? block * op->rows * op->runs.run_step : 0);
}

/* An array from an element on; NULL stays NULL. */
static void *norm_from(const norm_op *op, const void *array, int64_t at) {
    if (array == NULL) return NULL;
    return (char *)(uintptr_t)array + at * (int64_t)gg_dtype_size(op->dtype);
}

static void moments_of(const norm_op *op, int64_t block, int64_t group, const gg_op_args *args, norm_pair *out) {
    const gg_cpu_norm *kernels = gg_cpu_device_kernels(op->device)->norm;
    const gg_norm_runs runs = runs_of(op, block, group);
    const void *x = norm_from(op, args->input[0], place_of(op, block, group));
    if (op->dtype == GG_BFLOAT16) kernels->narrow_moments(&runs, x, out->first, out->second);
    else kernels->moments(&runs, x, out->first, out->second);
}

/* Mean and sum of squared differences of channel `first` of a group, from its lanes in all blocks. */
static void join_lanes(const norm_op *op, int64_t group, int64_t first, const norm_pair *pair, double *mean_out,
                       double *squares_out) {
    double count = 0;
    *mean_out = *squares_out = 0;
    for (int64_t block = 0; block < op->blocks; ++block, pair += op->groups) {
        const gg_norm_runs runs = runs_of(op, block, group);
        for (int64_t lane = first; lane < GG_LANES; lane += op->period) {
            const double n = (double)(runs.runs * (runs.vectors + (lane < runs.tail)));
            if (n == 0) continue;
            const double distance = pair->first[lane] - *mean_out, share = n / (count + n);
            *squares_out += pair->second[lane] + distance * distance * share * count;
            *mean_out += distance * share;
            count += n;
        }
    }
}

/* Saves the mean and the two variances of a group's channels. pair: those of its first block. */
static void measure_group(const norm_op *op, int64_t group, const norm_pair *pair, const gg_op_args *args) {
    const double values = (double)op->values, eps = (double)op->head.desc.batch_norm.epsilon;
    for (int64_t i = 0; i < channels_in(op, group); ++i) {
        const int64_t channel = group * op->period + i;
        double center, all;
        join_lanes(op, group, i, pair, &center, &all);
        *saved_at(op, args, SAVED_MEAN, channel) = (float)center;
        *saved_at(op, args, SAVED_INVERSE, channel) = (float)(1 / sqrt(all / values + eps));
        *saved_at(op, args, SAVED_VARIANCE, channel) = (float)(all / (values - 1));
    }
}

/* Saves the scale and offset of a group's channels. */
static void scale_group(const norm_op *op, int64_t group, const norm_job *job) {
    const gg_op_args *args = job->args;
    const double eps = (double)op->head.desc.batch_norm.epsilon;
    for (int64_t i = 0; i < channels_in(op, group); ++i) {
        const int64_t channel = group * op->period + i;
        double mean = (double)*saved_at(op, args, SAVED_MEAN, channel);
        double inverse = (double)*saved_at(op, args, SAVED_INVERSE, channel);
        if (!job->batch_statistics) {
            mean = (double)args->parameter[op->mean][channel];
            /* Averages of rounded variances near 0 may be slightly below 0. */
            const double variance = (double)args->parameter[op->mean + 1][channel];
            inverse = 1 / sqrt((variance < 0 ? 0 : variance) + eps);
        }
        const float scale = (float)((double)parameter_of(args, op->weight, channel, 1) * inverse);
        const float bias = op->weight >= 0 ? args->parameter[op->weight + 1][channel] : 0;
        *saved_at(op, args, SAVED_SCALE, channel) = scale;
        *saved_at(op, args, SAVED_OFFSET, channel) = (float)((double)bias - mean * (double)scale);
    }
}

/* Spreads a saved value to all lanes of a channel; zeros for padding channels. */
static void spread_saved(const norm_op *op, int64_t group, const gg_op_args *args, int what, float lane[GG_LANES]) {
    const int64_t channels = channels_in(op, group);
    for (int64_t i = 0; i < GG_LANES; ++i) {
        const int64_t channel = i % op->period;
        lane[i] = channel < channels ? *saved_at(op, args, what, group * op->period + channel) : 0;
    }
}

static void apply_to(const norm_op *op, int64_t block, int64_t group, const gg_op_args *args) {
    const gg_cpu_norm *kernels = gg_cpu_device_kernels(op->device)->norm;
    const gg_norm_runs runs = runs_of(op, block, group);
    const int64_t at = place_of(op, block, group);
    const bool relu = op->head.desc.activation == GG_ACTIVATION_RELU;
    const void *x = norm_from(op, args->input[0], at);
    const void *added = op->head.desc.inputs == 2 ? norm_from(op, args->input[1], at) : NULL;
    void *y = norm_from(op, args->output, at);
    gg_norm_lanes lanes = {.mean = {0}};
    spread_saved(op, group, args, SAVED_SCALE, lanes.scale);
    spread_saved(op, group, args, SAVED_OFFSET, lanes.offset);
    if (op->dtype == GG_BFLOAT16) kernels->narrow_apply(&runs, &lanes, relu, x, added, y);
    else kernels->apply(&runs, &lanes, relu, x, added, y);
}

/* A thread's blocks of groups; block by block, with all groups of a block together. A pass that reads data of an
 * earlier pass goes backwards, to begin with data still in cache. */
typedef struct norm_units {
    int64_t begin, end;
} norm_units;

static norm_units units_of(const norm_op *op, int thread, int threads) {
    size_t begin, end;
    gg_parallel_split((size_t)(op->blocks * op->groups), 1, thread, threads, &begin, &end);
    return (norm_units){(int64_t)begin, (int64_t)end};
}

static norm_units groups_of(const norm_op *op, int thread, int threads) {
    size_t begin, end;
    gg_parallel_split((size_t)op->groups, 1, thread, threads, &begin, &end);
    return (norm_units){(int64_t)begin, (int64_t)end};
}

/* A group at a time, from moments to results. */
static void norm_forward_part(void *context, int thread, int threads) {
    const norm_job *job = context;
    const norm_op *op = job->op;
    const norm_units groups = groups_of(op, thread, threads);
    for (int64_t group = groups.begin; group < groups.end; ++group) {
        for (int64_t block = 0; job->batch_statistics && block < op->blocks; ++block)
            moments_of(op, block, group, job->args, pair_at(op, job->args, block, group));
        if (job->batch_statistics) measure_group(op, group, pair_at(op, job->args, 0, group), job->args);
        scale_group(op, group, job);
        for (int64_t block = op->blocks - 1; block >= 0; --block) apply_to(op, block, group, job->args);
    }
}

/* Moments of all blocks, then statistics of the groups, then all results. */
static void moments_part(void *context, int thread, int threads) {
    const norm_job *job = context;
    const norm_op *op = job->op;
    const norm_units units = units_of(op, thread, threads);
    for (int64_t unit = units.begin; unit < units.end; ++unit) {
        const int64_t block = unit / op->groups, group = unit % op->groups;
        moments_of(op, block, group, job->args, pair_at(op, job->args, block, group));
    }
}

static void statistics_part(void *context, int thread, int threads) {
    const norm_job *job = context;
    const norm_op *op = job->op;
    const norm_units groups = groups_of(op, thread, threads);
    for (int64_t group = groups.begin; group < groups.end; ++group) {
        if (job->batch_statistics) measure_group(op, group, pair_at(op, job->args, 0, group), job->args);
        scale_group(op, group, job);
    }
}

static void apply_part(void *context, int thread, int threads) {
    const norm_job *job = context;
    const norm_op *op = job->op;
    const norm_units units = units_of(op, thread, threads);
    for (int64_t unit = units.end - 1; unit >= units.begin; --unit)
        apply_to(op, unit / op->groups, unit % op->groups, job->args);
}

/* Parameter gradients of a group; fills slope and shift for the input gradient. */
static void norm_gradients(const norm_op *op, int64_t group, const gg_op_args *args, const double sum[GG_LANES],
                           const double product[GG_LANES], gg_norm_lanes *lanes) {
    const double values = (double)op->values, momentum = (double)op->head.desc.batch_norm.momentum;
    for (int64_t i = 0; i < channels_in(op, group); ++i) {
        const int64_t channel = group * op->period + i;
        const double mean = (double)*saved_at(op, args, SAVED_MEAN, channel);
        const double inverse = (double)*saved_at(op, args, SAVED_INVERSE, channel);
        const double scale = (double)*saved_at(op, args, SAVED_SCALE, channel);
        double sums = 0, products = 0;
        for (int64_t lane = i; lane < GG_LANES; lane += op->period) {
            sums += sum[lane];
            products += product[lane];
        }
        const float slope = (float)(-scale * inverse * inverse * products / values);
        const float shift = (float)(-scale * sums / values);
        for (int64_t lane = i; lane < GG_LANES; lane += op->period) {
            lanes->slope[lane] = slope;
            lanes->shift[lane] = shift;
        }
        if (op->weight >= 0) {
            args->gradient[op->weight][channel] = (float)(products * inverse);
            args->gradient[op->weight + 1][channel] = (float)sums;
        }
        if (op->mean < 0) continue;
        const double variance = (double)*saved_at(op, args, SAVED_VARIANCE, channel);
        const float *const *running = args->parameter + op->mean;
        args->gradient[op->mean][channel] = (float)(momentum * ((double)running[0][channel] - mean));
        args->gradient[op->mean + 1][channel] = (float)(momentum * ((double)running[1][channel] - variance));
    }
}

/* Destination of the error before the activation: the gradient of the added input, if any. */
static void *norm_passed(const norm_op *op, const gg_op_args *args, int64_t at) {
    if (op->head.desc.inputs != 2) return NULL;
    return norm_from(op, args->grad_input[1] != NULL ? args->grad_input[1] : args->grad_output, at);
}

static void backward_lanes(const norm_op *op, int64_t group, const gg_op_args *args, gg_norm_lanes *lanes) {
    spread_saved(op, group, args, SAVED_MEAN, lanes->mean);
    spread_saved(op, group, args, SAVED_SCALE, lanes->scale);
    spread_saved(op, group, args, SAVED_OFFSET, lanes->offset);
}

static void products_of(const norm_op *op, int64_t block, int64_t group, const gg_op_args *args, norm_pair *out) {
    const gg_cpu_norm *kernels = gg_cpu_device_kernels(op->device)->norm;
    const gg_norm_runs runs = runs_of(op, block, group);
    const int64_t at = place_of(op, block, group);
    const bool relu = op->head.desc.activation == GG_ACTIVATION_RELU, adds = op->head.desc.inputs == 2;
    const void *x = norm_from(op, args->input[0], at), *dy = norm_from(op, args->grad_output, at);
    const void *y = adds && relu ? norm_from(op, args->output, at) : NULL;
    void *passed = norm_passed(op, args, at);
    gg_norm_lanes lanes = {.slope = {0}};
    backward_lanes(op, group, args, &lanes);
    if (op->dtype == GG_BFLOAT16)
        kernels->narrow_products(&runs, &lanes, relu, x, y, dy, passed, out->first, out->second);
    else kernels->products(&runs, &lanes, relu, x, y, dy, passed, out->first, out->second);
}

static void gradient_to(const norm_op *op, int64_t block, int64_t group, const gg_op_args *args) {
    const gg_cpu_norm *kernels = gg_cpu_device_kernels(op->device)->norm;
    const gg_norm_runs runs = runs_of(op, block, group);
    const int64_t at = place_of(op, block, group);
    const void *passed = norm_passed(op, args, at), *x = norm_from(op, args->input[0], at);
    const void *dy = passed != NULL ? passed : norm_from(op, args->grad_output, at);
    const bool relu = passed == NULL && op->head.desc.activation == GG_ACTIVATION_RELU;
    void *dx = norm_from(op, args->grad_input[0], at);
    gg_norm_lanes lanes;
    backward_lanes(op, group, args, &lanes);
    memcpy(lanes.slope, slopes_at(op, args, group), sizeof lanes.slope);
    memcpy(lanes.shift, slopes_at(op, args, group) + GG_LANES, sizeof lanes.shift);
    if (op->dtype == GG_BFLOAT16) kernels->narrow_gradient(&runs, &lanes, relu, x, dy, dx);
    else kernels->gradient(&runs, &lanes, relu, x, dy, dx);
}

/* Parameter gradients of a group, and its slope and shift, from the sums of all blocks. */
static void slope_group(const norm_op *op, int64_t group, const gg_op_args *args) {
    norm_pair all = {.first = {0}};
    gg_norm_lanes lanes = {.slope = {0}};
    for (int64_t block = 0; block < op->blocks; ++block) {
        const norm_pair *pair = pair_at(op, args, block, group);
        for (int i = 0; i < GG_LANES; ++i) {
            all.first[i] += pair->first[i];
            all.second[i] += pair->second[i];
        }
    }
    norm_gradients(op, group, args, all.first, all.second, &lanes);
    memcpy(slopes_at(op, args, group), lanes.slope, sizeof lanes.slope);
    memcpy(slopes_at(op, args, group) + GG_LANES, lanes.shift, sizeof lanes.shift);
}

static void norm_backward_part(void *context, int thread, int threads) {
    const norm_job *job = context;
    const norm_op *op = job->op;
    const gg_op_args *args = job->args;
    const norm_units groups = groups_of(op, thread, threads);
    for (int64_t group = groups.begin; group < groups.end; ++group) {
        for (int64_t block = 0; block < op->blocks; ++block)
            products_of(op, block, group, args, pair_at(op, args, block, group));
        slope_group(op, group, args);
        for (int64_t block = op->blocks - 1; args->grad_input[0] != NULL && block >= 0; --block)
            gradient_to(op, block, group, args);
    }
}

static void products_part(void *context, int thread, int threads) {
    const norm_job *job = context;
    const norm_op *op = job->op;
    const norm_units units = units_of(op, thread, threads);
    for (int64_t unit = units.begin; unit < units.end; ++unit) {
        const int64_t block = unit / op->groups, group = unit % op->groups;
        products_of(op, block, group, job->args, pair_at(op, job->args, block, group));
    }
}

static void slopes_part(void *context, int thread, int threads) {
    const norm_job *job = context;
    const norm_units groups = groups_of(job->op, thread, threads);
    for (int64_t group = groups.begin; group < groups.end; ++group) slope_group(job->op, group, job->args);
}

static void gradient_part(void *context, int thread, int threads) {
    const norm_job *job = context;
    const norm_op *op = job->op;
    const norm_units units = units_of(op, thread, threads);
    for (int64_t unit = units.end - 1; unit >= units.begin; --unit)
        gradient_to(op, unit / op->groups, unit % op->groups, job->args);
}

/* True if each thread computes whole groups, which may stay in its caches: if that divides the work evenly. */
static bool norm_by_groups(const norm_op *op, int threads) {
    if (op->blocks == 1) return true;
    return !op->side_by_side && (op->groups % threads == 0 || op->groups >= 4 * threads);
}

static gg_status norm_forward(gg_op *head, const gg_op_args *args) {
    const norm_op *op = (norm_op *)head;
    const bool evaluate = args->evaluate || !head->desc.training;
    norm_job job = {.op = op, .args = args, .batch_statistics = !evaluate || op->mean < 0};
    const int threads = gg_cpu_threads_for(op->device, (size_t)(op->channels * op->values));
    if (norm_by_groups(op, threads)) {
        gg_parallel_run(threads, norm_forward_part, &job);
        return GG_OK;
    }
    if (job.batch_statistics) gg_parallel_run(threads, moments_part, &job);
    gg_parallel_run(threads, statistics_part, &job);
    gg_parallel_run(threads, apply_part, &job);
    return GG_OK;
}

static gg_status norm_backward(gg_op *head, const gg_op_args *args) {
    const norm_op *op = (norm_op *)head;
    norm_job job = {.op = op, .args = args, .batch_statistics = true};
    const int threads = gg_cpu_threads_for(op->device, (size_t)(op->channels * op->values));
    if (norm_by_groups(op, threads)) {
        gg_parallel_run(threads, norm_backward_part, &job);
        return GG_OK;
    }
    gg_parallel_run(threads, products_part, &job);
    gg_parallel_run(threads, slopes_part, &job);
    if (args->grad_input[0] != NULL) gg_parallel_run(threads, gradient_part, &job);
    return GG_OK;
}

static const gg_op_class norm_class = {
    .forward = norm_forward, .backward_data = norm_backward, .destroy = gg_native_op_free};

gg_status gg_native_batch_norm_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_op *head;
    char in[GG_SHAPE_TEXT], given[GG_SHAPE_TEXT];
    *out = NULL;
    for (int i = 0; i < desc->inputs || i == 0; ++i)
        if (desc->inputs < 1 || desc->inputs > 2 || !gg_shape_equal(&desc->input[i], &desc->output))
            return gg_fail(GG_ERROR_SHAPE,
                           "batch_norm has one or two inputs of its output's shape, not %d, of %s for %s", desc->inputs,
                           gg_shape_text(&desc->input[i], in), gg_shape_text(&desc->output, given));
    const int64_t channels = desc->input[0].size[0], values = gg_shape_count(&desc->input[0]) / channels * desc->batch;
    if (values < 2 && (desc->training || !desc->batch_norm.track_statistics))
        return gg_fail(
            GG_ERROR_SHAPE,
            "in training a channel must have more than one value in a batch, but a batch of %lld sample of shape "
            "%s has %lld; choose another batch_size, or drop_last=True of fit, which leaves a last batch out that "
            "is not full",
            (long long)desc->batch, gg_shape_text(&desc->input[0], in), (long long)values);
    GG_TRY(gg_native_op_create(desc, &norm_class, sizeof(norm_op), &head));
    norm_op *op = (norm_op *)head;
    op->device = device;
    op->channels = channels;
    op->values = values;
    op->weight = desc->batch_norm.affine ? 0 : -1;
    op->mean = desc->batch_norm.track_statistics ? (desc->batch_norm.affine ? 2 : 0) : -1;
    op->dtype = desc->offered[0].layout == GG_LAYOUT_BATCH_LAST ? GG_FLOAT32 : desc->dtype;
    if (desc->offered[0].dtype != GG_BFLOAT16) op->dtype = GG_FLOAT32;
    for (int i = 0; i < desc->inputs; ++i) head->input[i] = (gg_format){op->dtype, desc->offered[0].layout};
    head->output = head->input[0];
    norm_place(op);
    head->in_place = true;
    head->backward_needs_input = 1;
    head->backward_needs_output = desc->inputs == 2 && desc->activation == GG_ACTIVATION_RELU;
    head->over_output = desc->inputs == 2 ? 1u << 1 : 0;
    head->saved_bytes = (size_t)(SAVED_COUNT * channels) * sizeof(float);
    head->scratch_bytes =
        (size_t)(op->blocks * op->groups) * sizeof(norm_pair) + (size_t)(op->groups * 2 * GG_LANES) * sizeof(float);
    *out = head;
    return GG_OK;
}
