/* LOCAL_RESPONSE_NORM, in PLAIN if offered, otherwise in BATCH_LAST. */
#include "base/parallel.h"
#include "cpu/native.h"

typedef struct lrn_op {
    gg_op head;
    gg_device *device;
    gg_lrn_shape shape;
    int64_t outer, strips; /* consecutive pieces, and strips in each */
    int threads;
} lrn_op;

/* One run, for the threads. */
typedef struct lrn_job {
    const lrn_op *op;
    const gg_op_args *args;
    bool backward;
} lrn_job;

static void lrn_part(void *context, int thread, int threads) {
    const lrn_job *job = context;
    const lrn_op *op = job->op;
    const gg_op_args *args = job->args;
    const gg_cpu_lrn *kernels = gg_cpu_device_kernels(op->device)->lrn;
    const gg_lrn_shape *shape = &op->shape;
    float *saved = op->head.saved_bytes > 0 ? args->saved : NULL;
    float *terms = (float *)args->scratch + (int64_t)thread * shape->channels * GG_LRN_STRIP;
    size_t begin, end;
    gg_parallel_split((size_t)(op->outer * op->strips), 1, thread, threads, &begin, &end);
    for (int64_t i = (int64_t)begin; i < (int64_t)end; ++i) {
        const size_t column = (size_t)(i % op->strips) * GG_LRN_STRIP;
        const size_t at = (size_t)(i / op->strips * shape->channels) * shape->step + column;
        const size_t width = shape->step - column < GG_LRN_STRIP ? shape->step - column : GG_LRN_STRIP;
        const float *x = (const float *)args->input[0] + at;
        if (job->backward)
            kernels->backward(shape, width, x, saved + at, (const float *)args->grad_output + at,
                              (float *)args->grad_input[0] + at, terms);
        else kernels->forward(shape, width, x, (float *)args->output + at, saved != NULL ? saved + at : NULL);
    }
}

static gg_status lrn_forward(gg_op *head, const gg_op_args *args) {
    lrn_job job = {.op = (lrn_op *)head, .args = args};
    gg_parallel_run(job.op->threads, lrn_part, &job);
    return GG_OK;
}

static gg_status lrn_backward(gg_op *head, const gg_op_args *args) {
    lrn_job job = {.op = (lrn_op *)head, .args = args, .backward = true};
    if (args->grad_input[0] != NULL) gg_parallel_run(job.op->threads, lrn_part, &job);
    return GG_OK;
}

static const gg_op_class lrn_class = {
    .forward = lrn_forward, .backward_data = lrn_backward, .destroy = gg_native_op_free};

gg_status gg_native_lrn_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_op *head;
    char in[GG_SHAPE_TEXT], given[GG_SHAPE_TEXT];
    *out = NULL;
    if (desc->inputs != 1 || !gg_shape_equal(&desc->input[0], &desc->output))
        return gg_fail(GG_ERROR_SHAPE, "local_response_norm has one input of its output's shape, not %d of %s for %s",
                       desc->inputs, gg_shape_text(&desc->input[0], in), gg_shape_text(&desc->output, given));
    if (desc->lrn.size < 1)
        return gg_fail(GG_ERROR_ARGUMENT, "local_response_norm: size must be at least 1, not %lld",
                       (long long)desc->lrn.size);
    GG_TRY(gg_native_op_create(desc, &lrn_class, sizeof(lrn_op), &head));
    lrn_op *op = (lrn_op *)head;
    const bool plain = desc->offered[0].layout == GG_LAYOUT_PLAIN;
    const int64_t channels = desc->output.size[0], elements = gg_shape_count(&desc->output) / channels;
    if (plain) head->input[0].layout = head->output.layout = GG_LAYOUT_PLAIN;
    op->device = device;
    op->outer = plain ? desc->batch : 1;
    op->shape = (gg_lrn_shape){.channels = channels,
                               .step = (size_t)(plain ? elements : elements * gg_lanes_padded(desc->batch)),
                               .before = desc->lrn.size / 2,
                               .after = (desc->lrn.size - 1) / 2,
                               .share = desc->lrn.alpha / (float)desc->lrn.size,
                               .beta = desc->lrn.beta,
                               .k = desc->lrn.k};
    op->strips = ((int64_t)op->shape.step + GG_LRN_STRIP - 1) / GG_LRN_STRIP;
    const size_t bytes = gg_format_bytes(head->output, &desc->output, desc->batch);
    op->threads = gg_cpu_threads_for(device, bytes / sizeof(float));
    head->backward_needs_input = 1;
    if (desc->training) {
        head->saved_bytes = bytes;
        head->scratch_bytes = (size_t)(op->threads * channels * GG_LRN_STRIP) * sizeof(float);
    }
    *out = head;
    return GG_OK;
}
