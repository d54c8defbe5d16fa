/* Table of the functions of the CUDA runtime, cuDNN and cuBLASLt that csrc/cuda calls.
 *
 * Members have the names, argument orders and constants of the real functions. The types are our own, so no CUDA header
 * is needed. Handles point to the real incomplete structs, enumerations are int. A test compares the constants with the
 * real headers if these are installed.
 *
 * The runtime is linked into the library (runtime.cu). cuDNN and cuBLASLt are loaded on first request. Search order:
 * 1. the dynamic linker's search;
 * 2. the wheels nvidia-cudnn-cu13 and nvidia-cublas installed with the package;
 * 3. the folders of CUDA_HOME and /usr/local/cuda.
 * Tests fill the table with functions of their own. */
#ifndef GG_CUDA_CUDA_API_H
#define GG_CUDA_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUstream_st *gg_cuda_stream;
typedef struct CUevent_st *gg_cuda_event;
typedef struct CUgraph_st *gg_cuda_graph;
typedef struct CUgraphExec_st *gg_cuda_graph_exec;
typedef struct cudnnContext *gg_cudnn_handle;
typedef struct cudnnTensorStruct *gg_cudnn_tensor;
typedef struct cudnnFilterStruct *gg_cudnn_filter;
typedef struct cudnnConvolutionStruct *gg_cudnn_convolution;
typedef struct cudnnDropoutStruct *gg_cudnn_dropout;
typedef struct cudnnRNNStruct *gg_cudnn_rnn;
typedef struct cudnnRNNDataStruct *gg_cudnn_rnn_data;
typedef struct cudnnActivationStruct *gg_cudnn_activation;
typedef struct cublasLtContext *gg_cublas_handle;
typedef struct gg_cublas_opaque_desc *gg_cublas_desc;
typedef struct gg_cublas_opaque_layout *gg_cublas_layout;
typedef struct gg_cublas_opaque_preference *gg_cublas_preference;

/* Constants of the real headers. */
enum {
    GG_CUDA_SUCCESS = 0,
    GG_CUDA_ERROR_MEMORY_ALLOCATION = 2,
    GG_CUDA_ERROR_STUB_LIBRARY = 34,
    GG_CUDA_ERROR_INSUFFICIENT_DRIVER = 35,
    GG_CUDA_ERROR_NO_DEVICE = 100,
    GG_CUDA_ERROR_NO_KERNEL_IMAGE = 209,
    GG_CUDA_ERROR_NOT_READY = 600,
    GG_CUDA_ERROR_ALREADY_REGISTERED = 712,
    GG_CUDA_ERROR_CAPTURE_UNSUPPORTED = 900,
    GG_CUDA_ERROR_CAPTURE_INVALIDATED = 901,

    GG_CUDA_HOST_PORTABLE = 1,
    GG_CUDA_HOST_MAPPED = 2,
    GG_CUDA_STREAM_NON_BLOCKING = 1,
    GG_CUDA_EVENT_DISABLE_TIMING = 2,
    GG_CUDA_MEMCPY_DEFAULT = 4,
    GG_CUDA_CAPTURE_THREAD_LOCAL = 1,

    GG_CUDA_ATTRIBUTE_PROCESSORS = 16,
    GG_CUDA_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
    GG_CUDA_ATTRIBUTE_MAJOR = 75,
    GG_CUDA_ATTRIBUTE_MINOR = 76,
    GG_CUDA_ATTRIBUTE_HOST_POINTER = 91,

    GG_CUDNN_SUCCESS = 0,
    GG_CUDNN_TENSOR_NCHW = 0,
    GG_CUDNN_TENSOR_NHWC = 1,
    GG_CUDNN_DATA_FLOAT = 0,
    GG_CUDNN_DATA_BFLOAT16 = 9,
    GG_CUDNN_DEFAULT_MATH = 0, /* float32: allows TF32 */
    GG_CUDNN_TENSOR_OP_MATH = 1,
    GG_CUDNN_FMA_MATH = 3,
    GG_CUDNN_CROSS_CORRELATION = 1,
    GG_CUDNN_DETERMINISTIC = 1,
    GG_CUDNN_ACTIVATION_RELU = 1,
    GG_CUDNN_ACTIVATION_IDENTITY = 5,
    GG_CUDNN_NOT_PROPAGATE_NAN = 0,

    GG_CUDNN_BAD_PARAM = 2000,
    GG_CUDNN_MIN_REFUSAL = 3000, /* CUDNN_STATUS_NOT_SUPPORTED and its kinds, up to MAX_REFUSAL */
    GG_CUDNN_MIN_BROKEN = 3005,  /* kinds up to MAX_BROKEN: libraries and driver do not match */
    GG_CUDNN_MAX_BROKEN = 3009,
    GG_CUDNN_MAX_REFUSAL = 3999,
    GG_CUDNN_NO_HOST_MEMORY = 4003,
    GG_CUDNN_NO_DEVICE_MEMORY = 4004,
    GG_CUDNN_RNN_STANDARD = 0,
    GG_CUDNN_RNN_LSTM = 2,
    GG_CUDNN_RNN_NO_BIAS = 0,
    GG_CUDNN_RNN_INPUT_BIAS = 1,
    GG_CUDNN_RNN_ONE_WAY = 0,
    GG_CUDNN_RNN_LINEAR_INPUT = 0,
    GG_CUDNN_RNN_BATCH_MAJOR = 2, /* samples are consecutive */
    GG_CUDNN_RNN_PADDED = 1,      /* needed by all layouts but the packed one */
    GG_CUDNN_RNN_INFERENCE = 0,
    GG_CUDNN_RNN_TRAINING = 1,
    GG_CUDNN_RNN_ADD = 0, /* adds to stored gradients */

    GG_CUBLAS_SUCCESS = 0,
    GG_CUBLAS_NO_MEMORY = 3,
    GG_CUBLAS_NOT_SUPPORTED = 15,
    GG_CUBLAS_R_32F = 0,
    GG_CUBLAS_R_16BF = 14,
    GG_CUBLAS_COMPUTE_32F = 68,
    GG_CUBLAS_COMPUTE_32F_PEDANTIC = 69,
    GG_CUBLAS_COMPUTE_32F_FAST_TF32 = 77,
    GG_CUBLAS_OP_N = 0,
    GG_CUBLAS_OP_T = 1,
    GG_CUBLAS_DESC_TRANSA = 3,
    GG_CUBLAS_DESC_TRANSB = 4,
    GG_CUBLAS_DESC_EPILOGUE = 7,
    GG_CUBLAS_DESC_BIAS_POINTER = 8,
    GG_CUBLAS_EPILOGUE_DEFAULT = 1,
    GG_CUBLAS_EPILOGUE_RELU = 2,
    GG_CUBLAS_EPILOGUE_BIAS = 4,
    GG_CUBLAS_EPILOGUE_RELU_BIAS = 6,
    GG_CUBLAS_LAYOUT_BATCH_COUNT = 5,
    GG_CUBLAS_LAYOUT_BATCH_STRIDE = 6,
    GG_CUBLAS_PREFERENCE_WORKSPACE = 1,
    GG_CUBLAS_PREFERENCE_REDUCTION = 3,
    GG_CUBLAS_PREFERENCE_ALIGNMENT_A = 5, /* of a; b, c and d have the next numbers */
    GG_CUBLAS_REDUCTION_COMPUTE_TYPE = 2, /* adds partial sums in a fixed order */
};

/* cudnnConvolution{Fwd,BwdData,BwdFilter}AlgoPerf_t; all three are alike. */
typedef struct gg_cudnn_algorithm {
    int algorithm, status;
    float time;
    size_t memory; /* bytes of workspace */
    int determinism, math;
    int reserved[3];
} gg_cudnn_algorithm;

typedef struct gg_cublas_algorithm {
    uint64_t data[8];
} gg_cublas_algorithm;

/* cublasLtMatmulHeuristicResult_t */
typedef struct gg_cublas_choice {
    gg_cublas_algorithm algorithm;
    size_t workspace; /* bytes */
    int state;
    float waves;
    int reserved[4];
} gg_cublas_choice;

/* F(result, name, arguments) for each function. */
#define GG_CUDA_FUNCTIONS(F)                                                                                           \
    F(int, cudaGetDeviceCount, (int *count))                                                                           \
    F(int, cudaSetDevice, (int device))                                                                                \
    F(int, cudaDeviceGetAttribute, (int *value, int attribute, int device))                                            \
    F(int, cudaDeviceCanAccessPeer, (int *can, int device, int peer))                                                  \
    F(int, cudaDriverGetVersion, (int *version))                                                                       \
    F(int, cudaRuntimeGetVersion, (int *version))                                                                      \
    F(const char *, cudaGetErrorName, (int error))                                                                     \
    F(const char *, cudaGetErrorString, (int error))                                                                   \
    F(int, cudaGetLastError, (void))                                                                                   \
    F(int, cudaMemGetInfo, (size_t * free_bytes, size_t * all_bytes))                                                  \
    F(int, cudaMalloc, (void **block, size_t bytes))                                                                   \
    F(int, cudaFree, (void *block))                                                                                    \
    F(int, cudaHostAlloc, (void **block, size_t bytes, unsigned flags))                                                \
    F(int, cudaFreeHost, (void *block))                                                                                \
    F(int, cudaHostRegister, (void *block, size_t bytes, unsigned flags))                                              \
    F(int, cudaHostUnregister, (void *block))                                                                          \
    F(int, cudaMemcpyAsync, (void *to, const void *from, size_t bytes, int kind, gg_cuda_stream stream))               \
    F(int, cudaMemsetAsync, (void *at, int value, size_t bytes, gg_cuda_stream stream))                                \
    F(int, cudaStreamCreateWithFlags, (gg_cuda_stream * stream, unsigned flags))                                       \
    F(int, cudaStreamDestroy, (gg_cuda_stream stream))                                                                 \
    F(int, cudaStreamSynchronize, (gg_cuda_stream stream))                                                             \
    F(int, cudaStreamWaitEvent, (gg_cuda_stream stream, gg_cuda_event event, unsigned flags))                          \
    F(int, cudaEventCreateWithFlags, (gg_cuda_event * event, unsigned flags))                                          \
    F(int, cudaEventDestroy, (gg_cuda_event event))                                                                    \
    F(int, cudaEventRecord, (gg_cuda_event event, gg_cuda_stream stream))                                              \
    F(int, cudaEventElapsedTime, (float *milliseconds, gg_cuda_event begin, gg_cuda_event end))                        \
    F(int, cudaEventQuery, (gg_cuda_event event))                                                                      \
    F(int, cudaEventSynchronize, (gg_cuda_event event))                                                                \
    F(int, cudaDeviceSynchronize, (void))

/* Functions for captured work. */
#define GG_CUDA_GRAPH_FUNCTIONS(F)                                                                                     \
    F(int, cudaStreamBeginCapture, (gg_cuda_stream stream, int mode))                                                  \
    F(int, cudaStreamEndCapture, (gg_cuda_stream stream, gg_cuda_graph * graph))                                       \
    F(int, cudaGraphInstantiate, (gg_cuda_graph_exec * exec, gg_cuda_graph graph, unsigned long long flags))           \
    F(int, cudaGraphLaunch, (gg_cuda_graph_exec exec, gg_cuda_stream stream))                                          \
    F(int, cudaGraphExecDestroy, (gg_cuda_graph_exec exec))                                                            \
    F(int, cudaGraphDestroy, (gg_cuda_graph graph))

#define GG_CUDNN_FUNCTIONS(F)                                                                                          \
    F(size_t, cudnnGetVersion, (void))                                                                                 \
    F(const char *, cudnnGetErrorString, (int status))                                                                 \
    F(int, cudnnCreate, (gg_cudnn_handle * handle))                                                                    \
    F(int, cudnnDestroy, (gg_cudnn_handle handle))                                                                     \
    F(int, cudnnSetStream, (gg_cudnn_handle handle, gg_cuda_stream stream))                                            \
    F(int, cudnnCreateTensorDescriptor, (gg_cudnn_tensor * tensor))                                                    \
    F(int, cudnnDestroyTensorDescriptor, (gg_cudnn_tensor tensor))                                                     \
    F(int, cudnnSetTensor4dDescriptor, (gg_cudnn_tensor tensor, int format, int type, int n, int c, int h, int w))     \
    F(int, cudnnCreateFilterDescriptor, (gg_cudnn_filter * filter))                                                    \
    F(int, cudnnDestroyFilterDescriptor, (gg_cudnn_filter filter))                                                     \
    F(int, cudnnSetFilter4dDescriptor, (gg_cudnn_filter filter, int type, int format, int k, int c, int h, int w))     \
    F(int, cudnnCreateConvolutionDescriptor, (gg_cudnn_convolution * convolution))                                     \
    F(int, cudnnDestroyConvolutionDescriptor, (gg_cudnn_convolution convolution))                                      \
    F(int, cudnnSetConvolution2dDescriptor,                                                                            \
      (gg_cudnn_convolution convolution, int pad_h, int pad_w, int stride_h, int stride_w, int dilation_h,             \
       int dilation_w, int mode, int type))                                                                            \
    F(int, cudnnSetConvolutionGroupCount, (gg_cudnn_convolution convolution, int groups))                              \
    F(int, cudnnSetConvolutionMathType, (gg_cudnn_convolution convolution, int math))                                  \
    F(int, cudnnGetConvolutionForwardAlgorithm_v7,                                                                     \
      (gg_cudnn_handle handle, gg_cudnn_tensor x, gg_cudnn_filter w, gg_cudnn_convolution convolution,                 \
       gg_cudnn_tensor y, int asked, int *got, gg_cudnn_algorithm *found))                                             \
    F(int, cudnnGetConvolutionBackwardDataAlgorithm_v7,                                                                \
      (gg_cudnn_handle handle, gg_cudnn_filter w, gg_cudnn_tensor dy, gg_cudnn_convolution convolution,                \
       gg_cudnn_tensor dx, int asked, int *got, gg_cudnn_algorithm *found))                                            \
    F(int, cudnnGetConvolutionBackwardFilterAlgorithm_v7,                                                              \
      (gg_cudnn_handle handle, gg_cudnn_tensor x, gg_cudnn_tensor dy, gg_cudnn_convolution convolution,                \
       gg_cudnn_filter dw, int asked, int *got, gg_cudnn_algorithm *found))                                            \
    F(int, cudnnGetConvolutionForwardWorkspaceSize,                                                                    \
      (gg_cudnn_handle handle, gg_cudnn_tensor x, gg_cudnn_filter w, gg_cudnn_convolution convolution,                 \
       gg_cudnn_tensor y, int algorithm, size_t *bytes))                                                               \
    F(int, cudnnGetConvolutionBackwardDataWorkspaceSize,                                                               \
      (gg_cudnn_handle handle, gg_cudnn_filter w, gg_cudnn_tensor dy, gg_cudnn_convolution convolution,                \
       gg_cudnn_tensor dx, int algorithm, size_t *bytes))                                                              \
    F(int, cudnnGetConvolutionBackwardFilterWorkspaceSize,                                                             \
      (gg_cudnn_handle handle, gg_cudnn_tensor x, gg_cudnn_tensor dy, gg_cudnn_convolution convolution,                \
       gg_cudnn_filter dw, int algorithm, size_t *bytes))                                                              \
    F(int, cudnnConvolutionForward,                                                                                    \
      (gg_cudnn_handle handle, const void *alpha, gg_cudnn_tensor x_desc, const void *x, gg_cudnn_filter w_desc,       \
       const void *w, gg_cudnn_convolution convolution, int algorithm, void *workspace, size_t bytes,                  \
       const void *beta, gg_cudnn_tensor y_desc, void *y))                                                             \
    F(int, cudnnCreateActivationDescriptor, (gg_cudnn_activation * activation))                                        \
    F(int, cudnnDestroyActivationDescriptor, (gg_cudnn_activation activation))                                         \
    F(int, cudnnSetActivationDescriptor, (gg_cudnn_activation activation, int mode, int nan, double ceiling))          \
    F(int, cudnnConvolutionBiasActivationForward,                                                                      \
      (gg_cudnn_handle handle, const void *alpha, gg_cudnn_tensor x_desc, const void *x, gg_cudnn_filter w_desc,       \
       const void *w, gg_cudnn_convolution convolution, int algorithm, void *workspace, size_t bytes,                  \
       const void *beta, gg_cudnn_tensor z_desc, const void *z, gg_cudnn_tensor bias_desc, const void *bias,           \
       gg_cudnn_activation activation, gg_cudnn_tensor y_desc, void *y))                                               \
    F(int, cudnnConvolutionBackwardData,                                                                               \
      (gg_cudnn_handle handle, const void *alpha, gg_cudnn_filter w_desc, const void *w, gg_cudnn_tensor dy_desc,      \
       const void *dy, gg_cudnn_convolution convolution, int algorithm, void *workspace, size_t bytes,                 \
       const void *beta, gg_cudnn_tensor dx_desc, void *dx))                                                           \
    F(int, cudnnConvolutionBackwardFilter,                                                                             \
      (gg_cudnn_handle handle, const void *alpha, gg_cudnn_tensor x_desc, const void *x, gg_cudnn_tensor dy_desc,      \
       const void *dy, gg_cudnn_convolution convolution, int algorithm, void *workspace, size_t bytes,                 \
       const void *beta, gg_cudnn_filter dw_desc, void *dw))

/* devSeqLengths is NULL for cuDNN 9: the lengths are those of the descriptors. */
#define GG_CUDNN_RNN_FUNCTIONS(F)                                                                                      \
    F(int, cudnnSetTensorNdDescriptor,                                                                                 \
      (gg_cudnn_tensor tensor, int type, int dims, const int *size, const int *stride))                                \
    F(int, cudnnGetTensorNdDescriptor,                                                                                 \
      (gg_cudnn_tensor tensor, int asked, int *type, int *dims, int *size, int *stride))                               \
    F(int, cudnnCreateDropoutDescriptor, (gg_cudnn_dropout * dropout))                                                 \
    F(int, cudnnDestroyDropoutDescriptor, (gg_cudnn_dropout dropout))                                                  \
    F(int, cudnnSetDropoutDescriptor,                                                                                  \
      (gg_cudnn_dropout dropout, gg_cudnn_handle handle, float probability, void *states, size_t bytes,                \
       unsigned long long seed))                                                                                       \
    F(int, cudnnCreateRNNDescriptor, (gg_cudnn_rnn * rnn))                                                             \
    F(int, cudnnDestroyRNNDescriptor, (gg_cudnn_rnn rnn))                                                              \
    F(int, cudnnSetRNNDescriptor_v8,                                                                                   \
      (gg_cudnn_rnn rnn, int algorithm, int cell, int bias, int direction, int input, int type, int precision,         \
       int math, int32_t inputs, int32_t hidden, int32_t projected, int32_t layers, gg_cudnn_dropout dropout,          \
       uint32_t flags))                                                                                                \
    F(int, cudnnCreateRNNDataDescriptor, (gg_cudnn_rnn_data * data))                                                   \
    F(int, cudnnDestroyRNNDataDescriptor, (gg_cudnn_rnn_data data))                                                    \
    F(int, cudnnSetRNNDataDescriptor,                                                                                  \
      (gg_cudnn_rnn_data data, int type, int layout, int positions, int batch, int values, const int *lengths,         \
       void *padding))                                                                                                 \
    F(int, cudnnGetRNNWeightSpaceSize, (gg_cudnn_handle handle, gg_cudnn_rnn rnn, size_t * bytes))                     \
    F(int, cudnnGetRNNTempSpaceSizes,                                                                                  \
      (gg_cudnn_handle handle, gg_cudnn_rnn rnn, int mode, gg_cudnn_rnn_data x, size_t *workspace, size_t *reserve))   \
    F(int, cudnnGetRNNWeightParams,                                                                                    \
      (gg_cudnn_handle handle, gg_cudnn_rnn rnn, int32_t layer, size_t bytes, const void *weights, int32_t number,     \
       gg_cudnn_tensor matrix_desc, void **matrix, gg_cudnn_tensor bias_desc, void **bias))                            \
    F(int, cudnnRNNForward,                                                                                            \
      (gg_cudnn_handle handle, gg_cudnn_rnn rnn, int mode, const int32_t *lengths, gg_cudnn_rnn_data x_desc,           \
       const void *x, gg_cudnn_rnn_data y_desc, void *y, gg_cudnn_tensor h_desc, const void *hx, void *hy,             \
       gg_cudnn_tensor c_desc, const void *cx, void *cy, size_t weight_bytes, const void *weights, size_t work_bytes,  \
       void *workspace, size_t reserve_bytes, void *reserve))                                                          \
    F(int, cudnnRNNBackwardData_v8,                                                                                    \
      (gg_cudnn_handle handle, gg_cudnn_rnn rnn, const int32_t *lengths, gg_cudnn_rnn_data y_desc, const void *y,      \
       const void *dy, gg_cudnn_rnn_data x_desc, void *dx, gg_cudnn_tensor h_desc, const void *hx, const void *dhy,    \
       void *dhx, gg_cudnn_tensor c_desc, const void *cx, const void *dcy, void *dcx, size_t weight_bytes,             \
       const void *weights, size_t work_bytes, void *workspace, size_t reserve_bytes, void *reserve))                  \
    F(int, cudnnRNNBackwardWeights_v8,                                                                                 \
      (gg_cudnn_handle handle, gg_cudnn_rnn rnn, int add, const int32_t *lengths, gg_cudnn_rnn_data x_desc,            \
       const void *x, gg_cudnn_tensor h_desc, const void *hx, gg_cudnn_rnn_data y_desc, const void *y,                 \
       size_t weight_bytes, void *weights, size_t work_bytes, void *workspace, size_t reserve_bytes, void *reserve))

#define GG_CUBLAS_FUNCTIONS(F)                                                                                         \
    F(size_t, cublasLtGetVersion, (void))                                                                              \
    F(const char *, cublasLtGetStatusString, (int status))                                                             \
    F(int, cublasLtCreate, (gg_cublas_handle * handle))                                                                \
    F(int, cublasLtDestroy, (gg_cublas_handle handle))                                                                 \
    F(int, cublasLtMatmulDescCreate, (gg_cublas_desc * desc, int compute, int scale))                                  \
    F(int, cublasLtMatmulDescDestroy, (gg_cublas_desc desc))                                                           \
    F(int, cublasLtMatmulDescSetAttribute, (gg_cublas_desc desc, int attribute, const void *value, size_t bytes))      \
    F(int, cublasLtMatrixLayoutCreate,                                                                                 \
      (gg_cublas_layout * layout, int type, uint64_t rows, uint64_t columns, int64_t leading))                         \
    F(int, cublasLtMatrixLayoutDestroy, (gg_cublas_layout layout))                                                     \
    F(int, cublasLtMatrixLayoutSetAttribute,                                                                           \
      (gg_cublas_layout layout, int attribute, const void *value, size_t bytes))                                       \
    F(int, cublasLtMatmulPreferenceCreate, (gg_cublas_preference * preference))                                        \
    F(int, cublasLtMatmulPreferenceDestroy, (gg_cublas_preference preference))                                         \
    F(int, cublasLtMatmulPreferenceSetAttribute,                                                                       \
      (gg_cublas_preference preference, int attribute, const void *value, size_t bytes))                               \
    F(int, cublasLtMatmulAlgoGetHeuristic,                                                                             \
      (gg_cublas_handle handle, gg_cublas_desc desc, gg_cublas_layout a, gg_cublas_layout b, gg_cublas_layout c,       \
       gg_cublas_layout d, gg_cublas_preference preference, int asked, gg_cublas_choice *found, int *got))             \
    F(int, cublasLtMatmul,                                                                                             \
      (gg_cublas_handle handle, gg_cublas_desc desc, const void *alpha, const void *a, gg_cublas_layout a_layout,      \
       const void *b, gg_cublas_layout b_layout, const void *beta, const void *c, gg_cublas_layout c_layout, void *d,  \
       gg_cublas_layout d_layout, const gg_cublas_algorithm *algorithm, void *workspace, size_t bytes,                 \
       gg_cuda_stream stream))

#define GG_CUDA_MEMBER(result, name, arguments) result(*name) arguments;
typedef struct gg_cuda_api {
    GG_CUDA_FUNCTIONS(GG_CUDA_MEMBER)
    GG_CUDA_GRAPH_FUNCTIONS(GG_CUDA_MEMBER)
    GG_CUDNN_FUNCTIONS(GG_CUDA_MEMBER)
    GG_CUDNN_RNN_FUNCTIONS(GG_CUDA_MEMBER)
    GG_CUBLAS_FUNCTIONS(GG_CUDA_MEMBER)
    /* Not a function of the runtime: name (NUL-terminated) and memory of a device, from cudaGetDeviceProperties. */
    int (*device_facts)(int device, char *name, size_t room, size_t *bytes);
} gg_cuda_api;

/* Returns the table with the runtime's functions, and with all others if `libraries`. Loads once a process and never
 * unloads; any thread may call. GG_ERROR_UNSUPPORTED names a missing or outdated library, and the package to install.
 * Without `libraries` members of cuDNN and cuBLASLt may be NULL. */
gg_status gg_cuda_api_get(int libraries, const gg_cuda_api **out);
/* For tests: gg_cuda_api_get returns this table from now on; NULL means the real one. Owned by the caller. No device
 * may be open. */
void gg_cuda_api_use(const gg_cuda_api *api);
/* Paths of the loaded cuDNN and cuBLASLt; "" before loading. */
const char *gg_cuda_api_dnn_path(void);
const char *gg_cuda_api_blas_path(void);

/* runtime.cu: fills the members of the CUDA runtime. */
void gg_cuda_runtime_fill(gg_cuda_api *api);

/* Returns a status whose text names the call and the library's error. GG_ERROR_MEMORY if memory ran out. */
gg_status gg_cuda_fail(const gg_cuda_api *api, int error, const char *call);
/* Status of a cuDNN error, without a text. GG_ERROR_UNSUPPORTED: cuDNN does not offer the request. GG_ERROR_MEMORY:
 * memory ran out. GG_ERROR_BACKEND: all other errors, including a broken installation. gg_cudnn_fail returns it with a
 * text; gg_cublas_fail does so for cuBLASLt. */
gg_status gg_cudnn_status(int error);
gg_status gg_cudnn_fail(const gg_cuda_api *api, int error, const char *call);
gg_status gg_cublas_fail(const gg_cuda_api *api, int error, const char *call);

/* Calls a function; on failure returns the error, or jumps with _CLEANUP: GG_CUDA_TRY(api, cudaSetDevice, (0)). */
#define GG_CUDA_CALL(api, name, arguments, fail, leave)                                                                \
    do {                                                                                                               \
        const int gg_cuda_error = (api)->name arguments;                                                               \
        if (gg_cuda_error != 0) leave(fail(api, gg_cuda_error, #name));                                                \
    } while (0)
#define GG_CUDA_TRY(api, name, arguments) GG_CUDA_CALL(api, name, arguments, gg_cuda_fail, GG_TRY)
#define GG_CUDNN_TRY(api, name, arguments) GG_CUDA_CALL(api, name, arguments, gg_cudnn_fail, GG_TRY)
#define GG_CUBLAS_TRY(api, name, arguments) GG_CUDA_CALL(api, name, arguments, gg_cublas_fail, GG_TRY)
#define GG_CUDA_TRY_CLEANUP(api, name, arguments) GG_CUDA_CALL(api, name, arguments, gg_cuda_fail, GG_TRY_CLEANUP)
#define GG_CUDNN_TRY_CLEANUP(api, name, arguments) GG_CUDA_CALL(api, name, arguments, gg_cudnn_fail, GG_TRY_CLEANUP)
#define GG_CUBLAS_TRY_CLEANUP(api, name, arguments) GG_CUDA_CALL(api, name, arguments, gg_cublas_fail, GG_TRY_CLEANUP)

#ifdef __cplusplus
}
#endif

#endif
