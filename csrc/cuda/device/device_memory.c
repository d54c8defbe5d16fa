/* Memory of the device, and host memory that it allocates. */
#include <string.h>

#include "base/memory.h"
#include "cuda/device/device_private.h"

struct gg_cuda_block {
    gg_cuda_block *next;
    void *at;
    size_t bytes;
};

static void count_block(gg_cuda_device *device, gg_cuda_block *block, void *at, size_t bytes) {
    *block = (gg_cuda_block){.next = device->blocks, .at = at, .bytes = bytes};
    device->blocks = block;
    gg_memory_count((int64_t)bytes, 1);
}

static void forget_block(gg_cuda_device *device, const void *at) {
    gg_cuda_block **link = &device->blocks;
    while (*link != NULL && (*link)->at != at) link = &(*link)->next;
    gg_cuda_block *block = *link;
    if (block == NULL) return;
    *link = block->next;
    gg_memory_count(-(int64_t)block->bytes, 0);
    gg_free(block);
}

gg_status gg_cuda_memory_alloc(gg_device *head, size_t bytes, const char *what, void **out) {
    gg_cuda_device *device = gg_cuda_of(head);
    const gg_cuda_api *api = device->api;
    gg_cuda_block *block = NULL;
    void *at = NULL;
    gg_status status = GG_OK;
    *out = NULL;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *block, "a block on the GPU", &block));
    gg_cuda_enter(device);
    const int error = api->cudaMalloc(&at, bytes);
    if (error == GG_CUDA_ERROR_MEMORY_ALLOCATION) {
        size_t free_bytes = 0, all_bytes = 0;
        (void)api->cudaGetLastError();
        (void)api->cudaMemGetInfo(&free_bytes, &all_bytes);
        GG_FAIL_CLEANUP(
            GG_ERROR_MEMORY,
            "no memory for %s on the GPU %d: %zu bytes wanted, %zu of %zu bytes are free (a smaller batch_size "
            "needs less)",
            what, device->number, bytes, free_bytes, all_bytes);
    }
    if (error != GG_CUDA_SUCCESS) GG_TRY_CLEANUP(gg_cuda_fail(api, error, "cudaMalloc"));
    GG_CUDA_TRY_CLEANUP(api, cudaMemsetAsync, (at, 0, bytes, gg_cuda_compute(device)));
    GG_CUDA_TRY_CLEANUP(api, cudaStreamSynchronize, (gg_cuda_compute(device)));
    count_block(device, block, at, bytes);
    *out = at;
    block = NULL;
    at = NULL;
cleanup:
    if (at != NULL) (void)api->cudaFree(at);
    gg_free(block);
    return status;
}

void gg_cuda_memory_free(gg_device *head, void *at) {
    gg_cuda_device *device = gg_cuda_of(head);
    gg_cuda_wait_for_all_work(device);
    gg_cuda_note(device, device->api->cudaFree(at), "cudaFree");
    forget_block(device, at);
}

gg_status gg_cuda_memory_alloc_host(gg_device *head, size_t bytes, const char *what, void **out) {
    gg_cuda_device *device = gg_cuda_of(head);
    const gg_cuda_api *api = device->api;
    gg_cuda_block *block = NULL;
    void *at = NULL;
    gg_status status = GG_OK;
    *out = NULL;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *block, "a block that the GPU shares", &block));
    gg_cuda_enter(device);
    const int error = api->cudaHostAlloc(&at, bytes, GG_CUDA_HOST_PORTABLE | GG_CUDA_HOST_MAPPED);
    if (error == GG_CUDA_ERROR_MEMORY_ALLOCATION) {
        (void)api->cudaGetLastError();
        GG_FAIL_CLEANUP(
            GG_ERROR_MEMORY,
            "no pinned memory for %s: %zu bytes wanted (the limit of locked memory, ulimit -l, may be too low)", what,
            bytes);
    }
    if (error != GG_CUDA_SUCCESS) GG_TRY_CLEANUP(gg_cuda_fail(api, error, "cudaHostAlloc"));
    memset(at, 0, bytes);
    count_block(device, block, at, bytes);
    *out = at;
    block = NULL;
cleanup:
    gg_free(block);
    return status;
}

void gg_cuda_memory_free_host(gg_device *head, void *at) {
    gg_cuda_device *device = gg_cuda_of(head);
    gg_cuda_wait_for_all_work(device);
    gg_cuda_note(device, device->api->cudaFreeHost(at), "cudaFreeHost");
    forget_block(device, at);
}

void *gg_cuda_reduction(gg_cuda_device *device, size_t bytes) {
    void *larger = NULL;
    if (bytes <= device->reduced) return device->reduction;
    if (gg_cuda_memory_alloc(&device->head, bytes, "sums", &larger) != GG_OK) {
        gg_cuda_note(device, GG_CUDA_ERROR_MEMORY_ALLOCATION, "cudaMalloc");
        return NULL;
    }
    if (device->reduction != NULL) gg_device_free(&device->head, device->reduction); /* captured work may use it */
    device->reduction = larger;
    device->reduced = bytes;
    return larger;
}
