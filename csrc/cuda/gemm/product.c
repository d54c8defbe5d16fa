#include "cuda/gemm/product.h"

#include "cuda/ops.h"

/* Max useful workspace; Hopper's algorithms want 32 MiB. */
#define MAX_WORKSPACE ((size_t)32 << 20)

/* cuBLASLt is column-major: it computes the transposed product, b's before a's. */
static gg_status make_layout(gg_cuda_device *device, gg_dtype dtype, int64_t rows, int64_t columns, int64_t row,
                             int64_t step, int64_t batch, gg_cublas_layout *out) {
    const gg_cuda_api *api = device->api;
    const int32_t count = (int32_t)batch;
    const int type = dtype == GG_BFLOAT16 ? GG_CUBLAS_R_16BF : GG_CUBLAS_R_32F;
    GG_CUBLAS_TRY(api, cublasLtMatrixLayoutCreate, (out, type, (uint64_t)columns, (uint64_t)rows, row));
    if (batch > 1) {
        GG_CUBLAS_TRY(api, cublasLtMatrixLayoutSetAttribute,
                      (*out, GG_CUBLAS_LAYOUT_BATCH_COUNT, &count, sizeof count));
        GG_CUBLAS_TRY(api, cublasLtMatrixLayoutSetAttribute, (*out, GG_CUBLAS_LAYOUT_BATCH_STRIDE, &step, sizeof step));
    }
    return GG_OK;
}

static gg_status make_desc(gg_cuda_device *device, const gg_cuda_product_shape *shape, gg_cublas_desc *out) {
    const gg_cuda_api *api = device->api;
    const int32_t first = shape->transpose_b ? GG_CUBLAS_OP_T : GG_CUBLAS_OP_N;
    const int32_t second = shape->transpose_a ? GG_CUBLAS_OP_T : GG_CUBLAS_OP_N;
    const int32_t epilogue = shape->bias ? GG_CUBLAS_EPILOGUE_BIAS : GG_CUBLAS_EPILOGUE_DEFAULT;
    const bool tf32 = device->fast && shape->in == GG_FLOAT32;
    GG_CUBLAS_TRY(api, cublasLtMatmulDescCreate,
                  (out, tf32 ? GG_CUBLAS_COMPUTE_32F_FAST_TF32 : GG_CUBLAS_COMPUTE_32F, GG_CUBLAS_R_32F));
    GG_CUBLAS_TRY(api, cublasLtMatmulDescSetAttribute, (*out, GG_CUBLAS_DESC_TRANSA, &first, sizeof first));
    GG_CUBLAS_TRY(api, cublasLtMatmulDescSetAttribute, (*out, GG_CUBLAS_DESC_TRANSB, &second, sizeof second));
    GG_CUBLAS_TRY(api, cublasLtMatmulDescSetAttribute, (*out, GG_CUBLAS_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    return GG_OK;
}

static gg_status choose_algorithm(gg_cuda_device *device, gg_cuda_product *product) {
    const gg_cuda_api *api = device->api;
    const gg_cuda_product_shape *shape = &product->shape;
    const uint64_t workspace = MAX_WORKSPACE;
    const uint32_t ordered = GG_CUBLAS_REDUCTION_COMPUTE_TYPE, alignment = shape->alignment ? shape->alignment : 64;
    gg_cublas_preference preference = NULL;
    gg_cublas_choice choice = {.state = 0};
    int found = 0;
    gg_status status = GG_OK;
    GG_CUBLAS_TRY_CLEANUP(api, cublasLtMatmulPreferenceCreate, (&preference));
    GG_CUBLAS_TRY_CLEANUP(api, cublasLtMatmulPreferenceSetAttribute,
                          (preference, GG_CUBLAS_PREFERENCE_WORKSPACE, &workspace, sizeof workspace));
    if (!device->fast)
        GG_CUBLAS_TRY_CLEANUP(api, cublasLtMatmulPreferenceSetAttribute,
                              (preference, GG_CUBLAS_PREFERENCE_REDUCTION, &ordered, sizeof ordered));
    for (int i = 0; i < 4; ++i)
        GG_CUBLAS_TRY_CLEANUP(api, cublasLtMatmulPreferenceSetAttribute,
                              (preference, GG_CUBLAS_PREFERENCE_ALIGNMENT_A + i, &alignment, sizeof alignment));
    const int error = api->cublasLtMatmulAlgoGetHeuristic(device->blas, product->desc, product->b, product->a,
                                                          product->c, product->c, preference, 1, &choice, &found);
    if (error != GG_CUBLAS_SUCCESS && error != GG_CUBLAS_NOT_SUPPORTED)
        GG_TRY_CLEANUP(gg_cublas_fail(api, error, "cublasLtMatmulAlgoGetHeuristic"));
    if (error != GG_CUBLAS_SUCCESS || found < 1 || choice.state != GG_CUBLAS_SUCCESS)
        GG_FAIL_CLEANUP(GG_ERROR_UNSUPPORTED,
                        "cuBLASLt has no algorithm for a product of %lld x %lld x %lld from %s to %s",
                        (long long)shape->m, (long long)shape->n, (long long)shape->k, gg_dtype_name(shape->in),
                        gg_dtype_name(shape->out));
    product->algorithm = choice.algorithm;
    product->workspace = choice.workspace;
cleanup:
    if (preference != NULL) (void)api->cublasLtMatmulPreferenceDestroy(preference);
    return status;
}

static gg_status leave_bias_out(gg_cuda_device *device, gg_cuda_product *product) {
    const gg_cuda_api *api = device->api;
    const int32_t epilogue = GG_CUBLAS_EPILOGUE_DEFAULT;
    product->shape.bias = false;
    GG_CUBLAS_TRY(api, cublasLtMatmulDescSetAttribute,
                  (product->desc, GG_CUBLAS_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    return GG_OK;
}

gg_status gg_cuda_product_create(gg_cuda_device *device, const gg_cuda_product_shape *shape, gg_cuda_product *product) {
    const int64_t m = shape->m, n = shape->n, k = shape->k, batch = shape->batch;
    gg_status status = GG_OK;
    *product = (gg_cuda_product){.shape = *shape};
    gg_cuda_enter(device);
    GG_TRY(make_layout(device, shape->in, shape->transpose_a ? k : m, shape->transpose_a ? m : k, shape->a_row,
                       shape->a_step, batch, &product->a));
    GG_TRY(make_layout(device, shape->in, shape->transpose_b ? n : k, shape->transpose_b ? k : n, shape->b_row,
                       shape->b_step, batch, &product->b));
    GG_TRY(make_layout(device, shape->out, m, n, shape->c_row, shape->c_step, batch, &product->c));
    GG_TRY(make_desc(device, shape, &product->desc));
    status = choose_algorithm(device, product);
    if (status != GG_ERROR_UNSUPPORTED || !shape->bias) return status;
    GG_TRY(leave_bias_out(device, product));
    return choose_algorithm(device, product);
}

void gg_cuda_product_destroy(gg_cuda_device *device, gg_cuda_product *product) {
    const gg_cuda_api *api = device->api;
    if (product->desc != NULL) (void)api->cublasLtMatmulDescDestroy(product->desc);
    gg_cublas_layout const layouts[3] = {product->a, product->b, product->c};
    for (int i = 0; i < 3; ++i)
        if (layouts[i] != NULL) (void)api->cublasLtMatrixLayoutDestroy(layouts[i]);
    *product = (gg_cuda_product){.workspace = 0};
}

gg_status gg_cuda_product_run(gg_cuda_device *device, gg_cuda_product *product, const void *a, const void *b,
                              const void *bias, void *c, void *scratch) {
    static const float zero = 0, one = 1;
    const gg_cuda_api *api = device->api;
    gg_cuda_enter(device);
    if (product->shape.bias)
        GG_CUBLAS_TRY(api, cublasLtMatmulDescSetAttribute,
                      (product->desc, GG_CUBLAS_DESC_BIAS_POINTER, &bias, sizeof bias));
    GG_CUBLAS_TRY(api, cublasLtMatmul,
                  (device->blas, product->desc, &one, b, product->b, a, product->a, product->shape.add ? &one : &zero,
                   c, product->c, c, product->c, &product->algorithm,
                   product->workspace > 0 ? gg_cuda_workspace(scratch) : NULL, product->workspace,
                   gg_cuda_compute(device)));
    return GG_OK;
}
