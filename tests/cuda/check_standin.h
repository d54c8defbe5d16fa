/* What the tests of the stand-in itself share: its table, two streams, and whether a violation was seen. For one source
 * file a program. */
#ifndef CHECK_STANDIN_H
#define CHECK_STANDIN_H

#include "check.h"
#include "standin/inside.h"

static const gg_cuda_api *api;
static gg_cuda_stream compute, copies;

/* The call gives this code, and is the one violation since the last; its text contains `text`. */
#define VIOLATES(call, code, text)                                                                                     \
    do {                                                                                                               \
        CHECK_INT(call, code);                                                                                         \
        is_seen(text, __LINE__);                                                                                       \
    } while (0)

static inline void is_seen(const char *text, int line) {
    char seen[1 << 12];
    const int count = gg_standin_violations(seen, sizeof seen);
    if (!check_count(count == 1 && strstr(seen, text) != NULL, __FILE__, line))
        fprintf(stderr, "%d violations: %swanted: %s\n", count, seen, text);
    gg_standin_begin(0);
}

#define NOTHING_VIOLATED() check_int(violated(), 0, "violations", __FILE__, __LINE__)
static inline int violated(void) {
    char seen[1 << 12];
    const int count = gg_standin_violations(seen, sizeof seen);
    fprintf(stderr, "%s", seen);
    gg_standin_begin(0);
    return count;
}

static inline float *device_floats(int count) {
    void *block = NULL;
    CHECK_INT(api->cudaMalloc(&block, (size_t)count * sizeof(float)), 0);
    return block;
}

static inline float *pinned_floats(int count) {
    void *block = NULL;
    CHECK_INT(api->cudaHostAlloc(&block, (size_t)count * sizeof(float), GG_CUDA_HOST_PORTABLE | GG_CUDA_HOST_MAPPED),
              0);
    return block;
}

static inline void copy(void *to, const void *from, size_t bytes, gg_cuda_stream stream) {
    CHECK_INT(api->cudaMemcpyAsync(to, from, bytes, GG_CUDA_MEMCPY_DEFAULT, stream), 0);
}

static inline void finish(void) { CHECK_INT(api->cudaDeviceSynchronize(), 0); }

/* What `count` floats of the device hold; of a ring of places, so that several may be used at once. */
static const float *values(const float *at, int count) {
    static float *pinned;
    static int next;
    if (pinned == NULL) pinned = pinned_floats(1 << 16);
    if (next + count > 1 << 16) next = 0;
    float *place = pinned + next;
    next += count;
    copy(place, at, (size_t)count * sizeof(float), compute);
    finish();
    return place;
}

static inline void fill(float *at, int count, unsigned seed) {
    float *pinned = pinned_floats(count);
    for (int i = 0; i < count; ++i) {
        seed = seed * 1664525u + 1013904223u;
        pinned[i] = (float)(seed >> 8) / (float)(1 << 24) - 0.5f;
    }
    copy(at, pinned, (size_t)count * sizeof(float), compute);
    finish();
    CHECK_INT(api->cudaFreeHost(pinned), 0);
}

static inline void begin(void) {
    api = gg_standin_api();
    gg_standin_begin(0);
    CHECK_INT(api->cudaStreamCreateWithFlags(&compute, GG_CUDA_STREAM_NON_BLOCKING), 0);
    CHECK_INT(api->cudaStreamCreateWithFlags(&copies, GG_CUDA_STREAM_NON_BLOCKING), 0);
}

/* At the end: nothing is alive but the two streams and the block of values(). */
static inline void check_leaks(void) {
    char text[1024];
    if (!CHECK_INT(gg_standin_leaks(text, sizeof text), 3)) fprintf(stderr, "%s", text);
}

#endif
