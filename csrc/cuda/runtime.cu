/* Fills the table with the functions of the CUDA runtime, which is linked into this library. */
#include <cuda_runtime_api.h>

#include <cstdio>

#include "cuda/cuda_api.h"

/* The table has int where the runtime has enumerations: both are passed alike. */
template <typename To, typename From> static To as(From function) { return reinterpret_cast<To>(function); }

static int device_facts(int device, char *name, size_t room, size_t *bytes) {
    cudaDeviceProp facts;
    const cudaError_t error = cudaGetDeviceProperties(&facts, device);
    if (error != cudaSuccess) return error;
    std::snprintf(name, room, "%s", facts.name);
    *bytes = facts.totalGlobalMem;
    return 0;
}

extern "C" void gg_cuda_runtime_fill(gg_cuda_api *api) {
#define FILL(result, name, arguments) api->name = as<decltype(api->name)>(static_cast<runtime_##name>(::name));
#define USE(name, result, arguments) using runtime_##name = result(*) arguments
    USE(cudaGetDeviceCount, cudaError_t, (int *));
    USE(cudaSetDevice, cudaError_t, (int));
    USE(cudaDeviceGetAttribute, cudaError_t, (int *, cudaDeviceAttr, int));
    USE(cudaDeviceCanAccessPeer, cudaError_t, (int *, int, int));
    USE(cudaDriverGetVersion, cudaError_t, (int *));
    USE(cudaRuntimeGetVersion, cudaError_t, (int *));
    USE(cudaGetErrorName, const char *, (cudaError_t));
    USE(cudaGetErrorString, const char *, (cudaError_t));
    USE(cudaGetLastError, cudaError_t, ());
    USE(cudaMemGetInfo, cudaError_t, (size_t *, size_t *));
    USE(cudaMalloc, cudaError_t, (void **, size_t));
    USE(cudaFree, cudaError_t, (void *));
    USE(cudaHostAlloc, cudaError_t, (void **, size_t, unsigned));
    USE(cudaFreeHost, cudaError_t, (void *));
    USE(cudaHostRegister, cudaError_t, (void *, size_t, unsigned));
    USE(cudaHostUnregister, cudaError_t, (void *));
    USE(cudaMemcpyAsync, cudaError_t, (void *, const void *, size_t, cudaMemcpyKind, cudaStream_t));
    USE(cudaMemsetAsync, cudaError_t, (void *, int, size_t, cudaStream_t));
    USE(cudaStreamCreateWithFlags, cudaError_t, (cudaStream_t *, unsigned));
    USE(cudaStreamDestroy, cudaError_t, (cudaStream_t));
    USE(cudaStreamSynchronize, cudaError_t, (cudaStream_t));
    USE(cudaStreamWaitEvent, cudaError_t, (cudaStream_t, cudaEvent_t, unsigned));
    USE(cudaEventCreateWithFlags, cudaError_t, (cudaEvent_t *, unsigned));
    USE(cudaEventDestroy, cudaError_t, (cudaEvent_t));
    USE(cudaEventRecord, cudaError_t, (cudaEvent_t, cudaStream_t));
    USE(cudaEventElapsedTime, cudaError_t, (float *, cudaEvent_t, cudaEvent_t));
    USE(cudaEventQuery, cudaError_t, (cudaEvent_t));
    USE(cudaEventSynchronize, cudaError_t, (cudaEvent_t));
    USE(cudaDeviceSynchronize, cudaError_t, ());
    USE(cudaStreamBeginCapture, cudaError_t, (cudaStream_t, cudaStreamCaptureMode));
    USE(cudaStreamEndCapture, cudaError_t, (cudaStream_t, cudaGraph_t *));
    USE(cudaGraphInstantiate, cudaError_t, (cudaGraphExec_t *, cudaGraph_t, unsigned long long));
    USE(cudaGraphLaunch, cudaError_t, (cudaGraphExec_t, cudaStream_t));
    USE(cudaGraphExecDestroy, cudaError_t, (cudaGraphExec_t));
    USE(cudaGraphDestroy, cudaError_t, (cudaGraph_t));
    GG_CUDA_FUNCTIONS(FILL)
    GG_CUDA_GRAPH_FUNCTIONS(FILL)
    api->device_facts = device_facts;
}
