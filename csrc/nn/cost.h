/* Predicted seconds of operations, by a model fitted to measurements (tools/fit_costs.py). Pure functions of the
 * description and the CPU's kind, so that choices are equal in every run. */
#ifndef GG_NN_COST_H
#define GG_NN_COST_H

#include "ops/backend.h"

enum { GG_COST_FEATURES = 8 };

/* Kinds of kernels, as far as the time of an operation depends on them. */
typedef enum gg_cost_form {
    GG_COST_GENERAL = 0,
    GG_COST_WIDE,      /* convolutions of 5 x 5 by Winograd's method */
    GG_COST_POINTWISE, /* convolutions of 1 x 1 with stride 1 */
    GG_COST_GROUPED,
    GG_COST_FEW,   /* convolutions of at most GG_CONV_FEW_CHANNELS channels */
    GG_COST_LARGE, /* matrix products without a short side */
    GG_COST_SLOW,  /* gg_op.slow */
    GG_COST_FORMS
} gg_cost_form;

/* Key of a row of coefficients. input: REORDER's; otherwise it equals `output`. */
typedef struct gg_cost_key {
    gg_dtype dtype;
    gg_op_kind kind;
    bool native; /* the native table; false means oneDNN's */
    gg_layout input, output;
    gg_cost_form form;
    gg_algorithm algorithm;
    gg_pass pass;
} gg_cost_key;

/* "general", "wide", "pointwise", "grouped", "few", "large", "slow" */
const char *gg_cost_form_name(gg_cost_form form);

/* A pass of an operation of the native table or of oneDNN's, with the layouts of its first input and its output. */
typedef struct gg_cost_query {
    const gg_op_desc *desc;
    bool native;
    gg_layout input, output;
    gg_algorithm algorithm;
    gg_pass pass;
    bool slow; /* gg_op.slow */
    gg_isa isa;
} gg_cost_query;

/* True if a convolution with this algorithm and output layout is the native table's. */
bool gg_cost_is_native(gg_algorithm algorithm, gg_layout output);
/* The row of a pass, and its features: 0 products, 1 and 2 rows and columns read and written beside them, 3 weights, 4
 * activations, 5 and 6 their parts beyond a cache, 7 the call. */
gg_cost_key gg_cost_describe(const gg_cost_query *query, double feature[GG_COST_FEATURES]);

/* The coefficients of a kind of CPU. */
typedef struct gg_cost_model gg_cost_model;

/* The model of this CPU at an instruction set, and the model of this name. NULL means none. */
const gg_cost_model *gg_cost_model_of(gg_isa isa);
const gg_cost_model *gg_cost_model_named(const char *name);
const char *gg_cost_model_name(const gg_cost_model *model);

/* Predicted seconds. An unmeasured pass counts as the most similar measured pass. INFINITY: a convolution by an
 * algorithm without measurements. */
double gg_cost_seconds(const gg_cost_model *model, const gg_cost_query *query);

#endif
