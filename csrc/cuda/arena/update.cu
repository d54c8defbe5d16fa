/* Updates of the optimisers: one pass over arenas, fused with the work of gossip. Gives the bits of the CPU's scalar
 * kernels. Exception: denormal or infinite weights that plain updates without decay leave unchanged on a CPU. */
#include "cuda/common.cuh"

namespace {

/* `now` plus half of the partner's difference from `sent`, the value sent in exchange. */
template <class Wire> __device__ __forceinline__ gg_exact update_mixed(gg_exact now, gg_exact sent, float received) {
    const gg_exact said = {gg_rounded_as(static_cast<const Wire *>(nullptr), sent.v)};
    return now + (gg_exact{received} - said) * gg_exact{0.5f};
}

__device__ __forceinline__ gg_exact rule_if_less(gg_exact a, gg_exact b, gg_exact yes, gg_exact no) {
    return a.v < b.v ? yes : no;
}

__device__ __forceinline__ gg_exact rule_root(gg_exact s) { return gg_sqrt(s); }

#define GG_RULE_INLINE __device__ __forceinline__
#define GG_RULE_VALUE gg_exact
#define GG_RULE_FACTOR gg_exact
#define GG_RULE_NUMBER(x) (gg_exact{x})
#define GG_RULE_SPLAT(x) (gg_exact{x})
#include "ops/update_rules.h"

template <gg_update_rule rule, class Wire>
__device__ __forceinline__ updated update_one(const gg_update_args &a, float grad, updated now,
                                              const float *weight_after, const float *momentum_before,
                                              const float *square_before) {
    const gg_exact w = now.weight;
    const update_factors factors = update_factors_of(&a);
    if (momentum_before != nullptr) now.momentum = update_mixed<Wire>(now.momentum, now.momentum, *momentum_before);
    if (square_before != nullptr) now.square = update_mixed<Wire>(now.square, now.square, *square_before);
    now = update_by_rule(rule, &factors, gg_exact{grad}, now);
    if (weight_after != nullptr) now.weight = update_mixed<Wire>(now.weight, w, *weight_after);
    return now;
}

template <class Wire, int N> __device__ __forceinline__ gg_pack<N> update_received(const void *received, int64_t i) {
    if (received == nullptr) return gg_pack<N>{};
    return gg_load_pack<N>(static_cast<const Wire *>(received) + i);
}

template <class Wire, int N> __device__ __forceinline__ void update_publish(void *copy, int64_t i, gg_pack<N> v) {
    if (copy != nullptr) gg_store_pack(static_cast<Wire *>(copy) + i, v);
}

/* A thread's number among those of an update. */
struct update_thread {
    int64_t number, count;
};

/* N elements at a time. */
template <gg_update_rule rule, class Wire, int N>
__device__ __forceinline__ void update_all(const gg_update_args &a, update_thread t) {
    constexpr bool stateful = GG_UPDATE_MOMENTS(rule) > 0, squares = GG_UPDATE_MOMENTS(rule) > 1;
    for (int64_t i = N * t.number; i < (int64_t)a.n; i += N * t.count) {
        const gg_pack<N> grad = gg_load_pack<N>(a.grad + i);
        gg_pack<N> weight = gg_load_pack<N>(a.weight + i), momentum = {}, square = {};
        if (stateful) momentum = gg_load_pack<N>(a.momentum + i);
        if (squares) square = gg_load_pack<N>(a.square + i);
        const gg_pack<N> weight_after = update_received<Wire, N>(a.weight_after, i);
        const gg_pack<N> momentum_before = update_received<Wire, N>(stateful ? a.momentum_before : nullptr, i);
        const gg_pack<N> square_before = update_received<Wire, N>(squares ? a.square_before : nullptr, i);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const updated before = {{weight.at[k]}, {momentum.at[k]}, {square.at[k]}};
            const updated after =
                update_one<rule, Wire>(a, grad.at[k], before, a.weight_after != nullptr ? &weight_after.at[k] : nullptr,
                                       stateful && a.momentum_before != nullptr ? &momentum_before.at[k] : nullptr,
                                       squares && a.square_before != nullptr ? &square_before.at[k] : nullptr);
            weight.at[k] = after.weight.v;
            momentum.at[k] = after.momentum.v;
            square.at[k] = after.square.v;
        }
        gg_store_pack(a.weight + i, weight);
        update_publish<Wire>(a.weight_copy, i, weight);
        if (stateful) {
            gg_store_pack(a.momentum + i, momentum);
            update_publish<Wire>(a.momentum_copy, i, momentum);
        }
        if (squares) {
            gg_store_pack(a.square + i, square);
            update_publish<Wire>(a.square_copy, i, square);
        }
    }
}

/* Updates of one launch, and the first block of each. */
constexpr int MAX_UPDATES = 16;
struct update_list {
    unsigned begin[MAX_UPDATES + 1];
    gg_update_args args[MAX_UPDATES];
};

/* Updates by `rule` or by the plain rule: statistics use the plain one, and may accompany any rule. */
template <gg_update_rule rule, class Wire, int N>
__global__ void __launch_bounds__(GG_BLOCK) update_kernel(const __grid_constant__ update_list list) {
    int i = 0;
    while (blockIdx.x >= list.begin[i + 1]) ++i;
    const gg_update_args &a = list.args[i];
    const unsigned begin = list.begin[i], end = list.begin[i + 1];
    const update_thread t = {(int64_t)(blockIdx.x - begin) * GG_BLOCK + threadIdx.x, (int64_t)(end - begin) * GG_BLOCK};
    if (a.rule == GG_UPDATE_PLAIN) update_all<GG_UPDATE_PLAIN, Wire, N>(a, t);
    else update_all<rule, Wire, N>(a, t);
}

/* True if four elements can be moved at once: checks their number and all pointers. bfloat16 needs half the
 * alignment. */
bool update_by_fours(const gg_update_args *a) {
    if (a->n % 4 != 0) return false;
    const void *const floats[] = {a->grad, a->weight, a->momentum, a->square};
    const void *const wires[] = {a->weight_after, a->momentum_before, a->square_before,
                                 a->weight_copy,  a->momentum_copy,   a->square_copy};
    for (const void *p : floats)
        if (!gg_is_aligned(p, 16)) return false;
    for (const void *p : wires)
        if (!gg_is_aligned(p, a->wire == GG_BFLOAT16 ? 8 : 16)) return false;
    return true;
}

template <gg_update_rule rule, class Wire, int N>
void update_launch(gg_cuda_stream stream, int count, const gg_update_args *args) {
    update_list list = {};
    for (int i = 0; i < count; ++i) {
        list.args[i] = args[i];
        list.begin[i + 1] = list.begin[i] + gg_blocks_for((int64_t)args[i].n, N);
    }
    GG_LAUNCH((update_kernel<rule, Wire, N>), list.begin[count], GG_BLOCK, 0, stream, list);
}

template <gg_update_rule rule> void update_by_wire(gg_cuda_stream stream, int count, const gg_update_args *args) {
    bool by_fours = true;
    for (int i = 0; i < count; ++i) by_fours = by_fours && update_by_fours(&args[i]);
    if (args->wire == GG_BFLOAT16 && by_fours) update_launch<rule, gg_bfloat16, 4>(stream, count, args);
    else if (args->wire == GG_BFLOAT16) update_launch<rule, gg_bfloat16, 1>(stream, count, args);
    else if (by_fours) update_launch<rule, float, 4>(stream, count, args);
    else update_launch<rule, float, 1>(stream, count, args);
}

/* Number of updates, from the first on, that fit in one launch. *rule: the rule of those that are not plain. */
int update_together(int count, const gg_update_args *args, gg_update_rule *rule) {
    int together = 0;
    *rule = GG_UPDATE_PLAIN;
    for (; together < count && together < MAX_UPDATES; ++together) {
        const gg_update_rule own = args[together].rule;
        if (*rule != GG_UPDATE_PLAIN && own != GG_UPDATE_PLAIN && own != *rule) break;
        if (own != GG_UPDATE_PLAIN) *rule = own;
    }
    return together;
}

} // namespace

void gg_cuda_update(gg_cuda_stream stream, int count, const gg_update_args *args) {
    for (int done = 0, now; done < count; done += now) {
        gg_update_rule rule;
        now = update_together(count - done, args + done, &rule);
        switch (rule) {
#define CASE(name)                                                                                                     \
    case GG_UPDATE_##name: update_by_wire<GG_UPDATE_##name>(stream, now, args + done); break;
            GG_UPDATE_RULES(CASE)
#undef CASE
        default: break;
        }
    }
}
