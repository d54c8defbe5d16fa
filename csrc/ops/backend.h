/* The backend table: everything a device must offer to train a network.
 *
 * A backend is one constant struct of function pointers. Operations on activations are objects that are created once
 * for given shapes and formats and then run many times; kernels on arenas and losses are plain functions. An entry may
 * be NULL: the plan then uses that operation of another table (the native CPU table has all).
 *
 * Life of an operation: create -> any number of times prepare, forward, backward -> destroy. Creating may allocate and
 * choose; running allocates nothing, locks nothing and prints nothing. An operation is used by one thread at a time;
 * several operations may be used by several threads at once. */
#ifndef GG_OPS_BACKEND_H
#define GG_OPS_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ops/device.h"
#include "ops/tensor.h"
#include "ops/update_rules.h"

typedef enum gg_op_kind {
    GG_OP_CONV2D = 0,
    GG_OP_LINEAR,
    GG_OP_MAX_POOL2D,
    GG_OP_AVG_POOL2D,
    GG_OP_ADAPTIVE_AVG_POOL2D, /* window o of an axis: elements o*in/out, rounded down, to (o+1)*in/out, rounded up */
    GG_OP_BATCH_NORM,          /* over the first axis of the sample; a second input is added to the result */
    GG_OP_LAYER_NORM,          /* over the axes of the sample from `axis` on */
    GG_OP_LOCAL_RESPONSE_NORM, /* over windows of channels */
    GG_OP_SOFTMAX,             /* along `axis` */
    GG_OP_LEAKY_RELU,
    GG_OP_GELU,
    GG_OP_RELU,
    GG_OP_TANH,
    GG_OP_SIGMOID,
    GG_OP_DROPOUT,
    GG_OP_ADD,                /* sum of >= 2 inputs of one shape */
    GG_OP_CONCAT,             /* along the first axis of the sample (channels or features) */
    GG_OP_REORDER,            /* from one format to another; backward goes the other way */
    GG_OP_EMBEDDING,          /* rows of a table (numbers, C), one for each int32 of the input; PLAIN */
    GG_OP_POSITION_EMBEDDING, /* adds the first rows of a table (numbers, C) to each sample (T, C); PLAIN */
    GG_OP_PERMUTE,            /* the sample's axes in another order */
    GG_OP_SLICE,              /* a range of one axis */
    GG_OP_PAD,                /* zeros before and behind along one axis */
    GG_OP_ATTENTION,          /* (T, 3C), packed queries, keys and values, to (T, C); int32 lengths of samples; PLAIN */
    GG_OP_LSTM,       /* (T, I), or rows of a table that tokens (T) name, to (T, H), one or more layers; may carry
                         state; PLAIN */
    GG_OP_MULTI_HEAD, /* (T, E) to (T, E): ATTENTION between a LINEAR to (T, 3E) and one to (T, E); PLAIN */
    GG_OP_COUNT
} gg_op_kind;

const char *gg_op_kind_name(gg_op_kind kind);

typedef enum gg_activation { GG_ACTIVATION_NONE = 0, GG_ACTIVATION_RELU, GG_ACTIVATION_GELU } gg_activation;

/* Windows of convolution and pooling; index 0 is height, 1 is width. All in elements; dilation 1 is dense. */
typedef struct gg_window {
    int64_t kernel[2], stride[2], padding[2], dilation[2];
    bool ceil_mode; /* pooling: round the output size up, PyTorch's rule (no window starts in the right padding) */
    bool count_include_pad; /* average pooling: divide by the window's size with its padding, PyTorch's rule */
} gg_window;

/* The windows along one axis of an image of `input` elements, by PyTorch's rule; 0: none fits. A convolution never
 * rounds up. */
int64_t gg_window_output(const gg_window *window, int axis, int64_t input, bool ceil_mode);
/* Whether each of these windows holds an element of the image: with dilation it may have elements only on both sides of
 * it. */
bool gg_window_covers(const gg_window *window, int axis, int64_t input, int64_t outputs);

/* Along one axis of a sample: [begin, end) by `step` is what SLICE gives and where PAD puts its input. */
typedef struct gg_range {
    int64_t axis, begin, end, step;
} gg_range;

/* How a convolution is computed, and in bfloat16 a linear layer and an LSTM. Winograd's methods have fewer
 * multiplications and larger errors. */
typedef enum gg_algorithm {
    GG_ALGORITHM_DIRECT = 0,
    GG_ALGORITHM_WINOGRAD4, /* F(4x4,3x3), F(4x4,5x5) */
    GG_ALGORITHM_WINOGRAD2, /* F(2x2,3x3), F(2x2,5x5) */
    GG_ALGORITHM_WINOGRAD6, /* F(6x6,3x3) */
    GG_ALGORITHM_SPLIT,     /* direct, each float32 as three bfloat16 (AMX) */
    GG_ALGORITHM_WIDENED,   /* in bfloat16: direct, in float32 inside; Winograd's methods always are */
    /* In bfloat16: the same as WIDENED and Winograd's, in float32 that lies BATCH_LAST inside. */
    GG_ALGORITHM_TURNED,
    GG_ALGORITHM_TURNED4,
    GG_ALGORITHM_TURNED2,
    GG_ALGORITHM_TURNED6,
    GG_ALGORITHM_TILED, /* direct, by own kernels for few channels: on a GPU; on AMX of weights in bfloat16 */
    /* cuDNN's, by the numbers that it gives them in each pass; DIRECT is then what it says to be the fastest. */
    GG_ALGORITHM_CUDNN0,
    GG_ALGORITHM_CUDNN7 = GG_ALGORITHM_CUDNN0 + 7,
    GG_ALGORITHM_COUNT
} gg_algorithm;

/* What a CPU computes products of bfloat16 by where nothing else is said of them. */
static inline gg_algorithm gg_bfloat16_algorithm(void) {
    return gg_cpu_bfloat16_is_fast() ? GG_ALGORITHM_DIRECT : GG_ALGORITHM_WIDENED;
}

/* "direct", "winograd4", "winograd2", "winograd6", "split", "widened", "turned", "turned4", "turned2", "turned6",
 * "tiled", "cudnn0" to "cudnn7" */
const char *gg_algorithm_name(gg_algorithm algorithm);

/* The runs of an operation of which each may have an algorithm of its own. */
typedef enum gg_pass { GG_PASS_FORWARD = 0, GG_PASS_WEIGHTS, GG_PASS_DATA, GG_PASS_COUNT } gg_pass;

/* "forward", "weights", "data" */
const char *gg_pass_name(gg_pass pass);

#define GG_MAX_INPUTS 16
/* Inputs of a network, and targets of a data set, at most. */
#define GG_MAX_FIELDS 8

/* What an operation is to compute. Shapes are of one sample; batch is N. */
typedef struct gg_op_desc {
    gg_op_kind kind;
    int64_t batch;
    int inputs;
    gg_shape input[GG_MAX_INPUTS];
    gg_shape output;
    gg_format offered[GG_MAX_INPUTS]; /* the formats of the inputs; the operation may choose others */
    gg_dtype dtype;                   /* GG_FLOAT32; or GG_BFLOAT16: an operation that has a form for it reads and gives
                                         activations in it. Those that gain nothing by it do so only where it is
                                         offered, all others read and give GG_FLOAT32 */
    gg_format wanted_output;          /* REORDER only: the target */
    gg_window window;                 /* CONV2D and pooling */
    gg_algorithm algorithm;     /* CONV2D; LINEAR and LSTM: DIRECT or WIDENED, of which others know DIRECT alone */
    unsigned passes;            /* CONV2D: one bit (1 << pass) for each pass that is run; 0: all are */
    int64_t groups;             /* CONV2D; divides both channel counts */
    bool bias;                  /* CONV2D, LINEAR, LAYER_NORM that is affine */
    int64_t numbers;            /* EMBEDDING and POSITION_EMBEDDING: rows of the table; LSTM: of the one that its tokens
                                   name, its first parameter (numbers, features); 0: it reads (T, I) */
    int64_t features;           /* LSTM of tokens */
    gg_range range;             /* SLICE and PAD */
    int64_t order[GG_MAX_DIMS]; /* PERMUTE: axis i of the output is axis order[i] of the input */
    gg_activation activation;   /* CONV2D, LINEAR, BATCH_NORM, MAX_POOL2D, ADD: applied to the output. GELU: LINEAR over
                                   positions alone, of tables that have it */
    int64_t layers;             /* LSTM */
    bool stateful;              /* LSTM: carries its state from batch to batch */
    int64_t heads;              /* ATTENTION; divides C */
    int64_t head_size;          /* MULTI_HEAD: features of each */
    bool causal;                /* ATTENTION: no position sees those behind it */
    float probability;          /* DROPOUT: of being zeroed; all other values are divided by 1 - probability */
    int64_t axis;               /* LAYER_NORM, SOFTMAX: of the sample */
    float slope;                /* LEAKY_RELU: of the negative side */
    bool tanh_form;             /* GELU, also as the activation: PyTorch's approximate="tanh" */
    int64_t size;               /* LOCAL_RESPONSE_NORM: channels in a window */
    float alpha, beta, k;       /* LOCAL_RESPONSE_NORM */
    float epsilon;              /* normalisations: added to the variance */
    float momentum;             /* BATCH_NORM: the share of a batch in the running statistics */
    bool affine;                /* normalisations: has weight and bias */
    bool track_statistics;      /* BATCH_NORM: has running mean and variance, the last two parameters */
    uint64_t seed;              /* DROPOUT: already mixed with the layer's number */
    bool training;              /* false: backward is never run and dropout copies */
    bool input_grad;            /* false: nobody wants grad_input (first layer) */
} gg_op_desc;

/* Matrix products read, but do not use, so many bytes behind the last row of an input or of a gradient that lies
 * PLAIN. */
#define GG_READ_BEHIND 128

/* Whether the operation is to be run for this pass. */
static inline bool gg_op_has_pass(const gg_op_desc *desc, gg_pass pass) {
    return desc->passes == 0 || (desc->passes >> pass & 1u) != 0;
}

/* The longest stride of GG_ALGORITHM_SPLIT. */
enum { GG_CONV_SPLIT_STRIDE = 2 };
/* The most channels that have kernels of their own, GG_ALGORITHM_TILED on a CPU among them. */
enum { GG_CONV_FEW_CHANNELS = 4 };
/* Of GG_ALGORITHM_TURNED to _TURNED6 what is computed inside; GG_ALGORITHM_COUNT: it is none of them. */
gg_algorithm gg_conv_unturned(gg_algorithm algorithm);
/* Whether a convolution of this shape whose images lie so can be computed by one of the CPU's own algorithms. */
bool gg_conv_has_form(const gg_op_desc *desc, gg_layout layout, gg_algorithm algorithm);

/* The places of parameters that several operations have, in gg_op_args. */
enum { GG_PARAMETER_WEIGHT = 0, GG_PARAMETER_BIAS };

/* So many arrays at most may be named as used next. */
#define GG_MOST_USED_NEXT 4

/* A weight that is made current while a forward pass reads it. `make`, called with growing numbers, the last of which
 * is all of it: its first `count` elements are current when it returns. */
typedef struct gg_weight_rows {
    void (*make)(void *context, size_t count);
    void *context;
    /* So many arrays have elements that are used by the next `make`: they may be fetched into cache meanwhile. Each is
     * given by the element that belongs to the weight's first one. */
    int used;
    const float *used_next[GG_MOST_USED_NEXT];
} gg_weight_rows;

/* One run. Pointers are aligned to 64 bytes. Parameters and their gradients are float32, in the order and the layouts
 * of the layer's (nn/layer.h), which are PyTorch's: convolution (O, I/groups, kH, kW), linear (out, in), bias (out).
 * Those of a normalisation: weight and bias where it is affine, running mean and running variance where it has them;
 * the gradient of these two is what is to be subtracted from them, momentum*(running - the batch's).
 * Gradients are written, never added to. */
typedef struct gg_op_args {
    const void *input[GG_MAX_INPUTS];
    void *output;                    /* backward: the forward's output, valid if op->backward_needs_output */
    void *grad_output;               /* backward: may be overwritten by the operation */
    void *grad_input[GG_MAX_INPUTS]; /* backward: NULL where not wanted */
    const float *const *parameter;   /* one pointer a parameter that the operation has; owned by the caller */
    float *const *gradient;          /* backward: one a parameter. LINEAR: that of the weight is NULL where not wanted;
                                        grad_output then holds the error behind the activation afterwards */
    void *prepared;                  /* op->prepared_bytes, written by prepare for the pass that is run next */
    void *saved;                     /* op->saved_bytes, held by the plan from forward to backward */
    void *scratch;                   /* op->scratch_bytes, content lost between runs, but for what backward_weights
                                        leaves to backward_data */
    float *carried;                  /* forward: the state with which each sample begins, as many numbers as its layer
                                        carries from batch to batch (nn/layer.h); what it ends with is left there. NULL:
                                        begins at zero, nothing is left. Backward does not see it: what it needs of the
                                        beginning is saved, and no gradient flows into it */
    uint32_t rank;                   /* DROPOUT */
    const uint64_t *step;            /* DROPOUT: where the training step's number lies, in memory of the device */
    const gg_weight_rows *rows;      /* forward, of an operation with makes_rows; NULL: the weight is current */
    bool evaluate; /* forward of an operation that was created for training: compute as in evaluation; no backward run
                      follows */
} gg_op_args;

typedef struct gg_op gg_op;

/* The runs of an operation, in the order in which they follow each other. */
typedef struct gg_op_class {
    /* Turns the current weights into what forward, or backward_data, reads: reads args->parameter, writes
     * args->prepared. Run before that pass, if the weights have changed since or another pass has been prepared (but
     * see prepared_once), and only if op->prepared_bytes > 0. NULL: they are read as they are. */
    gg_status (*prepare)(gg_op *op, const gg_op_args *args, gg_pass pass);
    gg_status (*forward)(gg_op *op, const gg_op_args *args);
    /* The gradients of the parameters; leaves the error behind the activation in grad_output. NULL: the operation has
     * no parameters, or their gradients are one computation with grad_input, which backward_data does. */
    gg_status (*backward_weights)(gg_op *op, const gg_op_args *args);
    /* grad_input, from what backward_weights has left in grad_output. NULL: the input never has a gradient. */
    gg_status (*backward_data)(gg_op *op, const gg_op_args *args);
    void (*destroy)(gg_op *op); /* frees the op itself */
} gg_op_class;

/* The head of every operation; a backend puts its own fields behind it. */
struct gg_op {
    const gg_op_class *type;
    const char *backend; /* the table's name, for reports */
    gg_op_desc desc;
    gg_format input[GG_MAX_INPUTS]; /* what it reads; the plan reorders where it differs from desc.offered */
    gg_format output;               /* what it gives. Gradients lie as their activations do. */
    size_t prepared_bytes, saved_bytes, scratch_bytes;
    bool prepared_once;            /* what is prepared for forward is what backward_data reads, of any such operation
                                      with the same formats: it is not run again in between */
    bool in_place;                 /* output may be input[0]'s buffer, and grad_input[0] grad_output's */
    unsigned backward_needs_input; /* bit i: backward reads args->input[i] */
    bool backward_needs_output;    /* backward reads args->output */
    unsigned over_output;          /* bit i: backward may write args->grad_input[i] over args->output */
    unsigned slow;   /* bit i: gg_pass i is computed by plain loops, because a library has nothing better for it */
    bool makes_rows; /* LINEAR: forward reads the weight row by row, and makes rows current (args->rows) */
};

/* What every table refuses of an LSTM of (T, I) or of attention: shapes that do not fit, a probability that is none,
 * more numbers than a stream of dropout has. An LSTM of tokens is not supported. For `create`. */
gg_status gg_op_check_lstm(const gg_op_desc *desc);
gg_status gg_op_check_attention(const gg_op_desc *desc);

/* MULTI_HEAD of any table that has LINEAR and ATTENTION, from these. */
gg_status gg_multi_head_create(gg_device *device, const gg_op_desc *desc, gg_op **out);

/* Destroys any operation; NULL is fine. */
void gg_op_destroy(gg_op *op);
/* The runs that an operation has. Backward: of the weights, then, prepared, of the data. */
gg_status gg_op_prepare(gg_op *op, const gg_op_args *args, gg_pass pass);
gg_status gg_op_forward(gg_op *op, const gg_op_args *args);
gg_status gg_op_backward(gg_op *op, const gg_op_args *args);

typedef enum gg_loss_kind {
    GG_LOSS_CROSS_ENTROPY = 0,
    GG_LOSS_BINARY_CROSS_ENTROPY,
    GG_LOSS_MEAN_SQUARED_ERROR,
    GG_LOSS_COUNT
} gg_loss_kind;

/* What a loss is. The fields that its kind does not use are zero. */
typedef struct gg_loss_options {
    gg_loss_kind kind;
    float label_smoothing; /* CROSS_ENTROPY, in [0, 1): this part of each target is spread evenly over all classes */
    bool ignores;          /* CROSS_ENTROPY: positions whose target is ignore_index do not count */
    int32_t ignore_index;
    const float *class_weights; /* CROSS_ENTROPY: what a target of each class counts, at least 0; NULL: all 1. Owned by
                                   the caller, for as long as the options are in use */
} gg_loss_options;

/* What a loss of a batch comes to. */
typedef struct gg_loss_result {
    double loss_sum, divisor; /* weighted sum over what counts (for the float losses: over samples, of the mean over
                                 features), and what it is to be divided by */
    int64_t correct, counted; /* positions classified right (argmax, lowest index on ties; sign for binary; 0 for MSE),
                                 of so many that count */
} gg_loss_result;

/* A loss over the first `batch` samples of a prediction. A sample has `positions` positions of `features` values each,
 * row-major: (T, V) for a class a position, one position for all else.
 *   targets  CROSS_ENTROPY: int32 (batch, positions), a class each or ignore_index (checked by the caller); others:
 *            float32 (batch, features), plain.
 * The mean loss is loss_sum/divisor, and `gradient` is that mean's. With one position and neither class weights nor an
 * ignored index the divisor is the number of samples, also where samples have weights: so what a sample counts for does
 * not depend on which others are in its batch or on its rank. Else it is the number of positions that count, each times
 * its class's weight: PyTorch's mean over a batch. Where the divisor is 0, loss and gradient are. Ranks are weighted by
 * their numbers of samples in any case, as by PyTorch's data parallelism: a position counts for more on a rank whose
 * batch has fewer that count. Evaluation adds sums and divisors over all batches and ranks, and divides once. */
typedef struct gg_loss_args {
    gg_loss_options loss;
    gg_layout layout; /* PLAIN or BATCH_LAST, of prediction and gradient */
    int64_t batch, positions, features;
    const float *prediction;
    const void *targets;
    const float *sample_weights; /* one a sample; NULL: all 1, with the same bits as ones */
    float *gradient;             /* of the batch's mean loss; NULL: evaluation only. Padding lanes get zeros. */
    gg_loss_result *result;      /* out: host memory that the device shares */
} gg_loss_args;

/* Which lines, of GG_LANES elements each, of a run may hold anything but zeros: bit first + i is line i's. bits NULL:
 * every one may; else a word behind the last is readable. */
typedef struct gg_lines {
    const uint64_t *bits;
    size_t first;
} gg_lines;

/* Of what is `elements` behind, whole lines. */
static inline gg_lines gg_lines_behind(gg_lines lines, size_t elements) {
    return (gg_lines){lines.bits, lines.first + elements / GG_LANES};
}

/* The bits of lines `line` to `line` + 63, where lines.bits is not NULL. */
static inline uint64_t gg_lines_word(gg_lines lines, size_t line) {
    const size_t at = lines.first + line, shift = at % 64;
    const uint64_t *word = lines.bits + at / 64;
    return word[0] >> shift | word[1] << 1 << (63 - shift);
}

/* One step of an optimiser, in PyTorch's forms, fused with what gossip needs, over n elements of flat arenas, in place:
 *   m  = momentum + (momentum_before - momentum)/2    if momentum_before, else momentum
 *   s  = square + (square_before - square)/2          if square_before, else square
 *   d  = grad_scale*grad + weight_decay*weight
 *   PLAIN      w' = weight - lr*d
 *   MOMENTUM   m' = mu*m + d             w' = weight - lr*m'
 *   NESTEROV   m' = mu*m + d             w' = weight - lr*(d + mu*m')
 *   ADAM       m' = mu*m + d_share*d     s' = beta2*s + square_share*d^2, but not below 0, where an average of rounded
 *              numbers may have brought it;
 *              w' = weight_factor*weight - lr*m'/(sqrt(s')*root_scale + eps)
 *   weight   = w' + (weight_after - weight)/2         if weight_after, else w'
 *   momentum = m'                                     square = s'
 *   weight_copy, ... = weight, ...                    if given: what partners will read. It is streamed past the cache
 * and fenced: a store to lines that another core has read costs several times more. What is received and copied is of
 * type `wire`: GG_FLOAT32, or GG_BFLOAT16, rounded to nearest even. With bfloat16 the subtracted weight, momentum and
 * square are rounded too: they are what the copies of the last step said, so what one rank gains another loses, and the
 * mean over the ranks is preserved.
 * Nothing may overlap. Elements where everything is 0 stay 0. An element's result does not depend on where it lies in
 * the call. On a CPU PLAIN with finite lr and grad_scale, without weight decay, received weights and copies, neither
 * reads nor writes weights where the gradient is 0 from one GG_LANES to the next, and changes none whose gradient is 0;
 * an infinite weight stays infinite. */
typedef struct gg_update_args {
    size_t n; /* multiple of GG_LANES */
    gg_update_rule rule;
    gg_dtype wire;
    const float *grad;
    gg_lines filled;                                            /* of the gradient */
    float *weight, *momentum, *square;                          /* momentum: not read by PLAIN; square: by ADAM only */
    const void *weight_after, *momentum_before, *square_before; /* received from a partner; NULL: none */
    void *weight_copy, *momentum_copy, *square_copy;            /* NULL: none */
    float grad_scale, lr, mu, weight_decay;
    float d_share, beta2, square_share, root_scale, eps; /* ADAM */
    float weight_factor; /* ADAM: 1 - lr*weight decay where the decay is decoupled, else 1 */
} gg_update_args;

/* Reads samples of a data set into a batch. */
typedef struct gg_gather_args {
    gg_dtype dtype;        /* of the set: GG_UINT8, GG_FLOAT32 or GG_INT32 */
    const void *rows;      /* the set, one sample a row of `values` elements */
    int64_t values;        /* elements in a sample */
    const uint32_t *index; /* n row numbers; NULL: rows 0..n-1 */
    int64_t n;             /* samples; the batch is padded with zeros where the layout pads */
    gg_dtype wanted;       /* GG_FLOAT32; or GG_INT32: the numbers of uint8 or int32, PLAIN; GPU: or GG_BFLOAT16, which
                              GG_FLOAT32 is rounded to, PLAIN or NHWC */
    float scale, shift;    /* GG_FLOAT32: value = scale*element + shift */
    int64_t runs;          /* > 0: the sample is so many equal runs, and each has its own: */
    const float *scales;   /* a scale for each run, then a shift for each; NULL where runs is 0 */
    gg_layout layout;      /* PLAIN or BATCH_LAST; GPU: or NHWC, into which it brings samples (channels, ...) */
    int64_t channels;      /* NHWC */
    void *out;
} gg_gather_args;

/* Bins have at most so many elements. */
#define GG_MOST_CHOSEN_BIN 16384
enum { GG_CHOSEN_FIRST = 0x8000, GG_CHOSEN_NEGATIVE = 0x4000, GG_CHOSEN_PLACE = 0x3fff };

/* What is sent of a parameter. */
typedef enum gg_pack_kind {
    GG_PACK_NONE = 0, /* nothing: the residue gets what is new */
    GG_PACK_ALL,      /* every value, as float32 */
    GG_PACK_CHOICE,   /* which elements are chosen; they are not sent yet */
    GG_PACK_SIGNS,    /* of these the sign: each stands for +scale or -scale */
    GG_PACK_VALUES    /* of these the value */
} gg_pack_kind;

/* What the host has to know of a parameter that is packed. */
typedef struct gg_pack_result {
    uint64_t entries;  /* of `place` */
    uint32_t greatest; /* the bits of max |G| of all bins: finite only if all elements are */
    float scale;       /* but for NONE and ALL: the mean of max |G| over the bins, added in double in their order */
} gg_pack_result;

/* AdaComp (exchange/codec/compression.h) in one parameter of n elements, bins of `bin` of them, the last one shorter.
 * Either d = scale*gradient   G = residue + d (and residue = G)   H = G + (factor - 1)*d      or, where residue is
 * NULL, d = value - known    G = d                               H = d + (factor - 1)*d each product and sum rounded to
 * float32, on every device and at every instruction set. Chosen is |H| >= max |G| of the bin, where that is neither 0,
 * infinite nor NaN, and G is not 0. Absolute values are compared by their bits. Left out of the choice is, where it is
 * `safe`, |G| < scale/2, and of SIGNS everything where the scale is 0. What is sent is then removed: residue -= sent,
 * or known += sent. Where result->greatest is not finite, nothing is removed but by ALL, and place, chosen and entries
 * are undefined. Arrays need not be aligned. */
typedef struct gg_pack_args {
    size_t n, bin;
    gg_pack_kind kind;
    gg_dtype dtype; /* VALUES: GG_FLOAT32; or GG_BFLOAT16, finite also where rounding to nearest would give infinity */
    bool safe;
    float scale, factor;
    const float *gradient; /* NULL: zeros */
    float *clear;          /* the gradient, which becomes zero; NULL: it stays */
    float *residue;
    const float *value; /* residue NULL, */
    float *known;       /* likewise */
    uint32_t *scratch;  /* memory of the device, of which the content is lost: gg_pack_scratch numbers */
    /* Out, host memory that the device shares: */
    gg_pack_result *result;
    uint16_t *place;  /* but for NONE and ALL: of each bin the places in it that are sent, in order, the first of them
                         with GG_CHOSEN_FIRST added, and those with G < 0 with GG_CHOSEN_NEGATIVE. Room for n */
    uint16_t *chosen; /* likewise: how many these are of each bin */
    void *values;     /* ALL: n float32; VALUES: one an entry, room for n */
    /* NULL: none. Else it is called, by the calling thread and before the entry returns, for runs of whole lanes, one
     * behind the other, that cover [offset, offset + n), each before the gradient there is read; it may write the
     * gradient, or give work that does. It gives NULL; or, not on a device with memory of its own, where runs are no
     * longer than gg_pack_run, where the gradient of this one lies instead, up to the next call. */
    const float *(*prepare)(void *context, size_t at, size_t count);
    void *context;
    size_t offset;
    /* NULL, and so on a device with memory of its own. Else, of SIGNS with a residue: what is sent is not removed, but
     * marked, and what was marked is removed before the residue is read: *owed with the sign that it has there. That
     * saves a pass over the residue. gg_pack_mark_bytes for each bin, bits in the order of the elements; zero at first,
     * as *owed is, which becomes the scale. */
    unsigned char *marks;
    float *owed;
} gg_pack_args;

/* Bits of a bin that 64 bits mark are one word: 8 bytes for any bin up to 64; of a longer one, whole pairs of bytes. */
static inline size_t gg_pack_mark_bytes(size_t bin) { return bin <= 64 ? 8 : (bin + 15) / 16 * 2; }

/* Elements that are prepared and chosen from at once, in cache, unless bins are longer: whole bins and whole lanes. */
static inline size_t gg_pack_run(size_t bin) {
    const size_t most = 2048;
    size_t run = bin;
    while (run % GG_LANES != 0) run *= 2; /* at most GG_LANES bins, since that is a power of two */
    return run < most ? most / run * run : run;
}

/* For a parameter of n elements in bins of `bin`. */
static inline size_t gg_pack_scratch(size_t n, size_t bin) {
    const size_t bins = (n + bin - 1) / bin, words = (bin + 31) / 32;
    return 4 + bins * (3 + 2 * words);
}

/* Elements one by one. */
#define GG_ELEMENT_NEGATIVE 0x80000000u
typedef struct gg_elements_args {
    size_t n;
    const uint32_t *element; /* n different ones, with GG_ELEMENT_NEGATIVE added or not; NULL: 0 to n - 1 */
    gg_dtype dtype;          /* of values: GG_FLOAT32 or GG_BFLOAT16 */
    void *values;            /* n values; NULL: each is 1, or -1 where it is negative */
    float factor;
    float *at; /* element 0 */
} gg_elements_args;

/* A batch of vectors as it lies: float32, PLAIN or BATCH_LAST, or bfloat16, PLAIN. */
typedef struct gg_vectors {
    const void *data;
    gg_dtype dtype;
    gg_layout layout;
    int64_t batch, features;
} gg_vectors;

/* A run of elements of the gradient of a linear layer's weight (out, in), from plain rows of errors and inputs:
 *   out[j] = sum over samples l of error[l*error_row + i/in - first/in] * input[l*in + i%in],  i = first + j < first +
 * count with the bits that LINEAR's backward gives for the same samples, whatever the run. The rows may begin anywhere;
 * GG_READ_BEHIND bytes behind the last input are read. */
typedef struct gg_weight_gradient_args {
    int64_t batch, in;
    const float *error, *input;
    int64_t error_row;
    int64_t first, count;
    float *out;
} gg_weight_gradient_args;

/* What the gradient of a linear layer's weight (out, in) over flat samples is the product of: the batch's inputs and
 * the errors of its outputs, kept so that rows of it can be computed when they are read. */
typedef struct gg_gradient_factors {
    int64_t batch, in, out;
    /* By the device: */
    size_t input_bytes, error_bytes; /* of what is kept, in memory aligned to 64 bytes */
    int64_t rows;                    /* at most so many at a time: each thread's stay in its second cache */
    int fetched;                     /* so many of gg_gradient_rows.used_next at most have room there, too */
} gg_gradient_factors;

/* Rows [first, first + count) of such a gradient; first is a multiple of gg_gradient_factors.rows, count no more. */
typedef struct gg_gradient_rows {
    int64_t first, count;
    float *out;
    /* So many arrays have elements that are used with these, next: they may be fetched into cache meanwhile. Each is
     * given by the element that belongs to out[0]. */
    int used;
    const float *used_next[GG_MOST_USED_NEXT];
} gg_gradient_rows;

typedef struct gg_backend {
    const char *name;
    bool fills_lanes;         /* operations compute in BATCH_LAST, whose padding is all that small batches cost */
    bool numbered_algorithms; /* a library computes convolutions, by algorithms of its own that have numbers */
    bool gathers_images;      /* gather gives NHWC and bfloat16, too */
    gg_status (*open)(const gg_device_options *options, gg_device **out);
    void (*close)(gg_device *device);
    const gg_memory_table *memory; /* NULL: the host's, and work is done when a call returns */

    /* Operations; NULL: not offered. A desc that is offered but not possible gives GG_ERROR_UNSUPPORTED. */
    gg_status (*create[GG_OP_COUNT])(gg_device *device, const gg_op_desc *desc, gg_op **out);

    void (*loss)(gg_device *device, const gg_loss_args *args);

    /* Kernels on arenas. n is a multiple of GG_LANES; pointers aligned to 64 bytes. */
    /* Several updates of one wire, of which none overlap: on a GPU a few launches. */
    void (*update)(gg_device *device, int count, const gg_update_args *args);
    /* out = base + share*(received - sent), where `received` is of type `wire`, GG_FLOAT32 or GG_BFLOAT16, and `sent`,
     * the values that were sent in exchange, is rounded to that type first. out may be base or sent. */
    void (*mix)(gg_device *device, size_t n, gg_dtype wire, float share, const float *base, const void *received,
                const float *sent, float *out);
    /* out = (own + received)/2, with `received` of type `wire`; out may be own. */
    void (*halve)(gg_device *device, size_t n, gg_dtype wire, const float *own, const void *received, float *out);
    /* float32 to bfloat16, to nearest even, and back. */
    void (*narrow)(gg_device *device, size_t n, const float *in, uint16_t *out);
    void (*widen)(gg_device *device, size_t n, const uint16_t *in, float *out);
    void (*widen_add)(gg_device *device, size_t n, const uint16_t *in, float *out); /* out += in */
    /* out = scale[0]*source[0] + scale[1]*source[1] + ..., in this order; out may be any one of the sources. */
    void (*weighted_sum)(gg_device *device, size_t n, int sources, const float *const *source, const float *scale,
                         float *out);
    /* The same of bfloat16, summed in float32. rounded: the sum is rounded to it, and out is what it holds; NULL: not
     * wanted. It may be one of the sources. out may be NULL, too. */
    void (*narrow_sum)(gg_device *device, size_t n, int sources, const uint16_t *const *source, const float *scale,
                       float *out, uint16_t *rounded);
    /* out = a - b, rounded to bfloat16. */
    void (*narrow_difference)(gg_device *device, size_t n, const float *a, const uint16_t *b, uint16_t *out);
    /* Sum of squares of a - b (b NULL: of a), in double, in an order that depends on n alone. */
    double (*sum_squares)(gg_device *device, size_t n, const float *a, const float *b);
    /* True if no element is NaN or infinite. */
    bool (*all_finite)(gg_device *device, size_t n, const float *a);

    /* What packed messages say of `count` parameters, in their order; they share nothing. */
    void (*pack)(gg_device *device, int count, const gg_pack_args *args);
    /* at[element] += factor*value: the product is rounded, then the sum. */
    void (*add_elements)(gg_device *device, const gg_elements_args *args);
    /* values = at[element] as `dtype`, rounded as gg_pack_args says, and at[element] -= what the value holds. */
    void (*take_elements)(gg_device *device, const gg_elements_args *args);

    void (*gather)(gg_device *device, const gg_gather_args *args);
    void (*weight_gradient)(gg_device *device, const gg_weight_gradient_args *args);
    /* NULL: never. Fills in the rest of what describes a layer and its batch; false: its whole gradient is as fast. */
    bool (*factors)(const gg_device *device, gg_gradient_factors *factors);
    /* What is kept of float32 inputs and errors. */
    void (*keep_input)(gg_device *device, const gg_gradient_factors *factors, const gg_vectors *input, void *out);
    void (*keep_error)(gg_device *device, const gg_gradient_factors *factors, const gg_vectors *error, void *out);
    /* With the bits that LINEAR's backward gives. */
    void (*gradient_rows)(gg_device *device, const gg_gradient_factors *factors, const void *input, const void *error,
                          const gg_gradient_rows *rows);
    /* Features [first, first + count) of each sample, plain and as float32: out[sample*count + i]. */
    void (*columns)(gg_device *device, const gg_vectors *from, int64_t first, int64_t count, float *out);
    /* Between PLAIN and BATCH_LAST for n samples of `values` float32 each; to_lanes: PLAIN -> BATCH_LAST. */
    void (*transpose)(gg_device *device, int64_t n, int64_t values, bool to_lanes, const float *in, float *out);
} gg_backend;

/* The head of every device, zero but for the table when it is opened; a backend puts its own fields behind it. */
struct gg_device {
    const gg_backend *table;
    gg_isa isa;  /* CPU */
    int threads; /* of the CPU that compute; 1 where it does not */
    /* Host memory that a separate device shares, and its own that messages use; ops/device.c's. */
    struct gg_shared_block {
        const char *begin;
        size_t bytes;
        bool own;
    } * shared;
    int shared_blocks, shared_room;
    bool own_messages; /* gg_device_send_own's */
    int64_t freed;     /* gg_device_freed; likewise */
};

#endif
