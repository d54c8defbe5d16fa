/* Attention weights of 16 queries side by side: softmax, softmax from saved values, and the error. A lane is a query,
 * so no sum runs over lanes. */
#include "cpu/simd/math.h"
#include "cpu/simd/simd.h"

/* Number of keys seen by at least one query. */
static inline int64_t seen_by_any(int64_t keys, int64_t all) {
    return keys < all + GG_LANES - 1 ? keys : all + GG_LANES - 1;
}

/* Scores with key k; a value below any score for queries that do not see it. */
static inline lanes_f scores_with(const float *scores, int64_t step, int64_t k, int64_t all) {
    const lanes_f v = lanes_load_any(scores + k * step);
    return k < all ? v : lanes_first_or((int)(k - all) + 1, lanes_set(-__builtin_inff()), v);
}

/* Max score of each query. Scores of unseen keys become a value below any score. */
static inline lanes_f largest_scores(int64_t keys, int64_t all, int64_t step, float *scores) {
    const int64_t whole = keys < all ? keys : all;
    const lanes_f first = lanes_load_any(scores); /* every query sees the first key */
    lanes_f best[4] = {first, first, first, first};
    int64_t k = 0;
    for (; k + 4 <= whole; k += 4)
        for (int i = 0; i < 4; ++i) best[i] = lanes_max(best[i], lanes_load_any(scores + (k + i) * step));
    for (; k < keys; ++k) {
        const lanes_f v = scores_with(scores, step, k, all);
        best[0] = lanes_max(best[0], v);
        lanes_store_any(scores + k * step, v);
    }
    return lanes_max(lanes_max(best[0], best[1]), lanes_max(best[2], best[3]));
}

/* Keys whose sums are float32: a longer chain would lose digits. */
#define PIECE 128

static void attention_softmax(int64_t keys, int64_t all, int64_t step, float scale, float *scores,
                              float saved[2 * GG_LANES]) {
    const int64_t seen = seen_by_any(keys, all);
    float top[GG_LANES] __attribute__((aligned(64))), share[GG_LANES] __attribute__((aligned(64)));
    lanes_store(top, largest_scores(seen, all, step, scores));
    lanes_f total = lanes_set(0);
    for (int64_t at = 0; at < seen; at += PIECE) {
        const int64_t end = seen - at < PIECE ? seen : at + PIECE;
        lanes_f sum = lanes_set(0);
        for (int64_t k = at; k < end; ++k) {
            float *row = scores + k * step;
            GG_INDEPENDENT
            for (int l = 0; l < GG_LANES; ++l) row[l] = exp_of_negative((row[l] - top[l]) * scale);
            sum = lanes_add(sum, lanes_load_any(row));
        }
        total = lanes_add(total, sum);
    }
    lanes_store(share, total);
    for (int l = 0; l < GG_LANES; ++l) share[l] = 1.0f / share[l];
    const lanes_f factor = lanes_load(share);
    for (int64_t k = 0; k < seen; ++k)
        lanes_store_any(scores + k * step, lanes_multiply(lanes_load_any(scores + k * step), factor));
    for (int64_t k = seen; k < keys; ++k) lanes_store_any(scores + k * step, lanes_set(0));
    memcpy(saved, top, sizeof top);
    memcpy(saved + GG_LANES, share, sizeof share);
}

static void attention_again(int64_t keys, int64_t all, int64_t step, float scale, const float saved[2 * GG_LANES],
                            float *scores) {
    const int64_t seen = seen_by_any(keys, all);
    float top[GG_LANES] __attribute__((aligned(64))), share[GG_LANES] __attribute__((aligned(64)));
    memcpy(top, saved, sizeof top);
    memcpy(share, saved + GG_LANES, sizeof share);
    for (int64_t k = all; k < seen; ++k) lanes_store_any(scores + k * step, scores_with(scores, step, k, all));
    for (int64_t k = 0; k < seen; ++k) {
        float *row = scores + k * step;
        GG_INDEPENDENT
        for (int l = 0; l < GG_LANES; ++l) row[l] = exp_of_negative((row[l] - top[l]) * scale) * share[l];
    }
    for (int64_t k = seen; k < keys; ++k) lanes_store_any(scores + k * step, lanes_set(0));
}

static void attention_error(int64_t keys, int64_t step, float scale, const float *p, float *d) {
    lanes_f dot = lanes_set(0);
    for (int64_t at = 0; at < keys; at += PIECE) {
        const int64_t end = keys - at < PIECE ? keys : at + PIECE;
        lanes_f sum = lanes_set(0);
        for (int64_t k = at; k < end; ++k)
            sum = lanes_multiply_add(lanes_load_any(p + k * step), lanes_load_any(d + k * step), sum);
        dot = lanes_add(dot, sum);
    }
    const lanes_f factor = lanes_set(scale);
    for (int64_t k = 0; k < keys; ++k) {
        const lanes_f off = lanes_subtract(lanes_load_any(d + k * step), dot);
        const lanes_f share = lanes_multiply(lanes_load_any(p + k * step), factor);
        lanes_store_any(d + k * step, lanes_multiply(share, off));
    }
}

static void attention_drop(int64_t keys, int64_t step, const uint8_t *mask, int64_t mask_row, float scale,
                           const float *x, float *out) {
    for (int64_t k = 0; k < keys; ++k)
        for (int l = 0; l < GG_LANES; ++l)
            out[k * step + l] = mask[l * mask_row + k] != 0 ? scale * x[k * step + l] : 0.0f;
}

const gg_cpu_attention GG_VARIANT(gg_cpu_attention) = {
    .softmax = attention_softmax, .again = attention_again, .error = attention_error, .drop = attention_drop};
