/* Which algorithm is fastest for each pass of each convolution of a graph, by running them. */
#ifndef GG_NN_MEASURE_H
#define GG_NN_MEASURE_H

#include "nn/cost.h"
#include "nn/plan.h"

/* One candidate: what a pass took, with the preparation of its weights; the shortest of several runs. */
typedef struct gg_conv_timing {
    gg_conv_key key;
    gg_pass pass;
    gg_algorithm algorithm;
    double seconds;
} gg_conv_timing;

/* The convolutions that have several candidates in a plan with these options, each once, those with the most operations
 * first. *out is owned by the caller (gg_free). */
gg_status gg_measured_convolutions(const gg_graph *graph, const gg_plan_options *options, gg_conv_key **out,
                                   int *count);

/* Measures the candidates of these convolutions, in the layouts of a plan with these options: of all passes of a
 * training plan, else of forward alone. The candidates of a pass run alternately. After so many seconds no further
 * convolution is begun: the last of `wanted` may be missing, as may those for which memory does not suffice. *out is
 * owned by the caller (gg_free). */
gg_status gg_measure_algorithms(const gg_graph *graph, const gg_plan_options *options, const gg_conv_key *wanted,
                                int wants, double seconds, gg_conv_timing **out, int *count);

/* What came of measuring the order of tables. All but the first leave it to the cost model. */
typedef enum gg_tables_outcome {
    GG_TABLES_MEASURED,
    GG_TABLES_ONE,       /* there is no choice with these options */
    GG_TABLES_NO_TIME,   /* the budget did not suffice for a step with each order */
    GG_TABLES_NO_MEMORY, /* of which gg_error_message says how much was asked for */
} gg_tables_outcome;

typedef struct gg_tables_timing {
    gg_tables_outcome outcome;
    double seconds[2]; /* MEASURED: of a step where the device is asked first, and where its fallback is */
} gg_tables_timing;

/* Algorithms of so many convolutions. */
typedef struct gg_conv_choices {
    const gg_conv_choice *choice;
    int count;
} gg_conv_choices;

/* What a training step takes with each order of tables: the shortest of a few steps on made-up samples, reorders
 * included. weights: an arena, which is read alone; NULL: the graph has none. algorithms: of convolutions where the
 * device is asked first, and where its fallback is; NULL: those of the options. After so many seconds it ends with the
 * operation that runs, or with the plan that is being made; before that, where the next steps would not be done in
 * time, or are not needed. */
gg_status gg_measure_tables(const gg_graph *graph, const gg_plan_options *options, const float *weights,
                            const gg_conv_choices algorithms[2], double seconds, gg_tables_timing *out);

/* What a training step takes: the shortest of a few on made-up samples. weights: as in gg_measure_tables.
 * GG_ERROR_UNSUPPORTED on a device with memory of its own. */
gg_status gg_measure_step(const gg_graph *graph, const gg_plan_options *options, const float *weights, double *seconds);

/* How the cost model sees a pass of an operation of the plan. */
gg_cost_query gg_plan_step_query(const gg_plan *plan, int step, gg_pass pass);

#endif
