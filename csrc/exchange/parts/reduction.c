#include "exchange/parts/reduction.h"

gg_status gg_reduction_create(gg_strategy *owner, const gg_strategy_options *options, const gg_reduction_run *run,
                              gg_reduction **out) {
    return run->residue != NULL ? gg_packed_reduction_create(owner, options, run, out)
                                : gg_dense_reduction_create(owner, options, run, out);
}
