/* Captured work: work given to the stream of GG_QUEUE_COMPUTE becomes a CUDA graph. */
#include "base/memory.h"
#include "cuda/device/device_private.h"

struct gg_device_graph {
    gg_cuda_graph_exec exec;
};

/* The capture concerns this thread alone: other threads of the process, whose ranks have their own streams,
 * continue. */
gg_status gg_cuda_memory_capture_begin(gg_device *head) {
    gg_cuda_device *device = gg_cuda_of(head);
    gg_status status = GG_OK;
    if (device->failed != GG_OK) GG_FAIL_CLEANUP(device->failed, "%s", device->failure);
    gg_cuda_enter(device);
    GG_CUDA_TRY_CLEANUP(device->api, cudaStreamBeginCapture, (gg_cuda_compute(device), GG_CUDA_CAPTURE_THREAD_LOCAL));
cleanup:
    if (status != GG_OK) (void)device->api->cudaGetLastError();
    return status;
}

/* First failure since begin: none of the captured work has been done, so the device is unchanged. */
static gg_status failure_of_capture(gg_cuda_device *device) {
    const gg_status failed = device->failed;
    device->failed = GG_OK;
    if (failed != GG_OK) return gg_fail(failed, "%s", device->failure);
    return GG_OK;
}

gg_status gg_cuda_memory_capture_end(gg_device *head, gg_device_graph **out) {
    gg_cuda_device *device = gg_cuda_of(head);
    const gg_cuda_api *api = device->api;
    gg_cuda_graph graph = NULL;
    gg_device_graph *made = NULL;
    gg_status status = GG_OK;
    *out = NULL;
    const int error = api->cudaStreamEndCapture(gg_cuda_compute(device), &graph);
    if (error != GG_CUDA_SUCCESS) (void)api->cudaGetLastError();
    GG_TRY_CLEANUP(failure_of_capture(device));
    if (error != GG_CUDA_SUCCESS) GG_TRY_CLEANUP(gg_cuda_fail(api, error, "cudaStreamEndCapture"));
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *made, "captured work", &made));
    GG_CUDA_TRY_CLEANUP(api, cudaGraphInstantiate, (&made->exec, graph, 0));
    *out = made;
    made = NULL;
cleanup:
    if (status != GG_OK) (void)api->cudaGetLastError();
    if (graph != NULL) gg_cuda_note(device, api->cudaGraphDestroy(graph), "cudaGraphDestroy");
    gg_free(made);
    return status;
}

void gg_cuda_memory_replay(gg_device *head, gg_device_graph *graph) {
    gg_cuda_device *device = gg_cuda_of(head);
    gg_cuda_enter(device);
    gg_cuda_note(device, device->api->cudaGraphLaunch(graph->exec, gg_cuda_compute(device)), "cudaGraphLaunch");
}

void gg_cuda_memory_destroy_graph(gg_device *head, gg_device_graph *graph) {
    gg_cuda_device *device = gg_cuda_of(head);
    gg_cuda_wait_for_all_work(device);
    gg_cuda_note(device, device->api->cudaGraphExecDestroy(graph->exec), "cudaGraphExecDestroy");
    gg_free(graph);
}
