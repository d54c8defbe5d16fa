/* Choice of algorithms for a plan's convolutions, and of the table asked first for its operations. Pure functions, so
 * that all ranks choose alike. */
#ifndef GG_NN_CHOOSE_H
#define GG_NN_CHOOSE_H

#include "nn/cost.h"
#include "nn/plan.h"

/* Default algorithm of an operation: GG_ALGORITHM_WIDENED for bfloat16 products on a CPU that is faster in float32,
 * otherwise GG_ALGORITHM_DIRECT. */
gg_algorithm gg_choose_direct(const gg_plan_options *options, const gg_op_desc *desc);
/* True if the cost model must choose a convolution's algorithms; otherwise `out` receives the options' algorithms. The
 * caller replaces an algorithm that no table has in the convolution's layout. */
bool gg_choose_by_cost(const gg_plan_options *options, const gg_op_desc *desc, gg_algorithm out[GG_PASS_COUNT]);
/* The fastest algorithms by the cost model, in the formats of `direct`, the operation for this convolution with
 * gg_choose_direct's algorithm. */
void gg_choose_algorithms(const gg_plan_options *options, const gg_op *direct, gg_algorithm out[GG_PASS_COUNT]);
/* True if an operation is a convolution with several possible algorithms in its layouts. */
bool gg_choose_has_algorithms(const gg_plan_options *options, const gg_op *op);
gg_conv_key gg_conv_key_of(const gg_op_desc *desc);

/* True if two tables exist and either may be asked first. */
bool gg_choose_has_tables(const gg_plan_options *options);
/* The options' choice for plans of their batch size; NULL means none. */
const gg_table_choice *gg_choose_told_table(const gg_plan_options *options);
/* Fills `order` with the devices to ask, best first; returns their number (1 or 2). */
int gg_choose_devices(const gg_plan_options *options, gg_device *order[2]);

#endif
