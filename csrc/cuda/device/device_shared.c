/* Host memory shared by devices, and copies and zeros in it.
 *
 * The driver maps whole pages, and refuses a mapped page. Blocks of one process may have common pages, and several
 * devices may share one block. This file therefore knows all mapped pages of the process. A mapping is undone when no
 * block has a page of it. */
#include <pthread.h>
#include <unistd.h>

#include "base/memory.h"
#include "cuda/device/device_private.h"

typedef struct shared_pages {
    struct shared_pages *next;
    uintptr_t begin, end;
    int users;
    bool foreign; /* mapped by other code of this process, which will undo it */
} shared_pages;

static pthread_rwlock_t shared_lock = PTHREAD_RWLOCK_INITIALIZER;
static shared_pages *shared_first;

/* A block to be unshared; its size is not known at that time. */
typedef struct shared_block {
    struct shared_block *next;
    uintptr_t at, begin, end;
} shared_block;

static shared_block *shared_blocks;

static int unmap_pages(gg_cuda_device *device, const shared_pages *pages) {
    return pages->foreign ? GG_CUDA_SUCCESS : device->api->cudaHostUnregister((void *)pages->begin);
}

static void release_pages(gg_cuda_device *device, uintptr_t begin, uintptr_t end) {
    for (shared_pages **link = &shared_first; *link != NULL;) {
        shared_pages *pages = *link;
        if (pages->begin < end && begin < pages->end && --pages->users == 0) {
            gg_cuda_note(device, unmap_pages(device, pages), "cudaHostUnregister");
            *link = pages->next;
            gg_free(pages);
        } else link = &pages->next;
    }
}

/* The first mapped pages at or after `at`. */
static const shared_pages *pages_from(uintptr_t at) {
    const shared_pages *found = NULL;
    for (const shared_pages *p = shared_first; p != NULL; p = p->next)
        if (p->end > at && (found == NULL || p->begin < found->begin)) found = p;
    return found;
}

static gg_status map_pages(gg_cuda_device *device, uintptr_t begin, uintptr_t end) {
    const gg_cuda_api *api = device->api;
    shared_pages *pages = NULL;
    gg_status status = GG_OK;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *pages, "shared pages", &pages));
    const int error = api->cudaHostRegister((void *)begin, end - begin, GG_CUDA_HOST_PORTABLE | GG_CUDA_HOST_MAPPED);
    if (error != GG_CUDA_SUCCESS) (void)api->cudaGetLastError();
    if (error == GG_CUDA_ERROR_MEMORY_ALLOCATION)
        GG_FAIL_CLEANUP(
            GG_ERROR_MEMORY,
            "%zu bytes of host memory cannot be pinned for the GPU %d (the limit of locked memory, ulimit -l, may "
            "be too low)",
            (size_t)(end - begin), device->number);
    const bool foreign = error == GG_CUDA_ERROR_ALREADY_REGISTERED;
    if (error != GG_CUDA_SUCCESS && !foreign) GG_TRY_CLEANUP(gg_cuda_fail(api, error, "cudaHostRegister"));
    *pages = (shared_pages){.next = shared_first, .begin = begin, .end = end, .foreign = foreign};
    shared_first = pages;
    pages = NULL;
cleanup:
    gg_free(pages);
    return status;
}

gg_status gg_cuda_memory_share(gg_device *head, void *at, size_t bytes) {
    gg_cuda_device *device = gg_cuda_of(head);
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)at;
    const uintptr_t begin = start / page * page, end = (start + bytes + page - 1) / page * page;
    shared_block *block = NULL;
    uintptr_t mapped = begin;
    gg_status status = GG_OK;
    gg_cuda_enter(device);
    pthread_rwlock_wrlock(&shared_lock);
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *block, "a shared block", &block));
    while (mapped < end) {
        const shared_pages *next = pages_from(mapped);
        const uintptr_t until = next == NULL || next->begin >= end ? end : next->begin;
        if (until > mapped) GG_TRY_CLEANUP(map_pages(device, mapped, until));
        mapped = until < end ? next->end : end;
    }
    for (shared_pages *p = shared_first; p != NULL; p = p->next) p->users += p->begin < end && begin < p->end;
    *block = (shared_block){.next = shared_blocks, .at = start, .begin = begin, .end = end};
    shared_blocks = block;
    block = NULL;
cleanup:
    if (status != GG_OK)
        for (shared_pages **link = &shared_first; *link != NULL;) {
            shared_pages *pages = *link;
            if (pages->users == 0) {
                (void)unmap_pages(device, pages);
                *link = pages->next;
                gg_free(pages);
            } else link = &pages->next;
        }
    gg_free(block);
    pthread_rwlock_unlock(&shared_lock);
    return status;
}

void gg_cuda_memory_unshare(gg_device *head, void *at) {
    gg_cuda_device *device = gg_cuda_of(head);
    gg_cuda_wait_for_all_work(device);
    pthread_rwlock_wrlock(&shared_lock);
    shared_block **link = &shared_blocks;
    while (*link != NULL && (*link)->at != (uintptr_t)at) link = &(*link)->next;
    shared_block *block = *link;
    if (block != NULL) {
        *link = block->next;
        release_pages(device, block->begin, block->end);
        gg_free(block);
    }
    pthread_rwlock_unlock(&shared_lock);
}

/* Counts the bytes from `at` on, at most `bytes`, before the next border of mapped pages. A copy by the runtime must
 * not cross the border of mapped memory, nor of two mappings. */
static size_t bytes_of_one_mapping(const void *at, size_t bytes) {
    const uintptr_t begin = (uintptr_t)at;
    uintptr_t end = begin + bytes;
    for (const shared_pages *p = shared_first; p != NULL; p = p->next) {
        if (begin < p->begin && p->begin < end) end = p->begin;
        if (begin < p->end && p->end < end && p->begin <= begin) end = p->end;
    }
    return end - begin;
}

void gg_cuda_memory_copy(gg_device *head, gg_queue queue, void *to, const void *from, size_t bytes) {
    gg_cuda_device *device = gg_cuda_of(head);
    gg_cuda_enter(device);
    pthread_rwlock_rdlock(&shared_lock);
    for (size_t done = 0, piece; done < bytes; done += piece) {
        const char *source = (const char *)from + done;
        char *target = (char *)to + done;
        piece = bytes_of_one_mapping(target, bytes_of_one_mapping(source, bytes - done));
        gg_cuda_note(
            device,
            device->api->cudaMemcpyAsync(target, source, piece, GG_CUDA_MEMCPY_DEFAULT, device->queue[queue].stream),
            "cudaMemcpyAsync");
    }
    pthread_rwlock_unlock(&shared_lock);
}

void gg_cuda_memory_zero(gg_device *head, gg_queue queue, void *at, size_t bytes) {
    gg_cuda_device *device = gg_cuda_of(head);
    gg_cuda_enter(device);
    pthread_rwlock_rdlock(&shared_lock);
    for (size_t done = 0, piece; done < bytes; done += piece) {
        char *target = (char *)at + done;
        piece = bytes_of_one_mapping(target, bytes - done);
        gg_cuda_note(device, device->api->cudaMemsetAsync(target, 0, piece, device->queue[queue].stream),
                     "cudaMemsetAsync");
    }
    pthread_rwlock_unlock(&shared_lock);
}
