/* The emulation itself: what threads compute together, and that each thing the model forbids is seen. */
#include <thread>

#include "check_kernels.h"

#include "cuda/common.cuh"

namespace {

/* ------------------------------------------------------------------------------------------------ what works */

__global__ void places(int *out) {
    const int in_block = (int)(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
    const int block = (int)(blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z));
    out[block * (int)(blockDim.x * blockDim.y * blockDim.z) + in_block] = 1000 * block + in_block;
}

void test_places() {
    buffer<int> out(2 * 3 * 2 * 60);
    GG_LAUNCH(places, dim3(2, 3, 2), dim3(3, 4, 5), 0, nullptr, out.p);
    for (int i = 0; i < (int)out.n; ++i) CHECK_INT(out[(size_t)i], i / 60 * 1000 + i % 60);
}

__global__ void reversed(const int *in, int *out) {
    GG_SHARED(int, tile, [64]);
    GG_DYNAMIC_SHARED(int, other);
    tile[threadIdx.x] = in[blockIdx.x * 64 + threadIdx.x];
    other[threadIdx.x] = 7 * (int)threadIdx.x;
    __syncthreads();
    for (int round = 0; round < 3; ++round) {
        const int v = tile[63 - threadIdx.x];
        __syncthreads();
        tile[threadIdx.x] = v;
        __syncthreads();
    }
    out[blockIdx.x * 64 + threadIdx.x] = tile[threadIdx.x] + other[63 - threadIdx.x];
}

void test_barriers() {
    buffer<int> in(192), out(192);
    for (int i = 0; i < 192; ++i) in[(size_t)i] = i;
    GG_LAUNCH(reversed, 3, 64, 64 * sizeof(int), nullptr, in.p, out.p);
    for (int i = 0; i < 192; ++i) CHECK_INT(out[(size_t)i], i / 64 * 64 + 63 - i % 64 + 7 * (63 - i % 64));
}

__global__ void warp_operations(int *out, double *sums) {
    const int lane = (int)threadIdx.x % 32, at = (int)threadIdx.x;
    int *own = out + 12 * at;
    own[0] = __shfl_sync(0xffffffffu, at, 5);
    own[1] = __shfl_sync(0xffffffffu, at, 3, 8);
    own[2] = __shfl_up_sync(0xffffffffu, at, 3);
    own[3] = __shfl_down_sync(0xffffffffu, at, 3, 16);
    own[4] = __shfl_xor_sync(0xffffffffu, at, 5);
    own[5] = (int)__ballot_sync(0xffffffffu, lane % 3 == 0);
    own[6] = __any_sync(0xffffffffu, at == 40);
    own[7] = __all_sync(0xffffffffu, at < 32);
    own[8] = __syncthreads_count(at % 4 == 0);
    own[9] = __syncthreads_or(at == 63);
    own[10] = __syncthreads_and(at < 63);
    own[11] = lane < 16 ? __shfl_xor_sync(0xffffu, at, 1) : -1;
    sums[at] = gg_block_sum((double)at) + gg_block_sum(1.0) + (double)gg_block_max((float)-at);
}

void test_warps() {
    buffer<int> out(64 * 12);
    buffer<double> sums(64);
    GG_LAUNCH(warp_operations, 1, 64, 0, nullptr, out.p, sums.p);
    for (int i = 0; i < 64; ++i) {
        const int *own = out.p + 12 * i, lane = i % 32, first = i - lane;
        const int wanted[] = {first + 5,
                              i / 8 * 8 + 3,
                              lane < 3 ? i : i - 3,
                              lane % 16 + 3 > 15 ? i : i + 3,
                              i ^ 5,
                              0x49249249,
                              i >= 32,
                              i < 32,
                              16,
                              1,
                              0,
                              lane < 16 ? i ^ 1 : -1};
        for (int k = 0; k < 12; ++k)
            if (!CHECK_INT(own[k], wanted[k])) fprintf(stderr, "thread %d, operation %d\n", i, k);
        CHECK_NEAR(sums[(size_t)i], 63 * 32 + 64, 0);
    }
}

__global__ void counting(unsigned *counts, float *most) {
    atomicAdd(&counts[threadIdx.x % 7], 1u);
    atomicMax(&counts[7], threadIdx.x + 1000 * blockIdx.x);
    atomicCAS(&counts[8], 0xffffffffu, threadIdx.x);
    atomicAdd(most, 0.5f);
}

void test_atomics() {
    buffer<unsigned> counts(9);
    buffer<float> most(1);
    for (size_t i = 0; i < 8; ++i) counts[i] = 0;
    most[0] = 0;
    GG_LAUNCH(counting, 4, 70, 0, nullptr, counts.p, most.p);
    for (size_t i = 0; i < 7; ++i) CHECK_INT(counts[i], 40);
    CHECK_INT(counts[7], 3069);
    CHECK_INT(counts[8], 0);
    CHECK_NEAR(most[0], 140, 0);
}

__global__ void narrowing(const float *in, gg_bfloat16 *out, float *back) {
    out[threadIdx.x] = gg_narrowed(in[threadIdx.x]);
    back[threadIdx.x] = gg_widened(out[threadIdx.x]);
}

/* A race that a barrier of the warp prevents, and numbers whose rounding is known. */
__global__ void within_warps(int *out) {
    GG_SHARED(int, v, [64]);
    v[threadIdx.x] = (int)threadIdx.x;
    __syncwarp();
    const int other = v[threadIdx.x ^ 1] + v[threadIdx.x ^ 2];
    __syncwarp();
    v[threadIdx.x] = other;
    __syncwarp(0xffffffffu);
    out[threadIdx.x] = v[threadIdx.x ^ 1];
}

void test_numbers() {
    buffer<int> out(64);
    GG_LAUNCH(within_warps, 1, 64, 0, nullptr, out.p);
    for (int i = 0; i < 64; ++i) CHECK_INT(out[(size_t)i], i + (i ^ 3));
    const uint32_t bits[] = {0x3f800000u, 0x3f808000u, 0x3f818000u, 0x3f808001u,
                             0x7f7fffffu, 0x7f800001u, 0x00000001u, 0x80008001u};
    const uint16_t wanted[] = {0x3f80, 0x3f80, 0x3f82, 0x3f81, 0x7f80, 0x7fc0, 0x0000, 0x8001};
    buffer<float> in(8), back(8);
    buffer<gg_bfloat16> narrow(8);
    memcpy(in.p, bits, sizeof bits);
    GG_LAUNCH(narrowing, 1, 8, 0, nullptr, in.p, narrow.p, back.p);
    for (size_t i = 0; i < 8; ++i) {
        CHECK_INT(narrow[i].bits, wanted[i]);
        CHECK_INT(__float_as_uint(back[i]), (uint32_t)wanted[i] << 16);
    }
    CHECK(__fmaf_rn(1.0f + 0x1p-12f, 1.0f + 0x1p-12f, -1.0f) != (1.0f + 0x1p-12f) * (1.0f + 0x1p-12f) - 1.0f);
    CHECK_INT(__umulhi(0xd2511f53u, 0x12345678u), (0xd2511f53ull * 0x12345678ull) >> 32);
}

/* ------------------------------------------------------------------------------------------------ later */

struct work {
    gg_emulation_run *run;
    std::vector<uint64_t> packet;
};
std::vector<work> given;

void give(void *stream, gg_emulation_run *run, const void *packet, size_t bytes, const char *name) {
    CHECK(stream == &given);
    CHECK_TEXT(name, "places");
    given.push_back({run, std::vector<uint64_t>((bytes + 7) / 8)});
    memcpy(given.back().packet.data(), packet, bytes);
}

/* The arguments are those of the launch, but for addresses that are replaced in the packet. */
void test_later() {
    buffer<int> out(60), other(60);
    gg_emulation_hook = give;
    for (int i = 0; i < 2; ++i) {
        int *goes = out.p;
        GG_LAUNCH(places, 1, 60, 0, &given, goes);
        goes = nullptr;
    }
    gg_emulation_hook = nullptr;
    CHECK_INT(out[5], -1);
    CHECK_INT(given.size(), 2);
    for (uint64_t &word : given[1].packet)
        if (word == (uint64_t)(uintptr_t)out.p) word = (uint64_t)(uintptr_t)other.p;
    for (const work &w : given) std::thread(w.run, w.packet.data()).join();
    CHECK_INT(out[5], 5);
    CHECK_INT(other[7], 7);
}

/* ------------------------------------------------------------------------------------------------ planted mistakes */

/* Runs the launch and checks what is found; in a build without checks of accesses nothing is. */
template <class F> void planted(const char *text, bool needs_checks, F f) {
    gg_emulation_expect();
    f();
    if (!needs_checks || gg_emulation_is_checked()) {
        CHECK(gg_emulation_failures() > 0);
        if (strstr(gg_emulation_failure(), text) == nullptr) CHECK_TEXT(gg_emulation_failure(), text);
    }
    gg_emulation_reset();
}

__global__ void race_in_shared(int *out) {
    GG_SHARED(int, v, [64]);
    v[threadIdx.x] = 0;
    __syncthreads();
    v[threadIdx.x] = (int)threadIdx.x;
    out[threadIdx.x] = v[63 - threadIdx.x]; /* no barrier between */
}

__global__ void race_of_reader(int *out) {
    GG_SHARED(int, v, [64]);
    v[threadIdx.x] = (int)threadIdx.x;
    __syncthreads();
    const int mine = v[63 - threadIdx.x];
    v[threadIdx.x] = mine; /* others may not have read it */
    out[threadIdx.x] = mine;
}

__global__ void race_between_warps(int *out) {
    GG_SHARED(int, v, [64]);
    v[threadIdx.x] = 0;
    __syncthreads();
    v[threadIdx.x] = (int)threadIdx.x;
    __syncwarp(); /* orders a warp alone */
    out[threadIdx.x] = v[63 - threadIdx.x];
}

__global__ void race_of_shuffles(int *out) {
    GG_SHARED(int, v, [32]);
    v[threadIdx.x] = 0;
    __syncwarp();
    v[threadIdx.x] = (int)threadIdx.x;
    out[threadIdx.x] = __shfl_sync(0xffffffffu, (int)threadIdx.x, 0); /* orders nothing */
    out[threadIdx.x] += v[31 - threadIdx.x];
}

__global__ void race_in_global(int *out) { out[threadIdx.x / 2] = (int)threadIdx.x; }
__global__ void race_of_blocks(int *out) { out[threadIdx.x] = (int)blockIdx.x; }
__global__ void race_of_bytes(unsigned char *out) { out[threadIdx.x / 2] = (unsigned char)threadIdx.x; }
__global__ void race_with_atomic(int *out) {
    if (threadIdx.x == 0) out[0] = 0;
    else atomicAdd(out, 1);
}
__global__ void unwritten(int *out) {
    GG_SHARED(int, v, [64]);
    if (threadIdx.x > 0) v[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = v[threadIdx.x];
}
__global__ void divergent(int *out) {
    if (threadIdx.x < 40) __syncthreads();
    out[threadIdx.x] = 1;
}
__global__ void two_barriers(int *out) {
    if (threadIdx.x < 32) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    out[threadIdx.x] = 1;
}
__global__ void half_a_shuffle(int *out) {
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1, 1);
}
__global__ void strange_lane(int *out) {
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0xffffu, 1, 20);
}
__global__ void reads_at(const int *in, int at, int *out) { out[threadIdx.x] = in[at]; }
__global__ void writes_at(int *out, int at) { out[at] = 1; }
__global__ void traps(int *) { __trap(); }
__global__ void large(int *out) {
    GG_SHARED(int, v, [8192]);
    GG_SHARED(int, w, [8192]);
    v[0] = w[0] = 0;
    out[0] = v[0];
}
template <int N> __global__ void indexes(int *out, int at) {
    GG_SHARED(int, v, [N]);
    GG_SHARED(int, w, [N]);
    int *const hidden = v; /* behind the pointer nobody knows the array's size */
    v[threadIdx.x] = w[threadIdx.x] = 0;
    out[threadIdx.x] = hidden[at];
}

void test_planted() {
    buffer<int> out(128, "out"), in(10, "in");
    buffer<unsigned char> bytes(64, "bytes");
    planted("of 'shared memory', which block 0, thread", true,
            [&] { GG_LAUNCH(race_in_shared, 1, 64, 0, nullptr, out.p); });
    planted("race: ", true, [&] { GG_LAUNCH(race_of_reader, 1, 64, 0, nullptr, out.p); });
    planted("race: ", true, [&] { GG_LAUNCH(race_between_warps, 1, 64, 0, nullptr, out.p); });
    planted("race: ", true, [&] { GG_LAUNCH(race_of_shuffles, 1, 32, 0, nullptr, out.p); });
    planted("race: writes byte 0 of 'out'", true, [&] { GG_LAUNCH(race_in_global, 1, 64, 0, nullptr, out.p); });
    planted("race: writes byte 0 of 'out'", true, [&] { GG_LAUNCH(race_of_blocks, 2, 64, 0, nullptr, out.p); });
    planted("race: writes byte 0 of 'bytes'", true, [&] { GG_LAUNCH(race_of_bytes, 1, 64, 0, nullptr, bytes.p); });
    planted("race: changes byte 0 of 'out'", true, [&] { GG_LAUNCH(race_with_atomic, 1, 64, 0, nullptr, out.p); });
    planted("no thread of the block has written", true, [&] { GG_LAUNCH(unwritten, 1, 64, 0, nullptr, out.p); });
    planted("waits for ever", false, [&] { GG_LAUNCH(divergent, 1, 64, 0, nullptr, out.p); });
    planted("different barriers", false, [&] { GG_LAUNCH(two_barriers, 1, 64, 0, nullptr, out.p); });
    planted("waits for ever at __shfl_xor_sync", false, [&] { GG_LAUNCH(half_a_shuffle, 1, 32, 0, nullptr, out.p); });
    planted("lacks", false, [&] { GG_LAUNCH(half_a_shuffle, 1, 16, 0, nullptr, out.p); });
    planted("reads lane 20", false, [&] { GG_LAUNCH(strange_lane, 1, 32, 0, nullptr, out.p); });
    planted("__trap", false, [&] { GG_LAUNCH(traps, 1, 32, 0, nullptr, out.p); });
    planted("shared memory are more than", false, [&] { GG_LAUNCH(large, 1, 32, 0, nullptr, out.p); });
    planted("cannot be launched", false, [&] { GG_LAUNCH(places, 0, 32, 0, nullptr, out.p); });
    planted("cannot be launched", false, [&] { GG_LAUNCH(places, 1, 1025, 0, nullptr, out.p); });
    planted("cannot be launched", false, [&] { GG_LAUNCH(places, 1, 32, 50000, nullptr, out.p); });
    /* After all of this a right kernel still works. */
    test_barriers();
    CHECK_CLEAN();
    if (!gg_emulation_is_checked()) return;
    planted("out of bounds: reads 4 bytes at 40 of 'in', which has 40", true,
            [&] { GG_LAUNCH(reads_at, 1, 1, 0, nullptr, in.p, 10, out.p); });
    planted("out of bounds: reads 4 bytes at -4 of 'in'", true,
            [&] { GG_LAUNCH(reads_at, 1, 1, 0, nullptr, in.p, -1, out.p); });
    planted("shared memory outside of its arrays", true,
            [&] { GG_LAUNCH((indexes<32>), 1, 32, 0, nullptr, out.p, 40); });
    gg_emulation_expect();
    {
        buffer<int> guarded(10, "guarded");
        GG_LAUNCH(writes_at, 1, 1, 0, nullptr, guarded.p, 11);
        CHECK_INT(gg_emulation_failures(), 1);
    }
    CHECK_INT(gg_emulation_failures(), 2); /* the guard, too */
    gg_emulation_reset();
}

/* What AddressSanitizer and UBSan must end the program for. */
void plant(const std::string &what) {
    buffer<int> in(10, "in"), out(64, "out");
    if (what == "read") GG_LAUNCH(reads_at, 1, 1, 0, nullptr, in.p, 10, out.p);
    if (what == "write") GG_LAUNCH(writes_at, 1, 1, 0, nullptr, out.p, 64);
    if (what == "misaligned") (void)gg_load_pack<4>(reinterpret_cast<const float *>(in.p + 1));
}

} // namespace

int main(int count, char **words) {
    if (count > 1) {
        plant(words[1]);
        return gg_emulation_failures() > 0 ? 7 : 0;
    }
    test_places();
    test_barriers();
    test_warps();
    test_atomics();
    test_numbers();
    test_later();
    CHECK_CLEAN();
    test_planted();
    return CHECK_RESULT;
}
