#include "strategy/reduction.h"

gg_status gg_reduction_create(gg_strategy *owner, const gg_strategy_options *options, const gg_reduction_run *run,
                              gg_reduction **out) {
    return gg_dense_reduction_create(owner, options, run, out);
}

void gg_reduction_destroy(gg_reduction *reduction) {
    if (reduction != NULL) reduction->table->destroy(reduction);
}

gg_status gg_reduction_start(gg_reduction *reduction, float *data, const float *share) {
    return reduction->table->start(reduction, data, share);
}

gg_status gg_reduction_poll(gg_reduction *reduction, bool *summed) { return reduction->table->poll(reduction, summed); }

gg_status gg_reduction_wait(gg_reduction *reduction) { return reduction->table->wait(reduction); }

gg_status gg_reduction_finish(gg_reduction *reduction) { return reduction->table->finish(reduction); }

gg_status gg_reduction_run_all(gg_reduction *reduction, float *data, const float *share) {
    gg_status status = GG_OK;
    GG_TRY(gg_reduction_start(reduction, data, share));
    GG_TRY(gg_reduction_finish(reduction));
cleanup:
    return status;
}
