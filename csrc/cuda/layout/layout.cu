/* Samples into batches, and conversions between layouts. */
#include "cuda/common.cuh"

namespace {

constexpr int TILE = 32, TILE_ROWS = 8;

/* to[j*to_row + i] = from[i*from_row + j] for i < rows and j < columns; zeros for rows <= i < padded. */
__global__ void __launch_bounds__(TILE *TILE_ROWS)
    transpose_kernel(int64_t rows, int64_t columns, int64_t padded, const float *from, int64_t from_row, float *to,
                     int64_t to_row) {
    GG_SHARED(float, tile, [TILE][TILE + 1]);
    const int64_t tiles = (columns + TILE - 1) / TILE, all = tiles * ((padded + TILE - 1) / TILE);
    for (int64_t t = blockIdx.x; t < all; t += gridDim.x) {
        const int64_t first_row = t / tiles * TILE, first_column = t % tiles * TILE;
        for (int k = (int)threadIdx.y; k < TILE; k += TILE_ROWS) {
            const int64_t i = first_row + k, j = first_column + threadIdx.x;
            tile[k][threadIdx.x] = i < rows && j < columns ? from[i * from_row + j] : 0.0f;
        }
        __syncthreads();
        for (int k = (int)threadIdx.y; k < TILE; k += TILE_ROWS) {
            const int64_t i = first_row + threadIdx.x, j = first_column + k;
            if (i < padded && j < columns) to[j * to_row + i] = tile[threadIdx.x][k];
        }
        __syncthreads();
    }
}

void transpose_launch(gg_cuda_stream stream, int64_t rows, int64_t columns, int64_t padded, const float *from,
                      int64_t from_row, float *to, int64_t to_row) {
    const int64_t tiles = ((columns + TILE - 1) / TILE) * ((padded + TILE - 1) / TILE);
    if (tiles == 0) return;
    GG_LAUNCH(transpose_kernel, (unsigned)(tiles < GG_MAX_BLOCKS ? tiles : GG_MAX_BLOCKS), dim3(TILE, TILE_ROWS), 0,
              stream, rows, columns, padded, from, from_row, to, to_row);
}

int64_t padded_lanes(int64_t n) { return (n + GG_LANES - 1) / GG_LANES * GG_LANES; }

/* ------------------------------------------------------------------------------------------------ gather */

__device__ __forceinline__ int64_t gather_row(const gg_gather_args &a, int64_t sample) {
    return a.index != nullptr ? (int64_t)a.index[sample] : sample;
}

__device__ __forceinline__ float gather_scaled(const gg_gather_args &a, int64_t each, int64_t value, float element) {
    const int64_t run = a.runs > 0 ? value / each : 0;
    const float scale = a.runs > 0 ? a.scales[run] : a.scale, shift = a.runs > 0 ? a.scales[a.runs + run] : a.shift;
    return (gg_exact{scale} * gg_exact{element} + gg_exact{shift}).v;
}

template <class T> struct four {};
template <> struct four<uint8_t> { typedef uchar4 type; };
template <> struct four<int32_t> { typedef int4 type; };
template <> struct four<float> { typedef float4 type; };

/* N adjacent values of a sample, all of one run. */
template <class T, int N> struct gather_of {
    gg_gather_args a;
    int64_t each; /* values of a run */
    __device__ __forceinline__ void put(int64_t i, int64_t value, T element) const {
        if (a.wanted == GG_INT32) static_cast<int32_t *>(a.out)[i] = (int32_t)element;
        else if (a.wanted == GG_BFLOAT16)
            gg_store(static_cast<gg_bfloat16 *>(a.out) + i, gather_scaled(a, each, value, (float)element));
        else static_cast<float *>(a.out)[i] = gather_scaled(a, each, value, (float)element);
    }
    /* Element i of the batch and the following ones. */
    __device__ __forceinline__ void run(int64_t i) const {
        const int64_t sample = i / a.values, value = i % a.values;
        const T *from = static_cast<const T *>(a.rows) + gather_row(a, sample) * a.values + value;
        if (N == 4) {
            const typename four<T>::type v = *reinterpret_cast<const typename four<T>::type *>(from);
            if (a.wanted == GG_INT32) {
                *reinterpret_cast<int4 *>(static_cast<int32_t *>(a.out) + i) =
                    make_int4((int)v.x, (int)v.y, (int)v.z, (int)v.w);
            } else {
                const gg_pack<4> scaled = {
                    {gather_scaled(a, each, value, (float)v.x), gather_scaled(a, each, value, (float)v.y),
                     gather_scaled(a, each, value, (float)v.z), gather_scaled(a, each, value, (float)v.w)}};
                if (a.wanted == GG_BFLOAT16) gg_store_pack(static_cast<gg_bfloat16 *>(a.out) + i, scaled);
                else gg_store_pack(static_cast<float *>(a.out) + i, scaled);
            }
        } else {
            put(i, value, *from);
        }
    }
};

template <class T, int N> __global__ void __launch_bounds__(GG_BLOCK) gather_kernel(int64_t n, gather_of<T, N> f) {
    for (int64_t i = N * gg_thread_number(); i < n; i += N * gg_thread_count()) f.run(i);
}

/* Samples as lanes; missing samples give zeros. */
template <class T>
__global__ void __launch_bounds__(GG_BLOCK) gather_lanes_kernel(gg_gather_args a, int64_t each, int64_t padded) {
    for (int64_t i = gg_thread_number(); i < padded * a.values; i += gg_thread_count()) {
        const int64_t value = i / padded, sample = i % padded;
        float v = 0;
        if (sample < a.n) {
            const T element = static_cast<const T *>(a.rows)[gather_row(a, sample) * a.values + value];
            v = gather_scaled(a, each, value, (float)element);
        }
        static_cast<float *>(a.out)[i] = v;
    }
}

/* Images as NHWC with few channels: a thread has a pixel. */
template <class T, class To>
__global__ void __launch_bounds__(GG_BLOCK) gather_pixels_kernel(gg_gather_args a, int64_t each, int64_t area) {
    for (int64_t i = gg_thread_number(); i < a.n * area; i += gg_thread_count()) {
        const int64_t sample = i / area, at = i % area;
        const T *from = static_cast<const T *>(a.rows) + gather_row(a, sample) * a.values + at;
#pragma unroll 1
        for (int64_t c = 0; c < a.channels; ++c)
            gg_store(static_cast<To *>(a.out) + i * a.channels + c,
                     gather_scaled(a, each, c * area + at, (float)from[c * area]));
    }
}

template <class T> void gather_launch(gg_cuda_stream stream, const gg_gather_args *args) {
    const int64_t each = args->runs > 0 ? args->values / args->runs : args->values, n = args->n * args->values;
    if (args->layout == GG_LAYOUT_BATCH_LAST) {
        const int64_t padded = padded_lanes(args->n);
        GG_LAUNCH((gather_lanes_kernel<T>), gg_blocks_for(padded * args->values), GG_BLOCK, 0, stream, *args, each,
                  padded);
    } else if (args->layout == GG_LAYOUT_NHWC && args->channels > 1 && args->channels < args->values) {
        const int64_t area = args->values / args->channels;
        const unsigned blocks = gg_blocks_for(args->n * area);
        if (args->wanted == GG_BFLOAT16)
            GG_LAUNCH((gather_pixels_kernel<T, gg_bfloat16>), blocks, GG_BLOCK, 0, stream, *args, each, area);
        else GG_LAUNCH((gather_pixels_kernel<T, float>), blocks, GG_BLOCK, 0, stream, *args, each, area);
    } else if (args->values % 4 == 0 && each % 4 == 0 && gg_is_aligned(args->rows, 4 * sizeof(T)) &&
               gg_is_aligned(args->out, 16)) {
        const gather_of<T, 4> f = {*args, each};
        GG_LAUNCH((gather_kernel<T, 4>), gg_blocks_for(n, 4), GG_BLOCK, 0, stream, n, f);
    } else {
        const gather_of<T, 1> f = {*args, each};
        GG_LAUNCH((gather_kernel<T, 1>), gg_blocks_for(n), GG_BLOCK, 0, stream, n, f);
    }
}

/* ------------------------------------------------------------------------------------------------ columns */

template <class T>
__global__ void __launch_bounds__(GG_BLOCK)
    columns_kernel(int64_t batch, int64_t features, const T *data, int64_t first, int64_t count, float *out) {
    for (int64_t i = gg_thread_number(); i < batch * count; i += gg_thread_count())
        out[i] = gg_load(data + i / count * features + first + i % count);
}

template <class T>
void columns_launch(gg_cuda_stream stream, const gg_vectors *from, int64_t first, int64_t count, float *out) {
    GG_LAUNCH((columns_kernel<T>), gg_blocks_for(from->batch * count), GG_BLOCK, 0, stream, from->batch, from->features,
              static_cast<const T *>(from->data), first, count, out);
}

} // namespace

void gg_cuda_gather(gg_cuda_stream stream, const gg_gather_args *args) {
    if (args->dtype == GG_UINT8) gather_launch<uint8_t>(stream, args);
    else if (args->dtype == GG_INT32) gather_launch<int32_t>(stream, args);
    else gather_launch<float>(stream, args);
}

void gg_cuda_columns(gg_cuda_stream stream, const gg_vectors *from, int64_t first, int64_t count, float *out) {
    if (from->layout == GG_LAYOUT_BATCH_LAST) {
        const int64_t padded = padded_lanes(from->batch);
        gg_cuda_transpose(stream, from->batch, count, false, static_cast<const float *>(from->data) + first * padded,
                          out);
    } else if (from->dtype == GG_BFLOAT16) {
        columns_launch<gg_bfloat16>(stream, from, first, count, out);
    } else {
        columns_launch<float>(stream, from, first, count, out);
    }
}

void gg_cuda_transpose(gg_cuda_stream stream, int64_t n, int64_t values, bool to_lanes, const float *in, float *out) {
    const int64_t padded = padded_lanes(n);
    if (to_lanes) transpose_launch(stream, n, values, padded, in, values, out, padded);
    else transpose_launch(stream, values, n, values, in, padded, out, values);
}
