/* Packed messages of parameters, with the CPU's bits, and sparse elements.
 *
 * One launch handles several parameters: their bins are numbered consecutively, and a warp takes a bin.
 * 1. mark finds the max |G| of each bin, then marks the chosen elements.
 * 2. scale adds the max values of each parameter, in the CPU's order.
 * 3. sift removes entries that are too small.
 * 4. begin counts where each bin's entries begin.
 * 5. write writes the lists and removes the sent values. */
#include "cuda/common.cuh"

namespace {

constexpr uint32_t MAGNITUDE = 0x7fffffffu, INFINITE = 0x7f800000u, ALL = 0xffffffffu;
constexpr int WARPS = GG_BLOCK / 32;

/* Max parameters of a launch: they are kernel arguments, which have 4 KiB. */
constexpr int BATCH = 16;

/* Results of a parameter between two kernels; the first bytes of its scratch. */
struct found {
    uint32_t least; /* bits of the min size that stays */
    uint32_t nothing;
    float scale;
};

static_assert(sizeof(found) <= 4 * sizeof(uint32_t), "gg_pack_scratch has room for it");

struct parameter {
    int64_t n, bin, bins, words; /* words of 32 elements in a bin; 0 means that nothing is chosen */
    int64_t first_bin;           /* number among the bins of all parameters */
    gg_pack_kind kind;
    bool narrow, safe;
    float scale, factor;
    const float *gradient, *value;
    float *clear, *residue, *known;
    uint32_t *greatest;
    gg_pack_result *result;
    uint16_t *place, *chosen;
    void *values;
    /* Scratch. For each bin: number of chosen elements, and begin of its entries. For each element: two bits, chosen
     * and G < 0. */
    found *out;
    uint32_t *count, *begin, *marks, *negative;
};

struct batch {
    int count;
    int64_t bins;
    parameter of[BATCH];
};

int64_t bins_of(const gg_pack_args &a) { return (int64_t)((a.n + a.bin - 1) / a.bin); }
bool chooses(gg_pack_kind kind) { return kind != GG_PACK_NONE && kind != GG_PACK_ALL; }
int64_t words_of(const gg_pack_args &a) { return chooses(a.kind) ? (int64_t)((a.bin + 31) / 32) : 0; }

/* The parameter of a bin; `bin` becomes the bin's number in that parameter. */
__device__ __forceinline__ const parameter &parameter_of(const batch &b, int64_t &bin) {
    int i = 0;
    while (i + 1 < b.count && b.of[i + 1].first_bin <= bin) ++i;
    bin -= b.of[i].first_bin;
    return b.of[i];
}

/* Elements of a bin. */
__device__ __forceinline__ int64_t elements_of(const parameter &p, int64_t bin) {
    const int64_t left = p.n - bin * p.bin;
    return left < p.bin ? left : p.bin;
}

struct measured {
    gg_exact d, g;
};

__device__ __forceinline__ measured measure(const parameter &p, int64_t i) {
    measured m;
    if (p.residue == nullptr) {
        m.d = m.g = gg_exact{p.value[i]} - gg_exact{p.known[i]};
    } else {
        m.d = p.gradient != nullptr ? gg_exact{p.scale} * gg_exact{p.gradient[i]} : gg_exact{0.0f};
        m.g = gg_exact{p.residue[i]} + m.d;
    }
    return m;
}

__device__ __forceinline__ uint32_t size_of(gg_exact v) { return __float_as_uint(v.v) & MAGNITUDE; }

/* G, after the residue has received the new value. */
__device__ __forceinline__ gg_exact term_of(const parameter &p, int64_t i) {
    return p.residue != nullptr ? gg_exact{p.residue[i]} : gg_exact{p.value[i]} - gg_exact{p.known[i]};
}

__device__ __forceinline__ void remove_sent(const parameter &p, int64_t i, float sent) {
    if (p.residue != nullptr) p.residue[i] = (gg_exact{p.residue[i]} - gg_exact{sent}).v;
    else p.known[i] = (gg_exact{p.known[i]} + gg_exact{sent}).v;
}

/* Rounds to nearest, ties to even. Values that would become infinite become the largest bfloat16. */
__device__ __forceinline__ gg_bfloat16 narrowed_finite(float v) {
    const uint32_t bits = __float_as_uint(v), up = bits + 0x7fffu + (bits >> 16 & 1u);
    return {(uint16_t)(((up & INFINITE) == INFINITE ? bits : up) >> 16)};
}

__global__ void __launch_bounds__(GG_BLOCK) mark_kernel(const __grid_constant__ batch b) {
    const int lane = (int)threadIdx.x % 32;
    for (int64_t number = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; number < b.bins;
         number += (int64_t)gridDim.x * WARPS) {
        int64_t bin = number;
        const parameter &p = parameter_of(b, bin);
        const int64_t begin = bin * p.bin, count = elements_of(p, bin);
        const gg_exact more = gg_exact{p.factor} - gg_exact{1.0f};
        uint32_t greatest = 0, entries = 0;
        for (int64_t i = lane; i < count; i += 32) greatest = max(greatest, size_of(measure(p, begin + i).g));
        for (int by = 16; by > 0; by /= 2) greatest = max(greatest, __shfl_xor_sync(ALL, greatest, by));
        const bool any = p.words > 0 && greatest > 0 && greatest < INFINITE;
        for (int64_t first = 0; first < count; first += 32) {
            const int64_t i = begin + first + lane;
            bool chosen = false, negative = false;
            if (first + lane < count) {
                const measured m = measure(p, i);
                chosen = any && size_of(m.g) > 0 && size_of(m.g + more * m.d) >= greatest;
                negative = (__float_as_uint(m.g.v) & ~MAGNITUDE) != 0;
                if (p.residue != nullptr) p.residue[i] = m.g.v;
                if (p.gradient != nullptr && p.clear != nullptr) p.clear[i] = 0.0f;
                if (p.kind == GG_PACK_ALL) {
                    static_cast<float *>(p.values)[i] = m.g.v;
                    remove_sent(p, i, m.g.v);
                }
            }
            if (p.words == 0) continue;
            const uint32_t marks = __ballot_sync(ALL, chosen), signs = __ballot_sync(ALL, negative);
            entries += (uint32_t)__popc(marks);
            if (lane == 0) {
                p.marks[bin * p.words + first / 32] = marks;
                p.negative[bin * p.words + first / 32] = signs;
            }
        }
        if (lane == 0) {
            p.greatest[bin] = greatest;
            if (p.words > 0) p.count[bin] = entries;
        }
    }
}

/* One block a parameter. */
__global__ void __launch_bounds__(GG_BLOCK) scale_kernel(const __grid_constant__ batch b) {
    GG_SHARED(float, part, [GG_BLOCK]);
    GG_SHARED(uint32_t, of_warp, [WARPS]);
    const parameter &p = b.of[blockIdx.x];
    double sum = 0;
    uint32_t most = 0;
    for (int64_t first = 0; first < p.bins; first += GG_BLOCK) {
        const int64_t bin = first + threadIdx.x, left = p.bins - first;
        const uint32_t own = bin < p.bins ? p.greatest[bin] : 0;
        most = max(most, own);
        part[threadIdx.x] = __uint_as_float(own);
        __syncthreads();
        if (threadIdx.x == 0 && p.words > 0)
            for (int64_t i = 0; i < (left < GG_BLOCK ? left : GG_BLOCK); ++i) sum = __dadd_rn(sum, (double)part[i]);
        __syncthreads();
    }
    for (int by = 16; by > 0; by /= 2) most = max(most, __shfl_xor_sync(ALL, most, by));
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = most;
    __syncthreads();
    if (threadIdx.x != 0) return; /* after the last barrier */
    for (int i = 1; i < WARPS; ++i) most = max(most, of_warp[i]);
    const float scale = p.words > 0 ? __double2float_rn(__ddiv_rn(sum, (double)p.bins)) : 0.0f;
    p.result->greatest = most;
    p.result->scale = most < INFINITE ? scale : 0.0f;
    p.result->entries = 0;
    if (p.words == 0) return;
    p.out->least = p.safe ? __float_as_uint((gg_exact{scale} / gg_exact{2.0f}).v) : 0;
    p.out->nothing = most >= INFINITE || (p.kind == GG_PACK_SIGNS && !(scale > 0));
    p.out->scale = scale;
}

__global__ void __launch_bounds__(GG_BLOCK) sift_kernel(const __grid_constant__ batch b) {
    const int lane = (int)threadIdx.x % 32;
    for (int64_t number = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; number < b.bins;
         number += (int64_t)gridDim.x * WARPS) {
        int64_t bin = number;
        const parameter &p = parameter_of(b, bin);
        if (!p.safe || p.words == 0) continue;
        const uint32_t least = p.out->least;
        const int64_t count = elements_of(p, bin);
        uint32_t entries = 0;
        for (int64_t word = 0; 32 * word < count; ++word) {
            const uint32_t marks = p.marks[bin * p.words + word];
            bool stays = (marks >> lane & 1u) != 0;
            if (stays) stays = size_of(term_of(p, bin * p.bin + 32 * word + lane)) >= least;
            const uint32_t left = __ballot_sync(ALL, stays);
            __syncwarp(); /* all have read them */
            if (lane == 0 && left != marks) p.marks[bin * p.words + word] = left;
            entries += (uint32_t)__popc(left);
        }
        if (lane == 0) p.count[bin] = entries;
    }
}

/* One block a parameter: begin[bin] = the entries of all previous bins. */
__global__ void __launch_bounds__(GG_BLOCK) begin_kernel(const __grid_constant__ batch b) {
    GG_SHARED(uint32_t, of_warp, [WARPS]);
    const parameter &p = b.of[blockIdx.x];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int64_t bins = p.words > 0 ? p.bins : 0;
    const bool nothing = p.words > 0 && p.out->nothing != 0;
    uint32_t before = 0;
    for (int64_t first = 0; first < bins; first += GG_BLOCK) {
        const int64_t bin = first + threadIdx.x;
        const uint32_t own = bin < bins && !nothing ? p.count[bin] : 0;
        uint32_t sum = own;
        for (unsigned by = 1; by < 32; by *= 2) {
            const uint32_t lower = __shfl_up_sync(ALL, sum, by);
            if (lane >= (int)by) sum += lower;
        }
        if (lane == 31) of_warp[warp] = sum;
        __syncthreads();
        uint32_t all = 0;
        for (int i = 0; i < WARPS; ++i) {
            if (i == warp) sum += all;
            all += of_warp[i];
        }
        if (bin < bins) {
            p.begin[bin] = before + sum - own;
            p.chosen[bin] = (uint16_t)own;
        }
        before += all;
        __syncthreads();
    }
    if (threadIdx.x == 0 && bins > 0) p.result->entries = before;
}

__global__ void __launch_bounds__(GG_BLOCK) write_kernel(const __grid_constant__ batch b) {
    const int lane = (int)threadIdx.x % 32;
    for (int64_t number = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; number < b.bins;
         number += (int64_t)gridDim.x * WARPS) {
        int64_t bin = number;
        const parameter &p = parameter_of(b, bin);
        if (p.words == 0 || p.out->nothing != 0 || p.count[bin] == 0) continue;
        const int64_t count = elements_of(p, bin);
        const uint32_t begin = p.begin[bin];
        const float scale = p.out->scale;
        uint32_t at = begin;
        for (int64_t word = 0; 32 * word < count; ++word) {
            const uint32_t marks = p.marks[bin * p.words + word];
            if (marks >> lane & 1u) {
                const uint32_t to = at + (uint32_t)__popc(marks & ((1u << lane) - 1u));
                const int64_t i = bin * p.bin + 32 * word + lane;
                const bool negative = (p.negative[bin * p.words + word] >> lane & 1u) != 0;
                uint32_t entry = (uint32_t)(32 * word) + (uint32_t)lane;
                if (negative) entry |= GG_CHOSEN_NEGATIVE;
                if (to == begin) entry |= GG_CHOSEN_FIRST;
                p.place[to] = (uint16_t)entry;
                if (p.kind == GG_PACK_SIGNS) {
                    remove_sent(p, i, negative ? -scale : scale);
                } else if (p.kind == GG_PACK_VALUES) {
                    const float g = term_of(p, i).v;
                    const gg_bfloat16 narrow = narrowed_finite(g);
                    if (p.narrow) static_cast<gg_bfloat16 *>(p.values)[to] = narrow;
                    else static_cast<float *>(p.values)[to] = g;
                    remove_sent(p, i, p.narrow ? gg_widened(narrow) : g);
                }
            }
            at += (uint32_t)__popc(marks);
        }
    }
}

/* ---- elements one by one ---- */

__device__ __forceinline__ void store_finite(float *at, float v) { *at = v; }
__device__ __forceinline__ void store_finite(gg_bfloat16 *at, float v) { *at = narrowed_finite(v); }

template <class T> __global__ void __launch_bounds__(GG_BLOCK) add_kernel(gg_elements_args a) {
    const T *const values = static_cast<const T *>(a.values);
    for (int64_t i = gg_thread_number(); i < (int64_t)a.n; i += gg_thread_count()) {
        const uint32_t element = a.element != nullptr ? a.element[i] : (uint32_t)i;
        const float sign = (element & GG_ELEMENT_NEGATIVE) != 0 ? -1.0f : 1.0f;
        float *const at = a.at + (element & ~GG_ELEMENT_NEGATIVE);
        const gg_exact value{values != nullptr ? gg_load(values + i) : sign};
        *at = (gg_exact{*at} + gg_exact{a.factor} * value).v;
    }
}

template <class T> __global__ void __launch_bounds__(GG_BLOCK) take_kernel(gg_elements_args a) {
    T *const values = static_cast<T *>(a.values);
    for (int64_t i = gg_thread_number(); i < (int64_t)a.n; i += gg_thread_count()) {
        const uint32_t element = a.element != nullptr ? a.element[i] : (uint32_t)i;
        float *const at = a.at + (element & ~GG_ELEMENT_NEGATIVE);
        T sent;
        store_finite(&sent, *at);
        values[i] = sent;
        *at = (gg_exact{*at} - gg_exact{gg_load(&sent)}).v;
    }
}

parameter parameter_from(const gg_pack_args &a, int64_t first_bin) {
    parameter p = {};
    p.n = (int64_t)a.n;
    p.bin = (int64_t)a.bin;
    p.bins = bins_of(a);
    p.words = words_of(a);
    p.first_bin = first_bin;
    p.kind = a.kind;
    p.narrow = a.dtype == GG_BFLOAT16;
    p.safe = a.safe;
    p.scale = a.scale;
    p.factor = a.factor;
    p.gradient = a.gradient;
    p.value = a.value;
    p.clear = a.clear;
    p.residue = a.residue;
    p.known = a.known;
    p.result = a.result;
    p.place = a.place;
    p.chosen = a.chosen;
    p.values = a.values;
    p.out = reinterpret_cast<found *>(a.scratch);
    p.greatest = a.scratch + 4;
    p.count = p.greatest + p.bins;
    p.begin = p.count + p.bins;
    p.marks = p.begin + p.bins;
    p.negative = p.marks + p.bins * p.words;
    return p;
}

} // namespace

void gg_cuda_pack(gg_cuda_stream stream, int count, const gg_pack_args *args) {
    for (int first = 0; first < count; first += BATCH) {
        batch b = {};
        bool chosen = false, safe = false;
        for (int i = first; i < count && i < first + BATCH; ++i) {
            b.of[b.count] = parameter_from(args[i], b.bins);
            chosen = chosen || b.of[b.count].words > 0;
            safe = safe || (args[i].safe && b.of[b.count].words > 0);
            b.bins += b.of[b.count++].bins;
        }
        const int64_t blocks = (b.bins + WARPS - 1) / WARPS;
        const unsigned grid = (unsigned)(blocks < 1 ? 1 : blocks < GG_MAX_BLOCKS ? blocks : GG_MAX_BLOCKS);
        GG_LAUNCH(mark_kernel, grid, GG_BLOCK, 0, stream, b);
        GG_LAUNCH(scale_kernel, (unsigned)b.count, GG_BLOCK, 0, stream, b);
        if (safe) GG_LAUNCH(sift_kernel, grid, GG_BLOCK, 0, stream, b);
        if (!chosen) continue;
        GG_LAUNCH(begin_kernel, (unsigned)b.count, GG_BLOCK, 0, stream, b);
        GG_LAUNCH(write_kernel, grid, GG_BLOCK, 0, stream, b);
    }
}

void gg_cuda_add_elements(gg_cuda_stream stream, const gg_elements_args *args) {
    const unsigned grid = gg_blocks_for((int64_t)args->n);
    if (args->dtype == GG_BFLOAT16) GG_LAUNCH(add_kernel<gg_bfloat16>, grid, GG_BLOCK, 0, stream, *args);
    else GG_LAUNCH(add_kernel<float>, grid, GG_BLOCK, 0, stream, *args);
}

void gg_cuda_take_elements(gg_cuda_stream stream, const gg_elements_args *args) {
    const unsigned grid = gg_blocks_for((int64_t)args->n);
    if (args->dtype == GG_BFLOAT16) GG_LAUNCH(take_kernel<gg_bfloat16>, grid, GG_BLOCK, 0, stream, *args);
    else GG_LAUNCH(take_kernel<float>, grid, GG_BLOCK, 0, stream, *args);
}
