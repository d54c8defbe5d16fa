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

/* Measures the candidates of every convolution that has several, in the layouts of a training plan with these options;
 * those of `known` are left out. The candidates of a pass run alternately. *out is owned by the caller (gg_free). */
gg_status gg_measure_algorithms(const gg_graph *graph, const gg_plan_options *options, const gg_conv_key *known,
                                int knowns, gg_conv_timing **out, int *count);

#endif
