/* The native LSTM's layers, and its products with the recurrent weights, of which there are three kinds. */
#ifndef GG_CPU_RECURRENT_LSTM_PRIVATE_H
#define GG_CPU_RECURRENT_LSTM_PRIVATE_H

#include "cpu/gemm/gemm_kernels.h"
#include "cpu/gemm/paired_kernels.h"
#include "cpu/gemm/split_kernels.h"
#include "cpu/native.h"
#include "cpu/recurrent/lstm_shared.h"

/* Recurrent weights of so many floats stay in the second-level cache while all samples use them. */
#define GG_LSTM_LARGE_WEIGHTS (256 * 1024)

typedef struct gg_lstm_products gg_lstm_products;

typedef struct gg_lstm_op {
    gg_op head;
    gg_device *device;
    const gg_lstm_products *products; /* with the recurrent weights */
    const gg_gemm_kernels *kernels;
    const gg_split_kernels *split; /* these two: NULL where the level has none, or the sizes are too small */
    const gg_paired_kernels *paired;
    int64_t batch, positions, inputs, hidden, layers;
    int64_t numbers;             /* rows of the table that tokens name; 0: the input is (T, inputs) */
    int64_t state_row, gate_row; /* distances of rows of H states that products read, and of 4H gates or errors */
    bool by_units;               /* how the threads divide the work */
    gg_lstm_dropout dropout;
    /* Floats, and where they begin. */
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
    const int32_t *token; /* (N, T), of the first layer if there is a table; else NULL */
    float *of_token;      /* (numbers, gate_row): what a token adds to the gates; backward: the sum of their errors */
    int32_t *order;       /* backward: gg_native_order_tokens' */
    float *gates;         /* (N, T, gate_row) */
    float *cells;         /* (N, T, H) */
    float *states;        /* (N, T, H) */
    float *first;         /* (N, 2, H): the states and the cells that it begins with */
    float *dropped;       /* (N, T, H): what the next layer reads; `states` without dropout */
    uint8_t *mask;        /* (N, T, mask_row) */
    float *packed;        /* the recurrent weights, as the products read them */
    float *rows;          /* forward: the states, backward: the gates' errors of two positions that follow each other */
    float *sums;          /* products that lie apart: of a position's states, gate_row from one sample to the next */
    float *own;           /* what each thread packs of a position, own_floats apart */
    float *later, *cell_error;
    const float *error; /* backward: of the states */
    int64_t position;   /* when threads meet after each */
    bool drops;
} gg_lstm_layer;

/* The samples and hidden units of a thread. */
typedef struct gg_lstm_share {
    int thread;
    int64_t sample, samples_end, unit, units_end;
} gg_lstm_share;

/* One kind of products. The weights are packed once a run; what a position reads of the one before, its states or its
 * gates' errors, is kept in `rows`. */
struct gg_lstm_products {
    bool apart; /* the products of states lie in `sums`, else they are added to the gates */
    /* The threads' shares begin at multiples of so many units and samples. */
    int64_t (*unit_grain)(const gg_lstm_op *op);
    int64_t sample_grain;
    /* Floats: of the weights, of the rows of a position, and of each thread. */
    size_t (*packed_floats)(const gg_lstm_op *op, bool forward);
    size_t (*rows_floats)(const gg_lstm_op *op, bool training);
    size_t (*own_floats)(const gg_lstm_op *op);
    /* A thread's part of the weights. */
    void (*pack)(const gg_lstm_layer *l, bool forward, int thread, int threads);
    /* What the first position reads, of samples [begin, end). */
    void (*keep_first)(const gg_lstm_layer *l, int64_t begin, int64_t end);
    /* Of position t: the product of the states before it; and what the next one reads. */
    void (*gates)(const gg_lstm_layer *l, int64_t t, const gg_lstm_share *share);
    void (*keep_states)(const gg_lstm_layer *l, int64_t t, const gg_lstm_share *share);
    /* The error of the states of a position, in `later`, from the gates' errors of the next; and what the position
     * before reads. */
    void (*errors)(const gg_lstm_layer *l, int64_t t, const gg_lstm_share *share);
    void (*keep_errors)(const gg_lstm_layer *l, int64_t t, const gg_lstm_share *share);
};

/* The kind for an operation of which device, kernels, batch and hidden are set; sets its kernels. */
void gg_lstm_choose_products(gg_lstm_op *op);

#endif
