/* Weight gradient of a linear layer, or any run of its elements. */
#include "cuda/common.cuh"

namespace {

constexpr int TILE = 32;   /* of the weight: rows and columns of a block's tile; and samples at a time */
constexpr int THREADS = 8; /* for a column of the tile; each has TILE/THREADS of its elements */
constexpr int CHUNK = 256; /* samples of one float32 sum */

/* Adds each element's products in the order of the samples. If the run has fewer rows than a tile, or begins inside
 * one, elements outside of the run are not written. */
__global__ void __launch_bounds__(TILE *THREADS)
    weight_gradient_kernel(gg_weight_gradient_args a, int64_t first_row, int64_t rows) {
    GG_SHARED(float, error, [TILE][TILE + 1]);
    GG_SHARED(float, input, [TILE][TILE + 1]);
    const int64_t across = (a.in + TILE - 1) / TILE, tiles = across * ((rows + TILE - 1) / TILE);
    const int x = (int)threadIdx.x, y = (int)threadIdx.y;
    for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
        const int64_t row = t / across * TILE, column = t % across * TILE; /* the row counts from first_row on */
        float total[TILE / THREADS] = {}, sum[TILE / THREADS] = {};
        for (int64_t sample = 0; sample < a.batch; sample += TILE) {
            for (int k = y; k < TILE; k += THREADS) {
                const int64_t s = sample + k;
                error[k][x] = s < a.batch && row + x < rows ? a.error[s * a.error_row + row + x] : 0.0f;
                input[k][x] = s < a.batch && column + x < a.in ? a.input[s * a.in + column + x] : 0.0f;
            }
            __syncthreads();
            const int many = a.batch - sample < TILE ? (int)(a.batch - sample) : TILE;
            for (int s = 0; s < many; ++s)
#pragma unroll
                for (int k = 0; k < TILE / THREADS; ++k)
                    sum[k] = __fmaf_rn(error[s][y + k * THREADS], input[s][x], sum[k]);
            if ((sample + TILE) % CHUNK == 0 || sample + TILE >= a.batch)
#pragma unroll
                for (int k = 0; k < TILE / THREADS; ++k) {
                    total[k] = __fadd_rn(total[k], sum[k]);
                    sum[k] = 0;
                }
            __syncthreads();
        }
#pragma unroll
        for (int k = 0; k < TILE / THREADS; ++k) {
            const int64_t r = row + y + k * THREADS, c = column + x, i = (first_row + r) * a.in + c;
            if (r < rows && c < a.in && i >= a.first && i < a.first + a.count) a.out[i - a.first] = total[k];
        }
    }
}

} // namespace

void gg_cuda_weight_gradient(gg_cuda_stream stream, const gg_weight_gradient_args *args) {
    if (args->count == 0) return;
    const int64_t first_row = args->first / args->in, rows = (args->first + args->count - 1) / args->in - first_row + 1;
    const int64_t tiles = ((args->in + TILE - 1) / TILE) * ((rows + TILE - 1) / TILE);
    GG_LAUNCH(weight_gradient_kernel, (unsigned)(tiles < GG_MAX_BLOCKS ? tiles : GG_MAX_BLOCKS), dim3(TILE, THREADS),
              0, stream, *args, first_row, rows);
}
