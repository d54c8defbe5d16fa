/* The units of a network: parts that can leave it as a whole.
 *
 * A unit is a neuron of a Linear, a filter of a Conv2d, a hidden unit of an LSTM, or a head of attention. Everything
 * indexed by it belongs to it: its rows, its elements of a batch normalisation, the columns of its readers.
 *
 * - Added branches: one unit is an output of several layers. Concatenated branches: a layer reads units of several.
 * - An LSTM has one width: hidden unit k of all its layers is one unit. Heads of one attention have one width and leave
 *   as a whole.
 * - The search follows activations, pooling, dropout, Flatten, Permute, Pad and Slice (of neighbouring units).
 * - Inputs of other layers that mix or move units (Reshape, normalisations over units, grouped convolutions, ...) must
 *   stay.
 *
 * Pure functions of a finished graph. Results are constant; any thread may read them. */
#ifndef GG_APOPTOSIS_UNITS_H
#define GG_APOPTOSIS_UNITS_H

#include "nn/graph.h"

/* When sum_i = c * sum_j (biases included) for every input of the network, readers of i see c times the value of j.
 * Each rule restricts c; later rules allow less. */
typedef enum gg_unit_rule {
    GG_UNIT_LINEAR = 0, /* any c: no activation */
    GG_UNIT_POSITIVE,   /* c >= 0: ReLU, LeakyReLU, maximum pooling */
    GG_UNIT_ODD,        /* c = 1 or -1: tanh */
    GG_UNIT_SIGMOID,    /* c = 1; with c = -1 readers of i see 1 minus the value of j */
    GG_UNIT_EQUAL,      /* c = 1: any function of each value */
    GG_UNIT_RULE_COUNT
} gg_unit_rule;

const char *gg_unit_rule_name(gg_unit_rule rule); /* "linear"; rule < GG_UNIT_RULE_COUNT */

/* A layer whose outputs are the units. */
typedef struct gg_unit_producer {
    int node; /* LINEAR, CONV2D, LSTM or MULTI_HEAD */
    int norm; /* the batch normalisation that is its only reader; -1 means none */
} gg_unit_producer;

/* A layer that reads the units. */
typedef struct gg_unit_reader {
    int node;    /* LINEAR, CONV2D, LSTM or MULTI_HEAD */
    int weight;  /* the parameter whose axis 1 the units index */
    int bias;    /* the parameter that absorbs a constant input; -1 means none */
    bool mean;   /* `bias` is the running mean of a following batch normalisation: a constant is subtracted from it */
    double gain; /* max change of the reader's sums, as a factor of the error of the units' sums times the norm of its
                    weights (2-norms over all places). LSTM: of one step, without its recurrence and further layers */
    bool constants; /* a unit with one sum everywhere is read as one number everywhere: no padding */
} gg_unit_reader;

#define GG_UNIT_TEXT 256

/* Units that the same layers produce: a run of unit numbers. */
typedef struct gg_unit_group {
    int first, units;
    int producers;
    gg_unit_producer *producer; /* in the graph's order */
    int readers;
    gg_unit_reader *reader; /* in the graph's order; an LSTM reads its own hidden units as well, MULTI_HEAD its heads */
    gg_unit_rule rule;
    gg_layer_kind activation;  /* the only activation on all ways to readers: RELU, LEAKY_RELU, TANH or SIGMOID. INPUT
                                  means none; COUNT means several, or another */
    float slope;               /* LEAKY_RELU */
    bool heads;                /* units are heads of attention: MULTI_HEAD's, or rows that ATTENTION reads */
    char fixed[GG_UNIT_TEXT];  /* why no unit can leave; "" if units can */
    char single[GG_UNIT_TEXT]; /* why units cannot be compared by their weights; "" if they can */
} gg_unit_group;

/* The units that the indices of an axis belong to. */
typedef struct gg_unit_axis {
    int64_t count;
    int *unit; /* one an index: a unit's number, or -1 for none. NULL means that the axis has no units */
} gg_unit_axis;

typedef struct gg_units {
    int units, groups;
    int *group_of; /* one a unit */
    gg_unit_group *group;
    int nodes;
    gg_unit_axis *output; /* one a node: the axis of units in its output */
    gg_unit_axis *inside; /* one a node: the heads of MULTI_HEAD */
    int parameters;
    gg_unit_axis (*parameter)[2]; /* one a parameter: its first two axes */
} gg_units;

/* The graph is finished. The caller destroys `out`. */
gg_status gg_units_find(const gg_graph *graph, gg_units **out);
void gg_units_destroy(gg_units *units);
/* The units of a producer's outputs; for MULTI_HEAD its heads. */
const gg_unit_axis *gg_units_produced(const gg_units *units, int node);
/* The first group with units of the layer with this name; -1 means none. */
int gg_units_group_named(const gg_units *units, const gg_graph *graph, const char *name);

#endif
