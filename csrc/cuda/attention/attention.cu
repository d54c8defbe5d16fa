/* Rows of weights between the two products of ATTENTION: softmax over the visible keys, dropout, and the errors of
 * both. Also collects heads. */
#include "cuda/nn.cuh"

/* One row of weights. */
struct attention_row {
    int64_t number; /* among the rows of all heads of all samples */
    int64_t at;     /* of its first score */
    int64_t keys;   /* the first keys, seen by its query */
};

static __device__ inline attention_row row_of(const gg_cuda_attention_args &a, int64_t row, int place) {
    const int64_t head = a.first_head + row / a.queries, query = a.first + row % a.queries;
    attention_row r = {head * a.positions + query, row / a.queries * a.matrix + row % a.queries * a.row, a.positions};
    if (a.lengths != NULL) {
        const int64_t sample = head / a.heads, length = a.lengths[sample];
        r.keys = length < 1 ? 1 : length < a.positions ? length : a.positions;
        if (r.keys != length && place == 0 && a.bad != NULL) atomicMin(a.bad, (uint32_t)sample);
    }
    if (a.causal && query + 1 < r.keys) r.keys = query + 1;
    return r;
}

/* Four keys share a block of words. With dropout a thread has four adjacent keys, otherwise keys a GROUP apart. */
enum { KEYS = 4 };

static __device__ inline gg_words words_of(const gg_cuda_attention_args &a, const gg_drawing &draw,
                                           const attention_row &r, int64_t key) {
    return random_block(draw, (uint32_t)(r.number * ((a.positions + KEYS - 1) / KEYS) + key / KEYS));
}

static __device__ inline float weight_of(const gg_cuda_attention_args &a, float score, float top) {
    return expf((score - top) * a.scale);
}

template <typename T, int GROUP, bool DROPS>
static __global__ void attention_forward(gg_cuda_attention_args a, gg_drawing draw) {
    constexpr int EACH = DROPS ? KEYS : 1;
    const int place = group_place<GROUP>();
    for (int64_t row = group_first<GROUP>(); row < a.count * a.queries; row += group_step<GROUP>()) {
        const attention_row r = row_of(a, row, place);
        const float *score = a.scores + r.at;
        T *out = static_cast<T *>(a.weights) + r.at;
        float top = -INFINITY;
        double sum = 0;
        for (int64_t first = (int64_t)place * EACH; first < r.keys; first += GROUP * EACH)
            for (int64_t j = first; j < first + EACH && j < r.keys; ++j) top = score[j] > top ? score[j] : top;
        top = group_max<GROUP>(top);
        for (int64_t first = (int64_t)place * EACH; first < r.keys; first += GROUP * EACH)
            for (int64_t j = first; j < first + EACH && j < r.keys; ++j) sum += (double)weight_of(a, score[j], top);
        const float share = 1.0f / (float)group_sum<GROUP>(sum);
        if (place == 0 && a.saved != NULL) {
            a.saved[2 * r.number] = top;
            a.saved[2 * r.number + 1] = share;
        }
        for (int64_t first = (int64_t)place * EACH; first < a.positions; first += GROUP * EACH) {
            gg_words words = {};
            if (DROPS) words = words_of(a, draw, r, first);
            for (int k = 0; k < EACH && first + k < a.positions; ++k) {
                float weight = 0;
                if (first + k < r.keys) weight = weight_of(a, score[first + k], top) * share;
                gg_store(out + first + k, DROPS ? dropped(draw, words.word[k], weight) : weight);
            }
        }
    }
}

template <typename T, int GROUP, bool DROPS>
static __global__ void attention_backward(gg_cuda_attention_args a, gg_drawing draw) {
    constexpr int EACH = DROPS ? KEYS : 1;
    const int place = group_place<GROUP>();
    for (int64_t row = group_first<GROUP>(); row < a.count * a.queries; row += group_step<GROUP>()) {
        const attention_row r = row_of(a, row, place);
        const float *score = a.scores + r.at, *error = a.error + r.at;
        T *out = static_cast<T *>(a.weights) + r.at, *score_error = static_cast<T *>(a.score_error) + r.at;
        const float top = a.saved[2 * r.number], share = a.saved[2 * r.number + 1];
        double sum = 0;
        for (int64_t first = (int64_t)place * EACH; first < r.keys; first += GROUP * EACH) {
            gg_words words = {};
            if (DROPS) words = words_of(a, draw, r, first);
            for (int k = 0; k < EACH && first + k < r.keys; ++k) {
                const float d = DROPS ? dropped(draw, words.word[k], error[first + k]) : error[first + k];
                sum += (double)(weight_of(a, score[first + k], top) * share) * (double)d;
            }
        }
        const float dot = (float)group_sum<GROUP>(sum);
        for (int64_t first = (int64_t)place * EACH; first < a.positions; first += GROUP * EACH) {
            gg_words words = {};
            if (DROPS) words = words_of(a, draw, r, first);
            for (int k = 0; k < EACH && first + k < a.positions; ++k) {
                const int64_t j = first + k;
                float met = 0, d = 0;
                if (j < r.keys) {
                    const float weight = weight_of(a, score[j], top) * share;
                    met = DROPS ? dropped(draw, words.word[k], weight) : weight;
                    d = DROPS ? dropped(draw, words.word[k], error[j]) : error[j];
                    d = weight * (d - dot) * a.scale;
                }
                gg_store(out + j, met);
                gg_store(score_error + j, d);
            }
        }
    }
}

/* Max keys of a row that one warp computes. */
enum { SHORT_ROW = 512 };

template <typename T, int GROUP, bool DROPS>
static void launch_rows(gg_cuda_stream stream, bool backward, const gg_cuda_attention_args *args) {
    const gg_drawing draw = drawing_of(&args->draw);
    const dim3 block(GG_BLOCK), blocks(blocks_for(args->count * args->queries, GG_BLOCK / GROUP));
    if (backward) GG_LAUNCH((attention_backward<T, GROUP, DROPS>), blocks, block, 0, stream, *args, draw);
    else GG_LAUNCH((attention_forward<T, GROUP, DROPS>), blocks, block, 0, stream, *args, draw);
}

template <typename T> static void run_rows(gg_cuda_stream stream, bool backward, const gg_cuda_attention_args *args) {
    const bool drops = args->draw.probability > 0, narrow = args->positions <= SHORT_ROW;
    if (narrow && drops) launch_rows<T, WARP, true>(stream, backward, args);
    else if (narrow) launch_rows<T, WARP, false>(stream, backward, args);
    else if (drops) launch_rows<T, GG_BLOCK, true>(stream, backward, args);
    else launch_rows<T, GG_BLOCK, false>(stream, backward, args);
}

void gg_cuda_attention(gg_cuda_stream stream, const gg_cuda_attention_args *args) {
    if (args->dtype == GG_BFLOAT16) run_rows<gg_bfloat16>(stream, false, args);
    else run_rows<float>(stream, false, args);
}

void gg_cuda_attention_backward(gg_cuda_stream stream, const gg_cuda_attention_args *args) {
    if (args->dtype == GG_BFLOAT16) run_rows<gg_bfloat16>(stream, true, args);
    else run_rows<float>(stream, true, args);
}

/* ------------------------------------------------------------------------------------------ heads
 *
 * A row is one head of one position, in the order of the packed side. */

template <typename T, int V> static __global__ void move_heads(gg_rows r, gg_cuda_heads_args a) {
    const T *from = static_cast<const T *>(a.from);
    T *to = static_cast<T *>(a.to);
    for (int64_t row = row_first(r.shift); row < r.rows; row += row_step(r.shift)) {
        const int64_t head = row % a.heads, part = row / a.heads % a.parts, place = row / a.heads / a.parts;
        const int64_t position = place % a.positions, sample = place / a.positions;
        const int64_t apart = ((part * a.samples + sample) * a.heads + head) * a.positions + position;
        const int64_t from_row = a.split ? row : apart, to_row = a.split ? apart : row;
        for (int64_t i = column_first(r.shift); i < r.length; i += (int64_t)1 << r.shift)
            gg_store_pack(to + (to_row * r.length + i) * V, gg_load_pack<V>(from + (from_row * r.length + i) * V));
    }
}

template <typename T> static void run_heads(gg_cuda_stream stream, const gg_cuda_heads_args *args) {
    const bool wide =
        args->size % 4 == 0 && gg_is_aligned(args->from, 4 * sizeof(T)) && gg_is_aligned(args->to, 4 * sizeof(T));
    const gg_rows r = rows_of(args->samples * args->positions * args->parts * args->heads, args->size, 1, wide ? 4 : 1);
    if (wide) GG_LAUNCH((move_heads<T, 4>), dim3(blocks_of(&r)), dim3(GG_BLOCK), 0, stream, r, *args);
    else GG_LAUNCH((move_heads<T, 1>), dim3(blocks_of(&r)), dim3(GG_BLOCK), 0, stream, r, *args);
}

void gg_cuda_heads(gg_cuda_stream stream, const gg_cuda_heads_args *args) {
    if (args->dtype == GG_BFLOAT16) run_heads<gg_bfloat16>(stream, args);
    else run_heads<float>(stream, args);
}
