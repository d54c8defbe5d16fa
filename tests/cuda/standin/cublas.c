/* cuBLASLt's products of the stand-in: what the calls must fulfil, and plain loops that add up in double. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inside.h"

enum {
    INVALID = 7,
    NOT_SUPPORTED = 15,
    ORDER_COLUMNS = 0,
    LAYOUT_TYPE = 0,
    LAYOUT_ORDER = 1,
    MIN_ALIGNMENT = 5, /* of A; B, C and D follow */
    ALIGNED_WORKSPACE = 256,
    MAGIC = 0x6c747374,
};

static const char handle_kind[] = "cublasLtHandle", desc_kind[] = "cublasLtMatmulDesc";
static const char layout_kind[] = "cublasLtMatrixLayout", preference_kind[] = "cublasLtMatmulPreference";

typedef struct desc {
    int compute, scale;
    int32_t transposed[2];
    uint32_t epilogue;
    const void *bias;
} desc;

/* Columns lie one behind the other, `leading` elements from begin to begin. */
typedef struct layout {
    int type;
    uint64_t rows, columns;
    int64_t leading;
    int32_t batch;
    int64_t stride; /* elements from matrix to matrix */
} layout;

typedef struct preference {
    uint64_t workspace;
    uint32_t reduction;
    uint32_t alignment[4]; /* bytes, of A, B, C and D, on which the choice relies */
} preference;

/* What the words of an algorithm mean. */
enum { WORD_MAGIC, WORD_PROBLEM, WORD_WORKSPACE, WORD_ALIGNMENT };

static size_t cublasLtGetVersion(void) { return 130100; }

static const char *cublasLtGetStatusString(int status) {
    return status == 0               ? "CUBLAS_STATUS_SUCCESS"
           : status == 3             ? "CUBLAS_STATUS_ALLOC_FAILED"
           : status == INVALID       ? "CUBLAS_STATUS_INVALID_VALUE"
           : status == NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                     : "CUBLAS_STATUS_EXECUTION_FAILED";
}

static int cublasLtCreate(gg_cublas_handle *out) { return gg_standin_make("cublasLtCreate", handle_kind, 8, out); }
static int cublasLtDestroy(gg_cublas_handle it) {
    return gg_standin_unmake("cublasLtDestroy", handle_kind, it, INVALID);
}

static int cublasLtMatmulDescCreate(gg_cublas_desc *out, int compute, int scale) {
    const char *function = "cublasLtMatmulDescCreate";
    if ((compute != GG_CUBLAS_COMPUTE_32F && compute != GG_CUBLAS_COMPUTE_32F_PEDANTIC &&
         compute != GG_CUBLAS_COMPUTE_32F_FAST_TF32) ||
        scale != GG_CUBLAS_R_32F)
        return gg_standin_violation(INVALID, "%s: computes in %d, scales in %d", function, compute, scale);
    const int status = gg_standin_make(function, desc_kind, sizeof(desc), out);
    if (status != 0) return status;
    desc *made = (desc *)(void *)*out;
    made->compute = compute;
    made->scale = scale;
    made->epilogue = GG_CUBLAS_EPILOGUE_DEFAULT;
    return 0;
}

static int cublasLtMatmulDescDestroy(gg_cublas_desc it) {
    return gg_standin_unmake("cublasLtMatmulDescDestroy", desc_kind, it, INVALID);
}

static int wrong_size(const char *function, int attribute, size_t bytes, size_t wanted) {
    return gg_standin_violation(INVALID, "%s: attribute %d has %zu bytes, not %zu", function, attribute, wanted, bytes);
}

static int cublasLtMatmulDescSetAttribute(gg_cublas_desc object, int attribute, const void *value, size_t bytes) {
    const char *function = "cublasLtMatmulDescSetAttribute";
    const int planted = gg_standin_enter(function);
    if (planted != 0) return planted;
    desc *it = gg_standin_find(function, desc_kind, object);
    if (it == NULL || value == NULL) return INVALID;
    const size_t wanted = attribute == GG_CUBLAS_DESC_BIAS_POINTER ? sizeof(void *) : 4;
    if (bytes != wanted) return wrong_size(function, attribute, bytes, wanted);
    switch (attribute) {
    case GG_CUBLAS_DESC_TRANSA:
    case GG_CUBLAS_DESC_TRANSB: {
        int32_t transposed;
        memcpy(&transposed, value, sizeof transposed);
        if (transposed != GG_CUBLAS_OP_N && transposed != GG_CUBLAS_OP_T)
            return gg_standin_violation(INVALID, "%s: operation %d", function, transposed);
        it->transposed[attribute == GG_CUBLAS_DESC_TRANSB] = transposed;
        return 0;
    }
    case GG_CUBLAS_DESC_EPILOGUE:
        memcpy(&it->epilogue, value, sizeof it->epilogue);
        if (it->epilogue != GG_CUBLAS_EPILOGUE_DEFAULT && it->epilogue != GG_CUBLAS_EPILOGUE_RELU &&
            it->epilogue != GG_CUBLAS_EPILOGUE_BIAS && it->epilogue != GG_CUBLAS_EPILOGUE_RELU_BIAS)
            return gg_standin_violation(INVALID, "%s: epilogue %u is not known here", function, it->epilogue);
        return 0;
    case GG_CUBLAS_DESC_BIAS_POINTER: memcpy(&it->bias, value, sizeof it->bias); return 0;
    default: return gg_standin_violation(INVALID, "%s: attribute %d is not known here", function, attribute);
    }
}

static int cublasLtMatrixLayoutCreate(gg_cublas_layout *out, int type, uint64_t rows, uint64_t columns,
                                      int64_t leading) {
    const char *function = "cublasLtMatrixLayoutCreate";
    if (type != GG_CUBLAS_R_32F && type != GG_CUBLAS_R_16BF)
        return gg_standin_violation(INVALID, "%s: type %d", function, type);
    if (rows == 0 || columns == 0 || leading < 1)
        return gg_standin_violation(INVALID, "%s: %llu rows, %llu columns, leading size %lld", function,
                                    (unsigned long long)rows, (unsigned long long)columns, (long long)leading);
    const int status = gg_standin_make(function, layout_kind, sizeof(layout), out);
    if (status != 0) return status;
    *(layout *)(void *)*out =
        (layout){.type = type, .rows = rows, .columns = columns, .leading = leading, .batch = 1, .stride = 0};
    return 0;
}

static int cublasLtMatrixLayoutDestroy(gg_cublas_layout it) {
    return gg_standin_unmake("cublasLtMatrixLayoutDestroy", layout_kind, it, INVALID);
}

static int cublasLtMatrixLayoutSetAttribute(gg_cublas_layout object, int attribute, const void *value, size_t bytes) {
    const char *function = "cublasLtMatrixLayoutSetAttribute";
    const int planted = gg_standin_enter(function);
    if (planted != 0) return planted;
    layout *it = gg_standin_find(function, layout_kind, object);
    if (it == NULL || value == NULL) return INVALID;
    const size_t wanted = attribute == GG_CUBLAS_LAYOUT_BATCH_STRIDE ? 8 : 4;
    if (bytes != wanted) return wrong_size(function, attribute, bytes, wanted);
    int32_t order;
    switch (attribute) {
    case GG_CUBLAS_LAYOUT_BATCH_COUNT: memcpy(&it->batch, value, sizeof it->batch); return 0;
    case GG_CUBLAS_LAYOUT_BATCH_STRIDE: memcpy(&it->stride, value, sizeof it->stride); return 0;
    case LAYOUT_ORDER:
        memcpy(&order, value, sizeof order);
        if (order == ORDER_COLUMNS) return 0;
        return gg_standin_violation(INVALID, "%s: order %d is not known here", function, order);
    default: return gg_standin_violation(INVALID, "%s: attribute %d is not known here", function, attribute);
    }
}

static int cublasLtMatmulPreferenceCreate(gg_cublas_preference *out) {
    const int status = gg_standin_make("cublasLtMatmulPreferenceCreate", preference_kind, sizeof(preference), out);
    if (status != 0) return status;
    *(preference *)(void *)*out = (preference){.reduction = ~0u, .alignment = {256, 256, 256, 256}};
    return 0;
}

static int cublasLtMatmulPreferenceDestroy(gg_cublas_preference it) {
    return gg_standin_unmake("cublasLtMatmulPreferenceDestroy", preference_kind, it, INVALID);
}

static int cublasLtMatmulPreferenceSetAttribute(gg_cublas_preference object, int attribute, const void *value,
                                                size_t bytes) {
    const char *function = "cublasLtMatmulPreferenceSetAttribute";
    const int planted = gg_standin_enter(function);
    if (planted != 0) return planted;
    preference *it = gg_standin_find(function, preference_kind, object);
    if (it == NULL || value == NULL) return INVALID;
    const size_t wanted = attribute == GG_CUBLAS_PREFERENCE_WORKSPACE ? 8 : 4;
    if (bytes != wanted) return wrong_size(function, attribute, bytes, wanted);
    if (attribute == GG_CUBLAS_PREFERENCE_WORKSPACE) memcpy(&it->workspace, value, sizeof it->workspace);
    else if (attribute == GG_CUBLAS_PREFERENCE_REDUCTION) memcpy(&it->reduction, value, sizeof it->reduction);
    else if (attribute >= MIN_ALIGNMENT && attribute < MIN_ALIGNMENT + 4)
        memcpy(&it->alignment[attribute - MIN_ALIGNMENT], value, sizeof(uint32_t));
    else return gg_standin_violation(INVALID, "%s: attribute %d is not known here", function, attribute);
    return 0;
}

/* --------------------------------------------------------------------------------------------------------- checks */

typedef struct problem {
    desc how;
    layout matrix[4]; /* A, B, C, D */
    uint64_t rows, columns, inner;
} problem;

static const char names[] = "ABCD";

static int check_problem(const char *function, const void *handle, const void *how, const void *const layouts[4],
                         problem *out) {
    const desc *found = gg_standin_find(function, desc_kind, how);
    if (gg_standin_find(function, handle_kind, handle) == NULL || found == NULL) return INVALID;
    memset(out, 0, sizeof *out);
    out->how = *found;
    for (int i = 0; i < 4; ++i) {
        const layout *matrix = gg_standin_find(function, layout_kind, layouts[i]);
        if (matrix == NULL) return INVALID;
        out->matrix[i] = *matrix;
        if (matrix->leading < (int64_t)matrix->rows)
            return gg_standin_violation(INVALID, "%s: the columns of %c have %llu rows and begin every %lld elements",
                                        function, names[i], (unsigned long long)matrix->rows,
                                        (long long)matrix->leading);
        if (matrix->batch != out->matrix[0].batch)
            return gg_standin_violation(INVALID, "%s: %d matrices of A and %d of %c", function, out->matrix[0].batch,
                                        matrix->batch, names[i]);
        if (matrix->type != out->matrix[i < 2 ? 0 : 2].type)
            return gg_standin_violation(NOT_SUPPORTED, "%s: the type of %c is %d", function, names[i], matrix->type);
    }
    const layout *a = &out->matrix[0], *b = &out->matrix[1], *c = &out->matrix[2], *d = &out->matrix[3];
    const bool narrow = a->type == GG_CUBLAS_R_16BF;
    if ((!narrow && d->type != GG_CUBLAS_R_32F) || (narrow && out->how.compute == GG_CUBLAS_COMPUTE_32F_FAST_TF32))
        return gg_standin_violation(NOT_SUPPORTED, "%s: from type %d to %d, computing in %d", function, a->type,
                                    d->type, out->how.compute);
    out->rows = out->how.transposed[0] ? a->columns : a->rows;
    out->inner = out->how.transposed[0] ? a->rows : a->columns;
    out->columns = out->how.transposed[1] ? b->rows : b->columns;
    const uint64_t inner = out->how.transposed[1] ? b->columns : b->rows;
    if (inner != out->inner || d->rows != out->rows || d->columns != out->columns || c->rows != d->rows ||
        c->columns != d->columns)
        return gg_standin_violation(INVALID, "%s: (%llu, %llu) by (%llu, %llu) does not give (%llu, %llu)", function,
                                    (unsigned long long)out->rows, (unsigned long long)out->inner,
                                    (unsigned long long)inner, (unsigned long long)out->columns,
                                    (unsigned long long)d->rows, (unsigned long long)d->columns);
    if (d->batch > 1 && d->stride < (int64_t)d->columns * d->leading - (d->leading - (int64_t)d->rows) &&
        d->stride < (int64_t)d->rows)
        return gg_standin_violation(INVALID, "%s: the matrices of D overlap", function);
    return 0;
}

/* What an algorithm was chosen for. The address of the bias may differ. */
static uint64_t hash_of(const problem *of) {
    const uint64_t words[] = {(uint64_t)of->how.compute, (uint64_t)of->how.transposed[0],
                              (uint64_t)of->how.transposed[1], of->how.epilogue};
    uint64_t hash = 1469598103934665603u;
    for (int i = 0; i < 4; ++i) {
        const layout *it = &of->matrix[i];
        const uint64_t more[] = {(uint64_t)it->type,  it->rows, it->columns, (uint64_t)it->leading, (uint64_t)it->batch,
                                 (uint64_t)it->stride};
        hash = (hash ^ words[i]) * 1099511628211u;
        for (int j = 0; j < 6; ++j) hash = (hash ^ more[j]) * 1099511628211u;
    }
    return hash;
}

static int cublasLtMatmulAlgoGetHeuristic(gg_cublas_handle handle, gg_cublas_desc how, gg_cublas_layout a,
                                          gg_cublas_layout b, gg_cublas_layout c, gg_cublas_layout d,
                                          gg_cublas_preference preference_of_caller, int asked, gg_cublas_choice *found,
                                          int *got) {
    const char *function = "cublasLtMatmulAlgoGetHeuristic";
    problem of;
    int status = gg_standin_enter(function);
    if (status == 0) status = check_problem(function, handle, how, (const void *const[]){a, b, c, d}, &of);
    if (status != 0) return status;
    const preference *wanted = gg_standin_find(function, preference_kind, preference_of_caller);
    if (wanted == NULL) return INVALID;
    if (asked < 1 || found == NULL || got == NULL)
        return gg_standin_violation(INVALID, "%s: %d results are asked for", function, asked);
    if (of.matrix[0].type == GG_CUBLAS_R_16BF &&
        (status = gg_standin_enter("cublasLtMatmulAlgoGetHeuristic bfloat16")) != 0)
        return status;
    /* One row or column has no form that adds a bias. */
    *got = 0;
    if ((of.how.epilogue & GG_CUBLAS_EPILOGUE_BIAS) != 0 && (of.rows == 1 || of.columns == 1)) return 0;
    uint64_t alignment = 0;
    for (int i = 0; i < 4; ++i) alignment |= (uint64_t)(wanted->alignment[i] & 0xffffu) << 16 * i;
    *got = asked < 2 ? asked : 2;
    /* The first one uses as much workspace as it may. */
    const uint64_t most = of.rows * of.columns * 4, usable = most < wanted->workspace ? most : wanted->workspace;
    for (int i = 0; i < *got; ++i) {
        found[i] = (gg_cublas_choice){.workspace = i == 0 ? usable : 0, .state = 0, .waves = 1};
        found[i].algorithm.data[WORD_MAGIC] = MAGIC;
        found[i].algorithm.data[WORD_PROBLEM] = hash_of(&of);
        found[i].algorithm.data[WORD_WORKSPACE] = found[i].workspace;
        found[i].algorithm.data[WORD_ALIGNMENT] = alignment;
    }
    return 0;
}

/* --------------------------------------------------------------------------------------------------------- running */

typedef struct running {
    problem of;
    float alpha, beta;
    bool tf32;
    void *matrix[4];
    void *bias, *workspace;
    size_t bytes;
} running;

static size_t element_bytes(const layout *it) { return it->type == GG_CUBLAS_R_32F ? 4 : 2; }

static size_t bytes_of(const layout *it) {
    const int64_t one = ((int64_t)it->columns - 1) * it->leading + (int64_t)it->rows;
    return (size_t)((it->batch - 1) * it->stride + one) * element_bytes(it);
}

static float read_at(int type, const void *data, int64_t place) {
    union {
        uint32_t bits;
        float value;
    } word;
    if (type == GG_CUBLAS_R_32F) return ((const float *)data)[place];
    word.bits = (uint32_t)((const uint16_t *)data)[place] << 16;
    return word.value;
}

static void write_at(int type, void *data, int64_t place, float value) {
    union {
        float value;
        uint32_t bits;
    } word = {value};
    if (type == GG_CUBLAS_R_32F) ((float *)data)[place] = value;
    else
        ((uint16_t *)data)[place] =
            value != value ? 0x7fc0 : (uint16_t)((word.bits + 0x7fffu + (word.bits >> 16 & 1u)) >> 16);
}

/* op(A) or op(B)^T, one matrix of a batch, with rows of `inner` elements. */
static double *read_rows(const layout *it, const void *data, int matrix, bool inner_is_rows, bool tf32) {
    const uint64_t rows = inner_is_rows ? it->columns : it->rows, inner = inner_is_rows ? it->rows : it->columns;
    double *all = malloc(rows * inner * sizeof *all);
    if (all == NULL) abort();
    for (uint64_t r = 0; r < rows; ++r)
        for (uint64_t i = 0; i < inner; ++i) {
            const int64_t row = (int64_t)(inner_is_rows ? i : r), column = (int64_t)(inner_is_rows ? r : i);
            const float value = read_at(it->type, data, matrix * it->stride + column * it->leading + row);
            all[r * inner + i] = (double)(tf32 ? gg_standin_tf32(value) : value);
        }
    return all;
}

static void run_product(void *packet) {
    const running *it = packet;
    const layout *d = &it->of.matrix[3], *c = &it->of.matrix[2];
    const uint64_t inner = it->of.inner;
    if (it->bytes > 0) memset(it->workspace, 0xff, it->bytes);
    for (int matrix = 0; matrix < d->batch; ++matrix) {
        double *a = read_rows(&it->of.matrix[0], it->matrix[0], matrix, it->of.how.transposed[0] != 0, it->tf32);
        double *b = read_rows(&it->of.matrix[1], it->matrix[1], matrix, it->of.how.transposed[1] == 0, it->tf32);
        for (uint64_t column = 0; column < it->of.columns; ++column)
            for (uint64_t row = 0; row < it->of.rows; ++row) {
                const double *x = a + row * inner, *y = b + column * inner;
                double part[4] = {0};
                uint64_t i = 0;
                for (; i + 4 <= inner; i += 4)
                    for (int j = 0; j < 4; ++j) part[j] += x[i + j] * y[i + j];
                for (; i < inner; ++i) part[0] += x[i] * y[i];
                double sum = it->alpha * (part[0] + part[1] + part[2] + part[3]);
                if (it->beta != 0)
                    sum += (double)it->beta * read_at(c->type, it->matrix[2],
                                                      matrix * c->stride + (int64_t)column * c->leading + (int64_t)row);
                if (it->bias != NULL) sum += (double)read_at(d->type, it->bias, (int64_t)row);
                if ((it->of.how.epilogue & GG_CUBLAS_EPILOGUE_RELU) != 0 && !(sum > 0)) sum = 0; /* NaN, too */
                write_at(d->type, it->matrix[3], matrix * d->stride + (int64_t)column * d->leading + (int64_t)row,
                         (float)sum);
            }
        free(a);
        free(b);
    }
}

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    return (const char *)a < (const char *)b + b_bytes && (const char *)b < (const char *)a + a_bytes;
}

static int cublasLtMatmul(gg_cublas_handle handle, gg_cublas_desc how, const void *alpha, const void *a,
                          gg_cublas_layout a_layout, const void *b, gg_cublas_layout b_layout, const void *beta,
                          const void *c, gg_cublas_layout c_layout, void *d, gg_cublas_layout d_layout,
                          const gg_cublas_algorithm *algorithm, void *workspace, size_t bytes, gg_cuda_stream stream) {
    const char *function = "cublasLtMatmul";
    running made = {0};
    gg_standin_uses uses = {0};
    const void *const matrix[4] = {a, b, c, d}, *const layouts[4] = {a_layout, b_layout, c_layout, d_layout};
    int status = gg_standin_enter(function);
    if (status == 0) status = check_problem(function, handle, how, layouts, &made.of);
    if (status != 0) return status;
    if (alpha == NULL || beta == NULL) return gg_standin_violation(INVALID, "%s: alpha or beta is NULL", function);
    memcpy(&made.alpha, alpha, sizeof made.alpha);
    memcpy(&made.beta, beta, sizeof made.beta);
    uint64_t alignment[4];
    for (int i = 0; i < 4; ++i) alignment[i] = element_bytes(&made.of.matrix[i]);
    if (algorithm != NULL) {
        if (algorithm->data[WORD_MAGIC] != MAGIC)
            return gg_standin_violation(INVALID, "%s: the algorithm is not one that was found", function);
        if (algorithm->data[WORD_PROBLEM] != hash_of(&made.of))
            return gg_standin_violation(NOT_SUPPORTED, "%s: the algorithm was found for another product", function);
        made.bytes = algorithm->data[WORD_WORKSPACE];
        for (int i = 0; i < 4; ++i) alignment[i] = algorithm->data[WORD_ALIGNMENT] >> 16 * i & 0xffffu;
    }
    if (bytes < made.bytes)
        return gg_standin_violation(INVALID, "%s: the algorithm needs %zu bytes of workspace and has %zu", function,
                                    made.bytes, bytes);
    for (int i = 0; i < 4; ++i) {
        const char name[] = {names[i], 0};
        if (i == 2 && made.beta == 0) continue;
        if (!gg_standin_operand(&uses, function, name, matrix[i], bytes_of(&made.of.matrix[i]), alignment[i],
                                &made.matrix[i]))
            return INVALID;
    }
    if (made.bytes > 0 && !gg_standin_operand(&uses, function, "the workspace", workspace, made.bytes,
                                              ALIGNED_WORKSPACE, &made.workspace))
        return INVALID;
    if ((made.of.how.epilogue & GG_CUBLAS_EPILOGUE_BIAS) != 0 &&
        !gg_standin_operand(&uses, function, "the bias", made.of.how.bias,
                            made.of.rows * element_bytes(&made.of.matrix[3]), element_bytes(&made.of.matrix[3]),
                            &made.bias))
        return INVALID;
    for (int i = 0; i < 3; ++i) {
        if (i == 2 &&
            (made.beta == 0 || (c == d && memcmp(&made.of.matrix[2], &made.of.matrix[3], sizeof(layout)) == 0)))
            continue;
        if (overlap(matrix[i], bytes_of(&made.of.matrix[i]), d, bytes_of(&made.of.matrix[3])))
            return gg_standin_violation(INVALID, "%s: D overlaps with %c", function, names[i]);
    }
    made.tf32 = made.of.how.compute == GG_CUBLAS_COMPUTE_32F_FAST_TF32;
    if (made.tf32) gg_standin_count_one("tf32");
    return gg_standin_submit(function, stream, run_product, &made, sizeof made, &uses) == 0 ? 0 : INVALID;
}

void gg_standin_fill_cublas(gg_cuda_api *api) {
#define FILL(result, name, arguments) api->name = name;
    GG_CUBLAS_FUNCTIONS(FILL)
}
