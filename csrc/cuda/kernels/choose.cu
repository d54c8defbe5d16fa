/* AdaComp's choice, with the bits of the CPU. Three passes, a warp for a bin: the first finds the greatest |G| and then
 * marks what is chosen; the second counts where each bin's entries begin; the third writes them. */
#include "cuda/kernels/common.cuh"

namespace {

constexpr uint32_t MAGNITUDE = 0x7fffffffu, INFINITE = 0x7f800000u, ALL = 0xffffffffu;
constexpr int WARPS = GG_BLOCK / 32;

/* Scratch: where each bin's entries begin, then two bits for each element in words of 32: chosen, and G < 0. */
struct choose_work {
    gg_choose_args args;
    int64_t bins, words; /* words of a bin */
    uint32_t *begin, *chosen, *negative;
};

int64_t bins_of(size_t n, size_t bin) { return (int64_t)((n + bin - 1) / bin); }
int64_t words_of(size_t bin) { return (int64_t)((bin + 31) / 32); }

struct measured {
    gg_exact d, g;
};

__device__ __forceinline__ measured measure(const gg_choose_args &a, int64_t i) {
    measured m;
    if (a.residue == nullptr) {
        m.d = m.g = gg_exact{a.value[i]} - gg_exact{a.known[i]};
    } else {
        m.d = a.gradient != nullptr ? gg_exact{a.scale} * gg_exact{a.gradient[i]} : gg_exact{0.0f};
        m.g = gg_exact{a.residue[i]} + m.d;
    }
    return m;
}

__device__ __forceinline__ uint32_t size_of(gg_exact v) { return __float_as_uint(v.v) & MAGNITUDE; }

__global__ void __launch_bounds__(GG_BLOCK) mark_kernel(choose_work w) {
    const gg_choose_args &a = w.args;
    const int lane = (int)threadIdx.x % 32;
    const gg_exact more = gg_exact{a.factor} - gg_exact{1.0f};
    for (int64_t bin = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; bin < w.bins;
         bin += (int64_t)gridDim.x * WARPS) {
        const int64_t begin = bin * (int64_t)a.bin, left = (int64_t)a.n - begin;
        const int64_t count = left < (int64_t)a.bin ? left : (int64_t)a.bin;
        uint32_t greatest = 0;
        for (int64_t i = lane; i < count; i += 32) greatest = max(greatest, size_of(measure(a, begin + i).g));
        for (int by = 16; by > 0; by /= 2) greatest = max(greatest, __shfl_xor_sync(ALL, greatest, by));
        const bool any = a.place != nullptr && greatest > 0 && greatest < INFINITE;
        uint32_t entries = 0;
        for (int64_t first = 0; first < count; first += 32) {
            const int64_t i = first + lane;
            bool chosen = false, negative = false;
            if (i < count) {
                const measured m = measure(a, begin + i);
                chosen = any && size_of(m.g) > 0 && size_of(m.g + more * m.d) >= greatest;
                negative = (__float_as_uint(m.g.v) & ~MAGNITUDE) != 0;
                if (a.residue != nullptr) a.residue[begin + i] = m.g.v;
                if (a.residue != nullptr && a.gradient != nullptr && a.clear != nullptr) a.clear[begin + i] = 0.0f;
            }
            const uint32_t marks = __ballot_sync(ALL, chosen), signs = __ballot_sync(ALL, negative);
            entries += (uint32_t)__popc(marks);
            if (lane == 0 && a.place != nullptr) {
                w.chosen[bin * w.words + first / 32] = marks;
                w.negative[bin * w.words + first / 32] = signs;
            }
        }
        if (lane == 0) {
            a.greatest[bin] = greatest;
            if (a.place != nullptr) a.chosen[bin] = (uint16_t)entries;
        }
    }
}

/* One block: begin[bin] = the entries of all bins before it; *count = of all. */
__global__ void __launch_bounds__(GG_BLOCK) begin_kernel(choose_work w, uint64_t *count) {
    GG_SHARED(uint32_t, of_warp, [WARPS]);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    uint32_t before = 0;
    for (int64_t first = 0; first < w.bins; first += GG_BLOCK) {
        const int64_t bin = first + threadIdx.x;
        const uint32_t own = bin < w.bins ? w.args.chosen[bin] : 0;
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
        if (bin < w.bins) w.begin[bin] = before + sum - own;
        before += all;
        __syncthreads();
    }
    if (threadIdx.x == 0) *count = before;
}

__global__ void __launch_bounds__(GG_BLOCK) collect_kernel(choose_work w) {
    const int lane = (int)threadIdx.x % 32;
    for (int64_t bin = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; bin < w.bins;
         bin += (int64_t)gridDim.x * WARPS) {
        if (w.args.chosen[bin] == 0) continue;
        const int64_t left = (int64_t)w.args.n - bin * (int64_t)w.args.bin;
        const int64_t count = left < (int64_t)w.args.bin ? left : (int64_t)w.args.bin;
        const uint32_t begin = w.begin[bin];
        uint32_t at = begin;
        for (int64_t word = 0; 32 * word < count; ++word) {
            const uint32_t marks = w.chosen[bin * w.words + word], signs = w.negative[bin * w.words + word];
            if (marks >> lane & 1u) {
                const uint32_t to = at + (uint32_t)__popc(marks & ((1u << lane) - 1u));
                uint32_t entry = (uint32_t)(32 * word) + (uint32_t)lane;
                if (signs >> lane & 1u) entry |= GG_CHOSEN_NEGATIVE;
                if (to == begin) entry |= GG_CHOSEN_FIRST;
                w.args.place[to] = (uint16_t)entry;
            }
            at += (uint32_t)__popc(marks);
        }
    }
}

__global__ void nothing_kernel(uint64_t *count) { *count = 0; }

} // namespace

size_t gg_cuda_choose_scratch(size_t n, size_t bin) {
    const int64_t bins = bins_of(n, bin);
    return (size_t)(bins * (1 + 2 * words_of(bin)));
}

void gg_cuda_choose(gg_cuda_stream stream, const gg_choose_args *args, uint32_t *scratch, uint64_t *count) {
    choose_work w;
    w.args = *args;
    w.bins = bins_of(args->n, args->bin);
    w.words = words_of(args->bin);
    w.begin = scratch;
    w.chosen = scratch + w.bins;
    w.negative = w.chosen + w.bins * w.words;
    const int64_t blocks = (w.bins + WARPS - 1) / WARPS;
    const unsigned grid = (unsigned)(blocks < 1 ? 1 : blocks < GG_MOST_BLOCKS ? blocks : GG_MOST_BLOCKS);
    GG_LAUNCH(mark_kernel, grid, GG_BLOCK, 0, stream, w);
    if (args->place == nullptr) {
        GG_LAUNCH(nothing_kernel, 1, 1, 0, stream, count);
        return;
    }
    GG_LAUNCH(begin_kernel, 1, GG_BLOCK, 0, stream, w, count);
    GG_LAUNCH(collect_kernel, grid, GG_BLOCK, 0, stream, w);
}
