/* Our own CUDA kernels of network operations. ops/backend.h defines the operations; the CPU's native operations are the
 * reference.
 * - Each function gives one or a few kernels to a stream and returns. Arrays lie in memory that kernels may use.
 *   Structs, and arrays of pointers in them, are read before the call returns.
 * - Activations and their gradients have type `dtype`, float32 or bfloat16; functions without dtype use float32.
 *   Computation and parameters are float32.
 * - Activations may have any layout without padding (PLAIN or NHWC), unless a function says otherwise.
 * - "In place" means that an output may be the named array.
 * - Sums have an order that depends on shapes alone, so results do not depend on timing.
 * - gg_cuda_*_scratch and gg_cuda_*_saved return the bytes of the named function's blocks, which are aligned to 16
 *   bytes.
 * - Results have the CPU's bits only if a comment says so; otherwise they agree within rounding. */
#ifndef GG_CUDA_KERNELS_NN_H
#define GG_CUDA_KERNELS_NN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------ one element after another
 */

/* RELU, TANH, SIGMOID, LEAKY_RELU and GELU. forward: out from in; in place. backward: out is the gradient of the input,
 * from `in` and grad; in place in either. `in` is then the forward's output; for GELU, and LEAKY_RELU with a negative
 * slope, its input. Both ReLU have the CPU's bits. */
typedef struct gg_cuda_activation_args {
    gg_dtype dtype;
    gg_op_kind kind;
    float slope;    /* LEAKY_RELU */
    bool tanh_form; /* GELU */
    size_t n;
    const void *in, *grad;
    void *out;
} gg_cuda_activation_args;
void gg_cuda_activation(gg_cuda_stream stream, const gg_cuda_activation_args *args);
void gg_cuda_activation_backward(gg_cuda_stream stream, const gg_cuda_activation_args *args);

/* ADD. forward: output = input[0] + input[1] + ..., then the ReLU; in place in any input. backward: each non-NULL
 * grad[i] gets grad_output; with relu 0 where the output was cut. Any grad[i] may be grad_output or output. The CPU's
 * bits. */
typedef struct gg_cuda_add_args {
    gg_dtype dtype;
    size_t n;
    int inputs;
    bool relu;
    const void *input[GG_MAX_INPUTS];
    void *output;
    const void *grad_output;
    void *grad[GG_MAX_INPUTS];
} gg_cuda_add_args;
void gg_cuda_add(gg_cuda_stream stream, const gg_cuda_add_args *args);
void gg_cuda_add_backward(gg_cuda_stream stream, const gg_cuda_add_args *args);

/* Stream of a dropout's words (base/random.h): the layer's mixed seed, the rank, the training step. */
typedef struct gg_cuda_draw {
    uint64_t seed;
    const uint64_t *step; /* read by the kernel; not read if the probability is 0 */
    uint32_t rank;
    float probability; /* 0..1 */
} gg_cuda_draw;

/* DROPOUT of `batch` samples: dropped values become 0, others are divided by 1 - probability. Feature f of sample n
 * draws word n%4 of block f*((batch + 3)/4) + n/4. Backward is this function too: it draws again, so nothing is saved.
 * In place. Masks and results have the CPU's bits. channels: of the image for NHWC; any value, for example 1, for
 * PLAIN. */
typedef struct gg_cuda_dropout_args {
    gg_dtype dtype;
    gg_layout layout; /* PLAIN or NHWC */
    int64_t batch, features, channels;
    gg_cuda_draw draw;
    const void *in;
    void *out;
} gg_cuda_dropout_args;
void gg_cuda_dropout(gg_cuda_stream stream, const gg_cuda_dropout_args *args);

/* Dropout between LSTM layers, for `rows` rows of `length` numbers. Number j of row r draws word j%4 of block
 * (first_row + r)*((length + 3)/4) + j/4. first_row is layer*batch*positions. In place. */
typedef struct gg_cuda_dropout_rows_args {
    int64_t rows, length, first_row;
    gg_cuda_draw draw;
    gg_dtype dtype;
    const void *in;
    void *out;
} gg_cuda_dropout_rows_args;
void gg_cuda_dropout_rows(gg_cuda_stream stream, const gg_cuda_dropout_rows_args *args);

/* ------------------------------------------------------------------------------------------ biases
 *
 * An array of outer x channels x inner values: (N*positions, features, 1) after a product and for NHWC, (N, C, H*W) for
 * PLAIN images. */

/* y = activation(y + bias), in place. */
typedef struct gg_cuda_bias_args {
    gg_dtype dtype;
    int64_t outer, channels, inner;
    bool relu;
    const float *bias; /* NULL means only the activation */
    void *y;
} gg_cuda_bias_args;
void gg_cuda_bias(gg_cuda_stream stream, const gg_cuda_bias_args *args);

/* grad becomes the error before the activation. bias gets its sum over outer and inner. */
typedef struct gg_cuda_bias_backward_args {
    gg_dtype dtype;
    int64_t outer, channels, inner;
    const void *y; /* output of a ReLU; NULL means no activation, and grad is unchanged */
    void *grad;
    float *bias; /* gradient of the bias; NULL means not wanted, and no scratch */
    void *scratch;
} gg_cuda_bias_backward_args;
size_t gg_cuda_bias_backward_scratch(int64_t outer, int64_t channels, int64_t inner);
void gg_cuda_bias_backward(gg_cuda_stream stream, const gg_cuda_bias_backward_args *args);

/* ------------------------------------------------------------------------------------------ convolutions
 *
 * NHWC float32 images, with factors rounded to TF32: tensor cores work on tiles in shared memory. For few channels and
 * filters, without groups. */

typedef struct gg_cuda_tiled_shape {
    int64_t batch;
    int image[2], output[2]; /* height and width: of the input image, of the output */
    int channels, filters;   /* channels of the image, channels of the output */
    int kernel[2], stride[2], padding[2], dilation[2];
} gg_cuda_tiled_shape;

/* True if gg_cuda_tiled, or gg_cuda_tiled_gradient, supports the shape. */
bool gg_cuda_tiled_fits(const gg_cuda_tiled_shape *shape);
bool gg_cuda_tiled_gradient_fits(const gg_cuda_tiled_shape *shape);

/* Makes the weight that gg_cuda_tiled reads, from (filters, channels, kernel). mirrored: from (channels, filters,
 * kernel), with each kernel rotated by 180 degrees. A mirrored weight gives the gradient of a convolution's input, for
 * stride 1: the image is the error, the padding is dilation*(kernel - 1) - padding. */
size_t gg_cuda_tiled_weight_bytes(const gg_cuda_tiled_shape *shape);
void gg_cuda_tiled_weight(gg_cuda_stream stream, const gg_cuda_tiled_shape *shape, bool mirrored, const float *weight,
                          void *out);

/* output = activation(convolution + bias). Not in place. */
typedef struct gg_cuda_tiled_args {
    gg_cuda_tiled_shape shape;
    const float *input;
    const void *weight; /* of gg_cuda_tiled_weight */
    const float *bias;  /* NULL means none */
    bool relu;
    float *output;
} gg_cuda_tiled_args;
void gg_cuda_tiled(gg_cuda_stream stream, const gg_cuda_tiled_args *args);

/* Gradient of the weight, (filters, channels, kernel), from the error of the convolution's output. */
typedef struct gg_cuda_tiled_gradient_args {
    gg_cuda_tiled_shape shape;
    const float *input, *error;
    void *scratch;
    float *gradient;
} gg_cuda_tiled_gradient_args;
size_t gg_cuda_tiled_gradient_scratch(const gg_cuda_tiled_shape *shape);
void gg_cuda_tiled_gradient(gg_cuda_stream stream, const gg_cuda_tiled_gradient_args *args);

/* ------------------------------------------------------------------------------------------ pooling */

/* MAX_POOL2D, AVG_POOL2D and ADAPTIVE_AVG_POOL2D. desc has been checked; samples have at most INT_MAX values.
 * MAX_POOL2D stores the place of each max in `saved`, gg_cuda_pool_saved bytes; NULL means not stored. Its backward
 * reads only `saved` and grad_output. Max and its gradient have the CPU's bits. Not in place. */
size_t gg_cuda_pool_saved(const gg_op_desc *desc);
void gg_cuda_pool(gg_cuda_stream stream, const gg_op_desc *desc, gg_format format, const void *in, void *out,
                  void *saved);
void gg_cuda_pool_backward(gg_cuda_stream stream, const gg_op_desc *desc, gg_format format, const void *grad_output,
                           const void *saved, void *grad_input);

/* ------------------------------------------------------------------------------------------ normalisations */

/* BATCH_NORM of outer x channels x inner values, as for biases, with the fused sum and ReLU of backend.h.
 * - forward: uses the batch's statistics if batch_statistics, otherwise the running ones. Writes `saved` for backward.
 * - backward: writes all existing parameter gradients. grad_added gets the error before the activation, and may be
 *   output or grad_output. If a sum was fused and grad_added is NULL, grad_output gets that error. grad_input may be
 *   NULL or grad_output. */
typedef struct gg_cuda_batch_norm_args {
    gg_dtype dtype;
    int64_t outer, channels, inner;
    bool relu, batch_statistics;
    float epsilon, momentum;
    const void *input, *added; /* added: NULL means none */
    void *output;
    void *grad_output, *grad_input, *grad_added;
    const float *weight, *bias;                   /* NULL means not affine */
    const float *running_mean, *running_variance; /* NULL means not tracked */
    float *grad_weight, *grad_bias, *grad_mean, *grad_variance;
    float *saved;
    void *scratch; /* of forward and backward */
} gg_cuda_batch_norm_args;
size_t gg_cuda_batch_norm_saved(int64_t channels);
size_t gg_cuda_batch_norm_scratch(int64_t outer, int64_t channels, int64_t inner);
void gg_cuda_batch_norm(gg_cuda_stream stream, const gg_cuda_batch_norm_args *args);
void gg_cuda_batch_norm_backward(gg_cuda_stream stream, const gg_cuda_batch_norm_args *args);

/* LAYER_NORM of the rows of each of `batch` samples, PLAIN. In place, forward and backward. backward: grad_weight NULL
 * means no parameter gradients; grad_bias NULL means no bias. */
typedef struct gg_cuda_layer_norm_args {
    gg_dtype dtype;
    int64_t batch;
    gg_norm_rows rows;
    float epsilon;
    const void *input;
    void *output;
    const void *grad_output;
    void *grad_input; /* NULL means not wanted */
    const float *weight, *bias;
    float *grad_weight, *grad_bias;
    float *saved;
    void *scratch; /* for backward with grad_weight */
} gg_cuda_layer_norm_args;
size_t gg_cuda_layer_norm_saved(int64_t batch, const gg_norm_rows *rows);
size_t gg_cuda_layer_norm_scratch(int64_t batch, const gg_norm_rows *rows);
void gg_cuda_layer_norm(gg_cuda_stream stream, const gg_cuda_layer_norm_args *args);
void gg_cuda_layer_norm_backward(gg_cuda_stream stream, const gg_cuda_layer_norm_args *args);

/* LOCAL_RESPONSE_NORM of outer x channels x inner values, as for biases. `saved` gets a float for each value; NULL
 * means no backward. scratch of backward has a float for each value too. Not in place. */
typedef struct gg_cuda_lrn_args {
    gg_dtype dtype;
    int64_t outer, channels, inner;
    int64_t size;
    float alpha, beta, k;
    const void *input;
    void *output;
    const void *grad_output;
    void *grad_input;
    float *saved, *scratch;
} gg_cuda_lrn_args;
void gg_cuda_lrn(gg_cuda_stream stream, const gg_cuda_lrn_args *args);
void gg_cuda_lrn_backward(gg_cuda_stream stream, const gg_cuda_lrn_args *args);

/* ------------------------------------------------------------------------------------------ softmax and attention */

/* SOFTMAX along the middle axis of outer x length x inner values. In place; backward in place of grad_output. */
typedef struct gg_cuda_softmax_args {
    gg_dtype dtype;
    int64_t outer, length, inner;
    const void *input;
    void *output;
    const void *grad_output;
    void *grad_input;
} gg_cuda_softmax_args;
void gg_cuda_softmax(gg_cuda_stream stream, const gg_cuda_softmax_args *args);
void gg_cuda_softmax_backward(gg_cuda_stream stream, const gg_cuda_softmax_args *args);

/* Rows of attention weights between the two products.
 * - Covers the queries [first, first + queries) of the heads [first_head, first_head + count). Head h of sample n has
 *   number n*heads + h.
 * - Matrix i of scores, for head first_head + i, begins at scores + i*matrix. Its row q, for query first + q, is q*row
 *   further and has `positions` keys. All other matrices have this layout.
 * - weights and score_error have type dtype.
 * - forward: weights = softmax(scale*score) over the keys that the query sees, with dropout; 0 for other keys. `saved`
 *   gets two floats a row, at 2*(number*positions + query); NULL means no backward.
 * - backward: weights are those after dropout, from recomputed scores. score_error is the error of the scores,
 *   including the scale, from `error`, the error of the weights; 0 for keys that the query does not see.
 * - In float32 weights may be scores, and score_error may be error.
 * - Dropout draws as on the CPU: key j of a row draws word j%4 of block (number*positions + query)*((positions + 3)/4)
 *   + j/4.
 * - Lengths outside of 1..positions are clamped, and *bad reports the first such sample. */
typedef struct gg_cuda_attention_args {
    int64_t heads, positions;
    int64_t first_head, count, first, queries;
    int64_t matrix, row;
    bool causal;
    float scale;
    const int32_t *lengths; /* of the samples; NULL means that all see all positions */
    gg_cuda_draw draw;      /* probability 0 means no dropout */
    gg_dtype dtype;
    const float *scores, *error;
    void *weights, *score_error;
    float *saved;
    uint32_t
        *bad; /* becomes the min of itself and the sample's number; set it to UINT32_MAX first. NULL means no report */
} gg_cuda_attention_args;
void gg_cuda_attention(gg_cuda_stream stream, const gg_cuda_attention_args *args);
void gg_cuda_attention_backward(gg_cuda_stream stream, const gg_cuda_attention_args *args);

/* Converts between the layout of linear layers, (samples, positions, parts, heads, size), and consecutive rows of each
 * head, (parts, samples, heads, positions, size). split: from the first to the second. */
typedef struct gg_cuda_heads_args {
    int64_t samples, positions, parts, heads, size;
    bool split;
    gg_dtype dtype;
    const void *from;
    void *to;
} gg_cuda_heads_args;
void gg_cuda_heads(gg_cuda_stream stream, const gg_cuda_heads_args *args);

/* ------------------------------------------------------------------------------------------ LSTM */

/* One position of one layer, for all samples. The gates of sample n, (4, hidden) in the order i, f, g, o, lie at gates
 * + n*gates_row. `before` are the cells before this position, at n*before_row. cell is at n*cell_row, state at
 * n*state_row, the state's error at n*error_row. later and cell_error are (batch, hidden).
 * - forward: gates hold the sums of both products and biases; they are activated in place. Writes cell and state.
 * - backward: gates become their errors. later is the state's error from the next position, ignored at the last.
 *   cell_error is the cell's error, taken as 0 at the last; it becomes the error of `before`. */
typedef struct gg_cuda_lstm_args {
    int64_t batch, hidden;
    int64_t gates_row, before_row, cell_row, state_row, error_row;
    float *gates;
    const float *before;
    float *cell, *state;
    bool last;
    const float *error, *later;
    float *cell_error;
} gg_cuda_lstm_args;
void gg_cuda_lstm(gg_cuda_stream stream, const gg_cuda_lstm_args *args);
void gg_cuda_lstm_backward(gg_cuda_stream stream, const gg_cuda_lstm_args *args);

/* gg_cuda_lstm fused with the product of the recurrent weights, (4, hidden, hidden), whose factors are rounded to TF32.
 * For few samples. Arrays and their rows are aligned to 8 bytes.
 * - forward: first adds the product of the states before this position, at state + n*state_row, to the gates.
 * - backward: errors, at errors + n*gates_row, are the next position's gate errors. Their product replaces `later`,
 *   which is not read. Not for the last position. */
bool gg_cuda_lstm_step_fits(int64_t hidden);
void gg_cuda_lstm_step(gg_cuda_stream stream, const gg_cuda_lstm_args *args, const float *weight, const float *state,
                       int64_t state_row);
void gg_cuda_lstm_step_backward(gg_cuda_stream stream, const gg_cuda_lstm_args *args, const float *weight,
                                const float *errors);

/* Converts between an LSTM's parameters and cuDNN's weight space, whose places and type differ; bfloat16 rounds to
 * nearest even. A piece lies at space + at, in elements. from and to name one or two float32 arrays; the second is NULL
 * if there is one.
 * - pack: space = from[0] + from[1].
 * - unpack: to[0] = to[1] = space. */
#define GG_CUDA_LSTM_PIECES 24
typedef struct gg_cuda_lstm_piece {
    const float *from[2]; /* pack */
    float *to[2];         /* unpack */
    int64_t at, count;
} gg_cuda_lstm_piece;
typedef struct gg_cuda_lstm_pieces {
    gg_dtype dtype; /* of the space */
    void *space;
    int pieces;
    gg_cuda_lstm_piece piece[GG_CUDA_LSTM_PIECES];
} gg_cuda_lstm_pieces;
void gg_cuda_lstm_pack(gg_cuda_stream stream, const gg_cuda_lstm_pieces *args);
void gg_cuda_lstm_unpack(gg_cuda_stream stream, const gg_cuda_lstm_pieces *args);

/* Converts the state carried from batch to batch: (batch, layers, 2, hidden) float32, states then cells. cuDNN has
 * arrays (layers, batch, hidden) of each, with layers `step` elements apart. */
typedef struct gg_cuda_lstm_state_args {
    int64_t layers, batch, hidden, step;
    gg_dtype dtype; /* of `states` and `cells` */
    float *carried;
    void *states, *cells;
} gg_cuda_lstm_state_args;
void gg_cuda_lstm_begin(gg_cuda_stream stream, const gg_cuda_lstm_state_args *args); /* from carried */
void gg_cuda_lstm_end(gg_cuda_stream stream, const gg_cuda_lstm_state_args *args);   /* to carried */

/* ------------------------------------------------------------------------------------------ tables of rows */

/* EMBEDDING. Tokens outside of 0..numbers-1 give rows of zeros and no gradient; *bad reports the first. The table and
 * its gradient are float32. backward: each row of the gradient is the sum of its tokens' errors. The order of the sum
 * depends on the tokens alone. Up to some dozens of tokens are added in their order. */
typedef struct gg_cuda_embedding_args {
    int64_t tokens, features, numbers; /* tokens of the batch, less than 2^31 */
    gg_dtype dtype;                    /* of output and grad_output */
    const int32_t *token;
    const float *table;
    void *output;
    const void *grad_output;
    float *grad_table;
    void *scratch; /* backward */
    uint32_t
        *bad; /* forward: becomes the min of itself and the token's place; set it to UINT32_MAX first; may be NULL */
} gg_cuda_embedding_args;
size_t gg_cuda_embedding_scratch(int64_t tokens, int64_t features);
void gg_cuda_embedding(gg_cuda_stream stream, const gg_cuda_embedding_args *args);
void gg_cuda_embedding_backward(gg_cuda_stream stream, const gg_cuda_embedding_args *args);

/* POSITION_EMBEDDING: a sample has `positions` rows of `features`. Forward in place. The table's gradient is wholly
 * written, summed over samples in their order. The input's gradient is grad_output itself. The CPU's bits. */
typedef struct gg_cuda_position_embedding_args {
    int64_t samples, positions, features, numbers;
    gg_dtype dtype; /* of all but the table and its gradient, which are float32 */
    const void *input;
    const float *table;
    void *output;
    const void *grad_output;
    float *grad_table;
} gg_cuda_position_embedding_args;
void gg_cuda_position_embedding(gg_cuda_stream stream, const gg_cuda_position_embedding_args *args);
void gg_cuda_position_embedding_backward(gg_cuda_stream stream, const gg_cuda_position_embedding_args *args);

/* ------------------------------------------------------------------------------------------ moving values
 *
 * These functions move float32 and bfloat16 values. Values that keep their type keep their bits; float32 to bfloat16
 * rounds to nearest even. None works in place. */

#define GG_CUDA_COPY_AXES (GG_MAX_DIMS + 1)

/* to[sum of i_a*to_step[a]] = from[sum of i_a*from_step[a]] for all i_a < size[a]; steps in values. Places in `to` must
 * be distinct. clear: this number of values of `to` are set to 0 first. */
typedef struct gg_cuda_copy_args {
    int axes;
    int64_t size[GG_CUDA_COPY_AXES], from_step[GG_CUDA_COPY_AXES], to_step[GG_CUDA_COPY_AXES];
    int64_t clear;
    const void *from;
    void *to;
    gg_dtype from_dtype, to_dtype;
} gg_cuda_copy_args;
void gg_cuda_copy_strided(gg_cuda_stream stream, const gg_cuda_copy_args *args);

/* Transposes (batches, rows, columns) to (batches, columns, rows). Weights (O, I, K) to (O, K, I): batches = O. PLAIN
 * images to NHWC: rows = C. Both back too. */
void gg_cuda_transpose_batched(gg_cuda_stream stream, int64_t batches, int64_t rows, int64_t columns,
                               gg_dtype from_dtype, gg_dtype to_dtype, const void *from, void *to);

/* REORDER among PLAIN and NHWC, float32 and bfloat16. */
void gg_cuda_reorder(gg_cuda_stream stream, const gg_shape *sample, int64_t batch, gg_format from_format,
                     gg_format to_format, const void *from, void *to);

/* PERMUTE, SLICE and PAD of a desc, PLAIN; backward: `from` is grad_output, `to` grad_input. */
void gg_cuda_rearrange(gg_cuda_stream stream, const gg_op_desc *desc, gg_dtype dtype, bool backward, const void *from,
                       void *to);

/* CONCAT: copies input `number` of a desc, PLAIN or NHWC, from its own array to the joined one. backward: from the
 * joined one. */
void gg_cuda_concat(gg_cuda_stream stream, const gg_op_desc *desc, gg_format format, int number, bool backward,
                    void *own, void *joined);

#ifdef __cplusplus
}
#endif

#endif
