/* Shared by the kernels of network operations: division of work, sums of a block, four values at once, and random
 * words. */
#ifndef GG_CUDA_NN_CUH
#define GG_CUDA_NN_CUH

#include <math.h>
#include <stdint.h>

extern "C" {
#include "base/random.h"
}
#include "cuda/common.cuh"
#include "cuda/kernels_nn.h"

constexpr int WARP = 32;
/* Max blocks of a launch: they keep a large device busy, and the kernels loop. Tests use few. */
#ifndef GG_CUDA_MAX_BLOCKS
#define GG_CUDA_MAX_BLOCKS 8192
#endif
constexpr int64_t MAX_BLOCKS = GG_CUDA_MAX_BLOCKS;
/* Number of blocks up to which dividing sums pays off. */
constexpr int64_t ENOUGH_BLOCKS = 528;

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static inline unsigned blocks_for(int64_t items, int64_t items_of_block) {
    const int64_t blocks = ceil_div(items, items_of_block);
    return (unsigned)(blocks < 1 ? 1 : blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS);
}

/* ReLU's gradient: passes d unless y, its output or input, is at most 0. NaN in y passes d. */
static __device__ inline float gated(float y, float d) { return y <= 0.0f ? 0.0f : d; }

/* ------------------------------------------------------------------------------------------ rows of values
 *
 * Rows of outer x channels x inner values. With inner > 1 a row is the `inner` values of a sample's channel. Otherwise
 * it is all channels of a position. A block has 1 << shift threads along a row and the rest across rows. Lengths are in
 * units of V values. */
struct gg_rows {
    int64_t rows, length, channels;
    int shift;
};

static inline int shift_for(int64_t length) {
    int shift = 0;
    while (shift < 8 && ((int64_t)1 << shift) < length) ++shift;
    return shift;
}

static inline gg_rows rows_of(int64_t outer, int64_t channels, int64_t inner, int v) {
    gg_rows r;
    r.rows = inner == 1 ? outer : outer * channels;
    r.length = (inner == 1 ? channels : inner) / v;
    r.channels = channels;
    r.shift = shift_for(r.length);
    return r;
}

/* Number of blocks: enough to keep a large device busy. More blocks would load the channels' values more often. */
static inline unsigned blocks_of(const gg_rows *r) {
    constexpr int64_t BUSY = 1056, ROWS = 8;
    const int64_t across = GG_BLOCK >> r->shift, blocks = ceil_div(r->rows, across);
    const int64_t fewer = ceil_div(blocks, ROWS);
    return blocks_for(blocks <= BUSY ? blocks : fewer < BUSY ? BUSY : fewer, 1);
}

static __device__ inline int64_t row_first(int shift) {
    return (int64_t)blockIdx.x * (GG_BLOCK >> shift) + (threadIdx.x >> shift);
}
static __device__ inline int64_t row_step(int shift) { return (int64_t)gridDim.x * (GG_BLOCK >> shift); }
static __device__ inline int64_t column_first(int shift) { return threadIdx.x & ((1u << shift) - 1); }

/* Calls f.run<V>(local, i) for each V values from place i on. `local` is the result of f.begin(channel) for their
 * channel. */
template <int V, class F> static __global__ void __launch_bounds__(GG_BLOCK, 4) rows_of_channels(gg_rows r, F f) {
    typename F::local local[V];
    for (int64_t i = column_first(r.shift); i < r.length; i += (int64_t)1 << r.shift) {
#pragma unroll
        for (int k = 0; k < V; ++k) local[k] = f.begin(i * V + k);
#pragma unroll(V > 1 ? 2 : 1)
        for (int64_t row = row_first(r.shift); row < r.rows; row += row_step(r.shift))
            f.template run<V>(local, (row * r.length + i) * V);
    }
}

template <int V, class F> static __global__ void __launch_bounds__(GG_BLOCK, 4) rows_of_images(gg_rows r, F f) {
    typename F::local local[V];
    for (int64_t row = row_first(r.shift); row < r.rows; row += row_step(r.shift)) {
        local[0] = f.begin(row % r.channels);
#pragma unroll
        for (int k = 1; k < V; ++k) local[k] = local[0];
#pragma unroll(V > 1 ? 2 : 1)
        for (int64_t i = column_first(r.shift); i < r.length; i += (int64_t)1 << r.shift)
            f.template run<V>(local, (row * r.length + i) * V);
    }
}

/* wide: V values at a time; all addresses are aligned to V values, and rows are multiples of V. */
template <int V, class F>
static void each_row(gg_cuda_stream stream, int64_t outer, int64_t channels, int64_t inner, bool wide, const F &f) {
    const bool by_many = wide && (inner == 1 ? channels : inner) % V == 0;
    const gg_rows r = rows_of(outer, channels, inner, by_many ? V : 1);
    const dim3 blocks(blocks_of(&r)), block(GG_BLOCK);
    if (inner == 1 && by_many) GG_LAUNCH((rows_of_channels<V, F>), blocks, block, 0, stream, r, f);
    else if (inner == 1) GG_LAUNCH((rows_of_channels<1, F>), blocks, block, 0, stream, r, f);
    else if (by_many) GG_LAUNCH((rows_of_images<V, F>), blocks, block, 0, stream, r, f);
    else GG_LAUNCH((rows_of_images<1, F>), blocks, block, 0, stream, r, f);
}

/* ------------------------------------------------------------------------------------------ sums
 *
 * Sum over a group of threads: a warp, or the whole block. All threads of a group call and get the result. */

template <int GROUP> static __device__ inline double group_sum(double v) {
    if constexpr (GROUP == WARP) {
        for (int m = WARP / 2; m > 0; m /= 2) v += __shfl_xor_sync(0xffffffffu, v, m);
        return v;
    } else {
        return gg_block_sum(v);
    }
}

template <int GROUP> static __device__ inline float group_max(float v) {
    if constexpr (GROUP == WARP) {
        for (int m = WARP / 2; m > 0; m /= 2) v = gg_greater(v, __shfl_xor_sync(0xffffffffu, v, m));
        return v;
    } else {
        return gg_block_max(v);
    }
}

/* The group's number among all groups, the number of groups, and a thread's place in its group. */
template <int GROUP> static __device__ inline int64_t group_first() {
    return (int64_t)blockIdx.x * (GG_BLOCK / GROUP) + threadIdx.x / GROUP;
}
template <int GROUP> static __device__ inline int64_t group_step() { return (int64_t)gridDim.x * (GG_BLOCK / GROUP); }
template <int GROUP> static __device__ inline int group_place() { return (int)(threadIdx.x % GROUP); }

/* ------------------------------------------------------------------------------------------ sums over channels
 *
 * Two double sums a channel, over outer and inner, in two steps. First, blocks sum pieces of the samples. Then the
 * reader adds the pieces in order. The number of pieces depends on the shapes alone. */

constexpr int SUM_WIDE = 4; /* adjacent channels of a thread */

static inline int64_t pieces_of(int64_t outer, int64_t channels, int64_t inner) {
    const int64_t side_by_side = channels < WARP * SUM_WIDE ? channels : WARP * SUM_WIDE; /* channels of a block */
    const int64_t blocks = inner > 1 ? channels : ceil_div(channels, side_by_side);
    const int64_t samples =
        inner > 1 ? ceil_div(2048, inner) : ceil_div(4096, side_by_side); /* values of a piece that are worth a block */
    const int64_t wanted = ceil_div(ENOUGH_BLOCKS, blocks), most = ceil_div(outer, samples);
    return wanted < most ? wanted : most;
}

static inline size_t partial_bytes(int64_t outer, int64_t channels, int64_t inner) {
    return (size_t)(pieces_of(outer, channels, inner) * channels) * 2 * sizeof(double);
}

struct gg_pair {
    double first, second;
};

/* Sums the pieces with one warp; all its threads get the result. */
static __device__ inline gg_pair sum_of_pieces(const gg_pair *partial, int64_t pieces, int64_t channels,
                                               int64_t channel) {
    gg_pair sum = {0, 0};
#pragma unroll 4
    for (int64_t i = group_place<WARP>(); i < pieces; i += WARP) {
        sum.first += partial[i * channels + channel].first;
        sum.second += partial[i * channels + channel].second;
    }
    return {group_sum<WARP>(sum.first), group_sum<WARP>(sum.second)};
}

/* Blocks for kernels with one warp a channel: channels c from group_first<WARP>() on by group_step<WARP>(). */
static inline dim3 blocks_of_channels(int64_t channels) { return dim3(blocks_for(channels, GG_BLOCK / WARP)); }

/* Requirements of Term. `typename Term::local begin(channel)` loads values that all of a channel share. `void
 * add<V>(local, row, index, pairs)` adds the V values from `index` on, each to its own pair. `row` is the sample or
 * position. */
template <typename Term>
static __global__ void __launch_bounds__(GG_BLOCK)
    sum_images(Term term, int64_t outer, int64_t channels, int64_t inner, int shift, gg_pair *partial) {
    const int64_t piece = blockIdx.y, pieces = gridDim.y, across = GG_BLOCK >> shift, along = (int64_t)1 << shift;
    const int64_t begin = outer * piece / pieces, end = outer * (piece + 1) / pieces;
    for (int64_t channel = blockIdx.x; channel < channels; channel += gridDim.x) {
        const typename Term::local local = term.begin(channel);
        gg_pair sum = {0, 0};
        for (int64_t n = begin + (threadIdx.x >> shift); n < end; n += across) {
            const int64_t at = (n * channels + channel) * inner;
#pragma unroll 2
            for (int64_t i = column_first(shift); i < inner; i += along) term.template add<1>(&local, n, at + i, &sum);
        }
        sum.first = group_sum<GG_BLOCK>(sum.first);
        sum.second = group_sum<GG_BLOCK>(sum.second);
        if (threadIdx.x == 0) partial[piece * channels + channel] = sum;
    }
}

/* sum_images for adjacent channels: 1 << shift threads of a block have V channels each; the others have other rows. */
template <typename Term, int V>
static __global__ void __launch_bounds__(GG_BLOCK, 4)
    sum_columns(Term term, int64_t outer, int64_t channels, int shift, gg_pair *partial) {
    GG_SHARED(double, first, [V][GG_BLOCK]);
    GG_SHARED(double, second, [V][GG_BLOCK]);
    const int along = 1 << shift, across = GG_BLOCK >> shift;
    const int lane = (int)threadIdx.x & (along - 1), own = (int)threadIdx.x >> shift;
    const int64_t piece = blockIdx.y, pieces = gridDim.y;
    const int64_t begin = outer * piece / pieces, end = outer * (piece + 1) / pieces;
    for (int64_t base = (int64_t)blockIdx.x * along * V; base < channels; base += (int64_t)gridDim.x * along * V) {
        const int64_t channel = base + lane * V;
        gg_pair sum[V];
#pragma unroll
        for (int k = 0; k < V; ++k) sum[k] = {0, 0};
        if (channel < channels) {
            typename Term::local local[V];
#pragma unroll
            for (int k = 0; k < V; ++k) local[k] = term.begin(channel + k);
#pragma unroll 1
            for (int64_t row = begin + own; row < end; row += across)
                term.template add<V>(local, row, row * channels + channel, sum);
        }
#pragma unroll
        for (int k = 0; k < V; ++k) {
            first[k][threadIdx.x] = sum[k].first;
            second[k][threadIdx.x] = sum[k].second;
        }
        __syncthreads();
        for (int i = (int)threadIdx.x; i < along * V; i += GG_BLOCK) {
            const int k = i >> shift, of = i & (along - 1);
            gg_pair all = {0, 0};
#pragma unroll 2
            for (int row = 0; row < across; ++row) {
                all.first += first[k][(row << shift) + of];
                all.second += second[k][(row << shift) + of];
            }
            if (base + of * V + k < channels) partial[piece * channels + base + of * V + k] = all;
        }
        __syncthreads();
    }
}

/* wide: all arrays are aligned to SUM_WIDE values. */
template <typename Term>
static void sum_channels(gg_cuda_stream stream, const Term &term, int64_t outer, int64_t channels, int64_t inner,
                         bool wide, gg_pair *partial) {
    const unsigned pieces = (unsigned)pieces_of(outer, channels, inner);
    const int v = wide && channels % SUM_WIDE == 0 ? SUM_WIDE : 1, most = 5;
    const int shift = shift_for(channels / v) < most ? shift_for(channels / v) : most;
    const dim3 block(GG_BLOCK), grid(blocks_for(channels, (int64_t)v << shift), pieces);
    if (inner > 1)
        GG_LAUNCH((sum_images<Term>), dim3(blocks_for(channels, 1), pieces), block, 0, stream, term, outer, channels,
                  inner, shift_for(inner), partial);
    else if (v > 1)
        GG_LAUNCH((sum_columns<Term, SUM_WIDE>), grid, block, 0, stream, term, outer, channels, shift, partial);
    else GG_LAUNCH((sum_columns<Term, 1>), grid, block, 0, stream, term, outer, channels, shift, partial);
}

/* ------------------------------------------------------------------------------------------ random words */

/* A stream of base/random.h for dropout, and how its words are used. */
struct gg_drawing {
    uint64_t seed;
    const uint64_t *step;
    uint32_t rank, threshold;
    float scale;
    int none; /* all values become 0 */
};

static inline gg_drawing drawing_of(const gg_cuda_draw *draw) {
    const double p = (double)draw->probability;
    gg_drawing d;
    d.seed = draw->seed;
    d.step = draw->step;
    d.rank = draw->rank;
    d.none = p >= 1;
    d.threshold = p < 1 ? (uint32_t)(p * 4294967296.0) : 0;
    d.scale = p < 1 ? (float)(1.0 / (1.0 - p)) : 0.0f;
    return d;
}

struct gg_words {
    uint32_t word[4];
};

/* Block `index` of the stream: Philox4x32-10, gg_random_block. */
static __device__ inline gg_words random_block(const gg_drawing &d, uint32_t index) {
    const uint64_t step = *d.step;
    uint32_t c0 = index, c1 = (uint32_t)step,
             c2 = ((uint32_t)(step >> 32) & 0xFFFFFFu) | (uint32_t)GG_RANDOM_DROPOUT << 24, c3 = d.rank;
    uint32_t k0 = (uint32_t)d.seed, k1 = (uint32_t)(d.seed >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

static __device__ inline bool keeps(const gg_drawing &d, uint32_t word) { return d.none == 0 && word >= d.threshold; }

/* The value after dropout. */
static __device__ inline float dropped(const gg_drawing &d, uint32_t word, float v) {
    return keeps(d, word) ? d.scale * v : 0.0f;
}

/* ------------------------------------------------------------------------------------------ functions */

static __device__ inline float logistic(float x) {
    const float e = expf(-fabsf(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

#endif
