/* Kernels on arenas: one pass, bound by memory, with the bits of the CPU's scalar kernels. */
#include <initializer_list>

#include "cuda/common.cuh"

namespace {

bool all_aligned(std::initializer_list<const void *> floats, std::initializer_list<const void *> narrow) {
    for (const void *p : floats)
        if (!gg_is_aligned(p, 16)) return false;
    for (const void *p : narrow)
        if (!gg_is_aligned(p, 8)) return false;
    return true;
}

const gg_bfloat16 *narrow_of(const uint16_t *p) { return reinterpret_cast<const gg_bfloat16 *>(p); }
gg_bfloat16 *narrow_of(uint16_t *p) { return reinterpret_cast<gg_bfloat16 *>(p); }

#define GG_EACH_OF(N) _Pragma("unroll") for (int k = 0; k < (N); ++k)

template <class Wire> struct mix_of {
    float share;
    const float *base;
    const Wire *received;
    const float *sent;
    float *out;
    template <int N> __device__ __forceinline__ void run(int64_t i) const {
        const gg_pack<N> b = gg_load_pack<N>(base + i), r = gg_load_pack<N>(received + i);
        gg_pack<N> v = gg_load_pack<N>(sent + i);
        GG_EACH_OF(N) {
            const gg_exact said = {gg_rounded_as(received, v.at[k])};
            v.at[k] = (gg_exact{b.at[k]} + gg_exact{share} * (gg_exact{r.at[k]} - said)).v;
        }
        gg_store_pack(out + i, v);
    }
};

/* Conversion between the two types. */
template <class From, class To> struct copy_of {
    const From *in;
    To *out;
    template <int N> __device__ __forceinline__ void run(int64_t i) const {
        gg_store_pack(out + i, gg_load_pack<N>(in + i));
    }
};

struct widen_add_of {
    const gg_bfloat16 *in;
    float *out;
    template <int N> __device__ __forceinline__ void run(int64_t i) const {
        gg_pack<N> v = gg_load_pack<N>(out + i);
        const gg_pack<N> more = gg_load_pack<N>(in + i);
        GG_EACH_OF(N) v.at[k] = (gg_exact{v.at[k]} + gg_exact{more.at[k]}).v;
        gg_store_pack(out + i, v);
    }
};

struct narrow_difference_of {
    const float *a;
    const gg_bfloat16 *b;
    gg_bfloat16 *out;
    template <int N> __device__ __forceinline__ void run(int64_t i) const {
        gg_pack<N> v = gg_load_pack<N>(a + i);
        const gg_pack<N> less = gg_load_pack<N>(b + i);
        GG_EACH_OF(N) v.at[k] = (gg_exact{v.at[k]} - gg_exact{less.at[k]}).v;
        gg_store_pack(out + i, v);
    }
};

/* Weighted sum of up to `most` sources of type T. */
template <class T, int most> struct sum_of {
    int sources;
    const T *source[most];
    float scale[most];
    float *out;           /* NULL means not wanted */
    gg_bfloat16 *rounded; /* NULL means not wanted */
    template <int N> __device__ __forceinline__ void add(gg_pack<N> &sum, int s, int64_t i) const {
        const gg_pack<N> v = gg_load_pack<N>(source[s] + i);
        GG_EACH_OF(N) sum.at[k] = (gg_exact{sum.at[k]} + gg_exact{scale[s]} * gg_exact{v.at[k]}).v;
    }
    template <int N> __device__ __forceinline__ void run(int64_t i) const {
        gg_pack<N> sum = gg_load_pack<N>(source[0] + i);
        GG_EACH_OF(N) sum.at[k] = (gg_exact{scale[0]} * gg_exact{sum.at[k]}).v;
        if constexpr (most <= 4) { /* constant indices: the struct stays in argument memory */
#pragma unroll
            for (int s = 1; s < most; ++s)
                if (s < sources) add<N>(sum, s, i);
        } else {
            for (int s = 1; s < sources; ++s) add<N>(sum, s, i);
        }
        if (rounded != nullptr) {
            GG_EACH_OF(N) sum.at[k] = gg_rounded_as(rounded, sum.at[k]);
            gg_store_pack(rounded + i, sum);
        }
        if (out != nullptr) gg_store_pack(out + i, sum);
    }
};

template <int most, class T>
void sum_launch(gg_cuda_stream stream, int64_t n, int sources, const T *const *source, const float *scale, float *out,
                gg_bfloat16 *rounded) {
    sum_of<T, most> f;
    bool by_fours = all_aligned({out}, {rounded});
    f.sources = sources;
    f.out = out;
    f.rounded = rounded;
    for (int i = 0; i < most; ++i) {
        f.source[i] = i < sources ? source[i] : nullptr;
        f.scale[i] = i < sources ? scale[i] : 0.0f;
        by_fours = by_fours && gg_is_aligned(f.source[i], 4 * sizeof(T));
    }
    gg_each(stream, n, by_fours, f);
}

template <class T>
void sum_by_sources(gg_cuda_stream stream, size_t n, int sources, const T *const *source, const float *scale,
                    float *out, gg_bfloat16 *rounded) {
    if (sources <= 4) sum_launch<4>(stream, (int64_t)n, sources, source, scale, out, rounded);
    else if (sources <= 64) sum_launch<64>(stream, (int64_t)n, sources, source, scale, out, rounded);
    else sum_launch<GG_CUDA_MAX_SOURCES>(stream, (int64_t)n, sources, source, scale, out, rounded);
}

template <class Wire>
void mix_launch(gg_cuda_stream stream, size_t n, float share, const float *base, const void *received,
                const float *sent, float *out) {
    const mix_of<Wire> f = {share, base, static_cast<const Wire *>(received), sent, out};
    gg_each(stream, (int64_t)n, all_aligned({base, sent, out}, {}) && gg_is_aligned(received, 4 * sizeof(Wire)), f);
}

} // namespace

void gg_cuda_mix(gg_cuda_stream stream, size_t n, gg_dtype wire, float share, const float *base, const void *received,
                 const float *sent, float *out) {
    if (wire == GG_BFLOAT16) mix_launch<gg_bfloat16>(stream, n, share, base, received, sent, out);
    else mix_launch<float>(stream, n, share, base, received, sent, out);
}

void gg_cuda_narrow(gg_cuda_stream stream, size_t n, const float *in, uint16_t *out) {
    const copy_of<float, gg_bfloat16> f = {in, narrow_of(out)};
    gg_each(stream, (int64_t)n, all_aligned({in}, {out}), f);
}

void gg_cuda_widen(gg_cuda_stream stream, size_t n, const uint16_t *in, float *out) {
    const copy_of<gg_bfloat16, float> f = {narrow_of(in), out};
    gg_each(stream, (int64_t)n, all_aligned({out}, {in}), f);
}

void gg_cuda_widen_add(gg_cuda_stream stream, size_t n, const uint16_t *in, float *out) {
    const widen_add_of f = {narrow_of(in), out};
    gg_each(stream, (int64_t)n, all_aligned({out}, {in}), f);
}

void gg_cuda_narrow_difference(gg_cuda_stream stream, size_t n, const float *a, const uint16_t *b, uint16_t *out) {
    const narrow_difference_of f = {a, narrow_of(b), narrow_of(out)};
    gg_each(stream, (int64_t)n, all_aligned({a}, {b, out}), f);
}

void gg_cuda_weighted_sum(gg_cuda_stream stream, size_t n, int sources, const float *const *source, const float *scale,
                          float *out) {
    sum_by_sources<float>(stream, n, sources, source, scale, out, nullptr);
}

void gg_cuda_narrow_sum(gg_cuda_stream stream, size_t n, int sources, const uint16_t *const *source, const float *scale,
                        float *out, uint16_t *rounded) {
    sum_by_sources<gg_bfloat16>(stream, n, sources, reinterpret_cast<const gg_bfloat16 *const *>(source), scale, out,
                                narrow_of(rounded));
}
