/* The stand-in for CUDA itself: what it computes, when it does it, and that each violation of a contract is seen. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check_standin.h"

/* --------------------------------------------------------------------------------------------------------- memory */

static void test_memory(void) {
    float *block = device_floats(100), *host = pinned_floats(100), *stack_block = malloc(400);
    CHECK(isnan(values(block, 100)[7])); /* new memory is not zero */
    CHECK_INT(api->cudaMemsetAsync(block, 0, 400, compute), 0);
    CHECK_NEAR(values(block, 100)[99], 0, 0);
    NOTHING_VIOLATED();

    for (int i = 0; i < 100; ++i) stack_block[i] = (float)i;
    copy(block, stack_block, 400, compute); /* done when the call returns */
    stack_block[99] = 0;
    CHECK_NEAR(values(block, 100)[99], 99, 0);
    copy(stack_block, block, 400, compute);
    CHECK_NEAR(stack_block[99], 99, 0);
    CHECK_INT(gg_standin_count("pageable"), 2);
    CHECK_INT(api->cudaMemsetAsync(block, 0, 400, compute), 0);
    NOTHING_VIOLATED();
    VIOLATES(api->cudaMemcpyAsync(block, host, 404, GG_CUDA_MEMCPY_DEFAULT, compute), 1, "needs 404 bytes, and 400");
    VIOLATES(api->cudaMemcpyAsync(block, host, 400, 2, compute), 1, "kind 2");
    VIOLATES(api->cudaMemcpyAsync(block, block + 1, 40, GG_CUDA_MEMCPY_DEFAULT, compute), 1, "overlap");
    VIOLATES(api->cudaMemsetAsync(block, 0, 401, compute), 1, "needs 401");
    VIOLATES(api->cudaMemsetAsync(block, 0, 400, NULL), 400, "NULL");
    VIOLATES(api->cudaMemsetAsync(NULL, 0, 400, compute), 1, "is NULL");
    VIOLATES(api->cudaFree(block + 1), 1, "inside of a block");
    VIOLATES(api->cudaFree(host), 1, "pinned memory");
    VIOLATES(api->cudaFreeHost(block), 1, "memory of the device");
    VIOLATES(api->cudaHostUnregister(host), 713, "pinned memory");

    CHECK_INT(api->cudaHostRegister(stack_block, 400, GG_CUDA_HOST_MAPPED), 0);
    CHECK_INT(api->cudaHostRegister(stack_block + 10, 40, GG_CUDA_HOST_MAPPED), GG_CUDA_ERROR_ALREADY_REGISTERED);
    CHECK_INT(api->cudaGetLastError(), GG_CUDA_ERROR_ALREADY_REGISTERED);
    CHECK_INT(api->cudaGetLastError(), 0);
    copy(stack_block, block, 400, compute);
    finish();
    CHECK_NEAR(stack_block[99], 0, 0);
    CHECK_INT(api->cudaHostUnregister(stack_block), 0);
    VIOLATES(api->cudaHostUnregister(stack_block), 713, "freed before");
    /* What is registered in pieces is copied and filled piece by piece; what is registered in part not at all. */
    CHECK_INT(api->cudaHostRegister(stack_block, 40, GG_CUDA_HOST_MAPPED), 0);
    VIOLATES(api->cudaMemcpyAsync(block, stack_block, 400, GG_CUDA_MEMCPY_DEFAULT, compute), 1,
             "the source needs 400 bytes, and 40 are there");
    CHECK_INT(api->cudaHostRegister(stack_block + 10, 360, GG_CUDA_HOST_MAPPED), 0);
    VIOLATES(api->cudaMemcpyAsync(block, stack_block, 400, GG_CUDA_MEMCPY_DEFAULT, compute), 1, "into the next");
    VIOLATES(api->cudaMemsetAsync(stack_block, 0, 400, compute), 1, "into the next");
    copy(block, stack_block + 10, 360, compute);
    finish();
    CHECK_INT(gg_standin_count("pageable"), 0);
    CHECK_INT(api->cudaHostUnregister(stack_block + 10), 0);
    CHECK_INT(api->cudaHostUnregister(stack_block), 0);

    CHECK_INT(api->cudaFree(block), 0);
    VIOLATES(api->cudaFree(block), 1, "freed before");
    VIOLATES(api->cudaMemsetAsync(block, 0, 4, compute), 1, "nothing is allocated");
    CHECK_INT(api->cudaFreeHost(host), 0);
    NOTHING_VIOLATED();

    gg_standin_memory(1 << 20);
    void *large = NULL;
    size_t left = 0, all = 0;
    CHECK_INT(api->cudaMalloc(&large, (1 << 20) + 1), GG_CUDA_ERROR_MEMORY_ALLOCATION);
    CHECK(large == NULL);
    CHECK_INT(api->cudaMalloc(&large, 1 << 19), 0);
    CHECK_INT(api->cudaMemGetInfo(&left, &all), 0);
    CHECK_INT(left, 1 << 19);
    CHECK_INT(api->cudaFree(large), 0);
    gg_standin_memory((size_t)8 << 30);
    free(stack_block);
}

/* A child that touches memory of the device ends by a signal. */
static void test_host_access(void) {
    float *block = device_floats(4);
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        block[1] = 3;
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    CHECK_INT(api->cudaFree(block), 0);
}

/* ---------------------------------------------------------------------------------------------- streams and events */

/* Without an order between two streams their work is done in either order, depending on the seed; with one, never. */
static void test_order(void) {
    float *block = device_floats(1), *ones = pinned_floats(2), *result = pinned_floats(1);
    gg_cuda_event written;
    int wrong = 0, right = 0, not_ready = 0;
    ones[0] = 1, ones[1] = 2;
    CHECK_INT(api->cudaEventCreateWithFlags(&written, GG_CUDA_EVENT_DISABLE_TIMING), 0);
    for (uint64_t seed = 1; seed <= 60; ++seed) {
        gg_standin_begin(seed);
        copy(block, ones, 4, compute);
        finish();
        copy(block, ones + 1, 4, compute);
        if (seed % 2 == 0) {
            CHECK_INT(api->cudaEventRecord(written, compute), 0);
            CHECK_INT(api->cudaStreamWaitEvent(copies, written, 0), 0);
            not_ready += api->cudaEventQuery(written) == GG_CUDA_ERROR_NOT_READY;
        }
        copy(result, block, 4, copies);
        CHECK_INT(api->cudaStreamSynchronize(copies), 0);
        if (seed % 2 == 0) CHECK_NEAR(*result, 2, 0);
        else ++*(*result == 2 ? &right : &wrong);
        if (seed % 2 == 0) CHECK_INT(api->cudaEventQuery(written), 0);
        finish();
    }
    CHECK(right > 0 && wrong > 0 && not_ready > 0);
    NOTHING_VIOLATED();

    /* Work is done also where nobody waits for it: asking is enough. */
    gg_standin_begin(7);
    copy(block, ones, 4, compute);
    CHECK_INT(api->cudaEventRecord(written, compute), 0);
    while (api->cudaEventQuery(written) == GG_CUDA_ERROR_NOT_READY)
        CHECK_INT(api->cudaGetLastError(), GG_CUDA_ERROR_NOT_READY);
    CHECK_INT(api->cudaGetLastError(), 0);

    /* An event that is recorded anew waits for the later place. */
    copy(block, ones + 1, 4, compute);
    CHECK_INT(api->cudaEventRecord(written, compute), 0);
    CHECK_INT(api->cudaEventSynchronize(written), 0);
    CHECK_NEAR(*values(block, 1), 2, 0);

    /* Work of either kind that is not done. */
    gg_standin_begin(3);
    for (int i = 0; i < 100; ++i) copy(block, ones, 4, compute);
    CHECK_INT(api->cudaFreeHost(ones), 0);
    is_seen("not done use this memory", __LINE__);
    gg_cuda_stream third;
    CHECK_INT(api->cudaStreamCreateWithFlags(&third, GG_CUDA_STREAM_NON_BLOCKING), 0);
    gg_standin_begin(3);
    for (int i = 0; i < 100; ++i) CHECK_INT(api->cudaMemsetAsync(block, 0, 4, third), 0);
    CHECK_INT(api->cudaStreamDestroy(third), 0);
    is_seen("pieces of its work are not done", __LINE__);
    VIOLATES(api->cudaStreamDestroy(third), 400, "destroyed");
    VIOLATES(api->cudaStreamCreateWithFlags(&third, 0), 1, "legacy stream");

    CHECK_INT(api->cudaEventDestroy(written), 0);
    VIOLATES(api->cudaEventRecord(written, compute), 400, "destroyed");
    VIOLATES(api->cudaEventQuery((gg_cuda_event)compute), 400, "cudaStream");
    CHECK_INT(api->cudaEventCreateWithFlags(&written, GG_CUDA_EVENT_DISABLE_TIMING), 0);
    VIOLATES(api->cudaStreamWaitEvent(compute, written, 0), 0, "never recorded");
    CHECK_INT(api->cudaEventDestroy(written), 0);
    CHECK_INT(api->cudaFree(block), 0);
    CHECK_INT(api->cudaFreeHost(result), 0);
}

/* Work that is captured is not done, and done whenever its graph is launched, late like all work. */
static void test_graphs(void) {
    float *block = device_floats(1), *input = pinned_floats(1), *gone = device_floats(1), plain[1] = {0};
    gg_cuda_event event;
    gg_cuda_graph graph, again;
    gg_cuda_graph_exec exec;
    CHECK_INT(api->cudaEventCreateWithFlags(&event, GG_CUDA_EVENT_DISABLE_TIMING), 0);
    input[0] = 1;
    copy(block, input, 4, compute);
    finish();
    CHECK_INT(api->cudaStreamBeginCapture(compute, GG_CUDA_CAPTURE_THREAD_LOCAL), 0);
    copy(block, input, 4, compute);
    CHECK_INT(api->cudaStreamEndCapture(compute, &graph), 0);
    input[0] = 2;
    CHECK_NEAR(*values(block, 1), 1, 0);
    CHECK_INT(api->cudaGraphInstantiate(&exec, graph, 0), 0);
    CHECK_INT(api->cudaGraphDestroy(graph), 0);
    for (int i = 3; i < 6; ++i) {
        input[0] = (float)i;
        CHECK_INT(api->cudaGraphLaunch(exec, compute), 0);
        CHECK_NEAR(*values(block, 1), i, 0);
    }
    gg_standin_begin(3);
    input[0] = 6;
    CHECK_INT(api->cudaGraphLaunch(exec, compute), 0);
    CHECK_INT(api->cudaGraphExecDestroy(exec), 0);
    CHECK_NEAR(*values(block, 1), 6, 0);
    NOTHING_VIOLATED();
    VIOLATES(api->cudaGraphLaunch(exec, compute), 400, "cudaGraphExec is NULL, destroyed");
    VIOLATES(api->cudaStreamEndCapture(compute, &graph), 903, "not captured");
    VIOLATES(api->cudaStreamBeginCapture(compute, 0), 1, "mode 0");

    /* What is not allowed meanwhile makes the capture invalid. */
    void *memory = NULL;
    CHECK_INT(api->cudaEventRecord(event, copies), 0);
    for (int i = 0; i < 8; ++i) {
        CHECK_INT(api->cudaStreamBeginCapture(compute, GG_CUDA_CAPTURE_THREAD_LOCAL), 0);
        copy(block, input, 4, compute);
        if (i == 0) CHECK_INT(api->cudaMalloc(&memory, 4), GG_CUDA_ERROR_CAPTURE_UNSUPPORTED);
        if (i == 1) CHECK_INT(api->cudaFree(gone), GG_CUDA_ERROR_CAPTURE_UNSUPPORTED);
        if (i == 2) CHECK_INT(api->cudaStreamSynchronize(compute), GG_CUDA_ERROR_CAPTURE_UNSUPPORTED);
        if (i == 3) CHECK_INT(api->cudaDeviceSynchronize(), GG_CUDA_ERROR_CAPTURE_UNSUPPORTED);
        if (i == 4) CHECK_INT(api->cudaEventQuery(event), GG_CUDA_ERROR_CAPTURE_UNSUPPORTED);
        if (i == 5) CHECK_INT(api->cudaStreamWaitEvent(compute, event, 0), GG_CUDA_ERROR_CAPTURE_UNSUPPORTED);
        if (i == 6)
            CHECK_INT(api->cudaMemcpyAsync(block, plain, 4, GG_CUDA_MEMCPY_DEFAULT, compute),
                      GG_CUDA_ERROR_CAPTURE_UNSUPPORTED);
        if (i == 7) VIOLATES(api->cudaStreamBeginCapture(copies, GG_CUDA_CAPTURE_THREAD_LOCAL), 1, "captures already");
        else is_seen("while this thread captures", __LINE__);
        CHECK_INT(api->cudaStreamEndCapture(compute, &again), i < 7 ? GG_CUDA_ERROR_CAPTURE_INVALIDATED : 0);
        if (i == 7) CHECK_INT(api->cudaGraphDestroy(again), 0);
        else CHECK(again == NULL);
    }

    /* An event of captured work is never reached; a graph outlives no memory. */
    CHECK_INT(api->cudaStreamBeginCapture(compute, GG_CUDA_CAPTURE_THREAD_LOCAL), 0);
    CHECK_INT(api->cudaMemsetAsync(gone, 0, 4, compute), 0);
    CHECK_INT(api->cudaEventRecord(event, compute), 0);
    CHECK_INT(api->cudaStreamEndCapture(compute, &graph), 0);
    VIOLATES(api->cudaEventQuery(event), 907, "while its stream was captured");
    VIOLATES(api->cudaEventSynchronize(event), 907, "while its stream was captured");
    CHECK_INT(api->cudaGraphInstantiate(&exec, graph, 0), 0);
    CHECK_INT(api->cudaFree(gone), 0);
    VIOLATES(api->cudaGraphLaunch(exec, compute), 1, "has been freed");
    CHECK_INT(api->cudaGraphExecDestroy(exec), 0);
    CHECK_INT(api->cudaGraphDestroy(graph), 0);
    CHECK_INT(api->cudaEventDestroy(event), 0);
    CHECK_INT(api->cudaFree(block), 0);
    CHECK_INT(api->cudaFreeHost(input), 0);
    (void)api->cudaGetLastError();
}

static void test_devices(void) {
    int count = 0;
    gg_standin_devices(0);
    CHECK_INT(api->cudaGetDeviceCount(&count), GG_CUDA_ERROR_INSUFFICIENT_DRIVER);
    gg_standin_devices(2);
    CHECK_INT(api->cudaGetDeviceCount(&count), 0);
    CHECK_INT(count, 2);
    VIOLATES(api->cudaSetDevice(2), 101, "there are 2 devices");
    CHECK_INT(api->cudaSetDevice(1), 0);
    VIOLATES(api->cudaStreamSynchronize(compute), 400, "stream is of device 0, and this thread's device is 1");
    CHECK_INT(api->cudaSetDevice(0), 0);
    gg_standin_devices(1);
    gg_standin_begin(0);
}

static void test_errors(void) {
    void *block = NULL;
    gg_standin_plant("cudaMalloc", 2, GG_CUDA_ERROR_MEMORY_ALLOCATION, false, false);
    CHECK_INT(api->cudaMalloc(&block, 4), 0);
    CHECK_INT(api->cudaFree(block), 0);
    CHECK_INT(api->cudaMalloc(&block, 4), GG_CUDA_ERROR_MEMORY_ALLOCATION);
    CHECK_INT(api->cudaMalloc(&block, 4), 0);
    gg_standin_begin(0);
    /* The device is lost while it does this work: the call succeeds, and what comes behind fails for ever. */
    gg_standin_plant("cudaMemsetAsync", 1, 719, true, true);
    CHECK_INT(api->cudaMemsetAsync(block, 0, 4, compute), 0);
    CHECK_INT(api->cudaStreamSynchronize(compute), 719);
    CHECK_INT(api->cudaGetLastError(), 719);
    CHECK_INT(api->cudaMemsetAsync(block, 0, 4, compute), 719);
    gg_standin_begin(0);
    CHECK_INT(api->cudaFree(block), 0);
    CHECK_TEXT(api->cudaGetErrorName(719), "cudaErrorLaunchFailure");
}

/* -------------------------------------------------------------------------------------------------------- kernels */

typedef struct doubling {
    const float *in;
    float *out;
    long count;
} doubling;

static void run_doubling(const void *packet) {
    const doubling *it = packet;
    for (long i = 0; i < it->count; ++i) it->out[i] = 2 * it->in[i];
}

static void launch_doubling(const doubling *call, gg_cuda_stream stream) {
    const uint64_t pointers[4] = {3}, structs[4] = {0};
    gg_standin_launch("doubling", stream, run_doubling, call, sizeof *call,
                      &(gg_standin_words){.pointers = pointers, .structs = structs});
}

static void test_kernels(void) {
    float *in = device_floats(8), *out = pinned_floats(8), *unpinned = aligned_alloc(64, 64), *gone = device_floats(1);
    float *short_block = device_floats(8);
    fill(in, 8, 5);
    doubling call = {in, out, 8};
    launch_doubling(&call, compute);
    finish();
    const float *wanted = values(in, 8);
    for (int i = 0; i < 8; ++i) CHECK_NEAR(out[i], 2 * wanted[i], 0);
    CHECK_INT(gg_standin_count("kernel doubling"), 1);
    NOTHING_VIOLATED();
    call = (doubling){in, unpinned, 8};
    launch_doubling(&call, compute);
    CHECK_INT(api->cudaGetLastError(), 1);
    is_seen("kernel doubling: word 1 of its arguments is an address of host memory that is not pinned", __LINE__);
    CHECK_INT(api->cudaFree(gone), 0);
    call = (doubling){gone, out, 8};
    launch_doubling(&call, compute);
    CHECK_INT(api->cudaGetLastError(), 1);
    is_seen("word 0 of its arguments is an address of the device where nothing is allocated", __LINE__);
    call = (doubling){in, short_block, 8};
    launch_doubling(&call, NULL);
    is_seen("legacy stream", __LINE__);
    call = (doubling){out, short_block + 1, 8}; /* one element behind the end */
    launch_doubling(&call, compute);
    CHECK_INT(api->cudaFree(short_block), 0);
    is_seen("work wrote behind the end of a block of 32 bytes", __LINE__);
    CHECK_INT(api->cudaFree(in), 0);
    CHECK_INT(api->cudaFreeHost(out), 0);
    free(unpinned);
}

static void test_leaks(void) {
    char text[1024];
    gg_cudnn_tensor tensor;
    check_leaks();
    float *block = device_floats(3);
    CHECK_INT(api->cudnnCreateTensorDescriptor(&tensor), 0);
    CHECK_INT(gg_standin_leaks(text, sizeof text), 5);
    CHECK(strstr(text, "12 bytes of memory of the device") != NULL && strstr(text, "cudnnTensorDescriptor") != NULL);
    CHECK_INT(api->cudnnDestroyTensorDescriptor(tensor), 0);
    CHECK_INT(api->cudaFree(block), 0);
}

int main(void) {
    begin();
    test_memory();
    test_host_access();
    test_order();
    test_graphs();
    test_devices();
    test_errors();
    test_kernels();
    test_leaks();
    return CHECK_RESULT;
}
