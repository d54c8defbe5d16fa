/* What convolutions over blocks of sixteen channels (CHANNELS16) do alike. */
#include "base/parallel.h"
#include "cpu/gemm_kernels.h"
#include "cpu/native/native.h"

typedef struct blocks_job {
    gg_device *device;
    const gg_op *op;
    const gg_op_args *args;
} blocks_job;

static void mask_blocks_part(void *context, int thread, int threads) {
    const blocks_job *j = context;
    const size_t n = gg_format_bytes(j->op->output, &j->op->desc.output, j->op->desc.batch) / sizeof(float);
    const float *y = j->args->output;
    float *dy = j->args->grad_output;
    size_t begin, end;
    gg_parallel_split(n, GG_LANES, thread, threads, &begin, &end);
    gg_cpu_device_kernels(j->device)->elementwise->relu_backward(end - begin, y + begin, dy + begin, dy + begin);
}

static void sum_blocks(const blocks_job *j) {
    const gg_op_desc *desc = &j->op->desc;
    const int64_t channels = desc->output.size[0], area = desc->output.size[1] * desc->output.size[2];
    const int64_t blocks = gg_block_count(channels, GG_LANES);
    for (int64_t b = 0; b < blocks; ++b) {
        double total[GG_LANES] = {0};
        for (int64_t n = 0; n < desc->batch; ++n) {
            _Alignas(64) float sum[GG_LANES];
            const float *dy = (const float *)j->args->grad_output + (n * blocks + b) * area * GG_LANES;
            gg_cpu_column_sums(j->device, area, GG_LANES, dy, GG_LANES, sum);
            for (int i = 0; i < GG_LANES; ++i) total[i] += (double)sum[i];
        }
        for (int64_t i = 0; i < GG_LANES && b * GG_LANES + i < channels; ++i)
            j->args->gradient[GG_PARAMETER_BIAS][b * GG_LANES + i] = (float)total[i];
    }
}

void gg_native_mask_blocks(gg_device *device, const gg_op *op, const gg_op_args *args) {
    blocks_job j = {device, op, args};
    if (op->desc.activation == GG_ACTIVATION_RELU) gg_parallel_run(device->threads, mask_blocks_part, &j);
    if (op->desc.bias) sum_blocks(&j);
}
