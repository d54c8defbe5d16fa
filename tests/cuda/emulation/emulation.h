/* A GPU's programming model in C++17: kernels (csrc/cuda) compile for the host and are tested without a GPU. A kernel's
 * blocks run one after the other. The threads of a block are fibers, which change at barriers and in operations of a
 * warp, so every run is the same. Violations of the model are reported (emulation_api.h): barriers and operations of a
 * warp that some threads do not reach; in a checked build (emulation.cpp) also
 *   - races: two accesses of a location in shared or global memory, at least one of them a write, by threads between
 *     which no barrier lies: __syncthreads() within a block, __syncwarp() within a warp. Shuffles order nothing, and
 *     blocks of one launch have no order at all. Atomic operations do not race with each other;
 *   - reads of shared memory that the block has not written;
 *   - accesses of memory that is neither shared, nor a thread's own, nor a buffer of gg_emulation_alloc.
 * Included by csrc/cuda/common.cuh in the place of the CUDA runtime's header. */
#ifndef GG_EMULATION_H
#define GG_EMULATION_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>

#include "emulation_api.h"

#define __global__
#define __device__
#define __grid_constant__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

/* ------------------------------------------------------------------------------------------------ vectors */

struct uint3 {
    unsigned x, y, z;
};
#define GG_EMULATION_VECTORS(type, name, bytes)                                                                        \
    struct alignas(2 * (bytes)) name##2 {                                                                              \
        type x, y;                                                                                                     \
    };                                                                                                                 \
    struct alignas(4 * (bytes) > 16 ? 16 : 4 * (bytes)) name##4 {                                                      \
        type x, y, z, w;                                                                                               \
    };                                                                                                                 \
    inline name##2 make_##name##2(type x, type y) { return {x, y}; }                                                   \
    inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
GG_EMULATION_VECTORS(float, float, 4)
GG_EMULATION_VECTORS(int, int, 4)
GG_EMULATION_VECTORS(unsigned, uint, 4)
GG_EMULATION_VECTORS(unsigned short, ushort, 2)
GG_EMULATION_VECTORS(unsigned char, uchar, 1)
GG_EMULATION_VECTORS(double, double, 8)
#undef GG_EMULATION_VECTORS

/* ------------------------------------------------------------------------------------------------ the runtime */

namespace gg_emulation {

/* Where a thread is. */
struct place {
    uint3 thread, block;
    dim3 block_size, grid;
    unsigned lane;
};

/* Of the thread that runs now. */
const place &here();

/* Words of arguments that a kernel has at most. */
#define GG_EMULATION_WORDS 4096

/* A launch with the kernel's arguments behind it: bytes that may be copied. */
struct launch {
    const char *name;
    void (*call)(const launch *);
    dim3 grid, block;
    size_t shared;
    size_t bytes; /* of the whole object */
    /* Of the words behind the kernel's address, from the lowest bit on: which are arguments that are pointers, and
     * which are of structs, which may hold pointers. */
    uint64_t pointer_words[GG_EMULATION_WORDS / 64], struct_words[GG_EMULATION_WORDS / 64];
};
/* Checks the sizes, and runs the launch or gives it to the hook. */
void start(const launch *made, void *stream);

template <class... P> struct arguments {};
template <class First, class... Rest> struct arguments<First, Rest...> {
    static_assert(std::is_trivially_copyable<First>::value, "arguments of kernels are copied as bytes");
    First first;
    arguments<Rest...> rest;
};
/* Each is written where it lies, so that what is between them stays zero. */
inline void put_arguments(launch *, const void *, arguments<> *) {}
template <class First, class... Rest, class A, class... B>
void put_arguments(launch *made, const void *begin, arguments<First, Rest...> *to, A a, B... b) {
    const size_t from = size_t((const char *)&to->first - (const char *)begin) / 8;
    static_assert(sizeof(First) <= 8 * GG_EMULATION_WORDS, "too large an argument");
    to->first = static_cast<First>(a);
    for (size_t i = from; i < from + (sizeof(First) + 7) / 8 && i < GG_EMULATION_WORDS; ++i) {
        if (std::is_pointer<First>::value) made->pointer_words[i / 64] |= uint64_t(1) << i % 64;
        if (std::is_class<First>::value) made->struct_words[i / 64] |= uint64_t(1) << i % 64;
    }
    put_arguments(made, begin, &to->rest, b...);
}
template <class K, class... Done> void apply(K kernel, const arguments<> &, Done... done) { kernel(done...); }
template <class K, class First, class... Rest, class... Done>
void apply(K kernel, const arguments<First, Rest...> &left, Done... done) {
    apply(kernel, left.rest, done..., left.first);
}

template <class... P> struct launch_of : launch {
    void (*kernel)(P...);
    arguments<P...> given;
    static void run(const launch *self) {
        const launch_of *own = static_cast<const launch_of *>(self);
        apply(own->kernel, own->given);
    }
};

template <class... P, class... A>
void begin(const char *name, dim3 grid, dim3 block, size_t shared, const void *stream, void (*kernel)(P...), A... a) {
    static_assert(sizeof...(P) == sizeof...(A), "as many arguments as the kernel has");
    launch_of<P...> made;
    memset(static_cast<void *>(&made), 0, sizeof made);
    made.name = name;
    made.call = launch_of<P...>::run;
    made.grid = grid;
    made.block = block;
    made.shared = shared;
    made.bytes = sizeof made;
    made.kernel = kernel;
    put_arguments(&made, &made.given, &made.given, a...);
    start(&made, const_cast<void *>(stream));
}

/* The block's array that this line of the kernel declares; the tag is an address of the declaration's own. */
void *shared_array(const void *tag, size_t bytes);
void *shared_dynamic();

void sync_block(const char *where);
/* How many gave true. */
int sync_count(bool value, const char *where);
void sync_warp(unsigned mask, const char *where);
/* Each lane of the mask gives a value; `lane` says whose is wanted. */
uint64_t exchange(unsigned mask, uint64_t value, unsigned lane, const char *where);
unsigned vote(unsigned mask, bool value, const char *where);
void before_atomic(void *at, size_t bytes);
[[noreturn]] void trap(const char *what);

template <class T> T shuffle(unsigned mask, T value, unsigned lane, const char *where) {
    static_assert(sizeof(T) <= 8, "shuffles move up to 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = exchange(mask, bits, lane, where);
    memcpy(&value, &bits, sizeof value);
    return value;
}
inline unsigned lane_up(unsigned by, int width) {
    const unsigned lane = here().lane, first = lane & ~(unsigned(width) - 1);
    return lane < first + by ? lane : lane - by;
}
inline unsigned lane_down(unsigned by, int width) {
    const unsigned lane = here().lane, last = lane | (unsigned(width) - 1);
    return lane + by > last ? lane : lane + by;
}
inline unsigned lane_xor(int mask, int width) {
    const unsigned lane = here().lane, other = lane ^ unsigned(mask);
    return other > (lane | (unsigned(width) - 1)) ? lane : other;
}
inline unsigned lane_at(int source, int width) {
    return (here().lane & ~(unsigned(width) - 1)) | (unsigned(source) & (unsigned(width) - 1));
}

/* The value that was there; `change` gives the new one. Emulated kernels never run at the same time. */
template <class T, class F> __attribute__((noinline, no_sanitize("thread"))) T atomic(T *at, F change) {
    before_atomic(at, sizeof *at);
    const T old = *at;
    *at = change(old);
    return old;
}

} // namespace gg_emulation

#define threadIdx (gg_emulation::here().thread)
#define blockIdx (gg_emulation::here().block)
#define blockDim (gg_emulation::here().block_size)
#define gridDim (gg_emulation::here().grid)
#define warpSize 32

#define GG_EMULATION_TEXT_(x) #x
#define GG_EMULATION_TEXT(x) GG_EMULATION_TEXT_(x)
#define GG_EMULATION_WHERE __FILE__ ":" GG_EMULATION_TEXT(__LINE__)

#define GG_LAUNCH(kernel, grid, block, shared, stream, ...)                                                            \
    gg_emulation::begin(#kernel, grid, block, shared, stream, kernel, __VA_ARGS__)

#define GG_SHARED(type, name, extent)                                                                                  \
    typedef type name##_in_shared_memory extent;                                                                       \
    static const char name##_tag = 0;                                                                                  \
    name##_in_shared_memory &name = *static_cast<name##_in_shared_memory *>(                                           \
        gg_emulation::shared_array(&name##_tag, sizeof(name##_in_shared_memory)))
#define GG_DYNAMIC_SHARED(type, name) type *const name = static_cast<type *>(gg_emulation::shared_dynamic())

#define __syncthreads() gg_emulation::sync_block(GG_EMULATION_WHERE)
#define __syncthreads_count(value) gg_emulation::sync_count((value) != 0, GG_EMULATION_WHERE)
#define __syncthreads_or(value) (gg_emulation::sync_count((value) != 0, GG_EMULATION_WHERE) != 0)
#define __syncthreads_and(value) (gg_emulation::sync_count((value) == 0, GG_EMULATION_WHERE) == 0)
#define GG_EMULATION_FIRST(first, ...) first
#define GG_EMULATION_MASK(...) GG_EMULATION_FIRST(__VA_ARGS__ __VA_OPT__(, ) 0xffffffffu, )
#define __syncwarp(...) gg_emulation::sync_warp(GG_EMULATION_MASK(__VA_ARGS__), GG_EMULATION_WHERE)

template <class T> T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    return gg_emulation::shuffle(mask, value, gg_emulation::lane_at(source, width), "__shfl_sync");
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
    return gg_emulation::shuffle(mask, value, gg_emulation::lane_up(by, width), "__shfl_up_sync");
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    return gg_emulation::shuffle(mask, value, gg_emulation::lane_down(by, width), "__shfl_down_sync");
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int by, int width = 32) {
    return gg_emulation::shuffle(mask, value, gg_emulation::lane_xor(by, width), "__shfl_xor_sync");
}
inline unsigned __ballot_sync(unsigned mask, int value) {
    return gg_emulation::vote(mask, value != 0, "__ballot_sync");
}
inline int __any_sync(unsigned mask, int value) { return gg_emulation::vote(mask, value != 0, "__any_sync") != 0; }
inline int __all_sync(unsigned mask, int value) { return gg_emulation::vote(mask, value == 0, "__all_sync") == 0; }

inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __trap() { gg_emulation::trap("__trap"); }

template <class T> T atomicAdd(T *at, T value) {
    return gg_emulation::atomic(at, [=](T old) { return T(old + value); });
}
template <class T> T atomicMax(T *at, T value) {
    return gg_emulation::atomic(at, [=](T old) { return value > old ? value : old; });
}
template <class T> T atomicMin(T *at, T value) {
    return gg_emulation::atomic(at, [=](T old) { return value < old ? value : old; });
}
template <class T> T atomicOr(T *at, T value) {
    return gg_emulation::atomic(at, [=](T old) { return T(old | value); });
}
template <class T> T atomicAnd(T *at, T value) {
    return gg_emulation::atomic(at, [=](T old) { return T(old & value); });
}
template <class T> T atomicExch(T *at, T value) {
    return gg_emulation::atomic(at, [=](T) { return value; });
}
template <class T> T atomicCAS(T *at, T expected, T value) {
    return gg_emulation::atomic(at, [=](T old) { return old == expected ? value : old; });
}

/* ------------------------------------------------------------------------------------------------ numbers */

inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
inline float __int_as_float(int bits) { return __uint_as_float(unsigned(bits)); }
inline int __float_as_int(float value) { return int(__float_as_uint(value)); }
inline double __longlong_as_double(long long bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
inline long long __double_as_longlong(double value) {
    long long bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Compiled with -ffp-contract=off, so products and sums are rounded each. */
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __frsqrt_rn(float a) { return float(1.0 / sqrt(double(a))); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double a) { return sqrt(a); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float rsqrtf(float a) { return __frsqrt_rn(a); }
inline float __expf(float a) { return expf(a); }
inline float __logf(float a) { return logf(a); }
inline float __powf(float a, float b) { return powf(a, b); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __saturatef(float a) { return a > 0.0f ? (a < 1.0f ? a : 1.0f) : 0.0f; }
inline int __float2int_rn(float a) { return int(rintf(a)); }
inline int __float2int_rd(float a) { return int(floorf(a)); }
inline int __float2int_rz(float a) { return int(a); }
inline float __int2float_rn(int a) { return float(a); }
inline float __uint2float_rn(unsigned a) { return float(a); }
inline float __double2float_rn(double a) { return float(a); }

inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline int __mulhi(int a, int b) { return int(int64_t(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)(static_cast<unsigned __int128>(a) * b >> 64);
}
inline int __popc(unsigned a) { return __builtin_popcount(a); }
inline int __clz(int a) { return a == 0 ? 32 : __builtin_clz(unsigned(a)); }
inline int __ffs(int a) { return __builtin_ffs(a); }
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    return unsigned(((uint64_t(high) << 32 | low) << (by & 31)) >> 32);
}
template <class A, class B> constexpr auto min(A a, B b) -> decltype(a + b) { return b < a ? b : a; }
template <class A, class B> constexpr auto max(A a, B b) -> decltype(a + b) { return b > a ? b : a; }

template <class T> T __ldg(const T *at) { return *at; }
template <class T> T __ldcs(const T *at) { return *at; }
template <class T> T __ldcg(const T *at) { return *at; }
template <class T> void __stcs(T *at, T value) { *at = value; }
template <class T> void __stcg(T *at, T value) { *at = value; }
template <class T> void __stwt(T *at, T value) { *at = value; }

#endif
