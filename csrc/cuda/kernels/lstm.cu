/* One position of an LSTM layer, between its products. */
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
