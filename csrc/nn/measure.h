/* Finds the fastest algorithm for each pass of each convolution of a graph by measuring. */
#ifndef GG_NN_MEASURE_H
#define GG_NN_MEASURE_H

#include "nn/cost.h"
#include "nn/plan.h"

/* One candidate: seconds of a pass with the preparation of its weights, min of several runs. */
typedef struct gg_conv_timing {
    gg_conv_key key;
    gg_pass pass;
    gg_algorithm algorithm;
    double seconds;
} gg_conv_timing;

/* Lists convolutions with several candidates in a plan with these options, each once, most operations first. The caller
 * owns *out (gg_free). */
gg_status gg_measured_convolutions(const gg_graph *graph, const gg_plan_options *options, gg_conv_key **out,
                                   int *count);

/* Measures the candidates of these convolutions in the layouts of a plan with these options: all passes of a training
 * plan, otherwise forward alone. Candidates of a pass run alternately. After `seconds` no further convolution starts:
 * the last of `wanted` may be missing, as may convolutions without enough memory. The caller owns *out (gg_free). */
gg_status gg_measure_algorithms(const gg_graph *graph, const gg_plan_options *options, const gg_conv_key *wanted,
                                int wants, double seconds, gg_conv_timing **out, int *count);

/* Outcome of measuring the order of tables. All but the first leave the order to the cost model. */
typedef enum gg_tables_outcome {
    GG_TABLES_MEASURED,
    GG_TABLES_ONE,       /* the options leave no choice */
    GG_TABLES_NO_TIME,   /* the time was too short for a step with each order */
    GG_TABLES_NO_MEMORY, /* gg_error_message names the requested bytes */
} gg_tables_outcome;

typedef struct gg_tables_timing {
    gg_tables_outcome outcome;
    double seconds[2]; /* MEASURED: of a step with the device asked first, and with its fallback asked first */
} gg_tables_timing;

/* Algorithms of `count` convolutions. */
typedef struct gg_conv_choices {
    const gg_conv_choice *choice;
    int count;
} gg_conv_choices;

/* Measures a training step with each order of tables: min of a few steps on made-up samples, reorders included.
 * weights: an arena, only read; NULL means that the graph has none. algorithms: of convolutions with the device asked
 * first, and with its fallback asked first; NULL means the options'. Ends after `seconds` with the running operation or
 * the plan under construction; ends earlier if the next steps would be late or are not needed. */
gg_status gg_measure_tables(const gg_graph *graph, const gg_plan_options *options, const float *weights,
                            const gg_conv_choices algorithms[2], double seconds, gg_tables_timing *out);

/* Measures a training step: min of a few on made-up samples. weights: as in gg_measure_tables. GG_ERROR_UNSUPPORTED: a
 * device with memory of its own. */
gg_status gg_measure_step(const gg_graph *graph, const gg_plan_options *options, const float *weights, double *seconds);

/* The cost model's query for a pass of a plan's operation. */
gg_cost_query gg_plan_step_query(const gg_plan *plan, int step, gg_pass pass);

#endif
