/* Sums over arenas and over rows. Their order depends on sizes alone. */
#include "cuda/common.cuh"

namespace {

/* Elements that justify another block. */
constexpr int64_t ELEMENTS_OF_BLOCK = 4096;

unsigned partials_for(size_t n) {
    const int64_t useful = (int64_t)n / ELEMENTS_OF_BLOCK;
    return (unsigned)(useful < 1 ? 1 : useful < GG_CUDA_PARTIALS ? useful : GG_CUDA_PARTIALS);
}

struct squares_of {
    const float *a, *b; /* b: NULL, or subtracted */
    __device__ __forceinline__ double operator()(int64_t i) const {
        const double d = b != nullptr ? (double)a[i] - (double)b[i] : (double)a[i];
        return __dmul_rn(d, d);
    }
};

/* 1 for NaN and infinity. */
struct strangeness_of {
    const float *a;
    __device__ __forceinline__ double operator()(int64_t i) const {
        return (__float_as_uint(a[i]) & 0x7f800000u) == 0x7f800000u ? 1.0 : 0.0;
    }
};

/* One partial sum for each block. Four sums a thread, so that additions need not wait for each other. */
template <class F> __global__ void __launch_bounds__(GG_BLOCK) partial_kernel(int64_t n, F f, double *partial) {
    double sum[4] = {0, 0, 0, 0};
    const int64_t step = gg_thread_count();
    int64_t i = gg_thread_number();
    for (; i + 3 * step < n; i += 4 * step)
#pragma unroll
        for (int k = 0; k < 4; ++k) sum[k] = __dadd_rn(sum[k], f(i + k * step));
    for (; i < n; i += step) sum[0] = __dadd_rn(sum[0], f(i));
    const double all = gg_block_sum(__dadd_rn(__dadd_rn(sum[0], sum[1]), __dadd_rn(sum[2], sum[3])));
    if (threadIdx.x == 0) partial[blockIdx.x] = all;
}

__device__ __forceinline__ double sum_of_partials(unsigned n, const double *partial) {
    double sum = 0;
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) sum += partial[i];
    return gg_block_sum(sum);
}

__global__ void __launch_bounds__(GG_BLOCK) total_kernel(unsigned n, const double *partial, double *result) {
    const double all = sum_of_partials(n, partial);
    if (threadIdx.x == 0) *result = all;
}

__global__ void __launch_bounds__(GG_BLOCK) none_kernel(unsigned n, const double *partial, int32_t *result) {
    const double all = sum_of_partials(n, partial);
    if (threadIdx.x == 0) *result = all == 0.0 ? 1 : 0;
}

/* Max rows of one float32 sum: one sum over all would lose digits. */
constexpr int SUM_ROWS = 256;
constexpr int SUM_COLUMNS = 32, SUM_THREADS = 16; /* of a block: columns, and threads for each */

__global__ void __launch_bounds__(SUM_COLUMNS *SUM_THREADS)
    columns_kernel(int64_t rows, int64_t columns, const float *in, float *out) {
    GG_SHARED(double, part, [SUM_THREADS][SUM_COLUMNS]);
    const int64_t column = (int64_t)blockIdx.x * SUM_COLUMNS + threadIdx.x;
    double total = 0;
    if (column < columns) {
        float sum = 0;
        int added = 0;
        for (int64_t row = threadIdx.y; row < rows; row += SUM_THREADS) {
            sum += in[row * columns + column];
            if (++added % SUM_ROWS != 0) continue;
            total += (double)sum;
            sum = 0;
        }
        total += (double)sum;
    }
    part[threadIdx.y][threadIdx.x] = total;
    __syncthreads();
    if (threadIdx.y == 0 && column < columns) {
        for (int i = 1; i < SUM_THREADS; ++i) total += part[i][threadIdx.x];
        out[column] = (float)total;
    }
}

} // namespace

void gg_cuda_sum_squares(gg_cuda_stream stream, size_t n, const float *a, const float *b, double *partial,
                         double *result) {
    const unsigned parts = partials_for(n);
    const squares_of f = {a, b};
    GG_LAUNCH((partial_kernel<squares_of>), parts, GG_BLOCK, 0, stream, (int64_t)n, f, partial);
    GG_LAUNCH(total_kernel, 1, GG_BLOCK, 0, stream, parts, partial, result);
}

void gg_cuda_all_finite(gg_cuda_stream stream, size_t n, const float *a, double *partial, int32_t *result) {
    const unsigned parts = partials_for(n);
    const strangeness_of f = {a};
    GG_LAUNCH((partial_kernel<strangeness_of>), parts, GG_BLOCK, 0, stream, (int64_t)n, f, partial);
    GG_LAUNCH(none_kernel, 1, GG_BLOCK, 0, stream, parts, partial, result);
}

void gg_cuda_column_sums(gg_cuda_stream stream, int64_t rows, int64_t columns, const float *in, float *out) {
    if (columns == 0) return;
    GG_LAUNCH(columns_kernel, (unsigned)((columns + SUM_COLUMNS - 1) / SUM_COLUMNS), dim3(SUM_COLUMNS, SUM_THREADS), 0,
              stream, rows, columns, in, out);
}
