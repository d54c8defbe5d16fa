/* Options of operations, a struct a kind. The description of a layer (nn/graph.h) and that of its operation
 * (ops/backend.h) hold the same union of them; the kind says which member is valid. */
#ifndef GG_OPS_OP_OPTIONS_H
#define GG_OPS_OP_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "ops/tensor.h"

/* Windows of convolution and pooling; index 0 is height, 1 is width. All in elements; dilation 1 is dense. */
typedef struct gg_window {
    int64_t kernel[2], stride[2], padding[2], dilation[2];
    bool ceil_mode; /* pooling: round the output size up, PyTorch's rule (no window starts in the right padding) */
    bool count_include_pad; /* average pooling: divide by the window's size with its padding, PyTorch's rule */
} gg_window;

/* Number of windows along one axis of `input` elements, by PyTorch's rule; 0 means that none fits. A convolution never
 * rounds up. */
int64_t gg_window_output(const gg_window *window, int axis, int64_t input, bool ceil_mode);
/* True if each window holds an element of the image. A dilated window may skip over a small image. */
bool gg_window_covers(const gg_window *window, int axis, int64_t input, int64_t outputs);

typedef struct gg_conv_options {
    gg_window window;
    int64_t groups; /* divides both channel counts */
} gg_conv_options;

typedef struct gg_batch_norm_options {
    float epsilon;         /* added to the variance */
    float momentum;        /* share of a batch in the running statistics */
    bool affine;           /* has weight and bias */
    bool track_statistics; /* has running mean and variance, the last two parameters; evaluation uses them */
} gg_batch_norm_options;

/* LAYER_NORM; the layers RMS_NORM and GROUP_NORM are such operations. */
typedef struct gg_layer_norm_options {
    gg_shape shape;        /* layer: the last axes; no axes mean the last one */
    int64_t axis;          /* operation: the first of these axes */
    int64_t groups;        /* divides the first axis, and a weight is a channel's; 0 means rows from `axis` on, and a
                              weight is a place's */
    float epsilon;         /* added to the variance */
    bool affine;           /* has a weight, and by desc->bias a bias */
    bool root_mean_square; /* operation: divides by the root of the mean square and subtracts no mean */
} gg_layer_norm_options;

typedef struct gg_lrn_options {
    int64_t size; /* channels in a window */
    float alpha, beta, k;
} gg_lrn_options;

typedef struct gg_softmax_options {
    int64_t axis; /* operation: of the sample. Layer: counted with the batch, or from the end */
} gg_softmax_options;

typedef struct gg_leaky_relu_options {
    float slope; /* of the negative side */
} gg_leaky_relu_options;

typedef struct gg_gelu_options {
    bool tanh_form; /* PyTorch's approximate="tanh" */
} gg_gelu_options;

typedef struct gg_embedding_options {
    int64_t numbers; /* rows of the table. A POSITION_EMBEDDING layer: 0 means the input's positions */
} gg_embedding_options;

/* Indices [begin, end) by `step` along one axis of a sample: SLICE's output, or the place of PAD's input. A SLICE layer
 * has them as in Python, negative from the end. */
typedef struct gg_range {
    int64_t axis, begin, end, step;
} gg_range;

typedef struct gg_pad_options {
    int64_t axis;     /* negative from the end */
    int64_t zeros[2]; /* before and behind */
} gg_pad_options;

typedef struct gg_attention_options {
    int64_t heads;     /* divides the features of queries, keys and values */
    int64_t head_size; /* MULTI_HEAD: features of each. Layer: 0 means outputs / heads */
    bool causal;       /* no position sees later positions */
} gg_attention_options;

typedef struct gg_lstm_options {
    int64_t layers;
    bool stateful;   /* carries its state from batch to batch */
    int64_t numbers; /* operation: rows of the table of its tokens, its first parameter (numbers, features); 0 means
                        that it reads (T, I) */
    int64_t features;
} gg_lstm_options;

/* Members of the union of options. */
#define GG_OP_OPTIONS                                                                                                  \
    gg_conv_options conv;             /* CONV2D */                                                                     \
    gg_window pool;                   /* MAX_POOL2D, AVG_POOL2D */                                                     \
    int64_t output_size[2];           /* ADAPTIVE_AVG_POOL2D layer: height and width; 0 means the input's */           \
    gg_batch_norm_options batch_norm; /* BATCH_NORM */                                                                 \
    gg_layer_norm_options layer_norm; /* LAYER_NORM, RMS_NORM, GROUP_NORM */                                           \
    gg_lrn_options lrn;               /* LOCAL_RESPONSE_NORM */                                                        \
    gg_softmax_options softmax;       /* SOFTMAX */                                                                    \
    gg_leaky_relu_options leaky_relu; /* LEAKY_RELU */                                                                 \
    gg_gelu_options gelu;             /* GELU, and LINEAR with activation GELU */                                      \
    gg_embedding_options embedding;   /* EMBEDDING, POSITION_EMBEDDING */                                              \
    gg_shape reshape;                 /* RESHAPE layer: the output's; a size of -1 means the remainder */              \
    gg_shape order;                   /* PERMUTE: axis i of the output is axis order.size[i] of the input */           \
    gg_range range;                   /* SLICE; PAD operation */                                                       \
    gg_pad_options pad;               /* PAD layer */                                                                  \
    gg_attention_options attention;   /* ATTENTION, MULTI_HEAD */                                                      \
    gg_lstm_options lstm;             /* LSTM */                                                                       \
    gg_format wanted_output;          /* REORDER operation: the target */

typedef union gg_op_options {
    GG_OP_OPTIONS
} gg_op_options;

#endif
