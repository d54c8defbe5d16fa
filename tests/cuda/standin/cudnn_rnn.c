/* cuDNN's recurrent networks of the stand-in: LSTM in one direction over full sequences that lie sample by sample. What
 * the calls must fulfil, and plain loops that add up in double. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inside.h"

enum {
    BAD_PARAM = 2000,
    MISALIGNED = 2003,
    SHAPE_MISMATCH = 2008,
    NOT_SUPPORTED = 3000,
    ALIGNED = 16,        /* sequences and states */
    ALIGNED_SPACE = 256, /* weights, workspace and reserve, as cudaMalloc gives them */
    GATES = 4,
    MATRICES = 8,
    MAGIC = 0x6c73746d,
};

static const char dropout_kind[] = "cudnnDropoutDescriptor", rnn_kind[] = "cudnnRNNDescriptor";
static const char data_kind[] = "cudnnRNNDataDescriptor";

typedef struct dropout {
    bool set;
} dropout;

typedef struct rnn {
    bool set, biased;
    int type, math;
    int inputs, hidden, layers;
} rnn;

typedef struct data {
    bool set;
    int type;
    int positions, batch, values;
} data;

/* What the reserve begins with. The passes follow each other. */
typedef enum phase { NOTHING, FORWARD_DONE, DATA_DONE } phase;
typedef struct reserve_head {
    uint32_t magic;
    phase done;
    rnn how;
    int positions, batch;
} reserve_head;

/* ---------------------------------------------------------------------------------------------------- descriptors */

static int cudnnSetTensorNdDescriptor(gg_cudnn_tensor tensor, int type, int dims, const int *size, const int *stride) {
    const char *function = "cudnnSetTensorNdDescriptor";
    const int planted = gg_standin_enter(function);
    int packed = 1;
    if (planted != 0) return planted;
    if (type != GG_CUDNN_DATA_FLOAT && type != GG_CUDNN_DATA_BFLOAT16)
        return gg_standin_violation(BAD_PARAM, "%s: type %d", function, type);
    if (dims < 3 || dims > 4) return gg_standin_violation(NOT_SUPPORTED, "%s: %d dimensions", function, dims);
    for (int i = dims - 1; i >= 0; packed *= size[i--])
        if (size[i] < 1 || stride[i] != packed)
            return gg_standin_violation(BAD_PARAM, "%s: axis %d has %d elements, %d apart", function, i, size[i],
                                        stride[i]);
    return gg_standin_tensor_set(function, tensor, type, dims, size);
}

static int cudnnGetTensorNdDescriptor(gg_cudnn_tensor tensor, int asked, int *type, int *dims, int *size, int *stride) {
    const char *function = "cudnnGetTensorNdDescriptor";
    const int planted = gg_standin_enter(function);
    int own[4], packed = 1;
    if (planted != 0) return planted;
    const int status = gg_standin_tensor_get(function, tensor, type, dims, own);
    if (status != 0) return status;
    for (int i = *dims - 1; i >= 0; packed *= own[i--])
        if (i < asked) {
            size[i] = own[i];
            stride[i] = packed;
        }
    return 0;
}

static int cudnnCreateDropoutDescriptor(gg_cudnn_dropout *out) {
    return gg_standin_make("cudnnCreateDropoutDescriptor", dropout_kind, sizeof(dropout), out);
}
static int cudnnDestroyDropoutDescriptor(gg_cudnn_dropout it) {
    return gg_standin_unmake("cudnnDestroyDropoutDescriptor", dropout_kind, it, BAD_PARAM);
}
static int cudnnCreateRNNDescriptor(gg_cudnn_rnn *out) {
    return gg_standin_make("cudnnCreateRNNDescriptor", rnn_kind, sizeof(rnn), out);
}
static int cudnnDestroyRNNDescriptor(gg_cudnn_rnn it) {
    return gg_standin_unmake("cudnnDestroyRNNDescriptor", rnn_kind, it, BAD_PARAM);
}
static int cudnnCreateRNNDataDescriptor(gg_cudnn_rnn_data *out) {
    return gg_standin_make("cudnnCreateRNNDataDescriptor", data_kind, sizeof(data), out);
}
static int cudnnDestroyRNNDataDescriptor(gg_cudnn_rnn_data it) {
    return gg_standin_unmake("cudnnDestroyRNNDataDescriptor", data_kind, it, BAD_PARAM);
}

/* Only without dropout: its numbers would not be those of the CPU. */
static int cudnnSetDropoutDescriptor(gg_cudnn_dropout object, gg_cudnn_handle handle, float probability, void *states,
                                     size_t bytes, unsigned long long seed) {
    const char *function = "cudnnSetDropoutDescriptor";
    gg_cuda_stream stream;
    const int planted = gg_standin_enter(function);
    (void)seed;
    if (planted != 0) return planted;
    dropout *it = gg_standin_find(function, dropout_kind, object);
    if (it == NULL || !gg_standin_dnn_stream(function, handle, &stream)) return BAD_PARAM;
    if (probability != 0 || states != NULL || bytes != 0)
        return gg_standin_violation(NOT_SUPPORTED, "%s: probability %g, %zu bytes of states", function,
                                    (double)probability, bytes);
    it->set = true;
    return 0;
}

static int cudnnSetRNNDescriptor_v8(gg_cudnn_rnn object, int algorithm, int cell, int bias, int direction, int input,
                                    int type, int precision, int math, int32_t inputs, int32_t hidden,
                                    int32_t projected, int32_t layers, gg_cudnn_dropout no_dropout, uint32_t flags) {
    const char *function = "cudnnSetRNNDescriptor_v8";
    const int planted = gg_standin_enter(function);
    if (planted != 0) return planted;
    rnn *it = gg_standin_find(function, rnn_kind, object);
    const dropout *drops = gg_standin_find(function, dropout_kind, no_dropout);
    if (it == NULL || drops == NULL) return BAD_PARAM;
    if (!drops->set) return gg_standin_violation(BAD_PARAM, "%s: the dropout descriptor is not set", function);
    if (inputs < 1 || hidden < 1 || layers < 1)
        return gg_standin_violation(BAD_PARAM, "%s: %d inputs, %d hidden, %d layers", function, inputs, hidden, layers);
    if (projected != hidden) /* any other number would project the states */
        return gg_standin_violation(NOT_SUPPORTED, "%s: states of %d are projected to %d", function, hidden, projected);
    if (algorithm != GG_CUDNN_RNN_STANDARD || cell != GG_CUDNN_RNN_LSTM || direction != GG_CUDNN_RNN_ONE_WAY ||
        input != GG_CUDNN_RNN_LINEAR_INPUT || (bias != GG_CUDNN_RNN_NO_BIAS && bias != GG_CUDNN_RNN_INPUT_BIAS))
        return gg_standin_violation(NOT_SUPPORTED, "%s: algorithm %d, cell %d, direction %d, input %d, biases %d",
                                    function, algorithm, cell, direction, input, bias);
    if ((type != GG_CUDNN_DATA_FLOAT && type != GG_CUDNN_DATA_BFLOAT16) || precision != GG_CUDNN_DATA_FLOAT)
        return gg_standin_violation(NOT_SUPPORTED, "%s: type %d, precision %d", function, type, precision);
    if (math != GG_CUDNN_DEFAULT_MATH && math != GG_CUDNN_FMA_MATH)
        return gg_standin_violation(NOT_SUPPORTED, "%s: math %d", function, math);
    if (flags != GG_CUDNN_RNN_PADDED)
        return gg_standin_violation(BAD_PARAM, "%s: flags %u; samples one by one are padded", function, flags);
    *it = (rnn){.set = true,
                .biased = bias == GG_CUDNN_RNN_INPUT_BIAS,
                .type = type,
                .math = math,
                .inputs = inputs,
                .hidden = hidden,
                .layers = layers};
    return 0;
}

static int cudnnSetRNNDataDescriptor(gg_cudnn_rnn_data object, int type, int layout, int positions, int batch,
                                     int values, const int *lengths, void *padding) {
    const char *function = "cudnnSetRNNDataDescriptor";
    const int planted = gg_standin_enter(function);
    (void)padding;
    if (planted != 0) return planted;
    data *it = gg_standin_find(function, data_kind, object);
    if (it == NULL) return BAD_PARAM;
    if (type != GG_CUDNN_DATA_FLOAT && type != GG_CUDNN_DATA_BFLOAT16)
        return gg_standin_violation(BAD_PARAM, "%s: type %d", function, type);
    if (layout != GG_CUDNN_RNN_BATCH_MAJOR)
        return gg_standin_violation(NOT_SUPPORTED, "%s: layout %d", function, layout);
    if (positions < 1 || batch < 1 || values < 1 || lengths == NULL)
        return gg_standin_violation(BAD_PARAM, "%s: %d positions, %d samples, %d values, %s", function, positions,
                                    batch, values, lengths == NULL ? "no lengths" : "lengths");
    for (int n = 0; n < batch; ++n)
        if (lengths[n] != positions)
            return gg_standin_violation(NOT_SUPPORTED, "%s: sample %d has %d of %d positions", function, n, lengths[n],
                                        positions);
    *it = (data){.set = true, .type = type, .positions = positions, .batch = batch, .values = values};
    return 0;
}

/* --------------------------------------------------------------------------------------------------------- spaces */

static size_t element_bytes(const rnn *it) { return it->type == GG_CUDNN_DATA_FLOAT ? 4 : 2; }

static size_t inputs_of(const rnn *it, int layer, int number) {
    return (size_t)(layer == 0 && number < GATES ? it->inputs : it->hidden);
}

/* Where an array of the weight space begins, in bytes: of each layer first the recurrent matrices, from the last gate
 * on, then the input's and their biases, with gaps. Callers must not know. number -1: the end of the layer's. */
static size_t place_of(const rnn *it, int layer, int number, bool bias) {
    size_t at = 0;
    for (int l = 0; l <= layer; ++l) {
        for (int i = MATRICES - 1; i >= 0; --i) {
            if (l == layer && i == number && !bias) return at;
            at += (size_t)it->hidden * inputs_of(it, l, i) * element_bytes(it);
            at = (at + 95) / 64 * 64;
        }
        for (int i = 0; i < GATES && it->biased; ++i) {
            if (l == layer && i == number && bias) return at;
            at += ((size_t)it->hidden * element_bytes(it) + 31) / 16 * 16;
        }
    }
    return at;
}

static size_t weight_bytes_of(const rnn *it) { return place_of(it, it->layers - 1, -1, false); }

/* Floats behind the reserve's head: gates, cells and states of all layers. */
static size_t states_of_layer(const rnn *it, const data *x) {
    return (size_t)x->batch * (size_t)x->positions * (size_t)it->hidden;
}
static size_t reserve_bytes_of(const rnn *it, const data *x) {
    return sizeof(reserve_head) + (size_t)it->layers * 6 * states_of_layer(it, x) * sizeof(float);
}
static size_t work_bytes_of(const rnn *it, const data *x) { return states_of_layer(it, x) * 8 + 40; }

static int cudnnGetRNNWeightSpaceSize(gg_cudnn_handle handle, gg_cudnn_rnn object, size_t *bytes) {
    const char *function = "cudnnGetRNNWeightSpaceSize";
    gg_cuda_stream stream;
    const int planted = gg_standin_enter(function);
    if (planted != 0) return planted;
    const rnn *it = gg_standin_find(function, rnn_kind, object);
    if (it == NULL || !gg_standin_dnn_stream(function, handle, &stream)) return BAD_PARAM;
    if (!it->set) return gg_standin_violation(BAD_PARAM, "%s: the network is not set", function);
    *bytes = weight_bytes_of(it);
    return 0;
}

static int cudnnGetRNNTempSpaceSizes(gg_cudnn_handle handle, gg_cudnn_rnn object, int mode, gg_cudnn_rnn_data input,
                                     size_t *workspace, size_t *reserve) {
    const char *function = "cudnnGetRNNTempSpaceSizes";
    gg_cuda_stream stream;
    const int planted = gg_standin_enter(function);
    if (planted != 0) return planted;
    const rnn *it = gg_standin_find(function, rnn_kind, object);
    const data *x = gg_standin_find(function, data_kind, input);
    if (it == NULL || x == NULL || !gg_standin_dnn_stream(function, handle, &stream)) return BAD_PARAM;
    if (!it->set || !x->set || x->values != it->inputs || x->type != it->type)
        return gg_standin_violation(BAD_PARAM, "%s: x does not fit the network", function);
    *workspace = work_bytes_of(it, x);
    if (reserve != NULL) *reserve = mode == GG_CUDNN_RNN_TRAINING ? reserve_bytes_of(it, x) : 0;
    return 0;
}

static int cudnnGetRNNWeightParams(gg_cudnn_handle handle, gg_cudnn_rnn object, int32_t layer, size_t bytes,
                                   const void *weights, int32_t number, gg_cudnn_tensor matrix_desc, void **matrix,
                                   gg_cudnn_tensor bias_desc, void **bias) {
    const char *function = "cudnnGetRNNWeightParams";
    gg_cuda_stream stream;
    const int planted = gg_standin_enter(function);
    if (planted != 0) return planted;
    const rnn *it = gg_standin_find(function, rnn_kind, object);
    if (it == NULL || !gg_standin_dnn_stream(function, handle, &stream)) return BAD_PARAM;
    if (!it->set || layer < 0 || layer >= it->layers || number < 0 || number >= MATRICES || weights == NULL)
        return gg_standin_violation(BAD_PARAM, "%s: matrix %d of layer %d", function, number, layer);
    if (bytes != weight_bytes_of(it))
        return gg_standin_violation(BAD_PARAM, "%s: the weight space has %zu bytes, not %zu", function,
                                    weight_bytes_of(it), bytes);
    const bool biased = it->biased && number < GATES;
    const int size[3] = {1, it->hidden, (int)inputs_of(it, layer, number)}, bias_size[3] = {1, it->hidden, 1};
    char *base = (char *)(uintptr_t)weights;
    *matrix = base + place_of(it, layer, number, false);
    *bias = biased ? base + place_of(it, layer, number, true) : NULL;
    const int status = gg_standin_tensor_set(function, matrix_desc, it->type, 3, size);
    return status != 0 ? status : gg_standin_tensor_set(function, bias_desc, it->type, biased ? 3 : 0, bias_size);
}

/* --------------------------------------------------------------------------------------------------------- running */

typedef enum pass { FORWARD, BACKWARD_DATA, BACKWARD_WEIGHTS } pass;

static const char *const names[] = {"cudnnRNNForward", "cudnnRNNBackwardData_v8", "cudnnRNNBackwardWeights_v8"};

/* All operands as work finds them; NULL: not given. begin and end: states, then cells; end: also their errors. */
typedef struct running {
    pass which;
    rnn how;
    int positions, batch;
    bool training, tf32;
    void *x, *y, *dy, *dx, *begin[2], *end_error[2], *end[2];
    void *weights, *workspace, *reserve;
    size_t work_bytes;
} running;

static float read_at(int type, const void *at, size_t place) {
    union {
        uint32_t bits;
        float value;
    } word;
    if (type == GG_CUDNN_DATA_FLOAT) return ((const float *)at)[place];
    word.bits = (uint32_t)((const uint16_t *)at)[place] << 16;
    return word.value;
}

static void write_at(int type, void *at, size_t place, float value) {
    union {
        float value;
        uint32_t bits;
    } word = {value};
    if (type == GG_CUDNN_DATA_FLOAT) ((float *)at)[place] = value;
    else
        ((uint16_t *)at)[place] =
            value != value ? 0x7fc0 : (uint16_t)((word.bits + 0x7fffu + (word.bits >> 16 & 1u)) >> 16);
}

/* What a product reads of a value. */
static double factor(const running *it, float value) { return (double)(it->tf32 ? gg_standin_tf32(value) : value); }

static double weight_at(const running *it, int layer, int number, int row, size_t column) {
    const size_t place = (size_t)row * inputs_of(&it->how, layer, number) + column;
    return factor(it, read_at(it->how.type, (char *)it->weights + place_of(&it->how, layer, number, false), place));
}

/* One layer: (N, T, ...) of floats, in the reserve, or in memory of the pass where there is none. */
typedef struct layer {
    float *gates, *cells, *states;
} layer;

static layer layer_of(const running *it, float *base, int number) {
    const size_t states = (size_t)it->batch * (size_t)it->positions * (size_t)it->how.hidden;
    float *own = base + (size_t)number * 6 * states;
    return (layer){own, own + 4 * states, own + 5 * states};
}

/* Value `i` of what a layer reads of row (sample, position). */
static float input_at(const running *it, float *base, int number, size_t row, size_t i) {
    if (number == 0) return read_at(it->how.type, it->x, row * (size_t)it->how.inputs + i);
    return layer_of(it, base, number - 1).states[row * (size_t)it->how.hidden + i];
}

/* A state (0) or a cell (1) with which a layer begins. */
static float begin_at(const running *it, int which, int number, int sample, int unit) {
    const size_t place = ((size_t)number * (size_t)it->batch + (size_t)sample) * (size_t)it->how.hidden + (size_t)unit;
    return it->begin[which] != NULL ? read_at(it->how.type, it->begin[which], place) : 0.0f;
}

static double logistic(double x) { return 1 / (1 + exp(-x)); }

/* As the type of the network holds it. */
static float rounded(const running *it, float value) {
    float cell[1];
    write_at(it->how.type, cell, 0, value);
    return read_at(it->how.type, cell, 0);
}

static void forward_position(const running *it, float *base, int number, int sample, int position) {
    const layer own = layer_of(it, base, number);
    const int hidden = it->how.hidden;
    const size_t row = (size_t)sample * (size_t)it->positions + (size_t)position,
                 inputs = inputs_of(&it->how, number, 0);
    for (int unit = 0; unit < hidden; ++unit) {
        double sum[GATES];
        const size_t at = row * (size_t)hidden + (size_t)unit;
        for (int gate = 0; gate < GATES; ++gate) {
            sum[gate] = 0;
            for (size_t i = 0; i < inputs; ++i)
                sum[gate] += weight_at(it, number, gate, unit, i) * factor(it, input_at(it, base, number, row, i));
            for (int j = 0; j < hidden; ++j) {
                const float before = position == 0 ? begin_at(it, 0, number, sample, j)
                                                   : own.states[(row - 1) * (size_t)hidden + (size_t)j];
                sum[gate] += weight_at(it, number, GATES + gate, unit, (size_t)j) * factor(it, before);
            }
            if (it->how.biased)
                sum[gate] += (double)read_at(it->how.type, (char *)it->weights + place_of(&it->how, number, gate, true),
                                             (size_t)unit);
        }
        const float before = position == 0 ? begin_at(it, 1, number, sample, unit) : own.cells[at - (size_t)hidden];
        const double in = logistic(sum[0]), forget = logistic(sum[1]), fresh = tanh(sum[2]), out = logistic(sum[3]);
        const double cell = forget * (double)before + in * fresh;
        const double gates[GATES] = {in, forget, fresh, out};
        for (int gate = 0; gate < GATES; ++gate) own.gates[at * GATES + (size_t)gate] = (float)gates[gate];
        own.cells[at] = (float)cell;
        own.states[at] = rounded(it, (float)(out * tanh(cell)));
    }
}

static void run_forward(const running *it, float *base) {
    const int hidden = it->how.hidden;
    for (int number = 0; number < it->how.layers; ++number) {
        const layer own = layer_of(it, base, number);
        for (int sample = 0; sample < it->batch; ++sample) {
            for (int position = 0; position < it->positions; ++position)
                forward_position(it, base, number, sample, position);
            const size_t last = ((size_t)(sample + 1) * (size_t)it->positions - 1) * (size_t)hidden;
            const size_t to = ((size_t)number * (size_t)it->batch + (size_t)sample) * (size_t)hidden;
            const float *const from[2] = {own.states + last, own.cells + last};
            for (int i = 0; i < 2; ++i)
                for (int unit = 0; unit < hidden && it->end[i] != NULL; ++unit)
                    write_at(it->how.type, it->end[i], to + (size_t)unit, from[i][unit]);
        }
        if (number < it->how.layers - 1) continue;
        for (size_t i = 0; i < (size_t)it->batch * (size_t)it->positions * (size_t)hidden; ++i)
            write_at(it->how.type, it->y, i, own.states[i]);
    }
}

/* The errors of the states, (N, T, H), become those of what the layer reads, (N, T, inputs); gates become theirs. */
static void run_back(const running *it, float *base, int number, const double *error, double *below) {
    const layer own = layer_of(it, base, number);
    const size_t hidden = (size_t)it->how.hidden, inputs = inputs_of(&it->how, number, 0);
    double *later = calloc(2 * hidden, sizeof *later), *cell_error = later + hidden;
    if (later == NULL) abort();
    for (int sample = 0; sample < it->batch; ++sample) {
        memset(later, 0, 2 * hidden * sizeof *later);
        for (int position = it->positions - 1; position >= 0; --position) {
            const size_t row = (size_t)sample * (size_t)it->positions + (size_t)position;
            for (size_t unit = 0; unit < hidden; ++unit) {
                const size_t at = row * hidden + unit;
                float *gate = own.gates + at * GATES;
                const double in = gate[0], forget = gate[1], fresh = gate[2], out = gate[3];
                const double before =
                    position == 0 ? begin_at(it, 1, number, sample, (int)unit) : own.cells[at - hidden];
                const double bent = tanh((double)own.cells[at]), d = error[at] + later[unit];
                const double dc = cell_error[unit] + d * out * (1 - bent * bent);
                gate[0] = (float)(dc * fresh * in * (1 - in));
                gate[1] = (float)(dc * before * forget * (1 - forget));
                gate[2] = (float)(dc * in * (1 - fresh * fresh));
                gate[3] = (float)(d * bent * out * (1 - out));
                cell_error[unit] = dc * forget;
            }
            for (size_t to = 0; to < hidden; ++to) later[to] = 0;
            for (size_t unit = 0; unit < hidden; ++unit)
                for (int gate = 0; gate < GATES; ++gate) {
                    const double d = factor(it, own.gates[(row * hidden + unit) * GATES + (size_t)gate]);
                    for (size_t to = 0; to < hidden; ++to)
                        later[to] += d * weight_at(it, number, GATES + gate, (int)unit, to);
                    for (size_t to = 0; to < inputs; ++to)
                        below[row * inputs + to] += d * weight_at(it, number, gate, (int)unit, to);
                }
        }
    }
    free(later);
}

static void run_backward_data(const running *it, float *base) {
    const size_t rows = (size_t)it->batch * (size_t)it->positions, hidden = (size_t)it->how.hidden;
    double *error = malloc(rows * hidden * sizeof *error);
    if (error == NULL) abort();
    for (size_t i = 0; i < rows * hidden; ++i) error[i] = (double)read_at(it->how.type, it->dy, i);
    for (int number = it->how.layers - 1; number >= 0; --number) {
        const size_t inputs = inputs_of(&it->how, number, 0);
        double *below = calloc(rows * inputs, sizeof *below);
        if (below == NULL) abort();
        run_back(it, base, number, error, below);
        free(error);
        error = below;
    }
    for (size_t i = 0; i < rows * (size_t)it->how.inputs; ++i) write_at(it->how.type, it->dx, i, (float)error[i]);
    free(error);
}

static void add_weight(const running *it, char *array, size_t place, double value) {
    write_at(it->how.type, array, place, (float)(value + (double)read_at(it->how.type, array, place)));
}

static void run_backward_weights(const running *it, float *base) {
    const size_t rows = (size_t)it->batch * (size_t)it->positions, hidden = (size_t)it->how.hidden;
    for (int number = 0; number < it->how.layers; ++number) {
        const layer own = layer_of(it, base, number);
        for (int matrix = 0; matrix < MATRICES; ++matrix) {
            const size_t inputs = inputs_of(&it->how, number, matrix), gate = (size_t)matrix % GATES;
            char *array = (char *)it->weights + place_of(&it->how, number, matrix, false);
            for (size_t unit = 0; unit < hidden; ++unit) {
                double bias = 0;
                for (size_t row = 0; row < rows; ++row) bias += (double)own.gates[(row * hidden + unit) * GATES + gate];
                if (it->how.biased && matrix < GATES)
                    add_weight(it, (char *)it->weights + place_of(&it->how, number, matrix, true), unit, bias);
                for (size_t i = 0; i < inputs; ++i) {
                    double sum = 0;
                    for (size_t row = 0; row < rows; ++row) {
                        const size_t position = row % (size_t)it->positions;
                        float value;
                        if (matrix < GATES) value = input_at(it, base, number, row, i);
                        else if (position > 0) value = own.states[(row - 1) * hidden + i];
                        else value = begin_at(it, 0, number, (int)(row / (size_t)it->positions), (int)i);
                        sum += factor(it, own.gates[(row * hidden + unit) * GATES + gate]) * factor(it, value);
                    }
                    add_weight(it, array, unit * inputs + i, sum);
                }
            }
        }
    }
}

static void run_network(void *packet) {
    const running *it = packet;
    reserve_head *head = it->reserve;
    const reserve_head own = {MAGIC, FORWARD_DONE, it->how, it->positions, it->batch};
    const size_t floats =
        (size_t)it->how.layers * 6 * (size_t)it->batch * (size_t)it->positions * (size_t)it->how.hidden;
    float *base = it->training ? (float *)(head + 1) : malloc(floats * sizeof *base);
    if (base == NULL) abort();
    if (it->work_bytes > 0) memset(it->workspace, 0xff, it->work_bytes); /* what it held is lost */
    if (it->which != FORWARD) {
        const phase wanted = it->which == BACKWARD_DATA ? FORWARD_DONE : DATA_DONE;
        if (head->magic != MAGIC || head->done != wanted || memcmp(&head->how, &own.how, sizeof own.how) != 0 ||
            head->positions != it->positions || head->batch != it->batch)
            gg_standin_violation(BAD_PARAM, "%s: the reserve is not what the pass before it has left",
                                 names[it->which]);
        if (it->which == BACKWARD_DATA) run_backward_data(it, base);
        else run_backward_weights(it, base);
        head->done = it->which == BACKWARD_DATA ? DATA_DONE : NOTHING;
        return;
    }
    run_forward(it, base);
    if (it->training) memcpy(head, &own, sizeof own);
    else free(base);
}

/* --------------------------------------------------------------------------------------------------------- checks */

typedef struct operand {
    const char *name;
    const void *at;
    size_t bytes, alignment;
    bool written, needed;
    void **where;
} operand;

static bool overlap(const operand *a, const operand *b) {
    return (const char *)a->at < (const char *)b->at + b->bytes && (const char *)b->at < (const char *)a->at + a->bytes;
}

/* Those that are given become addresses for the work. */
static int find_operands(const char *function, operand *all, int count, gg_standin_uses *uses) {
    for (int i = 0; i < count; ++i) {
        if (all[i].at == NULL && all[i].needed && all[i].bytes > 0)
            return gg_standin_violation(BAD_PARAM, "%s: %s is NULL", function, all[i].name);
        if (all[i].at == NULL || all[i].bytes == 0) continue;
        if (!gg_standin_operand(uses, function, all[i].name, all[i].at, all[i].bytes, all[i].alignment, all[i].where))
            return MISALIGNED;
        for (int j = 0; j < i; ++j)
            if (all[j].at != NULL && all[j].bytes > 0 && (all[i].written || all[j].written) &&
                overlap(&all[i], &all[j]))
                return gg_standin_violation(BAD_PARAM, "%s: %s overlaps with %s", function, all[i].name, all[j].name);
    }
    return 0;
}

/* What a call gives, but for the operands of its own. */
typedef struct call {
    const void *handle, *object, *x_desc, *y_desc, *state_desc[2];
    const void *lengths;
    size_t weight_bytes, work_bytes, reserve_bytes;
} call;

static int check_call(const char *function, const call *of, running *out, gg_cuda_stream *stream) {
    const rnn *it = gg_standin_find(function, rnn_kind, of->object);
    const data *x = gg_standin_find(function, data_kind, of->x_desc),
               *y = gg_standin_find(function, data_kind, of->y_desc);
    if (it == NULL || x == NULL || y == NULL || !gg_standin_dnn_stream(function, of->handle, stream)) return BAD_PARAM;
    if (!it->set || !x->set || !y->set)
        return gg_standin_violation(BAD_PARAM, "%s: the descriptor of %s is not set", function,
                                    !it->set  ? "the network"
                                    : !x->set ? "x"
                                              : "y");
    if (of->lengths != NULL)
        return gg_standin_violation(BAD_PARAM, "%s: lengths in memory of the device are for older versions", function);
    if (x->type != it->type || y->type != it->type)
        return gg_standin_violation(BAD_PARAM, "%s: types %d, %d and %d", function, it->type, x->type, y->type);
    if (x->values != it->inputs || y->values != it->hidden || x->batch != y->batch || x->positions != y->positions)
        return gg_standin_violation(SHAPE_MISMATCH, "%s: (%d, %d, %d) to (%d, %d, %d) by (%d, %d)", function, x->batch,
                                    x->positions, x->values, y->batch, y->positions, y->values, it->inputs, it->hidden);
    for (int i = 0; i < 2 && of->state_desc[i] != NULL; ++i) {
        int type, dims, size[4];
        const int status = gg_standin_tensor_get(function, of->state_desc[i], &type, &dims, size);
        if (status != 0) return status;
        if (type != it->type || dims != 3 || size[0] != it->layers || size[1] != x->batch || size[2] != it->hidden)
            return gg_standin_violation(SHAPE_MISMATCH, "%s: the states are not (%d, %d, %d)", function, it->layers,
                                        x->batch, it->hidden);
    }
    if (of->weight_bytes != weight_bytes_of(it))
        return gg_standin_violation(BAD_PARAM, "%s: the weight space has %zu bytes, not %zu", function,
                                    weight_bytes_of(it), of->weight_bytes);
    out->how = *it;
    out->positions = x->positions;
    out->batch = x->batch;
    out->work_bytes = work_bytes_of(it, x);
    out->tf32 = it->type == GG_CUDNN_DATA_FLOAT && it->math == GG_CUDNN_DEFAULT_MATH;
    if (of->work_bytes < out->work_bytes || (out->training && of->reserve_bytes < reserve_bytes_of(it, x)))
        return gg_standin_violation(BAD_PARAM, "%s: %zu bytes of workspace and %zu of reserve are needed, not %zu, %zu",
                                    function, out->work_bytes, reserve_bytes_of(it, x), of->work_bytes,
                                    of->reserve_bytes);
    return 0;
}

static size_t data_bytes(const running *it, int values) {
    return (size_t)it->batch * (size_t)it->positions * (size_t)values * element_bytes(&it->how);
}

static size_t state_bytes(const running *it) {
    return (size_t)it->how.layers * (size_t)it->batch * (size_t)it->how.hidden * element_bytes(&it->how);
}

static size_t reserve_bytes(const running *it) {
    const data x = {.positions = it->positions, .batch = it->batch};
    return it->training ? reserve_bytes_of(&it->how, &x) : 0;
}

static int submit(const char *function, gg_cuda_stream stream, running *it, operand *all, int count) {
    gg_standin_uses uses = {0};
    const int status = find_operands(function, all, count, &uses);
    if (status != 0) return status;
    if (it->tf32) gg_standin_count_one("tf32");
    return gg_standin_submit(function, stream, run_network, it, sizeof *it, &uses) == 0 ? 0 : BAD_PARAM;
}

static int cudnnRNNForward(gg_cudnn_handle handle, gg_cudnn_rnn object, int mode, const int32_t *lengths,
                           gg_cudnn_rnn_data x_desc, const void *x, gg_cudnn_rnn_data y_desc, void *y,
                           gg_cudnn_tensor h_desc, const void *hx, void *hy, gg_cudnn_tensor c_desc, const void *cx,
                           void *cy, size_t weight_bytes, const void *weights, size_t work_bytes, void *workspace,
                           size_t reserve_bytes_given, void *reserve) {
    const char *function = names[FORWARD];
    running it = {.which = FORWARD, .training = mode == GG_CUDNN_RNN_TRAINING};
    const call of = {
        handle, object, x_desc, y_desc, {h_desc, c_desc}, lengths, weight_bytes, work_bytes, reserve_bytes_given};
    gg_cuda_stream stream;
    int status = gg_standin_enter(function);
    if (status == 0) status = check_call(function, &of, &it, &stream);
    if (status != 0) return status;
    operand all[] = {
        {"x", x, data_bytes(&it, it.how.inputs), ALIGNED, false, true, &it.x},
        {"y", y, data_bytes(&it, it.how.hidden), ALIGNED, true, true, &it.y},
        {"hx", hx, state_bytes(&it), ALIGNED, false, false, &it.begin[0]},
        {"hy", hy, state_bytes(&it), ALIGNED, true, false, &it.end[0]},
        {"cx", cx, state_bytes(&it), ALIGNED, false, false, &it.begin[1]},
        {"cy", cy, state_bytes(&it), ALIGNED, true, false, &it.end[1]},
        {"the weight space", weights, weight_bytes, ALIGNED_SPACE, false, true, &it.weights},
        {"the workspace", workspace, it.work_bytes, ALIGNED_SPACE, true, true, &it.workspace},
        {"the reserve", reserve, reserve_bytes(&it), ALIGNED_SPACE, true, true, &it.reserve},
    };
    return submit(function, stream, &it, all, sizeof all / sizeof *all);
}

static int cudnnRNNBackwardData_v8(gg_cudnn_handle handle, gg_cudnn_rnn object, const int32_t *lengths,
                                   gg_cudnn_rnn_data y_desc, const void *y, const void *dy, gg_cudnn_rnn_data x_desc,
                                   void *dx, gg_cudnn_tensor h_desc, const void *hx, const void *dhy, void *dhx,
                                   gg_cudnn_tensor c_desc, const void *cx, const void *dcy, void *dcx,
                                   size_t weight_bytes, const void *weights, size_t work_bytes, void *workspace,
                                   size_t reserve_bytes_given, void *reserve) {
    const char *function = names[BACKWARD_DATA];
    running it = {.which = BACKWARD_DATA, .training = true};
    const call of = {
        handle, object, x_desc, y_desc, {h_desc, c_desc}, lengths, weight_bytes, work_bytes, reserve_bytes_given};
    gg_cuda_stream stream;
    int status = gg_standin_enter(function);
    if (status == 0) status = check_call(function, &of, &it, &stream);
    if (status != 0) return status;
    if (dhy != NULL || dhx != NULL || dcy != NULL || dcx != NULL)
        return gg_standin_violation(NOT_SUPPORTED, "%s: errors of the states that a batch begins or ends with",
                                    function);
    operand all[] = {
        {"y", y, data_bytes(&it, it.how.hidden), ALIGNED, false, true, &it.y},
        {"dy", dy, data_bytes(&it, it.how.hidden), ALIGNED, false, true, &it.dy},
        {"dx", dx, data_bytes(&it, it.how.inputs), ALIGNED, true, true, &it.dx},
        {"hx", hx, state_bytes(&it), ALIGNED, false, false, &it.begin[0]},
        {"cx", cx, state_bytes(&it), ALIGNED, false, false, &it.begin[1]},
        {"the weight space", weights, weight_bytes, ALIGNED_SPACE, false, true, &it.weights},
        {"the workspace", workspace, it.work_bytes, ALIGNED_SPACE, true, true, &it.workspace},
        {"the reserve", reserve, reserve_bytes(&it), ALIGNED_SPACE, true, true, &it.reserve},
    };
    return submit(function, stream, &it, all, sizeof all / sizeof *all);
}

static int cudnnRNNBackwardWeights_v8(gg_cudnn_handle handle, gg_cudnn_rnn object, int add, const int32_t *lengths,
                                      gg_cudnn_rnn_data x_desc, const void *x, gg_cudnn_tensor h_desc, const void *hx,
                                      gg_cudnn_rnn_data y_desc, const void *y, size_t weight_bytes, void *weights,
                                      size_t work_bytes, void *workspace, size_t reserve_bytes_given, void *reserve) {
    const char *function = names[BACKWARD_WEIGHTS];
    running it = {.which = BACKWARD_WEIGHTS, .training = true};
    const call of = {
        handle, object, x_desc, y_desc, {h_desc, NULL}, lengths, weight_bytes, work_bytes, reserve_bytes_given};
    gg_cuda_stream stream;
    int status = gg_standin_enter(function);
    if (status == 0) status = check_call(function, &of, &it, &stream);
    if (status != 0) return status;
    if (add != GG_CUDNN_RNN_ADD)
        return gg_standin_violation(NOT_SUPPORTED, "%s: gradients are added to what is there", function);
    operand all[] = {
        {"x", x, data_bytes(&it, it.how.inputs), ALIGNED, false, true, &it.x},
        {"y", y, data_bytes(&it, it.how.hidden), ALIGNED, false, true, &it.y},
        {"hx", hx, state_bytes(&it), ALIGNED, false, false, &it.begin[0]},
        {"the weight space", weights, weight_bytes, ALIGNED_SPACE, true, true, &it.weights},
        {"the workspace", workspace, it.work_bytes, ALIGNED_SPACE, true, true, &it.workspace},
        {"the reserve", reserve, reserve_bytes(&it), ALIGNED_SPACE, true, true, &it.reserve},
    };
    return submit(function, stream, &it, all, sizeof all / sizeof *all);
}

void gg_standin_fill_cudnn_rnn(gg_cuda_api *api) {
#define FILL(result, name, arguments) api->name = name;
    GG_CUDNN_RNN_FUNCTIONS(FILL)
}
