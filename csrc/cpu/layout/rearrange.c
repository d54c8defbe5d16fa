/* PERMUTE, SLICE and PAD. Each walks a view of the larger tensor and the smaller tensor in order. The view's axes have
 * their own sizes and distances. The lanes of BATCH_LAST, or the samples of PLAIN, are an additional axis. */
#include <string.h>

#include "base/parallel.h"
#include "cpu/native.h"

#define MAX_AXES (GG_MAX_DIMS + 1)

typedef struct rearrange_op {
    gg_op head;
    gg_device *device;
    int axes;
    int64_t size[MAX_AXES], step[MAX_AXES]; /* of the view; steps in floats of the viewed tensor */
    int64_t offset;                         /* of its first element */
    int64_t inner;                          /* adjacent elements in both tensors, the last axis */
    int64_t rows;                           /* of `inner` elements */
    size_t viewed;                          /* elements of the viewed tensor */
} rearrange_op;

typedef struct rearrange_job {
    const rearrange_op *op;
    const float *from;
    float *to;
    bool gather; /* from the view to the dense tensor; false: the other way */
} rearrange_job;

/* Divides elements, not rows: rows of BATCH_LAST may be few and long. */
static void rearrange_part(void *context, int thread, int threads) {
    const rearrange_job *j = context;
    const rearrange_op *op = j->op;
    int64_t at[MAX_AXES] = {0}, viewed = op->offset;
    size_t begin, end;
    gg_parallel_split((size_t)(op->rows * op->inner), GG_LANES, thread, threads, &begin, &end);
    int64_t dense = (int64_t)begin, left = dense / op->inner;
    for (int a = op->axes - 1; a >= 0; --a) {
        at[a] = left % op->size[a];
        left /= op->size[a];
        viewed += at[a] * op->step[a];
    }
    while (dense < (int64_t)end) {
        const int64_t first = dense % op->inner, most = (int64_t)end - dense;
        const int64_t n = op->inner - first < most ? op->inner - first : most;
        const float *from = j->from + (j->gather ? viewed + first : dense);
        float *to = j->to + (j->gather ? dense : viewed + first);
        if (op->inner == 1) *to = *from;
        else memcpy(to, from, (size_t)n * sizeof(float));
        dense += n;
        for (int a = op->axes - 1; a >= 0; --a) {
            viewed += op->step[a];
            if (++at[a] < op->size[a]) break;
            viewed -= op->step[a] * op->size[a];
            at[a] = 0;
        }
    }
}

static void clear_part(void *context, int thread, int threads) {
    const rearrange_job *j = context;
    size_t begin, end;
    gg_parallel_split(j->op->viewed, GG_LANES, thread, threads, &begin, &end);
    memset(j->to + begin, 0, (end - begin) * sizeof(float));
}

/* scatter: values outside of the view become 0. */
static void rearrange_run(const rearrange_op *op, const void *from, void *to, bool gather) {
    rearrange_job job = {.op = op, .from = from, .to = to, .gather = gather};
    const size_t count = (size_t)(op->rows * op->inner);
    if (!gather && count < op->viewed) gg_parallel_run(gg_cpu_threads_for(op->device, op->viewed), clear_part, &job);
    gg_parallel_run(gg_cpu_threads_for(op->device, count), rearrange_part, &job);
}

static gg_status rearrange_forward(gg_op *op, const gg_op_args *args) {
    rearrange_run((rearrange_op *)op, args->input[0], args->output, op->desc.kind != GG_OP_PAD);
    return GG_OK;
}

static gg_status rearrange_backward(gg_op *op, const gg_op_args *args) {
    if (args->grad_input[0] != NULL)
        rearrange_run((rearrange_op *)op, args->grad_output, args->grad_input[0], op->desc.kind == GG_OP_PAD);
    return GG_OK;
}

static const gg_op_class rearrange_class = {
    .forward = rearrange_forward, .backward_data = rearrange_backward, .destroy = gg_native_op_free};

/* Makes the view: of the input, or for PAD of the output. */
static void make_view(rearrange_op *op, const gg_op_desc *desc, bool lanes) {
    const bool pad = desc->kind == GG_OP_PAD;
    const gg_shape *viewed = pad ? &desc->output : &desc->input[0], *dense = pad ? &desc->input[0] : &desc->output;
    const gg_range *range = &desc->range;
    const int dims = viewed->dims, first = lanes ? 0 : 1;
    const int64_t padded = lanes ? gg_lanes_padded(desc->batch) : 1;
    int64_t distance[GG_MAX_DIMS], step = padded;
    for (int i = dims - 1; i >= 0; --i) {
        distance[i] = step;
        step *= viewed->size[i];
    }
    for (int i = 0; i < dims; ++i) {
        op->size[first + i] = dense->size[i];
        op->step[first + i] = distance[desc->kind == GG_OP_PERMUTE ? desc->order.size[i] : i];
    }
    if (desc->kind != GG_OP_PERMUTE) {
        op->offset = range->begin * distance[range->axis];
        op->step[first + range->axis] *= range->step;
    }
    op->axes = dims + 1;
    op->size[lanes ? dims : 0] = lanes ? padded : desc->batch;
    op->step[lanes ? dims : 0] = lanes ? 1 : step;
    op->viewed = (size_t)(step * (lanes ? 1 : desc->batch));
    op->rows = op->inner = 1;
    while (op->axes > 0 && op->step[op->axes - 1] == op->inner) op->inner *= op->size[--op->axes];
    for (int a = 0; a < op->axes; ++a) op->rows *= op->size[a];
}

gg_status gg_native_rearrange_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_op *head = NULL;
    const bool lanes = desc->offered[0].layout == GG_LAYOUT_BATCH_LAST;
    *out = NULL;
    if (desc->inputs != 1 || desc->input[0].dims != desc->output.dims)
        return gg_fail(GG_ERROR_SHAPE, "%s: one input with as many axes as the output", gg_op_kind_name(desc->kind));
    GG_TRY(gg_native_op_create(desc, &rearrange_class, sizeof(rearrange_op), &head));
    rearrange_op *op = (rearrange_op *)head;
    if (!lanes) head->input[0].layout = head->output.layout = GG_LAYOUT_PLAIN;
    op->device = device;
    make_view(op, desc, lanes);
    *out = head;
    return GG_OK;
}
