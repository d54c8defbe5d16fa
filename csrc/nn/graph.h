/* The graph of a network: layers as nodes, any DAG.
 *
 * A graph is built once and is constant afterwards; many plans and threads may then read it. Shapes are inferred and
 * checked as each layer is added. A graph knows no batch size and no memory. */
#ifndef GG_NN_GRAPH_H
#define GG_NN_GRAPH_H

#include "base/options.h"
#include "ops/arena_layout.h"
#include "ops/backend.h"

#define GG_NAME_LENGTH 64

/* All kinds of layers. Each has a row, gg_layer_NAME, in a file of nn/layers/; that of INPUT is in graph.c. */
#define GG_LAYERS(X)                                                                                                   \
    X(INPUT, input)                                                                                                    \
    X(CONV2D, conv2d)                                                                                                  \
    X(LINEAR, linear)                                                                                                  \
    X(MAX_POOL2D, max_pool2d)                                                                                          \
    X(AVG_POOL2D, avg_pool2d)                                                                                          \
    X(ADAPTIVE_AVG_POOL2D, adaptive_avg_pool2d)                                                                        \
    X(BATCH_NORM1D, batch_norm1d)                                                                                      \
    X(BATCH_NORM2D, batch_norm2d)                                                                                      \
    X(LAYER_NORM, layer_norm)                                                                                          \
    X(RMS_NORM, rms_norm)                                                                                              \
    X(GROUP_NORM, group_norm)                                                                                          \
    X(LOCAL_RESPONSE_NORM, local_response_norm)                                                                        \
    X(SOFTMAX, softmax)                                                                                                \
    X(LEAKY_RELU, leaky_relu)                                                                                          \
    X(GELU, gelu)                                                                                                      \
    X(RELU, relu)                                                                                                      \
    X(TANH, tanh)                                                                                                      \
    X(SIGMOID, sigmoid)                                                                                                \
    X(FLATTEN, flatten)                                                                                                \
    X(DROPOUT, dropout)                                                                                                \
    X(ADD, add)                                                                                                        \
    X(CONCAT, concat)                                                                                                  \
    X(EMBEDDING, embedding)                                                                                            \
    X(POSITION_EMBEDDING, position_embedding)                                                                          \
    X(RESHAPE, reshape)                                                                                                \
    X(PERMUTE, permute)                                                                                                \
    X(SLICE, slice)                                                                                                    \
    X(PAD, pad)                                                                                                        \
    X(ATTENTION, attention)                                                                                            \
    X(LSTM, lstm)                                                                                                      \
    X(MULTI_HEAD, multi_head)

typedef enum gg_layer_kind {
#define GG_LAYER_KIND(kind, row) GG_LAYER_##kind,
    GG_LAYERS(GG_LAYER_KIND)
#undef GG_LAYER_KIND
        GG_LAYER_COUNT
} gg_layer_kind;

/* "conv2d"; kind < GG_LAYER_COUNT. */
const char *gg_layer_kind_name(gg_layer_kind kind);

typedef enum gg_init_kind {
    GG_INIT_DEFAULT = 0,    /* PyTorch's: uniform +-1/sqrt(fan_in), for weight and bias */
    GG_INIT_XAVIER_UNIFORM, /* Glorot and Bengio 2010: +-sqrt(6/(fan_in + fan_out)) */
    GG_INIT_XAVIER_NORMAL,  /* deviation sqrt(2/(fan_in + fan_out)) */
    GG_INIT_HE_UNIFORM,     /* He et al. 2015: +-sqrt(6/fan_in) */
    GG_INIT_HE_NORMAL,      /* deviation sqrt(2/fan_in) */
    GG_INIT_CAFFE_XAVIER,   /* Caffe's "xavier": +-sqrt(3/fan_in) */
    GG_INIT_UNIFORM,        /* +-value */
    GG_INIT_NORMAL,         /* deviation value */
    GG_INIT_CONSTANT,       /* value */
    GG_INIT_COUNT
} gg_init_kind;

typedef struct gg_init {
    gg_init_kind kind;
    float value; /* UNIFORM, NORMAL, CONSTANT */
} gg_init;

/* Description of a layer. Fields that its kind does not use are zero. */
typedef struct gg_layer_desc {
    gg_layer_kind kind;
    char name[GG_NAME_LENGTH]; /* unique in the graph */
    gg_dtype dtype;            /* INPUT: FLOAT32, or INT32 for tokens */
    int64_t outputs;           /* CONV2D: channels; LINEAR, EMBEDDING, LSTM and MULTI_HEAD: features */
    bool bias;         /* CONV2D, LINEAR, LSTM, MULTI_HEAD, affine LAYER_NORM, RMS_NORM and GROUP_NORM: has one */
    float probability; /* DROPOUT, ATTENTION, MULTI_HEAD, LSTM: in [0, 1) */
    gg_init weight_init, bias_init;
    union {
        GG_OP_OPTIONS
        gg_op_options options;
    };
} gg_layer_desc;

/* The options of a kind, in gg_layer_desc; a row whose name is NULL ends them. They lack weight_init and bias_init. */
const gg_option *gg_layer_options(gg_layer_kind kind);
/* A description of this kind with default options and an empty name. */
gg_layer_desc gg_layer_desc_of(gg_layer_kind kind);

/* Factors of an optimiser's learning rate or weight decay: `weight` for the roles weight and scale, `bias` for bias and
 * shift. */
typedef struct gg_factors {
    float weight, bias;
} gg_factors;

typedef struct gg_node {
    gg_layer_desc desc;
    gg_factors lr, decay; /* 1, unless set */
    int inputs;
    int input[GG_MAX_INPUTS]; /* node numbers, all smaller than this node's */
    gg_shape shape;           /* of one sample's output */
    gg_dtype dtype;           /* of its output: FLOAT32 or INT32. Plans may store FLOAT32 narrower */
    int layer;                /* number among layers with parameters, in node order; -1 means no parameters */
} gg_node;

/* An output that a loss may see. */
typedef struct gg_head {
    int node;
    bool training_only; /* evaluation omits it and layers that lead to it alone; their parameters stay in the arenas */
} gg_head;

typedef struct gg_graph gg_graph;

gg_status gg_graph_create(gg_graph **out);
void gg_graph_destroy(gg_graph *graph);

/* Adds a node and sets *node to its number. Errors name the layer and the shapes. `inputs` is 0 for INPUT, whose sample
 * shape is `shape` (ignored for all other kinds). Any number of nodes up to GG_MAX_FIELDS may be INPUT. */
gg_status gg_graph_add(gg_graph *graph, const gg_layer_desc *desc, const gg_shape *shape, int inputs, const int *input,
                       int *node);
/* Sets the factors of a node's parameters, finite and at least 0, before finish; errors name the layer. */
gg_status gg_graph_set_factors(gg_graph *graph, int node, gg_factors lr, gg_factors decay);
/* Sets the heads, 1 to GG_MAX_FIELDS, and closes the graph. The first is the main head, which is not training_only.
 * Every node must lead to a head; an error names the first that does not. A node has at most one head; its output is
 * float32. */
gg_status gg_graph_finish(gg_graph *graph, int heads, const gg_head *head);

/* Integers from `first` to `end` - 1; end 0 means any. */
typedef struct gg_integers {
    int64_t first, end;
} gg_integers;

/* Integers of int32 input i that all its readers allow. */
gg_integers gg_graph_integers(const gg_graph *graph, int i);

int gg_graph_nodes(const gg_graph *graph);
const gg_node *gg_graph_node(const gg_graph *graph, int node);
int gg_graph_inputs(const gg_graph *graph);       /* number of INPUT nodes */
int gg_graph_input(const gg_graph *graph, int i); /* the i-th INPUT node, in order of addition */

/* After finish: */
int gg_graph_heads(const gg_graph *graph);
const gg_head *gg_graph_head(const gg_graph *graph, int head);
int gg_graph_output(const gg_graph *graph);                    /* the main head's node; -1 means not finished */
const gg_arena_layout *gg_graph_layout(const gg_graph *graph); /* owned by the graph */
/* Parts of the layout: */
int gg_graph_parameters(const gg_graph *graph);
const gg_parameter *gg_graph_parameter(const gg_graph *graph, int parameter);
int gg_graph_layers(const gg_graph *graph);
const gg_slice *gg_graph_layer(const gg_graph *graph, int layer);
/* The layer's parameters: the returned number of them, from number *first on. */
int gg_graph_layer_parameters(const gg_graph *graph, int layer, int *first);
const char *gg_graph_layer_name(const gg_graph *graph, int layer);
gg_family gg_graph_family(const gg_graph *graph, int layer);
size_t gg_graph_arena_count(const gg_graph *graph); /* float32 elements of an arena, padding included */

int64_t gg_graph_parameter_count(const gg_graph *graph); /* numbers in all parameters, without padding */
int64_t gg_graph_node_carried(
    const gg_graph *graph,
    int node); /* float32 numbers of state that its layer carries from batch to batch for each sample; 0 means none */
int64_t gg_graph_node_macs(const gg_graph *graph, int node); /* multiply-adds of one sample's forward pass */

/* True if two finished graphs have equal inputs, heads and layers, apart from inner sizes: equal samples and targets,
 * and equal numbers of nodes, layers and parameters. */
bool gg_graph_is_alike(const gg_graph *a, const gg_graph *b);
/* True if two finished graphs have equal nodes, shapes, parameters, factors and heads, so equal arenas and
 * computations.
 */
bool gg_graph_same_layout(const gg_graph *a, const gg_graph *b);

/* Fills an arena with initial weights, a function of the seed alone, equal on every rank. */
void gg_graph_initialise(const gg_graph *graph, uint64_t seed, float *weights);

#endif
