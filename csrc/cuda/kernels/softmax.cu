/* SOFTMAX. A row that lies together is of a warp or a block; of rows side by side each thread has one. */
#include "cuda/kernels/nn.cuh"

/* ------------------------------------------------------------------------------------------ rows that lie together */

template <int GROUP> static __global__ void softmax_rows(int64_t rows, int64_t length, const float *in, float *out) {
    const int place = group_place<GROUP>();
    for (int64_t row = group_first<GROUP>(); row < rows; row += group_step<GROUP>()) {
        const float *x = in + row * length;
        float *y = out + row * length, top = -INFINITY;
        double sum = 0;
        for (int64_t i = place; i < length; i += GROUP) top = x[i] > top ? x[i] : top;
        top = group_max<GROUP>(top);
        for (int64_t i = place; i < length; i += GROUP) sum += (double)expf(x[i] - top);
        const float share = (float)(1 / group_sum<GROUP>(sum));
        for (int64_t i = place; i < length; i += GROUP) y[i] = expf(x[i] - top) * share;
    }
}

template <int GROUP>
static __global__ void softmax_rows_backward(int64_t rows, int64_t length, const float *output, const float *grad,
                                             float *out) {
    const int place = group_place<GROUP>();
    for (int64_t row = group_first<GROUP>(); row < rows; row += group_step<GROUP>()) {
        const float *y = output + row * length, *dy = grad + row * length;
        float *dx = out + row * length;
        double sum = 0;
        for (int64_t i = place; i < length; i += GROUP) sum += (double)y[i] * (double)dy[i];
        const float mean = (float)group_sum<GROUP>(sum);
        for (int64_t i = place; i < length; i += GROUP) dx[i] = y[i] * (dy[i] - mean);
    }
}

/* ------------------------------------------------------------------------------------------ rows side by side */

static __global__ void softmax_columns(gg_cuda_softmax_args a) {
    for (int64_t i = gg_thread_number(); i < a.outer * a.inner; i += gg_thread_count()) {
        const int64_t at = i / a.inner * a.length * a.inner + i % a.inner, end = at + a.length * a.inner;
        float top = a.input[at];
        double sum = 0;
        for (int64_t j = at + a.inner; j < end; j += a.inner) top = a.input[j] > top ? a.input[j] : top;
        for (int64_t j = at; j < end; j += a.inner) sum += (double)expf(a.input[j] - top);
        const float share = (float)(1 / sum);
        for (int64_t j = at; j < end; j += a.inner) a.output[j] = expf(a.input[j] - top) * share;
    }
}

static __global__ void softmax_columns_backward(gg_cuda_softmax_args a) {
    for (int64_t i = gg_thread_number(); i < a.outer * a.inner; i += gg_thread_count()) {
        const int64_t at = i / a.inner * a.length * a.inner + i % a.inner, end = at + a.length * a.inner;
        double sum = 0;
        for (int64_t j = at; j < end; j += a.inner) sum += (double)a.output[j] * (double)a.grad_output[j];
        const float mean = (float)sum;
        for (int64_t j = at; j < end; j += a.inner) a.grad_input[j] = a.output[j] * (a.grad_output[j] - mean);
    }
}

/* Rows of at most so many values are of a warp. */
enum { SHORT_ROW = 1024 };

void gg_cuda_softmax(gg_cuda_stream stream, const gg_cuda_softmax_args *args) {
    const int64_t rows = args->outer, length = args->length;
    const dim3 block(GG_BLOCK);
    if (args->inner > 1)
        GG_LAUNCH(softmax_columns, dim3(blocks_for(rows * args->inner, GG_BLOCK)), block, 0, stream, *args);
    else if (length <= SHORT_ROW)
        GG_LAUNCH((softmax_rows<WARP>), dim3(blocks_for(rows, GG_BLOCK / WARP)), block, 0, stream, rows, length,
                  args->input, args->output);
    else
        GG_LAUNCH((softmax_rows<GG_BLOCK>), dim3(blocks_for(rows, 1)), block, 0, stream, rows, length, args->input,
                  args->output);
}

void gg_cuda_softmax_backward(gg_cuda_stream stream, const gg_cuda_softmax_args *args) {
    const int64_t rows = args->outer, length = args->length;
    const dim3 block(GG_BLOCK);
    if (args->inner > 1)
        GG_LAUNCH(softmax_columns_backward, dim3(blocks_for(rows * args->inner, GG_BLOCK)), block, 0, stream, *args);
    else if (length <= SHORT_ROW)
        GG_LAUNCH((softmax_rows_backward<WARP>), dim3(blocks_for(rows, GG_BLOCK / WARP)), block, 0, stream, rows,
                  length, args->output, args->grad_output, args->grad_input);
    else
        GG_LAUNCH((softmax_rows_backward<GG_BLOCK>), dim3(blocks_for(rows, 1)), block, 0, stream, rows, length,
                  args->output, args->grad_output, args->grad_input);
}
