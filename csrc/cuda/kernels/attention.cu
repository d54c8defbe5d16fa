/* The rows of weights between the two products of ATTENTION: softmax over the keys that a query sees, dropout, and the
 * errors of both. */
#include "cuda/kernels/nn.cuh"

/* One row of weights. */
struct attention_row {
    int64_t number; /* among the rows of all heads of all samples */
    int64_t at;     /* of its first score */
    int64_t keys;   /* the first ones, which its query sees */
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

/* Four keys share a block of words: where there is dropout a thread has four of them side by side, else each a GROUP
 * apart. */
enum { KEYS = 4 };

static __device__ inline gg_words words_of(const gg_cuda_attention_args &a, const gg_drawing &draw,
                                           const attention_row &r, int64_t key) {
    return random_block(draw, (uint32_t)(r.number * ((a.positions + KEYS - 1) / KEYS) + key / KEYS));
}

static __device__ inline float weight_of(const gg_cuda_attention_args &a, float score, float top) {
    return expf((score - top) * a.scale);
}

template <int GROUP, bool DROPS> static __global__ void attention_forward(gg_cuda_attention_args a, gg_drawing draw) {
    constexpr int EACH = DROPS ? KEYS : 1;
    const int place = group_place<GROUP>();
    for (int64_t row = group_first<GROUP>(); row < a.count * a.queries; row += group_step<GROUP>()) {
        const attention_row r = row_of(a, row, place);
        float *score = a.scores + r.at, top = -INFINITY;
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
                score[first + k] = DROPS ? dropped(draw, words.word[k], weight) : weight;
            }
        }
    }
}

template <int GROUP, bool DROPS> static __global__ void attention_backward(gg_cuda_attention_args a, gg_drawing draw) {
    constexpr int EACH = DROPS ? KEYS : 1;
    const int place = group_place<GROUP>();
    for (int64_t row = group_first<GROUP>(); row < a.count * a.queries; row += group_step<GROUP>()) {
        const attention_row r = row_of(a, row, place);
        float *score = a.scores + r.at, *error = a.error + r.at;
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
                score[j] = met;
                error[j] = d;
            }
        }
    }
}

/* Rows of at most so many keys are of a warp. */
enum { SHORT_ROW = 512 };

void gg_cuda_attention(gg_cuda_stream stream, const gg_cuda_attention_args *args) {
    const gg_drawing draw = drawing_of(&args->draw);
    const bool drops = args->draw.probability > 0, narrow = args->positions <= SHORT_ROW;
    const dim3 block(GG_BLOCK), blocks(blocks_for(args->count * args->queries, narrow ? GG_BLOCK / WARP : 1));
    if (narrow && drops) GG_LAUNCH((attention_forward<WARP, true>), blocks, block, 0, stream, *args, draw);
    else if (narrow) GG_LAUNCH((attention_forward<WARP, false>), blocks, block, 0, stream, *args, draw);
    else if (drops) GG_LAUNCH((attention_forward<GG_BLOCK, true>), blocks, block, 0, stream, *args, draw);
    else GG_LAUNCH((attention_forward<GG_BLOCK, false>), blocks, block, 0, stream, *args, draw);
}

void gg_cuda_attention_backward(gg_cuda_stream stream, const gg_cuda_attention_args *args) {
    const gg_drawing draw = drawing_of(&args->draw);
    const bool drops = args->draw.probability > 0, narrow = args->positions <= SHORT_ROW;
    const dim3 block(GG_BLOCK), blocks(blocks_for(args->count * args->queries, narrow ? GG_BLOCK / WARP : 1));
    if (narrow && drops) GG_LAUNCH((attention_backward<WARP, true>), blocks, block, 0, stream, *args, draw);
    else if (narrow) GG_LAUNCH((attention_backward<WARP, false>), blocks, block, 0, stream, *args, draw);
    else if (drops) GG_LAUNCH((attention_backward<GG_BLOCK, true>), blocks, block, 0, stream, *args, draw);
    else GG_LAUNCH((attention_backward<GG_BLOCK, false>), blocks, block, 0, stream, *args, draw);
}
