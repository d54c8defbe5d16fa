/* One position of an LSTM layer, between its products; and what lies around cuDNN's LSTM. */
#include "cuda/kernels/nn.cuh"

static __global__ void lstm_forward(gg_cuda_lstm_args a) {
    for (int64_t i = gg_thread_number(); i < a.batch * a.hidden; i += gg_thread_count()) {
        const int64_t n = i / a.hidden, j = i % a.hidden;
        float *gate = a.gates + n * a.gates_row + j;
        const float in = logistic(gate[0]), forget = logistic(gate[a.hidden]);
        const float fresh = tanhf(gate[2 * a.hidden]), out = logistic(gate[3 * a.hidden]);
        const float cell = forget * a.before[n * a.before_row + j] + in * fresh;
        gate[0] = in;
        gate[a.hidden] = forget;
        gate[2 * a.hidden] = fresh;
        gate[3 * a.hidden] = out;
        a.cell[n * a.cell_row + j] = cell;
        a.state[n * a.state_row + j] = out * tanhf(cell);
    }
}

static __global__ void lstm_backward(gg_cuda_lstm_args a) {
    for (int64_t i = gg_thread_number(); i < a.batch * a.hidden; i += gg_thread_count()) {
        const int64_t n = i / a.hidden, j = i % a.hidden;
        float *gate = a.gates + n * a.gates_row + j;
        const float in = gate[0], forget = gate[a.hidden], fresh = gate[2 * a.hidden], out = gate[3 * a.hidden];
        const float bent = tanhf(a.cell[n * a.cell_row + j]);
        const float dh = a.error[n * a.error_row + j] + (a.last ? 0.0f : a.later[i]);
        const float dc = (a.last ? 0.0f : a.cell_error[i]) + dh * out * (1.0f - bent * bent);
        gate[0] = dc * fresh * (in * (1.0f - in));
        gate[a.hidden] = dc * a.before[n * a.before_row + j] * (forget * (1.0f - forget));
        gate[2 * a.hidden] = dc * in * (1.0f - fresh * fresh);
        gate[3 * a.hidden] = dh * bent * (out * (1.0f - out));
        a.cell_error[i] = dc * forget;
    }
}

void gg_cuda_lstm(gg_cuda_stream stream, const gg_cuda_lstm_args *args) {
    GG_LAUNCH(lstm_forward, dim3(blocks_for(args->batch * args->hidden, GG_BLOCK)), dim3(GG_BLOCK), 0, stream, *args);
}

void gg_cuda_lstm_backward(gg_cuda_stream stream, const gg_cuda_lstm_args *args) {
    GG_LAUNCH(lstm_backward, dim3(blocks_for(args->batch * args->hidden, GG_BLOCK)), dim3(GG_BLOCK), 0, stream, *args);
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
