/* Matrix products by cuBLASLt: c = a*b, or c += a*b, row-major. Sums are float32. The algorithm is chosen once. */
#ifndef GG_CUDA_GEMM_PRODUCT_H
#define GG_CUDA_GEMM_PRODUCT_H

#include "cuda/device/device.h"

typedef struct gg_cuda_product_shape {
    int64_t m, n, k;  /* c is (m, n), a (m, k), b (k, n) */
    gg_dtype in, out; /* type of a and b; type of c and the bias. float32 to float32, bfloat16 to float32 or bfloat16 */
    int64_t a_row, b_row, c_row;    /* elements between rows, as stored */
    bool transpose_a, transpose_b;  /* a is stored as (k, m), b as (n, k) */
    bool add;                       /* adds to c */
    bool bias;                      /* a value for each column of c */
    int64_t batch;                  /* number of products; 0 means one */
    int64_t a_step, b_step, c_step; /* elements between products */
    unsigned alignment;             /* of all three, in bytes; 0 means 64 */
} gg_cuda_product_shape;

typedef struct gg_cuda_product {
    gg_cuda_product_shape shape;
    gg_cublas_desc desc;
    gg_cublas_layout a, b, c;
    gg_cublas_algorithm algorithm;
    size_t workspace; /* bytes */
} gg_cuda_product;

/* Fills a zeroed product. If cuBLASLt cannot add the bias, product->shape.bias becomes false and the caller adds it.
 * GG_ERROR_UNSUPPORTED if cuBLASLt has no algorithm. Call gg_cuda_product_destroy after a failure too. */
gg_status gg_cuda_product_create(gg_cuda_device *device, const gg_cuda_product_shape *shape, gg_cuda_product *product);
void gg_cuda_product_destroy(gg_cuda_device *device, gg_cuda_product *product); /* a zeroed product is a no-op */
/* scratch: gg_cuda_workspace_room(workspace) bytes; any product may use it. */
gg_status gg_cuda_product_run(gg_cuda_device *device, gg_cuda_product *product, const void *a, const void *b,
                              const void *bias, void *c, void *scratch);

#endif
