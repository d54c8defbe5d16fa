/* cuDNN's convolutions of the stand-in: what the calls must fulfil, and plain loops that add up in double. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inside.h"

enum {
    BAD_PARAM = 2000,
    MISALIGNED = 2003,
    SHAPE_MISMATCH = 2008,
    NOT_SUPPORTED = 3000,
    ALIGNED = 16,            /* tensors */
    ALIGNED_WORKSPACE = 256, /* as cudaMalloc gives it */
    /* Algorithms of the forward pass: */
    PRECOMPUTED_PRODUCT = 1, /* adds a bias without an activation */
    EXPLICIT_PRODUCT = 2,    /* not as NHWC */
};

static const char handle_kind[] = "cudnnHandle", tensor_kind[] = "cudnnTensorDescriptor";
static const char activation_kind[] = "cudnnActivationDescriptor";
static const char filter_kind[] = "cudnnFilterDescriptor", convolution_kind[] = "cudnnConvolutionDescriptor";

typedef struct handle {
    gg_cuda_stream stream;
    bool bound; /* to a stream */
    int callers;
} handle;

/* A tensor (N, C, H, W) or a filter (K, C, R, S), without gaps; or a tensor of other dimensions, for recurrent
 * networks. */
typedef struct array {
    bool set;
    int type, format;
    int size[4];
    int others; /* dimensions that are not four; 0: they are */
} array;

typedef struct convolution {
    bool set;
    int pad[2], stride[2], dilation[2];
    int groups, math;
} convolution;

typedef struct activation {
    bool set;
    int mode;
} activation;

/* What a call is about, checked. */
typedef struct shapes {
    array x, w, y;
    convolution how;
} shapes;

typedef enum pass { FORWARD, BACKWARD_DATA, BACKWARD_FILTER } pass;

/* -------------------------------------------------------------------------------------------------------- handles */

static size_t cudnnGetVersion(void) { return 91900; }

static const char *cudnnGetErrorString(int status) {
    return status == 0     ? "CUDNN_STATUS_SUCCESS"
           : status < 2000 ? "CUDNN_STATUS_NOT_INITIALIZED"
           : status < 3000 ? "CUDNN_STATUS_BAD_PARAM"
           : status < 4000 ? "CUDNN_STATUS_NOT_SUPPORTED"
           : status < 5000 ? "CUDNN_STATUS_INTERNAL_ERROR"
                           : "CUDNN_STATUS_EXECUTION_FAILED";
}

static int cudnnCreate(gg_cudnn_handle *out) {
    return gg_standin_make("cudnnCreate", handle_kind, sizeof(handle), out);
}
static int cudnnDestroy(gg_cudnn_handle it) { return gg_standin_unmake("cudnnDestroy", handle_kind, it, BAD_PARAM); }

static int cudnnSetStream(gg_cudnn_handle handle_of_caller, gg_cuda_stream stream) {
    const int planted = gg_standin_enter("cudnnSetStream");
    if (planted != 0) return planted;
    handle *it = gg_standin_find("cudnnSetStream", handle_kind, handle_of_caller);
    if (it == NULL || !gg_standin_stream_is_alive("cudnnSetStream", stream)) return BAD_PARAM;
    it->stream = stream;
    it->bound = true;
    return 0;
}

/* ---------------------------------------------------------------------------------------------------- descriptors */

static int cudnnCreateTensorDescriptor(gg_cudnn_tensor *out) {
    return gg_standin_make("cudnnCreateTensorDescriptor", tensor_kind, sizeof(array), out);
}
static int cudnnDestroyTensorDescriptor(gg_cudnn_tensor it) {
    return gg_standin_unmake("cudnnDestroyTensorDescriptor", tensor_kind, it, BAD_PARAM);
}
static int cudnnCreateFilterDescriptor(gg_cudnn_filter *out) {
    return gg_standin_make("cudnnCreateFilterDescriptor", filter_kind, sizeof(array), out);
}
static int cudnnDestroyFilterDescriptor(gg_cudnn_filter it) {
    return gg_standin_unmake("cudnnDestroyFilterDescriptor", filter_kind, it, BAD_PARAM);
}
static int cudnnCreateConvolutionDescriptor(gg_cudnn_convolution *out) {
    return gg_standin_make("cudnnCreateConvolutionDescriptor", convolution_kind, sizeof(convolution), out);
}
static int cudnnDestroyConvolutionDescriptor(gg_cudnn_convolution it) {
    return gg_standin_unmake("cudnnDestroyConvolutionDescriptor", convolution_kind, it, BAD_PARAM);
}

static int cudnnCreateActivationDescriptor(gg_cudnn_activation *out) {
    return gg_standin_make("cudnnCreateActivationDescriptor", activation_kind, sizeof(activation), out);
}
static int cudnnDestroyActivationDescriptor(gg_cudnn_activation it) {
    return gg_standin_unmake("cudnnDestroyActivationDescriptor", activation_kind, it, BAD_PARAM);
}

static int cudnnSetActivationDescriptor(gg_cudnn_activation object, int mode, int nan, double ceiling) {
    const char *function = "cudnnSetActivationDescriptor";
    const int planted = gg_standin_enter(function);
    if (planted != 0) return planted;
    activation *it = gg_standin_find(function, activation_kind, object);
    if (it == NULL) return BAD_PARAM;
    if (mode < 0 || mode > 6 || nan < 0 || nan > 1 || isnan(ceiling))
        return gg_standin_violation(BAD_PARAM, "%s: mode %d, NaN %d, ceiling %g", function, mode, nan, ceiling);
    if ((mode != GG_CUDNN_ACTIVATION_RELU && mode != GG_CUDNN_ACTIVATION_IDENTITY) || nan != GG_CUDNN_NOT_PROPAGATE_NAN)
        return gg_standin_violation(NOT_SUPPORTED, "%s: mode %d, NaN %d: nothing here uses these", function, mode, nan);
    *it = (activation){.set = true, .mode = mode};
    return 0;
}

static int set_array(const char *function, const char *kind, void *object, int format, int type, const int size[4]) {
    const int planted = gg_standin_enter(function);
    if (planted != 0) return planted;
    array *it = gg_standin_find(function, kind, object);
    if (it == NULL) return BAD_PARAM;
    if (format != GG_CUDNN_TENSOR_NCHW && format != GG_CUDNN_TENSOR_NHWC)
        return gg_standin_violation(BAD_PARAM, "%s: format %d", function, format);
    if (type != GG_CUDNN_DATA_FLOAT && type != GG_CUDNN_DATA_BFLOAT16)
        return gg_standin_violation(BAD_PARAM, "%s: type %d", function, type);
    int64_t elements = 1;
    for (int i = 0; i < 4; ++i) {
        if (size[i] < 1) return gg_standin_violation(BAD_PARAM, "%s: size %d of axis %d", function, size[i], i);
        elements *= size[i];
        if (elements > 0x7fffffff) return gg_standin_violation(NOT_SUPPORTED, "%s: more than 2^31 elements", function);
    }
    *it = (array){.set = true, .type = type, .format = format, .size = {size[0], size[1], size[2], size[3]}};
    return 0;
}

static int cudnnSetTensor4dDescriptor(gg_cudnn_tensor tensor, int format, int type, int n, int c, int h, int w) {
    return set_array("cudnnSetTensor4dDescriptor", tensor_kind, tensor, format, type, (int[4]){n, c, h, w});
}

static int cudnnSetFilter4dDescriptor(gg_cudnn_filter filter, int type, int format, int k, int c, int h, int w) {
    return set_array("cudnnSetFilter4dDescriptor", filter_kind, filter, format, type, (int[4]){k, c, h, w});
}

bool gg_standin_dnn_stream(const char *function, const void *handle_of_caller, gg_cuda_stream *out) {
    const handle *it = gg_standin_find(function, handle_kind, handle_of_caller);
    if (it == NULL) return false;
    if (!it->bound) {
        gg_standin_violation(BAD_PARAM, "%s: the handle has no stream", function);
        return false;
    }
    *out = it->stream;
    return true;
}

int gg_standin_tensor_set(const char *function, void *tensor, int type, int dims, const int *size) {
    array *it = gg_standin_find(function, tensor_kind, tensor);
    if (it == NULL) return BAD_PARAM;
    if (dims < 0 || dims > 4) return gg_standin_violation(NOT_SUPPORTED, "%s: %d dimensions", function, dims);
    *it = (array){.set = true, .type = type, .format = GG_CUDNN_TENSOR_NCHW, .others = dims == 4 ? 0 : dims};
    for (int i = 0; i < dims; ++i) it->size[i] = size[i];
    return 0;
}

int gg_standin_tensor_get(const char *function, const void *tensor, int *type, int *dims, int size[4]) {
    const array *it = gg_standin_find(function, tensor_kind, tensor);
    if (it == NULL) return BAD_PARAM;
    if (!it->set) return gg_standin_violation(BAD_PARAM, "%s: a tensor descriptor is not set", function);
    *type = it->type;
    *dims = it->others != 0 ? it->others : 4;
    memcpy(size, it->size, sizeof it->size);
    return 0;
}

static int cudnnSetConvolution2dDescriptor(gg_cudnn_convolution object, int pad_h, int pad_w, int stride_h,
                                           int stride_w, int dilation_h, int dilation_w, int mode, int type) {
    const char *function = "cudnnSetConvolution2dDescriptor";
    const int planted = gg_standin_enter(function);
    if (planted != 0) return planted;
    convolution *it = gg_standin_find(function, convolution_kind, object);
    if (it == NULL) return BAD_PARAM;
    if (pad_h < 0 || pad_w < 0 || stride_h < 1 || stride_w < 1 || dilation_h < 1 || dilation_w < 1)
        return gg_standin_violation(BAD_PARAM, "%s: padding (%d, %d), stride (%d, %d), dilation (%d, %d)", function,
                                    pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w);
    if (mode != GG_CUDNN_CROSS_CORRELATION)
        return gg_standin_violation(BAD_PARAM, "%s: mode %d turns the filter by 180 degrees", function, mode);
    if (type != GG_CUDNN_DATA_FLOAT)
        return gg_standin_violation(NOT_SUPPORTED, "%s: computes in type %d", function, type);
    /* sets the groups and the kind of products back */
    *it = (convolution){.set = true,
                        .pad = {pad_h, pad_w},
                        .stride = {stride_h, stride_w},
                        .dilation = {dilation_h, dilation_w},
                        .groups = 1,
                        .math = GG_CUDNN_DEFAULT_MATH};
    return 0;
}

static int cudnnSetConvolutionGroupCount(gg_cudnn_convolution object, int groups) {
    const char *function = "cudnnSetConvolutionGroupCount";
    const int planted = gg_standin_enter(function);
    if (planted != 0) return planted;
    convolution *it = gg_standin_find(function, convolution_kind, object);
    if (it == NULL) return BAD_PARAM;
    if (!it->set || groups < 1)
        return gg_standin_violation(BAD_PARAM, "%s: %d groups, the descriptor is %s", function, groups,
                                    it->set ? "set" : "not set");
    it->groups = groups;
    return 0;
}

static int cudnnSetConvolutionMathType(gg_cudnn_convolution object, int math) {
    const char *function = "cudnnSetConvolutionMathType";
    const int planted = gg_standin_enter(function);
    if (planted != 0) return planted;
    convolution *it = gg_standin_find(function, convolution_kind, object);
    if (it == NULL) return BAD_PARAM;
    if (!it->set || math < 0 || math > 3)
        return gg_standin_violation(BAD_PARAM, "%s: %d, the descriptor is %s", function, math,
                                    it->set ? "set" : "not set");
    it->math = math;
    return 0;
}

/* --------------------------------------------------------------------------------------------------------- checks */

static int64_t elements_of(const array *it) { return (int64_t)it->size[0] * it->size[1] * it->size[2] * it->size[3]; }

static size_t bytes_of(const array *it) { return (size_t)elements_of(it) * (it->type == GG_CUDNN_DATA_FLOAT ? 4 : 2); }

static int check_shapes(const char *function, const void *handle_of_caller, const void *x, const void *w,
                        const void *how, const void *y, shapes *out) {
    const handle *it = gg_standin_find(function, handle_kind, handle_of_caller);
    const array *from = gg_standin_find(function, tensor_kind, x), *to = gg_standin_find(function, tensor_kind, y);
    const array *filter = gg_standin_find(function, filter_kind, w);
    const convolution *wanted = gg_standin_find(function, convolution_kind, how);
    if (it == NULL || from == NULL || to == NULL || filter == NULL || wanted == NULL) return BAD_PARAM;
    if (!from->set || !to->set || !filter->set || !wanted->set)
        return gg_standin_violation(BAD_PARAM, "%s: the descriptor of %s is not set", function,
                                    !from->set     ? "x"
                                    : !to->set     ? "y"
                                    : !filter->set ? "w"
                                                   : "the convolution");
    if (from->others != 0 || to->others != 0)
        return gg_standin_violation(BAD_PARAM, "%s: x has %d dimensions, y has %d", function, from->others, to->others);
    *out = (shapes){.x = *from, .w = *filter, .y = *to, .how = *wanted};
    if (from->type != to->type || from->type != filter->type)
        return gg_standin_violation(BAD_PARAM, "%s: x, w and y are of types %d, %d, %d", function, from->type,
                                    filter->type, to->type);
    if (from->format != to->format || from->format != filter->format)
        return gg_standin_violation(NOT_SUPPORTED, "%s: x, w and y have formats %d, %d, %d", function, from->format,
                                    filter->format, to->format);
    if (from->size[1] != filter->size[1] * wanted->groups || filter->size[0] % wanted->groups != 0)
        return gg_standin_violation(SHAPE_MISMATCH, "%s: %d channels, %d groups, a filter (%d, %d, ...)", function,
                                    from->size[1], wanted->groups, filter->size[0], filter->size[1]);
    int size[4] = {from->size[0], filter->size[0]};
    for (int i = 0; i < 2; ++i) {
        const int room = from->size[2 + i] + 2 * wanted->pad[i] - wanted->dilation[i] * (filter->size[2 + i] - 1) - 1;
        size[2 + i] = room < 0 ? 0 : room / wanted->stride[i] + 1;
    }
    if (memcmp(size, to->size, sizeof size) != 0)
        return gg_standin_violation(
            SHAPE_MISMATCH, "%s: y is (%d, %d, %d, %d), and the convolution gives (%d, %d, %d, %d)", function,
            to->size[0], to->size[1], to->size[2], to->size[3], size[0], size[1], size[2], size[3]);
    return 0;
}

/* ------------------------------------------------------------------------------------------------------ algorithms */

/* The algorithms of each pass, the one that is said to be the fastest first: it is not deterministic where there is
 * such a one, and wants workspace. */
static const struct {
    int algorithm;
    bool supported, deterministic, winograd;
    int workspace; /* times the elements of y */
} known[3][6] = {
    [FORWARD] = {{7, true, true, true, 16},
                 {1, true, true, false, 4},
                 {2, true, true, false, 36},
                 {0, true, true, false, 0},
                 {4, false, true, false, 0},
                 {3, false, true, false, 0}},
    [BACKWARD_DATA] = {{0, true, false, false, 0},
                       {5, true, true, true, 16},
                       {1, true, true, false, 8},
                       {3, false, true, false, 0},
                       {2, false, true, false, 0},
                       {4, false, true, false, 0}},
    [BACKWARD_FILTER] = {{3, true, false, false, 4},
                         {0, true, false, false, 0},
                         {5, true, true, true, 16},
                         {1, true, true, false, 8},
                         {6, false, true, false, 0},
                         {2, false, true, false, 0}},
};

/* The place of the algorithm in the table, or -1: not possible for these shapes. */
static int place_of(pass which, const shapes *of, int algorithm) {
    for (int i = 0; i < 6; ++i) {
        if (known[which][i].algorithm != algorithm || !known[which][i].supported) continue;
        const bool small = of->w.size[2] == 3 && of->w.size[3] == 3 && of->how.stride[0] == 1 &&
                           of->how.stride[1] == 1 && of->how.dilation[0] == 1 && of->how.dilation[1] == 1;
        const bool packed = of->x.format == GG_CUDNN_TENSOR_NHWC, narrow = of->x.type != GG_CUDNN_DATA_FLOAT;
        if (known[which][i].winograd && (narrow || !small || of->how.groups != 1)) return -1;
        return packed && which == FORWARD && algorithm == EXPLICIT_PRODUCT ? -1 : i;
    }
    return -1;
}

/* The error that is planted for the function and this algorithm, which is listed all the same. */
static int planted_for(const char *function, int algorithm) {
    char name[96];
    snprintf(name, sizeof name, "%s %d", function, algorithm);
    return gg_standin_enter(name);
}

static size_t workspace_of(pass which, const shapes *of, int place) {
    return (size_t)elements_of(&of->y) * (size_t)known[which][place].workspace;
}

static int find_algorithms(const char *function, pass which, const void *handle_of_caller, const void *x, const void *w,
                           const void *how, const void *y, int asked, int *got, gg_cudnn_algorithm *found) {
    shapes of;
    int status = gg_standin_enter(function);
    if (status == 0) status = check_shapes(function, handle_of_caller, x, w, how, y, &of);
    if (status != 0) return status;
    if (asked < 1 || got == NULL || found == NULL)
        return gg_standin_violation(BAD_PARAM, "%s: %d results are asked for", function, asked);
    *got = asked < 6 ? asked : 6;
    for (int i = 0; i < *got; ++i) {
        const int place = place_of(which, &of, known[which][i].algorithm);
        found[i] = (gg_cudnn_algorithm){.algorithm = known[which][i].algorithm,
                                        .status = place >= 0 ? 0 : NOT_SUPPORTED,
                                        .time = place >= 0 ? (float)(i + 1) : -1,
                                        .memory = place >= 0 ? workspace_of(which, &of, place) : 0,
                                        .determinism = known[which][i].deterministic,
                                        .math = of.how.math};
    }
    return 0;
}

static int cudnnGetConvolutionForwardAlgorithm_v7(gg_cudnn_handle handle_of_caller, gg_cudnn_tensor x,
                                                  gg_cudnn_filter w, gg_cudnn_convolution how, gg_cudnn_tensor y,
                                                  int asked, int *got, gg_cudnn_algorithm *found) {
    return find_algorithms("cudnnGetConvolutionForwardAlgorithm_v7", FORWARD, handle_of_caller, x, w, how, y, asked,
                           got, found);
}

static int cudnnGetConvolutionBackwardDataAlgorithm_v7(gg_cudnn_handle handle_of_caller, gg_cudnn_filter w,
                                                       gg_cudnn_tensor dy, gg_cudnn_convolution how, gg_cudnn_tensor dx,
                                                       int asked, int *got, gg_cudnn_algorithm *found) {
    return find_algorithms("cudnnGetConvolutionBackwardDataAlgorithm_v7", BACKWARD_DATA, handle_of_caller, dx, w, how,
                           dy, asked, got, found);
}

static int cudnnGetConvolutionBackwardFilterAlgorithm_v7(gg_cudnn_handle handle_of_caller, gg_cudnn_tensor x,
                                                         gg_cudnn_tensor dy, gg_cudnn_convolution how,
                                                         gg_cudnn_filter dw, int asked, int *got,
                                                         gg_cudnn_algorithm *found) {
    return find_algorithms("cudnnGetConvolutionBackwardFilterAlgorithm_v7", BACKWARD_FILTER, handle_of_caller, x, dw,
                           how, dy, asked, got, found);
}

static int find_workspace(const char *function, pass which, const void *handle_of_caller, const void *x, const void *w,
                          const void *how, const void *y, int algorithm, size_t *bytes) {
    shapes of;
    int status = gg_standin_enter(function);
    if (status == 0) status = check_shapes(function, handle_of_caller, x, w, how, y, &of);
    if (status != 0) return status;
    const int place = place_of(which, &of, algorithm);
    if (place < 0) return NOT_SUPPORTED; /* a question, no violation */
    if ((status = planted_for(function, algorithm)) != 0) return status;
    *bytes = workspace_of(which, &of, place);
    return 0;
}

static int cudnnGetConvolutionForwardWorkspaceSize(gg_cudnn_handle handle_of_caller, gg_cudnn_tensor x,
                                                   gg_cudnn_filter w, gg_cudnn_convolution how, gg_cudnn_tensor y,
                                                   int algorithm, size_t *bytes) {
    return find_workspace("cudnnGetConvolutionForwardWorkspaceSize", FORWARD, handle_of_caller, x, w, how, y, algorithm,
                          bytes);
}

static int cudnnGetConvolutionBackwardDataWorkspaceSize(gg_cudnn_handle handle_of_caller, gg_cudnn_filter w,
                                                        gg_cudnn_tensor dy, gg_cudnn_convolution how,
                                                        gg_cudnn_tensor dx, int algorithm, size_t *bytes) {
    return find_workspace("cudnnGetConvolutionBackwardDataWorkspaceSize", BACKWARD_DATA, handle_of_caller, dx, w, how,
                          dy, algorithm, bytes);
}

static int cudnnGetConvolutionBackwardFilterWorkspaceSize(gg_cudnn_handle handle_of_caller, gg_cudnn_tensor x,
                                                          gg_cudnn_tensor dy, gg_cudnn_convolution how,
                                                          gg_cudnn_filter dw, int algorithm, size_t *bytes) {
    return find_workspace("cudnnGetConvolutionBackwardFilterWorkspaceSize", BACKWARD_FILTER, handle_of_caller, x, dw,
                          how, dy, algorithm, bytes);
}

/* --------------------------------------------------------------------------------------------------------- running */

typedef struct running {
    pass which;
    shapes of;
    float alpha, beta;
    bool tf32;
    void *x, *w, *y; /* of these one is written */
    void *workspace;
    size_t bytes;
    bool biased, relu; /* behind the sums */
    array bias_of;
    void *bias;
} running;

static size_t place_in(const array *it, int a, int b, int c, int d) {
    if (it->format == GG_CUDNN_TENSOR_NCHW) return (((size_t)a * it->size[1] + b) * it->size[2] + c) * it->size[3] + d;
    return (((size_t)a * it->size[2] + c) * it->size[3] + d) * it->size[1] + b;
}

static float read_at(const array *it, const void *data, size_t place) {
    union {
        uint32_t bits;
        float value;
    } word;
    if (it->type == GG_CUDNN_DATA_FLOAT) return ((const float *)data)[place];
    word.bits = (uint32_t)((const uint16_t *)data)[place] << 16;
    return word.value;
}

static void write_at(const array *it, void *data, size_t place, float value) {
    union {
        float value;
        uint32_t bits;
    } word = {value};
    if (it->type == GG_CUDNN_DATA_FLOAT) ((float *)data)[place] = value;
    else
        ((uint16_t *)data)[place] =
            value != value ? 0x7fc0 : (uint16_t)((word.bits + 0x7fffu + (word.bits >> 16 & 1u)) >> 16);
}

/* All of it as (first, second, third, fourth) axes, row-major. */
static float *read_all(const array *it, const void *data, bool tf32) {
    float *all = malloc((size_t)elements_of(it) * sizeof *all), *next = all;
    if (all == NULL) abort();
    for (int a = 0; a < it->size[0]; ++a)
        for (int b = 0; b < it->size[1]; ++b)
            for (int c = 0; c < it->size[2]; ++c)
                for (int d = 0; d < it->size[3]; ++d) {
                    const float value = read_at(it, data, place_in(it, a, b, c, d));
                    *next++ = tf32 ? gg_standin_tf32(value) : value;
                }
    return all;
}

static void write_all(const array *it, void *data, const double *all, float alpha, float beta) {
    for (int a = 0; a < it->size[0]; ++a)
        for (int b = 0; b < it->size[1]; ++b)
            for (int c = 0; c < it->size[2]; ++c)
                for (int d = 0; d < it->size[3]; ++d) {
                    const size_t place = place_in(it, a, b, c, d);
                    const double before = beta != 0 ? (double)beta * read_at(it, data, place) : 0;
                    write_at(it, data, place, (float)(alpha * *all++ + before));
                }
}

/* One row: what one row of the filter, at element `value`, has to do with a row of x and one of y. */
static void do_row(pass which, int first, int end, int stride, double value, const float *x, const float *y,
                   double *out_x, double *out_y, double *sum) {
    if (which == FORWARD)
        for (int o = first; o < end; ++o) out_y[o] += value * (double)x[o * stride];
    else if (which == BACKWARD_DATA)
        for (int o = first; o < end; ++o) out_x[o * stride] += value * (double)y[o];
    else
        for (int o = first; o < end; ++o) *sum += (double)x[o * stride] * (double)y[o];
}

/* alpha is 1 with a bias. A ReLU gives 0 for NaN. */
static void add_bias(const running *it, double *out) {
    const int64_t plane = (int64_t)it->of.y.size[2] * it->of.y.size[3];
    for (int64_t i = 0; i < elements_of(&it->of.y); ++i) {
        out[i] += (double)read_at(&it->bias_of, it->bias, (size_t)(i / plane % it->of.y.size[1]));
        if (it->relu && !(out[i] > 0)) out[i] = 0;
    }
}

static void run_convolution(void *packet) {
    const running *it = packet;
    const shapes *of = &it->of;
    const int *kernel = of->w.size, *from = of->x.size, *to = of->y.size;
    const array *result = it->which == FORWARD ? &of->y : it->which == BACKWARD_DATA ? &of->x : &of->w;
    void *written = it->which == FORWARD ? it->y : it->which == BACKWARD_DATA ? it->x : it->w;
    const float *x = it->which == BACKWARD_DATA ? NULL : read_all(&of->x, it->x, it->tf32);
    const float *w = it->which == BACKWARD_FILTER ? NULL : read_all(&of->w, it->w, it->tf32);
    const float *y = it->which == FORWARD ? NULL : read_all(&of->y, it->y, it->tf32);
    double *out = calloc((size_t)elements_of(result), sizeof *out);
    if (out == NULL) abort();
    if (it->bytes > 0) memset(it->workspace, 0xff, it->bytes); /* what it held is lost */
    const size_t x_plane = (size_t)from[2] * from[3], y_plane = (size_t)to[2] * to[3];
    const int outs = kernel[0] / of->how.groups; /* of a group */
    for (int n = 0; n < to[0]; ++n)
        for (int k = 0; k < kernel[0]; ++k)
            for (int c = 0; c < kernel[1]; ++c) {
                const size_t x_at = ((size_t)n * from[1] + (size_t)(k / outs * kernel[1] + c)) * x_plane;
                const size_t y_at = ((size_t)n * to[1] + k) * y_plane;
                for (int r = 0; r < kernel[2]; ++r)
                    for (int s = 0; s < kernel[3]; ++s) {
                        const size_t w_at = (((size_t)k * kernel[1] + c) * kernel[2] + r) * kernel[3] + s;
                        const int shift = s * of->how.dilation[1] - of->how.pad[1], stride = of->how.stride[1];
                        int first = 0, end = to[3]; /* where shift + o*stride is inside of the row */
                        while (first < end && first * stride + shift < 0) ++first;
                        while (end > first && (end - 1) * stride + shift >= from[3]) --end;
                        if (first == end) continue;
                        const double value = w != NULL ? (double)w[w_at] : 0;
                        for (int o = 0; o < to[2]; ++o) {
                            const int row = o * of->how.stride[0] + r * of->how.dilation[0] - of->how.pad[0];
                            if (row < 0 || row >= from[2]) continue;
                            const ptrdiff_t x_row = (ptrdiff_t)(x_at + (size_t)row * from[3]) + shift;
                            const size_t y_row = y_at + (size_t)o * to[3];
                            do_row(it->which, first, end, stride, value, x != NULL ? x + x_row : NULL,
                                   y != NULL ? y + y_row : NULL, it->which == BACKWARD_DATA ? out + x_row : NULL,
                                   it->which == FORWARD ? out + y_row : NULL,
                                   it->which == BACKWARD_FILTER ? out + w_at : NULL);
                        }
                    }
            }
    if (it->biased) add_bias(it, out);
    write_all(result, written, out, it->alpha, it->beta);
    free((void *)x), free((void *)w), free((void *)y), free(out);
}

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    return (const char *)a < (const char *)b + b_bytes && (const char *)b < (const char *)a + a_bytes;
}

/* What a convolution with a bias has besides. */
typedef struct epilogue {
    const void *z_desc, *z, *bias_desc, *bias, *activation;
} epilogue;

static int check_epilogue(const char *function, const epilogue *more, int algorithm, const float *alpha,
                          const float *beta, const void *y, running *made) {
    const array *bias = gg_standin_find(function, tensor_kind, more->bias_desc);
    const array *z = gg_standin_find(function, tensor_kind, more->z_desc);
    const activation *then = gg_standin_find(function, activation_kind, more->activation);
    if (bias == NULL || z == NULL || then == NULL) return BAD_PARAM;
    if (!bias->set || !z->set || !then->set)
        return gg_standin_violation(BAD_PARAM, "%s: the descriptor of %s is not set", function,
                                    !bias->set ? "the bias"
                                    : !z->set  ? "z"
                                               : "the activation");
    const array *to = &made->of.y;
    if (bias->type != to->type || bias->size[0] != 1 || bias->size[1] != to->size[1] || bias->size[2] != 1 ||
        bias->size[3] != 1)
        return gg_standin_violation(NOT_SUPPORTED,
                                    "%s: the bias is (%d, %d, %d, %d) of type %d, y has %d channels of "
                                    "type %d",
                                    function, bias->size[0], bias->size[1], bias->size[2], bias->size[3], bias->type,
                                    to->size[1], to->type);
    if (memcmp(z, to, sizeof *z) != 0) return gg_standin_violation(NOT_SUPPORTED, "%s: z is not as y is", function);
    if (alpha == NULL || *alpha != 1 || beta == NULL || *beta != 0 || more->z != y)
        return gg_standin_violation(NOT_SUPPORTED,
                                    "%s: alpha is not 1, z is added, or is not y: nothing here uses that", function);
    if (then->mode == GG_CUDNN_ACTIVATION_IDENTITY && algorithm != PRECOMPUTED_PRODUCT)
        return gg_standin_violation(NOT_SUPPORTED, "%s: without an activation algorithm %d is not possible", function,
                                    algorithm);
    made->biased = true;
    made->relu = then->mode == GG_CUDNN_ACTIVATION_RELU;
    made->bias_of = *bias;
    return 0;
}

static int run(const char *function, pass which, const void *handle_of_caller, const float *alpha, const void *x_desc,
               const void *x, const void *w_desc, const void *w, const void *how, int algorithm, void *workspace,
               size_t bytes, const float *beta, const void *y_desc, const void *y, const epilogue *more) {
    running made = {.which = which};
    gg_standin_uses uses = {0};
    int status = gg_standin_enter(function);
    if (status == 0) status = check_shapes(function, handle_of_caller, x_desc, w_desc, how, y_desc, &made.of);
    if (status == 0 && more != NULL) status = check_epilogue(function, more, algorithm, alpha, beta, y, &made);
    if (status != 0) return status;
    handle *it = gg_standin_find(function, handle_kind, handle_of_caller);
    if (!it->bound) return gg_standin_violation(BAD_PARAM, "%s: the handle has no stream", function);
    if (alpha == NULL || beta == NULL) return gg_standin_violation(BAD_PARAM, "%s: alpha or beta is NULL", function);
    made.alpha = *alpha;
    made.beta = *beta;
    const int place = place_of(which, &made.of, algorithm);
    if (place < 0)
        return gg_standin_violation(NOT_SUPPORTED, "%s: algorithm %d is not possible for these shapes", function,
                                    algorithm);
    if ((status = planted_for(function, algorithm)) != 0) return status;
    made.bytes = workspace_of(which, &made.of, place);
    if (bytes < made.bytes)
        return gg_standin_violation(BAD_PARAM, "%s: algorithm %d needs %zu bytes of workspace and has %zu", function,
                                    algorithm, made.bytes, bytes);
    const size_t size[3] = {bytes_of(&made.of.x), bytes_of(&made.of.w), bytes_of(&made.of.y)};
    if (!gg_standin_operand(&uses, function, "x", x, size[0], ALIGNED, &made.x) ||
        !gg_standin_operand(&uses, function, "w", w, size[1], ALIGNED, &made.w) ||
        !gg_standin_operand(&uses, function, "y", y, size[2], ALIGNED, &made.y))
        return MISALIGNED;
    if (made.biased &&
        !gg_standin_operand(&uses, function, "the bias", more->bias, bytes_of(&made.bias_of), ALIGNED, &made.bias))
        return MISALIGNED;
    if (made.bytes > 0 && !gg_standin_operand(&uses, function, "the workspace", workspace, made.bytes,
                                              ALIGNED_WORKSPACE, &made.workspace))
        return MISALIGNED;
    /* What is written lies over nothing else. */
    const void *all[4] = {x, w, y, workspace};
    const size_t all_sizes[4] = {size[0], size[1], size[2], made.bytes};
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < i; ++j)
            if ((i == 3 ||
                 i == (which == FORWARD           ? 2
                       : which == BACKWARD_FILTER ? 1
                                                  : 0) ||
                 j == (which == FORWARD           ? 2
                       : which == BACKWARD_FILTER ? 1
                                                  : 0)) &&
                all_sizes[i] > 0 && overlap(all[i], all_sizes[i], all[j], all_sizes[j]))
                return gg_standin_violation(
                    BAD_PARAM, "%s: what is written, or the workspace, overlaps with an operand", function);
    made.tf32 = made.of.how.math != GG_CUDNN_FMA_MATH && made.of.x.type == GG_CUDNN_DATA_FLOAT;
    if (made.tf32) gg_standin_count_one("tf32");
    if (!known[which][place].deterministic) gg_standin_count_one("nondeterministic");
    static const char *const numbers[8] = {"algorithm 0", "algorithm 1", "algorithm 2", "algorithm 3",
                                           "algorithm 4", "algorithm 5", "algorithm 6", "algorithm 7"};
    gg_standin_count_one(numbers[algorithm]);
    return gg_standin_submit(function, it->stream, run_convolution, &made, sizeof made, &uses) == 0 ? 0 : BAD_PARAM;
}

static int cudnnConvolutionForward(gg_cudnn_handle handle_of_caller, const void *alpha, gg_cudnn_tensor x_desc,
                                   const void *x, gg_cudnn_filter w_desc, const void *w, gg_cudnn_convolution how,
                                   int algorithm, void *workspace, size_t bytes, const void *beta,
                                   gg_cudnn_tensor y_desc, void *y) {
    return run("cudnnConvolutionForward", FORWARD, handle_of_caller, alpha, x_desc, x, w_desc, w, how, algorithm,
               workspace, bytes, beta, y_desc, y, NULL);
}

static int cudnnConvolutionBiasActivationForward(gg_cudnn_handle handle_of_caller, const void *alpha,
                                                 gg_cudnn_tensor x_desc, const void *x, gg_cudnn_filter w_desc,
                                                 const void *w, gg_cudnn_convolution how, int algorithm,
                                                 void *workspace, size_t bytes, const void *beta,
                                                 gg_cudnn_tensor z_desc, const void *z, gg_cudnn_tensor bias_desc,
                                                 const void *bias, gg_cudnn_activation then, gg_cudnn_tensor y_desc,
                                                 void *y) {
    const epilogue more = {.z_desc = z_desc, .z = z, .bias_desc = bias_desc, .bias = bias, .activation = then};
    return run("cudnnConvolutionBiasActivationForward", FORWARD, handle_of_caller, alpha, x_desc, x, w_desc, w, how,
               algorithm, workspace, bytes, beta, y_desc, y, &more);
}

static int cudnnConvolutionBackwardData(gg_cudnn_handle handle_of_caller, const void *alpha, gg_cudnn_filter w_desc,
                                        const void *w, gg_cudnn_tensor dy_desc, const void *dy,
                                        gg_cudnn_convolution how, int algorithm, void *workspace, size_t bytes,
                                        const void *beta, gg_cudnn_tensor dx_desc, void *dx) {
    return run("cudnnConvolutionBackwardData", BACKWARD_DATA, handle_of_caller, alpha, dx_desc, dx, w_desc, w, how,
               algorithm, workspace, bytes, beta, dy_desc, dy, NULL);
}

static int cudnnConvolutionBackwardFilter(gg_cudnn_handle handle_of_caller, const void *alpha, gg_cudnn_tensor x_desc,
                                          const void *x, gg_cudnn_tensor dy_desc, const void *dy,
                                          gg_cudnn_convolution how, int algorithm, void *workspace, size_t bytes,
                                          const void *beta, gg_cudnn_filter dw_desc, void *dw) {
    return run("cudnnConvolutionBackwardFilter", BACKWARD_FILTER, handle_of_caller, alpha, x_desc, x, dw_desc, dw, how,
               algorithm, workspace, bytes, beta, dy_desc, dy, NULL);
}

void gg_standin_fill_cudnn(gg_cuda_api *api) {
#define FILL(result, name, arguments) api->name = name;
    GG_CUDNN_FUNCTIONS(FILL)
}
