/* SOFTMAX. A warp or a block computes a contiguous row. A thread computes one of several rows side by side. */
#include "cuda/nn.cuh"

/* ------------------------------------------------------------------------------------------ rows that lie together */

template <class T, int GROUP> static __global__ void softmax_rows(int64_t rows, int64_t length, const T *in, T *out) {
    const int place = group_place<GROUP>();
    for (int64_t row = group_first<GROUP>(); row < rows; row += group_step<GROUP>()) {
        const T *x = in + row * length;
        T *y = out + row * length;
        float top = -INFINITY;
        double sum = 0;
        for (int64_t i = place; i < length; i += GROUP) {
            const float v = gg_load(x + i);
            top = v > top ? v : top;
        }
        top = group_max<GROUP>(top);
        for (int64_t i = place; i < length; i += GROUP) sum += (double)expf(gg_load(x + i) - top);
        const float share = (float)(1 / group_sum<GROUP>(sum));
        for (int64_t i = place; i < length; i += GROUP) gg_store(y + i, expf(gg_load(x + i) - top) * share);
    }
}

template <class T, int GROUP>
static __global__ void softmax_rows_backward(int64_t rows, int64_t length, const T *output, const T *grad, T *out) {
    const int place = group_place<GROUP>();
    for (int64_t row = group_first<GROUP>(); row < rows; row += group_step<GROUP>()) {
        const T *y = output + row * length, *dy = grad + row * length;
        T *dx = out + row * length;
        double sum = 0;
        for (int64_t i = place; i < length; i += GROUP) sum += (double)gg_load(y + i) * (double)gg_load(dy + i);
        const float mean = (float)group_sum<GROUP>(sum);
        for (int64_t i = place; i < length; i += GROUP) gg_store(dx + i, gg_load(y + i) * (gg_load(dy + i) - mean));
    }
}

/* ------------------------------------------------------------------------------------------ rows side by side */

template <class T> static __global__ void softmax_columns(gg_cuda_softmax_args a) {
    const T *x = (const T *)a.input;
    T *y = (T *)a.output;
    for (int64_t i = gg_thread_number(); i < a.outer * a.inner; i += gg_thread_count()) {
        const int64_t at = i / a.inner * a.length * a.inner + i % a.inner, end = at + a.length * a.inner;
        float top = gg_load(x + at);
        double sum = 0;
        for (int64_t j = at + a.inner; j < end; j += a.inner) {
            const float v = gg_load(x + j);
            top = v > top ? v : top;
        }
        for (int64_t j = at; j < end; j += a.inner) sum += (double)expf(gg_load(x + j) - top);
        const float share = (float)(1 / sum);
        for (int64_t j = at; j < end; j += a.inner) gg_store(y + j, expf(gg_load(x + j) - top) * share);
    }
}

template <class T> static __global__ void softmax_columns_backward(gg_cuda_softmax_args a) {
    const T *y = (const T *)a.output, *dy = (const T *)a.grad_output;
    T *dx = (T *)a.grad_input;
    for (int64_t i = gg_thread_number(); i < a.outer * a.inner; i += gg_thread_count()) {
        const int64_t at = i / a.inner * a.length * a.inner + i % a.inner, end = at + a.length * a.inner;
        double sum = 0;
        for (int64_t j = at; j < end; j += a.inner) sum += (double)gg_load(y + j) * (double)gg_load(dy + j);
        const float mean = (float)sum;
        for (int64_t j = at; j < end; j += a.inner) gg_store(dx + j, gg_load(y + j) * (gg_load(dy + j) - mean));
    }
}

/* Max values of a row that one warp computes. */
enum { SHORT_ROW = 1024 };

template <class T> static void softmax_of(gg_cuda_stream stream, const gg_cuda_softmax_args *args) {
    const int64_t rows = args->outer, length = args->length;
    const dim3 block(GG_BLOCK);
    const T *in = (const T *)args->input;
    T *out = (T *)args->output;
    if (args->inner > 1)
        GG_LAUNCH((softmax_columns<T>), dim3(blocks_for(rows * args->inner, GG_BLOCK)), block, 0, stream, *args);
    else if (length <= SHORT_ROW)
        GG_LAUNCH((softmax_rows<T, WARP>), dim3(blocks_for(rows, GG_BLOCK / WARP)), block, 0, stream, rows, length, in,
                  out);
    else GG_LAUNCH((softmax_rows<T, GG_BLOCK>), dim3(blocks_for(rows, 1)), block, 0, stream, rows, length, in, out);
}

template <class T> static void softmax_backward_of(gg_cuda_stream stream, const gg_cuda_softmax_args *args) {
    const int64_t rows = args->outer, length = args->length;
    const dim3 block(GG_BLOCK);
    const T *y = (const T *)args->output, *dy = (const T *)args->grad_output;
    T *dx = (T *)args->grad_input;
    if (args->inner > 1)
        GG_LAUNCH((softmax_columns_backward<T>), dim3(blocks_for(rows * args->inner, GG_BLOCK)), block, 0, stream,
                  *args);
    else if (length <= SHORT_ROW)
        GG_LAUNCH((softmax_rows_backward<T, WARP>), dim3(blocks_for(rows, GG_BLOCK / WARP)), block, 0, stream, rows,
                  length, y, dy, dx);
    else
        GG_LAUNCH((softmax_rows_backward<T, GG_BLOCK>), dim3(blocks_for(rows, 1)), block, 0, stream, rows, length, y,
                  dy, dx);
}

void gg_cuda_softmax(gg_cuda_stream stream, const gg_cuda_softmax_args *args) {
    if (args->dtype == GG_BFLOAT16) softmax_of<gg_bfloat16>(stream, args);
    else softmax_of<float>(stream, args);
}

void gg_cuda_softmax_backward(gg_cuda_stream stream, const gg_cuda_softmax_args *args) {
    if (args->dtype == GG_BFLOAT16) softmax_backward_of<gg_bfloat16>(stream, args);
    else softmax_backward_of<float>(stream, args);
}
