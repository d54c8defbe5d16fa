/* EMBEDDING and POSITION_EMBEDDING. The gradient of a row of the table is the sum over its tokens in their order: the
 * places of the tokens are sorted by token, stably, and each row has an owner that finds its own among them. */
#include "cuda/kernels/nn.cuh"

/* ------------------------------------------------------------------------------------------ tokens */

template <int V> static __global__ void look_up(gg_rows r, gg_cuda_embedding_args a) {
    for (int64_t row = row_first(r.shift); row < r.rows; row += row_step(r.shift)) {
        const int64_t token = a.token[row];
        const bool known = token >= 0 && token < a.numbers;
        if (!known && a.bad != NULL && column_first(r.shift) == 0) atomicMin(a.bad, (uint32_t)row);
        for (int64_t i = column_first(r.shift); i < r.length; i += (int64_t)1 << r.shift) {
            gg_pack<V> v = {};
            if (known) v = gg_load_pack<V>(a.table + (token * r.length + i) * V);
            gg_store_pack(a.output + (row * r.length + i) * V, v);
        }
    }
}

/* Bits of a token that a turn of the sort looks at. */
enum { DIGIT_BITS = 4, DIGITS = 1 << DIGIT_BITS };

/* Those that are not in the table come behind all others. */
static __device__ inline uint32_t key_of(const gg_cuda_embedding_args &a, uint32_t place) {
    const int64_t token = a.token[place];
    return token >= 0 && token < a.numbers ? (uint32_t)token : (uint32_t)a.numbers;
}

/* One block sorts the places 0..tokens-1 by their keys; each thread moves a run of them in its order. Turn i goes from
 * order[i%2] to order[(i + 1)%2]; the first one from the places themselves. */
static __global__ void sort_places(gg_cuda_embedding_args a, int turns, uint32_t *even, uint32_t *odd) {
    GG_SHARED(uint32_t, count, [DIGITS * GG_BLOCK]);
    GG_SHARED(uint32_t, total, [GG_BLOCK]);
    const int thread = (int)threadIdx.x;
    const int64_t run = (a.tokens + GG_BLOCK - 1) / GG_BLOCK, begin = run * thread;
    const int64_t end = begin + run < a.tokens ? begin + run : a.tokens;
    for (int turn = 0; turn < turns; ++turn) {
        const uint32_t *from = turn % 2 == 0 ? even : odd;
        uint32_t *to = turn % 2 == 0 ? odd : even;
        const int shift = turn * DIGIT_BITS;
        for (int digit = 0; digit < DIGITS; ++digit) count[digit * GG_BLOCK + thread] = 0;
        for (int64_t i = begin; i < end; ++i) {
            const uint32_t place = turn == 0 ? (uint32_t)i : from[i];
            ++count[(key_of(a, place) >> shift) % DIGITS * GG_BLOCK + thread];
        }
        __syncthreads();
        /* Exclusive sums over digits and, of one digit, threads: of DIGITS entries a thread, then of the totals. */
        uint32_t sum = 0;
        for (int i = 0; i < DIGITS; ++i) sum += count[thread * DIGITS + i];
        total[thread] = sum;
        __syncthreads();
        for (int distance = 1; distance < GG_BLOCK; distance *= 2) {
            const uint32_t before = thread >= distance ? total[thread - distance] : 0;
            __syncthreads();
            total[thread] += before;
            __syncthreads();
        }
        uint32_t at = total[thread] - sum;
        for (int i = 0; i < DIGITS; ++i) {
            const uint32_t own = count[thread * DIGITS + i];
            count[thread * DIGITS + i] = at;
            at += own;
        }
        __syncthreads();
        for (int64_t i = begin; i < end; ++i) {
            const uint32_t place = turn == 0 ? (uint32_t)i : from[i];
            to[count[(key_of(a, place) >> shift) % DIGITS * GG_BLOCK + thread]++] = place;
        }
        __syncthreads();
    }
}

/* How many of the sorted places have keys less than `key`. */
static __device__ inline int64_t places_below(const gg_cuda_embedding_args &a, const uint32_t *order, int64_t key) {
    int64_t low = 0, high = a.tokens;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if ((int64_t)key_of(a, order[middle]) < key) low = middle + 1;
        else high = middle;
    }
    return low;
}

template <int V> static __global__ void sum_rows(gg_rows r, gg_cuda_embedding_args a, const uint32_t *order) {
    for (int64_t row = row_first(r.shift); row < r.rows; row += row_step(r.shift)) {
        const int64_t begin = places_below(a, order, row), end = places_below(a, order, row + 1);
        for (int64_t i = column_first(r.shift); i < r.length; i += (int64_t)1 << r.shift) {
            gg_pack<V> sum = {};
            for (int64_t j = begin; j < end; ++j) {
                const gg_pack<V> d = gg_load_pack<V>(a.grad_output + ((int64_t)order[j] * r.length + i) * V);
                for (int k = 0; k < V; ++k) sum.at[k] += d.at[k];
            }
            gg_store_pack(a.grad_table + (row * r.length + i) * V, sum);
        }
    }
}

size_t gg_cuda_embedding_scratch(int64_t tokens) { return (size_t)(2 * ceil_div(tokens, 4) * 4) * sizeof(uint32_t); }

void gg_cuda_embedding(gg_cuda_stream stream, const gg_cuda_embedding_args *args) {
    const bool wide = args->features % 4 == 0 && gg_is_aligned(args->table, 16) && gg_is_aligned(args->output, 16);
    const gg_rows r = rows_of(args->tokens, args->features, 1, wide ? 4 : 1);
    if (wide) GG_LAUNCH((look_up<4>), dim3(blocks_of(&r)), dim3(GG_BLOCK), 0, stream, r, *args);
    else GG_LAUNCH((look_up<1>), dim3(blocks_of(&r)), dim3(GG_BLOCK), 0, stream, r, *args);
}

void gg_cuda_embedding_backward(gg_cuda_stream stream, const gg_cuda_embedding_args *args) {
    const bool wide =
        args->features % 4 == 0 && gg_is_aligned(args->grad_table, 16) && gg_is_aligned(args->grad_output, 16);
    const gg_rows r = rows_of(args->numbers, args->features, 1, wide ? 4 : 1);
    uint32_t *even = (uint32_t *)args->scratch, *odd = even + ceil_div(args->tokens, 4) * 4;
    int turns = 1;
    while (args->numbers >> turns * DIGIT_BITS != 0) ++turns;
    GG_LAUNCH(sort_places, dim3(1), dim3(GG_BLOCK), 0, stream, *args, turns, even, odd);
    const uint32_t *order = turns % 2 == 0 ? even : odd;
    if (wide) GG_LAUNCH((sum_rows<4>), dim3(blocks_of(&r)), dim3(GG_BLOCK), 0, stream, r, *args, order);
    else GG_LAUNCH((sum_rows<1>), dim3(blocks_of(&r)), dim3(GG_BLOCK), 0, stream, r, *args, order);
}

/* ------------------------------------------------------------------------------------------ positions */

static __global__ void add_positions(gg_cuda_position_embedding_args a) {
    const int64_t sample = a.positions * a.features;
    for (int64_t i = gg_thread_number(); i < a.samples * sample; i += gg_thread_count())
        a.output[i] = a.input[i] + a.table[i % sample];
}

static __global__ void sum_positions(gg_cuda_position_embedding_args a) {
    const int64_t sample = a.positions * a.features;
    for (int64_t i = gg_thread_number(); i < a.numbers * a.features; i += gg_thread_count()) {
        float sum = i < sample ? a.grad_output[i] : 0.0f;
        for (int64_t n = 1; i < sample && n < a.samples; ++n) sum += a.grad_output[n * sample + i];
        a.grad_table[i] = sum;
    }
}

void gg_cuda_position_embedding(gg_cuda_stream stream, const gg_cuda_position_embedding_args *args) {
    const int64_t values = args->samples * args->positions * args->features;
    GG_LAUNCH(add_positions, dim3(blocks_for(values, GG_BLOCK)), dim3(GG_BLOCK), 0, stream, *args);
}

void gg_cuda_position_embedding_backward(gg_cuda_stream stream, const gg_cuda_position_embedding_args *args) {
    const int64_t values = args->numbers * args->features;
    GG_LAUNCH(sum_positions, dim3(blocks_for(values, GG_BLOCK)), dim3(GG_BLOCK), 0, stream, *args);
}
