/* One position of an LSTM layer, between its products or fused with the recurrent one; and copies around cuDNN's
 * LSTM. */
#include "cuda/nn.cuh"
#include "cuda/tensor.cuh"

/* Unit j of sample n; its gates are given before activation. */
static __device__ inline void cell_forward(const gg_cuda_lstm_args &a, int64_t n, int64_t j, const float sums[4]) {
    float *gate = a.gates + n * a.gates_row + j;
    const float in = logistic(sums[0]), forget = logistic(sums[1]), fresh = tanhf(sums[2]), out = logistic(sums[3]);
    const float cell = forget * a.before[n * a.before_row + j] + in * fresh;
    gate[0] = in;
    gate[a.hidden] = forget;
    gate[2 * a.hidden] = fresh;
    gate[3 * a.hidden] = out;
    a.cell[n * a.cell_row + j] = cell;
    a.state[n * a.state_row + j] = out * tanhf(cell);
}

/* cell_forward's backward; later: the state's error from the next position, 0 at the last. */
static __device__ inline void cell_backward(const gg_cuda_lstm_args &a, int64_t n, int64_t j, float later) {
    float *gate = a.gates + n * a.gates_row + j, *cell_error = a.cell_error + n * a.hidden + j;
    const float in = gate[0], forget = gate[a.hidden], fresh = gate[2 * a.hidden], out = gate[3 * a.hidden];
    const float bent = tanhf(a.cell[n * a.cell_row + j]);
    const float dh = a.error[n * a.error_row + j] + later;
    const float dc = (a.last ? 0.0f : *cell_error) + dh * out * (1.0f - bent * bent);
    gate[0] = dc * fresh * (in * (1.0f - in));
    gate[a.hidden] = dc * a.before[n * a.before_row + j] * (forget * (1.0f - forget));
    gate[2 * a.hidden] = dc * in * (1.0f - fresh * fresh);
    gate[3 * a.hidden] = dh * bent * (out * (1.0f - out));
    *cell_error = dc * forget;
}

static __global__ void lstm_forward(gg_cuda_lstm_args a) {
    for (int64_t i = gg_thread_number(); i < a.batch * a.hidden; i += gg_thread_count()) {
        const int64_t n = i / a.hidden, j = i % a.hidden;
        const float *gate = a.gates + n * a.gates_row + j;
        const float sums[4] = {gate[0], gate[a.hidden], gate[2 * a.hidden], gate[3 * a.hidden]};
        cell_forward(a, n, j, sums);
    }
}

static __global__ void lstm_backward(gg_cuda_lstm_args a) {
    for (int64_t i = gg_thread_number(); i < a.batch * a.hidden; i += gg_thread_count())
        cell_backward(a, i / a.hidden, i % a.hidden, a.last ? 0.0f : a.later[i]);
}

void gg_cuda_lstm(gg_cuda_stream stream, const gg_cuda_lstm_args *args) {
    GG_LAUNCH(lstm_forward, dim3(blocks_for(args->batch * args->hidden, GG_BLOCK)), dim3(GG_BLOCK), 0, stream, *args);
}

void gg_cuda_lstm_backward(gg_cuda_stream stream, const gg_cuda_lstm_args *args) {
    GG_LAUNCH(lstm_backward, dim3(blocks_for(args->batch * args->hidden, GG_BLOCK)), dim3(GG_BLOCK), 0, stream, *args);
}

/* ------------------------------------------------------------------------------------------ with the product
 *
 * On tensor cores, by TF32. The warps of a block share the terms of its sums, and add them in their order. */

constexpr int STEP_WARPS = GG_BLOCK / WARP;
constexpr int EIGHT = 8; /* terms of a product, and its columns */
/* Units and samples of a block. */
constexpr int FORWARD_UNITS = 8, FORWARD_SAMPLES = 32, BACKWARD_UNITS = 16, BACKWARD_SAMPLES = 8;

static __device__ inline float2 two_of(const float *at) {
    const float2 v = *reinterpret_cast<const float2 *>(at);
    return make_float2(gg_tf32(v.x), gg_tf32(v.y));
}

/* Rows of a product are the units of two gates: i and f, then g and o. */
static __global__ void __launch_bounds__(GG_BLOCK)
    lstm_step(gg_cuda_lstm_args a, const float *weight, const float *state, int64_t state_row) {
    GG_SHARED(float, parts, [STEP_WARPS][4 * FORWARD_UNITS][FORWARD_SAMPLES + 1]);
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, g = lane / 4, k = lane % 4;
    const int64_t unit = (int64_t)blockIdx.x * FORWARD_UNITS, sample = (int64_t)blockIdx.y * FORWARD_SAMPLES;
    const float *of_gate[4], *of_sample[FORWARD_SAMPLES / EIGHT];
    float sum[2][FORWARD_SAMPLES / EIGHT][4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) of_gate[i] = weight + ((i * a.hidden + unit + g) * a.hidden + 2 * k);
#pragma unroll
    for (int i = 0; i < FORWARD_SAMPLES / EIGHT; ++i) {
        const int64_t n = sample + EIGHT * i + g;
        of_sample[i] = state + (n < a.batch ? n : a.batch - 1) * state_row + 2 * k;
    }
#pragma unroll 4
    for (int64_t at = (int64_t)warp * EIGHT; at < a.hidden; at += STEP_WARPS * EIGHT) {
        float left[2][4];
        float2 right[FORWARD_SAMPLES / EIGHT];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            const float2 low = two_of(of_gate[2 * m] + at), high = two_of(of_gate[2 * m + 1] + at);
            left[m][0] = low.x;
            left[m][1] = high.x;
            left[m][2] = low.y;
            left[m][3] = high.y;
        }
#pragma unroll
        for (int i = 0; i < FORWARD_SAMPLES / EIGHT; ++i) right[i] = two_of(of_sample[i] + at);
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int i = 0; i < FORWARD_SAMPLES / EIGHT; ++i) gg_product_tf32(sum[m][i], left[m], right[i]);
    }
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int i = 0; i < FORWARD_SAMPLES / EIGHT; ++i)
#pragma unroll
            for (int v = 0; v < 4; ++v)
                parts[warp][(2 * m + v / 2) * FORWARD_UNITS + g][EIGHT * i + 2 * k + v % 2] = sum[m][i][v];
    __syncthreads();
    const int own = (int)threadIdx.x % FORWARD_UNITS, of = (int)threadIdx.x / FORWARD_UNITS;
    const int64_t n = sample + of, j = unit + own;
    if (n >= a.batch) return;
    float sums[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        sums[i] = a.gates[n * a.gates_row + i * a.hidden + j];
#pragma unroll
        for (int w = 0; w < STEP_WARPS; ++w) sums[i] += parts[w][i * FORWARD_UNITS + own][of];
    }
    cell_forward(a, n, j, sums);
}

/* Rows of a product are units; a lane has two adjacent ones. Terms are the gates of all units. */
static __global__ void __launch_bounds__(GG_BLOCK)
    lstm_step_backward(gg_cuda_lstm_args a, const float *weight, const float *errors) {
    GG_SHARED(float, parts, [STEP_WARPS][BACKWARD_UNITS][BACKWARD_SAMPLES + 1]);
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, g = lane / 4, k = lane % 4;
    const int64_t unit = (int64_t)blockIdx.x * BACKWARD_UNITS, sample = (int64_t)blockIdx.y * BACKWARD_SAMPLES;
    const int64_t n_of_lane = sample + g < a.batch ? sample + g : a.batch - 1;
    const bool there = unit + 2 * g < a.hidden; /* half a block's units may be missing */
    const float *rows = weight + (2 * k * a.hidden + (there ? unit + 2 * g : 0));
    const float *error = errors + n_of_lane * a.gates_row + 2 * k;
    float sum[4] = {};
#pragma unroll 4
    for (int64_t at = (int64_t)warp * EIGHT; at < 4 * a.hidden; at += STEP_WARPS * EIGHT) {
        const float2 now = two_of(rows + at * a.hidden), then = two_of(rows + (at + 1) * a.hidden);
        const float left[4] = {now.x, now.y, then.x, then.y};
        gg_product_tf32(sum, left, two_of(error + at));
    }
#pragma unroll
    for (int v = 0; v < 4; ++v) parts[warp][2 * g + v / 2][2 * k + v % 2] = sum[v];
    __syncthreads();
    const int own = (int)threadIdx.x % BACKWARD_UNITS, of = (int)threadIdx.x / BACKWARD_UNITS;
    const int64_t n = sample + of, j = unit + own;
    if (of >= BACKWARD_SAMPLES || n >= a.batch || j >= a.hidden) return;
    float later = 0;
#pragma unroll
    for (int w = 0; w < STEP_WARPS; ++w) later += parts[w][own][of];
    cell_backward(a, n, j, later);
}

bool gg_cuda_lstm_step_fits(int64_t hidden) { return hidden % EIGHT == 0; }

void gg_cuda_lstm_step(gg_cuda_stream stream, const gg_cuda_lstm_args *args, const float *weight, const float *state,
                       int64_t state_row) {
    const dim3 grid((unsigned)(args->hidden / FORWARD_UNITS), (unsigned)ceil_div(args->batch, FORWARD_SAMPLES));
    GG_LAUNCH(lstm_step, grid, dim3(GG_BLOCK), 0, stream, *args, weight, state, state_row);
}

void gg_cuda_lstm_step_backward(gg_cuda_stream stream, const gg_cuda_lstm_args *args, const float *weight,
                                const float *errors) {
    const dim3 grid((unsigned)ceil_div(args->hidden, BACKWARD_UNITS),
                    (unsigned)ceil_div(args->batch, BACKWARD_SAMPLES));
    GG_LAUNCH(lstm_step_backward, grid, dim3(GG_BLOCK), 0, stream, *args, weight, errors);
}

/* ------------------------------------------------------------------------------------------ around cuDNN's */

/* blockIdx.y is the piece. */
template <typename T> static __global__ void lstm_pack(gg_cuda_lstm_pieces a) {
    const gg_cuda_lstm_piece piece = a.piece[blockIdx.y];
    T *space = static_cast<T *>(a.space) + piece.at;
    for (int64_t i = gg_thread_number(); i < piece.count; i += gg_thread_count())
        gg_store(space + i, piece.from[1] == NULL ? piece.from[0][i] : piece.from[0][i] + piece.from[1][i]);
}

template <typename T> static __global__ void lstm_unpack(gg_cuda_lstm_pieces a) {
    const gg_cuda_lstm_piece piece = a.piece[blockIdx.y];
    const T *space = static_cast<const T *>(a.space) + piece.at;
    for (int64_t i = gg_thread_number(); i < piece.count; i += gg_thread_count()) {
        const float v = gg_load(space + i);
        piece.to[0][i] = v;
        if (piece.to[1] != NULL) piece.to[1][i] = v;
    }
}

static dim3 grid_of(const gg_cuda_lstm_pieces *args) {
    int64_t most = 1;
    for (int i = 0; i < args->pieces; ++i) most = args->piece[i].count > most ? args->piece[i].count : most;
    return dim3(blocks_for(most, GG_BLOCK), (unsigned)args->pieces);
}

void gg_cuda_lstm_pack(gg_cuda_stream stream, const gg_cuda_lstm_pieces *args) {
    if (args->dtype == GG_BFLOAT16) GG_LAUNCH(lstm_pack<gg_bfloat16>, grid_of(args), dim3(GG_BLOCK), 0, stream, *args);
    else GG_LAUNCH(lstm_pack<float>, grid_of(args), dim3(GG_BLOCK), 0, stream, *args);
}

void gg_cuda_lstm_unpack(gg_cuda_stream stream, const gg_cuda_lstm_pieces *args) {
    if (args->dtype == GG_BFLOAT16)
        GG_LAUNCH(lstm_unpack<gg_bfloat16>, grid_of(args), dim3(GG_BLOCK), 0, stream, *args);
    else GG_LAUNCH(lstm_unpack<float>, grid_of(args), dim3(GG_BLOCK), 0, stream, *args);
}

template <typename T, bool END> static __global__ void move_states(gg_cuda_lstm_state_args a) {
    for (int64_t i = gg_thread_number(); i < a.layers * a.batch * a.hidden; i += gg_thread_count()) {
        const int64_t layer = i / (a.batch * a.hidden), sample = i / a.hidden % a.batch, j = i % a.hidden;
        float *carried = a.carried + (sample * a.layers + layer) * 2 * a.hidden + j;
        const int64_t at = layer * a.step + sample * a.hidden + j;
        T *state = static_cast<T *>(a.states) + at, *cell = static_cast<T *>(a.cells) + at;
        if (END) {
            carried[0] = gg_load(state);
            carried[a.hidden] = gg_load(cell);
        } else {
            gg_store(state, carried[0]);
            gg_store(cell, carried[a.hidden]);
        }
    }
}

template <bool END> static void launch_states(gg_cuda_stream stream, const gg_cuda_lstm_state_args *args) {
    const dim3 blocks(blocks_for(args->layers * args->batch * args->hidden, GG_BLOCK)), block(GG_BLOCK);
    if (args->dtype == GG_BFLOAT16) GG_LAUNCH((move_states<gg_bfloat16, END>), blocks, block, 0, stream, *args);
    else GG_LAUNCH((move_states<float, END>), blocks, block, 0, stream, *args);
}

void gg_cuda_lstm_begin(gg_cuda_stream stream, const gg_cuda_lstm_state_args *args) {
    launch_states<false>(stream, args);
}
void gg_cuda_lstm_end(gg_cuda_stream stream, const gg_cuda_lstm_state_args *args) { launch_states<true>(stream, args); }
