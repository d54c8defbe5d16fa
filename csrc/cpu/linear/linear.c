/* Linear layer on BATCH_LAST activations. A sample's values of any shape are rows of lanes, so
 *
 *     y = W x + b,   dx = W^T dy
 *
 * are matrix products that read weights and activations in place. dW = dy x^T sums over lanes, so x is packed first. If
 * gg_sgemm sums a batch in parts, both are transposed instead. Any part of dW must have the bits of
 * gg_cpu_weight_gradient. If packed products are faster, their operands are packed from this layout. */
#include "base/parallel.h"
#include "cpu/gemm/gemm_kernels.h"
#include "cpu/gemm/packed_products.h"
#include "cpu/linear/linear_private.h"
#include "cpu/native.h"
#include "ops/backend.h"

typedef struct linear_op {
    gg_op op;
    const gg_gemm_kernels *kernels;
    gg_isa isa;                                      /* the device's level; the kernels' may be lower */
    const gg_packed_products *packed[GG_PASS_COUNT]; /* NULL means the pass is by multiply-adds */
    int threads;
    gg_native_features features;   /* columns: lanes; summed: samples */
    int64_t in_padded, out_padded; /* rows of the transposed activations */
    bool packs;                    /* dW by packed products or gg_sgemm: nothing is transposed */
} linear_op;

typedef struct job {
    const linear_op *linear;
    const gg_op_args *args;
} job;

static void split_blocks(const linear_op *linear, int64_t rows, int thread, int threads, int64_t *begin, int64_t *end) {
    size_t from, to;
    gg_parallel_split((size_t)gg_block_count(rows, linear->kernels->tile_rows), 1, thread, threads, &from, &to);
    *begin = (int64_t)from;
    *end = (int64_t)to;
}

static void native_linear_forward_part(void *context, int thread, int threads) {
    const job *j = context;
    const linear_op *linear = j->linear;
    const gg_multiply product = {
        .m = linear->features.out,
        .n = linear->features.columns,
        .k = linear->features.in,
        .a = j->args->parameter[GG_PARAMETER_WEIGHT],
        .a_row = linear->features.in,
        .a_step = 1,
        .b = j->args->input[0],
        .b_row = linear->features.columns,
        .c = j->args->output,
        .c_row = linear->features.columns,
        .bias = linear->op.desc.bias ? j->args->parameter[GG_PARAMETER_BIAS] : NULL,
        .relu = linear->features.relu,
    };
    int64_t begin, end;
    split_blocks(linear, linear->features.out, thread, threads, &begin, &end);
    if (begin < end) linear->kernels->multiply(&product, begin, end);
}

static float *turned_input(const gg_op_args *args) { return args->scratch; }

static float *turned_gradient(const linear_op *linear, const gg_op_args *args) {
    return (float *)args->scratch + linear->features.summed * linear->in_padded;
}

/* Applies the activation's gradient, sums the bias gradient, then transposes dy and x for the weight gradient:
 * [sample][value]. */
static void turn_part(void *context, int thread, int threads) {
    const job *j = context;
    const linear_op *linear = j->linear;
    const gg_op_args *args = j->args;
    const int64_t lanes = linear->features.columns;
    size_t begin, end;
    gg_parallel_split((size_t)linear->features.out, GG_LANES, thread, threads, &begin, &end);
    gg_native_mask_rows(linear->kernels, &linear->op, args, 0, (int64_t)begin, (int64_t)end);
    if (args->gradient[GG_PARAMETER_WEIGHT] == NULL || linear->packs) return;
    if (begin < end) {
        const int64_t rows = (int64_t)(end - begin);
        const int64_t padded = (int64_t)end == linear->features.out ? linear->out_padded - (int64_t)begin : rows;
        linear->kernels->transpose(rows, linear->features.summed,
                                   (const float *)args->grad_output + (int64_t)begin * lanes, lanes, padded,
                                   turned_gradient(linear, args) + begin, linear->out_padded);
    }
    gg_parallel_split((size_t)linear->features.in, GG_LANES, thread, threads, &begin, &end);
    if (begin < end) {
        const int64_t rows = (int64_t)(end - begin);
        const int64_t padded = (int64_t)end == linear->features.in ? linear->in_padded - (int64_t)begin : rows;
        linear->kernels->transpose(rows, linear->features.summed,
                                   (const float *)args->input[0] + (int64_t)begin * lanes, lanes, padded,
                                   turned_input(args) + begin, linear->in_padded);
    }
}

gg_sgemm gg_native_linear_product(const gg_native_features *f, gg_pass pass, const gg_op_args *args) {
    if (pass == GG_PASS_WEIGHTS)
        return (gg_sgemm){.m = f->out,
                          .n = f->in,
                          .k = f->summed,
                          .a = args->grad_output,
                          .b = args->input[0],
                          .c = args->gradient != NULL ? args->gradient[GG_PARAMETER_WEIGHT] : NULL,
                          .lda = f->columns,
                          .ldb = f->columns,
                          .ldc = f->in,
                          .transpose_b = true};
    const bool forward = pass == GG_PASS_FORWARD;
    return (gg_sgemm){.m = forward ? f->out : f->in,
                      .n = f->columns,
                      .k = forward ? f->in : f->out,
                      .a = args->parameter[GG_PARAMETER_WEIGHT],
                      .b = forward ? args->input[0] : args->grad_output,
                      .c = forward ? args->output : args->grad_input[0],
                      .lda = f->in,
                      .ldb = f->columns,
                      .ldc = f->columns,
                      .transpose_a = !forward,
                      .by_columns = true,
                      .relu = forward && f->relu};
}

static void native_linear_weights_part(void *context, int thread, int threads) {
    const job *j = context;
    const linear_op *linear = j->linear;
    const gg_multiply product = {
        .m = linear->features.out,
        .n = linear->features.in,
        .k = linear->features.summed,
        .a = turned_gradient(linear, j->args),
        .a_row = 1,
        .a_step = linear->out_padded,
        .b = turned_input(j->args),
        .b_row = linear->in_padded,
        .c = j->args->gradient[GG_PARAMETER_WEIGHT],
        .c_row = linear->features.in,
    };
    int64_t begin, end;
    split_blocks(linear, linear->features.out, thread, threads, &begin, &end);
    if (begin < end) linear->kernels->multiply(&product, begin, end);
}

static void data_part(void *context, int thread, int threads) {
    const job *j = context;
    const linear_op *linear = j->linear;
    const gg_multiply product = {
        .m = linear->features.in,
        .n = linear->features.columns,
        .k = linear->features.out,
        .a = j->args->parameter[GG_PARAMETER_WEIGHT],
        .a_row = 1,
        .a_step = linear->features.in,
        .b = j->args->grad_output,
        .b_row = linear->features.columns,
        .c = j->args->grad_input[0],
        .c_row = linear->features.columns,
    };
    int64_t begin, end;
    split_blocks(linear, linear->features.in, thread, threads, &begin, &end);
    if (begin < end) linear->kernels->multiply(&product, begin, end);
}

/* Runs a pass by packed products; false means that it uses none. row_bias NULL means none. */
static bool run_packed(const linear_op *linear, gg_pass pass, const gg_sgemm *product, const float *row_bias,
                       void *scratch) {
    const gg_packed_products *packed = linear->packed[pass];
    if (packed != NULL) packed->run(linear->isa, product, row_bias, linear->threads, scratch);
    return packed != NULL;
}

static gg_status native_linear_forward(gg_op *op, const gg_op_args *args) {
    job j = {.linear = (const linear_op *)op, .args = args};
    const gg_sgemm product = gg_native_linear_product(&j.linear->features, GG_PASS_FORWARD, args);
    const float *bias = op->desc.bias ? args->parameter[GG_PARAMETER_BIAS] : NULL;
    if (!run_packed(j.linear, GG_PASS_FORWARD, &product, bias, args->scratch))
        gg_parallel_run(j.linear->threads, native_linear_forward_part, &j);
    return GG_OK;
}

static gg_status native_linear_backward_weights(gg_op *op, const gg_op_args *args) {
    job j = {.linear = (const linear_op *)op, .args = args};
    const linear_op *linear = j.linear;
    gg_parallel_run(linear->threads, turn_part, &j);
    if (args->gradient[GG_PARAMETER_WEIGHT] == NULL) return GG_OK;
    const gg_sgemm product = gg_native_linear_product(&linear->features, GG_PASS_WEIGHTS, args);
    if (run_packed(linear, GG_PASS_WEIGHTS, &product, NULL, args->scratch)) return GG_OK;
    if (linear->packs) gg_sgemm_run(linear->kernels->isa, &product, linear->threads, args->scratch);
    else gg_parallel_run(linear->threads, native_linear_weights_part, &j);
    return GG_OK;
}

static gg_status native_linear_backward_data(gg_op *op, const gg_op_args *args) {
    job j = {.linear = (const linear_op *)op, .args = args};
    if (!op->desc.input_grad || args->grad_input[0] == NULL) return GG_OK;
    const gg_sgemm product = gg_native_linear_product(&j.linear->features, GG_PASS_DATA, args);
    if (!run_packed(j.linear, GG_PASS_DATA, &product, NULL, args->scratch))
        gg_parallel_run(j.linear->threads, data_part, &j);
    return GG_OK;
}

static const gg_op_class linear_class = {.forward = native_linear_forward,
                                         .backward_weights = native_linear_backward_weights,
                                         .backward_data = native_linear_backward_data,
                                         .destroy = gg_native_op_free};

/* Chooses how each pass is computed, and its scratch. */
static void choose_products(linear_op *linear) {
    const gg_op_args none = {.parameter = (const float *const[]){NULL, NULL}};
    linear->packs = linear->features.summed <= GG_SGEMM_TERMS;
    for (int pass = 0; pass < (linear->op.desc.training ? GG_PASS_COUNT : 1); ++pass) {
        const gg_sgemm product = gg_native_linear_product(&linear->features, (gg_pass)pass, &none);
        const bool weights = pass == GG_PASS_WEIGHTS;
        const gg_packed_products *packed =
            weights ? gg_packed_gradient_for(linear->isa, linear->features.summed, linear->features.in)
                    : gg_packed_products_for(linear->isa, &product);
        size_t bytes = 0;
        linear->packed[pass] = packed;
        if (packed != NULL) {
            bytes = packed->scratch(&product, linear->threads);
        } else if (weights && linear->packs) {
            bytes = gg_sgemm_scratch(linear->kernels->isa, &product, linear->threads);
        } else if (weights) {
            bytes = (size_t)(linear->features.summed * (linear->in_padded + linear->out_padded)) * sizeof(float);
        }
        if (bytes > linear->op.scratch_bytes) linear->op.scratch_bytes = bytes;
    }
    linear->packs = linear->packs || linear->packed[GG_PASS_WEIGHTS] != NULL;
}

gg_status gg_native_linear_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    *out = NULL;
    if (desc->inputs == 1 && desc->input[0].dims > 1) {
        return gg_native_linear_rows_create(device, desc, out);
    }
    if (desc->inputs != 1 || desc->batch < 1)
        return gg_fail(GG_ERROR_ARGUMENT, "a linear layer has one input and a batch of at least 1, not %d and %lld",
                       desc->inputs, (long long)desc->batch);
    if (desc->activation == GG_ACTIVATION_GELU)
        return gg_fail(GG_ERROR_UNSUPPORTED, "a linear layer has a GELU only over positions");
    const gg_gemm_kernels *kernels = gg_cpu_device_kernels(device)->gemm;
    gg_op *op;
    GG_TRY(gg_native_op_create(desc, &linear_class, sizeof(linear_op), &op));
    linear_op *linear = (linear_op *)op;
    linear->op.backward_needs_input = 1;
    linear->op.backward_needs_output = desc->activation == GG_ACTIVATION_RELU;
    linear->kernels = kernels;
    linear->isa = device->isa;
    linear->threads = device->threads;
    linear->features = (gg_native_features){.in = gg_shape_count(&desc->input[0]),
                                            .out = gg_shape_count(&desc->output),
                                            .columns = gg_lanes_padded(desc->batch),
                                            .summed = desc->batch,
                                            .relu = desc->activation == GG_ACTIVATION_RELU};
    /* Multiples of a tile. Multiples of 256 get a tile more, because rows at such distances share few cache sets. */
    linear->in_padded = (linear->features.in + 31) / 32 * 32;
    linear->out_padded = (linear->features.out + 15) / 16 * 16;
    if (linear->in_padded % 256 == 0) linear->in_padded += 32;
    if (linear->out_padded % 256 == 0) linear->out_padded += 16;
    choose_products(linear);
    *out = &linear->op;
    return GG_OK;
}
