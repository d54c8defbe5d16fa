/* What the kernels of network operations share: how work is divided, sums of a block, four values at once, and the
 * words of random streams. */
#ifndef GG_CUDA_KERNELS_NN_CUH
#define GG_CUDA_KERNELS_NN_CUH

#include <math.h>
#include <stdint.h>

extern "C" {
#include "base/random.h"
}
#include "cuda/kernels/common.cuh"
#include "cuda/kernels_nn.h"

constexpr int WARP = 32;
/* Blocks of a launch at most: they keep a large device busy, and go around in the kernels' loops. Tests have few. */
#ifndef GG_CUDA_MOST_BLOCKS
#define GG_CUDA_MOST_BLOCKS 8192
#endif
constexpr int64_t MOST_BLOCKS = GG_CUDA_MOST_BLOCKS;
/* Blocks that are worth dividing sums for. */
constexpr int64_t ENOUGH_BLOCKS = 528;

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static inline unsigned blocks_for(int64_t items, int64_t items_of_block) {
    const int64_t blocks = ceil_div(items, items_of_block);
    return (unsigned)(blocks < 1 ? 1 : blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS);
}

/* What a ReLU passes of d where its output, or its input, is y: of NaN too. */
static __device__ inline float gated(float y, float d) { return y <= 0.0f ? 0.0f : d; }

/* ------------------------------------------------------------------------------------------ rows of values
 *
 * outer x channels x inner values as rows: with inner > 1 a row is the `inner` values of a channel of a sample, else it
 * is all channels of a position. A block has 1 << shift threads along a row and the rest across rows. Lengths are in
 * units of V values. */
struct gg_rows {
    int64_t rows, length, channels;
    int columns; /* a row is over the channels */
    int shift;
};

static inline int shift_for(int64_t length) {
    int shift = 2;
    while (shift < 8 && ((int64_t)1 << shift) < length) ++shift;
    return shift;
}

static inline gg_rows rows_of(int64_t outer, int64_t channels, int64_t inner, int v) {
    gg_rows r;
    r.columns = inner == 1;
    r.rows = r.columns ? outer : outer * channels;
    r.length = (r.columns ? channels : inner) / v;
    r.channels = channels;
    r.shift = shift_for(r.length);
    return r;
}

static inline unsigned blocks_of(const gg_rows *r) { return blocks_for(r->rows, GG_BLOCK >> r->shift); }

static __device__ inline int64_t row_first(int shift) {
    return (int64_t)blockIdx.x * (GG_BLOCK >> shift) + (threadIdx.x >> shift);
}
static __device__ inline int64_t row_step(int shift) { return (int64_t)gridDim.x * (GG_BLOCK >> shift); }
static __device__ inline int64_t column_first(int shift) { return threadIdx.x & ((1u << shift) - 1); }

template <int V> static __device__ inline int64_t channel_of(const gg_rows &r, int64_t row, int64_t at, int k) {
    return r.columns ? at * V + k : row % r.channels;
}

/* ------------------------------------------------------------------------------------------ sums
 *
 * Of a group of threads: a warp, or the whole block. The result is in all of them. All threads of a group call. */

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

/* A group's number among all, how many there are, and a thread's place in it. */
template <int GROUP> static __device__ inline int64_t group_first() {
    return (int64_t)blockIdx.x * (GG_BLOCK / GROUP) + threadIdx.x / GROUP;
}
template <int GROUP> static __device__ inline int64_t group_step() { return (int64_t)gridDim.x * (GG_BLOCK / GROUP); }
template <int GROUP> static __device__ inline int group_place() { return (int)(threadIdx.x % GROUP); }

/* ------------------------------------------------------------------------------------------ sums over channels
 *
 * Two sums of double a channel, over outer and inner, in two steps: blocks sum pieces of the samples, and whoever reads
 * them adds those in their order. How many pieces there are depends on the shapes alone. */

static inline int64_t pieces_of(int64_t outer, int64_t channels, int64_t inner) {
    const int64_t blocks = inner > 1 ? channels : ceil_div(channels, WARP);
    const int64_t samples = inner > 1 ? ceil_div(2048, inner) : 64; /* that a block is worth */
    const int64_t wanted = ceil_div(ENOUGH_BLOCKS, blocks), most = ceil_div(outer, samples);
    return wanted < most ? wanted : most;
}

static inline size_t partial_bytes(int64_t outer, int64_t channels, int64_t inner) {
    return (size_t)(pieces_of(outer, channels, inner) * channels) * 2 * sizeof(double);
}

struct gg_pair {
    double first, second;
};

static __device__ inline gg_pair sum_of_pieces(const gg_pair *partial, int64_t pieces, int64_t channels,
                                               int64_t channel) {
    gg_pair sum = {0, 0};
    for (int64_t i = 0; i < pieces; ++i) {
        sum.first += partial[i * channels + channel].first;
        sum.second += partial[i * channels + channel].second;
    }
    return sum;
}

/* Term: `typename Term::local begin(channel)` loads what the values of a channel share; `void add(local, channel, row,
 * index, gg_pair *)` adds those of the value `index` of sample or position `row`. */
template <typename Term>
static __global__ void sum_images(Term term, int64_t outer, int64_t channels, int64_t inner, int shift,
                                  gg_pair *partial) {
    const int64_t piece = blockIdx.y, pieces = gridDim.y, across = GG_BLOCK >> shift, along = (int64_t)1 << shift;
    const int64_t begin = outer * piece / pieces, end = outer * (piece + 1) / pieces;
    for (int64_t channel = blockIdx.x; channel < channels; channel += gridDim.x) {
        const typename Term::local local = term.begin(channel);
        gg_pair sum = {0, 0};
        for (int64_t n = begin + (threadIdx.x >> shift); n < end; n += across) {
            const int64_t at = (n * channels + channel) * inner;
            for (int64_t i = column_first(shift); i < inner; i += along) term.add(local, channel, n, at + i, &sum);
        }
        sum.first = group_sum<GG_BLOCK>(sum.first);
        sum.second = group_sum<GG_BLOCK>(sum.second);
        if (threadIdx.x == 0) partial[piece * channels + channel] = sum;
    }
}

/* The same where channels lie side by side: a warp's threads have a channel each, its eight warps rows. */
template <typename Term>
static __global__ void sum_columns(Term term, int64_t outer, int64_t channels, gg_pair *partial) {
    constexpr int ROWS = GG_BLOCK / WARP;
    GG_SHARED(double, first, [ROWS][WARP]);
    GG_SHARED(double, second, [ROWS][WARP]);
    const int lane = (int)(threadIdx.x % WARP), warp = (int)(threadIdx.x / WARP);
    const int64_t piece = blockIdx.y, pieces = gridDim.y;
    const int64_t begin = outer * piece / pieces, end = outer * (piece + 1) / pieces;
    for (int64_t base = (int64_t)blockIdx.x * WARP; base < channels; base += (int64_t)gridDim.x * WARP) {
        const int64_t channel = base + lane;
        gg_pair sum = {0, 0};
        if (channel < channels) {
            const typename Term::local local = term.begin(channel);
            for (int64_t row = begin + warp; row < end; row += ROWS)
                term.add(local, channel, row, row * channels + channel, &sum);
        }
        first[warp][lane] = sum.first;
        second[warp][lane] = sum.second;
        __syncthreads();
        if (warp == 0 && channel < channels) {
            sum.first = sum.second = 0;
            for (int i = 0; i < ROWS; ++i) {
                sum.first += first[i][lane];
                sum.second += second[i][lane];
            }
            partial[piece * channels + channel] = sum;
        }
        __syncthreads();
    }
}

template <typename Term>
static void sum_channels(gg_cuda_stream stream, const Term &term, int64_t outer, int64_t channels, int64_t inner,
                         gg_pair *partial) {
    const unsigned pieces = (unsigned)pieces_of(outer, channels, inner);
    if (inner > 1)
        GG_LAUNCH((sum_images<Term>), dim3(blocks_for(channels, 1), pieces), dim3(GG_BLOCK), 0, stream, term, outer,
                  channels, inner, shift_for(inner), partial);
    else
        GG_LAUNCH((sum_columns<Term>), dim3(blocks_for(channels, WARP), pieces), dim3(GG_BLOCK), 0, stream, term, outer,
                  channels, partial);
}

/* ------------------------------------------------------------------------------------------ random words */

/* A stream of base/random.h with the purpose of dropout, and what is done with its words. */
struct gg_drawing {
    uint64_t seed;
    const uint64_t *step;
    uint32_t rank, threshold;
    float scale;
    int none; /* all are zeroed */
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

/* What is left of a value. */
static __device__ inline float dropped(const gg_drawing &d, uint32_t word, float v) {
    return keeps(d, word) ? d.scale * v : 0.0f;
}

/* ------------------------------------------------------------------------------------------ functions */

static __device__ inline float logistic(float x) {
    const float e = expf(-fabsf(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

#endif
