/* The units of a network: what can leave it, and what leaves with it.
 *
 * A unit is a neuron of a Linear, a filter of a Conv2d, a hidden unit of an LSTM, or a head of attention with its rows
 * of queries, keys and values, with all that is indexed by it: its rows, its elements of a batch normalisation, the
 * columns of the layers that read it. Where branches are added, one unit is an output of several layers; where they are
 * concatenated, a layer reads units of several. An LSTM has one width, so that hidden unit k of all its layers is one
 * unit; heads of one attention have one width as well, and leave as a whole. Activations, pooling, dropout, Flatten,
 * Permute, Pad and Slice (of neighbouring units) are followed. Layers that mix or move what they read in another way
 * (Reshape, normalisations over units, grouped convolutions, ...) are not: their inputs have to stay.
 *
 * Pure functions of a finished graph; what they give is constant, and read by any thread. */
#ifndef GG_APOPTOSIS_UNITS_H
#define GG_APOPTOSIS_UNITS_H

#include "nn/graph.h"

/* Of which units it holds, whatever the network's input, that where unit i's sum (with its bias) is c times that of
 * unit j, all that reads i sees c times what it sees of j. A rule further down allows less. */
typedef enum gg_unit_rule {
    GG_UNIT_LINEAR = 0, /* any c: no activation */
    GG_UNIT_POSITIVE,   /* c >= 0: ReLU, LeakyReLU, maximum pooling */
    GG_UNIT_ODD,        /* c = 1 or -1: tanh */
    GG_UNIT_SIGMOID,    /* c = 1; and with c = -1 it sees 1 minus what it sees of j */
    GG_UNIT_EQUAL,      /* c = 1: any function of each value */
    GG_UNIT_RULE_COUNT
} gg_unit_rule;

const char *gg_unit_rule_name(gg_unit_rule rule); /* "linear"; rule < GG_UNIT_RULE_COUNT */

/* A layer of whose outputs the units are. */
typedef struct gg_unit_producer {
    int node; /* LINEAR, CONV2D, LSTM or MULTI_HEAD */
    int norm; /* the node of the batch normalisation that alone reads it; -1: there is none */
} gg_unit_producer;

/* A layer of which the units are inputs. */
typedef struct gg_unit_reader {
    int node;       /* LINEAR, CONV2D, LSTM or MULTI_HEAD */
    int weight;     /* the parameter whose axis 1 they are indices of */
    int bias;       /* the parameter to which a constant input can be added; -1: it has none */
    bool mean;      /* `bias` is the running mean of the batch normalisation behind, from which it is subtracted */
    double gain;    /* an error of the units' sums changes what the reader sums up at most by so much times the norm of
                       its weights (2-norms over all places). Of an LSTM of one step, without what its recurrence and
                       further    layers make of it */
    bool constants; /* a unit with the same sum everywhere is read as one number everywhere: no padding */
} gg_unit_reader;

#define GG_UNIT_TEXT 256

/* Units that the same layers produce: a run of unit numbers. */
typedef struct gg_unit_group {
    int first, units;
    int producers;
    gg_unit_producer *producer; /* in the graph's order */
    int readers;
    gg_unit_reader *reader; /* in the graph's order; an LSTM reads its own hidden units, too, and
                                 MULTI_HEAD its heads */
    gg_unit_rule rule;
    gg_layer_kind activation; /* RELU, LEAKY_RELU, TANH or SIGMOID, the only one on all ways to readers; INPUT: there is
                                 none; COUNT: several, or another */
    float slope;              /* LEAKY_RELU */
    bool heads;               /* of attention: of MULTI_HEAD, or of rows that ATTENTION reads */
    char fixed[GG_UNIT_TEXT]; /* why none of them can leave; "": they can */
    char single[GG_UNIT_TEXT]; /* why they cannot be compared by their weights; "": they can */
} gg_unit_group;

/* Of which units the indices of an axis are. */
typedef struct gg_unit_axis {
    int64_t count;
    int *unit; /* one an index: a unit's number, -1: no unit's. NULL: the axis has nothing to do with units */
} gg_unit_axis;

typedef struct gg_units {
    int units, groups;
    int *group_of; /* one a unit */
    gg_unit_group *group;
    int nodes;
    gg_unit_axis *output; /* one a node: of the axis of its output along which units lie */
    gg_unit_axis *inside; /* one a node: the heads of MULTI_HEAD */
    int parameters;
    gg_unit_axis (*parameter)[2]; /* of each, its first two axes */
} gg_units;

/* The graph is finished. The caller destroys `out`. */
gg_status gg_units_find(const gg_graph *graph, gg_units **out);
void gg_units_destroy(gg_units *units);
/* Of which units the outputs of a producer are; of MULTI_HEAD its heads. */
const gg_unit_axis *gg_units_produced(const gg_units *units, int node);
/* The group that the layer with this name produces units of, the first of several; -1: none. */
int gg_units_group_named(const gg_units *units, const gg_graph *graph, const char *name);

#endif
