/* Which algorithms a plan's convolutions have, and which table is asked first for its operations. Pure functions, so
 * that every rank makes the same choice. */
#ifndef GG_NN_CHOOSE_H
#define GG_NN_CHOOSE_H

#include "nn/cost.h"
#include "nn/plan.h"

/* The algorithm of an operation that nothing else is said of: GG_ALGORITHM_WIDENED for products of bfloat16 on a CPU
 * that is faster in float32, else GG_ALGORITHM_DIRECT. */
gg_algorithm gg_choose_direct(const gg_plan_options *options, const gg_op_desc *desc);
/* Whether the cost model is to choose a convolution's algorithms; else *out has them, by the options. One that no table
 * has in the convolution's layout is for the caller to replace. */
bool gg_choose_by_cost(const gg_plan_options *options, const gg_op_desc *desc, gg_algorithm out[GG_PASS_COUNT]);
/* The algorithms that the cost model expects to be the fastest, in the formats of `direct`, the operation that computes
 * this convolution by gg_choose_direct. */
void gg_choose_algorithms(const gg_plan_options *options, const gg_op *direct, gg_algorithm out[GG_PASS_COUNT]);
/* Whether an operation is a convolution that may have several algorithms in the layouts that it has. */
bool gg_choose_has_algorithms(const gg_plan_options *options, const gg_op *op);
gg_conv_key gg_conv_key_of(const gg_op_desc *desc);

/* Whether there are two tables of which either may be asked first. */
bool gg_choose_has_tables(const gg_plan_options *options);
/* Whether the options say which one is, for plans of their batch size; NULL: they do not. */
const gg_table_choice *gg_choose_told_table(const gg_plan_options *options);
/* Fills `order` with the devices to ask, best first, and returns how many (1 or 2). */
int gg_choose_devices(const gg_plan_options *options, gg_device *order[2]);

#endif
