/* What the tests of kernels share: arrays that the emulation checks, numbers, and the CPU's tables to compare with. */
#ifndef CHECK_KERNELS_H
#define CHECK_KERNELS_H

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <string>
#include <vector>

extern "C" {
#include "check.h"
#include "cpu/cpu_backend.h"
#include "cuda/kernels.h"
}
#include "emulation_api.h"

/* An array of n elements that begins `skip` elements behind an address aligned to 64 bytes. */
template <class T> struct buffer {
    T *start, *p;
    size_t n;
    explicit buffer(size_t count, const char *name = "buffer", size_t skip = 0)
        : start(static_cast<T *>(gg_emulation_alloc((count + skip) * sizeof(T), sizeof(T), name))), p(start + skip),
          n(count) {}
    buffer(const std::vector<T> &from, const char *name = "buffer", size_t skip = 0) : buffer(from.size(), name, skip) {
        std::copy(from.begin(), from.end(), p);
    }
    ~buffer() { gg_emulation_free(start); }
    buffer(const buffer &) = delete;
    buffer &operator=(const buffer &) = delete;
    T &operator[](size_t i) { return p[i]; }
    operator T *() { return p; }
    std::vector<T> all() const { return std::vector<T>(p, p + n); }
};

/* Numbers that are equal in every run. */
struct random_numbers {
    uint64_t state;
    explicit random_numbers(uint64_t seed) : state(seed * 2654435769u + 1) {}
    uint32_t next() {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return (uint32_t)(state >> 33) << 1 ^ (uint32_t)(state >> 20);
    }
    float uniform(float low, float high) { return low + (high - low) * (float)(next() >> 8) / 16777216.0f; }
    std::vector<float> floats(size_t n, float low = -1, float high = 1) {
        std::vector<float> v(n);
        for (float &x : v) x = uniform(low, high);
        return v;
    }
    /* Any bits but those of NaN, whose payloads the instructions of a CPU choose. */
    std::vector<float> strange_floats(size_t n) {
        std::vector<float> v(n);
        for (float &x : v) {
            uint32_t bits = next();
            if ((bits & 0x7f800000u) == 0x7f800000u) bits &= ~0x7fffffu;
            memcpy(&x, &bits, sizeof x);
        }
        return v;
    }
    std::vector<uint16_t> narrow(size_t n) {
        std::vector<uint16_t> v(n);
        for (uint16_t &x : v) {
            const float f = uniform(-1, 1);
            uint32_t bits;
            memcpy(&bits, &f, sizeof bits);
            x = (uint16_t)(bits >> 16);
        }
        return v;
    }
};

/* An array for the CPU's kernels: aligned, and padded with zeros to whole lanes. */
template <class T> struct lanes {
    std::vector<T> room;
    T *p;
    size_t n;
    explicit lanes(const std::vector<T> &from) : n(from.size()) {
        room.resize(n + 2 * 64 / sizeof(T) + GG_READ_BEHIND / sizeof(T) + GG_LANES, T(0));
        p = reinterpret_cast<T *>(((uintptr_t)room.data() + 63) / 64 * 64);
        std::copy(from.begin(), from.end(), p);
    }
    lanes(const lanes &) = delete;
    lanes &operator=(const lanes &) = delete;
    operator T *() { return p; }
    std::vector<T> all() const { return std::vector<T>(p, p + n); }
};

inline size_t padded(size_t n) { return (n + GG_LANES - 1) / GG_LANES * GG_LANES; }

/* The native table with the scalar kernels and one thread. */
inline gg_device *scalar_device() {
    gg_device *device = nullptr;
    gg_device_options options = {};
    options.threads = 1;
    options.isa = GG_ISA_SCALAR;
    CHECK_OK(gg_backend_native.open(&options, &device));
    return device;
}

/* Whether two arrays have the same bits; NaN is equal to NaN whatever its own are. */
inline bool same_number(float a, float b) { return memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b); }
template <class T> bool same_number(T a, T b) { return a == b; }
template <class T> bool same(const std::vector<T> &a, const std::vector<T> &b, const char *what) {
    if (a.size() != b.size()) {
        fprintf(stderr, "%s: %zu and %zu elements\n", what, a.size(), b.size());
        return false;
    }
    for (size_t i = 0; i < a.size(); ++i)
        if (!same_number(a[i], b[i])) {
            fprintf(stderr, "%s: element %zu of %zu is %.9g, wanted %.9g\n", what, i, a.size(), (double)a[i],
                    (double)b[i]);
            return false;
        }
    return true;
}

/* |a - b| <= tolerance*(1 + |b|) everywhere; NaN where NaN is wanted. */
template <class A, class B>
bool near(const std::vector<A> &a, const std::vector<B> &b, double tolerance, const char *what) {
    if (a.size() != b.size()) {
        fprintf(stderr, "%s: %zu and %zu elements\n", what, a.size(), b.size());
        return false;
    }
    for (size_t i = 0; i < a.size(); ++i) {
        const double x = (double)a[i], y = (double)b[i];
        if (x == y || (x != x && y != y) || fabs(x - y) <= tolerance * (1 + fabs(y))) continue;
        fprintf(stderr, "%s: element %zu of %zu is %.9g, wanted %.9g\n", what, i, a.size(), x, y);
        return false;
    }
    return true;
}

/* Nothing that the model forbids was done since the last call. */
#define CHECK_CLEAN()                                                                                                  \
    do {                                                                                                               \
        CHECK_TEXT(gg_emulation_failure(), "");                                                                        \
        gg_emulation_reset();                                                                                          \
    } while (0)

/* The sizes at which kernels on arrays are tried. */
static const size_t some_sizes[] = {0, 1, 3, 16, 31, 257, 1024, 5003};

#endif
