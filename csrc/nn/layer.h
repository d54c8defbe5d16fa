/* The kinds of layers, for graph and plan: one constant gg_layer_type a kind. */
#ifndef GG_NN_LAYER_H
#define GG_NN_LAYER_H

#include "base/options.h"
#include "nn/graph.h"

/* Limits of axes, windows and samples, so that no product of sizes overflows. */
#define GG_MAX_SAMPLE ((int64_t)1 << 31)
#define GG_MAX_WINDOW ((int64_t)1 << 24)
#define GG_MAX_BATCH ((int64_t)1 << 24)

/* Max length of a parameter name's suffix, such as ".weight_ih_l0", with its closing zero. */
#define GG_SUFFIX_LENGTH 32

/* Rows of gg_layer_type.options, which {.name = NULL} ends: options in `field` of gg_layer_desc with the default
 * `otherwise` and gg_bounds. SIZES are a gg_shape. */
#define GG_LAYER_FLAG(text, field, otherwise)                                                                          \
    {                                                                                                                  \
        .name = (text), .type = GG_OPTION_FLAG, .offset = offsetof(gg_layer_desc, field), .fallback = { otherwise }    \
    }
#define GG_LAYER_NUMBER(text, kind, field, otherwise, ...)                                                             \
    {                                                                                                                  \
        .name = (text), .type = GG_OPTION_##kind, .offset = offsetof(gg_layer_desc, field), .fallback = {otherwise},   \
        .bounds = __VA_ARGS__                                                                                          \
    }
#define GG_LAYER_PAIR(text, field, otherwise, ...)                                                                     \
    {                                                                                                                  \
        .name = (text), .type = GG_OPTION_INT64, .offset = offsetof(gg_layer_desc, field), .count = 2,                 \
        .fallback = {otherwise, otherwise}, .bounds = __VA_ARGS__                                                      \
    }
#define GG_LAYER_SIZES(text, field)                                                                                    \
    {                                                                                                                  \
        .name = (text), .type = GG_OPTION_INT64, .offset = offsetof(gg_layer_desc, field.size), .count = GG_MAX_DIMS,  \
        .length = offsetof(gg_layer_desc, field.dims), .bounds = GG_ANY                                                \
    }
/* The four pairs of a window. */
#define GG_LAYER_WINDOW(field)                                                                                         \
    GG_LAYER_PAIR("kernel", field.kernel, 0, GG_FROM_TO(1, GG_MAX_WINDOW)),                                            \
        GG_LAYER_PAIR("stride", field.stride, 1, GG_FROM_TO(1, GG_MAX_WINDOW)),                                        \
        GG_LAYER_PAIR("padding", field.padding, 0, GG_FROM_TO(0, GG_MAX_WINDOW)),                                      \
        GG_LAYER_PAIR("dilation", field.dilation, 1, GG_FROM_TO(1, GG_MAX_WINDOW))
#define GG_LAYER_OUTPUTS GG_LAYER_NUMBER("outputs", INT64, outputs, 0, GG_FROM_TO(1, GG_MAX_SAMPLE))
#define GG_LAYER_BIAS GG_LAYER_FLAG("bias", bias, true)
#define GG_LAYER_PROBABILITY GG_LAYER_NUMBER("probability", FLOAT, probability, 0, GG_BELOW(0, 1))

/* One tensor of a layer, before it has a place in the arenas (gg_parameter). */
typedef struct gg_tensor_desc {
    char name[GG_SUFFIX_LENGTH];
    gg_role role;
    gg_shape shape;
    int64_t fan_in, fan_out;
    gg_init init;
} gg_tensor_desc;

/* The tensor of a finished graph's parameter. */
const gg_tensor_desc *gg_graph_tensor(const gg_graph *graph, int parameter);

/* Callers add the layer's name to errors. NULL functions mean nothing to check, have, count or describe. */
typedef struct gg_layer_type {
    const char *name;         /* "conv2d", for messages */
    const gg_option *options; /* NULL means none */
    gg_family family;
    int inputs[2]; /* min and max; zeros mean exactly one */
    gg_op_kind op; /* GG_OP_COUNT means none of its own */
    bool view;     /* its only input's values in equal order, of any type: another shape for one memory, without an
                      operation */
    gg_integers (*integers)(const gg_node *node,
                            int input); /* integers that int32 input `input` allows; NULL means any */
    unsigned integer_inputs;            /* bit i: input i is int32, otherwise float32 */
    /* Checks the description, whose options are in their bounds, against the inputs, which a NULL ends. Sets *out, the
     * first input's shape at first, to the shape of one output sample. */
    gg_status (*infer)(const gg_layer_desc *desc, const gg_node *const *input, gg_shape *out);
    /* Returns the number of tensors. If `out` is not NULL, writes them in order into zeroed entries: name (a suffix
     * such as ".weight"), role, shape, fans and initialiser. */
    int (*parameters)(const gg_node *node, const gg_shape *input, gg_tensor_desc *out);
    int64_t (*macs)(const gg_node *node, const gg_shape *input);
    /* float32 numbers of state that a sample carries from batch to batch; NULL means 0. */
    int64_t (*carried)(const gg_node *node, const gg_shape *input);
    /* Changes an operation's description that has the layer's options, bias and probability, and shapes already. NULL
     * means no change. */
    void (*describe)(const gg_layer_desc *desc, gg_op_desc *out);
} gg_layer_type;

const gg_layer_type *gg_layer_type_of(gg_layer_kind kind);

#define GG_LAYER_ROW(kind, row) extern const gg_layer_type gg_layer_##row;
GG_LAYERS(GG_LAYER_ROW)
#undef GG_LAYER_ROW

/* Checks that the input is (channels, height, width) and holds the window; sets out[1] and out[2] to the output's size.
 */
gg_status gg_window_infer(const gg_window *window, bool ceil_mode, const gg_node *input, gg_shape *out);

/* gg_layer_type.parameters of a layer with a weight (desc->outputs, ...) and, by desc->bias, a bias. */
int gg_layer_weight_and_bias(const gg_layer_desc *desc, const gg_shape *shape, int64_t fan_out, gg_tensor_desc *out);

/* SLICE's range on an input of this shape: axis and places counted from the first, none outside. */
gg_range gg_slice_range(const gg_layer_desc *desc, const gg_shape *shape);

#endif
