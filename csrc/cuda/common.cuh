/* Shared by all kernels. They are CUDA C++17. With GG_CUDA_EMULATION defined they also compile as C++ for the host,
 * against tests/cuda/emulation. Therefore:
 * - GG_LAUNCH(kernel, grid, block, shared bytes, stream, arguments...) launches a kernel. A template with several
 *   arguments stands in parentheses: GG_LAUNCH((kernel<a, b>), ...).
 * - GG_SHARED(float, name, [32][33]) and GG_DYNAMIC_SHARED(float, name) declare shared memory, at most 48 KiB.
 * - Kernels take structs by value.
 * - No thread leaves before the last barrier of its kernel.
 * - No block waits for another block of its launch, or reads its results. */
#ifndef GG_CUDA_COMMON_CUH
#define GG_CUDA_COMMON_CUH

#if defined(GG_CUDA_EMULATION)
#include <emulation.h>
#else
#include <cuda_runtime.h>

#define GG_LAUNCH(kernel, grid, block, shared, stream, ...) kernel<<<grid, block, shared, stream>>>(__VA_ARGS__)
#define GG_SHARED(type, name, extent) __shared__ type name extent
#define GG_DYNAMIC_SHARED(type, name)                                                                                  \
    extern __shared__ __align__(16) unsigned char gg_dynamic_shared[];                                                 \
    type *const name = reinterpret_cast<type *>(gg_dynamic_shared)
#endif

#include <stddef.h>
#include <stdint.h>

#include "cuda/kernels.h"

/* ------------------------------------------------------------------------------------------------ launches */

/* Threads of a block in kernels without a reason for another number. */
constexpr int GG_BLOCK = 256;

/* Blocks for `n` elements, `each` elements a thread at a time: enough to fill any device. Kernels loop by
 * gg_thread_count(). At least 1, so n = 0 is allowed. */
#if defined(GG_CUDA_MAX_BLOCKS) /* few in tests, so that kernels' loops repeat */
constexpr int64_t GG_MAX_BLOCKS = GG_CUDA_MAX_BLOCKS;
#else
constexpr int64_t GG_MAX_BLOCKS = 2048;
#endif
inline unsigned gg_blocks_for(int64_t n, int64_t each = 1) {
    const int64_t wanted = (n + each * GG_BLOCK - 1) / (each * GG_BLOCK);
    return (unsigned)(wanted < 1 ? 1 : wanted < GG_MAX_BLOCKS ? wanted : GG_MAX_BLOCKS);
}

/* One-dimensional grids: the number of this thread, and of all threads.
 *   for (int64_t i = gg_thread_number(); i < n; i += gg_thread_count()) ... */
__device__ __forceinline__ int64_t gg_thread_number() { return (int64_t)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ int64_t gg_thread_count() { return (int64_t)gridDim.x * blockDim.x; }

inline bool gg_is_aligned(const void *p, size_t bytes) { return (uintptr_t)p % bytes == 0; } /* true for NULL */

/* ------------------------------------------------------------------------------------------------ exact arithmetic */

/* A float that rounds each operation. Compilers may fuse a product and a sum of plain floats, which would change the
 * CPU's bits. */
struct gg_exact {
    float v;
};
__device__ __forceinline__ gg_exact operator+(gg_exact a, gg_exact b) { return {__fadd_rn(a.v, b.v)}; }
__device__ __forceinline__ gg_exact operator-(gg_exact a, gg_exact b) { return {__fsub_rn(a.v, b.v)}; }
__device__ __forceinline__ gg_exact operator*(gg_exact a, gg_exact b) { return {__fmul_rn(a.v, b.v)}; }
__device__ __forceinline__ gg_exact operator/(gg_exact a, gg_exact b) { return {__fdiv_rn(a.v, b.v)}; }
__device__ __forceinline__ gg_exact gg_sqrt(gg_exact a) { return {__fsqrt_rn(a.v)}; }

/* ------------------------------------------------------------------------------------------------ element types */

/* bfloat16 is the upper half of float32. Rounds to nearest, ties to even. A NaN stays a quiet NaN with its upper bits,
 * as on the CPU. */
struct gg_bfloat16 {
    uint16_t bits;
};
__device__ __forceinline__ gg_bfloat16 gg_narrowed(float v) {
    const uint32_t bits = __float_as_uint(v), nearest = bits + 0x7fffu + (bits >> 16 & 1u);
    return {(uint16_t)(((bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : nearest) >> 16)};
}
__device__ __forceinline__ float gg_widened(gg_bfloat16 v) { return __uint_as_float((uint32_t)v.bits << 16); }

/* An element as a float, and back; for kernels that are templates over the element's type. */
__device__ __forceinline__ float gg_load(const float *p) { return *p; }
__device__ __forceinline__ float gg_load(const gg_bfloat16 *p) { return gg_widened(*p); }
__device__ __forceinline__ void gg_store(float *p, float v) { *p = v; }
__device__ __forceinline__ void gg_store(gg_bfloat16 *p, float v) { *p = gg_narrowed(v); }
/* The value that a reader gets if v is stored as this type. */
__device__ __forceinline__ float gg_rounded_as(const float *, float v) { return v; }
__device__ __forceinline__ float gg_rounded_as(const gg_bfloat16 *, float v) { return gg_widened(gg_narrowed(v)); }

/* Adjacent elements moved at once: 4, or 8 for bfloat16. The address is aligned to all of them. */
template <int N> struct gg_pack { float at[N]; };
__device__ __forceinline__ gg_pack<1> gg_load_pack(const float *p, gg_pack<1> *) { return {{*p}}; }
__device__ __forceinline__ gg_pack<1> gg_load_pack(const gg_bfloat16 *p, gg_pack<1> *) { return {{gg_widened(*p)}}; }
__device__ __forceinline__ gg_pack<4> gg_load_pack(const float *p, gg_pack<4> *) {
    const float4 v = *reinterpret_cast<const float4 *>(p);
    return {{v.x, v.y, v.z, v.w}};
}
__device__ __forceinline__ gg_pack<4> gg_load_pack(const gg_bfloat16 *p, gg_pack<4> *) {
    const ushort4 v = *reinterpret_cast<const ushort4 *>(p);
    return {{gg_widened({v.x}), gg_widened({v.y}), gg_widened({v.z}), gg_widened({v.w})}};
}
__device__ __forceinline__ gg_pack<8> gg_load_pack(const gg_bfloat16 *p, gg_pack<8> *) {
    const uint4 v = *reinterpret_cast<const uint4 *>(p);
    const unsigned words[4] = {v.x, v.y, v.z, v.w};
    gg_pack<8> out;
#pragma unroll
    for (int i = 0; i < 8; ++i)
        out.at[i] = __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u);
    return out;
}
template <int N, class T> __device__ __forceinline__ gg_pack<N> gg_load_pack(const T *p) {
    return gg_load_pack(p, static_cast<gg_pack<N> *>(nullptr));
}
template <class T> __device__ __forceinline__ void gg_store_pack(T *p, gg_pack<1> v) { gg_store(p, v.at[0]); }
__device__ __forceinline__ void gg_store_pack(float *p, gg_pack<4> v) {
    *reinterpret_cast<float4 *>(p) = make_float4(v.at[0], v.at[1], v.at[2], v.at[3]);
}
__device__ __forceinline__ void gg_store_pack(gg_bfloat16 *p, gg_pack<4> v) {
    *reinterpret_cast<ushort4 *>(p) = make_ushort4(gg_narrowed(v.at[0]).bits, gg_narrowed(v.at[1]).bits,
                                                   gg_narrowed(v.at[2]).bits, gg_narrowed(v.at[3]).bits);
}
__device__ __forceinline__ void gg_store_pack(gg_bfloat16 *p, gg_pack<8> v) {
    unsigned words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
        words[i] = gg_narrowed(v.at[2 * i]).bits | (unsigned)gg_narrowed(v.at[2 * i + 1]).bits << 16;
    *reinterpret_cast<uint4 *>(p) = make_uint4(words[0], words[1], words[2], words[3]);
}
/* Elements in 16 bytes. */
template <class T> constexpr int GG_WIDE = 16 / (int)sizeof(T);

/* Calls f.run<4>(i) for every fourth element i, or f.run<1>(i) for every element. Each of n elements is met once. */
template <class F, int N> __global__ void __launch_bounds__(GG_BLOCK) gg_each_kernel(int64_t n, F f) {
    const int64_t whole = n / N * N;
    for (int64_t i = N * gg_thread_number(); i < whole; i += N * gg_thread_count()) f.template run<N>(i);
    if (N > 1)
        for (int64_t i = whole + gg_thread_number(); i < n; i += gg_thread_count()) f.template run<1>(i);
}
template <class F> void gg_each(gg_cuda_stream stream, int64_t n, bool by_fours, F f) {
    if (by_fours) GG_LAUNCH((gg_each_kernel<F, 4>), gg_blocks_for(n, 4), GG_BLOCK, 0, stream, n, f);
    else GG_LAUNCH((gg_each_kernel<F, 1>), gg_blocks_for(n), GG_BLOCK, 0, stream, n, f);
}

/* ------------------------------------------------------------------------------------------------ sums in a block */

/* Sum over all threads of the block, returned to all. The order depends on the number of threads alone. The block has
 * whole warps, and every thread calls. Calls may follow each other directly. */
template <class T> __device__ T gg_block_sum(T value) {
    GG_SHARED(T, of_warp, [32]);
    for (int by = 16; by > 0; by /= 2) value += __shfl_xor_sync(0xffffffffu, value, by);
    const unsigned warps = (blockDim.x * blockDim.y * blockDim.z) / 32;
    const unsigned number = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    if (number % 32 == 0) of_warp[number / 32] = value;
    __syncthreads();
    T sum = of_warp[0];
    for (unsigned i = 1; i < warps; ++i) sum += of_warp[i];
    __syncthreads();
    return sum;
}

/* Max over all threads of the block; NaN wins. */
__device__ __forceinline__ float gg_greater(float a, float b) { return a > b || a != a ? a : b; }
template <class T> __device__ T gg_block_max(T value) {
    GG_SHARED(T, of_warp, [32]);
    for (int by = 16; by > 0; by /= 2) value = gg_greater(value, __shfl_xor_sync(0xffffffffu, value, by));
    const unsigned warps = (blockDim.x * blockDim.y * blockDim.z) / 32;
    const unsigned number = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    if (number % 32 == 0) of_warp[number / 32] = value;
    __syncthreads();
    T most = of_warp[0];
    for (unsigned i = 1; i < warps; ++i) most = gg_greater(most, of_warp[i]);
    __syncthreads();
    return most;
}

#endif
