/* Which algorithm is fastest for each pass of each convolution of a graph, by running them. */
#ifndef GG_NN_MEASURE_H
#define GG_NN_MEASURE_H

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
 * convolution is begun: the last of `wanted` may be missing. *out is owned by the caller (gg_free). */
gg_status gg_measure_algorithms(const gg_graph *graph, const gg_plan_options *options, const gg_conv_key *wanted,
                                int wants, double seconds, gg_conv_timing **out, int *count);

/* What a training step takes with these options where the device is asked first, then where its fallback is; both 0
 * where there is no choice, or no memory for measuring. The shortest of a few steps on made-up samples, reorders
 * included. weights: an arena, which is read alone; NULL: the graph has none. */
gg_status gg_measure_tables(const gg_graph *graph, const gg_plan_options *options, const float *weights,
                            double seconds[2]);

#endif
