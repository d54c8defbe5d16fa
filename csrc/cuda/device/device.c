/* Opening and closing a device. */
#include "cuda/device/device.h"

#include "base/memory.h"
#include "cuda/device/device_private.h"

/* Min capability, for which the kernels are compiled (setup.py). */
enum { MIN_CAPABILITY = 80 };
/* Bytes of scratch for sums. */
enum { MIN_REDUCTION = 1 << 20 };

const gg_memory_table gg_cuda_memory = {
    .alloc = gg_cuda_memory_alloc,
    .free = gg_cuda_memory_free,
    .alloc_host = gg_cuda_memory_alloc_host,
    .free_host = gg_cuda_memory_free_host,
    .share = gg_cuda_memory_share,
    .unshare = gg_cuda_memory_unshare,
    .copy = gg_cuda_memory_copy,
    .zero = gg_cuda_memory_zero,
    .mark = gg_cuda_memory_mark,
    .reached = gg_cuda_memory_reached,
    .wait = gg_cuda_memory_wait,
    .follow = gg_cuda_memory_follow,
    .time = gg_cuda_memory_time,
    .read_time = gg_cuda_memory_read_time,
    .report = gg_cuda_memory_report,
    .check = gg_cuda_memory_check,
    .capture_begin = gg_cuda_memory_capture_begin,
    .capture_end = gg_cuda_memory_capture_end,
    .replay = gg_cuda_memory_replay,
    .destroy_graph = gg_cuda_memory_destroy_graph,
};

static gg_status check_capability(const gg_cuda_api *api, int number) {
    int major = 0, minor = 0, unified = 0, host_pointer = 0;
    size_t bytes = 0;
    char name[256] = "";
    GG_CUDA_TRY(api, cudaDeviceGetAttribute, (&major, GG_CUDA_ATTRIBUTE_MAJOR, number));
    GG_CUDA_TRY(api, cudaDeviceGetAttribute, (&minor, GG_CUDA_ATTRIBUTE_MINOR, number));
    GG_CUDA_TRY(api, cudaDeviceGetAttribute, (&unified, GG_CUDA_ATTRIBUTE_UNIFIED_ADDRESSING, number));
    GG_CUDA_TRY(api, cudaDeviceGetAttribute, (&host_pointer, GG_CUDA_ATTRIBUTE_HOST_POINTER, number));
    GG_CUDA_TRY(api, device_facts, (number, name, sizeof name, &bytes));
    if (10 * major + minor < MIN_CAPABILITY)
        return gg_fail(GG_ERROR_UNSUPPORTED, "the GPU %d (%s) has compute capability %d.%d; at least %d.%d is needed",
                       number, name, major, minor, MIN_CAPABILITY / 10, MIN_CAPABILITY % 10);
    if (!unified || !host_pointer)
        return gg_fail(GG_ERROR_UNSUPPORTED, "the GPU %d (%s) cannot use host memory at the host's addresses", number,
                       name);
    return GG_OK;
}

static gg_status open_queue(gg_cuda_device *device, gg_cuda_queue *queue) {
    const gg_cuda_api *api = device->api;
    GG_CUDA_TRY(api, cudaStreamCreateWithFlags, (&queue->stream, GG_CUDA_STREAM_NON_BLOCKING));
    for (int i = 0; i < GG_CUDA_MARKS; ++i)
        GG_CUDA_TRY(api, cudaEventCreateWithFlags, (&queue->event[i], GG_CUDA_EVENT_DISABLE_TIMING));
    return GG_OK;
}

static void close_queue(gg_cuda_device *device, gg_cuda_queue *queue) {
    for (int i = 0; i < GG_CUDA_MARKS; ++i)
        if (queue->event[i] != NULL) (void)device->api->cudaEventDestroy(queue->event[i]);
    if (queue->stream != NULL) (void)device->api->cudaStreamDestroy(queue->stream);
}

/* Scratch of sums has the size that most sums need, so that a warm step allocates nothing. */
static gg_status open_results(gg_cuda_device *device) {
    void *block = NULL;
    GG_TRY(gg_cuda_memory_alloc_host(&device->head, sizeof *device->results, "a device's results", &block));
    device->results = block;
    GG_TRY(gg_cuda_memory_alloc(&device->head, GG_CUDA_BAD_COUNT * sizeof(uint32_t), "a device's reports", &block));
    device->bad = block;
    if (gg_cuda_reduction(device, MIN_REDUCTION) == NULL) GG_TRY(gg_cuda_memory_check(&device->head, (gg_mark){0}));
    gg_cuda_forget_bad_numbers(device);
    GG_CUDA_TRY(device->api, cudaStreamSynchronize, (gg_cuda_compute(device)));
    return GG_OK;
}

gg_status gg_cuda_device_open(const gg_device_options *options, gg_device **out) {
    const gg_cuda_api *api = NULL;
    gg_cuda_device *device = NULL;
    int count = 0;
    gg_status status = GG_OK;
    *out = NULL;
    /* Checks the driver first: without a driver cuDNN prints messages. */
    GG_TRY_CLEANUP(gg_cuda_api_get(0, &api));
    GG_TRY_CLEANUP(gg_cuda_count_devices(api, &count));
    if (options->number < 0 || options->number >= count)
        GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT, "device: there is no GPU %d here; allowed are \"cuda:0\" to \"cuda:%d\"",
                        options->number, count - 1);
    GG_TRY_CLEANUP(check_capability(api, options->number));
    GG_TRY_CLEANUP(gg_cuda_api_get(1, &api));
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *device, "a device", &device));
    device->head.table = &gg_backend_cuda;
    device->head.threads = 1;
    device->api = api;
    device->number = options->number;
    device->fast = options->fast;
    device->several = count > 1;
    GG_CUDA_TRY_CLEANUP(api, cudaSetDevice, (options->number));
    for (int i = 0; i < GG_QUEUE_COUNT; ++i) GG_TRY_CLEANUP(open_queue(device, &device->queue[i]));
    GG_CUBLAS_TRY_CLEANUP(api, cublasLtCreate, (&device->blas));
    GG_CUDNN_TRY_CLEANUP(api, cudnnCreate, (&device->dnn));
    GG_CUDNN_TRY_CLEANUP(api, cudnnSetStream, (device->dnn, gg_cuda_compute(device)));
    GG_TRY_CLEANUP(open_results(device));
    *out = &device->head;
    device = NULL;
cleanup:
    if (device != NULL) gg_cuda_device_close(&device->head);
    return status;
}

void gg_cuda_device_close(gg_device *head) {
    gg_cuda_device *device = gg_cuda_of(head);
    if (device == NULL) return;
    gg_cuda_wait_for_all_work(device);
    if (device->reduction != NULL) gg_cuda_memory_free(head, device->reduction);
    if (device->bad != NULL) gg_cuda_memory_free(head, device->bad);
    if (device->results != NULL) gg_cuda_memory_free_host(head, device->results);
    if (device->dnn != NULL) (void)device->api->cudnnDestroy(device->dnn);
    if (device->blas != NULL) (void)device->api->cublasLtDestroy(device->blas);
    gg_cuda_forget_times(device);
    for (int i = 0; i < GG_QUEUE_COUNT; ++i) close_queue(device, &device->queue[i]);
    gg_free(device);
}
