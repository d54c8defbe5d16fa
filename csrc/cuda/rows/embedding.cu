/* EMBEDDING and POSITION_EMBEDDING. Gradient of the table: the tokens' places are sorted by token, stably. Pieces of
 * equal length of that order are summed in order. If a token's places span several pieces, their sums are added in the
 * order of the pieces. No sum depends on timing. */
#include "cuda/nn.cuh"

/* ------------------------------------------------------------------------------------------ tokens */

template <typename T, int V> static __global__ void look_up(gg_rows r, gg_cuda_embedding_args a) {
    T *output = static_cast<T *>(a.output);
    for (int64_t row = row_first(r.shift); row < r.rows; row += row_step(r.shift)) {
        const int64_t token = a.token[row];
        const bool known = token >= 0 && token < a.numbers;
        if (!known && a.bad != NULL && column_first(r.shift) == 0) atomicMin(a.bad, (uint32_t)row);
        for (int64_t i = column_first(r.shift); i < r.length; i += (int64_t)1 << r.shift) {
            gg_pack<V> v = {};
            if (known) v = gg_load_pack<V>(a.table + (token * r.length + i) * V);
            gg_store_pack(output + (row * r.length + i) * V, v);
        }
    }
}

/* ------------------------------------------------------------------------------------------ order
 *
 * Each turn of the sort takes DIGIT_BITS of the tokens. A block has a tile of places, and each thread a run of the
 * tile. One kernel counts the digits of each tile. The next kernel finds from all counts where its own digits begin. */
enum { DIGIT_BITS = 4, DIGITS = 1 << DIGIT_BITS, LANES = GG_BLOCK / DIGITS };
#if defined(GG_CUDA_MAX_BLOCKS) /* tests also use small tiles */
enum { RUN = 2 };
#else
enum { RUN = 8 };
#endif
enum { TILE = GG_BLOCK * RUN };

/* Tokens outside of the table are sorted to the end. */
static __device__ inline uint32_t key_of(const gg_cuda_embedding_args &a, uint32_t place) {
    const int64_t token = a.token[place];
    return token >= 0 && token < a.numbers ? (uint32_t)token : (uint32_t)a.numbers;
}

/* A turn, from one order to the next; NULL means the order of the places. count: digits of each tile; all tiles of a
 * digit are consecutive. */
struct sort_turn {
    int shift;
    int64_t tiles;
    const uint32_t *from;
    uint32_t *to, *count;
};

static __device__ inline uint32_t place_at(const sort_turn &t, int64_t i) {
    return t.from == NULL ? (uint32_t)i : t.from[i];
}

static __device__ inline uint32_t digit_at(const gg_cuda_embedding_args &a, const sort_turn &t, int64_t i) {
    return (key_of(a, place_at(t, i)) >> t.shift) % DIGITS;
}

static __global__ void count_digits(gg_cuda_embedding_args a, sort_turn t) {
    GG_SHARED(uint32_t, count, [DIGITS]);
    for (int64_t tile = blockIdx.x; tile < t.tiles; tile += gridDim.x) {
        if (threadIdx.x < DIGITS) count[threadIdx.x] = 0;
        __syncthreads();
        for (int64_t i = tile * TILE + threadIdx.x; i < (tile + 1) * TILE && i < a.tokens; i += GG_BLOCK)
            atomicAdd(&count[digit_at(a, t, i)], 1u);
        __syncthreads();
        if (threadIdx.x < DIGITS) t.count[threadIdx.x * t.tiles + tile] = count[threadIdx.x];
        __syncthreads();
    }
}

static __global__ void scatter_places(gg_cuda_embedding_args a, sort_turn t) {
    GG_SHARED(uint32_t, count, [DIGITS * GG_BLOCK]);
    GG_SHARED(uint32_t, total, [GG_BLOCK]);
    GG_SHARED(uint32_t, before, [GG_BLOCK]);
    GG_SHARED(uint32_t, base, [DIGITS]);
    const int thread = (int)threadIdx.x, own_digit = thread / LANES, lane = thread % LANES;
    for (int64_t tile = blockIdx.x; tile < t.tiles; tile += gridDim.x) {
        const int64_t begin = tile * TILE + thread * RUN;
        const int64_t end = begin + RUN < a.tokens ? begin + RUN : a.tokens;
        /* Places of each digit in all tiles, and in earlier tiles; several lanes for each. */
        uint32_t all = 0, earlier = 0;
        for (int64_t i = lane; i < t.tiles; i += LANES) {
            const uint32_t of_tile = t.count[own_digit * t.tiles + i];
            all += of_tile;
            earlier += i < tile ? of_tile : 0;
        }
        total[thread] = all;
        before[thread] = earlier;
        for (int digit = 0; digit < DIGITS; ++digit) count[digit * GG_BLOCK + thread] = 0;
        for (int64_t i = begin; i < end; ++i) ++count[digit_at(a, t, i) * GG_BLOCK + thread];
        __syncthreads();
        if (thread < DIGITS) {
            uint32_t at = 0;
            for (int i = 0; i < thread * LANES; ++i) at += total[i];
            for (int i = thread * LANES; i < (thread + 1) * LANES; ++i) at += before[i];
            base[thread] = at;
        }
        __syncthreads();
        /* Exclusive sums over digits and, within a digit, threads: of DIGITS entries a thread, then of the totals. */
        uint32_t sum = 0;
        for (int i = 0; i < DIGITS; ++i) sum += count[thread * DIGITS + i];
        total[thread] = sum;
        __syncthreads();
        for (int distance = 1; distance < GG_BLOCK; distance *= 2) {
            const uint32_t more = thread >= distance ? total[thread - distance] : 0;
            __syncthreads();
            total[thread] += more;
            __syncthreads();
        }
        uint32_t at = total[thread] - sum;
        for (int i = 0; i < DIGITS; ++i) {
            const uint32_t own = count[thread * DIGITS + i];
            count[thread * DIGITS + i] = at;
            at += own;
        }
        __syncthreads();
        /* Begin of this tile's places of the digit in the whole order, minus their begin in the tile's order. */
        if (thread < DIGITS) base[thread] -= count[thread * GG_BLOCK];
        __syncthreads();
        for (int64_t i = begin; i < end; ++i) {
            const uint32_t digit = digit_at(a, t, i);
            t.to[base[digit] + count[digit * GG_BLOCK + thread]++] = place_at(t, i);
        }
        __syncthreads();
    }
}

/* ------------------------------------------------------------------------------------------ sums */

/* Places of a piece, and the number loaded at once. */
enum { PIECE = 32, AT_ONCE = 4 };

static __device__ inline uint32_t sorted_key(const gg_cuda_embedding_args &a, const uint32_t *order, int64_t i) {
    return key_of(a, order[i]);
}

/* A token whose places span several pieces has a partial sum in each. In its first piece that is row 2*piece + 1 of
 * `partial`, in all others row 2*piece. */
template <typename T, int V>
static __global__ void sum_pieces(gg_rows r, gg_cuda_embedding_args a, const uint32_t *order, float *partial) {
    const T *grad = static_cast<const T *>(a.grad_output);
    for (int64_t piece = row_first(r.shift); piece < r.rows; piece += row_step(r.shift)) {
        const int64_t begin = piece * PIECE, end = begin + PIECE < a.tokens ? begin + PIECE : a.tokens;
        const uint32_t none = 0xffffffffu; /* no key is that large */
        const uint32_t before = begin > 0 ? sorted_key(a, order, begin - 1) : none;
        const uint32_t behind = end < a.tokens ? sorted_key(a, order, end) : none;
        for (int64_t i = column_first(r.shift); i < r.length; i += (int64_t)1 << r.shift) {
            gg_pack<V> sum = {};
            uint32_t current = none;
            for (int64_t first = begin; first < end; first += AT_ONCE) {
                uint32_t key[AT_ONCE];
                gg_pack<V> d[AT_ONCE];
#pragma unroll
                for (int j = 0; j < AT_ONCE; ++j) {
                    const int64_t at = first + j < end ? first + j : end - 1;
                    const uint32_t place = order[at];
                    key[j] = key_of(a, place);
                    d[j] = gg_load_pack<V>(grad + ((int64_t)place * r.length + i) * V);
                }
#pragma unroll
                for (int j = 0; j < AT_ONCE; ++j) {
                    if (first + j >= end) break;
                    if (key[j] != current) {
                        if (current != none && current < a.numbers) {
                            float *to = current == before ? partial + 2 * piece * a.features
                                                          : a.grad_table + (int64_t)current * a.features;
                            gg_store_pack(to + i * V, sum);
                        }
                        current = key[j];
                        sum = d[j];
                    } else {
                        for (int k = 0; k < V; ++k) sum.at[k] += d[j].at[k];
                    }
                }
            }
            if (current >= a.numbers) continue;
            float *to = a.grad_table + (int64_t)current * a.features;
            if (current == before) to = partial + 2 * piece * a.features;
            else if (current == behind) to = partial + (2 * piece + 1) * a.features;
            gg_store_pack(to + i * V, sum);
        }
    }
}

/* Joins the sums of a token that begins in a piece and continues in the next. */
template <int V>
static __global__ void join_pieces(gg_rows r, gg_cuda_embedding_args a, const uint32_t *order, const float *partial) {
    for (int64_t piece = row_first(r.shift); piece < r.rows - 1; piece += row_step(r.shift)) {
        const int64_t begin = piece * PIECE, end = begin + PIECE;
        const uint32_t key = sorted_key(a, order, end - 1);
        const bool begins = begin == 0 || sorted_key(a, order, begin - 1) != key;
        if (key >= a.numbers || !begins || sorted_key(a, order, end) != key) continue;
        for (int64_t i = column_first(r.shift); i < r.length; i += (int64_t)1 << r.shift) {
            gg_pack<V> sum = gg_load_pack<V>(partial + (2 * piece + 1) * a.features + i * V);
            for (int64_t next = piece + 1; next < r.rows && sorted_key(a, order, next * PIECE) == key; ++next) {
                const gg_pack<V> d = gg_load_pack<V>(partial + 2 * next * a.features + i * V);
                for (int k = 0; k < V; ++k) sum.at[k] += d.at[k];
            }
            gg_store_pack(a.grad_table + (int64_t)key * a.features + i * V, sum);
        }
    }
}

static __global__ void clear_table(int64_t n, float *table) {
    for (int64_t i = gg_thread_number(); i < n; i += gg_thread_count()) table[i] = 0.0f;
}

static int64_t words_for(int64_t n) { return ceil_div(n, 4) * 4; } /* that follow each other at 16 bytes */
static int64_t tiles_of(int64_t tokens) { return ceil_div(tokens, TILE); }
static int64_t pieces_of_tokens(int64_t tokens) { return ceil_div(tokens, PIECE); }

size_t gg_cuda_embedding_scratch(int64_t tokens, int64_t features) {
    const int64_t words = 2 * words_for(tokens) + words_for(DIGITS * tiles_of(tokens));
    return (size_t)(words + 2 * pieces_of_tokens(tokens) * features) * sizeof(uint32_t);
}

template <typename T> static void run_look_up(gg_cuda_stream stream, const gg_cuda_embedding_args *args) {
    const bool wide =
        args->features % 4 == 0 && gg_is_aligned(args->table, 16) && gg_is_aligned(args->output, 4 * sizeof(T));
    const gg_rows r = rows_of(args->tokens, args->features, 1, wide ? 4 : 1);
    if (wide) GG_LAUNCH((look_up<T, 4>), dim3(blocks_of(&r)), dim3(GG_BLOCK), 0, stream, r, *args);
    else GG_LAUNCH((look_up<T, 1>), dim3(blocks_of(&r)), dim3(GG_BLOCK), 0, stream, r, *args);
}

void gg_cuda_embedding(gg_cuda_stream stream, const gg_cuda_embedding_args *args) {
    if (args->dtype == GG_BFLOAT16) run_look_up<gg_bfloat16>(stream, args);
    else run_look_up<float>(stream, args);
}

template <typename T, int V>
static void run_sums(gg_cuda_stream stream, const gg_cuda_embedding_args *args, const uint32_t *order, float *partial) {
    const gg_rows r = rows_of(pieces_of_tokens(args->tokens), args->features, 1, V);
    GG_LAUNCH((sum_pieces<T, V>), dim3(blocks_of(&r)), dim3(GG_BLOCK), 0, stream, r, *args, order, partial);
    GG_LAUNCH((join_pieces<V>), dim3(blocks_of(&r)), dim3(GG_BLOCK), 0, stream, r, *args, order, partial);
}

template <typename T>
static void run_backward(gg_cuda_stream stream, const gg_cuda_embedding_args *args, const uint32_t *order,
                         float *partial) {
    const bool wide = args->features % 4 == 0 && gg_is_aligned(args->grad_table, 16) &&
                      gg_is_aligned(args->grad_output, 4 * sizeof(T));
    if (wide) run_sums<T, 4>(stream, args, order, partial);
    else run_sums<T, 1>(stream, args, order, partial);
}

void gg_cuda_embedding_backward(gg_cuda_stream stream, const gg_cuda_embedding_args *args) {
    const int64_t tokens = args->tokens, values = args->numbers * args->features;
    uint32_t *const orders[2] = {(uint32_t *)args->scratch, (uint32_t *)args->scratch + words_for(tokens)};
    uint32_t *count = orders[1] + words_for(tokens);
    sort_turn turn = {0, tiles_of(tokens), NULL, orders[0], count};
    const dim3 blocks(blocks_for(turn.tiles, 1)), block(GG_BLOCK);
    for (int number = 0; number == 0 || args->numbers >> turn.shift != 0; ++number) {
        turn.from = number == 0 ? NULL : orders[(number - 1) % 2];
        turn.to = orders[number % 2];
        GG_LAUNCH(count_digits, blocks, block, 0, stream, *args, turn);
        GG_LAUNCH(scatter_places, blocks, block, 0, stream, *args, turn);
        turn.shift += DIGIT_BITS;
    }
    GG_LAUNCH(clear_table, dim3(blocks_for(values, GG_BLOCK)), block, 0, stream, values, args->grad_table);
    float *partial = (float *)(count + words_for(DIGITS * turn.tiles));
    if (args->dtype == GG_BFLOAT16) run_backward<gg_bfloat16>(stream, args, turn.to, partial);
    else run_backward<float>(stream, args, turn.to, partial);
}

/* ------------------------------------------------------------------------------------------ positions */

template <typename T> static __global__ void add_positions(gg_cuda_position_embedding_args a) {
    const T *input = static_cast<const T *>(a.input);
    T *output = static_cast<T *>(a.output);
    const int64_t sample = a.positions * a.features;
    for (int64_t i = gg_thread_number(); i < a.samples * sample; i += gg_thread_count())
        gg_store(output + i, gg_load(input + i) + a.table[i % sample]);
}

template <typename T> static __global__ void sum_positions(gg_cuda_position_embedding_args a) {
    const T *grad = static_cast<const T *>(a.grad_output);
    const int64_t sample = a.positions * a.features;
    for (int64_t i = gg_thread_number(); i < a.numbers * a.features; i += gg_thread_count()) {
        float sum = i < sample ? gg_load(grad + i) : 0.0f;
        for (int64_t n = 1; i < sample && n < a.samples; ++n) sum += gg_load(grad + n * sample + i);
        a.grad_table[i] = sum;
    }
}

void gg_cuda_position_embedding(gg_cuda_stream stream, const gg_cuda_position_embedding_args *args) {
    const dim3 blocks(blocks_for(args->samples * args->positions * args->features, GG_BLOCK)), block(GG_BLOCK);
    if (args->dtype == GG_BFLOAT16) GG_LAUNCH((add_positions<gg_bfloat16>), blocks, block, 0, stream, *args);
    else GG_LAUNCH((add_positions<float>), blocks, block, 0, stream, *args);
}

void gg_cuda_position_embedding_backward(gg_cuda_stream stream, const gg_cuda_position_embedding_args *args) {
    const dim3 blocks(blocks_for(args->numbers * args->features, GG_BLOCK)), block(GG_BLOCK);
    if (args->dtype == GG_BFLOAT16) GG_LAUNCH((sum_positions<gg_bfloat16>), blocks, block, 0, stream, *args);
    else GG_LAUNCH((sum_positions<float>), blocks, block, 0, stream, *args);
}
