/* Updates of the optimisers: one pass over arenas, bound by memory, fused with the work of gossip. */
#include <math.h>

#include "cpu/simd/simd.h"

/* `now` plus half of the partner's difference from `sent`, the value sent in exchange. */
GG_INLINE vec update_mixed(bool narrow, vec now, vec sent, const void *received, size_t i) {
    if (received == NULL) return now;
    if (narrow) return now + (load_narrow((const uint16_t *)received + i) - rounded(sent)) * 0.5f;
    return now + (load((const float *)received + i) - sent) * 0.5f;
}

GG_INLINE void update_publish(bool narrow, void *copy, size_t i, vec v) {
    if (copy == NULL) return;
    if (narrow) stream_narrow((uint16_t *)copy + i, narrowed(rounded_words(v)));
    else stream((float *)copy + i, v);
}

GG_INLINE vec rule_if_less(vec a, vec b, vec yes, vec no) {
    const words less = (words)(a < b);
    return (vec)(((words)yes & less) | ((words)no & ~less));
}

GG_INLINE vec rule_root(vec v) { return square_root(v); }

#define GG_RULE_INLINE GG_INLINE
#define GG_RULE_VALUE vec
#define GG_RULE_FACTOR float
#define GG_RULE_NUMBER(x) (x)
#define GG_RULE_SPLAT(x) ((vec){0} + (x))
#include "ops/update_rules.h"

/* rule, receives and narrow are constants in every call, so each combination becomes a loop without branches on
 * them. */
GG_INLINE void update_run(const gg_update_args *args, gg_update_rule rule, bool receives, bool narrow) {
    const size_t n = whole_lanes(args->n);
    const int moments = GG_UPDATE_MOMENTS(rule);
    const float *grad = args->grad;
    float *weight = args->weight, *momentum = args->momentum, *square = args->square;
    void *weight_copy = args->weight_copy, *momentum_copy = args->momentum_copy, *square_copy = args->square_copy;
    const void *weight_after = receives ? args->weight_after : NULL;
    const void *momentum_before = receives ? args->momentum_before : NULL,
               *square_before = receives ? args->square_before : NULL;
    const update_factors factors = update_factors_of(args);
    for (size_t i = 0; i < n; i += FLOATS) {
        const vec w = load(weight + i);
        updated now = {.weight = w};
        if (moments > 0) {
            const vec sent = load(momentum + i);
            now.momentum = update_mixed(narrow, sent, sent, momentum_before, i);
        }
        if (moments > 1) {
            const vec sent = load(square + i);
            now.square = update_mixed(narrow, sent, sent, square_before, i);
        }
        now = update_by_rule(rule, &factors, load(grad + i), now);
        now.weight = update_mixed(narrow, now.weight, w, weight_after, i);
        *(floats *)(weight + i) = now.weight;
        update_publish(narrow, weight_copy, i, now.weight);
        if (moments > 0) {
            *(floats *)(momentum + i) = now.momentum;
            update_publish(narrow, momentum_copy, i, now.momentum);
        }
        if (moments > 1) {
            *(floats *)(square + i) = now.square;
            update_publish(narrow, square_copy, i, now.square);
        }
    }
    fence();
}

/* True if a weight with gradient 0 does not change. */
static bool keeps_where_zero(const gg_update_args *args) {
    return args->rule == GG_UPDATE_PLAIN && args->weight_decay == 0 && args->weight_after == NULL &&
           args->weight_copy == NULL && isfinite(args->grad_scale) && isfinite(args->lr);
}

/* Updates the elements of a line whose gradient is not 0. */
GG_INLINE void update_line(const float *grad, float *weight, float grad_scale, float lr) {
    for (size_t i = 0; i < GG_LANES; i += FLOATS) {
        const vec g = load(grad + i), w = load(weight + i), w_new = w - lr * (grad_scale * g);
        const words changed = (words)(g != 0.0f);
        *(floats *)(weight + i) = (vec)(((words)w_new & changed) | ((words)w & ~changed));
    }
}

GG_INLINE bool any_in_line(const float *p) {
    words any = {0};
    for (size_t i = 0; i < GG_LANES; i += FLOATS) any |= (words)(load(p + i) != 0.0f);
    return any_bit(any);
}

/* A bit for each of up to 64 lines from `line` on: set if the line's gradient may not be 0. */
GG_INLINE uint64_t lines_to_update(const gg_update_args *args, size_t line, size_t lines) {
    uint64_t word = 0;
    if (args->filled.bits != NULL) return gg_lines_word(args->filled, line) & UINT64_MAX >> (64 - lines);
    for (size_t i = 0; i < lines; ++i) word |= (uint64_t)any_in_line(args->grad + (line + i) * GG_LANES) << i;
    return word;
}

/* The sum of packed messages is 0 nearly everywhere, and in cache. Weights there are neither read nor written. First
 * finds the other lines, without unpredictable branches. Then prefetches their weights together. */
static void update_where_not_zero(const gg_update_args *args) {
    const size_t lines = whole_lanes(args->n) / GG_LANES;
    const float grad_scale = args->grad_scale, lr = args->lr;
    for (size_t begin = 0; begin < lines; begin += 64) {
        uint64_t word = lines_to_update(args, begin, lines - begin < 64 ? lines - begin : 64);
        for (; word != 0; word &= word - 1) {
            const size_t at = (begin + (size_t)__builtin_ctzll(word)) * GG_LANES;
            update_line(args->grad + at, args->weight + at, grad_scale, lr);
        }
    }
}

void GG_VARIANT(gg_cpu_update)(const gg_update_args *args) {
    if (keeps_where_zero(args)) {
        update_where_not_zero(args);
        return;
    }
    const bool receives = args->weight_after != NULL || args->momentum_before != NULL || args->square_before != NULL;
    switch ((int)args->rule << 2 | (int)receives << 1 | (args->wire == GG_BFLOAT16)) {
#define CASE(rule, receives, narrow)                                                                                   \
    case (rule) << 2 | (receives) << 1 | (narrow):                                                                     \
        update_run(args, rule, receives, narrow);                                                                      \
        break
#define CASES(name)                                                                                                    \
    CASE(GG_UPDATE_##name, false, false);                                                                              \
    CASE(GG_UPDATE_##name, false, true);                                                                               \
    CASE(GG_UPDATE_##name, true, false);                                                                               \
    CASE(GG_UPDATE_##name, true, true);
        GG_UPDATE_RULES(CASES)
#undef CASES
#undef CASE
    default: break;
    }
}
