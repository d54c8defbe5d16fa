/* Products of matrices by cuBLASLt: c = a*b, or added to c, row-major. Sums are float32. The algorithm is chosen once.
 */
#ifndef GG_CUDA_GEMM_PRODUCT_H
#define GG_CUDA_GEMM_PRODUCT_H

#include "cuda/device/device.h"

typedef struct gg_cuda_product_shape {
    int64_t m, n, k;                /* c is (m, n), a (m, k), b (k, n) */
    gg_dtype in, out;               /* of a and b; of c and the bias. From bfloat16 to float32 or itself, or float32 */
    int64_t a_row, b_row, c_row;    /* elements from one row to the next, of the matrix as it lies */
    bool transpose_a, transpose_b;  /* a lies as (k, m), b as (n, k) */
    bool add;                       /* to what c holds */
    bool bias;                      /* a value for each column of c */
    int64_t batch;                  /* so many products; 0: one */
    int64_t a_step, b_step, c_step; /* elements from one to the next */
    unsigned alignment;             /* of all three, in bytes; 0: 64 */
} gg_cuda_product_shape;

typedef struct gg_cuda_product {
    gg_cuda_product_shape shape;
    gg_cublas_desc desc;
    gg_cublas_layout a, b, c;
    gg_cublas_algorithm algorithm;
    size_t workspace; /* bytes */
} gg_cuda_product;

/* Fills a zeroed product. Where cuBLASLt has no form that adds the bias, product->shape.bias becomes false: the caller
 * adds it. GG_ERROR_UNSUPPORTED: it has no form at all. Where it fails gg_cuda_product_destroy is still to be called.
 */
gg_status gg_cuda_product_create(gg_cuda_device *device, const gg_cuda_product_shape *shape, gg_cuda_product *product);
void gg_cuda_product_destroy(gg_cuda_device *device, gg_cuda_product *product); /* zeros are fine */
/* Scratch for any of these: gg_cuda_workspace_room(workspace) bytes. */
gg_status gg_cuda_product_run(gg_cuda_device *device, gg_cuda_product *product, const void *a, const void *b,
                              const void *bias, void *c, void *scratch);

#endif
