/* Predicted seconds of operations: a model that was fitted to measurements (tools/fit_costs.py). Pure functions of the
 * description and of the CPU's kind, so that a choice made by them is the same in every run. */
#ifndef GG_NN_COST_H
#define GG_NN_COST_H

#include "ops/backend.h"

enum { GG_COST_FEATURES = 8 };

/* Which kernels compute a convolution, as far as its time depends on it. */
typedef enum gg_cost_form {
    GG_COST_GENERAL = 0,
    GG_COST_WIDE,      /* convolutions of 5 x 5 by Winograd's method */
    GG_COST_POINTWISE, /* convolutions of 1 x 1 with stride 1 */
    GG_COST_GROUPED,
    GG_COST_FEW,   /* convolutions of at most GG_CONV_FEW_CHANNELS channels */
    GG_COST_LARGE, /* products of matrices, none of whose sides is short */
    GG_COST_SLOW,  /* gg_op.slow */
    GG_COST_FORMS
} gg_cost_form;

/* Names a row of coefficients. input: of REORDER; else it equals `output`. */
typedef struct gg_cost_key {
    gg_dtype dtype;
    gg_op_kind kind;
    bool native; /* the native table, else oneDNN's */
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
    bool slow; /* as in gg_op */
    gg_isa isa;
} gg_cost_query;

/* Whether a convolution by this algorithm that gives this layout is the native table's. */
bool gg_cost_is_native(gg_algorithm algorithm, gg_layout output);
/* The row of a pass, and its features: 0 products, 1 and 2 what is read and written beside them, 3 weights, 4
 * activations, 5 and 6 what of these is more than a cache holds, 7 the call. */
gg_cost_key gg_cost_describe(const gg_cost_query *query, double feature[GG_COST_FEATURES]);

/* The coefficients of a kind of CPU. */
typedef struct gg_cost_model gg_cost_model;

/* The model of this CPU at an instruction set, and the one of this name; NULL: there is none. */
const gg_cost_model *gg_cost_model_of(gg_isa isa);
const gg_cost_model *gg_cost_model_named(const char *name);
const char *gg_cost_model_name(const gg_cost_model *model);

/* Predicted seconds. A pass that was not measured is taken for the most similar one that was; INFINITY: a convolution
 * by an algorithm of which none was. */
double gg_cost_seconds(const gg_cost_model *model, const gg_cost_query *query);

#endif
