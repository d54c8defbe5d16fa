/* Own CUDA kernels of network operations. Each function gives one or a few kernels to a stream and returns; arrays are
 * in memory that kernels may use, structs and arrays of pointers in them are read before it returns. What an operation
 * means is said in ops/backend.h; the CPU's native operations are the reference.
 *
 * Activations and their gradients are of the type `dtype`, float32 or bfloat16, and float32 where there is none; all
 * that is computed and all parameters are float32. Unless a function says otherwise they may lie in any layout without
 * padding: PLAIN or NHWC. Where a function says "in place", an output may be the array that is named.
 *
 * No result depends on timing: every sum has an order that the shapes alone fix. Functions named gg_cuda_*_scratch and
 * gg_cuda_*_saved give the bytes that the function of that name wants; both blocks are aligned to 16 bytes.
 *
 * "Same bits as the CPU" holds where it is said; all else agrees within rounding. */
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
 * from `in` (the forward's output, of GELU and of LEAKY_RELU with a negative slope its input) and grad; in place in
 * either. The two ReLU have the same bits as the CPU. */
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

/* ADD. forward: output = input[0] + input[1] + ..., then the ReLU; in place in any input. backward: each grad[i] that
 * is not NULL gets grad_output, with relu 0 where the output was cut; any of them may be grad_output or output. Same
 * bits as the CPU. */
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

/* Which words a dropout draws (base/random.h): the layer's seed, mixed; the rank; the training step. */
typedef struct gg_cuda_draw {
    uint64_t seed;
    const uint64_t *step; /* read by the kernel; not at all where the probability is 0 */
    uint32_t rank;
    float probability; /* 0..1 */
} gg_cuda_draw;

/* DROPOUT of `batch` samples: what is drawn as zero becomes 0, all else is divided by 1 - probability. Feature f of
 * sample n draws word n%4 of block f*((batch + 3)/4) + n/4. Forward and backward are this same function, which draws
 * again, so nothing is saved. In place. Masks and results have the same bits as the CPU. NHWC: `channels` of the image;
 * PLAIN: 1 will do. */
typedef struct gg_cuda_dropout_args {
    gg_dtype dtype;
    gg_layout layout; /* PLAIN or NHWC */
    int64_t batch, features, channels;
    gg_cuda_draw draw;
    const void *in;
    void *out;
} gg_cuda_dropout_args;
void gg_cuda_dropout(gg_cuda_stream stream, const gg_cuda_dropout_args *args);

/* The LSTM's dropout between layers, of `rows` rows of `length` numbers: number j of row r draws word j%4 of block
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
 * An array of outer x channels x inner values: (N*positions, features, 1) behind a product and for NHWC, (N, C, H*W)
 * for PLAIN images. */

/* y = activation(y + bias), in its memory. */
typedef struct gg_cuda_bias_args {
    gg_dtype dtype;
    int64_t outer, channels, inner;
    bool relu;
    const float *bias; /* NULL: the activation alone */
    void *y;
} gg_cuda_bias_args;
void gg_cuda_bias(gg_cuda_stream stream, const gg_cuda_bias_args *args);

/* The error behind the activation, left in grad, and the bias's gradient, its sum over outer and inner. */
typedef struct gg_cuda_bias_backward_args {
    gg_dtype dtype;
    int64_t outer, channels, inner;
    const void *y; /* the output of a ReLU; NULL: no activation, grad stays */
    void *grad;
    float *bias; /* the gradient; NULL: not wanted, and no scratch */
    void *scratch;
} gg_cuda_bias_backward_args;
size_t gg_cuda_bias_backward_scratch(int64_t outer, int64_t channels, int64_t inner);
void gg_cuda_bias_backward(gg_cuda_stream stream, const gg_cuda_bias_backward_args *args);

/* ------------------------------------------------------------------------------------------ convolutions
 *
 * Of NHWC images in float32, whose factors are rounded to TF32: by tensor cores over tiles in shared memory. For few
 * channels and filters. No groups. */

typedef struct gg_cuda_tiled_shape {
    int64_t batch;
    int image[2], output[2]; /* height, width: of what is read, of what is made */
    int channels, filters;   /* of the one, of the other */
    int kernel[2], stride[2], padding[2], dilation[2];
} gg_cuda_tiled_shape;

/* Whether gg_cuda_tiled has a form for it, and gg_cuda_tiled_gradient. */
bool gg_cuda_tiled_fits(const gg_cuda_tiled_shape *shape);
bool gg_cuda_tiled_gradient_fits(const gg_cuda_tiled_shape *shape);

/* The weight as gg_cuda_tiled reads it, of so many bytes, from (filters, channels, kernel). mirrored: from (channels,
 * filters, kernel), each kernel turned by half a circle: with the error of a convolution of stride 1 as the image and
 * dilation*(kernel - 1) - padding as the padding that gives the gradient of what the convolution has read. */
size_t gg_cuda_tiled_weight_bytes(const gg_cuda_tiled_shape *shape);
void gg_cuda_tiled_weight(gg_cuda_stream stream, const gg_cuda_tiled_shape *shape, bool mirrored, const float *weight,
                          void *out);

/* output = activation(convolution + bias). Not in place. */
typedef struct gg_cuda_tiled_args {
    gg_cuda_tiled_shape shape;
    const float *input;
    const void *weight; /* of gg_cuda_tiled_weight */
    const float *bias;  /* NULL: none */
    bool relu;
    float *output;
} gg_cuda_tiled_args;
void gg_cuda_tiled(gg_cuda_stream stream, const gg_cuda_tiled_args *args);

/* The gradient of the weight, (filters, channels, kernel), from the error behind the convolution. */
typedef struct gg_cuda_tiled_gradient_args {
    gg_cuda_tiled_shape shape;
    const float *input, *error;
    void *scratch;
    float *gradient;
} gg_cuda_tiled_gradient_args;
size_t gg_cuda_tiled_gradient_scratch(const gg_cuda_tiled_shape *shape);
void gg_cuda_tiled_gradient(gg_cuda_stream stream, const gg_cuda_tiled_gradient_args *args);

/* ------------------------------------------------------------------------------------------ pooling */

/* MAX_POOL2D, AVG_POOL2D and ADAPTIVE_AVG_POOL2D, whose desc has been checked: samples of at most INT_MAX values.
 * MAX_POOL2D leaves the place of each maximum in `saved`, if that is not NULL, of gg_cuda_pool_saved bytes; backward
 * reads nothing else but grad_output. Maxima and their gradients have the same bits as the CPU. Not in place. */
size_t gg_cuda_pool_saved(const gg_op_desc *desc);
void gg_cuda_pool(gg_cuda_stream stream, const gg_op_desc *desc, gg_format format, const void *in, void *out,
                  void *saved);
void gg_cuda_pool_backward(gg_cuda_stream stream, const gg_op_desc *desc, gg_format format, const void *grad_output,
                           const void *saved, void *grad_input);

/* ------------------------------------------------------------------------------------------ normalisations */

/* BATCH_NORM of outer x channels x inner values, as for biases; all with the fused sum and ReLU of backend.h.
 * forward: with batch_statistics those of the batch, else the running ones; leaves what backward needs in `saved`.
 * backward: writes all gradients of the parameters that there are. grad_added, if not NULL, gets the error behind the
 * activation, and may be output or grad_output; where something was added and it is NULL, grad_output does.
 * grad_input, if not NULL, may be grad_output. */
typedef struct gg_cuda_batch_norm_args {
    gg_dtype dtype;
    int64_t outer, channels, inner;
    bool relu, batch_statistics;
    float epsilon, momentum;
    const void *input, *added; /* added: NULL without */
    void *output;
    void *grad_output, *grad_input, *grad_added;
    const float *weight, *bias;                   /* NULL: not affine */
    const float *running_mean, *running_variance; /* NULL: not tracked */
    float *grad_weight, *grad_bias, *grad_mean, *grad_variance;
    float *saved;
    void *scratch; /* of both */
} gg_cuda_batch_norm_args;
size_t gg_cuda_batch_norm_saved(int64_t channels);
size_t gg_cuda_batch_norm_scratch(int64_t outer, int64_t channels, int64_t inner);
void gg_cuda_batch_norm(gg_cuda_stream stream, const gg_cuda_batch_norm_args *args);
void gg_cuda_batch_norm_backward(gg_cuda_stream stream, const gg_cuda_batch_norm_args *args);

/* LAYER_NORM of rows of `length` values, PLAIN. In place, forward and backward. backward: grad_weight NULL: no
 * gradients of parameters are wanted; grad_bias NULL: there is no bias. */
typedef struct gg_cuda_layer_norm_args {
    gg_dtype dtype;
    int64_t rows, length;
    float epsilon;
    const void *input;
    void *output;
    const void *grad_output;
    void *grad_input; /* NULL: not wanted */
    const float *weight, *bias;
    float *grad_weight, *grad_bias;
    float *saved;
    void *scratch; /* of backward, with grad_weight */
} gg_cuda_layer_norm_args;
size_t gg_cuda_layer_norm_saved(int64_t rows);
size_t gg_cuda_layer_norm_scratch(int64_t rows, int64_t length);
void gg_cuda_layer_norm(gg_cuda_stream stream, const gg_cuda_layer_norm_args *args);
void gg_cuda_layer_norm_backward(gg_cuda_stream stream, const gg_cuda_layer_norm_args *args);

/* LOCAL_RESPONSE_NORM of outer x channels x inner values, as for biases. `saved` (may be NULL without training) gets
 * as many floats as there are values, backward's scratch has as many. Not in place. */
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

/* Rows of attention weights between the two products, for the queries [first, first + queries) of the heads
 * [first_head, first_head + count), where head h of sample n is number n*heads + h. Matrix i of scores, of head
 * first_head + i, begins at scores + i*matrix, and its row q, of query first + q, at q*row more; `positions` keys each.
 * The weights, and in `dtype` what both products behind it read, lie alike.
 * forward: weights = softmax(scale*score) over the keys that the query sees, dropout applied, 0 for all other keys.
 *   `saved` (NULL: no backward follows) gets two floats a row, at 2*(number*positions + query).
 * backward: from scores, computed again, the weights that met the values; from error, of these weights, score_error,
 *   that of the scores, with the scale, 0 for keys that the query does not see.
 * In float32 weights may be scores, and score_error may be error.
 * Dropout draws as the CPU does: key j of a row draws word j%4 of block (number*positions + query)*((positions + 3)/4)
 * + j/4. Lengths outside of 1..positions are clamped, and the first sample with such a one is reported in *bad. */
typedef struct gg_cuda_attention_args {
    int64_t heads, positions;
    int64_t first_head, count, first, queries;
    int64_t matrix, row;
    bool causal;
    float scale;
    const int32_t *lengths; /* of the samples; NULL: all see all positions */
    gg_cuda_draw draw;      /* probability 0: no dropout */
    gg_dtype dtype;
    const float *scores, *error;
    void *weights, *score_error;
    float *saved;
    uint32_t
        *bad; /* becomes the least of itself and the sample's number; set it to UINT32_MAX first. NULL: no report */
} gg_cuda_attention_args;
void gg_cuda_attention(gg_cuda_stream stream, const gg_cuda_attention_args *args);
void gg_cuda_attention_backward(gg_cuda_stream stream, const gg_cuda_attention_args *args);

/* Between (samples, positions, parts, heads, size), as linear layers have them, and (parts, samples, heads, positions,
 * size), where each head's rows follow each other. split: from the first to the second. */
typedef struct gg_cuda_heads_args {
    int64_t samples, positions, parts, heads, size;
    bool split;
    gg_dtype dtype;
    const void *from;
    void *to;
} gg_cuda_heads_args;
void gg_cuda_heads(gg_cuda_stream stream, const gg_cuda_heads_args *args);

/* ------------------------------------------------------------------------------------------ LSTM */

/* One position of one layer, for all samples. The gates of sample n, (4, hidden) in the order i, f, g, o, lie at
 * gates + n*gates_row; `before`, the cells before this position, at n*before_row; cell at n*cell_row; state at
 * n*state_row; error, of the state, at n*error_row; later and cell_error are (batch, hidden).
 * forward: gates, which hold the sums of both products and biases, are activated where they lie; cell and state are
 *   written.
 * backward: gates become their errors; later: the error of the state that the next position gives (ignored at the
 *   last); cell_error: that of the cell, which becomes that of `before` (at the last taken as 0). */
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

/* The same with the product of the recurrent weights, (4, hidden, hidden), whose factors are rounded to TF32; for few
 * samples. Arrays and their rows are aligned to 8 bytes.
 * forward: adds that of the states before this position, at state + n*state_row, to the gates first.
 * backward: errors, at errors + n*gates_row, are those of the next position's gates; their product is what `later`
 *   would be, which is not read. Not for the last position. */
bool gg_cuda_lstm_step_fits(int64_t hidden);
void gg_cuda_lstm_step(gg_cuda_stream stream, const gg_cuda_lstm_args *args, const float *weight, const float *state,
                       int64_t state_row);
void gg_cuda_lstm_step_backward(gg_cuda_stream stream, const gg_cuda_lstm_args *args, const float *weight,
                                const float *errors);

/* Parameters of an LSTM and a weight space of cuDNN, which has them elsewhere and of another type; bfloat16 rounds to
 * nearest even. A piece lies at space + at, in elements; `plain` are one or two arrays of float32, the second one NULL
 * where there is one.
 * pack: space = plain[0] + plain[1].
 * unpack: both plain ones = space. */
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

/* The state that is carried from batch to batch, (batch, layers, 2, hidden) float32, first states, then cells; and
 * cuDNN's arrays (layers, batch, hidden) of each, whose layers begin `step` elements from each other. */
typedef struct gg_cuda_lstm_state_args {
    int64_t layers, batch, hidden, step;
    gg_dtype dtype; /* of `states` and `cells` */
    float *carried;
    void *states, *cells;
} gg_cuda_lstm_state_args;
void gg_cuda_lstm_begin(gg_cuda_stream stream, const gg_cuda_lstm_state_args *args); /* from carried */
void gg_cuda_lstm_end(gg_cuda_stream stream, const gg_cuda_lstm_state_args *args);   /* to carried */

/* ------------------------------------------------------------------------------------------ tables of rows */

/* EMBEDDING. Tokens outside of 0..numbers-1 give rows of zeros and no gradient, and the first of them is reported in
 * *bad. The table and its gradient are float32. backward: each row of the gradient is the sum of its tokens' errors, in
 * an order that depends on the tokens alone; those of up to some dozens of tokens in their order. */
typedef struct gg_cuda_embedding_args {
    int64_t tokens, features, numbers; /* tokens of the batch, less than 2^31 */
    gg_dtype dtype;                    /* of output and grad_output */
    const int32_t *token;
    const float *table;
    void *output;
    const void *grad_output;
    float *grad_table;
    void *scratch; /* backward */
    uint32_t *bad; /* forward: becomes the least of itself and the token's place; set it to UINT32_MAX first; may be
                      NULL */
} gg_cuda_embedding_args;
size_t gg_cuda_embedding_scratch(int64_t tokens, int64_t features);
void gg_cuda_embedding(gg_cuda_stream stream, const gg_cuda_embedding_args *args);
void gg_cuda_embedding_backward(gg_cuda_stream stream, const gg_cuda_embedding_args *args);

/* POSITION_EMBEDDING: a sample has `positions` rows of `features`. Forward in place. The gradient of the table is
 * written wholly, summed over samples in their order; that of the input is grad_output itself. Same bits as the CPU. */
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
 * All of these move values of float32 or bfloat16, and those of the same size: what keeps its type keeps its bits.
 * float32 is rounded to bfloat16 to nearest even. None is in place. */

#define GG_CUDA_COPY_AXES (GG_MAX_DIMS + 1)

/* to[sum of i_a*to_step[a]] = from[sum of i_a*from_step[a]] for all i_a < size[a]; steps in values. No two places may
 * be the same one of `to`. clear: so many values of `to` become 0 first. */
typedef struct gg_cuda_copy_args {
    int axes;
    int64_t size[GG_CUDA_COPY_AXES], from_step[GG_CUDA_COPY_AXES], to_step[GG_CUDA_COPY_AXES];
    int64_t clear;
    const void *from;
    void *to;
    gg_dtype from_dtype, to_dtype;
} gg_cuda_copy_args;
void gg_cuda_copy_strided(gg_cuda_stream stream, const gg_cuda_copy_args *args);

/* (batches, rows, columns) to (batches, columns, rows): weights (O, I, K) to (O, K, I) with batches = O, PLAIN images
 * to NHWC with rows = C, and both back. */
void gg_cuda_transpose_batched(gg_cuda_stream stream, int64_t batches, int64_t rows, int64_t columns,
                               gg_dtype from_dtype, gg_dtype to_dtype, const void *from, void *to);

/* REORDER among PLAIN and NHWC, float32 and bfloat16. */
void gg_cuda_reorder(gg_cuda_stream stream, const gg_shape *sample, int64_t batch, gg_format from_format,
                     gg_format to_format, const void *from, void *to);

/* PERMUTE, SLICE and PAD of a desc, PLAIN; backward: `from` is grad_output, `to` grad_input. */
void gg_cuda_rearrange(gg_cuda_stream stream, const gg_op_desc *desc, gg_dtype dtype, bool backward, const void *from,
                       void *to);

/* CONCAT: input `number` of a desc, PLAIN or NHWC, between its own array and the joined one. backward: from the joined
 * one. */
void gg_cuda_concat(gg_cuda_stream stream, const gg_op_desc *desc, gg_format format, int number, bool backward,
                    void *own, void *joined);

#ifdef __cplusplus
}
#endif

#endif
