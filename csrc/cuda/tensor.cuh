/* Products of small matrices on tensor cores; a warp computes them together. */
#ifndef GG_CUDA_TENSOR_CUH
#define GG_CUDA_TENSOR_CUH

#include "cuda/common.cuh"

/* Rounds v to TF32: 10 mantissa bits, to nearest, ties away from zero. */
static __device__ __forceinline__ float gg_tf32(float v) {
#if defined(GG_CUDA_EMULATION)
    const uint32_t bits = __float_as_uint(v);
    return (bits & 0x7f800000u) == 0x7f800000u ? v : __uint_as_float((bits + 0x1000u) & 0xffffe000u);
#else
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(v));
    return __uint_as_float(bits);
#endif
}

/* Keeps p in a register: the compiler would compute it again at each use. */
template <class T> static __device__ __forceinline__ T *gg_kept(T *p) {
#if !defined(GG_CUDA_EMULATION)
    asm("" : "+l"(p));
#endif
    return p;
}

/* sum (16x8) += left (16x8) * right (8x8) of TF32 values. All lanes of a warp call it. With g = lane/4 and k = lane%4 a
 * lane holds:
 * - left: rows g, g + 8, g, g + 8 of columns k, k, k + 4, k + 4;
 * - right: rows k and k + 4 of column g;
 * - sum: rows g, g, g + 8, g + 8 of columns 2k, 2k + 1, 2k, 2k + 1. */
static __device__ __forceinline__ void gg_product_tf32(float sum[4], const float left[4], float2 right) {
#if defined(GG_CUDA_EMULATION)
    const int lane = (int)threadIdx.x % 32, g = lane / 4, k = lane % 4;
    for (int i = 0; i < 8; ++i) {
        float row[2], column[2];
        for (int j = 0; j < 2; ++j) {
            row[j] = __shfl_sync(0xffffffffu, left[2 * (i / 4) + j], 4 * g + i % 4);
            /* All lanes take part in both shuffles; each lane uses one result. */
            const float low = __shfl_sync(0xffffffffu, right.x, 4 * (2 * k + j) + i % 4);
            const float high = __shfl_sync(0xffffffffu, right.y, 4 * (2 * k + j) + i % 4);
            column[j] = i < 4 ? low : high;
        }
        for (int j = 0; j < 4; ++j) sum[j] = fmaf(row[j / 2], column[j % 2], sum[j]);
    }
#else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(__float_as_uint(left[0])), "r"(__float_as_uint(left[1])), "r"(__float_as_uint(left[2])),
          "r"(__float_as_uint(left[3])), "r"(__float_as_uint(right.x)), "r"(__float_as_uint(right.y)));
#endif
}

#endif
