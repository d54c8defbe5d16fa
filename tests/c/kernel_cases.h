/* What tests of kernels have in common: the device under test, memory that is freed at once, numbers, layouts. */
#ifndef GG_TESTS_KERNEL_CASES_H
#define GG_TESTS_KERNEL_CASES_H

#include "cpu/cpu_backend.h"
#include "cpu/kernels.h"
#include "guarded.h"

static gg_device *device;
static gg_isa isa;

static buffer buffers[64];
static int buffer_count;

/* Freed and checked by release(). */
static inline void *guarded(size_t bytes) {
    if (buffer_count == 64) abort();
    buffers[buffer_count] = buffer_create(bytes);
    return buffers[buffer_count++].data;
}

static inline float *floats(int64_t n) { return guarded((size_t)n * sizeof(float)); }

static uint32_t stream;

static inline float *uniform(int64_t n, float low, float high) {
    float *p = floats(n);
    const gg_random_key key = {7, GG_RANDOM_TEST, 0, ++stream};
    gg_random_uniform(&key, (size_t)n, low, high, p);
    return p;
}

static inline void release(void) {
    while (buffer_count > 0) buffer_free(&buffers[--buffer_count]);
}

static inline double ulps(float value, double wanted) {
    int exponent;
    if (wanted == 0) return value == 0 ? 0 : 1e30;
    frexp(wanted, &exponent);
    const double ulp = ldexp(1.0, (exponent < -125 ? -125 : exponent) - 24);
    return fabs((double)value - wanted) / ulp;
}

/* Largest |a - b| over max(1, |b|). */
static inline double distance(int64_t n, const float *a, const double *b) {
    double worst = 0;
    for (int64_t i = 0; i < n; ++i) {
        const double size = fabs(b[i]) > 1 ? fabs(b[i]) : 1, d = fabs((double)a[i] - b[i]) / size;
        if (!(d <= worst)) worst = d;
    }
    return worst;
}

static inline bool same_bits(const void *a, const void *b, size_t bytes) { return memcmp(a, b, bytes) == 0; }

static inline gg_shape shape3(int64_t a, int64_t b, int64_t c) { return (gg_shape){3, {a, b, c}}; }
static inline gg_shape shape1(int64_t a) { return (gg_shape){1, {a}}; }

/* Where value v of sample n lies. */
static inline int64_t place(gg_layout layout, int64_t batch, int64_t values, int64_t n, int64_t v) {
    return layout == GG_LAYOUT_BATCH_LAST ? v * gg_lanes_padded(batch) + n : n * values + v;
}

static inline int64_t elements(gg_layout layout, int64_t batch, int64_t values) {
    return (layout == GG_LAYOUT_BATCH_LAST ? gg_lanes_padded(batch) : batch) * values;
}

/* Zeros in the lanes behind the batch, as gradients have them. */
static inline void clear_padding(gg_layout layout, int64_t batch, int64_t values, float *p) {
    if (layout != GG_LAYOUT_BATCH_LAST) return;
    for (int64_t v = 0; v < values; ++v)
        for (int64_t n = batch; n < gg_lanes_padded(batch); ++n) p[place(layout, batch, values, n, v)] = 0;
}

static inline bool padding_is_zero(gg_layout layout, int64_t batch, int64_t values, const float *p) {
    bool zero = true;
    if (layout == GG_LAYOUT_BATCH_LAST)
        for (int64_t v = 0; v < values; ++v)
            for (int64_t n = batch; n < gg_lanes_padded(batch); ++n)
                zero = zero && p[place(layout, batch, values, n, v)] == 0;
    return zero;
}

static inline bool all_are_finite(int64_t n, const float *p) {
    bool good = true;
    for (int64_t i = 0; i < n; ++i) good = good && isfinite(p[i]);
    return good;
}

static inline gg_op *create(const gg_op_desc *desc) {
    gg_op *op = NULL;
    CHECK_OK(gg_backend_native.create[desc->kind](device, desc, &op));
    return op;
}

/* Runs `cases` with each instruction set of this machine, with one and three threads. */
static inline void for_each_device(void (*cases)(void)) {
    int levels = 0;
    for (int i = 0; i < GG_ISA_COUNT; ++i) {
        isa = (gg_isa)i;
        const gg_cpu_kernels *kernels = gg_cpu_kernels_for(isa);
        if (kernels == NULL || !gg_cpu_supports(isa)) continue;
        CHECK_INT(kernels->isa, isa);
        for (int threads = 1; threads <= 3; threads += 2) {
            if (!CHECK_OK(gg_backend_native.open(&(gg_device_options){.threads = threads, .isa = isa}, &device)))
                continue;
            CHECK_INT(device->threads, threads);
            stream = 0;
            cases();
            gg_backend_native.close(device);
        }
        printf("%s checked\n", gg_isa_name(isa));
        ++levels;
    }
    CHECK(levels >= 1);
}

#endif
