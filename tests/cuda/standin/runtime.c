/* The CUDA runtime of the stand-in, as its callers see it: devices, memory, streams, events, launches. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "machine.h"

typedef struct event_handle {
    bool recorded, timed;
    double recorded_at; /* a queue without work gets there at once */
    bool captured;      /* it was recorded while its stream was captured */
    int device, place;
    long position;
} event_handle;

/* --------------------------------------------------------------------------------------------------------- kernels */

/* What was given: where it begins in the packet depends on the alignment of the arguments. */
typedef struct kernel_packet {
    void (*run)(const void *packet);
    void *unused;
    _Alignas(16) char packet[];
} kernel_packet;

static void run_kernel(void *packet) {
    const kernel_packet *it = packet;
    it->run(it->packet);
}

static bool is_mapped(uintptr_t at) { return msync((void *)(at / PAGE * PAGE), 1, MS_ASYNC) == 0; }

/* The block that a word of a kernel's arguments is an address of: inside, or one behind its end. */
static const gg_standin_block *block_of_word(uintptr_t word) {
    const gg_standin_block *block = word != 0 ? gg_standin_block_at(word) : NULL;
    return block != NULL || word == 0 ? block : gg_standin_block_at(word - 1);
}

/* A word of a struct in which a small field is followed by padding, which holds whatever was there before, may look
 * like an address. So it is none where its lower half is a usual integer or float; and no block of the device lies
 * there. */
static bool is_maybe_number(uintptr_t word) {
    const uint32_t low = (uint32_t)word, size = low & 0x7fffffffu;
    return word % 16 != 0 || low < 1u << 20 || (size > 0x2b800000u && size < 0x53800000u);
}

static bool is_usable(uintptr_t at) { return (uint32_t)at >= USABLE_BEGIN && (uint32_t)at < USABLE_END; }

/* Replaces an address of the device by where work finds that memory. `certain`: the argument is a pointer. An address
 * of host memory that is not pinned is one where a page is mapped. */
static int translate_word(const char *kernel, size_t place, bool certain, char *at, gg_standin_uses *uses) {
    uintptr_t word;
    memcpy(&word, at, sizeof word);
    const gg_standin_block *block = block_of_word(word);
    if (block == NULL && (word == 0 || (!certain && is_maybe_number(word)))) return 0;
    if (block == NULL && gg_standin_is_of_device(word))
        return !certain && !is_usable(word)
                   ? 0
                   : gg_standin_violation(
                         INVALID_VALUE,
                         "%s: word %zu of its arguments is an address of the device where nothing is allocated", kernel,
                         place);
    if (block == NULL && (certain || (word > (uintptr_t)1 << 32 && word < (uintptr_t)1 << 47 && is_mapped(word))))
        return gg_standin_violation(INVALID_VALUE,
                                    "%s: word %zu of its arguments is an address of host memory that is not pinned",
                                    kernel, place);
    if (block == NULL) return 0;
    if (!gg_standin_add_use(uses, (gg_standin_block *)block))
        return gg_standin_violation(INVALID_VALUE, "%s: more than %d blocks", kernel, GG_STANDIN_MAX_USES);
    if (block->kind == BLOCK_DEVICE) word = (uintptr_t)gg_standin_work_address(word);
    memcpy(at, &word, sizeof word);
    return 0;
}

static bool has_bit(const uint64_t *words, size_t i) { return (words[i / 64] >> i % 64 & 1u) != 0; }

void gg_standin_launch(const char *kernel, gg_cuda_stream handle, void (*run)(const void *packet), const void *packet,
                       size_t bytes, const gg_standin_words *words) {
    char named[2 * NAME];
    gg_standin_uses uses = {0};
    kernel_packet *made = calloc(1, sizeof *made + bytes);
    if (made == NULL) abort();
    made->run = run;
    memcpy(made->packet, packet, bytes);
    ENTER("kernel");
    snprintf(named, sizeof named, "kernel %s", kernel);
    code = gg_standin_enter(named);
    for (size_t i = 0; code == 0 && words->head + 8 * i + 8 <= bytes; ++i)
        if (has_bit(words->pointers, i) || has_bit(words->structs, i))
            code = translate_word(named, i, has_bit(words->pointers, i), made->packet + words->head + 8 * i, &uses);
    if (code != 0) goto leave;
    const int place = gg_standin_place(named, handle);
    if (place < 0) FAIL(INVALID_HANDLE);
    gg_standin_give(place, kernel, run_kernel, made, sizeof *made + bytes, &uses);
leave:
    if (code != 0) gg_standin_mine.last_error = code;
    pthread_mutex_unlock(&gg_standin.lock);
    free(made);
}
/* --------------------------------------------------------------------------------------------- the runtime's calls */

/* As the real one, of no use in a process that was forked from one that has called it. */
static int cudaGetDeviceCount(int *count) {
    ENTER("cudaGetDeviceCount");
    *count = 0;
    if (gg_standin.process == 0) gg_standin.process = getpid();
    if (gg_standin.process != getpid()) FAIL(INITIALIZATION_ERROR);
    if (gg_standin.devices == 0) FAIL(GG_CUDA_ERROR_INSUFFICIENT_DRIVER);
    *count = gg_standin.devices;
    LEAVE;
}

static int cudaSetDevice(int device) {
    ENTER("cudaSetDevice");
    if (device < 0 || device >= gg_standin.devices)
        FAIL(gg_standin_violation(INVALID_DEVICE, "cudaSetDevice(%d): there are %d devices", device,
                                  gg_standin.devices));
    gg_standin_mine.device = device;
    LEAVE;
}

static int cudaDeviceGetAttribute(int *value, int attribute, int device) {
    ENTER("cudaDeviceGetAttribute");
    if (device < 0 || device >= gg_standin.devices) FAIL(INVALID_DEVICE);
    switch (attribute) {
    case GG_CUDA_ATTRIBUTE_PROCESSORS: *value = 4; break;
    case GG_CUDA_ATTRIBUTE_UNIFIED_ADDRESSING:
    case GG_CUDA_ATTRIBUTE_HOST_POINTER: *value = 1; break;
    case GG_CUDA_ATTRIBUTE_MAJOR: *value = 9; break;
    case GG_CUDA_ATTRIBUTE_MINOR: *value = 0; break;
    default:
        FAIL(gg_standin_violation(INVALID_VALUE, "cudaDeviceGetAttribute: attribute %d is not known here", attribute));
    }
    LEAVE;
}

static int cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    ENTER("cudaDeviceCanAccessPeer");
    if (device < 0 || device >= gg_standin.devices || peer < 0 || peer >= gg_standin.devices) FAIL(INVALID_DEVICE);
    *can = device != peer;
    LEAVE;
}

static int cudaDriverGetVersion(int *version) {
    ENTER("cudaDriverGetVersion");
    *version = gg_standin.devices == 0 ? 0 : 13000;
    LEAVE;
}

static int cudaRuntimeGetVersion(int *version) {
    ENTER("cudaRuntimeGetVersion");
    *version = 13000;
    LEAVE;
}

static const char *error_text(int error, bool name) {
    static const struct {
        int error;
        const char *name, *text;
    } known[] = {
        {0, "cudaSuccess", "no error"},
        {1, "cudaErrorInvalidValue", "invalid argument"},
        {2, "cudaErrorMemoryAllocation", "out of memory"},
        {3, "cudaErrorInitializationError", "initialization error"},
        {35, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
        {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
        {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
        {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
        {600, "cudaErrorNotReady", "device not ready"},
        {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
        {712, "cudaErrorHostMemoryAlreadyRegistered", "part or all of the requested memory range is already mapped"},
        {713, "cudaErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region"},
        {719, "cudaErrorLaunchFailure", "unspecified launch failure"},
        {900, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
        {901, "cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
        {907, "cudaErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; ++i)
        if (known[i].error == error) return name ? known[i].name : known[i].text;
    return "unrecognized error code";
}

static const char *cudaGetErrorName(int error) { return error_text(error, true); }
static const char *cudaGetErrorString(int error) { return error_text(error, false); }

static int cudaGetLastError(void) {
    pthread_mutex_lock(&gg_standin.lock);
    const int code = gg_standin.lost != 0 ? gg_standin.lost : gg_standin_mine.last_error;
    gg_standin_mine.last_error = 0;
    pthread_mutex_unlock(&gg_standin.lock);
    return code;
}

static int cudaMemGetInfo(size_t *free_bytes, size_t *all_bytes) {
    ENTER("cudaMemGetInfo");
    *all_bytes = gg_standin.memory;
    *free_bytes = gg_standin.memory > gg_standin.used[gg_standin_mine.device]
                      ? gg_standin.memory - gg_standin.used[gg_standin_mine.device]
                      : 0;
    LEAVE;
}

static int cudaMalloc(void **out, size_t bytes) {
    ENTER("cudaMalloc");
    if ((code = gg_standin_forbid("cudaMalloc")) != 0) goto leave;
    const size_t pages = whole_pages(bytes);
    *out = NULL;
    if (bytes == 0) goto leave;
    if (pages < bytes || gg_standin.used[gg_standin_mine.device] + pages > gg_standin.memory)
        FAIL(GG_CUDA_ERROR_MEMORY_ALLOCATION);
    if (pages + PAGE > USABLE_END - USABLE_BEGIN) FAIL(GG_CUDA_ERROR_MEMORY_ALLOCATION);
    /* the first place from `next` on where nothing lies, with a page without access behind */
    for (int turns = 0;;) {
        const uintptr_t at = (uintptr_t)gg_standin.callers + gg_standin.next;
        if (gg_standin.next + pages + PAGE > RESERVED) {
            if (++turns == 2) FAIL(GG_CUDA_ERROR_MEMORY_ALLOCATION);
            gg_standin.next = 0;
            continue;
        }
        if ((uint32_t)at < USABLE_BEGIN) gg_standin.next += USABLE_BEGIN - (uint32_t)at;
        else if ((uint32_t)at + pages + PAGE > USABLE_END)
            gg_standin.next += ((size_t)1 << 32) - (uint32_t)at + USABLE_BEGIN;
        else {
            const int before = gg_standin_block_before(at + pages);
            const gg_standin_block *there = before >= 0 ? gg_standin.block[before] : NULL;
            if (there == NULL || !gg_standin_is_of_device(there->at) || there->at + whole_pages(there->bytes) < at)
                break;
            gg_standin.next = there->at + whole_pages(there->bytes) + PAGE - (uintptr_t)gg_standin.callers;
        }
    }
    char *inside = gg_standin.work + gg_standin.next;
    if (mprotect(inside, pages, PROT_READ | PROT_WRITE) != 0) FAIL(GG_CUDA_ERROR_MEMORY_ALLOCATION);
    memset(inside, 0xff, bytes); /* NaN, so that nobody reads what was not written */
    memset(inside + bytes, GUARD, pages - bytes);
    *out = gg_standin.callers + gg_standin.next;
    gg_standin.next += pages + PAGE;
    gg_standin.used[gg_standin_mine.device] += pages;
    gg_standin_add_block(BLOCK_DEVICE, (uintptr_t)*out, bytes);
    LEAVE;
}

/* A block that begins there, of this kind; NULL and a violation. */
static gg_standin_block *block_of(const char *function, const void *at, block_kind kind) {
    gg_standin_block *block = gg_standin_block_at((uintptr_t)at);
    if (block == NULL) gg_standin_violation(0, "%s: nothing is allocated there, or it was freed before", function);
    else if (block->at != (uintptr_t)at) gg_standin_violation(0, "%s: the address is inside of a block", function);
    else if (block->kind != kind)
        gg_standin_violation(0, "%s: this is %s", function, gg_standin_kind_name(block->kind));
    else return block;
    return NULL;
}

static int cudaFree(void *at) {
    ENTER("cudaFree");
    if ((code = gg_standin_forbid("cudaFree")) != 0) goto leave;
    if (at == NULL) goto leave;
    gg_standin_block *block = block_of("cudaFree", at, BLOCK_DEVICE);
    if (block == NULL) FAIL(INVALID_VALUE);
    gg_standin_wait_all(); /* as the real one */
    gg_standin_check_guard(block);
    const size_t pages = whole_pages(block->bytes);
    char *inside = gg_standin_work_address(block->at);
    madvise(inside, pages, MADV_DONTNEED);
    mprotect(inside, pages, PROT_NONE);
    gg_standin.used[block->device] -= pages;
    gg_standin_remove_block(block);
    LEAVE;
}

static int cudaHostAlloc(void **out, size_t bytes, unsigned flags) {
    ENTER("cudaHostAlloc");
    if ((code = gg_standin_forbid("cudaHostAlloc")) != 0) goto leave;
    *out = NULL;
    if ((flags & ~7u) != 0) FAIL(gg_standin_violation(INVALID_VALUE, "cudaHostAlloc: flags %u", flags));
    if (bytes == 0) goto leave;
    void *made = mmap(NULL, whole_pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) FAIL(GG_CUDA_ERROR_MEMORY_ALLOCATION);
    memset(made, 0xff, bytes);
    *out = made;
    gg_standin_add_block(BLOCK_PINNED, (uintptr_t)made, bytes);
    LEAVE;
}

/* Pinned memory goes away at once: work that uses it must be done. */
static int release_host(const char *function, void *at, block_kind kind) {
    gg_standin_block *block = block_of(function, at, kind);
    if (block == NULL) return kind == BLOCK_REGISTERED ? NOT_REGISTERED : INVALID_VALUE;
    if (block->pending > 0) {
        gg_standin_violation(0, "%s: %d pieces of work that are not done use this memory", function, block->pending);
        gg_standin_wait_all();
    }
    if (kind == BLOCK_PINNED) munmap(at, whole_pages(block->bytes));
    gg_standin_remove_block(block);
    return 0;
}

static int cudaFreeHost(void *at) {
    ENTER("cudaFreeHost");
    if ((code = gg_standin_forbid("cudaFreeHost")) != 0) goto leave;
    if (at != NULL) code = release_host("cudaFreeHost", at, BLOCK_PINNED);
    LEAVE;
}

static int cudaHostRegister(void *at, size_t bytes, unsigned flags) {
    ENTER("cudaHostRegister");
    if ((code = gg_standin_forbid("cudaHostRegister")) != 0) goto leave;
    if (at == NULL || bytes == 0 || (flags & ~15u) != 0 || gg_standin_is_of_device((uintptr_t)at))
        FAIL(gg_standin_violation(INVALID_VALUE, "cudaHostRegister: %zu bytes, flags %u: not a block of host memory",
                                  bytes, flags));
    const int before = gg_standin_block_before((uintptr_t)at + bytes - 1);
    if (before >= 0 && gg_standin.block[before]->at + gg_standin.block[before]->bytes > (uintptr_t)at)
        FAIL(GG_CUDA_ERROR_ALREADY_REGISTERED);
    gg_standin_add_block(BLOCK_REGISTERED, (uintptr_t)at, bytes);
    LEAVE;
}

static int cudaHostUnregister(void *at) {
    ENTER("cudaHostUnregister");
    if ((code = gg_standin_forbid("cudaHostUnregister")) != 0) goto leave;
    code = release_host("cudaHostUnregister", at, BLOCK_REGISTERED);
    LEAVE;
}

typedef struct transfer {
    char *to;
    const char *from; /* NULL: fills with value */
    int value;
    size_t bytes;
} transfer;

static void do_transfer(void *packet) {
    const transfer *it = packet;
    if (it->from != NULL) memcpy(it->to, it->from, it->bytes);
    else memset(it->to, it->value, it->bytes);
}

/* Host memory without a pinned part. */
static bool is_pageable(const void *at, size_t bytes) {
    const int before = gg_standin_block_before((uintptr_t)at + bytes - 1);
    return !gg_standin_is_of_device((uintptr_t)at) &&
           (before < 0 || gg_standin.block[before]->at + gg_standin.block[before]->bytes <= (uintptr_t)at);
}

/* Of a copy or of zeros: a range of the runtime's calls ends where a mapping does, though kernels may go on. */
static bool in_one_block(const char *function, const void *at, size_t bytes) {
    const gg_standin_block *found = gg_standin_block_at((uintptr_t)at);
    if (found == NULL || (uintptr_t)at + bytes <= found->at + found->bytes) return true;
    gg_standin_violation(0, "%s: %zu bytes reach from one mapping into the next", function, bytes);
    return false;
}

/* A copy from or to host memory that is not pinned is done when the call returns; it is counted as "pageable". */
static int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, gg_cuda_stream handle) {
    transfer made = {.bytes = bytes};
    gg_standin_uses uses = {0};
    void *source = (void *)from, *target = to;
    ENTER("cudaMemcpyAsync");
    const int place = gg_standin_place("cudaMemcpyAsync", handle);
    if (place < 0) FAIL(INVALID_HANDLE);
    if (bytes == 0) goto leave;
    const bool up = gg_standin_is_of_device((uintptr_t)to), down = gg_standin_is_of_device((uintptr_t)from);
    const int real = down ? (up ? 3 : 2) : (up ? 1 : 0);
    if (kind != real && kind != GG_CUDA_MEMCPY_DEFAULT)
        FAIL(gg_standin_violation(INVALID_VALUE, "cudaMemcpyAsync: kind %d, and the addresses are of kind %d", kind,
                                  real));
    if (to == NULL || from == NULL) FAIL(gg_standin_violation(INVALID_VALUE, "cudaMemcpyAsync: an address is NULL"));
    if ((const char *)to < (const char *)from + bytes && (const char *)from < (const char *)to + bytes)
        FAIL(gg_standin_violation(INVALID_VALUE, "cudaMemcpyAsync: source and target overlap"));
    const bool pageable_to = is_pageable(to, bytes), pageable_from = is_pageable(from, bytes);
    if (!pageable_to && !gg_standin_operand(&uses, "cudaMemcpyAsync", "the target", to, bytes, 1, &target))
        FAIL(INVALID_VALUE);
    if (!pageable_from && !gg_standin_operand(&uses, "cudaMemcpyAsync", "the source", from, bytes, 1, &source))
        FAIL(INVALID_VALUE);
    if (!in_one_block("cudaMemcpyAsync", to, bytes) || !in_one_block("cudaMemcpyAsync", from, bytes))
        FAIL(INVALID_VALUE);
    made.to = target;
    made.from = source;
    gg_standin_give(place, "cudaMemcpyAsync", do_transfer, &made, sizeof made, &uses);
    if (pageable_to || pageable_from) {
        gg_standin_count_one("pageable");
        if (gg_standin.stream[place].capture != NULL)
            FAIL(gg_standin_forbid("cudaMemcpyAsync of memory that is not pinned"));
        gg_standin_wait(place, gg_standin.stream[place].given);
        code = gg_standin.lost;
    }
    LEAVE;
}

static int cudaMemsetAsync(void *at, int value, size_t bytes, gg_cuda_stream handle) {
    transfer made = {.bytes = bytes, .value = value};
    gg_standin_uses uses = {0};
    void *target;
    ENTER("cudaMemsetAsync");
    const int place = gg_standin_place("cudaMemsetAsync", handle);
    if (place < 0) FAIL(INVALID_HANDLE);
    if (bytes == 0) goto leave;
    if (!gg_standin_operand(&uses, "cudaMemsetAsync", "the target", at, bytes, 1, &target)) FAIL(INVALID_VALUE);
    if (!in_one_block("cudaMemsetAsync", at, bytes)) FAIL(INVALID_VALUE);
    made.to = target;
    gg_standin_give(place, "cudaMemsetAsync", do_transfer, &made, sizeof made, &uses);
    LEAVE;
}

static int cudaStreamCreateWithFlags(gg_cuda_stream *out, unsigned flags) {
    ENTER("cudaStreamCreateWithFlags");
    *out = NULL;
    if (flags != GG_CUDA_STREAM_NON_BLOCKING)
        FAIL(gg_standin_violation(
            INVALID_VALUE, "cudaStreamCreateWithFlags: flags %u: the stream would wait for the legacy stream", flags));
    int place = 0; /* places of streams that are gone and done are used again; what waits for these is done, too */
    while (place < gg_standin.streams && (gg_standin.stream[place].alive || gg_standin.stream[place].first != NULL))
        ++place;
    if (place == MAX_STREAMS) FAIL(GG_CUDA_ERROR_MEMORY_ALLOCATION);
    if (place == gg_standin.streams) ++gg_standin.streams;
    gg_standin.stream[place].alive = true;
    gg_standin.stream[place].device = gg_standin_mine.device;
    stream_handle *made = gg_standin_create("cudaStream", sizeof *made);
    made->place = place;
    *out = (gg_cuda_stream)(void *)made;
    LEAVE;
}

static int cudaStreamDestroy(gg_cuda_stream handle) {
    ENTER("cudaStreamDestroy");
    const int place = gg_standin_place("cudaStreamDestroy", handle);
    if (place < 0) FAIL(INVALID_HANDLE);
    if (gg_standin.stream[place].done < gg_standin.stream[place].given)
        gg_standin_violation(0, "cudaStreamDestroy: %ld pieces of its work are not done",
                             gg_standin.stream[place].given - gg_standin.stream[place].done);
    gg_standin_wait(place, gg_standin.stream[place].given);
    gg_standin.stream[place].alive = false;
    gg_standin_destroy(handle);
    LEAVE;
}

static int cudaStreamSynchronize(gg_cuda_stream handle) {
    ENTER("cudaStreamSynchronize");
    const int place = gg_standin_place("cudaStreamSynchronize", handle);
    if (place < 0) FAIL(INVALID_HANDLE);
    if (gg_standin.stream[place].capture != NULL) FAIL(gg_standin_forbid("cudaStreamSynchronize"));
    gg_standin_wait(place, gg_standin.stream[place].given);
    code = gg_standin.lost;
    LEAVE;
}

static int cudaStreamWaitEvent(gg_cuda_stream handle, gg_cuda_event event_of_caller, unsigned flags) {
    ENTER("cudaStreamWaitEvent");
    const int place = gg_standin_place("cudaStreamWaitEvent", handle);
    const event_handle *event = gg_standin_find("cudaStreamWaitEvent", "cudaEvent", event_of_caller);
    if (place < 0 || event == NULL) FAIL(INVALID_HANDLE);
    if (flags != 0) FAIL(gg_standin_violation(INVALID_VALUE, "cudaStreamWaitEvent: flags %u", flags));
    if (!event->recorded) {
        gg_standin_violation(0, "cudaStreamWaitEvent: the event was never recorded: nothing is waited for");
        goto leave;
    }
    if (event->captured) FAIL(gg_standin_forbid("cudaStreamWaitEvent for an event of captured work"));
    if (gg_standin.stream[place].capture != NULL)
        FAIL(gg_standin_forbid("cudaStreamWaitEvent for work that is not captured"));
    if (gg_standin.stream[event->place].done >= event->position) goto leave;
    work *made = gg_standin_give(place, "cudaStreamWaitEvent", NULL, NULL, 0, NULL);
    made->other = event->place;
    made->position = event->position;
    LEAVE;
}

static int cudaEventCreateWithFlags(gg_cuda_event *out, unsigned flags) {
    ENTER("cudaEventCreateWithFlags");
    *out = NULL;
    if ((flags & ~3u) != 0) FAIL(gg_standin_violation(INVALID_VALUE, "cudaEventCreateWithFlags: flags %u", flags));
    event_handle *made = gg_standin_create("cudaEvent", sizeof *made);
    made->device = gg_standin_mine.device;
    made->timed = (flags & GG_CUDA_EVENT_DISABLE_TIMING) == 0;
    *out = (gg_cuda_event)(void *)made;
    LEAVE;
}

static int cudaEventDestroy(gg_cuda_event handle) {
    ENTER("cudaEventDestroy");
    if (gg_standin_find("cudaEventDestroy", "cudaEvent", handle) == NULL) FAIL(INVALID_HANDLE);
    gg_standin_destroy(handle);
    LEAVE;
}

static int cudaEventRecord(gg_cuda_event handle, gg_cuda_stream stream_of_caller) {
    ENTER("cudaEventRecord");
    const int place = gg_standin_place("cudaEventRecord", stream_of_caller);
    event_handle *event = gg_standin_find("cudaEventRecord", "cudaEvent", handle);
    if (place < 0 || event == NULL) FAIL(INVALID_HANDLE);
    if (event->device != gg_standin.stream[place].device)
        FAIL(gg_standin_violation(INVALID_HANDLE, "cudaEventRecord: the event is of device %d, the stream of device %d",
                                  event->device, gg_standin.stream[place].device));
    event->recorded = true;
    event->captured = gg_standin.stream[place].capture != NULL;
    event->place = place;
    event->position = gg_standin.stream[place].given;
    event->recorded_at = gg_standin_now();
    LEAVE;
}

static int cudaEventElapsedTime(float *milliseconds, gg_cuda_event begin, gg_cuda_event end) {
    ENTER("cudaEventElapsedTime");
    const event_handle *event[2] = {gg_standin_find("cudaEventElapsedTime", "cudaEvent", begin),
                                    gg_standin_find("cudaEventElapsedTime", "cudaEvent", end)};
    double at[2];
    for (int i = 0; i < 2; ++i) {
        if (event[i] == NULL) FAIL(INVALID_HANDLE);
        if (!event[i]->timed || !event[i]->recorded)
            FAIL(gg_standin_violation(INVALID_HANDLE, "cudaEventElapsedTime: an event that was %s",
                                      event[i]->recorded ? "made without times" : "never recorded"));
        const stream *queue = &gg_standin.stream[event[i]->place];
        if (queue->done < event[i]->position) FAIL(GG_CUDA_ERROR_NOT_READY);
        const double done_at = queue->done_at[event[i]->position % DONE_TIMES];
        at[i] = done_at > event[i]->recorded_at ? done_at : event[i]->recorded_at;
    }
    *milliseconds = (float)(1e3 * (at[1] - at[0]));
    LEAVE;
}

/* An event that was recorded while its stream was captured stands for nothing that is ever done. */
static int check_not_captured(const char *function, const event_handle *event) {
    if (!event->captured) return 0;
    return gg_standin_violation(CAPTURED_EVENT, "%s: the event was recorded while its stream was captured", function);
}

static int cudaEventQuery(gg_cuda_event handle) {
    ENTER("cudaEventQuery");
    if ((code = gg_standin_forbid("cudaEventQuery")) != 0) goto leave;
    const event_handle *event = gg_standin_find("cudaEventQuery", "cudaEvent", handle);
    if (event == NULL) FAIL(INVALID_HANDLE);
    if ((code = check_not_captured("cudaEventQuery", event)) != 0) goto leave;
    if (event->recorded && gg_standin.stream[event->place].done < event->position) FAIL(GG_CUDA_ERROR_NOT_READY);
    code = gg_standin.lost;
    LEAVE;
}

static int cudaEventSynchronize(gg_cuda_event handle) {
    ENTER("cudaEventSynchronize");
    if ((code = gg_standin_forbid("cudaEventSynchronize")) != 0) goto leave;
    const event_handle *event = gg_standin_find("cudaEventSynchronize", "cudaEvent", handle);
    if (event == NULL) FAIL(INVALID_HANDLE);
    if ((code = check_not_captured("cudaEventSynchronize", event)) != 0) goto leave;
    if (event->recorded) gg_standin_wait(event->place, event->position);
    code = gg_standin.lost;
    LEAVE;
}

static int cudaDeviceSynchronize(void) {
    ENTER("cudaDeviceSynchronize");
    if ((code = gg_standin_forbid("cudaDeviceSynchronize")) != 0) goto leave;
    gg_standin_wait_all();
    code = gg_standin.lost;
    LEAVE;
}

static int device_facts(int device, char *name, size_t room, size_t *bytes) {
    ENTER("device_facts");
    if (device < 0 || device >= gg_standin.devices) FAIL(INVALID_DEVICE);
    snprintf(name, room, "stand-in %d", device);
    *bytes = gg_standin.memory;
    LEAVE;
}

void gg_standin_fill_runtime(gg_cuda_api *api) {
#define FILL(result, name, arguments) api->name = name;
    GG_CUDA_FUNCTIONS(FILL)
    api->device_facts = device_facts;
}
