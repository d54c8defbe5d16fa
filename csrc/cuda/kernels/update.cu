/* The optimisers' updates: one pass over arenas, fused with what gossip needs; the bits of the CPU's scalar kernels,
 * but for weights that are denormal or infinite where plain updates without decay leave them alone on a CPU. */
#include "cuda/kernels/common.cuh"

namespace {

/* `now` and half of what a partner is ahead of `sent`, the value that it was sent for. */
template <class Wire> __device__ __forceinline__ gg_exact update_mixed(gg_exact now, gg_exact sent, float received) {
    const gg_exact said = {gg_rounded_as(static_cast<const Wire *>(nullptr), sent.v)};
    return now + (gg_exact{received} - said) * gg_exact{0.5f};
}

/* What an element has and what becomes of it. */
struct updated {
    gg_exact weight, momentum, square;
};

template <gg_update_rule rule, class Wire>
__device__ __forceinline__ updated update_one(const gg_update_args &a, float grad, updated before,
                                              const float *weight_after, const float *momentum_before,
                                              const float *square_before) {
    const gg_exact w = before.weight, lr = {a.lr}, mu = {a.mu};
    const gg_exact d = gg_exact{a.grad_scale} * gg_exact{grad} + gg_exact{a.weight_decay} * w;
    updated after = before;
    gg_exact m = before.momentum;
    if (momentum_before != nullptr) m = update_mixed<Wire>(m, m, *momentum_before);
    if (rule == GG_UPDATE_PLAIN) {
        after.weight = w - lr * d;
    } else if (rule == GG_UPDATE_ADAM) {
        gg_exact s = before.square;
        if (square_before != nullptr) s = update_mixed<Wire>(s, s, *square_before);
        s = gg_exact{a.beta2} * s + gg_exact{a.square_share} * (d * d);
        if (s.v < 0.0f) s.v = 0.0f; /* NaN stays NaN */
        m = mu * m + gg_exact{a.d_share} * d;
        const gg_exact root = gg_sqrt(s) * gg_exact{a.root_scale} + gg_exact{a.eps};
        after.weight = gg_exact{a.weight_factor} * w - lr * m / root;
        after.square = s;
        after.momentum = m;
    } else {
        m = mu * m + d;
        after.weight = w - lr * (rule == GG_UPDATE_NESTEROV ? d + mu * m : m);
        after.momentum = m;
    }
    if (weight_after != nullptr) after.weight = update_mixed<Wire>(after.weight, w, *weight_after);
    return after;
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
    const bool stateful = rule != GG_UPDATE_PLAIN, squares = rule == GG_UPDATE_ADAM;
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

/* Updates of one launch, and the block that each begins at. */
constexpr int MOST_UPDATES = 16;
struct update_list {
    unsigned begin[MOST_UPDATES + 1];
    gg_update_args args[MOST_UPDATES];
};

/* Of one rule, and of plain ones, which statistics have beside any. */
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

/* Whether four elements can be moved at once, by their number and all pointers; those of bfloat16 need half of it. */
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

/* How many from the first one on are one launch, and the rule of those that are not plain. */
int update_together(int count, const gg_update_args *args, gg_update_rule *rule) {
    int together = 0;
    *rule = GG_UPDATE_PLAIN;
    for (; together < count && together < MOST_UPDATES; ++together) {
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
        case GG_UPDATE_PLAIN: update_by_wire<GG_UPDATE_PLAIN>(stream, now, args + done); break;
        case GG_UPDATE_MOMENTUM: update_by_wire<GG_UPDATE_MOMENTUM>(stream, now, args + done); break;
        case GG_UPDATE_NESTEROV: update_by_wire<GG_UPDATE_NESTEROV>(stream, now, args + done); break;
        case GG_UPDATE_ADAM: update_by_wire<GG_UPDATE_ADAM>(stream, now, args + done); break;
        }
    }
}
