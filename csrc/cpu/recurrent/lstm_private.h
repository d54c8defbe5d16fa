/* Layers of the native LSTM, and the three kinds of its products with the recurrent weights. */
#ifndef GG_CPU_RECURRENT_LSTM_PRIVATE_H
#define GG_CPU_RECURRENT_LSTM_PRIVATE_H

#include "cpu/gemm/gemm_kernels.h"
#include "cpu/gemm/paired_kernels.h"
#include "cpu/gemm/split_kernels.h"
#include "cpu/native.h"
#include "cpu/recurrent/lstm_shared.h"

/* Max floats of recurrent weights that stay in the L2 cache while all samples use them. */
#define GG_LSTM_LARGE_WEIGHTS (256 * 1024)

typedef struct gg_lstm_products gg_lstm_products;

typedef struct gg_lstm_op {
    gg_op head;
    gg_device *device;
    const gg_lstm_products *products; /* with the recurrent weights */
    const gg_gemm_kernels *kernels;
    const gg_split_kernels *split; /* NULL if the level has none, or the sizes are too small; `paired` too */
    const gg_paired_kernels *paired;
    int64_t batch, positions, inputs, hidden, layers;
    int64_t numbers;             /* rows of the token table; 0 means that the input is (T, inputs) */
    int64_t state_row, gate_row; /* row distances: of H states that products read, and of 4H gates or errors */
    bool by_units;               /* threads divide the hidden units, otherwise the samples */
    gg_lstm_dropout dropout;
    /* Sizes and offsets in floats. */
    size_t layer_floats, gates_at, cells_at, states_at, first_at, dropped_at, mask_at;
    size_t packed_at, bias_at, later_at, cell_error_at, before_at, error_at, rows_at, sums_at, token_at, order_at,
        own_at, product_at; /* in scratch */
} gg_lstm_op;

/* One layer of one run. */
typedef struct gg_lstm_layer {
    const gg_lstm_op *op;
    const gg_op_args *args;
    int64_t number, inputs;
    const float *in;      /* (N, T, inputs); with tokens the table (numbers, inputs) */
    const int32_t *token; /* (N, T) for the first layer with a table; otherwise NULL */
    float *of_token; /* (numbers, gate_row): forward: a token's addition to the gates; backward: the sum of its gate
                        errors */
    int32_t *order;  /* backward: order of gg_native_order_tokens */
    float *gates;    /* (N, T, gate_row) */
    float *cells;    /* (N, T, H) */
    float *states;   /* (N, T, H) */
    float *first;    /* (N, 2, H): initial states and cells */
    float *dropped;  /* (N, T, H): input of the next layer; equals `states` without dropout */
    uint8_t *mask;   /* (N, T, mask_row) */
    float *packed;   /* recurrent weights as packed for the products */
    float *rows;     /* of two successive positions: states (forward) or gate errors (backward) */
    float *sums;     /* products.apart: products of a position's states, gate_row from a sample to the next */
    float *own;      /* packed data of a position, for each thread, own_floats apart */
    float *later, *cell_error;
    const float *error; /* backward: error of the states */
    int64_t position;   /* current position, if threads meet after each */
    bool drops;
} gg_lstm_layer;

/* A thread's samples and hidden units. */
typedef struct gg_lstm_share {
    int thread;
    int64_t sample, samples_end, unit, units_end;
} gg_lstm_share;

/* One kind of products. Weights are packed once a run. `rows` keeps the states, or gate errors, that the next position
 * in the pass's order reads. */
struct gg_lstm_products {
    bool apart; /* products of states go to `sums`, otherwise they are added to the gates */
    /* Units and samples of the threads' shares begin at multiples of these. */
    int64_t (*unit_grain)(const gg_lstm_op *op);
    int64_t sample_grain;
    /* Floats of the packed weights, of the rows of a position, and of each thread. */
    size_t (*packed_floats)(const gg_lstm_op *op, bool forward);
    size_t (*rows_floats)(const gg_lstm_op *op, bool training);
    size_t (*own_floats)(const gg_lstm_op *op);
    /* Packs a thread's part of the weights. */
    void (*pack)(const gg_lstm_layer *l, bool forward, int thread, int threads);
    /* Keeps the states that the first position reads, for samples [begin, end). */
    void (*keep_first)(const gg_lstm_layer *l, int64_t begin, int64_t end);
    /* gates: product of the states before position t. keep_states: keeps the states for the next position. */
    void (*gates)(const gg_lstm_layer *l, int64_t t, const gg_lstm_share *share);
    void (*keep_states)(const gg_lstm_layer *l, int64_t t, const gg_lstm_share *share);
    /* errors: error of a position's states, in `later`, from the gate errors of position t. keep_errors: keeps gate
     * errors for the position before. */
    void (*errors)(const gg_lstm_layer *l, int64_t t, const gg_lstm_share *share);
    void (*keep_errors)(const gg_lstm_layer *l, int64_t t, const gg_lstm_share *share);
};

/* Chooses the kind for an operation and sets its kernels. Requires device, kernels, batch and hidden. */
void gg_lstm_choose_products(gg_lstm_op *op);

#endif
