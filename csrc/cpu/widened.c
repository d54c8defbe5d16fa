/* bfloat16 operations that compute in float32. The bfloat16 input and error are widened into scratch. A table's float32
 * operation runs there, on the whole batch or on its parts in turn, and its output is rounded. Products read the
 * weights in place. */
#include "base/memory.h"
#include "base/parallel.h"
#include "cpu/shared.h"

/* The input or the output of a widened operation, for a part of the batch. */
typedef struct widened_side {
    gg_shape shape;
    gg_layout layout; /* in bfloat16 */
    bool turned;      /* the float32 array lies BATCH_LAST; false: as in bfloat16 */
    int64_t samples;
    size_t narrow, wide; /* bfloat16, padded channels included, and float32, with their padding */
} widened_side;

/* ---- parts of a batch ---- */

/* Convolutions of large images compute a part of the batch at a time, to bound scratch memory. Weight gradients are
 * added in the order of the parts, which depend on the shapes alone. */

/* Numbers of a convolution's weights. */
static int64_t weights_of(const gg_op_desc *desc) {
    const gg_window *window = &desc->conv.window;
    return desc->output.size[0] * (desc->input[0].size[0] / desc->conv.groups) * window->kernel[0] * window->kernel[1];
}

/* MAX_NUMBERS: input and output numbers above which a batch is divided. MIN_NUMBERS: min numbers of a part. All
 * parts' weight gradients together are at most 1/MIN_SHARE of the numbers. */
enum { MAX_NUMBERS = 4 << 20, MIN_NUMBERS = 1 << 19, MIN_SHARE = 4 };

/* The smallest number of parts that are small enough, or the max allowed number. */
static int64_t parts_of(const gg_op_desc *desc) {
    if (desc->kind != GG_OP_CONV2D || desc->conv.groups < 1) return 1;
    const int64_t sample = gg_shape_count(&desc->input[0]) + gg_shape_count(&desc->output);
    int64_t parts = 1;
    for (int64_t next = 2; next <= desc->batch && desc->batch / parts * sample > MAX_NUMBERS; ++next) {
        if (desc->batch % next != 0) continue;
        if (desc->batch / next * sample < MIN_NUMBERS) break;
        if (next * weights_of(desc) > desc->batch * sample / MIN_SHARE) break;
        parts = next;
    }
    return parts;
}

static size_t narrow_bytes(const gg_op *op, bool output) {
    const gg_format format = {GG_BFLOAT16, output ? op->output.layout : op->input[0].layout};
    return gg_format_bytes(format, output ? &op->desc.output : &op->desc.input[0], op->desc.batch);
}

/* True if the operations of a part can serve all parts: layouts are equal, and each part begins at a valid address for
 * kernels. */
static bool serve_parts(const gg_op *inner, const gg_op *data) {
    return data->input[0].layout == inner->input[0].layout && data->output.layout == inner->output.layout &&
           narrow_bytes(inner, false) % GG_ALIGNMENT == 0 && narrow_bytes(inner, true) % GG_ALIGNMENT == 0 &&
           inner->saved_bytes == 0 && data->saved_bytes == 0;
}

/* Creates the float32 operation of a part by `create`; wide: the whole batch. *data becomes *inner. With several parts
 * it becomes its own operation, because the weight gradient leaves only one part's data in scratch. *parts becomes 1 if
 * the batch is not divided. The caller destroys both, after a failure too. */
static gg_status create_parts(gg_device *device, const gg_op_desc *wide, gg_cpu_create_fn create, int64_t *parts,
                              gg_op **inner, gg_op **data) {
    gg_op_desc own = *wide;
    own.batch /= *parts;
    GG_TRY(create(device, &own, inner));
    *data = *inner;
    if (*parts == 1) return GG_OK;
    if (own.training && own.input_grad && gg_op_has_pass(&own, GG_PASS_WEIGHTS) && gg_op_has_pass(&own, GG_PASS_DATA)) {
        own.passes = 1u << GG_PASS_DATA;
        *data = NULL;
        GG_TRY(create(device, &own, data));
    }
    if (serve_parts(*inner, *data)) return GG_OK;
    if (*data != *inner) gg_op_destroy(*data);
    gg_op_destroy(*inner);
    *parts = 1;
    *inner = *data = NULL;
    GG_TRY(create(device, wide, inner));
    *data = *inner;
    return GG_OK;
}

/* ---- conversions ---- */

/* A ReLU is applied to the bfloat16 numbers during their conversion, a piece at a time, so it causes no memory traffic.
 *
 * The float32 images of a TURNED convolution lie BATCH_LAST. If samples fill vectors but channels do not, transposing
 * costs less than it saves. */

typedef struct convert_job {
    const gg_cpu_kernels *kernels;
    const widened_side *side;
    bool narrows;         /* false: widens */
    bool relu;            /* of the narrowed numbers */
    const uint16_t *mask; /* for widening: numbers become 0 where the mask is not positive; NULL means no mask */
    uint16_t *narrow;
    float *wide;
} convert_job;

/* Numbers that stay in the L1 cache between the steps of a conversion. */
enum { PIECE = 4096 };

/* Transposed images are not converted here: only the ReLU is applied. */
static void convert_pieces(void *context, int thread, int threads) {
    const convert_job *job = context;
    const bool stays = job->side->turned;
    size_t begin, end;
    gg_parallel_split(job->side->narrow, GG_LANES, thread, threads, &begin, &end);
    for (size_t at = begin; at < end; at += PIECE) {
        const size_t count = end - at < PIECE ? end - at : PIECE;
        uint16_t *narrow = job->narrow + at;
        if (job->mask != NULL) job->kernels->elementwise->relu_narrow_backward(count, job->mask + at, narrow, narrow);
        if (job->narrows && !stays) gg_cpu_narrow_any(job->kernels, count, job->wide + at, narrow);
        if (!job->narrows && !stays) gg_cpu_widen_any(job->kernels, count, narrow, job->wide + at);
        if (job->relu) job->kernels->elementwise->relu_narrow(count, narrow, narrow);
    }
}

typedef struct turn_job {
    const convert_job *convert;
    gg_cpu_images images;
} turn_job;

/* Layout of the images in bfloat16. */
static gg_cpu_images images_of(const convert_job *job) {
    const widened_side *side = job->side;
    const int64_t values = gg_shape_count(&side->shape), channels = side->shape.size[0];
    gg_cpu_images it = {.samples = side->samples,
                        .channels = channels,
                        .pixels = values / channels,
                        .sample = values,
                        .block = GG_LANES,
                        .pixel = channels,
                        .narrow = job->narrow,
                        .lanes = job->wide};
    switch (side->layout) {
    case GG_LAYOUT_CHANNELS16:
        it.pixel = GG_LANES;
        it.block = it.pixels * GG_LANES;
        it.sample = it.pixels * gg_lanes_padded(channels);
        it.padded = true;
        break;
    case GG_LAYOUT_PLAIN:
        it.channels = values;
        it.pixels = 1;
        break;
    default: break; /* NHWC */
    }
    return it;
}

static void turn_blocks(void *context, int thread, int threads) {
    const turn_job *job = context;
    const gg_cpu_layout *kernels = job->convert->kernels->layout;
    const int64_t blocks = gg_lanes_padded(job->images.channels) / GG_LANES;
    size_t begin, end;
    gg_parallel_split((size_t)(blocks * job->images.pixels), 1, thread, threads, &begin, &end);
    (job->convert->narrows ? kernels->narrow_images : kernels->widen_images)(&job->images, (int64_t)begin,
                                                                             (int64_t)end);
}

/* For transposed images a ReLU is applied before or after, to adjacent numbers. */
static void convert(gg_device *device, convert_job job) {
    const int threads = gg_cpu_threads_for(device, job.side->narrow);
    job.kernels = gg_cpu_device_kernels(device);
    if (!job.side->turned || job.mask != NULL) gg_parallel_run(threads, convert_pieces, &job);
    if (!job.side->turned) return;
    turn_job turn = {.convert = &job, .images = images_of(&job)};
    gg_parallel_run(threads, turn_blocks, &turn);
    if (job.relu) gg_parallel_run(threads, convert_pieces, &job);
}

/* mask: bfloat16; numbers become 0 where it is not positive, in `narrow` too. NULL means no mask, and `narrow` is not
 * written. */
static void widen(gg_device *device, const widened_side *side, const uint16_t *mask, uint16_t *narrow, float *wide) {
    convert(device, (convert_job){.side = side, .mask = mask, .narrow = narrow, .wide = wide});
}

/* relu: of the narrowed numbers. */
static void narrow(gg_device *device, const widened_side *side, bool relu, float *wide, uint16_t *narrow) {
    convert(device, (convert_job){.side = side, .narrows = true, .relu = relu, .narrow = narrow, .wide = wide});
}

/* ---- the operation ---- */

/* inner, data: float32 operations of a part of the batch, without an activation. With several parts they may differ. */
typedef struct widened_op {
    gg_op head;
    gg_device *device;
    gg_op *inner, *data;
    int64_t parts;                           /* more than 1: of a convolution */
    widened_side in, out;                    /* of a part */
    size_t weights, biases;                  /* of a convolution */
    size_t input, output, error, grad_input; /* offsets in scratch, in bytes */
    size_t gradient;                         /* with several parts: gradients of the weights, then of the biases */
    bool keeps;                              /* the weights' pass leaves the error for the same operation's data pass */
} widened_op;

/* The input, which is not written. */
static float *widen_input(const widened_op *op, const gg_op_args *args) {
    float *wide = (float *)((char *)args->scratch + op->input);
    widen(op->device, &op->in, NULL, (uint16_t *)(uintptr_t)args->input[0], wide);
    return wide;
}

/* Widens an array of the output's shape. masked: also masks `from` in place, which makes it the error before a ReLU. */
static float *widen_outputs(const widened_op *op, const gg_op_args *args, const void *from, size_t offset,
                            bool masked) {
    float *wide = (float *)((char *)args->scratch + offset);
    widen(op->device, &op->out, masked ? args->output : NULL, (uint16_t *)(uintptr_t)from, wide);
    return wide;
}

static gg_op_args args_of_part(const widened_op *op, const gg_op_args *args, int64_t part) {
    const size_t in = (size_t)part * op->in.narrow, out = (size_t)part * op->out.narrow;
    gg_op_args own = *args;
    if (part == 0) return own;
    if (args->input[0] != NULL) own.input[0] = (const uint16_t *)args->input[0] + in;
    if (args->output != NULL) own.output = (uint16_t *)args->output + out;
    if (args->grad_output != NULL) own.grad_output = (uint16_t *)args->grad_output + out;
    if (args->grad_input[0] != NULL) own.grad_input[0] = (uint16_t *)args->grad_input[0] + in;
    return own;
}

typedef gg_status (*part_fn)(const widened_op *op, const gg_op_args *args, int64_t part);

static gg_status run_parts(gg_op *head, const gg_op_args *args, part_fn run) {
    const widened_op *op = (const widened_op *)head;
    for (int64_t part = 0; part < op->parts; ++part) {
        const gg_op_args own = args_of_part(op, args, part);
        GG_TRY(run(op, &own, part));
    }
    return GG_OK;
}

static gg_status widened_prepare(gg_op *head, const gg_op_args *args, gg_pass pass) {
    const widened_op *op = (widened_op *)head;
    return gg_op_prepare(pass == GG_PASS_DATA ? op->data : op->inner, args, pass);
}

static gg_status forward_part(const widened_op *op, const gg_op_args *args, int64_t part) {
    gg_op_args wide = *args;
    float *output = (float *)((char *)args->scratch + op->output);
    wide.input[0] = widen_input(op, args);
    wide.output = output;
    (void)part;
    GG_TRY(gg_op_forward(op->inner, &wide));
    narrow(op->device, &op->out, op->head.desc.activation == GG_ACTIVATION_RELU, output, args->output);
    return GG_OK;
}

static gg_status widened_forward(gg_op *head, const gg_op_args *args) { return run_parts(head, args, forward_part); }

/* Arguments of the float32 operation that forward reads. */
static void widen_forward(const widened_op *op, const gg_op_args *args, gg_op_args *wide) {
    if (op->inner->backward_needs_input != 0) wide->input[0] = widen_input(op, args);
    if (op->inner->backward_needs_output) wide->output = widen_outputs(op, args, args->output, op->output, false);
}

/* Places the parameter gradients one after the other in scratch. */
static void place_gradient(const widened_op *op, const gg_op_args *args, float *gradient[2]) {
    gradient[GG_PARAMETER_WEIGHT] = (float *)((char *)args->scratch + op->gradient);
    gradient[GG_PARAMETER_BIAS] = gradient[GG_PARAMETER_WEIGHT] + (op->weights + GG_LANES - 1) / GG_LANES * GG_LANES;
}

static gg_status weights_part(const widened_op *op, const gg_op_args *args, int64_t part) {
    const gg_op_desc *desc = &op->head.desc;
    const gg_cpu_elementwise *kernels = gg_cpu_device_kernels(op->device)->elementwise;
    gg_op_args wide = *args;
    float *own[2];
    widen_forward(op, args, &wide);
    wide.grad_output = widen_outputs(op, args, args->grad_output, op->error, desc->activation == GG_ACTIVATION_RELU);
    wide.grad_input[0] = NULL;
    place_gradient(op, args, own);
    if (part > 0) wide.gradient = own;
    GG_TRY(op->inner->type->backward_weights(op->inner, &wide));
    if (part == 0) return GG_OK;
    float *const *sum = args->gradient;
    kernels->add(op->weights, sum[GG_PARAMETER_WEIGHT], own[GG_PARAMETER_WEIGHT], sum[GG_PARAMETER_WEIGHT]);
    if (desc->bias) kernels->add(op->biases, sum[GG_PARAMETER_BIAS], own[GG_PARAMETER_BIAS], sum[GG_PARAMETER_BIAS]);
    return GG_OK;
}

static gg_status widened_weights(gg_op *head, const gg_op_args *args) { return run_parts(head, args, weights_part); }

static gg_status data_part(const widened_op *op, const gg_op_args *args, int64_t part) {
    gg_op_args wide = *args;
    float *grad_input = (float *)((char *)args->scratch + op->grad_input);
    if (op->keeps) {
        wide.grad_output = (char *)args->scratch + op->error;
    } else {
        if (op->inner->type->backward_weights == NULL) widen_forward(op, args, &wide);
        wide.grad_output = widen_outputs(op, args, args->grad_output, op->error, false);
    }
    if (args->grad_input[0] != NULL) wide.grad_input[0] = grad_input;
    (void)part;
    GG_TRY(op->data->type->backward_data(op->data, &wide));
    if (args->grad_input[0] != NULL) narrow(op->device, &op->in, false, grad_input, args->grad_input[0]);
    return GG_OK;
}

static gg_status widened_data(gg_op *head, const gg_op_args *args) { return run_parts(head, args, data_part); }

static void widened_compile(gg_op *head) {
    const widened_op *op = (const widened_op *)head;
    gg_op_compile(op->inner);
    if (op->data != op->inner) gg_op_compile(op->data);
}

static void widened_destroy(gg_op *head) {
    widened_op *op = (widened_op *)head;
    if (op->data != op->inner) gg_op_destroy(op->data);
    gg_op_destroy(op->inner);
    gg_free(op);
}

/* Parameter gradients in a pass of their own, or together with the input gradient. */
static const gg_op_class widened_class = {.prepare = widened_prepare,
                                          .forward = widened_forward,
                                          .backward_weights = widened_weights,
                                          .backward_data = widened_data,
                                          .compile = widened_compile,
                                          .destroy = widened_destroy};
static const gg_op_class widened_class_at_once = {.prepare = widened_prepare,
                                                  .forward = widened_forward,
                                                  .backward_data = widened_data,
                                                  .compile = widened_compile,
                                                  .destroy = widened_destroy};

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* Reserves `count` float32 in scratch, after all other data. */
static size_t lay_out_numbers(size_t *bytes, size_t count) {
    const size_t at = *bytes;
    *bytes += gg_aligned(count * sizeof(float) + GG_READ_BEHIND);
    return at;
}

/* Data of later passes reuses memory, unless both are read together. */
static void lay_out_scratch(widened_op *op) {
    const gg_op *inner = op->inner;
    const size_t most = larger(inner->scratch_bytes, op->data->scratch_bytes);
    size_t bytes = gg_aligned(most);
    op->input = lay_out_numbers(&bytes, op->in.wide);
    op->output = lay_out_numbers(&bytes, op->out.wide);
    op->error = inner->backward_needs_output ? lay_out_numbers(&bytes, op->out.wide) : op->output;
    op->grad_input = inner->type->backward_weights == NULL ? lay_out_numbers(&bytes, op->in.wide) : op->input;
    if (op->parts > 1 && op->head.desc.training)
        op->gradient = lay_out_numbers(&bytes, op->weights + GG_LANES + op->biases);
    op->head.scratch_bytes = bytes;
}

static gg_status widened_check(const gg_op_desc *desc) {
    if (desc->inputs != 1 || desc->dtype != GG_BFLOAT16)
        return gg_fail(GG_ERROR_UNSUPPORTED, "%s of %d inputs in %s has no widened form", gg_op_kind_name(desc->kind),
                       desc->inputs, gg_dtype_name(desc->dtype));
    if (desc->activation != GG_ACTIVATION_NONE && desc->activation != GG_ACTIVATION_RELU)
        return gg_fail(GG_ERROR_UNSUPPORTED, "%s with activation %d has no widened form", gg_op_kind_name(desc->kind),
                       (int)desc->activation);
    return GG_OK;
}

/* desc of the float32 operation. */
static gg_op_desc wide_desc(const gg_op_desc *desc) {
    const gg_algorithm unturned = gg_conv_unturned(desc->algorithm);
    gg_op_desc wide = *desc;
    wide.dtype = wide.offered[0].dtype = GG_FLOAT32;
    wide.activation = GG_ACTIVATION_NONE;
    if (unturned != GG_ALGORITHM_COUNT) {
        wide.algorithm = unturned;
        wide.offered[0].layout = GG_LAYOUT_BATCH_LAST;
    }
    if (wide.algorithm == GG_ALGORITHM_WIDENED) wide.algorithm = GG_ALGORITHM_DIRECT;
    return wide;
}

static widened_side side_of(const gg_op *inner, const gg_shape *shape, gg_format narrow, gg_format wide) {
    const int64_t samples = inner->desc.batch;
    return (widened_side){.shape = *shape,
                          .layout = narrow.layout,
                          .turned = wide.layout == GG_LAYOUT_BATCH_LAST,
                          .samples = samples,
                          .narrow = gg_format_bytes(narrow, shape, samples) / sizeof(uint16_t),
                          .wide = gg_format_bytes(wide, shape, samples) / sizeof(float)};
}

/* layout: of the bfloat16 input and output; NULL means the float32 operation's. */
static gg_status create_in_layouts(gg_device *device, const gg_op_desc *desc, gg_cpu_create_fn create,
                                   const gg_layout layout[2], gg_op **out) {
    gg_status status = GG_OK;
    gg_op *inner = NULL, *data = NULL;
    void *block = NULL;
    const gg_op_desc wide = wide_desc(desc);
    int64_t parts = parts_of(desc);
    *out = NULL;
    GG_TRY_CLEANUP(widened_check(desc));
    if (layout != NULL && parts > 1 && desc->batch / parts % GG_LANES != 0)
        GG_FAIL_CLEANUP(GG_ERROR_UNSUPPORTED, "a part of %lld samples would not fill vectors",
                        (long long)(desc->batch / parts));
    GG_TRY_CLEANUP(create_parts(device, &wide, create, &parts, &inner, &data));
    const bool lanes = inner->input[0].layout == GG_LAYOUT_BATCH_LAST || inner->output.layout == GG_LAYOUT_BATCH_LAST;
    if (lanes != (layout != NULL))
        GG_FAIL_CLEANUP(GG_ERROR_UNSUPPORTED, "bfloat16 does not lie %s", gg_layout_name(GG_LAYOUT_BATCH_LAST));
    GG_TRY_CLEANUP(gg_calloc(1, sizeof(widened_op), "an operation", &block));
    widened_op *op = block;
    gg_op *head = &op->head;
    head->type = inner->type->backward_weights != NULL ? &widened_class : &widened_class_at_once;
    head->backend = inner->backend;
    head->desc = *desc;
    head->input[0] = (gg_format){GG_BFLOAT16, layout != NULL ? layout[0] : inner->input[0].layout};
    head->output = (gg_format){GG_BFLOAT16, layout != NULL ? layout[1] : inner->output.layout};
    head->prepared_bytes = larger(inner->prepared_bytes, data->prepared_bytes);
    head->prepared_once = data == inner && inner->prepared_once;
    head->saved_bytes = inner->saved_bytes;
    head->backward_needs_input = inner->backward_needs_input;
    head->backward_needs_output = inner->backward_needs_output;
    op->device = device;
    op->inner = inner;
    op->data = data;
    op->parts = parts;
    op->in = side_of(inner, &inner->desc.input[0], head->input[0], inner->input[0]);
    op->out = side_of(inner, &inner->desc.output, head->output, inner->output);
    if (desc->kind == GG_OP_CONV2D) {
        op->weights = (size_t)weights_of(desc);
        op->biases = (size_t)desc->output.size[0];
    }
    if (desc->training && inner->type->backward_weights != NULL && gg_op_has_pass(desc, GG_PASS_WEIGHTS)) {
        op->keeps = parts == 1;
        if (desc->activation == GG_ACTIVATION_RELU) head->backward_needs_output = true;
    }
    lay_out_scratch(op);
    *out = head;
    inner = data = NULL;
cleanup:
    if (data != inner) gg_op_destroy(data);
    gg_op_destroy(inner);
    return status;
}

gg_status gg_cpu_widened_create(gg_device *device, const gg_op_desc *desc, gg_cpu_create_fn create, gg_op **out) {
    return create_in_layouts(device, desc, create, NULL, out);
}

gg_status gg_cpu_turned_create(gg_device *device, const gg_op_desc *desc, gg_layout input, gg_layout output,
                               gg_cpu_create_fn create, gg_op **out) {
    const gg_layout layout[2] = {input, output};
    *out = NULL;
    for (int i = 0; i < 2; ++i)
        if (layout[i] != GG_LAYOUT_PLAIN && layout[i] != GG_LAYOUT_NHWC && layout[i] != GG_LAYOUT_CHANNELS16)
            return gg_fail(GG_ERROR_UNSUPPORTED, "images that lie %s are not turned", gg_layout_name(layout[i]));
    return create_in_layouts(device, desc, create, layout, out);
}
