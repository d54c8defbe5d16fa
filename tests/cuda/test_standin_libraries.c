/* The stand-in's cuDNN and cuBLASLt: what they compute, and that each violation of a contract is seen. */
#include <math.h>
#include <stdlib.h>

#include "check_standin.h"

static const float one = 1, zero = 0;

/* ---------------------------------------------------------------------------------------------------- convolutions */

typedef struct layer {
    gg_cudnn_handle handle;
    gg_cudnn_tensor x, y;
    gg_cudnn_filter w;
    gg_cudnn_convolution how;
} layer;

static layer make_layer(void) {
    layer made;
    CHECK_INT(api->cudnnCreate(&made.handle), 0);
    CHECK_INT(api->cudnnSetStream(made.handle, compute), 0);
    CHECK_INT(api->cudnnCreateTensorDescriptor(&made.x), 0);
    CHECK_INT(api->cudnnCreateTensorDescriptor(&made.y), 0);
    CHECK_INT(api->cudnnCreateFilterDescriptor(&made.w), 0);
    CHECK_INT(api->cudnnCreateConvolutionDescriptor(&made.how), 0);
    return made;
}

static void destroy_layer(const layer *it) {
    CHECK_INT(api->cudnnDestroyTensorDescriptor(it->x), 0);
    CHECK_INT(api->cudnnDestroyTensorDescriptor(it->y), 0);
    CHECK_INT(api->cudnnDestroyFilterDescriptor(it->w), 0);
    CHECK_INT(api->cudnnDestroyConvolutionDescriptor(it->how), 0);
    CHECK_INT(api->cudnnDestroy(it->handle), 0);
}

/* (N, C, H, W) by (K, C/groups, R, S), and what it has to give. */
typedef struct sizes {
    int n, c, h, w, k, r, s, pad[2], stride[2], dilation[2], groups, format;
} sizes;

static int outputs(const sizes *it, int axis) {
    const int from = axis ? it->w : it->h, kernel = axis ? it->s : it->r;
    return (from + 2 * it->pad[axis] - it->dilation[axis] * (kernel - 1) - 1) / it->stride[axis] + 1;
}

static void set_layer(const layer *it, const sizes *of) {
    const int type = GG_CUDNN_DATA_FLOAT;
    CHECK_INT(api->cudnnSetTensor4dDescriptor(it->x, of->format, type, of->n, of->c, of->h, of->w), 0);
    CHECK_INT(api->cudnnSetTensor4dDescriptor(it->y, of->format, type, of->n, of->k, outputs(of, 0), outputs(of, 1)),
              0);
    CHECK_INT(api->cudnnSetFilter4dDescriptor(it->w, type, of->format, of->k, of->c / of->groups, of->r, of->s), 0);
    CHECK_INT(api->cudnnSetConvolution2dDescriptor(it->how, of->pad[0], of->pad[1], of->stride[0], of->stride[1],
                                                   of->dilation[0], of->dilation[1], GG_CUDNN_CROSS_CORRELATION, type),
              0);
    CHECK_INT(api->cudnnSetConvolutionGroupCount(it->how, of->groups), 0);
    CHECK_INT(api->cudnnSetConvolutionMathType(it->how, GG_CUDNN_FMA_MATH), 0);
}

static int place(int format, int a, int b, int c, int d, int bs, int cs, int ds) {
    return format == GG_CUDNN_TENSOR_NCHW ? ((a * bs + b) * cs + c) * ds + d : ((a * cs + c) * ds + d) * bs + b;
}

/* The sum of x*w*y over all (n, k, o, p, c, r, s). One factor is the gradient that the pass computes, so one definition
 * checks all three passes. */
static void check_passes(const sizes *of) {
    const layer it = make_layer();
    set_layer(&it, of);
    const int oh = outputs(of, 0), ow = outputs(of, 1), cg = of->c / of->groups, kg = of->k / of->groups;
    const int nx = of->n * of->c * of->h * of->w, nw = of->k * cg * of->r * of->s, ny = of->n * of->k * oh * ow;
    float *x = device_floats(nx), *w = device_floats(nw), *y = device_floats(ny), *out[3];
    double *want[3] = {calloc((size_t)ny, 8), calloc((size_t)nx, 8), calloc((size_t)nw, 8)};
    fill(x, nx, 1), fill(w, nw, 2), fill(y, ny, 3);
    const float *hx = values(x, nx), *hw = values(w, nw), *hy = values(y, ny);
    for (int n = 0; n < of->n; ++n)
        for (int k = 0; k < of->k; ++k)
            for (int o = 0; o < oh; ++o)
                for (int p = 0; p < ow; ++p)
                    for (int c = 0; c < cg; ++c)
                        for (int r = 0; r < of->r; ++r)
                            for (int s = 0; s < of->s; ++s) {
                                const int i = o * of->stride[0] + r * of->dilation[0] - of->pad[0];
                                const int j = p * of->stride[1] + s * of->dilation[1] - of->pad[1];
                                if (i < 0 || j < 0 || i >= of->h || j >= of->w) continue;
                                const int xa = place(of->format, n, k / kg * cg + c, i, j, of->c, of->h, of->w);
                                const int wa = place(of->format, k, c, r, s, cg, of->r, of->s);
                                const int ya = place(of->format, n, k, o, p, of->k, oh, ow);
                                want[0][ya] += (double)hx[xa] * hw[wa];
                                want[1][xa] += (double)hy[ya] * hw[wa];
                                want[2][wa] += (double)hx[xa] * hy[ya];
                            }
    gg_cudnn_algorithm found[3][8];
    int got[3];
    CHECK_INT(api->cudnnGetConvolutionForwardAlgorithm_v7(it.handle, it.x, it.w, it.how, it.y, 8, &got[0], found[0]),
              0);
    CHECK_INT(
        api->cudnnGetConvolutionBackwardDataAlgorithm_v7(it.handle, it.w, it.y, it.how, it.x, 8, &got[1], found[1]), 0);
    CHECK_INT(
        api->cudnnGetConvolutionBackwardFilterAlgorithm_v7(it.handle, it.x, it.y, it.how, it.w, 8, &got[2], found[2]),
        0);
    const int counts[3] = {ny, nx, nw};
    for (int pass = 0; pass < 3; ++pass) {
        int tried = 0;
        for (int a = 0; a < got[pass]; ++a) {
            const gg_cudnn_algorithm *how = &found[pass][a];
            void *work = NULL;
            size_t bytes = 0;
            if (how->status != 0) continue;
            ++tried;
            out[pass] = device_floats(counts[pass]);
            CHECK_INT(api->cudaMalloc(&work, how->memory), 0);
            if (pass == 0) {
                CHECK_INT(api->cudnnGetConvolutionForwardWorkspaceSize(it.handle, it.x, it.w, it.how, it.y,
                                                                       how->algorithm, &bytes),
                          0);
                CHECK_INT(api->cudnnConvolutionForward(it.handle, &one, it.x, x, it.w, w, it.how, how->algorithm, work,
                                                       bytes, &zero, it.y, out[0]),
                          0);
            } else if (pass == 1) {
                CHECK_INT(api->cudnnGetConvolutionBackwardDataWorkspaceSize(it.handle, it.w, it.y, it.how, it.x,
                                                                            how->algorithm, &bytes),
                          0);
                CHECK_INT(api->cudnnConvolutionBackwardData(it.handle, &one, it.w, w, it.y, y, it.how, how->algorithm,
                                                            work, bytes, &zero, it.x, out[1]),
                          0);
            } else {
                CHECK_INT(api->cudnnGetConvolutionBackwardFilterWorkspaceSize(it.handle, it.x, it.y, it.how, it.w,
                                                                              how->algorithm, &bytes),
                          0);
                CHECK_INT(api->cudnnConvolutionBackwardFilter(it.handle, &one, it.x, x, it.y, y, it.how, how->algorithm,
                                                              work, bytes, &zero, it.w, out[2]),
                          0);
            }
            CHECK_INT(bytes, how->memory);
            const float *is = values(out[pass], counts[pass]);
            double worst = 0;
            for (int i = 0; i < counts[pass]; ++i) worst = fmax(worst, fabs(is[i] - want[pass][i]));
            CHECK_NEAR(worst, 0, 1e-6);
            CHECK_INT(api->cudaFree(out[pass]), 0);
            CHECK_INT(api->cudaFree(work), 0);
        }
        CHECK(tried >= 2);
    }
    for (int i = 0; i < 3; ++i) free(want[i]);
    CHECK_INT(api->cudaFree(x), 0);
    CHECK_INT(api->cudaFree(w), 0);
    CHECK_INT(api->cudaFree(y), 0);
    destroy_layer(&it);
    NOTHING_VIOLATED();
}

static const sizes plain = {.n = 2,
                            .c = 3,
                            .h = 7,
                            .w = 6,
                            .k = 4,
                            .r = 3,
                            .s = 3,
                            .pad = {1, 1},
                            .stride = {1, 1},
                            .dilation = {1, 1},
                            .groups = 1};

static void test_convolutions(void) {
    check_passes(&plain);
    check_passes(&(sizes){.n = 2,
                          .c = 4,
                          .h = 9,
                          .w = 8,
                          .k = 6,
                          .r = 3,
                          .s = 2,
                          .pad = {2, 0},
                          .stride = {2, 3},
                          .dilation = {2, 1},
                          .groups = 2});
    check_passes(&(sizes){.n = 3,
                          .c = 5,
                          .h = 4,
                          .w = 5,
                          .k = 5,
                          .r = 1,
                          .s = 1,
                          .stride = {1, 1},
                          .dilation = {1, 1},
                          .groups = 5,
                          .format = GG_CUDNN_TENSOR_NHWC});
    check_passes(&(sizes){.n = 1,
                          .c = 1,
                          .h = 1,
                          .w = 1,
                          .k = 1,
                          .r = 5,
                          .s = 5,
                          .pad = {2, 2},
                          .stride = {1, 1},
                          .dilation = {1, 1},
                          .groups = 1});
}

static int forward(const layer *it, const float *x, const float *w, float *y, int algorithm, void *work, size_t bytes) {
    return api->cudnnConvolutionForward(it->handle, &one, it->x, x, it->w, w, it->how, algorithm, work, bytes, &zero,
                                        it->y, y);
}

static void test_convolution_contract(void) {
    layer it = make_layer();
    float *x = device_floats(2 * 3 * 7 * 6), *w = device_floats(4 * 3 * 9), *y = device_floats(2 * 4 * 42 + 1);
    float *work = device_floats(16 * 2 * 4 * 42);
    VIOLATES(forward(&it, x, w, y, 0, NULL, 0), 2000, "descriptor of x is not set");
    VIOLATES(api->cudnnSetConvolutionGroupCount(it.how, 2), 2000, "not set");
    set_layer(&it, &plain);
    CHECK_INT(forward(&it, x, w, y, 0, NULL, 0), 0);
    CHECK_INT(forward(&it, x, w, y, 1, work, 4 * 2 * 4 * 42), 0);
    finish();
    CHECK(isnan(*values(work, 1)));
    NOTHING_VIOLATED();
    VIOLATES(forward(&it, x, w, y, 1, work, 4 * 2 * 4 * 42 - 1), 2000, "needs 1344 bytes of workspace and has 1343");
    VIOLATES(forward(&it, x, w, y, 1, work + 4, 4 * 2 * 4 * 42), 2003, "not aligned to 256");
    VIOLATES(forward(&it, x, w, y, 3, work, 1 << 12), 3000, "algorithm 3 is not possible");
    VIOLATES(forward(&it, x, w, y + 1, 0, NULL, 0), 2003, "not aligned to 16");
    VIOLATES(forward(&it, x, w, y + 16, 0, NULL, 0), 2003, "are there up to the end of its block");
    VIOLATES(forward(&it, x, w, x, 0, NULL, 0), 2003, "y needs");
    VIOLATES(forward(&it, x, w, y, 1, y, 4 * 2 * 4 * 42), 2000, "overlaps");
    float *host = aligned_alloc(64, 448);
    VIOLATES(forward(&it, x, host, y, 0, NULL, 0), 2003, "w is in host memory that is not pinned");
    free(host);
    CHECK_INT(api->cudnnSetTensor4dDescriptor(it.y, 0, 0, 2, 4, 7, 7), 0);
    VIOLATES(forward(&it, x, w, y, 0, NULL, 0), 2008, "y is (2, 4, 7, 7), and the convolution gives (2, 4, 7, 6)");
    CHECK_INT(api->cudnnSetTensor4dDescriptor(it.y, 1, 0, 2, 4, 7, 6), 0);
    VIOLATES(forward(&it, x, w, y, 0, NULL, 0), 3000, "formats");
    CHECK_INT(api->cudnnSetTensor4dDescriptor(it.y, 0, 9, 2, 4, 7, 6), 0);
    VIOLATES(forward(&it, x, w, y, 0, NULL, 0), 2000, "of types");
    set_layer(&it, &plain);
    CHECK_INT(api->cudnnSetConvolutionGroupCount(it.how, 2), 0);
    VIOLATES(forward(&it, x, w, y, 0, NULL, 0), 2008, "3 channels, 2 groups");
    set_layer(&it, &plain);
    VIOLATES(api->cudnnSetTensor4dDescriptor(it.x, 0, 0, 2, 0, 7, 6), 2000, "size 0 of axis 1");
    VIOLATES(api->cudnnSetConvolution2dDescriptor(it.how, 0, 0, 0, 1, 1, 1, 1, 0), 2000, "stride (0, 1)");
    VIOLATES(api->cudnnSetConvolution2dDescriptor(it.how, 0, 0, 1, 1, 1, 1, 0, 0), 2000, "180 degrees");
    VIOLATES(api->cudnnDestroyTensorDescriptor((gg_cudnn_tensor)it.w), 2000, "is given a cudnnFilterDescriptor");
    /* TF32 unless FMA is asked for; and what is not deterministic is counted */
    CHECK_INT(api->cudnnSetConvolutionMathType(it.how, GG_CUDNN_DEFAULT_MATH), 0);
    CHECK_INT(forward(&it, x, w, y, 0, NULL, 0), 0);
    CHECK_INT(gg_standin_count("tf32"), 1);
    CHECK_INT(api->cudnnConvolutionBackwardData(it.handle, &one, it.w, w, it.y, y, it.how, 0, NULL, 0, &zero, it.x, x),
              0);
    CHECK_INT(gg_standin_count("nondeterministic"), 1);
    finish();
    gg_cudnn_handle unbound;
    CHECK_INT(api->cudnnCreate(&unbound), 0);
    gg_cudnn_handle bound = it.handle;
    it.handle = unbound;
    VIOLATES(forward(&it, x, w, y, 0, NULL, 0), 2000, "no stream");
    it.handle = bound;
    CHECK_INT(api->cudnnDestroy(unbound), 0);
    destroy_layer(&it);
    VIOLATES(api->cudnnDestroy(bound), 2000, "destroyed");
    CHECK_INT(api->cudaFree(x), 0);
    CHECK_INT(api->cudaFree(w), 0);
    CHECK_INT(api->cudaFree(y), 0);
    CHECK_INT(api->cudaFree(work), 0);
}

/* ------------------------------------------------------------------------------------------------------- products */

typedef struct product {
    gg_cublas_handle handle;
    gg_cublas_desc how;
    gg_cublas_layout a, b, d;
    gg_cublas_preference preference;
    int ta, tb, m, n, k, batch;
} product;

static product make_product(int ta, int tb, int m, int n, int k, int batch, uint32_t epilogue, const float *bias) {
    product made = {.ta = ta, .tb = tb, .m = m, .n = n, .k = k, .batch = batch};
    const uint64_t most = 1 << 20;
    const uint32_t aligned = 16;
    CHECK_INT(api->cublasLtCreate(&made.handle), 0);
    CHECK_INT(api->cublasLtMatmulDescCreate(&made.how, GG_CUBLAS_COMPUTE_32F, GG_CUBLAS_R_32F), 0);
    const int32_t t[2] = {ta, tb};
    CHECK_INT(api->cublasLtMatmulDescSetAttribute(made.how, GG_CUBLAS_DESC_TRANSA, &t[0], 4), 0);
    CHECK_INT(api->cublasLtMatmulDescSetAttribute(made.how, GG_CUBLAS_DESC_TRANSB, &t[1], 4), 0);
    CHECK_INT(api->cublasLtMatmulDescSetAttribute(made.how, GG_CUBLAS_DESC_EPILOGUE, &epilogue, 4), 0);
    CHECK_INT(api->cublasLtMatmulDescSetAttribute(made.how, GG_CUBLAS_DESC_BIAS_POINTER, &bias, 8), 0);
    CHECK_INT(api->cublasLtMatrixLayoutCreate(&made.a, 0, ta ? k : m, ta ? m : k, ta ? k : m), 0);
    CHECK_INT(api->cublasLtMatrixLayoutCreate(&made.b, 0, tb ? n : k, tb ? k : n, tb ? n : k), 0);
    CHECK_INT(api->cublasLtMatrixLayoutCreate(&made.d, 0, m, n, m), 0);
    const gg_cublas_layout all[3] = {made.a, made.b, made.d};
    const int64_t strides[3] = {(int64_t)m * k, (int64_t)k * n, (int64_t)m * n};
    for (int i = 0; i < 3; ++i) {
        CHECK_INT(api->cublasLtMatrixLayoutSetAttribute(all[i], GG_CUBLAS_LAYOUT_BATCH_COUNT, &batch, 4), 0);
        CHECK_INT(api->cublasLtMatrixLayoutSetAttribute(all[i], GG_CUBLAS_LAYOUT_BATCH_STRIDE, &strides[i], 8), 0);
    }
    CHECK_INT(api->cublasLtMatmulPreferenceCreate(&made.preference), 0);
    CHECK_INT(api->cublasLtMatmulPreferenceSetAttribute(made.preference, GG_CUBLAS_PREFERENCE_WORKSPACE, &most, 8), 0);
    for (int i = 5; i < 9; ++i)
        CHECK_INT(api->cublasLtMatmulPreferenceSetAttribute(made.preference, i, &aligned, 4), 0);
    return made;
}

static void destroy_product(const product *it) {
    CHECK_INT(api->cublasLtMatmulPreferenceDestroy(it->preference), 0);
    CHECK_INT(api->cublasLtMatrixLayoutDestroy(it->a), 0);
    CHECK_INT(api->cublasLtMatrixLayoutDestroy(it->b), 0);
    CHECK_INT(api->cublasLtMatrixLayoutDestroy(it->d), 0);
    CHECK_INT(api->cublasLtMatmulDescDestroy(it->how), 0);
    CHECK_INT(api->cublasLtDestroy(it->handle), 0);
}

static int choices(const product *it, gg_cublas_choice *found) {
    int got = 0;
    CHECK_INT(api->cublasLtMatmulAlgoGetHeuristic(it->handle, it->how, it->a, it->b, it->d, it->d, it->preference, 2,
                                                  found, &got),
              0);
    return got;
}

static int multiply(const product *it, const float *a, const float *b, const float *beta, float *d,
                    const gg_cublas_choice *choice, void *work, size_t bytes) {
    return api->cublasLtMatmul(it->handle, it->how, &one, a, it->a, b, it->b, beta, d, it->d, d, it->d,
                               &choice->algorithm, work, bytes, compute);
}

static void check_product(int ta, int tb, int m, int n, int k, int batch, uint32_t epilogue) {
    float *a = device_floats(batch * m * k), *b = device_floats(batch * k * n), *d = device_floats(batch * m * n);
    float *bias = device_floats(m);
    void *work = NULL;
    fill(a, batch * m * k, 1), fill(b, batch * k * n, 2), fill(d, batch * m * n, 3), fill(bias, m, 4);
    const product it = make_product(ta, tb, m, n, k, batch, epilogue, bias);
    gg_cublas_choice found[2];
    CHECK_INT(choices(&it, found), 2);
    CHECK(found[0].workspace > 0 && found[1].workspace == 0);
    CHECK_INT(api->cudaMalloc(&work, found[0].workspace), 0);
    const float *ha = values(a, batch * m * k), *hb = values(b, batch * k * n), *hbias = values(bias, m);
    for (int turn = 0; turn < 2; ++turn) {
        const float beta = (float)turn / 2; /* 0: what is there is not read */
        const float *before = values(d, batch * m * n);
        double worst = 0;
        if (turn == 0) CHECK_INT(api->cudaMemsetAsync(d, 0xff, (size_t)(batch * m * n) * 4, compute), 0);
        CHECK_INT(multiply(&it, a, b, &beta, d, &found[turn], work, found[0].workspace), 0);
        const float *is = values(d, batch * m * n);
        for (int i = 0; i < batch; ++i)
            for (int r = 0; r < m; ++r)
                for (int c = 0; c < n; ++c) {
                    const int at = (i * n + c) * m + r;
                    double sum = beta != 0 ? beta * before[at] : 0;
                    for (int j = 0; j < k; ++j)
                        sum += (double)ha[i * m * k + (ta ? r * k + j : j * m + r)] *
                               (double)hb[i * k * n + (tb ? j * n + c : c * k + j)];
                    if (epilogue & GG_CUBLAS_EPILOGUE_BIAS) sum += hbias[r];
                    if (epilogue & GG_CUBLAS_EPILOGUE_RELU) sum = fmax(sum, 0);
                    worst = fmax(worst, fabs(sum - is[at]));
                }
        CHECK_NEAR(worst, 0, 1e-6);
    }
    destroy_product(&it);
    CHECK_INT(api->cudaFree(a), 0);
    CHECK_INT(api->cudaFree(b), 0);
    CHECK_INT(api->cudaFree(d), 0);
    CHECK_INT(api->cudaFree(bias), 0);
    CHECK_INT(api->cudaFree(work), 0);
    NOTHING_VIOLATED();
}

static void test_products(void) {
    static const uint32_t epilogues[] = {GG_CUBLAS_EPILOGUE_DEFAULT, GG_CUBLAS_EPILOGUE_RELU, GG_CUBLAS_EPILOGUE_BIAS,
                                         GG_CUBLAS_EPILOGUE_RELU_BIAS};
    for (int i = 0; i < 4; ++i) check_product(i & 1, i >> 1, 5 + i, 7, 3 + 2 * i, 1, epilogues[i]);
    check_product(1, 0, 4, 3, 9, 3, GG_CUBLAS_EPILOGUE_BIAS);
    check_product(0, 1, 1, 1, 1, 1, GG_CUBLAS_EPILOGUE_DEFAULT);
}

static void test_product_contract(void) {
    float *a = device_floats(64), *b = device_floats(64), *d = device_floats(68), *work = device_floats(256);
    product it = make_product(1, 0, 8, 4, 4, 1, GG_CUBLAS_EPILOGUE_DEFAULT, NULL);
    gg_cublas_choice found[2];
    const int32_t plain_a = GG_CUBLAS_OP_N, two = 2;
    const uint32_t epilogue = GG_CUBLAS_EPILOGUE_BIAS, wrong = 99, strict = 256;
    choices(&it, found);
    CHECK_INT(multiply(&it, a, b, &zero, d, &found[0], work, found[0].workspace), 0);
    NOTHING_VIOLATED();
    VIOLATES(multiply(&it, a, b, &zero, d, &found[0], work, 4), 7, "needs 128 bytes of workspace and has 4");
    VIOLATES(multiply(&it, a, b, &zero, d, &found[0], work + 1, 512), 7, "not aligned to 256");
    VIOLATES(multiply(&it, a, b, &zero, d + 1, &found[1], NULL, 0), 7, "D is not aligned to 16");
    VIOLATES(multiply(&it, a, b, &zero, d + 40, &found[1], NULL, 0), 7, "D needs 128 bytes");
    VIOLATES(multiply(&it, a, b, &zero, a + 16, &found[1], NULL, 0), 7, "D overlaps with A");
    gg_cublas_choice empty = {0};
    VIOLATES(multiply(&it, a, b, &zero, d, &empty, NULL, 0), 7, "not one that was found");
    CHECK_INT(api->cublasLtMatmulPreferenceSetAttribute(it.preference, 8, &strict, 4), 0);
    choices(&it, found);
    VIOLATES(multiply(&it, a, b, &zero, d + 4, &found[1], NULL, 0), 7, "D is not aligned to 256");
    CHECK_INT(api->cublasLtMatmulDescSetAttribute(it.how, GG_CUBLAS_DESC_TRANSA, &plain_a, 4), 0);
    VIOLATES(multiply(&it, a, b, &zero, d, &found[1], NULL, 0), 7, "(4, 8) by (4, 4) does not give (8, 4)");
    VIOLATES(api->cublasLtMatmulDescSetAttribute(it.how, GG_CUBLAS_DESC_TRANSA, &plain_a, 8), 7, "has 4 bytes, not 8");
    VIOLATES(api->cublasLtMatmulDescSetAttribute(it.how, GG_CUBLAS_DESC_EPILOGUE, &wrong, 4), 7, "epilogue 99");
    destroy_product(&it);
    it = make_product(1, 0, 8, 4, 4, 1, GG_CUBLAS_EPILOGUE_DEFAULT, NULL);
    choices(&it, found);
    CHECK_INT(api->cublasLtMatmulDescSetAttribute(it.how, GG_CUBLAS_DESC_EPILOGUE, &epilogue, 4), 0);
    VIOLATES(multiply(&it, a, b, &zero, d, &found[1], NULL, 0), 15, "found for another product");
    choices(&it, found);
    VIOLATES(multiply(&it, a, b, &zero, d, &found[1], NULL, 0), 7, "the bias is NULL");
    CHECK_INT(api->cublasLtMatrixLayoutSetAttribute(it.a, GG_CUBLAS_LAYOUT_BATCH_COUNT, &two, 4), 0);
    VIOLATES(multiply(&it, a, b, &zero, d, &found[1], NULL, 0), 7, "2 matrices of A and 1 of B");
    gg_cublas_layout narrow;
    CHECK_INT(api->cublasLtMatrixLayoutCreate(&narrow, 0, 8, 4, 7), 0);
    gg_cublas_layout good = it.d;
    it.d = narrow;
    VIOLATES(multiply(&it, a, b, &zero, d, &found[1], NULL, 0), 7, "2 matrices of A and 1 of B");
    it.d = good;
    CHECK_INT(api->cublasLtMatrixLayoutDestroy(narrow), 0);
    VIOLATES(api->cublasLtMatrixLayoutDestroy(narrow), 7, "destroyed");
    VIOLATES(api->cublasLtMatrixLayoutCreate(&narrow, 0, 0, 4, 8), 7, "0 rows");
    VIOLATES(api->cublasLtMatmulDescCreate(&it.how, 64, 0), 7, "computes in 64");
    destroy_product(&it);
    it = make_product(1, 0, 8, 4, 4, 1, GG_CUBLAS_EPILOGUE_DEFAULT, NULL);
    choices(&it, found);
    gg_cublas_layout wide;
    CHECK_INT(api->cublasLtMatrixLayoutCreate(&wide, 0, 8, 4, 7), 0);
    good = it.d;
    it.d = wide;
    VIOLATES(multiply(&it, a, b, &zero, d, &found[1], NULL, 0), 7, "have 8 rows and begin every 7 elements");
    it.d = good;
    CHECK_INT(api->cublasLtMatrixLayoutDestroy(wide), 0);
    gg_cublas_layout halves[3];
    CHECK_INT(api->cublasLtMatrixLayoutCreate(&halves[0], GG_CUBLAS_R_16BF, 4, 8, 4), 0);
    CHECK_INT(api->cublasLtMatrixLayoutCreate(&halves[1], GG_CUBLAS_R_16BF, 4, 4, 4), 0);
    CHECK_INT(api->cublasLtMatrixLayoutCreate(&halves[2], GG_CUBLAS_R_16BF, 8, 4, 8), 0);
    const gg_cublas_layout floats[3] = {it.a, it.b, it.d};
    it.d = halves[2];
    VIOLATES(multiply(&it, a, b, &zero, d, &found[1], NULL, 0), 15, "from type 0 to 14");
    it.a = halves[0];
    VIOLATES(multiply(&it, a, b, &zero, d, &found[1], NULL, 0), 15, "the type of B is 0");
    it.b = halves[1];
    choices(&it, found);
    CHECK_INT(multiply(&it, a, b, &zero, d, &found[1], NULL, 0), 0);
    NOTHING_VIOLATED();
    it.d = floats[2];
    choices(&it, found);
    CHECK_INT(multiply(&it, a, b, &zero, d, &found[1], NULL, 0), 0);
    NOTHING_VIOLATED();
    gg_cublas_desc how = it.how;
    CHECK_INT(api->cublasLtMatmulDescCreate(&it.how, GG_CUBLAS_COMPUTE_32F_FAST_TF32, GG_CUBLAS_R_32F), 0);
    CHECK_INT(api->cublasLtMatmulDescSetAttribute(it.how, GG_CUBLAS_DESC_TRANSA, &(int32_t){1}, 4), 0);
    VIOLATES(multiply(&it, a, b, &zero, d, &found[1], NULL, 0), 15, "from type 14 to 0, computing in 77");
    CHECK_INT(api->cublasLtMatmulDescDestroy(it.how), 0);
    it.how = how;
    it.a = floats[0], it.b = floats[1];
    for (int i = 0; i < 3; ++i) CHECK_INT(api->cublasLtMatrixLayoutDestroy(halves[i]), 0);
    destroy_product(&it);
    CHECK_INT(api->cudaFree(a), 0);
    CHECK_INT(api->cudaFree(b), 0);
    CHECK_INT(api->cudaFree(d), 0);
    CHECK_INT(api->cudaFree(work), 0);
}

/* -------------------------------------------------------------------------------------------- recurrent networks */

/* An LSTM of 3 inputs, 5 states and 2 layers, over batches (2, 4). */
typedef struct network {
    gg_cudnn_handle handle;
    gg_cudnn_dropout none;
    gg_cudnn_rnn rnn;
    gg_cudnn_rnn_data x_desc, y_desc;
    gg_cudnn_tensor state;
    float *x, *y, *begin, *end, *weights, *work, *reserve;
    size_t weight_bytes, work_bytes, reserve_bytes;
} network;

static int set_network(const network *it, int projected, int math, uint32_t flags) {
    return api->cudnnSetRNNDescriptor_v8(it->rnn, GG_CUDNN_RNN_STANDARD, GG_CUDNN_RNN_LSTM, GG_CUDNN_RNN_INPUT_BIAS,
                                         GG_CUDNN_RNN_ONE_WAY, GG_CUDNN_RNN_LINEAR_INPUT, GG_CUDNN_DATA_FLOAT,
                                         GG_CUDNN_DATA_FLOAT, math, 3, 5, projected, 2, it->none, flags);
}

static int set_sequences(gg_cudnn_rnn_data desc, int values, int second) {
    return api->cudnnSetRNNDataDescriptor(desc, GG_CUDNN_DATA_FLOAT, GG_CUDNN_RNN_BATCH_MAJOR, 4, 2, values,
                                          (int[2]){4, second}, NULL);
}

static int set_states(const network *it, int layers) {
    return api->cudnnSetTensorNdDescriptor(it->state, GG_CUDNN_DATA_FLOAT, 3, (int[3]){layers, 2, 5},
                                           (int[3]){10, 5, 1});
}

static network make_network(void) {
    network it = {.x = device_floats(2 * 4 * 3), .y = device_floats(2 * 4 * 5 + 4)};
    CHECK_INT(api->cudnnCreate(&it.handle), 0);
    CHECK_INT(api->cudnnSetStream(it.handle, compute), 0);
    CHECK_INT(api->cudnnCreateDropoutDescriptor(&it.none), 0);
    CHECK_INT(api->cudnnCreateRNNDescriptor(&it.rnn), 0);
    CHECK_INT(api->cudnnCreateRNNDataDescriptor(&it.x_desc), 0);
    CHECK_INT(api->cudnnCreateRNNDataDescriptor(&it.y_desc), 0);
    CHECK_INT(api->cudnnCreateTensorDescriptor(&it.state), 0);
    VIOLATES(set_network(&it, 5, GG_CUDNN_FMA_MATH, GG_CUDNN_RNN_PADDED), 2000, "dropout descriptor is not set");
    CHECK_INT(api->cudnnSetDropoutDescriptor(it.none, it.handle, 0, NULL, 0, 0), 0);
    CHECK_INT(set_network(&it, 5, GG_CUDNN_FMA_MATH, GG_CUDNN_RNN_PADDED), 0);
    CHECK_INT(set_sequences(it.x_desc, 3, 4), 0);
    CHECK_INT(set_sequences(it.y_desc, 5, 4), 0);
    CHECK_INT(set_states(&it, 2), 0);
    CHECK_INT(api->cudnnGetRNNWeightSpaceSize(it.handle, it.rnn, &it.weight_bytes), 0);
    CHECK_INT(api->cudnnGetRNNTempSpaceSizes(it.handle, it.rnn, GG_CUDNN_RNN_TRAINING, it.x_desc, &it.work_bytes,
                                             &it.reserve_bytes),
              0);
    CHECK(it.weight_bytes >= 4 * 4 * (5 * 3 + 3 * 5 * 5 + 2 * 5) && it.work_bytes > 0 && it.reserve_bytes > 0);
    it.begin = device_floats(2 * 2 * 5);
    it.end = device_floats(2 * 2 * 5);
    it.weights = device_floats((int)it.weight_bytes / 4 + 1);
    it.work = device_floats((int)it.work_bytes / 4 + 1);
    it.reserve = device_floats((int)it.reserve_bytes / 4 + 1);
    fill(it.x, 2 * 4 * 3, 1);
    fill(it.y, 2 * 4 * 5, 2);
    fill(it.begin, 20, 3);
    fill(it.weights, (int)it.weight_bytes / 4, 4);
    return it;
}

static int network_forward(const network *it) {
    return api->cudnnRNNForward(it->handle, it->rnn, GG_CUDNN_RNN_TRAINING, NULL, it->x_desc, it->x, it->y_desc, it->y,
                                it->state, it->begin, it->end, it->state, NULL, NULL, it->weight_bytes, it->weights,
                                it->work_bytes, it->work, it->reserve_bytes, it->reserve);
}

static int network_backward(const network *it, float *dx, const void *end_error) {
    return api->cudnnRNNBackwardData_v8(it->handle, it->rnn, NULL, it->y_desc, it->y, it->y, it->x_desc, dx, it->state,
                                        it->begin, end_error, NULL, it->state, NULL, NULL, NULL, it->weight_bytes,
                                        it->weights, it->work_bytes, it->work, it->reserve_bytes, it->reserve);
}

static int network_gradients(const network *it, int add, float *gradients) {
    return api->cudnnRNNBackwardWeights_v8(it->handle, it->rnn, add, NULL, it->x_desc, it->x, it->state, it->begin,
                                           it->y_desc, it->y, it->weight_bytes, gradients, it->work_bytes, it->work,
                                           it->reserve_bytes, it->reserve);
}

static void test_network_contract(void) {
    network it = make_network();
    float *dx = device_floats(2 * 4 * 3), *gradients = device_floats((int)it.weight_bytes / 4 + 1);
    fill(gradients, (int)it.weight_bytes / 4, 5);
    CHECK_INT(network_forward(&it), 0);
    CHECK_INT(network_backward(&it, dx, NULL), 0);
    CHECK_INT(network_gradients(&it, GG_CUDNN_RNN_ADD, gradients), 0);
    finish();
    CHECK(isnan(*values(it.work, 1)) && isfinite(*values(dx, 1)) && isfinite(*values(it.end, 1)));
    NOTHING_VIOLATED();
    /* The order of passes is seen when they are run. */
    CHECK_INT(network_backward(&it, dx, NULL), 0);
    finish();
    is_seen("the reserve is not what the pass before it has left", __LINE__);
    CHECK_INT(network_forward(&it), 0);
    CHECK_INT(network_gradients(&it, GG_CUDNN_RNN_ADD, gradients), 0);
    finish();
    is_seen("cudnnRNNBackwardWeights_v8: the reserve", __LINE__);
    network other = it;
    other.weight_bytes += 4;
    VIOLATES(network_forward(&other), 2000, "the weight space has");
    other = it;
    other.work_bytes -= 1;
    VIOLATES(network_forward(&other), 2000, "bytes of workspace and");
    other = it;
    other.reserve_bytes -= 1;
    VIOLATES(network_forward(&other), 2000, "of reserve are needed");
    other = it;
    other.work += 4;
    VIOLATES(network_forward(&other), 2003, "the workspace is not aligned to 256");
    other = it;
    other.y += 1;
    VIOLATES(network_forward(&other), 2003, "y is not aligned to 16");
    other = it;
    other.end = it.begin;
    VIOLATES(network_forward(&other), 2000, "hy overlaps with hx");
    other = it;
    other.x_desc = it.y_desc;
    VIOLATES(network_forward(&other), 2008, "by (3, 5)");
    VIOLATES(network_backward(&it, NULL, NULL), 2000, "dx is NULL");
    VIOLATES(network_backward(&it, it.x, it.end), 3000, "errors of the states");
    VIOLATES(network_gradients(&it, 1, gradients), 3000, "added to what is there");
    CHECK_INT(set_states(&it, 2), 0);
    VIOLATES(api->cudnnSetTensorNdDescriptor(it.state, 0, 3, (int[3]){2, 2, 5}, (int[3]){5, 10, 1}), 2000, "apart");
    CHECK_INT(api->cudnnSetTensorNdDescriptor(it.state, 0, 3, (int[3]){1, 2, 5}, (int[3]){10, 5, 1}), 0);
    VIOLATES(network_forward(&it), 2008, "the states are not (2, 2, 5)");
    CHECK_INT(set_states(&it, 2), 0);
    VIOLATES(set_sequences(it.x_desc, 3, 3), 3000, "sample 1 has 3 of 4 positions");
    VIOLATES(set_network(&it, 0, GG_CUDNN_FMA_MATH, GG_CUDNN_RNN_PADDED), 3000, "projected to 0");
    VIOLATES(set_network(&it, 5, GG_CUDNN_FMA_MATH, 0), 2000, "samples one by one are padded");
    VIOLATES(api->cudnnSetDropoutDescriptor(it.none, it.handle, 0.5f, NULL, 0, 0), 3000, "probability 0.5");
    CHECK_INT(set_network(&it, 5, GG_CUDNN_DEFAULT_MATH, GG_CUDNN_RNN_PADDED), 0);
    CHECK_INT(network_forward(&it), 0);
    CHECK_INT(gg_standin_count("tf32"), 1);
    finish();
    CHECK_INT(api->cudnnDestroyTensorDescriptor(it.state), 0);
    CHECK_INT(api->cudnnDestroyRNNDataDescriptor(it.y_desc), 0);
    CHECK_INT(api->cudnnDestroyRNNDataDescriptor(it.x_desc), 0);
    CHECK_INT(api->cudnnDestroyRNNDescriptor(it.rnn), 0);
    CHECK_INT(api->cudnnDestroyDropoutDescriptor(it.none), 0);
    CHECK_INT(api->cudnnDestroy(it.handle), 0);
    float *const all[] = {it.x, it.y, it.begin, it.end, it.weights, it.work, it.reserve, dx, gradients};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) CHECK_INT(api->cudaFree(all[i]), 0);
}

int main(void) {
    begin();
    test_convolutions();
    test_convolution_contract();
    test_products();
    test_product_contract();
    test_network_contract();
    check_leaks();
    return CHECK_RESULT;
}
