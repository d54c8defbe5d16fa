/* MAX_POOL2D, AVG_POOL2D and ADAPTIVE_AVG_POOL2D, with PyTorch's windows. A ReLU gives equal results before and after a
 * max: backward finds no place where the max was not positive. */
#include "base/memory.h"
#include "base/parallel.h"
#include "cpu/native.h"

typedef struct pool_op {
    gg_op head;
    gg_device *device;
    gg_pool_shape shape;
    int32_t *tables;
    float *scale;
} pool_op;

/* One run, for the threads. */
typedef struct pool_job {
    const pool_op *op;
    const float *in;
    float *out;
    void *saved;
    bool backward;
} pool_job;

static void pool_part(void *context, int thread, int threads) {
    const pool_job *job = context;
    const gg_pool_shape *shape = &job->op->shape;
    const gg_cpu_pool *kernels = gg_cpu_device_kernels(job->op->device)->pool;
    const bool max = job->op->head.desc.kind == GG_OP_MAX_POOL2D;
    size_t begin, end;
    gg_parallel_split((size_t)shape->channels, 1, thread, threads, &begin, &end);
    const int64_t from = (int64_t)begin, to = (int64_t)end;
    if (max && job->backward) kernels->max_backward(shape, from, to, job->saved, job->in, job->out);
    else if (max) kernels->max(shape, from, to, job->in, job->out, job->saved);
    else if (job->backward) kernels->average_backward(shape, from, to, job->in, job->out);
    else kernels->average(shape, from, to, job->in, job->out);
}

static void pool_run(const pool_op *op, pool_job *job) {
    const gg_pool_shape *s = &op->shape;
    const size_t work = (size_t)(s->channels * s->in[0] * s->in[1] * s->lanes);
    gg_parallel_run(gg_cpu_threads_for(op->device, work), pool_part, job);
}

static gg_status pool_forward(gg_op *op, const gg_op_args *args) {
    pool_job job = {.op = (pool_op *)op, .in = args->input[0], .out = args->output};
    job.saved = op->saved_bytes != 0 ? args->saved : NULL;
    pool_run(job.op, &job);
    return GG_OK;
}

static gg_status pool_backward(gg_op *op, const gg_op_args *args) {
    if (args->grad_input[0] == NULL) return GG_OK;
    pool_job job = {.op = (pool_op *)op, .in = args->grad_output, .out = args->grad_input[0], .saved = args->saved};
    job.backward = true;
    pool_run(job.op, &job);
    return GG_OK;
}

static void pool_destroy(gg_op *head) {
    pool_op *op = (pool_op *)head;
    gg_free(op->tables);
    gg_free(op->scale);
    gg_native_op_free(head);
}

static const gg_op_class pool_class = {
    .forward = pool_forward, .backward_data = pool_backward, .destroy = pool_destroy};

static gg_status native_pool_check(const gg_op_desc *desc) {
    const gg_window *w = &desc->pool;
    const char *name = gg_op_kind_name(desc->kind);
    static const char *const axes[2] = {"height", "width"};
    if (desc->inputs != 1 || desc->input[0].dims != 3 || desc->output.dims != 3 ||
        desc->input[0].size[0] != desc->output.size[0])
        return gg_fail(GG_ERROR_SHAPE, "%s maps one image (C, H, W) to another of as many channels", name);
    for (int a = 0; a < 2; ++a)
        if (desc->input[0].size[1 + a] > INT32_MAX / 2 || desc->output.size[1 + a] > INT32_MAX / 2)
            return gg_fail(GG_ERROR_UNSUPPORTED, "%s, %s: %lld elements for %lld windows are too many", name, axes[a],
                           (long long)desc->input[0].size[1 + a], (long long)desc->output.size[1 + a]);
    if (desc->kind == GG_OP_ADAPTIVE_AVG_POOL2D) return GG_OK;
    for (int a = 0; a < 2; ++a) {
        if (w->kernel[a] < 1 || w->stride[a] < 1 || w->dilation[a] < 1 || w->padding[a] < 0)
            return gg_fail(GG_ERROR_ARGUMENT,
                           "%s, %s: kernel %lld, stride %lld, dilation %lld, padding %lld are out of range", name,
                           axes[a], (long long)w->kernel[a], (long long)w->stride[a], (long long)w->dilation[a],
                           (long long)w->padding[a]);
        if (desc->kind == GG_OP_AVG_POOL2D && w->dilation[a] != 1)
            return gg_fail(GG_ERROR_ARGUMENT, "%s: dilation is %lld, allowed is 1", name, (long long)w->dilation[a]);
        if (w->padding[a] > (w->dilation[a] * (w->kernel[a] - 1) + 1) / 2)
            return gg_fail(GG_ERROR_ARGUMENT, "%s, %s: padding %lld is more than half of the window", name, axes[a],
                           (long long)w->padding[a]);
        const int64_t in = desc->input[0].size[1 + a], out = gg_window_output(w, a, in, w->ceil_mode);
        if (out < 1 || out != desc->output.size[1 + a])
            return gg_fail(GG_ERROR_SHAPE, "%s, %s: windows over %lld elements give %lld outputs, not %lld", name,
                           axes[a], (long long)in, (long long)out, (long long)desc->output.size[1 + a]);
        if (!gg_window_covers(w, a, in, out))
            return gg_fail(GG_ERROR_SHAPE, "%s, %s: a window holds no element of the image", name, axes[a]);
        if (w->kernel[a] > 32768)
            return gg_fail(GG_ERROR_UNSUPPORTED, "%s, %s: %lld elements in windows of %lld are too many", name, axes[a],
                           (long long)in, (long long)w->kernel[a]);
    }
    return GG_OK;
}

/* First element of the image in window o along an axis, its place in the window, and the number inside. */
typedef struct pool_extent {
    int64_t first, place, count;
} pool_extent;

static pool_extent extent_of(const gg_op_desc *desc, int axis, int64_t o) {
    const gg_window *w = &desc->pool;
    const int64_t in = desc->input[0].size[1 + axis], out = desc->output.size[1 + axis];
    if (desc->kind == GG_OP_ADAPTIVE_AVG_POOL2D) {
        const int64_t begin = o * in / out, end = ((o + 1) * in + out - 1) / out;
        return (pool_extent){begin, 0, end - begin};
    }
    const int64_t dilation = w->dilation[axis], corner = o * w->stride[axis] - w->padding[axis];
    const int64_t outside = corner < 0 ? (-corner + dilation - 1) / dilation : 0;
    const int64_t first = corner + outside * dilation;
    const int64_t inside = first < in ? (in - first + dilation - 1) / dilation : 0, room = w->kernel[axis] - outside;
    return (pool_extent){first, outside, inside < room ? inside : room};
}

/* Fills the tables of one axis and returns the first free address. */
static int32_t *fill_axis(gg_pool_shape *shape, const gg_op_desc *desc, int axis, int32_t *at) {
    const int64_t in = shape->in[axis], out = shape->out[axis];
    const int64_t kernel = shape->kernel[axis], dilation = shape->dilation[axis];
    int32_t *first = at, *place = first + out, *count = place + out, *start = count + out;
    int32_t *window = start + in + 1, *place_in = window + out * kernel;
    for (int64_t i = 0; i <= in; ++i) start[i] = 0;
    for (int64_t o = 0; o < out; ++o) {
        const pool_extent extent = extent_of(desc, axis, o);
        for (int64_t k = 0; k < extent.count; ++k) ++start[extent.first + k * dilation + 1];
        first[o] = (int32_t)extent.first;
        place[o] = (int32_t)extent.place;
        count[o] = (int32_t)extent.count;
    }
    for (int64_t i = 0; i < in; ++i) start[i + 1] += start[i];
    for (int64_t o = 0; o < out; ++o) {
        for (int32_t k = 0; k < count[o]; ++k) {
            const int32_t entry = start[first[o] + k * dilation]++;
            window[entry] = (int32_t)o;
            place_in[entry] = place[o] + k;
        }
    }
    /* Filling has advanced each start to that of its successor. */
    for (int64_t i = in; i > 0; --i) start[i] = start[i - 1];
    start[0] = 0;
    shape->first[axis] = first;
    shape->place[axis] = place;
    shape->count[axis] = count;
    shape->cover[axis] = (gg_pool_cover){start, window, place_in};
    return place_in + out * kernel;
}

static size_t axis_entries(const gg_pool_shape *shape, int axis) {
    const size_t in = (size_t)shape->in[axis], out = (size_t)shape->out[axis];
    return 3 * out + in + 1 + 2 * out * (size_t)shape->kernel[axis];
}

/* Places of the largest window along an axis. */
static int64_t largest_window(const gg_op_desc *desc, int axis) {
    int64_t most = desc->pool.kernel[axis];
    if (desc->kind != GG_OP_ADAPTIVE_AVG_POOL2D) return most;
    most = 1;
    for (int64_t o = 0; o < desc->output.size[1 + axis]; ++o) {
        const int64_t count = extent_of(desc, axis, o).count;
        most = count > most ? count : most;
    }
    return most;
}

/* Elements of a window that count, along one axis: those inside the image, or also inside its padding. */
static int64_t native_pool_extent(const gg_pool_shape *shape, const gg_op_desc *desc, int axis, int64_t o) {
    const gg_window *w = &desc->pool;
    if (!w->count_include_pad || desc->kind == GG_OP_ADAPTIVE_AVG_POOL2D) return shape->count[axis][o];
    const int64_t corner = o * w->stride[axis] - w->padding[axis];
    const int64_t end = shape->in[axis] + w->padding[axis];
    return corner + w->kernel[axis] < end ? w->kernel[axis] : end - corner;
}

static void fill_scale(const gg_pool_shape *shape, const gg_op_desc *desc, float *scale) {
    for (int64_t h = 0; h < shape->out[0]; ++h)
        for (int64_t v = 0; v < shape->out[1]; ++v) {
            const int64_t divisor = native_pool_extent(shape, desc, 0, h) * native_pool_extent(shape, desc, 1, v);
            scale[h * shape->out[1] + v] = (float)(1.0 / (double)divisor);
        }
}

gg_status gg_native_pool_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    gg_op *head = NULL;
    *out = NULL;
    GG_TRY_CLEANUP(native_pool_check(desc));
    void *block;
    GG_TRY_CLEANUP(gg_native_op_create(desc, &pool_class, sizeof(pool_op), &head));
    pool_op *op = (pool_op *)head;
    const gg_window *w = &desc->pool;
    const bool adaptive = desc->kind == GG_OP_ADAPTIVE_AVG_POOL2D;
    gg_pool_shape *shape = &op->shape;
    op->device = device;
    if (desc->offered[0].layout == GG_LAYOUT_CHANNELS16)
        head->input[0].layout = head->output.layout = GG_LAYOUT_CHANNELS16;
    const bool blocks = head->input[0].layout == GG_LAYOUT_CHANNELS16;
    shape->channels =
        blocks ? desc->batch * (gg_lanes_padded(desc->input[0].size[0]) / GG_LANES) : desc->input[0].size[0];
    shape->lanes = blocks ? GG_LANES : gg_lanes_padded(desc->batch);
    shape->tiled = !adaptive;
    for (int a = 0; a < 2; ++a) {
        shape->in[a] = desc->input[0].size[1 + a];
        shape->out[a] = desc->output.size[1 + a];
        shape->kernel[a] = largest_window(desc, a);
        shape->dilation[a] = adaptive ? 1 : w->dilation[a];
    }
    GG_TRY_CLEANUP(
        gg_alloc((axis_entries(shape, 0) + axis_entries(shape, 1)) * sizeof(int32_t), "a pooling's tables", &block));
    op->tables = block;
    int32_t *at = op->tables;
    for (int a = 0; a < 2; ++a) {
        at = fill_axis(shape, desc, a, at);
        shape->tiled = shape->tiled && w->stride[a] == w->kernel[a] && w->dilation[a] == 1 && w->padding[a] == 0;
        for (int64_t o = 0; o < shape->out[a]; ++o) {
            shape->tiled = shape->tiled && shape->count[a][o] == w->kernel[a];
        }
    }
    if (desc->kind != GG_OP_MAX_POOL2D) {
        GG_TRY_CLEANUP(gg_alloc((size_t)(shape->out[0] * shape->out[1]) * sizeof(float), "a pooling's tables", &block));
        op->scale = block;
        shape->scale = op->scale;
        fill_scale(shape, desc, op->scale);
    } else {
        shape->relu = desc->activation == GG_ACTIVATION_RELU;
        const int64_t places = w->kernel[0] * w->kernel[1] + shape->relu;
        shape->index_bytes = places <= 256 ? 1 : places <= 65536 ? 2 : 4;
        const size_t outputs = (size_t)(shape->channels * shape->out[0] * shape->out[1] * shape->lanes);
        head->saved_bytes = desc->training ? outputs * (size_t)shape->index_bytes : 0;
    }
    *out = head;
    head = NULL;
cleanup:
    if (head != NULL) pool_destroy(head);
    return status;
}
