/* The backend table: the functions by which a device trains a network.
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
#include "ops/op_options.h"
#include "ops/tensor.h"
#include "ops/update_rules.h"

typedef enum gg_op_kind {
    GG_OP_CONV2D = 0,
    GG_OP_LINEAR,
    GG_OP_MAX_POOL2D,
    GG_OP_AVG_POOL2D,
    GG_OP_ADAPTIVE_AVG_POOL2D, /* window o of an axis: elements o*in/out, rounded down, to (o+1)*in/out, rounded up */
    GG_OP_BATCH_NORM,          /* over the first axis of the sample; a second input is added to the result */
    GG_OP_LAYER_NORM,          /* over the axes of the sample from `axis` on, or over `groups` of its first axis */
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

/* Algorithms of convolutions, and in bfloat16 of linear layers and LSTMs. Winograd's methods have fewer multiplications
 * and larger errors. */
typedef enum gg_algorithm {
    GG_ALGORITHM_DIRECT = 0,
    GG_ALGORITHM_WINOGRAD4, /* F(4x4,3x3), F(4x4,5x5) */
    GG_ALGORITHM_WINOGRAD2, /* F(2x2,3x3), F(2x2,5x5) */
    GG_ALGORITHM_WINOGRAD6, /* F(6x6,3x3) */
    GG_ALGORITHM_SPLIT,     /* direct, each float32 as three bfloat16 (AMX) */
    GG_ALGORITHM_WIDENED,   /* bfloat16: direct, float32 inside, as Winograd's methods always are */
    /* bfloat16: WIDENED and Winograd's methods on float32 that is BATCH_LAST inside. */
    GG_ALGORITHM_TURNED,
    GG_ALGORITHM_TURNED4,
    GG_ALGORITHM_TURNED2,
    GG_ALGORITHM_TURNED6,
    GG_ALGORITHM_TILED, /* direct, own kernels for few channels: on a GPU; on AMX for the bfloat16 gradient of weights
                         */
    /* cuDNN's algorithms by its numbers in each pass; DIRECT is then cuDNN's own choice. */
    GG_ALGORITHM_CUDNN0,
    GG_ALGORITHM_CUDNN7 = GG_ALGORITHM_CUDNN0 + 7,
    GG_ALGORITHM_COUNT
} gg_algorithm;

/* Default algorithm for bfloat16 products on the CPU. */
static inline gg_algorithm gg_bfloat16_algorithm(void) {
    return gg_cpu_bfloat16_is_fast() ? GG_ALGORITHM_DIRECT : GG_ALGORITHM_WIDENED;
}

/* "direct", "winograd4", "winograd2", "winograd6", "split", "widened", "turned", "turned4", "turned2", "turned6",
 * "tiled", "cudnn0" to "cudnn7" */
const char *gg_algorithm_name(gg_algorithm algorithm);

/* Runs of an operation; each may have an algorithm of its own. */
typedef enum gg_pass { GG_PASS_FORWARD = 0, GG_PASS_WEIGHTS, GG_PASS_DATA, GG_PASS_COUNT } gg_pass;

/* "forward", "weights", "data" */
const char *gg_pass_name(gg_pass pass);

#define GG_MAX_INPUTS 16
/* Max inputs of a network, and max targets of a data set. */
#define GG_MAX_FIELDS 8

/* Rows of LAYER_NORM: adjacent values of a PLAIN sample. */
typedef struct gg_norm_rows {
    int64_t count, length;  /* rows of a sample; values of a row */
    int64_t weights, inner; /* weights of a row, and adjacent values that share one */
    int64_t parameters;     /* weights of all rows; row i has those from i*weights % parameters on */
    bool root_mean_square;  /* gg_layer_norm_options' */
} gg_norm_rows;

/* Description of an operation. Shapes are of one sample; batch is N. */
typedef struct gg_op_desc {
    gg_op_kind kind;
    int64_t batch;
    int inputs;
    gg_shape input[GG_MAX_INPUTS];
    gg_shape output;
    gg_format offered[GG_MAX_INPUTS]; /* the formats of the inputs; the operation may choose others */
    gg_dtype dtype; /* GG_FLOAT32, or GG_BFLOAT16: operations with a bfloat16 form read and write bfloat16 activations.
                       Operations that gain nothing use it only if it is offered. All others use GG_FLOAT32 */
    gg_algorithm algorithm;   /* CONV2D; LINEAR and LSTM: DIRECT or WIDENED; others: DIRECT */
    unsigned passes;          /* CONV2D: one bit (1 << pass) for each pass that is run; 0 means all */
    gg_activation activation; /* CONV2D, LINEAR, BATCH_NORM, MAX_POOL2D, ADD: applied to the output. GELU: only LINEAR
                                 over positions, in tables that offer it */
    bool bias;                /* CONV2D, LINEAR, LSTM, MULTI_HEAD, affine LAYER_NORM: has one */
    float probability;        /* DROPOUT, ATTENTION, MULTI_HEAD, LSTM: of being zeroed; all other values are divided by
                                 1 - probability */
    uint64_t seed;            /* of dropout, already mixed with the layer's number */
    bool training;            /* false: backward is never run and dropout copies */
    bool input_grad;          /* false: grad_input is not needed (first layer) */
    union {
        GG_OP_OPTIONS
        gg_op_options options;
    };
} gg_op_desc;

/* The rows of a LAYER_NORM whose axis and groups have been checked. */
static inline gg_norm_rows gg_norm_rows_of(const gg_op_desc *desc) {
    const gg_layer_norm_options *norm = &desc->layer_norm;
    gg_norm_rows rows = {1, 1, 1, 1, 1, norm->root_mean_square};
    if (norm->groups > 0) {
        rows.count = norm->groups;
        rows.length = gg_shape_count(&desc->output) / norm->groups;
        rows.parameters = desc->output.size[0];
        rows.weights = rows.parameters / norm->groups;
        rows.inner = rows.length / rows.weights;
        return rows;
    }
    for (int i = 0; i < desc->output.dims; ++i) *(i < norm->axis ? &rows.count : &rows.length) *= desc->output.size[i];
    rows.weights = rows.parameters = rows.length;
    return rows;
}

/* Matrix products may read up to this many bytes past the last row of a PLAIN input or gradient; the values are
 * ignored. */
#define GG_READ_BEHIND 128

/* True if the operation is run for this pass. */
static inline bool gg_op_has_pass(const gg_op_desc *desc, gg_pass pass) {
    return desc->passes == 0 || (desc->passes >> pass & 1u) != 0;
}

/* Max stride of GG_ALGORITHM_SPLIT. */
enum { GG_CONV_SPLIT_STRIDE = 2 };
/* Max channels with kernels of their own, such as GG_ALGORITHM_TILED on a CPU. */
enum { GG_CONV_FEW_CHANNELS = 4 };
/* Maps GG_ALGORITHM_TURNED* to its inner algorithm; returns GG_ALGORITHM_COUNT for any other. */
gg_algorithm gg_conv_unturned(gg_algorithm algorithm);
/* True if the CPU's own `algorithm` can compute a convolution of this shape on images of this layout. */
bool gg_conv_has_form(const gg_op_desc *desc, gg_layout layout, gg_algorithm algorithm);

/* Places in gg_op_args of parameters that several operations share. */
enum { GG_PARAMETER_WEIGHT = 0, GG_PARAMETER_BIAS };

/* One run. Pointers are aligned to 64 bytes. Parameters and gradients are float32, in the layer's order and layouts
 * (nn/layer.h), which are PyTorch's: convolution (O, I/groups, kH, kW), linear (out, in), bias (out). Normalisations
 * have weight and bias if affine, then running mean and variance if tracked. The gradient of these two is the value to
 * subtract, momentum*(running - the batch's). Gradients are written, never added to. */
typedef struct gg_op_args {
    const void *input[GG_MAX_INPUTS];
    void *output;                    /* backward: the forward's output, valid if op->backward_needs_output */
    void *grad_output;               /* backward: may be overwritten by the operation */
    void *grad_input[GG_MAX_INPUTS]; /* backward: NULL means not needed */
    const float *const *parameter;   /* one pointer a parameter of the operation; owned by the caller */
    float *const *gradient; /* backward: one a parameter. LINEAR: the weight's is NULL if not needed; grad_output then
                               holds the error before the activation afterwards */
    void *prepared;         /* op->prepared_bytes, written by prepare for the next pass */
    void *saved;            /* op->saved_bytes, held by the plan from forward to backward */
    void *scratch; /* op->scratch_bytes, lost between runs; backward_weights may leave values in it for backward_data */
    float *carried;       /* forward: each sample's state at its begin, replaced by its state at the end
                             (gg_layer_type.carried numbers). NULL means: start at zero, keep nothing. Backward does not see
                             it: forward saves the needed values, and no gradient flows into it */
    uint32_t rank;        /* DROPOUT */
    const uint64_t *step; /* DROPOUT: the training step's number, in memory of the device */
    bool evaluate; /* forward of an operation created for training: compute as in evaluation; no backward follows */
} gg_op_args;

typedef struct gg_op gg_op;

/* Functions of an operation, in their order within a step. */
typedef struct gg_op_class {
    /* Derives from args->parameter the form that forward, or backward_data, reads in args->prepared. Called before that
     * pass if op->prepared_bytes > 0 and if weights have changed or another pass was prepared (see prepared_once). NULL
     * means that passes read the weights themselves. */
    gg_status (*prepare)(gg_op *op, const gg_op_args *args, gg_pass pass);
    gg_status (*forward)(gg_op *op, const gg_op_args *args);
    /* Computes the gradients of the parameters; leaves the error before the activation in grad_output. NULL means no
     * parameters, or gradients that backward_data computes together with grad_input. */
    gg_status (*backward_weights)(gg_op *op, const gg_op_args *args);
    /* Computes grad_input from backward_weights' grad_output. NULL means that the input never has a gradient. */
    gg_status (*backward_data)(gg_op *op, const gg_op_args *args);
    /* Compiles code that the first run would otherwise compile. NULL means that there is none. */
    void (*compile)(gg_op *op);
    void (*destroy)(gg_op *op); /* frees the op itself */
} gg_op_class;

/* The head of every operation; a backend's own fields follow it. */
struct gg_op {
    const gg_op_class *type;
    const char *backend; /* the table's name, for reports */
    gg_op_desc desc;
    gg_format input[GG_MAX_INPUTS]; /* formats it reads; the plan reorders if one differs from desc.offered */
    gg_format output;               /* format it writes. Gradients have their activations' formats */
    size_t prepared_bytes, saved_bytes, scratch_bytes;
    bool prepared_once; /* backward_data reads forward's prepared form, of any such operation with equal formats:
                           prepare is not repeated */
    bool in_place;      /* output may be input[0]'s buffer, and grad_input[0] grad_output's */
    unsigned backward_needs_input; /* bit i: backward reads args->input[i] */
    bool backward_needs_output;    /* backward reads args->output */
    unsigned over_output;          /* bit i: backward may write args->grad_input[i] over args->output */
    unsigned slow;                 /* bit i: a library computes gg_pass i by plain loops */
};

/* Checks for `create` in every table: shapes of an LSTM of (T, I) or of attention, the probability, the length of the
 * dropout stream. GG_ERROR_UNSUPPORTED: an LSTM of tokens. */
gg_status gg_op_check_lstm(const gg_op_desc *desc);
gg_status gg_op_check_attention(const gg_op_desc *desc);

/* Makes MULTI_HEAD from a table's LINEAR and ATTENTION. */
gg_status gg_multi_head_create(gg_device *device, const gg_op_desc *desc, gg_op **out);

/* Called when a plan has chosen the operation; NULL is a no-op. */
void gg_op_compile(gg_op *op);
/* Destroys any operation; NULL is a no-op. */
void gg_op_destroy(gg_op *op);
/* Run the functions that the operation has. Backward: weights, prepare, data. */
gg_status gg_op_prepare(gg_op *op, const gg_op_args *args, gg_pass pass);
gg_status gg_op_forward(gg_op *op, const gg_op_args *args);
gg_status gg_op_backward(gg_op *op, const gg_op_args *args);

typedef enum gg_loss_kind {
    GG_LOSS_CROSS_ENTROPY = 0,
    GG_LOSS_BINARY_CROSS_ENTROPY,
    GG_LOSS_MEAN_SQUARED_ERROR,
    GG_LOSS_COUNT
} gg_loss_kind;

/* A loss. Fields that its kind does not use are zero. */
typedef struct gg_loss_options {
    gg_loss_kind kind;
    float label_smoothing; /* CROSS_ENTROPY, in [0, 1): share of each target spread evenly over all classes */
    bool ignores;          /* CROSS_ENTROPY: positions whose target is ignore_index do not count */
    int32_t ignore_index;
    const float *class_weights; /* CROSS_ENTROPY: weight of each class, at least 0; NULL means all 1. Owned by the
                                   caller while the options are in use */
} gg_loss_options;

/* The loss of a batch. */
typedef struct gg_loss_result {
    double loss_sum, divisor; /* weighted sum over counted positions (float losses: over samples, of the mean over
                                 features), and its divisor */
    int64_t correct, counted; /* correctly classified positions (argmax, lowest index on ties; sign for binary; 0 for
                                 MSE), and positions that count */
} gg_loss_result;

/* A loss over the first `batch` samples of a prediction. A sample has `positions` positions of `features` values each,
 * row-major: (T, V) for a class a position, otherwise one position.
 *
 *   targets, CROSS_ENTROPY: int32 (batch, positions), classes or ignore_index (checked by the caller)
 *   targets, others:        float32 (batch, features), plain
 *
 * The mean loss is loss_sum/divisor; `gradient` is its gradient. The divisor is
 *
 * - with one position, no class weights and no ignored index: the number of samples, even if samples have weights. A
 *   sample's weight then depends neither on its batch nor on its rank;
 * - otherwise: the number of counted positions, times their classes' weights: PyTorch's mean over a batch.
 *
 * With divisor 0, loss and gradient are 0. Ranks are always weighted by their numbers of samples, like PyTorch's data
 * parallelism: a position counts for more on a rank with fewer counted positions. Evaluation adds sums and divisors
 * over all batches and ranks, and divides once. */
typedef struct gg_loss_args {
    gg_loss_options loss;
    gg_layout layout; /* PLAIN or BATCH_LAST, of prediction and gradient */
    int64_t batch, positions, features;
    const float *prediction;
    const void *targets;
    const float *sample_weights; /* one a sample; NULL means all 1, with equal bits */
    float *gradient;             /* of the batch's mean loss; NULL means evaluation. Padding lanes get zeros. */
    gg_loss_result *result;      /* out: host memory that the device shares */
} gg_loss_args;

/* Lines of a run, GG_LANES elements each, that may hold nonzero elements: bit first + i is line i's. bits NULL means
 * all lines. Otherwise one word past the last is readable. */
typedef struct gg_lines {
    const uint64_t *bits;
    size_t first;
} gg_lines;

/* The lines of a run that begins `elements` (whole lines) later. */
static inline gg_lines gg_lines_behind(gg_lines lines, size_t elements) {
    return (gg_lines){lines.bits, lines.first + elements / GG_LANES};
}

/* The bits of lines `line` to `line` + 63; lines.bits is not NULL. */
static inline uint64_t gg_lines_word(gg_lines lines, size_t line) {
    const size_t at = lines.first + line, shift = at % 64;
    const uint64_t *word = lines.bits + at / 64;
    return word[0] >> shift | word[1] << 1 << (63 - shift);
}

/* One step of an optimiser in PyTorch's form, fused with gossip's mixing and copying, over n elements of flat arenas,
 * in place:
 *
 *   m  = momentum + (momentum_before - momentum)/2    if momentum_before, else momentum
 *   s  = square + (square_before - square)/2          if square_before, else square
 *   d  = grad_scale*grad + weight_decay*weight
 *   PLAIN      w' = weight - lr*d
 *   MOMENTUM   m' = mu*m + d             w' = weight - lr*m'
 *   NESTEROV   m' = mu*m + d             w' = weight - lr*(d + mu*m')
 *   ADAM       m' = mu*m + d_share*d     s' = max(0, beta2*s + square_share*d^2)
 *              w' = weight_factor*weight - lr*m'/(sqrt(s')*root_scale + eps)
 *   weight   = w' + (weight_after - weight)/2         if weight_after, else w'
 *   momentum = m'                                     square = s'
 *   weight_copy, ... = weight, ...                    if given: the partners' snapshot
 *
 * An average of rounded squares can be below 0, hence ADAM's max.
 * Copies are streamed past the cache and fenced: a store to lines that another core has read costs several times more.
 * Received and copied elements have the type `wire`: GG_FLOAT32, or GG_BFLOAT16 rounded to nearest even. With bfloat16
 * the subtracted weight, momentum and square are rounded too. They equal the last step's copies, so one rank gains as
 * much as another loses, and the mean over the ranks is preserved.
 *
 * Arrays do not overlap. Elements that are 0 in all arrays stay 0. An element's result does not depend on its place in
 * the call. On a CPU, PLAIN with finite lr and grad_scale and without weight decay, received weights and copies changes
 * no weight with gradient 0. Lines of GG_LANES weights whose gradients are all 0 are neither read nor written, and an
 * infinite weight stays infinite. */
typedef struct gg_update_args {
    size_t n; /* multiple of GG_LANES */
    gg_update_rule rule;
    gg_dtype wire;
    const float *grad;
    gg_lines filled;                   /* of the gradient */
    float *weight, *momentum, *square; /* PLAIN does not read momentum; only ADAM and ADAM_MEAN read square */
    const void *weight_after, *momentum_before, *square_before; /* received from a partner; NULL means none */
    void *weight_copy, *momentum_copy, *square_copy;            /* NULL means none */
    float grad_scale, lr, mu, weight_decay;
    float d_share, beta2, square_share, root_scale, eps; /* ADAM, ADAM_MEAN */
    float mean_share;                                    /* ADAM_MEAN: of the momentum's square */
    float weight_factor; /* ADAM, ADAM_MEAN: 1 - lr*weight decay if the decay is decoupled, else 1 */
} gg_update_args;

/* Reads samples of a data set into a batch. */
typedef struct gg_gather_args {
    gg_dtype dtype;        /* of the set's elements: GG_UINT8, GG_FLOAT32 or GG_INT32 */
    const void *rows;      /* the set, one sample a row of `values` elements */
    int64_t values;        /* elements in a sample */
    const uint32_t *index; /* n row numbers; NULL means rows 0..n-1 */
    int64_t n;             /* samples; the batch is padded with zeros where the layout pads */
    gg_dtype wanted; /* GG_FLOAT32, or GG_INT32 from uint8 or int32, PLAIN. GPU also: GG_BFLOAT16, GG_FLOAT32 rounded,
                        PLAIN or NHWC */
    float scale, shift;  /* GG_FLOAT32: value = scale*element + shift */
    int64_t runs;        /* > 0: equal runs of a sample, each with its own: */
    const float *scales; /* scale a run, then a shift a run; NULL if runs is 0 */
    gg_layout layout;    /* PLAIN or BATCH_LAST. GPU also: NHWC, from samples (channels, ...) */
    int64_t channels;    /* NHWC */
    void *out;
} gg_gather_args;

/* Max elements of a bin. */
#define GG_MAX_CHOSEN_BIN 16384
enum { GG_CHOSEN_FIRST = 0x8000, GG_CHOSEN_NEGATIVE = 0x4000, GG_CHOSEN_PLACE = 0x3fff };

/* The sent values of a parameter. */
typedef enum gg_pack_kind {
    GG_PACK_NONE = 0, /* nothing: new values go to the residue */
    GG_PACK_ALL,      /* every value, as float32 */
    GG_PACK_CHOICE,   /* the choice of elements; their values are not sent yet */
    GG_PACK_SIGNS,    /* signs of chosen elements: +scale or -scale */
    GG_PACK_VALUES    /* values of chosen elements */
} gg_pack_kind;

/* Results of packing a parameter, for the host. */
typedef struct gg_pack_result {
    uint64_t entries;  /* of `place` */
    uint32_t greatest; /* the bits of max |G| of all bins: finite only if all elements are */
    float scale;       /* except for NONE and ALL: the mean of max |G| over the bins, added in double in their order */
} gg_pack_result;

/* AdaComp (exchange/codec/compression.h) on one parameter of n elements in bins of `bin` elements; the last may be
 * shorter.
 *
 *   with residue:  d = scale*gradient   G = residue + d, residue = G   H = G + (factor - 1)*d
 *   residue NULL:  d = value - known    G = d                          H = d + (factor - 1)*d
 *
 * Every product and sum is rounded to float32, on every device and instruction set. An element is chosen if |H| >= max
 * |G| of its bin, that max is neither 0, infinite nor NaN, and G is not 0. Absolute values are compared by their bits.
 * `safe` excludes |G| < scale/2; SIGNS excludes everything if the scale is 0. Sent values are then removed: residue -=
 * sent, or known += sent. If result->greatest is not finite, only ALL removes values, and place, chosen and entries are
 * undefined. Arrays need not be aligned. */
typedef struct gg_pack_args {
    size_t n, bin;
    gg_pack_kind kind;
    gg_dtype
        dtype; /* VALUES: GG_FLOAT32, or GG_BFLOAT16, which stays finite where rounding to nearest gives infinity */
    bool safe;
    float scale, factor;
    const float *gradient; /* NULL means zeros */
    float *clear;          /* the gradient, to be zeroed; NULL keeps it */
    float *residue;
    const float *value; /* residue NULL, */
    float *known;       /* likewise */
    uint32_t *scratch;  /* gg_pack_scratch numbers in memory of the device; content is lost */
    /* Out, host memory that the device shares: */
    gg_pack_result *result;
    uint16_t *place;  /* except for NONE and ALL: the sent places of each bin in order. The first of a bin has
                         GG_CHOSEN_FIRST added, places with G < 0 have GG_CHOSEN_NEGATIVE. Room for n */
    uint16_t *chosen; /* except for NONE and ALL: number of sent places of each bin */
    void *values;     /* ALL: n float32; VALUES: one an entry, room for n */
    /* NULL means none. Otherwise called on the calling thread, before `pack` returns, for successive runs of whole
     * lanes that cover [offset, offset + n), each before its gradient is read. The function may write the gradient, or
     * start work that does, and return NULL. On a device without memory of its own, where runs are at most gg_pack_run,
     * it may return the run's gradient, valid until the next call. */
    const float *(*prepare)(void *context, size_t at, size_t count);
    void *context;
    size_t offset;
    /* NULL, always on a device with memory of its own. Otherwise, for SIGNS with a residue: sent elements are marked
     * instead of removed, which saves a pass over the residue. Elements marked earlier are removed before the residue
     * is read: *owed, with the element's sign. Each bin has gg_pack_mark_bytes, bits in the order of elements. Marks
     * and *owed start at zero; *owed becomes the scale. */
    unsigned char *marks;
    float *owed;
} gg_pack_args;

/* Bytes of a bin's marks: one word for bins up to 64 elements, whole pairs of bytes for longer ones. */
static inline size_t gg_pack_mark_bytes(size_t bin) { return bin <= 64 ? 8 : (bin + 15) / 16 * 2; }

/* Elements prepared and chosen from at once, in cache: whole bins and whole lanes; at least one bin. */
static inline size_t gg_pack_run(size_t bin) {
    const size_t most = 2048;
    size_t run = bin;
    while (run % GG_LANES != 0) run *= 2; /* at most GG_LANES bins, since that is a power of two */
    return run < most ? most / run * run : run;
}

/* Numbers of scratch for a parameter of n elements in bins of `bin`. */
static inline size_t gg_pack_scratch(size_t n, size_t bin) {
    const size_t bins = (n + bin - 1) / bin, words = (bin + 31) / 32;
    return 4 + bins * (3 + 2 * words);
}

/* Single elements of an array. */
#define GG_ELEMENT_NEGATIVE 0x80000000u
typedef struct gg_elements_args {
    size_t n;
    const uint32_t *element; /* n distinct indices, optionally with GG_ELEMENT_NEGATIVE added; NULL means 0 to n - 1 */
    gg_dtype dtype;          /* of values: GG_FLOAT32 or GG_BFLOAT16 */
    void *values;            /* n values; NULL means 1, or -1 for negative indices */
    float factor;
    float *at; /* element 0 */
} gg_elements_args;

/* A batch of vectors: float32 PLAIN or BATCH_LAST, or bfloat16 PLAIN. */
typedef struct gg_vectors {
    const void *data;
    gg_dtype dtype;
    gg_layout layout;
    int64_t batch, features;
} gg_vectors;

/* A run of elements of the gradient of a linear layer's weight (out, in), from plain rows of errors and inputs:
 *   out[j] = sum over samples l of error[l*error_row + i/in - first/in] * input[l*in + i%in],  i = first + j < first +
 * count with the bits of LINEAR's backward on these samples, whatever the run. Rows may begin anywhere; GG_READ_BEHIND
 * bytes past the last input are read. */
typedef struct gg_weight_gradient_args {
    int64_t batch, in;
    const float *error, *input;
    int64_t error_row;
    int64_t first, count;
    float *out;
} gg_weight_gradient_args;

/* Factors of the gradient of a linear layer's weight (out, in) over flat samples: the batch's inputs and output errors.
 * They are kept so that rows of the gradient can be computed when they are read. */
typedef struct gg_gradient_factors {
    int64_t batch, in, out;
    /* Set by the device: */
    size_t input_bytes, error_bytes; /* of the kept factors, aligned to 64 bytes */
    int64_t rows;                    /* max rows at a time, so that each thread's rows stay in its L2 cache */
    int fetched;                     /* max arrays of gg_gradient_rows.used_next that also have room there */
} gg_gradient_factors;

/* Max arrays in `used_next`. */
#define GG_MAX_USED_NEXT 4

/* Rows [first, first + count) of such a gradient; first is a multiple of gg_gradient_factors.rows, count no more. */
typedef struct gg_gradient_rows {
    int64_t first, count;
    float *out;
    /* used_next[0..used) is read next, together with these rows; prefetch it if convenient. Each pointer corresponds to
     * out[0]. */
    int used;
    const float *used_next[GG_MAX_USED_NEXT];
} gg_gradient_rows;

typedef struct gg_backend {
    const char *name;
    bool fills_lanes;         /* operations compute in BATCH_LAST; small batches cost only its padding */
    bool numbered_algorithms; /* a library computes convolutions by numbered algorithms */
    bool gathers_images;      /* gather can write NHWC and bfloat16 */
    gg_status (*open)(const gg_device_options *options, gg_device **out);
    void (*close)(gg_device *device);
    const gg_memory_table *memory; /* NULL means host memory, and work that is done when a call returns */

    /* Operations; NULL means not offered. GG_ERROR_UNSUPPORTED: an offered operation with an impossible desc. */
    gg_status (*create[GG_OP_COUNT])(gg_device *device, const gg_op_desc *desc, gg_op **out);

    void (*loss)(gg_device *device, const gg_loss_args *args);

    /* Kernels on arenas. n is a multiple of GG_LANES; pointers aligned to 64 bytes. */
    /* `count` updates of one wire that do not overlap; a few launches on a GPU. */
    void (*update)(gg_device *device, int count, const gg_update_args *args);
    /* out = base + share*(received - sent), where `received` is of type `wire`, GG_FLOAT32 or GG_BFLOAT16, and `sent`,
     * this rank's sent values, is rounded to that type first. out may be base or sent. */
    void (*mix)(gg_device *device, size_t n, gg_dtype wire, float share, const float *base, const void *received,
                const float *sent, float *out);
    /* float32 to bfloat16, to nearest even, and back. */
    void (*narrow)(gg_device *device, size_t n, const float *in, uint16_t *out);
    void (*widen)(gg_device *device, size_t n, const uint16_t *in, float *out);
    void (*widen_add)(gg_device *device, size_t n, const uint16_t *in, float *out); /* out += in */
    /* out = scale[0]*source[0] + scale[1]*source[1] + ..., in this order; out may be any one of the sources. */
    void (*weighted_sum)(gg_device *device, size_t n, int sources, const float *const *source, const float *scale,
                         float *out);
    /* weighted_sum of bfloat16 sources, summed in float32. `rounded` receives the rounded sum, and out then holds its
     * value; NULL means not needed. `rounded` may be one of the sources. out may be NULL. */
    void (*narrow_sum)(gg_device *device, size_t n, int sources, const uint16_t *const *source, const float *scale,
                       float *out, uint16_t *rounded);
    /* out = a - b, rounded to bfloat16. */
    void (*narrow_difference)(gg_device *device, size_t n, const float *a, const uint16_t *b, uint16_t *out);
    /* Sum of squares of a - b (b NULL: of a), in double, in an order that depends on n alone. */
    double (*sum_squares)(gg_device *device, size_t n, const float *a, const float *b);
    /* True if no element is NaN or infinite. */
    bool (*all_finite)(gg_device *device, size_t n, const float *a);

    /* Packs `count` parameters in order; they share no memory. */
    void (*pack)(gg_device *device, int count, const gg_pack_args *args);
    /* at[element] += factor*value: the product is rounded, then the sum. */
    void (*add_elements)(gg_device *device, const gg_elements_args *args);
    /* values = at[element] as `dtype`, rounded as gg_pack_args says, and at[element] -= the rounded value. */
    void (*take_elements)(gg_device *device, const gg_elements_args *args);

    void (*gather)(gg_device *device, const gg_gather_args *args);
    void (*weight_gradient)(gg_device *device, const gg_weight_gradient_args *args);
    /* NULL means never. Fills in the device's fields; false means that the whole gradient is as fast. */
    bool (*factors)(const gg_device *device, gg_gradient_factors *factors);
    /* Write the kept forms of float32 inputs and errors. */
    void (*keep_input)(gg_device *device, const gg_gradient_factors *factors, const gg_vectors *input, void *out);
    void (*keep_error)(gg_device *device, const gg_gradient_factors *factors, const gg_vectors *error, void *out);
    /* Computes rows with the bits of LINEAR's backward. */
    void (*gradient_rows)(gg_device *device, const gg_gradient_factors *factors, const void *input, const void *error,
                          const gg_gradient_rows *rows);
    /* Features [first, first + count) of each sample, plain and as float32: out[sample*count + i]. */
    void (*columns)(gg_device *device, const gg_vectors *from, int64_t first, int64_t count, float *out);
    /* Between PLAIN and BATCH_LAST for n samples of `values` float32 each; to_lanes: PLAIN -> BATCH_LAST. */
    void (*transpose)(gg_device *device, int64_t n, int64_t values, bool to_lanes, const float *in, float *out);
} gg_backend;

/* The head of every device; a backend's own fields follow it. All fields but the table are zero when it is opened. */
struct gg_device {
    const gg_backend *table;
    gg_isa isa;  /* CPU */
    int threads; /* of the CPU that compute; 1 if it does not compute */
    /* Host memory that a separate device shares, and its own memory for messages; private to ops/device.c. */
    struct gg_shared_block {
        const char *begin;
        size_t bytes;
        bool own;
    } * shared;
    int shared_blocks, shared_room;
    bool own_messages; /* gg_device_send_own's */
    int64_t freed;     /* gg_device_freed's */
};

#endif
